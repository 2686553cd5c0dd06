# SPDX-License-Identifier: Apache-2.0
"""Tiers below the device: `sc_tiers` (statecache/tiers.h)."""
from __future__ import annotations

import dataclasses
import os
from typing import Any, Optional, Sequence, Union

import numpy as np

from ._arrays import Array, Int32, dtype_of, exact, whole
from ._native import Closing, Handle, call, ffi, lib, new_options
from .errors import Invalid
from .remote import Remote
from .schema import c_text, name_in

DONE = dtype_of("sc_done")
WRITES = {"back": 1, "through": 2, "selective": 3}
CODECS = {"raw": 1, "bf16": 2, "int8": 3}


@dataclasses.dataclass(frozen=True)
class TierConfig:
    """One tier: `sc_tier_config`. `bytes` is its room."""
    bytes: int
    day_bytes: int = 0
    write: str = "back"  # "back", "through", "selective"
    write_uses: int = 0
    codec: str = "raw"   # "raw", "bf16", "int8"; with loss only where `lossy` is set
    lossy: bool = False
    zstd_level: int = 0
    restore_bytes_per_s: int = 0
    restore_latency_ns: int = 0


class KvMover:
    """How a cache reaches the engine's KV pages, so that KV goes down the tiers with its states:
    make a subclass, `Cache(pool, tiers=..., kv_mover=it)`.

    The methods are called by the library: `alloc` within an acquire, `read` and `write` from
    threads of the tiers, several at a time. They must not call the cache. A copy has ended when
    its method returns; one that raises has failed, and so has the transfer (the exception goes to
    sys.unraisablehook)."""

    page_bytes: int = 0
    """KV of one page, of this rank; > 0."""

    def alloc(self, count: int) -> Optional[Sequence[int]]:
        """`count` ids for pages that are to be written, all or nothing (None). The ids are the
        cache's from then on."""
        raise NotImplementedError

    def read(self, ids: Int32, out: Array) -> None:
        """Copies pages to `out`, uint8 [count, page_bytes]."""
        raise NotImplementedError

    def write(self, ids: Int32, data: Array) -> None:
        """Copies `data`, uint8 [count, page_bytes], to pages."""
        raise NotImplementedError


class Moves:
    """A KvMover as the library calls it; lives as long as the cache."""

    def __init__(self, mover: KvMover) -> None:
        if not isinstance(mover, KvMover):
            raise Invalid(f"kv_mover: a KvMover is wanted, not {type(mover).__name__}")
        self.mover = mover
        self.cache: Any = None  # the pointer, once there is one
        self.page_bytes = whole(mover.page_bytes, "page_bytes", 64)
        move = "sc_status(void *, uint64_t, const int32_t *, uint32_t, {} *)"
        failed = int(lib.SC_ERR_IO)
        self._functions = (
            ffi.callback("bool(void *, uint32_t, int32_t *)", self._alloc, error=False),
            ffi.callback(move.format("void"), self._read, error=failed),
            ffi.callback(move.format("const void"), self._write, error=failed))
        self.struct = ffi.new("sc_kv_mover *")
        self.struct.page_bytes = self.page_bytes
        self.struct.alloc, self.struct.read, self.struct.write = self._functions

    def _alloc(self, _: Any, count: int, out: Any) -> bool:
        ids = self.mover.alloc(count)
        if ids is None:
            return False
        np.frombuffer(ffi.buffer(out, 4 * count), np.int32)[:] = exact(
            list(ids), np.int32, "ids of KvMover.alloc", count)
        return True

    def _read(self, _: Any, ticket: int, ids: Any, count: int, data: Any) -> int:
        self.mover.read(*self._arrays(ids, count, data))
        return int(lib.sc_kv_moved(self.cache, ticket, 0))

    def _write(self, _: Any, ticket: int, ids: Any, count: int, data: Any) -> int:
        pages, array = self._arrays(ids, count, ffi.cast("void *", data))
        array.flags.writeable = False
        self.mover.write(pages, array)
        return int(lib.sc_kv_moved(self.cache, ticket, 0))

    def _arrays(self, ids: Any, count: int, data: Any) -> tuple[Int32, Array]:
        pages = np.frombuffer(ffi.buffer(ids, 4 * count), np.int32).copy()
        array = np.frombuffer(ffi.buffer(data, count * self.page_bytes), np.uint8)
        return pages, array.reshape(count, self.page_bytes)


class Tiers(Closing):
    """Host memory and disk below a cache: `Cache(pool, tiers=Tiers(host=TierConfig(1 << 30)))`.

    Or, in their place, a service: `Tiers(remote=TierConfig(1 << 30), service=Remote(address))`. The
    bytes are then of what this cache remembers to be there, at most `entry_max` states; raw codec,
    no KvMover. What others have stored there is found by Cache.find and Cache.learn.

    Without a KvMover no KV goes down: what a lower tier has can then be resumed where there is none
    (without_kv), or with KV that the device still has. Closing is refused (Busy) while a cache uses
    them.
    Errors: those of sc_tiers_create; Unsupported where liblmdb, liburing or libzstd is missing."""

    _said = "tiers were"

    def __init__(self, host: Optional[TierConfig] = None, disk: Optional[TierConfig] = None,
                 folder: Union[None, str, "os.PathLike[str]"] = None, *, file_bytes: int = 0,
                 numerics: int = 1, flops_per_s: int = 0, entry_max: int = 0,
                 must_pin: bool = False, rank_count: int = 0, remote: Optional[TierConfig] = None,
                 service: Optional[Remote] = None) -> None:
        if service is not None and not isinstance(service, Remote):
            raise Invalid(f"service: a Remote is wanted, not {type(service).__name__}")
        path = ffi.NULL if folder is None else c_text(os.fspath(folder), "folder")
        options = new_options(
            "sc_tiers_options", folder=path, file_bytes=whole(file_bytes, "file_bytes", 64),
            numerics=whole(numerics, "numerics"), entry_max=whole(entry_max, "entry_max"),
            flops_per_s=whole(flops_per_s, "flops_per_s", 64), must_pin=bool(must_pin),
            rank_count=whole(rank_count, "rank_count"))
        for name, config in (("host", host), ("disk", disk), ("remote", remote)):
            if config is not None:
                _fill(getattr(options, name), config, name)
        out = ffi.new("sc_tiers **")
        if service is None:
            call("sc_tiers_create", options, out)
        else:
            with service._handle as options.remote_calls:
                call("sc_tiers_create", options, out)
                service._use(1)
        self._service = service
        self._handle = Handle("tiers", out[0])

    def close(self) -> None:
        """What is on disk stays. Busy while a cache uses them. Twice is allowed."""
        def destroy(pointer: Any) -> None:
            call("sc_tiers_destroy", pointer)
            if self._service is not None:
                self._service._use(-1)
        self._handle.close(destroy)

    def __enter__(self) -> "Tiers":
        return self

    def stats(self) -> dict[str, Any]:
        """What the transfers have done and measured: `sc_tiers_stats`; lists go by tier."""
        out = ffi.new("sc_tiers_stats *")
        out.struct_size = ffi.sizeof("sc_tiers_stats")
        with self._handle as pointer:
            call("sc_tiers_stats_get", pointer, out)
        def plain(value: Any, kind: Any) -> Any:
            return [plain(each, kind.item) for each in value] if kind.kind == "array" else value
        found = {name: plain(getattr(out, name), field.type)
                 for name, field in ffi.typeof("sc_tiers_stats").fields}
        del found["struct_size"]
        return found


def _fill(out: Any, config: Any, name: str) -> None:
    if not isinstance(config, TierConfig):
        raise Invalid(f"{name}: a TierConfig is wanted, not {type(config).__name__}")
    for member in ("bytes", "day_bytes", "restore_bytes_per_s", "restore_latency_ns"):
        setattr(out, member, whole(getattr(config, member), member, 64))
    for member in ("write_uses", "zstd_level"):
        setattr(out, member, whole(getattr(config, member), member))
    out.write = name_in(WRITES, config.write, "write")
    out.codec = name_in(CODECS, config.codec, "codec")
    out.lossy = bool(config.lossy)
