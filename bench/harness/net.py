# SPDX-License-Identifier: Apache-2.0
"""Suite `net`: several servers into one receiver, over networks that are namespaces of this machine.

incast.RATE.QUEUE.GSO   eight servers, a queue of so many packets in front of the receiver, GSO on or off: batches with credits, beside
                        one bare flow through the same queue, and beside the same servers without credits (all at once); and bare
                        sockets to all eight where the queue holds whatever they send: what so many senders cost by themselves
incast.sweep            limits fixed by hand beside the one that adapts
servers4.SIZE           four servers, no shaping: ReadBatch beside bare sockets to the same hosts, and beside such whose samples lie as ours do
rails.tcp               two shaped rails beside one
"""
import contextlib
import os
import shutil
import tempfile

from .data import KIB, MIB
from .hosts import Cluster, Network
from .hosts import run as command
from .rows import beside, in_turns, median, row
from .suite import Base
from .workers import Daemon, Failed, Group, Worker

SERVERS = 8
RATES = {"200m": "200mbit", "1g": "1gbit"}
QUEUES = (30, 64)
SWEEP = [8, 16, 24, 32, 48, 64, 96, 128, 256]  # KiB
BATCH, SAMPLES, SAMPLE = 8, 1024, 64 * KIB
NO_CREDITS = 64 * MIB
DEEP = 1024  # packets: all that a batch can bring
PORT = 7800


def busy_seconds():
    """What all CPUs have worked since boot. The kernel charges its work for packets to the process that runs just then, or to none:
    the CPU time of processes (".cpu") has a part of it that differs from case to case."""
    with open("/proc/stat") as f:
        ticks = [int(word) for word in f.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def settle(group):
    """Behind another queue than before. What was learnt of that one has to be unlearnt, and a deep one that became shallow costs some timeouts of
    200 ms: a second or two, once. No path does that to a job, and it is not what is measured."""
    group.ask("run 3")


class Rig:
    """A network, a cluster holding the data, a bare server on each server host; readers on the receiver."""

    def __init__(self, suite, stack, servers, links=1, size=(SAMPLES, SAMPLE), own_cpus=False):
        self.suite, self.stack = suite, stack
        self.samples, self.sample_bytes = size
        self.folder = tempfile.mkdtemp(dir=suite.args.folder)
        stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.network = Network(servers + 1, links, own_cpus)
        stack.callback(self.network.close)
        self.path = suite.data_of(*size)
        total = self.samples * self.sample_bytes
        self.cluster = Cluster(suite.args.build, self.folder, self.network, pool=total // servers * 2 + 16 * MIB)
        stack.callback(self.cluster.close)
        loader = Worker([suite.program("load_leat"), self.cluster.daemons[0].socket])
        stack.callback(loader.close)
        Group([loader]).ask(f"preload bench {self.path}")
        self.bare_servers = {}

    def _common(self, consumers, batch):
        return ["--file", self.path, "--samples", self.samples, "--bytes", self.sample_bytes, "--batch", batch, "--slots", 4,
                "--consumers", consumers]

    def reader(self, program, rest, consumers=1, batch=BATCH, servers=()):
        worker = Worker([*self.network.inside(0), self.suite.program(program), *self._common(consumers, batch), "--first", 0, "--all",
                         consumers, *(["--spread", 1] if self.network.cpus else []), *rest], servers)
        self.stack.callback(worker.close)
        group = Group([worker])
        return group

    def leat(self, limit=0, **more):
        group = self.reader("read_leat", [self.cluster.daemons[0].socket, "leat://bench", "best", *([limit] if limit else [])],
                            servers=[d.pid for d in self.cluster.daemons], **more)
        if not limit and group.ask("verify")["verified"] != self.samples:
            raise Failed("read_leat did not read every sample")
        return group

    def bare(self, hosts=(1,), link=0, ordered=False, **more):
        """Bare request and reply with some server hosts. ordered: a batch has its samples as Leat does, not as is best for sockets."""
        servers = [self.bare_server(host, link) for host in hosts]
        group = self.reader("tcp_bare", ["read", ",".join(self.network.address(host, link) for host in hosts), PORT + link,
                                         *(["ordered"] if ordered else [])], servers=[s.pid for s in servers], **more)
        if ordered and group.ask("verify")["verified"] != self.samples:
            raise Failed("tcp_bare did not read every sample")
        return group

    def bare_server(self, host, link):
        if (host, link) not in self.bare_servers:
            port = PORT + link
            argv = [*self.network.inside(host), self.suite.program("tcp_bare"), *self._common(1, 256), "serve",
                    self.network.address(host, link), port]
            listening = [*self.network.inside(host), "ss", "-Hltn", f"sport = :{port}"]
            server = Daemon(argv, lambda: "LISTEN" in command(*listening), os.path.join(self.folder, f"bare{host}.{port}.log"))
            self.stack.callback(server.close)
            self.bare_servers[host, link] = server
        return self.bare_servers[host, link]


class Suite(Base):
    def __init__(self, args, emit):
        super().__init__(args, emit)
        self.seconds = 1 if args.quick else 4

    def data_of(self, samples, sample_bytes):
        return self.args.data.sized(samples, sample_bytes)

    def timed(self, group, network=None, seconds=None):
        def measure():
            group.ask("run 0.3")  # adapt, and leave behind what the neighbour's packets did to the queue
            before, busy = network.dropped() if network else 0, busy_seconds()
            got = group.ask(f"run {seconds or self.seconds}")
            gigabytes, busy = got["bytes"] / 1e9, busy_seconds() - busy
            return {"rate": got["bytes"] / got["ns"] * 1000, "p99": got["p99_us"] / 1000, "p50": got["p50_us"] / 1000,
                    "cpu": got["cpu_s"] / gigabytes, "machine": busy / gigabytes, "drops": network.dropped() - before if network else 0}
        return measure

    # --- incast ----------------------------------------------------------------------------------------------------

    def incast(self):
        if not self.wanted("incast"):
            return
        with contextlib.ExitStack() as stack:
            rig = Rig(self, stack, SERVERS)
            ours, bare, all_at_once, eight = rig.leat(), rig.bare(), rig.leat(NO_CREDITS), rig.bare(hosts=range(1, SERVERS + 1))
            for rate, tc_rate in RATES.items():
                for queue in QUEUES:
                    for gso in ("on", "off"):
                        metric = f"incast.{rate}.{queue}.{gso}"
                        if self.wanted(metric):
                            rig.network.shape(tc_rate, queue, gso == "on")
                            settle(ours)
                            self.cell(metric, rig, (ours, bare, all_at_once, eight), (tc_rate, queue, gso == "on"))
            if self.wanted("incast.sweep"):
                self.sweep(rig, ours)

    def deep(self, group, network, shape):
        """Through a queue that refuses nothing, which is put back."""
        rate, _, gso = shape

        def measure():
            network.shape(rate, DEEP, gso)
            try:
                return self.timed(group, network)()
            finally:
                network.shape(*shape)
        return measure

    def cell(self, metric, rig, groups, shape):
        ours, bare, all_at_once, eight = groups
        got = in_turns({"leat": self.timed(ours, rig.network), "limit": self.timed(bare, rig.network),
                        "without credits": self.timed(all_at_once, rig.network), "eight bare": self.deep(eight, rig.network, shape)},
                       self.args.repeats)
        leat, limit = got["leat"], got["limit"]
        about = {"servers": SERVERS, "batch_bytes": BATCH * SAMPLE, "mtu": 1500,
                 "dropped": {name: median(got[name]["drops"]) for name in got},
                 "p50_ms": {name: median(got[name]["p50"]) for name in got},
                 "credit": (rig.cluster.status()["credits"] or [{}])[0]}
        others = {"without credits": "without credits", "eight bare flows, a queue that holds them": "eight bare"}

        def put(end, unit, figure, **more):
            self.put(row(metric + end, unit, leat[figure], limit[figure], {said: got[name][figure] for said, name in others.items()},
                         "one bare flow through the same queue", **more))
        put(".goodput", "MB/s", "rate", **about)
        put(".p99", "ms", "p99", **about)
        put(".cpu", "CPU-s/GB", "cpu")
        put(".machine", "CPU-s/GB", "machine")

    def sweep(self, rig, ours):
        fixed = {k: rig.leat(k * KIB) for k in SWEEP}
        for rate, tc_rate in RATES.items():
            for queue in QUEUES:
                rig.network.shape(tc_rate, queue, True)
                settle(ours)
                cases = {"adapting": self.timed(ours, rig.network, self.seconds / 2)}
                cases.update({f"{k} KiB": self.timed(g, rig.network, self.seconds / 2) for k, g in fixed.items()})
                got = in_turns(cases, max(self.args.repeats // 2, 2))
                best = max((f"{k} KiB" for k in SWEEP), key=lambda name: median(got[name]["rate"]))
                self.put(row(f"incast.sweep.{rate}.{queue}", "MB/s", got["adapting"]["rate"], got[best]["rate"],
                             {name: got[name]["rate"] for name in cases if name != "adapting"}, f"the best fixed limit ({best})",
                             p99_ms={name: median(got[name]["p99"]) for name in cases},
                             dropped={name: median(got[name]["drops"]) for name in cases}))

    # --- four servers, no shaping ------------------------------------------------------------------------------------

    def servers4(self):
        for name, size, consumers, batch in (("4k", (65536, 4 * KIB), 2, 64), ("64k", (8192, 64 * KIB), 2, 64),
                                             ("150k", (2048, 150528), 2, 64), ("1m", (512, MIB), 2, 64)):
            metric = f"servers4.{name}"
            if not self.wanted(metric):
                continue
            with contextlib.ExitStack() as stack:
                rig = Rig(self, stack, 4, size=(size[0] // (4 if self.args.quick else 1), size[1]), own_cpus=True)
                many = {"consumers": consumers, "batch": batch}
                cases = {"leat": rig.leat(**many), "limit": rig.bare(hosts=(1, 2, 3, 4), **many),
                         "ordered": rig.bare(hosts=(1, 2, 3, 4), ordered=True, **many), "one": rig.bare(**many)}
                got = in_turns({name: self.timed(group, seconds=1) for name, group in cases.items()}, self.args.repeats)
                for figure, unit, suffix in (("rate", "GB/s", ""), ("cpu", "CPU-s/GB", ".cpu")):
                    scale = 1000 if figure == "rate" else 1
                    one = {name: [v / scale for v in got[name][figure]] for name in got}
                    self.put(row(metric + suffix, unit, one["leat"], one["limit"], {"bare sockets to one of them": one["one"]},
                                 "bare sockets to the same servers", ordered=beside(one["leat"], one["ordered"])))

    # --- rails -----------------------------------------------------------------------------------------------------

    def rails(self):
        if not self.wanted("rails.tcp"):
            return
        rates = {}
        with contextlib.ExitStack() as stack:
            for links in (1, 2):
                rig = Rig(self, stack, 2, links=links)
                rig.network.shape("400mbit", 256)
                rates[links] = self.timed(rig.leat(), rig.network)
                if links == 2:
                    bare = self.timed(rig.bare(link=0), rig.network)
            got = in_turns({"two": rates[2], "one": rates[1], "bare": bare}, self.args.repeats)
        self.put(row("rails.tcp", "MB/s", got["two"]["rate"], got["one"]["rate"], {"one bare flow over one rail": got["bare"]["rate"]},
                     "Leat over one rail", mbit=400))


def run(args, emit):
    for tool in ("ip", "tc", "ethtool", "ss"):
        if not shutil.which(tool):
            raise Failed(f"{tool} is not installed (apt-get install iproute2 ethtool)")
    suite = Suite(args, emit)
    suite.incast()
    suite.servers4()
    suite.rails()

