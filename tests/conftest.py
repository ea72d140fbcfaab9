# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that run real processes."""

import pytest

import lib_host


@pytest.fixture
def host(monkeypatch):
    """A place for daemons and clients; what they leave behind fails the test."""
    made = lib_host.Host(monkeypatch)
    yield made
    made.close()


@pytest.fixture
def leat(host):
    return host.leat
