# SPDX-License-Identifier: Apache-2.0
"""leat.Loader and a real GPU: skipped where there is none. The first tests drive the driver by themselves, and run with tests/fakecuda too, which
shows that they are right, not that a GPU is; the others go by PyTorch, CuPy and JAX. `-s` shows what was measured."""

import gc
import os
import subprocess
import sys
import time

import numpy as np
import pytest

import leat
from lib_python import BUILD

FAKE = BUILD / "tests" / "fakecuda" / "fakecuda.so"

PROGRAM = """
import ctypes, gc, mmap, os, sys
import numpy as np, leat
from work import twice
fake = "LEAT_LIBCUDA" in os.environ
cu = ctypes.CDLL(os.environ.get("LEAT_LIBCUDA", "libcuda.so.1"))
p, u64, size = ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_size_t
def ok(result):
    assert result == 0, result

def main(workers):
    if fake:
        cu.fakecuda_delay(150)
    context, stream, scratch = p(), p(), u64()
    ok(cu.cuInit(0))
    ok(cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    ok(cu.cuCtxPushCurrent_v2(context))
    ok(cu.cuStreamCreate(ctypes.byref(stream), 1))
    scratch_bytes = 65536 if fake else 256 << 20
    ok(cu.cuMemAlloc_v2(ctypes.byref(scratch), size(scratch_bytes)))
    n, batch_size, epochs = 512, 16, 2 if fake else 20
    rows = np.random.default_rng(0).integers(0, 2**16, (n, 1024 if fake else 32768), np.uint16)
    np.save("rows.npy", rows)
    ws = leat.open({"x": "rows.npy"})
    per_epoch = n // batch_size
    size_of = batch_size * rows[0].nbytes
    room = mmap.mmap(-1, (per_epoch * size_of + 4095) // 4096 * 4096)
    seen = np.frombuffer(room, np.uint16)[: per_epoch * size_of // 2].reshape(per_epoch, batch_size, -1)
    ok(cu.cuMemHostRegister_v2(p(seen.ctypes.data), size(len(room)), 1))
    for prepared in (False, True):
        how = dict(transform=twice, num_workers=2, workers=workers) if prepared else {}
        expected = rows * np.uint16(2) if prepared else rows
        loader = leat.Loader(ws, batch_size, device="cuda:0", seed=1, **how)
        for epoch in range(epochs):
            seen[:] = 0
            ids = []
            for step, batch in enumerate(loader):
                field = batch["x"]
                at = field.__cuda_array_interface__["data"][0]
                # What reads the batch is behind slow work on a stream of our own, and the slot is poisoned when it was read: a slot that is
                # filled too early, or handed out before its copy, is seen.
                for i in range(4):
                    ok(cu.cuMemsetD8Async(scratch, 0xA5, size(scratch_bytes), stream))
                ok(cu.cuMemcpyDtoHAsync_v2(p(seen[step].ctypes.data), u64(at), size(size_of), stream))
                ok(cu.cuMemsetD8Async(u64(at), 0xA5, size(size_of), stream))
                batch.record_stream(stream.value)
                ids.append(batch.ids)
                del field, batch
            while cu.cuStreamQuery(stream):
                pass
            for step, of in enumerate(ids):
                assert (seen[step] == expected[of]).all(), (prepared, epoch, step)
        stats = loader.stats()
        assert (stats["delivery"], stats["delivered_bytes"]) == ("bounce", epochs * n * rows[0].nbytes), stats
        loader.close()
    ok(cu.cuMemHostUnregister(p(seen.ctypes.data)))

if __name__ == "__main__":
    main(sys.argv[1])
"""


@pytest.mark.parametrize("workers", ["thread", "fork", "spawn"])
@pytest.mark.parametrize("driver", ["fake", "real"])
def test_slots_in_turn_under_load(runtime, tmp_path, driver, workers):
    if driver == "real":
        a_gpu()
    elif not FAKE.exists():
        pytest.skip("no build tree here, with tests/fakecuda")
    (tmp_path / "work.py").write_text("def twice(sample, rng):\n    return {'x': sample['x'] * type(sample['x'][0])(2)}\n")
    (tmp_path / "main.py").write_text(PROGRAM)
    env = {**os.environ, **({"LEAT_LIBCUDA": str(FAKE)} if driver == "fake" else {})}
    done = subprocess.run([sys.executable, "main.py", workers], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


CAPTURE = """
import ctypes, os
import numpy as np, leat
cu = ctypes.CDLL(os.environ.get("LEAT_LIBCUDA", "libcuda.so.1"))
p, u64, size = ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_size_t
def ok(result):
    assert result == 0, result
context, stream, graph, scratch = p(), p(), p(), u64()
ok(cu.cuInit(0))
ok(cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(cu.cuCtxPushCurrent_v2(context))
ok(cu.cuStreamCreate(ctypes.byref(stream), 1))
ok(cu.cuMemAlloc_v2(ctypes.byref(scratch), size(4096)))
np.save("rows.npy", np.zeros((512, 1024), np.uint16))
for how in ({}, {"transform": lambda sample, rng: sample, "num_workers": 2}):
    loader = leat.Loader("rows.npy", 16, device="cuda:0", **how)
    assert len([None for batch in loader]) == 32
    ok(cu.cuStreamBeginCapture_v2(stream, 0))  # in the global mode, as torch.cuda.graph does
    assert len([None for batch in loader]) == 32
    ok(cu.cuStreamEndCapture(stream, ctypes.byref(graph)))
"""


@pytest.mark.parametrize("driver", ["fake", "real"])
def test_a_graph_is_captured_meanwhile(runtime, tmp_path, driver):
    """Neither the thread that reads ahead nor the loop ends the capture by what they ask of the driver."""
    if driver == "real":
        a_gpu()
    elif not FAKE.exists():
        pytest.skip("no build tree here, with tests/fakecuda")
    env = {**os.environ, **({"LEAT_LIBCUDA": str(FAKE)} if driver == "fake" else {})}
    done = subprocess.run([sys.executable, "-c", CAPTURE], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def a_gpu():
    """Skips where there is none, with the reason."""
    try:
        leat._loader.device.open_device(0)
    except leat.Unsupported as error:
        pytest.skip(f"no GPU here: {error}")


@pytest.fixture
def torch():
    a_gpu()
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this torch does not see the GPU")
    return torch


ROWS, WIDTH = 2048, 16384


@pytest.fixture
def rows(tmp_path):
    made = np.random.default_rng(0).standard_normal((ROWS, WIDTH), np.float32)
    np.save(tmp_path / "rows.npy", made)
    np.save(tmp_path / "labels.npy", np.arange(ROWS))
    with leat.open({"x": tmp_path / "rows.npy", "y": tmp_path / "labels.npy"}) as opened:
        opened.expected = made  # type: ignore[attr-defined]
        yield opened


def same(sample, rng):
    return sample


HOW = [{}, {"transform": same, "num_workers": 4}, {"transform": same, "num_workers": 2, "workers": "spawn"}]


@pytest.mark.parametrize("how", HOW, ids=["raw", "threads", "spawn"])
def test_what_torch_sees(torch, rows, how):
    """Compared on the device, on a stream that lags behind, two epochs."""
    expected = torch.from_numpy(rows.expected).cuda()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    loader = leat.Loader(rows, 64, device=torch.device("cuda:0"), seed=5, **how)
    for _ in range(2):
        for batch in loader:
            tensors = batch.torch()
            assert tensors["x"].is_cuda and tensors["x"].shape == (64, WIDTH) and tensors["y"].device.type == "cuda"
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
                ids = torch.from_numpy(batch.ids.astype(np.int64)).cuda()
                wrong += (tensors["x"] != expected[ids]).sum() + (tensors["y"].long() != ids).sum()
                tensors["x"].fill_(float("nan"))  # the next one must be all new
            batch.record_stream(stream)
            del tensors, batch
    torch.cuda.synchronize()
    assert int(wrong) == 0
    assert loader.stats()["delivered_bytes"] == 2 * ROWS * (4 * WIDTH + 8)


@pytest.mark.parametrize("how", HOW[:2], ids=["raw", "threads"])
def test_without_a_copy(torch, rows, how):
    for batch in leat.Loader(rows, 64, device="cuda", **how):
        field = batch["x"]
        interface = field.__cuda_array_interface__
        assert interface["version"] == 3 and interface["stream"] is None
        tensor = torch.from_dlpack(field)
        assert tensor.data_ptr() == interface["data"][0] == torch.as_tensor(field, device="cuda").data_ptr()
        assert torch.equal(tensor.cpu(), torch.from_numpy(rows.expected[batch.ids]))
        break
    try:
        import cupy
    except ImportError:
        pass
    else:
        array = cupy.asarray(field)
        assert array.data.ptr == interface["data"][0] == cupy.from_dlpack(field).data.ptr
        assert cupy.asnumpy(array).sum() == rows.expected[batch.ids].sum()
    try:
        import numba.cuda
    except ImportError:
        return
    assert (numba.cuda.as_cuda_array(field).copy_to_host() == rows.expected[batch.ids]).all()


def test_jax(torch, rows, tmp_path):
    """In a process of its own: it takes most of the GPU's memory."""
    pytest.importorskip("jax", reason="JAX is not installed")
    code = """
import jax, leat, numpy as np
ws = leat.open("rows.npy")
batch = next(iter(leat.Loader(ws, 64, device="cuda:0")))
array = jax.dlpack.from_dlpack(batch.data)
assert (np.asarray(array) == np.load("rows.npy", mmap_mode="r")[batch.ids]).all()
"""
    env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    if "Unable to initialize backend" in done.stderr or "no supported devices" in done.stderr:
        pytest.skip("this JAX does not see the GPU")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", HOW, ids=["raw", "threads", "spawn"])
def test_pinned(torch, rows, how):
    """page-locked for torch as well, so that copies of the user's own run beside the rest."""
    for batch in leat.Loader(rows, 64, pin_memory=True, **how):
        tensors = batch.torch()
        assert tensors["x"].is_pinned() and tensors["y"].is_pinned()
        moved = tensors["x"].to("cuda", non_blocking=True)
        ids = batch.ids
        del tensors, batch
    assert torch.equal(moved.cpu(), torch.from_numpy(rows.expected[ids]))


@pytest.mark.parametrize("how", HOW[:2], ids=["raw", "threads"])
def test_memory_stays_the_same(torch, rows, how):
    """Loaders that are left in the middle of an epoch, and many epochs of one."""
    def used():
        gc.collect()
        torch.cuda.synchronize()
        leat._loader.device.sweep()
        free, total = torch.cuda.mem_get_info()
        return total - free

    def leave():
        loader = leat.Loader(rows, 64, device="cuda:0", **how)
        for step, batch in enumerate(loader):
            if step == 3:
                return batch.torch()["x"].clone()

    leave()
    before = used()
    for _ in range(20):
        leave()
    loader = leat.Loader(rows, 64, device="cuda:0", **how)
    for _ in range(10):
        for batch in loader:
            pass
    del batch, loader
    assert used() <= before + (64 << 20)


def test_a_child_of_fork(torch, rows):
    loader = leat.Loader(rows, 64, device="cuda:0", **HOW[1])
    first = next(iter(loader))
    pid = os.fork()
    if pid == 0:
        try:
            next(iter(loader))
        except leat.Error as error:
            os._exit(0 if "use spawn or forkserver" in str(error) else 2)
        except BaseException:
            os._exit(3)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert torch.equal(first.torch()["x"].cpu(), torch.from_numpy(rows.expected[first.ids]))


def test_how_fast(torch, rows):
    """Printed, not asserted: the first epoch apart, GB/s of batches of 16 MiB into the GPU's memory."""
    source = torch.from_numpy(rows.expected[:256]).pin_memory()
    target = torch.empty_like(source, device="cuda")
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(50):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    speeds = {"torch, the same pinned 16 MiB again and again": 50 * source.nbytes / (time.perf_counter() - begin)}
    for name, how in zip(("raw", "through 4 threads", "through 2 processes"), HOW):
        loader = leat.Loader(rows, 256, fields=["x"], device="cuda:0", **how)
        for batch in loader:
            pass
        begin = time.perf_counter()
        for _ in range(5):
            for batch in loader:
                pass
        torch.cuda.synchronize()
        speeds[f"leat, {name}"] = 5 * rows.expected.nbytes / (time.perf_counter() - begin)
        del batch
        loader.close()
    print()
    for name, speed in speeds.items():
        print(f"{torch.cuda.get_device_name()}: {speed / 1e9:6.1f} GB/s  {name}")
