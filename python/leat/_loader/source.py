# SPDX-License-Identifier: Apache-2.0
"""The input of a `leat.Loader`, as a `Source`: one set or windows over recordings (here), or a mixture of sets (mixture.py).

Happy path: a pass asks its source for the plan of the epoch, then for an iterator over raw batches: of all that is left, where the library
itself knows the order (`iterate`), else of some steps at a time (`open`).

Failure modes: an iterator that raises Corrupt or NotFound is closed; the pass reads the samples by themselves, and `bad_sample` names one.
Invariants: two sources of equal sets and columns have the same plans. A source pickles without its ring; a worker process reads by `reader`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from .. import _leat
from .._base.errors import BadSample, Error, said
from .._sets.batch import Array, Batch
from .._sets.fields import Column, renamed
from .._sets.plan import ID_MASK, Plan, Ranges, given_at_once
from .._sets.recordings import RawWindows, RecordingWindows
from .._sets.set import WorkingSet, load
from .prepared import LoadedBatch, PreparedBatch


class RawIter(Protocol):
    """Raw batches, one a step. Used by one thread."""

    def next(self, timeout_ns: int) -> Any: ...
    def close(self) -> None: ...


class Reader(Protocol):
    """Raw batches of a worker, read one at a time; bits of ids above those of numbers do not count."""

    def read(self, ids: Array) -> Any: ...
    def close(self) -> None: ...


class Source(Protocol):
    """Used by the thread that iterates, but for `reader`."""

    ws: Any  #: what the loader was given: of a mixture the mixture
    columns: tuple[Column, ...]
    named: tuple[Any, ...]  #: fields of raw batches, under the names of the columns
    sets: tuple[WorkingSet, ...]
    prepares: bool = False  #: raw batches are never a user's: workers bring the values together
    pictures: bool = True  #: leat.prep can work on raw batches
    batch_type: type[PreparedBatch] = PreparedBatch
    state: dict[str, Any] | None = None  #: what a loader's state has of it, beside fingerprint and length
    ring: _leat.Ring | None = None

    def __init__(self, ws: Any, columns: Sequence[Column]) -> None:
        self.ws, self.columns, self.named, self.sets = ws, tuple(columns), renamed(columns), (ws,)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ws, self.columns)

    def plan(self, seed: int, epoch: int, block: int, skip: Ranges) -> Plan:
        """The order of an epoch."""
        return Plan(len(self.ws), skip, seed=seed, epoch=epoch, block=block, fingerprint=self.ws.fingerprint)

    def load(self, batch_size: int, slots: int, memory: tuple[int, int], device_copy: str) -> None:
        """Makes the ring that raw batches lie in, for so many samples each; also again, in the child of a fork."""
        return

    def iterate(self, plan: Plan, *order: int) -> RawIter | None:
        """All batches from a position on, if the library knows this plan; `order` is what `_leat.Ring.iterate` takes. None: it does not."""
        return None

    def ahead(self, before: int, global_batch: int) -> int:
        """Steps that `open` is to get at once, behind `before` of the last time."""
        return 1

    def open(self, steps: Sequence[Array], ahead: int, block: int) -> RawIter:
        """Batches of the samples of these steps; up to `ahead` of them are read ahead."""
        raise NotImplementedError

    def batch(self, found: Any) -> Any:
        """The raw batch out of what an iterator gave. Error: it gave none."""
        return found

    def read(self, ids: Array, timeout_ns: int) -> Any:
        """One raw batch of these samples."""
        raise NotImplementedError

    def reader(self, batch_size: int, block: int = 0) -> Reader:
        """For batches of at most that many samples. `block`: of the order of a streamed set, which is read in whole blocks."""
        raise NotImplementedError

    def bad_sample(self, index: int, position: int, cause: BaseException, of: str = "") -> BadSample:
        """The error that names a sample by key, file and offset; `of` names the set."""
        ws, index, where = self.ws, index & ID_MASK, None
        key = ws.key(index)
        for column in self.columns:
            if column.field.kind != "label" and ws._set.field_bytes(index, column.field.number):  # what is empty lies nowhere
                where = ws._set.source(index, column.field.number)
            if where is not None:
                break
        place = f", {where[0]} at offset {where[1]}" if where else ""
        error = BadSample(f"sample {index}{of} ({key}){place}: {type(cause).__name__}: {said(cause)}", code="bad sample")
        error.index, error.key, error.position = index, key, position
        if where:
            error.file, error.offset = where
        return error


class SetSource(Source):
    """One set: raw batches lie in its ring."""

    def load(self, batch_size: int, slots: int, memory: tuple[int, int], device_copy: str) -> None:
        self.ring = load(self.ws._set, batch_size, slots, [column.field.number for column in self.columns], None, memory, device_copy)

    def iterate(self, plan: Plan, *order: int) -> RawIter | None:
        assert self.ring is not None
        return self.ring.iterate(*order) if plan.plain else None

    def ahead(self, before: int, global_batch: int) -> int:
        return given_at_once(global_batch)

    def open(self, steps: Sequence[Array], ahead: int, block: int) -> RawIter:
        assert self.ring is not None
        return self.ring.plan(np.concatenate(steps), np.cumsum([len(ids) for ids in steps]).astype(np.uint64), ahead, block)

    def batch(self, found: Any) -> LoadedBatch:
        if found is None:
            raise Error("the iterator ended early")
        return LoadedBatch(found, self.named, self.ws)

    def read(self, ids: Array, timeout_ns: int) -> LoadedBatch:
        assert self.ring is not None
        return self.batch(self.ring.read_batch(ids, timeout_ns, len(self.ws)))

    def reader(self, batch_size: int, block: int = 0) -> Reader:
        return _SetReader(self, batch_size, block)


class _SetReader:
    def __init__(self, source: SetSource, batch_size: int, block: int) -> None:
        self._source, self._size, self._block = source, batch_size, block
        self._ring: Any = None

    def read(self, ids: Array) -> Batch:
        ids, ws = ids & np.uint64(ID_MASK), self._source.ws
        if self._ring is None:
            self._ring = ws._set.load(self._size, 4, [c.field.number for c in self._source.columns], 0, None, 0, 0)
        if self._block:  # whole blocks, which other batches find there
            steps = self._ring.plan(np.ascontiguousarray(ids, np.uint64), None, 1, self._block)
            holder = steps.next(ws._timeout_ns)
            steps.close()
        else:
            holder = self._ring.read_batch(ids, ws._timeout_ns, len(ws))
        return Batch(holder, self._source.named, ws)

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()
            self._ring = None


class RecordingSource(Source):
    """Windows over recordings: nothing is read ahead; the requesting worker copies each value out of its recording."""

    prepares, pictures = True, False

    def open(self, steps: Sequence[Array], ahead: int, block: int) -> RawIter:
        return _LaterIter(self, steps)

    def read(self, ids: Array, timeout_ns: int = 0) -> RawWindows:
        return RawWindows(self.ws, self.columns, ids & np.uint64(ID_MASK))

    def reader(self, batch_size: int, block: int = 0) -> Reader:
        return self

    def close(self) -> None:
        pass


class _LaterIter:
    def __init__(self, source: RecordingSource, steps: Sequence[Array]) -> None:
        self._source, self._left = source, iter(steps)

    def next(self, timeout_ns: int) -> RawWindows:
        return self._source.read(next(self._left))

    def close(self) -> None:
        pass


def source_of(ws: WorkingSet, columns: Sequence[Column]) -> Source:
    """Of one set."""
    return (RecordingSource if isinstance(ws, RecordingWindows) else SetSource)(ws, columns)
