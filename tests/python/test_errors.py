# SPDX-License-Identifier: Apache-2.0
"""Errors: their words and their classes."""

import pickle

import numpy as np
import pytest

import leat


def test_indices(ws):
    for bad in (6, -7, 2**63, -(2**70)):
        with pytest.raises(IndexError, match=rf"sample {bad} of a working set of 6 samples"):
            ws[bad]
    with pytest.raises(IndexError, match="6 samples"):
        ws.key(6)
    with pytest.raises(TypeError, match="read_batch"):
        ws[0:3]
    with pytest.raises(TypeError):
        ws[1.5]


@pytest.mark.parametrize("ids", [[0, 6], [-7], range(4, 8), np.array([7]), np.array([-7]), [2**80], [2**63],
                                 np.array([2**63], np.uint64), np.array([0, 99], np.int16)])
def test_ids_of_batches(ws, ids):
    with pytest.raises(IndexError, match="of a working set of 6 samples"):
        ws.read_batch(ids)


@pytest.mark.parametrize("ids, error", [([], ValueError), (np.array([0.5]), TypeError), ([None], TypeError),
                                        (np.array([True]), TypeError), (5, TypeError)])
def test_what_are_no_ids(ws, ids, error):
    with pytest.raises(error):
        ws.read_batch(ids)


def test_unknown_keys_name_near_ones(files):
    with pytest.raises(KeyError, match="near it: a/1.jpg") as caught:
        files["a/1.jpeg"]
    assert isinstance(caught.value, leat.NotFound) and isinstance(caught.value, leat.Error)
    assert not str(caught.value).startswith('"')
    with pytest.raises(leat.UnknownKey, match="among 3, 'a/1.jpg' to 'b/3.jpg'"):
        files.index("qqqqqqqqqqqqqqq")
    with pytest.raises(leat.UnknownKey, match="near it: b/3.jpg"):
        files["somewhere/else/altogether/3.jpg"]


def test_unknown_fields(files):
    with pytest.raises(KeyError, match="no field 'png'; there are"):
        files.field("png")
    with files.read_batch([0]) as batch, pytest.raises(KeyError, match="no field 'png' in this batch; there are"):
        batch["png"]


def test_sources(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        leat.open(tmp_path / "none")
    assert type(caught.value) is leat.NotFound and caught.value.code == "not found"
    assert str(tmp_path / "none") in str(caught.value)
    np.save(tmp_path / "f.npy", np.asfortranarray(np.ones((4, 4, 4))))
    with pytest.raises(leat.Unsupported, match="(?i)fortran"):
        leat.open(tmp_path / "f.npy")
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00\xff\xff garbage")
    with pytest.raises(leat.Corrupt):
        leat.open(tmp_path / "bad.npy")
    with pytest.raises(leat.NotFound):
        leat.open("leat://nothing")
    with pytest.raises(ValueError):
        leat.open({})


def test_arguments(ws, npy):
    for bad in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            leat.open(npy, timeout=bad)
    with pytest.raises(ValueError, match="'8GiB'"):
        leat.open(npy, pool="much", job="another")
    with pytest.raises(ValueError, match="shuffle"):
        leat.batches(ws, 2, shuffle="sometimes")
    with pytest.raises(ValueError, match="batch_size"):
        leat.batches(ws, 0)
    with pytest.raises(ValueError, match="give both"):
        leat.batches(ws, 2, rank=1)
    with pytest.raises(ValueError, match="ranks count from 0"):
        leat.batches(ws, 2, rank=2, world_size=2)
    with pytest.raises(TypeError, match="progress"):
        ws.wait(5)


def test_classes_and_pickling():
    for name, base in [("TimedOut", TimeoutError), ("PeerGone", ConnectionError), ("Denied", PermissionError),
                       ("Invalid", ValueError), ("NoSpace", MemoryError), ("NotFound", LookupError),
                       ("Corrupt", Exception), ("Stale", Exception), ("Busy", Exception),
                       ("Unsupported", NotImplementedError)]:
        kind = getattr(leat, name)
        assert issubclass(kind, leat.Error) and issubclass(kind, base)
        error = kind("what and why", code="a code")
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind and str(again) == "what and why" and again.code == "a code"


def test_an_exception_of_the_progress_callback_arrives(big):
    class Mine(Exception):
        pass

    def stop(progress):
        raise Mine(progress.stage)

    # Of open or of wait, whichever reports progress first; so small a set may be there before either does.
    try:
        ws = leat.open(big, progress=stop)
        ws.wait(stop)
    except Mine as error:
        assert str(error) in ("index", "load")
    assert len(leat.open(big)) == 1000


def test_no_daemon():
    assert leat.ls() == []
    assert leat.stop() is False
    with pytest.raises(leat.NotFound):
        leat.status()
