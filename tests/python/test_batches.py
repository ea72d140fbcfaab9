# SPDX-License-Identifier: Apache-2.0
"""Batches: slots of a ring, their lifetimes, epochs over ranks."""

import gc
import os
import threading

import numpy as np
import pytest

import leat
from lib_python import FILES, IMAGES


@pytest.mark.parametrize("ids", [[3, 1, 2], (3, 1, 2), np.array([3, 1, 2]), np.array([3, 1, 2], np.uint64),
                                 np.array([3, 1, 2], np.int8), np.array([3, 0, 1, 0, 2])[::2], [-3, 1, -4],
                                 np.array([-3, 1, 2]), range(3, 0, -1), [np.int64(3), 1, 2]])
def test_ids_of_all_kinds(ws, ids):
    want = [3, 2, 1] if isinstance(ids, range) else [3, 1, 2]
    with ws.read_batch(ids) as batch:
        assert batch.ids.tolist() == want and len(batch) == 3
        np.testing.assert_array_equal(batch.data, IMAGES[want])


def test_keys_as_ids(files):
    with files.read_batch(["b/3.jpg", "a/1.jpg"]) as batch:
        assert batch.sample_keys == ["b/3.jpg", "a/1.jpg"] and batch.ids.tolist() == [2, 0]
        assert batch.data.tolist() == [FILES["b/3.jpg"], FILES["a/1.jpg"]]
        assert batch.labels.tolist() == [1, 0] and batch.labels.dtype == np.int64
        label = next(field.name for field in files.fields if field.kind == "label")
        assert batch[label].dtype == np.uint32


def test_ragged(files):
    with files.read_batch([1, 0, 1]) as batch:
        ragged = batch.data
        assert isinstance(ragged, leat.Ragged) and len(ragged) == 3
        assert ragged.offsets.tolist() == [0, 6, 19, 25] and ragged.values.nbytes == 25
        assert ragged[-1].tobytes() == ragged.bytes(0) == b"second"
        assert [v.tobytes() for v in ragged[1:]] == [FILES["a/1.jpg"], b"second"]
        assert ragged[0].ctypes.data == ragged.values.ctypes.data
        with pytest.raises(IndexError):
            ragged[3]
        ragged[0][:] = 0  # the slot is ours
        with pytest.raises(TypeError, match="ragged"):
            batch["data"] = 1
    assert files.read_batch([1]).data.bytes(0) == b"second"


def test_values_of_one_length_are_ragged_as_well(tmp_path):
    (tmp_path / "d").mkdir()
    for i in range(3):
        (tmp_path / "d" / f"{i}.bin").write_bytes(b"%04d" % i)
    with leat.open(tmp_path / "d") as ws, ws.read_batch([2, 0]) as batch:
        assert batch.data.tolist() == [b"0002", b"0000"] and batch.data.offsets.tolist() == [0, 4, 8]


def test_arrays_are_writable_slots_and_the_pool_stays(ws):
    with ws.read_batch([0, 1]) as batch:
        batch["image"] *= 2
        assert (batch.data == IMAGES[:2] * 2).all()
        batch["image"] = -1
        assert (batch.data == -1).all()
    np.testing.assert_array_equal(ws.read_batch([0, 1]).data, IMAGES[:2])
    ws.verify()


def test_release_ends_access(ws):
    batch = ws.read_batch([0])
    ids = batch.ids
    batch.release()
    batch.release()
    assert batch.released and "released" in repr(batch)
    for access in (lambda: batch["image"], lambda: batch.data, lambda: batch.present("image")):
        with pytest.raises(ValueError, match="released"):
            access()
    assert ids.tolist() == [0] and not ids.flags.writeable


def test_slots_come_back(ws):
    for i in range(50):
        batch = ws.read_batch([i % 6])
        assert batch.slot < 4
        if i % 2:
            batch.release()
        del batch  # else by collection


def test_holding_every_slot_is_an_error_that_says_so(ws):
    held = [ws.read_batch([i]) for i in range(4)]
    assert len({batch.slot for batch in held}) == 4
    with pytest.raises(leat.Busy):
        ws.read_batch([4])
    for i, batch in enumerate(held):
        np.testing.assert_array_equal(batch.data[0], IMAGES[i])
    held[2].release()
    assert ws.read_batch([5]).slot == 2


def test_an_array_keeps_its_slot(ws):
    """Released or not: a slot with an array over it is not written."""
    arrays = []
    for i in range(4):
        batch = ws.read_batch([i])
        arrays.append(batch.data[0, :1])
        batch.release()
        del batch
    with pytest.raises(leat.Busy):
        ws.read_batch([5])
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(array, IMAGES[i, :1])
    del array, arrays[3]
    np.testing.assert_array_equal(ws.read_batch([5]).data[0], IMAGES[5])


def test_a_larger_batch_grows_the_ring(ws):
    first = ws.read_batch([1])
    with ws.read_batch([5] * 40) as batch:
        assert batch.data.shape == (40, 2, 3) and (batch.data == IMAGES[5]).all()
    np.testing.assert_array_equal(first.data[0], IMAGES[1])


def test_release_after_an_event(ws):
    held = [ws.read_batch([i]) for i in range(4)]
    fd = os.eventfd(0)
    array = held[0].data
    with pytest.raises(BufferError, match="arrays"):
        held[0].release_after(fd)
    del array
    held[0].release_after(fd)
    assert held[0].released
    with pytest.raises(leat.TimedOut):  # not busy: the slot will come
        ws.read_batch([5], timeout=0.2)
    os.eventfd_write(fd, 1)
    os.close(fd)
    assert ws.read_batch([5]).slot == held[0].slot


def test_out(ws):
    out = np.empty((2, 2, 3), np.float32)
    ws.read_batch([4, 0], out=out).release()
    np.testing.assert_array_equal(out, IMAGES[[4, 0]])
    ws.read_batch([1, 2], out={"image": out}).release()
    np.testing.assert_array_equal(out, IMAGES[1:3])
    for _ in range(8):  # a refusal keeps no slot
        with pytest.raises(ValueError, match="shape"):
            ws.read_batch([1], out=out)


def test_from_many_threads(big):
    with leat.open(big) as ws:
        errors = []

        def work(seed):
            random = np.random.default_rng(seed)
            try:
                for _ in range(60):
                    ids = random.integers(0, 1000, 8)
                    assert (ws[int(ids[0])] == ids[0]).all()
                    while True:
                        try:
                            with ws.read_batch(ids) as batch:
                                np.testing.assert_array_equal(batch.data[:, 7], ids)
                            break
                        except leat.Busy:
                            pass
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors


# --- epochs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("shuffle", ["auto", "full", "block:10", False])
def test_each_sample_once_over_ranks(big, world, shuffle):
    with leat.open(big) as ws:
        seen = []
        for rank in range(world):
            for batch in leat.batches(ws, 7, seed=3, epoch=1, shuffle=shuffle, rank=rank, world_size=world, drop_last=False):
                assert (batch.data == batch.ids[:, None].astype(np.int64)).all()
                seen += batch.ids.tolist()
        assert sorted(seen) == list(range(1000))


def test_steps_are_slices_of_the_order(big):
    with leat.open(big) as ws:
        order = leat.order(ws, seed=5, epoch=2)
        for rank in range(2):
            batches = leat.batches(ws, 30, seed=5, epoch=2, shuffle="full", rank=rank, world_size=2)
            assert len(batches) == 16 and batches.shuffle == "full"
            for step, batch in enumerate(batches):
                first = step * 60 + rank * 30
                assert batch.position == first
                np.testing.assert_array_equal(batch.ids, order[first : first + 30])
        again = leat.batches(ws, 10, seed=5, epoch=2, shuffle="full", rank=0, world_size=1, start=960)
        np.testing.assert_array_equal(np.concatenate([batch.ids for batch in again]), order[960:])


def test_orders(big):
    assert leat.order(10, shuffle=False).tolist() == list(range(10))
    a = leat.order(1000, 1, 0)
    assert a.dtype == np.uint64 and sorted(a.tolist()) == list(range(1000))
    assert (a == leat.order(1000, 1, 0)).all()
    assert (a != leat.order(1000, 1, 1)).any() and (a != leat.order(1000, 2, 0)).any()
    assert sorted(leat.order(1000, 2**64 - 1).tolist()) == list(range(1000))
    with pytest.raises(ValueError, match="auto"):
        leat.order(10, shuffle="auto")


def test_iterators_end_in_every_way(big):
    with leat.open(big) as ws:
        before = threading.active_count()
        for batch in leat.batches(ws, 10):
            break
        with pytest.raises(ZeroDivisionError):
            for batch in leat.batches(ws, 10):
                1 / 0
        with leat.batches(ws, 10) as batches:
            kept = next(batches)
        with pytest.raises(StopIteration):
            next(batches)
        assert kept.data.shape == (10, 16)  # still held
        batches = leat.batches(ws, 500)
        assert len(list(map(len, batches))) == 2
        assert list(batches) == []
        unused = leat.batches(ws, 10)
        del unused, batch
        gc.collect()
        assert threading.active_count() == before


def test_a_consumer_that_keeps_batches(big):
    with leat.open(big) as ws, leat.batches(ws, 10, slots=3) as batches:
        kept = [next(batches) for _ in range(3)]
        with pytest.raises(leat.Busy):
            next(batches)
        assert len({batch.slot for batch in kept}) == 3
        kept.clear()
        del batches
    with leat.open(big) as ws, leat.batches(ws, 10, slots=2, ahead=1) as batches:
        assert sum(len(batch) for batch in batches) == 1000


def test_chosen_fields(npy):
    with leat.open({"image": npy, "label": npy.parent / "labels.npy"}) as ws:
        for batch in leat.batches(ws, 3, fields=["label"]):
            assert batch.fields == ("label",) and "image" not in batch
            np.testing.assert_array_equal(batch["label"], batch.ids // 2)
            with pytest.raises(KeyError):
                batch["image"]


@pytest.mark.parametrize("variables", [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"),
                                       ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")])
def test_ranks_of_the_launcher(big, monkeypatch, variables, caplog):
    for name, value in zip(variables, ("1", "4")):
        monkeypatch.setenv(name, value)
    with leat.open(big) as ws, caplog.at_level("INFO", "leat"):
        assert next(leat.batches(ws, 10, shuffle=False)).position == 10
        assert next(leat.batches(ws, 10, shuffle=False, rank=0, world_size=1)).position == 0
    assert f"rank 1 of 4, from {variables[0]}" in caplog.text


def test_device(ws):
    with leat.batches(ws, 2, device="cpu") as batches:
        assert len(next(batches)) == 2
    for device in ("gpu", "cuda:x", "cuda:", "cuda:-1", "cpu:1", "CUDA", None):
        with pytest.raises(ValueError, match="'cpu', 'pinned' or 'cuda:N'"):
            leat.batches(ws, 2, device=device)
