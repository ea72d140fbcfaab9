# SPDX-License-Identifier: Apache-2.0
"""leat beside torch's DataLoader and torchdata's StatefulDataLoader."""

import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import leat  # noqa: E402


@pytest.fixture
def numbers(big):
    with leat.open({"x": big}) as opened:
        opened.wait()
        yield opened


@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_a_working_set_under_the_dataloader(numbers, method):
    sampler = leat.Sampler(numbers, 50, seed=2)
    loader = torch.utils.data.DataLoader(numbers, batch_size=50, sampler=sampler, num_workers=1 if method else 0,
                                         multiprocessing_context=method)
    order = leat.order(numbers, seed=2).tolist()
    got = [batch[:, 0].tolist() for batch in loader]
    assert got == [order[at : at + 50] for at in range(0, 1000, 50)]
    if method not in (None, "fork"):
        return
    sampler.set_epoch(0)
    for done, _ in enumerate(loader, 1):
        if done == 4:
            break
    state = sampler.state_dict(batches=4)
    assert state["samples"] == 200
    again = [leat.Sampler(numbers, 20, rank=r, world_size=2) for r in range(2)]
    rest = []
    for one in again:
        one.load_state_dict(state)
        rest += list(one)
    assert sorted(rest) == sorted(order[200:])


def test_batches_become_tensors(numbers):
    loader = leat.Loader(numbers, 10, transform=lambda sample, rng: {"x": sample["x"], "t": "text"}, shuffle=False)
    for batch in loader:
        tensors = batch.torch()
        assert tensors["x"].data_ptr() == batch["x"].ctypes.data and tensors["t"] == ["text"] * 10
        assert torch.equal(tensors["x"][:, 0], torch.from_numpy(batch.ids.astype(np.int64)))
        del tensors
    batch = next(iter(leat.Loader(numbers, 10, shuffle=False)))
    tensor = batch.torch()["x"]
    batch.release()
    del batch
    assert tensor[:, 0].tolist() == list(range(10))


def test_what_torch_has_no_type_for(numbers):
    batch = next(iter(leat.Loader(numbers, 10, transform=lambda sample, rng: {"x": sample["x"].astype(">f4"), "z": np.complex64(1j)})))
    with pytest.raises(TypeError, match="field 'x' of dtype >f4.*Cast it"):
        batch.torch()
    batch = next(iter(leat.Loader(numbers, 10, transform=lambda sample, rng: {"z": np.complex64(1j)})))
    assert batch.torch()["z"].dtype == torch.complex64


def test_tensors_are_padded(numbers):
    def ragged(sample, rng):
        return {"x": torch.arange(1 + int(sample["x"][0]) % 3), "y": int(sample["x"][0]) % 2 * 0.5}

    with leat.Loader(numbers, 10, shuffle=False, transform=ragged, collate_fn=leat.pad_collate) as loader:
        batch = next(iter(loader))
    assert batch["x"].shape == (10, 3) and batch["x"][1].tolist() == [0, 1, 0]
    assert leat.pad_collate([{"y": 0}, {"y": 0.5}])["y"].tolist() == [0, 0.5]


def transform(sample, rng):
    return {"x": torch.from_numpy(sample["x"]).float() + float(rng.random())}


@pytest.mark.parametrize("how", ["thread", "spawn"])
def test_transforms_that_return_tensors(numbers, how):
    with leat.Loader(numbers, 10, transform=transform, workers=how, num_workers=1, shuffle=False) as loader:
        batch = next(iter(loader))
        assert batch["x"].dtype == np.float32 and (batch["x"][:, 0].astype(int) == batch.ids).all()


def numbers_of(batches):
    return [batch[:, 0].tolist() for batch in batches]


@pytest.mark.parametrize("method", [None, "fork", pytest.param("spawn", marks=pytest.mark.slow), pytest.param("forkserver", marks=pytest.mark.slow)])
def test_a_samplers_state_at_each_batch(numbers, method):
    """DataLoader asks its sampler for the whole epoch while the loop is still in the middle: its state counts what the loop received."""
    order = [leat.order(numbers, seed=2, epoch=epoch).tolist() for epoch in range(4)]
    sampler = leat.Sampler(numbers, 50, seed=2, rank=0, world_size=1)
    loader = torch.utils.data.DataLoader(numbers, batch_size=50, sampler=sampler, num_workers=2 if method else 0, prefetch_factor=9 if method else 2,
                                         multiprocessing_context=method, persistent_workers=method is not None)
    for epoch in range(3):
        got = []
        for done, batch in enumerate(loader, 1):
            got += batch[:, 0].tolist()
            state = sampler.state_dict(batches=done)
            assert (state["epoch"], state["samples"]) == ((epoch, done * 50) if done < 20 else (epoch + 1, 0))
            if done in (3, 19, 20):
                rest = []
                for rank in range(2):
                    again = leat.Sampler(numbers, 25, rank=rank, world_size=2)
                    again.load_state_dict(state)
                    rest += list(again)
                assert set(rest) == set(order[epoch][done * 50 :] if done < 20 else order[epoch + 1])
        assert got == order[epoch]
    sampler.set_epoch(1)
    assert sampler.state_dict(batches=0)["epoch"] == 1 and numbers_of(loader) == [order[1][at : at + 50] for at in range(0, 1000, 50)]


@pytest.mark.parametrize("method,workers,then", [(None, 0, 0), ("fork", 2, 2), ("fork", 2, 0), ("fork", 2, 3),
                                                 pytest.param("spawn", 2, 2, marks=pytest.mark.slow),
                                                 pytest.param("forkserver", 2, 2, marks=pytest.mark.slow)])
def test_stateful_dataloader(numbers, method, workers, then):
    """torchdata's loader keeps count by itself, with leat.Sampler and without; whether another number of workers may continue is its own
    decision, and it refuses."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def make(workers):
        sampler = leat.Sampler(numbers, 50, seed=2, rank=0, world_size=1)
        return stateful.StatefulDataLoader(numbers, batch_size=50, sampler=sampler, num_workers=workers,
                                           multiprocessing_context=method if workers else None, persistent_workers=workers > 0)

    order = [leat.order(numbers, seed=2, epoch=epoch).tolist() for epoch in range(3)]
    for stop in (4, 19):
        loader = make(workers)
        for done, _ in enumerate(loader, 1):
            if done == stop:
                break
        state = loader.state_dict()
        again = make(then)
        again.load_state_dict(state)
        if then != workers:
            with pytest.raises((AssertionError, KeyError, ValueError)):
                list(again)
            continue
        assert [i for batch in numbers_of(again) for i in batch] == order[0][50 * stop :]
        assert [i for batch in numbers_of(again) for i in batch] == order[1]
        del loader, again
    assert sys.modules["torch"] is torch
