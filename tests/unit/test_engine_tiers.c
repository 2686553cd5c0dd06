/* SPDX-License-Identifier: Apache-2.0 */
/* Tiers below a cache: what goes down comes back, bit for bit, with its KV; waiters, budgets,
 * deadlines, restarts. */
#include "test_engine_tiers_case.h"

START_TEST(tiers__a_state_comes_back_from_each_tier_with_its_kv)
{
    bool disk = _i & 2;
    case_open(_i & 1 ? 16 : 1, disk ? 0 : 32, disk ? 32 : 0, SC_TIER_WRITE_THROUGH);
    ck_assert_uint_eq(tiered_serve(&t, prompt(0), N), 0);
    uint32_t tier = disk ? SC_TIER_DISK : SC_TIER_HOST;
    ck_assert_uint_gt(rig_stats(t.rig).tier_stored[tier], 0);
    tiered_clear_device(&t);
    sc_answer answer = rig_lookup(t.rig, prompt(0), N + 1);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 0);
    ck_assert_uint_eq(answer.state_len[tier], N);
    ck_assert_uint_eq(answer.codec[tier], 1);
    ck_assert_uint_eq(tiered_serve(&t, prompt(0), N + 1), N);
    sc_cache_stats stats = rig_stats(t.rig);
    ck_assert_uint_eq(stats.resumed_by_tier[tier], 1);
    ck_assert_uint_eq(stats.tokens_hit_by_tier[tier], N);
    ck_assert_uint_eq(stats.restored, 1);
    ck_assert_uint_eq(stats.resumed_by_tier[SC_TIER_DEVICE], 0);
    /* It is a snapshot of the device again. */
    answer = rig_lookup(t.rig, prompt(0), N + 1);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], N);
    ck_assert_uint_eq(answer.state_len[tier], 0);
    ck_assert_uint_eq(t.waited, 1);
    ck_assert_uint_eq(tiered_serve(&t, prompt(0), N + 1), N);
    stats = rig_stats(t.rig);
    ck_assert_uint_eq(stats.resumed_by_tier[SC_TIER_DEVICE], 1);
    ck_assert_uint_eq(stats.tokens_hit_by_tier[SC_TIER_DEVICE], N);
    ck_assert_uint_eq(stats.tokens_hit, 2 * N);
    tiered_deinit(&t);
}
END_TEST

/* A conversation in turns: each record holds the KV behind the one before. */
START_TEST(tiers__kv_comes_from_all_records_on_the_path)
{
    int32_t tokens[6 * N + 1];
    rig_fill(tokens, 6 * N + 1, 1);
    case_open(_i & 1 ? 16 : 1, _i & 2 ? 0 : 64, _i & 2 ? 64 : 0, SC_TIER_WRITE_THROUGH);
    for (uint32_t turn = 1; turn <= 6; turn++) (void)tiered_serve(&t, tokens, turn * N);
    tiered_clear_device(&t);
    ck_assert_uint_eq(tiered_serve(&t, tokens, 6 * N + 1), 6 * N);
    /* Half of the KV is on the device still. */
    tiered_clear_device(&t);
    ck_assert_uint_eq(tiered_serve(&t, tokens, 3 * N + 1), 3 * N);
    sc_room got;
    rig_ok(sc_cache_evict(t.rig->cache, 0, UINT32_MAX, &got));
    uint64_t pages = rig_stats(t.rig).pages_in;
    struct req req;
    ck_assert_uint_eq(tiered_open(&t, &req, tokens, 6 * N + 1), 6 * N);
    /* with pages of 1 that of the token behind is there, too */
    ck_assert_uint_eq(rig_stats(t.rig).pages_in - pages,
        3 * N / options.page - (options.page == 1));
    req_close(t.rig, &req, 0, SC_RELEASE_KEEP);
    tiered_deinit(&t);
}
END_TEST

START_TEST(tiers__waiters_share_one_restore)
{
    struct req req[3];
    case_open(16, 32, 0, SC_TIER_WRITE_THROUGH);
    (void)tiered_serve(&t, prompt(0), N);
    tiered_clear_device(&t);
    atomic_store(&t.late, true);
    for (uint32_t i = 0; i < 3; i++) rig_ok(req_try(t.rig, &req[i], prompt(0), N + 1));
    sc_lease_info info = rig_info(t.rig, req[0].lease);
    for (uint32_t i = 0; i < 3; i++) {
        sc_lease_info other = rig_info(t.rig, req[i].lease);
        ck_assert_int_eq(other.state, SC_LEASE_WAITING);
        ck_assert_int_eq(other.reason, SC_REASON_RESTORING);
        ck_assert_uint_eq(other.restore_ticket, info.restore_ticket);
        ck_assert_uint_eq(other.restore_len, N);
        ck_assert_uint_eq(other.external_len, 0);
    }
    rig_verify(t.rig);
    req_close(t.rig, &req[1], 0, SC_RELEASE_KEEP); /* one does not wait for the end */
    ck_assert_uint_eq(tiered_settle(&t), 0);
    ck_assert_uint_eq(rig_stats(t.rig).restored, 1);
    for (uint32_t i = 0; i < 3; i += 2) {
        info = rig_info(t.rig, req[i].lease);
        ck_assert_uint_eq(info.resume_len, N);
        ck_assert_int_eq(info.reason, SC_REASON_NONE);
        req_start(t.rig, &req[i]);
        rig_check_lease(t.rig, &req[i]);
        req_run(t.rig, &req[i], 64);
        req_close(t.rig, &req[i], 0, SC_RELEASE_KEEP);
    }
    tiered_deinit(&t);
}
END_TEST

/* Every other slot works: what comes back goes to the lease's own. */
START_TEST(tiers__without_a_free_slot_the_working_slot_is_filled)
{
    struct req busy[7], req;
    int32_t other[8];
    case_of(16);
    options.cache.without_kv = _i & 1;
    tiered_init(&t, &options, 32, 0, SC_TIER_WRITE_THROUGH);
    if (_i & 1) { /* the rig computes no states without KV: bytes are enough */
        rig_ok(req_try(t.rig, &req, prompt(0), N));
        sc_row row = {req.lease, 0, N, NULL, 0, 0, NULL};
        sc_batch batch;
        sc_status each;
        rig_ok(sc_step_plan(t.rig->cache, ++t.rig->step, &row, 1, 0, &batch, &each));
        rig_state_write(t.rig, rig_word(&batch, batch.at_dest, 0), 7);
        sc_result result = {req.lease, N, NULL, 0};
        rig_ok(sc_step_commit(t.rig->cache, t.rig->step, &result, 1, &each));
        req_close(t.rig, &req, 0, SC_RELEASE_KEEP);
    } else {
        (void)tiered_serve(&t, prompt(0), N);
    }
    tiered_clear_device(&t);
    for (uint32_t i = 0; i < 7; i++) {
        rig_fill(other, 8, 50000 + 100 * (int32_t)i);
        rig_ok(req_try(t.rig, &busy[i], other, 8));
    }
    atomic_store(&t.late, true);
    rig_ok(req_try(t.rig, &req, prompt(0), N + 1));
    ck_assert_int_eq(rig_info(t.rig, req.lease).state, SC_LEASE_WAITING);
    int32_t working = rig_info(t.rig, req.lease).working_slot;
    rig_verify(t.rig);
    if (_i & 2) { /* released meanwhile: the slot is free when the transfer has ended */
        req_close(t.rig, &req, 0, SC_RELEASE_KEEP);
        rig_verify(t.rig);
        ck_assert_uint_eq(rig_room(t.rig).slots_free, 0);
        ck_assert_uint_eq(tiered_settle(&t), 0);
        ck_assert_uint_eq(rig_stats(t.rig).restored, 1);
    } else {
        ck_assert_uint_eq(tiered_settle(&t), 0);
        sc_lease_info info = rig_info(t.rig, req.lease);
        ck_assert_uint_eq(info.resume_len, N);
        ck_assert_int_eq(info.source_slot, working);
        ck_assert_uint_eq(rig_stats(t.rig).restored, 0);
        ck_assert_uint_eq(rig_stats(t.rig).resumed_by_tier[SC_TIER_HOST], 1);
        if (_i & 1) {
            ck_assert(rig_state_is(t.rig, working, 7));
        } else {
            req_start(t.rig, &req);
            rig_check_lease(t.rig, &req);
            req_run(t.rig, &req, 64);
        }
        req_close(t.rig, &req, 0, SC_RELEASE_KEEP);
    }
    for (uint32_t i = 0; i < 7; i++) req_close(t.rig, &busy[i], 0, SC_RELEASE_DISCARD);
    (void)tiered_settle(&t);
    tiered_deinit(&t);
}
END_TEST

/* ---- what goes wrong ---- */

static void expect_shorter(sc_reason reason)
{
    struct req req;
    uint64_t before = rig_stats(t.rig).reason_count[reason];
    ck_assert_uint_eq(tiered_open(&t, &req, prompt(0), N + 1), 0);
    ck_assert_int_eq(rig_info(t.rig, req.lease).reason, reason);
    ck_assert_uint_eq(rig_stats(t.rig).reason_count[reason], before + 1);
    req_run(t.rig, &req, 64);
    req_close(t.rig, &req, 0, SC_RELEASE_DISCARD);
    (void)tiered_settle(&t);
}

START_TEST(tiers__a_failed_restore_is_a_shorter_hit_with_a_reason)
{
    case_of(16);
    options.cache.save_flags = SC_SAVE_END;
    tiered_init(&t, &options, _i & 1 ? 0 : 32, _i & 1 ? 32 : 0, SC_TIER_WRITE_THROUGH);
    (void)tiered_serve(&t, prompt(0), N);
    tiered_clear_device(&t);
    if (_i < 2) atomic_store(&t.refuse, 1);
    if (_i / 2 == 1) atomic_store(&t.spoil, 1);
    if (_i / 2 == 2) t.no_pages = true;
    expect_shorter(_i / 2 == 2 ? SC_REASON_TIER_ROOM : SC_REASON_TIER_FAILED);
    t.no_pages = false;
    /* An I/O error condemns the copy; a device that would not, does not. */
    uint32_t again = _i / 2 == 1 ? 0 : N;
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(0), N + 1).state_len[_i & 1 ? SC_TIER_DISK
                                                                           : SC_TIER_HOST],
        again);
    tiered_clear_device(&t);
    ck_assert_uint_eq(tiered_serve(&t, prompt(0), N + 1), again);
    tiered_deinit(&t);
}
END_TEST

/* A store that fails: the state stays where it was, and may be tried again. */
START_TEST(tiers__a_failed_store_is_no_copy)
{
    case_of(16);
    options.cache.save_flags = SC_SAVE_END;
    tiered_init(&t, &options, _i & 1 ? 0 : 32, _i & 1 ? 32 : 0, SC_TIER_WRITE_THROUGH);
    if (_i / 2 == 0) atomic_store(&t.refuse, 1);
    if (_i / 2 == 1) atomic_store(&t.spoil, 1);
    if (_i / 2 == 2) tier_fail_arm(&t.fail, NULL, 1, ENOSPC);
    (void)tiered_serve(&t, prompt(0), N);
    (void)tier_fail_disarm(&t.fail);
    if (_i != 4) { /* the host tier makes no system calls */
        ck_assert_uint_eq(rig_stats(t.rig).transfers_failed, 1);
        ck_assert_uint_eq(rig_stats(t.rig).tier_stored[_i & 1 ? SC_TIER_DISK : SC_TIER_HOST], 0);
        ck_assert_uint_eq(rig_stats(t.rig).tier_bytes[_i & 1 ? SC_TIER_DISK : SC_TIER_HOST], 0);
    }
    ck_assert_uint_eq(tiered_serve(&t, prompt(0), N + 1), N); /* of the device */
    tiered_clear_device(&t);
    tiered_deinit(&t);
}
END_TEST

START_TEST(tiers__a_damaged_record_is_a_miss_and_forgotten)
{
    case_open(16, 0, 64, SC_TIER_WRITE_THROUGH);
    (void)tiered_serve(&t, prompt(0), N);
    tiered_stop(&t);
    tiered_damage(&t);
    tiered_start(&t, &options);
    ck_assert_uint_eq(rig_stats(t.rig).tier_loaded, 1); /* payload is checked when it is read */
    struct req req;
    ck_assert_uint_eq(tiered_open(&t, &req, prompt(0), N + 1), 0);
    ck_assert_int_eq(rig_info(t.rig, req.lease).reason, SC_REASON_TIER_FAILED);
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(0), N + 1).state_len[SC_TIER_DISK], 0);
    req_run(t.rig, &req, 64);
    req_close(t.rig, &req, 0, SC_RELEASE_KEEP);
    (void)tiered_settle(&t);
    tiered_clear_device(&t);
    ck_assert_uint_eq(tiered_serve(&t, prompt(0), N + 1), N); /* it was stored anew */
    tiered_deinit(&t);
}
END_TEST

/* A record is lost, those behind it are not; the last of them makes room for the record itself,
 * when it is stored again: its KV begins where it was to begin. */
START_TEST(tiers__what_hangs_on_a_record_makes_room_for_it)
{
    int32_t tokens[3 * N + 1];
    struct req req;
    rig_fill(tokens, 3 * N + 1, 1);
    case_of(16);
    options.cache.save_flags = SC_SAVE_END;
    options.cache.policy = "lru";
    tiered_init(&t, &options, 6, 0, SC_TIER_WRITE_THROUGH);
    for (uint32_t turn = 1; turn <= 3; turn++) (void)tiered_serve(&t, tokens, turn * N);
    uint64_t stored = rig_stats(t.rig).tier_stored[SC_TIER_HOST];
    ck_assert_uint_eq(stored, 3);
    uint64_t room = t.options.host.bytes / (rig_stats(t.rig).tier_bytes[SC_TIER_HOST] / stored);
    for (uint32_t i = 0; i + stored < room; i++) (void)tiered_serve(&t, prompt(i + 1), N);
    ck_assert_uint_eq(rig_stats(t.rig).tier_dropped[SC_TIER_HOST], 0);
    tiered_clear_device(&t);
    atomic_store(&t.spoil, 1);
    ck_assert_uint_le(tiered_open(&t, &req, tokens, 2 * N + 1), N);
    ck_assert_uint_eq(rig_stats(t.rig).transfers_failed, 1);
    req_close(t.rig, &req, 0, SC_RELEASE_DISCARD);
    (void)tiered_serve(&t, prompt(40), N); /* where the lost record was */
    ck_assert_uint_eq(rig_stats(t.rig).tier_dropped[SC_TIER_HOST], 0);
    ck_assert_uint_eq(tiered_serve(&t, tokens, 2 * N), N);
    ck_assert_uint_eq(rig_stats(t.rig).tier_dropped[SC_TIER_HOST], 1);
    tiered_clear_device(&t);
    ck_assert_uint_eq(rig_lookup(t.rig, tokens, 3 * N + 1).state_len[SC_TIER_HOST], 2 * N);
    ck_assert_uint_eq(tiered_serve(&t, tokens, 2 * N + 1), 2 * N);
    tiered_deinit(&t);
}
END_TEST

/* A record of another model, of other kernels or of pages of another size. */
START_TEST(tiers__records_of_others_are_not_offered)
{
    case_open(16, 0, 64, SC_TIER_WRITE_THROUGH);
    (void)tiered_serve(&t, prompt(0), N);
    tiered_stop(&t);
    t.options.numerics = 2;
    tiered_start(&t, &options);
    ck_assert_uint_eq(rig_stats(t.rig).tier_loaded, 0);
    tiered_stop(&t);
    t.options.numerics = 1;
    t.mover.page_bytes *= 2;
    tiered_start(&t, &options);
    ck_assert_uint_eq(rig_stats(t.rig).tier_loaded, 0);
    tiered_stop(&t);
    t.mover.page_bytes /= 2;
    tiered_start(&t, &options);
    ck_assert_uint_eq(rig_stats(t.rig).tier_loaded, 1);
    tiered_deinit(&t);
}
END_TEST

/* The agreed list says that it failed, on another rank: it is taken back here, too. */
START_TEST(tiers__what_failed_elsewhere_has_failed)
{
    sc_done done[4];
    uint32_t count = 0;
    case_open(16, _i ? 0 : 32, _i ? 32 : 0, SC_TIER_WRITE_THROUGH);
    (void)rig_serve(t.rig, prompt(0), N, 64, SC_RELEASE_KEEP);
    while (count == 0) count = tiered_poll(&t, done, 4);
    ck_assert_int_eq(done[0].status, SC_OK);
    done[0].status = SC_ERR_IO;
    rig_ok(sc_cache_apply(t.rig->cache, done, 1, 0));
    rig_verify(t.rig);
    tiered_clear_device(&t);
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(0), N + 1).state_len[_i + 1], 0);
    tiered_stop(&t);
    tiered_start(&t, &options); /* nor is it on disk */
    ck_assert_uint_eq(rig_stats(t.rig).tier_loaded, 0);
    tiered_deinit(&t);
}
END_TEST

START_TEST(tiers__a_deadline_ends_waiting)
{
    struct req req;
    case_open(16, 32, 0, SC_TIER_WRITE_THROUGH);
    (void)tiered_serve(&t, prompt(0), N);
    tiered_clear_device(&t);
    atomic_store(&t.late, true);
    sc_request request = {.key = rig_key(t.rig, prompt(0), N + 1), .deadline_ns = 1000};
    rig_ok(req_ask(t.rig, &req, &request));
    ck_assert_int_eq(rig_info(t.rig, req.lease).state, SC_LEASE_WAITING);
    t.rig->now_ns = 999;
    rig_ok(sc_cache_apply(t.rig->cache, NULL, 0, t.rig->now_ns));
    ck_assert_int_eq(rig_info(t.rig, req.lease).state, SC_LEASE_WAITING);
    t.rig->now_ns = 1000;
    rig_ok(sc_cache_apply(t.rig->cache, NULL, 0, t.rig->now_ns));
    sc_lease_info info = rig_info(t.rig, req.lease);
    ck_assert_int_eq(info.state, SC_LEASE_READY);
    ck_assert_int_eq(info.reason, SC_REASON_TIER_LATE);
    ck_assert_uint_eq(info.resume_len, 0);
    req_run(t.rig, &req, 16); /* it goes on, and meets what comes late */
    rig_verify(t.rig);
    ck_assert_uint_eq(tiered_settle(&t), 0);
    req_close(t.rig, &req, 0, SC_RELEASE_KEEP);
    (void)tiered_settle(&t);
    /* Not begun at all where it would end too late. */
    tiered_clear_device(&t);
    tiered_stop(&t);
    t.options.host.restore_latency_ns = 500;
    tiered_start(&t, &options);
    (void)tiered_serve(&t, prompt(0), N);
    tiered_clear_device(&t);
    request = (sc_request){.key = rig_key(t.rig, prompt(0), N + 1), .deadline_ns = 1499};
    rig_ok(req_ask(t.rig, &req, &request));
    info = rig_info(t.rig, req.lease);
    ck_assert_int_eq(info.state, SC_LEASE_READY);
    ck_assert_int_eq(info.reason, SC_REASON_TIER_LATE);
    req_close(t.rig, &req, 0, SC_RELEASE_DISCARD);
    tiered_deinit(&t);
}
END_TEST

/* A mover that never ends what it began: nothing that it may still write is given to anybody. */
START_TEST(tiers__a_lost_ticket_costs_its_slot_and_pages_alone)
{
    struct req req;
    case_open(16, 32, 0, SC_TIER_WRITE_THROUGH);
    (void)tiered_serve(&t, prompt(0), N);
    tiered_clear_device(&t);
    atomic_store(&t.late, true);
    rig_ok(req_try(t.rig, &req, prompt(0), N + 1));
    req_close(t.rig, &req, 0, SC_RELEASE_DISCARD);
    while (tiered_late(&t) == 0) tiered_pause();
    rig_verify(t.rig);
    ck_assert_uint_eq(rig_room(t.rig).slots_held, 1);
    sc_room got;
    rig_ok(sc_cache_evict(t.rig->cache, UINT32_MAX, UINT32_MAX, &got));
    ck_assert_uint_eq(got.pages_drainable, 0);
    ck_assert_int_eq(sc_namespace_close(t.rig->cache, t.rig->ns), SC_ERR_BUSY);
    ck_assert_int_eq(sc_cache_destroy(t.rig->cache), SC_ERR_BUSY);
    ck_assert_int_eq(sc_tiers_destroy(t.tiers), SC_ERR_BUSY);
    rig_verify(t.rig);
    atomic_store(&t.late, false); /* others go on */
    ck_assert_uint_eq(rig_serve(t.rig, prompt(1), N, 64, SC_RELEASE_KEEP), 0);
    tiered_deinit(&t); /* ends the move at last */
}
END_TEST

/* ---- budgets ---- */

START_TEST(tiers__evicted_states_go_to_host_and_from_there_to_disk)
{
    case_of(16);
    options.cache.policy = _i & 1 ? "gittins" : NULL;
    tiered_init(&t, &options, 16, 400, SC_TIER_WRITE_BACK);
    for (uint32_t i = 0; i < 60; i++) (void)tiered_serve(&t, prompt(i), N);
    sc_cache_stats stats = rig_stats(t.rig);
    ck_assert_uint_gt(stats.tier_stored[SC_TIER_HOST], 40);
    ck_assert_uint_gt(stats.tier_stored[SC_TIER_DISK], 15);
    ck_assert_uint_le(stats.tier_lost, 6);
    for (uint32_t i = 60; i-- > 0;) (void)tiered_serve(&t, prompt(i), N + 1);
    stats = rig_stats(t.rig);
    ck_assert_uint_gt(stats.resumed, stats.resumed_by_tier[SC_TIER_HOST]);
    ck_assert_uint_gt(stats.resumed_by_tier[SC_TIER_HOST], 5);
    ck_assert_uint_gt(stats.resumed_by_tier[SC_TIER_DISK], 20);
    tiered_deinit(&t);
}
END_TEST

START_TEST(tiers__the_nth_use_writes_through)
{
    case_of(16);
    options.slots = 64;
    tiered_prepare(&t, &options, 32, 0, SC_TIER_WRITE_SELECTIVE);
    t.options.host.write_uses = 3;
    tiered_start(&t, &options);
    for (uint32_t use = 0; use < 4; use++) {
        struct req req;
        ck_assert_uint_eq(rig_stats(t.rig).tier_stored[SC_TIER_HOST], 0);
        ck_assert_uint_eq(tiered_open(&t, &req, prompt(0), use ? N + 1 : N), use ? N : 0);
        if (!use) req_run(t.rig, &req, 64);
        req_close(t.rig, &req, 0, SC_RELEASE_KEEP);
        (void)tiered_settle(&t);
    }
    ck_assert_uint_eq(rig_stats(t.rig).tier_stored[SC_TIER_HOST], 1);
    tiered_deinit(&t);
}
END_TEST

START_TEST(tiers__a_disk_takes_so_much_a_day)
{
    const uint64_t day = (uint64_t)86400 * 1000000000;
    case_prepare(16, 0, 64, SC_TIER_WRITE_THROUGH);
    t.options.disk.day_bytes = tiered_bytes(&t, 2, N / 16);
    tiered_start(&t, &options);
    t.rig->now_ns = 100 * day;
    for (uint32_t i = 0; i < 6; i++) (void)tiered_serve(&t, prompt(i), N);
    uint64_t stored = rig_stats(t.rig).tier_stored[SC_TIER_DISK];
    ck_assert(stored >= 3 && stored <= 5);
    ck_assert_uint_gt(rig_stats(t.rig).tier_refused[SC_TIER_DISK], 0);
    tiered_stop(&t); /* a restart is no new day */
    tiered_start(&t, &options);
    (void)tiered_serve(&t, prompt(10), N);
    ck_assert_uint_le(rig_stats(t.rig).tier_stored[SC_TIER_DISK], 5 - stored);
    uint64_t before = rig_stats(t.rig).tier_stored[SC_TIER_DISK];
    t.rig->now_ns += day;
    (void)tiered_serve(&t, prompt(11), N);
    ck_assert_uint_eq(rig_stats(t.rig).tier_stored[SC_TIER_DISK], before + 1);
    tiered_deinit(&t);
}
END_TEST

START_TEST(tiers__restore_or_recompute_is_a_matter_of_cost)
{
    case_of(16);
    options.cache.flops_per_token = 1e6;
    options.cache.save_flags = SC_SAVE_END;
    tiered_prepare(&t, &options, 32, 0, SC_TIER_WRITE_THROUGH);
    t.options.flops_per_s = 1000000000; /* a token in a millisecond */
    t.options.host.restore_bytes_per_s = 1000000000;
    t.options.host.restore_latency_ns = _i ? 1000000000 : 1000; /* longer than 64 tokens, or not */
    tiered_start(&t, &options);
    (void)tiered_serve(&t, prompt(0), N);
    tiered_clear_device(&t);
    sc_answer answer = rig_lookup(t.rig, prompt(0), N + 1);
    ck_assert_uint_eq(answer.state_len[SC_TIER_HOST], N);
    ck_assert_uint_gt(answer.restore_ns[SC_TIER_HOST], t.options.host.restore_latency_ns);
    if (_i) {
        expect_shorter(SC_REASON_RECOMPUTE);
    } else {
        ck_assert_uint_eq(tiered_serve(&t, prompt(0), N + 1), N);
    }
    tiered_deinit(&t);
}
END_TEST

/* ---- kinds of models ---- */

START_TEST(tiers__without_a_mover_a_hit_needs_the_kv_on_the_device)
{
    sc_room got;
    case_prepare(16, 32, 0, SC_TIER_WRITE_THROUGH);
    t.mover.read = NULL;
    tiered_start(&t, &options);
    (void)tiered_serve(&t, prompt(0), N);
    rig_ok(sc_cache_evict(t.rig->cache, 0, UINT32_MAX, &got)); /* states alone */
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(0), N + 1).state_len[SC_TIER_HOST], N);
    ck_assert_uint_eq(tiered_serve(&t, prompt(0), N + 1), N);
    tiered_clear_device(&t);
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(0), N + 1).state_len[SC_TIER_HOST], 0);
    tiered_deinit(&t);
}
END_TEST

START_TEST(tiers__tails_and_marks_come_back)
{
    int32_t tokens[N];
    case_of(16);
    options.cache.tails = true;
    tiered_init(&t, &options, _i ? 0 : 64, _i ? 64 : 0, SC_TIER_WRITE_THROUGH);
    rig_fill(tokens, N, 1);
    for (int32_t id = 0; id < 3; id++) { /* a tenant's salt; an image */
        tokens[0] = 1 | id << RIG_MARK_SHIFT;
        tokens[20] = 21 | (id == 2 ? 7 << RIG_MARK_SHIFT : 0);
        ck_assert_uint_eq(tiered_serve(&t, tokens, 43), 0);
    }
    tiered_clear_device(&t);
    if (_i) {
        tiered_stop(&t);
        tiered_start(&t, &options);
        ck_assert_uint_gt(rig_stats(t.rig).tier_loaded, 2);
    }
    for (int32_t id = 0; id < 3; id++) {
        tokens[0] = 1 | id << RIG_MARK_SHIFT;
        tokens[20] = 21 | (id == 2 ? 7 << RIG_MARK_SHIFT : 0);
        ck_assert_uint_eq(tiered_serve(&t, tokens, 50), 43);
    }
    tokens[0] = 1 | 5 << RIG_MARK_SHIFT; /* nobody's */
    sc_answer answer = rig_lookup(t.rig, tokens, 50);
    ck_assert_uint_eq(answer.state_len[SC_TIER_HOST] + answer.state_len[SC_TIER_DISK], 0);
    tiered_deinit(&t);
}
END_TEST

START_TEST(tiers__a_codec_is_part_of_the_answer)
{
    case_prepare(16, 32, 64, SC_TIER_WRITE_THROUGH);
    /* Raw in memory, compressed on disk: another form of the same bits. */
    t.options.disk.zstd_level = 3;
    tiered_start(&t, &options);
    (void)tiered_serve(&t, prompt(0), N);
    ck_assert_uint_gt(rig_stats(t.rig).tier_stored[SC_TIER_DISK], 0);
    case_restart();
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(0), N + 1).codec[SC_TIER_DISK], 1);
    ck_assert_uint_eq(tiered_serve(&t, prompt(0), N + 1), N);
    tiered_stop(&t);
    t.options.disk.codec = 3;
    ck_assert_int_eq(sc_tiers_create(&t.options, &t.tiers), SC_ERR_INVALID); /* not by accident */
    t.options.disk.lossy = true;
    tiered_start(&t, &options);
    (void)tiered_serve(&t, prompt(1), N);
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(0), N + 1).codec[SC_TIER_DISK], 3);
    tiered_deinit(&t);
}
END_TEST

/* ---- restarts ---- */

START_TEST(tiers__a_restart_finds_the_tree_on_disk)
{
    int32_t tokens[4 * N + 1];
    rig_fill(tokens, 4 * N + 1, 1);
    case_open(_i & 1 ? 16 : 1, _i & 2 ? 16 : 0, 200, SC_TIER_WRITE_THROUGH);
    for (uint32_t turn = 1; turn <= 4; turn++) (void)tiered_serve(&t, tokens, turn * N);
    for (uint32_t i = 1; i < 20; i++) (void)tiered_serve(&t, prompt(i), N);
    uint64_t on_disk = rig_stats(t.rig).tier_stored[SC_TIER_DISK];
    uint64_t reads = 0;
    tiered_stop(&t);
    for (uint32_t again = 0; again < 2; again++) {
        tiered_start(&t, &options);
        ck_assert_uint_eq(rig_stats(t.rig).tier_loaded, on_disk);
        sc_tiers_stats stats = {.struct_size = sizeof stats};
        rig_ok(sc_tiers_stats_get(t.tiers, &stats));
        ck_assert_uint_eq(stats.restored[SC_TIER_DISK], 0); /* payload is read when used */
        ck_assert_uint_eq(tiered_serve(&t, tokens, 4 * N + 1), 4 * N);
        for (uint32_t i = 1; i < 20; i++) {
            ck_assert_uint_eq(tiered_serve(&t, prompt(i), N + 1), N);
        }
        rig_ok(sc_tiers_stats_get(t.tiers, &stats));
        reads = stats.restored[SC_TIER_DISK];
        ck_assert_uint_ge(reads, 20);
        on_disk += rig_stats(t.rig).tier_stored[SC_TIER_DISK];
        tiered_stop(&t);
    }
    tiered_free(&t);
}
END_TEST

/* Adapters are kept apart, and a namespace that is closed leaves nothing. */
START_TEST(tiers__namespaces_are_apart_below_too)
{
    sc_namespace first, second;
    case_open(16, 0, 64, SC_TIER_WRITE_THROUGH);
    first = t.rig->ns;
    (void)tiered_serve(&t, prompt(0), N);
    rig_ok(sc_namespace_open(t.rig->cache, NULL, 7, 1, &second));
    t.rig->ns = second;
    ck_assert_uint_eq(tiered_serve(&t, prompt(0), N), 0);
    tiered_clear_device(&t);
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(0), N + 1).state_len[SC_TIER_DISK], N);
    rig_ok(sc_namespace_close(t.rig->cache, first));
    rig_verify(t.rig);
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(0), N + 1).state_len[SC_TIER_DISK], N);
    tiered_stop(&t);
    tiered_start(&t, &options); /* opens 0, 0 again */
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(0), N + 1).state_len[SC_TIER_DISK], 0);
    rig_ok(sc_namespace_open(t.rig->cache, NULL, 7, 1, &t.rig->ns));
    ck_assert_uint_eq(tiered_serve(&t, prompt(0), N + 1), N);
    tiered_deinit(&t);
}
END_TEST

/* The same tokens computed in another way: KV of the two is never mixed. */
START_TEST(tiers__histories_do_not_mix)
{
    struct req req, other;
    case_of(1);
    options.cache.keep_cuts = true;
    tiered_init(&t, &options, 64, 0, SC_TIER_WRITE_THROUGH);
    (void)tiered_serve(&t, prompt(0), N);
    tiered_clear_device(&t);
    atomic_store(&t.late, true);
    rig_ok(req_try(t.rig, &req, prompt(0), N + 1)); /* waits */
    sc_request cold = {.key = rig_key(t.rig, prompt(0), N + 1), .deadline_ns = 1};
    rig_ok(req_ask(t.rig, &other, &cold));
    t.rig->now_ns = 2;
    rig_ok(sc_cache_apply(t.rig->cache, NULL, 0, t.rig->now_ns));
    req_run(t.rig, &other, 7); /* cuts everywhere */
    rig_verify(t.rig);
    (void)tiered_settle(&t);
    sc_lease_info info = rig_info(t.rig, req.lease);
    ck_assert(info.resume_len == N || info.reason == SC_REASON_TIER_FAILED);
    req_start(t.rig, &req);
    rig_check_lease(t.rig, &req);
    req_run(t.rig, &req, 64);
    req_close(t.rig, &other, 0, SC_RELEASE_KEEP);
    req_close(t.rig, &req, 0, SC_RELEASE_KEEP);
    (void)tiered_settle(&t);
    tiered_deinit(&t);
}
END_TEST

static Suite *tiers_suite(void)
{
    Suite *suite = suite_create("engine_tiers");
    TCase *tc = tcase_create("tiers");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, tiers__a_state_comes_back_from_each_tier_with_its_kv, 0, 4);
    tcase_add_loop_test(tc, tiers__kv_comes_from_all_records_on_the_path, 0, 4);
    tcase_add_test(tc, tiers__waiters_share_one_restore);
    tcase_add_loop_test(tc, tiers__without_a_free_slot_the_working_slot_is_filled, 0, 4);
    tcase_add_loop_test(tc, tiers__a_failed_restore_is_a_shorter_hit_with_a_reason, 0, 6);
    tcase_add_loop_test(tc, tiers__a_failed_store_is_no_copy, 0, 6);
    tcase_add_loop_test(tc, tiers__what_failed_elsewhere_has_failed, 0, 2);
    tcase_add_test(tc, tiers__a_damaged_record_is_a_miss_and_forgotten);
    tcase_add_test(tc, tiers__what_hangs_on_a_record_makes_room_for_it);
    tcase_add_test(tc, tiers__records_of_others_are_not_offered);
    tcase_add_test(tc, tiers__a_deadline_ends_waiting);
    tcase_add_test(tc, tiers__a_lost_ticket_costs_its_slot_and_pages_alone);
    tcase_add_loop_test(tc, tiers__evicted_states_go_to_host_and_from_there_to_disk, 0, 2);
    tcase_add_test(tc, tiers__the_nth_use_writes_through);
    tcase_add_test(tc, tiers__a_disk_takes_so_much_a_day);
    tcase_add_loop_test(tc, tiers__restore_or_recompute_is_a_matter_of_cost, 0, 2);
    tcase_add_test(tc, tiers__without_a_mover_a_hit_needs_the_kv_on_the_device);
    tcase_add_loop_test(tc, tiers__tails_and_marks_come_back, 0, 2);
    tcase_add_test(tc, tiers__a_codec_is_part_of_the_answer);
    tcase_add_loop_test(tc, tiers__a_restart_finds_the_tree_on_disk, 0, 4);
    tcase_add_test(tc, tiers__namespaces_are_apart_below_too);
    tcase_add_test(tc, tiers__histories_do_not_mix);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return rig_main(tiers_suite());
}
