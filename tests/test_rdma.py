# SPDX-License-Identifier: Apache-2.0
"""Reads by RDMA, with UCX's own TCP in the place of verbs: the same code but for the device. On real verbs: tests/rdma.

UCX 1.13 emulates gets over TCP in the server, and aborts it when it cannot answer one any more: no reader goes away amid gets here.
"""

import ctypes.util
import os
import signal
import time

import lib_data
import lib_host
import lib_net
import pytest

#: In daemons and clients alike.
BY_TCP = {"LEAT_RDMA_TLS": "tcp", "LEAT_RAILS": "lo"}

if not ctypes.util.find_library("ucp"):
    pytest.skip("UCX (libucx0) is not installed", allow_module_level=True)


@pytest.fixture
def fabric(monkeypatch):
    for name, value in BY_TCP.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def array(host):
    return lib_data.make_npy(host.data / "a.npy", 1024)


def daemon_of(host, **net):
    return host.daemon({"pool": {"size": "64MiB", "region_size": "1MiB"}, "net": net} if net else
                       {"pool": {"size": "64MiB", "region_size": "1MiB"}}, options=["--idle-timeout", "10m"])


def read_all(leat, ws, transport, batch=64):
    seen = []
    with leat.batches(ws, batch, seed=3, drop_last=False, transport=transport, timeout=lib_host.PATIENCE) as batches:
        for b in batches:
            lib_data.check_rows(b.data, b.ids)
            seen += b.ids.tolist()
            b.release()
    assert sorted(seen) == list(range(len(ws)))


def test_an_epoch(fabric, leat, host, array):
    daemon = daemon_of(host)
    ws = leat.open(array, socket=daemon.socket)
    sent, read = daemon.metrics()["leat_data_sent_bytes_total"], leat.counters()["rails"].get("lo", {"bytes": 0})
    read_all(leat, ws, "rdma")
    assert ws.stat().transport == "rdma"
    # Not a byte of a sample went over the data connection: keys and addresses did.
    assert daemon.metrics()["leat_data_sent_bytes_total"] - sent < 64 * 1024
    read_all(leat, ws, "rdma", batch=7)
    read_all(leat, ws, "rdma-write")
    read_all(leat, ws, "rdma-write", batch=7)
    assert ws.stat().transport == "rdma-write"
    assert leat.counters()["rails"]["lo"]["bytes"] - read["bytes"] == 4 * len(ws) * 8192
    stat = ws.stat()
    each = 2 * len(ws) * 8192
    assert stat.delivered == {"shm": 0, "tcp": 0, "rdma_read": each, "rdma_write": each, "streamed": 0, "bounced": 0}
    assert [(rail.name, rail.transport, rail.state, rail.bytes) for rail in stat.rails] == [("lo", "rdma", "closed", 2 * each)]
    rdma = daemon.status()["rdma"]
    assert rdma["registered_bytes"] >= len(ws) * 8192 and rdma["rails"][0]["name"] == "lo"
    assert daemon.metrics()['leat_rdma_written_bytes_total{rail="lo"}'] == 2 * len(ws) * 8192
    assert daemon.metrics()["leat_data_sent_bytes_total"] - sent < 64 * 1024
    read_all(leat, ws, "tcp")


def test_what_is_missing_is_named(fabric, leat, host, array, monkeypatch):
    daemon = daemon_of(host)
    code = ("ws = leat.open(argv[0], socket=argv[1])\n"
            "try: leat.batches(ws, 8, transport='rdma')\nexcept leat.Unsupported as e: print(e)\n")

    def said(**env):
        return host.python(code, array, daemon.socket, env=env).finish()

    assert "libnowhere.so is not there" in said(LEAT_LIBUCP="libnowhere.so")
    assert "libc.so.6 has no ucp_" in said(LEAT_LIBUCP="libc.so.6")
    assert "no IP address" in said(LEAT_RAILS="nosuch0")
    if not os.path.exists("/sys/class/infiniband"):
        assert "no RDMA device with an active port" in said(LEAT_RDMA_TLS="", LEAT_RAILS="")
    with pytest.raises(leat.Invalid, match="'smoke'"):
        leat.batches(leat.open(array, socket=daemon.socket), 8, transport="smoke")


def test_the_far_end_has_none(fabric, leat, host, array):
    daemon = daemon_of(host, rdma_users="nobody")
    ws = leat.open(array, socket=daemon.socket)
    with leat.batches(ws, 8, transport="rdma") as batches, pytest.raises(leat.Unsupported, match="rdma_users = nobody"):
        next(batches)
    read_all(leat, ws, "tcp")


def test_nobody_asked(leat, host, array):
    """UCX is not touched where no reader wants it."""
    daemon = daemon_of(host)
    read_all(leat, leat.open(array, socket=daemon.socket), "tcp")
    assert daemon.status()["rdma"] is None
    assert b"libucp" not in lib_host.proc_text(daemon.pid, "maps")


def test_frozen_then_thawed(fabric, leat, host, array):
    """A frozen server writes nothing: a deadline ends the read, and a later one is good."""
    daemon = daemon_of(host)
    ws = leat.open(array, socket=daemon.socket)
    ws.wait()
    with leat.batches(ws, 64, transport="rdma-write", drop_last=False, timeout=lib_host.PATIENCE) as batches:
        next(batches).release()
        lib_host.freeze(daemon.pid)
        try:
            with leat.batches(ws, 64, seed=1, transport="rdma-write", timeout=1) as frozen, pytest.raises(leat.TimedOut):
                for b in frozen:
                    b.release()
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
    read_all(leat, ws, "rdma-write")


READER = lib_data.CLIENT + """
ws = leat.open(argv[0], socket=argv[1])
ws.wait()
for epoch in range(10**6):
    for b in leat.batches(ws, 16, seed=epoch, transport="rdma", timeout=5):
        np.testing.assert_array_equal(b.data, rows(b.ids))
        b.release()
    if epoch == 0: say("reading")
"""


@pytest.mark.parametrize("transport", ["rdma", "rdma-write"])
def test_a_killed_server(fabric, host, array, transport):
    daemon = daemon_of(host)
    client = host.python(READER.replace('"rdma"', f'"{transport}"'), array, daemon.socket)
    assert client.hear() == "reading"
    daemon.kill()
    began = time.monotonic()
    client.process.wait(lib_host.PATIENCE)
    error = client.process.stderr.read()
    assert client.process.returncode == 1 and ("leat.PeerGone" in error or "leat.TimedOut" in error), error
    assert time.monotonic() - began < 15


def test_a_killed_client(fabric, leat, host, array):
    """Between two reads; tests/rdma kills in their midst."""
    daemon = daemon_of(host)
    clients = [host.python(READER.replace('say("reading")', 'say("idle"), hear()'), array, daemon.socket) for _ in range(2)]
    for client in clients:
        assert client.hear() == "idle"
    clients[0].kill()
    read_all(leat, leat.open(array, socket=daemon.socket), "rdma")
    clients[1].kill()
    lib_host.wait_for(lambda: daemon.metrics()["leat_data_connections"] == 0)


def test_a_fork(fabric, host, array):
    """A child does not use what UCX has of its parent, nor does its end."""
    daemon = daemon_of(host)
    client = host.python(lib_data.CLIENT + """
def read(ws, transport):
    for b in leat.batches(ws, 64, drop_last=False, transport=transport, timeout=20):
        np.testing.assert_array_equal(b.data, rows(b.ids))
        b.release()
ws = leat.open(argv[0], socket=argv[1])
batches = leat.batches(ws, 64, transport="rdma", timeout=20)
next(batches).release()
if os.fork() == 0:
    mine = leat.open(argv[0], socket=argv[1])
    read(mine, "tcp")
    try: read(mine, "rdma")
    except leat.Unsupported as e: say(e)
    sys.exit(7)
say(os.waitstatus_to_exitcode(os.wait()[1]))
for b in batches: b.release()
read(ws, "rdma")
say("good")
""", array, daemon.socket)
    said = client.finish().splitlines()
    assert "before this process was forked off" in said[0] and said[1:] == ["7", "good"], said


def test_dropped_by_force(fabric, leat, host, array):
    daemon = daemon_of(host)
    ws = leat.preload(array, name="gone", socket=daemon.socket, timeout=lib_host.PATIENCE)
    read_all(leat, ws, "rdma-write")
    with leat.batches(ws, 16, transport="rdma-write", timeout=5) as batches:
        next(batches).release()
        leat.drop("gone", force=True, socket=daemon.socket)
        with pytest.raises(leat.Stale):
            for b in batches:
                b.release()
    lib_host.wait_for(lambda: lib_host.only_tables(daemon))  # which the handle that is still open keeps
    lib_host.wait_for(lambda: daemon.status()["rdma"]["registered_bytes"] == 0)


@pytest.fixture
def network():
    made = lib_net.Network(2)
    yield made
    made.close()


def test_two_hosts(network, cluster, host, monkeypatch):
    """Not required, it is taken where both ends have it."""
    monkeypatch.setenv("LEAT_RDMA_TLS", "tcp")
    monkeypatch.setenv("LEAT_RAILS", "eth0")
    a, _ = cluster.start_all()
    path = lib_data.make_npy(host.data / "a.npy", 3072)
    client = host.python(lib_data.CLIENT + """
ws = leat.preload(argv[0], name="spread", socket=argv[1], timeout=30)
for transport in None, "shm+rdma", "shm+tcp":
    for b in leat.batches(ws, 64, drop_last=False, transport=transport, timeout=20):
        np.testing.assert_array_equal(b.data, rows(b.ids))
        b.release()
    say(ws.stat().transport)
""", path, a.socket, prefix=network.inside(0))
    assert client.finish().split() == ["shm+rdma", "shm+rdma", "shm+rdma"]
