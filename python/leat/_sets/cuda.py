# SPDX-License-Identifier: Apache-2.0
"""Arrays in the memory of a GPU: descriptions of a slot that PyTorch, CuPy, Numba and JAX take without a copy."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from .. import _leat
from .fields import dlpack_code

_CUDA = 2  # kDLCUDA


class DeviceMemory(Protocol):
    """Bytes of a device, there as long as this object is."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


class CudaArray:
    """One field of a batch on a CUDA device: `torch.from_dlpack(array)`, `cupy.asarray(array)`, `jax.dlpack.from_dlpack(array)`.

    The slot stays while the array, or what was made of it, exists. The bytes are there already: no stream need wait for
    them. Declare work that another stream than the default one may still do when the last array goes:
    `batch.record_stream(stream)`.
    """

    __slots__ = ("_memory", "_rows", "shape", "dtype", "device", "__weakref__")

    def __init__(self, memory: DeviceMemory, shape: tuple[int, ...], dtype: np.dtype[Any], device: int, rows: int = 0) -> None:
        self._memory = memory
        self._rows = rows  # of dimension 1 as it lies in memory, of which the shape has the first (windows); 0: it has all
        self.shape = shape
        self.dtype = dtype
        self.device = device

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 (https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html); stream None: nothing to wait for."""
        address = self._memory.address if self.nbytes else 0
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (address, False), "version": 3,
                "strides": self._strides() if self._rows else None, "stream": None}

    def _strides(self) -> tuple[int, ...]:
        lies = (self.shape[0], self._rows, *self.shape[2:])
        return tuple(math.prod(lies[d + 1 :]) * self.dtype.itemsize for d in range(len(lies)))

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CUDA, self.device)

    def __dlpack__(self, *, stream: object = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object:
        """A DLPack capsule. `stream` is the consumer's: the bytes are there before any of them, so it need not wait."""
        if stream is not None and (not isinstance(stream, int) or stream < -1 or stream == 0):
            raise BufferError(f"stream={stream!r}: None, -1, 1, 2 or a CUDA stream's address")
        if dl_device is not None and tuple(dl_device) != (_CUDA, self.device):
            raise BufferError(f"this memory is of CUDA device {self.device}: copy it to device {tuple(dl_device)}")
        if copy:
            raise BufferError("a copy on the device is the consumer's to make")
        code, bits = dlpack_code(self.dtype)
        versioned = max_version is not None and tuple(max_version) >= (1, 0)
        return _leat.dlpack_cuda(self._memory, self._memory.address, self.device, self.shape, code, bits, versioned, self._rows)

    def __repr__(self) -> str:
        return f"<leat.CudaArray of shape {self.shape}, dtype {self.dtype.str!r}, CUDA device {self.device}>"


def stream_address(stream: Any) -> int:
    """Of a stream of torch (`cuda_stream`) or CuPy (`ptr`), or an address as it is."""
    for name in ("cuda_stream", "ptr"):
        stream = getattr(stream, name, stream)
    return int(stream)
