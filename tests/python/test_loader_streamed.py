# SPDX-License-Identifier: Apache-2.0
"""leat.Loader on a set that is ten times as large as the pool."""

import numpy as np
import pytest

import leat

N, BYTES = 65536, 4096  # 256 MiB


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "large.npy"
    array = np.lib.format.open_memmap(path, "w+", "<i8", (N, BYTES // 8))
    array[:, :2] = np.arange(N)[:, None]  # the rest is a hole: read all the same
    del array
    yield path
    path.unlink()


def bytes_read():
    disk = leat.status()["disk"]
    return disk["bytes_direct"] + disk["bytes_buffered"]


def keep(sample, rng):
    return {"x": sample["x"][:2]}


WAYS = [
    ("plain", 3, {}),
    ("thread", 1, {"transform": keep, "num_workers": 2}),
    ("fork", 1, {"transform": keep, "num_workers": 2, "workers": "fork"}),
    ("skip", 1, {"skip_ranges": [(100, 300), (5000, 5010)]}),
]
SLOW = [("plain", 1, {}), ("thread", 3, WAYS[1][2]), ("fork", 3, WAYS[2][2]), ("spawn", 2, {**WAYS[2][2], "workers": "spawn"})]


@pytest.mark.long
@pytest.mark.parametrize("name,world,more", [*WAYS, *(pytest.param(*way, marks=pytest.mark.slow) for way in SLOW)])
def test_each_byte_is_read_once_an_epoch(large, name, world, more):
    """Block shuffle is the default there. What the daemon reads of the disk in an epoch, counted, is at most 1.05 of the dataset, however many
    ranks and workers read."""
    payload = N * BYTES
    with leat.open({"x": large}, pool=payload // 10) as ws:
        assert ws.stat().streamed
        loaders = [leat.Loader(ws, 64, drop_last=False, rank=r, world_size=world, **more) for r in range(world)]
        assert loaders[0].state_dict()["shuffle"].startswith("block:")
        for epoch in range(2):
            before, seen = bytes_read(), []
            for batches in zip(*loaders):
                for batch in batches:
                    assert (batch["x"][:, 0] == batch.ids).all()
                    seen += batch.ids[batch.valid].tolist()
            assert len(set(seen)) == len(seen) == N - 210 * (name == "skip")
            read = bytes_read() - before
            assert epoch == 0 or read <= 1.05 * payload, f"{read / payload:.3f} of the dataset"  # the first one fills the pool, too
            for loader in loaders:
                loader.set_epoch(epoch + 1)
        assert leat.status()["pool"]["peak_bytes"] <= payload // 10
        for loader in loaders:
            loader.close()


def test_a_sequential_epoch_reads_each_byte_once(large):
    """Neighbours of a batch are announced as the one range as which they are fetched, or they would be read twice."""
    payload = N * BYTES
    with leat.open({"x": large}, pool=payload // 10) as ws, leat.Loader(ws, 64, shuffle=False) as loader:
        for epoch in range(2):
            before = bytes_read()
            assert [i for batch in loader for i in batch["x"][:, 0].tolist()] == list(range(N))
            read = bytes_read() - before
            assert epoch == 0 or read <= 1.05 * payload, f"{read / payload:.3f} of the dataset"
            loader.set_epoch(epoch + 1)


@pytest.mark.parametrize("name,value,world,several", [("LOCAL_WORLD_SIZE", 2, 2, False), ("LOCAL_WORLD_SIZE", 2, 4, True), ("SLURM_STEP_NUM_NODES", 2, 4, True),
                                                      ("SLURM_STEP_NUM_NODES", 1, 4, False)])
def test_hosts_that_stream_by_themselves_name_the_order(large, monkeypatch, name, value, world, several):
    """Each host has a pool of its own, and may be the one that has room: the order would be another there, unseen."""
    monkeypatch.setenv(name, str(value))
    with leat.open({"x": large}, pool=N * BYTES // 10) as ws:
        if several:
            with pytest.raises(ValueError, match="shuffle='block:32'"):
                leat.Loader(ws, 64, rank=0, world_size=world)
        else:
            leat.Loader(ws, 64, rank=0, world_size=world)
        assert leat.Loader(ws, 64, rank=0, world_size=world, shuffle="block:32").state_dict()["shuffle"] == "block:32"


def test_how_it_was_delivered(large):
    """What stays in the pool comes out of its memory, the rest through the window: each byte is counted once."""
    with leat.open({"x": large}, pool=N * BYTES // 10) as ws:
        with leat.batches(ws, 64, drop_last=False) as batches:
            for batch in batches:
                batch.release()
        came = ws.stat().delivered
        assert came["shm"] + came["streamed"] == N * BYTES == sum(came.values()) and came["streamed"] > N * BYTES // 2
