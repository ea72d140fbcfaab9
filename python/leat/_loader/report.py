# SPDX-License-Identifier: Apache-2.0
"""A loader reports its progress to the daemon, about once a second, for `leat top` and `leat status`.

Never waits and never raises: the next report has what the daemon did not take now, and the next batch reports a lost daemon.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import json
import logging
import os
import threading
from time import perf_counter
from typing import TYPE_CHECKING

from .._base.arguments import bare_name
from .._base.clients import NO_START
from .._leat import Client
from .._sets.plan import ENDLESS, Steps
from . import stats as _stats

if TYPE_CHECKING:
    from .config import Config
    from .source import Source

_log = logging.getLogger("leat")

EVERY_S = 1.0
_MARKS = 6  #: rates are those of the last seconds
_ENDED = 1
_STATUS = 3  # LEAT_QUERY_STATUS
_COMPARED, _LOOKS = 1024, 4
_VERDICTS = {"unknown": 0, "consumer-bound": 1, "fetch-bound": 2, "prep-bound": 3, "copy-bound": 4}
_numbers = itertools.count(1)


class Reporter:
    """Of one loader."""

    def __init__(self, source: Source) -> None:
        self._number = next(_numbers)  # loaders are made in the same order on all ranks
        self._marks: collections.deque[tuple[float, float]] = collections.deque(maxlen=_MARKS)
        self._told = False
        self.report_at = 0.0  #: when `tell` is to be called, as of perf_counter
        self.length = 0  #: samples of the epoch that was begun last; 0: not known
        self.order = 0  #: a digest of its first ones, which is to be the same on all ranks
        self._looks = 0  # how often the daemon is still to be asked in this epoch whether it is
        sets = source.sets
        self._title = None if len(sets) == 1 else "mixture of " + ", ".join(bare_name(ws.uri) for ws in sets)
        self._sample_bytes: float | None = None

    def begin(self, steps: Steps) -> None:
        """A pass over an epoch."""
        self.length = 0 if steps.length == ENDLESS else steps.length
        first = steps.plan.ids(0, min(_COMPARED, steps.plan.stand_ins))
        self.order = 1 + int.from_bytes(hashlib.blake2b(first.tobytes(), digest_size=7).digest(), "little")
        self._looks = _LOOKS

    def _look(self, socket: str) -> None:
        """Warns of ranks with different orders, which read overlapping samples. Runs in a thread with a connection of its own, so that
        reports need not wait for the daemon's answer."""
        try:
            client = Client(socket, None, 0, 0, NO_START)
            try:
                rows = json.loads(client.query(_STATUS, None))["jobs"]
            finally:
                client.close()
        except Exception as error:
            _log.debug("the orders of ranks were not compared: %s", error)
            return
        for row in rows:
            if row["loader"] == self._number and row["overlapping_ranks"] and any(rank["pid"] == os.getpid() for rank in row["ranks"]):
                self._looks = 0
                _log.warning("ranks %s of %d go through different orders, and each takes its slice of its own: samples come twice, and others not at all. Give all "
                             "ranks the same seed=, and a sampler that yields the same numbers on each (leat.WeightedSampler; of torch: one with a "
                             "generator= that is seeded alike)", ", ".join(map(str, row["overlapping_ranks"])), row["world_size"])

    def _bytes_a_sample(self, config: Config) -> float:
        """Exact where all fields have one length, else what samples of the set have on average."""
        if self._sample_bytes is None:
            fixed = [column.field.fixed_bytes for column in config.source.columns]
            if all(fixed):
                self._sample_bytes = float(sum(fixed))
            else:
                stats = [ws.stat() for ws in config.source.sets]
                self._sample_bytes = sum(stat.payload_bytes for stat in stats) / max(1, sum(stat.samples for stat in stats))
        return self._sample_bytes

    def may_end(self, now: float) -> bool:
        """The end of an epoch is reported at once, as a long validation may follow. Not for very short epochs."""
        return not self._marks or now - self._marks[-1][0] >= EVERY_S / 10

    def tell(self, config: Config, flags: int = 0) -> None:
        now = perf_counter()
        try:
            self._tell(config, now, flags)
            if self._looks and config.groups > 1 and not flags:
                self._looks -= 1
                threading.Thread(target=self._look, args=(config.source.sets[0]._client.socket,), daemon=True, name="leat-look").start()
        except Exception as error:  # no error of a report stops the training
            _log.debug("no report: %s", error)
        self.report_at = now + EVERY_S

    def _tell(self, config: Config, now: float, flags: int) -> None:
        samples = config.stats["samples"]
        self._marks.append((now, samples))
        then, before = self._marks[0]
        rate = (samples - before) / (now - then) if now > then else 0.0
        recent = list(config.recent)
        waited, consumed = sum(one[0] for one in recent[1:]), sum(one[1] for one in recent[1:])
        each = self._bytes_a_sample(config)
        self._told = config.source.sets[0]._set.report(
            self._number, self._title, flags, _VERDICTS[_stats.judge(config, recent)[0]], config.rank, config.world_size, config.course.epoch,
            config.course.delivered, self.length, config.batch_size, config.global_batch, int(samples), int(samples * each), rate, rate * each,
            waited / (waited + consumed) if waited + consumed else 0.0, self.order) or self._told

    def end(self, config: Config) -> None:
        if self._told:
            self._told = False
            self._marks.clear()
            self.tell(config, _ENDED)
            self._told = False
