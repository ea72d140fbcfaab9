# SPDX-License-Identifier: Apache-2.0
"""leat.from_dataset by ranks on two hosts: the set lies on both, the error of a rank reaches the other."""

import lib_host
import lib_net
import pytest

A, B = 0, 1

RANK = """
rank, how = int(argv[1]), argv[2]
class Rows:
    def __len__(self):
        return 300
    def __getitem__(self, i):
        if how == "raise" and i == 200:
            raise KeyError("no such row")
        row = {"x": np.full(12000, i, "u4")}
        return row if argv[3] == "fixed" else {**row, "text": b"t" * (i * 7 % 5000)}
try:
    ws = leat.from_dataset(Rows(), name="rows", version="1", rank=rank, world_size=2, timeout=30, socket=argv[0])
    good = all((ws[i]["x"] == i).all() and (argv[3] == "fixed" or len(ws[i]["text"]) == i * 7 % 5000) for i in range(0, 300, 7)) \\
        if argv[3] != "fixed" else all((ws[i] == i).all() for i in range(0, 300, 7))
    say("good" if good else "wrong")
except leat.Error as error:
    say(str(error))
"""


@pytest.fixture
def network():
    made = lib_net.Network(2)
    yield made
    made.close()


def ranks(host, pair, how, kind):
    clients = [host.python("import numpy as np\n" + RANK, pair.daemons[at].socket, at,
                           how if at == B else "well", kind, prefix=pair.network.inside(at)) for at in (B, A)]
    return [client.finish() for client in clients]


@pytest.mark.parametrize("kind", ["fixed", "ragged"])
def test_ranks_on_two_hosts(host, leat, pair, kind):
    assert ranks(host, pair, "well", kind) == ["good", "good"]
    assert {region["node"] for region in leat.stat("rows@1", socket=pair.daemons[A].socket)["regions"]} == {0, 1}
    for daemon in pair.daemons:
        lib_host.wait_for(lambda d=daemon: [one["name"] for one in d.sets()] == ["rows@1"])
    assert ranks(host, pair, "well", kind) == ["good", "good"]  # found
    leat.drop("rows@1", force=True, socket=pair.daemons[B].socket)


def test_one_fails_and_the_other_host_hears_of_it(host, pair):
    said = ranks(host, pair, "raise", "ragged")
    assert said[0].startswith("sample 200 of the dataset: KeyError") and said[1].startswith("rank 1 failed: BadSample: sample 200"), said
    for daemon in pair.daemons:
        lib_host.wait_for(lambda d=daemon: not d.sets())
