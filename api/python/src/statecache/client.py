# SPDX-License-Identifier: Apache-2.0
"""The daemon's client: states that the processes of a machine share (statecache/client.h).

    with Client("unix:/run/statecached.sock", tenant="shop") as client:
        state = client.acquire_one(tokens)         # the longest prefix that is there
        if state.len:
            matrix = state.view(layer=0)           # the service's own memory, read-only
        with client.write(tokens) as write:        # memory to fill, if nobody has written it yet
            if not write.exists:
                write.view(layer=0)[...] = new

Over a Unix socket nothing is copied: what `view` gives is a sealed file of the service, mapped.
"""
from __future__ import annotations

import dataclasses
import importlib
import os
import pathlib
import threading
import weakref
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

from ._arrays import (Array, ArrayLike, Int32, RaggedLike, dtype_of, fill, point_to, pointer_to,
                      ragged, whole)
from ._bf16 import shown
from ._dlpack import CODES, CPU, Tensor, array_over, memory_of
from ._keys import AGAIN, ANSWER, MARK
from ._native import (VERSION, Closing, Handle, ffi, lib, new_options, open_library,
                      text_of)
from .errors import (Busy, Error, Invalid, Mismatch, NotFound, Stale, Status, Unsupported,
                     WrongState, error_of)
from .lease import Reason, reason_text
from .schema import DTYPES, KINDS, c_text, name_in, name_of

_KEY = dtype_of("sc_client_key")
_STATE = dtype_of("sc_client_state")
_lock = threading.Lock()
_library: Any = None


def _client_library() -> Any:
    """STATECACHE_CLIENT_LIBRARY if it is set; else the one of the wheel."""
    global _library
    with _lock:
        if _library is None:
            path = os.environ.get("STATECACHE_CLIENT_LIBRARY") or str(
                pathlib.Path(__file__).parent / "lib" / "libstatecache_client.so")
            try:
                library = open_library(path)
                found = text_of(library.sc_client_version())
            except (OSError, AttributeError, ffi.error) as problem:
                raise Unsupported(f"the client's library cannot be loaded: {problem} (it needs "
                                  "libmsgpackc2)") from None
            if found != VERSION:
                raise Unsupported(f"{path} is statecache {found}, this package is made for "
                                  f"{VERSION}")
            _library = library
    return _library


def _failure(status: int) -> Error:
    info = _library.sc_client_last_error()
    text = text_of(info.text) if info.status == status else ""
    return error_of(status, text or text_of(lib.sc_status_text(status)), info.system_code)


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_library, name)(*arguments)
    if status:
        raise _failure(status)


def client_options(address: str, token: Optional[str], tenant: Optional[str],
                   fingerprint: Optional[bytes], timeout_ms: int) -> tuple[Any, list[Any]]:
    """The options, and what must live as long as they do; the client's library is there then."""
    _client_library()
    keep = [c_text(address, "address")]
    options = new_options("sc_client_options", address=keep[0],
                          timeout_ms=whole(timeout_ms, "timeout_ms"))
    for name, value in (("token", token), ("tenant", tenant)):
        if value is not None:
            keep.append(c_text(value, name))
            setattr(options, name, keep[-1])
    if fingerprint is not None:
        if not isinstance(fingerprint, bytes) or len(fingerprint) != 16:
            raise Invalid("fingerprint: 16 bytes are wanted")
        keep.append(ffi.new("sc_fingerprint *", (list(fingerprint),)))
        options.fingerprint = keep[-1]
    return options, keep


@dataclasses.dataclass(frozen=True)
class ClientInfo:
    """What the service said when it was connected: members of `sc_client_info`."""
    server: str
    model: str
    fingerprint: bytes
    state_bytes: int
    file_bytes: int
    page_tokens: int
    grid: int
    files: bool
    frame_bytes: int
    key_tokens: int
    keys: int
    leases: int
    writes: int


@dataclasses.dataclass(frozen=True)
class StatePart:
    """One part of a state, as the service's shard has it, and where it lies in its bytes."""
    layer: int
    kind: str
    index: int
    dtype: str
    dims: tuple[int, ...]
    offset: int
    bytes: int

    @property
    def key(self) -> tuple[int, str, int]:
        """What `view` and `tensor` take."""
        return self.layer, self.kind, self.index


class Quota(NamedTuple):
    """What a tenant has, may have (0: no limit), and how many writes were refused for it."""
    bytes: int
    bytes_max: int
    refused: int


class Evicted(NamedTuple):
    """What went: states of slots, copies of lower tiers; and what is in use and stays."""
    states: int
    copies: int
    held: int


DIFFERS = ("nothing", "end", "token", "mark")


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Why no more of a prompt could be resumed: `sc_client_explanation`."""
    reason: Reason
    state_len: tuple[int, ...]  # by tier: device, host, disk, remote
    match_len: int              # leading tokens that the service's index has
    differs: str                # what stands there: one of DIFFERS ("mark": another tenant, image,
                                # or the same tokens computed in other stretches, HISTORY)
    token_here: Optional[int]   # "token"
    token_there: Optional[int]
    tenant_there: str           # "mark": whose it is, if that is known
    beyond_len: int             # a state beyond len_max, else 0
    evicted_len: int            # the longest that was evicted, else 0
    common_len: int             # the tenant's mark stands there


class _Memory:
    """Bytes that were detached from their lease: held by every array over them."""

    def __init__(self, struct: Any) -> None:
        self.struct = struct
        self.address = int(ffi.cast("uintptr_t", struct.data))

    def __del__(self) -> None:
        _library.sc_client_bytes_free(self.struct)


class _Filling:
    """Held by every array over a state that is being written."""

    def __init__(self, write: "Write") -> None:
        self.write = write


def _dense(part: StatePart) -> tuple[int, ...]:
    strides = [CODES[part.dtype][1] // 8]
    for dim in part.dims[:0:-1]:
        strides.insert(0, strides[0] * dim)
    return tuple(strides)


class State:
    """A state that is held: the longest one that the service has for a prompt.

    `len` tokens of the prompt are in it; 0: a miss, and nothing is held. `reason` says why not
    more. It is given back by `release`, at the end of a `with` block, or when nothing refers to it
    any more.

    Arrays and tensors over its bytes stay valid, and the bytes unchanged, after the release, the
    end of the client and of the service: they keep the memory, which the service then does not
    count any more."""

    __slots__ = ("_client", "_kept", "_lease", "_memory", "len", "reason", "__weakref__")

    def __init__(self, client: "Client", lease: int, len: int, reason: Reason,
                 memory: Optional[_Memory], kept: bool = False) -> None:
        self._client = client
        self._kept = kept  # a pin that outlives the connection, and this object
        self._lease = lease
        self._memory = memory
        self.len = len
        self.reason = reason

    def __repr__(self) -> str:
        return f"<State of {self.len} tokens: {reason_text(self.reason)}>"

    @property
    def held(self) -> bool:
        """Whether there is a lease on it."""
        return self._lease != 0

    def _bytes(self) -> _Memory:
        if self._memory is None:
            raise NotFound("there is no state: it is a miss, or a pin" if self._lease == 0
                           else "a pin has no bytes: acquire it")
        return self._memory

    def view(self, layer: int, kind: str = "recurrent", index: int = 0) -> Array:
        """One part as a read-only array, in place; bf16 as its bits (from_bf16). NotFound: there is
        no such part, or no state."""
        memory, part = self._bytes(), self._client._part(layer, kind, index)
        array = array_over(memory, memory.address + part.offset, part.dims, _dense(part),
                           part.dtype)
        array.flags.writeable = False
        return shown(array, part.dtype)

    def tensor(self, layer: int, kind: str = "recurrent", index: int = 0) -> Tensor:
        """The same for `torch.from_dlpack`: any dtype. It must not be written: the memory is
        mapped for reading alone, and a write ends the process."""
        memory, part = self._bytes(), self._client._part(layer, kind, index)
        return Tensor(array_over(memory, memory.address + part.offset, part.dims, _dense(part),
                                 part.dtype), part.dtype, (CPU, 0), readonly=True)

    @property
    def data(self) -> Array:
        """All bytes (`file_bytes`), read-only; `Client.parts` says where what lies."""
        memory = self._bytes()
        array = array_over(memory, memory.address, (int(memory.struct.bytes),), (1,), "u8")
        array.flags.writeable = False
        return array

    def release(self) -> None:
        """Gives the lease back. Twice is allowed. Stale: the service had taken it already (its
        time was over, or the connection ended)."""
        lease, self._lease = self._lease, 0
        if lease:
            self._client._release([lease])

    def __enter__(self) -> "State":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            self.release()
        except Error:
            if kind is None:
                raise

    def __del__(self) -> None:
        if self._lease and not self._kept:
            self._client._abandoned.append(self._lease)  # given back with the next call


class Write:
    """A state that is being written: memory of zeros to fill, then `commit`.

    All of it is to be filled, every part of every layer (`Client.parts`): what is left out is
    stored as zeros. A write of which nothing was asked for (`view`, `tensor`, `data`, `fill`) is
    not stored: WrongState.

    `exists`: somebody has written it before; then there is nothing to do, and no memory.

    A `with` block commits at its end, or aborts if it ends in an exception. Arrays and tensors over
    the memory must be gone by then (`del`): Busy, since what is written to them later would be
    lost."""

    def __init__(self, client: "Client", struct: Any) -> None:
        self._client = client
        self._struct = struct
        self._filling: Any = lambda: None
        self._touched = False  # somebody had memory to fill
        self.exists = struct.write == 0
        self.stored: Optional[bool] = None  # what commit said
        if not self.exists:
            client._writes.add(self)

    def _memory(self) -> tuple[_Filling, int]:
        if self.exists:
            raise NotFound("the service has this state: there is nothing to write")
        if self._struct.write == 0:
            raise Stale("this write has ended")
        filling = self._filling()
        if filling is None:
            filling = _Filling(self)
            self._filling = weakref.ref(filling)
        return filling, int(ffi.cast("uintptr_t", self._struct.data))

    def view(self, layer: int, kind: str = "recurrent", index: int = 0) -> Array:
        """One part as an array to be written, in place; bf16 as its bits, which refuse numbers
        (to_bf16)."""
        return shown(*self._array(layer, kind, index))

    def tensor(self, layer: int, kind: str = "recurrent", index: int = 0) -> Tensor:
        """The same for `torch.from_dlpack`: any dtype."""
        array, dtype = self._array(layer, kind, index)
        return Tensor(array, dtype, (CPU, 0))

    def _array(self, layer: int, kind: str, index: int) -> tuple[Array, str]:
        filling, address = self._memory()
        part = self._client._part(layer, kind, index)
        self._touched = True
        return array_over(filling, address + part.offset, part.dims, _dense(part),
                          part.dtype), part.dtype

    @property
    def data(self) -> Array:
        """All bytes (`file_bytes`)."""
        filling, address = self._memory()
        self._touched = True
        return array_over(filling, address, (int(self._struct.bytes),), (1,), "u8")

    def fill(self, values: Union[Mapping[Any, Any], Sequence[Any]]) -> None:
        """Copies a whole state: an array or tensor for each part, in the order of `Client.parts`,
        or by (layer, kind, index); bf16 as tensors, or as bits (to_bf16).
        Mismatch: one is missing, or of another shape or dtype; nothing was copied."""
        parts = self._client.parts
        if isinstance(values, Mapping):
            try:
                given = [values[part.key] for part in parts]
            except KeyError as problem:
                raise Mismatch(f"values: there is none for {problem.args[0]}") from None
        else:
            given = list(values)
        if len(given) != len(parts) or len(values) != len(parts):
            raise Mismatch(f"values: {len(values)} for {len(parts)} parts")
        sources = [_source(part, value) for part, value in zip(parts, given)]
        for part, source in zip(parts, sources):
            self._array(*part.key)[0][...] = source

    def _end(self) -> None:
        if self._struct.write == 0:
            raise Stale("this write has ended")
        if self._filling() is not None:
            raise Busy("an array or tensor over this state is alive: del it first")

    def commit(self) -> bool:
        """The state is complete: others can acquire it now. False: the cache had no use for it.
        Busy, WrongState: see above; the write goes on. Errors end it: those of
        sc_client_write_commit."""
        if self.exists:
            return False
        self._end()
        if not self._touched:
            raise WrongState("nothing was filled: fill every part of the state (view, tensor, "
                             "data, fill), or abort the write")
        stored = ffi.new("bool *")
        self._client._writes.discard(self)
        with self._client._using() as pointer:
            _call("sc_client_write_commit", pointer, self._struct, stored)
        self.stored = bool(stored[0])
        return self.stored

    def abort(self) -> None:
        """Gives the room back. Twice is allowed. Busy."""
        if self.exists or self._struct.write == 0:
            return
        self._end()
        self._client._writes.discard(self)
        with self._client._using() as pointer:
            _call("sc_client_write_abort", pointer, self._struct)

    def __enter__(self) -> "Write":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self._struct.write == 0:
            return
        if kind is None:
            try:
                self.commit()
            except WrongState:
                self.abort()  # unless that has ended it
                raise
            return
        try:
            self.abort()
        except Error:
            pass  # the exception says more; an array over it keeps it: its end aborts it

    def __del__(self) -> None:
        if self._struct.write:
            self._client._given_up.append(self._struct)  # aborted with the next call


def _source(part: StatePart, value: Any) -> Any:
    """A value for a part, of its dtype and shape."""
    if isinstance(value, np.ndarray):
        array = value
    else:
        memory = memory_of(value, f"layer {part.layer}, {part.kind}")
        names = [name for name, code in CODES.items() if code[:2] == (memory.code, memory.bits)]
        if not names or names[0] != part.dtype or memory.device[0] != CPU:
            raise Mismatch(f"layer {part.layer}, {part.kind}: {part.dtype} on the CPU is wanted")
        array = array_over(memory, memory.address, memory.shape,
                           tuple(stride * memory.bits // 8 for stride in memory.strides),
                           part.dtype)
    if array.dtype != np.dtype(CODES[part.dtype][2]) or array.shape != part.dims:
        raise Mismatch(f"layer {part.layer}, {part.kind}: {array.dtype} {array.shape}, "
                       f"{part.dtype} {part.dims} is wanted")
    return array


class Client(Closing):
    """A connection to statecached.

        Client("unix:/path/of/the/socket")
        Client("tcp:127.0.0.1:7077", token="...")       states are copied then

    `tenant`: whose keys these are, unless a call says otherwise. `fingerprint`: 16 bytes (of
    `Schema.fingerprint`); Mismatch unless the service's model has it. `timeout_ms`: of each call.

    Keys are tokens (int32; as `Cache.lookup` takes them) and, by name, `marks`, `len_max`,
    `adapter` (id, generation) and `tenant`. Batches are one round trip.

    What it holds is given back when it is closed, or dies. After ConnectionClosed every call raises
    that until `reconnect`.

    Threads: any; calls are carried out one after the other. The interpreter's lock is not held
    meanwhile. After fork, open another one."""

    _said = "a client was"

    def __init__(self, address: str, *, token: Optional[str] = None, tenant: Optional[str] = None,
                 fingerprint: Optional[bytes] = None, timeout_ms: int = 0) -> None:
        options, keep = client_options(address, token, tenant, fingerprint, timeout_ms)
        out = ffi.new("sc_client **")
        self._writes: weakref.WeakSet[Write] = weakref.WeakSet()
        self._abandoned: list[int] = []
        self._given_up: list[Any] = []
        self._parts: Optional[list[StatePart]] = None
        _call("sc_client_open", options, out)
        del keep
        self._handle = Handle("client", out[0])
        self._close = _library.sc_client_close

    def close(self) -> None:
        """Ends the connection. Busy: an array over an open write is alive, or another thread is in
        a call. Twice is allowed."""
        def destroy(pointer: Any) -> None:
            if any(write._filling() is not None for write in self._writes):
                raise Busy("an array or tensor over an open write is alive")
            self._close(pointer)
            for write in self._writes:
                write._struct.write = 0
        self._handle.close(destroy)

    def __enter__(self) -> "Client":
        return self

    def _using(self) -> Handle:
        """The handle; states that nothing refers to any more are given back first."""
        while self._given_up:
            with self._handle as pointer:
                _library.sc_client_write_abort(pointer, self._given_up.pop())
        if self._abandoned:
            leases, self._abandoned = self._abandoned, []
            try:
                self._release(leases)
            except Error:
                pass  # they are gone: the connection has ended, or it is closed
        return self._handle

    def _release(self, leases: list[int]) -> None:
        if self._handle.closed:
            return  # all of it went with the connection
        states = np.zeros(len(leases), _STATE)
        states["lease"] = leases
        with self._handle as pointer:
            _call("sc_client_release", pointer, pointer_to(states, "sc_client_state"), states.size)

    def reconnect(self) -> int:
        """Opens another connection with the same arguments, say after a restart of the service. All
        leases, pins and writes are gone; returns how many leases with bytes and writes there were.
        Their arrays stay readable. Errors: as the constructor's, and Mismatch: the service has
        another model now."""
        self._abandoned = []
        lost = ffi.new("uint32_t *")
        with self._handle as pointer:
            _call("sc_client_reconnect", pointer, lost)
        self._parts = None
        return int(lost[0])

    # ------------------------------------------------------------------------------ the service

    @property
    def info(self) -> ClientInfo:
        """What the service said of itself. Never waits."""
        out = ffi.new("sc_client_info *")
        out.struct_size = ffi.sizeof("sc_client_info")
        with self._handle as pointer:
            _call("sc_client_info_get", pointer, out)
        values = {field.name: getattr(out, field.name)
                  for field in dataclasses.fields(ClientInfo)
                  if field.name not in ("server", "model", "fingerprint")}
        return ClientInfo(text_of(out.server), text_of(out.model), bytes(out.fingerprint.bytes),
                          **values)

    @property
    def parts(self) -> list[StatePart]:
        """What a state consists of, in the order of the schema. Asks the service once."""
        if self._parts is None:
            count = ffi.new("uint32_t *")
            with self._using() as pointer:
                out = ffi.new("sc_client_part[]", 256)
                status = _library.sc_client_parts(pointer, out, 256, count)
                if status == Status.LIMIT:
                    out = ffi.new("sc_client_part[]", count[0])
                    status = _library.sc_client_parts(pointer, out, count[0], count)
                if status:
                    raise _failure(status)
            self._parts = [_part_of(out[at]) for at in range(count[0])]
        return list(self._parts)

    def _part(self, layer: int, kind: str, index: int) -> StatePart:
        name_in(KINDS, kind, "kind")
        for part in self.parts:
            if part.key == (layer, kind, index):
                return part
        raise NotFound(f"there is no part (layer {layer}, {kind}, {index}) in this shard")

    # --------------------------------------------------------------------------------- requests

    def _keys(self, tokens: RaggedLike, marks: Optional[RaggedLike], len_max: Any,
              adapter: tuple[int, int], tenant: Optional[str]) -> tuple[Array, list[Any]]:
        batch = ragged(tokens, np.int32, "tokens")
        keys = np.zeros(batch.offsets.size - 1, _KEY)
        point_to(keys, "tokens", "token_count", batch)
        keep: list[Any] = [batch]
        if marks is not None:
            mark_batch = ragged(marks, MARK, "marks", keys.size)
            point_to(keys, "marks", "mark_count", mark_batch)
            keep.append(mark_batch)
        fill(keys, "len_max", len_max)
        if not isinstance(adapter, tuple) or len(adapter) != 2:
            raise Invalid("adapter: (id, generation) is wanted")
        keys["adapter_id"] = whole(adapter[0], "adapter", 64)
        keys["adapter_generation"] = whole(adapter[1], "adapter", 64)
        if tenant is not None:
            text = c_text(tenant, "tenant")
            keys["tenant"] = int(ffi.cast("uintptr_t", text))
            keep.append(text)
        return keys, keep

    def _one(self, tokens: ArrayLike, marks: Optional[RaggedLike], adapter: tuple[int, int],
             tenant: Optional[str]) -> tuple[Array, list[Any]]:
        return self._keys(ragged(tokens, np.int32, "tokens", 1), marks, 0, adapter, tenant)

    def lookup(self, tokens: RaggedLike, *, marks: Optional[RaggedLike] = None, len_max: Any = 0,
               adapter: tuple[int, int] = (0, 0), tenant: Optional[str] = None) -> Array:
        """How much of each prompt could be resumed: an array of ANSWER, as `Cache.lookup`. Changes
        nothing. Errors: those of sc_client_lookup; per item in `status`."""
        keys, keep = self._keys(tokens, marks, len_max, adapter, tenant)
        answers = np.zeros(keys.size, ANSWER)
        with self._using() as pointer:
            _call("sc_client_lookup", pointer, pointer_to(keys, "sc_client_key"), keys.size,
                  pointer_to(answers, "sc_answer"))
        del keep
        return answers

    def acquire(self, tokens: RaggedLike, *, marks: Optional[RaggedLike] = None, len_max: Any = 0,
                adapter: tuple[int, int] = (0, 0), tenant: Optional[str] = None,
                deadline_ms: int = 0, again: Any = False) -> tuple[list[State], Int32]:
        """Takes a lease on the longest state of each prompt: (states, status of each). Waits for
        lower tiers, `deadline_ms` at most (0: no limit). Status NO_SLOT, AGAIN: not now. `again`
        (one for all, or an array): requests that were preempted and are back; the service counts
        their tokens apart."""
        keys, keep = self._keys(tokens, marks, len_max, adapter, tenant)
        back = np.asarray(again)
        if back.dtype != np.bool_:
            raise Invalid(f"again: True, False, or an array of them is wanted, not {again!r}")
        fill(keys, "flags", back.astype(np.uint32) * AGAIN, "again")
        states = np.zeros(keys.size, _STATE)
        each = np.zeros(keys.size, np.int32)
        found = []
        with self._using() as pointer:
            _call("sc_client_acquire", pointer, pointer_to(keys, "sc_client_key"), keys.size,
                  whole(deadline_ms, "deadline_ms"), pointer_to(states, "sc_client_state"),
                  pointer_to(each, "sc_status"))
            c = pointer_to(states, "sc_client_state")
            for at in range(keys.size):
                memory = None
                if c[at].lease:
                    struct = ffi.new("sc_client_bytes *")
                    _call("sc_client_detach", pointer, c + at, struct)
                    memory = _Memory(struct)
                found.append(State(self, int(c[at].lease), int(c[at].len), Reason(c[at].reason),
                                   memory))
        del keep
        return found, each

    def acquire_one(self, tokens: ArrayLike, **arguments: Any) -> State:
        """One prompt; refusals are raised (NoSlot, NotNow). A miss is a state of length 0."""
        batch = ragged(tokens, np.int32, "tokens", 1)
        if not batch.offsets[-1] - batch.offsets[0]:
            raise Invalid("tokens: the prompt is empty")
        states, each = self.acquire(batch, **arguments)
        if each[0]:
            raise _failure(int(each[0]))
        return states[0]

    def release(self, states: Sequence[State]) -> None:
        """Gives back what is held, in one round trip. Stale: some of it was not held any more."""
        leases = []
        for state in states:
            if not isinstance(state, State) or state._client is not self:
                raise Invalid(f"states: a State of this client is wanted, not {state!r}")
            if state._lease:
                leases.append(state._lease)
        for state in states:
            state._lease = 0
        if leases:
            with self._using():
                self._release(leases)

    # ----------------------------------------------------------------------------------- writing

    def write(self, tokens: ArrayLike, *, marks: Optional[RaggedLike] = None,
              adapter: tuple[int, int] = (0, 0), tenant: Optional[str] = None) -> Write:
        """Room for the state after all of these tokens. NotNow, NoSlot; LimitReached: the tenant's
        bytes; other errors: those of sc_client_write_begin."""
        key, keep = self._one(tokens, marks, adapter, tenant)
        struct = ffi.new("sc_client_write *")
        with self._using() as pointer:
            _call("sc_client_write_begin", pointer, pointer_to(key, "sc_client_key"), struct)
        del keep
        return Write(self, struct)

    def store(self, tokens: ArrayLike, values: Union[Mapping[Any, Any], Sequence[Any]],
              **arguments: Any) -> bool:
        """`write`, `fill` with copies of these arrays, and `commit`. False: the service had it
        already, or no use for it."""
        with self.write(tokens, **arguments) as write:
            if not write.exists:
                write.fill(values)
        return bool(write.stored)

    # ---------------------------------------------------------------------------------- managing

    def pin(self, tokens: ArrayLike, seconds: int = 0, keep: bool = False, *,
            marks: Optional[RaggedLike] = None, adapter: tuple[int, int] = (0, 0),
            tenant: Optional[str] = None) -> State:
        """Keeps the longest state of a prompt from being evicted, for `seconds` (0: no limit),
        until it is released, or the connection ends; with `keep` it outlives the connection (and
        must be given seconds). It has no bytes. A miss: length 0."""
        key, alive = self._one(tokens, marks, adapter, tenant)
        out = np.zeros(1, _STATE)
        with self._using() as pointer:
            _call("sc_client_pin", pointer, pointer_to(key, "sc_client_key"),
                  whole(seconds, "seconds"), bool(keep), pointer_to(out, "sc_client_state"))
        del alive
        return State(self, int(out[0]["lease"]), int(out[0]["len"]),
                     Reason(int(out[0]["reason"])), None, bool(keep))

    def evict(self, states: int) -> int:
        """Evicts so many states, least valuable first; how many went."""
        out = ffi.new("uint32_t *")
        with self._using() as pointer:
            _call("sc_client_evict", pointer, whole(states, "states"), out)
        return int(out[0])

    def evict_prefix(self, tokens: Optional[ArrayLike] = None, *,
                     marks: Optional[RaggedLike] = None, adapter: tuple[int, int] = (0, 0),
                     tenant: Optional[str] = None) -> Evicted:
        """Evicts all that begins with these tokens, from every tier; without tokens all of the
        tenant, and without a tenant either everything. What is in use stays."""
        given = np.empty(0, np.int32) if tokens is None else tokens
        key, keep = self._one(given, marks, adapter, tenant)
        if tokens is not None and not key["token_count"][0]:
            raise Invalid("tokens: the prompt is empty (None: all of the tenant, or everything)")
        out = ffi.new("sc_evicted *")
        with self._using() as pointer:
            _call("sc_client_evict_prefix", pointer, pointer_to(key, "sc_client_key"), out)
        del keep
        return Evicted(int(out.states), int(out.copies), int(out.held))

    def explain(self, tokens: ArrayLike, *, marks: Optional[RaggedLike] = None,
                len_max: int = 0, adapter: tuple[int, int] = (0, 0),
                tenant: Optional[str] = None) -> Explanation:
        """Why no more of this prompt could be resumed, and what stands against it."""
        key, keep = self._keys(ragged(tokens, np.int32, "tokens", 1), marks, len_max, adapter,
                               tenant)
        out = ffi.new("sc_client_explanation *")
        out.struct_size = ffi.sizeof("sc_client_explanation")
        with self._using() as pointer:
            _call("sc_client_explain", pointer, pointer_to(key, "sc_client_key"), out)
        del keep
        why, differs = out.why, DIFFERS[int(out.why.differs)]
        token = differs == "token"
        return Explanation(
            Reason(int(why.answer.reason)), tuple(int(n) for n in why.answer.state_len),
            int(why.match_len), differs, int(why.token_here) if token else None,
            int(why.token_there) if token else None, text_of(out.tenant_there),
            int(why.beyond_len), int(why.evicted_len), int(out.common_len))

    def common(self, tokens: ArrayLike, drop: bool = False, *,
               marks: Optional[RaggedLike] = None) -> None:
        """Declares a prompt as common to all tenants, or takes that back (NotFound)."""
        key, keep = self._one(tokens, marks, (0, 0), None)
        with self._using() as pointer:
            _call("sc_client_common", pointer, pointer_to(key, "sc_client_key"), bool(drop))
        del keep

    def quota(self, tenant: Optional[str] = None, bytes_max: Optional[int] = None) -> Quota:
        """What a tenant (None: the client's own) has and may have; with `bytes_max` it gets another
        limit first (0: that of all tenants)."""
        name = ffi.NULL if tenant is None else c_text(tenant, "tenant")
        out = ffi.new("sc_client_quota *")
        with self._using() as pointer:
            if bytes_max is not None:
                _call("sc_client_quota_set", pointer, name, whole(bytes_max, "bytes_max", 64))
            _call("sc_client_quota_get", pointer, name, out)
        return Quota(int(out.bytes), int(out.bytes_max), int(out.refused))

    def call(self, method: str, **params: Any) -> Any:
        """Any method of docs/reference/protocol.md by name ("status", "verify", ...), for tools:
        needs the package msgpack. Methods that pass files have calls of their own."""
        try:
            msgpack = importlib.import_module("msgpack")
        except ImportError:
            raise Unsupported("Client.call needs the package msgpack") from None
        packed = msgpack.packb(params)
        result, count = ffi.new("void **"), ffi.new("size_t *")
        with self._using() as pointer:
            _call("sc_client_call", pointer, c_text(method, "method"), packed, len(packed), result,
                  count)
        try:
            return msgpack.unpackb(ffi.buffer(result[0], count[0])[:], strict_map_key=False)
        finally:
            _library.sc_client_free(result[0])


def _part_of(part: Any) -> StatePart:
    return StatePart(int(part.layer), name_of(KINDS, part.kind), int(part.index),
                     name_of(DTYPES, part.dtype),
                     tuple(int(part.dims[at]) for at in range(part.dim_count)), int(part.offset),
                     int(part.bytes))
