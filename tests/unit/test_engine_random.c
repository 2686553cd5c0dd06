/* SPDX-License-Identifier: Apache-2.0 */
/* Random schedules, checked stamp by stamp (test_engine_rig.h), and the determinism of
 * decisions. */
#include "support/test_scale.h"
#include "test_engine_sim.h"

static void random_run(const struct rig_options *options, uint64_t seed, uint64_t steps)
{
    struct sim sim;
    sim_init(&sim, options, seed);
    sim.marks = seed % 3 == 0;
    for (uint64_t i = 0; i < steps; i++) {
        sim_act(&sim);
        if (i % 16 == 0) rig_verify(&sim.rig);
    }
    sc_cache_stats stats = rig_stats(&sim.rig);
    ck_assert_uint_gt(sim.resumed, 0);
    if (sim.depth > 1) ck_assert(sim.early > 0 && sim.lost > 0 && sim.overlapped > 0);
    if (sim.draft_max > 0) ck_assert_uint_gt(stats.drafts_accepted, 0);
    ck_assert_uint_gt(stats.saves_published, 0);
    sim_deinit(&sim);
}

/* Pages of 1 and 16, both layouts, one and two groups, with and without room. */
START_TEST(random__states_and_kv_are_never_mixed_up)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = _i & 1 ? 16 : 1;
    options.layout = _i & 2 ? SC_LAYOUT_CONTIGUOUS : SC_LAYOUT_PAGE_MAJOR;
    options.slots = _i & 4 ? 9 : 64;
    options.second_group = (_i & 8) != 0;
    options.extras = _i % 3 == 0 ? SIM_REQS - 1 : 0;
    options.cache.decode_interval = _i % 3 == 1 ? 16 : 0;
    options.cache.path_snapshots_max = _i % 5 == 4 ? 2 : 0;
    options.cache.token_max = _i % 4 == 3 ? 500 : 0;
    options.cache.keep_cuts = _i % 7 == 6;
    random_run(&options, 100 + (uint64_t)_i, test_scaled(4000, 400));
}
END_TEST

/* Several steps in flight, their ends in any order; with and without drafts. */
START_TEST(random__steps_in_flight)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = _i & 1 ? 16 : 1;
    options.slots = _i & 2 ? 14 : 64;
    options.cache.depth_max = 2 + (uint32_t)_i % 3;
    options.cache.draft_max = _i & 4 ? 5 : 0;
    options.cache.decode_interval = _i & 1 ? 16 : (uint32_t)_i % 5;
    options.cache.keep_cuts = _i % 7 == 6;
    random_run(&options, 300 + (uint64_t)_i, test_scaled(4000, 1500));
}
END_TEST

/* Snapshots inside pages. */
START_TEST(random__tails)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = _i & 1 ? 16 : 48;
    options.slots = _i & 2 ? 14 : 64;
    options.cache.tails = true;
    options.cache.depth_max = 1 + (uint32_t)_i % 3;
    options.cache.draft_max = _i & 4 ? 5 : 0;
    options.cache.token_max = _i % 4 == 3 ? 600 : 0;
    options.cache.path_snapshots_max = _i % 5 == 4 ? 2 : 0;
    struct sim sim;
    sim_init(&sim, &options, 500 + (uint64_t)_i);
    sim.marks = _i % 3 == 0;
    for (uint64_t i = 0; i < test_scaled(4000, 1500); i++) {
        sim_act(&sim);
        if (i % 16 == 0) rig_verify(&sim.rig);
    }
    ck_assert_uint_gt(sim.tails, 0);
    sim_deinit(&sim);
}
END_TEST

/* Forks, states from elsewhere, kernels in place; in and out of pages. */
START_TEST(random__forks)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = _i & 1 ? 16 : 1;
    options.slots = _i & 2 ? 16 : 64;
    options.extras = _i % 3 == 0 ? SIM_REQS - 1 : 0;
    options.cache.tails = (_i & 4) != 0;
    options.cache.depth_max = 1 + (uint32_t)_i % 3;
    options.cache.draft_max = _i & 4 ? 3 : 0;
    options.cache.token_max = _i % 4 == 3 ? 600 : 0;
    struct sim sim;
    sim_init(&sim, &options, 700 + (uint64_t)_i);
    sim.marks = _i % 3 == 0;
    sim.forks = true;
    sim.rig.request_flags = _i & 1 ? SC_REQUEST_COPY : 0;
    for (uint64_t i = 0; i < test_scaled(4000, 2000); i++) {
        sim_act(&sim);
        if (i % 16 == 0) rig_verify(&sim.rig);
    }
    ck_assert(sim.forked > 0 && sim.external > 0);
    sim_deinit(&sim);
}
END_TEST

/* Hardly a slot for a save, and allocations that fail all the time: requests go on. */
START_TEST(random__exhaustion)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = _i & 1 ? 16 : 1;
    options.slots = SIM_REQS + (uint32_t)_i % 2;
    options.cache.tails = (_i & 1) != 0;
    options.cache.depth_max = 1 + (uint32_t)_i % 3;
    options.cache.draft_max = _i & 2 ? 3 : 0;
    options.cache.token_max = _i & 2 ? 500 : 0;
    struct sim sim;
    sim_init(&sim, &options, 800 + (uint64_t)_i);
    sim.marks = sim.forks = sim.starve = sim.rig.patient = true;
    for (uint64_t i = 0; i < test_scaled(4000, 1500); i++) {
        sim_act(&sim);
        if (i % 16 == 0) rig_verify(&sim.rig);
    }
    sc_cache_stats stats = rig_stats(&sim.rig);
    ck_assert_uint_gt(stats.saves_skipped[SC_SKIP_NO_SLOT], 0);
    ck_assert(sim.rig.starved > 0 && stats.rows > 0);
    (void)fail_alloc_disarm(&sim.rig.fa);
    sim_deinit(&sim);
}
END_TEST

START_TEST(random__pure_recurrent_models_have_no_kv)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.cache.without_kv = true;
    struct rig rig;
    int32_t tokens[100];
    rig_fill(tokens, 100, 1);
    rig_init(&rig, &options);
    struct req req;
    ck_assert_uint_eq(req_open(&rig, &req, tokens, 50), 0);
    sc_row row = {req.lease, 0, 50, NULL, 0, 0, NULL};
    sc_batch batch;
    sc_status each;
    rig_ok(sc_step_plan(rig.cache, 1, &row, 1, 0, &batch, &each));
    ck_assert_int_eq(each, SC_OK);
    rig_state_write(&rig, rig_word(&batch, batch.at_dest, 0), 7);
    int32_t id = 1;
    sc_result result = {req.lease, 50, &id, 1};
    ck_assert_int_eq(sc_step_commit(rig.cache, 1, &result, 1, &each), SC_ERR_MISMATCH);
    result.kv_count = 0;
    rig_ok(sc_step_commit(rig.cache, 1, &result, 1, &each));
    uint32_t count = 9;
    rig_ok(sc_lease_kv_ids(rig.cache, req.lease, 0, NULL, 0, &count));
    ck_assert_uint_eq(count, 0);
    rig_ok(sc_lease_adopt(rig.cache, req.lease, &count));
    ck_assert_uint_eq(count, 0);
    req_close(&rig, &req, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 100).state_len[SC_TIER_DEVICE], 50);
    rig_ok(req_try(&rig, &req, tokens, 100));
    ck_assert(rig_state_is(&rig, rig_info(&rig, req.lease).source_slot, 7));
    req_close(&rig, &req, 0, SC_RELEASE_DISCARD);
    rig_verify(&rig);
    sc_room got;
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
    ck_assert_uint_eq(got.slots_free, 1);
    ck_assert_uint_eq(rig_room(&rig).pages_cached, 0); /* nothing can be resumed from it any more */
    rig_deinit(&rig);
}
END_TEST

/* The same calls decide the same, whatever the memory, the layout and the time. */
START_TEST(contract_18__same_calls_same_decisions)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.slots = 12;
    options.page = _i ? 16 : 1;
    uint64_t digests[2];
    for (uint32_t run = 0; run < 2; run++) {
        struct sim sim;
        options.layout = run ? SC_LAYOUT_CONTIGUOUS : SC_LAYOUT_PAGE_MAJOR;
        sim_init(&sim, &options, 42);
        for (uint64_t i = 0; i < test_scaled(3000, 300); i++) {
            sim_act(&sim);
            if (run == 1 && i % 7 == 0) { /* look-ups decide nothing */
                int32_t tokens[3] = {0, 1, 2};
                (void)rig_lookup(&sim.rig, tokens, 3);
                rig_verify(&sim.rig);
            }
        }
        sc_cache_stats stats = rig_stats(&sim.rig);
        sim_note(&sim, stats.saves_published);
        sim_note(&sim, stats.pages_evicted);
        digests[run] = sim.digest;
        sim_deinit(&sim);
    }
    ck_assert_uint_eq(digests[0], digests[1]);
}
END_TEST

/* The harness notices one flipped bit: of the snapshot that is resumed, of a KV page of the hit. */
START_TEST(canary__the_rig_sees_one_flipped_bit)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    struct rig rig;
    struct req req;
    int32_t tokens[64], id = 0;
    uint32_t count = 0;
    rig_fill(tokens, 64, 1);
    rig_init(&rig, &options);
    (void)rig_serve(&rig, tokens, 48, 48, SC_RELEASE_KEEP);
    rig_ok(req_try(&rig, &req, tokens, 64));
    ck_assert_uint_eq(rig_info(&rig, req.lease).resume_len, 48);
    ck_assert_ptr_null(rig_lease_fault(&rig, &req));
    for (uint32_t p = 0; p < rig.part_count; p++) {
        uint64_t *words = rig_words(&rig, p, rig_info(&rig, req.lease).source_slot);
        words[1] ^= 1u << 9;
        ck_assert_ptr_nonnull(rig_lease_fault(&rig, &req));
        words[1] ^= 1u << 9;
    }
    (void)sc_lease_kv_ids(rig.cache, req.lease, 47, &id, 1, &count);
    rig.kv[id] ^= 1;
    ck_assert_str_eq(rig_lease_fault(&rig, &req), "KV of another history");
    rig.kv[id] ^= 1;
    ck_assert_ptr_null(rig_lease_fault(&rig, &req));
    req_close(&rig, &req, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

static Suite *random_suite(void)
{
    Suite *suite = suite_create("engine_random");
    TCase *tc = tcase_create("random");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, random__states_and_kv_are_never_mixed_up, 0, 16);
    tcase_add_loop_test(tc, random__steps_in_flight, 0, 16);
    tcase_add_loop_test(tc, random__tails, 0, 12);
    tcase_add_loop_test(tc, random__forks, 0, 12);
    tcase_add_loop_test(tc, random__exhaustion, 0, 8);
    tcase_add_test(tc, random__pure_recurrent_models_have_no_kv);
    tcase_add_loop_test(tc, contract_18__same_calls_same_decisions, 0, 2);
    tcase_add_test(tc, canary__the_rig_sees_one_flipped_bit);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return rig_main(random_suite());
}
