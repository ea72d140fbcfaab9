# SPDX-License-Identifier: Apache-2.0
"""What the loaders in Python have in common: the command line, the clock, and driver.h's conversation with bench/run.

A line is answered with a line of JSON:
    verify          one epoch, untimed: every sample to check_samples                      -> {"verified": samples}
    run SECONDS     batches, epoch after epoch, until the time is over                     -> {"bytes", "ns", "samples", "batches", "p50_us", "p99_us"}
    epoch           one whole epoch from its beginning                                     -> the same and "first_ns"
A reader is an object with epoch(e) -> iterable of batches, and samples(batch) -> the samples of a batch as buffers. No reader looks into a batch
while time runs: it is taken, and dropped when the next one is there.
"""
import argparse
import json
import os
import resource
import struct
import subprocess
import sys
from time import perf_counter_ns


def arguments(*more, **numbers):
    """Namespace: --file --samples --bytes (of a sample, or of all for files) --batch --first --all --build --workers, and `more` as text."""
    parser = argparse.ArgumentParser()
    for name in ("samples", "bytes", "batch", "slots", "consumers", "first", "all", "workers"):
        parser.add_argument("--" + name, type=int, default=numbers.get(name, 0 if name in ("first", "workers") else 1))
    for name in ("file", "build", "orders", *more):
        parser.add_argument("--" + name)
    parser.add_argument("rest", nargs="*")
    return parser.parse_args()


def check(args, reader):
    program = subprocess.Popen([os.path.join(args.build, "bench/check_samples"), str(args.samples)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=False)
    for batch in reader.epoch(0):
        for sample in reader.samples(batch):
            view = memoryview(sample).cast("B")
            program.stdin.write(struct.pack("<Q", len(view)))
            program.stdin.write(view)
    program.stdin.write(bytes(8))  # the end: workers of a loader may have this pipe open as well
    program.stdin.flush()
    came = program.stdout.readline()
    program.stdin.close()
    program.wait()
    if program.returncode:
        sys.exit("wrong samples")
    return int(came or 0)


def _reaped():
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime


def answer(latencies, count, total_bytes, ns, **more):
    latencies.sort()
    return {"bytes": total_bytes, "ns": ns, "samples": count, "batches": len(latencies), "p50_us": latencies[len(latencies) // 2] / 1e3,
            "p99_us": latencies[len(latencies) * 99 // 100] / 1e3, **more}


class Server:
    def __init__(self, args, reader):
        self.args, self.reader, self.number = args, reader, 0
        self.batches = None

    def run(self, seconds):
        lat = []
        begin = now = perf_counter_ns()
        end = begin + int(seconds * 1e9)
        while now < end:
            if self.batches is None:
                self.batches = iter(self.reader.epoch(self.number % 3))
                self.number += 1
            for _batch in self.batches:
                then = perf_counter_ns()
                lat.append(then - now)
                now = then
                if now >= end:
                    break
            else:
                self.batches = None
        count = len(lat) * self.args.batch
        return answer(lat, count, count * self.args.bytes, now - begin)

    def epoch(self):
        lat, count = [], 0
        begin = now = perf_counter_ns()
        for batch in self.reader.epoch(self.number % 3):
            then = perf_counter_ns()
            lat.append(then - now)
            now = then
            count += self.reader.count(batch)
        self.number += 1
        if not lat:
            sys.exit("no batch came")
        return answer(lat, count, self.args.bytes, perf_counter_ns() - begin, first_ns=lat[0])

    def line(self, line):
        if line.startswith("verify"):
            return {"verified": check(self.args, self.reader)}
        reaped = _reaped()
        got = self.epoch() if line.startswith("epoch") else self.run(float(line.split()[1]))
        got["reaped_cpu_s"] = _reaped() - reaped
        return got


def serve(args, reader):
    print(json.dumps({"ready": True}), flush=True)
    server = Server(args, reader)
    for line in sys.stdin:
        got = reader.line(line) if hasattr(reader, "line") else None
        print(json.dumps(got or server.line(line)), flush=True)
