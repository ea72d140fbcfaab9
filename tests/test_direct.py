# SPDX-License-Identifier: Apache-2.0
"""Batches straight into a GPU's memory: with a libcuda of ours, and with UCX's TCP for RDMA, which writes there by the CPU. By verbs: tests/rdma."""

import ctypes.util

import lib_data
import lib_direct
import lib_host
import lib_net
import pytest

if not ctypes.util.find_library("ucp"):
    pytest.skip("UCX (libucx0) is not installed", allow_module_level=True)

#: In daemons and clients alike.
BY_TCP = {"LEAT_RDMA_TLS": "tcp", "LEAT_RAILS": "lo"}


@pytest.fixture(autouse=True)
def fabric(monkeypatch):
    for name, value in {**BY_TCP, **lib_direct.ON_A_GPU}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def daemon(host, leat):
    """With the set of 8 MiB loaded."""
    made = host.daemon({"pool": {"size": "64MiB", "region_size": "4MiB"}}, options=["--idle-timeout", "10m"])
    leat.preload(lib_data.make_npy(host.data / "a.npy", 1024), name="set", socket=made.socket, timeout=lib_host.PATIENCE).close()
    return made


def test_an_epoch(host, daemon):
    assert host.python(lib_direct.AN_EPOCH, daemon.socket, "rdma").finish() == "all"


def test_a_damaged_sample_is_found_on_the_device(host, daemon):
    client = host.python(lib_direct.DAMAGED, daemon.socket, "rdma")
    assert client.hear() == "whole"
    lib_direct.damage(daemon, 700)
    client.tell()
    said = client.finish()
    assert said.startswith("corrupt") and "sample 700" in said and "checksum" in said, said


def test_what_the_device_sees_late_is_looked_at_again(host, daemon):
    assert host.python(lib_direct.SEEN_LATE, daemon.socket, "rdma").finish() == "all 0"


def test_a_driver_that_lets_no_nic_in(host, daemon):
    said = host.python(lib_direct.NOT_TO_BE_HAD, daemon.socket, "rdma", env={"FAKECUDA_NIC": "no"}).finish().splitlines()
    assert "does not support GPUDirect RDMA" in said[0] and said[1:] == ["bounced"], said


@pytest.fixture
def nodes(host):
    made = lib_net.Cluster(host, lib_net.OneMachine(), region="1MiB")
    made.start_all()
    return made


def test_a_batch_of_both_kinds(leat, host, nodes):
    leat.preload(lib_data.make_npy(host.data / "a.npy", 3072), name="set", socket=nodes.daemons[0].socket, timeout=lib_host.PATIENCE).close()
    assert host.python(lib_direct.MIXED, nodes.daemons[0].socket, "shm+rdma").finish() == "all"


def test_lengths_and_labels(leat, host, nodes):
    lib_data.make_files(host.data / "files", 1200, 16384)
    leat.preload(host.data / "files", name="set", socket=nodes.daemons[0].socket, timeout=lib_host.PATIENCE).close()
    assert host.python(lib_direct.LABELLED, nodes.daemons[0].socket, "", host.data / "files").finish() == "all"
