# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a sample to a transform's input: which fields are read, their names, and their decoders."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from .._base.arguments import near
from .._sets.batch import Array
from .._sets.fields import Column, Decoder

if TYPE_CHECKING:
    from .._sets.set import WorkingSet

FieldSpec = Union[str, tuple[str, Union[str, Decoder, None]]]
FieldsArg = Union[Mapping[str, FieldSpec], Sequence[str], None]

#: Largest picture that is decoded: a small file may claim any size.
MAX_PIXELS = 1 << 27


def decode_image(data: memoryview) -> Array:
    """A JPEG or PNG as uint8 (height, width, 3), RGB. Orientation tags are not applied, as by PIL and torchvision."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ImportError("decoding pictures takes Pillow: install it, or give fields={name: (field, your decoder)}") from None
    try:
        picture = Image.open(io.BytesIO(data))
    except UnidentifiedImageError:
        raise ValueError(f"{len(data)} bytes that are no picture that Pillow knows") from None
    with picture:
        width, height = picture.size
        if width * height > MAX_PIXELS:
            raise ValueError(f"a picture of {width} x {height} pixels: at most {MAX_PIXELS} are decoded")
        return np.asarray(picture if picture.mode == "RGB" else picture.convert("RGB"))


def decode_npy(data: memoryview) -> Array:
    array: Array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)  # type: ignore[no-untyped-call]
    return array


def decode_json(data: memoryview) -> Any:
    return json.loads(bytes(data))


def decode_txt(data: memoryview) -> str:
    return bytes(data).decode("utf-8")


def decode_cls(data: memoryview) -> int:
    """A class number as text, as WebDataset writes it.

    >>> decode_cls(memoryview(b"12\\n"))
    12
    """
    text = bytes(data).strip()
    if not text.removeprefix(b"-").isdigit():
        said = text[:20].decode(errors="backslashreplace")
        raise ValueError(f"{said!r} is not the number of a class; in a folder of files that is the field 'label'")
    return int(text)


DECODERS: dict[str, Decoder] = {
    "jpg": decode_image, "jpeg": decode_image, "png": decode_image, "npy": decode_npy, "json": decode_json,
    "txt": decode_txt, "cls": decode_cls,
}
#: Values of these are numbers: one array of int64 a batch.
SCALARS = (decode_cls,)

#: The form of values: the str of a dtype; for records the dtype, as its str has no fields.
Kind = Union[str, "np.dtype[Any]"]
#: Of each name: (dtype, shape) of every value, or None where values have no shape in common.
Layout = dict[str, "tuple[Kind, tuple[int, ...]] | None"]


def resolve(ws: WorkingSet, fields: FieldsArg) -> tuple[Column, ...]:
    """The columns of a fields= argument.

    None              all fields, as they are
    ["jpg", "cls"]    these, as they are
    {"image": "jpg"}  field jpg, decoded as its name says, under the name image; in a folder of files (field data) the value names
                      the decoder; {"image": ("data", "png")} and {"image": ("data", function)} say both
    """
    names = [field.name for field in ws.fields]
    if fields is None:
        return tuple(Column(field.name, i, field, None) for i, field in enumerate(ws.fields))
    if isinstance(fields, str):
        raise TypeError(f"fields={fields!r}: a list of names, or a dict {{name: field}}")
    if not isinstance(fields, Mapping):
        if len(set(fields)) != len(fields) or not fields:
            raise ValueError(f"fields={list(fields)!r}: name some, each once, or leave it out for all")
        return tuple(Column(name, i, ws.field(name), None) for i, name in enumerate(fields))
    if not fields:
        raise ValueError("fields={}: name some, or leave it out for all")
    columns = []
    for i, (name, spec) in enumerate(fields.items()):
        if isinstance(spec, str):
            field_name, how = spec, None
            if spec in names:
                how = spec if ws.field(spec).kind == "raw" and spec in DECODERS else None
            elif spec in DECODERS and "data" in names and ws.field("data").kind == "raw":
                field_name, how = "data", spec
            else:
                raise ValueError(f"fields: {name!r} needs {spec!r}, which is no field ({near(spec, names)}), and no decoder of a field data "
                                 f"({', '.join(DECODERS)})")
            decoder = DECODERS[how] if how else None
        else:
            if not isinstance(spec, (tuple, list)) or len(spec) != 2:
                raise ValueError(f"fields: {name!r} is {spec!r}: the name of a field, or (field, decoder)")
            field_name, given = spec
            if isinstance(given, str) and given not in DECODERS:
                raise ValueError(f"fields: no decoder {given!r}; there are {', '.join(DECODERS)}")
            decoder = DECODERS[given] if isinstance(given, str) else given
        field = ws.field(field_name)
        if decoder is not None and field.kind == "label":
            raise ValueError(f"fields: {name!r}: the label of a folder needs no decoder")
        columns.append(Column(name, i, field, decoder))
    return tuple(columns)
