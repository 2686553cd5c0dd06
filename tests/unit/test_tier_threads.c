/* SPDX-License-Identifier: Apache-2.0 */
/* Threads side by side on one store: each sees nothing, or what was stored, never a part of it. */
#include <pthread.h>

#include "support/test_scale.h"
#include "tier_suite.h"

enum { WRITERS = 3, READERS = 3, KEYS = 40 };

struct shared {
    struct sc_store *store;
    _Atomic bool over;
    _Atomic uint64_t hits, misses, wrong;
    uint64_t turns;
};
struct actor { struct shared *shared; uint32_t index; };

static uint64_t bytes_of(uint32_t sequence)
{
    return 3000 + 977 * (uint64_t)sequence;
}

static void wrong(struct shared *shared, const char *what, sc_status status,
    enum sc_store_reason reason)
{
    (void)fprintf(stderr, "%s: %s (%s), %s\n", what, sc_status_name(status),
        sc_last_error()->text, sc_store_reason_text(reason));
    atomic_fetch_add(&shared->wrong, 1);
}

static void *write_turns(void *arg)
{
    const struct actor *actor = arg;
    struct shared *shared = actor->shared;
    struct sc_prng prng;
    sc_prng_seed(&prng, actor->index);
    for (uint64_t turn = 0; turn < shared->turns; turn++) {
        uint32_t sequence = (uint32_t)sc_prng_below(&prng, KEYS);
        sc_status status = tier_put(shared->store, sequence, 30, 0, bytes_of(sequence));
        if (status != SC_OK && status != SC_ERR_BUSY && status != SC_ERR_LIMIT) {
            wrong(shared, "storing", status, SC_STORE_HIT);
        }
        if (turn % 5 == 0) (void)sc_store_drop(shared->store, (uint32_t)sc_prng_below(&prng, KEYS));
        if (turn % 11 == 0) (void)sc_store_evict(shared->store, 1 << 20, NULL);
        if (turn % 17 == 0) {
            struct sc_store_gc gc;
            status = sc_store_gc(shared->store, &gc);
            if (status != SC_OK) wrong(shared, "gc", status, SC_STORE_HIT);
        }
    }
    return NULL;
}

static void *read_turns(void *arg)
{
    const struct actor *actor = arg;
    struct shared *shared = actor->shared;
    struct sc_prng prng;
    sc_prng_seed(&prng, 100 + actor->index);
    while (!atomic_load(&shared->over)) {
        uint32_t sequence = (uint32_t)sc_prng_below(&prng, KEYS);
        enum sc_store_reason reason = SC_STORE_FAILED;
        bool same = false;
        sc_status status = tier_get(shared->store, sequence, 30, bytes_of(sequence), &reason,
            &same);
        bool miss = reason == SC_STORE_ABSENT || reason == SC_STORE_WRITING;
        if (status == SC_OK && same) atomic_fetch_add(&shared->hits, 1);
        else if (status == SC_OK && miss) atomic_fetch_add(&shared->misses, 1);
        else wrong(shared, "reading", status, reason);
    }
    return NULL;
}

static void run(struct sc_store *store, uint64_t turns, struct shared *shared)
{
    pthread_t threads[WRITERS + READERS];
    struct actor actors[WRITERS + READERS];
    memset(shared, 0, sizeof *shared);
    shared->store = store;
    shared->turns = turns;
    for (uint32_t i = 0; i < WRITERS + READERS; i++) {
        actors[i] = (struct actor){shared, i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, i < WRITERS ? write_turns : read_turns,
            &actors[i]), 0);
    }
    for (uint32_t i = 0; i < WRITERS; i++) (void)pthread_join(threads[i], NULL);
    atomic_store(&shared->over, true);
    for (uint32_t i = WRITERS; i < WRITERS + READERS; i++) (void)pthread_join(threads[i], NULL);
}

/* Reports 107 and 108: readers in a loop beside writers, under pressure of the budget. */
START_TEST(report_107__readers_see_a_whole_record_or_none)
{
    struct shared shared;
    struct sc_store_options options = tier_options(folder);
    options.uring = _i & 1 ? SC_STORE_AUTO : SC_STORE_OFF;
    options.bytes_max = _i & 2 ? 8 << 20 : 300000; /* all fit, or a third */
    struct sc_store *store = tier_open(&options);
    run(store, test_scaled(400, 60), &shared);
    ck_assert_uint_eq(atomic_load(&shared.wrong), 0);
    ck_assert_uint_gt(atomic_load(&shared.hits), 0);
    ck_assert_uint_gt(atomic_load(&shared.misses), 0);
    (void)tier_verify(store);
    ck_assert_uint_eq(tier_stats(store).pending_bytes, 0);
    sc_store_close(store);
    store = tier_open(&options);
    (void)tier_verify(store);
    sc_store_close(store);
}
END_TEST

/* ---- a reader that does not end ---- */

enum { HELD_KEYS = 40, STALL_TURNS = 15 };

/* One thread is held up inside a transaction that reads, as by other work of the machine. */
struct held {
    struct sc_tier_faults faults;
    struct sc_store *store;
    _Atomic bool hold, is_held;
    _Atomic uint32_t progress;
    _Atomic bool over;
    uint32_t failed;
};

static _Thread_local bool is_the_reader;

static int hold_up(void *ctx, const char *what)
{
    struct held *held = ctx;
    if (!is_the_reader || strcmp(what, "mdb_get") != 0) return 0;
    atomic_store(&held->is_held, true);
    while (atomic_load(&held->hold)) (void)usleep(1000);
    return 0;
}

static void *read_held(void *arg)
{
    struct held *held = arg;
    is_the_reader = true;
    (void)tier_reason(held->store, 1, 20);
    return NULL;
}

/* Each needs new pages of the map, and gives back old ones that the reader still sees. */
static void *replace_many(void *arg)
{
    struct held *held = arg;
    struct tier_key *key = malloc(sizeof *key);
    for (uint32_t i = 0; i < 100; i++) {
        tier_key_init(key, i % 4, 20);
        struct sc_store_record record = tier_record(key);
        record.numerics = 100 + i;
        held->failed += tier_put_record(held->store, &record, 100, 0, i, 0) != SC_OK;
        atomic_fetch_add(&held->progress, 1);
    }
    atomic_store(&held->over, true);
    free(key);
    return NULL;
}

static void *drop_many(void *arg)
{
    struct held *held = arg;
    for (uint32_t id = 0; id < HELD_KEYS; id++) {
        held->failed += sc_store_drop(held->store, id) != SC_OK;
        atomic_fetch_add(&held->progress, 1);
    }
    atomic_store(&held->over, true);
    return NULL;
}

/* Lets the reader go once the writer has come no further for a while. True when it had to wait. */
static bool let_go_when_stalled(struct held *held)
{
    uint32_t last = UINT32_MAX, same = 0;
    while (!atomic_load(&held->over) && same < STALL_TURNS) {
        uint32_t progress = atomic_load(&held->progress);
        same = progress == last ? same + 1 : 0;
        last = progress;
        (void)usleep(20000);
    }
    atomic_store(&held->hold, false);
    return same == STALL_TURNS;
}

/* A full map whose pages a reader holds: writers wait for it, and nothing is refused or evicted. */
START_TEST(map__writers_wait_for_a_reader_that_holds_its_pages)
{
    struct held held = {.faults = {hold_up, &held}, .hold = true};
    pthread_t reader, writer;
    struct sc_store_options options = tier_options(folder);
    options.map_bytes = 256 << 10;
    options.faults = &held.faults;
    held.store = tier_open(&options);
    for (uint32_t i = 0; i < HELD_KEYS; i++) {
        ck_assert_int_eq(tier_put(held.store, i, 20, 0, 100), SC_OK);
    }
    ck_assert_int_eq(pthread_create(&reader, NULL, read_held, &held), 0);
    while (!atomic_load(&held.is_held)) (void)usleep(1000);
    ck_assert_int_eq(pthread_create(&writer, NULL, _i ? drop_many : replace_many, &held), 0);
    bool waited = let_go_when_stalled(&held);
    ck_assert_int_eq(pthread_join(writer, NULL), 0);
    ck_assert_int_eq(pthread_join(reader, NULL), 0);
    ck_assert(waited);
    struct sc_store_stats stats = tier_stats(held.store);
    ck_assert_uint_eq(held.failed, 0);
    ck_assert_uint_eq(stats.evicted_count, 0);
    ck_assert_uint_eq(stats.refused_map, 0);
    ck_assert_uint_eq(tier_verify(held.store), _i ? 0 : HELD_KEYS);
    sc_store_close(held.store);
}
END_TEST

/* ---- commits of several threads ---- */

enum { TOGETHER = 6 };

struct together {
    struct sc_tier_faults faults;
    struct sc_store *store;
    struct sc_store_put *puts[TOGETHER];
    sc_status each[TOGETHER];
    char text[TOGETHER][sizeof((sc_error_info *)NULL)->text];
    _Atomic uint32_t syncs, in_commit;
};

/* The first sync ends when all threads have called commit. */
static int sync_slowly(void *ctx, const char *what)
{
    struct together *together = ctx;
    if (strcmp(what, "fdatasync") != 0)
        return 0;
    if (atomic_fetch_add(&together->syncs, 1) > 0)
        return 0;
    while (atomic_load(&together->in_commit) < TOGETHER)
        (void)usleep(1000);
    (void)usleep(50000);
    return 0;
}

struct committing {
    struct together *together;
    uint32_t index;
};

static void *commit_one(void *arg)
{
    const struct committing *committing = arg;
    struct together *together = committing->together;
    uint32_t i = committing->index;
    atomic_fetch_add(&together->in_commit, 1);
    sc_status status =
        sc_store_commit(together->store, &together->puts[i], 1, 0, &together->each[i]);
    (void)snprintf(together->text[i], sizeof together->text[i], "%s", sc_last_error()->text);
    return status == SC_OK && together->puts[i] == NULL ? NULL : arg;
}

/* Puts of TOGETHER records, of which the first would replace one. */
static void begin_together(struct together *together, const uint8_t *payload, uint64_t bytes)
{
    for (uint32_t i = 0; i < TOGETHER; i++) {
        struct tier_key key;
        tier_key_init(&key, i, 30);
        struct sc_store_record record = tier_record(&key);
        if (i == 0)
            record.numerics = 8;
        struct sc_store_payload what = {payload, bytes, 0, bytes, 1, 0};
        ck_assert_int_eq(
            sc_store_begin(together->store, &record, false, &together->puts[i]), SC_OK);
        ck_assert_int_eq(sc_store_shard(together->store, together->puts[i], 0, &what, 0), SC_OK);
    }
}

/* Those that come while one commits share the next sync and transaction. 1: one of them cannot be
 * stored, since what it would replace is being read; it alone is told. */
START_TEST(commit__those_that_wait_are_committed_together)
{
    struct sc_store_options options = tier_options(folder);
    struct together together = {.faults = {sync_slowly, &together}};
    pthread_t threads[TOGETHER];
    struct committing each[TOGETHER];
    uint8_t payload[5000] = {1};
    options.faults = &together.faults;
    atomic_store(&together.syncs, 1); /* those of opening and growing are not counted */
    together.store = tier_open(&options);
    ck_assert_int_eq(tier_put(together.store, 0, 30, 0, 5000), SC_OK);
    begin_together(&together, payload, sizeof payload);
    struct sc_store_reader *reader = NULL;
    if (_i)
        ck_assert_int_eq(sc_store_reader_open_id(together.store, 0, &reader), SC_OK);
    atomic_store(&together.syncs, 0);
    for (uint32_t i = 0; i < TOGETHER; i++) {
        each[i] = (struct committing){&together, i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, commit_one, &each[i]), 0);
    }
    for (uint32_t i = 0; i < TOGETHER; i++) {
        void *failed = NULL;
        ck_assert_int_eq(pthread_join(threads[i], &failed), 0);
        ck_assert_ptr_null(failed);
        ck_assert_int_eq(together.each[i], _i && i == 0 ? SC_ERR_BUSY : SC_OK);
    }
    if (_i) {
        ck_assert_ptr_nonnull(strstr(together.text[0], "is being read"));
    } else {
        ck_assert_uint_eq(together.syncs, 2);
    }
    sc_store_reader_close(reader);
    ck_assert_uint_eq(tier_verify(together.store), TOGETHER);
    ck_assert_uint_eq(tier_stats(together.store).pending_bytes, 0);
    sc_store_close(together.store);
}
END_TEST

/* ---- room that comes while one waits to evict ---- */

enum { BIG = 65536 };

/* The first commit that is armed holds the store's lock of writers until it is let go. */
struct holding {
    struct sc_tier_faults faults;
    _Atomic bool armed, holds, let_go;
};

static int hold_commit(void *ctx, const char *what)
{
    struct holding *holding = ctx;
    if (!atomic_load(&holding->armed) || strcmp(what, "mdb_txn_commit") != 0) return 0;
    atomic_store(&holding->armed, false);
    atomic_store(&holding->holds, true);
    while (!atomic_load(&holding->let_go)) (void)usleep(1000);
    return 0;
}

struct valued {
    struct sc_store *store;
    uint32_t sequence;
    uint64_t bytes;
    double value;
    sc_status status;
};

static void *put_valued(void *arg)
{
    struct valued *valued = arg;
    struct tier_key key;
    tier_key_init(&key, valued->sequence, 20);
    struct sc_store_record record = tier_record(&key);
    record.value = valued->value;
    valued->status = tier_put_record(valued->store, &record, valued->bytes, 0, 1, 0);
    return NULL;
}

/* A full store of records that are worth more. One waits to evict, behind a commit, while another
 * gives up what it had begun: that is room. */
START_TEST(room__what_is_given_back_meanwhile_is_room)
{
    struct sc_store_options options = tier_options(folder);
    struct holding holding = {.faults = {hold_commit, &holding}};
    struct sc_store_put *put = NULL;
    static uint8_t payload[BIG];
    const struct sc_store_payload what = {payload, BIG, 0, BIG, 1, 0};
    struct tier_key key;
    pthread_t threads[2];
    options.bytes_max = 3 * BIG + 4096;
    options.faults = &holding.faults;
    struct sc_store *store = tier_open(&options);
    struct valued valued[4] = {{store, 0, BIG, 9.0, SC_OK}, {store, 1, BIG, 9.0, SC_OK},
        {store, 2, 100, 9.0, SC_ERR_STATE}, {store, 3, BIG, 1.0, SC_ERR_STATE}};
    for (uint32_t i = 0; i < 2; i++) (void)put_valued(&valued[i]);
    tier_key_init(&key, 4, 20);
    struct sc_store_record record = tier_record(&key);
    ck_assert_int_eq(sc_store_begin(store, &record, false, &put), SC_OK);
    ck_assert_int_eq(sc_store_shard(store, put, 0, &what, 0), SC_OK);
    atomic_store(&holding.armed, true);
    ck_assert_int_eq(pthread_create(&threads[0], NULL, put_valued, &valued[2]), 0);
    while (!atomic_load(&holding.holds)) (void)usleep(1000);
    ck_assert_int_eq(pthread_create(&threads[1], NULL, put_valued, &valued[3]), 0);
    (void)usleep(100000); /* it waits for the lock */
    sc_store_abort(store, put);
    atomic_store(&holding.let_go, true);
    for (uint32_t i = 0; i < 2; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    for (uint32_t i = 0; i < 4; i++) ck_assert_int_eq(valued[i].status, SC_OK);
    ck_assert_uint_eq(tier_verify(store), 4);
    sc_store_close(store);
}
END_TEST

TIER_MAIN("tier/threads", 600, {commit__those_that_wait_are_committed_together, 2},
    {room__what_is_given_back_meanwhile_is_room, 1},
    {report_107__readers_see_a_whole_record_or_none, 4},
    {map__writers_wait_for_a_reader_that_holds_its_pages, 2})
