# SPDX-License-Identifier: Apache-2.0
"""Samplers under `leat.Loader`: weighted ones, ones that never end, and what is said of those that do not resume or that differ over ranks."""

import gc
import itertools
import json
import logging
import random
import threading
import traceback
import warnings
import weakref

import numpy as np
import pytest

import leat
from leat._loader import workers as _workers
from leat._sets import plan as _plan
from lib_host import wait_for

N = 12


@pytest.fixture
def numbers(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(N))
    with leat.open({"x": tmp_path / "x.npy"}) as ws:
        yield ws


def keep(sample, rng):
    return sample


WAYS = pytest.mark.parametrize("more", [{}, {"transform": keep}, {"transform": keep, "workers": "fork"}], ids=["plain", "thread", "fork"])


def ids(batches):
    return [batch.ids.tolist() for batch in batches]


# --- what is said of them -----------------------------------------------------------------------------------------------------------


class ByChance:
    def __iter__(self):
        return iter(np.random.permutation(N).tolist())


@pytest.mark.parametrize("more", [{"sampler": ByChance()}, {"batch_sampler": ByChance()}])
def test_a_sampler_without_a_state(numbers, more):
    loader = leat.Loader(numbers, 2, **more)
    with pytest.warns(UserWarning, match="ByChance has no state: resuming is not exact") as said:
        state = loader.state_dict()
        loader.state_dict()
    assert len(said) == 1
    with pytest.warns(UserWarning, match="has no state"):
        leat.Loader(numbers, 2, **more).load_state_dict(state)


def test_samplers_that_yield_it_again(numbers):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    data = torch.utils.data
    for more in ({}, {"sampler": [1, 2]}, {"sampler": range(4)}, {"sampler": np.arange(3)}, {"batch_sampler": [[1]]}, {"sampler": leat.WeightedSampler([1] * N)},
                 {"sampler": data.SequentialSampler(range(N))}, {"batch_sampler": data.BatchSampler(data.SequentialSampler(range(N)), 2, False)},
                 {"sampler": data.DistributedSampler(range(N), 1, 0)}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            leat.Loader(numbers, 2, **more).state_dict()
    with pytest.warns(UserWarning, match="RandomSampler has no state"):
        leat.Loader(numbers, 2, sampler=data.RandomSampler(range(N))).state_dict()


@pytest.mark.parametrize("which", ["sampler", "batch_sampler", "weighted", "seed", "same", "epochs"])
def test_ranks_that_overlap(numbers, which, caplog):
    """Each rank draws for itself: the daemon, which gets both reports, finds it."""
    made = []
    for rank in range(2):
        mine = np.random.default_rng(0 if which == "same" else rank).permutation(N).tolist()
        more = {"sampler": {"sampler": mine}, "same": {"sampler": mine}, "batch_sampler": {"batch_sampler": [mine[:6], mine[6:]]}, "seed": {"seed": rank},
                "weighted": {"sampler": leat.WeightedSampler(np.ones(N), seed=rank)}, "epochs": {}}[which]
        ws = leat.open({"x": numbers.uri.partition("=")[2]})
        loader = leat.Loader(ws, 2, rank=rank, world_size=2, **more)
        loader._config.reporter._number = 77  # as in a process of its own
        if which == "epochs":
            loader.set_epoch(rank)
        made.append(loader)
    with caplog.at_level(logging.WARNING, "leat"):
        for loader in made:
            next(iter(loader))
        wait_for(lambda: not any(thread.name == "leat-look" for thread in threading.enumerate()))
    found = [text for text in caplog.messages if "different orders" in text]
    if which in ("same", "epochs"):
        assert not found
    else:
        assert found and all(text.startswith("ranks 0, 1 of 2 go through different orders") for text in found)
    for loader in made:
        loader.close()
        loader.ws.close()


# --- weighted -----------------------------------------------------------------------------------------------------------------------


def test_weights_are_kept_to():
    weights = np.array([1, 2, 0, 3, 4])
    drawn = np.bincount(list(leat.WeightedSampler(weights, 100_000, seed=1)), minlength=5) / 100_000
    assert np.abs(drawn - weights / 10).max() < 0.01 and drawn[2] == 0
    first = np.zeros(5)
    sampler = leat.WeightedSampler(weights, replacement=False, seed=1)
    for epoch in range(4000):
        sampler.set_epoch(epoch)
        order = list(sampler)
        assert sorted(order) == [0, 1, 3, 4]
        first[order[0]] += 1
    assert np.abs(first / 4000 - weights / 10).max() < 0.04


def test_without_replacement_as_torch():
    """The chance of each pair, beside torch.multinomial's rule: w_i / W * w_j / (W - w_i)."""
    weights, found = np.array([1.0, 2, 3]), np.zeros((3, 3))
    for seed in range(6000):
        i, j = leat.WeightedSampler(weights, 2, replacement=False, seed=seed)
        found[i, j] += 1 / 6000
    want = [[0 if i == j else weights[i] / 6 * weights[j] / (6 - weights[i]) for j in range(3)] for i in range(3)]
    assert np.abs(found - want).max() < 0.03


@WAYS
@pytest.mark.parametrize("replacement", [True, False])
def test_a_weighted_sampler_over_ranks_and_restarts(numbers, more, replacement):
    weights = np.arange(N)

    def loader(batch_size, rank, world_size, seed=5):
        sampler = leat.WeightedSampler(weights, replacement=replacement, seed=seed)
        return leat.Loader(numbers, batch_size, sampler=sampler, rank=rank, world_size=world_size, drop_last=False, **more)

    want = leat.WeightedSampler(weights, replacement=replacement, seed=5)
    for epoch in range(2):
        want.set_epoch(epoch)
        given = list(want)
        assert len(given) == (N if replacement else N - 1) == len(want)
        both = []
        for rank in range(2):
            one = loader(2, rank, 2)
            one.set_epoch(epoch)
            steps = iter(one)
            both.append(ids([next(steps)]))
            state = json.loads(json.dumps(one.state_dict()))
            one.close()
        assert sum(both[0] + both[1], []) == given[:4]
        rest = []
        for rank in range(3):
            one = loader(1, rank, 3, seed=9)
            one.load_state_dict(state)  # and the seed
            rest.append([[i for i, valid in zip(batch.ids.tolist(), batch.valid) if valid] for batch in one])
            one.close()
        assert [i for step in zip(*rest) for part in step for i in part] == given[4:]
    other = leat.Loader(numbers, 2, sampler=leat.WeightedSampler(weights + 1, len(want), replacement=replacement))
    with pytest.raises(leat.Stale, match="other weights"):
        other.load_state_dict(state)


def test_many_weights_in_little_memory():
    """Any place can be asked for by itself, of a number of draws that no list would hold."""
    sampler = leat.WeightedSampler(np.arange(1000), 1 << 40)
    a = sampler._at(np.array([1 << 39, 5]), 0)
    assert a.tolist() == [int(sampler._at(np.array([place]), 0)[0]) for place in (1 << 39, 5)]
    assert list(itertools.islice(sampler, 6))[5] == a[1] and len(sampler) == 1 << 40


@pytest.mark.parametrize("arguments,message", [
    ({"weights": [1, -1]}, "one number of at least 0"), ({"weights": [0, 0]}, "one above 0"), ({"weights": [[1]]}, "one number"),
    ({"weights": [1, float("nan")]}, "one number"), ({"weights": [1, 1e308, 1e308]}, "one number"), ({"weights": [1], "num_samples": 0}, "num_samples=0"),
    ({"weights": [1, 0], "num_samples": 2, "replacement": False}, "1 samples have a weight above 0"), ({"weights": [1], "seed": -1}, "seed=-1: 0 to"),
])
def test_wrong_weights(arguments, message):
    with pytest.raises(ValueError, match=message):
        leat.WeightedSampler(**arguments)


def test_weights_of_another_set(numbers):
    with pytest.raises(ValueError, match="3 weights for a set of 12 samples"):
        iter(leat.Loader(numbers, sampler=leat.WeightedSampler([1, 2, 3])))


# --- without end --------------------------------------------------------------------------------------------------------------------


class Endless:
    """And counts what is drawn."""

    drawn = 0

    def __iter__(self):
        for k in itertools.count():
            self.drawn += 1
            yield k * 5 % N


class EndlessBatches(Endless):
    def __iter__(self):
        for k in itertools.count():
            self.drawn += 1
            yield [k % N, (k + 1) % N, (k * 7) % N][: 1 + k % 3]


@pytest.fixture
def small_head(monkeypatch):
    monkeypatch.setattr(_plan, "HEAD", 64)


@pytest.mark.long
@WAYS
@pytest.mark.parametrize("world", [1, 2])
def test_a_sampler_without_end(numbers, more, world, small_head):
    sampler = Endless()
    got, state = [], None
    for rank in range(world):
        loader = leat.Loader(numbers, 4, sampler=sampler, rank=rank, world_size=world, **more)
        steps = iter(loader)
        got.append(ids(itertools.islice(steps, 300)))
        state = loader.state_dict()
        loader.close()
    want = [k * 5 % N for k in range(300 * 4 * world)]
    assert sum((part for step in zip(*got) for part in step), []) == want
    assert sampler.drawn < world * (300 * 4 * world + 1000)
    again = leat.Loader(numbers, 2, sampler=Endless(), **more)
    again.load_state_dict(state)
    start = 300 * 4 * world
    assert sum(ids(itertools.islice(again, 5)), []) == [k * 5 % N for k in range(start, start + 10)]
    assert sum(ids(itertools.islice(again, 5)), []) == want[:10]  # the next epoch
    again.close()


@WAYS
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("length", [64, 65, 127, 128, 129, 300])
def test_a_sampler_that_ends_late(numbers, more, length, drop_last, small_head):
    """With a length of its own that is too short, and with none."""
    class Lies(Endless):
        def __iter__(self):
            return itertools.islice(super().__iter__(), length)

    class Tells(Lies):
        def __len__(self):
            return 70

    want = [k * 5 % N for k in range(length)]
    for sampler in (Lies(), Tells()):
        loader = leat.Loader(numbers, 7, sampler=sampler, drop_last=drop_last, skip_ranges=[(1, 3), (100, 110)], **more)
        kept = want[:1] + want[3:100] + want[110:]
        got = [i for batch in loader for i in batch.ids[batch.valid].tolist()]
        assert got == (kept[: len(kept) // 7 * 7] if drop_last else kept)
        assert loader.state_dict()["epoch"] == 1
        loader.close()


@WAYS
def test_a_batch_sampler_without_end(numbers, more, small_head):
    sampler = EndlessBatches()
    loader = leat.Loader(numbers, batch_sampler=sampler, **more)
    want = list(itertools.islice(EndlessBatches(), 500))
    assert ids(itertools.islice(loader, 400)) == want[:400]
    assert sampler.drawn < 1000
    state = loader.state_dict()
    assert state["samples"] == sum(map(len, want[:400]))
    loader.close()
    again = leat.Loader(numbers, batch_sampler=EndlessBatches(), **more)
    again.load_state_dict(state)
    assert ids(itertools.islice(again, 100)) == want[400:]
    again.load_state_dict({**state, "samples": state["samples"] + 1})
    with pytest.raises(ValueError, match="no batch of the batch_sampler ends") if len(want[400]) > 1 else pytest.raises(StopIteration):
        iter(again)
        raise StopIteration
    again.close()


@WAYS
def test_large_batches_are_drawn_as_they_are_needed(numbers, more, monkeypatch):
    monkeypatch.setattr(_plan, "HEAD", 1024)
    size = _plan.HEAD // 16

    class Large:
        drawn = 0

        def __iter__(self):
            for k in itertools.count():
                self.drawn += 1
                assert self.drawn < 200
                yield np.arange(k, k + size) % N

    batches = Large()
    loader = leat.Loader(numbers, batch_sampler=batches, prefetch=3, **more)
    for k, batch in enumerate(itertools.islice(loader, 40)):
        assert batch.ids.tolist() == (np.arange(k, k + size) % N).tolist() and batch.position == k * size
        del batch
        assert batches.drawn * size < k * size + 4 * _plan.HEAD
    loader.close()


def test_the_epoch_of_what_is_in_a_batch_sampler(numbers):
    data = pytest.importorskip("torch", reason="torch is not installed").utils.data
    inner = leat.WeightedSampler(np.arange(N), 64, seed=3)
    loader = leat.Loader(numbers, batch_sampler=data.BatchSampler(inner, 8, False))
    for epoch in range(3):
        got = sum(ids(loader), [])
        inner.set_epoch(epoch)
        assert got == list(inner)
    assert list(itertools.islice(loader, 1))[0].ids.tolist() != got[:8]


def test_a_batch_that_is_larger_than_the_first_ones(numbers, small_head):
    class Grows:
        def __iter__(self):
            return itertools.chain(itertools.repeat([1, 2], 100), itertools.repeat([1, 2, 3]))

    with pytest.raises(ValueError, match="a batch of 3 samples.*batch_size=3"):
        ids(itertools.islice(leat.Loader(numbers, batch_sampler=Grows()), 200))
    assert ids(itertools.islice(leat.Loader(numbers, 3, batch_sampler=Grows()), 200))[-1] == [1, 2, 3]


def test_bad_samples_of_an_endless_one(folder, small_head):
    """A stand-in is the same one on any number of ranks."""
    def picky(sample, rng):
        if sample["data"] == b"second":
            raise ValueError("bad")
        return {"n": len(sample["data"])}

    class Mostly(Endless):
        def __iter__(self):
            return (k % 3 if k % 5 else 0 for k in itertools.count())

    got = {}
    for world in (1, 2):
        parts = []
        for rank in range(world):
            loader = leat.Loader(folder, 4 // world, sampler=Mostly(), transform=picky, on_error="skip", max_errors=1000, rank=rank, world_size=world)
            parts.append(ids(itertools.islice(loader, 60)))
            loader.close()
        got[world] = [sum(step, []) for step in zip(*parts)]
    assert got[1] == got[2] and 1 not in sum(got[1], [])
    with pytest.raises(leat.BadSample, match="max_errors=10"):
        ids(itertools.islice(leat.Loader(folder, 4, sampler=Mostly(), transform=picky, on_error="skip"), 200))


# --- errors of samplers -------------------------------------------------------------------------------------------------------------


def breaks(count, error=RuntimeError("broken")):
    for k in range(count):
        yield k % N
    if error is not None:
        raise error
    yield N  # no number of a sample


class Breaks:
    def __init__(self, count, error=RuntimeError("broken"), size=0):
        self.count, self.error, self.size = count, error, size

    def __iter__(self):
        numbers = breaks(self.count * max(1, self.size), self.error)
        return numbers if not self.size else iter(lambda: list(itertools.islice(numbers, self.size)), [])


@WAYS
@pytest.mark.parametrize("count", [64, 65, 128, 200, 300])
@pytest.mark.parametrize("error,match", [(RuntimeError("broken"), "broken"), (None, "12, but numbers of samples are 0 to 11")])
def test_a_sampler_that_breaks_is_no_end(numbers, more, count, error, match, small_head):
    for given in ({"sampler": Breaks(count, error)}, {"batch_sampler": Breaks(count, error, 4)}):
        loader = leat.Loader(numbers, 4, **given, **more)
        found = []
        with pytest.raises((RuntimeError, IndexError), match=match):
            for batch in loader:
                found += batch.ids.tolist()
        assert found == [k % N for k in range(len(found))]
        loader.close()


def test_a_batch_that_is_too_large_in_the_last_ones(numbers, small_head):
    class Grows:
        def __iter__(self):
            return itertools.chain(itertools.repeat([1, 2], 100), [[1, 2, 3]])

    for more in ({}, {"transform": keep}):
        with pytest.raises(ValueError, match="a batch of 3 samples"):
            ids(leat.Loader(numbers, batch_sampler=Grows(), **more))


def test_the_batch_before_an_error_is_received(numbers, small_head):
    """The error comes when it is looked whether there is a next one, and is the next one's."""
    loader = leat.Loader(numbers, 4, sampler=Breaks(65))
    steps = iter(loader)
    got = 0
    with pytest.raises(RuntimeError, match="broken"):
        for _ in steps:
            got += 4
            assert loader.state_dict()["samples"] == got
    assert loader.state_dict()["samples"] == got
    for _ in range(2):
        with pytest.raises(leat.Error, match="the sampler failed: RuntimeError: broken; call iter"):
            next(steps)


def once(kind, error):
    """A sampler whose first pass raises an error behind 70 numbers, and whose others end there."""
    def numbers():
        yield from (k % N for k in range(70))
        if errors:
            raise errors.pop()("stop")

    class Once:
        def __iter__(self):
            drawn = numbers()
            return drawn if kind == "sampler" else iter(lambda: list(itertools.islice(drawn, 4)), [])

    errors = [error]
    return {kind: Once()}


KINDS = pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])


@WAYS
@KINDS
@pytest.mark.parametrize("shown", [True, False])
def test_an_error_of_a_sampler_keeps_no_pass(numbers, more, kind, shown, small_head):
    """Neither one that is shown, nor one that work ahead has met."""
    loader = leat.Loader(numbers, 4, **once(kind, RuntimeError), **more)
    gc.collect()
    gc.disable()
    try:
        steps, depths = iter(loader), []
        gone = weakref.ref(steps)
        for _ in range(20 if shown else 16):
            try:
                next(steps)
            except StopIteration:  # what prepares has ended its pass
                assert more
            except Exception as error:
                depths.append(len(list(traceback.walk_tb(error.__traceback__))))
        assert bool(depths) == shown and len(set(depths[1:])) <= 1
        del steps
        assert gone() is None
    finally:
        gc.enable()
        loader.close()


def test_an_error_that_is_raised_many_times_has_one_note(numbers):
    error = ValueError("the same object")

    def fails(sample, rng):
        if sample["x"] in (1, 6, 11):
            raise error
        return sample

    with leat.Loader(numbers, 1, shuffle=False, transform=fails, on_error="skip", num_workers=1) as loader:
        for _ in loader:
            pass
    assert len(error.__notes__) == 1


@KINDS
def test_an_interrupt_while_a_sampler_draws(numbers, kind, small_head):
    """It comes at once, and once. Numbers that were drawn are lost: the pass cannot continue."""
    loader = leat.Loader(numbers, 4, **once(kind, KeyboardInterrupt))
    steps, got = iter(loader), 0
    with pytest.raises(KeyboardInterrupt):
        for _ in steps:
            got += 4
            assert got <= 60
    for _ in range(2):
        with pytest.raises(leat.Error, match="drawing was interrupted; call iter"):
            next(steps)
    assert len(sum(ids(loader), [])) == (68 if kind == "sampler" else 70)


# --- samples that come again --------------------------------------------------------------------------------------------------------


def noise(sample, rng):
    x = int(np.asarray(sample["x"]).reshape(-1)[0])
    if x == 5:
        raise ValueError("bad")
    return {"x": x, "rng": rng.random(), "shared": random.random()}


FORK_AND_THREAD = pytest.mark.parametrize("workers", ["thread", "fork"])


class Drawn:
    def __init__(self, given):
        self.given = given

    def __iter__(self):
        return iter(self.given)


GIVEN = [3] * 8 + [7, 3, 7, 3] + [3] * 4


@FORK_AND_THREAD
@pytest.mark.parametrize("name,given", [("sampler", GIVEN), ("batch_sampler", [GIVEN[:6], GIVEN[6:8], GIVEN[8:]]), ("sampler", "weighted"), ("sampler", "endless")])
def test_a_sample_that_comes_again_is_another(numbers, workers, name, given, small_head):
    """By its place in the epoch alone: not by ranks, workers, the size of batches or restarts."""
    given = {"weighted": leat.WeightedSampler([0, 0, 0, 1] + [0] * 8, 16), "endless": Drawn(itertools.repeat(3))}[given] if isinstance(given, str) else given

    def draw(world, batch_size, num_workers, stop=None, state=None):
        rows = {}
        most = 3 if name == "batch_sampler" else 16 // batch_size // world
        for rank in range(world):
            with leat.Loader(numbers, batch_size, **{name: given}, transform=noise, workers=workers, num_workers=num_workers, rank=rank, world_size=world, seed=9,
                             drop_last=False) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for batch in itertools.islice(loader, stop or most):
                    assert batch.ids.tolist() == batch["x"].tolist() and batch.sample_keys == [str(i) for i in batch["x"]]
                    for i in np.flatnonzero(batch.valid).tolist():
                        rows[batch.position + i] = (batch["x"][i], batch["rng"][i], batch["shared"][i])
                after = loader.state_dict()
        return rows, after

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want, _ = draw(1, 4, 1)
        assert len(want) == 16 and len({row[1] for row in want.values()}) == len({row[2] for row in want.values()}) == 16
        assert draw(2, 2, 2)[0] == want and draw(1, 8, 1)[0] == want
        first, state = draw(1, 2, 1, stop=1)
        rest, _ = draw(2, 1, 1, stop=7 if name == "sampler" else 2, state=state)
        assert {**first, **rest} == want


@FORK_AND_THREAD
def test_a_sample_that_comes_once_is_as_ever(numbers, workers):
    for more in ({}, {"shuffle": False}):
        with leat.Loader(numbers, 4, transform=noise, workers=workers, on_error="skip", seed=2, **more) as loader:
            for epoch in range(2):
                for batch in loader:
                    for x, drawn in zip(batch["x"].tolist(), batch["rng"].tolist()):
                        assert drawn == _workers.make_rng(2, epoch, x).random()


@FORK_AND_THREAD
def test_the_stand_in_of_a_sample_that_comes_again(numbers, workers):
    given = [3, 5, 3, 5, 3, 3, 3, 5]
    found = []
    for size in (2, 8):
        with leat.Loader(numbers, size, sampler=given, transform=noise, workers=workers, on_error="skip") as loader:
            rows = [row for batch in loader for row in zip(batch.ids.tolist(), batch["rng"].tolist())]
        assert [row[0] for row in rows] == [3] * 8 and len({row[1] for row in rows}) == 8
        found.append(rows)
    assert found[0] == found[1]
    with leat.Loader(numbers, 2, sampler=[1, 1, 1, 1, 1, 5], transform=noise, workers=workers) as loader, pytest.raises(leat.BadSample, match="sample 5 ") as caught:
        list(loader)
    assert caught.value.index == 5


@FORK_AND_THREAD
def test_a_window_that_comes_again(tmp_path, workers):
    (tmp_path / "d").mkdir()
    np.save(tmp_path / "d" / "x.npy", np.arange(40))
    with leat.open(tmp_path / "d", window=4, rows="npy") as ws:
        with leat.Loader(ws, 2, sampler=[3] * 8, transform=lambda sample, rng: {"n": sample["npy"][0] if "npy" in sample else 12, "rng": rng.random()},
                         workers=workers) as loader:
            rows = [row for batch in loader for row in zip(batch.ids.tolist(), batch["n"].tolist(), batch["rng"].tolist())]
    assert {row[:2] for row in rows} == {(3, 12)} and len(set(rows)) == 8


# --- ranges that are left out -------------------------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("skip", [(0, 70), (60, 70), (10, 200), (0, 290)])
def test_ranges_over_the_first_numbers(numbers, more, skip, small_head):
    want = [k * 5 % N for k in range(1000) if not skip[0] <= k < skip[1]]
    given = Drawn([k * 5 % N for k in range(1000)])
    loader = leat.Loader(numbers, 7, sampler=given, skip_ranges=[skip], drop_last=False, **more)
    got = sum(ids(loader), [])
    assert got == (want + want)[: len(got)] and len(got) == -(-len(want) // 7) * 7
    loader.close()


def test_a_stand_in_beside_ranges(numbers, small_head):
    given = Drawn([5 if k % 8 == 0 else 3 for k in range(1000)])
    for skip in ((1, 70), (60, 70), (0, 280)):
        loader = leat.Loader(numbers, 4, sampler=given, skip_ranges=[skip], on_error="skip", max_errors=1000, transform=noise)
        assert set(sum(ids(loader), [])) == {3}
        loader.close()


def test_the_epoch_of_draws_is_that_of_iter(monkeypatch):
    monkeypatch.setattr("leat._loader.weighted._CHUNK", 4)
    sampler = leat.WeightedSampler([1, 2, 3], 40, seed=1)
    want, numbers = list(sampler), iter(sampler)
    sampler.set_epoch(1)
    assert list(numbers) == want != list(sampler)
