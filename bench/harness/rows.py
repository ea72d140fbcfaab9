# SPDX-License-Identifier: Apache-2.0
"""Measurements in turns, and the row that comes of them.

A row is what `bench/run --json` prints: metric, leat, limit, ratio (leat / limit), rival, rival_name (the best of the
rivals that were there), unit, runs, and "range": [least, most] of each, "ratio" the least and most of the runs' own ratios.
"machine" says what it took from the turns that the row is of (pauses.py): "steal" and "late_ms" the most of any turn that
counts, "repeated" how many turns were repeated for it, "hit" how many count although they were hit.
"""
import statistics

from .pauses import Pauses

LOWER_IS_BETTER = {"CPU-s/GB", "CPU-ms/img", "ms", "MiB", "us"}
HIT = 0.03  # of a case's time: more than the medians of most figures move by themselves

_machine = {"steal": 0.0, "late_ms": 0.0, "repeated": 0, "hit": 0}  # of the last turns


def _turn(cases):
    """({name: {figure: value}}, the Pauses of the case that was hit most)."""
    got, worst = {}, None
    for name, measure in cases.items():
        with Pauses() as pauses:
            got[name] = measure()
        worst = pauses if not worst or pauses.lost > worst.lost else worst
    return got, worst


def in_turns(cases, repeats):
    """cases: {name: function() -> {figure: value}}. Each repetition calls all of them, one after another.
    One in which the machine paused, or gave its CPUs to others, is repeated: half as many as `repeats` at most, and then those
    that were hit least count. Returns {name: {figure: [values]}}."""
    good, hit = [], []
    while len(good) < repeats and len(good) + len(hit) < repeats + repeats // 2:
        turn = _turn(cases)
        (hit if turn[1].lost > HIT else good).append(turn)
    hit.sort(key=lambda turn: turn[1].lost)
    kept = hit[:repeats - len(good)]
    turns = good + kept
    _machine.update(steal=rounded(max(p.steal for _, p in turns)), late_ms=rounded(max(p.late_ms for _, p in turns)),
                    repeated=len(hit) - len(kept), hit=len(kept))
    got = {name: {} for name in cases}
    for turn, _ in turns:
        for name, figures in turn.items():
            for figure, value in figures.items():
                got[name].setdefault(figure, []).append(value)
    return got


def median(values):
    return statistics.median(values) if values else None


def span(values):
    return [rounded(min(values)), rounded(max(values))] if values else None


def rounded(value):
    return None if value is None else float(f"{value:.5g}")


def beside(leat, other):
    """What stands beside a row as another limit, with our ratio to it."""
    a, b = median(leat), median(other)
    return {"value": rounded(b), "ratio": rounded(a / b) if b else None, "range": span(other),
            "ratio_range": span([x / y for x, y in zip(leat, other) if y])}


def row(metric, unit, leat, limit, rivals=None, limit_name="", **more):
    """leat, limit: lists of values (limit may be a number: a promise). rivals: {name: list of values}."""
    rivals = {name: values for name, values in (rivals or {}).items() if values}
    limits = limit if isinstance(limit, list) else [limit] * len(leat)
    best = min if unit in LOWER_IS_BETTER else max
    rival = best(rivals, key=lambda name: median(rivals[name])) if rivals else None
    a, b = median(leat), median(limits)
    one = {"metric": metric, "leat": rounded(a), "limit": rounded(b), "ratio": rounded(a / b) if b else None,
           "rival": rounded(median(rivals[rival])) if rival else None, "rival_name": rival, "unit": unit,
           "runs": len(leat), "limit_name": limit_name, "machine": dict(_machine),
           "range": {"leat": span(leat), "limit": span(limits),
                     "ratio": span([x / y for x, y in zip(leat, limits) if y]),
                     "rival": span(rivals[rival]) if rival else None}}
    if rivals:
        one["rivals"] = {name: {"value": rounded(median(v)), "range": span(v)} for name, v in rivals.items()}
    one.update(more)
    return one
