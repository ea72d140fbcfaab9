# SPDX-License-Identifier: Apache-2.0
"""Explicit sets, append, drop, push, and the daemon's status."""

import threading

import numpy as np
import pytest

import leat
from lib_python import IMAGES
from leat._base import clients as _clients
from lib_host import wait_for


def test_who_waits_is_told_how_far_loading_is():
    half = np.zeros((2, 10), np.uint8)
    seen, told = [], threading.Event()

    def tell(progress):
        seen.append(progress)
        told.set()

    with leat.create("half", {"x": ("u1", (10,))}, samples=4) as ws:
        ws.push(0, half)
        rest = threading.Thread(target=lambda: (told.wait(60), ws.push(2, half)))
        rest.start()
        ws.wait(tell)
        rest.join()
    first = seen[0]
    assert (first.stage, first.samples_done, first.samples_total, first.bytes_done, first.bytes_total) == ("load", 2, 4, 20, 40)
    leat.drop("half")


def test_an_explicit_set_stays(npy):
    seen = []
    with leat.preload(npy, name="kept", progress=seen.append) as ws:
        assert ws.uri == "leat://kept" and ws.name == "kept"
        assert ws.stat().resident_samples == 6
    assert [found["name"] for found in leat.ls()] == ["kept"]
    assert leat.stat("kept")["samples"] == 6
    with leat.open("leat://kept") as ws:
        np.testing.assert_array_equal(ws[5], IMAGES[5])
        leat.verify(ws)
        ws.verify(source=True)
    with leat.open("Leat://kept") as ws:
        assert ws.name == "kept"
    with pytest.raises(ValueError, match="open the array itself"):
        leat.open("LEAT://kept", window=2)
    leat.drop("LEAT://kept")
    assert leat.ls() == []
    with pytest.raises(leat.NotFound):
        leat.drop("kept")


def test_an_implicit_set_goes_with_its_last_user(npy):
    ws = leat.open(npy, wait=True)
    assert len(leat.ls()) == 1
    ws.close()
    _clients.forget_all()
    wait_for(lambda: leat.ls() == [] or _clients.forget_all())


def test_append_makes_a_new_version(npy, tmp_path):
    np.save(tmp_path / "more.npy", IMAGES[:2] + 100)
    old = leat.preload(npy, name="growing")
    assert leat.append("growing", tmp_path / "more.npy") == 8
    assert len(old) == 6
    with leat.open("leat://growing") as new:
        assert len(new) == 8
        np.testing.assert_array_equal(new.wait()[7], IMAGES[1] + 100)
        with new.read_batch([7, 0]) as batch, new.view(6) as view:
            np.testing.assert_array_equal(batch.data, [IMAGES[1] + 100, IMAGES[0]])
            np.testing.assert_array_equal(view.array, IMAGES[0] + 100)
    np.testing.assert_array_equal(old[5], IMAGES[5])


def test_a_forced_drop_makes_readers_stale(npy):
    ws = leat.preload(npy, name="gone")
    view = ws.view(0)
    leat.drop("gone", force=True)
    with pytest.raises(leat.Stale):
        ws[0]
    with pytest.raises(leat.Stale):
        ws.read_batch([0])
    assert view.array.shape == (2, 3)  # mapped still: zeros, but no crash


def test_push(tmp_path):
    ws = leat.create("pushed", {"x": ("f4", (2,)), "text": bytes}, 5, lengths={"text": [1, 0, 3, 4, 2]},
                     keys=[f"key{i}" for i in range(5)])
    texts = [b"a", b"", b"ccc", b"dddd", b"ee"]
    assert len(ws) == 5 and ws.index("key3") == 3
    for rank in range(2):
        mine = leat.share(5, rank, 2)
        ws.push(mine.start, {"x": [[i, -i] for i in mine], "text": [texts[i] for i in mine]})
    ws.wait(timeout=10)
    for i in range(5):
        assert ws[i]["x"].tolist() == [i, -i] and ws[i]["text"] == texts[i]
    with ws.read_batch([4, 2]) as batch:
        assert batch["text"].tolist() == [b"ee", b"ccc"] and batch["x"][:, 0].tolist() == [4, 2]
    leat.verify(ws)


def test_bad_pushes():
    with pytest.raises(ValueError, match="lengths"):
        leat.create("x", {"text": bytes}, 2)
    with pytest.raises(ValueError, match="keys"):
        leat.create("x", {"n": ("i4", ())}, 2, keys=["a"])
    ws = leat.create("x", {"n": ("i4", (3,)), "m": ("i4", ())}, 2)
    for bad in ({"n": np.ones((1, 3), int)}, {"n": np.ones((1, 4), int), "m": [1]}, {"n": np.ones((2, 3), int), "m": [1]}):
        with pytest.raises(ValueError):
            ws.push(0, bad)
    with pytest.raises(leat.Error):
        ws.push(1, {"n": np.ones((2, 3), int), "m": [1, 2]})  # past the end
    with pytest.raises(leat.Error):
        leat.create("x", {"n": ("i4", (3,))}, 2)  # exists


def test_pushed_numbers_fit_or_are_refused():
    ws = leat.create("x", {"u1": "u1", "i4": "i4", "u8": "u8", "f4": "f4", "when": "M8[D]"}, 2)
    good = {"u1": [0, 255], "i4": np.array([-2**31, 7]), "u8": [2**64 - 1, 1], "f4": [0.1, 2.5], "when": ["2026-01-01", "2026-01-02"]}
    for name, bad in (("u1", [1, 300]), ("u1", [1, -1]), ("u1", np.array([1, 300])), ("i4", [1.7, 1]), ("i4", np.array([2**31, 0])),
                      ("u8", [-1, 2**63]), ("u8", [2**64, 1]), ("f4", [1j, 1]), ("i4", ["1", "2"])):
        with pytest.raises(ValueError, match=f"'{name}'.*does not fit"):
            ws.push(0, {**good, name: bad})
    ws.push(0, good)
    assert [int(ws[0][name]) for name in ("u1", "i4", "u8")] == [0, -2**31, 2**64 - 1] and ws[1]["u8"] == 1
    assert ws[0]["f4"] == np.float32(0.1) and ws[1]["when"] == np.datetime64("2026-01-02")


def test_shares_cover_all():
    for n in (0, 1, 7, 100):
        for world in (1, 3, 8):
            assert [i for rank in range(world) for i in leat.share(n, rank, world)] == list(range(n))


def test_status_and_counters(ws):
    ws.wait()
    before = leat.counters()
    ws.read_batch([0, 1]).release()
    assert leat.counters() != before
    status = leat.status()
    assert status["program"].startswith("leatd") and status["pool"]["used_bytes"] > 0


def test_stop(npy):
    ws = leat.open(npy)
    assert leat.stop(force=True)
    with pytest.raises(leat.PeerGone):
        ws.read_batch([0])
        ws.stat()
    assert len(leat.open(npy)) == 6  # another daemon


def test_pool_too_small(tmp_path):
    np.save(tmp_path / "large.npy", np.zeros((4, 3 << 20), "u1"))
    with pytest.raises((leat.NoSpace, leat.Invalid)):
        leat.open(tmp_path / "large.npy", pool="1MiB", wait=True)
