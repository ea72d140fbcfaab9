# SPDX-License-Identifier: Apache-2.0
"""Measurements in turns, and the row that comes of them.

A row is what `bench/run --json` prints: metric, leat, limit, ratio (leat / limit), rival, rival_name (the best of the
rivals that were there), unit, runs, and "range": [least, most] of each, "ratio" the least and most of the runs' own ratios.
"""
import statistics

LOWER_IS_BETTER = {"CPU-s/GB", "CPU-ms/img", "ms", "MiB", "us"}


def in_turns(cases, repeats):
    """cases: {name: function() -> {figure: value}}. Each repetition calls all of them, one after another.
    Returns {name: {figure: [values]}}."""
    got = {name: {} for name in cases}
    for _ in range(repeats):
        for name, measure in cases.items():
            for figure, value in measure().items():
                got[name].setdefault(figure, []).append(value)
    return got


def median(values):
    return statistics.median(values) if values else None


def span(values):
    return [rounded(min(values)), rounded(max(values))] if values else None


def rounded(value):
    return None if value is None else float(f"{value:.5g}")


def row(metric, unit, leat, limit, rivals=None, limit_name="", **more):
    """leat, limit: lists of values (limit may be a number: a promise). rivals: {name: list of values}."""
    rivals = {name: values for name, values in (rivals or {}).items() if values}
    limits = limit if isinstance(limit, list) else [limit] * len(leat)
    best = min if unit in LOWER_IS_BETTER else max
    rival = best(rivals, key=lambda name: median(rivals[name])) if rivals else None
    a, b = median(leat), median(limits)
    one = {"metric": metric, "leat": rounded(a), "limit": rounded(b), "ratio": rounded(a / b) if b else None,
           "rival": rounded(median(rivals[rival])) if rival else None, "rival_name": rival, "unit": unit,
           "runs": len(leat), "limit_name": limit_name,
           "range": {"leat": span(leat), "limit": span(limits),
                     "ratio": span([x / y for x, y in zip(leat, limits) if y]),
                     "rival": span(rivals[rival]) if rival else None}}
    if rivals:
        one["rivals"] = {name: {"value": rounded(median(v)), "range": span(v)} for name, v in rivals.items()}
    one.update(more)
    return one
