#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same reads as people do them without a service: numpy.load(mmap_mode="r") and array[ids], one process a consumer.

Speaks as the C readers do (driver.h): --file --samples --bytes --batch --first --all; lines verify, run SECONDS.
"""
import argparse
import json
import sys
import time

import numpy as np


def main():
    parser = argparse.ArgumentParser()
    for name in ("samples", "bytes", "batch", "slots", "consumers", "first", "all"):
        parser.add_argument("--" + name, type=int, default=1)
    parser.add_argument("--file")
    args = parser.parse_args()
    array = np.load(args.file, mmap_mode="r")
    assert array.shape == (args.samples, args.bytes)
    orders = [np.random.default_rng(e).permutation(args.samples) for e in range(3)]
    group = args.batch * args.all
    steps = args.samples // group
    step = 0
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if line.startswith("verify"):
            checked = 0
            for at in range(args.first * args.batch, args.samples, group):
                ids = orders[0][at:at + args.batch]
                batch = array[ids]
                heads = batch[:, :8].copy().view("<u8")[:, 0]
                assert (heads == ids).all(), "wrong samples"
                checked += len(ids)
            print(json.dumps({"verified": checked}), flush=True)
            continue
        seconds = float(line.split()[1])
        start = now = time.monotonic_ns()
        lat = []
        while now - start < seconds * 1e9:
            at = step % steps * group + args.first * args.batch
            batch = array[orders[step // steps % 3][at:at + args.batch]]
            step += 1
            before, now = now, time.monotonic_ns()
            lat.append(now - before)
        lat.sort()
        print(json.dumps({"bytes": len(lat) * args.batch * args.bytes, "ns": now - start,
                          "samples": len(lat) * args.batch, "batches": len(lat),
                          "p50_us": lat[len(lat) // 2] / 1e3, "p99_us": lat[len(lat) * 99 // 100] / 1e3}), flush=True)


main()
