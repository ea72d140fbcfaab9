# SPDX-License-Identifier: Apache-2.0
"""Hosts as network namespaces with a link between them."""

import base64
import os
import shutil
import subprocess

import lib_host
import pytest


def ip(*args):
    done = subprocess.run(["ip", *args], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, (args, done.stderr)


class Network:
    """`n` hosts, each a namespace; 10.231.X.{1..n} over one bridge in a namespace of its own. Undone by close()."""

    def __init__(self, n):
        if os.geteuid() != 0 or not shutil.which("ip"):
            pytest.skip("needs root and ip(8) for network namespaces")
        tag = f"leat{os.getpid() % 100000}"
        self.hub, self.names = f"{tag}h", [f"{tag}{chr(ord('a') + i)}" for i in range(n)]
        self.addresses = [f"10.231.{os.getpid() % 250}.{i + 1}" for i in range(n)]
        if subprocess.run(["ip", "netns", "add", self.hub], capture_output=True).returncode:
            pytest.skip("network namespaces are not permitted here")
        try:
            ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
            ip("-n", self.hub, "link", "set", "br0", "up")
            for i, name in enumerate(self.names):
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", self.hub, "link", "add", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
                ip("-n", self.hub, "link", "set", f"p{i}", "master", "br0", "up")
                ip("-n", name, "addr", "add", f"{self.addresses[i]}/24", "dev", "eth0")
                ip("-n", name, "link", "set", "eth0", "up")
        except BaseException:
            self.close()
            raise

    def inside(self, i):
        """The command prefix that runs something on host i."""
        return ["ip", "netns", "exec", self.names[i]]

    def link(self, i, up):
        ip("-n", self.hub, "link", "set", f"p{i}", "up" if up else "down")

    def close(self):
        for name in [self.hub, *self.names]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)


class Cluster:
    """A daemon on each host of a network, all with one list of nodes and one token."""

    def __init__(self, host, network, *, pool="16MiB", region="256KiB"):
        self.host, self.network = host, network
        self.pool, self.region = pool, region
        self.nodes = [f"{address}:7700" for address in network.addresses]
        self.daemons = [None] * len(self.nodes)
        self.token = self.make_token("token", bytes(range(40)))

    def make_token(self, name, secret):
        path = self.host.folder / name
        path.write_bytes(base64.b64encode(secret) + b"\n")
        path.chmod(0o600)
        return path

    def start(self, i, *, token=None, nodes=None, **more):
        self.daemons[i] = self.host.daemon(
            {"pool": {"size": self.pool, "region_size": self.region},
             "net": {"listen": self.nodes[i], "token_file": token or self.token, "nodes": " ".join(nodes or self.nodes)}},
            name="abcdef"[i], prefix=self.network.inside(i), options=["--linger", "10m"], **more)
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
