# SPDX-License-Identifier: Apache-2.0
"""The order of an epoch for others than `leat.Loader`: a sampler for torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .._base import ranks
from .._base.arguments import seed_of, whole
from .._base.errors import Stale
from .._sets import plan as _plan
from .._sets.batch import parse_shuffle
from .._sets.plan import ID_MASK
from .._sets.set import WorkingSet
from .mixture import Mixture

STATE_VERSION = 1


@dataclass
class _Pass:
    """One time through an epoch. DataLoader draws all of it while the loop is still in the middle."""

    epoch: int
    first: int
    steps: int
    given: int = 0


class Sampler:
    """The order of a rank as a sampler for torch.utils.data.DataLoader(ws, batch_size, sampler=...): the same samples in the same
    batches as `leat.Loader` gives. `ws` may be a `leat.Mixture`; its state then says of which sets, lengths and weights it is.

    Its state counts the samples of all ranks. DataLoader asks a sampler ahead of what the loop has received: give `state_dict` the number of
    batches received in this epoch. torchdata's StatefulDataLoader keeps count by itself.

    >>> sampler = leat.Sampler(ws, 2, seed=1, rank=0, world_size=1)
    >>> list(sampler) == [i for batch in leat.Loader(ws, 2, seed=1) for i in batch.ids.tolist()]
    True
    """

    def __init__(self, ws: WorkingSet | Mixture | int, batch_size: int = 1, *, shuffle: str | bool = "full", seed: int = 0,
                 rank: int | None = None, world_size: int | None = None, drop_last: bool = True, replication: int = 1) -> None:
        rank, world_size = ranks.resolve(rank, world_size)
        self._group, self._groups = ranks.groups(rank, world_size, replication)
        block, flags = parse_shuffle("full" if shuffle is True else shuffle)
        if flags:
            raise ValueError("shuffle='auto' depends on the pool: name the kind ('full', 'block:N', False)")
        self._shuffle, self._block = "full" if shuffle is True else shuffle, block
        self._n = ws if isinstance(ws, int) else len(ws)
        self._fingerprint = None if isinstance(ws, int) else ws.fingerprint
        self._mixture = ws.state if isinstance(ws, Mixture) else None
        self.batch_size, self.drop_last = whole("batch_size", batch_size, 1), drop_last
        self._seed, self._epoch, self._start = seed_of(seed), 0, 0
        self._pass: _Pass | None = None  # the last one that began
        self._chosen = False  # the epoch, since that pass began

    def __len__(self) -> int:
        return _plan.steps(self._n, self._start, self.batch_size * self._groups, self.drop_last) * self.batch_size

    def set_epoch(self, epoch: int) -> None:
        """As of `leat.Loader`."""
        epoch = whole("epoch", epoch, 0)
        self._chosen = True
        if epoch != self._epoch:
            self._epoch, self._start = epoch, 0
        if self._pass is not None and self._pass.epoch != epoch:
            self._pass = None

    def __iter__(self) -> Iterator[int]:
        if self._pass is not None and self._pass.given and self._pass.epoch == self._epoch and not self._chosen:  # it was left early
            self._epoch += 1
        self._chosen = False
        epoch, first, self._start = self._epoch, self._start, 0
        steps = _plan.Steps(_plan.Plan(self._n, seed=self._seed, epoch=epoch, block=self._block, fingerprint=self._fingerprint, mixture=self._mixture),
                            first, self.batch_size, self._group, self._groups, self.drop_last)
        here = self._pass = _Pass(epoch, first, steps.count(0))
        for step in range(here.steps):
            for index in steps.ids(step).tolist():
                here.given += 1
                yield index & ID_MASK  # DataLoader's samples do not know how often they came
        if self._pass is here and not self._chosen:
            self._epoch = epoch + 1

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Its position: after `batches` batches of the last pass, or after the samples drawn from it."""
        epoch, samples = self._epoch, self._start
        if self._pass is not None:
            steps = self._pass.given // self.batch_size if batches is None else batches
            epoch, samples = self._pass.epoch, min(self._pass.first + steps * self.batch_size * self._groups, self._n)
            if steps >= self._pass.steps:
                epoch, samples = epoch + (not self._chosen), 0
        return {"version": STATE_VERSION, "kind": "leat.Sampler", "seed": self._seed, "epoch": epoch, "samples": samples,
                "length": self._n, "fingerprint": self._fingerprint, "shuffle": self._shuffle, "mixture": self._mixture}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues there, also with another batch size or number of ranks."""
        if not isinstance(state, Mapping) or state.get("kind") != "leat.Sampler" or state.get("version") != STATE_VERSION:
            raise ValueError("this is not the state of a leat.Sampler of this release")
        for name in ("length", "fingerprint", "shuffle", "seed", "epoch", "samples"):
            if name not in state:
                raise ValueError(f"this state has no {name!r}")
        if (state["length"], state["fingerprint"], state["shuffle"]) != (self._n, self._fingerprint, self._shuffle):
            raise Stale(f"this state is of {state['length']} samples with fingerprint {state['fingerprint']}, "
                        f"shuffle={state['shuffle']!r}", code="stale")
        self._seed, self._epoch, self._start = state["seed"], state["epoch"], state["samples"]
        self._pass = None
