# SPDX-License-Identifier: Apache-2.0
"""A sampler whose draws are a function of seed, epoch and position: for `leat.Loader`, over any number of ranks.

With replacement, position p takes a uniform number u(p) and finds it among the running sums of the weights: O(log n) a draw, in any order. Without,
sample i gets the key -log(u(i)) / w(i), and the smallest keys come first (Efraimidis and Spirakis, 2006): one sort an epoch, O(log n) a draw.

Invariant: the same bits on every processor. All of it is IEEE additions, multiplications and divisions; the logarithm of the C library is not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._base.arguments import seed_of, whole
from .._base.errors import Stale
from .generators import mix

_M64 = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15  # of SplitMix64
_CHUNK = 1 << 16

Floats = npt.NDArray[np.float64]


def hashes(key: int, places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """64 bits for each place: SplitMix64, of which each place can be asked for by itself."""
    x = np.uint64(key) + np.uint64(_STEP) * (places.astype(np.uint64) + np.uint64(1))
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def _uniform(key: int, places: npt.NDArray[np.int64]) -> Floats:
    """In (0, 1], one for each place."""
    made: Floats = (hashes(key, places) >> np.uint64(11)).astype(np.float64)
    return (made + 1.0) * 2.0**-53


def _log(x: Floats) -> Floats:
    """The natural logarithm, to about 1e-15.

    >>> x = np.array([1.0, 0.5, 1e-16]); bool(np.allclose(_log(x), np.log(x), rtol=1e-14, atol=0))
    True
    """
    part, power = np.frexp(x)
    small = part < 0.7071067811865476
    part, power = np.where(small, part * 2, part), power - small
    s = (part - 1) / (part + 1)
    square, total = s * s, np.zeros_like(s)
    for k in range(23, -1, -2):
        total = total * square + 1 / k
    made: Floats = 2 * s * total + power * 0.6931471805599453
    return made


class WeightedSampler:
    """Draws samples in proportion to their weights, for `leat.Loader(ws, sampler=...)`: all ranks give the same one, and share what it draws. A
    state continues exactly, also on another number of ranks.

    weights      a number of at least 0 for each sample of the set
    num_samples  of an epoch; as many as there are weights. Without replacement at most as many as have a weight above 0, which is the default
    replacement  True: a sample may come more than once in an epoch. False: at most once, those of large weight earlier
    seed         of the draws, with the epoch

    >>> sampler = leat.WeightedSampler([1, 0, 3, 0, 0, 1], 8, seed=1)
    >>> drawn = [i for batch in leat.Loader(ws, 2, sampler=sampler) for i in batch.ids.tolist()]
    >>> drawn == list(sampler), set(drawn) <= {0, 2, 5}
    (True, True)
    """

    def __init__(self, weights: Sequence[float] | npt.NDArray[Any], num_samples: int | None = None, *, replacement: bool = True, seed: int = 0) -> None:
        table = np.array(weights, np.float64)
        with np.errstate(over="ignore"):
            fits = table.ndim == 1 and bool((table >= 0).all()) and 0 < float(table.sum()) < np.inf
        if not fits:
            raise ValueError("weights: one number of at least 0 for each sample, and one above 0 at least")
        able = np.flatnonzero(table)
        if num_samples is None:
            num_samples = len(table) if replacement else len(able)
        self.num_samples, self.replacement = whole("num_samples", num_samples, 1), replacement
        if not replacement and self.num_samples > len(able):
            raise ValueError(f"num_samples={num_samples} without replacement: {len(able)} samples have a weight above 0")
        self._seed, self._epoch, self._count = seed_of(seed), 0, len(table)
        self._digest = hashlib.md5(table.tobytes(), usedforsecurity=False).hexdigest()
        self._able = able
        self._weights = table[able]
        self._sums = np.cumsum(self._weights) if replacement else None
        self._sorted: tuple[int, int, npt.NDArray[np.int64]] | None = None  # (seed, epoch, order) without replacement

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` draws this epoch. A loader calls it."""
        self._epoch = whole("epoch", epoch, 0)

    def __iter__(self) -> Iterator[int]:
        return self._draws(self._epoch)

    def _draws(self, epoch: int) -> Iterator[int]:
        for first in range(0, self.num_samples, _CHUNK):
            yield from self._at(np.arange(first, min(first + _CHUNK, self.num_samples)), epoch).tolist()

    def _at(self, places: npt.NDArray[np.int64], epoch: int) -> npt.NDArray[np.uint64]:
        """The samples drawn at these positions of an epoch."""
        key = mix(mix(self._seed) + epoch & _M64)
        if self._sums is not None:
            found = np.searchsorted(self._sums, (1.0 - _uniform(key, places)) * self._sums[-1], side="right")
            drawn: npt.NDArray[np.uint64] = self._able[np.minimum(found, len(self._able) - 1)].astype(np.uint64)
            return drawn
        if self._sorted is None or self._sorted[:2] != (self._seed, epoch):
            keys = -_log(_uniform(key, self._able)) / self._weights
            first = np.argpartition(keys, self.num_samples - 1)[: self.num_samples]
            self._sorted = self._seed, epoch, self._able[first[np.lexsort((first, keys[first]))]]
        order: npt.NDArray[np.uint64] = self._sorted[2][places].astype(np.uint64)
        return order

    def _check(self, samples: int) -> None:
        if samples != self._count:
            raise ValueError(f"sampler: {self._count} weights for a set of {samples} samples")

    def state_dict(self) -> dict[str, Any]:
        """The parameters of the draws besides the epoch. A loader puts them into its own state."""
        return {"seed": self._seed, "num_samples": self.num_samples, "replacement": self.replacement, "weights": self._digest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes the seed. `leat.Stale`: the state is of other weights."""
        mine = self.state_dict()
        if not isinstance(state, Mapping) or state.keys() != mine.keys():
            raise ValueError("this is not the state of a leat.WeightedSampler")
        other = [name for name in ("num_samples", "replacement", "weights") if state[name] != mine[name]]
        if other:
            raise Stale(f"this state is of a sampler with other {', '.join(other)}", code="stale")
        self._seed = seed_of(state["seed"])
