# SPDX-License-Identifier: Apache-2.0
"""Output slots for a GPU: pinned host memory, which workers write to, and as much memory of the device, which it is copied to.

    written by workers ─ send: copies on a stream of ours ─▶ deliver: done ─▶ the user's ─ last array goes ─▶ draining ─▶ free

Happy path: a prepared batch is sent while the loop uses earlier ones. It is handed out when its copy is done, so that any
stream may read it. When the last array over a slot goes, an event is put on the consumer's stream, and frees the slot when it comes.

Failure modes: a copy that fails is tried once more in the batch's turn, and raised then. When all slots are draining the thread that
iterates waits for the first, no longer than its timeout. An event that cannot be recorded is tried again; a device that is lost
holds nothing back. A child of fork() touches nothing here.
Invariants: neither half of a slot is written or freed while a copy or a consumer's stream may use it: memory that is still used when
the slots go is parked, and freed when another loader comes or goes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from .. import _leat
from .._base.errors import Error, TimedOut, Unsupported, _make
from .._decode.decode import Kind, Layout
from .._sets.batch import Array
from .._sets.cuda import CudaArray
from .slots import Lease, Slots

if TYPE_CHECKING:
    from .. import _gpu

_log = logging.getLogger("leat")

HOST, PINNED, CUDA = 0, 1, 2  # enum leat_memory
_LOOK_NS = 50_000_000  # between two looks at signals

_parked: list[tuple[int, _gpu.Buffer]] = []  # with the number of forks when it was made


@contextlib.contextmanager
def asked_for(device: object, pin_memory: bool) -> Iterator[None]:
    """The error for an unavailable device or copy, in terms of the caller's arguments."""
    try:
        yield
    except Unsupported as error:
        if pin_memory or not str(device).startswith("cpu"):
            raise Unsupported(f"device={str(device)!r}{', pin_memory=True' if pin_memory else ''}: {error}. device='cpu' without pin_memory needs no GPU",
                              code=error.code) from None
        raise


class Delivery:
    """Where batches are to be: (enum leat_memory, ordinal) of `parse_device`, the device opened, and what was delivered."""

    def __init__(self, memory: int, ordinal: int) -> None:
        self.memory, self.ordinal = memory, ordinal
        self.bytes = 0
        self.copy_s = 0.0  # that the loop waited for copies
        self.lag = False  # the loop waited for a slot that its GPU still used
        #: Fields that stay in host memory though batches go to a GPU.
        self.on_host: tuple[str, ...] = ()
        self._generation = _leat.generation()
        self.device = open_device(ordinal) if memory != HOST else None

    @property
    def kind(self) -> str:
        return ("host", "pinned", "bounce")[self.memory]

    def lagged(self) -> bool:
        """Whether the GPU was behind since the last call."""
        lag, self.lag = self.lag, False
        return lag

    def slots(self, layout: Layout, batch_size: int, prefetch: int, *, shared: bool) -> Slots:
        if self.device is None:
            return Slots(layout, batch_size, prefetch + spare(HOST), shared=shared)
        if self._generation != _leat.generation():  # in the child of a fork
            self.device, self._generation = open_device(self.ordinal), _leat.generation()
        if self.memory == CUDA:
            self.on_host = tuple(name for name, place in layout.items() if place is None or not _goes(place[0]))
            if self.on_host:
                _log.warning("fields %s stay in host memory: a GPU takes numbers of one shape", ", ".join(map(repr, self.on_host)))
        return DeviceSlots(layout, batch_size, prefetch + spare(self.memory), self, shared=shared)


def spare(memory: int) -> int:
    """Slots beside those that are read ahead: the loop's batch, the next one, and one that a GPU which lags behind the loop still uses."""
    return 2 if memory == HOST else 3


def open_device(ordinal: int) -> _gpu.Device:
    from .. import _gpu

    _gpu._set_error_maker(_make)
    return _gpu.Device(ordinal)


def _goes(dtype: Kind) -> bool:
    """Whether arrays of this dtype can be on a GPU."""
    return np.dtype(dtype).kind in "biufc" and np.dtype(dtype).isnative


class DeviceLease(Lease):
    """A slot, both of its halves."""

    _slots: DeviceSlots

    def __init__(self, slots: DeviceSlots, number: int) -> None:
        super().__init__(slots, number)
        self.buffer = slots.buffers[number]
        self.sent = self.handed_out = False
        self.stream: int | None = None

    def value(self, name: str, n: int) -> Array | CudaArray:
        if name not in self._slots.on_device:
            return self.array(name, n)
        offset, dtype, shape = self._slots.places[name]
        kind = np.dtype(dtype)
        part = DevicePart(self, self.buffer.address + offset, n * math.prod(shape) * kind.itemsize)
        return CudaArray(part, (n, *shape), kind, self._slots.delivery.ordinal)

    def send(self, n: int) -> None:
        if self.sent:
            return
        spans = tuple((offset, n * size) for offset, size in self._slots.on_device.values())
        self.buffer.send(spans)
        self.sent = True
        self._slots.delivery.bytes += sum(size for _, size in spans)

    def deliver(self, n: int, timeout: float | None) -> None:
        slots = self._slots
        if not slots.sends:
            slots.delivery.bytes += n * slots.sample_bytes
        else:
            self.send(n)
            begin = time.monotonic()
            end = None if timeout is None else begin + timeout
            while self.buffer.wait(_LOOK_NS if end is None else int(1e9 * max(0.0, min(0.05, end - time.monotonic())))):
                if end is not None and time.monotonic() >= end:
                    raise TimedOut(f"no batch within {timeout} s: the copy to CUDA device {slots.delivery.ordinal} is not done")
            slots.delivery.copy_s += time.monotonic() - begin
        self.handed_out = True

    def record_stream(self, stream: int) -> None:
        if self.stream not in (None, stream):
            raise ValueError("another stream was recorded for this batch: let one wait for the other")
        self.stream = stream


class DevicePart:
    """Bytes of a slot's half on the device, which is not written as long as this is there."""

    __slots__ = ("lease", "address", "nbytes")

    def __init__(self, lease: DeviceLease, address: int, nbytes: int) -> None:
        self.lease, self.address, self.nbytes = lease, address, nbytes


class DeviceSlots(Slots):
    """`Slots` in pinned memory, each with memory of a GPU beside it (CUDA) or without (PINNED)."""

    def __init__(self, layout: Layout, batch_size: int, count: int, delivery: Delivery, *, shared: bool) -> None:
        from .. import _gpu

        self.buffers: list[_gpu.Buffer] = []
        self.draining: list[int] = []
        self._generation = _leat.generation()
        super().__init__(layout, batch_size, count, shared=shared, pinned=True)
        sweep()
        self.delivery = delivery
        self.sends = delivery.memory == CUDA
        self.on_device: dict[str, tuple[int, int]] = {}  # name: (offset, bytes of a sample)
        self.sample_bytes = 0
        for name, (offset, dtype, shape) in self.places.items():
            size = math.prod(shape) * np.dtype(dtype).itemsize
            self.sample_bytes += size
            if self.sends and _goes(dtype):
                self.on_device[name] = (offset, size)
        assert delivery.device is not None
        for number in range(count):
            self.buffers.append(_gpu.Buffer(delivery.device, self.address + self.start(number), self.slot_bytes, self.sends,
                                            self._whole))

    def take(self) -> Lease | None:
        self._look()
        return DeviceLease(self, self.free.pop()) if self.free else None

    def give(self, lease: Lease) -> None:
        assert isinstance(lease, DeviceLease)
        try:
            if self._generation != _leat.generation():
                return
            if lease.handed_out:
                lease.buffer.use(lease.stream or 0)
            self.draining.append(lease.number)
        except AttributeError:  # at exit, when half of the interpreter is gone
            pass

    def _look(self) -> Error | None:
        """Frees slots that nothing uses any more. Returns the error of a slot whose state is unknown, if any."""
        wrong = None
        for number in self.draining[:]:
            try:
                if self.buffers[number].idle():
                    self.draining.remove(number)
                    self.free.append(number)
            except Error as error:
                wrong = error
        return wrong

    def wait_free(self, timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while self.draining or self.free:
            wrong = self._look()
            if self.free:
                return True
            self.delivery.lag = True
            if wrong is not None:
                raise wrong
            if end is not None and time.monotonic() >= end:
                raise TimedOut(f"no slot was free within {timeout} s: work on the GPU still uses all that were given back")
            time.sleep(50e-6)
        return False

    def __del__(self) -> None:
        try:
            if self._generation == _leat.generation():
                _parked.extend((self._generation, buffer) for buffer in self.buffers)
                self.buffers = []
                sweep()
        except (AttributeError, TypeError):  # at exit, when half of the interpreter is gone
            pass


def sweep() -> None:
    """Frees parked memory that nothing uses any more."""
    for _ in range(len(_parked)):
        try:
            entry = _parked.pop(0)
        except IndexError:  # another thread, or the collector, sweeps as well
            return
        generation, buffer = entry
        if generation != _leat.generation():
            continue  # of the parent of this child
        try:
            idle = buffer.idle()
        except Error:
            idle = False
        if idle:
            buffer.close()
        else:
            _parked.append(entry)
