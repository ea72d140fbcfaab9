# SPDX-License-Identifier: Apache-2.0
"""Plain batches go from the library to the loop without Python: what they are, and what is counted, must not show it."""

import gc
import os
import threading

import numpy as np
import pytest

import leat
from leat._loader.epoch import Epoch
from lib_python import daemons
from lib_host import wait_for


@pytest.fixture
def numbers(tmp_path):
    np.save(tmp_path / "n.npy", np.arange(1000, dtype="<i8").reshape(1000, 1))
    with leat.open(tmp_path / "n.npy", name="numbers") as ws:
        yield ws


@pytest.fixture
def steps(monkeypatch):
    """How many steps were done by Python."""
    done = []
    real = Epoch._step
    monkeypatch.setattr(Epoch, "_step", lambda epoch: done.append(epoch._done) or real(epoch))
    return done


def test_python_does_the_first_step_and_the_end(numbers, steps):
    loader = leat.Loader(numbers, 10, seed=3)
    for epoch in range(2):
        want = leat.order(numbers, seed=3, epoch=epoch).reshape(-1, 10).tolist()
        got = []
        for k, batch in enumerate(loader):
            assert batch.data[:, 0].tolist() == batch.ids.tolist() and len(batch) == 10 and batch.valid.all()
            assert batch.position == 10 * k and batch.sample_keys[0] == str(batch.ids[0])
            got.append(batch.ids.tolist())
            state = loader.state_dict()
            assert (state["epoch"], state["samples"]) == ((epoch, 10 * k + 10) if k < 99 else (epoch + 1, 0))
        assert got == want
    assert steps == [0, 100] * 2
    stats = loader.stats()
    assert (stats["batches"], stats["samples"]) == (200, 2000) and stats["wait_s"] > 0 and stats["consume_s"] > 0
    loader.close()


def test_padding_is_dressed_by_python(numbers, steps):
    loader = leat.Loader(numbers, 300, shuffle=False, drop_last=False, rank=1, world_size=2)
    assert [(batch.position, int(batch.valid.sum())) for batch in loader] == [(300, 300), (900, 100)]
    assert steps == [0, 1, 2]
    loader.close()


def test_arrays_are_made_without_python(tmp_path, monkeypatch):
    """Batches of Python's first step and of C look alike; wrong arguments get the same error."""
    np.save(tmp_path / "x.npy", np.arange(600, dtype="<f4").reshape(100, 2, 3))
    np.save(tmp_path / "y.npy", np.arange(100, dtype="<i2"))
    asked = []
    real = leat.Batch._get
    monkeypatch.setattr(leat.Batch, "_get", lambda batch, name: asked.append(name) or real(batch, name))
    with leat.open({"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"}) as ws:
        loader = leat.Loader(ws, 10, seed=3, fields={"image": "x", "label": "y"})
        kept = []
        for k, batch in enumerate(loader):
            ids = batch.ids.astype(int)
            image, label = batch["image"], batch["label"]
            assert (image.dtype, image.shape, label.dtype, label.shape) == (np.dtype("<f4"), (10, 2, 3), np.dtype("<i2"), (10,))
            assert image.flags.writeable and image[:, 0, 0].tolist() == (6 * ids).tolist() and label.tolist() == ids.tolist()
            assert batch["image"] is image  # made once
            batch["label"] += 1
            assert label.tolist() == (ids + 1).tolist()
            assert asked == ["image", "label"]  # of the first batch, which is Python's
            if k == 4:
                kept = [image, image.copy()]
                break
        for name, error in (("x", KeyError), (3, KeyError), (("x", "y"), KeyError), (("image",), KeyError), (["x"], TypeError)):
            with pytest.raises(error):
                batch[name]
        batch.release()
        with pytest.raises(ValueError, match="the batch was released"):
            batch["image"]
        del batch, image, label
        gc.collect()
        for batch in loader:  # the array keeps its slot, whatever became of the batch
            assert not np.shares_memory(batch["image"], kept[0])
        assert (kept[0] == kept[1]).all()
        del batch
        kept.clear()
        loader.close()


def test_an_epoch_that_is_left_in_the_middle(numbers):
    loader = leat.Loader(numbers, 10)
    for epoch, left in enumerate((1, 2, 50, 99, 100)):
        for k, batch in enumerate(loader):
            if k + 1 == left:
                break
        del batch
        state = loader.state_dict()
        assert state["samples"] == (10 * left if left < 100 else 0)
        again = leat.Loader(numbers, 7)
        again.load_state_dict(state)
        rest = [i for batch in again for i in batch.ids.tolist()]
        if left < 100:
            assert rest == leat.order(numbers, epoch=epoch)[10 * left:].tolist()[: len(rest)] and len(rest) == (1000 - 10 * left) // 7 * 7
        again.close()
    assert loader.stats()["batches"] == 1 + 2 + 50 + 99 + 100
    loader.close()


def test_set_epoch_in_the_middle_of_a_pass(numbers):
    loader = leat.Loader(numbers, 10, seed=1)
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    loader.set_epoch(5)  # of the next pass: this one stays what it is, and moves the state no more
    assert [next(batches).position for _ in range(3)] == [70, 80, 90]
    assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (5, 0)
    assert next(iter(loader)).ids.tolist() == leat.order(numbers, seed=1, epoch=5)[:10].tolist()
    with pytest.raises(ValueError, match="another iter"):
        next(batches)
    loader.close()


def test_threads_take_turns(numbers):
    """Each batch once, and the counts are those of all of them."""
    loader = leat.Loader(numbers, 2)
    batches, seen = iter(loader), [[], [], []]

    def take(mine):
        for batch in batches:
            mine.append(batch.ids.tolist())

    threads = [threading.Thread(target=take, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(i for mine in seen for ids in mine for i in ids) == list(range(1000))
    assert loader.stats()["batches"] == 500
    loader.close()


def test_ctrl_c_while_progress_is_told(numbers, monkeypatch):
    """It ends the loop at the next batch; the one that was on its way is delivered, and counted."""
    loader = leat.Loader(numbers, 10)
    batches = iter(loader)
    next(batches)
    real = Epoch._tell

    def interrupted(epoch):
        monkeypatch.setattr(Epoch, "_tell", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(Epoch, "_tell", interrupted)
    loader._epoch_ref().report_at = 0.0
    assert next(batches).position == 10
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert loader.state_dict()["samples"] == 20
    assert next(batches).position == 20
    loader.close()


def test_batches_are_collected(numbers):
    """A slot is free when its batch and the arrays over it are gone: in any order, by any thread."""
    loader = leat.Loader(numbers, 10, prefetch=2)
    batches = iter(loader)
    next(batches)
    kept = [next(batches) for _ in range(2)]
    arrays = [batch.data for batch in kept]
    want = [array.tolist() for array in arrays]
    del kept
    gc.collect()
    for _ in range(20):
        next(batches)
    assert [array.tolist() for array in arrays] == want
    arrays += [next(batches).data for _ in range(2)]
    with pytest.raises(leat.Busy):
        next(batches)
    del arrays
    assert next(batches).position == 250
    loader.close()


def test_a_batch_that_was_released(numbers):
    loader = leat.Loader(numbers, 10)
    batches = iter(loader)
    next(batches)
    batch = next(batches)
    ids = batch.ids
    batch.release()
    assert batch.released and ids.tolist() == batch.ids.tolist() and batch.valid.all()
    with pytest.raises(ValueError, match="released"):
        batch["n"]
    with pytest.raises(TypeError):
        loader._epoch_ref().arm(None, int, (), None, None, 1, 0)
    loader.close()


def test_the_daemon_goes_under_the_lane(numbers):
    loader = leat.Loader(numbers, 10)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    assert leat.stop(force=True)
    with pytest.raises(leat.PeerGone):
        for _ in batches:  # it answers before it goes, and a hundred plain batches take less than that
            wait_for(lambda: not daemons(os.environ["XDG_RUNTIME_DIR"]))
    assert 40 <= loader.state_dict()["samples"] < 1000
