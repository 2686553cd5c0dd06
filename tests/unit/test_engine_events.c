/* SPDX-License-Identifier: Apache-2.0 */
/* Events (statecache/events.h): random traffic with tiers against a model that applies them; loss
 * and picture; failing allocations; what a change costs. Reports of class O. */
#include "support/test_scale.h"
#include "test_engine_events.h"
#include "test_engine_tiers_sim.h"

enum { QUEUE = 1 << 20 };

static struct mirror mine, drawn;

/* What the events say is what a picture says, and what the cache says otherwise. */
static void check(struct rig *rig)
{
    mirror_take(&mine, rig->cache);
    ck_assert(mine.whole);
    mirror_draw(&drawn, rig->cache);
    mirror_equal(&mine, &drawn);
    mirror_true(&mine, rig);
    mirror_clear(&drawn);
}

/* ---- random ---- */

static struct rig_options options_of(int i)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = i & 1 ? 16 : 1;
    options.slots = 14;
    options.kv_ids = 8192;
    options.cache.depth_max = 1 + (uint32_t)i % 3;
    options.cache.tails = i & 1;
    options.cache.token_max = i % 4 == 3 ? 2000 : 0;
    options.cache.policy = i & 2 ? "gittins" : NULL;
    options.cache.event_bytes = QUEUE;
    return options;
}

START_TEST(random__events_give_exactly_what_is_there)
{
    struct rig_options options = options_of(_i);
    struct tier_sim *ts = calloc(1, sizeof *ts);
    ck_assert_ptr_nonnull(ts);
    uint32_t host = _i % 3 == 1 ? 0 : 8, disk = _i % 3 == 2 ? 0 : 40;
    tier_sim_init(ts, &options, 2100 + (uint64_t)_i, host, disk, 1 + (uint32_t)_i % 3);
    ts->sim.marks = ts->sim.forks = true;
    ts->faults = _i >= 4;
    struct rig *rig = &ts->sim.rig;
    mirror_take(&mine, rig->cache);
    ck_assert(!mine.whole && mine.lost == 1);
    mirror_draw(&mine, rig->cache);
    uint64_t steps = test_scaled(700, 300);
    for (uint64_t i = 0; i < steps || (rig_stats(rig).restored == 0 && i < 10 * steps); i++) {
        sim_act(&ts->sim);
        if (i % 8 == 0) mirror_take(&mine, rig->cache);
        if (i % 64 == 0) check(rig);
    }
    tier_sim_close(ts);
    check(rig);
    sc_cache_stats stats = rig_stats(rig);
    for (uint32_t c = 0; c < SC_EVICT_COUNT; c++) ck_assert_uint_eq(mine.evicted[c],
        stats.evicted[c]);
    ck_assert_uint_gt(stats.restored, 0);
    ck_assert_uint_gt(mine.removed, 0);
    tiered_clear_device(&ts->tiered);
    check(rig);
    ck_assert_uint_eq(mirror_in(&mine, SC_TIER_DEVICE), 0);
    rig_ok(sc_namespace_close(rig->cache, rig->ns));
    mirror_take(&mine, rig->cache);
    ck_assert_uint_eq(mine.count, 0);
    rig_ok(sc_namespace_open(rig->cache, NULL, 0, 0, &rig->ns));
    tier_sim_deinit(ts);
    free(ts);
}
END_TEST

/* A queue of 4 KiB overflows again and again; each loss is told, and a picture makes it good. */
START_TEST(random__what_is_lost_is_known)
{
    struct rig_options options = options_of(_i);
    struct sim *sim = calloc(1, sizeof *sim);
    ck_assert_ptr_nonnull(sim);
    options.cache.event_bytes = 4096;
    sim_init(sim, &options, 2200 + (uint64_t)_i);
    mirror_draw(&mine, sim->rig.cache);
    for (uint64_t i = 0; i < test_scaled(4000, 2000); i++) {
        sim_act(sim);
        if (sim_below(sim, 200) != 0) continue;
        mirror_take(&mine, sim->rig.cache);
        if (!mine.whole) {
            mirror_take(&mine, sim->rig.cache); /* it says so until it is asked */
            ck_assert(!mine.whole);
            mirror_draw(&mine, sim->rig.cache);
        }
        mirror_true(&mine, &sim->rig);
    }
    ck_assert_uint_gt(mine.lost, 2);
    mirror_clear(&mine);
    while (sim->out > 0) sim_end(sim);
    for (uint32_t i = 0; i < SIM_REQS; i++) {
        if (sim->reqs[i].lease.id) req_close(&sim->rig, &sim->reqs[i], 0, SC_RELEASE_KEEP);
    }
    rig_deinit(&sim->rig);
    free(sim);
}
END_TEST

/* ---- calls ---- */

START_TEST(calls__refuse_what_they_cannot_do)
{
    struct rig rig;
    struct rig_options options = RIG_OPTIONS_INIT;
    const sc_event *events = NULL;
    uint32_t count = 0;
    rig_init(&rig, &options);
    ck_assert_int_eq(sc_cache_events_take(rig.cache, &events, &count), SC_ERR_STATE);
    ck_assert_int_eq(sc_cache_events_restart(rig.cache, &events, &count), SC_ERR_STATE);
    ck_assert_int_eq(sc_cache_events_take(NULL, &events, &count), SC_ERR_INVALID);
    ck_assert_int_eq(sc_cache_events_take(rig.cache, NULL, &count), SC_ERR_INVALID);
    ck_assert_int_eq(sc_cache_events_take(rig.cache, &events, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_cache_events_restart(NULL, &events, &count), SC_ERR_INVALID);
    ck_assert_int_eq(sc_cache_events_restart(rig.cache, NULL, &count), SC_ERR_INVALID);
    ck_assert_int_eq(sc_cache_events_restart(rig.cache, &events, NULL), SC_ERR_INVALID);
    rig_deinit(&rig);
    sc_cache *cache = NULL;
    sc_cache_options cache_options;
    rig_init_pools(&rig, &options);
    rig_cache_options(&rig, &options, &cache_options);
    cache_options.event_bytes = 4095;
    ck_assert_int_eq(sc_cache_create(&cache_options, &cache), SC_ERR_INVALID);
    cache_options.event_bytes = UINT64_MAX;
    ck_assert_int_eq(sc_cache_create(&cache_options, &cache), SC_ERR_INVALID);
    cache_options.event_bytes = 4096;
    rig_ok(sc_cache_create(&cache_options, &rig.cache));
    rig_deinit(&rig);
}
END_TEST

/* Creation and picture with each allocation failing in turn. */
START_TEST(calls__each_allocation_may_fail)
{
    struct rig rig;
    struct rig_options options = RIG_OPTIONS_INIT;
    sc_cache_options cache_options;
    const sc_event *events = NULL;
    uint32_t count = 0, failures = 0;
    int32_t tokens[40];
    sc_status status = SC_ERR_NO_MEMORY;
    options.cache.event_bytes = 4096;
    rig_init_pools(&rig, &options);
    rig_cache_options(&rig, &options, &cache_options);
    for (uint32_t n = 1; status == SC_ERR_NO_MEMORY; n++) {
        fail_alloc_arm(&rig.fa, n);
        status = sc_cache_create(&cache_options, &rig.cache);
        (void)fail_alloc_disarm(&rig.fa);
        failures += status != SC_OK;
    }
    rig_ok(status);
    ck_assert_uint_gt(failures, 3);
    rig_ok(sc_namespace_open(rig.cache, NULL, 0, 0, &rig.ns));
    rig_fill(tokens, 40, 100);
    (void)rig_serve(&rig, tokens, 33, 64, SC_RELEASE_KEEP);
    mirror_draw(&mine, rig.cache);
    (void)rig_serve(&rig, tokens, 40, 64, SC_RELEASE_KEEP);
    fail_alloc_arm(&rig.fa, 1);
    ck_assert_int_eq(sc_cache_events_restart(rig.cache, &events, &count), SC_ERR_NO_MEMORY);
    (void)fail_alloc_disarm(&rig.fa);
    check(&rig); /* nothing was dropped */
    mirror_clear(&mine);
    rig_deinit(&rig);
}
END_TEST

START_TEST(calls__adapters_are_told_apart)
{
    struct rig rig;
    struct rig_options options = RIG_OPTIONS_INIT;
    int32_t tokens[40];
    options.cache.event_bytes = QUEUE;
    rig_init(&rig, &options);
    mirror_draw(&mine, rig.cache);
    rig_fill(tokens, 40, 100);
    sc_namespace plain = rig.ns;
    (void)rig_serve(&rig, tokens, 33, 64, SC_RELEASE_KEEP);
    uint32_t before = mine.count;
    rig_ok(sc_namespace_open(rig.cache, NULL, 7, 3, &rig.ns));
    (void)rig_serve(&rig, tokens, 33, 64, SC_RELEASE_KEEP);
    mirror_take(&mine, rig.cache);
    ck_assert_uint_gt(mine.count, before);
    uint32_t with = 0;
    for (uint32_t i = 0; i < mine.count; i++) {
        with += mine.copies[i].adapter_id == 7 && mine.copies[i].adapter_generation == 3;
    }
    ck_assert_uint_eq(2 * with, mine.count);
    mirror_draw(&drawn, rig.cache);
    mirror_equal(&mine, &drawn);
    rig_ok(sc_namespace_close(rig.cache, rig.ns));
    rig.ns = plain;
    check(&rig);
    ck_assert_uint_eq(mine.count, with);
    mirror_clear(&mine);
    rig_deinit(&rig);
}
END_TEST

/* ---- reports ---- */

/* A change of the tree's shape is no event, and equal tokens are not equal states. */
START_TEST(report_132__a_split_is_no_event_and_equal_tokens_are_four_states)
{
    struct rig rig;
    struct rig_options options = RIG_OPTIONS_INIT;
    int32_t tokens[80];
    options.page = 16;
    options.cache.event_bytes = QUEUE;
    options.cache.save_flags = SC_SAVE_PROMPT_END;
    rig_init(&rig, &options);
    mirror_draw(&mine, rig.cache);
    for (uint32_t i = 0; i < 80; i++) tokens[i] = 7;
    for (uint32_t pages = 1; pages <= 4; pages++) {
        (void)rig_serve(&rig, tokens, 16 * pages, 64, SC_RELEASE_DISCARD);
        mirror_take(&mine, rig.cache);
        ck_assert_uint_eq(mine.count, pages); /* mirror_store: no two are the same */
    }
    ck_assert_uint_eq(mine.removed, 0);
    uint64_t number = mine.number;
    tokens[40] = 8; /* splits the edge of 32 to 48; its own end is saved, nothing else is told */
    (void)rig_serve(&rig, tokens, 64, 64, SC_RELEASE_DISCARD);
    mirror_take(&mine, rig.cache);
    ck_assert_uint_eq(mine.number, number + 1);
    ck_assert_uint_eq(mine.removed, 0);
    check(&rig);
    mirror_clear(&mine);
    rig_deinit(&rig);
}
END_TEST

/* Stored on the device and in host memory, then removed from one: the other is still there. */
START_TEST(report_134__each_copy_goes_for_itself)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    static struct tiered t;
    int32_t tokens[40];
    options.page = 16;
    options.cache.event_bytes = QUEUE;
    options.cache.save_flags = SC_SAVE_PROMPT_END;
    t.rig = NULL;
    tiered_init(&t, &options, 8, 0, SC_TIER_WRITE_THROUGH);
    mirror_draw(&mine, t.rig->cache);
    rig_fill(tokens, 40, 50);
    (void)tiered_serve(&t, tokens, 32);
    mirror_take(&mine, t.rig->cache);
    ck_assert_uint_eq(mirror_in(&mine, SC_TIER_DEVICE), 1);
    ck_assert_uint_eq(mirror_in(&mine, SC_TIER_HOST), 1);
    ck_assert_uint_eq(mine.tokens, 32); /* once */
    tiered_clear_device(&t);
    check(t.rig);
    ck_assert_uint_eq(mirror_in(&mine, SC_TIER_DEVICE), 0);
    ck_assert_uint_eq(mirror_in(&mine, SC_TIER_HOST), 1);
    ck_assert_uint_eq(tiered_serve(&t, tokens, 33), 32); /* and it comes back */
    check(t.rig);
    ck_assert_uint_eq(mirror_in(&mine, SC_TIER_HOST), mirror_in(&mine, SC_TIER_DEVICE));
    mirror_clear(&mine);
    tiered_clear_device(&t);
    tiered_deinit(&t);
}
END_TEST

/* A reader that has lost events is told so, and gets what is there. */
START_TEST(report_135__a_reader_that_lost_events_gets_the_whole)
{
    struct rig rig;
    struct rig_options options = RIG_OPTIONS_INIT;
    int32_t tokens[200];
    options.slots = 64;
    options.cache.event_bytes = 4096;
    rig_init(&rig, &options);
    mirror_draw(&mine, rig.cache);
    for (int32_t i = 0; i < 20; i++) {
        rig_fill(tokens, 200, 1000 * i);
        (void)rig_serve(&rig, tokens, 150, 64, SC_RELEASE_KEEP);
    }
    mirror_take(&mine, rig.cache);
    ck_assert(!mine.whole);
    uint32_t prefix = mine.count;
    ck_assert_uint_lt(prefix, rig_stats(&rig).snapshots_alive);
    mirror_draw(&mine, rig.cache);
    rig_fill(tokens, 200, 77000);
    (void)rig_serve(&rig, tokens, 150, 64, SC_RELEASE_KEEP);
    check(&rig);
    mirror_clear(&mine);
    rig_deinit(&rig);
}
END_TEST

/* A restore tells of its copy; a long path costs its new tokens alone. */
START_TEST(report_136__restores_are_told_and_a_long_path_costs_its_end)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    static struct tiered t;
    enum { PAGES = 512, PAGE = 16 };
    static int32_t tokens[(PAGES + 2) * PAGE];
    options.page = PAGE;
    options.cache.event_bytes = QUEUE;
    options.cache.save_flags = SC_SAVE_PROMPT_END;
    t.rig = NULL;
    tiered_init(&t, &options, 8, 0, SC_TIER_WRITE_THROUGH);
    t.rig->now_ns = 1;
    mirror_draw(&mine, t.rig->cache);
    for (uint32_t i = 0; i < (PAGES + 2) * PAGE; i++) tokens[i] = (int32_t)(i % 1000);
    (void)rig_serve(t.rig, tokens, 4 * PAGE, 4096, SC_RELEASE_DISCARD);
    (void)tiered_settle(&t);
    tiered_clear_device(&t);
    mirror_take(&mine, t.rig->cache);
    uint64_t stored = mine.stored;
    ck_assert_uint_eq(tiered_serve(&t, tokens, 4 * PAGE + 1), 4 * PAGE);
    mirror_take(&mine, t.rig->cache);
    ck_assert_uint_gt(mine.stored, stored);
    check(t.rig);
    (void)rig_serve(t.rig, tokens, PAGES * PAGE, 1 << 20, SC_RELEASE_DISCARD);
    check(t.rig);
    uint64_t before = mine.tokens;
    (void)rig_serve(t.rig, tokens, (PAGES + 1) * PAGE, 1 << 20, SC_RELEASE_DISCARD);
    mirror_take(&mine, t.rig->cache);
    ck_assert_uint_eq(mine.tokens - before, PAGE);
    check(t.rig);
    mirror_clear(&mine);
    tiered_clear_device(&t);
    tiered_deinit(&t);
}
END_TEST

static Suite *events_suite(void)
{
    Suite *suite = suite_create("engine_events");
    TCase *random = tcase_create("random"), *calls = tcase_create("calls");
    TCase *reports = tcase_create("reports");
    tcase_set_timeout(random, 3600);
    tcase_add_loop_test(random, random__events_give_exactly_what_is_there, 0, 8);
    tcase_add_loop_test(random, random__what_is_lost_is_known, 0, 4);
    suite_add_tcase(suite, random);
    tcase_set_timeout(calls, 60);
    tcase_add_test(calls, calls__refuse_what_they_cannot_do);
    tcase_add_test(calls, calls__each_allocation_may_fail);
    tcase_add_test(calls, calls__adapters_are_told_apart);
    suite_add_tcase(suite, calls);
    tcase_set_timeout(reports, 60);
    tcase_add_test(reports, report_132__a_split_is_no_event_and_equal_tokens_are_four_states);
    tcase_add_test(reports, report_134__each_copy_goes_for_itself);
    tcase_add_test(reports, report_135__a_reader_that_lost_events_gets_the_whole);
    tcase_add_test(reports, report_136__restores_are_told_and_a_long_path_costs_its_end);
    suite_add_tcase(suite, reports);
    return suite;
}

int main(void)
{
    return rig_main(events_suite());
}
