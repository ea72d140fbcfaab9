# SPDX-License-Identifier: Apache-2.0
"""The batches of a `leat.Loader`: those in the ring, prepared ones, and functions that put values together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._base.arguments import near
from .._sets.batch import Array, Batch, Named, Ragged
from .._sets.cuda import CudaArray, stream_address
from .nested import as_bfloat16, build, each, leaves, tree_with_leaves
from .slots import Lease

if TYPE_CHECKING:
    from .._sets.set import WorkingSet
    from .workers import Work


class Tensors:
    """Methods of a loader's batches for torch."""

    __slots__ = ()

    fields: Any
    _valid: Any

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """False where a sample is padding: the last step of an epoch with drop_last=False is filled up. Yours to write."""
        valid: npt.NDArray[np.bool_] = self._valid
        if not valid.flags.writeable:  # of all whole batches
            valid = self._valid = valid.copy()
        return valid

    @valid.setter
    def valid(self, mask: Any) -> None:
        self._valid = _mask(mask, len(self))  # type: ignore[arg-type]

    def torch(self) -> dict[str, Any]:
        """The arrays as torch tensors over the same memory, in place; other values are left as they are."""
        return _tensors(self)

    def to(self, device: Any = None, non_blocking: bool = False) -> dict[str, Any]:
        """`torch()` on a device, as Accelerate and Lightning call it. Tensors that are there already are not copied."""
        tensors = self.torch()
        return tensors if device is None else {name: each(value, lambda leaf: _moved(leaf, device, non_blocking)) for name, value in tensors.items()}

    def valid_tensor(self, device: Any = None) -> Any:
        """`valid` as a tensor over the same memory, or a copy on a device."""
        import torch

        mask = torch.from_numpy(self.valid)
        return mask if device is None else mask.to(device)


def _moved(value: Any, device: Any, non_blocking: bool) -> Any:
    return value.to(device, non_blocking=non_blocking) if hasattr(value, "to") else value


class LoadedBatch(Tensors, Batch):
    """A `Batch` of a loader: also knows which of its samples are padding."""

    __slots__ = ()

    def trim(self) -> LoadedBatch:
        """Leaves out the samples that are not `valid`, and returns the batch. Where these are the last ones nothing is copied."""
        rows = self.valid
        if not rows.all():
            self._values = {name: _taken(self[name], rows) for name in self.fields}
            self._kept = _kept(getattr(self, "_kept", None), rows)
            self._ids = self.ids[rows]
            self._valid, self._n = rows[rows], len(self._ids)
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        values = [self[name] for name in self.fields]
        return sum((value.values if isinstance(value, Ragged) else value).nbytes for value in values)


def _mask(mask: Any, n: int) -> npt.NDArray[np.bool_]:
    made = np.array(mask, bool)
    if made.shape != (n,):
        raise ValueError(f"valid={mask!r}: one of True and False for each of {n} samples")
    return made


def _kept(before: npt.NDArray[np.bool_] | None, rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which samples of the slot are left, when `rows` of those before are."""
    if before is None:
        return rows.copy()
    kept = before.copy()
    kept[before] = rows
    return kept


def _taken(value: Any, rows: npt.NDArray[np.bool_]) -> Any:
    """The rows of a field's values: of arrays a view, where the first ones are taken."""
    n = int(np.count_nonzero(rows))
    first = bool(rows[:n].all())
    if isinstance(value, (dict, tuple)):
        return each(value, lambda part: _taken(part, rows))
    if isinstance(value, list):
        return [one for one, wanted in zip(value, rows) if wanted]
    if not first and isinstance(value.values if isinstance(value, Ragged) else value, CudaArray):
        raise TypeError("trim() of a batch on a GPU: there only the last samples can be left out")
    if isinstance(value, Ragged) and isinstance(value.values, CudaArray):
        flat, end = value.values, int(value.offsets[n])
        return Ragged(CudaArray(flat._memory, (end,), flat.dtype, flat.device), value.offsets[: n + 1])
    if isinstance(value, CudaArray):
        return CudaArray(value._memory, (n, *value.shape[1:]), value.dtype, value.device, value._rows)
    if isinstance(value, Ragged) and isinstance(value.values, np.ndarray):
        if isinstance(value, Shapes):
            return Shapes([value[i] for i in np.flatnonzero(rows).tolist()]) if n else Ragged(value.values[:0], value.offsets[:1])
        if first:
            return Ragged(value.values[: int(value.offsets[n])], value.offsets[: n + 1])
        offsets = np.concatenate([np.zeros(1, np.uint64), np.cumsum(value.lengths[rows], dtype=np.uint64)])
        return Ragged(np.concatenate([value.values[:0], *(value[i] for i in np.flatnonzero(rows).tolist())]), offsets)
    return value[:n] if first else value[rows]


class PreparedBatch(Tensors, Named):
    """A batch of a loader that decodes or transforms: arrays over an output slot where values have one shape, `Ragged` where
    they are arrays of several, lists of other values.

    The slot is written again when the batch was released or collected and no array over it is left.
    """

    __slots__ = ("_values", "_lease", "_set", "_n", "_bfloat16", "ids", "_valid", "position", "__weakref__")

    def __init__(self, ws: WorkingSet, values: dict[str, Any], lease: Lease, ids: Array, valid: npt.NDArray[np.bool_],
                 position: int, bfloat16: frozenset[str] = frozenset()) -> None:
        self._set, self._values = ws, values
        self._bfloat16 = bfloat16  # fields of uint16 that mean this, which NumPy does not have
        self._lease: Lease | None = lease
        self._n = len(ids)
        self.ids, self._valid, self.position = ids, valid, position

    def trim(self) -> PreparedBatch:
        """Leaves out the samples that are not `valid`, and returns the batch. Where these are the last ones nothing is copied."""
        rows = self._valid
        if not rows.all():
            self._values = {name: _taken(self[name], rows) for name in self._values}
            self.ids, self._valid = self.ids[rows], rows[rows]
            self._n = len(self.ids)
        return self

    def __len__(self) -> int:
        return self._n

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
        if values is target:
            return
        tree = tree_with_leaves(name, target)
        places = dict(leaves(tree, target))
        for path, place in places.items():
            if isinstance(place, CudaArray):
                raise TypeError(f"field {path!r} is on a GPU: write to it there")
            if not isinstance(place, np.ndarray):
                raise TypeError(f"field {path!r} is a {type(place).__name__} and no array: write to its values")
        try:
            parts = dict(leaves(tree, values))
        except ValueError as error:
            raise TypeError(f"batch[{name!r}] = ...: {error}: give a value for each part, or write to batch[{name!r}][part]") from None
        for path, place in places.items():
            place[...] = parts[path]

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(self._values)

    @property
    def released(self) -> bool:
        return self._lease is None

    def release(self) -> None:
        """Gives the slot back, as soon as no array over it is left."""
        self._values, self._lease = {}, None

    def record_stream(self, stream: object) -> None:
        """For batches in pinned or GPU memory: the slot is written again only after the work that is on `stream` (a stream of torch or
        CuPy, or its address) when the batch and the last array over it go. Without it that is the default stream."""
        if self._lease is None:
            raise ValueError("the batch was released")
        self._lease.record_stream(stream_address(stream))

    def __repr__(self) -> str:
        return f"<leat.PreparedBatch of {self._n} samples, fields {', '.join(self._values)}{', released' if self.released else ''}>"


def _tensors(batch: Any) -> dict[str, Any]:
    bfloat16: frozenset[str] = getattr(batch, "_bfloat16", frozenset())
    made = {}
    for name in batch.fields:
        value = batch[name]
        tree = tree_with_leaves(name, value)
        leaf = {path: _tensor(path, part, path in bfloat16) for path, part in leaves(tree, value)}
        made[name] = build(tree, leaf.__getitem__)
    return made


def _tensor(name: str, value: Any, bfloat16: bool) -> Any:
    import torch

    try:
        if isinstance(value, CudaArray):
            tensor = torch.utils.dlpack.from_dlpack(value)
            return tensor.view(torch.bfloat16) if bfloat16 else tensor
        if bfloat16:
            return as_bfloat16(value)
        return torch.from_numpy(value) if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" else value
    except (BufferError, RuntimeError, TypeError, ValueError) as error:  # types and byte orders that this torch does not have
        raise TypeError(f"field {name!r} of dtype {value.dtype} is no tensor of torch {torch.__version__}: {str(error).rstrip('.')}. Cast it in "
                        f"the loader's transform, or take batch[{name!r}]") from error


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
                         "and need as many dimensions each")
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
    """A collate_fn: stacks arrays (and tensors, as arrays), padded at the ends to the largest shape of the batch; other values become lists.
    Of no samples it makes {}; in a Loader, arrays of no rows and empty lists under the names that samples have.

    >>> pad_collate([{"x": np.array([1, 2]), "t": "a"}, {"x": np.array([3]), "t": "b"}])["x"].tolist()
    [[1, 2], [3, 0]]
    """
    out: dict[str, Any] = {}
    for name in samples[0] if samples else ():
        column = [sample[name] for sample in samples]
        arrays = all(_is_array(v) for v in column)
        out[name] = pad(column) if arrays else column
    return out


def pad_known(work: Work, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """`pad_collate` of a loader that knows the form of samples: also for a rank that has none."""
    if samples:
        return pad_collate(samples)
    made: dict[str, Any] = {}
    for name, tree in work.trees.items():
        place = work.layout[tree] if isinstance(tree, str) and tree not in work.bfloat16 else None
        made[name] = [] if place is None else np.empty((0, *place[1]), place[0])
    return made
