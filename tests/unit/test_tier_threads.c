/* SPDX-License-Identifier: Apache-2.0 */
/* Threads side by side on one store: each sees nothing, or what was stored, never a part of it. */
#include <pthread.h>

#include "support/test_scale.h"
#include "tier_fixture.h"

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
    char folder[200];
    struct shared shared;
    tier_folder_make(folder, sizeof folder, true);
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
    tier_folder_remove(folder);
}
END_TEST

static Suite *threads_suite(void)
{
    Suite *suite = suite_create("tier/threads");
    TCase *tcase = tcase_create("threads");
    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, report_107__readers_see_a_whole_record_or_none, 0, 4);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return tier_main(threads_suite());
}
