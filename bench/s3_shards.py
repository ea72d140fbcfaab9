#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What loaders do that fetch whole shards, one after another, over CONNECTIONS connections, as many as they have workers (WebDataset, and mosaicml-streaming,
which writes them to a disk as well): s3_shards.py HOST PORT CONNECTIONS. A line says "new" (a connection for each shard, as curl and a fresh client make one)
or "kept", and names shards ("/bench/a.tar /bench/b.tar"). Answers {"samples", "bytes", "ns"}. A sample is a file in a shard."""
import http.client
import io
import json
import os
import sys
import tarfile
import threading
import time

host, port, connections = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def fetch(paths, keep, found):
    server = http.client.HTTPConnection(host, port)
    for path in paths:
        server.request("GET", path)
        answer = server.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise OSError(f"{path}: status {answer.status}")
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            found.extend(len(tar.extractfile(member).read()) for member in tar)
        if not keep:
            server.close()  # the next request opens one
    server.close()


print(json.dumps({"ready": True, "pid": os.getpid()}), flush=True)
for line in sys.stdin:
    how, *shards = line.split()
    sizes = [[] for _ in range(connections)]
    begin = time.monotonic_ns()
    workers = [threading.Thread(target=fetch, args=(shards[k::connections], how == "kept", sizes[k])) for k in range(connections)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(json.dumps({"samples": sum(map(len, sizes)), "bytes": sum(map(sum, sizes)), "ns": time.monotonic_ns() - begin}), flush=True)
