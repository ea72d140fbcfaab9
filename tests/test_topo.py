# SPDX-License-Identifier: Apache-2.0
"""`leat topo` and the doctor's checks of NICs on recorded hosts: those of tests/topo/, unpacked recordings, and this one."""
import json
import os
import pathlib
import re
import subprocess
import tarfile

import pytest
from test_cli import GOOD, LEAT, leat

TREES = pathlib.Path(__file__).resolve().parent / "topo"
CLEAN = {"CUDA_VISIBLE_DEVICES": "", "LEAT_RAILS": "", "LOCAL_RANK": ""}

pytestmark = pytest.mark.skipif(not LEAT.exists(), reason=f"{LEAT} is not built")


def topo(*args, env=None):
    return json.loads(leat("topo", "--json", *args, env={**CLEAN, **(env or {})}, check=0).stdout)


def unpack(name, root, changes=()):
    """A tree's text as the folder that it means."""
    lines = [line for line in (TREES / f"{name}.tree").read_text().split("\n") if line.startswith("/")]
    for line in [*lines, *changes]:
        path, sign, value = re.match(r"/(.*?) (=|->) (.*)$", line).groups()
        path = root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        if sign == "->":
            path.unlink(missing_ok=True)
            path.symlink_to(value)
        else:
            path.write_text(value.replace("\\n", "\n") + "\n")
    return root


def test_the_trees_are_what_the_script_makes():
    subprocess.run([TREES / "make_trees", "--check"], check=True, timeout=60)


@pytest.mark.parametrize("name", sorted(p.stem for p in TREES.glob("*.tree")))
def test_a_folder_says_what_its_text_says(name, tmp_path):
    assert topo("--root", unpack(name, tmp_path)) == topo("--root", TREES / f"{name}.tree")
    assert leat("topo", "--all", "--root", tmp_path, check=0).stderr == b""


def test_json_of_a_dgx():
    seen = topo("--root", TREES / "dgx_h100.tree", "--gpu", "6")
    assert [g["pci"] for g in seen["gpus"]][:2] == ["0000:1b:00.0", "0000:43:00.0"]
    assert seen["gpus"][0]["uuid"].startswith("GPU-bbbbbbb0-")
    nic = {n["name"]: n for n in seen["nics"]}["mlx5_9:1"]
    assert nic["netdev"] == "ens9np0" and nic["rate_mbps"] == 400000 and nic["numa_node"] == 1 and nic["link_layer"] == "Ethernet"
    assert nic["pcie_mbps"] < nic["rate_mbps"] < nic["pcie_max_mbps"]
    assert nic["gids"] == ["fe80::5e25:73ff:fe00:a", "::ffff:10.0.0.10"]
    assert nic["gpu_distances"] == ["SYS"] * 4 + ["NODE"] * 4
    assert seen["process"] == {"cpus": "0-223", "confined": False, "gpu": 6, "pin": "56-111,168-223"}
    rails = seen["rdma"]["rails"]
    assert rails[0] == {"name": "mlx5_6:1", "use": True, "distance": "PIX", "penalty_ns": 0, "nominal_bytes_per_s": 50_000_000_000,
                        "pin": "56-111,168-223", "addresses": [], "why": "PIX from GPU 6"}
    assert not rails[1]["use"] and rails[-1]["distance"] == "SYS"
    assert seen["rdma"]["left_out"] == [{"name": "mlx5_5:1", "why": "DOWN: Polling"}]


def test_the_text_has_the_matrix_and_the_reasons():
    text = leat("topo", "--root", TREES / "dgx_a100.tree", "--gpu", "3", env=CLEAN, check=0).stdout.decode()
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("mlx5_")}
    assert rows["mlx5_3:1"] == ["SYS", "SYS", "PXB", "PIX", "SYS", "SYS", "SYS", "SYS"]
    assert "use      mlx5_3:1       200 Gb/s   PIX from GPU 3, threads on 16-31,144-159" in text
    assert "not      enp226s0       1000 Mb/s, and there is one of 200000" in text


def test_a_confined_process_and_rails_by_hand():
    seen = topo("--root", TREES / "server.tree", "--cpus", "16-19")
    assert [r["name"] for r in seen["tcp"]["rails"]] == ["ens2f0", "ens1f0", "ens1f1"]
    assert seen["process"]["confined"] and all(r["pin"] == "" for r in seen["tcp"]["rails"])
    assert seen["tcp"]["rails"][1]["penalty_ns"] > 0
    seen = topo("--root", TREES / "server.tree", "--rails", "eno1,ens2f1")
    assert [r["name"] for r in seen["tcp"]["rails"]] == ["eno1", "ens2f1"] and seen["tcp"]["by_hand"]
    assert topo("--root", TREES / "server.tree", env={"LEAT_RAILS": "ens1f1"})["tcp"]["rails"][0]["name"] == "ens1f1"


def test_an_empty_tree(tmp_path):
    seen = topo("--root", tmp_path)
    assert seen["nics"] == seen["gpus"] == seen["tcp"]["rails"] == []
    assert b"(none found)" in leat("topo", "--root", tmp_path, check=0).stdout


def test_roots_that_are_none(tmp_path):
    assert b"No such file" in leat("topo", "--root", tmp_path / "absent", check=3).stderr
    (tmp_path / "text").write_text("hello\n")
    assert b"line 1 of a recorded tree" in leat("topo", "--root", tmp_path / "text", check=1).stderr


def test_this_host(tmp_path):
    seen = topo("--all")
    assert seen["process"]["cpus"]
    here = {p.name for p in pathlib.Path("/sys/class/net").iterdir()} if pathlib.Path("/sys/class/net").is_dir() else set()
    assert {n["netdev"] for n in seen["nics"]} - {None} <= here
    assert "lo" in {n["netdev"] for n in seen["nics"]} or "lo" not in here


def test_a_recording_says_what_the_host_says(tmp_path):
    tar, again = tmp_path / "host.tar", tmp_path / "again"
    leat("topo", "--record", tar, check=0)
    with tarfile.open(tar) as t:
        members = t.getmembers()
        assert all(m.name.startswith(("sys/", "proc/driver/nvidia/")) and ".." not in m.name.split("/") for m in members)
        assert all(m.issym() or (m.isfile() and m.size < 4096) for m in members)
        t.extractall(again)
    assert topo("--all", "--root", again)["numa_nodes"] == topo("--all")["numa_nodes"]
    told = [[{k: v for k, v in n.items() if k != "addresses"} for n in topo("--all", *a)["nics"]] for a in ([], ["--root", again])]
    assert told[0] == told[1]
    assert b"File exists" in leat("topo", "--record", tar, check=1).stderr  # nothing is overwritten
    text = subprocess.run([TREES / "make_trees", "--from", tar], capture_output=True, check=True, timeout=60).stdout
    (tmp_path / "host.tree").write_bytes(text)
    assert topo("--all", "--root", tmp_path / "host.tree") == topo("--all", "--root", again)


def test_a_dgx_is_recorded_whole(tmp_path):
    root, tar, again = unpack("dgx_a100", tmp_path / "root"), tmp_path / "dgx.tar", tmp_path / "again"
    leat("topo", "--root", root, "--record", tar, check=0)
    with tarfile.open(tar) as t:
        t.extractall(again)
    assert topo("--root", again) == topo("--root", root)


def test_a_recording_on_a_full_disk_is_an_error_and_leaves_nothing(tmp_path):
    done = leat("topo", "--record", tmp_path / "x.tar", preexec_fn=limit_file_size)
    assert done.returncode == 1 and b"x.tar: File too large" in done.stderr
    assert not (tmp_path / "x.tar").exists()


def limit_file_size():
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))


# --- doctor ----------------------------------------------------------------------------------------------------


def doctor(root, name, changes=()):
    unpack(name, root, changes)
    for path, text in GOOD.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if not (root / path).exists():
            (root / path).write_text(text + "\n")
    done = leat("doctor", "--json", env={**CLEAN, "LEAT_DOCTOR_ROOT": os.fspath(root)})
    return {c["name"]: c for c in json.loads(done.stdout)["checks"]}


def test_doctor_sees_a_port_that_is_down_and_a_narrow_slot(tmp_path):
    found = doctor(tmp_path, "dgx_h100")
    assert found["ports"]["status"] == found["slots"]["status"] == "warn"
    assert "mlx5_5:1 (DOWN: Polling)" in found["ports"]["found"] and "rdma link show mlx5_5/1" in found["ports"]["mend"]
    assert "0000:aa:00.0: 8 lanes of 32.0 GT/s, it could do 16 of 32.0: mlx5_9:1" == found["slots"]["found"]
    assert found["slots"]["cost"] == "PCIe carries 252 Gb/s where the card's ports carry 400"
    assert found["nodes"]["status"] == "ok"


def test_doctor_sees_a_port_without_a_subnet_manager(tmp_path):
    port = "/sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:00.0/0000:03:00.0/0000:04:10.0/0000:0c:00.0/infiniband/mlx5_0/ports/1"
    found = doctor(tmp_path, "dgx_a100", [f"{port}/state = 2: INIT"])
    assert "mlx5_0:1 (INIT: LinkUp)" in found["ports"]["found"] and "opensm" in found["ports"]["mend"]
    assert found["slots"]["status"] == "ok"


def test_doctor_sees_nics_on_the_other_side(tmp_path):
    found = doctor(tmp_path / "a", "server")
    assert found["ports"]["status"] == "ok" and "without a link: ens2f1" in found["ports"]["found"]
    assert found["nodes"]["status"] == "ok"
    found = doctor(tmp_path / "b", "server", ["/proc/self/status = Cpus_allowed_list:\t16-19"])
    assert found["nodes"]["status"] == "ok" and "far from all of them: ens1f0, ens1f1" in found["nodes"]["found"]
    down = "/sys/devices/pci0000:b2/0000:b2:00.0/0000:b3:00.0/net/ens2f0"
    found = doctor(tmp_path / "c", "server", ["/proc/self/status = Cpus_allowed_list:\t16-19", f"{down}/operstate = down", f"{down}/carrier = 0"])
    assert found["nodes"]["status"] == "warn" and "taskset -c 0-15,32-47" in found["nodes"]["mend"]


def test_doctor_has_nothing_to_say_in_a_virtual_machine(tmp_path):
    found = doctor(tmp_path, "cloud_vm")
    assert [found[n]["status"] for n in ("ports", "slots", "nodes", "gpu rdma")] == ["ok", "skipped", "skipped", "skipped"]


def test_doctor_sees_whether_nics_reach_the_memory_of_gpus(tmp_path):
    lacking = doctor(tmp_path / "a", "dgx_h100")["gpu rdma"]
    assert lacking["status"] == "warn" and lacking["found"].startswith("8 GPUs and 10 RDMA ports, but the kernel's module nvidia_peermem")
    assert 'device_copy="direct" is refused' in lacking["cost"] and "sudo modprobe nvidia_peermem" in lacking["mend"]
    for i, module in enumerate(("nvidia_peermem", "nv_peer_mem")):
        there = doctor(tmp_path / f"b{i}", "dgx_h100", [f"/sys/module/{module}/refcnt = 0"])["gpu rdma"]
        assert there["status"] == "ok" and there["found"].startswith(f"{module} is loaded") and there["mend"] is None
