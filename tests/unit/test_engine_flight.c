/* SPDX-License-Identifier: Apache-2.0 */
/* Several steps in flight: tokens that are sampled by the step before, ends in another order,
 * frozen slots, aborts, releases, drafts. Random ones: test_engine_random.c. */
#include "test_engine_rig.h"

static struct rig rig;
static struct req a, b;
static int32_t tokens[512];

static void start(uint32_t page, uint32_t depth, uint32_t drafts)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = page;
    options.cache.depth_max = depth;
    options.cache.draft_max = drafts;
    options.cache.save_flags &= ~(uint32_t)SC_SAVE_DECODE;
    rig_fill(tokens, 512, 1);
    rig_init(&rig, &options);
    rig.depth = depth;
}

/* One row, planned and launched. */
static struct rig_step launch(struct req *req, uint32_t to)
{
    struct rig_step step = {.rows = {{req, to, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    rig_forward(&rig, &step);
    return step;
}

static struct rig_step launch_drafts(struct req *req, uint32_t to, uint32_t drafts, uint32_t accept)
{
    struct rig_step step = {.rows = {{req, to, NULL, 0}}, .count = 1};
    step.drafts[0] = drafts;
    step.accept[0] = accept;
    rig_plan(&rig, &step);
    rig_forward(&rig, &step);
    return step;
}

static sc_status commit_status(struct rig_step *step)
{
    sc_status each[RIG_ROWS];
    rig_verify(&rig);
    sc_room before = rig_room(&rig);
    sc_status status = sc_step_commit(rig.cache, step->number, step->results, step->result_count,
        each);
    if (status != SC_OK) {
        sc_room after = rig_room(&rig);
        ck_assert_mem_eq(&before, &after, sizeof after);
    }
    rig_verify(&rig);
    return status;
}

static uint32_t state_len(const struct req *req)
{
    return rig_lookup(&rig, req->tokens, req->count).state_len[SC_TIER_DEVICE];
}

static uint32_t in_use(void)
{
    sc_pool_info info;
    rig_ok(sc_pool_info_get(rig.pool, &info));
    return info.slot_count - info.free_count;
}

/* ---- decode, one step ahead ---- */

START_TEST(overlap__a_row_may_process_the_token_that_the_one_before_samples)
{
    start(1, 3, 0);
    rig_ok(req_try(&rig, &a, tokens, 20));
    struct rig_step s1 = launch(&a, 20), s2 = launch(&a, 21), s3 = launch(&a, 22);
    sc_lease_info info = rig_info(&rig, a.lease);
    ck_assert_int_eq(info.state, SC_LEASE_RUNNING);
    ck_assert_uint_eq(info.steps_out, 3);
    ck_assert_uint_eq(info.len, 0);
    ck_assert_uint_eq(info.issued_len, 22);
    ck_assert_uint_eq(info.token_count, 20);
    ck_assert_int_eq(rig_word(&s2.batch, s2.batch.at_decode, 0), 1);
    rig_commit(&rig, &s1);
    ck_assert_int_eq(commit_status(&s2), SC_ERR_MISMATCH); /* its token was not appended */
    rig_commit(&rig, &s2);                                 /* appends it */
    rig_commit(&rig, &s3);
    rig_check_lease(&rig, &a);
    ck_assert_uint_eq(rig_info(&rig, a.lease).len, 22);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(overlap__only_one_token_and_only_in_flight)
{
    start(1, 2, 0);
    rig_ok(req_try(&rig, &a, tokens, 20));
    sc_batch batch;
    sc_status each;
    sc_row row = {.lease = a.lease, .from = 0, .to = 21};
    rig_ok(sc_step_plan(rig.cache, ++rig.step, &row, 1, 0, &batch, &each));
    ck_assert_int_eq(each, SC_ERR_INVALID);
    rig_ok(sc_step_commit(rig.cache, rig.step, NULL, 0, NULL));
    struct rig_step s1 = launch(&a, 16);
    const struct { uint32_t from, to; sc_status want; } bad[] = {
        {16, 21, SC_ERR_INVALID}, {0, 20, SC_ERR_MISMATCH}, {15, 20, SC_ERR_MISMATCH},
        {17, 20, SC_ERR_MISMATCH}, {16, 16, SC_ERR_INVALID}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        row = (sc_row){.lease = a.lease, .from = bad[i].from, .to = bad[i].to};
        rig_ok(sc_step_plan(rig.cache, ++rig.step, &row, 1, 0, &batch, &each));
        ck_assert_int_eq(each, bad[i].want);
        rig_ok(sc_step_commit(rig.cache, rig.step, NULL, 0, NULL));
    }
    struct rig_step s2 = launch(&a, 20);
    row = (sc_row){.lease = a.lease, .from = 20, .to = 21};
    ck_assert_int_eq(sc_step_plan(rig.cache, ++rig.step, &row, 1, 0, &batch, &each), SC_ERR_BUSY);
    rig.step--;
    rig_commit(&rig, &s1);
    row.to = 22;
    rig_ok(sc_step_plan(rig.cache, ++rig.step, &row, 1, 0, &batch, &each));
    ck_assert_int_eq(each, SC_ERR_INVALID);
    rig_ok(sc_step_commit(rig.cache, rig.step, NULL, 0, NULL));
    rig_commit(&rig, &s2);
    rig_check_lease(&rig, &a);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(depth__is_the_leases_own)
{
    start(1, 2, 0);
    sc_request request = {.key = rig_key(&rig, tokens, 20), .depth = 3};
    ck_assert_int_eq(req_ask(&rig, &a, &request), SC_ERR_UNSUPPORTED);
    request.depth = 1;
    rig_ok(req_ask(&rig, &a, &request));
    struct rig_step s1 = launch(&a, 16);
    sc_batch batch;
    sc_status each;
    sc_row row = {.lease = a.lease, .from = 16, .to = 20};
    rig_ok(sc_step_plan(rig.cache, ++rig.step, &row, 1, 0, &batch, &each));
    ck_assert_int_eq(each, SC_ERR_STATE);
    rig_ok(sc_step_commit(rig.cache, rig.step, NULL, 0, NULL));
    rig_commit(&rig, &s1);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* ---- ends in another order ---- */

START_TEST(order__steps_of_different_leases_end_in_any)
{
    start(1, 2, 0);
    rig_ok(req_try(&rig, &a, tokens, 20));
    rig_ok(req_try(&rig, &b, tokens + 100, 20));
    struct rig_step s1 = launch(&a, 20), s2 = launch(&b, 20);
    rig_commit(&rig, &s2);
    rig_verify(&rig);
    rig_check_lease(&rig, &b);
    ck_assert_int_eq(rig_info(&rig, a.lease).state, SC_LEASE_RUNNING);
    ck_assert_int_eq(sc_step_commit(rig.cache, s2.number, NULL, 0, NULL), SC_ERR_NOT_FOUND);
    rig_commit(&rig, &s1);
    rig_check_lease(&rig, &a);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(order__steps_of_one_lease_end_in_theirs)
{
    start(1, 2, 0);
    rig_ok(req_try(&rig, &a, tokens, 40));
    rig_ok(req_try(&rig, &b, tokens + 100, 40));
    struct rig_step s1 = launch(&a, 16);
    struct rig_step s2 = {.rows = {{&b, 40, NULL, 0}, {&a, 40, NULL, 0}}, .count = 2};
    rig_plan(&rig, &s2);
    rig_forward(&rig, &s2);
    ck_assert_int_eq(commit_status(&s2), SC_ERR_STATE);
    ck_assert_uint_eq(rig_info(&rig, b.lease).len, 0); /* all or nothing */
    rig_commit(&rig, &s1);
    rig_commit(&rig, &s2);
    rig_check_lease(&rig, &a);
    rig_check_lease(&rig, &b);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* ---- frozen slots ---- */

START_TEST(freeze__the_step_behind_reads_what_becomes_a_snapshot)
{
    start(1, 2, 0);
    rig_ok(req_try(&rig, &a, tokens, 20));
    struct rig_step s1 = launch(&a, 20); /* freezes at the prompt's end */
    ck_assert_int_eq(rig_word(&s1.batch, s1.batch.at_freeze, 0), 1);
    struct rig_step s2 = launch(&a, 21);
    ck_assert_int_eq(rig_word(&s2.batch, s2.batch.at_source, 0),
        rig_word(&s1.batch, s1.batch.at_dest, 0));
    ck_assert_int_ne(rig_word(&s2.batch, s2.batch.at_dest, 0),
        rig_word(&s1.batch, s1.batch.at_dest, 0));
    rig_commit(&rig, &s1);
    ck_assert_uint_eq(state_len(&a), 20);
    sc_room got;
    rig_ok(sc_cache_evict(rig.cache, 0, 100, &got));
    ck_assert_uint_eq(got.slots_free, 0); /* step 2 reads it */
    rig_commit(&rig, &s2);
    rig_check_lease(&rig, &a);
    rig_ok(sc_cache_evict(rig.cache, 0, 100, &got));
    ck_assert_uint_eq(got.slots_free, 1);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* The save is refused while the step behind is out: the slot stays until that has ended. 0: it is
 * committed, 1: taken back, 2: lost, 3: the lease is released before. */
START_TEST(freeze__refused_its_slot_stays_for_the_step_behind)
{
    start(1, 2, 0);
    (void)rig_serve(&rig, tokens, 20, 20, SC_RELEASE_DISCARD);
    sc_request request = {.key = rig_key(&rig, tokens, 20), .depth = 2};
    request.key.len_max = 8; /* does not resume: computes the same again */
    rig_ok(req_ask(&rig, &a, &request));
    struct rig_step s1 = launch(&a, 20);
    struct rig_step s2 = {.rows = {{&a, 21, NULL, 0}}, .count = 1};
    rig_plan(&rig, &s2);
    if (_i != 1) rig_forward(&rig, &s2);
    ck_assert_uint_eq(in_use(), 3); /* snapshot, W, F */
    rig_commit(&rig, &s1);
    rig_verify(&rig);
    ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_EXISTS], 1);
    ck_assert_uint_eq(in_use(), 3);
    if (_i == 0) {
        rig_commit(&rig, &s2);
        ck_assert_uint_eq(in_use(), 2);
        rig_check_lease(&rig, &a);
        req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    } else if (_i == 1) {
        rig_ok(sc_step_abort(rig.cache, s2.number, false));
        rig_aborted(&rig, &s2);
        rig_verify(&rig);
        rig_check_lease(&rig, &a);
        int32_t token = 7;
        req_append(&rig, &a, &token, 1);
        (void)req_step(&rig, &a, 21);
        ck_assert_uint_eq(in_use(), 2);
        req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    } else if (_i == 2) {
        rig_ok(sc_step_abort(rig.cache, s2.number, true));
        rig_aborted(&rig, &s2);
        rig_verify(&rig);
        ck_assert_int_eq(rig_info(&rig, a.lease).state, SC_LEASE_LOST);
        req_close(&rig, &a, 0, SC_RELEASE_KEEP);
        ck_assert_uint_eq(in_use(), 1);
    } else {
        rig_ok(sc_lease_release(rig.cache, a.lease, 0, SC_RELEASE_KEEP));
        rig_verify(&rig);
        rig_commit(&rig, &s2); /* its token is not known: discarded */
        ck_assert_uint_eq(rig_stats(&rig).rows_discarded, 1);
        ck_assert_uint_eq(in_use(), 1);
        req_forget(&rig, &a);
    }
    rig_deinit(&rig);
}
END_TEST

/* ---- aborts ---- */

START_TEST(abort__not_launched_only_the_newest)
{
    start(1, 3, 0);
    rig_ok(req_try(&rig, &a, tokens, 20));
    struct rig_step s1 = launch(&a, 20);
    struct rig_step s2 = {.rows = {{&a, 21, NULL, 0}}, .count = 1}, s3 = s2;
    s3.rows[0].to = 22;
    rig_plan(&rig, &s2);
    rig_plan(&rig, &s3);
    ck_assert_int_eq(sc_step_abort(rig.cache, s2.number, false), SC_ERR_STATE);
    rig_ok(sc_step_abort(rig.cache, s3.number, false));
    rig_ok(sc_step_abort(rig.cache, s2.number, false));
    rig_verify(&rig);
    rig_aborted(&rig, &s3);
    rig_aborted(&rig, &s2);
    ck_assert_uint_eq(rig_info(&rig, a.lease).issued_len, 20);
    rig.step -= 2; /* their numbers can be planned again */
    s2 = launch(&a, 21);
    rig_commit(&rig, &s1);
    rig_commit(&rig, &s2);
    rig_check_lease(&rig, &a);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* What later steps do for a lost lease is discarded, in whatever order they end, and nothing that
 * one of them writes is given away before. */
START_TEST(abort__launched_loses_the_steps_behind)
{
    start(1, 4, 0);
    rig_ok(req_try(&rig, &a, tokens, 20));
    struct rig_step s1 = launch(&a, 20), s2 = launch(&a, 21), s3 = launch(&a, 22);
    uint32_t before = in_use();
    rig_ok(sc_step_abort(rig.cache, s1.number, true));
    rig_aborted(&rig, &s1);
    a.lost = true;
    rig_verify(&rig);
    ck_assert_int_eq(rig_info(&rig, a.lease).state, SC_LEASE_LOST);
    ck_assert_uint_eq(in_use(), before); /* steps 2 and 3 write F */
    sc_row row = {.lease = a.lease, .from = 22, .to = 23};
    sc_batch batch;
    sc_status each;
    rig_ok(sc_step_plan(rig.cache, ++rig.step, &row, 1, 0, &batch, &each));
    ck_assert_int_eq(each, SC_ERR_LOST);
    rig_ok(sc_step_commit(rig.cache, rig.step, NULL, 0, NULL));
    if (_i == 1) {
        rig_ok(sc_lease_release(rig.cache, a.lease, 0, SC_RELEASE_KEEP));
        ck_assert_int_eq(rig_info(&rig, a.lease).state, SC_LEASE_DRAINING);
    }
    rig_commit(&rig, &s3);
    rig_verify(&rig);
    ck_assert_uint_eq(rig_room(&rig).pages_drainable, 1); /* the id that came with it */
    rig_commit(&rig, &s2);
    rig_verify(&rig);
    ck_assert_uint_eq(rig_stats(&rig).rows_discarded, 2);
    if (_i == 1) {
        req_forget(&rig, &a);
    } else {
        req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    }
    ck_assert_uint_eq(in_use(), 0);
    rig_deinit(&rig);
}
END_TEST

/* ---- releases ---- */

START_TEST(release__before_the_tokens_of_a_row_are_known)
{
    start(1, 2, 0);
    rig_ok(req_try(&rig, &a, tokens, 40));
    (void)req_step(&rig, &a, 40);
    int32_t token = 9;
    req_append(&rig, &a, &token, 1);
    struct rig_step s1 = launch(&a, 41), s2 = launch(&a, 42);
    rig_commit(&rig, &s1);
    rig_ok(sc_lease_release(rig.cache, a.lease, 0, SC_RELEASE_KEEP)); /* that was the last token */
    rig_commit(&rig, &s2);
    rig_verify(&rig);
    a.count = 41;
    sc_answer answer = rig_lookup(&rig, a.tokens, 41);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 40); /* the state at 41 is overwritten */
    ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_OVERRUN], 1);
    req_forget(&rig, &a);
    ck_assert_uint_eq(in_use(), 1);
    rig_deinit(&rig);
}
END_TEST

/* With the token that the step in flight processes appended, the end is kept where that step lands;
 * with a length, it is the state there that was written over. */
START_TEST(release__with_a_step_out_keeps_the_end_of_what_was_appended)
{
    start(1, 2, 0);
    rig_ok(req_try(&rig, &a, tokens, 40));
    (void)req_step(&rig, &a, 40);
    int32_t more[2] = {9, 10};
    req_append(&rig, &a, more, 1);
    struct rig_step s1 = launch(&a, 41), s2 = launch(&a, 42);
    rig_commit(&rig, &s1);
    req_tell(&rig, &a, 42);
    rig_ok(sc_lease_release(rig.cache, a.lease, _i ? 41 : 0, SC_RELEASE_KEEP));
    rig_commit(&rig, &s2);
    rig_verify(&rig);
    ck_assert_uint_eq(rig_lookup(&rig, a.tokens, 43).state_len[SC_TIER_DEVICE], _i ? 40 : 42);
    ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_OVERRUN], _i ? 1 : 0);
    req_forget(&rig, &a);
    rig_deinit(&rig);
}
END_TEST

/* ---- what a commit says of its saves ---- */

static sc_saved saved[16];

static uint32_t commit_saved(struct rig_step *step, uint32_t cap)
{
    uint32_t count = 99;
    for (uint32_t i = 0; i < step->result_count; i++) {
        req_tell(&rig, step->rows[i].req, step->results[i].len);
    }
    rig_ok(sc_step_commit_saved(rig.cache, step->number, step->results, step->result_count, NULL,
        saved, cap, &count));
    rig_committed(&rig, step);
    rig_verify(&rig);
    return count;
}

static void ck_saved(const sc_saved *is, const struct req *req, uint32_t row, uint32_t position,
    sc_save_kind kind, uint32_t skip)
{
    ck_assert_uint_eq(is->lease.id, req->lease.id);
    ck_assert_uint_eq(is->lease.generation, req->lease.generation);
    ck_assert_uint_eq(is->row, row);
    ck_assert_uint_eq(is->position, position);
    ck_assert_int_eq(is->kind, kind);
    ck_assert_uint_eq(is->skip, skip);
    ck_assert_int_eq(is->slot < 0, skip > 0 || is->slot == -1);
}

START_TEST(saved__each_row_says_what_was_saved_and_why_not)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.slots = 5;
    options.cache.save_max = 2;
    rig_fill(tokens, 512, 1);
    rig_init(&rig, &options);
    rig_ok(req_try(&rig, &a, tokens, 80));
    rig_ok(req_try(&rig, &b, tokens + 200, 48));
    static const uint32_t points[] = {16, 32, 48}, point[] = {16};
    struct rig_step step = {.rows = {{&a, 80, points, 3}, {&b, 48, point, 1}}, .count = 2};
    rig_plan(&rig, &step);
    rig_forward(&rig, &step);
    ck_assert_uint_eq(commit_saved(&step, 16), 6);
    /* slots: two leases work, two saves, one is frozen into: then none is left */
    ck_saved(&saved[0], &a, 0, 48, SC_KIND_POINT, SC_SKIP_LIMIT);
    ck_saved(&saved[1], &a, 0, 16, SC_KIND_POINT, 0);
    ck_saved(&saved[2], &a, 0, 32, SC_KIND_POINT, 0);
    ck_saved(&saved[3], &a, 0, 80, SC_KIND_PROMPT_END, 0);
    ck_assert_int_eq(saved[3].slot, rig_info(&rig, a.lease).source_slot);
    ck_saved(&saved[4], &b, 1, 16, SC_KIND_POINT, SC_SKIP_LIMIT);
    ck_saved(&saved[5], &b, 1, 48, SC_KIND_PROMPT_END, SC_SKIP_NO_SLOT);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 81).state_len[SC_TIER_DEVICE], 80);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* With less room the count is what there was, and the step is committed. */
START_TEST(saved__with_too_little_room)
{
    start(1, 1, 0);
    rig_ok(req_try(&rig, &a, tokens, 80));
    static const uint32_t points[] = {16, 32, 48};
    struct rig_step step = {.rows = {{&a, 80, points, 3}}, .count = 1};
    rig_plan(&rig, &step);
    rig_forward(&rig, &step);
    memset(saved, 0x55, sizeof saved);
    sc_saved untouched = saved[2];
    ck_assert_uint_eq(commit_saved(&step, _i ? 2 : 0), 4);
    ck_assert_mem_eq(&saved[2], &untouched, sizeof untouched);
    if (_i) ck_saved(&saved[1], &a, 0, 32, SC_KIND_POINT, 0);
    ck_assert_uint_eq(rig_info(&rig, a.lease).len, 80);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* Of the decode positions that a row reaches among its drafts it keeps the last. */
START_TEST(saved__positions_among_drafts_have_their_reasons)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = 4;
    options.cache.draft_max = 16;
    rig_fill(tokens, 512, 1);
    rig_init(&rig, &options);
    rig_ok(req_try(&rig, &a, tokens, 32));
    (void)req_step(&rig, &a, 32);
    int32_t token = 5;
    req_append(&rig, &a, &token, 1);
    struct rig_step step = {.rows = {{&a, 45, NULL, 0}}, .count = 1};
    step.drafts[0] = 12;
    step.accept[0] = 8; /* to 41: 36 and 40 are reached, 44 is not */
    rig_plan(&rig, &step);
    rig_forward(&rig, &step);
    ck_assert_uint_eq(commit_saved(&step, 16), 3);
    ck_saved(&saved[0], &a, 0, 36, SC_KIND_DECODE, SC_SKIP_SUPERSEDED);
    ck_saved(&saved[1], &a, 0, 44, SC_KIND_DECODE, SC_SKIP_REJECTED);
    ck_saved(&saved[2], &a, 0, 40, SC_KIND_DECODE, 0);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* Without KV the tree cannot tell histories apart; the reason does. */
START_TEST(saved__a_state_of_another_history_is_not_the_same)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.cache.without_kv = options.cache.keep_cuts = true;
    rig_fill(tokens, 512, 1);
    rig_init(&rig, &options);
    for (int i = 0; i < 3; i++) {
        sc_request request = {.key = {.ns = rig.ns, .tokens = tokens, .token_count = 64}};
        sc_lease lease;
        sc_status each;
        sc_batch batch;
        uint32_t count = 0;
        request.key.len_max = 1; /* said so: all is computed again */
        rig_ok(sc_cache_acquire(rig.cache, &request, 1, 0, &lease, &each));
        rig_ok(each);
        uint32_t cut = i == 2 ? 24 : 32; /* on the grid, or not */
        sc_row rows[2] = {{.lease = lease, .from = 0, .to = cut},
            {.lease = lease, .from = cut, .to = 64}};
        for (int r = 0; r < 2; r++) {
            rig_ok(sc_step_plan(rig.cache, ++rig.step, &rows[r], 1, 0, &batch, &each));
            rig_ok(each);
            sc_result result = {.lease = lease, .len = rows[r].to};
            rig_ok(sc_step_commit_saved(rig.cache, rig.step, &result, 1, NULL, saved, 16, &count));
        }
        ck_assert_uint_eq(count, 1);
        ck_assert_uint_eq(saved[0].skip, i == 0 ? 0 : i == 1 ? SC_SKIP_EXISTS : SC_SKIP_HISTORY);
        rig_ok(sc_lease_release(rig.cache, lease, 0, SC_RELEASE_DISCARD));
    }
    rig_deinit(&rig);
}
END_TEST

/* ---- drafts ---- */

static void prompt(uint32_t page, uint32_t depth)
{
    start(page, depth, 8);
    rig_ok(req_try(&rig, &a, tokens, 32));
    (void)req_step(&rig, &a, 32);
    int32_t token = 5;
    req_append(&rig, &a, &token, 1);
}

START_TEST(drafts__as_many_as_are_accepted)
{
    prompt(1, 1);
    uint32_t accept = (uint32_t)_i;
    struct rig_step step = launch_drafts(&a, 37, 4, accept);
    sc_lease_info info = rig_info(&rig, a.lease);
    ck_assert_uint_eq(info.issued_len, 33);
    ck_assert_uint_eq(info.issued_len_max, 37);
    ck_assert_uint_eq(step.batch.token_count, 5);
    ck_assert_int_eq(rig_word(&step.batch, step.batch.at_freeze, 0), 0);
    rig_commit(&rig, &step);
    rig_check_lease(&rig, &a);
    ck_assert_uint_eq(rig_info(&rig, a.lease).len, 33 + accept);
    ck_assert_uint_eq(rig_stats(&rig).drafts_accepted, accept);
    sc_history history[4];
    uint32_t count = 0;
    rig_ok(sc_lease_history(rig.cache, a.lease, history, 4, &count));
    ck_assert_uint_eq(count, 2);
    ck_assert_int_eq(history[1].form, SC_FORM_KIND_DECODE);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 32).kv_len, 31);
    rig_deinit(&rig);
}
END_TEST

START_TEST(drafts__a_save_among_them_is_published_if_it_was_reached)
{
    start(4, 1, 8);
    rig_ok(req_try(&rig, &a, tokens, 32));
    (void)req_step(&rig, &a, 32);
    int32_t token = 5;
    req_append(&rig, &a, &token, 1);
    static const uint32_t points[] = {36, 40};
    struct rig_step step = {.rows = {{&a, 41, points, 2}}, .count = 1};
    step.drafts[0] = 8;
    step.accept[0] = 3u + 2u * (uint32_t)_i; /* to 36, 38, 40, of 41 */
    rig_plan(&rig, &step);
    ck_assert_uint_eq(step.batch.save_count, 2);
    rig_forward(&rig, &step);
    rig_commit(&rig, &step);
    rig_verify(&rig);
    rig_check_lease(&rig, &a);
    uint32_t reached = _i < 2 ? 36 : 40;
    rig_sample(&rig, &a, 48);
    ck_assert_uint_eq(rig_lookup(&rig, a.tokens, 48).state_len[SC_TIER_DEVICE], reached);
    ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_REJECTED], _i < 2 ? 1 : 0);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    ck_assert_uint_eq(req_open(&rig, &b, tokens, 33), 32);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(drafts__the_next_row_has_bounds)
{
    prompt(1, 3);
    struct rig_step s1 = launch_drafts(&a, 36, 3, 2), s2 = launch_drafts(&a, 39, 2, 1);
    ck_assert_int_eq(rig_word(&s1.batch, s1.batch.at_accepted, 0), -1);
    ck_assert_int_eq(rig_word(&s2.batch, s2.batch.at_accepted, 0), 0);
    ck_assert_int_eq(rig_word(&s2.batch, s2.batch.at_accepted_back, 0), 1);
    ck_assert_int_eq(rig_word(&s2.batch, s2.batch.at_position, 0), 33);
    ck_assert_int_eq(rig_word(&s2.batch, s2.batch.at_end, 0), 39);
    ck_assert_uint_eq(s2.batch.token_count, 3);
    struct rig_step s3 = launch(&a, 40); /* a plain decode row behind them */
    ck_assert_int_eq(rig_word(&s3.batch, s3.batch.at_accepted, 0), 0);
    rig_commit(&rig, &s1);
    sc_lease_info info = rig_info(&rig, a.lease);
    ck_assert_uint_eq(info.len, 35);
    ck_assert_uint_eq(info.issued_len, 37);
    ck_assert_uint_eq(info.issued_len_max, 39);
    rig_commit(&rig, &s2);
    rig_commit(&rig, &s3);
    rig_check_lease(&rig, &a);
    ck_assert_uint_eq(rig_info(&rig, a.lease).len, 38);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(drafts__trees_have_parents)
{
    prompt(1, 1);
    static const int32_t parents[] = {-1, -1, 0, 2, 1};
    struct rig_step step = {.rows = {{&a, 36, NULL, 0}}, .count = 1};
    step.drafts[0] = 5;
    step.parents[0] = parents;
    step.accept[0] = 3;
    rig_plan(&rig, &step);
    const int32_t want[] = {0, 0, 1, 3, 2, -1, -1, -1};
    ck_assert_mem_eq(step.batch.block + step.batch.at_parent, want, sizeof want);
    ck_assert_uint_eq(step.batch.token_count, 6);
    ck_assert_uint_eq(rig_info(&rig, a.lease).issued_len_max, 36);
    rig_forward(&rig, &step);
    rig_commit(&rig, &step);
    rig_check_lease(&rig, &a);
    ck_assert_uint_eq(rig_info(&rig, a.lease).len, 36);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(drafts__bad_args)
{
    prompt(4, 1);
    rig_ok(req_try(&rig, &b, tokens + 100, 32));
    static const int32_t self[] = {-1, 1}, below[] = {-2, 0}, ahead[] = {1, -1}, good[] = {-1, -1};
    static const uint32_t inside[] = {34};
    const struct { sc_row row; sc_status want; } bad[] = {
        {{a.lease, 32, 42, NULL, 0, 9, NULL}, SC_ERR_LIMIT},
        {{a.lease, 32, 35, NULL, 0, 2, self}, SC_ERR_INVALID},
        {{a.lease, 32, 35, NULL, 0, 2, below}, SC_ERR_INVALID},
        {{a.lease, 32, 35, NULL, 0, 2, ahead}, SC_ERR_INVALID},
        {{a.lease, 32, 35, NULL, 0, 2, good}, SC_ERR_INVALID}, /* one deep, so to 34 */
        {{a.lease, 32, 34, NULL, 0, 2, NULL}, SC_ERR_INVALID}, /* no certain token */
        {{a.lease, 32, 34, NULL, 0, UINT32_MAX, NULL}, SC_ERR_LIMIT},
        {{a.lease, 32, 36, inside, 1, 3, NULL}, SC_ERR_INVALID},
        {{b.lease, 0, 33, NULL, 0, 1, NULL}, SC_ERR_INVALID}, /* in the prompt */
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sc_batch batch;
        sc_status each = SC_OK;
        rig_ok(sc_step_plan(rig.cache, ++rig.step, &bad[i].row, 1, 0, &batch, &each));
        ck_assert_msg(each == bad[i].want, "row %zu: %s", i, sc_status_name(each));
        rig_ok(sc_step_commit(rig.cache, rig.step, NULL, 0, NULL));
        rig_verify(&rig);
    }
    struct rig_step step = launch_drafts(&a, 36, 3, 1);
    const uint32_t len = step.results[0].len;
    req_tell(&rig, &a, len);
    const struct { uint32_t len, kv_count; } results[] = {
        {32, 0}, {37, 1}, {36, 1} /* not appended */, {UINT32_MAX, 0}, {34, 1}};
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        step.results[0].len = results[i].len;
        step.results[0].kv_count = results[i].kv_count;
        ck_assert_int_eq(commit_status(&step), SC_ERR_MISMATCH);
    }
    step.results[0].len = len;
    step.results[0].kv_count = 0;
    rig_commit(&rig, &step);
    rig_check_lease(&rig, &a);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* ---- nothing left ---- */

/* Every slot is a working slot, two steps are out, and no memory comes any more than what commits
 * ask for: each request is computed to its end, and nothing is saved. */
START_TEST(exhaustion__requests_go_on_without_snapshots)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    struct req all[4];
    options.slots = 4;
    options.cache.depth_max = 2;
    rig_fill(tokens, 512, 1);
    rig_init(&rig, &options);
    rig.depth = 2;
    rig.patient = true;
    for (uint32_t i = 0; i < 4; i++) rig_ok(req_try(&rig, &all[i], tokens + 50 * i, 40));
    ck_assert_int_eq(req_try(&rig, &a, tokens, 40), SC_ERR_NO_SLOT);
    struct rig_step steps[2];
    for (uint32_t s = 0; s < 12; s++) {
        struct rig_step *step = &steps[s % 2];
        if (s >= 2) rig_commit(&rig, step);
        memset(step, 0, sizeof *step);
        step->count = 4;
        uint32_t to = s < 4 ? 10 * (s + 1) : 40 + s - 3;
        for (uint32_t i = 0; i < 4; i++) step->rows[i] = (struct rig_row){&all[i], to, NULL, 0};
        fail_alloc_arm(&rig.fa, 1);
        rig_plan(&rig, step); /* never needs any */
        ck_assert_uint_eq(fail_alloc_calls(&rig.fa), 0);
        (void)fail_alloc_disarm(&rig.fa);
        rig_forward(&rig, step);
        fail_alloc_arm(&rig.fa, 1 + s % 3); /* each in turn: the commit is made again */
    }
    rig_commit(&rig, &steps[0]);
    rig_commit(&rig, &steps[1]);
    rig_verify(&rig);
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.saves_published, 0);
    ck_assert_uint_eq(stats.saves_skipped[SC_SKIP_NO_SLOT], stats.saves_planned);
    ck_assert_uint_gt(stats.saves_planned, 3);
    for (uint32_t i = 0; i < 4; i++) {
        rig_check_lease(&rig, &all[i]);
        ck_assert_uint_eq(rig_info(&rig, all[i].lease).len, 48);
        fail_alloc_arm(&rig.fa, 1);
        req_close(&rig, &all[i], 0, SC_RELEASE_KEEP); /* perhaps discarded, never refused */
        (void)fail_alloc_disarm(&rig.fa);
    }
    rig_deinit(&rig);
}
END_TEST

static Suite *flight_suite(void)
{
    Suite *suite = suite_create("engine_flight");
    TCase *tc = tcase_create("flight");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, overlap__a_row_may_process_the_token_that_the_one_before_samples);
    tcase_add_test(tc, overlap__only_one_token_and_only_in_flight);
    tcase_add_test(tc, depth__is_the_leases_own);
    tcase_add_test(tc, order__steps_of_different_leases_end_in_any);
    tcase_add_test(tc, order__steps_of_one_lease_end_in_theirs);
    tcase_add_test(tc, freeze__the_step_behind_reads_what_becomes_a_snapshot);
    tcase_add_loop_test(tc, freeze__refused_its_slot_stays_for_the_step_behind, 0, 4);
    tcase_add_test(tc, abort__not_launched_only_the_newest);
    tcase_add_loop_test(tc, abort__launched_loses_the_steps_behind, 0, 2);
    tcase_add_test(tc, release__before_the_tokens_of_a_row_are_known);
    tcase_add_loop_test(
        tc, release__with_a_step_out_keeps_the_end_of_what_was_appended, 0, 2);
    tcase_add_test(tc, saved__each_row_says_what_was_saved_and_why_not);
    tcase_add_loop_test(tc, saved__with_too_little_room, 0, 2);
    tcase_add_test(tc, saved__positions_among_drafts_have_their_reasons);
    tcase_add_test(tc, saved__a_state_of_another_history_is_not_the_same);
    tcase_add_loop_test(tc, drafts__as_many_as_are_accepted, 0, 5);
    tcase_add_loop_test(tc, drafts__a_save_among_them_is_published_if_it_was_reached, 0, 3);
    tcase_add_test(tc, drafts__the_next_row_has_bounds);
    tcase_add_test(tc, drafts__trees_have_parents);
    tcase_add_test(tc, drafts__bad_args);
    tcase_add_test(tc, exhaustion__requests_go_on_without_snapshots);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return rig_main(flight_suite());
}
