# SPDX-License-Identifier: Apache-2.0
"""`leat.prep.decoded`: a working set whose pictures are pixels, so that later epochs only crop.

Happy path: the ranks look at the headers of their share of the pictures and push the sizes into a small set; when it is whole, rank 0 creates
the set of pixels, and each rank decodes and pushes its share. Both sets have names made of the source's fingerprint and the parameters, and what
is in them depends on these alone: so a late rank, or a restarted job, continues with what is there.

A sample's picture is a binary PPM: a header with its size, and its pixels. Failure modes: a picture that cannot be decoded keeps the
bytes that it has (cut or filled up with zeros to the room that its header asked for): reading it raises the same error as in the source. If a rank
dies, the others wait until `timeout`.
"""

from __future__ import annotations

import concurrent.futures
import io
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _prep
from .._base import ranks
from .._base.errors import Busy, Error, Invalid, NotFound, TimedOut
from .._sets.batch import Array, Ragged
from .._sets.core import create, drop
from .._sets.core import open as open_set
from .._sets.core import share
from . import images

if TYPE_CHECKING:
    from .._sets.set import WorkingSet

_CHUNK = 64  # samples that are read and pushed at a time
_MAX_EDGE = 8192  # PREP_MAX_OUT


def decoded(ws: WorkingSet, *, field: str | None = None, shorter: int | None = 256, name: str | None = None, threads: int = 0,
            orient: bool = True, max_pixels: int = 0, rank: int | None = None, world_size: int | None = None, timeout: float = 3600.0) -> WorkingSet:
    """The set `ws` with its pictures decoded, in the pool: all ranks call it, share the work, and get the same set. It has the
    same samples, keys and fields; `fields=` and `transform=` of leat.prep still work, and only crop.

    field     the field with the pictures; else "jpg", "jpeg", "png", or the only raw one
    shorter   edges are brought to this shorter one (never enlarged); None: as they are
    name      of the new set; else one made of the source's fingerprint and the parameters
    threads   0: this rank's share of the cores
    orient    EXIF's orientation is applied
    timeout   seconds to wait for the other ranks

    It takes about 3 * shorter^2 * 1.4 bytes a picture (275 KB with 256). `leat.drop(decoded.name)` frees it.

    >>> small = leat.prep.decoded(ws, shorter=256)
    >>> loader = leat.Loader(small, 64, fields={"image": "jpg", "label": "cls"}, transform=leat.prep.RandomResizedCrop(224))
    """
    if shorter is not None and not 1 <= shorter <= _MAX_EDGE:
        raise ValueError(f"shorter={shorter}: 1 to {_MAX_EDGE}, or None")
    rank, world_size = ranks.resolve(rank, world_size)
    chosen = _field(ws, field)
    max_pixels = max_pixels or images.MAX_PIXELS
    how = f"{chosen}-{shorter or 'whole'}{'' if orient else '-as-stored'}{'' if max_pixels == images.MAX_PIXELS else f'-{max_pixels}'}"
    work = _Work(ws, chosen, shorter, orient, max_pixels, threads or images.cores(), time.monotonic() + timeout)
    name = name or f"decoded-{ws.fingerprint[:16]}-{how}"
    mine = share(len(ws), rank, world_size)
    made = _find(name, ws)
    if made is None:
        sizes_name = f"sizes-{ws.fingerprint[:16]}-{how}"
        if rank == 0:
            sizes = _find(sizes_name, ws) or _created(sizes_name, {"size": ("<u4", (2,))}, len(ws), None, None, ws)
            work.push_sizes(sizes, mine)
            work.wait(sizes)
            made = work.create(name, sizes)
            sizes.close()
            try:
                drop(sizes_name, job=ws._job, socket=ws._socket, timeout=30.0)
            except (Busy, NotFound, TimedOut):
                pass  # some rank has it open still: it takes 8 bytes a sample
        else:
            opened = work.until(lambda: _find(name, ws) or _find(sizes_name, ws))
            if opened.fields[0].name == "size" and len(opened.fields) == 1:
                work.push_sizes(opened, mine)
                opened.close()
                made = work.until(lambda: _find(name, ws))
            else:
                made = opened
    if [f.name for f in made.fields] != [f.name for f in ws.fields] or len(made) != len(ws):
        raise Invalid(f"leat://{name} is another set: it has not the samples and fields of {ws.uri}")
    if made.stat().resident_samples < len(made):
        work.push(made, mine)
        work.wait(made)
    return made


def _field(ws: WorkingSet, field: str | None) -> str:
    raw = [f.name for f in ws.fields if f.kind == "raw"]
    if field is None:
        field = next((name for name in ("jpg", "jpeg", "png") if name in raw), raw[0] if len(raw) == 1 else None)
    if field not in raw:
        raise ValueError(f"field={field!r}: which of the raw fields ({', '.join(raw) or 'there are none'}) has the pictures?")
    return field


def _find(name: str, ws: WorkingSet) -> WorkingSet | None:
    try:
        return open_set(f"leat://{name}", job=ws._job, socket=ws._socket)
    except NotFound:
        return None


def _created(name: str, fields: dict[str, Any], samples: int, keys: Sequence[str] | None, lengths: dict[str, Any] | None,
             ws: WorkingSet) -> WorkingSet:
    return create(name, fields, samples, keys=keys, lengths=lengths, job=ws._job, socket=ws._socket)


class _Work:
    def __init__(self, ws: WorkingSet, field: str, shorter: int | None, orient: bool, max_pixels: int, threads: int, end: float) -> None:
        self.ws, self.field, self.shorter, self.orient, self.max_pixels = ws, field, shorter, orient, max_pixels
        self.threads, self.end = threads, end

    # --- waiting for others ---

    def until(self, found: Any) -> Any:
        while True:
            made = found()
            if made is not None:
                return made
            if time.monotonic() > self.end:
                raise TimedOut("the other ranks did not come: all of them must call leat.prep.decoded")
            time.sleep(0.05)

    def wait(self, ws: WorkingSet) -> None:
        try:
            ws.wait(timeout=max(1.0, self.end - time.monotonic()))
        except TimedOut:
            raise TimedOut(f"{ws.uri}: samples of other ranks did not come; all of them must call leat.prep.decoded") from None

    # --- sizes ---

    def chunks(self, ids: range) -> Iterator[tuple[int, Any]]:
        for first in range(ids.start, ids.stop, _CHUNK):
            with self.ws.read_batch(range(first, min(first + _CHUNK, ids.stop))) as batch:
                yield first, batch

    def push_sizes(self, sizes: WorkingSet, ids: range) -> None:
        for first, batch in self.chunks(ids):
            value = batch[self.field]
            made = np.array([self.size(value[i].data) for i in range(len(value))], np.uint32)
            del value
            sizes.push(first, made)

    def size(self, data: memoryview) -> tuple[int, int]:
        """(height, width) that a picture is kept with; (0, 0): it stays as it is."""
        try:
            if bytes(data[:2]) == b"\xff\xd8":
                width, height, _ = _prep.size(data, self.max_pixels, not self.orient)
            else:
                width, height = _foreign_size(data, self.orient)
        except Exception:
            return 0, 0
        if width * height > self.max_pixels:
            return 0, 0
        short, long = min(width, height), max(width, height)
        if self.shorter is not None and short > self.shorter:
            short, long = self.shorter, self.shorter * long // short
            if long > _MAX_EDGE:
                return 0, 0
        return (short, long) if height <= width else (long, short)

    # --- pixels ---

    def create(self, name: str, sizes: WorkingSet) -> WorkingSet:
        ws, n = self.ws, len(self.ws)
        fields: dict[str, Any] = {}
        lengths: dict[str, Any] = {}
        for field in ws.fields:
            if not field.ragged:
                fields[field.name] = ("<i8", ()) if field.kind == "label" else (field.dtype, field.shape)
                continue
            fields[field.name] = bytes
            lengths[field.name] = np.fromiter((ws._set.field_bytes(i, field.number) or 0 for i in range(n)), np.uint64, n)
        at = lengths[self.field]
        for first in range(0, n, 4096):
            last = min(first + 4096, n)
            with sizes.read_batch(range(first, last)) as batch:
                for i, (height, width) in enumerate(np.asarray(batch["size"]).tolist()):
                    if height:
                        at[first + i] = len(header(height, width)) + 3 * height * width
        numbered = ws.key(0) == "0" and ws.key(n - 1) == str(n - 1)
        try:
            return _created(name, fields, n, None if numbered else list(ws.keys()), lengths, ws)
        except Error:
            made = _find(name, ws)  # another rank was faster
            if made is None:
                raise
            return made

    def push(self, made: WorkingSet, ids: range) -> None:
        number = made.field(self.field).number
        with concurrent.futures.ThreadPoolExecutor(self.threads, "leat-decode") as pool:
            for first, batch in self.chunks(ids):
                data: dict[str, Any] = {}
                for field in self.ws.fields:
                    value = batch[field.name]
                    if field.name == self.field:
                        rooms = [made._set.field_bytes(first + i, number) or 0 for i in range(len(value))]
                        data[field.name] = list(pool.map(self.decode, [value[i].data for i in range(len(value))], rooms))
                    else:
                        data[field.name] = value.tolist() if isinstance(value, Ragged) else value
                    del value
                made.push(first, data)

    def decode(self, data: memoryview, room: int) -> bytes:
        """The stored bytes of a picture: exactly `room` of them."""
        height, width = self.size(data)
        head = header(height, width) if height else b""
        if not height or len(head) + 3 * height * width != room:
            return bytes(data[:room]).ljust(room, b"\0")
        out = bytearray(room)
        out[: len(head)] = head
        pixels = np.frombuffer(out, np.uint8)[len(head) :].reshape(height, width, 3)
        try:
            if bytes(data[:2]) == b"\xff\xd8":
                _prep.resize_into(data, pixels, self.max_pixels, not self.orient)
            else:
                pixels[...] = _foreign(data, self.orient, self.max_pixels, (width, height))
        except Exception:
            return bytes(data[:room]).ljust(room, b"\0")
        return bytes(out)


def header(height: int, width: int) -> bytes:
    """
    >>> header(2, 3)
    b'P6\\n3 2\\n255\\n'
    """
    return b"P6\n%d %d\n255\n" % (width, height)


def _foreign_size(data: memoryview, orient: bool) -> tuple[int, int]:
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=images.FORMATS) as picture:
        width, height = picture.size
        return (height, width) if orient and picture.getexif().get(0x0112, 1) >= 5 else (width, height)


def _foreign(data: memoryview, orient: bool, max_pixels: int, size: tuple[int, int]) -> Array:
    from PIL import Image

    pixels = images.foreign(data, orient, max_pixels, Invalid("no JPEG"))
    if pixels.shape[1::-1] == size:
        return pixels
    return np.asarray(Image.fromarray(pixels).resize(size, Image.BILINEAR))
