# SPDX-License-Identifier: Apache-2.0
"""leat.Mixture: proportions, exactness over ranks, batch sizes and restarts, what differs between sets, bad samples."""

import collections
import json
import os
import pickle
import subprocess

import numpy as np
import pytest

import leat
from leat._loader import mixture as _mixture
from leat._sets.plan import Plan

A, B = 700, 90


@pytest.fixture
def pair(tmp_path):
    """Two sets: value = 1000 * number of the set + number of the sample."""
    for k, n in enumerate((A, B)):
        np.save(tmp_path / f"x{k}.npy", (np.arange(n) + 1000 * k).astype("i4"))
        np.save(tmp_path / f"y{k}.npy", np.full((n, 3), k, "f4") + np.arange(n, dtype="f4")[:, None] / 1024)
    return [leat.open({"x": tmp_path / f"x{k}.npy", "y": tmp_path / f"y{k}.npy"}) for k in range(2)]


def run(loader, steps=None):
    """[(source, id)] of what it gives, checked against the values; padding left out."""
    found = []
    for step, batch in enumerate(loader):
        ids = [int(i) for i in batch.ids]
        assert batch["x"].tolist() == [1000 * k + i for k, i in zip(batch.source, ids)]
        assert np.array_equal(batch["y"][:, 1], np.float32(batch.source) + np.float32(ids) / 1024)
        found += [(int(k), i) for k, i, v in zip(batch.source, ids, batch.valid) if v]
        batch.release()
        if steps is not None and step + 1 == steps:
            break
    return found


def test_draw_is_a_partition_in_proportion():
    rng = np.random.default_rng(3)
    for _ in range(30):
        weights = [int(w) for w in rng.integers(1, 1 << 20, rng.integers(1, 7))]
        n = 5000  # of each set, not shuffled: what is drawn is the number of the draw
        state = {"weights": weights, "lengths": [n] * len(weights), "fingerprints": ["0" * 32] * len(weights)}
        plan, offsets = Plan(n, mixture=state), np.arange(len(weights) + 1, dtype=np.uint64) * np.uint64(n)
        source, drawn = _mixture.split(offsets, plan.ids(0, n))
        for k, weight in enumerate(weights):
            mine = drawn[source == k]
            assert mine.tolist() == list(range(len(mine)))  # each number of each set once, in order
            share = np.cumsum(source == k) - np.arange(1, n + 1) * weight / sum(weights)
            assert np.abs(share).max() < 2.5  # at every place, not only in the end
        part = _mixture.split(offsets, plan.ids(1234, 66))
        assert (part[0] == source[1234:1300]).all() and (part[1] == drawn[1234:1300]).all()


def test_proportions_and_own_epochs(pair):
    mixture = leat.Mixture([(pair[0], 0.7), (pair[1], 0.3)], length=1000)
    loader = leat.Loader(mixture, 50, seed=5)
    assert len(loader) == 20
    epochs = [run(loader) for _ in range(3)]
    assert [sum(k == 0 for k, _ in epoch) for epoch in epochs] == [700, 700, 700]
    small = [i for epoch in epochs for k, i in epoch if k == 1]
    for at in range(0, 900, B):  # all of it before any comes again, over the borders of the mixture's epochs
        assert sorted(small[at : at + B]) == list(range(B))
    assert small[:B] != small[B : 2 * B]
    assert [sorted(i for k, i in epoch if k == 0) for epoch in epochs] == [list(range(A))] * 3
    assert epochs[0] != epochs[1]
    for batch in leat.Loader(mixture, 50, seed=5):
        assert abs(int((batch.source == 1).sum()) - 15) <= 1


def test_default_length_and_one_set(pair):
    mixture = leat.Mixture([(pair[0], 1)])
    assert len(mixture) == A and sorted(run(leat.Loader(mixture, 70))) == [(0, i) for i in range(A)]
    assert len(leat.Mixture([(pair[0], 3), (pair[1], 1)])) == A + B


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"shuffle": "block:64"}, {"skip_ranges": [(3, 10), (40, 99)]}])
def test_the_same_on_any_number_of_ranks(pair, options):
    mixture = leat.Mixture([(pair[0], 2), (pair[1], 1)], length=480)
    whole = run(leat.Loader(mixture, 24, seed=2, drop_last=False, **options))
    for world in (2, 3):
        ranks = [leat.Loader(mixture, 24 // world, seed=2, rank=r, world_size=world, drop_last=False, **options) for r in range(world)]
        steps = [[[(int(k), int(i)) for k, i, v in zip(b.source, b.ids, b.valid) if v] for b in rank] for rank in ranks]
        assert [one for step in zip(*steps) for part in step for one in part] == whole


def test_state_is_exact_on_another_world(pair):
    mixture = leat.Mixture([(pair[0], 2), (pair[1], 1)], length=480)
    full = run(leat.Loader(mixture, 10, seed=9, drop_last=False))
    again = leat.Loader(mixture, 10, seed=9, drop_last=False)
    again.set_epoch(1)
    second = run(again)
    loader = leat.Loader(mixture, 10, seed=9, drop_last=False)
    seen = run(loader, 7)
    state = json.loads(json.dumps(loader.state_dict()))
    assert seen == full[:70] and state["mixture"]["lengths"] == [A, B] and state["samples"] == 70
    rest = collections.Counter()
    for rank in range(3):
        other = leat.Loader(mixture, 8, drop_last=False, rank=rank, world_size=3)
        other.load_state_dict(state)
        rest.update(run(other))
        assert collections.Counter(run(other)) <= collections.Counter(second)  # the next epoch, by itself
    assert rest == collections.Counter(full[70:])


def test_a_state_of_something_else(pair):
    mixture = leat.Mixture([(pair[0], 2), (pair[1], 1)])
    state = leat.Loader(mixture, 10).state_dict()
    for other in (leat.Mixture([(pair[0], 1), (pair[1], 1)]), leat.Mixture([(pair[1], 1), (pair[0], 2)]),
                  leat.Mixture([(pair[0], 2), (pair[1], 1)], length=100), pair[0]):
        with pytest.raises(leat.Stale, match="fingerprint"):
            leat.Loader(other, 10).load_state_dict(state)
    same = leat.Mixture([(pair[0], 4), (pair[1], 2)])
    leat.Loader(same, 10).load_state_dict(state)
    for wrong in ({}, {"weights": [1], "lengths": [1, 2], "fingerprints": ["a"]}, {"weights": [0], "lengths": [1], "fingerprints": ["a"]}):
        with pytest.raises(ValueError, match="mixture="):
            leat.Loader(same, 10).load_state_dict({**state, "mixture": wrong})


def test_replay(pair, tmp_path):
    mixture = leat.Mixture([(pair[0], 0.6), (pair[1], 0.4)], length=500)
    loaders = [leat.Loader(mixture, 10, seed=4, rank=r, world_size=2, skip_ranges=[(5, 9)]) for r in range(2)]
    for loader in loaders:
        run(loader)  # an epoch
    seen = [run(loader, 9) for loader in loaders]
    state = loaders[0].state_dict()
    assert state == loaders[1].state_dict()
    (tmp_path / "state.json").write_text(json.dumps(state))
    program = os.path.join(os.environ.get("LEAT_BUILD", "build"), "src/apps/leat")
    for rank in range(2):
        for step in (0, 4, 8):
            want = seen[rank][10 * step : 10 * step + 10]
            assert leat.replay(state, step, rank).tolist() == [list(one) for one in want]
            if os.path.exists(program):
                out = subprocess.run([program, "replay", "--state", tmp_path / "state.json", "--step", str(step), "--rank", str(rank), "--json"],
                                     check=True, stdout=subprocess.PIPE).stdout
                assert [(one["source"], one["index"]) for one in json.loads(out)] == want
                text = subprocess.run([program, "replay", "--state", tmp_path / "state.json", "--step", str(step), "--rank", str(rank)],
                                      check=True, stdout=subprocess.PIPE, text=True).stdout
                assert [tuple(map(int, line.split()[1:])) for line in text.splitlines()] == want
    sets = [ws.uri for ws in pair]
    for given, code in ((sets, 0), (sets[:1], 2), (sets[::-1], 9)):
        done = subprocess.run([program, "replay", "--state", tmp_path / "state.json", "--step", "3", *given], stdout=subprocess.PIPE, text=True)
        assert done.returncode == code
        if code == 0:
            lines = [line.split() for line in done.stdout.splitlines()]
            assert [(int(k), int(i)) for _, k, i, _ in lines] == seen[0][30:40] + seen[1][30:40] and all(i == key for _, _, i, key in lines)
    for wrong in ({"weights": [1], "lengths": [0], "fingerprints": ["a"]}, {"weights": [], "lengths": [], "fingerprints": []}, 7):
        (tmp_path / "wrong.json").write_text(json.dumps({**state, "mixture": wrong}))
        done = subprocess.run([program, "replay", "--state", tmp_path / "wrong.json", "--step", "3"], stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2 and "damaged" in done.stderr


@pytest.mark.parametrize("options", [{}, {"num_workers": 3}, {"workers": "fork", "num_workers": 2}, {"workers": "spawn"}])
def test_transform_and_workers(pair, options):
    def draw(sample, rng):
        return {"x": sample["x"], "u": rng.random()}

    mixture = leat.Mixture([(pair[0], 1), (pair[1], 3)], length=400)  # the small one comes three times an epoch
    given = {}
    for batch in leat.Loader(mixture, 20, transform=_draw if options.get("workers") == "spawn" else draw, **options):
        for x, u, k, i in zip(batch["x"].tolist(), batch["u"].tolist(), batch.source.tolist(), batch.ids.tolist()):
            assert x == 1000 * k + i
            given.setdefault(x, []).append(u)
    assert max(map(len, given.values())) == 4 and all(len(set(us)) == len(us) for us in given.values())  # each time in another way
    test_transform_and_workers.given = getattr(test_transform_and_workers, "given", given)
    assert given == test_transform_and_workers.given  # in any thread or process


def _draw(sample, rng):
    return {"x": sample["x"], "u": rng.random()}


def test_files_and_tars(folder, tmp_path):
    """Bytes of any length from a folder and from pushed rows, under one name."""
    rows = leat.from_dataset([{"text": f"row {i}"} for i in range(9)], name="rows")
    with leat.open(folder) as files:
        mixture = leat.Mixture([(files, 1, {"text": "data"}), (rows, 2)], length=12)
        got = []
        for batch in leat.Loader(mixture, 4, fields={"text": ("text", "txt")}):
            assert batch.sample_keys == [(files, rows)[k].key(int(i)) for k, i in zip(batch.source, batch.ids)]
            assert batch["text"] == [(files[i]["data"] if k == 0 else rows[i]).decode() for k, i in zip(batch.source.tolist(), batch.ids.tolist())]
            got += batch["text"]
        assert len(got) == 12 and len({text for text in got if text.startswith("row")}) == 8
        raw = next(iter(leat.Loader(mixture, 4)))["text"]
        assert all(isinstance(value, bytes) for value in raw)
        together = leat.Loader(mixture, 4, collate_fn=lambda samples: [s["text"] for s in samples])
        assert len(next(iter(together))) == 4


def test_sets_that_differ(pair, tmp_path, folder):
    np.save(tmp_path / "z.npy", np.zeros((5, 4), "f4"))
    np.save(tmp_path / "x.npy", np.zeros(A, "i8"))
    other = leat.open({"x": tmp_path / "x.npy", "y": tmp_path / "y0.npy"})
    mixture = leat.Mixture([(pair[0], 1), (other, 1)])
    with pytest.raises(ValueError, match="'x': in set 0 it is '<i4' of shape .*, in set 1 '<i8'"):
        leat.Loader(mixture, 2)
    with pytest.raises(ValueError, match="field 'x' of the mixture: in set 0"):
        leat.Loader(mixture, 2, fields=["x"])
    assert next(iter(leat.Loader(mixture, 4, fields=["y"])))["y"].shape == (4, 3)
    with pytest.raises(ValueError, match="no field in common"):
        leat.Mixture([(pair[0], 1), (leat.open(tmp_path / "z.npy"), 1)])
    more = tmp_path / "more" / "c"
    more.mkdir(parents=True)
    (more / "1.jpg").write_bytes(b"x")
    mixture = leat.Mixture([(leat.open(folder), 1), (leat.open(more.parent), 1)])
    with pytest.raises(ValueError, match="'label': in set 0 it is a label, classes a, b, in set 1 a label, classes c"):
        leat.Loader(mixture, 1)
    assert len(leat.Loader(mixture, 1, fields=["data"])) == 4


def test_what_is_given_wrong(pair):
    for parts, words in (([], "1 to 256"), ([(pair[0], 0)], "above 0"), ([(pair[0], float("nan"))], "above 0")):
        with pytest.raises(ValueError, match=words):
            leat.Mixture(parts)
    with pytest.raises(ValueError, match="length=0"):
        leat.Mixture([(pair[0], 1)], length=0)
    with pytest.raises(ValueError, match="no sampler"):
        leat.Loader(leat.Mixture([(pair[0], 1)]), 1, sampler=[1, 2])


def test_bad_samples(tmp_path):
    rows = [{"n": str(i) if i != 5 else "five"} for i in range(20)]
    a, b = (leat.from_dataset(rows if k else rows[6:], name=f"rows{k}") for k in range(2))
    mixture = leat.Mixture([(a, 1), (b, 1)], length=40)
    with pytest.raises(leat.BadSample, match=r"sample 5 of set 1 \(5\): ValueError: 'five'") as caught:
        list(run_n(leat.Loader(mixture, 4, fields={"n": ("n", "cls")})))
    assert caught.value.index == 5
    one = [run_n(leat.Loader(mixture, 4, fields={"n": ("n", "cls")}, on_error="skip")) for _ in range(2)]
    assert one[0] == one[1] and len(one[0]) == 40
    parts = [run_n(leat.Loader(mixture, 2, fields={"n": ("n", "cls")}, on_error="skip", rank=r, world_size=2)) for r in range(2)]
    assert sorted(parts[0] + parts[1]) == sorted(one[0])


def test_samples_that_cannot_be_read(pair, monkeypatch):
    """What the library refuses is found, named and replaced, and reading ahead continues behind it."""
    mixture = leat.Mixture([(pair[0], 1), (pair[1], 1)], length=400)
    bad = {(0, 17), (1, 30)}
    real_next, real_read = _mixture.MixedIter.next, _mixture.Mixture._read

    def refuse(self, timeout_ns):
        if any(mixture._where(int(i)) in bad for i in self._steps[self._at]):
            raise leat.Corrupt("checksum")
        return real_next(self, timeout_ns)

    def read(self, index, field):
        if self._where(index) in bad:
            raise leat.Corrupt("checksum of it")
        return real_read(self, index, field)

    monkeypatch.setattr(_mixture.MixedIter, "next", refuse)
    monkeypatch.setattr(_mixture.Mixture, "_read", read)
    with pytest.raises(leat.BadSample, match="of set [01] .*checksum of it"):
        run(leat.Loader(mixture, 20, shuffle=False))
    loader = leat.Loader(mixture, 20, shuffle=False, on_error="skip")
    got = run(loader)
    assert len(got) == 400 and not set(got) & bad and loader.stats()["skipped"] == 1 + 2  # set 1 has 90 samples and gives 200
    monkeypatch.undo()
    good = run(leat.Loader(mixture, 20, shuffle=False))
    assert [one for one, other in zip(good, got) if one != other] == [one for one in good if one in bad]


def test_pictures_through_prep(tmp_path):
    image = pytest.importorskip("PIL.Image")
    prep = pytest.importorskip("leat.prep")
    rng = np.random.default_rng(1)
    for k in range(2):
        (tmp_path / f"p{k}").mkdir()
        for i in range(10):
            image.fromarray(rng.integers(0, 255, (40 + i, 50, 3), "u1")).save(tmp_path / f"p{k}" / f"{i:02}.jpg")
    sets = [leat.open(tmp_path / f"p{k}") for k in range(2)]
    how = {"fields": {"image": "jpg"}, "transform": prep.CenterCrop(16, resize=20)}
    alone = [np.concatenate([b["image"].copy() for b in leat.Loader(ws, 5, shuffle=False, **how)]) for ws in sets]
    n = 0
    for batch in leat.Loader(leat.Mixture([(sets[0], 1), (sets[1], 2)], length=30), 6, **how):
        for value, k, i in zip(batch["image"], batch.source, batch.ids):
            assert (value == alone[k][int(i)]).all()
            n += 1
    assert n == 30


def run_n(loader):
    found = []
    for batch in loader:
        assert batch["n"].tolist() == [int(i) + (6 if k == 0 else 0) for k, i in zip(batch.source, batch.ids)]
        found += batch["n"].tolist()
    return found


def test_left_and_begun_again_and_pickled(pair):
    mixture = pickle.loads(pickle.dumps(leat.Mixture([(pair[0], 2), (pair[1], 1)])))
    loader = leat.Loader(mixture, 10, seed=1, resume_epoch=True)
    first = run(loader, 3)
    assert run(loader, 3) == first and loader.stats()["batches"] == 6
    assert run(leat.Loader(mixture, 10, seed=1))[:30] == first
    held = [batch for _, batch in zip(range(3), loader)]
    with pytest.raises(leat.Busy):
        for batch in loader:
            held.append(batch)


@pytest.mark.parametrize("shuffle", ["full", "block:16", False])
def test_a_sampler_gives_what_the_loader_gives(pair, shuffle):
    """The same samples in the same batches, epoch after epoch, on any rank; and a state that is exact on other ranks and batch sizes."""
    mixture = leat.Mixture([(pair[0], 0.7), (pair[1], 0.3)], length=400)
    for rank in range(2):
        loader = leat.Loader(mixture, 20, seed=9, rank=rank, world_size=2, shuffle=shuffle)
        sampler = leat.Sampler(mixture, 20, seed=9, rank=rank, world_size=2, shuffle=shuffle)
        assert len(sampler) == 200
        for _ in range(3):
            assert list(sampler) == [A * k + i for k, i in run(loader)]
    sampler.set_epoch(1)
    given = iter(sampler)
    assert len([next(given) for _ in range(60)]) == 60
    state = json.loads(json.dumps(sampler.state_dict()))
    assert (state["epoch"], state["samples"]) == (1, 120) and state["mixture"]["lengths"] == [A, B]
    rest = []
    for rank in range(4):
        again = leat.Sampler(mixture, 7, rank=rank, world_size=4, shuffle=shuffle)
        again.load_state_dict(state)
        rest += list(again)
    whole = [A * k + i for k, i in run(_at_epoch(leat.Loader(mixture, 40, seed=9, shuffle=shuffle), 1))]
    assert sorted(rest) == sorted(whole[120:400])
    other = leat.Mixture([(pair[0], 0.6), (pair[1], 0.4)], length=400)
    with pytest.raises(leat.Stale):
        leat.Sampler(other, 7, shuffle=shuffle).load_state_dict(state)


def _at_epoch(loader, epoch):
    loader.set_epoch(epoch)
    return loader


def test_a_mixture_under_the_dataloader(pair):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    mixture = leat.Mixture([(pair[0], 0.5), (pair[1], 0.5)], length=100)
    sampler = leat.Sampler(mixture, 10, seed=2)
    want = [[1000 * k + i for k, i in zip(batch.source.tolist(), batch.ids.tolist())] for batch in leat.Loader(mixture, 10, seed=2)]
    for workers in (0, 2):
        sampler.set_epoch(0)
        loader = torch.utils.data.DataLoader(mixture, batch_size=10, sampler=sampler, num_workers=workers, multiprocessing_context="spawn" if workers else None)
        assert [batch["x"].tolist() for batch in loader] == want


def test_samples_of_a_mixture_by_number(pair):
    renamed = leat.Mixture([(pair[0], 1, {"v": "x"}), (pair[1], 1, {"v": "x"})])
    assert [renamed[i].tolist() for i in (0, A - 1, A, A + B - 1)] == [0, A - 1, 1000, 1000 + B - 1]
    both = leat.Mixture([(pair[0], 1), (pair[1], 1)])
    assert both[A + 3]["x"] == 1003 and both[A + 3]["y"].shape == (3,)
    assert [sample["x"].tolist() for sample in both.__getitems__([A, 5, A + 1, (3 << _mixture.ID_BITS) | 6])] == [1000, 5, 1001, 6]
    assert both.__getitems__([]) == []
    with pytest.raises(IndexError, match=f"sample {A + B} of a mixture of {A + B}"):
        both[A + B]
