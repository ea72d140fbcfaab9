# SPDX-License-Identifier: Apache-2.0
"""One rank of a training job that may be killed at any moment: JPEGs, cropped at random, through leat.Loader; saved every few steps.

    RANK=0 WORLD_SIZE=2 python3 images.py TILES WORK RUN &        # TILES/{train,test}/*.tar, WORK: for checkpoint and records
    RANK=1 WORLD_SIZE=2 python3 images.py TILES WORK RUN

A run that finds WORK/checkpoint.pt continues from there, on any number of ranks. Rank 0 prints a JSON object a line. What each rank
received is written to WORK/RUN.RANK.jsonl, step by step: the demo proves by it that nothing was left out and nothing came twice.
"""

import json
import os
import pathlib
import sys
import time
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import leat
import leat.prep

EPOCHS, BATCH_SIZE, SEED, SAVE_EVERY, SIZE, MAX_LR = 24, 32, 7, 5, 48, 4e-3
FIELDS = {"image": "jpg", "label": "cls"}


def train_loader(path, batch_size=BATCH_SIZE, **options):
    """The training data. drop_last=False: the last step of an epoch is filled up, and batch.valid marks the padding."""
    crop = leat.prep.RandomResizedCrop(SIZE, scale=(0.4, 1.0))
    return leat.Loader(path, batch_size, seed=SEED, fields=FIELDS, transform=crop, drop_last=False, **options)


def test_loader(path, **options):
    crop = leat.prep.CenterCrop(SIZE, resize=SIZE)
    return leat.Loader(path, BATCH_SIZE, shuffle=False, fields=FIELDS, transform=crop, drop_last=False, **options)


def model(classes):
    def block(before, after):
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU(), block(16, 32), block(32, 64), block(64, 64),
                         nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 9, classes))


def record(file, epoch, batch):
    """One line of what came: numbers of samples, and a checksum of each one's pixels."""
    images = batch["image"]
    pixels = [zlib.crc32(image) for image, valid in zip(images, batch.valid) if valid]
    file.write(json.dumps({"epoch": epoch, "position": batch.position, "ids": batch.ids[batch.valid].tolist(), "pixels": pixels}) + "\n")


def main():
    tiles, work, run = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{work}/{run}.rendezvous", rank=rank, world_size=world_size)

    started = time.monotonic()
    loader, held_out = train_loader(f"{tiles}/train"), test_loader(f"{tiles}/test")  # ranks as torch.distributed says
    net = DistributedDataParallel(model(classes=18))
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=1e-2)
    loss_of = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)

    checkpoint = work / "checkpoint.pt"
    if checkpoint.is_file():
        saved = torch.load(checkpoint)
        net.module.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # the next sample, whatever the number of ranks was

    state = loader.state_dict()
    received = open(work / f"{run}.{rank}.jsonl", "w", buffering=1)  # a line is with the kernel before the next step begins
    first_batch = None
    while loader.epoch < EPOCHS:
        epoch, start, losses, steps = loader.epoch, time.monotonic(), 0.0, 0
        for batch in loader:
            first_batch = first_batch or time.monotonic() - started
            record(received, epoch, batch)
            tensors, valid = batch.torch(), torch.tensor(batch.valid, dtype=torch.float32)
            # By samples, not by steps: the same on another number of ranks. Up for a tenth of the way, then down.
            share = (epoch + state["samples"] / state["length"]) / EPOCHS
            for group in optimizer.param_groups:
                group["lr"] = MAX_LR * max(0.01, min(share * 10, (1 - share) / 0.9))
            loss = (loss_of(net(tensors["image"]), tensors["label"]) * valid).sum() / valid.sum().clamp(min=1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses, steps = losses + loss.item(), steps + 1

            state = loader.state_dict()  # counts what this loop received, and nothing that is read ahead
            if rank == 0 and steps % SAVE_EVERY == 0:
                torch.save({"net": net.module.state_dict(), "optimizer": optimizer.state_dict(), "loader": state}, work / "checkpoint.new")
                os.replace(work / "checkpoint.new", checkpoint)  # a kill leaves the old one or the new one
                print(json.dumps({"saved": state["samples"], "in": state["epoch"], "step": steps}), flush=True)
        if rank == 0:
            stats = loader.stats()
            print(json.dumps({"epoch": epoch + 1, "of": EPOCHS, "loss": losses / steps, "seconds": time.monotonic() - start,
                              "samples": state["length"], "first_batch": first_batch, "verdict": stats["verdict"],
                              "waited": stats["wait_s"] / (stats["wait_s"] + stats["consume_s"])}), flush=True)

    net.eval()
    counts = torch.zeros(2, dtype=torch.int64)
    with torch.no_grad():
        for batch in held_out:
            tensors, valid = batch.torch(), torch.tensor(batch.valid)
            right = (net.module(tensors["image"]).argmax(1) == tensors["label"]) & valid
            counts += torch.tensor([int(right.sum()), int(valid.sum())])
    dist.all_reduce(counts)
    if rank == 0:
        print(json.dumps({"right": int(counts[0]), "tested": int(counts[1]), "held_out": len(held_out.ws)}), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
