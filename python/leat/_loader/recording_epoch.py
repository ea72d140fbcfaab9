# SPDX-License-Identifier: Apache-2.0
"""One pass of a `leat.Loader` over windows of recordings: windows are copied out of recordings by the workers, into output slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._sets.recordings import RawWindows, RecordingWindows
from .epoch import Epoch

if TYPE_CHECKING:
    from .._sets.batch import Array


class RecordingEpoch(Epoch):
    def _raw(self, step: int, timeout_ns: int) -> Any:
        return self._again(self._ids(step), step)

    def _again(self, ids: Array, step: int) -> Any:
        ws = self._loader.ws
        assert isinstance(ws, RecordingWindows)
        return RawWindows(ws, self._loader._columns, ids)
