# SPDX-License-Identifier: Apache-2.0
"""A rail that goes while batches are read. Readers are processes of their own, and these tests run before test_leat.py: a rail is
made again when no process has its device open, and RDMA_CM's library keeps it open in a process that has used it once."""

import lib_data
import lib_host
import lib_rails
import pytest

SAMPLES, SAMPLE_BYTES = 4096, 8192

READER = lib_data.CLIENT + """
ws = leat.open("leat://set", socket=argv[0])
seen = []
with leat.batches(ws, 8, seed=1, drop_last=False, transport=argv[1], timeout=20) as batches:
    for nth, b in enumerate(batches):
        np.testing.assert_array_equal(b.data, rows(b.ids))
        seen += b.ids.tolist()
        b.release()
        if nth == 32: say("reading")
        if nth == 256: hear()  # until the rail is lost: a busy machine may need longer for that than for all that is left to read
        rails = {rail.name: rail.state for rail in ws.stat().rails}
assert sorted(rails.values()) == ["down", "up"], rails
assert sorted(seen) == list(range(len(ws)))
say("all")
"""


@pytest.fixture
def rail():
    """Number 1, which is made again when all processes are gone: so this comes before every other fixture."""
    yield 1
    lib_rails.restore(1)


@pytest.mark.parametrize("transport", ["rdma-read", "rdma-write"])
def test_all_goes_on_over_the_other_one(rail, host, leat, transport):
    daemon = host.daemon({"pool": {"size": "64MiB", "region_size": "4MiB"}}, options=["--idle-timeout", "10m"])
    path = lib_data.make_npy(host.data / "a.npy", SAMPLES)
    leat.preload(path, name="set", socket=daemon.socket, timeout=lib_host.PATIENCE).close()
    reader = host.python(READER, daemon.socket, transport)
    assert reader.hear(60) == "reading"
    lib_rails.lose(rail)
    lost = lib_rails.sent()
    reader.tell("lost")
    assert reader.finish() == "all"
    packets = lib_rails.since(lost)
    print("packets by rail afterwards", packets)
    assert packets[0] > SAMPLES * SAMPLE_BYTES // lib_rails.PACKET / 4
    assert packets[rail] < packets[0] / 10
