# SPDX-License-Identifier: Apache-2.0
"""A store that an older Leat wrote is read: tests/golden/store.tar.xz, and what a client saw of it then in store.json.

`LEAT_GOLDEN=record` writes both again. That is right only with a store that is read in addition to the recorded one, never in its place.
"""

import hashlib
import json
import os
import tarfile

import lib_host
import lib_serve
import pytest

FOLDER = lib_serve.pathlib.Path(__file__).resolve().parents[1] / "golden"
HEADERS = ("etag", "content-type", "content-length", "last-modified", "x-amz-meta-colour", "cache-control", "x-amz-mp-parts-count")

pytestmark = pytest.mark.skipif(not lib_host.LEAT.exists(), reason=f"{lib_host.LEAT} is not built")


def body(n):
    return (b"%d " % n * n)[:n]  # compresses well


def fill(server):
    """Objects of each size class, with metadata, overwritten, deleted, uploaded in parts; an upload that is still open; two buckets."""
    for bucket in ("first", "second"):
        assert server.request("PUT", f"/{bucket}").status == 200
    for n in (0, 1, 511, 4096, 4097, 70_000, 3 << 20):
        assert server.request("PUT", f"/first/size/{n}", body(n)).status == 200
    headers = {"Content-Type": "image/jpeg", "x-amz-meta-colour": "green", "Cache-Control": "no-store"}
    assert server.request("PUT", "/first/meta", b"with metadata", headers=headers).status == 200
    assert server.request("PUT", "/second/snow \u2603", b"a name in UTF-8").status == 200
    for n in range(3):
        assert server.request("PUT", "/second/again", b"%d" % n).status == 200
    assert server.request("PUT", "/second/gone", b"gone").status == 200
    assert server.request("DELETE", "/second/gone").status == 204
    parts = [body(5 << 20), body(100)]
    for key, complete in (("parts", True), ("open", False)):
        upload = server.request("POST", f"/first/{key}", query=[("uploads", "")]).xml.findtext("UploadId")
        tags = [server.request("PUT", f"/first/{key}", part, query=[("partNumber", str(k + 1)), ("uploadId", upload)]).headers["etag"]
                for k, part in enumerate(parts)]
        if complete:
            xml = "".join(f"<Part><PartNumber>{k + 1}</PartNumber><ETag>{tag}</ETag></Part>" for k, tag in enumerate(tags))
            done = server.request("POST", f"/first/{key}", f"<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>".encode(), query=[("uploadId", upload)])
            assert done.status == 200


def seen(server):
    """All that a client sees of the store."""
    found = {}
    for bucket in ("first", "second"):
        listed = server.request("GET", f"/{bucket}", query=[("list-type", "2")]).xml
        for key in [k.text for k in listed.iter("Key")]:
            got = server.request("GET", f"/{bucket}/{key}")
            assert got.status == 200
            found[f"{bucket}/{key}"] = [hashlib.sha256(got.body).hexdigest(), {h: got.headers[h] for h in HEADERS if h in got.headers}]
        uploads = server.request("GET", f"/{bucket}", query=[("uploads", "")]).xml
        for upload in uploads.iter("Upload"):
            key, number = upload.findtext("Key"), upload.findtext("UploadId")
            parts = server.request("GET", f"/{bucket}/{key}", query=[("uploadId", number)]).xml
            found[f"upload {bucket}/{key}"] = [number, *(p.findtext("ETag") for p in parts.iter("Part"))]
    return found


def test_store(tmp_path):
    if os.environ.get("LEAT_GOLDEN") == "record":
        server = lib_serve.Server(tmp_path / "made")
        fill(server)
        found = seen(server)
        server.stop()
        with tarfile.open(FOLDER / "store.tar.xz", "w:xz", format=tarfile.PAX_FORMAT) as tar:
            tar.add(server.store, "store")
        (FOLDER / "store.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    with tarfile.open(FOLDER / "store.tar.xz") as tar:
        tar.extractall(tmp_path)
    server = lib_serve.Server(tmp_path, store=tmp_path / "store")
    assert seen(server) == json.loads((FOLDER / "store.json").read_text())
    server.stop()
    log = server.log.read_text()
    assert "damage" not in log and "rebuil" not in log, log
