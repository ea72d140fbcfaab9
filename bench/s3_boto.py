#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""boto3 under http_get.h's options and lines: a thread for each connection, as its users do it; get_object, read, a copy into the destination."""
import argparse
import concurrent.futures
import json
import os
import random
import sys
import threading
import time

import boto3
import botocore.config

p = argparse.ArgumentParser()
for name in ("--host", "--bucket", "--root", "--ca"):
    p.add_argument(name)
for name in ("--port", "--bytes", "--connections", "--depth", "--of", "--objects"):
    p.add_argument(name, type=int, default=0)
args = p.parse_args()
count = args.of // args.bytes if args.of else args.objects
workers = args.connections
config = botocore.config.Config(max_pool_connections=workers, s3={"addressing_style": "path"}, retries={"max_attempts": 1})
client = boto3.client("s3", endpoint_url=f"http{'s' if args.ca else ''}://{args.host}:{args.port}", region_name="us-east-1", config=config,
                      verify=args.ca or None)
slots = max(64 << 20, 2 * workers * args.bytes) // args.bytes
ring = memoryview(bytearray(slots * args.bytes))
order = list(range(count))
random.Random(1).shuffle(order)
step, lock = 0, threading.Lock()


def one(number, slot):
    if args.of:
        first = number * args.bytes
        got = client.get_object(Bucket=args.bucket, Key="data", Range=f"bytes={first}-{first + args.bytes - 1}")
    else:
        got = client.get_object(Bucket=args.bucket, Key=f"o/{number:06d}")
    ring[slot * args.bytes:(slot + 1) * args.bytes] = got["Body"].read()


def consume(end):
    global step
    times = []
    while time.monotonic() < end:
        with lock:
            number, slot = order[step % count], step % slots
            step += 1
        begin = time.monotonic()
        one(number, slot)
        times.append(time.monotonic() - begin)
    return times


pool = concurrent.futures.ThreadPoolExecutor(workers)
print(json.dumps({"ready": True, "pid": os.getpid()}), flush=True)
for line in sys.stdin:
    word, _, seconds = line.strip().partition(" ")
    if word == "verify":
        with open(os.path.join(args.root, args.bucket, "data" if args.of else f"o/{order[0]:06d}"), "rb") as f:
            f.seek(order[0] * args.bytes if args.of else 0)
            one(order[0], 0)
            assert ring[:args.bytes] == f.read(args.bytes)
        print(json.dumps({"verified": count}), flush=True)
        continue
    began = time.monotonic()
    times = sorted(t for some in pool.map(consume, [began + float(seconds)] * workers) for t in some)
    print(json.dumps({"bytes": len(times) * args.bytes, "ns": int((time.monotonic() - began) * 1e9), "samples": len(times),
                      "p50_us": times[len(times) // 2] * 1e6, "p99_us": times[len(times) * 99 // 100] * 1e6}), flush=True)
