# SPDX-License-Identifier: Apache-2.0
"""The examples of docstrings and of the guide for trainers, run."""

import doctest
import importlib
import re
import tarfile

import numpy as np
import pytest

import leat
from lib_python import FILES, IMAGES, LABELS, ROOT

pytestmark = pytest.mark.plain

MODULES = ["leat", "leat._prep",
           "leat._base.arguments", "leat._base.clients", "leat._base.errors", "leat._base.progress", "leat._base.ranks", "leat._base.storage",
           "leat._decode.decode",
           "leat._loader.generators", "leat._loader.loader", "leat._loader.mixture", "leat._loader.nested", "leat._loader.prepared", "leat._loader.sampler", "leat._loader.state", "leat._loader.stats", "leat._loader.weighted", "leat._loader.workers",
           "leat._sets.batch", "leat._sets.core", "leat._sets.fields", "leat._sets.from_dataset", "leat._sets.plan", "leat._sets.recordings", "leat._sets.rows", "leat._sets.set", "leat._sets.windows"]


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    for module in map(importlib.import_module, MODULES):
        for test in finder.find(module):
            if test.examples:
                yield pytest.param(test, id=test.name)


@pytest.fixture
def here(tmp_path, monkeypatch, npy, folder):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(test):
    out = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=out.append, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0, "".join(out)


@pytest.mark.parametrize("test", list(examples()))
def test_docstring(test, here, ws, files):
    test.globs.update(leat=leat, ws=ws, files=files, np=np)
    run(test)
    test.globs.clear()


def run_document(path):
    """Blocks run one after another in one namespace: those with >>> as doctests, the others as they are."""
    text = path.read_text()
    names = {"leat": leat, "np": np}
    parser = doctest.DocTestParser()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S))
    assert len(blocks) > 5
    for block in blocks:
        line = text[: block.start()].count("\n") + 1
        code = block[1]
        if ">>>" in code:
            test = parser.get_doctest(code, names, path.stem, str(path), line)
            test.globs = names
            run(test)
        else:
            exec(compile("\n" * line + code, str(path), "exec"), names)
    for value in list(names.values()):
        if isinstance(value, leat.WorkingSet):
            value.close()


def test_guide(here):
    """Twice, as a reader does beside the same daemon."""
    for _ in range(2):
        run_document(ROOT / "docs/guide-trainers.md")


def test_migration(tmp_path, monkeypatch):
    """What stood there before runs as well, where it needs PyTorch only."""
    pytest.importorskip("torch")
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", np.random.default_rng(0).random((1000, 28, 28), np.float32))
    np.save("labels.npy", np.arange(1000) % 10)
    for i in range(16):
        folder = tmp_path / "pets" / ("cat", "dog")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((90, 120, 3), 10 * i, np.uint8)).save(folder / f"{i}.jpg")
    (tmp_path / "shards").mkdir()
    for shard in range(4):
        with tarfile.open(f"shards/train-{shard:03d}.tar", "w") as archive:
            for path in sorted(tmp_path.glob("pets/*/*.jpg"))[shard::4]:
                archive.add(path, f"{path.stem}.jpg")
                (tmp_path / "cls").write_text(str(["cat", "dog"].index(path.parent.name)))
                archive.add(tmp_path / "cls", f"{path.stem}.cls")
    for _ in range(2):
        run_document(ROOT / "docs/migrate.md")


def test_everything_public_is_documented():
    for name in leat.__all__:
        thing = getattr(leat, name)
        if callable(thing) and name != "Sample":
            assert thing.__doc__ and thing.__doc__.strip(), name
            for attribute, value in vars(thing).items() if isinstance(thing, type) else ():
                if not attribute.startswith("_") and callable(value):
                    assert value.__doc__ or attribute in ("field", "index"), f"{name}.{attribute}"
    assert FILES and len(IMAGES) == len(LABELS)
