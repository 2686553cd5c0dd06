# SPDX-License-Identifier: Apache-2.0
"""One forward of the engine: planned, run, committed. `sc_step_plan` and what follows it."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from ._arrays import Array, Int32, Ragged, RaggedLike, dtype_of, fill, point_to, pointer_to, ragged
from ._keys import LEASE
from ._native import call, ffi
from .errors import Error, Invalid

if TYPE_CHECKING:
    from .cache import Cache

ROW = dtype_of("sc_row")
RESULT = dtype_of("sc_result")
SAVED = dtype_of("sc_saved")

# Arrays of the block, and how long each is.
BY_ROW = ("position", "end", "source", "dest", "extra", "decode", "freeze", "accepted",
          "accepted_back", "draft_count", "copy_from", "copy_to", "flush", "extra_from")
BY_SAVE = ("save_row", "save_position", "save_slot")


class BlockLayout:
    """Where each array of a step's block lies: the same in every step of a cache, so that a
    captured graph can read the block from one buffer. `layout["source"]` is a slice of words."""

    def __init__(self, batch: Any) -> None:
        self.words: int = batch.block_words
        self.row_max: int = batch.row_max
        self.save_max: int = batch.save_max
        self.draft_max: int = batch.draft_max
        lengths = {name: self.row_max for name in BY_ROW}
        lengths.update({name: self.save_max for name in BY_SAVE})
        lengths.update(query_start_loc=self.row_max + 1, parent=self.row_max * self.draft_max,
                       row_count=1, save_count=1, token_count=1)
        self._slices = {name: slice(getattr(batch, "at_" + name),
                                    getattr(batch, "at_" + name) + length)
                        for name, length in lengths.items()}

    def __getitem__(self, name: str) -> slice:
        try:
            return self._slices[name]
        except KeyError:
            raise Invalid(f"{name!r} is not in the block: {', '.join(self._slices)}") from None

    @property
    def names(self) -> list[str]:
        """The arrays that there are."""
        return list(self._slices)


def rows_of(leases: Array, start: Any, end: Any, points: Optional[RaggedLike], drafts: Any,
            parents: Optional[RaggedLike]) -> tuple[Array, list[Any]]:
    """An array of sc_row, and what it points to."""
    rows = np.zeros(leases.size, ROW)
    keep: list[Any] = []
    rows["lease"] = leases
    fill(rows, "from", start, "start")
    fill(rows, "to", end, "end")
    if points is not None:
        batch = ragged(points, np.uint32, "points", rows.size)
        point_to(rows, "points", "point_count", batch)
        keep.append(batch)
    fill(rows, "draft_count", drafts, "drafts")
    if parents is not None:
        batch = ragged(parents, np.int32, "parents", rows.size)
        if (np.diff(batch.offsets) != rows["draft_count"]).any():
            raise Invalid("parents: one for each draft of a row is wanted")
        counts = np.zeros(rows.size, [("pointer", "u8"), ("count", "u4")])
        point_to(counts, "pointer", "count", batch)
        rows["parents"] = counts["pointer"]
        keep.append(batch)
    return rows, keep


class Step:
    """A step in flight: what the forward has to read and write.

    `status` has a code for each row: 0, or why the row was refused. The arrays `source`, `dest`,
    `position`, `end`, ... (BY_ROW) have an entry for each row, `save_row`, `save_position` and
    `save_slot` (BY_SAVE) one for each save, `query_start_loc` one more than there are rows;
    docs: `sc_batch` in statecache/cache.h. All of them are views of `block`, padded with -1 to the
    same layout in every step (`layout`); the block is this object's own copy.

    It ends by `commit` or `abort`. Threads: one at a time."""

    source: Int32
    dest: Int32
    position: Int32
    end: Int32
    extra: Int32
    decode: Int32
    freeze: Int32
    accepted: Int32
    accepted_back: Int32
    draft_count: Int32
    copy_from: Int32
    copy_to: Int32
    flush: Int32
    extra_from: Int32
    save_row: Int32
    save_position: Int32
    save_slot: Int32

    def __init__(self, cache: "Cache", number: int, leases: Array, status: Int32, batch: Any,
                 layout: BlockLayout, block: Int32) -> None:
        self._cache = cache
        self.number = number
        self.leases = leases
        self.status = status
        self.layout = layout
        self.block = block
        self.row_count: int = batch.row_count
        self.save_count: int = batch.save_count
        self.token_count: int = batch.token_count

    def __getattr__(self, name: str) -> Any:
        # An array of the block: sliced when it is first asked for.
        if name in BY_ROW:
            value = self.block[self.layout[name]][:self.row_count]
        elif name in BY_SAVE:
            value = self.block[self.layout[name]][:self.save_count]
        else:
            raise AttributeError(name)
        self.__dict__[name] = value
        return value

    @property
    def query_start_loc(self) -> Int32:
        """First token of each row in the packed batch, and their number."""
        return self.block[self.layout["query_start_loc"]][:self.row_count + 1]

    @property
    def parents(self) -> Int32:
        """[row_count, draft_max]: the token of its row that each draft follows; -1: no draft. A
        cache without drafts has draft_max 0, and so an empty array."""
        array = self.block[self.layout["parent"]]
        return array.reshape(self.layout.row_max, self.layout.draft_max)[:self.row_count]

    def page_counts(self, len: Any = None) -> Int32:
        """How many pages each row completes, if it begins at `position` and ends at `len` (`end`):
        so many KV ids belong to it in `commit`. Refused rows, and caches without KV: 0."""
        if self._cache.without_kv:
            return np.zeros(self.row_count, np.int32)
        page = self._cache.page_tokens
        end = self.end if len is None else np.asarray(len)
        counts = end // page - self.position // page
        return np.where(self.status == 0, counts, 0).astype(np.int32)

    def commit(self, kv_ids: Optional[RaggedLike] = None, len: Any = None) -> Array:
        """The step has finished on the device.

        `kv_ids`: int32, the ids of the pages that each row completed (Ragged, or a list of arrays;
        one item for each row, empty for refused ones; of one row also its ids alone, and [] for
        none); None: none of them did. `len`: the true
        length of each lease now; None: the ends that were granted. It is needed behind drafts.

        Returns an array of SAVED: what became of each state that was to be saved. All or nothing:
        on an error nothing changed, the step is still in flight, and `each` of the exception has a
        status for each row. Errors: those of sc_step_commit."""
        granted = np.flatnonzero(self.status == 0)
        results = np.zeros(granted.size, RESULT)
        results["lease"] = self.leases[granted]
        lengths = self.end if len is None else np.broadcast_to(np.asarray(len), self.row_count) \
            if np.ndim(len) == 0 else np.asarray(len)
        if lengths.shape != (self.row_count,):
            raise Invalid(f"len: {lengths.shape} items, {self.row_count} wanted")
        fill(results, "len", lengths[granted])
        if kv_ids is not None:
            batch = ragged(kv_ids, np.int32, "kv_ids", self.row_count)
            self._point_to_ids(results, granted, batch)
        each = np.zeros(granted.size, np.int32)
        saved = np.empty(2 * (self.layout.row_max + self.layout.save_max), SAVED)
        count = ffi.new("uint32_t *")
        try:
            with self._cache._handle as pointer:
                call("sc_step_commit_saved", pointer, self.number,
                     pointer_to(results, "sc_result"), results.size,
                     pointer_to(each, "sc_status"), pointer_to(saved, "sc_saved"), saved.size,
                     count)
        except Error as error:
            error.each = np.zeros(self.row_count, np.int32)
            error.each[granted] = each
            raise
        return saved[:min(count[0], saved.size)].copy()

    @staticmethod
    def _point_to_ids(results: Array, granted: Array, batch: Ragged) -> None:
        lengths = np.diff(batch.offsets)
        if lengths.sum() != lengths[granted].sum():
            raise Invalid("kv_ids: a row that was refused has completed no pages")
        address = batch.values.ctypes.data + batch.offsets[:-1] * batch.values.itemsize
        results["kv_count"] = lengths[granted]
        results["kv_ids"] = address[granted]

    def abort(self, launched: bool = False) -> None:
        """Gives the step up. Not launched: as if never planned (only the newest step). Launched:
        its leases are lost and its saves discarded. NotFound: it has ended; WrongState."""
        with self._cache._handle as pointer:
            call("sc_step_abort", pointer, self.number, bool(launched))


def leases_of(leases: Any, name: str = "leases") -> Array:
    """An array of LEASE from such an array, one lease, or a list of them."""
    if isinstance(leases, np.ndarray) and leases.dtype == LEASE and leases.ndim == 1:
        return leases if leases.flags.c_contiguous else leases.copy()
    handles = [getattr(lease, "handle", lease) for lease in (
        leases if isinstance(leases, (list, tuple)) else [leases])]
    out = np.zeros(len(handles), LEASE)
    for at, handle in enumerate(handles):
        if not isinstance(handle, np.void) or handle.dtype != LEASE:
            raise Invalid(f"{name}: leases are wanted, not {handle!r}")
        out[at] = handle
    return out
