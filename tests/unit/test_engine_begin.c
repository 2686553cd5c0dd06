/* SPDX-License-Identifier: Apache-2.0 */
/* Leases that begin with somebody else's state: forks, states that the engine brings; kernels in
 * place; prefixes that others are computing; hints. Stamps are checked in every step
 * (test_engine_rig.h); random schedules: test_engine_random.c. */
#include "test_engine_rig.h"

static struct rig rig;
static struct req a, b, kids[4];
static int32_t tokens[512];

static void start_with(const struct rig_options *options)
{
    rig_fill(tokens, 512, 1);
    rig_init(&rig, options);
}

static void start(uint32_t page)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = page;
    start_with(&options);
}

static uint32_t in_use(void)
{
    sc_pool_info info;
    rig_ok(sc_pool_info_get(rig.pool, &info));
    return info.slot_count - info.free_count;
}

static void close_all(uint32_t kid_count)
{
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    for (uint32_t i = 0; i < kid_count; i++) req_close(&rig, &kids[i], 0, SC_RELEASE_KEEP);
}

/* Each samples tokens of its own. */
static void go_on(struct req *req, int32_t token)
{
    req_append(&rig, req, &token, 1);
    (void)req_step(&rig, req, req->count);
    rig_verify(&rig);
}

/* ---- forks ---- */

/* After a decoded token: the working slot is frozen, all read it. Pages of 1, and inside one of
 * 16. */
START_TEST(fork__all_read_one_state)
{
    start(_i ? 16 : 1);
    rig_ok(req_try(&rig, &a, tokens, 40));
    req_run(&rig, &a, 40);
    go_on(&a, 7);
    uint32_t before = in_use();
    rig_ok(req_fork(&rig, &a, 3, kids));
    rig_verify(&rig);
    ck_assert_uint_eq(in_use(), before + 4);
    int32_t source = rig_info(&rig, a.lease).source_slot;
    for (uint32_t i = 0; i < 3; i++) {
        sc_lease_info info = rig_info(&rig, kids[i].lease);
        ck_assert_int_eq(info.source_slot, source);
        ck_assert_uint_eq(info.len, 41);
        ck_assert_uint_eq(info.resume_len, 41);
        ck_assert_uint_eq(info.prompt_len, 40);
        ck_assert_uint_eq(info.kv_page_count, _i ? 2 : 41);
        ck_assert_int_eq(info.tail_kv >= 0, _i == 1);
    }
    ck_assert_uint_eq(rig_stats(&rig).forked, 3);
    sc_room got;
    rig_ok(sc_cache_evict(rig.cache, 1000, 100, &got));
    rig_check_lease(&rig, &kids[0]); /* nothing that they read is gone */
    for (int32_t i = 0; i < 3; i++) go_on(&kids[i], 10 + i);
    go_on(&a, 20);
    close_all(3);
    rig_deinit(&rig);
}
END_TEST

START_TEST(fork__at_the_prompts_end_and_at_nothing)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 40));
    rig_ok(req_fork(&rig, &a, 1, kids)); /* nothing is computed yet */
    req_run(&rig, &a, 40);
    uint64_t planned = rig_stats(&rig).saves_planned;
    rig_ok(req_fork(&rig, &a, 1, &kids[1])); /* the prompt's end is a snapshot */
    ck_assert_uint_eq(rig_stats(&rig).saves_planned, planned);
    req_run(&rig, &kids[0], 40);
    go_on(&kids[1], 9);
    close_all(2);
    rig_deinit(&rig);
}
END_TEST

/* Somebody else has saved the same state: all read that one. */
START_TEST(fork__the_tree_has_the_state)
{
    start(16);
    int32_t token = 7;
    rig_ok(req_try(&rig, &a, tokens, 40));
    rig_ok(req_try(&rig, &b, tokens, 40));
    for (struct req *req = &a; req; req = req == &a ? &b : NULL) {
        req_run(&rig, req, 40);
        req_append(&rig, req, &token, 1);
        (void)req_step(&rig, req, 41);
    }
    rig_ok(req_fork(&rig, &a, 1, kids));
    rig_ok(req_fork(&rig, &b, 1, &kids[1]));
    rig_verify(&rig);
    ck_assert_int_eq(rig_info(&rig, a.lease).source_slot, rig_info(&rig, b.lease).source_slot);
    ck_assert_int_eq(rig_info(&rig, a.lease).tail_kv, rig_info(&rig, b.lease).tail_kv);
    go_on(&b, 3);
    go_on(&kids[1], 4);
    close_all(2);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* The tree holds another history of these tokens, in use. */
START_TEST(fork__another_history_is_in_use)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 40));
    req_run(&rig, &a, 40);
    sc_request request = {.key = rig_key(&rig, tokens, 39)};
    request.key.len_max = 4;
    rig_ok(req_ask(&rig, &b, &request)); /* 38, then one token decoded */
    req_run(&rig, &b, 39);
    req_append(&rig, &b, &tokens[39], 1);
    (void)req_step(&rig, &b, 40);
    sc_room before = rig_room(&rig);
    ck_assert_int_eq(req_fork(&rig, &b, 2, kids), SC_ERR_BUSY);
    sc_room after = rig_room(&rig);
    ck_assert_mem_eq(&before, &after, sizeof after);
    rig_verify(&rig);
    rig_check_lease(&rig, &b);
    go_on(&b, 5);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(fork__all_or_nothing)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = 16;
    options.slots = 5;
    options.extras = _i == 1 ? 2 : 0;
    if (_i == 2) options.cache.lease_max = 3;
    start_with(&options);
    rig_ok(req_try(&rig, &a, tokens, 40));
    req_run(&rig, &a, 40);
    uint32_t before = rig_room(&rig).slots_held, open = (uint32_t)a.open;
    sc_lease_info info = rig_info(&rig, a.lease), same;
    sc_status want = _i == 2 ? SC_ERR_LIMIT : SC_ERR_NO_SLOT;
    ck_assert_int_eq(req_fork(&rig, &a, 4, kids), want);
    same = rig_info(&rig, a.lease);
    ck_assert_mem_eq(&info, &same, sizeof same);
    ck_assert_uint_eq(rig_room(&rig).slots_held, before); /* what was evicted stays so */
    ck_assert_uint_eq((uint32_t)a.open, open);
    rig_verify(&rig);
    rig_ok(req_fork(&rig, &a, 1, kids));
    close_all(1);
    rig_deinit(&rig);
}
END_TEST

/* Inside a page the id of the partial page is never wrong: where the parent stands on a snapshot
 * already, it comes back. The snapshot is a tail although the options know none. */
START_TEST(fork__an_id_that_is_not_needed_comes_back)
{
    start(16);
    rig_ok(req_try(&rig, &a, tokens, 40));
    req_run(&rig, &a, 40);
    rig_ok(req_fork(&rig, &a, 1, kids));
    ck_assert_uint_eq(rig_stats(&rig).tails_alive, 1);
    sc_cache_stats before = rig_stats(&rig);
    int32_t unneeded = a.open, tail = rig_info(&rig, a.lease).tail_kv;
    ck_assert_int_ge(unneeded, 0);
    ck_assert_int_ne(unneeded, tail);
    if (_i) { /* or none */
        sc_lease lease;
        rig_ok(sc_lease_fork(rig.cache, a.lease, -1, 1, &lease));
        rig_ok(sc_lease_release(rig.cache, lease, 0, SC_RELEASE_DISCARD));
    }
    rig_ok(req_fork(&rig, &a, 1, &kids[1]));
    rig_verify(&rig);
    ck_assert_uint_eq(rig_stats(&rig).tails_alive, 1);
    ck_assert_uint_eq(rig_stats(&rig).pages_in, before.pages_in + 1);
    ck_assert_int_eq(rig_info(&rig, a.lease).tail_kv, tail);
    ck_assert_int_eq(rig_info(&rig, kids[1].lease).tail_kv, tail);
    int32_t drained = -1;
    uint32_t count = 0;
    rig_ok(sc_cache_drain(rig.cache, &drained, 1, &count));
    ck_assert_int_eq(drained, unneeded);
    rig.kv_where[drained] = 0;
    rig.kv_free[rig.kv_free_count++] = drained;
    go_on(&a, 7);
    go_on(&kids[0], 8);
    go_on(&kids[1], 9);
    close_all(2);
    rig_deinit(&rig);
}
END_TEST

/* A source that was to be a snapshot and is not looks like one: a step behind it went on in
 * another slot. Nobody can tell, and nobody has to. */
START_TEST(fork__from_a_state_that_was_refused)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = 16;
    options.cache.depth_max = 2;
    options.cache.tails = true;
    start_with(&options);
    rig.tails = false; /* the id of the partial page is forgotten: no save */
    rig.depth = 2;
    rig_ok(req_try(&rig, &a, tokens, 40));
    struct rig_step s1 = {.rows = {{&a, 40, NULL, 0}}, .count = 1};
    struct rig_step s2 = {.rows = {{&a, 41, NULL, 0}}, .count = 1};
    rig_plan(&rig, &s1);
    rig_forward(&rig, &s1);
    rig_plan(&rig, &s2);
    rig_commit(&rig, &s1);
    rig_ok(sc_step_abort(rig.cache, s2.number, false));
    rig_aborted(&rig, &s2);
    sc_lease_info info = rig_info(&rig, a.lease);
    ck_assert_int_ne(info.source_slot, info.working_slot);
    ck_assert_uint_eq(rig_stats(&rig).snapshots_alive, 0);
    rig_ok(req_fork(&rig, &a, 2, kids));
    rig_verify(&rig);
    go_on(&kids[0], 8);
    go_on(&kids[1], 9);
    go_on(&a, 7);
    close_all(2);
    rig_deinit(&rig);
}
END_TEST

START_TEST(fork__bad_args)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = 16;
    options.cache.depth_max = 2;
    start_with(&options);
    sc_lease lease = {0, 0};
    ck_assert_int_eq(sc_lease_fork(rig.cache, lease, -1, 1, &lease), SC_ERR_STALE);
    rig_ok(req_try(&rig, &a, tokens, 40));
    ck_assert_int_eq(sc_lease_fork(rig.cache, a.lease, 3, 1, &lease), SC_ERR_INVALID);
    ck_assert_int_eq(sc_lease_fork(rig.cache, a.lease, -2, 1, &lease), SC_ERR_INVALID);
    req_run(&rig, &a, 40);
    ck_assert_int_eq(sc_lease_fork(rig.cache, a.lease, -1, 1, &lease), SC_ERR_INVALID);
    int32_t token = 4;
    req_append(&rig, &a, &token, 1);
    struct rig_step step = {.rows = {{&a, 41, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    rig_forward(&rig, &step);
    ck_assert_int_eq(sc_lease_fork(rig.cache, a.lease, a.open, 1, &lease), SC_ERR_STATE);
    ck_assert_int_eq(sc_lease_fork(rig.cache, a.lease, a.open, UINT32_MAX, &lease), SC_ERR_STATE);
    rig_commit(&rig, &step);
    ck_assert_int_eq(sc_lease_fork(rig.cache, a.lease, a.open, UINT32_MAX, &lease), SC_ERR_LIMIT);
    rig_verify(&rig);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* Each allocation fails once: the fork is refused whole, or done whole. */
START_TEST(fork__failing_allocations)
{
    bool failed = true;
    uint32_t refused = 0;
    for (uint64_t n = 1; failed && n < 100; n++) {
        start(16);
        rig_ok(req_try(&rig, &a, tokens, 40));
        req_run(&rig, &a, 40);
        struct fail_alloc_mark mark = fail_alloc_mark(&rig.fa);
        uint32_t before = in_use();
        fail_alloc_arm(&rig.fa, n);
        sc_lease leases[2];
        sc_status status = sc_lease_fork(rig.cache, a.lease, a.open, 2, leases);
        failed = fail_alloc_disarm(&rig.fa);
        rig_verify(&rig);
        if (status != SC_OK) {
            ck_assert(failed);
            ck_assert(status == SC_ERR_NO_MEMORY || status == SC_ERR_BUSY);
            ck_assert_uint_eq(in_use(), before);
            refused++;
            rig_check_lease(&rig, &a);
        } else {
            rig.kv_where[a.open] = 2;
            a.open = rig_kv_copy(&rig, rig_info(&rig, a.lease).tail_kv);
            rig_ok(sc_lease_release(rig.cache, leases[0], 0, SC_RELEASE_DISCARD));
            rig_ok(sc_lease_release(rig.cache, leases[1], 0, SC_RELEASE_DISCARD));
            ck_assert(!failed || !fail_alloc_same(&rig.fa, mark));
        }
        go_on(&a, 5);
        req_close(&rig, &a, 0, SC_RELEASE_KEEP);
        rig_deinit(&rig);
    }
    ck_assert(!failed);
    ck_assert_uint_gt(refused, 5);
}
END_TEST

/* ---- states that the engine brings ---- */

static sc_status ask_external(uint32_t count, uint32_t len)
{
    sc_request request = {.key = rig_key(&rig, tokens, count), .flags = SC_REQUEST_EXTERNAL,
        .external_len = len};
    return req_ask(&rig, &a, &request);
}

START_TEST(external__waits_until_it_is_filled)
{
    start(16);
    rig_ok(ask_external(60, 40));
    sc_lease_info info = rig_info(&rig, a.lease);
    ck_assert_int_eq(info.state, SC_LEASE_WAITING);
    ck_assert_uint_eq(info.external_len, 40);
    ck_assert_uint_eq(info.len, 0);
    sc_row row = {.lease = a.lease, .from = 0, .to = 16};
    sc_batch batch;
    sc_status each;
    rig_ok(sc_step_plan(rig.cache, ++rig.step, &row, 1, 0, &batch, &each));
    ck_assert_int_eq(each, SC_ERR_STATE);
    rig_ok(sc_step_commit(rig.cache, rig.step, NULL, 0, NULL));
    uint32_t count = 0;
    ck_assert_int_eq(sc_lease_adopt(rig.cache, a.lease, &count), SC_ERR_STATE);
    rig_verify(&rig);
    req_fill(&rig, &a, 40, _i ? 3 : 0);
    rig_verify(&rig);
    info = rig_info(&rig, a.lease);
    ck_assert_int_eq(info.state, SC_LEASE_READY);
    ck_assert_uint_eq(info.len, 40);
    ck_assert_uint_eq(info.resume_len, 0);
    req_run(&rig, &a, 100);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_gt(rig_lookup(&rig, tokens, 100).kv_len, 0);
    rig_deinit(&rig);
}
END_TEST

START_TEST(external__the_whole_prompt_is_saved_for_others)
{
    start(1);
    rig_ok(ask_external(40, 40));
    req_fill(&rig, &a, 40, 0);
    rig_verify(&rig);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 100).state_len[SC_TIER_DEVICE], 40);
    go_on(&a, 6);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    ck_assert_uint_eq(req_open(&rig, &b, tokens, 60), 40);
    req_run(&rig, &b, 100);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(external__a_hit_as_long_needs_none)
{
    start(1);
    (void)rig_serve(&rig, tokens, 40, 40, SC_RELEASE_KEEP);
    rig_ok(ask_external(60, 41));
    ck_assert_int_eq(rig_info(&rig, a.lease).state, SC_LEASE_WAITING);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP); /* given up */
    rig_ok(ask_external(60, 40));
    ck_assert_int_eq(rig_info(&rig, a.lease).state, SC_LEASE_READY);
    ck_assert_uint_eq(rig_info(&rig, a.lease).len, 40);
    rig_check_lease(&rig, &a);
    ck_assert_int_eq(sc_lease_filled(rig.cache, a.lease, NULL, 0, NULL, 0), SC_ERR_STATE);
    req_run(&rig, &a, 100);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(external__bad_args)
{
    start(16);
    int32_t ids[4] = {1, 2, 3, -1};
    ck_assert_int_eq(ask_external(40, 0), SC_ERR_INVALID);
    ck_assert_int_eq(ask_external(40, 41), SC_ERR_INVALID);
    sc_request request = {.key = rig_key(&rig, tokens, 40), .external_len = 3};
    ck_assert_int_eq(req_ask(&rig, &a, &request), SC_ERR_INVALID);
    rig_ok(ask_external(60, 40));
    const sc_history short_of[] = {{39, SC_FORM_KIND_PREFILL}};
    const sc_history falling[] = {{40, SC_FORM_KIND_PREFILL}, {40, SC_FORM_KIND_DECODE}};
    const sc_history unknown[] = {{40, (sc_form_kind)5}};
    sc_lease stale = {a.lease.id, a.lease.generation + 1};
    ck_assert_int_eq(sc_lease_filled(rig.cache, stale, ids, 2, NULL, 0), SC_ERR_STALE);
    ck_assert_int_eq(sc_lease_filled(rig.cache, a.lease, ids, 3, NULL, 0), SC_ERR_MISMATCH);
    ck_assert_int_eq(sc_lease_filled(rig.cache, a.lease, NULL, 0, NULL, 0), SC_ERR_MISMATCH);
    ck_assert_int_eq(sc_lease_filled(rig.cache, a.lease, ids + 2, 2, NULL, 0), SC_ERR_INVALID);
    ck_assert_int_eq(sc_lease_filled(rig.cache, a.lease, ids, 2, short_of, 1), SC_ERR_MISMATCH);
    ck_assert_int_eq(sc_lease_filled(rig.cache, a.lease, ids, 2, falling, 2), SC_ERR_INVALID);
    ck_assert_int_eq(sc_lease_filled(rig.cache, a.lease, ids, 2, unknown, 1), SC_ERR_INVALID);
    ck_assert_uint_eq(rig_stats(&rig).pages_in, 0);
    rig_verify(&rig);
    req_fill(&rig, &a, 40, 1);
    ck_assert_int_eq(sc_lease_filled(rig.cache, a.lease, ids, 2, NULL, 0), SC_ERR_STATE);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(external__failing_allocations)
{
    uint32_t refused = 0;
    bool failed = true;
    for (uint64_t n = 1; failed && n < 100; n++) {
        start(16);
        rig_ok(ask_external(200, 192));
        int32_t ids[12];
        const sc_history history[] = {{100, SC_FORM_KIND_PREFILL}, {110, SC_FORM_KIND_DECODE},
            {192, SC_FORM_KIND_PREFILL}};
        for (int32_t i = 0; i < 12; i++) ids[i] = rig_kv_take(&rig);
        fail_alloc_arm(&rig.fa, n);
        sc_status status = sc_lease_filled(rig.cache, a.lease, ids, 12, history, 3);
        failed = fail_alloc_disarm(&rig.fa);
        rig_verify(&rig);
        bool waits = rig_info(&rig, a.lease).state == SC_LEASE_WAITING;
        ck_assert(waits == (status == SC_ERR_NO_MEMORY));
        refused += waits;
        if (waits) rig_ok(sc_lease_filled(rig.cache, a.lease, ids, 12, history, 3));
        for (int32_t i = 0; i < 12; i++) rig.kv_where[ids[i]] = 2;
        rig_verify(&rig);
        req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
        rig_deinit(&rig);
    }
    ck_assert(!failed);
    ck_assert_uint_gt(refused, 1);
}
END_TEST

/* ---- kernels in place ---- */

START_TEST(copy__source_and_destination_are_one)
{
    start(1);
    rig.request_flags = SC_REQUEST_COPY;
    (void)rig_serve(&rig, tokens, 40, 16, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 60), 40);
    struct rig_step step = {.rows = {{&a, 60, NULL, 0}}, .count = 1};
    sc_lease_info info = rig_info(&rig, a.lease);
    rig_plan(&rig, &step);
    ck_assert_int_eq(rig_word(&step.batch, step.batch.at_source, 0), info.working_slot);
    ck_assert_int_eq(rig_word(&step.batch, step.batch.at_copy_from, 0), info.source_slot);
    ck_assert_int_eq(rig_word(&step.batch, step.batch.at_copy_to, 0), info.working_slot);
    rig_forward(&rig, &step);
    rig_commit(&rig, &step);
    go_on(&a, 5); /* the prompt's end was frozen: a copy again */
    rig_check_lease(&rig, &a);
    int32_t token = 6;
    req_append(&rig, &a, &token, 1);
    step = (struct rig_step){.rows = {{&a, 62, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    ck_assert_int_eq(rig_word(&step.batch, step.batch.at_copy_to, 0), -1);
    rig_forward(&rig, &step);
    rig_commit(&rig, &step);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* ---- prefixes that others are computing ---- */

START_TEST(pending__what_another_lease_will_save)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.cache.depth_max = 2;
    start_with(&options);
    rig.depth = 2;
    rig_ok(req_try(&rig, &a, tokens, 40));
    sc_answer answer = rig_lookup(&rig, tokens, 100);
    ck_assert_uint_eq(answer.pending_len, 40);
    ck_assert_uint_eq(answer.pending_step, 0); /* not planned yet */
    ck_assert_int_eq(answer.reason, SC_REASON_PENDING);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 40).pending_len, 0); /* one token must be left */
    int32_t other[100];
    memcpy(other, tokens, sizeof other);
    other[39]++;
    ck_assert_uint_eq(rig_lookup(&rig, other, 100).pending_len, 0);
    other[39]--;
    other[3]++;
    ck_assert_uint_eq(rig_lookup(&rig, other, 100).pending_len, 0);
    other[3]--;
    other[0] |= 1 << RIG_MARK_SHIFT;
    ck_assert_uint_eq(rig_lookup(&rig, other, 100).pending_len, 0);
    sc_namespace ns = rig.ns;
    rig_ok(sc_namespace_open(rig.cache, NULL, 7, 0, &rig.ns));
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 100).pending_len, 0);
    rig.ns = ns;
    struct rig_step s1 = {.rows = {{&a, 16, NULL, 0}}, .count = 1}, s2 = s1;
    s2.rows[0].to = 40;
    rig_plan(&rig, &s1);
    rig_forward(&rig, &s1);
    rig_plan(&rig, &s2);
    rig_forward(&rig, &s2);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 100).pending_step, s2.number);
    rig_ok(req_try(&rig, &b, tokens, 100));
    ck_assert_int_eq(rig_info(&rig, b.lease).reason, SC_REASON_PENDING);
    rig_commit(&rig, &s1);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 100).pending_len, 40);
    if (_i == 0) {
        rig_commit(&rig, &s2);
        answer = rig_lookup(&rig, tokens, 100);
        ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 40);
    } else {
        rig_ok(sc_step_abort(rig.cache, s2.number, true));
        rig_aborted(&rig, &s2);
        answer = rig_lookup(&rig, tokens, 100);
    }
    ck_assert_uint_eq(answer.pending_len, 0);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 200).pending_len, 100); /* b's own */
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 200).pending_len, 0);
    rig_deinit(&rig);
}
END_TEST

/* ---- hints ---- */

START_TEST(hints__go_with_the_snapshots)
{
    start(1);
    static const uint32_t breakpoints[] = {5, 20, 37, 47, 60};
    sc_hints hints = {.breakpoints = breakpoints, .breakpoint_count = 5,
        .flags = SC_HINT_CONTINUES, .pin_until_ns = 1000, .ttl_ns = 50, .priority = -3,
        .class_id = 17};
    sc_request request = {.key = rig_key(&rig, tokens, 60), .hints = &hints};
    rig_ok(req_ask(&rig, &a, &request));
    sc_lease_info info = rig_info(&rig, a.lease);
    ck_assert_ptr_null(info.hints.breakpoints);
    ck_assert_uint_eq(info.hints.class_id, 17);
    ck_assert_uint_eq(info.resume_hints.class_id, 0);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 50).pending_len, 48);
    req_run(&rig, &a, 60); /* 20 -> 16, 37 and 47 -> 32, 60 -> 48, and the prompt's end */
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    ck_assert_uint_eq(rig_stats(&rig).snapshots_alive, 4);
    ck_assert_uint_eq(rig_stats(&rig).saves_by_kind[SC_KIND_POINT], 3);
    ck_assert_uint_eq(req_open(&rig, &b, tokens, 47), 32);
    info = rig_info(&rig, b.lease);
    ck_assert_uint_eq(info.resume_hints.flags, SC_HINT_CONTINUES);
    ck_assert_uint_eq(info.resume_hints.pin_until_ns, 1000);
    ck_assert_uint_eq(info.resume_hints.ttl_ns, 50);
    ck_assert_int_eq(info.resume_hints.priority, -3);
    ck_assert_uint_eq(info.resume_hints.class_id, 17);
    ck_assert_uint_eq(info.hints.class_id, 0);
    rig_ok(req_fork(&rig, &b, 1, kids));
    ck_assert_uint_eq(rig_info(&rig, kids[0].lease).resume_hints.class_id, 17);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &kids[0], 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(hints__bad_args)
{
    start(1);
    static const uint32_t zero[] = {0}, twice[] = {8, 8}, beyond[] = {61};
    uint32_t many[SC_BREAKPOINTS_MAX + 1];
    for (uint32_t i = 0; i <= SC_BREAKPOINTS_MAX; i++) many[i] = i + 1;
    const sc_hints bad[] = {
        {.breakpoint_count = 1},
        {.breakpoints = zero, .breakpoint_count = 1},
        {.breakpoints = twice, .breakpoint_count = 2},
        {.breakpoints = beyond, .breakpoint_count = 1},
        {.breakpoints = many, .breakpoint_count = SC_BREAKPOINTS_MAX + 1},
        {.flags = 4},
        {.flags = SC_HINT_CONTINUES | SC_HINT_OVER},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sc_request request = {.key = rig_key(&rig, tokens, 60), .hints = &bad[i]};
        ck_assert_int_eq(req_ask(&rig, &a, &request), SC_ERR_INVALID);
    }
    ck_assert_uint_eq(in_use(), 0);
    rig_deinit(&rig);
}
END_TEST

static Suite *begin_suite(void)
{
    Suite *suite = suite_create("engine_begin");
    TCase *tc = tcase_create("begin");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, fork__all_read_one_state, 0, 2);
    tcase_add_test(tc, fork__at_the_prompts_end_and_at_nothing);
    tcase_add_test(tc, fork__the_tree_has_the_state);
    tcase_add_test(tc, fork__another_history_is_in_use);
    tcase_add_loop_test(tc, fork__all_or_nothing, 0, 3);
    tcase_add_loop_test(tc, fork__an_id_that_is_not_needed_comes_back, 0, 2);
    tcase_add_test(tc, fork__from_a_state_that_was_refused);
    tcase_add_test(tc, fork__bad_args);
    tcase_add_test(tc, fork__failing_allocations);
    tcase_add_loop_test(tc, external__waits_until_it_is_filled, 0, 2);
    tcase_add_test(tc, external__the_whole_prompt_is_saved_for_others);
    tcase_add_test(tc, external__a_hit_as_long_needs_none);
    tcase_add_test(tc, external__bad_args);
    tcase_add_test(tc, external__failing_allocations);
    tcase_add_test(tc, copy__source_and_destination_are_one);
    tcase_add_loop_test(tc, pending__what_another_lease_will_save, 0, 2);
    tcase_add_test(tc, hints__go_with_the_snapshots);
    tcase_add_test(tc, hints__bad_args);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return rig_main(begin_suite());
}
