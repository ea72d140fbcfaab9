# SPDX-License-Identifier: Apache-2.0
"""Samples that are placed at borders of pages come whole out of files that the page cache does not have, by every way that reads them."""

import os

import lib_data
import numpy as np
import pytest

WORDS = 512  # 4 KiB a row
SAMPLES = 4096
DAEMON = {"pool": {"size": "64MiB", "region_size": "2MiB"}}


def cool(*paths):
    """Out of the page cache, where its file system permits that."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def check(ws, numbers, field=None, words=WORDS):
    got = [ws[int(i)] for i in numbers]
    lib_data.check_rows(np.stack([np.asarray(g[field] if field else g).reshape(-1) for g in got]), numbers, words)


@pytest.fixture
def array(host):
    path = lib_data.make_npy(host.data / "a.npy", SAMPLES, WORDS)
    cool(path)
    return path


def test_cold(host, leat, array):
    daemon = host.daemon(DAEMON)
    with leat.preload(array, name="a", socket=daemon.socket) as ws:
        check(ws, range(SAMPLES))
        cool(array)
        ws.verify(source=True)


@pytest.mark.parametrize("words", [64, 256, 1024, 8192])
def test_other_sizes(host, leat, words):
    path = lib_data.make_npy(host.data / "b.npy", 2 * lib_data.MIB // words, words)
    cool(path)
    with leat.preload(path, socket=host.daemon(DAEMON).socket) as ws:
        check(ws, range(len(ws)), words=words)


def test_several_fields(host, leat, array):
    """What cannot be placed lies between what can."""
    odd = lib_data.make_npy(host.data / "odd.npy", SAMPLES, 97)
    other = lib_data.make_npy(host.data / "other.npy", SAMPLES, WORDS)
    cool(odd, other)
    with leat.preload({"a": array, "odd": odd, "other": other}, socket=host.daemon(DAEMON).socket) as ws:
        check(ws, range(SAMPLES), "a")
        check(ws, range(SAMPLES), "odd", 97)
        check(ws, range(SAMPLES), "other")


def test_rows_together(host, leat):
    """Tokens, of which 2,048 make a sample."""
    path = host.data / "tokens.npy"
    tokens = np.random.default_rng(1).integers(0, 65536, 2048 * 1000 + 17, np.uint16)
    np.save(path, tokens)
    cool(path)
    with leat.open(f"{path}#rows=2048", socket=host.daemon(DAEMON).socket, wait=True) as ws:
        assert len(ws) == 1000
        for i in range(len(ws)):
            np.testing.assert_array_equal(ws[i], tokens[i * 2048 : (i + 1) * 2048])


def test_hdf5(host, leat):
    h5py = pytest.importorskip("h5py")
    path = host.data / "x.h5"
    with h5py.File(path, "w") as f:
        f["first"] = lib_data.rows(range(SAMPLES), WORDS)
        f["second"] = lib_data.rows(range(SAMPLES), 97)
        f["third"] = lib_data.rows(range(SAMPLES), 2 * WORDS)
    cool(path)
    with leat.preload(path, socket=host.daemon(DAEMON).socket) as ws:
        check(ws, range(SAMPLES), "first")
        check(ws, range(SAMPLES), "second", 97)
        check(ws, range(SAMPLES), "third", 2 * WORDS)


def test_streamed(host, leat, array):
    """A part stays, the rest comes through the window."""
    daemon = host.daemon({"pool": {"size": "12MiB", "region_size": "2MiB"}})
    with leat.open(array, socket=daemon.socket) as ws:
        for _ in range(2):
            for at in range(0, SAMPLES, 64):
                ids = [(7 * i + 5) % SAMPLES for i in range(at, at + 64)]
                got = ws.__getitems__(ids)
                lib_data.check_rows(np.stack(got), ids, WORDS)
            cool(array)


def test_appended(host, leat, array):
    more = lib_data.make_npy(host.data / "more.npy", 1000, WORDS)
    cool(more)
    daemon = host.daemon(DAEMON)
    leat.preload(array, name="grows", socket=daemon.socket).close()
    leat.append("grows", more, socket=daemon.socket)
    with leat.open("leat://grows", socket=daemon.socket) as ws:
        assert len(ws) == SAMPLES + 1000
        check(ws, range(SAMPLES))
        got = np.stack([ws[SAMPLES + i] for i in range(1000)])
        lib_data.check_rows(got, range(1000), WORDS)
