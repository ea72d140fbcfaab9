# SPDX-License-Identifier: Apache-2.0
"""Hosts as network namespaces around a bridge, with a queue in front of the first, and a daemon on each."""
import base64
import json
import os
import subprocess
import time

from . import supervisor
from .workers import Daemon, Failed

MTU_FRAME = 1514
BURST_FRAMES = 10
FILTERS = ("iptables", "ip6tables", "arptables")


def run(*argv, may_fail=False):
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True)
    if done.returncode and not may_fail:
        raise Failed(f"{' '.join(map(str, argv))}: {done.stderr.strip() or done.returncode}")
    return done.stdout


class Network:
    """Host 0 is the receiver, the others are servers. `links`: separate networks, each host with an interface in all of them.
    own_cpus: each server's programs stay on one CPU, as those of a host would on its own; the CPUs are shared out in turn. Left to
    itself the kernel settles each thread somewhere for minutes, and whose reader it shares a CPU with is worth a third of the rate."""

    made = 0  # by this process: several may stand side by side

    def __init__(self, hosts, links=1, own_cpus=False):
        self.cpus = sorted(os.sched_getaffinity(0)) if own_cpus else None
        if os.geteuid() != 0:
            raise Failed("network namespaces need root")
        tag = f"{supervisor.mark()}{Network.made}."
        Network.made += 1
        self.links, self.hub = links, tag + "hub"
        self.names = [f"{tag}{i}" for i in range(hosts)]
        try:
            run("ip", "netns", "add", self.hub)
            # A switch filters nothing; the kernel's may, and then takes a tenth of all the CPU that packets cost here.
            run("ip", "netns", "exec", self.hub, "sysctl", "-qw", *(f"net.bridge.bridge-nf-call-{what}=0" for what in FILTERS), may_fail=True)
            for k in range(links):
                run("ip", "-n", self.hub, "link", "add", f"br{k}", "type", "bridge")
                run("ip", "-n", self.hub, "link", "set", f"br{k}", "up")
            for i, name in enumerate(self.names):
                run("ip", "netns", "add", name)
                run("ip", "-n", name, "link", "set", "lo", "up")
                # These hosts are 3 us apart, nearer than any real ones. TCP waits a quarter of the shortest way for a segment that another overtook (RACK,
                # RFC 8985), in whole microseconds: not at all, for as long as the shortest way is remembered. Two CPUs do overtake each other here, and
                # such a connection then sent a fifth of its segments twice though nothing was lost. So it is not remembered here, for any program.
                run("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.tcp_min_rtt_wlen=0")
                for k in range(links):
                    port, nic = f"p{i}x{k}", f"eth{k}"
                    run("ip", "-n", self.hub, "link", "add", port, "type", "veth", "peer", "name", nic, "netns", name)
                    run("ip", "-n", self.hub, "link", "set", port, "master", f"br{k}", "up")
                    run("ip", "-n", name, "addr", "add", f"{self.address(i, k)}/24", "dev", nic)
                    run("ip", "-n", name, "link", "set", nic, "up")
        except BaseException:
            self.close()
            raise

    @staticmethod
    def address(host, link=0):
        return f"10.77.{link}.{host + 1}"

    def inside(self, host):
        cpu = ["taskset", "-c", self.cpus[host % len(self.cpus)]] if self.cpus and host else []
        return ["ip", "netns", "exec", self.names[host], *map(str, cpu)]

    def shape(self, rate, packets, gso=True):
        """The queue in front of the receiver: a token bucket of `rate` (tc's word) that holds `packets` frames; None: none."""
        for k in range(self.links):
            if rate is None:
                run("tc", "-n", self.hub, "qdisc", "del", "dev", f"p0x{k}", "root", may_fail=True)
            else:
                run("tc", "-n", self.hub, "qdisc", "replace", "dev", f"p0x{k}", "root", "tbf", "rate", rate, "burst",
                    BURST_FRAMES * MTU_FRAME, "limit", packets * MTU_FRAME)
            how = "on" if gso else "off"
            for i in range(len(self.names)):
                run(*self.inside(i), "ethtool", "-K", f"eth{k}", "tso", how, "gso", how)
                run("ip", "netns", "exec", self.hub, "ethtool", "-K", f"p{i}x{k}", "tso", how, "gso", how, "gro", "off")

    def dropped(self):
        """Packets that the queues in front of the receiver refused so far."""
        return sum(json.loads(run("tc", "-n", self.hub, "-s", "-j", "qdisc", "show", "dev", f"p0x{k}"))[0].get("drops", 0)
                   for k in range(self.links))

    def close(self):
        for name in [self.hub, *self.names]:
            run("ip", "netns", "del", name, may_fail=True)


class Cluster:
    """leatd on every host. The receiver's holds next to nothing: what is read comes from the servers."""

    def __init__(self, build, folder, network, pool, region=1 << 20):
        self.leat, self.network, self.daemons = os.path.join(build, "src/apps/leat"), network, []
        token = os.path.join(folder, "token")
        with open(token, "wb") as f:
            f.write(base64.b64encode(os.urandom(40)) + b"\n")
        os.chmod(token, 0o600)
        hosts, links = range(len(network.names)), range(network.links)
        doors = [",".join(f"{network.address(i, k)}:7700" for k in links) for i in hosts]
        try:
            for i in hosts:
                conf, sock = os.path.join(folder, f"{i}.conf"), os.path.join(folder, f"{i}.sock")
                with open(conf, "w") as f:
                    f.write(f"[pool]\nsize = {2 * region if i == 0 else pool}\nregion_size = {region}\n[net]\nlisten = {doors[i]}\n"
                            f"token_file = {token}\nnodes = {' '.join(doors)}\n")
                daemon = Daemon([*network.inside(i), os.path.join(build, "src/apps/leatd"), "--config", conf, "--private", "--socket",
                                 sock, "--idle-timeout", "0"], lambda sock=sock: os.path.exists(sock), os.path.join(folder, f"{i}.log"))
                daemon.socket = sock
                self.daemons.append(daemon)
            deadline = time.monotonic() + 20
            while not all(n["connected"] for i in hosts for n in self.status(i)["nodes"] if not n["self"]):
                if time.monotonic() > deadline:
                    raise Failed("the nodes do not find each other")
                time.sleep(0.05)
        except BaseException:
            self.close()
            raise

    def status(self, host=0):
        return json.loads(run(self.leat, "--socket", self.daemons[host].socket, "status", "--json"))

    def close(self):
        for daemon in self.daemons:
            daemon.close()
