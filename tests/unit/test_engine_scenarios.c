/* SPDX-License-Identifier: Apache-2.0 */
/* Numbered scenarios of other systems' prefix caches that belong to the engine: what a scheduler
 * sees of tree, slots and KV ids together. Those of the tree alone are in test_radix.c, with a
 * table of all. The outcomes are ours where the design differs; then the comment says how.
 *
 *   T1.1        t1_1__request_and_state_are_given_back_apart
 *   T2.3        t2_3__second_state_of_one_prefix_is_given_back
 *   T2.5        t2_5__duplicates_come_back_what_was_read_does_not
 *   T2.11       t2_11__finished_inside_a_page
 *   T2.12       t2_12__finished_without_keeping
 *   T2.13       t2_13__unfinished_prompt_is_shared_already
 *   T2.14       t2_14__keep_the_prompt_strip_the_answer
 *   T4.1, T4.2  t4_1__hit_reads_in_place (nothing is copied on a hit)
 *   T6.5        t6_5__full_cache_makes_room_for_the_new
 *   T7.18       t7_18__cap_counts_what_a_request_saves
 *   T8.1, T8.2  t8_1__branch_point_is_saved, t8_2__branch_point_beyond_the_state
 *   section 13  t13__everything_pinned_is_an_answer, t13__several_snapshots_of_one_prefill,
 *               t13__match_without_admission
 */
#include "test_engine_rig.h"

static struct rig rig;
static struct req a, b;
static int32_t tokens[512];

static void start(uint32_t page, uint32_t slots, uint32_t extras, uint32_t save_flags)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = page;
    options.slots = slots;
    options.extras = extras;
    options.cache.save_flags = save_flags;
    rig_fill(tokens, 512, 1);
    rig_init(&rig, &options);
}

static uint32_t state_len(uint32_t count)
{
    return rig_lookup(&rig, tokens, count).state_len[SC_TIER_DEVICE];
}

static uint32_t ids_out(void)
{
    rig_drain(&rig);
    return rig.kv_ids - rig.kv_free_count;
}

static void check_free(uint32_t requests, uint32_t slots)
{
    sc_pool_info info;
    rig_ok(sc_pool_info_get(rig.extras, &info));
    ck_assert_uint_eq(info.free_count, requests);
    ck_assert_uint_eq(rig_room(&rig).slots_free, slots);
    rig_verify(&rig);
}

START_TEST(t1_1__request_and_state_are_given_back_apart)
{
    start(1, 20, 10, SC_SAVE_END);
    check_free(10, 20);
    rig_ok(req_try(&rig, &a, tokens, 20));
    check_free(9, 19);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    check_free(10, 20);
    rig_ok(req_try(&rig, &a, tokens, 20));
    req_run(&rig, &a, 20);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP); /* the request goes, its state stays */
    check_free(10, 19);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 21), 20);
    check_free(9, 18); /* it reads the snapshot and writes a slot of its own */
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    check_free(10, 19);
    rig_deinit(&rig);
}
END_TEST

START_TEST(t2_3__second_state_of_one_prefix_is_given_back)
{
    start(1, 8, 0, SC_SAVE_END);
    rig_ok(req_try(&rig, &a, tokens, 20));
    rig_ok(req_try(&rig, &b, tokens, 20));
    req_run(&rig, &a, 20);
    req_run(&rig, &b, 20);
    int32_t first = rig_info(&rig, a.lease).working_slot;
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_room(&rig).slots_evictable, 1);
    ck_assert_uint_eq(rig_room(&rig).slots_free, 7);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 21), 20);
    ck_assert_int_eq(rig_info(&rig, a.lease).source_slot, first);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* One request of T2.5: `count` tokens, resumed at most at `len_max`, cut and saved at 2 and at the
 * end. */
static uint32_t serve_cut_at_2(uint32_t count, uint32_t len_max)
{
    sc_request request = {.key = rig_key(&rig, tokens, count)};
    static const uint32_t at_2 = 2;
    request.key.len_max = len_max;
    rig_ok(req_ask(&rig, &a, &request));
    uint32_t resumed = rig_info(&rig, a.lease).resume_len;
    struct rig_step first = {.rows = {{&a, 2, &at_2, 1}}, .count = 1};
    if (resumed == 0) rig_run(&rig, &first);
    struct rig_step second = {.rows = {{&a, count, &count, 1}}, .count = 1};
    rig_run(&rig, &second);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    return resumed;
}

START_TEST(t2_5__duplicates_come_back_what_was_read_does_not)
{
    start(1, 16, 0, 0);
    ck_assert_uint_eq(serve_cut_at_2(3, 1), 0);
    ck_assert_uint_eq(ids_out(), 3);
    ck_assert_uint_eq(serve_cut_at_2(7, 1), 0); /* handed in 7, 3 were duplicates */
    ck_assert_uint_eq(ids_out(), 7);
    ck_assert_uint_eq(rig_stats(&rig).pages_duplicate, 3);
    ck_assert_uint_eq(serve_cut_at_2(8, 2), 2); /* read 0 and 1, handed in 6: 5 duplicates */
    ck_assert_uint_eq(ids_out(), 8);
    ck_assert_uint_eq(rig_stats(&rig).pages_duplicate, 8);
    ck_assert_uint_eq(serve_cut_at_2(9, 8), 8); /* handed in 1: nothing comes back */
    ck_assert_uint_eq(ids_out(), 9);
    ck_assert_uint_eq(rig_stats(&rig).pages_duplicate, 8);
    ck_assert_uint_eq(rig_room(&rig).pages_cached, 9);
    rig_deinit(&rig);
}
END_TEST

START_TEST(t2_11__finished_inside_a_page)
{
    start(16, 8, 0, SC_SAVE_DEFAULT);
    (void)rig_serve(&rig, tokens, 24, 24, SC_RELEASE_KEEP);
    sc_answer answer = rig_lookup(&rig, tokens, 24);
    ck_assert_uint_eq(answer.kv_len, 16);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 16);
    ck_assert_uint_eq(ids_out(), 1); /* the id of the half page was never handed in */
    ck_assert_uint_eq(rig_room(&rig).pages_cached, 1);
    rig_deinit(&rig);
}
END_TEST

/* What has been published while the request ran stays: others may be reading it. A request that is
 * given up before its prompt's end has published nothing. */
START_TEST(t2_12__finished_without_keeping)
{
    start(_i ? 16 : 1, 8, 0, SC_SAVE_DEFAULT);
    rig_ok(req_try(&rig, &a, tokens, 100));
    (void)req_step(&rig, &a, 64);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 100).kv_len, 0);
    ck_assert_uint_eq(rig_room(&rig).pages_drainable, _i ? 4 : 64);
    ck_assert_uint_eq(ids_out(), 0);
    ck_assert_uint_eq(rig_room(&rig).slots_free, 8);
    rig_deinit(&rig);
}
END_TEST

START_TEST(t2_13__unfinished_prompt_is_shared_already)
{
    start(16, 8, 0, SC_SAVE_DEFAULT);
    rig_ok(req_try(&rig, &a, tokens, 48));
    req_run(&rig, &a, 48);
    sc_answer answer = rig_lookup(&rig, tokens, 60); /* the request is alive */
    ck_assert_uint_eq(answer.kv_len, 48);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 48);
    ck_assert_uint_eq(rig_info(&rig, a.lease).kv_page_count, 3);
    ck_assert_uint_eq(rig_room(&rig).pages_evictable, 0); /* it holds all it reads */
    ck_assert_uint_eq(rig_room(&rig).pages_held, 0);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_room(&rig).pages_evictable, 3);
    rig_deinit(&rig);
}
END_TEST

START_TEST(t2_14__keep_the_prompt_strip_the_answer)
{
    start(16, 8, 0, SC_SAVE_DEFAULT);
    rig_ok(req_try(&rig, &a, tokens, 40));
    req_run(&rig, &a, 40);
    req_decode(&rig, &a, tokens + 40, 7);
    req_close(&rig, &a, 40, SC_RELEASE_KEEP);
    sc_answer answer = rig_lookup(&rig, tokens, 60);
    ck_assert_uint_eq(answer.kv_len, 32);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 32);
    ck_assert_uint_eq(ids_out(), 2);
    rig_ok(req_try(&rig, &a, tokens, 40)); /* an answer that has reached a save: the save goes */
    req_run(&rig, &a, 40);
    req_decode(&rig, &a, tokens + 40, 30);
    ck_assert_uint_eq(state_len(100), 64);
    req_close(&rig, &a, 40, SC_RELEASE_KEEP);
    ck_assert_uint_eq(state_len(100), 32);
    rig_deinit(&rig);
}
END_TEST

START_TEST(t4_1__hit_reads_in_place)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = _i & 1 ? 16 : 1;
    options.layout = _i & 2 ? SC_LAYOUT_CONTIGUOUS : SC_LAYOUT_PAGE_MAJOR;
    rig_fill(tokens, 512, 1);
    rig_init(&rig, &options);
    (void)rig_serve(&rig, tokens, 48, 48, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 60), 48); /* req_open compares all parts */
    sc_lease_info info = rig_info(&rig, a.lease);
    ck_assert_int_ne(info.working_slot, info.source_slot);
    uint64_t stamp = *rig_words(&rig, 0, info.source_slot);
    rig_state_write(&rig, info.working_slot, 12345); /* nothing was put there for it */
    req_run(&rig, &a, 60);
    ck_assert_uint_eq(*rig_words(&rig, 0, info.source_slot), stamp);
    ck_assert_uint_eq(req_open(&rig, &b, tokens, 60), 48);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(t6_5__full_cache_makes_room_for_the_new)
{
    sc_room got;
    start(1, 20, 0, SC_SAVE_END);
    for (uint32_t i = 0; i < 20; i++) (void)rig_serve(&rig, tokens + 10 * i, 1, 1, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_room(&rig).slots_free, 0);
    ck_assert_uint_eq(rig_room(&rig).slots_evictable, 20);
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
    ck_assert_uint_eq(got.slots_free, 1);
    (void)rig_serve(&rig, tokens + 300, 1, 1, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_room(&rig).slots_free, 0);
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_FOR_SLOT], 0); /* none but that one */
    ck_assert_uint_eq(rig_lookup(&rig, tokens + 300, 2).state_len[SC_TIER_DEVICE], 1);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 2).state_len[SC_TIER_DEVICE], 0);
    ck_assert_uint_eq(rig_lookup(&rig, tokens + 10, 2).state_len[SC_TIER_DEVICE], 1);
    (void)rig_serve(&rig, tokens + 310, 1, 1, SC_RELEASE_KEEP); /* and by itself: acquire evicts */
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_FOR_SLOT], 1);
    ck_assert_uint_eq(rig_lookup(&rig, tokens + 10, 2).state_len[SC_TIER_DEVICE], 0);
    rig_deinit(&rig);
}
END_TEST

START_TEST(t7_18__cap_counts_what_a_request_saves)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.cache.path_snapshots_max = 2;
    rig_fill(tokens, 512, 1);
    rig_init(&rig, &options);
    (void)rig_serve(&rig, tokens, 20, 50, SC_RELEASE_KEEP);
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 30), 20); /* pins the first */
    (void)rig_serve(&rig, tokens, 60, 50, SC_RELEASE_KEEP);
    ck_assert_uint_eq(state_len(35), 20);                  /* pinned, so it stays */
    ck_assert_uint_eq(state_len(100), 60);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    (void)rig_serve(&rig, tokens, 80, 50, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_stats(&rig).snapshots_alive, 2);
    ck_assert_uint_eq(state_len(100), 80);
    ck_assert_uint_eq(state_len(35), 0);
    rig_deinit(&rig);
}
END_TEST

START_TEST(t8_1__branch_point_is_saved)
{
    sc_room got;
    start(1, 16, 0, SC_SAVE_DEFAULT);
    (void)rig_serve(&rig, tokens, 17, 50, SC_RELEASE_KEEP);
    (void)rig_serve(&rig, tokens, 27, 50, SC_RELEASE_KEEP);
    (void)rig_serve(&rig, tokens, 37, 50, SC_RELEASE_KEEP);
    rig_ok(sc_cache_evict(rig.cache, 0, 2, &got)); /* the first two become tombstones */
    sc_answer answer = rig_lookup(&rig, tokens, 28);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 0);
    ck_assert_uint_eq(answer.branch_len, 16);
    ck_assert_int_eq(answer.reason, SC_REASON_EVICTED);
    (void)rig_serve(&rig, tokens, 28, 50, SC_RELEASE_KEEP);
    ck_assert_uint_eq(state_len(20), 16);
    /* 37 was computed in three pieces: another history from 17 on, which nobody uses. */
    ck_assert_uint_eq(state_len(100), 28);
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_HISTORY], 1);
    rig_deinit(&rig);
}
END_TEST

START_TEST(t8_2__branch_point_beyond_the_state)
{
    sc_room got;
    start(1, 16, 0, SC_SAVE_DEFAULT);
    (void)rig_serve(&rig, tokens, 20, 50, SC_RELEASE_KEEP);
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 30), 20); /* pins 20, so that 40 goes */
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    sc_answer answer = rig_lookup(&rig, tokens, 60);
    ck_assert_uint_eq(answer.kv_len, 40);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 20);
    ck_assert_uint_eq(answer.branch_len, 32);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 60), 20);
    req_run(&rig, &a, 100);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(state_len(35), 32);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 21).branch_len, 0); /* the state ends the match */
    rig_deinit(&rig);
}
END_TEST

START_TEST(t13__everything_pinned_is_an_answer)
{
    sc_room got;
    start(1, 4, 0, SC_SAVE_DEFAULT);
    struct req all[4];
    for (uint32_t i = 0; i < 4; i++) rig_ok(req_try(&rig, &all[i], tokens + 100 * i, 50));
    ck_assert_int_eq(req_try(&rig, &a, tokens, 20), SC_ERR_NO_SLOT);
    rig_ok(sc_cache_evict(rig.cache, UINT32_MAX, UINT32_MAX, &got));
    ck_assert_uint_eq(got.slots_free, 0);
    uint32_t point = 16;
    struct rig_step step = {.count = 4};
    for (uint32_t i = 0; i < 4; i++) step.rows[i] = (struct rig_row){&all[i], 50, &point, 1};
    rig_run(&rig, &step);
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.saves_skipped[SC_SKIP_NO_SLOT], 8);
    ck_assert_uint_eq(stats.snapshots_alive, 0);
    for (uint32_t i = 0; i < 4; i++) {
        req_decode(&rig, &all[i], tokens + 100 * i + 50, 3);
        req_close(&rig, &all[i], 0, SC_RELEASE_KEEP);
    }
    ck_assert_uint_eq(rig_stats(&rig).snapshots_alive, 4);
    rig_deinit(&rig);
}
END_TEST

START_TEST(t13__several_snapshots_of_one_prefill)
{
    start(16, 16, 0, SC_SAVE_DEFAULT);
    uint32_t points[] = {16, 48, 64, 96, 112};
    rig_ok(req_try(&rig, &a, tokens, 128));
    struct rig_step step = {.rows = {{&a, 128, points, 5}}, .count = 1};
    rig_run(&rig, &step);
    ck_assert_uint_eq(rig_stats(&rig).snapshots_alive, 6);
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(req_open(&rig, &b, tokens, points[i] + 1), points[i]);
        ck_assert_int_eq(rig_info(&rig, b.lease).resume_kind, SC_KIND_POINT);
        req_run(&rig, &b, 10);
        req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    }
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(t13__match_without_admission)
{
    sc_room got;
    start(1, 2, 0, SC_SAVE_END);
    (void)rig_serve(&rig, tokens, 20, 50, SC_RELEASE_KEEP);
    rig_ok(req_try(&rig, &a, tokens + 100, 20)); /* the other slot */
    sc_cache_stats before = rig_stats(&rig);
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(state_len(30), 20);
        ck_assert_int_eq(req_try(&rig, &b, tokens, 30), SC_ERR_NO_SLOT); /* it would pin the last */
    }
    before.refused += 5;
    sc_cache_stats after = rig_stats(&rig);
    ck_assert_mem_eq(&before, &after, sizeof before);
    rig_verify(&rig);
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got)); /* nothing of the attempts holds the snapshot */
    ck_assert_uint_eq(got.slots_free, 1);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

static Suite *scenarios_suite(void)
{
    Suite *suite = suite_create("engine_scenarios");
    TCase *tc = tcase_create("scenarios");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, t1_1__request_and_state_are_given_back_apart);
    tcase_add_test(tc, t2_3__second_state_of_one_prefix_is_given_back);
    tcase_add_test(tc, t2_5__duplicates_come_back_what_was_read_does_not);
    tcase_add_test(tc, t2_11__finished_inside_a_page);
    tcase_add_loop_test(tc, t2_12__finished_without_keeping, 0, 2);
    tcase_add_test(tc, t2_13__unfinished_prompt_is_shared_already);
    tcase_add_test(tc, t2_14__keep_the_prompt_strip_the_answer);
    tcase_add_loop_test(tc, t4_1__hit_reads_in_place, 0, 4);
    tcase_add_test(tc, t6_5__full_cache_makes_room_for_the_new);
    tcase_add_test(tc, t7_18__cap_counts_what_a_request_saves);
    tcase_add_test(tc, t8_1__branch_point_is_saved);
    tcase_add_test(tc, t8_2__branch_point_beyond_the_state);
    tcase_add_test(tc, t13__everything_pinned_is_an_answer);
    tcase_add_test(tc, t13__several_snapshots_of_one_prefill);
    tcase_add_test(tc, t13__match_without_admission);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return rig_main(scenarios_suite());
}
