# SPDX-License-Identifier: Apache-2.0
"""What a key of the daemon's lets its holder do on real verbs: read, and nothing else, though UCX registers with all rights and emulates."""

import os
import pathlib
import subprocess

import lib_data
import lib_host
import lib_rails
import pytest

RIGHTS = pathlib.Path(os.environ["LEAT_BUILD"]) / "tests/rdma/rdma_rights"


def outcome(*words):
    done = subprocess.run([RIGHTS, f"{lib_rails.device(0)}:1", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("operation", ["get", "put", "message"])
def test_ucx_by_itself_gives_every_right(operation):
    """Where this fails UCX has become better, and decisions/0060 needs a review."""
    assert outcome(operation, "plain") == "landed"


def test_a_key_reads():
    assert outcome("get") == "landed"


def test_a_key_does_not_write():
    assert outcome("put").startswith("refused: ")


def test_a_message_does_not_write():
    assert outcome("message") == "no answer"


def test_a_daemon_says_so(host, leat):
    daemon = host.daemon({"pool": {"size": "64MiB", "region_size": "4MiB"}})
    path = lib_data.make_npy(host.data / "a.npy", 64)
    with leat.preload(path, name="set", socket=daemon.socket, timeout=lib_host.PATIENCE) as ws:
        with leat.batches(ws, 32, transport="rdma", timeout=60) as batches:
            next(batches).release()
        rdma = daemon.status()["rdma"]
    assert rdma["keys_may_write"] is False and rdma["registered_regions"] > 0
