/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine does, call by call; stamps are checked in every step (test_engine_rig.h). The
 * contracts of the design are in test_engine_contracts.c, bad input in test_engine_args.c. */
#include "test_engine_rig.h"

static struct rig rig;
static struct req a, b;
static int32_t tokens[512];

/* A rig with these pages and otherwise defaults; tokens 1, 2, 3, ... */
static struct rig_options options_of(uint32_t page)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = page;
    rig_fill(tokens, 512, 1);
    return options;
}

static void start(uint32_t page)
{
    struct rig_options options = options_of(page);
    rig_init(&rig, &options);
}

static uint32_t state_len(uint32_t count)
{
    return rig_lookup(&rig, tokens, count).state_len[SC_TIER_DEVICE];
}

/* ---- saving and resuming ---- */

START_TEST(resume__prompt_end_exactly_where_a_page_ends)
{
    start(1);
    ck_assert_uint_eq(rig_serve(&rig, tokens, 41, 41, SC_RELEASE_DISCARD), 0);
    ck_assert_uint_eq(state_len(100), 41);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 100), 41);
    sc_lease_info info = rig_info(&rig, a.lease);
    ck_assert_int_eq(info.resume_kind, SC_KIND_PROMPT_END);
    ck_assert_uint_eq(info.resume_slot, (uint32_t)info.source_slot);
    ck_assert_int_ne(info.source_slot, info.working_slot);
    ck_assert_int_eq(info.reason, SC_REASON_NO_PREFIX);
    req_run(&rig, &a, 30);
    ck_assert_uint_eq(rig_info(&rig, a.lease).resume_slot, 0);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(state_len(101), 100);
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.tokens_asked, 141);
    ck_assert_uint_eq(stats.tokens_hit, 41);
    ck_assert_uint_eq(stats.resumed_by_kind[SC_KIND_PROMPT_END], 1);
    rig_deinit(&rig);
}
END_TEST

START_TEST(resume__prompt_end_on_the_grid_inside_a_page)
{
    start(16);
    rig_ok(req_try(&rig, &a, tokens, 40));
    struct rig_step step = {.rows = {{&a, 40, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    const sc_batch *batch = &step.batch;
    ck_assert_uint_eq(batch->save_count, 1);
    ck_assert_int_eq(rig_word(batch, batch->at_save_row, 0), 0);
    ck_assert_int_eq(rig_word(batch, batch->at_save_position, 0), 32);
    ck_assert_int_gt(rig_word(batch, batch->at_save_slot, 0), 0);
    ck_assert_int_eq(rig_word(batch, batch->at_freeze, 0), 0);
    ck_assert_int_eq(rig_word(batch, batch->at_save_slot, 1), -1);
    rig_forward(&rig, &step);
    ck_assert_uint_eq(state_len(40), 0); /* not before the commit */
    rig_commit(&rig, &step);
    ck_assert_uint_eq(state_len(40), 32);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP); /* the end is inside a page */
    ck_assert_uint_eq(state_len(48), 32);
    rig_deinit(&rig);
}
END_TEST

START_TEST(freeze__working_slot_becomes_the_snapshot)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 41));
    sc_lease_info before = rig_info(&rig, a.lease);
    ck_assert_int_eq(before.source_slot, 0);
    struct rig_step step = {.rows = {{&a, 41, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    ck_assert_int_eq(rig_word(&step.batch, step.batch.at_freeze, 0), 1);
    ck_assert_int_eq(rig_word(&step.batch, step.batch.at_dest, 0), before.working_slot);
    ck_assert_uint_eq(step.batch.save_count, 0);
    rig_forward(&rig, &step);
    rig_commit(&rig, &step);
    sc_lease_info after = rig_info(&rig, a.lease);
    ck_assert_int_eq(after.source_slot, before.working_slot);
    ck_assert_int_ne(after.working_slot, before.working_slot);
    sc_room room = rig_room(&rig);
    ck_assert_uint_eq(room.slots_held, 2); /* the snapshot is pinned until it has been read */
    ck_assert_uint_eq(room.slots_evictable, 0);
    req_decode(&rig, &a, tokens + 41, 1);
    room = rig_room(&rig);
    ck_assert_uint_eq(room.slots_held, 1);
    ck_assert_uint_eq(room.slots_evictable, 1);
    sc_lease_info last = rig_info(&rig, a.lease);
    ck_assert_int_eq(last.source_slot, last.working_slot);
    ck_assert_uint_eq(req_open(&rig, &b, tokens, 80), 41);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(branch__point_is_saved_for_the_next)
{
    start(_i ? 16 : 1);
    int32_t other[80];
    (void)rig_serve(&rig, tokens, 80, 80, SC_RELEASE_DISCARD);
    memcpy(other, tokens, sizeof other);
    rig_fill(other + 52, 28, 5000);
    sc_answer answer = rig_lookup(&rig, other, 80);
    ck_assert_uint_eq(answer.kv_len, _i ? 48 : 52);
    ck_assert_uint_eq(answer.branch_len, 48);
    ck_assert_int_eq(answer.reason, SC_REASON_NO_STATE);
    ck_assert_uint_eq(req_open(&rig, &a, other, 80), 0);
    ck_assert_uint_eq(rig_info(&rig, a.lease).branch_len, 48);
    req_run(&rig, &a, 200);
    ck_assert_uint_eq(rig_info(&rig, a.lease).branch_len, 0);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_fill(other + 52, 28, 6000);
    ck_assert_uint_eq(req_open(&rig, &a, other, 80), 48);
    ck_assert_int_eq(rig_info(&rig, a.lease).resume_kind, SC_KIND_BRANCH);
    req_run(&rig, &a, 7);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_stats(&rig).saves_by_kind[SC_KIND_BRANCH], 1);
    rig_deinit(&rig);
}
END_TEST

START_TEST(save_flags__what_is_off_is_not_saved)
{
    struct rig_options options = options_of(16);
    options.cache.save_flags = 0;
    rig_init(&rig, &options);
    (void)rig_serve(&rig, tokens, 64, 64, SC_RELEASE_KEEP);
    int32_t other[80];
    memcpy(other, tokens, sizeof other);
    rig_fill(other + 40, 40, 5000);
    (void)rig_serve(&rig, other, 80, 80, SC_RELEASE_KEEP);
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.saves_planned, 0);
    ck_assert_uint_eq(stats.snapshots_alive, 0);
    ck_assert_uint_eq(stats.tokens_cached, 64 + 48); /* KV is kept: it shows where prompts branch */
    rig_deinit(&rig);
}
END_TEST

START_TEST(points__are_saved_and_keep_a_row_whole)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 200));
    uint32_t points[] = {16, 48, 50};
    struct rig_step step = {.rows = {{&a, 50, points, 3}}, .count = 1};
    rig_run(&rig, &step);
    ck_assert_uint_eq(rig_info(&rig, a.lease).len, 50);
    ck_assert_uint_eq(state_len(20), 16);
    ck_assert_uint_eq(state_len(49), 48);
    ck_assert_uint_eq(state_len(200), 50);
    ck_assert_uint_eq(rig_stats(&rig).saves_by_kind[SC_KIND_POINT], 3);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(decode__saves_roll_along)
{
    start(16);
    rig_ok(req_try(&rig, &a, tokens, 32));
    req_run(&rig, &a, 100);
    req_decode(&rig, &a, tokens + 32, 40); /* saves at 48 and 64: the first goes again */
    ck_assert_uint_eq(state_len(200), 64);
    ck_assert_uint_eq(state_len(63), 32);
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.saves_by_kind[SC_KIND_DECODE], 2);
    ck_assert_uint_eq(stats.evicted[SC_EVICT_SUPERSEDED], 1);
    ck_assert_uint_eq(req_open(&rig, &b, tokens, 100), 64); /* somebody uses the second */
    ck_assert_int_eq(rig_info(&rig, b.lease).resume_kind, SC_KIND_DECODE);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    req_decode(&rig, &a, tokens + 72, 8);
    ck_assert_uint_eq(state_len(200), 80);
    ck_assert_uint_eq(state_len(79), 64); /* so it stays, also without a pin */
    req_decode(&rig, &a, tokens + 80, 16);
    ck_assert_uint_eq(state_len(95), 64);
    ck_assert_uint_eq(state_len(200), 96);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(decode__interval_is_an_option)
{
    struct rig_options options = options_of(1);
    options.cache.decode_interval = _i ? 10 : 0; /* pages of 1: none by default */
    rig_init(&rig, &options);
    rig_ok(req_try(&rig, &a, tokens, 5));
    req_run(&rig, &a, 100);
    req_decode(&rig, &a, tokens + 5, 30);
    ck_assert_uint_eq(state_len(200), _i ? 30 : 5);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP); /* the end supersedes the last of them */
    ck_assert_uint_eq(state_len(200), 35);
    ck_assert_uint_eq(state_len(34), 5);
    rig_deinit(&rig);
}
END_TEST

START_TEST(append__a_next_message_is_prefilled)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 20));
    req_run(&rig, &a, 100);
    req_decode(&rig, &a, tokens + 20, 3);
    req_append(&rig, &a, tokens + 23, 70);
    ck_assert_uint_eq(req_step(&rig, &a, 60), 48); /* cut back to the grid */
    req_run(&rig, &a, 100);
    sc_history history[8];
    uint32_t count = 0;
    rig_ok(sc_lease_history(rig.cache, a.lease, history, 8, &count));
    ck_assert_uint_eq(count, 3);
    ck_assert_uint_eq(history[0].end, 20);
    ck_assert_int_eq(history[1].form, SC_FORM_KIND_DECODE);
    ck_assert_uint_eq(history[1].end, 23);
    ck_assert_int_eq(history[2].form, SC_FORM_KIND_PREFILL);
    ck_assert_uint_eq(history[2].end, 93);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &b, tokens, 94), 93);
    ck_assert_int_eq(rig_info(&rig, b.lease).resume_kind, SC_KIND_END);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* A row that runs past the prompt's end cannot save off the grid there. */
START_TEST(append__row_across_the_prompt_end_saves_on_the_grid)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 41));
    req_append(&rig, &a, tokens + 41, 20);
    ck_assert_uint_eq(req_step(&rig, &a, 61), 61);
    ck_assert_uint_eq(state_len(61), 32);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* ---- cuts ---- */

START_TEST(cut__rows_inside_a_prompt_end_on_the_grid)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 100));
    ck_assert_uint_eq(req_step(&rig, &a, 10), 10);  /* no grid point in it */
    ck_assert_uint_eq(req_step(&rig, &a, 50), 48);
    ck_assert_uint_eq(req_step(&rig, &a, 100), 100); /* the prompt's end */
    ck_assert_uint_eq(rig_stats(&rig).rows_cut, 1);
    sc_history history[4];
    uint32_t count = 0;
    rig_ok(sc_lease_history(rig.cache, a.lease, history, 4, &count));
    ck_assert_uint_eq(count, 2); /* the cut at 10, not the one at 48 */
    ck_assert_uint_eq(history[0].end, 10);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(cut__to_the_chunk_grid_where_pages_are_larger)
{
    start(48);
    ck_assert_uint_eq(rig.grid, 48);
    rig_ok(req_try(&rig, &a, tokens, 100));
    ck_assert_uint_eq(req_step(&rig, &a, 40), 32);
    ck_assert_uint_eq(req_step(&rig, &a, 99), 96);
    ck_assert_uint_eq(req_step(&rig, &a, 100), 100);
    uint32_t count = 0;
    sc_history history;
    rig_ok(sc_lease_history(rig.cache, a.lease, &history, 1, &count));
    ck_assert_uint_eq(count, 1);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(cut__keep_cuts_leaves_rows_alone)
{
    struct rig_options options = options_of(1);
    options.cache.keep_cuts = true;
    rig_init(&rig, &options);
    rig_ok(req_try(&rig, &a, tokens, 100));
    ck_assert_uint_eq(req_step(&rig, &a, 50), 50);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_stats(&rig).rows_cut, 0);
    rig_deinit(&rig);
}
END_TEST

/* ---- the pool ---- */

START_TEST(pool__is_the_caches_alone)
{
    start(1);
    ck_assert_uint_eq(rig_serve(&rig, tokens, 41, 41, SC_RELEASE_KEEP), 0);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 60), 41);
    sc_slot slot, none = SC_SLOT_NULL;
    sc_lease_info info = rig_info(&rig, a.lease);
    const uint32_t ids[2] = {info.resume_slot, (uint32_t)info.working_slot};
    for (uint32_t i = 0; i < 2; i++) {
        slot.id = ids[i];
        for (slot.generation = 1; sc_pool_check(rig.pool, slot, NULL) != SC_OK;) {
            slot.generation += 2;
        }
        ck_assert_int_eq(sc_pool_free(rig.pool, &slot, 1), SC_ERR_BUSY);
        ck_assert_int_eq(sc_pool_set_owner(rig.pool, slot, SC_OWNER_DRAINING), SC_ERR_BUSY);
    }
    ck_assert_int_eq(sc_pool_alloc(rig.pool, 1, SC_OWNER_WORKING, &none), SC_ERR_BUSY);
    rig_ok(sc_cache_verify(rig.cache));
    req_run(&rig, &a, 30);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* A full pool is the usual case: no error is made up on the way to evicting. */
START_TEST(pool__full_is_no_error_while_snapshots_can_go)
{
    struct rig_options options = options_of(1);
    options.slots = 2;
    rig_init(&rig, &options);
    ck_assert_uint_eq(rig_serve(&rig, tokens, 41, 41, SC_RELEASE_KEEP), 0);
    ck_assert_uint_eq(rig_room(&rig).slots_free, 1);
    ck_assert_uint_eq(req_open(&rig, &a, tokens + 100, 30), 0); /* takes the free one */
    ck_assert_int_eq(sc_cache_verify(NULL), SC_ERR_INVALID);
    char said[sizeof sc_last_error()->text];
    (void)snprintf(said, sizeof said, "%s", sc_last_error()->text);
    ck_assert_uint_eq(req_open(&rig, &b, tokens + 200, 30), 0); /* evicts */
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_FOR_SLOT], 1);
    ck_assert_str_eq(sc_last_error()->text, said);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* ---- histories that differ ---- */

/* The same tokens computed another way while the first way is in use: not a page, not a state of
 * the second goes to the tree. */
START_TEST(conflict__another_history_in_use_is_not_mixed)
{
    struct rig_options options = options_of(1);
    options.cache.keep_cuts = true;
    rig_init(&rig, &options);
    (void)rig_serve(&rig, tokens, 100, 100, SC_RELEASE_KEEP); /* one stretch, state at 100 */
    ck_assert_uint_eq(req_open(&rig, &b, tokens, 150), 100);  /* in use */
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 90), 0);
    (void)req_step(&rig, &a, 50);                             /* a cut at 50 */
    (void)req_step(&rig, &a, 90);                             /* would save at 80 and 90 */
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.saves_skipped[SC_SKIP_HISTORY], 2);
    ck_assert_uint_eq(stats.tokens_cached, 100);
    ck_assert_uint_eq(stats.pages_duplicate, 50); /* up to the cut both are the same */
    ck_assert_uint_eq(rig_room(&rig).pages_held, 90);
    ck_assert_uint_eq(state_len(200), 100);
    ck_assert_uint_eq(state_len(95), 0);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(state_len(95), 0);
    ck_assert_uint_eq(rig_room(&rig).pages_drainable, 90);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    /* Nobody uses it any more: what was just computed takes its place. */
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 90), 0);
    (void)req_step(&rig, &a, 50);
    (void)req_step(&rig, &a, 90);
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_HISTORY], 1);
    ck_assert_uint_eq(state_len(200), 90);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* A first row that ends inside a chunk makes a history that no cold run has. It must not keep out
 * the states of those that share its prefix. */
START_TEST(conflict__a_short_first_row_does_not_block_its_prefix)
{
    start(4);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 128), 0);
    ck_assert_uint_eq(req_step(&rig, &a, 10), 10);
    req_run(&rig, &a, 128);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    for (int32_t k = 1; k < 8; k++) {
        rig_fill(tokens + 120, 20, k * 1000); /* 120 tokens are shared: a state at 112 serves all */
        uint32_t resumed = rig_serve(&rig, tokens, 140, 140, SC_RELEASE_KEEP);
        ck_assert_uint_eq(resumed, k == 1 ? 0 : 112);
    }
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.saves_skipped[SC_SKIP_HISTORY], 0);
    ck_assert_uint_eq(stats.evicted[SC_EVICT_HISTORY], 1);
    rig_deinit(&rig);
}
END_TEST

/* The same after a conversation of which only the last state is left: its path was decoded. */
START_TEST(conflict__a_decoded_conversation_does_not_block_its_prefix)
{
    start(4);
    sc_room got;
    rig_ok(req_try(&rig, &a, tokens, 20));
    req_run(&rig, &a, 100);
    req_decode(&rig, &a, tokens + 20, 28);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_serve(&rig, tokens, 80, 80, SC_RELEASE_KEEP), 48);
    uint32_t alive = (uint32_t)rig_stats(&rig).snapshots_alive;
    rig_ok(sc_cache_evict(rig.cache, 0, alive - 1, &got));
    ck_assert_uint_eq(state_len(100), 80);
    for (int32_t k = 1; k < 8; k++) {
        rig_fill(tokens + 75, 25, k * 1000);
        uint32_t resumed = rig_serve(&rig, tokens, 100, 100, SC_RELEASE_KEEP);
        ck_assert_uint_eq(resumed, k == 1 ? 0 : 64);
    }
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.saves_skipped[SC_SKIP_HISTORY], 0);
    ck_assert_uint_eq(stats.evicted[SC_EVICT_HISTORY], 1);
    rig_deinit(&rig);
}
END_TEST

/* The first way holds no state any more: the second replaces it. */
START_TEST(conflict__a_history_that_serves_nobody_is_replaced)
{
    struct rig_options options = options_of(1);
    options.cache.keep_cuts = true;
    rig_init(&rig, &options);
    sc_room got;
    (void)rig_serve(&rig, tokens, 100, 100, SC_RELEASE_KEEP);
    rig_ok(sc_cache_evict(rig.cache, 0, UINT32_MAX, &got));
    ck_assert_uint_eq(got.slots_free, 1);
    sc_answer answer = rig_lookup(&rig, tokens, 90);
    ck_assert_uint_eq(answer.kv_len, 89);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 90), 0);
    (void)req_step(&rig, &a, 50);
    (void)req_step(&rig, &a, 90);
    ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_HISTORY], 0);
    ck_assert_uint_eq(rig_room(&rig).pages_drainable, 50); /* of the first: pages 50 .. 99 */
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 95), 90);
    req_run(&rig, &a, 100);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* Decoded text that comes back as a prompt is another history than its prefill. */
START_TEST(conflict__decoded_text_is_resumed_or_kept_apart)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 32));
    req_run(&rig, &a, 100);
    req_decode(&rig, &a, tokens + 32, 10);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP); /* states at 32 and 42 */
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 60), 42);
    /* 41 at most: computes 32 .. 41 by prefill */
    sc_request request = {.key = rig_key(&rig, tokens, 42)};
    request.key.len_max = 41; /* said so: what is there is computed and offered again */
    rig_ok(req_ask(&rig, &b, &request));
    ck_assert_uint_eq(rig_info(&rig, b.lease).resume_len, 32);
    req_run(&rig, &a, 100);
    req_run(&rig, &b, 100);
    ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_HISTORY], 1);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(history__cap_is_short)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 20));
    req_run(&rig, &a, 100);
    req_decode(&rig, &a, tokens + 20, 2);
    sc_history history[2];
    uint32_t count = 0;
    ck_assert_int_eq(sc_lease_history(rig.cache, a.lease, history, 1, &count), SC_ERR_LIMIT);
    ck_assert_uint_eq(count, 2);
    rig_ok(sc_lease_history(rig.cache, a.lease, history, 2, &count));
    ck_assert_uint_eq(history[1].end, 22);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

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
    ck_assert_uint_eq(batch.block_words, 6 + 7 * 5 + 3 * 3 + 3 + 5 * 5);
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

/* ---- limits ---- */

START_TEST(limit__saves_of_a_step)
{
    struct rig_options options = options_of(1);
    options.cache.save_max = 2;
    rig_init(&rig, &options);
    uint32_t points[] = {16, 32, 48, 64};
    rig_ok(req_try(&rig, &a, tokens, 100));
    struct rig_step step = {.rows = {{&a, 100, points, 4}}, .count = 1};
    rig_run(&rig, &step);
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.saves_skipped[SC_SKIP_LIMIT], 2);
    ck_assert_uint_eq(stats.saves_published, 3); /* 16, 32 and the end, which needs no save slot */
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(limit__tokens_of_the_index)
{
    struct rig_options options = options_of(1);
    options.cache.token_max = 100;
    rig_init(&rig, &options);
    (void)rig_serve(&rig, tokens, 60, 100, SC_RELEASE_KEEP);
    (void)rig_serve(&rig, tokens + 100, 90, 100, SC_RELEASE_KEEP); /* the older one makes room */
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_le(stats.tokens_cached, 100);
    ck_assert_uint_eq(rig_lookup(&rig, tokens + 100, 91).state_len[SC_TIER_DEVICE], 90);
    ck_assert_uint_eq(state_len(61), 0);
    (void)rig_serve(&rig, tokens + 300, 120, 200, SC_RELEASE_KEEP); /* can never fit: skipped */
    ck_assert_uint_eq(rig_lookup(&rig, tokens + 300, 120).kv_len, 0);
    ck_assert_uint_eq(rig_lookup(&rig, tokens + 100, 91).state_len[SC_TIER_DEVICE], 90);
    ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_LIMIT], 2); /* its end, twice */
    rig_deinit(&rig);
}
END_TEST

START_TEST(limit__snapshots_of_a_path)
{
    struct rig_options options = options_of(1);
    options.cache.path_snapshots_max = 2;
    rig_init(&rig, &options);
    rig_ok(req_try(&rig, &a, tokens, 100));
    uint32_t points[] = {16, 32, 48, 64};
    struct rig_step step = {.rows = {{&a, 64, points, 4}}, .count = 1};
    rig_run(&rig, &step);
    req_run(&rig, &a, 100);
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.snapshots_alive, 2);
    ck_assert_uint_eq(stats.evicted[SC_EVICT_PATH_CAP], 3);
    ck_assert_uint_eq(state_len(200), 100);
    ck_assert_uint_eq(state_len(99), 64);
    ck_assert_uint_eq(state_len(63), 0);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(limit__leases_and_their_tokens)
{
    struct rig_options options = options_of(1);
    options.cache.lease_max = 2;
    options.cache.lease_token_max = 50;
    rig_init(&rig, &options);
    struct req c;
    ck_assert_int_eq(req_try(&rig, &c, tokens, 51), SC_ERR_LIMIT);
    rig_ok(req_try(&rig, &a, tokens, 50));
    rig_ok(req_try(&rig, &b, tokens, 10));
    ck_assert_int_eq(req_try(&rig, &c, tokens, 5), SC_ERR_LIMIT);
    ck_assert_uint_eq(rig_stats(&rig).refused, 2);
    ck_assert_int_eq(sc_lease_append(rig.cache, a.lease, tokens, 1), SC_ERR_LIMIT);
    ck_assert_int_eq(sc_lease_append(rig.cache, b.lease, tokens, UINT32_MAX), SC_ERR_LIMIT);
    req_append(&rig, &b, tokens + 10, 40);
    req_run(&rig, &b, 100);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(limit__extras)
{
    struct rig_options options = options_of(1);
    options.extras = 1;
    rig_init(&rig, &options);
    rig_ok(req_try(&rig, &a, tokens, 20));
    ck_assert_int_gt(rig_info(&rig, a.lease).extra_slot, 0);
    ck_assert_int_eq(req_try(&rig, &b, tokens, 20), SC_ERR_NO_SLOT);
    ck_assert_uint_eq(rig_room(&rig).slots_free, 15);
    ck_assert_uint_eq(rig_stats(&rig).refused, 1);
    rig_verify(&rig);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_ok(req_try(&rig, &b, tokens, 20));
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* ---- eviction, room, statistics ---- */

START_TEST(evict__least_recently_used_goes_first)
{
    start(1);
    sc_room got;
    for (uint32_t i = 0; i < 3; i++)
        (void)rig_serve(&rig, tokens + 100 * i, 20, 50, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 30), 20); /* used: the second is oldest now */
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
    ck_assert_uint_eq(got.slots_free, 1);
    ck_assert_uint_eq(got.pages_drainable, 0);
    sc_answer answer = rig_lookup(&rig, tokens + 100, 30);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 0);
    ck_assert_uint_eq(answer.kv_len, 20);
    ck_assert_int_eq(answer.reason, SC_REASON_EVICTED);
    rig_ok(sc_cache_evict(rig.cache, 25, 0, &got)); /* whole leaves: the second's, the third's */
    ck_assert_uint_eq(got.pages_drainable, 40);
    ck_assert_uint_eq(got.slots_free, 1);
    ck_assert_uint_eq(rig_lookup(&rig, tokens + 100, 30).kv_len, 0);
    ck_assert_uint_eq(state_len(30), 20);
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_ASKED], 1);
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_WITH_KV], 1);
    rig_ok(sc_cache_evict(rig.cache, 0, 0, &got));
    ck_assert_uint_eq(got.slots_free, 0);
    rig_deinit(&rig);
}
END_TEST

START_TEST(trim__returns_memory_of_the_index)
{
    start(1);
    sc_room got;
    uint64_t bytes = 0;
    static int32_t many[3000];
    for (uint32_t i = 0; i < 20; i++) {
        rig_fill(many, 3000, 5000 + 3000 * (int32_t)i);
        (void)rig_serve(&rig, many, 2000, 2100, SC_RELEASE_KEEP);
    }
    ck_assert_uint_eq(req_open(&rig, &a, many, 2001), 2000); /* held: stays where it is */
    int32_t before[2000], after[2000];
    uint32_t count = 0;
    rig_ok(sc_lease_kv_ids(rig.cache, a.lease, 0, before, 2000, &count));
    rig_ok(sc_cache_evict(rig.cache, UINT32_MAX, 0, &got));
    rig_ok(sc_cache_trim(rig.cache, UINT64_MAX, &bytes));
    ck_assert_uint_gt(bytes, 0);
    rig_ok(sc_cache_trim(rig.cache, UINT64_MAX, &bytes));
    ck_assert_uint_eq(bytes, 0);
    rig_ok(sc_lease_kv_ids(rig.cache, a.lease, 0, after, 2000, &count));
    ck_assert_int_eq(memcmp(before, after, sizeof before), 0);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(evict__pinned_content_stays)
{
    start(1);
    sc_room got;
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 60), 40);
    rig_ok(sc_cache_evict(rig.cache, UINT32_MAX, UINT32_MAX, &got));
    ck_assert_uint_eq(got.slots_free, 0);
    ck_assert_uint_eq(got.pages_drainable, 0);
    sc_room room = rig_room(&rig);
    ck_assert_uint_eq(room.pages_cached, 40);
    ck_assert_uint_eq(room.pages_evictable, 0);
    ck_assert_uint_eq(room.slots_held, 2);
    rig_check_lease(&rig, &a);
    req_run(&rig, &a, 100);
    rig_ok(sc_cache_evict(rig.cache, UINT32_MAX, UINT32_MAX, &got));
    rig_check_lease(&rig, &a); /* all its KV is still there */
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* Kept at a shorter length: KV to there, the newest snapshot at or below; what the lease saved
 * beyond goes, unless somebody used it. */
START_TEST(release__keep_shorter_drops_own_snapshots_beyond)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 40));
    static const uint32_t points[] = {16, 32};
    struct rig_step step = {.rows = {{&a, 40, points, 2}}, .count = 1};
    rig_run(&rig, &step);
    ck_assert_uint_eq(state_len(40), 32);
    if (_i == 1) ck_assert_uint_eq(rig_serve(&rig, tokens, 41, 50, SC_RELEASE_DISCARD), 40);
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_SUPERSEDED], 0);
    req_close(&rig, &a, 20, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_SUPERSEDED], _i ? 1 : 2);
    ck_assert_uint_eq(state_len(40), 16);
    ck_assert_uint_eq(state_len(41), _i ? 40 : 16); /* the other one's hit */
    rig_deinit(&rig);
}
END_TEST

START_TEST(room__slots_add_up_at_every_moment)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 100));
    rig_ok(req_try(&rig, &b, tokens + 200, 100));
    uint32_t points[] = {16, 64};
    struct rig_step step = {.rows = {{&a, 64, points, 2}, {&b, 100, points, 2}}, .count = 2};
    for (uint32_t moment = 0; moment < 6; moment++) {
        if (moment == 1) rig_plan(&rig, &step);
        if (moment == 2) rig_ok(sc_lease_release(rig.cache, b.lease, 0, SC_RELEASE_KEEP));
        if (moment == 3) {
            rig_forward(&rig, &step);
            rig_commit(&rig, &step);
        }
        if (moment == 4) req_run(&rig, &a, 100);
        if (moment == 5) req_close(&rig, &a, 0, SC_RELEASE_KEEP);
        sc_room room = rig_room(&rig);
        ck_assert_uint_eq(room.slots_free + room.slots_evictable + room.slots_held +
            room.slots_draining, 16);
        rig_verify(&rig);
    }
    req_forget(&rig, &b);
    rig_deinit(&rig);
}
END_TEST

START_TEST(stats__an_older_struct_is_filled_as_far_as_it_goes)
{
    start(1);
    (void)rig_serve(&rig, tokens, 20, 50, SC_RELEASE_KEEP);
    struct { sc_cache_stats stats; uint64_t beyond[4]; } large;
    memset(&large, 0xff, sizeof large);
    large.stats.struct_size = offsetof(sc_cache_stats, released);
    rig_ok(sc_cache_stats_get(rig.cache, &large.stats));
    ck_assert_uint_eq(large.stats.acquired, 1);
    ck_assert_uint_eq(large.stats.released, UINT64_MAX);
    large.stats.struct_size = sizeof large;
    rig_ok(sc_cache_stats_get(rig.cache, &large.stats));
    ck_assert_uint_eq(large.stats.released, 1);
    ck_assert_uint_eq(large.beyond[3], 0);
    rig_deinit(&rig);
}
END_TEST

/* ---- namespaces ---- */

static void count_line(void *ctx, const char *line)
{
    uint32_t *lines = ctx;
    ck_assert_ptr_nonnull(line);
    (*lines)++;
}

START_TEST(namespace__open_close_and_open_again)
{
    start(1);
    sc_namespace same, other, third;
    rig_ok(sc_namespace_open(rig.cache, NULL, 0, 0, &same));
    ck_assert_mem_eq(&same, &rig.ns, sizeof same);
    rig_ok(sc_namespace_open(rig.cache, NULL, 3, 0, &other));
    rig_ok(sc_namespace_open(rig.cache, NULL, 3, 1, &third));
    ck_assert_uint_ne(other.id, third.id);
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);
    rig_ok(req_try(&rig, &a, tokens, 50));
    ck_assert_int_eq(sc_namespace_close(rig.cache, rig.ns), SC_ERR_BUSY);
    ck_assert_uint_eq(state_len(50), 40);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_ok(sc_namespace_close(rig.cache, rig.ns));
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_CLOSED], 1);
    ck_assert_uint_eq(rig_room(&rig).pages_drainable, 40);
    ck_assert_uint_eq(rig_room(&rig).slots_free, 16);
    ck_assert_int_eq(sc_namespace_close(rig.cache, rig.ns), SC_ERR_STALE);
    ck_assert_int_eq(req_try(&rig, &a, tokens, 50), SC_ERR_STALE);
    rig_verify(&rig);
    rig_ok(sc_namespace_open(rig.cache, NULL, 0, 0, &rig.ns));
    ck_assert_uint_eq(rig.ns.id, same.id); /* the place is used again, the handle is another */
    ck_assert_uint_ne(rig.ns.generation, same.generation);
    ck_assert_uint_eq(state_len(50), 0);
    rig_deinit(&rig);
}
END_TEST

START_TEST(dump__draws_the_tree)
{
    start(1);
    uint32_t empty = 0, lines = 0;
    rig_ok(sc_cache_dump(rig.cache, rig.ns, count_line, &empty));
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);
    rig_ok(sc_cache_dump(rig.cache, rig.ns, count_line, &lines));
    ck_assert_uint_gt(lines, empty);
    rig_deinit(&rig);
}
END_TEST

START_TEST(cache__holds_its_pools)
{
    struct rig_options options = options_of(1);
    sc_cache *second = NULL;
    options.extras = 2;
    rig_init(&rig, &options);
    sc_cache_options again;
    rig_cache_options(&rig, &options, &again);
    ck_assert_int_eq(sc_cache_create(&again, &second), SC_ERR_BUSY);
    ck_assert_int_eq(sc_pool_destroy(rig.pool), SC_ERR_BUSY);
    ck_assert_int_eq(sc_pool_destroy(rig.extras), SC_ERR_BUSY);
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);
    rig_ok(sc_cache_destroy(rig.cache)); /* with snapshots inside: their slots go back */
    sc_pool_info info;
    rig_ok(sc_pool_info_get(rig.pool, &info));
    ck_assert_uint_eq(info.free_count, 16);
    rig_ok(sc_cache_create(&again, &rig.cache));
    rig_ok(sc_namespace_open(rig.cache, NULL, 0, 0, &rig.ns));
    for (uint32_t i = 0; i < rig.kv_ids; i++) { /* what the tree held is the engine's again */
        if (rig.kv_where[i] == 0) continue;
        rig.kv_where[i] = 0;
        rig.kv_free[rig.kv_free_count++] = (int32_t)i;
    }
    rig_deinit(&rig);
}
END_TEST

static void add_saves(Suite *suite)
{
    TCase *tc = tcase_create("saves");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, resume__prompt_end_exactly_where_a_page_ends);
    tcase_add_test(tc, resume__prompt_end_on_the_grid_inside_a_page);
    tcase_add_test(tc, freeze__working_slot_becomes_the_snapshot);
    tcase_add_loop_test(tc, branch__point_is_saved_for_the_next, 0, 2);
    tcase_add_test(tc, save_flags__what_is_off_is_not_saved);
    tcase_add_test(tc, points__are_saved_and_keep_a_row_whole);
    tcase_add_test(tc, decode__saves_roll_along);
    tcase_add_loop_test(tc, decode__interval_is_an_option, 0, 2);
    tcase_add_test(tc, append__a_next_message_is_prefilled);
    tcase_add_test(tc, append__row_across_the_prompt_end_saves_on_the_grid);
    tcase_add_test(tc, cut__rows_inside_a_prompt_end_on_the_grid);
    tcase_add_test(tc, cut__to_the_chunk_grid_where_pages_are_larger);
    tcase_add_test(tc, cut__keep_cuts_leaves_rows_alone);
    tcase_add_test(tc, pool__is_the_caches_alone);
    tcase_add_test(tc, pool__full_is_no_error_while_snapshots_can_go);
    tcase_add_test(tc, conflict__another_history_in_use_is_not_mixed);
    tcase_add_test(tc, conflict__a_short_first_row_does_not_block_its_prefix);
    tcase_add_test(tc, conflict__a_decoded_conversation_does_not_block_its_prefix);
    tcase_add_test(tc, conflict__a_history_that_serves_nobody_is_replaced);
    tcase_add_test(tc, conflict__decoded_text_is_resumed_or_kept_apart);
    tcase_add_test(tc, history__cap_is_short);
    suite_add_tcase(suite, tc);
}

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

static void add_cache(Suite *suite)
{
    TCase *tc = tcase_create("cache");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, limit__saves_of_a_step);
    tcase_add_test(tc, limit__tokens_of_the_index);
    tcase_add_test(tc, limit__snapshots_of_a_path);
    tcase_add_test(tc, limit__leases_and_their_tokens);
    tcase_add_test(tc, limit__extras);
    tcase_add_test(tc, evict__least_recently_used_goes_first);
    tcase_add_test(tc, evict__pinned_content_stays);
    tcase_add_test(tc, trim__returns_memory_of_the_index);
    tcase_add_loop_test(tc, release__keep_shorter_drops_own_snapshots_beyond, 0, 2);
    tcase_add_test(tc, room__slots_add_up_at_every_moment);
    tcase_add_test(tc, stats__an_older_struct_is_filled_as_far_as_it_goes);
    tcase_add_test(tc, namespace__open_close_and_open_again);
    tcase_add_test(tc, dump__draws_the_tree);
    tcase_add_test(tc, cache__holds_its_pools);
    suite_add_tcase(suite, tc);
}

int main(void)
{
    Suite *suite = suite_create("engine");
    add_saves(suite);
    add_leases(suite);
    add_cache(suite);
    return rig_main(suite);
}
