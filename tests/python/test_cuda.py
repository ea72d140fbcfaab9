# SPDX-License-Identifier: Apache-2.0
"""Batches on a GPU, with the libcuda of tests/fakecuda: each test in a process of its own, since a process loads one libcuda."""

import os
import subprocess
import sys

import pytest

from lib_python import BUILD

FAKE = BUILD / "tests" / "fakecuda" / "fakecuda.so"

PRELUDE = """
import ctypes, gc, os
import numpy as np, leat
fake = ctypes.CDLL(os.environ["LEAT_LIBCUDA"]) if "/" in os.environ["LEAT_LIBCUDA"] else None
rows = np.arange(40 * 6, dtype=np.float32).reshape(40, 2, 3)
np.save("rows.npy", rows)
ws = leat.open("rows.npy")
def back(address, like):
    out = np.empty_like(like)
    assert fake.cuMemcpyDtoH_v2(out.ctypes.data_as(ctypes.c_void_p), ctypes.c_ulonglong(address), ctypes.c_size_t(out.nbytes)) == 0
    return out
"""


@pytest.fixture
def run(runtime, tmp_path):
    def run(code, library=FAKE):
        done = subprocess.run([sys.executable, "-c", PRELUDE + code], cwd=tmp_path, env={**os.environ, "LEAT_LIBCUDA": str(library)},
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    return run


def test_an_epoch(run):
    run("""
fake.fakecuda_delay(300)
seen = []
with leat.batches(ws, 4, shuffle="full", device="cuda:1", slots=2) as batches:
    for batch in batches:
        field = batch.data
        what = field.__cuda_array_interface__
        assert what["shape"] == field.shape == (4, 2, 3) and what["typestr"] == "<f4" and what["version"] == 3
        assert what["stream"] is None and what["strides"] is None and field.nbytes == 96
        assert (back(what["data"][0], rows[:4]) == rows[batch.ids]).all()
        seen += batch.ids.tolist()
        del field
    assert sorted(seen) == list(range(40))
    del batch
""")


def test_windows(run):
    """Those that are cut out of whole blocks lie further apart than their shape says."""
    run("""
np.save("long.npy", np.arange(8000, dtype=np.float32).reshape(4000, 2))
class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64))]
get = ctypes.pythonapi.PyCapsule_GetPointer
get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
for window, stride, lies in ((129, 128, 144), (128, 64, 0)):
    ws = leat.open("long.npy", window=window, stride=stride)
    batch = next(leat.batches(ws, 4, device="cuda:0", slots=2))
    field = batch.data
    what = field.__cuda_array_interface__
    assert what["shape"] == field.shape == (4, window, 2) and field.nbytes == 4 * window * 8
    assert what["strides"] == ((lies * 8, 8, 4) if lies else None)
    found = back(what["data"][0], np.empty((4, lies or window, 2), np.float32))[:, :window]
    assert (found[..., 0] == 2 * (batch.ids[:, None].astype(int) * stride + np.arange(window))).all()
    capsule = field.__dlpack__()
    tensor = Tensor.from_address(get(capsule, b"dltensor"))
    assert [tensor.shape[d] for d in range(3)] == [4, window, 2]
    assert [tensor.strides[d] for d in range(3)] == [(lies or window) * 2, 2, 1]
    del capsule, field, batch
""")


def test_dlpack(run):
    run("""
class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64))]
get = ctypes.pythonapi.PyCapsule_GetPointer
get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
batches = leat.batches(ws, 4, shuffle=False, device="cuda:1", slots=2)
batch = next(batches)
field = batch.data
assert field.__dlpack_device__() == (2, 1)
for stream in (None, -1, 1, 2, 12345):
    capsule = field.__dlpack__(stream=stream)
tensor = Tensor.from_address(get(capsule, b"dltensor"))
address = field.__cuda_array_interface__["data"][0]
assert (tensor.data, tensor.device_type, tensor.device_id, tensor.ndim, tensor.code, tensor.bits) == (address, 2, 1, 3, 2, 32)
assert list(tensor.shape[:3]) == [4, 2, 3]
for wrong in (dict(stream=0), dict(dl_device=(1, 0)), dict(copy=True)):
    try:
        field.__dlpack__(**wrong)
    except BufferError:
        continue
    raise SystemExit(wrong)
for wrong in (lambda: memoryview(field._memory), lambda: batch.release_after(0)):
    try:
        wrong()
    except BufferError:
        continue
    raise SystemExit("a view of device memory for the CPU")
# The slot is not filled again before the capsule has gone.
del field
batch.release()
second = next(batches)
try:
    batches._timeout_ns = 50_000_000
    next(batches)
    raise SystemExit("a slot that is looked at was filled")
except (leat.TimedOut, leat.Busy):
    pass
del capsule
batches._timeout_ns = 0
third = next(batches)
assert third.data.__cuda_array_interface__["data"][0] == address
assert (back(address, rows[:4]) == rows[8:12]).all()
""")


def test_a_kernel_still_reads(run):
    """The batch goes while a kernel on a stream of its own reads it."""
    run("""
out, go = np.zeros((4, 2, 3), np.float32), ctypes.c_int(0)
batches = leat.batches(ws, 4, shuffle=False, device="cuda:0", slots=2)
batch = next(batches)
stream = 2
fake.fakecuda_kernel(ctypes.c_void_p(stream), out.ctypes.data_as(ctypes.c_void_p),
                     ctypes.c_ulonglong(batch.data.__cuda_array_interface__["data"][0]), ctypes.c_size_t(out.nbytes), ctypes.byref(go))
batch.record_stream(stream)
batch.record_stream(stream)
try:
    batch.record_stream(7)
    raise SystemExit("two streams")
except ValueError:
    pass
del batch
second = next(batches)
del second
batches._timeout_ns = 50_000_000
held = []
try:
    for i in range(3):
        held.append(next(batches))
    raise SystemExit("a slot in use was filled")
except (leat.TimedOut, leat.Busy):
    pass
go.value = 1
held.clear()
batches._timeout_ns = 0
while True:
    batch = next(batches, None)
    if batch is None:
        break
    assert (back(batch.data.__cuda_array_interface__["data"][0], rows[:4]) == rows[batch.ids]).all()
assert (out == rows[:4]).all()
""")


def test_one_stream_a_batch(run):
    """The default stream counts as one."""
    run("""
for make in (lambda: leat.batches(ws, 4, device="cuda:0", slots=2), lambda: iter(leat.Loader(ws, 4, device="cuda:0", transform=lambda s, rng: s))):
    for first, other in ((0, 2), (2, 0)):
        batch = next(make())
        batch.record_stream(first)
        batch.record_stream(first)
        try:
            batch.record_stream(other)
            raise SystemExit("two streams")
        except ValueError:
            pass
""")


def test_a_stream_that_refuses(run):
    """No event can be put on the consumer's stream when the batch goes, and a kernel still reads it: the slot is not filled."""
    run("""
out, go = np.zeros((4, 2, 3), np.float32), ctypes.c_int(0)
batches = leat.batches(ws, 4, shuffle=False, device="cuda:0", slots=2)
batch = next(batches)
while batches.delivery()["copies"] < 2:  # the second slot is filled: the thread that reads ahead waits
    pass
fake.fakecuda_kernel(ctypes.c_void_p(2), out.ctypes.data_as(ctypes.c_void_p),
                     ctypes.c_ulonglong(batch.data.__cuda_array_interface__["data"][0]), ctypes.c_size_t(out.nbytes), ctypes.byref(go))
batch.record_stream(2)
fake.fakecuda_fail(b"cuEventRecord", ctypes.c_uint(1), 999)
del batch
second = next(batches)
batches._timeout_ns = 50_000_000
try:
    next(batches)
    raise SystemExit("a slot in use was filled")
except (leat.TimedOut, leat.Busy):
    pass
go.value = 1
batches._timeout_ns = 0
assert (back(second.data.__cuda_array_interface__["data"][0], rows[:4]) == rows[4:8]).all()
del second
seen = [batch.ids.tolist() for batch in batches]
assert len(seen) == 8 and (out == rows[:4]).all()
""")


def test_others_run_while_the_driver_waits(run):
    """A batch ends while the driver blocks its caller until another thread has run."""
    run("""
import threading, time
for make in (lambda: leat.batches(ws, 4, device="cuda:0", slots=2), lambda: iter(leat.Loader(ws, 4, device="cuda:0", transform=lambda s, rng: s))):
    batches = make()
    batch = next(batches)
    time.sleep(0.3)  # what reads ahead waits
    go = ctypes.c_int(0)
    def open_gate():
        go.value = 1
    thread = threading.Timer(0.2, open_gate)
    thread.start()
    fake.fakecuda_hold(b"cuEventRecord", ctypes.byref(go))
    del batch
    fake.fakecuda_hold(b"", None)
    thread.join()
    for batch in batches:
        pass
    del batch, batches
stat = (ctypes.c_ulong * 15)()
fake.fakecuda_stat(ctypes.byref(stat))
assert stat[13] == 0  # it waited for ever
""")


def test_a_graph_is_captured_meanwhile(run):
    """torch.cuda.graph captures so that in any thread a question to the driver would end it."""
    run("""
fake.fakecuda_capture(ctypes.c_void_p(2), 1)
for make in (lambda: leat.batches(ws, 4, device="cuda:0", slots=2), lambda: leat.Loader(ws, 4, device="cuda:0", transform=lambda s, rng: s)):
    for batch in make():
        data = batch.data if isinstance(batch, leat.Batch) else batch["data"]
        assert (back(data.__cuda_array_interface__["data"][0], rows[:4]) == rows[batch.ids]).all()
    del batch, data
stat = (ctypes.c_ulong * 15)()
fake.fakecuda_stat(ctypes.byref(stat))
assert stat[13] == 0
""")


def test_pinned_and_delivery(run):
    run("""
with leat.batches(ws, 4, shuffle=False, device="pinned") as batches:
    assert (next(batches).data == rows[:4]).all()
    assert batches.delivery()["delivery"] == "pinned" and batches.delivery()["pinned_bytes"] > 0
with leat.batches(ws, 4, shuffle=False, device="cuda") as batches:
    next(batches)
    how = batches.delivery()
    assert ws.stat().delivered["bounced"] >= how["bounced_bytes"] and ws.stat().delivered["shm"] >= 96
    assert how["delivery"] == "bounce" and how["bounced_bytes"] >= 96 and how["device_bytes"] == how["pinned_bytes"], how
with leat.batches(ws, 4) as batches:
    assert batches.delivery()["delivery"] == "host"
try:
    leat.batches(ws, 4, device="cuda:9")
    raise SystemExit("device 9")
except ValueError as e:
    assert "there are 2" in str(e), e
""")


def test_no_driver(run):
    run("""
for device in ("cuda", "pinned"):
    try:
        leat.batches(ws, 4, device=device)
        raise SystemExit("no driver")
    except leat.Unsupported as e:
        assert "libnot-there.so.1" in str(e), e
""", library="libnot-there.so.1")
