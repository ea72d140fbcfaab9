# SPDX-License-Identifier: Apache-2.0
"""Batches by RDMA on real verbs: every byte compared, over both rails, while servers stop and die and rails go."""

import os
import signal
import threading
import time

import lib_data
import lib_host
import lib_net
import lib_rails
import pytest

MIB = lib_data.MIB
#: Four regions of 4 MiB, each full of samples: after some batches of a shuffled epoch a reader knows every region's key.
SAMPLES, SAMPLE_BYTES, REGION = 2040, 8192, "4MiB"
#: Of a read whose server or rail is gone. The guest is slow, and what it runs on may be busy.
DEADLINE = 20


@pytest.fixture
def array(host):
    return lib_data.make_npy(host.data / "a.npy", SAMPLES)


@pytest.fixture
def daemon(host):
    return host.daemon({"pool": {"size": "64MiB", "region_size": REGION}}, options=["--linger", "10m"])


@pytest.fixture
def ws(leat, daemon, array):
    made = leat.preload(array, name="set", socket=daemon.socket, timeout=lib_host.PATIENCE)
    yield made
    made.close()


def read(batches, seen, while_reading=lambda nth: None):
    for nth, batch in enumerate(batches):
        while_reading(nth)
        lib_data.check_rows(batch.data, batch.ids)
        seen += batch.ids.tolist()
        batch.release()
    return seen


def sent():
    return [lib_rails.counters(rail)["sent_pkts"] for rail in lib_rails.RAILS]


def copied(leat):
    return sum(leat.counters()["copied_bytes"].values())


def test_an_epoch_over_both_rails_without_a_copy(leat, daemon, ws):
    copies, by_tcp, at = copied(leat), daemon.metrics()["leat_data_sent_bytes_total"], []

    def note(nth):
        if nth == 8:  # both rails are connected by then
            at.append(sent())

    with leat.batches(ws, 32, seed=1, drop_last=False, transport="rdma", timeout=DEADLINE) as batches:
        assert sorted(read(batches, [], note)) == list(range(SAMPLES))
    assert ws.stat().transport == "rdma"
    packets = [b - a for a, b in zip(at[0], sent())]
    print("packets by rail", packets)
    assert sum(packets) > SAMPLES * SAMPLE_BYTES // 4096 / 2
    assert min(packets) >= 0.4 * sum(packets), packets
    assert copied(leat) == copies
    assert daemon.metrics()["leat_data_sent_bytes_total"] - by_tcp < 256 * 1024, "samples went over the data connection"


def test_reads_go_on_while_the_daemon_is_stopped(leat, daemon, ws):
    with leat.batches(ws, 32, seed=2, drop_last=False, transport="rdma", timeout=DEADLINE) as batches:
        def stop(nth):
            if nth == 8:  # by then every region's key is here
                os.kill(daemon.pid, signal.SIGSTOP)

        try:
            assert sorted(read(batches, [], stop)) == list(range(SAMPLES))
        finally:
            os.kill(daemon.pid, signal.SIGCONT)


def test_a_server_killed_in_mid_batch(leat, daemon, ws):
    with leat.batches(ws, 32, seed=3, transport="rdma", timeout=DEADLINE) as batches:
        killed = []

        def kill(nth):
            if nth == 4:
                daemon.kill()
                killed.append(time.monotonic())

        with pytest.raises((leat.PeerGone, leat.TimedOut)) as error:
            read(batches, [], kill)
        print(error.value, time.monotonic() - killed[0])
        assert time.monotonic() - killed[0] < DEADLINE + 10


READER = lib_data.CLIENT + """
ws = leat.open(argv[0], socket=argv[1])
for epoch in range(10**6):
    for nth, b in enumerate(leat.batches(ws, 16, seed=epoch, transport="rdma", timeout=20)):
        np.testing.assert_array_equal(b.data, rows(b.ids))
        b.release()
        if epoch == 0 and nth == 3: say("reading")
"""


def test_a_client_killed_in_mid_batch_harms_nobody(leat, host, daemon, array, ws):
    client = host.python(READER, array, daemon.socket)
    assert client.hear(60) == "reading"
    client.kill()
    with leat.batches(ws, 64, seed=5, drop_last=False, transport="rdma", timeout=DEADLINE) as batches:
        assert sorted(read(batches, [])) == list(range(SAMPLES))
    assert daemon.running()
    lib_host.wait_for(lambda: not lib_rails.connections(daemon.pid), message=lambda: f"left: {lib_rails.connections(daemon.pid)}")


class OneMachine:
    """Two hosts as far as daemons can tell: rxe works in one network namespace only."""

    addresses = ["127.0.0.1", "127.0.0.2"]

    def inside(self, i):
        return []


@pytest.fixture
def nodes(host):
    made = lib_net.Cluster(host, OneMachine(), region="1MiB")
    made.start_all()
    return made


@pytest.fixture
def spread(leat, nodes, host):
    """A set of 24 MiB, more than one node's pool of 16 MiB, opened on the first."""
    path = lib_data.make_npy(host.data / "spread.npy", 3072)
    made = leat.preload(path, name="spread", socket=nodes.daemons[0].socket, timeout=lib_host.PATIENCE)
    assert {region["node"] for region in leat.stat("spread", socket=nodes.daemons[0].socket)["regions"]} == {0, 1}
    yield made
    made.close()


def test_another_node_is_read_by_rdma_unasked(leat, nodes, spread):
    sent_by_tcp = nodes.daemons[1].metrics()["leat_data_sent_bytes_total"]
    with leat.batches(spread, 64, seed=1, drop_last=False, timeout=DEADLINE) as batches:
        assert sorted(read(batches, [])) == list(range(3072))
    assert spread.stat().transport == "shm+rdma"
    wanted = range(0, 3072, 7)
    lib_data.check_rows(spread.read_batch(wanted).data, wanted)
    assert nodes.daemons[1].metrics()["leat_data_sent_bytes_total"] - sent_by_tcp < 256 * 1024


def test_another_node_is_stopped_while_it_is_read(leat, nodes, spread):
    with leat.batches(spread, 32, seed=2, drop_last=False, transport="shm+rdma", timeout=DEADLINE) as batches:
        def stop(nth):
            if nth == 16:
                os.kill(nodes.daemons[1].pid, signal.SIGSTOP)

        try:
            assert sorted(read(batches, [], stop)) == list(range(3072))
        finally:
            os.kill(nodes.daemons[1].pid, signal.SIGCONT)


def test_another_node_is_killed_while_it_is_read(leat, nodes, spread):
    """What it held comes from the source, through our own daemon: no sample is missing or wrong."""
    with leat.batches(spread, 32, seed=3, drop_last=False, transport="shm+rdma", timeout=60) as batches:
        def kill(nth):
            if nth == 16:
                nodes.daemons[1].kill()

        assert sorted(read(batches, [], kill)) == list(range(3072))


def test_a_rail_lost_in_mid_batch(leat, daemon, ws):
    """All goes on over the other one. This is the last of the tests: the rail cannot be made anew as long as this process lives, since
    RDMA_CM's library keeps the device open."""
    lost = []

    def lose_it():
        lib_rails.lose(1)
        lost.append(sent())

    with leat.batches(ws, 8, seed=4, drop_last=False, transport="rdma", timeout=DEADLINE) as batches:
        timer = threading.Timer(0.01, lose_it)

        def lose(nth):
            if nth == 16:
                timer.start()

        assert sorted(read(batches, [], lose)) == list(range(SAMPLES))
    timer.join()
    packets = [b - a for a, b in zip(lost[0], sent())]
    print("packets by rail afterwards", packets)
    assert packets[0] > SAMPLES * SAMPLE_BYTES // 4096 / 4, "it was lost too late to show anything"
    assert packets[1] < packets[0] / 10
