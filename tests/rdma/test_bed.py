# SPDX-License-Identifier: Apache-2.0
"""The test bed and UCX by themselves: if these fail, no failure of Leat's below means anything."""

import json
import os
import pathlib
import subprocess
import time

import lib_rails
import pytest

MIB = 1 << 20
PROBE = pathlib.Path(os.environ.get("LEAT_BUILD", "build"), "tests/rdma/rdma_probe")
#: What src/net/ucx/rail.c sets, under the names of the environment.
SETTINGS = {
    "UCX_TLS": "rc_verbs", "UCX_SOCKADDR_TLS_PRIORITY": "rdmacm", "UCX_CM_USE_ALL_DEVICES": "n", "UCX_RCACHE_ENABLE": "n",
    "UCX_IB_REG_METHODS": "direct", "UCX_KEEPALIVE_INTERVAL": "2s", "UCX_RC_VERBS_TIMEOUT": "200ms", "UCX_RC_VERBS_RETRY_COUNT": "5",
    "UCX_HANDLE_ERRORS": "none", "UCX_WARN_UNUSED_ENV_VARS": "n",
}
#: Milliseconds until a dead owner or rail has ended the last operation: some tens on idle processors.
NOTICED = 10000


def probe(operation, rail, event="", mib=4):
    if not PROBE.exists():
        pytest.skip("built without UCX's headers (libucx-dev)")
    done = subprocess.run([PROBE, operation, lib_rails.address(rail), event, str(mib)], capture_output=True, text=True, timeout=90,
                          env={**os.environ, **SETTINGS, "UCX_NET_DEVICES": f"{lib_rails.device(rail)}:1"})
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))  # UCX talks too


@pytest.mark.parametrize("rail", lib_rails.RAILS)
def test_rail_is_there(rail):
    port = pathlib.Path(f"/sys/class/infiniband/{lib_rails.device(rail)}/ports/1")
    assert port.joinpath("state").read_text().strip() == "4: ACTIVE"
    assert port.joinpath("gids/1").read_text().strip().endswith(f":ffff:0a46:0{rail}01")


@pytest.mark.parametrize("rail", lib_rails.RAILS)
def test_two_processes_talk_over_verbs(rail):
    command = ["ibv_rc_pingpong", "-d", lib_rails.device(rail), "-g", "1", "-n", "50", "-c", "-p", str(18500 + rail)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        for _ in range(100):  # until it listens
            client = subprocess.run([*command, lib_rails.address(rail)], capture_output=True, text=True, timeout=30)
            if client.returncode == 0 or server.poll() is not None:
                break
            time.sleep(0.1)
        assert client.returncode == 0, client.stderr
        assert server.wait(timeout=30) == 0
        assert "50 iters" in client.stdout and "invalid data" not in client.stdout + server.stdout.read()


@pytest.mark.parametrize("operation", ["get", "put"])
def test_one_sided_goes_on_while_the_owner_is_stopped(operation):
    before = lib_rails.counters(0)
    seen = probe(operation, 0, "stop")
    assert seen["outcome"] == "done" and seen["bytes"] == 4 * MIB
    after = lib_rails.counters(0)
    assert after["sent_pkts"] - before["sent_pkts"] > 4 * MIB // 4096, "the bytes did not go over this rail"
    assert after["rdma_sends"] - before["rdma_sends"] < 64, "the owner answered messages"


@pytest.mark.parametrize("operation", ["get", "put"])
def test_a_killed_owner_is_an_error_soon(operation):
    seen = probe(operation, 0, "kill", 16)
    assert seen["outcome"] == "error"
    assert 0 <= seen["ms_to_quiet"] < NOTICED and 0 <= seen["ms_to_close"] < NOTICED


@pytest.mark.parametrize("operation", ["get", "put"])
def test_a_lost_rail_is_an_error_soon(operation):
    try:
        seen = probe(operation, 1, "ip link set rail1 down", 16)
    finally:
        lib_rails.restore(1)
    assert seen["outcome"] == "error"
    assert 0 <= seen["ms_to_quiet"] < NOTICED and 0 <= seen["ms_to_close"] < NOTICED
    assert probe(operation, 1)["outcome"] == "done"
