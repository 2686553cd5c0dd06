# SPDX-License-Identifier: Apache-2.0
"""The life of a request in process: `sc_cache` (statecache/cache.h)."""
from __future__ import annotations

import threading
from typing import Any, Optional, Sequence, Union

import numpy as np

from ._arrays import (Array, ArrayLike, Int32, RaggedLike, dtype_of, exact, pointer_to, ragged,
                      whole)
from ._keys import ANSWER, LEASE, Hints, Namespace, keys_of, requests_of
from ._native import Closing, Handle, call, ffi, lib, new_options, text_of, with_text
from .errors import Invalid, error_of
from .lease import LEASE_INFO, Lease
from .pool import Pool
from .remote import Found
from .schema import c_text
from .step import BlockLayout, Step, leases_of, rows_of
from .tiers import DONE, KvMover, Moves, Tiers

# What the cache saves by itself: `save_flags`.
SAVE_PROMPT_END, SAVE_BRANCH, SAVE_DECODE, SAVE_END, SAVE_DEFAULT = 1, 2, 4, 8, 15

_NUMBERS = ("row_max", "save_max", "lease_max", "lease_token_max", "token_max",
            "path_snapshots_max", "save_flags", "decode_interval", "depth_max", "draft_max",
            "policy_interval", "policy_blocks", "event_bytes")
_SWITCHES = ("keep_cuts", "tails")
_REALS = ("flops_per_token", "flops_per_token2", "kv_token_bytes", "policy_alpha")
_TEXTS = ("policy", "decode_backend", "extend_backend")


def raise_for_status(each: Any) -> None:
    """Raises for the first status of an array that is not 0. Its text is the library's where one
    item alone of a batch failed, and `each` is what the call returned; else that of the code."""
    for at, status in enumerate(np.atleast_1d(np.asarray(each))):
        if status:
            text = getattr(each, "text", "") or text_of(lib.sc_status_text(int(status)))
            raise error_of(int(status), f"item {at}: {text}")


def _members(options: dict[str, Any]) -> dict[str, Any]:
    """Checked members of sc_cache_options."""
    out: dict[str, Any] = {}
    for name, value in options.items():
        if name in _NUMBERS:
            out[name] = whole(value, name, 64 if name in ("token_max", "event_bytes") else 32)
        elif name in _SWITCHES:
            out[name] = bool(value)
        elif name in _REALS:
            try:
                out[name] = float(value)
            except (TypeError, ValueError):
                raise Invalid(f"{name}: a number is wanted, not {value!r}") from None
        elif name in _TEXTS:
            out[name] = ffi.NULL if value is None else c_text(value, name)
        else:
            known = ", ".join((*_NUMBERS, *_SWITCHES, *_REALS, *_TEXTS))
            raise Invalid(f"there is no option {name!r}: {known}")
    return out


class Cache(Closing):
    """Which slot of a pool holds which state, and what to save, keep and evict.

        with Cache(pool, page_tokens=16) as cache:
            ns = cache.namespace()
            leases, status = cache.acquire(ns, tokens)
            step = cache.plan(leases, start, end)
            ...                                   # the forward reads step.source, writes step.dest
            step.commit(kv_ids)
            cache.release(leases)

    `options` are members of `sc_cache_options` by their names (row_max, save_max, lease_max,
    lease_token_max, token_max, path_snapshots_max, save_flags, decode_interval, keep_cuts,
    depth_max, draft_max, tails, policy, flops_per_token, ...): the header has their meaning.

    A cache is closed by `close`, or at the end of a `with` block: Busy while a lease is alive.

    Threads: look-ups, statistics and info from any thread, at any time; the calls that change
    something one after the other (the library serialises them). The interpreter's lock is not held
    in calls. Calls about one lease, or one step, must not overlap.

    Arguments are arrays (numpy; CPU tensors by DLPack) of int32, used without a copy, or lists.
    Ragged is what a batch of prompts is."""

    _said = "a cache was"

    def __init__(self, pool: Pool, page_tokens: int = 1, *, without_kv: bool = False,
                 extras: Optional[Pool] = None, tiers: Optional[Tiers] = None,
                 kv_mover: Optional[KvMover] = None, **options: Any) -> None:
        for name, value, kind in (("pool", pool, Pool), ("extras", extras, Pool),
                                  ("tiers", tiers, Tiers)):
            if not isinstance(value, kind) and (value is not None or name == "pool"):
                raise Invalid(f"{name}: a {kind.__name__} is wanted, not {type(value).__name__}")
        members = _members(options)
        c = new_options("sc_cache_options", page_tokens=whole(page_tokens, "page_tokens"),
                        without_kv=bool(without_kv), **members)
        out = ffi.new("sc_cache **")
        moves = None if kv_mover is None else Moves(kv_mover)
        if moves is not None:
            c.kv_mover = moves.struct
        with pool._handle as c.pool:
            if extras is not None:
                with extras._handle as c.extras:
                    self._create(c, tiers, out)
            else:
                self._create(c, tiers, out)
        self.page_tokens = int(page_tokens)
        self.without_kv = bool(without_kv)
        self._borrowed = (pool, extras, tiers, moves)
        if moves is not None:
            moves.cache = out[0]
        self._handle = Handle("cache", out[0])
        self._step_lock = threading.Lock()
        self._step_last = 0
        self._layout: Optional[BlockLayout] = None

    @staticmethod
    def _create(options: Any, tiers: Optional[Tiers], out: Any) -> None:
        if tiers is None:
            call("sc_cache_create", options, out)
            return
        with tiers._handle as options.tiers:
            call("sc_cache_create", options, out)

    @property
    def pool(self) -> Pool:
        """Where the states are."""
        return self._borrowed[0]

    def close(self) -> None:
        """Gives all slots back to the pool. Busy while a lease is alive; then nothing has changed.
        Waits for transfers between tiers. Twice is allowed."""
        self._handle.close(lambda pointer: call("sc_cache_destroy", pointer))

    def __enter__(self) -> "Cache":
        return self

    def _stays_open(self) -> None:
        _left_open.append(self._borrowed)  # it must stay: the library still has it

    # ----------------------------------------------------------------------------------- requests

    def namespace(self, fingerprint: Optional[bytes] = None, adapter_id: int = 0,
                  adapter_generation: int = 0) -> Namespace:
        """Opens (or finds) the namespace of these weights. `fingerprint`: None, or that of the
        pool's schema (Mismatch)."""
        out, c = ffi.new("sc_namespace *"), ffi.NULL
        if fingerprint is not None:
            if not isinstance(fingerprint, bytes) or len(fingerprint) != 16:
                raise Invalid("fingerprint: 16 bytes are wanted")
            c = ffi.new("sc_fingerprint *", (list(fingerprint),))
        with self._handle as pointer:
            call("sc_namespace_open", pointer, c, whole(adapter_id, "adapter_id", 64),
                 whole(adapter_generation, "adapter_generation", 64), out)
        return Namespace(out.id, out.generation)

    def close_namespace(self, ns: Namespace) -> None:
        """Drops all that is cached under it. Stale; Busy while a lease uses it."""
        with self._handle as pointer:
            call("sc_namespace_close", pointer, _namespace(ns))

    def lookup(self, ns: Namespace, tokens: RaggedLike, *, marks: Optional[RaggedLike] = None,
               len_max: Any = 0) -> Array:
        """How much of each prompt can be resumed, as an array of ANSWER (`sc_answer`: kv_len,
        state_len by tier, reason, status, ...). Changes nothing; a miss is no error."""
        keys, keep = keys_of(ns, tokens, marks, len_max)
        answers = np.zeros(keys.size, ANSWER)
        with self._handle as pointer:
            call("sc_cache_lookup", pointer, pointer_to(keys, "sc_key"), keys.size,
                 pointer_to(answers, "sc_answer"))
        del keep
        return answers

    def acquire(self, ns: Namespace, tokens: RaggedLike, *, marks: Optional[RaggedLike] = None,
                len_max: Any = 0, hints: Union[None, Hints, Sequence[Optional[Hints]]] = None,
                deadline_ns: Any = 0, flags: Any = 0, depth: Any = 0, external_len: Any = 0,
                now_ns: int = 0) -> tuple[Array, Int32]:
        """Takes a lease on each prompt: (array of LEASE, status of each). Status NO_SLOT: not now,
        try again after a release. Numbers are one for all or an array with one for each."""
        requests, keep = requests_of(ns, tokens, marks, len_max, hints, {
            "deadline_ns": deadline_ns, "flags": flags, "depth": depth,
            "external_len": external_len})
        leases = np.zeros(requests.size, LEASE)
        each = np.zeros(requests.size, np.int32)
        with self._handle as pointer:
            call("sc_cache_acquire", pointer, pointer_to(requests, "sc_request"), requests.size,
                 whole(now_ns, "now_ns", 64), pointer_to(leases, "sc_lease"),
                 pointer_to(each, "sc_status"))
            each = with_text(each)
        del keep
        return leases, each

    def acquire_one(self, ns: Namespace, tokens: ArrayLike, **arguments: Any) -> Lease:
        """One request; refusals are raised (NoSlot: try again after a release)."""
        batch = ragged(tokens, np.int32, "tokens", 1)
        if not batch.offsets[-1] - batch.offsets[0]:
            raise Invalid("tokens: the prompt is empty")
        leases, each = self.acquire(ns, batch, **arguments)
        if each[0]:
            raise error_of(int(each[0]), text_of(lib.sc_last_error().text))
        return Lease(self, leases[0])

    def lease(self, handle: Any) -> Lease:
        """The lease of an item of `acquire`'s array."""
        return Lease(self, handle)

    def infos(self, leases: Any) -> Array:
        """What each lease is now: an array of LEASE_INFO (`sc_lease_info`). Stale. Threads: any."""
        handles = leases_of(leases)
        out = np.zeros(handles.size, LEASE_INFO)
        with self._handle as pointer:
            c, infos = pointer_to(handles, "sc_lease"), pointer_to(out, "sc_lease_info")
            for at in range(handles.size):
                call("sc_lease_info_get", pointer, c[at], infos + at)
        return out

    def append(self, leases: Any, tokens: RaggedLike) -> Int32:
        """Adds tokens to each lease (`tokens`: an item for each; a flat int32 array of as many
        tokens as there are leases: one for each). Returns a status for each: the library takes
        them one by one, and one that is refused does not hold up the others."""
        handles = leases_of(leases)
        if isinstance(tokens, np.ndarray) and tokens.ndim == 1 and tokens.size == handles.size:
            tokens = tokens[:, None]
        batch = ragged(tokens, np.int32, "tokens", handles.size)
        each = np.zeros(handles.size, np.int32)
        bounds = batch.offsets.tolist()
        with self._handle as pointer:
            c, values = pointer_to(handles, "sc_lease"), pointer_to(batch.values, "int32_t")
            append = lib.sc_lease_append
            for at in range(handles.size):
                each[at] = append(pointer, c[at], values + bounds[at],
                                  bounds[at + 1] - bounds[at])
        return each

    def release(self, leases: Any, keep: bool = True) -> Int32:
        """Ends each lease, at its committed length. Returns a status for each, as `append`."""
        handles = leases_of(leases)
        each = np.zeros(handles.size, np.int32)
        with self._handle as pointer:
            c = pointer_to(handles, "sc_lease")
            for at in range(handles.size):
                each[at] = lib.sc_lease_release(pointer, c[at], 0, int(bool(keep)))
        return each

    # -------------------------------------------------------------------------------------- steps

    def plan(self, leases: Any, start: Any, end: Any, *, points: Optional[RaggedLike] = None,
             drafts: Any = 0, parents: Optional[RaggedLike] = None, number: Optional[int] = None,
             now_ns: int = 0, out: Optional[Int32] = None) -> Step:
        """Plans one forward of the tokens [start, end) of each lease.

        `points`: positions to save besides (uint32; an item for each row). `drafts`, `parents`:
        speculative tokens at a row's end. `number`: None counts on from the last. `out`: an int32
        array of at least `layout.words` words (pinned memory, say) that gets the block; None: a
        new one. Rows that are refused (a lease that was released, say) raise nothing: `status` of
        the step has why, `raise_for_status(step.status)` raises it.
        Errors (nothing is planned): those of sc_step_plan."""
        handles = leases_of(leases)
        rows, keep = rows_of(handles, start, end, points, drafts, parents)
        batch = ffi.new("sc_batch *")
        each = np.zeros(handles.size, np.int32)
        if out is not None:
            out = exact(out, np.int32, "out")
            if not out.flags.writeable:
                raise Invalid("out: it cannot be written")
            if self._layout is not None and out.size < self._layout.words:
                raise Invalid(f"out: {out.size} words, {self._layout.words} are needed")
        with self._step_lock, self._handle as pointer:
            step = self._step_last + 1 if number is None else whole(number, "number", 64)
            call("sc_step_plan", pointer, step, pointer_to(rows, "sc_row"), handles.size,
                 whole(now_ns, "now_ns", 64), batch, pointer_to(each, "sc_status"))
            each = with_text(each)
            self._step_last = step
            if self._layout is None:
                self._layout = BlockLayout(batch)
            words = np.frombuffer(ffi.buffer(batch.block, 4 * batch.block_words), np.int32)
            if out is not None and out.size < words.size:
                call("sc_step_abort", pointer, step, False)
                raise Invalid(f"out: {out.size} words, {words.size} are needed")
            block = words.copy() if out is None else out[:words.size]
            if out is not None:
                block[...] = words
        del keep
        return Step(self, step, handles.copy(), each, batch, self._layout, block)

    # -------------------------------------------------------------------------------- the whole

    def room(self) -> dict[str, int]:
        """Slots and pages, free, evictable, held: `sc_room`."""
        with self._handle as pointer:
            return _numbers("sc_room", lambda out: call("sc_cache_room", pointer, out))

    def evict(self, pages: int = 0, slots: int = 0) -> dict[str, int]:
        """Evicts until so many pages and snapshots went, or nothing is left; what was gained."""
        c = whole(pages, "pages"), whole(slots, "slots")
        with self._handle as pointer:
            return _numbers("sc_room", lambda out: call("sc_cache_evict", pointer, *c, out))

    def drain(self) -> Int32:
        """Takes all KV ids that the cache has let go: they are the engine's again."""
        found, count = [], ffi.new("uint32_t *")
        while True:
            out = np.empty(4096, np.int32)
            with self._handle as pointer:
                call("sc_cache_drain", pointer, pointer_to(out, "int32_t"), out.size, count)
            found.append(out[:count[0]])
            if count[0] < out.size:
                return np.concatenate(found)

    def trim(self, token_max: int = 0) -> int:
        """Gives memory of the index back to the system, for idle moments; how many bytes."""
        out = ffi.new("uint64_t *")
        with self._handle as pointer:
            call("sc_cache_trim", pointer, whole(token_max, "token_max", 64), out)
        return int(out[0])

    def poll(self, cap: int = 1024) -> Array:
        """Transfers between tiers that have ended here: an array of DONE (ticket, status)."""
        out, count = np.zeros(whole(cap, "cap"), DONE), ffi.new("uint32_t *")
        with self._handle as pointer:
            call("sc_cache_poll", pointer, pointer_to(out, "sc_done"), out.size, count)
        return out[:count[0]]

    def apply(self, done: Array, now_ns: int = 0) -> None:
        """These transfers have taken effect; all ranks apply the same lists. One rank alone:
        `cache.apply(cache.poll())` once a step. Errors: those of sc_cache_apply."""
        array = exact(done, DONE, "done")
        with self._handle as pointer:
            call("sc_cache_apply", pointer, pointer_to(array, "sc_done"), array.size,
                 whole(now_ns, "now_ns", 64))

    def find(self, ns: Namespace, tokens: RaggedLike, *, marks: Optional[RaggedLike] = None,
             len_max: Any = 0, history: Optional[RaggedLike] = None) -> Found:
        """Asks the remote tier what it has of each prompt: other processes store there, too.
        Changes nothing; waits for the service's answer. `history`: how the tokens are computed
        (HISTORY, an item for each prompt), None: one prefill each; a state that came to be in
        another way is not found. Threads: any. Errors: those of sc_cache_find."""
        found = Found(ns, tokens, marks, len_max, history)
        with self._handle as pointer:
            call("sc_cache_find", pointer, pointer_to(found._finds, "sc_find"), found._finds.size)
        return found

    def learn(self, found: Found, now_ns: int = 0) -> None:
        """The states that were found are there from now on, for look-ups and acquire; `status` of
        `found` says which were not taken. Ranks agree on the least `len` in between. One that is
        gone meanwhile is a miss (Reason.TIER_FAILED). Errors: those of sc_cache_learn."""
        if not isinstance(found, Found):
            raise Invalid(f"found: what Cache.find returned is wanted, not {type(found).__name__}")
        with self._handle as pointer:
            call("sc_cache_learn", pointer, pointer_to(found._finds, "sc_find"),
                 found._finds.size, whole(now_ns, "now_ns", 64))

    def stats(self) -> dict[str, Any]:
        """Counters since creation: `sc_cache_stats`; those by reason, kind or cause as lists."""
        out = ffi.new("sc_cache_stats *")
        out.struct_size = ffi.sizeof("sc_cache_stats")
        with self._handle as pointer:
            call("sc_cache_stats_get", pointer, out)
        record = np.frombuffer(ffi.buffer(out), dtype_of("sc_cache_stats"))[0]
        return {name: record[name].tolist() for name in record.dtype.names or ()
                if name != "struct_size"}

    def verify(self) -> None:
        """Walks everything. Corrupt: a fault of the library. O(everything); look-ups go on."""
        with self._handle as pointer:
            call("sc_cache_verify", pointer)

    def dump(self, ns: Namespace) -> str:
        """A picture of a namespace's tree, for humans."""
        lines: list[str] = []
        write = ffi.callback("void(void *, const char *)",
                             lambda _, line: lines.append(text_of(line)))
        with self._handle as pointer:
            call("sc_cache_dump", pointer, _namespace(ns), write, ffi.NULL)
        return "\n".join(lines)


_left_open: list[Any] = []


def _namespace(ns: Any) -> Any:
    if not isinstance(ns, Namespace):
        raise Invalid(f"ns: a Namespace is wanted (Cache.namespace), not {type(ns).__name__}")
    return ffi.new("sc_namespace *", (whole(ns.id, "ns"), whole(ns.generation, "ns")))[0]


def _numbers(struct: str, get: Any) -> dict[str, int]:
    """A struct of numbers as a dict."""
    out = ffi.new(struct + " *")
    get(out)
    return {name: int(getattr(out, name)) for name, _ in ffi.typeof(struct).fields}
