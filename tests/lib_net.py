# SPDX-License-Identifier: Apache-2.0
"""Hosts as network namespaces with a link between them."""

import base64
import contextlib
import ctypes
import os
import shutil
import subprocess

import lib_host
import pytest


def ip(*args):
    done = subprocess.run(["ip", *args], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, (args, done.stderr)


class Network:
    """`n` hosts, each a namespace; 10.231.X.{1..n} over one bridge in a namespace of its own, and with more links 10.232.X.{1..n} over a
    second one, and so on. Undone by close()."""

    def __init__(self, n, links=1):
        if os.geteuid() != 0 or not shutil.which("ip"):
            pytest.skip("needs root and ip(8) for network namespaces")
        tag = f"leat{os.getpid() % 100000}"
        self.hub, self.names, self.links = f"{tag}h", [f"{tag}{chr(ord('a') + i)}" for i in range(n)], links
        #: [host][link]
        self.rails = [[f"10.{231 + k}.{os.getpid() % 250}.{i + 1}" for k in range(links)] for i in range(n)]
        self.addresses = [rails[0] for rails in self.rails]
        if subprocess.run(["ip", "netns", "add", self.hub], capture_output=True).returncode:
            pytest.skip("network namespaces are not permitted here")
        try:
            for k in range(links):
                ip("-n", self.hub, "link", "add", f"br{k}", "type", "bridge")
                ip("-n", self.hub, "link", "set", f"br{k}", "up")
            for i, name in enumerate(self.names):
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
                for k in range(links):
                    nic, port = f"eth{k}", self.port(i, k)
                    ip("-n", self.hub, "link", "add", port, "type", "veth", "peer", "name", nic, "netns", name)
                    ip("-n", self.hub, "link", "set", port, "master", f"br{k}", "up")
                    ip("-n", name, "addr", "add", f"{self.rails[i][k]}/24", "dev", nic)
                    ip("-n", name, "link", "set", nic, "up")
        except BaseException:
            self.close()
            raise

    def on_the_bridge(self):
        """An address on the first link that is no host's: for servers whose sockets are made inside `in_the_hub`."""
        address = f"10.231.{os.getpid() % 250}.200"
        ip("-n", self.hub, "addr", "add", f"{address}/24", "dev", "br0")
        return address

    @contextlib.contextmanager
    def in_the_hub(self):
        """Sockets that this thread makes inside belong to the hub's network."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as before, open(f"/run/netns/{self.hub}") as hub:
            assert libc.setns(hub.fileno(), 0x40000000) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(before.fileno(), 0x40000000) == 0

    @staticmethod
    def port(i, k):
        """The hub's end of a host's link."""
        return f"p{i}x{k}"

    def inside(self, i):
        """The command prefix that runs something on host i."""
        return ["ip", "netns", "exec", self.names[i]]

    def link(self, i, up, k=0):
        ip("-n", self.hub, "link", "set", self.port(i, k), "up" if up else "down")

    def silence(self, i, on, k=0):
        """Packets to and from a host vanish without a notice: its interface keeps its carrier."""
        ip("-n", self.hub, "link", "set", self.port(i, k), *(["nomaster"] if on else ["master", f"br{k}"]))

    def shape(self, i, k, rate):
        """What the host may receive over a link, in tc's words."""
        subprocess.run(["tc", "-n", self.hub, "qdisc", "replace", "dev", self.port(i, k), "root", "tbf", "rate", rate, "burst", "32k",
                        "latency", "50ms"], check=True, timeout=20)

    def received(self, i):
        """Bytes that a host received so far, by link."""
        path = "/sys/class/net/eth{}/statistics/rx_bytes"
        out = subprocess.run([*self.inside(i), "cat", *(path.format(k) for k in range(self.links))], capture_output=True, text=True,
                             timeout=20, check=True).stdout
        return [int(line) for line in out.split()]

    def close(self):
        for name in [self.hub, *self.names]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)


class OneMachine:
    """Two hosts as seen by daemons, without namespaces: rxe works in one alone."""

    rails = [["127.0.0.1"], ["127.0.0.2"]]

    def inside(self, i):
        return []


class Cluster:
    """A daemon on each host of a network, all with one list of nodes and one token."""

    def __init__(self, host, network, *, pool="16MiB", region="256KiB"):
        self.host, self.network = host, network
        self.pool, self.region = pool, region
        self.nodes = [",".join(f"{address}:7700" for address in rails) for rails in network.rails]
        self.daemons = [None] * len(self.nodes)
        self.token = self.make_token("token", bytes(range(40)))

    def make_token(self, name, secret):
        path = self.host.folder / name
        path.write_bytes(base64.b64encode(secret) + b"\n")
        path.chmod(0o600)
        return path

    def start(self, i, *, token=None, nodes=None, limits=None, disk=None, log=None, **more):
        self.daemons[i] = self.host.daemon(
            {"pool": {"size": self.pool, "region_size": self.region},
             "net": {"listen": self.nodes[i], "token_file": token or self.token, "nodes": " ".join(nodes or self.nodes)},
             "limits": limits or {}, "disk": disk or {}, "log": log or {}},
            name="abcdef"[i], prefix=self.network.inside(i), options=["--idle-timeout", "10m"], **more)
        return self.daemons[i]

    def start_all(self):
        for i in range(len(self.nodes)):
            self.start(i)
        for i in range(len(self.nodes)):
            self.joined(i)
        return self.daemons

    def joined(self, i):
        """Waits until daemon i is connected to all others."""
        lib_host.wait_for(lambda: all(n["connected"] for n in self.states(i) if not n["self"]),
                          message=f"node {i} does not find the others: {self.states(i)}\n{self.daemons[i].text()}")

    def states(self, i):
        return self.daemons[i].status()["nodes"]
