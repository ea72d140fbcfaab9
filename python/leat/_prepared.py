# SPDX-License-Identifier: Apache-2.0
"""What a `leat.Loader` gives: batches that lie in the ring, batches that were prepared, and ways to put values together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from ._arguments import near, refuse_iteration, refuse_pickling
from ._batch import Array, Batch, Ragged
from ._cuda import CudaArray, stream_address
from ._slots import Lease

if TYPE_CHECKING:
    from ._set import WorkingSet


class LoadedBatch(Batch):
    """A `Batch` of a loader: also knows which of its samples are padding."""

    __slots__ = ()

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """False where a sample is padding: the last step of an epoch with drop_last=False is filled up."""
        valid: npt.NDArray[np.bool_] = self._valid
        return valid

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        values = [self[name] for name in self.fields]
        return sum((value.values if isinstance(value, Ragged) else value).nbytes for value in values)

    def torch(self) -> dict[str, Any]:
        """The arrays as torch tensors over the same memory; what has no array is left as it is."""
        return _tensors(self)


class PreparedBatch:
    """A batch of a loader that decodes or transforms: arrays over an output slot where values have one shape, `Ragged` where
    they are arrays of several, lists of whatever else they are.

    The slot is written again when the batch was released or collected and no array over it is left.
    """

    __slots__ = ("_values", "_lease", "_set", "_n", "_bfloat16", "ids", "valid", "position", "__weakref__")

    def __init__(self, ws: WorkingSet, values: dict[str, Any], lease: Lease, ids: Array, valid: npt.NDArray[np.bool_],
                 position: int, bfloat16: frozenset[str] = frozenset()) -> None:
        self._set, self._values = ws, values
        self._bfloat16 = bfloat16  # fields of uint16 that mean this, which NumPy does not have
        self._lease: Lease | None = lease
        self._n = len(ids)
        self.ids, self.valid, self.position = ids, valid, position

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> NoReturn:
        refuse_iteration(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> Any:
        if self._lease is None:
            raise ValueError("the batch was released")
        try:
            return self._values[name]
        except KeyError:
            raise KeyError(f"no field {name!r} in this batch; {near(name, self._values)}") from None

    def __setitem__(self, name: str, values: Any) -> None:
        target = self[name]
        if isinstance(target, CudaArray):
            raise TypeError(f"field {name!r} is on a GPU: write to it there")
        if values is not target:
            target[...] = values

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(self._values)

    @property
    def keys(self) -> list[str]:
        """Keys of the samples."""
        return [self._set.key(int(i)) for i in self.ids]

    @property
    def released(self) -> bool:
        return self._lease is None

    def release(self) -> None:
        """Gives the slot back, as soon as no array over it is left."""
        self._values, self._lease = {}, None

    def torch(self) -> dict[str, Any]:
        """The arrays as torch tensors over the same memory, where it is; what has no array is left as it is."""
        return _tensors(self)

    def record_stream(self, stream: object) -> None:
        """For batches in pinned or GPU memory: the slot is written again only after what is on `stream` (a stream of torch or
        CuPy, or its address) when the batch and the last array over it go. Without it that is the default stream."""
        if self._lease is None:
            raise ValueError("the batch was released")
        self._lease.record_stream(stream_address(stream))

    def __reduce__(self) -> NoReturn:
        refuse_pickling("a batch")

    def __enter__(self) -> PreparedBatch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<leat.PreparedBatch of {self._n} samples, fields {', '.join(self._values)}{', released' if self.released else ''}>"


def _tensors(batch: Any) -> dict[str, Any]:
    import torch

    made = {}
    bfloat16 = getattr(batch, "_bfloat16", ())
    for name in batch.fields:
        value = batch[name]
        try:
            if isinstance(value, CudaArray):
                value = torch.utils.dlpack.from_dlpack(value)
                if name in bfloat16:
                    value = value.view(torch.bfloat16)
            elif name in bfloat16:
                value = torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
            elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
                value = torch.from_numpy(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:  # types and byte orders that this torch does not have
            raise TypeError(f"field {name!r} of dtype {value.dtype} is no tensor of torch {torch.__version__}: {str(error).rstrip('.')}. Cast it in "
                            f"the loader's transform, or take batch[{name!r}]") from error
        made[name] = value
    return made


class Shapes(Ragged):
    """Arrays of several shapes: `values` flat, `offsets`, and the shape of each in `shapes`."""

    __slots__ = ("shapes",)

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.shapes = [array.shape for array in arrays]
        offsets = np.zeros(len(arrays) + 1, np.uint64)
        np.cumsum([array.size for array in arrays], out=offsets[1:])
        super().__init__(np.concatenate([array.reshape(-1) for array in arrays]), offsets)

    def __getitem__(self, index: Any) -> Any:
        value = super().__getitem__(index)
        return value.reshape(self.shapes[index]) if isinstance(value, np.ndarray) else value


def pad(values: Sequence[Array] | Ragged, value: Any = 0) -> Array:
    """One array out of values of several lengths or shapes, filled up with `value` at the ends; of the dtype that holds all of them.

    >>> leat.pad([np.array([1, 2]), np.array([3])]).tolist()
    [[1, 2], [3, 0]]
    >>> leat.pad([np.array([1]), np.array([0.5, 2])]).tolist()
    [[1.0, 0.0], [0.5, 2.0]]
    """
    arrays = [np.asarray(v) for v in values]
    if not arrays:
        return np.empty(0)
    if len({a.ndim for a in arrays}) > 1:
        raise ValueError(f"pad: values of {', '.join(map(str, sorted({a.ndim for a in arrays})))} dimensions: they are filled up at the ends, "
                         "and want as many dimensions each")
    shape = [max(sizes) for sizes in zip(*(a.shape for a in arrays))]
    out = np.full((len(arrays), *shape), value, np.result_type(*{a.dtype for a in arrays}))
    for i, a in enumerate(arrays):
        out[(i, *map(slice, a.shape))] = a
    return out


def _is_array(value: Any) -> bool:
    """Tensors of types that NumPy lacks, of a GPU, or with gradients are none."""
    try:
        return isinstance(value, (int, float)) or (hasattr(value, "__array__") and np.asarray(value) is not None)
    except (RuntimeError, TypeError):
        return False


def pad_collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A collate_fn: stacks arrays (and tensors, as arrays), padded at the ends to the largest shape of the batch; lists of whatever else there is.

    >>> pad_collate([{"x": np.array([1, 2]), "t": "a"}, {"x": np.array([3]), "t": "b"}])["x"].tolist()
    [[1, 2], [3, 0]]
    """
    out: dict[str, Any] = {}
    for name in samples[0]:
        column = [sample[name] for sample in samples]
        arrays = all(_is_array(v) for v in column)
        out[name] = pad(column) if arrays else column
    return out
