# SPDX-License-Identifier: Apache-2.0
"""Common tools, used as in docs/guide-store.md: a folder goes up and comes down again, and is the same."""

import filecmp
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import lib_host
import lib_serve
import pytest

pytestmark = pytest.mark.slow

HERE = pathlib.Path(__file__).parent


def need(program):
    """Its path. Debian's comes first: others of the name may wrap anything."""
    path = next((p for p in (f"/usr/bin/{program}", f"/usr/local/bin/{program}") if os.path.exists(p)), None) or shutil.which(program)
    if not path:
        pytest.skip(f"{program} is not installed (tools/deps s3)")
    return path


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Files of all sizes, deep folders, names that need escapes."""
    top = tmp_path_factory.mktemp("tree") / "tree"
    files = {"empty": 0, "a.txt": 5, "folder/b c+d.bin": 70_000, "folder/deep/er/ä&=%.bin": 300_000, "big.bin": (18 << 20) + 3}
    files.update({f"many/{i:03}.bin": 100 + 37 * i for i in range(25)})
    for name, size in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(lib_serve.content(name, size))
    return top


@pytest.fixture
def env(server, tmp_path):
    return server.env_for(tmp_path)


def run(*line, env, check=True, **more):
    done = subprocess.run([str(a) for a in line], env=env, capture_output=True, text=True, errors="surrogateescape", timeout=300,
                          stdin=subprocess.DEVNULL, **more)
    assert not check or done.returncode == 0, (line, done.stdout[-2000:], done.stderr[-2000:])
    return done


def same(a, b):
    """All of two folders, byte for byte."""
    names = {str(p.relative_to(a)) for p in a.rglob("*") if p.is_file()}
    assert names == {str(p.relative_to(b)) for p in b.rglob("*") if p.is_file()}
    _, differ, unreadable = filecmp.cmpfiles(a, b, names, shallow=False)
    assert not differ and not unreadable


def test_awscli(server, bucket, env, tree, tmp_path):
    def aws(*line, **more):
        return run(need("aws"), "--endpoint-url", server.url, *line, env=env, **more)

    aws("s3", "sync", tree, f"s3://{bucket}/up")
    aws("s3", "sync", f"s3://{bucket}/up", tmp_path / "down")
    same(tree, tmp_path / "down")
    assert "big.bin" in aws("s3", "ls", f"s3://{bucket}/up/").stdout
    aws("s3", "mv", f"s3://{bucket}/up/a.txt", f"s3://{bucket}/moved.txt")
    assert os.fsencode(aws("s3", "cp", f"s3://{bucket}/moved.txt", "-").stdout) == (tree / "a.txt").read_bytes()
    listed = json.loads(aws("s3api", "list-object-versions", "--bucket", bucket, "--prefix", "moved", "--output", "json").stdout)["Versions"]
    assert [(v["Key"], v["VersionId"], v["IsLatest"]) for v in listed] == [("moved.txt", "null", True)]
    size = aws("s3api", "get-object-attributes", "--bucket", bucket, "--key", "moved.txt", "--object-attributes", "ObjectSize", "--output", "json").stdout
    assert json.loads(size)["ObjectSize"] == (tree / "a.txt").stat().st_size
    aws("s3", "rm", "--recursive", f"s3://{bucket}/")
    assert server.request("GET", f"/{bucket}").xml.find("Contents") is None


def test_s3cmd(server, bucket, env, tree, tmp_path):
    config = tmp_path / "s3cfg"
    config.write_text(f"[default]\naccess_key = {lib_serve.ACCESS}\nsecret_key = {lib_serve.SECRET}\nhost_base = {server.host}:{server.port}\n"
                      f"host_bucket = {server.host}:{server.port}\nuse_https = False\n")

    def s3cmd(*line):
        return run(need("s3cmd"), "-c", config, "--no-progress", *line, env=env)

    s3cmd("sync", f"{tree}/", f"s3://{bucket}/up/")
    (tmp_path / "down").mkdir()
    s3cmd("sync", f"s3://{bucket}/up/", f"{tmp_path}/down/")
    same(tree, tmp_path / "down")
    assert f"s3://{bucket}/up/a.txt" in s3cmd("ls", f"s3://{bucket}/up/").stdout
    s3cmd("cp", f"s3://{bucket}/up/a.txt", f"s3://{bucket}/copy.txt")
    s3cmd("get", "--force", f"s3://{bucket}/copy.txt", tmp_path / "copy.txt")
    assert (tmp_path / "copy.txt").read_bytes() == (tree / "a.txt").read_bytes()
    assert "MD5 sum" in s3cmd("info", f"s3://{bucket}/copy.txt").stdout
    s3cmd("del", "--recursive", "--force", f"s3://{bucket}/")
    assert s3cmd("ls", f"s3://{bucket}/").stdout == ""


def test_rclone(server, bucket, env, tree, tmp_path):
    env.update(RCLONE_CONFIG=str(tmp_path / "rclone.conf"), RCLONE_CONFIG_LEAT_TYPE="s3", RCLONE_CONFIG_LEAT_PROVIDER="Other",
               RCLONE_CONFIG_LEAT_ENV_AUTH="true", RCLONE_CONFIG_LEAT_ENDPOINT=server.url, RCLONE_CONFIG_LEAT_REGION=lib_serve.REGION)

    def rclone(*line):
        return run(need("rclone"), "--s3-upload-cutoff", "6M", "--s3-chunk-size", "5M", *line, env=env)

    rclone("copy", tree, f"leat:{bucket}/up")
    rclone("check", "--download", tree, f"leat:{bucket}/up")
    rclone("copy", f"leat:{bucket}/up", tmp_path / "down")
    same(tree, tmp_path / "down")
    rclone("moveto", f"leat:{bucket}/up/a.txt", f"leat:{bucket}/b.txt")
    assert rclone("lsf", f"leat:{bucket}").stdout.split() == ["b.txt", "up/"]
    assert os.fsencode(rclone("cat", f"leat:{bucket}/b.txt", "--offset", "1", "--count", "2").stdout) == (tree / "a.txt").read_bytes()[1:3]
    assert rclone("lsf", "--s3-versions", f"leat:{bucket}").stdout.split() == ["b.txt", "up/"]
    rclone("purge", f"leat:{bucket}/up")
    assert rclone("lsf", f"leat:{bucket}").stdout.split() == ["b.txt"]


def test_s3fs(server, bucket, env, tree, tmp_path):
    program = need("s3fs")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no /dev/fuse that may be opened")
    mount = tmp_path / "mount"
    mount.mkdir()
    started = run(program, bucket, mount, "-o", f"url={server.url}", "-o", "use_path_request_style", "-o", f"endpoint={lib_serve.REGION}",
                  "-o", "multipart_size=5", env=env, check=False)
    if started.returncode and "fuse" in started.stderr:
        pytest.skip(f"s3fs cannot mount here: {started.stderr.strip()[:200]}")
    try:
        try:
            lib_host.wait_for(lambda: os.path.ismount(mount))
        except AssertionError:
            pytest.skip("s3fs did not mount (no permission to, in this container?)")
        shutil.copytree(tree, mount / "up", copy_function=shutil.copyfile)
        same(tree, mount / "up")
        os.rename(mount / "up/a.txt", mount / "up/b.txt")
        assert not (mount / "up/a.txt").exists() and (mount / "up/b.txt").read_bytes() == (tree / "a.txt").read_bytes()
        shutil.rmtree(mount / "up")
    finally:
        subprocess.run(["fusermount", "-u", str(mount)], capture_output=True, timeout=60)


def test_leat(server, bucket, env, tree, tmp_path):
    """Our own client: cp, ls, and a dataset that is opened."""
    def leat(*line):
        return run(lib_host.LEAT, *line, env=env)

    leat("cp", "-r", tree, f"s3://{bucket}/up")
    leat("cp", "-r", f"s3://{bucket}/up", tmp_path / "down")
    same(tree, tmp_path / "down")
    listed = leat("ls", "-r", f"s3://{bucket}/up/").stdout.split("\n")
    assert sum(bool(line) for line in listed) == sum(p.is_file() for p in tree.rglob("*"))


def test_what_is_copied_wrongly(server, bucket, env, tree, tmp_path):
    """- is standard output, as with other tools; what cannot be meant is said, fails, and leaves nothing."""
    def leat(*line, fails):
        done = subprocess.run([lib_host.LEAT, *map(str, line)], env=env, capture_output=True, stdin=subprocess.DEVNULL, cwd=tmp_path, timeout=60)
        assert done.returncode == fails, done
        return done.stdout if not fails else done.stderr.decode()

    leat("cp", "-r", tree, f"s3://{bucket}/up", fails=0)
    for name in ("big.bin", "empty"):
        assert leat("cp", f"s3://{bucket}/up/{name}", "-", fails=0) == (tree / name).read_bytes()
    assert "standard output" in leat("cp", "-r", f"s3://{bucket}/up", "-", fails=2)
    assert "standard input" in leat("cp", "-", f"s3://{bucket}/new", fails=2)
    assert "copy them with -r" in leat("cp", f"s3://{bucket}/up/folder", ".", fails=3)
    assert "takes no patterns" in leat("cp", f"s3://{bucket}/up/*.txt", "here/", fails=3)
    assert "nothing is there" in leat("cp", "-r", f"s3://{bucket}/uq", "here", fails=3)
    told = leat("cp", "-r", tree, "s3://no-such-bucket/", fails=3)
    assert "NoSuchBucket" in told and told.count("PUT s3://no-such-bucket/") == 8 and "failed: stopped" in told
    # What cannot be read here says nothing of the bucket.
    links, rest = tmp_path / "links", tmp_path / "rest"
    links.mkdir()
    rest.mkdir()
    for number in range(8):
        (links / str(number)).symlink_to("nowhere")
    (rest / "file").write_bytes(b"whole")
    told = leat("cp", "-r", links, rest, f"s3://{bucket}/past/", fails=3)
    assert told.count("No such file") == 8 and "failed: stopped" not in told
    assert leat("cp", f"s3://{bucket}/past/file", "-", fails=0) == b"whole"
    # Nor does a file that cannot be written: no process makes files there.
    for number in range(9):
        server.request("PUT", f"/{bucket}/many/none{number}", b"x")
    told = leat("cp", "-r", f"s3://{bucket}/many/", "/proc", fails=3)
    assert told.count("/proc/none") == 9 and "failed: stopped" not in told
    shutil.rmtree(links)
    shutil.rmtree(rest)
    with subprocess.Popen([lib_host.LEAT, "cp", f"s3://{bucket}/up/big.bin", "-"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as piped:
        assert piped.stdout.read(3) == (tree / "big.bin").read_bytes()[:3]
        piped.stdout.close()
        assert piped.stderr.read() == b"" and piped.wait(60) == -signal.SIGPIPE
    assert not list(tmp_path.glob("*")), "something was left"


def test_training_from_a_bucket(host, leat, server, bucket, tree, monkeypatch):
    for name, value in server.env_for(host.folder).items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    for i in range(40):
        server.request("PUT", f"/{bucket}/set/{i:03}.bin", lib_serve.content(f"s{i}", 1000 + 977 * i))
    daemon = host.daemon({"pool": {"size": "16MiB", "region_size": "256KiB"}})
    with leat.open(f"s3://{bucket}/set", socket=daemon.socket) as ws:
        seen = {}
        for batch in leat.batches(ws, 8, epoch=0):
            for i, data in zip(batch.ids, batch["data"]):
                seen[int(i)] = bytes(data)
            batch.release()
    assert seen == {i: lib_serve.content(f"s{i}", 1000 + 977 * i) for i in range(40)}


def test_newer_boto3(tmp_path_factory):
    """The boto3 of today, which sends checksums in trailers by default: the same tests, with it in front of Debian's."""
    pytest.importorskip("boto3")
    folder = lib_host.BUILD / "boto3-new"
    if not (folder / "boto3").exists():
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "boto3>=1.36"], capture_output=True,
                              text=True, timeout=300)
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            pytest.skip(f"pip brings no newer boto3: {(done.stderr or done.stdout).strip()[-200:]}")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "test_serve_boto3.py")]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=600)
    # All of them, and none skipped: what this boto3 lacks would otherwise pass for what it can do.
    assert done.returncode == 0 and re.search(r"^\d+ passed in", done.stdout, re.M), done.stdout[-3000:] + done.stderr[-1000:]
