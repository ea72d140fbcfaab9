# SPDX-License-Identifier: Apache-2.0
"""`leat.from_dataset`: ranks read any map-style dataset, each its share, and push it into the pool.

Happy path: rank 0 learns the fields from the first samples, creates the set and announces it; every rank reads its share chunk by chunk and
pushes it; all return when all of it is there. Fields of differing lengths must be known by length when the set is created: then each rank
puts what it reads in a file without a name (`spool`) and pushes lengths; rank 0 creates the set from these; the files are pushed.

Ranks meet in the pool itself, by small sets beside NAME: `~ranks` (who is there, and rank 0's word; its keys name the attempt), `~lengths`,
`~failed` (the first failure). They are gone when the call returns.

Failure modes: a rank that fails writes the cause to `~failed` and drops the partial set, and all ranks raise, the same class if it is one of ours. A killed rank is noticed
after `timeout` seconds without progress. A job that was killed altogether leaves its sets: rank 0 of the next one drops them.
Invariants: sample i of the set is sample i of the dataset; a set under the user's name either grows or is whole; no more of the
dataset is in memory than the chunks at work.
"""

from __future__ import annotations

import collections
import ctypes
import hashlib
import json
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .._base import errors, ranks as _ranks
from .._base.clients import parse_timeout
from .._base.errors import BadSample, Denied, Error, Invalid, NotFound, PeerGone, Stale, TimedOut, said
from .._base.progress import ProgressArg, Reporter
from . import core, rows as _rows
from .batch import Array
from .set import WorkingSet

_log = logging.getLogger("leat")

_LEARN = 8  # samples that say what the fields are
_CHUNK_BYTES = 16 << 20
_CHUNK_SAMPLES = 4096
_CHUNK_S = 1.0  # a chunk takes about this long, so that other ranks see progress
_POLL_S = 0.02
_LOOK_S = 0.5  # between two looks for a failure of others
_LINGER_S = 5.0  # rank 0 waits so long for the others to have read why
_WORD_BYTES = 4096
_ON_ANOTHER = "failed on another rank"  # code of what is no class of Leat's


def from_dataset(dataset: Any, *, name: str | None = None, version: str | None = None, fields: _rows.RowFields = None,
                 batch: int | None = None, rank: int | None = None, world_size: int | None = None, num_workers: int = 0,
                 timeout: float = 60.0, spool: str | os.PathLike[str] | None = None, public: bool = False,
                 pool: int | str | None = None, job: str | None = None, socket: core.Path | None = None,
                 progress: ProgressArg = None) -> WorkingSet:
    """Reads a map-style dataset (`len(dataset)`, `dataset[i]`, or `__getitems__`) into the pool, once, and returns it as a working set:
    for Parquet, Lance and other formats with a reader of their own. All ranks of a job call it; each reads its share.

    A sample may be a value, or a dict, tuple or namedtuple of values, nested or not: ndarrays, tensors, PIL pictures, numbers, bytes, str.
    The first samples define the fields: arrays of one dtype and shape become array fields; arrays of several shapes the bytes of .npy
    files (`leat.Loader(ws, fields={"x": "npy"})` decodes them); bytes and text raw fields. A later sample that is not alike is an error.

    name       of the set, which stays in the pool until dropped. Without it, for one rank only, the set goes with the returned object
    version    the dataset's version, say a hash of its files: the set is then called NAME@VERSION, and found instead of
               made when it is there with that many samples and these fields. Without it a set of that name is an error
    fields     names of the fields that are wanted, or of the parts of a tuple; or {name: (dtype, shape), or a dtype, bytes, str, "npy", None}
    batch      samples that are read at once; chosen by their size
    num_workers  threads that read. The dataset must allow it
    timeout    seconds without any progress of any rank after which the others stop
    spool      folder for samples of differing lengths on their way: on a disk, not in memory. $TMPDIR, else /var/tmp
    rank, world_size, job, socket, pool, public, progress   as of `leat.Loader` and `leat.open`

    >>> rows = [{"x": np.full(3, i, "f4"), "text": "ab" * i} for i in range(5)]
    >>> made = leat.from_dataset(rows, name="rows", version="1")
    >>> made.uri, made[2]["text"], made[4]["x"].tolist()
    ('leat://rows@1', b'abab', [4.0, 4.0, 4.0])
    """
    for need in ("__len__", "__getitem__"):
        if not hasattr(dataset, need):
            raise TypeError(f"{type(dataset).__name__} has no {need}: a map-style dataset is wanted. Of one that only iterates make a list, "
                            "or write it in shards and open these")
    n = len(dataset)
    if n < 1:
        raise ValueError("a dataset of no samples")
    if num_workers < 0 or batch is not None and batch < 1:
        raise ValueError(f"num_workers={num_workers}, batch={batch}: at least 0 and 1")
    parse_timeout(timeout)
    rank, world_size = _ranks.resolve(rank, world_size)
    if name is None and world_size > 1:
        raise ValueError("name=: ranks that fill a set together need a name for it")
    if version is not None and name is None:
        raise ValueError("version=: of a set with a name")
    full = f"dataset-{os.urandom(6).hex()}" if name is None else name if version is None else f"{name}@{version}"
    where = {"job": job, "socket": socket}
    source = _Source(dataset, n, _rows.names_of(fields), batch, num_workers)
    with Reporter(progress, name or type(dataset).__name__) as report:
        made = _Making(source, full, name is None, version is not None, rank, world_size, timeout, where,
                       {"public": public, "pool": pool}, spool, report)
        ws = made.run(fields)
    if name is None:
        weakref.finalize(ws, _drop_mine, os.getpid(), full, where)
    return ws


def _drop_mine(pid: int, name: str, where: dict[str, Any]) -> None:
    if os.getpid() == pid:  # not in a child of fork
        try:
            core.drop(name, True, timeout=1.0, **where)
        except Error:
            pass


# --- reading the dataset ------------------------------------------------------------------------------------------------------------


class _Source:
    """The user's dataset, in chunks of rows."""

    def __init__(self, dataset: Any, n: int, names: list[str] | None, batch: int | None, workers: int) -> None:
        self._dataset, self.n, self._names = dataset, n, names
        self._many = getattr(dataset, "__getitems__", None)
        self._batch, self.workers = batch, workers
        self.columns: list[_rows.Column] = []

    def learn(self, fields: _rows.RowFields) -> None:
        rows = self._read(0, min(self.n, _LEARN))
        try:
            self.columns = _rows.learn(rows, fields)
            _rows.encode(rows, 0, self.columns)
        except _rows.Unlike as error:
            raise Invalid(str(error)) from None

    def _read(self, first: int, end: int) -> list[_rows.Row]:
        numbers = list(range(first, end))
        samples: Sequence[Any]
        if callable(self._many) and len(numbers) > 1:
            try:
                samples = list(self._many(numbers))
            except Exception as error:
                for i in numbers:  # which of them
                    self._one(i)
                raise _bad(first, end, error) from error
            if len(samples) != len(numbers):
                raise Invalid(f"__getitems__ of {type(self._dataset).__name__} gave {len(samples)} samples for {len(numbers)}")
        else:
            samples = [self._one(i) for i in numbers]
        rows = []
        for i, sample in enumerate(samples):
            try:
                rows.append(_rows.flatten(sample, self._names))
            except _rows.Unlike as error:
                raise Invalid(f"sample {first + i}: {error}") from None
        return rows

    def _one(self, i: int) -> Any:
        try:
            return self._dataset[i]
        except Exception as error:
            raise _bad(i, i + 1, error) from error

    def chunk(self, first: int, end: int) -> tuple[int, _rows.Block, float]:
        start = time.monotonic()
        try:
            block = _rows.encode(self._read(first, end), first, self.columns)
        except _rows.Unlike as error:
            raise Invalid(str(error)) from None
        return first, block, time.monotonic() - start

    def chunks(self, first: int, end: int) -> Iterator[tuple[int, _rows.Block]]:
        """[first, end) in order; with workers, some chunks ahead. A chunk's samples follow from the size and time of those before."""
        import concurrent.futures

        pool = concurrent.futures.ThreadPoolExecutor(self.workers, "leat-dataset") if self.workers else None
        ahead: collections.deque[concurrent.futures.Future[tuple[int, _rows.Block, float]]] = collections.deque()
        size = 1 if self._batch is None else self._batch
        at = first
        try:
            while at < end or ahead:
                while pool is not None and at < end and len(ahead) <= self.workers:
                    ahead.append(pool.submit(self.chunk, at, min(end, at + size)))
                    at = min(end, at + size)
                if pool is not None:
                    start, block, took = ahead.popleft().result()
                else:
                    start, block, took = self.chunk(at, min(end, at + size))
                    at = min(end, at + size)
                yield start, block
                if self._batch is None:
                    many = _length(block)
                    by_bytes = _CHUNK_BYTES * many // max(1, _bytes(block))
                    by_time = int(_CHUNK_S * many / max(took, 1e-6))
                    size = max(1, min(by_bytes, by_time, _CHUNK_SAMPLES, 4 * size))
                del block
        finally:
            if pool is not None:
                pool.shutdown(cancel_futures=True)


def _bad(first: int, end: int, cause: Exception) -> BadSample:
    which = f"sample {first}" if end == first + 1 else f"samples {first} to {end - 1}"
    error = BadSample(f"{which} of the dataset: {type(cause).__name__}: {said(cause)}", code="bad sample")
    error.index = first
    return error


def _length(block: _rows.Block) -> int:
    return len(next(iter(block.values())))


def _bytes(block: _rows.Block) -> int:
    return sum(values.nbytes if isinstance(values, np.ndarray) else sum(map(len, values)) for values in block.values())


# --- samples of differing lengths, on their way -------------------------------------------------------------------------------------


class _Spool:
    """Blocks in a file without a name, first in, first out. Blocks that were read free their disk space."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        if folder is None:
            folder = os.environ.get("TMPDIR") or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else None)
        import tempfile  # with shutil, bz2 and lzma: not for everybody who imports leat

        self._file = tempfile.TemporaryFile(dir=folder, prefix="leat-")
        self._blocks: collections.deque[tuple[int, int, dict[str, Array | None], int]] = collections.deque()
        self._end = 0

    def put(self, first: int, block: _rows.Block) -> None:
        lengths: dict[str, Array | None] = {}
        start = self._end
        for name, values in block.items():
            if isinstance(values, np.ndarray):
                lengths[name] = None
                self._end += self._file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
            else:
                lengths[name] = np.array([len(value) for value in values], np.uint64)
                self._end += self._file.write(b"".join(values))
        self._blocks.append((first, start, lengths, _length(block)))

    def get(self, columns: Sequence[_rows.Column]) -> Iterator[tuple[int, _rows.Block]]:
        self._file.flush()
        while self._blocks:
            first, start, lengths, n = self._blocks.popleft()
            self._file.seek(start)
            block: _rows.Block = {}
            for column in columns:
                of = lengths[column.name]
                if of is None:
                    out = np.empty((n, *column.shape), column.dtype)
                    self._file.readinto(out.reshape(-1).view(np.uint8).data)
                    block[column.name] = out
                else:
                    block[column.name] = [self._file.read(int(length)) for length in of]
            self._punch(start, self._file.tell() - start)
            yield first, block

    def _punch(self, start: int, length: int) -> None:
        try:  # KEEP_SIZE | PUNCH_HOLE; a file system that cannot keeps it until the end
            ctypes.CDLL(None).fallocate(self._file.fileno(), 3, ctypes.c_int64(start), ctypes.c_int64(length))
        except (OSError, AttributeError):
            pass

    def close(self) -> None:
        self._file.close()


# --- ranks that meet in the pool ----------------------------------------------------------------------------------------------------


class _Found(Exception):
    """The set is there already."""


class _Making:
    """One call of from_dataset."""

    def __init__(self, source: _Source, full: str, anonymous: bool, versioned: bool, rank: int, world_size: int, timeout: float,
                 where: dict[str, Any], create: dict[str, Any], spool: str | os.PathLike[str] | None,
                 report: Callable[[int, int, int, int, int], None] | None) -> None:
        self._source, self._full, self._anonymous, self._versioned = source, full, anonymous, versioned
        self._rank, self._world, self._timeout = rank, world_size, timeout
        self._where, self._options, self._spool_folder = where, create, spool
        self._report = report
        # Of this job, so that two jobs that make the same set do not take each other's ranks for their own.
        jobs = (where["job"], *map(os.environ.get, ("LEAT_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")))
        tag = hashlib.sha256(json.dumps(jobs).encode()).hexdigest()[:8]
        self._ranks_name, self._lengths_name = f"{full}~ranks-{tag}", f"{full}~lengths-{tag}"
        self._ranks: WorkingSet | None = None
        self._go = False  # rank 0 has given its word
        self._mine = False  # the set under the user's name was made by this job
        self._looked = 0.0

    def run(self, fields: _rows.RowFields) -> WorkingSet:
        try:
            ws = self._run(fields)
        except _Found:
            ws = self._open(self._full)
        except BaseException as error:
            told = self._told() if isinstance(error, (Stale, NotFound)) and not _is_told(error) else None
            self._give_up(told or error)
            if told is not None:
                raise told from error
            raise
        if self._rank == 0:
            self._drop(self._ranks_name, self._lengths_name)
        return ws

    def _run(self, fields: _rows.RowFields) -> WorkingSet:
        if self._rank == 0:
            left = self._gather()
            self._source.learn(fields)
            self._look_for_it(left)
            ws = self._lead()
        else:
            ws = self._follow()
        first, end = self._share(self._rank)
        if ws is not None:
            self._fill(ws, self._source.chunks(first, end), first, end)
        else:
            spool = _Spool(self._spool_folder)
            try:
                ws = self._through(spool, first, end)
            finally:
                spool.close()
        self._wait(ws)
        return ws

    def _share(self, rank: int) -> tuple[int, int]:
        mine = core.share(self._source.n, rank, self._world)
        return mine.start, mine.stop

    # --- is it there? ---

    def _open(self, name: str) -> WorkingSet:
        return core.open(f"leat://{name}", **self._where)

    def _whole(self) -> bool | None:
        """Whether the set under the user's name is whole; None: there is none."""
        try:
            with self._open(self._full) as ws:
                stat = ws.stat()
                if stat.resident_samples < stat.samples:
                    return False
                self._compare(ws)
                return True
        except (NotFound, Stale):
            return None

    def _compare(self, ws: WorkingSet) -> None:
        if not self._versioned:
            raise Invalid(f"there is a set {self._full!r} already: drop it first, choose another name, or state by version= that "
                          "the dataset is the same")
        wanted = [] if not self._source.columns else [(c.name, c.dtype, c.shape) for c in self._source.columns]
        found = [(f.name, "" if f.kind == "raw" else f.dtype.str, f.shape) for f in ws.fields]
        if len(ws) != self._source.n or wanted and found != wanted:
            raise Invalid(f"{ws!r} is there, but this dataset has {self._source.n} samples of "
                          f"{', '.join(c.name + ' ' + str(c) for c in self._source.columns)}: give another version, or drop it")

    def _look_for_it(self, left: bool) -> None:
        """Waits for a set that another job fills; drops an abandoned one. `left`: this job left something behind."""
        deadline = _Deadline(_LOOK_S if left else self._timeout)
        while True:
            now = self._resident()
            if now < 0:
                return
            if deadline.passed(now):
                _log.info("%s is not whole, and no job fills it: it is made again", self._full)
                self._drop(self._full)
                return
            time.sleep(_LOOK_S)

    # --- meeting ---

    def _gather(self) -> bool:
        """Rank 0 creates the set where ranks meet. Returns whether an earlier attempt of this job had left one."""
        try:
            with self._open(self._ranks_name) as old:
                self._drop(self._failed_name(old))
        except (NotFound, Stale):
            pass
        left = self._drop(self._ranks_name, self._lengths_name)
        if self._anonymous:
            return False
        attempt = os.urandom(4).hex()
        self._ranks = core.create(self._ranks_name, {"word": ("u1", (_WORD_BYTES,))}, 2 * self._world,
                                   keys=[f"{attempt}-{i}" for i in range(2 * self._world)], **self._options, **self._where)
        return left

    def _failed_name(self, ranks: WorkingSet) -> str:
        return f"{self._full}~failed-{ranks.key(0)}"

    def _lead(self) -> WorkingSet | None:
        """Rank 0: the set, if it can be created at once. The others are there, and notified."""
        ranks, word = self._ranks, f"{_rows.dump(self._source.columns)}\n{self._source.n}".encode()
        if len(word) > _WORD_BYTES and self._world > 1:
            raise Invalid(f"{len(self._source.columns)} fields are more than ranks can exchange: choose some with fields=")
        if ranks is not None and self._world > 1:
            self._until(lambda: ranks.stat().resident_samples >= self._world - 1,
                        lambda: f"rank {self._names(r for r in range(1, self._world) if not _there(ranks, r))} is not there")
        ws = None
        if not any(column.raw for column in self._source.columns):
            ws = self._make(None)
        elif self._world > 1:
            raw = sum(column.raw for column in self._source.columns)
            core.create(self._lengths_name, {"bytes": ("<u8", (raw,))}, self._source.n, **self._options, **self._where)
        if ranks is not None and self._world > 1:
            ranks.push(0, _padded(word, ranks))
            self._go = True
        return ws

    @staticmethod
    def _names(ranks: Iterator[int]) -> str:
        found = list(ranks)
        return ", ".join(map(str, found[:8])) + (" and others" if len(found) > 8 else "")

    def _make(self, lengths: dict[str, Array] | None) -> WorkingSet:
        fields = {c.name: bytes if c.raw else (c.dtype, c.shape) for c in self._source.columns}
        try:
            ws = core.create(self._full, fields, self._source.n, lengths=lengths, **self._options, **self._where)
            self._mine = True
            return ws
        except Invalid:
            if self._whole() is None:
                raise
        self._look_for_it(False)  # another job was faster
        return self._make(lengths)

    def _follow(self) -> WorkingSet | None:
        """Another rank: announces itself, and takes the fields from rank 0."""
        deadline = _Deadline(self._timeout)
        late = f"rank 0 has not begun to make {self._full!r} within {self._timeout} s"
        while True:
            deadline.check(self._resident(), late)
            try:
                said = self._open(self._ranks_name)
                if _there(said, self._rank):  # of a job that was killed: rank 0 will drop it
                    raise NotFound
                said.push(self._rank, _padded(b"", said))
                self._ranks = said
                while not _there(said, 0, _LOOK_S):
                    deadline.check(self._resident(), late)
                    self._look()
                word, _, n = said[0].tobytes().rstrip(b"\0").rpartition(b"\n")  # type: ignore[union-attr]
                break
            except (NotFound, Stale) as error:
                if _is_told(error):
                    raise
                self._ranks = None
                time.sleep(0.1)
        self._go = True
        if int(n) != self._source.n:
            raise Invalid(f"this dataset has {self._source.n} samples, that of rank 0 {int(n)}")
        self._source.columns = _rows.load(word.decode())
        return None if any(column.raw for column in self._source.columns) else self._open(self._full)

    def _resident(self) -> int:
        """Resident samples of the set under the user's name, which another job may be filling; -1: there is none. _Found: it is whole."""
        if self._whole():
            raise _Found
        try:
            with self._open(self._full) as ws:
                return ws.stat().resident_samples
        except (NotFound, Stale):
            return -1

    # --- filling ---

    def _fill(self, ws: WorkingSet, chunks: Iterator[tuple[int, _rows.Block]], first: int, end: int) -> None:
        done = 0
        for start, block in chunks:
            ws.push(start, block)
            done += _bytes(block)
            self._look()
            self._tell(start + _length(block) - first, end - first, done)

    def _tell(self, done: int, total: int, nbytes: int) -> None:
        if self._report is not None:
            self._report(2, done, total, nbytes, nbytes * total // done if done else 0)

    def _through(self, spool: _Spool, first: int, end: int) -> WorkingSet:
        """Through the spool, if lengths differ."""
        raw = [column for column in self._source.columns if column.raw]
        told = self._open(self._lengths_name) if self._world > 1 else None
        kept: list[Array] = []
        done = 0
        for start, block in self._source.chunks(first, end):
            spool.put(start, block)
            lengths = np.array([[len(value) for value in block[column.name]] for column in raw], np.uint64).T
            if told is not None:
                told.push(start, np.ascontiguousarray(lengths))
            else:
                kept.append(lengths)
            done += _bytes(block)
            self._look()
            self._tell(start + _length(block) - first, end - first, done)
        if self._rank == 0:
            if told is not None:
                self._progress(told, "has not read all of its samples")
                kept = [_read(told, at, min(self._source.n, at + 65536)) for at in range(0, self._source.n, 65536)]
            table = np.concatenate(kept)
            ws = self._make({column.name: table[:, i] for i, column in enumerate(raw)})
            del table, kept
        else:
            assert told is not None
            ws = self._appears(told)
        self._fill(ws, spool.get(self._source.columns), first, end)
        return ws

    def _appears(self, told: WorkingSet) -> WorkingSet:
        self._progress(told, "has not read all of its samples")
        found: list[WorkingSet] = []

        def there() -> bool:
            try:
                found.append(self._open(self._full))
            except NotFound:
                time.sleep(0.1)
            return bool(found)

        self._until(there, lambda: "rank 0 has not created the set")
        return found[0]

    def _wait(self, ws: WorkingSet) -> None:
        self._progress(ws, "has not pushed all of its samples")

    # --- waiting for others ---

    def _until(self, done: Callable[[], bool], what: Callable[[], str]) -> None:
        deadline = _Deadline(self._timeout)
        while not done():
            self._look()
            if deadline.passed(0):
                raise TimedOut(f"{self._full}: {what()} after {self._timeout} s")
            time.sleep(_POLL_S)

    def _progress(self, ws: WorkingSet, what: str) -> None:
        """Until all samples of `ws` are there, as long as some come."""
        deadline = _Deadline(self._timeout)
        while (now := ws.stat().resident_samples) < len(ws):
            if deadline.passed(now):
                shares = [(r, *self._share(r)) for r in range(self._world)]
                late = self._names(r for r, first, end in shares if first < end and not _there(ws, end - 1))
                raise TimedOut(f"{self._full}: no sample came for {self._timeout} s, {now} of {len(ws)} are there: rank {late} {what}")
            self._look()
            time.sleep(_POLL_S)

    # --- failures ---

    def _look(self) -> None:
        """Raises the failure of another rank."""
        now = time.monotonic()
        if now - self._looked > _LOOK_S:
            self._looked = now
            told = self._told()
            if told is not None:
                raise told

    def _told(self) -> Error | None:
        if self._world == 1 or self._ranks is None:
            return None
        try:
            with self._open(self._failed_name(self._ranks)) as failed:
                word = failed[0].tobytes().rstrip(b"\0").decode("utf-8", "replace")  # type: ignore[union-attr]
        except (NotFound, Stale, TimedOut, PeerGone):
            return None
        kind, code, text = word.split("\n", 2)
        error: Error = getattr(errors, kind)(text, code=code)
        error._of_another_rank = True  # type: ignore[attr-defined]
        return error

    def _give_up(self, error: BaseException) -> None:
        """Reports the error to the other ranks, unless it came from them, and drops the incomplete set."""
        try:
            ranks = self._ranks
            if ranks is not None and self._world > 1 and not _is_told(error):
                word = "\n".join((*_kind_and_code(error), f"rank {self._rank} failed: {type(error).__name__}: {said(error)}"))
                try:
                    failed = core.create(self._failed_name(ranks), {"word": ("u1", (_WORD_BYTES,))}, 1, **self._options, **self._where)
                    failed.push(0, _padded(word.encode("utf-8", "replace")[:_WORD_BYTES], failed))
                except Invalid:  # another rank was first
                    pass
            # Before rank 0's word there was nothing of ours under the user's name.
            if (self._mine or self._go) and self._whole_or_none() is False:
                self._drop(self._full)
            if ranks is None:
                return
            self._drop(self._lengths_name)
            if self._rank:
                ranks.push(self._world + self._rank, _padded(b"", ranks))
                return
            end = time.monotonic() + min(_LINGER_S, self._timeout)
            while ranks.stat().resident_samples < 2 * self._world - 2 + self._go and self._world > 1 and time.monotonic() < end:
                time.sleep(_POLL_S)
            self._drop(self._failed_name(ranks), self._ranks_name)
        except Error as again:
            _log.debug("while cancelling: %s", again)

    def _whole_or_none(self) -> bool | None:
        try:
            return self._whole()
        except Invalid:
            return True

    def _drop(self, *names: str) -> bool:
        """Whether one of them was there."""
        found = False
        for name in names:
            try:
                core.drop(name, True, timeout=5.0, **self._where)
                found = True
            except (NotFound, Stale, Denied):
                pass
        return found


def _is_told(error: BaseException) -> bool:
    return hasattr(error, "_of_another_rank")


def _kind_and_code(error: BaseException) -> tuple[str, str]:
    """The error that other ranks raise for it: of the same class if that is one of Leat's, so that all ranks catch it alike."""
    if not isinstance(error, Error):
        return Error.__name__, _ON_ANOTHER
    return next(kind.__name__ for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind), error.code


class _Deadline:
    """So many seconds since the last progress."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._since, self._before = seconds, time.monotonic(), -2

    def passed(self, now: int) -> bool:
        if now != self._before:
            self._since, self._before = time.monotonic(), now
        return time.monotonic() - self._since > self._seconds

    def check(self, now: int, why: str) -> None:
        if self.passed(now):
            raise TimedOut(why)


def _padded(word: bytes, ws: WorkingSet) -> Array:
    out = np.zeros((1, *ws.fields[0].shape), np.uint8)
    out[0, : len(word)] = np.frombuffer(word, np.uint8)
    return out


def _there(ws: WorkingSet, i: int, timeout: float = 0.01) -> bool:
    try:
        ws.read_batch([i], timeout=timeout).release()
        return True
    except TimedOut:
        return False


def _read(ws: WorkingSet, first: int, end: int) -> Array:
    with ws.read_batch(range(first, end)) as batch:
        return np.array(batch.data)
