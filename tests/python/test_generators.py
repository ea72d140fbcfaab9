# SPDX-License-Identifier: Apache-2.0
"""Transforms that draw from the generators of the process, as torchvision's do: each sample has its own numbers, wherever it is prepared."""

import logging
import random
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import leat

N = 60
HOW = [{"num_workers": 0}, {"num_workers": 3}, {"num_workers": 1, "workers": "fork"}, {"num_workers": 2, "workers": "fork"},
       {"num_workers": 3, "workers": "process"}, pytest.param({"num_workers": 2, "workers": "spawn"}, marks=pytest.mark.slow),
       {"rank": 1, "world_size": 2}, {"rank": 0, "world_size": 3, "num_workers": 2, "workers": "fork"}]


def draw(sample, rng):
    return {"random": random.random(), "numpy": np.random.normal(), "more": np.random.rand(), "x": sample["x"]}


def decode(data):
    if len(data) in (3, 7):
        raise ValueError("bad")
    return np.array([random.getrandbits(32), np.random.randint(1 << 30), len(data)])


def draw_torch(sample, rng):
    import torch

    return {"torch": float(torch.rand(1, dtype=torch.float64)), "normal": float(torch.randn(1, dtype=torch.float64))}


@pytest.fixture
def numbers(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(N))
    with leat.open({"x": tmp_path / "x.npy"}) as ws:
        yield ws


def drawn(loader, epochs=1):
    """{(epoch, sample): what it drew}."""
    found = {}
    for epoch in range(epochs):
        for batch in loader:
            for row, i in enumerate(batch.ids.tolist()):
                found[epoch, i] = tuple(float(batch[name][row]) for name in batch.fields)
    loader.close()
    return found


def with_torch():
    pytest.importorskip("torch", reason="torch is not installed")
    return draw_torch


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("which", ["python", "torch"])
def test_each_sample_has_its_own(numbers, how, which):
    transform = draw if which == "python" else with_torch()
    want = drawn(leat.Loader(numbers, 5, seed=7, transform=transform), 2)
    assert len(want) == 2 * N
    for column in zip(*want.values()):
        assert len(set(column)) in (N, 2 * N)  # what is drawn differs in all; x comes in both epochs
    got = drawn(leat.Loader(numbers, 5, seed=7, transform=transform, **how), 2)
    assert len(got) >= 2 * N // 3 and all(want[key] == value for key, value in got.items())
    other = drawn(leat.Loader(numbers, 5, seed=8, transform=transform))
    assert not {value[0] for value in other.values()} & {value[0] for value in want.values()}


@pytest.mark.parametrize("how", [{}, {"num_workers": 3}, {"num_workers": 2, "workers": "fork"}])
def test_the_loops_own_numbers(numbers, how):
    """A loop that draws by itself, as mixup does, sees nothing of the loader; nor do samples see anything of the loop."""
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def both(sample, rng):
        return {**draw(sample, rng), **draw_torch(sample, rng)}

    def mine():
        return random.random(), np.random.normal(), np.random.beta(1, 2), float(torch.rand(1))

    def begin():
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)

    begin()
    want = [mine() for _ in range(N // 5)]
    begin()
    loader = leat.Loader(numbers, 5, transform=both, **how)
    assert [mine() for _ in loader] == want
    loader.close()


@pytest.mark.parametrize("how", [{}, {"num_workers": 2, "workers": "fork"}])
def test_a_resumed_epoch(numbers, how):
    want = drawn(leat.Loader(numbers, 5, transform=draw))
    loader = leat.Loader(numbers, 5, transform=draw, **how)
    for batch, _ in zip(loader, range(4)):
        pass
    again = leat.Loader(numbers, 3, transform=draw, **how)
    again.load_state_dict(loader.state_dict())
    got = drawn(again)
    assert 30 < len(got) <= 40 and all(want[key] == value for key, value in got.items())
    loader.close()


@pytest.mark.parametrize("how", HOW)
def test_decoders_and_bad_samples(folder, how):
    for i in range(9):
        (folder / "b" / f"{i}.jpg").write_bytes(b"x" * i)

    def run(**more):
        loader = leat.Loader(folder, 1, fields={"x": ("data", decode)}, on_error="skip", **more)
        found = {int(batch.ids[0]): batch["x"][0].tolist() for batch in loader}
        loader.close()
        return found

    want = run()
    assert len({x[0] for x in want.values()}) == len(want) == 9
    assert all(want[i] == x for i, x in run(**how).items())


def test_it_is_said(numbers, caplog):
    with caplog.at_level(logging.WARNING, "leat"):
        drawn(leat.Loader(numbers, 5, transform=draw, num_workers=4))
    assert "draws from random, np.random, which it shares with the loop" in caplog.text and "workers='process'" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "leat"):
        drawn(leat.Loader(numbers, 5, transform=lambda sample, rng: {"x": rng.random()}, num_workers=4))
        drawn(leat.Loader(numbers, 5, transform=draw, num_workers=2, workers="fork"))
    assert not caplog.text


LATE = """
    import logging, random, sys
    import numpy as np, leat
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    path, what, workers, first = sys.argv[1:]

    def transform(sample, rng):
        if int(sample["x"]) < int(first):
            return {"torch": 0.0}
        import torch
        return {"torch": float(torch.rand(1, dtype=torch.float64)) if what == "draws" else float(torch.tensor(1.0))}

    def main():
        with leat.open({"x": path}) as ws, leat.Loader(ws, 5, seed=7, shuffle=False, transform=transform, num_workers=2, workers=workers) as loader:
            print("numbers", *(number for batch in loader for number in batch["torch"].tolist()))
            assert workers != "thread" or loader._config.engine.in_step == (what == "draws")
        if workers == "thread":
            import torch
            assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(torch.initial_seed()).get_state())

    main()
"""


def late(numbers, tmp_path, *how):
    """What a program says and draws whose transform is the first to import torch."""
    pytest.importorskip("torch", reason="torch is not installed")
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(LATE), tmp_path / "x.npy", *how], stdout=subprocess.PIPE, text=True, timeout=120)
    assert child.returncode == 0
    said, _, drawn = child.stdout.partition("numbers")
    return said, [float(number) for number in drawn.split()]


def wanted(numbers):
    found = drawn(leat.Loader(numbers, 5, seed=7, shuffle=False, transform=lambda sample, rng: {"torch": draw_torch(sample, rng)["torch"]}))
    return [found[0, i][0] for i in range(N)]


@pytest.mark.long
def test_torch_that_the_first_sample_imports(numbers, tmp_path):
    """To import it is not to draw from it."""
    assert late(numbers, tmp_path, "imports", "thread", "0") == ("", [1.0] * N)
    said, got = late(numbers, tmp_path, "draws", "thread", "0")
    assert "draws from torch, which" in said and got == wanted(numbers)


@pytest.mark.long
def test_torch_that_a_later_sample_imports(numbers, tmp_path):
    """In a worker process, whose other samples it does not touch."""
    said, got = late(numbers, tmp_path, "draws", "fork", "17")
    assert not said and got == [0.0] * 17 + wanted(numbers)[17:]


def test_beside_pictures(tmp_path):
    """Functions after leat.prep."""
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "pets").mkdir()
    for i in range(12):
        image.fromarray(np.full((20, 20, 3), 10 * i, np.uint8)).save(tmp_path / "pets" / f"{i:02}.png")

    def after(sample, rng):
        return {"drawn": np.random.rand(), "mean": sample["data"].mean()}

    def run(**how):
        return drawn(leat.Loader(tmp_path / "pets", 3, transform=[leat.prep.CenterCrop(8, resize=8), after], **how))

    want = run()
    assert len({value[0] for value in want.values()}) == 12
    assert run(num_workers=3) == run(num_workers=2, workers="fork") == want


@pytest.mark.parametrize("bad", [0, 7], ids=["first", "later"])
def test_a_thread_that_is_late(numbers, bad):
    """What it does to the generators when the loop no longer waits for it, the loop does not see."""
    go, hung = threading.Event(), []

    def hang(sample, rng):
        drawn = random.random()
        if int(sample["x"]) == bad and not hung:
            hung.append(threading.current_thread())
            go.wait(30)
        return {"x": sample["x"], "drawn": drawn}

    random.seed(1)
    want = [random.random() for _ in range(4)]
    random.seed(1)
    loader = leat.Loader(numbers, 5, shuffle=False, transform=hang, timeout=2)
    with pytest.raises(leat.TimedOut):
        list(loader)
    got = [random.random(), random.random()]
    go.set()
    hung[0].join(30)
    assert not hung[0].is_alive()
    assert got + [random.random(), random.random()] == want
    assert sum(1 for _ in loader) == N // 5
    loader.close()
