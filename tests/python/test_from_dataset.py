# SPDX-License-Identifier: Apache-2.0
"""leat.from_dataset: what a sample may be, ranks as processes, failures and their errors."""

import collections
import io
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import leat


class Rows:
    """A map-style dataset by hand, with a record of what was asked of it."""

    def __init__(self, rows):
        self.rows, self.asked = rows, []

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        self.asked.append(i)
        if isinstance(self.rows[i], Exception):
            raise self.rows[i]
        return self.rows[i]


class Batched(Rows):
    def __getitems__(self, ids):
        self.asked.append(list(ids))
        return [self.rows[i] for i in ids]


def names():
    return [found["name"] for found in leat.ls()]


def npy(data):
    return np.load(io.BytesIO(data))


def test_kinds_of_values():
    Point = collections.namedtuple("Point", "x y")
    rows = [{"array": np.full((2, 3), i, "f4"), "number": i, "real": i / 2, "yes": i % 2 == 0, "text": "å" * i, "raw": b"x" * (i % 3),
             "list": [i, i + 1], "point": Point(i, np.int16(-i)), "nested": {"pair": (np.uint8(i), b"")}, "any": np.arange(i)}
            for i in range(20)]
    ws = leat.from_dataset(Rows(rows), name="kinds")
    assert len(ws) == 20 and ws.uri == "leat://kinds"
    found = {f.name: (f.kind, f.dtype.str, f.shape) for f in ws.fields if f.kind == "array"}
    assert found == {"array": ("array", "<f4", (2, 3)), "number": ("array", "<i8", ()), "real": ("array", "<f8", ()),
                     "yes": ("array", "|b1", ()), "list": ("array", "<i8", (2,)), "point.x": ("array", "<i8", ()),
                     "point.y": ("array", "<i2", ()), "nested.pair.0": ("array", "|u1", ())}
    for i, row in enumerate(rows):
        sample = ws[i]
        assert (sample["array"] == row["array"]).all() and sample["number"] == i and sample["real"] == i / 2 and sample["yes"] == row["yes"]
        assert sample["text"].decode() == row["text"] and sample["raw"] == row["raw"] and sample["list"].tolist() == row["list"]
        assert (sample["point.x"], sample["point.y"], sample["nested.pair.0"]) == (i, -i, i) and sample["nested.pair.1"] == b""
        assert npy(sample["any"]).tolist() == list(range(i))
    ws.verify()
    for batch in leat.Loader(ws, 4, fields={"any": "npy" if "npy" in [f.name for f in ws.fields] else ("any", "npy"), "text": ("text", "txt")}):
        assert [len(a) for a in batch["any"]] == batch.ids.tolist() and batch["text"][0] == "å" * int(batch.ids[0])


def test_values_alone_and_tuples():
    assert leat.from_dataset([np.arange(3)] * 5, name="alone")[4].tolist() == [0, 1, 2]
    assert leat.from_dataset([b"a", b"bc", b""], name="raw")[1] == b"bc"
    ws = leat.from_dataset([(np.float32(i), i) for i in range(9)], name="pairs", fields=["x", "label"])
    assert ws[8] == {"x": 8.0, "label": 8}
    ws = leat.from_dataset([{"a": 1, "b": 2, "c": None}] * 3, name="some", fields=["b", "a"])
    assert [f.name for f in ws.fields] == ["b", "a"] and ws[2] == {"b": 2, "a": 1}


def test_getitems_is_used_and_each_sample_asked_for_once():
    data = Batched([np.full(1000, i) for i in range(500)])
    ws = leat.from_dataset(data, name="many")
    asked = data.asked[1:]  # the first ones are looked at to learn what the fields are
    assert [i for ids in asked for i in (ids if isinstance(ids, list) else [ids])] == list(range(500))
    assert len(asked) < 30
    assert all((ws[i] == i).all() for i in range(500))


@pytest.mark.parametrize("workers", [0, 3])
def test_ragged_by_way_of_the_spool(workers, tmp_path):
    rng = np.random.default_rng(1)
    rows = [{"data": rng.bytes(int(n)), "i": i} for i, n in enumerate(rng.integers(0, 200_000, 300))]
    ws = leat.from_dataset(Rows(rows), name="long", num_workers=workers, spool=tmp_path)
    assert all(ws[i]["data"] == row["data"] and ws[i]["i"] == i for i, row in enumerate(rows))
    assert not list(tmp_path.iterdir())


def test_fields_that_are_given():
    ws = leat.from_dataset([{"x": i, "t": "a"} for i in range(5)], name="cast", fields={"x": ("i2", ()), "t": None})
    assert ws.field("x").dtype == "<i2" and ws[4]["x"] == 4
    ws = leat.from_dataset([np.ones((i, 2)) for i in (1, 1, 1, 1, 1, 1, 1, 1, 1, 5)], name="shapes", fields={"data": "npy"})
    assert npy(ws[9]).shape == (5, 2)
    with pytest.raises(leat.Invalid, match=r"sample 9, field 'data': shape \(5, 2\) of float64, wanted shape \(1, 2\).*'npy'"):
        leat.from_dataset([np.ones((i, 2)) for i in (1, 1, 1, 1, 1, 1, 1, 1, 1, 5)], name="unlike")
    with pytest.raises(leat.Invalid, match="sample 3, field 'x': .* does not fit"):
        leat.from_dataset([{"x": 1 if i < 3 else 70000} for i in range(5)], name="fits", fields={"x": "i2"})
    assert "unlike" not in names() and "fits" not in names()


@pytest.mark.parametrize("rows, words", [
    ([{"x": 1}] * 20 + [{"x": "one"}], r"sample 20, field 'x': text, wanted shape \(\) of int64"),
    ([{"x": 1}] * 20 + [{"x": 1.5}], "sample 20, field 'x': shape .* of float64, wanted"),
    ([{"x": b"1"}] * 20 + [{"x": "1"}], "sample 20, field 'x': text, wanted bytes"),
    ([{"x": 1}] * 20 + [{"x": None}], "sample 20, field 'x': None"),
    ([{"x": 1}] * 20 + [{"y": 1}], "sample 20 has no field 'x' and a field 'y', unlike those before it, which have x"),
    ([{"x": 1}] * 3 + [{"x": 1, "y": 2}], "sample 3 has a field 'y', unlike those before it"),
    ([{"x": 1, "y": 2}] * 3 + [{"x": 1}], "sample 3 has no field 'y', unlike those before it"),
    ([{"x": object()}], "field 'x': a value of type object"),
    ([{"x": np.array(["a", None])}], "field 'x': an array of dtype object"),
])
def test_samples_that_are_not_alike(rows, words):
    before = names()
    with pytest.raises(leat.Invalid, match=words):
        leat.from_dataset(rows, name="bad")
    assert names() == before


def test_a_dataset_that_raises():
    rows = [{"x": i} for i in range(50)]
    rows[33] = OSError("disk on fire")
    for kind in (Rows, Batched):
        data = kind(rows)
        with pytest.raises(leat.BadSample, match="sample 33 of the dataset: OSError: disk on fire") as caught:
            data.__class__.__getitems__ = None if kind is Rows else lambda self, ids: [self[i] for i in ids]
            leat.from_dataset(data, name="burns")
        assert caught.value.index == 33 and isinstance(caught.value.__cause__, OSError)
    assert names() == []


def test_what_is_no_dataset():
    with pytest.raises(TypeError, match="map-style"):
        leat.from_dataset(iter([1, 2]))
    with pytest.raises(ValueError, match="no samples"):
        leat.from_dataset([], name="none")
    with pytest.raises(ValueError, match="name=: ranks"):
        leat.from_dataset([1], rank=0, world_size=2)
    with pytest.raises(ValueError, match="version=: of a set with a name"):
        leat.from_dataset([1], version="1")
    with pytest.raises(ValueError, match="fields="):
        leat.from_dataset([1], name="f", fields={"data": 7})
    with pytest.raises(leat.Invalid, match="sample 0: no field 'imge': did you mean 'image'.* There are image, label"):
        leat.from_dataset([{"image": 1, "label": 2}], name="f", fields=["imge", "label"])
    with pytest.raises(leat.Invalid, match="sample 0: it is one value, and fields= names 2: x, y"):
        leat.from_dataset([1], name="f", fields=["x", "y"])
    assert names() == []


def test_without_a_name_it_goes_with_the_object():
    ws = leat.from_dataset([1, 2, 3])
    assert ws[2] == 3 and len(names()) == 1
    del ws
    assert names() == []


def test_found_again():
    data = Rows([{"x": i} for i in range(30)])
    leat.from_dataset(data, name="d", version="a").close()
    asked = len(data.asked)
    ws = leat.from_dataset(data, name="d", version="a")
    assert ws[29] == 29 and len(data.asked) == asked + 8  # looked at, not read
    leat.from_dataset(Rows([{"x": -i} for i in range(30)]), name="d", version="b")
    assert sorted(names()) == ["d@a", "d@b"] and ws[29] == 29
    with pytest.raises(leat.Invalid, match="31 samples.*give another version"):
        leat.from_dataset([{"x": i} for i in range(31)], name="d", version="a")
    with pytest.raises(leat.Invalid, match="give another version"):
        leat.from_dataset([{"y": i} for i in range(30)], name="d", version="a")
    leat.from_dataset(data, name="plain")
    with pytest.raises(leat.Invalid, match="there is a set 'plain' already"):
        leat.from_dataset(data, name="plain")
    assert len(leat.open("leat://plain")) == 30


def test_one_that_nobody_fills_any_more_is_made_anew():
    leat.create("d@1", {"x": ("<i8", ())}, 10).close()
    ws = leat.from_dataset([{"x": i} for i in range(10)], name="d", version="1", timeout=2)
    assert ws[9] == 9


def test_progress():
    seen = []
    leat.from_dataset([np.ones(10)] * 100, name="p", progress=seen.append, batch=10)
    assert [p.samples_done for p in seen] == list(range(10, 101, 10)) and seen[-1].bytes_done == 8000 == seen[-1].bytes_total


# --- torch and others ---------------------------------------------------------------------------------------------------------------


def test_torch():
    torch = pytest.importorskip("torch")
    from torch.utils.data import ConcatDataset, Subset, TensorDataset

    a = TensorDataset(torch.arange(40.0).reshape(10, 4), torch.arange(10))
    b = TensorDataset(torch.arange(40.0, 80.0).reshape(10, 4), torch.arange(10, 20))
    ws = leat.from_dataset(Subset(ConcatDataset([a, b]), range(19, -1, -2)), name="t", fields=["x", "label"])
    assert len(ws) == 10 and ws[0]["label"] == 19 and ws[0]["x"].tolist() == [76, 77, 78, 79] and ws[9]["label"] == 1
    got = {int(label) for batch in leat.Loader(ws, 5) for label in batch["label"]}
    assert got == set(range(1, 20, 2))


def test_pictures():
    image = pytest.importorskip("PIL.Image")
    rows = [{"image": image.fromarray(np.full((4, 5, 3), i, "u1")), "p": image.new("P", (2, 2))} for i in range(3)]
    ws = leat.from_dataset(rows, name="pil")
    assert ws[2]["image"].shape == (4, 5, 3) and (ws[2]["image"] == 2).all() and ws[0]["p"].shape == (2, 2, 3)


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table({"id": list(range(100)), "text": [f"row {i}" for i in range(100)], "tokens": [[i] * (i % 7 + 1) for i in range(100)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=30)

    class Parquet:
        def __init__(self, path):
            self.table = pq.read_table(path, memory_map=True)

        def __len__(self):
            return self.table.num_rows

        def __getitem__(self, i):
            return self.__getitems__([i])[0]

        def __getitems__(self, ids):
            return self.table.take(ids).to_pylist()

    ws = leat.from_dataset(Parquet(tmp_path / "t.parquet"), name="parquet", num_workers=2)
    assert ws[99]["id"] == 99 and ws[99]["text"] == b"row 99" and npy(ws[99]["tokens"]).tolist() == [99, 99]


# --- ranks --------------------------------------------------------------------------------------------------------------------------

RANK = """
    import sys, time, os, numpy as np, leat
    rank, world, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    class Data:
        def __len__(self): return 203
        def __getitem__(self, i):
            if how == "raise" and i in (50, 150): raise KeyError("no such row")
            if how == "raise8" and i < 8: raise KeyError("nothing here")
            if how == "unlike" and i == 100: return {"i": i, "x": np.zeros(6, "f4"), "text": ""}
            if how == "hang" and i == 150:
                print("hanging", flush=True)
                time.sleep(600)
            if how == "slow": time.sleep(0.01)
            row = {"i": i, "x": np.full(5, i, "f4")}
            return row if how.startswith("f") else {**row, "text": "t" * (i % 11)}
    class Fixed(Data):
        def __getitem__(self, i):
            row = Data.__getitem__(self, i)
            row.pop("text", None)
            return row
    class OfMine(leat.Stale): pass
    def fail(*args): raise {"stale": OfMine, "unknown": leat.UnknownKey, "other": RuntimeError, "early": OfMine}[how]("by hand")
    if how == "early": leat._sets.from_dataset._Source.learn = fail
    if how in ("stale", "unknown", "other"): leat._sets.from_dataset._Making._fill = fail
    kind = Fixed if len(sys.argv) > 4 and sys.argv[4] == "fixed" else Data
    timeout = float(sys.argv[5]) if len(sys.argv) > 5 else 20
    start = time.monotonic()
    try:
        ws = leat.from_dataset(kind(), name="both", version="1", rank=rank, world_size=world, timeout=timeout, socket=os.environ["HERE"])
    except BaseException as error:
        print(getattr(error, "code", ""), type(error).__name__, error, f"after {time.monotonic() - start:.1f} s", flush=True)
        sys.exit(3)
    good = all(ws[i]["i"] == i and (ws[i]["x"] == i).all() for i in range(203))
    good = good and (kind is Fixed or all(ws[i]["text"] == b"t" * (i % 11) for i in range(203)))
    print("good" if good else "wrong", flush=True)
"""


@pytest.fixture
def ranks(monkeypatch):
    """Starts ranks as processes of one job; their daemon is the test's."""
    leat.create("x", {"x": ("u1", ())}, 1).close()
    leat.drop("x")
    monkeypatch.setenv("HERE", str(leat.status()["socket"]) if "socket" in leat.status() else leat._base.clients.connect().socket)
    started = []

    def start(rank, world, how, *more):
        child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(RANK), str(rank), str(world), how, *map(str, more)],
                                 stdout=subprocess.PIPE, text=True)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("kind", ["fixed", "ragged"])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks(ranks, kind, world):
    children = [ranks(rank, world, "well", kind) for rank in reversed(range(world))]
    assert [child.communicate(timeout=60)[0] for child in children] == ["good\n"] * world
    assert names() == ["both@1"]


@pytest.mark.parametrize("kind", ["fixed", "ragged"])
def test_a_rank_that_fails_tells_the_others(ranks, kind):
    children = [ranks(rank, 2, how, kind) for rank, how in ((0, "well"), (1, "raise"))]
    texts = [child.communicate(timeout=60)[0] for child in children]
    assert "BadSample sample 150 of the dataset: KeyError: 'no such row'" in texts[1]
    assert texts[0].startswith("bad sample BadSample rank 1 failed: BadSample: sample 150 of the dataset")
    assert float(texts[0].split()[-2]) < 15 and names() == []


@pytest.mark.parametrize("how, mine, others", [
    ("unlike", "invalid Invalid sample 100, field 'x': ", "invalid Invalid rank 1 failed: Invalid: sample 100, field 'x': "),
    ("stale", "stale OfMine by hand", "stale Stale rank 1 failed: OfMine: by hand"),
    ("unknown", "not found UnknownKey by hand", "not found UnknownKey rank 1 failed: UnknownKey: by hand"),
    ("other", " RuntimeError by hand", "failed on another rank Error rank 1 failed: RuntimeError: by hand")])
def test_all_ranks_catch_the_same(ranks, how, mine, others):
    children = [ranks(rank, 3, what, "fixed") for rank, what in ((0, "well"), (1, how), (2, "well"))]
    texts = [child.communicate(timeout=60)[0] for child in children]
    assert texts[1].startswith(mine) and all(text.startswith(others) for text in (texts[0], texts[2])), texts
    assert names() == []


def test_a_rank_that_waits_for_rank_0_catches_the_same(ranks):
    children = [ranks(rank, 2, what, "fixed") for rank, what in ((1, "well"), (0, "early"))]
    assert children[0].communicate(timeout=60)[0].startswith("stale Stale rank 0 failed: OfMine: by hand")
    assert children[1].wait(60) == 3 and names() == []


@pytest.mark.parametrize("kind", ["fixed", "ragged"])
def test_rank_0_fails(ranks, kind):
    children = [ranks(rank, 2, how, kind) for rank, how in ((1, "well"), (0, "raise"))]
    assert "BadSample rank 0 failed: BadSample: sample 50" in children[0].communicate(timeout=60)[0]
    assert children[1].wait(60) == 3 and names() == []


def test_rank_0_cannot_learn(ranks):
    children = [ranks(rank, 2, how, "fixed") for rank, how in ((1, "well"), (0, "raise8"))]
    text = children[0].communicate(timeout=60)[0]
    assert "BadSample rank 0 failed: BadSample: sample 0" in text and float(text.split()[-2]) < 15
    assert children[1].wait(60) == 3 and names() == []


@pytest.mark.long
@pytest.mark.parametrize("kind", ["fixed", "ragged"])
def test_a_rank_killed_midway(ranks, kind):
    """The others stop after the time without progress, name it, and the job's next attempt begins at once."""
    first, second = ranks(0, 2, "well", kind, 3), ranks(1, 2, "hang", kind, 3)
    assert second.stdout.readline() == "hanging\n"
    second.send_signal(signal.SIGKILL)
    text = first.communicate(timeout=60)[0]
    # On a busy machine rank 0 may not have pushed all of its own yet.
    assert "TimedOut both@1: no sample came for 3.0 s" in text and re.search("rank (0, )?1 has not", text)
    assert names() == []
    children = [ranks(rank, 2, "well", kind) for rank in range(2)]
    assert [child.communicate(timeout=60)[0] for child in children] == ["good\n"] * 2


def test_all_killed_then_started_again(ranks):
    first, second = ranks(0, 2, "slow", "fixed"), ranks(1, 2, "hang", "fixed")
    assert second.stdout.readline() == "hanging\n"
    for child in (first, second):
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert any("~ranks" in name for name in names())
    begun = time.monotonic()
    children = [ranks(rank, 2, "well", "fixed") for rank in (1, 0)]
    assert [child.communicate(timeout=60)[0] for child in children] == ["good\n"] * 2
    assert names() == ["both@1"] and time.monotonic() - begun < 20  # the deadline was not waited for


def test_a_rank_that_never_comes(ranks):
    text = ranks(0, 2, "well", "fixed", 2).communicate(timeout=60)[0]
    assert "TimedOut both@1: rank 1 is not there after 2.0 s" in text
    text = ranks(1, 2, "well", "fixed", 2).communicate(timeout=60)[0]
    assert "TimedOut rank 0 has not begun" in text and names() == []


def test_found_by_all_ranks(ranks):
    for _ in range(2):
        children = [ranks(rank, 2, "well", "fixed") for rank in range(2)]
        assert [child.communicate(timeout=60)[0] for child in children] == ["good\n"] * 2
    assert names() == ["both@1"] and os.path.exists(os.environ["HERE"])
