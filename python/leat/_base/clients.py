# SPDX-License-Identifier: Apache-2.0
"""Connections to the daemon of this host: one for each process, socket and job, made on first use.

A child of fork() starts with none: it must not touch those of its parent."""

from __future__ import annotations

import operator
import os
import re
import reprlib
import threading

from .. import _leat
from .errors import Error, PeerGone

NO_START = 1  # LEAT_CONNECT_NO_START

_Key = tuple["str | None", "str | None"]
_clients: dict[_Key, _leat.Client] = {}
_lock = threading.Lock()
_parents: list[_leat.Client] = []  # of processes that forked this one: kept, never used


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _parents.extend(_clients.values())
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork)

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
          "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(size: int | str | None) -> int:
    """Bytes of 8 << 30, "8GiB" or "500M"; None is 0, which lets the daemon choose.

    >>> parse_bytes("1.5GiB")
    1610612736
    """
    if size is None:
        return 0
    number: float = -1
    if isinstance(size, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?\s*", size.lower())
        if match:
            number = float(match[1]) * _UNITS[match[2] or ""]
    elif hasattr(size, "__index__"):
        number = operator.index(size)
    if number < 0:
        raise ValueError(f"{size!r} is not a size: give bytes, or a number with a unit as in '8GiB'")
    if number >= 2**63:  # also of so many digits that they are no number to Python
        raise ValueError(f"a size of {reprlib.repr(size)}: less than 8 EiB")
    return int(number)


def parse_timeout(timeout: float | None) -> int:
    """Nanoseconds of a duration in seconds; None: the default (30 s); inf: none."""
    if timeout is None:
        return 0
    if isinstance(timeout, (str, bytes)) or not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout={timeout!r}: a number of seconds, or math.inf")
    if timeout <= 0 or timeout != timeout:
        raise ValueError(f"a timeout of {timeout} s: give seconds above 0, or math.inf")
    return min(int(min(timeout, 2e10) * 1e9) or 1, 2**64 - 1)


def connect(socket: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None = None, job: str | None = None, *, pool: int | str | None = None,
            start: bool = True) -> _leat.Client:
    """The connection to the daemon at `socket`, else to this job's private one, which is started when there is none."""
    pool_bytes = parse_bytes(pool)  # an error also where a daemon runs, whose pool it does not change
    key = (os.fsdecode(socket) if socket is not None else None, job)
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = _leat.Client(socket=key[0], job=job, pool_bytes=pool_bytes, flags=0 if start else NO_START)
            _clients[key] = client
        return client


def forget(client: _leat.Client) -> None:
    """Leaves a connection whose daemon has gone, so that the next call makes a new one."""
    with _lock:
        for key in [key for key, known in _clients.items() if known is client]:
            del _clients[key]


def forget_all() -> None:
    with _lock:
        clients = list(_clients.values())
        _clients.clear()
    for client in clients:
        client.close()


class Retried:
    """Context of one call: when the daemon has gone since the last one, the connection is forgotten."""

    def __init__(self, client: _leat.Client) -> None:
        self.client = client

    def __enter__(self) -> _leat.Client:
        return self.client

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Error) and isinstance(error, PeerGone):
            forget(self.client)
