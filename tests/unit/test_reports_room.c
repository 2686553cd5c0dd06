/* SPDX-License-Identifier: Apache-2.0 */
/* Field reports that belong to the engine, the other classes: the life of slots and KV ids, room,
 * namespaces, what a request costs. docs/field-reports.md is the table; report_N is entry N
 * there. */
#include "base/sc_assert.h"
#include "snapshot_fixture.h"
#include "test_engine_rig.h"

static struct rig rig;
static struct req a, b, c;
static int32_t tokens[4096];

static void start_with(struct rig_options *options)
{
    rig_fill(tokens, 4096, 1);
    rig_init(&rig, options);
}

static void start(uint32_t page, uint32_t slots, uint32_t save_flags)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = page;
    options.slots = slots;
    options.cache.save_flags = save_flags;
    start_with(&options);
}

static void junk(int32_t slot)
{
    for (uint32_t p = 0; p < rig.part_count; p++) {
        memset(rig_words(&rig, p, slot), 0x7f, rig.parts[p].bytes);
    }
}

/* Every slot is free, evictable, held or draining. */
static void check_sums(void)
{
    sc_room room = rig_room(&rig);
    sc_pool_info info;
    rig_ok(sc_pool_info_get(rig.pool, &info));
    ck_assert_uint_eq(
        room.slots_free + room.slots_evictable + room.slots_held + room.slots_draining,
        info.slot_count);
    ck_assert_uint_eq(room.slots_free, info.free_count);
}

/* ---- C: slots ---- */

/* Two slots; the second request gets the slot that the first has filled. */
START_TEST(report_19__a_request_reads_nothing_of_the_one_before)
{
    start(1, 2, 0);
    rig_ok(req_try(&rig, &a, tokens, 40));
    rig_ok(req_try(&rig, &c, tokens + 500, 40));
    req_run(&rig, &a, 40);
    int32_t slot = rig_info(&rig, a.lease).working_slot;
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    junk(slot);
    ck_assert_uint_eq(req_open(&rig, &b, tokens + 1000, 40), 0);
    ck_assert_int_eq(rig_info(&rig, b.lease).working_slot, slot);
    ck_assert_int_eq(rig_info(&rig, b.lease).source_slot, 0);
    ck_assert(rig_state_is(&rig, 0, 0));
    req_run(&rig, &b, 16); /* checks what it reads */
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &c, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* The block of a step says -1 where the step before had a request. */
START_TEST(report_21__a_smaller_step_names_no_slot_of_the_larger)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.extras = 4;
    start_with(&options);
    rig_ok(req_try(&rig, &a, tokens, 40));
    rig_ok(req_try(&rig, &b, tokens + 500, 40));
    rig_ok(req_try(&rig, &c, tokens + 1000, 40));
    struct rig_step step = {.rows = {{&a, 16, NULL, 0}, {&b, 16, NULL, 0}, {&c, 16, NULL, 0}},
        .count = 3};
    rig_run(&rig, &step);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &c, 0, SC_RELEASE_DISCARD);
    struct rig_step next = {.rows = {{&a, 17, NULL, 0}}, .count = 1};
    rig_plan(&rig, &next);
    const sc_batch *batch = &next.batch;
    for (uint32_t row = 1; row < batch->row_max; row++) {
        ck_assert_int_eq(rig_word(batch, batch->at_source, row), -1);
        ck_assert_int_eq(rig_word(batch, batch->at_dest, row), -1);
        ck_assert_int_eq(rig_word(batch, batch->at_extra, row), -1);
        ck_assert_int_eq(rig_word(batch, batch->at_query_start_loc, row + 1), 1);
    }
    rig_forward(&rig, &next);
    rig_commit(&rig, &next);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(report_24__left_out_given_up_and_ended)
{
    start(1, 6, 0);
    rig_ok(req_try(&rig, &a, tokens, 40));
    rig_ok(req_try(&rig, &b, tokens + 500, 40));
    struct rig_step both = {.rows = {{&a, 16, NULL, 0}, {&b, 16, NULL, 0}}, .count = 2};
    rig_run(&rig, &both);
    (void)req_step(&rig, &b, 20); /* a is left out of a step: it keeps its slot */
    junk(rig_info(&rig, b.lease).working_slot == 1 ? 5 : 6); /* a free one */
    rig_check_lease(&rig, &a);
    struct rig_step again = {.rows = {{&a, 32, NULL, 0}, {&b, 32, NULL, 0}}, .count = 2};
    rig_run(&rig, &again);
    int32_t slot = rig_info(&rig, a.lease).working_slot;
    sc_lease gone = a.lease;
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD); /* given up, and computed again from zero */
    check_sums();
    ck_assert_int_eq(sc_lease_release(rig.cache, gone, 0, SC_RELEASE_DISCARD), SC_ERR_STALE);
    check_sums();
    junk(slot);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 40), 0);
    ck_assert_int_eq(rig_info(&rig, a.lease).source_slot, 0);
    req_run(&rig, &a, 40);
    rig_verify(&rig);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP); /* ends while it is in no step */
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    check_sums();
    ck_assert_uint_eq(rig_room(&rig).slots_held, 0);
    rig_deinit(&rig);
}
END_TEST

START_TEST(report_28__a_dummy_row_reads_zeros)
{
    start(1, 4, 0);
    for (int32_t slot = 1; slot <= 4; slot++) junk(slot);
    ck_assert(rig_state_is(&rig, 0, 0));
    rig_ok(sc_pool_audit(rig.pool, true));
    (void)rig_serve(&rig, tokens, 20, 20, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* ---- F: KV ids ---- */

static void kv_ids(const struct req *req, int32_t *ids, uint32_t count)
{
    uint32_t got = 0;
    rig_ok(sc_lease_kv_ids(rig.cache, req->lease, 0, ids, count, &got));
    ck_assert_uint_eq(got, count);
}

/* Both prefill 128 tokens before either is known to the tree. */
START_TEST(report_60__the_same_prefix_twice_at_once)
{
    int32_t first[8], own[8], now[8];
    uint32_t adopted = 0;
    start(16, 8, SC_SAVE_DEFAULT);
    rig_ok(req_try(&rig, &a, tokens, 128));
    rig_ok(req_try(&rig, &b, tokens, 128));
    struct rig_step step = {.rows = {{&a, 128, NULL, 0}, {&b, 128, NULL, 0}}, .count = 2};
    rig_run(&rig, &step);
    kv_ids(&a, first, 8);
    kv_ids(&b, own, 8);
    for (int i = 0; i < 8; i++) ck_assert_int_ne(first[i], own[i]);
    ck_assert_uint_eq(rig_stats(&rig).pages_duplicate, 8);
    ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_EXISTS], 1); /* its slot came back */
    rig_drain(&rig);
    kv_ids(&b, now, 8); /* it runs: its table names what it has, and none of it was drained */
    ck_assert_mem_eq(now, own, sizeof now);
    rig_check_lease(&rig, &b);
    rig_ok(sc_lease_adopt(rig.cache, b.lease, &adopted));
    ck_assert_uint_eq(adopted, 8);
    kv_ids(&b, now, 8);
    ck_assert_mem_eq(now, first, sizeof now);
    rig_drain(&rig); /* each duplicate once: the rig looks */
    ck_assert_uint_eq(rig_kv_inside(&rig), 8);
    rig_check_lease(&rig, &b);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_decode(&rig, &b, tokens + 128, 3);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* Pages of 512; what is kept ends on multiples of 64. The rig looks whether each id comes back
 * once. */
START_TEST(report_61__what_is_not_kept_comes_back_once)
{
    start(512, 8, SC_SAVE_END);
    for (uint32_t count = 700; count < 2200; count += 150) {
        for (uint32_t keep = 64; keep <= count; keep += 64) {
            rig_fill(tokens, count, (int32_t)(count * 100 + keep) * 4096);
            rig_ok(req_try(&rig, &a, tokens, count));
            req_run(&rig, &a, count);
            req_close(&rig, &a, keep, SC_RELEASE_KEEP);
            rig_drain(&rig);
            ck_assert_uint_eq(rig_room(&rig).pages_held, 0);
            ck_assert_uint_eq(rig_kv_inside(&rig), rig_room(&rig).pages_cached);
            ck_assert_uint_ge(rig_lookup(&rig, tokens, count).kv_len, keep / 512 * 512);
        }
    }
    rig_deinit(&rig);
}
END_TEST

/* ---- G: room ---- */

/* A slot for its state and one for its extras; of one kind there is none left. */
START_TEST(report_65__a_request_that_needs_two_slots_takes_both_or_none)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    sc_pool_info before, after;
    options.slots = _i ? 16 : 1;
    options.extras = _i ? 1 : 16;
    start_with(&options);
    rig_ok(req_try(&rig, &a, tokens, 20));
    sc_room room = rig_room(&rig);
    rig_ok(sc_pool_info_get(rig.extras, &before));
    ck_assert_int_eq(req_try(&rig, &b, tokens + 100, 20), SC_ERR_NO_SLOT);
    sc_room room_after = rig_room(&rig);
    ck_assert_mem_eq(&room_after, &room, sizeof room);
    rig_ok(sc_pool_info_get(rig.extras, &after));
    ck_assert_uint_eq(after.free_count, before.free_count);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_ok(req_try(&rig, &b, tokens + 100, 20));
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* Three slots: a snapshot that is read, and two requests. */
START_TEST(report_66__no_room_to_cache_is_no_failure)
{
    static const uint32_t points[] = {16, 32};
    start(1, 3, SC_SAVE_DEFAULT);
    (void)rig_serve(&rig, tokens, 30, 30, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 60), 30);
    rig_ok(req_try(&rig, &b, tokens + 500, 40));
    ck_assert_uint_eq(rig_room(&rig).slots_held, 3);
    struct rig_step step = {.rows = {{&b, 40, points, 2}}, .count = 1};
    rig_run(&rig, &step);
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.saves_skipped[SC_SKIP_NO_SLOT], 3);
    ck_assert_uint_eq(rig_info(&rig, b.lease).len, 40);
    req_decode(&rig, &b, tokens + 540, 10);
    rig_check_lease(&rig, &a);
    check_sums();
    req_run(&rig, &a, 60);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(report_67__admitted_and_refused_at_random)
{
    enum { LIVE = 9 };
    struct req live[LIVE] = {{.open = -1}};
    uint32_t refused = 0, admitted = 0;
    struct sc_prng prng;
    sc_prng_seed(&prng, 67);
    start(1, 6, SC_SAVE_DEFAULT);
    for (int round = 0; round < 1000; round++) {
        struct req *req = &live[sc_prng_below(&prng, LIVE)];
        uint32_t count = 16 * (1 + (uint32_t)sc_prng_below(&prng, 6));
        if (req->tokens) {
            if (sc_prng_below(&prng, 2)) req_run(&rig, req, 48);
            req_close(&rig, req, 0, sc_prng_below(&prng, 2) ? SC_RELEASE_KEEP : SC_RELEASE_DISCARD);
        } else {
            sc_status status = req_try(&rig, req, tokens + 100 * sc_prng_below(&prng, 4), count);
            ck_assert(status == SC_OK || status == SC_ERR_NO_SLOT);
            if (status != SC_OK) memset(req, 0, sizeof *req), refused++;
            admitted += status == SC_OK;
        }
        check_sums();
        if (round % 50 == 0) rig_verify(&rig);
    }
    ck_assert_uint_gt(refused, 20);
    ck_assert_uint_gt(admitted, 100);
    for (int i = 0; i < LIVE; i++) {
        if (live[i].tokens) req_close(&rig, &live[i], 0, SC_RELEASE_DISCARD);
    }
    ck_assert_uint_eq(rig_room(&rig).slots_held, 0);
    rig_deinit(&rig);
}
END_TEST

/* All slots wait for steps whose requests are gone: nothing but their end has to be told. */
START_TEST(report_68__room_shows_what_has_ended)
{
    start(1, 2, 0);
    rig_ok(req_try(&rig, &a, tokens, 20));
    rig_ok(req_try(&rig, &b, tokens + 100, 20));
    struct rig_step step = {.rows = {{&a, 16, NULL, 0}, {&b, 16, NULL, 0}}, .count = 2};
    rig_plan(&rig, &step);
    rig_forward(&rig, &step);
    rig_ok(sc_lease_release(rig.cache, a.lease, 0, SC_RELEASE_DISCARD));
    rig_ok(sc_lease_release(rig.cache, b.lease, 0, SC_RELEASE_DISCARD));
    ck_assert_uint_eq(rig_room(&rig).slots_draining, 2);
    ck_assert_int_eq(req_try(&rig, &c, tokens, 20), SC_ERR_NO_SLOT);
    rig_commit(&rig, &step);
    ck_assert_uint_eq(rig_room(&rig).slots_free, 2); /* no eviction was asked for */
    req_forget(&rig, &a);
    req_forget(&rig, &b);
    rig_deinit(&rig);
}
END_TEST

/* 0: the end is kept and resumed, 1: kept and evicted meanwhile, 2: not kept. */
START_TEST(report_70__a_retracted_request_has_its_state_or_starts_again)
{
    sc_room got;
    start(1, 4, SC_SAVE_END);
    rig_ok(req_try(&rig, &a, tokens, 280));
    req_run(&rig, &a, 280);
    req_decode(&rig, &a, tokens + 280, 20);
    req_close(&rig, &a, 0, _i == 2 ? SC_RELEASE_DISCARD : SC_RELEASE_KEEP);
    int32_t kept = 0;
    if (_i == 0) {
        ck_assert_uint_eq(req_open(&rig, &b, tokens, 301), 300);
        kept = rig_info(&rig, b.lease).source_slot;
        req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    }
    if (_i == 1) rig_ok(sc_cache_evict(rig.cache, 0, 1, &got)); /* the KV of its tokens stays */
    for (int32_t slot = 1; slot <= 4; slot++) {
        if (slot != kept) junk(slot);
    }
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 301), _i == 0 ? 300 : 0);
    ck_assert_int_eq(rig_info(&rig, a.lease).source_slot, kept);
    req_run(&rig, &a, 301);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* ---- N and P ---- */

START_TEST(report_128__an_adapter_loaded_again_is_another)
{
    sc_namespace first, second, again;
    start(1, 4, SC_SAVE_DEFAULT);
    sc_namespace plain = rig.ns;
    rig_ok(sc_namespace_open(rig.cache, NULL, 7, 1, &first));
    rig.ns = first;
    (void)rig_serve(&rig, tokens, 40, 40, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 50).state_len[SC_TIER_DEVICE], 40);
    rig_ok(sc_namespace_open(rig.cache, NULL, 7, 2, &second));
    rig.ns = second;
    sc_answer answer = rig_lookup(&rig, tokens, 50);
    ck_assert_uint_eq(answer.kv_len, 0);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 0);
    (void)rig_serve(&rig, tokens, 30, 30, SC_RELEASE_KEEP);
    rig_ok(sc_namespace_close(rig.cache, first));
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_CLOSED], 1);
    ck_assert_uint_eq(rig_room(&rig).pages_drainable, 40);
    ck_assert_uint_eq(rig_room(&rig).slots_free, 3);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 50).state_len[SC_TIER_DEVICE], 30);
    sc_key key = {.ns = first, .tokens = tokens, .token_count = 50};
    rig_ok(sc_cache_lookup(rig.cache, &key, 1, &answer));
    ck_assert_int_eq(answer.status, SC_ERR_STALE);
    rig_ok(sc_namespace_open(rig.cache, NULL, 7, 1, &again));
    rig.ns = again;
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 50).kv_len, 0);
    rig.ns = plain;
    rig_deinit(&rig);
}
END_TEST

/* Pins end by themselves; before, what is not pinned goes first, and they go last but not never. */
START_TEST(report_141__pins_end_when_their_time_is_over)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.slots = 12;
    options.cache.policy = _i % 2 ? "gittins" : "lru";
    options.cache.policy_blocks = 1000;
    start_with(&options);
    sc_hints pin = {.pin_until_ns = 1000};
    for (uint32_t i = 0; i < 10; i++) { /* the first five are pinned */
        sc_request request = {.key = rig_key(&rig, tokens + 100 * i, 32),
            .hints = i < 5 ? &pin : NULL};
        rig_ok(req_ask(&rig, &a, &request));
        req_run(&rig, &a, 32);
        req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    }
    ck_assert_uint_eq(rig_stats(&rig).pins_alive, 5);
    sc_room got;
    if (_i < 2) { /* as many are wanted as are not pinned, then one more */
        rig_ok(sc_cache_evict(rig.cache, 0, rig_room(&rig).slots_evictable, &got));
        ck_assert_uint_eq(rig_stats(&rig).pins_alive, 5);
        ck_assert_uint_eq(rig_room(&rig).slots_evictable, 0);
        rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
        ck_assert_uint_eq(got.slots_free, 1);
        ck_assert_uint_eq(rig_stats(&rig).pins_alive, 4);
    } else { /* leases that need every slot: the pool is not used up for ever */
        struct req many[12];
        uint32_t pins = 5;
        for (uint32_t i = 0; i < 12; i++) {
            rig_ok(req_try(&rig, &many[i], tokens + 2000 + 100 * i, 32));
            pins = (uint32_t)rig_stats(&rig).pins_alive;
            ck_assert_uint_eq(pins, i < 7 ? 5 : 11 - i);
        }
        ck_assert_int_eq(req_try(&rig, &b, tokens + 3500, 32), SC_ERR_NO_SLOT);
        for (uint32_t i = 0; i < 12; i++) req_close(&rig, &many[i], 0, SC_RELEASE_DISCARD);
        pin.pin_until_ns = 2000;
        sc_request request = {.key = rig_key(&rig, tokens, 32), .hints = &pin};
        rig_ok(req_ask(&rig, &a, &request));
        req_run(&rig, &a, 32);
        req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    }
    uint64_t left = rig_stats(&rig).pins_alive;
    rig.now_ns = 500;
    rig_ok(sc_cache_acquire(rig.cache, NULL, 0, 500, NULL, NULL));
    rig_ok(sc_cache_acquire(rig.cache, NULL, 0, 5, NULL, NULL)); /* the clock runs backwards */
    ck_assert_uint_eq(rig_stats(&rig).pins_alive, left);
    rig_ok(sc_cache_acquire(rig.cache, NULL, 0, 2000, NULL, NULL));
    ck_assert_uint_eq(rig_stats(&rig).pins_alive, 0);
    ck_assert_uint_eq(rig_room(&rig).slots_held, 0);
    rig_ok(sc_cache_evict(rig.cache, 0, 12, &got));
    ck_assert_uint_eq(rig_room(&rig).slots_free, 12);
    rig_deinit(&rig);
}
END_TEST

/* A request from acquire to release: the device is not asked anything. Builds with assertions fill
 * a slot with NaN when it is handed out, and wait for that: working and frozen slot, two a request;
 * other builds do not. */
START_TEST(report_142__bookkeeping_makes_no_device_call)
{
    struct fix_backend fix;
    sc_cache_options options = SC_CACHE_OPTIONS_INIT;
    sc_cache *cache = NULL;
    sc_namespace ns;
    rig_fill(tokens, 4096, 1);
    fix_backend_init(&fix, true);
    sc_pool *pool = fix_pool_with(FIX_GDN, SC_LAYOUT_PAGE_MAJOR, 16, &fix.backend, NULL, NULL);
    options.pool = pool;
    options.without_kv = true;
    options.policy = "lru"; /* saves prompts of 20 tokens, too */
    rig_ok(sc_cache_create(&options, &cache));
    rig_ok(sc_namespace_open(cache, NULL, 0, 0, &ns));
    fix_backend_reset(&fix);
    for (sc_step number = 1; number <= 1000; number++) {
        sc_request request = {.key = {.ns = ns, .tokens = tokens + number, .token_count = 20}};
        sc_lease lease;
        sc_status each;
        sc_batch batch;
        rig_ok(sc_cache_acquire(cache, &request, 1, 0, &lease, &each));
        rig_ok(each);
        sc_row row = {.lease = lease, .from = 0, .to = 20};
        rig_ok(sc_step_plan(cache, number, &row, 1, 0, &batch, &each));
        rig_ok(each);
        sc_result result = {.lease = lease, .len = 20};
        rig_ok(sc_step_commit(cache, number, &result, 1, NULL));
        rig_ok(sc_lease_release(cache, lease, 0, SC_RELEASE_KEEP));
    }
    ck_assert_uint_eq(fix.calls, 0);
    ck_assert_uint_eq(fix.syncs, SC_ASSERT_LEVEL >= 2 ? 2000 : 0);
    sc_cache_stats stats = {.struct_size = sizeof stats};
    rig_ok(sc_cache_stats_get(cache, &stats));
    ck_assert_uint_eq(stats.saves_published, 1000);
    rig_ok(sc_cache_destroy(cache));
    fix_end(pool, NULL, 0);
}
END_TEST

/* ---- E: pieces below the grid ---- */

/* Pages up to many chunks, pieces of any length: each step takes at least one token, and what is
 * off the grid is run, not saved. */
START_TEST(report_47__a_piece_below_the_grid_gets_on)
{
    static const uint32_t pages[] = {1, 16, 64, 256}, pieces[] = {1, 5, 15, 16, 17, 63, 100, 300};
    for (int p = 0; p < 4; p++) {
        for (int n = 0; n < 8; n++) {
            start(pages[p], 8, 0);
            req_open(&rig, &a, tokens, 300);
            for (uint32_t at = 0; at < 300;) {
                uint32_t to = at + pieces[n] < 300 ? at + pieces[n] : 300;
                uint32_t end = req_step(&rig, &a, to);
                ck_assert_msg(end > at && end <= to, "page %u, from %u to %u: %u", pages[p], at,
                    to, end);
                at = end;
            }
            req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
            rig_deinit(&rig);
        }
    }
}
END_TEST

#define ADD(name) tcase_add_test(tc, name)

int main(void)
{
    Suite *suite = suite_create("reports_room");
    TCase *tc = tcase_create("reports");
    tcase_set_timeout(tc, 240);
    ADD(report_19__a_request_reads_nothing_of_the_one_before);
    ADD(report_21__a_smaller_step_names_no_slot_of_the_larger);
    ADD(report_24__left_out_given_up_and_ended); ADD(report_28__a_dummy_row_reads_zeros);
    ADD(report_47__a_piece_below_the_grid_gets_on);
    ADD(report_60__the_same_prefix_twice_at_once);
    ADD(report_61__what_is_not_kept_comes_back_once);
    tcase_add_loop_test(
        tc, report_65__a_request_that_needs_two_slots_takes_both_or_none, 0, 2);
    ADD(report_66__no_room_to_cache_is_no_failure);
    ADD(report_67__admitted_and_refused_at_random); ADD(report_68__room_shows_what_has_ended);
    tcase_add_loop_test(
        tc, report_70__a_retracted_request_has_its_state_or_starts_again, 0, 3);
    ADD(report_128__an_adapter_loaded_again_is_another);
    tcase_add_loop_test(tc, report_141__pins_end_when_their_time_is_over, 0, 4);
    ADD(report_142__bookkeeping_makes_no_device_call);
    suite_add_tcase(suite, tc);
    return rig_main(suite);
}
