# SPDX-License-Identifier: Apache-2.0
"""A statecached as the tier of a cache in this process: `sc_remote` (statecache/tiers.h)."""
from __future__ import annotations

import threading
from typing import Any, Optional

import numpy as np

from ._arrays import Array, Int32, RaggedLike, dtype_of, point_to, ragged
from ._keys import HISTORY, fill_keys
from ._native import Closing, Handle, ffi
from .client import _call, client_options
from .errors import Busy

FIND = dtype_of("sc_find")


class Remote(Closing):
    """A service whose states a cache takes, and to which its own go; all processes of the machine
    share them.

        remote = Remote("unix:/run/statecached.sock")
        tiers = Tiers(remote=TierConfig(1 << 30), service=remote)
        with Cache(pool, tiers=tiers, without_kv=True) as cache:
            cache.learn(cache.find(ns, prompts))  # what others have stored
            ...                                   # acquire: its state comes from the service

    Arguments are those of Client; `timeout_ms` 0: 5,000. Mismatch, when the cache is made: the
    service has states of another schema or shard. Its three connections are opened again when they
    have ended: while the service is gone, nothing is found, and stores fail.

    Closing is refused (Busy) while tiers use it. Threads: any.
    Errors: those of sc_client_remote_open; Unsupported: the client's library is not there."""

    _said = "a remote was"

    def __init__(self, address: str, *, token: Optional[str] = None, tenant: Optional[str] = None,
                 fingerprint: Optional[bytes] = None, timeout_ms: int = 0) -> None:
        options, keep = client_options(address, token, tenant, fingerprint, timeout_ms)
        struct = ffi.new("sc_remote *")
        _call("sc_client_remote_open", options, struct)
        del keep
        self._users = 0
        self._lock = threading.Lock()
        self._handle = Handle("remote", struct)

    def _use(self, change: int) -> None:
        """Tiers begin or end to use it."""
        with self._lock:
            self._users += change

    def close(self) -> None:
        """Ends its connections. Busy: see above. Twice is allowed."""
        def destroy(struct: Any) -> None:
            with self._lock:
                if self._users:
                    raise Busy("tiers use this remote: close them first")
            _call("sc_client_remote_close", struct)
        self._handle.close(destroy)

    def __enter__(self) -> "Remote":
        return self


class Found:
    """What the service has of prompts: from Cache.find, for Cache.learn.

    `len`: tokens of the longest state of each, 0: none; ranks of one model put the least of theirs
    there. `status`: 0, or why a prompt could not be asked for; after `learn`, why one was not
    taken (LIMIT, BUSY, NO_MEMORY). Both are arrays with an item for each prompt."""

    def __init__(self, ns: Any, tokens: RaggedLike, marks: Optional[RaggedLike], len_max: Any,
                 history: Optional[RaggedLike]) -> None:
        batch = ragged(tokens, np.int32, "tokens")
        self._finds = np.zeros(batch.offsets.size - 1, FIND)
        self._keep = fill_keys(self._finds["key"], ns, batch, marks, len_max)
        if history is not None:
            stretches = ragged(history, HISTORY, "history", self._finds.size)
            point_to(self._finds, "history", "history_count", stretches)
            self._keep.append(stretches)

    @property
    def len(self) -> Array:
        return self._finds["len"]

    @property
    def status(self) -> Int32:
        return self._finds["status"]

    def __repr__(self) -> str:
        return f"<Found len={self.len.tolist()} status={self.status.tolist()}>"
