# SPDX-License-Identifier: Apache-2.0
"""Index files that an older Leat wrote are opened: those in tests/golden/index.tar.xz, beside small sets, give the samples, keys, labels
and bytes that index.json recorded, and so does a new scan of the same sets.

Where they are not there, `LEAT_GOLDEN=record` writes both. Record indexes of a new format in addition to these, never in their place: they
lie beside data, and in caches.
"""
import json
import os
import pathlib
import tarfile

import pytest

from lib_index import cache, dump, write_tar, write_tree  # noqa: F401

np = pytest.importorskip("numpy")
h5py = pytest.importorskip("h5py")

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
# An index has absolute paths: this one leads to wherever leat-index-dump runs.
HERE = "/proc/self/cwd/sets/"
SETS = ("tree", "flat", "floats.npy", "names.npy", "labelled.tar", "shards", "plain.h5", "filtered.h5")


def make(top):
    """A set of each kind; whole seconds, as an archive keeps them."""
    write_tree(top / "tree", {f"{c}/{i}.bin": f"{c}{i}".encode() * (i + 1) for c in ("ape", "bär", "cat") for i in range(3)})
    write_tree(top / "flat", {f"{i}.txt": b"x" * i for i in (0, 1, 4097)})
    array = np.arange(60, dtype="<f4").reshape(5, 3, 4)
    np.save(top / "floats.npy", array)
    np.save(top / "names.npy", np.array(["a", "bc", "äöü"]))
    members = [(f"s{i}.{part}", f"{part}{i}".encode() * 5) for i in range(4) for part in ("jpg", "cls")]
    write_tar(top / "labelled.tar", members)
    (top / "shards").mkdir()
    for k in range(2):
        write_tar(top / f"shards/{k}.tar", [(f"{k}/{name}", data) for name, data in members])
    with h5py.File(top / "plain.h5", "w", track_order=True) as f:
        f.create_dataset("x", data=array, track_times=False)
    with h5py.File(top / "filtered.h5", "w") as f:
        f.create_dataset("x", data=array, chunks=(2, 3, 4), compression="gzip", shuffle=True, fletcher32=True, track_times=False)
    for path in sorted(top.rglob("*"), reverse=True):
        os.utime(path, (1_700_000_000, 1_700_000_000))


def record(tmp_path):
    top = tmp_path / "sets"
    top.mkdir()
    make(top)
    seen = {name: dump(HERE + name, "--write", cwd=tmp_path) for name in SETS}
    assert all(not s.pop("scanned") for s in seen.values())
    with tarfile.open(GOLDEN / "index.tar.xz", "w:xz", format=tarfile.PAX_FORMAT) as tar:
        tar.add(top, "sets")
    times = {str(path.relative_to(tmp_path)): path.stat().st_mtime_ns for path in sorted(top.rglob("*"))}
    lines = (f"{json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in [*sorted(seen.items()), ("times", times)])
    (GOLDEN / "index.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


@pytest.fixture
def golden(tmp_path):
    if os.environ.get("LEAT_GOLDEN") == "record" and not (GOLDEN / "index.json").exists():
        (tmp_path / "made").mkdir()
        record(tmp_path / "made")
    with tarfile.open(GOLDEN / "index.tar.xz") as tar:
        tar.extractall(tmp_path)
    recorded = json.loads((GOLDEN / "index.json").read_text())
    for name, ns in recorded.pop("times").items():  # tarfile keeps them as floats
        os.utime(tmp_path / name, ns=(ns, ns))
    return recorded


@pytest.mark.parametrize("name", SETS)
def test_indexes(tmp_path, golden, name):
    got = dump(HERE + name, "--open", cwd=tmp_path)
    assert got.pop("scanned") is False, "the recorded index was not used"
    assert got == golden[name]


@pytest.mark.parametrize("name", SETS)
def test_scans(tmp_path, golden, name):
    got = dump(HERE + name, cwd=tmp_path)
    assert got.pop("scanned") is True
    assert got == golden[name]
