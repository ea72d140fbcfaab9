# SPDX-License-Identifier: Apache-2.0
"""Grouped bars (one group a label, one bar a series, whiskers from least to most) and lines as SVG, with no library."""
from xml.sax.saxutils import escape

COLOURS = ["#1b6ca8", "#9aa5b1", "#d5dade", "#c8553d", "#e6a23c", "#6b8f71", "#7d5ba6"]
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 300, 56, 46, 34


def _ticks(most):
    step = 10 ** len(str(int(most))) / 10 if most >= 1 else 0.1
    while most / step > 6:
        step *= 2 if str(step)[0] != "2" else 2.5
    while most / step < 3:
        step /= 2
    n = 0
    while n * step <= most * 1.0001:
        yield n * step
        n += 1


def _frame(title, unit, names, most):
    """Background, legend and scale of every plot. Returns (parts, y of zero, pixels a unit)."""
    base, scale, at = HEIGHT - BOTTOM, (HEIGHT - TOP - BOTTOM) / most, LEFT
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="11">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="16" font-size="13" font-weight="bold">{escape(title)}</text>']
    for i, name in enumerate(names):
        out.append(f'<rect x="{at}" y="25" width="9" height="9" fill="{COLOURS[i % len(COLOURS)]}"/>'
                   f'<text x="{at + 13}" y="33">{escape(name)}</text>')
        at += 26 + 6.1 * len(name)
    for tick in _ticks(most):
        y = base - tick * scale
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e8e8e8"/>'
                   f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    out.append(f'<text x="12" y="{TOP - 2}" fill="#555">{escape(unit)}</text>')
    return out, base, scale


def lines(title, unit, labels, series):
    """series: {name: [value or None, one a label]}. The first label is apart from the others: what adapts by itself."""
    most = max((v for values in series.values() for v in values if v), default=1) or 1
    out, base, scale = _frame(title, unit, series, most)
    step = (WIDTH - LEFT - 8) / max(len(labels), 1)
    for i, values in enumerate(series.values()):
        colour = COLOURS[i % len(COLOURS)]
        points = [(LEFT + (k + 0.5) * step, base - v * scale) for k, v in enumerate(values) if v is not None]
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="' +
                   " ".join(f"{x:.1f},{y:.1f}" for x, y in points[1:]) + '"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4 if k == 0 else 2}" fill="{colour}"/>' for k, (x, y) in enumerate(points)]
    for k, label in enumerate(labels):
        out.append(f'<text x="{LEFT + (k + 0.5) * step:.1f}" y="{base + 16}" text-anchor="middle">{escape(label)}</text>')
    out.append(f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{base}" y2="{base}" stroke="#333"/></svg>\n')
    return "\n".join(out)


def bars(title, unit, labels, series):
    """series: {name: [(value, least, most) or None, one a label]}."""
    most = max((v[2] for values in series.values() for v in values if v), default=1) or 1
    group = (WIDTH - LEFT - 8) / max(len(labels), 1)
    bar = min(group * 0.86 / max(len(series), 1), 46)
    out, base, scale = _frame(title, unit, series, most)
    for g, label in enumerate(labels):
        x = LEFT + g * group + (group - bar * len(series)) / 2
        for i, values in enumerate(series.values()):
            if values[g]:
                value, least, top = values[g]
                left, mid = x + i * bar, x + i * bar + (bar - 2) / 2
                out.append(f'<rect x="{left:.1f}" y="{base - value * scale:.1f}" width="{bar - 2:.1f}" '
                           f'height="{value * scale:.1f}" fill="{COLOURS[i % len(COLOURS)]}"/>'
                           f'<line x1="{mid:.1f}" x2="{mid:.1f}" y1="{base - top * scale:.1f}" y2="{base - least * scale:.1f}" '
                           'stroke="#333"/>')
        out.append(f'<text x="{LEFT + (g + 0.5) * group:.1f}" y="{base + 16}" text-anchor="middle">{escape(label)}</text>')
    out.append(f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{base}" y2="{base}" stroke="#333"/></svg>\n')
    return "\n".join(out)
