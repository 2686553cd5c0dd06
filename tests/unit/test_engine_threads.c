/* SPDX-License-Identifier: Apache-2.0 */
/* One mutator and four look-up threads, together 10^5 calls; then audit and verify. Meant for TSan,
 * and worth running without. SC_TEST_SCALE scales the number of calls. */
#include <pthread.h>
#include <stdatomic.h>

#include "support/test_scale.h"
#include "test_engine_sim.h"

enum { READERS = 4 };

struct shared {
    struct rig *rig;
    uint64_t calls_each;
    _Atomic bool done;          /* the mutator has made its calls */
    _Atomic uint64_t lease;     /* a handle to ask about, perhaps stale */
    _Atomic uint64_t calls, hits, faults;
};

struct reader { struct shared *shared; uint64_t seed; pthread_t thread; };

/* A prompt like the mutator's: see sim_prompt. */
static uint32_t reader_prompt(struct sc_prng *prng, int32_t *tokens)
{
    uint32_t count = 1 + (uint32_t)sc_prng_below(prng, 60);
    int32_t first = 1000 * (int32_t)sc_prng_below(prng, 3);
    rig_fill(tokens, count, first);
    return count;
}

static bool answer_fits(const sc_answer *answer, uint32_t count)
{
    return answer->status == SC_OK && answer->kv_len < count &&
        answer->state_len[SC_TIER_DEVICE] <= answer->kv_len && answer->branch_len <= answer->kv_len;
}

static bool read_once(struct shared *shared, struct sc_prng *prng)
{
    const sc_cache *cache = shared->rig->cache;
    int32_t tokens[2][64];
    sc_key keys[2];
    sc_answer answers[2];
    for (uint32_t i = 0; i < 2; i++) {
        /* Without marks, and not by rig_key: its scratch is the mutator's. */
        uint32_t count = reader_prompt(prng, tokens[i]);
        keys[i] = (sc_key){.ns = shared->rig->ns, .tokens = tokens[i], .token_count = count};
    }
    if (sc_cache_lookup(cache, keys, 2, answers) != SC_OK) return false;
    for (uint32_t i = 0; i < 2; i++) {
        if (!answer_fits(&answers[i], keys[i].token_count)) return false;
        if (answers[i].state_len[SC_TIER_DEVICE] > 0) atomic_fetch_add(&shared->hits, 1);
    }
    uint64_t packed = atomic_load(&shared->lease);
    sc_lease lease = {(uint32_t)packed, (uint32_t)(packed >> 32)};
    sc_lease_info info;
    sc_room room;
    sc_cache_stats stats = {.struct_size = sizeof stats};
    int32_t ids[SIM_TOKENS_MAX];
    sc_history history[128];
    uint32_t count = 0;
    switch (sc_prng_below(prng, 64)) {
    case 0:
        if (sc_lease_info_get(cache, lease, &info) == SC_OK && info.len > info.token_count)
            return false;
        (void)sc_lease_kv_ids(cache, lease, 0, ids, SIM_TOKENS_MAX, &count);
        (void)sc_lease_history(cache, lease, history, 128, &count);
        return true;
    case 1:
        return sc_cache_room(cache, &room) == SC_OK;
    case 2:
        return sc_cache_stats_get(cache, &stats) == SC_OK;
    case 3:
        return sc_prng_below(prng, 8) != 0 || sc_cache_verify(cache) == SC_OK;
    default:
        return true;
    }
}

static void *reader_main(void *arg)
{
    struct reader *reader = arg;
    struct shared *shared = reader->shared;
    struct sc_prng prng;
    sc_prng_seed(&prng, reader->seed);
    for (uint64_t i = 0; i < shared->calls_each || !atomic_load(&shared->done); i++) {
        if (!read_once(shared, &prng)) atomic_fetch_add(&shared->faults, 1);
        atomic_fetch_add(&shared->calls, 1);
    }
    return NULL;
}

static void threads_run(uint32_t page)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = page;
    options.slots = 12;
    struct sim sim;
    sim_init(&sim, &options, 7);
    struct shared shared = {.rig = &sim.rig, .calls_each = test_scaled(10000, 500)};
    struct reader readers[READERS];
    for (uint32_t i = 0; i < READERS; i++) {
        readers[i] = (struct reader){.shared = &shared, .seed = i};
        ck_assert_int_eq(pthread_create(&readers[i].thread, NULL, reader_main, &readers[i]), 0);
    }
    uint64_t calls = test_scaled(10000, 500);
    while (sim.calls < calls) {
        sim_act(&sim);
        const struct req *req = &sim.reqs[sim.calls % SIM_REQS];
        atomic_store(&shared.lease, (uint64_t)req->lease.generation << 32 | req->lease.id);
    }
    atomic_store(&shared.done, true);
    for (uint32_t i = 0; i < READERS; i++) {
        ck_assert_int_eq(pthread_join(readers[i].thread, NULL), 0);
    }
    ck_assert_uint_eq(atomic_load(&shared.faults), 0);
    ck_assert_uint_gt(atomic_load(&shared.hits), 0);
    ck_assert_uint_ge(atomic_load(&shared.calls) + sim.calls, calls + READERS * shared.calls_each);
    rig_ok(sc_pool_audit(sim.rig.pool, true));
    rig_verify(&sim.rig);
    sim_deinit(&sim);
}

START_TEST(contract_17__one_mutator_four_lookup_threads)
{
    threads_run(_i ? 16 : 1);
}
END_TEST

static Suite *threads_suite(void)
{
    Suite *suite = suite_create("engine_threads");
    TCase *tc = tcase_create("threads");
    tcase_set_timeout(tc, 600);
    tcase_add_loop_test(tc, contract_17__one_mutator_four_lookup_threads, 0, 2);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return rig_main(threads_suite());
}
