/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers beside other work: steps while a restore is on its way, a payload while another is
 * committed. */
#include "test_engine_tiers.h"

enum { N = 64, WAIT_MS = 10000 };

static struct rig_options small(void)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = 16;
    options.slots = 8;
    options.kv_ids = 2048;
    options.cache.save_flags = SC_SAVE_END;
    return options;
}

static const int32_t *prompt(uint32_t i)
{
    static int32_t tokens[N + 1];
    rig_fill(tokens, N + 1, 1000 * (int32_t)(i + 1));
    return tokens;
}

/* While KV of the restore is on its way others are admitted, computed, saved and released. */
START_TEST(tiers__steps_of_others_go_on_during_a_restore)
{
    struct rig_options options = small();
    struct tiered t = {.rig = NULL};
    struct req req;
    tiered_init(&t, &options, _i ? 0 : 32, _i ? 32 : 0, SC_TIER_WRITE_BACK);
    tiered_stop(&t);
    t.options.host.write = t.options.disk.write = SC_TIER_WRITE_THROUGH;
    tiered_start(&t, &options);
    (void)tiered_serve(&t, prompt(0), N);
    tiered_clear_device(&t);
    atomic_store(&t.late, true);
    rig_ok(req_try(t.rig, &req, prompt(0), N + 1));
    ck_assert_int_eq(rig_info(t.rig, req.lease).state, SC_LEASE_WAITING);
    while (tiered_late(&t) == 0)
        tiered_pause(); /* its state is read, its KV is being written */
    uint64_t saved = rig_stats(t.rig).saves_published;
    for (uint32_t i = 1; i < 4; i++) {
        ck_assert_uint_eq(rig_serve(t.rig, prompt(i), N, 16, SC_RELEASE_KEEP), 0);
        ck_assert_uint_eq(rig_serve(t.rig, prompt(i), N + 1, 16, SC_RELEASE_DISCARD), N);
        ck_assert_int_eq(rig_info(t.rig, req.lease).state, SC_LEASE_WAITING);
    }
    ck_assert_uint_eq(rig_stats(t.rig).saves_published - saved, 3);
    ck_assert_uint_eq(tiered_settle(&t), 0);
    ck_assert_uint_eq(rig_info(t.rig, req.lease).resume_len, N);
    req_start(t.rig, &req);
    rig_check_lease(t.rig, &req);
    req_run(t.rig, &req, 64);
    req_close(t.rig, &req, 0, SC_RELEASE_KEEP);
    tiered_deinit(&t);
}
END_TEST

/* A sync lasts until a payload is written meanwhile, and all payloads but the first wait for a
 * sync. */
struct beside {
    struct sc_tier_faults faults;
    _Atomic bool armed;
    _Atomic uint32_t writes, syncs, beside;
};

static void beside_wait(const _Atomic uint32_t *until)
{
    for (uint32_t i = 0; i < WAIT_MS && atomic_load(until) == 0; i++) {
        (void)nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}

static int beside_ask(void *ctx, const char *what)
{
    struct beside *beside = ctx;
    if (!atomic_load(&beside->armed))
        return 0;
    if (!strcmp(what, "uring write") || !strcmp(what, "pwrite")) {
        if (atomic_fetch_add(&beside->writes, 1) == 0)
            return 0;
        beside_wait(&beside->syncs);
        atomic_fetch_add(&beside->beside, atomic_load(&beside->syncs) == 1);
    } else if (!strcmp(what, "fdatasync") && atomic_fetch_add(&beside->syncs, 1) == 0) {
        beside_wait(&beside->beside);
        atomic_fetch_add(&beside->syncs, 1); /* later ones are beside no sync */
    }
    return 0;
}

START_TEST(tiers__a_payload_is_written_while_another_is_committed)
{
    struct rig_options options = small();
    struct tiered t = {.rig = NULL};
    struct beside beside = {.faults = {beside_ask, &beside}};
    tiered_prepare(&t, &options, 0, 64, SC_TIER_WRITE_THROUGH);
    t.hooks.faults = &beside.faults;
    tiered_start(&t, &options);
    (void)tiered_serve(&t, prompt(0), N); /* the extent file is made */
    atomic_store(&beside.armed, true);
    for (uint32_t i = 1; i < 4; i++)
        (void)rig_serve(t.rig, prompt(i), N, 64, SC_RELEASE_KEEP);
    ck_assert_uint_eq(tiered_settle(&t), 0);
    ck_assert_uint_gt(atomic_load(&beside.beside), 0);
    atomic_store(&beside.armed, false);
    ck_assert_uint_eq(rig_stats(t.rig).tier_stored[SC_TIER_DISK], 4);
    tiered_clear_device(&t);
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_uint_eq(tiered_serve(&t, prompt(i), N + 1), N);
    tiered_deinit(&t);
}
END_TEST

/* The second turn is written while the first one waits for its commit; both have all their KV, as
 * neither was there when the other was stored. 1: a sync fails, and what it was for. */
START_TEST(tiers__two_turns_are_written_one_beside_the_other)
{
    struct rig_options options = small();
    struct tiered t = {.rig = NULL};
    int32_t tokens[3 * N + 1];
    rig_fill(tokens, 3 * N + 1, 1);
    tiered_init(&t, &options, 32, 32, SC_TIER_WRITE_THROUGH);
    for (uint32_t turn = 1; turn <= 2; turn++) {
        atomic_store(&t.late, true);
        (void)rig_serve(t.rig, tokens, turn * N, 64, SC_RELEASE_KEEP);
        while (tiered_late(&t) == 0)
            tiered_pause();
        atomic_store(&t.late, false);
        while (tiered_move(&t))
            continue;
    }
    if (_i)
        tier_fail_arm(&t.fail, "fdatasync", 1, EIO);
    uint32_t failed = tiered_settle(&t); /* both spills are submitted by one apply */
    (void)tier_fail_disarm(&t.fail);
    uint64_t on_disk = rig_stats(t.rig).tier_stored[SC_TIER_DISK];
    if (_i)
        ck_assert_uint_gt(failed, 0);
    if (!_i)
        ck_assert_uint_eq(on_disk, 2);
    tiered_clear_device(&t);
    tiered_stop(&t);
    tiered_start(&t, &options);
    ck_assert_uint_eq(rig_stats(t.rig).tier_loaded, on_disk);
    ck_assert_uint_eq(tiered_serve(&t, tokens, 2 * N + 1), on_disk > 0 ? 2 * N : 0);
    tiered_deinit(&t);
}
END_TEST

/* The first commit once armed lasts until a write is about to wait for it; `ends`: that write waits
 * until it has ended. */
struct crossing {
    struct sc_tier_faults faults;
    sc_tiers *tiers;
    bool ends;
    _Atomic bool armed;
    _Atomic uint32_t commits, settles;
};

static uint64_t stored_on_disk(sc_tiers *tiers)
{
    sc_tiers_stats stats = {.struct_size = sizeof stats};
    if (sc_tiers_stats_get(tiers, &stats) != SC_OK) abort(); /* not on the test's thread */
    return stats.stored[SC_TIER_DISK];
}

static int crossing_ask(void *ctx, const char *what)
{
    struct crossing *crossing = ctx;
    if (!atomic_load(&crossing->armed))
        return 0;
    if (!strcmp(what, "mdb_txn_commit") && atomic_fetch_add(&crossing->commits, 1) == 0)
        beside_wait(&crossing->settles);
    return 0;
}

static void crossing_settling(void *ctx)
{
    struct crossing *crossing = ctx;
    if (!atomic_load(&crossing->armed) || atomic_fetch_add(&crossing->settles, 1) > 0)
        return;
    uint32_t left = crossing->ends ? WAIT_MS : 0;
    for (; left > 0 && stored_on_disk(crossing->tiers) == 0; left--)
        (void)nanosleep(&(struct timespec){0, 1000000}, NULL);
    if (left > 0)
        (void)nanosleep(&(struct timespec){0, 20000000}, NULL); /* it is left, too */
}

/* What a write needs is being committed; 1: it has been, after the write did not find it, before it
 * waits for that. It tries once more in both. */
START_TEST(tiers__a_turn_is_stored_behind_one_that_is_being_committed)
{
    struct rig_options options = small();
    struct tiered t = {.rig = NULL};
    struct crossing crossing = {.faults = {crossing_ask, &crossing}, .ends = _i};
    int32_t tokens[2 * N + 1];
    sc_done done;
    rig_fill(tokens, 2 * N + 1, 1);
    tiered_prepare(&t, &options, 32, 32, SC_TIER_WRITE_THROUGH);
    t.hooks.faults = &crossing.faults;
    t.hooks.settling = crossing_settling;
    t.hooks.settling_ctx = &crossing;
    tiered_start(&t, &options);
    crossing.tiers = t.tiers;
    atomic_store(&crossing.armed, true);
    for (uint32_t turn = 1; turn <= 2; turn++) {
        (void)rig_serve(t.rig, tokens, turn * N, 64, SC_RELEASE_KEEP);
        while (tiered_poll(&t, &done, 1) == 0)
            tiered_pause();
        rig_ok(sc_cache_apply(t.rig->cache, &done, 1, t.rig->now_ns)); /* in host memory: to disk */
        beside_wait(&crossing.commits);
    }
    ck_assert_uint_eq(tiered_settle(&t), 0);
    atomic_store(&crossing.armed, false);
    ck_assert_uint_eq(atomic_load(&crossing.settles), 1);
    ck_assert_uint_eq(rig_stats(t.rig).tier_stored[SC_TIER_DISK], 2);
    tiered_clear_device(&t);
    tiered_stop(&t);
    tiered_start(&t, &options);
    ck_assert_uint_eq(rig_stats(t.rig).tier_loaded, 2);
    ck_assert_uint_eq(tiered_serve(&t, tokens, 2 * N + 1), 2 * N);
    tiered_deinit(&t);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_tiers_beside");
    TCase *tc = tcase_create("beside");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, tiers__steps_of_others_go_on_during_a_restore, 0, 2);
    tcase_add_test(tc, tiers__a_payload_is_written_while_another_is_committed);
    tcase_add_loop_test(tc, tiers__two_turns_are_written_one_beside_the_other, 0, 2);
    tcase_add_loop_test(tc, tiers__a_turn_is_stored_behind_one_that_is_being_committed, 0, 2);
    suite_add_tcase(suite, tc);
    return rig_main(suite);
}
