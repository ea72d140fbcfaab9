# SPDX-License-Identifier: Apache-2.0
"""A rail that cannot be reached while others read on, and then can: it is tried again and carries bytes, by the same endpoint.

It loses its address, not its link: when RDMA_CM has something to send while that is down, the kernel's queue pair for it breaks for good
(README.md), which no NIC's does. For the same reason the endpoint begins while the rail is away; `net/ucx/test_rdma.c` breaks what
is connected, and test_lost_rail.py takes the link."""

import os
import signal

import lib_data
import lib_host
import lib_rails

SAMPLES, RAIL, OTHER = 4096, 1, 0

READER = lib_data.CLIENT + """
ws = leat.open("leat://set", socket=argv[0])
rng = np.random.default_rng(1)
def read(times, **more):
    for _ in range(times):
        ids = rng.permutation(len(ws))[:256]
        np.testing.assert_array_equal(ws.read_batch(ids, **more).data, rows(ids))
read(4)
say("both")
hear()
for _ in range(2):  # the second one polls what the first left behind, and gets no further
    try:
        read(1, timeout=2)
        say("it is not stopped")
    except leat.TimedOut:
        pass
say("timed out")
hear()
read(8)
say("by one")
hear()
while hear() != "enough":
    read(4)
    say("read")
say("all", ws.stat().transport)
"""


def test_it_carries_bytes_again(host, leat):
    daemon = host.daemon({"pool": {"size": "64MiB", "region_size": "4MiB"}}, options=["--idle-timeout", "10m"])
    path = lib_data.make_npy(host.data / "a.npy", SAMPLES)
    leat.preload(path, name="set", socket=daemon.socket, timeout=lib_host.PATIENCE).close()
    reader = host.python(READER, daemon.socket, env={"LEAT_TRANSPORT": "rdma-write"})
    assert reader.hear(60) == "both"
    # A deadline ends the endpoint, and leaves the devices open.
    lib_host.freeze(daemon.pid)
    reader.tell()
    assert reader.hear(60) == "timed out"
    os.kill(daemon.pid, signal.SIGCONT)
    pids = [daemon.pid, reader.pid]
    lib_host.wait_for(lambda: not any(lib_rails.queue_pairs(pid, RAIL, OTHER) for pid in pids),
                      message=lambda: f"left: {[lib_rails.connections(pid) for pid in pids]}")
    lib_rails.do("ip", "addr", "del", f"{lib_rails.address(RAIL)}/24", "dev", f"rail{RAIL}")
    lost = lib_rails.sent()[RAIL]
    reader.tell()
    assert reader.hear(60) == "by one"
    assert lib_rails.sent()[RAIL] == lost
    other = lib_rails.queue_pairs(reader.pid, OTHER)
    assert other
    lib_rails.do("ip", "addr", "add", f"{lib_rails.address(RAIL)}/24", "dev", f"rail{RAIL}")
    reader.tell()
    lib_rails.until_it_carries(reader, RAIL, lost)
    assert lib_rails.queue_pairs(reader.pid, OTHER) == other, "the endpoint was made again"
    reader.tell("enough")
    assert reader.finish().startswith("all rdma")
