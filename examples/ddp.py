#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a classifier of JPEGs on several ranks. Started again, it continues where it was, on any number of ranks.

    python3 examples/demo/tiles.py /tmp/tiles          # makes some data: or take your own
    torchrun --nproc_per_node 2 examples/ddp.py /tmp/tiles/train --checkpoint /tmp/run.pt

Debian 12's own torchrun fails (`'NoneType' object has no attribute 'get'`) unless it is given `--redirects 1 --tee 1` as well.

A scheduler that wants the nodes back sends SIGTERM: all ranks stop behind the same step, and it is saved. kill -9, a crash or a power cut
lose what came after the last checkpoint. Started again, the next sample is the one after those that the checkpoint has seen: none is
left out, none comes twice. Shards hold jpg and cls, as WebDataset writes them.
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import leat
import leat.prep


def model(classes):
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, stride=2), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64 * 16, classes))


def main():
    options = argparse.ArgumentParser(description="trains a classifier of JPEGs on several ranks")
    options.add_argument("train")
    options.add_argument("--checkpoint", required=True)
    options.add_argument("--every", type=int, default=20, help="steps between checkpoints (default: %(default)s)")
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--batch", type=int, default=32, help="samples a rank and step (default: %(default)s)")
    options.add_argument("--classes", type=int, default=18)
    args = options.parse_args()

    stopping = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu"
    if gpu:
        torch.cuda.set_device(device)
    elif dist.get_rank() == 0:
        print("no GPU here: training on the CPU", flush=True)
    torch.manual_seed(1)

    # Rank and world size are torch.distributed's. One process of the host reads the data from disk, all use its pool.
    loader = leat.Loader(args.train, args.batch, seed=1, fields={"image": "jpg", "label": "cls"}, num_workers=2, device=device,
                         transform=leat.prep.RandomResizedCrop(48, scale=(0.4, 1.0)))
    net = DistributedDataParallel(model(args.classes).to(device))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)

    if os.path.exists(args.checkpoint):  # all ranks read the same file: the loader's state has nothing of a rank in it
        saved = torch.load(args.checkpoint, map_location=device)
        net.module.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])

    def save():
        if dist.get_rank() == 0:
            torch.save({"net": net.module.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()},
                       args.checkpoint + ".new")
            os.replace(args.checkpoint + ".new", args.checkpoint)  # there is always a whole one

    if dist.get_rank() == 0:
        state = loader.state_dict()
        print(f"begins in epoch {state['epoch'] + 1} at sample {state['samples']} of {state['length']}, {dist.get_world_size()} ranks", flush=True)
    while loader.epoch < args.epochs:
        total = torch.zeros(2, device=device)
        for step, batch in enumerate(loader, 1):  # the same number of steps on every rank
            tensors = batch.torch()  # over the batch's own memory, on this rank's GPU if there is one
            loss = nn.functional.cross_entropy(net(tensors["image"]), tensors["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.stack([loss.detach(), torch.ones_like(loss)])

            stop = torch.tensor(float(bool(stopping)), device=device)
            dist.all_reduce(stop)  # SIGTERM does not reach all ranks in the same step: they agree on one
            if stop or step % args.every == 0:
                save()
            if stop:
                if dist.get_rank() == 0:
                    print(f"SIGTERM: saved in epoch {loader.epoch + 1} behind step {step}", flush=True)
                dist.barrier()
                return
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {loader.epoch}: loss {total[0] / total[1]:.3f}", flush=True)
    save()


if __name__ == "__main__":
    main()
