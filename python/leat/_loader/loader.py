# SPDX-License-Identifier: Apache-2.0
"""`leat.Loader`: batches that a training loop takes as they are. See docs/decisions/0062-loader.md.

Happy path: the library's iterator reads this rank's slices of the order ahead, into the slots of a ring; without anything to decode
or to transform those are the user's batches. Else they go to an engine (workers.py) and come back in output slots.

Failure modes: see the table of the decision record. After any error the loader can be iterated again.
Invariants: the samples of a step depend on seed, epoch, set, kind of shuffle and position alone; all ranks make the same number
of steps; only what the user received counts as delivered; one epoch is in progress at a time.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import logging
import operator
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, NoReturn, Union

import numpy as np

from .. import _leat
from .._base import ranks
from .._base.arguments import check_function, check_iterable, near, seed_of, whole
from .._base.clients import parse_timeout
from .._base.errors import BadSample, Unsupported
from .._decode import images
from .._decode.decode import FieldsArg, resolve
from .._sets import core, plan
from .._sets.batch import SHUFFLE_AUTO, parse_shuffle
from .._sets.plan import SEQUENTIAL, Ids, Plan
from .._sets.set import WorkingSet, parse_device
from . import device as _device, report, state as _state, stats as _stats
from .config import Config
from .epoch import Epoch
from .mixture import Mixture, MixtureSource
from .prepared import pad_collate, pad_known
from .sampler import Sampler
from .source import Source, source_of
from .weighted import WeightedSampler
from .workers import Work

_log = logging.getLogger("leat")

CollateFn = Callable[[list[Any]], Any]
OnError = Union[str, Callable[[BadSample], Any]]
DEFAULT_TIMEOUT_S = 30.0  # as of the library
MAX_TIMEOUT_S = 1e8  # what is longer has no end


def _check(workers: str, on_error: OnError, shuffle: str | bool | None, sampler: Iterable[int] | None,
           batch_sampler: Iterable[Sequence[int]] | None, collate_fn: CollateFn | None, skip_ranges: tuple[Sequence[int], ...]) -> None:
    """Refuses arguments that are wrong for every set, alone or in combination."""
    if workers not in ("thread", "process", "fork", "spawn", "forkserver"):
        raise ValueError(f"workers={workers!r}: 'thread', 'process', 'fork', 'spawn' or 'forkserver'")
    if on_error not in ("raise", "skip") and not callable(on_error):
        raise ValueError(f"on_error={on_error!r}: 'raise', 'skip' or a function")
    if sampler is not None and batch_sampler is not None:
        raise ValueError("sampler and batch_sampler: give one of them")
    check_iterable("sampler", sampler, "what yields numbers of samples")
    check_iterable("batch_sampler", batch_sampler, "what yields lists of numbers of samples")
    if (sampler is not None or batch_sampler is not None) and shuffle in (True, "full"):
        raise ValueError(f"shuffle={shuffle!r} and a sampler: the sampler sets the order; leave shuffle out")
    if collate_fn is not None:
        check_function("collate_fn", collate_fn, "collate_fn(samples)", count=1)
    if batch_sampler is not None and skip_ranges:
        raise ValueError("skip_ranges with a batch_sampler: what is to be left out, the batch_sampler leaves out")


def _refuse_used_up(name: str, source: Any, count: int) -> None:
    if not count and isinstance(source, Iterator):
        raise ValueError(f"{name}={source!r}: an iterator, which is used up: an epoch goes through it from the start. Give a list, or an object "
                         "whose __iter__ begins again")


def _resolve_shuffle(shuffle: str | bool, source: Source, world_size: int) -> tuple[str | bool, int]:
    block, flags = parse_shuffle("auto" if shuffle is True else shuffle)
    if flags == SHUFFLE_AUTO:
        block = max(ws._auto_block() for ws in source.sets)
        if block and ranks.several_hosts(world_size) and any(ws.stat().transport == "shm" for ws in source.sets):
            raise ValueError(f"shuffle=True: this host streams the set by itself, in blocks of {block}; others may have room "
                             f"for all of it, and another order. Name one for all: shuffle='block:{block}'")
    return (False if block == SEQUENTIAL else f"block:{block}" if block else "full"), block


#: Keywords of torch's DataLoader that have another name, or no need, here.
_REPLACED = {
    "dataset": "the first argument, a working set or a path; leat.from_dataset reads any other",
    "worker_init_fn": "the rng of a transform(sample, rng); random, np.random and torch are seeded for each sample",
    "generator": "seed=, of order and augmentation",
    "persistent_workers": "not needed: workers stay",
    "prefetch_factor": "prefetch=, in batches of the loader and not of each worker",
    "multiprocessing_context": "workers='fork', 'spawn' or 'forkserver'",
    "pin_memory_device": "pin_memory=True, or device='cuda:N'",
    "in_order": "not needed: batches come in order",
}


class EpochSetter:
    """The type of `loader.sampler`: the loader decides the order, and others may set the epoch only."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """`loader.set_epoch(epoch)`."""
        self._loader.set_epoch(epoch)


class Loader(Iterable[Any]):
    """Batches of a working set for a training loop: shuffled, decoded, transformed, collated; exact and resumable on any number of ranks.

    ws            a working set, a `leat.Mixture` of several, or what `leat.open` takes
    batch_size    samples a batch and rank
    shuffle       True: "full", or blocks if the set is larger than the pool; "full"; "block:N"; False. None: True, unless a sampler sets the order
    seed          of the order and of augmentation
    fields        None: all as they are; a list of names; {"image": "jpg", "label": "cls"}: decoded, under new names
    transform     f(sample: dict, rng: numpy.random.Generator) -> dict, rng depends on seed, epoch and sample (with a sampler: and position) alone; or one of leat.prep, which
                  takes the picture's bytes through C threads; {name: prep}; a list, those of leat.prep before functions
    collate_fn    f(list of samples) -> the loop's batch; runs in the thread that iterates. The list is empty on a rank that
                  has no sample of the last step, with drop_last=False
    sampler       numbers of samples of an epoch, the same on all ranks, which share them; its set_epoch is called
    batch_sampler lists of numbers, each a step of all ranks; batch_size then only reserves memory. Its set_epoch, or its sampler's, is called
    num_workers   threads or processes for decoding and the transform; 0: one thread, for leat.prep alone this rank's share of the cores
    workers       "thread"; "process"; or "fork", "spawn", "forkserver"
    prefetch      batches ahead
    drop_last     True: leave out the last, short step. False: fill it up; `batch.valid` marks it. All ranks make the same number of steps
    device        the place of batches: "cpu"; "cuda", "cuda:1", a torch.device: in that GPU's memory, copied there ahead
    pin_memory    batches in page-locked memory, for copies to a GPU of your own
    timeout       most seconds to wait for a batch: 30; math.inf
    on_error      "raise"; "skip": a bad sample is replaced by another, the same one each time; f(BadSample): may raise, else it is replaced
    max_errors    of an epoch and rank; 1 % of its samples, at least 10
    rank, world_size  of torch.distributed, RANK and WORLD_SIZE, Open MPI or Slurm, if not given
    replication   groups of so many neighbouring ranks get the same samples (tensor parallelism)
    skip_ranges   [first, end) positions of each epoch that are left out
    resume_epoch  False: an epoch that was left early is over, and the next `iter()` begins the next one, as torch users expect. True: it begins
                  the same one again
    job, pattern, extensions   of `leat.open`, when ws is a path
    device_copy   as of `leat.batches`: for raw batches, which no decoder or transform touches

    >>> loader = leat.Loader(ws, 2, seed=1)
    >>> len(loader)
    3
    >>> sorted(i for batch in loader for i in batch.ids.tolist())
    [0, 1, 2, 3, 4, 5]
    >>> loader.state_dict()["epoch"]
    1
    """

    def __new__(cls, *args: Any, **named: Any) -> Loader:
        for name in named if cls.__init__ is Loader.__init__ else ():  # a subclass has keywords of its own
            if name in _REPLACED:
                raise TypeError(f"{name}= is DataLoader's: here it is {_REPLACED[name]}")
            if name not in _KEYWORDS:
                raise TypeError(f"leat.Loader has no {name}=; {near(name, _KEYWORDS)}")
        return super().__new__(cls)

    def __init__(self, ws: WorkingSet | Mixture | core.Uri, batch_size: int = 1, *, shuffle: str | bool | None = None, seed: int = 0,
                 fields: FieldsArg = None, transform: images.Transforms | None = None, collate_fn: CollateFn | None = None,
                 sampler: Iterable[int] | None = None, batch_sampler: Iterable[Sequence[int]] | None = None,
                 num_workers: int = 0, workers: str = "thread", prefetch: int = 2, drop_last: bool = True, device: object = "cpu",
                 pin_memory: bool = False, timeout: float | None = None, on_error: OnError = "raise",
                 max_errors: int | None = None, rank: int | None = None, world_size: int | None = None, replication: int = 1,
                 skip_ranges: Iterable[Sequence[int]] = (), resume_epoch: bool = False, job: str | None = None, pattern: str | None = None,
                 extensions: core.Extensions | None = None, device_copy: str = "bounce") -> None:
        self._epoch_ref: weakref.ref[Epoch] | None = None  # the iterating code keeps it: it ends with its last reference
        batch_size, prefetch = whole("batch_size", batch_size, 1), whole("prefetch", prefetch, 1)
        num_workers, seed = whole("num_workers", num_workers, 0), seed_of(seed)
        max_errors = None if max_errors is None else whole("max_errors", max_errors, 0)
        skip_ranges = tuple(skip_ranges)
        _check(workers, on_error, shuffle, sampler, batch_sampler, collate_fn, skip_ranges)
        if isinstance(ws, Mixture):
            if sampler is not None or batch_sampler is not None:
                raise ValueError("a mixture has an order of its own: no sampler")
            if fields is None:
                ws._check_whole()
        if isinstance(ws, (WorkingSet, Mixture)) and (pattern is not None or extensions is not None):
            raise ValueError(f"pattern={pattern!r}, extensions={extensions!r}: they choose among the files of a folder when it is opened; give "
                             "them to leat.open")
        self.ws: WorkingSet = ws if isinstance(ws, (WorkingSet, Mixture)) else core.open(ws, job=job, pattern=pattern, extensions=extensions)  # type: ignore[assignment]  # a mixture has of a set what is used here
        rank, world_size = ranks.resolve(rank, world_size)
        group, groups = ranks.groups(rank, world_size, replication)
        for one in (sampler, batch_sampler):
            if getattr(one, "num_replicas", 1) > 1:
                raise ValueError("the sampler is one rank's share already: give one that yields the samples of all ranks, or none")
        self._sampler, self._batch_sampler = sampler, batch_sampler
        columns = resolve(self.ws, fields)
        source: Source = MixtureSource(ws, columns) if isinstance(ws, Mixture) else source_of(self.ws, columns)
        memory = parse_device("pinned" if pin_memory and str(device).startswith("cpu") else device)
        timeout_ns = parse_timeout(timeout)
        self._skip = plan.parse_ranges(skip_ranges)
        self._shuffle, block = _resolve_shuffle(True if shuffle is None else shuffle, source, world_size)
        prepares = (transform is not None or collate_fn is not None or source.prepares
                    or any(column.decoder is not None for column in columns))
        if collate_fn is not None and memory[0] == _device.CUDA:
            raise ValueError(f"device={str(device)!r} with a collate_fn: what it makes is in host memory, and yours to move; give it "
                             "device='cpu', or do without it")
        if device_copy == "direct" and prepares:
            raise ValueError("device_copy='direct' with a transform, a decoder or a collate_fn: what is made on the host goes through pinned "
                             "memory; 'bounce', or 'auto'")
        self._device_copy = "bounce" if prepares and device_copy == "auto" else device_copy
        # A collate_fn's result is in other memory: no need to pin the slot.
        with _device.asked_for(device, pin_memory):
            delivery = _device.Delivery(*(memory if prepares and collate_fn is None else (_device.HOST, 0)))
        work = Work(columns, transform, seed)
        if work.stages is not None and not source.pictures:
            raise Unsupported("leat.prep is for pictures, not for windows over recordings: give a function as transform", code="unsupported")
        if block not in (0, SEQUENTIAL) and self.ws.stat().streamed:
            work.block = block
        if work.in_c and not num_workers and workers == "thread":
            num_workers = images.cores()
        self._resume_epoch = resume_epoch
        self._warned = False  # that the sampler has no state
        self._runs: list[_state.Run] = []
        self._config = Config(
            source, work, delivery, report.Reporter(source), rank, world_size, group, groups, batch_size, drop_last, prefetch, seed, block,
            sampled=self._given is not None, prepares=prepares, memory=memory, method=workers, workers=num_workers,
            timeout=DEFAULT_TIMEOUT_S if timeout is None else None if timeout > MAX_TIMEOUT_S else timeout, timeout_ns=timeout_ns,
            on_error=on_error, max_errors=max_errors, collate=functools.partial(pad_known, work) if collate_fn is pad_collate else collate_fn)
        self._course = self._config.course
        with _device.asked_for(device, pin_memory):
            self._load_ring()

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("batch_size", "drop_last", "prefetch", "rank", "world_size"):
            raise AttributeError(f"loader.{name} = {value!r}: it stays as the loader was made. Make another one with {name}={value!r}; its "
                                 "load_state_dict(loader.state_dict()) continues at the same sample")
        super().__setattr__(name, value)

    def __getitem__(self, which: object) -> NoReturn:
        """Called by a DataLoader around a loader: an error."""
        raise TypeError("a leat.Loader is iterated, and stands where a DataLoader stood: for batch in loader. Its samples are loader.ws[i]; "
                        "to keep the DataLoader, give it the set: DataLoader(ws, batch_size, sampler=leat.Sampler(ws, batch_size))")

    # --- set up ---

    def _load_ring(self) -> None:
        where = (_device.HOST, 0) if self._config.prepares else self._config.memory
        slots = self.prefetch + _device.spare(where[0])
        self._config.source.load(self.batch_size, slots, where, self._device_copy)
        self._config.generation = _leat.generation()

    def _steps(self, start: int) -> plan.Steps:
        """The steps of the epoch, from a position on."""
        if self._batch_sampler is not None:
            return self._cut(start)
        return plan.Steps(self._plan(), start, self.batch_size, self._config.group, self._config.groups, self.drop_last)

    def _plan(self) -> Plan:
        source = self._sampler
        if source is None:
            return self._config.source.plan(self._config.seed, self._course.epoch, self._config.block, self._skip)
        told = self._begin_sampler(source)
        if isinstance(source, WeightedSampler):
            source._check(len(self.ws))
            return Plan(len(source), self._skip, functools.partial(source._at, epoch=self._course.epoch))
        return self._plan_of_sampler(source, max(plan.HEAD, self.global_batch, told))

    def _begin_sampler(self, source: Any) -> int:
        """Sets the sampler's epoch. Returns its length in numbers or batches; 0: unknown."""
        inner: Any = source if hasattr(source, "set_epoch") else getattr(source, "sampler", None)  # of torch's BatchSampler
        if hasattr(inner, "set_epoch"):
            inner.set_epoch(self._course.epoch)
        if self._course.sampler_state is None:
            self._course.sampler_state = self._state_of_sampler()
        elif hasattr(source, "load_state_dict"):  # the epoch was begun before, and begins again
            source.load_state_dict(copy.deepcopy(self._course.sampler_state))
        return len(source) if isinstance(source, Sized) else 0

    def _cut(self, start: int) -> plan.Cut:
        """The steps of a batch sampler."""
        source: Any = self._batch_sampler
        told = self._begin_sampler(source)
        drawn = (self._numbers("batch_sampler", batch) for batch in source)
        batches = plan.take(drawn, told)
        _refuse_used_up("batch_sampler", source, len(batches))
        more = list(itertools.islice(drawn, 1)) if batches else []
        most = max((-(-len(batch) // self._config.groups) for batch in batches), default=0)
        if most > self.batch_size:
            self._config.batch_size = most
            self._config.close_engine()
            self._load_ring()
        keep = plan.given_at_once(self.global_batch) + self.prefetch + 4  # and those behind them
        return plan.Cut(batches, itertools.chain(more, drawn), start, self._config.group, self._config.groups, self.batch_size, keep, not more)

    def _plan_of_sampler(self, source: Any, head: int) -> Plan:
        numbers = plan.left(iter(source), self._skip)

        def check(some: Iterable[int]) -> Ids:
            return self._numbers("sampler", some)

        ids = check(itertools.islice(numbers, head))
        _refuse_used_up("sampler", source, len(ids))
        more = list(itertools.islice(numbers, 1)) if len(ids) == head else []
        if not more:
            return plan.Plan.of_ids(ids)
        return plan.Stream(ids, itertools.chain(more, numbers), check, 2 * max(plan.HEAD, 8 * self.global_batch))

    def _numbers(self, what: str, given: Iterable[int]) -> Ids:
        """The numbers of a sampler, checked."""
        ids = np.fromiter(map(operator.index, given), np.int64)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.ws):
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise IndexError(f"{what}: {wrong}, but numbers of samples are 0 to {len(self.ws) - 1}")
        return ids.astype(np.uint64)

    def _state_of_sampler(self) -> Any:
        """The sampler's state at the begin of the loader state's epoch, so that it yields that epoch again. None: it has none."""
        source = self._given
        if not hasattr(source, "state_dict") or isinstance(source, Sampler):
            return None
        return copy.deepcopy(self._course.sampler_state if self._course.sampler_state is not None and (self._course.chosen or not self._course.ended) else source.state_dict())

    @property
    def _given(self) -> Any:
        """The argument that sets the order; None: the source does."""
        return self._sampler if self._sampler is not None else self._batch_sampler

    def _warn_of_sampler(self) -> None:
        """At a state's taking or loading: warns of a sampler that may not yield this epoch again."""
        source = self._given
        inner = getattr(source, "sampler", source)  # of torch's BatchSampler
        if source is None or isinstance(inner, (Sequence, np.ndarray)) or type(inner).__name__ == "SequentialSampler":
            return
        if not self._warned and not hasattr(inner, "set_epoch") and not hasattr(source, "set_epoch") and not hasattr(source, "state_dict"):
            self._warned = True
            warnings.warn(f"{type(source).__name__} has no state: resuming is not exact, as it may draw another order then. Give a sampler with state_dict and "
                          "load_state_dict, or one that is a function of set_epoch (leat.WeightedSampler)", stacklevel=3)

    @property
    def rank(self) -> int:
        return self._config.rank

    @property
    def world_size(self) -> int:
        return self._config.world_size

    @property
    def batch_size(self) -> int:
        """Samples of a step of this rank, at most."""
        return self._config.batch_size

    @property
    def drop_last(self) -> bool:
        return self._config.drop_last

    @property
    def prefetch(self) -> int:
        return self._config.prefetch

    @property
    def global_batch(self) -> int:
        """Samples of a step of all ranks (replicas counted once)."""
        return self._config.global_batch

    def _length(self) -> int:
        n = len(self.ws) if self._sampler is None else len(self._sampler)  # type: ignore[arg-type]
        return Plan(n, self._skip, np.asarray).length

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on all ranks."""
        if self._batch_sampler is not None:
            return len(self._batch_sampler)  # type: ignore[arg-type]
        return plan.steps(self._length(), 0, self.global_batch, self.drop_last)

    # --- iteration ---

    def __iter__(self) -> Iterator[Any]:
        """Begins the next epoch, or the one that was set or loaded, at the place that was loaded. An epoch of which no batch was received has not
        begun; with `resume_epoch` one that was left early begins again."""
        self._close_epoch(replaced=True)
        if not self._course.chosen and (self._course.ended or self._course.begun and not self._resume_epoch):
            self._course.advance()
        elif self._course.chosen or self._course.begun:
            self._course.start = 0
        self._course.chosen = False
        if self._config.generation != _leat.generation():  # in the child of a fork
            self._config.engine = None
            self._load_ring()
        start = self._course.start
        self._course.delivered, self._course.ended = start, False
        self._runs = _state.add_run(self._runs, self._course.epoch, start, self.global_batch, self.batch_size)
        epoch = Epoch(self._config, self._steps(start), start, self)
        self._epoch_ref = weakref.ref(epoch)
        return epoch

    def _close_epoch(self, replaced: bool = False) -> None:
        """`replaced`: another pass takes its place, and a further step of this one is to be an error."""
        epoch = self._epoch_ref() if self._epoch_ref is not None else None
        if epoch is not None:
            epoch.replaced = replaced
            epoch.close()
        self._epoch_ref = None

    def _settle(self) -> None:
        epoch = self._epoch_ref() if self._epoch_ref is not None else None
        if epoch is not None:
            epoch._settle()

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` begins this epoch. The place in it that a state was loaded with is kept, if it is the state's epoch. A pass
        that is under way stays what it is, and states count it if it is of this epoch."""
        epoch = whole("epoch", epoch, 0)
        self._settle()
        if epoch != self._course.epoch or self._course.ended:
            self._course.sampler_state = None
        elif not self._course.begun:
            return
        self._course.epoch, self._course.start, self._course.delivered, self._course.ended, self._course.chosen = epoch, 0, 0, False, True

    @property
    def sampler(self) -> EpochSetter:
        """For Lightning, Accelerate and others that call `loader.sampler.set_epoch(epoch)`: that is `loader.set_epoch(epoch)`."""
        return EpochSetter(self)

    @property
    def batch_sampler(self) -> None:
        """None: Lightning reads it from objects with a `sampler`."""
        return None

    @property
    def epoch(self) -> int:
        """The epoch of the current pass, or of the next one if there is none; epochs count from 0."""
        return self._course.epoch

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: plain JSON, the same on all ranks. Counts what the loop received, and nothing read ahead.

        >>> loader = leat.Loader(ws, 2)
        >>> received = next(iter(loader)).ids.tolist()
        >>> state = loader.state_dict()
        >>> state["samples"]
        2
        >>> again = leat.Loader(ws, 4)
        >>> again.load_state_dict(state)
        >>> sorted(received + next(iter(again)).ids.tolist())
        [0, 1, 2, 3, 4, 5]
        """
        self._settle()
        self._warn_of_sampler()
        return _state.of_loader(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state` was taken: at the next sample, whatever the batch size, the workers and the number of ranks
        are now. The state's seed is taken. `leat.Stale`: it is of another dataset; ValueError: of another kind of loader. With a
        `batch_sampler` one of its batches has to end there: `iter()` raises ValueError where none does."""
        self._warn_of_sampler()
        _state.load(self, state)

    # --- looking ---

    def stats(self) -> dict[str, Any]:
        """Counts and seconds since the loader was made, and a verdict: what bounds the loop, and what would help.

        >>> sorted(leat.Loader(ws, 2).stats())[:3]
        ['advice', 'batches', 'bytes_local']
        """
        self._settle()
        return _stats.of_loader(self._config)

    # --- life ---

    def close(self) -> None:
        """Ends workers and reading ahead. Batches that are held stay valid. A closed loader may be iterated again."""
        self._close_epoch()
        self._config.close_engine()
        if self._config.generation == _leat.generation():
            self._config.reporter.end(self._config)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # at exit, when half of the interpreter is gone
            pass

    def __reduce__(self) -> Any:
        raise TypeError("a leat.Loader does not pickle: make one in each process; its state_dict() and the working set do")

    def __repr__(self) -> str:
        return (f"<leat.Loader of {self.ws.uri!r}: {self.batch_size} a batch, rank {self.rank} of {self.world_size}, "
                f"epoch {self._course.epoch}, shuffle={self._shuffle!r}>")


_KEYWORDS = tuple(inspect.signature(Loader.__init__).parameters)[1:]
