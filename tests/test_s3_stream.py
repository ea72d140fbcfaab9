# SPDX-License-Identifier: Apache-2.0
"""A set in a bucket that is larger than the pool, from a server that breaks on command: what comes is what is stored, once each; the cap holds; what
cannot come is an error; and nothing is left of a set that is dropped."""
import gc
import os
import random
import threading

import pytest

import lib_host
import s3fault

MIB = 1 << 20
N = 240
POOL = {"pool": {"size": "12MiB", "region_size": "1MiB"}, "disk": {"threads": 2}, "s3": {"connections": 4}}


@pytest.fixture
def s3(host, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("AWS_", "LEAT_S3_"))]:
        monkeypatch.delenv(name)
    folder = host.folder / "store/b/d"
    folder.mkdir(parents=True)
    rng = random.Random(3)
    for i in range(N):
        (folder / f"{i:04}.bin").write_bytes(rng.randbytes(rng.randrange(40_000, 160_000)))
    with s3fault.S3Fault(host.folder / "store") as server:
        yield server


def opened(leat, s3, daemon, **more):
    return leat.open("s3://b/d/", socket=daemon.socket, storage_options={"endpoint_url": s3.url, "region": s3.region, "key": "AK", "secret": "SK"}, **more)


def stored(host, i):
    return (host.folder / f"store/b/d/{i:04}.bin").read_bytes()


def epoch(leat, host, ws, **how):
    seen = []
    with leat.Loader(ws, 16, drop_last=False, **how) as loader:
        for batch in loader:
            for data, i, valid in zip(batch["data"], batch.ids, batch.valid):
                if valid:
                    assert bytes(data) == stored(host, i), i
                    seen.append(int(i))
    assert sorted(seen) == list(range(N))


@pytest.mark.long
@pytest.mark.parametrize("shuffle", [True, "full", False])
def test_passing_faults(host, leat, s3, shuffle):
    daemon = host.daemon(POOL)
    with opened(leat, s3, daemon) as ws:
        assert ws.stat().streamed
        for k, fault in enumerate((dict(status=503, code="SlowDown"), dict(reset=True), dict(close=True, after=20_000), dict(status=500))):
            s3.fail(method="GET", times=4, key=f"d/{40 * k + 7:04}.bin", **fault)
        epoch(leat, host, ws, shuffle=shuffle)
        assert daemon.status()["pool"]["peak_bytes"] <= 12 * MIB
        requests = len([line for line in s3.log if "GET" in str(line)])
        assert requests < 2 * N, "objects were read again and again"


def test_one_object_that_changed(host, leat, s3):
    daemon = host.daemon(POOL)
    with opened(leat, s3, daemon) as ws:
        changed = N - 3  # streamed: the pool keeps the first
        (host.folder / f"store/b/d/{changed:04}.bin").write_bytes(b"another" * 10_000)
        for i in range(changed - 4, N):
            if i != changed:
                assert bytes(ws[i]) == stored(host, i)
        with pytest.raises(leat.Error, match=f"{changed:04}.bin"):
            ws[changed]


def test_dropped_while_a_server_is_silent(host, leat, s3):
    daemon = host.daemon(POOL)
    silent = threading.Event()
    with opened(leat, s3, daemon, name="far") as ws:
        ws.read_batch(range(8)).release()
        s3.fail(method="GET", times=-1, wait=silent)
        failed = []

        def read():
            try:
                for _ in leat.Loader(ws, 16, shuffle="full"):
                    pass
            except leat.Error as error:
                failed.append(str(error))  # not its traceback, which holds the loader
        reader = threading.Thread(target=read)
        reader.start()
        lib_host.wait_for(lambda: s3.rules[-1].hits > 0)  # how many there are at once depends on what is announced
        leat.drop("far", socket=daemon.socket, force=True)
        reader.join(60)
        assert not reader.is_alive() and failed
    silent.set()
    gc.collect()
    lib_host.wait_for(lambda: daemon.status()["pool"]["used_bytes"] == 0, message=lambda: f"{daemon.status()}")
