# SPDX-License-Identifier: Apache-2.0
"""What tests of the index share: leat-index-dump, which prints one, and sources for it."""
import io
import json
import os
import pathlib
import subprocess
import tarfile
import zlib

import pytest

np = pytest.importorskip("numpy")

BUILD = pathlib.Path(os.environ.get("LEAT_BUILD", pathlib.Path(__file__).resolve().parent.parent / "build"))
DUMP = BUILD / "tests" / "tools" / "leat-index-dump"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(spec, *options, **kwargs):
    done = subprocess.run([DUMP, *options, str(spec)], capture_output=True, timeout=60, **kwargs)
    assert done.returncode in (0, 1), done.stderr.decode(errors="replace")
    return json.loads(done.stdout) | {"stderr": done.stderr.decode(errors="replace")}


def dump(spec, *options, warns=None, **kwargs):
    """`warns`: what the warnings say, in their order."""
    got = run(spec, *options, **kwargs)
    said = [line for line in got.pop("stderr").splitlines() if "are left out" in line or "not followed" in line]
    assert warns is None or len(said) == len(warns) and all(w in line for w, line in zip(warns, said)), said
    assert "error" not in got, got
    assert all(sample["found"] for sample in got["samples"])
    return got


def refused(spec, error, *words, **kwargs):
    got = run(spec, **kwargs)
    assert got.get("error") == error, got
    for word in words:
        assert word in got["message"], got["message"]
    return got["message"]


def check_array(got, field, array):
    """Every sample's bytes are those of array[i]."""
    described = next(f for f in got["fields"] if f["name"] == field)
    assert described["kind"] == "uniform"
    assert described["shape"] == list(array.shape[1:])
    assert np.dtype(described["dtype"]) == array.dtype
    assert got["nsamples"] == len(array)
    for i, sample in enumerate(got["samples"]):
        part = sample["parts"][field]
        want = np.ascontiguousarray(array[i : i + 1]).tobytes()  # a slice: a scalar would lose its padding
        assert part["bytes"] == len(want)
        assert part["crc32"] == zlib.crc32(want), f"{field}[{i}]"
        assert sample["key"] == str(i)


def write_tree(root, files):
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def let_in(path):
    for folder in [path, *path.parents]:
        if folder != pathlib.Path("/tmp") and folder != pathlib.Path("/"):
            os.chmod(folder, os.stat(folder).st_mode | 0o055)


def user(uid):
    if not os.access(DUMP, os.X_OK) or subprocess.run([DUMP], user=uid, capture_output=True).returncode != 2:
        pytest.skip("the build is not readable by other users")
    return {"user": uid, "group": uid, "extra_groups": []}


def write_tar(path, members, **options):
    with tarfile.open(path, "w", **options) as t:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
