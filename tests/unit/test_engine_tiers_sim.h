/* SPDX-License-Identifier: Apache-2.0 */
/* The random scheduler (test_engine_sim.h) on a cache with tiers: moves of KV end late and in any
 * order, completions are applied in any order and in pieces, some as failed, disks fail, pages run
 * out, deadlines pass. The rig checks every state and KV page that comes back. */
#ifndef TESTS_UNIT_TEST_ENGINE_TIERS_SIM_H
#define TESTS_UNIT_TEST_ENGINE_TIERS_SIM_H

#include "test_engine_sim.h"
#include "test_engine_tiers.h"

enum { HELD_MAX = 256 };

struct tier_sim {
    struct sim sim;
    struct tiered tiered;
    sc_done held[HELD_MAX]; /* polled, not applied */
    uint32_t held_count;
    bool faults;            /* are drawn */
    struct move lost[4];    /* moves that end only when the test does */
    uint32_t lost_count;
    uint64_t applied, applied_failed, waited, late;
};

/* Requests that waited, and wait no more, go on from where they are. */
static inline void tier_sim_wake(struct tier_sim *ts)
{
    struct rig *rig = &ts->sim.rig;
    for (uint32_t i = 0; i < SIM_REQS; i++) {
        struct req *req = &ts->sim.reqs[i];
        if (!ts->sim.waiting[i] || req->lease.id == 0) continue;
        sc_lease_info info = rig_info(rig, req->lease);
        if (info.state == SC_LEASE_WAITING) continue;
        ts->sim.waiting[i] = false;
        ts->waited++;
        ts->late += info.reason == SC_REASON_TIER_LATE;
        if (req->open >= 0) { /* the copy of a tail that it does not go on in */
            rig->kv_where[req->open] = 0;
            rig->kv_free[rig->kv_free_count++] = req->open;
            req->open = -1;
        }
        req_start(rig, req);
        rig_check_lease(rig, req);
    }
}

static inline void tier_sim_apply(struct tier_sim *ts)
{
    sc_done list[HELD_MAX];
    uint32_t count = ts->held_count ? sim_below(&ts->sim, ts->held_count + 1) : 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t k = sim_below(&ts->sim, ts->held_count);
        list[i] = ts->held[k];
        ts->held[k] = ts->held[--ts->held_count];
        if (sim_below(&ts->sim, 16) == 0) list[i].status = SC_ERR_IO; /* on another rank */
        ts->applied++;
        ts->applied_failed += list[i].status != SC_OK;
    }
    rig_ok(sc_cache_apply(ts->sim.rig.cache, list, count, ts->sim.rig.now_ns));
    tier_sim_wake(ts);
}

/* One of the moves is never heard of again, while the test lasts. */
static inline void tier_sim_lose(struct tier_sim *ts)
{
    struct tiered *t = &ts->tiered;
    (void)pthread_mutex_lock(&t->lock);
    if (t->move_count > 0 && ts->lost_count < 4) {
        ts->lost[ts->lost_count++] = t->moves[--t->move_count];
    }
    (void)pthread_mutex_unlock(&t->lock);
}

static inline void tier_sim_fault(struct tier_sim *ts)
{
    static const int codes[] = {ENOSPC, EIO, SC_TIER_FAULT_SHORT};
    struct tiered *t = &ts->tiered;
    switch (sim_below(&ts->sim, 8)) {
    case 4:
        if (sim_below(&ts->sim, 8) == 0) tier_sim_lose(ts);
        break;
    case 0:
        atomic_store(&t->spoil, 1);
        break;
    case 1:
        atomic_store(&t->refuse, 1);
        break;
    case 2:
        t->no_pages = !t->no_pages;
        break;
    case 3:
        tier_fail_arm(&t->fail, NULL, 1 + sim_below(&ts->sim, 20), codes[sim_below(&ts->sim, 3)]);
        break;
    default:
        (void)tier_fail_disarm(&t->fail);
        break;
    }
}

static inline void tier_sim_act(struct sim *sim, void *ctx)
{
    struct tier_sim *ts = ctx;
    switch (sim_below(sim, ts->faults ? 6 : 5)) {
    case 0:
        for (uint32_t n = sim_below(sim, 4); n > 0; n--) (void)tiered_move(&ts->tiered);
        break;
    case 1:
        for (uint32_t n = 0; n < 8 && tiered_late(&ts->tiered) == 0; n++) tiered_pause();
        /* fall through */
    case 2:
        ts->held_count += tiered_poll(&ts->tiered, ts->held + ts->held_count,
            sim_below(sim, HELD_MAX - ts->held_count));
        break;
    case 3:
        tier_sim_apply(ts);
        break;
    case 4:
        sim->rig.now_ns += 1000;
        rig_ok(sc_cache_apply(sim->rig.cache, NULL, 0, sim->rig.now_ns)); /* deadlines */
        tier_sim_wake(ts);
        sim->rig.patience_ns = sim_below(sim, 3) ? 0 : 1 + sim_below(sim, 8000);
        break;
    default:
        tier_sim_fault(ts);
        break;
    }
}

/* Until nothing is under way. */
static inline void tier_sim_settle(struct tier_sim *ts)
{
    struct tiered *t = &ts->tiered;
    (void)tier_fail_disarm(&t->fail);
    while (ts->lost_count > 0) tiered_carry_out(t, &ts->lost[--ts->lost_count]);
    while (rig_stats(&ts->sim.rig).transfers_alive > 0) {
        while (tiered_move(t)) continue;
        ts->held_count += tiered_poll(t, ts->held + ts->held_count, HELD_MAX - ts->held_count);
        rig_ok(sc_cache_apply(ts->sim.rig.cache, ts->held, ts->held_count, ts->sim.rig.now_ns));
        if (ts->held_count == 0) tiered_pause();
        ts->held_count = 0;
        tier_sim_wake(ts);
    }
}

static inline void tier_sim_init(struct tier_sim *ts, const struct rig_options *options,
    uint64_t seed, uint32_t host, uint32_t disk, uint32_t write)
{
    memset(ts, 0, sizeof *ts);
    struct sim *sim = &ts->sim;
    sc_prng_seed(&sim->prng, seed);
    ts->tiered.rig = &sim->rig;
    tiered_prepare(&ts->tiered, options, host, disk, write);
    ts->tiered.hooks.host_slack = ts->tiered.options.host.bytes;
    tiered_start(&ts->tiered, options);
    atomic_store(&ts->tiered.late, true);
    sim->depth = sim->rig.depth = options->cache.depth_max;
    sim->draft_max = options->cache.draft_max;
    sim->tiers = tier_sim_act;
    sim->tiers_ctx = ts;
}

static inline void tier_sim_close(struct tier_sim *ts)
{
    struct sim *sim = &ts->sim;
    while (sim->out > 0) sim_end(sim);
    for (uint32_t i = 0; i < SIM_REQS; i++) {
        if (sim->reqs[i].lease.id) req_close(&sim->rig, &sim->reqs[i], 0, SC_RELEASE_KEEP);
        sim->waiting[i] = false;
    }
    tier_sim_settle(ts);
}

static inline void tier_sim_deinit(struct tier_sim *ts)
{
    tier_sim_close(ts);
    tiered_clear_device(&ts->tiered);
    tiered_deinit(&ts->tiered);
}

#endif
