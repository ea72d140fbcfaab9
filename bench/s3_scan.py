#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A prefix of objects read once, in order: by `leat.scan` ("scan URL"), or as a set ("open URL": opened, read in batches, dropped). Answers {"samples", "ns",
"first_ns"}: the last is when the first sample was there."""
import json
import os
import sys
import time

import leat

BATCH = 256
socket = sys.argv[1]


def scan(url):
    with leat.scan(url, socket=socket) as samples:
        for sample in samples:
            assert len(sample.data)
            yield 1


def opened(url):
    with leat.open(url, name="bench", socket=socket) as ws:
        for first in range(0, len(ws), BATCH):
            ids = range(first, min(first + BATCH, len(ws)))
            with ws.read_batch(ids):
                yield len(ids)
    leat.drop("bench", socket=socket)


print(json.dumps({"ready": True, "pid": os.getpid()}), flush=True)
for line in sys.stdin:
    word, url = line.split()
    begin = time.monotonic_ns()
    samples = first_ns = 0
    for n in {"scan": scan, "open": opened}[word](url):
        first_ns = first_ns or time.monotonic_ns() - begin
        samples += n
    print(json.dumps({"samples": samples, "ns": time.monotonic_ns() - begin, "first_ns": first_ns}), flush=True)
