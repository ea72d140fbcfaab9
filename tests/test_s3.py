# SPDX-License-Identifier: Apache-2.0
"""Training from S3 and web servers that are not ours: what is read is what was stored, whatever dies during that, and keys stay where
they belong."""

import hashlib
import io
import json
import os
import pathlib
import tarfile

import lib_host
import lib_s3
import numpy as np
import pytest

boto3 = pytest.importorskip("boto3")
from botocore.config import Config  # noqa: E402

pytestmark = pytest.mark.skipif(lib_s3.swift_missing() is not None, reason=str(lib_s3.swift_missing()))

BUCKET = "leat-train"
SHARDS, MEMBERS, FILES = 4, 150, 240
KIB, MIB = 1 << 10, 1 << 20


def content(name, size):
    """Bytes that follow from the name."""
    return np.random.default_rng(int.from_bytes(hashlib.md5(name.encode()).digest()[:8], "little")).bytes(size)


def size_of(i):
    return 1000 + i * 7919 % 40_000


class Store:
    def __init__(self, swift):
        self.swift = swift
        config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1})
        self.client = boto3.client("s3", endpoint_url=swift.url, region_name=swift.region, aws_access_key_id=swift.access,
                                   aws_secret_access_key=swift.secret, config=config)
        self.client.create_bucket(Bucket=BUCKET)
        for s in range(SHARDS):
            self.put(f"tar/train-{s:03}.tar", self.shard(s))
        for i in range(FILES):
            self.put(f"tree/{('cat', 'dog', 'owl')[i % 3]}/{i:05}.bin", content(f"f{i}", size_of(i)))

    def put(self, key, data):
        self.client.put_object(Bucket=BUCKET, Key=key, Body=data)

    @staticmethod
    def shard(s):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for i in range(s * MEMBERS, (s + 1) * MEMBERS):
                for extension, data in (("bin", content(f"t{i}", size_of(i))), ("cls", b"%d" % (i % 10))):
                    info = tarfile.TarInfo(f"{i:06}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        return out.getvalue()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    swift = lib_s3.Swift(tmp_path_factory.mktemp("swift") / "swift")
    try:
        yield Store(swift)
    finally:
        swift.stop()


@pytest.fixture
def s3(store, host, monkeypatch):
    """The environment of a user with AWS's variables."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "LEAT_S3_"))]:
        monkeypatch.delenv(name)
    for name, value in {**store.swift.env(), "HOME": str(host.folder)}.items():
        monkeypatch.setenv(name, value)
    return store


def options(store, **more):
    """The same, for a program that says it."""
    return {"endpoint_url": store.swift.url, "region": store.swift.region, "key": store.swift.access, "secret": store.swift.secret, **more}


@pytest.fixture
def nobody(store, host, monkeypatch):
    """An environment in which nothing is to be found."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "LEAT_S3_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(host.folder))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return store


def check_tar(batch):
    for k, i in enumerate(batch.ids):
        assert bytes(batch["bin"][k]) == content(f"t{i}", size_of(int(i)))
        assert bytes(batch["cls"][k]) == b"%d" % (i % 10)


# --- training -------------------------------------------------------------------------------------------------------

#: Trains, prints a digest of each batch, and continues from where it was when its daemon has ended. A line at a time: the other side
#: answers each.
TRAIN = """
import hashlib, json
uri, address, epochs = argv[0], argv[1], int(argv[2])
state = None
done = 0
while done < epochs:
    try:
        ws = leat.open(uri, socket=address, timeout=20)
        loader = leat.Loader(ws, 15, shuffle="full", seed=3, drop_last=False, timeout=20)
        if state:
            loader.load_state_dict(state)
        else:
            loader.set_epoch(done)
        for batch in loader:
            got = [(int(i), hashlib.md5(bytes(data)).hexdigest()) for i, data in zip(batch.ids, batch[argv[3]])]
            batch.release()
            state = loader.state_dict()
            say(json.dumps([done, got]))
            hear()
        done += 1
        state = None
    except leat.PeerGone as e:
        say("gone")
        hear()
say("end")
"""


def train(host, uri, field, epochs, kill_after):
    """{epoch: [(sample, md5)]} of a job whose daemon is killed after so many batches, and started again."""
    config = {"pool": {"size": "64MiB", "region_size": "1MiB"}}
    daemon = host.daemon(config, name="a")
    client = host.python(TRAIN, uri, daemon.socket, epochs, field)
    seen, batches = {}, 0
    while (line := client.hear()) != "end":
        if line == "gone":
            assert not daemon.running()
            daemon = host.daemon(config, name="a")
        else:
            epoch, got = json.loads(line)
            seen.setdefault(epoch, []).extend(map(tuple, got))
            batches += 1
            if batches == kill_after:
                daemon.kill()
        client.tell()
    client.finish()
    return seen


@pytest.mark.long
@pytest.mark.parametrize("kill_after", [None, 26])
def test_training(host, s3, kill_after):
    """A set of shards and one of files: every sample once an epoch, exact, also when the daemon is killed and another comes."""
    seen = train(host, f"s3://{BUCKET}/tar", "bin", 2, kill_after)
    expected = sorted((i, hashlib.md5(content(f"t{i}", size_of(i))).hexdigest()) for i in range(SHARDS * MEMBERS))
    assert sorted(seen) == [0, 1]
    for epoch in seen.values():
        assert sorted(epoch) == expected
    assert seen[0] != seen[1]


def test_training_from_files(host, s3):
    seen = train(host, f"s3://{BUCKET}/tree", "data", 1, 12)
    keys = sorted(f"{('cat', 'dog', 'owl')[i % 3]}/{i:05}.bin" for i in range(FILES))
    expected = sorted((n, hashlib.md5(content(f"f{int(k[-9:-4])}", size_of(int(k[-9:-4])))).hexdigest()) for n, k in enumerate(keys))
    assert sorted(seen[0]) == expected


def test_streamed(host, leat, s3):
    """A set larger than its pool: by the window, in any order, twice, and never more memory than the cap."""
    daemon = host.daemon({"pool": {"size": "8MiB", "region_size": "256KiB"}})
    with leat.open(f"s3://{BUCKET}/tar/train-{{000..003}}.tar", socket=daemon.socket) as ws:
        stat = ws.stat()
        assert stat.payload_bytes > 8 * MIB
        for epoch in range(2):
            ids = []
            for batch in leat.batches(ws, 16, epoch=epoch):
                check_tar(batch)
                ids += batch.ids.tolist()
                batch.release()
            assert sorted(ids)[: len(ids)] == sorted(set(ids)) and len(ids) >= SHARDS * MEMBERS - 16
    status = daemon.status()
    assert status["pool"]["peak_bytes"] <= 8 * MIB
    assert status["remote"]["bytes"] >= stat.payload_bytes and status["remote"]["requests"] > SHARDS
    metrics = daemon.metrics()
    assert metrics['leat_loaded_bytes_total{road="remote"}'] > 0 and metrics["leat_remote_requests_total"] > 0


def test_fields_append_verify(host, leat, s3):
    """What else takes an address: arrays by name, append, verify against the source, and the command line."""
    array = np.arange(3000, dtype=np.float32).reshape(300, 10)
    for key, rows in (("arrays/x.npy", array), ("arrays/y.npy", np.arange(300))):
        out = io.BytesIO()
        np.save(out, rows)
        s3.put(key, out.getvalue())
    daemon = host.daemon()
    with leat.open({"x": f"s3://{BUCKET}/arrays/x.npy", "y": f"s3://{BUCKET}/arrays/y.npy"}, socket=daemon.socket, wait=True) as ws:
        np.testing.assert_array_equal(ws[7]["x"], array[7])
        assert int(ws[299]["y"]) == 299
        ws.verify(source=True)
    leat.preload(f"s3://{BUCKET}/tar/train-000.tar", name="grows", socket=daemon.socket).close()
    assert leat.append("grows", f"s3://{BUCKET}/tar/train-001.tar", socket=daemon.socket) == 2 * MEMBERS
    with leat.open("leat://grows", socket=daemon.socket) as ws:
        ws.wait()
        with ws.read_batch(range(2 * MEMBERS)) as batch:
            check_tar(batch)
        ws.verify(source=True)

    def cli(*args, text=True):
        done = host.cli("--socket", daemon.socket, *args)
        assert done.returncode == 0, done.stderr
        return done.stdout

    cli("preload", f"s3://{BUCKET}/tree", "--name", "tree")
    assert "240, " in cli("stat", "tree")
    cli("verify", "tree")
    for command in ("ls", "status", "stat"):
        for args in ([], ["--json"]):
            assert s3.swift.secret not in cli(command, *(["tree"] if command == "stat" else []), *args)


def test_web_server(host, leat, tmp_path):
    """Plain files by HTTP, which need no credentials."""
    for s in range(2):
        (tmp_path / f"w-{s:02}.tar").write_bytes(Store.shard(s))
    server = lib_s3.Nginx(tmp_path / "nginx", tmp_path)
    try:
        daemon = host.daemon()
        with leat.open(f"{server.url}/w-{{00..01}}.tar", socket=daemon.socket, wait=True) as ws:
            with ws.read_batch(range(2 * MEMBERS)) as batch:
                check_tar(batch)
    finally:
        server.stop()


# --- what goes wrong ------------------------------------------------------------------------------------------------

def test_changed_object(host, leat, s3):
    """An object that is written again under a streamed set: its samples are stale, with its address, and the others are good."""
    for i in range(40):
        s3.put(f"moving/{i:02}", content(f"m{i}", 200 * KIB))
    daemon = host.daemon({"pool": {"size": "4MiB", "region_size": "256KiB"}})
    with leat.open(f"s3://{BUCKET}/moving", socket=daemon.socket) as ws:
        stat = ws.stat()
        assert stat.streamed
        assert ws[39] == content("m39", 200 * KIB)
        s3.put("moving/38", content("other", 200 * KIB))
        with pytest.raises(leat.Stale, match=f"s3://{BUCKET}/moving/38"):
            ws[38]
        assert ws[37] == content("m37", 200 * KIB)
    with leat.open(f"s3://{BUCKET}/moving", socket=daemon.socket) as ws:
        assert ws[38] == content("other", 200 * KIB)


def test_credentials(host, leat, nobody, monkeypatch):
    """The opener's credentials are used; errors name the cause, and keys are shown nowhere."""
    daemon = host.daemon()
    uri = f"s3://{BUCKET}/tree"
    with pytest.raises(leat.Denied, match="no credentials for S3: set AWS_ACCESS_KEY_ID"):
        leat.open(uri, socket=daemon.socket, storage_options={"endpoint_url": nobody.swift.url})
    with pytest.raises(leat.Denied, match="403"):
        leat.open(uri, socket=daemon.socket, storage_options=options(nobody, secret="a wrong secret"))
    with pytest.raises(leat.NotFound, match="nosuchbucket"):
        leat.open("s3://nosuchbucket/x", socket=daemon.socket, storage_options=options(nobody))
    with pytest.raises(ValueError, match="keyy"):
        leat.open(uri, socket=daemon.socket, storage_options={"keyy": "x"})
    with pytest.raises(ValueError, match="belong together"):
        leat.open(uri, socket=daemon.socket, storage_options={"key": "x"})
    with leat.open(uri, socket=daemon.socket, storage_options=options(nobody), wait=True) as ws:
        assert len(ws) == FILES
    (pathlib.Path(host.folder) / ".aws").mkdir()
    (pathlib.Path(host.folder) / ".aws/config").write_text(
        f"[profile train]\nendpoint_url = {nobody.swift.url}\nregion = {nobody.swift.region}\n")
    (pathlib.Path(host.folder) / ".aws/credentials").write_text(
        f"[train]\naws_access_key_id = {nobody.swift.access}\naws_secret_access_key = {nobody.swift.secret}\n")
    with leat.open(uri, socket=daemon.socket, storage_options={"profile": "train"}) as ws:
        assert len(ws[5]["data"]) > 0
    # What only leatd can look for: a program that the profile names.
    helper = pathlib.Path(host.folder) / "helper"
    helper.write_text("#!/bin/sh\necho '{\"Version\": 1, \"AccessKeyId\": \"%s\", \"SecretAccessKey\": \"%s\"}'\n"
                      % (nobody.swift.access, nobody.swift.secret))
    helper.chmod(0o755)
    (pathlib.Path(host.folder) / ".aws/credentials").write_text(f"[train]\ncredential_process = {helper}\n")
    monkeypatch.setenv("AWS_PROFILE", "train")
    with leat.open(uri, socket=daemon.socket) as ws:
        assert len(ws[6]["data"]) > 0
    text = daemon.text() + str(daemon.status()) + str(daemon.sets())
    assert "a wrong secret" not in text and f"'{nobody.swift.secret}'" not in text


def test_daemon_of_several_users(host, leat, nobody):
    """It asks no host that its administrator does not name, and lends no credentials unless configured to."""
    lib_host.need_root()
    system = {"daemon": {"mode": "system", "roots": host.data}}
    uri = f"s3://{BUCKET}/tree"
    keys = nobody.swift.env()
    strict = host.daemon(system, name="strict", env=keys)
    with pytest.raises(leat.Denied, match="allowed_hosts = 127.0.0.1"):
        leat.open(uri, socket=strict.socket, storage_options=options(nobody))
    named = host.daemon({**system, "s3": {"allowed_hosts": "127.0.0.1"}}, name="named", env=keys)
    with leat.open(uri, socket=named.socket, storage_options=options(nobody)) as ws:
        assert len(ws[0]["data"]) > 0
    with pytest.raises(leat.Denied, match="no credentials"):
        leat.open(f"s3://{BUCKET}/tar", socket=named.socket, storage_options={"endpoint_url": nobody.swift.url})
    lends = host.daemon({**system, "s3": {"allowed_hosts": "127.0.0.1", "own_credentials": "yes"}}, name="lends", env=keys)
    with leat.open(f"s3://{BUCKET}/tar", socket=lends.socket) as ws:
        assert len(ws) == SHARDS * MEMBERS and len(ws[0]["bin"]) > 0


def test_two_nodes(host, leat, s3):
    """Each fills its own share from S3; both have all of it."""
    token = host.folder / "token"
    token.write_text("x" * 40)
    token.chmod(0o600)
    nodes = [f"127.0.0.1:{port}" for port in lib_host.free_ports(2)]
    config = [{"pool": {"size": "64MiB", "region_size": "1MiB"}, "net": {"listen": node, "token_file": token, "nodes": " ".join(nodes)}}
              for node in nodes]
    daemons = [host.daemon(c, name=f"n{k}") for k, c in enumerate(config)]
    for daemon in daemons:
        lib_host.wait_for(lambda d=daemon: all(n["state"] in ("up", "self") for n in d.status()["nodes"]) and len(d.status()["nodes"]) == 2)
    for daemon in daemons:
        with leat.open(f"s3://{BUCKET}/tar", socket=daemon.socket, wait=True) as ws:
            with ws.read_batch(range(SHARDS * MEMBERS)) as batch:
                check_tar(batch)
            if daemon is daemons[0]:
                kept = leat.preload(f"s3://{BUCKET}/tar", name="both", socket=daemon.socket)
    assert all(d.status()["remote"]["bytes"] > 0 for d in daemons), [(d.status()["remote"], d.status()["nodes"], d.sets()) for d in daemons]
    kept.close()
