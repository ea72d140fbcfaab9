# SPDX-License-Identifier: Apache-2.0
"""Windows over long arrays: leat.open(..., window=, stride=)."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

import leat
from leat._sets import windows as _windows

N = 100_003


@pytest.fixture
def tokens(tmp_path):
    np.save(tmp_path / "tokens.npy", np.arange(N, dtype="<u4"))
    return tmp_path / "tokens.npy"


CASES = [(2048, 2048), (2048, 1024), (2049, 2048), (1000, 3000), (129, 128), (7, 10), (64, 1), (500, 499)]


def count(window, stride):
    """Those that the blocks hold wholly."""
    rows = _windows.block_rows(window, stride)
    whole = -(-window // rows) * rows
    return (N // rows * rows - whole) // stride + 1


@pytest.mark.parametrize("window, stride", CASES)
def test_every_window_once(tokens, window, stride):
    with leat.open(tokens, window=window, stride=stride) as ws:
        n = count(window, stride)
        assert len(ws) == n and ws.fields[0].shape == (window,)
        ideal = (N - window) // stride + 1
        assert ideal - 1 <= n <= ideal
        assert ws[n - 1].tolist() == list(range((n - 1) * stride, (n - 1) * stride + window))
        seen = []
        for batch in leat.Loader(ws, 16, seed=1, drop_last=False):
            assert batch["data"].shape == (16, window)
            assert (batch["data"] == batch.ids[:, None].astype(np.int64) * stride + np.arange(window)).all()
            assert not batch["data"].flags.owndata
            seen += batch.ids[batch.valid].tolist()
        assert sorted(seen) == list(range(n))
        assert seen == leat.order(ws, seed=1).tolist()


def test_equal_window_and_stride_is_a_plain_set(tokens):
    with leat.open(tokens, window=100) as ws:
        assert type(ws) is leat.WorkingSet and len(ws) == N // 100 and ws.uri.endswith("tokens.npy#rows=100")
        with ws.view(7) as view:
            assert view.array.tolist() == list(range(700, 800))
        ws.verify()
    named = leat.preload(tokens, window=100, name="hundreds")
    assert leat.open("leat://hundreds")[2].tolist() == list(range(200, 300))
    with pytest.raises(ValueError, match="leat://hundreds"):
        leat.open("leat://hundreds", window=10)
    named.close()


def test_fingerprints_differ(tokens):
    sets = [leat.open(tokens, window=w, stride=s) for w, s in ((128, 128), (128, 64), (128, 192), (64, 64), (256, 64), (129, 128))]
    assert len({ws.fingerprint for ws in sets}) == len(sets)
    assert all(len(ws.fingerprint) == 32 for ws in sets)
    again = leat.open(tokens, window=128, stride=64)
    assert again.fingerprint == sets[1].fingerprint
    state = leat.Loader(sets[1], 4).state_dict()
    leat.Loader(again, 8).load_state_dict(state)
    with pytest.raises(leat.Stale):
        leat.Loader(sets[4], 4).load_state_dict(state)
    for ws in (*sets, again):
        ws.close()


def test_state_goes_on_with_another_world(tokens):
    with leat.open(tokens, window=129, stride=128) as ws:
        loader = leat.Loader(ws, 10, seed=3, drop_last=False)
        seen = [i for _, batch in zip(range(7), loader) for i in batch.ids.tolist()]
        state = loader.state_dict()
        for rank in range(2):
            rest = leat.Loader(ws, 6, drop_last=False, rank=rank, world_size=2)
            rest.load_state_dict(state)
            seen += [i for batch in rest for i in batch.ids[batch.valid].tolist()]
        assert sorted(seen) == list(range(len(ws)))


def last_is_next(sample, rng):
    return {"x": sample["data"][:-1].astype(np.int64), "y": sample["data"][1:].astype(np.int64)}


@pytest.mark.parametrize("workers", ["thread", "process", "spawn"])
def test_transforms_and_workers(tokens, workers):
    with leat.open(tokens, window=129, stride=128) as ws, \
            leat.Loader(ws, 32, transform=last_is_next, workers=workers, num_workers=2) as loader:
        for batch in loader:
            assert (batch["x"] + 1 == batch["y"]).all() and (batch["x"][:, 0] == batch.ids.astype(np.int64) * 128).all()


def test_other_ways_to_read(tokens):
    with leat.open(tokens, window=129, stride=128) as ws:
        again = pickle.loads(pickle.dumps(ws))
        assert len(again) == len(ws) and again.fingerprint == ws.fingerprint and (again[5] == ws[5]).all()
        assert ws.key(3) == "3" and ws.index("3") == 3 and "3" in ws and str(len(ws)) not in ws
        assert [sample[0] for sample in ws.__getitems__([4, 2])] == [512, 256]
        first = next(leat.batches(ws, 4, shuffle=False))
        assert first["data"][:, 0].tolist() == [0, 128, 256, 384] and first.present("data").all()
        out = np.empty((2, 129), "<u4")
        ws.read_batch([1, 2], out=out).release()
        assert out[:, -1].tolist() == [256, 384]
        with pytest.raises(leat.Unsupported, match="one block"):
            ws.view(0)
        with pytest.raises(IndexError):
            ws[len(ws)]
        with pytest.raises(leat.Invalid, match="window"):
            ws._ring.read_batch(np.array([len(ws)], np.uint64), 0, len(ws) + 1)
        again.close()


def test_in_the_child_of_a_fork(tokens):
    code = """
import os, sys, leat
ws = leat.open(sys.argv[1], window=129, stride=128)
want = ws[9].tolist()
pid = os.fork()
if not pid:
    os._exit(0 if ws[9].tolist() == want and len(ws) > 700 else 1)
assert os.waitpid(pid, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code, tokens], check=True, timeout=60)


def test_several_arrays_of_rows(tmp_path):
    np.save(tmp_path / "sound.npy", np.arange(4000, dtype="<i2").reshape(2000, 2))
    np.save(tmp_path / "mask.npy", np.arange(2000, dtype="<i8"))
    with leat.open({"sound": tmp_path / "sound.npy", "mask": tmp_path / "mask.npy"}, window=96, stride=32) as ws:
        assert ws.fields[0].shape == (96, 2) and len(ws) == (2000 // 32 * 32 - 96) // 32 + 1
        for batch in leat.Loader(ws, 8):
            starts = batch.ids.astype(np.int64) * 32
            assert (batch["mask"][:, 0] == starts).all() and (batch["sound"][:, 0, 0] == 2 * starts).all()
            assert batch["sound"].shape == (8, 96, 2)


def test_mixtures(tmp_path, tokens):
    np.save(tmp_path / "other.npy", np.arange(N, dtype="<u4") + 1_000_000)
    with leat.open(tokens, window=129, stride=128) as a, leat.open(tmp_path / "other.npy", window=129, stride=128) as b:
        for batch in leat.Loader(leat.Mixture([(a, 3), (b, 1)]), 32):
            starts = batch.ids.astype(np.int64) * 128 + 1_000_000 * batch.source
            assert (batch["data"] == starts[:, None] + np.arange(129)).all()


def test_larger_than_the_pool(tmp_path):
    rows = 6 << 20
    np.save(tmp_path / "long.npy", np.arange(rows, dtype="<u4"))
    with leat.open(tmp_path / "long.npy", window=4097, stride=4096, limit="8MiB", pool="16MiB") as ws:
        assert ws.stat().streamed
        for shuffle in (True, "full", "block:8"):
            seen = 0
            for batch in leat.Loader(ws, 64, shuffle=shuffle, drop_last=False):
                assert (batch["data"][:, [0, -1]] == batch.ids[:, None].astype(np.int64) * 4096 + [0, 4096]).all()
                seen += int(batch.valid.sum())
                if shuffle == "full" and seen > 300:
                    break
            assert shuffle == "full" or seen == len(ws)


def test_what_is_refused(tokens, folder, tmp_path):
    for window, stride in ((0, 1), (5, 0), (-3, 3)):
        with pytest.raises(ValueError, match="at least 1"):
            leat.open(tokens, window=window, stride=stride)
    with pytest.raises(ValueError, match="needs a window"):
        leat.open(tokens, stride=3)
    with pytest.raises(leat.Invalid, match="fewer rows than one window"):
        leat.open(tokens, window=N + 1)
    with pytest.raises(ValueError, match="fewer rows"):
        leat.open(tokens, window=2 * N // 10 * 10, stride=N // 10)
    with pytest.raises(leat.Invalid, match="only of arrays"):
        leat.open(folder, window=3)
    with pytest.raises(leat.Invalid, match="how many rows"):
        leat.open(f"{tokens}#rows=12x")
    (tmp_path / "odd#rows=3.npy").write_bytes(tokens.read_bytes())  # a file may have such a name
    with leat.open(tmp_path / "odd#rows=3.npy") as ws:
        assert len(ws) == N


@pytest.mark.parametrize("options", [{}, {"chunks": (1000,), "compression": "gzip", "shuffle": True}, {"chunks": (64,)}],
                         ids=["contiguous", "gzip", "small chunks"])
def test_arrays_of_hdf5(tmp_path, options):
    """Chunks end where they like, also within a window."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "long.h5", "w") as file:
        file.create_dataset("train/x", data=np.arange(10_007, dtype="<i4"), **options)
    for window, stride in ((96, 96), (96, 32), (129, 128)):
        with leat.open(f"{tmp_path}/long.h5#/train/x", window=window, stride=stride) as ws:
            for batch in leat.Loader(ws, 8, drop_last=False):
                (name,) = batch.fields
                assert (batch[name] == batch.ids[:, None].astype(np.int64) * stride + np.arange(window)).all()
            ws.verify()


def test_a_window_that_does_not_fit_is_told_in_the_terms_of_the_caller(leat, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(10))
    for window, stride in ((20, 10), (11, 1)):
        with pytest.raises(ValueError, match=rf"window={window}: .*a.npy has fewer rows") as caught:
            leat.open(tmp_path / "a.npy", window=window, stride=stride)
        assert "#rows" not in str(caught.value)
