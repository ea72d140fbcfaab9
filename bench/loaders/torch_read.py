#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch's DataLoader over a .npy that is mapped: torch_read.py [serve.py's options] --workers N --orders FILE HOW. HOW:
items    a Dataset whose item is torch.from_numpy(array[i]); the default collate stacks them
gather   a Dataset asked for whole batches (batch_size=None, a sampler of lists): torch.from_numpy(array[ids]), one gather, no collate
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np  # noqa: E402
import serve  # noqa: E402
import torch  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

args = serve.arguments()
HOW = args.rest[0]


class Mapped(Dataset):
    def __init__(self):
        self.array = np.load(args.file, mmap_mode="c")  # from_numpy warns of what it cannot write to

    def __len__(self):
        return len(self.array)

    def __getitem__(self, which):
        return torch.from_numpy(self.array[which])


class Given:
    """The order that Leat goes through, as a sampler: of this rank's samples, or of its batches."""

    def __init__(self):
        ids = np.fromfile(args.orders, "<u8").reshape(3, args.samples).astype(np.int64)
        steps = args.samples // (args.batch * args.all)
        cut = ids[:, :steps * args.batch * args.all].reshape(3, steps, args.all, args.batch)[:, :, args.first]
        self.epochs, self.number = [list(one) if HOW == "gather" else one.reshape(-1).tolist() for one in cut], 0

    def __len__(self):
        return len(self.epochs[0])

    def __iter__(self):
        return iter(self.epochs[self.number])


class Torch:
    def __init__(self):
        self.given = Given()
        how = {"batch_size": None} if HOW == "gather" else {"batch_size": args.batch}
        self.loader = DataLoader(Mapped(), sampler=self.given, num_workers=args.workers, persistent_workers=args.workers > 0, **how)

    def epoch(self, number):
        self.given.number = number
        return self.loader

    def samples(self, batch):
        return batch.numpy()


torch.set_num_threads(1)
serve.serve(args, Torch())
