# SPDX-License-Identifier: Apache-2.0
"""The examples do what they say, on pictures made for the test. Those in Python need PyTorch, which Debian has as python3-torch."""

import io
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tarfile

import pytest

pytestmark = pytest.mark.plain

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("LEAT_BUILD", ROOT / "build"))
TINTS = ((220, 40, 40), (40, 200, 40), (40, 60, 220))  # what a class is to be known by


def test_read_batch(tmp_path, user_env):
    folder = tmp_path / "files"
    for name in ("a/1", "a/2", "b/3"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode() * 1000)
    done = subprocess.run([BUILD / "examples/read_batch", folder, "2"], env=user_env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.match(r"3 samples, 0\.0 MB in [\d.]+ s: \d+ samples/s", done.stdout), done.stdout

    missing = subprocess.run([BUILD / "examples/read_batch", tmp_path / "nothing"], env=user_env, capture_output=True, text=True, timeout=60)
    assert missing.returncode == 1 and "nothing" in missing.stderr


@pytest.fixture
def torch_env(user_env):
    for name in ("torch", "PIL", "numpy"):
        pytest.importorskip(name)
    return {**user_env, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}


def pictures(count):
    """(number, class, JPEG): noise of one of three tints."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(3)
    for i in range(count):
        pixels = np.clip(rng.normal(TINTS[i % 3], 30, (40, 52, 3)), 0, 255).astype(np.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "JPEG")
        yield i, i % 3, out.getvalue()


def python(script, *args, env):
    done = subprocess.run([sys.executable, ROOT / "examples" / script, *map(str, args)], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_single_gpu(tmp_path, torch_env):
    for i, label, data in pictures(96):
        path = tmp_path / ("test" if i < 24 else "train") / "abc"[label] / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    done = python("single_gpu.py", tmp_path / "train", "--test", tmp_path / "test", "--epochs", 6, "--batch", 12, "--size", 32, env=torch_env)
    assert "no GPU here" in done.stderr
    assert re.search(r"^epoch 6: loss \d", done.stdout, re.M) and "bound: waited " in done.stdout
    right = int(re.search(r"held out: (\d+) of 24 right", done.stdout)[1])
    assert right >= 20, done.stdout


def test_tokens(tmp_path, torch_env):
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.txt").write_text("the same again and " * 1500)
    (tmp_path / "text/b.py").write_text("pass\n" * 400)
    made = python("tokens.py", tmp_path / "tokens.npy", "--make", tmp_path / "text", env=torch_env)
    assert made.stdout == "30,501 tokens of 2 files\n"
    done = python("tokens.py", tmp_path / "tokens.npy", "--length", 32, "--batch", 8, "--steps", 60, env=torch_env)
    bits = [float(found) for found in re.findall(r"^step \d+ of 119 an epoch: ([\d.]+) bits", done.stdout, re.M)]
    assert len(bits) == 4 and bits[-1] < bits[0] / 2, done.stdout


def torchrun(ranks, *args, env):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Debian 12's torchrun fails on Python 3.11 without --redirects.
    return subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--master_port", str(port),
                             "--redirects", "1", "--tee", "1", "--log_dir", env["XDG_RUNTIME_DIR"] + "/log", ROOT / "examples/ddp.py",
                             *map(str, args)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_ddp_is_stopped_and_goes_on(tmp_path, torch_env):
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        for i, label, data in pictures(90):
            for suffix, content in (("jpg", data), ("cls", b"%d" % label)):
                member = tarfile.TarInfo(f"{i:03d}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    args = (tmp_path / "train.tar", "--checkpoint", tmp_path / "run.pt", "--classes", 3, "--batch", 5)

    first = torchrun(2, *args, "--epochs", 100_000, env=torch_env)
    for line in first.stdout:
        if "epoch 2: loss" in line:
            first.send_signal(signal.SIGTERM)
            break
    out, err = first.communicate(timeout=60)
    epoch, step = map(int, re.search(r"SIGTERM: saved in epoch (\d+) behind step (\d+)", out + err).groups())
    assert epoch >= 3 and 1 <= step <= 9

    if step == 9:  # the epoch's last
        epoch, step = epoch + 1, 0
    second = torchrun(1, *args, "--epochs", epoch, env=torch_env)
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, out + err
    assert f"begins in epoch {epoch} at sample {step * 10} of 90, 1 ranks" in out and f"epoch {epoch}: loss" in out
