/* SPDX-License-Identifier: Apache-2.0 */
/* Random schedules on a cache with tiers; and contract 18 for them: a second cache with tiers of
 * its own, whose transfers end in another order and at other times, decides the same when it is fed
 * the same calls, apply among them. SC_TEST_SCALE makes the sequences longer (percent): 10,000
 * gives a million calls. */
#include "support/test_scale.h"
#include "test_engine_tape.h"
#include "test_engine_tiers_sim.h"

static struct rig_options options_of(int i)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = i & 1 ? 16 : 1;
    options.slots = 14;
    options.kv_ids = 8192;
    options.extras = i & 2 ? SIM_REQS : 0;
    options.cache.depth_max = 1 + (uint32_t)i % 3;
    options.cache.draft_max = i & 2 ? 4 : 0;
    options.cache.tails = i & 1;
    options.cache.token_max = i % 5 == 4 ? 2000 : 0;
    options.cache.policy = i & 4 ? "gittins" : NULL;
    return options;
}

/* Which tiers, and when states go down. */
static void init(struct tier_sim *ts, const struct rig_options *options, int i, uint64_t seed)
{
    uint32_t host = i % 3 == 1 ? 0 : 8, disk = i % 3 == 2 ? 0 : 60;
    tier_sim_init(ts, options, seed, host, disk, 1 + (uint32_t)i % 3);
    ts->sim.marks = ts->sim.forks = true;
    ts->sim.rig.request_flags = i & 1 ? SC_REQUEST_COPY : 0;
}

/* A busy machine may be slow to end transfers. */
static bool enough(struct tier_sim *ts)
{
    return rig_stats(&ts->sim.rig).restored > 0 && ts->waited > 0 && ts->applied_failed > 0;
}

START_TEST(random__what_comes_back_is_what_went_down)
{
    struct rig_options options = options_of(_i);
    struct tier_sim *ts = calloc(1, sizeof *ts);
    ck_assert_ptr_nonnull(ts);
    init(ts, &options, _i, 1100 + (uint64_t)_i);
    ts->faults = _i >= 6;
    uint64_t steps = test_scaled(6000, 1500);
    for (uint64_t i = 0; i < steps || (!enough(ts) && i < 10 * steps); i++) {
        sim_act(&ts->sim);
        if (i % 16 == 0) rig_verify(&ts->sim.rig);
    }
    tier_sim_close(ts);
    sc_cache_stats stats = rig_stats(&ts->sim.rig);
    ck_assert_uint_gt(stats.tier_stored[SC_TIER_HOST] + stats.tier_stored[SC_TIER_DISK], 0);
    ck_assert_uint_gt(stats.restored, 0);
    ck_assert_uint_gt(ts->waited, 0);
    ck_assert_uint_gt(ts->applied_failed, 0);
    tier_sim_deinit(ts);
    free(ts);
}
END_TEST

/* Look-ups, statistics and checks beside all that. */
struct reader { struct tier_sim *ts; _Atomic bool quit; _Atomic uint64_t below; pthread_t thread; };

static void *read_on(void *argument)
{
    struct reader *reader = argument;
    struct rig *rig = &reader->ts->sim.rig;
    int32_t tokens[200];
    for (uint32_t i = 0; !atomic_load(&reader->quit); i++) {
        sc_answer answer;
        rig_fill(tokens, 60, 1000 * (int32_t)(i % 3));
        rig_fill(tokens + 60, 140, 0);
        const sc_key key = {.ns = rig->ns, .tokens = tokens, .token_count = 60 + i % 140};
        rig_ok(sc_cache_lookup(rig->cache, &key, 1, &answer));
        ck_assert_int_eq(answer.status, SC_OK);
        for (uint32_t t = SC_TIER_HOST; t < SC_TIER_COUNT; t++) {
            bool more = answer.state_len[t] > 0;
            ck_assert(!more || answer.state_len[t] > answer.state_len[SC_TIER_DEVICE]);
            ck_assert(more == (answer.codec[t] != 0));
            if (more) (void)atomic_fetch_add(&reader->below, 1);
        }
        if (i % 16 == 0) rig_ok(sc_cache_verify(rig->cache));
        (void)rig_stats(rig);
    }
    return NULL;
}

START_TEST(random__others_read_meanwhile)
{
    struct rig_options options = options_of(_i);
    struct tier_sim *ts = calloc(1, sizeof *ts);
    ck_assert_ptr_nonnull(ts);
    init(ts, &options, _i, 1300 + (uint64_t)_i);
    struct reader readers[2] = {{.ts = ts}, {.ts = ts}};
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_int_eq(pthread_create(&readers[r].thread, NULL, read_on, &readers[r]), 0);
    }
    for (uint64_t i = 0; i < test_scaled(3000, 300); i++) sim_act(&ts->sim);
    for (uint32_t r = 0; r < 2; r++) {
        atomic_store(&readers[r].quit, true);
        ck_assert_int_eq(pthread_join(readers[r].thread, NULL), 0);
    }
    tier_sim_deinit(ts);
    free(ts);
}
END_TEST

/* ---- contract 18 ---- */

/* Carries out the second cache's moves, in an order and at times of its own. */
struct mover_thread { struct tiered *tiered; _Atomic bool quit; pthread_t thread; };

static void *move_at_random(void *argument)
{
    struct mover_thread *mover = argument;
    while (!atomic_load(&mover->quit)) {
        if (!tiered_move(mover->tiered)) tiered_pause();
    }
    while (tiered_move(mover->tiered)) continue;
    return NULL;
}

static void second_start(struct tiered *second, const struct tier_sim *first,
    const struct rig_options *options, uint64_t seed)
{
    struct rig_options other = *options;
    other.layout = SC_LAYOUT_CONTIGUOUS;
    other.cache.record = NULL;
    tiered_prepare(second, &other, 1, 1, 1);
    const char *folder = second->folder;
    second->options = first->tiered.options;
    second->options.folder = folder;
    second->hooks.host_slack = second->options.host.bytes;
    sc_prng_seed(&second->order, seed);
    atomic_store(&second->late, true);
    tiered_create(second, &other);
}

START_TEST(contract_18__when_transfers_end_decides_nothing)
{
    struct tape tape = {0};
    struct rig_options options = options_of(_i);
    struct tier_sim *ts = calloc(1, sizeof *ts);
    struct tiered second = {.rig = NULL};
    sc_replay *replay = NULL;
    ck_assert_ptr_nonnull(ts);
    options.cache.record = tape_record;
    options.cache.record_ctx = &tape;
    init(ts, &options, _i, 1200 + (uint64_t)_i);
    ts->faults = _i & 1;
    second_start(&second, ts, &options, 99 + (uint64_t)_i);
    rig_ok(sc_replay_create(second.rig->cache, &replay));
    struct mover_thread mover = {.tiered = &second};
    ck_assert_int_eq(pthread_create(&mover.thread, NULL, move_at_random, &mover), 0);
    uint64_t calls = test_scaled(10000, 1000), played = 0;
    for (uint64_t i = 0; tape.records < calls ||
         (!enough(ts) && tape.records < 10 * calls); i++) {
        sim_act(&ts->sim);
        tape_feed(replay, &tape);
        if (i % 256 == 0) rig_verify(second.rig);
    }
    tier_sim_close(ts);
    tape_feed(replay, &tape);
    rig_ok(sc_replay_count(replay, &played));
    ck_assert_uint_eq(played, tape.records);
    sc_cache_stats stats = rig_stats(&ts->sim.rig), same = rig_stats(second.rig);
    ck_assert_mem_eq(&stats, &same, sizeof same);
    sc_room room = rig_room(&ts->sim.rig), same_room = rig_room(second.rig);
    ck_assert_mem_eq(&room, &same_room, sizeof room);
    ck_assert(stats.restored > 0 && ts->applied_failed > 0 && ts->waited > 0);
    atomic_store(&mover.quit, true);
    ck_assert_int_eq(pthread_join(mover.thread, NULL), 0);
    sc_replay_destroy(replay);
    tiered_deinit(&second);
    tier_sim_deinit(ts);
    free(ts);
    free(tape.bytes);
}
END_TEST

static Suite *random_suite(void)
{
    Suite *suite = suite_create("engine_tiers_random");
    TCase *tc = tcase_create("random");
    tcase_set_timeout(tc, 3600);
    tcase_add_loop_test(tc, random__what_comes_back_is_what_went_down, 0, 12);
    tcase_add_loop_test(tc, random__others_read_meanwhile, 0, 3);
    tcase_add_loop_test(tc, contract_18__when_transfers_end_decides_nothing, 0, 12);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return rig_main(random_suite());
}
