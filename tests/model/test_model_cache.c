/* SPDX-License-Identifier: Apache-2.0 */
/* The cache against a naive model: seeded random calls, compared after each. See cache_model.h for
 * the idea and README.md for how to reproduce a failure.
 *
 *   SC_SEEDS=n   worlds (default 1200), SC_STEPS=n operations of each (default 2600)
 *   SC_SEED=n    this world alone     SC_TRACE=1  print every operation
 *   SC_PLANT=x   with a planted fault: must fail
 *   --canary     plants every fault in turn and demands that each is found, and none without */
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache_model.h"
#include "support/test_scale.h"

struct totals totals;
static struct world world; /* one at a time; too large for the stack */

static const char *const plant_names[PLANT_COUNT] = {
#define PLANT_NAME(name, text) [PLANT_##name] = text,
    PLANT_LIST(PLANT_NAME)
#undef PLANT_NAME
};
static const char *const call_names[CALL_COUNT] = {
#define CALL_NAME(name, text, wanted) [CALL_##name] = text,
    CALL_LIST(CALL_NAME)
#undef CALL_NAME
};
static const uint32_t call_wanted[CALL_COUNT] = {
#define CALL_WANTED(name, text, wanted) [CALL_##name] = (wanted),
    CALL_LIST(CALL_WANTED)
#undef CALL_WANTED
};

/* SC_STEPS that stops right after the operation in progress. */
static unsigned long long steps_shown(const struct world *w)
{
    return w->step + 1 < w->steps ? w->step + 1 : w->steps;
}

void model_fail(const struct world *w, const char *file, int line, const char *cond,
    const char *fmt, ...)
{
    const char *base = strrchr(file, '/');
    va_list args;
    (void)fflush(stdout);
    (void)fprintf(stderr, "%s:%d: %s", base ? base + 1 : file, line, cond);
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fprintf(stderr, "\nSC_SEED=%llu SC_STEPS=%llu%s%s\n", (unsigned long long)w->seed,
        steps_shown(w), w->plant ? " SC_PLANT=" : "", w->plant ? plant_names[w->plant] : "");
    (void)fflush(stderr);
    _exit(1);
}

void model_trace(const struct world *w, const char *fmt, ...)
{
    if (!w->trace) return;
    va_list args;
    (void)printf("%llu ", (unsigned long long)w->step);
    va_start(args, fmt);
    (void)vprintf(fmt, args);
    va_end(args);
    (void)printf("\n");
}

/* An assertion of the library, a wild access or a loop: say how to get there, then die of it. */
static void on_signal(int number)
{
    char text[160];
    int bytes = snprintf(text, sizeof text, "signal %d\nSC_SEED=%llu SC_STEPS=%llu\n", number,
        (unsigned long long)world.seed, steps_shown(&world));
    if (bytes > 0 && write(STDERR_FILENO, text, (size_t)bytes) < 0) _exit(2);
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

bool planted(struct world *w, enum plant plant, uint32_t n)
{
    return w->plant == plant && w->step >= w->plant_from && one_in(&w->rng_read, n);
}

sc_status seen(struct world *w, enum call call, sc_status status)
{
    CHECK(w, status <= 0 && status > -STATUS_MAX, "%s: status %d", call_names[call], (int)status);
    totals.cell[call][-status]++;
    CHECK(w, call_wanted[call] & (1u << -status), "%s gives %s, which it does not document: %s",
        call_names[call], sc_status_name(status), sc_last_error()->text);
    switch (call) { /* a failing operation, other than one spoiled on purpose beside it */
    case CALL_ACQUIRE_EACH:
    case CALL_APPEND:
    case CALL_PLAN_EACH:
    case CALL_RELEASE:
    case CALL_ADOPT:
    case CALL_NS_CLOSE:
    case CALL_LOOKUP_EACH:
        w->op_fail = w->op_fail || status != SC_OK;
        break;
    default:
        break;
    }
    return status;
}

static enum op draw_op(struct world *w)
{
    uint32_t sum = 0;
    for (uint32_t op = 0; op < OP_COUNT; op++) sum += w->cfg.weight[op];
    uint32_t at = draw(&w->rng, sum), op = 0;
    while (at >= w->cfg.weight[op]) at -= w->cfg.weight[op++];
    return (enum op)op;
}

static void run_census(struct world *w)
{
    bool hit = w->op_hit;
    model_census(w);
    w->op_hit = hit; /* asking for what one knows is no hit */
}

static void run_op(struct world *w, enum op op)
{
    static void (*const ops[OP_COUNT])(struct world *) = {[OP_ACQUIRE] = op_acquire,
        [OP_APPEND] = op_append, [OP_STEP] = op_step, [OP_RELEASE] = op_release,
        [OP_ADOPT] = op_adopt, [OP_EVICT] = op_evict, [OP_DRAIN] = op_drain,
        [OP_NS_OPEN] = op_ns_open, [OP_NS_CLOSE] = op_ns_close, [OP_POLL] = op_poll,
        [OP_LOOKUP] = op_lookup, [OP_READ] = op_read, [OP_VERIFY] = op_verify,
        [OP_CENSUS] = run_census};
    ops[op](w);
}

/* Returns the hash of all decisions. */
static uint64_t run_world(uint64_t seed, uint64_t steps, enum plant plant, bool twin)
{
    struct world *w = &world;
    world_init(w, seed, steps, plant, twin);
    (void)alarm(300);
    for (w->step = 0; w->step < steps; w->step++) {
        enum op op = draw_op(w);
        if (ns_pick_open(w, &w->rng_read) < 0 && !one_in(&w->rng, 4)) op = OP_NS_OPEN;
        run_op(w, op);
        if (twin && planted(w, PLANT_TWIN, 50)) {
            sc_room got;
            (void)sc_cache_evict(w->cache, 0, 1, &got);
        }
        if (planted(w, PLANT_CRASH, 50)) abort();
        world_after_op(w);
        if (w->step % 16 == 15) op_verify(w);
        if (w->step % 512 == 511) run_census(w);
    }
    run_census(w);
    op_verify(w);
    world_finish(w);
    (void)alarm(0);
    return w->decisions;
}

static void run_seed(uint64_t seed, uint64_t steps, enum plant plant, bool with_twin)
{
    uint64_t decisions = run_world(seed, steps, plant, false);
    if (!with_twin) return;
    struct totals before = totals;
    uint64_t again = run_world(seed, steps, plant, true);
    totals = before;
    totals.twins++;
    CHECK(&world, decisions == again,
        "the same mutating calls without look-ups give other answers");
}

static void print_u64(const char *name, const uint64_t *values, uint32_t count)
{
    (void)printf("%s", name);
    for (uint32_t i = 0; i < count; i++) (void)printf(" %llu", (unsigned long long)values[i]);
    (void)printf("\n");
}

/* Returns how many cells that can be reached were not. */
static uint32_t print_coverage(void)
{
    uint32_t missing = 0;
    for (uint32_t call = 0; call < CALL_COUNT; call++) {
        (void)printf("%-20s", call_names[call]);
        for (int status = 0; status < STATUS_MAX; status++) {
            bool wanted = call_wanted[call] & (1u << status);
            uint64_t count = totals.cell[call][status];
            if (!wanted && count == 0) continue;
            (void)printf(" %s %llu%s", sc_status_name((sc_status)-status) + 3,
                (unsigned long long)count, count == 0 ? " (MISSING)" : "");
            missing += count == 0;
        }
        (void)printf("\n");
    }
    return missing;
}

static void print_totals(void)
{
    const struct totals *t = &totals;
    (void)printf("%llu operations in %llu worlds (%llu twins): %llu hit, %llu evict, %llu fail, "
        "%.1f %% any of these\n", (unsigned long long)t->ops, (unsigned long long)t->worlds,
        (unsigned long long)t->twins, (unsigned long long)t->ops_hit,
        (unsigned long long)t->ops_evict, (unsigned long long)t->ops_fail,
        t->ops ? 100.0 * (double)t->ops_eventful / (double)t->ops : 0.0);
    (void)printf("%llu steps, %llu rows, %llu cut, %llu saves, %llu freezes, %llu ends kept\n",
        (unsigned long long)t->steps, (unsigned long long)t->rows, (unsigned long long)t->cuts,
        (unsigned long long)t->saves, (unsigned long long)t->freezes,
        (unsigned long long)t->kept);
    (void)printf("%llu verifies, %llu censuses, %llu cold runs, %llu stamps read, "
        "%llu failed allocations; KV ids: %llu in, %llu out, %llu adopted\n",
        (unsigned long long)t->verifies, (unsigned long long)t->censuses,
        (unsigned long long)t->cold_checks, (unsigned long long)t->stamps_checked,
        (unsigned long long)t->alloc_failures, (unsigned long long)t->kv_in,
        (unsigned long long)t->kv_out, (unsigned long long)t->adopted);
    print_u64("saves skipped (no slot, exists, history, limit, aborted, no tail, rejected, "
        "superseded, overrun, policy):",
        t->skipped, SC_SKIP_COUNT);
    print_u64("evicted (for slot, asked, with kv, superseded, path cap, history, closed):",
        t->evicted, SC_EVICT_COUNT);
    print_u64("reasons:", t->reasons, SC_REASON_COUNT);
    print_u64("published by kind:", t->published_by_kind, 6);
    print_u64("resumed by kind:", t->resumed_by_kind, 6);
}

/* What the suite must have met to mean anything. */
static int check_totals(uint32_t missing)
{
    int rc = 0;
    if (missing > 0) {
        (void)fprintf(stderr, "%u results were never seen\n", missing);
        rc = 1;
    }
    if (totals.ops_eventful * 5 < totals.ops) {
        (void)fprintf(stderr, "less than a fifth of the operations hit, evict or fail\n");
        rc = 1;
    }
    for (uint32_t i = 0; i <= SC_SKIP_ABORTED; i++) { /* tails and drafts are not drawn yet */
        if (totals.skipped[i] == 0) {
            (void)fprintf(stderr, "no save was skipped for cause %u\n", i);
            rc = 1;
        }
    }
    for (uint32_t i = 0; i < SC_EVICT_COUNT; i++) {
        if (totals.evicted[i] == 0) {
            (void)fprintf(stderr, "no snapshot was evicted for cause %u\n", i);
            rc = 1;
        }
    }
    for (uint32_t i = 0; i < SC_REASON_RESTORING; i++) { /* the rest are of lower tiers */
        if (totals.reasons[i] == 0 && i != SC_REASON_PENDING) {
            (void)fprintf(stderr, "no lease had reason %u\n", i);
            rc = 1;
        }
    }
    for (uint32_t i = 1; i < 6; i++) {
        if (totals.published_by_kind[i] == 0 || totals.resumed_by_kind[i] == 0) {
            (void)fprintf(stderr, "no snapshot of kind %u was published and resumed\n", i);
            rc = 1;
        }
    }
    return rc;
}

/* Runs the test in a child with this fault; returns its exit code (128 + signal) and its words. */
static int run_child(const char *program, enum plant plant, char *said, size_t said_bytes)
{
    int ends[2];
    if (pipe(ends) != 0) return -1;
    (void)fflush(stdout);
    pid_t child = fork();
    if (child < 0) return -1;
    if (child == 0) {
        (void)dup2(ends[1], STDERR_FILENO);
        (void)close(ends[0]);
        (void)setenv("SC_PLANT", plant_names[plant], 1);
        (void)setenv("SC_SEEDS", "30", 1);
        (void)unsetenv("SC_SEED");
        (void)unsetenv("SC_TRACE");
        if (!freopen("/dev/null", "w", stdout)) _exit(3);
        (void)execl(program, program, (char *)NULL);
        _exit(4);
    }
    (void)close(ends[1]);
    size_t bytes = 0;
    ssize_t got;
    while ((got = read(ends[0], said + bytes, said_bytes - 1 - bytes)) > 0) bytes += (size_t)got;
    said[bytes] = 0;
    (void)close(ends[0]);
    int status = 0;
    if (waitpid(child, &status, 0) != child) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int run_canary(const char *program)
{
    int failures = 0;
    for (int plant = 0; plant < PLANT_COUNT; plant++) {
        char said[4096];
        int rc = run_child(program, (enum plant)plant, said, sizeof said);
        int wanted = plant == PLANT_NONE ? 0 : plant == PLANT_CRASH ? 128 + SIGABRT : 1;
        bool reproducible = plant == PLANT_NONE || strstr(said, "SC_SEED=") != NULL;
        bool good = rc == wanted && reproducible;
        char *end = strchr(said, '\n');
        if (end && good) *end = 0;
        (void)printf("%s %-13s exit %3d  %s\n", good ? "ok  " : "FAIL", plant_names[plant], rc,
            said);
        failures += !good;
    }
    (void)printf("%d of %d planted faults were found\n", PLANT_COUNT - 1 - failures,
        PLANT_COUNT - 1);
    return failures ? 1 : 0;
}

static uint64_t from_env(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    char *end = NULL;
    if (!text || !*text) return fallback;
    unsigned long long value = strtoull(text, &end, 10);
    if (*end) {
        (void)fprintf(stderr, "%s=%s is not a number\n", name, text);
        exit(2);
    }
    return value;
}

static enum plant plant_from_env(void)
{
    const char *text = getenv("SC_PLANT");
    if (!text || !*text) return PLANT_NONE;
    for (int plant = 0; plant < PLANT_COUNT; plant++) {
        if (strcmp(plant_names[plant], text) == 0) return (enum plant)plant;
    }
    (void)fprintf(stderr, "SC_PLANT=%s: no such fault\n", text);
    exit(2);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--canary") == 0) return run_canary(argv[0]);
    enum plant plant = plant_from_env();
    uint64_t seed = from_env("SC_SEED", 0), steps = from_env("SC_STEPS", 2600);
    uint64_t seeds = from_env("SC_SEEDS", test_scaled(1200, 40));
    for (const int *n = (const int[]){SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM, 0}; *n; n++) {
        (void)signal(*n, on_signal);
    }
    if (seed != 0) {
        run_seed(seed, steps, plant, true);
        print_totals();
        return 0;
    }
    for (uint64_t i = 1; i <= seeds; i++) {
        run_seed(i, steps, plant, plant == PLANT_NONE ? i % 8 == 0 : plant == PLANT_TWIN);
    }
    uint32_t missing = print_coverage();
    print_totals();
    bool whole = seeds * steps >= 100000; /* a shorter run need not meet everything */
    return whole ? check_totals(missing) : 0;
}
