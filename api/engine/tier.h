/* SPDX-License-Identifier: Apache-2.0 */
/* Tiers below the device: what the engine knows of them, and decides.
 *
 *   sc_cache --- struct tier --- directory: a tree of its own (tokens, marks) whose snapshots
 *                   |            are records; a record has copies (host, disk) and perhaps a
 *                   |            snapshot on the device
 *                   |-- budget of each tier, and the order in which copies go
 *                   '-- transfers: jobs for the sc_tiers, by ticket
 *
 * The directory is the engine's own account, so that decisions depend on calls alone (contract 18):
 * a copy is there when its completion was applied, and gone when the engine dropped it or when an
 * applied completion said that it could not be read. What the sc_tiers really has may be less; then
 * a restore fails, and the copy is forgotten.
 *
 *            published            store applied
 *   (none) ----------> DEVICE ------------------> DEVICE + copies     device evicted: copies alone
 *                        |  evicted: the record goes         restore applied: DEVICE + copies
 *                        v
 *                      (none)  <--- last copy dropped, no snapshot, no record behind it
 *
 * A remote tier is a store that others share, and stands alone. A copy there is what this cache
 * remembers: one that was stored and applied, or learnt (sc_cache_learn). To drop it is to forget.
 *
 * KV of a hybrid. A copy holds the pages from parent_len on; those before are its parent record's.
 * A parent has whole pages and the same history. A restore of pages [k, n) reads the records that
 * have them, from n upwards:
 *
 *      |-- parent's parent --|------ parent ------|--- record ---|
 *      0                         k                               n
 *                                [ parent's last  |   all of it  )
 *
 * Invariants; sc_cache_verify cites them by number.
 *
 * (20) A record's node in the directory ends at token_count and carries its id. Snapshot and record
 *      name each other, by id, if at all.
 * (21) `children` counts the records whose parent it is, `disk_children` those of them on disk or
 *      on their way there. A record that has children keeps a copy, unless a failed restore took
 *      it.
 * (22) `used` of a tier is the sum of the bytes of the copies that are there or being written,
 *      `count` their number.
 * (23) `readers` counts the transfers that read a copy; such a copy is not dropped.
 * (24) A store holds a lock of state and KV on its source; a restore one of the KV it builds on.
 * (25) A transfer that restores owns its slot (IN_FLIGHT), unless it writes a lease's working slot,
 *      and the ids of the pages that it writes.
 * (26) A copy is in the order of its tier if and only if it may be dropped.
 *
 * Order of copies: the policy's value per byte when the copy was made, on top of the value of what
 * was dropped last (so that what was once worth much ages), then least recently used. */
#ifndef SC_ENGINE_TIER_H
#define SC_ENGINE_TIER_H

#include "cache_internal.h"
#include "snapshot/tier_table.h"

enum { TIER_FIRST = SC_TIER_HOST, TIER_END = SC_TIER_REMOTE + 1 };
enum { TIER_NOT_RANKED = UINT32_MAX };
/* Failed restores until a record is no parent any more, and what one that failed by itself has. */
enum { SUSPECT_MAX = 2, SUSPECT_SURE = 1 << 30 };
static_assert((int)SC_TIER_HOST == (int)SC_TIER_TABLE_HOST, "one numbering of tiers");
static_assert((int)SC_TIER_DISK == (int)SC_TIER_TABLE_DISK, "one numbering of tiers");
static_assert((int)SC_TIER_REMOTE == (int)SC_TIER_TABLE_REMOTE, "one numbering of tiers");

struct tier_space {
    uint64_t adapter_id, adapter_generation;
    uint32_t radix_space; /* 0: free */
};

struct tier_record {
    uint32_t id;               /* index + 1; 0: free */
    uint32_t space;            /* index of its tier_space */
    uint32_t token_count;
    sc_node node;              /* in the directory */
    uint32_t snapshot;         /* on the device; 0: none */
    sc_node device_node;
    uint32_t parent, parent_len; /* of its copies; parent 0: none */
    uint32_t children, disk_children;
    uint8_t copies, writing;   /* a bit for each tier */
    uint32_t readers[TIER_END];
    uint32_t failed;           /* stores that failed one after the other, since its last use */
    uint32_t suspect;          /* restores that failed and had it in their chain */
    uint64_t bytes[TIER_END];
    uint64_t host_copy;        /* its name there */
    uint32_t disk_id;
    uint64_t disk_tick;        /* its name there, with disk_id */
    uint32_t uses, kind;
    uint64_t used;             /* tick of its last use */
    double value;              /* its place in the order of copies */
    uint32_t place[TIER_END];  /* in the order of the tier, or TIER_NOT_RANKED */
    uint32_t restoring;        /* ticket (low word) of the restore that others may join; 0: none */
    struct sc_stretch *history;
    uint32_t history_count;
    struct sc_snapshot_hints hints;
    UT_hash_handle hh;         /* in tier.by_snapshot, if it has one */
};

struct transfer {
    uint64_t ticket;
    struct sc_tier_job job;
    bool ended;                /* here: poll has reported it */
    bool refused;              /* it was never submitted: the slot could not be prepared */
    uint32_t record;           /* id */
    uint32_t space;            /* of the engine's tree */
    struct sc_radix_receipt receipt;
    sc_slot slot;              /* RESTORE: its own, or null */
    struct lease *lease;       /* ... or it writes the working slot of this one */
    struct lease *waiters;
    uint32_t len, first_page, page_count; /* RESTORE: pages [first_page, page_count) are written */
    int32_t *ids;              /* [page_count]; those before first_page are not read */
    struct transfer *next;     /* to be submitted, or to be reported */
    size_t bytes;              /* of this block of memory */
    UT_hash_handle hh;         /* in tier.transfers */
};

struct tier {
    sc_tiers *tiers;
    const struct sc_tier_table *table;
    const sc_tiers_options *options; /* of the sc_tiers */
    bool has_mover;
    sc_kv_mover mover;
    struct sc_radix *radix;    /* the directory */
    struct tier_space *spaces;
    uint32_t space_count, space_cap;
    struct tier_record **records; /* [record_cap] by id - 1; NULL: free */
    uint32_t record_count, record_end, record_cap;
    uint32_t *free_ids;        /* [record_cap] */
    uint32_t free_count;
    struct tier_record *by_snapshot;
    uint32_t *order[TIER_END]; /* [record_cap] ids, a heap: the first goes first */
    uint32_t order_count[TIER_END];
    uint64_t used[TIER_END], bytes_max[TIER_END], state_bytes[TIER_END];
    uint32_t count[TIER_END], count_max[TIER_END];
    double floor[TIER_END];    /* value of what was dropped last */
    uint64_t tick, copy_next, ticket;
    uint64_t day, day_bytes;   /* written to disk today */
    struct transfer *transfers;
    uint32_t transfer_count, store_count, spill_count;
    uint32_t waiting_hits;     /* leases that wait, and have a hit of the device meanwhile */
    struct transfer *report, **report_end; /* ended, not polled yet */
    uint64_t load_hash;
    uint32_t load_count;
    /* The player's: ids that alloc gave when the call was recorded. */
    bool player, player_gives;
    const int32_t *player_ids;
    uint32_t player_count;
};

static inline const sc_tier_config *sc_tier_config_of(const struct tier *tier, uint32_t which)
{
    if (which == SC_TIER_REMOTE) return &tier->options->remote;
    return which == SC_TIER_HOST ? &tier->options->host : &tier->options->disk;
}

/* tier.c: creation, records */
sc_status sc_engine_tier_create(sc_cache *cache);
/* SC_ERR_BUSY: a move of KV has not ended. */
sc_status sc_engine_tier_unbind(sc_cache *cache);
void sc_engine_tier_free(sc_cache *cache);
sc_status sc_engine_tier_space_open(sc_cache *cache, uint64_t adapter_id, uint64_t generation,
    uint32_t *space_out);
/* SC_ERR_BUSY: transfers of it have not been applied. */
sc_status sc_engine_tier_space_check(const sc_cache *cache, const struct space *space);
void sc_engine_tier_space_close(sc_cache *cache, const struct space *space);

/* tier_record.c */
static inline uint32_t sc_tier_readers(const struct tier_record *record)
{
    uint32_t readers = 0;
    for (uint32_t t = TIER_FIRST; t < TIER_END; t++) readers += record->readers[t];
    return readers;
}
static inline struct tier_record *sc_tier_record(const struct tier *tier, uint32_t id)
{
    return id > 0 && id <= tier->record_end ? tier->records[id - 1] : NULL;
}
struct tier_record *sc_tier_record_of_snapshot(const struct tier *tier, uint32_t snapshot);
/* Puts a record into the directory, or finds the one of this key and history. SC_ERR_NO_MEMORY;
 * SC_ERR_BUSY: another history is there, and in use. */
struct tier_key {
    uint32_t space; /* index */
    const int32_t *tokens;
    uint32_t token_count;
    const sc_mark *marks; /* also beyond token_count */
    uint32_t mark_count;
    sc_node from;         /* of the directory, as for sc_radix_insert */
    const struct sc_stretch *history;
    uint32_t history_count;
};
sc_status sc_tier_record_add(sc_cache *cache, const struct tier_key *key,
    struct tier_record **record_out);
void sc_tier_record_free(sc_cache *cache, struct tier_record *record);
/* Frees it, and those above, if nothing is left of it. */
void sc_tier_record_settle(sc_cache *cache, struct tier_record *record);
/* Its copies have changed, or who needs them. */
void sc_tier_rank(struct tier *tier, struct tier_record *record);
void sc_tier_copy_drop(sc_cache *cache, struct tier_record *record, uint32_t which);
/* Drops copies until `bytes` fit. False: what is left is worth more than `value`, or in use. */
bool sc_tier_make_room(sc_cache *cache, uint32_t which, uint64_t bytes, double value);
/* The record has this snapshot on the device; 0: none. Without memory it has none. */
void sc_tier_link(sc_cache *cache, struct tier_record *record, uint32_t snapshot, sc_node node);
bool sc_tier_same_history(const struct sc_stretch *a, uint32_t a_count,
    const struct sc_stretch *b, uint32_t b_count, uint32_t len);
/* Whether it and all records before it are on disk, or on their way there: the store gives no
 * record whose KV could not be complete. */
bool sc_tier_on_disk(const struct tier *tier, const struct tier_record *record, bool or_coming);
struct tier_record *sc_tier_above(const struct tier *tier, const struct tier_record *record);

/* tier_store.c */
/* A snapshot of the lease was published on `node`. */
void sc_engine_tier_saved(sc_cache *cache, const struct lease *lease, uint32_t position,
    sc_node node, uint32_t snapshot);
/* It was resumed: on the device, or by a restore. */
void sc_tier_used(sc_cache *cache, struct tier_record *record);
/* It was resumed; or it goes. */
void sc_engine_tier_used(sc_cache *cache, uint32_t snapshot);
void sc_engine_tier_gone(sc_cache *cache, uint32_t snapshot);
/* Makes what will be evicted next safe, one tier down. */
void sc_engine_tier_tend(sc_cache *cache);
/* Bytes that a copy of the record counts for. */
uint64_t sc_tier_copy_bytes(const sc_cache *cache, const struct tier_record *record,
    uint32_t which);
void sc_tier_store_end(sc_cache *cache, struct transfer *transfer, sc_status status);

/* tier_restore.c */
void sc_engine_tier_answer(const sc_cache *cache, const struct space *space,
    const struct sc_radix_key *key, const struct sc_radix_match *match, uint32_t len_max,
    sc_answer *answer);
/* The lease waits for what a lower tier has, or not, with a reason. Cannot fail. What is to be
 * submitted when the slots are prepared is added to `fills`. */
void sc_engine_tier_begin(sc_cache *cache, struct lease *lease, const sc_request *request,
    uint32_t len_max, struct fills *fills);
/* The lease ends. True: the transfer has taken its working slot. */
bool sc_engine_tier_leave(sc_cache *cache, struct lease *lease);
/* Time has come: leases whose deadline is over go on. */
void sc_engine_tier_time(sc_cache *cache);
/* A lease that waits does so no more: its reason changes, it leaves, it goes on from where the
 * device was. */
void sc_tier_reason_set(sc_cache *cache, struct lease *lease, sc_reason reason);
void sc_tier_forget_waiter(sc_cache *cache, struct lease *lease);
void sc_tier_go_on_shorter(sc_cache *cache, struct lease *lease, sc_reason reason);

/* tier_resume.c */
void sc_tier_restore_end(sc_cache *cache, struct transfer *transfer, sc_status status);

/* tier_apply.c */
/* Memory for a transfer of this record with its key, `pages` ids and `sources` sources. NULL. */
struct transfer *sc_tier_transfer(sc_cache *cache, struct tier_record *record, uint32_t pages,
    uint32_t sources);
void sc_tier_transfer_free(sc_cache *cache, struct transfer *transfer);
void sc_tier_submit(sc_cache *cache, struct transfer *transfer);
/* Submits those of a call whose slots are prepared, or, with a failure, reports them as failed. */
void sc_engine_tier_submit(sc_cache *cache, struct fills *fills, sc_status status);
/* The player waits for what was submitted here. */
sc_status sc_engine_tier_wait(sc_cache *cache, const sc_done *done, uint32_t count);

/* tier_load.c */
sc_status sc_engine_tier_load(sc_cache *cache);

/* tier_verify.c */
struct tier_totals { uint64_t slots, held, receipts; };
sc_status sc_engine_tier_verify(const sc_cache *cache, struct tier_totals *totals_out);

#endif
