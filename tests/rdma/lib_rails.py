# SPDX-License-Identifier: Apache-2.0
"""The two rails that tests/rdma/inside makes."""

import json
import pathlib
import subprocess

RAILS = [0, 1]


def address(rail):
    return f"10.70.{rail}.1"


def device(rail):
    return f"rxe{rail}"


def do(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (command, done.stderr)


def lose(rail):
    do("ip", "link", "set", f"rail{rail}", "down")


def restore(rail):
    """Makes a lost rail anew. Its device has to go too: when packets of RDMA_CM could not leave, the kernel's queue pair for them
    is broken for good (rxe of 6.1), and no connection is made any more. Nobody may have the device open."""
    do("rdma", "link", "delete", device(rail))
    do("ip", "link", "set", f"rail{rail}", "up")
    do("ip", "addr", "replace", f"{address(rail)}/24", "dev", f"rail{rail}")
    do("rdma", "link", "add", device(rail), "type", "rxe", "netdev", f"rail{rail}")


def counters(rail):
    """{"sent_pkts": n, ...} since the device was made. Reads and writes by the NIC count in sent_pkts, messages also in rdma_sends."""
    folder = pathlib.Path(f"/sys/class/infiniband/{device(rail)}/ports/1/hw_counters")
    return {p.name: int(p.read_text()) for p in folder.iterdir()}


def connections(pid):
    """The reliable queue pairs of a process, as rdma(8) prints them."""
    done = subprocess.run(["rdma", "-j", "res", "show", "qp"], capture_output=True, text=True, timeout=60)
    return [qp for qp in json.loads(done.stdout) if qp.get("pid") == pid and qp["type"] == "RC"]
