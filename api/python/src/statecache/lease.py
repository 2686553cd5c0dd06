# SPDX-License-Identifier: Apache-2.0
"""What one request holds, for callers that serve one at a time."""
from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from ._arrays import Array, ArrayLike, Int32, dtype_of, exact, pointer_to, signed, whole
from ._keys import HISTORY, LEASE, MARK
from ._native import call, ffi, lib, text_of
from .errors import Invalid

if TYPE_CHECKING:
    from .cache import Cache

LEASE_INFO = dtype_of("sc_lease_info")


class LeaseState(enum.IntEnum):
    """Codes of `sc_lease_state`."""
    WAITING = 1
    READY = 2
    RUNNING = 3
    LOST = 4
    DRAINING = 5


class Reason(enum.IntEnum):
    """Why no more of a prompt could be resumed: `sc_reason`."""
    NONE = 0
    NO_PREFIX = 1
    NO_STATE = 2
    EVICTED = 3
    TOO_SHORT = 4
    PENDING = 5
    BEYOND = 6
    RESTORING = 7
    TIER_FAILED = 8
    TIER_LATE = 9
    RECOMPUTE = 10
    TIER_ROOM = 11


def reason_text(reason: int) -> str:
    """A reason in words."""
    return text_of(lib.sc_reason_text(signed(reason, "reason")))


@dataclasses.dataclass(frozen=True)
class LeaseInfo:
    """The members of `sc_lease_info` that are numbers; hints are left out (LEASE_INFO has all)."""
    state: LeaseState
    resume_len: int
    resume_kind: int
    resume_slot: int
    prompt_len: int
    len: int
    token_count: int
    branch_len: int
    prompt_end_len: int
    reason: Reason
    working_slot: int
    source_slot: int
    extra_slot: int
    kv_page_count: int
    issued_len: int
    issued_len_max: int
    steps_out: int
    tail_kv: int
    flags: int
    external_len: int
    restore_ticket: int
    restore_len: int
    records: int
    records_slot: int


def info_of(record: Any) -> LeaseInfo:
    """From an item of an array of LEASE_INFO."""
    values = {field.name: int(record[field.name]) for field in dataclasses.fields(LeaseInfo)}
    values["state"] = LeaseState(values["state"])
    values["reason"] = Reason(values["reason"])
    return LeaseInfo(**values)  # type: ignore[arg-type]


class Lease:
    """One lease of a cache: `handle` is an item of an array of LEASE.

    Calls about one lease must not overlap. All raise Stale when the lease is gone."""

    __slots__ = ("_c", "cache", "handle")

    def __init__(self, cache: "Cache", handle: Any) -> None:
        if not isinstance(handle, np.void) or handle.dtype != LEASE:
            raise Invalid(f"handle: an item of an array of LEASE is wanted, not {handle!r}")
        self.cache = cache
        self.handle = handle.copy()
        self._c = ffi.new("sc_lease *", (int(handle["id"]), int(handle["generation"])))[0]

    @property
    def info(self) -> LeaseInfo:
        """What it is now. Threads: any."""
        out = np.zeros(1, LEASE_INFO)
        with self.cache._handle as pointer:
            call("sc_lease_info_get", pointer, self._c, pointer_to(out, "sc_lease_info"))
        return info_of(out[0])

    def append(self, tokens: ArrayLike, marks: Optional[Array] = None) -> None:
        """Adds tokens (int32: decoded, or a next message), perhaps with marks (make_marks).
        Errors: those of sc_lease_append; nothing was added."""
        array = exact(tokens, np.int32, "tokens")
        marked = exact(marks, MARK, "marks") if marks is not None else np.empty(0, MARK)
        with self.cache._handle as pointer:
            call("sc_lease_append_marked", pointer, self._c, pointer_to(array, "int32_t"),
                 array.size, pointer_to(marked, "sc_mark"), marked.size)

    def kv_ids(self, page_first: int = 0) -> Int32:
        """KV ids that a forward of this lease reads, from that page on: a copy."""
        count = ffi.new("uint32_t *")
        first = whole(page_first, "page_first")
        out = np.empty(max(self.info.kv_page_count - first, 0), np.int32)
        with self.cache._handle as pointer:
            call("sc_lease_kv_ids", pointer, self._c, first, pointer_to(out, "int32_t"), out.size,
                 count)
        return out[:count[0]]

    def adopt(self) -> int:
        """Replaces its duplicates by the tree's canonical ids; how many. Only while READY."""
        count = ffi.new("uint32_t *")
        with self.cache._handle as pointer:
            call("sc_lease_adopt", pointer, self._c, count)
        return int(count[0])

    @property
    def history(self) -> Array:
        """How its committed state came to be: an array of HISTORY (end, form: 1 is decode)."""
        count = ffi.new("uint32_t *")
        out = np.empty(64, HISTORY)
        while True:
            with self.cache._handle as pointer:
                status = lib.sc_lease_history(pointer, self._c, pointer_to(out, "sc_history"),
                                              out.size, count)
                if status != -9 or count[0] <= out.size:
                    if status:
                        call("sc_lease_history", pointer, self._c,
                             pointer_to(out, "sc_history"), out.size, count)
                    return out[:count[0]]
            out = np.empty(count[0], HISTORY)

    def filled(self, kv_ids: Optional[ArrayLike] = None, history: Optional[Array] = None) -> None:
        """The engine has filled the working slot of a WAITING lease (EXTERNAL), and its KV.
        Errors: those of sc_lease_filled."""
        ids = exact(kv_ids if kv_ids is not None else [], np.int32, "kv_ids")
        stretches = exact(history, HISTORY, "history") if history is not None else None
        with self.cache._handle as pointer:
            call("sc_lease_filled", pointer, self._c, pointer_to(ids, "int32_t"), ids.size,
                 ffi.NULL if stretches is None else pointer_to(stretches, "sc_history"),
                 0 if stretches is None else stretches.size)

    def fork(self, count: int, tail_kv: int = -1) -> list["Lease"]:
        """`count` more leases at its committed length. Errors: those of sc_lease_fork."""
        children = np.zeros(whole(count, "count"), LEASE)
        with self.cache._handle as pointer:
            call("sc_lease_fork", pointer, self._c, signed(tail_kv, "tail_kv"), children.size,
                 pointer_to(children, "sc_lease"))
        return [Lease(self.cache, child) for child in children]

    def release(self, keep: bool = True, len: int = 0, tail_kv: int = -1) -> None:
        """Ends it. Keep: tokens up to `len` (0: all that is committed) go into the index, and the
        state at the end becomes a snapshot where a page ends there, or with `tail_kv`, the id of
        the partial page. Errors: those of sc_lease_release_tail."""
        with self.cache._handle as pointer:
            call("sc_lease_release_tail", pointer, self._c, whole(len, "len"), int(bool(keep)),
                 signed(tail_kv, "tail_kv"))
