# SPDX-License-Identifier: Apache-2.0
"""leat.Loader with a GPU, prepared batches above all, with the libcuda of tests/fakecuda: each test in a process of its own."""

import os
import subprocess
import sys

import pytest

from lib_python import BUILD

FAKE = BUILD / "tests" / "fakecuda" / "fakecuda.so"

# Importable by workers that were spawned.
WORK = """
import numpy as np
def plus_one(sample, rng):
    return {"x": sample["x"] + 1, "y": np.int64(sample["y"]), "small": np.uint8(3)}
"""

PRELUDE = """
import ctypes, gc, os, time
import numpy as np, leat
from work import plus_one
class Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulong) for name in ("pinned", "pinned_bytes", "allocated", "allocated_bytes", "streams", "events",
                                                    "contexts", "modules", "copies", "copied_bytes", "launches", "flushes", "refused", "wrong")] + [("depth", ctypes.c_int)]
fake = ctypes.CDLL(os.environ["LEAT_LIBCUDA"])
rows = np.arange(40 * 6, dtype=np.float32).reshape(40, 2, 3)
def stat():
    s = Stat()
    fake.fakecuda_stat(ctypes.byref(s))
    return s
def back(field):
    out = np.empty(field.shape, field.dtype)
    assert fake.cuMemcpyDtoH_v2(out.ctypes.data_as(ctypes.c_void_p), ctypes.c_ulonglong(address(field)), ctypes.c_size_t(out.nbytes)) == 0
    return out
def address(field):
    return field.__cuda_array_interface__["data"][0]
def kernel(stream, out, field, go):
    fake.fakecuda_kernel(ctypes.c_void_p(stream), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_ulonglong(address(field)),
                         ctypes.c_size_t(out.nbytes), ctypes.byref(go))
def right(batch):
    assert (back(batch["x"]) == rows[batch.ids] + 1).all(), batch.ids
    assert (back(batch["y"]) == batch.ids.astype(int) * 2).all() and (back(batch["small"]) == 3).all()
def fails(call, *errors):
    try:
        call()
    except errors as error:
        return str(error)
    raise SystemExit("no error")
def until(what):
    for _ in range(15000):
        if what():
            return
        time.sleep(0.002)
    raise SystemExit("it never came true")
def main():
    np.save("rows.npy", rows)
    np.save("labels.npy", np.arange(40) * 2)
    ws = leat.open({"x": "rows.npy", "y": "labels.npy"})
    def make(batch_size=4, **more):
        return leat.Loader(ws, batch_size, **{"device": "cuda:0", "transform": plus_one, "seed": 3, **more})
"""
END = """
if __name__ == "__main__":
    main()
    gc.collect()
    assert stat().wrong == 0
"""


@pytest.fixture
def run(runtime, tmp_path):
    def run(code):
        (tmp_path / "work.py").write_text(WORK)
        (tmp_path / "main.py").write_text(PRELUDE + code.replace("\n", "\n    ") + END)
        done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, env={**os.environ, "LEAT_LIBCUDA": str(FAKE)},
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and not done.stderr, done.stderr
    return run


@pytest.mark.parametrize("workers", ["thread", "fork", "spawn", "forkserver"])
def test_epochs(run, workers):
    """Every byte, two epochs, odd last batch; nothing pinned or allocated is left behind."""
    run(f"""
fake.fakecuda_delay(300)
loader = make(6, num_workers=2, workers={workers!r}, drop_last=False, prefetch=3)
for epoch in range(2):
    seen = []
    for batch in loader:
        right(batch)
        seen += batch.ids[batch.valid].tolist()
    assert sorted(seen) == list(range(40))
assert stat().pinned == stat().allocated == 6
stats = loader.stats()
assert (stats["delivery"], stats["delivered_bytes"], stats["on_host"]) == ("bounce", 14 * 6 * (24 + 8 + 1), ""), stats
del batch
loader.close()
del loader
gc.collect()
fake.fakecuda_delay(0)
until(lambda: stat().pinned == stat().allocated == stat().streams == stat().events == stat().contexts == 0)
""")


def test_what_is_prepared_is_sent_ahead(run):
    run("""
made = []
def counted(sample, rng):
    done = plus_one(sample, rng)
    made.append(1)
    return done
it = iter(make(transform=counted, num_workers=2, prefetch=4))
first = next(it)
until(lambda: len(made) >= 1 + 5 * 4)  # one sample to learn from
time.sleep(0.5)  # until the last of them is noted, on a busy machine
second = next(it)
until(lambda: stat().copies >= 5 * 3)  # three fields
right(first)
right(second)
""")


def test_a_kernel_still_reads(run):
    """A slot that was given back is written only after what was on the stream of its consumer; the loader waits for it."""
    run("""
go, written = ctypes.c_int(0), []  # kept: kernels write them at any time after go
loader = make(prefetch=1, timeout=2, num_workers=2)
it = iter(loader)
for stream in (0, 2):
    go.value = 0
    used = []
    out = np.zeros((4, 2, 3), np.float32)
    for i in range(4):
        batch = next(it)
        if i == 0:
            ids = batch.ids.copy()
        written.append(out if i == 0 else np.zeros_like(out))
        kernel(stream, written[-1], batch["x"], go)
        used.append(address(batch["x"]))
        del batch
    assert len(set(used)) == 4
    said = fails(lambda: next(it), leat.TimedOut)
    assert "work on the GPU still uses" in said, said
    go.value = 1
    it = iter(loader)
    right(next(it))
    assert (out == rows[ids] + 1).all()
""")


def test_record_stream(run):
    run("""
class Stream:
    def __init__(self):
        made = ctypes.c_void_p()
        assert fake.cuStreamCreate(ctypes.byref(made), 1) == 0
        self.cuda_stream = made.value
context = ctypes.c_void_p()
loader = make(prefetch=1, num_workers=2)
it = iter(loader)
batch = next(it)
assert fake.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and fake.cuCtxPushCurrent_v2(context) == 0
side = Stream()
out, go = np.zeros((4, 2, 3), np.float32), ctypes.c_int(0)
kernel(side.cuda_stream, out, batch["x"], go)
batch.record_stream(side)
batch.record_stream(side.cuda_stream)
assert "another stream" in fails(lambda: batch.record_stream(7), ValueError)
at, ids = address(batch["x"]), batch.ids
batch.release()
fails(lambda: batch.record_stream(side), ValueError)
for i in range(6):
    batch = next(it)
    right(batch)
    assert address(batch["x"]) != at
go.value = 1
until(lambda: (out == rows[ids] + 1).all())
used = set()
for i in range(2):
    used |= {address(batch["x"]) for batch in loader}
assert at in used
assert "no CUDA stream" in fails(lambda: next(iter(make(device="cpu"))).record_stream(side), ValueError)
""")


def test_capsules_and_arrays_keep_the_slot(run):
    run("""
it = iter(make(prefetch=1))
batch = next(it)
at, capsule = address(batch["x"]), batch["x"].__dlpack__(stream=1)
label = batch["y"]
assert batch["x"].__dlpack_device__() == (2, 0) and batch["x"].shape == (4, 2, 3) and label.shape == (4,) and label.dtype == np.int64
assert "on a GPU" in fails(lambda: batch.__setitem__("x", 0), TypeError)
del batch
for i in range(5):
    batch = next(it)
    assert address(batch["x"]) != at
del capsule
batch = next(it)
label = None
it.close()
del batch, it
""")


def test_all_batches_kept_is_said(run):
    run("""
kept = []
def keep():
    for batch in make(prefetch=1):
        kept.append(batch)
assert "held" in fails(keep, leat.Busy)
for batch in kept:
    right(batch)
""")


@pytest.mark.parametrize("call", ["cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuEventQuery", "cuCtxPushCurrent_v2"])
def test_a_call_that_fails(run, call):
    """The batch comes all the same, or an error does and the next iter() works; bytes are right in any case."""
    run(f"""
loader = make(num_workers=2, prefetch=2)
failed = 0
for nth in range(1, 26, 3):
    fake.fakecuda_fail({call!r}.encode(), nth, 999)
    it = iter(loader)
    try:
        for batch in it:
            right(batch)
    except leat.Error as error:
        failed += 1
        assert "said CUDA_ERROR_FAKE" in str(error), error
    fake.fakecuda_fail(b"", 0, 0)
    assert sum(1 for batch in loader if right(batch) is None) == 10
assert stat().refused > 4
del batch, it
loader.close()
del loader
gc.collect()
if {call!r} != "cuCtxPushCurrent_v2":  # without a context nothing can be freed
    until(lambda: leat._loader.device.sweep() or stat().pinned == 0)
""")


@pytest.mark.parametrize("call", ["cuMemHostRegister_v2", "cuMemAlloc_v2", "cuEventCreate"])
def test_no_memory_to_pin(run, call):
    run(f"""
loader = make()
for nth in range(1, 6):
    fake.fakecuda_fail({call!r}.encode(), nth, 2)
    said = fails(lambda: next(iter(loader)), leat.Error, MemoryError)
    assert "out of memory" in said, said
    gc.collect()
    assert stat().pinned == stat().allocated == stat().events == 0
fake.fakecuda_fail(b"", 0, 0)
right(next(iter(loader)))
""")


def test_a_device_is_lost(run):
    run("""
loader = make(num_workers=2)
it = iter(loader)
first = next(it)
fake.fakecuda_freeze(1)
second = first["x"]
fake.fakecuda_lose(1)
said = fails(lambda: list(it), leat.Error)
assert "CUDA_ERROR_LAUNCH_FAILED" in said, said
fails(lambda: next(iter(loader)), leat.Error)
del first, second, it
loader.close()
del loader
gc.collect()
until(lambda: leat._loader.device.sweep() or not leat._loader.device._parked)
""")


def test_abandoned_while_copies_are_under_way(run):
    """What the device may still write or read is not freed; the next loader does it."""
    run("""
for i in range(3):
    loader = make(num_workers=2)
    it = iter(loader)
    next(it)
    fake.fakecuda_freeze(1)
    loader._config.timeout = 0.05
    assert "within 0.05 s" in fails(lambda: [None for batch in it], leat.TimedOut)
    del it, loader
    gc.collect()
    until(lambda: leat._loader.device._parked)
    assert stat().pinned > 0
    fake.fakecuda_freeze(0)
    until(lambda: leat._loader.device.sweep() or stat().pinned == stat().allocated == 0)
    assert not leat._loader.device._parked
""")


def test_memory_stays_the_same(run):
    run("""
loader = make(num_workers=2)
for epoch in range(30):
    for i, batch in enumerate(loader):
        if epoch % 3 == i:
            break
    if epoch == 0:
        before = stat()
assert (stat().pinned_bytes, stat().allocated_bytes, stat().events) == (before.pinned_bytes, before.allocated_bytes, before.events)
""")


def test_pinned(run):
    run("""
loader = make(device="cpu", pin_memory=True, num_workers=2)
for batch in loader:
    assert isinstance(batch["x"], np.ndarray) and (batch["x"] == rows[batch.ids] + 1).all()
    batch.record_stream(2)
assert stat().pinned == 5 and stat().allocated == stat().copies == 0
assert loader.stats()["delivery"] == "pinned" and loader.stats()["delivered_bytes"] == 40 * 33
raw = leat.Loader(ws, 4, pin_memory=True)
assert [len(batch) for batch in raw] == [4] * 10
assert raw.stats()["delivery"] == "pinned" and raw.stats()["delivered_bytes"] == 40 * 32, raw.stats()
""")


def test_raw_batches(run):
    run("""
class Device:
    def __str__(self):
        return "cuda:1"
loader = leat.Loader(ws, 4, device=Device())
for batch in loader:
    assert (back(batch["x"]) == rows[batch.ids]).all() and batch["x"].device == 1
assert loader.stats()["delivery"] == "bounce" and loader.stats()["delivered_bytes"] >= 40 * 24
""")


def test_trim(run):
    run("""
os.mkdir("files")
for i in range(10):
    open(f"files/{i}", "wb").write(bytes([i]) * (i + 1))
files = leat.open("files")
def last():
    *_, batch = leat.Loader(files, 4, shuffle=False, drop_last=False, device="cuda:0")
    return batch
batch = last()
assert len(batch["data"]) == 4 and len(batch.trim()["data"]) == 2 == len(batch)
assert back(batch["data"].values).tolist() == [8] * 9 + [9] * 10 and batch["data"].offsets.tolist() == [0, 9, 19]
del batch
batch = last()
batch.valid = [False, True, True, True]
assert "only the last samples" in fails(batch.trim, TypeError) and len(batch) == 4
del batch
mixture = leat.Mixture([(ws, 1), (ws, 1)], length=8)
batch = next(iter(leat.Loader(mixture, 4, device="cuda:0")))
batch.valid[0] = False
fails(batch.trim, TypeError)
assert len(batch) == len(batch.source) == len(batch.sample_keys) == 4
""")


@pytest.mark.plain
def test_what_bounds_the_loop(run):
    """A GPU that is behind is not a loader that is slow; a copy that is slow is not a slow transform."""
    run("""
context = ctypes.c_void_p()
loader = make(2, num_workers=2, prefetch=1)
it = iter(loader)
first = next(it)
assert fake.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and fake.cuCtxPushCurrent_v2(context) == 0
for batch in it:
    for i in range(20):
        assert fake.cuMemsetD8Async(ctypes.c_ulonglong(address(batch["x"])), 0xA5, ctypes.c_size_t(48), ctypes.c_void_p(0)) == 0
    fake.fakecuda_delay(2000)
stats = loader.stats()
assert stats["verdict"] == "consumer-bound", stats
fake.fakecuda_delay(0)
fake.cuCtxPopCurrent_v2(ctypes.byref(context))
loader = make(2, num_workers=2)
fake.fakecuda_delay(15000)
for batch in loader:
    pass
stats = loader.stats()
assert stats["verdict"] == "copy-bound" and stats["copy_s"] > 0.1 and "uint8" in stats["advice"], stats
""")


@pytest.mark.plain
def test_what_bounds_a_loop_over_raw_batches(run):
    """The same where the library's own slots are what the GPU still uses."""
    run("""
context = ctypes.c_void_p()
loader = make(2, transform=None, prefetch=1)
it = iter(loader)
next(it)
assert fake.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and fake.cuCtxPushCurrent_v2(context) == 0
for batch in it:
    for i in range(20):
        assert fake.cuMemsetD8Async(ctypes.c_ulonglong(address(batch["x"])), 0xA5, ctypes.c_size_t(48), ctypes.c_void_p(0)) == 0
    fake.fakecuda_delay(2000)
stats = loader.stats()
fake.fakecuda_delay(0)
fake.cuCtxPopCurrent_v2(ctypes.byref(context))
assert stats["verdict"] == "consumer-bound", stats
""")


def test_a_mixture(run):
    run("""
np.save("more.npy", rows * 10)
np.save("more_labels.npy", np.arange(40))
mixture = leat.Mixture([(ws, 2), (leat.open({"x": "more.npy", "y": "more_labels.npy"}), 1)])
for how in ({}, {"transform": plus_one, "num_workers": 2}):
    seen = 0
    for batch in leat.Loader(mixture, 4, device="cuda:0", **how):
        plain = rows[batch.ids] * np.where(batch.source, 10, 1)[:, None, None].astype(np.float32)
        assert (back(batch["x"]) == plain + len(how) / 2).all()
        seen += len(batch)
    assert seen == 80
""")


def test_which_device(run):
    """"cuda" without a number is torch's current device."""
    run("""
import sys, types
assert next(iter(make(device="cuda")))["x"].device == 0
sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True, current_device=lambda: 1))
assert next(iter(make(device="cuda")))["x"].device == 1
assert next(iter(make(device="cuda:0")))["x"].device == 0
del sys.modules["torch"]
assert "there are 2" in fails(lambda: make(device="cuda:2"), ValueError)
assert "collate_fn" in fails(lambda: make(collate_fn=list), ValueError)
fails(lambda: make(device="cuda:-1"), ValueError)
""")


def test_pictures(run):
    """What leat.prep makes lands on the GPU: the same as on the host."""
    pytest.importorskip("PIL", reason="Pillow is not installed")
    run("""
import PIL.Image
from leat.prep import RandomResizedCrop
os.mkdir("pictures")
for i in range(12):
    PIL.Image.fromarray(np.random.default_rng(i).integers(0, 255, (40, 50, 3), np.uint8)).save(f"pictures/{i:02}.jpg")
files = leat.open("pictures")
def batches(device):
    return leat.Loader(files, 4, transform=RandomResizedCrop(16), num_workers=2, device=device)
seen = 0
for host, gpu in zip(batches("cpu"), batches("cuda:0")):
    for name in host.fields:
        if isinstance(host[name], np.ndarray):
            seen += 1
            assert (back(gpu[name]) == host[name]).all() and gpu[name].dtype == host[name].dtype
assert seen >= 3
""")


def test_what_stays_on_the_host(run):
    run("""
import logging
said = []
class Handler(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("leat").addHandler(Handler())
def mixed(sample, rng):
    return {"x": sample["x"], "text": "t" * sample["y"], "many": [1] * sample["y"], "word": np.array("ab")}
loader = make(transform=mixed)
for batch in loader:
    assert (back(batch["x"]) == rows[batch.ids]).all()
    assert batch["text"] == ["t" * int(i) * 2 for i in batch.ids] and batch["word"].tolist() == ["ab"] * 4
    assert [len(one) for one in batch["many"]] == [int(i) * 2 for i in batch.ids]
assert loader.stats()["on_host"] == "text, many, word"
assert any("'text', 'many', 'word' stay in host memory" in line for line in said), said
""")


def test_a_mixture_of_unequal_sets(run):
    run("""
np.save("more.npy", rows[:10] + 100)
np.save("more_labels.npy", np.arange(10) * 2)
more = leat.open({"x": "more.npy", "y": "more_labels.npy"})
seen = 0
for batch in leat.Loader(leat.Mixture([(ws, 1), (more, 1)], length=80), 8, device="cuda:0"):
    want = [rows[i] + 100 * k for k, i in zip(batch.source, batch.ids.astype(int))]
    assert (back(batch["x"]) == np.array(want)).all() and (back(batch["y"]) == batch.ids.astype(int) * 2).all()
    seen += len(batch)
assert seen == 80
""")


def test_a_child_of_fork(run):
    """CUDA does not work there; that is said, and the parent's memory is left alone."""
    run("""
loader = make(num_workers=2)
it = iter(loader)
first = next(it)
pid = os.fork()
if pid == 0:
    try:
        said = fails(lambda: next(iter(loader)), leat.Error)
        assert "use spawn or forkserver" in said, said
        said = fails(make, leat.Error)
        assert "use spawn or forkserver" in said, said
        del first, it
        gc.collect()
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=__import__("sys").stderr, flush=True)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
right(first)
for batch in it:
    right(batch)
""")
