# SPDX-License-Identifier: Apache-2.0
"""The S3 service by requests put together by hand: checksums, and bodies in chunks that are signed, or lie."""

import hashlib

import lib_serve
import pytest
from lib_serve import SUMS, base64, content, error, get, now, put


def test_content_md5(server, bucket):
    right = base64(hashlib.md5(b"abc").digest())
    put(server, f"/{bucket}/m", b"abc", headers={"content-md5": right})
    assert error(server.request("PUT", f"/{bucket}/m", b"abd", headers={"content-md5": right})) == (400, "BadDigest")
    for bad in ("", "x", right[:-1], "AAAA"):
        assert error(server.request("PUT", f"/{bucket}/m", b"abd", headers={"content-md5": bad})) == (400, "InvalidDigest")
    assert get(server, f"/{bucket}/m") == b"abc"


@pytest.mark.parametrize("name", SUMS)
def test_checksums(server, bucket, name):
    path, header, value = f"/{bucket}/s", f"x-amz-checksum-{name}", SUMS[name]
    assert put(server, path, b"123456789", headers={header: value}).headers[header] == value
    assert header not in server.request("GET", path).headers
    for method in ("GET", "HEAD"):
        reply = server.request(method, path, headers={"x-amz-checksum-mode": "ENABLED"})
        assert reply.headers[header] == value and reply.headers["x-amz-checksum-type"] == "FULL_OBJECT"
    reply = server.request("GET", path, headers={"x-amz-checksum-mode": "ENABLED", "range": "bytes=0-1"})
    assert header not in reply.headers
    assert error(server.request("PUT", path, b"123456780", headers={header: value})) == (400, "BadDigest")
    assert error(server.request("PUT", path, b"123456789", headers={header: value[:-2]})) == (400, "InvalidRequest")
    # In a trailer, unsigned and signed.
    for lie in (False, True):
        told = SUMS[name] if not lie else base64(hashlib.sha256(b"no").digest()[: {"crc32": 4, "crc32c": 4, "crc64nvme": 8, "sha1": 20, "sha256": 32}[name]])
        body = f"9\r\n123456789\r\n0\r\n{header}:{told}\r\n\r\n".encode()
        reply = server.request("PUT", path + "-t", body, payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER",
                               headers={"x-amz-trailer": header, "x-amz-decoded-content-length": "9", "content-encoding": "aws-chunked"})
        assert (error(reply) == (400, "BadDigest")) if lie else (reply.status == 200 and reply.headers[header] == value), reply
    assert get(server, path + "-t") == b"123456789"
    assert "content-encoding" not in server.request("HEAD", path + "-t").headers


def test_payload_hash(server, bucket):
    path = f"/{bucket}/p"
    reply = server.request("PUT", path, b"abc", payload=hashlib.sha256(b"abd").hexdigest())
    assert error(reply) == (400, "XAmzContentSHA256Mismatch")
    assert error(server.request("GET", path)) == (404, "NoSuchKey")
    put(server, path, b"abc", payload="UNSIGNED-PAYLOAD")
    two = {"x-amz-checksum-sha1": SUMS["sha1"], "x-amz-checksum-crc32": SUMS["crc32"]}
    assert error(server.request("PUT", path, b"123456789", headers=two)) == (400, "InvalidRequest")


# --- bodies in chunks --------------------------------------------------------------------------------------------------------------

STREAMING = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"


def chunked(server, path, pieces, change=None, trailer=None, decoded=None):
    """A PUT in signed chunks; change(list of chunks) may spoil them. The length told is that of what is sent."""
    when = now()
    payload = STREAMING + ("-TRAILER" if trailer else "")
    headers = {"x-amz-decoded-content-length": str(sum(map(len, pieces)) if decoded is None else decoded), "content-encoding": "aws-chunked"}
    if trailer:
        headers["x-amz-trailer"] = trailer[0]
    target, signed = server.prepare("PUT", path, headers=headers, when=when, payload=payload)
    chunks = lib_serve.Chunks(lib_serve.seed_of(signed), when)
    parts = [chunks.chunk(p) for p in [*pieces, b""]]
    parts.append(chunks.trailer(*trailer) if trailer else b"\r\n")
    body = b"".join((change or (lambda p: p))(parts))
    return server.send("PUT", target, body, signed)


def test_signed_chunks(server, bucket):
    path = f"/{bucket}/chunks"
    pieces = [content("c1", 300_000), content("c2", 65536), b"z"]
    assert chunked(server, path, pieces).status == 200
    assert get(server, path) == b"".join(pieces)
    reply = chunked(server, path, [b"123456789"], trailer=("x-amz-checksum-crc64nvme", SUMS["crc64nvme"]))
    assert reply.status == 200 and reply.headers["x-amz-checksum-crc64nvme"] == SUMS["crc64nvme"]
    assert chunked(server, path, []).status == 200
    assert get(server, path) == b""


def test_lies_of_chunks(server, bucket):
    """Replayed, moved, left out, changed: nothing of it is ever seen."""
    path = f"/{bucket}/lies"
    pieces = [b"a" * 70_000, b"b" * 70_000, b"c" * 10]

    def spoil(parts, i, at):
        piece = bytearray(parts[i])
        piece[at] ^= 1
        return [*parts[:i], bytes(piece), *parts[i + 1 :]]

    changes = {
        "moved": lambda p: [p[1], p[0], *p[2:]],
        "replayed": lambda p: [p[0], p[0], *p[2:]],
        "left out": lambda p: [p[0], *p[2:]],
        "payload": lambda p: spoil(p, 1, 5000),
        "signature": lambda p: spoil(p, 0, 40),
        "last one": lambda p: spoil(p, 3, 30),
    }
    for name, change in changes.items():
        status, code = error(chunked(server, path, pieces, change))
        assert (status, code) in ((403, "SignatureDoesNotMatch"), (400, "IncompleteBody")), name
    assert error(chunked(server, path, pieces, lambda p: p[:3])) == (400, "IncompleteBody")
    assert error(chunked(server, path, pieces, decoded=140_009)) == (400, "IncompleteBody")
    assert error(chunked(server, path, pieces, decoded=140_011)) == (400, "IncompleteBody")
    bad = ("x-amz-checksum-crc32", SUMS["crc32"])
    assert error(chunked(server, path, [b"123456789"], lambda p: spoil(p, 2, 22), trailer=bad)) == (403, "SignatureDoesNotMatch")
    assert error(server.request("GET", path)) == (404, "NoSuchKey")
    for body in (b"zz\r\n", b"-1\r\n\r\n", b"3\r\nabc0\r\n\r\n", b"fffffffffffffffff\r\n", b"3\r\nabc\r\n0\r\nnonsense\r\n\r\n", b""):
        reply = server.request("PUT", path, body, payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER",
                               headers={"x-amz-decoded-content-length": "3", "content-length": str(len(body))})
        assert reply.status == 400 and reply.code in ("IncompleteBody", "MalformedTrailerError"), (body, reply)
    reply = server.request("PUT", path, b"3\r\nabc\r\n0\r\n\r\n", payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER")
    assert error(reply) == (411, "MissingContentLength")
    reply = server.request("PUT", path, b"3\r\nabc\r\n0\r\n\r\n", payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER",
                           headers={"x-amz-decoded-content-length": "3", "x-amz-trailer": "x-amz-checksum-crc32"})
    assert error(reply) == (400, "MalformedTrailerError")
    assert error(server.request("GET", path)) == (404, "NoSuchKey")
