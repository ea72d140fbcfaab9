# SPDX-License-Identifier: Apache-2.0
"""Were all samples delivered, once each, with the right pixels? From what the ranks of a job wrote down when they received them.

A job that was killed has two runs: the first up to its last checkpoint, and the second from there. What the first received behind the
checkpoint left no trace in the model, and comes again in the second.
"""

import collections
import json
import zlib


class Wrong(SystemExit):
    """Ends the demo."""


class Received:
    """What the ranks of a run received: (epoch, position of the batch, number of a sample, checksum of its pixels)."""

    def __init__(self, work, run, ranks):
        self.samples = []
        for rank in range(ranks):
            lines = (work / f"{run}.{rank}.jsonl").read_text().splitlines(keepends=True)
            for line in lines:
                if not line.endswith("\n"):  # a kill in the middle of writing: never of a step that was saved
                    continue
                step = json.loads(line)
                self.samples += [(step["epoch"], step["position"], i, pixels) for i, pixels in zip(step["ids"], step["pixels"])]

    def up_to(self, state):
        return [sample for sample in self.samples if sample[:2] < (state["epoch"], state["samples"])]

    def behind(self, state):
        return [sample for sample in self.samples if sample[:2] >= (state["epoch"], state["samples"])]


def once(first, second, state, samples, epochs):
    """Every sample of every epoch in one of the two runs, and in one only. Returns {(epoch, number): checksum}."""
    together = first.up_to(state) + second.samples
    count = collections.Counter((epoch, i) for epoch, _, i, _ in together)
    wanted = {(epoch, i) for epoch in range(epochs) for i in range(samples)}
    lost, twice, strange = wanted - count.keys(), [one for one, n in count.items() if n > 1], count.keys() - wanted
    if lost or twice or strange:
        raise Wrong(f"demo: of {len(wanted)} samples {len(lost)} did not come, {len(twice)} came more than once, {len(strange)} should not have: "
                    f"(epoch, sample) {sorted([*lost, *twice, *strange])[:4]}")
    return {(epoch, i): pixels for epoch, _, i, pixels in together}


def same_pixels(what, pixels, samples):
    """`samples`, [(epoch, number, checksum)], are as `pixels`, {(epoch, number): checksum}, has them."""
    differ = [(epoch, i) for epoch, i, checksum in samples if pixels[epoch, i] != checksum]
    if differ:
        raise Wrong(f"demo: {what}: {len(differ)} of {len(samples)} crops differ: (epoch, sample) {differ[:4]}")


def unbroken(loader, epochs):
    """The samples of a loader that is never killed: [(epoch, number, checksum)]."""
    return [(epoch, int(i), zlib.crc32(image)) for epoch in range(epochs) for batch in loader
            for image, i, valid in zip(batch["image"], batch.ids, batch.valid) if valid]
