# SPDX-License-Identifier: Apache-2.0
"""Each sample is trained once: ranks in processes of their own, killed at any moment, and restarted on other worlds.

What is shown. A job trains some epochs in several lives. After each step rank 0 saves the state; at a random moment a rank is killed,
then the others, and the job is started again from the last saved state, with another number of ranks, batch size and workers. A step counts
when the state that was saved last lies behind it: what was trained beyond is trained again, as the weights of it are lost too. Then of
each epoch every position counts once (with drop_last=True: each but the last, short step's), and the samples in them, and the random
numbers of their augmentation, are those of a single process that was never killed.
"""

import json
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import leat
from lib_host import wait_for
from lib_python import daemons

N = 503  # a prime: no batch size divides it
BAD = (7, 100, 101, 390)
WORLDS = (1, 3, 2)
JOB = pathlib.Path(__file__).parent / "rank_job.py"


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def descendants(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += [int(child), *descendants(int(child))]
    except OSError:
        pass
    return found


class Job:
    def __init__(self, tmp_path, path, *, transform, bad=(), epochs=3, **loader):
        self.folder, self.path, self.transform, self.bad, self.epochs, self.loader = tmp_path, path, transform, bad, epochs, loader
        self.state_path = tmp_path / "state.json"
        self.trained = []  # of each life: its steps, and the state saved last
        self.worlds = []

    def state(self):
        state = json.loads(self.state_path.read_text()) if self.state_path.exists() else {"epoch": 0, "samples": 0}
        return state["epoch"], state["samples"]

    def life(self, world, limit, when, rng, kill="rank", **loader):
        """Until `limit` steps are done and a little more, or the end of the job. True: it ended by itself."""
        log = self.folder / f"log{len(self.trained)}"
        config = {"set": str(self.path), "log": str(log), "state": str(self.state_path), "epochs": self.epochs,
                  "transform": self.transform, "bad": list(self.bad), "loader": {**self.loader, **loader}}
        errors = open(self.folder / "errors", "w+")
        ranks = [subprocess.Popen([sys.executable, str(JOB), json.dumps(config)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=errors, env={**os.environ, "RANK": str(r), "WORLD_SIZE": str(world)}, text=True, bufsize=1)
                 for r in range(world)]
        ended, workers = False, []
        try:
            for step in range(limit):
                said = {self.hear(rank) for rank in ranks}
                if said == {"done\n"}:
                    ended = True
                    return True
                if said != {"trained\n"}:
                    errors.seek(0)
                    assert kill == "daemon" and said <= {"trained\n", ""}, (said, errors.read())
                    break
                if step == limit - 1 and when == "before saving":
                    break
                for rank in ranks:
                    rank.stdin.write("go\n")
                if kill == "daemon" and step == limit // 2:
                    for pid in daemons(os.environ["XDG_RUNTIME_DIR"]):
                        os.kill(pid, signal.SIGKILL)
            if kill == "daemon":
                return False
            workers = [pid for rank in ranks for pid in descendants(rank.pid)]
            if when == "any":
                time.sleep(rng.random() * 0.01)
            rng.choice(ranks).kill()
            time.sleep(rng.random() * 0.01)
            return False
        finally:
            for rank in ranks:
                if not ended and kill != "daemon":
                    rank.kill()
                rank.stdin.close()
                code = rank.wait(60)
                rank.stdout.close()
                assert code == (0 if ended else code if kill == "daemon" else -signal.SIGKILL)
            errors.close()
            self.trained.append((self.state(), [json.loads(line) for r in range(world) for line in self.lines(log, r)]))
            self.worlds.append((world, config["loader"]["batch_size"]))
            served = daemons(os.environ["XDG_RUNTIME_DIR"])
            wait_for(lambda: not any(alive(pid) for pid in workers if pid not in served), message="workers outlive their rank")

    @staticmethod
    def hear(rank):
        ready, _, _ = select.select([rank.stdout], [], [], 60)
        assert ready, "a rank says nothing"
        return rank.stdout.readline()

    @staticmethod
    def lines(log, rank):
        try:
            text = pathlib.Path(f"{log}.{rank}").read_text()
        except FileNotFoundError:
            return []
        return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def check(self, want):
        """want: the samples and random numbers of each epoch by position, of the one process that was never killed."""
        count = np.zeros((self.epochs, N), int)  # by position
        bitmap = np.zeros((self.epochs, N), int)  # by sample
        ends, before = [0] * self.epochs, (0, 0)
        for saved, steps in self.trained:
            for epoch, position, ids, noise in steps:
                assert (epoch, position) >= before, "a step that counted was trained again"
                if (epoch, position) >= saved:
                    continue  # lost with the weights
                count[epoch, position : position + len(ids)] += 1
                np.add.at(bitmap[epoch], ids, 1)
                assert (ids, noise) == (want[epoch][0][position : position + len(ids)],
                                        want[epoch][1][position : position + len(ids)])
                ends[epoch] = max(ends[epoch], position + len(ids) if ids else 0)
            before = saved
        assert before == (self.epochs, 0)
        for epoch in range(self.epochs):
            assert (count[epoch, : ends[epoch]] == 1).all() and not count[epoch, ends[epoch] :].any()
            assert ends[epoch] == N if not self.loader["drop_last"] else N - ends[epoch] < max(w * b for w, b in self.worlds)
            assert (bitmap[epoch] == np.bincount(want[epoch][0][: ends[epoch]], minlength=N)).all()
            if not self.bad and not self.loader["drop_last"]:
                assert (bitmap[epoch] == 1).all()


@pytest.fixture
def path(tmp_path):
    np.save(tmp_path / "x.npy", np.repeat(np.arange(N, dtype="<i8"), 8).reshape(N, 8))
    return tmp_path / "x.npy"


def alone(path, epochs, transform, bad, **loader):
    def augment(sample, rng):
        if int(sample["x"][0]) in bad:
            raise ValueError
        return {"x": sample["x"], "noise": rng.random(dtype=np.float32)}

    with leat.open({"x": path}) as ws:
        one = leat.Loader(ws, 1, rank=0, world_size=1, transform=augment if transform else None, **{**loader, "drop_last": False})
        found = []
        for _ in range(epochs):
            ids, noise = [], []
            for batch in one:
                ids += batch.ids.tolist()
                noise += batch["noise"].tolist() if transform else []
            found.append((ids, noise))
        one.close()
        return found


def run(tmp_path, path, seed, *, shuffle, how, drop_last, bad, kill="rank"):
    rng = random.Random(seed)
    fixed = {"shuffle": shuffle, "seed": seed, "drop_last": drop_last, "on_error": "skip" if bad else "raise"}
    transform = how is not None
    job = Job(tmp_path, path, transform=transform, bad=bad, **fixed)
    for life in range(60):
        workers = {"workers": how, "num_workers": rng.randint(1, 2)} if how else {}
        limit = rng.randint(4, 30) if life < 8 else 10**6
        kills = "daemon" if kill == "daemon" and life % 2 else "rank"
        if job.life(WORLDS[life % 3], limit, rng.choice(["any", "at once", "before saving"]), rng, kills,
                    batch_size=rng.choice([4, 7, 10]), prefetch=rng.randint(1, 4), **workers):
            break
    assert life >= 3  # else nothing was shown
    job.check(alone(path, 3, transform, bad, **fixed))


@pytest.mark.parametrize("shuffle,how,drop_last,bad,kill", [
    ("full", None, False, (), "rank"),
    ("block:16", "fork", False, BAD, "rank"),
    ("full", "thread", True, BAD, "rank"),
    ("full", "fork", False, BAD, "daemon"),
])
def test_each_sample_once(tmp_path, path, shuffle, how, drop_last, bad, kill):
    run(tmp_path, path, 1, shuffle=shuffle, how=how, drop_last=drop_last, bad=bad, kill=kill)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 15))
def test_each_sample_once_at_other_moments(tmp_path, path, seed):
    run(tmp_path, path, seed, shuffle="full", how="thread", drop_last=seed % 2 == 0, bad=BAD, kill=["rank", "daemon"][seed % 3 == 0])


@pytest.mark.slow
@pytest.mark.parametrize("kill", ["rank", "daemon"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("how", [None, "thread", "fork", "spawn", "forkserver"])
@pytest.mark.parametrize("shuffle", ["full", "block:16"])
def test_each_sample_once_however(tmp_path, path, shuffle, how, drop_last, kill):
    bad = BAD if how else ()
    run(tmp_path, path, 2, shuffle=shuffle, how=how, drop_last=drop_last, bad=bad, kill=kill)
