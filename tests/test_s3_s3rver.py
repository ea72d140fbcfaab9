# SPDX-License-Identifier: Apache-2.0
"""s3rver, npm's server for trying things: what people have at hand when they first point Leat at an endpoint. Smoke only: it ignores conditions."""

import os
import pathlib
import random
import subprocess

import lib_host
import lib_s3
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(lib_s3.s3rver_missing() is not None, reason=str(lib_s3.s3rver_missing()))

MIB = 1 << 20
NAMES = ["a.txt", "dir/b c.bin", "dir/ü.bin", "dir/deep/er/x", "empty", "large"]  # of odder ones it finds no source when it copies


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = lib_s3.S3rver(tmp_path_factory.mktemp("s3rver"), "one", "two")
    yield server
    server.stop()


def leat(server, *args):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "LEAT_S3_"))}
    done = subprocess.run([lib_host.LEAT, *map(os.fspath, args)], capture_output=True, env={**env, "LC_ALL": "C.UTF-8", **server.env()},
                          stdin=subprocess.DEVNULL, timeout=120)
    assert done.returncode == 0, (args, done.stdout[-2000:], done.stderr[-2000:])
    return done


def test_there_across_and_back(server, tmp_path):
    r, source = random.Random(4), tmp_path / "source"
    for name in NAMES:
        f = source / name
        f.parent.mkdir(parents=True, exist_ok=True)
        f.write_bytes(r.randbytes({"empty": 0, "large": 17 * MIB + 3}.get(name, 1000)))
    leat(server, "cp", "-r", source, "s3://one/tree")
    listed = leat(server, "ls", "-r", "s3://one/tree/").stdout.decode()
    assert all(name in listed for name in NAMES)
    leat(server, "cp", "-r", "s3://one/tree", "s3://two/copy")
    leat(server, "cp", "-r", "s3://two/copy", tmp_path / "back")
    assert {str(p.relative_to(tmp_path / "back")): p.read_bytes() for p in pathlib.Path(tmp_path / "back").rglob("*") if p.is_file()} == {
        name: (source / name).read_bytes() for name in NAMES}


def test_training(host, server, tmp_path, monkeypatch):
    client = host.leat
    for name in [name for name in os.environ if name.startswith(("AWS_", "LEAT_S3_"))]:
        monkeypatch.delenv(name)
    data = np.random.default_rng(3).integers(0, 1 << 60, (600, 512))
    np.save(tmp_path / "x.npy", data)
    leat(server, "cp", tmp_path / "x.npy", "s3://two/set/x.npy")
    how = {"endpoint_url": server.url, "region": server.region, "key": server.access, "secret": server.secret}
    daemon = host.daemon()
    lib_s3.reads_exactly(client, "s3://two/set/x.npy", data, socket=daemon.socket, storage_options=how)
    with client.scan("s3://two/set/", socket=daemon.socket, storage_options=how) as scan:
        assert [(sample.key, len(sample.data)) for sample in scan] == [("x.npy", (tmp_path / "x.npy").stat().st_size)]
