# SPDX-License-Identifier: Apache-2.0
"""Two hosts with two links between them: reads are striped over both, and continue over one of them."""


import json
import os
import signal
import subprocess

import lib_data
import lib_host
import lib_net
import pytest

MIB = lib_data.MIB
A, B = 0, 1
SAMPLES = 3072

#: Reads the remote part of a set in batches until it is stopped; says after how many batches, and what it is read by.
READER = lib_data.CLIENT + """
import select, sys, time
ws = leat.open(argv[0], socket=argv[1], timeout=float(argv[2]))
ring = ws._set
n = 0
say('ready')
def told():
    return select.select([sys.stdin], [], [], 0)[0]
while not told():
    ids = [(n * 977 + k * 13) % len(ws) for k in range(256)]
    assert (ws.read_batch(ids).data == rows(ids)).all()
    n += 1
    if n % 20 == 0:
        say((n, ws.stat().transport))
say(('end', n, ws.stat().transport))
"""


@pytest.fixture
def network():
    made = lib_net.Network(2, links=2)
    yield made
    made.close()


@pytest.fixture
def far(leat, pair, host):
    """A set that lies on both; its reader on host A."""
    array = lib_data.make_npy(host.data / "a.npy", SAMPLES)
    leat.preload(array, name="spread", socket=pair.daemons[A].socket, timeout=lib_host.PATIENCE).close()
    return "leat://spread"


def reader(host, pair, far, timeout=30):
    client = host.python(READER, far, pair.daemons[A].socket, timeout, prefix=pair.network.inside(A))
    assert client.hear() == "ready"
    return client


@pytest.mark.long
def test_each_link_carries_its_share(host, leat, pair, far):
    for k in range(2):
        pair.network.shape(A, k, "200mbit")
    before = pair.network.received(A)
    client = reader(host, pair, far)
    for _ in range(6):
        n, transport = eval(client.hear())
    assert transport == "shm+tcp x2"
    client.tell()
    came = [now - then for now, then in zip(pair.network.received(A), before)]
    # Equal links, so half each in the long run. A busy machine delays one of them for a while: a fifth is certain, and none is the fault.
    assert sum(came) > 20 * MIB and min(came) > 0.2 * sum(came), came


def until(client, what):
    """Listens to a reader until what(batches, transport) is true."""
    def heard():
        n, transport = eval(client.hear())
        return what(n, transport)
    lib_host.wait_for(heard, message="the reader never reported it")


def on(rails):
    return lambda n, transport: transport == ("shm+tcp" if rails == 1 else f"shm+tcp x{rails}")


def ended(client):
    client.tell()
    assert client.finish().splitlines()[-1].startswith("('end'")


def moves(network, *links):
    """Waits until these links carry payload."""
    before = network.received(A)
    lib_host.wait_for(lambda: all(network.received(A)[k] - before[k] > MIB for k in links),
                      message=lambda: f"{before} {network.received(A)}")


@pytest.mark.long
@pytest.mark.parametrize("how", ["down", "silent"])
def test_a_link_is_lost_in_mid_batch_and_comes_back(host, leat, pair, far, how):
    """Taken down, or silent: no process is notified, and only the lack of data shows it."""
    network = pair.network
    client = reader(host, pair, far)
    until(client, on(2))
    for link in (1, 0):  # the second time it is the one that the daemons talk over
        lost = (lambda gone: network.link(B, not gone, link)) if how == "down" else (lambda gone: network.silence(B, gone, link))
        lost(True)
        until(client, on(1))
        moves(network, 1 - link)
        lost(False)
        until(client, on(2))
        moves(network, 0, 1)
    ended(client)
    by_rail = [pair.daemons[B].metrics()[f'leat_rail_sent_bytes_total{{address="{address}:7700"}}'] for address in network.rails[B]]
    assert min(by_rail) > MIB
    rails = next(node for node in pair.states(A) if not node["self"])["rails"]
    assert [rail["state"] for rail in rails] == ["up", "up"] and [rail["address"] for rail in rails] == pair.nodes[B].split(",")


def test_how_it_was_delivered(host, leat, pair, far):
    """By mechanism and by rail: every byte of every read is counted once; a lost rail is reported as down."""
    network = pair.network
    with leat.open(far, socket=pair.daemons[A].socket, timeout=lib_host.PATIENCE) as ws:
        assert set(ws.stat().delivered.values()) == {0} and ws.stat().rails == ()
        reads = 0

        def read():
            nonlocal reads
            ws.read_batch(range(SAMPLES)).release()
            reads += 1
            return ws.stat()

        lib_host.wait_for(lambda: len([rail for rail in read().rails if rail.bytes > MIB and rail.rate]) == 2, message=lambda: f"{ws.stat()}")
        stat = ws.stat()
        payload = stat.payload_bytes * reads
        assert stat.delivered["shm"] + stat.delivered["tcp"] == payload and min(stat.delivered["shm"], stat.delivered["tcp"]) > payload / 5
        assert {**stat.delivered, "shm": 0, "tcp": 0} == dict.fromkeys(stat.delivered, 0)
        assert sum(rail.bytes for rail in stat.rails) == stat.delivered["tcp"]
        assert [(rail.node, rail.transport, rail.state) for rail in stat.rails] == [(pair.nodes[B], "tcp", "up")] * 2
        assert {rail.name for rail in stat.rails} == set(pair.nodes[B].split(","))
        network.link(B, False, 1)
        lib_host.wait_for(lambda: {rail.name: rail.state for rail in read().rails}
                          == dict(zip(pair.nodes[B].split(","), ["up", "down"])), message=lambda: f"{ws.stat()}")
        said = json.loads(subprocess.run([str(lib_host.LEAT), "--socket", pair.daemons[A].socket, "stat", far, "--json"],
                                         capture_output=True, text=True, check=True).stdout)
        assert said["delivered"] == dict.fromkeys(stat.delivered, 0) and said["rails"] == []


def test_a_rail_that_is_down_does_not_delay_the_first_read(host, pair, far):
    """The daemon tries it for five seconds: by then the read's deadline has passed."""
    pair.network.silence(B, True, 1)
    client = reader(host, pair, far, timeout=4)
    until(client, on(1))
    lib_host.wait_for(lambda: [rail for node in pair.states(A) for rail in node["rails"] if rail["state"] == "down"],
                      message=lambda: f"{pair.states(A)}")
    said = subprocess.run([str(lib_host.LEAT), "--socket", pair.daemons[A].socket, "status"], capture_output=True, text=True, check=True)
    assert f"{pair.nodes[B].split(',')[1]}, state down, why the node does not answer" in said.stdout, said.stdout
    pair.network.silence(B, False, 1)
    until(client, on(2))
    ended(client)


@pytest.mark.long
def test_the_server_is_killed(host, leat, pair, far):
    """Its samples come from their source, as with one rail; and from its memory again when it is back."""
    client = reader(host, pair, far)
    until(client, on(2))
    pair.daemons[B].kill()
    said = eval(client.hear())[0]
    until(client, lambda n, transport: n > said + 20)
    pair.start(B)
    pair.joined(A)
    until(client, on(2))
    ended(client)


def test_nodes_find_each_other_over_the_second_address(host, leat, cluster):
    """The first one's network is cut from the beginning."""
    cluster.network.silence(B, True, 0)
    cluster.start_all()
    array = lib_data.make_npy(host.data / "a.npy", SAMPLES)
    with leat.preload(array, name="spread", socket=cluster.daemons[A].socket, timeout=lib_host.PATIENCE) as ws:
        lib_data.check_rows([ws[i] for i in (0, SAMPLES // 2, -1)], [0, SAMPLES // 2, SAMPLES - 1])


@pytest.mark.long
def test_nodes_keep_each_other_when_the_first_address_fails(host, leat, pair, far):
    """The connection between the daemons moves to the other link; no daemon takes the node for dead, and the set stays in its memory."""
    host_b = pair.daemons[B]
    pair.network.silence(B, True, 0)
    lib_host.wait_for(lambda: any("next address" in d.text() for d in pair.daemons), seconds=lib_host.PATIENCE + 20, message=lambda: f"A did not notice\n{pair.daemons[A].text()}\n{pair.daemons[B].text()}")
    pair.joined(A)
    pair.joined(B)
    down = [line for d in pair.daemons for line in d.text().splitlines() if "cannot be reached" in line and "refused" not in line]
    assert not down, "refused: before the other one had started"
    sent = host_b.metrics()["leat_data_sent_bytes_total"]
    with leat.open(far, socket=pair.daemons[A].socket, timeout=lib_host.PATIENCE) as ws:
        lib_data.check_rows(ws.read_batch(range(0, SAMPLES, 7)).data, range(0, SAMPLES, 7))
    assert host_b.metrics()["leat_data_sent_bytes_total"] > sent


def test_a_node_comes_back_as_another_one_by_its_second_address(host, leat):
    """A, which was stopped during that, finds it there by its next address, with the set that C had it install again: what the old one had
    filled is lost all the same, and is not read from the new one before that has it."""
    network = lib_net.Network(3, links=2)
    try:
        cluster = lib_net.Cluster(host, network)
        a, b, c = cluster.start_all()
        array = lib_data.make_npy(host.data / "a.npy", SAMPLES)
        leat.preload(array, name="spread", socket=a.socket, timeout=lib_host.PATIENCE).close()
        with leat.open("leat://spread", socket=a.socket, timeout=lib_host.PATIENCE) as ws, \
                leat.open("leat://spread", socket=c.socket, timeout=lib_host.PATIENCE) as other:
            ws.wait(timeout=lib_host.PATIENCE)
            other.wait(timeout=lib_host.PATIENCE)
            lib_host.freeze(a.pid)
            try:
                b.kill()
                cluster.start(B)
                lib_host.wait_for(lambda: "fills its regions of" in c.text(), message=c.text)
            finally:
                os.kill(a.pid, signal.SIGCONT)
            lib_data.check_rows(ws.read_batch(range(0, SAMPLES, 3)).data, range(0, SAMPLES, 3))
            lib_host.wait_for(lambda: "was restarted" in a.text(), message=a.text)
            assert "trying the node's next address" in a.text() and "cannot be reached" not in a.text().split("trying")[-1]
            lib_host.wait_for(lambda: ws.stat().lost_samples == 0, message=lambda: f"{ws.stat()}")
            lib_data.check_rows(ws.read_batch(range(0, SAMPLES, 7)).data, range(0, SAMPLES, 7))
    finally:
        for daemon in host.daemons:
            daemon.stop()
        network.close()


def test_rails_by_ipv6(host, leat):
    """Addresses in brackets that name their link: all links' are in one subnet, and each is dialled from its own."""
    network = lib_net.Network(2, links=2)
    try:
        for i in range(2):
            for k in range(2):
                address = f"fe80::{k + 1}:{i + 1}"
                lib_net.ip("-n", network.names[i], "addr", "add", f"{address}/64", "dev", f"eth{k}", "nodad")
                network.rails[i][k] = f"[{address}%eth{k}]"
        cluster = lib_net.Cluster(host, network)
        a, _ = cluster.start_all()
        array = lib_data.make_npy(host.data / "a.npy", SAMPLES)
        leat.preload(array, name="spread", socket=a.socket, timeout=lib_host.PATIENCE).close()
        client = reader(host, cluster, "leat://spread")
        until(client, on(2))
        moves(network, 0, 1)
        ended(client)
    finally:
        network.close()
