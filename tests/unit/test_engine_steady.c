/* SPDX-License-Identifier: Apache-2.0 */
/* What keeps a cache useful in the long run: it always gets on, does not grow without bound, does
 * not evict for what it has, and says why it missed. */
#include "test_engine_rig.h"

START_TEST(tiny_pool__a_lone_request_always_gets_a_slot)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.slots = 1;
    struct rig rig;
    int32_t tokens[40];
    rig_fill(tokens, 40, 1);
    rig_init(&rig, &options);
    struct req req;
    ck_assert_uint_eq(req_open(&rig, &req, tokens, 32), 0);
    req_run(&rig, &req, 64);
    req_close(&rig, &req, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 40).state_len[SC_TIER_DEVICE], 32);
    /* The hit is in the only slot: pinning it would leave none to write. */
    ck_assert_uint_eq(req_open(&rig, &req, tokens, 40), 0);
    ck_assert_int_eq(rig_info(&rig, req.lease).reason, SC_REASON_EVICTED);
    rig_verify(&rig);
    /* With a lease alive, "not now" is the answer: a release will help. */
    struct req other;
    ck_assert_int_eq(req_try(&rig, &other, tokens, 40), SC_ERR_NO_SLOT);
    req_run(&rig, &req, 64);
    req_close(&rig, &req, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(repeat__evicts_nothing_and_says_that_a_state_is_beyond)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.slots = 6;
    struct rig rig;
    int32_t tokens[3][48];
    rig_init(&rig, &options);
    for (int32_t i = 0; i < 3; i++) {
        rig_fill(tokens[i], 48, 1000 * (i + 1));
        (void)rig_serve(&rig, tokens[i], 48, 64, SC_RELEASE_KEEP);
    }
    struct req req;
    ck_assert_int_eq(rig_lookup(&rig, tokens[0], 48).reason, SC_REASON_BEYOND);
    ck_assert_uint_eq(req_open(&rig, &req, tokens[0], 48), 0);
    ck_assert_int_eq(rig_info(&rig, req.lease).reason, SC_REASON_BEYOND);
    uint64_t planned = rig_stats(&rig).saves_planned;
    req_run(&rig, &req, 64);
    /* Only the grid point before the end is new. */
    ck_assert_uint_eq(rig_stats(&rig).saves_planned, planned + 1);
    ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_EXISTS], 0);
    req_close(&rig, &req, 0, SC_RELEASE_DISCARD);
    ck_assert_uint_eq(req_open(&rig, &req, tokens[0], 48), 32);
    req_close(&rig, &req, 0, SC_RELEASE_DISCARD);
    for (int i = 0; i < 3; i++) {
        sc_key key = rig_key(&rig, tokens[i], 48);
        sc_answer answer;
        key.len_max = 48;
        rig_ok(sc_cache_lookup(rig.cache, &key, 1, &answer));
        ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 48);
        ck_assert_int_eq(answer.reason, SC_REASON_NONE);
    }
    rig_deinit(&rig);
}
END_TEST

/* One request of a model without KV, kept at its end. */
static void serve_without_kv(struct rig *rig, const int32_t *tokens, uint32_t count,
    enum sc_release how)
{
    struct req req;
    uint32_t from = req_open(rig, &req, tokens, count);
    sc_row row = {.lease = req.lease, .from = from, .to = count};
    sc_batch batch;
    sc_status each;
    rig_ok(sc_step_plan(rig->cache, ++rig->step, &row, 1, 0, &batch, &each));
    ck_assert_int_eq(each, SC_OK);
    sc_result result = {.lease = req.lease, .len = count};
    rig_ok(sc_step_commit(rig->cache, rig->step, &result, 1, &each));
    req_close(rig, &req, 0, how);
}

START_TEST(without_kv__the_index_holds_what_can_be_resumed_and_no_more)
{
    static const uint32_t pages[] = {1, 16};
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = pages[_i];
    options.slots = 4;
    options.cache.without_kv = true;
    struct rig rig;
    int32_t tokens[100];
    rig_init(&rig, &options);
    for (int32_t i = 0; i < 2000; i++) {
        rig_fill(tokens, 100, 1000 * i);
        serve_without_kv(&rig, tokens, 100, i % 3 ? SC_RELEASE_KEEP : SC_RELEASE_DISCARD);
        sc_cache_stats stats = rig_stats(&rig);
        ck_assert_uint_le(stats.nodes, 2 * 4 + 1);
        ck_assert_uint_le(stats.tokens_cached, 4 * 100);
        if (i % 100 == 0) rig_verify(&rig);
    }
    ck_assert_uint_gt(rig_stats(&rig).evicted[SC_EVICT_FOR_SLOT], 1000);
    int32_t longer[101];
    memcpy(longer, tokens, sizeof tokens);
    longer[100] = 1;
    /* the last one was kept */
    ck_assert_uint_ge(rig_lookup(&rig, longer, 101).state_len[SC_TIER_DEVICE], 96);
    rig_deinit(&rig);
}
END_TEST

START_TEST(plan__pads_every_row_that_is_not_granted)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.cache.row_max = 3;
    options.cache.draft_max = 4;
    struct rig rig;
    int32_t tokens[2][16];
    struct req req[2];
    rig_init(&rig, &options);
    for (int32_t i = 0; i < 2; i++) {
        rig_fill(tokens[i], 16, 100 * i + 1);
        ck_assert_uint_eq(req_open(&rig, &req[i], tokens[i], 16), 0);
        req_run(&rig, &req[i], 16);
        req_append(&rig, &req[i], tokens[i], 1);
    }
    sc_batch batch;
    sc_status each[2];
    sc_row rows[2] = {{.lease = req[0].lease, .from = 16, .to = 20, .draft_count = 3},
        {.lease = req[1].lease, .from = 16, .to = 20, .draft_count = 3}};
    for (uint32_t count = 2; count > 0; count--) {
        rig_ok(sc_step_plan(rig.cache, ++rig.step, rows, count, 0, &batch, each));
        for (uint32_t i = 0; i < count; i++) ck_assert_int_eq(each[i], SC_OK);
        for (uint32_t i = 0; i < 3 * 4; i++) {
            int32_t want = i / 4 < count && i % 4 < 3 ? (int32_t)(i % 4) : -1;
            ck_assert_int_eq(rig_word(&batch, batch.at_parent, i), want);
        }
        rig_ok(sc_step_abort(rig.cache, rig.step, false));
    }
    for (uint32_t i = 0; i < 2; i++) req_close(&rig, &req[i], 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(plan__counts_rows_that_end_off_the_grid)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    struct rig rig;
    int32_t tokens[48];
    struct req req;
    rig_fill(tokens, 48, 1);
    rig_init(&rig, &options);
    ck_assert_uint_eq(req_open(&rig, &req, tokens, 48), 0);
    ck_assert_uint_eq(req_step(&rig, &req, 20), 16); /* cut back: on the grid */
    ck_assert_uint_eq(rig_stats(&rig).rows_off_grid, 0);
    ck_assert_uint_eq(req_step(&rig, &req, 20), 20); /* nothing to cut back to */
    ck_assert_uint_eq(rig_stats(&rig).rows_off_grid, 1);
    req_run(&rig, &req, 64); /* the prompt's end is no cut */
    ck_assert_uint_eq(rig_stats(&rig).rows_off_grid, 1);
    req_close(&rig, &req, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

static Suite *steady_suite(void)
{
    Suite *suite = suite_create("engine in the long run");
    TCase *tc = tcase_create("steady");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, tiny_pool__a_lone_request_always_gets_a_slot);
    tcase_add_test(tc, repeat__evicts_nothing_and_says_that_a_state_is_beyond);
    tcase_add_loop_test(tc, without_kv__the_index_holds_what_can_be_resumed_and_no_more, 0, 2);
    tcase_add_test(tc, plan__pads_every_row_that_is_not_granted);
    tcase_add_test(tc, plan__counts_rows_that_end_off_the_grid);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return rig_main(steady_suite());
}
