# SPDX-License-Identifier: Apache-2.0
"""The generators that a process shares: those of `random`, of NumPy's old interface, and of torch where it is imported. A transform that draws
from them gets, for each sample, numbers that follow from (seed, epoch, index). See docs/decisions/0134-shared-generators-are-seeded.md.

Invariant: between `States()` and `restore()` no thread but the one that prepares samples draws. The caller sees to that. A thread that its loop
no longer waits for (`leave`) neither seeds nor restores them: they are the loop's again.
"""

from __future__ import annotations

import random
import sys
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

_M64 = 2**64 - 1
_TAG = 0x6C656174  # "leat"


def mix(x: int) -> int:
    """The output function of SplitMix64 (Steele, Lea and Flood, 2014)."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _M64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _M64
    return x ^ x >> 31


def _torch() -> Any:
    return getattr(sys.modules.get("torch"), "default_generator", None)


def _untouched(torch: Any) -> Any:
    """The state that this generator had when it was seeded last, as the import of torch does too, by chance."""
    return type(torch)().manual_seed(torch.initial_seed()).get_state()


_left: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def leave(threads: Iterable[threading.Thread]) -> None:
    """The loop no longer waits for these."""
    _left.update(threads)


def seed_for(seed: int, epoch: int, index: int) -> None:
    """Seeds all of them for one sample in one epoch.

    >>> before = States()
    >>> seed_for(1, 2, 3); a = random.random(), float(np.random.rand())
    >>> seed_for(1, 2, 4); b = random.random(), float(np.random.rand())
    >>> seed_for(1, 2, 3); a == (random.random(), float(np.random.rand())), a[0] == b[0]
    (True, False)
    >>> before.restore()
    """
    if threading.current_thread() in _left:
        raise TimeoutError(f"sample {index} is too late: the loop no longer waits for it")
    key = mix(mix(mix(seed + _TAG & _M64) + epoch & _M64) + index & _M64)
    random.seed(key)
    try:
        np.random.seed(mix(key + 1 & _M64) & 0xFFFFFFFF)
    except TypeError:  # the program has put a bit generator of its own there, which cannot be seeded again
        pass
    torch = _torch()
    if torch is not None:
        torch.manual_seed(mix(key + 2 & _M64))


class States:
    """Where all of them are."""

    def __init__(self) -> None:
        self._random = random.getstate()
        self._numpy = np.random.get_state(legacy=False)
        torch = _torch()
        self._torch = None if torch is None else torch.get_state()

    def restore(self) -> None:
        if threading.current_thread() in _left:
            return
        random.setstate(self._random)
        np.random.set_state(self._numpy)
        torch = _torch()
        if torch is not None:
            torch.set_state(_untouched(torch) if self._torch is None else self._torch)  # None: it was imported since

    def differ(self, other: States) -> list[str]:
        """Names of the generators that are not where they were. `other` is of now: torch may have been imported since."""
        generator = _torch()
        torch = [None if generator is None else (_untouched(generator) if one._torch is None else one._torch).numpy().tobytes() for one in (self, other)]
        return [name for name, same in (("random", self._random == other._random), ("np.random", _same(self._numpy, other._numpy)),
                                        ("torch", torch[0] == torch[1])) if not same]


def _same(a: Any, b: Any) -> bool:
    """Of states of NumPy's: nested dicts of numbers and arrays."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    return bool(np.array_equal(a, b))
