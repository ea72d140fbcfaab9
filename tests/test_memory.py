# SPDX-License-Identifier: Apache-2.0
"""Hosts that are short of something: a control group smaller than the data, descriptors, and allocations that fail."""

import contextlib
import os
import pathlib
import resource
import tarfile

import lib_data
import lib_host
import numpy as np
import pytest
import s3fault

MIB = lib_data.MIB


# --- control groups -------------------------------------------------------------------------------------------------------


class Group:
    """A memory control group, of v1 or v2, that processes can be started in."""

    def __init__(self, limit):
        lib_host.need_root()
        v1 = pathlib.Path("/sys/fs/cgroup/memory")
        self.old = v1.is_dir()
        base = v1 if self.old else pathlib.Path("/sys/fs/cgroup")
        self.folder = base / f"leat-test-{os.getpid()}"
        try:
            self.folder.mkdir()
            if not self.old and not (self.folder / "memory.max").exists():
                (base / "cgroup.subtree_control").write_text("+memory")
            (self.folder / ("memory.limit_in_bytes" if self.old else "memory.max")).write_text(str(limit))
        except OSError as e:
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            pytest.skip(f"no memory control group can be made here: {e}")

    def enter(self):
        """For preexec: a string written by file descriptor alone."""
        with open(self.folder / "cgroup.procs", "w") as f:
            f.write(str(os.getpid()))

    def kills(self):
        text = (self.folder / ("memory.oom_control" if self.old else "memory.events")).read_text()
        return int(dict(line.split() for line in text.splitlines()).get("oom_kill", 0))

    def close(self):
        def gone():
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            return not self.folder.exists()

        lib_host.wait_for(gone, message="the control group does not become empty")


@pytest.fixture
def group():
    made = Group(192 * MIB)
    yield made
    made.close()


@pytest.fixture
def in_group(group, host):
    # Ends before the group does.
    return host


def stream(leat, daemon, path, samples, **options):
    ws = leat.open(path, socket=daemon.socket, timeout=lib_host.PATIENCE, **options)
    seen = 0
    with leat.batches(ws, 64, drop_last=False) as batches:
        for batch in batches:
            lib_data.check_rows(batch.data, batch.ids)
            seen += len(batch)
            batch.release()
    assert seen == samples
    return ws


def test_a_control_group_smaller_than_the_data(in_group, group, leat):
    """The daemon's cap follows its group; the set is streamed through it; no process is killed."""
    path = lib_data.make_npy(in_group.data / "a.npy", 28 * 1024)  # 224 MiB
    daemon = in_group.daemon(preexec=group.enter)
    cap = daemon.status()["pool"]["cap_bytes"]
    assert 16 * MIB <= cap <= 96 * MIB
    ws = stream(leat, daemon, path, 28 * 1024)
    assert ws.stat().streamed
    assert daemon.status()["pool"]["peak_bytes"] <= cap
    assert group.kills() == 0 and daemon.running()


def test_a_pool_that_was_told_to_be_larger_than_its_control_group(in_group, group, leat):
    """The configuration asks for more than there is: it takes what there is, and continues."""
    path = lib_data.make_npy(in_group.data / "a.npy", 28 * 1024)
    daemon = in_group.daemon({"pool": {"size": "4GiB", "region_size": "4MiB"}}, preexec=group.enter)
    ws = stream(leat, daemon, path, 28 * 1024)
    assert ws.stat().streamed
    with pytest.raises(leat.NoSpace):
        leat.create("pushed", {"x": ("u1", (MIB,))}, samples=300, socket=daemon.socket)
    assert group.kills() == 0 and daemon.running()


# --- tables -----------------------------------------------------------------------------------------------------------------


@pytest.mark.both
def test_tables_that_are_larger_than_the_pool(host, leat):
    """Ten million samples of a byte each: the daemon's tables are larger than they are, and it reports that."""
    path = host.data / "tiny.npy"
    np.save(path, np.zeros((10_000_000, 1), np.uint8))
    daemon = host.daemon({"pool": {"size": "32MiB", "region_size": "1MiB"}})
    small = lib_data.make_npy(host.data / "small.npy", 8)
    for _ in range(2):
        with pytest.raises(leat.NoSpace, match=r"10000000 samples need 5[0-9.]+ MiB .* 32.0 MiB free of 32.0 MiB") as caught:
            leat.open(path, socket=daemon.socket)
        assert "raise the pool's size" in str(caught.value)
    assert lib_host.footprint(daemon.pid)["rss"] < 64 * MIB or lib_host.SANITIZED
    assert daemon.status()["pool"]["used_bytes"] == 0
    with leat.open(small, socket=daemon.socket) as ws:
        lib_data.check_rows([ws[1]], [1])
        pool, made = daemon.status()["pool"], daemon.sets()[0]
        assert pool["used_bytes"] == made["pool_bytes"] + made["table_bytes"] and made["table_bytes"] == pool["table_bytes"] > 0
        assert daemon.metrics()["leat_pool_table_bytes"] == pool["table_bytes"]


def test_chunks_are_unpacked_within_the_pool(host, leat):
    """A chunk takes scratch memory as it is inflated: charged to the set, by as many threads as there is room for."""
    h5py = pytest.importorskip("h5py")
    path = host.data / "chunks.h5"
    data = np.repeat(np.arange(4096, dtype=np.uint64)[:, None], 512, 1)
    with h5py.File(path, "w") as f:
        f.create_dataset("x", data=data, chunks=(1024, 512), compression="gzip", shuffle=True)
    daemon = host.daemon({"pool": {"size": "40MiB", "region_size": "1MiB"}, "disk": {"threads": 8}})
    with leat.open(path, socket=daemon.socket, timeout=lib_host.PATIENCE) as ws:
        np.testing.assert_array_equal(np.asarray(ws[3000]).reshape(-1), data[3000])
        pool = daemon.status()["pool"]
        assert 8 * MIB <= pool["scratch_bytes"] <= 24 * MIB, "not for eight threads: that is 100 MiB"
        assert pool["peak_bytes"] <= 40 * MIB
    tight = host.daemon({"pool": {"size": "8MiB", "region_size": "1MiB"}}, name="tight")
    with pytest.raises(leat.NoSpace, match="unpacking a chunk of it takes .* smaller chunks"):
        leat.open(path, socket=tight.socket)


def test_sessions_are_charged(host, leat, monkeypatch):
    """A thread's buffers for remote reads count under the cap while the set is there: by as many threads as there is room for."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "LEAT_S3_"))]:
        monkeypatch.delenv(name)
    (host.folder / "store/b").mkdir(parents=True)
    lib_data.make_npy(host.folder / "store/b/a.npy", 1024)  # 8 MiB
    config = {"pool": {"size": "32MiB", "region_size": "1MiB"}, "disk": {"threads": 8}}
    with s3fault.S3Fault(host.folder / "store") as s3:
        how = {"endpoint_url": s3.url, "region": s3.region, "key": "AK", "secret": "SK"}
        daemon, few = host.daemon(config), host.daemon({**config, "s3": {"connections": 4}}, name="few")
        held = []
        for at in (daemon, few):
            with leat.preload("s3://b/a.npy", name="far", socket=at.socket, storage_options=how) as ws:
                lib_data.check_rows(ws.read_batch(range(0, 1024, 9)).data, range(0, 1024, 9))
                pool = at.status()["pool"]
                held.append(pool["scratch_bytes"])
                assert pool["used_bytes"] >= 8 * MIB + held[-1] and pool["peak_bytes"] <= 32 * MIB
            leat.drop("far", socket=at.socket)
            lib_host.wait_for(lambda at=at: at.status()["pool"]["used_bytes"] == 0, message=lambda at=at: f"{at.status()} {at.sets()}")
        assert 8 * MIB < held[0] <= 24 * MIB and 1 * MIB < held[1] < held[0], held
        tight = host.daemon({"pool": {"size": "2MiB", "region_size": "64KiB"}}, name="tight")
        with pytest.raises(leat.NoSpace, match="reading it takes .* fewer connections"):
            leat.open("s3://b/a.npy", socket=tight.socket, storage_options=how)


# --- descriptors --------------------------------------------------------------------------------------------------------------


def test_a_daemon_without_descriptors(host, leat):
    """A clear error, nothing half made, and small sets still work."""
    big = lib_data.make_npy(host.data / "big.npy", 2048)
    small = lib_data.make_npy(host.data / "small.npy", 8)
    daemon = host.daemon({"pool": {"size": "32MiB", "region_size": "64KiB"}},
                         preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80)))
    kept = leat.open(small, socket=daemon.socket)
    lib_data.check_rows([kept[1]], [1])
    for _ in range(5):
        with pytest.raises(leat.Error) as caught:
            leat.preload(big, name="big", socket=daemon.socket, timeout=20)
        assert not isinstance(caught.value, (leat.TimedOut, leat.PeerGone)), caught.value
    with pytest.raises(leat.NotFound):
        leat.open("leat://big", socket=daemon.socket)
    # Connections until no descriptor is left: those past the end are turned away, and leave the others alone.
    clients = []
    with contextlib.suppress(leat.Error):
        for _ in range(100):
            clients.append(leat._leat.Client(socket=str(daemon.socket), timeout_ns=5 * 10**9))
    assert 5 < len(clients) < 100
    lib_data.check_rows([kept[2]], [2])
    for client in clients:
        client.close()
    lib_host.wait_for(lambda: lib_host.footprint(daemon.pid)["fds"] < 60)
    with leat.open(small, socket=daemon.socket) as ws:
        lib_data.check_rows([ws[3]], [3])


# --- allocations -----------------------------------------------------------------------------------------------------------------

FAILNTH = lib_host.BUILD / "tests" / "tools" / "failnth.so"


def over_tcp(leat, ws):
    ring = ws._set.load(16, 1, None, 0, "tcp", 0, 0)
    with leat.Batch(ring.read_batch(list(range(16)), 10 * 10**9, len(ws)), ws.fields, ws) as batch:
        lib_data.check_rows(batch.data, range(16))


def use_everything(leat, socket, data):
    """What a daemon can be asked for, once; errors are well, as long as they are ours. The errors."""
    errors = []

    @contextlib.contextmanager
    def may_fail():
        try:
            yield
        except leat.TimedOut as e:
            raise AssertionError(f"it hangs: {e}") from e
        except leat.Error as e:
            errors.append(f"{type(e).__name__}: {e}")  # the text alone: a traceback would keep sets open

    with may_fail(), leat.preload(data / "a.npy", name="named", socket=socket, timeout=10) as ws:
        lib_data.check_rows(ws.read_batch(range(0, 256, 3)).data, range(0, 256, 3))
        over_tcp(leat, ws)
        ws.verify()
    with may_fail():
        leat.append("named", data / "a.npy", socket=socket, timeout=10)
    with may_fail(), leat.open(data / "files", socket=socket, timeout=10) as ws:
        ws.wait(timeout=10)
        assert len(ws) == 30
    with may_fail(), leat.open(data / "t.tar", socket=socket, timeout=10) as ws:
        ws.wait(timeout=10)
        assert len(ws) == 20
    with may_fail(), leat.open(data / "b.npy", socket=socket, timeout=10, limit=MIB) as ws:
        for i in (0, 400, 200):
            lib_data.check_rows([ws[i]], [i])
    with may_fail(), leat.create("pushed", {"x": ("u8", (1024,))}, samples=16, socket=socket) as ws:
        ws.push(0, {"x": lib_data.rows(range(16))}, timeout=10)
        lib_data.check_rows(ws.read_batch(range(16), timeout=10).data, range(16))
    ws = None
    with may_fail():
        leat.ls(socket=socket), leat.status(socket=socket), leat.stat("named", socket=socket)
    for name in ("named", "pushed"):
        with may_fail():
            leat.drop(name, force=True, socket=socket, timeout=10)
    return errors


@pytest.fixture
def everything(host):
    lib_data.make_npy(host.data / "a.npy", 256)
    lib_data.make_npy(host.data / "b.npy", 512)
    lib_data.make_files(host.data / "files", 30, 500)
    with tarfile.open(host.data / "t.tar", "w") as tar:
        for key in sorted(p for p in (host.data / "files").rglob("*.bin"))[:20]:
            tar.add(key, key.name)
    return host


def one_failure(host, leat, nth, count):
    from leat._base import clients as _clients

    arm = host.folder / f"arm-{nth}"
    daemon = host.daemon({"pool": {"size": "8MiB", "region_size": "256KiB"}, "disk": {"threads": 1}}, name=f"n{nth}", env={
        "LD_PRELOAD": str(FAILNTH), "FAILNTH": str(nth), "FAILNTH_COUNT": str(count), "FAILNTH_ARM": str(arm)})
    arm.touch()
    errors = use_everything(leat, daemon.socket, host.data)
    reached = not arm.exists()
    arm.unlink(missing_ok=True)
    _clients.forget_all()
    if not daemon.running():
        # It may fail; not by a signal, and not in silence.
        assert daemon.process.returncode == 1, f"allocation {nth}: ended with {daemon.process.returncode}\n{daemon.text()}"
        daemon.kill()
        return reached
    use_everything(leat, daemon.socket, host.data)  # what was left of the failures, and of what failed
    after = use_everything(leat, daemon.socket, host.data)
    assert not after or not reached, f"allocation {nth}: afterwards, too: {after}\nat first: {errors}\n{daemon.text()}"
    _clients.forget_all()
    lib_host.wait_for(lambda: daemon.status()["pool"]["used_bytes"] == 0 and not daemon.sets(),
                      message=f"allocation {nth}: memory stays taken: {daemon.sets()}\n{errors}\n{daemon.text()}")
    daemon.stop()
    return reached


def needs_failnth():
    if lib_host.SANITIZED or not FAILNTH.exists():
        pytest.skip("needs the plain build's failnth.so")


@pytest.mark.plain
@pytest.mark.parametrize("nth", [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 120, 144, 190, 233, 300, 377])
def test_the_nth_allocation_of_the_daemon_fails(everything, leat, nth):
    needs_failnth()
    assert one_failure(everything, leat, nth, 1), "there were fewer allocations than that: it shows nothing"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 600, 50))
def test_any_allocation_of_the_daemon_fails(everything, leat, first):
    needs_failnth()
    for nth in range(first + 1, first + 51):
        if not one_failure(everything, leat, nth, 1 + nth % 3):
            return
