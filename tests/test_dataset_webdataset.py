# SPDX-License-Identifier: Apache-2.0
"""Tar shards group into samples as WebDataset groups them. AGREED is what webdataset 1.0.2 made of such archives
(group_by_keys over tar_file_expander; member i holds the text of i); DIFFERENT is where Leat knowingly does otherwise."""
import io
import json
import os
import pathlib
import subprocess
import tarfile
import zlib

import pytest

BUILD = pathlib.Path(os.environ.get("LEAT_BUILD", pathlib.Path(__file__).resolve().parent.parent / "build"))
DUMP = BUILD / "tests" / "tools" / "leat-index-dump"

# name: (members, [[key, {field: member}], ...])
AGREED = {
    "plain": (
        ["000.jpg", "000.cls", "001.jpg", "001.cls"],
        [["000", {"jpg": 0, "cls": 1}], ["001", {"jpg": 2, "cls": 3}]],
    ),
    "folders with dots": (
        ["v1.0/a.b/000.jpg", "v1.0/a.b/000.cls", "v1.0/a.b/001.jpg"],
        [["v1.0/a.b/000", {"jpg": 0, "cls": 1}], ["v1.0/a.b/001", {"jpg": 2}]],
    ),
    "upper case": (
        ["A.JPG", "A.Cls", "a.JPEG"],
        [["A", {"jpg": 0, "cls": 1}], ["a", {"jpeg": 2}]],
    ),
    "several dots": (
        ["x.seg.png", "x.json", "x.left.seg.PNG", "y.tar.gz"],
        [["x", {"seg.png": 0, "json": 1, "left.seg.png": 2}], ["y", {"tar.gz": 3}]],
    ),
    "hidden at the root": (
        [".DS_Store", "._000.jpg", "000.jpg", ".hidden.txt"],
        [["000", {"jpg": 2}]],
    ),
    "no dot": (
        ["README", "000.jpg", "Makefile", "000.cls", "d.x/LICENSE"],
        [["000", {"jpg": 1, "cls": 3}]],
    ),
    "no dot between": (
        ["000.jpg", "notes", "000.cls"],
        [["000", {"jpg": 0, "cls": 2}]],
    ),
    "meta": (
        ["__index__", "__meta__/info.json", "__meta__/a/b.txt", "000.jpg", "____", "__a__.b__", "___.txt", "___"],
        [["000", {"jpg": 3}], ["___", {"txt": 6}]],
    ),
    "meta names with extensions": (
        ["__index__.json", "000.jpg", "__x.txt", "x__.txt"],
        [["__index__", {"json": 0}], ["000", {"jpg": 1}], ["__x", {"txt": 2}], ["x__", {"txt": 3}]],
    ),
    "folders between": (
        ["a/", "a/0.jpg", "b/", "a/0.cls"],
        [["a/0", {"jpg": 1, "cls": 3}]],
    ),
    "not sorted": (
        ["9.jpg", "9.cls", "10.jpg", "1.cls", "1.jpg"],
        [["9", {"jpg": 0, "cls": 1}], ["10", {"jpg": 2}], ["1", {"cls": 3, "jpg": 4}]],
    ),
    "same name, other folder": (
        ["a/0.jpg", "b/0.jpg", "b/0.cls"],
        [["a/0", {"jpg": 0}], ["b/0", {"jpg": 1, "cls": 2}]],
    ),
    "double slash": (
        ["a//0.jpg", "a//0.cls"],
        [["a//0", {"jpg": 0, "cls": 1}]],
    ),
    "spaces and umlauts": (
        ["a b/ü 1.jpg", "a b/ü 1.CLS"],
        [["a b/ü 1", {"jpg": 0, "cls": 1}]],
    ),
    "numbers after the dot": (
        ["0.1.jpg", "0.2.jpg", "1.0"],
        [["0", {"1.jpg": 0, "2.jpg": 1}], ["1", {"0": 2}]],
    ),
    "dash": (
        ["-x.txt", "~.txt", "a-.b-.c"],
        [["-x", {"txt": 0}], ["~", {"txt": 1}], ["a-", {"b-.c": 2}]],
    ),
    "meta below a folder": (
        ["d/__meta__/0.json", "d/0.jpg"],
        [["d/__meta__/0", {"json": 0}], ["d/0", {"jpg": 1}]],
    ),
}

# name: (members, what webdataset gives, why, what Leat gives or a part of its message)
DIFFERENT = {
    "hidden in a folder": (
        ["d/.0.jpg", "d/._1.jpg", "d/2.jpg"],
        [["d/", {"0.jpg": 0, "_1.jpg": 1}], ["d/2", {"jpg": 2}]],
        "webdataset leaves hidden files out at the root only, and by accident makes a sample of those in a folder",
        [["d/2", {"jpg": 2}]],
    ),
    "leading ./": (
        ["./0.jpg", "./0.cls", "./d/1.jpg"],
        [["./0", {"jpg": 0, "cls": 1}], ["./d/1", {"jpg": 2}]],
        "`tar -cf x.tar .` and `tar -cf x.tar *` hold the same samples",
        [["0", {"jpg": 0, "cls": 1}], ["d/1", {"jpg": 2}]],
    ),
    "empty extension": (
        ["0.", "0.jpg", "1."],
        [["0", {"": 0, "jpg": 1}], ["1", {"": 2}]],
        "a field needs a name",
        [["0", {"jpg": 1}]],
    ),
    "extensions beyond ASCII": (["0.Ä"], [["0", {"ä": 0}]], "only A to Z are lowered", [["0", {"Ä": 0}]]),
    "not consecutive": (
        ["0.jpg", "1.jpg", "0.cls"],
        [["0", {"jpg": 0}], ["1", {"jpg": 1}], ["0", {"cls": 2}]],
        "two halves of a sample under one key are an archive that was not sorted, not two samples",
        "must follow each other",
    ),
    "absolute": (["/0.jpg"], [["/0", {"jpg": 0}]], "refused, like anything that could leave the dataset", "is absolute"),
}

# Both refuse these.
REFUSED = {"twice": ["0.jpg", "0.jpg"], "twice by case": ["0.jpg", "0.JPG"]}


@pytest.fixture
def samples(tmp_path, monkeypatch):
    """[[key, {field: member}], ...] of an archive with these members, or the message."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def read(members):
        number = {zlib.crc32(str(i).encode()): i for i in range(len(members))}
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            for i, name in enumerate(members):
                info = tarfile.TarInfo(name)
                info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
                info.size = 0 if name.endswith("/") else len(str(i))
                tar.addfile(info, io.BytesIO(str(i).encode()[: info.size]))
        done = subprocess.run([DUMP, tmp_path / "a.tar"], capture_output=True, timeout=60)
        got = json.loads(done.stdout)
        if "error" in got:
            return got["message"]
        fields = [{name: number[part["crc32"]] for name, part in s["parts"].items() if part} for s in got["samples"]]
        return [[s["key"], f] for s, f in zip(got["samples"], fields)]

    return read


@pytest.mark.parametrize("name", AGREED)
def test_agrees(samples, name):
    members, want = AGREED[name]
    assert samples(members) == want


@pytest.mark.parametrize("name", DIFFERENT)
def test_differs_knowingly(samples, name):
    members, theirs, _, ours = DIFFERENT[name]
    got = samples(members)
    assert ours in got if isinstance(ours, str) else got == ours
    assert got != theirs


@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse(samples, name):
    assert "second" in samples(REFUSED[name])
