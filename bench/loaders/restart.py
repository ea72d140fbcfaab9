#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""restart.py BUILD SOCKET URI: what a job waits for that starts again in the middle of an epoch: milliseconds of each part as JSON."""
import os
import time

START = time.clock_gettime(time.CLOCK_BOOTTIME)
import json  # noqa: E402
import sys  # noqa: E402

build, socket, uri = sys.argv[1:4]
sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"), os.path.join(build, "python")]


def since_exec():
    """Seconds that this process had lived when its first line ran."""
    with open("/proc/self/stat") as f:
        ticks = int(f.read().rsplit(")", 1)[1].split()[19])
    return max(0.0, START - ticks / os.sysconf("SC_CLK_TCK"))


laps = [time.perf_counter()]


def lap():
    laps.append(time.perf_counter())
    return 1e3 * (laps[-1] - laps[-2])


import numpy  # noqa: E402,F401

parts = {"python_ms": 1e3 * since_exec(), "numpy_ms": lap()}
import leat  # noqa: E402

parts["import_ms"] = lap()
ws = leat.open(uri, socket=socket)
parts["open_ms"] = lap()
loader = leat.Loader(ws, 64, seed=1)
state = loader.state_dict()
state["samples"] = 64 * (len(loader) // 2)
loader.load_state_dict(state)
parts["loader_ms"] = lap()
batch = next(iter(loader))
batch[ws.fields[0].name][0, 0]
parts["first_batch_ms"] = lap()
print(json.dumps({"all_ms": sum(parts.values()), **parts}))
