# SPDX-License-Identifier: Apache-2.0
"""What one recurrent state consists of: `sc_schema` (statecache/schema.h)."""
from __future__ import annotations

import dataclasses
from typing import Any, Optional, Sequence

from ._arrays import whole
from ._native import Handle, call, ffi, lib, new_options, text_of
from .errors import Invalid, NotFound

DTYPES = {"f32": 1, "bf16": 2, "f16": 3, "i32": 4, "u8": 5}
KINDS = {"conv": 1, "recurrent": 2, "extra": 3}
SPLITS = {"none": 0, "even": 1, "groups": 2}


def name_in(table: dict[str, int], name: Any, what: str) -> int:
    """The number of a name; an unknown one is refused with those that there are."""
    try:
        return table[name]
    except (KeyError, TypeError):
        raise Invalid(f"{what} {name!r}: one of {', '.join(table)} is wanted") from None


def name_of(table: dict[str, int], number: int) -> str:
    return next((name for name, value in table.items() if value == number), str(number))


def c_text(value: Any, name: str) -> Any:
    """A C string that lives as long as what is returned."""
    if not isinstance(value, str) or "\0" in value:
        raise Invalid(f"{name}: a string is wanted, not {value!r}")
    return ffi.new("char[]", value.encode())


@dataclasses.dataclass(frozen=True)
class Group:
    """Layers that share a chunk size (tokens per chunk of the prefill form)."""
    name: str
    chunk: int


@dataclasses.dataclass(frozen=True)
class Block:
    """A range of channels of a conv window; `unit` channels stay together on one rank."""
    channels: int
    unit: int
    split: str = "even"  # "none", "even", "groups"


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of a state, in global shapes: "conv" {W-1, channels}, "recurrent" {HV, V, K}."""
    layer: int
    kind: str
    dtype: str
    dims: Sequence[int]
    group: int = 0
    blocks: Sequence[Block] = ()
    index: int = 0


@dataclasses.dataclass(frozen=True)
class Shard:
    """Which part of the model a rank holds; the default is all of it."""
    tp_rank: int = 0
    tp_size: int = 0
    pp_rank: int = 0
    pp_size: int = 0
    layer_first: int = 0
    layer_count: int = 0


def c_shard(shard: Optional[Shard]) -> Any:
    out = ffi.new("sc_shard *")
    for field in dataclasses.fields(Shard):
        value = getattr(shard, field.name) if shard is not None else 0
        setattr(out, field.name, whole(value, field.name))
    return out


class Schema:
    """The parts of one state. Immutable; freed when the last pool or Python reference goes.

    Threads: any. Errors: Invalid with the library's text (sc_schema_create tells all it refuses),
    SizeOverflow, LimitReached, NoMemory."""

    def __init__(self, model: str, revision: str, groups: Sequence[Group], parts: Sequence[Part],
                 layer_count: int, conventions: Optional[str] = None) -> None:
        model_text, revision_text = c_text(model, "model"), c_text(revision, "revision")
        convention = ffi.NULL if conventions is None else c_text(conventions, "conventions")
        c_groups = ffi.new("sc_group[]", max(len(groups), 1))
        c_parts = ffi.new("sc_part[]", max(len(parts), 1))
        for at, group in enumerate(groups):
            name = group.name.encode()
            if len(name) >= ffi.sizeof(c_groups[at].name):
                raise Invalid(f"group {group.name!r}: the name is too long")
            c_groups[at].name = name
            c_groups[at].chunk = whole(group.chunk, "chunk")
        for at, part in enumerate(parts):
            _fill_part(c_parts[at], part)
        options = new_options(
            "sc_schema_options", model=model_text, revision=revision_text, conventions=convention,
            groups=c_groups, group_count=len(groups), parts=c_parts, part_count=len(parts),
            layer_count=whole(layer_count, "layer_count"))
        self._handle = _adopt("sc_schema_create", options)

    @classmethod
    def _from(cls, handle: Handle) -> "Schema":
        schema = cls.__new__(cls)
        schema._handle = handle
        return schema

    @classmethod
    def preset(cls, name: str, dtype: str = "f32", revision: Optional[str] = None) -> "Schema":
        """A public model ("qwen3-next-80b-a3b"; Schema.presets() lists them) with recurrent states
        of `dtype` ("f32", "bf16") and bf16 conv windows. `revision`: that of the checkpoint;
        without one it is "preset"."""
        text = c_text(name, "name")
        if name not in cls.presets():
            raise NotFound(f"no preset is named {name!r}; there are {', '.join(cls.presets())}")
        schema = cls._from(_adopt("sc_schema_preset", text, name_in(DTYPES, dtype, "dtype")))
        return schema if revision is None else schema.with_revision(revision)

    @staticmethod
    def presets() -> list[str]:
        """Names that `preset` knows."""
        names: list[str] = []
        while True:
            name = lib.sc_schema_preset_name(len(names))
            if not name:
                return names
            names.append(text_of(name))

    def with_revision(self, revision: str) -> "Schema":
        """The same states for other weights: another fingerprint."""
        with self._handle as pointer:
            return self._from(_adopt("sc_schema_with_revision", pointer,
                                     c_text(revision, "revision"), ffi.NULL))

    def extras(self, shard: Optional[Shard] = None, control_words: int = 0, ring_records: int = 0,
               ring_record_bytes: int = 0, draft_tokens: int = 0) -> "Schema":
        """The schema of an extras pool: what only running requests need."""
        options = new_options(
            "sc_extras_options", control_words=control_words, ring_records=ring_records,
            ring_record_bytes=ring_record_bytes, draft_tokens=draft_tokens)
        with self._handle as pointer:
            return self._from(_adopt("sc_schema_extras_create", pointer, c_shard(shard), options))

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that decide whether two states may be exchanged."""
        out = ffi.new("sc_fingerprint *")
        with self._handle as pointer:
            call("sc_schema_fingerprint", pointer, out)
        return bytes(out.bytes)

    @property
    def parts(self) -> list[Part]:
        """All parts, in global shapes."""
        count, part = ffi.new("uint32_t *"), ffi.new("sc_part *")
        found = []
        with self._handle as pointer:
            call("sc_schema_part_count", pointer, count)
            for at in range(count[0]):
                call("sc_schema_part", pointer, at, part)
                found.append(part_of(part))
        return found

    @property
    def groups(self) -> list[Group]:
        """Groups of layers that share a chunk size."""
        count, group = ffi.new("uint32_t *"), ffi.new("sc_group *")
        found = []
        with self._handle as pointer:
            call("sc_schema_group_count", pointer, count)
            for at in range(count[0]):
                call("sc_schema_group", pointer, at, group)
                found.append(Group(text_of(group.name), group.chunk))
        return found

    def grid(self, page_tokens: int) -> int:
        """Prefill can save states at multiples of this many tokens."""
        out = ffi.new("uint32_t *")
        with self._handle as pointer:
            call("sc_schema_grid", pointer, whole(page_tokens, "page_tokens"), out)
        return int(out[0])

    def state_bytes(self, shard: Optional[Shard] = None) -> int:
        """Dense bytes of one state of a shard."""
        out = ffi.new("uint64_t *")
        with self._handle as pointer:
            call("sc_schema_state_bytes", pointer, c_shard(shard), out)
        return int(out[0])


def _adopt(name: str, *arguments: Any) -> Handle:
    """Calls a function whose last parameter is sc_schema **; the reference is the handle's."""
    out = ffi.new("sc_schema **")
    call(name, *arguments, out)
    return Handle("schema", ffi.gc(out[0], lib.sc_schema_release))


def _fill_part(out: Any, part: Part) -> None:
    for name, value in (("dims", part.dims), ("blocks", part.blocks)):
        if not isinstance(value, (list, tuple)):
            raise Invalid(f"layer {part.layer}: {name}: a tuple is wanted, not {value!r}")
    if len(part.dims) > len(out.dims) or len(part.blocks) > len(out.blocks):
        raise Invalid(f"layer {part.layer}: at most {len(out.dims)} dims and "
                      f"{len(out.blocks)} blocks")
    out.layer, out.group = whole(part.layer, "layer"), whole(part.group, "group")
    out.kind, out.dtype = name_in(KINDS, part.kind, "kind"), name_in(DTYPES, part.dtype, "dtype")
    out.index, out.dim_count = whole(part.index, "index"), len(part.dims)
    for at, dim in enumerate(part.dims):
        out.dims[at] = whole(dim, "dims")
    out.block_count = len(part.blocks)
    for at, block in enumerate(part.blocks):
        out.blocks[at].channels = whole(block.channels, "channels")
        out.blocks[at].unit = whole(block.unit, "unit")
        out.blocks[at].split = name_in(SPLITS, block.split, "split")


def part_of(part: Any) -> Part:
    """A part as the library describes it."""
    return Part(
        layer=part.layer, kind=name_of(KINDS, part.kind), dtype=name_of(DTYPES, part.dtype),
        dims=tuple(part.dims[at] for at in range(part.dim_count)), group=part.group,
        blocks=tuple(Block(block.channels, block.unit, name_of(SPLITS, block.split))
                     for block in list(part.blocks)[:part.block_count]), index=part.index)
