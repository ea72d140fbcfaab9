# SPDX-License-Identifier: Apache-2.0
"""A set of two hosts that lies in S3: what one client brought is enough for both daemons, goes between them sealed, and is renewed."""

import json
import os
import socket
import struct
import threading
import time

import lib_data
import lib_host
import lib_net
import lib_wire
import pytest
import s3fault

A, B = 0, 1
SECRET, LATER = "a-secret-that-is-on-no-wire", "another-secret-of-a-later-hour"


@pytest.fixture
def network():
    made = lib_net.Network(2)
    yield made
    made.close()


@pytest.fixture
def nobody(host, monkeypatch):
    """An environment in which no keys are to be found: neither daemon has any of its own."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "LEAT_S3_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(host.folder))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def s3(network, host, nobody):
    """A server that both hosts reach, which computes every signature again."""
    (host.folder / "store/b").mkdir(parents=True)
    address = network.on_the_bridge()
    with network.in_the_hub():
        server = s3fault.S3Fault(host.folder / "store", address=address)
    with server:
        server.keys = {"FIRST": (SECRET, "a-session"), "SECOND": (LATER, None)}
        yield server


def keys(s3, access):
    secret, token = s3.keys[access]
    return {"endpoint_url": s3.url, "region": s3.region, "key": access, "secret": secret, **({"token": token} if token else {})}


def store(s3, rows):
    lib_data.make_npy(s3.top / "b/a.npy", rows)
    return "s3://b/a.npy"


class Ear(threading.Thread):
    """Hears all that goes over the bridge."""

    def __init__(self, network):
        super().__init__(daemon=True)
        with network.in_the_hub():
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self.socket.settimeout(0.2)
        self.heard, self.over = [], False
        self.start()

    def run(self):
        while not self.over:
            try:
                packet = self.socket.recv(1 << 17)
            except TimeoutError:
                continue
            if len(packet) < 8192:  # what is larger is data
                self.heard.append(packet)

    def close(self):
        self.over = True
        self.join(60)
        self.socket.close()
        return b"".join(self.heard)


@pytest.mark.parametrize("opener", [A, B])  # one of the two is the coordinator of the source
def test_keys_of_one_client_are_enough(host, leat, network, s3, pair, opener):
    uri, ear = store(s3, 3072), Ear(network)  # 24 MiB over two pools of 16
    with leat.preload(uri, name="keyed", socket=pair.daemons[opener].socket, storage_options=keys(s3, "FIRST"),
                      timeout=lib_host.PATIENCE) as ws:
        assert {region["node"] for region in leat.stat("keyed", socket=pair.daemons[B].socket)["regions"]} == {0, 1}
        lib_data.check_rows(ws.read_batch(range(0, 3072, 5)).data, range(0, 3072, 5))
    assert all(d.status()["remote"]["bytes"] > 0 for d in pair.daemons), "each has read its own share"
    with leat.open("leat://keyed", socket=pair.daemons[1 - opener].socket) as there:
        lib_data.check_rows(there.read_batch(range(3072)).data, range(3072))
    heard = ear.close()
    assert s3.url.removeprefix("http://").encode() in heard, "the ear works"
    assert SECRET.encode() not in heard, "the secret went over the wire"
    said = "".join(d.text() + str(d.status()) + str(d.sets()) for d in pair.daemons)
    assert SECRET not in said and "a-session" not in said


def refused(there, ids):
    import leat

    try:
        lib_data.check_rows(there.read_batch(ids).data, ids)
    except leat.Error:
        return True
    return False


def test_keys_are_renewed_by_who_opens_again(leat, s3, pair):
    """Larger than both pools: what is read through the window is requested again each time."""
    a, b = pair.daemons
    uri = store(s3, 6144)  # 48 MiB
    ws = leat.preload(uri, name="long", socket=a.socket, storage_options=keys(s3, "FIRST"), timeout=lib_host.PATIENCE)
    assert ws.stat().streamed
    there, last = leat.open("leat://long", socket=b.socket), range(5000, 6144, 9)
    lib_data.check_rows(there.read_batch(last).data, last)
    s3.expired.add("FIRST")
    early = range(4000, 4900, 9)
    assert refused(there, early), "it still reads, so the rest of this test shows nothing"
    with pytest.raises(leat.Denied):
        leat.open(uri, socket=a.socket, storage_options={**keys(s3, "SECOND"), "secret": "wrong"})
    assert refused(there, early)
    leat.open(uri, socket=a.socket, storage_options=keys(s3, "SECOND")).close()
    lib_host.wait_for(lambda: not refused(there, early), 60, "B did not get the new keys")
    there.close()
    ws.close()


@pytest.mark.slow
def test_keys_are_renewed_by_who_finds_them(host, leat, network, s3, pair, monkeypatch):
    """A program of the opener's profile gives keys for some minutes: its daemon runs it again in time, and the other node gets them."""
    a, b = pair.daemons
    uri = store(s3, 6144)
    home = host.folder / "home"
    (home / ".aws").mkdir(parents=True)
    found = home / "keys.json"

    def give(access):
        secret, token = s3.keys[access]
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 240))  # so soon that it is renewed at once
        part = found.with_suffix(".new")
        part.write_text(json.dumps({"Version": 1, "AccessKeyId": access, "SecretAccessKey": secret, "Expiration": until,
                                    **({"SessionToken": token} if token else {})}))
        part.replace(found)

    give("FIRST")
    (home / ".aws/config").write_text(f"[default]\nregion = {s3.region}\nendpoint_url = {s3.url}\ncredential_process = /bin/cat {found}\n")
    for variable, name in (("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")):
        monkeypatch.setenv(variable, str(home / ".aws" / name))
    # Daemon A is of this environment, B of another one.
    a.stop()
    pair.start(A)
    pair.joined(A)
    pair.joined(B)
    ws = leat.preload(uri, name="long", socket=pair.daemons[A].socket, timeout=lib_host.PATIENCE)
    there, last = leat.open("leat://long", socket=b.socket), range(5000, 6144, 9)
    lib_data.check_rows(there.read_batch(last).data, last)
    give("SECOND")
    s3.expired.add("FIRST")
    early = range(4000, 4900, 9)
    lib_host.wait_for(lambda: not refused(there, early), 120, "B did not get the new keys")
    there.close()
    ws.close()


def test_what_is_not_sealed_is_hung_up_on(host, leat, network, s3, pair):
    """A peer that knows the token, and replays recorded messages, or sends invented ones."""
    token = pair.token.read_bytes().strip()
    head = struct.pack("<I", 0) + lib_wire.text("s3://b/a.npy")
    plain = struct.pack("<IQ", 0, 0) + b"".join(lib_wire.text(t) for t in (s3.url, "", "", "", "", "FIRST", SECRET, ""))
    address = pair.nodes[A]
    for body in (b"", head, head + plain, head + struct.pack("<Q", 1) + plain, head + struct.pack("<Q", 1) + bytes(16),
                 struct.pack("<I", 0) + lib_wire.text("x" * 5000), struct.pack("<II", 0, 1 << 31)):
        with network.in_the_hub():
            peer = lib_wire.Peer(address)
        with peer:
            status, right, _ = lib_wire.prove(peer, token, lib_wire.hello(role=lib_wire.PEER, nonce=os.urandom(32)))
            assert status == 0 and right
            peer.send(lib_wire.frame(lib_wire.ACCESS, body, kind=lib_wire.EVENT))
            assert peer.closed(), body[:60]
    with pytest.raises(leat.Denied):
        leat.open(store(s3, 64), socket=pair.daemons[A].socket, storage_options={"endpoint_url": s3.url, "region": s3.region})
    pair.joined(A)


class Held:
    """A server that answers no GET of an object before the test allows it; other requests it answers at once."""

    def __init__(self, s3):
        self.allowed, self.asked, self.all, self.changed = set(), [], False, threading.Condition()
        s3.match = self.match

    def match(self, request):
        if request.command == "GET" and request.key:
            with self.changed:
                self.asked.append(request.key)
                self.changed.wait_for(lambda: self.all or request.key in self.allowed, 120)
        return None

    def allow(self, keys):
        with self.changed:
            self.allowed |= set(keys)
            self.changed.notify_all()

    def allow_all(self):
        with self.changed:
            self.all = True
            self.changed.notify_all()


def test_a_wait_is_urgent_on_the_other_node(host, leat, cluster, s3):
    """64 objects, a region each. What a reader on A waits for lies last on B, and is the next one that B loads: no other is answered."""
    size, count = 256 << 10, 64
    made = {f"{k:03d}.bin": bytes([k]) * size for k in range(count)}
    for key, data in made.items():
        (s3.top / "b/t").mkdir(exist_ok=True)
        (s3.top / "b/t" / key).write_bytes(data)
    for i in (A, B):
        cluster.start(i, disk={"threads": 1}, log={"level": "debug"})
    for i in (A, B):
        cluster.joined(i)
    a, held = cluster.daemons[A], Held(s3)
    ws = leat.open("s3://b/t/", socket=a.socket, storage_options=keys(s3, "FIRST"))
    regions = leat.stat("s3://b/t/", socket=a.socket)["regions"]
    assert len(regions) == count
    on_b = [region["mr_gid"] for region in regions if region["node"] == B]
    assert len(on_b) > count // 3, "both have a share"
    last, got, of_b = on_b[-1], [], {f"t/{k:03d}.bin" for k in on_b}
    reader = threading.Thread(target=lambda: got.append(bytes(ws[last])), daemon=True)
    try:
        lib_host.wait_for(lambda: of_b.intersection(held.asked), message="B has not begun")
        reader.start()
        lib_host.wait_for(lambda: "waits for 1 samples" in cluster.daemons[B].text(), message="B was not asked")
        begun = set(held.asked)
        assert f"t/{last:03d}.bin" not in begun
        held.allow(begun | {f"t/{last:03d}.bin"})
        reader.join(2 * lib_host.PATIENCE)
        read = list(got)
    finally:
        held.allow_all()
    reader.join(2 * lib_host.PATIENCE)
    assert read == [made[f"{last:03d}.bin"]], f"it came after {len(set(held.asked))} of {count} objects"
    ws.close()
