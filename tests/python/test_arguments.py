# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments: what was given, what is allowed, what to do; at once, not with the first batch, and from no depth of the library."""

import copy
import inspect
import pathlib
import pickle
import re

import numpy as np
import pytest

import leat


def twice(loader):
    assert sum(1 for batch in loader) and sum(1 for batch in loader)


@pytest.fixture
def numbers(tmp_path):
    np.save(tmp_path / "image.npy", np.zeros((10, 2), "<f4"))
    np.save(tmp_path / "label.npy", np.arange(10))
    with leat.open({"image": tmp_path / "image.npy", "label": tmp_path / "label.npy"}) as ws:
        yield ws


@pytest.mark.parametrize("arguments, error, message", [
    ({"batch_size": 0}, ValueError, "batch_size=0: at least 1"),
    ({"batch_size": 2.0}, TypeError, "batch_size=2.0: a whole number, not float"),
    ({"num_workers": -1}, ValueError, "num_workers=-1: at least 0"),
    ({"prefetch": 0}, ValueError, "prefetch=0: at least 1"),
    ({"seed": None}, TypeError, "seed=None: a whole number"),
    ({"seed": -1}, ValueError, "seed=-1: 0 to 2**64 - 1"),
    ({"seed": 2**64}, ValueError, "seed=18446744073709551616: 0 to 2**64 - 1"),
    ({"dataset": 1}, TypeError, "dataset= is DataLoader's: here it is the first argument"),
    ({"worker_init_fn": print}, TypeError, "worker_init_fn= is DataLoader's: here it is the rng of a transform"),
    ({"generator": None}, TypeError, "generator= is DataLoader's: here it is seed="),
    ({"persistent_workers": True}, TypeError, "persistent_workers= is DataLoader's: here it is not needed"),
    ({"prefetch_factor": 2}, TypeError, "prefetch_factor= is DataLoader's: here it is prefetch="),
    ({"multiprocessing_context": "fork"}, TypeError, "multiprocessing_context= is DataLoader's: here it is workers="),
    ({"pin_memory_device": "cuda"}, TypeError, "pin_memory_device= is DataLoader's: here it is pin_memory=True"),
    ({"in_order": True}, TypeError, "in_order= is DataLoader's: here it is not needed"),
    ({"suffle": True}, TypeError, "leat.Loader has no suffle=; did you mean 'shuffle'? There are ws, batch_size"),
    ({"max_errors": -1}, ValueError, "max_errors=-1: at least 0"),
    ({"workers": "threads"}, ValueError, "'thread', 'process', 'fork', 'spawn' or 'forkserver'"),
    ({"on_error": "ignore"}, ValueError, "on_error='ignore': 'raise', 'skip' or a function"),
    ({"on_error": 3}, ValueError, "on_error=3: 'raise', 'skip' or a function"),
    ({"timeout": "3"}, TypeError, "timeout='3': a number of seconds"),
    ({"timeout": 0}, ValueError, "seconds above 0, or math.inf"),
    ({"shuffle": "blocks"}, ValueError, "shuffle='blocks': give True, 'auto', 'full', 'block:N' or False"),
    ({"sampler": 5}, TypeError, "sampler=5: what yields numbers of samples"),
    ({"sampler": [1], "batch_sampler": [[1]]}, ValueError, "give one of them"),
    ({"sampler": [1], "shuffle": True}, ValueError, "shuffle=True and a sampler: the sampler sets the order"),
    ({"batch_sampler": [[1]], "shuffle": "full"}, ValueError, "shuffle='full' and a sampler"),
    ({"skip_ranges": (1, 2)}, TypeError, "a list of (first position, end)"),
    ({"fields": ["imge"]}, KeyError, "no field 'imge'; did you mean 'image'? There are image, label"),
    ({"fields": {"x": "imge"}}, ValueError, "'x' needs 'imge', which is no field (did you mean 'image'?"),
    ({"fields": "image"}, TypeError, "a list of names, or a dict"),
    ({"transform": 5}, TypeError, "transform=5: a function, called as transform(sample, rng)"),
    ({"transform": lambda sample: sample}, TypeError, "called as transform(sample, rng), and takes (sample)"),
    ({"collate_fn": lambda: 0}, TypeError, "called as collate_fn(samples), and takes ()"),
    ({"device": "gpu"}, ValueError, "device='gpu': 'cpu', 'pinned' or 'cuda:N'"),
    ({"rank": 1}, ValueError, "give both, or neither"),
    ({"rank": 2, "world_size": 2}, ValueError, "ranks count from 0"),
    ({"rank": "0", "world_size": "2"}, TypeError, "rank='0': a whole number, not str"),
    ({"replication": "2"}, TypeError, "replication='2': a whole number, not str"),
])
def test_wrong_arguments(numbers, arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        leat.Loader(numbers, **arguments)


def test_no_gpu(numbers):
    for arguments in ({"device": "cuda:0"}, {"device": "cuda:0", "transform": lambda sample, rng: sample}, {"pin_memory": True}):
        try:
            leat.Loader(numbers, 2, **arguments).close()
        except leat.Unsupported as error:
            assert re.search("device='(cuda:0|cpu)'(, pin_memory=True)?: .*needs no GPU", str(error))
        else:
            pytest.skip("there is a GPU here")


def test_what_is_right_is_taken(numbers):
    class Takes:
        def __call__(self, sample, *more, **named):
            return sample

    for arguments in ({"sampler": [3, 1], "shuffle": False}, {"sampler": range(4), "shuffle": "block:2"}, {"batch_size": np.int64(2)}, {"timeout": np.float32(3)},
                      {"transform": Takes()}, {"collate_fn": list}, {"seed": 2**64 - 1}, {"max_errors": 0, "on_error": "skip"}):
        leat.Loader(numbers, **arguments).close()
    assert [i for batch in leat.Loader(numbers, sampler=[3, 1]) for i in batch.ids.tolist()] == [3, 1]


def test_every_keyword_of_dataloader():
    """Is one of a loader's, or an error says what stands in its place."""
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    here = set(inspect.signature(leat.Loader.__init__).parameters)
    assert set(inspect.signature(data.DataLoader.__init__).parameters) - {"self"} <= here | set(leat._loader.loader._REPLACED)


def test_a_loader_is_not_put_into_a_dataloader(numbers):
    with leat.Loader(numbers, 2) as loader, pytest.raises(TypeError, match=r"stands where a DataLoader stood: for batch in loader"):
        loader[0]


@pytest.mark.parametrize("uri, error, message", [
    ([1, 2, 3], TypeError, "list is no path or URI, nor a dict of them: leat.from_dataset takes what has len"),
    (["a.tar", pathlib.Path("b.tar")], TypeError, "a list of paths: several shards are one pattern"),
    ({"image": 3}, TypeError, "field 'image': int is no path or URI"),
    ({"my image": "a.npy"}, ValueError, "field 'my image': its name is letters, digits"),
    ({3: "a.npy"}, ValueError, "field 3: its name is letters, digits"),
    ({}, ValueError, "an empty dict of fields"),
])
def test_what_is_no_dataset(uri, error, message):
    with pytest.raises(error, match=re.escape(message)):
        leat.Loader(uri, 2)


def test_what_is_open_already(numbers):
    with pytest.raises(TypeError, match="is open already: take the working set as it is"):
        leat.open(numbers)


@pytest.mark.parametrize("arguments, error, message", [
    ({"window": 0}, ValueError, "window=0: at least 1"),
    ({"window": 2.5}, TypeError, "window=2.5: a whole number, not float"),
    ({"pool": "lots"}, ValueError, "'lots' is not a size: give bytes, or a number with a unit"),
    ({"pool": -1}, ValueError, "-1 is not a size"),
    ({"pool": "9" * 400 + "B"}, ValueError, "9999B': less than 8 EiB"),
    ({"limit": "9000000TiB"}, ValueError, "a size of '9000000TiB': less than 8 EiB"),
    ({"limit": 1 << 70}, ValueError, "a size of 1180591620717411303424: less than 8 EiB"),
    ({"limit": 1.5}, ValueError, "1.5 is not a size"),
    ({"storage_options": "key"}, TypeError, "storage_options is a dict, as {'anon': True}, not str"),
    ({"name": ""}, ValueError, "a set's name is not empty"),
    ({"name": 3}, TypeError, "the name of a set is a str, not int"),
    ({"name": "a/b"}, leat.Invalid, "no / or = in it"),
    ({"name": "a=b"}, leat.Invalid, "no / or = in it"),
])
def test_wrong_arguments_of_open(numbers, npy, arguments, error, message):
    """Also where a daemon runs already, whose pool is what it is."""
    with pytest.raises(error, match=re.escape(message)):
        leat.open(npy, **arguments)


@pytest.mark.parametrize("call, error, message", [
    (lambda ws: ws[[1, 2]], TypeError, "[1, 2]: read one sample by its number or its key, many at once with ws.read_batch"),
    (lambda ws: ws.read_batch(3), TypeError, "ids=3: a list of numbers or keys"),
    (lambda ws: leat.batches(ws, 2, epoch=-1), ValueError, "epoch=-1: at least 0"),
    (lambda ws: leat.batches(ws, 2, slots=1), ValueError, "slots=1: at least 2"),
    (lambda ws: leat.order("x"), TypeError, "n='x': a whole number, not str"),
    (lambda ws: leat.order(ws, epoch=-1), ValueError, "epoch=-1: at least 0"),
    (lambda ws: leat.order(ws, seed=-1), ValueError, "seed=-1: 0 to 2**64 - 1"),
    (lambda ws: leat.batches(ws, 2, seed=1 << 64), ValueError, "seed=18446744073709551616: 0 to"),
    (lambda ws: leat.Sampler(ws, 2, seed=-5), ValueError, "seed=-5: 0 to"),
    (lambda ws: leat.prep.CenterCrop(8, seed=-5), ValueError, "seed=-5: 0 to"),
    (lambda ws: leat.replay({**leat.Loader(ws, 2).state_dict(), "seed": 1 << 64}, 0), ValueError, "this state has seed=18446744073709551616: at most"),
    (lambda ws: leat.Sampler(ws, 0), ValueError, "batch_size=0: at least 1"),
    (lambda ws: leat.share(100, 4, 4), ValueError, "rank=4 of world_size=4: ranks count from 0"),
    (lambda ws: leat.drop(3), TypeError, "name=3: the name of a set is a str, not int"),
    (lambda ws: leat.stat(ws), TypeError, "the name of a set is a str, not WorkingSet"),
    (lambda ws: leat.create("new", {"x": "f4"}, samples=-1), ValueError, "samples=-1: at least 1"),
    (lambda ws: leat.Mixture([(ws, "much")]), ValueError, "part 0 of the mixture has weight 'much': a number above 0"),
    (lambda ws: leat.Mixture([(ws, 1)], length=0), ValueError, "length=0: at least 1"),
    (lambda ws: leat.prep.CenterCrop("big"), TypeError, "size='big': the edge of a square in pixels, or (height, width)"),
    (lambda ws: leat.prep.CenterCrop((1, 2, 3)), TypeError, "size=(1, 2, 3): the edge of a square"),
    (lambda ws: leat.prep.CenterCrop(8, dtype="float64"), ValueError, "dtype='float64': one of 'uint8', 'float32', 'bfloat16'"),
    (lambda ws: leat.prep.CenterCrop(8, mean=(1, 2)), ValueError, "mean=(1, 2): 3 numbers"),
    (lambda ws: pickle.dumps(next(iter(leat.Loader(ws, 2)))), TypeError, "a batch belongs to the process that made it"),
    (lambda ws: copy.deepcopy(next(iter(leat.Loader(ws, 2, transform=lambda s, rng: s)))), TypeError, "a batch belongs to the process that made it"),
    (lambda ws: pickle.dumps(leat.batches(ws, 2)), TypeError, "an iterator of batches belongs to the process"),
    (lambda ws: leat.Sampler(ws, 2).load_state_dict(None), ValueError, "this is not the state of a leat.Sampler"),
    (lambda ws: leat.Sampler(ws, 2).load_state_dict({"kind": "leat.Sampler", "version": 1}), ValueError, "this state has no 'length'"),
    (lambda ws: twice(leat.Loader(ws, 2, sampler=iter(range(4)))), ValueError, "an iterator, which is used up"),
    (lambda ws: twice(leat.Loader(ws, 2, batch_sampler=iter([[1, 2]]))), ValueError, "an iterator, which is used up"),
    (lambda ws: leat.prep.CenterCrop(8, scale=(0.5, 1.0)), TypeError, "scale"),
    (lambda ws: leat.prep.RandomResizedCrop(8, resize=256), TypeError, "resize"),
    (lambda ws: leat.pad([np.zeros(2), np.zeros((2, 2))]), ValueError, "pad: values of 1, 2 dimensions"),
    (lambda ws: leat.prep.CenterCrop(8)(b"a picture"), TypeError, "a batch of encoded pictures is wanted: a list of bytes, also of one"),
])
def test_wrong_arguments_of_others(numbers, call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call(numbers)


def test_a_subclass_has_keywords_of_its_own(ws):
    class Mine(leat.Loader):
        def __init__(self, ws, *, extra):
            super().__init__(ws, 4)
            self.extra = extra

    class Same(leat.Loader):
        pass

    assert Mine(ws, extra=1).extra == 1
    with pytest.raises(TypeError, match="extra"):
        Same(ws, extra=1)
    with pytest.raises(TypeError, match="did you mean 'shuffle'"):
        Same(ws, suffle=True)


def test_public_classes_name_the_package():
    """So that a pickle, and a traceback, stay what they are when a module in the package moves."""
    assert {getattr(leat, name).__module__ for name in leat.__all__ if isinstance(getattr(leat, name), type)} == {"leat"}
    progress = leat.Progress("load", 1, 2, 3, 4)
    assert pickle.loads(pickle.dumps(progress)) == progress
