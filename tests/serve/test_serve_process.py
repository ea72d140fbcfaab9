# SPDX-License-Identifier: Apache-2.0
"""`leat serve` as a process: how it starts and what it refuses, TLS, keys that change, how it ends, kills, disks that are full or broken."""

import contextlib
import functools
import http.client
import json
import os
import pathlib
import re
import resource
import shlex
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
import urllib.request
import xml.etree.ElementTree as ElementTree

import lib_host
import lib_serve
import pytest
from lib_host import wait_for
from lib_serve import MIB, content, error

pytestmark = pytest.mark.skipif(not lib_host.LEAT.exists(), reason=f"{lib_host.LEAT} is not built")


@pytest.fixture
def start(tmp_path):
    """Servers of this test's own, on the real disk."""
    made = []

    def one(*options, **more):
        made.append(lib_serve.Server(tmp_path / more.pop("name", "s"), *options, **more))
        return made[-1]

    yield one
    for server in made:
        if server.process.poll() is None:
            server.stop()


def refused(*options, env=None):
    """What it says when it does not start."""
    done = subprocess.run([lib_host.LEAT, "serve", *map(str, options)], capture_output=True, text=True, timeout=120, env=env, stdin=subprocess.DEVNULL)
    assert done.returncode in (1, 2, 3, 4, 8), done
    return done.stderr


# --- start -----------------------------------------------------------------------------------------------------------------------

def test_on_a_fresh_machine(tmp_path):
    """No option at all: objects and keys below home, 127.0.0.1 alone; what is printed works as it stands, and has no secret in it."""
    home = tmp_path / "my home, and all"
    home.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "XDG_"))} | {"HOME": str(home)}
    with subprocess.Popen([lib_host.LEAT, "serve", "--listen", "127.0.0.1:0"], env=env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as server:
        try:
            text = ""
            while "Ctrl-C ends it" not in text:
                line = server.stdout.readline()
                assert line, text
                text += line
            keys = home / ".config/leat/keys"
            assert keys.stat().st_mode & 0o777 == 0o600 and (home / ".local/share/leat/store").is_dir()
            secret = re.search(r"aws_secret_access_key = (\S+)", keys.read_text())[1]
            assert secret not in text and "127.0.0.1" in text and str(keys) in text
            exported = dict(w.split("=", 1) for w in shlex.split(re.search(r"export (.*)", text)[1]))
            boto3 = pytest.importorskip("boto3")
            access = re.search(r"aws_access_key_id = (\S+)", keys.read_text())[1]
            client = boto3.client("s3", endpoint_url=exported["AWS_ENDPOINT_URL"], region_name=exported["AWS_REGION"], aws_access_key_id=access,
                                  aws_secret_access_key=secret)
            client.create_bucket(Bucket="first")
            client.put_object(Bucket="first", Key="k", Body=b"v")
            done = subprocess.run([lib_host.LEAT, "ls", "-r", "s3://first/"], env=env | exported, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0 and "k" in done.stdout.split(), done
        finally:
            server.terminate()
            assert server.wait(120) == 0


@pytest.mark.parametrize("listen, called", [(["0.0.0.0:0"], r"http://127\.0\.0\.1:\d+"), (["unix:{}", "[::1]:0"], r"http://\[::1\]:\d+"), (["unix:{}"], None)])
def test_the_lines_name_an_address_that_tools_can_call(tmp_path, listen, called):
    keys = tmp_path / "keys"
    keys.write_text(lib_serve.KEYS)
    keys.chmod(0o600)
    options = [o for address in listen for o in ("--listen", address.format(tmp_path / "s"))]
    line = [lib_host.LEAT, "serve", "--store", tmp_path / "store", "--keys", keys, *options]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as server:
        try:
            text = ""
            while "Ctrl-C ends it" not in text:
                assert (said := server.stdout.readline()), text
                text += said
            found = re.search(r"AWS_ENDPOINT_URL=(\S+)", text)
            assert re.fullmatch(called, found[1]) if called else not found and "--listen 127.0.0.1:9000" in text
        finally:
            server.terminate()
            assert server.wait(120) == 0


def test_what_is_refused(tmp_path):
    store, keys = tmp_path / "store", tmp_path / "keys"
    assert "other machines reach it" in refused("--store", store, "--anonymous", "--listen", "0.0.0.0:0")
    assert "exclude each other" in refused("--store", store, "--anonymous", "--keys", keys)
    assert refused("--store", store, "--keys", keys).endswith(f"make one with: leat serve --keys {keys} --new-keys\n")
    keys.touch(0o600)
    assert "names no user" in refused("--store", store, "--keys", keys)
    keys.write_text(lib_serve.KEYS)
    keys.chmod(0o644)
    assert "chmod 600" in refused("--store", store, "--keys", keys)
    keys.chmod(0o600)
    assert str(keys) in refused("--store", store, "--keys", keys, "--new-keys") and keys.read_text() == lib_serve.KEYS
    assert "go together" in refused("--store", store, "--keys", keys, "--tls-cert", keys)
    assert "--keys" in refused("--store", store, "--new-keys")
    assert refused("--store", tmp_path / "no/such/parent", "--keys", keys, "--listen", "127.0.0.1:0")
    assert "region" in refused("--store", store, "--keys", keys, "--region", "US EAST")


def test_two_on_one_folder(start):
    server = start()
    said = refused("--store", server.store, "--keys", server.keys, "--listen", "127.0.0.1:0")
    assert str(server.store) in said
    taken = server.url.removeprefix("http://")
    assert "--listen HOST:PORT chooses another" in refused("--store", server.store.parent / "other", "--keys", server.keys, "--listen", taken)
    assert server.request("GET", "/").status == 200


def test_leatd_serves_the_same(host, tmp_path):
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_text(lib_serve.KEYS)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    host.daemon({"pool": {"size": "8MiB", "region_size": "256KiB"}, "store": {"paths": str(tmp_path / "store")},
                 "serve": {"listen": f"127.0.0.1:{port}", "keys_file": str(keys)}})
    asked = lib_serve.Server.__new__(lib_serve.Server)
    asked.host, asked.port = "127.0.0.1", port
    assert asked.request("PUT", "/bucket").status == 200
    assert asked.request("PUT", "/bucket/k", b"abc").status == 200
    assert asked.request("GET", "/bucket/k").body == b"abc"
    assert error(asked.request("GET", "/bucket/k", access=None)) == (403, "AccessDenied")


# --- TLS, keys ---------------------------------------------------------------------------------------------------------------------

def test_tls(start, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    done = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                           "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], capture_output=True, timeout=60)
    if done.returncode:
        pytest.skip("openssl makes no certificate here")
    server = start("--tls-cert", cert, "--tls-key", key)
    assert server.url.startswith("https://")
    context = ssl.create_default_context(cafile=str(cert))
    server.connect = lambda: http.client.HTTPSConnection(server.host, server.port, timeout=120, context=context)
    data = content("tls", 9 * MIB)
    assert server.request("PUT", "/bucket").status == 200
    assert server.request("PUT", "/bucket/k", data).status == 200
    assert server.request("GET", "/bucket/k").body == data
    assert server.request("GET", "/bucket/k", headers={"range": "bytes=5-9"}).body == data[5:10]
    with pytest.raises(ssl.SSLError):
        http.client.HTTPSConnection(server.host, server.port, timeout=120, context=ssl.create_default_context()).request("GET", "/")


def test_keys_that_change(start):
    server = start()
    new = dict(access="NEWKEY", secret="new-secret")
    assert error(server.request("GET", "/", **new)) == (403, "InvalidAccessKeyId")
    fresh = server.keys.with_name("keys.new")
    fresh.touch(mode=0o600)
    fresh.write_text("[new]\naws_access_key_id = NEWKEY\naws_secret_access_key = new-secret\naccess = admin\n")
    os.replace(fresh, server.keys)
    lib_host.wait_for(lambda: server.request("GET", "/", **new).status == 200, 120)
    assert error(server.request("GET", "/")) == (403, "InvalidAccessKeyId")
    # What is broken changes nothing, and is said.
    server.keys.write_text("[new]\nnonsense\n")
    lib_host.wait_for(lambda: "stay as they were" in server.log.read_text(), 120)
    assert server.request("GET", "/", **new).status == 200
    assert "new-secret" not in server.log.read_text()


# --- ends ----------------------------------------------------------------------------------------------------------------------------

def turns_away(server):
    try:
        with contextlib.closing(server.connect()) as c:
            c.connect()
    except ConnectionRefusedError:
        return True
    return False


@contextlib.contextmanager
def begun_put(server, data, sent):
    """The connection of a PUT of /bucket/k, whose first bytes are sent."""
    target, headers = server.prepare("PUT", "/bucket/k", data)
    with contextlib.closing(server.connect()) as c:
        c.putrequest("PUT", target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            c.putheader(name, value)
        c.putheader("content-length", str(len(data)))
        c.endheaders(data[:sent])
        yield c


def test_requests_under_way_end(start):
    """SIGTERM in the middle of a PUT: the sending client may finish, and learns that the connection closes; no new connection is accepted during that."""
    server = start()
    assert server.request("PUT", "/bucket").status == 200
    data = content("grace", 3 * MIB)
    with begun_put(server, data, MIB) as c:
        lib_host.wait_for(lambda: any((server.store).rglob("*")), 60)
        server.process.send_signal(signal.SIGTERM)
        lib_host.wait_for(lambda: turns_away(server), 60)
        assert server.process.poll() is None
        c.send(data[MIB:])
        answer = c.getresponse()
        assert answer.status == 200 and answer.getheader("connection") == "close"
    server.stop()
    server.start()
    assert server.request("GET", "/bucket/k").body == data


def test_not_ready_while_it_ends(start):
    """A client that connected before SIGTERM and asks within the grace period learns that this server ends, not that it is ready."""
    server = start()
    assert server.request("PUT", "/bucket").status == 200
    with begun_put(server, b"0123456789", 5) as put, contextlib.closing(socket.create_connection((server.host, server.port), 60)) as probe:
        probe.sendall(b"GET /readyz HTTP/1.1\r\nHost: %s\r\n" % server.host.encode())
        with contextlib.closing(server.connect()) as before:
            before.request("GET", "/readyz")
            assert before.getresponse().status == 200
        server.process.send_signal(signal.SIGTERM)
        lib_host.wait_for(lambda: turns_away(server), 60)
        probe.sendall(b"\r\n")
        answer = http.client.HTTPResponse(probe)
        answer.begin()
        assert answer.status == 503 and b"this server ends" in answer.read()
        put.send(b"56789")
        assert put.getresponse().status == 200
    server.stop()


def killed(start, rounds, name):
    """kill -9 at any moment of many PUTs: each that was acknowledged is there whole, and of the others all or nothing."""
    server = start(name=name)
    assert server.request("PUT", "/bucket").status == 200
    acknowledged, tried = {}, {}
    for round_ in range(rounds):
        go = threading.Event()

        def work(i, round_=round_, go=go):
            for n in range(1000):
                key, size = f"{round_}/{i}/{n}", (3, 5000, 70_000, 2 * MIB)[(i + n) % 4]
                data = content(key, size)
                tried[key] = data
                try:
                    if server.request("PUT", f"/bucket/{key}", data).status != 200:
                        return
                except (OSError, http.client.HTTPException):
                    return
                acknowledged[key] = data
                if n == 1:
                    go.set()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        assert go.wait(120)
        time.sleep(0.003 * (round_ % 7))
        server.kill()
        for t in threads:
            t.join()
        server.start()
    listed, token = [], None
    while True:
        reply = server.request("GET", "/bucket", query=[("list-type", "2"), *([("continuation-token", token)] if token else [])]).xml
        listed += [k.text for k in reply.iter("Key")]
        token = reply.findtext("NextContinuationToken")
        if not token:
            break
    assert set(acknowledged) <= set(listed) <= set(tried)
    for key in listed:
        assert server.request("GET", f"/bucket/{key}").body == tried[key]
    server.stop()


def test_killed(start):
    killed(start, 3, "k")


@pytest.mark.slow
def test_killed_often(start):
    killed(start, 12 if lib_host.SANITIZED else 40, "often")


def parts_of(server, key, upload):
    reply = server.request("GET", f"/bucket/{key}", query=[("uploadId", upload)])
    if reply.status == 404:
        assert reply.code == "NoSuchUpload"
        return None
    assert reply.status == 200, reply
    return {int(p.findtext("PartNumber")): (p.findtext("ETag"), int(p.findtext("Size"))) for p in reply.xml.iter("Part")}


def killed_completing(start, rounds, name):
    """kill -9 in the middle of CompleteMultipartUpload: the object whole, or the upload with all its parts, which then can be completed; never
    neither, and the object whenever that was acknowledged."""
    server = start(name=name)
    assert server.request("PUT", "/bucket").status == 200
    pieces = [content(f"piece-{i}", size) for i, size in enumerate((5 * MIB, 5 * MIB + 77, 6 * MIB, 1000))]
    whole, outcomes, took = b"".join(pieces), [0, 0], None
    for round_ in range(rounds):
        key = f"k/{round_}"
        upload = server.request("POST", f"/bucket/{key}", query=[("uploads", "")]).xml.findtext("UploadId")
        tags = {}
        for i, piece in enumerate(pieces):
            reply = server.request("PUT", f"/bucket/{key}", piece, query=[("partNumber", str(i + 1)), ("uploadId", upload)])
            assert reply.status == 200
            tags[i + 1] = (reply.headers["etag"], len(piece))
        document = "<CompleteMultipartUpload>" + "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>{tag}</ETag></Part>" for n, (tag, _) in tags.items()) + "</CompleteMultipartUpload>"
        complete = functools.partial(server.request, "POST", f"/bucket/{key}", document.encode(), query=[("uploadId", upload)])
        if took is None:  # how long one takes, so that the kills fall before, into and behind it
            began = time.monotonic()
            assert complete().status == 200
            took = time.monotonic() - began
            continue
        acknowledged = []

        def work(complete=complete, acknowledged=acknowledged):
            with contextlib.suppress(OSError, http.client.HTTPException, ElementTree.ParseError):
                reply = complete()
                acknowledged.append(reply.status == 200 and reply.xml.tag == "CompleteMultipartUploadResult")

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(took * 1.3 * round_ / rounds)
        server.kill()
        thread.join()
        server.start()
        got, parts = server.request("GET", f"/bucket/{key}"), parts_of(server, key, upload)
        assert got.status in (200, 404), got
        outcomes[got.status == 200] += 1
        if got.status == 404:
            assert parts == tags and acknowledged != [True], (round_, parts)
            assert complete().status == 200
            got, parts = server.request("GET", f"/bucket/{key}"), parts_of(server, key, upload)
        assert got.body == whole and parts is None, round_
        assert complete().status in (200, 404)  # asked again by a client that heard nothing
    print(f"{outcomes[1]} were complete, {outcomes[0]} were not yet; one takes {took * 1000:.0f} ms")
    uploads = server.request("GET", "/bucket", query=[("uploads", "")]).xml
    assert not list(uploads.iter("Upload"))
    server.stop()
    lying = sum(p.stat().st_size for p in server.store.glob("objects/*/*"))
    assert lying < (rounds + 0.5) * len(whole)  # nothing of parts is left
    return outcomes


def test_killed_while_completing(start):
    killed_completing(start, 3, "completing")


@pytest.mark.slow
def test_killed_while_completing_often(start):
    outcomes = killed_completing(start, 8 if lib_host.SANITIZED else 31, "completing-often")
    assert min(outcomes) > 0, outcomes


# --- disks, memory ---------------------------------------------------------------------------------------------------------------------

@pytest.fixture
def small_disk(tmp_path):
    lib_host.need_root()
    top = tmp_path / "disk"
    top.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "leat-test", top], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield top
    subprocess.run(["umount", "-l", top], check=True)


def put_expecting(server, path, data):
    """(status, code) of a PUT that asks before it sends, as AWS's tools do: so an early refusal is not lost with the connection."""
    target, headers = server.prepare("PUT", path, payload="UNSIGNED-PAYLOAD")
    head = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    with socket.create_connection((server.host, server.port), 120) as s, s.makefile("rb") as answer:
        s.sendall(f"PUT {target} HTTP/1.1\r\n{head}expect: 100-continue\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode())
        line = answer.readline()
        if line.split()[1] == b"100":
            assert answer.readline() == b"\r\n"
            s.sendall(data)
            line = answer.readline()
        code = re.search(rb"<Code>(\w+)", answer.read())
        return int(line.split()[1]), code and code[1].decode()


def test_a_disk_that_is_full(start, small_disk):
    """507 for an object that does not fit; everything else continues, and freed room can be used."""
    server = start(name="full", store=small_disk / "store")
    assert server.request("PUT", "/bucket").status == 200
    assert server.request("PUT", "/bucket/small", b"x").status == 200
    stored = 0
    for i in range(30):
        said = put_expecting(server, f"/bucket/{i}", bytes(8 * MIB))
        if said[0] != 200:
            break
        stored += 1
    assert said == (507, "StorageFull") and stored >= 2
    assert put_expecting(server, "/bucket/huge", bytes(80 * MIB)) == (507, "StorageFull")
    assert server.request("GET", "/bucket/small").body == b"x"
    assert len(server.request("GET", "/bucket/0").body) == 8 * MIB
    for i in range(stored):
        reply = server.request("DELETE", f"/bucket/{i}")
        assert reply.status == 204, server.log.read_text()
    assert put_expecting(server, "/bucket/again", bytes(8 * MIB)) == (200, None)


def test_a_bit_that_flips(start):
    """What does not match its checksum is never handed out: 500, or a body that breaks off."""
    server = start(name="flip")
    assert server.request("PUT", "/bucket").status == 200
    data = content("flip", 3 * MIB)
    for key in ("small", "large"):
        assert server.request("PUT", f"/bucket/{key}", data if key == "large" else data[:5000]).status == 200
    server.stop()
    flipped = 0
    for path in server.store.rglob("*"):
        if path.is_file():
            raw = bytearray(path.read_bytes())
            at = raw.find(data[:64])
            if at >= 0:
                raw[at + 2000] ^= 1
                path.write_bytes(raw)
                flipped += 1
    assert flipped == 2
    server.start()
    for key in ("small", "large"):
        assert error(server.request("GET", f"/bucket/{key}")) == (500, "InternalError")
    assert server.request("PUT", "/bucket/small", b"anew").status == 200
    assert server.request("GET", "/bucket/small").body == b"anew"


def test_descriptions_that_rot(start):
    """One of two copies: nothing is to be seen. Both: 500, not 404, no other owner, not ready; an administrator makes it again, with its objects."""
    server = start(name="rot")
    maker = {"access": "LEATTESTMAKER0000001", "secret": "secret-of-the-maker"}
    for name in ("bucket", "fine"):
        assert server.request("PUT", f"/{name}").status == 200
        assert server.request("PUT", f"/{name}/key", b"what was acknowledged").status == 200
    assert server.request("GET", "/readyz").status == 200

    def rot(*names):
        server.stop()
        for name in names:
            path = server.store / "buckets" / name
            raw = bytearray(path.read_bytes())
            raw[40] ^= 16
            path.write_bytes(raw)
        server.start()

    for name in ("bucket", "bucket#copy"):
        rot(name)
        assert server.request("GET", "/bucket/key").body == b"what was acknowledged"
    assert server.log.read_text().count("was repaired from another copy") == 2
    rot("bucket", "bucket#copy")
    assert error(server.request("GET", "/bucket/key")) == (500, "InternalError")
    assert server.request("HEAD", "/bucket/key").status == 500
    for method, path, body in (("PUT", "/bucket/key", b"x"), ("DELETE", "/bucket/key", b""), ("DELETE", "/bucket", b""),
                               ("GET", "/bucket", b"")):
        assert error(server.request(method, path, body)) == (500, "InternalError"), (method, path)
    ready = server.request("GET", "/readyz")
    assert ready.status == 503 and b"description" in ready.body
    assert server.request("GET", "/fine/key").body == b"what was acknowledged"
    assert error(server.request("PUT", "/bucket", **maker)) == (500, "InternalError")
    assert server.request("PUT", "/bucket").status == 200
    assert server.request("GET", "/bucket/key").body == b"what was acknowledged"
    assert server.request("GET", "/readyz").status == 200


def busy(server):
    """Requests under way, but for the one that asks."""
    return json.load(urllib.request.urlopen(server.url + "/v1/status", timeout=60))["http"]["busy"] - 1


@pytest.mark.plain
def test_a_cancelled_upload_of_a_slow_disk(start, tmp_path):
    """A client that leaves in the middle of a large PUT, while the disk is slow, delays no other client: not even where one thread serves all."""
    failio = lib_host.BUILD / "tests" / "tools" / "failio.so"
    if lib_host.SANITIZED or not failio.exists():
        pytest.skip("needs the plain build's failio.so")
    try:  # else only the worker could wait
        os.close(os.open(tmp_path / "probe", os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError:
        pytest.skip("no direct I/O here")
    os.mkfifo(tmp_path / "gate")
    gate = os.open(tmp_path / "gate", os.O_RDWR)
    env = {**os.environ, "LD_PRELOAD": str(failio), "FAILIO_GATE": str(tmp_path / "gate")}
    server = start("--threads", "1", name="slow", store=tmp_path / "slow-store", env=env)
    assert server.request("PUT", "/bucket").status == 200
    data, seen = bytes(64 * MIB), tmp_path / "gate.seen"
    with begun_put(server, data, 2 * MIB) as put:  # two buffers: one is being written, a worker waits with the other
        lib_host.wait_for(seen.exists, 60)
        lib_host.wait_for(lambda: busy(server) == 1, 60)
        put.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    lib_host.wait_for(lambda: busy(server) == 0, 60)
    os.write(gate, b"1")  # the worker hands the second over, and is done; it is written now, until the gate opens
    lib_host.wait_for(lambda: seen.stat().st_size == 2, 60)
    for _ in range(20):
        assert urllib.request.urlopen(server.url + "/healthz", timeout=60).status == 200
    os.write(gate, bytes(100))
    os.close(gate)
    server.stop()


@pytest.mark.plain
def test_a_disk_that_fails(start, tmp_path):
    """EIO of one disk of two: its objects are neither found nor missing, a write that hits it fails and leaves nothing, and the other disk continues."""
    failio = lib_host.BUILD / "tests" / "tools" / "failio.so"
    if lib_host.SANITIZED or not failio.exists():
        pytest.skip("needs the plain build's failio.so")
    disks, off = [tmp_path / "bad", tmp_path / "good"], tmp_path / "off"
    off.touch()
    env = {**os.environ, "LD_PRELOAD": str(failio), "FAILIO_DISK": f"{disks[0]}/", "FAILIO_OFF": str(off)}
    server = start("--store", disks[1], name="dead", store=disks[0], env=env)
    assert server.request("PUT", "/bucket").status == 200
    where = {}  # key: (its bytes, is it on the bad disk, is it larger than what is verified when it is opened)
    while len({kind[1:] for kind in where.values()}) < 4:  # names say on which disk, so this takes a few
        key, large = f"k{len(where)}", len(where) % 2 == 1
        body = content(key, MIB + 5000 if large else 3000)
        assert server.request("PUT", f"/bucket/{key}", body).status == 200 and len(where) < 200
        where[key] = body, any(body[:64] in path.read_bytes() for path in disks[0].glob("objects/*/*")), large

    def ask(keys):
        for key in keys:
            body, bad, _ = where[key]
            for headers in ({}, {"range": "bytes=0-9"}):
                reply = server.request("GET", f"/bucket/{key}", headers=headers)
                if bad:
                    assert error(reply) == (503, "ServiceUnavailable") and str(tmp_path) not in str(reply), (key, reply)
                else:
                    assert reply.status in (200, 206) and reply.body == (body[:10] if headers else body), (key, reply)

    def write(name):
        """Until a write hits the bad disk, which is left then, and some successful ones after it: the answer to each."""
        said = []
        while (503, "ServiceUnavailable") not in said[:-8]:
            said.append(error(server.request("PUT", f"/bucket/{name}{len(said)}", content(f"{name}{len(said)}", 5000))))
            assert said[-1] == (200, None) or said[-1] == (503, "ServiceUnavailable") not in said[:-1] and len(said) < 200, said
        return said

    def again():
        off.touch()
        server.stop()
        server.start()  # nothing is open, and nothing was verified

    again()
    large = [key for key, kind in where.items() if kind[2]]
    assert all(server.request("HEAD", f"/bucket/{key}").status == 200 for key in large)
    off.unlink()
    ask(large[:6])  # open already: their blocks cannot be read
    ask(where)  # not open
    said = {"after": write("after")}
    again()
    off.unlink()
    said["new"] = write("new")
    assert server.log.read_text().count(f"{disks[0]}: left") == 2  # in each of the two runs
    again()  # the disk is mended: what was acknowledged is there, and nothing else
    for key, (body, _, _) in where.items():
        assert server.request("GET", f"/bucket/{key}").body == body
    for key, reply in ((f"{name}{i}", reply) for name, replies in said.items() for i, reply in enumerate(replies)):
        got = server.request("GET", f"/bucket/{key}")
        assert got.body == content(key, 5000) if reply[0] == 200 else error(got) == (404, "NoSuchKey"), (key, got)


def test_a_disk_that_is_gone_for_good(tmp_path, start):
    """Without it no answer is given about objects that may be on it, until it is declared lost; then the rest continues."""
    server = start("--store", tmp_path / "two", store=tmp_path / "one", name="both")
    assert server.request("PUT", "/photos").status == 200
    server.stop()
    for options, status in ((), 503), (("--forget-missing",), 200), ((), 200):
        server = start(*options, store=tmp_path / "one", name="rest")
        assert server.request("PUT", f"/bucket{len(options)}{status}").status == status
        assert (server.request("GET", "/photos").status == 200) == (status == 200)
        server.stop()


def test_lists_wait_for_memory(start):
    """A page of any list is charged before it is written: while others hold the memory it gets SlowDown; a short one needs less."""
    server = start("--memory", "32MiB", name="lists")
    assert server.request("PUT", "/bucket").status == 200
    upload = server.request("POST", "/bucket/k", query=[("uploads", "")]).xml.findtext("UploadId")
    lists = [("/bucket", [("list-type", "2")], "max-keys"), ("/bucket", [("uploads", "")], "max-uploads"), ("/bucket/k", [("uploadId", upload)], "max-parts")]
    target, headers = server.prepare("POST", "/bucket", query=[("delete", "")], payload="UNSIGNED-PAYLOAD")
    head = f"POST {target} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + f"content-length: {2 * MIB}\r\nexpect: 100-continue\r\n\r\n"
    with contextlib.ExitStack() as held:
        answer = b"HTTP/1.1 100 "
        while answer.startswith(b"HTTP/1.1 100 "):  # a document that is awaited holds its 2 MiB
            s = held.enter_context(socket.create_connection((server.host, server.port), 120))
            s.sendall(head.encode())
            answer = s.recv(100)
        assert answer.startswith(b"HTTP/1.1 503 "), answer
        for path, query, _ in lists:
            assert error(server.request("GET", path, query=query)) == (503, "SlowDown"), query
    for path, query, most in lists:  # what was held is given back soon
        wait_for(lambda path=path, query=query: server.request("GET", path, query=query).status == 200)
        assert server.request("GET", path, query=[*query, (most, "1")]).status == 200


@pytest.mark.both
def test_memory(start):
    """Many bodies at once, half of them slow: told to slow down past the cap, and the process stays small."""
    server = start("--memory", "32MiB", name="memory")
    assert server.request("PUT", "/bucket").status == 200
    slow = []
    for i in range(60):
        target, headers = server.prepare("PUT", f"/bucket/slow{i}", headers={"x-amz-decoded-content-length": "10000000"}, payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER")
        s = socket.create_connection((server.host, server.port), 120)
        head = f"PUT {target} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "content-length: 10000100\r\n\r\n"
        s.sendall(head.encode() + b"989680\r\n" + b"x" * 1000)
        slow.append(s)
    seen = set()

    def work(i):
        for _ in range(3):
            seen.add(put_expecting(server, f"/bucket/{i}", bytes(2 * MIB)))

    lib_serve.at_once(12, work)
    assert seen <= {(200, None), (503, "SlowDown"), (507, "StorageFull")}
    for s in slow:
        s.close()
    if not lib_host.SANITIZED:
        status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
        assert int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) < 250 * 1024
    assert server.request("PUT", "/bucket/after", b"x").status == 200


@contextlib.contextmanager
def descriptors(wanted):
    """As many for us, and for what we start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"ulimit -Hn is {hard}, {wanted} are wanted")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.both
def test_idle_connections(start):
    """Ten thousand of them, each after one answer: they cost little, others are served concurrently, and each may continue."""
    count = 10_000
    with descriptors(count + 500), contextlib.ExitStack() as all_of_them:
        server = start("--memory", "128MiB", name="idle")
        assert server.request("PUT", "/public-idle").status == 200
        assert server.request("PUT", "/public-idle/k", b"small").status == 200

        def ask(s):
            s.sendall(b"GET /public-idle/k HTTP/1.1\r\nHost: localhost\r\n\r\n")
            reply = b""
            while not reply.endswith(b"\r\n\r\nsmall"):
                piece = s.recv(4096)
                assert piece, reply
                reply += piece
            assert reply.startswith(b"HTTP/1.1 200 ")

        before = lib_host.footprint(server.process.pid)["rss"]
        idle = []
        for _ in range(count):
            idle.append(all_of_them.enter_context(socket.create_connection((server.host, server.port), 120)))
            ask(idle[-1])
        after = lib_host.footprint(server.process.pid)
        assert after["fds"] > count
        if not lib_host.SANITIZED:
            assert after["rss"] - before < count * 8192
        assert server.request("PUT", "/public-idle/other", bytes(MIB)).status == 200
        for s in idle:
            ask(s)
