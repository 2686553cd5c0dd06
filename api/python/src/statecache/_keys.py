# SPDX-License-Identifier: Apache-2.0
"""Prompts and what is known of requests, as arrays of structs."""
from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Optional, Sequence, Union

import numpy as np

from ._arrays import (Array, Ragged, RaggedLike, dtype_of, exact, fill, point_to, ragged, signed,
                      whole)
from .errors import Invalid

ANSWER = dtype_of("sc_answer")
LEASE = dtype_of("sc_lease")
MARK = dtype_of("sc_mark")
HISTORY = dtype_of("sc_history")
_HINTS = dtype_of("sc_hints")
_KEY = dtype_of("sc_key")
_REQUEST = dtype_of("sc_request")

EXTERNAL = 1  # SC_REQUEST_: the state up to `external_len` comes from elsewhere
COPY = 2      # kernels that work in place: the block says what to copy first
AGAIN = 4     # it was admitted before and preempted: its tokens are counted apart
CONTINUES, OVER = 1, 2  # SC_HINT_: the conversation will go on, or not


class Namespace(NamedTuple):
    """Keys of two namespaces never match. From `Cache.namespace`."""
    id: int
    generation: int


@dataclasses.dataclass(frozen=True)
class Hints:
    """What the scheduler knows of a request: `sc_hints`. The default: nothing."""
    breakpoints: Sequence[int] = ()
    flags: int = 0
    pin_until_ns: int = 0
    ttl_ns: int = 0
    priority: int = 0
    class_id: int = 0


def make_marks(marks: Sequence[tuple[int, bytes]]) -> Array:
    """Marks of one prompt: (position, 16 bytes); ascending. From that token on, content also
    depends on the bytes: a tenant's salt at 0, an image at its first token."""
    out = np.zeros(len(marks), MARK)
    for at, (position, identity) in enumerate(marks):
        if not isinstance(identity, bytes) or len(identity) != 16:
            raise Invalid("marks: an id of 16 bytes is wanted")
        out[at]["at"] = whole(position, "marks")
        out[at]["id"] = np.frombuffer(identity, np.uint8)
    return out


def _namespace(out: Array, ns: Any) -> None:
    if not isinstance(ns, Namespace):
        raise Invalid(f"ns: a Namespace is wanted (Cache.namespace), not {type(ns).__name__}")
    out["id"], out["generation"] = whole(ns.id, "ns"), whole(ns.generation, "ns")


def fill_keys(keys: Array, ns: Any, tokens: Ragged, marks: Optional[RaggedLike],
              len_max: Any) -> list[Any]:
    """Fills an array of sc_key; returns what must live as long as it is used."""
    _namespace(keys["ns"], ns)
    point_to(keys, "tokens", "token_count", tokens)
    keep: list[Any] = [tokens]
    if marks is not None:
        batch = ragged(marks, MARK, "marks", keys.size)
        point_to(keys, "marks", "mark_count", batch)
        keep.append(batch)
    fill(keys, "len_max", len_max)
    return keep


def keys_of(ns: Any, tokens: RaggedLike, marks: Optional[RaggedLike],
            len_max: Any) -> tuple[Array, list[Any]]:
    """An array of sc_key, and what it points to."""
    batch = ragged(tokens, np.int32, "tokens")
    keys = np.zeros(batch.offsets.size - 1, _KEY)
    return keys, fill_keys(keys, ns, batch, marks, len_max)


def requests_of(ns: Any, tokens: RaggedLike, marks: Optional[RaggedLike], len_max: Any,
                hints: Union[None, Hints, Sequence[Optional[Hints]]],
                members: dict[str, Any]) -> tuple[Array, list[Any]]:
    """An array of sc_request, and what it points to."""
    batch = ragged(tokens, np.int32, "tokens")
    requests = np.zeros(batch.offsets.size - 1, _REQUEST)
    keep = fill_keys(requests["key"], ns, batch, marks, len_max)
    for member, value in members.items():
        fill(requests, member, value)
    if hints is not None:
        one = isinstance(hints, Hints)
        given = [hints] if isinstance(hints, Hints) else list(hints)
        if not one and len(given) != requests.size:
            raise Invalid(f"hints: {len(given)} items, {requests.size} wanted")
        structs = np.zeros(len(given), _HINTS)
        for at, hint in enumerate(given):
            if hint is not None:
                keep.append(_fill_hints(structs[at:at + 1], hint))
        address = structs.ctypes.data + np.arange(len(given)) * _HINTS.itemsize
        requests["hints"] = np.where([hint is not None for hint in given], address, 0)
        keep.append(structs)
    return requests, keep


def _fill_hints(out: Array, hint: Any) -> Any:
    if not isinstance(hint, Hints):
        raise Invalid(f"hints: Hints are wanted, not {type(hint).__name__}")
    points = exact(hint.breakpoints, np.uint32, "breakpoints")
    point_to(out, "breakpoints", "breakpoint_count", Ragged(points, np.array([0, points.size])))
    out["flags"] = whole(hint.flags, "flags")
    out["pin_until_ns"] = whole(hint.pin_until_ns, "pin_until_ns", 64)
    out["ttl_ns"] = whole(hint.ttl_ns, "ttl_ns", 64)
    out["priority"] = signed(hint.priority, "priority")
    out["class_id"] = whole(hint.class_id, "class_id")
    return points
