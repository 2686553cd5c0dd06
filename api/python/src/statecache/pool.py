# SPDX-License-Identifier: Apache-2.0
"""A fixed number of slots for states in one memory: `sc_pool` (statecache/pool.h)."""
from __future__ import annotations

import dataclasses
import itertools
import weakref
from typing import Any, Optional, Sequence

import numpy as np

from ._arrays import Array, ArrayLike, dtype_of, exact, pointer_to, whole
from ._bf16 import shown
from ._dlpack import (CODES, CPU, CUDA, CUDA_HOST, Memory, Tensor, array_over, device_text,
                      dtype_text, memory_of)
from ._native import Closing, Handle, call, ffi, lib, new_options
from .errors import Busy, Invalid, Mismatch, Unsupported
from .schema import (DTYPES, KINDS, Part, Schema, Shard, c_shard, c_text, name_in, name_of, part_of)

LAYOUTS = {"page-major": 1, "contiguous": 2}
OWNERS = {"free": 0, "working": 1, "snapshot": 2, "in-flight": 3, "draining": 4}
DEVICES = {"host": (CPU, CUDA_HOST), "cuda": (CUDA,)}

SLOT = dtype_of("sc_slot")

_kept: dict[int, Any] = {}  # owners of memory that a living pool of the library lies in
_keys = itertools.count(1)


@ffi.callback("void(void *)")  # type: ignore[untyped-decorator, unused-ignore]
def _release(context: Any) -> None:
    _kept.pop(int(ffi.cast("uintptr_t", context)), None)


@dataclasses.dataclass(frozen=True)
class PoolInfo:
    """Members of `sc_pool_info`; `owner_count` by name."""
    layout: str
    slot_count: int
    part_count: int
    free_count: int
    owner_count: dict[str, int]
    slot_bytes: int
    state_bytes: int
    memory_bytes: int
    huge_bytes: int
    base: int
    alignment: int


class _Views:
    """Held by every array and tensor that lies in the memory of a pool."""

    def __init__(self, pool: "Pool") -> None:
        self.pool = pool


class Pool(Closing):
    """Slots for states, one of them the null slot 0, which reads as zeros and is never written.

        Pool(schema, slot_count=64)                    memory of its own
        Pool(schema, slot_count=64, memory=tensor)     memory of the caller: one range of
                                                       bytes, of whatever dtype ...
        Pool(schema, slot_count=64, memory=[t, ...])   ... or a tensor [slot_count + 1, dims] for
                                                       each part of the shard, in schema order

    Memory of the caller is anything with __dlpack__ (numpy, PyTorch) that can be written, on the
    device of `backend`; the pool keeps it until it is closed. Its slot 0 is cleared.
    `backend` "cuda" has one device in a process: the one that is current when it is first used, so
    a rank selects its own before (torch.cuda.set_device). Calls make it their thread's current one.

    A pool is closed by `close`, at the end of a `with` block, or when nothing refers to it or to
    its memory any more. Closing is refused (Busy) while a cache uses it, a slot is allocated, or an
    array or tensor that `view` or `tensor` returned is alive.

    Threads: any. Errors: those of sc_pool_create."""

    _said = "a pool was"

    def __init__(self, schema: Schema, slot_count: int, layout: str = "page-major", *,
                 shard: Optional[Shard] = None, memory: Any = None, backend: str = "host") -> None:
        if not isinstance(schema, Schema):
            raise Invalid(f"schema: a Schema is wanted, not {type(schema).__name__}")
        self._device = (CPU, 0)
        out = ffi.new("sc_pool **")
        key = 0
        with schema._handle as schema_pointer:
            options, keep = _options(schema_pointer, slot_count, layout, shard)
            if backend != "host":
                options.backend = _backend(backend)
                if backend == "cuda":
                    self._device = (CUDA, int(lib.sc_backend_device(options.backend)))
            if memory is not None:
                foreign, owners, self._device = _foreign(memory, backend, self._device)
                key = next(_keys)
                _kept[key] = owners
                foreign.release, foreign.ctx = _release, ffi.cast("void *", key)
                options.foreign = foreign
            try:
                if isinstance(memory, (list, tuple)):
                    _check_parts(schema_pointer, options, owners)
                call("sc_pool_create", options, out)
            except BaseException:
                _kept.pop(key, None)
                raise
        del keep
        self._schema = schema
        self._handle = Handle("pool", out[0])
        self._views: Any = lambda: None  # of the _Views, while one is alive

    @staticmethod
    def memory_bytes(schema: Schema, slot_count: int, layout: str = "page-major", *,
                     shard: Optional[Shard] = None) -> int:
        """Bytes that a pool takes as one range, null slot included."""
        out = ffi.new("uint64_t *")
        with schema._handle as pointer:
            options, keep = _options(pointer, slot_count, layout, shard)
            call("sc_pool_memory_bytes", options, out)
            del keep
        return int(out[0])

    def close(self) -> None:
        """Gives the memory back. Busy: see above; then nothing has changed. Twice is allowed."""
        def destroy(pointer: Any) -> None:
            if self._views() is not None:
                raise Busy("an array or tensor over the pool's memory is alive")
            call("sc_pool_destroy", pointer)
        self._handle.close(destroy)

    def __enter__(self) -> "Pool":
        return self

    def _close_last(self) -> None:
        self._handle.close(lambda pointer: call("sc_pool_destroy", pointer))

    @property
    def schema(self) -> Schema:
        """What it was made with."""
        return self._schema

    @property
    def info(self) -> PoolInfo:
        """Sizes and counts of now."""
        info = ffi.new("sc_pool_info *")
        with self._handle as pointer:
            call("sc_pool_info_get", pointer, info)
        counts = {name: info.owner_count[number] for name, number in OWNERS.items()}
        return PoolInfo(
            name_of(LAYOUTS, info.layout), info.slot_count, info.part_count, info.free_count,
            counts, info.slot_bytes, info.state_bytes, info.memory_bytes, info.huge_bytes,
            info.base, info.alignment)

    # ------------------------------------------------------------------------------- its memory

    def view(self, layer: int, kind: str = "recurrent", index: int = 0) -> Array:
        """One part of every slot as an array [slot_count + 1, dims], in place. bf16: its bits as
        uint16, which refuse numbers (to_bf16, from_bf16).

        Slots that hold snapshots must not be written, nor slot 0. NotFound: the shard has no such
        part. Unsupported: the memory is on a device (take `tensor`)."""
        if self._device[0] not in DEVICES["host"]:
            raise Unsupported("the memory is on a device: take Pool.tensor")
        return shown(*self._array(layer, kind, index))

    def tensor(self, layer: int, kind: str = "recurrent", index: int = 0) -> Tensor:
        """The same for `torch.from_dlpack` and others: any dtype, also on a device."""
        array, dtype = self._array(layer, kind, index)
        return Tensor(array, dtype, self._device)

    def _array(self, layer: int, kind: str, index: int) -> tuple[Array, str]:
        view = ffi.new("sc_layer_view *")
        number = name_in(KINDS, kind, "kind")
        with self._handle as pointer:
            call("sc_pool_layer_view", pointer, whole(layer, "layer"), number,
                 whole(index, "index"), view)
            info = ffi.new("sc_pool_info *")
            call("sc_pool_info_get", pointer, info)
            views = self._views()
            if views is None:
                views = _Views(self)
                self._views = weakref.ref(views)
            dims = tuple(view.dims[at] for at in range(view.dim_count))
            dtype = name_of(DTYPES, view.dtype)
            strides = [CODES[dtype][1] // 8]
            for dim in dims[:0:-1]:
                strides.insert(0, strides[0] * dim)
            return array_over(views, view.base, (info.slot_count + 1, *dims),
                              (view.slot_stride, *strides), dtype), dtype

    def parts(self) -> list[Part]:
        """The parts that the shard holds, in schema order, in global shapes (views have the
        local ones)."""
        view, part, found = ffi.new("sc_layer_view *"), ffi.new("sc_part *"), []
        count = self.info.part_count
        with self._handle as pointer:
            for at in range(count):
                call("sc_pool_part_view", pointer, at, view, part)
                found.append(part_of(part))
        return found

    @property
    def needs_gather(self) -> bool:
        """Kernels that want one dense array per part cannot run on this pool in place."""
        out = ffi.new("bool *")
        with self._handle as pointer:
            call("sc_pool_needs_gather", pointer, out)
        return bool(out[0])

    # --------------------------------------------------------------- slots, without a cache on it

    def alloc(self, count: int, owner: str = "working") -> Array:
        """`count` slots as an array of SLOT (id, generation): all or nothing (NoSlot)."""
        slots = np.zeros(whole(count, "count"), SLOT)
        with self._handle as pointer:
            call("sc_pool_alloc", pointer, slots.size, name_in(OWNERS, owner, "owner"),
                 pointer_to(slots, "sc_slot"))
        return slots

    def free(self, slots: Array) -> None:
        """Frees all or nothing: Stale if one is stale, null or named twice."""
        slots = exact(slots, SLOT, "slots")
        with self._handle as pointer:
            call("sc_pool_free", pointer, pointer_to(slots, "sc_slot"), slots.size)

    def set_owner(self, slot: Any, owner: str) -> None:
        """Changes what one slot (an item of `alloc`'s array) is used for. Stale, Busy."""
        with self._handle as pointer:
            call("sc_pool_set_owner", pointer, _slot(slot), name_in(OWNERS, owner, "owner"))

    def owner(self, slot: Any) -> str:
        """What one slot is used for. Stale: it was freed meanwhile."""
        out = ffi.new("sc_owner *")
        with self._handle as pointer:
            call("sc_pool_check", pointer, _slot(slot), out)
        return name_of(OWNERS, out[0])

    def copy(self, slots: ArrayLike, dest: "Pool", dest_slots: ArrayLike, *, stream: Any = None,
             beside: bool = False) -> None:
        """Copies whole states to slots of `dest` (this pool, or one of another layout or backend).
        Both are int32 arrays of slot ids; -1: skip this row; source 0: zeros. All is checked before
        the first byte moves.

        Without a stream the bytes have arrived when it returns; of a device's work it comes behind
        that of the default stream alone. With `stream` (a torch.cuda.Stream, anything with
        __cuda_stream__, or the number of a cudaStream_t; 0: the default one) the copy is put in
        that stream, behind what is there, and nobody waits, unless one of the pools lies in host
        memory that is not pinned; within one device it can be captured in a graph. `beside`: in a
        stream of the library's own, behind what is in `stream` now; `stream` goes on, until `join`.
        Until the copy has passed, slots that take part stay allocated, none of them is written,
        and others than that stream read no destination. Host pools alone: done when it returns.
        Errors: those of sc_state_copy, sc_state_copy_beside."""
        if not isinstance(dest, Pool):
            raise Invalid(f"dest: a Pool is wanted, not {type(dest).__name__}")
        if beside and stream is None:
            raise Invalid("beside: the stream is wanted that the copy comes behind")
        source = exact(slots, np.int32, "slots")
        target = exact(dest_slots, np.int32, "dest_slots", source.size)
        name, order = "sc_state_copy", []
        if stream is not None:
            name, order = name + ("_beside" if beside else "_async"), [_stream(stream)]
        with self._handle as here, dest._handle as there:
            call(name, here, pointer_to(source, "int32_t"), there, pointer_to(target, "int32_t"),
                 source.size, *order)

    def join(self, stream: Any) -> None:
        """What is put in `stream` from now on comes behind all copies begun `beside` on the pool's
        device. Nobody waits."""
        with self._handle as pointer:
            call("sc_state_copy_join", pointer, _stream(stream))

    def audit(self, check_null: bool = True) -> None:
        """Accounts for every slot. Corrupt: a fault, of the library or of who wrote to slot 0."""
        with self._handle as pointer:
            call("sc_pool_audit", pointer, bool(check_null))


def _stream(stream: Any) -> Any:
    """sc_stream * of what frameworks call a stream."""
    number = getattr(stream, "cuda_stream", stream)  # PyTorch
    if hasattr(stream, "__cuda_stream__"):           # (version, handle)
        pair = stream.__cuda_stream__
        number = (pair() if callable(pair) else pair)[1]
    if number is None:
        raise Invalid("stream: a stream or its number is wanted")
    return ffi.cast("sc_stream *", whole(number, "stream", 64))


def _slot(slot: Any) -> Any:
    try:
        pair = int(slot["id"]), int(slot["generation"])
    except (TypeError, ValueError, IndexError, KeyError):
        raise Invalid(f"slot: an item of SLOT is wanted, not {slot!r}") from None
    return ffi.new("sc_slot *", pair)[0]


def _options(schema: Any, slot_count: int, layout: str,
             shard: Optional[Shard]) -> tuple[Any, Any]:
    """The options, and what must live as long as they do."""
    c = c_shard(shard)
    options = new_options("sc_pool_options", schema=schema, shard=c[0],
                          layout=name_in(LAYOUTS, layout, "layout"),
                          slot_count=whole(slot_count, "slot_count"))
    return options, c


def _backend(name: str) -> Any:
    out = ffi.new("sc_backend **")
    call("sc_backend_open", c_text(name, "backend"), out)
    return out[0]


def _foreign(memory: Any, backend: str,
             device: tuple[int, int]) -> tuple[Any, list[Memory], tuple[int, int]]:
    """sc_foreign_memory of one tensor or of one for each part; the tensors; their device. That of
    the backend is `device`."""
    many = isinstance(memory, (list, tuple))
    tensors = [memory_of(one, f"memory[{at}]" if many else "memory")
               for at, one in enumerate(memory if many else [memory])]
    if not tensors:
        raise Invalid("memory: no tensors")
    for one in tensors:
        if one.device[0] not in DEVICES[backend]:
            raise Invalid(f"memory: a tensor in {device_text(one.device)}, but the pool's backend "
                          f"is {backend}")
        if one.device[0] == CUDA and one.device != device:
            raise Invalid(f"memory: a tensor in {device_text(one.device)}, but the library works "
                          f"on device {device[1]}, which was current when it began")
        if one.device != tensors[0].device:
            raise Invalid("memory: tensors of different devices")
    foreign = ffi.new("sc_foreign_memory *")
    if many:
        foreign.parts = parts = ffi.new("sc_foreign_part[]", len(tensors))
        foreign.part_count = len(tensors)
        for out, one in zip(parts, tensors):
            if len(one.shape) < 2 or not one.dense_from(1) or one.strides[0] < 0:
                raise Invalid("memory: a part is [slot_count + 1, dims], each slot contiguous")
            out.base, out.bytes = one.address, one.bytes
            out.slot_stride = one.strides[0] * one.bits // 8
        _lifetimes[foreign] = parts
    else:
        if not tensors[0].dense_from(0):
            raise Invalid("memory: not contiguous")
        foreign.base, foreign.bytes = tensors[0].address, tensors[0].bytes
    return foreign, tensors, tensors[0].device


_lifetimes: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _check_parts(schema: Any, options: Any, tensors: Sequence[Memory]) -> None:
    """Tensors that are given part by part must have the dtype and shape of their parts."""
    count = ffi.new("uint32_t *")
    shard = ffi.addressof(options, "shard")
    local = ffi.new("sc_part_local[]", max(len(tensors), 1))
    call("sc_schema_shard_parts", schema, shard, local, len(tensors), count)
    if count[0] != len(tensors):
        raise Mismatch(f"memory: {len(tensors)} tensors for {count[0]} parts")
    part = ffi.new("sc_part *")
    for at, one in enumerate(tensors):
        call("sc_schema_part", schema, local[at].part, part)
        dtype = name_of(DTYPES, part.dtype)
        shape = (options.slot_count + 1, *(local[at].dims[d] for d in range(local[at].dim_count)))
        if (one.code, one.bits) != CODES[dtype][:2]:
            raise Mismatch(f"memory[{at}]: {dtype_text(one.code, one.bits)}, {dtype} is wanted")
        if one.shape != shape:
            raise Mismatch(f"memory[{at}]: shape {one.shape}, {shape} is wanted "
                           "(slot_count + 1: slot 0 is the null slot)")
