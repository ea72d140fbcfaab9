# SPDX-License-Identifier: Apache-2.0
"""The rank and world size of this process, if the caller does not give them."""

from __future__ import annotations

import logging
import os
import sys

from .arguments import whole

_log = logging.getLogger("leat")
# The inner launcher knows the ranks, the outer one only what it started: torchrun under srun is one task a node; mpirun in a Slurm job hands
# its daemons' SLURM_PROCID on to the ranks, or the batch script's, which is 0 for all. So Open MPI's come before Slurm's, which would put
# many ranks in one place; alone, either is what it is. A step of Slurm (srun) knows its own number of tasks; that of the job may be another.
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def resolve(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """(rank, world size): as given; else of torch.distributed where it is initialised; else of RANK and WORLD_SIZE,
    Open MPI's or Slurm's variables (the step's before the job's); else (0, 1). Where it came from is logged; ValueError when
    two that speak of the same ranks disagree: torch.distributed and RANK, or Open MPI and a step of Slurm with as many tasks.

    >>> resolve(1, 4)
    (1, 4)
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank}, world_size={world_size}: give both, or neither")
    if rank is not None and world_size is not None:
        rank, world_size = whole("rank", rank), whole("world_size", world_size, 1)
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} of world_size={world_size}: ranks count from 0")
        return rank, world_size
    source, found = _find()
    _log.info("rank %d of %d, from %s", found[0], found[1], source)
    return found


def groups(rank: int, world_size: int, replication: int) -> tuple[int, int]:
    """(rank, world size) among groups of `replication` neighbouring ranks, each of which reads the same samples.

    >>> groups(5, 8, 4)
    (1, 2)
    """
    if whole("replication", replication) < 1 or world_size % replication:
        raise ValueError(f"replication={replication}: a number that divides the world size, {world_size}")
    return rank // replication, world_size // replication


def several_hosts(world_size: int) -> bool:
    """Whether the launcher says that ranks run on other hosts too."""
    try:
        here = [int(os.environ[name]) for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE") if os.environ.get(name)]
        nodes = int(os.environ.get("SLURM_STEP_NUM_NODES") or 1)
    except ValueError:
        return False
    return here[0] < world_size if here else world_size > 1 and nodes > 1


_Found = tuple[str, tuple[int, int]]


def _variables(rank_name: str, size_name: str) -> _Found | None:
    rank, size = os.environ.get(rank_name), os.environ.get(size_name)
    if not rank or not size:
        return None
    try:
        found = (int(rank), int(size))
    except ValueError:
        raise ValueError(f"{rank_name}={rank}, {size_name}={size}: not numbers") from None
    if not 0 <= found[0] < found[1]:
        raise ValueError(f"{rank_name}={rank}, {size_name}={size}: ranks count from 0")
    return f"{rank_name} and {size_name}", found


def _same(a: _Found, b: _Found | None) -> None:
    if b is not None and a[1] != b[1]:
        raise ValueError(f"{a[0]}: rank {a[1][0]} of {a[1][1]}; {b[0]}: rank {b[1][0]} of {b[1][1]}: give rank= and world_size=")


def _find() -> _Found:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        found = "torch.distributed", (int(distributed.get_rank()), int(distributed.get_world_size()))
        _same(found, _variables("RANK", "WORLD_SIZE"))
        return found
    given = [found for found in (_variables(*names) for names in _VARIABLES) if found is not None]
    if not given:
        return "nothing: a single process", (0, 1)
    if given[0][0].startswith("OMPI"):
        step = next((other for other in given if "STEP" in other[0]), None)
        if step is not None and step[1][1] == given[0][1][1]:
            _same(given[0], step)
    others = "".join(f"; {name} say {rank} of {size}" for name, (rank, size) in given[1:] if (rank, size) != given[0][1])
    return given[0][0] + others, given[0][1]
