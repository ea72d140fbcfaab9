# SPDX-License-Identifier: Apache-2.0
"""Appending to a working set, from Python against a real daemon: what was there stays as it was, what comes looks alike."""
import io
import tarfile

import numpy as np
import pytest

import leat


def save(path, array):
    np.save(path, array)
    return str(path)


def test_arrays(tmp_path):
    rows = np.random.default_rng(0).integers(0, 255, (27, 3, 5)).astype(">i2")
    old = leat.preload(save(tmp_path / "x.npy", rows[:10]), name="n", pool="64MiB")
    assert leat.append("n", save(tmp_path / "y.npy", rows[10:17])) == 17
    once = leat.open("leat://n")
    assert leat.append("n", save(tmp_path / "z.npy", rows[17:])) == 27
    twice = leat.open("leat://n")
    assert (len(old), len(once), len(twice)) == (10, 17, 27)
    assert [ws.fields[0].fixed_bytes for ws in (old, once, twice)] == [30, 30, 30]
    for ws in (old, once, twice):
        assert repr(ws.fields[0]) == "Field('data', kind='array', dtype='>i2', shape=(3, 5))"
        for i in range(len(ws)):
            assert ws[i].dtype == rows.dtype and np.array_equal(ws[i], rows[i])
    ids = [26, 0, 9, 10, 16, 17, 3]
    with twice.read_batch(ids) as batch:
        got = np.asarray(batch["data"])
        assert got.shape == (7, 3, 5) and got.dtype == rows.dtype and np.array_equal(got, rows[ids])
    with pytest.raises(leat.Error, match=r"'data' is >i2 of shape \(3, 5\) in the set and <f8 of shape \(2,\)"):
        leat.append("n", save(tmp_path / "w.npy", np.zeros((4, 2))))
    assert len(leat.open("leat://n")) == 27


def test_one_after_another(tmp_path):
    """The next append finds the version before complete, however large it is."""
    rows = np.arange(64 << 20, dtype="u1").reshape(1024, -1)
    path = save(tmp_path / "x.npy", rows)
    leat.preload(path, name="n", pool="300MiB")
    for n in (2, 3, 4):
        assert leat.append("n", path) == n * 1024


def test_to_a_set_of_which_a_sample_failed(tmp_path):
    """What cannot be loaded is an error of its read, and of no append: that would be tried again, and add twice."""
    h5py = pytest.importorskip("h5py")
    rows = np.random.default_rng(1).integers(0, 255, (40, 100), dtype="u1")
    for name, part in (("x", rows[:20]), ("y", rows[20:])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as f:
            f.create_dataset("x", data=part, chunks=(5, 100), compression="gzip")
    with h5py.File(tmp_path / "x.h5") as f:
        at = f["x"].id.get_chunk_info(1).byte_offset
    with open(tmp_path / "x.h5", "r+b") as f:
        f.seek(at)
        f.write(bytes(8))
    ws = leat.open(str(tmp_path / "x.h5"), name="n", pool="64MiB")
    with pytest.raises(leat.Corrupt):
        ws.wait()
    assert leat.append("n", str(tmp_path / "y.h5")) == 40
    twice = leat.open("leat://n")
    assert np.array_equal(twice[39], rows[39])
    with pytest.raises(leat.Corrupt):
        twice[5]


def test_several_arrays(tmp_path):
    x, y = np.arange(60, dtype="f4").reshape(20, 3), np.arange(20, dtype="u1")
    uri = [{"y": save(tmp_path / f"y{k}.npy", y[k::2]), "x": save(tmp_path / f"x{k}.npy", x[k::2])} for k in (0, 1)]
    leat.preload(uri[0], name="two", pool="64MiB")
    leat.append("two", dict(reversed(uri[1].items())))  # fields are found by name
    ws = leat.open("leat://two")
    for i in range(20):
        k, j = divmod(i, 10)
        assert ws[i]["y"] == y[k::2][j] and np.array_equal(ws[i]["x"], x[k::2][j])


def test_trees(tmp_path):
    for name in ("a/b/1.txt", "a/b-c/2.txt", "new/b/3.txt", "new/a/4.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "a" / "empty").mkdir()
    old = leat.preload(str(tmp_path / "a"), name="t", pool="64MiB")
    leat.append("t", str(tmp_path / "new"))
    ws = leat.open("leat://t")
    for i in range(len(old)):
        assert old[i] == ws[i]
    assert [bytes(sample["data"]).decode() for sample in ws] == ["a/b/1.txt", "a/b-c/2.txt", "new/a/4.txt", "new/b/3.txt"]
    assert [int(sample["label"]) for sample in ws] == [0, 1, 3, 0]
    with pytest.raises(leat.Error, match="two samples have the key"):
        leat.append("t", str(tmp_path / "new"))


def test_shards(tmp_path):
    def shard(name, members):
        with tarfile.open(tmp_path / name, "w") as tar:
            for member, data in members:
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return str(tmp_path / name)

    leat.preload(shard("a.tar", [("1.txt", b"one"), ("1.cls", b"1"), ("2.txt", b"two")]), name="s", pool="64MiB")
    leat.append("s", shard("b.tar", [("3.cls", b"3"), ("3.txt", b"three")]))
    ws = leat.open("leat://s")
    assert [bytes(ws[i]["txt"]) for i in range(3)] == [b"one", b"two", b"three"]
    assert bytes(ws[2]["cls"]) == b"3" and ws["3"] == ws[2]
    with pytest.raises(leat.Error, match="a field 'png', and the set has none"):
        leat.append("s", shard("c.tar", [("4.cls", b"3"), ("4.txt", b""), ("4.png", b"")]))


def test_to_pushed(tmp_path):
    rows = np.arange(24, dtype="<i4").reshape(6, 4)
    ws = leat.create("p", {"data": ("<i4", (4,))}, 4, pool="64MiB")
    ws.push(0, rows[:4])
    leat.append("p", save(tmp_path / "y.npy", rows[4:]))
    ws = leat.open("leat://p")
    assert np.array_equal([ws[i] for i in range(6)], rows)
