# SPDX-License-Identifier: Apache-2.0
"""State shared by a loader and its passes: arguments, source and workers, position, counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .. import _leat
from .device import Delivery
from .report import Reporter
from .source import Source
from .stats import Recent, by_source, none_yet
from .workers import Processes, Threads, Work


@dataclass(repr=False, eq=False)
class Course:
    """Where a loader is among its epochs."""

    epoch: int = 0
    start: int = 0  #: position in it where its pass began,
    delivered: int = 0  #: and behind what was received
    ended: bool = False  #: the last batch of the epoch was received
    chosen: bool = False  #: the epoch, since the last pass began
    sampler_state: Any = None  #: of a sampler, as it was when the epoch began

    @property
    def begun(self) -> bool:
        """Some batch of the pass was received."""
        return self.delivered > self.start

    def advance(self) -> None:
        self.epoch += 1
        self.start = self.delivered = 0
        self.ended, self.sampler_state = False, None


@dataclass(repr=False, eq=False)
class Config:
    """One for each loader, used by the thread that iterates. Later only `batch_size` and `seed` change, between passes."""

    source: Source
    work: Work
    delivery: Delivery
    reporter: Reporter
    rank: int
    world_size: int
    group: int  #: of ranks that get the same samples
    groups: int
    batch_size: int
    drop_last: bool
    prefetch: int
    seed: int
    block: int
    sampled: bool  #: the order comes from a sampler, and may have a sample twice
    prepares: bool  #: batches come out of output slots
    memory: tuple[int, int]  #: where they are to be, as of `parse_device`
    method: str  #: how workers start
    workers: int
    timeout: float | None  #: of what is done in Python, in seconds; None: no end
    timeout_ns: int
    on_error: str | Callable[[Any], Any]
    max_errors: int | None
    collate: Callable[[list[Any]], Any] | None
    course: Course = field(default_factory=Course)
    stats: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("batches", "samples", "wait_s", "consume_s", "fetch_s", "skipped"), 0.0))
    recent: Recent = field(default_factory=none_yet)
    bytes_before: tuple[int, int, int] = field(default_factory=by_source)
    engine: Threads | Processes | None = None  #: outlives a pass
    generation: int = -1  #: of forks, when the source was loaded

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.groups

    def close_engine(self, kill: bool = False) -> None:
        engine, self.engine = self.engine, None
        if engine is not None and self.generation == _leat.generation():
            engine.close(kill)
