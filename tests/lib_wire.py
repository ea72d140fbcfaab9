# SPDX-License-Identifier: Apache-2.0
"""The protocol of src/wire/leat/proto.h by hand, for peers that do not keep to it."""

import array
import hashlib
import hmac
import os
import socket
import struct

MAGIC, VERSION, NEWEST = 0x5441454C, 2, 3  # VERSION: as a program speaks that knows no other
REQUEST, REPLY, EVENT = 1, 2, 3
CONTROL, DATA, PEER = 1, 2, 3
HELLO, PROOF = 1, 2
OPEN, CLOSE, REGIONS, WAIT, FETCH, RELEASE, APPEND, CREATE, BROKER, QUERY, DROP, STOP, VERIFY, CANCEL = range(16, 30)
READ, WRITE = 48, 49
QUERY_LIST, QUERY_STAT, QUERY_STATUS, QUERY_METRICS = range(1, 5)
NODE, INSTALL, READY, FORGET, DESCRIBE, RESYNC, ACCESS = 64, 66, 67, 68, 69, 70, 72
FRAME = struct.Struct("<IBBHiIQIIQ24x")


def frame(type, body=b"", *, id=1, kind=REQUEST, status=0, nfds=0, payload=0, version=VERSION, magic=MAGIC, body_bytes=None):
    return FRAME.pack(magic, version, kind, type, status, 0, id, len(body) if body_bytes is None else body_bytes, nfds,
                      payload) + body


def text(s):
    raw = s.encode() if isinstance(s, str) else s
    return struct.pack("<I", len(raw)) + raw


def hello(role=CONTROL, low=VERSION, high=VERSION, uid=0, gid=0, set_uuid=bytes(16), generation=0, nonce=bytes(32)):
    return (struct.pack("<BBBI", low, high, role, os.getpid()) + text("a test") + nonce + struct.pack("<II", uid, gid)
            + set_uuid + struct.pack("<I", generation))


def opening(uri, name="", flags=0, pool=0):
    return struct.pack("<IQ", flags, pool) + text(name) + text(uri)


class Gone(Exception):
    """The far side closed the connection."""


class Peer:
    """A connection that says what it likes."""

    def __init__(self, address, timeout=20):
        if ":" in str(address) and not str(address).startswith("/"):
            where, port = str(address).rsplit(":", 1)
            self.socket = socket.create_connection((where, int(port)), timeout)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout)
            self.socket.connect(str(address))
        self.fds = []

    @classmethod
    def of(cls, accepted):
        """The other end of a connection that was made to us."""
        peer = cls.__new__(cls)
        peer.socket, peer.fds = accepted, []
        peer.socket.settimeout(20)
        return peer

    def send(self, raw, fds=()):
        try:
            if fds:
                self.socket.sendmsg([raw], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
            else:
                self.socket.sendall(raw)
        except (BrokenPipeError, ConnectionResetError):
            raise Gone from None

    def _receive(self, n):
        got = b""
        while len(got) < n:
            try:
                part, ancillary, _, _ = self.socket.recvmsg(n - len(got), socket.CMSG_SPACE(64 * 4))
            except (ConnectionResetError, BrokenPipeError):
                raise Gone from None
            for level, kind, raw in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    self.fds += list(array.array("i", raw[: len(raw) // 4 * 4]))
            if not part:
                raise Gone
            got += part
        return got

    def receive(self):
        """(kind, type, status, id, body, payload) of the next frame."""
        magic, version, kind, type, status, _, id, body, nfds, payload = FRAME.unpack(self._receive(FRAME.size))
        assert magic == MAGIC and version == VERSION
        return kind, type, status, id, self._receive(body), self._receive(payload)

    def call(self, type, body=b"", *, fds=(), **more):
        """(status, body, payload) of the reply; events are passed over."""
        self.send(frame(type, body, nfds=len(fds), **more), fds)
        while True:
            kind, _, status, _, got, payload = self.receive()
            if kind == REPLY:
                return status, got, payload

    def greet(self, **how):
        status, body, _ = self.call(HELLO, hello(**how))
        assert status == 0, body
        return self

    def open(self, uri, **how):
        """(handle, uuid, generation)"""
        status, body, _ = self.call(OPEN, opening(uri, **how))
        assert status == 0, body
        handle, uuid, generation = struct.unpack_from("<Q16sI", body)
        return handle, uuid, generation

    def closed(self):
        """Whether the far side hangs up, and says nothing but errors before."""
        try:
            while True:
                _, _, status, _, _, _ = self.receive()
                if status >= 0:
                    return False
        except Gone:
            return True
        except TimeoutError:
            return False

    def close(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def prove(peer, token, body, *, proof=None):
    """The client's half of the mutual proof over TCP. (status of PROOF's reply, the server's mac was right, our proof)"""
    status, got, _ = peer.call(HELLO, body)
    assert status == 0, got
    nonce = got[1:33]
    made = proof or hmac.new(token, b"leat client" + body + nonce, hashlib.sha256).digest()
    status, got, _ = peer.call(PROOF, made)
    right = hmac.compare_digest(got[33:65], hmac.new(token, b"leat server" + body + nonce, hashlib.sha256).digest())
    return status, right, made
