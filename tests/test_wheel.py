# SPDX-License-Identifier: Apache-2.0
"""The wheel of `make wheel`: built out of the source distribution, whole with its licences, and working in a virtual environment of another
Python with NumPy 2, away from this tree."""

import email.parser
import glob
import os
import pathlib
import re
import shutil
import subprocess
import zipfile

import pytest

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).resolve().parent.parent

SMOKE = """
import io, os, struct, sys, tarfile, zlib
import numpy as np
import leat, leat.prep
assert int(np.__version__.split(".")[0]) >= 2, np.__version__
assert not leat.__file__.startswith(sys.argv[1]), leat.__file__
np.save("x.npy", np.arange(4000, dtype=np.float32).reshape(1000, 4))
loader = leat.Loader("x.npy", 10, seed=3)
seen = sorted(float(row) for batch in loader for row in batch["data"][:, 0])
assert seen == [4.0 * i for i in range(1000)], len(seen)
with tarfile.open("s.tar", "w") as tar:
    for i in range(20):
        for suffix, data in (("txt", b"%d" % i), ("cls", b"%d" % (i % 3))):
            info = tarfile.TarInfo(f"{i:04}.{suffix}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
ws = leat.open("s.tar", wait=True)
assert [bytes(ws[i]["txt"]) for i in range(20)] == [b"%d" % i for i in range(20)]
open("bad.h5", "wb").write(b"\\x89HDF\\r\\n\\x1a\\n" + bytes(500))   # the program that reads tables of HDF5 runs, and refuses this
try:
    leat.open("bad.h5", wait=True)
    raise SystemExit("bad.h5 was opened")
except leat.Corrupt as e:
    assert "bad.h5" in str(e), e
leat.stop()
print("smoke passed")
"""


def interpreters():
    """Debian's Python last: any other one, newest first, is a better test."""
    found = {}
    for path in (*glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python3")), *glob.glob("/opt/*/bin/python3"),
                 *(shutil.which(f"python3.{minor}") for minor in range(11, 20)), "/usr/bin/python3"):
        done = path and subprocess.run([path, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"], capture_output=True, text=True)
        if done and done.returncode == 0 and (version := tuple(map(int, done.stdout.split()))) >= (3, 11):
            found.setdefault(version, path)
    return [path for _, path in sorted(found.items(), reverse=True)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if subprocess.run([ROOT / "tools/deps", "build", "wheel"], capture_output=True).returncode:
        pytest.skip("packages that `tools/deps wheel` names are missing")
    if not (ROOT / ".git").exists():
        pytest.skip("a source distribution is made out of a git checkout")
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run([ROOT / "tools/wheel", "--sdist", "--out", out], capture_output=True, text=True, timeout=900)
    if re.search("No matching distribution|ConnectionError|NewConnectionError", done.stdout + done.stderr):
        pytest.skip("PyPI is not reachable")
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def test_name_and_licences(wheel):
    assert wheel.name.startswith("leat_data-") and "abi3-manylinux" in wheel.name
    assert list(wheel.parent.glob("leat_data-*.tar.gz"))
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
        info = next(n for n in names if n.endswith(".dist-info/METADATA")).removesuffix("METADATA")
        metadata = email.parser.Parser().parsestr(z.read(info + "METADATA").decode())
        assert metadata["Name"] == "leat-data" and metadata["License-Expression"] == "Apache-2.0"
        named = metadata.get_all("License-File")
        assert sorted(n for n in names if n.startswith(info + "licenses/") and not n.endswith("/")) == sorted(info + "licenses/" + n for n in named)
        bundled = [n for n in names if ".libs/" in n and ".so" in n]
        assert len(bundled) > 5
        for part in ("libhdf5", "libssl3", "liburing2", "node-llhttp"):
            assert [n for n in named if n.startswith(f"bundled/{part}")], part
        assert "bundled/common-licenses/Apache-2.0" in named  # what copyright files of Debian refer to


def test_it_works_in_an_environment_of_its_own(wheel, tmp_path, user_env):
    python = interpreters()[0]
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    done = subprocess.run([tmp_path / "venv/bin/pip", "-q", "install", "numpy>=2", wheel], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    env = {k: v for k, v in user_env.items() if k not in ("PYTHONPATH", "LEAT_LEATD")}
    script = tmp_path / "smoke.py"
    script.write_text(SMOKE)
    done = subprocess.run([tmp_path / "venv/bin/python", script, ROOT], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("smoke passed\n"), f"{python}: {done.stdout}{done.stderr}"
    done = subprocess.run([tmp_path / "venv/bin/leat", "--version"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("leat 0."), done
