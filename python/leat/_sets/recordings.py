# SPDX-License-Identifier: Apache-2.0
"""Fixed windows over recordings of several lengths: `leat.open("sounds", window=16_000, stride=8_000, rows="<i2")`.

A recording is a sample of a working set: some rows behind each other, in a field of bytes. One of n rows has (n - window) // stride + 1 windows;
those of all recordings are numbered through. Lengths are in the set's index, so that nothing is read to count them.

A checksum is that of a whole sample: a part of one could not be checked. So recordings are taken whole, as views of the pool where they lie in one
piece there, else by a verified read, and kept for the windows to come (`_Kept`); each window is a copy out of one, made where samples are prepared.

Failure modes: rows that do not divide a recording, and fields of one recording that differ in rows, are Invalid when the set is opened; a .npy file that
is not like the first one when it is read. Both name the key.
Invariants: window i is of the recording r with firsts[r] <= i < firsts[r + 1], from row (i - firsts[r]) * stride on. The fingerprint, and with it order and
state, depends on window, stride, rows and what is done with short ones. At most _COPIES bytes of copies, _VIEWS views and
_ENTRIES of both are kept, or one recording.
"""

from __future__ import annotations

import collections
import copy
import hashlib
import io
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex, Union

import numpy as np
import numpy.typing as npt

from .. import _leat
from .._base.errors import Invalid, Unsupported
from .batch import Array, Ragged
from .fields import Column, Field
from .recording_batches import WindowRing
from .set import FieldValue, Sample, View, WorkingSet

#: A kind of row: a dtype, (dtype, shape of a row), or "npy".
RowsSpec = Union[str, type, "np.dtype[Any]", tuple[Any, Sequence[int]]]
RowsArg = Union[RowsSpec, Mapping[str, RowsSpec]]

_COPIES, _VIEWS, _ENTRIES = 256 << 20, 256, 1 << 16


class Rows:
    """The rows of a field: dtype and shape. Pickles."""

    __slots__ = ("dtype", "shape", "header")

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...], header: int = 0) -> None:
        self.dtype, self.shape = dtype, shape
        self.header = header  #: bytes in front of the rows, of a .npy file; else 0

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.str} {self.shape}" + (f" behind {self.header} bytes" if self.header else "")


def _parse(name: str, spec: RowsSpec) -> Rows:
    """
    >>> str(_parse("pcm", ("<i2", (2,))))
    '<i2 (2,)'
    """
    try:
        dtype, shape = spec if isinstance(spec, (tuple, list)) else (spec, ())
        rows = Rows(np.dtype(dtype), tuple(int(n) for n in shape))
    except (TypeError, ValueError):
        raise ValueError(f"rows={spec!r} of field {name!r}: a dtype, (dtype, shape of a row), or 'npy'") from None
    if rows.dtype.hasobject or not rows.nbytes or min(rows.shape, default=1) < 1:
        raise ValueError(f"rows={spec!r} of field {name!r}: rows of numbers, at least one in each")
    return rows


def _npy(key: str, data: Array) -> tuple[Rows, int]:
    """The kind and number of rows of a .npy file."""
    file = io.BytesIO(data[: 1 << 16].tobytes())
    try:
        version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise Invalid(f"{key}: no .npy file: {error}", code="invalid") from None
    if not shape or fortran and len(shape) > 1 or dtype.hasobject:
        raise Invalid(f"{key}: an array of shape {shape}{' in the order of Fortran' if fortran else ''} and dtype {dtype} has no rows to cut",
                      code="invalid")
    return Rows(dtype, tuple(shape[1:]), file.tell()), shape[0]


def resolve(recordings: WorkingSet, rows: RowsArg) -> dict[str, Rows]:
    """The fields that windows are cut out of. Of .npy files the first one with anything in it is read."""
    if not isinstance(rows, Mapping):
        names = [field.name for field in recordings.fields if field.kind != "label"]
        if len(names) != 1:
            raise ValueError(f"rows={rows!r}: of which field? rows={{name: ...}} with some of {', '.join(names) or 'none'}")
        rows = {names[0]: rows}
    if not rows:
        raise ValueError("rows={}: name a field")
    found: dict[str, Rows] = {}
    for name, spec in rows.items():
        field = recordings.field(name)
        if field.kind == "label":
            raise ValueError(f"rows: field {name!r} is a label")
        if isinstance(spec, str) and spec == "npy":
            first = next((i for i in range(len(recordings)) if recordings._set.field_bytes(i, field.number)), None)
            if first is None:
                raise ValueError(f"rows={{{name!r}: 'npy'}}: no sample of {recordings.uri} has any bytes of it")
            found[name] = _npy(recordings.key(first), _bytes_of(recordings, first, field))[0]
            if not found[name].nbytes:
                raise Invalid(f"{recordings.key(first)}: rows of no bytes", code="invalid")
        else:
            found[name] = _parse(name, spec)
        if field.kind == "array" and field.dtype != found[name].dtype:
            raise ValueError(f"rows: field {name!r} is of dtype {field.dtype.str!r}, not {found[name].dtype.str!r}")
    return found


def _bytes_of(ws: WorkingSet, i: int, field: Field) -> Array:
    """A copy of one value, as bytes."""
    value = ws._read(i, field)
    if isinstance(value, np.ndarray):
        return value.reshape(-1).view(np.uint8)
    return np.frombuffer(value if isinstance(value, bytes) else np.asarray(value).tobytes(), np.uint8)


class _Entry:
    __slots__ = ("lock", "value", "view", "copied", "viewed")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: Array | None = None
        self.view: Any = None  # keeps the lease
        self.copied, self.viewed = 0, False  # as counted


class _Kept:
    """The recordings that were used last. For several threads; one of them reads a recording while others wait for it."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._generation = _leat.generation()
        self._entries: collections.OrderedDict[tuple[int, int], _Entry] = collections.OrderedDict()
        self.bytes = self.views = 0  #: of copies; how many views

    def get(self, key: tuple[int, int], load: Callable[[], tuple[Array, Any]]) -> Array:
        """The bytes of a recording; `load` brings them, and the view that they are of, or None."""
        if self._generation != _leat.generation():  # in the child of a fork: the parent's views are not ours to release
            self._parents = self._entries
            self._begin()
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry()
            self._entries.move_to_end(key)
        with entry.lock:
            if entry.value is not None:
                return entry.value
            try:
                value, entry.view = load()
            except BaseException:
                with self._lock:
                    if self._entries.get(key) is entry:
                        del self._entries[key]
                raise
            entry.value = value
            with self._lock:
                if self._entries.get(key) is entry:  # else it was cleared during the read
                    entry.copied = 0 if entry.view is not None else value.nbytes
                    self.bytes += entry.copied
                    entry.viewed = entry.view is not None
                    self.views += entry.viewed
                    while len(self._entries) > 1 and (self.bytes > _COPIES or self.views > _VIEWS or len(self._entries) > _ENTRIES):
                        old = self._entries.popitem(last=False)[1]
                        self.bytes -= old.copied
                        self.views -= old.viewed
            return value

    def clear(self) -> None:
        if self._generation == _leat.generation():
            with self._lock:
                self._entries.clear()
                self.bytes = self.views = 0

    def __len__(self) -> int:
        return len(self._entries)


class RecordingWindows(WorkingSet):
    """A working set whose samples are windows over recordings. Made by `leat.open(..., window=, rows=)`. `recordings` is the set of those;
    `uri` is its, and `stat()` counts them. Fields that are not cut come whole, with each window of their recording."""

    def __init__(self, recordings: WorkingSet, window: int, stride: int, rows: Mapping[str, Rows], short: str) -> None:
        """Not for users: `leat.open` makes working sets."""
        self.recordings, self.window, self.stride, self.short = recordings, window, stride, short
        self._rows = dict(rows)
        self._kept = _Kept()
        super().__init__(recordings._handle, recordings._client, job=recordings._job, socket=recordings._socket, name=recordings._name,
                         timeout=recordings._timeout, storage=recordings._storage)

    def _adopt(self, handle: Any, client: Any) -> None:
        super()._adopt(handle, client)
        self._lengths = self._count_rows()
        counts = np.where(self._lengths >= self.window, (self._lengths - self.window) // self.stride + 1, 0)
        if self.short == "pad":
            counts[(self._lengths > 0) & (self._lengths < self.window)] = 1
        #: Number of the first window of each recording, and of all.
        self._firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._length = int(self._firsts[-1])
        if not self._length:
            longest = f"the longest of {len(self._lengths)} has {self._lengths.max()} rows" if len(self._lengths) else "there are none"
            raise ValueError(f"window={self.window}: no recording of {handle.uri} is as long; {longest}")
        self._fields = tuple(self._cut(field) if field.name in self._rows else field for field in self._fields)

    def _count_rows(self) -> npt.NDArray[np.int64]:
        of = self.recordings
        found: npt.NDArray[np.int64] | None = None
        for name, rows in self._rows.items():
            number, handle = of.field(name).number, of._set
            sizes = np.fromiter((-1 if size is None else size for size in (handle.field_bytes(i, number) for i in range(len(of)))), np.int64,
                                len(of))
            bare = np.where(sizes > 0, sizes - rows.header, sizes)  # an empty file has no header either
            wrong = np.flatnonzero((bare < 0) | (bare % rows.nbytes != 0))
            if len(wrong):
                i = int(wrong[0])
                what = "has no such field" if sizes[i] < 0 else f"{sizes[i]} bytes are no whole rows of {rows}, {rows.nbytes} bytes each"
                raise Invalid(f"recording {of.key(i)}, field {name!r}: {what}" + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""),
                              code="invalid")
            counts = bare // rows.nbytes
            if found is not None and not np.array_equal(found, counts):
                i = int(np.flatnonzero(found != counts)[0])
                raise Invalid(f"recording {of.key(i)}: field {next(iter(self._rows))!r} has {found[i]} rows, {name!r} {counts[i]}", code="invalid")
            found = counts
        assert found is not None
        return found

    def _cut(self, field: Field) -> Field:
        rows = self._rows[field.name]
        made = copy.copy(field)
        made.kind, made.dtype, made.shape, made.dense = "array", rows.dtype, (self.window, *rows.shape), True
        made.max_bytes = made.fixed_bytes = self.window * rows.nbytes
        return made

    @property
    def _set(self) -> Any:
        return _Handle(self.recordings._set, self)

    @property
    def fingerprint(self) -> str:
        """32 hex digits out of those of the recordings, window, stride, rows and `short`."""
        rows = [(name, str(rows)) for name, rows in sorted(self._rows.items())]
        return hashlib.md5(f"{self._fingerprint} {self.window} {self.stride} {self.short} {rows}".encode(), usedforsecurity=False).hexdigest()

    def where(self, ids: SupportsIndex | Array) -> tuple[Any, Any, Any]:
        """(number of the recording, first row, rows that are not padding) of a window, or arrays of these for an array of windows.

        >>> windows = leat.open(files.uri, window=4, rows="u1")
        >>> windows.where(4), windows.key(4), windows[4]["data"].tobytes()
        ((2, 0, 4), 'b/3.jpg@0', b'thir')
        >>> windows.close()
        """
        if not isinstance(ids, np.ndarray):
            i = self._at(ids)
            r = int(self._firsts.searchsorted(i, "right")) - 1
            row = (i - int(self._firsts[r])) * self.stride
            return r, row, min(self.window, int(self._lengths[r]) - row)
        numbers = ids.astype(np.int64)
        recording = np.searchsorted(self._firsts, numbers, side="right") - 1
        first = (numbers - self._firsts[recording]) * self.stride
        return recording, first, np.minimum(self.window, self._lengths[recording] - first)

    # --- reading ---

    def _recording(self, i: int, name: str) -> Array:
        """All rows of one recording."""
        of, rows = self.recordings, self._rows[name]
        field = of.field(name)

        def load() -> tuple[Array, Any]:
            view: View | None = None
            try:
                view = of.view(i, name)
                data = view.array.reshape(-1).view(np.uint8)
            except Unsupported:  # not in one piece in this host's memory
                data = _bytes_of(of, i, field)
            if rows.header:
                here, n = _npy(of.key(i), data)
                if str(here) != str(rows) or n != self._lengths[i]:
                    raise Invalid(f"recording {of.key(i)}, field {name!r}: {n} rows of {here}; by its size, and the first recording's header, there "
                                  f"should be {self._lengths[i]} of {rows}", code="invalid")
            return data[rows.header :], view

        return self._kept.get((i, field.number), load).view(rows.dtype).reshape(-1, *rows.shape)

    def _value(self, i: int, name: str) -> Array:
        """A copy of one window."""
        recording, first, n = self.where(i)
        part = self._recording(recording, name)[first : first + n]
        if n == self.window:
            return np.array(part)
        padded = np.zeros((self.window, *part.shape[1:]), part.dtype)
        padded[:n] = part
        return padded

    def _read(self, i: int, field: Field) -> FieldValue:
        if field.name in self._rows:
            return self._value(i, field.name)
        return self.recordings._read(self.where(i)[0], field)

    def __getitems__(self, ids: Sequence[SupportsIndex]) -> list[Sample]:
        """A list of windows."""
        return [self[i] for i in ids]

    def _auto_block(self) -> int:
        block = self.recordings._auto_block()
        return block and max(1, block * len(self) // len(self.recordings))

    def close(self) -> None:
        self._kept.clear()
        self._closed = True
        self.recordings.close()

    def __reduce__(self) -> tuple[object, ...]:
        return (RecordingWindows, (self.recordings, self.window, self.stride, self._rows, self.short))

    def __repr__(self) -> str:
        return f"<leat.RecordingWindows: {self._length} of {self.window} rows, each {self.stride}, over {self.recordings!r}>"


class RawWindows:
    """A raw batch for workers: a value is read on demand, in the requesting thread."""

    def __init__(self, ws: RecordingWindows, columns: Sequence[Column], ids: Array) -> None:
        self.ids, self._ws = ids, ws
        self._fields = {column.name: column.field for column in columns}

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, name: str) -> Any:
        field = self._fields[name]
        return (_Whole if field.ragged else _Values)(self._ws, self.ids, field)

    def present(self, name: str) -> npt.NDArray[np.bool_]:
        handle, number = self._ws.recordings._set, self._fields[name].number
        return np.array([handle.field_bytes(int(r), number) is not None for r in self._ws.where(self.ids)[0]], bool)

    def release(self) -> None:
        pass

    def __enter__(self) -> RawWindows:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class _Values:
    """Values of one shape: windows, labels, arrays."""

    def __init__(self, ws: RecordingWindows, ids: Array, field: Field) -> None:
        self._ws, self._ids, self._field = ws, ids, field

    def __getitem__(self, i: int) -> Any:
        return self._ws._read(int(self._ids[i]), self._field)


class _Whole(Ragged):
    """Values of any length: fields that are not cut."""

    __slots__ = ("_ws", "_ids", "_field")

    def __init__(self, ws: RecordingWindows, ids: Array, field: Field) -> None:
        self._ws, self._ids, self._field = ws, ids, field

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, i: Any) -> Any:
        value = self._ws._read(int(self._ids[i]), self._field)
        return np.frombuffer(value if isinstance(value, bytes) else b"", np.uint8) if not isinstance(value, np.ndarray) else value


class _Handle:
    """The handle of the recordings, as that of windows."""

    __slots__ = ("_handle", "_of")

    def __init__(self, handle: Any, of: RecordingWindows) -> None:
        self._handle, self._of = handle, of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def key(self, i: int) -> str:
        recording, first, _ = self._of.where(i)
        return f"{self._handle.key(recording)}@{first}"

    def index(self, key: bytes) -> int | None:
        name, _, text = key.rpartition(b"@")
        recording = self._handle.index(name)
        row = int(text) if text.isdigit() and text == b"%d" % int(text) else -1
        if recording is None or row < 0 or row % self._of.stride:
            return None
        i = int(self._of._firsts[recording]) + row // self._of.stride
        return i if i < self._of._firsts[recording + 1] else None

    def source(self, i: int, field: int) -> Any:
        return self._handle.source(self._of.where(i)[0], field)

    def field_bytes(self, i: int, field: int) -> int | None:
        fixed = self._of.fields[field].fixed_bytes
        return fixed or self._handle.field_bytes(self._of.where(i)[0], field)

    def load(self, *args: Any) -> WindowRing:
        return WindowRing(self._of, *args[:7])  # flags are of memory that it refuses

    def hold(self, *args: Any) -> Any:
        raise Unsupported("a view is of a whole recording, ws.recordings.view(r): ws[i] and batches read windows", code="unsupported")

    def push(self, *args: Any) -> Any:
        raise Unsupported("windows are read only", code="unsupported")
