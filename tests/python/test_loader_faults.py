# SPDX-License-Identifier: Apache-2.0
"""leat.Loader where things go wrong: transforms, workers, signals, forks, the end of the interpreter; and what stays behind: nothing."""

import gc
import itertools
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import leat
from lib_host import wait_for
from lib_python import daemons

N = 1000
PROCESSES = ["fork", "spawn", "forkserver"]


@pytest.fixture
def numbers(big):
    with leat.open({"x": big}) as opened:
        opened.wait()
        yield opened


def keep(sample, rng):
    return sample


def at25(action):
    def transform(sample, rng):
        if int(sample["x"][0]) == 25:
            action()
        return sample
    return transform


def ids_of(loader):
    return [batch.ids.tolist() for batch in loader]


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def held_here():
    """What must not grow: threads, descriptors, memory maps, children."""
    gc.collect()
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {"threads": len(os.listdir("/proc/self/task")), "fds": len(os.listdir("/proc/self/fd")), "children": len(children),
            "maps": len(pathlib.Path("/proc/self/maps").read_text().splitlines())}


def grown(before):
    """What is more than it was. Less is no leak: a thread of a test before may have ended."""
    return {name: (before[name], n) for name, n in held_here().items() if n > before[name]}


def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


def leases():
    status = leat.status()
    return sum(found["leases"] for found in status["sets"]), status["clients"] if "clients" in status else None


# --- transforms ----------------------------------------------------------------------------------------------------------------


def test_a_worker_that_exits(numbers):
    loader = leat.Loader(numbers, 10, transform=at25(lambda: os._exit(7)), shuffle=False, workers="fork", num_workers=2)
    with pytest.raises(leat.WorkerDied, match="ended with exit code 7, at sample 25"):
        ids_of(loader)
    # The death may be seen before a batch in front of it was asked for; no batch from there on is delivered.
    assert loader.state_dict()["samples"] in (0, 10, 20) and not multiprocessing.active_children()


@pytest.mark.parametrize("how", ["thread", "fork"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_transform_that_calls_exit(numbers, how, on_error):
    """It ends neither the program nor, unseen, a worker; nor is it a bad sample that one may do without."""
    loader = leat.Loader(numbers, 10, transform=at25(lambda: sys.exit(3)), shuffle=False, workers=how, num_workers=2, on_error=on_error)
    with pytest.raises(leat.BadSample, match="sample 25 .*SystemExit: 3"):
        ids_of(loader)
    assert loader.state_dict()["samples"] == 20
    loader.close()


@pytest.mark.parametrize("how", ["thread", "fork"])
def test_a_transform_that_hangs_once(numbers, how, tmp_path):
    flag = tmp_path / "hung"

    def hang():
        if not flag.exists():
            flag.touch()
            time.sleep(3600 if how == "fork" else 10)

    loader = leat.Loader(numbers, 10, transform=at25(hang), shuffle=False, workers=how, num_workers=2, timeout=2)
    with pytest.raises(leat.TimedOut, match="25"):
        ids_of(loader)
    assert not multiprocessing.active_children()
    state = loader.state_dict()
    assert state["samples"] == 20
    loader.load_state_dict(state)
    assert [i for ids in ids_of(loader) for i in ids] == list(range(20, N))
    loader.close()


@pytest.mark.long
def test_bad_samples_hold_no_slots(numbers):
    """Errors keep frames, frames keep arrays: the callback keeps more errors than there are slots."""
    told = []

    def picky(sample, rng):
        part = sample["x"][1:]
        if part[0] % 10 == 0:
            try:
                raise KeyError("the first")
            except KeyError:
                raise ValueError("the second") from None
        return sample

    for how in ("thread", "fork"):
        gc.disable()
        try:
            loader = leat.Loader(numbers, 10, transform=picky, on_error=told.append, max_errors=400, prefetch=1, num_workers=1,
                                 workers=how)
            got = ids_of(loader)
        finally:
            gc.enable()
        assert len(got) == 100 and not any(i % 10 == 0 for ids in got for i in ids)
        loader.close()
    assert len(told) >= 200 and all(isinstance(error.__cause__, ValueError) for error in told)
    assert "in picky" in "".join(told[0].__cause__.__notes__)


def test_every_sample_is_bad(numbers):
    def never(sample, rng):
        raise ValueError("no")

    for more in ({}, {"max_errors": 10**9}):
        with pytest.raises(leat.BadSample):
            next(iter(leat.Loader(numbers, 10, transform=never, on_error="skip", **more)))

    good = []

    def once(sample, rng):
        if good:
            raise ValueError("no")
        good.append(1)
        return sample

    with pytest.raises((leat.BadSample, ValueError)):
        ids_of(leat.Loader(numbers, 10, transform=once, on_error="skip", max_errors=10**9))


@pytest.mark.parametrize("how", ["thread", "fork"])
def test_records_keep_their_fields(numbers, how):
    box = np.dtype([("corner", "f4", (2,)), ("kind", "u1"), ("size", "i8")], align=True)

    def boxes(sample, rng):
        x = int(sample["x"][0])
        return {"box": np.array([((x, x + 1), 3, x)] * 2, box), "one": np.array((x, 2), [("a", "i4"), ("b", "f8")])[()], "z": np.complex64(x + 1j)}

    with leat.Loader(numbers, 10, transform=boxes, workers=how, num_workers=2) as loader:
        for batch in loader:
            found = batch["box"]
            assert found.dtype == box and found.shape == (10, 2) and (found["size"][:, 1] == batch.ids).all()
            assert (found["corner"][:, 0, 1] == batch.ids + 1).all() and (found["kind"] == 3).all()
            assert batch["one"].dtype.names == ("a", "b") and (batch["one"]["a"] == batch.ids).all()
            assert (batch["z"] == batch.ids + 1j).all()
            found["kind"] = 4  # over the slot, as other arrays
            assert (batch["box"]["kind"] == 4).all()


def test_text_times_and_records_are_not_cut(numbers):
    """NumPy would call these casts of the same kind."""
    first = int(next(iter(leat.Loader(numbers, 1, shuffle=False)))["x"][0, 0])
    for short, long in ((np.str_("ab"), np.str_("abcd")), (np.bytes_(b"ab"), np.bytes_(b"abcd")),
                        (np.datetime64("2026-11-23"), np.datetime64("2026-11-23T12:00")),
                        (np.zeros(2, [("a", "i4"), ("b", "i4")]), np.zeros(2, [("b", "i4"), ("a", "i4")]))):
        def later(sample, rng):
            return {"v": short if int(sample["x"][0]) == first else long}

        with leat.Loader(numbers, 10, transform=later, shuffle=False) as loader:
            with pytest.raises(leat.BadSample, match="make them alike"):
                list(loader)


@pytest.mark.parametrize("how", ["thread", "fork"])
def test_samples_that_are_not_alike(numbers, how):
    def shapes(sample, rng):
        return {"x": sample["x"][: 16 - int(sample["x"][0] == 25)]}

    def fields(sample, rng):
        return {"x": sample["x"], "y": 1} if int(sample["x"][0]) == 25 else {"x": sample["x"]}

    def types(sample, rng):
        return {"x": "text" if int(sample["x"][0]) == 25 else sample["x"]}

    def nothing(sample, rng):
        return None if int(sample["x"][0]) == 25 else sample

    def pipe(sample, rng):  # does not pickle
        return {"x": sample["x"], "f": (lambda: 1) if int(sample["x"][0]) == 25 else "text"}

    for transform, why in ((shapes, r"shape \(15,\)"), (fields, "fields x, y; those before had x"), (types, "make them alike|could not convert|shape"),
                           (nothing, "NoneType")):
        with leat.Loader(numbers, 10, transform=transform, shuffle=False, workers=how, num_workers=2) as loader:
            with pytest.raises(leat.BadSample, match=why) as caught:
                ids_of(loader)
            assert caught.value.index == 25
    with leat.Loader(numbers, 10, transform=shapes, shuffle=False, workers=how, num_workers=2, collate_fn=list) as loader:
        assert [len(sample["x"]) for sample in next(itertools.islice(loader, 2, None))] == [16] * 5 + [15] + [16] * 4
    if how == "fork":
        with leat.Loader(numbers, 10, transform=pipe, shuffle=False, workers=how, num_workers=2) as loader:
            with pytest.raises(leat.BadSample, match="pickle|local object"):
                ids_of(loader)


# --- workers -------------------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("how", PROCESSES)
def test_a_worker_is_killed_from_outside(numbers, how):
    loader = leat.Loader(numbers, 10, transform=keep, shuffle=False, workers=how, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    os.kill(loader._config.engine.pids[1], signal.SIGKILL)
    with pytest.raises(leat.WorkerDied, match="SIGKILL"):
        for batch in iterator:
            done = batch.ids[-1] + 1
    assert loader.state_dict()["samples"] == locals().get("done", 10)
    with pytest.raises(StopIteration):
        next(iterator)
    assert len(ids_of(loader)) == 100
    loader.close()
    assert not multiprocessing.active_children()


def test_the_daemon_dies_and_the_set_is_opened_again(big, runtime):
    for more in ({}, {"transform": keep}, {"transform": keep, "workers": "fork", "num_workers": 2}):
        for on_error in ("raise", "skip"):
            with leat.open({"x": big}) as ws:
                ws.wait()
                loader, got = leat.Loader(ws, 10, seed=1, on_error=on_error, **more), []
                with pytest.raises(leat.PeerGone):
                    for batch in loader:
                        got += batch.ids.tolist()
                        if len(got) == 300:
                            for pid in daemons(runtime):
                                os.kill(pid, signal.SIGKILL)
                            wait_for(lambda: not daemons(runtime))
                            time.sleep(0.1)
                        assert len(got) < N
                state = loader.state_dict()
                assert state["samples"] == len(got) and loader.stats()["skipped"] == 0
                loader.close()
            with leat.open({"x": big}) as ws:
                loader = leat.Loader(ws, 7, on_error=on_error, drop_last=False, **more)
                loader.load_state_dict(state)
                got += [i for batch in loader for i in batch.ids[batch.valid].tolist()]
                loader.close()
            assert sorted(got) == list(range(N))


# --- loaders that are left -----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("more", [{"transform": keep, "num_workers": 2}, {"transform": keep, "num_workers": 2, "workers": "fork"}],
                         ids=["thread", "fork"])
def test_left_half_way_a_thousand_times(numbers, more):
    loader = leat.Loader(numbers, 10, **more)

    def leave(times):
        for _ in range(times):
            for step, batch in enumerate(loader):
                if step == 2:
                    break
            del batch

    leave(100)
    before, memory, leased = held_here(), resident(), leases()
    leave(1000)
    wait_for(lambda: not grown(before), message=lambda: str(grown(before)))
    assert leases() == leased and resident() - memory < 16 << 20
    loader.close()


def test_collected_half_way(numbers):
    def use(**more):
        iterator = iter(leat.Loader(numbers, 10, **more))
        first, second = next(iterator), next(iterator)  # the loader is gone, the pass continues
        assert not set(first.ids.tolist()) & set(second.ids.tolist())

    ways = [{}, {"transform": keep, "num_workers": 2}, {"transform": keep, "num_workers": 2, "workers": "fork"}]
    for more in ways:
        use(**more)
    before = held_here()
    before["maps"] += 4  # the C library keeps stack and heap of a thread that ended late, once: a new one takes them
    for more in ways:
        for _ in range(20 if "workers" not in more else 5):
            use(**more)
            wait_for(lambda: not grown(before), message=lambda: str(grown(before)))
    assert not multiprocessing.active_children()


def test_an_array_outlives_its_loader(numbers):
    for how in ("thread", "fork"):
        loader = leat.Loader(numbers, 10, transform=keep, shuffle=False, workers=how, num_workers=1)
        array = next(iter(loader))["x"]
        loader.close()
        del loader
        gc.collect()
        assert array[:, 0].tolist() == list(range(10))


@pytest.mark.parametrize("how", ["thread", "fork"])
def test_two_loaders_take_turns(numbers, how):
    loaders = [leat.Loader(numbers, 50, seed=seed, transform=keep, workers=how, num_workers=1) for seed in (1, 2)]
    for a, b in zip(*loaders):
        for batch in (a, b):
            assert (batch["x"][:, 0] == batch.ids).all()
    assert [loader.epoch for loader in loaders] == [1, 0]  # zip asked only the first once more
    for loader in loaders:
        loader.close()


def test_two_loaders_in_threads(numbers):
    wrong = []

    def work(seed, more):
        try:
            loader = leat.Loader(numbers, 10, seed=seed, drop_last=False, **more)
            for _ in range(3):
                got = []
                for batch in loader:
                    assert (batch["x"][:, 0] == batch.ids).all()
                    got += batch.ids.tolist()
                assert got == leat.order(numbers, seed=seed, epoch=loader.epoch - 1).tolist()
            loader.close()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed, more)) for seed, more in
               enumerate([{}, {}, {"transform": keep, "num_workers": 2}, {"transform": keep, "workers": "spawn", "num_workers": 1}])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def in_process(ws, seed, queue):
    loader = leat.Loader(ws, 10, seed=seed, transform=keep, num_workers=1)
    queue.put((seed, [i for batch in loader for i in batch.ids.tolist()]))


@pytest.mark.parametrize("method", PROCESSES)
def test_two_loaders_in_processes(numbers, method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    processes = [context.Process(target=in_process, args=(numbers, seed, queue)) for seed in (1, 2)]
    for process in processes:
        process.start()
    for _ in processes:
        seed, ids = queue.get(timeout=60)
        assert ids == leat.order(numbers, seed=seed).tolist()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


def test_a_loader_does_not_pickle(numbers):
    loader = leat.Loader(numbers, 10)
    with pytest.raises(TypeError, match="leat.Loader does not pickle: make one in each process"):
        pickle.dumps(loader)
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(iter(loader))


# --- fork ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"transform": keep, "num_workers": 2}, {"transform": keep, "num_workers": 2, "workers": "fork"}],
                         ids=["plain", "thread", "fork"])
def test_fork_half_way(numbers, more):
    """The child gets a pass of its own, and takes nothing from its parent's."""
    loader = leat.Loader(numbers, 10, shuffle=False, **more)
    iterator = iter(loader)
    got = next(iterator).ids.tolist()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            try:
                next(iterator)
            except ValueError as error:
                code = 2 if "fork" in str(error) else 3
            if code == 2:
                code = 0 if [i for ids in ids_of(loader) for i in ids] == list(range(N)) else 4
                del iterator
                gc.collect()
                code = code or (0 if len(ids_of(loader)) == 100 else 5)
            loader.close()
        finally:
            os._exit(code)
    for batch in iterator:
        got += batch.ids.tolist()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert got == list(range(N)) and len(ids_of(loader)) == 100
    loader.close()


# --- the end -------------------------------------------------------------------------------------------------------------------

SCRIPT = """
import gc, os, sys, time, leat, numpy as np

def slow(sample, rng):
    time.sleep(0.01)
    return sample

if __name__ == "__main__":
    path, how, end = sys.argv[1:]
    ws = leat.open({"x": path})
    more = {} if how == "plain" else {"transform": slow, "num_workers": 2, "workers": how}
    loader = leat.Loader(ws, 10, shuffle=False, **more)
    for step, batch in enumerate(loader):
        if step == 1:
            print(*(loader._config.engine.pids if how not in ("plain", "thread") else ()), flush=True)
            if end == "error":
                raise LookupError("in the loop")
            if end == "exit":
                sys.exit(5)
            if end == "fall off":
                break
        if end == "interrupt":
            time.sleep(0.05)
"""


def start(tmp_path, big, how, end):
    (tmp_path / "job.py").write_text(SCRIPT)
    job = subprocess.Popen([sys.executable, "-X", "dev", str(tmp_path / "job.py"), str(big), how, end], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, start_new_session=True,
                           env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))
    return job, [int(pid) for pid in job.stdout.readline().split()]


def end_of(job, pids, numbers):
    out, err = job.communicate(timeout=60)
    wait_for(lambda: not any(map(alive, pids)), message="workers outlive their rank")
    wait_for(lambda: leases()[0] == 1, message=lambda: str(leases()))  # ours
    return job.returncode, out, err


HOWS = ["plain", "thread", *PROCESSES]


@pytest.mark.parametrize("how", HOWS)
def test_ctrl_c_that_nobody_catches(numbers, big, tmp_path, how):
    job, pids = start(tmp_path, big, how, "interrupt")
    assert len(pids) == (2 if how in PROCESSES else 0)
    time.sleep(0.1)
    os.killpg(job.pid, signal.SIGINT)  # as a terminal does
    code, out, err = end_of(job, pids, numbers)
    assert code == -signal.SIGINT and out == ""  # 130 to a shell
    assert err.rstrip().endswith("KeyboardInterrupt") and err.count("Traceback") == 1, err


@pytest.mark.parametrize("how,end", [(how, end) if end == "fall off" or how == "fork" else pytest.param(how, end, marks=pytest.mark.slow)
                                     for how in HOWS for end in ("fall off", "exit", "error")])
def test_the_interpreter_ends_half_way(numbers, big, tmp_path, how, end):
    job, pids = start(tmp_path, big, how, end)
    code, out, err = end_of(job, pids, numbers)
    assert code == {"fall off": 0, "exit": 5, "error": 1}[end]
    assert (out, err) == ("", "") if end != "error" else err.rstrip().endswith("LookupError: in the loop") and err.count("Traceback") == 1, err
