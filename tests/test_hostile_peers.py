# SPDX-License-Identifier: Apache-2.0
"""Peers that do not keep to the protocol, on the unix socket and over TCP: each is refused or disconnected, and the daemon continues."""

import base64
import contextlib
import errno
import hashlib
import hmac
import os
import random
import signal
import socket
import struct

import lib_data
import lib_host
import pytest
from lib_crc import crc32c
from lib_wire import (APPEND, BROKER, CANCEL, CLOSE, CONTROL, CREATE, DATA, DROP, EVENT, FETCH, FRAME, HELLO, INSTALL, MAGIC, OPEN,
                      NEWEST, PEER, PROOF, QUERY, READ, REGIONS, RELEASE, REPLY, VERIFY, VERSION, WAIT, WRITE, Gone, Peer, frame, hello,
                      opening, prove, text)

TOKEN = base64.b64encode(bytes(range(32)))
EINVAL, ESTALE, EACCES, EOPNOTSUPP = 22, 116, 13, 95


@pytest.fixture
def daemon(host):
    """Serves on a unix socket and over TCP; one set of 64 samples is in it."""
    token = host.folder / "token"
    token.write_bytes(TOKEN + b"\n")
    token.chmod(0o600)
    made = host.daemon({"pool": {"size": "8MiB", "region_size": "64KiB"},
                        "net": {"listen": f"127.0.0.1:{lib_host.free_port()}", "token_file": token}})
    made.address = made.config.read_text().split("listen = ")[1].split()[0]
    made.path = lib_data.make_npy(host.data / "a.npy", 64)
    made.supervisor = Peer(made.socket).greet()
    made.handle, made.uuid, made.generation = made.supervisor.open(str(made.path), name="kept")
    assert made.supervisor.call(WAIT, struct.pack("<QI", made.handle, 0))[0] == 0
    made.most_fds = lib_host.footprint(made.pid)["fds"]
    made.bytes = made.path.read_bytes()[128:]  # regions hold the array: its header stays behind
    yield made
    made.serves(made.path)
    # Whatever they brought along was closed again, descriptors included.
    lib_host.wait_for(lambda: lib_host.footprint(made.pid)["fds"] <= made.most_fds, message="descriptors leak")
    assert made.supervisor.call(WAIT, struct.pack("<QI", made.handle, 0))[0] == 0, "an innocent connection suffered"
    made.supervisor.close()


GARBAGE = {
    "noise": random.Random(1).randbytes(4096),
    "zeros": bytes(4096),
    "http": b"GET / HTTP/1.1\r\nHost: leat\r\nAccept: */*\r\n\r\n" + b" " * 40,
    "magic of another": frame(HELLO, hello(), magic=MAGIC + 1),
    "unknown kind": frame(HELLO, hello(), kind=9),
    "a reply nobody asked for": frame(HELLO, hello(), kind=REPLY),
    "an event": frame(HELLO, hello(), kind=EVENT),
    "positive status": frame(HELLO, hello(), status=5),
    "oversized body": frame(HELLO, b"", body_bytes=(16 << 20) + 1),
    "body of 4 GiB": frame(HELLO, b"", body_bytes=0xFFFFFFFF),
    "payload past all limits": frame(HELLO, hello(), payload=1 << 60),
    "more descriptors than may be": frame(HELLO, hello(), nfds=65),
    "descriptors that are not there": frame(HELLO, hello(), nfds=3) + bytes(64),
    "body cut short": frame(HELLO, hello()[:-1]),
    "body with a tail": frame(HELLO, hello() + b"x"),
    "a request before HELLO": frame(OPEN, opening("/etc/passwd")),
    "a role that is none": frame(HELLO, hello(role=7)),
    "versions upside down": frame(HELLO, hello(low=9, high=1)),
}


@pytest.mark.parametrize("raw", GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize("listener", ["unix", "tcp"])
def test_garbage_is_hung_up_on(daemon, listener, raw):
    with Peer(daemon.socket if listener == "unix" else daemon.address) as peer:
        try:
            peer.send(raw)
        except Gone:
            return
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.closed()


@pytest.mark.parametrize("listener", ["unix", "tcp"])
def test_a_stranger_may_not_make_us_hold_much(daemon, listener):
    """Before HELLO a body of 1 KiB is the most: closed at its header, without waiting for the bytes."""
    with Peer(daemon.socket if listener == "unix" else daemon.address) as peer:
        peer.send(frame(HELLO, b"", body_bytes=1025))
        assert peer.closed()


def test_a_peer_in_a_clusters_role_on_the_unix_socket(daemon):
    with Peer(daemon.socket) as peer:
        peer.send(frame(HELLO, hello(role=PEER)))
        assert peer.closed()


@pytest.mark.parametrize("role", [CONTROL, PEER])
def test_roles_that_tcp_does_not_serve(daemon, role):
    """A control connection is the unix socket's; a peer is of no use to a daemon that knows no others."""
    with Peer(daemon.address) as peer:
        body = hello(role=role, nonce=os.urandom(32))
        try:
            prove(peer, TOKEN, body)
        except Gone:
            return
        assert peer.closed()


@pytest.mark.parametrize("low, high", [(1, 1), (NEWEST + 1, 9)], ids=["older", "newer"])
@pytest.mark.parametrize("listener", ["unix", "tcp"])
def test_another_version_is_told_and_not_served(daemon, listener, low, high):
    """Version 1 had a shorter REPORT and another proof over TCP."""
    with Peer(daemon.socket if listener == "unix" else daemon.address) as peer:
        status, body, _ = peer.call(HELLO, hello(low=low, high=high, role=CONTROL if listener == "unix" else DATA))
        assert status == -EOPNOTSUPP and b"version" in body
        try:
            assert peer.call(QUERY, struct.pack("<I", 3) + text(""), id=2)[0] < 0
        except Gone:
            pass


@pytest.mark.parametrize("cut", [1, 4, 63, 64, 65, -1])
def test_half_a_message_holds_nobody_up(daemon, cut):
    whole = frame(HELLO, hello())
    with Peer(daemon.socket) as peer:
        peer.send(whole[:cut])
        daemon.serves(daemon.path)
        peer.send(whole[cut:])
        assert peer.receive()[2] == 0, "the other half was late, not wrong"
    with Peer(daemon.socket) as peer:
        peer.send(whole[:cut])


def test_half_a_request_then_gone(daemon):
    with Peer(daemon.socket).greet() as peer:
        body = opening(str(daemon.path))
        peer.send(frame(OPEN, body)[: FRAME.size + len(body) // 2])


@pytest.mark.long
def test_many_who_never_say_hello(daemon):
    """They cost a descriptor each, for as long as a handshake may take."""
    before = lib_host.footprint(daemon.pid)["fds"]
    peers = [Peer(daemon.address if i % 2 else daemon.socket) for i in range(300)]
    try:
        lib_host.wait_for(lambda: lib_host.footprint(daemon.pid)["fds"] >= 300)  # others come and go during that
        daemon.serves(daemon.path)
        lib_host.wait_for(lambda: lib_host.footprint(daemon.pid)["fds"] <= before + 2,
                          message="silent connections are kept for ever")
    finally:
        for peer in peers:
            peer.close()


HOSTILE_BODIES = {
    "open of nothing": (OPEN, b""),
    "open with a length past the end": (OPEN, struct.pack("<IQI", 0, 0, 0xFFFFFFFF)),
    "open with a NUL inside": (OPEN, opening("/tmp/a\0b")),
    "open of a name beyond all limits": (OPEN, opening("/x", name="n" * 5000)),
    "append of half": (APPEND, opening("/x")[:-1]),
    "close of half a number": (CLOSE, b"\1\2\3"),
    "regions, too many": (REGIONS, struct.pack("<QII", 1, 0, 65)),
    "wait for more than are named": (WAIT, struct.pack("<QI", 1, 1000)),
    "wait for 4 billion": (WAIT, struct.pack("<QI", 1, 0xFFFFFFFF)),
    "fetch of none": (FETCH, struct.pack("<QI", 1, 0)),
    "fetch with a length past the end": (FETCH, struct.pack("<QI", 1, 0x10000000)),
    "release of a tail": (RELEASE, struct.pack("<QQ", 1, 1)),
    "create without a descriptor": (CREATE, struct.pack("<I", 0) + text("name")),
    "broker of half": (BROKER, struct.pack("<Q", 1)),
    "query of a long name": (QUERY, struct.pack("<I", 2) + text("x" * 5000)),
    "drop of half": (DROP, struct.pack("<I", 0)),
    "cancel of nothing": (CANCEL, b""),
    "verify of half": (VERIFY, struct.pack("<Q", 1)),
}


@pytest.mark.parametrize("type, body", HOSTILE_BODIES.values(), ids=HOSTILE_BODIES.keys())
def test_bodies_that_break_the_protocol(daemon, type, body):
    with Peer(daemon.socket).greet() as peer:
        peer.send(frame(type, body, id=7))
        assert peer.closed()


def test_requests_that_are_refused_politely(daemon):
    """Well-formed nonsense: an error each, and the connection stays."""
    with Peer(daemon.socket).greet() as peer:
        some = struct.pack("<Q", 0)
        for type, body in [
            (READ, struct.pack("<I", 0)), (INSTALL, b"x"), (999, b""), (QUERY, struct.pack("<I", 77) + text("")),
            (QUERY, struct.pack("<I", 2) + text("nobody")), (DROP, struct.pack("<IQ", 0, 0) + text("nobody")),
            (WAIT, struct.pack("<QIQ", daemon.handle, 1, 0)), (FETCH, struct.pack("<QIQQ", daemon.handle, 1, 0, 1)),
            (REGIONS, struct.pack("<QII", daemon.handle, 0, 1)), (BROKER, struct.pack("<QI", daemon.handle, 0)),
            (VERIFY, struct.pack("<QI", daemon.handle, 0)), (OPEN, opening("leat://nobody")), (OPEN, opening("")),
            (OPEN, opening("relative/path")), (OPEN, opening("ftp://x/y")), (OPEN, opening("/nonexistent/file.npy")),
        ]:
            status, message, _ = peer.call(type, body)
            assert status < 0 and len(message) > 10, (type, body)
        assert peer.call(CLOSE, some)[0] == 0, "closing what is not open is no harm"
        handle, _, _ = peer.open("leat://kept")
        assert handle, "a handle is its connection's: that of the other one was not ours to use, this one is"
        for n, first, count in [(1, 64, 1), (1, 63, 2), (1, 1 << 63, 1 << 63), (1, 0, 1 << 40), (1, 5, 0)]:
            status, _, _ = peer.call(FETCH, struct.pack("<QIQQ", handle, n, first, count))
            assert status < 0, (first, count)
        for sample in (64, 1 << 63, (1 << 64) - 1):
            assert peer.call(WAIT, struct.pack("<QIQ", handle, 1, sample))[0] < 0
        assert peer.call(REGIONS, struct.pack("<QII", handle, 0xFFFFFFFF, 64))[0] == 0
        assert peer.call(REGIONS, struct.pack("<QII", handle, 0x80000000, 1))[0] == 0, "there is no window: none is given"
        assert peer.call(WAIT, struct.pack("<QI", handle, 0))[0] == 0


def test_a_fetch_of_more_pieces_than_an_answer_may_have(daemon, host):
    """Each sample of two fields is two pieces: the answer to a few bytes would take gigabytes of a wider set."""
    n = 140_000
    a, b = (lib_data.make_npy(host.data / f"{name}.npy", n, 1) for name in "xy")
    with Peer(daemon.socket).greet() as peer:
        handle, _, _ = peer.open(f"x={a};y={b}", name="two")
        assert peer.call(WAIT, struct.pack("<QI", handle, 0))[0] == 0
        status, message, _ = peer.call(FETCH, struct.pack("<QIQQ", handle, 1, 0, n))
        assert status < 0 and b"fewer" in message, (status, message[:100])
        assert peer.call(FETCH, struct.pack("<QIQQ", handle, 1, 0, n // 2))[0] == 0
        assert peer.call(CLOSE, struct.pack("<Q", handle))[0] == 0
        assert peer.call(DROP, struct.pack("<IQ", 0, 0) + text("two"))[0] == 0


def test_descriptors_that_nobody_asked_for_are_closed(daemon):
    with open("/dev/null") as null:
        with Peer(daemon.socket).greet() as peer:
            for _ in range(50):
                peer.call(QUERY, struct.pack("<I", 3) + text(""), fds=[null.fileno()] * 4)
        with Peer(daemon.socket).greet() as peer:  # more than any request has
            peer.send(frame(QUERY, struct.pack("<I", 3) + text(""), nfds=5), [null.fileno()] * 5)
            assert peer.closed()
        with Peer(daemon.socket).greet() as peer:  # more than the frame says
            peer.send(frame(QUERY, struct.pack("<I", 3) + text(""), nfds=1), [null.fileno()] * 20)
            peer.closed()


class SlowToClose:
    """A socket whose last close() waits ten minutes, for a peer that reads nothing. It is passed to a daemon that stands still, so that
    the daemon's close() is the last one."""

    def __init__(self, daemon):
        self.daemon = daemon

    def __enter__(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.socket = socket.create_connection(server.getsockname())
            self.far = server.accept()[0]
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
        self.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                self.socket.send(bytes(1 << 20))
        lib_host.freeze(self.daemon.pid)
        return self

    def passed(self):
        self.socket.close()
        os.kill(self.daemon.pid, signal.SIGCONT)

    def __exit__(self, *exc):
        os.kill(self.daemon.pid, signal.SIGCONT)
        self.far.close()  # unread: a reset, and nothing to wait for any more


def out_of_band(peer, fd):
    try:
        peer.socket.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))], socket.MSG_OOB)
    except OSError as e:
        if e.errno != errno.EOPNOTSUPP:  # CONFIG_AF_UNIX_OOB
            raise
    peer.send(frame(HELLO, hello()))  # what is read makes the kernel skip that byte


SLOW_TO_CLOSE = {
    "with half a HELLO": lambda peer, fd: peer.send(frame(HELLO, hello())[:10], [fd]),
    "with a HELLO": lambda peer, fd: peer.send(frame(HELLO, hello(), nfds=1), [fd]),
    "with more than fit": lambda peer, fd: peer.send(frame(HELLO, hello(), nfds=1), [peer.socket.fileno()] * 250 + [fd]),
    "out of band": lambda peer, fd: out_of_band(peer, fd),
    "behind nonsense": lambda peer, fd: [peer.send(bytes(64), [peer.socket.fileno()]), peer.send(bytes(64), [fd])],
}


@pytest.mark.parametrize("send", SLOW_TO_CLOSE.values(), ids=SLOW_TO_CLOSE.keys())
def test_descriptors_that_are_slow_to_close(daemon, send):
    """The thread that closes the last copy waits as long as their maker likes: it is not one that serves."""
    with Peer(daemon.socket) as peer, SlowToClose(daemon) as slow:
        send(peer, slow.socket.fileno())
        peer.close()
        slow.passed()
        answers(daemon)


@pytest.mark.parametrize("nonsense", [b"", bytes(64)])
def test_descriptors_that_are_slow_to_close_on_a_data_connection(daemon, nonsense):
    peer, greeting = data(daemon)
    with peer:
        assert peer.call(HELLO, greeting)[0] == 0
        with SlowToClose(daemon) as slow:
            if nonsense:
                peer.send(nonsense, [peer.socket.fileno()])
            peer.send(frame(READ, reading((0, 8, 0))), [slow.socket.fileno()])
            slow.passed()
            answers(daemon)
            assert peer.closed()


def test_descriptors_that_wait_to_be_closed_are_few(daemon):
    """Of all connections of a user, before HELLO and after, old and new."""
    before = lib_host.footprint(daemon.pid)["fds"]
    old = [Peer(daemon.socket).greet() for _ in range(8)] + [Peer(daemon.socket) for _ in range(8)]
    with open("/dev/null") as null, SlowToClose(daemon) as slow, Peer(daemon.socket) as first, Peer(daemon.socket) as last:
        first.send(bytes(64), [slow.socket.fileno()])
        slow.passed()
        assert first.closed()
        for peer in old[1:] + [Peer(daemon.socket) for _ in range(8)]:
            with peer:
                send_many(peer, null)
                assert peer.closed()
        assert lib_host.footprint(daemon.pid)["fds"] < before + 800, "256, a message more, and a connection each"
        status, message, _ = last.call(HELLO, hello())
        assert status == 0, "it was there before"
        with Peer(daemon.socket) as peer:
            busy(*peer.call(HELLO, hello())[:2], b"descriptors", b"256")
        assert old[0].call(QUERY, struct.pack("<I", 3) + text(""))[0] == 0, "without descriptors it is served"
    old[0].close()
    lib_host.wait_for(lambda: serves(daemon), message="it stays refused")


def send_many(peer, file):
    with contextlib.suppress(Gone):
        for _ in range(4):
            peer.send(bytes(64), [file.fileno()] * 253)


def answers(daemon):
    """On the control connection, and on every thread of data connections."""
    with contextlib.ExitStack() as stack:
        assert stack.enter_context(Peer(daemon.socket).greet()).call(QUERY, struct.pack("<I", 3) + text(""))[0] == 0
        for _ in range(16):
            peer, greeting = data(daemon)
            stack.enter_context(peer)
            assert peer.call(HELLO, greeting)[0] == 0
            assert peer.call(READ, reading((0, 8, 0)))[0] == 0


@pytest.mark.long
def test_half_messages_of_all_connections_of_a_user(daemon):
    """Each connection is within its own limits; together they would take much memory."""
    before = lib_host.footprint(daemon.pid)
    peers = []
    with open("/dev/null") as null:
        for _ in range(80):
            peer = Peer(daemon.socket).greet()
            peers.append(peer)
            raw = frame(WAIT, bytes(9 << 20), body_bytes=15 << 20)
            try:
                peer.send(raw[:1000], [null.fileno()] * 4)
                peer.send(raw[1000:])
            except Gone:
                pass
    lib_host.wait_for(lambda: lib_host.footprint(daemon.pid)["fds"] - before["fds"] <= 80 * 5, message=lambda: f"{lib_host.footprint(daemon.pid)}")
    assert lib_host.footprint(daemon.pid)["rss"] - before["rss"] < 600 << 20
    assert daemon.text().count("user_buffers in [limits]") == 1, daemon.text()
    for peer in peers:
        peer.close()
    lib_host.wait_for(lambda: lib_host.footprint(daemon.pid)["fds"] <= before["fds"])


@pytest.mark.parametrize("what", ["a pipe", "a file", "an unsealed memfd", "a sealed memfd of noise", "an empty sealed memfd"])
def test_a_created_set_with_an_index_that_is_none(daemon, what):
    import fcntl

    if what == "a pipe":
        fd, other = os.pipe()
        os.close(other)
    elif what == "a file":
        fd = os.open(daemon.path, os.O_RDONLY)
    else:
        fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
        if "noise" in what:
            os.write(fd, random.Random(2).randbytes(100000))
        if "unsealed" not in what:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    try:
        with Peer(daemon.socket).greet() as peer:
            status, message, _ = peer.call(CREATE, struct.pack("<I", 0) + text("made"), fds=[fd])
            assert status < 0 and message
            assert peer.call(QUERY, struct.pack("<I", 2) + text("made"))[0] < 0
    finally:
        os.close(fd)


def test_a_wait_ends_with_its_last_handle(daemon, leat):
    """It holds the set's memory, and would do so after a drop as well."""
    with leat.create("one", {"n": ("i4", ())}, 4, socket=daemon.socket), Peer(daemon.socket).greet() as peer:
        one, two = (peer.open("leat://one")[0] for _ in range(2))
        peer.send(frame(WAIT, struct.pack("<QI", one, 0), id=7))
        assert peer.call(CLOSE, struct.pack("<Q", one), id=8)[0] == 0
        peer.send(frame(CLOSE, struct.pack("<Q", two), id=9))
        replies = [peer.receive() for _ in range(2)]
        assert [(reply[3], reply[2]) for reply in replies] == [(7, -errno.ECANCELED), (9, 0)]
        peer.call(DROP, struct.pack("<IQ", 1, 0) + text("one"))
    leat._base.clients.forget_all()  # this process's own connection


def with_holes(good, samples):
    """The index `good`, of a table field, said to be of many samples more, whose parts are a hole: a sealed memfd."""
    import fcntl

    header, parts = bytearray(good[:512]), 3
    sections = [struct.unpack_from("<QQ", good, 128 + 16 * s) for s in range(13)]
    fd, end = os.memfd_create("x", os.MFD_ALLOW_SEALING), 512
    for s, (offset, size) in enumerate(sections):
        end = (end + 63) // 64 * 64
        os.pwrite(fd, good[offset : offset + size], end)
        size = 16 * samples if s == parts else size
        struct.pack_into("<QQ", header, 128 + 16 * s, end, size)
        end += size
    struct.pack_into("<QQ", header, 16, end, samples)
    struct.pack_into("<I", header, 12, 0)
    struct.pack_into("<I", header, 12, crc32c(header))
    os.pwrite(fd, header, 0)
    os.ftruncate(fd, end)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def test_a_created_set_with_an_index_full_of_holes(daemon, leat):
    """To read a hole of a memfd is to make its memory: an index that the pool has no room for is not read."""
    with leat.create("one", {"n": bytes}, 4, lengths={"n": [5, 6, 7, 8]}, socket=daemon.socket):
        with Peer(daemon.socket).greet() as peer:
            peer.open("leat://one")
            fd = with_holes(os.pread(peer.fds[0], 1 << 20, 0), 16 << 20)
            status, message, _ = peer.call(CREATE, struct.pack("<I", 0) + text("made"), fds=[fd])
            assert status == -errno.ENOSPC, (status, message)
            assert os.fstat(fd).st_blocks * 512 < 1 << 20, "of 256 MiB"
            os.close(fd)
            peer.call(DROP, struct.pack("<IQ", 1, 0) + text("one"))
    leat._base.clients.forget_all()  # this process's own connection


# --- data connections ------------------------------------------------------------------------------------------


def data(daemon, **how):
    how = {"set_uuid": daemon.uuid, "generation": daemon.generation, **how}
    return Peer(daemon.socket), hello(role=DATA, **how)


def reading(*ranges):
    return struct.pack("<I", len(ranges)) + b"".join(struct.pack("<IIQ", gid, n, offset) for gid, n, offset in ranges)


def test_a_data_connection_reads_its_set_and_no_more(daemon):
    peer, greeting = data(daemon)
    with peer:
        assert peer.call(HELLO, greeting)[0] == 0
        status, _, payload = peer.call(READ, reading((0, 8192, 0), (1, 100, 8)))
        assert status == 0
        assert payload == daemon.bytes[:8192] + daemon.bytes[65536 + 8 : 65536 + 108]
        for bad in [(0, 65537, 0), (0, 1, 65536), (0, 1, (1 << 64) - 1), (0, 0xFFFFFFFF, 1), (9, 1, 0), (0xFFFFFFFF, 1, 0),
                    (0x80000000, 1, 0)]:
            status, _, payload = peer.call(READ, reading(bad))
            assert status < 0 and not payload, bad
        status, _, _ = peer.call(READ, reading((0, 8, 0)))
        assert status == 0, "one bad range costs its request, not the connection"


@pytest.mark.parametrize("body", [b"", struct.pack("<I", 70000), reading((0, 8, 0))[:-1], struct.pack("<I", 0xFFFFFFFF) + bytes(64)])
def test_reads_that_break_the_protocol(daemon, body):
    peer, greeting = data(daemon)
    with peer:
        assert peer.call(HELLO, greeting)[0] == 0
        peer.send(frame(READ, body))
        assert peer.closed()


def test_a_set_from_a_file_is_not_written(daemon):
    peer, greeting = data(daemon)
    with peer:
        assert peer.call(HELLO, greeting)[0] == 0
        body = struct.pack("<QII", 0, 1, 1) + struct.pack("<IIQ", 0, 8192, 0)
        try:
            peer.send(frame(WRITE, body, payload=8192) + bytes(8192))
            assert peer.receive()[2] < 0
        except Gone:
            pass
    with Peer(daemon.socket) as again:
        assert again.call(HELLO, greeting)[0] == 0
        assert again.call(READ, reading((0, 8192, 0)))[2] == daemon.bytes[:8192]


def test_data_connections_to_what_is_not_there(daemon):
    for how, code in [({"set_uuid": bytes(16)}, ESTALE), ({"generation": daemon.generation + 1}, ESTALE)]:
        peer, greeting = data(daemon, **how)
        with peer:
            assert peer.call(HELLO, greeting)[0] == -code


@pytest.mark.both
def test_a_reader_that_does_not_receive(daemon):
    """Its replies wait in the kernel and in the server's bounded queue, and no other client waits."""
    peer, greeting = data(daemon)
    with peer:
        assert peer.call(HELLO, greeting)[0] == 0
        peer.socket.setblocking(False)
        asked = frame(READ, reading(*[(0, 65536, 0)] * 64))
        try:
            for _ in range(2000):
                peer.socket.send(asked)
        except (BlockingIOError, ConnectionError):
            pass
        daemon.serves(daemon.path)
        assert lib_host.footprint(daemon.pid)["rss"] < 200 << 20 or lib_host.SANITIZED


# --- TCP and the token -----------------------------------------------------------------------------------------


def tcp_hello(daemon, nonce=None):
    return hello(role=DATA, set_uuid=daemon.uuid, generation=daemon.generation, nonce=nonce or os.urandom(32))


def test_the_token_opens_the_door(daemon):
    with Peer(daemon.address) as peer:
        status, server_knows, _ = prove(peer, TOKEN, tcp_hello(daemon))
        assert status == 0 and server_knows
        assert peer.call(READ, reading((0, 8192, 0)))[2] == daemon.bytes[:8192]


@pytest.mark.parametrize("token", [TOKEN[:-1] + b"!", b"x" * 40, b""])
def test_a_wrong_token_is_refused(daemon, token):
    with Peer(daemon.address) as peer:
        status, server_knows, _ = prove(peer, token, tcp_hello(daemon))
        assert status == -EACCES and not server_knows
        assert peer.closed()
    assert daemon.metrics()["leat_rejected_total"] >= 1
    assert "(127.0.0.1 port " in daemon.text()


def test_a_stranger_learns_nothing_and_fills_no_log(daemon):
    """Before the proof: no name, no sizes, no number of clients, and nothing made of the token. However many come, the log has a line now and then."""
    for _ in range(50):
        with Peer(daemon.address) as peer:
            status, welcome, _ = peer.call(HELLO, tcp_hello(daemon))
            assert status == 0 and any(welcome[1:33]) and not any(welcome[33:])
            assert peer.call(PROOF, bytes(32))[0] == -EACCES
    assert daemon.metrics()["leat_rejected_total"] >= 50
    assert 1 <= daemon.text().count("has another token") < 50


def test_local_peers_fill_no_log(daemon):
    """Those of this host need no token to break the protocol, and are faster. What is left out of the log is counted in it."""
    def lines():
        return [line for line in daemon.text().splitlines() if "broke the protocol" in line]

    def break_it():
        with Peer(daemon.socket) as peer:
            peer.send(b"x" * 64)
            assert peer.closed()

    for _ in range(300):
        break_it()
    assert 1 <= len(lines()) <= 60, len(lines())
    lib_host.wait_for(lambda: (break_it(), any("such lines were left out)" in line for line in lines()))[1])


def test_a_stranger_that_is_refused_is_heard_no_more(daemon):
    """One answer, one count and one end, however much it sends behind its wrong proof, and reads nothing."""
    before = daemon.metrics()["leat_rejected_total"]
    with Peer(daemon.address) as peer:
        assert peer.call(HELLO, tcp_hello(daemon))[0] == 0
        with pytest.raises(Gone):
            for _ in range(100_000):
                peer.send(frame(PROOF, bytes(32)) * 100)
    lib_host.wait_for(lambda: daemon.metrics()["leat_rejected_total"] > before)
    assert daemon.metrics()["leat_rejected_total"] == before + 1


def test_a_replayed_proof_is_refused(daemon):
    body = tcp_hello(daemon)
    with Peer(daemon.address) as peer:
        status, _, proof = prove(peer, TOKEN, body)
        assert status == 0
    with Peer(daemon.address) as peer:
        assert prove(peer, TOKEN, body, proof=proof)[0] == -EACCES
        assert peer.closed()


def test_the_servers_own_proof_is_no_proof_of_ours(daemon):
    """Reflection: what one server proves with opens no other connection."""
    body = tcp_hello(daemon)
    with Peer(daemon.address) as peer:
        status, got, _ = peer.call(HELLO, body)
        assert status == 0
        assert peer.call(PROOF, got[1:33])[0] == -EACCES
    with Peer(daemon.address) as peer:
        nonce = peer.call(HELLO, body)[1][1:33]
        as_server = hmac.new(TOKEN, b"leat server" + body + nonce, hashlib.sha256).digest()
        assert peer.call(PROOF, as_server)[0] == -EACCES


@pytest.mark.parametrize("knows", [False, True])
def test_a_node_that_does_not_know_the_token(host, knows):
    """It hears HELLO and a proof that is good on this connection alone, and then nothing: not what the node has, nor what it wants."""
    token = host.folder / "token"
    token.write_bytes(TOKEN + b"\n")
    token.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as node:
        node.settimeout(60)
        names = [f"127.0.0.1:{lib_host.free_port()}", "127.0.0.1:%d" % node.getsockname()[1]]
        host.daemon({"pool": {"size": "8MiB", "region_size": "64KiB"}, "net": {"listen": names[0], "token_file": token, "nodes": " ".join(names)}})
        with Peer.of(node.accept()[0]) as peer:
            kind, type, _, id, body, _ = peer.receive()
            assert type == HELLO and TOKEN not in body
            nonce, rest = os.urandom(32), text("a node") + bytes(28)
            peer.send(frame(HELLO, bytes([VERSION]) + nonce + bytes(32) + rest, id=id, kind=REPLY))
            _, type, _, id, proof, _ = peer.receive()
            assert type == PROOF and proof == hmac.new(TOKEN, b"leat client" + body + nonce, hashlib.sha256).digest()
            mac = hmac.new(TOKEN, b"leat server" + body + nonce, hashlib.sha256).digest() if knows else proof
            peer.send(frame(PROOF, bytes([VERSION]) + bytes(32) + mac + rest, id=id, kind=REPLY))
            try:
                assert peer.receive()[1] not in (HELLO, PROOF) and knows
            except Gone:
                assert not knows


def test_nothing_is_served_between_hello_and_proof(daemon):
    with Peer(daemon.address) as peer:
        assert peer.call(HELLO, tcp_hello(daemon))[0] == 0
        try:
            status, _, payload = peer.call(READ, reading((0, 8, 0)), id=2)
            assert status < 0 and not payload
        except Gone:
            pass


def test_a_second_hello_starts_nothing_anew(daemon):
    with Peer(daemon.address) as peer:
        assert peer.call(HELLO, tcp_hello(daemon))[0] == 0
        peer.send(frame(HELLO, tcp_hello(daemon), id=2))
        assert peer.closed()


def test_random_bytes_behind_a_good_start(daemon):
    """Frames with the right head and bodies of noise, a thousand of them."""
    rng = random.Random(3)
    types = [OPEN, CLOSE, REGIONS, WAIT, FETCH, RELEASE, APPEND, CREATE, BROKER, QUERY, DROP, VERIFY, CANCEL, HELLO, PROOF, READ, WRITE]
    for _ in range(300):
        with Peer(daemon.socket).greet() as peer:
            try:
                for k in range(4):
                    body = rng.randbytes(rng.choice([0, 1, 8, 12, 16, 20, 28, 64, 300]))
                    peer.send(frame(rng.choice(types), body, id=k, body_bytes=rng.choice([None, None, None, len(body) + 8])))
            except Gone:
                pass


# --- more than one's share -------------------------------------------------------------------------------------

LIMITS = {"user_connections": 6, "user_data_connections": 3, "user_sets": 3, "user_creates": 1, "handshakes": 8,
          "user_buffers": "16MiB"}
EBUSY = 16


@pytest.fixture
def strict(host):
    """A daemon with small limits."""
    token = host.folder / "token"
    token.write_bytes(TOKEN + b"\n")
    token.chmod(0o600)
    address = f"127.0.0.1:{lib_host.free_port()}"
    made = host.daemon({"pool": {"size": "16MiB", "region_size": "64KiB"}, "limits": LIMITS,
                        "net": {"listen": address, "token_file": token}})
    made.address = address
    made.path = lib_data.make_npy(host.data / "a.npy", 64)
    yield made
    made.serves(made.path)


def busy(status, message, *said):
    assert status == -EBUSY, (status, message)
    for word in said:
        assert word in message, message


@pytest.mark.long
def test_connections_of_one_user(strict):
    peers = [Peer(strict.socket).greet() for _ in range(6)]
    for _ in range(3):
        with Peer(strict.socket) as peer:
            status, message, _ = peer.call(HELLO, hello())
            busy(status, message, b"6", b"user_connections", b"[limits]")
            with pytest.raises(Gone):  # to ask again keeps it no longer
                peer.call(HELLO, hello())
    # Refused peers that stay silent are few, and are disconnected.
    silent = [Peer(strict.socket) for _ in range(200)]
    lib_host.wait_for(lambda: lib_host.footprint(strict.pid)["fds"] < 150, message="they pile up")
    peers.pop().close()
    lib_host.wait_for(lambda: serves(strict), message="a place that came free is not given")
    for peer in peers + silent:
        peer.close()


def test_descriptors_that_are_slow_to_close_past_a_limit(strict):
    peers = [Peer(strict.socket).greet() for _ in range(6)]
    silent = [Peer(strict.socket) for _ in range(64)]  # as many as may wait for the reason: the next is disconnected
    with SlowToClose(strict) as slow, Peer(strict.socket) as peer:
        peer.send(frame(HELLO, hello(), nfds=1), [slow.socket.fileno()])
        slow.passed()
        assert peer.closed()
        assert peers[0].call(QUERY, struct.pack("<I", 3) + text(""))[0] == 0
    for peer in peers + silent:
        peer.close()
    lib_host.wait_for(lambda: serves(strict))


def test_this_hosts_connections_take_none_of_other_nodes(host):
    token = host.folder / "token"
    token.write_bytes(TOKEN + b"\n")
    token.chmod(0o600)
    address = f"127.0.0.1:{lib_host.free_port()}"
    daemon = host.daemon({"limits": {"connections": 6, "user_connections": 6}, "net": {"listen": address, "token_file": token}})
    peers = [Peer(daemon.socket).greet() for _ in range(6)]
    with Peer(daemon.socket) as peer:
        busy(*peer.call(HELLO, hello())[:2], b"6 connections", b"[limits]")
    with Peer(address) as peer:
        assert prove(peer, TOKEN, hello(role=DATA, nonce=os.urandom(32)))[0] == -ESTALE, "the token was looked at"
    for peer in peers:
        peer.close()


def test_strangers_do_not_use_up_the_log(strict):
    """What TCP's strangers cause is logged apart from what this host's clients do."""
    for _ in range(30):
        with Peer(strict.address) as peer:
            peer.send(bytes(64))
            assert peer.closed()
    with Peer(strict.socket) as peer:
        peer.send(bytes(64))
        assert peer.closed()
    assert f"(pid {os.getpid()}, uid {os.getuid()}) that broke the protocol" in strict.text()


def serves(daemon):
    try:
        daemon.serves(daemon.path)
    except (AssertionError, Gone):
        return False
    return True


def test_data_connections_of_one_user(strict):
    with Peer(strict.socket).greet() as peer:
        handle, uuid, generation = peer.open(str(strict.path))
        before = lib_host.footprint(strict.pid)["fds"]
        for _ in range(3):
            assert peer.call(BROKER, struct.pack("<QI", handle, 0))[0] == 0
        for _ in range(50):
            status, message, _ = peer.call(BROKER, struct.pack("<QI", handle, 0))
            busy(status, message, b"3", b"user_data_connections")
        with Peer(strict.socket) as other:  # the other way to one
            status, message, _ = other.call(HELLO, hello(role=DATA, set_uuid=uuid, generation=generation))
            busy(status, message, b"user_data_connections")
        with Peer(strict.address) as other:  # and over TCP, in another's name: that one's own share
            assert prove(other, TOKEN, hello(role=DATA, uid=12345, set_uuid=uuid, generation=generation,
                                             nonce=os.urandom(32)))[0] == -EACCES, "not their set"
            assert lib_host.footprint(strict.pid)["fds"] <= before + 3 + 4
        for fd in peer.fds:
            os.close(fd)
        peer.fds = []
        lib_host.wait_for(lambda: peer.call(BROKER, struct.pack("<QI", handle, 0))[0] == 0)


def test_sets_of_one_user(strict, host):
    paths = [lib_data.make_npy(host.data / f"s{k}.npy", 8) for k in range(4)]
    with Peer(strict.socket).greet() as peer:
        for k in range(3):
            peer.open(str(paths[k]), name=f"n{k}")
        status, message, _ = peer.call(OPEN, opening(str(paths[3])))
        busy(status, message, b"3 working sets in use", b"user_sets")
        assert peer.call(DROP, struct.pack("<IQ", 1, 0) + text("n0"))[0] == 0
        peer.open(str(paths[3]))


def test_sources_that_were_closed_do_not_count(strict, host, leat):
    """The limit is one of open sources: the closed ones, which the pool keeps for a second opening, give way."""
    open_sets = [leat.open(lib_data.make_npy(host.data / f"open{k}.npy", 8), socket=strict.socket) for k in range(2)]
    for k in range(9):
        leat.open(lib_data.make_npy(host.data / f"t{k}.npy", 8), socket=strict.socket).close()
    assert len(strict.sets()) <= 3
    with leat.open(host.data / "t0.npy", socket=strict.socket), pytest.raises(leat.Busy, match="3 working sets in use.*close"):
        leat.open(host.data / "t1.npy", socket=strict.socket)
    assert all(ws[7].shape == ws[0].shape for ws in open_sets), "those that are open stay"


def test_sets_that_are_being_pushed(strict, leat):
    one = leat.create("one", {"n": ("i4", ())}, 4, socket=strict.socket)
    with pytest.raises(leat.Busy, match="user_creates"):
        leat.create("two", {"n": ("i4", ())}, 4, socket=strict.socket)
    one.push(0, {"n": [1, 2, 3, 4]})
    leat.create("two", {"n": ("i4", ())}, 4, socket=strict.socket).close()


def test_sets_to_be_pushed_that_are_asked_for_all_at_once(strict, leat):
    """Each is looked at before the others are there: what one may have is looked at again when it comes to be."""
    one = leat.create("one", {"n": ("i4", ())}, 4, socket=strict.socket)
    one.push(0, {"n": [1, 2, 3, 4]})
    with Peer(strict.socket).greet() as peer:
        peer.open("leat://one")
        index = peer.fds[0]
        for k in range(8):
            peer.send(frame(CREATE, struct.pack("<I", 0) + text(f"two{k}"), id=100 + k, nfds=1), [index])
        answers = [peer.receive() for _ in range(8)]
        assert sorted(status for _, _, status, _, _, _ in answers) == [-EBUSY] * 7 + [0]
        for k in range(8):
            peer.call(DROP, struct.pack("<IQ", 1, 0) + text(f"two{k}"))
    one.close()


def test_half_messages_of_one_user(strict):
    """Each is smaller than one may be; together they are not, and those that grow then are closed."""
    peers = [Peer(strict.socket).greet() for _ in range(5)]
    for peer in peers:
        try:
            peer.send(frame(QUERY, bytes(6 << 20), body_bytes=12 << 20))
        except Gone:
            assert peer is not peers[0]
    lib_host.wait_for(lambda: "user_buffers in [limits]" in strict.text(), message="nothing is closed")
    peers[-1].socket.settimeout(20)
    assert peers[-1].closed()
    peers[0].socket.settimeout(0.2)
    with pytest.raises(TimeoutError):  # the rest of its message is waited for
        peers[0].receive()
    said = [line for line in strict.text().splitlines() if "user_buffers in [limits]" in line]
    assert len(said) == 1 and "may take 16.0 MiB here" in said[0], said
    for peer in peers:
        peer.socket.close()


def test_half_handshakes_push_each_other_out(strict):
    """However many half-open connections there are, a whole handshake goes through and the daemon keeps a few."""
    before = lib_host.footprint(strict.pid)["fds"]
    half = [Peer(strict.address) for _ in range(40)]
    lib_host.wait_for(lambda: lib_host.footprint(strict.pid)["fds"] <= before + 8 + 2)
    with Peer(strict.address) as peer:
        status, _, _ = prove(peer, TOKEN, hello(role=DATA, nonce=os.urandom(32)))
        assert status == -ESTALE, "the set is not there, but the token was looked at"
    assert strict.metrics()["leat_rejected_total"] >= 32
    for peer in half:
        peer.close()


def test_all_of_a_cluster_connect_at_once(strict):
    """Whole handshakes do not push each other out, however many are under way: a connection without a place waits for one."""
    bodies = [hello(role=DATA, nonce=os.urandom(32)) for _ in range(60)]
    peers = [Peer(strict.address) for _ in bodies]
    for peer, body in zip(peers, bodies):
        peer.send(frame(HELLO, body))
    for peer, body in zip(peers, bodies):
        welcome = peer.receive()[4]
        mac = hmac.new(TOKEN, b"leat client" + body + welcome[1:33], hashlib.sha256).digest()
        assert peer.call(PROOF, mac)[0] == -ESTALE
        peer.close()

