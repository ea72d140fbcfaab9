# SPDX-License-Identifier: Apache-2.0
"""Progress of long work: a callback's argument, and a bar for terminals."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO, Union

_STAGES = {1: "index", 2: "load", 3: "verify"}


@dataclass(frozen=True)
class Progress:
    """The argument of a progress callback. Totals are 0 while they are not known."""

    stage: str  #: "index", "load" or "verify"
    samples_done: int
    samples_total: int
    bytes_done: int
    bytes_total: int


#: `True`: a bar when standard error is a terminal; `False` or `None`: nothing; or a function of a `Progress`. An exception
#: that it raises ends the work and reaches the caller.
ProgressArg = Union[bool, Callable[[Progress], object], None]


def _bytes(n: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def _seconds(s: float) -> str:
    s = int(s + 0.5)
    return f"{s // 3600}:{s // 60 % 60:02}:{s % 60:02}" if s >= 3600 else f"{s // 60}:{s % 60:02}"


class Bar:
    """One line on a terminal: share done, rate, time left. Used as a callback, inside `with`."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what = what
        self._stream = sys.stderr if stream is None else stream
        self._drawn = False
        self._stage = ""
        self._start = self._last = 0.0

    def __call__(self, p: Progress) -> None:
        now = time.monotonic()
        if p.stage != self._stage:
            self._stage, self._start, self._last = p.stage, now, 0.0
        complete = p.samples_total > 0 and p.samples_done >= p.samples_total
        if now - self._last < 0.1 and not complete:
            return
        self._last = now
        self._stream.write("\r\x1b[K" + self.line(p, now - self._start))
        self._stream.flush()
        self._drawn = True

    def line(self, p: Progress, elapsed: float) -> str:
        """
        >>> Bar("train").line(Progress("load", 50, 100, 5 << 20, 10 << 20), 2.0)
        'train: load  50 %  5.0 MiB of 10.0 MiB  2.5 MiB/s  0:02 left'
        """
        text = f"{self._what}: {p.stage}"
        if p.bytes_total:
            rate = p.bytes_done / elapsed if elapsed > 0 else 0.0
            text += f"  {100 * p.bytes_done // p.bytes_total} %  {_bytes(p.bytes_done)} of {_bytes(p.bytes_total)}"
            if rate > 0:
                text += f"  {_bytes(rate)}/s  {_seconds((p.bytes_total - p.bytes_done) / rate)} left"
        elif p.samples_total:
            text += f"  {100 * p.samples_done // p.samples_total} %  {p.samples_done} of {p.samples_total} samples"
        else:
            text += f"  {p.samples_done} samples"
        return text

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._drawn:
            self._stream.write("\n")
            self._stream.flush()


class Reporter:
    """Turns a `progress=` argument into a callback of leat._leat; ends the bar's line at the end of `with`."""

    def __init__(self, progress: ProgressArg, what: str) -> None:
        self._bar: Bar | None = None
        self._call: Callable[[Progress], object] | None = None
        if progress is True:
            if sys.stderr is not None and sys.stderr.isatty():
                self._bar = Bar(what)
                self._call = self._bar
        elif callable(progress):
            self._call = progress
        elif progress not in (None, False):
            raise TypeError(f"progress={progress!r}: give True, False or a function")

    def __enter__(self) -> Callable[[int, int, int, int, int], None] | None:
        call = self._call
        if call is None:
            return None

        def report(stage: int, samples_done: int, samples_total: int, bytes_done: int, bytes_total: int) -> None:
            call(Progress(_STAGES.get(stage, "work"), samples_done, samples_total, bytes_done, bytes_total))

        return report

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.__exit__()
