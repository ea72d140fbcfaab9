# SPDX-License-Identifier: Apache-2.0
"""Memory that is made ready ahead: shown, used first, released under pressure, and gone with its daemon."""

import subprocess

import lib_data
import lib_host
import pytest

MIB = lib_data.MIB


def ready(daemon):
    return daemon.status()["pool"]["ready"]


def wait_until_ready(daemon, least):
    return lib_host.wait_for(lambda: ready(daemon)["bytes"] >= least and ready(daemon), message=lambda: f"{ready(daemon)}\n{daemon.text()}")


@pytest.mark.parametrize("huge", ["yes", "no"])
def test_a_preload_takes_what_is_ready(host, leat, huge):
    path = lib_data.make_npy(host.data / "a.npy", 3000)  # 23 MiB: five whole regions, and a piece
    daemon = host.daemon({"pool": {"size": "128MiB", "region_size": "4MiB", "prefault": "64MiB", "huge_pages": huge}})
    made = wait_until_ready(daemon, 64 * MIB)
    assert made["target_bytes"] == made["bytes"] == 64 * MIB
    lib_host.wait_for(lambda: ready(daemon)["made_bytes"] == 64 * MIB)  # counted a moment later
    pool = daemon.status()["pool"]
    assert pool["used_bytes"] == 64 * MIB and pool["regions"] == 0
    with leat.preload(path, name="a", socket=daemon.socket, timeout=lib_host.PATIENCE) as ws:
        assert ready(daemon)["taken_bytes"] >= 23 * MIB
        lib_data.check_rows([ws[i] for i in (0, 1, 1500, 2999)], [0, 1, 1500, 2999])
        wait_until_ready(daemon, 64 * MIB)  # the stock is filled up again
    metrics = daemon.metrics()
    assert metrics["leat_pool_ready_bytes"] == 64 * MIB
    assert metrics["leat_pool_ready_taken_bytes_total"] >= 23 * MIB
    # What the first set held never comes back: the next one's zeros are new ones.
    leat.drop("a", socket=daemon.socket)
    lib_host.wait_for(lambda: daemon.status()["pool"]["used_bytes"] == 64 * MIB)
    other = leat.create("pushed", {"x": ("u1", (MIB,))}, samples=20, socket=daemon.socket)
    assert ready(daemon)["taken_bytes"] >= 43 * MIB
    other.close()


def test_it_is_not_in_the_way_of_a_set(host, leat):
    """All of the pool is ready: a set as large as the pool is admitted whole."""
    path = lib_data.make_npy(host.data / "a.npy", 3700)  # 28.9 MiB: 30 in huge pages, and its tables
    daemon = host.daemon({"pool": {"size": "32MiB", "region_size": "4MiB", "prefault": "32MiB"}})
    wait_until_ready(daemon, 32 * MIB)
    with leat.preload(path, socket=daemon.socket, timeout=lib_host.PATIENCE) as ws:
        assert not ws.stat().streamed
        lib_data.check_rows([ws[3699]], [3699])
        assert daemon.status()["pool"]["peak_bytes"] <= 32 * MIB


def test_a_daemon_that_is_killed_leaves_nothing(host, leat):
    daemon = host.daemon({"pool": {"size": "64MiB", "region_size": "4MiB", "prefault": "64MiB"}})
    lib_host.wait_for(lambda: ready(daemon)["bytes"] > 0)
    daemon.kill()  # and the fixture looks for what is left
    again = host.daemon({"pool": {"size": "64MiB", "region_size": "4MiB", "prefault": "64MiB"}}, name="again")
    wait_until_ready(again, 64 * MIB)


def test_more_than_the_pool_is_refused(host):
    done = subprocess.run([lib_host.LEATD, "--private", "--socket", host.folder / "s", "--pool", "64MiB", "--prefault", "65MiB", "--check-config"],
                          capture_output=True, text=True, timeout=lib_host.PATIENCE)
    assert done.returncode == 1
    assert "prefault = 65.0 MiB is more than the pool's size, 64.0 MiB" in done.stderr


def test_old_options_work_with_a_warning(host):
    done = subprocess.run([lib_host.LEATD, "--private", "--socket", host.folder / "s", "--pool", "64MiB", "--ready", "8MiB", "--linger", "3s",
                           "--ready", "16MiB", "--check-config"], capture_output=True, text=True, timeout=lib_host.PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("[pool] ready is now called prefault") == 1
    assert done.stderr.count("[daemon] linger is now called idle_timeout") == 1
