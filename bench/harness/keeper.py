# SPDX-License-Identifier: Apache-2.0
"""Nothing that a benchmark started outlives it.

    keeper ──fork──▶ the run ──▶ daemons, servers, readers ──▶ what these start
       └── inherits whatever loses its parent (a subreaper), and ends it once the run is over, however it ended

The run puts its own things away where it can: it ends by an exception at the first signal. What it forgot, or what it had no time for
as it was killed, the keeper ends. A keeper that is killed itself takes the run along (PR_SET_PDEATHSIG).
"""
import contextlib
import ctypes
import os
import signal
import sys
import time

from .workers import children

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
GRACE_S = 5


def _prctl(option, value):
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _leave(number, _frame):
    for end in ENDS:
        signal.signal(end, signal.SIG_IGN)  # a terminal's comes twice: from it, and from the keeper
    sys.exit(128 + number)


def _run(main, keeper):
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    for end in ENDS:
        signal.signal(end, _leave)
    sys.exit(main() if os.getppid() == keeper else 1)


def _reap(run):
    """The status of `run`, or None as long as it is there; buries who else has ended."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = ended[1] if ended[0] == run else status
    return status


def _end_what_is_left():
    deadline = time.monotonic() + GRACE_S
    for number in (signal.SIGTERM, signal.SIGKILL):
        while left := children(os.getpid()):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(0.05)
            _reap(0)
            if number == signal.SIGTERM and time.monotonic() > deadline:
                break


def keep(main):
    """Runs main() in a process of its own, and returns what it returned (128 + a signal's number where it died of one)."""
    keeper, _ = os.getpid(), _prctl(PR_SET_CHILD_SUBREAPER, 1)
    run = os.fork()
    if run == 0:
        _run(main, keeper)
    for end in ENDS:
        signal.signal(end, lambda number, _: os.kill(run, number))
    status = None
    while status is None:
        pid, ended = os.waitpid(-1, 0)
        status = ended if pid == run else None
    for end in ENDS:
        signal.signal(end, signal.SIG_IGN)
    _end_what_is_left()
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
