# SPDX-License-Identifier: Apache-2.0
"""leat.scan: samples of a prefix in the order of its list, while the list is still coming. Against a server that does what the test says
(s3fault.py), and against Swift."""

import os
import random
import re
import signal
import sys
import textwrap
import threading
import time

import lib_host
import lib_s3
import pytest
import s3fault

KIB, MIB = 1 << 10, 1 << 20
WINDOW = 2 * MIB


def names(n):
    return [f"{('cat', 'dog', 'owl')[i * 3 // n]}/{i:04}.bin" for i in range(n)]


def fill(top, sizes, prefix="set"):
    """{key: bytes} below data/set, and what is no sample beside them."""
    made, r = {}, random.Random(5)
    for key, size in sizes.items():
        file = top / "data" / prefix / key
        file.parent.mkdir(parents=True, exist_ok=True)
        made[key] = r.randbytes(size)
        file.write_bytes(made[key])
    return dict(sorted(made.items()))


@pytest.fixture
def top(tmp_path):
    return tmp_path / "buckets"


@pytest.fixture
def s3(top, host, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("AWS_", "LEAT_S3_"))]:
        monkeypatch.delenv(name)
    (top / "data").mkdir(parents=True)
    with s3fault.S3Fault(top) as server:
        for name, value in {**server.env(), "HOME": str(host.folder)}.items():
            monkeypatch.setenv(name, value)
        yield server


def everything(leat, daemon, url="s3://data/set", **options):
    with leat.scan(url, socket=daemon.socket, **options) as scan:
        return {sample.key: bytes(sample.data) for sample in scan}


def nothing_left(daemon):
    """Neither memory nor a thread of a scan."""
    lib_host.wait_for(lambda: daemon.status()["pool"]["used_bytes"] == 0, message=lambda: str(daemon.status()["pool"]))


def test_the_first_sample_does_not_wait_for_the_second_page(host, s3, top):
    """The server holds the second page until the test releases it, and every request ahead of it; the first page's samples come."""
    made = fill(top, {name: 500 + i for i, name in enumerate(names(60))})
    s3.page, more = 20, threading.Event()
    s3.fail(method="GET", query="continuation-token", times=-1, wait=more)
    s3.fail(method="GET", query="start-after", times=-1, wait=more)
    daemon = host.daemon()
    with host.leat.scan("s3://data/set", socket=daemon.socket) as scan:
        seen = [(s.key, bytes(s.data)) for _, s in zip(range(20), scan)]
        assert seen == list(made.items())[:20]
        assert not any("set/" in path and "0020.bin" in path for _, path, *_ in s3.log)
        more.set()
        seen += [(s.key, bytes(s.data)) for s in scan]
    assert seen == list(made.items())
    nothing_left(daemon)


def test_others_run_while_a_scan_ends(host, s3, top):
    """The end sends a message to the daemon, whose socket may be full, and unmaps a window."""
    fill(top, {name: 500 for name in names(3)})
    daemon, ran, stop = host.daemon(), [0], threading.Event()

    def work():
        while not stop.is_set():
            ran[0] += 1
            time.sleep(0)

    def ends():
        for _ in range(100):
            scan = host.leat.scan("s3://data/set", socket=daemon.socket, window=MIB)
            handle, before = scan._handle, ran[0]
            handle.close()
            if ran[0] != before:
                return True
        return False

    thread, interval = threading.Thread(target=work), sys.getswitchinterval()
    sys.setswitchinterval(1000)  # no thread takes the GIL from one that keeps it
    try:
        thread.start()
        assert ends()
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()


def test_order_sizes_and_what_is_told(host, s3, top):
    """More than a window holds, empty ones, one as large as the window, hidden ones left out; in the order of keys, whatever comes first."""
    sizes = {name: random.Random(i).choice((0, 1, 63, 4096, 50_000, 300_000)) for i, name in enumerate(names(150))}
    made = fill(top, {**sizes, "eel": WINDOW, "a": 0})
    fill(top, {".hidden/x": 3, "cat/.y": 4}, "set")
    s3.page = 40
    s3.fail(method="GET", key="set/cat/0003.bin", slow=0.0001)
    daemon = host.daemon()
    seen = {}
    with host.leat.scan("s3://data/set/", socket=daemon.socket, window=WINDOW) as scan:
        for sample in scan:
            seen[sample.key] = bytes(sample.data)
            assert sample.data.readonly and len(sample.data) == len(made[sample.key])
            assert sample.etag == s3.read(top / "data" / "set" / sample.key)[1] and sample.modified.year == 2026
            assert scan.last == sample.key
    assert list(seen.items()) == list(made.items())
    nothing_left(daemon)


def test_where_it_ended_it_goes_on(host, s3, top):
    made, daemon = fill(top, {name: 100 for name in names(50)}), host.daemon()
    s3.page = 7
    seen = []
    for _ in range(5):
        with host.leat.scan("s3://data/set", after=seen[-1] if seen else None, socket=daemon.socket) as scan:
            seen += [s.key for _, s in zip(range(10), scan)]
    assert seen == list(made)
    assert everything(host.leat, daemon, after=seen[-1]) == {}


def test_who_stops_early_leaves_nothing(host, s3, top):
    """Dropped at its first sample, closed, or gone with its process: thread, window and connections go."""
    fill(top, {name: 20_000 for name in names(300)})
    daemon = host.daemon()
    everything(host.leat, daemon)
    nothing_left(daemon)
    before = lib_host.footprint(daemon.pid)
    for _ in range(5):
        for sample in host.leat.scan("s3://data/set", socket=daemon.socket, window=WINDOW):
            assert len(sample.data) == 20_000
            break
    scan = host.leat.scan("s3://data/set", socket=daemon.socket)
    next(scan)
    scan.close()
    with pytest.raises(ValueError, match="closed"):
        next(scan)
    client = host.python(textwrap.dedent("""
        import sys, leat
        scan = leat.scan("s3://data/set", socket=sys.argv[1])
        say(next(scan).key)
        hear()
        """), daemon.socket)
    client.hear()
    assert daemon.status()["pool"]["window_bytes"] == 64 * MIB
    client.kill()
    nothing_left(daemon)
    lib_host.wait_for(lambda: lib_host.footprint(daemon.pid)["threads"] <= before["threads"])
    assert lib_host.footprint(daemon.pid)["fds"] <= before["fds"] + 1


def test_what_is_kept_stays(host, s3, top):
    """A view that is kept keeps its bytes, whatever comes after it; a sample whose view is not kept says what to do."""
    made, daemon = fill(top, {name: 100_000 for name in names(60)}), host.daemon()
    kept, old = [], None
    with host.leat.scan("s3://data/set", socket=daemon.socket, window=WINDOW) as scan:
        for i, sample in enumerate(scan):
            if i >= 40 and i % 3 == 0:
                kept.append((sample.key, sample.data))
            old = old or sample
            if i == 50:
                break
    with pytest.raises(ValueError, match=r"0000.bin.*bytes\(sample.data\)"):
        assert old.data
    assert [(key, bytes(view)) for key, view in kept] == [(key, made[key]) for key, _ in kept]
    assert daemon.status()["pool"]["window_bytes"] == WINDOW
    del kept, sample
    nothing_left(daemon)


def test_threads_share_one(host, s3, top):
    """Each object comes to one of them, with its own key, whatever the others request concurrently."""
    made = fill(top, {f"{i:04}{'k' * 200}": 1 for i in range(2500)})
    daemon, seen = host.daemon(), []
    with host.leat.scan("s3://data/set", socket=daemon.socket, window=WINDOW) as scan:
        threads = [threading.Thread(target=lambda: seen.extend(sample.key for sample in scan)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen) == list(made)


def test_who_keeps_all_of_the_window_is_told(host, s3, top):
    made, daemon = fill(top, {name: 300_000 for name in names(30)}), host.daemon()
    with host.leat.scan("s3://data/set", socket=daemon.socket, window=WINDOW) as scan:
        kept = []
        with pytest.raises(host.leat.Busy, match=r"s3://data/set/cat/0000.bin is still held.*window=") as error:
            kept.extend(sample.data for sample in scan)
        del error, kept
        rest = [bytes(sample.data) for sample in scan]
    assert rest == list(made.values())[6:]


def test_who_keeps_a_thousand_is_told(host, s3, top):
    """However small they are; and that it is not the window."""
    made, daemon = fill(top, {f"{i:04}": 1 for i in range(1100)}), host.daemon()
    with host.leat.scan("s3://data/set", socket=daemon.socket) as scan:
        kept = []
        with pytest.raises(host.leat.Busy, match="s3://data/set/0000 is still held, and there are 1024 objects") as error:
            kept.extend(sample.data for sample in scan)
        del error, kept
        assert [bytes(sample.data) for sample in scan] == list(made.values())[1024:]


def test_one_larger_than_the_window(host, s3, top):
    """Those before it come; the error says which, and what to do."""
    made, daemon = fill(top, {"a": 10, "b": 11, "c": WINDOW + 1, "d": 5}), host.daemon()
    scan, seen = host.leat.scan("s3://data/set", socket=daemon.socket, window=WINDOW), []
    with pytest.raises(host.leat.NoSpace, match=rf"s3://data/set/c has {WINDOW + 1} bytes.*window="):
        seen.extend(s.key for s in scan)
    assert seen == ["a", "b"] and scan.last == "b"
    with pytest.raises(host.leat.NoSpace):
        next(scan)
    assert everything(host.leat, daemon, window=2 * WINDOW, after="b") == {"c": made["c"], "d": made["d"]}


@pytest.mark.parametrize("rule, kind, words", [
    (dict(change=b"another"), "Stale", "the object changed since: 412 PreconditionFailed"),
    (dict(status=404, code="NoSuchKey"), "NotFound", "NoSuchKey|no such"),
    (dict(status=403, code="AccessDenied"), "Denied", "AccessDenied"),
], ids=["changed", "gone", "denied"])
def test_an_object_that_cannot_be_read_ends_it_in_its_turn(host, s3, top, rule, kind, words):
    made, daemon = fill(top, {name: 1000 for name in names(30)}), host.daemon()
    bad = list(made)[20]
    s3.fail(method="GET", key=f"set/{bad}", times=-1, **rule)
    seen = []
    with pytest.raises(getattr(host.leat, kind), match=f"s3://data/set/{bad}.*({words})"):
        seen.extend(s.key for s in host.leat.scan("s3://data/set", socket=daemon.socket))
    assert seen == list(made)[:20]
    nothing_left(daemon)


@pytest.mark.parametrize("size", [5000, 3 * MIB], ids=["one-request", "many"])
def test_what_rots_at_the_server_is_noticed(host, s3, top, size):
    fill(top, {"a": 10, "b": size})
    s3.checksum = "crc32c"
    s3.fail(key="set/b", times=-1, wrong_sum=True)
    daemon, seen = host.daemon(), []
    with pytest.raises(host.leat.Corrupt, match="s3://data/set/b.*CRC32C"):
        seen.extend(s.key for s in host.leat.scan("s3://data/set", socket=daemon.socket))
    assert seen == ["a"]


def test_trouble_that_passes_is_not_seen(host, s3, top):
    made, daemon = fill(top, {name: 3000 for name in names(60)}), host.daemon()
    s3.page = 25
    s3.fail(status=503, code="SlowDown", times=3, key="set/cat/0004.bin")
    s3.fail(reset=True, times=2, query="continuation-token")
    assert everything(host.leat, daemon) == made


def test_what_is_not_there_and_what_cannot_be_scanned(host, s3, top, tmp_path):
    leat, daemon = host.leat, host.daemon()
    fill(top, {".hidden": 1})
    for url, kind, words in [("s3://data/set", leat.NotFound, "s3://data/set/: there are no objects below it"),
                             ("s3://other/set", leat.NotFound, "s3://other.*NoSuchBucket")]:
        with pytest.raises(kind, match=words):
            next(leat.scan(url, socket=daemon.socket))
    for url in (tmp_path, str(tmp_path), "http://127.0.0.1:1/x", "a=s3://data/set", "a=s3://data/a;b=s3://data/b"):
        with pytest.raises(leat.Unsupported, match=f"{re.escape(str(url))}: a scan reads"):
            leat.scan(url, socket=daemon.socket)
    with pytest.raises(leat.Unsupported, match="in the pool already"):
        leat.scan("leat://x", socket=daemon.socket)
    nothing_left(daemon)


def test_the_pool_has_a_cap(host, s3, top):
    """Window and session are charged; what does not fit is refused with figures, and one that is not asked for a size takes what there is."""
    leat, made = host.leat, fill(top, {name: 30_000 for name in names(200)})
    daemon = host.daemon({"pool": {"size": "48MiB", "region_size": "2MiB"}})
    (host.data / "set").mkdir()
    (host.data / "set" / "a").write_bytes(b"x" * MIB)
    leat.open(host.data / "set", socket=daemon.socket).close()
    for window in ("40MiB", 2**63 - 1):
        with pytest.raises(leat.NoSpace, match=rf"window of {leat._base.clients.parse_bytes(window)} bytes does not fit into a pool of {48 * MIB}"):
            leat.scan("s3://data/set", socket=daemon.socket, window=window)
    assert len(daemon.status()["sets"]) == 1  # which did not have to go for what never fits
    with leat.scan("s3://data/set", socket=daemon.socket) as scan:
        next(scan)
        pool = daemon.status()["pool"]
        assert MIB <= pool["window_bytes"] < 16 * MIB and pool["used_bytes"] == pool["window_bytes"] + pool["scratch_bytes"] <= 48 * MIB
        with pytest.raises(leat.NoSpace):
            leat.scan("s3://data/set", socket=daemon.socket, window="16MiB")
    nothing_left(daemon)
    assert everything(leat, daemon) == made


def test_not_too_many_at_once(host, s3, top):
    fill(top, {"a": 1})
    daemon = host.daemon({"pool": {"size": "1GiB"}})
    scans = [host.leat.scan("s3://data/set", socket=daemon.socket, window=MIB) for _ in range(16)]
    with pytest.raises(host.leat.Busy, match="16 of them of user"):
        host.leat.scan("s3://data/set", socket=daemon.socket, window=MIB)
    assert [next(scan).key for scan in scans] == ["a"] * 16


def test_the_daemon_is_killed(host, s3, top):
    """What was handed out stays readable; the next sample is PeerGone; a new scan finds another daemon."""
    made, daemon = fill(top, {name: 50_000 for name in names(200)}), host.daemon()
    scan = host.leat.scan("s3://data/set", socket=daemon.socket, window=WINDOW)
    view, key = (sample := next(scan)).data, sample.key
    daemon.kill()
    with pytest.raises(host.leat.PeerGone):
        for _ in scan:
            pass
    assert bytes(view) == made[key]
    again = host.daemon(name="again")
    assert everything(host.leat, again) == made


def test_a_daemon_that_ends_ends_its_scans(host, s3, top):
    """Asked to stop while a page is held, it stops."""
    fill(top, {name: 10 for name in names(60)})
    s3.page, more = 20, threading.Event()
    s3.fail(query="continuation-token", times=-1, wait=more)
    daemon = host.daemon()
    scan = host.leat.scan("s3://data/set", socket=daemon.socket)
    next(scan)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(lib_host.PATIENCE) == 0
    daemon.killed = True
    more.set()


def test_credentials_are_lent(host, s3, top, monkeypatch):
    """The daemon has none: they come from the scanning process, from its environment or the call; the server's answer rejects wrong ones."""
    made = fill(top, {name: 10 for name in names(20)})
    env = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    for name in env:
        monkeypatch.delenv(name)
    daemon = host.daemon()
    how = {"endpoint_url": s3.url, "region": "us-east-1", "key": "AK", "secret": "SK"}
    assert everything(host.leat, daemon, storage_options=how) == made
    with pytest.raises(host.leat.Denied, match="SignatureDoesNotMatch"):
        next(host.leat.scan("s3://data/set", socket=daemon.socket, storage_options={**how, "secret": "SX"}))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert everything(host.leat, daemon) == made
    assert "SK" not in re.findall(r"\w+", daemon.text())


def test_ctrl_c_ends_it_and_nothing_is_left_out(host, s3, top):
    """It ends the wait for a sample that does not come; the loop can be taken up again."""
    made = fill(top, {name: 10 for name in names(60)})
    s3.page, more = 20, threading.Event()
    s3.fail(query="continuation-token", times=-1, wait=more)
    s3.fail(query="start-after", times=-1, wait=more)
    daemon = host.daemon()
    client = host.python(textwrap.dedent("""
        import sys, leat
        scan, seen = leat.scan("s3://data/set", socket=sys.argv[1]), []
        try:
            for sample in scan:
                seen.append(sample.key)
                if len(seen) == 20:
                    say("twenty")
        except KeyboardInterrupt:
            say("interrupted")
        seen += [sample.key for sample in scan]
        say(len(seen), seen == sorted(set(seen)))
        """), daemon.socket)
    assert client.hear() == "twenty"
    os.kill(client.pid, signal.SIGINT)
    assert client.hear() == "interrupted"
    more.set()
    assert client.hear() == f"{len(made)} True"
    client.finish()


def test_a_fork_has_none(host, s3, top):
    """The child gets an error, makes its own, and does not end its parent's."""
    fill(top, {name: 10 for name in names(40)})
    daemon = host.daemon()
    client = host.python(textwrap.dedent("""
        import os, sys, leat
        scan = leat.scan("s3://data/set", socket=sys.argv[1])
        first = next(scan)
        if (child := os.fork()) == 0:
            try:
                next(scan)
            except ValueError as error:
                assert "forked" in str(error), error
            scan.close()
            del first, scan
            os._exit(len(list(leat.scan("s3://data/set", socket=sys.argv[1]))))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 40
        assert len(first.data) == 10 and len(list(scan)) == 39
        say("done")
        """), daemon.socket)
    assert client.hear() == "done"
    client.finish()


def test_a_consumer_that_pauses_finds_its_list_again(host, s3, top, monkeypatch):
    """While the window is full, and for longer than a request may take, pages that were asked for are heard."""
    made = fill(top, {name: 300_000 for name in names(60)})
    s3.page = 10
    daemon = host.daemon()
    with host.leat.scan("s3://data/set", socket=daemon.socket, window=MIB) as scan:
        seen = [next(scan).key]
        lib_host.wait_for(lambda: sum("list-type" in path for _, path, *_ in s3.log) >= 2)
        asked = len(s3.log)
        threading.Event().wait(1)
        assert len(s3.log) <= asked + 4  # nothing is asked for again and again
        seen += [sample.key for sample in scan]
    assert seen == list(made)


@pytest.mark.long
@pytest.mark.skipif(lib_s3.swift_missing() is not None, reason=str(lib_s3.swift_missing()))
def test_swift(host, tmp_path, monkeypatch):
    """A server that is not ours: odd keys, its own order and pages, checksums of its own kind."""
    boto3 = pytest.importorskip("boto3")
    swift = lib_s3.Swift(tmp_path / "swift")
    try:
        for name, value in {**swift.env(), "HOME": str(host.folder)}.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=swift.url, region_name=swift.region, aws_access_key_id=swift.access,
                              aws_secret_access_key=swift.secret)
        client.create_bucket(Bucket="scanned")
        r, made = random.Random(9), {}
        for i in range(120):
            key = f"{i % 3}/ü {i:03}+%&=?#.bin"
            made[key] = r.randbytes(r.choice((0, 10, 3000, 200_000)))
            client.put_object(Bucket="scanned", Key=f"set/{key}", Body=made[key])
        client.put_object(Bucket="scanned", Key="settings/x", Body=b"not below it")
        daemon = host.daemon()
        seen = everything(host.leat, daemon, "s3://scanned/set", window=WINDOW)
        assert list(seen) == sorted(made) and seen == made
        client.put_object(Bucket="scanned", Key="set/0/z", Body=b"x" * 100)
    finally:
        swift.stop()
