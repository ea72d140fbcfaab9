# SPDX-License-Identifier: Apache-2.0
"""The S3 service by requests put together by hand: where AWS's answers are known in detail, and tools rely on them."""

import http.client

import lib_serve
import pytest
from lib_serve import MIB, SUMS, Upload, base64, content, error, get, presigned, put

NINE = b"123456789"


def test_a_bucket_takes_its_uploads(server):
    """As `aws s3 rb --force` does: objects are deleted one by one, uploads are not."""
    put(server, "/with-uploads", b"")
    uploads = [Upload(server, "/with-uploads/k"), Upload(server, "/with-uploads/k")]
    assert uploads[0].part(1, b"x").status == 200
    put(server, "/with-uploads/object")
    assert error(server.request("DELETE", "/with-uploads")) == (409, "BucketNotEmpty")
    assert uploads[0].part(2, b"x").status == 200, "a refusal takes nothing"
    assert server.request("DELETE", "/with-uploads/object").status == 204
    assert server.request("DELETE", "/with-uploads").status == 204
    put(server, "/with-uploads", b"")
    assert not list(server.request("GET", "/with-uploads", query=[("uploads", "")]).xml.iter("Upload"))
    assert error(uploads[0].part(1, b"x")) == (404, "NoSuchUpload")
    assert server.request("DELETE", "/with-uploads").status == 204


@pytest.mark.parametrize("name", ["sha512", "md5", "xxhash64", "xxhash3", "xxhash128", "new"])
def test_checksums_that_are_not_here(server, bucket, name):
    """No demand is dropped: bytes that were not compared are not stored as if they had been."""
    path, header = f"/{bucket}/k", f"x-amz-checksum-{name}"

    def refused(reply):
        assert error(reply) == (501, "NotImplemented") and name in reply.xml.findtext("Message").lower(), reply

    refused(server.request("PUT", path, NINE, headers={header: "AAAA"}))
    refused(server.request("PUT", path, NINE, headers={"x-amz-sdk-checksum-algorithm": name.upper()}))
    refused(server.request("PUT", path, NINE, query=[(header, "AAAA")]))
    body = f"9\r\n123456789\r\n0\r\n{header}:AAAA\r\n\r\n".encode()
    refused(server.request("PUT", path, body, payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER",
                           headers={"x-amz-trailer": header, "x-amz-decoded-content-length": "9", "content-encoding": "aws-chunked"}))
    refused(server.request("POST", path, query=[("uploads", "")], headers={"x-amz-checksum-algorithm": name.upper()}))
    refused(server.request("PUT", path, headers={"x-amz-copy-source": f"/{bucket}/none", "x-amz-checksum-algorithm": name.upper()}))
    refused(server.request("POST", f"/{bucket}", b"<Delete><Object><Key>k</Key></Object></Delete>", query=[("delete", "")], headers={header: "AAAA"}))
    refused(server.request("POST", f"/{bucket}", b'[{"key": "k"}]', query=[("batch", "")], headers={header: "AAAA"}))
    upload = Upload(server, path)
    refused(upload.part(1, NINE, **{header.replace("-", "_"): "AAAA"}))
    assert upload.part(1, NINE).status == 200
    refused(upload.complete(headers={header: "AAAA"}))
    element = f"<Part><PartNumber>1</PartNumber><ETag>{upload.etags[1]}</ETag><Checksum{name.upper()}>AAAA</Checksum{name.upper()}></Part>"
    reply = server.request("POST", path, f"<CompleteMultipartUpload>{element}</CompleteMultipartUpload>".encode(), query=[("uploadId", upload.id)])
    assert error(reply) == (501, "NotImplemented")
    assert error(server.request("HEAD", path)) == (404, None)


def test_checksums_that_disagree(server, bucket):
    path = f"/{bucket}/k"
    for more in ({"x-amz-sdk-checksum-algorithm": "CRC32"}, {"x-amz-sdk-checksum-algorithm": "CRC32", "x-amz-checksum-sha1": SUMS["sha1"]},
                 {"x-amz-checksum-crc32": SUMS["crc32"], "x-amz-checksum-sha1": SUMS["sha1"]}):
        assert error(server.request("PUT", path, NINE, headers=more)) == (400, "InvalidRequest"), more
    put(server, path, NINE, headers={"x-amz-sdk-checksum-algorithm": "SHA1", "x-amz-checksum-sha1": SUMS["sha1"]})
    upload = Upload(server, path)
    assert upload.part(1, NINE, x_amz_checksum_crc32=SUMS["crc32"]).status == 200
    assert error(upload.complete(headers={"x-amz-checksum-crc32": SUMS["crc32"], "x-amz-checksum-sha1": SUMS["sha1"]})) == (400, "InvalidRequest")
    assert error(upload.complete(headers={"x-amz-checksum-crc32": "not base64"})) == (400, "InvalidRequest")
    for more in ({"x-amz-checksum-type": "FULL_OBJECT"}, {"x-amz-checksum-algorithm": "SHA1", "x-amz-checksum-type": "FULL_OBJECT"}):
        assert error(server.request("POST", path, query=[("uploads", "")], headers=more)) == (400, "InvalidRequest")
    two = f"<ChecksumCRC32>{SUMS['crc32']}</ChecksumCRC32><ChecksumSHA1>{SUMS['sha1']}</ChecksumSHA1>"
    body = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{upload.etags[1]}</ETag>{two}</Part></CompleteMultipartUpload>"
    assert error(server.request("POST", path, body.encode(), query=[("uploadId", upload.id)])) == (400, "InvalidArgument")


def test_part_and_upload_agree(server, bucket):
    def mismatch(reply, expected, actual):
        assert error(reply) == (400, "InvalidRequest")
        assert reply.xml.findtext("Message") == f"Checksum Type mismatch occurred, expected checksum Type: {expected}, actual checksum Type: {actual}"

    for kind in ("COMPOSITE", "FULL_OBJECT"):
        upload = Upload(server, f"/{bucket}/{kind}", x_amz_checksum_algorithm="CRC32", x_amz_checksum_type=kind)
        mismatch(upload.part(1, NINE, x_amz_checksum_sha1=SUMS["sha1"]), "crc32", "sha1")
        # Without one: the whole's is made of bytes, so the server can compute the part's; or of checksums that the client knows.
        reply = upload.part(1, NINE)
        if kind == "COMPOSITE":
            mismatch(reply, "crc32", "null")
            assert upload.part(1, NINE, x_amz_checksum_crc32=SUMS["crc32"]).status == 200
        else:
            assert reply.status == 200 and reply.headers["x-amz-checksum-crc32"] == SUMS["crc32"]
        other = "COMPOSITE" if kind == "FULL_OBJECT" else "FULL_OBJECT"
        assert error(upload.complete(headers={"x-amz-checksum-type": other})) == (400, "InvalidRequest")
        reply = upload.complete(headers={"x-amz-checksum-type": kind})
        assert reply.status == 200 and reply.xml.findtext("ChecksumType") == kind
    upload = Upload(server, f"/{bucket}/copied", x_amz_checksum_algorithm="SHA256")
    reply = upload.part(1, b"", x_amz_copy_source=f"/{bucket}/COMPOSITE")
    assert reply.xml.findtext("ChecksumSHA256") == SUMS["sha256"]
    assert upload.complete().xml.findtext("ChecksumSHA256").endswith("-1")


def test_completed_again(server, bucket):
    """The same request once more, and several at one moment: one answer, with the checksum."""
    path = f"/{bucket}/k"
    for n in range(8):
        upload = Upload(server, path, x_amz_checksum_algorithm="CRC32C", x_amz_checksum_type="FULL_OBJECT")
        data = content(f"p{n}", 5 * MIB)
        assert upload.part(1, data).status == upload.part(2, NINE).status == 200
        replies = []
        lib_serve.at_once(8, lambda i: replies.append(upload.complete()))
        replies.append(upload.complete())
        assert {r.status for r in replies} == {200}, replies
        assert len({(r.xml.findtext("ETag"), r.xml.findtext("ChecksumCRC32C"), r.xml.findtext("ChecksumType")) for r in replies}) == 1
        assert replies[-1].xml.findtext("ChecksumCRC32C") and replies[-1].xml.findtext("ChecksumType") == "FULL_OBJECT"
        assert get(server, path) == data + NINE


def test_copies_have_checksums(server, bucket):
    put(server, f"/{bucket}/crc", NINE, headers={"x-amz-checksum-crc32": SUMS["crc32"]})
    put(server, f"/{bucket}/plain", NINE)
    upload = Upload(server, f"/{bucket}/parts", x_amz_checksum_algorithm="SHA1")
    assert upload.part(1, NINE, x_amz_checksum_sha1=SUMS["sha1"]).status == upload.complete().status == 200

    def copy(source, **headers):
        put(server, f"/{bucket}/copy", b"old")
        headers = {k.replace("_", "-"): v for k, v in headers.items()}
        reply = put(server, f"/{bucket}/copy", b"", headers={"x-amz-copy-source": f"/{bucket}/{source}", **headers})
        head = server.request("HEAD", f"/{bucket}/copy", headers={"x-amz-checksum-mode": "ENABLED"}).headers
        told = {e.tag: e.text for e in reply.xml if e.tag.startswith("Checksum")}
        kept = {k: v for k, v in head.items() if k.startswith("x-amz-checksum-")}
        assert {v for v in told.values()} == {v for v in kept.values()} and get(server, f"/{bucket}/copy") == NINE
        return kept

    full = {"x-amz-checksum-type": "FULL_OBJECT"}
    assert copy("crc") == {"x-amz-checksum-crc32": SUMS["crc32"], **full}
    assert copy("plain") == {}
    assert copy("parts") == {"x-amz-checksum-sha1": SUMS["sha1"], **full}, "made of parts, which the copy has not"
    for name in SUMS:
        for source in ("crc", "plain", "parts"):
            assert copy(source, x_amz_checksum_algorithm=name.upper()) == {f"x-amz-checksum-{name}": SUMS[name], **full}
    itself = {"x-amz-copy-source": f"/{bucket}/plain", "x-amz-checksum-algorithm": "SHA256"}
    assert put(server, f"/{bucket}/plain", b"", headers=itself).xml.findtext("ChecksumSHA256") == SUMS["sha256"]


def test_repeated_attributes_are_one(server, bucket):
    """As the Go SDK sends them: a header each."""
    put(server, f"/{bucket}/k", NINE)
    target, headers = server.prepare("GET", f"/{bucket}/k", headers={"x-amz-object-attributes": "ETag,ObjectSize"}, query=[("attributes", "")])
    lines = [f"{n}: {one}" for n, v in headers.items() for one in (v.split(",") if n == "x-amz-object-attributes" else [v])]
    answer = server.raw("\r\n".join([f"GET {target} HTTP/1.1", *lines, "connection: close", "", ""]).encode())
    assert b" 200 " in answer and b"<ObjectSize>9</ObjectSize>" in answer and b"<ETag>" in answer


def test_repeated_headers_are_one(server, bucket):
    path = f"/{bucket}/k"
    target, headers = server.prepare("PUT", path, NINE, {"x-amz-meta-a": "1,2 3,4", "x-amz-meta-b": "x", "cache-control": "no-store,private"})
    values = {"x-amz-meta-a": ["1", "2 3", "4"], "cache-control": ["no-store", "private"]}
    connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
    connection.putrequest("PUT", target, skip_host=True, skip_accept_encoding=True)
    for name, value in headers.items():
        for one in values.get(name, [value]):
            connection.putheader(name.title() if one == "4" else name, one)
    connection.putheader("content-length", "9")
    connection.endheaders(NINE)
    assert lib_serve.Reply(connection.getresponse()).status == 200
    connection.close()
    target, headers = presigned(server, "PUT", f"{path}-link", query=[("x-amz-meta-a", "1"), ("X-Amz-Meta-A", "2")])
    assert server.send("PUT", target, NINE, headers).status == 200
    head = server.request("HEAD", path).headers
    assert (head["x-amz-meta-a"], head["x-amz-meta-b"], head["cache-control"]) == ("1,2 3,4", "x", "no-store,private")
    raw = server.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert raw.lower().count(b"x-amz-meta-a:") <= 1
    assert sorted(server.request("HEAD", f"{path}-link").headers["x-amz-meta-a"].split(",")) == ["1", "2"]


def test_storage_classes(server, bucket):
    path = f"/{bucket}/k"
    for name in ("REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"):
        put(server, path, b"x", headers={"x-amz-storage-class": name})
        for method in ("GET", "HEAD"):
            assert server.request(method, path).headers["x-amz-storage-class"] == name
        reply = server.request("GET", path, query=[("attributes", "")], headers={"x-amz-object-attributes": "StorageClass"})
        assert reply.xml.findtext("StorageClass") == name
    put(server, path, b"x", headers={"x-amz-storage-class": "STANDARD"})
    assert "x-amz-storage-class" not in server.request("HEAD", path).headers
    itself = {"x-amz-copy-source": path, "x-amz-storage-class": "STANDARD_IA"}
    put(server, path, b"", headers=itself)
    assert server.request("HEAD", path).headers["x-amz-storage-class"] == "STANDARD_IA"
    put(server, f"{path}2", b"", headers={"x-amz-copy-source": path})
    assert "x-amz-storage-class" not in server.request("HEAD", f"{path}2").headers, "a copy's own, not the source's"
    upload = Upload(server, path, x_amz_storage_class="ONEZONE_IA")
    listed = server.request("GET", f"/{bucket}", query=[("uploads", "")]).xml
    assert [u.findtext("StorageClass") for u in listed.iter("Upload")] == ["ONEZONE_IA"]
    assert server.request("GET", path, query=[("uploadId", upload.id)]).xml.findtext("StorageClass") == "ONEZONE_IA"
    assert upload.part(1, b"x").status == upload.complete().status == 200
    assert server.request("HEAD", path).headers["x-amz-storage-class"] == "ONEZONE_IA"
    for name, code in (("GLACIER", (501, "NotImplemented")), ("DEEP_ARCHIVE", (501, "NotImplemented")), ("INVALID", (400, "InvalidStorageClass")),
                       ("standard", (400, "InvalidStorageClass"))):
        assert error(server.request("PUT", path, b"y", headers={"x-amz-storage-class": name})) == code
    target, headers = presigned(server, "PUT", path, query=[("x-amz-storage-class", "GLACIER_IR")])
    assert server.send("PUT", target, b"y", headers).status == 200
    assert server.request("HEAD", path).headers["x-amz-storage-class"] == "GLACIER_IR"


def test_buckets_of_another_kind(server):
    """What a bucket is to be, and cannot be here, is not dropped."""
    for element in ("<Tags><Tag><Key>a</Key><Value>b</Value></Tag></Tags>", "<Bucket><Type>Directory</Type></Bucket>", "<New>x</New>"):
        body = f"<CreateBucketConfiguration>{element}</CreateBucketConfiguration>".encode()
        assert error(server.request("PUT", "/other-kind", body)) == (501, "NotImplemented"), element
    owned = "x-amz-object-ownership"
    assert error(server.request("PUT", "/other-kind", headers={owned: "ObjectWriter"})) == (501, "NotImplemented")
    assert server.request("PUT", "/other-kind", headers={owned: "BucketOwnerEnforced"}).status == 200
    assert server.request("DELETE", "/other-kind").status == 204


def test_locks_that_are_not_wanted(server):
    lock = "x-amz-bucket-object-lock-enabled"
    assert error(server.request("PUT", "/locked", headers={lock: "true"})) == (501, "NotImplemented")
    assert server.request("PUT", "/locked", headers={lock: "false"}).status == 200
    assert server.request("DELETE", "/locked").status == 204


def test_encryption_is_stated_where_it_is_configured(server, quick_folder):
    """The operator states it. The other server of these tests says 501: test_settings_that_nobody_has."""
    name = "x-amz-server-side-encryption"
    reply = server.request("PUT", "/sse", headers={name: "AES256"})
    assert error(reply) == (501, "NotImplemented") and "disks_encrypted" in reply.xml.findtext("Message")
    made = lib_serve.Server(quick_folder / "encrypted", "--disks-encrypted")
    try:
        put(made, "/bkt", b"")
        for headers in ({name: "AES256"}, {}):
            assert put(made, "/bkt/k", NINE, headers=headers).headers[name] == "AES256"
        for method in ("GET", "HEAD"):
            assert made.request(method, "/bkt/k").headers[name] == "AES256"
        reply = made.request("GET", "/bkt", query=[("encryption", "")])
        assert reply.status == 200 and [e.text for e in reply.xml.iter("SSEAlgorithm")] == ["AES256"]
        put(made, "/bkt/k", b"", headers={"x-amz-copy-source": "/bkt/k", name: "AES256"})
        upload = Upload(made, "/bkt/k", x_amz_server_side_encryption="AES256")
        assert upload.part(1, b"x").headers[name] == upload.complete().headers[name] == "AES256"
        for value in ("aws:kms", "aws:kms:dsse", "none"):
            assert error(made.request("PUT", "/bkt/k", NINE, headers={name: value})) == (501, "NotImplemented")
        customer = {f"{name}-customer-algorithm": "AES256"}
        assert error(made.request("PUT", "/bkt/k", NINE, headers=customer)) == (501, "NotImplemented")
        (made.top / "far").mkdir()
        remote = {"x-leat-remote": '{"uri": "file://%s"}' % (made.top / "far")}
        assert made.request("PUT", "/front", headers=remote).status == 200
        assert error(made.request("PUT", "/front/k", NINE, headers={name: "AES256"})) == (501, "NotImplemented"), "other disks"
        assert name not in put(made, "/front/k", NINE).headers and name not in made.request("HEAD", "/front/k").headers
    finally:
        made.stop()


def test_links_of_version_2(server, bucket):
    for headers, path in (({}, f"/{bucket}/k?AWSAccessKeyId=A&Signature=b&Expires=2000000000"), ({"authorization": "AWS A:b"}, f"/{bucket}/k")):
        reply = server.send("GET", path, b"", {"host": f"{server.host}:{server.port}", **headers})
        message = reply.xml.findtext("Message")
        assert error(reply) == (400, "InvalidRequest") and "AWS4-HMAC-SHA256" in message
        assert "signature_version='s3v4'" in message and "aws configure set default.s3.signature_version s3v4" in message


def attributes(server, path, *names, **headers):
    headers = {k.replace("_", "-"): v for k, v in headers.items()}
    return server.request("GET", path, query=[("attributes", "")], headers={"x-amz-object-attributes": ",".join(names), **headers})


@pytest.mark.parametrize("sizes", [[9], [5 * MIB, 9], [5 * MIB, 5 * MIB + 1, 5 * MIB, 0]], ids=["one", "even", "odd"])
@pytest.mark.parametrize("name, kind", [("CRC32", "FULL_OBJECT"), ("SHA256", "COMPOSITE"), (None, None)])
def test_parts_of_an_object(server, bucket, sizes, name, kind):
    """How many, of what size, with what checksum: GetObjectAttributes in pages, GET and HEAD of one of them."""
    path, data = f"/{bucket}/k", [content(f"part{i}", n) for i, n in enumerate(sizes)]
    upload = Upload(server, path, **({"x_amz_checksum_algorithm": name, "x_amz_checksum_type": kind} if name else {}))
    sums = []
    for i, part in enumerate(data):
        header = f"x-amz-checksum-{(name or 'crc32').lower()}"
        sums.append(base64(lib_serve.hashlib.sha256(part).digest()) if name == "SHA256" else base64(lib_serve.zlib.crc32(part).to_bytes(4, "big")))
        assert upload.part(2 * i + 1, part, **({header: sums[i]} if name else {})).status == 200
    assert upload.complete().status == 200
    seen, marker = [], "0"
    while marker:
        page = attributes(server, path, "ObjectParts", x_amz_max_parts="1", x_amz_part_number_marker=marker).xml.find("ObjectParts")
        assert (page.findtext("PartsCount"), page.findtext("MaxParts"), page.findtext("PartNumberMarker")) == (str(len(sizes)), "1", marker)
        seen += page.findall("Part")
        marker = page.findtext("NextPartNumberMarker") if page.findtext("IsTruncated") == "true" else None
    assert [(p.findtext("PartNumber"), p.findtext("Size")) for p in seen] == [(str(i), str(n)) for i, n in enumerate(sizes, 1)]
    assert [p.findtext(f"Checksum{name}") for p in seen] == (sums if name else [None] * len(sizes))
    whole = attributes(server, path, "ObjectParts").xml.find("ObjectParts")
    assert len(whole.findall("Part")) == len(sizes) and whole.findtext("IsTruncated") == "false" and whole.findtext("MaxParts") == "1000"
    none = attributes(server, path, "ObjectParts", x_amz_max_parts="0").xml.find("ObjectParts")
    assert not none.findall("Part") and none.findtext("IsTruncated") == "false", "no endless list of empty pages"
    for number in range(len(sizes)):
        for method in ("GET", "HEAD"):
            reply = server.request(method, path, query=[("partNumber", str(number + 1))], headers={"x-amz-checksum-mode": "ENABLED"})
            assert (reply.status, reply.headers["x-amz-mp-parts-count"], reply.headers["content-length"]) == (206, str(len(sizes)), str(sizes[number]))
            assert reply.headers.get(header) == (sums[number] if name else None) and (method == "HEAD" or reply.body == data[number])
    for value in ("-1", "x"):
        assert error(attributes(server, path, "ObjectParts", x_amz_max_parts=value)) == (400, "InvalidArgument")
    put(server, path, NINE, headers={"x-amz-checksum-crc32": SUMS["crc32"]})
    assert attributes(server, path, "ObjectParts", "ETag").xml.find("ObjectParts") is None
    reply = server.request("HEAD", path, query=[("partNumber", "1")], headers={"x-amz-checksum-mode": "ENABLED"})
    assert reply.status == 206 and "x-amz-mp-parts-count" not in reply.headers and reply.headers["x-amz-checksum-crc32"] == SUMS["crc32"]


@pytest.mark.long
def test_many_parts(server, bucket):
    """What does not fit into an object's metadata is left out, and the object is made all the same."""
    path, data = f"/{bucket}/k", content("p", 5 * MIB)
    upload = Upload(server, path, x_amz_checksum_algorithm="SHA256", x_amz_checksum_type="COMPOSITE")
    value = base64(lib_serve.hashlib.sha256(data).digest())
    for number in range(1, 93):  # of 45 characters each: more than 4,096
        assert upload.part(number, data, x_amz_checksum_sha256=value).status == 200
    assert upload.complete().status == 200
    page = attributes(server, path, "ObjectParts", x_amz_part_number_marker="90").xml.find("ObjectParts")
    assert [(p.findtext("PartNumber"), p.findtext("ChecksumSHA256")) for p in page.findall("Part")] == [("91", None), ("92", None)]
