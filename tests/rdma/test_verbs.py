# SPDX-License-Identifier: Apache-2.0
"""The test bed by itself: if these fail, no failure of Leat's means anything."""

import pathlib
import subprocess
import time

import pytest

RAILS = [0, 1]


@pytest.mark.parametrize("rail", RAILS)
def test_rail_is_there(rail):
    port = pathlib.Path(f"/sys/class/infiniband/rxe{rail}/ports/1")
    assert port.joinpath("state").read_text().strip() == "4: ACTIVE"
    assert port.joinpath("gids/1").read_text().strip().endswith(f":ffff:0a46:0{rail}01")


@pytest.mark.parametrize("rail", RAILS)
def test_two_processes_talk_over_verbs(rail):
    command = ["ibv_rc_pingpong", "-d", f"rxe{rail}", "-g", "1", "-n", "50", "-c", "-p", str(18500 + rail)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        for _ in range(100):  # until it listens
            client = subprocess.run([*command, f"10.70.{rail}.1"], capture_output=True, text=True, timeout=30)
            if client.returncode == 0 or server.poll() is not None:
                break
            time.sleep(0.1)
        assert client.returncode == 0, client.stderr
        assert server.wait(timeout=30) == 0
        assert "50 iters" in client.stdout and "invalid data" not in client.stdout + server.stdout.read()
