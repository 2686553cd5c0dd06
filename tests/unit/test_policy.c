/* SPDX-License-Identifier: Apache-2.0 */
#include "test_policy.h"

#include <stdio.h>

static void sink_kv(void *ctx, const int32_t *ids, uint32_t count, enum sc_radix_cause cause)
{
    (void)ctx;
    (void)ids;
    (void)count;
    (void)cause;
}

static void sink_snapshot(void *ctx, uint32_t snapshot, enum sc_radix_cause cause)
{
    struct rig *rig = ctx;
    (void)snapshot;
    (void)cause;
    rig->gone++;
}

void rig_open(struct rig *rig, const char *policy, double cap, const sc_allocator *allocator)
{
    *rig = (struct rig){.cap = cap};
    rig->sink = (struct sc_radix_sink){rig, sink_kv, sink_snapshot};
    struct sc_radix_options options = {.page_tokens = 1, .grid_tokens = 1, .with_kv = true};
    RIG_OK(sc_radix_create(&options, &rig->radix));
    RIG_OK(sc_radix_space_add(rig->radix, &rig->space));
    rig->options = (struct sc_policy_options){.allocator = allocator, .radix = rig->radix,
        .block_tokens = 1, .near_tokens = 2, .interval_tokens = 4, .spare_paths = true,
        .cost = {.state_bytes = 8, .kv_token_bytes = 1, .token_s = 1}};
    RIG_OK(sc_policy_named(policy, &rig->options));
    RIG_OK(sc_policy_create(&rig->options, &rig->policy));
}

void rig_close(struct rig *rig)
{
    RIG_OK(sc_policy_verify(rig->policy));
    RIG_OK(sc_radix_verify(rig->radix));
    sc_policy_destroy(rig->policy);
    sc_radix_destroy(rig->radix);
}

double rig_bytes(const struct rig *rig)
{
    struct sc_radix_stats stats;
    sc_radix_stats_get(rig->radix, &stats);
    return (double)stats.snapshot_count * rig->options.cost.state_bytes +
        (double)stats.token_count * rig->options.cost.kv_token_bytes;
}

void rig_prompt(struct rig_request *request, const int32_t *tokens, uint32_t count)
{
    ck_assert_uint_le(count, RIG_PROMPT_MAX);
    uint64_t hash = 0;
    request->count = count;
    for (uint32_t i = 0; i < count; i++) {
        request->tokens[i] = tokens[i];
        request->hashes[i] = hash = sc_mix64(hash + (uint64_t)tokens[i] + 1);
    }
}

void rig_prompt_make(struct sc_prng *prng, struct rig_request *request,
    const struct rig_request *last)
{
    int32_t tokens[RIG_PROMPT_MAX];
    uint32_t count = 0, keep = 0;
    if (last->count > 0 && sc_prng_below(prng, 3) > 0) {
        keep = sc_prng_below(prng, 2) ? last->count
                                      : (uint32_t)sc_prng_below(prng, last->count + 1);
    }
    for (; count < keep && count < 40; count++) tokens[count] = last->tokens[count];
    uint32_t more = 1 + (uint32_t)sc_prng_below(prng, 20);
    for (; more > 0 && count < RIG_PROMPT_MAX; more--) {
        tokens[count++] = (int32_t)sc_prng_below(prng, 3);
    }
    rig_prompt(request, tokens, count);
}

sc_node rig_insert(struct rig *rig, const struct rig_request *request, uint32_t count,
    uint32_t snapshot)
{
    static const int32_t ids[RIG_PROMPT_MAX];
    struct sc_radix_run run = {0, 0};
    struct sc_radix_save save = {count, snapshot};
    struct sc_radix_inserted inserted;
    sc_status status = SC_OK;
    struct sc_radix_insert in = {.space = rig->space, .tokens = request->tokens,
        .token_count = count, .kv_ids = ids, .runs = &run, .run_count = 1, .saves = &save,
        .save_count = snapshot != 0};
    RIG_OK(sc_radix_insert(rig->radix, &in, &rig->sink, NULL, &status, &inserted));
    return status == SC_OK ? inserted.node : SC_NODE_NONE;
}

void rig_match(struct rig *rig, struct rig_request *request, uint32_t what)
{
    struct sc_radix_key key = {request->tokens, request->count, NULL, 0};
    struct sc_radix_match all, usable;
    RIG_OK(sc_radix_match(rig->radix, rig->space, &key, request->count, &all));
    RIG_OK(sc_radix_match(rig->radix, rig->space, &key, request->count - 1, &usable));
    request->held = all.kv_len;
    request->resumed = usable.state_len;
    request->state_node = usable.state_node;
    sc_node node = all.kv_len > 0 ? rig_insert(rig, request, all.kv_len, 0) : SC_NODE_NONE;
    RIG_OK(sc_radix_lock(rig->radix, node, what, &request->receipt));
    request->path = (struct sc_policy_path){.now_ns = rig->now_ns, .hashes = request->hashes,
        .block_count = request->count, .len_max = request->count - 1, .kv_len = all.kv_len,
        .state_len = usable.state_len, .state_node = usable.state_node,
        .held_len = all.state_len > usable.state_len ? all.state_len : 0,
        .points = request->points, .point_cap = RIG_POINTS};
}

void rig_place(struct rig *rig, struct rig_request *request)
{
    struct sc_policy_ask ask;
    while (sc_policy_next(rig->policy, &request->path, rig->cap - rig_bytes(rig), &ask)) {
        double need = rig_bytes(rig) + ask.bytes - rig->cap, got = 0;
        if (ask.bytes > rig->cap) continue;
        if (need > 0) RIG_OK(sc_policy_room(rig->policy, need, ask.bar, &rig->sink, &got));
        if (got < need) continue;
        for (uint32_t i = ask.first; i < ask.first + ask.count; i++) {
            sc_node node = rig_insert(rig, request, request->points[i].len, ++rig->snapshot);
            if (node == SC_NODE_NONE) continue;
            rig_relock(rig, request, node);
            RIG_OK(sc_policy_attached(rig->policy, &request->path, i, node, rig->snapshot));
        }
        ck_assert(rig_bytes(rig) <= rig->cap);
    }
    sc_policy_end(rig->policy, &request->path);
}

void rig_relock(struct rig *rig, struct rig_request *request, sc_node node)
{
    struct sc_radix_receipt old = request->receipt;
    RIG_OK(sc_radix_lock(rig->radix, node, SC_RADIX_LOCK_KV, &request->receipt));
    RIG_OK(sc_radix_unlock(rig->radix, old));
}

void rig_unlock(struct rig *rig, struct rig_request *request)
{
    RIG_OK(sc_radix_unlock(rig->radix, request->receipt));
}

uint32_t rig_serve(struct rig *rig, struct rig_request *request)
{
    rig_match(rig, request, SC_RADIX_LOCK_KV);
    RIG_OK(sc_policy_begin(rig->policy, &request->path));
    rig_place(rig, request);
    struct sc_radix_key key = {request->tokens, request->path.kv_len, NULL, 0};
    struct sc_radix_match match;
    RIG_OK(sc_radix_match(rig->radix, rig->space, &key, key.token_count, &match));
    sc_radix_touch(rig->radix, &match);
    rig_unlock(rig, request);
    return request->resumed;
}

uint32_t rig_serve_run(struct rig *rig, int32_t first, uint32_t count)
{
    static struct rig_request request;
    int32_t tokens[RIG_PROMPT_MAX];
    for (uint32_t i = 0; i < count; i++) tokens[i] = first + (int32_t)i;
    rig_prompt(&request, tokens, count);
    return rig_serve(rig, &request);
}

/* --- each policy does what its name says --- */

START_TEST(lru__the_snapshot_not_used_longest_goes)
{
    struct rig rig;
    rig_open(&rig, "lru", 3 * 18, NULL); /* three prompts of 10 tokens and a state */
    rig_serve_run(&rig, 100, 10);
    rig_serve_run(&rig, 200, 10);
    rig_serve_run(&rig, 300, 10);
    rig_serve_run(&rig, 100, 11); /* uses the first; the second goes for its end */
    ck_assert_uint_eq(rig_serve_run(&rig, 300, 11), 10);
    ck_assert_uint_eq(rig_serve_run(&rig, 200, 11), 0);
    rig_close(&rig);
}
END_TEST

START_TEST(lru_sup__a_resumed_and_extended_snapshot_goes_first)
{
    struct rig rig;
    rig_open(&rig, "lru-sup", 60, NULL);
    rig_serve_run(&rig, 200, 10); /* 18 bytes, the oldest */
    rig_serve_run(&rig, 100, 10); /* 36 */
    rig_serve_run(&rig, 100, 20); /* 54: supersedes its own beginning */
    rig_serve_run(&rig, 300, 10); /* 72 > 60: the superseded one goes, and then the oldest */
    sc_node victim = sc_policy_victim(rig.policy, NULL);
    struct sc_radix_node_info info;
    RIG_OK(sc_radix_node_get(rig.radix, victim, &info));
    ck_assert_uint_eq(info.end, 20);
    ck_assert_uint_eq(rig.gone, 2);
    rig_close(&rig);
}
END_TEST

START_TEST(fixed__a_snapshot_stands_every_interval)
{
    struct rig rig;
    rig_open(&rig, "fixed", 1000, NULL);
    rig_serve_run(&rig, 100, 18);
    struct sc_radix_stats stats;
    sc_radix_stats_get(rig.radix, &stats);
    ck_assert_uint_eq(stats.snapshot_count, 5); /* 4, 8, 12, 16, 18 */
    ck_assert_uint_eq(rig_serve_run(&rig, 100, 16), 12);
    rig_close(&rig);
}
END_TEST

START_TEST(gdsf__cheap_to_compute_goes_first)
{
    struct rig rig;
    rig_open(&rig, "gdsf", 70, NULL);
    rig_serve_run(&rig, 100, 30); /* 38 bytes for 30 tokens */
    rig_serve_run(&rig, 200, 3);  /* 11 bytes for 3: the least saved per byte */
    sc_node victim = sc_policy_victim(rig.policy, NULL);
    struct sc_radix_node_info info;
    RIG_OK(sc_radix_node_get(rig.radix, victim, &info));
    ck_assert_uint_eq(info.end, 3);
    rig_close(&rig);
}
END_TEST

/* Conversations whose prompts are long go on 5 s later; short ones never do. */
START_TEST(gittins__learns_which_prompts_come_back)
{
    struct rig rig;
    rig_open(&rig, "gittins", 150, NULL);
    uint32_t hits = 0;
    for (int32_t i = 0; i < 1500; i++) {
        rig.now_ns += 1000000000;
        if (i % 2) {
            rig_serve_run(&rig, 100000 + 100 * i, 5);
        } else {
            rig_serve_run(&rig, 10000000 + 100 * i, 16);
        }
        if (i < 12 || i % 2) continue;
        uint32_t got = rig_serve_run(&rig, 10000000 + 100 * (i - 6), 20);
        if (i >= 1000) hits += got >= 16;
    }
    /* 150 bytes hold six prompts of 24; LRU would hold 6 s of everything: fewer than these. */
    ck_assert_uint_ge(hits, 240);
    struct sc_policy_stats stats;
    sc_policy_stats_get(rig.policy, &stats);
    ck_assert_uint_gt(stats.refits, 10);
    rig_close(&rig);
}
END_TEST

/* --- hints that need no learning --- */

static sc_node serve_with(struct rig *rig, int32_t first, uint64_t pin_until_ns, uint64_t ttl_ns,
    int32_t priority)
{
    struct rig_request request;
    int32_t tokens[10];
    for (int32_t i = 0; i < 10; i++) tokens[i] = first + i;
    rig_prompt(&request, tokens, 10);
    rig_match(rig, &request, SC_RADIX_LOCK_KV);
    request.path.pin_until_ns = pin_until_ns;
    request.path.ttl_ns = ttl_ns;
    request.path.priority = priority;
    RIG_OK(sc_policy_begin(rig->policy, &request.path));
    rig_place(rig, &request);
    rig_unlock(rig, &request);
    struct sc_radix_key key = {request.tokens, 10, NULL, 0};
    struct sc_radix_match match;
    RIG_OK(sc_radix_match(rig->radix, rig->space, &key, 10, &match));
    return match.state_node;
}

static const char *const pinning[] = {"lru", "lru-path", "lru-sup", "marconi", "gdsf", "gittins"};

START_TEST(pin__holds_until_its_time)
{
    struct rig rig;
    rig_open(&rig, pinning[_i], 1000, NULL);
    sc_node pinned = serve_with(&rig, 100, 5000000000, 0, 0);
    ck_assert_uint_eq(sc_policy_victim(rig.policy, NULL), SC_NODE_NONE);
    rig.now_ns = 4000000000;
    sc_node other = serve_with(&rig, 200, 0, 0, 0);
    ck_assert_uint_eq(sc_policy_victim(rig.policy, NULL), other);
    double got = 0;
    RIG_OK(sc_policy_room(rig.policy, 1000, HUGE_VAL, &rig.sink, &got));
    ck_assert_double_eq(got, 18); /* only the other one */
    rig.now_ns = 6000000000;
    rig_serve_run(&rig, 300, 1); /* time passes with a request */
    RIG_OK(sc_policy_room(rig.policy, 1000, HUGE_VAL, &rig.sink, &got));
    struct sc_radix_node_info info;
    ck_assert_int_eq(sc_radix_node_get(rig.radix, pinned, &info), SC_ERR_STALE);
    rig_close(&rig);
}
END_TEST

START_TEST(ttl__after_its_life_a_snapshot_goes_first)
{
    struct rig rig;
    rig_open(&rig, _i ? "gittins" : "lru", 1000, NULL);
    serve_with(&rig, 100, 0, 0, 0);
    sc_node brief = serve_with(&rig, 200, 0, 1000000000, 0);
    ck_assert_uint_ne(sc_policy_victim(rig.policy, NULL), brief);
    rig.now_ns = 3000000000;
    serve_with(&rig, 300, 0, 0, 0);
    ck_assert_uint_eq(sc_policy_victim(rig.policy, NULL), brief);
    rig_close(&rig);
}
END_TEST

START_TEST(priority__scales_the_value)
{
    struct rig rig;
    rig_open(&rig, _i ? "gittins" : "lru", 1000, NULL);
    serve_with(&rig, 100, 0, 0, 4);
    sc_node low = serve_with(&rig, 200, 0, 0, -4);
    serve_with(&rig, 300, 0, 0, 0);
    ck_assert_uint_eq(sc_policy_victim(rig.policy, NULL), low);
    rig_close(&rig);
}
END_TEST

/* --- cost and tiers --- */

START_TEST(cost__prefill_grows_with_the_square_of_attention)
{
    struct sc_cost cost;
    struct sc_cost_model model = {100, 2, 1000, 10};
    struct sc_cost_hardware hardware = SC_COST_HARDWARE_DEFAULT;
    hardware.flops = 1000;
    RIG_OK(sc_cost_make(&model, &hardware, &cost));
    ck_assert_double_eq_tol(sc_cost_prefill_s(&cost, 0, 10), (1000 + 2 * 100) / 1000.0, 1e-12);
    ck_assert_double_eq_tol(sc_cost_prefill_s(&cost, 10, 20),
        sc_cost_prefill_s(&cost, 0, 20) - sc_cost_prefill_s(&cost, 0, 10), 1e-12);
    ck_assert_double_eq(sc_cost_restore_s(&cost, SC_COST_TIERS, 1), HUGE_VAL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy");
    TCase *tc = tcase_create("policies");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, lru__the_snapshot_not_used_longest_goes);
    tcase_add_test(tc, lru_sup__a_resumed_and_extended_snapshot_goes_first);
    tcase_add_test(tc, fixed__a_snapshot_stands_every_interval);
    tcase_add_test(tc, gdsf__cheap_to_compute_goes_first);
    tcase_add_test(tc, gittins__learns_which_prompts_come_back);
    tcase_add_loop_test(tc, pin__holds_until_its_time, 0, sizeof pinning / sizeof *pinning);
    tcase_add_loop_test(tc, ttl__after_its_life_a_snapshot_goes_first, 0, 2);
    tcase_add_loop_test(tc, priority__scales_the_value, 0, 2);
    tcase_add_test(tc, cost__prefill_grows_with_the_square_of_attention);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_add_suite(runner, policy_args_suite());
    srunner_add_suite(runner, policy_random_suite());
    srunner_add_suite(runner, policy_longer_suite());
    srunner_add_suite(runner, policy_tiers_suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
