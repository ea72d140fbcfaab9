# SPDX-License-Identifier: Apache-2.0
"""What the demo prints: titles, one line a result, colours where a terminal shows them."""

import os
import sys

COLOURS = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def colour(code, text):
    return f"\033[{code}m{text}\033[0m" if COLOURS else text


def title(text, note=""):
    print(f"\n{colour('1', text)}{f'  {note}' if note else ''}", flush=True)


def line(what, result, note=""):
    print(f"  {what:<26} {result:<24} {colour('2', note)}".rstrip(), flush=True)


def good(what, result, note=""):
    line(what, result, note) if not COLOURS else line(what, colour("32", f"{result:<24}"), note)


def bad(text):
    print(colour("31", f"  {text}"), file=sys.stderr, flush=True)


def rate(bytes_, seconds):
    return f"{bytes_ / seconds / 1e9:.2f} GB/s"


def beside(ours, limit):
    """Leat's rate as a share of the limit's."""
    return f"{ours / limit:.2f} of it"
