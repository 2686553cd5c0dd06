# SPDX-License-Identifier: Apache-2.0
"""Tiers below the device: `sc_tiers` (statecache/tiers.h)."""
from __future__ import annotations

import dataclasses
import os
import warnings
from typing import Any, Optional, Union

from ._arrays import dtype_of, whole
from ._native import Handle, call, ffi, new_options
from .errors import Error, Invalid
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


class Tiers:
    """Host memory and disk below a cache: `Cache(pool, tiers=Tiers(host=TierConfig(1 << 30)))`.

    No KV goes down: what a lower tier has can be resumed where there is none (without_kv), or with
    KV that the device still has. Closing is refused (Busy) while a cache uses them.
    Errors: those of sc_tiers_create; Unsupported where liblmdb, liburing or libzstd is missing."""

    def __init__(self, host: Optional[TierConfig] = None, disk: Optional[TierConfig] = None,
                 folder: Union[None, str, "os.PathLike[str]"] = None, *, file_bytes: int = 0,
                 numerics: int = 1, flops_per_s: int = 0, entry_max: int = 0,
                 must_pin: bool = False, rank_count: int = 0) -> None:
        path = ffi.NULL if folder is None else c_text(os.fspath(folder), "folder")
        options = new_options(
            "sc_tiers_options", folder=path, file_bytes=whole(file_bytes, "file_bytes", 64),
            numerics=whole(numerics, "numerics"), entry_max=whole(entry_max, "entry_max"),
            flops_per_s=whole(flops_per_s, "flops_per_s", 64), must_pin=bool(must_pin),
            rank_count=whole(rank_count, "rank_count"))
        for name, config in (("host", host), ("disk", disk)):
            if config is not None:
                _fill(getattr(options, name), config, name)
        out = ffi.new("sc_tiers **")
        call("sc_tiers_create", options, out)
        self._handle = Handle("tiers", out[0])

    def close(self) -> None:
        """What is on disk stays. Busy while a cache uses them. Twice is allowed."""
        self._handle.close(lambda pointer: call("sc_tiers_destroy", pointer))

    def __enter__(self) -> "Tiers":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None and not handle.closed:
            try:
                self.close()
            except Error as problem:
                warnings.warn(f"tiers were left open: {problem}", ResourceWarning, stacklevel=2)

    def stats(self) -> dict[str, Any]:
        """What the transfers have done and measured: `sc_tiers_stats`; lists go by tier."""
        out = ffi.new("sc_tiers_stats *")
        out.struct_size = ffi.sizeof("sc_tiers_stats")
        with self._handle as pointer:
            call("sc_tiers_stats_get", pointer, out)
        found = {}
        for name, field in ffi.typeof("sc_tiers_stats").fields:
            value = getattr(out, name)
            found[name] = list(value) if field.type.kind == "array" else value
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
