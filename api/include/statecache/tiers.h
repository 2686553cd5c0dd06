/* SPDX-License-Identifier: Apache-2.0 */
/** Tiers below the device: states, and the KV that goes with them, in host memory and on disk.
 *
 *   sc_tiers_create -> sc_cache_create (options.tiers) -> ...
 *                                 ... -> sc_cache_destroy -> sc_tiers_destroy
 *
 * The cache decides what goes down, what is dropped and what comes back; a `sc_tiers` carries it
 * out, on threads of its own. Each transfer has a ticket and yields exactly one completion:
 * sc_cache_poll reports those of this process, sc_cache_apply takes what all ranks agreed on. Until
 * its completion is applied a transfer keeps its source and its destination.
 *
 * sc_tiers_create and sc_tiers_destroy are in the library statecache_tiers, which is libstatecache
 * with tiers: whoever links libstatecache itself needs no LMDB, io_uring or zstd. */
#ifndef STATECACHE_TIERS_H
#define STATECACHE_TIERS_H

#include "statecache/mark.h"
#include "statecache/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Functions of the library statecache_tiers. */
#define SC_TIERS_API __attribute__((visibility("default")))

typedef struct sc_tiers sc_tiers;

/** How the cache reaches the engine's KV pages. The struct is copied; `ctx` and what the functions
 * use must outlive the cache.
 *
 * `read` and `write` begin a copy between pages and bytes and return at once; SC_OK means that
 * sc_kv_moved will be called with this ticket exactly once, from any thread, perhaps before the
 * function returns. Anything else: nothing was begun, and the transfer fails. They are called from
 * threads of the tiers, several at a time. Ids and bytes stay as they are until sc_kv_moved. */
typedef struct sc_kv_mover {
    void *ctx;
    uint64_t page_bytes; /* KV of one page, of this rank; > 0 */
    /* `count` ids for pages that are to be written: all or nothing. Called by acquire with the
     * cache locked: it must not call the cache, and answers at once. The ids are the cache's from
     * then on, as if handed in by a commit */
    bool (*alloc)(void *ctx, uint32_t count, int32_t *ids_out);
    sc_status (*read)(void *ctx, uint64_t ticket, const int32_t *ids, uint32_t count, void *bytes);
    sc_status (*write)(void *ctx, uint64_t ticket, const int32_t *ids, uint32_t count,
        const void *bytes);
} sc_kv_mover;

/** A state elsewhere: its key as a shared store has it. */
typedef struct sc_remote_key {
    uint64_t adapter_id, adapter_generation;
    const int32_t *tokens;
    /* those of the cache's key, and one at each stretch of the history but a prefill from token 0
     * on: how a state was computed is part of what it is */
    const sc_mark *marks;
    uint32_t token_count, mark_count;
    uint32_t len_max;         /* find: the longest prefix that is asked for */
} sc_remote_key;

/** A store that other processes share, as a tier: a statecached (sc_client_remote_open of
 * statecache/client.h), or whatever implements these calls. The struct is copied; `ctx` must
 * outlive the sc_tiers. The calls may block, and are made by threads of the tiers and by those that
 * call sc_cache_find, several at a time; no lock is held meanwhile.
 *
 * A state is `state_bytes` bytes: the parts in the schema's order, dense, little-endian. */
typedef struct sc_remote {
    size_t struct_size;
    void *ctx;
    /* whose states these are: compared with the cache's pool (SC_ERR_MISMATCH) */
    sc_fingerprint fingerprint;
    uint64_t state_bytes;
    uint32_t tp_rank, tp_size, layer_first, layer_last;
    /* Tokens of the longest state of each key, at most its len_max; 0: none. */
    sc_status (*find)(void *ctx, const sc_remote_key *keys, uint32_t count, uint32_t *len_out);
    /* The state after all tokens of the key is there when this returns SC_OK, also when it was
     * before. */
    sc_status (*store)(void *ctx, const sc_remote_key *key, const void *state);
    /* SC_ERR_NOT_FOUND: it is not there (any more). */
    sc_status (*load)(void *ctx, const sc_remote_key *key, void *state_out);
} sc_remote;
#define SC_REMOTE_INIT {sizeof(sc_remote), NULL, {{0}}, 0, 0, 0, 0, 0, NULL, NULL, NULL}

/** When a state goes down a tier. */
typedef enum sc_tier_write {
    SC_TIER_WRITE_BACK = 1,     /* when it is about to be evicted above */
    SC_TIER_WRITE_THROUGH = 2,  /* at once */
    SC_TIER_WRITE_SELECTIVE = 3 /* when it was used `write_uses` times; else as WRITE_BACK */
} sc_tier_write;

/** One tier. */
typedef struct sc_tier_config {
    uint64_t bytes;       /* room for states and KV; 0: there is no such tier */
    uint64_t day_bytes;   /* written in a day at most (wear of an SSD); 0: no limit */
    uint32_t write;       /* SC_TIER_WRITE_; 0: WRITE_BACK */
    uint32_t write_uses;  /* SELECTIVE: >= 1; 0: 2 */
    /* 1 raw, 2 bf16, 3 int8 (docs/reference/codecs.md); 0: raw. With loss only where `lossy` is
     * set: then a hit is no longer exact */
    uint32_t codec;
    bool lossy;
    uint32_t zstd_level;  /* 0: none; 1 to 19 */
    /* For restore or recompute. 0: not known, then a restore is always worth it */
    uint64_t restore_bytes_per_s;
    uint64_t restore_latency_ns;
} sc_tier_config;

typedef struct sc_tiers_options {
    size_t struct_size;
    sc_tier_config host, disk;
    const char *folder;      /* of the disk tier; made if it is not there */
    uint64_t file_bytes;     /* of one extent file of a new store; 0: 1 GiB */
    /* revision of the kernels' numerics, and of the form of KV: records of another are misses */
    uint32_t numerics;
    uint64_t flops_per_s;    /* of a prefill; 0: not known, then a restore is always worth it */
    uint32_t entry_max;      /* copies in host memory at most; 0: 65,536 */
    bool must_pin;           /* SC_ERR_UNSUPPORTED where host memory cannot be pinned */
    /* of host memory: SC_ERR_LIMIT beyond what the host and its cgroup have left for each of so
     * many ranks; 0: not looked at */
    uint32_t rank_count;
    const sc_allocator *allocator; /* NULL: default */
    /* A store that other processes share, in the place of a host and a disk tier of one's own.
     * `bytes` of what this cache remembers to be there (at most entry_max states): the store has a
     * budget of its own. Raw codec; no kv_mover. What others have stored is found by
     * sc_cache_find. NULL, and bytes 0: none */
    sc_tier_config remote;
    const sc_remote *remote_calls;
} sc_tiers_options;
#define SC_TIERS_OPTIONS_INIT                                                                      \
    {sizeof(sc_tiers_options), {0, 0, 0, 0, 0, false, 0, 0, 0}, {0, 0, 0, 0, 0, false, 0, 0, 0},   \
        NULL, 0, 1, 0, 0, false, 0, NULL, {0, 0, 0, 0, 0, false, 0, 0, 0}, NULL}

/** Opens the tiers; a folder belongs to one at a time.
 * Errors: SC_ERR_INVALID (no tier, a bad codec or level, a disk without a folder, a remote tier
 * without calls, with a codec, or beside another tier),
 * SC_ERR_NO_MEMORY, SC_ERR_BUSY (the folder is open), SC_ERR_LIMIT, SC_ERR_CORRUPT, SC_ERR_IO,
 * SC_ERR_UNSUPPORTED. */
SC_TIERS_API sc_status sc_tiers_create(const sc_tiers_options *options, sc_tiers **tiers_out);
/** SC_ERR_BUSY, changing nothing, while a cache uses them. NULL is allowed. What is on disk
 * stays. */
SC_TIERS_API sc_status sc_tiers_destroy(sc_tiers *tiers);

/** The name of a record on disk: of its key, its history and its form, not of a rank's shard.
 * Frozen. It means something between processes of one version of the library alone. */
typedef struct sc_stored { uint64_t name[2]; } sc_stored;
/** What is in the disk tier, of all models, in the order of the names. `*count_out` is how many,
 * also with SC_ERR_LIMIT: `cap` is less (what was written has no order then).
 * Threads: any, not beside a cache that uses the tiers.
 * Errors:  SC_ERR_INVALID, SC_ERR_LIMIT, SC_ERR_IO, SC_ERR_NO_MEMORY.
 * Cost:    reads all metadata. */
SC_TIERS_API sc_status sc_tiers_stored(
    sc_tiers *tiers, sc_stored *stored_out, uint32_t cap, uint32_t *count_out);
/** The next cache on these tiers begins with records of `common` alone, and what else is there of
 * its model goes. For tensor-parallel ranks, whose disks need not have the same after a crash: each
 * calls sc_tiers_stored, they intersect what they have, and each agrees to the result before
 * sc_cache_create. Then their caches begin the same, and go on deciding the same. A record whose KV
 * begins behind one that is not in `common` is left out.
 * Ownership: `common` is copied. `count` 0: nothing is common.
 * Errors:  SC_ERR_INVALID (not strictly in the order of sc_tiers_stored), SC_ERR_BUSY (a cache
 * uses the tiers), SC_ERR_NO_MEMORY. */
SC_TIERS_API sc_status sc_tiers_agree(sc_tiers *tiers, const sc_stored *common, uint32_t count);

/** Transfers are also counted by how long they took: bucket `b` has those of less than
 * SC_TIERS_BUCKET_NS(b) that no bucket before has; the last bucket has all the others. */
#define SC_TIERS_BUCKET_NS(b) ((uint64_t)65536 << (b))
enum { SC_TIERS_BUCKET_COUNT = 20 };

/** What the transfers of this process have done and measured. */
typedef struct sc_tiers_stats {
    size_t struct_size;            /* in */
    /* by tier (SC_TIER_): bytes of completed transfers, and the time they took, waiting for their
     * turn excluded, but a store to disk's for a commit with others included. Restores: a proposal
     * for restore_bytes_per_s of later options */
    uint64_t stored[4], stored_bytes[4], stored_ns[4];
    uint64_t restored[4], restored_bytes[4], restored_ns[4];
    uint64_t failed;
    uint64_t used_bytes[4];
    bool pinned;                   /* the host tier's memory */
    bool direct, uring;            /* of the disk tier */
    /* the disk's metadata could not be written, and nothing is written or read until the tiers are
     * opened again */
    bool disk_broken;
    uint64_t stored_time[4][SC_TIERS_BUCKET_COUNT], restored_time[4][SC_TIERS_BUCKET_COUNT];
    /* Of those in `failed`: SC_ERR_IO and SC_ERR_CORRUPT; and how many there were since the last
     * transfer of this tier that succeeded */
    uint64_t io_failed[4], io_failed_row[4];
    /* Wear: payload written to disk, ever, and on the day (86,400 s of the clock that the cache is
     * given) of the last write; as of other days it is 0 */
    uint64_t disk_written_bytes, disk_day, disk_day_bytes;
} sc_tiers_stats;
/** Fills `stats_out->struct_size` bytes. Threads: any. SC_ERR_INVALID. */
SC_TIERS_API sc_status sc_tiers_stats_get(sc_tiers *tiers, sc_tiers_stats *stats_out);

#ifdef __cplusplus
}
#endif
#endif
