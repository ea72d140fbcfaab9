# SPDX-License-Identifier: Apache-2.0
"""What this machine gives a program that does nothing else, and Leat doing the same work: measured in turns.

Few megabytes and one thread: enough to see where things stand. `make bench` is the measurement to quote.
"""

import ctypes
import os
import statistics
import time

import numpy as np

TURNS = 7


def median_seconds(*workloads):
    """Runs the workloads in turns, so that a noisy neighbour meets all of them. Medians, in their order."""
    times = [[] for _ in workloads]
    for turn in range(TURNS + 1):
        for workload, seconds in zip(workloads, times):
            start = time.perf_counter()
            workload()
            if turn:  # the first turn warms up
                seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]


def read_files(paths):
    """open, read, close: one thread, into memory that is used again."""
    buffer = memoryview(bytearray(max(os.path.getsize(p) for p in paths)))

    def workload():
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            while os.readv(fd, [buffer]) > 0:
                pass
            os.close(fd)
    return workload


def gather_memcpy(samples, batches, slots=4):
    """memcpy of the same samples in the same order, out of one buffer into a ring of `slots`. No checksum, no index. Leat may be
    faster: where the pool has huge pages, and because its copy prefetches the next sample."""
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in samples])]).tolist()
    source = ctypes.create_string_buffer(b"".join(samples))
    largest = max(sum(len(samples[i]) for i in ids) for ids in batches)
    ring = [ctypes.create_string_buffer(largest) for _ in range(slots)]
    base, bases = ctypes.addressof(source), [ctypes.addressof(slot) for slot in ring]
    copy = ctypes.memmove

    def workload():
        for n, ids in enumerate(batches):
            at = bases[n % slots]
            for i in ids:
                size = offsets[i + 1] - offsets[i]
                copy(at, base + offsets[i], size)
                at += size
    workload.keep = (source, ring)
    return workload


def gather_leat(ws, batches):
    """The same through Leat: each sample checked against its CRC32C on the way."""
    def workload():
        for ids in batches:
            ws.read_batch(ids).release()
    return workload
