# SPDX-License-Identifier: Apache-2.0
"""The S3 service by requests put together by hand: buckets, their settings and lists."""

import hashlib
import urllib.parse
import zlib

from lib_serve import MIB, base64, error, get, put


def test_buckets(server, bucket):
    assert server.request("HEAD", f"/{bucket}").status == 200
    assert server.request("HEAD", "/no-such-bucket").status == 404
    again = server.request("PUT", f"/{bucket}")
    assert again.status == 200 and again.headers["location"] == f"/{bucket}"
    for more in ({"x-leat-remote": '{"uri": "s3://x"}'}, {"x-amz-bucket-object-lock-enabled": "true"}):
        assert server.request("PUT", f"/{bucket}", headers=more).status in (409, 501), more
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
