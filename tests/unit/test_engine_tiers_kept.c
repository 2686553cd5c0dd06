/* SPDX-License-Identifier: Apache-2.0 */
/* Tiers: what simulation and stress have found, and limits of the device that hold for what comes
 * back, too. */
#include "test_engine_tiers_case.h"

/* Prefills a request up to each of `cuts` and closes it; without KV. */
static void compute(struct req *req, const uint32_t *cuts, uint32_t count, uint64_t stamp)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t from = i ? cuts[i - 1] : 0;
        sc_row row = {req->lease, from, cuts[i], NULL, 0, 0, NULL};
        sc_batch batch;
        sc_status each;
        rig_ok(sc_step_plan(t.rig->cache, ++t.rig->step, &row, 1, t.rig->now_ns, &batch, &each));
        ck_assert_int_eq(each, SC_OK);
        rig_state_write(t.rig, rig_word(&batch, batch.at_dest, 0), stamp);
        sc_result result = {req->lease, cuts[i], NULL, 0};
        rig_ok(sc_step_commit(t.rig->cache, t.rig->step, &result, 1, &each));
    }
    req_close(t.rig, req, 0, SC_RELEASE_KEEP);
}

/* Without KV the tree does not know how a state was computed. While one comes back, another lease
 * computes the same tokens in pieces, which gives other bits: who waited must not get these with
 * the history of those. */
START_TEST(tiers__a_state_computed_meanwhile_has_its_own_history)
{
    static const uint32_t whole[] = {N}, pieces[] = {N / 2 + 3, N};
    struct req req, waits, other;
    case_of(16);
    options.cache.without_kv = options.cache.keep_cuts = true;
    tiered_init(&t, &options, 32, 0, SC_TIER_WRITE_THROUGH);
    rig_ok(req_try(t.rig, &req, prompt(0), N));
    compute(&req, whole, 1, 7);
    tiered_clear_device(&t);
    rig_ok(req_try(t.rig, &waits, prompt(0), N + 1));
    ck_assert_int_eq(rig_info(t.rig, waits.lease).state, SC_LEASE_WAITING);
    sc_request late = {.key = rig_key(t.rig, prompt(0), N), .deadline_ns = 1};
    t.rig->now_ns = 2;
    rig_ok(req_ask(t.rig, &other, &late));
    if (_i) compute(&other, pieces, 2, 8);
    if (!_i) compute(&other, whole, 1, 7);
    (void)tiered_settle(&t);
    sc_lease_info info = rig_info(t.rig, waits.lease);
    sc_history history[4];
    uint32_t count = 0;
    rig_ok(sc_lease_history(t.rig->cache, waits.lease, history, 4, &count));
    ck_assert_int_eq(info.state, SC_LEASE_READY);
    ck_assert_int_eq(info.reason, _i ? SC_REASON_TIER_FAILED : SC_REASON_NONE);
    ck_assert_uint_eq(info.resume_len, _i ? 0 : N);
    ck_assert_uint_eq(count, _i ? 0 : 1);
    if (!_i) ck_assert(rig_state_is(t.rig, info.source_slot, 7));
    req_close(t.rig, &waits, 0, SC_RELEASE_DISCARD);
    (void)tiered_settle(&t);
    tiered_deinit(&t);
}
END_TEST

/* A record ends where another one, whose tokens begin the same but were computed in other pieces,
 * has ended before: its own KV begins at 0, not behind that one. */
START_TEST(tiers__a_record_continues_only_what_was_computed_alike)
{
    struct req other;
    case_of(16);
    options.cache.keep_cuts = true;
    options.cache.save_flags = SC_SAVE_END;
    tiered_init(&t, &options, 32, 0, SC_TIER_WRITE_THROUGH);
    (void)tiered_serve(&t, prompt(0), N / 2);
    tiered_clear_device(&t);
    atomic_store(&t.late, true); /* what comes back comes too late */
    sc_request cold = {.key = rig_key(t.rig, prompt(0), N), .deadline_ns = 1};
    rig_ok(req_ask(t.rig, &other, &cold));
    t.rig->now_ns = 2;
    rig_ok(sc_cache_apply(t.rig->cache, NULL, 0, t.rig->now_ns));
    ck_assert_uint_eq(rig_info(t.rig, other.lease).resume_len, 0);
    req_run(t.rig, &other, _i ? 24 : 7);
    (void)tiered_settle(&t);
    req_close(t.rig, &other, 0, SC_RELEASE_KEEP);
    (void)tiered_settle(&t);
    tiered_clear_device(&t);
    ck_assert_uint_eq(tiered_serve(&t, prompt(0), N + 1), N); /* the rig checks state and KV */
    tiered_deinit(&t);
}
END_TEST

/* Edges whose records cannot be used, with marks: memory runs out while their paths are kept. */
START_TEST(tiers__every_allocation_fails_once_while_a_store_is_loaded)
{
    int32_t tokens[N];
    sc_cache_options cache_options;
    case_of(16);
    tiered_init(&t, &options, 0, 64, SC_TIER_WRITE_THROUGH);
    rig_fill(tokens, N, 1);
    for (int32_t id = 1; id < 4; id++) {
        tokens[0] = 1 | id << RIG_MARK_SHIFT;
        tokens[20] = 21 | 7 << RIG_MARK_SHIFT;
        (void)tiered_serve(&t, tokens, 43);
        (void)tiered_serve(&t, tokens, N);
    }
    tiered_stop(&t);
    t.options.numerics += (uint32_t)_i; /* of other kernels: no record can be used */
    t.options.folder = t.folder;
    rig_ok(sc_tiers_create_hooked(&t.options, &t.hooks, &t.tiers));
    rig_cache_options(t.rig, &options, &cache_options);
    cache_options.tiers = t.tiers;
    cache_options.kv_mover = &t.mover;
    sc_status status = SC_ERR_NO_MEMORY;
    for (uint64_t n = 1; status == SC_ERR_NO_MEMORY; n++) {
        fail_alloc_arm(&t.rig->fa, n);
        status = sc_cache_create(&cache_options, &t.rig->cache);
        ck_assert(fail_alloc_disarm(&t.rig->fa) == (status != SC_OK));
    }
    rig_ok(status);
    ck_assert_int_eq(rig_stats(t.rig).tier_loaded == 0, _i);
    tiered_deinit(&t);
}
END_TEST

/* A hit that had to be restored is a use like any other. */
START_TEST(tiers__uses_from_below_count)
{
    case_prepare(16, 32, 32, SC_TIER_WRITE_THROUGH);
    t.options.disk.write = SC_TIER_WRITE_SELECTIVE;
    t.options.disk.write_uses = 2;
    tiered_start(&t, &options);
    (void)tiered_serve(&t, prompt(0), N);
    for (uint32_t use = 1; use <= 2; use++) {
        ck_assert_uint_eq(rig_stats(t.rig).tier_stored[SC_TIER_DISK], 0);
        tiered_clear_device(&t);
        ck_assert_uint_eq(tiered_serve(&t, prompt(0), N + 1), N);
    }
    ck_assert_uint_ge(rig_stats(t.rig).tier_stored[SC_TIER_DISK], 1);
    tiered_deinit(&t);
}
END_TEST

/* The cap on a path's snapshots holds when one of them is restored. */
START_TEST(tiers__what_comes_back_counts_for_the_cap_of_its_path)
{
    int32_t tokens[4 * N + 1];
    rig_fill(tokens, 4 * N + 1, 1);
    case_of(16);
    options.cache.save_flags = SC_SAVE_END;
    options.cache.path_snapshots_max = 2;
    tiered_init(&t, &options, 64, 0, SC_TIER_WRITE_THROUGH);
    for (uint32_t turn = 1; turn <= 4; turn++) {
        (void)tiered_serve(&t, tokens, turn * N);
        ck_assert_uint_le(rig_stats(t.rig).snapshots_alive, 2);
    }
    tiered_clear_device(&t);
    for (uint32_t turn = 1; turn <= 4; turn++) { /* each comes back, beside those before it */
        struct req req;
        ck_assert_uint_eq(tiered_open(&t, &req, tokens, turn * N + 1), turn * N);
        req_close(t.rig, &req, 0, SC_RELEASE_DISCARD);
        ck_assert_uint_eq(rig_stats(t.rig).snapshots_alive, turn < 2 ? turn : 2);
    }
    ck_assert_uint_eq(rig_stats(t.rig).restored, 4);
    ck_assert_uint_ge(rig_stats(t.rig).evicted[SC_EVICT_PATH_CAP], 4);
    ck_assert_uint_eq(rig_stats(t.rig).tier_lost, 0);
    tiered_deinit(&t);
}
END_TEST

/* After so many steps of the writer this transfer alone has ended; it is applied. */
static void step_and_apply(uint32_t steps, uint64_t ticket, sc_status as)
{
    sc_done done[4];
    while (steps-- > 0) ck_assert(sc_tiers_step(t.tiers, false));
    ck_assert_uint_eq(tiered_poll(&t, done, 4), 1);
    ck_assert_uint_eq(done[0].ticket, ticket);
    ck_assert_int_eq(done[0].status, SC_OK);
    done[0].status = as;
    rig_ok(sc_cache_apply(t.rig->cache, done, 1, 0));
}

/* A record has been written and waits for its commit when the one before it, which failed on
 * another rank, is taken back: it is there all the same, as if it had been committed at once. */
START_TEST(tiers__a_drop_comes_after_the_stores_before_it)
{
    case_prepare(16, 32, 32, SC_TIER_WRITE_THROUGH);
    options.cache.save_flags = SC_SAVE_END;
    t.hooks.manual = true;
    tiered_start(&t, &options);
    (void)rig_serve(t.rig, prompt(0), N / 2, 64, SC_RELEASE_KEEP);
    step_and_apply(2, 1, SC_OK); /* to host memory, state and KV; on to disk with ticket 2 */
    (void)rig_serve(t.rig, prompt(0), N, 64, SC_RELEASE_KEEP);
    step_and_apply(3, 3, SC_OK);     /* 2 is written; the second record to host memory, and on: 4 */
    step_and_apply(1, 2, SC_ERR_IO); /* 4 is written, and 2 committed for it; it failed elsewhere */
    while (sc_tiers_step(t.tiers, false)) continue;
    step_and_apply(0, 4, SC_OK);
    rig_verify(t.rig);
    tiered_deinit(&t);
}
END_TEST

/* A disk with room for a few records, in one file, that is full then: the store evicts by itself,
 * and the cache does not know. Returns how many records it holds; the first is that of prompt 0. */
static uint32_t full_disk(void)
{
    case_of(16);
    options.cache.policy = "lru";
    options.slots = 64;
    tiered_prepare(&t, &options, 0, 400, SC_TIER_WRITE_THROUGH);
    t.options.file_bytes = tiered_bytes(&t, 8, 8);
    t.hooks.manual = true;
    tiered_start(&t, &options);
    (void)tiered_serve(&t, prompt(0), N);
    tier_fail_arm(&t.fail, "fallocate", 1, ENOSPC);
    atomic_store(&t.fail.always, true);
    return (uint32_t)(t.options.file_bytes / rig_stats(t.rig).tier_bytes[SC_TIER_DISK]);
}

/* A record was evicted, and another one of as many tokens has its number when the cache finds that
 * it is gone and has the number dropped. */
START_TEST(tiers__a_number_that_is_used_again_is_another_record)
{
    struct req req;
    uint32_t room = full_disk();
    for (uint32_t i = 1; i <= room; i++) (void)tiered_serve(&t, prompt(i), N);
    ck_assert(tier_fail_disarm(&t.fail));
    tiered_clear_device(&t);
    ck_assert_uint_eq(tiered_open(&t, &req, prompt(0), N + 1), 0);
    ck_assert_int_eq(rig_info(t.rig, req.lease).reason, SC_REASON_TIER_FAILED);
    req_close(t.rig, &req, 0, SC_RELEASE_DISCARD);
    while (tiered_step(&t)) continue; /* the drop */
    tiered_clear_device(&t);
    for (uint32_t i = 1; i <= room; i++)
        ck_assert_uint_eq(tiered_serve(&t, prompt(i), N + 1), N);
    tiered_deinit(&t);
}
END_TEST

/* All that is on a full disk waits for its commit: it is committed first, and can go. */
START_TEST(tiers__what_waits_for_its_commit_makes_room)
{
    uint32_t room = full_disk();
    for (uint32_t i = 1; i < room + 4; i++)
        (void)rig_serve(t.rig, prompt(i), N, 64, SC_RELEASE_KEEP);
    ck_assert_uint_eq(tiered_settle(&t), 0);
    ck_assert(tier_fail_disarm(&t.fail));
    tiered_deinit(&t);
}
END_TEST

/* A record whose payload was found damaged is dropped, so that it is not there after a restart. */
START_TEST(tiers__a_damaged_record_does_not_come_back)
{
    struct req req;
    case_open(16, 0, 64, SC_TIER_WRITE_THROUGH);
    (void)tiered_serve(&t, prompt(0), N);
    tiered_clear_device(&t);
    tiered_damage(&t);
    ck_assert_uint_eq(tiered_open(&t, &req, prompt(0), N + 1), 0);
    ck_assert_int_eq(rig_info(t.rig, req.lease).reason, SC_REASON_TIER_FAILED);
    req_close(t.rig, &req, 0, SC_RELEASE_DISCARD);
    case_restart();
    ck_assert_uint_eq(rig_stats(t.rig).tier_loaded, 0);
    tiered_deinit(&t);
}
END_TEST

static sc_done step_and_poll(uint32_t steps)
{
    sc_done done[4];
    while (steps-- > 0) ck_assert(sc_tiers_step(t.tiers, false));
    ck_assert_uint_eq(tiered_poll(&t, done, 4), 1);
    ck_assert_int_eq(done[0].status, SC_OK);
    return done[0];
}

/* The same two records further down: what is taken back is the parent's parent of what waits. */
START_TEST(tiers__a_drop_comes_after_the_stores_far_behind_it)
{
    case_prepare(16, 32, 32, SC_TIER_WRITE_THROUGH);
    options.cache.save_flags = SC_SAVE_END;
    t.hooks.manual = true;
    tiered_start(&t, &options);
    (void)rig_serve(t.rig, prompt(0), N / 4, 64, SC_RELEASE_KEEP);
    step_and_apply(2, 1, SC_OK);
    (void)rig_serve(t.rig, prompt(0), N / 2, 64, SC_RELEASE_KEEP);
    step_and_apply(3, 3, SC_OK);
    sc_done first = step_and_poll(1); /* 4 is written, and 2 committed for it */
    ck_assert_uint_eq(first.ticket, 2);
    (void)rig_serve(t.rig, prompt(0), N, 64, SC_RELEASE_KEEP);
    step_and_apply(2, 5, SC_OK);
    sc_done second = step_and_poll(1); /* 6 is written, and 4 committed for it */
    ck_assert_uint_eq(second.ticket, 4);
    first.status = SC_ERR_IO; /* elsewhere */
    rig_ok(sc_cache_apply(t.rig->cache, &first, 1, 0));
    while (sc_tiers_step(t.tiers, false)) continue;
    rig_ok(sc_cache_apply(t.rig->cache, &second, 1, 0));
    step_and_apply(0, 6, SC_OK);
    rig_verify(t.rig);
    tiered_deinit(&t);
}
END_TEST

static Suite *kept_suite(void)
{
    Suite *suite = suite_create("engine_tiers_kept");
    TCase *tc = tcase_create("kept");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, tiers__a_state_computed_meanwhile_has_its_own_history, 0, 2);
    tcase_add_loop_test(tc, tiers__a_record_continues_only_what_was_computed_alike, 0, 2);
    tcase_add_loop_test(tc, tiers__every_allocation_fails_once_while_a_store_is_loaded, 0, 2);
    tcase_add_test(tc, tiers__uses_from_below_count);
    tcase_add_test(tc, tiers__a_drop_comes_after_the_stores_before_it);
    tcase_add_test(tc, tiers__a_drop_comes_after_the_stores_far_behind_it);
    tcase_add_test(tc, tiers__a_number_that_is_used_again_is_another_record);
    tcase_add_test(tc, tiers__what_waits_for_its_commit_makes_room);
    tcase_add_test(tc, tiers__a_damaged_record_does_not_come_back);
    tcase_add_test(tc, tiers__what_comes_back_counts_for_the_cap_of_its_path);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return rig_main(kept_suite());
}
