# SPDX-License-Identifier: Apache-2.0
"""The state of a `leat.Loader`: made, checked, loaded; and what it says of past batches. See docs/decisions/0062-loader.md.

Version 2 has "runs": [epoch, samples, global batch, batch size] wherever the size of a step changed, from the first pass on; so that
steps, which are counted from the start of an epoch through all restarts, can be found again. Version 1 had none; it is still read.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.errors import Stale
from .._sets import plan as _plan
from .._sets.batch import Array, parse_shuffle
from .mixture import check_mixture, split

if TYPE_CHECKING:
    from .loader import Loader

_log = logging.getLogger("leat")

STATE_VERSION = 2
Run = list[int]  #: epoch, samples, global batch, batch size (0: not known)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_state(state: Mapping[str, Any]) -> None:
    """ValueError unless it is a state of a loader that this release reads."""
    if not isinstance(state, Mapping) or state.get("kind") != "leat.Loader":
        raise ValueError("this is not the state of a leat.Loader")
    if not isinstance(state.get("version"), int) or not 1 <= state["version"] <= STATE_VERSION:
        raise ValueError(f"this state has version {state.get('version')}: this release reads up to {STATE_VERSION}")
    for name in ("seed", "epoch", "samples", "global_batch", "length"):
        if not _is_count(state.get(name)):
            raise ValueError(f"this state has {name}={state.get(name)!r}")
    for name in ("seed", "epoch"):
        if state[name] >= 2**64:
            raise ValueError(f"this state has {name}={state[name]}: at most 2**64 - 1")
    for name in ("fingerprint", "shuffle", "skip_ranges", "sampler", "mixture"):
        if name not in state:
            raise ValueError(f"this state has no {name!r}")
    check_mixture(state["mixture"])
    if state["sampler"] is None and state["samples"] > state["length"]:
        raise ValueError(f"this state has samples={state['samples']} of {state['length']}")
    if state["version"] == 1:
        return
    runs = state.get("runs")
    if not isinstance(runs, list) or not all(
            isinstance(run, list) and len(run) == 4 and all(map(_is_count, run)) and run[2] > 0 for run in runs):
        raise ValueError(f"this state has runs={runs!r}")
    if any(a[:2] >= b[:2] for a, b in zip(runs, runs[1:])):
        raise ValueError("the runs of this state are not in order")


def add_run(runs: list[Run], epoch: int, samples: int, global_batch: int, batch_size: int) -> list[Run]:
    """The runs, when one begins there.

    >>> add_run([[0, 0, 32, 8]], 1, 96, 48, 8)
    [[0, 0, 32, 8], [1, 96, 48, 8]]
    >>> add_run(_, 1, 144, 48, 8) == _, add_run(_, 0, 0, 48, 8)
    (True, [[0, 0, 48, 8]])
    """
    kept = [run for run in runs if run[:2] < [epoch, samples]]
    return kept if kept and kept[-1][2:] == [global_batch, batch_size] else [*kept, [epoch, samples, global_batch, batch_size]]


def of_loader(loader: Loader) -> dict[str, Any]:
    config = loader._config
    epoch, samples = config.course.epoch, config.course.delivered
    if config.course.ended:
        epoch, samples = epoch + (not config.course.chosen), 0
    sampler = loader._given
    return {
        "version": STATE_VERSION, "kind": "leat.Loader", "seed": config.seed, "epoch": epoch, "samples": samples,
        "global_batch": config.global_batch, "length": len(loader.ws), "fingerprint": loader.ws.fingerprint,
        "shuffle": loader._shuffle, "skip_ranges": [list(one) for one in loader._skip],
        "sampler": None if sampler is None else {"kind": type(sampler).__name__, "state": loader._state_of_sampler()},
        "mixture": config.source.state, "runs": [list(run) for run in loader._runs],
    }


def load(loader: Loader, state: Mapping[str, Any]) -> None:
    check_state(state)
    ws, config = loader.ws, loader._config
    if state["fingerprint"] != ws.fingerprint:
        raise Stale(f"this state is of a dataset with fingerprint {state['fingerprint']} and {state['length']} samples; {ws.uri} "
                    f"has {ws.fingerprint} and {len(ws)}", code="stale")
    for name, mine in (("shuffle", loader._shuffle), ("skip_ranges", [list(one) for one in loader._skip])):
        if state[name] != mine:
            raise ValueError(f"this state is of a loader with {name}={state[name]!r}, this one has {mine!r}: the order is another")
    sampler = loader._given
    if (state["sampler"] is None) != (sampler is None):
        raise ValueError("this state is of a loader " + ("without" if state["sampler"] is None else "with") + " a sampler")
    if (state["mixture"] is None) != (config.source.state is None):
        raise ValueError("this state is of " + ("one set" if state["mixture"] is None else "a mixture of sets"))
    if state["global_batch"] != config.global_batch:
        _log.info("resuming with %d samples a step, the state was taken with %d", config.global_batch, state["global_batch"])
    if state["seed"] != config.seed:
        _log.warning("seed %d of the state is taken, not %d", state["seed"], config.seed)
        config.seed = state["seed"]
        config.close_engine()
        config.work.seed = config.seed
    loader._close_epoch(replaced=True)
    inner = (state["sampler"] or {}).get("state")
    if inner is not None and hasattr(sampler, "load_state_dict"):
        sampler.load_state_dict(copy.deepcopy(inner))
    config.course.sampler_state = inner
    config.course.epoch = state["epoch"]
    config.course.start = config.course.delivered = state["samples"]
    config.course.ended = config.course.chosen = False
    loader._runs = [list(run) for run in state.get("runs", [[0, 0, max(1, state["global_batch"]), 0]])]


def replay(state: Mapping[str, Any], step: int, rank: int | None = None, world_size: int | None = None,
           batch_size: int | None = None, epoch: int | None = None) -> Array:
    """The samples of step `step`, counted from the start of the epoch of a loader's state (or of `epoch`) through all
    restarts: of one rank, or of all. Padding is left out. Of a mixture: rows of (number of the set, number in it). `world_size` and `batch_size` supply what the state lacks; if both are given,
    all steps of the epoch were of that size.

    >>> loader = leat.Loader(ws, 2, seed=3)
    >>> seen = [batch.ids.tolist() for _, batch in zip(range(2), loader)]
    >>> replay(loader.state_dict(), 1, 0, world_size=1).tolist() == seen[1]
    True
    """
    check_state(state)
    if state["sampler"] is not None:
        raise ValueError("the order of this state came from a sampler: only the sampler knows it")
    mixture = state["mixture"]
    plan = _plan.Plan(state["length"], _plan.parse_ranges(state["skip_ranges"]), seed=state["seed"], epoch=state["epoch"] if epoch is None else epoch,
                      block=parse_shuffle(state["shuffle"])[0], fingerprint=state["fingerprint"], mixture=mixture)
    if batch_size is not None:  # as the caller says, and no restarts
        runs = [[0, 0, batch_size * (world_size or 1), batch_size]]
    else:
        runs = state.get("runs") or [[0, 0, state["global_batch"], 0]]
    first, count, whole, each = plan.find(runs, step)
    if world_size is not None or not each:
        each = whole // (world_size or 1)
    places = (first, count)
    if rank is not None:
        if not 0 <= rank < max(1, whole // max(each, 1)):
            raise ValueError(f"rank {rank}: there were {whole // max(each, 1)} ranks in step {step}")
        places = (first + rank * each, max(0, min(each, count - rank * each)))
    ids = plan.ids(*places)
    return ids if mixture is None else np.stack(split(np.cumsum([0, *mixture["lengths"]]).astype(np.uint64), ids), axis=1)
