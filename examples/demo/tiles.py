# SPDX-License-Identifier: Apache-2.0
"""A question that a small model learns in seconds, made of real pictures: which of eighteen photographs is a tile from?

The photographs are samples of Debian's opencv-doc, cut into tiles that do not overlap and written as JPEGs, into tar shards as WebDataset
lays them out. One tile in five is held out. It is recognising a scene by its parts, no benchmark of anything: what counts here is
that JPEGs are decoded, cropped, learnt from, and that held-out pixels were never seen.
"""

import io
import shutil
import tarfile

import numpy as np
from photos import add, jpegs
from PIL import Image

SCENES = ("aloeL", "apple", "baboon", "board", "building", "butterfly", "fruits", "home", "leuvenA", "orange", "scenetext01", "scenetext02",
          "scenetext03", "scenetext04", "scenetext05", "squirrel_cls", "starry_night", "stuff")
TILE = 64  # a multiple of 16: tiles begin where blocks of the photograph's JPEG do
MOST = 160  # of a photograph
SHARDS = 4


def cut(photo):
    """The tiles of a photograph, as JPEGs, without those in which nothing is to be seen (a bare backdrop)."""
    with Image.open(photo) as picture:
        picture = picture.convert("RGB")
        places = [(x, y) for y in range(0, picture.height - TILE + 1, TILE) for x in range(0, picture.width - TILE + 1, TILE)]
        for x, y in places:
            tile = picture.crop((x, y, x + TILE, y + TILE))
            if np.asarray(tile, np.float32).std() < 12:
                continue
            out = io.BytesIO()
            tile.save(out, "JPEG", quality=92)
            yield out.getvalue()


def prepare(folder):
    """Writes folder/tiles/{train,test}/*.tar out of folder/photos. Returns was it there before."""
    done = folder / "tiles.done"
    if done.is_file():
        return True
    shutil.rmtree(folder / "tiles", ignore_errors=True)
    found = {path.stem: path for path in jpegs(folder / "photos") if path.parent.name != "html"}  # html/ has them scaled, or twice
    missing = [name for name in SCENES if name not in found]
    if missing:
        raise SystemExit(f"demo: the package opencv-doc has no {', '.join(missing)}: is it another version?")
    parts = {"train": [], "test": []}
    rng = np.random.default_rng(1)
    for label, name in enumerate(SCENES):
        tiles = list(cut(found[name]))
        order = rng.permutation(len(tiles))[:MOST]
        for i, n in enumerate(order):
            parts["test" if i % 5 == 0 else "train"].append((f"{name}-{n:03d}", label, tiles[n]))
    for part, samples in parts.items():
        (folder / "tiles" / part).mkdir(parents=True)
        for shard in range(SHARDS):
            with tarfile.open(folder / f"tiles/{part}/tiles-{shard:03d}.tar", "w") as archive:
                for name, label, data in samples[shard::SHARDS]:
                    add(archive, f"{name}.cls", b"%d" % label)
                    add(archive, f"{name}.jpg", data)
    done.touch()
    return False


if __name__ == "__main__":  # tiles.py FOLDER: FOLDER/{train,test}/*.tar for the examples
    import pathlib
    import sys
    import tempfile

    import photos

    with tempfile.TemporaryDirectory() as tmp:
        photos.prepare(pathlib.Path(tmp))
        prepare(pathlib.Path(tmp))
        shutil.copytree(pathlib.Path(tmp) / "tiles", sys.argv[1], dirs_exist_ok=True)
