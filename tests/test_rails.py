# SPDX-License-Identifier: Apache-2.0
"""Two hosts with two links between them: reads are striped over both, and go on over one of them."""

import signal

import lib_data
import lib_host
import lib_net
import pytest

MIB = lib_data.MIB
A, B = 0, 1
SAMPLES = 3072

#: Reads the far part of a set in batches until it is told to stop; says after how many batches, and what it is read by.
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
def cluster(network, host):
    return lib_net.Cluster(host, network)


@pytest.fixture
def pair(cluster):
    cluster.start_all()
    return cluster


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
    assert sum(came) > 20 * MIB and min(came) > 0.4 * sum(came), came
