# SPDX-License-Identifier: Apache-2.0
"""The two rails that tests/rdma/inside makes."""

import json
import pathlib
import subprocess

RAILS = [0, 1]
PACKET = 4096  # bytes, of samples


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
    """Makes a lost rail again. Its device has to go too: when packets of RDMA_CM could not leave, the kernel's queue pair for them
    is broken for good (rxe of 6.1), and no connection is made any more. No process may have the device open."""
    do("rdma", "link", "delete", device(rail))
    do("ip", "link", "set", f"rail{rail}", "up")
    do("ip", "addr", "replace", f"{address(rail)}/24", "dev", f"rail{rail}")
    do("rdma", "link", "add", device(rail), "type", "rxe", "netdev", f"rail{rail}")


def counters(rail):
    """{"sent_pkts": n, ...} since the device was made. Reads and writes by the NIC count in sent_pkts, messages also in rdma_sends."""
    folder = pathlib.Path(f"/sys/class/infiniband/{device(rail)}/ports/1/hw_counters")
    return {p.name: int(p.read_text()) for p in folder.iterdir()}


def sent():
    """Packets by each rail so far."""
    return [counters(rail)["sent_pkts"] for rail in RAILS]


def since(before):
    """Packets by each rail since sent() was `before`."""
    return [now - was for now, was in zip(sent(), before)]


def even(carry, least_bytes, tries=5):
    """carry() has bytes read by both rails, and returns the packets that each has sent for it: of so many bytes each rail has at least 40 %, in
    one of a few tries, as a rail that a busy machine holds up, or that was not connected yet, is rightly given less."""
    seen = []
    while not seen or min(seen[-1]) < 0.4 * sum(seen[-1]) or sum(seen[-1]) < least_bytes // PACKET:
        assert len(seen) < tries, f"not evenly: {seen}"
        seen.append(carry())
    print("packets by rail", seen)


def read_on(reader):
    """A turn of a reader that says "read" to whatever it is told."""
    reader.tell("go on")
    assert reader.hear(60) == "read"


def until_it_carries(reader, rail, before):
    """Has the reader read on until the rail has sent a thousand packets more than `before`: it is tried again after 1 to 32 s."""
    for turn in range(100):
        read_on(reader)
        carried = sent()[rail] - before
        if carried > 1000:
            break
    print("turns", turn, "packets by the one that came back", carried)
    assert carried > 1000, "it was not tried again, or the attempts failed"


def connections(pid):
    """The reliable queue pairs of a process, as rdma(8) prints them."""
    done = subprocess.run(["rdma", "-j", "res", "show", "qp"], capture_output=True, text=True, timeout=60)
    return [qp for qp in json.loads(done.stdout) if qp.get("pid") == pid and qp["type"] == "RC"]


def queue_pairs(pid, *rails):
    """Those that are connected; one that is not goes when its process looks next."""
    devices = [device(rail) for rail in rails]
    return {(qp["ifname"], qp["lqpn"]) for qp in connections(pid) if qp["ifname"] in devices and qp["state"] == "RTS"}
