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


def transform(sample, rng):
    return {"x": torch.from_numpy(sample["x"]).float() + float(rng.random())}


@pytest.mark.parametrize("how", ["thread", "spawn"])
def test_transforms_that_return_tensors(numbers, how):
    with leat.Loader(numbers, 10, transform=transform, workers=how, num_workers=1, shuffle=False) as loader:
        batch = next(iter(loader))
        assert batch["x"].dtype == np.float32 and (batch["x"][:, 0].astype(int) == batch.ids).all()


def test_stateful_dataloader(numbers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def make():
        return stateful.StatefulDataLoader(numbers, batch_size=50, sampler=leat.Sampler(numbers, 50, seed=2), num_workers=0)

    order = leat.order(numbers, seed=2).tolist()
    loader = make()
    for done, _ in enumerate(loader, 1):
        if done == 4:
            break
    again = make()
    again.load_state_dict(loader.state_dict())
    assert [i for batch in again for i in batch[:, 0].tolist()] == order[200:]
    assert sys.modules["torch"] is torch
