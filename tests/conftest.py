# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that run real processes."""

import gc
import os
import pathlib
import signal
import subprocess
import sys

import pytest

import lib_host
import lib_net

# A shell without job control starts what runs in the background with Ctrl-C ignored, and so would be all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


# The longest files: they begin first, as a worker of pytest-xdist takes a file at a time, and the last one ends alone.
LONGEST = ("test_samplers.py", "test_loader.py", "test_hosts.py", "test_s3_faults.py", "test_loader_faults.py", "test_hostile_peers.py", "test_rails.py",
           "test_deaths.py", "test_users.py", "test_arguments.py", "test_bad_sources.py", "test_s3.py", "test_loader_streamed.py")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_collection_finish(session):
    """What two thousand collected tests are made of is left out of each gc.collect() from here on: fixtures collect after every test."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def host(monkeypatch):
    """A place for daemons and clients; what they leave behind fails the test."""
    made = lib_host.Host(monkeypatch)
    yield made
    made.close()


@pytest.fixture
def leat(host):
    return host.leat


@pytest.fixture
def cluster(network, host):
    """A daemon for each host of the test's `network`; closed before it, since daemons live in it."""
    return lib_net.Cluster(host, network)


@pytest.fixture
def pair(cluster):
    """All of its daemons, up and connected."""
    cluster.start_all()
    return cluster


@pytest.fixture
def user_env(tmp_path):
    """The environment of a user who tries a document or an example: a daemon of its own, stopped at the end."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    env = {k: v for k, v in os.environ.items() if k not in ("LEAT_SOCKET", "RANK", "WORLD_SIZE")}
    env.update(XDG_RUNTIME_DIR=str(runtime), XDG_CACHE_HOME=str(tmp_path / "cache"), LEAT_JOB="documents",
               PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    yield env
    build = pathlib.Path(os.environ.get("LEAT_BUILD", pathlib.Path(__file__).resolve().parent.parent / "build"))
    subprocess.run([build / "src/apps/leat", "stop", "--force"], env=env, capture_output=True, timeout=60)
