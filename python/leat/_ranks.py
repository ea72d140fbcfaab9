# SPDX-License-Identifier: Apache-2.0
"""Which rank of how many this process is, when the caller does not say."""

from __future__ import annotations

import logging
import os
import sys

_log = logging.getLogger("leat")
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


def resolve(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """(rank, world size): as given; else of torch.distributed where it is initialised; else of RANK and WORLD_SIZE,
    Slurm's or Open MPI's variables; else (0, 1). Where it came from is logged.

    >>> resolve(1, 4)
    (1, 4)
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank}, world_size={world_size}: give both, or neither")
    if rank is not None and world_size is not None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} of world_size={world_size}: ranks count from 0")
        return rank, world_size
    source, found = _find()
    _log.info("rank %d of %d, from %s", found[0], found[1], source)
    return found


def _find() -> tuple[str, tuple[int, int]]:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return "torch.distributed", (int(distributed.get_rank()), int(distributed.get_world_size()))
    for rank_name, size_name in _VARIABLES:
        rank, size = os.environ.get(rank_name), os.environ.get(size_name)
        if not rank or not size:
            continue
        source = f"{rank_name} and {size_name}"
        try:
            found = (int(rank), int(size))
        except ValueError:
            raise ValueError(f"{rank_name}={rank}, {size_name}={size}: not numbers") from None
        if not 0 <= found[0] < found[1]:
            raise ValueError(f"{rank_name}={rank}, {size_name}={size}: ranks count from 0")
        return source, found
    return "nothing: a single process", (0, 1)
