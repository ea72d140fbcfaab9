# SPDX-License-Identifier: Apache-2.0
"""Samples of foreign datasets as fields of a working set: the values of a sample, and their bytes.

A sample is flattened to named values; the first samples say what each field is; every later one must be alike.

    ndarray, tensor, picture, number   an array field, when dtype and shape are the same in all of the first samples
    arrays of several shapes           a raw field, each value as the bytes of an .npy file
    bytes, str                         a raw field; text as UTF-8
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

import numpy as np

from .._base.arguments import near
from .batch import Array

#: (dtype, shape) of an array field, or the dtype of numbers; bytes, str or "npy" for raw ones; None: learnt from the first samples.
RowSpec = Union[tuple[Any, Sequence[int]], np.dtype[Any], type, str, None]
RowFields = Union[Mapping[str, RowSpec], Sequence[str], None]
Row = dict[str, Any]


class Unlike(ValueError):
    """A value that is not what its field takes."""


def flatten(sample: Any, names: Sequence[str] | None = None) -> Row:
    """Named values of a sample. Parts of nested dicts and tuples are joined with a dot.

    >>> flatten({"image": 1, "boxes": (2, 3)})
    {'image': 1, 'boxes.0': 2, 'boxes.1': 3}
    >>> flatten((b"jpeg", 7), ["image", "label"])
    {'image': b'jpeg', 'label': 7}
    >>> flatten(5)
    {'data': 5}
    """
    if names is not None and _is_tuple(sample):
        if len(names) != len(sample):
            raise Unlike(f"it has {len(sample)} parts, and fields= names {len(names)}: {', '.join(names)}")
        sample = dict(zip(names, sample))
    if not isinstance(sample, Mapping) and not _is_tuple(sample):
        if names is not None and len(names) != 1:
            raise Unlike(f"it is one value, and fields= names {len(names)}: {', '.join(names)}")
        return {names[0] if names else "data": sample}
    row = dict(_walk("", sample))
    if names is not None:
        missing = [name for name in names if name not in row]
        if missing:
            raise Unlike(f"no field {', '.join(map(repr, missing))}: {near(missing[0], row)}")
        return {name: row[name] for name in names}
    return row


def _is_tuple(value: Any) -> bool:
    # A list of numbers, or of lists, is an array; other lists are tuples to those who wrote them.
    return isinstance(value, tuple) or isinstance(value, list) and bool(value) and not isinstance(
        value[0], (bool, int, float, complex, np.generic, list))


def _walk(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        items = [(str(name), part) for name, part in value.items()]
    elif _is_tuple(value):
        names = getattr(value, "_fields", None) or map(str, range(len(value)))
        items = list(zip(names, value))
    else:
        yield prefix, value
        return
    for name, part in items:
        yield from _walk(f"{prefix}.{name}" if prefix else name, part)


def plain(value: Any) -> Array | bytes | str:
    """A value in a form that can be stored: an array, bytes or text. TypeError with the reason for others.

    >>> plain(3), plain([1.5, 2]), plain(b"x")
    (array(3), array([1.5, 2. ]), b'x')
    """
    if isinstance(value, (bytes, str)):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if value is None:
        raise TypeError("None: give a value, or leave the field out with fields=")
    if hasattr(value, "detach"):  # a tensor, wherever it lies
        return np.asarray(value.detach().cpu().numpy())
    if getattr(value, "mode", None) == "P" and hasattr(value, "convert"):  # a picture whose numbers mean nothing without its palette
        value = value.convert("RGB")
    if isinstance(value, (bool, int, float, complex, list)) or hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        array = np.asarray(value)
        if array.dtype.hasobject or array.dtype.kind in "US":
            raise TypeError(f"an array of dtype {array.dtype}: numbers, bytes or text are taken")
        return array
    raise TypeError(f"a value of type {type(value).__name__}: arrays, tensors, pictures, numbers, bytes and text are taken")


def numbers(value: Any, dtype: np.dtype[Any]) -> Array:
    """An array, or lists of what a field of this dtype takes, as an array; numbers keep a dtype of their own.

    >>> numbers([2**63, 1], np.dtype("u8"))
    array([9223372036854775808,                   1], dtype=uint64)
    """
    if dtype.kind not in "biufc" and not hasattr(value, "__array__"):
        return np.asarray(value, dtype)  # tuples of parts, dates as text: NumPy alone knows how
    array = np.asarray(value)
    if dtype.kind == "u" and array.dtype.kind == "f" and not hasattr(value, "__array__"):
        # Integers of 2^63 and more beside smaller ones come as floats.
        whole = np.asarray(value, object)
        if all(isinstance(one, (int, np.integer)) and 0 <= one < 2**64 for one in whole.flat):
            return whole.astype(np.uint64)
    return array


def fitting(value: Array, dtype: np.dtype[Any]) -> Array | None:
    """The values in another dtype. None: an integer does not fit, or they are of a kind that this dtype is not made for. Floats may lose digits.

    >>> fitting(np.array([1, 2]), np.dtype("f4")), fitting(np.array([300]), np.dtype("u1")), fitting(np.array([1.0]), np.dtype("i4"))
    (array([1., 2.], dtype=float32), None, None)
    """
    if value.dtype == dtype or not value.size:
        return value.astype(dtype, copy=False)
    if value.dtype.kind in "iu" and dtype.kind in "biufc":
        cast = value.astype(dtype)
        return cast if np.array_equal(cast, value) else None
    return value.astype(dtype) if np.can_cast(value.dtype, dtype, "same_kind") else None


class Column:
    """One field: how its values become bytes."""

    def __init__(self, name: str, kind: str, dtype: str = "", shape: Sequence[int] = (), given: bool = False) -> None:
        self.name, self.kind = name, kind  #: "array", "bytes", "str" or "npy"
        self.dtype, self.shape = dtype, tuple(shape)
        self.given = given  #: by the user: other dtypes are cast, if nothing is lost

    @property
    def raw(self) -> bool:
        return self.kind != "array"

    def dump(self) -> list[Any]:
        return [self.name, self.kind, self.dtype, self.shape, self.given]

    def __str__(self) -> str:
        if self.kind == "array":
            return f"shape {self.shape} of {np.dtype(self.dtype)}"
        return {"bytes": "bytes", "str": "text", "npy": "an array"}[self.kind]

    def encode(self, value: Any) -> Array | bytes:
        """The value as it is pushed. Unlike: it differs in kind from the first ones."""
        value = plain(value)
        if self.kind == "bytes" or self.kind == "str":
            if not isinstance(value, str if self.kind == "str" else bytes):
                raise Unlike(f"{_words(value)}, wanted {self}")
            return value.encode() if isinstance(value, str) else value
        if not isinstance(value, np.ndarray):
            raise Unlike(f"{_words(value)}, wanted {self}")
        if self.kind == "npy":
            return to_npy(value)
        if value.shape != self.shape:
            raise Unlike(f"{_words(value)}, wanted {self}; fields={{{self.name!r}: 'npy'}} takes all shapes")
        if value.dtype != self.dtype:
            if not self.given:
                raise Unlike(f"{_words(value)}, wanted {self}; fields={{{self.name!r}: (dtype, shape)}} casts")
            cast = fitting(value, np.dtype(self.dtype))
            if cast is None:
                raise Unlike(f"{_words(value)} holds a number that does not fit, wanted {self}")
            return cast
        return value


def _words(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"shape {value.shape} of {value.dtype}"
    return "text" if isinstance(value, str) else "bytes"


def to_npy(array: Array) -> bytes:
    out = io.BytesIO()
    write: Any = np.lib.format.write_array
    write(out, np.ascontiguousarray(array).reshape(array.shape), (1, 0), allow_pickle=False)
    return out.getvalue()


def names_of(fields: RowFields) -> list[str] | None:
    """Names of a fields= argument, None for all."""
    if fields is None:
        return None
    if isinstance(fields, str):
        raise TypeError(f"fields={fields!r}: a list of names, or a dict")
    names = list(fields)
    if not names or len(set(names)) != len(names):
        raise ValueError(f"fields={fields!r}: name each field once")
    return names


def learn(rows: Sequence[Row], fields: RowFields) -> list[Column]:
    """Learns the fields from the first samples."""
    given = fields if isinstance(fields, Mapping) else {}
    columns = []
    for i, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            raise _other_fields(i, row, list(rows[0]))
    for name in rows[0]:
        spec = given.get(name)
        if spec is None:
            columns.append(_learn(name, [row.get(name) for row in rows]))
        elif spec in (bytes, str, "npy", "bytes", "str"):
            columns.append(Column(name, "bytes" if spec is bytes else "str" if spec is str else str(spec)))
        else:
            try:
                dtype, shape = spec if isinstance(spec, (tuple, list)) else (spec, ())
                columns.append(Column(name, "array", np.dtype(dtype).str, [int(n) for n in shape], given=True))
            except (TypeError, ValueError):
                raise ValueError(f"fields={{{name!r}: {spec!r}}}: (dtype, shape), a dtype, bytes, str, 'npy' or None") from None
    return columns


def _learn(name: str, values: Sequence[Any]) -> Column:
    try:
        kept = [plain(value) for value in values]
    except TypeError as error:
        raise Unlike(f"field {name!r}: {error}") from None
    first = kept[0]
    if isinstance(first, (bytes, str)):
        return Column(name, "str" if isinstance(first, str) else "bytes")
    # Arrays of several shapes keep their shape in the bytes; other differences are errors when the sample is encoded.
    same = all(not isinstance(value, np.ndarray) or value.shape == first.shape for value in kept)
    if same and first.size:
        return Column(name, "array", first.dtype.str, first.shape)
    return Column(name, "npy")


def dump(columns: Sequence[Column]) -> str:
    return json.dumps([column.dump() for column in columns])


def load(text: str) -> list[Column]:
    return [Column(*one) for one in json.loads(text)]


#: Values of some samples, by field: one array, or a list of bytes.
Block = dict[str, "Array | list[bytes]"]


def _other_fields(sample: int, row: Row, names: Sequence[str]) -> Unlike:
    missing = [repr(name) for name in names if name not in row]
    extra = [repr(name) for name in row if name not in names]
    says = [f"no field {', '.join(missing)}"] * bool(missing) + [f"a field {', '.join(extra)}"] * bool(extra)
    return Unlike(f"sample {sample} has {' and '.join(says)}, unlike those before it, which have {', '.join(names)}: "
                  "fields= takes the ones that all have")


def encode(rows: Sequence[Row], first: int, columns: Sequence[Column]) -> Block:
    """Samples `first` and on. Unlike names the first one that differs from what was learnt."""
    names = [column.name for column in columns]
    block: Block = {column.name: [] if column.raw else np.empty((len(rows), *column.shape), column.dtype) for column in columns}
    for i, row in enumerate(rows):
        if row.keys() != block.keys():
            raise _other_fields(first + i, row, names)
        for column in columns:
            try:
                value = column.encode(row[column.name])
            except (TypeError, ValueError, OverflowError) as error:
                raise Unlike(f"sample {first + i}, field {column.name!r}: {error}") from None
            out = block[column.name]
            if isinstance(out, list):
                out.append(value)  # type: ignore[arg-type]
            else:
                out[i] = value
    return block
