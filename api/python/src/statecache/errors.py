# SPDX-License-Identifier: Apache-2.0
"""Statuses as exceptions.

Every failure is an `Error` with `status` (the library's code), `text` (what was wrong, one line)
and `system_code` (errno, or 0). Each code has a class of its own. A bad argument is `Invalid`
whether the package or the library saw it; then nothing has changed.

A miss and "no room" inside a batch are answers, not exceptions: they come back in an array of
statuses. `raise_for_status` turns such an array into an exception where that is wanted.
"""
from __future__ import annotations

import enum
from typing import Any, Type

import numpy as np

__all__ = ["Busy", "ConnectionClosed", "Corrupt", "Denied", "DeviceLost", "Error", "Invalid",
           "IoError", "LimitReached", "Lost", "Mismatch", "NoMemory", "NoSlot", "NotFound",
           "NotNow", "SizeOverflow", "Stale", "Status", "Unsupported", "WrongState"]


class Status(enum.IntEnum):
    """The codes of `sc_status`."""
    OK = 0
    INVALID = -1
    NO_MEMORY = -2
    NO_SLOT = -3
    STALE = -4
    BUSY = -5
    STATE = -6
    NOT_FOUND = -7
    MISMATCH = -8
    LIMIT = -9
    OVERFLOW = -10
    UNSUPPORTED = -11
    CORRUPT = -12
    IO = -13
    DEVICE_LOST = -14
    LOST = -15
    AGAIN = -16
    DENIED = -17
    CLOSED = -18


class Error(Exception):
    """A call of the library, or of this package, failed."""

    status: int = 0  # a Status; a plain number if the library knows a code that this package lacks

    def __init__(self, text: str, system_code: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.system_code = system_code
        self.each: Any = None  # a status for each row, where a batch failed as a whole

    def __str__(self) -> str:
        try:
            name = Status(self.status).name
        except ValueError:
            name = str(self.status)
        return f"{name}: {self.text}"


class Invalid(Error, ValueError):
    """An argument is outside what the call accepts."""
    status = Status.INVALID


class NoMemory(Error, MemoryError):
    """The allocator returned no memory."""
    status = Status.NO_MEMORY


class NoSlot(Error):
    """No free or evictable slot: try again after a release."""
    status = Status.NO_SLOT


class Stale(Error):
    """The handle names something that no longer exists."""
    status = Status.STALE


class Busy(Error):
    """The object is in use in a way that excludes this call."""
    status = Status.BUSY


class WrongState(Error):
    """The call does not fit the state of the object."""
    status = Status.STATE


class NotFound(Error, LookupError):
    """Nothing by that name exists."""
    status = Status.NOT_FOUND


class Mismatch(Error):
    """Shapes, lengths or fingerprints do not agree."""
    status = Status.MISMATCH


class LimitReached(Error):
    """A limit given at creation is reached."""
    status = Status.LIMIT


class SizeOverflow(Error, OverflowError):
    """A size or position does not fit its type."""
    status = Status.OVERFLOW


class Unsupported(Error):
    """No eligible implementation; what is missing is in the text."""
    status = Status.UNSUPPORTED


class Corrupt(Error):
    """Bytes failed their check."""
    status = Status.CORRUPT


class IoError(Error):
    """The operating system reported an I/O error."""
    status = Status.IO


class DeviceLost(Error):
    """The device failed; it cannot be used again."""
    status = Status.DEVICE_LOST


class Lost(Error):
    """The state of this lease is unknown after an aborted step: release it."""
    status = Status.LOST


class NotNow(Error):
    """Not now: a limit of the service is reached, try again later."""
    status = Status.AGAIN


class Denied(Error):
    """The service does not let this client do that."""
    status = Status.DENIED


class ConnectionClosed(Error):
    """The connection to the service has ended."""
    status = Status.CLOSED


class Statuses(np.ndarray):  # type: ignore[type-arg, unused-ignore]
    """The statuses of a batch in which one item failed, with the library's text for it."""

    text: str = ""


_CLASSES: dict[int, Type[Error]] = {int(kind.status): kind for kind in Error.__subclasses__()}


def error_of(status: int, text: str, system_code: int = 0) -> Error:
    """The exception for a status."""
    error = _CLASSES.get(int(status), Error)(text, system_code)
    error.status = _status_of(status)
    return error


def _status_of(status: int) -> Any:
    try:
        return Status(int(status))
    except ValueError:
        return int(status)
