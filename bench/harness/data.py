# SPDX-License-Identifier: Apache-2.0
"""The datasets, made once out of a seed (bench/make_data.c)."""
import collections
import os
import subprocess

SEED = 20
KIB, MIB = 1024, 1024 * 1024

Array = collections.namedtuple("Array", "name samples sample_bytes path")
Files = collections.namedtuple("Files", "name files path bytes")

#         name    samples  bytes of one      A: an image of 224 x 224 x 3; B: small records
SIZES = {"4k": (65536, 4 * KIB), "64k": (16384, 64 * KIB), "150k": (8192, 150528), "1m": (1024, MIB)}
MANY = 10_000_000  # samples of 64 bytes: what must not make `open` slow
FILES, MEAN, SIGMA = 16384, 110_000, 0.5  # C


class Data:
    """Makes a dataset the first time it is asked for; `scale` divides the number of samples."""

    def __init__(self, folder, build, scale=1):
        self.folder, self.maker, self.scale = folder, os.path.join(build, "bench/make_data"), scale
        os.makedirs(folder, exist_ok=True)

    def _make(self, path, *args):
        """The data, and beside it `path`.done with what the maker printed: half-made data is made again."""
        done = path + ".done"
        if not os.path.exists(done):
            out = subprocess.run([self.maker, *map(str, args)], check=True, capture_output=True, text=True).stdout
            with open(done, "w") as f:
                f.write(out)
        with open(done) as f:
            return f.read().strip()

    def array(self, name):
        if name == "many":
            samples, sample_bytes = MANY // self.scale, 64
        else:
            samples, sample_bytes = SIZES[name]
            samples //= self.scale
        path = os.path.join(self.folder, f"{name}-{samples}-{SEED}.npy")
        self._make(path, "npy", path, samples, sample_bytes, SEED)
        return Array(name, samples, sample_bytes, path)

    def sized(self, samples, sample_bytes):
        path = os.path.join(self.folder, f"sized-{samples}x{sample_bytes}-{SEED}.npy")
        self._make(path, "npy", path, samples, sample_bytes, SEED)
        return path

    def files(self, count=FILES):
        n = count // self.scale
        path = os.path.join(self.folder, f"files-{n}-{SEED}")
        total = self._make(path, "files", path, n, MEAN, SIGMA, SEED)
        return Files("files", n, path, int(total))
