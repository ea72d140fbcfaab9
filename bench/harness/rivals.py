# SPDX-License-Identifier: Apache-2.0
"""Suite `loader`, beside other loaders on the same samples.

loader.files.cold     first epoch of a new process over files that are in no cache, samples/s; the set not in the pool
loader.files.warm     the third epoch of that process: page cache, or pool
loader.files.first    ms from before opening the data to the first batch, cold (imports not counted)
loader.files.*.cpu    CPU-s/GB, children and daemon included
loader.jpegs          JPEGs to normalised crops of 224, float32 CHW, images/s, third epoch; the same transform by Pillow and torchvision in DataLoader
                      with 0, 1, 2 workers; SPDL decodes and scales whole pictures (no crop, no flip)

Limit: the best of the others. Each library has its own form of the data and its own kind of shuffle, batches of 64, two workers; each first reads all
samples once, in another process, and their numbers and CRCs are checked. They are found in a venv, LEAT_BENCH_RIVALS, which is made when it is not there.
"""
import contextlib
import os
import subprocess

from . import batches, read
from .pauses import touch_memory
from .rows import in_turns, median, row
from .suite import note
from .workers import Failed, Group, Worker, leatd

GIB = 1 << 30
FILES = 3072
SEED, MEAN, SIGMA = 20, 110_000, 0.5

#: name: (module, what pip is asked for, is more to be had with it). --no-deps: their torch of today with CUDA is gigabytes.
PIP = {
    "webdataset": ("webdataset", ["webdataset==1.0.2"]),
    "spdl": ("spdl.pipeline", ["spdl==0.8.0"]),
    "litdata": ("litdata", ["--no-deps", "litdata==0.2.17", "lightning-utilities", "filelock", "packaging", "typing_extensions"]),
    "streaming": ("streaming", ["--no-deps", "mosaicml-streaming==0.13.0", "transformers<5", "tokenizers>=0.22,<0.23", "huggingface-hub<1", "safetensors",
                                "regex", "catalogue", "Brotli", "python-snappy", "cramjam", "tqdm", "xxhash<4", "zstd", "boto3", "botocore", "s3transfer",
                                "jmespath", "filelock", "fsspec", "hf-xet"]),
    "ffcv": ("ffcv", ["--no-deps", "ffcv==1.0.2"]),
}
SHOWN = {"dataloader": "DataLoader over files", "webdataset": "WebDataset", "streaming": "mosaicml-streaming", "litdata": "LitData", "spdl": "SPDL"}


class Suite(batches.Suite):
    def __init__(self, args, emit):
        super().__init__(args, emit)
        self.script = os.path.join(batches.LOADERS, "rival_read.py")
        self.here = {}

    # --- the venv ---

    def prepare(self):
        """Which of them can be used: {name: version}. The others are named on stderr, with the reason."""
        folder = os.environ.get("LEAT_BENCH_RIVALS")
        if not self.torch:
            note("no Python here has torch (tools/deps demo): DataLoader and what builds on it are left out")
            return None
        if not folder:
            note("LEAT_BENCH_RIVALS is not set to a folder for a venv: WebDataset, mosaicml-streaming, LitData, SPDL, FFCV are left out")
            return self.torch
        python = os.path.join(folder, "bin/python")
        if not os.path.exists(python):
            subprocess.run([self.torch, "-m", "venv", "--system-site-packages", folder], check=True)
        for name, (module, what) in PIP.items():
            version = self.version(python, name, module)
            failed = os.path.join(folder, f"left-out-{name}")  # why, so that the next run need not try again
            if not version and not os.path.exists(failed):
                out = subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *what], capture_output=True, text=True)
                version = self.version(python, name, module)
                if not version:
                    said = [line for line in out.stderr.splitlines() if "rror" in line] or ["does not import"]
                    with open(failed, "w") as f:
                        f.write(said[-1].strip()[:160] + "\n")
            if version:
                self.here[name] = version
            else:
                with open(failed) as f:
                    note(f"{name}: left out: {f.read().strip()} ({failed})")
        return python

    @staticmethod
    def version(python, name, module):
        package = {"streaming": "mosaicml-streaming"}.get(name, name)
        code = f"import importlib.metadata as m, {module}; print(m.version('{package}'))"
        out = subprocess.run([python, "-c", code], capture_output=True, text=True)
        return out.stdout.split()[-1] if out.returncode == 0 and out.stdout.split() else None

    # --- files ---

    def worker(self, python, how, folder, samples, total, store=None, rest=(), servers=(), workers=2):
        return Worker([python if how.split("-")[0] != "leat" else self.plain, self.script, "--build", self.args.build, "--file", folder, "--samples", samples,
                       "--bytes", total, "--batch", 64, "--how", how, "--workers", workers, *(["--store", store] if store else []), *rest],
                      servers, {"TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}, timeout=180)

    @staticmethod
    def uncache(*folders):
        for top in folders:
            for where, _, names in os.walk(top):
                for name in names:
                    fd = os.open(os.path.join(where, name), os.O_RDONLY)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(fd)

    def files(self, python):
        metrics = ("loader.files.cold", "loader.files.warm", "loader.files.first")
        if not self.wanted("loader.files"):
            return
        files = self.data.files(FILES)
        with contextlib.ExitStack() as stack:
            daemon = leatd(self.args.build, self.args.folder, 4 * GIB, self.huge)
            stack.callback(daemon.close)
            hows = {"leat": None, "dataloader": None} if python else {"leat": None}
            for name in ("webdataset", "streaming", "litdata", "spdl"):
                if name in self.here:
                    hows[name] = os.path.join(self.args.folder, "store-" + name) if name != "spdl" else None
            for name, store in list(hows.items()):
                if store:
                    out = subprocess.run([python, self.script, "--build", self.args.build, "--file", files.path, "--how", name, "--store", store,
                                          "--make", "yes"], capture_output=True, text=True)
                    if out.returncode:
                        note(f"{name}: left out: {out.stderr.strip()[-200:]}")
                        del hows[name]
            os.sync()

            def start(how):
                mine = how == "leat"
                return contextlib.closing(self.worker(python, how, files.path, files.files, files.bytes, hows[how],
                                                      [daemon.socket] if mine else [], [daemon.pid] if mine else []))

            for how in list(hows):
                try:
                    with start(how) as one:
                        found = Group([one]).ask("verify")["verified"]
                    if found != files.files:
                        raise Failed(f"{found} samples of {files.files}")
                except Failed as why:
                    if how == "leat":
                        raise
                    note(f"{how}: left out: {str(why)[-200:]}")
                    del hows[how]

            def measure(how):
                def one():
                    self.uncache(files.path, *filter(None, [hows[how]]))
                    with start(how) as process:
                        group = Group([process])
                        touch_memory(3 * GIB)
                        cold, _, warm = (group.ask("epoch") for _ in range(3))
                    return {"cold": cold["samples"] / cold["ns"] * 1e9, "warm": warm["samples"] / warm["ns"] * 1e9,
                            "cold.cpu": cold["cpu_s"] / files.bytes * 1e9, "warm.cpu": warm["cpu_s"] / files.bytes * 1e9,
                            "first": cold["first_ns"] / 1e6, "p50_us": warm["p50_us"], "p99_us": warm["p99_us"]}
                return one

            got = in_turns({how: measure(how) for how in hows}, self.args.repeats)
        about = {"files": files.files, "mean_bytes": files.bytes // files.files, "versions": self.here, "batch": 64,
                 "latency": {SHOWN.get(how, how): {"p50_us": median(g["p50_us"]), "p99_us": median(g["p99_us"])} for how, g in got.items()}}
        for metric in metrics:
            for figure, unit in ((metric.split(".")[-1], "ms" if metric.endswith("first") else "samples/s"), (metric.split(".")[-1] + ".cpu", "CPU-s/GB")):
                if figure in got["leat"]:
                    self.versus("loader.files." + figure, unit, got, figure, about)

    def jpegs(self, python, pictures):
        """pictures: the JPEGs as bytes."""
        if not self.wanted("loader.jpegs"):
            return
        folder, total = os.path.join(self.args.folder, "jpegs"), 0
        copies = 8
        for i, data in enumerate(pictures * copies):
            path = os.path.join(folder, f"class{i % 8}", f"{i:05d}.jpg")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as f:
                f.write(data)
            total += len(data)
        count = len(pictures) * copies
        with contextlib.ExitStack() as stack:
            daemon = leatd(self.args.build, self.args.folder, GIB, self.huge)
            stack.callback(daemon.close)
            vision = python and subprocess.run([python, "-c", "import torchvision, PIL"], capture_output=True).returncode == 0
            if python and not vision:
                note("loader.jpegs: DataLoader left out, no torchvision (apt-get install python3-torchvision)")
            hows = [("leat-jpeg", 0, "leat")]
            hows += [("dataloader-jpeg", n, f"DataLoader, torchvision, {n} workers") for n in (0, 1, 2) if vision]
            hows += [("spdl-jpeg", 2, "SPDL, decode and scale only")] if "spdl" in self.here else []

            def measure(how, workers):
                mine = how == "leat-jpeg"
                one = self.worker(python, how, folder, count, total, None, [daemon.socket] if mine else [], [daemon.pid] if mine else [], workers)
                stack.callback(one.close)
                group = Group([one])
                first, _ = group.ask("epoch"), group.ask("epoch")
                if first["samples"] < count // 64 * 64:
                    raise Failed(f"{how}: {first['samples']} samples of {count}")

                def turn():
                    got = group.ask("epoch")
                    return {"jpeg": got["samples"] / got["ns"] * 1e9, "jpeg.cpu": 1e3 * got["cpu_s"] / got["samples"], "p50_us": got["p50_us"],
                            "p99_us": got["p99_us"]}
                return turn

            cases = {}
            for how, workers, name in hows:
                try:
                    cases[name] = measure(how, workers)
                except Failed as why:
                    if name == "leat":
                        raise
                    note(f"loader.jpegs: {name} left out: {str(why)[-200:]}")
            got = in_turns(cases, self.args.repeats)
        about = {"images": count, "mean_bytes": total // count, "versions": self.here, "batch": 64}
        self.versus("loader.jpegs", "img/s", got, "jpeg", about)
        self.versus("loader.jpegs.cpu", "CPU-ms/img", got, "jpeg.cpu", about)

    def versus(self, metric, unit, got, figure, about):
        others = {SHOWN.get(how, how): g[figure] for how, g in got.items() if how != "leat"}
        if not others:
            note(f"{metric}: nothing to compare with")
            return
        best = (max if unit.endswith("/s") else min)(others, key=lambda name: median(others[name]))
        leat = got["leat"]
        more = {"p50_us": median(leat["p50_us"]), "p99_us": median(leat["p99_us"])} if figure.startswith(("warm", "jpeg")) and ".cpu" not in figure else {}
        self.put(row(metric, unit, leat[figure], others[best], others, best, **more, **about))


def run(args, emit, pictures):
    """pictures(): JPEGs as bytes."""
    suite = Suite(args, emit)
    if not suite.wanted("loader.files", "loader.jpegs"):
        return
    python = suite.prepare()
    suite.files(python)
    if suite.wanted("loader.jpegs"):
        suite.jpegs(python, pictures())
