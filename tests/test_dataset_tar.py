# SPDX-License-Identifier: Apache-2.0
"""The index of tar archives, held against tarfile; and what it refuses."""
import io
import os
import tarfile
import zlib

import pytest

from lib_index import cache, dump, refused, write_tar  # noqa: F401


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


@pytest.mark.long
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
    # A hole is not read to its end: here a file of a TiB with nearly no blocks.
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
