# SPDX-License-Identifier: Apache-2.0
"""leat.Loader with a transform of leat.prep: the crop of every sample, in any thread or process; what happens to bad pictures."""

import collections
import gc
import io
import tarfile
import threading
import time
import warnings

import pytest

leat = pytest.importorskip("leat", reason="the Python extension is not built")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed (python3-pil)")
import numpy as np  # noqa: E402

import leat.prep as prep  # noqa: E402
from lib_host import wait_for  # noqa: E402

N = 60


def picture(i, width=0, height=0, mode="RGB"):
    width, height = width or 60 + i % 7 * 11, height or 50 + i % 5 * 9
    y, x = np.mgrid[0:height, 0:width]
    bands = {"RGB": 3, "CMYK": 4}[mode]
    data = np.stack([(x * (b + 1) + y * 2 + i * 7) % 256 for b in range(bands)], -1).astype(np.uint8)
    return Image.fromarray(data, mode)


def encoded(image, format="JPEG", **options):
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def shard(path, samples, **members):
    """A tar of (jpg, cls) samples; `members` are further ones: f(i) -> bytes."""
    with tarfile.open(path, "w") as tar:
        for i, data in enumerate(samples):
            parts = {"jpg": data, "cls": str(i).encode(), **{name: make(i) for name, make in members.items()}}
            for name, content in parts.items():
                if content is not None:
                    info = tarfile.TarInfo(f"{i:05d}.{name}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return path


JPEGS = [encoded(picture(i)) for i in range(N)]
FIELDS = {"image": "jpg", "label": "cls"}
CROP = prep.RandomResizedCrop(32)


@pytest.fixture
def pictures(tmp_path):
    with leat.open(shard(tmp_path / "pictures.tar", JPEGS)) as opened:
        yield opened


def expected(crop, seed, epoch, index, data=None):
    out = np.empty((1, *crop.shape), crop.dtype)
    crop._transform.run([data or JPEGS[index]], [index], seed, epoch, out)
    return out[0]


def by_sample(loader, name="image"):
    """{sample: bytes of its picture}; labels are the samples' numbers."""
    found = {}
    for batch in loader:
        assert (batch["label"][batch.valid] == batch.ids[batch.valid].astype(np.int64)).all()
        for i, index in enumerate(batch.ids.tolist()):
            if batch.valid[i]:
                assert index not in found
                found[index] = batch[name][i].tobytes()
    return found


def brighter(sample, rng):
    return {"image": sample["image"] + np.float32(1), "label": sample["label"], "draw": float(rng.random())}


# --- what comes out ------------------------------------------------------------------------------------------------------------


def test_every_crop_is_its_own(pictures):
    """Any number of threads, processes, ranks and places to continue from: the same bytes as one by one."""
    want = {e: {i: expected(CROP, 9, e, i).tobytes() for i in range(N)} for e in range(2)}
    assert want[0][1] != want[1][1]
    for options in ({}, {"num_workers": 1}, {"num_workers": 5}, {"workers": "process", "num_workers": 2}):
        loader = leat.Loader(pictures, 7, fields=FIELDS, transform=CROP, seed=9, drop_last=False, **options)
        assert by_sample(loader) == want[0] and by_sample(loader) == want[1], options
        loader.close()
    found = {}
    for rank in range(3):
        found.update(by_sample(leat.Loader(pictures, 4, fields=FIELDS, transform=CROP, seed=9, rank=rank, world_size=3)))
    assert found == want[0]
    loader = leat.Loader(pictures, 8, fields=FIELDS, transform=CROP, seed=9)
    first = iter(loader)
    taken = {int(i) for _ in range(3) for i in next(first).ids}
    del first
    again = leat.Loader(pictures, 12, fields=FIELDS, transform=CROP, seed=0, drop_last=False)
    again.load_state_dict(loader.state_dict())
    rest = by_sample(again)
    assert not taken & set(rest) and rest.items() <= want[0].items() and len(taken) + len(rest) == N


def test_batches_are_arrays_in_place(pictures):
    loader = leat.Loader(pictures, 6, fields=FIELDS, transform=CROP)
    batch = next(iter(loader))
    assert batch["image"].shape == (6, 3, 32, 32) and batch["image"].dtype == np.float32
    assert batch["label"].dtype == np.int64 and batch["image"].base is not None
    for dtype, layout, shape in (("uint8", "hwc", (6, 24, 20, 3)), ("bfloat16", "chw", (6, 3, 24, 20))):
        crop = prep.RandomResizedCrop((24, 20), dtype=dtype, layout=layout)
        batch = next(iter(leat.Loader(pictures, 6, fields=FIELDS, transform=crop)))
        assert batch["image"].shape == shape and batch["image"].dtype == crop.dtype
        assert np.array_equal(batch["image"][2], expected(crop, 0, 0, int(batch.ids[2])))


def test_bfloat16_in_torch(pictures):
    torch = pytest.importorskip("torch")
    found = {}
    for dtype in ("float32", "bfloat16"):
        loader = leat.Loader(pictures, 6, fields=FIELDS, transform=prep.RandomResizedCrop(32, dtype=dtype))
        found[dtype] = next(iter(loader)).torch()["image"]
    assert found["bfloat16"].dtype == torch.bfloat16 and torch.equal(found["bfloat16"], found["float32"].to(torch.bfloat16))


def test_nothing_of_python_runs_per_sample(pictures, monkeypatch):
    def never(*args):
        raise AssertionError("per sample")

    loader = leat.Loader(pictures, 20, fields=FIELDS, transform=CROP)
    batches = iter(loader)
    next(batches)  # the first sample shows the layout
    for place, name in ((leat._loader.workers.Work, "store_some"), (leat._loader.workers, "values_of"), (Image, "open")):
        monkeypatch.setattr(place, name, never)
    assert sum(len(batch) for batch in batches) == N - 20


def test_which_field(tmp_path):
    with leat.open(shard(tmp_path / "two.tar", JPEGS[:6], png=lambda i: JPEGS[5 - i])) as both:
        with pytest.raises(ValueError, match="which of image, other"):
            leat.Loader(both, 2, fields={**FIELDS, "other": "png"}, transform=CROP)
        small = prep.CenterCrop(16, resize=20)
        loader = leat.Loader(both, 2, fields={**FIELDS, "other": "png"}, transform={"image": CROP, "other": small})
        for batch in loader:
            for i, index in enumerate(batch.ids.tolist()):
                assert np.array_equal(batch["image"][i], expected(CROP, 0, 0, index))
                assert np.array_equal(batch["other"][i], expected(small, 0, 0, index, JPEGS[5 - index]))
        with pytest.raises(ValueError, match="'label'.*no picture"):
            leat.Loader(both, 2, fields=FIELDS, transform={"label": CROP})
        with pytest.raises(ValueError, match="no field 'x'"):
            leat.Loader(both, 2, fields=FIELDS, transform={"x": CROP})
        with pytest.raises(TypeError, match="functions come after"):
            leat.Loader(both, 2, fields=FIELDS, transform=[brighter, CROP])
        with pytest.raises(ValueError, match="none of the fields"):
            leat.Loader(both, 2, fields={"label": "cls"}, transform=CROP)
        batch = next(iter(leat.Loader(both, 2, fields=["jpg"], transform=CROP)))
        assert np.array_equal(batch["jpg"][0], expected(CROP, 0, 0, int(batch.ids[0])))


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_function_after_it(pictures, workers):
    with leat.Loader(pictures, 8, fields=FIELDS, transform=[CROP, brighter], workers=workers, num_workers=2) as loader:
        for batch in loader:
            for i, index in enumerate(batch.ids.tolist()):
                assert np.array_equal(batch["image"][i], expected(CROP, 0, 0, index) + np.float32(1))
                assert batch["draw"][i] == leat._loader.workers.make_rng(0, 0, index).random() and batch["label"][i] == index


def test_beside_other_fields(tmp_path):
    path = shard(tmp_path / "more.tar", JPEGS[:8], json=lambda i: b'{"n": %d}' % i)
    with leat.open(path) as opened:
        for options in ({}, {"workers": "process"}):
            with leat.Loader(opened, 4, fields={**FIELDS, "about": "json"}, transform=CROP, **options) as loader:
                for batch in loader:
                    assert [one["n"] for one in batch["about"]] == batch.ids.tolist() == batch["label"].tolist()


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_mixtures(tmp_path, pictures, workers):
    with leat.open(shard(tmp_path / "others.tar", JPEGS[30:40])) as others:
        mixture = leat.Mixture([(pictures, 2), (others, 1)], length=60)
        rounds = collections.Counter()
        with leat.Loader(mixture, 12, fields=FIELDS, transform=CROP, seed=4, workers=workers) as loader:
            for batch in loader:
                for i, (source, index) in enumerate(zip(batch.source.tolist(), batch.ids.tolist())):
                    number = index + N * source + (rounds[source, index] << 44)  # in a mixture; it comes again with another crop
                    rounds[source, index] += 1
                    assert batch["label"][i] == index
                    assert np.array_equal(batch["image"][i], expected(CROP, 4, 0, number, JPEGS[index + 30 * source]))
        assert set(rounds.values()) == {1, 2}


def test_a_folder_with_classes(tmp_path):
    for i in range(6):
        (tmp_path / "photos" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / "ab"[i % 2] / f"{i}.jpg").write_bytes(JPEGS[i])
    with leat.open(tmp_path / "photos") as opened:
        for batch in leat.Loader(opened, 3, fields={"image": "jpg", "label": "label"}, transform=CROP):
            for i, index in enumerate(batch.ids.tolist()):
                source = int(opened.key(index)[2])
                assert batch["label"][i] == source % 2
                assert np.array_equal(batch["image"][i], expected(CROP, 0, 0, index, JPEGS[source]))
        with pytest.raises(leat.BadSample, match="is not the number of a class; in a folder of files that is the field 'label'"):
            next(iter(leat.Loader(opened, 3, fields={"image": "jpg", "label": "cls"}, transform=CROP)))


def test_arrays_of_pixels(tmp_path):
    """Pictures that were decoded before take the same way from there."""
    pixels = np.stack([np.asarray(picture(i, 50, 40)) for i in range(8)])
    np.save(tmp_path / "pixels.npy", pixels)
    crop = prep.RandomResizedCrop(16, dtype="uint8", layout="hwc", seed=3)
    with leat.open({"image": tmp_path / "pixels.npy"}) as opened:
        for batch in leat.Loader(opened, 4, transform=crop, seed=3):
            for i, index in enumerate(batch.ids.tolist()):
                left, top, width, height, flip = crop.crop(50, 40, index)
                want = picture(index, 50, 40).crop((left, top, left + width, top + height)).resize((16, 16), Image.BILINEAR)
                want = np.asarray(want)[:, ::-1] if flip else np.asarray(want)
                assert np.abs(batch["image"][i].astype(int) - want).max() <= 1


def test_threads_end_with_the_loader(pictures):
    import os

    def threads():
        gc.collect()
        return len(os.listdir("/proc/self/task"))

    loader = leat.Loader(pictures, 8, fields=FIELDS, transform=CROP, num_workers=4)
    by_sample(loader)
    before = threads()
    for _ in range(3):
        by_sample(loader)
    wait_for(lambda: threads() == before, message=threads)
    loader.close()
    # Three of C beside their driver, two drivers. The kernel lists a thread for a moment after it was joined.
    wait_for(lambda: threads() <= before - 5, message=threads)


def test_threads_before_a_function_do_not_take_turns(pictures):
    """With a function behind the prep it is Python's threads that work side by side, each with objects of C of its own."""
    alone = leat._decode.images.Stages({"image": CROP}, leat._decode.decode.resolve(pictures, FIELDS), False)
    shared = leat._decode.images.Stages({"image": CROP}, leat._decode.decode.resolve(pictures, FIELDS), True)
    shared.start(2)
    for stages, want in ((alone, 3), (shared, 1)):
        found, meet = [], threading.Barrier(3)

        def work():
            found.append(stages._bound())
            meet.wait(30)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(map(id, found))) == want
    shared.stop()


def test_waiting_for_others_is_no_work(pictures, monkeypatch):
    """Two drivers share C's threads: while one waits for its turn, no thread is busy for it."""
    run = leat._prep.Transform.run_packed

    class Slow:
        def __init__(self, bound):
            self.bound = bound

        def run_packed(self, values, offsets, *rest):
            if len(offsets) > 1:
                time.sleep(0.02)
            return run(self.bound, values, offsets, *rest)

    bind = prep.RandomResizedCrop.bind
    monkeypatch.setattr(prep.RandomResizedCrop, "bind", lambda self, threads: Slow(bind(self, threads)))
    with leat.Loader(pictures, 6, fields=FIELDS, transform=prep.RandomResizedCrop(8), num_workers=1) as loader:
        begin = time.perf_counter()
        assert sum(1 for _ in loader) == 10
        took = time.perf_counter() - begin
        assert 0.15 < loader.stats()["prep_s"] < 1.1 * took


def test_threads_are_this_ranks_share(pictures, monkeypatch):
    from leat._decode import images as _pictures

    for name in _pictures._LOCAL_SIZES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_pictures, "_quota", lambda: None)
    monkeypatch.setattr(_pictures.os, "cpu_count", lambda: 16)
    monkeypatch.setattr(_pictures.os, "sched_getaffinity", lambda pid: set(range(16)))
    assert _pictures.cores() == 16
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "8")
    assert _pictures.cores() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert _pictures.cores() == 4
    monkeypatch.setattr(_pictures.os, "sched_getaffinity", lambda pid: {0, 1})  # tied to two cores
    assert _pictures.cores() == 1
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert _pictures.cores() == 2
    monkeypatch.setattr(_pictures, "_quota", lambda: 1)
    assert _pictures.cores() == 1
    monkeypatch.undo()
    assert leat.Loader(pictures, 4, fields=FIELDS, transform=CROP)._config.workers == _pictures.cores()
    assert leat.Loader(pictures, 4, fields=FIELDS, transform=[CROP, brighter])._config.workers == 0


# --- bad pictures --------------------------------------------------------------------------------------------------------------


def bomb(width, height):
    """A JPEG that says that it is so large, in a few hundred bytes."""
    data = bytearray(encoded(picture(0, 8, 8)))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes(data)


def rotated():
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(picture(3, 61, 40), exif=exif)


BAD = {
    "truncated": (JPEGS[1][: len(JPEGS[1]) // 3], leat.Corrupt),
    "empty": (b"", leat.Corrupt),
    "noise": (bytes(range(256)), leat.Corrupt),
    "bomb": (bomb(20000, 20000), leat.Invalid),
    "header only": (JPEGS[1][:20], leat.Corrupt),
}
GOOD = {
    "cmyk": encoded(picture(4, mode="CMYK")),
    "progressive": encoded(picture(5), progressive=True),
    "rotated": rotated(),
    "one pixel": encoded(picture(6, 1, 1)),
    "narrow": encoded(picture(7, 640, 1)),
    "gray": encoded(picture(8).convert("L")),
}


@pytest.fixture
def with_bad(tmp_path, request):
    data = request.param
    with leat.open(shard(tmp_path / "bad.tar", [*JPEGS[:7], data, *JPEGS[8:30]])) as opened:
        yield opened


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("with_bad, error", BAD.values(), ids=BAD, indirect=["with_bad"])
def test_bad_pictures(with_bad, error, workers):
    options = {"fields": FIELDS, "transform": CROP, "workers": workers, "num_workers": 2}
    with leat.Loader(with_bad, 10, **options) as loader:
        with pytest.raises(leat.BadSample, match=r"sample 7 \(00007\).*bad.tar at offset \d+") as raised:
            by_sample(loader)
    assert isinstance(raised.value.__cause__, error) and raised.value.key == "00007" and raised.value.offset > 0
    found = []
    for on_error in ("skip", lambda e: found.append(e.key) or "skip"):
        with leat.Loader(with_bad, 10, on_error=on_error, **options) as loader:
            seen = [i for batch in loader for i in batch.ids.tolist()
                    if np.array_equal(batch["image"][batch.ids.tolist().index(i)], expected(CROP, 0, 0, i))]
            assert len(seen) == 30 and 7 not in seen and set(seen) == set(range(30)) - {7}
            assert loader.stats()["skipped"] == 1
    assert found == ["00007"]


@pytest.mark.parametrize("with_bad", [data for data, _ in BAD.values()], ids=BAD, indirect=["with_bad"])
def test_bad_pictures_by_pillow(with_bad):
    """The same pictures where a decoder of fields= meets them."""
    options = {"fields": FIELDS, "num_workers": 2}
    with pytest.raises(leat.BadSample, match=r"sample 7 \(00007\).*bad.tar at offset \d+"):
        by_sample(leat.Loader(with_bad, 10, **options))
    found = []
    for on_error in ("skip", lambda e: found.append(e.key)):
        ids = [i for batch in leat.Loader(with_bad, 10, on_error=on_error, **options) for i in batch.ids.tolist()]
        assert len(ids) == 30 and set(ids) == set(range(30)) - {7}
    assert found == ["00007"]


@pytest.mark.parametrize("with_bad", GOOD.values(), ids=GOOD, indirect=True)
def test_odd_pictures_are_no_error(with_bad, request):
    data = GOOD[request.node.callspec.id]
    for batch in leat.Loader(with_bad, 10, fields=FIELDS, transform=CROP):
        for i, index in enumerate(batch.ids.tolist()):
            if index == 7:
                assert np.array_equal(batch["image"][i], expected(CROP, 0, 0, 7, data))
                return
    raise AssertionError("sample 7 did not come")


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_other_formats_among_jpegs(tmp_path, workers):
    """Pillow decodes them; the crop is that of a JPEG of this size."""
    others = {3: "PNG", 5: "WEBP", 9: "GIF"}
    samples = [encoded(picture(i), others[i], **({"lossless": True} if i == 5 else {})) if i in others else JPEGS[i] for i in range(12)]
    crop = prep.RandomResizedCrop(16, dtype="uint8", layout="hwc")
    with leat.open(shard(tmp_path / "mixed.tar", samples)) as opened, \
            leat.Loader(opened, 4, fields=FIELDS, transform=crop, workers=workers) as loader:
        for batch in loader:
            for i, index in enumerate(batch.ids.tolist()):
                if index not in others:
                    assert np.array_equal(batch["image"][i], expected(crop, 0, 0, index))
                    continue
                image = Image.open(io.BytesIO(samples[index])).convert("RGB")
                left, top, width, height, flip = crop.crop(*image.size, index)
                want = np.asarray(image.crop((left, top, left + width, top + height)).resize((16, 16), Image.BILINEAR)).astype(int)
                assert np.abs(batch["image"][i] - (want[:, ::-1] if flip else want)).max() <= 1


def test_a_large_png_is_refused_by_its_header(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with leat.open(shard(tmp_path / "large.tar", [encoded(Image.new("RGB", (3000, 2000)), "PNG"), *JPEGS[:3]])) as opened:
            crop = prep.RandomResizedCrop(16, max_pixels=1 << 20)
            with pytest.raises(leat.BadSample, match="3000 x 2000"):
                by_sample(leat.Loader(opened, 4, fields=FIELDS, transform=crop))


def test_labels_that_are_no_numbers(tmp_path):
    """Whole columns of labels, and the one in them that is none."""
    labels = [b"12", b" 7\n", b"-3", b"+5", b"0012", b"99999999999999999", b"x", None]
    with tarfile.open(tmp_path / "labels.tar", "w") as tar:
        for i, label in enumerate(labels):
            for name, data in (("jpg", JPEGS[i]), ("cls", label)):
                if data is not None:
                    info = tarfile.TarInfo(f"{i}.{name}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    with leat.open(tmp_path / "labels.tar") as opened:
        bad = []
        loader = leat.Loader(opened, 8, fields=FIELDS, transform=CROP, shuffle=False, on_error=lambda e: bad.append(e.index))
        batch = next(iter(loader))
        assert batch["label"][[0, 1, 2, 4, 5]].tolist() == [12, 7, -3, 12, 99999999999999999]
        assert set(bad) == {3, 6, 7}


@pytest.mark.parametrize("more", [{}, {"workers": "fork"}])
def test_a_picture_that_comes_again_is_cropped_in_another_way(pictures, more):
    found = []
    for size in (2, 8):
        with leat.Loader(pictures, size, sampler=[3] * 8, fields=FIELDS, transform=CROP, **more) as loader:
            found.append([image.tobytes() for batch in loader for image in batch["image"]])
    assert found[0] == found[1] and len(set(found[0])) == 8
