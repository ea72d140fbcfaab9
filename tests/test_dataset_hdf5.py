# SPDX-License-Identifier: Apache-2.0
"""The index of HDF5 files, held against h5py; and what it refuses."""
import fcntl
import os
import pathlib
import random
import re
import subprocess

import pytest

from lib_index import BUILD, cache, check_array, dump, refused, run  # noqa: F401

np = pytest.importorskip("numpy")
h5py = pytest.importorskip("h5py")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (7, 5, 6)},
        {"chunks": (7, 5, 6), "compression": "gzip"},
        {"chunks": (1, 5, 6), "compression": "gzip", "shuffle": True},
        {"chunks": (4, 2, 4), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (50, 3, 1), "shuffle": True},
        {"chunks": (3, 5, 4), "fletcher32": True},
        {"chunks": (8, 1, 6), "compression": 1},
        {"chunks": True, "compression": "gzip", "maxshape": (None, None, None)},
        {"chunks": (64, 8, 8), "maxshape": (None, None, None)},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["<f4", ">i8", "|u1", "<i2"])
def test_hdf5_layouts(tmp_path, options, dtype):
    array = (np.random.rand(50, 5, 6) * 100).astype(dtype)
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f.create_dataset("x", data=array, **options)
        f["y"] = np.arange(50)
        f["note"] = 3.0
    got = dump(tmp_path / "x.h5")
    check_array(got, "x", array)
    check_array(got, "y", np.arange(50))
    got = dump(f"z={tmp_path}/x.h5#/x;w={tmp_path}/x.h5#y")
    check_array(got, "z", array)
    check_array(got, "w", np.arange(50))


def test_hdf5_names_with_an_equals_sign(tmp_path):
    """They are names, as long as they are not nearly one of the words that may stand behind #."""
    with h5py.File(tmp_path / "x.h5", "w") as f:
        for name in ("extra=1", "rows_of=2", "row=2"):
            f[name] = np.arange(3)
    for name in ("extra=1", "rows_of=2", "/row=2"):
        check_array(dump(f"{tmp_path}/x.h5#{name}"), name.strip("/"), np.arange(3))
    refused(f"{tmp_path}/x.h5#row=2", "invalid", "rows=", "#/NAME")


def test_hdf5_four_dimensions_and_user_block(tmp_path):
    array = np.random.rand(9, 4, 6, 10).astype("f4")
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=1024) as f:
        f.create_dataset("g/a", data=array, chunks=(2, 3, 4, 5), compression="gzip", shuffle=True)
        f.create_dataset("g/b", data=array)
        f.create_dataset("g/c", data=array, chunks=(2, 4, 6, 10))
    for name in "abc":
        check_array(dump(f"{tmp_path}/x.h5#g/{name}"), name, array)
    extent = dump(f"{tmp_path}/x.h5#g/b")["extents"][0]
    assert extent["address"] % 4096 == extent["offset"] % 4096
    refused(tmp_path / "x.h5", "invalid", "root group")
    refused(f"{tmp_path}/x.h5#g", "invalid", "not a dataset")
    refused(f"{tmp_path}/x.h5#g/d", "not found", "g/d")


def test_hdf5_types(tmp_path):
    arrays = {
        "f2": np.random.rand(6, 3).astype("<f2"),
        "f8": np.random.rand(6, 3).astype(">f8"),
        "c8": (np.random.rand(6, 3) + 1j).astype("<c8"),
        "bool": np.array([True, False] * 3),
        "s": np.array([b"abc", b"de", b""] * 2, dtype="S4"),
        "v": np.arange(30, dtype="u1").view("V5"),
    }
    with h5py.File(tmp_path / "x.h5", "w") as f:
        for name, array in arrays.items():
            f[name] = array
    got = dump(tmp_path / "x.h5")
    for name, array in arrays.items():
        check_array(got, name, array)


@pytest.mark.parametrize("fill", [0, 7])
@pytest.mark.parametrize("chunks", [None, (4, 3), (4, 2)])
def test_hdf5_never_written(tmp_path, fill, chunks):
    with h5py.File(tmp_path / "x.h5", "w") as f:
        d = f.create_dataset("x", (10, 3), "<i4", chunks=chunks, fillvalue=fill)
        if chunks:
            d[5, 1] = 3
    with h5py.File(tmp_path / "x.h5", "r") as f:
        check_array(dump(tmp_path / "x.h5"), "x", f["x"][:])


def test_hdf5_refused(tmp_path):
    def refused_file(error, *words, **datasets):
        with h5py.File(tmp_path / "x.h5", "w") as f:
            for name, (args, kwargs) in datasets.items():
                f.create_dataset(name, *args, **kwargs)
        refused(tmp_path / "x.h5", error, "x.h5", *words)

    a = np.arange(1000.0)
    refused_file("unsupported", "lzf", "h5repack", x=((), {"data": a, "compression": "lzf"}))
    refused_file("unsupported", "filter", x=((), {"data": a.astype("i4"), "scaleoffset": 2}))
    refused_file("unsupported", "variable length", x=((), {"data": ["a", "b"]}))
    refused_file("unsupported", "variable length", x=(((3,),), {"dtype": h5py.vlen_dtype("f4")}))
    refused_file("unsupported", "compound", x=((), {"data": np.zeros(3, [("a", "f4"), ("b", "i4")])}))
    refused_file("unsupported", "external", x=(((10,), "f4"), {"external": str(tmp_path / "raw")}))
    refused_file("invalid", "(1000,)", "(999,)", x=((), {"data": a}), y=((), {"data": a[:-1]}))
    refused_file("invalid", "empty", x=(((0, 3), "f4"), {"maxshape": (None, 3)}))
    refused_file("invalid", "no array")
    with h5py.File(tmp_path / "x.h5", "w") as f:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((4,))
        h5py.h5d.create(f.id, b"x", h5py.h5t.NATIVE_INT32, space, plist)
    refused(tmp_path / "x.h5", "unsupported", "compact", "h5repack")
    with h5py.File(tmp_path / "v.h5", "w") as f:
        layout = h5py.VirtualLayout((4,), "i4")
        layout[:] = h5py.VirtualSource("x.h5", "x", (4,))
        f.create_virtual_dataset("x", layout)
    refused(tmp_path / "v.h5", "unsupported", "virtual")
    with h5py.File(tmp_path / "l.h5", "w") as f:
        f["x"] = h5py.ExternalLink("x.h5", "x")
    refused(f"{tmp_path}/l.h5#x", "not found")


@pytest.mark.long
def test_hdf5_truncated_and_damaged(tmp_path):
    array = np.random.rand(100, 50)
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f.create_dataset("x", data=array, chunks=(10, 50), compression="gzip", shuffle=True, fletcher32=True)
    whole = (tmp_path / "x.h5").read_bytes()
    for cut in (len(whole) - 1, len(whole) // 2, 2048, 100, 9):
        (tmp_path / "t.h5").write_bytes(whole[:cut])
        refused(tmp_path / "t.h5", "corrupt", "t.h5")
    with h5py.File(tmp_path / "x.h5", "r") as f:
        info = f["x"].id.get_chunk_info(3)
    (tmp_path / "t.h5").write_bytes(whole[: info.byte_offset + 50] + b"\xaa\x55" + whole[info.byte_offset + 52 :])
    refused(tmp_path / "t.h5", "corrupt", "checksum")
    # Any byte of the metadata: an error or an answer, never a crash or a hang of the parent.
    rng = np.random.default_rng(1)
    for at in rng.integers(0, 4000, 40):
        (tmp_path / "t.h5").write_bytes(whole[:at] + bytes([whole[at] ^ int(rng.integers(1, 256))]) + whole[at + 1 :])
        run(tmp_path / "t.h5")


# What libhdf5 has for the index of chunks, by what the dataset may grow to; the mark of each part of it.
@pytest.mark.parametrize("options", [{}, {"compression": "gzip", "shuffle": True, "fletcher32": True}], ids=["plain", "filtered"])
@pytest.mark.parametrize("written", [slice(None), slice(100, 130)], ids=["all", "some"])
@pytest.mark.parametrize("most", [None, (None, 5), (None, None)], ids=["fixed", "extensible", "btree"])
def test_hdf5_damaged_chunk_index(tmp_path, options, written, most):
    """An index that cannot be read is an error, where chunks that were never written are fill values."""
    array = np.full((300, 5), -1, "<i4")
    array[written] = np.arange(1500).reshape(300, 5)[written]
    with h5py.File(tmp_path / "x.h5", "w", libver="latest") as f:
        d = f.create_dataset("x", (300, 5), "<i4", chunks=(7, 5), maxshape=most, fillvalue=-1, **options)
        d[written] = array[written]
    with h5py.File(tmp_path / "x.h5") as f:
        check_array(dump(tmp_path / "x.h5"), "x", f["x"][:])
    whole = (tmp_path / "x.h5").read_bytes()
    damaged = 0
    for mark in (b"FAHD", b"FADB", b"EAHD", b"EAIB", b"EASB", b"EADB", b"BTHD", b"BTIN", b"BTLF"):
        at = whole.find(mark)
        if at >= 0:
            (tmp_path / "t.h5").write_bytes(whole[: at + 12] + bytes([whole[at + 12] ^ 0x20]) + whole[at + 13 :])
            with h5py.File(tmp_path / "t.h5") as f, pytest.raises(OSError):
                f["x"][:]
            refused(tmp_path / "t.h5", "corrupt", "t.h5", "x")
            damaged += 1
    assert damaged >= 2


def test_hdf5_damaged_old_chunk_index(tmp_path):
    """The B-tree of old files has no checksum: a key that was changed hides the chunks beside it."""
    with h5py.File(tmp_path / "x.h5", "w", libver="earliest") as f:
        d = f.create_dataset("x", (300, 5), "<i4", chunks=(7, 5), fillvalue=-1)
        d[100:130] = 7
    whole = (tmp_path / "x.h5").read_bytes()
    at = whole.rfind(b"TREE")
    for damage in (b"T", bytes([whole[at + 24 + 8] ^ 0x80])):
        place = at if damage == b"T" else at + 24 + 8
        (tmp_path / "t.h5").write_bytes(whole[:place] + (b"X" if damage == b"T" else damage) + whole[place + 1 :])
        refused(tmp_path / "t.h5", "corrupt", "t.h5", "x")


@pytest.mark.parametrize("userblock", [0, 512, 4096])
def test_hdf5_never_written_behind_a_user_block(tmp_path, userblock):
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=userblock) as f:
        f.create_dataset("x", (200,), "<f4", fillvalue=3)
        f.create_dataset("y", (200,), "<f4")
        f["z"] = np.arange(200)
    with open(tmp_path / "x.h5", "r+b") as f:
        f.write(b"SECRET" * (userblock // 6))
    got = dump(tmp_path / "x.h5")
    check_array(got, "x", np.full(200, 3, "<f4"))
    check_array(got, "y", np.zeros(200, "<f4"))
    check_array(got, "z", np.arange(200))


@pytest.mark.parametrize("members, boolean", [({"FALSE": 0, "TRUE": 1}, True), ({"TRUE": 1, "FALSE": 0}, True),
                                              ({"FALSE": 1, "TRUE": 0}, False), ({"FALSE": 0, "TRUE": 2}, False),
                                              ({"FALSE": 0, "TRUE": -1}, False), ({"NO": 0, "YES": 1}, False)])
def test_hdf5_booleans_by_their_values(tmp_path, members, boolean):
    values = np.array(list(members.values()) * 2, "i1")
    with h5py.File(tmp_path / "x.h5", "w") as f:
        kind = h5py.h5t.enum_create(h5py.h5t.STD_I8LE)
        for name, value in members.items():
            kind.enum_insert(name.encode(), value)
        d = h5py.h5d.create(f.id, b"x", kind, h5py.h5s.create_simple((4,)))
        d.write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=kind)
    with h5py.File(tmp_path / "x.h5") as f:
        assert (f["x"].dtype == bool) == boolean
    check_array(dump(tmp_path / "x.h5"), "x", values.astype(bool) if boolean else values)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("nested", [False, True])
def test_hdf5_damaged_header_is_named(tmp_path, libver, nested):
    """A dataset that cannot be read fails the opening of the whole file; the others are there by name."""
    with h5py.File(tmp_path / "x.h5", "w", libver=libver) as f:
        group = f.create_group("group") if nested else f
        for name in ("first", "second"):
            group[name] = np.arange(100)
        at = h5py.h5o.get_info(group["second"].id).addr
    whole = (tmp_path / "x.h5").read_bytes()
    wrong = bytes([whole[at] ^ 0xFF]) * 30
    (tmp_path / "x.h5").write_bytes(whole[:at] + wrong + whole[at + len(wrong) :])
    prefix = "group/" if nested else ""
    if not nested:
        refused(tmp_path / "x.h5", "corrupt", '"second"', "damaged", '#/DATASET')
    refused(f"{tmp_path}/x.h5#/{prefix}second", "corrupt", "second", "damaged")
    refused(f"{tmp_path}/x.h5#/{prefix}third", "not found", "third")
    refused(f"{tmp_path}/x.h5#/nowhere/third", "not found", "third")
    check_array(dump(f"{tmp_path}/x.h5#/{prefix}first"), "first", np.arange(100))


@pytest.mark.long
def test_hdf5_damaged_message_of_a_header(tmp_path):
    """The object can be found and is a dataset, but not opened."""
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["first"] = f["second"] = np.arange(100, dtype="<i4")
        f["second2"] = np.arange(3)
        at = h5py.h5o.get_info(f["second2"].id).addr
    whole = (tmp_path / "x.h5").read_bytes()
    for at in range(at + 16, at + 16 + 128):
        (tmp_path / "t.h5").write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        got = run(tmp_path / "t.h5")
        if "error" in got or {f["name"] for f in got["fields"]} == {"first", "second", "second2"}:
            continue
        with h5py.File(tmp_path / "t.h5") as f:  # without a checksum it may have become something else that is sound
            assert not isinstance(f["second2"], h5py.Dataset) or f["second2"].shape == (), at


@pytest.mark.parametrize("swmr", [False, True])
def test_hdf5_that_is_being_written(tmp_path, swmr):
    with h5py.File(tmp_path / "x.h5", "w", libver="latest") as f:
        f.create_dataset("x", data=np.arange(100), chunks=(10,), maxshape=(None,))
        if swmr:
            f.swmr_mode = True
        f.flush()
        refused(tmp_path / "x.h5", "busy", "x.h5", "writing", "close", "h5clear -s")
        (tmp_path / "left.h5").write_bytes((tmp_path / "x.h5").read_bytes())
    check_array(dump(tmp_path / "x.h5"), "x", np.arange(100))
    refused(tmp_path / "left.h5", "busy", "h5clear -s")
    with h5py.File(tmp_path / "u.h5", "w", libver="latest", userblock_size=1024) as f:
        f["x"] = np.arange(100)
        f.flush()
        refused(tmp_path / "u.h5", "busy", "h5clear -s")


def test_hdf5_mixed_with_npy(tmp_path):
    a, b = np.random.rand(20, 3), np.arange(20)
    np.save(tmp_path / "b.npy", b)
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f.create_dataset("x", data=a, chunks=(3, 3), compression="gzip")
        f["z"] = b
    got = dump(f"a={tmp_path}/x.h5#x;b={tmp_path}/b.npy")
    check_array(got, "a", a)
    check_array(got, "b", b)
    refused(f"a={tmp_path}/x.h5;b={tmp_path}/b.npy", "invalid", "2 datasets")
    refused(f"{tmp_path}/b.npy#x", "invalid", "not an HDF5 file")


def test_hdf5_many_chunks(tmp_path):
    """A table of 20,000 chunks in seconds: not the square of them."""
    array = np.arange(20_000, dtype="u4").reshape(-1, 1)
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f.create_dataset("x", data=array, chunks=(1, 1), compression=1)
    check_array(dump(tmp_path / "x.h5"), "x", array)


def hdf5_helper(tmp_path, script):
    folder = tmp_path / "libexec"
    folder.mkdir(exist_ok=True)
    (folder / "leat-hdf5-table").write_text("#!/bin/sh\n" + script)
    os.chmod(folder / "leat-hdf5-table", 0o755)
    return {"env": {**os.environ, "LEAT_LIBEXEC": str(folder)}}


def test_hdf5_chunks_that_claim_much(tmp_path):
    """A few MiB that would be gigabytes once decoded are refused before any memory is requested."""
    with h5py.File(tmp_path / "x.h5", "w") as f:
        x = f.create_dataset("x", (1 << 29, 7), "u1", chunks=(1 << 29, 4), compression=9)
        x.id.write_direct_chunk((0, 0), os.urandom(2 << 20))
    refused(tmp_path / "x.h5", "unsupported", "2147483648 bytes", "1 GiB", "h5repack")
    with h5py.File(tmp_path / "x.h5", "w") as f:
        x = f.create_dataset("x", (1 << 29, 1), "u1", chunks=(1 << 29, 1), compression=9)
        x.id.write_direct_chunk((0, 0), os.urandom(1000))
    refused(tmp_path / "x.h5", "corrupt", "impossible size")


def test_hdf5_child_is_confined(tmp_path):
    """What runs libhdf5 has its three descriptors and no more, may open nothing, and has limits."""
    child = BUILD / "src" / "dataset" / "hdf5" / "leat-hdf5-table"
    if b"__asan_init" in child.read_bytes() or b"__tsan_init" in child.read_bytes():
        pytest.skip("sanitizers map more than the limit")
    with h5py.File(tmp_path / "x.h5", "w") as f:  # its table does not fit into a pipe
        f.create_dataset("x", data=np.zeros((40_000, 1), "u1"), chunks=(4, 1))
    out, into = os.pipe()
    high = fcntl.fcntl(out, fcntl.F_DUPFD, 900)
    with open(tmp_path / "x.h5", "rb") as f:
        run = subprocess.Popen([child], stdin=f, stdout=into, stderr=subprocess.DEVNULL, pass_fds=(high,))
    os.close(into)
    try:
        proc = pathlib.Path("/proc") / str(run.pid)
        os.read(out, 1)  # it is writing
        assert sorted(os.listdir(proc / "fd")) == ["0", "1", "2"]
        status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines() if ":\t" in line)
        assert status["Seccomp"] == "2" and status["NoNewPrivs"] == "1"
        limits = (proc / "limits").read_text()
        assert re.search(r"Max open files +3 +3 ", limits) and re.search(rf"Max address space +{4 << 30} ", limits)
        assert re.search(r"Max cpu time +120 +120 ", limits) and re.search(r"Max core file size +0 +0 ", limits)
    finally:
        run.kill()
        run.wait()
        os.close(out)
        os.close(high)


def test_hdf5_child_misbehaves(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["x"] = np.arange(5)
    refused(tmp_path / "x.h5", "corrupt", "signal 11", **hdf5_helper(tmp_path, "kill -SEGV $$"))
    refused(tmp_path / "x.h5", "corrupt", "status 3", **hdf5_helper(tmp_path, "exit 3"))
    refused(tmp_path / "x.h5", "corrupt", "table", **hdf5_helper(tmp_path, "echo nonsense"))
    refused(tmp_path / "x.h5", "corrupt", "table", **hdf5_helper(tmp_path, "exit 0"))
