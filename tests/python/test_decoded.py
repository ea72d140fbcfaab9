# SPDX-License-Identifier: Apache-2.0
"""leat.prep.decoded: pictures decoded once, by all ranks together; what may go wrong between them."""

import io
import threading

import pytest

leat = pytest.importorskip("leat", reason="the Python extension is not built")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed (python3-pil)")
import numpy as np  # noqa: E402
from PIL import ImageOps  # noqa: E402

import leat.prep as prep  # noqa: E402
from test_loader_prep import FIELDS, encoded, picture, shard  # noqa: E402


def sample(i):
    """Sizes from below to far above 48, and a few odd ones."""
    if i == 3:
        exif = Image.Exif()
        exif[0x0112] = 6
        return encoded(picture(i, 90, 61), exif=exif)
    return encoded(picture(i, 30 + 13 * (i % 8), 40 + 9 * (i % 5)), "PNG" if i == 5 else "JPEG")


SAMPLES = [sample(i) for i in range(150)]


@pytest.fixture
def source(tmp_path):
    with leat.open(shard(tmp_path / "source.tar", SAMPLES)) as opened:
        yield opened


def shown(data, shorter):
    """What Pillow makes of it."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    short = min(image.size)
    if shorter and short > shorter:
        image = image.resize(tuple(shorter * edge // short for edge in image.size), Image.BILINEAR)
    return np.asarray(image).astype(int)


@pytest.mark.parametrize("shorter", [48, None])
def test_pixels_are_pillows(source, shorter):
    with prep.decoded(source, shorter=shorter) as made:
        assert len(made) == len(source) and list(made.keys()) == list(source.keys())
        for i, data in enumerate(SAMPLES):
            kept = made[i]
            got, want = np.asarray(Image.open(io.BytesIO(kept["jpg"]))), shown(data, shorter)
            assert kept["jpg"][:2] == b"P6" and got.shape == want.shape and kept["cls"] == str(i).encode()
            assert np.abs(got - want).max() <= 1


def test_a_loader_takes_it_as_the_source(source):
    crop = prep.RandomResizedCrop(32, dtype="uint8", layout="hwc", exact=True)
    found = {}
    with prep.decoded(source, shorter=None) as made:
        for name, ws in (("source", source), ("made", made)):
            for options in ({}, {"workers": "process"}):
                with leat.Loader(ws, 30, fields=FIELDS, transform=crop, seed=2, **options) as loader:
                    found[name, *options] = {int(i): (batch["image"][k].copy(), int(batch["label"][k]))
                                             for batch in loader for k, i in enumerate(batch.ids)}
    first = found.pop(("source",))
    for other in found.values():  # pixels whole: the same crops, the same sums
        assert other.keys() == first.keys()
        assert all(np.array_equal(other[i][0], first[i][0]) and other[i][1] == first[i][1] == i for i in first)


def test_ranks_share_the_work(source, monkeypatch):
    pushed, errors, made = [], [], []
    push = leat._decode.pixels._Work.push
    monkeypatch.setattr(leat._decode.pixels._Work, "push", lambda self, ws, ids: (pushed.append((ids.start, ids.stop)), push(self, ws, ids)))

    def rank(r):
        try:
            made.append(prep.decoded(source, shorter=32, rank=r, world_size=3, threads=1, timeout=60))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=rank, args=(r,)) for r in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and sorted(pushed) == [(0, 50), (50, 100), (100, 150)]
    assert len({ws.uri for ws in made}) == 1 and made[0].stat().resident_samples == 150
    assert [s["name"] for s in leat.ls() if s["name"].startswith("sizes-")] == []
    pushed.clear()
    again = prep.decoded(source, shorter=32)  # it is there: nothing to do
    assert again.uri == made[0].uri and not pushed
    for ws in (*made, again):
        ws.close()


def test_one_that_was_left_half_way_is_finished(source, monkeypatch):
    def dies(self, ws, ids):
        push(self, ws, range(0, 64))
        raise KeyboardInterrupt

    push = leat._decode.pixels._Work.push
    with monkeypatch.context() as patched:
        patched.setattr(leat._decode.pixels._Work, "push", dies)
        with pytest.raises(KeyboardInterrupt):
            prep.decoded(source, shorter=32)
    with prep.decoded(source, shorter=32) as made:
        assert made.stat().resident_samples == 150
        assert np.abs(np.asarray(Image.open(io.BytesIO(made[100]["jpg"]))) - shown(SAMPLES[100], 32)).max() <= 1


def test_ranks_that_do_not_come(source):
    with pytest.raises(leat.TimedOut, match="all of them must call"):
        prep.decoded(source, rank=1, world_size=2, timeout=0.3)
    with pytest.raises(leat.TimedOut, match="all of them must call"):
        prep.decoded(source, rank=0, world_size=2, timeout=0.3)


def test_bad_pictures_stay_bad(tmp_path):
    from test_loader_prep import BAD

    names = list(BAD)
    samples = [*SAMPLES[:3], *(BAD[name][0] for name in names), *SAMPLES[6:20]]
    bad = set(range(3, 3 + len(names)))
    with leat.open(shard(tmp_path / "bad.tar", samples)) as source, prep.decoded(source, shorter=32) as made:
        met = {}
        crop = prep.RandomResizedCrop(16)
        loader = leat.Loader(made, len(samples), fields=FIELDS, transform=crop, shuffle=False, max_errors=100,
                             on_error=lambda e: met.setdefault(e.index, e.__cause__ or e))
        batch = next(iter(loader))
        assert not bad & set(batch.ids.tolist()) and bad <= set(met)
        del batch


def test_folders_and_what_is_refused(tmp_path, source):
    for i in range(8):
        (tmp_path / "photos" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / "ab"[i % 2] / f"{i}.jpg").write_bytes(SAMPLES[i])
    with leat.open(tmp_path / "photos") as folder, prep.decoded(folder, shorter=32, name="small") as made:
        assert made.uri == "leat://small" and list(made.keys()) == list(folder.keys())
        fields = {"image": ("data", "jpg"), "label": "label"}
        for batch in leat.Loader(made, 4, fields=fields, transform=prep.RandomResizedCrop(16)):
            assert [int(made.key(int(i))[2]) % 2 for i in batch.ids] == batch["label"].tolist()
        with pytest.raises(leat.Invalid, match="another set"):
            prep.decoded(source, shorter=32, name="small")
    with pytest.raises(ValueError, match="which of the raw fields"):
        prep.decoded(source, field="nothing")
    with pytest.raises(ValueError, match="shorter"):
        prep.decoded(source, shorter=0)
