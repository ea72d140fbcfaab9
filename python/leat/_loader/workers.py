# SPDX-License-Identifier: Apache-2.0
"""The work between a raw batch and a user's: decode, transform, write into an output slot; by threads or by processes.

Happy path: the thread that iterates gives jobs (one batch each) to an engine, which cuts them into chunks; workers write fixed
shapes into the job's slot and hand back what has no fixed shape, and the samples that failed. Jobs are taken in order.

Failure modes: a sample that fails is reported, not raised, in a worker: the thread that iterates decides. A worker that dies is
WorkerDied, one that hangs TimedOut; both name the samples at work.
Invariants: a slot is written only by the job that owns it (slots.py). What a sample becomes depends on (seed, epoch, index) alone: also where it
draws from generators that the process shares, which are seeded for each sample, in processes always. Threads share them with the loop. So a
transform that is seen to draw from them runs in one thread, while the loop waits for its batch.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .._base.errors import Error, TimedOut, WorkerDied, let_go, said
from .._decode.decode import DECODERS, SCALARS, Layout
from .._decode.images import Stages, Transforms, split
from .._sets.batch import Array, Batch, Ragged
from .._sets.cuda import CudaArray
from .._sets.fields import Column
from .._sets.plan import ID_MASK
from .generators import States, leave, seed_for
from .nested import Tree, bits, is_bfloat16, leaves, tree_of
from .slots import Lease, Slots
from .source import Reader, Source

Transform = Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]
Failure = tuple[int, BaseException]  #: place in the batch, what happened
Loose = dict[str, dict[int, Any]]  #: values without a place in the slot, by name and place in the batch

_TAG = 0x6C656174  # "leat"
_START_S = 120.0  # that processes may take to start: many of them import torch from the same disk


def make_rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The generator of one sample in one epoch: the same wherever and whenever it is prepared.

    >>> int(make_rng(1, 2, 3).integers(1000)) == int(make_rng(1, 2, 3).integers(1000))
    True
    """
    # Arrays: a list of a number of 2^63 or more and a smaller one would be floats, which leave out its low bits.
    key, counter = np.array([seed % 2**64, _TAG], np.uint64), np.array([0, 0, index, epoch], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


class Work:
    """The work on a sample. Pickles, if the transform does."""

    def __init__(self, columns: Sequence[Column], transform: Transforms | None, seed: int) -> None:
        preps, self.transform = split(transform, columns)
        self.columns, self.seed = tuple(columns), seed
        self.stages = Stages(preps, columns, self.transform is None) if preps else None
        self.trees: dict[str, Tree] = {}  # of values with leaves: by name, what they are made of
        self.returned: type = dict  # by the transform, for the sample before: the parts of a tuple are called "0", "1"
        self.kind: type = dict  # the same, for the first sample
        self.bfloat16_types: dict[str, Any] = {}  # of leaves that are arrays, as those of ml_dtypes (JAX); others are tensors of torch
        self.bfloat16 = frozenset(name for name, prep in preps.items() if prep.bfloat16 and self.transform is None)
        self.layout: Layout = {}
        self.strict = True  # a value that does not fit the layout is a failure
        self.block = 0  # of the order, where the set is streamed
        self.draws = False  # from generators that the process shares: they are seeded for each sample
        self.imports_torch = False  # somewhere in the transform: then it is to be there before the first sample, to be seeded

    def apply(self, values: dict[str, Any], epoch: int, index: int) -> dict[str, Any]:
        if self.transform is None:
            return values
        made = self.transform(values, make_rng(self.seed, epoch, index))
        self.returned = type(made) if isinstance(made, tuple) else dict
        if isinstance(made, tuple):
            return {str(i): part for i, part in enumerate(made)}
        if not isinstance(made, dict):
            if len(self.columns) == 1 and made is not None:
                return {self.columns[0].name: made}
            raise TypeError(f"transform returned {type(made).__name__}: a dict of names and values is wanted, or a tuple")
        return made

    @property
    def in_python(self) -> bool:
        """Functions of the user's run for each sample."""
        return self.transform is not None or any(c.decoder is not None and c.decoder not in DECODERS.values() for c in self.columns)

    @property
    def moves(self) -> bool:
        """There is nothing to do but to bring values of one shape to their places."""
        return self.transform is None and self.stages is None and all(c.decoder is None and not c.field.ragged for c in self.columns)

    @property
    def in_c(self) -> bool:
        return self.stages is not None and self.stages.in_c

    def one(self, batch: Batch, i: int, epoch: int, index: int) -> dict[str, Any]:
        """Sample i of a raw batch, prepared."""
        if self.stages is None:
            return self.apply(values_of(batch, self.columns, i), epoch, index)
        staged, failed = self.stages.run(batch, i, i + 1, np.array([index], np.uint64), self.seed, epoch, None)
        for error in failed.values():
            raise error
        return self.apply(self.merge(batch, i, staged, 0), epoch, index)

    def merge(self, batch: Batch, i: int, staged: dict[str, Array], at: int) -> dict[str, Any]:
        """Sample i of a raw batch, decoded, with place `at` of what the stages made."""
        assert self.stages is not None
        values = values_of(batch, self.stages.rest, i)
        return {column.name: staged[column.name][at] if column.name in staged else values[column.name] for column in self.columns}

    def learn(self, made: dict[str, Any]) -> None:
        """The layout, out of a first sample."""
        known = self.stages.layout() if self.stages is not None and self.stages.alone else {}
        self.kind = self.returned
        self.trees = {name: tree_of(name, value) if self.transform is not None else name for name, value in made.items()}
        parts = [part for name, value in made.items() for part in leaves(self.trees[name], value)]
        flat = dict(parts)
        if len(flat) != len(parts):
            raise ValueError(f"transform: several values are called {', '.join(sorted({name for name, _ in parts if [n for n, _ in parts].count(name) > 1}))}")
        if self.transform is not None:
            half = {name: value.dtype for name, value in flat.items() if is_bfloat16(value)}
            self.bfloat16 |= half.keys()
            self.bfloat16_types = {name: dtype for name, dtype in half.items() if isinstance(dtype, np.dtype)}
        for name, value in flat.items():
            if is_bfloat16(value):
                value = bits(value)
            if name in known:
                self.layout[name] = known[name]
                continue
            column = next((c for c in self.columns if c.name == name), None)
            if self.transform is None and column is not None and column.decoder is not None:
                fixed = column.decoder in SCALARS
            elif self.transform is None and column is not None:
                fixed = not column.field.ragged
            else:
                fixed = isinstance(value, (bool, int, float, np.generic)) or hasattr(value, "__array__")
            array = np.asarray(value) if fixed else None
            if array is None or array.dtype.hasobject:
                self.layout[name] = None
            else:  # the str of records has no fields
                self.layout[name] = (array.dtype if array.dtype.names else array.dtype.str, array.shape)

    def store(self, outs: dict[str, Array], loose: Loose, i: int, made: dict[str, Any]) -> None:
        if made.keys() != self.trees.keys():
            raise ValueError(f"fields {', '.join(map(str, made))}; those before had {', '.join(self.trees)}")
        self.store_some(outs, loose, i, made)

    def store_some(self, outs: dict[str, Array], loose: Loose, i: int, made: dict[str, Any]) -> None:
        for name, value in made.items():
            try:
                parts = dict(leaves(self.trees[name], value))
            except ValueError as error:
                if self.strict:
                    raise ValueError(f"{name!r} is {error}: make them alike in transform, or give a collate_fn") from None
                loose.setdefault(name, {})[i] = value
                continue
            self._store_leaves(outs, loose, i, parts)

    def _store_leaves(self, outs: dict[str, Array], loose: Loose, i: int, parts: dict[str, Any]) -> None:
        for name, value in parts.items():
            if is_bfloat16(value) and (self.strict or self.layout[name] is not None):
                value = bits(value) if name in self.bfloat16 else np.asarray(value.float() if hasattr(value, "float") else value.astype(np.float32))
            place = self.layout[name]
            if place is None:
                loose.setdefault(name, {})[i] = value
                continue
            array = np.asarray(value)
            if array.shape == place[1] and (array.dtype.str == place[0] or _fits(array.dtype, np.dtype(place[0]))):
                outs[name][i] = array
            elif self.strict:
                raise ValueError(f"{name!r} has shape {array.shape} and dtype {_words(array.dtype)}, those before "
                                 f"{place[1]} and {_words(np.dtype(place[0]))}: make them alike in transform, or give a collate_fn")
            else:
                loose.setdefault(name, {})[i] = value


def _fits(dtype: np.dtype[Any], place: np.dtype[Any]) -> bool:
    """Whether a value stays what it is: numbers may be cast within their kind, text and times are not cut, records have the same fields.

    >>> _fits(np.dtype("f8"), np.dtype("f4")), _fits(np.dtype("U7"), np.dtype("U5"))
    (True, False)
    """
    return np.can_cast(dtype, place, "same_kind" if place.kind in "biufc" else "safe") and dtype.names == place.names


def _words(dtype: np.dtype[Any]) -> str:
    return repr(dtype.descr if dtype.names else dtype.str)


def values_of(batch: Batch, columns: Sequence[Column], i: int) -> dict[str, Any]:
    """Sample i of a raw batch, decoded. Arrays are views into the batch's slot."""
    values: dict[str, Any] = {}
    for column in columns:
        value = batch[column.name]
        assert not isinstance(value, CudaArray)  # what is to be prepared is read into host memory
        if isinstance(value, Ragged):
            part = value[i]
            if not len(part) and not batch.present(column.name)[i]:
                raise KeyError(f"no field {column.field.name!r}")
            if column.decoder is not None:
                values[column.name] = column.decoder(part.view(np.uint8).data)
            else:
                values[column.name] = part.tobytes() if column.field.kind == "raw" else part
        elif column.field.kind == "label":
            values[column.name] = int(value[i])
        else:
            part = value[i]
            values[column.name] = column.decoder(memoryview(part.tobytes())) if column.decoder is not None else part
    return values


@runtime_checkable
class Movable(Protocol):
    """A raw batch that is not one slot, and knows how to bring rows [lo, hi) of a column to out[lo:hi]; its first row is row `base`."""

    def move(self, name: str, base: int, lo: int, hi: int, out: Array) -> None: ...


# --- jobs ---------------------------------------------------------------------------------------------------------------------


class Job:
    """One batch on its way."""

    def __init__(self, number: int, lease: Lease, ids: Array, epoch: int, raw: Batch | None) -> None:
        self.number, self.lease, self.ids, self.epoch, self.raw = number, lease, ids, epoch, raw
        self.chunks = 0
        self.failures: list[Failure] = []
        self.loose: Loose = {}

    def add(self, failures: list[Failure], loose: Loose) -> None:
        self.chunks -= 1
        self.failures += failures
        for name, values in loose.items():
            self.loose.setdefault(name, {}).update(values)


def _chunks(n: int, workers: int) -> list[tuple[int, int]]:
    size = max(1, -(-n // workers))
    return [(at, min(at + size, n)) for at in range(0, n, size)]


def _run_chunk(work: Work, batch: Batch, base: int, lo: int, hi: int, ids: Array, epoch: int, outs: dict[str, Array],
               at: Callable[[int], None]) -> tuple[list[Failure], Loose]:
    """Samples [lo, hi) of a job; sample lo is number lo - base of `batch`."""
    if work.moves and isinstance(batch, Movable):
        for name, out in outs.items():
            batch.move(name, base, lo, hi, out)
        return [], {}
    if work.stages is not None:
        return _run_stages(work, work.stages, batch, base, lo, hi, ids, epoch, outs, at)
    failures: list[Failure] = []
    loose: Loose = {}
    for i in range(lo, hi):
        index = int(ids[i])
        at(index + 1)
        if work.draws:
            seed_for(work.seed, epoch, index)
        try:
            made = work.apply(values_of(batch, work.columns, i - base), epoch, index)
            work.store(outs, loose, i, made)
        except (Exception, SystemExit) as error:
            failures.append((i, error))
    at(0)
    return failures, loose


def _run_stages(work: Work, stages: Stages, batch: Batch, base: int, lo: int, hi: int, ids: Array, epoch: int,
                outs: dict[str, Array], at: Callable[[int], None]) -> tuple[list[Failure], Loose]:
    """The same where the prep comes first: pictures of the whole chunk at once, then what is left of each sample."""
    loose: Loose = {}
    if lo < hi:
        at(int(ids[lo]) + 1)
    parts = {name: out[lo:hi] for name, out in outs.items()}
    staged, failed = stages.run(batch, lo - base, hi - base, ids[lo:hi], work.seed, epoch, parts if stages.alone else None)
    if stages.alone:
        for i, error in stages.move(batch, lo - base, hi - base, parts).items():
            failed.setdefault(i, error)
    for i in range(lo, hi) if stages.single or not stages.alone else ():
        index = int(ids[i])
        at(index + 1)
        if i - lo in failed:
            continue
        if work.draws:
            seed_for(work.seed, epoch, index)
        try:
            if stages.alone:
                work.store_some(outs, loose, i, values_of(batch, stages.single, i - base))
            else:
                work.store(outs, loose, i, work.apply(work.merge(batch, i - base, staged, i - lo), epoch, index))
        except (Exception, SystemExit) as error:
            failed[i - lo] = error
    at(0)
    return [(lo + i, error) for i, error in sorted(failed.items())], loose


# --- threads ------------------------------------------------------------------------------------------------------------------


class Threads:
    """Workers in this process. They take raw batches that the library read ahead. Where samples draw from generators that the loop shares it is one
    worker, and the loop gives it a batch only when it waits for it."""

    reads = False

    def __init__(self, work: Work, slots: Slots, workers: int) -> None:
        self.in_step = work.draws
        self.work, self.slots, self.workers = work, slots, 1 if work.draws else max(1, workers)
        self.busy_s = 0.0
        self.read_s = 0.0
        self._before: States | None = None  # in step: where the generators were when the loop gave its batch
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        if work.stages is not None and work.in_c:
            work.stages.start(self.workers)
        # C's threads share the samples of a whole batch among themselves; a second driver prepares the next batch concurrently.
        self._drivers = 2 if work.in_c else self.workers
        self._threads = [threading.Thread(target=_thread_main, args=(work, slots, w, self._tasks, self._done), daemon=True,
                                          name=f"leat-prep-{w}") for w in range(self._drivers)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        chunks = _chunks(len(job.ids), 1 if self.work.in_c else self.workers)
        job.chunks = len(chunks)
        self._before = States() if self.in_step else None
        for lo, hi in chunks:
            self._tasks.put((job, lo, hi))

    def wait(self, job: Job, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while job.chunks:
            try:
                self._take(self._done.get(timeout=None if end is None else max(0.0, end - time.monotonic())))
            except queue.Empty:
                raise TimedOut(f"no batch within {timeout} s: {_at_work(self.slots, self._drivers)}") from None

    def poll(self) -> None:
        """Takes what is done, without waiting."""
        try:
            while True:
                self._take(self._done.get_nowait())
        except queue.Empty:
            pass

    def _take(self, message: tuple[Job, list[Failure], Loose, float]) -> None:
        job, failures, loose, busy = message
        job.add(failures, loose)
        if not job.chunks:
            self._before = None  # its thread has restored them
        self.busy_s += busy * (self.workers if self.work.in_c else 1)

    def close(self, kill: bool = False) -> None:
        for _ in self._threads:
            self._tasks.put(None)
        if kill:
            leave(self._threads)
            if self._before is not None:
                self._before.restore()
        else:
            for thread in self._threads:
                thread.join(1.0)
        if self.work.stages is not None:
            self.work.stages.stop()


def _thread_main(work: Work, slots: Slots, number: int, tasks: queue.SimpleQueue[Any], done: queue.SimpleQueue[Any]) -> None:
    def at(index: int) -> None:
        slots.current[number] = index

    while True:
        task = tasks.get()
        if task is None:
            return
        job, lo, hi = task
        start = time.perf_counter()
        before = States() if work.draws else None
        try:
            failures, loose = _run_chunk(work, job.raw, 0, lo, hi, job.ids, job.epoch, slots.outs(job.lease.number), at)
        except BaseException as error:  # nothing that we know of; but the loop waits for an answer
            failures, loose = [(i, error) for i in range(lo, hi)], {}
        if before is not None:
            before.restore()
        waited = 0.0 if work.stages is None else work.stages.take_waited()
        done.put((job, failures, loose, time.perf_counter() - start - waited))
        del task, job, failures, loose


def _at_work(slots: Slots, workers: int) -> str:
    found = [int(slots.current[w]) - 1 & ID_MASK for w in range(workers) if slots.current[w]]
    return f"samples {', '.join(map(str, found))} are being prepared" if found else "no sample is being prepared"


# --- processes ----------------------------------------------------------------------------------------------------------------


class _Fd:
    """A descriptor among the arguments of a process: inherited by fork, passed by spawn and forkserver."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[object, ...]:
        from multiprocessing import reduction

        return (_fd_here, (reduction.DupFd(self.fd),))


def _fd_here(passed: Any) -> _Fd:
    return _Fd(passed.detach())


class Processes:
    """Workers that open the set by its address and read for themselves."""

    reads, in_step = True, False

    def __init__(self, work: Work, slots: Slots, workers: int, source: Source, method: str | None) -> None:
        self.work, self.slots, self.workers = work, slots, max(1, workers)
        self.busy_s = self.read_s = 0.0
        from multiprocessing import connection, get_context  # some ms, for those alone who take processes

        self._wait = connection.wait
        context = get_context(method)
        self._heard = False  # some worker has said something
        self._jobs: dict[int, Job] = {}
        self._conns: list[Any] = []
        self._processes: list[Any] = []
        self._load = [0] * self.workers
        try:
            for number in range(self.workers):
                ours, theirs = context.Pipe()
                process = context.Process(  # type: ignore[attr-defined]
                    target=_process_main, daemon=True, name=f"leat-prep-{number}",
                    args=(theirs, source, work, _Fd(slots.fd), slots.batch_size, slots.count, number))
                try:
                    process.start()
                except (AttributeError, TypeError, pickle.PicklingError) as error:
                    raise TypeError(f"a worker process cannot be given the transform: {error}. Define it at the top of a module, or take "
                                    "workers='fork' or 'thread'") from error
                theirs.close()
                self._conns.append(ours)
                self._processes.append(process)
        except BaseException:
            self.close(kill=True)
            raise

    def submit(self, job: Job) -> None:
        self.slots.ids(job.lease.number)[: len(job.ids)] = job.ids
        chunks = _chunks(len(job.ids), self.workers)
        job.chunks = len(chunks)
        self._jobs[job.number] = job
        for lo, hi in chunks:
            worker = min(range(self.workers), key=self._load.__getitem__)
            self._load[worker] += 1
            try:
                self._conns[worker].send((job.number, job.lease.number, lo, hi, job.epoch))
            except OSError:
                self._died(worker)

    def wait(self, job: Job, timeout: float | None) -> None:
        heard = self._heard
        end = None if timeout is None else time.monotonic() + (timeout if heard else max(timeout, _START_S))
        conns: dict[Any, int] = {conn: w for w, conn in enumerate(self._conns)}
        sentinels: dict[Any, int] = {process.sentinel: w for w, process in enumerate(self._processes)}
        while job.chunks:
            ready = self._wait([*conns, *sentinels], None if end is None else max(0.0, end - time.monotonic()))
            if not ready:
                raise TimedOut(f"no batch within {timeout} s: {_at_work(self.slots, self.workers)}")
            for one in ready:
                if one in conns:
                    self._receive(conns[one])
            if not heard and self._heard:
                heard, end = True, None if timeout is None else time.monotonic() + timeout
            for one in ready:
                if one in sentinels and job.chunks:
                    self._died(sentinels[one])

    def poll(self) -> None:
        """Takes what is done, without waiting."""
        conns: dict[Any, int] = {conn: w for w, conn in enumerate(self._conns)}
        while ready := self._wait(list(conns), 0):
            for one in ready:
                self._receive(conns[one])

    def _receive(self, worker: int) -> None:
        try:
            message = self._conns[worker].recv()
        except (EOFError, OSError):
            self._died(worker)
        self._heard = True
        if message is None:  # it has begun
            return
        number, failures, loose, read, busy = message
        self._load[worker] -= 1
        self.read_s += read
        self.busy_s += busy
        job = self._jobs.get(number)
        if job is not None:
            job.add(failures, loose)
            if not job.chunks:
                del self._jobs[number]

    def _died(self, worker: int) -> None:
        process = self._processes[worker]
        process.join(5)
        how = _how(process.exitcode)
        at = int(self.slots.current[worker])
        if not self._heard:
            how += (" before it had begun. Where processes are not forked they import the program again: what it does belongs under "
                    "`if __name__ == '__main__':`")
        raise WorkerDied(f"worker {worker} (pid {process.pid}) {how}" + (f", at sample {at - 1 & ID_MASK}" if at else ""))

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def close(self, kill: bool = False) -> None:
        for conn, process in zip(self._conns, self._processes):
            if kill:
                process.kill()
            else:
                try:
                    conn.send(None)  # closing is not enough: workers forked later hold copies of this end
                except OSError:
                    pass
        for conn in self._conns:
            conn.close()
        for process in self._processes:
            process.join(2)
            if process.exitcode is None:
                process.kill()
                process.join()
            process.close()
        self._conns, self._processes = [], []
        self.slots.close_fd()


def portable(error: BaseException) -> BaseException:
    """The same, as it passes through a pipe, with where it came from: of its class if it can be made there, else of the nearest base that can, in the
    end RuntimeError. What of its attributes does not pickle stays behind."""
    let_go(error, "in a worker:\n")
    kind, text = type(error), said(error)
    words = f"{kind.__name__}: {text}"
    try:
        data = pickle.dumps(error)
        again = pickle.loads(data)
        if type(again) is kind and str(again) == text:
            return _Portable(data, words)
    except Exception:
        pass
    state = {name: value for name, value in error.__dict__.items() if _pickles(value)}
    bases = [base for base in kind.__mro__[1:] if issubclass(base, BaseException)]
    for base, args, wanted in ((kind, error.args, text), (kind, (text,), text), *((base, (words,), words) for base in bases)):
        try:
            data = pickle.dumps((base, args, state))
            again = _made(*pickle.loads(data))
            if type(again) is base and (wanted in str(again) or repr(wanted) in str(again)):  # KeyError says the repr
                return _Portable(data, words)
        except Exception:
            pass
    return _Portable(pickle.dumps((RuntimeError, (words,), {})), words)


def as_sent(kind: type) -> type:
    """A class of tuples that passes through a pipe, or plain ones."""
    return kind if _pickles(kind) else tuple


def _pickles(value: Any) -> bool:
    try:
        pickle.loads(pickle.dumps(value))
        return True
    except Exception:
        return False


class _Portable(Exception):
    """On the way through a pipe: an exception as bytes, pickled whole or as what `_made` takes; and what it said, should it not be made."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, self.args


def _revive(data: bytes, words: str) -> BaseException:
    try:
        found = pickle.loads(data)
        made: BaseException = found if isinstance(found, BaseException) else _made(*found)
        return made
    except Exception:
        return RuntimeError(words)


def _made(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """An exception that is made without its `__init__`, whose arguments are not known."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def _process_main(conn: Any, source: Source, work: Work, fd: _Fd, batch_size: int, count: int, number: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the rank decides what Ctrl-C means
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()
    slots = Slots(work.layout, batch_size, count, shared=True, fd=fd.fd)

    def at(index: int) -> None:
        slots.current[number] = index

    if work.imports_torch:
        import torch  # noqa: F401
    _one_thread_of_torch()
    work.draws = work.in_python  # whether they do draw: nothing else does here, and seeding is cheap
    reader = source.reader(batch_size, work.block)
    conn.send(None)
    while True:
        try:
            task = conn.recv()
        except (EOFError, OSError):
            task = None
        if task is None:
            os._exit(0)  # nothing of the parent's that was inherited is to be cleaned up here
        job, slot, lo, hi, epoch = task
        start = time.perf_counter()
        ids = slots.ids(slot)[:hi].copy()
        outs = slots.outs(slot)
        failures: list[Failure] = []
        loose: Loose = {}
        try:
            failures, loose, read = _read_and_run(work, reader, lo, hi, ids, epoch, outs, at)
        except Error:  # one by one, to see which
            read = time.perf_counter()
            for i in range(lo, hi):
                try:
                    failed, more, _ = _read_and_run(work, reader, i, i + 1, ids, epoch, outs, at)
                    failures += failed
                    for name, values in more.items():
                        loose.setdefault(name, {}).update(values)
                except Error as error:
                    failures.append((i, error))
        message = (job, [(i, portable(error)) for i, error in failures], loose, read - start, time.perf_counter() - read)
        try:
            conn.send(message)
        except OSError:
            os._exit(0)
        except Exception as error:  # values that do not pickle
            conn.send((job, [(i, portable(error)) for i in range(lo, hi)], {}, 0.0, 0.0))


def _read_and_run(work: Work, reader: Reader, lo: int, hi: int, ids: Array, epoch: int, outs: dict[str, Array],
                  at: Callable[[int], None]) -> tuple[list[Failure], Loose, float]:
    """As `_run_chunk`, of a worker process; and when the bytes were read. Where one of these samples is the first to import torch, whose generator was
    not there to be seeded, all are prepared again."""
    while True:
        had_torch = "torch" in sys.modules
        batch = reader.read(ids[lo:hi])
        read = time.perf_counter()
        failures, loose = _run_chunk(work, batch, lo, lo, hi, ids, epoch, outs, at)
        batch.release()
        if had_torch or "torch" not in sys.modules:
            return failures, loose, read
        _one_thread_of_torch()


def in_thread(make: Callable[[], Any], index: int, timeout: float | None) -> Any:
    """The result of `make` for sample `index`, or its error."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(make())
        except BaseException as error:
            failed.append(error)

    before = States()
    thread = threading.Thread(target=work, name="leat-prep-one", daemon=True)
    thread.start()
    thread.join(timeout)
    if failed:
        raise failed.pop()  # and not kept here: its frames keep arrays
    if not found:
        leave([thread])
        before.restore()
        raise TimedOut(f"no batch within {timeout} s: samples {index} are being prepared")
    return found[0]


def in_child(make: Callable[[], Any], index: int, timeout: float | None) -> Any:
    """The same in a child of fork()."""
    from multiprocessing import connection, get_context

    context = get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child_main, args=(theirs, make), daemon=True, name="leat-prep-one")
    process.start()
    theirs.close()
    try:
        if not connection.wait([ours, process.sentinel], timeout):
            raise TimedOut(f"no batch within {timeout} s: samples {index} are being prepared")
        try:
            good, found = pickle.loads(ours.recv_bytes())
        except EOFError:
            process.join(5)
            raise WorkerDied(f"a worker (pid {process.pid}) {_how(process.exitcode)}, at sample {index}") from None
    finally:
        ours.close()
        process.kill()
        process.join()
        process.close()
    if good:
        return found
    raise found


def _child_main(conn: Any, make: Callable[[], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _one_thread_of_torch()
    try:
        # By plain pickle: torch's own way of sending tensors wants a sender that lives on.
        message = pickle.dumps((True, make()))
    except BaseException as error:
        message = pickle.dumps((False, portable(error)))
    conn.send_bytes(message)
    os._exit(0)


def forks() -> bool:
    """Whether processes are forked here, if no start method is given."""
    from multiprocessing import get_context

    return get_context().get_start_method() == "fork"


def _one_thread_of_torch() -> None:
    """As DataLoader: the workers are the threads, and OpenMP's of the parent do not live in a child of fork."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _how(code: int | None) -> str:
    """How a process ended."""
    return f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with exit code {code}"


def _follow(sentinel: Any) -> None:
    from multiprocessing import connection

    connection.wait([sentinel])
    os._exit(1)
