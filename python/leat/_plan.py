# SPDX-License-Identifier: Apache-2.0
"""Which samples stand in which step: pure functions of an order (or a sampler's list) and positions in it.

A plan is one epoch. Positions [0, length) count the samples of all ranks; step s of a run that begins at position p takes
[p + s * G, p + (s + 1) * G), G = batch_size * world_size, and each rank a contiguous slice. Positions past the end are padding and mean
the epoch's first ones again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _leat

Ids = npt.NDArray[np.uint64]
Ranges = tuple[tuple[int, int], ...]


def parse_ranges(ranges: Iterable[Sequence[int]], length: int | None = None) -> Ranges:
    """Sorted, disjoint, non-empty [first, end) out of what a user wrote.

    >>> parse_ranges([(8, 9), [2, 4], (3, 6)])
    ((2, 6), (8, 9))
    """
    merged: list[tuple[int, int]] = []
    try:
        given = sorted((int(a), int(b)) for a, b in ranges)
    except (TypeError, ValueError):
        raise TypeError(f"skip_ranges={ranges!r}: a list of (first position, end)") from None
    for first, end in given:
        if not 0 <= first < end or length is not None and first >= length:
            raise ValueError(f"skip_ranges: [{first}, {end}) is no range of positions" + (f" below {length}" if length is not None else ""))
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((first, end))
    return tuple(merged)


class Plan:
    """One epoch: its samples by position.

    >>> Plan.of_ids([5, 6, 7]).ids(1, 4).tolist()
    [6, 7, 5, 6]
    """

    def __init__(self, order: _leat.Order | None, ids: Ids | None, length: int, skip: Ranges = ()) -> None:
        self._order, self._ids = order, ids
        self._n = length  # before leaving out
        self._skip = tuple((first, min(end, length)) for first, end in skip if first < length)
        self._starts = np.array([0, *(end for _, end in self._skip)], np.int64)
        gone = np.cumsum([0, *(end - first for first, end in self._skip)])
        self._kept_starts = self._starts - gone  # of each run between two ranges, in positions that are left
        #: Samples of the epoch, those left out not counted.
        self.length = length - int(gone[-1])

    @classmethod
    def of_ids(cls, ids: Sequence[int] | Ids, skip: Ranges = ()) -> Plan:
        array = np.asarray(ids, np.uint64).reshape(-1)
        return cls(None, array, len(array), skip)

    @property
    def plain(self) -> bool:
        """An order with nothing left out: the library's iterator knows it."""
        return self._order is not None and not self._skip

    def ids(self, first: int, count: int) -> Ids:
        """The samples at `count` positions from `first`, which may run into the padding."""
        if self.length == 0:
            return np.empty(0, np.uint64)
        end = first + count
        if self._order is not None and not self._skip and end <= self.length:
            out = np.empty(count, np.uint64)
            self._order.fill(first, out)
            return out
        places = self._places(first, count)
        if self._ids is not None:
            return self._ids[places]
        assert self._order is not None
        return np.fromiter(map(self._order.at, places.tolist()), np.uint64, count)

    def _places(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Of positions: in the epoch before leaving out, padding turned into what it means."""
        places = np.arange(first, first + count, dtype=np.int64) % self.length
        if self._skip:
            run = np.searchsorted(self._kept_starts, places, side="right") - 1
            places = self._starts[run] + (places - self._kept_starts[run])
        return places

    def at(self, position: int) -> int:
        return int(self.ids(position, 1)[0])


def steps(length: int, start: int, global_batch: int, drop_last: bool) -> int:
    """Steps from position `start` on: the same on all ranks.

    >>> steps(10, 0, 4, True), steps(10, 0, 4, False), steps(10, 8, 4, True)
    (2, 3, 0)
    """
    left = max(0, length - start)
    return left // global_batch if drop_last else -(-left // global_batch)


def cut(batches: Iterable[Sequence[int] | Ids], rank: int, world_size: int) -> tuple[Ids, Ids, npt.NDArray[np.bool_], Ids]:
    """(ids, ends, valid, global ends) of one rank out of a batch sampler's global batches: each is cut in slices of equal length,
    the last ones padded from the batch's own start.

    >>> ids, ends, valid, _ = cut([[1, 2, 3], [4]], 1, 2)
    >>> ids.tolist(), ends.tolist(), valid.tolist()
    ([3, 1, 4], [2, 3], [True, False, False])
    """
    ids: list[Any] = []
    valid: list[Any] = []
    lengths, sizes = [], []
    for batch in batches:
        whole = np.asarray(batch, np.uint64).reshape(-1)
        if not len(whole):
            raise ValueError("batch_sampler: a batch of no samples")
        each = -(-len(whole) // world_size)
        places = np.arange(rank * each, (rank + 1) * each)
        ids.append(whole[places % len(whole)])
        valid.append(places < len(whole))
        lengths.append(each)
        sizes.append(len(whole))
    if not ids:
        return np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, bool), np.empty(0, np.uint64)
    return (np.concatenate(ids), np.cumsum(lengths).astype(np.uint64), np.concatenate(valid),
            np.cumsum(sizes).astype(np.uint64))
