# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of leat.Loader: what was given, what is allowed, what to do; at once, not with the first batch."""

import re

import numpy as np
import pytest

import leat


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
    ({"max_errors": -1}, ValueError, "max_errors=-1: at least 0"),
    ({"workers": "threads"}, ValueError, "'thread', 'process', 'fork', 'spawn' or 'forkserver'"),
    ({"on_error": "ignore"}, ValueError, "on_error='ignore': 'raise', 'skip' or a function"),
    ({"on_error": 3}, ValueError, "on_error=3: 'raise', 'skip' or a function"),
    ({"timeout": "3"}, TypeError, "timeout='3': a number of seconds"),
    ({"timeout": 0}, ValueError, "seconds above 0, or math.inf"),
    ({"shuffle": "blocks"}, ValueError, "shuffle='blocks': give True, 'auto', 'full', 'block:N' or False"),
    ({"sampler": 5}, TypeError, "sampler=5: what yields numbers of samples"),
    ({"sampler": [1], "batch_sampler": [[1]]}, ValueError, "give one of them"),
    ({"sampler": [1], "shuffle": True}, ValueError, "shuffle=True and a sampler: the sampler says the order"),
    ({"batch_sampler": [[1]], "shuffle": "full"}, ValueError, "shuffle='full' and a sampler"),
    ({"skip_ranges": (1, 2)}, TypeError, "a list of (first position, end)"),
    ({"fields": ["imge"]}, KeyError, "no field 'imge'; did you mean 'image'? There are image, label"),
    ({"fields": {"x": "imge"}}, ValueError, "'x' wants 'imge', which is no field (did you mean 'image'?"),
    ({"fields": "image"}, TypeError, "a list of names, or a dict"),
    ({"transform": 5}, TypeError, "transform=5: a function, called as transform(sample, rng)"),
    ({"transform": lambda sample: sample}, TypeError, "called as transform(sample, rng), and takes (sample)"),
    ({"collate_fn": lambda: 0}, TypeError, "called as collate_fn(samples), and takes ()"),
    ({"device": "gpu"}, ValueError, "device='gpu': 'cpu', 'pinned' or 'cuda:N'"),
    ({"rank": 1}, ValueError, "give both, or neither"),
    ({"rank": 2, "world_size": 2}, ValueError, "ranks count from 0"),
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
                      {"transform": Takes()}, {"collate_fn": list}, {"seed": -1}, {"max_errors": 0, "on_error": "skip"}):
        leat.Loader(numbers, **arguments).close()
    assert [i for batch in leat.Loader(numbers, sampler=[3, 1]) for i in batch.ids.tolist()] == [3, 1]


def test_a_batch_is_not_unpacked(numbers):
    """As a loop around a DataLoader does."""
    for loader in (leat.Loader(numbers, 2), leat.Loader(numbers, 2, transform=lambda sample, rng: sample)):
        with loader, pytest.raises(TypeError, match=r"a batch has fields by name.*batch\['image'\] \(its fields are image, label\)"):
            for _image, _label in loader:
                pass


def test_what_is_no_dataset():
    with pytest.raises(TypeError, match="list is no path or URI.*leat.from_dataset takes what has len"):
        leat.Loader([1, 2, 3], 2)
