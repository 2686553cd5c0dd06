/* SPDX-License-Identifier: Apache-2.0 */
/* The rounds: a cache of sizes and weights by seed, played by threads for a while, emptied in
 * between, destroyed at the end; the report. Memory must be flat: what an empty cache holds, and
 * what the process holds after each round. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "stress.h"

enum { EMPTY_INDEX_BYTES = 224 * 1024 };
enum { PARTS = 4 /* of a world's operations, with an empty cache between them */ };

static struct h_world world; /* one at a time; too large for the stack */
static struct h_totals *totals; /* [H_SCHEDS_MAX] */

struct player {
    pthread_t thread;
    const struct h_swarm *swarm;
    uint32_t index;
    uint64_t seed, op_end;
};

/* Every thread stops at the same count; a few operations more do no harm. */
static _Atomic bool stop;
static uint64_t started_ns, ends_ns;

static void *play(void *ctx)
{
    struct player *player = ctx;
    struct sc_prng rng;
    sc_prng_seed(&rng, player->seed);
    for (uint64_t i = 0; i < player->op_end; i++) {
        if (atomic_load_explicit(&stop, memory_order_relaxed)) break;
        if (ends_ns && i % 64 == 0 && sc_clock_now_ns() > ends_ns) break;
        struct h_op op = h_op_draw(player->swarm, &rng, player->index);
        if (op.code == H_OP_REOPEN)
            continue; /* others use the cache: between the parts */
        h_op_run(&world, op);
    }
    return NULL;
}

static void play_threads(const struct stress_options *o, const struct h_swarm *swarm,
    uint64_t seed, uint64_t ops)
{
    struct player players[H_SCHEDS_MAX];
    for (uint32_t i = 0; i < o->threads; i++) {
        players[i] = (struct player){.swarm = swarm, .index = i, .seed = h_mix(seed, i),
            .op_end = ops / o->threads};
        H_CHECK(&world, pthread_create(&players[i].thread, NULL, play, &players[i]) == 0,
            "thread %u", i);
    }
    for (uint32_t i = 0; i < o->threads; i++) (void)pthread_join(players[i].thread, NULL);
}

static void play_alone(const struct stress_options *o, const struct h_swarm *swarm, uint64_t seed,
    uint64_t ops)
{
    struct sc_prng rng;
    sc_prng_seed(&rng, seed);
    for (uint64_t i = 0; i < ops; i++) {
        h_op_run(&world, h_op_draw(swarm, &rng, h_draw(&rng, o->threads)));
    }
}

static uint32_t h_max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static void world_reset(const struct stress_options *o)
{
    memset(&world, 0, sizeof world);
    world.totals = totals;
    world.totals_count = H_SCHEDS_MAX;
    world.threaded = !o->single;
    world.timed = true;
    world.clock = sc_clock_now_ns;
    world.trace = o->trace;
    world.canary_from = o->canary ? 50 : 0;
}

static void play_world(const struct stress_options *o, struct h_log *log, uint64_t seed)
{
    struct h_swarm swarm;
    uint64_t live[PARTS];
    world_reset(o);
    h_config_draw(seed, &world.cfg, &swarm);
    if (o->tiers) h_config_tiers(seed, &world.cfg, &swarm);
    world.cfg.scheds = o->threads;
    world.cfg.slots *= 1u << seed % 3; /* more schedulers than one fit into more slots */
    world.cfg.lease_max = h_max(world.cfg.lease_max, 3 * o->threads);
    world.cfg.late = o->single;
    world.log = log;
    log->world = seed;
    log->count = 0;
    log->cfg = world.cfg;
    h_world_create(&world);
    for (uint32_t part = 0; part < PARTS; part++) {
        h_op_run(&world, (struct h_op){H_OP_NS_OPEN, 0, 0, 1});
        uint64_t part_seed = h_mix(seed, 100 + part);
        if (o->single) {
            play_alone(o, &swarm, part_seed, o->world_ops / PARTS);
        } else {
            play_threads(o, &swarm, part_seed, o->world_ops / PARTS);
        }
        h_op_run(&world, (struct h_op){H_OP_VERIFY, 0, 0, 1});
        if (part % 2) h_op_run(&world, (struct h_op){H_OP_REOPEN, 0, 0, 1 + part});
        h_op_run(&world, (struct h_op){H_OP_EMPTY, 0, 0, 1});
        h_trim(&world.scheds[0], 0);
        live[part] = fail_alloc_live_bytes(&world.fa);
        /* Arrays of the engine grow to what was needed at most, and that is reached early. What a
         * trim leaves to an empty index is bounded: the chunk of tokens and of ids that is being
         * filled (64 KiB each) and the blocks of nodes where the namespaces' roots lie. */
        H_CHECK(&world, part < 2 || live[part] <= live[1] + live[1] / 2 + EMPTY_INDEX_BYTES,
            "an empty cache holds %u KiB, and %u KiB before", (uint32_t)(live[part] / 1024),
            (uint32_t)(live[1] / 1024));
    }
    h_world_destroy(&world);
}

static uint64_t resident_bytes(void)
{
    unsigned long long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    if (fscanf(file, "%llu %llu", &size, &resident) != 2) resident = 0;
    (void)fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void live_line(const struct stress_options *o, uint64_t worlds, bool last)
{
    static uint64_t shown_ns;
    uint64_t now = sc_clock_now_ns(), ops = 0, hits = 0, evicted = 0;
    if (o->quiet || !isatty(STDOUT_FILENO) || (!last && now - shown_ns < 200000000)) return;
    shown_ns = now;
    for (uint32_t i = 0; i < H_SCHEDS_MAX; i++) {
        ops += totals[i].ops;
        hits += totals[i].hits;
        for (uint32_t e = 0; e < SC_EVICT_COUNT; e++) evicted += totals[i].evicted[e];
    }
    double seconds = (double)(now - started_ns) / 1e9;
    (void)printf("\r%6.1f s  %llu caches  %llu operations  %.0f/s  %llu hits  %llu evictions%s",
        seconds, (unsigned long long)worlds, (unsigned long long)ops, (double)ops / seconds,
        (unsigned long long)hits, (unsigned long long)evicted, last ? "\n" : "");
    (void)fflush(stdout);
}

static void report(const struct stress_options *o, uint64_t worlds, uint64_t first_bytes,
    uint64_t last_bytes)
{
    static struct h_totals sum;
    double seconds = (double)(sc_clock_now_ns() - started_ns) / 1e9;
    for (uint32_t i = 0; i < H_SCHEDS_MAX; i++) h_totals_add(&sum, &totals[i]);
    (void)printf("%-20s %12s %9s %9s %9s\n", "call", "count", "p50 ns", "p99 ns", "p99.9 ns");
    for (uint32_t call = 0; call < H_CALL_COUNT; call++) {
        uint64_t count = 0;
        for (uint32_t i = 0; i < H_BUCKETS; i++) count += sum.latency[call][i];
        if (count == 0) continue;
        (void)printf("%-20s %12llu %9llu %9llu %9llu\n", h_call_names[call],
            (unsigned long long)count, (unsigned long long)h_quantile(sum.latency[call], 0.5),
            (unsigned long long)h_quantile(sum.latency[call], 0.99),
            (unsigned long long)h_quantile(sum.latency[call], 0.999));
    }
    h_print_totals(stdout, &sum);
    (void)printf("memory: %.1f MiB after the third cache, %.1f MiB after the last\n",
        (double)first_bytes / 1048576.0, (double)last_bytes / 1048576.0);
    (void)printf("%llu caches, %u %s, %.1f s: %.0f operations/s, %.0f calls/s; nothing found\n",
        (unsigned long long)worlds, o->threads, o->single ? "schedulers in one thread" : "threads",
        seconds, (double)sum.ops / seconds, (double)sum.calls / seconds);
}

/* Address sanitizers keep what was freed, thread sanitizers what was touched. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEMORY_IS_FLAT 0
#else
#define MEMORY_IS_FLAT 1
#endif

void stress_rounds(const struct stress_options *o, struct h_log *log)
{
    uint64_t first_bytes = 0, last_bytes = 0, round = 0;
    totals = calloc(H_SCHEDS_MAX, sizeof *totals);
    if (!totals) exit(2);
    started_ns = sc_clock_now_ns();
    ends_ns = o->seconds ? started_ns + o->seconds * 1000000000 : 0;
    if (o->single) ends_ns = 0; /* the same run again: whole worlds */
    uint64_t deadline = o->seconds ? started_ns + o->seconds * 1000000000 : UINT64_MAX;
    while ((o->worlds == 0 || round < o->worlds) && sc_clock_now_ns() < deadline) {
        (void)alarm(600); /* a loop is a finding, too */
        play_world(o, log, o->only_world ? o->only_world : (h_mix(o->seed, round) >> 20) + 1);
        round++;
        last_bytes = resident_bytes();
        if (round <= 3) first_bytes = last_bytes;
        live_line(o, round, false);
    }
    (void)alarm(0);
    live_line(o, round, true);
    report(o, round, first_bytes, last_bytes);
    if (MEMORY_IS_FLAT && last_bytes > first_bytes + first_bytes / 4 + (8u << 20)) {
        (void)fprintf(stderr, "memory: the process has grown from %llu to %llu KiB\n",
            (unsigned long long)first_bytes / 1024, (unsigned long long)last_bytes / 1024);
        exit(1);
    }
}

void stress_script(void *options, const struct h_log *script)
{
    const struct stress_options *o = options;
    if (!totals) totals = calloc(H_SCHEDS_MAX, sizeof *totals);
    if (!totals) exit(2);
    world_reset(o);
    world.threaded = world.timed = false;
    if (o->canary) world.canary_from = 1;
    h_script_run(&world, script);
}
