# SPDX-License-Identifier: Apache-2.0
"""leat.prep beside Pillow, which uses the same libjpeg and whose resampling it follows; and what it does with bad pictures."""

import io
import os
import struct

import pytest

leat = pytest.importorskip("leat", reason="the Python extension is not built")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed (python3-pil)")
import numpy as np  # noqa: E402
from PIL import ImageOps  # noqa: E402

import leat.prep as prep  # noqa: E402

RNG = np.random.default_rng(7)
MEAN, STD = np.array(prep.IMAGENET_MEAN), np.array(prep.IMAGENET_STD)
PILLOW = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC}


def picture(width, height, mode="RGB"):
    """Smooth shapes, edges and some noise: what a photograph has."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    bands = 4 if mode == "CMYK" else 1 if mode == "L" else 3
    data = np.stack([127 + 90 * np.sin(x / (7 + 5 * b) + b) * np.cos(y / (11 + 3 * b)) + 30 * ((x + y * (b + 1)) % 40 > 20)
                     + RNG.normal(0, 6, (height, width)) for b in range(bands)], -1)
    return Image.fromarray(data.clip(0, 255).astype(np.uint8).squeeze(-1) if bands == 1 else data.clip(0, 255).astype(np.uint8), mode)


def jpeg(image, **options):
    out = io.BytesIO()
    image.save(out, "JPEG", **{"quality": 90, **options})
    return out.getvalue()


def reference(data, transform, index, epoch, filter, size):
    """What Pillow makes of it: float levels of the cropped, resized, flipped image."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    left, top, width, height, flip = transform.crop(*image.size, index, epoch=epoch)
    image = image.crop((left, top, left + width, top + height)).resize(size, PILLOW[filter])
    array = np.asarray(image).astype(int)
    return array[:, ::-1] if flip else array


def off(got, want):
    """Greatest and mean difference in levels."""
    difference = np.abs(got.astype(int) - want)
    return difference.max(), difference.mean()


KINDS = {
    "420": lambda w, h: jpeg(picture(w, h), subsampling=2), "422": lambda w, h: jpeg(picture(w, h), subsampling=1),
    "444": lambda w, h: jpeg(picture(w, h), subsampling=0), "gray": lambda w, h: jpeg(picture(w, h, "L")),
    "progressive": lambda w, h: jpeg(picture(w, h), progressive=True), "cmyk": lambda w, h: jpeg(picture(w, h, "CMYK")),
    "optimized": lambda w, h: jpeg(picture(w, h), optimize=True, quality=40),
}


@pytest.mark.parametrize("kind", KINDS)
def test_decode_is_pillows(kind):
    for size in ((469, 387), (17, 33), (8, 8), (1, 1), (640, 3)):
        data = KINDS[kind](*size)
        want = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
        got = prep.decode_jpeg(data)
        assert got.shape == want.shape and prep.jpeg_size(data) == want.shape[:2]
        assert off(got, want)[0] <= (1 if kind == "cmyk" else 0)


@pytest.mark.parametrize("filter, most, mean", [("bilinear", 1, 0.3), ("bicubic", 3, 0.3)])
@pytest.mark.parametrize("kind", KINDS)
def test_random_crops_are_pillows(kind, filter, most, mean):
    transform = prep.RandomResizedCrop((96, 112), dtype="uint8", layout="hwc", interpolation=filter, exact=True, seed=3)
    for size in ((469, 387), (301, 200), (64, 48), (33, 470)):
        files = [KINDS[kind](*size)] * 12
        got = transform(files, range(100, 112), epoch=2)
        for i, data in enumerate(files):
            worst, average = off(got[i], reference(data, transform, 100 + i, 2, filter, (112, 96)))
            assert worst <= most and average <= mean, (size, i)


def test_the_decoder_shrinks_for_large_crops():
    """Not Pillow's way, so close and no more: the decoder averages blocks where Pillow weighs pixels."""
    data = jpeg(picture(1600, 1200))
    transform = prep.RandomResizedCrop(128, dtype="uint8", layout="hwc", scale=(0.7, 1.0))
    got = transform([data] * 6)
    exact = prep.RandomResizedCrop(128, dtype="uint8", layout="hwc", scale=(0.7, 1.0), exact=True)([data] * 6)
    assert 0 < np.abs(got.astype(int) - exact).mean() < 2.5


@pytest.mark.parametrize("size", [(469, 387), (387, 469), (256, 256), (300, 2000), (91, 85), (1500, 1100)])
def test_validation_is_pillows(size):
    data = jpeg(picture(*size))
    got = prep.CenterCrop(224, resize=256, dtype="uint8", layout="hwc", exact=True)([data])[0]
    image = Image.open(io.BytesIO(data))
    short = min(size)
    image = image.resize(tuple(256 if edge == short else 256 * edge // short for edge in size), Image.BILINEAR)
    left, top = round((image.width - 224) / 2), round((image.height - 224) / 2)
    worst, mean = off(got, np.asarray(image.crop((left, top, left + 224, top + 224))).astype(int))
    assert worst <= 1 and mean <= 0.3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = jpeg(picture(301, 200), exif=exif)
    want = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))).astype(int)
    assert np.array_equal(prep.decode_jpeg(data), want)
    assert prep.jpeg_size(data) == want.shape[:2] and prep.jpeg_size(data, orient=False) == (200, 301)
    assert prep.decode_jpeg(data, orient=False).shape == (200, 301, 3)
    for layout in ("hwc", "chw"):
        transform = prep.RandomResizedCrop((90, 70), dtype="uint8", layout=layout, exact=True)
        got = transform([data] * 8)
        for i in range(8):
            one = got[i] if layout == "hwc" else got[i].transpose(1, 2, 0)
            assert off(one, reference(data, transform, i, 0, "bilinear", (70, 90)))[0] <= 1


def bfloat16(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize("size", [(224, 224), (61, 1), (7, 30)])
def test_formats_and_layouts_agree(size):
    files = [jpeg(picture(469, 387)) for _ in range(3)]
    made = {(dtype, layout): prep.RandomResizedCrop(size, dtype=dtype, layout=layout, seed=5)(files)
            for dtype in ("uint8", "float32", "bfloat16") for layout in ("chw", "hwc")}
    for dtype in ("uint8", "float32", "bfloat16"):
        assert np.array_equal(made[dtype, "chw"].transpose(0, 2, 3, 1), made[dtype, "hwc"])
    real = made["float32", "hwc"]
    levels = (real * STD + MEAN) * 255
    assert np.abs(levels - made["uint8", "hwc"]).max() <= 0.501
    assert np.array_equal(bfloat16(real), made["bfloat16", "hwc"])


def test_a_slot_with_strides():
    files = [jpeg(picture(120, 90)) for _ in range(2)]
    transform = prep.RandomResizedCrop((20, 30), seed=1)
    want = transform(files)
    room = np.full((2, 5, 24, 37), 9, np.float32)
    transform(files, out=room[:, 1:4, 2:22, 3:33])
    assert np.array_equal(room[:, 1:4, 2:22, 3:33], want)
    room[:, 1:4, 2:22, 3:33] = 9
    assert (room == 9).all()
    with pytest.raises(ValueError, match="out: wanted"):
        transform(files, out=room)
    with pytest.raises((ValueError, BufferError)):
        read_only = want.copy()
        read_only.flags.writeable = False
        transform(files, out=read_only)


def test_the_same_whatever_the_threads_and_the_order():
    files = [jpeg(picture(200 + i, 150 + 2 * i)) for i in range(16)]
    one = prep.RandomResizedCrop(64, seed=9, threads=1)(files, epoch=4)
    assert np.array_equal(prep.RandomResizedCrop(64, seed=9, threads=3)(files, epoch=4), one)
    backwards = prep.RandomResizedCrop(64, seed=9, threads=2)(files[::-1], range(15, -1, -1), epoch=4)
    assert np.array_equal(backwards[::-1], one)
    assert not np.array_equal(prep.RandomResizedCrop(64, seed=9)(files, epoch=5), one)
    assert not np.array_equal(prep.RandomResizedCrop(64, seed=8)(files, epoch=4), one)


def test_fork_with_threads():
    files = [jpeg(picture(100, 80))] * 8
    transform = prep.RandomResizedCrop(32, threads=3)
    want = transform(files)
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(transform(files), want) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_crops_are_spread_as_torchvisions():
    transform = prep.RandomResizedCrop(224, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
    crops = np.array([transform.crop(500, 400, i) for i in range(4000)], float)
    area, ratio = crops[:, 2] * crops[:, 3] / 200000, crops[:, 2] / crops[:, 3]
    assert (crops[:, 0] + crops[:, 2] <= 500).all() and (crops[:, 1] + crops[:, 3] <= 400).all()
    assert area.min() < 0.1 and area.max() > 0.95 and 0.74 < ratio.min() < 0.76 and 1.32 < ratio.max() < 1.35
    assert abs(crops[:, 4].mean() - 0.5) < 0.03
    assert transform.crop(1000, 10, 1)[2:4] == (13, 10) and transform.crop(10, 1000, 1)[2:4] == (10, 13)  # the fallback


# --- bad pictures ---------------------------------------------------------------------------------------------------


def refused(data, error, message, **options):
    with pytest.raises(error, match=message):
        prep.decode_jpeg(data, **options)
    with pytest.raises(error, match=message):
        prep.RandomResizedCrop(32, scale=(1, 1), ratio=(0.01, 100), **options)([data])


def test_what_is_no_jpeg():
    refused(b"", leat.Corrupt, "empty")
    refused(b"\x89PNG\r\n\x1a\n" + bytes(100), leat.Corrupt, "Not a JPEG")
    refused(b"\xff\xd8", leat.Corrupt, "truncated")


def test_truncated():
    for options in ({}, {"progressive": True}):
        data = jpeg(picture(300, 200), **options)
        for keep in (len(data) // 3, len(data) * 3 // 4):
            refused(data[:keep], leat.Corrupt, "truncated")
            assert prep.decode_jpeg(data[:keep], accept_damaged=True).shape == (200, 300, 3)
    data = jpeg(picture(300, 200))
    assert np.array_equal(prep.decode_jpeg(data[:-2]), prep.decode_jpeg(data))  # nothing but the end marker is missing


def test_damage_in_the_middle():
    data = bytearray(jpeg(picture(300, 200)))
    middle = len(data) // 2
    data[middle:middle + 4] = b"\xff\xd9\xff\xd9"
    refused(bytes(data), leat.Corrupt, "JPEG: ")
    assert prep.decode_jpeg(bytes(data), accept_damaged=True).shape == (200, 300, 3)


def test_bombs_are_refused_by_the_header():
    data = bytearray(jpeg(Image.new("L", (16, 16))))
    at = data.index(b"\xff\xc0")
    data[at + 5:at + 9] = struct.pack(">HH", 20000, 20000)
    refused(bytes(data), leat.Invalid, "20000 x 20000")
    refused(jpeg(picture(100, 100)), leat.Invalid, "limit of 9999", max_pixels=9999)
    data = bytearray(jpeg(picture(32, 32), progressive=True))
    at = data.index(b"\xff\xc2")
    data[at + 5:at + 9] = struct.pack(">HH", 13000, 13000)
    refused(bytes(data), leat.Unsupported, "progressive")


def test_twelve_bits():
    data = bytearray(jpeg(picture(32, 32)))
    data[data.index(b"\xff\xc0") + 4] = 12
    refused(bytes(data), leat.Unsupported, "12 bits")


def test_one_bad_picture_of_a_batch():
    files = [jpeg(picture(64, 64))] * 4
    transform = prep.RandomResizedCrop(32, scale=(1, 1), threads=2)
    want = transform(files)
    files[2] = files[2][:len(files[2]) // 2]
    out = np.zeros_like(want)
    with pytest.raises(leat.Corrupt, match="image 2 of the batch: this JPEG is truncated"):
        transform(files, out=out)
    for i in (0, 1, 3):
        assert np.array_equal(out[i], want[i])
    [(i, code, message)] = transform.run(files, range(4), out=out)
    assert i == 2 and message == "this JPEG is truncated"


@pytest.mark.parametrize("wrong", [{"scale": (0, 1)}, {"scale": (0.5, 2)}, {"ratio": (2, 1)}, {"flip": 1.5}, {"std": (0, 1, 1)},
                                   {"mean": (float("nan"), 0, 0)}])
def test_wrong_parameters(wrong):
    with pytest.raises(leat.Invalid):
        prep.RandomResizedCrop(32, **wrong)
    with pytest.raises(leat.Invalid):
        prep.RandomResizedCrop(0)
    with pytest.raises(leat.Invalid, match="-3 x -3 pixels"):
        prep.RandomResizedCrop(-3)
    with pytest.raises(leat.Invalid, match="resize"):
        prep.CenterCrop(224, resize=200)
