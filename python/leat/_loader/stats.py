# SPDX-License-Identifier: Apache-2.0
"""The figures of `Loader.stats`: counts, waits, and a verdict on the last batches with advice."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from .. import _leat
from .._base.errors import Error
from .._sets import core

if TYPE_CHECKING:
    from .config import Config

#: Of each of the last batches: seconds waited for it, seconds that the loop took before it asked, and up to then the engine's seconds of
#: work and of reading, and those that the loop waited for copies to a GPU.
One = tuple[float, float, float, float, float]
Recent = collections.deque[One]
WINDOW = 128


def none_yet() -> Recent:
    return collections.deque(maxlen=WINDOW)


def quantile(values: list[float], q: float) -> float:
    """
    >>> quantile([3.0, 1.0, 2.0], 0.5), quantile([], 0.99)
    (2.0, 0.0)
    """
    return sorted(values)[min(int(q * len(values)), len(values) - 1)] if values else 0.0


def of_loader(config: Config) -> dict[str, Any]:
    found: dict[str, Any] = dict(config.stats)
    for name in ("batches", "samples", "skipped"):
        found[name] = int(found[name])
    engine = config.engine
    found.update(delivery(config))
    found["prep_s"] = engine.busy_s if engine else 0.0
    found["read_s"] = engine.read_s if engine else 0.0
    found["copy_s"] = config.delivery.copy_s
    if not config.prepares:
        found["fetch_s"] = found["wait_s"]
    recent = list(config.recent)
    waits = [one[0] for one in recent]
    # Fewer than before: a child of a fork, which counts from 0 again.
    local, streamed, remote = (now - before if now >= before else now for now, before in zip(by_source(), config.bytes_before))
    found["bytes_local"], found["bytes_streamed"], found["bytes_remote"] = local, streamed, remote
    found["wait_p50_s"], found["wait_p99_s"] = quantile(waits, 0.5), quantile(waits, 0.99)
    verdict, advice = judge(config, recent)
    found.update(verdict=verdict, advice=advice, epoch=config.course.epoch, position=config.course.delivered)
    return found


def by_source() -> tuple[int, int, int]:
    """Bytes that this process has read so far: from this host's pool, from sets larger than it, from other hosts."""
    counters = core.counters()
    streamed = counters["fetched_bytes"]
    remote = sum(counters["delivered"][name] for name in ("tcp", "rdma_read", "rdma_write"))
    return max(0, counters["bytes"] - streamed - remote), streamed, remote


def delivery(config: Config) -> dict[str, Any]:
    """How batches come to their memory: "host"; "pinned"; "bounce", through pinned memory to a GPU; "direct"; the bytes that came so, in
    the latter three; and the fields that stay in host memory all the same."""
    so_far = config.delivery
    ring = config.source.ring
    if config.prepares or ring is None or config.generation != _leat.generation():
        return {"delivery": so_far.kind, "delivered_bytes": so_far.bytes, "on_host": ", ".join(so_far.on_host)}
    stat = ring.stat()
    return {"delivery": stat["delivery"], "delivered_bytes": stat["bounced_bytes"] + stat["direct_bytes"] or so_far.bytes, "on_host": ""}


def judge(config: Config, recent: list[One]) -> tuple[str, str]:
    """(verdict, advice). The first batch of the window does not count: there was no time to read it ahead."""
    if len(recent) < 3:
        return "unknown", "let it run for some batches"
    wait = sum(one[0] for one in recent[1:])
    wall = wait + sum(one[1] for one in recent[1:])
    busy, read, copy = (max(0.0, recent[-1][k] - recent[0][k]) for k in (2, 3, 4))  # a restarted engine counts from 0
    if wait <= 0.05 * wall:
        return "consumer-bound", "nothing: batches are there before they are requested"
    if copy >= 0.5 * wait:
        return "copy-bound", "smaller types (uint8, bfloat16), made larger and normalised on the GPU"
    workers = max(1, config.workers)
    if config.prepares and busy >= read and busy / workers >= 0.5 * wall:
        more = f"num_workers={2 * workers}"
        if config.method == "thread":
            more += ", or workers='process' if the transform holds the GIL"
        return "prep-bound", f"{more}; a cheaper transform"
    try:
        stat = config.source.ws.stat()
    except Error as error:
        return "fetch-bound", str(error)
    if stat.streamed:
        return "fetch-bound", "shuffle='block:N', a larger pool, or faster disks"
    if stat.resident_samples < stat.samples:
        return "fetch-bound", "wait until the set is in the pool"
    return "fetch-bound", f"larger batches, more prefetch, or another transport than {stat.transport}"
