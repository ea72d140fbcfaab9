# SPDX-License-Identifier: Apache-2.0
"""One rank of a training job, as test_loader_exact.py starts them: RANK and WORLD_SIZE, a log of what was trained, a state saved by
rank 0 behind each step. What torchrun and an all-reduce are to a real job, lines on standard input and output are here.

    python rank_job.py CONFIG       {"set", "log", "state", "epochs", "bad": [...], "loader": {arguments of leat.Loader}}
"""

import json
import os
import sys

import numpy as np

import leat

CONFIG = json.loads(sys.argv[1])
BAD = frozenset(CONFIG["bad"])


def augment(sample, rng):
    index = int(sample["x"][0])
    if index in BAD:
        raise ValueError(f"sample {index} is bad")
    return {"x": sample["x"], "noise": rng.random(dtype=np.float32)}


def save(state, path):
    """Whole or not at all, whenever this process is killed."""
    with open(path + ".new", "w") as file:
        json.dump(state, file)
    os.replace(path + ".new", path)


def main():
    ws = leat.open({"x": CONFIG["set"]})
    loader = leat.Loader(ws, transform=augment if CONFIG["transform"] else None, **CONFIG["loader"])
    rank = int(os.environ.get("RANK", 0))
    assert (loader.rank, loader.world_size) == (rank, int(os.environ["WORLD_SIZE"]))
    if os.path.exists(CONFIG["state"]):
        with open(CONFIG["state"]) as file:
            loader.load_state_dict(json.load(file))
    log = os.open(f"{CONFIG['log']}.{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while loader.epoch < CONFIG["epochs"]:
        epoch = loader.epoch
        for batch in loader:
            ids = batch.ids[batch.valid].tolist()
            assert batch["x"][:, 0].tolist() == batch.ids.tolist()
            noise = batch["noise"][: len(ids)].tolist() if CONFIG["transform"] else []
            os.write(log, json.dumps([epoch, batch.position, ids, noise]).encode() + b"\n")
            print("trained", flush=True)  # the all-reduce
            if sys.stdin.readline() != "go\n":
                return
            if rank == 0:
                save(loader.state_dict(), CONFIG["state"])
        if rank == 0:  # a restart may find fewer samples left than a step takes
            save(loader.state_dict(), CONFIG["state"])
    print("done", flush=True)
    loader.close()


if __name__ == "__main__":
    main()
