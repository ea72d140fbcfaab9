# SPDX-License-Identifier: Apache-2.0
"""The S3 service by requests put together by hand: users, signatures and permissions."""

import re
import zlib

import lib_serve
from lib_serve import Upload, base64, error, get, now, presigned, put


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
        assert server.send(method, other, b"", {**headers, **more}).status == 403
    assert get(server, path) == b"secret"
    log = server.log.read_text()
    assert lib_serve.SECRET not in log and "Signature" not in log


def test_presigned(server, bucket):
    path = f"/{bucket}/a b+ä"

    def ask(method, target, headers, body=b""):
        return server.send(method, target, body, headers)

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
        return server.send("GET", f"http://{authority}{target_path or path}", b"", {**headers, "host": host})

    here, there = f"{bucket}.localhost:{server.port}", f"{other}.localhost:{server.port}"
    assert ask("a.proxied.example", f"/{bucket}/k", "a.proxied.example").body == b"right"
    assert ask("A.Proxied.Example:80", f"/{bucket}/k", "a.proxied.example").body == b"right", "one host in two ways: clients sign the header"
    assert ask(here, "/k", here).body == b"right"
    assert ask(here, "/k", "a-proxy.example", signed_host=here).body == b"right", "what a proxy put into Host is nothing to us"
    assert error(ask(there, "/k", here)) == (403, "SignatureDoesNotMatch"), "signed for one bucket, sent to another"
    assert error(ask(here, "/k", here, target_path="/other")) == (403, "SignatureDoesNotMatch")
    assert ask(here, "/", here).xml.tag == "ListBucketResult"
    for host in (here, "a-proxy.example"):
        target, headers = server.prepare("GET", "/", headers={"host": here}, query=[("list-type", "2"), ("prefix", "k")])
        listed = server.send("GET", f"http://{here}{target[1:]}", b"", {**headers, "host": host})
        assert listed.xml.findtext("KeyCount") == "1", "an empty path is /"
    assert server.request("DELETE", f"/{other}/k").status == server.request("DELETE", f"/{other}").status == 204


def test_headers_in_links(server, bucket):
    """SDKs put x-amz- headers into the query of a link: none of them is lost without a word."""
    path = f"/{bucket}/k"

    def ask(*query):
        target, headers = presigned(server, "PUT", path, query=query)
        return server.send("PUT", target, b"by a link", headers)

    for pair in (("x-amz-acl", "public-read"), ("X-Amz-Tagging", "a=b"), ("x-amz-storage-class", "GLACIER"), ("x-amz-server-side-encryption", "AES256"),
                 ("x-amz-copy-source", f"{bucket}/other"), ("x-amz-copy-source-if-match", "x"), ("x-amz-trailer", "x-amz-checksum-crc32")):
        assert error(ask(pair)) == (501, "NotImplemented"), pair
    for pair in (("x-amz-meta-a", "1\r\nx-forged: 1"), ("x-amz-meta-a:b", "1"), ("x-amz-meta-a\r\nb", "1"), ("x-amz-meta-a", "\x7f")):
        assert error(ask(pair)) == (400, "InvalidArgument"), pair
    assert error(ask(("x-amz-meta-a", "v" * 2048))) == (400, "MetadataTooLarge")
    assert error(ask(("x-amz-expected-bucket-owner", "stranger"))) == (403, "AccessDenied")
    right, wrong = (base64((zlib.crc32(b"by a link") ^ flip).to_bytes(4, "big")) for flip in (0, 1))
    assert error(ask(("x-amz-checksum-crc32", wrong), ("x-amz-sdk-checksum-algorithm", "CRC32"))) == (400, "BadDigest")
    assert error(ask(("X-Amz-Checksum-Sha256", "wrong"))) == (400, "InvalidRequest")
    assert error(server.request("HEAD", path)) == (404, None)
    reply = ask(("x-amz-checksum-crc32", right), ("x-amz-sdk-checksum-algorithm", "CRC32"))
    assert reply.status == 200 and reply.headers["x-amz-checksum-crc32"] == right
    # The checksum of an empty body, which SDKs sign without having seen another, says nothing: S3 does not look at it, either.
    assert ask(("X-Amz-Meta-Kind", "a b+ä"), ("x-amz-acl", "private"), ("x-amz-checksum-crc32", "AAAAAA=="), ("x-id", "PutObject")).status == 200
    headers = server.request("GET", path).headers
    assert headers["x-amz-meta-kind"].encode("latin-1").decode() == "a b+ä" and "x-amz-checksum-crc32" not in headers


def test_headers_in_links_of_uploads(server, bucket):
    """The same of an upload in parts: what its parts and its whole have to be."""
    path = f"/{bucket}/k"

    def ask(method, body, *query):
        target, headers = presigned(server, method, path, query=query)
        return server.send(method, target, body, headers)

    reply = ask("POST", b"", ("uploads", ""), ("x-amz-checksum-algorithm", "CRC32"), ("x-amz-checksum-type", "FULL_OBJECT"))
    assert reply.status == 200 and reply.headers["x-amz-checksum-algorithm"] == "CRC32" and reply.headers["x-amz-checksum-type"] == "FULL_OBJECT"
    upload = ("uploadId", reply.xml.findtext("UploadId"))
    wrong = ("x-amz-checksum-crc32", base64(b"bad!"))
    assert error(ask("PUT", b"part", upload, ("partNumber", "1"), wrong)) == (400, "BadDigest")
    etag = ask("PUT", b"part", upload, ("partNumber", "1")).headers["etag"]
    document = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>".encode()
    for pair in (wrong, ("x-amz-mp-object-size", "5"), ("x-amz-checksum-type", "COMPOSITE")):
        assert ask("POST", document, upload, pair).status == 400, pair
    assert error(server.request("HEAD", path)) == (404, None)
    assert ask("POST", document, upload, ("x-amz-mp-object-size", "4")).status == 200


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
        assert server.request("PUT", "/made", **maker).status == 200
        assert error(server.request("PUT", "/shared-a", **maker)) == (409, "BucketAlreadyExists")
        # Unsigned requests may not choose the headers of an answer.
        reply = server.request("GET", "/public-a/k", query=[("response-content-type", "text/html")], **nobody)
        assert error(reply) == (400, "InvalidRequest")
        assert server.request("DELETE", "/made/k", **maker).status == 204 and server.request("DELETE", "/made", **maker).status == 204
    finally:
        for name in ("shared-a", "shared-b", "public-a", "made", "private-one"):
            server.request("DELETE", f"/{name}/k")
            server.request("DELETE", f"/{name}")


def test_expected_owners(server):
    """A request that expects another owner of the bucket is refused before any effect, for every user; the id is the one in ListBuckets."""
    maker = {"access": "LEATTESTMAKER0000001", "secret": "secret-of-the-maker"}
    own, other, header, source = "owned-by-maker", "owned-by-admin", "x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"
    put(server, f"/{own}", b"", headers={header: "anybody"}, **maker)  # there is no owner yet to compare with
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
