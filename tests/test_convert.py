# SPDX-License-Identifier: Apache-2.0
"""`leat convert`: there and back byte for byte, against Python's tarfile and NumPy; names, faults, kills."""

import hashlib
import io
import json
import os
import pathlib
import signal
import subprocess
import tarfile
import time

import numpy as np
import pytest

from test_cli import LEAT, leat

DUMP = LEAT.parents[2] / "tests" / "tools" / "leat-index-dump"

pytestmark = pytest.mark.skipif(not LEAT.exists(), reason=f"{LEAT} is not built")

LONG = "deep/" + "/".join("x" * 60 for _ in range(5)) + "/" + "y" * 200 + ".jpg"
NAMES = {
    "cat/1-2.jpg": b"x" * 1025, "cat/1.jpg": b"first", "cat/1.json": b"{}", "cat/1.seg.png": b"\0" * 512, "dog/2.jpg": b"", "dog/README": b"no dot",
    "dog/new\nline.jpg": b"a", "dog/täg.txt": b"b", "a b/tab\t.txt": b"c", "1.x/2.jpg": b"d", LONG: b"e" * 3000,
    "f" * 99 + ".": b"f", "g" * 100: b"g", "h" * 98 + ".jp": b"h", "z.jpg": bytes(range(256)) * 600,
}


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    for name, data in NAMES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / "empty" / "also").mkdir(parents=True)
    (root / ".hidden").write_bytes(b"not seen")
    return root


def files(root):
    found = {}
    for path in pathlib.Path(root).rglob("*"):
        name = str(path.relative_to(root))
        if path.is_file() and not path.name.startswith("."):
            found[name] = path.read_bytes()
        elif path.is_dir() and not any(path.iterdir()):
            found[name + "/"] = None
    return found


def members(path):
    """[(name, data)] by Python's tarfile, which also checks the headers."""
    found = []
    with tarfile.open(path) as tar:
        for member in tar:
            assert (member.mtime, member.uid, member.gid, member.uname) == (0, 0, 0, "") and member.mode == (0o755 if member.isdir() else 0o644)
            found.append((member.name + "/", None) if member.isdir() else (member.name, tar.extractfile(member).read()))
    return found


def digest(root):
    paths = sorted(pathlib.Path(root).rglob("*")) if pathlib.Path(root).is_dir() else [pathlib.Path(root)]
    return hashlib.sha256(b"".join(str(p.name).encode() + p.read_bytes() for p in paths if p.is_file())).hexdigest()


def convert(*args, check=0):
    done = leat("convert", *args, "--json", check=check)
    return json.loads(done.stdout) if check == 0 else done.stderr.decode()


def left(folder):
    return [name for name in os.listdir(folder) if name.endswith(".tmp")]


def test_folder_to_one_tar_and_back(tree, tmp_path):
    told = convert(tree, tmp_path / "all.tar")
    got = members(tmp_path / "all.tar")
    want = files(tree)
    assert dict(got) == want and len(got) == len(want)
    assert told["from"] == "dir" and told["to"] == "tar" and told["shards"] == 1 and told["files"] == len(want)
    assert told["without_extension"] == 2 and told["bytes"] == sum(len(v) for v in NAMES.values())
    keys = [name[: -len(name.rsplit("/", 1)[-1])] + name.rsplit("/", 1)[-1].split(".")[0] for name, _ in got]
    assert all(keys[i] in (keys[i - 1], *(set(keys) - set(keys[:i]))) for i in range(1, len(keys)))  # samples hold together
    convert(tmp_path / "all.tar", tmp_path / "back")
    assert files(tmp_path / "back") == want
    convert(tree, tmp_path / "again.tar")
    convert(tmp_path / "back", tmp_path / "third.tar")
    assert digest(tmp_path / "again.tar") and (tmp_path / "again.tar").read_bytes() == (tmp_path / "all.tar").read_bytes()
    assert (tmp_path / "third.tar").read_bytes() == (tmp_path / "all.tar").read_bytes()
    assert not left(tmp_path)


@pytest.mark.parametrize("options, shards", [(["--shard-count", "3"], 3), (["--shard-size", "20K"], None), ([], 1)])
def test_shards(tree, tmp_path, options, shards):
    told = convert(tree, tmp_path / "shards", *options)
    names = sorted(os.listdir(tmp_path / "shards"))
    assert names == [f"shard-{i:06}.tar" for i in range(told["shards"])] and told["shards"] == (shards or len(names)) and (shards or len(names) > 1)
    per_shard = [members(tmp_path / "shards" / name) for name in names]
    whole = dict(m for shard in per_shard for m in shard)
    assert whole == files(tree) and len(whole) == sum(map(len, per_shard))
    key = {name: name.rsplit("/", 1)[0] + "/" + name.rsplit("/", 1)[-1].split(".")[0] for name in whole}
    of = {}
    for i, shard in enumerate(per_shard):
        for name, data in shard:
            if data is not None:
                assert of.setdefault(key[name], i) == i  # no sample in two shards
    if "--shard-size" in options:
        sizes = [os.path.getsize(tmp_path / "shards" / name) for name in names]
        assert all(size <= 20480 or len({key[n] for n, _ in shard}) == 1 for size, shard in zip(sizes, per_shard))
    convert(tmp_path / "shards", tmp_path / "back")
    assert files(tmp_path / "back") == files(tree)
    convert(tree, tmp_path / "twice", *options)
    assert digest(tmp_path / "twice") == digest(tmp_path / "shards")


def test_python_reads_what_gnu_and_pax_wrote(tree, tmp_path):
    """Archives of others, with links, long names and a second archive behind the first."""
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(tmp_path / "theirs.tar", "w", format=form) as tar:
            for name in NAMES:
                tar.add(tree / name, "./" + name)
            link = tarfile.TarInfo("link.jpg")
            link.type, link.linkname = tarfile.SYMTYPE, "z.jpg"
            tar.addfile(link)
        more = io.BytesIO()
        with tarfile.open(fileobj=more, mode="w") as tar:
            info = tarfile.TarInfo("UPPER.JPG")
            info.size = 5
            tar.addfile(info, io.BytesIO(b"upper"))
        with open(tmp_path / "theirs.tar", "ab") as out:
            out.write(more.getvalue())
        told = convert(tmp_path / "theirs.tar", tmp_path / "out", "--force")
        assert told["left_out"] == 1 and files(tmp_path / "out") == {**NAMES, "UPPER.JPG": b"upper"}
        told = convert(tmp_path / "theirs.tar", tmp_path / "mine", "--to", "tar", "--shard-count", "2", "--force")
        assert [m for i in range(2) for m in members(tmp_path / "mine" / f"shard-{i:06}.tar")] == [*NAMES.items(), ("UPPER.JPG", b"upper")]


@pytest.mark.parametrize("array", [
    np.arange(60, dtype="f4").reshape(5, 3, 4), np.arange(7), np.arange(12, dtype=">i2").reshape(3, 4), np.ones((3, 1, 2), "?"),
    np.zeros((1234, 2), "u1"), np.array([[1 + 2j]]),
], ids=str)
def test_array_to_tar_and_folder_and_back(array, tmp_path):
    np.save(tmp_path / "a.npy", array)
    told = convert(tmp_path / "a.npy", tmp_path / "a.tar")
    assert told["samples"] == len(array) == told["files"]
    for i, (name, data) in enumerate(members(tmp_path / "a.tar")):
        want = io.BytesIO()
        np.save(want, array[i])
        assert name == f"{i:06}.npy" and np.array_equal(np.load(io.BytesIO(data)), array[i]) and data == want.getvalue()
    convert(tmp_path / "a.tar", tmp_path / "b.npy")
    assert (tmp_path / "b.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()
    convert(tmp_path / "a.npy", tmp_path / "d", "--to", "dir")
    convert(tmp_path / "d", tmp_path / "c.npy")
    assert (tmp_path / "c.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()


def test_several_arrays(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(10.0).reshape(5, 2))
    np.save(tmp_path / "y.npy", np.arange(5, dtype="i4"))
    told = convert(f"image={tmp_path}/x.npy", f"label={tmp_path}/y.npy", tmp_path / "both.tar")
    assert told["samples"] == 5 and told["files"] == 10
    assert [name for name, _ in members(tmp_path / "both.tar")][:3] == ["000000.image.npy", "000000.label.npy", "000001.image.npy"]
    convert(tmp_path / "both.tar", tmp_path / "y2.npy", "--field", "LABEL.npy")
    assert np.array_equal(np.load(tmp_path / "y2.npy"), np.arange(5, dtype="i4"))
    assert "another shape or dtype" in convert(tmp_path / "both.tar", tmp_path / "z.npy", check=1) and not (tmp_path / "z.npy").exists()


def test_labels(tmp_path):
    for name in ("b/1.jpg", "b/1.txt", "a/2.jpg", "c/d/3.jpg"):
        (tmp_path / "t" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / name).write_bytes(name.encode())
    convert(tmp_path / "t", tmp_path / "t.tar", "--labels")
    got = dict(members(tmp_path / "t.tar"))
    assert {n: d for n, d in got.items() if n.endswith(".cls")} == {"a/2.cls": b"0", "b/1.cls": b"1", "c/d/3.cls": b"2"} and len(got) == 7
    convert(tmp_path / "t", tmp_path / "jpg.tar", "--labels", "--field", "jpg")
    assert dict(members(tmp_path / "jpg.tar")) == {n: d for n, d in got.items() if not n.endswith(".txt")}
    convert(tmp_path / "t", tmp_path / "txt.tar", "--labels", "--field", "txt")
    assert dict(members(tmp_path / "txt.tar")) == {"b/1.txt": b"b/1.txt", "b/1.cls": b"1"}
    assert "no file with the extension" in convert(tmp_path / "t", tmp_path / "png.tar", "--labels", "--field", "png", check=1)
    (tmp_path / "t" / "b" / "1.cls").write_bytes(b"7")
    assert "comes twice" in convert(tmp_path / "t", tmp_path / "u.tar", "--labels", check=1) and not (tmp_path / "u.tar").exists()
    assert "--labels is for a folder" in convert(tmp_path / "t.tar", tmp_path / "x", "--labels", check=1)


def dump(path):
    done = subprocess.run([DUMP, str(path)], capture_output=True, timeout=60)
    got = json.loads(done.stdout)
    assert "error" not in got, got
    return [(sample["key"], sample["label"], sample["class"]) for sample in got["samples"]]


def test_links_that_lead_nowhere_are_no_folders(tmp_path):
    """Or they would be classes once the shards become a folder again, and shift the numbers of the others."""
    root = tmp_path / "t"
    for name in ("cat/1.jpg", "dog/2.jpg"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(b"x")
    (root / "README.md").symlink_to("/nowhere/at/all")
    (root / "dog" / "3.jpg").symlink_to("gone")
    assert convert(root, tmp_path / "t.tar")["left_out"] == 2
    assert [name for name, _ in members(tmp_path / "t.tar")] == ["cat/1.jpg", "dog/2.jpg"]
    convert(tmp_path / "t.tar", tmp_path / "back")
    assert files(tmp_path / "back") == {"cat/1.jpg": b"x", "dog/2.jpg": b"x"} and dump(tmp_path / "back") == dump(root)
    assert dump(root) == [("cat/1.jpg", 0, "cat"), ("dog/2.jpg", 1, "dog")]


def test_what_is_there_is_kept_unless_forced(tree, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_bytes(b"mine")
    (tmp_path / "out.tar").write_bytes(b"mine")
    for destination in ("out", "out.tar"):
        before = files(tmp_path / "out")
        assert "is there already: --force" in convert(tree, tmp_path / destination, check=1)
        assert files(tmp_path / "out") == before and (tmp_path / "out.tar").stat().st_size in (4, 4)
    convert(tree, tmp_path / "out", "--force")
    convert(tree, tmp_path / "out.tar", "--force")
    assert sorted(os.listdir(tmp_path / "out")) == ["shard-000000.tar"] and dict(members(tmp_path / "out.tar")) == files(tree)
    inside = tmp_path / "shards" / "x.tar"
    inside.parent.mkdir()
    inside.write_bytes((tmp_path / "out.tar").read_bytes())
    assert "which would be replaced" in convert(inside, tmp_path / "shards", "--force", check=1) and inside.exists()
    assert not left(tmp_path)


@pytest.mark.parametrize("args, words", [
    (["tree", "out", "--to", "dir"], "it is a folder already"), (["tree", "out", "--to", "zip"], "one of dir, tar, npy"),
    (["tree", "out.tar", "--shard-count", "2"], "name it without .tar"), (["tree", "out", "--shard-count", "1000"], "1000 shards of"),
    (["tree", "out", "--shard-size", "1K", "--shard-count", "1"], "give one of them"), (["tree", "out.npy"], "npy"),
    (["tree", "out", "--field", "gif"], "no file with the extension .gif"), (["tree"], "where to"), (["tree", "out", "--shard-size", "0"], "size"),
    (["tree", "none/out.tar"], "none/"), (["tree", "out", "--to", "npy", "--field", "jpg"], "not"),
    (["tree", "out.zip"], "a folder of shards or files is written"), (["tree", "out.tar.gz"], "give the format with --to"),
])
def test_errors(tree, tmp_path, args, words):
    done = leat("convert", *args, cwd=tmp_path)
    assert done.returncode not in (0, 130) and words in done.stderr.decode() and len(done.stderr.splitlines()) == 1
    assert sorted(os.listdir(tmp_path)) == ["tree"]


def test_names_that_are_refused(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "fine.jpg").write_bytes(b"")
    with open(os.fsencode(tmp_path / "t") + b"/\xff.jpg", "wb"):
        pass
    assert "UTF-8" in convert(tmp_path / "t", tmp_path / "t.tar", check=1)
    for name in ("../up.jpg", "/abs.jpg"):
        with tarfile.open(tmp_path / "evil.tar", "w") as tar:
            tar.addfile(tarfile.TarInfo(name))
        assert convert(tmp_path / "evil.tar", tmp_path / "out", check=1)
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:  # a file where a folder is wanted
        for name in ("a.jpg", "a.jpg/b.jpg"):
            tar.addfile(tarfile.TarInfo(name))
    assert convert(tmp_path / "evil.tar", tmp_path / "out", check=1)
    assert sorted(os.listdir(tmp_path)) == ["evil.tar", "t"]


@pytest.fixture
def large(tmp_path):
    """Enough to be caught in the middle."""
    (tmp_path / "in").mkdir()
    data = os.urandom(1 << 20)
    for i in range(160):
        (tmp_path / "in" / f"{i}.bin").write_bytes(data)
    return tmp_path / "in"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("destination", ["out.tar", "out"])
def test_killed_midway(large, tmp_path, how, destination):
    seen = 0
    for _ in range(20):
        child = subprocess.Popen([LEAT, "convert", large, tmp_path / destination], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 10
        while not left(tmp_path) and child.poll() is None and time.monotonic() < end:
            pass
        child.send_signal(how)
        code = child.wait()
        if code == 0:  # it was done before
            leat("convert", large, tmp_path / destination, "--force", check=0)
            subprocess.run(["rm", "-r", tmp_path / destination], check=True)
            continue
        seen += 1
        assert not (tmp_path / destination).exists()
        if how == signal.SIGINT:
            assert code == 130 and not left(tmp_path)
        for name in left(tmp_path):
            subprocess.run(["rm", "-r", tmp_path / name], check=True)
        if seen == 2:
            break
    assert seen
    convert(large, tmp_path / destination)


def test_a_source_that_changes_or_a_disk_that_fills(tree, tmp_path):
    small = ["prlimit", "--fsize=20000"]
    done = subprocess.run([*small, LEAT, "convert", tree, tmp_path / "out.tar"], capture_output=True,
                          preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
    assert done.returncode == 1 and b"large" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["tree"]


def test_progress(tree, tmp_path):
    done = leat("convert", tree, tmp_path / "out.tar", "--progress", "json", check=0)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["event"] == "done" and {"converting"} <= {line.get("stage") for line in lines}
    last = [line for line in lines if line.get("stage") == "converting"][-1]
    assert last["bytes_done"] == last["bytes_total"] == lines[-1]["bytes"]


def test_leat_and_the_shards_agree(tree, tmp_path):
    """What the index of the shards says is what was put in."""
    convert(tree, tmp_path / "s", "--shard-count", "2")
    told = json.loads(leat("index", tmp_path / "s", "--json", check=0).stdout)
    with_dot = {name for name in NAMES if "." in name.rsplit("/", 1)[-1][:-1]}
    keys = {name.rsplit("/", 1)[0] + "/" + name.rsplit("/", 1)[-1].split(".")[0] for name in with_dot}
    assert told["samples"] == len(keys) and told["payload_bytes"] == sum(len(NAMES[name]) for name in with_dot)
