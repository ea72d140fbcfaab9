# SPDX-License-Identifier: Apache-2.0
"""Suite `loader`, batches of resident arrays.

loader.resident.*        leat.Loader against ReadBatch in C (read_leat), same daemon, same set, same order, same slots: `for batch in loader: batch[field]`,
                         making and dropping the batch and the array counted. Neither side looks into what it got. .4k, .150k; .b256; .procs: two ranks
loader.vs_dataloader.*   against torch's DataLoader over the same .npy mapped, the same order: default collate of items (items), and the best that
                         can be written with it, one fancy-indexed gather a batch (gather); 0, 1, 2 workers. .workers: the best with 1 and 2 is the
                         limit; .inline: the best with 0
loader.restart           a new process of a resumed job: import, open, Loader, state, first batch, in ms; promised: 1,000
"""
import contextlib
import json
import os
import subprocess

from . import read
from .rows import in_turns, median, row
from .suite import note
from .workers import Failed, Group, Worker, leatd

GIB = 1 << 30
LOADERS = os.path.join(read.HERE, "loaders")
KEPT = 0.85  # promised of ReadBatch in C
TIMES = 3  # promised of DataLoader with workers
RESTART_MS = 1000


class Suite(read.Suite):
    def __init__(self, args, emit):
        super().__init__(args, emit)
        self.plain, self.torch = _python("import numpy"), _python("import numpy, torch")

    def loader(self, stack, script, array, batch, rest=(), servers=(), processes=1, orders=None):
        """A reader in Python (or read_leat), checked."""
        python = self.torch if script == "torch_read.py" else self.plain
        argv = [python, os.path.join(LOADERS, script), "--build", self.args.build] if script.endswith(".py") else [self.program(script)]
        workers = []
        for i in range(processes):
            workers.append(Worker([*argv, "--file", array.path, "--samples", array.samples, "--bytes", array.sample_bytes, "--batch", batch,
                                   "--slots", read.SLOTS, "--consumers", 1, "--first", i, "--all", processes,
                                   *(["--orders", orders] if orders else []), *rest], servers))
            stack.callback(workers[-1].close)
        group = Group(workers)
        found = group.ask("verify")["verified"]
        if found != array.samples:
            raise Failed(f"{script} read {found} samples of {array.samples}")
        return group

    @contextlib.contextmanager
    def served(self, array):
        """A daemon that has the array, and the orders that a loader goes through it."""
        with contextlib.ExitStack() as stack:
            daemon = leatd(self.args.build, self.args.folder, 4 * GIB, self.huge)
            stack.callback(daemon.close)
            loader = Worker([self.program("load_leat"), daemon.socket])
            stack.callback(loader.close)
            Group([loader]).ask(f"preload bench {array.path}")
            orders = os.path.join(self.args.folder, f"orders-{array.name}")
            with contextlib.closing(Worker([self.plain, os.path.join(LOADERS, "leat_read.py"), "--build", self.args.build, "--batch", 1,
                                            "--slots", read.SLOTS, daemon.socket, "leat://bench"])) as one:
                Group([one]).ask(f"orders {orders}")
            yield daemon, orders

    def resident(self, size, array, daemon, orders):
        about = {"samples": array.samples, "sample_bytes": array.sample_bytes, "huge_pages": self.huge}
        for batch, processes, variant in ((64, 1, ""), (256, 1, ".b256"), (64, read.CONSUMERS, ".procs")):
            metric = f"loader.resident.{size}{variant}"
            if not self.wanted_exactly(metric) and not self.wanted_exactly(metric + ".cpu"):
                continue
            with contextlib.ExitStack() as stack:
                ours = self.loader(stack, "leat_read.py", array, batch, [daemon.socket, "leat://bench"], [daemon.pid], processes)
                inc = self.loader(stack, "read_leat", array, batch, ["--pages", "huge" if self.huge else "base", daemon.socket, "leat://bench", "shm"],
                                  [daemon.pid], processes, orders)
                got = in_turns({"leat": self.timed(ours), "limit": self.timed(inc)}, self.args.repeats)
                self.rate_rows(metric, got, [], "ReadBatch in C", batch=batch, consumers=processes, promise=KEPT, **about)

    def against_torch(self, size, array, daemon, orders):
        metric = f"loader.vs_dataloader.{size}"
        if not self.wanted(metric):
            return
        if not self.torch:
            note(f"{metric}: left out, no Python here has torch (tools/deps demo)")
            return
        about = {"samples": array.samples, "sample_bytes": array.sample_bytes, "batch": 64, "promise": TIMES}
        with contextlib.ExitStack() as stack:
            cases = {"leat": self.timed(self.loader(stack, "leat_read.py", array, 64, [daemon.socket, "leat://bench"], [daemon.pid]))}
            for workers in (0, 1, 2):
                for how in ("items", "gather"):
                    group = self.loader(stack, "torch_read.py", array, 64, ["--workers", workers, how], orders=orders)
                    cases[f"DataLoader {how}, {workers} workers"] = self.timed(group)
            got = in_turns(cases, self.args.repeats)
        rivals = [name for name in cases if name != "leat"]
        for end, some, promise in ((".workers", [n for n in rivals if " 0 " not in n], TIMES), (".inline", [n for n in rivals if " 0 " in n], 1)):
            best = max(some, key=lambda name: median(got[name]["rate"]))
            got["limit"] = got[best]
            self.rate_rows(metric + end, got, some, best, **dict(about, promise=promise))

    # --- a job that starts again ---

    def restart(self, daemon):
        if not self.wanted_exactly("loader.restart"):
            return
        script = os.path.join(LOADERS, "restart.py")

        def measure():
            out = subprocess.run([self.plain, script, self.args.build, daemon.socket, "leat://bench"], capture_output=True, text=True)
            if out.returncode:
                raise Failed("restart.py: " + out.stderr.strip()[-400:])
            return json.loads(out.stdout)

        measure()
        got = in_turns({"leat": measure}, 2 * self.args.repeats)["leat"]
        parts = {name: round(median(values), 2) for name, values in got.items() if name != "all_ms"}
        self.put(row("loader.restart", "ms", got["all_ms"], RESTART_MS, limit_name="promised", parts=parts))


def _python(what):
    import sys
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", what], capture_output=True).returncode == 0:
            return python
    return None


def run(args, emit):
    suite = Suite(args, emit)
    if not suite.wanted("loader.resident", "loader.vs_dataloader", "loader.restart"):
        return
    if not suite.plain:
        raise Failed("the suite loader needs a Python with numpy: apt-get install python3-numpy")
    for size in ("4k", "150k"):
        if not suite.wanted(f"loader.resident.{size}", f"loader.vs_dataloader.{size}", "loader.restart"):
            continue
        array = suite.data.array(size)
        with suite.served(array) as (daemon, orders):
            suite.resident(size, array, daemon, orders)
            suite.against_torch(size, array, daemon, orders)
            if size == "150k":
                suite.restart(daemon)
