# SPDX-License-Identifier: Apache-2.0
"""boto3 as it is installed: what a program does with a bucket, byte for byte."""

import io

import lib_serve
import pytest

boto3 = pytest.importorskip("boto3")
from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402

MIB = 1 << 20


@pytest.fixture
def s3(server):
    return boto3.client("s3", endpoint_url=server.url, region_name=lib_serve.REGION, aws_access_key_id=lib_serve.ACCESS,
                        aws_secret_access_key=lib_serve.SECRET,
                        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))


def refused(call, **arguments):
    with pytest.raises(ClientError) as e:
        call(**arguments)
    return e.value.response["Error"]["Code"], e.value.response["ResponseMetadata"]["HTTPStatusCode"]


def test_as_a_proxy(server, bucket):
    """A client that takes the server for its proxy names the whole address in the first line of each request."""
    s3 = boto3.client("s3", endpoint_url="http://store.example", region_name=lib_serve.REGION, aws_access_key_id=lib_serve.ACCESS,
                      aws_secret_access_key=lib_serve.SECRET, config=Config(proxies={"http": server.url}, s3={"addressing_style": "path"}))
    s3.put_object(Bucket=bucket, Key="odd key/ä+&%?#", Body=b"hello")
    assert s3.get_object(Bucket=bucket, Key="odd key/ä+&%?#")["Body"].read() == b"hello"
    assert [o["Key"] for o in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["odd key/ä+&%?#"]


def test_objects(s3, bucket):
    assert bucket in [b["Name"] for b in s3.list_buckets()["Buckets"]]
    s3.put_object(Bucket=bucket, Key="a", Body=b"hello", ContentType="text/x", CacheControl="no-store", Metadata={"name": "b c"})
    got = s3.get_object(Bucket=bucket, Key="a")
    assert got["Body"].read() == b"hello" and got["ContentType"] == "text/x" and got["CacheControl"] == "no-store"
    assert got["Metadata"] == {"name": "b c"} and got["ETag"] == '"5d41402abc4b2a76b9719d911017c592"'
    key = "odd key/ä+&%?#.bin"
    data = lib_serve.content("odd", 300_000)
    s3.put_object(Bucket=bucket, Key=key, Body=data)
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == data
    assert s3.get_object(Bucket=bucket, Key=key, Range="bytes=-100")["Body"].read() == data[-100:]
    assert [o["Key"] for o in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["a", key]
    page = s3.list_objects(Bucket=bucket, Delimiter="/")
    assert [o["Key"] for o in page["Contents"]] == ["a"] and page["CommonPrefixes"] == [{"Prefix": "odd key/"}]
    s3.copy_object(Bucket=bucket, Key="b", CopySource={"Bucket": bucket, "Key": key})
    assert s3.get_object(Bucket=bucket, Key="b")["Body"].read() == data
    gone = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "b"}, {"Key": "never"}]})
    assert {d["Key"] for d in gone["Deleted"]} == {"b", "never"}
    assert refused(s3.get_object, Bucket=bucket, Key="b") == ("NoSuchKey", 404)
    assert refused(s3.head_object, Bucket=bucket, Key="b") == ("404", 404)
    assert refused(s3.delete_bucket, Bucket=bucket) == ("BucketNotEmpty", 409)
    assert refused(s3.list_objects_v2, Bucket="no-such-bucket") == ("NoSuchBucket", 404)


def test_versions(server, s3, bucket):
    """What tools do that empty a bucket of all versions, in one that keeps only the newest."""
    for i in range(25):
        s3.put_object(Bucket=bucket, Key=f"k/{i:02}", Body=b"x" * i)
    pages = list(s3.get_paginator("list_object_versions").paginate(Bucket=bucket, PaginationConfig={"PageSize": 10}))
    assert [len(p["Versions"]) for p in pages] == [10, 10, 5] and not any("DeleteMarkers" in p for p in pages)
    assert [(v["Key"], v["Size"], v["VersionId"], v["IsLatest"]) for p in pages for v in p["Versions"]] == [
        (f"k/{i:02}", i, "null", True) for i in range(25)]
    assert s3.get_object(Bucket=bucket, Key="k/03", VersionId="null")["Body"].read() == b"xxx"
    resource = boto3.resource("s3", endpoint_url=server.url, region_name=lib_serve.REGION, aws_access_key_id=lib_serve.ACCESS,
                              aws_secret_access_key=lib_serve.SECRET, config=Config(s3={"addressing_style": "path"}))
    resource.Bucket(bucket).object_versions.filter(Prefix="k/0").delete()
    assert len(list(resource.Bucket(bucket).objects.all())) == 15
    resource.Bucket(bucket).object_versions.delete()
    assert not list(resource.Bucket(bucket).objects.all())


def test_attributes(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"hello", ChecksumAlgorithm="SHA256")
    got = s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"])
    assert (got["ETag"], got["ObjectSize"], got["StorageClass"]) == ("5d41402abc4b2a76b9719d911017c592", 5, "STANDARD")
    assert got["Checksum"]["ChecksumSHA256"] == "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=" and got["LastModified"] and "ObjectParts" not in got
    upload = s3.create_multipart_upload(Bucket=bucket, Key="parts")["UploadId"]
    parts = [{"PartNumber": n, "ETag": s3.upload_part(Bucket=bucket, Key="parts", UploadId=upload, PartNumber=n, Body=b"x" * size)["ETag"]}
             for n, size in ((1, 6 * MIB), (2, 5 * MIB), (4, 7))]
    s3.complete_multipart_upload(Bucket=bucket, Key="parts", UploadId=upload, MultipartUpload={"Parts": parts})
    got = s3.get_object_attributes(Bucket=bucket, Key="parts", ObjectAttributes=["ObjectParts", "ObjectSize"])
    assert (got["ObjectParts"]["TotalPartsCount"], got["ObjectSize"]) == (3, 11 * MIB + 7) and "ETag" not in got


def test_checksum_defaults(server, bucket):
    """Since 1.36 every body has a checksum, unless configured otherwise; before, none has. The sent one is kept, and returned."""
    newer = tuple(int(n) for n in boto3.__version__.split(".")[:2]) >= (1, 36)
    for setting in ("when_supported", "when_required") if newer else (None,):
        config = Config(s3={"addressing_style": "path"}, **({"request_checksum_calculation": setting} if newer else {}))
        s3 = boto3.client("s3", endpoint_url=server.url, region_name=lib_serve.REGION, aws_access_key_id=lib_serve.ACCESS,
                          aws_secret_access_key=lib_serve.SECRET, config=config)
        for size in (0, 1000, 17 * MIB):  # the last in parts
            data = lib_serve.content("sums", size)
            s3.upload_fileobj(io.BytesIO(data), bucket, "sums")
            head = s3.head_object(Bucket=bucket, Key="sums", ChecksumMode="ENABLED")
            kept = [name for name in head if name.startswith("Checksum") and name != "ChecksumType"]
            assert len(kept) == (setting == "when_supported"), (setting, size, head)
            assert s3.get_object(Bucket=bucket, Key="sums", ChecksumMode="ENABLED")["Body"].read() == data
        gone = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "sums"}]})
        assert [d["Key"] for d in gone["Deleted"]] == ["sums"]


def test_transfers(s3, bucket):
    """As upload_file does: in parts, each with a checksum where this boto3 sends one."""
    data = lib_serve.content("big", 20 * MIB + 5)
    s3.upload_fileobj(io.BytesIO(data), bucket, "big", ExtraArgs={"ContentType": "x/y", "Metadata": {"k": "v"}})
    out = io.BytesIO()
    s3.download_fileobj(bucket, "big", out)
    assert out.getvalue() == data
    head = s3.head_object(Bucket=bucket, Key="big")
    assert head["ETag"].endswith('-3"') and head["ContentType"] == "x/y" and head["Metadata"] == {"k": "v"}
    part = s3.get_object(Bucket=bucket, Key="big", PartNumber=2)
    assert part["Body"].read() == data[8 * MIB : 16 * MIB] and part["PartsCount"] == 3
    assert not s3.list_multipart_uploads(Bucket=bucket).get("Uploads")


def test_pages(s3, bucket):
    keys = sorted(f"{d}/{i:03}" for d in ("a", "b", "c") for i in range(15))
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=b"")
    for name in ("list_objects_v2", "list_objects"):
        pages = list(s3.get_paginator(name).paginate(Bucket=bucket, PaginationConfig={"PageSize": 7}))
        assert [o["Key"] for p in pages for o in p.get("Contents", [])] == keys and len(pages) == 7
        pages = list(s3.get_paginator(name).paginate(Bucket=bucket, Delimiter="/", PaginationConfig={"PageSize": 1}))
        assert [c["Prefix"] for p in pages for c in p.get("CommonPrefixes", [])] == ["a/", "b/", "c/"]
        pages = list(s3.get_paginator(name).paginate(Bucket=bucket, Prefix="b/", Delimiter="/", PaginationConfig={"PageSize": 11}))
        assert [o["Key"] for p in pages for o in p["Contents"]] == [k for k in keys if k.startswith("b/")]
