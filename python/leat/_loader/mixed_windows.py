# SPDX-License-Identifier: Apache-2.0
"""Mixtures that have windows over recordings among their sets: a raw batch whose values are read when they are asked for, sample by sample, by who prepares
them. Beside `mixture.MixedRaw`, which puts whole columns together out of slots: a window that cannot be read fails alone here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import numpy.typing as npt

from .._sets.batch import Array, Batch, Ragged
from .._sets.recordings import RawWindows, RecordingWindows

if TYPE_CHECKING:
    from typing_extensions import Self

    from .._sets.fields import Column

Part = Union[Batch, RawWindows]


class Steps:
    """What an iterator of a ring is to other sets: the parts of some steps, one after another. Nothing is read ahead: windows are
    read by the workers."""

    def __init__(self, ws: RecordingWindows, columns: Sequence[Column], steps: Sequence[Array]) -> None:
        self._ws, self._columns = ws, columns
        self._left = iter(steps)

    def next(self) -> RawWindows:
        return RawWindows(self._ws, self._columns, next(self._left))

    def close(self) -> None:
        pass


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


class LazyMixed(Parts):
    """Values are read when they are asked for."""

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
    """As `values_of` tells bytes from arrays."""

    __slots__ = ("_of",)

    def __init__(self, columns: Sequence[Any], part: Array, at: Array) -> None:
        self._of = _Column(columns, part, at)

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, i: Any) -> Any:
        return self._of[i]
