# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed, frozen or started all at once: clients learn of it within their deadline, nothing is held for ever,
and the next one to come is served."""

import os
import random
import re
import signal
import threading
import time

import lib_data
import lib_host
import numpy as np
import pytest

MIB = lib_data.MIB
SMALL = {"pool": {"size": "32MiB", "region_size": "256KiB"}}


@pytest.fixture
def array(host):
    """16 MiB in 2,048 samples of 8 KiB."""
    return lib_data.make_npy(host.data / "array.npy", 2048)


# --- the daemon dies ----------------------------------------------------------------------------------------------

USES = {
    "preload": "while True:\n    leat.preload(uri, name='x', timeout=T).close(); leat.drop('x', timeout=T)",
    "open and close": "while True:\n    leat.open(uri, timeout=T).close()",
    "single reads": "ws = leat.open(uri, timeout=T)\ni = 0\nwhile True:\n    i += 1; one = ws[i * 7 % len(ws)]\n"
                    "    assert (one == rows([i * 7 % len(ws)])[0]).all()",
    "batches": "ws = leat.open(uri, timeout=T)\nepoch = 0\nwhile True:\n    epoch += 1\n"
               "    for b in leat.batches(ws, 32, epoch=epoch, timeout=T):\n"
               "        assert (b.data == rows(b.ids)).all(); b.release()",
    "streaming": "ws = leat.open(uri, limit=4 << 20, timeout=T)\nepoch = 0\nwhile True:\n    epoch += 1\n"
                 "    for b in leat.batches(ws, 32, epoch=epoch, timeout=T):\n"
                 "        assert (b.data == rows(b.ids)).all(); b.release()",
    "tcp": "ws = leat.open(uri, timeout=T)\nring = ws._set.load(32, 2, None, 0, 'tcp', 0, 0)\ni = 0\nwhile True:\n    i = (i + 37) % 2000\n"
           "    h = ring.read_batch(list(range(i, i + 32)), 20 * 10**9, len(ws)); b = leat.Batch(h, ws.fields, ws)\n"
           "    assert (b.data == rows(b.ids)).all(); b.release()",
    "views": "ws = leat.open(uri, timeout=T).wait()\ni = 0\nwhile True:\n    i = (i + 1) % len(ws)\n"
             "    with ws.view(i) as v: assert (v.array == rows([i])[0]).all()",
    "verify": "ws = leat.open(uri, timeout=T)\nwhile True:\n    ws.verify()",
}
#: Uses until the daemon dies; says what it got, and how long after the notice of the death.
USER = lib_data.CLIENT + """
T = 20
uri = argv[0]
try:
    say('at it')
    exec(argv[1])
except leat.PeerGone:
    say('peer gone')
except leat.NotFound:
    say('peer gone')  # the daemon ended between two calls, each of which finds it again
ws = leat.open(uri, timeout=T)
assert (ws[1] == rows([1])[0]).all()
say('works again')
"""


def started(host):
    """The pid of the private daemon, once it listens: one that ends before that is another error."""
    lib_host.wait_for(lambda: list(host.runtime.rglob("leatd.sock")))
    return lib_host.wait_for(host.private_daemons)[0]


def kill_in_the_midst(host, use, path, moment):
    """By the private daemon that the client starts, and starts again when it needs another."""
    client = host.python(USER, path, USES[use], env={"LEAT_JOB": f"j{moment}"})
    assert client.hear() == "at it"
    pid = started(host)
    time.sleep(moment)
    os.kill(pid, signal.SIGKILL)
    # A daemon killed during its start, or in a handshake, is started again unnoticed: then that one.
    for _ in range(10):
        if client.speaks(3):
            break
        for another in host.private_daemons():
            os.kill(another, signal.SIGKILL)
    assert client.hear() == "peer gone"
    assert client.hear() == "works again"
    assert client.finish() == ""
    for pid in host.private_daemons():
        os.kill(pid, signal.SIGTERM)
    lib_host.wait_for(lambda: not host.private_daemons())


@pytest.mark.parametrize("use", USES)
def test_the_daemon_is_killed_and_the_next_open_works(host, array, use):
    # "open and close" and "preload" ask for a daemon again and again and may never notice that it is another one: both are right.
    if use in ("open and close", "preload"):
        client = host.python(USER.replace("except leat.PeerGone:", "except (leat.PeerGone, leat.NotFound):"), array,
                             USES[use].replace("while True:", "import itertools\nfor _ in itertools.takewhile(lambda _: not "
                                               "os.path.exists(uri + '.stop'), itertools.count()):") + "\nsay('peer gone')")
        assert client.hear() == "at it"
        pid = started(host)
        time.sleep(0.15)
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        (host.data / "array.npy.stop").touch()
        assert client.hear() == "peer gone"
        assert client.hear() == "works again"
        client.finish()
        return
    kill_in_the_midst(host, use, array, 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_the_daemon_is_killed_at_any_moment(host, array, seed):
    rng = random.Random(seed)
    for use in USES:
        if use not in ("open and close", "preload"):
            kill_in_the_midst(host, use, array, rng.random() * rng.choice([0.02, 0.1, 0.5]))


@pytest.mark.long
def test_a_daemon_killed_while_it_indexes(host):
    folder = host.data / "many"
    for i in range(20000):
        if i % 1000 == 0:
            (folder / str(i // 1000)).mkdir(parents=True)
        (folder / str(i // 1000) / f"{i}.bin").write_bytes(b"%d" % i)
    client = host.python("""
say('at it')
try:
    leat.preload(argv[0], timeout=20)
    say('was faster')
except leat.PeerGone:
    say('peer gone')
with leat.preload(argv[0], timeout=60) as ws:
    i = ws.index('7/7007.bin')
    say(b'7007' in ws[i].values() if isinstance(ws[i], dict) else ws[i] == b'7007')
""", folder)
    client.hear()
    pid = started(host)
    time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    assert client.hear() in ("peer gone", "was faster")
    assert client.hear() == "True"
    client.finish()


def test_everybody_hears_of_it(host, array):
    """Eight processes in the midst of reading, one daemon killed: eight times peer gone, and one daemon again."""
    clients = [host.python(USER, array, USES["batches"]) for _ in range(8)]
    for client in clients:
        assert client.hear() == "at it"
    pids = lib_host.wait_for(host.private_daemons)
    time.sleep(0.5)
    assert host.private_daemons() == pids and len(pids) == 1
    os.kill(pids[0], signal.SIGKILL)
    for client in clients:
        assert client.hear() == "peer gone"
    for client in clients:
        assert client.hear() == "works again"
        client.finish()


# --- a client dies ------------------------------------------------------------------------------------------------

HOLDERS = {
    "a set": "ws = leat.open('leat://kept')",
    "slots": "ws = leat.open('leat://kept')\nheld = [ws.read_batch(range(16)) for _ in range(4)]",
    "slots of an iterator": "ws = leat.open('leat://kept')\nit = leat.batches(ws, 16)\nheld = [next(it) for _ in range(3)]",
    "views": "ws = leat.open('leat://kept')\nheld = [ws.view(i) for i in range(30)]",
    "a tcp connection": "ws = leat.open('leat://kept')\nring = ws._set.load(32, 2, None, 0, 'tcp', 0, 0)\n"
                        "held = ring.read_batch(list(range(32)), 0, len(ws))",
    "a verification": "ws = leat.open('leat://kept')\nimport threading\nthreading.Thread(target=ws.verify).start()",
}


@pytest.mark.parametrize("what", HOLDERS)
def test_a_client_killed_with_something_in_its_hands(host, leat, array, what):
    daemon = host.daemon(SMALL)
    kept = leat.preload(array, name="kept", socket=daemon.socket)
    fds = lib_host.footprint(daemon.pid)["fds"]
    client = host.python(HOLDERS[what] + "\nsay('holds')\nhear()", env={"LEAT_SOCKET": str(daemon.socket)})
    assert client.hear() == "holds"
    assert [s["leases"] for s in daemon.sets()] == [2]
    client.kill()
    lib_host.wait_for(lambda: [s["leases"] for s in daemon.sets()] == [1], message="its lease is not given back")
    lib_host.wait_for(lambda: lib_host.footprint(daemon.pid)["fds"] <= fds, message="its descriptors are not given back")
    lib_data.check_rows(kept.read_batch([3, 1, 2]).data, [3, 1, 2])
    kept.close()
    leat.drop("kept", socket=daemon.socket, timeout=20)
    assert daemon.status()["pool"]["used_bytes"] == 0


def test_a_client_killed_while_it_streams(host, leat, array):
    """What it had fetched goes back to the window, or others would find no room in it."""
    daemon = host.daemon({"pool": {"size": "4MiB", "region_size": "256KiB"}})
    env = {"LEAT_SOCKET": str(daemon.socket)}
    code = "uri = argv[0]\n" + lib_data.CLIENT + (
        "ws = leat.open(uri, name='streamed')\nfor b in leat.batches(ws, 16, seed=int(argv[1])):\n"
        "    assert (b.data == rows(b.ids)).all(); b.release(); say('one')\n")
    for round in range(5):
        client = host.python(code, array, round, env=env)
        for _ in range(3):
            assert client.hear() == "one"
        client.kill()
    with leat.open("leat://streamed", socket=daemon.socket) as ws:
        assert ws.stat().streamed
        seen = []
        for batch in leat.batches(ws, 64, seed=9):
            lib_data.check_rows(batch.data, batch.ids)
            seen += batch.ids.tolist()
            batch.release()
        assert sorted(seen) == list(range(2048))
    lib_host.wait_for(lambda: daemon.sets()[0]["leases"] == 0)
    leat.drop("streamed", socket=daemon.socket)
    assert daemon.status()["pool"]["used_bytes"] == 0


#: One of these at a time runs in a child; `there()` says that it holds what it is about.
VICTIMS = """
import random
def slots():
    ws = leat.open('leat://kept'); held = [ws.read_batch(range(16)) for _ in range(4)]; there(); time.sleep(60)
def views():
    ws = leat.open('leat://kept'); held = [ws.view(i) for i in range(30)]; there(); time.sleep(60)
def tcp():
    ws = leat.open('leat://kept'); ring = ws._set.load(32, 2, None, 0, 'tcp', 0, 0); i = 0
    while True:
        i = (i + 37) % 400; h = ring.read_batch(list(range(i, i + 32)), 0, len(ws)); there(); del h
def window():
    ws = leat.open('leat://streamed'); epoch = 0
    while True:
        epoch += 1
        for b in leat.batches(ws, 16, seed=os.getpid(), epoch=epoch): there(); b.release()
def window_held():
    ws = leat.open('leat://streamed'); held = ws.read_batch(range(os.getpid() % 1000, os.getpid() % 1000 + 64)); there(); time.sleep(60)
def push():
    ws = leat.open('leat://pushed'); there()
    for i in range(0, 256, 8): ws.push(i, {'x': rows(range(i, i + 8))})
    time.sleep(60)
def verify():
    ws = leat.open('leat://streamed'); there(); ws.verify(); time.sleep(60)
def implicit():
    ws = leat.open(argv[0]); ws[5]; there(); time.sleep(60)
def load():
    while True: leat.preload(argv[1], name='made').close(); there(); leat.drop('made', force=True)
victims = [slots, views, tcp, window, window_held, push, verify, implicit, load]
while True:
    word = hear().split()
    if not word: break
    rng = random.Random(int(word[0]))
    for turn in range(int(word[1])):
        victim, told, tells = victims[turn % len(victims)], *os.pipe()
        pid = os.fork()
        if pid == 0:
            def there(): os.write(tells, b'.')
            try: victim()
            except BaseException as e: os.write(2, f'{victim.__name__}: {e!r}'.encode())
            os._exit(1)
        os.close(tells)
        if rng.random() < 0.6: os.read(told, 1)
        time.sleep(rng.random() * 0.05)
        os.kill(pid, signal.SIGKILL)
        if os.waitpid(pid, 0)[1] != signal.SIGKILL: say('died by itself:', victim.__name__)
        os.close(told)
    say('done')
"""


@pytest.mark.long
@pytest.mark.both
def test_a_hundred_clients_killed_at_any_moment(host, leat, array):
    """What they held (leases, slots, ranges of a window, connections, half a push) is the daemon's again, and it has not grown."""
    daemon = host.daemon(SMALL)
    kept = leat.preload(lib_data.make_npy(host.data / "kept.npy", 512), name="kept", socket=daemon.socket)
    streamed = leat.preload(array, name="streamed", limit=4 * MIB, socket=daemon.socket)
    pushed = leat.create("pushed", {"x": ("u8", (1024,))}, samples=256, socket=daemon.socket)
    small = lib_data.make_npy(host.data / "small.npy", 64)
    implicit = leat.open(small, socket=daemon.socket)
    murderer = host.python(lib_data.CLIENT + VICTIMS, small, lib_data.make_npy(host.data / "other.npy", 64),
                           env={"LEAT_SOCKET": str(daemon.socket)})

    def kill(seed, times):
        murderer.tell(f"{seed} {times}")
        assert murderer.hear(120) == "done"
        if any(s["name"] == "made" for s in daemon.sets()):
            leat.drop("made", socket=daemon.socket, force=True, timeout=20)

    def state():
        metrics = daemon.metrics()
        sets = daemon.sets()
        return {"leases": {s["name"]: s["leases"] for s in sets}, "clients": metrics["leat_clients"],
                "connections": metrics["leat_data_connections"], "used": metrics["leat_pool_used_bytes"],
                "held": sum(s["window_held_bytes"] for s in sets)}

    kill(1, 27)  # for whatever comes with the first use
    lib_host.wait_for(lambda: state()["held"] == 0)
    base = state()
    before = lib_host.footprint(daemon.pid)
    assert base["leases"] == {"kept": 1, "streamed": 1, "pushed": 1, "": 1}
    kill(2, 100)
    # Less than at first is no leak: a set of the first deaths may have been on its way out then.
    lib_host.wait_for(lambda: (now := state())["used"] <= base["used"] and {**now, "used": 0} == {**base, "used": 0},
                      message=lambda: f"{state()} and not {base}")
    lib_host.wait_for(lambda: lib_host.footprint(daemon.pid)["fds"] <= before["fds"], message="descriptors are left")
    # Index work of a client that died has a thread for as long as it takes, and one thread closes descriptors from the first of them on.
    lib_host.wait_for(lambda: lib_host.footprint(daemon.pid)["threads"] <= before["threads"] + 2, message="threads are left")
    after = lib_host.footprint(daemon.pid)
    if not lib_host.SANITIZED:
        assert after["maps"] <= before["maps"] + 8
        assert after["rss"] <= before["rss"] + 4 * MIB
    for ws in (kept, implicit):
        lib_data.check_rows(ws.read_batch(range(64)).data, range(64))
    lib_data.check_rows(streamed.read_batch(range(300, 364)).data, range(300, 364))
    pushed.push(0, {"x": lib_data.rows(range(256))})
    lib_data.check_rows(pushed.read_batch(range(256)).data, range(256))
    murderer.tell("")
    assert "died" not in murderer.finish()


def test_an_implicit_set_goes_with_its_killed_user(host, array):
    daemon = host.daemon(SMALL)
    client = host.python("ws = leat.open(argv[0], socket=argv[1]).wait(); say('there'); hear()", array, daemon.socket)
    assert client.hear() == "there"
    assert daemon.status()["pool"]["used_bytes"] > 0
    client.kill()
    lib_host.wait_for(lambda: daemon.status()["pool"]["used_bytes"] == 0 and not daemon.sets())


def test_a_rank_killed_while_it_pushes(host, leat):
    """The others continue; what it did not finish can be pushed by another, and no half sample is ever read."""
    daemon = host.daemon(SMALL)
    made = leat.create("pushed", {"x": ("u8", (1024,))}, samples=512, socket=daemon.socket)
    client = host.python(lib_data.CLIENT + """
ws = leat.open('leat://pushed', socket=argv[0])
for i in range(0, 256, 8):
    ws.push(i, {'x': rows(range(i, i + 8))}); say(i)
""", daemon.socket)
    for _ in range(5):
        client.hear()
    client.kill()
    for i in range(0, 512, 64):
        made.push(i, {"x": lib_data.rows(range(i, i + 64))})
    made.wait(timeout=lib_host.PATIENCE)
    lib_data.check_rows(made.read_batch(range(512)).data, range(512))
    made.verify()


# --- the daemon freezes ------------------------------------------------------------------------------------------


def test_late_bytes_never_land(host, leat, array):
    """A read over TCP times out while the daemon is frozen. It thaws, and whatever it still sends must not reach the slot, which holds
    other samples by then."""
    daemon = host.daemon(SMALL)
    ws = leat.preload(array, socket=daemon.socket)
    ring = ws._set.load(256, 1, None, 0, "tcp", 0, 0)
    assert ws.stat().transport

    def read(ids, seconds):
        return leat.Batch(ring.read_batch(ids, int(seconds * 1e9), len(ws)), ws.fields, ws)

    with read(list(range(256)), 20) as batch:
        lib_data.check_rows(batch.data, range(256))
    for turn in range(5):
        first = 300 * turn
        lib_host.freeze(daemon.pid)
        try:
            with pytest.raises(leat.TimedOut):
                read(list(range(first, first + 256)), 0.05)
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        ids = list(range(2047 - 13 * turn, 1791 - 13 * turn, -1))
        with read(ids, 20) as batch:
            for _ in range(20):  # a late byte would show sooner or later
                lib_data.check_rows(batch.data, ids)
                time.sleep(0.005)


def test_a_frozen_daemon_costs_the_deadline_and_no_more(host, leat, array):
    daemon = host.daemon(SMALL)
    ws = leat.open(array, socket=daemon.socket)
    ws.wait().read_batch([5, 4]).release()  # maps the regions
    lib_host.freeze(daemon.pid)
    try:
        started = time.monotonic()
        with pytest.raises(leat.TimedOut):
            leat.open(host.data / "other.npy", socket=daemon.socket, timeout=0.3)
        assert time.monotonic() - started < lib_host.PATIENCE
        lib_data.check_rows(ws.read_batch([5, 4]).data, [5, 4])  # shared memory needs no daemon
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    lib_data.check_rows(ws.read_batch([7]).data, [7])
    with leat.open(array, socket=daemon.socket, timeout=20) as again:
        lib_data.check_rows([again[9]], [9])


# --- starting -----------------------------------------------------------------------------------------------------

RANK = lib_data.CLIENT + """
hear()
ws = leat.open(argv[0])
say(leat.status()['pid'], (ws[0] == rows([0])[0]).all())
hear()
"""


def test_eight_ranks_start_one_daemon(host, array):
    ranks = [host.python("say('ready')\n" + RANK, array) for _ in range(8)]
    for rank in ranks:
        rank.hear()
    for rank in ranks:
        rank.tell()
    answers = [rank.hear().split() for rank in ranks]
    assert {a[1] for a in answers} == {"True"}
    assert len({a[0] for a in answers}) == 1, answers
    assert host.private_daemons() == [int(answers[0][0])]
    for rank in ranks:
        rank.tell()
        rank.finish()


def test_eight_ranks_and_a_socket_left_by_a_killed_daemon(host, array):
    client = host.python("leat.open(argv[0]); say(leat.status()['pid'], leat.status()['socket'])", array)
    pid, socket = client.hear().split()
    client.finish()
    os.kill(int(pid), signal.SIGKILL)
    assert os.path.exists(socket)
    test_eight_ranks_start_one_daemon(host, array)


def test_the_private_daemon_is_nobodys_child_and_holds_nothing_of_its_starter(host, array):
    with open(array) as held:
        os.set_inheritable(held.fileno(), True)
        client = host.python("leat.open(argv[0]); say(leat.status()['pid']); hear()", array)
        pid = int(client.hear())
        assert os.getsid(pid) not in (os.getsid(0), os.getsid(client.pid))
        client.kill()
        assert lib_host.alive(pid)
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
            except FileNotFoundError:
                continue  # closed by now: the daemon works on
            assert re.match(r"/dev/null$|.*/leatd\.log$|socket:|anon_inode:|/memfd:|.*/array\.npy|.*/leat/index/|/(leat\S*|#\d+)?( \(deleted\))?$", target), target
        assert os.readlink(f"/proc/{pid}/cwd") == "/"


def test_a_private_daemon_ends_after_it_lingered(host, array):
    client = host.python("say('up'); ws = leat.open(argv[0], socket=hear()); ws[0]; say('there'); hear()", array)
    client.hear()  # its imports may take longer than the daemon waits for a first client
    daemon = host.daemon(SMALL, options=["--idle-timeout", "3s"])
    client.tell(daemon.socket)
    client.hear()
    client.kill()
    daemon.process.wait(lib_host.PATIENCE)
    daemon.killed = True
    assert daemon.process.returncode == 0


@pytest.mark.long
@pytest.mark.both
def test_no_growth_over_a_thousand_opens(host, leat, array):
    """Neither of memory nor of descriptors, mappings or threads, on either side."""
    daemon = host.daemon(SMALL)
    small = lib_data.make_npy(host.data / "small.npy", 16)

    def cycle(n):
        for i in range(n):
            with leat.open(small, socket=daemon.socket) as ws:
                if i % 10 == 0:
                    lib_data.check_rows(ws.read_batch([3, 2]).data, [3, 2])
                else:
                    ws[i % 16]

    me = os.getpid()
    cycle(200)
    before = [lib_host.footprint(p) for p in (daemon.pid, me)]
    cycle(1000)
    after = [lib_host.footprint(p) for p in (daemon.pid, me)]
    for name, was, now in zip(("daemon", "client"), before, after):
        for what, room in (("fds", 2), ("maps", 8), ("threads", 1)):
            assert now[what] <= was[what] + room, (name, what, was, now)
        if not lib_host.SANITIZED:  # its allocator keeps what is freed, for a while
            assert now["rss"] <= was["rss"] + 4 * MIB, (name, was, now)


def test_readers_in_threads_while_sets_come_and_go(host, leat, array):
    """One set read by four threads, others opened, appended to and dropped by two: no reader sees a wrong byte."""
    daemon = host.daemon({"pool": {"size": "64MiB", "region_size": "256KiB"}})
    more = lib_data.make_npy(host.data / "more.npy", 64)
    kept = leat.preload(array, socket=daemon.socket)
    failures, over = [], threading.Event()

    def guarded(work):
        def run(n):
            try:
                while not over.is_set():
                    work(n)
            except BaseException as e:  # noqa: BLE001
                failures.append(repr(e))
        return run

    @guarded
    def read(n):
        ids = np.random.default_rng(n).integers(0, 2048, 32).astype(np.uint64)
        with kept.read_batch(ids, timeout=20) as batch:
            lib_data.check_rows(batch.data, ids)

    @guarded
    def churn(n):
        with leat.preload(more, name=f"n{n}", socket=daemon.socket) as ws:
            assert leat.append(f"n{n}", more, socket=daemon.socket) == 128
            lib_data.check_rows([ws[5]], [5])
        leat.drop(f"n{n}", force=n % 2 == 0, socket=daemon.socket)

    threads = [threading.Thread(target=f, args=(n,)) for n, f in enumerate([read, read, read, read, churn, churn])]
    for thread in threads:
        thread.start()
    time.sleep(2)
    over.set()
    for thread in threads:
        thread.join(lib_host.PATIENCE)
    assert not failures
    assert not any(t.is_alive() for t in threads)
    kept.close()
    assert [s["name"] for s in daemon.sets()] == [""], "implicit sets stay as long as a client of their user does; named ones are dropped"
    used = daemon.status()["pool"]["used_bytes"]
    assert 16 * MIB <= used < 17 * MIB
