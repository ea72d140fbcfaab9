# SPDX-License-Identifier: Apache-2.0
"""Windows over recordings of several lengths: leat.open(..., window=, stride=, rows=, short=)."""

import io
import os
import pickle
import subprocess
import sys
import tarfile

import numpy as np
import pytest

import leat
from leat._sets import recordings as _recordings

LENGTHS = [100, 7, 0, 31, 10, 9, 64, 11]
NAMES = [f"{i}.pcm" for i in range(len(LENGTHS))]


def sound(i):
    """Two channels whose values say which recording and row they are."""
    rows = np.arange(LENGTHS[i], dtype="<i4")
    return np.stack([1000 * i + rows, -rows], axis=1)


@pytest.fixture
def sounds(tmp_path):
    folder = tmp_path / "sounds"
    folder.mkdir()
    for i, name in enumerate(NAMES):
        (folder / name).write_bytes(sound(i).tobytes())
    return folder


ROWS = ("<i4", (2,))


def expected(window, stride, short="drop"):
    """(recording, first row, rows) of every window, the plain way."""
    found = []
    for r, n in enumerate(LENGTHS):
        found += [(r, first, window) for first in range(0, n - window + 1, stride)]
        if short == "pad" and 0 < n < window:
            found.append((r, 0, n))
    return found


def check(ids, values, wanted):
    for i, value in zip(np.asarray(ids).tolist(), values):
        r, first, n = wanted[i]
        assert (value[:n] == sound(r)[first : first + n]).all() and not value[n:].any()


@pytest.mark.parametrize("window, stride, short", [(10, 10, "drop"), (10, 3, "drop"), (10, 25, "drop"), (10, 4, "pad"), (1, 1, "drop"), (100, 1, "drop"), (200, 7, "pad")])
def test_every_window_once(sounds, window, stride, short):
    wanted = expected(window, stride, short)
    with leat.open(sounds, window=window, stride=stride, rows=ROWS, short=short) as ws:
        assert len(ws) == len(wanted) and ws.fields[0].shape == (window, 2) and ws.fields[0].dtype == "<i4"
        assert [ws.where(i) for i in range(len(ws))] == wanted
        assert ws[-1].shape == (window, 2)
        check(range(len(ws)), ws, wanted)
        for epoch in range(2):
            seen = []
            for batch in leat.Loader(ws, 4, seed=5 + epoch, drop_last=False):
                assert batch["data"].shape == (4, window, 2) and not batch["data"].flags.owndata
                check(batch.ids, batch["data"], wanted)
                seen += batch.ids[batch.valid].tolist()
            assert sorted(seen) == list(range(len(wanted)))
            assert seen == leat.order(ws, seed=5 + epoch).tolist()


def test_state_goes_on_with_another_world(sounds):
    with leat.open(sounds, window=10, stride=3, rows=ROWS) as ws:
        n = len(ws)
        loader = leat.Loader(ws, 6, seed=3, drop_last=False)
        seen = [i for _, batch in zip(range(4), loader) for i in batch.ids.tolist()]
        state = loader.state_dict()
        assert seen == leat.replay(state, 0, 0).tolist() + [i for s in (1, 2, 3) for i in leat.replay(state, s, 0).tolist()]
        shares = []
        for rank in range(3):
            rest = leat.Loader(ws, 4, drop_last=False, rank=rank, world_size=3, num_workers=2)
            rest.load_state_dict(state)
            batches = [(batch.ids.copy(), batch.valid.copy(), batch["data"].copy()) for batch in rest]
            shares.append(len(batches))
            for ids, valid, values in batches:
                check(ids, values, expected(10, 3))
                seen += ids[valid].tolist()
        assert sorted(seen) == list(range(n)) and len(set(shares)) == 1
        for other in ({"window": 10, "stride": 4}, {"window": 9, "stride": 3}, {"window": 10, "stride": 3, "short": "pad"}):
            with leat.open(sounds, rows=ROWS, **other) as another, pytest.raises(leat.Stale):
                leat.Loader(another, 6).load_state_dict(state)


def louder(sample, rng):
    sample["data"] += 1  # a copy of its own: the recording is as it was
    return {"x": sample["data"], "draw": int(rng.integers(1000))}


def test_workers_see_the_same(sounds):
    with leat.open(sounds, window=10, stride=3, rows=ROWS) as ws:
        made = []
        for workers in ({}, {"num_workers": 3}, {"workers": "fork", "num_workers": 2}, {"workers": "spawn", "num_workers": 1}):
            with leat.Loader(ws, 8, seed=1, transform=louder, drop_last=False, **workers) as loader:
                got = [(batch.ids.tolist(), batch["x"].copy(), batch["draw"].tolist()) for batch in loader]
            for ids, x, _ in got:
                check(ids, x - 1, expected(10, 3))
            made.append([(ids, draws) for ids, _, draws in got])
        assert all(one == made[0] for one in made)
        check(range(len(ws)), ws, expected(10, 3))


def test_other_ways_to_read(sounds):
    with leat.open(sounds, window=10, stride=3, rows=ROWS) as ws:
        again = pickle.loads(pickle.dumps(ws))
        assert len(again) == len(ws) and again.fingerprint == ws.fingerprint and (again[5] == ws[5]).all()
        again.close()
        assert ws.key(2) == "0.pcm@6" and ws.index("0.pcm@6") == 2 and [ws.index(key) for key in ws.keys()] == list(range(len(ws)))
        for key in ("0.pcm@7", "0.pcm@93", "1.pcm@0", "0.pcm", "0.pcm@-3", "0.pcm@03", "9.pcm@0", "@"):
            assert key not in ws
        assert [sample[0, 0] for sample in ws.__getitems__([4, 2])] == [12, 6]
        assert list(leat.Sampler(ws, 4, seed=2)) == [i for batch in leat.Loader(ws, 4, seed=2) for i in batch.ids.tolist()]
        assert len(ws.recordings) == len(LENGTHS)
        for refused in (lambda: ws.view(0), lambda: ws.push(0, np.zeros((1, 10, 2), "<i4")), lambda: leat.batches(ws, 2, device="cuda"),
                        lambda: leat.batches(ws, 2, device="cuda", device_copy="direct"),
                        lambda: leat.batches(ws, 2, transport="tcp")):
            with pytest.raises(leat.Unsupported, match="windows|recordings"):
                refused()
        with pytest.raises(OverflowError, match="4294967296 is more than"):
            next(iter(leat.batches(ws, 1 << 32, drop_last=False)))
        with pytest.raises(IndexError):
            ws[len(ws)]


def test_batches_without_a_loader(sounds):
    """As of other sets: the same order, ranks and tails; what is kept is kept."""
    wanted = expected(10, 3)
    with leat.open(sounds, window=10, stride=3, rows=ROWS) as ws:
        with ws.read_batch([3, -1, 3]) as batch:
            assert batch.ids.tolist() == [3, len(ws) - 1, 3] and batch.sample_keys[0] == "0.pcm@9" and batch.present("data").all()
            check(batch.ids, batch["data"], wanted)
            batch["data"] *= 0
            assert batch.data is batch["data"] and not batch.data.any()
        with pytest.raises(ValueError, match="released"):
            batch["data"]
        with pytest.raises(KeyError, match="no field 'pcm' in this batch; there are data"):
            ws.read_batch([0])["pcm"]
        with pytest.raises(IndexError):
            ws.read_batch([len(ws)])
        out = np.empty((2, 10, 2), "<i4")
        ws.read_batch(["0.pcm@9", "6.pcm@3"], out=out)
        check([3, ws.index("6.pcm@3")], out, wanted)
        for shuffle in ("auto", "block:8", False):
            order = leat.order(ws, seed=2, epoch=1, shuffle="full" if shuffle == "auto" else shuffle)
            for keep, world in ((True, 1), (True, 3), (False, 2)):
                seen = []
                for rank in range(world):
                    batches = leat.batches(ws, 4, seed=2, epoch=1, shuffle=shuffle, rank=rank, world_size=world, drop_last=not keep, start=5)
                    assert batches.shuffle == ("full" if shuffle == "auto" else shuffle) and batches.delivery()["delivery"] == "host"
                    kept = list(batches)
                    assert len(kept) == len(batches)
                    for batch in kept:
                        check(batch.ids, batch["data"], wanted)
                        assert order[batch.position : batch.position + len(batch)].tolist() == batch.ids.tolist()
                        seen += batch.ids.tolist()
                assert len(seen) == ((len(ws) - 5) // (4 * world) * 4 * world if not keep else len(ws) - 5)
                assert sorted(seen) == sorted(order[5 : 5 + len(seen)].tolist())


def test_other_fields_of_a_batch(tmp_path):
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for i in range(3):
            for name, data in (("pcm", sound(i if i else 3).tobytes()), ("txt", b"said %d" % i), ("cls", b"1")):
                if name != "cls" or i != 1:
                    member = tarfile.TarInfo(f"{i}.{name}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    with leat.open(tmp_path / "train-0.tar", window=10, rows={"pcm": ROWS}, short="pad") as ws, ws.read_batch(range(len(ws))) as batch:
        recordings = ws.where(batch.ids)[0].tolist()
        assert recordings == [0, 0, 0, 1]  # of 31, 7 (padded) and 0 rows
        assert batch["txt"].tolist() == [b"said %d" % r for r in recordings]
        assert batch.present("cls").tolist() == [r != 1 for r in recordings]
        assert batch["cls"].tolist() == [b"1" if r != 1 else b"" for r in recordings]


def test_mixed_with_other_windows(sounds, tmp_path):
    """Each set by its own order, what a loader of it alone would give; errors name the one sample that is bad."""
    tokens = np.arange(400, dtype="<i4").reshape(200, 2)
    np.save(tmp_path / "tokens.npy", tokens)
    wanted = expected(10, 3)
    with leat.open(sounds, window=10, stride=3, rows=ROWS) as cut, leat.open(tmp_path / "tokens.npy", window=10, stride=4) as plain:
        mixture = leat.Mixture([(cut, 3), (plain, 1)], length=80)
        for workers in ({}, {"num_workers": 2}, {"num_workers": 2, "workers": "process"}):
            with leat.Loader(mixture, 8, seed=3, fields={"x": "data"}, **workers) as loader:
                seen = []
                for batch in loader:
                    for source, i, x in zip(batch.source.tolist(), batch.ids.tolist(), batch["x"]):
                        if source:
                            assert (x == tokens[4 * i : 4 * i + 10]).all()
                        else:
                            check([i], [x], wanted)
                    seen += list(zip(batch.source.tolist(), batch.ids.tolist()))
                    assert batch.sample_keys[0]
                assert [source for source, _ in seen].count(0) == 60
                assert seen == [tuple(pair) for s in range(10) for pair in leat.replay(loader.state_dict(), s, 0, epoch=0).tolist()]
                assert [i for source, i in seen if not source][: len(cut)] == leat.order(cut, seed=3).tolist()[:60]

        def doubled(sample, rng):
            return {"x": 2 * sample["data"], "n": int(rng.integers(100))}

        one, two = ({(s, i, n): x.tobytes() for batch in leat.Loader(mixture, 8, seed=3, transform=doubled, num_workers=k)
                     for s, i, n, x in zip(batch.source.tolist(), batch.ids.tolist(), batch["n"].tolist(), batch["x"])} for k in (1, 3))
        assert one == two
    bad = tmp_path / "bad"
    bad.mkdir()
    for i, dtype in enumerate(("<i4", "<i4", "<f4")):
        np.save(bad / f"{i}.npy", np.ones((40, 2), dtype))
    with leat.open(bad, window=10, rows="npy") as cut, leat.open(tmp_path / "tokens.npy", window=10) as plain:
        with leat.Loader(leat.Mixture([(cut, 1), (plain, 1)]), 4, on_error="skip", num_workers=2) as loader:
            assert sum(int((batch.source == 0).sum()) for batch in loader) > 8 - 1 and loader.stats()["skipped"] > 0
        with leat.Loader(leat.Mixture([(cut, 1), (plain, 1)]), 4) as loader, pytest.raises(leat.BadSample, match="2.npy"):
            list(loader)


def test_in_the_child_of_a_fork(sounds):
    code = """
import os, sys, leat
ws = leat.open(sys.argv[1], window=10, stride=3, rows=("<i4", (2,)))
want = ws[9].tolist()
pid = os.fork()
if not pid:
    os._exit(0 if ws[9].tolist() == want and ws[2][0, 0] == 6 else 1)
assert os.waitpid(pid, 0)[1] == 0 and ws[9].tolist() == want
"""
    subprocess.run([sys.executable, "-c", code, sounds], check=True, timeout=60)


def test_each_recording_is_read_once_while_it_is_kept(sounds, monkeypatch):
    read = []
    whole = _recordings._bytes_of

    def counted(ws, i, field):
        read.append(i)
        return whole(ws, i, field)

    def unsupported(self, *args):
        raise leat.Unsupported("not in one piece")

    monkeypatch.setattr(leat.WorkingSet, "view", unsupported)  # as of a set that is streamed
    monkeypatch.setattr(_recordings, "_bytes_of", counted)
    with leat.open(sounds, window=10, stride=3, rows=ROWS) as ws:
        for _ in range(2):
            for batch in leat.Loader(ws, 4, drop_last=False, num_workers=4):
                check(batch.ids, batch["data"], expected(10, 3))
        assert sorted(read) == [0, 3, 4, 6, 7]
        assert ws._kept.bytes == 8 * sum(LENGTHS[i] for i in (0, 3, 4, 6, 7))
        monkeypatch.setattr(_recordings, "_COPIES", 8 * 70)  # holds 6, or some of the small ones
        ws._kept.clear()
        for batch in leat.Loader(ws, 4, drop_last=False, num_workers=4):
            check(batch.ids, batch["data"], expected(10, 3))
        assert ws._kept.bytes == sum(one.copied for one in ws._kept._entries.values()) and (ws._kept.bytes <= 8 * 70 or len(ws._kept) == 1)


def test_how_many_are_kept(monkeypatch):
    """Short copies are not limited to as many as views are."""
    kept, loaded = _recordings._Kept(), []

    def load(i, view):
        loaded.append(i)
        return np.zeros(100, np.uint8), view

    for i in 2 * list(range(1000)):
        kept.get((i, 0), lambda i=i: load(i, None))
    assert loaded == list(range(1000)) and (len(kept), kept.bytes, kept.views) == (1000, 100_000, 0)
    for i in range(1000, 1300):
        kept.get((i, 0), lambda i=i: load(i, object()))
    assert (len(kept), kept.bytes, kept.views) == (256, 0, 256)  # those that were used last
    kept.clear()
    monkeypatch.setattr(_recordings, "_ENTRIES", 10)  # empty ones count as well
    for i in range(20):
        kept.get((i, 0), lambda: (np.zeros(0, np.uint8), None))
    assert (len(kept), kept.bytes, kept.views) == (10, 0, 0)


def test_several_fields_labels_and_names(tmp_path):
    """Shards: two fields are cut alike, the others come with every window of their recording."""
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for i in (0, 3, 6):
            for suffix, data in {"pcm": sound(i).tobytes(), "mask": np.arange(LENGTHS[i], dtype="u1").tobytes(), "cls": b"%d" % i,
                                 "txt": b"said %d" % i}.items():
                (tmp_path / "member").write_bytes(data)
                tar.add(tmp_path / "member", f"{i}.{suffix}")
    rows = {"pcm": ROWS, "mask": "u1"}
    with leat.open(tmp_path / "train-0.tar", window=10, stride=10, rows=rows) as ws:
        recordings = [r for r in (0, 3, 6) for _ in range(LENGTHS[r] // 10)]
        assert len(ws) == len(recordings) and ws[3]["txt"] == b"said 0"
        loader = leat.Loader(ws, 4, fields={"x": "pcm", "mask": "mask", "y": "cls", "text": ("txt", "txt")}, drop_last=False)
        for batch in loader:
            for i, x, mask, y, text in zip(batch.ids.tolist(), batch["x"], batch["mask"], batch["y"], batch["text"]):
                assert y == recordings[i] and text == f"said {y}"
                first = ws.where(i)[1]
                assert (x == sound(y)[first : first + 10]).all() and mask.tolist() == list(range(first, first + 10))
        with pytest.raises(ValueError, match="of which field.*pcm"):
            leat.open(tmp_path / "train-0.tar", window=10, rows="u1")
        with pytest.raises(leat.Invalid, match=r"recording 0: field 'pcm' has 100 rows, 'txt' 6"):
            leat.open(tmp_path / "train-0.tar", window=10, rows={"pcm": ROWS, "txt": "u1"})
        with pytest.raises(leat.Unsupported, match="pictures"):
            leat.Loader(ws, 2, fields={"x": ("txt", "jpg")}, transform=leat.prep.CenterCrop(8))


def test_pushed_sets(tmp_path):
    made = leat.create("sounds", {"pcm": bytes}, samples=2, lengths={"pcm": [40, 20]})
    made.push(0, {"pcm": [np.arange(20, dtype="<i2").tobytes(), np.arange(100, 110, dtype="<i2").tobytes()]})
    with leat.open("leat://sounds", window=8, stride=6, rows="<i2") as ws:
        assert len(ws) == 4 and [w[0] for w in ws] == [0, 6, 12, 100]
    made.close()
    leat.drop("sounds")  # no view is left


def documents(folder, third):
    folder.mkdir()
    for i in range(5):
        np.save(folder / f"{i}.npy", third if i == 3 else sound(i))
    return folder


def test_npy_files(tmp_path):
    wanted = [one for one in expected(10, 3) if one[0] < 5]
    with leat.open(documents(tmp_path / "good", sound(3)), window=10, stride=3, rows="npy") as ws:
        assert ws.fields[0].shape == (10, 2) and ws.fields[0].dtype == "<i4" and len(ws) == len(wanted)
        check(range(len(ws)), ws, wanted)


@pytest.mark.parametrize("third, said", [(sound(3).astype("<u4"), "31 rows of <u4"), (np.zeros((62, 1), "<i4"), r"62 rows of <i4 \(1,\)"),
                                         (sound(3).T, "in the order of Fortran"), (np.frombuffer(b"x" * 120, "u1"), None)],
                         ids=["dtype", "shape", "order", "size"])
def test_a_document_unlike_the_first(tmp_path, third, said):
    """What its size does not tell is found when it is read."""
    folder = documents(tmp_path / "documents", third)
    if said is None:
        (folder / "3.npy").write_bytes(os.urandom(128 + 31 * 8))
        said = "no .npy file"
    wanted = [one for one in expected(10, 3) if one[0] < 5]
    with leat.open(folder, window=10, stride=3, rows="npy") as ws:
        assert len(ws) == len(wanted)
        with pytest.raises(leat.Invalid, match=f"3.npy.*{said}"):
            ws[ws.index("3.npy@3")]
        with pytest.raises(leat.BadSample, match=f"3.npy@.*{said}"):
            list(leat.Loader(ws, 4))
        with leat.Loader(ws, 4, on_error="skip", max_errors=100, drop_last=False) as loader:
            for batch in loader:
                check(batch.ids, batch["data"], wanted)
            assert loader.stats()["skipped"] >= 8


def test_what_is_refused(sounds, tmp_path):
    for options, said in (({"rows": "<i4"}, "need a window"), ({"window": 5, "rows": ROWS, "short": "cut"}, "'drop' or 'pad'"),
                          ({"window": 5, "short": "pad"}, "with rows="), ({"window": 0, "rows": ROWS}, "at least 1"),
                          ({"window": 101, "rows": ROWS}, "longest of 8 has 100 rows"), ({"window": 5, "rows": "no dtype"}, "a dtype"),
                          ({"window": 5, "rows": ("<i4", (0,))}, "at least one"), ({"window": 5, "rows": "O"}, "of numbers"),
                          ({"window": 5, "rows": {}}, "name a field"), ({"window": 5, "rows": ("<i4", (3,))}, "recording 0.pcm.*800 bytes")):
        with pytest.raises(ValueError, match=said):
            leat.open(sounds, **options)
    with pytest.raises(KeyError, match="no field 'wav'"):
        leat.open(sounds, window=5, rows={"wav": "<i2"})
    odd, empty = tmp_path / "odd", tmp_path / "empty"
    for folder in (odd, empty):
        folder.mkdir()
        for name in NAMES[:4]:
            (folder / name).write_bytes(b"" if folder is empty else b"x" * (41 if name == "3.pcm" else 40))
    with pytest.raises(leat.Invalid, match="recording 3.pcm, field 'data': 41 bytes are no whole rows"):
        leat.open(odd, window=5, rows=ROWS)
    for short in ("drop", "pad"):
        with pytest.raises(ValueError, match="longest of 4 has 0 rows"):
            leat.open(empty, window=1, rows=ROWS, short=short)
    with pytest.raises(ValueError, match="has any bytes"):
        leat.open(empty, window=1, rows="npy")


def test_larger_than_the_pool(tmp_path):
    folder = tmp_path / "long"
    folder.mkdir()
    for i in range(24):
        np.arange((1 << 18) * i, (1 << 18) * i + (1 << 18) + i, dtype="<u4").tofile(folder / f"{i:02}.pcm")
    with leat.open(folder, window=4096, stride=4096, rows="<u4", limit="8MiB", pool="16MiB") as ws:
        assert ws.stat().streamed and len(ws) == 24 * 64
        loader = leat.Loader(ws, 32, drop_last=False)
        assert loader.state_dict()["shuffle"].startswith("block:")
        seen = 0
        for batch in loader:
            recording, first, _ = ws.where(batch.ids)
            assert (batch["data"][:, 0] == (recording << 18) + first).all() and (np.diff(batch["data"].astype("<i8")) == 1).all()
            seen += int(batch.valid.sum())
        assert seen == len(ws)
