# SPDX-License-Identifier: Apache-2.0
"""What a loader's batch is to the code around it: a Mapping that can be moved, with a mask; and what transforms may put into it."""

import collections
import gc
import itertools
import pickle
import threading
from collections.abc import Mapping

import numpy as np
import pytest

import leat
from leat._loader import workers as _workers

N = 10
WAYS = [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "fork"}, pytest.param({"workers": "spawn"}, marks=pytest.mark.slow)]
Point = collections.namedtuple("Point", "x y")


@pytest.fixture
def numbers(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(2 * N, dtype="<f4").reshape(N, 2))
    np.save(tmp_path / "y.npy", np.arange(N))
    with leat.open({"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"}) as ws:
        yield ws


def keep(sample, rng):
    return sample


BATCHES = pytest.mark.parametrize("more", [{}, {"transform": keep}], ids=["plain", "prepared"])


@BATCHES
def test_a_batch_is_a_mapping(numbers, more):
    loader = leat.Loader(numbers, 4, shuffle=False, **more)
    for batch in itertools.islice(loader, 2):
        assert isinstance(batch, Mapping) and list(batch) == list(batch.keys()) == ["x", "y"] and len(batch) == 4
        assert dict(batch).keys() == {"x", "y"} and dict(batch)["x"] is batch["x"]
        assert (lambda x, y: (x is batch["x"], y is batch["y"]))(**batch) == (True, True)
        assert [name for name, _ in batch.items()] == ["x", "y"] and [value is batch[name] for name, value in batch.items()] == [True, True]
        x, y = batch.values()
        assert x is batch["x"] and y is batch["y"] and batch.get("x") is x and batch.get("z", 5) == 5 and "z" not in batch
        assert batch.sample_keys[0] == str(batch.ids[0]) and batch in [batch] and hash(batch) is not None
        del x, y
    with numbers.read_batch([1, 2]) as raw:
        assert isinstance(raw, Mapping) and dict(raw)["y"].tolist() == [1, 2]


@BATCHES
def test_valid_is_yours(numbers, more):
    loader = leat.Loader(numbers, 4, shuffle=False, drop_last=False, **more)
    for k, batch in enumerate(loader):
        assert batch.valid.tolist() == [4 * k + i < N for i in range(4)]
        batch.valid[0] = False
        assert not batch.valid[0]
        batch.valid = [False, True, True, False]
        with pytest.raises(ValueError, match="one of True and False for each of 4 samples"):
            batch.valid = [True]
    assert next(iter(loader)).valid.all()


@BATCHES
def test_trim(numbers, more):
    loader = leat.Loader(numbers, 4, shuffle=False, drop_last=False, **more)
    whole, _, last = loader
    assert whole.trim() is whole and len(whole) == 4
    kept = last["x"]
    assert last.trim() is last and len(last) == 2 and last.ids.tolist() == [8, 9] and last.valid.tolist() == [True, True]
    assert last["x"].tolist() == [[16, 17], [18, 19]] and np.shares_memory(last["x"], kept) and last["y"].tolist() == [8, 9]
    whole["x"]
    whole.valid[:] = [True, False, True, True]
    assert whole.trim()["x"].tolist() == [[0, 1], [4, 5], [6, 7]] and whole.sample_keys == ["0", "2", "3"]
    whole.valid = [False, True, False]
    assert whole.trim()["y"].tolist() == [2] and len(whole) == 1
    whole.release()
    with pytest.raises(ValueError, match="released"):
        whole["x"]


def test_trim_of_values_of_any_length(folder):
    for more in ({}, {"transform": lambda sample, rng: {"data": sample["data"], "text": "a", "more": (np.zeros(2), 1)}}):
        (batch,) = leat.Loader(folder, 5, shuffle=False, drop_last=False, **more)
        batch.valid[1] = False
        batch.trim()
        assert len(batch) == len(batch["data"]) == 2 and [bytes(value) for value in batch["data"]] == [b"first picture", b"third picture"]
        if more:
            assert batch["text"] == ["a", "a"] and batch["more"][0].shape == (2, 2) and batch["more"][1].tolist() == [1, 1]
        else:
            assert batch.present("data").tolist() == [True, True]


def test_mixtures_are_trimmed(numbers):
    mixture = leat.Mixture([(numbers, 1), (numbers, 1)], length=6)
    *_, last = leat.Loader(mixture, 4, drop_last=False)
    last.trim()
    assert len(last) == len(last.source) == 2 == len(last.sample_keys)


@pytest.mark.parametrize("more", WAYS)
def test_collate_gets_no_padding(numbers, more):
    def count(samples):
        return [int(sample["y"]) for sample in samples]

    for world in (1, 2, 3):
        got = []
        for rank in range(world):
            with leat.Loader(numbers, 3, shuffle=False, drop_last=False, collate_fn=count, rank=rank, world_size=world, **more) as loader:
                got.append(list(loader))
        assert len({len(steps) for steps in got}) == 1
        assert [i for step in zip(*got) for part in step for i in part] == list(range(N))


def test_a_collate_that_takes_no_empty_list(numbers):
    with leat.Loader(numbers, 6, shuffle=False, drop_last=False, collate_fn=lambda samples: samples[0], rank=3, world_size=4) as loader:
        with pytest.raises(ValueError, match="this rank has no sample.*drop_last=True"):
            list(loader)


@pytest.mark.parametrize("more", [{}, {"transform": keep}, {"transform": keep, "workers": "fork"}])
def test_a_rank_without_samples_pads(numbers, more):
    steps = []
    for rank in range(2):
        with leat.Loader(numbers, 4, shuffle=False, drop_last=False, collate_fn=leat.pad_collate, rank=rank, world_size=2, **more) as loader:
            steps.append(list(loader))
    assert [[len(batch["y"]) for batch in rank] for rank in steps] == [[4, 2], [4, 0]]
    last, before = steps[1][1], steps[1][0]
    assert {name: (value.shape[1:], value.dtype) for name, value in last.items()} == {name: (value.shape[1:], value.dtype) for name, value in before.items()}
    assert leat.pad_collate([]) == {}


# --- what transforms return ---------------------------------------------------------------------------------------------------------


def nest(sample, rng):
    return {"x": sample["x"], "boxes": {"at": sample["x"] + 1, "of": (int(sample["y"]), "name")}, "point": Point(sample["x"][0], np.ones(2)),
            "meta": {"k": int(sample["y"])}}


def pair(sample, rng):
    return sample["x"], int(sample["y"])


def half(sample, rng):
    import torch

    return {"h": torch.from_numpy(sample["x"]).to(torch.bfloat16), "in": (torch.tensor(float(sample["y"]), dtype=torch.bfloat16),)}


@pytest.mark.parametrize("more", WAYS)
def test_nested_values(numbers, more):
    with leat.Loader(numbers, 5, shuffle=False, transform=nest, **more) as loader:
        for batch in loader:
            x = 2.0 * batch.ids
            assert batch.fields == ("x", "boxes", "point", "meta")
            assert batch["boxes"]["at"][:, 0].tolist() == (x + 1).tolist() and batch["boxes"]["of"][0].tolist() == batch.ids.tolist()
            assert batch["boxes"]["of"][1] == ["name"] * 5 and type(batch["point"]) is Point and batch["point"].x.tolist() == x.tolist()
            assert batch["point"].y.shape == (5, 2) and batch["meta"] == [{"k": i} for i in batch.ids.tolist()]
    with leat.Loader(numbers, 5, shuffle=False, transform=nest, collate_fn=list, **more) as loader:
        sample = next(iter(loader))[3]
    assert sample["boxes"]["at"].tolist() == [7, 8] and sample["boxes"]["of"] == (3, "name") and sample["point"].x == 6 and sample["meta"] == {"k": 3}


def test_nested_values_are_written(numbers):
    def parts(sample, rng):
        return {"x": sample["x"], "target": {"a": sample["x"], "b": (int(sample["y"]), np.ones(2))}, "meta": {"k": 1}, "mixed": (np.ones(1), "t")}

    batch = next(iter(leat.Loader(numbers, 5, shuffle=False, transform=parts)))
    a, b = batch["target"]["a"], batch["target"]["b"][0]
    batch["target"] = {"b": (np.arange(5), 3), "a": batch["target"]["a"] * 0 + 7}
    assert a.tolist() == [[7, 7]] * 5 and b.tolist() == [0, 1, 2, 3, 4] and (batch["target"]["b"][1] == 3).all()
    assert batch["target"].keys() == {"a", "b"} and batch["target"]["a"] is a
    batch["x"] *= 2
    assert batch["x"][1].tolist() == [4, 6]
    for name, value, words in [("target", 0, "int where those before had a dict of a, b: give a value for each part"), ("target", {"a": 1}, "a dict of a where"),
                               ("meta", [], "'meta' is a list and no array"), ("mixed", (2, []), "'mixed.1' is a list and no array")]:
        with pytest.raises(TypeError, match=words):
            batch[name] = value
    assert (a == 7).all() and batch["mixed"][0].tolist() == [[1]] * 5


@pytest.mark.parametrize("more", WAYS)
def test_tuples(numbers, more):
    with leat.Loader(numbers, 5, shuffle=False, transform=pair, **more) as loader:
        for batch in loader:
            x, y = batch.values()
            assert batch.fields == ("0", "1") and x.shape == (5, 2) and y.tolist() == batch.ids.tolist()
            del x, y
    with leat.Loader(numbers, 5, shuffle=False, transform=pair, collate_fn=list, **more) as loader:
        assert [(type(one), one[1]) for one in next(iter(loader))] == [(tuple, i) for i in range(5)]


@pytest.mark.parametrize("more", WAYS)
def test_bfloat16(numbers, more):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with leat.Loader(numbers, 5, shuffle=False, transform=half, **more) as loader:
        for batch in loader:
            tensors = batch.torch()
            assert tensors["h"].dtype == tensors["in"][0].dtype == torch.bfloat16 and batch["h"].dtype == np.uint16
            assert tensors["h"][:, 0].tolist() == (2 * batch.ids).tolist() and tensors["in"][0].tolist() == batch.ids.tolist()
            del tensors
    with leat.Loader(numbers, 5, shuffle=False, transform=half, collate_fn=list, **more) as loader:
        sample = next(iter(loader))[2]
    assert sample["h"].dtype == torch.bfloat16 and sample["h"].tolist() == [4, 5] and float(sample["in"][0]) == 2


def named(sample, rng):
    return Point(sample["x"], {"y": int(sample["y"])})


def numbered(sample, rng):
    return {"0": sample["x"], "1": sample["y"]}


def nothing(sample, rng):
    return {}


def half_of_jax(sample, rng):
    import ml_dtypes

    return {"h": sample["x"].astype(ml_dtypes.bfloat16), "in": (ml_dtypes.bfloat16(int(sample["y"])),)}


@pytest.mark.parametrize("more", WAYS)
def test_a_collate_fn_gets_what_the_transform_returned(numbers, more):
    def third(transform):
        with leat.Loader(numbers, 5, shuffle=False, transform=transform, collate_fn=list, **more) as loader:
            return next(iter(loader))[3]

    point, dictionary = third(named), third(numbered)
    assert type(point) is Point and point.x.tolist() == [6, 7] and point.y == {"y": 3}
    assert type(dictionary) is dict and dictionary.keys() == {"0", "1"} and dictionary["1"] == 3
    assert third(nothing) == {}


@pytest.mark.parametrize("how", ["thread", "fork"])
def test_a_tuple_whose_class_does_not_pickle(numbers, how):
    Local = collections.namedtuple("Local", "x y")
    with leat.Loader(numbers, 5, shuffle=False, transform=lambda sample, rng: Local(sample["x"], 1), collate_fn=list, workers=how, num_workers=1) as loader:
        sample = next(iter(loader))[3]
    assert type(sample) is (Local if how == "thread" else tuple) and sample[0].tolist() == [6, 7]


@pytest.mark.parametrize("more", WAYS)
def test_bfloat16_of_jax(numbers, more):
    """Arrays stay arrays, also where there is no torch."""
    dtype = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16
    with leat.Loader(numbers, 5, shuffle=False, transform=half_of_jax, collate_fn=list, **more) as loader:
        sample = next(iter(loader))[2]
    assert type(sample["h"]) is np.ndarray and sample["h"].dtype == sample["in"][0].dtype == dtype
    assert sample["h"].tolist() == [4, 5] and float(sample["in"][0]) == 2


def test_values_that_differ_in_what_they_are_made_of(numbers):
    def odd(sample, rng):
        return {"a": {"b": sample["x"]} if sample["y"] != 3 else {"c": sample["x"]}}

    with pytest.raises(leat.BadSample, match="'a' is a dict of c where those before had a dict of b: make them alike"):
        list(leat.Loader(numbers, 5, shuffle=False, transform=odd))
    with leat.Loader(numbers, 5, shuffle=False, transform=odd, collate_fn=list) as loader:
        assert [list(sample["a"]) for sample in next(iter(loader))] == [["b"], ["b"], ["b"], ["c"], ["b"]]
    with pytest.raises(leat.BadSample, match="several values are called a.b"):
        next(iter(leat.Loader(numbers, 5, transform=lambda sample, rng: {"a": {"b": sample["x"]}, "a.b": 1})))


# --- moved --------------------------------------------------------------------------------------------------------------------------


@BATCHES
def test_moved_to_a_device(numbers, more):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    batch = next(iter(leat.Loader(numbers, 4, shuffle=False, drop_last=False, **more)))
    moved = batch.to("cpu", non_blocking=True)
    assert type(moved) is dict and moved["x"].data_ptr() == batch["x"].ctypes.data and moved["y"].tolist() == [0, 1, 2, 3]
    assert batch.to(torch.device("meta"))["x"].is_meta
    mask = batch.valid_tensor()
    mask[1] = False
    assert mask.dtype == torch.bool and batch.valid.tolist() == [True, False, True, True] and batch.valid_tensor("meta").is_meta


@BATCHES
def test_accelerate_and_lightning(numbers, more):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    operations = pytest.importorskip("accelerate.utils.operations", reason="accelerate is not installed")
    batch = next(iter(leat.Loader(numbers, 4, shuffle=False, **more)))
    assert torch.is_tensor(operations.send_to_device(batch, torch.device("cpu"))["x"])
    lightning = pytest.importorskip("lightning.fabric.utilities.apply_func", reason="lightning is not installed")
    assert torch.is_tensor(lightning.move_data_to_device(batch, torch.device("cpu"))["x"])


# --- errors -------------------------------------------------------------------------------------------------------------------------


class Several(Exception):
    def __init__(self, name, number):
        super().__init__(f"{name} has {number}")
        self.name, self.number, self.lock = name, number, threading.Lock()


def fails(sample, rng):
    raise Several("it", 5)


@pytest.mark.parametrize("more", WAYS)
def test_the_class_of_an_exception(numbers, more):
    with pytest.raises(leat.BadSample) as caught, leat.Loader(numbers, 4, transform=fails, **more) as loader:
        next(iter(loader))
    cause = caught.value.__cause__
    assert type(cause) is Several and str(cause) == "it has 5" and (cause.name, cause.number) == ("it", 5)
    del caught, cause
    gc.collect()


class Attributes(Exception):
    """Says what its attributes are, and not its arguments."""

    def __init__(self, name, number):
        super().__init__(name)
        self.name, self.number = name, number

    def __str__(self):
        return f"{self.name} has {self.number}"


class Keyword(Exception):
    def __new__(cls, *args, number):
        return super().__new__(cls, *args)

    def __init__(self, *args, number):
        super().__init__(f"it has {number}")
        self.number = number


class OfLeat(leat.Error):
    def __init__(self, name, number):
        super().__init__(f"{name} has {number}")
        self.name = name


class Unheard(Exception):
    def __init__(self, name):
        super().__init__(name)
        self.lock = threading.Lock()

    def __str__(self):
        return f"it has {5 if self.lock else 0}"


class Mute(Exception):
    def __str__(self):
        raise ValueError("not even that")


HARD = {
    "attributes": (lambda: Attributes("it", 5), Attributes, Attributes, "it has 5"),
    "keyword": (lambda: Keyword(number=5), Keyword, Exception, "Keyword: it has 5"),
    "leat": (lambda: OfLeat("it", 5), OfLeat, OfLeat, "it has 5"),
    "unheard": (lambda: Unheard("it"), Unheard, Exception, "Unheard: it has 5"),
    "group": (lambda: ExceptionGroup("several", [Unheard("it")]), ExceptionGroup, Exception, "ExceptionGroup: several (1 sub-exception)"),
}


class FailsAt:
    def __init__(self, which, bad):
        self.which, self.bad = which, bad

    def __call__(self, sample, rng):
        if int(sample["y"]) in self.bad:
            raise HARD[self.which][0]()
        return sample


@pytest.mark.parametrize("more", WAYS)
@pytest.mark.parametrize("which", HARD)
def test_exceptions_that_do_not_pickle(numbers, more, which):
    _, here, there, text = HARD[which]
    with pytest.raises(leat.BadSample) as caught, leat.Loader(numbers, 4, shuffle=False, transform=FailsAt(which, {2}), **more) as loader:
        list(loader)
    cause = caught.value.__cause__
    assert type(cause) is (there if "workers" in more else here), cause
    assert str(cause) in text and getattr(cause, "number", 5) == 5
    del caught, cause
    gc.collect()
    with leat.Loader(numbers, 4, shuffle=False, transform=FailsAt(which, {2, 7}), on_error="skip", **more) as loader:
        assert [int(batch["y"][0]) for batch in loader] == [0, 4] and loader.stats()["skipped"] == 2


def test_an_exception_without_words(numbers):
    found = pickle.loads(pickle.dumps(_workers.portable(Mute("it"))))
    assert type(found) is Exception and str(found) == "Mute: its str() failed"

    def fail(sample, rng):
        if int(sample["y"]) == 2:
            raise Mute("it")
        return sample

    with pytest.raises(leat.BadSample, match="sample 2 .*: Mute: its str.. failed") as caught, leat.Loader(numbers, 4, shuffle=False, transform=fail) as loader:
        list(loader)
    assert type(caught.value.__cause__) is Mute
    with leat.Loader(numbers, 4, shuffle=False, transform=fail, on_error="skip") as loader:
        assert len(list(loader)) == len(numbers) // 4 and loader.stats()["skipped"] == 1


def test_a_class_that_the_parent_cannot_make(monkeypatch):
    sent = pickle.dumps(_workers.portable(Attributes("it", 5)))
    monkeypatch.delattr(Attributes, "__str__")
    monkeypatch.setitem(globals(), "Attributes", None)
    found = pickle.loads(sent)
    assert type(found) is RuntimeError and str(found) == "Attributes: it has 5"


def test_a_class_that_only_the_worker_knows():
    class Local(KeyError):
        pass

    found = pickle.loads(pickle.dumps(_workers.portable(Local("x"))))
    assert type(found) is KeyError and "Local: 'x'" in str(found)


def test_errors_keep_what_they_know():
    error = leat.BadSample("bad", code="bad sample")
    error.index, error.key, error.file, error.offset, error.position = 3, "k", "f", 7, 9
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is leat.BadSample and (again.index, again.key, again.file, again.offset, again.position) == (3, "k", "f", 7, 9)
    assert str(again) == "bad" and again.code == "bad sample"


@pytest.mark.parametrize("more", [{}, {"transform": keep}, {"workers": "fork", "transform": keep}])
def test_all_batches_kept(numbers, more):
    with pytest.raises(leat.Busy, match="a larger prefetch= than 2"):
        list(leat.Loader(numbers, 1, **more))
    with pytest.raises(leat.Busy, match="more slots="):
        list(leat.batches(numbers, 1))
    gc.collect()
    assert len(list(leat.Loader(numbers, 1, prefetch=N, **more))) == N


def test_a_text_file_among_pictures(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "p").mkdir()
    image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "p" / "a.jpg")
    for text in (b"read me\n", b"x", b"a line of text\n" * 1000):
        (tmp_path / "p" / "b.txt").write_bytes(text)
        with pytest.raises(leat.BadSample) as caught, leat.open(tmp_path / "p") as ws:
            list(leat.Loader(ws, 1, shuffle=False, transform=leat.prep.CenterCrop(8, resize=8)))
        assert "no picture" in str(caught.value) and "truncated" not in str(caught.value) and "b.txt" in str(caught.value)
        with pytest.raises(leat.Corrupt) as refused:
            leat.prep.decode_jpeg(text)
        assert "truncated" not in str(refused.value)
        del caught, refused
    gc.collect()
