# SPDX-License-Identifier: Apache-2.0
"""Batches of windows over recordings without a loader: `ws.read_batch(ids)` and `leat.batches(ws, ...)`.

They take the place of a ring and an iterator, but a batch has memory of its own: windows are copied out of recordings, in the requesting
thread. Nothing is read ahead, and any number of batches may be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _leat
from .._base.errors import Unsupported
from .batch import SHUFFLE_AUTO, Array, OwnMemory, Ragged, Value
from .fields import Field

if TYPE_CHECKING:
    from .recordings import RecordingWindows

_HOST = 0  # LEAT_MEMORY_HOST


class WindowRing:
    def __init__(self, ws: RecordingWindows, batch_size: int, slots: int, numbers: Sequence[int] | None, flags: int, transport: str | None,
                 memory: int, device: int) -> None:
        if memory != _HOST:
            raise Unsupported("windows over recordings are put together in host memory: leat.Loader(device=...) copies them to a GPU", code="unsupported")
        if transport is not None:
            raise Unsupported(f"transport={transport!r}: recordings come as their set brings them; leave it out, or set LEAT_TRANSPORT", code="unsupported")
        self._ws, self._batch_size = ws, batch_size
        self._fields = [ws.fields[k] for k in (range(len(ws.fields)) if numbers is None else numbers)]

    def read_batch(self, ids: Any, timeout_ns: int, length: int) -> OwnMemory:
        return self.read([self._ws._at(i) for i in (ids.tolist() if isinstance(ids, np.ndarray) else ids)], 0)

    def read(self, ids: Sequence[int], position: int) -> OwnMemory:
        columns = [self._column(ids, field) for field in self._fields]
        return OwnMemory(np.array(ids, np.uint64), position, [values for values, _ in columns], [present for _, present in columns])

    def _column(self, ids: Sequence[int], field: Field) -> tuple[Value, Array]:
        """The values of a field, and which are there."""
        ws = self._ws
        if not field.ragged:
            out = np.zeros((len(ids), *field.shape), field.dtype)
            there = np.ones(len(ids), np.bool_)
            for place, i in enumerate(ids):
                value = ws._read(i, field)
                there[place] = value is not None
                if value is not None:
                    out[place] = value
            return out, there
        read = [ws._read(i, field) for i in ids]
        parts = [np.asarray(value if isinstance(value, np.ndarray) else np.frombuffer(value or b"", np.uint8)) for value in read]  # type: ignore[arg-type]
        offsets = np.zeros(len(ids) + 1, np.uint64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return Ragged(np.concatenate(parts), offsets), np.array([value is not None for value in read], np.bool_)

    def iterate(self, seed: int, epoch: int, block: int, flags: int, rank: int, world: int, first: int, keep_tail: int, ahead: int) -> WindowIter:
        return WindowIter(self, self._ws, seed, epoch, block, flags, (rank, world), first, bool(keep_tail))

    def stat(self) -> dict[str, Any]:
        return {"delivery": "host", "device": 0, **dict.fromkeys(("slots", "slot_bytes", "pinned_bytes", "device_bytes", "bounced_bytes", "copies", "lags", "direct_bytes"), 0)}

    def close(self) -> None:
        pass


class WindowIter:
    """The steps of an epoch, as the library's iterator cuts them."""

    def __init__(self, ring: WindowRing, ws: RecordingWindows, seed: int, epoch: int, block: int, flags: int, ranks: tuple[int, int], first: int,
                 keep_tail: bool) -> None:
        n, batch, (rank, world) = len(ws), ring._batch_size, ranks
        if not 0 <= first <= n:
            raise ValueError(f"start={first} of an epoch of {n}")
        if flags & SHUFFLE_AUTO:
            block = ws._auto_block()
        self._ring, self._block, self._at = ring, block, 0
        self._plan = _leat.Plan(n, seed, epoch, block, ws.fingerprint, b"", b"", first, batch, rank, world, int(keep_tail)) if n else None
        self._steps = self._plan.steps if self._plan else 0

    def info(self) -> tuple[int, int]:
        return self._steps, self._block

    def next(self, timeout_ns: int) -> OwnMemory | None:
        if self._plan is None or self._at >= self._steps:
            return None
        first, count = self._plan.step(self._at)
        ids = np.empty(count, np.uint64)
        self._plan.fill(first, ids)
        made = self._ring.read(ids.tolist(), first)
        self._at += 1  # what could not be read is tried again
        return made

    def close(self) -> None:
        self._at = self._steps
