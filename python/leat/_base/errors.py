# SPDX-License-Identifier: Apache-2.0
"""The exceptions of leat: one for each condition that a caller may handle."""

from __future__ import annotations

import errno
import traceback

from .. import _leat

__all__ = ["Error", "NotFound", "UnknownKey", "Stale", "PeerGone", "TimedOut", "Corrupt", "NoSpace", "Denied", "Invalid",
           "Busy", "Unsupported", "BadSample", "WorkerDied"]


class Error(Exception):
    """Base of all errors of Leat. The message is one sentence: what was given, what is allowed, what to do.

    >>> try:
    ...     leat.open("/no/such/dataset")
    ... except leat.Error as error:
    ...     print(error.code)
    not found
    """

    code: str = "error"  #: short name of the condition: "not found", "peer gone", ...

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        self._message = message
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return self._message

    def __reduce__(self) -> tuple[object, ...]:
        return (_remake, (type(self), self._message, self.code), self.__dict__)


def _remake(kind: type[Error], message: str, code: str) -> Error:
    return kind(message, code=code)


class NotFound(Error, FileNotFoundError, LookupError):
    """No such working set, source, index or daemon."""

    code = "not found"


class UnknownKey(NotFound, KeyError):
    """No sample with this key; near matches are in the message."""


class Stale(Error):
    """The working set was dropped or replaced, or its source changed: open it again."""

    code = "stale"


class PeerGone(Error, ConnectionError):
    """The daemon that holds the bytes died or closed the connection: open the working set again."""

    code = "peer gone"


class TimedOut(Error, TimeoutError):
    """The deadline passed."""

    code = "timed out"


class Corrupt(Error):
    """A checksum did not match, or a file is not what its header says."""

    code = "corrupt"


class NoSpace(Error, MemoryError):
    """The cap of the pool would be exceeded, or memory ran out."""

    code = "no space"


class Denied(Error, PermissionError):
    """This user may not read the source or use the working set."""

    code = "denied"


class Invalid(Error, ValueError):
    """An argument, URI or file that is not allowed."""

    code = "invalid"


class Busy(Error):
    """Every slot of a ring is held, leases delay a drop, or a program still writes the file."""

    code = "busy"


class Unsupported(Error, NotImplementedError):
    """A well-formed input that Leat does not read, or a way of reading that this sample does not have."""

    code = "unsupported"


class BadSample(Corrupt):
    """A sample of a `leat.Loader` that could not be read, decoded or transformed. The cause is `__cause__`."""

    code = "bad sample"
    index: int = -1  #: number of the sample
    key: str = ""
    position: int = -1  #: in the epoch
    file: str | None = None  #: where its bytes come from
    offset: int | None = None  #: in that file


class WorkerDied(Error, RuntimeError):
    """A worker process of a `leat.Loader` ended by itself: killed, or crashed in a transform."""

    code = "worker died"


def said(error: BaseException) -> str:
    """The text of a user's error, even if its class fails to give one."""
    try:
        return str(error)
    except Exception:
        return "its str() failed"


def let_go(error: BaseException, where: str = "") -> None:
    """For an error that is kept, not raised: its frames would keep arrays, and these keep slots. Its place becomes a note:
    one, since a program may raise one object many times, and each note would have the notes before it."""
    if error.__traceback__ is not None and not any("Traceback (" in note for note in getattr(error, "__notes__", ())):
        error.add_note(where + "".join(traceback.format_exception(error)))
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None
        one = one.__cause__ or one.__context__


_BY_CODE: dict[int, type[Error]] = {
    -errno.ENOENT: NotFound,
    -errno.ESTALE: Stale,
    -errno.ECONNRESET: PeerGone,
    -errno.ETIMEDOUT: TimedOut,
    -errno.EBADMSG: Corrupt,
    -errno.ENOSPC: NoSpace,
    -errno.ENOMEM: NoSpace,
    -errno.EACCES: Denied,
    -errno.EINVAL: Invalid,
    -errno.EBUSY: Busy,
    -errno.EOPNOTSUPP: Unsupported,
}


def _make(code: int, name: str | None, message: str) -> Error:
    return _BY_CODE.get(code, Error)(message, code=name)


_leat._set_error_maker(_make)
