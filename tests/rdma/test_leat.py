# SPDX-License-Identifier: Apache-2.0
"""Batches by RDMA on real verbs: every byte compared, over both rails, while servers stop and die."""

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


#: The reader's NIC reads; or the server's writes, after a request.
both_ways = pytest.mark.parametrize("transport", ["rdma-read", "rdma-write"])


@pytest.fixture
def array(host):
    return lib_data.make_npy(host.data / "a.npy", SAMPLES)


@pytest.fixture
def daemon(host):
    return host.daemon({"pool": {"size": "64MiB", "region_size": REGION}}, options=["--idle-timeout", "10m"])


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


def copied(leat, daemon):
    """By the reader, and by the daemon, whose NIC writes or is read."""
    by_daemon = [n for name, n in daemon.metrics().items() if name.startswith("leat_copied_bytes_total{")]
    assert by_daemon
    return sum(leat.counters()["copied_bytes"].values()), sum(by_daemon)


@both_ways
def test_an_epoch_over_both_rails_without_a_copy(leat, daemon, ws, transport):
    ws.wait()
    copies, by_tcp, nbytes = copied(leat, daemon), daemon.metrics()["leat_data_sent_bytes_total"], SAMPLES * SAMPLE_BYTES

    def epoch():
        before, both_up = ws.stat(), []

        def note(nth):
            if not both_up and [rail.state for rail in ws.stat().rails] == ["up", "up"]:
                both_up.append(lib_rails.sent())

        with leat.batches(ws, 32, seed=1, drop_last=False, transport=transport, timeout=DEADLINE) as batches:
            assert sorted(read(batches, [], note)) == list(range(SAMPLES))
        stat = ws.stat()
        assert stat.transport.startswith("rdma")
        came = {name: n - before.delivered[name] for name, n in stat.delivered.items()}
        assert came == dict.fromkeys(came, 0) | {transport.replace("-", "_"): nbytes}
        assert len(stat.rails) == 2 and all(rail.state == "closed" for rail in stat.rails), stat.rails
        assert sum(rail.bytes for rail in stat.rails) - sum(rail.bytes for rail in before.rails) == nbytes
        return lib_rails.since(both_up[0]) if both_up else [0, 0]

    lib_rails.even(epoch, nbytes / 2)
    assert all(rail.bytes for rail in ws.stat().rails)
    assert copied(leat, daemon) == copies
    assert daemon.metrics()["leat_data_sent_bytes_total"] - by_tcp < 256 * 1024, "samples went over the data connection"


def test_reads_go_on_while_the_daemon_is_stopped(leat, daemon, ws):
    with leat.batches(ws, 32, seed=2, drop_last=False, transport="rdma", timeout=DEADLINE) as batches:
        def stop(nth):
            if nth == 8:  # by then every region's key is here
                lib_host.freeze(daemon.pid)

        try:
            assert sorted(read(batches, [], stop)) == list(range(SAMPLES))
        finally:
            os.kill(daemon.pid, signal.SIGCONT)


def test_a_stopped_daemon_writes_nothing_and_goes_on_when_it_runs(leat, daemon, ws):
    with leat.batches(ws, 32, seed=2, transport="rdma-write", timeout=8) as batches:
        next(batches).release()
        lib_host.freeze(daemon.pid)
        try:
            with pytest.raises(leat.TimedOut):
                read(batches, [])
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
    with leat.batches(ws, 32, seed=2, drop_last=False, transport="rdma-write", timeout=DEADLINE) as batches:
        assert sorted(read(batches, [])) == list(range(SAMPLES))


@both_ways
def test_a_server_killed_in_mid_batch(leat, daemon, ws, transport):
    with leat.batches(ws, 32, seed=3, transport=transport, timeout=DEADLINE) as batches:
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
    for nth, b in enumerate(leat.batches(ws, 16, seed=epoch, transport=argv[2], timeout=20)):
        np.testing.assert_array_equal(b.data, rows(b.ids))
        b.release()
        if epoch == 0 and nth == 3: say("reading")
"""


@both_ways
def test_a_client_killed_in_mid_batch_harms_nobody(leat, host, daemon, array, ws, transport):
    client = host.python(READER, array, daemon.socket, transport)
    assert client.hear(60) == "reading"
    client.kill()
    with leat.batches(ws, 64, seed=5, drop_last=False, transport=transport, timeout=DEADLINE) as batches:
        assert sorted(read(batches, [])) == list(range(SAMPLES))
    assert daemon.running()
    lib_host.wait_for(lambda: not lib_rails.connections(daemon.pid), message=lambda: f"left: {lib_rails.connections(daemon.pid)}")


@pytest.fixture
def nodes(host):
    made = lib_net.Cluster(host, lib_net.OneMachine(), region="1MiB")
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
                lib_host.freeze(nodes.daemons[1].pid)

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


@pytest.mark.parametrize("delay", [0.02, 0.15, 0.4])
def test_another_node_dies_at_any_moment(leat, nodes, spread, delay):
    """While connections are made, keys are asked for, memory is registered, reads are under way."""
    timer = threading.Timer(delay, nodes.daemons[1].kill)
    timer.start()
    with leat.batches(spread, 32, seed=7, drop_last=False, transport="shm+rdma", timeout=60) as batches:
        assert sorted(read(batches, [])) == list(range(3072))
    timer.join()


@both_ways
def test_dropped_by_force_while_it_is_read(leat, daemon, ws, transport):
    """Its memory is taken from under the NIC."""
    with leat.batches(ws, 16, seed=6, transport=transport, timeout=DEADLINE) as batches:
        def drop(nth):
            if nth == 8:
                leat.drop("set", force=True, socket=daemon.socket)

        with pytest.raises(leat.Stale):
            read(batches, [], drop)
    lib_host.wait_for(lambda: daemon.status()["pool"]["regions"] == 0)
    lib_host.wait_for(lambda: not lib_rails.connections(daemon.pid))


@both_ways
def test_iterators_come_and_go(leat, daemon, ws, transport):
    for seed in range(6):
        with leat.batches(ws, 16, seed=seed, transport=transport, timeout=DEADLINE) as batches:
            for _ in range(seed):
                next(batches).release()
    lib_host.wait_for(lambda: not lib_rails.connections(daemon.pid) + lib_rails.connections(os.getpid()),
                      message=lambda: f"left: {lib_rails.connections(daemon.pid)}")
    fds = lib_host.footprint(daemon.pid)["fds"], lib_host.footprint(os.getpid())["fds"]
    for seed in range(3):
        with leat.batches(ws, 16, seed=seed, transport=transport, timeout=DEADLINE) as batches:
            next(batches).release()
    lib_host.wait_for(lambda: (lib_host.footprint(daemon.pid)["fds"], lib_host.footprint(os.getpid())["fds"]) <= fds)
