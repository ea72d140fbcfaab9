# SPDX-License-Identifier: Apache-2.0
"""Suite `loader`: what lies between resident bytes and a batch that a training loop takes.

jpeg.crop224          images a second and core: random crop to 224, flip, normalise, float32 CHW; the limit is what users do without: Pillow's full
                      decode and resize, NumPy's normalisation, of the same files; crops drawn alike, not the same ones
jpeg.beyond_entropy   CPU time of ours less that of entropy decoding alone (jpeg_read_coefficients of the whole file), over the latter
jpeg.beyond_entropy.strict   the same against entropy decoding that stops where ours stops and keeps nothing
*.asis                the same for the photographs as they are, instead of scaled to ImageNet's average

One thread, its CPU time, everything in turns in the same run; the ratios of jpeg.beyond_entropy are that of each turn. Pictures: the
JPEGs of Debian's opencv-doc. The default set is each of them scaled to an area of 469 x 387 in its own shape, 4:2:0, at the quality that
brings the set's mean closest to 104 KB from below: ImageNet's averages. Each row says the mean that it came to.
"""
import hashlib
import io
import os
import pathlib
import subprocess
import tempfile
import time

from . import batches, rivals
from .rows import in_turns, median, row
from .workers import Failed

PICTURES = pathlib.Path("/usr/share/doc/opencv-doc")
AREA, BYTES = 469 * 387, 104_000


def _photographs(args):
    """Folder of opencv-doc's pictures: installed, or unpacked from its package."""
    if any(PICTURES.rglob("*.jpg")):
        return PICTURES
    folder = pathlib.Path(args.folder) / "opencv-doc"
    folder.mkdir()
    subprocess.run(["apt-get", "download", "-q", "opencv-doc"], cwd=folder, capture_output=True)
    package = next(folder.glob("opencv-doc_*.deb"), None)
    if not package:
        raise Failed("the pictures of Debian's opencv-doc could not be had: apt-get install opencv-doc")
    subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
    return folder


def _usable(args):
    """Distinct photographs of at least 300 x 200 pixels that Pillow reads: icons and plots are no photographs."""
    from PIL import Image
    seen, found = set(), []
    for path in sorted(_photographs(args).rglob("*.jpg")):
        data = path.read_bytes()
        digest = hashlib.sha256(data).digest()
        with Image.open(io.BytesIO(data)) as image:
            if digest not in seen and image.mode == "RGB" and image.width >= 300 and image.height >= 200 and image.format == "JPEG":
                seen.add(digest)
                found.append(data)
    if not found:
        raise Failed("no JPEGs in opencv-doc")
    return found[:24 if args.quick else 96]


def _scaled(files):
    """ImageNet's average size and bytes; quality found by halving."""
    from PIL import Image
    images = []
    for data in files:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        by = (AREA / (image.width * image.height)) ** 0.5
        images.append(image.resize((round(image.width * by), round(image.height * by)), Image.LANCZOS))

    def at(quality):
        made = []
        for image in images:
            out = io.BytesIO()
            image.save(out, "JPEG", quality=quality, subsampling=2)
            made.append(out.getvalue())
        return made

    low, high = 50, 100
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sum(map(len, at(middle))) <= BYTES * len(images) else (low, middle)
    return at(low)


class Prep:
    """bench/prep_jpeg over a set of files."""

    def __init__(self, args, files):
        self.folder = tempfile.mkdtemp(dir=args.folder)
        paths = []
        for i, data in enumerate(files):
            paths.append(os.path.join(self.folder, f"{i}.jpg"))
            pathlib.Path(paths[-1]).write_bytes(data)
        self.process = subprocess.Popen([os.path.join(args.build, "bench/prep_jpeg"), *paths], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def ask(self, mode, epoch):
        """CPU seconds an image."""
        self.process.stdin.write(f"{mode} {epoch}\n")
        self.process.stdin.flush()
        words = self.process.stdout.readline().split()
        if len(words) != 2 or float(words[0]) <= 0:
            raise Failed(f"prep_jpeg {mode} failed")
        return float(words[0]) / int(words[1])

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def _pillow(files, epoch):
    """Full decode, crop and resize by Pillow, normalise by NumPy; CPU seconds an image. Crops from the same distribution."""
    import random

    import numpy as np
    from PIL import Image
    mean = np.array([0.485, 0.456, 0.406], np.float32)
    std = np.array([0.229, 0.224, 0.225], np.float32)
    scale, shift = 1 / (255 * std), mean / std
    rng, out = random.Random(epoch), np.empty((64, 3, 224, 224), np.float32)
    begin = time.thread_time()
    for i, data in enumerate(files):
        image = Image.open(io.BytesIO(data)).convert("RGB")
        w, h = image.size
        box = (0, 0, w, h)
        for _ in range(10):
            area, aspect = w * h * rng.uniform(0.08, 1), 2.718281828 ** rng.uniform(-0.28768, 0.28768)
            cw, ch = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
            if 0 < cw <= w and 0 < ch <= h:
                left, top = rng.randint(0, w - cw), rng.randint(0, h - ch)
                box = (left, top, left + cw, top + ch)
                break
        image = image.resize((224, 224), Image.BILINEAR, box=box)
        if rng.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        array = np.asarray(image, np.float32)
        array *= scale
        array -= shift
        out[i % 64] = array.transpose(2, 0, 1)
    return (time.thread_time() - begin) / len(files)


def _measure(args, emit, name, files):
    prep = Prep(args, files)
    epoch = [0]

    def turn():
        epoch[0] += 1
        return {"crop": prep.ask("crop", epoch[0])}

    try:
        prep.ask("crop", 0), prep.ask("entropy", 0), _pillow(files, 0)  # warm
        got = in_turns({"leat": turn, "entropy": lambda: {"": prep.ask("entropy", epoch[0])},
                        "strict": lambda: {"": prep.ask("entropy-crop", epoch[0])},
                        "decode": lambda: {"": prep.ask("decode", epoch[0])},
                        "pillow": lambda: {"": _pillow(files, epoch[0])}}, args.repeats)
    finally:
        prep.close()
    leat, whole, strict = got["leat"]["crop"], got["entropy"][""], got["strict"][""]
    facts = {"images": len(files), "mean_bytes": sum(map(len, files)) // len(files),
             "us": {key: round(1e6 * median(values), 1) for key, values in
                    [("crop", leat), ("entropy", whole), ("entropy_as_far", strict), ("decode", got["decode"][""]), ("pillow", got["pillow"][""])]}}
    if args.only.exactly("jpeg.crop224" + name):
        emit(row("jpeg.crop224" + name, "img/s", [1 / t for t in leat], [1 / t for t in got["pillow"][""]], {"full decode only": [
            1 / t for t in got["decode"][""]]}, "Pillow decode + resize, NumPy normalise", promise=1.2, **facts))
    for metric, base in (("jpeg.beyond_entropy" + name, whole), ("jpeg.beyond_entropy.strict" + name, strict)):
        if args.only.exactly(metric):
            emit(row(metric, "of entropy", [(a - b) / b for a, b in zip(leat, base)], 0.35, limit_name="at most", **facts))


def run(args, emit):
    scaled = []

    def pictures():
        if not scaled:
            try:
                import PIL  # noqa: F401
            except ImportError:
                raise Failed("the suite loader needs Pillow: apt-get install python3-pil, and Debian's python3") from None
            files = _usable(args)
            scaled.extend([files, _scaled(files)])
        return scaled[1]

    batches.run(args, emit)
    rivals.run(args, emit, pictures)
    names = ["jpeg.crop224", "jpeg.beyond_entropy", "jpeg.beyond_entropy.strict"]
    if not any([args.only.exactly(name + end) for name in names for end in ("", ".asis")]):  # of all: so that they are known
        return
    _measure(args, emit, "", pictures())
    _measure(args, emit, ".asis", scaled[0])
