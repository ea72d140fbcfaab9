#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One cold epoch of a set that is larger than its daemon's pool: "block URL" or "full URL" opens it, reads all of it in batches in that order, and drops it;
"index URL" only opens and drops it. Answers {"samples", "bytes", "ns"}: the clock runs from the opening to the last batch."""
import json
import os
import sys
import time

import leat

BATCH = 64
socket, field = sys.argv[1:]


def epoch(order, url):
    samples = size = 0
    with leat.open(url, name="bench", socket=socket) as ws:
        for batch in leat.Loader(ws, BATCH, shuffle=order, drop_last=False):
            sizes = [len(data) for data, valid in zip(batch[field], batch.valid) if valid]
            samples, size = samples + len(sizes), size + sum(sizes)
    return samples, size


def index(url):
    with leat.open(url, name="bench", socket=socket) as ws:
        return len(ws), 0


print(json.dumps({"ready": True, "pid": os.getpid()}), flush=True)
for line in sys.stdin:
    word, url = line.split()
    begin = time.monotonic_ns()
    count, total = index(url) if word == "index" else epoch(True if word == "block" else word, url)
    took = time.monotonic_ns() - begin
    leat.drop("bench", force=True, socket=socket)
    while leat.status(socket=socket)["pool"]["used_bytes"]:
        time.sleep(0.01)  # or the next one gets less of the pool
    print(json.dumps({"samples": count, "bytes": total, "ns": took}), flush=True)
