# SPDX-License-Identifier: Apache-2.0
"""Batches: arrays over the slots of a ring, and the iterator that reads an epoch ahead."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any, NoReturn, Union, overload

import numpy as np
import numpy.typing as npt

from .. import _leat
from .._base import ranks
from .._base.arguments import near, refuse_pickling, seed_of, whole
from .._base.clients import parse_timeout
from .._base.errors import Busy
from .cuda import CudaArray, stream_address
from .fields import Field
from .plan import SEQUENTIAL

if TYPE_CHECKING:
    from typing_extensions import Self

    from .set import WorkingSet

_DATA, _OFFSETS = 0, 1
_CUDA = 2  # LEAT_MEMORY_CUDA
SHUFFLE_AUTO = 1  # LEAT_SHUFFLE_AUTO

Array = npt.NDArray[Any]
_Bytes = bytes  # Ragged has a method of this name


class Ragged(Sequence[Array]):
    """One field of a batch whose values differ in length: sample i is `values[offsets[i]:offsets[i + 1]]`.

    `values` is one zero-copy, writable array of the slot; `offsets` has one entry more than there are samples.

    >>> batch = files.read_batch([0, 1])
    >>> picture = batch["data"]
    >>> len(picture), picture.bytes(0)
    (2, b'first picture')
    >>> batch.release()
    """

    __slots__ = ("values", "offsets")

    def __init__(self, values: Array, offsets: npt.NDArray[np.uint64]) -> None:
        self.values = values
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Array]: ...
    def __getitem__(self, index: int | slice) -> Array | Sequence[Array]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"value {index} of {n}")
        index %= n
        return self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def bytes(self, index: int) -> _Bytes:
        """A copy of one value."""
        return self[index].tobytes()

    def tolist(self) -> list[_Bytes]:
        """Copies of all values."""
        return [value.tobytes() for value in self]

    @property
    def lengths(self) -> npt.NDArray[np.uint64]:
        """Elements of each value."""
        return np.diff(self.offsets)

    def __repr__(self) -> str:
        return f"Ragged({len(self)} values, {self.values.nbytes} bytes, dtype={self.values.dtype.str!r})"


Value = Union[Array, Ragged, CudaArray]


class OwnMemory:
    """In the place of a Holder: values that lie in no slot."""

    def __init__(self, ids: npt.NDArray[np.uint64], position: int, values: Sequence[Value], there: Sequence[Array]) -> None:
        self.values, self._ids, self._position, self._there = values, ids, position, there
        self.released = False

    def info(self) -> tuple[int, int, int, bytes]:
        return len(self._ids), self._position, 0, self._ids.tobytes()

    def present(self, number: int) -> bytes:
        return self._there[number].tobytes()

    def release(self) -> None:
        self.released, self.values = True, ()

    def release_after(self, fd: int) -> None:
        raise ValueError("this batch lies in no slot that could be given back: release()")

    def record_stream(self, stream: int) -> None:
        raise ValueError("a batch in host memory has no CUDA stream")


class Named:
    """Common to all batches: a Mapping of names to values, which `with` releases. But `len(batch)` is the number of its samples."""

    __slots__ = ()

    # Of each kind: the names, and numbers of the samples
    fields: Any
    ids: Any
    _set: Any

    def release(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def __reduce__(self) -> NoReturn:
        refuse_pickling("a batch")

    @property
    def sample_keys(self) -> list[str]:
        """Keys of the samples."""
        return [self._set.key(int(i)) for i in self.ids]

    def __getitem__(self, name: str) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def keys(self) -> KeysView[str]:
        """Names of the fields."""
        return dict.fromkeys(self.fields).keys()

    def values(self) -> ValuesView[Any]:
        """Values of the fields."""
        return {name: self[name] for name in self.fields}.values()

    def items(self) -> ItemsView[str, Any]:
        """(name, values) of the fields."""
        return {name: self[name] for name in self.fields}.items()

    def get(self, name: str, default: Any = None) -> Any:
        """`batch[name]`, or `default` where there is no such field."""
        return self[name] if name in self.fields else default


Mapping.register(Named)


class Batch(_leat.BatchBase, Named):
    """Some samples in a slot of a ring: zero-copy, writable arrays, one for each field.

    `batch[name]` are the values of a field: an array of shape (samples, *shape); a `Ragged` for raw fields; uint32 for labels.
    The slot is yours until `release()`, the end of `with`, or until the batch is collected; it is filled again only
    when also no array over it is left. After `release()` every access raises.

    >>> with ws.read_batch([3, 1, 2]) as batch:
    ...     batch["image"].shape, batch.ids.tolist()
    ((3, 2, 3), [3, 1, 2])
    >>> batch["image"]
    Traceback (most recent call last):
    ...
    ValueError: the batch was released
    """

    __slots__ = ("__weakref__", "_kept")  # the rest is BatchBase's, so that a FastIter can make one

    #: Position in the epoch's order of the first sample, for batches of `leat.batches`.
    position: int
    #: Which buffer of the ring.
    slot: int

    def __init__(self, holder: _leat.Holder | OwnMemory, fields: Sequence[Field], ws: WorkingSet) -> None:
        self._holder = holder
        self._fields = fields
        self._set = ws
        self._values: dict[str, Value] = {}
        self._ids: npt.NDArray[np.uint64] | bytes  # an array after the first use of `ids`
        self._n, self.position, self.slot, self._ids = holder.info()

    def __len__(self) -> int:
        return self._n

    def __contains__(self, name: object) -> bool:
        return any(field.name == name for field in self._fields)

    def _get(self, name: str) -> Value:
        """The part of `batch[name]` that BatchBase leaves to Python: errors, and first uses of values other than a FastIter's plain arrays."""
        if self._holder.released:
            raise ValueError("the batch was released")
        value = self._values.get(name)
        if value is None:
            value = self._values[name] = self._load(*self._find(name))
        return value

    def __setitem__(self, name: str, values: Any) -> None:
        """Writes into the slot, so that `batch[name] *= 2` works."""
        target = self[name]
        if values is target:
            return
        if isinstance(target, Ragged):
            raise TypeError(f"field {name!r} is ragged: write to its values")
        if isinstance(target, CudaArray):
            raise TypeError(f"field {name!r} is on a GPU: write to it there")
        target[...] = values

    def _find(self, name: str) -> tuple[int, Field]:
        first = self._fields[0]
        if first.name == name:
            return 0, first
        for number, field in enumerate(self._fields):
            if field.name == name:
                return number, field
        raise KeyError(f"no field {name!r} in this batch; {near(name, self.fields)}")

    def _load(self, number: int, field: Field) -> Value:
        holder = self._holder
        if isinstance(holder, OwnMemory):
            return holder.values[number]
        memory, device = holder.place()
        if memory == _CUDA:
            return self._load_cuda(holder, number, field, device)
        if field.fixed_bytes and field.kind != "raw":  # half the time of frombuffer, view and reshape
            data: Any = _leat.Memory(holder, number, _DATA, "B", 1, None, False, True)
            if field.rows:
                return np.ndarray((self._n, field.rows, *field.shape[1:]), field.dtype, data)[:, : field.shape[0]]
            return np.ndarray((self._n, *field.shape), field.dtype, data)
        flat = np.frombuffer(_leat.Memory(holder, number, _DATA, "B", 1, None, False), np.uint8)
        if not field.ragged and (field.fixed_bytes or flat.nbytes == self._n * field.max_bytes):
            return flat.view(field.dtype).reshape(self._n, *field.shape)
        if field.fixed_bytes:
            offsets = np.arange(self._n + 1, dtype=np.uint64) * np.uint64(field.fixed_bytes)
        else:
            offsets = np.frombuffer(_leat.Memory(holder, number, _OFFSETS, "Q", 8, None, True), np.uint64)
        item = field.dtype.itemsize
        return Ragged(flat, offsets) if item == 1 else Ragged(flat.view(field.dtype), offsets // np.uint64(item))

    def _load_cuda(self, holder: _leat.Holder, number: int, field: Field, device: int) -> Value:
        item = field.dtype.itemsize
        if field.ragged or not field.fixed_bytes:
            flat = _leat.Memory(holder, number, _DATA, "B", item, None, False)
            values = CudaArray(flat, (flat.nbytes // item,), field.dtype, device)
            offsets = np.frombuffer(_leat.Memory(holder, number, _OFFSETS, "Q", 8, None, True), np.uint64)
            return Ragged(values, offsets if item == 1 else offsets // np.uint64(item))  # type: ignore[arg-type]
        shape = (self._n, *field.shape)
        lies = (self._n, field.rows, *field.shape[1:]) if field.rows else shape
        memory = _leat.Memory(holder, number, _DATA, "B", item, lies, False)
        return CudaArray(memory, shape, field.dtype, device, field.rows)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(field.name for field in self._fields)

    @property
    def data(self) -> Value:
        """The values of the only field that is not a label."""
        names = [field.name for field in self._fields if field.kind != "label"] or list(self.fields)
        if len(names) != 1:
            raise ValueError(f"this batch has several fields: batch[name] with one of {', '.join(names)}")
        return self[names[0]]

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The label field as a new int64 array, as loss functions want it (the slot itself holds uint32)."""
        names = [field.name for field in self._fields if field.kind == "label"]
        if len(names) != 1:
            raise ValueError(f"this batch has {len(names) or 'no'} label fields; its fields are {', '.join(self.fields)}")
        value = self[names[0]]
        if isinstance(value, CudaArray):
            raise TypeError(f"the labels are on a GPU: torch.from_dlpack(batch[{names[0]!r}]).long()")
        assert isinstance(value, np.ndarray)
        return value.astype(np.int64)

    @property
    def ids(self) -> npt.NDArray[np.uint64]:
        """Numbers of the samples. Read-only, valid for ever."""
        if isinstance(self._ids, bytes):
            self._ids = np.frombuffer(self._ids, np.uint64)
        return self._ids

    def present(self, field: str) -> npt.NDArray[np.bool_]:
        """Which samples have this field (a tar sample may lack a member)."""
        if self._holder.released:
            raise ValueError("the batch was released")
        found = np.frombuffer(self._holder.present(self._find(field)[0]), np.bool_)
        kept: npt.NDArray[np.bool_] | None = getattr(self, "_kept", None)  # by trim()
        return found if kept is None else found[kept]

    @property
    def released(self) -> bool:
        return self._holder.released

    def release(self) -> None:
        """Gives the slot back, as soon as no array over it is left. May be called more than once, from any thread."""
        self._values = {}
        self._holder.release()

    def release_after(self, fd: int) -> None:
        """Gives the slot back once descriptor `fd` (an eventfd, say) turns readable: a copy engine reads it until then.
        BufferError while arrays over the slot exist; `fd` may be closed right after the call."""
        self._values = {}
        self._holder.release_after(fd)

    def record_stream(self, stream: object) -> None:
        """For batches in pinned or GPU memory: the slot is filled again only after the work that is on `stream` (a stream of torch or
        CuPy, or its address) when the batch and the last array over it go. Without it that is the default stream."""
        self._holder.record_stream(stream_address(stream))

    def __repr__(self) -> str:
        state = "released" if self.released else f"slot {self.slot}"
        return f"<leat.Batch of {self._n} samples, fields {', '.join(self.fields)}, {state}>"


def dense_arrays(fields: Sequence[Field], n: int) -> dict[str, tuple[type, int, tuple[int, ...], np.dtype[Any]]]:
    """The descriptions from which a FastIter makes arrays without Python: {name: (type, number of the field, shape, dtype)} of batches of `n` samples in host memory."""
    return {field.name: (np.ndarray, number, (n, *field.shape), field.dtype) for number, field in enumerate(fields)
            if field.fixed_bytes and field.kind != "raw" and not field.rows}


def parse_shuffle(shuffle: str | bool) -> tuple[int, int]:
    """(block, flags) of a shuffle= argument.

    >>> parse_shuffle("block:1000")
    (1000, 0)
    """
    if shuffle == "auto":
        return 0, SHUFFLE_AUTO
    if shuffle == "full" or shuffle is True:
        return 0, 0
    if shuffle is False:
        return SEQUENTIAL, 0
    if isinstance(shuffle, str) and shuffle.startswith("block:") and shuffle[6:].isdigit() and int(shuffle[6:]) > 0:
        return int(shuffle[6:]), 0
    raise ValueError(f"shuffle={shuffle!r}: give True, 'auto', 'full', 'block:N' or False")


class Batches(Iterator[Batch]):
    """The batches of one epoch for one rank, read ahead by a thread of the library. Made by `leat.batches`.

    `close()`, the end of the epoch, `with`, or being collected end the thread; batches still held stay valid.
    """

    def __init__(self, ws: WorkingSet, ring: _leat.Ring, fields: Sequence[Field], iterator: _leat.Iter,
                 timeout: float | None) -> None:
        self._ws, self._ring, self._fields = ws, ring, fields
        self._iterator = iterator
        self._timeout_ns = parse_timeout(timeout)
        self._steps, self._block = iterator.info()
        self._ended = False

    def __len__(self) -> int:
        """Batches that this rank gets in all."""
        return self._steps

    @property
    def shuffle(self) -> str | bool:
        """The kind of order, 'auto' resolved: 'full', 'block:N' or False."""
        return False if self._block == SEQUENTIAL else f"block:{self._block}" if self._block else "full"

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        if self._ended:
            raise StopIteration
        try:
            holder = self._iterator.next(self._timeout_ns)
        except Busy as error:
            raise Busy(f"{error}, copy what is to be kept, or give more slots=", code="busy") from None
        if holder is None:
            self.close()
            raise StopIteration
        return Batch(holder, self._fields, self._ws)

    def delivery(self) -> dict[str, Any]:
        """How batches come to where they are: "delivery" is "host", "pinned", "bounce", through pinned memory to a GPU, or
        "direct"; sizes of the buffers, what was copied, and what came directly. Not after `close()`."""
        return self._ring.stat()

    def close(self) -> None:
        """Ends reading ahead. Held batches stay valid until released."""
        self._ended = True
        self._iterator.close()
        self._ring.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickling("an iterator of batches")

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<leat.Batches: {self._steps} steps, shuffle={self.shuffle!r}{', closed' if self._ended else ''}>"


def batches(ws: WorkingSet, batch_size: int, *, seed: int = 0, epoch: int = 0, shuffle: str | bool = "auto",
            rank: int | None = None, world_size: int | None = None, drop_last: bool = True, start: int = 0,
            slots: int = 4, ahead: int | None = None, fields: Sequence[str] | None = None,
            device: object = "cpu", timeout: float | None = None, transport: str | None = None,
            device_copy: str = "bounce") -> Batches:
    """Iterates over one epoch of `ws` in batches of `batch_size` for this rank, reading ahead.

    The order depends on the seed, the epoch, the dataset and the kind of shuffle, never on batch size or ranks: step s takes
    positions [s * G, (s + 1) * G) with G = batch_size * world_size, and each rank a contiguous slice of them.

    seed, epoch     which order
    shuffle         "full"; "block:N", blocks of N samples mixed, so that disks are read in runs; False, as stored; "auto":
                    full for sets in the pool, blocks for sets larger than it (`.shuffle` of the result has the choice)
    rank, world_size  else of torch.distributed, RANK and WORLD_SIZE, Slurm or Open MPI; else one process
    drop_last       leave out the last, short step, so that all ranks get the same number of batches
    start           position in the epoch's order to start at, over all ranks: `batch.position` of a batch not yet seen
    slots, ahead    buffers of the ring; how many of them are read ahead (slots - 1)
    fields          names of the fields that are wanted: all
    device          where batches are to be: "cpu"; "pinned", page-locked for copies to a GPU; "cuda:N" or a torch.device: fields are
                    then `CudaArray`s. `leat.Unsupported` where NVIDIA's driver is missing
    transport       "shm", "tcp", "rdma", "shm+tcp", "shm+rdma" are required, an error where they are unavailable;
                    "auto": shared memory on this host, RDMA where both ends have it, else TCP (`ws.stat().transport` names it).
                    None: $LEAT_TRANSPORT, else auto
    device_copy     of batches on a GPU: "bounce", through pinned memory; "direct": what other hosts send by RDMA goes straight into the
                    GPU's memory and is checked there, an error where that cannot be had; "auto": the same where it can
    timeout         seconds that a batch may take to come, then `leat.TimedOut`: 30; math.inf

    >>> seen = []
    >>> for batch in leat.batches(ws, 2, seed=7):
    ...     seen += batch.ids.tolist()
    >>> sorted(seen)
    [0, 1, 2, 3, 4, 5]
    """
    batch_size, epoch, start = whole("batch_size", batch_size, 1), whole("epoch", epoch, 0), whole("start", start, 0)
    slots, ahead = whole("slots", slots, 2), 0 if ahead is None else whole("ahead", ahead, 0)
    block, flags = parse_shuffle(shuffle)
    rank, world_size = ranks.resolve(rank, world_size)
    ring, chosen = ws._load(batch_size, slots, fields, device, transport, device_copy)
    iterator = ring.iterate(seed_of(seed), epoch, block, flags, rank, world_size, start, not drop_last, ahead)
    return Batches(ws, ring, chosen, iterator, timeout)


def order(n: WorkingSet | int, seed: int = 0, epoch: int = 0, shuffle: str | bool = "full") -> npt.NDArray[np.uint64]:
    """The order of an epoch: a permutation of the numbers below `n`. Given a working set instead of its length, the very order
    in which `leat.batches` goes through it.

    seed, epoch     which order: as of `leat.batches`
    shuffle         "full", "block:N" or False

    >>> leat.order(5, seed=1, shuffle=False).tolist()
    [0, 1, 2, 3, 4]
    >>> sorted(leat.order(1000, seed=1).tolist()) == list(range(1000))
    True
    """
    block, flags = parse_shuffle(shuffle)
    if flags:
        raise ValueError("shuffle='auto' depends on the pool: name the kind ('full', 'block:N', False)")
    fingerprint = getattr(n, "fingerprint", None)
    length = whole("n", n, 0) if fingerprint is None else len(n)  # type: ignore[arg-type]  # what has one is a set
    epoch = whole("epoch", epoch, 0)
    ids = np.empty(length, np.uint64)
    _leat.Plan(length, seed_of(seed), epoch, block, fingerprint).fill(0, ids)
    return ids
