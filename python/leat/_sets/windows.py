# SPDX-License-Identifier: Apache-2.0
"""Fixed windows over long arrays: `leat.open(tokens, window=2049, stride=2048)`.

The pool keeps blocks of rows, each with its checksum ("tokens.npy#rows=256"); a window is some blocks that follow each other, and the ring reads them
side by side, so that a batch of windows is one array over the slot. Where window and stride have a large common divisor (always where they are
equal) a window is its blocks exactly; else its last block is cut: the array then has a stride of whole blocks.

Invariants: window i is rows [i * stride, i * stride + window). The fingerprint, and with it order and state, depends on window and stride.
"""

from __future__ import annotations

import copy
import hashlib
import math
from typing import Any

import numpy as np

from .._base.errors import Unsupported
from .fields import Field
from .set import FieldValue, WorkingSet, _unpickle

_EXACT_PIECES, _MOST_PIECES = 16, 64


def block_rows(window: int, stride: int) -> int:
    """Rows of a block: they divide the stride. Exact where that takes few blocks a window, else the largest that read at most an
    eighth more than the window; else the least that may be read with 64.

    >>> block_rows(2048, 2048), block_rows(2048, 1024), block_rows(2049, 2048), block_rows(1000, 3000)
    (2048, 1024, 256, 1000)
    """
    common = math.gcd(window, stride)
    if window // common <= _EXACT_PIECES:
        return common
    divisors = [d for i in range(1, math.isqrt(stride) + 1) if stride % i == 0 for d in (i, stride // i)]
    able = sorted(d for d in divisors if -(-window // d) <= _MOST_PIECES)
    near = [d for d in able if 8 * (-(-window // d) * d) <= 9 * window]
    return near[-1] if near else min(able, key=lambda d: (-(-window // d) * d, -d), default=common)


class Windows(WorkingSet):
    """A working set whose samples are windows over the rows of its arrays. Made by `leat.open(..., window=...)`; everything that takes
    a working set takes it. `uri` is that of its blocks, and `stat()` counts them."""

    def __init__(self, blocks: WorkingSet, window: int, stride: int) -> None:
        """Not for users: `leat.open` makes working sets."""
        self.window, self.stride = window, stride
        self._rows = block_rows(window, stride)
        self._count, self._step = -(-window // self._rows), stride // self._rows
        super().__init__(blocks._handle, blocks._client, job=blocks._job, socket=blocks._socket, name=blocks._name,
                         timeout=blocks._timeout, storage=blocks._storage)

    def _adopt(self, handle: Any, client: Any) -> None:
        super()._adopt(handle, client)
        blocks = self._length
        if blocks < self._count:
            source = handle.uri.replace(f"#rows={self._rows}", "")
            raise ValueError(f"window={self.window}: {source} has fewer rows: give a shorter window")
        self._length = (blocks - self._count) // self._step + 1
        self._fields = tuple(self._widened(field) for field in self._fields)

    def _widened(self, field: Field) -> Field:
        if not field.dense or field.shape[:1] != (self._rows,):
            raise ValueError(f"windows are over rows of arrays; field {field.name!r} is {field!r}")
        wide = copy.copy(field)
        wide.shape = (self.window, *field.shape[1:])
        rows = self._count * self._rows
        wide.rows = rows if rows != self.window else 0
        wide.max_bytes = wide.fixed_bytes = field.max_bytes * self._count
        return wide

    @property
    def _set(self) -> Any:
        return _Handle(super()._set, self)

    @property
    def fingerprint(self) -> str:
        """32 hex digits out of those of the blocks, window and stride."""
        return hashlib.md5(f"{self._fingerprint} {self.window} {self.stride}".encode(), usedforsecurity=False).hexdigest()

    def _read(self, i: int, field: Field) -> FieldValue:
        with self.read_batch([i]) as batch:
            return np.array(batch[field.name][0])  # type: ignore[index]

    def __reduce__(self) -> tuple[object, ...]:
        return (_again, (super().__reduce__()[1], self.window, self.stride))

    def __repr__(self) -> str:
        return f"<leat.Windows of {self.window} rows, each {self.stride}, over {super().__repr__()}>"


def _again(blocks: tuple[Any, ...], window: int, stride: int) -> Windows:
    return Windows(_unpickle(*blocks), window, stride)


class _Handle:
    """The handle of the blocks, as that of windows."""

    __slots__ = ("_handle", "_of")

    def __init__(self, handle: Any, of: Windows) -> None:
        self._handle, self._of = handle, of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def load(self, *args: Any) -> Any:
        of = self._of
        return self._handle.load(*args[:7], of._count, of._step, of.fingerprint, *args[10:])

    def key(self, i: int) -> str:
        return str(i)

    def index(self, key: bytes) -> int | None:
        text = key.decode("ascii", "replace")
        return int(text) if text.isdigit() and str(int(text)) == text and int(text) < len(self._of) else None

    def source(self, i: int, field: int) -> Any:
        return self._handle.source(i * self._of._step, field)

    def field_bytes(self, i: int, field: int) -> int:
        return self._of.fields[field].fixed_bytes

    def hold(self, *args: Any) -> Any:
        raise Unsupported("a view is of one block: ws[i] and batches read windows", code="unsupported")

    def push(self, *args: Any) -> Any:
        raise Unsupported("windows are read only", code="unsupported")
