/* SPDX-License-Identifier: Apache-2.0 */
/* The simulation: the whole cache in one thread, on a virtual clock, with a device that is late,
 * reports out of order, twice or never, and is lost at times, and an allocator that fails.
 *
 *   test_sim [--seeds N] [--first N]   worlds N .. (default 10,000), scaled by SC_TEST_SCALE
 *   test_sim --canary                  a state is written wrongly: this must fail
 *   SC_SEED=n [SC_STEPS=m]             this world alone, up to operation m
 *   SC_TWIN=1, SC_RECORD=1             and a second instance of it; of what it recorded
 *   SC_TRACE=1                         prints every operation
 *
 * Each world has at least 1,000 operations and at least 3 faults. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/harness.h"
#include "kernels/backend.h"
#include "statecache/experimental.h"
#include "support/test_scale.h"

enum { OPS = 1000, FAULTS = 3, OPS_MAX = 5000 };

static struct h_world world; /* one at a time; too large for the stack */
static struct h_totals totals;
static struct h_log *op_log;
static uint64_t twin_decisions, records_played;

/* What the cache recorded of a world. */
static struct {
    char *bytes;
    size_t count, cap;
    bool on;
} record;

/* ------------------------------------------------------------------ a device that can be lost */

static bool device_is_lost;
static struct sc_backend_ops device_ops;
static sc_backend device;

static sc_status device_fill(sc_backend *b, sc_devptr dst, uint8_t value, uint64_t bytes,
    sc_stream *stream)
{
    if (device_is_lost) return SC_ERR_DEVICE_LOST;
    (void)b;
    sc_backend *host = sc_backend_host();
    return host->ops->fill(host, dst, value, bytes, stream);
}

static void device_lose(void *ctx, bool lost)
{
    (void)ctx;
    device_is_lost = lost;
}

static void device_init(void)
{
    device = *sc_backend_host();
    device_ops = *device.ops;
    device_ops.fill = device_fill;
    device.ops = &device_ops;
}

/* ------------------------------------------------------------------ one world */

static void take_record(void *ctx, const void *bytes, size_t count)
{
    (void)ctx;
    while (record.count + count > record.cap) {
        record.cap = record.cap ? record.cap * 2 : 1u << 20;
        record.bytes = realloc(record.bytes, record.cap);
        if (!record.bytes) abort();
    }
    memcpy(record.bytes + record.count, bytes, count);
    record.count += count;
}

static uint64_t fault_count(void)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < H_FAULT_COUNT; i++) count += totals.faults[i];
    return count;
}

/* A fault: a failing allocation, or a step that is given up. */
static struct h_op fault_draw(struct sc_prng *rng, uint32_t sched)
{
    static const uint8_t codes[] = {H_OP_ACQUIRE, H_OP_ACQUIRE, H_OP_APPEND, H_OP_COMMIT,
        H_OP_COMMIT, H_OP_ABORT};
    struct h_op op = {codes[h_draw(rng, sizeof codes)], (uint8_t)sched, 1,
        (uint32_t)sc_prng_next(rng)};
    return op;
}

static void world_begin(uint64_t seed)
{
    memset(&world, 0, sizeof world);
    world.trace = getenv("SC_TRACE") != NULL;
    world.totals = &totals;
    world.totals_count = 1;
    world.backend = &device;
    if (record.on) {
        world.record = take_record; /* want of memory and a lost device are not recorded */
        record.count = 0;
    } else {
        world.device_lose = device_lose;
    }
    world.log = op_log;
    op_log->world = seed;
    op_log->count = 0;
}

static void run_seed(uint64_t seed, uint64_t steps_max, uint64_t canary_from, bool twin)
{
    struct h_swarm swarm;
    struct sc_prng rng;
    world_begin(seed);
    h_config_draw(seed, &world.cfg, &swarm);
    op_log->cfg = world.cfg;
    world.canary_from = canary_from;
    world.twin = twin;
    bool tiers = world.cfg.tier_host + world.cfg.tier_disk > 0;
    uint64_t faults_before = fault_count(), least = tiers ? 2 * OPS : OPS;
    h_world_create(&world);
    sc_prng_seed(&rng, seed);
    for (uint64_t i = 0; i < steps_max; i++) {
        bool enough = fault_count() - faults_before >= FAULTS;
        if (i >= least && enough) break;
        H_CHECK(&world, i < OPS_MAX, "no %d faults in %d operations", FAULTS, OPS_MAX);
        uint32_t sched = h_draw(&rng, world.cfg.scheds);
        bool fault = !enough && h_one_in(&rng, i >= least ? 3 : 32);
        struct h_op op =
            fault ? fault_draw(&rng, sched) : h_op_draw(&swarm, &rng, sched);
        if (i == 0) op.code = H_OP_NS_OPEN;
        if (record.on) op.fault = 0;
        h_op_run(&world, op);
    }
    struct h_op verify = {H_OP_VERIFY, 0, 0, 1};
    h_op_run(&world, verify);
    h_world_destroy(&world);
}

/* The same calls that change the cache, made to a second instance, without look-ups, reads and
 * refused calls in between: every answer must be the same (contract 18). */
static void run_twin(uint64_t seed)
{
    static struct h_totals of_twins;
    uint64_t decisions = world.decisions, ops = world.op_count;
    struct h_totals before = totals;
    run_seed(seed, ops - 1, 0, true); /* the last one was the verification */
    of_twins = totals;
    totals = before;
    twin_decisions += of_twins.decisions - before.decisions;
    H_CHECK(&world, decisions == world.decisions, "a second instance decides otherwise");
}

/* The calls of a world, as the cache recorded them, fed to a second instance: it checks itself that
 * it decides the same. */
static void run_recorded(uint64_t seed)
{
    static struct h_world second;
    sc_replay *replay = NULL;
    uint64_t count = 0;
    record.on = true;
    run_seed(seed, UINT64_MAX, 0, false);
    record.on = false;
    memset(&second, 0, sizeof second);
    second.cfg = world.cfg;
    second.totals = &totals;
    second.totals_count = 1;
    second.backend = &device;
    second.player = true;
    second.log = op_log;
    h_world_create(&second);
    H_OK(&second, sc_replay_create(second.cache, &replay));
    H_OK(&second, sc_replay_feed(replay, record.bytes, record.count));
    H_OK(&second, sc_replay_count(replay, &count));
    records_played += count;
    sc_replay_destroy(replay);
    h_world_discard(&second);
}

/* An assertion of the library, a wild access or a loop: say how to get there, then die of it. */
static void on_signal(int number)
{
    char text[160];
    int bytes = snprintf(text, sizeof text, "signal %d\nSC_SEED=%llu SC_STEPS=%llu\n", number,
        (unsigned long long)op_log->world, (unsigned long long)world.op_count);
    if (bytes > 0 && write(STDERR_FILENO, text, (size_t)bytes) < 0) _exit(2);
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

/* ------------------------------------------------------------------ the suite */

/* What becomes of leases and copies where there are tiers. */
static int check_tiers(void)
{
    const struct h_tier_totals *t = &totals.tier;
    const struct { const char *what; uint64_t count; } met[] = {
        {"a lease that waits for a lower tier", t->waited},
        {"one that waits for the restore of another", t->joined},
        {"a lease that resumes what came back", t->restored},
        {"one that does so in its own slot", t->in_working},
        {"a restore that failed", t->shorter},
        {"a deadline that came first", t->late},
        {"no room for what would come back", totals.reasons[SC_REASON_TIER_ROOM]},
        {"computing that is sooner", totals.reasons[SC_REASON_RECOMPUTE]},
        {"a completion applied as failed", t->applied_failed},
        {"a restart", t->reopened},
        {"a record found by a restart", t->loaded},
        {"damage on disk", t->damaged},
        {"a store that was verified", t->verified},
        {"a copy in host memory that was dropped", t->dropped[SC_TIER_HOST]},
        {"a copy on disk that was dropped", t->dropped[SC_TIER_DISK]},
        {"a copy that the host tier refused", t->refused[SC_TIER_HOST]},
        {"a copy that the disk tier refused", t->refused[SC_TIER_DISK]},
        {"a hit from host memory", t->resumed[SC_TIER_HOST]},
        {"a hit from disk", t->resumed[SC_TIER_DISK]},
        {"a state that was lost", t->lost}};
    int rc = 0;
    for (size_t i = 0; i < sizeof met / sizeof *met; i++) {
        if (met[i].count > 0) continue;
        (void)fprintf(stderr, "never met: %s\n", met[i].what);
        rc = 1;
    }
    return rc;
}

/* What it must have met to mean anything. */
static int check_totals(uint32_t missing)
{
    int rc = check_tiers();
    if (missing > 0) {
        (void)fprintf(stderr, "%u documented results were never seen\n", missing);
        rc = 1;
    }
    for (uint32_t i = 0; i < H_FAULT_COUNT; i++) {
        if (totals.faults[i] > 0) continue;
        (void)fprintf(stderr, "never met: %s\n", h_fault_names[i]);
        rc = 1;
    }
    if (totals.hits * 20 < totals.ops / 20) {
        (void)fprintf(stderr, "hardly any hit\n");
        rc = 1;
    }
    return rc;
}

/* The canary, in a child, as a failing seed would run: must fail where the state is read. */
static void canary(void *ctx, const struct h_log *script)
{
    (void)ctx, (void)script;
    for (uint64_t seed = 1; seed <= 20; seed++) run_seed(seed, OPS_MAX, 100, false);
}

static int run_canary(void)
{
    char said[512];
    if (!h_try(canary, NULL, op_log, said, sizeof said)) {
        (void)fprintf(stderr, "one wrong bit in a state was not noticed\n");
        return 1;
    }
    (void)printf("noticed: %s\n", said);
    return strstr(said, "state") ? 0 : 1;
}

static uint64_t number(const char *name, const char *text, uint64_t fallback)
{
    char *end = NULL;
    if (!text || !*text) return fallback;
    unsigned long long value = strtoull(text, &end, 10);
    if (*end) {
        (void)fprintf(stderr, "%s=%s is not a number\n", name, text);
        exit(2);
    }
    return value;
}

static int run_one(uint64_t seed)
{
    run_seed(seed, number("SC_STEPS", getenv("SC_STEPS"), UINT64_MAX), 0, false);
    if (getenv("SC_TWIN")) run_twin(seed);
    if (getenv("SC_RECORD")) run_recorded(seed);
    h_print_totals(stdout, &totals);
    return 0;
}

int main(int argc, char **argv)
{
    uint64_t first = 1, seeds = test_scaled(10000, 100);
    bool want_canary = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--canary") == 0) {
            want_canary = true;
        } else if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) {
            seeds = number("--seeds", argv[++i], 0);
        } else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) {
            first = number("--first", argv[++i], 0);
        } else {
            (void)fprintf(stderr, "usage: test_sim [--seeds N] [--first N] [--canary]\n");
            return 2;
        }
    }
    op_log = h_log_create(OPS_MAX + 64);
    device_init();
    if (want_canary) return run_canary();
    for (const int *n = (const int[]){SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM, 0}; *n; n++) {
        (void)signal(*n, on_signal);
    }
    uint64_t seed = number("SC_SEED", getenv("SC_SEED"), 0);
    if (seed != 0) return run_one(seed);
    for (uint64_t i = first; i < first + seeds; i++) {
        if (i % 1024 == 0) (void)alarm(300);
        run_seed(i, UINT64_MAX, 0, false);
        if (i % 4 == 0) run_twin(i);
        if (i % 4 >= 2) run_recorded(i);
    }
    (void)alarm(0);
    uint32_t missing = h_print_coverage(stdout, &totals);
    h_print_totals(stdout, &totals);
    (void)printf("second instances: %llu decisions without look-ups, %llu recorded calls, all the "
        "same\n", (unsigned long long)twin_decisions, (unsigned long long)records_played);
    return seeds >= 8000 ? check_totals(missing) : 0; /* a shorter run need not meet everything */
}
