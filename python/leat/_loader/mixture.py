# SPDX-License-Identifier: Apache-2.0
"""Weighted mixtures of working sets, and batches put together out of several sets.

What stands where, the library says (`leat_plan` in leat.h). In a plan an id is (round << 44) | (number of samples of the sets before + number in
the set). The round counts the epochs of the set since the start of this epoch: a sample that comes twice in an epoch is augmented in two ways.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, Union

import numpy as np
import numpy.typing as npt

from .._base.arguments import near, whole
from .._base.errors import BadSample
from .._sets import core, plan
from .._sets.batch import Array
from .._sets.fields import Column, Field
from .._sets.plan import ID_BITS, ID_MASK
from .._sets.set import Stat, WorkingSet
from .mixed import mixed
from .prepared import PreparedBatch
from .source import RawIter, Reader, Source, source_of

Part = Union[tuple[Any, float], tuple[Any, float, Mapping[str, str]]]

WEIGHT_BITS = 24


class Mixture:
    """Several working sets as one for `leat.Loader`, with samples of each in proportion to its weight: not by chance, but spread as evenly as
    can be, in every batch. Each set has its own shuffled order and goes through its own epochs: all of its samples come once before
    any comes twice, whatever the epochs of the mixture. The samples of a step depend on seed, epoch and position alone, as for one set.

    parts    (set, weight) for each: a working set, or what `leat.open` takes; weights need not add up to 1. (set, weight,
             {"image": "jpg"}) chooses and names its fields
    length   samples of an epoch; all that the sets have together

    The sets must agree in dtype and shape of the fields that are used. `batch.source` says which set each sample of a batch is of, and
    `batch.ids` its number there.

    >>> mixture = leat.Mixture([(ws, 2), (ws, 1)], length=30)
    >>> sources = [k for batch in leat.Loader(mixture, 6) for k in batch.source.tolist()]
    >>> sources[:6], sources.count(0), sources.count(1)
    ([0, 1, 0, 0, 1, 0], 20, 10)
    """

    def __init__(self, parts: Sequence[Part], *, length: int | None = None) -> None:
        if not 1 <= len(parts) <= 256:
            raise ValueError(f"a mixture of {len(parts)} sets: 1 to 256")
        for k, part in enumerate(parts):
            if not isinstance(part, (tuple, list)) or not 2 <= len(part) <= 3:
                raise TypeError(f"part {k} of the mixture is {part!r}: (set, weight), or (set, weight, {{name: field}})")
        self.sets = tuple(part[0] if isinstance(part[0], WorkingSet) else core.open(part[0]) for part in parts)
        weights = [_weight(k, part[1]) for k, part in enumerate(parts)]
        #: As whole numbers: the sum is about 2^24.
        self.weights = tuple(max(1, round(math.ldexp(w / sum(weights), WEIGHT_BITS))) for w in weights)
        sizes = [len(ws) for ws in self.sets]
        if not all(sizes):
            raise ValueError(f"set {sizes.index(0)} of the mixture has no samples")
        self._length = sum(sizes) if length is None else whole("length", length, 1)
        self.offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64)
        if int(self.offsets[-1]) > ID_MASK:
            raise ValueError(f"{int(self.offsets[-1])} samples are more than a mixture can have")
        self._names = [dict(part[2]) if len(part) > 2 else {f.name: f.name for f in ws.fields}
                       for part, ws in zip(parts, self.sets)]
        self._differ: dict[str, str] = {}
        self._fields = self._agree()

    def _agree(self) -> tuple[Field, ...]:
        fields: list[Field] = []
        for name in dict.fromkeys(name for names in self._names for name in names):
            lacking = [k for k, names in enumerate(self._names) if name not in names]
            if lacking:
                self._differ[name] = f"set {lacking[0]} ({self.sets[lacking[0]].uri}) has none"
                continue
            own = [ws.field(names[name]) for ws, names in zip(self.sets, self._names)]
            words = [_words(field) + (f", classes {', '.join(ws.classes[:8])}" if field.kind == "label" else "")
                     for field, ws in zip(own, self.sets)]
            other = next((k for k in range(len(own)) if words[k] != words[0]
                          or own[k].kind == "label" and self.sets[k].classes != self.sets[0].classes), None)
            if other is not None:
                self._differ[name] = f"in set 0 it is {words[0]}, in set {other} {words[other]}"
                continue
            field = copy.copy(own[0])
            field.name, field.number = name, len(fields)
            field.max_bytes = max(f.max_bytes for f in own)
            field.fixed_bytes = own[0].fixed_bytes if len({f.fixed_bytes for f in own}) == 1 else 0
            fields.append(field)
        if not fields:
            raise ValueError(f"the sets of the mixture have no field in common: {self._why()}")
        return tuple(fields)

    def _why(self) -> str:
        return "; ".join(f"{name!r}: {why}" for name, why in self._differ.items())

    def _check_whole(self) -> None:
        """ValueError if fields differ between the sets: the caller must then choose."""
        if self._differ:
            raise ValueError(f"the sets of the mixture differ: {self._why()}. Choose with fields=, or rename in the mixture: "
                             "(set, weight, {name: field})")

    # --- what a loader asks of a set ---

    def __len__(self) -> int:
        """Samples of an epoch."""
        return self._length

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields that all sets have alike."""
        return self._fields

    def field(self, name: str) -> Field:
        for field in self._fields:
            if field.name == name:
                return field
        if name in self._differ:
            raise ValueError(f"field {name!r} of the mixture: {self._differ[name]}")
        raise KeyError(f"no field {name!r}; {near(name, [field.name for field in self._fields])}")

    @property
    def uri(self) -> str:
        return " + ".join(f"{weight / sum(self.weights):.3g} {ws.uri}" for weight, ws in zip(self.weights, self.sets))

    @property
    def state(self) -> dict[str, Any]:
        """Its part of a loader's state: enough to name the samples of any step."""
        return {"weights": list(self.weights), "lengths": [len(ws) for ws in self.sets],
                "fingerprints": [ws.fingerprint for ws in self.sets]}

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps([self.state, self._length]).encode()).hexdigest()[:32]

    def stat(self) -> Stat:
        """Of all sets together."""
        stats = [ws.stat() for ws in self.sets]
        total = {name: sum(getattr(stat, name) for stat in stats) for name in (
            "samples", "resident_samples", "failed_samples", "payload_bytes", "resident_bytes", "pool_bytes", "regions", "lost_samples")}
        return Stat(**total, region_bytes=max(s.region_bytes for s in stats), page_bytes=min(s.page_bytes for s in stats),
                    streamed=any(s.streamed for s in stats), generation=max(s.generation for s in stats), version=max(s.version for s in stats),
                    transport=", ".join(dict.fromkeys(s.transport for s in stats)),
                    delivered={name: sum(s.delivered[name] for s in stats) for name in stats[0].delivered},
                    rails=tuple(rail for s in stats for rail in s.rails))

    def split(self, ids: Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """(number of the set, number of the sample in it) of ids of a plan."""
        return split(self.offsets, ids)

    def _where(self, index: int) -> tuple[int, int]:
        source, number = self.split(np.array([index], np.uint64))
        return int(source[0]), int(number[0])

    def _columns(self, source: int, columns: Sequence[Column]) -> tuple[Column, ...]:
        """A loader's columns, as they are in one of the sets."""
        ws, names = self.sets[source], self._names[source]
        return tuple(Column(c.name, c.number, ws.field(names[c.field.name]), c.decoder) for c in columns)

    def _read(self, index: int, field: Field) -> Any:
        source, number = self._where(index)
        ws = self.sets[source]
        return ws._read(number, ws.field(self._names[source][field.name]))

    # --- what torch's DataLoader asks of a dataset ---

    def _at(self, which: SupportsIndex) -> int:
        index, n = operator.index(which) & ID_MASK, int(self.offsets[-1])
        if index >= n:
            raise IndexError(f"sample {index} of a mixture of {n}")
        return index

    def __getitem__(self, which: SupportsIndex) -> Any:
        """A private copy of one sample, as `WorkingSet` gives it, under the mixture's names. Numbers are those of `leat.Sampler`:
        they count the samples of all sets, one set after another, whatever `len` is."""
        return self.__getitems__([which])[0]

    def __getitems__(self, ids: Sequence[SupportsIndex]) -> list[Any]:
        """A list of samples: one read for each set that has some of them."""
        source, numbers = self.split(np.array([self._at(i) for i in ids], np.uint64))
        found: list[Any] = [None] * len(ids)
        for k in np.unique(source).tolist():
            ws, names = self.sets[k], self._names[k]
            mine = np.flatnonzero(source == k).tolist()
            for place, sample in zip(mine, ws.__getitems__(numbers[mine].tolist())):
                values = sample if isinstance(sample, dict) else {ws.fields[0].name: sample}
                own = {field.name: values[names[field.name]] for field in self._fields if values.get(names[field.name]) is not None}
                found[place] = own.get(self._fields[0].name) if len(self._fields) == 1 else own
        return found

    def __repr__(self) -> str:
        return f"<leat.Mixture of {self.uri}: {self._length} samples an epoch>"


def _weight(k: int, given: Any) -> float:
    try:
        weight = math.nan if isinstance(given, str) else float(given)
    except (TypeError, ValueError):
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(f"part {k} of the mixture has weight {given!r}: a number above 0")
    return weight


def _words(field: Field) -> str:
    if field.kind != "array":
        return "bytes" if field.kind == "raw" else "a label"
    return f"{field.dtype.str!r} of {'any length' if field.ragged else f'shape {field.shape}'}"


# --- numbers ------------------------------------------------------------------------------------------------------------------------


def split(offsets: Array, ids: Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    bare = np.asarray(ids, np.uint64) & np.uint64(ID_MASK)
    source = np.searchsorted(offsets, bare, side="right") - 1
    return source, bare - offsets[source]


def check_mixture(state: Any) -> None:
    """ValueError unless it is None, or of the form of `Mixture.state`."""
    if state is None:
        return
    try:
        weights, lengths, fingerprints = (state[name] for name in ("weights", "lengths", "fingerprints"))
        good = (1 <= len(weights) == len(lengths) == len(fingerprints)
                and all(type(n) is int and n > 0 for n in [*weights, *lengths]) and all(isinstance(f, str) for f in fingerprints))
    except (TypeError, KeyError):
        good = False
    if not good or sum(weights) >= 1 << WEIGHT_BITS + 1:
        raise ValueError(f"this state has mixture={state!r}")


# --- batches ------------------------------------------------------------------------------------------------------------------------


class MixedBatch(PreparedBatch):
    """A `PreparedBatch` of a mixture: also knows which set each sample is of. `ids` are numbers in that set."""

    __slots__ = ("source",)

    #: Number of the set, in the order of the mixture's parts.
    source: npt.NDArray[np.int64]

    def __init__(self, mixture: Mixture, values: dict[str, Any], lease: object, ids: Array, valid: npt.NDArray[np.bool_], position: int,
                 bfloat16: frozenset[str] = frozenset()) -> None:
        self.source, numbers = mixture.split(ids)
        super().__init__(mixture, values, lease, numbers, valid, position, bfloat16)  # type: ignore[arg-type]

    @property
    def sample_keys(self) -> list[str]:
        sets = self._set.sets
        return [sets[k].key(int(i)) for k, i in zip(self.source.tolist(), self.ids)]

    def trim(self) -> MixedBatch:
        """Leaves out the samples that are not `valid`, and returns the batch."""
        rows = self._valid
        super().trim()  # which may raise
        self.source = self.source[rows]
        return self


# --- reading ------------------------------------------------------------------------------------------------------------------------

_FIRST_WINDOW, _WINDOW = 16, 1024  # steps that are planned at once: the first batch is not to wait for a long list


class MixtureSource(Source):
    """A mixture: raw batches come from the sources of its sets, and always go through output slots."""

    ws: Mixture
    prepares, batch_type = True, MixedBatch

    def __init__(self, ws: Mixture, columns: Sequence[Column]) -> None:
        super().__init__(ws, columns)
        self.sets, self.state = ws.sets, ws.state
        self.parts = [source_of(one, ws._columns(k, columns)) for k, one in enumerate(ws.sets)]
        self.pictures = all(part.pictures for part in self.parts)

    def plan(self, seed: int, epoch: int, block: int, skip: plan.Ranges) -> plan.Plan:
        return plan.Plan(len(self.ws), skip, seed=seed, epoch=epoch, block=block, mixture=self.state)

    def load(self, batch_size: int, slots: int, memory: tuple[int, int], device_copy: str) -> None:
        for part in self.parts:
            part.load(batch_size, slots, memory, device_copy)

    def ahead(self, before: int, global_batch: int) -> int:
        return min(_WINDOW, 2 * before) or _FIRST_WINDOW

    def open(self, steps: Sequence[Array], ahead: int, block: int) -> RawIter:
        return MixedIter(self, steps, ahead)

    def read(self, ids: Array, timeout_ns: int) -> Any:
        return self.reader(len(ids)).read(ids)

    def reader(self, batch_size: int, block: int = 0) -> Reader:
        return _MixedReader(self.ws, [part.reader(batch_size) for part in self.parts])

    def bad_sample(self, index: int, position: int, cause: BaseException, of: str = "") -> BadSample:
        source, number = self.ws._where(index)
        return self.parts[source].bad_sample(number, position, cause, f" of set {source}")


class _MixedReader:
    def __init__(self, mixture: Mixture, readers: Sequence[Reader]) -> None:
        self._mixture, self._readers = mixture, readers

    def read(self, ids: Array) -> Any:
        source, numbers = self._mixture.split(ids)
        places = {k: np.flatnonzero(source == k) for k in np.unique(source).tolist()}
        return mixed(ids, [(at, self._readers[k].read(np.ascontiguousarray(numbers[at]))) for k, at in places.items()])

    def close(self) -> None:
        for reader in self._readers:
            reader.close()


class MixedIter:
    """Raw batches of a list of steps, read ahead from each set by a thread of the library."""

    def __init__(self, source: MixtureSource, steps: Sequence[Array], ahead: int) -> None:
        self._parts, self._steps, self._at = source.parts, steps, 0
        split = [source.ws.split(ids) for ids in steps]
        self._sources = [sources for sources, _ in split]
        self._got: dict[int, Any] = {}  # of this step, while others are waited for
        self._iters: dict[int, RawIter] = {}
        for k, part in enumerate(source.parts):
            mine = [numbers[sources == k] for sources, numbers in split]
            mine = [numbers for numbers in mine if len(numbers)]
            if mine:
                self._iters[k] = part.open(mine, ahead, 0)

    def next(self, timeout_ns: int) -> Any:
        source = self._sources[self._at]
        present = np.unique(source).tolist()
        for k in present:
            if k not in self._got:
                self._got[k] = self._parts[k].batch(self._iters[k].next(timeout_ns))
        batch = mixed(self._steps[self._at], [(np.flatnonzero(source == k), self._got[k]) for k in present])
        self._got = {}
        self._at += 1
        return batch

    def close(self) -> None:
        self._got = {}
        for one in self._iters.values():
            one.close()
