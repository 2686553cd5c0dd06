/* SPDX-License-Identifier: Apache-2.0 */
/* Between the engine, which decides, and the tiers, which carry out: a job for each transfer, and a
 * table of functions, so that the engine needs neither LMDB nor zstd (docs/adr/0004-tier-table.md).
 *
 *   engine   submit(job) ----------------------.        .------ take(): jobs that have ended
 *                                               v        ^
 *   tiers    queue of writes, queue of restores -> threads -> done
 *                                    |                  ^
 *            sc_kv_mover read/write  '---- parked ------'  moved(ticket)
 *
 * A job is the engine's memory. From submit until take has given it back the tiers alone touch it,
 * and the slot, the KV pages and the copies that it names stay as they are. Jobs that write (store,
 * spill, drop) are begun in the order of submission; restores overtake them.
 *
 * A copy is named by a number of the engine's, which is never used twice. */
#ifndef SC_SNAPSHOT_TIER_TABLE_H
#define SC_SNAPSHOT_TIER_TABLE_H

#include "snapshot/registry.h"
#include "statecache/mark.h"
#include "statecache/tiers.h"

struct sc_store_put;

enum {
    SC_TIER_TABLE_TIERS = 4,
    SC_TIER_TABLE_HOST = 1,
    SC_TIER_TABLE_DISK = 2,
    SC_TIER_TABLE_REMOTE = 3
};

enum sc_tier_op {
    SC_TIER_STORE = 1,   /* slot and KV -> a tier */
    SC_TIER_SPILL = 2,   /* a copy in host memory -> disk */
    SC_TIER_RESTORE = 3  /* copies -> slot and KV */
};

/* One record that a restore reads. The first has the state; the KV of pages comes from all. */
struct sc_tier_source {
    uint32_t tier;
    uint64_t copy;        /* host */
    uint32_t token_count; /* the key's prefix that is the record's key */
    uint32_t own_pages;   /* that the record holds */
    uint32_t skip, count; /* of these: pages that are wanted */
    uint32_t id_first;    /* index in kv_ids of the first */
    uint32_t record;      /* the engine's own */
};

struct sc_tier_job {
    enum sc_tier_op op;
    uint64_t ticket;
    uint64_t now_ns;
    uint32_t tier;        /* STORE, SPILL: where to */
    uint64_t copy;        /* of STORE; source of SPILL */
    /* the key */
    uint64_t adapter_id, adapter_generation;
    const int32_t *tokens;
    const sc_mark *marks;
    uint32_t token_count, mark_count;
    const struct sc_stretch *history;
    uint32_t history_count;
    uint32_t parent_len;  /* STORE, SPILL: of the record behind which its KV begins */
    uint32_t kind;
    double value;
    sc_slot slot;         /* STORE: from; RESTORE: to */
    const int32_t *kv_ids;
    uint32_t kv_count;
    const struct sc_tier_source *sources; /* RESTORE */
    uint32_t source_count;
    /* of the completion */
    sc_status status;
    uint32_t disk_id;     /* STORE, SPILL to disk: the record's number there */
    uint64_t disk_tick;   /* ... which may be another's later: with this it is the record */
    /* the tiers' own */
    struct sc_tier_job *next;
    uint32_t stage, source;
    uint64_t move, began_ns, bytes;
    sc_status moved;
    void *payload;        /* of the source in hand, or what is stored */
    uint64_t payload_bytes, state_bytes, plain_bytes, kv_bytes;
    uint32_t codec, flags;
    void *owned;          /* memory to free: payload, unless it is the host tier's */
    uint64_t owned_bytes;
    struct sc_store_put *put; /* written, not committed yet */
    bool held;                /* the payload is an entry of the host tier, acquired */
};

/* A record that was there at creation: an edge of the tree of prefixes, parents first. */
struct sc_tier_loaded {
    uint32_t disk_id, parent_disk_id; /* UINT32_MAX: none */
    uint64_t disk_tick;
    bool has_record;
    uint64_t adapter_id, adapter_generation;
    uint32_t parent_len, token_count;
    const int32_t *tokens;            /* [parent_len, token_count) of the key */
    const sc_mark *marks;             /* of these */
    uint32_t mark_count;
    const struct sc_stretch *history; /* of a record: ends at token_count */
    uint32_t history_count, kind;
    double value;
    uint64_t bytes;                   /* on disk */
};

/* A key of which a remote tier is asked. */
struct sc_tier_find {
    uint64_t adapter_id, adapter_generation;
    const int32_t *tokens;
    const sc_mark *marks;
    uint32_t token_count, mark_count, len_max;
    const struct sc_stretch *history;
    uint32_t history_count;
};

struct sc_tier_bind {
    sc_pool *pool;
    const sc_kv_mover *mover; /* NULL: none */
    sc_fingerprint fingerprint;
    uint32_t page_tokens;
};

struct sc_tier_table {
    /* One cache at a time: SC_ERR_BUSY. Says what a copy in each tier takes at most, without KV. */
    sc_status (*bind)(sc_tiers *tiers, const struct sc_tier_bind *bind,
        uint64_t state_bytes_out[SC_TIER_TABLE_TIERS]);
    /* Waits for what was submitted and not for the engine's KV: SC_ERR_BUSY, and bound still, while
     * a move of KV has not ended. Jobs that were not taken are the engine's again. */
    sc_status (*unbind)(sc_tiers *tiers);
    void (*submit)(sc_tiers *tiers, struct sc_tier_job *job);
    /* One that has ended, in the order in which they did; NULL: none. */
    struct sc_tier_job *(*take)(sc_tiers *tiers);
    /* Forgets a copy that no job names any more. Cannot fail: what stays is found useless later. */
    void (*drop_host)(sc_tiers *tiers, uint64_t copy);
    void (*drop_disk)(sc_tiers *tiers, uint32_t disk_id, uint64_t disk_tick);
    /* SC_ERR_NOT_FOUND: there is no such move. */
    sc_status (*moved)(sc_tiers *tiers, uint64_t move, sc_status status);
    /* What the disk has, before any submit; what belongs to another model is left out. */
    sc_status (*load)(sc_tiers *tiers,
        sc_status (*fn)(void *ctx, const struct sc_tier_loaded *loaded), void *ctx,
        uint64_t *day_out, uint64_t *day_bytes_out);
    /* Lengths of what a remote tier has; zeros where there is no such tier. Any thread; blocks. */
    sc_status (*find)(sc_tiers *tiers, const struct sc_tier_find *finds, uint32_t count,
        uint32_t *len_out);
};

/* What every sc_tiers begins with. `options` has its defaults filled in. */
struct sc_tiers {
    const struct sc_tier_table *table;
    sc_tiers_options options;
};

#endif
