# SPDX-License-Identifier: Apache-2.0
"""`leat.Loader`: batches that a training loop takes as they are. See docs/decisions/0062-loader.md.

Happy path: the library's iterator reads this rank's slices of the order ahead, into the slots of a ring; without anything to decode
or to transform those are the user's batches. Else they go to an engine (_workers) and come back in output slots.

Failure modes: see the table of the decision record. Whatever is raised, the loader can be iterated again.
Invariants: what stands in a step depends on seed, epoch, set, kind of shuffle and position alone; all ranks make the same number
of steps; only what the user received counts as delivered; one epoch is in progress at a time.
"""

from __future__ import annotations

import collections
import itertools
import logging
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from . import _core, _device, _leat, _pictures, _plan, _ranks, _state, _stats, _workers
from ._batch import SEQUENTIAL, SHUFFLE_AUTO, Array, parse_shuffle
from ._clients import parse_timeout
from ._decode import FieldsArg, resolve
from ._errors import BadSample, Busy, Corrupt, Denied, Error, NoSpace, NotFound, PeerGone, Stale, TimedOut, WorkerDied, let_go
from ._mixture import Mixture, MixPlan
from ._prepared import LoadedBatch, PreparedBatch, Shapes
from ._sampler import Sampler
from ._set import WorkingSet, parse_device

_log = logging.getLogger("leat")

CollateFn = Callable[[list[Any]], Any]
#: Of the pool, of a worker, of the program: no other sample would fare better.
NOT_OF_A_SAMPLE = (Busy, Denied, NoSpace, PeerGone, Stale, TimedOut, WorkerDied)
OnError = Union[str, Callable[[BadSample], Any]]


class Loader(Iterable[Any]):
    """Batches of a working set for a training loop: shuffled, decoded, transformed, collated; exact and resumable on any number of ranks.

    ws            a working set, a `leat.Mixture` of several, or what `leat.open` takes
    batch_size    samples a batch and rank
    shuffle       True: "full", or blocks if the set is larger than the pool; "full"; "block:N"; False
    seed          of the order and of augmentation
    fields        None: all as they are; a list of names; {"image": "jpg", "label": "cls"}: decoded, under new names
    transform     f(sample: dict, rng: numpy.random.Generator) -> dict, rng depends on seed, epoch and sample alone; or one of leat.prep, which
                  takes the picture's bytes through C threads; {name: prep}; a list, those of leat.prep before functions
    collate_fn    f(list of samples) -> what the loop gets instead of a batch; runs in the thread that iterates
    sampler       numbers of samples of an epoch, the same on all ranks, which share them; its set_epoch is called
    batch_sampler lists of numbers, each a step of all ranks
    num_workers   threads or processes for decoding and the transform; 0: one thread, for leat.prep alone this rank's share of the cores
    workers       "thread"; "process"; or "fork", "spawn", "forkserver"
    prefetch      batches ahead
    drop_last     True: leave out the last, short step. False: fill it up; `batch.valid` tells. All ranks make the same number of steps
    device        where batches are to be: "cpu"; "cuda", "cuda:1", a torch.device: in that GPU's memory, copied there ahead
    pin_memory    batches in page-locked memory, for copies to a GPU of your own
    timeout       seconds that a batch may take to come
    on_error      "raise"; "skip": a bad sample is replaced by another, the same one each time; f(BadSample): may raise, else it is replaced
    max_errors    of an epoch and rank; 1 % of its samples, at least 10
    rank, world_size  of torch.distributed, RANK and WORLD_SIZE, Open MPI or Slurm, if not given
    replication   groups of so many neighbouring ranks get the same samples (tensor parallelism)
    skip_ranges   [first, end) positions of each epoch that are left out
    job           of `leat.open`, when ws is a path

    >>> loader = leat.Loader(ws, 2, seed=1)
    >>> len(loader)
    3
    >>> sorted(i for batch in loader for i in batch.ids.tolist())
    [0, 1, 2, 3, 4, 5]
    >>> loader.state_dict()["epoch"]
    1
    """

    def __init__(self, ws: WorkingSet | Mixture | _core.Uri, batch_size: int = 1, *, shuffle: str | bool = True, seed: int = 0,
                 fields: FieldsArg = None, transform: _pictures.Transforms | None = None, collate_fn: CollateFn | None = None,
                 sampler: Iterable[int] | None = None, batch_sampler: Iterable[Sequence[int]] | None = None,
                 num_workers: int = 0, workers: str = "thread", prefetch: int = 2, drop_last: bool = True, device: object = "cpu",
                 pin_memory: bool = False, timeout: float | None = None, on_error: OnError = "raise",
                 max_errors: int | None = None, rank: int | None = None, world_size: int | None = None, replication: int = 1,
                 skip_ranges: Iterable[Sequence[int]] = (), job: str | None = None) -> None:
        self._epoch_ref: weakref.ref[_Epoch] | None = None  # who iterates keeps it: it ends when nobody does any more
        self._ended = False  # the last batch of the epoch was received
        self._engine: _workers.Threads | _workers.Processes | None = None
        self._ring: _leat.Ring | None = None
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: at least 1")
        if prefetch < 1 or num_workers < 0:
            raise ValueError(f"prefetch={prefetch}, num_workers={num_workers}: at least 1 and 0")
        if workers not in ("thread", "process", "fork", "spawn", "forkserver"):
            raise ValueError(f"workers={workers!r}: 'thread', 'process', 'fork', 'spawn' or 'forkserver'")
        if isinstance(on_error, str) and on_error not in ("raise", "skip"):
            raise ValueError(f"on_error={on_error!r}: 'raise', 'skip' or a function")
        if sampler is not None and batch_sampler is not None:
            raise ValueError("sampler and batch_sampler: give one of them")
        self._mixture = ws if isinstance(ws, Mixture) else None
        if self._mixture is not None:
            if sampler is not None or batch_sampler is not None:
                raise ValueError("a mixture has an order of its own: no sampler")
            if fields is None:
                self._mixture._check_whole()
        self.ws: WorkingSet = ws if isinstance(ws, (WorkingSet, Mixture)) else _core.open(ws, job=job)  # type: ignore[assignment]  # a mixture has of a set what is used here
        rank, world_size = _ranks.resolve(rank, world_size)
        self.rank, self.world_size = rank, world_size
        self._group, self._groups = _ranks.groups(rank, world_size, replication)
        for one in (sampler, batch_sampler):
            if getattr(one, "num_replicas", 1) > 1:
                raise ValueError("the sampler is one rank's share already: give one that yields the samples of all ranks, or none")
        self.batch_size, self.drop_last, self.prefetch = batch_size, drop_last, prefetch
        self._sampler, self._batch_sampler = sampler, batch_sampler
        self._seed = seed % 2**64
        self._collate = collate_fn
        self._columns = resolve(self.ws, fields)
        self._named = _workers.renamed(self._columns)
        self._workers, self._method = num_workers, workers
        self._memory = parse_device("pinned" if pin_memory and str(device).startswith("cpu") else device)
        self._timeout = timeout
        self._timeout_ns = parse_timeout(timeout)
        self._on_error, self._max_errors = on_error, max_errors
        self._skip = _plan.parse_ranges(skip_ranges)
        self._shuffle, self._block = self._resolve_shuffle(shuffle)
        self._prepares = (transform is not None or collate_fn is not None or self._mixture is not None
                          or any(column.decoder is not None for column in self._columns))
        if collate_fn is not None and self._memory[0] == _device.CUDA:
            raise ValueError(f"device={str(device)!r} with a collate_fn: what it makes is in host memory, and yours to move; give it "
                             "device='cpu', or do without it")
        # What a collate_fn makes of a slot is another memory: no need to pin the slot.
        self._delivery = _device.Delivery(*(self._memory if self._prepares and collate_fn is None else (_device.HOST, 0)))
        self._work = _workers.Work(self._columns, transform, self._seed)
        if self._block not in (0, SEQUENTIAL) and self._mixture is None and self.ws.stat().streamed:
            self._work.block = self._block
        if self._work.in_c and not num_workers and workers == "thread":
            self._workers = _pictures.cores()
        self._epoch = self._start = self._delivered = 0
        self._sampler_state: Any = None
        self._all_valid = np.ones(batch_size, bool)
        self._all_valid.flags.writeable = False
        self._runs: list[_state.Run] = []
        self._recent: _stats.Recent = collections.deque(maxlen=_stats.WINDOW)
        self._stats = dict.fromkeys(("batches", "samples", "wait_s", "consume_s", "fetch_s", "skipped"), 0.0)
        self._load_ring()

    # --- set up ---

    def _resolve_shuffle(self, shuffle: str | bool) -> tuple[str | bool, int]:
        block, flags = parse_shuffle("auto" if shuffle is True else shuffle)
        if flags == SHUFFLE_AUTO:
            block = max(map(_auto_block, self._sets))
            if block and _ranks.several_hosts(self.world_size) and any(ws.stat().transport == "shm" for ws in self._sets):
                raise ValueError(f"shuffle=True: this host streams the set by itself, in blocks of {block}; others may have room "
                                 f"for all of it, and another order. Name one for all: shuffle='block:{block}'")
        return (False if block == SEQUENTIAL else f"block:{block}" if block else "full"), block

    @property
    def _sets(self) -> tuple[WorkingSet, ...]:
        return self._mixture.sets if self._mixture is not None else (self.ws,)

    def _load_ring(self) -> None:
        where = (_device.HOST, 0) if self._prepares else self._memory
        slots = self.prefetch + _device.spare(where[0])
        self._rings = []
        for k, ws in enumerate(self._sets):
            columns = self._columns if self._mixture is None else self._mixture._columns(k, self._columns)
            numbers = [column.field.number for column in columns]
            self._rings.append(ws._set.load(self.batch_size, slots, numbers, 0, None, *where))
        self._ring = self._rings[0]
        self._generation = _leat.generation()

    def _plan(self) -> tuple[_plan.Plan, Any]:
        """The plan of the epoch, and (ids, ends, valid, global ends) of a batch sampler."""
        if self._mixture is not None:
            return MixPlan(self._mixture.state, len(self._mixture), self._seed, self._epoch, self._block, self._skip), None
        if self._sampler is None and self._batch_sampler is None:
            order = _leat.Order(len(self.ws), self._seed, self._epoch, self._block, self.ws.fingerprint)
            return _plan.Plan(order, None, len(self.ws), self._skip), None
        source: Any = self._sampler if self._sampler is not None else self._batch_sampler
        if hasattr(source, "set_epoch"):
            source.set_epoch(self._epoch)
        if hasattr(source, "state_dict") and not isinstance(source, Sampler):
            self._sampler_state = source.state_dict()
        if self._sampler is not None:
            ids = np.fromiter(self._sampler, np.int64)
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.ws):
                raise IndexError(f"sampler: numbers of samples are 0 to {len(self.ws) - 1}")
            return _plan.Plan.of_ids(ids, self._skip), None
        batches = [np.asarray(batch, np.uint64).reshape(-1) for batch in source]
        whole = np.concatenate(batches) if batches else np.empty(0, np.uint64)
        return _plan.Plan.of_ids(whole), _plan.cut(batches, self._group, self._groups)

    @property
    def global_batch(self) -> int:
        """Samples of a step of all ranks (replicas counted once)."""
        return self.batch_size * self._groups

    def _length(self) -> int:
        if self._sampler is not None:
            return len(self._sampler)  # type: ignore[arg-type]
        return len(self.ws) - sum(min(end, len(self.ws)) - first for first, end in self._skip if first < len(self.ws))

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on all ranks."""
        if self._batch_sampler is not None:
            return len(self._batch_sampler)  # type: ignore[arg-type]
        return _plan.steps(self._length(), 0, self.global_batch, self.drop_last)

    # --- iteration ---

    def __iter__(self) -> Iterator[Any]:
        """Begins the epoch: where a loaded state says, else at its start, also when it was left in the middle before."""
        self._close_epoch()
        if self._generation != _leat.generation():  # in the child of a fork
            self._engine = None
            self._load_ring()
        start, self._start = self._start, 0
        self._delivered, self._ended = start, False
        self._runs = _state.add_run(self._runs, self._epoch, start, self.global_batch, self.batch_size)
        if self._mixture is not None:
            from ._mixed_epoch import MixedEpoch

            epoch: _Epoch = MixedEpoch(self, start)
        else:
            epoch = _Epoch(self, start)
        self._epoch_ref = weakref.ref(epoch)
        return epoch

    def _close_epoch(self) -> None:
        epoch = self._epoch_ref() if self._epoch_ref is not None else None
        if epoch is not None:
            epoch.close()
        self._epoch_ref = None

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` begins this epoch. The place in it that a state was loaded with is kept, if it is the state's epoch."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch}")
        if epoch != self._epoch:
            self._epoch, self._start, self._delivered, self._ended = epoch, 0, 0, False

    @property
    def epoch(self) -> int:
        return self._epoch

    def _advance(self) -> None:
        self._epoch += 1
        self._start = self._delivered = 0
        self._ended = False

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: plain JSON, the same on all ranks. Counts what the loop received, and nothing read ahead.

        >>> loader = leat.Loader(ws, 2)
        >>> received = next(iter(loader)).ids.tolist()
        >>> state = loader.state_dict()
        >>> state["samples"]
        2
        >>> again = leat.Loader(ws, 4)
        >>> again.load_state_dict(state)
        >>> sorted(received + next(iter(again)).ids.tolist())
        [0, 1, 2, 3, 4, 5]
        """
        return _state.of_loader(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken: at the next sample, whatever the batch size, the workers and the number of ranks
        are now. The state's seed is taken. `leat.Stale`: it is of another dataset; ValueError: of another kind of loader."""
        _state.load(self, state)

    # --- looking ---

    def stats(self) -> dict[str, Any]:
        """Counts and seconds since the loader was made, and a verdict: what bounds the loop, and what would help.

        >>> sorted(leat.Loader(ws, 2).stats())[:3]
        ['advice', 'batches', 'bytes_local']
        """
        return _stats.of_loader(self)

    # --- life ---

    def _close_engine(self, kill: bool = False) -> None:
        engine, self._engine = self._engine, None
        if engine is not None and self._generation == _leat.generation():
            engine.close(kill)

    def close(self) -> None:
        """Ends workers and reading ahead. Batches that are held stay valid. A closed loader may be iterated again."""
        self._close_epoch()
        self._close_engine()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # at exit, when half of the interpreter is gone
            pass

    def __reduce__(self) -> Any:
        raise TypeError("a leat.Loader does not pickle: make one in each process; its state_dict() and the working set do")

    def __repr__(self) -> str:
        return (f"<leat.Loader of {self.ws.uri!r}: {self.batch_size} a batch, rank {self.rank} of {self.world_size}, "
                f"epoch {self._epoch}, shuffle={self._shuffle!r}>")


def _auto_block(ws: WorkingSet) -> int:
    """Of shuffle="auto": 0 where all of the set is in the pool."""
    if not ws.stat().streamed:
        return 0
    ring, _ = ws._load(1, 2, None)
    probe = ring.iterate(0, 0, 0, SHUFFLE_AUTO, 0, 1, 0, 0, 1)
    block = probe.info()[1]
    probe.close()
    ring.close()
    return block


class _Epoch(Iterator[Any]):
    """One pass, from a position to the end of the epoch."""

    _batch_type: type[PreparedBatch] = PreparedBatch

    def __init__(self, loader: Loader, start: int) -> None:
        self._loader, self._first = loader, start
        self._plan, self._cut = loader._plan()
        self._global = loader.global_batch
        self._iter: _leat.Iter | None = None
        self._closed = False
        self._generation = loader._generation
        self._asked = 0  # steps given to the source
        self._done = 0  # steps handed out
        self._errors = 0
        self._jobs: collections.deque[tuple[_workers.Job, int]] = collections.deque()
        self._met: Exception | None = None  # by work ahead: raised when it is that step's turn
        self._returned_at: float | None = None
        if self._cut is not None:
            ends = self._cut[3]
            self._cut_start = int(np.searchsorted(ends, start, side="left")) + 1 if start else 0
            self._steps = len(ends) - self._cut_start
        else:
            self._steps = _plan.steps(self._plan.length, start, self._global, loader.drop_last)
        # Steps that the library counts as we do, with no padding on this rank.
        left = self._plan.length - start - loader._group * loader.batch_size - loader.batch_size
        self._whole = left // self._global + 1 if left >= 0 and self._cut is None and self._plan.plain else 0
        share = len(loader) * loader.batch_size
        self._ceiling = loader._max_errors if loader._max_errors is not None else max(10, share // 100)

    # --- what stands in a step ---

    def _span(self, step: int) -> tuple[int, int]:
        """(position of this rank's first sample, samples)."""
        if self._cut is not None:
            s = step + self._cut_start
            ends = self._cut[1]
            first = int(ends[s - 1]) if s else 0
            return first, int(ends[s]) - first
        return self._first + step * self._global + self._loader._group * self._loader.batch_size, self._loader.batch_size

    def _position(self, step: int) -> int:
        """Of this rank's first sample, among those of all ranks."""
        first, n = self._span(step)
        if self._cut is None:
            return first
        s = step + self._cut_start
        return (int(self._cut[3][s - 1]) if s else 0) + self._loader._group * n

    def _ids(self, step: int) -> Array:
        first, n = self._span(step)
        if self._cut is not None:
            ids: Array = self._cut[0][first : first + n]
            return ids
        return self._plan.ids(first, n)

    def _valid(self, step: int) -> npt.NDArray[np.bool_]:
        first, n = self._span(step)
        if self._cut is not None:
            valid: npt.NDArray[np.bool_] = self._cut[2][first : first + n]
            return valid
        if first + n <= self._plan.length:
            return self._loader._all_valid
        return np.arange(first, first + n) < self._plan.length

    def _end(self, step: int) -> int:
        """Samples of all ranks behind this step."""
        if self._cut is not None:
            return int(self._cut[3][step + self._cut_start])
        return min(self._first + (step + 1) * self._global, self._plan.length)

    # --- raw batches ---

    def _open(self, step: int) -> _leat.Iter:
        loader, ring = self._loader, self._loader._ring
        assert ring is not None
        if self._plan.plain:
            return ring.iterate(loader._seed, loader._epoch, loader._block, 0, loader._group, loader._groups,
                                self._first + step * self._global, 0 if loader.drop_last else 2, loader.prefetch)
        parts = [self._ids(s) for s in range(step, self._steps)]
        ends = np.cumsum([len(part) for part in parts]).astype(np.uint64)
        return ring.plan(np.concatenate(parts), ends, loader.prefetch, loader._block)

    def _raw(self, step: int, timeout_ns: int) -> LoadedBatch:
        if self._iter is None:
            self._iter = self._open(step)
        try:
            holder = self._iter.next(timeout_ns)
        except (Corrupt, NotFound) as error:
            self._iter.close()
            self._iter = None
            return self._mend(step, error)
        if holder is None:
            raise Error("the iterator ended early")
        loader = self._loader
        batch = LoadedBatch(holder, loader._named, loader.ws)
        if loader._memory[0] == _device.PINNED and not loader._prepares:
            loader._delivery.bytes += batch.nbytes
        if step >= self._whole:
            return self._dress(batch, step)
        batch.valid = loader._all_valid
        return batch

    def _dress(self, batch: LoadedBatch, step: int) -> LoadedBatch:
        batch.valid = self._valid(step)
        batch.position = self._position(step)
        return batch

    def _mend(self, step: int, error: BaseException) -> LoadedBatch:
        """A batch with a sample that cannot be read: which, and what stands in for it."""
        ids = self._ids(step).copy()
        loader = self._loader
        found = False
        for i in range(len(ids)):
            for attempt in range(1, 100):
                try:
                    for column in loader._columns:
                        loader.ws._read(int(ids[i]), column.field)
                    break
                except (Corrupt, NotFound) as bad:
                    found = True
                    self._bad(step, i, int(ids[i]), bad)
                    ids[i] = self._substitute(step, i, attempt)
        if not found:
            raise error
        return self._again(ids, step)

    def _again(self, ids: Array, step: int) -> LoadedBatch:
        """The step's raw batch, of these samples."""
        loader = self._loader
        assert loader._ring is not None
        holder = loader._ring.read_batch(ids, loader._timeout_ns, len(loader.ws))
        return self._dress(LoadedBatch(holder, loader._named, loader.ws), step)

    # --- bad samples ---

    def _substitute(self, step: int, i: int, attempt: int) -> int:
        """The attempt-th stand-in of a place: another position of the epoch, the same on any number of ranks."""
        n = self._plan.length
        here = self._position(step) + i
        stride = (self._loader._seed * 0x9E3779B97F4A7C15 + n // 3) % n | 1
        while math.gcd(stride, n) != 1:
            stride += 2
        return self._plan.at((here + attempt * stride) % n)

    def _bad_sample(self, index: int, position: int, cause: BaseException) -> BadSample:
        return bad_sample(self._loader.ws, self._loader._columns, index, position, cause)

    def _bad(self, step: int, i: int, index: int, cause: BaseException) -> None:
        """Raises, or counts what will be replaced."""
        loader = self._loader
        error = self._bad_sample(index, self._position(step) + i, cause)
        if loader._on_error == "raise" or isinstance(cause, SystemExit):
            raise error from cause
        let_go(cause)
        if callable(loader._on_error):
            error.__cause__ = cause
            loader._on_error(error)
        self._errors += 1
        loader._stats["skipped"] += 1
        if self._errors > self._ceiling:
            raise BadSample(f"{self._errors} bad samples in this epoch, max_errors={self._ceiling}; the last: {error}",
                            code=error.code) from cause
        _log.warning("replaced: %s", error)

    # --- prepared batches ---

    def _start_engine(self) -> None:
        loader = self._loader
        work = loader._work
        if not work.layout:
            self._learn(work)
        slots = loader._delivery.slots(work.layout, loader.batch_size, loader.prefetch, shared=loader._method != "thread")
        if loader._method == "thread":
            loader._engine = _workers.Threads(work, slots, loader._workers)
        else:
            method = None if loader._method == "process" else loader._method
            loader._engine = _workers.Processes(work, slots, loader._workers, loader.ws, method)

    def _learn(self, work: _workers.Work) -> None:
        """What a prepared sample looks like, out of the first good one."""
        work.strict = self._loader._collate is None
        n = self._plan.length
        for attempt in range(16):
            index = self._plan.at((self._first + attempt) % n)
            try:
                work.learn(self._one(index))
                return
            except (Error, Exception) as cause:
                if self._loader._on_error == "raise" or attempt == 15:
                    raise self._bad_sample(index, self._first + attempt, cause) from cause

    def _one(self, index: int) -> dict[str, Any]:
        """One sample, prepared here and now."""
        loader = self._loader
        reader = _workers.reader(loader.ws, loader._columns, 1)
        try:
            with reader.read(np.array([index], np.uint64)) as batch:
                made = loader._work.one(batch, 0, loader._epoch, index)
                return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in made.items()}
        finally:
            reader.close()

    def _submit(self, timeout_ns: int) -> bool:
        """Gives the next step to the engine. False: nothing to give, no room, or its bytes are not here yet."""
        engine = self._loader._engine
        assert engine is not None
        if self._met is not None:
            if self._jobs:
                return False
            raise self._met
        if self._asked >= self._steps or len(self._jobs) > self._loader.prefetch:
            return False
        lease = engine.slots.take()
        if lease is None:
            return False
        step = self._asked
        if engine.reads:
            job = _workers.Job(step, lease, self._ids(step), self._loader._epoch, None)
        else:
            start = perf_counter()
            try:
                raw = self._raw(step, timeout_ns)
            except (TimedOut, Busy):
                if timeout_ns == 1:
                    return False
                raise
            finally:
                self._loader._stats["fetch_s"] += perf_counter() - start
            job = _workers.Job(step, lease, raw.ids, self._loader._epoch, raw)
        self._asked += 1
        self._jobs.append((job, step))
        engine.submit(job)
        return True

    def _prepared(self) -> Any:
        loader = self._loader
        if self._generation != _leat.generation():
            raise ValueError("this iterator is of the process that was forked: call iter() again")
        if loader._engine is None:
            self._start_engine()
        engine = loader._engine
        assert engine is not None
        while not self._jobs and not self._submit(loader._timeout_ns):
            if engine.slots.wait_free(loader._timeout):
                continue
            raise Busy(f"all {engine.slots.count} output slots of the loader are held: release batches, or copy what is to be kept")
        self._submit_ahead()
        job, step = self._jobs[0]
        engine.wait(job, loader._timeout)
        self._jobs.popleft()
        self._mend_prepared(job, step)
        job.raw = None
        self._submit_ahead()  # the workers go on while this one is copied, and the loop computes
        self._send_ahead(job)
        job.lease.deliver(len(job.ids), loader._timeout)
        return self._finish(job, step)

    def _submit_ahead(self) -> None:
        try:
            while self._submit(1):
                pass
        except Exception as error:
            self._met = error

    def _send_ahead(self, job: _workers.Job) -> None:
        """On their way to a GPU: `job`, and those behind it that are prepared already."""
        engine = self._loader._engine
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

    def _mend_prepared(self, job: _workers.Job, step: int) -> None:
        if not job.failures:
            return
        assert self._loader._engine is not None
        outs = self._loader._engine.slots.outs(job.lease.number)
        ids = job.ids = job.ids.copy()
        for i, cause in sorted(job.failures, key=lambda failure: failure[0]):
            for attempt in itertools.count(1):
                if isinstance(cause, NOT_OF_A_SAMPLE) or attempt > self._plan.length:
                    raise cause
                self._bad(step, i, int(ids[i]), cause)
                ids[i] = self._substitute(step, i, attempt)
                try:
                    self._loader._work.store(outs, job.loose, i, self._one(int(ids[i])))
                    break
                except (Exception, SystemExit) as again:
                    cause = again

    def _finish(self, job: _workers.Job, step: int) -> Any:
        loader = self._loader
        n = len(job.ids)
        values: dict[str, Any] = {}
        for name, place in loader._work.layout.items():
            if place is not None:
                values[name] = job.lease.value(name, n)
                continue
            loose = job.loose.get(name, {})
            column = [loose.get(i) for i in range(n)]
            arrays = loader._collate is None and all(isinstance(v, np.ndarray) and v.dtype == column[0].dtype for v in column)
            values[name] = Shapes(column) if arrays else column  # type: ignore[arg-type]
        if loader._collate is None:
            return self._batch_type(loader.ws, values, job.lease, job.ids, self._valid(step), self._position(step),
                                    loader._work.bfloat16)
        samples = []
        for i in range(n):
            mixed = {name: job.loose[name][i] if i in job.loose.get(name, ()) else value[i] for name, value in values.items()}
            samples.append(mixed)
        return loader._collate(samples)

    # --- the loop ---

    def __next__(self) -> Any:
        # For batches as they lie in the ring all of this is 2 us; the copying of 64 samples of 4 KiB is 24.
        loader = self._loader
        now = perf_counter()
        stats = loader._stats
        consumed = 0.0
        if self._returned_at is not None:
            consumed = now - self._returned_at
            stats["consume_s"] += consumed
            self._returned_at = None
        if self._closed:
            raise StopIteration
        step = self._done
        if step >= self._steps:
            self.close()
            loader._advance()
            raise StopIteration
        try:
            batch = self._prepared() if loader._prepares else self._raw(step, loader._timeout_ns)
        except (Busy, StopIteration):
            raise
        except BaseException as error:
            if loader._prepares:  # jobs are at sixes and sevens: the next iter() begins with new workers
                self.close(kill=not isinstance(error, BadSample))
            elif isinstance(error, BadSample):
                self.close()
            raise
        stats["batches"] += 1
        stats["samples"] += loader.batch_size
        loader._delivered = self._end(step)
        self._done = step = step + 1
        if step == self._steps:
            loader._ended = True
        self._returned_at = back = perf_counter()
        waited = back - now
        engine = loader._engine
        if engine is not None and loader._delivery.lagged():  # the GPU has work still: the loop is not what waits
            stats["consume_s"] += waited
            waited, consumed = 0.0, consumed + waited
        stats["wait_s"] += waited
        loader._recent.append((waited, consumed, engine.busy_s, engine.read_s, loader._delivery.copy_s) if engine
                              else (waited, consumed, 0.0, 0.0, 0.0))
        return batch

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # at exit, when half of the interpreter is gone
            pass

    def close(self, kill: bool = False) -> None:
        """Ends reading ahead; jobs under way are waited for, or their workers ended."""
        if self._closed:
            return
        self._closed = True
        if self._generation != _leat.generation():
            return
        if self._iter is not None:
            self._iter.close()
            self._iter = None
        engine = self._loader._engine
        if engine is not None and (self._jobs or kill):
            try:
                while self._jobs and not kill:
                    engine.wait(self._jobs[0][0], 1.0)
                    self._jobs.popleft()
            except (TimedOut, Error):
                kill = True
            if kill:
                self._loader._close_engine(kill=True)
        self._jobs.clear()


def bad_sample(ws: WorkingSet, columns: Sequence[Any], index: int, position: int, cause: BaseException,
               of: str = "") -> BadSample:
    """The error that names a sample by key, file and offset."""
    key = ws.key(index)
    where = None
    for column in columns:
        where = ws._set.source(index, column.field.number) if column.field.kind != "label" else None
        if where is not None:
            break
    place = f", {where[0]} at offset {where[1]}" if where else ""
    error = BadSample(f"sample {index}{of} ({key}){place}: {type(cause).__name__}: {cause}", code="bad sample")
    error.index, error.key, error.position = index, key, position
    if where:
        error.file, error.offset = where
    return error
