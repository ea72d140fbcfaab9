# SPDX-License-Identifier: Apache-2.0
"""One server for all tests of a module."""

import os
import shutil
import tempfile

import lib_host
import lib_serve
import pytest
from s3fault import S3Fault


@pytest.fixture(scope="session")
def quick_folder():
    """In memory, where there is such a place: hundreds of small PUTs wait for a disk each, else."""
    top = tempfile.mkdtemp(prefix="serve-test-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    yield lib_serve.pathlib.Path(top)
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture(scope="module")
def server(quick_folder, request):
    if not lib_host.LEAT.exists():
        pytest.skip(f"{lib_host.LEAT} is not built")
    made = lib_serve.Server(quick_folder / request.module.__name__)
    yield made
    made.stop()
    shutil.rmtree(made.top)


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """Another S3 with a bucket `far`, which breaks on command."""
    top = tmp_path_factory.mktemp("far")
    (top / "far").mkdir()
    with S3Fault(top) as made:
        yield made


@pytest.fixture
def bucket(server, request):
    """A fresh bucket's name; emptied and taken away at the end."""
    name = "b-" + "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[:40].strip("-") + "-x"
    while "--" in name:
        name = name.replace("--", "-")
    assert server.request("PUT", f"/{name}").status == 200
    yield name
    for _ in range(100):
        found = server.request("GET", f"/{name}", query=[("list-type", "2"), ("encoding-type", "url")]).xml
        keys = [k.text for k in found.iter("Key")]
        if not keys:
            break
        for key in keys:
            assert server.request("DELETE", f"/{name}/" + lib_serve.urllib.parse.unquote(key)).status == 204
    for upload in server.request("GET", f"/{name}", query=[("uploads", ""), ("encoding-type", "url")]).xml.iter("Upload"):
        server.request("DELETE", f"/{name}/" + lib_serve.urllib.parse.unquote(upload.findtext("Key")),
                       query=[("uploadId", upload.findtext("UploadId"))])
    assert server.request("DELETE", f"/{name}").status == 204
