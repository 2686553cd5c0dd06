/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine does, call by call: saves, cuts, histories; stamps are checked in every step
 * (test_engine_rig.h). The contracts of the design are in test_engine_contracts.c, bad input in
 * test_engine_args.c. */
#include "test_engine_start.h"

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

int main(void)
{
    Suite *suite = suite_create("engine");
    add_saves(suite);
    return rig_main(suite);
}
