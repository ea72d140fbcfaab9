# SPDX-License-Identifier: Apache-2.0
"""A device that goes from under a running daemon, and comes back: the daemon closes its rail, serves by the other one, opens it again, and
readers ask where it is and for its keys again, by the same endpoint.

It goes by name: a device is renamed while it is open, and what was opened by the old name is not there then. `rdma link delete` would wait
for each process that has it open (README.md), which no NIC's driver does."""

import json
import pathlib
import subprocess

import lib_data
import lib_host
import lib_rails
import pytest

SAMPLES, RAIL, OTHER = 2048, 1, 0

READER = lib_data.CLIENT + """
ws = leat.open("leat://set", socket=argv[0])
rng = np.random.default_rng(1)
while hear() != "enough":
    for _ in range(4):
        ids = rng.permutation(len(ws))[:256]
        np.testing.assert_array_equal(ws.read_batch(ids).data, rows(ids))
    say("read")
say("all", ws.stat().transport)
"""


def rename(now, then):
    lib_rails.do("rdma", "dev", "set", now, "name", then)


def held(pid, device):
    """What a process has of a device: {kind: how many}. The kernel names the thread that made it; regions, the domain they are in."""
    threads = {int(task.name) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()}

    def shown(kind):
        done = subprocess.run(["rdma", "-j", "res", "show", kind], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return [one for one in json.loads(done.stdout) if one["ifname"] == device]

    found = {kind: [one for one in shown(kind) if one.get("pid") in threads] for kind in ("qp", "cq", "pd", "cm_id")}
    domains = {one["pdn"] for one in found["pd"]}
    return {kind: len(ones) for kind, ones in found.items()} | {"mr": sum(one["pdn"] in domains for one in shown("mr"))}


@pytest.mark.parametrize("transport", ["rdma-read", "rdma-write"])
def test_it_is_opened_anew_and_carries_bytes(host, leat, transport):
    daemon = host.daemon({"pool": {"size": "64MiB", "region_size": "4MiB"}}, options=["--idle-timeout", "10m"])
    path = lib_data.make_npy(host.data / "a.npy", SAMPLES)
    leat.preload(path, name="set", socket=daemon.socket, timeout=lib_host.PATIENCE).close()
    reader = host.python(READER, daemon.socket, env={"LEAT_TRANSPORT": transport})
    device, away = lib_rails.device(RAIL), "away1"

    def up():
        return daemon.metrics()[f'leat_rdma_up{{rail="{device}:1"}}']

    for _ in range(20):
        lib_rails.read_on(reader)
        if lib_rails.queue_pairs(reader.pid, RAIL):
            break
    other = lib_rails.queue_pairs(reader.pid, OTHER)
    assert other and lib_rails.queue_pairs(reader.pid, RAIL)
    before = held(daemon.pid, device)
    print("held by the daemon", before)
    assert before["qp"] and before["cm_id"]
    rename(device, away)
    try:
        lib_host.wait_for(lambda: up() == 0, message=lambda: "the daemon did not notice")
        lib_host.wait_for(lambda: not any(held(daemon.pid, away).values()),
                          message=lambda: f"the daemon kept {held(daemon.pid, away)}")
        for _ in range(2):
            lib_rails.read_on(reader)
    finally:
        rename(away, device)
    lib_host.wait_for(lambda: up() == 1, message=lambda: "it was not opened again")
    lib_rails.until_it_carries(reader, RAIL, lib_rails.sent()[RAIL])
    assert lib_rails.queue_pairs(reader.pid, OTHER) == other, "the endpoint was made again"
    reader.tell("enough")
    assert reader.finish().startswith("all rdma")
