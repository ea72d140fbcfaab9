# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments. Errors say what was given, what is allowed, what to do."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable
from typing import Any, NoReturn


def whole(name: str, value: Any, least: int | None = None) -> int:
    """An int of at least so much.

    >>> whole("batch_size", 0, 1)
    Traceback (most recent call last):
    ...
    ValueError: batch_size=0: at least 1
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: a whole number, not {type(value).__name__}") from None
    if least is not None and number < least:
        raise ValueError(f"{name}={number}: at least {least}")
    return number


def seed_of(value: Any) -> int:
    """A seed.

    >>> seed_of(-1)
    Traceback (most recent call last):
    ...
    ValueError: seed=-1: 0 to 2**64 - 1
    """
    seed = whole("seed", value)
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed={seed}: 0 to 2**64 - 1")
    return seed


_POOL = "leat://"


def is_in_pool(uri: str) -> bool:
    """Does it name a set in the pool? As src/wire/address.c has it: a scheme is one in any case.

    >>> is_in_pool("leat://digits"), is_in_pool("LEAT://digits"), is_in_pool("digits")
    (True, True, False)
    """
    return uri[:len(_POOL)].lower() == _POOL


def bare_name(name: str) -> str:
    """Without "leat://".

    >>> bare_name("leat://digits"), bare_name("digits")
    ('digits', 'digits')
    """
    return name[len(_POOL):] if is_in_pool(name) else name


def set_name(value: Any) -> str:
    """The name of a set in the pool. The daemon checks its characters.

    >>> set_name("")
    Traceback (most recent call last):
    ...
    ValueError: name='': a set's name is not empty
    """
    if not isinstance(value, str):
        raise TypeError(f"name={value!r}: the name of a set is a str, not {type(value).__name__}")
    if not bare_name(value):
        raise ValueError(f"name={value!r}: a set's name is not empty")
    return value


def near(name: object, names: Iterable[str]) -> str:
    """The likely name, and all there are.

    >>> near("imge", ["image", "label"])
    "did you mean 'image'? There are image, label"
    """
    there = list(names)
    import difflib  # for errors alone

    close = difflib.get_close_matches(str(name), there, 1, 0.6)
    return (f"did you mean {close[0]!r}? There are " if close else "there are ") + ", ".join(there)


def check_function(name: str, function: Any, call: str, *, count: int) -> None:
    """TypeError unless `function` can be called with so many arguments, as `call` says.

    >>> check_function("transform", lambda sample: sample, "transform(sample, rng)", count=2)
    Traceback (most recent call last):
    ...
    TypeError: transform=<lambda>: it is called as transform(sample, rng), and takes (sample)
    """
    if not callable(function):
        raise TypeError(f"{name}={function!r}: a function, called as {call}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function of C, say: its call raises the error
        return
    try:
        signature.bind(*[None] * count)
    except TypeError:
        raise TypeError(f"{name}={getattr(function, '__name__', repr(function))}: it is called as {call}, and takes {signature}") from None


def check_iterable(name: str, value: Any, what: str) -> None:
    if value is not None and not hasattr(value, "__iter__"):
        raise TypeError(f"{name}={value!r}: {what}")


def refuse_pickling(what: str) -> NoReturn:
    """For objects over memory of this process that is used again: a copy or another process would see later contents."""
    raise TypeError(f"{what} belongs to the process that made it, and is neither pickled nor copied as a whole: send what is wanted of it, "
                    "{name: batch[name].copy()}, or the working set and batch.ids")
