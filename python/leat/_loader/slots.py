# SPDX-License-Identifier: Apache-2.0
"""Output slots: where prepared batches are written, by threads or by processes that map the same memory.

Invariant: a slot is free again when no array over it is left. Nothing here has a name in the system: shared slots are a memfd.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

from .._decode.decode import Kind, Layout
from .._sets.batch import Array
from .._sets.cuda import CudaArray

_PAGE = mmap.PAGESIZE  # a device pins each slot by itself, in whole pages; the first page is the head


class Lease:
    """Keeps a slot from being written: arrays over it have this as their base."""

    def __init__(self, slots: Slots, number: int) -> None:
        self._slots, self.number = slots, number

    def array(self, name: str, n: int) -> Array:
        """The values in host memory."""
        offset, dtype, shape = self._slots.places[name]
        array = np.asarray(_Part(self, offset, np.dtype(dtype).str, (n, *shape)))
        return array if isinstance(dtype, str) else array.view(dtype)

    def value(self, name: str, n: int) -> Array | CudaArray:
        """The values on the user's device."""
        return self.array(name, n)

    def send(self, n: int) -> None:
        """Starts the copy of the written values to the user's device."""

    def deliver(self, n: int, timeout: float | None) -> None:
        """Waits until the copy is done; the slot is then the user's."""

    def record_stream(self, stream: int) -> None:
        raise ValueError("a batch in host memory has no CUDA stream: device='cuda', or pin_memory=True")

    def __del__(self) -> None:
        self._slots.give(self)


class _Part:
    __slots__ = ("_lease", "__array_interface__")

    def __init__(self, lease: Lease, offset: int, dtype: str, shape: tuple[int, ...]) -> None:
        self._lease = lease
        slots = lease._slots
        address = slots.address + slots.start(lease.number) + offset
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype, "data": (address, False)}


class Slots:
    """Output slots in one memory: of this process, or a memfd that workers map. A slot begins with the ids of its batch."""

    #: True: prepared batches are copied on, ahead of the loop (device.py).
    sends = False

    def __init__(self, layout: Layout, batch_size: int, count: int, *, shared: bool, fd: int = -1,
                 pinned: bool = False) -> None:
        self.layout, self.batch_size, self.count = layout, batch_size, count
        at = 8 * batch_size
        self.places: dict[str, tuple[int, Kind, tuple[int, ...]]] = {}
        for name, place in layout.items():
            if place is not None:
                at = (at + 63) // 64 * 64
                self.places[name] = (at, *place)
                at += batch_size * int(np.prod(place[1], dtype=np.int64)) * np.dtype(place[0]).itemsize
        self.slot_bytes = (at + _PAGE - 1) // _PAGE * _PAGE
        size = _PAGE + count * self.slot_bytes
        self.fd = fd
        if shared and fd < 0:
            self.fd = os.memfd_create("leat-loader", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, size)
        # Pages that a device reads must not be replaced when a child of fork() makes them copy-on-write: pinned ones are shared.
        kind = mmap.MAP_SHARED if pinned else mmap.MAP_PRIVATE
        self.memory = mmap.mmap(self.fd, size) if self.fd >= 0 else mmap.mmap(-1, size, kind | mmap.MAP_ANONYMOUS)
        self._whole = np.frombuffer(self.memory, np.uint8)
        self.address = self._whole.ctypes.data
        #: Sample that each worker is at, plus one; 0: none.
        self.current = self._whole[:_PAGE].view(np.uint64)
        self.free = list(range(count))

    def start(self, slot: int) -> int:
        return _PAGE + slot * self.slot_bytes

    def ids(self, slot: int) -> Array:
        at = self.start(slot)
        return self._whole[at : at + 8 * self.batch_size].view(np.uint64)

    def outs(self, slot: int) -> dict[str, Array]:
        """Arrays to write to. They are no lease: the caller must own the slot."""
        found = {}
        for name, (offset, dtype, shape) in self.places.items():
            at = self.start(slot) + offset
            count = self.batch_size * int(np.prod(shape, dtype=np.int64))
            found[name] = self._whole[at : at + count * np.dtype(dtype).itemsize].view(dtype).reshape(self.batch_size, *shape)
        return found

    def take(self) -> Lease | None:
        return Lease(self, self.free.pop()) if self.free else None

    def give(self, lease: Lease) -> None:
        self.free.append(lease.number)

    def wait_free(self, timeout: float | None) -> bool:
        """Waits for a slot that is released but not free yet. False: there is none."""
        return False

    def close_fd(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
