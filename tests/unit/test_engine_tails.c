/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots inside a page: tails. Stamps are checked in every step
 * (test_engine_rig.h). */
#include "test_engine_rig.h"

static struct rig rig;
static struct req a, b;
static int32_t tokens[512];

static void start(uint32_t page, bool tails)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = page;
    options.cache.tails = tails;
    rig_fill(tokens, 512, 1);
    rig_init(&rig, &options);
}

static uint32_t state_len(uint32_t count)
{
    return rig_lookup(&rig, tokens, count).state_len[SC_TIER_DEVICE];
}

START_TEST(tail__the_prompts_end_exactly)
{
    start(16, true);
    (void)rig_serve(&rig, tokens, 41, 41, SC_RELEASE_DISCARD);
    sc_answer answer = rig_lookup(&rig, tokens, 100);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 41);
    ck_assert_uint_eq(answer.kv_len, 32);
    ck_assert_uint_eq(rig_stats(&rig).tails_alive, 1);
    ck_assert_uint_eq(rig_room(&rig).pages_cached, 3);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 100), 41);
    sc_lease_info info = rig_info(&rig, a.lease);
    ck_assert_int_ge(info.tail_kv, 0);
    ck_assert_uint_eq(info.kv_page_count, 2);
    sc_room got;
    rig_ok(sc_cache_evict(rig.cache, 100, 100, &got));
    ck_assert_uint_eq(got.slots_free, 0); /* the lease reads it */
    req_run(&rig, &a, 100);
    ck_assert_int_eq(rig_info(&rig, a.lease).tail_kv, -1);
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
    ck_assert_uint_eq(got.slots_free, 1);
    ck_assert_uint_eq(got.pages_drainable, 1); /* its page goes with it */
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(state_len(200), 100);
    rig_deinit(&rig);
}
END_TEST

START_TEST(tail__not_without_the_id_of_its_page)
{
    start(16, true);
    rig.tails = false; /* the engine does not hand it in */
    (void)rig_serve(&rig, tokens, 41, 41, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_NO_TAIL], 1);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 100).kv_len, 32);
    ck_assert_uint_eq(state_len(100), 0);
    rig_deinit(&rig);
}
END_TEST

START_TEST(tail__the_end_of_a_conversation)
{
    start(16, true);
    (void)rig_serve(&rig, tokens, 32, 32, SC_RELEASE_DISCARD);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 40), 32);
    req_run(&rig, &a, 40);
    for (int32_t i = 0; i < 3; i++) {
        req_append(&rig, &a, &tokens[40 + i], 1);
        (void)req_step(&rig, &a, 41 + (uint32_t)i);
    }
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(state_len(200), 43);
    ck_assert_uint_eq(state_len(43), 40);
    ck_assert_uint_eq(req_open(&rig, &b, tokens, 200), 43);
    req_run(&rig, &b, 200);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* Two made the same: the second one's id comes back, its slot is free. */
START_TEST(tail__a_second_one_is_a_duplicate)
{
    start(16, true);
    (void)rig_serve(&rig, tokens, 41, 41, SC_RELEASE_DISCARD);
    rig_drain(&rig);
    uint32_t inside = rig_kv_inside(&rig);
    sc_request request = {.key = rig_key(&rig, tokens, 41)};
    request.key.len_max = 8;
    rig_ok(req_ask(&rig, &a, &request));
    req_run(&rig, &a, 41);
    ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_EXISTS], 1);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_kv_inside(&rig), inside);
    rig_deinit(&rig);
}
END_TEST

START_TEST(tail__shorter_keep_drops_it)
{
    start(16, true);
    rig_ok(req_try(&rig, &a, tokens, 41));
    req_run(&rig, &a, 41);
    ck_assert_uint_eq(state_len(100), 41);
    req_close(&rig, &a, 40, SC_RELEASE_KEEP);
    ck_assert_uint_eq(state_len(100), 0);
    ck_assert_uint_eq(rig_stats(&rig).tails_alive, 0);
    rig_deinit(&rig);
}
END_TEST

START_TEST(tail__release_bad_args)
{
    start(16, true);
    rig_ok(req_try(&rig, &a, tokens, 48));
    (void)req_step(&rig, &a, 32);
    ck_assert_int_eq(sc_lease_release_tail(rig.cache, a.lease, 0, SC_RELEASE_KEEP, 9),
        SC_ERR_INVALID);
    ck_assert_int_eq(sc_lease_release_tail(rig.cache, a.lease, 16, SC_RELEASE_KEEP, 9),
        SC_ERR_INVALID);
    ck_assert_uint_eq(rig_stats(&rig).pages_in, 2);
    req_run(&rig, &a, 48);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(tail__without_kv_needs_no_id)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = 16;
    options.cache.tails = true;
    options.cache.without_kv = true;
    rig_init(&rig, &options);
    rig_fill(tokens, 512, 1);
    rig_ok(req_try(&rig, &a, tokens, 41));
    sc_row row = {.lease = a.lease, .from = 0, .to = 41};
    sc_batch batch;
    sc_status each;
    rig_ok(sc_step_plan(rig.cache, 1, &row, 1, 0, &batch, &each));
    ck_assert_int_eq(rig_word(&batch, batch.at_freeze, 0), 1);
    sc_result result = {a.lease, 41, NULL, 0};
    rig_ok(sc_step_commit(rig.cache, 1, &result, 1, &each));
    ck_assert_int_eq(sc_lease_release_tail(rig.cache, a.lease, 0, SC_RELEASE_KEEP, 3),
        SC_ERR_INVALID);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(state_len(100), 41);
    rig_deinit(&rig);
}
END_TEST

static Suite *tails_suite(void)
{
    Suite *suite = suite_create("engine_tails");
    TCase *tc = tcase_create("tails");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, tail__the_prompts_end_exactly);
    tcase_add_test(tc, tail__not_without_the_id_of_its_page);
    tcase_add_test(tc, tail__the_end_of_a_conversation);
    tcase_add_test(tc, tail__a_second_one_is_a_duplicate);
    tcase_add_test(tc, tail__shorter_keep_drops_it);
    tcase_add_test(tc, tail__release_bad_args);
    tcase_add_test(tc, tail__without_kv_needs_no_id);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return rig_main(tails_suite());
}
