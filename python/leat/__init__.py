# SPDX-License-Identifier: Apache-2.0
"""Leat: training data in a memory pool, read in batches at memory speed.

    import leat

    loader = leat.Loader("shards/", 64, seed=1, fields={"image": "jpg", "label": "cls"}, transform=leat.prep.RandomResizedCrop(224))
    for epoch in range(90):
        for batch in loader:
            train(**batch.torch())              # zero-copy, valid until the batch is released

    ws = leat.open("train.npy")                 # or a folder, tar shards, an HDF5 file, {"image": ..., "label": ...}
    sample, batch = ws[0], ws.read_batch([7, 1, 7])

The first `leat.open` starts a daemon for this user and job; the ranks of the job share it and its pool. See
docs/guide-trainers.md.
"""

import os as _os
import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING

# The extension may lie in a build folder apart from these sources. pkgutil.extend_path would do the same, and takes longer to import.
_beside = (_os.path.join(one, "leat") for one in _sys.path if isinstance(one, str))  # the import system skips other entries, too
__path__ = list(dict.fromkeys([*__path__, *filter(_os.path.isdir, _beside)]))

try:
    from . import _leat  # noqa: E402
except ImportError as _e:
    if "cannot open shared object file" not in str(_e):
        raise
    raise ImportError(f"{_e}. Leat uses this library of the system: install it (Debian 12: apt install liburing2 libxxhash0 libjansson4 "
                      "libinih1 libssl3 libdeflate0 libhdf5-103-1), or a wheel that `make wheel` made, which has it inside") from None
from ._sets.batch import Batch, Batches, Ragged, batches, order  # noqa: E402
from ._sets.core import append, counters, create, drop, ls, open, preload, push, share, stat, status, stop, verify  # noqa: E402
from ._sets.cuda import CudaArray  # noqa: E402
from ._base.errors import (BadSample, Busy, Corrupt, Denied, Error, Invalid, NoSpace, NotFound, PeerGone, Stale, TimedOut,  # noqa: E402
                      UnknownKey, Unsupported, WorkerDied)
from ._sets.fields import Field  # noqa: E402
from ._sets.from_dataset import from_dataset  # noqa: E402
from ._loader.loader import Loader  # noqa: E402
from ._loader.mixture import MixedBatch, Mixture  # noqa: E402
from ._loader.prepared import LoadedBatch, PreparedBatch, pad, pad_collate  # noqa: E402
from ._base.progress import Progress  # noqa: E402
from ._loader.sampler import Sampler  # noqa: E402
from ._sets.scan import Scan, ScanSample, scan  # noqa: E402
from ._loader.state import replay  # noqa: E402
from ._loader.weighted import WeightedSampler  # noqa: E402
from ._sets.set import Keys, Rail, Sample, Stat, View, WorkingSet  # noqa: E402

__version__: str = _leat.version

__all__ = [
    "BadSample", "Batch", "Batches", "Busy", "Corrupt", "CudaArray", "Denied", "Error", "Field", "Invalid", "Keys", "LoadedBatch",
    "Loader", "MixedBatch", "Mixture", "NoSpace", "NotFound", "PeerGone", "PreparedBatch", "Progress", "Ragged", "Rail", "Sample", "Sampler", "Scan", "ScanSample", "Stale",
    "Stat", "TimedOut", "UnknownKey", "Unsupported", "View", "WeightedSampler", "WorkerDied", "WorkingSet", "append", "batches",
    "counters", "create", "drop", "from_dataset", "ls", "open", "order", "pad", "pad_collate", "preload", "push", "replay", "scan", "share",
    "stat", "status", "stop", "verify",
]

for _name in __all__:
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = __name__  # tracebacks say leat.NotFound, and pickles keep no name of a module in here

if _TYPE_CHECKING:
    from . import prep as prep


def __getattr__(name: str) -> object:
    if name == "prep":  # loads libjpeg, so only on first use
        import importlib

        return importlib.import_module(".prep", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
