# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that run real processes."""

import pytest

import lib_host
import lib_net


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
