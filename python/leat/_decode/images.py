# SPDX-License-Identifier: Apache-2.0
"""Pictures of a batch through `leat.prep`: from the raw bytes in its slot straight into the output slot, in C, without the GIL.

Happy path: `split` finds the prep among a loader's transforms and the column it is for; `Stages.run` prepares a chunk's pictures with
one call into C a column, then moves labels, numbers and arrays as whole columns. Without a Python transform nothing runs per sample.

Failure modes: a picture that fails is an entry of the failures, as in the engines of `_loader/workers.py`. Other formats go to Pillow, whose pixels are then
prepared alike (the same crop, the same sums).
Invariant: a prepared picture depends on (seed, epoch, index) and its bytes alone. This module does not load libjpeg: leat.prep does.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Union

import numpy as np

from .._base.arguments import check_function, near
from .._base.errors import Corrupt, Invalid, _make
from .._sets.batch import Array, Batch, Ragged
from .._sets.fields import Column
from .decode import Layout, decode_cls, decode_image, decode_json, decode_txt

_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
_MAX_THREADS = 256
MAX_PIXELS = 178956970  # PREP_MAX_PIXELS
#: Formats that Pillow may decode: those with a signature. Some of its others accept nearly any bytes.
FORMATS = ("PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "PPM")


class Prep:
    """Base of the classes of leat.prep: parameters, and how to make the C object out of them. Pickles."""

    shape: tuple[int, ...]
    dtype: Any
    args: tuple[Any, ...]
    max_pixels: int
    orient: bool
    bfloat16: bool

    def bind(self, threads: int) -> Any:
        """A _prep.Transform with that many threads."""
        raise NotImplementedError


#: The types of a loader's transform.
Transform = Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]
Transforms = Union[Transform, Prep, Mapping[str, Prep], Sequence[Union[Transform, Prep, Mapping[str, Prep]]]]


def split(transform: Any, columns: Sequence[Column]) -> tuple[dict[str, Prep], Transform | None]:
    """(the preps by column, the Python transform after them) of a transform= argument."""
    parts = list(transform) if isinstance(transform, (list, tuple)) else [] if transform is None else [transform]
    preps: dict[str, Prep] = {}
    while parts and isinstance(parts[0], (Prep, Mapping)):
        part = parts.pop(0)
        for name, prep in part.items() if isinstance(part, Mapping) else [(_picture(columns), part)]:
            column = next((c for c in columns if c.name == name), None)
            if not isinstance(prep, Prep):
                raise TypeError(f"transform: for {name!r} {prep!r} was given, not one of leat.prep")
            if column is None:
                raise ValueError(f"transform: no field {name!r}; {near(name, [c.name for c in columns])}")
            if not takes(column):
                raise ValueError(f"transform: field {name!r} ({column.field!r}) is no picture: leat.prep takes encoded pictures, "
                                 "and arrays of uint8 of shape (height, width, 3)")
            if name in preps:
                raise ValueError(f"transform: field {name!r} has two of leat.prep")
            preps[name] = prep
    for part in parts:
        if isinstance(part, (Prep, Mapping)):
            raise TypeError(f"transform: {part!r}: functions come after those of leat.prep")
        check_function("transform", part, "transform(sample, rng)", count=2)
    if len(parts) > 1:
        return preps, _Chain(parts)
    return preps, parts[0] if parts else None


class _Chain:
    """Functions one after the other. Pickles, if they do."""

    def __init__(self, parts: Sequence[Transform]) -> None:
        self._parts = tuple(parts)

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        for part in self._parts:
            sample = part(sample, rng)
        return sample


def takes(column: Column) -> bool:
    field = column.field
    if field.kind == "raw":
        return column.decoder in (None, decode_image)
    return field.kind == "array" and column.decoder is None and not field.ragged and _is_pixels(field)


def _is_pixels(field: Any) -> bool:
    return bool(field.dtype == np.uint8 and len(field.shape) == 3 and field.shape[2] == 3)


def _picture(columns: Sequence[Column]) -> str:
    """The one column that is a picture: by its decoder, else by its name, else the only one that could be."""
    able = [c for c in columns if takes(c)]
    for found in ([c for c in able if c.decoder is decode_image or c.field.kind == "array"],
                  [c for c in able if c.field.name in ("jpg", "jpeg", "png")], able):
        if len(found) == 1:
            return found[0].name
        if found:
            names = ", ".join(c.name for c in found)
            raise ValueError(f"transform: which of {names} is the picture? Give {{name: leat.prep....}}")
    raise ValueError(f"transform: none of the fields {', '.join(c.name for c in columns)} is a picture")


def cores() -> int:
    """Threads for num_workers=0: the cores that this process may use (affinity and the cgroup's quota). Where torchrun has started
    several ranks on this host, or Slurm or Open MPI without tying each to cores of its own, this one's share of them."""
    able = len(os.sched_getaffinity(0))
    tied = able < (os.cpu_count() or 1)
    count = min(able, _quota() or able)
    for name in _LOCAL_SIZES:
        text = os.environ.get(name, "")
        if text.isdigit() and int(text) > 0:
            if name == "LOCAL_WORLD_SIZE" or not tied:
                count //= int(text)
            break
    return max(1, min(count, _MAX_THREADS))


def _quota() -> int | None:
    """Cores' worth of time that the cgroup gives."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()[:2]
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return None


class _Bound:
    """The preps' objects of C, with so many threads, and whose turn it is."""

    def __init__(self, preps: Mapping[str, Prep], threads: int) -> None:
        self.preps = {name: prep.bind(threads) for name, prep in preps.items()}
        self.turn = threading.Lock()


class _Own(threading.local):
    bound: _Bound | None = None
    waited_s = 0.0


class Stages:
    """The preps of a loader. Pickles; threads of its own start with the first run."""

    def __init__(self, preps: Mapping[str, Prep], columns: Sequence[Column], alone: bool) -> None:
        self.preps = dict(preps)
        #: True: no Python transform follows, results go where they are to be.
        self.alone = alone
        self.rest = tuple(c for c in columns if c.name not in preps)
        #: Columns that move as a whole.
        self.whole = tuple(c for c in self.rest if c.decoder is decode_cls and c.field.kind == "raw"
                           or c.decoder is None and not c.field.ragged) if alone else ()
        self.single = tuple(c for c in self.rest if c not in self.whole)
        #: Threads are the preps' own: nothing comes after them that would keep the GIL for long.
        self.in_c = alone and all(c.decoder in (None, decode_json, decode_txt) for c in self.single)
        self._shared: _Bound | None = None  # by all threads of Python
        self._own = _Own()  # of each

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shared": None, "_own": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _own=_Own())

    def start(self, threads: int) -> None:
        """Before several threads call `run`: makes what they share, so many threads of C. Without it each is one by itself."""
        self._shared = _Bound(self.preps, threads)
        nothing, offsets = np.empty(0, np.uint64), np.zeros(1, np.uint64)
        for name, prep in self.preps.items():
            self._shared.preps[name].run_packed(nothing, offsets, nothing, 0, 0, np.empty((0, *prep.shape), prep.dtype), 0, 0)

    def stop(self) -> None:
        """Ends the threads after the last `run`."""
        self._shared, self._own = None, _Own()

    def take_waited(self) -> float:
        """Seconds that this thread waited for others to leave the threads of C, since the last call."""
        waited, self._own.waited_s = self._own.waited_s, 0.0
        return waited

    def _bound(self) -> _Bound:
        if self._shared is not None:
            return self._shared
        if self._own.bound is None:  # a transform of C's has one batch at a time: threads that shared one would take turns
            self._own.bound = _Bound(self.preps, 1)
        return self._own.bound

    def layout(self) -> Layout:
        return {name: (np.dtype(prep.dtype).str, prep.shape) for name, prep in self.preps.items()}

    def run(self, batch: Batch, lo: int, hi: int, ids: Array, seed: int, epoch: int,
            outs: Mapping[str, Array] | None) -> tuple[dict[str, Array], dict[int, BaseException]]:
        """Samples [lo, hi) of a raw batch, whose numbers are `ids`: pictures into outs[name][0 .. hi - lo), or into arrays of
        its own. Returns the arrays by name, and what happened to the others by place (0 for lo)."""
        made: dict[str, Array] = {}
        failed: dict[int, BaseException] = {}
        ids = np.ascontiguousarray(ids, np.uint64)
        here = self._bound()
        for name, prep in self.preps.items():
            bound = here.preps[name]
            out = made[name] = outs[name] if outs is not None else np.empty((hi - lo, *prep.shape), prep.dtype)
            value = batch[name]
            if isinstance(value, Ragged):
                values, offsets, size = value.values, value.offsets[lo : hi + 1], (0, 0)
            else:
                assert isinstance(value, np.ndarray)
                bytes_each = int(np.prod(value.shape[1:]))
                values, size = value.reshape(-1), (value.shape[1], value.shape[2])
                offsets = np.arange(lo, hi + 1, dtype=np.uint64) * np.uint64(bytes_each)
            asked = perf_counter()
            with here.turn:
                self._own.waited_s += perf_counter() - asked
                wrong = bound.run_packed(values, offsets, ids, seed, epoch, out, *size)
            for i, code, message in wrong:
                data = values[int(offsets[i]) : int(offsets[i + 1])].data
                try:
                    if not len(data) and not batch.present(name)[lo + i]:
                        raise KeyError(f"no field {name!r}")
                    again(prep, bound, data, int(ids[i]), seed, epoch, out[i : i + 1], code, message)
                except Exception as error:
                    failed.setdefault(i, error)
        return made, failed

    def move(self, batch: Batch, lo: int, hi: int, outs: Mapping[str, Array]) -> dict[int, BaseException]:
        """The columns that move as a whole: [lo, hi) of a raw batch to outs[name][0 .. hi - lo)."""
        failed: dict[int, BaseException] = {}
        for column in self.whole:
            out, value = outs[column.name], batch[column.name]
            if column.decoder is None:
                assert isinstance(value, np.ndarray)
                out[...] = value[lo:hi]
                continue
            assert isinstance(value, Ragged)
            from .. import _prep  # it is there already: leat.prep has loaded it

            numbers = out if out.flags.c_contiguous and out.dtype == np.int64 else np.empty(hi - lo, np.int64)
            for i in _prep.numbers(value.values, value.offsets[lo : hi + 1], numbers):
                try:
                    part = value[lo + i]
                    if not len(part) and not batch.present(column.name)[lo + i]:
                        raise KeyError(f"no field {column.field.name!r}")
                    numbers[i] = decode_cls(part.data)
                except Exception as error:
                    failed.setdefault(i, error)
            if numbers is not out:
                out[...] = numbers
        return failed


def again(prep: Prep, bound: Any, data: memoryview, index: int, seed: int, epoch: int, out: Array, code: int, message: str) -> None:
    """Decodes a picture that the C code refused: by Pillow, if it is no JPEG; else returns the error."""
    if bytes(data[:2]) == b"\xff\xd8" or not len(data):
        raise _make(code, None, message)
    pixels = foreign(data, prep.orient, prep.max_pixels, _make(code, None, message))
    height, width = pixels.shape[:2]
    numbers, offsets = np.array([index], np.uint64), np.array([0, pixels.size], np.uint64)
    for _, code, message in bound.run_packed(pixels.reshape(-1), offsets, numbers, seed, epoch, out, height, width):
        raise _make(code, None, message)


def foreign(data: memoryview, orient: bool, max_pixels: int, refused: Exception) -> Array:
    """A picture of another format, decoded by Pillow: uint8, height x width x 3. `refused`: the JPEG decoder's error."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise type(refused)(f"{refused}: no JPEG, and Pillow, which might read it, is not installed") from None
    try:
        picture: Any = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise type(refused)(f"no picture that is known: {refused}") from None
    except Image.DecompressionBombError as error:
        raise Invalid(str(error)) from None
    with picture:
        width, height = picture.size
        if width * height > max_pixels:
            raise Invalid(f"a picture of {width} x {height} pixels: at most {max_pixels} are decoded")
        try:
            if orient:
                picture = ImageOps.exif_transpose(picture)
            return np.ascontiguousarray(picture if picture.mode == "RGB" else picture.convert("RGB"), np.uint8)
        except (OSError, SyntaxError) as error:
            raise Corrupt(f"{picture.format}: {error}") from error
