/* SPDX-License-Identifier: Apache-2.0 */
/* Field reports about what lies below the device: class L, and the halves of others that need a
 * tier; those of records on disk are in test_reports_disk.c. docs/field-reports.md is the table;
 * report_N is entry N there. */
#include "kernels/backend.h"
#include "test_engine_tiers.h"

enum { N = 64, WAIT_MS = 20000 };

static struct tiered t;
static struct rig_options options;

static void prepare(uint32_t page, uint32_t slots)
{
    options = (struct rig_options)RIG_OPTIONS_INIT;
    options.page = page;
    options.slots = slots;
    options.kv_ids = 4096;
    options.cache.save_flags = SC_SAVE_END;
    t.rig = NULL;
}

static void start(uint32_t page, uint32_t slots, bool disk)
{
    prepare(page, slots);
    tiered_init(&t, &options, disk ? 0 : 64, disk ? 64 : 0, SC_TIER_WRITE_THROUGH);
}

static const int32_t *prompt(uint32_t i)
{
    static int32_t tokens[8 * N];
    rig_fill(tokens, 8 * N, 10000 * (int32_t)(i + 1));
    return tokens;
}

static void junk_slots(void)
{
    for (int32_t slot = 1; slot <= (int32_t)options.slots; slot++) {
        for (uint32_t p = 0; p < t.rig->part_count; p++) {
            memset(rig_words(t.rig, p, slot), 0xff, t.rig->parts[p].bytes); /* NaN */
        }
    }
}

static bool wait_until(bool (*holds)(void))
{
    for (uint32_t i = 0; i < WAIT_MS && !holds(); i++) {
        (void)nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return holds();
}

static bool one_is_late(void)
{
    return tiered_late(&t) > 0;
}

static bool two_are_late(void)
{
    return tiered_late(&t) > 1;
}

/* The lease goes on to the end of its tokens, right all the way. */
static void finish(struct req *req, enum sc_release how)
{
    req_start(t.rig, req);
    rig_check_lease(t.rig, req);
    req_run(t.rig, req, 64);
    req_close(t.rig, req, 0, how);
}

/* ---- holds of transfers ---- */

/* Carries out the late move of `count` pages. */
static void move_pages(uint32_t count)
{
    struct move move = {.count = 0};
    (void)pthread_mutex_lock(&t.lock);
    for (uint32_t i = 0; i < t.move_count; i++) {
        if (t.moves[i].count != count) continue;
        move = t.moves[i];
        t.moves[i] = t.moves[--t.move_count];
        break;
    }
    (void)pthread_mutex_unlock(&t.lock);
    ck_assert_uint_eq(move.count, count);
    tiered_carry_out(&t, &move);
}

static void apply_one(void)
{
    sc_done done;
    uint32_t count = 0;
    for (uint32_t i = 0; i < WAIT_MS && count == 0; i++) {
        count = tiered_poll(&t, &done, 1);
        if (count == 0) (void)nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    ck_assert_uint_eq(count, 1);
    ck_assert_int_eq(done.status, SC_OK);
    rig_ok(sc_cache_apply(t.rig->cache, &done, 1, t.rig->now_ns));
    rig_verify(t.rig);
}

static void evict_all(void)
{
    sc_room got;
    rig_ok(sc_cache_evict(t.rig->cache, UINT32_MAX, UINT32_MAX, &got));
    rig_drain(t.rig);
    rig_verify(t.rig);
}

START_TEST(report_54__a_parent_that_is_being_stored_stops_the_cascade)
{
    start(16, 8, false);
    atomic_store(&t.late, true);
    (void)rig_serve(t.rig, prompt(0), N, 64, SC_RELEASE_KEEP);
    ck_assert(wait_until(one_is_late));
    (void)rig_serve(t.rig, prompt(0), 3 * N, 64, SC_RELEASE_KEEP);
    ck_assert(wait_until(two_are_late));
    evict_all();
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(0), 3 * N + 1).state_len[SC_TIER_DEVICE], 3 * N);
    move_pages(3 * N / 16); /* the child's store ends; its parent was not there to build on */
    apply_one();
    evict_all();
    sc_answer answer = rig_lookup(t.rig, prompt(0), 3 * N + 1);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], N);
    ck_assert_uint_eq(answer.kv_len, N);
    ck_assert_uint_eq(answer.state_len[SC_TIER_HOST], 3 * N);
    move_pages(N / 16);
    apply_one();
    evict_all();
    answer = rig_lookup(t.rig, prompt(0), 3 * N + 1);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 0);
    ck_assert_uint_eq(answer.kv_len, 0);
    ck_assert_uint_eq(rig_room(t.rig).pages_cached, 0);
    atomic_store(&t.late, false);
    ck_assert_uint_eq(tiered_serve(&t, prompt(0), 3 * N + 1), 3 * N);
    tiered_deinit(&t);
}
END_TEST

static uint32_t served;

static bool all_are_late(void)
{
    return tiered_late(&t) == served;
}

/* All slots are sources of stores: room comes with their completions, without an eviction. */
START_TEST(report_68__stores_that_have_ended_give_their_slots)
{
    struct req req;
    start(16, 4, false);
    atomic_store(&t.late, true);
    for (served = 0; req_try(t.rig, &req, prompt(served), N) == SC_OK; served++) {
        ck_assert_uint_lt(served, 4);
        req_run(t.rig, &req, 64);
        req_close(t.rig, &req, 0, SC_RELEASE_KEEP);
    }
    ck_assert_uint_eq(served, 4);
    ck_assert(wait_until(all_are_late));
    ck_assert_uint_eq(rig_room(t.rig).slots_free + rig_room(t.rig).slots_evictable, 0);
    atomic_store(&t.late, false);
    while (tiered_move(&t)) continue;
    ck_assert_int_eq(req_try(t.rig, &req, prompt(9), N), SC_ERR_NO_SLOT);
    while (served > 0) {
        sc_done done[4];
        uint32_t count = tiered_poll(&t, done, 4);
        ck_assert_uint_eq(rig_room(t.rig).slots_evictable, 4 - served); /* poll decides nothing */
        for (uint32_t i = 0; i < count; i++) ck_assert_int_eq(done[i].status, SC_OK);
        served -= count;
        rig_ok(sc_cache_apply(t.rig->cache, done, count, t.rig->now_ns));
        if (count == 0) tiered_pause();
    }
    ck_assert_uint_eq(rig_room(t.rig).slots_evictable, 4);
    ck_assert_uint_eq(tiered_open(&t, &req, prompt(9), N), 0);
    req_close(t.rig, &req, 0, SC_RELEASE_DISCARD);
    tiered_deinit(&t);
}
END_TEST

/* ---- what was moved away comes back whole, or not at all ---- */

/* Bit 0: from disk; bit 1: its KV cannot be read. */
START_TEST(report_70__a_retracted_request_comes_back_whole_or_starts_again)
{
    struct req req;
    start(1, 8, _i & 1);
    rig_ok(req_try(t.rig, &req, prompt(0), 280));
    req_run(t.rig, &req, 280);
    req_decode(t.rig, &req, prompt(0) + 280, 20);
    req_close(t.rig, &req, 0, SC_RELEASE_KEEP);
    tiered_clear_device(&t);
    junk_slots();
    if (_i & 2) atomic_store(&t.spoil, 1);
    ck_assert_uint_eq(tiered_open(&t, &req, prompt(0), 301), _i & 2 ? 0 : 300);
    if (_i & 2) ck_assert_int_eq(rig_info(t.rig, req.lease).reason, SC_REASON_TIER_FAILED);
    finish(&req, SC_RELEASE_DISCARD);
    tiered_deinit(&t);
}
END_TEST

/* ---- L: restores, and who else uses a slot ---- */

/* A request is released while its step runs, and the step writes its slot late. A restore that is
 * asked for meanwhile goes elsewhere, or waits. `_i`: slots beside the one that drains. */
START_TEST(report_97__a_slot_that_a_step_still_writes_is_not_restored_into)
{
    struct req gone, req;
    start(16, (uint32_t)_i + 1, false);
    (void)tiered_serve(&t, prompt(0), N);
    for (uint32_t turn = 1; turn <= 20; turn++) {
        tiered_clear_device(&t);
        rig_ok(req_try(t.rig, &gone, prompt(turn), N));
        struct rig_step step = {.rows = {{&gone, N, NULL, 0}}, .count = 1};
        rig_plan(t.rig, &step);
        int32_t slot = rig_word(&step.batch, step.batch.at_dest, 0);
        rig_ok(sc_lease_release(t.rig->cache, gone.lease, 0, SC_RELEASE_DISCARD));
        ck_assert_uint_ge(rig_room(t.rig).slots_draining, 1);
        atomic_store(&t.late, turn % 2); /* the restore ends before the step, or after it */
        sc_status status = req_try(t.rig, &req, prompt(0), N + 1);
        ck_assert_int_eq(status, _i == 0 ? SC_ERR_NO_SLOT : SC_OK);
        if (turn % 2 == 0) (void)tiered_settle(&t);
        if (status == SC_OK) ck_assert_int_ne(rig_info(t.rig, req.lease).working_slot, slot);
        rig_forward(t.rig, &step); /* late */
        rig_commit(t.rig, &step);
        req_forget(t.rig, &gone);
        if (_i == 0) rig_ok(req_try(t.rig, &req, prompt(0), N + 1));
        atomic_store(&t.late, false);
        ck_assert_uint_eq(tiered_settle(&t), 0);
        ck_assert_uint_eq(rig_info(t.rig, req.lease).resume_len, N);
        finish(&req, SC_RELEASE_DISCARD);
    }
    tiered_deinit(&t);
}
END_TEST

/* A device that stops in the middle of a state. */
static struct {
    struct sc_backend backend;
    struct sc_backend_ops ops;
    _Atomic int stage; /* 1: the next copy stops; 2: it has; 3: it may go on */
} slow;

static sc_status slow_copy(sc_backend *backend, enum sc_copy_kind kind,
    const struct sc_backend_span *spans, uint32_t count, sc_stream *stream)
{
    int armed = 1;
    if (!atomic_compare_exchange_strong(&slow.stage, &armed, 2)) {
        return sc_backend_host_ops.copy(backend, kind, spans, count, stream);
    }
    struct sc_backend_span half = spans[0], rest = spans[0];
    half.bytes = rest.bytes / 2;
    rest.dst += half.bytes;
    rest.src += half.bytes;
    rest.bytes -= half.bytes;
    sc_status status = sc_backend_host_ops.copy(backend, kind, &half, 1, stream);
    while (atomic_load(&slow.stage) != 3) tiered_pause();
    if (status == SC_OK) status = sc_backend_host_ops.copy(backend, kind, &rest, 1, stream);
    if (status != SC_OK || count == 1) return status;
    return sc_backend_host_ops.copy(backend, kind, spans + 1, count - 1, stream);
}

static bool has_stopped(void)
{
    return atomic_load(&slow.stage) == 2;
}

/* Bit 0: contiguous; bit 1: every other slot works, so that the lease's own is filled. */
START_TEST(report_98__nobody_reads_a_slot_before_all_of_it_is_restored)
{
    struct req busy[3], req, other;
    prepare(16, 4);
    slow.ops = sc_backend_host_ops;
    slow.ops.copy = slow_copy;
    slow.backend = (struct sc_backend){.ops = &slow.ops, .name = "slow", .host_memory = true};
    atomic_store(&slow.stage, 0);
    options.backend = &slow.backend;
    options.layout = _i & 1 ? SC_LAYOUT_CONTIGUOUS : SC_LAYOUT_PAGE_MAJOR;
    tiered_init(&t, &options, 64, 0, SC_TIER_WRITE_THROUGH);
    (void)tiered_serve(&t, prompt(0), N);
    tiered_clear_device(&t);
    junk_slots();
    for (uint32_t i = 0; _i & 2 && i < 3; i++) rig_ok(req_try(t.rig, &busy[i], prompt(i + 1), 8));
    rig_ok(req_try(t.rig, &other, prompt(7), 8));
    req_close(t.rig, &other, 0, SC_RELEASE_DISCARD);
    atomic_store(&slow.stage, 1);
    rig_ok(req_try(t.rig, &req, prompt(0), N + 1));
    ck_assert(wait_until(has_stopped));
    sc_done done;
    ck_assert_uint_eq(tiered_poll(&t, &done, 1), 0);
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(0), N + 1).state_len[SC_TIER_DEVICE], 0);
    sc_row row = {.lease = req.lease, .to = N + 1};
    sc_batch batch;
    sc_status each;
    rig_ok(sc_step_plan(t.rig->cache, ++t.rig->step, &row, 1, 0, &batch, &each));
    ck_assert_int_eq(each, SC_ERR_STATE);
    rig_ok(sc_step_abort(t.rig->cache, t.rig->step, false));
    sc_status status = req_try(t.rig, &other, prompt(0), N + 1);
    if (status == SC_OK) {
        ck_assert_int_eq(rig_info(t.rig, other.lease).state, SC_LEASE_WAITING);
        ck_assert_uint_eq(rig_info(t.rig, other.lease).restore_ticket,
            rig_info(t.rig, req.lease).restore_ticket);
    }
    ck_assert_int_eq(status, _i & 2 ? SC_ERR_NO_SLOT : SC_OK);
    evict_all();
    atomic_store(&slow.stage, 3);
    ck_assert_uint_eq(tiered_settle(&t), 0);
    ck_assert_uint_eq(rig_info(t.rig, req.lease).resume_len, N);
    finish(&req, SC_RELEASE_DISCARD);
    if (status == SC_OK) {
        ck_assert_uint_eq(rig_info(t.rig, other.lease).resume_len, N);
        finish(&other, SC_RELEASE_DISCARD);
    }
    for (uint32_t i = 0; _i & 2 && i < 3; i++) req_close(t.rig, &busy[i], 0, SC_RELEASE_DISCARD);
    tiered_deinit(&t);
}
END_TEST

/* 32k tokens and their state, from host memory or disk. The state goes before its KV (bit 1), which
 * had cost the record its place. */
START_TEST(report_100__what_was_spilled_is_read_again)
{
    enum { LONG = 32768 };
    struct req req;
    sc_room got;
    int32_t *tokens = calloc(LONG + 1, sizeof *tokens);
    ck_assert_ptr_nonnull(tokens);
    rig_fill(tokens, LONG + 1, 1);
    prepare(16, 4);
    tiered_init(&t, &options, _i & 1 ? 0 : 400, _i & 1 ? 400 : 0, SC_TIER_WRITE_THROUGH);
    uint32_t tier = _i & 1 ? SC_TIER_DISK : SC_TIER_HOST;
    rig_ok(req_try(t.rig, &req, tokens, LONG));
    req_run(t.rig, &req, 8192);
    req_close(t.rig, &req, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(tiered_settle(&t), 0);
    ck_assert_uint_eq(rig_stats(t.rig).tier_stored[tier], 1);
    if (_i & 2) {
        rig_ok(sc_cache_evict(t.rig->cache, 0, UINT32_MAX, &got));
        ck_assert_uint_eq(rig_lookup(t.rig, tokens, LONG + 1).state_len[tier], LONG);
    }
    tiered_clear_device(&t);
    ck_assert_uint_eq(rig_lookup(t.rig, tokens, LONG + 1).state_len[tier], LONG);
    ck_assert_uint_eq(tiered_open(&t, &req, tokens, LONG + 1), LONG);
    sc_cache_stats stats = rig_stats(t.rig);
    ck_assert_uint_eq(stats.restored, 1);
    ck_assert_uint_eq(stats.resumed_by_tier[tier], 1);
    ck_assert_uint_eq(stats.tokens_hit_by_tier[tier], LONG);
    finish(&req, SC_RELEASE_DISCARD);
    tiered_deinit(&t);
    free(tokens);
}
END_TEST

/* Each call that a restore makes fails once: the waiter is told, once, within a bound. */
START_TEST(report_105__an_error_in_a_restore_reaches_who_waits)
{
    struct req req;
    uint64_t failures = 0;
    start(16, 8, true);
    for (uint64_t n = 1;; n++) {
        (void)tiered_serve(&t, prompt(0), N);
        tiered_clear_device(&t);
        rig_ok(req_try(t.rig, &req, prompt(1), 8)); /* not counted: memory of its own */
        req_close(t.rig, &req, 0, SC_RELEASE_DISCARD);
        tier_fail_arm(&t.fail, NULL, n, EIO);
        rig_ok(req_try(t.rig, &req, prompt(0), N + 1));
        uint64_t ticket = rig_info(t.rig, req.lease).restore_ticket;
        ck_assert_int_eq(rig_info(t.rig, req.lease).state, SC_LEASE_WAITING);
        sc_done done[4];
        uint32_t count = 0;
        for (uint32_t i = 0; i < WAIT_MS && count == 0; i++) {
            count = tiered_poll(&t, done, 4);
            if (count == 0) (void)nanosleep(&(struct timespec){0, 1000000}, NULL);
        }
        bool failed = tier_fail_disarm(&t.fail);
        ck_assert_uint_eq(count, 1);
        ck_assert_uint_eq(done[0].ticket, ticket);
        ck_assert(failed ? done[0].status != SC_OK : done[0].status == SC_OK);
        rig_ok(sc_cache_apply(t.rig->cache, done, 1, t.rig->now_ns));
        ck_assert_int_eq(sc_cache_apply(t.rig->cache, done, 1, t.rig->now_ns), SC_ERR_NOT_FOUND);
        ck_assert_int_eq(rig_info(t.rig, req.lease).state, SC_LEASE_READY);
        ck_assert_uint_eq(rig_info(t.rig, req.lease).resume_len, failed ? 0 : N);
        if (failed) ck_assert_int_eq(rig_info(t.rig, req.lease).reason, SC_REASON_TIER_FAILED);
        for (uint32_t i = 0; i < 20; i++) { /* nothing more comes */
            ck_assert_uint_eq(tiered_poll(&t, done, 4), 0);
            tiered_pause();
        }
        finish(&req, SC_RELEASE_DISCARD);
        failures += failed;
        if (!failed) break;
    }
    ck_assert_uint_gt(failures, 2);
    tiered_deinit(&t);
}
END_TEST

/* No counter steps back, and those that belong together add up. */
static void check_counters(const sc_cache_stats *was, const sc_cache_stats *now)
{
    uint64_t reasons = 0, kinds = 0, tiers = 0, tokens_of_tiers = 0, evicted = 0;
    for (uint32_t i = 0; i < SC_STATS_WIDTH; i++) {
        reasons += now->reason_count[i];
        kinds += now->resumed_by_kind[i];
        evicted += now->evicted[i];
        ck_assert_uint_ge(now->evicted[i], was->evicted[i]);
    }
    for (uint32_t i = 0; i < SC_TIER_COUNT; i++) {
        tiers += now->resumed_by_tier[i];
        tokens_of_tiers += now->tokens_hit_by_tier[i];
        ck_assert_uint_ge(now->resumed_by_tier[i], was->resumed_by_tier[i]);
        ck_assert_uint_ge(now->tokens_hit_by_tier[i], was->tokens_hit_by_tier[i]);
        ck_assert_uint_ge(now->tier_stored[i], was->tier_stored[i]);
        ck_assert_uint_ge(now->tier_dropped[i], was->tier_dropped[i]);
    }
    ck_assert_uint_eq(reasons, now->acquired);
    ck_assert_uint_eq(kinds, now->resumed);
    ck_assert_uint_eq(tiers, now->resumed);
    ck_assert_uint_eq(tokens_of_tiers, now->tokens_hit);
    ck_assert_uint_eq(now->acquired, now->released + now->leases_alive);
    ck_assert_uint_eq(now->saves_published + now->restored, evicted + now->snapshots_alive);
    ck_assert_uint_le(now->tokens_hit, now->tokens_asked);
    ck_assert_uint_le(now->tokens_again_hit, now->tokens_again);
    ck_assert(now->acquired >= was->acquired && now->tokens_asked >= was->tokens_asked);
    ck_assert(now->tokens_hit >= was->tokens_hit && now->tokens_again >= was->tokens_again);
    ck_assert(now->resumed >= was->resumed && now->restored >= was->restored);
}

/* Requests give way to others at random, and come back to more below, or less on the device, than
 * they had found before. */
START_TEST(report_137__counters_never_step_back)
{
    enum { PROMPTS = 12 };
    struct req req;
    uint32_t len[PROMPTS] = {0}, again = 0;
    uint64_t seed = 137 + (uint64_t)_i;
    start(16, 8, _i & 1);
    sc_cache_stats was = rig_stats(t.rig);
    for (uint32_t turn = 0; turn < 300; turn++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        uint32_t dice = (uint32_t)(seed >> 33), i = dice % PROMPTS;
        t.rig->request_flags = len[i] > 0 ? SC_REQUEST_AGAIN : 0;
        again += len[i] > 0;
        uint32_t resumed = tiered_open(&t, &req, prompt(i), 4 * N);
        sc_cache_stats now = rig_stats(t.rig);
        check_counters(&was, &now);
        uint32_t to = resumed + 16 * (1 + dice / 16 % 8);
        (void)req_step(t.rig, &req, to < 4 * N ? to : 4 * N);
        req_close(t.rig, &req, 0, dice / 256 % 4 ? SC_RELEASE_KEEP : SC_RELEASE_DISCARD);
        len[i] = to < 4 * N ? to : 0; /* it has ended, and the next is another */
        if (dice / 4096 % 8 == 0) tiered_clear_device(&t);
        was = rig_stats(t.rig);
        check_counters(&now, &was);
    }
    ck_assert_uint_eq(was.again, again);
    ck_assert_uint_gt(was.tokens_again_hit, 0);
    ck_assert_uint_gt(was.resumed_by_tier[_i & 1 ? SC_TIER_DISK : SC_TIER_HOST], 0);
    t.rig->request_flags = 0;
    tiered_deinit(&t);
}
END_TEST

/* The device has a part, a tier more: the hit is the tier's, and never was the device's. */
START_TEST(report_137__a_longer_hit_from_below_takes_nothing_back)
{
    struct req req;
    uint64_t hits[4];
    const int32_t *tokens = prompt(0);
    start(16, 32, false);
    (void)tiered_serve(&t, tokens, 7 * N);
    tiered_clear_device(&t);
    (void)tiered_serve(&t, tokens, N); /* cold: what is below is longer */
    hits[0] = rig_stats(t.rig).resumed_by_tier[SC_TIER_DEVICE];
    rig_ok(req_try(t.rig, &req, tokens, 8 * N));
    ck_assert_int_eq(rig_info(t.rig, req.lease).state, SC_LEASE_WAITING);
    ck_assert_uint_eq(rig_info(t.rig, req.lease).len, N);
    hits[1] = rig_stats(t.rig).resumed_by_tier[SC_TIER_DEVICE];
    (void)tiered_settle(&t);
    hits[2] = rig_stats(t.rig).resumed_by_tier[SC_TIER_DEVICE];
    hits[3] = rig_stats(t.rig).resumed_by_tier[SC_TIER_HOST];
    ck_assert(hits[0] == 0 && hits[1] == 0 && hits[2] == 0 && hits[3] == 1);
    req_start(t.rig, &req);
    finish(&req, SC_RELEASE_DISCARD);
    tiered_deinit(&t);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reports_tiers");
    TCase *tc = tcase_create("tiers");
    tcase_set_timeout(tc, 240);
    tcase_add_test(tc, report_54__a_parent_that_is_being_stored_stops_the_cascade);
    tcase_add_test(tc, report_68__stores_that_have_ended_give_their_slots);
    tcase_add_loop_test(tc, report_70__a_retracted_request_comes_back_whole_or_starts_again, 0, 4);
    tcase_add_loop_test(tc, report_97__a_slot_that_a_step_still_writes_is_not_restored_into, 0, 4);
    tcase_add_loop_test(tc, report_98__nobody_reads_a_slot_before_all_of_it_is_restored, 0, 4);
    tcase_add_loop_test(tc, report_100__what_was_spilled_is_read_again, 0, 4);
    tcase_add_test(tc, report_105__an_error_in_a_restore_reaches_who_waits);
    tcase_add_loop_test(tc, report_137__counters_never_step_back, 0, 4);
    tcase_add_test(tc, report_137__a_longer_hit_from_below_takes_nothing_back);
    suite_add_tcase(suite, tc);
    return rig_main(suite);
}
