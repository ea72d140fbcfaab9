# SPDX-License-Identifier: Apache-2.0
"""bench/run's own promises: nothing outlives it, and a turn in which the machine stood still is not reported."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import lib_host
import pytest

pytestmark = pytest.mark.plain

TOP = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("LEAT_BUILD", TOP / "build"))


def processes_with(mark):
    """{pid: command line} of processes with `mark` in their environment."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return {pid: line for pid, line in found.items() if line}  # a process that ended and was not reaped has none


def below(pid):
    """Its descendants: some write over their environment (Redis)."""
    try:
        some = [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return some + [pid for child in some for pid in below(child)]


def is_there(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("suite, metric, program", [("store", "store.list.rate", "leat serve"), ("read", "shm.4k", "bench/read_leat")])
def test_nothing_outlives_it(tmp_path, number, suite, metric, program):
    if not (BUILD / "bench/read_leat").exists():
        pytest.skip("this build has no benchmarks")
    mark, started = f"LEAT_BENCH_DIR={tmp_path}", []

    def left():
        """Not what waits for its new parent to reap it."""
        return {**processes_with(mark), **{pid: lib_host.proc_text(pid, "stat") for pid in filter(lib_host.alive, started)}}

    run = subprocess.Popen([sys.executable, TOP / "bench/run", suite, "--quick", "--only", metric, "--json", "--build", BUILD],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           env={**os.environ, "LEAT_BENCH_DIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"})
    try:
        lib_host.wait_for(lambda: run.poll() is not None or any(program in line for line in processes_with(mark).values()), 300,
                          message=f"{program} does not start")
        assert run.poll() is None
        started = below(run.pid)
        run.send_signal(number)
        assert run.wait(300) == (128 + number if number == signal.SIGTERM else -number)
        lib_host.wait_for(lambda: not left(), message=lambda: f"something outlived bench/run: {left()}")
    finally:
        for pid in {*processes_with(mark), *started}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.wait()


LEAVES = textwrap.dedent("""
    import json, os, signal, subprocess, sys, tempfile
    sys.path.insert(0, sys.argv[1])
    from harness import hosts, supervisor
    def main():
        left = [tempfile.mkdtemp(prefix=supervisor.mark(), dir=folder) for folder in supervisor.FOLDERS]
        inside = 0
        if os.geteuid() == 0:
            network = hosts.Network(2)
            left += [os.path.join(supervisor.NAMESPACES, name) for name in [network.hub, *network.names]]
            inside = subprocess.Popen([*network.inside(1), "sleep", "1000"], stdout=subprocess.DEVNULL, start_new_session=True).pid
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it gets no notice of its supervisor's death
        print(json.dumps([left, inside]), flush=True)
        if sys.argv[2] == "both":
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(supervisor.keep(main if sys.argv[2] else lambda: 0))
""")


@pytest.mark.parametrize("killed", ["run", "both"])
def test_what_a_killed_one_left_is_put_away(killed):
    def run(who):
        return subprocess.run([sys.executable, "-c", LEAVES, TOP / "bench", who], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    done = run(killed)
    left, inside = json.loads(done.stdout)
    assert done.returncode == (128 + signal.SIGKILL if killed == "run" else -signal.SIGKILL)
    if killed == "both":
        assert all(map(os.path.exists, left))
        lib_host.wait_for(lambda: not is_there(left[0].split(".")[2]), message="the run does not end")
        assert run("").returncode == 0  # the next one
    assert not any(map(os.path.exists, left))
    assert not inside or lib_host.wait_for(lambda: not is_there(inside), message="a process of a namespace is still there")


def turns(cases):
    """What in_turns made of three turns of these, in a process of its own: ({name: values}, what the row says of the machine)."""
    program = textwrap.dedent("""
        import json, os, subprocess, sys, time
        sys.path.insert(0, sys.argv[1])
        from harness.rows import in_turns, row
        n = 0
        def stopped(which):
            global n
            n += 1
            if n in which:
                subprocess.Popen(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 0.5; kill -CONT {os.getpid()}"])
            time.sleep(0.3)
            return {"turn": n}
        got = in_turns({"leat": lambda: stopped(CASES), "limit": lambda: {"turn": 1}}, 3)
        print(json.dumps([got["leat"]["turn"], row("x", "ms", got["leat"]["turn"], 1)["machine"]]))
    """).replace("CASES", repr(cases))
    done = subprocess.run([sys.executable, "-c", program, TOP / "bench"], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    return json.loads(done.stdout)


def test_a_turn_in_which_the_machine_stood_still_is_taken_anew():
    kept, machine = turns([2])
    assert len(kept) == 3 and 2 not in kept
    assert machine["repeated"] == 1


def test_turns_are_taken_anew_only_so_often_and_it_is_said():
    kept, machine = turns([1, 2, 3, 4, 5])
    assert len(kept) == 3 and machine["hit"] == 3 and machine["repeated"] == 1 and machine["late_ms"] >= 100
