# SPDX-License-Identifier: Apache-2.0
"""Real processes for tests: daemons of any configuration, clients that can be killed, and a look at what they leave behind."""

import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid

import lib_wire
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("LEAT_BUILD", ROOT / "build")).resolve()
APPS = BUILD / "src" / "apps"
LEAT, LEATD = APPS / "leat", APPS / "leatd"
FAILIO = BUILD / "tests" / "tools" / "failio.so"  # disks and memory that fail, for LD_PRELOAD
TAG = "LEAT_TEST_TAG"
SANITIZED = LEATD.exists() and b"__asan_init" in LEATD.read_bytes()

try:
    import leat  # noqa: F401
except ImportError:  # by hand: the plain build's, for this process and those that it starts
    sys.path.insert(0, str(ROOT / "build" / "python"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], os.environ.get("PYTHONPATH")]))

#: A deadline for what should take milliseconds: only a hang reaches it.
PATIENCE = 60 if SANITIZED else 30


def require_built():
    """leat, the package, or a skip with the reason."""
    if not LEATD.exists():
        pytest.skip(f"{LEATD} is not built")
    return pytest.importorskip("leat", reason="the Python extension is not built")


def need_root():
    if os.geteuid() != 0:
        pytest.skip("needs root")


def free_ports(n):
    """TCP ports of this host without a listener."""
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def free_port():
    return free_ports(1)[0]


def only_tables(daemon):
    """No memory of samples is left in the pool."""
    pool = daemon.status()["pool"]
    return pool["used_bytes"] == pool["table_bytes"]


def wait_for(what, seconds=2 * PATIENCE, message="it never came true"):
    """The first true value of what(), which is asked again and again. The only wait of this kind: tools/waits refuses others."""
    end = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < end, message() if callable(message) else message
        time.sleep(0.005)  # waits: here


def proc_text(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as f:
            return f.read()
    except OSError:
        return b""


def freeze(pid):
    """SIGSTOP. On a busy machine other threads run on until the one that the signal was given to has had its turn."""
    def states():
        stats = [proc_text(pid, f"task/{tid}/stat") for tid in os.listdir(f"/proc/{pid}/task")]
        return [stat.rpartition(b")")[2].split()[0] for stat in stats if stat]

    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: all(state in b"TtZ" for state in states()), message=states)


def alive(pid):
    """Neither gone nor a zombie."""
    stat = proc_text(pid, "stat")
    return bool(stat) and stat.rpartition(b")")[2].split()[0] != b"Z"


def footprint(pid):
    """What a process must not grow in: {"rss": bytes, "fds": n, "maps": n, "threads": n}."""
    status = dict(line.split(b":", 1) for line in proc_text(pid, "status").splitlines() if b":" in line)
    return {
        "rss": int(status[b"VmRSS"].split()[0]) * 1024,
        "fds": len(os.listdir(f"/proc/{pid}/fd")),
        "maps": len(proc_text(pid, "maps").splitlines()),
        "threads": int(status[b"Threads"]),
    }


def program(pid):
    """Name of its executable; None when it has just gone."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return None


def tagged(tag):
    """Living processes that carry our tag in their environment, but for this one."""
    mark = f"{TAG}={tag}".encode()
    return [int(p) for p in os.listdir("/proc")
            if p.isdigit() and int(p) != os.getpid() and mark in proc_text(p, "environ").split(b"\0") and alive(p)]


def system_objects():
    """What outlives processes: names in /dev/shm, network namespaces and links, control groups: of this run of the tests alone,
    since another may be under way beside it."""
    own = f"leat{os.getpid() % 100000}"
    found = {f"/dev/shm/{p.name}" for p in pathlib.Path("/dev/shm").glob("*leat*") if not p.name.startswith("leat-bench")}
    found |= {str(p) for folder in ("/run/netns", "/sys/class/net") for p in pathlib.Path(folder).glob(f"{own}*")}
    for base in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory"):
        found |= {str(p) for p in pathlib.Path(base).glob(f"leat-test-{os.getpid()}*")}
    return found


class Daemon:
    """A leatd of ours, serving when the constructor returns. `config`: {section: {key: value}}."""

    def __init__(self, host, config=None, *, name="d", prefix=(), env=None, options=(), preexec=None, wait=True,
                 patience=PATIENCE):
        self.host, self.name = host, name
        self.killed = False  # by us: it may be gone
        self.folder = host.folder / f"daemon-{name}"
        self.folder.mkdir(exist_ok=True)
        self.socket = self.folder / "leatd.sock"
        sections = {k: dict(v) for k, v in (config or {}).items()}
        sections.setdefault("daemon", {}).setdefault("socket", self.socket)
        self.socket = pathlib.Path(sections["daemon"]["socket"])
        sections.setdefault("log", {}).setdefault("level", "info")
        self.config = self.folder / "leatd.conf"
        self.config.write_text("".join(
            f"[{section}]\n" + "".join(f"{k} = {v}\n" for k, v in keys.items()) for section, keys in sections.items()))
        self.log = self.folder / "log"
        ready, told = os.pipe()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*map(str, prefix), str(LEATD), "--config", str(self.config), "--ready-fd", str(told), *map(str, options)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(told,), env={**os.environ, **(env or {})},
                preexec_fn=preexec, start_new_session=True)
        os.close(told)
        host.daemons.append(self)
        self.ready = ""
        if wait:
            self.ready = self._hear(ready, patience)
        os.close(ready)
        if wait:
            assert self.ready == "ok", f"{self.ready!r}\n{self.text()}"

    def _hear(self, fd, patience):
        end, text = time.monotonic() + patience, b""
        while not text.endswith(b"\n"):
            if not select.select([fd], [], [], max(end - time.monotonic(), 0))[0]:
                return f"nothing heard for {patience} s, then {text!r}"
            got = os.read(fd, 4096)
            if not got:
                break
            text += got
        return text.decode().strip()

    @property
    def pid(self):
        return self.process.pid

    def text(self):
        """Its log."""
        return self.log.read_text(errors="replace")

    def running(self):
        return self.process.poll() is None

    def kill(self, sig=signal.SIGKILL):
        """Ends it as no daemon wants to be ended. The socket's file stays: a killed process removes nothing."""
        self.killed = True
        if self.running():
            self.process.send_signal(sig)
            self.process.wait(PATIENCE)
        self.socket.unlink(missing_ok=True)

    def stop(self):
        """SIGTERM; it must end well."""
        if self.killed and not self.running():
            return
        assert self.running(), f"daemon {self.name} died ({self.process.returncode})\n{self.text()}"
        if self.running():
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                code = self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"daemon {self.name} does not end\n{self.text()}") from None
            self.killed = True
            assert code == 0, f"daemon {self.name} ended with {code}\n{self.text()}"
        assert not self.socket.exists(), "the socket's file is left"

    # --- what it says ---

    def query(self, what, arg=""):
        """The text that `leat status` and the like get, without a process for each time that a test looks."""
        with lib_wire.Peer(self.socket, PATIENCE) as peer:
            status, body, _ = peer.greet().call(lib_wire.QUERY, struct.pack("<I", what) + lib_wire.text(arg))
        assert status == 0, body
        return body[4:].decode()

    def status(self):
        return json.loads(self.query(lib_wire.QUERY_STATUS))

    def sets(self):
        return json.loads(self.query(lib_wire.QUERY_LIST))

    def metrics(self):
        """{name or name{labels}: value}"""
        lines = [line.rsplit(" ", 1) for line in self.query(lib_wire.QUERY_METRICS).splitlines() if line and line[0] != "#"]
        return {name: float(value) for name, value in lines}

    def serves(self, path):
        """A new client gets all of `path` into the pool: the daemon still works."""
        with lib_wire.Peer(self.socket, PATIENCE) as peer:
            handle, _, _ = peer.greet().open(str(path))
            status, message, _ = peer.call(lib_wire.WAIT, struct.pack("<QI", handle, 0))
            assert status == 0, message


class Client:
    """A Python process with `leat`, `np`, `argv` and `say` at hand, to be talked to by lines, and killed at will."""

    PRELUDE = ("import os, sys, time, signal, leat, numpy as np\nargv = sys.argv[1:]\n"
               "def say(*what): print(*what, flush=True)\ndef hear(): return sys.stdin.readline().strip()\n")

    def __init__(self, host, code, *args, prefix=(), env=None, preexec=None):
        self.process = subprocess.Popen(
            [*map(str, prefix), sys.executable, "-c", self.PRELUDE + code, *map(str, args)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(env or {})}, preexec_fn=preexec, text=True)
        host.clients.append(self)

    @property
    def pid(self):
        return self.process.pid

    def hear(self, seconds=PATIENCE):
        """Its next line."""
        assert self.speaks(seconds), "the client says nothing"
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return line.rstrip("\n")

    def speaks(self, seconds):
        """Whether it says something within this time."""
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def tell(self, line=""):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def kill(self, sig=signal.SIGKILL):
        self.process.send_signal(sig)
        self.process.wait(PATIENCE)
        self.close()

    def finish(self, code=0, seconds=PATIENCE * 2):
        """Its last words, when it ended as it should."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"the client hangs\n{out[-2000:]}\n{err[-4000:]}") from None
        assert self.process.returncode == code, f"{self.process.returncode}\n{out[-2000:]}\n{err[-4000:]}"
        return out.strip()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                stream.close()


class Host:
    """One test's processes and folders. Ends them all, and fails the test that leaves anything behind."""

    def __init__(self, monkeypatch):
        self.leat = require_built()
        # Short, because a socket's path is; open to other users, which have tests too.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="leat-t-"))
        self.folder.chmod(0o755)
        self.runtime = self.folder / "run"
        self.runtime.mkdir(mode=0o700)
        self.data = self.folder / "data"
        self.data.mkdir()
        self.tag = uuid.uuid4().hex
        self.daemons, self.clients = [], []
        self.before = system_objects()
        for name in ("LEAT_SOCKET", "RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {TAG: self.tag, "XDG_RUNTIME_DIR": self.runtime, "XDG_CACHE_HOME": self.folder / "cache",
                            "LEAT_JOB": "test", "LEAT_LOG": "info", "LEAT_LEATD": LEATD}.items():
            monkeypatch.setenv(name, str(value))

    def daemon(self, config=None, **options):
        return Daemon(self, config, **options)

    def python(self, code, *args, **options):
        return Client(self, code, *args, **options)

    def cli(self, *args, **kwargs):
        """`leat ...`, its result."""
        return subprocess.run([LEAT, *map(str, args)], capture_output=True, text=True, timeout=PATIENCE * 2, **kwargs)

    def private_daemons(self):
        """Pids of daemons that clients started by themselves."""
        own = {d.pid for d in self.daemons}
        return [p for p in tagged(self.tag) if p not in own and program(p) == "leatd"]

    def close(self):
        import gc

        from leat._base import clients as _clients

        gc.collect()
        _clients.forget_all()
        problems = []
        for client in self.clients:
            client.close()
        for daemon in self.daemons:
            try:
                daemon.stop()
            except AssertionError as e:
                problems.append(str(e))
        for pid in self.private_daemons():  # lingering: it may, and ends on request
            os.kill(pid, signal.SIGTERM)
        try:
            wait_for(lambda: not tagged(self.tag), PATIENCE)
        except AssertionError:
            left = {pid: proc_text(pid, "cmdline").replace(b"\0", b" ") for pid in tagged(self.tag)}
            problems.append(f"processes left: {left}")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        left = [p.name for p in self.runtime.rglob("*") if not p.is_dir() and p.name not in ("leatd.lock", "leatd.log")]
        if left:
            problems.append(f"left in the runtime directory: {left}")
        if system_objects() - self.before:
            problems.append(f"left in the system: {sorted(system_objects() - self.before)}")
        logs = "\n".join(f"--- {d.name}\n{d.text()[-2000:]}" for d in self.daemons if d.log.exists())
        logs += "".join(f"--- {p}\n{p.read_text(errors='replace')[-2000:]}" for p in self.runtime.rglob("leatd.log"))
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not problems, "\n".join(problems) + "\n" + logs
