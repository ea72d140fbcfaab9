# SPDX-License-Identifier: Apache-2.0
"""Golden vectors: orders, plans, mixtures and saved states are, bit for bit, those that tests/golden/training.json recorded.

A job that saved its state with an older Leat resumes with a newer one. So none of these values may change, ever: a failure here is a
change of the order, not a value to record again. `LEAT_GOLDEN=record` adds the vectors of a new case, and leaves recorded ones alone.
"""

import collections
import hashlib
import itertools
import json
import os

import numpy as np
import pytest

import leat
from lib_python import ROOT

PATH = ROOT / "tests/golden/training.json"
GOLDEN = json.loads(PATH.read_text()) if PATH.exists() else {}
N = 1009


def digest(ids):
    return hashlib.sha256(np.ascontiguousarray(ids, "<u8").tobytes()).hexdigest()[:32]


def golden(name, value):
    """Compares with the recorded value. A value that is not there fails, or is recorded on demand."""
    value = json.loads(json.dumps(value))
    if name not in GOLDEN and os.environ.get("LEAT_GOLDEN") == "record":
        GOLDEN[name] = value
        PATH.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(GOLDEN.items())) + "\n}\n")
    assert name in GOLDEN, f"{name} was never recorded: LEAT_GOLDEN=record adds it"
    assert value == GOLDEN[name]


def rows(batch):
    """The ids of a batch without its padding, and what its augmentation draws."""
    return [int(i) for i, valid in zip(batch.ids, batch.valid) if valid]


def drawn(sample, rng):
    return {"x": sample["x"], "r": int(rng.integers(1 << 62))}


@pytest.fixture
def numbers(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(N, dtype="i4"))
    return leat.open({"x": tmp_path / "x.npy"})


@pytest.mark.parametrize("shuffle", [False, "full", "block:7", "block:64"])
@pytest.mark.parametrize("n", [1, 2, 3, 10, 255, 256, 257, 4096, 100_003])
def test_orders(n, shuffle):
    value = {}
    for seed, epoch in itertools.product([0, 1, 2**63, 2**64 - 1], [0, 1, 1000]):
        ids = leat.order(n, seed, epoch, shuffle)
        value[f"{seed}.{epoch}"] = [digest(ids), *(int(i) for i in ids[:4])]
    golden(f"order n={n} shuffle={shuffle}", value)


PLANS = [
    {"batch_size": 10},
    {"batch_size": 10, "drop_last": False},
    {"batch_size": 7, "shuffle": "block:32", "seed": 2**63 + 5},
    {"batch_size": 16, "shuffle": False, "drop_last": False},
    {"batch_size": 9, "skip_ranges": [(5, 100), (700, 900)], "drop_last": False},
]


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("case", range(len(PLANS)))
def test_plans(numbers, case, world):
    value = []
    for rank in range(world):
        loader = leat.Loader(numbers, rank=rank, world_size=world, **{"seed": 11, **PLANS[case]})
        for _ in range(2):
            batches = [rows(batch) for batch in loader]
            value.append([len(batches), batches[0], batches[-1], digest(np.concatenate(batches))])
    golden(f"plan {json.dumps(PLANS[case], sort_keys=True)} world={world}", value)


def test_replication(numbers):
    value = [digest(np.concatenate([rows(batch) for batch in leat.Loader(numbers, 8, seed=2, rank=rank, world_size=4, replication=2)])) for rank in range(4)]
    golden("replication", value)


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation(numbers, workers):
    value = []
    loader = leat.Loader(numbers, 16, seed=3, transform=drawn, num_workers=workers)
    for _ in range(2):
        value.append(digest(np.concatenate([np.array(batch["r"]) for batch in loader])))
    golden("augmentation", value)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("world", [1, 3])
def test_weighted_samplers(numbers, replacement, world):
    weights = 1.0 / np.arange(1, N + 1)
    value = []
    for rank in range(world):
        sampler = leat.WeightedSampler(weights, 500, replacement=replacement, seed=9)
        loader = leat.Loader(numbers, 8, sampler=sampler, rank=rank, world_size=world, seed=4)
        value += [digest(np.concatenate([rows(batch) for batch in loader])) for _ in range(2)]
    golden(f"weighted replacement={replacement} world={world}", value)


def test_samplers():
    value = []
    for rank in range(3):
        sampler = leat.Sampler(N, 10, seed=6, rank=rank, world_size=3)
        value += [digest([int(i) for i in sampler]) for _ in range(2)]
    golden("sampler", value)


@pytest.fixture
def mixture(tmp_path):
    for k, n in enumerate((700, 90, 13)):
        np.save(tmp_path / f"x{k}.npy", np.arange(n, dtype="i4"))
    return leat.Mixture([(leat.open({"x": tmp_path / f"x{k}.npy"}), weight) for k, weight in enumerate((0.6, 0.3, 0.1))], length=1500)


@pytest.mark.parametrize("world", [1, 2])
def test_mixtures(mixture, world):
    value = []
    for rank in range(world):
        loader = leat.Loader(mixture, 20, seed=5, rank=rank, world_size=world, shuffle="full")
        for _ in range(2):
            pairs = [(int(s), int(i)) for batch in loader for s, i in zip(batch.source, batch.ids)]
            value.append([digest([s for s, _ in pairs]), digest([i for _, i in pairs]), *pairs[:3]])
    golden(f"mixture world={world}", value)


def resumed(make, name, steps=7):
    """The state after `steps` batches of an epoch that is not the first is what was recorded; so is what comes after its load on two ranks."""
    loader = make()
    for _ in loader:
        pass
    for step, _ in enumerate(loader):
        if step + 1 == steps:
            break
    state = loader.state_dict()
    after = []
    for rank in range(2):
        other = make(rank=rank, world_size=2)
        other.load_state_dict(GOLDEN.get(f"state {name}", {"state": state})["state"])
        after.append(digest(np.concatenate([rows(batch) for batch in other])))
    golden(f"state {name}", {"state": state, "after": after})


def test_states(numbers):
    resumed(lambda **ranks: leat.Loader(numbers, 12, seed=8, drop_last=False, **ranks), "array")


def test_states_of_blocks(numbers):
    resumed(lambda **ranks: leat.Loader(numbers, 12, seed=8, shuffle="block:50", **ranks), "blocks")


def test_states_of_mixtures(mixture):
    resumed(lambda **ranks: leat.Loader(mixture, 12, seed=8, shuffle="full", **ranks), "mixture")


def test_states_of_windows(tmp_path):
    np.save(tmp_path / "t.npy", np.arange(5000, dtype="<u2"))
    ws = leat.open(tmp_path / "t.npy", window=65, stride=64)
    resumed(lambda **ranks: leat.Loader(ws, 4, seed=8, **ranks), "windows", 3)


def test_states_of_recordings(tmp_path):
    folder = tmp_path / "sounds"
    folder.mkdir()
    for i, length in enumerate([100, 7, 0, 31, 10, 9, 64, 11, 500]):
        (folder / f"{i}.pcm").write_bytes(np.arange(length, dtype="<i4").tobytes())
    ws = leat.open(folder, window=8, stride=4, rows=("<i4", ()))
    resumed(lambda **ranks: leat.Loader(ws, 4, seed=8, **ranks), "recordings", 3)


WEIGHTS = 1.0 / np.arange(1, N + 1)
STATES = {
    "plain": {"seed": 8, "shuffle": "full"},
    "in order": {"seed": 1, "shuffle": False},
    "blocks": {"seed": 2**63 + 5, "shuffle": "block:50"},
    "skips": {"seed": 8, "skip_ranges": [(0, 3), (5, 100), (700, 900), (1000, 2000)]},
    "weighted": {"seed": 8, "sampler": lambda: leat.WeightedSampler(WEIGHTS, 500, seed=9)},
    "weighted once": {"seed": 8, "sampler": lambda: leat.WeightedSampler(WEIGHTS, 500, replacement=False, seed=9)},
    "mixture": {"seed": 8, "shuffle": "full", "skip_ranges": [(3, 10), (1490, 1600)]},
    "mixture of blocks": {"seed": 3, "shuffle": "block:16"},
}


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("case", STATES)
def test_states_resume_on_other_ranks(numbers, mixture, case, drop_last, world):
    """Written in the middle of the second epoch on `world` ranks. What is left of it and the next epoch, on 1, 2 and 3 ranks, is what was recorded: ids,
    sets, positions and padding."""
    name, options = f"written {case} drop_last={drop_last} world={world}", dict(STATES[case])
    make = options.pop("sampler", lambda: None)

    def loader(rank, world, batch_size):
        ws = mixture if case.startswith("mixture") else numbers
        return leat.Loader(ws, batch_size, rank=rank, world_size=world, drop_last=drop_last, sampler=make(), **options)

    def described(batches):
        seen = [(batch.position, batch.ids.tolist(), np.asarray(batch.valid).tolist(), getattr(batch, "source", np.empty(0)).tolist()) for batch in batches]
        return [len(seen), hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:32]]

    loaders = [loader(rank, world, 12) for rank in range(world)]
    for one in loaders:
        collections.deque(one, 0)
        collections.deque(itertools.islice(one, 5), 0)
    state = json.loads(json.dumps(loaders[0].state_dict()))
    assert state["epoch"] == 1 and all(one.state_dict() == state for one in loaders)
    after = {}
    for others, batch_size in ((1, 12), (2, 7), (3, 20)):
        after[str(others)] = []
        for rank in range(others):
            other = loader(rank, others, batch_size)
            other.load_state_dict(GOLDEN.get(name, {"state": state})["state"])
            after[str(others)].append([described(other), described(other)])
    golden(name, {"state": state, "after": after})
