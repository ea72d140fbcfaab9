# SPDX-License-Identifier: Apache-2.0
"""What a machine takes from a measurement: CPU time that other guests of its host got (steal), pauses of all of it, and free memory.

A sleeper wakes every few milliseconds. Where it is late by far more than a busy machine makes it, no process got the CPU: the
virtual machine stood still, or was stopped.

A host may take back memory that its guest has had free for two seconds (free page reporting of virtio_balloon). The first touch then costs
1.2 s/GiB where it costs 0.25 otherwise, and how much of a turn that is depends on how long ago the turn before ended.
"""
import subprocess
import sys
import threading
import time

SLEEP_S = 0.005
LATE_S = 0.02  # less is what the scheduler does to a sleeper on a machine that is busy measuring


def _cpu_ticks():
    """(stolen, all) since boot, of all CPUs; (0, 0) where /proc does not say."""
    try:
        with open("/proc/stat") as f:
            ticks = [int(word) for word in f.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return (ticks[7] if len(ticks) > 7 else 0), sum(ticks)


def touch_memory(size):
    """Just before the time runs of a case that takes up to `size` bytes of new memory: that much is taken and freed, so all cases begin alike."""
    subprocess.run([sys.executable, "-c", "import mmap as m, sys; m.mmap(-1, int(sys.argv[1]), m.MAP_PRIVATE | m.MAP_ANONYMOUS | m.MAP_POPULATE)", str(size)], check=True)


class Pauses:
    """steal: of all CPU time while this was open. late_ms: the most that the sleeper was late. lost: the share of the time that was
    stolen, or that the sleeper was too late by, whichever is more."""

    def __init__(self):
        self.steal = self.late_ms = self.lost = 0.0
        self._late_s, self._open = 0.0, True
        self._thread = threading.Thread(target=self._sleep, daemon=True)

    def _sleep(self):
        last = time.monotonic()
        while self._open:
            time.sleep(SLEEP_S)
            now = time.monotonic()
            late, last = now - last - SLEEP_S, now
            self.late_ms = max(self.late_ms, late * 1e3)
            self._late_s += late if late > LATE_S else 0

    def __enter__(self):
        self._stolen, self._all, self._began = *_cpu_ticks(), time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._open = False
        self._thread.join()
        spent = time.monotonic() - self._began
        stolen, every = _cpu_ticks()
        self.steal = (stolen - self._stolen) / max(every - self._all, 1)
        self.lost = max(self.steal, self._late_s / spent)
