# SPDX-License-Identifier: Apache-2.0
"""Two hosts, as network namespaces: a working set spans both daemons, and either one's death is reported or survived."""

import base64
import os
import re
import select
import signal
import time

import lib_data
import lib_host
import lib_net
import lib_wire
import numpy as np
import pytest

MIB = lib_data.MIB
A, B = 0, 1
#: As long as it may take until a node that is lost without a word is noticed; reads have deadlines of their own.
NOTICED = 30


@pytest.fixture
def network():
    made = lib_net.Network(2)
    yield made
    made.close()


@pytest.fixture
def array(host):
    """24 MiB: more than one daemon's pool of 16 MiB."""
    return lib_data.make_npy(host.data / "a.npy", 3072)


def nodes_of(daemon, name):
    import leat

    return {region["node"] for region in leat.stat(str(name), socket=daemon.socket)["regions"]}


def read_all(ws, seed=1):
    seen = []
    with ws_batches(ws, seed) as batches:
        for batch in batches:
            lib_data.check_rows(batch.data, batch.ids)
            seen += batch.ids.tolist()
            batch.release()
    assert sorted(seen) == list(range(len(ws)))


def ws_batches(ws, seed):
    import leat

    return leat.batches(ws, 64, seed=seed, drop_last=False)


def preload(leat, daemon, path, name="spread"):
    return leat.preload(path, name=name, socket=daemon.socket, timeout=lib_host.PATIENCE)


# --- both alive ---------------------------------------------------------------------------------------------------------


def test_a_set_spans_both(leat, pair, array):
    a, b = pair.daemons
    ws = preload(leat, a, array)
    assert not ws.stat().streamed and nodes_of(a, "spread") == {0, 1}
    assert 0 < a.status()["pool"]["used_bytes"] < 24 * MIB and 0 < b.status()["pool"]["used_bytes"] < 24 * MIB
    read_all(ws)
    there = leat.open("leat://spread", socket=b.socket)
    assert there.fingerprint == ws.fingerprint and len(there) == 3072
    read_all(there, seed=2)
    lib_data.check_rows([there[i] for i in (0, 1500, -1)], [0, 1500, 3071])
    assert there.stat().transport == "shm+tcp"
    ws.verify()
    there.verify(source=True)
    assert a.metrics()["leat_data_sent_bytes_total"] > 0 and b.metrics()["leat_data_sent_bytes_total"] > 0


def test_the_order_of_a_streamed_set_is_the_same_on_both(host, leat, pair):
    """Larger than both pools together. The nodes' windows differ; the default order, which is in blocks, must not."""
    array = lib_data.make_npy(host.data / "large.npy", 12288)  # 96 MiB; two pools of 16 MiB
    a, b = pair.daemons
    sets = [preload(leat, a, array, "large"), leat.open("leat://large", socket=b.socket)]
    assert all(ws.stat().streamed for ws in sets) and len({ws.fingerprint for ws in sets}) == 1
    loaders = [leat.Loader(ws, 64, rank=rank, world_size=2) for rank, ws in enumerate(sets)]
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1] and states[0]["shuffle"].startswith("block:")
    seen = []
    for batches in zip(*loaders):
        for batch in batches:
            lib_data.check_rows(batch["data"], batch.ids)
            seen += batch.ids.tolist()
    assert sorted(seen) == list(range(12288))


def test_processes_on_both_hosts_read(host, leat, pair, array):
    """Clients inside the namespaces, so that nothing reaches them but through the link."""
    preload(leat, pair.daemons[A], array).close()
    code = lib_data.CLIENT + """
ws = leat.open('leat://spread', socket=argv[0], timeout=30)
seen = []
for b in leat.batches(ws, 32, seed=5, rank=int(argv[1]), world_size=2):
    assert (b.data == rows(b.ids)).all()
    seen += b.ids.tolist(); b.release()
say(seen)
"""
    ranks = [host.python(code, pair.daemons[i].socket, i, prefix=pair.network.inside(i)) for i in (A, B)]
    parts = [set(eval(rank.finish())) for rank in ranks]
    assert len(parts[0] & parts[1]) == 0 and parts[0] | parts[1] == set(range(3072))


def test_both_open_the_same_path_at_once(host, pair, array):
    """One set, not two; scanned and loaded once."""
    code = lib_data.CLIENT + """
say('ready'); hear()
ws = leat.open(argv[0], socket=argv[1], timeout=30)
say(ws.fingerprint); ws.wait(timeout=30)
assert (ws.read_batch(range(0, 3072, 7)).data == rows(range(0, 3072, 7))).all()
say('read'); hear()
"""
    for turn in range(3):
        clients = [host.python(code, array, pair.daemons[i % 2].socket) for i in range(4)]
        for client in clients:
            client.hear()
        for client in clients:
            client.tell()
        assert len({client.hear() for client in clients}) == 1
        for client in clients:
            assert client.hear() == "read"
        for daemon in pair.daemons:
            assert len(daemon.sets()) == 1, daemon.sets()
        together = sum(daemon.status()["pool"]["used_bytes"] for daemon in pair.daemons)
        assert together < 26 * MIB, "it lies in memory once"
        for client in clients:
            client.tell()
            client.finish()
        # Implicit: gone on both when the last client of either is.
        lib_host.wait_for(lambda: all(d.status()["pool"]["used_bytes"] == 0 for d in pair.daemons), NOTICED,
                          f"turn {turn}: {[d.sets() for d in pair.daemons]}")


def test_an_implicit_set_lives_as_long_as_a_client_on_either(host, pair, array):
    code = lib_data.CLIENT + "ws = leat.open(argv[0], socket=argv[1]); ws.wait(timeout=30); say('there'); hear(); say((ws.read_batch(range(3072)).data == rows(range(3072))).all())"
    one, two = (host.python(code, array, pair.daemons[i].socket) for i in (A, B))
    one.hear(), two.hear()
    one.kill()
    time.sleep(0.2)
    two.tell()
    assert two.finish() == "True"
    lib_host.wait_for(lambda: all(d.status()["pool"]["used_bytes"] == 0 for d in pair.daemons), NOTICED)


@pytest.mark.parametrize("side", [A, B])
def test_a_drop_on_one_side_drops_on_both(leat, pair, array, side):
    preload(leat, pair.daemons[A], array).close()
    leat.drop("spread", socket=pair.daemons[side].socket, timeout=20)
    lib_host.wait_for(lambda: all(d.status()["pool"]["used_bytes"] == 0 and not d.sets() for d in pair.daemons),
                      message=[d.sets() for d in pair.daemons])
    for daemon in pair.daemons:
        with pytest.raises(leat.NotFound):
            leat.open("leat://spread", socket=daemon.socket)
    read_all(preload(leat, pair.daemons[B], array))


def test_a_forced_drop_tells_readers_on_the_other_side(leat, pair, array):
    preload(leat, pair.daemons[A], array).close()
    there = leat.open("leat://spread", socket=pair.daemons[B].socket)
    there.read_batch([0, 3071]).release()
    leat.drop("spread", force=True, socket=pair.daemons[A].socket)

    def stale():
        try:
            there.read_batch(range(0, 3072, 50), timeout=20).release()
        except (leat.Stale, leat.PeerGone):
            return True

    lib_host.wait_for(stale)


def create(leat, daemon, samples=1500, name="pushed"):
    """24 MB by ranks: two fields that lie far apart, and bytes that reach from region to region."""
    lengths = {"text": [3000 + i % 7 for i in range(samples)]}
    fields = {"x": ("u8", (640,)), "y": ("<i4", (2048,)), "text": bytes}
    return leat.create(name, fields, samples, lengths=lengths, socket=daemon.socket)


def pushed_fields(ids):
    rows = lib_data.rows(ids)
    return {"x": rows[:, :640], "y": rows.view("<i4")[:, :2048],
            "text": [rows[k].tobytes()[:3000 + int(i) % 7] for k, i in enumerate(ids)]}


def push(ws, first, n, **more):
    values = pushed_fields(range(first, first + n))
    ws.push(first, {name: np.ascontiguousarray(v) if isinstance(v, np.ndarray) else v for name, v in values.items()}, **more)


def check_pushed(ws, ids, **more):
    want = pushed_fields(ids)
    for k, i in enumerate(ids):
        got = ws[i]
        assert (got["x"] == want["x"][k]).all() and (got["y"] == want["y"][k]).all() and bytes(got["text"]) == want["text"][k], i


def test_ranks_push_over_both(host, leat, pair):
    """Placed like a pulled set; ranks on either host push, each sample's bytes go to the nodes that own them."""
    a, b = pair.daemons
    made = create(leat, a)
    assert nodes_of(a, "pushed") == {0, 1} == nodes_of(b, "pushed")
    there = leat.open("leat://pushed", socket=b.socket)
    with pytest.raises(leat.Error):
        there.read_batch([0], timeout=0.2)
    for first in range(0, 1500, 100):
        push(made if first % 200 else there, first, 100)
    for ws in (made, there):
        lib_host.wait_for(lambda: ws.stat().resident_samples == 1500, message=lambda: str(ws.stat()))
        check_pushed(ws, range(0, 1500, 3))
        ws.verify()
    assert all(d.metrics()["leat_data_received_bytes_total"] > 0 for d in pair.daemons)
    # A late opener gets all of it.
    code = "ws = leat.open('leat://pushed', socket=argv[0], timeout=30); ws.wait(timeout=30); say(ws.stat().resident_samples)"
    assert host.python(code, b.socket, prefix=pair.network.inside(B)).finish() == "1500"
    with pytest.raises(leat.Error, match="already"):
        create(leat, b)
    leat.drop("pushed", force=True, socket=b.socket)
    # Handles that are still open keep the tables.
    lib_host.wait_for(lambda: all(lib_host.only_tables(d) and not d.sets() for d in pair.daemons))


def test_half_a_push_is_no_sample(leat, pair):
    """What lies on one node alone is not read before the other has its part; pushed again it is whole."""
    a, b = pair.daemons
    made = create(leat, a, 600)
    lib_host.freeze(b.pid)
    try:
        with pytest.raises((leat.TimedOut, leat.PeerGone)):
            push(made, 0, 600, timeout=1)
    finally:
        os.kill(b.pid, signal.SIGCONT)
    stat = made.stat()
    assert stat.resident_samples < 600
    pair.joined(A), pair.joined(B)
    push(made, 0, 600)
    there = leat.open("leat://pushed", socket=b.socket)
    for ws in (made, there):
        lib_host.wait_for(lambda: ws.stat().resident_samples == 600, message=lambda: str(ws.stat()))
        check_pushed(ws, range(600))


def test_a_node_is_killed_while_ranks_push(leat, pair):
    """A clear error; nothing half is seen; samples on the other node alone stay readable, and the rest are reported as lost."""
    a, b = pair.daemons
    made = create(leat, a)
    push(made, 0, 100)
    b.kill()
    with pytest.raises(leat.PeerGone):
        for first in range(100, 1500, 100):
            push(made, first, 100, timeout=20)
    lib_host.wait_for(lambda: made.stat().lost_samples > 0, NOTICED)
    with pytest.raises(leat.PeerGone, match="no source"):
        made.read_batch(range(100), timeout=20)
    pair.start(B)
    pair.joined(A), pair.joined(B)
    there = leat.open("leat://pushed", socket=pair.daemons[B].socket)
    with pytest.raises(leat.PeerGone, match="no source"):
        there.read_batch(range(100), timeout=20)
    assert leat.stat("pushed", socket=a.socket)["lost_samples"] > 0


def test_what_the_dead_did_not_hold_goes_on(leat, pair):
    """Samples of one field: each lies on one node, but for those at a border."""
    a, b = pair.daemons
    made = leat.create("pushed", {"x": ("u8", (1024,))}, samples=2048, socket=a.socket)
    assert nodes_of(a, "pushed") == {0, 1}
    made.push(0, {"x": lib_data.rows(range(2048))})
    lib_host.wait_for(lambda: made.stat().resident_samples == 2048)
    regions = {r["mr_gid"]: r["node"] for r in leat.stat("pushed", socket=a.socket)["regions"]}
    per_region = 256 * 1024 // 8192
    mine = [i for i in range(2048) if regions.get(i // per_region) == 0]
    lost = [i for i in range(2048) if regions.get(i // per_region) == 1]
    b.kill()
    lib_host.wait_for(lambda: made.stat().lost_samples == 2048 - len(mine), NOTICED, lambda: str(made.stat()))
    lib_data.check_rows(made.read_batch(mine).data, mine)
    with pytest.raises(leat.PeerGone, match="no source"):
        made.read_batch(lost[:3], timeout=20)


# --- longer ---------------------------------------------------------------------------------------------------------------


def make_part(host, name, first, n):
    path = host.data / name
    np.save(path, lib_data.rows(range(first, first + n)))
    return path


@pytest.mark.parametrize("side", [A, B])
def test_append_over_both(host, leat, pair, side):
    a, b = pair.daemons
    old = [preload(leat, a, make_part(host, "one.npy", 0, 1000)), leat.open("leat://spread", socket=b.socket)]
    for ws in old:
        ws.wait(timeout=30)
    leat.append("spread", make_part(host, "two.npy", 1000, 1500), socket=pair.daemons[side].socket)
    assert nodes_of(a, "spread") == {0, 1}
    for d in pair.daemons:
        new = leat.open("leat://spread", socket=d.socket)
        assert len(new) == 2500
        new.wait(timeout=30)
        read_all(new)
        new.verify(source=True)
        new.close()
        assert len(d.sets()) == 1
    for ws in old:
        assert len(ws) == 1000
        read_all(ws, seed=2)
        ws.close()
    leat.append("spread", make_part(host, "three.npy", 2500, 10), socket=pair.daemons[1 - side].socket)
    for d in pair.daemons:
        ws = leat.open("leat://spread", socket=d.socket)
        assert len(ws) == 2510
        ws.wait(timeout=30)
        read_all(ws)
        ws.close()
    together = sum(d.status()["pool"]["used_bytes"] for d in pair.daemons)
    assert together < 22 * MIB, "each sample lies in memory once"
    with pytest.raises(leat.NoSpace):
        leat.append("spread", make_part(host, "four.npy", 0, 3000), socket=a.socket)
    with leat.open("leat://spread", socket=b.socket) as ws:
        assert len(ws) == 2510
    leat.drop("spread", force=True, socket=b.socket)
    lib_host.wait_for(lambda: all(d.status()["pool"]["used_bytes"] == 0 and not d.sets() for d in pair.daemons),
                      message=lambda: [(d.status()["pool"], d.sets()) for d in pair.daemons])


def test_a_longer_set_heals(host, leat, pair):
    """A node that is lost after an append fills the old and the new samples again."""
    a, b = pair.daemons
    preload(leat, a, make_part(host, "one.npy", 0, 1000)).wait(timeout=30)
    leat.append("spread", make_part(host, "two.npy", 1000, 1000), socket=a.socket)
    ws = leat.open("leat://spread", socket=a.socket)
    ws.wait(timeout=30)
    b.kill()
    read_all(ws)
    pair.start(B)
    pair.joined(A), pair.joined(B)
    lib_host.wait_for(lambda: ws.stat().resident_samples == 2000, NOTICED, lambda: str(ws.stat()))
    there = leat.open("leat://spread", socket=pair.daemons[B].socket)
    there.wait(timeout=30)
    assert there.stat().resident_samples == 2000
    read_all(there, seed=3)


def test_appends_at_once_from_both(host, leat, pair):
    """One after another, or an error for the loser: never two sets of one name, nor half a version."""
    preload(leat, pair.daemons[A], make_part(host, "one.npy", 0, 500)).wait(timeout=30)
    part = make_part(host, "two.npy", 500, 200)
    code = """
say('ready'); hear()
try: leat.append('spread', argv[1], socket=argv[0]); say('done')
except leat.Busy: say('busy')
"""
    clients = [host.python(code, pair.daemons[i % 2].socket, part) for i in range(6)]
    for client in clients:
        client.hear()
    for client in clients:
        client.tell()
    done = [client.finish() for client in clients].count("done")
    assert done >= 1
    for d in pair.daemons:
        assert len(leat.open("leat://spread", socket=d.socket)) == 500 + 200 * done
        assert len(d.sets()) == 1


@pytest.mark.long
def test_the_daemons_answer_while_a_long_set_grows(host, leat, cluster):
    """Joining and validating the indexes of millions of samples delays no client, on either node."""
    cluster.pool = "400MiB"
    cluster.start_all()
    for name, first in (("one", 0), ("two", 1500000)):
        np.save(host.data / f"{name}.npy", np.arange(first, first + 1500000, dtype="<i4"))
    preload(leat, cluster.daemons[A], host.data / "one.npy").wait(timeout=60)
    code = "say('ready'); hear(); leat.append('spread', argv[1], socket=argv[0], timeout=120); say('done')"
    client = host.python(code, cluster.daemons[A].socket, host.data / "two.npy")
    client.hear()
    client.tell()
    answers = [0, 0]
    while client.process.poll() is None and not select.select([client.process.stdout], [], [], 0)[0]:
        for i, daemon in enumerate(cluster.daemons):
            leat.status(socket=daemon.socket)
            answers[i] += 1
    assert client.finish() == "done"
    assert min(answers) > 0, answers
    for daemon in cluster.daemons:
        ws = leat.open("leat://spread", socket=daemon.socket)
        ws.wait(timeout=60)
        ids = np.random.default_rng(1).integers(0, 3000000, 500)
        assert (np.asarray(ws.read_batch(ids).data) == ids).all()
        ws.close()


def test_the_asker_goes_while_a_set_grows(host, leat, pair):
    """The version before or the next one, and either can be appended to again."""
    a, b = pair.daemons
    preload(leat, a, make_part(host, "one.npy", 0, 500)).wait(timeout=30)
    part = make_part(host, "two.npy", 500, 100)
    for turn in range(5):
        client = host.python("say('ready'); hear(); leat.append('spread', argv[1], socket=argv[0])", a.socket, part)
        client.hear()
        client.tell()
        time.sleep(0.002 * turn)
        client.kill()

    def again():
        try:
            return leat.append("spread", part, socket=b.socket)
        except leat.Busy:
            return 0

    total = lib_host.wait_for(again)
    assert total % 100 == 0 and 600 <= total <= 1100
    for daemon in pair.daemons:
        assert len(leat.open("leat://spread", socket=daemon.socket)) == total


def test_the_daemon_is_stopped_while_a_set_grows(host, leat, cluster):
    """It ends in time, and cancels its pending work."""
    cluster.pool = "400MiB"
    cluster.start_all()
    for name in ("one", "two"):
        np.save(host.data / f"{name}.npy", np.arange(1000000, dtype="<i4"))
    preload(leat, cluster.daemons[A], host.data / "one.npy").wait(timeout=60)
    client = host.python("say('ready'); hear()\ntry: leat.append('spread', argv[1], socket=argv[0])\nexcept leat.Error: pass",
                         cluster.daemons[A].socket, host.data / "two.npy")
    client.hear()
    client.tell()
    time.sleep(0.15)
    cluster.daemons[A].stop()
    client.process.wait(60)
    ws = leat.open("leat://spread", socket=cluster.daemons[B].socket)
    assert len(ws) in (1000000, 2000000)
    assert (np.asarray(ws.read_batch(range(0, 1000000, 5000), timeout=60).data) == np.arange(0, 1000000, 5000)).all()


@pytest.mark.long
@pytest.mark.parametrize("dead", [A, B])
def test_a_node_is_killed_while_a_set_grows(host, leat, pair, dead):
    """Every remaining node has the version before or the new one, whole."""
    alive = pair.daemons[1 - dead]
    part = make_part(host, "two.npy", 500, 200)
    for turn in range(4):
        name = f"n{turn}"
        preload(leat, pair.daemons[A], make_part(host, f"{name}.npy", 0, 500), name=name).wait(timeout=30)
        leat.open(f"leat://{name}", socket=alive.socket).wait(timeout=30)
        code = "say('ready'); hear()\ntry: leat.append(argv[1], argv[2], socket=argv[0])\nexcept leat.Error as e: say(e)"
        client = host.python(code, alive.socket, name, part)
        client.hear()
        client.tell()
        time.sleep(0.005 * turn)
        pair.daemons[dead].kill()
        client.process.wait(60)

        def settled():
            ws = leat.open(f"leat://{name}", socket=alive.socket)
            return len(ws) if ws.stat().version >= 1 else None

        assert lib_host.wait_for(settled) in (500, 700)
        ws = leat.open(f"leat://{name}", socket=alive.socket)
        read_all(ws)
        ws.close()
        pair.start(dead)
        pair.joined(A), pair.joined(B)
        leat.drop(name, force=True, socket=alive.socket)


# --- one dies -------------------------------------------------------------------------------------------------------------


def test_the_other_is_killed_and_comes_back(leat, pair, array):
    """Its samples come from the source until it is back, has filled its regions, and serves them again."""
    a, b = pair.daemons
    ws = preload(leat, a, array)
    read_all(ws)
    b.kill()
    read_all(ws, seed=2)
    lib_data.check_rows([ws[i] for i in range(0, 3072, 100)], range(0, 3072, 100))
    assert a.running()
    with leat.open("leat://spread", socket=a.socket) as again:
        read_all(again, seed=3)
    pair.start(B)
    pair.joined(A)
    lib_host.wait_for(lambda: ws.stat().resident_samples == 3072, NOTICED, lambda: f"it does not heal\n{a.text()}\n{b.text()}")
    served = pair.daemons[B].metrics()["leat_data_sent_bytes_total"]
    read_all(ws, seed=4)
    assert pair.daemons[B].metrics()["leat_data_sent_bytes_total"] > served, "what came back is not used"
    read_all(leat.open("leat://spread", socket=pair.daemons[B].socket), seed=5)


def test_the_first_is_killed_and_the_other_goes_on(leat, pair, array):
    """Independent of the coordinator: no daemon is special afterwards."""
    for name, dead in (("one", A), ("two", B)):
        alive = 1 - dead
        preload(leat, pair.daemons[dead], array, name=name).close()
        ws = leat.open(f"leat://{name}", socket=pair.daemons[alive].socket)
        pair.daemons[dead].kill()
        read_all(ws)
        with leat.open(array, socket=pair.daemons[alive].socket, timeout=lib_host.PATIENCE) as fresh:
            lib_data.check_rows([fresh[5]], [5])
        ws.close()
        leat.drop(name, force=True, socket=pair.daemons[alive].socket)
        pair.start(dead)
        pair.joined(A), pair.joined(B)


@pytest.mark.long
def test_killed_at_any_moment_of_a_read(host, leat, pair, array):
    """A reader that never stops; the other daemon is killed and started under it, three times. No sample is ever wrong or missing."""
    preload(leat, pair.daemons[A], array).close()
    reader = host.python(lib_data.CLIENT + """
import threading
over = []
threading.Thread(target=lambda: (hear(), over.append(1)), daemon=True).start()
ws = leat.open('leat://spread', socket=argv[0], timeout=60)
say('reading')
epochs, errors = 0, []
while not over:
    for b in leat.batches(ws, 48, seed=epochs, drop_last=False, timeout=60):
        assert (b.data == rows(b.ids)).all()
        b.release()
    epochs += 1
say('ok', epochs > 0)
""", pair.daemons[A].socket)
    reader.hear()
    for _ in range(3):
        time.sleep(0.4)
        pair.daemons[B].kill()
        time.sleep(0.4)
        pair.start(B)
        pair.joined(A)
    reader.tell()
    assert reader.finish() == "ok True"


# --- three ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def three(host):
    network = lib_net.Network(3)
    cluster = lib_net.Cluster(host, network)
    cluster.start_all()
    yield cluster
    network.close()


def test_three_push_and_grow(host, leat, three):
    """Through every node byte by byte; then one of them is killed, and the two others agree."""
    sockets = [d.socket for d in three.daemons]
    ranks = [create(leat, three.daemons[0])] + [leat.open("leat://pushed", socket=s) for s in sockets[1:]]
    assert nodes_of(three.daemons[0], "pushed") == {0, 1, 2}
    for first in range(0, 1500, 100):
        push(ranks[first // 100 % 3], first, 100)
    for ws in ranks:
        lib_host.wait_for(lambda: ws.stat().resident_samples == 1500, message=lambda: str(ws.stat()))
        check_pushed(ws, range(0, 1500, 7))
        ws.close()
    leat.drop("pushed", force=True, socket=sockets[2])
    preload(leat, three.daemons[1], make_part(host, "one.npy", 0, 1500)).wait(timeout=30)
    for turn in range(3):
        leat.append("spread", make_part(host, f"more{turn}.npy", 1500 + 100 * turn, 100), socket=sockets[turn])
        for s in sockets:
            with leat.open("leat://spread", socket=s) as ws:
                assert len(ws) == 1600 + 100 * turn
                ws.wait(timeout=30)
                read_all(ws, seed=turn)
    code = "say('ready'); hear()\ntry: leat.append('spread', argv[1], socket=argv[0])\nexcept leat.Error as e: say(e)"
    client = host.python(code, sockets[0], make_part(host, "last.npy", 1800, 100))
    client.hear()
    client.tell()
    three.daemons[2].kill()
    client.process.wait(60)
    lengths = set()
    for s in sockets[:2]:
        with leat.open("leat://spread", socket=s) as ws:
            lengths.add(len(ws))
            read_all(ws)
    assert len(lengths) == 1 and lengths <= {1800, 1900}, lengths


# --- one is not what it should be -------------------------------------------------------------------------------------------


def test_a_wrong_token_is_refused_and_said(leat, cluster, array):
    a = cluster.start(A)
    b = cluster.start(B, token=cluster.make_token("other", b"another secret, as long as the first one is"))
    lib_host.wait_for(lambda: "token" in a.text() and "token" in b.text(), message=f"{a.text()}\n{b.text()}")
    assert not any(n["connected"] for n in cluster.states(A) + cluster.states(B) if not n["self"])
    small = lib_data.make_npy(array.parent / "small.npy", 64)
    for daemon in (a, b):  # each serves its own host alone
        with leat.preload(small, socket=daemon.socket) as ws:
            read_all(ws)
            assert nodes_of(daemon, small) == {cluster.daemons.index(daemon)}


def test_a_node_where_the_user_has_too_many_connections(leat, cluster, array):
    """It is not lost: a reader gets an error with the limit and the node, and does not read slowly from the source without a notice."""
    a = cluster.start(A)
    b = cluster.start(B, limits={"user_data_connections": 1})
    cluster.joined(A)
    with preload(leat, a, array) as ws, ws_batches(ws, 1) as batches:
        next(batches).release()
        with ws_batches(ws, 2) as more, pytest.raises(leat.Busy, match=rf"node {cluster.nodes[B]}: user .*user_data_connections"):
            next(more)
        for batch in batches:
            batch.release()
    assert "is down" not in a.text() and b.metrics()["leat_rejected_total"] > 0


@pytest.fixture
def off(host, cluster):
    """Two nodes with a disk that fails part of `array` as long as this file is not there."""
    if lib_host.SANITIZED or not lib_host.FAILIO.exists():
        pytest.skip("needs the plain build's failio.so")
    off = host.folder / "off"
    for i in (A, B):
        cluster.start(i, disk={"engine": "worker"}, env={"LD_PRELOAD": str(lib_host.FAILIO), "FAILIO_OFF": str(off),
                                                         "FAILIO_PATH": "a.npy", "FAILIO_OFFSET": "4000000"})
    for i in (A, B):
        cluster.joined(i)
    return off


@pytest.mark.plain
def test_a_disk_that_is_back(leat, cluster, array, off):
    """A set with a name that lacks samples, on two nodes: an open by its name once the disk is repaired has all of it, on the node that
    placed it; on the other one it stays as it is, since that one keeps it."""
    def is_whole_again(side):
        socket = cluster.daemons[side].socket
        off.unlink(missing_ok=True)
        with leat.open(array, name="spread", socket=socket, timeout=lib_host.PATIENCE) as ws:
            lib_host.wait_for(lambda: ws.stat().failed_samples + ws.stat().resident_samples == 3072)
            assert ws.stat().failed_samples
        off.touch()
        with leat.open(array, name="spread", socket=socket, timeout=lib_host.PATIENCE) as ws:
            whole = ws.stat().failed_samples == 0
            if whole:
                read_all(ws)
                assert len(nodes_of(cluster.daemons[side], "spread")) == 2
        leat.drop("spread", socket=socket)
        return whole

    assert sorted([is_whole_again(A), is_whole_again(B)]) == [False, True]


@pytest.mark.plain
def test_a_disk_that_is_back_while_a_node_is_away(leat, cluster, array, off):
    """It would not hear that the set ends, keep it, and refuse the new one of that name: it is loaded again when the node is back."""
    off.touch()
    preload(leat, cluster.daemons[A], array, name="first").close()
    leat.drop("first", socket=cluster.daemons[A].socket)
    placed = [daemon.metrics()["leat_index_scans_total"] + daemon.metrics()["leat_index_hits_total"] for daemon in cluster.daemons]
    here, there = (A, B) if placed[A] else (B, A)
    a, b = cluster.daemons[here], cluster.daemons[there]
    off.unlink()
    with leat.open(array, name="spread", socket=a.socket, timeout=lib_host.PATIENCE) as ws:
        lib_host.wait_for(lambda: ws.stat().failed_samples + ws.stat().resident_samples == 3072)
        lacks = ws.stat()
        assert lacks.failed_samples
    off.touch()
    lib_host.freeze(b.pid)
    try:
        lib_host.wait_for(lambda: not all(n["connected"] for n in cluster.states(here)), NOTICED, a.text)
        with leat.open(array, name="spread", socket=a.socket, timeout=lib_host.PATIENCE) as ws:
            assert ws.stat().failed_samples == lacks.failed_samples
    finally:
        os.kill(b.pid, signal.SIGCONT)
    for i in (A, B):
        cluster.joined(i)
        assert [s["failed_samples"] for s in cluster.daemons[i].sets()] == [lacks.failed_samples]
    with leat.open(array, name="spread", socket=a.socket, timeout=lib_host.PATIENCE) as ws:
        read_all(ws)
        assert ws.stat().failed_samples == 0
    lib_host.wait_for(lambda: [[s["failed_samples"] for s in daemon.sets()] for daemon in cluster.daemons] == [[0], [0]])


def test_lists_of_nodes_that_differ(leat, cluster, array):
    """Not a set that each side reads differently: an error, or two sets apart."""
    elsewhere = f"{cluster.network.addresses[0]}:7999"
    a = cluster.start(A)
    b = cluster.start(B, nodes=[elsewhere, cluster.nodes[B], cluster.nodes[A]])
    for i in (A, B):  # B's list has one more, which never answers
        lib_host.wait_for(lambda: any(n["connected"] for n in cluster.states(i) if not n["self"]))
    said = []
    for daemon in (a, b):
        try:
            ws = preload(leat, daemon, array, name=f"n{daemon.name}")
        except leat.Error as e:
            said.append(str(e))
        else:
            read_all(ws)
            ws.close()
    assert said and all("list" in message for message in said), said


def test_a_daemon_that_is_not_in_its_own_list(host, network, cluster):
    daemon = cluster.start(A, nodes=[cluster.nodes[B], f"{network.addresses[0]}:9999"], wait=False)
    assert daemon.process.wait(lib_host.PATIENCE) == 1
    daemon.killed = True
    assert cluster.nodes[A] in daemon.text()


def test_a_name_that_leads_to_another_node(host, leat, array):
    """It has the token and the list, and would take regions that are not its own: it is not taken for the one that is meant."""
    network = lib_net.Network(2)
    try:
        cluster = lib_net.Cluster(host, network)
        wrong = re.sub(r"\.2:", ".02:", cluster.nodes[B])  # the same address to the resolver, another node in the list
        assert wrong != cluster.nodes[B]
        nodes = [cluster.nodes[A], cluster.nodes[B], wrong]
        a, b = cluster.start(A, nodes=nodes), cluster.start(B, nodes=nodes)
        lib_host.wait_for(lambda: f"{cluster.nodes[B]} answers there" in a.text(), message=a.text)
        lib_host.wait_for(lambda: [n["connected"] for n in cluster.states(A)] == [True, True, False], message=lambda: f"{cluster.states(A)}")
        with preload(leat, a, array) as ws:
            read_all(ws)
            assert nodes_of(a, "spread") == {A, B}
        assert a.text().count("answers there") == 1, "said once"
        for daemon in (a, b):
            daemon.stop()
    finally:
        network.close()


def a_peer(network, node, name, token=bytes(range(40))):
    """A connection to a daemon that says that it is a node."""
    with network.in_the_hub():
        network.on_the_bridge()
        peer = lib_wire.Peer(node)
    body = lib_wire.hello(role=lib_wire.PEER, nonce=os.urandom(32))
    assert lib_wire.prove(peer, base64.b64encode(token), body)[:2] == (0, True)
    assert peer.call(lib_wire.NODE, lib_wire.text(name))[0] == 0
    return peer


def test_one_of_two_connections_of_a_node_ends(leat, pair, array):
    """After a silent link both ends find out that the old connection is dead, in either order: what the new one holds stays."""
    a, b = pair.daemons
    with leat.open(array, socket=b.socket, timeout=lib_host.PATIENCE) as ws:
        ws.wait(timeout=lib_host.PATIENCE)
        read_all(ws)
        with a_peer(pair.network, pair.nodes[A], pair.nodes[B]):
            pass
        time.sleep(0.3)  # to be noticed, and not to be acted on
        assert [s["source"] for s in a.sets()] == [str(array)]
        with leat.open(array, socket=b.socket, timeout=lib_host.PATIENCE) as other:
            read_all(other, seed=2)


def test_a_node_that_let_go_of_a_set_without_a_word(leat, pair, array):
    """Whatever the cause: readers get the samples from their source, and the node is asked to hold them again."""
    a, b = pair.daemons
    with leat.open(array, socket=b.socket, timeout=lib_host.PATIENCE) as ws:
        ws.wait(timeout=lib_host.PATIENCE)
        with lib_wire.Peer(b.socket).greet() as local:
            _, uuid, _ = local.open(str(array))
        with a_peer(pair.network, pair.nodes[A], pair.nodes[A]) as peer:
            peer.send(lib_wire.frame(lib_wire.FORGET, uuid + (1).to_bytes(4, "little"), kind=lib_wire.EVENT))
            lib_host.wait_for(lambda: not a.sets())
        read_all(ws, seed=2)
        lib_host.wait_for(lambda: "fills its regions of" in b.text() and ws.stat().resident_samples == 3072,
                          message=lambda: f"{ws.stat()}\n{a.text()}\n{b.text()}")
        read_all(ws, seed=3)


# --- the link ---------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_link_goes_down_while_reading(leat, pair, array):
    """Within the deadline: a distinct error, or the samples from their source. With the link up again everything works."""
    a, b = pair.daemons
    ws = preload(leat, a, array)
    read_all(ws)
    pair.network.link(B, False)
    try:
        started = time.monotonic()
        outcomes = set()
        for first in range(0, 3072, 512):
            try:
                with ws.read_batch(range(first, first + 512), timeout=1) as batch:
                    lib_data.check_rows(batch.data, range(first, first + 512))
                outcomes.add("read")
            except (leat.TimedOut, leat.PeerGone) as e:
                outcomes.add(type(e).__name__)
        assert time.monotonic() - started < 6 * 1 + lib_host.PATIENCE, "a deadline was not kept"
        assert outcomes <= {"read", "TimedOut", "PeerGone"}

        def from_the_source():
            try:
                read_all(ws, seed=2)
                return True
            except (leat.TimedOut, leat.PeerGone):
                return False

        lib_host.wait_for(from_the_source, NOTICED * 2, "a lost link is never noticed")
    finally:
        pair.network.link(B, True)
    pair.joined(A), pair.joined(B)
    lib_host.wait_for(lambda: ws.stat().resident_samples == 3072, NOTICED, str(ws.stat()))
    read_all(ws, seed=3)
    read_all(leat.open("leat://spread", socket=b.socket), seed=4)


def test_a_frozen_node_over_a_real_link(leat, pair, array):
    """Its late bytes land in no batch that was filled again since."""
    a, b = pair.daemons
    ws = preload(leat, a, array)
    read_all(ws)
    for turn in range(3):
        lib_host.freeze(b.pid)
        try:
            for first in (0, 1000, 2000):
                try:
                    ws.read_batch(range(first, first + 500), timeout=0.2).release()
                except (leat.TimedOut, leat.PeerGone):
                    pass
        finally:
            os.kill(b.pid, signal.SIGCONT)
        ids = np.random.default_rng(turn).integers(0, 3072, 500)
        with ws.read_batch(ids, timeout=lib_host.PATIENCE) as batch:
            for _ in range(20):
                lib_data.check_rows(batch.data, ids)
                time.sleep(0.005)


def test_processes_of_a_host_share_its_credit(host, leat, pair, array):
    """Two readers share a rail's credit and its measured rates; after both are killed, their slots are given back."""
    preload(leat, pair.daemons[A], array).close()
    code = lib_data.CLIENT + """
ws = leat.open('leat://spread', socket=argv[0], timeout=30)
for _ in range(8):  # a rate is of 5 ms at least
    assert (ws.read_batch(range(3072)).data == rows(range(3072))).all()
say('read'); hear()
while True:
    ws.read_batch(range(3072)).release()
"""
    readers = [host.python(code, pair.daemons[A].socket, prefix=pair.network.inside(A)) for _ in range(2)]
    for reader in readers:
        assert reader.hear() == "read"
    (credit,) = pair.daemons[A].status()["credits"]
    assert credit["processes"] == 2 and credit["rail"] == 0 and credit["in_flight_bytes"] == 0
    assert credit["delivered_bytes"] > 12 * MIB and credit["rate_bytes_per_s"] > 0 and credit["delay_ns"] > 0
    assert 0 < credit["limit_bytes"] <= 64 * MIB
    for reader in readers:
        reader.tell()
    time.sleep(0.3)
    for reader in readers:
        reader.process.kill()
        reader.process.wait()
    lib_host.wait_for(lambda: pair.daemons[A].status()["credits"] == [], NOTICED, "the slots are not given back")


@pytest.mark.long
def test_millions_of_small_samples(host, leat, network):
    """What a node says of a single segment is more than a connection may have waiting: it is said portion by portion."""
    cluster = lib_net.Cluster(host, network, pool="128MiB", region="8MiB")
    a, b = cluster.start_all()
    np.save(host.data / "labels.npy", np.arange(4 << 20, dtype=np.int32))
    with leat.preload(host.data / "labels.npy", name="labels", socket=a.socket, timeout=lib_host.PATIENCE):
        def resident(daemon):
            return daemon.sets()[0]["resident_samples"] == 4 << 20
        lib_host.wait_for(lambda: resident(a) and resident(b), message=lambda: f"{a.sets()} {b.sets()}\n{a.text()}")
        b.kill()  # the catch-up of its next start is as large
        cluster.start(B)
        cluster.joined(A)
        lib_host.wait_for(lambda: resident(a) and a.sets()[0]["lost_samples"] == 0, message=lambda: f"{a.sets()}\n{a.text()}")
    assert "broke the protocol" not in a.text() + cluster.daemons[B].text()


@pytest.mark.slow
def test_a_node_comes_back_to_many_sets(host, leat, network):
    """It learns of all of them, one after another, as a little of each at once is more than a connection may have waiting."""
    sets, samples = 90, 80_000
    cluster = lib_net.Cluster(host, network, pool="256MiB", region="64KiB")
    a, b = cluster.start_all()
    for k in range(sets):
        np.save(host.data / f"{k}.npy", np.arange(samples, dtype=np.int32))
        preload(leat, a, host.data / f"{k}.npy", name=f"s{k}").close()
    b.kill()
    lib_host.wait_for(lambda: sum(s["lost_samples"] for s in a.sets()) > 0)
    cluster.start(B)
    cluster.joined(A)
    lib_host.wait_for(lambda: sum(s["resident_samples"] for s in a.sets()) == sets * samples, message=lambda: a.text()[-2000:])
