/* SPDX-License-Identifier: Apache-2.0 */
/* Tiers below the harness's cache: the real sc_tiers, with a folder of its own, and an engine's
 * mover of KV that obeys: at once, later, in another order, with failures.
 *
 *   cache --job--> sc_tiers --move--> moves[] --op "work"--> sc_kv_moved --> sc_tiers
 *     ^                |
 *     |                '--poll--> held[] (op "poll") --op "apply", some as failed--> cache
 *     '-- leases that waited: READY, with the state and the pages of a cold run, or shorter
 *
 * One thread: the tiers have no threads either, op "work" carries out their jobs; so the same
 * operations give the same run, failures of the disk too. Threads: the tiers have theirs.
 *
 * A page of KV is two words of 8 bytes: the page's stamp, and a mix of it. */
#ifndef TESTS_HARNESS_TIERS_H
#define TESTS_HARNESS_TIERS_H

#include <pthread.h>
#include <stdatomic.h>

#include "statecache/statecache.h"
#include "support/fail_alloc.h"
#include "tier/tiers_hooks.h"

struct h_world;
struct h_sched;
struct h_lease;

enum {
    H_MOVES_MAX = 256,
    H_HELD_MAX = 256,
    H_TICKETS = 4096, /* whose end is remembered */
    H_PAGE_BYTES = 16
};

enum h_outcome { H_TICKET_ALIVE = 0, H_TICKET_DONE = 1, H_TICKET_FAILED = 2 };

struct h_move {
    uint64_t ticket;
    const int32_t *ids;
    uint32_t count;
    uint8_t *bytes;
    bool write;
};

struct h_tiers {
    sc_tiers *tiers; /* NULL: the device alone */
    sc_tiers_options options;
    struct sc_tiers_hooks hooks;
    struct sc_tier_faults faults;
    sc_kv_mover mover;
    char folder[256];
    struct fail_alloc fa; /* of the tiers alone: they keep buffers */

    pthread_mutex_t lock; /* of the moves */
    struct h_move moves[H_MOVES_MAX];
    uint32_t move_count;
    _Atomic uint32_t refuse, spoil; /* so many moves are refused, fail */
    bool no_pages;                  /* alloc has none */

    /* The disk: of the calls from now on the `fail_at`-th fails. */
    _Atomic uint64_t fail_calls, fail_at;
    _Atomic int fail_code;
    _Atomic uint64_t fail_hits;
    bool damaged;  /* bytes on disk were changed */
    bool troubled; /* ... or something was made to fail: transfers may fail */

    sc_done held[H_HELD_MAX]; /* polled, not applied */
    uint32_t held_count;
    uint8_t outcome[H_TICKETS]; /* enum h_outcome, by ticket */
};

/* What happened, of all worlds. All members are counters of 64 bits. */
struct h_tier_totals {
    uint64_t worlds, waited, restored, in_working, shorter, late, joined;
    uint64_t applied, applied_failed, moves, reopened, loaded, damaged, verified, records;
    uint64_t resumed[4], stored[4], dropped[4], refused[4], lost;
};

/* ---- tiers.c ---- */

/* Before the cache is created, if the world has tiers. Allocations and calls of the system fail
 * first, as they are made to. */
void h_tiers_create(struct h_world *w);
/* After the cache is gone. `keep`: the folder stays, for the next h_tiers_create. */
void h_tiers_destroy(struct h_world *w, bool keep);
/* Removes the folders that a process has left. */
void h_tiers_sweep(long pid);
/* Carries out one late move, any of them; false: there is none. */
bool h_tiers_move(struct h_sched *s);
/* Until every transfer has ended and is applied. */
void h_tiers_settle(struct h_sched *s);
/* Polls, into held[]. */
void h_tiers_poll(struct h_sched *s);
/* Applies held[at .. at + count) as it is; says what became of it. */
void h_tiers_apply(struct h_sched *s, const sc_done *done, uint32_t count);
/* Leases of this scheduler that waited for a lower tier go on, if they may. */
void h_tiers_wake(struct h_sched *s);
void h_tiers_check(struct h_sched *s, const sc_cache_stats *stats);

/* ---- tier_ops.c ---- */
void h_op_poll(struct h_sched *s);
void h_op_apply(struct h_sched *s);
void h_op_work(struct h_sched *s);
void h_op_trouble(struct h_sched *s);
void h_op_reopen(struct h_sched *s);

#endif
