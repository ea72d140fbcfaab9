# SPDX-License-Identifier: Apache-2.0
"""One member of a tar or ZIP archive by name (?archpath), and many objects and members in one answer (POST ?batch): against archives of Python's
making, read by Python's tarfile and GNU tar."""

import http.client
import io
import json
import os
import re
import subprocess
import tarfile
import zipfile

import lib_serve
import pytest

SMALL = os.environ.get("LEAT_BUILD", "").endswith("-asan")
BIG = lib_serve.content("big", (2 if SMALL else 9) * 1024 * 1024 + 77)
MEMBERS = {"a/0001.jpg": lib_serve.content("one", 5000), "a/0002.jpg": b"", "täg/日本.txt": "käse".encode(), "x" * 200 + ".bin": lib_serve.content("x", 70_000),
           "letters": b"abcdefgh" * 60_000}


def make_tar(form):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, data in MEMBERS.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "letters"
        tar.addfile(link)
    return out.getvalue()


def make_zip(method):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in MEMBERS.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


ARCHIVES = {"gnu.tar": make_tar(tarfile.GNU_FORMAT), "pax.tar": make_tar(tarfile.PAX_FORMAT), "stored.zip": make_zip(zipfile.ZIP_STORED),
            "deflated.zip": make_zip(zipfile.ZIP_DEFLATED)}


@pytest.fixture(scope="module")
def filled(server):
    assert server.request("PUT", "/archives").status == 200
    for name, data in {**ARCHIVES, "big": BIG, "empty": b"", "no.tar": b"hello", "dir/k&<ey": b"odd", "cut.tar": ARCHIVES["pax.tar"][:20_000]}.items():
        assert server.request("PUT", "/archives/" + name, data).status == 200
    yield server
    for name in (*ARCHIVES, "big", "empty", "no.tar", "dir/k&<ey", "cut.tar"):
        server.request("DELETE", "/archives/" + name)
    assert server.request("DELETE", "/archives").status == 204


def member(server, key, name, method="GET", **more):
    return server.request(method, "/archives/" + key, query=[("archpath", name)], **more)


@pytest.mark.parametrize("key", ARCHIVES)
def test_members(filled, key):
    for name, data in MEMBERS.items():
        got = member(filled, key, name)
        assert got.status == 200 and got.body == data and got.headers["content-length"] == str(len(data)), name
        head = member(filled, key, name, "HEAD")
        assert (head.status, head.body, head.headers["content-length"], head.headers["etag"]) == (200, b"", str(len(data)), got.headers["etag"])
        again = member(filled, key, name, headers={"If-None-Match": got.headers["etag"]})
        assert again.status == 304 and again.body == b""
        assert member(filled, key, name, headers={"If-Match": '"other"'}).status == 412
    tags = {member(filled, key, name, "HEAD").headers["etag"] for name in MEMBERS}
    assert len(tags) == len(MEMBERS)
    for text, first, last in (("bytes=0-0", 0, 0), ("bytes=1000-4999", 1000, 4999), ("bytes=479990-", 479990, 479999), ("bytes=-7", 479993, 479999)):
        got = member(filled, key, "letters", headers={"Range": text})
        assert got.status == 206 and got.body == MEMBERS["letters"][first:last + 1], text
        assert got.headers["content-range"] == f"bytes {first}-{last}/480000"
    reply = member(filled, key, "letters", headers={"Range": "bytes=480000-"})
    assert (reply.status, reply.headers["content-range"]) == (416, "bytes */480000"), reply
    missing = member(filled, key, "a/0003.jpg")
    assert (missing.status, missing.code) == (404, "NoSuchKey") and 'no member "a/0003.jpg"' in missing.xml.findtext("Message")
    assert member(filled, key, "a").status == 404
    if key.endswith(".tar"):
        assert "is a link" in member(filled, key, "link").xml.findtext("Message")


def test_members_that_cannot_be_given(filled):
    for key, name, status, code, text in (("no.tar", "x", 400, "InvalidRequest", "neither a tar nor a ZIP"), ("cut.tar", "letters", 400, "InvalidRequest", "ends inside"),
                                          ("none.tar", "x", 404, "NoSuchKey", "key"), ("gnu.tar", "", 400, "InvalidArgument", "archpath"),
                                          ("gnu.tar", "n" * 2049, 400, "InvalidArgument", "archpath"), ("empty", "x", 400, "InvalidRequest", "neither")):
        got = member(filled, key, name)
        assert (got.status, got.code) == (status, code) and text in got.xml.findtext("Message"), got
    # no permission for the archive means none for its members
    assert member(filled, "gnu.tar", "letters", access=None).status == 403
    assert filled.request("POST", "/archives", b'[{"key":"big"}]', query=[("batch", "")], access=None).status == 403


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
@pytest.mark.parametrize("size", [20, 100_000, 700_000, 20_000_000])
def test_damaged_zip_members(filled, method, size):
    """400 with the reason up to 16 MiB, for ranges as well; what is larger never arrives whole."""
    if SMALL and size > 1_000_000:
        pytest.skip("minutes under a sanitizer")
    data, out = os.urandom(size), io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr(zipfile.ZipInfo("m"), data, method)
        archive.writestr(zipfile.ZipInfo("other"), b"right", method)
    whole = bytearray(out.getvalue())
    at = whole.index(b"PK\1\2") - size // 2 - 60
    whole[max(at, 31 + 5)] ^= 0x10
    assert filled.request("PUT", "/archives/damaged.zip", bytes(whole)).status == 200
    assert member(filled, "damaged.zip", "other").body == b"right"
    for headers in ({}, {"Range": "bytes=0-9"}, {"Range": "bytes=-3"}):
        try:
            got = member(filled, "damaged.zip", "m", headers=headers)
        except (OSError, http.client.HTTPException):
            assert size > 16 << 20
            continue
        if size <= 16 << 20:
            assert (got.status, got.code) == (400, "InvalidRequest") and re.search("damaged|than in the directory", got.xml.findtext("Message")), (got, headers)
        else:
            assert headers, "a whole body that is wrong"
    if size == 20:  # found before the answer begins
        got = batch(filled, [{"key": "empty"}, {"key": "damaged.zip", "archpath": "m"}])
        assert (got.status, got.code) == (400, "InvalidRequest") and "damaged.zip/m:" in got.xml.findtext("Message"), got
    assert filled.request("DELETE", "/archives/damaged.zip").status == 204


@pytest.mark.parametrize("before", [b"", b"#!/bin/sh\nexit\n", bytes(512), bytes(4096), b"x" * 100_000])
@pytest.mark.parametrize("behind", [b"", b"\n", bytes(1000), b"PK\5\6", b"y" * 60_000])
def test_data_around_a_zip_archive(filled, before, behind):
    data = before + ARCHIVES["deflated.zip"] + behind
    with zipfile.ZipFile(io.BytesIO(data)) if behind != b"PK\5\6" else zipfile.ZipFile(io.BytesIO(before + ARCHIVES["deflated.zip"])) as archive:
        assert archive.read("a/0001.jpg") == MEMBERS["a/0001.jpg"]
    assert filled.request("PUT", "/archives/around.zip", data).status == 200
    for name in MEMBERS:
        assert member(filled, "around.zip", name).body == MEMBERS[name]
    assert filled.request("DELETE", "/archives/around.zip").status == 204


def test_a_new_version_has_its_own_members(filled):
    def put(text):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            info = tarfile.TarInfo("m")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
        assert filled.request("PUT", "/archives/turns.tar", b"\0" * 0 + out.getvalue()).status == 200
    tags = set()
    for text in (b"first", b"second, longer"):
        put(text)
        got = member(filled, "turns.tar", "m")
        assert got.body == text
        tags.add(got.headers["etag"])
    assert len(tags) == 2
    assert filled.request("DELETE", "/archives/turns.tar").status == 204


# --- batches ---------------------------------------------------------------------------------------------------------

def batch(server, entries, lines=False):
    body = "\n".join(map(json.dumps, entries)) if lines else json.dumps(entries)
    return server.request("POST", "/archives", body.encode(), query=[("batch", "")])


@pytest.mark.parametrize("lines", [False, True])
def test_batch(filled, lines, tmp_path):
    entries = [{"key": "big"}, {"key": "gnu.tar", "archpath": "a/0001.jpg", "opaque": "mine: ü"}, {"key": "none"}, {"key": "empty"},
               {"key": "deflated.zip", "archpath": "letters", "range": "bytes=9-108"}, {"key": "stored.zip", "archpath": "nothing/here"},
               {"key": "big", "range": "bytes=-70000"}, {"key": "dir/k&<ey"}, {"key": "big", "range": "bytes=99999999-"}, {"key": "no.tar", "archpath": "x"},
               {"key": "pax.tar", "archpath": "x" * 200 + ".bin"}, {"key": "big"}]
    want = [("big", BIG), ("gnu.tar/a/0001.jpg", MEMBERS["a/0001.jpg"]), ("__missing__/none", "NoSuchKey"), ("empty", b""),
            ("deflated.zip/letters", MEMBERS["letters"][9:109]), ("__missing__/stored.zip/nothing/here", "NoSuchKey"), ("big", BIG[-70000:]), ("dir/k&<ey", b"odd"),
            ("__missing__/big", "InvalidRange"), ("__missing__/no.tar/x", "InvalidRequest"), ("pax.tar/" + "x" * 200 + ".bin", MEMBERS["x" * 200 + ".bin"]), ("big", BIG)]
    got = batch(filled, entries, lines)
    assert got.status == 200 and got.headers["content-type"] == "application/x-tar" and int(got.headers["content-length"]) == len(got.body)
    assert (got.headers["x-leat-entries"], got.headers["x-leat-missing"]) == ("12", "4")
    with tarfile.open(fileobj=io.BytesIO(got.body)) as tar:
        infos = tar.getmembers()
        assert [i.name for i in infos] == [name for name, _ in want]
        for entry, info, (_, data) in zip(entries, infos, want):
            body = tar.extractfile(info).read()
            if isinstance(data, bytes):
                assert body == data, info.name
            else:
                why = json.loads(body)
                assert (why["key"], why.get("archpath"), why["code"]) == (entry["key"], entry.get("archpath"), data) and why["message"]
            assert info.pax_headers.get("LEAT.opaque") == entry.get("opaque")
    (tmp_path / "got.tar").write_bytes(got.body)
    listing = subprocess.run(["tar", "--warning=no-unknown-keyword", "-tf", tmp_path / "got.tar"], capture_output=True, timeout=60, check=True)
    assert len(listing.stdout.splitlines()) == 12 and not listing.stderr


def test_batch_of_many(filled):
    names = list(MEMBERS)
    entries = [{"key": list(ARCHIVES)[i % 4], "archpath": names[i % len(names)]} for i in range(100 if SMALL else 700)]
    got = batch(filled, entries)
    with tarfile.open(fileobj=io.BytesIO(got.body)) as tar:
        for entry, info in zip(entries, tar):
            assert info.name == entry["key"] + "/" + entry["archpath"]
            assert tar.extractfile(info).read() == MEMBERS[entry["archpath"]]
        assert len(tar.getmembers()) == len(entries)


def test_batches_that_are_refused(filled):
    for body, code, text in ((b"", "InvalidRequest", "the batch names nothing"), (b"[]", "InvalidRequest", "nothing"), (b"{}", "InvalidRequest", "no key"),
                             (b'[{"key":"a","range":"x"}]', "InvalidRequest", "element 1"), (b'[{"key":"a"},{"objname":"b"}]', "InvalidRequest", "objname"),
                             (b'[{"key":"\xff"}]', "InvalidRequest", "element 1"), (json.dumps([{"key": "k"}] * 4097).encode(), "InvalidRequest", "at most 4096")):
        got = filled.request("POST", "/archives", body, query=[("batch", "")])
        assert (got.status, got.code) == (400, code) and text in got.xml.findtext("Message"), got
    got = filled.request("POST", "/no-such-bucket", b'[{"key":"a"}]', query=[("batch", "")])
    assert (got.status, got.code) == (404, "NoSuchBucket")
    assert filled.request("GET", "/archives/big").body == BIG


def test_readers_that_leave(filled):
    """In the middle of a batch: the server releases its memory, and continues."""
    target, headers = filled.prepare("POST", "/archives", b'{"key":"big"}' * 40, {}, [("batch", "")], lib_serve.ACCESS, lib_serve.SECRET)

    def leave(i):
        connection = filled.connect()
        connection.putrequest("POST", target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.putheader("content-length", str(13 * 40))
        connection.endheaders(b'{"key":"big"}' * 40)
        answer = connection.getresponse()
        assert answer.status == 200 and len(answer.read(100_000 * (i + 1))) == 100_000 * (i + 1)
        connection.sock.close()

    lib_serve.at_once(8, leave)
    assert len(batch(filled, [{"key": "big"}] * 3).body) > 3 * len(BIG)
