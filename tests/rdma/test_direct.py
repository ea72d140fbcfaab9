# SPDX-License-Identifier: Apache-2.0
"""Batches straight into the memory of a GPU, by verbs. The GPU is tests/fakecuda's: its memory is the host's by another name, so what
this shows is which NIC writes where and when, not that a NIC reaches a real one. Readers are processes of their own, and the rail is lost
first, as in test_lost_rail.py."""

import lib_data
import lib_direct
import lib_host
import lib_net
import lib_rails
import pytest

SAMPLES, SAMPLE_BYTES = 1024, 8192


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    for name, value in lib_direct.ON_A_GPU.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def rail():
    """Number 1, which is made again when all processes are gone: so this comes before every other fixture."""
    yield 1
    lib_rails.restore(1)


@pytest.fixture
def daemon(host, leat):
    made = host.daemon({"pool": {"size": "64MiB", "region_size": "4MiB"}}, options=["--idle-timeout", "10m"])
    leat.preload(lib_data.make_npy(host.data / "a.npy", SAMPLES), name="set", socket=made.socket, timeout=lib_host.PATIENCE).close()
    return made


A_RAIL_LOST = lib_direct.READER + """
def tell(nth):
    if nth == 16: say("reading")
came = read(ws, 8, tell)
assert sorted(rail.state for rail in ws.stat().rails) == ["closed", "closed"] and came["direct_bytes"] >= NBYTES, came
say("all")
"""


def test_a_rail_is_lost(rail, host, daemon):
    reader = host.python(A_RAIL_LOST, daemon.socket, "rdma")
    assert reader.hear(60) == "reading"
    lib_rails.lose(rail)
    assert reader.finish(seconds=120) == "all"


def test_an_epoch(host, daemon):
    def epochs():
        before = lib_rails.sent()
        assert host.python(lib_direct.AN_EPOCH, daemon.socket, "rdma").finish(seconds=120) == "all"
        return lib_rails.since(before)

    lib_rails.even(epochs, 2 * SAMPLES * SAMPLE_BYTES)


def test_a_damaged_sample_is_found_on_the_device(host, daemon):
    client = host.python(lib_direct.DAMAGED, daemon.socket, "rdma")
    assert client.hear(60) == "whole"
    lib_direct.damage(daemon, 700)
    client.tell()
    said = client.finish()
    assert said.startswith("corrupt") and "sample 700" in said and "checksum" in said, said


def test_memory_that_no_nic_can_pin(host, daemon):
    """The kernel is asked, and refuses."""
    said = host.python(lib_direct.NOT_TO_BE_HAD, daemon.socket, "rdma", env={"FAKECUDA_NIC": ""}).finish(seconds=120).splitlines()
    assert "cannot register memory of GPU 1" in said[0] and said[-1] == "bounced", said


def test_a_server_killed_in_mid_batch(host, daemon):
    reader = host.python(lib_direct.READER + """
def tell(nth):
    if nth == 4: say("reading"), hear()
try: read(ws, 32, tell)
except (leat.PeerGone, leat.TimedOut) as e: say("gone")
""", daemon.socket, "rdma")
    assert reader.hear(60) == "reading"
    daemon.kill()
    reader.tell()
    assert reader.finish(seconds=120) == "gone"


@pytest.fixture
def nodes(host, leat):
    """A set of 12 MiB over both."""
    made = lib_net.Cluster(host, lib_net.OneMachine(), pool="8MiB", region="1MiB")
    made.start_all()
    path = lib_data.make_npy(host.data / "spread.npy", 1536)
    leat.preload(path, name="set", socket=made.daemons[0].socket, timeout=lib_host.PATIENCE).close()
    return made


def test_a_batch_of_both_kinds(host, nodes):
    assert host.python(lib_direct.MIXED, nodes.daemons[0].socket, "shm+rdma").finish(seconds=120) == "all"


def test_another_node_is_killed_while_it_is_read(host, nodes):
    """What it held comes from the source, through our own daemon and the pinned half: no sample is missing or wrong."""
    reader = host.python(lib_direct.READER + """
def tell(nth):
    if nth == 8: say("reading"), hear()
came = read(ws, 32, tell)
assert 0 < came["direct_bytes"] < NBYTES // 2 and ws.stat().delivered["streamed"] > 0, came
say("all")
""", nodes.daemons[0].socket, "shm+rdma")
    assert reader.hear(60) == "reading"
    nodes.daemons[1].kill()
    reader.tell()
    assert reader.finish(seconds=120) == "all"
