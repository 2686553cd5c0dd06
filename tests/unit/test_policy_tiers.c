/* SPDX-License-Identifier: Apache-2.0 */
/* A device and a tier below it, each an index with a policy: victims of the one are offered to the
 * other. After each request the tier's victim is the one that a scan of all its snapshots finds. */
#include "test_policy.h"

#include <stdio.h>

#include "support/test_scale.h"

enum { SNAPSHOTS_MAX = 8192 };

struct pair {
    struct rig device, host;
    struct rig_request *of; /* [SNAPSHOTS_MAX]: the device's snapshot -> its prompt */
    uint32_t *len;
    uint64_t left, taken, refused;
};

static void host_take(struct pair *pair, const struct rig_request *prompt, uint32_t len)
{
    static struct rig_request request; /* the beginning of the prompt alone */
    struct rig *host = &pair->host;
    double got = 0;
    rig_prompt(&request, prompt->tokens, len);
    rig_match(host, &request, SC_RADIX_LOCK_KV);
    if (request.path.held_len == len) { /* it is there */
        rig_unlock(host, &request);
        return;
    }
    struct sc_policy_record record = {request.hashes, len, len, request.state_node,
        host->options.cost.state_bytes + (len - request.held) * host->options.cost.kv_token_bytes};
    double worth = sc_policy_record_worth(host->policy, &record);
    double need = rig_bytes(host) + record.bytes - host->cap;
    ck_assert(worth >= 0);
    if (worth > 0 && need > 0) {
        RIG_OK(sc_policy_room(host->policy, need, worth, &host->sink, &got));
    }
    if (worth > 0 && got >= need) {
        sc_node node = rig_insert(host, &request, len, ++host->snapshot);
        ck_assert_uint_ne(node, SC_NODE_NONE);
        RIG_OK(sc_policy_adopt(host->policy, &record, node, host->snapshot));
        pair->taken++;
    } else {
        pair->refused++;
    }
    rig_unlock(host, &request);
    ck_assert(rig_bytes(host) <= host->cap);
}

/* The victim is whole when it is shown, and nobody reads it. */
static void leaving(void *ctx, sc_node node)
{
    struct pair *pair = ctx;
    struct sc_radix_node_info info;
    RIG_OK(sc_radix_node_get(pair->device.radix, node, &info));
    ck_assert_uint_ne(info.snapshot, 0);
    ck_assert_uint_eq(info.state_locks + info.kv_locks, 0);
    ck_assert_uint_eq(info.end, pair->len[info.snapshot]);
    pair->left++;
    host_take(pair, &pair->of[info.snapshot], info.end);
}

static void pair_open(struct pair *pair, const char *policy, struct sc_prng *prng)
{
    *pair = (struct pair){.of = calloc(SNAPSHOTS_MAX, sizeof *pair->of),
        .len = calloc(SNAPSHOTS_MAX, sizeof *pair->len)};
    ck_assert(pair->of && pair->len);
    struct rig *rigs[] = {&pair->device, &pair->host};
    for (int i = 0; i < 2; i++) {
        struct rig *rig = rigs[i];
        rig_open(rig, policy, (i ? 200 : 60) + (double)sc_prng_below(prng, 300), NULL);
        sc_policy_destroy(rig->policy);
        rig->options.fit_every = 1 + (uint32_t)sc_prng_below(prng, 60);
        rig->options.sample_count = 64 + (uint32_t)sc_prng_below(prng, 400);
        rig->options.cost.tier_bytes_per_s[1] = 2 + (double)sc_prng_below(prng, 20);
        rig->options.cost.tier_latency_s[1] = (double)sc_prng_below(prng, 3);
        rig->options.tier = (uint32_t)i;
        rig->options.leaving = i ? NULL : leaving;
        rig->options.leaving_ctx = pair;
        RIG_OK(sc_policy_create(&rig->options, &rig->policy));
    }
}

/* Remembers which prompts the device's new snapshots are of. */
static void note(struct pair *pair, const struct rig_request *request, uint32_t first)
{
    struct sc_radix_node_info info;
    for (uint32_t i = 0; i < request->path.point_count; i++) {
        struct sc_radix_key key = {request->tokens, request->points[i].len, NULL, 0};
        struct sc_radix_match match;
        RIG_OK(sc_radix_match(pair->device.radix, pair->device.space, &key, key.token_count,
            &match));
        if (match.state_len != key.token_count) continue;
        RIG_OK(sc_radix_node_get(pair->device.radix, match.state_node, &info));
        if (info.snapshot <= first) continue;
        ck_assert_uint_lt(info.snapshot, SNAPSHOTS_MAX);
        pair->of[info.snapshot] = *request;
        pair->len[info.snapshot] = info.end;
    }
}

static void compare(struct pair *pair, const char *policy, uint64_t seed, uint32_t step)
{
    double value = 0, naive = 0;
    sc_node victim = sc_policy_victim(pair->host.policy, &value);
    ck_assert_msg(victim == sc_policy_victim_naive(pair->host.policy, &naive),
        "%s SC_SEED=%llu step %u: the heap finds %u", policy, (unsigned long long)seed, step,
        victim);
    ck_assert_double_eq(value, naive);
}

static void run_one(const char *policy, uint64_t seed, uint32_t steps)
{
    static struct rig_request history[8], below;
    struct pair pair;
    struct sc_prng prng;
    sc_prng_seed(&prng, seed);
    pair_open(&pair, policy, &prng);
    for (uint32_t i = 0; i < 8; i++) history[i].count = 0;
    for (uint32_t step = 0; step < steps; step++) {
        struct rig_request *request = &history[step % 8];
        static struct rig_request made;
        rig_prompt_make(&prng, &made, &history[sc_prng_below(&prng, 8)]);
        *request = below = made;
        pair.device.now_ns = pair.host.now_ns += sc_prng_below(&prng, 5000000000);
        uint32_t first = pair.device.snapshot;
        rig_match(&pair.host, &below, SC_RADIX_LOCK_KV); /* while the device is asked */
        RIG_OK(sc_policy_begin(pair.host.policy, &below.path));
        rig_serve(&pair.device, request);
        sc_policy_end(pair.host.policy, &below.path);
        rig_unlock(&pair.host, &below);
        note(&pair, request, first);
        compare(&pair, policy, seed, step);
        ck_assert_uint_eq(pair.left, pair.device.gone);
        if (step % 16 == 0) RIG_OK(sc_policy_verify(pair.host.policy));
    }
    ck_assert_uint_gt(pair.taken, steps / 50);
    rig_close(&pair.device);
    rig_close(&pair.host);
    free(pair.of);
    free(pair.len);
}

START_TEST(tiers__what_leaves_the_device_is_judged_below_it)
{
    static const char *const policies[] = {"gittins", "gdsf", "lru", "lru-sup", "lru-path"};
    uint32_t steps = (uint32_t)test_scaled(1500, 300);
    for (uint64_t seed = 1; seed <= 4; seed++) run_one(policies[_i], seed, steps);
}
END_TEST

START_TEST(saved__is_prefill_less_reading_back)
{
    struct sc_cost cost = {.state_bytes = 8, .kv_token_bytes = 1, .token_s = 1,
        .tier_bytes_per_s = {0, 4, 1}, .tier_latency_s = {0, 0.5, 0}};
    ck_assert_double_eq(sc_cost_saved_s(&cost, 0, 0, 10), 10);
    ck_assert_double_eq(sc_cost_saved_s(&cost, 1, 0, 10), 10 - 0.5 - 18 / 4.0);
    ck_assert_double_eq(sc_cost_saved_s(&cost, 1, 6, 10), 4 - 4 / 4.0); /* instead of another */
    ck_assert_double_eq(sc_cost_saved_s(&cost, 2, 0, 10), 0); /* 18 s to read */
    ck_assert_double_eq(sc_cost_saved_s(&cost, 3, 0, 10), 0); /* there is no such tier */
    ck_assert_double_eq(sc_cost_saved_s(&cost, SC_COST_TIERS, 0, 10), 0);
}
END_TEST

/* The worth of a record is in proportion to what it saves, and to how little it takes. */
START_TEST(worth__is_seconds_saved_per_byte)
{
    struct rig rig;
    struct rig_request request;
    rig_open(&rig, "gittins", 1000, NULL);
    sc_policy_destroy(rig.policy);
    rig.options.tier = 1;
    rig.options.cost.tier_bytes_per_s[1] = 4;
    RIG_OK(sc_policy_create(&rig.options, &rig.policy));
    int32_t tokens[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    rig_prompt(&request, tokens, 12);
    struct sc_policy_record record = {request.hashes, 12, 12, SC_NODE_NONE, 20};
    ck_assert_double_eq(sc_policy_record_worth(rig.policy, &record), HUGE_VAL); /* knows nothing */
    for (int i = 0; i < 40; i++) {
        rig.now_ns += 1000000000;
        rig_match(&rig, &request, SC_RADIX_LOCK_KV);
        RIG_OK(sc_policy_begin(rig.policy, &request.path));
        sc_policy_end(rig.policy, &request.path);
        rig_unlock(&rig, &request);
    }
    double worth = sc_policy_record_worth(rig.policy, &record);
    ck_assert(worth > 0 && worth < HUGE_VAL);
    record.bytes = 40;
    ck_assert_double_eq_tol(sc_policy_record_worth(rig.policy, &record), worth / 2, worth * 1e-12);
    record.len = 6; /* the same block; saves 6 - 3.5 instead of 12 - 5 seconds */
    ck_assert_double_eq_tol(sc_policy_record_worth(rig.policy, &record), worth / 2 * 2.5 / 7,
        worth * 1e-12);
    record.len = 4; /* as long to read */
    record.bytes = 12;
    ck_assert(sc_policy_record_worth(rig.policy, &record) < worth);
    uint64_t unknown = 77;
    record = (struct sc_policy_record){&unknown, 1, 12, SC_NODE_NONE, 20};
    ck_assert_double_eq(sc_policy_record_worth(rig.policy, &record), 0); /* nobody asked for it */
    rig_close(&rig);
}
END_TEST

#define BAD(status, expr) ck_assert_int_eq((expr), (status))

START_TEST(args__refuses_bad_records)
{
    struct rig rig;
    struct rig_request request;
    rig_open(&rig, "gittins", 1000, NULL);
    int32_t tokens[3] = {1, 2, 3};
    rig_prompt(&request, tokens, 3);
    rig_serve(&rig, &request);
    sc_node node = rig_insert(&rig, &request, 2, 900);
    struct sc_policy_record record = {request.hashes, 2, 2, SC_NODE_NONE, 9};
    BAD(SC_ERR_INVALID, sc_policy_adopt(NULL, &record, node, 900));
    BAD(SC_ERR_INVALID, sc_policy_adopt(rig.policy, NULL, node, 900));
    BAD(SC_ERR_INVALID, sc_policy_adopt(rig.policy, &record, node, 0));
    BAD(SC_ERR_STALE, sc_policy_adopt(rig.policy, &record, 99999, 900));
    BAD(SC_ERR_MISMATCH, sc_policy_adopt(rig.policy, &record, node, 901));
    record.len = 1;
    BAD(SC_ERR_MISMATCH, sc_policy_adopt(rig.policy, &record, node, 900));
    record = (struct sc_policy_record){request.hashes, 3, 2, SC_NODE_NONE, 9};
    BAD(SC_ERR_STATE, sc_policy_adopt(rig.policy, &record, node, 900)); /* the end has one */
    record = (struct sc_policy_record){NULL, 2, 2, SC_NODE_NONE, 9};
    BAD(SC_ERR_INVALID, sc_policy_adopt(rig.policy, &record, node, 900));
    ck_assert_double_eq(sc_policy_record_worth(rig.policy, &record), 0);
    ck_assert_double_eq(sc_policy_record_worth(NULL, &record), 0);
    ck_assert_double_eq(sc_policy_record_worth(rig.policy, NULL), 0);
    record.hashes = request.hashes;
    RIG_OK(sc_policy_adopt(rig.policy, &record, node, 900));
    struct sc_policy *none;
    struct sc_policy_options options = rig.options;
    options.tier = 1; /* without a rate */
    BAD(SC_ERR_INVALID, sc_policy_create(&options, &none));
    options.tier = SC_COST_TIERS;
    BAD(SC_ERR_INVALID, sc_policy_create(&options, &none));
    options = rig.options;
    options.leaving = leaving;
    RIG_OK(sc_policy_named("fixed", &options));
    BAD(SC_ERR_INVALID, sc_policy_create(&options, &none));
    rig_close(&rig);
}
END_TEST

Suite *policy_tiers_suite(void)
{
    Suite *suite = suite_create("policy tiers");
    TCase *tc = tcase_create("tiers");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, tiers__what_leaves_the_device_is_judged_below_it, 0, 5);
    tcase_add_test(tc, saved__is_prefill_less_reading_back);
    tcase_add_test(tc, worth__is_seconds_saved_per_byte);
    tcase_add_test(tc, args__refuses_bad_records);
    suite_add_tcase(suite, tc);
    return suite;
}
