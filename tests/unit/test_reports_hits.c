/* SPDX-License-Identifier: Apache-2.0 */
/* Field reports that belong to the engine, classes A and B: what a hit resumes, and for which token
 * a state was saved. The rig's states are stamps of tokens and history, looked at in every step.
 * docs/field-reports.md is the table; report_N is entry N there. */
#include "test_engine_rig.h"

enum { TOKENS = 60000 };
static struct rig rig;
static struct req a, b;
static int32_t tokens[TOKENS];

static void start_with(struct rig_options *options)
{
    rig_fill(tokens, TOKENS, 1);
    rig_init(&rig, options);
}

static void start(uint32_t page, uint32_t save_flags)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = page;
    options.cache.save_flags = save_flags;
    start_with(&options);
}

static uint32_t state_len(uint32_t count)
{
    return rig_lookup(&rig, tokens, count).state_len[SC_TIER_DEVICE];
}

static void junk(int32_t slot)
{
    for (uint32_t p = 0; p < rig.part_count; p++) {
        memset(rig_words(&rig, p, slot), 0x7f, rig.parts[p].bytes);
    }
}

/* While nobody has a slot. */
static void junk_all(void)
{
    sc_pool_info info;
    rig_ok(sc_pool_info_get(rig.pool, &info));
    ck_assert_uint_eq(info.free_count, info.slot_count);
    for (uint32_t slot = 1; slot <= info.slot_count; slot++) junk((int32_t)slot);
}

/* The bytes of all parts of a slot. */
enum { STATE_BYTES = 1024 };
static size_t state_bytes(int32_t slot, uint8_t out[STATE_BYTES])
{
    size_t at = 0;
    for (uint32_t p = 0; p < rig.part_count; p++) {
        ck_assert_uint_le(at + rig.parts[p].bytes, STATE_BYTES);
        memcpy(out + at, rig_words(&rig, p, slot), rig.parts[p].bytes);
        at += rig.parts[p].bytes;
    }
    return at;
}

/* Acquires with a limit; what came out is checked like any hit. */
static uint32_t open_max(struct req *req, uint32_t count, uint32_t len_max)
{
    sc_request request = {.key = rig_key(&rig, tokens, count)};
    request.key.len_max = len_max;
    rig_ok(req_ask(&rig, req, &request));
    rig_check_lease(&rig, req);
    return rig_info(&rig, req->lease).resume_len;
}

/* A request computed in one row, with saves at these points. */
static void serve_points(uint32_t count, const uint32_t *points, uint32_t point_count)
{
    rig_ok(req_try(&rig, &a, tokens, count));
    struct rig_step step = {.rows = {{&a, count, points, point_count}}, .count = 1};
    rig_run(&rig, &step);
    ck_assert_uint_eq(rig_info(&rig, a.lease).len, count);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
}

/* A row that must be refused; nothing stays in flight. */
static void refused(const struct req *req, uint32_t from, uint32_t to, const uint32_t *points,
    uint32_t point_count, sc_status want)
{
    sc_row row = {.lease = req->lease, .from = from, .to = to, .points = points,
        .point_count = point_count};
    sc_batch batch;
    sc_status each = SC_OK;
    rig_ok(sc_step_plan(rig.cache, ++rig.step, &row, 1, 0, &batch, &each));
    ck_assert_int_eq(each, want);
    ck_assert_int_eq(rig_word(&batch, batch.at_dest, 0), -1);
    rig_ok(sc_step_abort(rig.cache, rig.step, false));
}

/* ---- A: how long, and in which unit ---- */

/* Two groups of layers with chunks of their own, small pages of KV, states far apart. */
START_TEST(report_03__states_far_apart_beside_small_pages)
{
    static const uint32_t points[] = {7168, 2 * 7168, 8 * 7168};
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = 64;
    options.second_group = true;
    options.cache.save_flags = 0;
    start_with(&options);
    serve_points(8 * 7168, points, 3);
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(req_open(&rig, &a, tokens, points[i] + 1), points[i]);
        ck_assert_uint_eq(rig_info(&rig, a.lease).kv_page_count, points[i] / 64);
        req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
        ck_assert_uint_eq(state_len(points[i]), i ? points[i - 1] : 0); /* one token short */
    }
    sc_pool_info info;
    rig_ok(sc_pool_info_get(rig.pool, &info));
    sc_slot beyond = {info.slot_count + 1, 1};
    ck_assert_int_eq(sc_pool_check(rig.pool, beyond, NULL), SC_ERR_STALE);
    rig_deinit(&rig);
}
END_TEST

START_TEST(report_05__look_ahead_takes_the_snapshot_before)
{
    static const uint32_t points[] = {48, 64};
    start(16, 0);
    serve_points(64, points, 2);
    sc_answer answer = rig_lookup(&rig, tokens, 64); /* one token is left to compute */
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 48);
    ck_assert_uint_eq(answer.kv_len, 48);
    ck_assert_uint_eq(open_max(&a, 80, 64 - 16), 48);
    ck_assert_uint_eq(rig_info(&rig, a.lease).kv_page_count, 3);
    req_run(&rig, &a, 80);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(report_06__kv_without_a_state_is_no_hit)
{
    start(16, 0);
    junk_all();
    (void)rig_serve(&rig, tokens, 1024, 1024, SC_RELEASE_KEEP);
    sc_answer answer = rig_lookup(&rig, tokens, 1100);
    ck_assert_uint_eq(answer.kv_len, 1024);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 0);
    ck_assert_int_eq(answer.reason, SC_REASON_NO_STATE);
    junk_all();
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 1100), 0);
    sc_lease_info info = rig_info(&rig, a.lease);
    ck_assert_int_eq(info.source_slot, 0);
    ck_assert_uint_eq(info.resume_slot, 0);
    ck_assert_uint_eq(info.kv_page_count, 0); /* both halves begin at 0 */
    req_run(&rig, &a, 1100);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* On one tier: the state part of an entry goes, the other part stays. */
START_TEST(report_07__a_hit_is_as_long_as_all_of_its_parts)
{
    static const uint32_t points[] = {512, 1024};
    sc_room got;
    start(16, 0);
    serve_points(1024, points, 2);
    ck_assert_uint_eq(open_max(&a, 1025, 512), 512); /* 512 was used last */
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
    sc_answer answer = rig_lookup(&rig, tokens, 1025);
    ck_assert_uint_eq(answer.kv_len, 1024);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 512); /* the last complete one */
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
    answer = rig_lookup(&rig, tokens, 1025);
    ck_assert_uint_eq(answer.kv_len, 1024);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 0);
    ck_assert_int_eq(answer.reason, SC_REASON_EVICTED);
    ck_assert_uint_eq(rig_serve(&rig, tokens, 1025, 1025, SC_RELEASE_DISCARD), 0);
    rig_deinit(&rig);
}
END_TEST

START_TEST(report_08__looking_costs_no_later_hit)
{
    static const uint32_t points[] = {960, 1000};
    start(1, 0);
    serve_points(1000, points, 2);
    uint64_t nodes = rig_stats(&rig).nodes;
    for (int i = 0; i < 1000; i++) {
        sc_key key = rig_key(&rig, tokens, 1000);
        sc_answer answer;
        key.len_max = 999 - (uint32_t)i % 30; /* inside the last edge */
        rig_ok(sc_cache_lookup(rig.cache, &key, 1, &answer));
        ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 960);
    }
    ck_assert_uint_eq(rig_stats(&rig).nodes, nodes);
    ck_assert_uint_eq(state_len(1001), 1000);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 1000), 960); /* a request may split, too */
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    ck_assert_uint_eq(state_len(1001), 1000);
    rig_deinit(&rig);
}
END_TEST

/* As reported: a state at 1000 alone, the same prompt again. It misses once, and says where a state
 * is worth saving. */
START_TEST(report_08__the_same_prompt_again_and_again)
{
    static const uint32_t point = 1000;
    start(1, SC_SAVE_BRANCH);
    serve_points(1000, &point, 1);
    sc_answer answer = rig_lookup(&rig, tokens, 1000);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 0);
    ck_assert_uint_eq(answer.branch_len, 992);
    ck_assert_int_eq(answer.reason, SC_REASON_BEYOND);
    ck_assert_uint_eq(rig_serve(&rig, tokens, 1000, 1000, SC_RELEASE_DISCARD), 0);
    ck_assert_uint_eq(rig_serve(&rig, tokens, 1000, 1000, SC_RELEASE_DISCARD), 992);
    ck_assert_uint_eq(state_len(1001), 1000);
    rig_deinit(&rig);
}
END_TEST

/* Prompts of 2,200 tokens: the third that shares a beginning resumes at its end, wherever it is. */
START_TEST(report_09__a_state_where_the_sharers_part)
{
    static const uint32_t shared[] = {1600, 1500};
    static int32_t prompt[2200];
    start(528, SC_SAVE_DEFAULT);
    for (int s = 0; s < 2; s++) {
        uint32_t grid_point = shared[s] / 528 * 528;
        for (int32_t i = 0; i < 64; i++) {
            rig_fill(prompt, 2200, 1000000 * (s + 1));
            rig_fill(prompt + shared[s], 2200 - shared[s], 10000000 + 64 * 3000 * s + i * 3000);
            sc_answer answer = rig_lookup(&rig, prompt, 2200);
            uint32_t resumed = rig_serve(&rig, prompt, 2200, 2200, SC_RELEASE_DISCARD);
            if (i >= 2) ck_assert_uint_eq(resumed, grid_point);
            if (i == 0) ck_assert_int_eq(answer.reason, SC_REASON_NO_PREFIX);
            if (i == 1) ck_assert_int_eq(answer.reason, SC_REASON_NO_STATE);
            if (i >= 1) ck_assert_uint_eq(answer.kv_len, grid_point);
        }
    }
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.resumed, 2 * 62);
    ck_assert_uint_ge(stats.reason_count[SC_REASON_NO_STATE], 2);
    ck_assert_uint_ge(stats.reason_count[SC_REASON_NO_PREFIX], 2);
    rig_deinit(&rig);
}
END_TEST

/* Rows that do and do not cross a page's end, over slots full of junk. */
START_TEST(report_13__chunks_carry_the_state_across_pages)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    enum { PROMPT = 23768 };
    static uint64_t kv[PROMPT];
    options.page = 2176;
    options.cache.keep_cuts = _i != 0; /* 14 rows of 1792; else cut at each page */
    start_with(&options);
    junk_all();
    rig_ok(req_try(&rig, &a, tokens, PROMPT));
    req_run(&rig, &a, 1792);
    if (_i) ck_assert_uint_eq(rig_stats(&rig).steps, 14);
    sc_history history[2];
    uint32_t count = 0;
    rig_ok(sc_lease_history(rig.cache, a.lease, history, 2, &count));
    ck_assert_uint_eq(count, 1);
    uint64_t want = rig_prefill(&rig, tokens, 0, PROMPT, 0, kv, NULL, NULL, 0);
    ck_assert(rig_state_is(&rig, rig_info(&rig, a.lease).source_slot, want));
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(report_15__both_halves_go_back_to_a_snapshot_or_to_nothing)
{
    static const uint32_t points[] = {256, 512};
    start(1, 0);
    serve_points(571, points, _i ? 0 : 2);
    uint32_t want = _i ? 0 : 256;
    ck_assert_uint_eq(open_max(&a, 571, 424), want);
    sc_lease_info info = rig_info(&rig, a.lease);
    ck_assert_uint_eq(info.len, want);
    ck_assert_uint_eq(info.kv_page_count, want);
    refused(&a, 424, 571, NULL, 0, SC_ERR_MISMATCH); /* no state says it is at 424 */
    rig_check_lease(&rig, &a);
    req_run(&rig, &a, 571);
    refused(&a, 424, 500, NULL, 0, SC_ERR_MISMATCH);
    rig_check_lease(&rig, &a);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 600).kv_len, 571);
    ck_assert_uint_eq(state_len(600), _i ? 0 : 512);
    rig_deinit(&rig);
}
END_TEST

START_TEST(report_16__what_cannot_be_cut_is_left_alone)
{
    uint8_t before[STATE_BYTES], after[STATE_BYTES];
    start(4, SC_SAVE_END);
    (void)rig_serve(&rig, tokens, 9676, 9676, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 9801), 9676);
    req_run(&rig, &a, 200);
    int32_t slot = rig_info(&rig, a.lease).working_slot;
    size_t bytes = state_bytes(slot, before);
    refused(&a, 9700, 9750, NULL, 0, SC_ERR_MISMATCH); /* remove [9700, end) */
    ck_assert_int_eq(sc_lease_release(rig.cache, a.lease, 9900, SC_RELEASE_KEEP), SC_ERR_INVALID);
    ck_assert_int_eq(rig_info(&rig, a.lease).state, SC_LEASE_READY);
    ck_assert_uint_eq(rig_info(&rig, a.lease).len, 9801);
    (void)state_bytes(slot, after);
    ck_assert_mem_eq(after, before, bytes);
    rig_check_lease(&rig, &a);
    req_close(&rig, &a, 9700, SC_RELEASE_KEEP); /* no state is at 9700: the one before serves */
    ck_assert_uint_ge(rig_lookup(&rig, tokens, 9801).kv_len, 9700);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 9801), 9676);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(report_17__restoring_twenty_times_gives_the_same)
{
    uint8_t first[STATE_BYTES], again[STATE_BYTES];
    start(1, SC_SAVE_END);
    (void)rig_serve(&rig, tokens, 500, 500, SC_RELEASE_KEEP);
    for (int i = 0; i < 20; i++) {
        ck_assert_uint_eq(req_open(&rig, &a, tokens, 501), 500);
        (void)req_step(&rig, &a, 501);
        req_decode(&rig, &a, tokens + 501, 49);
        int32_t slot = rig_info(&rig, a.lease).working_slot;
        size_t bytes = state_bytes(slot, i ? again : first);
        if (i) ck_assert_mem_eq(again, first, bytes);
        req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
        junk(slot);
    }
    rig_deinit(&rig);
}
END_TEST

START_TEST(report_41__a_second_row_reads_the_state_of_the_first)
{
    start(1, SC_SAVE_DEFAULT);
    rig_ok(req_try(&rig, &a, tokens, 10));
    req_run(&rig, &a, 10);
    req_append(&rig, &a, tokens + 10, 5);
    struct rig_step step = {.rows = {{&a, 15, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    ck_assert_int_gt(rig_word(&step.batch, step.batch.at_source, 0), 0);
    ck_assert_int_eq(rig_word(&step.batch, step.batch.at_position, 0), 10);
    rig_forward(&rig, &step); /* checks what it reads */
    rig_commit(&rig, &step);
    rig_check_lease(&rig, &a);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* ---- B: saved for which token ---- */

/* Rows end at 816, 1632 and 1700; states can be saved at 1648. */
START_TEST(report_04__a_row_end_is_not_the_next_page)
{
    static const uint32_t not_on_the_grid = 1632;
    start(1648, SC_SAVE_DEFAULT);
    rig_ok(req_try(&rig, &a, tokens, 1700));
    ck_assert_uint_eq(req_step(&rig, &a, 816), 816);
    refused(&a, 816, 1640, &not_on_the_grid, 1, SC_ERR_INVALID);
    ck_assert_uint_eq(req_step(&rig, &a, 1632), 1632);
    ck_assert_uint_eq(state_len(1700), 0);
    struct rig_step step = {.rows = {{&a, 1700, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    rig_forward(&rig, &step);
    step.results[0].len = 1648;
    ck_assert_int_eq(sc_step_commit(rig.cache, step.number, step.results, 1, NULL),
        SC_ERR_MISMATCH);
    ck_assert_uint_eq(state_len(1700), 0);
    step.results[0].len = 1700;
    rig_commit(&rig, &step);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(state_len(1700), 1648);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 1700), 1648);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* 40 tokens of prompt and 9 decoded, given up, and computed again as one prompt of 49. */
START_TEST(report_11__a_resumed_request_saves_where_a_fresh_one_does)
{
    static const uint32_t chunks[] = {7, 13, 49};
    start(16, SC_SAVE_DEFAULT);
    rig_ok(req_try(&rig, &a, tokens, 40));
    req_run(&rig, &a, 40);
    req_decode(&rig, &a, tokens + 40, 9);
    req_close(&rig, &a, 0, _i / 3 ? SC_RELEASE_KEEP : SC_RELEASE_DISCARD);
    (void)rig_serve(&rig, tokens, 49, chunks[_i % 3], SC_RELEASE_KEEP);
    for (uint32_t len = 2; len <= 60; len++) {
        uint32_t resumed = req_open(&rig, &a, tokens, len); /* compares with a cold run */
        ck_assert_uint_eq(resumed % 16, 0);
        if (len > 48) ck_assert_uint_ge(resumed, 32);
        req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    }
    rig_deinit(&rig);
}
END_TEST

START_TEST(report_14__a_snapshot_is_never_written)
{
    uint8_t before[STATE_BYTES], after[STATE_BYTES];
    start(1, SC_SAVE_END);
    (void)rig_serve(&rig, tokens, 64, 64, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 65), 64);
    int32_t slot = rig_info(&rig, a.lease).source_slot;
    size_t bytes = state_bytes(slot, before);
    (void)req_step(&rig, &a, 65);
    req_decode(&rig, &a, tokens + 65, 5);
    ck_assert_uint_eq(req_open(&rig, &b, tokens, 65), 64);
    ck_assert_int_eq(rig_info(&rig, b.lease).source_slot, slot);
    (void)state_bytes(slot, after);
    ck_assert_mem_eq(after, before, bytes);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    req_run(&rig, &b, 10);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* Three slots: the snapshot that the request would read, and two requests at work. */
START_TEST(report_50__a_refused_request_remembers_no_source)
{
    struct req c;
    sc_room got;
    struct rig_options options = RIG_OPTIONS_INIT;
    options.slots = 3;
    options.cache.save_flags = SC_SAVE_END;
    start_with(&options);
    (void)rig_serve(&rig, tokens, 32, 32, SC_RELEASE_KEEP);
    rig_ok(req_try(&rig, &a, tokens + 1000, 20));
    rig_ok(req_try(&rig, &b, tokens + 2000, 20));
    ck_assert_uint_eq(state_len(40), 32);
    ck_assert_int_eq(req_try(&rig, &c, tokens, 40), SC_ERR_NO_SLOT);
    ck_assert_uint_eq(rig_room(&rig).slots_evictable, 1); /* it pins nothing */
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
    ck_assert_uint_eq(got.slots_free, 1);
    rig_verify(&rig);
    ck_assert_uint_eq(req_open(&rig, &c, tokens, 40), 0);
    ck_assert_int_eq(rig_info(&rig, c.lease).source_slot, 0);
    req_run(&rig, &c, 40);
    req_close(&rig, &c, 0, SC_RELEASE_KEEP); /* another snapshot, perhaps in the same slot */
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    ck_assert_uint_eq(req_open(&rig, &c, tokens, 60), 40);
    req_run(&rig, &c, 60);
    req_close(&rig, &c, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(report_51__what_a_step_asked_for_is_done_once)
{
    static const uint32_t points[] = {16, 32};
    start(1, 0);
    rig_ok(req_try(&rig, &a, tokens, 60));
    struct rig_step step = {.rows = {{&a, 48, points, 2}}, .count = 1};
    rig_run(&rig, &step);
    ck_assert_uint_eq(step.batch.save_count, 2);
    sc_status each[1];
    ck_assert_int_eq(sc_step_commit(rig.cache, step.number, step.results, step.result_count, each),
        SC_ERR_NOT_FOUND);
    ck_assert_uint_eq(rig_stats(&rig).saves_published, 2);
    struct rig_step next = {.rows = {{&a, 60, NULL, 0}}, .count = 1};
    rig_plan(&rig, &next);
    ck_assert_uint_eq(next.batch.save_count, 0);
    for (uint32_t i = 0; i < next.batch.save_max; i++) {
        ck_assert_int_eq(rig_word(&next.batch, next.batch.at_save_slot, i), -1);
        ck_assert_int_eq(rig_word(&next.batch, next.batch.at_save_row, i), -1);
    }
    rig_forward(&rig, &next);
    rig_commit(&rig, &next);
    ck_assert_uint_eq(rig_stats(&rig).saves_published, 2);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* Random prompts, none of which anybody shares, in a pool that is too small: each gives way to
 * others, once or twice, and comes back to what it has left there. That is no hit. */
START_TEST(report_138__a_request_that_comes_back_is_no_hit)
{
    enum { REQUESTS = 64, ALIVE = 6, LEN = 96 };
    struct rig_options options = RIG_OPTIONS_INIT;
    struct req reqs[REQUESTS];
    uint32_t turns[REQUESTS] = {0}, done = 0, again = 0;
    options.page = 16;
    options.slots = 12;
    options.cache.save_flags = SC_SAVE_END;
    start_with(&options);
    for (uint32_t turn = 0; done < REQUESTS; turn++) {
        uint32_t i = (done + turn * 5 % ALIVE) % REQUESTS;
        if (turns[i] > 2) continue;
        rig.request_flags = turns[i] > 0 ? SC_REQUEST_AGAIN : 0;
        again += turns[i] > 0;
        (void)req_open(&rig, &reqs[i], tokens + i * LEN, LEN);
        uint32_t len = rig_info(&rig, reqs[i].lease).len;
        (void)req_step(&rig, &reqs[i], len + 32 < LEN ? len + 32 : LEN);
        req_close(&rig, &reqs[i], 0, SC_RELEASE_KEEP);
        turns[i]++;
        while (done < REQUESTS && turns[done] > 2) done++;
    }
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.tokens_hit, 0);
    ck_assert_uint_eq(stats.tokens_asked, REQUESTS * LEN);
    ck_assert_uint_eq(stats.again, again);
    ck_assert_uint_eq(stats.tokens_again, again * LEN);
    ck_assert_uint_gt(stats.tokens_again_hit, REQUESTS * 16);
    ck_assert_uint_eq(stats.acquired, REQUESTS + again);
    rig.request_flags = 0;
    rig_deinit(&rig);
}
END_TEST

#define ADD(name) tcase_add_test(tc, name)

int main(void)
{
    Suite *suite = suite_create("reports_hits");
    TCase *tc = tcase_create("reports");
    tcase_set_timeout(tc, 240);
    ADD(report_03__states_far_apart_beside_small_pages);
    ADD(report_04__a_row_end_is_not_the_next_page);
    ADD(report_05__look_ahead_takes_the_snapshot_before);
    ADD(report_06__kv_without_a_state_is_no_hit);
    ADD(report_07__a_hit_is_as_long_as_all_of_its_parts);
    ADD(report_08__looking_costs_no_later_hit);
    ADD(report_08__the_same_prompt_again_and_again);
    ADD(report_09__a_state_where_the_sharers_part);
    tcase_add_loop_test(
        tc, report_11__a_resumed_request_saves_where_a_fresh_one_does, 0, 6);
    tcase_add_loop_test(tc, report_13__chunks_carry_the_state_across_pages, 0, 2);
    ADD(report_14__a_snapshot_is_never_written);
    tcase_add_loop_test(
        tc, report_15__both_halves_go_back_to_a_snapshot_or_to_nothing, 0, 2);
    ADD(report_16__what_cannot_be_cut_is_left_alone);
    ADD(report_17__restoring_twenty_times_gives_the_same);
    ADD(report_41__a_second_row_reads_the_state_of_the_first);
    ADD(report_50__a_refused_request_remembers_no_source);
    ADD(report_51__what_a_step_asked_for_is_done_once);
    ADD(report_138__a_request_that_comes_back_is_no_hit);
    suite_add_tcase(suite, tc);
    return rig_main(suite);
}
