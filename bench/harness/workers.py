# SPDX-License-Identifier: Apache-2.0
"""The measured programs as processes that answer line by line, and what they cost.

Each worker says {"ready": ...} first and then answers every line with a line of JSON (bench/driver.h). CPU time is read from the
processes' own clocks in nanoseconds (clock_getcpuclockid), of the worker and of every server that works for it.
"""
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time


class Failed(Exception):
    """A measured program could not do what was asked. The text says what it said."""


def cpu_seconds(pid):
    """User and system time of a whole process, threads that ended included. 0 when it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def children(pid):
    """Process ids below `pid`."""
    found = []
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            for child in map(int, f.read().split()):
                found += [child] + children(child)
    except OSError:
        pass
    return found


class Worker:
    """One program that answers lines."""

    def __init__(self, argv, servers=(), env=None, timeout=120):
        self.argv, self.timeout, self.servers = [str(a) for a in argv], timeout, list(servers)
        self.err = tempfile.TemporaryFile(mode="w+")
        self.proc = subprocess.Popen(self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.err,
                                     text=True, bufsize=1, env={**os.environ, **(env or {})})
        try:
            self.ready = self._read()
        except BaseException:
            self.close()
            raise

    def _read(self):
        ready, _, _ = select.select([self.proc.stdout], [], [], self.timeout)
        line = self.proc.stdout.readline() if ready else ""
        if not line:
            self.err.seek(0)
            raise Failed(f"{os.path.basename(self.argv[0])}: " +
                         (self.err.read().strip() or ("ended" if ready else f"no answer in {self.timeout} s")))
        return json.loads(line)

    def send(self, line):
        try:
            self.proc.stdin.write(line + "\n")
            self.proc.stdin.flush()
        except BrokenPipeError:
            pass  # its last words are read next

    def pids(self):
        return [self.proc.pid] + children(self.proc.pid) + self.servers

    def close(self):
        if self.proc.poll() is None:
            try:
                self.proc.stdin.close()
                self.proc.wait(5)
            except (OSError, subprocess.TimeoutExpired):
                self.proc.kill()
                self.proc.wait()
        self.proc.stdout.close()
        self.err.close()


class Group:
    """Workers that read together (one process a consumer, or one with threads): their answers are one."""

    def __init__(self, workers):
        self.workers = workers

    def ask(self, line):
        """Sends to all, then reads all. Adds CPU seconds of all processes involved as "cpu_s"."""
        pids = sorted({p for w in self.workers for p in w.pids()})
        before = sum(map(cpu_seconds, pids))
        for w in self.workers:
            w.send(line)
        answers = [w._read() for w in self.workers]
        pids = sorted({p for w in self.workers for p in w.pids()} | set(pids))  # workers that it started during the run
        one = dict(answers[0])
        for key in ("bytes", "samples", "batches", "verified"):
            if key in one:
                one[key] = sum(a[key] for a in answers)
        for key in ("ns", "p50_us", "p99_us"):
            if key in one:
                one[key] = max(a[key] for a in answers)
        # Children that have ended are in what their parent says of them, the time before this line as well.
        one["cpu_s"] = sum(map(cpu_seconds, pids)) - before + sum(a.get("reaped_cpu_s", 0) for a in answers)
        return one

    def close(self):
        for w in self.workers:
            w.close()


class Daemon:
    """A server process of ours or of a rival; `end` is the signal that ends it."""

    def __init__(self, argv, is_up, log, end=signal.SIGTERM):
        self.end, self.log = end, log
        with open(log, "ab") as out:
            self.proc = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                         start_new_session=True)
        try:
            self._wait_until(is_up, argv[0])
        except BaseException:
            self.close()
            raise

    def _wait_until(self, is_up, name):
        deadline = time.monotonic() + 20
        while not is_up():
            if self.proc.poll() is not None or time.monotonic() > deadline:
                with open(self.log, errors="replace") as f:
                    raise Failed(f"{name} does not start: {f.read()[-400:].strip()}")
            time.sleep(0.02)

    @property
    def pid(self):
        return self.proc.pid

    def close(self):
        if self.proc.poll() is None:
            self.proc.send_signal(self.end)
            try:
                self.proc.wait(10)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()


def leatd(build, folder, pool_bytes, huge=True, ready=0):
    """ready: bytes of memory that it keeps ready; daemon.wait_ready() waits for them."""
    name = "ready" if ready else "leatd"
    sock, conf = os.path.join(folder, name + ".sock"), os.path.join(folder, name + ".conf")
    with open(conf, "w") as f:
        f.write(f"[pool]\nhuge_pages = {'yes' if huge else 'no'}\nprefault = {ready}\n")
    d = Daemon([os.path.join(build, "src/apps/leatd"), "--config", conf, "--private", "--socket", sock, "--pool",
                str(pool_bytes), "--idle-timeout", "0"], lambda: os.path.exists(sock), os.path.join(folder, name + ".log"))
    d.socket = sock

    def wait_ready():
        deadline = time.monotonic() + 60
        while True:
            out = subprocess.run([os.path.join(build, "src/apps/leat"), "--socket", sock, "status", "--json"], capture_output=True, text=True)
            if out.returncode:
                raise Failed("leat status: " + out.stderr.strip())
            kept = json.loads(out.stdout)["pool"]["ready"]["bytes"]
            if kept >= ready:
                return
            if time.monotonic() > deadline:
                raise Failed(f"leatd made {kept} bytes ready of {ready} in a minute: is there memory?")
            time.sleep(0.05)

    d.wait_ready = wait_ready
    return d


def redis(folder):
    """A Redis server on a unix socket and a loopback port, without persistence; None where there is none."""
    program = shutil.which("redis-server")
    if not program:
        return None
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    sock = os.path.join(folder, "redis.sock")
    d = Daemon([program, "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", sock, "--save", "", "--appendonly",
                "no", "--dir", folder], lambda: os.path.exists(sock), os.path.join(folder, "redis.log"))
    d.socket, d.address = sock, f"127.0.0.1:{port}"
    return d


class MemoryWatch:
    """The most memory a process ever holds while this is open: its resident pages that are not shared memory, and the files
    without a name (memfds, files of a private tmpfs) that it has open."""

    def __init__(self, pid):
        self.pid, self.peak, self._stop = pid, 0, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def look(self):
        held = 0
        with open(f"/proc/{self.pid}/status") as f:
            for line in f:
                if line.startswith(("RssAnon:", "RssFile:")):
                    held += int(line.split()[1]) * 1024
        seen = set()
        for fd in os.listdir(f"/proc/{self.pid}/fd"):
            path = f"/proc/{self.pid}/fd/{fd}"
            try:
                st = os.stat(path)
                if stat.S_ISREG(st.st_mode) and st.st_nlink == 0:
                    if (st.st_dev, st.st_ino) not in seen:
                        seen.add((st.st_dev, st.st_ino))
                        held += st.st_blocks * 512
            except OSError:
                continue
        return held

    def _watch(self):
        while not self._stop.wait(0.01):
            try:
                self.peak = max(self.peak, self.look())
            except OSError:
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self.thread.join()
