# SPDX-License-Identifier: Apache-2.0
"""One pass of a `leat.Loader` over a mixture: raw batches come from several rings and always go through output slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._base.errors import BadSample, Corrupt, NotFound
from .._sets.plan import ID_MASK
from .epoch import Epoch, bad_sample
from .mixture import MixedBatch, MixedIter, Mixture

if TYPE_CHECKING:
    from .._sets.batch import Array

_FIRST_WINDOW, _WINDOW = 16, 1024  # steps that are planned at once: the first batch is not to wait for a long list


class MixedEpoch(Epoch):
    _batch_type = MixedBatch
    _mixed: MixedIter | None = None
    _window = _FIRST_WINDOW

    def _raw(self, step: int, timeout_ns: int) -> Any:
        loader, mixed = self._loader, self._mixed
        if mixed is None or mixed.ended:
            if mixed is not None:
                mixed.close()
            steps = [self._ids(s) for s in range(step, min(self._steps(step), step + self._window))]
            self._window = min(_WINDOW, 2 * self._window)
            mixed = MixedIter(self._mixture, loader._columns, loader._rings, steps, loader.prefetch)
            self._mixed = self._iter = mixed  # type: ignore[assignment]
        try:
            return mixed.next(timeout_ns)
        except (Corrupt, NotFound) as error:
            mixed.close()
            self._mixed = self._iter = None
            return self._mend(step, error)

    @property
    def _mixture(self) -> Mixture:
        mixture = self._loader._mixture
        assert mixture is not None
        return mixture

    def _again(self, ids: Array, step: int) -> Any:
        return self._mixture._reader(self._loader._columns, len(ids)).read(ids)

    def _bad_sample(self, index: int, position: int, cause: BaseException) -> BadSample:
        mixture = self._mixture
        source, number = mixture._where(index & ID_MASK)
        return bad_sample(mixture.sets[source], mixture._columns(source, self._loader._columns), number, position, cause, f" of set {source}")
