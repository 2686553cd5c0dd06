# SPDX-License-Identifier: Apache-2.0
"""statecache: states of hybrid LLMs, kept so that a prompt resumes where a prefix of it was saved.

    Schema -> Pool -> Cache -> acquire -> plan -> (your forward) -> commit -> release
    Client -> acquire, write                       (states of statecached, shared by processes)

The package is the C library's interface with arrays and exceptions; what a call means in detail is
in the headers (statecache/cache.h, pool.h, schema.h). `ffi` and `lib` give all of it, kernels too.
"""
from ._arrays import Ragged
from ._bf16 import Bf16Bits, from_bf16, to_bf16
from ._dlpack import Tensor
from ._keys import (AGAIN, ANSWER, CONTINUES, COPY, EXTERNAL, HISTORY, LEASE, MARK, OVER, Hints,
                    Namespace, make_marks)
from ._native import VERSION as __version__
from ._native import ffi, lib
from .cache import (SAVE_BRANCH, SAVE_DECODE, SAVE_DEFAULT, SAVE_END, SAVE_PROMPT_END, Cache,
                    raise_for_status)
from .client import (DIFFERS, Client, ClientInfo, Evicted, Explanation, Quota, State, StatePart,
                     Write)
from .errors import (Busy, ConnectionClosed, Corrupt, Denied, DeviceLost, Error, Invalid, IoError,
                     LimitReached, Lost, Mismatch, NoMemory, NoSlot, NotFound, NotNow, SizeOverflow,
                     Stale, Status, Unsupported, WrongState)
from .lease import LEASE_INFO, Lease, LeaseInfo, LeaseState, Reason, reason_text
from .pool import SLOT, Pool, PoolInfo
from .remote import Found, Remote
from .schema import Block, Group, Part, Schema, Shard
from .step import RESULT, ROW, SAVED, BlockLayout, Step
from .tiers import DONE, KvMover, TierConfig, Tiers

__all__ = [
    "AGAIN", "ANSWER", "Bf16Bits", "Block", "BlockLayout", "Busy", "CONTINUES", "COPY",
    "Cache", "Client", "ClientInfo", "ConnectionClosed", "Corrupt", "DIFFERS", "DONE", "Denied",
    "DeviceLost", "EXTERNAL", "Error", "Evicted", "Explanation", "Found", "Group", "HISTORY",
    "Hints", "Invalid", "IoError", "KvMover", "LEASE", "LEASE_INFO", "Lease", "LeaseInfo",
    "LeaseState", "LimitReached", "Lost", "MARK", "Mismatch", "Namespace", "NoMemory",
    "NoSlot", "NotFound", "NotNow", "OVER", "Part", "Pool", "PoolInfo", "Quota", "RESULT",
    "ROW", "Ragged", "Reason", "Remote", "SAVED", "SAVE_BRANCH", "SAVE_DECODE",
    "SAVE_DEFAULT", "SAVE_END", "SAVE_PROMPT_END", "SLOT", "Schema", "Shard",
    "SizeOverflow", "Stale", "State", "StatePart", "Status", "Step", "Tensor", "TierConfig",
    "Tiers", "Unsupported", "Write", "WrongState", "__version__", "ffi", "from_bf16", "lib",
    "make_marks", "raise_for_status", "reason_text", "to_bf16",
]
