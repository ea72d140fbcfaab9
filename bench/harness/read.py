# SPDX-License-Identifier: Apache-2.0
"""Suite `read`: what a training process sees of Leat, beside what this machine could give.

Every figure is taken in turns (rows.in_turns): ours, the limit, the rivals, and again; one that is out of luck is
out of luck together. Every program first reads all samples and checks index and CRC, untimed.
"""
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time

from . import supervisor
from .data import SIZES
from .rows import beside, in_turns, row
from .suite import Base, note
from .workers import Failed, Group, MemoryWatch, Worker, leatd, redis

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONSUMERS, SLOTS = 2, 4
GIB = 1 << 30
PROMISE_POOL_MS, PROMISE_COLD_MS, PROMISE_MIB = 20, 100, 64


class Suite(Base):
    def __init__(self, args, emit):
        super().__init__(args, emit)
        self.seconds = 0.2 if args.quick else 0.5
        self.huge = self.huge_pages()
        self.fill_threads = min(max(os.cpu_count(), 4), 8)  # as leatd chooses

    def huge_pages(self):
        """Does leatd get huge pages here? The limits get what it gets."""
        with contextlib.closing(leatd(self.args.build, self.args.folder, GIB)) as daemon:
            out = subprocess.run([os.path.join(self.args.build, "src/apps/leat"), "--socket", daemon.socket, "status", "--json"],
                                 capture_output=True, text=True)
            if out.returncode:
                raise Failed("leat status: " + out.stderr.strip())
            return "huge" in json.loads(out.stdout).get("pool", {}).get("page_source", "")

    # --- readers ---------------------------------------------------------------------------------------------------

    def reader(self, stack, program, array, batch, rest=(), servers=(), processes=1):
        """Starts a reader, has it read and check everything, and returns its Group; it ends with `stack`."""
        argv = [self.python(), os.path.join(HERE, program)] if program.endswith(".py") \
            else [self.program(program)]
        workers = []
        for i in range(processes):
            each = CONSUMERS // processes
            workers.append(Worker(argv + ["--file", array.path, "--samples", array.samples, "--bytes", array.sample_bytes,
                                          "--batch", batch, "--slots", SLOTS, "--consumers", each, "--first", i * each,
                                          "--all", CONSUMERS, *(["--pages", "huge" if self.huge else "base"] * (not program.endswith(".py"))),
                                          *rest], servers))
            stack.callback(workers[-1].close)
        group = Group(workers)
        found = group.ask("verify")["verified"]
        if found != array.samples:
            raise Failed(f"{program} read {found} samples of {array.samples}")
        return group

    @staticmethod
    def python():
        """An interpreter that has numpy, or None."""
        for python in (sys.executable, "/usr/bin/python3"):
            if subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode == 0:
                return python
        return None

    def timed(self, group, mode=None):
        def measure():
            if mode:
                group.ask("mode " + mode)
            got = group.ask(f"run {self.seconds}")
            return {"rate": got["bytes"] / got["ns"], "cpu": got["cpu_s"] / (got["bytes"] / 1e9),
                    "p50_us": got["p50_us"], "p99_us": got["p99_us"]}
        return measure

    def redis_reader(self, stack, server, array, batch, address, how):
        if not server or not os.path.exists(self.program("redis_read")):
            return None
        return self.reader(stack, "redis_read", array, batch, [address, how], [server.pid])

    def ddstore(self, stack, array, batch):
        from . import ddstore
        return ddstore.reader(self, stack, array, batch, CONSUMERS)

    # --- same host and loopback TCP --------------------------------------------------------------------------------

    def rate_rows(self, metric, got, rivals, limit_name, **more):
        def of(figure):
            return {name: got[name][figure] for name in rivals if name in got}
        leat, limit = got["leat"], got["limit"]
        latency = {"p50_us": sorted(leat["p50_us"])[len(leat["p50_us"]) // 2],
                   "p99_us": sorted(leat["p99_us"])[len(leat["p99_us"]) // 2]}

        memcpy = {"memcpy": beside(leat["rate"], got["memcpy"]["rate"])} if "memcpy" in got else {}
        self.put(row(metric, "GB/s", leat["rate"], limit["rate"], of("rate"), limit_name, **more, **latency,
                     **memcpy))
        self.put(row(metric + ".cpu", "CPU-s/GB", leat["cpu"], limit["cpu"], of("cpu"), limit_name, **more))

    def reads(self, size, suffix=""):
        shm, tcp = f"shm.{size}{suffix}", f"tcp.{size}{suffix}"
        if not self.wanted(shm, tcp):
            return
        array = self.data.array(size)
        with contextlib.ExitStack() as stack:
            daemon = leatd(self.args.build, self.args.folder, 4 * GIB, self.huge)
            stack.callback(daemon.close)
            loader = Worker([self.program("load_leat"), daemon.socket])
            stack.callback(loader.close)
            Group([loader]).ask(f"preload bench {array.path}")
            server = redis(self.args.folder) if not suffix else None
            if server:
                stack.callback(server.close)
            uri = "leat://bench"
            about = {"samples": array.samples, "sample_bytes": array.sample_bytes, "huge_pages": self.huge}
            filled = False

            def redis_case(stack, batch, tcp):
                nonlocal filled
                if not server:
                    return None
                case = self.redis_reader(stack, server, array, batch, server.address if tcp else server.socket,
                                         "keep" if filled else "fill")
                filled = True
                return case

            variants = [(64, 1, "")]
            if not suffix and not self.args.quick and size in ("4k", "64k"):  # of 1 MiB they would be 2 GiB a reader
                variants += [(256, 1, ".b256")]
            if size == "150k" and not suffix and not self.args.quick:
                variants += [(64, CONSUMERS, ".procs")]
            for batch, processes, variant in variants:
                if self.wanted(shm, shm + variant):
                    with contextlib.ExitStack() as inner:
                        self.shm(inner, shm + variant, array, batch, processes, daemon, uri, redis_case, about)
                if processes == 1 and not suffix and self.wanted(tcp, tcp + variant):
                    with contextlib.ExitStack() as inner:
                        self.tcp(inner, tcp + variant, array, batch, daemon, uri, redis_case, about)

    def shm(self, stack, metric, array, batch, processes, daemon, uri, redis_case, about):
        if not self.wanted_exactly(metric) and not self.wanted_exactly(metric + ".cpu"):
            return
        ours = self.reader(stack, "read_leat", array, batch, [daemon.socket, uri, "shm"], [daemon.pid], processes)
        bare = self.reader(stack, "gather_limit", array, batch, processes=processes)
        cases = {"leat": self.timed(ours), "limit": self.timed(bare, "crc"), "memcpy": self.timed(bare, "memcpy")}
        if processes == 1 and not metric.endswith(".base"):
            case = redis_case(stack, batch, False)
            if case:
                cases["redis (unix socket)"] = self.timed(case)
            if self.python():
                cases["numpy memmap[ids]"] = self.timed(
                    self.reader(stack, "numpy_read.py", array, batch, processes=CONSUMERS))
            case = self.ddstore(stack, array, batch)
            if case:
                cases["DDStore (MPI)"] = self.timed(case)
        got = in_turns(cases, self.args.repeats)
        self.rate_rows(metric, got, [c for c in cases if c not in ("leat", "limit", "memcpy")],
                       "gather with fused CRC32C", batch=batch, consumers=CONSUMERS, **about)

    def tcp(self, stack, metric, array, batch, daemon, uri, redis_case, about):
        if not self.wanted_exactly(metric) and not self.wanted_exactly(metric + ".cpu"):
            return
        try:
            ours = self.reader(stack, "read_leat", array, batch, [daemon.socket, uri, "tcp"], [daemon.pid])
        except Failed as why:
            note(f"{metric}: {why}")
            return
        bare = self.reader(stack, "tcp_bare", array, batch)
        cases = {"leat": self.timed(ours), "limit": self.timed(bare)}
        case = redis_case(stack, batch, True)
        if case:
            cases["redis (TCP)"] = self.timed(case)
        got = in_turns(cases, self.args.repeats)
        self.rate_rows(metric, got, [c for c in cases if c not in ("leat", "limit")],
                       "bare socket request and reply", batch=batch, consumers=CONSUMERS, **about)

    # --- preload ---------------------------------------------------------------------------------------------------

    def preloads(self, suffix=""):
        """Into memory that is ready, as a node's daemon has it, and (.fresh) into memory that has to be got first."""
        kinds = [k for k in ("cold", "warm", "small", "small.cold")
                 if self.wanted_exactly(f"preload.{k}{suffix}") or self.wanted(f"preload.{k}{suffix}.fresh")
                 or self.wanted(f"preload.{k}{suffix}.cpu")]
        memory = "memory.preload" + suffix
        if suffix and not self.args.only:
            kinds = [k for k in kinds if not k.startswith("small")]
        if not kinds and not self.wanted(memory):
            return
        array, small = self.data.array("150k"), any(k.startswith("small") for k in kinds)
        files = self.data.files() if small else None
        with contextlib.ExitStack() as stack:
            needs = max(os.path.getsize(array.path), files.bytes if files else 0)
            ready_bytes = -(-needs // (1 << 29)) * (1 << 29) + (1 << 29)  # and one region, for the last, shorter one
            daemons = {"leat": leatd(self.args.build, self.args.folder, 4 * GIB, self.huge, ready_bytes),
                       "new": leatd(self.args.build, self.args.folder, 4 * GIB, self.huge)}
            ours = {}
            for name, daemon in daemons.items():
                stack.callback(daemon.close)
                ours[name] = Group([Worker([self.program("load_leat"), daemon.socket], [daemon.pid])])
                stack.callback(ours[name].close)
            bare = Group([Worker([self.program("pread_limit"), self.fill_threads, "huge" if self.huge else "base"])])
            stack.callback(bare.close)
            peaks = []

            def ready(before):
                got = bare.ask(before) if before else {}
                if got.get("cached", 0) > 10:
                    note(f"{got['cached']} per mille stay in the page cache: the cold figures are not cold")

            def preload(name, path, before=None, watch=False):
                def measure():
                    if name == "leat":
                        daemons[name].wait_ready()
                    ready(before)
                    with contextlib.ExitStack() as watching:
                        seen = watching.enter_context(MemoryWatch(daemons[name].pid)) if watch else None
                        got = ours[name].ask(f"preload bench {path}")
                    if seen:
                        peaks.append((max(seen.peak, seen.look()) - got["bytes"]) / (1 << 20))
                    ours[name].ask("drop bench")
                    return self.figures(got)
                return measure

            def limit(line, before=None):
                def measure():
                    ready(before)
                    return self.figures(bare.ask(line))
                return measure

            def copied(path, before=None):
                def measure():
                    ready(before)
                    return self.copy(path)
                return measure

            def checked(path):
                """Once: every CRC of the pool against the source's bytes as they were read."""
                for one in ours.values():
                    first = one.ask(f"preload bench {path}")
                    if one.ask("check bench")["bad"]:
                        raise Failed("preload: wrong bytes in the pool")
                    one.ask("drop bench")
                return first

            def turns(path, before, watch=False, **others):
                return in_turns({"leat": preload("leat", path, before), "new": preload("new", path, before, watch), **others}, self.args.repeats)

            if "cold" in kinds or "warm" in kinds or self.wanted_exactly(memory):
                checked(array.path)
            about = {"file_bytes": os.path.getsize(array.path)}
            if "cold" in kinds:
                cold = f"uncache {array.path}"
                got = turns(array.path, cold, True, limit=lambda: (ready(cold), self.fio(array.path))[1],
                            direct=limit(f"direct {array.path}", cold), cp=copied(array.path, cold))
                self.preload_rows("preload.cold" + suffix, got, "fio, direct, 1 MiB, depth 16", **about)
            if "warm" in kinds or (self.wanted_exactly(memory) and not peaks):
                bare.ask(f"resident {array.path}")  # makes the memory
                got = turns(array.path, f"warm {array.path}", True, limit=limit(f"resident {array.path}"), hot=limit(f"warm {array.path}"),
                            fresh=limit(f"fresh {array.path}"), cp=copied(array.path))
                self.preload_rows("preload.warm" + suffix, got, "pread into memory that is there", **about)
                bare.ask("forget")
            if peaks and self.wanted_exactly(memory):
                self.put(row(memory, "MiB", peaks, PROMISE_MIB, limit_name="promised: beyond the samples"))
            if small:
                bare.ask(f"list {files.path}")
                first = checked(files.path)
                about = {"files": files.files, "first_with_index_s": first["ns"] / 1e9}
                bare.ask("smallresident")
                if "small" in kinds:
                    got = turns(files.path, "small", limit=limit("smallresident"), hot=limit("small"), fresh=limit("smallfresh"),
                                cp=copied(files.path))
                    self.preload_rows("preload.small" + suffix, got, "open, fstat, pread, close", **about)
                if "small.cold" in kinds:
                    cold = "uncache ."
                    got = turns(files.path, cold, limit=limit("smallresident", cold), cp=copied(files.path, cold))
                    self.preload_rows("preload.small.cold" + suffix, got, "open, fstat, pread, close", **about)

    @staticmethod
    def figures(got):
        return {"rate": got["bytes"] / got["ns"], "cpu": got["cpu_s"] / (got["bytes"] / 1e9)}

    def preload_rows(self, metric, got, limit_name, **more):
        rivals = {"cp to /dev/shm": got["cp"]["rate"]}, {"cp to /dev/shm": got["cp"]["cpu"]}
        more["threads"] = self.fill_threads
        for name, who in ((metric, "leat"), (metric + ".fresh", "new")):
            for unit, figure, end, rival in (("GB/s", "rate", "", rivals[0]), ("CPU-s/GB", "cpu", ".cpu", rivals[1])):
                extra = dict(more)
                extra.update({key: beside(got[who][figure], got[key][figure]) for key in ("hot", "fresh", "direct") if key in got})
                self.put(row(name + end, unit, got[who][figure], got["limit"][figure], rival, limit_name, **extra))

    @staticmethod
    def copy(path):
        """What people do instead: cp to /dev/shm."""
        to = f"/dev/shm/{supervisor.mark()}cp"
        before = os.times()
        start = time.monotonic_ns()
        try:
            subprocess.run(["cp", "-r", path, to], check=True)
            ns = time.monotonic_ns() - start
            after = os.times()
            total = os.path.getsize(to) if os.path.isfile(to) else sum(
                os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(to) for f in fs)
        finally:
            if os.path.isdir(to):
                shutil.rmtree(to, ignore_errors=True)
            elif os.path.exists(to):
                os.unlink(to)
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        return {"rate": total / ns, "cpu": cpu / (total / 1e9)}

    def fio(self, path):
        part = os.path.getsize(path) // self.fill_threads // (1 << 20) << 20
        for engine in ("io_uring", "libaio"):
            out = subprocess.run(
                ["fio", "--name=x", f"--filename={path}", "--rw=read", "--direct=1", "--bs=1M", "--iodepth=16", "--readonly",
                 f"--ioengine={engine}", f"--numjobs={self.fill_threads}", f"--size={part}", f"--offset_increment={part}",
                 "--group_reporting", "--thread", "--output-format=json"], capture_output=True, text=True)
            if out.returncode == 0:
                job = json.loads(out.stdout[out.stdout.index("{"):])["jobs"][0]
                read = job["read"]
                # Percentages are of the time of one job.
                cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
                return {"rate": read["bw_bytes"] / 1e9, "cpu": cpu / (read["io_bytes"] / 1e9)}
        raise Failed(f"fio: {out.stderr.strip() or out.stdout.strip()}")

    # --- open ------------------------------------------------------------------------------------------------------

    def opens(self):
        for name, suffix in (("150k", ""), ("many", ".many")):
            warm, cold = "open.pool" + suffix, "open.cold" + suffix
            if not self.wanted_exactly(warm) and not self.wanted_exactly(cold):
                continue
            array = self.data.array(name)
            with contextlib.ExitStack() as stack:
                daemon = leatd(self.args.build, self.args.folder, 4 * GIB, self.huge)
                stack.callback(daemon.close)
                bare = Group([Worker([self.program("pread_limit"), 2])])
                stack.callback(bare.close)
                turn = iter(range(1, 1 << 30))

                def ask(line):
                    """A new process each time: nothing is left over from the time before."""
                    worker = Worker([self.program("load_leat"), daemon.socket], [daemon.pid])
                    try:
                        got = Group([worker]).ask(line)
                        return {"open": got["open_ns"] / 1e6, "first": got["first_ns"] / 1e6} if "open_ns" in got else got
                    finally:
                        worker.close()

                def index():
                    return next(turn) * 7919 * 104729 % array.samples

                def from_pool():
                    return ask(f"open leat://bench {index()}")

                def from_disk():
                    bare.ask(f"uncache {array.path}")
                    got = ask(f"openas cold {array.path} {index()}")
                    ask("drop cold")
                    return got

                ask(f"preload bench {array.path}")  # leaves the index at hand
                about = {"samples": array.samples, "sample_bytes": array.sample_bytes}
                got = in_turns({"pool": from_pool}, self.args.repeats * 2)["pool"]
                self.put(row(warm, "ms", got["first"], PROMISE_POOL_MS, limit_name="promised",
                             open_ms=sorted(got["open"])[len(got["open"]) // 2], **about))
                ask("drop bench")
                got = in_turns({"cold": from_disk}, self.args.repeats)["cold"]
                self.put(row(cold, "ms", got["first"], PROMISE_COLD_MS, limit_name="promised",
                             open_ms=sorted(got["open"])[len(got["open"]) // 2], **about))


def run(args, emit):
    suite = Suite(args, emit)
    for size in SIZES:
        suite.reads(size)
    suite.preloads()
    suite.opens()
    if suite.huge and (not args.quick or args.only):
        suite.huge = False  # from here on without
        for size in ("4k", "64k", "150k"):
            suite.reads(size, ".base")
        suite.preloads(".base")
