# SPDX-License-Identifier: Apache-2.0
"""Every test has a daemon of its own, in a runtime directory of its own, and must leave nothing of either behind."""

import gc
import os
import pathlib
import shutil
import sys
import tarfile
import tempfile
import uuid

import pytest

from lib_host import alive, wait_for
from lib_python import BUILD, FILES, IMAGES, LABELS, ROOT, daemons

try:
    import leat
except ImportError:
    sys.path.insert(0, str(ROOT / "build" / "python"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], os.environ.get("PYTHONPATH")]))
    leat = pytest.importorskip("leat", reason="the Python extension is not built")

import numpy as np  # noqa: E402

from leat._base import clients as _clients  # noqa: E402


@pytest.fixture(autouse=True)
def runtime(monkeypatch):
    # Short, because a socket's path is: not tmp_path.
    folder = tempfile.mkdtemp(prefix="leat-")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.setenv("LEAT_JOB", f"t{uuid.uuid4().hex[:8]}")
    for name in ("LEAT_SOCKET", "RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    leatd = BUILD / "src" / "apps" / "leatd"
    if leatd.exists():
        monkeypatch.setenv("LEAT_LEATD", str(leatd))
    yield pathlib.Path(folder)
    gc.collect()
    leat.stop(force=True)
    _clients.forget_all()
    ending = daemons(folder)
    wait_for(lambda: not any(map(alive, ending)), message=lambda: f"left running: {daemons(folder)}")
    assert not daemons(folder)
    left = [str(p) for p in pathlib.Path(folder).rglob("*") if p.is_socket()]
    assert not left, left
    shutil.rmtree(folder)


@pytest.fixture
def npy(tmp_path):
    """images.npy: six samples of shape (2, 3)."""
    np.save(tmp_path / "images.npy", IMAGES)
    np.save(tmp_path / "labels.npy", LABELS)
    return tmp_path / "images.npy"


@pytest.fixture
def ws(npy):
    """The set of the docstrings: six images, one field."""
    with leat.open({"image": npy}) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path):
    for key, data in FILES.items():
        path = tmp_path / "photos" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "photos"


@pytest.fixture
def files(folder):
    """Three files in two folders, whose names are the labels."""
    with leat.open(folder) as opened:
        yield opened


@pytest.fixture
def shard(tmp_path):
    """A tar shard; the second sample has no cls."""
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for name, data in {"x.jpg": b"JPEG0", "x.cls": b"3", "y.jpg": b"JPEG11", "z.jpg": b"", "z.cls": b"12"}.items():
            path = tmp_path / "member"
            path.write_bytes(data)
            tar.add(path, name)
    return tmp_path / "train-0.tar"


@pytest.fixture
def big(tmp_path):
    """1,000 samples that hold their own number."""
    path = tmp_path / "numbers.npy"
    np.save(path, np.repeat(np.arange(1000, dtype="<i8"), 16).reshape(1000, 16))
    return path
