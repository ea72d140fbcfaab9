# SPDX-License-Identifier: Apache-2.0
"""How passes of a `leat.Loader` begin, end and follow each other: what a loop may do besides `for batch in loader` to the end."""

import itertools
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import leat

N = 12


def keep(sample, rng):
    return sample


WAYS = pytest.mark.parametrize("more", [{}, {"transform": keep}, {"transform": keep, "workers": "fork"}], ids=["plain", "thread", "fork"])


@pytest.fixture
def numbers(tmp_path):
    np.save(tmp_path / "x.npy", np.repeat(np.arange(N), 3).reshape(N, 3))
    with leat.open({"x": tmp_path / "x.npy"}) as ws:
        yield ws


def ids(batches):
    return [batch.ids.tolist() for batch in batches]


def order(ws, epoch):
    return leat.order(ws, seed=0, epoch=epoch).tolist()


class Counted:
    """A sampler with a state: each pass has another order."""

    def __init__(self, n=4):
        self.n, self.passes = n, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        self.passes += 1
        return iter([i * self.passes % N for i in range(self.n)])

    def state_dict(self):
        return {"passes": self.passes}

    def load_state_dict(self, state):
        self.passes = state["passes"]


@WAYS
def test_an_epoch_is_over_with_its_last_batch(numbers, more):
    """A loop that counts its steps never asks for the batch after the last."""
    loader = leat.Loader(numbers, 4, **more)
    for epoch in range(3):
        assert sum(ids(itertools.islice(loader, len(loader))), []) == order(numbers, epoch)
        state = loader.state_dict()
        assert (state["epoch"], state["samples"]) == (epoch + 1, 0)
    loader.set_epoch(loader.epoch)  # the same once more
    assert sum(ids(loader), []) == order(numbers, 2)
    assert loader.epoch == 3


@WAYS
def test_set_epoch_in_the_middle(numbers, more):
    loader = leat.Loader(numbers, 4, **more)
    found = []
    for i, batch in enumerate(loader):
        found += batch.ids.tolist()
        if i == 0:
            loader.set_epoch(7)
        state = loader.state_dict()
        assert (state["epoch"], state["samples"]) == (7, 0)
    assert found == order(numbers, 0)
    assert loader.epoch == 7 and sum(ids(loader), []) == order(numbers, 7) and loader.epoch == 8


@WAYS
def test_epochs_that_end_early(numbers, more):
    """As of a loop over islice, or Lightning's limit_train_batches: the next epoch, and never the same batches again."""
    loader = leat.Loader(numbers, 4, **more)
    for epoch in range(3):
        assert sum(ids(itertools.islice(loader, 2)), []) == order(numbers, epoch)[:8]
        assert loader.epoch == epoch
        state = loader.state_dict()
        assert (state["epoch"], state["samples"]) == (epoch, 8)
        again = leat.Loader(numbers, 2, **more)
        again.load_state_dict(state)
        assert sum(ids(itertools.islice(again, 1)), []) == order(numbers, epoch)[8:10]
        assert sum(ids(itertools.islice(again, 1)), []) == order(numbers, epoch + 1)[:2]
        again.close()
    assert sum(ids(loader), []) == order(numbers, 3)


@WAYS
def test_an_epoch_that_has_not_begun(numbers, more):
    """What nothing was received of is not over, wherever it begins."""
    loader = leat.Loader(numbers, 4, **more)
    iter(loader), iter(loader)
    assert sum(ids(loader), []) == order(numbers, 0)
    state = {**loader.state_dict(), "epoch": 2, "samples": 4}
    loader.load_state_dict(state)
    iter(loader)
    loader.set_epoch(2)
    iter(loader)
    assert sum(ids(loader), []) == order(numbers, 2)[4:]
    assert loader.epoch == 3


@WAYS
def test_an_epoch_that_was_left_and_set_again(numbers, more):
    loader = leat.Loader(numbers, 4, **more)
    for epoch in (0, 0, 5, 5, 0):
        loader.set_epoch(epoch)
        assert sum(ids(itertools.islice(loader, 2)), []) == order(numbers, epoch)[:8]


@WAYS
@pytest.mark.parametrize("leave", [2, 99])
@pytest.mark.parametrize("when", [0, 1, 2])
def test_the_same_epoch_is_set_in_the_middle(numbers, more, leave, when):
    """It wins, wherever the pass that is under way comes to. States count that pass."""
    loader = leat.Loader(numbers, 4, **more)
    for epoch, others in ((3, ()), (3, (5,))):
        loader.set_epoch(epoch)
        for i, batch in enumerate(itertools.islice(loader, leave)):
            assert batch.ids.tolist() == order(numbers, epoch)[4 * i : 4 * i + 4]
            if i == min(when, leave - 1):
                for other in (*others, epoch):
                    loader.set_epoch(other)
            elif i == 1:
                assert loader.state_dict()["samples"] == 8
        assert loader.epoch == epoch and sum(ids(loader), []) == order(numbers, epoch)
        assert loader.epoch == epoch + 1 and sum(ids(itertools.islice(loader, 1)), []) == order(numbers, epoch + 1)[:4]


@WAYS
@pytest.mark.parametrize("given", [{}, {"sampler": Counted(N)}])
def test_a_state_says_what_was_set_in_the_middle(numbers, more, given):
    """Behind the last batch, and behind the end: what iter() would begin."""
    loader = leat.Loader(numbers, 4, **given, **more)
    states, first = [], None
    for i, batch in enumerate(loader):
        first = first or batch.ids.tolist()
        if i == 1:
            loader.set_epoch(0)
        if i == 2:
            states.append(loader.state_dict())
    for state in (*states, loader.state_dict()):
        assert (state["epoch"], state["samples"]) == (0, 0)
        again = leat.Loader(numbers, 4, **({"sampler": Counted(N)} if given else {}), **more)
        again.load_state_dict(state)
        assert next(iter(again)).ids.tolist() == first
        again.close()
    assert next(iter(loader)).ids.tolist() == first
    loader.close()


def test_the_same_epoch_of_a_sampler_is_set_in_the_middle(numbers):
    sampler = leat.Sampler(numbers, 4)
    for i, _ in enumerate(sampler):
        if i == 5:
            sampler.set_epoch(0)
    assert (sampler.state_dict()["epoch"], sampler.state_dict(batches=3)["samples"]) == (0, 0)
    assert list(sampler) == order(numbers, 0) and list(sampler) == order(numbers, 1)


def test_the_loaders_sampler(numbers):
    """As Lightning and Accelerate name the epoch: the first one after iter()."""
    given = Counted()
    loader = leat.Loader(numbers, 2, sampler=given)
    steps = iter(loader)
    assert loader.batch_sampler is None  # Lightning looks there, too
    loader.sampler.set_epoch(0)
    assert ids(steps) == [[0, 1], [2, 3]]
    loader = leat.Loader(numbers, 4)
    for epoch in (4, 5, 7):
        loader.sampler.set_epoch(epoch)
        assert sum(ids(itertools.islice(loader, 2)), []) == order(numbers, epoch)[:8]


def test_a_sampler_that_was_left(numbers):
    """leat.Sampler, as DataLoader draws from it, does the same."""
    sampler = leat.Sampler(numbers, 4)
    for epoch in range(3):
        assert list(itertools.islice(sampler, 5)) == order(numbers, epoch)[:5]
    for _ in range(2):
        sampler.set_epoch(1)
        assert list(itertools.islice(sampler, 5)) == order(numbers, 1)[:5]
    state = sampler.state_dict(batches=1)
    again = leat.Sampler(numbers, 4)
    again.load_state_dict(state)
    assert list(itertools.islice(again, 3)) == order(numbers, 1)[4:7]
    assert list(again) == order(numbers, 2)


def test_set_epoch_in_the_middle_and_what_is_drawn(numbers):
    def draw(sample, rng):
        return {"x": int(sample["x"][0]), "noise": rng.random()}

    def drawn(change):
        found = []
        loader = leat.Loader(numbers, 2, transform=draw)
        for i, batch in enumerate(loader):
            found += batch["noise"].tolist()
            if change and i == 0:
                loader.set_epoch(5)
        return found

    assert drawn(False) == drawn(True)


@WAYS
def test_one_pass_at_a_time(numbers, more):
    loader = leat.Loader(numbers, 4, resume_epoch=True, **more)
    with pytest.raises(ValueError, match="another iter"):
        list(zip(loader, loader))
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert len(ids(second)) == 3
    with pytest.raises(ValueError, match="another iter"):
        next(first)
    assert next(second, None) is None and len(ids(loader)) == 3
    assert next(second, None) is None  # it had come to its end
    for batch in loader:
        loader.close()  # asked for
    assert batch.ids.tolist() == order(numbers, 2)[:4]


def test_a_state_is_loaded_in_the_middle(numbers):
    loader = leat.Loader(numbers, 4)
    state = loader.state_dict()
    steps = iter(loader)
    next(steps)
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="load_state_dict"):
        next(steps)


@WAYS
def test_threads_take_turns(numbers, more):
    steps = iter(leat.Loader(numbers, 1, **more))
    found, failed = [], []

    def take():
        try:
            for batch in steps:
                found.extend(batch.ids.tolist())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == list(range(N)) and not failed


def test_a_set_that_is_smaller_than_a_step(numbers, caplog):
    with caplog.at_level(logging.WARNING, "leat"):
        assert ids(leat.Loader(numbers, 8, rank=0, world_size=2)) == []
    assert "not one step of 16; drop_last=False" in caplog.text
    for rank in range(3):
        (batch,) = leat.Loader(numbers, 20, rank=rank, world_size=3, drop_last=False)
        assert batch.ids.tolist() == [order(numbers, 0)[(20 * rank + i) % N] for i in range(20)]
        assert batch.valid.tolist() == [20 * rank + i < N for i in range(20)]


# --- samplers -----------------------------------------------------------------------------------------------------------------


def test_sampler_and_skip_ranges(numbers):
    loader = leat.Loader(numbers, 2, sampler=[5, 4, 3, 2, 1, 0], skip_ranges=[(0, 2)])
    assert len(loader) == 2 and ids(loader) == [[3, 2], [1, 0]]
    with pytest.raises(ValueError, match="skip_ranges with a batch_sampler"):
        leat.Loader(numbers, 2, batch_sampler=[[1]], skip_ranges=[(0, 1)])


def test_a_sampler_that_does_not_know_its_length(numbers):
    class Endless:
        def __iter__(self):
            return iter(range(1, 6))

    loader = leat.Loader(numbers, 2, sampler=Endless())
    assert ids(loader) == [[1, 2], [3, 4]]
    with pytest.raises(TypeError):
        len(loader)


@WAYS
def test_batches_of_any_length(numbers, more):
    batches = [[1, 2, 3], [4, 5], [6]]
    loader = leat.Loader(numbers, batch_sampler=batches, **more)
    assert len(loader) == 3 and ids(loader) == batches
    assert loader.stats()["samples"] == 6
    batches[1] = [7, 8, 9, 10, 11]
    with leat.Loader(numbers, batch_sampler=batches, **more) as loader:
        assert [batch["x"][:, 0].tolist() for batch in loader] == batches
        batches[2] = list(range(12))
        assert [batch["x"][:, 0].tolist() for batch in loader] == batches


@pytest.mark.parametrize("wrong,error", [([1, 99], IndexError), ([-1], IndexError), ([1.5], TypeError), (["a"], TypeError)])
@pytest.mark.parametrize("what", ["sampler", "batch_sampler"])
def test_numbers_that_are_none(numbers, what, wrong, error):
    with pytest.raises(error):
        list(leat.Loader(numbers, 1, **{what: wrong if what == "sampler" else [wrong]}))


def test_the_state_of_a_sampler(numbers):
    first = [[0, 1], [2, 3]]
    second = [[0, 2], [4, 6]]

    def loader(state=None):
        made = leat.Loader(numbers, 2, sampler=Counted(), resume_epoch=True)
        if state is not None:
            made.load_state_dict(state)
        return made

    one = loader()
    assert one.state_dict()["sampler"]["state"] == {"passes": 0}
    steps = iter(one)
    next(steps)
    middle = one.state_dict()
    assert loader(middle).state_dict() == {**middle, "runs": loader(middle).state_dict()["runs"]}  # loaded and taken again
    assert ids(loader(middle)) == first[1:]
    next(steps)
    assert ids(loader(one.state_dict())) == second  # behind the last batch
    assert next(steps, None) is None
    assert ids(loader(one.state_dict())) == second  # and behind the end
    assert ids(itertools.islice(one, 1)) == second[:1]
    assert ids(one) == second  # begun again
    assert ids(loader(one.state_dict())) == [[0, 3], [6, 9]]


@WAYS
def test_a_state_between_the_ends_of_batches(numbers, more):
    """Of batches that were cut otherwise: no rank would get some of its samples."""
    def loader(size):
        return leat.Loader(numbers, batch_sampler=[list(range(i, i + size)) for i in range(0, 12, size)], **more)

    taken = loader(2)
    steps = iter(taken)
    for _ in range(3):
        next(steps)
    state = taken.state_dict()
    again = loader(4)
    again.load_state_dict(state)
    for _ in range(2):  # a refusal does not make it begin again
        with pytest.raises(ValueError, match="behind 6 samples, where no batch of the batch_sampler ends"):
            iter(again)
    for size, left in ((1, [[i] for i in range(6, 12)]), (3, [[6, 7, 8], [9, 10, 11]]), (6, [list(range(6, 12))])):
        again = loader(size)
        again.load_state_dict(state)
        assert [batch.ids.tolist() for batch in again] == left
    again.load_state_dict({**state, "samples": 13})
    with pytest.raises(ValueError, match="behind 13 samples"):
        iter(again)


def test_a_state_past_the_end(numbers):
    loader = leat.Loader(numbers, 2)
    with pytest.raises(ValueError, match="samples=13 of 12"):
        loader.load_state_dict({**loader.state_dict(), "samples": 13})


@pytest.mark.parametrize("wrong", [{"batch_size": 2.0}, {"batch_size": "2"}, {"seed": None}, {"prefetch": 1.5}, {"num_workers": "1"}])
def test_numbers_are_whole(numbers, wrong):
    with pytest.raises(TypeError):
        leat.Loader(numbers, **wrong)


# --- what errors say ----------------------------------------------------------------------------------------------------------


def test_what_is_wrong_is_said(numbers, tmp_path):
    for wrong, error, words in (
            ({"fields": {"a": None}}, ValueError, "'a' is None: the name of a field, or"),
            ({"fields": {"a": ("x",)}}, ValueError, r"'a' is \('x',\)"),
            ({"fields": ["x", "x"]}, ValueError, "each once"), ({"fields": []}, ValueError, "name some"),
            ({"skip_ranges": [(5, 2)]}, ValueError, r"\[5, 2\) is no range of positions$")):
        with pytest.raises(error, match=words):
            leat.Loader(numbers, 2, **wrong)
    for parts in ([numbers], [(numbers,)], [(numbers, 1, {}, 2)]):
        with pytest.raises(TypeError, match=r"part 0 of the mixture is .*\(set, weight\)"):
            leat.Mixture(parts)


def test_an_empty_file_is_named_by_its_key_alone(tmp_path):
    """It has no bytes, and so no place: that of the next file is not its own."""
    for name, data in {"a.txt": b"1", "b.txt": b"", "c.txt": b"3"}.items():
        (tmp_path / name).write_bytes(data)
    told = []
    with leat.open(tmp_path) as ws:
        loader = leat.Loader(ws, 1, shuffle=False, fields={"x": ("data", "cls")}, on_error=told.append)
        assert [batch["x"][0] for batch in loader][::2] == [1, 3]
    (error,) = told
    assert error.key == "b.txt" and "c.txt" not in str(error) and "(b.txt): ValueError" in str(error)


def test_bytes_that_are_no_picture(tmp_path):
    pytest.importorskip("PIL")
    (tmp_path / "a.jpg").write_bytes(b"text")
    with leat.open(tmp_path) as ws, pytest.raises(leat.BadSample, match="4 bytes that are no picture"):
        list(leat.Loader(ws, 1, fields={"x": "jpg"}))


def test_workers_that_cannot_start(numbers, tmp_path):
    with pytest.raises(TypeError, match="cannot be given the transform.*top of a module, or take workers='fork'"):
        list(leat.Loader(numbers, 2, transform=lambda sample, rng: sample, workers="spawn"))
    (tmp_path / "main.py").write_text(f"""
import leat
def keep(sample, rng):
    return sample
list(leat.Loader({{"x": {str(tmp_path / "x.npy")!r}}}, 2, transform=keep, workers="spawn"))
""")
    done = subprocess.run([sys.executable, tmp_path / "main.py"], capture_output=True, text=True, timeout=60)
    assert "WorkerDied: worker 0" in done.stderr and "belongs under `if __name__" in done.stderr


# --- time ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["thread", "fork"])
@pytest.mark.parametrize("which", ["first", "substitute"])
def test_a_hang_in_what_is_prepared_apart(numbers, how, which):
    """The sample that shows what samples look like, and those that stand in for bad ones, are prepared for the loop itself."""
    go = threading.Event()
    at = order(numbers, 0)

    def hang(sample, rng):
        x = int(sample["x"][0])
        if which == "substitute" and x == at[5]:
            raise ValueError
        if x == at[0] if which == "first" else x not in at[:6]:
            go.wait(60)
        return sample

    with leat.Loader(numbers, 3, transform=hang, workers=how, timeout=2, on_error="skip") as loader:
        with pytest.raises(leat.TimedOut, match="being prepared"):
            list(ids(loader))
    go.set()


@pytest.mark.parametrize("which", ["first", "substitute"])
def test_a_death_in_what_is_prepared_apart(numbers, which):
    """With processes it is one of them that dies, not the rank."""
    at = order(numbers, 0)

    def die(sample, rng):
        x = int(sample["x"][0])
        if which == "substitute" and x == at[5]:
            raise ValueError
        if x == at[0] if which == "first" else x not in at[:6]:
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    with leat.Loader(numbers, 3, transform=die, workers="fork", on_error="skip", prefetch=1) as loader:
        with pytest.raises(leat.WorkerDied, match="killed by SIGKILL, at sample"):
            ids(loader)


def test_a_transform_does_nothing_to_the_process_that_forks(numbers):
    seen = []

    def note(sample, rng):
        seen.append(os.getpid())
        return {**sample, "pid": os.getpid()}

    with leat.Loader(numbers, 4, transform=note, workers="fork") as loader:
        assert all((batch["pid"] != os.getpid()).all() for batch in loader)
    assert not seen


def test_no_other_sample_would_fare_better(numbers, monkeypatch):
    """What is not of the first sample is not told as its fault."""
    def gone(source, size, *rest):
        raise leat.PeerGone("the daemon is gone")

    monkeypatch.setattr(leat._loader.source.SetSource, "reader", gone)  # inherited by a child of fork
    for on_error in ("raise", "skip"):
        for how in ("thread", "fork"):
            with pytest.raises(leat.PeerGone):
                list(leat.Loader(numbers, 2, transform=keep, on_error=on_error, workers=how))


def test_how_long_a_batch_may_take(numbers):
    for timeout, want in ((None, 30.0), (2, 2), (math.inf, None), (1e300, None)):
        assert leat.Loader(numbers, 2, transform=keep, timeout=timeout)._config.timeout == want
    for more in ({"workers": "thread"}, {"workers": "fork"}):
        assert len(ids(leat.Loader(numbers, 2, transform=keep, timeout=math.inf, **more))) == N // 2


def test_workers_take_time_to_start(numbers, monkeypatch):
    """What they import is not the transform's time."""
    def late(*args, **more):
        time.sleep(3)
        return reader(*args, **more)

    reader = leat._loader.source.SetSource.reader
    loader = leat.Loader(numbers, 2, transform=keep, workers="fork", timeout=2)
    loader._config.work.learn({"x": np.zeros(3, np.int64)})
    monkeypatch.setattr(leat._loader.source.SetSource, "reader", late)
    assert len(ids(loader)) == N // 2


def test_torch_after_a_fork(numbers):
    """OpenMP's threads do not live in a child, and GNU's waits for them for ever."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.nn.functional.softmax(torch.rand(64, 100_000), 1)

    def heavy(sample, rng):
        return {"x": float(torch.nn.functional.softmax(torch.rand(64, 100_000), 1).sum()), "threads": torch.get_num_threads()}

    with leat.Loader(numbers, 4, transform=heavy, workers="fork", timeout=20) as loader:
        for batch in loader:
            assert batch["threads"].tolist() == [1] * 4
    torch.set_num_threads(before)
