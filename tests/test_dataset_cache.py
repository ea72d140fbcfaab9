# SPDX-License-Identifier: Apache-2.0
"""Indexes that are kept: in the cache and beside their data, what makes them stale, and what is not believed."""
import io
import os
import random
import tarfile
import time

import pytest

from lib_index import cache, dump, let_in, refused, run, user, write_tar, write_tree  # noqa: F401

np = pytest.importorskip("numpy")
h5py = pytest.importorskip("h5py")


def test_cache(tmp_path):
    root = tmp_path / "set"
    write_tree(root, {f"c{i}/{j}": b"x" * j for i in range(3) for j in range(5)})
    assert dump(root, "--open")["scanned"]
    assert len(list((tmp_path / "cache/leat/index").iterdir())) == 1
    assert os.stat(tmp_path / "cache/leat/index").st_mode & 0o777 == 0o700
    first = dump(root, "--open")
    assert not first["scanned"]
    time.sleep(0.02)  # past the file system's clock tick
    write_tree(root, {"c1/new": b"1"})
    second = dump(root, "--open")
    assert second["scanned"] and second["nsamples"] == 16 and second["fingerprint"] != first["fingerprint"]
    os.unlink(root / "c1/new")
    assert dump(root, "--open")["fingerprint"] == first["fingerprint"]  # times are no part of it
    # A damaged one is made again.
    (name,) = (tmp_path / "cache/leat/index").iterdir()
    whole = name.read_bytes()
    for damage in (b"", whole[:300], whole[:-64], b"\0" * len(whole), whole[:16] + b"\xff" + whole[17:]):
        name.write_bytes(damage)
        assert dump(root, "--open")["scanned"]
        assert not dump(root, "--open")["scanned"]


def rot(path, spec, rng, flips):
    """Each flipped bit is noticed, logged and mended by a scan; the index is as it was before after each."""
    whole, truth = path.read_bytes(), dump(spec, "--open")
    assert not truth.pop("scanned")
    places = [rng.randrange(len(whole)) for _ in range(flips)] + [len(whole) - 1, 511, 512]
    for at in places:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
        got = run(spec, "--open")
        assert f"{path} is passed over" in got.pop("stderr"), at
        assert got.pop("scanned") and got == truth, at
        path.write_bytes(whole)
    for cut in (len(whole) - 64, len(whole) - 1, 512, 511):  # and zeros, as after a power cut
        path.write_bytes(whole[:cut] + bytes(len(whole) - cut))
        assert run(spec, "--open")["scanned"] == any(whole[cut:]), cut
        path.write_bytes(whole)


@pytest.mark.long
def test_index_rot(tmp_path, monkeypatch):
    rng = random.Random(5)
    write_tree(tmp_path / "set", {f"{c}/{i}": f"{c}{i}".encode() * 9 for c in "ab" for i in range(12)})
    with tarfile.open(tmp_path / "x.tar", "w") as t:
        for i in range(9):
            for field in ("jpg", "cls"):
                info = tarfile.TarInfo(f"{i}.{field}")
                info.size = 9
                t.addfile(info, io.BytesIO(b"%08d\n" % i))
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f.create_dataset("x", data=np.arange(300).reshape(30, 10), chunks=(4, 3), compression="gzip")
    np.save(tmp_path / "a.npy", np.arange(10))
    for name in ("set", "x.tar", "x.h5", "a.npy"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache-{name}"))
        dump(tmp_path / name, "--open")
        (kept,) = (tmp_path / f"cache-{name}/leat/index").iterdir()
        rot(kept, tmp_path / name, rng, 25)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
        dump(tmp_path / name, "--write")
        beside = tmp_path / name / ".leat-index" if name == "set" else tmp_path / (name + ".leat-index")
        (tmp_path / "none").write_bytes(b"")  # no folder: the scan stays in memory
        rot(beside, tmp_path / name, rng, 25)
        (tmp_path / "none").unlink()


@pytest.mark.long
def test_files_of_a_tree_that_change_in_place(tmp_path):
    """Their folder's time stays: up to 10,000 files are looked at one by one; of more, see test_bad_sources.py."""
    root = tmp_path / "set"
    write_tree(root, {f"{i // 100}/{i}": b"x" for i in range(10000)})
    dump(root, "--open")
    assert not dump(root, "--open")["scanned"]
    time.sleep(0.02)
    (root / "57/5733").write_bytes(b"y")
    assert dump(root, "--open")["scanned"] and not dump(root, "--open")["scanned"]
    dump(root, "--write")
    assert not dump(root, "--open")["scanned"]
    (root / "99/9999").write_bytes(b"longer")
    assert dump(root, "--open")["scanned"]  # the index beside the data is passed over
    write_tree(root, {"100/10000": b"x"})
    assert dump(root, "--open")["scanned"]
    time.sleep(0.02)
    (root / "57/5733").write_bytes(b"z")
    assert not dump(root, "--open")["scanned"]


def test_beside(tmp_path):
    root = tmp_path / "set"
    write_tree(root, {"a/1": b"1", "b/2": b"22"})
    assert not dump(root, "--write")["scanned"]  # writing it made the folder newer, not the index stale
    assert (root / ".leat-index").exists() and not (tmp_path / "cache").exists()
    assert not dump(root, "--open")["scanned"]
    assert [p.name for p in root.iterdir() if p.name.endswith(".tmp")] == []
    time.sleep(0.02)
    write_tree(root, {"c": b"1"})
    assert dump(root, "--open")["scanned"]
    np.save(tmp_path / "a.npy", np.arange(10))
    assert not dump(tmp_path / "a.npy", "--write")["scanned"]
    assert (tmp_path / "a.npy.leat-index").exists()
    assert not dump(tmp_path / "a.npy", "--open")["scanned"]
    assert dump(f"x={tmp_path}/a.npy", "--open")["scanned"]  # another field: another index
    np.save(tmp_path / "a.npy", np.arange(11))
    assert dump(tmp_path / "a.npy", "--open")["nsamples"] == 11
    # One that speaks of other files is passed over.
    np.save(tmp_path / "b.npy", np.arange(12))
    os.rename(tmp_path / "a.npy.leat-index", tmp_path / "b.npy.leat-index")
    assert dump(tmp_path / "b.npy", "--open")["nsamples"] == 12


def test_cache_notices_what_keeps_size_and_time(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(10))
    before = os.stat(tmp_path / "a.npy")
    assert dump(tmp_path / "a.npy", "--open")["scanned"]
    time.sleep(0.02)
    np.save(tmp_path / "b.npy", np.arange(10, 20).reshape(10, 1)[:, 0])
    os.utime(tmp_path / "b.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.rename(tmp_path / "b.npy", tmp_path / "a.npy")
    assert dump(tmp_path / "a.npy", "--open")["scanned"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs several users")
def test_index_of_somebody_else(tmp_path):
    """Beside the data only users with write permission there may put an index; in a folder open to all, the owner of the data."""
    let_in(tmp_path)
    mine, folder = user(65534), tmp_path / "d"
    folder.mkdir()

    def place(mode, data_owner, index_owner):
        os.chmod(folder, 0o777)
        np.save(folder / "a.npy", np.arange(10))
        os.chown(folder / "a.npy", data_owner, -1)
        dump(folder / "a.npy", "--write")
        os.chown(folder / "a.npy.leat-index", index_owner, -1)
        os.chmod(folder, mode)
        return dump(folder / "a.npy", "--open", **mine)

    assert not place(0o755, 65534, 65534)["scanned"]  # all mine
    assert not place(0o755, 65534, 0)["scanned"]  # root's
    assert not place(0o1777, 65532, 65532)["scanned"]  # of whom the data is
    assert not place(0o775, 65534, 65533)["scanned"]  # a colleague's, with write permission there
    assert place(0o1777, 65534, 65533)["scanned"]  # a stranger's
    assert place(0o777, 65532, 65533)["scanned"]
    # What a colleague wrote is held to every word of it.
    place(0o775, 65534, 65533)
    whole = (folder / "a.npy.leat-index").read_bytes()
    at = whole.index((128).to_bytes(8, "little"), 512)  # the field's address: behind the end of the file
    for damage in (whole[:at] + b"\xf8" + whole[at + 1 :], whole[:-64], whole + b"\0" * 64):
        (folder / "a.npy.leat-index").write_bytes(damage)
        assert dump(folder / "a.npy", "--open", **mine)["scanned"]
    # Not copied because it claims to be large.
    os.truncate(folder / "a.npy.leat-index", 1 << 40)
    assert dump(folder / "a.npy", "--open", **mine)["scanned"]


def test_cache_of_shards(tmp_path):
    (tmp_path / "s").mkdir()
    for i in range(3):
        write_tar(tmp_path / "s" / f"{i}.tar", [(f"{i}.x", b"1")])
    spec = f"{tmp_path}/s/*.tar"
    for what in (spec, tmp_path / "s"):
        assert dump(what, "--open")["scanned"]
        assert not dump(what, "--open")["scanned"]
    write_tar(tmp_path / "s" / "3.tar", [("3.x", b"1")])
    for what in (spec, tmp_path / "s"):
        assert dump(what, "--open")["nsamples"] == 4
    os.unlink(tmp_path / "s" / "0.tar")
    for what in (spec, tmp_path / "s"):
        assert dump(what, "--open")["nsamples"] == 3


def test_cache_cannot_be_written(tmp_path):
    (tmp_path / "cache").write_bytes(b"a file, not a folder")
    np.save(tmp_path / "a.npy", np.arange(10))
    assert dump(tmp_path / "a.npy", "--open")["scanned"]
    refused(tmp_path / "nothing", "not found")
