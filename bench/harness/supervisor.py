# SPDX-License-Identifier: Apache-2.0
"""Nothing that a benchmark started outlives it.

    supervisor ──fork──▶ the run ──▶ daemons, servers, readers ──▶ what these start
       └── inherits whatever loses its parent (a subreaper), and ends it once the run is over, however it ended

The run puts its own things away where it can: it ends by an exception at the first signal. What it forgot, or what it had no time for
as it was killed, the supervisor ends. A supervisor that is killed itself takes the run along (PR_SET_PDEATHSIG). Folders and namespaces bear
the mark of their run: those of one that is gone are put away by its supervisor, and if both were killed by the next one.
"""
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time

from .workers import children

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
GRACE_S = 5
FOLDERS, NAMESPACES = ("/var/tmp", "/dev/shm"), "/run/netns"


def _prctl(option, value):
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _leave(number, _frame):
    for end in ENDS:
        signal.signal(end, signal.SIG_IGN)  # a terminal's comes twice: from it, and from the supervisor
    sys.exit(128 + number)


def _run(main, supervisor):
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    for end in ENDS:
        signal.signal(end, _leave)
    sys.exit(main() if os.getppid() == supervisor else 1)


def _reap(run):
    """The status of `run`, or None as long as it is there; reaps other ended children."""
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


def mark():
    """What the names of this run's folders and namespaces begin with: its process id, and whose numbers these are (containers may share
    a folder)."""
    return f"leat-bench.{os.stat('/proc/self/ns/pid').st_ino}.{os.getpid()}."


def _is_there(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read() != b""  # a process that ended and was not reaped has none
    except OSError:
        return False


def _left_in(folder):
    """What lies there of runs that are gone."""
    ours, found = mark().split(".")[:2], []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            parts = name.split(".")
            if len(parts) > 3 and parts[:2] == ours and parts[2].isdigit() and not _is_there(parts[2]):
                found.append(os.path.join(folder, name))
    return found


def _sweep():
    """Removes leftovers of ended runs, and ends processes that are still in their namespaces."""
    for name in map(os.path.basename, _left_in(NAMESPACES)):
        inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
        for pid in map(int, inside.stdout.split()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    for path in [path for folder in FOLDERS for path in _left_in(folder)]:
        with open("/proc/self/mounts") as f:
            mounts = [words[1] for words in map(str.split, f) if words[1].startswith(path + "/")]
        for mount in mounts:  # of a file system in user space that its server left
            subprocess.run(["umount", "-l", mount], capture_output=True)
        if any(map(os.path.ismount, mounts)):
            continue  # what is in it is not ours to delete
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.remove(path)


def keep(main):
    """Runs main() in a process of its own, and returns what it returned (128 + a signal's number where it died of one)."""
    supervisor, _ = os.getpid(), _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _sweep()
    run = os.fork()
    if run == 0:
        _run(main, supervisor)

    def pass_on(number, _frame):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(run, number)
    for end in ENDS:
        signal.signal(end, pass_on)
    status = None
    while status is None:
        pid, ended = os.waitpid(-1, 0)
        status = ended if pid == run else None
    for end in ENDS:
        signal.signal(end, signal.SIG_IGN)
    _end_what_is_left()
    _sweep()
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
