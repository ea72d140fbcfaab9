# SPDX-License-Identifier: Apache-2.0
"""The S3 service by requests put together by hand: what S3 says to reads and writes of objects, and that nothing strange gets through."""

import hashlib
import json
import re
import socket
import urllib.parse

import lib_serve
import pytest
from lib_serve import ACCESS, MIB, content, error, get, put


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
    """A client that sends Expect gets 100, or the error before it sends."""
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
    # No 100 Continue for an empty body: botocore of 2022 needs the connection closed behind that answer.
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
