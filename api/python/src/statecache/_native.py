# SPDX-License-Identifier: Apache-2.0
"""The library: found, loaded, checked; calls that turn statuses into exceptions.

cffi gives up the GIL for each call into the library and takes it for each callback out of it.
"""
from __future__ import annotations

import contextlib
import os
import pathlib
import threading
import warnings
from typing import Any, Callable, Optional

import numpy as np

from ._abi import INITS, VERSION, ffi
from .errors import Busy, Error, Invalid, Statuses, Unsupported, error_of

__all__ = ["Closing", "Handle", "VERSION", "call", "ffi", "lib", "new_options",
           "open_library", "text_of", "with_text"]


def open_library(path: str) -> Any:
    """It stays loaded: threads of its tiers may run on while the interpreter ends, which otherwise
    unloads it under them."""
    return ffi.dlopen(path, ffi.RTLD_NOW | ffi.RTLD_NODELETE)


def _load() -> Any:
    """STATECACHE_LIBRARY if it is set; else the library of the wheel, with tiers where what they
    need (liblmdb, liburing, libzstd) is installed."""
    folder = pathlib.Path(__file__).parent / "lib"
    said = os.environ.get("STATECACHE_LIBRARY")
    paths = [said] if said else [str(folder / "libstatecache_tiers.so"),
                                 str(folder / "libstatecache.so")]
    problems = []
    for path in paths:
        try:
            library = open_library(path)
        except OSError as problem:
            problems.append(str(problem))
            continue
        try:
            found = text_of(library.sc_version())
        except ffi.error as problem:
            raise ImportError(f"{path} is not statecache: {problem}") from None
        if found != VERSION:
            raise ImportError(f"{path} is statecache {found}, this package is made for {VERSION}")
        return library
    raise ImportError("libstatecache cannot be loaded: " + "; ".join(problems))


def text_of(pointer: Any) -> str:
    """A C string; "" for NULL."""
    return str(ffi.string(pointer).decode()) if pointer else ""


lib = _load()


def call(name: str, *arguments: Any) -> None:
    """Calls a function that returns a status; any but SC_OK is raised with the library's text."""
    try:
        function = getattr(lib, name)
    except (AttributeError, ffi.error):  # not declared, not exported
        raise Unsupported(f"{name} is not in the library that is loaded") from None
    status = function(*arguments)
    if status:
        raise last_error(status)


def last_error(status: int) -> Error:
    """The exception for a status that the last call of this thread returned."""
    info = lib.sc_last_error()
    text = text_of(info.text) if info.status == status else ""
    return error_of(status, text or text_of(lib.sc_status_text(status)), info.system_code)


def with_text(each: Any) -> Any:
    """Statuses of a batch, just after the call. If one item failed, with the library's text."""
    failed = np.flatnonzero(each)
    if failed.size != 1:
        return each
    said = each.view(Statuses)
    said.text = last_error(int(each[failed[0]])).text
    return said


def new_options(struct: str, **members: Any) -> Any:
    """An options struct with the defaults of its _INIT macro, then `members`."""
    options = ffi.new(struct + " *")
    options.struct_size = ffi.sizeof(struct)
    for member, value in {**INITS[struct], **members}.items():
        try:
            setattr(options, member, value)
        except (OverflowError, TypeError) as problem:
            raise Invalid(f"{member}: {problem}") from None
    return options


class Closing:
    """What is closed at the end of a `with` block, or with its last reference.

    Where an exception ends the block, that one says more than a refusal to close, which is then a
    warning: what is left open closes with its last user."""

    _said: str  # "a pool was", in that warning
    _handle: Handle

    def close(self) -> None:
        raise NotImplementedError

    def _close_last(self) -> None:
        """Closes when nothing refers to it any more."""
        self.close()

    def _stays_open(self) -> None:
        """Nothing refers to it any more, and closing was refused."""

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            self.close()
        except Error as problem:
            if kind is None:
                raise
            with contextlib.suppress(ResourceWarning):  # filters may make an exception of it
                warnings.warn(f"{self._said} left open: {problem}", ResourceWarning, stacklevel=2)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None and not handle.closed:
            try:
                self._close_last()
            except Error as problem:
                self._stays_open()
                warnings.warn(f"{self._said} left open: {problem}", ResourceWarning, stacklevel=2)


class Handle:
    """A pointer of the library, and the calls that use it now.

        with handle as pointer: ...

    Use after close is refused (Invalid), and so is closing while another thread is in a call
    (Busy): neither can reach freed memory.
    """

    __slots__ = ("_calls", "_lock", "_name", "_pointer")

    def __init__(self, name: str, pointer: Any) -> None:
        self._name = name
        self._pointer: Optional[Any] = pointer
        self._calls = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Any:
        with self._lock:
            if self._pointer is None:
                raise Invalid(f"this {self._name} is closed")
            self._calls += 1
            return self._pointer

    def __exit__(self, *_: Any) -> None:
        with self._lock:
            self._calls -= 1

    @property
    def closed(self) -> bool:
        return self._pointer is None

    def close(self, destroy: Callable[[Any], None]) -> None:
        """Calls `destroy(pointer)` once; if that raises, the handle stays open."""
        with self._lock:
            if self._pointer is None:
                return
            if self._calls:
                raise Busy(f"another thread is in a call of this {self._name}")
            destroy(self._pointer)
            self._pointer = None
