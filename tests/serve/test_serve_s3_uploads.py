# SPDX-License-Identifier: Apache-2.0
"""The S3 service by requests put together by hand: copies, and uploads in parts."""

import hashlib
import zlib

import lib_crc
import pytest
from lib_serve import MIB, SUMS, Upload, base64, content, error, get, put


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
    for reply in (parts(("max-parts", "0")), listed(("max-uploads", "0"))):  # no endless list of empty pages
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
    zeros = {"CRC32": zlib.crc32(first).to_bytes(4, "big"), "CRC32C": lib_crc.crc32c(first).to_bytes(4, "big"),
             "CRC64NVME": lib_crc.crc64nvme(first).to_bytes(8, "big"), "SHA256": hashlib.sha256(first).digest()}
    upload = Upload(server, f"/{bucket}/k", x_amz_checksum_algorithm=name, x_amz_checksum_type=kind)
    assert upload.part(1, first, **{header: base64(zeros[name])}).status == 200
    assert error(upload.part(1, first[:-1], **{header: base64(zeros[name])})) == (400, "BadDigest")
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


def test_much_metadata(server, bucket):
    """What an upload was begun with is kept, though nothing is left for where its many parts begin."""
    upload = Upload(server, f"/{bucket}/k", cache_control="x" * 7660)
    first, data = b"x" * (5 * MIB + 1), b"y" * (5 * MIB)
    for number in range(1, 68):
        assert upload.part(number, first if number == 1 else data).status == 200
    reply = upload.complete()
    assert reply.status == 200, reply
    reply = server.request("HEAD", f"/{bucket}/k")
    assert reply.headers["cache-control"] == "x" * 7660 and reply.headers["content-length"] == str(67 * 5 * MIB + 1)
