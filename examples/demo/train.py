# SPDX-License-Identifier: Apache-2.0
"""One rank of a small training job: a classifier of digits that reads its batches through Leat.

    RANK=0 WORLD_SIZE=2 python3 train.py FOLDER RENDEZVOUS_FILE &
    RANK=1 WORLD_SIZE=2 python3 train.py FOLDER RENDEZVOUS_FILE

Rank 0 prints a JSON object a line: one for each epoch, and the last with the held-out accuracy.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import leat

EPOCHS, LEAST_STEPS, BATCH_SIZE, SEED = 6, 240, 64, 1


def model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),  # 28x28 -> 12x12
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2),  # -> 4x4
        nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10))


def tensors(batch):
    """float() and long() copy, so that the batch's slot can go back to Leat's ring at once."""
    with batch:
        images = torch.from_numpy(batch["image"]).float().div(255).unsqueeze(1)
        return images, torch.from_numpy(batch["label"]).long()


def main():
    folder, rendezvous = sys.argv[1:3]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(SEED)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world_size))
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)

    # Both ranks open the same dataset; the daemon that the first one starts reads it from disk once.
    train, test = (leat.open({"image": f"{folder}/{part}-images.npy", "label": f"{folder}/{part}-labels.npy"})
                   for part in ("train", "test"))
    net = DistributedDataParallel(model())
    optimizer = torch.optim.Adam(net.parameters())
    loss_of = nn.CrossEntropyLoss()
    steps = len(train) // (BATCH_SIZE * world_size)
    epochs = max(EPOCHS, LEAST_STEPS // steps)  # a small dataset is gone through more often
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=epochs * steps)

    for epoch in range(epochs):
        start, waited, losses, seen = time.monotonic(), 0.0, 0.0, 0
        batches = leat.batches(train, BATCH_SIZE, seed=SEED, epoch=epoch, rank=rank, world_size=world_size)
        for step in range(len(batches)):
            asked = time.monotonic()
            batch = next(batches)
            waited += time.monotonic() - asked
            images, labels = tensors(batch)
            loss = loss_of(net(images), labels)
            optimizer.zero_grad()
            loss.backward()  # averages the gradients of the ranks
            optimizer.step()
            schedule.step()
            losses, seen = losses + loss.item(), seen + len(labels)
        if rank == 0:
            seconds = time.monotonic() - start
            print(json.dumps({"epoch": epoch + 1, "of": epochs, "loss": losses / len(batches), "samples": seen * world_size,
                              "seconds": seconds, "waited": waited}), flush=True)

    # Each rank tests its share of what was held out, to the last sample.
    net.eval()
    counts = torch.zeros(2, dtype=torch.int64)
    with torch.no_grad():
        for batch in leat.batches(test, 250, shuffle=False, drop_last=False, rank=rank, world_size=world_size):
            images, labels = tensors(batch)
            counts += torch.tensor([int((net.module(images).argmax(1) == labels).sum()), len(labels)])
    dist.all_reduce(counts)
    if rank == 0:
        print(json.dumps({"right": int(counts[0]), "tested": int(counts[1]), "held_out": len(test)}), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
