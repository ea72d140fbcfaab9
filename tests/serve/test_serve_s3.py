# SPDX-License-Identifier: Apache-2.0
"""The S3 door by requests put together by hand: what S3 says to each, and that nothing strange gets through."""

import contextlib
import hashlib
import json
import re
import socket
import urllib.parse
import zlib

import lib_serve
import pytest
from lib_serve import ACCESS, base64, content, now, presigned

MIB = 1 << 20


def put(server, path, body=b"x", **more):
    reply = server.request("PUT", path, body, **more)
    assert reply.status == 200, reply
    return reply


def get(server, path, **more):
    reply = server.request("GET", path, **more)
    assert reply.status in (200, 206), reply
    return reply.body


def error(reply):
    return reply.status, reply.code


# --- objects ----------------------------------------------------------------------------------------------------------------

def test_put_and_get(server, bucket):
    data = content("a", 100_000)
    headers = {"content-type": "text/x", "x-amz-meta-one": "1", "X-Amz-Meta-Two": "a b", "cache-control": "no-cache", "expires": "never",
               "content-disposition": "inline", "content-language": "de", "content-encoding": "gzip"}
    reply = put(server, f"/{bucket}/a", data, headers=headers)
    etag = f'"{hashlib.md5(data).hexdigest()}"'
    assert reply.headers["etag"] == etag
    for method, body in (("GET", data), ("HEAD", b"")):
        reply = server.request(method, f"/{bucket}/a")
        assert reply.status == 200 and reply.body == body and reply.headers["content-length"] == "100000"
        assert reply.headers["etag"] == etag and reply.headers["accept-ranges"] == "bytes" and reply.headers["x-amz-request-id"]
        for name, value in headers.items():
            assert reply.headers[name.lower()] == value
    put(server, f"/{bucket}/empty", b"")
    assert get(server, f"/{bucket}/empty") == b""
    reply = server.request("HEAD", f"/{bucket}/empty")
    assert reply.headers["content-type"] == "binary/octet-stream"
    put(server, f"/{bucket}/a", b"other")
    assert get(server, f"/{bucket}/a") == b"other"
    assert server.request("DELETE", f"/{bucket}/a").status == 204
    assert server.request("DELETE", f"/{bucket}/a").status == 204
    assert error(server.request("GET", f"/{bucket}/a")) == (404, "NoSuchKey")


def test_large(server, bucket):
    """Larger than what is verified at a time, and again from the cache of open files."""
    data = content("large", 21 * MIB + 17)
    put(server, f"/{bucket}/large", data)
    for _ in range(2):
        assert get(server, f"/{bucket}/large") == data
        assert get(server, f"/{bucket}/large", headers={"range": "bytes=9000000-19000000"}) == data[9000000:19000001]


@pytest.mark.parametrize("text, first, last", [("0-0", 0, 0), ("0-9", 0, 9), ("5-", 5, 99), ("-7", 93, 99), ("-1000", 0, 99), ("90-1000", 90, 99)])
def test_ranges(server, bucket, text, first, last):
    data = content("r", 100)
    put(server, f"/{bucket}/r", data)
    reply = server.request("GET", f"/{bucket}/r", headers={"range": f"bytes={text}"})
    assert reply.status == 206 and reply.body == data[first : last + 1]
    assert reply.headers["content-range"] == f"bytes {first}-{last}/100" and reply.headers["content-length"] == str(last - first + 1)


def test_ranges_that_are_none(server, bucket):
    put(server, f"/{bucket}/r", b"0123456789")
    put(server, f"/{bucket}/empty", b"")
    for text in ("bytes=0-1,3-4", "bytes=5-2", "lines=1-2", "bytes=x"):
        reply = server.request("GET", f"/{bucket}/r", headers={"range": text})
        assert reply.status == 200 and reply.body == b"0123456789"
    for text in ("bytes=10-", "bytes=-0", "bytes=99-100"):
        for method in ("GET", "HEAD"):
            reply = server.request(method, f"/{bucket}/r", headers={"range": text})
            assert (reply.status, reply.headers["content-range"]) == (416, "bytes */10"), reply
            assert reply.code == ("InvalidRange" if method == "GET" else None)
    reply = server.request("GET", f"/{bucket}/empty", headers={"range": "bytes=0-"})
    assert error(reply) == (416, "InvalidRange") and reply.headers["content-range"] == "bytes */0"


def test_conditions_of_reads(server, bucket):
    kept = {"cache-control": "max-age=60", "expires": "Fri, 01 Jan 2100 00:00:00 GMT"}
    etag = put(server, f"/{bucket}/c", headers=kept).headers["etag"]
    old, new = "Sun, 06 Nov 1994 08:49:37 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"
    for headers, status in (({"if-match": etag}, 200), ({"if-match": '"x"'}, 412), ({"if-none-match": etag}, 304), ({"if-none-match": '"x"'}, 200),
                            ({"if-modified-since": old}, 200), ({"if-modified-since": new}, 304), ({"if-unmodified-since": old}, 412),
                            ({"if-unmodified-since": new}, 200), ({"if-match": etag, "if-unmodified-since": old}, 200),
                            ({"if-none-match": '"x"', "if-modified-since": new}, 200), ({"if-match": '"x"', "if-none-match": etag}, 412),
                            ({"if-match": "W/" + etag}, 412), ({"if-none-match": "W/" + etag}, 304), ({"range": "bytes=0-0", "if-range": etag}, 206),
                            ({"range": "bytes=0-0", "if-range": "W/" + etag}, 200), ({"range": "bytes=0-0", "if-range": new}, 200)):
        for method in ("GET", "HEAD"):
            reply = server.request(method, f"/{bucket}/c", headers=headers)
            assert reply.status == status, (headers, reply)
            assert reply.body == (b"x" if method == "GET" and status in (200, 206) else reply.body if status == 412 else b"")
            assert status != 304 or reply.headers["etag"] == etag
            assert status != 304 or {k: reply.headers.get(k) for k in kept} == kept  # what is cached is cached for as long again


def test_conditions_of_writes(server, bucket):
    path = f"/{bucket}/c"
    etag = put(server, path, b"1", headers={"if-none-match": "*"}).headers["etag"]
    assert error(server.request("PUT", path, b"2", headers={"if-none-match": "*"})) == (412, "PreconditionFailed")
    assert error(server.request("PUT", path, b"2", headers={"if-match": '"x"'})) == (412, "PreconditionFailed")
    assert error(server.request("PUT", path + "-none", b"2", headers={"if-match": etag})) == (404, "NoSuchKey")
    assert get(server, path) == b"1"
    etag = put(server, path, b"2", headers={"if-match": etag}).headers["etag"]
    assert get(server, path) == b"2"
    assert error(server.request("DELETE", path, headers={"if-match": '"x"'})) == (412, "PreconditionFailed")
    for name, value in (("if-none-match", "*"), ("x-amz-if-match-size", "7"), ("x-amz-if-match-last-modified-time", "x")):
        assert error(server.request("DELETE", path, headers={name: value})) == (501, "NotImplemented"), name
    for element in ("ETag", "Size", "LastModifiedTime"):
        text = f"<Delete><Object><Key>c</Key><{element}>7</{element}></Object></Delete>".encode()
        assert error(server.request("POST", f"/{bucket}", text, query=[("delete", "")])) == (501, "NotImplemented"), element
    assert get(server, path) == b"2"
    assert server.request("DELETE", path, headers={"if-match": etag}).status == 204
    assert server.request("DELETE", path, headers={"if-match": etag}).status == 204  # it is not there: so be it
    assert error(server.request("GET", path)) == (404, "NoSuchKey")


def test_response_headers(server, bucket):
    put(server, f"/{bucket}/o", b"x", headers={"content-type": "a/b"})
    query = [("response-content-type", "text/html"), ("response-content-disposition", 'attachment; filename="x"')]
    reply = server.request("GET", f"/{bucket}/o", query=query)
    assert reply.headers["content-type"] == "text/html" and reply.headers["content-disposition"] == 'attachment; filename="x"'
    reply = server.request("GET", f"/{bucket}/o", query=[("response-content-type", "a\r\nx-evil: 1")])
    assert "x-evil" not in reply.headers and reply.headers["content-type"] == "a/b"


def test_strange_keys(server, bucket):
    """Bytes, nothing more: no key is a path, and each comes back as it was."""
    keys = ["../../etc/passwd", "..", "a/../b", "//", "/a", "a//b", "a/", " ", "+", "%2F", "%", "?", "#", "&=;", "ä\u2028😀", "\n\t\x01\x7f", "<>\"'&",
            "a\\b", "." * 300, "".join(chr(1 + i % 127) for i in range(1024)), "é" * 512, "k" * 1024]
    for key in keys:
        put(server, f"/{bucket}/{key}", key.encode())
    for key in keys:
        assert get(server, f"/{bucket}/{key}") == key.encode()
    reply = server.request("GET", f"/{bucket}", query=[("list-type", "2"), ("encoding-type", "url")])
    assert sorted(urllib.parse.unquote(k.text) for k in reply.xml.iter("Key")) == sorted(keys)
    assert error(server.request("PUT", f"/{bucket}/" + "k" * 1025)) == (400, "KeyTooLongError")
    for raw in ("%00", "a%00b", "%ff", "%zz", "%2"):
        reply = server.raw(f"GET /{bucket}/{raw} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        assert b"400 Bad Request" in reply and b"<Code>InvalidURI</Code>" in reply
    assert not list(server.top.glob("**/passwd"))


# --- checksums ---------------------------------------------------------------------------------------------------------------

def test_content_md5(server, bucket):
    right = base64(hashlib.md5(b"abc").digest())
    put(server, f"/{bucket}/m", b"abc", headers={"content-md5": right})
    assert error(server.request("PUT", f"/{bucket}/m", b"abd", headers={"content-md5": right})) == (400, "BadDigest")
    for bad in ("", "x", right[:-1], "AAAA"):
        assert error(server.request("PUT", f"/{bucket}/m", b"abd", headers={"content-md5": bad})) == (400, "InvalidDigest")
    assert get(server, f"/{bucket}/m") == b"abc"


SUMS = {"crc32": base64(zlib.crc32(b"123456789").to_bytes(4, "big")), "crc32c": base64(bytes.fromhex("e3069283")),
        "crc64nvme": base64(bytes.fromhex("ae8b14860a799888")), "sha1": base64(hashlib.sha1(b"123456789").digest()),
        "sha256": base64(hashlib.sha256(b"123456789").digest())}


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
        told = base64(bytes(len(value) * 3 // 4))[: len(value)] if lie else value
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
    size = sum(len(b"%x" % len(p)) + 85 + len(p) + 2 for p in [*pieces, b""])
    target, signed = server.prepare("PUT", path, headers=headers, when=when, payload=payload)
    chunks = lib_serve.Chunks(lib_serve.seed_of(signed), when)
    parts = [chunks.chunk(p) for p in [*pieces, b""]]
    parts.append(chunks.trailer(*trailer) if trailer else b"\r\n")
    body = b"".join((change or (lambda p: p))(parts))
    assert size  # told by its sum above; what counts is what is sent
    with contextlib.closing(server.connect()) as connection:
        return lib_serve.send(connection, "PUT", target, body, signed)


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


# --- who asks --------------------------------------------------------------------------------------------------------------------

def test_signatures(server, bucket):
    path = f"/{bucket}/k"
    put(server, path, b"secret")
    assert error(server.request("GET", path, secret="wrong")) == (403, "SignatureDoesNotMatch")
    assert error(server.request("GET", path, access="NOBODY")) == (403, "InvalidAccessKeyId")
    assert error(server.request("GET", path, access=None)) == (403, "AccessDenied")
    for offset in (-1000, 1000):
        assert error(server.request("GET", path, when=now(offset))) == (403, "RequestTimeTooSkewed")
    assert server.request("GET", path, when=now(-600)).status == 200
    reply = server.request("GET", path, region="eu-west-9")
    assert error(reply) == (400, "AuthorizationHeaderMalformed") and reply.xml.findtext("Region") == "us-east-1"
    assert error(server.request("GET", path, service="sqs")) == (400, "AuthorizationHeaderMalformed")
    assert error(server.request("GET", path, headers={"x-amz-meta-a": "b"}, unsigned=("x-amz-meta-a",))) == (403, "AccessDenied")
    assert error(server.request("GET", path, unsigned=("host",))) == (403, "AccessDenied")
    assert error(server.request("GET", path, headers={"x-amz-security-token": "t"})) == (400, "InvalidToken")
    assert error(server.request("GET", path, access=None, headers={"authorization": "AWS a:b"})) == (400, "InvalidRequest")
    # What is signed is what counts: another method, path, query or header is another request.
    target, headers = server.prepare("GET", path)
    for method, other, more in (("DELETE", target, {}), ("GET", target + "2", {}), ("GET", target + "?acl", {}), ("GET", target, {"x-amz-date": now(1)})):
        with contextlib.closing(server.connect()) as connection:
            assert lib_serve.send(connection, method, other, b"", {**headers, **more}).status == 403
    assert get(server, path) == b"secret"
    log = server.log.read_text()
    assert lib_serve.SECRET not in log and "Signature" not in log


def test_presigned(server, bucket):
    path = f"/{bucket}/a b+ä"

    def ask(method, target, headers, body=b""):
        with contextlib.closing(server.connect()) as connection:
            return lib_serve.send(connection, method, target, body, headers)

    assert ask("PUT", *presigned(server, "PUT", path), b"by a link").status == 200
    target, headers = presigned(server, "GET", path)
    assert ask("GET", target, headers).body == b"by a link"
    assert error(ask("GET", target.replace("X-Amz-Expires=600", "X-Amz-Expires=601"), headers)) == (403, "SignatureDoesNotMatch")
    assert error(ask("DELETE", target, headers)) == (403, "SignatureDoesNotMatch")
    label, headers = presigned(server, "GET", path, query=[("response-content-type", "a+b")])
    assert ask("GET", label, headers).headers["content-type"] == "a+b"
    assert error(ask("GET", label.replace("a%2Bb", "a+b"), headers)) == (403, "SignatureDoesNotMatch")
    label, headers = presigned(server, "GET", path, query=[("response-content-type", "a b")])
    assert ask("GET", label.replace("=a%20b", "=a+b"), headers).headers["content-type"] == "a b"
    target, headers = presigned(server, "GET", path)
    reply = ask("GET", *presigned(server, "GET", path, expires=10, when=now(-11)))
    assert error(reply) == (403, "AccessDenied") and b"Request has expired" in reply.body
    assert error(ask("GET", *presigned(server, "GET", path, when=now(1000)))) == (403, "RequestTimeTooSkewed")
    assert error(ask("GET", *presigned(server, "GET", path, expires=604801))) == (400, "AuthorizationQueryParametersError")
    assert error(ask("GET", *presigned(server, "GET", path, secret="x"))) == (403, "SignatureDoesNotMatch")
    target, headers = presigned(server, "GET", path)
    assert error(ask("GET", target, {**headers, "authorization": "x"})) == (400, "InvalidArgument")
    assert error(ask("GET", re.sub("&X-Amz-SignedHeaders=[a-z]*", "", target), headers)) == (400, "AuthorizationQueryParametersError")


def test_absolute_targets(server, bucket):
    """As clients send them to a proxy. The host in them is the one that counts: for the bucket, and for what was signed."""
    put(server, f"/{bucket}/k", b"right")
    other = bucket + "-2"
    put(server, f"/{other}", b"")
    put(server, f"/{other}/k", b"wrong")

    def ask(authority, path, host, signed_host=None, target_path=None):
        _, headers = server.prepare("GET", path, headers={"host": signed_host or host})
        with contextlib.closing(server.connect()) as connection:
            return lib_serve.send(connection, "GET", f"http://{authority}{target_path or path}", b"", {**headers, "host": host})

    here, there = f"{bucket}.localhost:{server.port}", f"{other}.localhost:{server.port}"
    assert ask("a.proxied.example", f"/{bucket}/k", "a.proxied.example").body == b"right"
    assert ask("A.Proxied.Example:80", f"/{bucket}/k", "a.proxied.example").body == b"right", "one host in two ways: clients sign the header"
    assert ask(here, "/k", here).body == b"right"
    assert ask(here, "/k", "a-proxy.example", signed_host=here).body == b"right", "what a proxy put into Host is nothing to us"
    assert error(ask(there, "/k", here)) == (403, "SignatureDoesNotMatch"), "signed for one bucket, sent to another"
    assert error(ask(here, "/k", here, target_path="/other")) == (403, "SignatureDoesNotMatch")
    assert ask(here, "/", here).xml.tag == "ListBucketResult"
    assert server.request("DELETE", f"/{other}/k").status == server.request("DELETE", f"/{other}").status == 204


def test_headers_in_links(server, bucket):
    """SDKs put x-amz- headers into the query of a link: none of them is lost without a word."""
    path = f"/{bucket}/k"

    def ask(*query):
        with contextlib.closing(server.connect()) as connection:
            target, headers = presigned(server, "PUT", path, query=query)
            return lib_serve.send(connection, "PUT", target, b"by a link", headers)

    for pair in (("x-amz-acl", "public-read"), ("X-Amz-Tagging", "a=b"), ("x-amz-storage-class", "GLACIER"), ("x-amz-server-side-encryption", "AES256"),
                 ("x-amz-copy-source", f"{bucket}/other")):
        assert error(ask(pair)) == (501, "NotImplemented"), pair
    for pair in (("x-amz-meta-a", "1\r\nx-forged: 1"), ("x-amz-meta-a:b", "1"), ("x-amz-meta-a\r\nb", "1"), ("x-amz-meta-a", "\x7f")):
        assert error(ask(pair)) == (400, "InvalidArgument"), pair
    assert error(ask(("x-amz-meta-a", "v" * 2048))) == (400, "MetadataTooLarge")
    assert error(server.request("HEAD", path)) == (404, None)
    # The checksum of an empty body, which SDKs sign without having seen another, says nothing: S3 does not look at it, either.
    assert ask(("X-Amz-Meta-Kind", "a b+ä"), ("x-amz-acl", "private"), ("x-amz-checksum-crc32", "AAAAAA=="), ("x-id", "PutObject")).status == 200
    headers = server.request("GET", path).headers
    assert headers["x-amz-meta-kind"].encode("latin-1").decode() == "a b+ä" and "x-amz-checksum-crc32" not in headers


def test_permissions(server):
    reader = dict(access="LEATTESTREADER000001", secret="secret-of-the-reader")
    maker = dict(access="LEATTESTMAKER0000001", secret="secret-of-the-maker")
    nobody = dict(access=None)
    try:
        for name, who in (("shared-a", {}), ("shared-b", {}), ("public-a", {}), ("made", maker)):
            put(server, f"/{name}", b"", **who)
            put(server, f"/{name}/k", b"x", **who)
        may = {"shared-a": [True, True, False], "shared-b": [False, True, False], "public-a": [True, True, True], "made": [False, True, False]}
        for name, expected in may.items():
            for who, good in zip((reader, maker, nobody), expected):
                for path, query in ((f"/{name}/k", ()), (f"/{name}", [("list-type", "2")]), (f"/{name}", [("location", "")])):
                    reply = server.request("GET", path, query=query, **who)
                    assert reply.status == 200 if good else error(reply) == (403, "AccessDenied"), (name, who, reply)
        for who in (reader, nobody):
            for method, path in (("PUT", "/new-one"), ("PUT", "/public-a/k"), ("DELETE", "/shared-a/k"), ("DELETE", "/made"), ("POST", "/public-a/k?uploads")):
                path, _, query = path.partition("?")
                reply = server.request(method, path, query=[(query, "")] if query else (), **who)
                assert error(reply) == (403, "AccessDenied"), (method, path, reply)
        # A copy needs the right to its source.
        assert error(server.request("PUT", "/made/copy", headers={"x-amz-copy-source": "/shared-b/none"}, **maker)) == (404, "NoSuchKey")
        put(server, "/private-one", b"")
        put(server, "/private-one/k", b"x")
        assert error(server.request("PUT", "/made/copy", headers={"x-amz-copy-source": "/private-one/k"}, **maker)) == (403, "AccessDenied")
        listed = {b.text for b in server.request("GET", "/", **maker).xml.iter("Name")}
        assert listed == {"shared-a", "shared-b", "public-a", "made"}
        assert error(server.request("GET", "/", **nobody)) == (403, "AccessDenied")
        assert error(server.request("GET", "/nonesuch", **reader)) == (403, "AccessDenied")
        assert error(server.request("GET", "/nonesuch", **maker)) == (404, "NoSuchBucket")
        assert error(server.request("PUT", "/made", **maker)) == (409, "BucketAlreadyOwnedByYou")
        assert error(server.request("PUT", "/shared-a", **maker)) == (409, "BucketAlreadyExists")
        # Who has no key may not say how an answer is labelled.
        reply = server.request("GET", "/public-a/k", query=[("response-content-type", "text/html")], **nobody)
        assert error(reply) == (400, "InvalidRequest")
        assert server.request("DELETE", "/made/k", **maker).status == 204 and server.request("DELETE", "/made", **maker).status == 204
    finally:
        for name in ("shared-a", "shared-b", "public-a", "made", "private-one"):
            server.request("DELETE", f"/{name}/k")
            server.request("DELETE", f"/{name}")


def test_expected_owners(server):
    """Who takes a bucket for somebody else's is refused before anything is done, whoever he is; the id is the one that ListBuckets tells."""
    maker = {"access": "LEATTESTMAKER0000001", "secret": "secret-of-the-maker"}
    own, other, header, source = "owned-by-maker", "owned-by-admin", "x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"
    put(server, f"/{own}", b"", headers={header: "anybody"}, **maker)  # there is nobody yet who could be compared
    put(server, f"/{other}", b"")
    owner, admin = (server.request("GET", "/", **who).xml.findtext("Owner/ID") for who in (maker, {}))
    try:
        upload = Upload(server, f"/{own}/u")
        uploading = [("uploadId", upload.id)]
        put(server, f"/{own}/k")
        put(server, f"/{other}/k")
        asked = [("GET", "k", ()), ("HEAD", "k", ()), ("GET", "", [("list-type", "2")]), ("GET", "", [("uploads", "")]), ("GET", "u", uploading), ("GET", "", [("location", "")]),
                 ("PUT", "k", ()), ("PUT", "u", [*uploading, ("partNumber", "1")]), ("POST", "u", uploading), ("POST", "", [("delete", "")]), ("POST", "", [("batch", "")]),
                 ("DELETE", "u", uploading), ("DELETE", "k", ()), ("DELETE", "", ())]
        assert owner and admin and owner != admin
        for wrong in (admin, "", owner + "x", owner[:-1], "123456789012"):
            for method, key, query in asked:
                reply = server.request(method, f"/{own}/{key}", query=query, headers={header: wrong})
                assert reply.status == 403 and reply.code == (None if method == "HEAD" else "AccessDenied"), (wrong, method, key, query, reply)
        for who in (maker, {}):
            assert get(server, f"/{own}/k", headers={header: owner}, **who) == b"x"
        assert server.request("PUT", f"/{own}/new", b"y", headers={header: owner}).status == 200
        assert server.request("DELETE", f"/{own}/new", headers={header: owner}).status == 204
        copying = {"x-amz-copy-source": f"/{other}/k", header: owner}
        for path, query in ((f"/{own}/copy", ()), (f"/{own}/u", [*uploading, ("partNumber", "1")])):
            assert error(server.request("PUT", path, query=query, headers={**copying, source: owner})) == (403, "AccessDenied")
            assert server.request("PUT", path, query=query, headers={**copying, source: admin}).status == 200
        assert error(server.request("GET", "/no-such-bucket/k", headers={header: owner})) == (404, "NoSuchBucket")
        assert server.request("GET", "/", headers={header: "anybody"}).status == 200
        assert server.request("DELETE", f"/{own}/u", query=uploading, headers={header: owner}).status == 204
    finally:
        for key in ("/k", "/copy", ""):
            for name in (own, other):
                server.request("DELETE", f"/{name}{key}")


# --- buckets and lists ------------------------------------------------------------------------------------------------------------

def test_buckets(server, bucket):
    assert server.request("HEAD", f"/{bucket}").status == 200
    assert server.request("HEAD", "/no-such-bucket").status == 404
    assert error(server.request("PUT", f"/{bucket}")) == (409, "BucketAlreadyOwnedByYou")
    for name in ("ab", "Upper", "a_b", "-a-", "1.2.3.4", "a" * 64):
        assert error(server.request("PUT", f"/{name}")) == (400, "InvalidBucketName"), name
    for name in ("metrics", "healthz", "readyz"):  # paths of the server's own
        assert server.request("PUT", f"/{name}").status in (400, 403, 404, 405)
        assert error(server.request("PUT", "/", headers={"host": f"{name}.localhost"})) == (400, "InvalidBucketName")
    location = b"<CreateBucketConfiguration><LocationConstraint>eu-west-1</LocationConstraint></CreateBucketConfiguration>"
    assert error(server.request("PUT", "/elsewhere", location)) == (400, "IllegalLocationConstraintException")
    assert server.request("GET", f"/{bucket}", query=[("location", "")]).xml.tag == "LocationConstraint"
    put(server, f"/{bucket}/k")
    assert error(server.request("DELETE", f"/{bucket}")) == (409, "BucketNotEmpty")
    assert error(server.request("PUT", "/no-such-bucket/k", b"x")) == (404, "NoSuchBucket")
    assert error(server.request("DELETE", "/no-such-bucket")) == (404, "NoSuchBucket")
    reply = server.request("GET", "/k", headers={"host": f"{bucket}.localhost:{server.port}"})
    assert reply.status == 200 and reply.body == b"x"


def test_settings_that_nobody_has(server, bucket):
    put(server, f"/{bucket}/k")
    for name, code in (("policy", "NoSuchBucketPolicy"), ("cors", "NoSuchCORSConfiguration"), ("lifecycle", "NoSuchLifecycleConfiguration"),
                       ("tagging", "NoSuchTagSet"), ("website", "NoSuchWebsiteConfiguration"), ("object-lock", "ObjectLockConfigurationNotFoundError"),
                       ("encryption", "ServerSideEncryptionConfigurationNotFoundError"), ("replication", "ReplicationConfigurationNotFoundError")):
        assert error(server.request("GET", f"/{bucket}", query=[(name, "")])) == (404, code)
    for name, tag in (("versioning", "VersioningConfiguration"), ("acl", "AccessControlPolicy"), ("logging", "BucketLoggingStatus"),
                      ("notification", "NotificationConfiguration"), ("requestPayment", "RequestPaymentConfiguration")):
        assert server.request("GET", f"/{bucket}", query=[(name, "")]).xml.tag == tag
    assert server.request("GET", f"/{bucket}/k", query=[("tagging", "")]).xml.tag == "Tagging"
    assert error(server.request("GET", f"/{bucket}/none", query=[("acl", "")])) == (404, "NoSuchKey")
    for method, path, name in (("GET", f"/{bucket}/k", "versions"), ("GET", f"/{bucket}", "attributes"), ("PUT", f"/{bucket}", "versioning"), ("PUT", f"/{bucket}/k", "acl"),
                               ("PUT", f"/{bucket}", "policy"), ("POST", f"/{bucket}/k", "select"), ("GET", f"/{bucket}/k", "torrent"),
                               ("DELETE", f"/{bucket}", "newSetting"), ("DELETE", f"/{bucket}/k", "newSetting"),
                               ("PUT", f"/{bucket}/k", "newSetting"), ("DELETE", f"/{bucket}/k", "uploads"), ("DELETE", f"/{bucket}/k", "delete"),
                               ("PUT", f"/{bucket}/k", "delete"), ("PUT", f"/{bucket}", "uploads")):
        assert error(server.request(method, path, query=[(name, "")])) == (501, "NotImplemented"), (method, path, name)
    empty = f"/{bucket}-empty"
    assert server.request("PUT", empty).status == 200
    for name, value in (("uploads", ""), ("delete", ""), ("batch", ""), ("uploadId", ""), ("uploadId", "7"), ("newSetting", "")):
        assert error(server.request("DELETE", empty, query=[(name, value)])) == (501, "NotImplemented"), name
    assert server.request("DELETE", empty).status == 204
    for header, value in (("x-amz-server-side-encryption", "AES256"), ("x-amz-tagging", "a=b"), ("x-amz-acl", "public-read"),
                          ("x-amz-storage-class", "GLACIER"), ("x-amz-object-lock-mode", "GOVERNANCE")):
        assert error(server.request("PUT", f"/{bucket}/no", b"x", headers={header: value})) == (501, "NotImplemented"), header
    assert error(server.request("PUT", f"/{bucket}/k", b"part", query=[("partNumber", "1")])) == (400, "InvalidArgument")
    assert get(server, f"/{bucket}/k") == b"x"
    put(server, f"/{bucket}/k", b"y", query=[("x-id", "PutObject")], headers={"x-amz-acl": "private", "x-amz-storage-class": "STANDARD"})
    assert error(server.request("GET", f"/{bucket}/k", query=[("versionId", "7")])) == (404, "NoSuchVersion")
    assert error(server.request("PATCH", f"/{bucket}/k")) == (405, "MethodNotAllowed")


def test_lists(server, bucket):
    keys = ["a", "a/b", "a/c/d", "b+c", "b c", "d/", "d/e", "z"]
    for key in keys:
        put(server, f"/{bucket}/{key}")

    def names(reply, tag="Key"):
        return [urllib.parse.unquote(e.text) for e in reply.xml.iter(tag)]

    def ask(*query):
        return server.request("GET", f"/{bucket}", query=[("list-type", "2"), *query])

    assert names(ask()) == sorted(keys)
    assert names(ask(("prefix", "a/"))) == ["a/b", "a/c/d"]
    assert names(ask(("start-after", "b c"))) == ["b+c", "d/", "d/e", "z"]
    reply = ask(("delimiter", "/"))
    assert names(reply) == ["a", "b c", "b+c", "z"] and [e.findtext("Prefix") for e in reply.xml.iter("CommonPrefixes")] == ["a/", "d/"]
    assert reply.xml.findtext("KeyCount") == "6" and reply.xml.findtext("IsTruncated") == "false"
    reply = ask(("max-keys", "0"))
    assert names(reply) == [] and reply.xml.findtext("IsTruncated") == "false"
    # Page by page, each a token further.
    seen, token = [], None
    while True:
        reply = ask(("delimiter", "/"), ("max-keys", "1"), *([("continuation-token", token)] if token else []))
        seen += names(reply) + [e.findtext("Prefix") for e in reply.xml.iter("CommonPrefixes")]
        token = reply.xml.findtext("NextContinuationToken")
        if not token:
            break
    assert seen == ["a", "a/", "b c", "b+c", "d/", "z"]
    assert ask(("fetch-owner", "true")).xml.find("Contents/Owner/ID").text == "default"
    for query in (("max-keys", "x"), ("encoding-type", "x"), ("continuation-token", "x"), ("continuation-token", "kzz")):
        assert error(ask(query)) == (400, "InvalidArgument")
    old = server.request("GET", f"/{bucket}", query=[("marker", "b c"), ("max-keys", "2")])
    assert names(old) == ["b+c", "d/"] and old.xml.findtext("NextMarker") == "d/"
    reply = ask(("encoding-type", "url"), ("prefix", "b+"))
    assert reply.xml.find("Contents/Key").text == "b%2Bc" and reply.xml.findtext("Prefix") == "b%2B"


def test_versions(server, bucket):
    """One of each object, called null: pages, prefixes, delimiters and markers as those of other lists."""
    keys = ["a/1", "a/2", "b", "c d+ä", "e/1"]
    for key in keys:
        put(server, f"/{bucket}/{key}", key.encode())

    def page(**query):
        reply = server.request("GET", f"/{bucket}", query=[("versions", ""), *((k.replace("_", "-"), v) for k, v in query.items())])
        assert reply.status == 200, reply
        return reply.xml

    whole = page()
    assert whole.tag == "ListVersionsResult" and whole.findtext("IsTruncated") == "false" and whole.findtext("MaxKeys") == "1000"
    found = whole.findall("Version")
    assert [v.findtext("Key") for v in found] == keys and {(v.findtext("VersionId"), v.findtext("IsLatest")) for v in found} == {("null", "true")}
    assert found[2].findtext("ETag") == f'"{hashlib.md5(b"b").hexdigest()}"' and found[2].findtext("Size") == "1" and found[2].find("Owner") is not None
    assert [v.findtext("Key") for v in page(encoding_type="url").findall("Version")][3] == "c%20d%2B%C3%A4"
    assert [v.findtext("Key") for v in page(prefix="a/").findall("Version")] == ["a/1", "a/2"]
    seen, markers = [], {"key_marker": "", "version_id_marker": ""}
    for _ in range(9):
        one = page(max_keys="1", delimiter="/", **markers)
        seen += [v.findtext("Key") for v in one.findall("Version")] + [p.findtext("Prefix") for p in one.findall("CommonPrefixes")]
        if one.findtext("IsTruncated") == "false":
            break
        assert (one.findtext("NextVersionIdMarker") == "null") == (not seen[-1].endswith("/"))
        markers = {"key_marker": one.findtext("NextKeyMarker"), "version_id_marker": one.findtext("NextVersionIdMarker") or ""}
    assert seen == ["a/", "b", "c d+ä", "e/"]
    assert error(server.request("GET", f"/{bucket}", query=[("versions", ""), ("version-id-marker", "null")])) == (400, "InvalidArgument")
    assert error(server.request("GET", f"/{bucket}", query=[("versions", "")], access=None)) == (403, "AccessDenied")


def test_attributes(server, bucket):
    crc = base64(zlib.crc32(b"hello").to_bytes(4, "big"))
    put(server, f"/{bucket}/k", b"hello", headers={"x-amz-checksum-crc32": crc})

    def ask(what, key="k", query=(), **more):
        headers = {"x-amz-object-attributes": what} if what is not None else {}
        return server.request("GET", f"/{bucket}/{key}", query=[("attributes", ""), *query], headers=headers, **more)

    reply = ask("ETag, Checksum,ObjectParts,StorageClass,ObjectSize")
    assert reply.status == 200 and reply.headers["last-modified"] and reply.xml.tag == "GetObjectAttributesResponse"
    assert {e.tag: e.text for e in reply.xml.iter() if e.text} == {
        "ETag": hashlib.md5(b"hello").hexdigest(), "ChecksumCRC32": crc, "ChecksumType": "FULL_OBJECT", "StorageClass": "STANDARD", "ObjectSize": "5"}
    assert [e.tag for e in ask("ObjectSize", query=[("versionId", "null")]).xml] == ["ObjectSize"]
    for wrong in (None, "", "Size", "ETag,,ObjectSize"):
        assert error(ask(wrong)) == (400, "InvalidArgument"), wrong
    assert error(ask("ETag", key="none")) == (404, "NoSuchKey")
    assert error(ask("ETag", query=[("versionId", "7")])) == (404, "NoSuchVersion")
    assert error(ask("ETag", access=None)) == (403, "AccessDenied")


def test_delete_many(server, bucket):
    for i in range(5):
        put(server, f"/{bucket}/{i}")
    body = b"<Delete><Object><Key>0</Key></Object><Object><Key>none</Key></Object><Object><Key>1</Key><VersionId>9</VersionId></Object></Delete>"
    reply = server.request("POST", f"/{bucket}", body, query=[("delete", "")])
    assert {e.findtext("Key") for e in reply.xml.iter("Deleted")} == {"0", "none"}
    assert [(e.findtext("Key"), e.findtext("Code")) for e in reply.xml.iter("Error")] == [("1", "NoSuchVersion")]
    quiet = b"<Delete><Quiet>true</Quiet><Object><Key>1</Key></Object></Delete>"
    assert not list(server.request("POST", f"/{bucket}", quiet, query=[("delete", "")]).xml)
    wrong = {"content-md5": base64(hashlib.md5(b"x").digest())}
    assert error(server.request("POST", f"/{bucket}", quiet, headers=wrong, query=[("delete", "")])) == (400, "BadDigest")
    for body in (b"", b"x", b"<Delete>", b"<Delete/>", b"<!DOCTYPE a []><Delete><Object><Key>2</Key></Object></Delete>",
                 b"<Delete>" + b"<Object><Key>k</Key></Object>" * 1001 + b"</Delete>", b"<Delete>" + b"<a>" * 100, b" " * (3 * MIB)):
        assert error(server.request("POST", f"/{bucket}", body, query=[("delete", "")])) == (400, "MalformedXML"), body[:80]
    assert get(server, f"/{bucket}/2") == b"x"


# --- copies and uploads -------------------------------------------------------------------------------------------------------------

def test_copies(server, bucket):
    data = content("copy", 3 * MIB)
    etag = put(server, f"/{bucket}/a b", data, headers={"content-type": "a/b", "x-amz-meta-k": "v"}).headers["etag"]
    source = {"x-amz-copy-source": f"/{bucket}/a%20b"}
    reply = put(server, f"/{bucket}/c", b"", headers=source)
    assert reply.xml.findtext("ETag") == etag
    head = server.request("HEAD", f"/{bucket}/c")
    assert head.headers["content-type"] == "a/b" and head.headers["x-amz-meta-k"] == "v" and get(server, f"/{bucket}/c") == data
    put(server, f"/{bucket}/c", b"", headers={**source, "x-amz-metadata-directive": "REPLACE", "x-amz-meta-k": "w"})
    head = server.request("HEAD", f"/{bucket}/c")
    assert head.headers["content-type"] == "binary/octet-stream" and head.headers["x-amz-meta-k"] == "w"
    itself = {"x-amz-copy-source": f"/{bucket}/c"}
    assert error(server.request("PUT", f"/{bucket}/c", headers=itself)) == (400, "InvalidRequest")
    put(server, f"/{bucket}/c", b"", headers={**itself, "x-amz-metadata-directive": "REPLACE", "content-type": "x/y"})
    assert server.request("HEAD", f"/{bucket}/c").headers["content-type"] == "x/y" and get(server, f"/{bucket}/c") == data
    for more, status in (({"x-amz-copy-source-if-match": etag}, 200), ({"x-amz-copy-source-if-match": '"x"'}, 412),
                         ({"x-amz-copy-source-if-none-match": etag}, 412),
                         ({"x-amz-copy-source-if-modified-since": "Fri, 01 Jan 2100 00:00:00 GMT"}, 412),
                         ({"x-amz-copy-source-if-unmodified-since": "Sun, 06 Nov 1994 08:49:37 GMT"}, 412)):
        assert server.request("PUT", f"/{bucket}/d", headers={**source, **more}).status == status, more
    for value, expected in ((f"/{bucket}/none", (404, "NoSuchKey")), ("nonsense", (400, "InvalidArgument")), (f"/{bucket}/a%", (400, "InvalidArgument")),
                            ("/no-such-bucket/k", (404, "NoSuchBucket"))):
        assert error(server.request("PUT", f"/{bucket}/d", headers={"x-amz-copy-source": value})) == expected


class Upload:
    def __init__(self, server, path, **headers):
        self.server, self.path = server, path
        reply = server.request("POST", path, query=[("uploads", "")], headers={k.replace("_", "-"): v for k, v in headers.items()})
        assert reply.status == 200, reply
        self.id, self.etags = reply.xml.findtext("UploadId"), {}

    def part(self, number, data, **headers):
        reply = self.server.request("PUT", self.path, data, query=[("partNumber", str(number)), ("uploadId", self.id)],
                                    headers={k.replace("_", "-"): v for k, v in headers.items()})
        if reply.status == 200:
            self.etags[number] = reply.headers.get("etag") or reply.xml.findtext("ETag")
        return reply

    def complete(self, parts=None, headers=None):
        parts = self.etags.items() if parts is None else parts
        body = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{e}</ETag></Part>" for n, e in parts)
        return self.server.request("POST", self.path, f"<CompleteMultipartUpload>{body}</CompleteMultipartUpload>".encode(),
                                   query=[("uploadId", self.id)], headers=headers)


def test_uploads(server, bucket):
    path = f"/{bucket}/big one"
    parts = [content("p1", 5 * MIB), content("p2", 6 * MIB), b"tail"]
    upload = Upload(server, path, content_type="m/p", x_amz_meta_k="v")
    listed = server.request("GET", f"/{bucket}", query=[("uploads", "")]).xml
    assert [(u.findtext("Key"), u.findtext("UploadId")) for u in listed.iter("Upload")] == [("big one", upload.id)]
    upload.part(1, b"another first")
    for number, data in ((3, parts[2]), (1, parts[0]), (2, parts[1])):
        assert upload.part(number, data).status == 200
    listed = server.request("GET", path, query=[("uploadId", upload.id)]).xml
    assert [(p.findtext("PartNumber"), p.findtext("Size")) for p in listed.iter("Part")] == [("1", str(5 * MIB)), ("2", str(6 * MIB)), ("3", "4")]
    assert error(server.request("GET", path)) == (404, "NoSuchKey")
    assert error(upload.complete([(1, upload.etags[1]), (2, '"x"')])) == (400, "InvalidPart")
    assert error(upload.complete([(1, upload.etags[1]), (7, upload.etags[2])])) == (400, "InvalidPart")
    assert error(upload.complete([(2, upload.etags[2]), (1, upload.etags[1])])) == (400, "InvalidPartOrder")
    assert error(upload.complete([(1, upload.etags[1]), (2, upload.etags[2]), (10_000, upload.etags[3])])) == (400, "InvalidPart")
    assert error(upload.complete([])) == (400, "MalformedXML")
    assert error(upload.complete([(0, upload.etags[1])])) == (400, "MalformedXML")
    chosen = sorted(upload.etags.items())
    reply = upload.complete(chosen)
    md5s = b"".join(hashlib.md5(p).digest() for p in parts)
    etag = f'"{hashlib.md5(md5s).hexdigest()}-3"'
    assert reply.status == 200 and reply.xml.findtext("ETag") == etag, reply
    reply = server.request("GET", path)
    assert reply.body == b"".join(parts) and reply.headers["etag"] == etag
    assert reply.headers["content-type"] == "m/p" and reply.headers["x-amz-meta-k"] == "v"
    for number, data in enumerate(parts, 1):
        reply = server.request("GET", path, query=[("partNumber", str(number))])
        assert reply.status == 206 and reply.body == data and reply.headers["x-amz-mp-parts-count"] == "3"
    assert error(server.request("GET", path, query=[("partNumber", "4")])) == (416, "InvalidPartNumber")
    # An answer that was lost: the same again says the same.
    again = upload.complete(chosen)
    assert again.status == 200 and again.xml.findtext("ETag") == etag
    assert error(upload.part(1, b"late")) == (404, "NoSuchUpload")
    assert error(upload.complete([(1, '"0"')])) == (404, "NoSuchUpload")


def test_pages_of_uploads(server, bucket):
    uploads = [Upload(server, f"/{bucket}/{key}") for key in ("a b", "a b", "c/d")]
    for number in (1, 2, 10_000):
        assert uploads[0].part(number, b"x").status == 200
    path, own = f"/{bucket}/a b", [("uploadId", uploads[0].id)]

    def parts(*query):
        return server.request("GET", path, query=[*own, *query])

    def listed(*query):
        return server.request("GET", f"/{bucket}", query=[("uploads", ""), *query])

    seen, marker = [], "0"
    while marker:
        page = parts(("max-parts", "1"), ("part-number-marker", marker)).xml
        seen += [p.findtext("PartNumber") for p in page.iter("Part")]
        marker = page.findtext("NextPartNumberMarker") if page.findtext("IsTruncated") == "true" else None
    assert seen == ["1", "2", "10000"]
    seen, more = [], []
    while more is not None:
        page = listed(("max-uploads", "1"), *more).xml
        seen += [u.findtext("UploadId") for u in page.iter("Upload")]
        more = None if page.findtext("IsTruncated") == "false" else [("key-marker", page.findtext("NextKeyMarker")),
                                                                     ("upload-id-marker", page.findtext("NextUploadIdMarker"))]
    assert sorted(seen) == sorted(u.id for u in uploads)
    for reply in (parts(("max-parts", "0")), listed(("max-uploads", "0"))):  # no page of nothing that goes on for ever
        assert reply.xml.findtext("IsTruncated") == "false"
    for value in ("-1", "x", "1.5"):
        assert error(parts(("max-parts", value))) == error(parts(("part-number-marker", value))) == (400, "InvalidArgument")
        assert error(listed(("max-uploads", value))) == (400, "InvalidArgument")
    assert error(listed(("encoding-type", "x"))) == (400, "InvalidArgument")
    assert error(listed(("delimiter", "/"))) == (501, "NotImplemented")
    assert [u.findtext("Key") for u in listed(("encoding-type", "url"), ("prefix", "a")).xml.iter("Upload")] == ["a%20b", "a%20b"]


def test_a_last_part_of_no_bytes(server, bucket):
    path = f"/{bucket}/k"
    upload = Upload(server, path)
    assert upload.part(1, content("p1", 5 * MIB)).status == upload.part(2, b"").status == 200
    assert upload.complete().status == 200
    for method in ("GET", "HEAD"):
        reply = server.request(method, path, query=[("partNumber", "2")])
        assert (reply.status, reply.body, reply.headers["content-length"]) == (206, b"", "0"), reply
        assert reply.headers["x-amz-mp-parts-count"] == "2" and "content-range" not in reply.headers
    assert server.request("GET", path, query=[("partNumber", "1")]).headers["content-range"] == f"bytes 0-{5 * MIB - 1}/{5 * MIB}"


def test_uploads_refused(server, bucket):
    path = f"/{bucket}/k"
    upload = Upload(server, path)
    for number in ("0", "10001", "x", "-1"):
        reply = server.request("PUT", path, b"x", query=[("partNumber", number), ("uploadId", upload.id)])
        assert error(reply) == (400, "InvalidArgument"), number
    for name in ("none", "x" * 1000, "../../x", upload.id[:-1], ""):
        reply = server.request("PUT", path, b"x", query=[("partNumber", "1"), ("uploadId", name)])
        assert error(reply) == (404, "NoSuchUpload"), name
    assert upload.part(1, b"small").status == upload.part(2, b"small").status == 200
    assert error(upload.complete()) == (400, "EntityTooSmall")
    assert error(server.request("DELETE", f"/{bucket}/other", query=[("uploadId", upload.id)])) == (404, "NoSuchUpload")
    assert server.request("DELETE", path, query=[("uploadId", upload.id)]).status == 204
    assert error(server.request("GET", path, query=[("uploadId", upload.id)])) == (404, "NoSuchUpload")
    assert error(upload.complete()) == (404, "NoSuchUpload")
    assert error(server.request("GET", path)) == (404, "NoSuchKey")


def test_upload_of_copies(server, bucket):
    data = content("source", 12 * MIB)
    put(server, f"/{bucket}/source", data)
    upload = Upload(server, f"/{bucket}/k")
    source = {"x_amz_copy_source": f"/{bucket}/source"}
    assert upload.part(1, b"", **source, x_amz_copy_source_range=f"bytes=0-{6 * MIB - 1}").status == 200
    assert upload.part(2, b"", **source, x_amz_copy_source_range=f"bytes={6 * MIB}-{12 * MIB - 1}").status == 200
    assert error(upload.part(3, b"", **source, x_amz_copy_source_range=f"bytes=0-{12 * MIB}")) == (416, "InvalidRange")
    assert error(upload.part(3, b"", **source, x_amz_copy_source_range="bytes=5-")) == (400, "InvalidArgument")
    assert upload.complete().status == 200
    assert get(server, f"/{bucket}/k") == data


@pytest.mark.parametrize("name, kind", [("CRC32", "FULL_OBJECT"), ("CRC32C", "COMPOSITE"), ("CRC64NVME", "FULL_OBJECT"), ("SHA256", "COMPOSITE")])
def test_upload_checksums(server, bucket, name, kind):
    """Of the whole, out of those of its parts: that of all bytes, or a checksum of checksums."""
    header = f"x-amz-checksum-{name.lower()}"
    first, second = b"\0" * (5 * MIB), b"123456789"
    zeros = {"CRC32": zlib.crc32(first).to_bytes(4, "big"), "SHA256": hashlib.sha256(first).digest()}
    upload = Upload(server, f"/{bucket}/k", x_amz_checksum_algorithm=name, x_amz_checksum_type=kind)
    if name in zeros:
        assert upload.part(1, first, **{header: base64(zeros[name])}).status == 200
        assert error(upload.part(1, first[:-1], **{header: base64(zeros[name])})) == (400, "BadDigest")
    else:  # what the server finds, as told by a whole PUT of the same bytes in one trailer that it checks
        value = next(v for v in candidates(server, bucket, header, first))
        assert upload.part(1, first, **{header: value}).status == 200
    assert upload.part(2, second, **{header: SUMS[name.lower()]}).status == 200
    # What cannot be compared is not taken for right.
    for promise in ({header: SUMS["sha1"]}, {"x-amz-checksum-sha1": SUMS["sha1"]}, {"x-amz-mp-object-size": str(len(first))},
                    {"x-amz-mp-object-size": "x"}):
        assert upload.complete(headers=promise).status == 400, promise
    named = f"<Part><PartNumber>1</PartNumber><ETag>{upload.etags[1]}</ETag><ChecksumSHA1>{SUMS['sha1']}</ChecksumSHA1></Part>"
    reply = server.request("POST", upload.path, f"<CompleteMultipartUpload>{named}</CompleteMultipartUpload>".encode(), query=[("uploadId", upload.id)])
    assert error(reply) == (400, "InvalidPart")
    reply = upload.complete(headers={"x-amz-mp-object-size": str(len(first + second))})
    assert reply.status == 200, reply
    told = reply.xml.findtext(f"Checksum{name}")
    assert reply.xml.findtext("ChecksumType") == kind and told.endswith("-2") == (kind == "COMPOSITE")
    head = server.request("HEAD", f"/{bucket}/k", headers={"x-amz-checksum-mode": "ENABLED"})
    assert head.headers[header] == told
    if kind == "FULL_OBJECT":  # as that of a PUT of all of it, which the server computes byte by byte
        put(server, f"/{bucket}/whole", first + second, headers={header: told})
    elif name == "SHA256":
        assert told == base64(hashlib.sha256(hashlib.sha256(first).digest() + hashlib.sha256(second).digest()).digest()) + "-2"


def candidates(server, bucket, header, data):
    """The checksum of many zeros by the algebra of CRCs, bit by bit: slow, and by nothing of ours."""
    poly, bits = (0x82F63B78, 32) if header.endswith("crc32c") else (0x9A6C9329AC4BC9B5, 64)
    one = 1 << (bits - 1)  # x^0, reflected

    def times(a, b):
        product = 0
        while a:
            if a & one:
                product ^= b
            a = a << 1 & (1 << bits) - 1
            b = b >> 1 ^ poly if b & 1 else b >> 1
        return product

    shift, square, n = one, one >> 8, len(data)
    while n:
        if n & 1:
            shift = times(shift, square)
        square, n = times(square, square), n >> 1
    mask = (1 << bits) - 1
    yield base64((times(shift, mask) ^ mask).to_bytes(bits // 8, "big"))


# --- what breaks off, what is strange ---------------------------------------------------------------------------------------------------

def test_short_bodies(server, bucket):
    """A body that ends early leaves nothing."""
    path = f"/{bucket}/short"
    for size in (10, 100_000, 12 * MIB):
        target, headers = server.prepare("PUT", path, payload="UNSIGNED-PAYLOAD")
        head = f"PUT {target} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + f"content-length: {size}\r\n\r\n"
        server.raw(head.encode() + b"x" * (size // 2), half_close=True)
    assert error(server.request("GET", path)) == (404, "NoSuchKey")
    assert not list(server.request("GET", f"/{bucket}").xml.iter("Contents"))


def test_expect(server, bucket):
    """Who asks first is told to go on, or why not before he sends."""
    target, headers = server.prepare("PUT", f"/{bucket}/e", b"abc")
    head = "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "expect: 100-continue\r\ncontent-length: 3\r\nconnection: close\r\n\r\n"
    with socket.create_connection((server.host, server.port), 120) as s, s.makefile("rb") as answer:
        s.sendall(f"PUT {target} HTTP/1.1\r\n{head}".encode())
        assert answer.readline() == b"HTTP/1.1 100 Continue\r\n" and answer.readline() == b"\r\n"
        s.sendall(b"abc")
        assert answer.readline().startswith(b"HTTP/1.1 200 ")
    answer = server.raw(f"PUT {target}x HTTP/1.1\r\n{head}".encode())
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert get(server, f"/{bucket}/e") == b"abc"
    # Nobody says "go on" to a body of no bytes: botocore of 2022 needs the connection closed behind that answer.
    reply = server.request("PUT", f"/{bucket}/e", b"", headers={"expect": "100-continue"})
    assert reply.status == 200 and reply.headers["connection"] == "close"


def test_strange_requests(server, bucket):
    """Two lengths, floods of headers, things that could be read in two ways: refused, and the connection is closed."""
    put(server, f"/{bucket}/k")
    target, headers = server.prepare("PUT", f"/{bucket}/smuggled", b"abc")
    head = f"PUT {target} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    hidden = f"GET /{bucket}/k HTTP/1.1\r\nhost: x\r\n\r\n"
    for more in ("content-length: 3\r\ncontent-length: 4\r\n", "content-length: 3\r\ntransfer-encoding: chunked\r\n",
                 "transfer-encoding: identity\r\n", "transfer-encoding: chunked, gzip\r\n", "content-length: +3\r\n", "host: other\r\ncontent-length: 3\r\n"):
        answer = server.raw((head + more + "\r\nabc" + hidden).encode())
        assert re.match(rb"HTTP/1.1 (400|501) ", answer) and answer.count(b"\r\nDate: ") == 1, (more, answer)
    for flood in ("x: y\r\n" * 200, "".join(f"x{i}: {'y' * 1000}\r\n" for i in range(100)), "x: " + "y" * 100_000 + "\r\n"):
        answer = server.raw((head + flood + "\r\n").encode())
        assert answer.startswith(b"HTTP/1.1 431 "), answer[:200]
    query = "&".join(f"a{i}=b" for i in range(100))
    assert server.raw(f"GET /{bucket}?{query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()).startswith(b"HTTP/1.1 400 ")
    assert error(server.request("GET", f"/{bucket}/smuggled")) == (404, "NoSuchKey")


def test_too_much_metadata(server, bucket):
    assert error(server.request("PUT", f"/{bucket}/m", b"x", headers={"x-amz-meta-a": "b" * 2048})) == (400, "MetadataTooLarge")
    put(server, f"/{bucket}/m", b"x", headers={"x-amz-meta-a": "b" * 2047})
    assert server.request("HEAD", f"/{bucket}/m").headers["x-amz-meta-a"] == "b" * 2047


def test_many_at_once(server, bucket):
    """Writers and readers of the same keys: each reader sees one version, whole."""
    sizes = [1000, 70_000, 300_000]

    def work(i):
        for round_ in range(4):
            size = sizes[(i + round_) % 3]
            put(server, f"/{bucket}/{round_ % 2}", bytes([65 + i]) * size)
            body = get(server, f"/{bucket}/{round_ % 2}")
            assert len(body) in sizes and len(set(body)) == 1

    lib_serve.at_once(8, work)


def test_what_it_says_of_itself(server):
    assert server.says["region"] == "us-east-1" and server.says["pid"] == server.process.pid
    assert json.dumps(server.says).count(ACCESS) == 0
