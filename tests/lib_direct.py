# SPDX-License-Identifier: Apache-2.0
"""Batches straight into a GPU's memory, with tests/fakecuda for the GPU: what a reader is to find, whatever stands for the NIC."""

import os
import re

import lib_data
import lib_host

FAKE = lib_host.BUILD / "tests/fakecuda/fakecuda.so"
#: Of a client: its fake GPU, whose memory a NIC of this host can reach.
ON_A_GPU = {"LEAT_LIBCUDA": str(FAKE), "FAKECUDA_NIC": "1"}

#: argv: socket, transport. read(...) goes through an epoch and returns how it came.
READER = lib_data.CLIENT + """
import ctypes, os
fake = ctypes.CDLL(os.environ["LEAT_LIBCUDA"])
def back(field):
    out = np.empty(field.shape, field.dtype)
    at = ctypes.c_ulonglong(field.__cuda_array_interface__["data"][0])
    assert fake.cuMemcpyDtoH_v2(out.ctypes.data_as(ctypes.c_void_p), at, ctypes.c_size_t(out.nbytes)) == 0
    return out
def read(ws, batch=32, meanwhile=lambda nth: None, device_copy="direct", transport=argv[1]):
    seen = []
    with leat.batches(ws, batch, seed=1, drop_last=False, timeout=60, device="cuda:1", transport=transport or None,
                      device_copy=device_copy) as batches:
        for nth, b in enumerate(batches):
            np.testing.assert_array_equal(back(b.data), rows(b.ids))
            seen += b.ids.tolist()
            b.release()
            came = batches.delivery()
            meanwhile(nth)
    assert sorted(seen) == list(range(len(ws)))
    return came
ws = leat.open("leat://set", socket=argv[0], timeout=60).wait()
NBYTES = len(ws) * 8192
"""

AN_EPOCH = READER + """
came = read(ws)
assert (came["delivery"], came["direct_bytes"], came["bounced_bytes"], came["copies"]) == ("direct", NBYTES, 0, 0), came
stat = ws.stat()
assert stat.delivered["rdma_write"] == NBYTES and stat.delivered["rdma_read"] == stat.delivered["bounced"] == 0, stat
came = read(ws, 7)
assert came["direct_bytes"] == NBYTES
assert leat.counters()["corrupt"] == 0
say("all")
"""

#: Once the device does not see all of it at its first check: that is no error.
SEEN_LATE = READER + """
class Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulong) for name in ("pinned", "pinned_bytes", "allocated", "allocated_bytes", "streams", "events",
                "contexts", "modules", "copies", "copied_bytes", "launches", "flushes", "refused", "wrong")] + [("depth", ctypes.c_int)]
stat, n = Stat(), 0
with leat.batches(ws, 16, timeout=60, device="cuda:0", transport=argv[1], device_copy="direct", slots=2) as batches:
    for b in batches:
        np.testing.assert_array_equal(back(b.data), rows(b.ids))
        if n == 0:  # of what comes into this slot next
            fake.fakecuda_stale(ctypes.c_ulonglong(b.data.__cuda_array_interface__["data"][0]), 1)
        b.release()
        n += 1
fake.fakecuda_stat(ctypes.byref(stat))
assert stat.launches == n + 1 and stat.flushes == stat.launches and stat.wrong == 0, (n, stat.launches, stat.flushes, stat.wrong)
say("all", leat.counters()["corrupt"])
"""

#: One byte of one sample is another one in the pool: which, only the device can see.
DAMAGED = READER + """
read(ws)
say("whole")
hear()
try:
    read(ws)
    say("not noticed")
except leat.Corrupt as e:
    say(f"corrupt {e}")
"""

NOT_TO_BE_HAD = READER + """
try:
    read(ws)
    say("had")
except leat.Unsupported as e:
    say(str(e))
came = read(ws, device_copy="auto")
assert (came["delivery"], came["direct_bytes"], came["bounced_bytes"]) == ("bounce", 0, NBYTES), came
say("bounced")
"""

#: Of a set over two nodes, on one of them: part of each batch by shared memory, part by RDMA.
MIXED = READER + """
came = read(ws)
assert came["delivery"] == "direct" and came["direct_bytes"] > NBYTES // 4 and came["bounced_bytes"] > NBYTES // 8, came
assert came["direct_bytes"] + came["bounced_bytes"] == NBYTES, came
delivered = ws.stat().delivered
assert delivered["rdma_write"] == came["direct_bytes"] and delivered["shm"] == came["bounced_bytes"], delivered
say("all")
"""

#: Files of several lengths, with labels: argv: socket, transport, folder.
LABELLED = READER + """
import pathlib
with leat.batches(ws, 16, seed=1, drop_last=False, timeout=60, device="cuda:0", transport=argv[1] or None, device_copy="direct") as batches:
    n = 0
    for b in batches:
        ragged, labels = b["data"], back(b["label"])
        flat, offsets = back(ragged.values), np.asarray(ragged.offsets)
        for i, sample in enumerate(b.ids):
            key = ws.key(int(sample))
            assert flat[offsets[i]:offsets[i + 1]].tobytes() == pathlib.Path(argv[2], key).read_bytes(), key
            assert labels[i] == int(key[1:4]), (key, labels[i])
            n += 1
        b.release()
        came = batches.delivery()
assert n == len(ws) and came["delivery"] == "direct" and came["direct_bytes"] and came["bounced_bytes"] >= 4 * n, came
say("all")
"""


def damage(daemon, sample, words=1024):
    """Another last byte of that sample in the daemon's pool."""
    wanted = lib_data.rows([sample], words).tobytes()
    with open(f"/proc/{daemon.pid}/mem", "r+b", buffering=0) as memory, open(f"/proc/{daemon.pid}/maps") as maps:
        for line in maps:
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw.s .*/(?:memfd:|#\d+ )", line)
            if not found:
                continue
            start, end = (int(x, 16) for x in found.groups())
            data = os.pread(memory.fileno(), end - start, start)
            at = data.find(wanted)
            if at >= 0:
                os.pwrite(memory.fileno(), bytes([wanted[-1] ^ 1]), start + at + len(wanted) - 1)
                return
    raise AssertionError("the sample is nowhere in the daemon's shared memory")
