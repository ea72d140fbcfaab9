# SPDX-License-Identifier: Apache-2.0
"""wire/archive/zip.h beside Python's zipfile, and wire/archive/tar_put.h beside Python's tarfile and GNU tar, by `leat-archive` (tests/tools)."""

import calendar
import io
import os
import pathlib
import struct
import subprocess
import tarfile
import zipfile
import zlib

import pytest

BUILD = pathlib.Path(os.environ.get("LEAT_BUILD", "build")).absolute()
ARCHIVE = BUILD / "tests" / "tools" / "leat-archive"
pytestmark = pytest.mark.skipif(not ARCHIVE.exists(), reason=f"{ARCHIVE} is not built")

NOISE = os.urandom(70_000)
FILES = {
    "a.txt": b"hello" * 1000, "empty.bin": b"", "deep/er/b.bin": NOISE, "zeros": bytes(3_000_000), "täg/日本.txt": b"x", "n" * 300 + ".x": b"long",
    "one": b"1", "exact": NOISE[:251 * 4], "mixed": NOISE[:1000] + bytes(100_000) + NOISE[:777],
}


def run(*args, **more):
    return subprocess.run([ARCHIVE, *args], capture_output=True, timeout=120, check=False, **more)


def listed(path):
    done = run("list", path)
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.decode().splitlines()]


def refused(path, *member):
    done = run("cat" if member else "list", path, *member)
    assert done.returncode == 1, done.stdout[:200]
    return done.stderr.decode()


class Pipe(io.RawIOBase):
    """What cannot seek: zipfile then writes sizes behind the payload."""

    def __init__(self, path):
        self.file = open(path, "wb")

    def writable(self):
        return True

    def write(self, data):
        return self.file.write(data)

    def close(self):
        self.file.close()


@pytest.mark.parametrize("how", ["plain", "streamed", "zip64", "behind a program", "with a comment"])
def test_zip_as_zipfile_writes_it(tmp_path, how):
    path = tmp_path / "x.zip"
    if how == "behind a program":
        path.write_bytes(b"#!/bin/sh\n" * 5000)
    out = Pipe(path) if how == "streamed" else path
    with zipfile.ZipFile(out, "a" if how == "behind a program" else "w", allowZip64=True) as archive:
        for i, (name, data) in enumerate(FILES.items()):
            info = zipfile.ZipInfo(name, (2001, 2, 3, 4, 5, 6))
            info.compress_type = zipfile.ZIP_DEFLATED if i % 2 else zipfile.ZIP_STORED
            with archive.open(info, "w", force_zip64=how == "zip64") as member:
                member.write(data)
        archive.writestr("folder/", b"")
        if how == "with a comment":
            archive.comment = b"PK\1\2" + b"c" * 65000
    if how == "streamed":
        out.close()
    got = listed(path)
    with zipfile.ZipFile(path) as theirs:
        assert [row[0] for row in got] == [info.filename.rstrip("/") for info in theirs.infolist()]
        for row, info in zip(got, theirs.infolist()):
            want = [int(info.is_dir()), 0, info.compress_type, info.CRC, info.file_size, info.compress_size, calendar.timegm(info.date_time)]
            assert [int(field) for field in row[1:]] == want
    for name, data in FILES.items():
        done = run("cat", path, name)
        assert (done.returncode, done.stderr) == (0, b"") and done.stdout == data
    assert "no such member" in refused(path, "a.tx")


@pytest.mark.long
def test_zip64_directory_and_many_members(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for i in range(65_600):
            archive.writestr(zipfile.ZipInfo(f"{i:05}"), b"")
    assert len(listed(tmp_path / "x.zip")) == 65_600


def test_zip_names_of_dos_and_unflagged_utf8(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("cafX.txt", b"dos")
        archive.writestr("./utfXY", b"utf")
    data = (tmp_path / "x.zip").read_bytes().replace(b"cafX", b"caf\x82").replace(b"utfXY", b"utf\xc3\xa9")
    (tmp_path / "x.zip").write_bytes(data)
    assert [row[0] for row in listed(tmp_path / "x.zip")] == ["café.txt", "utfé"]
    with zipfile.ZipFile(tmp_path / "x.zip") as theirs:
        assert theirs.namelist()[0] == "café.txt"


def test_zip_comment_that_looks_like_an_end(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("m", b"found")
        archive.comment = b"PK\5\6" + bytes(30)  # zipfile itself falls for it
    assert run("cat", tmp_path / "x.zip", "m").stdout == b"found"


def small_zip(path, data=b"payload" * 100, method=zipfile.ZIP_DEFLATED, name="m"):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(zipfile.ZipInfo(name), data, method)
    return bytearray(path.read_bytes())


@pytest.mark.long
def test_zips_that_lie(tmp_path):
    path = tmp_path / "x.zip"
    good = small_zip(path)
    entry = good.index(b"PK\1\2")

    def with_change(at, value, what, member="m"):
        data = bytearray(good)
        data[at:at + len(value)] = value
        path.write_bytes(data)
        assert what in refused(path, member), (at, value)

    with_change(entry + 8, b"\1\0", "encrypted")
    with_change(entry + 10, b"\x0e\0", "method 14")
    with_change(entry + 16, b"\0\0\0\0", "CRC-32 is wrong")
    with_change(entry + 24, struct.pack("<I", 699), "longer than in the directory")
    with_change(entry + 24, struct.pack("<I", 701), "does not end as in the directory")
    with_change(entry + 24, struct.pack("<I", 1 << 30), "more bytes than deflate can hold")
    with_change(entry + 20, struct.pack("<I", len(good)), "beyond the directory")
    with_change(entry + 42, struct.pack("<I", len(good)), "beyond the directory")
    with_change(entry + 42, b"\1", "no header of a ZIP member")
    with_change(entry + 28, b"\xff\xff", "beyond the ZIP directory")
    with_change(entry + 28, b"\0\0", "without a name")
    with_change(entry + 46, b"/", "is absolute")
    with_change(entry + 46, b"\0", "NUL")
    with_change(entry + 34, b"\1\0", "several disks")
    with_change(8, b"\0\0", "contradict")
    with_change(40, b"\xff\xff\xff\xff", "damaged")
    end = good.index(b"PK\5\6")
    with_change(end + 8, b"\2\0\2\0", "more members than bytes")
    with_change(end + 8, b"\0\0\0\0", "another number of members")
    with_change(end + 12, b"\xff\xff\xff\x7f", "in front of its end")
    with_change(end, b"XX", "no end of a ZIP directory")
    for cut in range(len(good)):
        path.write_bytes(good[:cut])
        refused(path)
    stored = small_zip(path, method=zipfile.ZIP_STORED)
    at = stored.index(b"payload")
    stored[at] ^= 1
    path.write_bytes(stored)
    assert "CRC-32 is wrong" in refused(path, "m")


def test_deflate_that_has_no_end(tmp_path):
    """All bytes come out, but the stream's last block was never said to be the last."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = b"y" * 1000
    body = deflate.compress(data) + deflate.flush(zlib.Z_SYNC_FLUSH)
    small_zip(tmp_path / "x.zip", body, zipfile.ZIP_STORED)
    raw = bytearray((tmp_path / "x.zip").read_bytes())
    entry = raw.index(b"PK\1\2")
    raw[8:10] = raw[entry + 10:entry + 12] = b"\x08\0"
    raw[entry + 24:entry + 28] = struct.pack("<I", len(data))
    raw[entry + 16:entry + 20] = struct.pack("<I", zlib.crc32(data))
    (tmp_path / "x.zip").write_bytes(raw)
    assert "have no end" in refused(tmp_path / "x.zip", "m")


# --- tar -------------------------------------------------------------------------------------------------------------

ENTRIES = [  # name, type, bytes, mtime, records
    ("plain.bin", "0", 1000, 1_700_000_000, {}), ("folder", "5", 0, 5, {}), ("x" * 100, "0", 512, 0, {}), ("y" * 101, "0", 1, 0, {}),
    ("long/" * 200 + "name", "0", 3, 1, {}), ("käse/日本", "0", 0, 2, {}), ("big", "0", (8 << 30) + 5, 3, {}), ("just.below", "0", (8 << 30) - 1, 3, {}),
    ("told", "0", 7, 4, {"LEAT.opaque": "a=b \"c\"", "LEAT.key": "z" * 88}), ("late", "0", 0, 1 << 34, {}), ("../up", "0", 2, 6, {}), ("/root", "0", 2, 6, {}),
    *((f"{'r' * n}ö", "0", 0, 0, {}) for n in range(85, 95)),  # a record of 99, 100, 101 ... bytes: its length counts itself
]


def test_tar_as_tarfile_and_gnu_tar_read_it(tmp_path):
    path = tmp_path / "x.tar"
    lines = "".join("\t".join([n, t, str(b), str(m), *(x for pair in r.items() for x in pair)]) + "\n" for n, t, b, m, r in ENTRIES)
    with open(path, "wb") as out:
        done = subprocess.run([ARCHIVE, "tar"], input=lines.encode(), stdout=out, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    with tarfile.open(path) as tar:
        got = tar.getmembers()
    assert len(got) == len(ENTRIES)
    for member, (name, kind, size, mtime, records) in zip(got, ENTRIES):
        assert (member.name, member.size, member.mtime, member.isdir()) == (name, size, mtime, kind == "5")
        assert member.mode == (0o755 if kind == "5" else 0o644) and records.items() <= member.pax_headers.items()
    listing = subprocess.run(["tar", "--warning=no-unknown-keyword", "--quoting-style=literal", "-P", "-tvf", path], capture_output=True, timeout=60, check=False,
                             env={**os.environ, "LC_ALL": "C.UTF-8"})
    assert listing.returncode == 0 and listing.stderr == b""
    rows = [line.split(None, 5) for line in listing.stdout.decode().splitlines()]
    assert [(row[5].rstrip("/"), int(row[2])) for row in rows] == [(name, size) for name, _, size, _, _ in ENTRIES]


def test_tar_headers_have_an_end(tmp_path):
    for line in ("", "p" * 4096, "k\t0\t0\t0\tLEAT.x\t" + "v" * 4096, f"k\t0\t{2 ** 63 - 1}\t0"):
        text = line if "\t" in line else f"{line}\t0\t0\t0"
        assert run("tar", input=text.encode() + b"\n").returncode == 1
