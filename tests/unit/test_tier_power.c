/* SPDX-License-Identifier: Apache-2.0 */
/* Power cuts (tier_power.h): threads store, replace, drop, evict and reopen while everything that
 * reaches the disk is written down. From images of any moment the store opens, is clean, has what
 * was acknowledged, gives nothing but what was stored, and goes on.
 *
 * SC_TEST_SCALE=1000 makes 1,000 cuts. */
#include <pthread.h>
#include <sys/wait.h>

#include "support/test_scale.h"
#include "tier_power.h"
#include "tier_sequences.h"
#include "tier_suite.h"

enum { CUTS = 100, CUTS_A_RUN = 25, WORKERS = 3, TURNS = 16, FACTS_MAX = 1024, KEPT = 100 };

static char image[200];

/* ---- what is known about records ---- */

struct fact {
    struct tier_sequence what;
    uint64_t acked, gone; /* when; UINT64_MAX: never */
    bool has_child, has_kv_child;
};

struct run {
    struct sc_store *store;
    struct sc_store_options options;
    bool evicts, uring;
    struct fact facts[FACTS_MAX];
    _Atomic uint32_t fact_count;
};

struct worker {
    struct run *run;
    struct sc_prng prng;
    uint32_t first, turns;
    uint32_t own[FACTS_MAX], own_count; /* facts that nobody else touches */
};

static struct fact *fact_add(struct worker *worker, const struct tier_sequence *what)
{
    uint32_t at = atomic_fetch_add(&worker->run->fact_count, 1);
    ck_assert_uint_lt(at, FACTS_MAX);
    worker->own[worker->own_count++] = at;
    worker->run->facts[at] = (struct fact){*what, UINT64_MAX, UINT64_MAX, false,
        false};
    return &worker->run->facts[at];
}

/* One of its own that is there for all it knows, and that no KV hangs on. */
static struct fact *fact_any(struct worker *worker)
{
    if (worker->own_count == 0) return NULL;
    struct fact *fact = &worker->run->facts[worker->own[sc_prng_below(&worker->prng,
        worker->own_count)]];
    return fact->acked != UINT64_MAX && fact->gone == UINT64_MAX && !fact->has_kv_child ? fact :
        NULL;
}

/* ---- what the threads do ---- */

static bool store_one(struct worker *worker, const struct tier_sequence *what)
{
    struct fact *fact = fact_add(worker, what);
    if (tier_sequence_put(worker->run->store, what) != SC_OK) return false;
    fact->acked = power_now();
    return true;
}

static struct tier_sequence fresh(struct worker *worker)
{
    return (struct tier_sequence){.sequence = worker->first++, .token_count = 20,
        .value = worker->first % 8 == 0 ? KEPT : 0};
}

static void store_child(struct worker *worker)
{
    struct fact *parent = fact_any(worker);
    /* once a sequence: another version would take the place of the first */
    if (!parent || parent->what.token_count != 20 || parent->what.version > 0) return;
    if (parent->has_child) return;
    parent->has_child = true;
    struct tier_sequence what = parent->what;
    what.parent_len = 20;
    what.token_count = 40;
    what.kv = sc_prng_below(&worker->prng, 2) == 0;
    if (store_one(worker, &what) && what.kv) parent->has_kv_child = true;
}

static void replace(struct worker *worker)
{
    struct fact *old = fact_any(worker);
    if (!old || old->what.kv) return;
    struct tier_sequence what = old->what;
    what.version++;
    old->gone = power_now();
    (void)store_one(worker, &what);
}

static void store_group(struct worker *worker)
{
    enum { GROUP = 3 };
    struct sc_store_put *puts[GROUP];
    struct fact *facts[GROUP];
    sc_status each[GROUP];
    uint32_t count = 0;
    for (uint32_t i = 0; i < GROUP; i++) {
        struct tier_sequence what = fresh(worker);
        facts[count] = fact_add(worker, &what);
        sc_status status = tier_sequence_begin(worker->run->store, &what, &puts[count]);
        if (status == SC_OK && puts[count]) count++;
    }
    if (count == 0 || sc_store_commit(worker->run->store, puts, count, 0, each) != SC_OK) return;
    uint64_t acked = power_now();
    for (uint32_t i = 0; i < count; i++) {
        if (each[i] == SC_OK) facts[i]->acked = acked;
    }
}

static void drop(struct worker *worker)
{
    struct fact *fact = fact_any(worker);
    struct sc_store_info info;
    if (!fact || !tier_sequence_is_there(worker->run->store, &fact->what, &info)) return;
    fact->gone = power_now();
    (void)sc_store_drop(worker->run->store, info.id);
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    for (uint32_t turn = 0; turn < worker->turns; turn++) {
        uint64_t chance = sc_prng_below(&worker->prng, 100);
        struct tier_sequence what = fresh(worker);
        struct sc_store_gc gc;
        if (chance < 40) (void)store_one(worker, &what);
        else if (chance < 60) store_child(worker);
        else if (chance < 72) replace(worker);
        else if (chance < 82) store_group(worker);
        else if (chance < 95) drop(worker);
        else (void)sc_store_gc(worker->run->store, &gc);
    }
    return NULL;
}

/* The workers' threads on an open store, then closed. */
static void session(struct run *run, struct worker *workers, uint32_t turns)
{
    pthread_t threads[WORKERS];
    run->store = tier_open(&run->options);
    run->uring |= tier_stats(run->store).uring;
    for (uint32_t i = 0; i < WORKERS; i++) {
        workers[i].turns = turns;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < WORKERS; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    sc_store_close(run->store);
    run->store = NULL;
}

static void record_run(struct run *run, uint64_t seed)
{
    struct worker *workers = calloc(WORKERS, sizeof *workers);
    run->options = tier_options(folder);
    run->options.uring = seed & 1 ? SC_STORE_AUTO : SC_STORE_OFF;
    run->options.direct = seed & 2 ? SC_STORE_AUTO : SC_STORE_OFF;
    run->evicts = (seed & 4) != 0;
    if (run->evicts) run->options.bytes_max = 2 << 20;
    for (uint32_t i = 0; i < WORKERS; i++) {
        workers[i].run = run;
        workers[i].first = 1 + i * 100000;
        sc_prng_seed(&workers[i].prng, seed * 64 + i);
    }
    atomic_store(&run->fact_count, 0);
    tier_folder_empty(folder);
    power_start(folder);
    session(run, workers, TURNS);
    session(run, workers, TURNS / 2);
    power_stop();
    free(workers);
}

/* ---- after a cut ---- */

/* Evictions take what is worth least: not what is worth KEPT. */
static bool must_be_there(const struct run *run, const struct fact *fact, uint64_t cut)
{
    if (fact->acked > cut || fact->gone <= cut) return false;
    return !run->evicts || fact->what.value == KEPT;
}

static const char *check_store(const struct run *run, struct sc_store *store, uint64_t cut,
    uint64_t *acked_out)
{
    uint64_t records = 0;
    const char *fault = tier_sequences_check(store, &records);
    if (fault) return fault;
    for (uint32_t i = 0; i < atomic_load(&run->fact_count); i++) {
        const struct fact *fact = &run->facts[i];
        if (!must_be_there(run, fact, cut)) continue;
        if (!tier_sequence_is_there(store, &fact->what, NULL)) {
            return "a record that was acknowledged is gone";
        }
        *acked_out += 1;
    }
    /* it goes on: one more, and then all may go and leave nothing behind */
    struct tier_sequence what = {.sequence = 900000, .token_count = 20, .value = KEPT};
    if (tier_sequence_put(store, &what) != SC_OK) return "nothing can be stored";
    fault = tier_sequences_check(store, &records);
    if (fault) return fault;
    if (sc_store_evict(store, UINT64_MAX / 2, NULL) != SC_OK) return "nothing can be evicted";
    struct sc_store_stats stats = tier_stats(store);
    return stats.used_bytes || stats.pending_bytes || stats.record_count ?
        "what was evicted holds blocks" : NULL;
}

/* NULL, or what is wrong with an image of that moment. */
static const char *one_cut(const struct run *run, uint64_t cut, uint64_t seed, uint64_t *acked_out)
{
    struct sc_prng prng;
    struct sc_store *store = NULL;
    struct sc_store_options options = run->options;
    options.folder = image;
    sc_prng_seed(&prng, seed);
    tier_folder_empty(image);
    power_image(cut, &prng, image);
    sc_status status = sc_store_open(&options, &store);
    if (status != SC_OK) {
        (void)fprintf(stderr, "%s: %s\n", sc_status_name(status), sc_last_error()->text);
        return "open fails";
    }
    const char *fault = check_store(run, store, cut, acked_out);
    sc_store_close(store);
    return fault;
}

static struct run *run_create(void)
{
    tier_folder_make(image, sizeof image, true);
    return calloc(1, sizeof(struct run));
}

static void run_destroy(struct run *run)
{
    tier_folder_remove(image);
    free(run);
}

/* Some cuts are early, where the store is made. */
static uint64_t cut_of(uint64_t seed)
{
    uint64_t random = sc_mix64(seed), end = power_now();
    return 1 + random / 8 % (random % 8 == 0 && end > 60 ? 60 : end);
}

/* A damaged image may end the process: in a child it is noticed all the same. */
static bool is_noticed(const struct run *run, uint64_t cut, uint64_t seed)
{
    uint64_t acked = 0;
    int code = 0;
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) _exit(one_cut(run, cut, seed, &acked) ? 1 : 0);
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    return !WIFEXITED(code) || WEXITSTATUS(code) != 0;
}

/* ---- tests ---- */

START_TEST(power__any_cut_leaves_a_store_with_what_was_acknowledged)
{
    struct run *run = run_create();
    uint64_t cuts = test_scaled(CUTS, 20), acked = 0;
    uint64_t each = cuts < CUTS ? cuts / 4 : CUTS_A_RUN; /* four ways of I/O at least */
    struct power_count all = {0};
    for (uint64_t i = 0; i < cuts; i++) {
        if (i % each == 0) {
            record_run(run, i / each);
            struct power_count count = power_counted();
            all.writes += count.writes;
            all.ring_writes += count.ring_writes;
            all.dsync_writes += count.dsync_writes;
            all.syncs += count.syncs;
        }
        uint64_t cut = cut_of(i);
        const char *fault = one_cut(run, cut, i, &acked);
        ck_assert_msg(!fault, "run %llu, cut %llu at %llu: %s",
            (unsigned long long)(i / each), (unsigned long long)i, (unsigned long long)cut, fault);
    }
    (void)printf("%llu cuts of %llu writes (%llu by io_uring, %llu O_DSYNC) and %llu syncs: "
        "%llu acknowledged records were there\n", (unsigned long long)cuts,
        (unsigned long long)all.writes, (unsigned long long)all.ring_writes,
        (unsigned long long)all.dsync_writes, (unsigned long long)all.syncs,
        (unsigned long long)acked);
    /* all ways of writing were seen: else the record is not what it says */
    if (run->uring) ck_assert_uint_gt(all.ring_writes, 20);
    ck_assert_uint_gt(all.dsync_writes, 20);
    ck_assert_uint_gt(all.syncs, all.dsync_writes);
    ck_assert_uint_gt(acked, cuts);
    run_destroy(run);
}
END_TEST

/* Without the syncs of the payloads, or of LMDB's pages, the same cuts find a fault. */
START_TEST(power__a_missing_sync_is_noticed)
{
    static const char *const missing[2] = {"extent-", "data.mdb"};
    struct run *run = run_create();
    uint64_t noticed = 0, i = 0;
    power_hide_syncs(missing[_i]);
    for (; i < 100 && noticed == 0; i++) {
        if (i % CUTS_A_RUN == 0) record_run(run, i / CUTS_A_RUN);
        noticed += is_noticed(run, cut_of(i), i);
    }
    power_hide_syncs(NULL);
    (void)printf("without syncs of %s*: noticed by cut %llu\n", missing[_i],
        (unsigned long long)i);
    ck_assert_uint_eq(noticed, 1);
    run_destroy(run);
}
END_TEST

/* ---- calls that fail ---- */

enum { FAILING = 6 };

struct failing { struct tier_sequence what[FAILING]; bool acked[FAILING], gone[FAILING]; };

static void check_status(sc_status status)
{
    bool allowed = status == SC_OK || status == SC_ERR_IO || status == SC_ERR_LIMIT ||
        status == SC_ERR_CORRUPT || status == SC_ERR_NOT_FOUND || status == SC_ERR_UNSUPPORTED ||
        status == SC_ERR_BUSY;
    ck_assert_msg(allowed, "%s: %s", sc_status_name(status), sc_last_error()->text);
}

static void put_failing(struct sc_store *store, struct failing *failing, uint32_t at)
{
    sc_status status = tier_sequence_put(store, &failing->what[at]);
    check_status(status);
    failing->acked[at] = status == SC_OK;
}

/* Two lives: stores, a child, a replacement, a drop, gc, reads. */
static void fail_scenario(const struct sc_store_options *options, struct failing *failing)
{
    struct sc_store *store = NULL;
    struct sc_store_info info;
    struct sc_store_gc gc;
    for (uint32_t i = 0; i < FAILING; i++) {
        failing->what[i] = (struct tier_sequence){.sequence = i, .token_count = 20};
    }
    failing->what[1] = (struct tier_sequence){.token_count = 40, .parent_len = 20, .kv = true};
    failing->what[4] = failing->what[3];
    failing->what[4].version = 1;
    sc_status status = sc_store_open(options, &store);
    check_status(status);
    if (status == SC_OK) {
        for (uint32_t i = 0; i < 4; i++) put_failing(store, failing, i);
        failing->gone[3] = true;
        put_failing(store, failing, 4);
        failing->gone[2] = true;
        if (tier_sequence_is_there(store, &failing->what[2], &info)) {
            check_status(sc_store_drop(store, info.id));
        }
        check_status(sc_store_gc(store, &gc));
        sc_store_close(store);
    }
    status = sc_store_open(options, &store);
    check_status(status);
    if (status != SC_OK) return;
    put_failing(store, failing, 5);
    struct sc_store_verify_result result;
    check_status(sc_store_verify(store, true, NULL, NULL, &result));
    sc_store_close(store);
}

/* Each write, sync, size, name and read, LMDB's own among them: an answer, and afterwards what was
 * acknowledged is there and all is whole. */
START_TEST(power__every_call_of_lmdb_and_ours_failing_once)
{
    static const int codes[3] = {EIO, ENOSPC, POWER_SHORT};
    struct fail_alloc fa;
    struct sc_store_options options = tier_options(folder);
    uint64_t n = 1;
    fail_alloc_init(&fa);
    options.allocator = &fa.allocator;
    options.uring = options.direct = SC_STORE_OFF;
    for (bool failed = true; failed; n++) {
        struct failing failing;
        uint64_t records = 0;
        memset(&failing, 0, sizeof failing);
        tier_folder_empty(folder);
        power_start(folder);
        (void)power_fail(n, codes[_i]);
        fail_scenario(&options, &failing);
        failed = power_fail(0, 0);
        power_stop();
        ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
        struct sc_store *store = tier_open(&options);
        const char *fault = tier_sequences_check(store, &records);
        ck_assert_msg(!fault, "call %llu: %s", (unsigned long long)n, fault);
        for (uint32_t i = 0; i < FAILING; i++) {
            if (!failing.acked[i] || failing.gone[i]) continue;
            ck_assert_msg(tier_sequence_is_there(store, &failing.what[i], NULL),
                "call %llu: record %u was acknowledged", (unsigned long long)n, i);
        }
        sc_store_close(store);
    }
    (void)printf("%llu calls failed with %d\n", (unsigned long long)n - 2, codes[_i]);
    ck_assert_uint_gt(n, 80);
}
END_TEST

TIER_MAIN("tier/power", 3600,
    {power__every_call_of_lmdb_and_ours_failing_once, 3},
    {power__any_cut_leaves_a_store_with_what_was_acknowledged, 0},
    {power__a_missing_sync_is_noticed, 2})
