# SPDX-License-Identifier: Apache-2.0
"""Raw batches out of several sets. `MixedRaw` puts whole columns together out of slots. If some sets are windows over recordings,
`LazyMixed` reads a value on demand, in the worker that prepares its sample: a window that cannot be read fails alone.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import numpy.typing as npt

from .._sets.batch import Array, Batch, Ragged
from .._sets.recordings import RawWindows

if TYPE_CHECKING:
    from typing_extensions import Self

Part = Union[Batch, RawWindows]


class Parts:
    """A raw batch out of several sets."""

    def __init__(self, ids: Array, parts: Sequence[tuple[Array, Any]]) -> None:
        self.ids = ids
        self._parts = list(parts)  #: (places in the batch, the samples that stand there)

    def __len__(self) -> int:
        return len(self.ids)

    def present(self, name: str) -> npt.NDArray[np.bool_]:
        found = np.empty(len(self.ids), np.bool_)
        for places, batch in self._parts:
            found[places] = batch.present(name)
        return found

    def release(self) -> None:
        for _, batch in self._parts:
            batch.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class MixedRaw(Parts):
    """A raw batch out of several sets: columns are put together on demand."""

    def __init__(self, ids: Array, parts: Sequence[tuple[Array, Batch]]) -> None:
        super().__init__(ids, parts)
        self._columns: dict[str, Array | Ragged] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Array | Ragged:
        with self._lock:  # several workers share a batch
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = self._join(name)
            return column

    def _join(self, name: str) -> Array | Ragged:
        parts: list[tuple[Array, Any]] = [(places, batch[name]) for places, batch in self._parts]
        if not any(isinstance(values, Ragged) for _, values in parts):
            out = np.empty((len(self.ids), *parts[0][1].shape[1:]), parts[0][1].dtype)
            for places, values in parts:
                out[places] = values
            return out
        rows: list[Any] = [None] * len(self.ids)
        for places, values in parts:
            for i, place in enumerate(places.tolist()):
                rows[place] = values[i].reshape(-1)
        offsets = np.zeros(len(rows) + 1, np.uint64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return Ragged(np.concatenate(rows), offsets)

    def move(self, name: str, base: int, lo: int, hi: int, out: Array) -> None:
        """Rows [lo, hi) of a column of one shape to out[lo:hi], without a stop on the way."""
        for places, batch in self._parts:
            first, end = np.searchsorted(places, (lo - base, hi - base))
            values = batch[name]
            assert isinstance(values, np.ndarray)
            out[places[first:end] + base] = values[first:end]

    def release(self) -> None:
        self._columns = {}
        super().release()


class LazyMixed(Parts):
    """Values are read on demand."""

    def __init__(self, ids: Array, parts: Sequence[tuple[Array, Part]]) -> None:
        super().__init__(ids, parts)
        self._part = np.empty(len(ids), np.int64)  #: of each sample: which part it is of,
        self._at = np.empty(len(ids), np.int64)  #: and where it stands there
        for k, (places, _) in enumerate(self._parts):
            self._part[places] = k
            self._at[places] = np.arange(len(places))

    def __getitem__(self, name: str) -> Any:
        columns = [batch[name] for _, batch in self._parts]
        ragged = any(isinstance(values, Ragged) for values in columns)
        return (_RaggedColumn if ragged else _Column)(columns, self._part, self._at)


class _Column:
    __slots__ = ("_columns", "_part", "_at")

    def __init__(self, columns: Sequence[Any], part: Array, at: Array) -> None:
        self._columns, self._part, self._at = columns, part, at

    def __len__(self) -> int:
        return len(self._part)

    def __getitem__(self, i: Any) -> Any:
        return self._columns[self._part[i]][int(self._at[i])]


class _RaggedColumn(Ragged):
    """Marks bytes for `values_of`, which distinguishes them from arrays."""

    __slots__ = ("_of",)

    def __init__(self, columns: Sequence[Any], part: Array, at: Array) -> None:
        self._of = _Column(columns, part, at)

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, i: Any) -> Any:
        return self._of[i]


def mixed(ids: Array, parts: Sequence[tuple[Array, Any]]) -> MixedRaw | LazyMixed:
    """A raw batch out of (places in the batch, the samples that stand there) of several sets."""
    lazy = any(isinstance(batch, RawWindows) for _, batch in parts)
    return LazyMixed(ids, parts) if lazy else MixedRaw(ids, parts)
