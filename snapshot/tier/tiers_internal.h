/* SPDX-License-Identifier: Apache-2.0 */
/* What carries out the engine's transfers: queues, two threads, a host store and a disk store.
 *
 *   submit --> queue[WRITES]   --> writer --.--> done --> take
 *          '-> queue[RESTORES] --> reader --'
 *                  ^                  |
 *                  '---- moved <-- parked (its KV is on the way)
 *
 * (1) A job is in one queue, with a thread, parked, or done.
 * (2) Writes are begun in the order of submission, one at a time: what a store commits is there
 *     when the next one names it as its parent, and a drop comes after the stores before it. (A
 *     parked write is passed by others: none of them names it before its completion was applied.)
 * (3) `moves` counts the moves of KV that have not ended: until 0 nothing is given back.
 *
 * Locks: `lock` for queues and counters; never held over I/O, the device or the mover. */
#ifndef SC_TIER_TIERS_INTERNAL_H
#define SC_TIER_TIERS_INTERNAL_H

#include "base/heap.h"
#include "base/lock.h"
#include "snapshot/tier_table.h"
#include "tier/disk_store.h"
#include "tier/host_store.h"
#include "tier/pack.h"
#include "tier/tiers_hooks.h"

enum { QUEUE_WRITES = 0, QUEUE_RESTORES = 1, QUEUE_COUNT = 2 };

/* Behind the payload of a copy in host memory. */
struct host_note {
    uint64_t state_bytes, plain_bytes, kv_bytes;
    uint32_t codec, flags;
};

struct queue {
    struct sc_tier_job *first, **end;
    bool busy; /* its thread has a job */
    pthread_cond_t more;
    pthread_t thread;
    bool started;
};

/* Drops wait their turn among the writes: each is a small job of its own. */
struct drop {
    struct sc_tier_job job; /* op 0 */
    uint64_t copy;
    uint32_t disk_id, token_count;
};

struct tiers {
    struct sc_tiers base;
    struct sc_heap heap;
    struct sc_mutex lock;
    pthread_cond_t idle;
    struct queue queues[QUEUE_COUNT];
    struct sc_tier_job *parked, *done, **done_end;
    uint64_t moves, move_next;
    bool quit, bound, has_mover, manual;
    struct sc_host_store *host;
    uint64_t host_slack;
    struct sc_store *disk;
    sc_pool *pool;
    sc_pool *scratch;       /* one slot in host memory, to change a codec; the writer's */
    sc_slot scratch_slot;
    sc_kv_mover mover;
    sc_fingerprint fingerprint;
    sc_shard shard;
    uint32_t numerics;      /* of the options; with KV also how it is cut into pages */
    sc_tiers_stats stats;
};

/* tiers_work.c: goes on with a job until it ends (true) or waits for its KV. */
bool sc_tiers_work(struct tiers *tiers, struct sc_tier_job *job);
void sc_tiers_drop(struct tiers *tiers, const struct drop *drop);
/* The move of the job has ended, or was refused. */
void sc_tiers_release(struct tiers *tiers, struct sc_tier_job *job);
/* tiers.c: begins a move of KV; false: it was refused (job->status). True: the job is parked. */
bool sc_tiers_move(struct tiers *tiers, struct sc_tier_job *job, bool write, const int32_t *ids,
    uint32_t count, void *bytes);

static inline const sc_tier_config *sc_tiers_tier(const struct tiers *tiers, uint32_t tier)
{
    return tier == SC_TIER_TABLE_HOST ? &tiers->base.options.host : &tiers->base.options.disk;
}

static inline struct sc_pack_options sc_tiers_pack(const struct tiers *tiers, uint32_t tier)
{
    const sc_tier_config *options = sc_tiers_tier(tiers, tier);
    return (struct sc_pack_options){options->codec, options->lossy, (int)options->zstd_level};
}

#endif
