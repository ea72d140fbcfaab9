#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small language model on windows of one long array of tokens.

    python3 examples/tokens.py /tmp/tokens.npy --make docs src       # the bytes of the text files below these, as tokens
    python3 examples/tokens.py /tmp/tokens.npy

TOKENS.npy is an array of whole numbers, of any length: 16 bits for a vocabulary of up to 65,536.
"""

import argparse
import math
import pathlib
import sys

import numpy as np
import torch
from torch import nn

import leat

TEXT = (".md", ".txt", ".c", ".h", ".py", ".rst", ".tex")


def make(target, folders):
    files = sorted(path for folder in folders for path in pathlib.Path(folder).rglob("*") if path.suffix in TEXT and path.is_file())
    tokens = np.frombuffer(b"\0".join(path.read_bytes() for path in files), np.uint8).astype(np.uint16)
    np.save(target, tokens)
    print(f"{len(tokens):,} tokens of {len(files)} files")


class Model(nn.Module):
    def __init__(self, vocabulary, width=192):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.recur = nn.GRU(width, width, batch_first=True)
        self.guess = nn.Linear(width, vocabulary)

    def forward(self, x):
        return self.guess(self.recur(self.embed(x))[0])


def main():
    options = argparse.ArgumentParser(description="trains a small language model on windows of one long array of tokens")
    options.add_argument("tokens")
    options.add_argument("--make", nargs="+", metavar="FOLDER", help="write TOKENS out of the text files in these, and end")
    options.add_argument("--length", type=int, default=128, help="tokens that the model sees at once (default: %(default)s)")
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--epochs", type=int, default=1)
    options.add_argument("--steps", type=int, default=math.inf, help="end after so many")
    args = options.parse_args()
    if args.make:
        return make(args.tokens, args.make)

    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        print("no GPU here: training on the CPU", file=sys.stderr)
    torch.manual_seed(1)

    # Each window is one token longer than what the model sees, and begins with the last token of the one before: all are predicted once.
    text = leat.open(args.tokens, window=args.length + 1, stride=args.length)
    loader = leat.Loader(text, args.batch, seed=1)
    net = Model(1 + int(np.load(args.tokens, mmap_mode="r").max())).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    step = 0
    for _ in range(args.epochs):
        for batch in loader:
            # One array over the ring's slot, without a copy. int64 is what an embedding wants: this is the copy, to the device if there is one.
            window = torch.as_tensor(batch["data"].astype(np.int64)).to(device)
            loss = nn.functional.cross_entropy(net(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0 or step == 1:
                print(f"step {step} of {len(loader)} an epoch: {loss.item() / math.log(2):.2f} bits a token", flush=True)
            if step >= args.steps:
                return None
    return None


if __name__ == "__main__":
    main()
