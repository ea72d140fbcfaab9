# SPDX-License-Identifier: Apache-2.0
"""Scans: the objects below a prefix, each once, in the order of keys, while the list is still coming."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import _leat
from .._base import clients
from .._base.clients import Retried, parse_bytes, parse_timeout
from .._base.errors import PeerGone
from .core import Path, _socket, _storage_of, _uri

if TYPE_CHECKING:
    from typing_extensions import Self


class ScanSample:
    """One object of a scan. Its `data` is valid until the scan's next step. A memoryview of it that is kept, or an array over it,
    keeps the bytes in place."""

    __slots__ = ("_holder", "etag", "key", "modified")

    def __init__(self, holder: _leat.Holder, key: str, etag: str, modified: int) -> None:
        self._holder = holder
        self.key = key  #: what follows the prefix
        self.etag = etag  #: with its quotes; "" if the server has none
        self.modified = datetime.datetime.fromtimestamp(modified, datetime.timezone.utc)

    @property
    def data(self) -> memoryview:
        """The bytes, read-only, in the daemon's memory: `bytes(sample.data)` is a copy, `numpy.frombuffer(sample.data, dtype)` an array over them."""
        if self._holder.released:
            raise ValueError(f"{self.key}: its bytes were released when the next sample was requested: copy them before, bytes(sample.data), "
                             "or keep sample.data")
        return memoryview(_leat.Memory(self._holder, 0, 0, "B", 1, None, True))

    def __repr__(self) -> str:
        size = "released" if self._holder.released else f"{len(self.data)} bytes"
        return f"<leat.ScanSample {self.key!r}, {size}>"


class Scan:
    """An iterator of `ScanSample`, made by `leat.scan`. It ends with its last sample, with `close()`, with `with`, or when it is collected. After an
    error that passes (`leat.Busy`, `leat.TimedOut`, Ctrl-C) it continues where it was; another scan continues after `last`, the last key."""

    def __init__(self, handle: _leat.Scan, client: _leat.Client, timeout_ns: int) -> None:
        self._handle, self._client, self._timeout_ns = handle, client, timeout_ns
        self._held: _leat.Holder | None = None
        self.last: str | None = None  #: the key of the last sample

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ScanSample:
        self._release()
        with Retried(self._client):
            found = self._handle.next(self._timeout_ns)
        if found is None:
            raise StopIteration
        sample = ScanSample(*found)
        self._held, self.last = found[0], sample.key
        return sample

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None

    def close(self) -> None:
        """Ends it, at any sample. Views of data that are kept hold the daemon's window until they are gone."""
        self._release()
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_held"):
            self.close()


def scan(url: Path, *, after: str | None = None, window: int | str | None = None, pool: int | str | None = None, job: str | None = None,
         socket: Path | None = None, timeout: float | None = None, storage_options: Mapping[str, Any] | None = None) -> Scan:
    """Reads the objects below a prefix of S3 once, in the order of keys, while its list is still coming: for statistics, checks and conversions. The
    first sample does not wait for the last key, and nothing stays in the pool. For a shuffle, a length, ranks or a second epoch use `leat.open`.

    url       "s3://bucket/prefix", or "store://bucket/prefix" for objects of this host's `leat serve`. Objects come as they are, tar shards too;
              hidden ones and marks of folders are left out. A local folder needs none of this: `leat.open`, or os.scandir
    after     only keys behind this one: `scan.last` of a scan that ended early
    window    memory of the pool for objects fetched ahead, "256MiB": no object may be larger. 64 MiB, or half of the free memory if that is less
    timeout   seconds to wait for a sample; 30
    pool, job, socket, storage_options   as those of `leat.open`

    The daemon fetches many objects at a time, ahead of the loop, and each is one version of it, compared with the server's checksum where
    there is one: `leat.Stale`, when it changed since it was listed. Errors name the object; those before it have come.

        total = sum(len(sample.data) for sample in leat.scan("s3://bucket/train"))
        for sample in leat.scan("s3://bucket/train"):
            image = decode(sample.data)                  # a memoryview, valid until the next sample
    """
    timeout_ns = parse_timeout(timeout)
    text = os.fsencode(_uri(url))
    for attempt in (0, 1):
        client = clients.connect(_socket(socket), job, pool=pool)
        try:
            handle = client.scan(text, os.fsencode(after or ""), parse_bytes(window), timeout_ns,
                                 _storage_of(storage_options))
            break
        except PeerGone:  # the daemon went since it was last used: once more, with a new one
            clients.forget(client)
            if attempt:
                raise
    return Scan(handle, client, timeout_ns)
