# SPDX-License-Identifier: Apache-2.0
"""leat.open and the working set as a sequence of private copies."""

import io
import os
import pathlib
import tarfile

import numpy as np
import pytest

import leat
from lib_python import FILES, IMAGES, LABELS


def test_length_and_samples(ws):
    assert len(ws) == 6
    for i in range(-6, 6):
        np.testing.assert_array_equal(ws[i], IMAGES[i])
    assert ws[np.int32(2)].dtype == np.float32
    assert [sample.sum() for sample in ws] == [image.sum() for image in IMAGES]
    assert np.int64(5) in ws and np.int64(6) not in ws and -6 in ws and True not in ws


def test_samples_are_private_copies(ws):
    before = ws[0]
    before += 100
    np.testing.assert_array_equal(ws[0], IMAGES[0])
    ws.verify()


def test_several_fields_make_a_dict(npy):
    with leat.open({"image": npy, "label": npy.parent / "labels.npy"}) as ws:
        sample = ws[3]
        assert sorted(sample) == ["image", "label"]
        np.testing.assert_array_equal(sample["image"], IMAGES[3])
        assert sample["label"] == LABELS[3]
        assert ws.field("label").shape == ()


@pytest.mark.parametrize("uri", ["images.npy", "./images.npy", pathlib.Path("images.npy"), "image=images.npy"])
def test_uris_relative_to_where_we_are(npy, monkeypatch, uri):
    monkeypatch.chdir(npy.parent)
    with leat.open(uri) as ws:
        np.testing.assert_array_equal(ws[1], IMAGES[1])


def test_a_path_object_is_a_path_whatever_it_holds(npy, monkeypatch):
    monkeypatch.chdir(npy.parent)
    odd = npy.rename(npy.parent / "a=b;c.npy")
    with leat.open(odd) as ws, leat.open(pathlib.Path("a=b;c.npy")) as relative:
        assert len(ws) == len(relative) == 6
    with pytest.raises(ValueError, match="';'"):
        leat.open({"x": odd})


def test_files_labels_keys_and_classes(files):
    assert len(files) == 3
    assert list(files.keys()) == sorted(FILES)
    assert files.classes == ("a", "b")
    label = next(field.name for field in files.fields if field.kind == "label")
    raw = next(field.name for field in files.fields if field.kind == "raw")
    for i, (key, data) in enumerate(sorted(FILES.items())):
        sample = files[key]
        assert sample[raw] == data and type(sample[raw]) is bytes
        assert files.classes[sample[label]] == key[0] and type(sample[label]) is int
        assert files.index(key) == i and files.key(i) == key == files.key(i - 3)
        assert key in files and key in files.keys()
    assert files.keys()[-1] == "b/3.jpg" and files.keys()[:2] == ["a/1.jpg", "a/2.jpg"]
    assert "a/9.jpg" not in files and 2 in files and 3 not in files
    assert files.keys().index("b/3.jpg") == 2 and len(files.keys()) == 3


def test_a_key_that_is_not_utf8(tmp_path):
    (tmp_path / "d").mkdir()
    name = os.fsdecode(b"caf\xe9.bin")
    (tmp_path / "d" / name).write_bytes(b"odd")
    with pytest.raises(leat.Invalid, match=r"caf.xe9.bin. is not UTF-8"):
        leat.open(tmp_path / "d")


def test_absent_fields(shard):
    with leat.open(shard) as ws:
        assert ws["x"] == {"jpg": b"JPEG0", "cls": b"3"}
        assert ws["y"] == {"jpg": b"JPEG11"}
        assert ws["z"] == {"jpg": b"", "cls": b"12"}
        assert ws.__getitems__([2, 1, 0]) == [ws[2], ws[1], ws[0]]
        with ws.read_batch([0, 1, 2]) as batch:
            assert batch.present("cls").tolist() == [True, False, True]
            assert batch["jpg"].tolist() == [b"JPEG0", b"JPEG11", b""]
            assert batch["jpg"].lengths.tolist() == [5, 6, 0]


def test_getitems_is_a_list_of_private_samples(ws, files):
    samples = ws.__getitems__([5, 0, 5])
    assert type(samples) is list
    np.testing.assert_array_equal(samples, IMAGES[[5, 0, 5]])
    samples[0][:] = -1
    np.testing.assert_array_equal(ws[5], IMAGES[5])
    assert files.__getitems__([0, 2]) == [files[0], files[2]]
    assert ws.__getitems__([]) == []


def test_uri_opens_the_same_set(ws, npy):
    with leat.open(ws.uri) as again:
        assert again.fingerprint == ws.fingerprint and len(again.fingerprint) == 32
        assert repr(ws).startswith("<leat.WorkingSet 'image=/") and "6 samples of image <f4[2, 3]" in repr(ws)


def test_stat_and_wait(ws):
    seen = []
    stat = ws.wait(seen.append, timeout=60).stat()
    assert stat.samples == stat.resident_samples == 6 and stat.failed_samples == 0
    assert stat.payload_bytes == IMAGES.nbytes and stat.transport == "shm" and stat.streamed is False
    assert all(isinstance(p, leat.Progress) for p in seen)


@pytest.mark.parametrize("dtype", ["i1", "<u2", ">i4", "<f8", "<c8", "?", "S5", "<U3", "M8[s]", "f2"])
def test_dtypes(tmp_path, dtype):
    array = np.zeros((4, 3), dtype)
    array.view(np.uint8).reshape(-1)[:] = np.arange(array.nbytes) % 2
    np.save(tmp_path / "x.npy", array)
    with leat.open(tmp_path / "x.npy") as ws:
        assert ws[2].dtype == array.dtype and ws[2].tobytes() == array[2].tobytes()
        with ws.read_batch([3, 0]) as batch:
            assert batch.data.dtype == array.dtype and batch.data.tobytes() == array[[3, 0]].tobytes()
        with ws.view(1) as view:
            assert view.array.dtype == array.dtype and view.array.tobytes() == array[1].tobytes()


def test_closing(npy):
    ws = leat.open(npy)
    batch, view = ws.read_batch([1]), ws.view(2)
    ws.close()
    ws.close()
    with pytest.raises(ValueError, match="closed"):
        ws[0]
    with pytest.raises(ValueError, match="closed"):
        ws.read_batch([0])
    np.testing.assert_array_equal(batch.data[0], IMAGES[1])
    np.testing.assert_array_equal(view.array, IMAGES[2])
    assert "closed" in repr(ws)


def test_torch_fetcher_shape(ws):
    """What torch.utils.data._utils.fetch._MapDatasetFetcher does."""
    assert hasattr(ws, "__getitems__") and ws.__getitems__
    data = ws.__getitems__([0, 1])
    assert np.stack(data).shape == (2, 2, 3)


def test_masks_are_no_ids(ws):
    for ids in ([True, False], np.array([True, False]), [np.bool_(True)], (False,)):
        with pytest.raises(TypeError):
            ws.read_batch(ids)
    with pytest.raises(TypeError):
        ws[True]


def test_ids_of_every_kind_of_integer(ws):
    wanted = IMAGES[[5, 0, 3]]
    for dtype in ("i1", "u1", "<i2", ">i4", "<u4", "<i8", ">i8", "<u8", ">u8"):
        strided = np.zeros(6, dtype)
        strided[::2] = [5, 0, 3]
        for ids in (np.array([5, 0, 3], dtype), strided[::2], list(np.array([5, 0, 3], dtype))):
            with ws.read_batch(ids) as batch:
                assert (batch.data == wanted).all()
    assert (ws[np.uint8(5)] == IMAGES[5]).all() and (ws[np.int64(-1)] == IMAGES[5]).all()
    for ids in (np.array([0.0]), [0.0], np.array(["0"]), {0}, None):
        with pytest.raises((TypeError, leat.UnknownKey)):
            ws.read_batch(ids)


def test_pushed_bytes_are_as_long_as_announced():
    ws = leat.create("texts", {"text": bytes}, 3, lengths={"text": [1, 20, 3]})
    for texts in ([b"a", b"b", b"ccc"], [b"a", b"b" * 21, b"cc"], [b"a", b"b" * 20]):
        with pytest.raises(ValueError):
            ws.push(0, {"text": texts if len(texts) == 3 else texts + [b""]})
    lengths = np.array([1, 20, 3], np.uint64)
    for data, of in ((b"short", lengths), (b"x" * 24, None), (b"x" * 24, lengths[:2]), (b"x" * 24, lengths[::-1].copy()),
                     (b"x" * 25, lengths), (b"x" * 24, b"odd")):
        with pytest.raises(ValueError):
            ws._set.push(0, 3, [(data, of)], 0)
    with pytest.raises(ValueError):
        ws._set.push(0, 3, [], 0)
    ws.push(0, {"text": [b"a", b"b" * 20, b"ccc"]})
    assert ws[1] == b"b" * 20


def test_relative_paths(npy, monkeypatch):
    monkeypatch.chdir(npy.parent)
    for uri in ("images.npy", "./images.npy", npy.parent.joinpath("images.npy").as_uri(), "image=images.npy;label=labels.npy",
                {"image": "images.npy"}, {"image": pathlib.Path("images.npy")}, pathlib.Path("images.npy"), b"images.npy",
                BytesPath(b"images.npy"), {"image": BytesPath(b"./images.npy")}):
        with leat.open(uri) as ws:
            assert len(ws) == 6 and os.fspath(npy) in ws.uri
    assert leat.preload("images.npy", name="kept").name == "kept"
    assert leat.stat("kept")["name"] == leat.stat("./images.npy")["name"] == "kept"


class BytesPath:
    def __init__(self, path: bytes):
        self.path = path

    def __fspath__(self):
        return self.path


def test_uris(npy, tmp_path):
    """A string may be a URI; a path object, and bytes, are a path, whatever they hold."""
    folder = tmp_path / "a b%41\udcff;=é"
    folder.mkdir()
    data = folder / "x.npy"
    data.write_bytes(npy.read_bytes())
    uri = data.as_uri()
    assert "%20" in uri and "%25" in uri and "%FF" in uri
    for given in (uri, uri.replace("file://", "file:"), uri.replace("file://", "file://localhost"), data, os.fsencode(data), str(data)):
        with leat.open(given) as ws:
            assert len(ws) == 6 and ws.uri == str(data)
    for bad in ("file://host/x.npy", "file:x.npy", "file:///x%00", "file:///x%2", "C:\\x.npy", "file:///C:/x.npy"):
        with pytest.raises(leat.Invalid):
            leat.open(bad)
    for bad in ({"image": data}, {"image": os.fsencode(data)}):
        with pytest.raises(ValueError, match=";"):
            leat.open(bad)
    for odd in ("file:x.npy", "C:x.npy", "s3:", "image=x"):
        (tmp_path / odd).write_bytes(npy.read_bytes())
        for path in (tmp_path / odd, {"image": tmp_path / odd}):
            with leat.open(path) as ws:
                assert len(ws) == 6
    with pytest.raises(leat.Unsupported):
        leat.open("gs://bucket/x.npy")
    with pytest.raises(ValueError):
        leat.open("x\0y")
    with pytest.raises(TypeError):
        leat.open(7)


@pytest.mark.parametrize(
    "samples, fields",
    [(100, {"jpg": 120_000, "json": 60_000, "txt": 30_000}), (60, {"a": 1_300_000, "b": 1_300_000, "c": 1_300_000})],
    ids=["small", "large"],
)
def test_a_cached_shard_of_several_fields_arrives(tmp_path, samples, fields):
    rng = np.random.default_rng(5)
    sent = {}
    path = tmp_path / "train-0.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for i in range(samples):
            for suffix, most in fields.items():
                sent[i, suffix] = rng.bytes(int(rng.integers(most // 2, most + 1)))
                info = tarfile.TarInfo(f"{i:05}.{suffix}")
                info.size = len(sent[i, suffix])
                tar.addfile(info, io.BytesIO(sent[i, suffix]))
    path.read_bytes()
    with leat.open(path) as ws:
        ws.wait(timeout=30)
        for i in range(samples):
            for suffix in fields:
                assert bytes(ws[i][suffix]) == sent[i, suffix]
        seen = [i for batch in leat.Loader(ws, 7, drop_last=False) for i in batch.ids[batch.valid].tolist()]
        assert sorted(seen) == list(range(samples))


def test_files_of_a_folder_are_chosen_by_name(tmp_path):
    """What ImageFolder makes of it: links to folders are classes, what lies beside them has none, and all folders count."""
    for name in ("all/cat/1.jpg", "all/cat/2.PNG", "all/cat/notes.txt", "all/cow/none.txt", "all/dog/3.jpg", "all/classes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "dog").mkdir()
    (tmp_path / "all/dog/3.jpg").rename(tmp_path / "dog/3.jpg")
    (tmp_path / "all/dog").rmdir()
    (tmp_path / "all/dog").symlink_to(tmp_path / "dog")

    def labels(**how):
        with leat.open(tmp_path / "all", **how) as ws:
            assert ws.classes == ("cat", "cow", "dog")
            return {ws.key(i): int(ws[i]["label"]) for i in range(len(ws))}

    pictures = {"cat/1.jpg": 0, "cat/2.PNG": 0, "dog/3.jpg": 2}
    assert labels() == pictures | {"cat/notes.txt": 0, "cow/none.txt": 1}
    for extensions in ("jpg,png", ("jpg", ".png"), {".png": 1, ".JPG": 2}):
        assert labels(extensions=extensions) == pictures
    assert labels(pattern="*.jpg") == {"cat/1.jpg": 0, "dog/3.jpg": 2}
    assert labels(pattern="cat/*", extensions="jpg,txt") == {"cat/1.jpg": 0, "cat/notes.txt": 0}
    loader = leat.Loader(tmp_path / "all", 1, extensions="jpg", shuffle=False)
    assert [loader.ws.key(i) for batch in loader for i in batch.ids.tolist()] == ["cat/1.jpg", "dog/3.jpg"]
    with pytest.raises(leat.Error, match="no file in .* that pattern= and extensions= accept"):
        leat.open(tmp_path / "all", pattern="*.gif")
    for bad in ({"pattern": ""}, {"pattern": "a#b"}, {"extensions": ["jpg", 3]}):
        with pytest.raises(ValueError, match="text without '#'"):
            leat.open(tmp_path / "all", **bad)
    for uri in ("leat://x", {"x": "a.npy"}):
        with pytest.raises(ValueError, match="files of a folder"):
            leat.open(uri, pattern="*")
    with leat.open(tmp_path / "all") as ws, pytest.raises(ValueError, match=r"give them to leat\.open"):
        leat.Loader(ws, 1, pattern="*")


@pytest.mark.parametrize("extensions", ["jpg, png", "*.jpg,png", "jpg;png", ["jpg", "a/b"]])
def test_extensions_that_no_name_ends_with_are_refused(folder, extensions):
    with pytest.raises(leat.Invalid, match="how names of files end"):
        leat.open(folder, extensions=extensions)


def test_a_link_through_a_file_leads_nowhere(tmp_path):
    (tmp_path / "set" / "cat").mkdir(parents=True)
    (tmp_path / "set" / "cat" / "a.jpg").write_bytes(b"a")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "set" / "cat" / "b.jpg").symlink_to(tmp_path / "file" / "b.jpg")
    with leat.open(tmp_path / "set") as ws:
        assert list(ws.keys()) == ["cat/a.jpg"]
