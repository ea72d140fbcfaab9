# SPDX-License-Identifier: Apache-2.0
"""The order of an epoch for others than `leat.Loader`: a sampler for torch's DataLoader, the check of a state, replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from . import _leat, _plan, _ranks
from ._batch import Array, parse_shuffle
from ._errors import Stale
from ._set import WorkingSet

STATE_VERSION = 1


def check_state(state: Mapping[str, Any]) -> None:
    """ValueError unless it is a state of a loader that this release reads."""
    if not isinstance(state, Mapping) or state.get("kind") != "leat.Loader":
        raise ValueError("this is not the state of a leat.Loader")
    if not isinstance(state.get("version"), int) or not 1 <= state["version"] <= STATE_VERSION:
        raise ValueError(f"this state has version {state.get('version')}: this release reads up to {STATE_VERSION}")
    for name in ("seed", "epoch", "samples", "global_batch", "length"):
        if not isinstance(state.get(name), int) or state[name] < 0:
            raise ValueError(f"this state has {name}={state.get(name)!r}")
    for name in ("fingerprint", "shuffle", "skip_ranges", "sampler", "mixture"):
        if name not in state:
            raise ValueError(f"this state has no {name!r}")


class Sampler:
    """The order of a rank as a sampler for torch.utils.data.DataLoader(ws, batch_size, sampler=...): the same samples in the same
    batches as `leat.Loader` gives.

    Its state counts the samples of all ranks. DataLoader asks a sampler ahead of what the loop has received: give `state_dict` the number of
    batches received in this epoch. torchdata's StatefulDataLoader keeps count by itself.

    >>> sampler = leat.Sampler(ws, 2, seed=1, rank=0, world_size=1)
    >>> list(sampler) == [i for batch in leat.Loader(ws, 2, seed=1) for i in batch.ids.tolist()]
    True
    """

    def __init__(self, ws: WorkingSet | int, batch_size: int = 1, *, shuffle: str | bool = "full", seed: int = 0,
                 rank: int | None = None, world_size: int | None = None, drop_last: bool = True, replication: int = 1) -> None:
        rank, world_size = _ranks.resolve(rank, world_size)
        self._group, self._groups = _ranks.groups(rank, world_size, replication)
        block, flags = parse_shuffle("full" if shuffle is True else shuffle)
        if flags:
            raise ValueError("shuffle='auto' depends on the pool: name the kind ('full', 'block:N', False)")
        self._shuffle, self._block = "full" if shuffle is True else shuffle, block
        self._n = ws if isinstance(ws, int) else len(ws)
        self._fingerprint = None if isinstance(ws, int) else ws.fingerprint
        self.batch_size, self.drop_last = batch_size, drop_last
        self._seed, self._epoch, self._start = seed % 2**64, 0, 0
        self._begun, self._given = 0, 0

    def __len__(self) -> int:
        return _plan.steps(self._n, self._start, self.batch_size * self._groups, self.drop_last) * self.batch_size

    def set_epoch(self, epoch: int) -> None:
        """As of `leat.Loader`."""
        if epoch != self._epoch:
            self._epoch, self._start = epoch, 0

    def __iter__(self) -> Iterator[int]:
        epoch, first, self._start = self._epoch, self._start, 0
        self._begun, self._given = first, 0
        plan = _plan.Plan(_leat.Order(self._n, self._seed, epoch, self._block, self._fingerprint), None, self._n)
        whole = self.batch_size * self._groups
        for step in range(_plan.steps(self._n, first, whole, self.drop_last)):
            for index in plan.ids(first + step * whole + self._group * self.batch_size, self.batch_size).tolist():
                self._given += 1
                yield index
        self._epoch, self._begun, self._given = epoch + 1, 0, 0

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Where it is: behind `batches` batches of this pass, or behind what was asked of it."""
        steps = self._given // self.batch_size if batches is None else batches
        samples = min(self._begun + steps * self.batch_size * self._groups, self._n)
        return {"version": STATE_VERSION, "kind": "leat.Sampler", "seed": self._seed, "epoch": self._epoch, "samples": samples,
                "length": self._n, "fingerprint": self._fingerprint, "shuffle": self._shuffle}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on there, also with another batch size or number of ranks."""
        if state.get("kind") != "leat.Sampler" or state.get("version") != STATE_VERSION:
            raise ValueError("this is not the state of a leat.Sampler of this release")
        if (state["length"], state["fingerprint"], state["shuffle"]) != (self._n, self._fingerprint, self._shuffle):
            raise Stale(f"this state is of {state['length']} samples with fingerprint {state['fingerprint']}, "
                        f"shuffle={state['shuffle']!r}", code="stale")
        self._seed, self._epoch, self._start = state["seed"], state["epoch"], state["samples"]


def replay(state: Mapping[str, Any], step: int, rank: int = 0, world_size: int | None = None,
           batch_size: int | None = None, epoch: int | None = None) -> Array:
    """Which samples stood in step `step`, counted from the start of the epoch of a loader's state (or of `epoch`), for one rank.
    Padding is left out. With neither world_size nor batch_size, the whole step of all ranks.

    >>> loader = leat.Loader(ws, 2, seed=3)
    >>> seen = [batch.ids.tolist() for _, batch in zip(range(2), loader)]
    >>> replay(loader.state_dict(), 1, 0, world_size=1).tolist() == seen[1]
    True
    """
    check_state(state)
    if state["sampler"] is not None:
        raise ValueError("the order of this state came from a sampler: only the sampler knows it")
    whole = state["global_batch"]
    if batch_size is None:
        batch_size = whole // (world_size or 1)
    whole = batch_size * (world_size or 1)
    block, _ = parse_shuffle(state["shuffle"])
    n = state["length"]
    order = _leat.Order(n, state["seed"], state["epoch"] if epoch is None else epoch, block, state["fingerprint"])
    plan = _plan.Plan(order, None, n, _plan.parse_ranges(state["skip_ranges"]))
    first = step * whole + rank * batch_size
    if step < 0 or not 0 <= rank < (world_size or 1) or step * whole >= plan.length:
        raise ValueError(f"step {step}, rank {rank}: an epoch has {-(-plan.length // whole)} steps of {world_size or 1} ranks")
    return plan.ids(first, max(0, min(batch_size, plan.length - first)))
