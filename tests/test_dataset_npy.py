# SPDX-License-Identifier: Apache-2.0
"""The index of .npy files, held against NumPy; and what it refuses."""
import os
import random

import pytest

from lib_index import cache, check_array, dump, refused, run  # noqa: F401

np = pytest.importorskip("numpy")


@pytest.mark.parametrize("dtype", ["|u1", "<i2", ">i4", "<f4", "<f8", "<c16", "|b1", "<f2", "|S5", "<U3", "<M8[ns]", "|V7"])
def test_npy_dtypes(tmp_path, dtype):
    array = np.frombuffer(os.urandom(60 * np.dtype(dtype).itemsize), "u1").copy()
    if dtype == "|b1":
        array &= 1
    if dtype == "<U3":
        array = np.array(["abc", "äöü", "z"] * 20)
    array = array.view(dtype).reshape(10, 2, 3)
    np.save(tmp_path / "a.npy", array)
    check_array(dump(tmp_path / "a.npy"), "data", array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(tmp_path, version):
    array = np.arange(24.0).reshape(4, 6)
    with open(tmp_path / "a.npy", "wb") as f:
        np.lib.format.write_array(f, array, version)
    check_array(dump(tmp_path / "a.npy"), "data", array)


def test_npy_together(tmp_path):
    images, labels = np.random.rand(50, 3, 4).astype("f4"), np.arange(50, dtype="u2")
    np.save(tmp_path / "i.npy", images)
    os.mkdir(tmp_path / "d")
    np.save(tmp_path / "d" / "l.npy", labels)
    got = dump(f"image={tmp_path}/i.npy;label=file://{tmp_path}/d/l.npy")
    check_array(got, "image", images)
    check_array(got, "label", labels)
    for extent in got["extents"]:  # images of their files: direct I/O lands in place
        assert extent["address"] % 4096 == extent["offset"] % 4096


@pytest.mark.parametrize("shape", [(7,), (7, 1), (1, 7), (1, 7, 1), (1, 1)])
def test_npy_in_both_orders(tmp_path, shape):
    """The flag of Fortran order says nothing where one dimension alone is longer than 1: Julia sets it there."""
    array = np.arange(np.prod(shape), dtype="<i4").reshape(shape)
    np.save(tmp_path / "c.npy", array)
    whole = (tmp_path / "c.npy").read_bytes()
    (tmp_path / "f.npy").write_bytes(whole.replace(b"'fortran_order': False", b"'fortran_order': True "))
    assert np.load(tmp_path / "f.npy").tolist() == array.tolist()
    check_array(dump(tmp_path / "f.npy"), "data", array)


def dtype_strings():
    """What may stand in a header: all of a grammar that is wider than NumPy's, and what its own tests have."""
    sizes = ["", "0", "1", "2", "3", "4", "5", "8", "04", "12", "16", "24", "32", "4L", "-1", " 4", "4 "]
    yield from (order + kind + size for order in ("", "<", ">", "|", "=", "!") for kind in "?biufcSaUVmMOxqlLd" for size in sizes)
    spans = ["ns", "25s", "100000000ns", "2147483647as", "2147483648s", "0s", "-1s", "1", "", "foo", "generic", "Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ps",
             "fs", "as", "2W/3", "Y/4", "1.5s", "s ", " s", "ss", "NS", "B", "]", "s]x", "μs", "10000000000000000000000s"]
    yield from (f"{order}{kind}8[{span}]" for order in ("<", ">") for kind in "mM" for span in spans)
    yield from ("<m8[s", "<M8]", "<m8[s]]", "<m4[s]", "<f4[s]", "", "<", "float32", "int", "i4,f4", "(2,)f4", "2f4", "datetime64[ns]", "<U268435456", "<S2147483648",
                "V99999999999999999999", "<f4\x00", "T", "<T16", "f4 ")


@pytest.mark.plain
def test_npy_dtypes_as_numpy_has_them(tmp_path):
    """What NumPy refuses is refused; what it accepts is the same type here, or refused with a message."""
    spec, accepted = tmp_path / "a.npy", set()
    for descr in sorted(set(dtype_strings())):
        try:
            dtype = np.dtype(descr)
        except (TypeError, ValueError, OverflowError):
            dtype = None
        header = repr({"descr": descr, "fortran_order": False, "shape": (2,)}).encode()
        spec.write_bytes(b"\x93NUMPY\x03\x00" + len(header).to_bytes(4, "little") + header + bytes(2 * dtype.itemsize if dtype and 0 < dtype.itemsize < 999 else 16))
        got = run(spec)
        if "error" in got:
            assert got["error"] in ("unsupported", "corrupt", "invalid") and "dtype" in got["message"] or "no bytes" in got["message"] or "objects" in got["message"], got
        else:
            assert dtype is not None and np.dtype(got["fields"][0]["dtype"]) == dtype, (descr, got)
            accepted.add(dtype)
    standard = [f"{o}{k}" for o in "<>" for k in ("i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16", "U5", "m8", "M8[ns]", "m8[100000000ns]", "M8[2147483647as]")]
    assert accepted >= {np.dtype(k) for k in [*standard, "?", "i1", "u1", "S5", "V16"]}


def test_npy_refused(tmp_path):
    a = np.arange(12.0)
    np.save(tmp_path / "f.npy", np.asfortranarray(a.reshape(3, 4)))
    refused(tmp_path / "f.npy", "unsupported", "Fortran", "ascontiguousarray")
    np.save(tmp_path / "o.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    refused(tmp_path / "o.npy", "unsupported", "objects")
    np.save(tmp_path / "s.npy", np.zeros(3, dtype=[("x", "f4")]))
    refused(tmp_path / "s.npy", "unsupported", "structured")
    np.save(tmp_path / "0.npy", np.float32(3))
    refused(tmp_path / "0.npy", "invalid", "single value")
    np.save(tmp_path / "e.npy", np.zeros((0, 3)))
    refused(tmp_path / "e.npy", "invalid", "empty")
    np.save(tmp_path / "z.npy", np.zeros((3, 0)))
    refused(tmp_path / "z.npy", "invalid", "no bytes")
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", a[:5])
    refused(f"x={tmp_path}/a.npy;y={tmp_path}/b.npy", "invalid", "(12,)", "(5,)")
    refused(f"x={tmp_path}/a.npy;x={tmp_path}/a.npy", "invalid", "two sources")
    refused(f"x={tmp_path}/a.npy;{tmp_path}/b.npy", "invalid", "name")
    np.savez(tmp_path / "z.npz", a)
    refused(tmp_path / "z.npz", "unsupported", "zip")
    (tmp_path / "x.bin").write_bytes(b"hello")
    refused(tmp_path / "x.bin", "unsupported", ".npy, HDF5")
    refused(tmp_path / "none.npy", "not found", "none.npy")
    (tmp_path / "none.npy").write_bytes(b"")
    refused(tmp_path / "none.npy", "corrupt", "empty")


def test_npy_truncated(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(1000.0))
    whole = (tmp_path / "a.npy").read_bytes()
    for cut in (len(whole) - 1, 128, 127, 20, 10, 7):
        (tmp_path / "t.npy").write_bytes(whole[:cut])
        refused(tmp_path / "t.npy", "corrupt", "t.npy")


@pytest.mark.parametrize("shape", ["(9223372036854775808,)", "(4294967296, 4294967296)", "(9223372036854775807, 2)"])
def test_npy_overflow(tmp_path, shape):
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text)
    refused(tmp_path / "a.npy", "corrupt", "a.npy")
