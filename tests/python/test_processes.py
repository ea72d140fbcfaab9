# SPDX-License-Identifier: Apache-2.0
"""Pickling, fork, spawn, forkserver, signals, a daemon that dies."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import leat
from lib_host import freeze, wait_for
from lib_python import IMAGES, daemons


def read_all(ws):
    with ws.read_batch(range(len(ws))) as batch:
        return batch.data.copy(), ws[2], ws.view(1).array.copy(), os.getpid()


def check(result):
    batch, sample, view, pid = result
    np.testing.assert_array_equal(batch, IMAGES)
    np.testing.assert_array_equal(sample, IMAGES[2])
    np.testing.assert_array_equal(view, IMAGES[1])
    return pid


def test_pickle(ws):
    again = pickle.loads(pickle.dumps(ws))
    assert again.fingerprint == ws.fingerprint and again.uri == ws.uri and again is not ws
    assert check(read_all(again)) == os.getpid()


def test_pickle_of_an_explicit_set(npy):
    leat.preload(npy, name="explicit").close()
    text = pickle.dumps(leat.open("leat://explicit"))
    assert b"explicit" in text and len(text) < 1000
    assert pickle.loads(text).name == "explicit"


def test_pickle_refuses_a_set_that_changed(npy):
    ws = leat.open(npy)
    text = pickle.dumps(ws)
    ws.close()
    del ws
    np.save(npy, np.zeros((9, 2), "f4"))
    with pytest.raises(leat.Stale, match="has changed"):
        pickle.loads(text)


def test_pickle_outlives_the_daemon(npy):
    text = pickle.dumps(leat.open(npy))
    assert leat.stop(force=True)
    check(read_all(pickle.loads(text)))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(ws, method):
    context = multiprocessing.get_context(method)
    read_all(ws)
    with context.Pool(2) as pool:
        results = pool.map(read_all, [ws] * 3)
        pool.close()
        pool.join()
    assert all(check(result) != os.getpid() for result in results)
    check(read_all(ws))


def in_child(function):
    """Runs it in a forked child; its exception is ours."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_connects_anew(ws):
    batch, view, batches = ws.read_batch([0]), ws.view(0), leat.batches(ws, 2)
    next(batches)

    def child():
        for use in (lambda: ws.read_batch([1]), lambda: ws[1], lambda: ws.view(1), lambda: ws.stat()):
            use()
        check(read_all(ws))
        assert sum(len(b) for b in leat.batches(ws, 2)) == 6
        for parents in (lambda: next(batches), lambda: batch.data, lambda: view.array):
            with pytest.raises((ValueError, BufferError), match="forked|released"):
                parents()

    in_child(child)
    in_child(child)
    np.testing.assert_array_equal(batch.data[0], IMAGES[0])
    np.testing.assert_array_equal(view.array, IMAGES[0])
    assert sum(len(b) for b in batches) == 4
    check(read_all(ws))


def test_a_child_of_a_child(ws):
    in_child(lambda: (check(read_all(ws)), in_child(lambda: check(read_all(ws)))))


def test_a_fork_while_other_threads_read(ws):
    import threading

    stop = threading.Event()

    def work():
        while not stop.is_set():
            ws.read_batch([1, 2]).release()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            in_child(lambda: check(read_all(ws)))
    finally:
        stop.set()
        thread.join()


def test_others_run_while_a_handle_ends(big):
    """A close may wait for a peer or a device; an exception that is pending outlives what goes with it."""
    import threading

    ran, stop = [0], threading.Event()

    def work():
        while not stop.is_set():
            ran[0] += 1
            time.sleep(0)

    def ends(make):
        end = time.monotonic() + 60  # the thread may get no CPU in a close
        while time.monotonic() < end:
            handle, before = make(), ran[0]
            handle.close()
            if ran[0] != before:
                return True
        return False

    ws, interval = leat.open({"x": big}), sys.getswitchinterval()
    thread = threading.Thread(target=work)
    sys.setswitchinterval(1000)  # no thread takes the GIL from one that keeps it
    try:
        thread.start()
        assert ends(lambda: ws._set.load(16, 4, None, 0, None, 0, 0))
        assert ends(lambda: leat._leat.Client(ws._client.socket))
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()

    with pytest.raises(ZeroDivisionError):
        len([ws._set.load(16, 4, None, 0, None, 0, 0), 1 / 0])


def test_ctrl_c_ends_a_wait(npy):
    """A set that no rank fills: its reads wait."""
    ws = leat.create("never", {"x": ("f4", (2,))}, 4)
    for wait in (lambda: ws[0], lambda: ws.read_batch([0, 1]), lambda: ws.wait(), lambda: next(leat.batches(ws, 2)),
                 lambda: ws.view(0)):
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        before = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            wait()
        assert time.monotonic() - before < 10  # at once; no wait here ends by itself before 30 s


def test_ctrl_c_takes_a_drop_back(npy):
    ws = leat.preload(npy, name="held")
    view = ws.view(0)
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(KeyboardInterrupt):
        leat.drop("held", timeout=20)
    view.release()
    ws.close()
    time.sleep(0.3)  # a drop that continued would be done now
    assert [found["name"] for found in leat.ls()] == ["held"]
    leat.drop("held")


def test_ctrl_c_ends_what_a_stopped_daemon_does_not_answer(npy, runtime):
    leat.open(npy)
    (daemon,) = daemons(runtime)
    freeze(daemon)
    try:
        for wait in (lambda: leat.open(npy), lambda: leat.status(), lambda: leat.create("new", {"x": ("f4", (2,))}, 4)):
            signal.signal(signal.SIGALRM, _interrupt)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            before = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                wait()
            assert time.monotonic() - before < 10
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert leat.status()  # the connection is still good


def test_a_handler_that_returns_ends_nothing(npy):
    ws, seen = leat.create("never", {"x": ("f4", (2,))}, 4), []
    signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(TimeoutError):
        ws.read_batch([0], timeout=0.5)
    assert seen == [signal.SIGALRM]


def test_a_forked_child_holds_no_lease_of_a_dead_parent(npy, runtime):
    """The child of a process that is killed lives on: what the process had open is closed."""
    code = ("import leat, os, time, sys\n"
            f"leat.preload({os.fspath(npy)!r}, name='kept'); ws = leat.open('leat://kept'); view = ws.view(0)\n"
            "pid = os.fork()\n"
            "if pid: print(pid, flush=True)\n"
            "time.sleep(60)\n")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        try:
            with pytest.raises(leat.Busy):
                leat.drop("kept", timeout=0.2)
            parent.kill()
            parent.wait()
            leat.drop("kept", timeout=10)
        finally:
            os.kill(child, signal.SIGKILL)


def _interrupt(number, frame):
    raise KeyboardInterrupt


def test_timeouts(npy):
    ws = leat.create("never", {"x": ("f4", (2,))}, 4)
    with pytest.raises(TimeoutError):
        ws.read_batch([0], timeout=0.1)
    with pytest.raises(TimeoutError):
        ws.wait(timeout=0.1)
    ws.push(0, np.ones((4, 2)))
    assert ws.read_batch([0], timeout=10).data.sum() == 2


def test_the_daemon_is_killed(npy, runtime):
    ws = leat.open(npy, wait=True)
    batch, view = ws.read_batch([0]), ws.view(0)
    (pid,) = daemons(runtime)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not daemons(runtime))
    end = time.monotonic() + 10  # its socket ends a little after its memory
    with pytest.raises(leat.PeerGone):
        while time.monotonic() < end:
            ws[1]
            ws.read_batch([1]).release()
            ws.stat()
    np.testing.assert_array_equal(batch.data[0], IMAGES[0])
    assert view.array.shape == (2, 3)
    check(read_all(leat.open(npy)))


def test_nothing_printed_at_exit(npy):
    """Handles of all kinds alive when the interpreter ends."""
    code = textwrap.dedent(f"""
        import leat, numpy as np
        ws = leat.open({str(npy)!r})
        batches = leat.batches(ws, 2)
        first, view, array = next(batches), ws.view(0), ws.view(1).array
        capsule = view.__dlpack__(max_version=(1, 0))
        cycle = [ws, batches]; cycle.append(cycle)
    """)
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", code], capture_output=True, text=True,
                          env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_many_opens_do_not_grow(npy):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    def cycle():
        with leat.open(npy) as ws, ws.read_batch([0]) as batch, ws.view(1) as view:
            assert batch.data.sum() + view.array.sum() > 0

    keep = leat.open(npy)
    for _ in range(5):
        cycle()
    before = descriptors()
    for _ in range(100):
        cycle()
    assert descriptors() <= before
    del keep


def test_the_command_line(npy):
    run = [sys.executable, "-m", "leat"]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([*run, "--version"], capture_output=True, text=True, env=env)
    assert done.returncode == 0 and leat.__version__ in done.stdout
    ws = leat.preload(npy, name="shown")
    done = subprocess.run([*run, "ls", "--json"], capture_output=True, text=True, env=env)
    assert done.returncode == 0 and "shown" in done.stdout, done.stderr
    del ws
