# SPDX-License-Identifier: Apache-2.0
"""`leat cp` and `leat ls` against servers that are not ours: OpenStack Swift with its S3 service, nginx."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import pytest

import lib_host
import lib_s3

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEAT = pathlib.Path(os.environ.get("LEAT_BUILD", ROOT / "build")) / "src" / "apps" / "leat"
pytestmark = pytest.mark.skipif(not LEAT.exists(), reason=f"{LEAT} is not built")
needs_swift = pytest.mark.skipif(lib_s3.swift_missing() is not None, reason=str(lib_s3.swift_missing()))
needs_nginx = pytest.mark.skipif(not (shutil.which("nginx") or os.path.exists("/usr/sbin/nginx")), reason="nginx is not installed")

CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
NAMES = ["a.txt", "dir/b c.bin", "dir/ü+%&=?#.bin", "dir/deep/er/x", "empty", ".hidden", "dir/\"q'<>&.x", "a b  c", "~t", "colon:x", "new\nline",
         "日本/語", "dir.with.dots/x", "%2e%2e", "-dash", "x" * 200]


def leat(*args, env=None, check=0, **kwargs):
    kwargs.setdefault("timeout", 120)
    done = subprocess.run([LEAT, *map(os.fspath, args)], capture_output=True, env={**CLEAN, "LC_ALL": "C.UTF-8", "TZ": "UTC", **(env or {})},
                          stdin=subprocess.DEVNULL, **kwargs)
    if check is not None:
        assert done.returncode == check, (args, done.stdout[-2000:], done.stderr[-2000:])
    return done


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def leftovers(folder):
    return [p for p in folder.rglob(".leat-*")]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    top = tmp_path_factory.mktemp("source")
    r = random.Random(7)
    for name in NAMES:
        f = top / name
        f.parent.mkdir(parents=True, exist_ok=True)
        f.write_bytes(b"" if name == "empty" else r.randbytes(r.randrange(1, 100000)))
    (top / "mid").write_bytes(r.randbytes(9 << 20))
    (top / "big").write_bytes(r.randbytes((36 << 20) + 5))  # in parts on the way up, in pieces on the way down
    return top


@pytest.fixture(scope="module")
def swift(tmp_path_factory, source):
    server = lib_s3.Swift(tmp_path_factory.mktemp("swift"))
    try:
        import boto3
        client = boto3.client("s3", endpoint_url=server.url, region_name=server.region, aws_access_key_id=server.access,
                              aws_secret_access_key=server.secret)
        client.create_bucket(Bucket="bucket1")
        server.client = client
        leat("cp", "-r", source, "s3://bucket1/tree", env=server.env())
        yield server
    finally:
        server.stop()


@needs_swift
def test_there_and_back(swift, source, tmp_path):
    done = leat("cp", "-r", "s3://bucket1/tree", tmp_path / "back", "--json", env=swift.env())
    summary = json.loads(done.stdout)
    assert summary["files"] == len(NAMES) + 2 and summary["failed"] == summary["skipped"] == 0
    assert summary["bytes"] == sum(map(len, tree(source).values()))
    assert tree(tmp_path / "back") == tree(source)
    assert not leftovers(tmp_path)


@needs_swift
def test_what_boto3_sees_is_what_was_there(swift, source):
    seen = {}
    for page in swift.client.get_paginator("list_objects_v2").paginate(Bucket="bucket1", Prefix="tree/"):
        for o in page["Contents"]:
            seen[o["Key"][5:]] = swift.client.get_object(Bucket="bucket1", Key=o["Key"])["Body"].read()
    assert seen == tree(source)


@needs_swift
def test_ls(swift, source):
    one = json.loads(leat("ls", "s3://bucket1/tree/", "--json", env=swift.env()).stdout)
    names = {o["key"] for o in one["objects"]}
    assert names == {n.split("/")[0] + ("/" if "/" in n else "") for n in [*NAMES, "mid", "big"]}
    assert all(o["prefix"] == o["key"].endswith("/") for o in one["objects"])
    deep = json.loads(leat("ls", "-r", "s3://bucket1/tree/", "--json", env=swift.env()).stdout)
    assert {o["key"]: o["bytes"] for o in deep["objects"]} == {k: len(v) for k, v in tree(source).items()}
    assert deep["count"] == len(NAMES) + 2
    assert all(abs(o["modified"] - time.time()) < 3600 and o["etag"].startswith('"') for o in deep["objects"])
    text = leat("ls", "-l", "s3://bucket1/tree/", env=swift.env()).stdout.decode()
    assert any(line.startswith("   9.0 MiB  20") and line.endswith("  mid") for line in text.splitlines())
    assert len(json.loads(leat("ls", "-r", "s3://bucket1/tree/", "--limit", "3", "--json", env=swift.env()).stdout)["objects"]) == 3
    assert leat("ls", "s3://bucket1", env=swift.env()).stdout.startswith(b"tree/")


@needs_swift
def test_one_object(swift, source, tmp_path):
    leat("cp", "s3://bucket1/tree/dir/b c.bin", tmp_path, env=swift.env())
    assert (tmp_path / "b c.bin").read_bytes() == (source / "dir/b c.bin").read_bytes()
    leat("cp", "s3://bucket1/tree/dir/b c.bin", tmp_path / "other", env=swift.env())
    leat("cp", "s3://bucket1/tree/mid", "s3://bucket1/tree/a.txt", f"{tmp_path}/new/", env=swift.env())
    assert tree(tmp_path / "new") == {n: (source / n).read_bytes() for n in ("mid", "a.txt")}
    leat("cp", tmp_path / "other", "s3://bucket1/one/", env=swift.env())
    assert json.loads(leat("ls", "-r", "s3://bucket1/one/", "--json", env=swift.env()).stdout)["objects"][0]["key"] == "other"


@needs_swift
def test_update_copies_what_changed(swift, source, tmp_path):
    env = swift.env()
    back = tmp_path / "back"
    leat("cp", "-r", source, "s3://bucket1/update", env=env)
    leat("cp", "-r", "s3://bucket1/update", back, env=env)
    again = json.loads(leat("cp", "-r", "--update", "s3://bucket1/update/", back, "--json", env=env).stdout)
    assert again["files"] == 0 and again["skipped"] == len(NAMES) + 2
    (back / "a.txt").write_bytes(b"shorter")
    os.utime(back / "mid", (1, 1))
    (back / "empty").unlink()
    again = json.loads(leat("cp", "-r", "--update", "s3://bucket1/update/", back, "--json", env=env).stdout)
    assert again["files"] == 3 and tree(back) == tree(source)
    up = json.loads(leat("cp", "-r", "--update", back, "s3://bucket1/update/", "--json", env=env).stdout)
    assert up["files"] == 0 and up["skipped"] == len(NAMES) + 2
    future = time.time() + 100
    os.utime(back / "mid", (future, future))
    up = json.loads(leat("cp", "-r", "--update", back, "s3://bucket1/update/", "--json", env=env).stdout)
    assert up["files"] == 1


@needs_swift
def test_from_bucket_to_bucket(swift, source, tmp_path):
    env = swift.env()
    leat("cp", "-r", "s3://bucket1/tree", "s3://bucket1/copy", env=env)
    leat("cp", "-r", "s3://bucket1/copy", tmp_path / "back", env=env)
    assert tree(tmp_path / "back") == tree(source)
    again = json.loads(leat("cp", "-r", "--update", "s3://bucket1/tree", "s3://bucket1/copy", "--json", env=env).stdout)
    assert again["files"] == 0


@needs_swift
def test_keys_that_would_lead_out_are_refused(swift, tmp_path):
    put = swift.client.meta.client.put_object if hasattr(swift.client.meta, "client") else swift.client.put_object
    for key in ("evil/../../out", "evil/a/../../../out2", "evil//abs", "evil/./dot", "evil/link/x", "evil/good"):
        put(Bucket="bucket1", Key=key, Body=b"x")
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (target / "link").symlink_to(tmp_path / "elsewhere")
    done = leat("cp", "-r", "s3://bucket1/evil/", target, env=swift.env(), check=1)
    assert tree(tmp_path) == {"target/good": b"x"}
    for word in ("../../out", "a/../../../out2", "//abs", "./dot", "link"):
        assert word in done.stderr.decode()
    assert b"1 file, 1 B" in done.stdout and b"failed: 5" in done.stdout


@needs_swift
def test_errors_say_what_and_why(swift, tmp_path):
    env = swift.env()
    done = leat("cp", "s3://bucket1/tree/nothing", tmp_path / "x", env=env, check=3)
    assert b"s3://bucket1/tree/nothing" in done.stderr and b"404" in done.stderr
    done = leat("ls", "s3://no-such-bucket", env=env, check=3)
    assert b"NoSuchBucket" in done.stderr
    done = leat("ls", "s3://bucket1/not-there/", env=env, check=3)
    assert b"nothing is there" in done.stderr
    done = leat("ls", "s3://bucket1", env={**env, "AWS_SECRET_ACCESS_KEY": "SECRETWRONG"}, check=4)
    assert b"SignatureDoesNotMatch" in done.stderr and b"SECRETWRONG" not in done.stderr
    done = leat("ls", "s3://bucket1", env={**env, "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": str(tmp_path)}, check=4)
    assert b"no credentials" in done.stderr
    done = leat("cp", tmp_path / "not-there", "s3://bucket1/x", env=env, check=3)
    assert b"not-there: No such file" in done.stderr
    done = leat("ls", "s3://bucket1", "--profile", "nobody", env=env, check=3)
    assert b'profile "nobody"' in done.stderr


@needs_swift
def test_interrupted_leaves_nothing(swift, tmp_path):
    process = subprocess.Popen([LEAT, "cp", "-r", "s3://bucket1/tree", tmp_path / "back"], env={**CLEAN, **swift.env()},
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    lib_host.wait_for(lambda: leftovers(tmp_path) or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (0, 130), err
    assert not leftovers(tmp_path)


@needs_nginx
def test_a_web_server(source, tmp_path):
    nginx = lib_s3.Nginx(tmp_path / "nginx", source)
    try:
        leat("cp", nginx.url + "/mid", nginx.url + "/dir/b%20c.bin", f"{tmp_path}/out/")
        assert tree(tmp_path / "out") == {"mid": (source / "mid").read_bytes(), "b%20c.bin": (source / "dir/b c.bin").read_bytes()}
        again = json.loads(leat("cp", "--update", nginx.url + "/mid", f"{tmp_path}/out/", "--json").stdout)
        assert again["skipped"] == 1
        done = leat("cp", nginx.url + "/nothing", tmp_path / "x", check=3)
        assert b"/nothing: 404" in done.stderr and not (tmp_path / "x").exists()
        assert leat("ls", nginx.url + "/mid").stdout.decode().strip() == nginx.url + "/mid"
    finally:
        nginx.stop()
