# SPDX-License-Identifier: Apache-2.0
"""Two daemons on this host that are nodes of one cluster: one set for both, and nothing left of it when its users are gone."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import lib_host
import pytest
from lib_host import LEAT, LEATD

leat = pytest.importorskip("leat", reason="the Python extension is not built")
np = pytest.importorskip("numpy")

ROWS, ROW_BYTES = 4096, 4096


class Node:
    def __init__(self, folder, number, nodes):
        self.socket = f"{folder}/{number}.sock"
        self.log = open(f"{folder}/{number}.log", "wb")
        config = pathlib.Path(f"{folder}/{number}.conf")
        config.write_text(
            f"[pool]\nsize = 64MiB\nregion_size = 2MiB\nhuge_pages = no\n[daemon]\nmode = private\n"
            f"socket = {self.socket}\n[net]\nlisten = {nodes[number]}\nnodes = {', '.join(nodes)}\n"
            f"token_file = {folder}/token\n[disk]\nengine = worker\n[log]\nlevel = info\n"
        )
        self.process = subprocess.Popen([LEATD, "--config", config], stderr=self.log)

    def query(self, what="status"):
        got = subprocess.run(
            [LEAT, what, "--json", f"--socket={self.socket}"],
            capture_output=True,
            check=False,
        )
        return json.loads(got.stdout) if got.returncode == 0 else None

    def used(self):
        status = self.query()
        return status and status["pool"]["used_bytes"]

    def text(self):
        return pathlib.Path(self.log.name).read_text()


@pytest.fixture
def nodes():
    with tempfile.TemporaryDirectory(prefix="leat-") as folder:
        token = pathlib.Path(folder, "token")
        token.write_text("0123456789abcdef" * 4)
        token.chmod(0o600)
        np.save(f"{folder}/a.npy", np.arange(ROWS * ROW_BYTES, dtype=np.uint8).reshape(ROWS, ROW_BYTES))
        names = [f"127.0.0.1:{port}" for port in lib_host.free_ports(2)]
        both = [Node(folder, n, names) for n in range(2)]
        try:
            for node in both:
                lib_host.wait_for(lambda node=node: "is up" in node.text())
            yield folder, both
        finally:
            for node in both:
                if node.process.poll() is None:
                    node.process.send_signal(signal.SIGCONT)
                    node.process.terminate()
            codes = [node.process.wait(30) for node in both]
        assert codes == [0, 0], [node.text() for node in both]


READER = """
import sys, leat
import numpy as np
ws = leat.open(sys.argv[2], socket=sys.argv[1])
print(np.asarray(ws[4000]).tobytes()[:4].hex(), flush=True)
sys.stdin.readline()
"""


def reader(node, path):
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    return subprocess.Popen(
        [sys.executable, "-c", READER, node.socket, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        text=True,
    )


def test_one_set_for_both_and_none_afterwards(nodes):
    folder, both = nodes
    readers = [reader(node, f"{folder}/a.npy") for node in both]
    for r in readers:
        assert r.stdout.readline().strip() == "00010203"
    total = ROWS * ROW_BYTES
    used = [node.used() for node in both]
    assert total <= sum(used) <= total + 4 * 2**20, used
    assert all(used), "one node has it all"
    for r in readers:
        r.stdin.close()
        assert r.wait(30) == 0
    # Each holds it for the other only: that is no reason to keep it.
    lib_host.wait_for(lambda: [node.used() for node in both] == [0, 0])


@pytest.mark.slow
def test_stopped_node_is_noticed(nodes):
    folder, both = nodes
    first = reader(both[0], f"{folder}/a.npy")
    assert first.stdout.readline().strip() == "00010203"
    lib_host.freeze(both[1].process.pid)
    lib_host.wait_for(lambda: "does not answer" in both[0].text(), 60)
    first.stdin.close()
    assert first.wait(30) == 0
    # A request now is not delayed by it.
    again = reader(both[0], f"{folder}/a.npy")
    assert again.stdout.readline().strip() == "00010203"
    again.stdin.close()
    assert again.wait(30) == 0


def test_status_shows_the_nodes(nodes):
    """Each node says of all: where, in what state, how much it has and how much of that is taken; also for people."""
    _, both = nodes
    lib_host.wait_for(lambda: all("cap_bytes" in n for node in both for n in node.query()["nodes"]))
    seen = both[0].query()["nodes"]
    assert [n["state"] for n in seen] == ["self", "up"] and [n["connected"] for n in seen] == [True, True]
    assert [n["cap_bytes"] for n in seen] == [64 << 20] * 2 and all(n["used_bytes"] == 0 for n in seen)
    def metrics():
        return subprocess.run([LEAT, "status", "--metrics", f"--socket={both[0].socket}"],
                              capture_output=True, text=True, check=True).stdout.splitlines()

    other = f'leat_node_up{{node="{seen[1]["address"]}"}}'
    assert f"{other} 1" in metrics() and "leat_lost_samples 0" in metrics()
    both[1].process.terminate()
    lib_host.wait_for(lambda: both[0].query()["nodes"][1]["state"] == "down")
    assert f"{other} 0" in metrics()
    text = subprocess.run([LEAT, "status", f"--socket={both[0].socket}"],
                          capture_output=True, text=True, check=True).stdout
    lines = [line for line in text.splitlines() if ":" in line and "state" in line]
    assert len(lines) == 2 and "64.0 MiB" in lines[0] and "self" in lines[0] and "down" in lines[1], text
