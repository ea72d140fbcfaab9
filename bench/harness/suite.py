# SPDX-License-Identifier: Apache-2.0
"""What suites share: which metrics were asked for, what is left out and why, rows that go out."""
import difflib
import os
import sys


def note(text):
    print(f"bench/run: {text}", file=sys.stderr, flush=True)


class Only:
    """What --only asked for; all, if it was not given. It keeps every name it is asked about, and so knows in the end what there is."""

    def __init__(self, asked):
        self.asked, self.known = asked or [], set()

    def __bool__(self):
        return bool(self.asked)

    def wanted(self, *metrics):
        """Is any of these, or a part of it, asked for?"""
        self.known.update(metrics)
        return not self.asked or any(_is_of(m, o) or _is_of(o, m) for m in metrics for o in self.asked)

    def exactly(self, metric):
        self.known.add(metric)
        return not self.asked or any(_is_of(metric, o) for o in self.asked)

    def unknown(self):
        """What was asked for and is no metric: [(text, what it may have meant)]."""
        return [(o, difflib.get_close_matches(o, sorted(self.known), 4, 0.3)) for o in self.asked if not any(_is_of(m, o) for m in self.known)]


def _is_of(metric, whole):
    return metric == whole or metric.startswith(whole + ".")


class Base:
    def __init__(self, args, emit):
        self.args, self.emit, self.data, self.said = args, emit, args.data, set()

    def wanted(self, *metrics):
        return self.args.only.wanted(*metrics)

    def wanted_exactly(self, metric):
        return self.args.only.exactly(metric)

    def put(self, one):
        if self.wanted_exactly(one["metric"]):
            self.emit(one)

    def skip(self, name, why):
        if (name, why) not in self.said:
            self.said.add((name, why))
            note(f"{name} is left out: {why}")

    def program(self, name):
        return os.path.join(self.args.build, "bench", name)
