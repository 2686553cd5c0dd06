/* SPDX-License-Identifier: Apache-2.0 */
/* Bad arguments and failing allocations. */
#include "test_policy.h"

static void refuse_options(const struct sc_policy_options *options)
{
    struct sc_policy *policy = NULL;
    ck_assert_int_eq(sc_policy_create(options, &policy), SC_ERR_INVALID);
    ck_assert_ptr_null(policy);
}

START_TEST(create__refuses_options_that_contradict_each_other)
{
    struct rig rig;
    rig_open(&rig, "lru", 100, NULL);
    struct sc_policy_options bad = rig.options;
    struct sc_policy *policy = NULL;
    ck_assert_int_eq(sc_policy_create(NULL, &policy), SC_ERR_INVALID);
    ck_assert_int_eq(sc_policy_create(&rig.options, NULL), SC_ERR_INVALID);
    bad.radix = NULL;
    refuse_options(&bad);
    bad = rig.options;
    bad.order = (enum sc_policy_order)7;
    refuse_options(&bad);
    bad = rig.options;
    bad.placement |= 1u << 20;
    refuse_options(&bad);
    bad = rig.options;
    bad.placement |= SC_PLACE_FORK; /* needs statistics */
    refuse_options(&bad);
    bad = rig.options;
    bad.admission = SC_ADMIT_DUEL;
    refuse_options(&bad);
    bad = rig.options;
    bad.block_tokens = 0;
    refuse_options(&bad);
    bad = rig.options;
    bad.block_tokens = 3; /* does not divide the interval */
    refuse_options(&bad);
    bad = rig.options;
    bad.cost.token_s = 0;
    refuse_options(&bad);
    bad = rig.options;
    bad.cost.state_bytes = NAN;
    refuse_options(&bad);
    bad = rig.options;
    bad.marconi_alpha = -1;
    refuse_options(&bad);
    RIG_OK(sc_policy_named("gittins", &bad));
    bad.marconi_alpha = 0;
    bad.admission = SC_ADMIT_GROUP;
    refuse_options(&bad);
    sc_policy_destroy(NULL);
    rig_close(&rig);
}
END_TEST

START_TEST(named__knows_every_name_it_lists)
{
    struct sc_policy_options options = {0};
    uint32_t count = 0;
    for (; sc_policy_name(count); count++) RIG_OK(sc_policy_named(sc_policy_name(count), &options));
    ck_assert_uint_eq(count, 7);
    ck_assert_int_eq(sc_policy_named("fifo", &options), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_policy_named(NULL, &options), SC_ERR_INVALID);
    ck_assert_int_eq(sc_policy_named("lru", NULL), SC_ERR_INVALID);
}
END_TEST

START_TEST(begin__refuses_bad_paths_and_changes_nothing)
{
    struct rig rig;
    struct rig_request request;
    const int32_t tokens[4] = {1, 2, 3, 4};
    rig_open(&rig, "gittins", 100, NULL);
    rig.now_ns = 10;
    rig_prompt(&request, tokens, 4);
    rig_serve(&rig, &request);
    rig_match(&rig, &request, SC_RADIX_LOCK_KV);
    struct sc_policy_path good = request.path, bad = good;
    struct sc_policy_stats before, after;
    sc_policy_stats_get(rig.policy, &before);
    ck_assert_int_eq(sc_policy_begin(rig.policy, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_policy_begin(NULL, &good), SC_ERR_INVALID);
    bad.now_ns = 9; /* backwards */
    ck_assert_int_eq(sc_policy_begin(rig.policy, &bad), SC_ERR_INVALID);
    bad = good;
    bad.hashes = NULL;
    ck_assert_int_eq(sc_policy_begin(rig.policy, &bad), SC_ERR_INVALID);
    bad = good;
    bad.points = NULL;
    ck_assert_int_eq(sc_policy_begin(rig.policy, &bad), SC_ERR_INVALID);
    bad = good;
    bad.point_cap = 0;
    ck_assert_int_eq(sc_policy_begin(rig.policy, &bad), SC_ERR_INVALID);
    bad = good;
    bad.given_count = 1;
    ck_assert_int_eq(sc_policy_begin(rig.policy, &bad), SC_ERR_INVALID);
    bad = good;
    bad.priority = 17;
    ck_assert_int_eq(sc_policy_begin(rig.policy, &bad), SC_ERR_INVALID);
    bad = good;
    bad.block_count = 1u << 20; /* more than are remembered */
    ck_assert_int_eq(sc_policy_begin(rig.policy, &bad), SC_ERR_LIMIT);
    sc_policy_stats_get(rig.policy, &after);
    ck_assert_uint_eq(before.requests, after.requests);
    ck_assert_uint_eq(before.ghosts, after.ghosts);
    rig_unlock(&rig, &request);
    rig_close(&rig);
}
END_TEST

/* The tree's own order would drop what is pinned. */
START_TEST(begin__refuses_a_pin_that_would_not_hold)
{
    const int32_t tokens[4] = {1, 2, 3, 4};
    for (uint32_t i = 0; sc_policy_name(i); i++) {
        struct rig rig;
        struct rig_request request;
        rig_open(&rig, sc_policy_name(i), 100, NULL);
        rig_prompt(&request, tokens, 4);
        rig_match(&rig, &request, SC_RADIX_LOCK_KV);
        request.path.pin_until_ns = 1;
        bool tree = rig.options.order == SC_POLICY_TREE;
        ck_assert_int_eq(sc_policy_begin(rig.policy, &request.path),
            tree ? SC_ERR_INVALID : SC_OK);
        rig_unlock(&rig, &request);
        rig_close(&rig);
    }
}
END_TEST

START_TEST(attached__refuses_what_the_index_does_not_hold)
{
    struct rig rig;
    struct rig_request request;
    const int32_t tokens[4] = {1, 2, 3, 4};
    rig_open(&rig, "lru", 100, NULL);
    rig_prompt(&request, tokens, 4);
    rig_serve(&rig, &request);
    struct sc_policy_path *path = &request.path;
    sc_node node = sc_policy_victim(rig.policy, NULL);
    ck_assert_int_eq(sc_policy_attached(rig.policy, path, 9, node, 1), SC_ERR_INVALID);
    ck_assert_int_eq(sc_policy_attached(rig.policy, path, 0, node, 0), SC_ERR_INVALID);
    ck_assert_int_eq(sc_policy_attached(rig.policy, path, 0, node, 77), SC_ERR_MISMATCH);
    ck_assert_int_eq(sc_policy_attached(rig.policy, path, 0, 9999, 1), SC_ERR_STALE);
    double got = 0;
    ck_assert_int_eq(sc_policy_room(rig.policy, 1, NAN, &rig.sink, &got), SC_ERR_INVALID);
    ck_assert_int_eq(sc_policy_room(rig.policy, 1, 1, &rig.sink, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_policy_room(rig.policy, 1, HUGE_VAL, NULL, &got), SC_ERR_INVALID);
    ck_assert_int_eq(sc_policy_alpha_set(rig.policy, -1), SC_ERR_INVALID);
    ck_assert_double_eq(sc_policy_worth(rig.policy, 9999), 0);
    ck_assert_uint_eq(rig.gone, 0);
    rig_close(&rig);
}
END_TEST

START_TEST(memory__every_allocation_fails_once)
{
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    struct rig rig;
    rig_open(&rig, "gittins", 200, &fa.allocator);
    rig.options.ghost_max = 4096;
    sc_policy_destroy(rig.policy);
    for (uint64_t n = 1;; n++) {
        struct fail_alloc_mark before = fail_alloc_mark(&fa);
        fail_alloc_arm(&fa, n);
        sc_status status = sc_policy_create(&rig.options, &rig.policy);
        if (!fail_alloc_disarm(&fa)) {
            RIG_OK(status);
            break;
        }
        ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
        ck_assert(fail_alloc_same(&fa, before));
    }
    uint64_t failures = 0;
    for (int32_t i = 0; i < 300; i++) { /* begin grows now and then */
        struct rig_request request;
        int32_t tokens[40];
        for (int32_t k = 0; k < 40; k++) tokens[k] = i * 100 + k;
        rig_prompt(&request, tokens, 40);
        rig_match(&rig, &request, SC_RADIX_LOCK_KV);
        struct sc_policy_stats old, now;
        sc_policy_stats_get(rig.policy, &old);
        for (uint64_t n = 1;; n++) {
            fail_alloc_arm(&fa, n);
            sc_status status = sc_policy_begin(rig.policy, &request.path);
            if (!fail_alloc_disarm(&fa)) {
                RIG_OK(status);
                break;
            }
            failures++;
            ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
            sc_policy_stats_get(rig.policy, &now);
            ck_assert_uint_eq(now.requests, old.requests);
            ck_assert_uint_eq(now.candidates, old.candidates);
            RIG_OK(sc_policy_verify(rig.policy));
        }
        rig_place(&rig, &request);
        rig_unlock(&rig, &request);
    }
    ck_assert_uint_gt(failures, 0);
    rig_close(&rig);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
}
END_TEST

START_TEST(ghosts__stay_below_their_limit)
{
    struct rig rig;
    rig_open(&rig, "gittins", 200, NULL);
    sc_policy_destroy(rig.policy);
    rig.options.ghost_max = 256;
    RIG_OK(sc_policy_create(&rig.options, &rig.policy));
    struct sc_policy_stats stats;
    for (int32_t i = 0; i < 400; i++) {
        rig.now_ns += 1000000;
        rig_serve_run(&rig, i % 3 ? i * 100 : 5, 30 + (uint32_t)(i % 7));
        sc_policy_stats_get(rig.policy, &stats);
        ck_assert_uint_le(stats.ghosts, 256);
        RIG_OK(sc_policy_verify(rig.policy));
    }
    ck_assert_uint_lt(stats.candidates, 256);
    rig_close(&rig);
}
END_TEST

Suite *policy_args_suite(void)
{
    Suite *suite = suite_create("policy args");
    TCase *tc = tcase_create("args");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, create__refuses_options_that_contradict_each_other);
    tcase_add_test(tc, named__knows_every_name_it_lists);
    tcase_add_test(tc, begin__refuses_bad_paths_and_changes_nothing);
    tcase_add_test(tc, begin__refuses_a_pin_that_would_not_hold);
    tcase_add_test(tc, attached__refuses_what_the_index_does_not_hold);
    tcase_add_test(tc, memory__every_allocation_fails_once);
    tcase_add_test(tc, ghosts__stay_below_their_limit);
    suite_add_tcase(suite, tc);
    return suite;
}
