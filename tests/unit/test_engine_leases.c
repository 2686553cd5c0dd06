/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine does, call by call: KV ids, release, abort, the block of a step. */
#include "test_engine_start.h"

/* ---- KV ids ---- */

START_TEST(kv__duplicates_stay_until_adopted)
{
    start(16);
    rig_ok(req_try(&rig, &a, tokens, 100));
    rig_ok(req_try(&rig, &b, tokens, 100));
    struct rig_step step = {.rows = {{&a, 100, NULL, 0}, {&b, 100, NULL, 0}}, .count = 2};
    rig_run(&rig, &step);
    int32_t ids_a[6], ids_b[6];
    uint32_t count = 0;
    rig_ok(sc_lease_kv_ids(rig.cache, a.lease, 0, ids_a, 6, &count));
    ck_assert_uint_eq(count, 6);
    rig_ok(sc_lease_kv_ids(rig.cache, b.lease, 0, ids_b, 6, &count));
    for (uint32_t i = 0; i < 6; i++) ck_assert_int_ne(ids_a[i], ids_b[i]);
    ck_assert_uint_eq(rig_stats(&rig).pages_duplicate, 6);
    ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_EXISTS], 1);
    ck_assert_uint_eq(rig_room(&rig).pages_held, 6);
    rig_ok(sc_lease_adopt(rig.cache, b.lease, &count));
    ck_assert_uint_eq(count, 6);
    rig_ok(sc_lease_kv_ids(rig.cache, b.lease, 0, ids_b, 6, &count));
    ck_assert_mem_eq(ids_a, ids_b, sizeof ids_a);
    rig_check_lease(&rig, &b);
    ck_assert_uint_eq(rig_room(&rig).pages_held, 0);
    ck_assert_uint_eq(rig_room(&rig).pages_drainable, 6);
    rig_ok(sc_lease_adopt(rig.cache, b.lease, &count));
    ck_assert_uint_eq(count, 0);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_room(&rig).pages_drainable, 6);
    rig_deinit(&rig);
}
END_TEST

START_TEST(kv__spans_of_a_hit_point_into_the_tree)
{
    start(16);
    (void)rig_serve(&rig, tokens, 96, 96, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 96), 0); /* 95 at most: pages of 80 .. 95 miss */
    req_run(&rig, &a, 100);                                /* saves the branch point, 80 */
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 96), 80);
    ck_assert_uint_eq(req_open(&rig, &b, tokens, 200), 96);
    req_run(&rig, &b, 200);
    sc_kv_span spans[8], again[8];
    uint32_t count = 0;
    ck_assert_int_eq(sc_lease_kv_spans(rig.cache, b.lease, 0, spans, 1, &count), SC_ERR_LIMIT);
    ck_assert_uint_ge(count, 2);
    rig_ok(sc_lease_kv_spans(rig.cache, b.lease, 0, spans, 8, &count));
    uint32_t page = 0;
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_eq(spans[i].page_first, page);
        page += spans[i].page_count;
    }
    ck_assert_uint_eq(page, 12);
    uint32_t other = 0;
    rig_ok(sc_lease_kv_spans(rig.cache, a.lease, 2, again, 8, &other));
    ck_assert_uint_eq(again[0].page_first, 2);
    ck_assert_ptr_eq(again[0].ids, spans[0].ids + 2); /* nothing was copied */
    int32_t ids[12];
    rig_ok(sc_lease_kv_ids(rig.cache, b.lease, 4, ids, 12, &other));
    ck_assert_uint_eq(other, 8);
    ck_assert_int_eq(ids[0], spans[0].ids[4]);
    rig_ok(sc_lease_kv_spans(rig.cache, b.lease, 12, spans, 8, &count));
    ck_assert_uint_eq(count, 0);
    rig_ok(sc_lease_kv_spans(rig.cache, b.lease, UINT32_MAX, spans, 8, &count));
    ck_assert_uint_eq(count, 0);
    ck_assert_int_eq(sc_lease_kv_ids(rig.cache, b.lease, 0, ids, 11, &count), SC_ERR_LIMIT);
    ck_assert_uint_eq(count, 12);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* A hit whose path consists of many nodes: more spans than one batch holds. */
START_TEST(kv__spans_of_a_path_of_many_nodes)
{
    start(1);
    int32_t other[200];
    for (uint32_t n = 2; n < 160; n += 2) { /* branches at every second token */
        memcpy(other, tokens, n * sizeof *other);
        rig_fill(other + n, 3, 9000);
        (void)rig_serve(&rig, other, n + 3, 200, SC_RELEASE_DISCARD);
    }
    sc_room got;
    rig_ok(sc_cache_evict(rig.cache, 0, 100, &got));
    (void)rig_serve(&rig, tokens, 160, 200, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 180), 160);
    int32_t ids[160];
    uint32_t count = 0;
    rig_ok(sc_lease_kv_ids(rig.cache, a.lease, 3, ids, 160, &count));
    ck_assert_uint_eq(count, 157);
    req_run(&rig, &a, 200);
    rig_ok(sc_lease_adopt(rig.cache, a.lease, &count));
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(kv__drained_oldest_first)
{
    start(16);
    int32_t ids[8];
    uint32_t count = 0;
    for (uint32_t i = 0; i < 2; i++) {
        rig_ok(req_try(&rig, i ? &b : &a, tokens + 200 * i, 100));
        (void)req_step(&rig, i ? &b : &a, 64); /* not the prompt's end: ids stay with the lease */
    }
    int32_t first[4];
    rig_ok(sc_lease_kv_ids(rig.cache, b.lease, 0, first, 4, &count));
    ck_assert_uint_eq(rig_room(&rig).pages_held, 8);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    ck_assert_uint_eq(rig_room(&rig).pages_drainable, 8);
    rig_ok(sc_cache_drain(rig.cache, ids, 3, &count));
    ck_assert_uint_eq(count, 3);
    ck_assert_mem_eq(ids, first, 3 * sizeof *ids);
    for (uint32_t i = 0; i < 3; i++) {
        rig.kv_where[ids[i]] = 0;
        rig.kv_free[rig.kv_free_count++] = ids[i];
    }
    rig_ok(sc_cache_drain(rig.cache, NULL, 0, &count));
    ck_assert_uint_eq(count, 0);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).pages_out, 8);
    rig_deinit(&rig);
}
END_TEST

/* ---- release ---- */

START_TEST(release__keep_and_discard)
{
    start(1);
    for (uint32_t i = 0; i < 2; i++) {
        rig_ok(req_try(&rig, &a, tokens + 200 * i, 20));
        req_run(&rig, &a, 100);
        req_decode(&rig, &a, tokens + 200 * i + 20, 5);
        req_close(&rig, &a, 0, i ? SC_RELEASE_KEEP : SC_RELEASE_DISCARD);
        sc_answer answer = rig_lookup(&rig, tokens + 200 * i, 100);
        ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], i ? 25 : 20);
        ck_assert_uint_eq(answer.kv_len, i ? 25 : 20);
        ck_assert_uint_eq(rig_room(&rig).pages_drainable, 5);
    }
    rig_deinit(&rig);
}
END_TEST

START_TEST(release__keep_part_of_it)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 20));
    req_run(&rig, &a, 100);
    req_decode(&rig, &a, tokens + 20, 10);
    req_close(&rig, &a, 26, SC_RELEASE_KEEP);
    sc_answer answer = rig_lookup(&rig, tokens, 100);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 20); /* no state exists at 26 */
    ck_assert_uint_eq(answer.kv_len, 26);
    ck_assert_uint_eq(rig_room(&rig).pages_drainable, 4);
    rig_deinit(&rig);
}
END_TEST

START_TEST(release__keep_of_an_untouched_hit_adds_nothing)
{
    start(1);
    (void)rig_serve(&rig, tokens, 50, 50, SC_RELEASE_KEEP);
    sc_cache_stats before = rig_stats(&rig);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 60), 50);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    sc_cache_stats after = rig_stats(&rig);
    ck_assert_uint_eq(after.saves_planned, before.saves_planned);
    ck_assert_uint_eq(after.snapshots_alive, before.snapshots_alive);
    rig_deinit(&rig);
}
END_TEST

START_TEST(release__end_that_exists_is_skipped)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 20));
    rig_ok(req_try(&rig, &b, tokens, 20));
    req_run(&rig, &a, 100);
    req_run(&rig, &b, 100);
    req_decode(&rig, &a, tokens + 20, 5);
    req_decode(&rig, &b, tokens + 20, 5);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.saves_by_kind[SC_KIND_END], 1);
    ck_assert_uint_eq(stats.saves_skipped[SC_SKIP_EXISTS], 2);
    ck_assert_uint_eq(stats.snapshots_alive, 2);
    rig_deinit(&rig);
}
END_TEST

START_TEST(draining__until_the_step_ends)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 30));
    struct rig_step step = {.rows = {{&a, 30, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    rig_forward(&rig, &step);
    rig_ok(sc_lease_release(rig.cache, a.lease, 0, SC_RELEASE_KEEP));
    ck_assert_int_eq(rig_info(&rig, a.lease).state, SC_LEASE_DRAINING);
    sc_room room = rig_room(&rig);
    ck_assert_uint_eq(room.slots_draining, 1);
    ck_assert_uint_eq(room.slots_held, 1); /* taken for the freeze */
    ck_assert_int_eq(sc_lease_release(rig.cache, a.lease, 0, SC_RELEASE_KEEP), SC_ERR_STATE);
    ck_assert_int_eq(sc_lease_append(rig.cache, a.lease, tokens, 1), SC_ERR_STATE);
    uint32_t count = 0;
    ck_assert_int_eq(sc_lease_adopt(rig.cache, a.lease, &count), SC_ERR_STATE);
    ck_assert_int_eq(sc_cache_destroy(rig.cache), SC_ERR_BUSY);
    rig_verify(&rig);
    if (_i == 0) {
        rig_commit(&rig, &step);
        ck_assert_uint_eq(state_len(40), 30);
        ck_assert_uint_eq(rig_stats(&rig).snapshots_alive, 1);
    } else {
        rig_ok(sc_step_abort(rig.cache, step.number, _i == 1));
        rig_aborted(&rig, &step);
        ck_assert_uint_eq(state_len(40), 0);
    }
    sc_lease_info info;
    ck_assert_int_eq(sc_lease_info_get(rig.cache, a.lease, &info), SC_ERR_STALE);
    req_forget(&rig, &a);
    rig_deinit(&rig);
}
END_TEST

START_TEST(draining__keeps_what_the_last_step_gave)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 30));
    req_run(&rig, &a, 100);
    req_append(&rig, &a, tokens + 30, 1);
    struct rig_step step = {.rows = {{&a, 31, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    rig_forward(&rig, &step);
    uint32_t len = _i ? 30 : 0;
    rig_ok(sc_lease_release(rig.cache, a.lease, len, SC_RELEASE_KEEP));
    rig_commit(&rig, &step);
    ck_assert_uint_eq(state_len(40), _i ? 30 : 31);
    req_forget(&rig, &a);
    rig_deinit(&rig);
}
END_TEST

/* ---- abort ---- */

START_TEST(abort__not_launched_is_as_if_never_planned)
{
    start(1);
    (void)rig_serve(&rig, tokens, 20, 20, SC_RELEASE_KEEP);
    rig_ok(req_try(&rig, &a, tokens, 60));
    sc_lease_info before = rig_info(&rig, a.lease);
    struct rig_step step = {.rows = {{&a, 60, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    ck_assert_int_eq(rig_info(&rig, a.lease).state, SC_LEASE_RUNNING);
    rig_ok(sc_step_abort(rig.cache, step.number, false));
    rig_verify(&rig);
    sc_lease_info after = rig_info(&rig, a.lease);
    ck_assert_mem_eq(&before, &after, sizeof before);
    ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_ABORTED], 1);
    rig.step--; /* the same number may be planned again */
    req_run(&rig, &a, 100);
    ck_assert_uint_eq(state_len(100), 60);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(abort__launched_loses_the_leases)
{
    start(16);
    rig_ok(req_try(&rig, &a, tokens, 100));
    (void)req_step(&rig, &a, 32);
    struct rig_step step = {.rows = {{&a, 100, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    ck_assert_uint_eq(step.batch.save_count, 1);
    rig_forward(&rig, &step);
    rig_ok(sc_step_abort(rig.cache, step.number, true));
    rig_aborted(&rig, &step);
    rig_verify(&rig);
    ck_assert_int_eq(rig_info(&rig, a.lease).state, SC_LEASE_LOST);
    sc_row row = {a.lease, 32, 100, NULL, 0, 0, NULL};
    sc_status each;
    sc_batch batch;
    rig_ok(sc_step_plan(rig.cache, ++rig.step, &row, 1, 0, &batch, &each));
    ck_assert_int_eq(each, SC_ERR_LOST);
    rig_ok(sc_step_commit(rig.cache, rig.step, NULL, 0, NULL)); /* a step without rows */
    ck_assert_int_eq(sc_lease_append(rig.cache, a.lease, tokens, 1), SC_ERR_STATE);
    uint32_t count = 0;
    ck_assert_int_eq(sc_lease_adopt(rig.cache, a.lease, &count), SC_ERR_STATE);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP); /* is discarded: nothing of it is kept */
    ck_assert_uint_eq(rig_stats(&rig).tokens_cached, 0);
    ck_assert_uint_eq(rig_room(&rig).pages_drainable, 2);
    ck_assert_uint_eq(rig_room(&rig).slots_free, 16);
    rig_deinit(&rig);
}
END_TEST

/* ---- the block ---- */

START_TEST(batch__refused_rows_and_the_rest_are_padded)
{
    struct rig_options options = options_of(1);
    options.cache.row_max = 5;
    options.cache.save_max = 3;
    options.extras = 4;
    rig_init(&rig, &options);
    rig_ok(req_try(&rig, &a, tokens, 40));
    rig_ok(req_try(&rig, &b, tokens + 100, 7));
    sc_row rows[3] = {
        {a.lease, 0, 40, NULL, 0, 0, NULL}, {{77, 1}, 0, 1, NULL, 0, 0, NULL},
        {b.lease, 0, 7, NULL, 0, 0, NULL}};
    sc_batch batch;
    sc_status each[3];
    rig_ok(sc_step_plan(rig.cache, ++rig.step, rows, 3, 0, &batch, each));
    ck_assert_int_eq(each[0], SC_OK);
    ck_assert_int_eq(each[1], SC_ERR_STALE);
    ck_assert_int_eq(each[2], SC_OK);
    const int32_t starts[6] = {0, 40, 40, 47, 47, 47}, decode[5] = {0, -1, 0, -1, -1};
    const int32_t freeze[5] = {1, 0, 1, 0, 0}, end[5] = {40, 0, 7, 0, 0};
    const int32_t source[5] = {0, -1, 0, -1, -1};
    ck_assert_mem_eq(batch.block + batch.at_query_start_loc, starts, sizeof starts);
    ck_assert_mem_eq(batch.block + batch.at_decode, decode, sizeof decode);
    ck_assert_mem_eq(batch.block + batch.at_freeze, freeze, sizeof freeze);
    ck_assert_mem_eq(batch.block + batch.at_end, end, sizeof end);
    ck_assert_mem_eq(batch.block + batch.at_source, source, sizeof source);
    for (uint32_t i = 0; i < 5; i++) {
        bool row = i == 0 || i == 2;
        ck_assert(row == (rig_word(&batch, batch.at_dest, i) > 0));
        ck_assert(row == (rig_word(&batch, batch.at_extra, i) > 0));
        ck_assert_int_eq(rig_word(&batch, batch.at_position, i), 0);
    }
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(rig_word(&batch, batch.at_save_row, i), -1);
        ck_assert_int_eq(rig_word(&batch, batch.at_save_slot, i), -1);
        ck_assert_int_eq(rig_word(&batch, batch.at_save_position, i), -1);
    }
    ck_assert_int_eq(rig_word(&batch, batch.at_row_count, 0), 3);
    ck_assert_int_eq(rig_word(&batch, batch.at_save_count, 0), 0);
    ck_assert_int_eq(rig_word(&batch, batch.at_token_count, 0), 47);
    ck_assert_uint_eq(batch.token_count, 47);
    ck_assert_uint_eq(batch.block_words, 6 + 9 * 5 + 3 * 3 + 3 + 5 * 5);
    rig_ok(sc_step_abort(rig.cache, rig.step, false));
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(batch__decode_and_prefill_in_one_step)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 20));
    req_run(&rig, &a, 100);
    req_append(&rig, &a, tokens + 20, 1);
    rig_ok(req_try(&rig, &b, tokens + 100, 1)); /* one token, inside the prompt: chunk form */
    struct rig_step step = {.rows = {{&b, 1, NULL, 0}, {&a, 21, NULL, 0}}, .count = 2};
    rig_plan(&rig, &step);
    ck_assert_int_eq(rig_word(&step.batch, step.batch.at_decode, 0), 0);
    ck_assert_int_eq(rig_word(&step.batch, step.batch.at_decode, 1), 1);
    rig_forward(&rig, &step);
    sc_result swapped[2] = {step.results[1], step.results[0]}; /* results in any order */
    rig_ok(sc_step_commit(rig.cache, step.number, swapped, 2, NULL));
    rig_committed(&rig, &step);
    rig_check_lease(&rig, &a);
    rig_check_lease(&rig, &b);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

static void add_leases(Suite *suite)
{
    TCase *tc = tcase_create("leases");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, kv__duplicates_stay_until_adopted);
    tcase_add_test(tc, kv__spans_of_a_hit_point_into_the_tree);
    tcase_add_test(tc, kv__spans_of_a_path_of_many_nodes);
    tcase_add_test(tc, kv__drained_oldest_first);
    tcase_add_test(tc, release__keep_and_discard);
    tcase_add_test(tc, release__keep_part_of_it);
    tcase_add_test(tc, release__keep_of_an_untouched_hit_adds_nothing);
    tcase_add_test(tc, release__end_that_exists_is_skipped);
    tcase_add_loop_test(tc, draining__until_the_step_ends, 0, 3);
    tcase_add_loop_test(tc, draining__keeps_what_the_last_step_gave, 0, 2);
    tcase_add_test(tc, abort__not_launched_is_as_if_never_planned);
    tcase_add_test(tc, abort__launched_loses_the_leases);
    tcase_add_test(tc, batch__refused_rows_and_the_rest_are_padded);
    tcase_add_test(tc, batch__decode_and_prefill_in_one_step);
    suite_add_tcase(suite, tc);
}

int main(void)
{
    Suite *suite = suite_create("engine_leases");
    add_leases(suite);
    return rig_main(suite);
}
