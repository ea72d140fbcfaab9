#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a classifier of JPEGs on one GPU, or on the CPU where there is none.

    python3 examples/demo/tiles.py /tmp/tiles          # makes some data: or take your own
    python3 examples/single_gpu.py /tmp/tiles/train --test /tmp/tiles/test

A path is a folder with a folder of .jpg files for each class, or tar shards with jpg and cls (as WebDataset writes them).
"""

import argparse
import sys

import torch
from torch import nn

import leat
import leat.prep


def model(classes):
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, stride=2), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64 * 16, classes))


def main():
    options = argparse.ArgumentParser(description="trains a classifier of JPEGs on one GPU, or on the CPU")
    options.add_argument("train")
    options.add_argument("--test")
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--size", type=int, default=48, help="of the crops (default: %(default)s)")
    options.add_argument("--workers", type=int, default=2, help="threads that decode (default: %(default)s)")
    args = options.parse_args()

    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        print("no GPU here: training on the CPU", file=sys.stderr)
    torch.manual_seed(1)

    train = leat.open(args.train)  # read once, in the background, into a pool that other processes of this job share
    label = "label" if train.classes else "cls"  # of a folder: its name's number; of a shard: the number in x.cls
    # Decoded, cropped at random, flipped and normalised in C, in threads, straight into the batch's own memory.
    crop = leat.prep.RandomResizedCrop(args.size, scale=(0.4, 1.0))
    loader = leat.Loader(train, args.batch, seed=1, fields={"image": "jpg", "label": label}, transform=crop,
                         num_workers=args.workers, device=device)
    classes = len(train.classes) or 1 + max(int(sample["cls"]) for sample in (train[i] for i in range(len(train))))
    net = model(classes).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)

    for epoch in range(args.epochs):
        total = 0.0
        for batch in loader:  # each pass is the next epoch: another order, other crops
            tensors = batch.torch()  # over the batch's memory, on the GPU if the loader delivers there: nothing is copied
            images, labels = tensors["image"], tensors["label"]
            loss = nn.functional.cross_entropy(net(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / len(loader):.3f}", flush=True)
    stats = loader.stats()
    print(f"{stats['verdict']}: waited {stats['wait_s']:.2f} s for data in {stats['wait_s'] + stats['consume_s']:.2f} s. {stats['advice']}")

    if args.test:
        # Every sample once: the last batch is filled up, and batch.valid marks the padding.
        test = leat.Loader(args.test, args.batch, shuffle=False, drop_last=False, fields={"image": "jpg", "label": label},
                           transform=leat.prep.CenterCrop(args.size, resize=args.size), num_workers=args.workers, device=device)
        right = tested = 0
        net.eval()
        with torch.no_grad():
            for batch in test:
                tensors = batch.torch()
                hit = (net(tensors["image"]).argmax(1) == tensors["label"]).cpu().numpy() & batch.valid
                right, tested = right + int(hit.sum()), tested + int(batch.valid.sum())
        print(f"held out: {right} of {tested} right ({right / tested:.1%})")


if __name__ == "__main__":
    main()
