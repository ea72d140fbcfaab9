# SPDX-License-Identifier: Apache-2.0
"""The functions of the package: open and preload, and looking after the pool."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import numpy.typing as npt

from .. import _leat
from .._base import clients, ranks
from .._base.arguments import bare_name, is_in_pool, set_name, whole
from .._base.clients import Retried, parse_bytes, parse_timeout
from .._base.errors import NotFound, PeerGone
from .._base.progress import ProgressArg, Reporter
from .recordings import RecordingWindows, RowsArg, resolve
from .set import OPEN_PUBLIC, WorkingSet, open_set
from .windows import Windows, block_rows

if TYPE_CHECKING:
    from .._base.storage import Storage

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
#: A dataset: a path or URI; or a path for each field.
Uri = Union[Path, Mapping[str, Path]]
#: How names of files end: "jpg,png", or several of these.
Extensions = Union[str, Iterable[str]]

_LIST, _STAT, _STATUS = 1, 2, 3
_DROP_FORCE = 1


def _path(given: Path) -> str:
    # The library makes relative paths absolute and reads URIs. A path object is a path, also where its text reads as one of those.
    return given if isinstance(given, str) else os.path.join(os.getcwd(), os.fsdecode(given))


def _uri(uri: Uri) -> str:
    if isinstance(uri, (str, bytes, os.PathLike)):
        return _path(uri)
    if isinstance(uri, WorkingSet):
        raise TypeError(f"{uri.uri!r} is open already: take the working set as it is")
    if isinstance(uri, (list, tuple)) and uri and all(isinstance(one, (str, bytes, os.PathLike)) for one in uri):
        raise TypeError(f"a {type(uri).__name__} of paths: several shards are one pattern, as 'shards/{{000..146}}.tar', '{{a,b}}.tar' or '*.tar'; "
                        "several arrays a dict of fields, {'image': path, 'label': path}")
    if not isinstance(uri, Mapping):
        raise TypeError(f"{type(uri).__name__} is no path or URI, nor a dict of them: leat.from_dataset takes what has len() and [i]")
    return _fields_text(uri)


def filter_text(uri: Uri, pattern: str | None, extensions: Extensions | None) -> str:
    """The suffix of a folder's path that chooses among its files."""
    if pattern is None and extensions is None:
        return ""
    if isinstance(uri, Mapping) or is_in_pool(_uri(uri)):
        raise ValueError(f"pattern={pattern!r}, extensions={extensions!r}: they choose among the files of a folder, and {uri!r} is "
                         f"{'several arrays' if isinstance(uri, Mapping) else 'loaded already: choose when you preload it'}")
    text = ""
    if pattern is not None:
        text += f"#pattern={_no_hash('pattern', pattern)}"
    if extensions is not None:
        endings = [extensions] if isinstance(extensions, str) else list(extensions)
        text += f"#extensions={','.join(_no_hash('extensions', one) for one in endings)}"
    return text


def _no_hash(name: str, given: object) -> str:
    if not isinstance(given, str) or not given or "#" in given or "\0" in given:
        raise ValueError(f"{name}={given!r}: text without '#', as {'*.jpg' if name == 'pattern' else 'jpg,png'!r}")
    return given


def _fields_text(paths: Mapping[str, Path]) -> str:
    if not paths:
        raise ValueError("an empty dict of fields")
    for field, path in paths.items():
        if not isinstance(field, str) or not re.fullmatch("[A-Za-z_][A-Za-z0-9_.-]*", field):
            raise ValueError(f"field {field!r}: its name is letters, digits, '_', '.' and '-', and begins with a letter or '_'")
        if not isinstance(path, (str, bytes, os.PathLike)):
            raise TypeError(f"field {field!r}: {type(path).__name__} is no path or URI")
        if ";" in _path(path):
            raise ValueError(f"{path!r}: a path of several may not hold ';'")
    return ";".join(f"{field}={_path(path)}" for field, path in paths.items())


def _socket(socket: Path | None) -> str | None:
    return None if socket is None else os.fsdecode(socket)


def _storage_of(options: Mapping[str, Any] | None) -> Storage | None:
    if options is None:
        return None
    from .._base import storage  # few need it

    return storage.parse(options)


def open(uri: Uri, *, name: str | None = None, wait: bool = False, pool: int | str | None = None, job: str | None = None,
         socket: Path | None = None, timeout: float | None = None, public: bool = False, limit: int | str | None = None,
         progress: ProgressArg = None, window: int | None = None, stride: int | None = None, rows: RowsArg | None = None,
         short: str = "drop", pattern: str | None = None, extensions: Extensions | None = None,
         storage_options: Mapping[str, Any] | None = None) -> WorkingSet:
    """Opens a dataset. Returns at once: it is read into the pool in the background, and a read waits for its own samples only.

    uri       a .npy file, an HDF5 file, a folder of files, a tar shard or folder of shards; a dict {field: path} of several
              arrays as fields; or "leat://NAME" for a working set in the pool. Folders and files may be remote:
              "s3://bucket/prefix", "https://host/shard-{000..099}.tar". A str may be a "file:///path" URI, percent-encoded;
              a path object, and bytes, are a path whatever they hold
    name      makes an explicit working set, which stays in the pool until dropped; without, it goes with its last user
    wait      return when all of it is in the pool
    pool      cap of the pool, if this call starts the daemon: bytes, or "8GiB"; half of what memory or cgroup leaves
    limit     most of the pool for this set; what does not fit is streamed
    job, socket   which daemon: a job's name (LEAT_JOB, TORCHELASTIC_RUN_ID, SLURM_JOB_ID, the login session), or a path
    timeout   seconds of this call and of later reads; 30
    public    other users of a system daemon may read it
    progress  True for a bar on a terminal, or a function of a `Progress`
    window    of arrays, long ones above all: samples are so many rows, from each `stride` rows on (default: window); what does not
              fill a last one is left out
    rows      with a window, of recordings of several lengths, one a sample (files, shards, pushed sets): what a row of them is, a dtype,
              (dtype, shape of a row), or "npy" for .npy files; a dict {field: what} where there are several fields. Each recording is cut by itself
    short     of recordings that are shorter than the window: "drop" leaves them out, "pad" fills them up with zeros
    pattern   of a folder: only files whose names look so, as "*.jpg" or "front_??.png"; one with a "/" is compared with the path from the
              folder, as "*/left/*.png"
    extensions   of a folder: only files that end so, as "jpg,png" or (".jpg", ".png"), in any case. All class folders keep their numbers
    storage_options   of S3, as fsspec has them: endpoint_url, region, profile, key, secret, token, anon, addressing_style, verify.
              Missing ones are found where AWS's own tools look. Pickled with the set

    >>> leat.open("labels.npy", window=4, stride=2)[1].tolist()
    [1, 1, 2, 2]
    >>> int(leat.open({"image": "images.npy", "label": "labels.npy"})[0]["label"])
    0
    """
    text = _uri(uri) + filter_text(uri, pattern, extensions)
    if name is not None:
        set_name(name)
    if window is None and (stride is not None or rows is not None):
        raise ValueError(f"stride={stride}: it needs a window" if rows is None else f"rows={rows!r}: they need a window")
    if short not in ("drop", "pad") or short == "pad" and rows is None:
        raise ValueError(f"short={short!r}: 'drop' or 'pad', of recordings with rows=")
    if window is not None:
        window = whole("window", window, 1)
        stride = window if stride is None else whole("stride", stride, 1)
    if window is not None and stride is not None and rows is None:
        if is_in_pool(text):
            raise ValueError(f"window={window}: open the array itself; {text} has its samples already. If those are recordings to be cut, "
                             "give the type of a row with rows=")
        suffix = f"#rows={block_rows(window, stride)}"
        text = ";".join(part + suffix for part in text.split(";")) if isinstance(uri, Mapping) else text + suffix
    opened = open_set(text, name=name, flags=OPEN_PUBLIC if public else 0, pool_bytes=parse_bytes(limit),
                      socket=_socket(socket), job=job, pool=pool, timeout=timeout, progress=progress, wait=wait,
                      storage=_storage_of(storage_options))
    if rows is not None and window is not None and stride is not None:
        try:
            return RecordingWindows(opened, window, stride, resolve(opened, rows), short)
        except BaseException:
            opened.close()
            raise
    return opened if window is None or stride is None or window == stride else Windows(opened, window, stride)


def preload(uri: Uri, *, name: str | None = None, pool: int | str | None = None, job: str | None = None,
            socket: Path | None = None, timeout: float | None = None, public: bool = False,
            limit: int | str | None = None, progress: ProgressArg = None, window: int | None = None,
            stride: int | None = None, rows: RowsArg | None = None, short: str = "drop",
            pattern: str | None = None, extensions: Extensions | None = None, storage_options: Mapping[str, Any] | None = None) -> WorkingSet:
    """Opens a dataset and waits until it is in the pool; with `name` it stays there for others, as "leat://NAME". Arguments are those of `leat.open`;
    without a `timeout` this call takes as long as that does.

    >>> leat.preload("images.npy", name="digits").uri
    'leat://digits'
    """
    return open(uri, name=name, wait=True, pool=pool, job=job, socket=socket, timeout=timeout, public=public, limit=limit,
                progress=progress, window=window, stride=stride, rows=rows, short=short, pattern=pattern, extensions=extensions,
                storage_options=storage_options)


def append(name: str, uri: Uri, *, job: str | None = None, socket: Path | None = None, timeout: float | None = None,
           progress: ProgressArg = None, storage_options: Mapping[str, Any] | None = None) -> int:
    """Adds the samples of `uri` (the same fields) to explicit set `name`, as a new version; sets already open keep reading
    theirs. Waits until all of it is in the pool; without a `timeout` it takes as long as that does. Returns how many samples the
    new version has."""
    with Reporter(progress, name) as report, Retried(clients.connect(socket, job)) as client:
        return client.append(set_name(name), os.fsencode(_uri(uri)), parse_timeout(timeout), report, _storage_of(storage_options))


def drop(name: str, force: bool = False, *, job: str | None = None, socket: Path | None = None,
         timeout: float | None = None) -> None:
    """Drops explicit set `name`. Waits for views of it, at most `timeout` seconds, then raises `leat.Busy`; with `force` it
    does not wait, and readers get `leat.Stale`."""
    with Retried(clients.connect(socket, job)) as client:
        client.drop(bare_name(set_name(name)), _DROP_FORCE if force else 0, parse_timeout(timeout))


def _query(kind: int, arg: str | None, socket: Path | None, job: str | None) -> Any:
    with Retried(clients.connect(socket, job, start=False)) as client:
        return json.loads(client.query(kind, arg))


def ls(*, job: str | None = None, socket: Path | None = None) -> list[dict[str, Any]]:
    """The working sets in the pool that this user may see; none when no daemon runs."""
    try:
        found = _query(_LIST, None, socket, job)
    except NotFound:
        return []
    return list(found if isinstance(found, list) else found["sets"])


def stat(name: str, *, job: str | None = None, socket: Path | None = None) -> dict[str, Any]:
    """The daemon's facts about one working set, by name or URI."""
    found: dict[str, Any] = _query(_STAT, set_name(name), socket, job)
    return found


def status(*, job: str | None = None, socket: Path | None = None) -> dict[str, Any]:
    """The daemon: pool, regions, clients, nodes, page sizes. `leat.NotFound` when none runs."""
    found: dict[str, Any] = _query(_STATUS, None, socket, job)
    return found


def verify(ws: WorkingSet | Uri, *, source: bool = False, progress: ProgressArg = None) -> None:
    """Recomputes every checksum of a working set; `leat.Corrupt` names the first bad sample.

    >>> leat.verify(ws)
    """
    if isinstance(ws, WorkingSet):
        ws.verify(source=source, progress=progress)
    else:
        with open(ws) as opened:
            opened.verify(source=source, progress=progress)


def stop(force: bool = False, *, job: str | None = None, socket: Path | None = None) -> bool:
    """Ends the daemon, as `leat stop` does; `leat.Busy` while other processes use it, unless `force`. False when none ran."""
    for attempt in (0, 1):
        try:
            client = clients.connect(socket, job, start=False)
        except NotFound:
            break
        try:
            client.stop(force)
            return True
        except PeerGone:  # the daemon that we knew has gone; there may be another
            continue
        finally:
            clients.forget(client)
            client.close()
    return False


def counters() -> dict[str, Any]:
    """Counters of this process: batches, samples, bytes, by where they came from."""
    found: dict[str, Any] = json.loads(_leat.counters())
    return found


# --- push ---


def create(name: str, fields: Mapping[str, Any], samples: int, *, keys: Sequence[str] | None = None,
           lengths: Mapping[str, Sequence[int] | npt.NDArray[Any]] | None = None, public: bool = False, pool: int | str | None = None,
           job: str | None = None, socket: Path | None = None) -> WorkingSet:
    """Allocates an explicit set that ranks fill with `ws.push`, for data that Leat cannot read by itself. One rank creates it, the
    others open "leat://NAME"; samples are readable one by one as they come.

    fields    {name: (dtype, shape of one sample)}, {name: dtype} for numbers, {name: bytes} for raw bytes
    lengths   {name: bytes of each sample} for the raw fields

    >>> pushed = leat.create("squares", {"x": ("f4", (2,)), "y": "i8"}, samples=3)
    >>> pushed.push(0, {"x": [[0, 1], [2, 3], [4, 5]], "y": [7, 8, 9]})
    >>> pushed[2]["x"], int(pushed[2]["y"])
    (array([4., 5.], dtype=float32), 9)
    """
    set_name(name)
    samples = whole("samples", samples, 1)
    if set(lengths or ()) != {field for field, what in fields.items() if what is bytes}:
        raise ValueError("lengths: give the bytes of each sample for each raw field")
    described: list[_leat.CreateField] = []
    for field, what in fields.items():
        if what is bytes:
            described.append((field, "", (), np.ascontiguousarray((lengths or {})[field], np.uint64)))
        else:
            dtype, shape = what if isinstance(what, (tuple, list)) else (what, ())
            described.append((field, np.dtype(dtype).str, tuple(int(n) for n in shape), None))
    encoded = None if keys is None else [key.encode("utf-8", "surrogateescape") for key in keys]
    with Retried(clients.connect(socket, job, pool=pool)) as client:
        client.create(name, described, samples, encoded, OPEN_PUBLIC if public else 0)
    return open(f"leat://{name}", job=job, socket=socket)


def push(ws: WorkingSet, first: int, data: Mapping[str, Any] | Any, *, timeout: float | None = None) -> None:
    """`ws.push(first, data)`."""
    ws.push(first, data, timeout=timeout)


def share(samples: int, rank: int, world_size: int) -> range:
    """The samples that a rank pushes.

    >>> leat.share(10, 1, 4)
    range(3, 6)
    """
    rank, world_size = ranks.resolve(rank, world_size)
    first, end = _leat.share(whole("samples", samples, 0), rank, world_size)
    return range(first, end)
