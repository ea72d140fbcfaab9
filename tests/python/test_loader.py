# SPDX-License-Identifier: Apache-2.0
"""leat.Loader: which samples, to whom, in what order; state; ranks; errors; processes."""

import gc
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import types

import lib_host
import numpy as np
import pytest

import leat
from leat import __main__, _leat
from leat._base import ranks as _ranks
from leat._loader import slots as _slots
from leat._loader import workers as _workers

N = 1000


@pytest.fixture
def numbers(big):
    with leat.open({"x": big}) as opened:
        opened.wait()
        yield opened


def ids_of(loader):
    found = []
    for batch in loader:
        found.append(batch.ids[batch.valid].tolist())
    return found


def flat(lists):
    return [i for one in lists for i in one]


# --- which samples -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, "full", "block:10", False])
@pytest.mark.parametrize("world", [1, 3])
def test_an_epoch_is_the_order(numbers, shuffle, world):
    order = leat.order(numbers, seed=4, epoch=0, shuffle="full" if shuffle is True else shuffle)
    whole = 16 * world
    for rank in range(world):
        loader = leat.Loader(numbers, 16, seed=4, shuffle=shuffle, rank=rank, world_size=world)
        got = ids_of(loader)
        assert len(got) == len(loader) == N // whole
        for step, ids in enumerate(got):
            assert ids == order[step * whole + rank * 16 :][:16].tolist()


def test_values_come_with_their_ids(numbers):
    for batch in leat.Loader(numbers, 32):
        assert (batch["x"] == batch.ids[:, None].astype(np.int64)).all() and batch.valid.all()


@pytest.mark.parametrize("world", [1, 2, 7, 64])
def test_padding_keeps_ranks_even(numbers, world):
    seen, counts = [], set()
    for rank in range(world):
        loader = leat.Loader(numbers, 48, drop_last=False, rank=rank, world_size=world)
        batches = 0
        for batch in loader:
            assert len(batch) == 48 and (batch["x"][:, 0] == batch.ids).all()
            seen += batch.ids[batch.valid].tolist()
            batches += 1
        counts.add(batches)
        assert batches == len(loader)
    assert sorted(seen) == list(range(N)) and len(counts) == 1


def test_epochs_advance_and_set_epoch_overrides(numbers):
    loader = leat.Loader(numbers, 100, seed=2)
    first, second = ids_of(loader), ids_of(loader)
    assert first != second and loader.epoch == 2
    loader.set_epoch(0)
    assert ids_of(loader) == first and ids_of(loader) == second


@pytest.mark.parametrize("resume", [False, True])
def test_an_epoch_that_was_left(numbers, resume):
    loader = leat.Loader(numbers, 100, resume_epoch=resume)
    for epoch in range(3):
        want = leat.order(numbers, epoch=0 if resume else epoch).reshape(-1, 100).tolist()
        for batch in loader:
            break
        assert batch.ids.tolist() == want[0]
        del batch
    again = ids_of(loader)
    assert again == leat.order(numbers, epoch=0 if resume else 3).reshape(-1, 100).tolist()


@pytest.mark.long
def test_left_half_way_a_thousand_times(numbers):
    loader = leat.Loader(numbers, 10)

    def leave(times):
        for _ in range(times):
            for step, batch in enumerate(loader):
                if step == 2:
                    break
            del batch

    def held():
        gc.collect()
        resident = int(open("/proc/self/statm").read().split()[1]) * 4096
        return resident, threading.active_count(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    leave(50)
    before = held()
    leave(1000)
    # The kernel lists a thread for a moment after it was joined.
    lib_host.wait_for(lambda: all(now <= then for now, then in zip(held()[1:], before[1:])), message=lambda: (before, held()))
    assert held()[0] - before[0] < 8 << 20


def test_two_loaders_on_one_set(numbers):
    a, b = leat.Loader(numbers, 50, seed=1), leat.Loader(numbers, 50, seed=2)
    for x, y in zip(a, b):
        assert (x["x"][:, 0] == x.ids).all() and (y["x"][:, 0] == y.ids).all()


def test_list_of_a_loader_says_what_is_wrong(numbers):
    with pytest.raises(leat.Busy, match="slots"):
        list(leat.Loader(numbers, 10))
    with pytest.raises(leat.Busy, match="slots"):
        list(leat.Loader(numbers, 10, transform=keep))
    few = leat.Loader(numbers, 500)
    assert len(list(few)) == 2


def test_replicas_get_the_same(numbers):
    got = [flat(ids_of(leat.Loader(numbers, 10, rank=r, world_size=4, replication=2))) for r in range(4)]
    assert got[0] == got[1] and got[2] == got[3] and not set(got[0]) & set(got[2])
    with pytest.raises(ValueError, match="replication"):
        leat.Loader(numbers, 10, rank=0, world_size=4, replication=3)


def test_skip_ranges(numbers):
    order = leat.order(numbers, seed=0).tolist()
    loader = leat.Loader(numbers, 10, skip_ranges=[(0, 100), (250, 300), (990, 2000)], drop_last=False)
    assert flat(ids_of(loader)) == order[100:250] + order[300:990]
    assert len(loader) == 84


def test_samplers(numbers):
    evens = list(range(0, N, 2))
    got = [flat(ids_of(leat.Loader(numbers, 10, sampler=evens, rank=r, world_size=2))) for r in range(2)]
    assert sorted(got[0] + got[1]) == evens and got[0][:10] == evens[:10] and got[1][:10] == evens[10:20]
    batches = [[1, 2, 3], [4], [5, 6, 7, 8]]
    got = [ids_of(leat.Loader(numbers, 4, batch_sampler=batches, rank=r, world_size=2)) for r in range(2)]
    assert got == [[[1, 2], [4], [5, 6]], [[3], [], [7, 8]]]
    with pytest.raises(IndexError):
        next(iter(leat.Loader(numbers, 4, sampler=[5, N])))
    with pytest.raises(ValueError, match="one rank's share"):
        leat.Loader(numbers, 4, sampler=types.SimpleNamespace(num_replicas=2, __iter__=None))


# --- state ---------------------------------------------------------------------------------------------------------------------


def test_exact_over_worlds_with_kills(numbers):
    """A bitmap of (epoch, sample): each exactly once, whatever the world, the batch size and where it was killed."""
    rng = np.random.default_rng(5)
    seen = np.zeros((3, N), int)
    state = None
    worlds = [(1, 7), (3, 5), (2, 11), (1, 16), (3, 4), (2, 9)]
    for life in range(200):
        world, batch_size = worlds[life % len(worlds)]
        loaders = [leat.Loader(numbers, batch_size, seed=9, rank=r, world_size=world, drop_last=False,
                               num_workers=2 * (life % 2), transform=keep if life % 3 == 0 else None) for r in range(world)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in loaders]
        epoch = loaders[0].epoch
        for _ in range(int(rng.integers(1, 30))):
            batches = [next(iterator, None) for iterator in iterators]
            assert len({batch is None for batch in batches}) == 1
            if batches[0] is None:
                break
            for batch in batches:
                np.add.at(seen[epoch], batch.ids[batch.valid].astype(int), 1)
        states = [json.dumps(loader.state_dict()) for loader in loaders]
        assert len(set(states)) == 1
        state = json.loads(states[0])
        for loader in loaders:
            loader.close()
        if state["epoch"] == 3:
            break
    assert state["epoch"] == 3 and (seen == 1).all()


def test_only_what_was_received_counts(numbers):
    loader = leat.Loader(numbers, 10, prefetch=8)
    assert loader.state_dict()["samples"] == 0
    iterator = iter(loader)
    next(iterator)
    time.sleep(0.05)
    assert loader.state_dict()["samples"] == 10
    assert json.loads(json.dumps(loader.state_dict())) == loader.state_dict()


def test_set_epoch_keeps_the_place_of_its_epoch(numbers):
    loader = leat.Loader(numbers, 10)
    next(iter(loader))
    state = loader.state_dict()
    again = leat.Loader(numbers, 10)
    again.load_state_dict(state)
    again.set_epoch(0)
    assert len(ids_of(again)) == 99
    again.load_state_dict(state)
    again.set_epoch(1)
    assert len(ids_of(again)) == 100


def test_states_that_are_refused(numbers, ws):
    good = leat.Loader(numbers, 10).state_dict()
    loader = leat.Loader(numbers, 10)
    for change, error in (({"version": 3}, ValueError), ({"version": 0}, ValueError), ({"runs": None}, ValueError),
                          ({"runs": [[0, 0, 0, 1]]}, ValueError), ({"runs": [[0, 0, 2]]}, ValueError),
                          ({"runs": [[0, 9, 2, 2], [0, 8, 2, 2]]}, ValueError), ({"kind": "x"}, ValueError), ({"samples": -1}, ValueError),
                          ({"shuffle": "block:5"}, ValueError), ({"skip_ranges": [[1, 2]]}, ValueError),
                          ({"fingerprint": "0" * 32}, leat.Stale), ({"epoch": "1"}, ValueError), ({"sampler": {}}, ValueError)):
        with pytest.raises(error):
            loader.load_state_dict({**good, **change})
    with pytest.raises(leat.Stale, match="fingerprint"):
        leat.Loader(ws, 2).load_state_dict(good)
    with pytest.raises(ValueError):
        loader.load_state_dict({})


def test_what_stays_as_the_loader_was_made(numbers):
    loader = leat.Loader(numbers, 10, rank=0, world_size=1)
    for name, value in (("batch_size", 20), ("drop_last", False), ("prefetch", 5), ("rank", 1), ("world_size", 2)):
        before = getattr(loader, name)
        with pytest.raises(AttributeError, match=rf"^loader.{name} = {value}: .*Make another one with {name}={value}; its load_state_dict"):
            setattr(loader, name, value)
        assert getattr(loader, name) == before
    loader.note = "one's own"
    assert loader.note == "one's own"


def test_replay(numbers):
    loaders = [leat.Loader(numbers, 10, seed=3, rank=r, world_size=2, skip_ranges=[(5, 50)]) for r in range(2)]
    got = [ids_of(loader) for loader in loaders]
    state = loaders[0].state_dict()
    assert leat.replay(state, 7, 1, world_size=2, epoch=0).tolist() == got[1][7]
    assert leat.replay(state, 7, epoch=0).tolist() == got[0][7] + got[1][7]
    with pytest.raises(ValueError, match="step"):
        leat.replay(state, 1000)


# --- samples to batches --------------------------------------------------------------------------------------------------------


def keep(sample, rng):
    return sample


def jitter(sample, rng):
    return {"x": sample["x"].astype(np.float32) + rng.random(dtype=np.float32), "n": int(sample["x"][0]), "name": str(sample["x"][0])}


WORKERS = [("thread", 0), ("thread", 3), ("fork", 2), ("spawn", 1), ("forkserver", 2)]


def prepared(numbers, how, workers, world=1, batch_size=20, limit=5, epoch=1):
    found = {}
    for rank in range(world):
        with leat.Loader(numbers, batch_size, transform=jitter, num_workers=workers, workers=how, rank=rank, world_size=world,
                         seed=3) as loader:
            loader.set_epoch(epoch)
            for _, batch in zip(range(limit), loader):
                for i, index in enumerate(batch.ids.tolist()):
                    found[index] = batch["x"][i].tobytes()
                    assert batch["n"][i] == index and batch["name"][i] == str(index)
                assert batch["n"].dtype == np.int64 and batch["x"].shape == (batch_size, 16)
    return found


@pytest.mark.long
def test_augmentation_is_the_same_whatever_the_workers(numbers):
    want = prepared(numbers, "thread", 0)
    assert len(want) == 100 and prepared(numbers, "thread", 0, epoch=0) != want
    for how, workers in WORKERS[1:]:
        assert prepared(numbers, how, workers) == want, how
    assert prepared(numbers, "thread", 2, world=2, batch_size=5, limit=10) == want


@pytest.fixture
def pictures(tmp_path):
    """A shard of 24 JPEGs of several sizes; sample 5 is cut short, the label of sample 7 does not parse."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for i in range(24):
            out = io.BytesIO()
            image.fromarray(np.full((8 + i, 10, 3), 10 * i, np.uint8)).save(out, "JPEG")
            data = out.getvalue()[:150] if i == 5 else out.getvalue()
            for suffix, content in (("cls", b"x" if i == 7 else b"%d\n" % i), ("jpg", data)):
                info = tarfile.TarInfo(f"{i:03d}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    with leat.open(tmp_path / "train-0.tar") as opened:
        yield opened


def crop(sample, rng):
    at = int(rng.integers(0, 3))
    return {"image": sample["image"][at : at + 5, :5], "label": sample["label"]}


FIELDS = {"image": "jpg", "label": "cls"}


@pytest.mark.parametrize("how,workers", [("thread", 2), ("fork", 2)])
def test_a_bad_sample_is_named(pictures, how, workers):
    loader = leat.Loader(pictures, 4, fields=FIELDS, transform=crop, shuffle=False, workers=how, num_workers=workers)
    with pytest.raises(leat.BadSample, match=r"sample 5 \(005\), .*train-0.tar at offset \d+") as caught:
        for _ in loader:
            pass
    error = caught.value
    assert (error.index, error.key, error.position) == (5, "005", 5) and error.file.endswith("train-0.tar")
    with open(error.file, "rb") as shard:
        shard.seek(error.offset)
        assert shard.read(2) == b"\xff\xd8"
    assert loader.state_dict()["samples"] == 4


@pytest.mark.parametrize("how,workers", [("thread", 2), ("fork", 2)])
def test_bad_samples_are_replaced_by_the_same_ones(pictures, how, workers):
    def run(**more):
        loader = leat.Loader(pictures, 4, fields=FIELDS, transform=crop, on_error="skip", workers=how, num_workers=workers, **more)
        got = [(b.ids.tolist(), b["label"].tolist(), b["image"].tobytes()) for b in loader]
        assert loader.stats()["skipped"] in (0, 1, 2)
        loader.close()
        return got

    whole = run()
    assert len(whole) == 6 and whole == run()
    for ids, labels, _ in whole:
        assert ids == labels and 5 not in ids and 7 not in ids
    halves = [leat.Loader(pictures, 2, fields=FIELDS, transform=crop, on_error="skip", rank=r, world_size=2) for r in range(2)]
    for (ids, _, _), a, b in zip(whole, *halves):
        assert ids == a.ids.tolist() + b.ids.tolist()
    with pytest.raises(leat.BadSample, match="max_errors=1"):
        run(max_errors=1)
    told = []
    loader = leat.Loader(pictures, 4, fields=FIELDS, transform=crop, on_error=told.append)
    assert len(ids_of(loader)) == 6 and sorted(e.index for e in told) == [5, 7]


def test_pictures_of_several_sizes(pictures):
    good = [i for i in range(24) if i not in (5, 7)]
    loader = leat.Loader(pictures, 4, fields=FIELDS, sampler=good)
    for batch in loader:
        images = batch["image"]
        assert [image.shape for image in images] == [(8 + i, 10, 3) for i in batch.ids.tolist()]
        assert batch["label"].tolist() == batch.ids.tolist() and batch["label"].dtype == np.int64
        assert leat.pad(images).shape == (4, max(8 + int(i) for i in batch.ids), 10, 3)
    padded = next(iter(leat.Loader(pictures, 4, fields=FIELDS, sampler=good, shuffle=False, collate_fn=leat.pad_collate)))
    assert padded["image"].shape == (4, 11, 10, 3) and padded["label"].tolist() == [0, 1, 2, 3]
    loader = leat.Loader(pictures, 4, fields=FIELDS, sampler=good, transform=lambda s, rng: {"image": s["image"]})
    with pytest.raises(leat.BadSample, match="make them alike"):
        list(loader)


def test_pad_of_what_numpy_cannot_take():
    class Odd:  # as a bfloat16 tensor, one on a GPU, or one with a gradient
        def __init__(self, error):
            self.error = error

        def __array__(self, *args, **kwargs):
            raise self.error("not as an array")

    for error in (TypeError, RuntimeError):
        column = [Odd(error), Odd(error)]
        assert leat.pad_collate([{"x": v, "n": 1} for v in column])["x"] == column


def test_fields(files, shard):
    batch = next(iter(leat.Loader(files, 3, shuffle=False, fields={"text": ("data", bytes), "y": "label"})))
    assert batch["text"] == [b"first picture", b"second", b"third picture"] and batch["y"].tolist() == [0, 0, 1]
    batch = next(iter(leat.Loader(files, 3, shuffle=False, fields={"text": "txt"})))
    assert batch["text"][1] == "second"
    batch = next(iter(leat.Loader(files, 3, shuffle=False, fields=["label"])))
    assert batch.fields == ("label",) and batch["label"].tolist() == [0, 0, 1]
    for fields in ({"x": "mp3"}, {"x": ("data", "mp3")}, {}, {"x": ("label", "cls")}):
        with pytest.raises(ValueError):
            leat.Loader(files, 3, fields=fields)
    with leat.open(shard) as tar:
        with pytest.raises(leat.BadSample, match="no field 'cls'"):
            next(iter(leat.Loader(tar, 3, shuffle=False, fields={"label": "cls"})))


def test_a_slot_waits_for_its_arrays(numbers):
    loader = leat.Loader(numbers, 10, transform=keep, shuffle=False, num_workers=2)
    iterator = iter(loader)
    array = next(iterator)["x"][2:4]  # the batch has gone
    for batch in iterator:
        assert (batch["x"][:, 0] == batch.ids).all()
    assert array[:, 0].tolist() == [2, 3]
    batch.release()
    with pytest.raises(ValueError, match="released"):
        batch["x"]


@pytest.mark.parametrize("transform", [None, keep])
def test_samples_that_cannot_be_read(numbers, monkeypatch, transform):
    """The pool says that samples 25 and 26 are corrupt: by the batch that holds them, and by themselves."""
    corrupt = {25, 26}
    read, opened = type(numbers)._read, leat._loader.epoch.Epoch._open

    class Iter:
        def __init__(self, epoch, step):
            self.epoch, self.step, self.inner = epoch, step, opened(epoch, step)
            self.close = self.inner.close

        def next(self, timeout_ns):
            if corrupt & set(self.epoch._steps.ids(self.step).tolist()):
                raise leat.Corrupt("checksum")
            holder = self.inner.next(timeout_ns)
            self.step += 1
            return holder

    def _read(ws, i, field):
        if i in corrupt:
            raise leat.Corrupt(f"sample {i}: checksum")
        return read(ws, i, field)

    monkeypatch.setattr(leat._loader.epoch.Epoch, "_open", lambda epoch, step: Iter(epoch, step))
    monkeypatch.setattr(type(numbers), "_read", _read)
    loader = leat.Loader(numbers, 10, shuffle=False, transform=transform)
    with pytest.raises(leat.BadSample, match=r"sample 25 \(25\), .*numbers.npy at offset \d+: Corrupt: sample 25: checksum"):
        ids_of(loader)
    assert loader.state_dict()["samples"] == 20  # an error comes in its place, though it was met ahead
    got = ids_of(leat.Loader(numbers, 10, shuffle=False, transform=transform, on_error="skip"))
    assert len(got) == 100 and got[2][:5] == [20, 21, 22, 23, 24] and not corrupt & set(flat(got))
    assert got == ids_of(leat.Loader(numbers, 10, shuffle=False, transform=transform, on_error="skip", num_workers=3))


# --- what goes wrong -----------------------------------------------------------------------------------------------------------


def hang(sample, rng):
    if int(sample["x"][0]) == 25:
        time.sleep(60)
    return sample


def die(sample, rng):
    if int(sample["x"][0]) == 25:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def fail(sample, rng):
    if int(sample["x"][0]) == 25:
        raise ZeroDivisionError("a transform of mine")
    return sample


def test_slots_are_whole_pages(monkeypatch):
    assert _slots._PAGE == os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(_slots, "_PAGE", 65536)  # as on some ARM and POWER machines
    slots = _slots.Slots({"x": ("<f4", (5000,)), "y": ("|u1", ())}, 7, 3, shared=False)
    assert [slots.start(n) % 65536 for n in range(3)] == [0, 0, 0] and slots.slot_bytes % 65536 == 0
    for n in range(3):
        slots.ids(n)[:] = n
        slots.outs(n)["x"][:], slots.outs(n)["y"][:] = n, n
    slots.current[:] = 9
    assert all((slots.ids(n) == n).all() and (slots.outs(n)["x"] == n).all() and (slots.outs(n)["y"] == n).all() for n in range(3))
    assert len(slots.memory) == 65536 + 3 * slots.slot_bytes


def test_the_generator_of_a_sample():
    """One for each seed; those of seeds below 2^63 have always been these."""
    def drawn(seed):
        return int(_workers.make_rng(seed, 4, 3).integers(2**60))

    assert [drawn(seed) for seed in (0, 5, 2**63 - 1)] == [258165347685915721, 407021505112303679, 232410618915800473]
    others = [-1, -2, -1000, -2**62, 2**63 + 1, 2**63 + 2, 2**63 + 1000, 0]
    assert len({drawn(seed) for seed in others}) == len(others)
    assert drawn(-1) == drawn(2**64 - 1)


@pytest.mark.parametrize("how", ["thread", "fork", "spawn"])
def test_transform_that_raises(numbers, how):
    loader = leat.Loader(numbers, 10, transform=fail, shuffle=False, workers=how, num_workers=2)
    with pytest.raises(leat.BadSample, match="ZeroDivisionError: a transform of mine") as caught:
        ids_of(loader)
    assert isinstance(caught.value.__cause__, ZeroDivisionError) and loader.state_dict()["samples"] == 20
    loader.close()


@pytest.mark.parametrize("how", ["thread", "fork"])
def test_transform_that_hangs(numbers, how):
    loader = leat.Loader(numbers, 10, transform=hang, shuffle=False, workers=how, num_workers=2, timeout=2)
    with pytest.raises(leat.TimedOut, match="25"):
        ids_of(loader)
    loader.close()


@pytest.mark.long
@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_worker_that_dies(numbers, how):
    loader = leat.Loader(numbers, 10, transform=die, shuffle=False, workers=how, num_workers=2)
    with pytest.raises(leat.WorkerDied, match="SIGKILL, at sample 25"):
        ids_of(loader)
    loader.load_state_dict({**loader.state_dict(), "samples": 30})
    assert flat(ids_of(loader)) == list(range(30, N))
    loader.close()


def children(pid):
    try:
        return [int(p) for p in open(f"/proc/{pid}/task/{pid}/children").read().split()]
    except OSError:
        return []


SCRIPT = """
import sys, time, leat, numpy as np
def slow(sample, rng):
    time.sleep(0.01)
    return sample
if __name__ == "__main__":
    ws = leat.open({"x": sys.argv[1]})
    loader = leat.Loader(ws, 10, transform=slow, workers=sys.argv[2], num_workers=2, shuffle=False)
    try:
        for batch in loader:
            print(*(loader._config.engine.pids if loader._config.engine.reads else ()), flush=True)
            time.sleep(0.1)
    except KeyboardInterrupt:
        print("interrupted", loader.state_dict()["samples"], flush=True)
        loader.close()
"""


@pytest.mark.parametrize("how,sig", [("thread", signal.SIGINT), ("fork", signal.SIGINT), ("fork", signal.SIGKILL),
                                     ("spawn", signal.SIGKILL)])
def test_the_rank_is_stopped_and_nothing_stays(big, tmp_path, how, sig):
    (tmp_path / "job.py").write_text(SCRIPT)
    job = subprocess.Popen([sys.executable, str(tmp_path / "job.py"), str(big), how], stdout=subprocess.PIPE, text=True,
                           start_new_session=True)
    pids = [int(p) for p in job.stdout.readline().split()]
    job.stdout.readline()
    assert len(pids) == (2 if how != "thread" else 0)
    if sig == signal.SIGINT:
        os.killpg(job.pid, sig)  # as a terminal does
        assert "interrupted" in job.stdout.read()
    else:
        job.send_signal(sig)
    job.wait(20)
    job.stdout.close()
    assert job.returncode == (0 if sig == signal.SIGINT else -sig)
    lib_host.wait_for(lambda: not any(map(lib_host.alive, pids)), message="workers outlive their rank")


def test_arguments(numbers):
    for bad in ({"batch_size": 0}, {"prefetch": 0}, {"workers": "x"}, {"on_error": "x"}, {"shuffle": "x"}, {"num_workers": -1},
                {"sampler": [1], "batch_sampler": [[1]]}, {"skip_ranges": [(5, 5)]}, {"rank": 0}, {"device": "tpu"}):
        with pytest.raises(ValueError):
            leat.Loader(numbers, **{"batch_size": 4, **bad})
    for device in ({"device": "cuda:0"}, {"pin_memory": True}):
        with pytest.raises(leat.Unsupported):
            leat.Loader(numbers, 4, **device)


def until(loader, verdict, nap=0.0):
    """Passes until that is the verdict. On a busy machine one may go otherwise, and what takes no time may take longer than a nap."""
    for _ in range(20):
        for _ in loader:
            time.sleep(nap)
        if loader.stats()["verdict"] == verdict:
            return loader.stats()
        nap = min(2 * nap, 1)
    raise AssertionError(loader.stats())


def test_stats(numbers):
    loader = leat.Loader(numbers, 50)
    ids_of(loader)
    stats = loader.stats()
    assert stats["batches"] == 20 and stats["samples"] == 1000
    assert all(isinstance(v, (int, float, str)) for v in stats.values())
    assert 0 <= stats["wait_p50_s"] <= stats["wait_p99_s"] <= stats["wait_s"] and stats["bytes_local"] >= 1000 * 128
    assert stats["bytes_streamed"] == stats["bytes_remote"] == 0


@pytest.mark.parametrize("how", [None, "thread", "fork"])
def test_the_verdict_is_of_late(numbers, how, tmp_path, monkeypatch):
    """What bounds the loop changes, and so does what is said of it."""
    monkeypatch.setattr(leat._loader.stats, "WINDOW", 20)
    slow = tmp_path / "slow"

    def transform(sample, rng):
        if slow.exists():
            time.sleep(0.001)
        return sample

    with leat.Loader(numbers, 50, **({"transform": transform, "num_workers": 1, "workers": how} if how else {})) as loader:
        until(loader, "consumer-bound", 0.02)
        slow.touch()
        stats = until(loader, "prep-bound" if how else "fetch-bound")
        assert "num_workers=2" in stats["advice"] if how else "prefetch" in stats["advice"]
        slow.unlink()
        until(loader, "consumer-bound", 0.02)


@pytest.mark.parametrize("more", [{}, {"transform": keep, "num_workers": 1}, {"transform": keep, "num_workers": 1, "workers": "fork"}])
def test_a_set_that_comes_slowly(more):
    """Samples are pushed more slowly than they are read, and not far ahead of the reader, however late that begins."""
    ws, said = leat.create("slow", {"x": ("<i8", (16,))}, 200), []

    def push():
        for at in range(0, 200, 5):
            time.sleep(0.01)
            lib_host.wait_for(lambda: 10 * len(said) + 30 >= at)
            ws.push(at, np.repeat(np.arange(at, at + 5), 16).reshape(5, 16))

    thread = threading.Thread(target=push)
    thread.start()
    loader = leat.Loader(ws, 10, shuffle=False, **more)
    for batch in loader:
        assert (batch["x"][:, 0] == batch.ids).all()
        said.append((loader.stats()["verdict"], loader.stats()["advice"]))
    thread.join()
    loader.close()
    assert said[-5][0] == "fetch-bound" and ("fetch-bound", "wait until the set is in the pool") in said
    leat.drop("slow", force=True)


def test_in_the_child_of_a_fork(numbers):
    loader = leat.Loader(numbers, 10, shuffle=False)
    next(iter(loader))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if flat(ids_of(loader)) == list(range(N)) else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert flat(ids_of(loader)) == list(range(N))


# --- ranks ---------------------------------------------------------------------------------------------------------------------

NOBODY = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_RANK",
          "OMPI_COMM_WORLD_SIZE")


@pytest.mark.parametrize("env,want", [
    ({}, (0, 1)),
    ({"RANK": 2, "WORLD_SIZE": 4}, (2, 4)),
    ({"SLURM_PROCID": 1, "SLURM_NTASKS": 8, "SLURM_STEP_NUM_TASKS": 2}, (1, 2)),
    ({"SLURM_PROCID": 1, "SLURM_NTASKS": 8}, (1, 8)),
    ({"OMPI_COMM_WORLD_RANK": 3, "OMPI_COMM_WORLD_SIZE": 4}, (3, 4)),
    ({"OMPI_COMM_WORLD_RANK": 3, "OMPI_COMM_WORLD_SIZE": 4, "SLURM_PROCID": 1, "SLURM_STEP_NUM_TASKS": 2}, (3, 4)),
    ({"RANK": 2, "WORLD_SIZE": 4, "SLURM_PROCID": 0, "SLURM_STEP_NUM_TASKS": 2}, (2, 4)),
    ({"OMPI_COMM_WORLD_RANK": 3, "OMPI_COMM_WORLD_SIZE": 4, "SLURM_PROCID": 1, "SLURM_STEP_NUM_TASKS": 4}, ValueError),
    ({"OMPI_COMM_WORLD_RANK": 3, "OMPI_COMM_WORLD_SIZE": 4, "SLURM_PROCID": 0, "SLURM_NTASKS": 4}, (3, 4)),  # mpirun in a batch script
    ({"RANK": 4, "WORLD_SIZE": 4}, ValueError),
    ({"RANK": "x", "WORLD_SIZE": 4}, ValueError),
])
def test_where_ranks_come_from(monkeypatch, caplog, env, want):
    for name in NOBODY:
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, str(value))
    if want is ValueError:
        with pytest.raises(ValueError):
            _ranks.resolve()
    else:
        with caplog.at_level("INFO", "leat"):
            assert _ranks.resolve() == want
        several = len([name for name in env if name.endswith(("SIZE", "TASKS"))]) > 1
        assert "from" in caplog.text and (" say " in caplog.text) == several
    assert _ranks.resolve(1, 5) == (1, 5)


def test_torch_distributed_comes_first_and_must_agree(monkeypatch):
    distributed = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1,
                                        get_world_size=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(distributed=distributed))
    assert _ranks.resolve() == (1, 2)
    monkeypatch.setenv("RANK", "1"), monkeypatch.setenv("WORLD_SIZE", "2")
    assert _ranks.resolve() == (1, 2)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="torch.distributed: rank 1 of 2; RANK"):
        _ranks.resolve()


def test_entries_of_the_path_that_are_no_text():
    subprocess.run([sys.executable, "-c", "import sys; sys.path += [None, b'/tmp']; import leat; leat.Loader"], check=True)


def test_torch_is_not_imported():
    code = "import sys, leat; leat.Loader; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert _leat.version


def test_replay_of_the_command_line(numbers, tmp_path):
    program = __main__.program()
    loaders = [leat.Loader(numbers, 10, seed=3, rank=r, world_size=2, skip_ranges=[(5, 50), (200, 201)]) for r in range(2)]
    got = [ids_of(loader) for loader in loaders]
    path = tmp_path / "state.json"
    path.write_text(json.dumps(loaders[0].state_dict()))

    def run(*args):
        done = subprocess.run([program, "replay", "--state", path, *args], capture_output=True, text=True)
        return done.returncode, done.stdout

    for step in (0, 7, 20):
        for rank in range(2):
            code, out = run("--step", str(step), "--rank", str(rank), "--world-size", "2", "--epoch", "0")
            rows = [line.split("\t") for line in out.splitlines()]
            assert code == 0 and [int(row[1]) for row in rows] == got[rank][step]
            assert [int(row[0]) for row in rows] == list(range(step * 20 + rank * 10, step * 20 + rank * 10 + 10))
    code, out = run("--step", "1", "--epoch", "0", "--json", numbers.uri)
    assert code == 0 and [int(row["key"]) for row in json.loads(out)] == got[0][1] + got[1][1]
    assert run("--step", "48")[0] == run("--step", "1", "--rank", "2", "--world-size", "2")[0] == run("--step", "x")[0] == 2
    for change in ({"version": 3}, {"runs": [[0, 0, 0, 1]]}, {"runs": [[0, 9, 2, 2], [0, 8, 2, 2]]}, {"runs": 1}):
        path.write_text(json.dumps({**loaders[0].state_dict(), **change}))
        assert run("--step", "1", "--epoch", "0")[0] == 2


def test_replay_knows_restarts(numbers, tmp_path):
    """Steps count on through restarts in the middle of epochs, on other worlds and with other batches; by program and by function."""
    program, path = __main__.program(), tmp_path / "state.json"
    steps, state = {0: [], 1: [], 2: []}, None
    for world, batch_size, count in ((2, 10, 7), (3, 5, 11), (1, 40, 100), (2, 16, 20), (2, 16, 3), (3, 11, 100), (1, 999, 100)):
        loaders = [leat.Loader(numbers, batch_size, seed=3, drop_last=False, rank=r, world_size=world, skip_ranges=[(5, 50)])
                   for r in range(world)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        epoch = loaders[0].epoch
        for _, batches in zip(range(count), zip(*loaders)):
            steps[epoch].append([batch.ids[batch.valid].tolist() for batch in batches])
        states = [loader.state_dict() for loader in loaders]
        assert all(one == states[0] for one in states)
        state = json.loads(json.dumps(states[0]))
        for loader in loaders:
            loader.close()
    assert [sum(map(len, map(flat, steps[e]))) for e in range(3)] == [955, 955, 955]
    path.write_text(json.dumps(state))
    for epoch, wanted in steps.items():
        for step, ranks in list(enumerate(wanted))[:: 5 if epoch < 2 else 1]:
            assert leat.replay(state, step, epoch=epoch).tolist() == flat(ranks)
            for rank, ids in enumerate(ranks):
                assert leat.replay(state, step, rank, epoch=epoch).tolist() == ids
            done = subprocess.run([program, "replay", "--state", path, "--step", str(step), "--epoch", str(epoch), "--rank",
                                   str(len(ranks) - 1)], capture_output=True, text=True)
            assert [int(line.split()[1]) for line in done.stdout.splitlines()] == ranks[-1], done.stderr
        with pytest.raises(ValueError, match=f"has {len(wanted)} steps"):
            leat.replay(state, len(wanted), epoch=epoch)
        done = subprocess.run([program, "replay", "--state", path, "--step", str(len(wanted)), "--epoch", str(epoch)],
                              capture_output=True, text=True)
        assert done.returncode == 2 and f"has {len(wanted)} steps" in done.stderr
    with pytest.raises(ValueError, match="rank 1"):
        leat.replay(state, 0, 1, epoch=2)


def test_a_state_of_the_first_version(numbers):
    old = leat.Loader(numbers, 10).state_dict()
    del old["runs"]
    old.update(version=1, samples=300, global_batch=20)
    loader = leat.Loader(numbers, 50)
    loader.load_state_dict(old)
    assert len(ids_of(loader)) == 14
    state = loader.state_dict()
    assert state["version"] == 2 and state["runs"] == [[0, 0, 20, 0], [0, 300, 50, 50]]
    order = leat.order(numbers, seed=0).tolist()
    for one, step, want in ((old, 3, order[60:80]), (state, 3, order[60:80]), (state, 15, order[300:350])):
        assert leat.replay(one, step, epoch=0).tolist() == want
