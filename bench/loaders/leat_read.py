#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""leat.Loader over what SOCKET has, or over a path: leat_read.py [serve.py's options] SOCKET URI. Besides serve.py's lines: orders PATH, which writes the
orders of three epochs for driver.c's --orders."""
import operator
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import serve  # noqa: E402

args = serve.arguments()
sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"), os.path.join(args.build, "python")]
import numpy as np  # noqa: E402

import leat  # noqa: E402

SEED = 20


class Arrays:
    def __init__(self):
        socket, uri = args.rest
        self.ws = leat.open(uri, socket=socket)
        self.loader = leat.Loader(self.ws, args.batch, shuffle="full", seed=SEED, rank=args.first, world_size=args.all, prefetch=args.slots - 2)
        self.field = self.ws.fields[0].name

    def epoch(self, number):
        self.loader.set_epoch(number)
        return map(operator.itemgetter(self.field), self.loader)

    def count(self, batch):
        return len(batch)

    def samples(self, batch):
        return batch

    def line(self, line):
        if not line.startswith("orders"):
            return None
        with open(line.split()[1], "wb") as f:
            for epoch in range(3):
                f.write(leat.order(self.ws, SEED, epoch).astype("<u8").tobytes())
        return {"orders": 3}


serve.serve(args, Arrays())
