/* SPDX-License-Identifier: Apache-2.0 */
/* States in host memory: a budgeted map from an id of the caller's to bytes.
 *
 *   reserve --> (the copy from the device) --> complete --> can be acquired
 *      '------------ cancel <-- it failed                        |
 *                                                     acquire --> (the copy back) --> release
 *
 * All bytes lie in one region that is taken when the store is made: pinned when the backend has a
 * device and the system allows it, else plain memory (`pinned` in the statistics says which, and a
 * log record says why). Nothing that is being written or read is evicted or moved: a copy that is
 * under way keeps its source and its destination (contract 14). Others may be moved to join gaps.
 * An entry that is not complete is no hit.
 *
 * Threads: any; one lock, held for the bookkeeping only. */
#ifndef SC_TIER_HOST_STORE_H
#define SC_TIER_HOST_STORE_H

#include "kernels/backend.h"
#include "statecache/status.h"

struct sc_host_store;

struct sc_host_store_options {
    uint64_t bytes_max;          /* of the region; rounded down to 4 KiB; > 0 */
    uint32_t entry_max;          /* entries at once; > 0 */
    sc_backend *backend;         /* NULL: plain memory */
    bool must_pin;               /* SC_ERR_UNSUPPORTED instead of plain memory */
    /* what the host allows is checked first (sc_host_limit); false: the caller has done so */
    bool check_limit;
    const char *system_root;     /* for tests: in front of /proc and /sys; NULL: "" */
    const sc_allocator *allocator;
};

/* SC_ERR_INVALID, SC_ERR_LIMIT (above what the host or the cgroup has left), SC_ERR_NO_MEMORY. */
sc_status sc_host_store_create(const struct sc_host_store_options *options,
    struct sc_host_store **store_out);
/* NULL is allowed. Nothing may be reserved or acquired (asserted). */
void sc_host_store_destroy(struct sc_host_store *store);

/* Room for `bytes` under `key`: in a gap, or in several that are joined, or evicting entries of at
 * most `value`. The memory is 4 KiB aligned and the caller's to write until complete or cancel.
 * SC_ERR_STATE: the key is there; SC_ERR_BUSY: it is being written; SC_ERR_LIMIT: no room. Cost: a
 * walk over the entries, and the bytes that are moved. */
sc_status sc_host_store_reserve(struct sc_host_store *store, uint64_t key, uint64_t bytes,
    double value, void **memory_out);
/* SC_ERR_NOT_FOUND when it is not reserved. */
sc_status sc_host_store_complete(struct sc_host_store *store, uint64_t key);
sc_status sc_host_store_cancel(struct sc_host_store *store, uint64_t key);

/* Pins a complete entry, which stays where it is then: SC_ERR_NOT_FOUND when there is none. Counts
 * as a use. Waits while reserve moves it. */
sc_status sc_host_store_acquire(struct sc_host_store *store, uint64_t key, const void **memory_out,
    uint64_t *bytes_out);
/* Gives back one acquire. SC_ERR_STATE, changing nothing: it is not acquired. */
sc_status sc_host_store_release(struct sc_host_store *store, uint64_t key);
/* Is it there and complete? Changes nothing. */
bool sc_host_store_has(struct sc_host_store *store, uint64_t key);
/* Forgets an entry; one that is acquired goes with its last release and is no hit until then.
 * SC_ERR_NOT_FOUND; SC_ERR_BUSY: being written. */
sc_status sc_host_store_drop(struct sc_host_store *store, uint64_t key);
/* The entry that would go first, to be written to a lower tier before: SC_ERR_NOT_FOUND. */
sc_status sc_host_store_next_victim(struct sc_host_store *store, uint64_t *key_out);

struct sc_host_store_stats {
    uint64_t bytes_max, used_bytes;  /* whole 4 KiB blocks */
    uint64_t entry_count, writing_count, acquired_count;
    uint64_t stored_count, evicted_count, hit_count, refused_count;
    bool pinned;
};
sc_status sc_host_store_stats_get(struct sc_host_store *store,
    struct sc_host_store_stats *stats_out);

/* What one process may still take, of the whole host: the least of MemAvailable and, for each
 * cgroup from this process's own up to the root, v2 (memory.max, memory.high) or v1
 * (memory.limit_in_bytes), limit - usage. `reserve` bytes are left to others; of the rest each
 * of `share_count` ranks of this host gets an equal part, so that all together stay within it. What
 * cannot be read does not limit. SC_ERR_INVALID, SC_ERR_IO (no /proc/meminfo). */
sc_status sc_host_limit(const char *system_root, uint64_t reserve, uint32_t share_count,
    uint64_t *bytes_out);

#endif
