/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine does, call by call: limits, eviction, room and statistics, namespaces. */
#include "test_engine_start.h"

/* ---- limits ---- */

START_TEST(limit__saves_of_a_step)
{
    struct rig_options options = options_of(1);
    options.cache.save_max = 2;
    rig_init(&rig, &options);
    uint32_t points[] = {16, 32, 48, 64};
    rig_ok(req_try(&rig, &a, tokens, 100));
    struct rig_step step = {.rows = {{&a, 100, points, 4}}, .count = 1};
    rig_run(&rig, &step);
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.saves_skipped[SC_SKIP_LIMIT], 2);
    ck_assert_uint_eq(stats.saves_published, 3); /* 16, 32 and the end, which needs no save slot */
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(limit__tokens_of_the_index)
{
    struct rig_options options = options_of(1);
    options.cache.token_max = 100;
    rig_init(&rig, &options);
    (void)rig_serve(&rig, tokens, 60, 100, SC_RELEASE_KEEP);
    (void)rig_serve(&rig, tokens + 100, 90, 100, SC_RELEASE_KEEP); /* the older one makes room */
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_le(stats.tokens_cached, 100);
    ck_assert_uint_eq(rig_lookup(&rig, tokens + 100, 91).state_len[SC_TIER_DEVICE], 90);
    ck_assert_uint_eq(state_len(61), 0);
    (void)rig_serve(&rig, tokens + 300, 120, 200, SC_RELEASE_KEEP); /* can never fit: skipped */
    ck_assert_uint_eq(rig_lookup(&rig, tokens + 300, 120).kv_len, 0);
    ck_assert_uint_eq(rig_lookup(&rig, tokens + 100, 91).state_len[SC_TIER_DEVICE], 90);
    ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_LIMIT], 2); /* its end, twice */
    rig_deinit(&rig);
}
END_TEST

START_TEST(limit__snapshots_of_a_path)
{
    struct rig_options options = options_of(1);
    options.cache.path_snapshots_max = 2;
    rig_init(&rig, &options);
    rig_ok(req_try(&rig, &a, tokens, 100));
    uint32_t points[] = {16, 32, 48, 64};
    struct rig_step step = {.rows = {{&a, 64, points, 4}}, .count = 1};
    rig_run(&rig, &step);
    req_run(&rig, &a, 100);
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.snapshots_alive, 2);
    ck_assert_uint_eq(stats.evicted[SC_EVICT_PATH_CAP], 3);
    ck_assert_uint_eq(state_len(200), 100);
    ck_assert_uint_eq(state_len(99), 64);
    ck_assert_uint_eq(state_len(63), 0);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(limit__leases_and_their_tokens)
{
    struct rig_options options = options_of(1);
    options.cache.lease_max = 2;
    options.cache.lease_token_max = 50;
    rig_init(&rig, &options);
    struct req c;
    ck_assert_int_eq(req_try(&rig, &c, tokens, 51), SC_ERR_LIMIT);
    rig_ok(req_try(&rig, &a, tokens, 50));
    rig_ok(req_try(&rig, &b, tokens, 10));
    ck_assert_int_eq(req_try(&rig, &c, tokens, 5), SC_ERR_LIMIT);
    ck_assert_uint_eq(rig_stats(&rig).refused, 2);
    ck_assert_int_eq(sc_lease_append(rig.cache, a.lease, tokens, 1), SC_ERR_LIMIT);
    ck_assert_int_eq(sc_lease_append(rig.cache, b.lease, tokens, UINT32_MAX), SC_ERR_LIMIT);
    req_append(&rig, &b, tokens + 10, 40);
    req_run(&rig, &b, 100);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(limit__extras)
{
    struct rig_options options = options_of(1);
    options.extras = 1;
    rig_init(&rig, &options);
    rig_ok(req_try(&rig, &a, tokens, 20));
    ck_assert_int_gt(rig_info(&rig, a.lease).extra_slot, 0);
    ck_assert_int_eq(req_try(&rig, &b, tokens, 20), SC_ERR_NO_SLOT);
    ck_assert_uint_eq(rig_room(&rig).slots_free, 15);
    ck_assert_uint_eq(rig_stats(&rig).refused, 1);
    rig_verify(&rig);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_ok(req_try(&rig, &b, tokens, 20));
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* ---- eviction, room, statistics ---- */

START_TEST(evict__least_recently_used_goes_first)
{
    start(1);
    sc_room got;
    for (uint32_t i = 0; i < 3; i++)
        (void)rig_serve(&rig, tokens + 100 * i, 20, 50, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 30), 20); /* used: the second is oldest now */
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
    ck_assert_uint_eq(got.slots_free, 1);
    ck_assert_uint_eq(got.pages_drainable, 0);
    sc_answer answer = rig_lookup(&rig, tokens + 100, 30);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 0);
    ck_assert_uint_eq(answer.kv_len, 20);
    ck_assert_int_eq(answer.reason, SC_REASON_EVICTED);
    rig_ok(sc_cache_evict(rig.cache, 25, 0, &got)); /* whole leaves: the second's, the third's */
    ck_assert_uint_eq(got.pages_drainable, 40);
    ck_assert_uint_eq(got.slots_free, 1);
    ck_assert_uint_eq(rig_lookup(&rig, tokens + 100, 30).kv_len, 0);
    ck_assert_uint_eq(state_len(30), 20);
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_ASKED], 1);
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_WITH_KV], 1);
    rig_ok(sc_cache_evict(rig.cache, 0, 0, &got));
    ck_assert_uint_eq(got.slots_free, 0);
    rig_deinit(&rig);
}
END_TEST

START_TEST(trim__returns_memory_of_the_index)
{
    start(1);
    sc_room got;
    uint64_t bytes = 0;
    static int32_t many[3000];
    for (uint32_t i = 0; i < 20; i++) {
        rig_fill(many, 3000, 5000 + 3000 * (int32_t)i);
        (void)rig_serve(&rig, many, 2000, 2100, SC_RELEASE_KEEP);
    }
    ck_assert_uint_eq(req_open(&rig, &a, many, 2001), 2000); /* held: stays where it is */
    int32_t before[2000], after[2000];
    uint32_t count = 0;
    rig_ok(sc_lease_kv_ids(rig.cache, a.lease, 0, before, 2000, &count));
    rig_ok(sc_cache_evict(rig.cache, UINT32_MAX, 0, &got));
    rig_ok(sc_cache_trim(rig.cache, UINT64_MAX, &bytes));
    ck_assert_uint_gt(bytes, 0);
    rig_ok(sc_cache_trim(rig.cache, UINT64_MAX, &bytes));
    ck_assert_uint_eq(bytes, 0);
    rig_ok(sc_lease_kv_ids(rig.cache, a.lease, 0, after, 2000, &count));
    ck_assert_int_eq(memcmp(before, after, sizeof before), 0);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(evict__pinned_content_stays)
{
    start(1);
    sc_room got;
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 60), 40);
    rig_ok(sc_cache_evict(rig.cache, UINT32_MAX, UINT32_MAX, &got));
    ck_assert_uint_eq(got.slots_free, 0);
    ck_assert_uint_eq(got.pages_drainable, 0);
    sc_room room = rig_room(&rig);
    ck_assert_uint_eq(room.pages_cached, 40);
    ck_assert_uint_eq(room.pages_evictable, 0);
    ck_assert_uint_eq(room.slots_held, 2);
    rig_check_lease(&rig, &a);
    req_run(&rig, &a, 100);
    rig_ok(sc_cache_evict(rig.cache, UINT32_MAX, UINT32_MAX, &got));
    rig_check_lease(&rig, &a); /* all its KV is still there */
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* Kept at a shorter length: KV to there, the newest snapshot at or below; what the lease saved
 * beyond goes, unless somebody used it. */
START_TEST(release__keep_shorter_drops_own_snapshots_beyond)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 40));
    static const uint32_t points[] = {16, 32};
    struct rig_step step = {.rows = {{&a, 40, points, 2}}, .count = 1};
    rig_run(&rig, &step);
    ck_assert_uint_eq(state_len(40), 32);
    if (_i == 1) ck_assert_uint_eq(rig_serve(&rig, tokens, 41, 50, SC_RELEASE_DISCARD), 40);
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_SUPERSEDED], 0);
    req_close(&rig, &a, 20, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_SUPERSEDED], _i ? 1 : 2);
    ck_assert_uint_eq(state_len(40), 16);
    ck_assert_uint_eq(state_len(41), _i ? 40 : 16); /* the other one's hit */
    rig_deinit(&rig);
}
END_TEST

START_TEST(room__slots_add_up_at_every_moment)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 100));
    rig_ok(req_try(&rig, &b, tokens + 200, 100));
    uint32_t points[] = {16, 64};
    struct rig_step step = {.rows = {{&a, 64, points, 2}, {&b, 100, points, 2}}, .count = 2};
    for (uint32_t moment = 0; moment < 6; moment++) {
        if (moment == 1) rig_plan(&rig, &step);
        if (moment == 2) rig_ok(sc_lease_release(rig.cache, b.lease, 0, SC_RELEASE_KEEP));
        if (moment == 3) {
            rig_forward(&rig, &step);
            rig_commit(&rig, &step);
        }
        if (moment == 4) req_run(&rig, &a, 100);
        if (moment == 5) req_close(&rig, &a, 0, SC_RELEASE_KEEP);
        sc_room room = rig_room(&rig);
        ck_assert_uint_eq(room.slots_free + room.slots_evictable + room.slots_held +
            room.slots_draining, 16);
        rig_verify(&rig);
    }
    req_forget(&rig, &b);
    rig_deinit(&rig);
}
END_TEST

START_TEST(stats__an_older_struct_is_filled_as_far_as_it_goes)
{
    start(1);
    (void)rig_serve(&rig, tokens, 20, 50, SC_RELEASE_KEEP);
    struct { sc_cache_stats stats; uint64_t beyond[4]; } large;
    memset(&large, 0xff, sizeof large);
    large.stats.struct_size = offsetof(sc_cache_stats, released);
    rig_ok(sc_cache_stats_get(rig.cache, &large.stats));
    ck_assert_uint_eq(large.stats.acquired, 1);
    ck_assert_uint_eq(large.stats.released, UINT64_MAX);
    large.stats.struct_size = sizeof large;
    rig_ok(sc_cache_stats_get(rig.cache, &large.stats));
    ck_assert_uint_eq(large.stats.released, 1);
    ck_assert_uint_eq(large.beyond[3], 0);
    rig_deinit(&rig);
}
END_TEST

/* ---- namespaces ---- */

static void count_line(void *ctx, const char *line)
{
    uint32_t *lines = ctx;
    ck_assert_ptr_nonnull(line);
    (*lines)++;
}

START_TEST(namespace__open_close_and_open_again)
{
    start(1);
    sc_namespace same, other, third;
    rig_ok(sc_namespace_open(rig.cache, NULL, 0, 0, &same));
    ck_assert_mem_eq(&same, &rig.ns, sizeof same);
    rig_ok(sc_namespace_open(rig.cache, NULL, 3, 0, &other));
    rig_ok(sc_namespace_open(rig.cache, NULL, 3, 1, &third));
    ck_assert_uint_ne(other.id, third.id);
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);
    rig_ok(req_try(&rig, &a, tokens, 50));
    ck_assert_int_eq(sc_namespace_close(rig.cache, rig.ns), SC_ERR_BUSY);
    ck_assert_uint_eq(state_len(50), 40);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_ok(sc_namespace_close(rig.cache, rig.ns));
    ck_assert_uint_eq(rig_stats(&rig).evicted[SC_EVICT_CLOSED], 1);
    ck_assert_uint_eq(rig_room(&rig).pages_drainable, 40);
    ck_assert_uint_eq(rig_room(&rig).slots_free, 16);
    ck_assert_int_eq(sc_namespace_close(rig.cache, rig.ns), SC_ERR_STALE);
    ck_assert_int_eq(req_try(&rig, &a, tokens, 50), SC_ERR_STALE);
    rig_verify(&rig);
    rig_ok(sc_namespace_open(rig.cache, NULL, 0, 0, &rig.ns));
    ck_assert_uint_eq(rig.ns.id, same.id); /* the place is used again, the handle is another */
    ck_assert_uint_ne(rig.ns.generation, same.generation);
    ck_assert_uint_eq(state_len(50), 0);
    rig_deinit(&rig);
}
END_TEST

START_TEST(dump__draws_the_tree)
{
    start(1);
    uint32_t empty = 0, lines = 0;
    rig_ok(sc_cache_dump(rig.cache, rig.ns, count_line, &empty));
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);
    rig_ok(sc_cache_dump(rig.cache, rig.ns, count_line, &lines));
    ck_assert_uint_gt(lines, empty);
    rig_deinit(&rig);
}
END_TEST

START_TEST(cache__holds_its_pools)
{
    struct rig_options options = options_of(1);
    sc_cache *second = NULL;
    options.extras = 2;
    rig_init(&rig, &options);
    sc_cache_options again;
    rig_cache_options(&rig, &options, &again);
    ck_assert_int_eq(sc_cache_create(&again, &second), SC_ERR_BUSY);
    ck_assert_int_eq(sc_pool_destroy(rig.pool), SC_ERR_BUSY);
    ck_assert_int_eq(sc_pool_destroy(rig.extras), SC_ERR_BUSY);
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);
    rig_ok(sc_cache_destroy(rig.cache)); /* with snapshots inside: their slots go back */
    sc_pool_info info;
    rig_ok(sc_pool_info_get(rig.pool, &info));
    ck_assert_uint_eq(info.free_count, 16);
    rig_ok(sc_cache_create(&again, &rig.cache));
    rig_ok(sc_namespace_open(rig.cache, NULL, 0, 0, &rig.ns));
    for (uint32_t i = 0; i < rig.kv_ids; i++) { /* what the tree held is the engine's again */
        if (rig.kv_where[i] == 0) continue;
        rig.kv_where[i] = 0;
        rig.kv_free[rig.kv_free_count++] = (int32_t)i;
    }
    rig_deinit(&rig);
}
END_TEST

static void add_cache(Suite *suite)
{
    TCase *tc = tcase_create("cache");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, limit__saves_of_a_step);
    tcase_add_test(tc, limit__tokens_of_the_index);
    tcase_add_test(tc, limit__snapshots_of_a_path);
    tcase_add_test(tc, limit__leases_and_their_tokens);
    tcase_add_test(tc, limit__extras);
    tcase_add_test(tc, evict__least_recently_used_goes_first);
    tcase_add_test(tc, evict__pinned_content_stays);
    tcase_add_test(tc, trim__returns_memory_of_the_index);
    tcase_add_loop_test(tc, release__keep_shorter_drops_own_snapshots_beyond, 0, 2);
    tcase_add_test(tc, room__slots_add_up_at_every_moment);
    tcase_add_test(tc, stats__an_older_struct_is_filled_as_far_as_it_goes);
    tcase_add_test(tc, namespace__open_close_and_open_again);
    tcase_add_test(tc, dump__draws_the_tree);
    tcase_add_test(tc, cache__holds_its_pools);
    suite_add_tcase(suite, tc);
}

int main(void)
{
    Suite *suite = suite_create("engine_cache");
    add_cache(suite);
    return rig_main(suite);
}
