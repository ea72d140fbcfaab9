# SPDX-License-Identifier: Apache-2.0
"""Fields of a sample, and how their bytes become arrays."""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _leat

#: A decoder takes the bytes of one field of one sample (a memoryview) and returns its value.
Decoder = Callable[[memoryview], Any]


class Field:
    """One field of the samples of a working set.

    >>> ws.fields[0]
    Field('image', kind='array', dtype='<f4', shape=(2, 3))
    """

    __slots__ = ("name", "number", "kind", "dtype", "shape", "max_bytes", "fixed_bytes", "dense", "format", "rows")

    name: str
    number: int  #: in the order of `ws.fields`
    kind: str  #: "array": a shape and a dtype; "raw": bytes; "label": the number of a class
    dtype: np.dtype[Any]  #: of one element: uint8 for raw, uint32 for labels
    shape: tuple[int, ...]  #: of one sample; () for raw fields and labels
    max_bytes: int  #: of the longest value
    fixed_bytes: int  #: of every value, 0 if they differ
    dense: bool
    rows: int  #: of windows that are cut out of whole blocks: rows that a slot holds of each; else 0
    format: str | None  #: as of the buffer protocol, None where it has no words for the dtype

    def __init__(self, number: int, raw: _leat.FieldTuple) -> None:
        name, dtype, shape, self.max_bytes, self.fixed_bytes, is_label = raw
        self.name, self.number, self.rows = name, number, 0
        self.kind = "label" if is_label else "array" if dtype else "raw"
        self.dtype = np.dtype("<u4" if is_label else _dtype(dtype) if dtype else "u1")
        self.shape = () if is_label or not dtype else shape
        size = self.dtype.itemsize * math.prod(self.shape)
        # Values of one length that are not what dtype and shape say (a stride, say) are bytes to us.
        if self.kind == "array" and self.fixed_bytes not in (0, size):
            self.kind, self.dtype, self.shape = "raw", np.dtype("u1"), ()
        #: Every value has this shape, though the index may place each by itself (an array that grew by append).
        self.dense = self.kind == "array" and self.max_bytes == size
        self.format = _format(self.dtype)

    @property
    def ragged(self) -> bool:
        """In a batch this field is a `Ragged`: values of any length."""
        return self.kind == "raw" or not self.fixed_bytes and not self.dense

    def __repr__(self) -> str:
        if self.kind != "array":
            return f"Field({self.name!r}, kind={self.kind!r})"
        return f"Field({self.name!r}, kind='array', dtype={self.dtype.str!r}, shape={self.shape})"


def _dtype(text: str) -> Any:
    return np.dtype(ast.literal_eval(text)) if text.startswith("[") else np.dtype(text)


def _format(dtype: np.dtype[Any]) -> str | None:
    try:
        format: str = np.empty(0, dtype).data.format
        return format
    except (ValueError, BufferError):  # datetime64 and other things that PEP 3118 does not know
        return None


_DLPACK_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


def dlpack_code(dtype: np.dtype[Any]) -> tuple[int, int]:
    """(code, bits) of a dtype, for DLPack."""
    if dtype.kind not in _DLPACK_CODES or not dtype.isnative:
        raise BufferError(f"DLPack has no type for {dtype.str!r}: copy it into one that it has")
    return _DLPACK_CODES[dtype.kind], dtype.itemsize * 8


class Column:
    """One entry of a sample: a field of the set, and its decoder. Pickles."""

    __slots__ = ("name", "number", "field", "decoder")

    def __init__(self, name: str, number: int, field: Field, decoder: Decoder | None) -> None:
        self.name = name
        self.number = number  #: among the fields that are read
        self.field = field
        self.decoder = decoder


def renamed(columns: Sequence[Column]) -> tuple[Any, ...]:
    """The fields that are read, by the names that the user gave them."""
    fields = []
    for column in columns:
        field = copy.copy(column.field)
        field.name = column.name
        fields.append(field)
    return tuple(fields)
