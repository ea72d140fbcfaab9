# SPDX-License-Identifier: Apache-2.0
"""JPEGs to samples: decoded, cropped, resized, flipped and normalised in C, in threads, into arrays that are there already.

>>> import leat.prep
>>> crop = leat.prep.RandomResizedCrop(224, seed=7)
>>> images = crop(files, indices=range(len(files)))              # float32, N x 3 x 224 x 224, as torchvision's with antialias=True
>>> images = crop(files, indices=ids, epoch=3, out=slot)         # where the caller wants it

In a loader nothing of Python runs per sample, and seed, epoch and the number of threads are the loader's:

>>> loader = leat.Loader(ws, 64, fields={"image": "jpg", "label": "cls"}, transform=leat.prep.RandomResizedCrop(224))

The crop of a sample is a function of (seed, epoch, index) alone. Besides JPEGs binary PPMs (P6) are taken, pixels that were decoded before;
a loader has other formats (PNG, WebP) decoded by Pillow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import _prep
from ._base.arguments import seed_of, whole
from ._sets.batch import Array
from ._base.errors import _make
from ._decode.pixels import decoded
from ._decode.images import MAX_PIXELS, Prep

__all__ = ["CenterCrop", "RandomResizedCrop", "decode_jpeg", "decoded", "jpeg_size"]

_prep._set_error_maker(_make)

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_FILTERS = {"bilinear": 0, "bicubic": 1}
_FORMATS = {"uint8": (0, np.uint8), "float32": (1, np.float32), "bfloat16": (2, np.uint16)}


def jpeg_size(data: Any, *, max_pixels: int = 0, orient: bool = True) -> tuple[int, int]:
    """(height, width) as decode_jpeg would give them, from the header."""
    width, height, _ = _prep.size(data, max_pixels, not orient)
    return height, width


def decode_jpeg(data: Any, *, max_pixels: int = 0, accept_damaged: bool = False, orient: bool = True) -> Array:
    """The whole image: uint8, height x width x 3 (RGB), turned as EXIF says unless orient=False.

    Raises leat.Corrupt (damaged, truncated), leat.Unsupported (12 bits, lossless), leat.Invalid (more than max_pixels).
    """
    height, width = jpeg_size(data, max_pixels=max_pixels, orient=orient)
    out = np.empty((height, width, 3), np.uint8)
    _prep.decode_into(data, out, max_pixels, accept_damaged, not orient)
    return out


def _edges(size: Any) -> tuple[int, int]:
    """(height, width)."""
    if isinstance(size, (tuple, list)) and len(size) == 2:
        return whole("height", size[0]), whole("width", size[1])
    if not hasattr(size, "__index__"):
        raise TypeError(f"size={size!r}: the edge of a square in pixels, or (height, width)")
    return whole("size", size), whole("size", size)


def _check_one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: one of {', '.join(map(repr, allowed))}")


class _Transform(Prep):
    def __init__(self, mode: int, size: int | tuple[int, int], *, scale: tuple[float, float] = (0.08, 1.0),
                 ratio: tuple[float, float] = (3 / 4, 4 / 3), flip: float = 0.5, resize: int = 256, interpolation: str = "bilinear",
                 dtype: str = "float32", layout: str = "chw", mean: Sequence[float] = IMAGENET_MEAN,
                 std: Sequence[float] = IMAGENET_STD, seed: int = 0, threads: int = 1, max_pixels: int = 0,
                 accept_damaged: bool = False, orient: bool = True, exact: bool = False) -> None:
        height, width = _edges(size)
        _check_one_of("interpolation", interpolation, _FILTERS)
        _check_one_of("dtype", dtype, _FORMATS)
        _check_one_of("layout", layout, ("chw", "hwc"))
        for name, values, count in (("scale", scale, 2), ("ratio", ratio, 2), ("mean", mean, 3), ("std", std, 3)):
            if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != count:
                raise ValueError(f"{name}={values!r}: {count} numbers")
        number, self.dtype = _FORMATS[dtype]
        self.seed = seed_of(seed)
        self.shape = (3, height, width) if layout == "chw" else (height, width, 3)
        self.bfloat16 = dtype == "bfloat16"
        self.max_pixels, self.orient, self._threads = max_pixels or MAX_PIXELS, orient, threads
        self.args = (mode, _FILTERS[interpolation], number, layout == "chw", height, width, tuple(scale), tuple(ratio), flip, resize,
                     tuple(mean), tuple(std), max_pixels, accept_damaged, not orient, exact)
        self._transform = self.bind(threads)

    def bind(self, threads: int) -> Any:
        return _prep.Transform(*(*self.args, threads))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_transform"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._transform = self.bind(self._threads)

    def __call__(self, buffers: Sequence[Any], indices: Sequence[int] | None = None, *, epoch: int = 0,
                 out: Any = None) -> Any:
        """Prepares a batch into `out` (any writable buffer of N samples of self.shape and self.dtype; bfloat16 as uint16), or a
        fresh array. Raises for the first sample that can not be prepared; the others are there all the same."""
        if isinstance(buffers, (bytes, bytearray, memoryview)) or not hasattr(buffers, "__len__"):
            raise TypeError("a batch of encoded pictures is wanted: a list of bytes, also of one")
        if out is None:
            out = np.empty((len(buffers), *self.shape), self.dtype)
        failed = self.run(buffers, range(len(buffers)) if indices is None else indices, epoch=epoch, out=out)
        if failed:
            i, code, message = failed[0]
            more = f" (and {len(failed) - 1} more of this batch)" if len(failed) > 1 else ""
            raise _make(code, None, f"image {i} of the batch: {message}{more}")
        return out

    def run(self, buffers: Sequence[Any], indices: Sequence[int], *, epoch: int = 0, out: Any) -> list[tuple[int, int, str]]:
        """The same, but gives [(position in the batch, code, message)] of those that failed instead of raising."""
        failed: list[tuple[int, int, str]] = self._transform.run(buffers, indices, self.seed, epoch, out)
        return failed


class RandomResizedCrop(_Transform):
    """torchvision's RandomResizedCrop(size, scale, ratio, antialias=True), RandomHorizontalFlip(flip), normalisation.

    size            edge of a square in pixels, or (height, width)
    scale, ratio    (least, most) share of the picture's area, and width / height, of a crop
    flip            probability of a horizontal flip; 0: none
    interpolation   "bilinear", "bicubic"
    dtype           "float32", "bfloat16" ((level / 255 - mean) / std) or "uint8" (levels of 0 to 255; mean and std do not count)
    layout          "chw" or "hwc"
    mean, std       of each channel, of levels of 0 to 1: ImageNet's
    seed, threads   outside of a loader, which has its own
    max_pixels      a picture of more, by its header, is `leat.Invalid`; 0: 178,956,970
    accept_damaged  take the readable part of a truncated or damaged file
    orient          turn the picture as EXIF says
    exact           False lets the decoder shrink by 2, 4 or 8 where the crop is at least so many times the output
    """

    def __init__(self, size: int | tuple[int, int], *, scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3),
                 flip: float = 0.5, interpolation: str = "bilinear", dtype: str = "float32", layout: str = "chw",
                 mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD, seed: int = 0, threads: int = 1,
                 max_pixels: int = 0, accept_damaged: bool = False, orient: bool = True, exact: bool = False) -> None:
        super().__init__(0, size, scale=scale, ratio=ratio, flip=flip, interpolation=interpolation, dtype=dtype, layout=layout, mean=mean,
                         std=std, seed=seed, threads=threads, max_pixels=max_pixels, accept_damaged=accept_damaged, orient=orient, exact=exact)

    def crop(self, width: int, height: int, index: int, *, epoch: int = 0) -> tuple[int, int, int, int, bool]:
        """left, top, width, height, flip of a sample's crop in an image of this size."""
        found: tuple[int, int, int, int, bool] = self._transform.crop(width, height, self.seed, epoch, index)
        return found


class CenterCrop(_Transform):
    """torchvision's Resize(resize, antialias=True), CenterCrop(size), normalisation: for validation. `resize` is the shorter edge in
    pixels before the crop; the other options are RandomResizedCrop's, but exact=True by default: figures of a validation are
    compared with those of others."""

    def __init__(self, size: int | tuple[int, int], *, resize: int = 256, interpolation: str = "bilinear", dtype: str = "float32",
                 layout: str = "chw", mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD, seed: int = 0,
                 threads: int = 1, max_pixels: int = 0, accept_damaged: bool = False, orient: bool = True, exact: bool = True) -> None:
        super().__init__(1, size, resize=resize, interpolation=interpolation, dtype=dtype, layout=layout, mean=mean, std=std, seed=seed,
                         threads=threads, max_pixels=max_pixels, accept_damaged=accept_damaged, orient=orient, exact=exact)
