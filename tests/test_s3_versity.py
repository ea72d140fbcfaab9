# SPDX-License-Identifier: Apache-2.0
"""Another real server of S3: Versity's gateway, in Go. It checks signatures, keeps CRC64NVME of what is stored, copies by itself, and without
--keep-alive closes every connection behind its answer."""

import json
import os
import pathlib
import random
import subprocess

import lib_host
import lib_s3
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(lib_s3.versitygw_missing() is not None, reason=str(lib_s3.versitygw_missing()))
boto3 = pytest.importorskip("boto3")

MIB = 1 << 20
NAMES = ["a.txt", "dir/b c.bin", "dir/ü+%&=?#.bin", "dir/deep/er/x", "empty", "a b  c", "colon:x", "x" * 200]


@pytest.fixture(scope="module", params=[True, False], ids=["keep-alive", "close"])
def versity(tmp_path_factory, request):
    server = lib_s3.Versity(tmp_path_factory.mktemp("versity"), keep_alive=request.param)
    try:
        client = boto3.client("s3", endpoint_url=server.url, region_name=server.region, aws_access_key_id=server.access,
                              aws_secret_access_key=server.secret)
        for bucket in ("one", "two"):
            client.create_bucket(Bucket=bucket)
        server.client = client
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    top, r = tmp_path_factory.mktemp("source"), random.Random(11)
    for name in NAMES:
        f = top / name
        f.parent.mkdir(parents=True, exist_ok=True)
        f.write_bytes(b"" if name == "empty" else r.randbytes(r.randrange(1, 50000)))
    (top / "parts").write_bytes(r.randbytes(18 * MIB + 5))
    return top


def leat(server, *args, check=0):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "LEAT_S3_"))}
    done = subprocess.run([lib_host.LEAT, *map(os.fspath, args)], capture_output=True, env={**env, "LC_ALL": "C.UTF-8", **server.env()},
                          stdin=subprocess.DEVNULL, timeout=120)
    assert done.returncode == check, (args, done.stdout[-2000:], done.stderr[-2000:])
    return done


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in pathlib.Path(folder).rglob("*") if p.is_file()}


def test_there_across_and_back(versity, source, tmp_path):
    leat(versity, "cp", "-r", source, "s3://one/tree")
    listed = json.loads(leat(versity, "ls", "-r", "--json", "s3://one/tree/").stdout)
    assert str(listed).count("tree/") >= len(NAMES)
    leat(versity, "cp", "-r", "s3://one/tree", "s3://two/copy")
    leat(versity, "cp", "-r", "s3://two/copy", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)
    again = json.loads(leat(versity, "cp", "-r", "--update", "s3://two/copy", tmp_path / "back", "--json").stdout)
    assert again["files"] == 0 and again["skipped"] == len(NAMES) + 1


def test_what_rots_there_is_noticed(versity, tmp_path):
    """It keeps a checksum of what was stored: what its disk makes of the bytes later does not match it, in one request or in many."""
    r = random.Random(12)
    for key, size in (("small", 70000), ("large", 3 * MIB)):
        data = r.randbytes(size)
        (tmp_path / "up").write_bytes(data)
        leat(versity, "cp", tmp_path / "up", f"s3://one/{key}")
        leat(versity, "cp", f"s3://one/{key}", tmp_path / key)
        assert (tmp_path / key).read_bytes() == data
        with open(versity.root / "one" / key, "r+b") as f:
            f.seek(size // 2)
            f.write(bytes([data[size // 2] ^ 4]))
        err = leat(versity, "cp", f"s3://one/{key}", tmp_path / f"rotten-{key}", check=7).stderr.decode()
        assert "CRC32C" in err and f"s3://one/{key}" in err and not (tmp_path / f"rotten-{key}").exists()


def test_training(host, versity, tmp_path, monkeypatch):
    leat = host.leat
    for name in [name for name in os.environ if name.startswith(("AWS_", "LEAT_S3_"))]:
        monkeypatch.delenv(name)
    data = np.random.default_rng(3).integers(0, 1 << 60, (600, 512))
    np.save(tmp_path / "x.npy", data)
    versity.client.upload_file(str(tmp_path / "x.npy"), "one", "x.npy")
    how = {"endpoint_url": versity.url, "region": versity.region, "key": versity.access, "secret": versity.secret}
    daemon = host.daemon()
    with pytest.raises(leat.Denied, match="403"):
        leat.open("s3://one/x.npy", socket=daemon.socket, storage_options={**how, "secret": "wrong"})
    lib_s3.reads_exactly(leat, "s3://one/x.npy", data, socket=daemon.socket, storage_options=how)
