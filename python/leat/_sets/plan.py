# SPDX-License-Identifier: Apache-2.0
"""The samples of each step: pure functions of an order (or a sampler's list) and positions in it.

A plan is one epoch, and the library's `leat_plan` (leat.h): positions, padding, what is left out, orders, mixtures. What is here is for samplers,
whose length is not known before their end.

A sampler may never end. Its first numbers are drawn at once: `HEAD` of them, or as many as it says that it has; of a batch sampler as many batches
as have `HEAD` numbers. If it has not ended by then, it is drawn as steps need it (`Stream`, `Cut`), and only the numbers of the last steps are kept.
"""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from .. import _leat
from .._base.errors import Error

Ids = npt.NDArray[np.uint64]
Ranges = tuple[tuple[int, int], ...]

HEAD = 1 << 16  #: numbers of a sampler that are drawn at once; so many are given to the library at once, too
SEQUENTIAL = 2**64 - 1  #: the block of an order that is none
ID_BITS = 44  #: of a sample's number (LEAT_PLAN_ID_BITS); what stands above them is for the random numbers of a sample that comes again
ID_MASK = (1 << ID_BITS) - 1
FEW = 8  #: batches of a batch sampler that are drawn at once, at least
ENDLESS = 1 << 56  #: the length of what has not ended yet


def parse_ranges(ranges: Iterable[Sequence[int]]) -> Ranges:
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
        if not 0 <= first < end:
            raise ValueError(f"skip_ranges: [{first}, {end}) is no range of positions")
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

    def __init__(self, length: int, skip: Ranges = (), draw: Callable[[Ids], Ids] | None = None, *, seed: int = 0, epoch: int = 0,
                 block: int = SEQUENTIAL, fingerprint: str | None = None, mixture: Mapping[str, Any] | None = None) -> None:
        skip = tuple((first, min(end, length)) for first, end in skip if first < length)
        parts: tuple[list[int], ...] = ()
        if mixture is not None:
            parts, fingerprint = (mixture["weights"], mixture["lengths"]), "".join(mixture["fingerprints"])
        self._drawn = draw  # what stands at each number of the order; None: the number itself
        self._order = None if draw is not None and not length else _leat.Plan(
            length, seed, epoch, block, fingerprint, np.array(skip, np.uint64), np.array(parts, np.uint64))
        #: Samples of the epoch, those left out not counted.
        self.length = 0 if self._order is None else self._order.length
        #: An order with nothing left out: the library's iterator knows it.
        self.plain = draw is None and mixture is None and not skip

    @classmethod
    def of_ids(cls, ids: Sequence[int] | Ids) -> Plan:
        array = np.asarray(ids, np.uint64).reshape(-1)
        return Plan(len(array), (), array.__getitem__)

    @property
    def stand_ins(self) -> int:
        """Positions [0, stand_ins) stay available as stand-ins of bad samples, whatever was drawn since."""
        return self.length

    def reach(self, end: int) -> None:
        """Afterwards `length` is right if it is below `end`."""

    def ids(self, first: int, count: int) -> Ids:
        """The samples at `count` positions from `first`, which may run into the padding."""
        if self._order is None or not self.length:
            return np.empty(0, np.uint64)
        out = np.empty(count, np.uint64)
        self._order.fill(first, out)
        return out if self._drawn is None else self._drawn(out)

    def at(self, position: int) -> int:
        return int(self.ids(position, 1)[0])

    def find(self, runs: list[list[int]], step: int) -> tuple[int, int, int, int]:
        """(first position, samples, global batch, batch size or 0) of a step, counted from the start of the epoch through the runs of a state."""
        if self._order is None or step < 0:
            raise ValueError(f"step {step} of an epoch of {self.length} samples")
        return self._order.find(np.array(runs, np.uint64), step)


def left(numbers: Iterator[Any], skip: Ranges) -> Iterator[Any]:
    """Numbers as they are drawn, without those at positions in ranges.

    >>> list(left(iter(range(9)), ((0, 2), (3, 4), (8, 12))))
    [2, 4, 5, 6, 7]
    """
    def parts() -> Iterator[Iterator[Any]]:
        at = 0
        for first, end in skip:
            yield itertools.islice(numbers, first - at)
            collections.deque(itertools.islice(numbers, end - first), 0)
            at = end
        yield numbers

    return itertools.chain.from_iterable(parts()) if skip else numbers


_Draw = TypeVar("_Draw", bound=Callable[..., Any])


def _lasting(draw: _Draw) -> _Draw:
    """A method that draws from a sampler. After an error it fails for ever: a generator that raised would seem to have ended, and numbers drawn beside
    a wrong one are lost. Only a text is kept: an error would keep the frames that it came through, and these the pass and the loop's batches."""
    @functools.wraps(draw)
    def guarded(self: Any, *args: Any) -> Any:
        if self._failed:
            raise Error(f"{self._failed}; call iter() for another pass")
        try:
            return draw(self, *args)
        except Exception as error:
            self._failed = f"the sampler failed: {type(error).__name__}: {error}"
            raise
        except BaseException:
            self._failed = "drawing was interrupted"
            raise

    return cast(_Draw, guarded)


class Stream(Plan):
    """Numbers that a sampler yields as they are needed. `head`: the first ones; `keep`: how many of the last ones may be asked for again.

    >>> plan = Stream(np.arange(3, dtype=np.uint64), iter([3, 4, 5, 6]), lambda some: np.array(list(some), np.uint64))
    >>> plan.length == ENDLESS, plan.ids(3, 2).tolist(), plan.length, plan.ids(6, 3).tolist()
    (True, [3, 4], 7, [6, 0, 1])
    """

    def __init__(self, head: Ids, more: Iterator[Any], check: Callable[[Iterable[Any]], Ids], keep: int = HEAD) -> None:
        super().__init__(ENDLESS, (), np.asarray)
        self._head, self._more, self._check, self._keep = head, more, check, keep
        self._last, self._base = head, 0  # the numbers from place _base on
        self._failed = ""

    @property
    def stand_ins(self) -> int:
        return min(self.length, len(self._head))

    @_lasting
    def _draw(self) -> None:
        """Some more numbers."""
        drawn = self._check(itertools.islice(self._more, max(HEAD, self._keep)))
        if len(drawn) < max(HEAD, self._keep):
            super().__init__(self._base + len(self._last) + len(drawn), (), np.asarray)
        gone = max(0, len(self._last) - self._keep)
        self._last, self._base = np.concatenate([self._last[gone:], drawn]), self._base + gone

    def reach(self, end: int) -> None:
        while self.length == ENDLESS and end > self._base + len(self._last):
            self._draw()

    def ids(self, first: int, count: int) -> Ids:
        self.reach(first + count)
        places = super().ids(first, count)
        early = places < self._base
        out = np.empty(count, np.uint64)
        out[early] = self._head[places[early]]
        out[~early] = self._last[places[~early] - self._base]
        return out


def steps(length: int, start: int, global_batch: int, drop_last: bool) -> int:
    """Steps from position `start` on: the same on all ranks.

    >>> steps(10, 0, 4, True), steps(10, 0, 4, False), steps(10, 8, 4, True)
    (2, 3, 0)
    """
    left = max(0, length - start)
    return left // global_batch if drop_last else -(-left // global_batch)


def given_at_once(global_batch: int) -> int:
    """Steps whose samples are given to the library at once."""
    return max(FEW, HEAD // global_batch)


def take(batches: Iterator[Ids], least: int = 0) -> list[Ids]:
    """The next batches: `FEW` and more, until they have `HEAD` numbers; at least so many, if there are.

    >>> [len(take(iter([np.arange(size)] * 99))) for size in (1, HEAD // 10, HEAD)]
    [99, 11, 8]
    """
    taken: list[Ids] = []
    numbers = 0
    while numbers < HEAD or len(taken) < max(FEW, least):
        batch = next(batches, None)
        if batch is None:
            break
        taken.append(batch)
        numbers += max(1, len(batch))
    return taken


class Steps:
    """The steps of a pass over a plan, from position `first` on: the slices of one rank, all of `batch` samples."""

    def __init__(self, plan: Plan, first: int, batch: int, rank: int, world_size: int, drop_last: bool) -> None:
        self.plan, self._first, self._batch, self._rank, self._drop_last = plan, first, batch, rank, drop_last
        self._global = batch * world_size
        self.all_valid = np.ones(batch, bool)
        self.all_valid.flags.writeable = False
        left = plan.length - first - rank * batch - batch
        #: Steps that the library counts as we do, with no padding on this rank.
        self.whole = left // self._global + 1 if left >= 0 and plan.plain else 0

    @property
    def length(self) -> int:
        """Samples of all ranks in the epoch, or ENDLESS."""
        return self.plan.length

    def count(self, step: int) -> int:
        """How many there are; or more than `step`, if there are so many."""
        self.plan.reach(self._first + (step + 1) * self._global)
        return steps(self.plan.length, self._first, self._global, self._drop_last)

    def position(self, step: int) -> int:
        """Of this rank's first sample, among those of all ranks."""
        return self._first + step * self._global + self._rank * self._batch

    def ids(self, step: int) -> Ids:
        return self.plan.ids(self.position(step), self._batch)

    def valid(self, step: int) -> npt.NDArray[np.bool_]:
        """False where a sample is padding."""
        first = self.position(step)
        return self.all_valid if first + self._batch <= self.plan.length else np.arange(first, first + self._batch) < self.plan.length

    def size(self, step: int) -> int:
        """Samples of this rank."""
        return self._batch

    def end(self, step: int) -> int:
        """Samples of all ranks behind this step."""
        return min(self._first + (step + 1) * self._global, self.plan.length)


class Cut(Steps):
    """The same of a batch sampler's global batches, from the one behind `start` samples on. Of a sampler that has not ended, the slices of the last
    `keep` batches, and of those that were drawn since."""

    def __init__(self, batches: Sequence[Ids], more: Iterator[Ids], start: int, rank: int, world_size: int, most: int, keep: int,
                 ended: bool) -> None:
        super().__init__(Plan.of_ids(np.concatenate(batches) if batches else ()), start, most, rank, world_size, False)
        self.whole = 0
        self._more, self._world, self._most, self._keep = more, world_size, most, keep
        self.ended = ended  #: nothing is to be drawn any more
        self._failed = ""
        self._step = self._before = 0  # before those that are kept: steps, samples of all ranks
        self._kept: list[tuple[Ids, npt.NDArray[np.bool_], int]] = []  # ids, valid, samples of all ranks behind it
        self._add(batches)
        self._begin = self._step_behind(start)

    def _add(self, batches: Sequence[Ids]) -> None:
        end = self._kept[-1][2] if self._kept else self._before
        made: list[tuple[Ids, npt.NDArray[np.bool_], int]] = []
        for batch in batches:
            end += len(batch)
            made.append((*cut(batch, self._rank, self._world), end))
        self._kept += made

    @_lasting
    def _draw(self) -> bool:
        """Some more steps. False: there are none."""
        batches = take(self._more)
        if not batches:
            self.ended = True
            return False
        over = next((batch for batch in batches if -(-len(batch) // self._world) > self._most), None)
        if over is not None:
            raise ValueError(f"batch_sampler: a batch of {len(over)} samples, more than any of the first {self._step + len(self._kept)}: "
                             f"make room for it with batch_size={-(-len(over) // self._world)}")
        gone = max(0, len(self._kept) - self._keep)
        self._add(batches)
        if gone:
            self._step, self._before = self._step + gone, self._kept[gone - 1][2]
            del self._kept[:gone]
        return True

    def count(self, step: int) -> int:
        while step + self._begin >= self._step + len(self._kept) and self._draw():
            pass
        return self._step + len(self._kept) - self._begin

    def _step_behind(self, start: int) -> int:
        """The first step behind `start` samples of all ranks."""
        if not start:
            return 0
        while not self._kept or start > self._kept[-1][2]:
            if not self._draw():
                break
        found = bisect.bisect_left(self._kept, start, key=operator.itemgetter(2))
        if found == len(self._kept) or self._kept[found][2] != start:
            raise ValueError(f"this state stands behind {start} samples, where no batch of the batch_sampler ends: continue with the "
                             "batches that it was taken with")
        return self._step + found + 1

    def position(self, step: int) -> int:
        return self.end(step - 1) + self._rank * self.size(step)

    def ids(self, step: int) -> Ids:
        return self._kept[step + self._begin - self._step][0]

    def valid(self, step: int) -> npt.NDArray[np.bool_]:
        return self._kept[step + self._begin - self._step][1]

    def size(self, step: int) -> int:
        return len(self.ids(step))

    def end(self, step: int) -> int:
        k = step + self._begin - self._step
        return self._kept[k][2] if k >= 0 else self._before

    @property
    def length(self) -> int:
        return ENDLESS if not self.ended else self._kept[-1][2] if self._kept else self._before


def cut(batch: Ids, rank: int, world_size: int) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """(ids, valid) of one rank out of a batch sampler's global batch: it is cut in slices of equal length, the last ones padded from
    the batch's own start.

    >>> [part.tolist() for part in cut(np.array([1, 2, 3], np.uint64), 1, 2)]
    [[3, 1], [True, False]]
    """
    if not len(batch):
        raise ValueError("batch_sampler: a batch of no samples")
    each = -(-len(batch) // world_size)
    places = np.arange(rank * each, (rank + 1) * each)
    return batch[places % len(batch)], places < len(batch)
