/* SPDX-License-Identifier: Apache-2.0 */
/* What carries out the engine's transfers: queues, a thread each, a host store and a disk store.
 *
 *   submit --> queue[WRITES]   --> writer --.-----------------> done --> take
 *          |        ^    |  '---> queue[COMMITS] --> committer --^
 *          '-> queue[RESTORES] --> reader ------------------------'
 *                   ^    |
 *                   '- moved <-- parked (its KV is on the way)
 *
 * (1) A job is in one queue, with a thread, parked, or done.
 * (2) Writes are begun in the order of submission, one at a time. (A parked write is passed by
 *     others: none of them names it before its completion was applied.) Their commits follow in the
 *     same order, many in one transaction, while the next payload is on its way: a commit has three
 *     syncs, each of which empties the device's cache and holds up what is written beside it. So
 *     they wait for each other while more is being written, up to COMMIT_BYTES and COMMIT_WAIT_NS.
 *     Who needs a record that is not committed yet, as its parent or under the same key, has all of
 *     them committed, waits (sc_tiers_settle), and tries once more, also where the last commit has
 *     ended since its first try. A drop does so where the record may be the parent of one that
 *     waits: it comes after the stores before it.
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

enum { QUEUE_WRITES = 0, QUEUE_RESTORES = 1, QUEUE_COMMITS = 2, QUEUE_COUNT = 3 };
enum { COMMIT_MAX = 32 }; /* jobs in one transaction */
#define COMMIT_BYTES (UINT64_C(512) << 20)
#define COMMIT_WAIT_NS UINT64_C(250000000)

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
    uint64_t disk_tick;
    uint32_t disk_id;
};

struct tiers {
    struct sc_tiers base;
    struct sc_heap heap;
    struct sc_mutex lock;
    pthread_cond_t idle;
    struct queue queues[QUEUE_COUNT];
    struct sc_tier_job *parked, *done, **done_end;
    uint64_t moves, move_next;
    uint64_t commit_bytes;  /* of the writes that wait for their commit, since commit_ns */
    uint64_t commit_ns;
    uint32_t commit_count;
    uint64_t commits_ended; /* rounds of the committer */
    bool hurry;             /* somebody waits for them */
    bool quit, bound, has_mover, manual;
    struct sc_host_store *host;
    uint64_t host_slack;
    void (*settling)(void *ctx); /* the hooks', or NULL */
    void *settling_ctx;
    struct sc_store *disk;
    sc_pool *pool;
    sc_pool *scratch;       /* one slot in host memory, to change a codec; the writer's */
    sc_slot scratch_slot;
    sc_kv_mover mover;
    sc_fingerprint fingerprint;
    sc_remote remote;       /* a copy of the options' */
    sc_shard shard;
    uint32_t numerics;      /* of the options; with KV also how it is cut into pages */
    sc_tiers_stats stats;
    bool agreement;         /* the next cache begins with `agreed` alone */
    sc_stored *agreed;      /* in order */
    uint32_t agreed_count;
};

/* tiers_work.c: goes on with a job until it ends (true) or waits for its KV. */
bool sc_tiers_work(struct tiers *tiers, struct sc_tier_job *job);
/* The writes of the list are committed; what has become of each is in its job. */
void sc_tiers_commit(struct tiers *tiers, struct sc_tier_job *jobs);
void sc_tiers_drop(struct tiers *tiers, const struct drop *drop);
/* The move of the job has ended, or was refused. */
void sc_tiers_release(struct tiers *tiers, struct sc_tier_job *job);
/* tiers_threads.c; the caller holds `lock`. */
void sc_tiers_push(struct queue *queue, struct sc_tier_job *job);
/* Carries out the next job of the queue, or the commits that are due, leaving the lock meanwhile;
 * the caller holds it. False: there is nothing to do. */
bool sc_tiers_queue_step(struct tiers *tiers, uint32_t queue);
/* On failure those that were started are. */
sc_status sc_tiers_threads_start(struct tiers *tiers);
/* The job waits for its commit, and is the committer's from now on. */
void sc_tiers_hand_over(struct tiers *tiers, struct sc_tier_job *job);
/* How many commits have ended: asked before what is tried again after sc_tiers_settle(). */
uint64_t sc_tiers_commits_ended(struct tiers *tiers);
/* Waits until nothing waits for its commit. Has a commit ended, well or not, since `ended` of them
 * had? For the writer. */
bool sc_tiers_settle(struct tiers *tiers, uint64_t ended);
/* Whether a job that is not committed yet begins behind this record, at whatever depth. */
bool sc_tiers_awaited(struct tiers *tiers, uint32_t disk_id);
/* tiers_load.c: the table's */
sc_status sc_tiers_load(sc_tiers *tiers,
    sc_status (*fn)(void *ctx, const struct sc_tier_loaded *loaded), void *ctx, uint64_t *day_out,
    uint64_t *day_bytes_out);
/* tiers_remote.c. SC_ERR_MISMATCH: the store has states of others. */
sc_status sc_tiers_remote_check(const struct tiers *tiers, uint64_t state_bytes);
sc_status sc_tiers_remote_store(struct tiers *tiers, struct sc_tier_job *job);
/* Its payload is the job's (`owned`). */
sc_status sc_tiers_remote_load(struct tiers *tiers, struct sc_tier_job *job,
    const struct sc_tier_source *source);
sc_status sc_tiers_remote_find(sc_tiers *tiers, const struct sc_tier_find *finds, uint32_t count,
    uint32_t *len_out);
/* tiers.c: begins a move of KV; false: it was refused (job->status). True: the job is parked. */
bool sc_tiers_move(struct tiers *tiers, struct sc_tier_job *job, bool write, const int32_t *ids,
    uint32_t count, void *bytes);

static inline const sc_tier_config *sc_tiers_tier(const struct tiers *tiers, uint32_t tier)
{
    const sc_tiers_options *options = &tiers->base.options;
    if (tier == SC_TIER_TABLE_REMOTE) return &options->remote;
    return tier == SC_TIER_TABLE_HOST ? &options->host : &options->disk;
}

static inline struct sc_pack_options sc_tiers_pack(const struct tiers *tiers, uint32_t tier)
{
    const sc_tier_config *options = sc_tiers_tier(tiers, tier);
    return (struct sc_pack_options){options->codec, options->lossy, (int)options->zstd_level};
}

#endif
