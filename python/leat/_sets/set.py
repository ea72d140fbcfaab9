# SPDX-License-Identifier: Apache-2.0
"""Working sets: a dataset in the pool, as a sequence of samples."""

from __future__ import annotations

import bisect
import operator
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsIndex, Union, overload

import numpy as np
import numpy.typing as npt

from .. import _leat
from .._base import clients
from .._base.arguments import bare_name, is_in_pool, near
from .._base.clients import parse_timeout
from .._base.errors import NotFound, PeerGone, Stale, UnknownKey
from .._base.progress import ProgressArg, Reporter
from .batch import SHUFFLE_AUTO, Array, Batch, Ragged
from .cuda import CudaArray
from .fields import Field, dlpack_code
from .rows import fitting, numbers

if TYPE_CHECKING:
    from .._base.storage import Storage
    from typing_extensions import Self

#: One sample: its only field, or a dict of them. Arrays are ndarrays, raw bytes bytes, labels int.
FieldValue = Union[Array, bytes, int, None]
Sample = Union[FieldValue, dict[str, FieldValue]]

OPEN_NO_LOAD, OPEN_WAIT, OPEN_PUBLIC = 1, 2, 4
VERIFY_SOURCE = 1
_MEMORIES = {"cpu": 0, "pinned": 1, "cuda": 2}
#: How what other nodes send by RDMA comes to a GPU: LEAT_LOAD_DIRECT, _IF_POSSIBLE.
_COPIES = {"bounce": 0, "direct": 2, "auto": 4}


@dataclass(frozen=True)
class Rail:
    """One path by which this process reads another node."""

    node: str  #: its addresses, as in the list of nodes
    name: str  #: by TCP the one of them that is connected to, by RDMA the port here: "mlx5_0:1"
    transport: str  #: "tcp" or "rdma"
    state: str  #: "up"; "down": it is tried again; "closed": nothing reads by it now
    bytes: int  #: that came by it
    rate: int  #: bytes a second, measured last while it was busy; 0: not yet


@dataclass(frozen=True)
class Stat:
    """The samples of a working set in the pool, and how the bytes read from it came."""

    samples: int
    resident_samples: int
    failed_samples: int
    payload_bytes: int
    resident_bytes: int
    pool_bytes: int  #: regions held
    regions: int
    region_bytes: int
    page_bytes: int  #: smallest page size obtained for a region
    streamed: bool  #: larger than the pool: part of it comes through a window
    generation: int
    version: int
    transport: str  #: what this process reads it by: "shm", "tcp", "shm+tcp", "rdma", "rdma-write", "shm+rdma"; over two rails "tcp x2"
    lost_samples: int  #: with a node that is gone: read from their source, or, of a pushed set, not to be had
    #: bytes of samples that this object's reads brought, by how they came: "shm", "tcp", "rdma_read", "rdma_write"; "streamed" from the
    #: source; "bounced" counts what was copied on to a GPU once more. Views are not moved, and not counted.
    delivered: dict[str, int] = field(default_factory=dict)
    rails: tuple[Rail, ...] = ()  #: to other nodes, in the order in which they were first used


class View(_leat.Memory):
    """A sample's bytes in the pool, without a copy: read-only, and leased: until its release only a drop by force succeeds.

    `array` (or `numpy.asarray(view)`, or the buffer protocol) looks at it. The lease ends with `release()`, with `with`, or when
    the view is collected; arrays over it prolong it until they are gone.

    >>> with ws.view(0, "image") as view:
    ...     float(view.array.sum()), view.array.flags.writeable
    (15.0, False)
    """

    _field: Field

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._field.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        if self._field.dense:
            return self._field.shape
        return (self.nbytes // self._field.dtype.itemsize,)

    @property
    def array(self) -> Array:
        """A read-only ndarray over the bytes; flat for raw fields."""
        if self.holder.released:
            raise ValueError("the view was released")
        flat = np.frombuffer(memoryview(self).cast("B"), np.uint8)
        return flat.view(self.dtype).reshape(self.shape)

    def tobytes(self) -> bytes:
        """A copy."""
        return memoryview(self).tobytes()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    @property
    def released(self) -> bool:
        return self.holder.released

    def release(self) -> None:
        """Ends the lease as soon as no array over the view is left. May be called more than once."""
        self.holder.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, *, stream: object = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object:
        """A DLPack capsule. Without a copy only for consumers that know the read-only flag (DLPack 1.0 and later): others
        could write into the pool."""
        if stream is not None:
            raise BufferError("this memory is the CPU's: stream must be None")
        if dl_device is not None and tuple(dl_device) != (1, 0):
            raise BufferError(f"this memory is the CPU's, (1, 0): copy it to device {tuple(dl_device)}")
        versioned = max_version is not None and tuple(max_version) >= (1, 0)
        code, bits = dlpack_code(self.dtype)
        if copy:
            return _leat.dlpack(self.array.copy(), code, bits, versioned, False, True)
        if not versioned:
            raise BufferError("this view is read-only, and the consumer is too old for DLPack 1.0, which marks it: "
                              "give it a copy (numpy.array(view), or ws[i])")
        return _leat.dlpack(self.array, code, bits, True, True, False)

    def __repr__(self) -> str:
        state = ", released" if self.released else ""
        return f"<leat.View of {self.nbytes} bytes, dtype={self.dtype.str!r}, shape={self.shape}{state}>"


class Keys(Sequence[str]):
    """The keys of a working set, looked up on demand.

    >>> files.keys()[0], "a/2.jpg" in files.keys(), list(files.keys())[-1]
    ('a/1.jpg', True, 'b/3.jpg')
    """

    __slots__ = ("_set",)

    def __init__(self, ws: WorkingSet) -> None:
        self._set = ws

    def __len__(self) -> int:
        return len(self._set)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self._set.key(i) for i in range(*index.indices(len(self)))]
        return self._set.key(index)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._set

    def index(self, key: str, start: int = 0, stop: int | None = None) -> int:
        return self._set.index(key)

    def __repr__(self) -> str:
        return f"<{len(self)} keys of {self._set!r}>"


class WorkingSet:
    """A dataset in the memory pool. Made by `leat.open`, `leat.preload` and `leat.create`.

    `len(ws)`, `ws[i]` and `ws[key]` make it a map-style dataset, as torch.utils.data.DataLoader takes it; samples are private
    copies. `ws.read_batch(ids)` and `leat.batches(ws, ...)` are the fast ways, `ws.view(i)` the one without any copy.

    It may be used from any thread, pickles as its address (the samples stay in the pool), and connects again by itself in
    the child of a fork.

    >>> len(ws), ws.fields
    (6, (Field('image', kind='array', dtype='<f4', shape=(2, 3)),))
    >>> ws[-1].tolist()
    [[30.0, 31.0, 32.0], [33.0, 34.0, 35.0]]
    """

    def __init__(self, handle: _leat.Set, client: _leat.Client, *, job: str | None = None, socket: str | None = None,
                 name: str | None = None, timeout: float | None = None, storage: Storage | None = None) -> None:
        """Not for users: `leat.open` makes working sets."""
        self._job, self._socket, self._name = job, socket, name
        self._storage = storage
        self._timeout = timeout
        self._timeout_ns = parse_timeout(timeout)
        self._lock = threading.Lock()
        self._closed = False
        self._adopt(handle, client)
        self._uri = handle.uri
        self._fingerprint = handle.fingerprint

    def _adopt(self, handle: _leat.Set, client: _leat.Client) -> None:
        self._handle = handle
        self._client = client
        self._address = client.socket
        self._generation = _leat.generation()
        self._length = handle.length
        self._fields = tuple(Field(i, raw) for i, raw in enumerate(handle.fields()))
        self._ring: _leat.Ring | None = None
        self._ring_size = 0
        self._classes: tuple[str, ...] | None = None

    @property
    def _set(self) -> _leat.Set:
        if self._generation != _leat.generation():
            self._reconnect()
        return self._handle

    def _reconnect(self) -> None:
        # A child of fork(). Its only thread may have been cut off inside the lock: so a new one.
        if self._closed:
            raise ValueError("the working set is closed")
        self._lock = threading.Lock()
        self._parents = (self._handle, self._ring)  # the parent's business: kept, never touched
        client, handle = _find(self._uri, self._address, self._socket, self._job, self._timeout_ns, self._storage)
        _check_same(handle, self._uri, self._fingerprint)
        self._adopt(handle, client)

    def __reduce__(self) -> tuple[object, ...]:
        return (_unpickle, (self._uri, self._fingerprint, self._address, self._socket, self._job, self._name,
                            self._timeout, self._storage))

    # --- what it is ---

    def __len__(self) -> int:
        return self._length

    @property
    def uri(self) -> str:
        """The address: 'leat://NAME', or the canonical source; `leat.open` with it opens the same set in another process."""
        return self._uri

    @property
    def name(self) -> str | None:
        """The name of an explicit working set."""
        return self._name or (bare_name(self._uri) if is_in_pool(self._uri) else None)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a sample, in the order of the index: name, kind, dtype, shape of each."""
        return self._fields

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes that labels number."""
        if self._classes is None:
            self._classes = tuple(self._set.classes())
        return self._classes

    @property
    def fingerprint(self) -> str:
        """32 hex digits out of keys, sizes and shapes: the same dataset has the same, wherever it lies."""
        return self._fingerprint

    def field(self, name: str) -> Field:
        """The field of that name; KeyError, with the names there are."""
        for field in self._fields:
            if field.name == name:
                return field
        raise KeyError(f"no field {name!r}; {near(name, [field.name for field in self._fields])}")

    def key(self, index: SupportsIndex) -> str:
        """The key of a sample: its pathname in filesets, its number in arrays.

        >>> files.key(0)
        'a/1.jpg'
        """
        return self._set.key(self._at(index))

    def index(self, key: str) -> int:
        """The number of a key.

        >>> files.index("a/2.jpg")
        1
        """
        found = self._set.index(key.encode("utf-8", "surrogateescape"))
        if found is None:
            raise UnknownKey(self._unknown(key))
        return found

    def keys(self) -> Keys:
        """All keys, as a lazy sequence."""
        return Keys(self)

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            return self._set.index(key.encode("utf-8", "surrogateescape")) is not None
        return isinstance(key, (int, np.integer)) and not isinstance(key, bool) and -self._length <= int(key) < self._length

    def _unknown(self, key: str) -> str:
        import difflib

        # The keys around where it would stand, and some others, are enough to notice a slip.
        n, keys = self._length, self.keys()
        at = bisect.bisect_left(keys, key)
        near = {keys[i] for i in (*range(max(0, at - 200), min(n, at + 200)), *range(min(n, 200)))}
        base = key.rsplit("/", 1)[-1]
        close = difflib.get_close_matches(key, near, 3, 0.6) or [k for k in sorted(near) if k.rsplit("/", 1)[-1] == base][:3]
        if close:
            return f"no sample {key!r}; near it: {', '.join(close)}"
        return f"no sample {key!r} among {n}" + (f", {keys[0]!r} to {keys[n - 1]!r}" if n else "")

    def _at(self, index: SupportsIndex) -> int:
        if isinstance(index, bool):
            raise TypeError("a sample's number is not True or False")
        try:
            i = operator.index(index)
        except TypeError:
            raise TypeError(f"{index!r}: read one sample by its number or its key, many at once with ws.read_batch([...])") from None
        n = self._length
        if not -n <= i < n:
            raise IndexError(f"sample {i} of a working set of {n} samples")
        return i + n if i < 0 else i

    # --- single samples ---

    def __getitem__(self, which: SupportsIndex | str) -> Sample:
        """A private copy of one sample, by number (negative ones count from the end) or key: an ndarray, bytes, a label's
        int, or a dict of these if there are several fields. A field that this sample lacks is None, or not in the dict.

        >>> files["b/3.jpg"]
        {'data': b'third picture', 'label': 1}
        """
        if isinstance(which, str):
            i = self.index(which)
        elif isinstance(which, slice):
            raise TypeError("slices are not taken: ws.read_batch(range(a, b)) reads many samples at once, "
                            "[ws[i] for i in range(a, b)] one by one")
        else:
            i = self._at(which)
        if len(self._fields) == 1:
            return self._read(i, self._fields[0])
        sample: dict[str, FieldValue] = {}
        for field in self._fields:
            value = self._read(i, field)
            if value is not None:
                sample[field.name] = value
        return sample

    def _read(self, i: int, field: Field) -> FieldValue:
        handle = self._set
        if field.dense:
            out = np.empty(field.shape, field.dtype)
            raw = out.reshape(-1).view(np.uint8) if out.size else out
            try:
                handle.read_into(i, field.number, raw, self._timeout_ns)
            except NotFound:
                if handle.field_bytes(i, field.number) is None:
                    return None
                raise
            return out[()]  # of no dimensions: a number
        if handle.field_bytes(i, field.number) is None:
            return None
        data = handle.read_bytes(i, field.number, self._timeout_ns)
        if field.kind == "label":
            return int.from_bytes(data, "little")
        return np.frombuffer(data, field.dtype).copy() if field.kind == "array" else data

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(self._length))

    def __getitems__(self, ids: Sequence[SupportsIndex]) -> list[Sample]:
        """A list of samples: what the fetcher of torch.utils.data.DataLoader calls. One batch read, then private copies.

        >>> [sample.shape for sample in ws.__getitems__([0, 5])]
        [(2, 3), (2, 3)]
        """
        if not ids:
            return []
        numbers = [self._at(i) for i in ids]
        with self.read_batch(numbers) as batch:
            columns = []
            for field in self._fields:
                value, present = batch[field.name], batch.present(field.name)
                assert not isinstance(value, CudaArray)  # read_batch is for the host
                columns.append([self._cell(value, present, field, i) for i in range(len(numbers))])
                del value
        if len(columns) == 1:
            return list(columns[0])
        names = [field.name for field in self._fields]
        return [{name: cell for name, cell in zip(names, row) if cell is not None} for row in zip(*columns)]

    @staticmethod
    def _cell(value: Array | Ragged, present: npt.NDArray[np.bool_], field: Field, i: int) -> FieldValue:
        if not present[i]:
            return None
        if field.kind == "label":
            return int(value[i])
        if field.kind == "raw":
            return value[i].tobytes()
        return np.array(value[i])[()]

    def view(self, which: SupportsIndex | str, field: str | None = None) -> View:
        """One field of a sample where it lies in the pool: read-only, nothing is copied. See `View`.

        `field` may be left out if only one is not a label. `leat.Unsupported` when the sample is not in this host's pool in
        one piece (on another node, over the edge of a region, streamed): `ws[i]` reads these too.
        """
        i = self.index(which) if isinstance(which, str) else self._at(which)
        if field is None:
            choices = [f for f in self._fields if f.kind != "label"]
            if len(choices) != 1:
                raise ValueError(f"which field? ws.view(i, name), name one of {', '.join(f.name for f in self._fields)}")
            chosen = choices[0]
        else:
            chosen = self.field(field)
        holder = self._set.hold(i, chosen.number, self._timeout_ns)
        if chosen.format is None:
            view: View = View(holder, chosen.number, 0, "B", 1, None, True)
        else:
            shape = chosen.shape if chosen.dense else None
            view = View(holder, chosen.number, 0, chosen.format, chosen.dtype.itemsize, shape, True)
        view._field = chosen
        return view

    # --- batches ---

    def _load(self, batch_size: int, slots: int, fields: Sequence[str] | None,
              device: object = "cpu", transport: str | None = None,
              device_copy: str = "bounce") -> tuple[_leat.Ring, tuple[Field, ...]]:
        chosen = self._fields if fields is None else tuple(self.field(name) for name in fields)
        numbers = None if fields is None else [field.number for field in chosen]
        return load(self._set, batch_size, slots, numbers, transport, parse_device(device), device_copy), chosen

    def _auto_block(self) -> int:
        """Of shuffle="auto": 0 where all of the set is in the pool."""
        if not self.stat().streamed:
            return 0
        ring, _ = self._load(1, 2, None)
        probe = ring.iterate(0, 0, 0, SHUFFLE_AUTO, 0, 1, 0, 0, 1)
        block = probe.info()[1]
        probe.close()
        ring.close()
        return block

    def _ring_of(self, n: int) -> _leat.Ring:
        handle = self._set  # reconnects first
        with self._lock:
            ring = self._ring
            if ring is None or self._ring_size < n:
                size = max(16, 1 << (n - 1).bit_length())
                self._ring = handle.load(size, 4, None, 0, None, 0, 0)
                self._ring_size = size
                if ring is not None:
                    ring.close()  # batches of it that are still held stay valid
                ring = self._ring
            return ring

    def read_batch(self, ids: Sequence[int] | Sequence[str] | range | npt.NDArray[Any], *,
                   out: Mapping[str, Array] | Array | None = None, timeout: float | None = None) -> Batch:
        """Reads samples, any order, repeats allowed, into a slot of the working set's ring (4 slots; it grows with the
        largest batch asked for). `leat.Busy` when all slots are held: release batches, or drop the arrays over them.

        ids   a uint64 or int64 array is taken as it is; any sequence of ints, or of keys
        out   an array, or a dict of arrays by field, that the values are copied to as well (one more copy)
        timeout  seconds until `leat.TimedOut`; those of the set (30), if not given. `leat.Corrupt` names a sample that is not what was indexed

        >>> batch = ws.read_batch(range(4))
        >>> batch["image"].shape
        (4, 2, 3)
        >>> batch.release()
        """
        if isinstance(ids, np.ndarray):
            if ids.dtype.char not in "lLqQ":
                if ids.dtype.kind not in "iu":
                    raise TypeError(f"ids of dtype {ids.dtype}: give numbers of samples")
                ids = ids.astype(np.int64)
            ids = ids.reshape(-1)
        elif not hasattr(ids, "__len__") or isinstance(ids, (str, bytes)):
            raise TypeError(f"ids={ids!r}: a list of numbers or keys; ws[...] is one sample")
        elif len(ids) and isinstance(ids[0], (bool, np.bool_)):
            raise TypeError("ids are numbers of samples, not True and False: numpy.flatnonzero(mask)")
        elif len(ids) and isinstance(ids[0], str):
            ids = [self.index(key) for key in ids]  # type: ignore[arg-type]
        n = len(ids)
        if n == 0:
            raise ValueError("a batch of no samples")
        timeout_ns = self._timeout_ns if timeout is None else parse_timeout(timeout)
        while True:
            ring = self._ring_of(n)
            try:
                holder = ring.read_batch(ids, timeout_ns, self._length)
                break
            except ValueError:
                if ring is self._ring or self._closed:
                    raise
                # another thread has replaced the ring by a larger one
        batch = Batch(holder, self._fields, self)
        if out is not None:
            _copy_out(batch, out)
        return batch

    # --- the pool ---

    def stat(self) -> Stat:
        """The samples of it in the pool, and how the bytes read from it came.

        >>> ws.stat().resident_samples, sorted(ws.stat().delivered)
        (6, ['bounced', 'rdma_read', 'rdma_write', 'shm', 'streamed', 'tcp'])
        """
        found = self._set.stat()
        found["rails"] = tuple(Rail(**rail) for rail in found["rails"])
        return Stat(**found)

    def wait(self, progress: ProgressArg = None, *, timeout: float | None = None) -> Self:
        """Waits until all of it is in the pool (at most `timeout` seconds; without: as long as it takes).

        >>> ws.wait().stat().resident_samples
        6
        """
        with Reporter(progress, self.name or os.path.basename(self._uri)) as report:
            self._set.wait(parse_timeout(timeout) or 2**64 - 1, report)
        return self

    def verify(self, *, source: bool = False, progress: ProgressArg = None) -> None:
        """Recomputes every checksum in the pool; with `source`, reads the source again as well. `leat.Corrupt` names the
        first bad sample."""
        with Reporter(progress, self.name or os.path.basename(self._uri)) as report:
            self._set.verify(VERIFY_SOURCE if source else 0, report)

    def push(self, first: int, data: Mapping[str, Any] | Any, *, timeout: float | None = None) -> None:
        """Fills samples from number `first` on of a set made by `leat.create`: an array (samples, *shape) for each array
        field, a list of bytes for each raw one. Other dtypes are cast, if every number fits. `timeout`: seconds, as of `read_batch`."""
        values = data if isinstance(data, Mapping) else {self._fields[0].name: data}
        if set(values) != {field.name for field in self._fields}:
            raise ValueError(f"fields {', '.join(values)}: give {', '.join(field.name for field in self._fields)}")
        buffers: list[tuple[object, object]] = []
        counts = set()
        for field in self._fields:
            value = values[field.name]
            if field.ragged:
                counts.add(len(value))
                items = [bytes(item) for item in value]
                buffers.append((b"".join(items), np.array([len(item) for item in items], np.uint64)))
                continue
            given = numbers(value, field.dtype)
            cast = fitting(given, field.dtype)
            if cast is None:
                raise ValueError(f"field {field.name!r}: {given.dtype} holds a number that does not fit {field.dtype}: cast it as you mean it")
            array = np.ascontiguousarray(cast)
            if array.shape[1:] != field.shape:
                raise ValueError(f"field {field.name!r}: shape {array.shape}, wanted (samples, {', '.join(map(str, field.shape))})")
            counts.add(len(array))
            buffers.append((array.reshape(-1).view(np.uint8), None))
        if len(counts) != 1:
            raise ValueError(f"fields of different numbers of samples: {sorted(counts)}")
        self._set.push(first, counts.pop(), buffers, self._timeout_ns if timeout is None else parse_timeout(timeout))

    def close(self) -> None:
        """Ends the use of the set; batches and views still held stay valid until released. An implicit set leaves the
        pool with its last user."""
        self._closed = True
        if self._generation == _leat.generation():
            if self._ring is not None:
                self._ring.close()
            self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        fields = ", ".join(f.name if f.kind != "array" else f"{f.name} {f.dtype.str}{list(f.shape)}" for f in self._fields)
        return f"<leat.WorkingSet {self._uri!r}: {self._length} samples of {fields}{', closed' if self._closed else ''}>"


def parse_device(device: object) -> tuple[int, int]:
    """(enum leat_memory, ordinal) of "cpu", "pinned", "cuda", "cuda:1", or a torch.device. Without a number it is the device
    that is torch's current one, if torch uses CUDA here, else 0."""
    kind, colon, number = str(device).partition(":")
    if kind in ("cuda", "pinned") and not colon:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            number = str(torch.cuda.current_device())
    if (kind not in _MEMORIES or (colon and not (number.isascii() and number.isdigit()))
            or (kind == "cpu" and int(number or 0))):
        raise ValueError(f"device={str(device)!r}: 'cpu', 'pinned' or 'cuda:N'")
    return _MEMORIES[kind], min(int(number or 0), 2**31 - 1)


def load(handle: _leat.Set, batch_size: int, slots: int, numbers: list[int] | None, transport: str | None, memory: tuple[int, int],
         device_copy: str) -> _leat.Ring:
    """A ring of batches; `device_copy` as of `leat.batches`."""
    flags = _COPIES.get(device_copy)
    if flags is None:
        raise ValueError(f"device_copy={device_copy!r}: 'bounce', 'direct' or 'auto'")
    if flags and memory[0] != _MEMORIES["cuda"]:
        if device_copy == "direct":
            raise ValueError("device_copy='direct' is of batches on a GPU: device='cuda:N'")
        flags = 0
    return handle.load(batch_size, slots, numbers, 0, transport, *memory, *((0, 0, None, flags) if flags else ()))


def _copy_out(batch: Batch, out: Mapping[str, Array] | Array) -> None:
    try:
        targets = out if isinstance(out, Mapping) else {n: out for n in batch.fields if batch._find(n)[1].kind != "label"}
        if not isinstance(out, Mapping) and len(targets) != 1:
            raise ValueError(f"out: give a dict of arrays for the fields {', '.join(batch.fields)}")
        for name, target in targets.items():
            value = batch[name]
            if isinstance(value, Ragged):
                raise ValueError(f"out: field {name!r} is ragged")
            assert not isinstance(value, CudaArray)
            if target.shape != value.shape:
                raise ValueError(f"out: field {name!r} takes shape {value.shape}, not {target.shape}")
            np.copyto(target, value)
    except BaseException:
        batch.release()
        raise


def open_set(uri: str, *, name: str | None, flags: int, pool_bytes: int, socket: str | None, job: str | None,
             pool: int | str | None, timeout: float | None, progress: ProgressArg, wait: bool,
             storage: Storage | None = None) -> WorkingSet:
    timeout_ns = parse_timeout(timeout)
    with Reporter(progress, name or os.path.basename(uri.rstrip("/")) or uri) as report:
        for attempt in (0, 1):
            client = clients.connect(socket, job, pool=pool)
            try:
                handle = client.open(os.fsencode(uri), name, flags, pool_bytes, timeout_ns, report, storage)
                break
            except PeerGone:  # the daemon went since it was last used: once more, with a new one
                clients.forget(client)
                if attempt:
                    raise
        if wait:
            handle.wait(timeout_ns or 2**64 - 1, report)
    return WorkingSet(handle, client, job=job, socket=socket, name=name, timeout=timeout, storage=storage)


def _find(uri: str, address: str, socket: str | None, job: str | None,
          timeout_ns: int, storage: Storage | None) -> tuple[_leat.Client, _leat.Set]:
    """The set in the daemon where it was; else, when that one has gone, in the one that is found now."""
    for attempt in (0, 1, 2):
        try:
            client = clients.connect(address, job, start=False) if attempt < 2 else clients.connect(socket, job)
        except NotFound:
            if attempt == 2:
                raise
            continue
        try:
            return client, client.open(os.fsencode(uri), None, 0, 0, timeout_ns, None, storage)
        except PeerGone:
            clients.forget(client)
            if attempt == 2:
                raise
    raise AssertionError


def _check_same(handle: _leat.Set, uri: str, fingerprint: str) -> None:
    if handle.fingerprint != fingerprint:
        handle.close()
        raise Stale(f"{uri} has changed since this handle was made: open it again", code="stale")


def _unpickle(uri: str, fingerprint: str, address: str, socket: str | None, job: str | None, name: str | None,
              timeout: float | None, storage: Storage | None = None) -> WorkingSet:
    client, handle = _find(uri, address, socket, job, parse_timeout(timeout), storage)
    _check_same(handle, uri, fingerprint)
    return WorkingSet(handle, client, job=job, socket=socket, name=name, timeout=timeout, storage=storage)
