# SPDX-License-Identifier: Apache-2.0
"""Sources and requests that are not as they should be: each gives one clear error, and the rest continues."""

import gc
import json
import os
import subprocess
import threading
import time

import lib_data
import lib_host
import numpy as np
import pytest
import s3fault

MIB = lib_data.MIB
SMALL = {"pool": {"size": "64MiB", "region_size": "256KiB"}}
#: One thread that reads one range at a time: what stands behind a held one is not read.
SLOW = {"pool": {"size": "256MiB", "region_size": "1MiB"}, "disk": {"engine": "worker", "threads": 1, "depth": 1}}


@pytest.fixture
def daemon(host):
    return host.daemon(SMALL)


# --- sources that change ----------------------------------------------------------------------------------------------


@pytest.fixture
def held_open(host, leat, monkeypatch):
    """held_open(path): (ws, daemon, go). The daemon has indexed `path` and reads none of it before go(): its only thread waits for a server of ours."""
    top, answer = host.folder / "buckets", threading.Event()
    (top / "gate" / "a").mkdir(parents=True)
    (top / "gate" / "a" / "file").write_bytes(b"x")
    for name in [name for name in os.environ if name.startswith(("AWS_", "LEAT_S3_"))]:
        monkeypatch.delenv(name)
    with s3fault.S3Fault(top) as server:
        for name, value in {**server.env(), "HOME": str(host.folder)}.items():
            monkeypatch.setenv(name, value)
        asked = server.fail(method="GET", key="a/file", times=-1, wait=answer)
        daemon = host.daemon(SLOW)
        before = leat.open("s3://gate/a", socket=daemon.socket)
        lib_host.wait_for(lambda: asked.hits)

        def opened(path):
            def go():
                answer.set()
                before.close()

            return leat.open(path, socket=daemon.socket), daemon, go

        yield opened
        answer.set()


def damaged(ws, leat, right):
    """Every sample is as it was, or an error that names it: {number: error}."""
    errors = {}
    for i in range(len(ws)):
        try:
            got = ws[i]
        except leat.Error as e:
            assert str(i) in str(e) or ws.key(i) in str(e), e
            errors[i] = e
        else:
            right(i, got)
    return errors


@pytest.mark.long
@pytest.mark.parametrize("files", [3, 10001])
def test_a_file_that_was_rewritten_in_place(host, leat, files):
    """Opening again gives what is there now: at once in a folder of few files; of many, once a reader has met it, and said to open again."""
    folder = host.data / "files"
    folder.mkdir()
    for i in range(files):
        (folder / f"{i:05}").write_bytes(b"old")
    first = host.daemon(SMALL)
    with leat.open(folder, socket=first.socket, wait=True) as ws:
        assert ws[2] == b"old"
    first.stop()
    time.sleep(0.02)
    (folder / "00002").write_bytes(b"new!")
    daemon = host.daemon(SMALL, name="second")
    if files > 10000:
        with leat.open(folder, socket=daemon.socket) as ws, pytest.raises(leat.Stale, match="changed after it was indexed.*open the dataset again"):
            ws[2]
    with leat.open(folder, socket=daemon.socket) as ws:
        assert ws[2] == b"new!" and ws[1] == b"old"
        (folder / "00002").write_bytes(b"more")
        time.sleep(0.02)
        if files <= 10000:
            with leat.open(folder, socket=daemon.socket) as again:  # beside readers of what was there
                assert (ws[2], again[2]) == (b"new!", b"more")


@pytest.mark.long
def test_files_that_vanish_during_a_preload(host, leat, held_open):
    """What was read is there, what vanished is reported, sample by sample."""
    files = lib_data.make_files(host.data / "files", 3000, 30000)
    ws, daemon, go = held_open(host.data / "files")
    for key in list(files)[1::2]:
        (host.data / "files" / key).unlink()
    go()
    field = next(f.name for f in ws.fields if f.kind != "label")

    def right(i, got):
        assert (got[field] if isinstance(got, dict) else got) == files[ws.key(i)]

    errors = damaged(ws, leat, right)
    assert all(isinstance(e, (leat.NotFound, leat.Stale)) for e in errors.values()), sorted({f'{type(e)}: {e}' for e in errors.values()})[:9]
    assert {ws.key(i) for i in errors} == set(list(files)[1::2])
    with pytest.raises(leat.Error):
        ws.wait(timeout=20)
    assert [s["state"] for s in daemon.sets() if s["source"] == str(host.data / "files")] == ["damaged"]
    assert len(leat.preload(host.data / "files", name="half", socket=daemon.socket)) == 1500, "the next open finds what is there"


def test_files_that_change_during_a_preload(host, leat, held_open):
    """Rewritten, shortened and lengthened: never old bytes beside new ones."""
    files = lib_data.make_files(host.data / "files", 480, 250000)
    ws, daemon, go = held_open(host.data / "files")
    time.sleep(0.02)  # another time of change
    for n, key in enumerate(files):
        path = host.data / "files" / key
        if n % 3 == 0:
            os.truncate(path, 100)
        elif n % 3 == 1:
            path.write_bytes(bytes(len(files[key])))
        else:
            path.write_bytes(files[key] + b"more")
    go()
    field = next(f.name for f in ws.fields if f.kind != "label")

    def right(i, got):
        assert (got[field] if isinstance(got, dict) else got) == files[ws.key(i)], "bytes of after the change passed for those of before"

    errors = damaged(ws, leat, right)
    assert {ws.key(i) for i in errors} == set(files)
    assert all(isinstance(e, (leat.Stale, leat.Corrupt)) for e in errors.values()), sorted({f'{type(e)}: {e}' for e in errors.values()})[:9]


def test_an_array_that_is_cut_during_a_preload(host, leat, held_open):
    path = lib_data.make_npy(host.data / "a.npy", 16384)
    ws, daemon, go = held_open(path)
    os.truncate(path, 4096)
    go()
    with pytest.raises((leat.Stale, leat.Corrupt)):
        ws.wait(timeout=30)
    with pytest.raises(leat.Error):
        ws[16383]
    ws.close()
    with pytest.raises((leat.Corrupt, leat.Invalid)):
        leat.open(path, socket=daemon.socket)


def test_a_source_that_changed_since_is_read_anew(host, leat, daemon):
    """A handle keeps what it has; the next open gets what is there now."""
    path = host.data / "a.npy"
    np.save(path, np.zeros((8, 4)))
    old = leat.preload(path, socket=daemon.socket)
    time.sleep(0.02)
    np.save(path, np.ones((8, 4)))
    new = leat.preload(path, socket=daemon.socket)
    assert (old[3] == 0).all() and (new[3] == 1).all()
    leat.verify(new, source=True)
    with pytest.raises((leat.Stale, leat.Corrupt)):
        old.verify(source=True)


def test_a_streamed_source_that_is_cut(host, leat):
    path = lib_data.make_npy(host.data / "a.npy", 4096)
    daemon = host.daemon({"pool": {"size": "8MiB", "region_size": "256KiB"}})
    ws = leat.open(path, socket=daemon.socket)
    assert ws.stat().streamed
    lib_data.check_rows([ws[4000]], [4000])
    os.truncate(path, 100)
    with pytest.raises((leat.Stale, leat.Corrupt)):
        for i in range(3000, 4096):
            ws[i]
    assert daemon.running()


def test_a_verified_source_that_was_changed_in_secret(host, leat, daemon):
    """The same length and times, other bytes: only --source detects it."""
    path = lib_data.make_npy(host.data / "a.npy", 64)
    ws = leat.preload(path, socket=daemon.socket)
    was = path.stat()
    with open(path, "r+b") as f:
        f.seek(128 + 8192 * 7)
        f.write(b"spoilt")
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    ws.verify()
    with pytest.raises((leat.Corrupt, leat.Stale), match="7|source|changed"):
        ws.verify(source=True)


@pytest.mark.parametrize("size, window", [("64MiB", 8 * MIB), ("18MiB", 2 * MIB), ("15680KiB", 0)])
def test_a_verify_stays_below_the_cap(host, leat, size, window):
    """It is charged what the pool has room for, up to 8 MiB; a sample that is larger comes in pieces, and its last byte counts."""
    (host.data / "large").mkdir()
    for k in range(3):
        (host.data / "large" / f"{k}.bin").write_bytes(np.random.default_rng(k).bytes(5 * MIB + k))
    path = host.data / "large" / "1.bin"
    daemon = host.daemon({"pool": {"size": size, "region_size": "256KiB"}, "disk": {"threads": 1}})

    def pool():
        return json.loads(host.cli("--socket", daemon.socket, "status", "--json").stdout)["pool"]

    ws = leat.preload(host.data / "large", socket=daemon.socket)
    assert not ws.stat().streamed
    before = pool()
    ws.verify(source=True)
    was = path.stat()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    with pytest.raises((leat.Corrupt, leat.Stale), match="1.bin.*in its source"):
        ws.verify(source=True)
    after = pool()
    assert after["used_bytes"] == before["used_bytes"] and after["peak_bytes"] >= before["used_bytes"] + window, (before, after)
    assert after["peak_bytes"] <= after["cap_bytes"]


def test_a_verify_by_the_command_line_tells_by_its_exit_code(host, leat, daemon):
    path = lib_data.make_npy(host.data / "a.npy", 64)
    leat.preload(path, name="v", socket=daemon.socket).close()
    assert host.cli("--socket", daemon.socket, "verify", "v", "--source").returncode == 0
    os.truncate(path, 5000)
    assert host.cli("--socket", daemon.socket, "verify", "v", "--source").returncode not in (0, 2)


# --- sources that are not there, or not readable ----------------------------------------------------------------------


def test_an_empty_folder_and_an_empty_array(host, leat, daemon):
    (host.data / "empty").mkdir()
    with pytest.raises(leat.Error, match="empty|no sample|no file|nothing|holds no"):
        leat.open(host.data / "empty", socket=daemon.socket)
    np.save(host.data / "none.npy", np.zeros((0, 5)))
    try:
        ws = leat.open(host.data / "none.npy", socket=daemon.socket)
    except leat.Error as e:
        assert str(e)
    else:
        assert len(ws) == 0 and list(leat.batches(ws, 4)) == []
        with pytest.raises(IndexError):
            ws[0]
    (host.data / "empty.npy").touch()
    (host.data / "empty.tar").touch()
    (host.data / "empty.h5").touch()
    for name in ("empty.npy", "empty.tar", "empty.h5"):
        with pytest.raises(leat.Error):
            leat.open(host.data / name, socket=daemon.socket)
    np.save(host.data / "wide.npy", np.zeros((5, 0, 3)))
    try:
        ws = leat.open(host.data / "wide.npy", socket=daemon.socket)
    except leat.Error as e:
        assert str(e)
    else:
        assert ws[2].shape == (0, 3)
    assert daemon.running()


NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def test_a_folder_without_permission(host):
    """By a user whom rights do bind."""
    folder = host.data / "locked"
    lib_data.make_files(folder, 3)
    (host.data / "secret.npy").write_bytes(b"x")
    (host.data / "secret.npy").chmod(0)
    (folder / "c000").chmod(0)
    code = """
for path in argv:
    try:
        leat.open(path)
        say('opened')
    except leat.Denied as e:
        say('denied', os.path.basename(path) in str(e), len(str(e)) > 20)
say(leat.ls())
leat.stop(force=True)
"""
    runtime = host.folder / "nobody"
    runtime.mkdir()
    prefix = []
    if os.geteuid() == 0:
        os.chown(runtime, 65534, 65534)
        prefix = NOBODY
    client = host.python(code, folder / "c000", host.data / "secret.npy", prefix=prefix,
                         env={"XDG_RUNTIME_DIR": str(runtime), "XDG_CACHE_HOME": str(runtime), "HOME": str(runtime)})
    assert client.finish() == "denied True True\ndenied True True\n[]"
    (folder / "c000").chmod(0o755)


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "folder as array", "dangling link", "link to itself"])
def test_paths_that_are_no_datasets(host, leat, daemon, kind):
    path = host.data / "x.npy"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        import socket

        s = socket.socket(socket.AF_UNIX)
        s.bind(str(path))
        s.close()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder as array":
        path = f"x={host.data}"
    elif kind == "dangling link":
        path.symlink_to(host.data / "nothing")
    else:
        path.symlink_to(path)
    with pytest.raises(leat.Error):
        leat.open(path, socket=daemon.socket, timeout=10)
    daemon.serves(lib_data.make_npy(host.data / "good.npy", 4))


# --- requests ---------------------------------------------------------------------------------------------------------


def test_indices_and_keys_that_are_not_there(host, leat, daemon):
    path = lib_data.make_npy(host.data / "a.npy", 10)
    ws = leat.open(path, socket=daemon.socket)
    lib_data.check_rows([ws[-1], ws[-10]], [9, 0])
    for i in (10, -11, 1 << 62, -(1 << 62), 1 << 64, -(1 << 200)):
        with pytest.raises(IndexError):
            ws[i]
        with pytest.raises((IndexError, OverflowError)):
            ws.read_batch([0, i])
        with pytest.raises(IndexError):
            ws.key(i)
    with pytest.raises((IndexError, leat.Error)):
        ws.read_batch(np.array([0, 1 << 63, (1 << 64) - 1], np.uint64))
    for key in ("10", "-1", "", "x", "0x1", " 1", "1 ", "00", "18446744073709551616", "é", "a" * 100000):
        with pytest.raises(leat.UnknownKey):
            ws[key]
    lib_data.check_rows([ws["7"]], [7])


def test_a_batch_larger_than_the_dataset(host, leat, daemon):
    ws = leat.open(lib_data.make_npy(host.data / "a.npy", 10), socket=daemon.socket)
    with ws.read_batch([i % 10 for i in range(1000)]) as batch:
        lib_data.check_rows(batch.data, [i % 10 for i in range(1000)])
    assert list(leat.batches(ws, 11)) == []
    with leat.batches(ws, 1000, drop_last=False) as epoch:
        batch = next(epoch)
        assert sorted(batch.ids.tolist()) == list(range(10))
        batch.release()
        with pytest.raises(StopIteration):
            next(epoch)


def test_names_that_are_not_there_or_taken(host, leat, daemon):
    a, b = (lib_data.make_npy(host.data / f"{n}.npy", 4 + i) for i, n in enumerate("ab"))
    with pytest.raises(leat.NotFound):
        leat.open("leat://nobody", socket=daemon.socket)
    with pytest.raises(leat.NotFound):
        leat.drop("nobody", socket=daemon.socket)
    with pytest.raises(leat.NotFound):
        leat.append("nobody", a, socket=daemon.socket)
    leat.preload(a, name="taken", socket=daemon.socket)
    with pytest.raises(leat.Error, match="taken"):
        leat.preload(b, name="taken", socket=daemon.socket)
    with pytest.raises(leat.Error, match="taken"):
        leat.create("taken", {"x": ("f4", (1,))}, samples=1, socket=daemon.socket)
    with pytest.raises(leat.Error):
        leat.append("taken", host.data / "nothing.npy", socket=daemon.socket)
    np.save(host.data / "other.npy", np.zeros((3, 3), "f2"))
    with pytest.raises(leat.Error):
        leat.append("taken", host.data / "other.npy", socket=daemon.socket)
    assert len(leat.open("leat://taken", socket=daemon.socket)) == 4


# --- a pool that is too small ----------------------------------------------------------------------------------------------


def test_a_pool_with_no_room_even_for_a_window(host, leat):
    np.save(host.data / "wide.npy", np.zeros((4, 1 << 20)))  # samples of 8 MiB
    daemon = host.daemon({"pool": {"size": "4MiB", "region_size": "1MiB"}})
    with pytest.raises(leat.NoSpace, match="pool") as caught:
        leat.open(host.data / "wide.npy", socket=daemon.socket)
    assert "32" in str(caught.value) and "4.0 MiB" in str(caught.value), "what is needed, and what there is"
    with pytest.raises(leat.NoSpace):
        leat.create("pushed", {"x": ("f8", (1 << 20,))}, samples=4, socket=daemon.socket)
    assert daemon.status()["pool"]["used_bytes"] == 0
    small = lib_data.make_npy(host.data / "small.npy", 4)
    lib_data.check_rows([leat.open(small, socket=daemon.socket)[1]], [1])


@pytest.mark.parametrize("shuffle", ["auto", "full", "block:64", False])
def test_a_pool_a_quarter_of_the_data(host, leat, shuffle):
    """Every sample right, each once, whatever the order; and the cap holds."""
    path = lib_data.make_npy(host.data / "a.npy", 4096)
    daemon = host.daemon({"pool": {"size": "8MiB", "region_size": "256KiB"}})
    ws = leat.open(path, socket=daemon.socket)
    stat = ws.stat()
    assert stat.streamed and stat.pool_bytes <= 8 * MIB
    for epoch in range(2):
        seen = []
        with leat.batches(ws, 50, seed=5, epoch=epoch, shuffle=shuffle, drop_last=False) as batches:
            for batch in batches:
                lib_data.check_rows(batch.data, batch.ids)
                seen += batch.ids.tolist()
                batch.release()
        assert sorted(seen) == list(range(4096))
        kind = batches.shuffle
        assert seen == leat.order(ws, 5, epoch, kind).tolist()
    assert shuffle != "auto" or kind.startswith("block:")
    ws.verify()
    ids = np.random.default_rng(1).integers(0, 4096, 200)
    lib_data.check_rows(ws.read_batch(ids).data, ids)
    assert daemon.status()["pool"]["peak_bytes"] <= 8 * MIB


def test_many_readers_of_one_window(host, leat):
    """Six readers in orders of their own, through a window a tenth of the data."""
    path = lib_data.make_npy(host.data / "a.npy", 2048)
    daemon = host.daemon({"pool": {"size": "2MiB", "region_size": "128KiB"}})
    code = lib_data.CLIENT + """
ws = leat.open(argv[0], socket=argv[1], timeout=60)
seen = []
for b in leat.batches(ws, 16, seed=int(argv[2]), timeout=60):
    assert (b.data == rows(b.ids)).all()
    seen += b.ids.tolist(); b.release()
say(sorted(seen) == list(range(2048)))
"""
    readers = [host.python(code, path, daemon.socket, seed) for seed in range(6)]
    for reader in readers:
        assert reader.finish() == "True"


def test_a_full_pool_makes_room_by_what_nobody_uses(host, leat):
    daemon = host.daemon({"pool": {"size": "8MiB", "region_size": "256KiB"}})
    paths = [lib_data.make_npy(host.data / f"{n}.npy", 640) for n in range(4)]  # 5 MiB each
    for path in paths:
        with leat.preload(path, socket=daemon.socket) as ws:
            assert not ws.stat().streamed
            lib_data.check_rows([ws[600]], [600])
    assert daemon.metrics()["leat_evictions_total"] >= 3
    held = leat.preload(paths[0], socket=daemon.socket)
    with leat.open(paths[1], socket=daemon.socket) as ws:
        assert ws.stat().streamed, "what is in use makes no room"
        lib_data.check_rows([ws[639]], [639])
    lib_data.check_rows([held[3]], [3])


# --- what depends on nothing but the seed ------------------------------------------------------------------------------------


def test_two_processes_agree_on_the_order(host, leat, daemon):
    path = lib_data.make_npy(host.data / "a.npy", 1000)
    code = ("ws = leat.open(argv[0], socket=argv[1])\n"
            "for s in ('full', 'block:32'):\n"
            "    say([b.ids.tolist() for b in leat.batches(ws, 48, seed=11, epoch=3, shuffle=s, drop_last=False)])\n")
    first = host.python(code, path, daemon.socket).finish()
    assert first == host.python(code, path, daemon.socket).finish()
    copy = host.data / "copied.npy"
    copy.write_bytes(path.read_bytes())
    assert first == host.python(code, copy, daemon.socket).finish(), "the order is the data's, not the place's"
    assert first != host.python(code.replace("epoch=3", "epoch=4"), path, daemon.socket).finish()
    ws = leat.open(path, socket=daemon.socket)
    ranks = [np.concatenate([b.ids for b in leat.batches(ws, 12, seed=11, epoch=3, shuffle="full", rank=r, world_size=4)])
             for r in range(4)]
    whole = leat.order(ws, 11, 3, "full")
    steps = np.concatenate([np.concatenate([rank[s * 12 : s * 12 + 12] for rank in ranks]) for s in range(1000 // 48)])
    assert (steps == whole[: len(steps)]).all()


# --- the copy ledger ---------------------------------------------------------------------------------------------------------


def test_each_byte_is_copied_once_over_shared_memory_and_never_for_a_view(host, leat, daemon):
    path = lib_data.make_npy(host.data / "a.npy", 1024)
    code = """
ws = leat.open(argv[0], socket=argv[1]).wait()
def copied(): return {k: v for k, v in leat.counters().items() if 'cop' in k}
def total(c): return sum(v if not isinstance(v, dict) else sum(v.values()) for v in c.values())
before = total(copied())
for b in leat.batches(ws, 64): b.release()
batches = total(copied()) - before
before = total(copied())
for i in range(1024):
    with ws.view(i % 31) as v: v.array.sum()
views = total(copied()) - before
say(batches, views, 1024 * 8192)
"""
    def served():
        return sum(v for k, v in daemon.metrics().items() if k.startswith("leat_copied_bytes_total"))

    kept = leat.preload(path, socket=daemon.socket)
    loaded = served()
    assert loaded <= path.stat().st_size, "loading may pass base pages through a warm buffer (docs/decisions/0031), each byte once"
    batches, views, whole = map(int, host.python(code, path, daemon.socket).finish().split())
    assert batches == whole
    assert views == 0
    assert served() == loaded, "the daemon takes no part in reading"
    kept.close()


def test_names_that_are_no_utf8(host, leat):
    """Shown escaped, as `ls -b` has it, in text and in JSON, and marked: nothing drops out."""
    raw = os.fsencode(host.data) + b"/caf\xe9\\n.npy"
    np.save(os.fsdecode(raw), np.arange(12, dtype=np.int32).reshape(4, 3))
    plain = host.data / "caf\u00e9\\xe9.npy"
    np.save(plain, np.arange(12, dtype=np.int32).reshape(4, 3))
    daemon = host.daemon()
    with leat.open(os.fsdecode(raw), socket=daemon.socket) as ws, leat.open(plain, socket=daemon.socket) as other:
        assert len(ws) == len(other) == 4
        shown = os.fsdecode(raw[: raw.index(b"/caf")]) + "/caf\\xe9\\\\n.npy"
        for sets in (daemon.sets(), daemon.status()["sets"], leat.ls(socket=daemon.socket)):
            assert len(sets) == 2
            found = [(s["source"], s.get("escaped", False)) if isinstance(s, dict) else (s.source, None) for s in sets]
            assert any(source.endswith(shown) and marked in (True, None) for source, marked in found), found
            assert any(source.endswith(str(plain)) and marked in (False, None) for source, marked in found), found
        text = host.cli("--socket", daemon.socket, "ls").stdout
        assert shown in text and str(plain) in text
        assert shown in host.cli("--socket", daemon.socket, "status").stdout
        stat = subprocess.run([lib_host.LEAT, "--socket", daemon.socket, "stat", "--json", raw], capture_output=True)
        assert stat.returncode == 0, stat.stderr
        assert daemon.metrics()["leat_working_sets"] == 2


# --- disks and memory that fail: tests/tools/failio.c -----------------------------------------------------------------

FAILIO = lib_host.FAILIO


@pytest.fixture
def failing(host):
    """Makes a daemon with a fault: failing(FAILIO_PATH=..., ...)."""
    if lib_host.SANITIZED or not FAILIO.exists():
        pytest.skip("needs the plain build's failio.so")
    host.off = host.folder / "off"

    def make(pages="no", **env):
        return host.daemon({"pool": {"size": "64MiB", "region_size": "2MiB", "huge_pages": pages}, "disk": {"engine": "worker"}},
                           env={"LD_PRELOAD": str(FAILIO), "FAILIO_OFF": str(host.off), **{k: str(v) for k, v in env.items()}})

    return make


def drop_from_cache(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@pytest.mark.plain
@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_a_bad_block_in_the_middle(failing, host, leat, cache):
    """EIO names the file and the offset; what else the file has is read; when the disk is mended so is the set."""
    path = lib_data.make_npy(host.data / "a.npy", 2048)  # 16 MiB
    if cache == "cold":
        drop_from_cache(path)
    at = 9_000_000
    daemon = failing(FAILIO_PATH="a.npy", FAILIO_OFFSET=at)
    with pytest.raises(leat.Error, match=r"a\.npy at offset \d+: Input/output error") as caught:
        leat.preload(path, name="bad", socket=daemon.socket, timeout=lib_host.PATIENCE)
    said = int(str(caught.value).split("at offset ")[1].split(":")[0])
    assert said <= at < said + MIB
    with leat.open(path, socket=daemon.socket, timeout=lib_host.PATIENCE) as ws:
        bad = (at - 128) // 8192
        with pytest.raises(leat.Error, match="Input/output error"):
            ws[bad]
        for i in (0, 5, 700, 2047):
            lib_data.check_rows([ws[i]], [i])
        stat = ws.stat()
        assert 1 <= stat.failed_samples <= 1 + 3 * MIB // 8192, stat
    assert daemon.metrics()["leat_load_errors_total"] >= 1
    del caught  # its traceback holds the set
    gc.collect()
    leat.drop("bad", force=True, socket=daemon.socket)
    lib_host.wait_for(lambda: daemon.status()["pool"]["used_bytes"] == 0)
    host.off.touch()
    with leat.preload(path, name="good", socket=daemon.socket, timeout=lib_host.PATIENCE) as ws:
        lib_data.check_rows([ws[bad]], [bad])


@pytest.mark.plain
def test_a_small_file_that_cannot_be_read(failing, host, leat):
    files = lib_data.make_files(host.data / "files", 50, 5000)
    keys = sorted(files)
    daemon = failing(FAILIO_PATH=keys[7], FAILIO_OFFSET=4500)
    with leat.open(host.data / "files", socket=daemon.socket, timeout=lib_host.PATIENCE) as ws:
        with pytest.raises(leat.Error, match=f"{keys[7]} at offset 4096: Input/output error"):
            ws[7]
        for i in (0, 6, 8, 49):
            got = ws[i]
            assert bytes(got["data"] if isinstance(got, dict) else got[0]) == files[keys[i]]
        assert ws.stat().failed_samples == 1


@pytest.mark.plain
@pytest.mark.parametrize("name", ["", "kept"])
def test_a_disk_that_is_back(failing, host, leat, name):
    """A set lacks samples since a disk failed, and has no readers: the next open has all of it; by its name, where it has one."""
    path = lib_data.make_npy(host.data / "a.npy", 2048)
    daemon = failing(FAILIO_PATH="a.npy", FAILIO_OFFSET=9_000_000)
    bad = (9_000_000 - 128) // 8192
    with leat.open(path, name=name or None, socket=daemon.socket, timeout=lib_host.PATIENCE) as ws:
        with pytest.raises(leat.Error, match="Input/output error"):
            ws[bad]
        lib_host.wait_for(lambda: ws.stat().failed_samples + ws.stat().resident_samples == 2048)
        host.off.touch()
        with leat.open(path, name=name or None, socket=daemon.socket, timeout=lib_host.PATIENCE) as again:  # shared
            assert again.stat().failed_samples > 0
    if name:
        with leat.open(path, socket=daemon.socket, timeout=lib_host.PATIENCE) as ws:  # not by its path: it has a name
            assert ws.stat().failed_samples > 0
    with leat.open(path, name=name or None, socket=daemon.socket, timeout=lib_host.PATIENCE) as ws:
        lib_data.check_rows([ws[bad]], [bad])
    if name:
        with leat.open(f"leat://{name}", socket=daemon.socket) as ws:
            lib_data.check_rows([ws[bad]], [bad])
            assert ws.wait(timeout=lib_host.PATIENCE).stat().failed_samples == 0


@pytest.mark.plain
def test_a_bad_block_under_a_streamed_set(failing, host, leat):
    path = lib_data.make_npy(host.data / "a.npy", 4096)  # 32 MiB
    at = 31 * MIB
    daemon = failing(FAILIO_PATH="a.npy", FAILIO_OFFSET=at)
    with leat.open(path, socket=daemon.socket, limit=8 * MIB, timeout=lib_host.PATIENCE) as ws:
        with pytest.raises(leat.Error, match=r"a\.npy at offset \d+: Input/output error"):
            ws[(at - 128) // 8192]
        lib_data.check_rows([ws[4000 - 300]], [4000 - 300])
        host.off.touch()
        i = (at - 128) // 8192
        lib_data.check_rows([ws[i]], [i])


@pytest.mark.plain
@pytest.mark.parametrize("nth", [1, 2])
def test_memory_that_is_not_there(failing, host, leat, nth):
    """ENOSPC of a region's file: its samples fail with the reason, the others are read, all memory comes back."""
    path = lib_data.make_npy(host.data / "a.npy", 2048)
    daemon = failing(FAILIO_FULL="leat-region", FAILIO_FULL_NTH=nth)
    with pytest.raises(leat.NoSpace, match="no memory for it in the pool .No space left on device"):
        leat.preload(path, name="full", socket=daemon.socket, timeout=lib_host.PATIENCE)
    if nth > 1:
        stat = leat.stat("full", socket=daemon.socket)
        assert 0 < stat["failed_samples"] < 2048
    leat.drop("full", force=True, socket=daemon.socket)
    lib_host.wait_for(lambda: daemon.status()["pool"]["used_bytes"] == 0)
    host.off.touch()
    with leat.preload(path, name="full", socket=daemon.socket, timeout=lib_host.PATIENCE) as ws:
        lib_data.check_rows([ws[2047]], [2047])


@pytest.mark.plain
def test_huge_pages_that_run_out(failing, host, leat):
    """The same in our own tmpfs."""
    path = lib_data.make_npy(host.data / "a.npy", 2048)
    daemon = failing(pages="yes", FAILIO_FULL="/#", FAILIO_FULL_NTH=2)
    if "tmpfs" not in daemon.status()["pool"]["page_source"]:
        pytest.skip("this host gives no tmpfs with huge pages")
    with pytest.raises(leat.NoSpace, match="No space left on device"):
        leat.preload(path, name="full", socket=daemon.socket, timeout=lib_host.PATIENCE)
    leat.drop("full", force=True, socket=daemon.socket)
    lib_host.wait_for(lambda: daemon.status()["pool"]["used_bytes"] == 0)


@pytest.mark.plain
def test_no_memory_for_tables(failing, host, leat):
    path = lib_data.make_npy(host.data / "a.npy", 2048)
    daemon = failing(FAILIO_FULL="leat-live")
    with pytest.raises(leat.NoSpace, match="no memory for the table of 2048 samples"):
        leat.open(path, socket=daemon.socket, timeout=lib_host.PATIENCE)
    assert daemon.status()["pool"]["used_bytes"] == 0
    host.off.touch()
    with leat.open(path, socket=daemon.socket, timeout=lib_host.PATIENCE) as ws:
        lib_data.check_rows([ws[3]], [3])


def test_names_do_not_command_terminals(host, leat):
    """A file's name may hold what a terminal obeys: it is escaped in lists and in messages."""
    nasty = "a\x1b]0;taken\x07\x9b31m\nleat: forged"
    path = lib_data.make_npy(host.data / f"{nasty}.npy", 8)
    ws = leat.open(path)
    for command in (["status"], ["stat", path], ["stat", f"{path}-none"], ["index", f"{path}-none"]):
        done = host.cli(*command)
        said = done.stdout + done.stderr
        assert "\\x1b]0;taken\\x07\\xc2\\x9b31m\\x0aleat: forged" in said, (command, said)
        assert not any(c in said for c in "\x1b\x07\x9b"), (command, said)
    with pytest.raises(leat.NotFound) as caught:
        leat.open(f"{path}-none")
    assert "\\x1b]0;taken" in str(caught.value) and "\x1b" not in str(caught.value)
    ws.close()


def test_a_verify_counts_samples_that_never_arrived(host, leat, daemon):
    """Their bytes are not what was asked for, whatever the checksums of the others say."""
    h5py = pytest.importorskip("h5py")
    path = host.data / "x.h5"
    with h5py.File(path, "w") as f:
        x = f.create_dataset("x", data=np.arange(200 * 16).reshape(200, 16), chunks=(1, 16), fletcher32=True)
        damaged = [x.id.get_chunk_info(k).byte_offset for k in (5, 17)]
    with open(path, "r+b") as f:
        for at in damaged:
            f.seek(at + 3)
            f.write(b"\xff")
    ws = leat.open(path, name="v", socket=daemon.socket)
    with pytest.raises(leat.Error):
        ws.wait()
    with pytest.raises(leat.Corrupt, match=r"2 samples .* are bad, the first is sample 5 .*2 failed to load, 0 are lost, 0 differ"):
        ws.verify()
    done = host.cli("--socket", daemon.socket, "verify", "v")
    assert done.returncode == 7 and "sample 5 (5)" in done.stderr and "as they were loaded" not in done.stdout
    done = host.cli("--socket", daemon.socket, "verify", "v", "--json")
    assert done.returncode == 7 and json.loads(done.stdout)["bad"] == 2
