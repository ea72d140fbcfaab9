# SPDX-License-Identifier: Apache-2.0
"""What loaders tell the daemon of how far they are, and what people are shown of it."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import leat
from leat._loader import report as _report

from lib_host import freeze, wait_for


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(_report, "EVERY_S", 0.0)


@pytest.fixture
def numbers(tmp_path):
    np.save(tmp_path / "n.npy", np.arange(4096, dtype="<f4").reshape(256, 16))
    with leat.open(tmp_path / "n.npy", name="numbers") as ws:
        yield ws


def jobs():
    return leat.status()["jobs"]


def test_a_loader_is_seen_as_far_as_it_is(numbers, often):
    with leat.Loader(numbers, 8, rank=0, world_size=2) as loader:
        assert jobs() == []
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        wait_for(lambda: jobs() and jobs()[0]["samples"] == 5 * 16, 60)
        (job,) = jobs()
        assert (job["set"], job["job"], job["epoch"], job["length"]) == ("numbers", os.environ["LEAT_JOB"], 0, 256)
        (rank,) = job["ranks"]
        assert (rank["rank"], rank["pid"], rank["total_samples"], rank["total_bytes"]) == (0, os.getpid(), 40, 40 * 64)
        assert job["world_size"] == 2 and job["samples_per_s"] == pytest.approx(2 * rank["samples_per_s"])
        for _ in batches:
            pass
        wait_for(lambda: jobs()[0]["samples"] == 256, 60)
        for _ in loader:
            pass
        wait_for(lambda: (jobs()[0]["epoch"], jobs()[0]["samples"]) == (1, 256), 60)
    wait_for(lambda: not jobs(), 60)


def test_about_once_a_second(numbers):
    told = []
    with leat.Loader(numbers, 8) as loader:
        real = loader._config.reporter.tell
        loader._config.reporter.tell = lambda *args: told.append(1) or real(*args)
        start = time.perf_counter()
        for _ in range(30):
            for _ in loader:
                pass
        took = time.perf_counter() - start
    assert 1 <= len(told) <= 10 * took + 3


def test_loaders_of_one_process_stand_apart(numbers, often):
    train, val = leat.Loader(numbers, 8), leat.Loader(numbers, 4, shuffle=False, transform=lambda sample, rng: sample)
    one, two = iter(train), iter(val)
    next(one), next(two), next(two)
    wait_for(lambda: sorted(job["samples"] for job in jobs()) == [8, 8] and len(jobs()) == 2, 60)
    assert len({job["loader"] for job in jobs()}) == 2
    train.close()
    wait_for(lambda: len(jobs()) == 1, 60)
    val.close()


def test_a_mixture_says_of_what(numbers, often):
    with leat.Loader(leat.Mixture([(numbers, 0.5), (numbers, 0.5)]), 8) as loader:
        next(iter(loader))
        wait_for(lambda: jobs() and jobs()[0]["set"] == "mixture of numbers, numbers", 60)


RANK = """
import sys, time, leat
from leat._loader import report as _report
_report.EVERY_S = 0.0
ws = leat.open("leat://numbers")
loader = leat.Loader(ws, 8, rank=int(sys.argv[1]), world_size=2)
batches = iter(loader)
for _ in range(3 + int(sys.argv[1])):
    next(batches)
print("there", flush=True)
sys.stdin.read()
"""


def test_ranks_stand_side_by_side_and_the_killed_go(numbers):
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for rank in range(2)]
    try:
        assert [rank.stdout.readline() for rank in ranks] == [b"there\n"] * 2
        wait_for(lambda: jobs() and len(jobs()[0]["ranks"]) == 2 and jobs()[0]["samples"] == 64, 60)
        (job,) = jobs()
        assert [one["pid"] for one in job["ranks"]] == [rank.pid for rank in ranks]
        assert [one["samples"] for one in job["ranks"]] == [48, 64]
        ranks[1].kill()
        wait_for(lambda: [one["rank"] for one in jobs()[0]["ranks"]] == [0], 60)
        ranks[0].stdin.close()
        wait_for(lambda: not jobs(), 60)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_a_daemon_that_does_not_read_holds_nobody_up(numbers):
    """A report that a stopped daemon does not take is left out, and the next one arrives once the daemon continues."""
    pid = leat.status()["pid"]

    def report(samples):
        return numbers._set.report(9, None, 0, 0, 0, 1, 0, samples, 100, 1, 1, 0, 0, 0.0, 0.0, 0.0, 0)

    freeze(pid)
    try:
        assert any(not report(i) for i in range(100000))
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: report(77), 60)
    wait_for(lambda: jobs() and jobs()[0]["samples"] == 77, 60)


def test_a_report_fails_no_loop(numbers, often, monkeypatch):
    loader = leat.Loader(numbers, 8)
    monkeypatch.setattr(loader._config.reporter, "_tell", lambda *args: (_ for _ in ()).throw(leat.PeerGone("gone")))
    assert sum(len(batch) for batch in loader) == 256
    loader.close()
