# SPDX-License-Identifier: Apache-2.0
"""What the index says, held against NumPy, h5py, tarfile and the file system; and what it refuses."""
import fcntl
import io
import json
import os
import pathlib
import random
import re
import subprocess
import tarfile
import time
import zlib

import pytest

np = pytest.importorskip("numpy")
h5py = pytest.importorskip("h5py")

BUILD = pathlib.Path(os.environ.get("LEAT_BUILD", pathlib.Path(__file__).resolve().parent.parent / "build"))
DUMP = BUILD / "tests" / "tools" / "leat-index-dump"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(spec, *options, **kwargs):
    done = subprocess.run([DUMP, *options, str(spec)], capture_output=True, timeout=60, **kwargs)
    assert done.returncode in (0, 1), done.stderr.decode(errors="replace")
    return json.loads(done.stdout) | {"stderr": done.stderr.decode(errors="replace")}


def dump(spec, *options, warns=None, **kwargs):
    """`warns`: what the warnings say, in their order."""
    got = run(spec, *options, **kwargs)
    said = [line for line in got.pop("stderr").splitlines() if "are left out" in line or "not followed" in line]
    assert warns is None or len(said) == len(warns) and all(w in line for w, line in zip(warns, said)), said
    assert "error" not in got, got
    assert all(sample["found"] for sample in got["samples"])
    return got


def refused(spec, error, *words, **kwargs):
    got = run(spec, **kwargs)
    assert got.get("error") == error, got
    for word in words:
        assert word in got["message"], got["message"]
    return got["message"]


def check_array(got, field, array):
    """Every sample's bytes are those of array[i]."""
    described = next(f for f in got["fields"] if f["name"] == field)
    assert described["kind"] == "uniform"
    assert described["shape"] == list(array.shape[1:])
    assert np.dtype(described["dtype"]) == array.dtype
    assert got["nsamples"] == len(array)
    for i, sample in enumerate(got["samples"]):
        part = sample["parts"][field]
        want = np.ascontiguousarray(array[i : i + 1]).tobytes()  # a slice: a scalar would lose its padding
        assert part["bytes"] == len(want)
        assert part["crc32"] == zlib.crc32(want), f"{field}[{i}]"
        assert sample["key"] == str(i)


# --- npy ---------------------------------------------------------------------------------------------------------


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


# --- directories -------------------------------------------------------------------------------------------------


def write_tree(root, files):
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def image_folder(root):
    """The files in the order of torchvision's ImageFolder, which differs only in that hidden ones count there."""
    found = []
    for c in sorted(e.name for e in os.scandir(root) if e.is_dir() and not e.name.startswith(".")):
        for folder, _, names in sorted(os.walk(root / c, followlinks=True)):
            found += [os.path.relpath(os.path.join(folder, n), root) for n in sorted(names)
                      if not n.startswith(".") and os.path.isfile(os.path.join(folder, n))]
    return found


def labels(got):
    return {s["key"]: s["label"] for s in got["samples"]}


def test_tree(tmp_path):
    files = {f"{c}/{n}.bin": os.urandom(n * 997) for c in ("a", "a-b", "a.b", "B", "ä") for n in range(5)}
    files["a/deep/er/x"] = os.urandom(200_000)
    root = tmp_path / "set"
    write_tree(root, files)
    write_tree(root, {".hidden": b"x", "a/.hidden": b"x", ".git/x": b"x"})
    os.symlink(tmp_path / "set" / "a" / "1.bin", root / "a" / "link")
    os.symlink(tmp_path / "set" / "B", root / "a" / "folder-link")
    files["a/link"] = files["a/1.bin"]
    files |= {f"a/folder-link/{n}.bin": files[f"B/{n}.bin"] for n in range(5)}
    os.mkfifo(root / "a" / "fifo")
    got = dump(root)
    assert [s["key"] for s in got["samples"]] == image_folder(root)
    assert sorted(files) == sorted(image_folder(root))
    classes = sorted({"a", "a-b", "a.b", "B", "ä"}, key=os.fsencode)
    for sample in got["samples"]:
        data = files[sample["key"]]
        assert sample["parts"]["data"]["bytes"] == len(data)
        assert sample["parts"]["data"]["crc32"] == zlib.crc32(data)
        assert sample["class"] == sample["key"].split("/")[0]
        assert sample["label"] == classes.index(sample["class"])
        address = sample["parts"]["data"]["address"]
        assert address % (4096 if len(data) >= 128 * 1024 else 64) == 0
    assert got["flags"] & 1


def test_tree_flat_and_mixed(tmp_path):
    write_tree(tmp_path / "flat", {"b": b"1", "a": b"22", "c": b""})
    got = dump(tmp_path / "flat")
    assert [f["name"] for f in got["fields"]] == ["data"]
    assert [s["parts"]["data"]["bytes"] for s in got["samples"]] == [2, 1, 0]
    write_tree(tmp_path / "mixed", {"b": b"1", "a/x": b"22", "c/x": b"333"})
    got = dump(tmp_path / "mixed", warns=[f"{tmp_path}/mixed: 1 files beside the class folders have no class and are left out: b"])
    assert [(s["key"], s["class"], s["label"]) for s in got["samples"]] == [("a/x", "a", 0), ("c/x", "c", 1)]
    (tmp_path / "empty-folders" / "a").mkdir(parents=True)
    write_tree(tmp_path / "empty-folders", {"x": b"1"})
    got = dump(tmp_path / "empty-folders")
    assert [f["name"] for f in got["fields"]] == ["data"] and [s["key"] for s in got["samples"]] == ["x"]


def test_tree_order(tmp_path):
    """ImageFolder's: files of a folder before those of the folders in it, folders by their whole paths, classes by their names."""
    write_tree(tmp_path / "t", {p: p.encode() for p in (
        "a/z", "a/b/1", "a/b/c/1", "a/b-/1", "a/b!/1", "a/B", "a-/x", "a-/a/x", "a!/x", "b/1", "b/10", "b/2")})
    got = dump(tmp_path / "t", warns=[])
    assert [s["key"] for s in got["samples"]] == image_folder(tmp_path / "t")
    assert [s["key"] for s in got["samples"]][:7] == ["a/B", "a/z", "a/b/1", "a/b!/1", "a/b-/1", "a/b/c/1", "a!/x"]
    assert all(s["class"] == s["key"].split("/")[0] for s in got["samples"])


def test_tree_links_to_folders(tmp_path):
    """Class folders that are links are classes; a loop ends; links that lead nowhere cost themselves and nothing else."""
    write_tree(tmp_path / "all", {f"n{c}/{i}": b"%d%d" % (c, i) for c in range(4) for i in range(3)})
    for name, links in (("links", "13"), ("only", "0123")):
        root = tmp_path / name
        root.mkdir()
        for c in range(4):
            if str(c) in links:
                os.symlink(tmp_path / "all" / f"n{c}", root / f"n{c}")
            else:
                write_tree(root, {f"n{c}/{i}": b"%d%d" % (c, i) for i in range(3)})
        got = dump(root, "--open", warns=[])
        assert labels(got) == {f"n{c}/{i}": c for c in range(4) for i in range(3)}
        assert got["fingerprint"] == dump(tmp_path / "all")["fingerprint"]
        assert not dump(root, "--open")["scanned"]
        time.sleep(0.02)
        write_tree(tmp_path / "all", {"n1/new": b"1"})  # behind a link
        assert dump(root, "--open")["scanned"]
        os.unlink(tmp_path / "all/n1/new")
    write_tree(tmp_path / "loops", {"a/x": b"1", "b/deep/x": b"2"})
    os.symlink(".", tmp_path / "loops/a/self")
    os.symlink("../..", tmp_path / "loops/b/deep/up")
    os.symlink(".", tmp_path / "loops/c")
    os.symlink("itself", tmp_path / "loops/a/itself")
    got = dump(tmp_path / "loops", warns=["1 symbolic links that lead nowhere are left out: a/itself",
                                          "3 symbolic links back to a folder above them are not followed: a/self, b/deep/up, c"])
    assert labels(got) == {"a/x": 0, "b/deep/x": 1}


def test_tree_dangling_links(tmp_path):
    root = tmp_path / "set"
    write_tree(root, {"a/1": b"1", "a/2": b"2", "b/1": b"1"})
    os.symlink(tmp_path / "later", root / "a/15")
    os.symlink(tmp_path / "later-folder", root / "aa")
    got = dump(root, "--open", warns=["2 symbolic links that lead nowhere are left out: "])
    assert labels(got) == {"a/1": 0, "a/2": 0, "b/1": 1}
    assert not dump(root, "--open", warns=[])["scanned"]
    (tmp_path / "later").write_bytes(b"15")  # no folder of the set changes by this
    assert labels(dump(root, "--open")) == {"a/1": 0, "a/15": 0, "a/2": 0, "b/1": 1}
    write_tree(tmp_path / "later-folder", {"x": b""})
    assert labels(dump(root, "--open", warns=[])) == {"a/1": 0, "a/15": 0, "a/2": 0, "aa/x": 1, "b/1": 2}


def test_tree_filter(tmp_path):
    """A class whose files do not count keeps its number, as ImageFolder's does; what was not asked for is worth no warning."""
    root = tmp_path / "set"
    write_tree(root, {p: p.encode() for p in ("a/1.txt", "b/1.JPG", "b/2.jpg", "b/2.jpg.txt", "b/jpg", "c/deep/3.png", "classes.txt")})
    pictures = {"b/1.JPG": 1, "b/2.jpg": 1, "c/deep/3.png": 2}
    for extensions in ("jpg,png", ".jpg,.png", ".PNG,JPG"):
        assert labels(dump(f"{root}#extensions={extensions}", "--open", warns=[])) == pictures
        assert not dump(f"{root}#extensions={extensions}", "--open")["scanned"]
    assert labels(dump(f"{root}#pattern=*.jpg")) == {"b/2.jpg": 1}
    assert labels(dump(f"{root}#pattern=?/deep/*")) == {"c/deep/3.png": 2}
    assert labels(dump(f"{root}#pattern=2*#extensions=txt")) == {"b/2.jpg.txt": 1}
    assert [s["key"] for s in dump(f"{root}#pattern=classes*")["samples"]] == ["classes.txt"]
    dump(root, "--write")
    assert labels(dump(f"{root}#pattern=*.jpg", "--open")) == {"b/2.jpg": 1}  # the index beside the data has all
    (root / "s").mkdir()
    write_tar(root / "s/0.tar", [("x.jpg", b"1")])
    assert [s["key"] for s in dump(f"{root}/s#pattern=*")["samples"]] == ["0.tar"]
    refused(f"{root}#extensions=gif", "invalid", "empty", "extensions=")
    refused(f"{root}#extensions=", "invalid", "jpg,jpeg,png")
    refused(f"{root}#pattern=a#pattern=b", "invalid", "two")
    refused(f"{root}/b/2.jpg#pattern=*", "invalid", "files of a folder")
    refused(f"{root}/s/*.tar#pattern=*", "invalid", "files of a folder")
    np.save(tmp_path / "a.npy", np.arange(4))
    refused(f"{tmp_path}/a.npy#extensions=npy", "invalid", "files of a folder")
    refused(f"x={root}#pattern=*", "invalid")


def test_tree_refused(tmp_path):
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    (tmp_path / "empty" / ".hidden").write_bytes(b"x")
    refused(tmp_path / "empty", "invalid", "empty")
    bad = os.fsencode(tmp_path / "latin") + b"/caf\xe9"
    os.mkdir(tmp_path / "latin")
    os.close(os.open(bad, os.O_CREAT))
    refused(tmp_path / "latin", "invalid", "caf\\xe9", "UTF-8")
    refused(tmp_path / "fältet", "not found", "fältet")
    for n in range(180, 230):  # wherever the message is cut
        refused(tmp_path / ("ä" * 100) / ("x" + "ä" * 110) / ("y" * n), "not found")
    (tmp_path / "x.bin").write_bytes(b"")
    weird = os.fsencode(tmp_path) + b"/caf\xe9"
    os.link(tmp_path / "x.bin", weird)
    refused(os.fsdecode(weird), "unsupported", "caf\\xe9")
    os.mkdir(tmp_path / "dangling")
    os.symlink("nothing", tmp_path / "dangling" / "x")
    refused(tmp_path / "dangling", "invalid", "empty")
    refused(tmp_path / "nowhere", "not found", "nowhere")
    refused(f"x={tmp_path}/empty", "invalid", "only arrays")


def test_tree_too_deep(tmp_path):
    os.mkdir(tmp_path / "deep")
    fd = os.open(tmp_path / "deep", os.O_RDONLY)
    for _ in range(1003):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_CREAT, dir_fd=fd))
    os.close(fd)
    try:
        refused(tmp_path / "deep", "invalid", "1000 folders deep")
    finally:  # shutil, and so pytest's own clean-up, recurses and would not come through
        subprocess.run(["rm", "-rf", tmp_path / "deep"], check=True)


def let_in(path):
    for folder in [path, *path.parents]:
        if folder != pathlib.Path("/tmp") and folder != pathlib.Path("/"):
            os.chmod(folder, os.stat(folder).st_mode | 0o055)


def user(uid):
    if not os.access(DUMP, os.X_OK) or subprocess.run([DUMP], user=uid, capture_output=True).returncode != 2:
        pytest.skip("the build is not readable by other users")
    return {"user": uid, "group": uid, "extra_groups": []}


def test_tree_denied(tmp_path):
    """As another user where the tests run as root, to whom no permission is denied."""
    write_tree(tmp_path / "set", {"open/x": b"1", "closed/x": b"2"})
    os.chmod(tmp_path / "set" / "closed", 0)
    as_user = {}
    if os.geteuid() == 0:
        let_in(tmp_path)
        as_user = user(65534)
    refused(tmp_path / "set", "denied", "closed", **as_user)
    os.chmod(tmp_path / "set" / "closed", 0o755)
    os.chmod(tmp_path / "set" / "open", 0o644)
    refused(tmp_path / "set", "denied", "open", **as_user)


# --- tar ---------------------------------------------------------------------------------------------------------


def write_tar(path, members, **options):
    with tarfile.open(path, "w", **options) as t:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))


def link(name, kind, target):
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar(tmp_path, form):
    long = "long-folder/" * 12 if form != tarfile.USTAR_FORMAT else "folder/" * 12
    want = {f"{long}{i:04}": {"jpg": os.urandom(i * 700), "seg.png": os.urandom(5), "cls": b"1"} for i in range(20)}
    members = [(f"./{key}.{ext.upper()}", data) for key, parts in want.items() for ext, data in parts.items()]
    members += [("README", b"no dot"), ("__meta__", b"skip"), ("__meta__/x/a.jpg", b"skip"), (".hidden", b"skip")]
    members += [(link("l.jpg", tarfile.SYMTYPE, "x"), b""), (link("folder/x.y", tarfile.DIRTYPE, ""), b"")]
    write_tar(tmp_path / "a.tar", members, format=form)
    got = dump(tmp_path / "a.tar")
    assert [s["key"] for s in got["samples"]] == list(want)
    assert [f["name"] for f in got["fields"]] == ["jpg", "seg.png", "cls"]
    for sample in got["samples"]:
        for field, data in want[sample["key"]].items():
            assert sample["parts"][field]["bytes"] == len(data)
            assert sample["parts"][field]["crc32"] == zlib.crc32(data)
    assert got["extents"][0]["address"] % 4096 == 0


def test_tar_absent_field_and_order(tmp_path):
    write_tar(tmp_path / "a.tar", [("b.jpg", b"1"), ("a.jpg", b"22"), ("a.txt", b"3"), ("c.txt", b"4")])
    got = dump(tmp_path / "a.tar")
    assert [s["key"] for s in got["samples"]] == ["b", "a", "c"]
    assert [sorted(s["parts"]) for s in got["samples"]] == [["jpg"], ["jpg", "txt"], ["txt"]]


def test_tar_shards(tmp_path):
    for i in range(12):
        write_tar(tmp_path / f"s-{i:03}.tar", [(f"{i}-{j}.bin", os.urandom(100)) for j in range(3)])
    (tmp_path / ".leat-index").write_bytes(b"no index")
    want = [f"{i}-{j}" for i in range(12) for j in range(3)]
    for spec in (tmp_path, f"{tmp_path}/s-{{000..011}}.tar", f"{tmp_path}/s-*.tar", f"{tmp_path}/s-0[01]?.tar"):
        got = dump(spec)
        assert [s["key"] for s in got["samples"]] == want
        assert len(got["extents"]) == 12
    assert dump(f"{tmp_path}/s-{{003,001}}.tar")["nsamples"] == 6
    assert [s["key"] for s in dump(f"{tmp_path}/s-{{011..010}}.tar")["samples"]][0] == "11-0"
    refused(f"{tmp_path}/s-{{{','.join(f'{i:03}' for i in range(200))}}}.tar", "not found", "s-012.tar")
    refused(f"{tmp_path}/s-{{{','.join(['x' * 200] * 60)}}}{{0..999999}}.tar", "invalid", "256 MiB")
    refused(f"{tmp_path}/s-{{010..012}}.tar", "not found", "s-012.tar")
    refused(f"{tmp_path}/t-*.tar", "not found", "no file matches")
    refused(f"{tmp_path}/s-{{a..b}}.tar", "invalid", "{000..017}")
    refused(f"{tmp_path}/s-{{0..99999999}}.tar", "invalid", "1000000")


def test_tar_keys_repeat_across_shards(tmp_path):
    for s in "ab":
        write_tar(tmp_path / f"train-{s}.tar", [("000.jpg", s.encode()), ("001.jpg", s.encode())])
    got = dump(tmp_path)
    assert [s["key"] for s in got["samples"]] == ["train-a/000", "train-a/001", "train-b/000", "train-b/001"]
    for sub in "xy":
        (tmp_path / sub).mkdir()
        write_tar(tmp_path / sub / "s.tar", [("000.jpg", b"1")])
    refused(f"{tmp_path}/{{x,y}}/s.tar", "invalid", "x/s.tar", "y/s.tar", "rename")


def test_tar_refused(tmp_path):
    def refused_tar(members, error, *words):
        write_tar(tmp_path / "a.tar", members)
        refused(tmp_path / "a.tar", error, "a.tar", *words)

    refused_tar([("a.jpg", b"1"), ("b.jpg", b"1"), ("a.txt", b"1")], "invalid", '"a"', "offsets 0 and 2048")
    refused_tar([("a.jpg", b"1"), ("a.JPG", b"1")], "invalid", "second", ".jpg", "1024")
    refused_tar([("../a.jpg", b"1")], "invalid", "..")
    refused_tar([("x/../../a.jpg", b"1")], "invalid", "..")
    refused_tar([("/etc/a.jpg", b"1")], "invalid", "absolute")
    refused_tar([("d/" * 1001 + "a.jpg", b"1")], "invalid", "1000 folders")
    refused_tar([("README", b"1")], "invalid", "empty")
    refused_tar([], "invalid", "empty")
    refused_tar([(f"a.x{i}", b"") for i in range(65)], "unsupported", "64")
    info = tarfile.TarInfo("caf\udce9.jpg")
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as t:
        t.addfile(info, io.BytesIO(b""))
    refused(tmp_path / "a.tar", "invalid", "UTF-8", "caf\\xe9")
    for suffix, mode in (("gz", "w:gz"), ("bz2", "w:bz2"), ("xz", "w:xz")):
        with tarfile.open(tmp_path / f"a.tar.{suffix}", mode) as t:
            t.addfile(tarfile.TarInfo("a.jpg"), io.BytesIO(b""))
        refused(tmp_path / f"a.tar.{suffix}", "unsupported", "unpack")


def test_tar_truncated_and_joined(tmp_path):
    write_tar(tmp_path / "a.tar", [(f"{i}.bin", os.urandom(3000)) for i in range(4)])
    whole = (tmp_path / "a.tar").read_bytes()
    for cut, offset in ((513, 0), (2000, 0), (4000, 3584), (3584 + 100, 3584), (3584 + 600, 3584)):
        (tmp_path / "t.tar").write_bytes(whole[:cut])
        refused(tmp_path / "t.tar", "corrupt", "t.tar", f"{offset}")
    # End marks may be missing; archives may be put end to end.
    (tmp_path / "t.tar").write_bytes(whole[: 4 * 3584])
    assert dump(tmp_path / "t.tar")["nsamples"] == 4
    write_tar(tmp_path / "b.tar", [("x.bin", b"1")])
    (tmp_path / "t.tar").write_bytes(whole + (tmp_path / "b.tar").read_bytes())
    assert [s["key"] for s in dump(tmp_path / "t.tar")["samples"]] == ["0", "1", "2", "3", "x"]
    # Nobody reads a hole to its end: here a file of a TiB whose blocks are all but none.
    with open(tmp_path / "t.tar", "wb") as f:
        f.write(whole)
        f.seek(1 << 40)
        f.write((tmp_path / "b.tar").read_bytes())
        f.truncate((1 << 40) + (1 << 38))
    got = dump(tmp_path / "t.tar", "--no-data")
    assert [s["key"] for s in got["samples"]] == ["0", "1", "2", "3", "x"]
    for at in (0, 150, 3584 + 130):
        (tmp_path / "t.tar").write_bytes(whole[:at] + b"\x55" + whole[at + 1 :])
        refused(tmp_path / "t.tar", "corrupt", "checksum")


# --- HDF5 --------------------------------------------------------------------------------------------------------


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
    """A few MiB that would be gigabytes once decoded are refused before anybody asks for memory."""
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


# --- the index at hand -------------------------------------------------------------------------------------------


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
    """Beside the data only those may put an index who may write there; in a folder open to all, the owner of the data."""
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
    assert not place(0o775, 65534, 65533)["scanned"]  # a colleague's, who may write there
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
