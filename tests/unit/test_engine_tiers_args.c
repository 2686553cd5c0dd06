/* SPDX-License-Identifier: Apache-2.0 */
/* Bad arguments of tiers, of poll and apply; want of memory and a failing device. */
#include "test_engine_tiers_case.h"

static void expect_create(const sc_tiers_options *given, sc_status status)
{
    sc_tiers *tiers = NULL;
    ck_assert_int_eq(sc_tiers_create(given, &tiers), status);
    ck_assert_ptr_null(tiers);
}

START_TEST(sc_tiers__refuses_bad_options)
{
    sc_tiers *tiers = NULL;
    case_open(16, 4, 4, SC_TIER_WRITE_BACK);
    sc_tiers_options good = SC_TIERS_OPTIONS_INIT, bad;
    good.host.bytes = 1 << 20;
    ck_assert_int_eq(sc_tiers_create(NULL, &tiers), SC_ERR_INVALID);
    ck_assert_int_eq(sc_tiers_create(&good, NULL), SC_ERR_INVALID);
    bad = good, bad.struct_size = 8;
    expect_create(&bad, SC_ERR_INVALID);
    bad = good, bad.struct_size = sizeof bad + 8;
    expect_create(&bad, SC_ERR_INVALID);
    bad = good, bad.host.bytes = 0;
    expect_create(&bad, SC_ERR_INVALID);
    bad = good, bad.host.codec = 99;
    expect_create(&bad, SC_ERR_INVALID);
    bad = good, bad.host.codec = 2; /* loses precision */
    expect_create(&bad, SC_ERR_INVALID);
    bad = good, bad.host.write = 9;
    expect_create(&bad, SC_ERR_INVALID);
    bad = good, bad.host.zstd_level = 20;
    expect_create(&bad, SC_ERR_INVALID);
    bad = good, bad.disk.bytes = 1 << 20; /* no folder */
    expect_create(&bad, SC_ERR_INVALID);
    bad.folder = "/nowhere/at/all";
    expect_create(&bad, SC_ERR_IO);
    bad.folder = t.folder; /* open already */
    expect_create(&bad, SC_ERR_BUSY);
    bad = good, bad.host.bytes = UINT64_MAX / 4, bad.rank_count = 1;
    expect_create(&bad, SC_ERR_LIMIT);
    sc_tiers_stats stats = {.struct_size = sizeof stats};
    ck_assert_int_eq(sc_tiers_stats_get(NULL, &stats), SC_ERR_INVALID);
    ck_assert_int_eq(sc_tiers_stats_get(t.tiers, NULL), SC_ERR_INVALID);
    stats.struct_size = 0;
    ck_assert_int_eq(sc_tiers_stats_get(t.tiers, &stats), SC_ERR_INVALID);
    rig_ok(sc_tiers_destroy(NULL));
    ck_assert_int_eq(sc_tiers_destroy(t.tiers), SC_ERR_BUSY); /* a cache uses them */
    tiered_deinit(&t);
}
END_TEST

START_TEST(sc_tiers_agree__refuses_what_is_not_in_order_or_too_late)
{
    sc_stored stored[2], swapped[2];
    uint32_t count = 0;
    case_open(16, 0, 32, SC_TIER_WRITE_THROUGH);
    for (uint32_t i = 0; i < 2; i++) (void)tiered_serve(&t, prompt(i), N);
    ck_assert_int_eq(sc_tiers_agree(t.tiers, NULL, 0), SC_ERR_BUSY); /* a cache uses them */
    tiered_stop(&t);
    t.options.folder = t.folder;
    rig_ok(sc_tiers_create_hooked(&t.options, &t.hooks, &t.tiers));
    ck_assert_int_eq(sc_tiers_stored(NULL, stored, 2, &count), SC_ERR_INVALID);
    ck_assert_int_eq(sc_tiers_stored(t.tiers, stored, 2, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_tiers_stored(t.tiers, NULL, 2, &count), SC_ERR_INVALID);
    ck_assert_int_eq(sc_tiers_stored(t.tiers, stored, 1, &count), SC_ERR_LIMIT);
    ck_assert_uint_ge(count, 2);
    ck_assert_int_eq(sc_tiers_stored(t.tiers, NULL, 0, &count), SC_ERR_LIMIT);
    sc_stored *all = calloc(count, sizeof *all);
    ck_assert_ptr_nonnull(all);
    rig_ok(sc_tiers_stored(t.tiers, all, count, &count));
    swapped[0] = all[1];
    swapped[1] = all[0];
    ck_assert_int_eq(sc_tiers_agree(NULL, all, count), SC_ERR_INVALID);
    ck_assert_int_eq(sc_tiers_agree(t.tiers, NULL, 1), SC_ERR_INVALID);
    ck_assert_int_eq(sc_tiers_agree(t.tiers, swapped, 2), SC_ERR_INVALID);
    swapped[0] = swapped[1];
    ck_assert_int_eq(sc_tiers_agree(t.tiers, swapped, 2), SC_ERR_INVALID); /* twice the same */
    for (uint64_t n = 1;; n++) { /* without memory nothing is agreed on */
        fail_alloc_arm(&t.rig->fa, n);
        sc_status status = sc_tiers_agree(t.tiers, all, count);
        bool failed = fail_alloc_disarm(&t.rig->fa);
        ck_assert_int_eq(status, failed ? SC_ERR_NO_MEMORY : SC_OK);
        if (!failed) break;
    }
    rig_ok(sc_tiers_agree(t.tiers, all, 1)); /* the last word counts */
    rig_ok(sc_tiers_destroy(t.tiers));
    free(all);
    tiered_start(&t, &options);
    ck_assert_uint_eq(rig_stats(t.rig).tier_loaded, count); /* it was of those tiers alone */
    tiered_deinit(&t);
}
END_TEST

START_TEST(sc_cache_create__refuses_bad_tiers)
{
    struct rig other;
    sc_cache_options cache_options;
    sc_cache *cache = NULL;
    case_open(16, 4, 0, SC_TIER_WRITE_BACK);
    rig_init_pools(&other, &options);
    rig_cache_options(&other, &options, &cache_options);
    cache_options.kv_mover = &t.mover; /* without tiers */
    ck_assert_int_eq(sc_cache_create(&cache_options, &cache), SC_ERR_INVALID);
    cache_options.tiers = t.tiers; /* another cache's */
    ck_assert_int_eq(sc_cache_create(&cache_options, &cache), SC_ERR_BUSY);
    cache_options.without_kv = true;
    ck_assert_int_eq(sc_cache_create(&cache_options, &cache), SC_ERR_INVALID);
    cache_options.without_kv = false;
    sc_kv_mover mover = t.mover;
    cache_options.kv_mover = &mover;
    mover.page_bytes = 0;
    ck_assert_int_eq(sc_cache_create(&cache_options, &cache), SC_ERR_INVALID);
    mover = t.mover, mover.alloc = NULL;
    ck_assert_int_eq(sc_cache_create(&cache_options, &cache), SC_ERR_INVALID);
    mover = t.mover, mover.read = NULL;
    ck_assert_int_eq(sc_cache_create(&cache_options, &cache), SC_ERR_INVALID);
    mover = t.mover, mover.write = NULL;
    ck_assert_int_eq(sc_cache_create(&cache_options, &cache), SC_ERR_INVALID);
    ck_assert_ptr_null(cache);
    cache_options.tiers = NULL, cache_options.kv_mover = NULL; /* the pool is free still */
    rig_ok(sc_cache_create(&cache_options, &other.cache));
    rig_ok(sc_namespace_open(other.cache, NULL, 0, 0, &other.ns));
    rig_deinit(&other);
    tiered_deinit(&t);
}
END_TEST

START_TEST(sc_cache_apply__refuses_bad_lists)
{
    sc_done done[4] = {{0, SC_OK}};
    case_open(16, 8, 0, SC_TIER_WRITE_THROUGH);
    sc_cache *cache = t.rig->cache;
    atomic_store(&t.late, true);
    (void)rig_serve(t.rig, prompt(0), N, 64, SC_RELEASE_KEEP);
    (void)rig_serve(t.rig, prompt(1), N, 64, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_stats(t.rig).transfers_alive, 2);
    ck_assert_int_eq(sc_cache_apply(NULL, done, 1, 0), SC_ERR_INVALID);
    ck_assert_int_eq(sc_cache_apply(cache, NULL, 1, 0), SC_ERR_INVALID);
    ck_assert_int_eq(sc_cache_apply(cache, done, 1, 0), SC_ERR_NOT_FOUND);
    done[0].ticket = 1; /* not ended */
    ck_assert_int_eq(sc_cache_apply(cache, done, 1, 0), SC_ERR_STATE);
    while (tiered_late(&t) < 2) tiered_pause();
    atomic_store(&t.spoil, 1);
    while (tiered_move(&t)) continue;
    uint32_t count = 0;
    while (count < 2) count += tiered_poll(&t, done + count, 4 - count);
    uint32_t bad = done[0].status != SC_OK ? 0 : 1;
    ck_assert_int_eq(done[bad].status, SC_ERR_IO);
    done[bad].status = SC_OK; /* it failed here */
    ck_assert_int_eq(sc_cache_apply(cache, done, 2, 0), SC_ERR_MISMATCH);
    done[bad].status = SC_ERR_IO;
    sc_done twice[2] = {done[0], done[0]};
    ck_assert_int_eq(sc_cache_apply(cache, twice, 2, 0), SC_ERR_INVALID);
    sc_done beyond[2] = {done[0], {77, SC_OK}};
    ck_assert_int_eq(sc_cache_apply(cache, beyond, 2, 0), SC_ERR_NOT_FOUND);
    ck_assert_uint_eq(rig_stats(t.rig).transfers_alive, 2); /* nothing has changed */
    rig_ok(sc_cache_apply(cache, done, 2, 0));
    ck_assert_int_eq(sc_cache_apply(cache, done, 1, 0), SC_ERR_NOT_FOUND); /* once */
    ck_assert_int_eq(sc_cache_poll(NULL, done, 1, &count), SC_ERR_INVALID);
    ck_assert_int_eq(sc_cache_poll(cache, NULL, 1, &count), SC_ERR_INVALID);
    ck_assert_int_eq(sc_cache_poll(cache, done, 1, NULL), SC_ERR_INVALID);
    rig_ok(sc_cache_poll(cache, NULL, 0, &count));
    tiered_deinit(&t);
}
END_TEST

START_TEST(sc_kv_moved__refuses_unknown_tickets)
{
    struct rig plain;
    case_open(16, 8, 0, SC_TIER_WRITE_THROUGH);
    rig_init(&plain, &options);
    ck_assert_int_eq(sc_kv_moved(NULL, 1, SC_OK), SC_ERR_INVALID);
    ck_assert_int_eq(sc_kv_moved(plain.cache, 1, SC_OK), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_kv_moved(t.rig->cache, 1, SC_OK), SC_ERR_NOT_FOUND);
    (void)tiered_serve(&t, prompt(0), N);
    ck_assert_int_eq(sc_kv_moved(t.rig->cache, 1, SC_OK), SC_ERR_NOT_FOUND); /* it has ended */
    rig_deinit(&plain);
    tiered_deinit(&t);
}
END_TEST

START_TEST(sc_lease_filled__refuses_a_lease_that_a_tier_fills)
{
    struct req req;
    sc_batch batch;
    sc_status each = SC_OK;
    case_open(16, 8, 0, SC_TIER_WRITE_THROUGH);
    (void)tiered_serve(&t, prompt(0), N);
    tiered_clear_device(&t);
    atomic_store(&t.late, true);
    rig_ok(req_try(t.rig, &req, prompt(0), N + 1));
    ck_assert_int_eq(sc_lease_filled(t.rig->cache, req.lease, NULL, 0, NULL, 0), SC_ERR_STATE);
    sc_row row = {req.lease, 0, N, NULL, 0, 0, NULL};
    rig_ok(sc_step_plan(t.rig->cache, ++t.rig->step, &row, 1, 0, &batch, &each));
    ck_assert_int_eq(each, SC_ERR_STATE);
    rig_ok(sc_step_abort(t.rig->cache, t.rig->step, false));
    sc_lease child;
    uint32_t count = 0;
    ck_assert_int_eq(sc_lease_fork(t.rig->cache, req.lease, -1, 1, &child), SC_ERR_STATE);
    ck_assert_int_eq(sc_lease_adopt(t.rig->cache, req.lease, &count), SC_ERR_STATE);
    req_close(t.rig, &req, 0, SC_RELEASE_KEEP);
    tiered_deinit(&t);
}
END_TEST

/* Every allocation of a life with tiers fails once: calls that say so are made again, all else is a
 * state that did not go down, or a shorter hit. */
START_TEST(tiers__every_allocation_fails_once)
{
    bool hit = true;
    for (uint64_t n = 1; hit; n++) {
        case_of(16);
        options.slots = 5;
        tiered_init(&t, &options, 6, 12, SC_TIER_WRITE_BACK);
        t.rig->patient = true;
        fail_alloc_arm(&t.rig->fa, n);
        for (uint32_t i = 0; i < 8; i++) {
            struct req req;
            rig_ok(req_try(t.rig, &req, prompt(i % 4), N + i / 4));
            while (rig_stats(t.rig).transfers_alive > 0) {
                sc_done done[16];
                sc_status status;
                uint32_t count = tiered_poll(&t, done, 16);
                rig_again(t.rig, status, sc_cache_apply(t.rig->cache, done, count, 0));
                rig_ok(status);
                if (count == 0) tiered_pause();
            }
            req_start(t.rig, &req);
            rig_check_lease(t.rig, &req);
            req_run(t.rig, &req, 64);
            req_close(t.rig, &req, 0, SC_RELEASE_KEEP);
        }
        hit = fail_alloc_disarm(&t.rig->fa);
        (void)tiered_settle(&t);
        tiered_deinit(&t);
    }
}
END_TEST

static Suite *args_suite(void)
{
    Suite *suite = suite_create("engine_tiers_args");
    TCase *tc = tcase_create("args");
    tcase_set_timeout(tc, 240);
    tcase_add_test(tc, sc_tiers__refuses_bad_options);
    tcase_add_test(tc, sc_tiers_agree__refuses_what_is_not_in_order_or_too_late);
    tcase_add_test(tc, sc_cache_create__refuses_bad_tiers);
    tcase_add_test(tc, sc_cache_apply__refuses_bad_lists);
    tcase_add_test(tc, sc_kv_moved__refuses_unknown_tickets);
    tcase_add_test(tc, sc_lease_filled__refuses_a_lease_that_a_tier_fills);
    tcase_add_test(tc, tiers__every_allocation_fails_once);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return rig_main(args_suite());
}
