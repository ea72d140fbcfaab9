# SPDX-License-Identifier: Apache-2.0
"""One pass of a `leat.Loader`: the samples of a step, their source, and the stand-ins of samples that cannot be read.

Happy path: `__next__` takes the raw batch of the next step, or has an engine (workers) prepare as many ahead as there are slots, and waits
for the first. A source (source.py) chooses samples and order.

Failure modes: a bad sample is raised or replaced (`_bad`, `_substitute`). After any other error the pass is over if workers
may be at work, and the loader can be iterated again.
Invariants: steps are handed out in order, each once; the loader's state is moved on only when a step is handed out, and only by the pass
that is the loader's own.
"""

from __future__ import annotations

import collections
import itertools
import logging
import math
import sys
from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _leat
from .._base.errors import BadSample, Busy, Corrupt, Denied, Error, NoSpace, NotFound, PeerGone, Stale, TimedOut, WorkerDied, let_go
from .._sets import plan
from .._sets.batch import Array, dense_arrays
from .._sets.plan import ID_BITS, ID_MASK, Steps
from . import device, workers
from .generators import States, seed_for
from .nested import as_bfloat16, build, each
from .prepared import LoadedBatch, Shapes
from .source import RawIter
from .weighted import hashes

if TYPE_CHECKING:
    from .config import Config

_log = logging.getLogger("leat")

_ENDLESS = 1 << 62  # a step that no pass reaches

#: Of the pool, of a worker, of the program: no other sample would fare better.
NOT_OF_A_SAMPLE = (Busy, Denied, NoSpace, PeerGone, Stale, TimedOut, WorkerDied)


class Epoch(_leat.FastIter, Iterator[Any]):
    """One pass, from a position to the end of the epoch. Steps that are plain go by the FastIter and no Python; `_step` does the others."""

    def __init__(self, config: Config, steps: Steps, start: int, owner: object) -> None:
        self._owner = owner  # lives as long as its pass: it closes what they share
        self._config, self._source, self._steps, self._first = config, config.source, steps, start
        self._epoch = config.course.epoch  # once set_epoch is called, the loader's epoch is that of the next pass
        self._iter: RawIter | None = None
        self._closed = self._finished = False
        self.replaced = False  # by another pass of the loader
        self._generation = config.generation
        self._asked = 0  # steps given to the source
        self._done = 0  # steps handed out
        self._errors = 0
        self._lags = 0  # of the ring, when it was looked at last
        self._jobs: collections.deque[tuple[workers.Job, int]] = collections.deque()
        self._met: BaseException | None = None  # by work ahead: raised when it is that step's turn
        self._window = self._window_end = 0  # steps that the iterator was opened with, and the one behind them
        length = steps.plan.length
        if not start and length and not self._has(0):
            _log.warning("no batches: an epoch of %d samples has not one step of %d; drop_last=False fills it up", length, config.global_batch)
        config.reporter.begin(steps)

    def _has(self, step: int) -> bool:
        return step < self._steps.count(step)

    def _tags(self, step: int, count: int) -> Array:
        """Upper bits of the numbers of samples that workers prepare: a sample that a sampler draws twice in an epoch gets other random numbers
        the second time. 20 bits that follow from the position in the epoch alone; none in an order of our own, which has its samples once."""
        if not self._config.sampled:
            return np.zeros(count, np.uint64)
        first = self._steps.position(step)
        return hashes(0, np.arange(first, first + count)) >> np.uint64(ID_BITS) << np.uint64(ID_BITS)

    # --- raw batches ---

    def _open(self, step: int) -> RawIter:
        config, source = self._config, self._source
        whole = source.iterate(self._steps.plan, config.seed, self._epoch, config.block, 0, config.group, config.groups,
                               self._first + step * config.global_batch, 0 if config.drop_last else 2, config.prefetch)
        if whole is not None:
            self._window_end = _ENDLESS
            return whole
        self._window = source.ahead(self._window, config.global_batch)
        most = step + self._window
        self._window_end = min(most, self._steps.count(most - 1))
        return source.open([self._steps.ids(s) for s in range(step, self._window_end)], config.prefetch, config.block)

    def _end_iter(self) -> None:
        if self._iter is not None:
            self._iter.close()
            self._iter = None

    def _raw(self, step: int, timeout_ns: int) -> Any:
        if step >= self._window_end:
            self._end_iter()
        if self._iter is None:
            self._iter = self._open(step)
        config, source = self._config, self._source
        try:
            batch = source.batch(self._iter.next(timeout_ns))
        except (Corrupt, NotFound) as error:
            self._end_iter()
            return self._mend(step, error)
        except Busy as error:
            if timeout_ns == 1:
                raise
            raise Busy(f"{error}, copy what is to be kept, or give the loader a larger prefetch= than {config.prefetch}", code="busy") from None
        if config.prepares:
            return batch
        if config.memory[0] == device.PINNED:
            config.delivery.bytes += batch.nbytes
        if step >= self._steps.whole:
            return self._dress(batch, step)
        batch._valid = self._steps.all_valid
        if config.memory[0] == device.HOST and isinstance(self._iter, _leat.Iter):
            self.arm(self._iter, LoadedBatch, source.named, config.source.ws, self._steps.all_valid, dense_arrays(source.named, config.batch_size),
                     self._steps.whole - step - 1, config.timeout_ns)
        return batch

    def _dress(self, batch: LoadedBatch, step: int) -> LoadedBatch:
        batch._valid = self._steps.valid(step)
        batch.position = self._steps.position(step)
        return batch

    def _mend(self, step: int, error: BaseException) -> Any:
        """A batch with a sample that cannot be read: finds it and its stand-in."""
        ids = self._steps.ids(step).copy()
        source = self._source
        found = False
        for i in range(len(ids)):
            for attempt in range(1, 100):
                try:
                    for column in source.columns:
                        source.ws._read(int(ids[i]), column.field)
                    break
                except (Corrupt, NotFound) as bad:
                    found = True
                    self._bad(step, i, int(ids[i]), bad)
                    ids[i] = self._substitute(step, i, attempt)
        if not found:
            raise error
        batch = source.read(ids, self._config.timeout_ns)
        return batch if self._config.prepares else self._dress(batch, step)

    # --- bad samples ---

    def _substitute(self, step: int, i: int, attempt: int) -> int:
        """The attempt-th stand-in of a place: another position of the epoch, the same on any number of ranks."""
        n = self._steps.plan.stand_ins
        here = self._steps.position(step) + i
        stride = (self._config.seed * 0x9E3779B97F4A7C15 + n // 3) % n | 1
        while math.gcd(stride, n) != 1:
            stride += 2
        return self._steps.plan.at((here + attempt * stride) % n)

    def _ceiling(self, step: int) -> int:
        """Bad samples that are replaced: of an epoch without end, in proportion to what came so far."""
        config, length = self._config, self._steps.length
        if config.max_errors is not None:
            return config.max_errors
        return max(10, -(-(self._steps.end(step) if length == plan.ENDLESS else length) // config.groups) // 100)

    def _bad(self, step: int, i: int, index: int, cause: BaseException) -> None:
        """Raises, or counts what will be replaced."""
        config = self._config
        error = self._source.bad_sample(index, self._steps.position(step) + i, cause)
        if config.on_error == "raise" or isinstance(cause, SystemExit):
            raise error from cause
        let_go(cause)
        if callable(config.on_error):
            error.__cause__ = cause
            config.on_error(error)
        self._errors += 1
        config.stats["skipped"] += 1
        ceiling = self._ceiling(step)
        if self._errors > ceiling:
            raise BadSample(f"{self._errors} bad samples in this epoch, max_errors={ceiling}; the last: {error}",
                            code=error.code) from cause
        _log.warning("replaced: %s", error)

    # --- prepared batches ---

    def _start_engine(self) -> None:
        config = self._config
        work = config.work
        if not work.layout:
            self._learn(work)
        slots = config.delivery.slots(work.layout, config.batch_size, config.prefetch, shared=config.method != "thread")
        if config.method == "thread":
            config.engine = workers.Threads(work, slots, config.workers)
        else:
            method = None if config.method == "process" else config.method
            config.engine = workers.Processes(work, slots, config.workers, self._source, method)

    def _learn(self, work: workers.Work) -> None:
        """Learns the form of prepared samples from the first good one."""
        work.strict = self._config.collate is None
        n = self._steps.plan.length
        for attempt in range(16):
            index = self._steps.plan.at((self._first + attempt) % n)
            try:
                work.learn(self._one(index))
                return
            except NOT_OF_A_SAMPLE:
                raise
            except (Exception, SystemExit) as cause:
                if self._config.on_error == "raise" or attempt == 15 or isinstance(cause, SystemExit):
                    raise self._source.bad_sample(index, self._first + attempt, cause) from cause

    def _one(self, index: int) -> dict[str, Any]:
        """One sample, prepared now, where the workers are: a transform that hangs or dies does not take the loop with it, and what it
        does to a process (threads of a library, which a later fork would lose) is not done to this one."""
        config = self._config
        forks = config.method == "fork" or config.method == "process" and workers.forks()
        run = workers.in_child if forks else workers.in_thread
        work = config.work
        made: dict[str, Any]

        def make() -> tuple[Any, ...]:
            made = self._prepare(index)
            return made, "torch" in sys.modules, work.returned if config.method == "thread" else workers.as_sent(work.returned)

        made, work.imports_torch, work.returned = run(make, index & ID_MASK, config.timeout)
        return made

    def _prepare(self, index: int) -> dict[str, Any]:
        config = self._config
        reader = self._source.reader(1)
        try:
            with reader.read(np.array([index & ID_MASK], np.uint64)) as batch:
                made = self._seeded(batch, index) if config.work.in_python else config.work.one(batch, 0, self._epoch, index)
                return {name: each(value, lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf) for name, value in made.items()}
        finally:
            reader.close()

    def _seeded(self, batch: Any, index: int) -> dict[str, Any]:
        """One sample, as workers prepare it; and whether it draws from generators that it shares with the loop, which waits here."""
        config = self._config
        outer = States()
        seed_for(config.seed, self._epoch, index)
        seeded = States()
        try:
            return config.work.one(batch, 0, self._epoch, index)
        finally:
            drawn = seeded.differ(States())
            outer.restore()
            if drawn and config.method == "thread" and config.engine is None and not config.work.draws:
                config.work.draws = True
                _log.warning("the transform draws from %s, which it shares with the loop: it runs for one sample at a time, while the loop waits. Let it "
                             "draw from rng, or take workers='process'", ", ".join(drawn))

    def _submit(self, timeout_ns: int) -> bool:
        """Gives the next step to the engine. False: nothing to give, no room, or its bytes are not here yet."""
        engine = self._config.engine
        assert engine is not None
        if len(self._jobs) > self._config.prefetch or not self._has(self._asked):
            return False
        lease = engine.slots.take()
        if lease is None:
            return False
        step = self._asked
        if engine.reads:
            ids = self._steps.ids(step)
            job = workers.Job(step, lease, ids | self._tags(step, len(ids)), self._epoch, None)
        else:
            start = perf_counter()
            try:
                raw = self._raw(step, timeout_ns)
            except (TimedOut, Busy):
                if timeout_ns == 1:
                    return False
                raise
            finally:
                self._config.stats["fetch_s"] += perf_counter() - start
            job = workers.Job(step, lease, raw.ids | self._tags(step, len(raw.ids)), self._epoch, raw)
        self._asked += 1
        self._jobs.append((job, step))
        engine.submit(job)
        return True

    def _prepared(self) -> Any:
        config = self._config
        if self._generation != _leat.generation():
            raise ValueError("this iterator is of the process that was forked: call iter() again")
        if config.engine is None:
            self._start_engine()
        engine = config.engine
        assert engine is not None
        while not self._jobs and not self._submit(config.timeout_ns):
            if engine.slots.wait_free(config.timeout):
                continue
            raise Busy(f"all {engine.slots.count} output slots of the loader are held: release batches, copy what is to be kept, or give the loader a larger "
                       f"prefetch= than {config.prefetch}", code="busy")
        self._submit_ahead()
        job, step = self._jobs[0]
        engine.wait(job, config.timeout)
        self._jobs.popleft()
        self._mend_prepared(job, step)
        job.raw = None
        self._submit_ahead()  # the workers continue while this one is copied, and the loop computes
        self._send_ahead(job)
        job.lease.deliver(len(job.ids), config.timeout)
        return self._finish(job, step)

    def _submit_ahead(self) -> None:
        engine = self._config.engine
        if self._met is not None or engine is not None and engine.in_step:
            return
        try:
            while self._submit(1):
                pass
        except Exception as error:
            let_go(error)
            self._met = error

    def _send_ahead(self, job: workers.Job) -> None:
        """Sends `job` to a GPU, and later jobs that are prepared already."""
        engine = self._config.engine
        assert engine is not None
        if not engine.slots.sends:
            return
        try:
            job.lease.send(len(job.ids))
            engine.poll()
            for ahead, _ in self._jobs:
                if ahead.chunks or ahead.failures:
                    break
                ahead.lease.send(len(ahead.ids))
        except Error:  # again in their turn
            pass

    def _mend_prepared(self, job: workers.Job, step: int) -> None:
        if not job.failures:
            return
        assert self._config.engine is not None
        outs = self._config.engine.slots.outs(job.lease.number)
        ids, tags = job.ids, self._tags(step, len(job.ids))
        for i, cause in sorted(job.failures, key=lambda failure: failure[0]):
            for attempt in itertools.count(1):
                if isinstance(cause, NOT_OF_A_SAMPLE) or attempt > self._steps.plan.stand_ins:
                    raise cause
                self._bad(step, i, int(ids[i]), cause)
                ids[i] = self._substitute(step, i, attempt) | int(tags[i])
                try:
                    self._config.work.store(outs, job.loose, i, self._one(int(ids[i])))
                    break
                except (Exception, SystemExit) as again:
                    cause = again

    def _finish(self, job: workers.Job, step: int) -> Any:
        config = self._config
        n = len(job.ids)
        values: dict[str, Any] = {}
        for name, place in config.work.layout.items():
            if place is not None:
                values[name] = job.lease.value(name, n)
                continue
            loose = job.loose.get(name, {})
            column: list[Any] = [loose.get(i) for i in range(n)]
            arrays = config.collate is None and all(isinstance(v, np.ndarray) and v.dtype == column[0].dtype for v in column)
            values[name] = Shapes(column) if arrays else column
        if config.collate is None:
            nested = {name: build(tree, values.__getitem__) for name, tree in config.work.trees.items()}
            ids = job.ids if not config.sampled else job.ids & np.uint64(ID_MASK)
            return self._source.batch_type(config.source.ws, nested, job.lease, ids, self._steps.valid(step).copy(), self._steps.position(step), config.work.bfloat16)
        return self._collated([self._sample(job.loose, values, i) for i in np.flatnonzero(self._steps.valid(step)).tolist()])

    def _sample(self, loose: workers.Loose, values: dict[str, Any], i: int) -> Any:
        """The transform's result, for a collate_fn."""
        work = self._config.work

        def leaf(name: str) -> Any:
            if i in loose.get(name, ()):
                return loose[name][i]
            value = values[name][i]
            if name not in work.bfloat16 or work.transform is None:
                return value
            return value.view(work.bfloat16_types[name]) if name in work.bfloat16_types else as_bfloat16(value)

        made = {name: loose[name][i] if i in loose.get(name, ()) else build(tree, leaf) for name, tree in work.trees.items()}
        if work.kind is dict:
            return made
        return work.kind(*made.values()) if hasattr(work.kind, "_fields") else tuple(made.values())

    def _collated(self, samples: list[Any]) -> Any:
        collate = self._config.collate
        assert collate is not None
        try:
            return collate(samples)
        except Exception as error:
            if samples:
                raise
            raise ValueError("collate_fn([]) failed, and of the last, short step this rank has no sample: let it take an empty list, or leave that step out with "
                             "drop_last=True") from error

    # --- the loop ---

    def _settle(self) -> None:
        """Takes over what the FastIter counted: before any reader of the loader's figures."""
        counted = self.take()
        if counted is None:
            return
        config, (batches, wait_s, consume_s, recent) = self._config, counted
        stats = config.stats
        stats["batches"] += batches
        stats["samples"] += batches * config.batch_size
        stats["wait_s"] += wait_s
        stats["consume_s"] += consume_s
        config.recent.extend((waited, consumed, 0.0, 0.0, 0.0) for waited, consumed in recent)
        self._handed_out(batches)

    def _handed_out(self, steps: int) -> None:
        config = self._config
        self._done += steps
        if config.course.epoch == self._epoch:
            config.course.delivered = self._steps.end(self._done - 1)
            config.course.ended = False
            try:
                config.course.ended = not self._has(self._done)
            except Exception as error:  # the next step's: this one is delivered
                let_go(error)
                self._met = self._met or error

    def _tell(self) -> None:
        """Called by the FastIter after `report_at`, and after its last batch."""
        config = self._config
        self._settle()
        now = perf_counter()
        if now >= config.reporter.report_at or config.course.ended and config.reporter.may_end(now):
            config.reporter.tell(config)
        self.report_at = config.reporter.report_at

    def _step(self) -> Any:
        config = self._config
        self._settle()
        now = perf_counter()
        stats = config.stats
        consumed = 0.0
        if self.returned_at:
            consumed = now - self.returned_at
            stats["consume_s"] += consumed
            self.returned_at = 0.0
        if self._closed:
            if self.replaced and not self._finished:
                raise ValueError("this iterator is over: another iter() or load_state_dict() of its loader followed, which has one pass "
                                 "at a time. Two at once take two loaders of one set")
            raise StopIteration
        step = self._done
        try:
            if self._met is not None and not self._jobs:
                try:
                    raise self._met
                finally:
                    self._met = None  # it has this frame now
            if not self._has(step):
                self._finished = True
                self.close()
                if config.course.epoch == self._epoch and not config.course.chosen:
                    config.course.advance()
                raise StopIteration
            batch = self._prepared() if config.prepares else self._raw(step, config.timeout_ns)
        except (Busy, StopIteration):
            raise
        except BaseException as error:
            if config.prepares:  # jobs are at sixes and sevens: the next iter() begins with new workers
                self.close(kill=not isinstance(error, BadSample))
            elif isinstance(error, BadSample):
                self.close()
            raise
        stats["batches"] += 1
        stats["samples"] += self._steps.size(step)
        self._handed_out(1)
        self.returned_at = back = perf_counter()
        waited = back - now
        engine = config.engine
        if self._gpu_lagged():  # it has work still: the loop is not what waits
            stats["consume_s"] += waited
            waited, consumed = 0.0, consumed + waited
        stats["wait_s"] += waited
        config.recent.append((waited, consumed, engine.busy_s, engine.read_s, config.delivery.copy_s) if engine
                              else (waited, consumed, 0.0, 0.0, 0.0))
        self._tell()
        return batch

    def _gpu_lagged(self) -> bool:
        """Whether released slots were still used by a GPU since the last call."""
        config = self._config
        if config.prepares:
            return config.delivery.lagged()
        if config.memory[0] == device.HOST or self._source.ring is None:
            return False
        before, self._lags = self._lags, self._source.ring.stat()["lags"]
        return before != self._lags

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # at exit, when half of the interpreter is gone
            pass

    def close(self, kill: bool = False) -> None:
        """Ends reading ahead; jobs under way are waited for, or their workers ended."""
        self._settle()
        if self._closed:
            return
        self._closed = True
        self.disarm()
        if self._generation != _leat.generation():
            return
        self._end_iter()
        engine = self._config.engine
        if engine is not None and (self._jobs or kill):
            try:
                while self._jobs and not kill:
                    engine.wait(self._jobs[0][0], 1.0)
                    self._jobs.popleft()
            except (TimedOut, Error):
                kill = True
            if kill:
                self._config.close_engine(kill=True)
        self._jobs.clear()
