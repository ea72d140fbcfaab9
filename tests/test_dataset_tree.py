# SPDX-License-Identifier: Apache-2.0
"""The index of folders, held against the file system; and what it refuses."""
import os
import subprocess
import time
import zlib

import pytest

from lib_index import cache, dump, let_in, refused, run, user, write_tar, write_tree  # noqa: F401

np = pytest.importorskip("numpy")


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
