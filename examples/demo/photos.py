# SPDX-License-Identifier: Apache-2.0
"""The JPEGs of Debian's opencv-doc, as a folder of files and as tar shards."""

import io
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

SOURCE = pathlib.Path("/usr/share/doc/opencv-doc")
SHARDS = 4


def jpegs(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg") and p.is_file())


def prepare(folder):
    """Copies the pictures to folder/photos/ and packs them into folder/shards/*.tar. Returns was it there before."""
    done = folder / "photos.done"
    if done.is_file():
        return True
    for name in ("photos", "shards"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
    with tempfile.TemporaryDirectory() as tmp:
        source = SOURCE
        found = jpegs(source)
        if len(found) < 100:  # not installed, or /usr/share/doc was left out
            source = download(pathlib.Path(tmp))
            found = jpegs(source)
        for path in found:
            target = folder / "photos" / path.parent.name / path.name
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
    pack(folder)
    done.touch()
    return False


def download(tmp):
    """The package without installing it: of its 13,000 files some 600 are wanted. Where apt has its lists this needs no root."""
    done = subprocess.run(["apt-get", "download", "-q", "opencv-doc"], cwd=tmp, capture_output=True, text=True, timeout=300)
    package = next(tmp.glob("opencv-doc_*.deb"), None)
    if done.returncode or not package:
        raise SystemExit(f"demo: the pictures of Debian's opencv-doc could not be had; install it, or mend this:\n{done.stderr}")
    reader = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", tmp, "--wildcards", "--ignore-case", "*.jpg", "*.jpeg"], stdin=reader.stdout, check=True)
    reader.stdout.close()
    if reader.wait():
        raise SystemExit("demo: the package opencv-doc could not be unpacked")
    return tmp / SOURCE.relative_to("/")


def pack(folder):
    """As WebDataset lays them out: members 000017.jpg and 000017.name follow each other and make one sample."""
    pictures = jpegs(folder / "photos")
    share = -(-len(pictures) // SHARDS)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"shards/photos-{shard:03d}.tar", "w") as archive:
            for i, path in list(enumerate(pictures))[shard * share:(shard + 1) * share]:
                add(archive, f"{i:06d}.jpg", path.read_bytes())
                add(archive, f"{i:06d}.name", os.fsencode(path.relative_to(folder / "photos")))


def add(archive, name, data):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def compare(leat, folder, files, shards):
    """Every picture, read in shuffled batches out of both sets, against the file it came from. Returns how many bytes that was."""
    expected = {str(p.relative_to(folder)): p.read_bytes() for p in jpegs(folder)}
    for ws, field in ((files, "data"), (shards, "jpg")):
        seen = set()
        for batch in leat.batches(ws, 32, seed=3, shuffle="full", drop_last=False):
            with batch:
                names = batch.sample_keys if field == "data" else [os.fsdecode(name) for name in batch["name"].tolist()]
                for name, picture in zip(names, batch[field].tolist()):
                    if expected[name] != picture:
                        raise SystemExit(f"demo: {name} differs from its file when read from {ws.uri}")
                    seen.add(name)
        if seen != expected.keys():
            raise SystemExit(f"demo: {len(seen)} of {len(expected)} pictures came from {ws.uri}")
    return len(expected), sum(len(data) for data in expected.values())
