/* SPDX-License-Identifier: Apache-2.0 */
/* Exhaustion: every slot belongs to a lease, and memory runs out. Requests go on without snapshots,
 * nothing aborts, nothing leaks, and afterwards all is as before.
 *
 *   phase 1   as many leases as there are slots; they prefill and decode to the end, while the
 *             allocations of each operation fail in turn: the first, the second, ...
 *   phase 2   no allocation succeeds at all: what needs memory says so, the rest goes on
 *   phase 3   memory is back: every lease gets to its end
 *
 * Worlds by seed, SC_SEED=n alone, as in test_sim.c. */
#include <stdlib.h>
#include <string.h>

#include "harness/harness.h"
#include "support/test_scale.h"

static struct h_world world;
static struct h_totals totals;
static struct h_log *op_log;

static void config(uint64_t seed, struct h_config *cfg)
{
    struct h_swarm swarm;
    h_config_draw(seed, cfg, &swarm);
    cfg->scheds = 1;
    cfg->slots = 4 + (uint32_t)(seed % 5);
    cfg->leases = cfg->lease_max = cfg->slots;
    cfg->extras = cfg->extras ? cfg->slots : 0;
    cfg->kv_ids = H_KV_IDS_MAX;
    cfg->token_max = cfg->late = 0;
    cfg->save_flags = SC_SAVE_DEFAULT;
}

static void run(enum h_op_code code, uint16_t fault, struct sc_prng *rng)
{
    h_op_run(&world, (struct h_op){(uint8_t)code, 0, fault, (uint32_t)sc_prng_next(rng)});
}

static uint64_t committed(void)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < H_LEASES_MAX; i++) {
        if (world.scheds[0].leases[i].used) sum += world.scheds[0].leases[i].run.len;
    }
    return sum;
}

/* Steps, appended tokens; `fault` 0: memory is as it is. */
static void work(struct sc_prng *rng, uint32_t rounds, bool faults)
{
    static const enum h_op_code codes[] = {H_OP_PLAN, H_OP_COMMIT, H_OP_COMMIT, H_OP_APPEND,
        H_OP_EVICT, H_OP_DRAIN, H_OP_READ, H_OP_LOOKUP, H_OP_ACQUIRE};
    for (uint32_t i = 0; i < rounds; i++) {
        uint16_t fault = faults ? (uint16_t)(1 + i % 6) : 0;
        run(codes[h_draw(rng, sizeof codes / sizeof *codes)], fault, rng);
        sc_room room = h_room(&world.scheds[0]);
        H_CHECK(&world, room.slots_free == 0 && room.slots_evictable == 0,
            "%u slots are free, %u evictable", room.slots_free, room.slots_evictable);
    }
}

static void run_seed(uint64_t seed)
{
    struct sc_prng rng;
    struct h_sched *s = &world.scheds[0];
    memset(&world, 0, sizeof world);
    world.trace = getenv("SC_TRACE") != NULL;
    world.totals = &totals;
    world.totals_count = 1;
    world.hold = true;
    world.log = op_log;
    op_log->world = seed;
    op_log->count = 0;
    config(seed, &world.cfg);
    h_world_create(&world);
    sc_prng_seed(&rng, seed);
    while (world.leases_alive < world.cfg.slots) run(H_OP_ACQUIRE, 0, &rng);
    uint64_t start = committed();
    work(&rng, 300, true);
    H_CHECK(&world, committed() > start, "nobody has come further");
    sc_cache_stats stats = h_stats(s);
    H_CHECK(&world, stats.saves_published == 0, "%u saves", (uint32_t)stats.saves_published);
    totals.skipped[SC_SKIP_NO_SLOT] += stats.saves_skipped[SC_SKIP_NO_SLOT];
    world.fa.bytes_max = 1; /* from now on everything fails */
    work(&rng, 100, false);
    world.fa.bytes_max = 0;
    start = committed();
    work(&rng, 100, false);
    run(H_OP_VERIFY, 0, &rng);
    world.hold = false;
    h_world_destroy(&world);
}

int main(void)
{
    const char *text = getenv("SC_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : 0, seeds = test_scaled(400, 20);
    op_log = h_log_create(4096);
    for (uint64_t i = seed ? seed : 1; i <= (seed ? seed : seeds); i++) run_seed(i);
    h_print_totals(stdout, &totals);
    if (!seed && (totals.skipped[SC_SKIP_NO_SLOT] == 0 || totals.faults[H_FAULT_MEMORY] < seeds)) {
        (void)fprintf(stderr, "no save was skipped for want of a slot, or no allocation failed\n");
        return 1;
    }
    return 0;
}
