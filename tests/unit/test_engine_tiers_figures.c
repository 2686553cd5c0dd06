/* SPDX-License-Identifier: Apache-2.0 */
/* What sc_tiers_stats tells: times, wear, failures. */
#include <lmdb.h>

#include "test_engine_tiers_case.h"

static uint64_t sum(const uint64_t *values, uint32_t count)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < count; i++) all += values[i];
    return all;
}

static sc_tiers_stats figures(void)
{
    sc_tiers_stats stats = {.struct_size = sizeof stats};
    rig_ok(sc_tiers_stats_get(t.tiers, &stats));
    return stats;
}

/* Every transfer is in one bucket of its time, and what was written to disk is wear. */
START_TEST(tiers__transfers_are_counted_by_their_time_and_as_wear)
{
    uint32_t tier = _i ? SC_TIER_DISK : SC_TIER_HOST, other = _i ? SC_TIER_HOST : SC_TIER_DISK;
    case_open(16, _i ? 0 : 32, _i ? 32 : 0, SC_TIER_WRITE_THROUGH);
    for (uint32_t i = 0; i < 3; i++) (void)tiered_serve(&t, prompt(i), N);
    tiered_clear_device(&t);
    for (uint32_t i = 0; i < 3; i++) (void)tiered_serve(&t, prompt(i), N + 1);
    sc_tiers_stats stats = figures();
    ck_assert_uint_gt(stats.stored[tier], 2);
    ck_assert_uint_eq(stats.restored[tier], 3);
    ck_assert_uint_eq(sum(stats.stored_time[tier], SC_TIERS_BUCKET_COUNT), stats.stored[tier]);
    ck_assert_uint_eq(sum(stats.restored_time[tier], SC_TIERS_BUCKET_COUNT), 3);
    ck_assert_uint_eq(sum(stats.stored_time[other], SC_TIERS_BUCKET_COUNT), 0);
    /* No bucket is lower than the time allows: the mean is not below the sum of lower bounds. */
    uint64_t least = 0;
    for (uint32_t b = 1; b < SC_TIERS_BUCKET_COUNT; b++) {
        least += stats.stored_time[tier][b] * SC_TIERS_BUCKET_NS(b - 1);
    }
    ck_assert_uint_le(least, stats.stored_ns[tier]);
    ck_assert_uint_le(stats.stored_ns[tier], least * 2 + stats.stored[tier] * 65536);
    ck_assert_uint_eq(stats.disk_written_bytes > 0, _i == 1);
    ck_assert_uint_eq(stats.disk_day_bytes, stats.disk_written_bytes);
    ck_assert_uint_ge(stats.disk_written_bytes, stats.stored_bytes[SC_TIER_DISK]);
    ck_assert_uint_eq(stats.io_failed[tier], 0);
    ck_assert(!stats.disk_broken);
    tiered_deinit(&t);
}
END_TEST

/* A struct of before has what it had; nothing behind it is written. */
START_TEST(tiers__an_older_struct_of_figures_is_filled_as_far_as_it_goes)
{
    sc_tiers_stats stats;
    case_open(16, 32, 0, SC_TIER_WRITE_THROUGH);
    (void)tiered_serve(&t, prompt(0), N);
    memset(&stats, 0x5a, sizeof stats);
    stats.struct_size = offsetof(sc_tiers_stats, disk_broken);
    rig_ok(sc_tiers_stats_get(t.tiers, &stats));
    ck_assert_uint_gt(stats.stored[SC_TIER_HOST], 0);
    ck_assert_uint_eq(stats.stored_time[0][0], UINT64_C(0x5a5a5a5a5a5a5a5a));
    tiered_deinit(&t);
}
END_TEST

/* What fails by I/O is counted, and that it goes on failing; one that succeeds ends that. */
START_TEST(tiers__io_that_fails_is_counted_until_some_succeeds)
{
    struct req req;
    case_open(16, 0, 64, SC_TIER_WRITE_THROUGH);
    (void)tiered_serve(&t, prompt(0), N);
    tiered_stop(&t);
    tiered_damage(&t);
    tiered_start(&t, &options);
    ck_assert_uint_eq(tiered_open(&t, &req, prompt(0), N + 1), 0);
    ck_assert_uint_eq(figures().io_failed[SC_TIER_DISK], 1);
    ck_assert_uint_eq(figures().io_failed_row[SC_TIER_DISK], 1);
    req_run(t.rig, &req, 64);
    req_close(t.rig, &req, 0, SC_RELEASE_KEEP);
    (void)tiered_settle(&t); /* it is stored anew */
    ck_assert_uint_eq(figures().io_failed[SC_TIER_DISK], 1);
    ck_assert_uint_eq(figures().io_failed_row[SC_TIER_DISK], 0);
    tiered_deinit(&t);
}
END_TEST

/* Metadata that cannot be written any more: the tiers say so, and tell the wear all the same. */
START_TEST(tiers__a_disk_that_must_be_opened_again_is_told)
{
    case_open(16, 0, 32, SC_TIER_WRITE_THROUGH);
    (void)tiered_serve(&t, prompt(0), N);
    uint64_t written = figures().disk_written_bytes;
    ck_assert(written > 0 && !figures().disk_broken);
    tier_fail_arm(&t.fail, "mdb_txn_begin write", 1, MDB_PANIC);
    (void)tiered_serve(&t, prompt(1), N);
    ck_assert(tier_fail_disarm(&t.fail));
    sc_tiers_stats stats = figures();
    ck_assert(stats.disk_broken);
    ck_assert_uint_ge(stats.disk_written_bytes, written);
    ck_assert_uint_ge(stats.io_failed_row[SC_TIER_DISK], 1);
    tiered_stop(&t);
    tiered_start(&t, &options);
    ck_assert(!figures().disk_broken);
    tiered_deinit(&t);
}
END_TEST

static Suite *figures_suite(void)
{
    Suite *suite = suite_create("engine_tiers_figures");
    TCase *tc = tcase_create("figures");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, tiers__transfers_are_counted_by_their_time_and_as_wear, 0, 2);
    tcase_add_test(tc, tiers__an_older_struct_of_figures_is_filled_as_far_as_it_goes);
    tcase_add_test(tc, tiers__io_that_fails_is_counted_until_some_succeeds);
    tcase_add_test(tc, tiers__a_disk_that_must_be_opened_again_is_told);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return rig_main(figures_suite());
}
