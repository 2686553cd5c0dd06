/* SPDX-License-Identifier: Apache-2.0 */
/* Each policy against a naive version of itself on random trees: same victim after each request.
 *
 * The naive LRU, GDSF and Marconi are written here from their definitions, on a plain list and by
 * walks of the whole tree. For gittins, whose statistics a test cannot do again, the naive version
 * is a scan of all snapshots with the same values: it proves that the heap, its timers and its lazy
 * keys miss nothing. While requests run, others hold leases: what they lock must still be there. */
#include "test_policy.h"

#include <stdio.h>
#include <string.h>

#include "support/test_scale.h"

enum { HELD_MAX = 3, LIST_MAX = 4096 };

struct naive_entry {
    uint32_t snapshot, len;
    sc_node node;
    uint64_t stamp;
    double freq, base;
};

struct naive {
    struct rig *rig;
    struct naive_entry list[LIST_MAX];
    uint32_t count;
    double age;
};

struct shape { uint32_t up_len, child_count, tail; bool spared; };

/* What a walk up from a node says. */
static struct shape shape_of(const struct rig *rig, sc_node node)
{
    struct sc_radix_node_info own, info;
    RIG_OK(sc_radix_node_get(rig->radix, node, &own));
    struct shape shape = {.child_count = own.child_count,
        .spared = own.kv_locks > 0 || own.state_locks > 0};
    bool exclusive = own.child_count == 0;
    uint32_t start = own.start;
    for (sc_node at = own.parent; at != SC_NODE_NONE; at = info.parent) {
        RIG_OK(sc_radix_node_get(rig->radix, at, &info));
        if (info.snapshot != 0) {
            shape.up_len = info.end;
            break;
        }
        exclusive = exclusive && info.child_count == 1;
        if (exclusive) start = info.start;
    }
    shape.tail = own.child_count == 0 ? own.end - start : 0;
    return shape;
}

static double naive_value(const struct naive *naive, const struct naive_entry *entry)
{
    const struct sc_cost *cost = &naive->rig->options.cost;
    if (naive->rig->options.order != SC_POLICY_GDSF) return (double)entry->stamp;
    struct shape shape = shape_of(naive->rig, entry->node);
    return entry->base + entry->freq * ((entry->len - shape.up_len) /
        (cost->state_bytes + shape.tail * cost->kv_token_bytes));
}

static double scaled(double x, double low, double high)
{
    return high > low ? (x - low) / (high - low) : x - low;
}

/* Marconi: recency and flops per byte, each between 0 and 1 over the candidates. */
static double naive_marconi(const struct naive *naive, uint64_t now, sc_node *victim_out)
{
    const struct sc_cost *cost = &naive->rig->options.cost;
    double recent[LIST_MAX], efficient[LIST_MAX], low[2] = {HUGE_VAL, HUGE_VAL};
    double high[2] = {-HUGE_VAL, -HUGE_VAL}, best = HUGE_VAL;
    for (uint32_t i = 0; i < naive->count; i++) {
        const struct naive_entry *entry = &naive->list[i];
        struct shape shape = shape_of(naive->rig, entry->node);
        if (shape.spared) continue;
        recent[i] = 1.0 / ((double)(now - entry->stamp) + 1);
        efficient[i] = (entry->len - shape.up_len) /
            (cost->state_bytes + cost->kv_token_bytes * entry->len);
        low[0] = fmin(low[0], recent[i]);
        high[0] = fmax(high[0], recent[i]);
        low[1] = fmin(low[1], efficient[i]);
        high[1] = fmax(high[1], efficient[i]);
    }
    *victim_out = SC_NODE_NONE;
    for (uint32_t i = 0; i < naive->count; i++) {
        struct shape shape = shape_of(naive->rig, naive->list[i].node);
        if (shape.spared || shape.child_count > 1) continue;
        double value = scaled(recent[i], low[0], high[0]) +
            naive->rig->options.marconi_alpha * scaled(efficient[i], low[1], high[1]);
        if (value < best) {
            best = value;
            *victim_out = naive->list[i].node;
        }
    }
    return best;
}

/* Drops what has left the index. */
static void naive_sync(struct naive *naive)
{
    struct sc_radix_node_info info;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < naive->count; i++) {
        const struct naive_entry entry = naive->list[i];
        if (sc_radix_node_get(naive->rig->radix, entry.node, &info) != SC_OK ||
            info.snapshot != entry.snapshot) {
            continue;
        }
        naive->list[kept++] = entry;
    }
    naive->count = kept;
}

static struct naive_entry *naive_find(struct naive *naive, sc_node node)
{
    for (uint32_t i = 0; i < naive->count; i++) {
        if (naive->list[i].node == node) return &naive->list[i];
    }
    return NULL;
}

/* A victim of the real policy must be as good as the naive one's. */
static void compare(struct naive *naive, uint64_t now)
{
    struct rig *rig = naive->rig;
    double value = 0, least = HUGE_VAL;
    sc_node victim = sc_policy_victim(rig->policy, &value), best = SC_NODE_NONE;
    if (rig->options.order == SC_POLICY_GITTINS) {
        best = sc_policy_victim_naive(rig->policy, &least);
    } else if (rig->options.order == SC_POLICY_MARCONI) {
        least = naive_marconi(naive, now, &best);
    } else {
        for (uint32_t i = 0; i < naive->count; i++) {
            if (shape_of(rig, naive->list[i].node).spared) continue;
            double x = naive_value(naive, &naive->list[i]);
            if (x >= least) continue;
            least = x;
            best = naive->list[i].node;
        }
    }
    ck_assert_int_eq(victim == SC_NODE_NONE, best == SC_NODE_NONE);
    if (victim != SC_NODE_NONE) ck_assert_double_eq_tol(value, least, 1e-9 * fabs(least) + 1e-300);
}

static sc_node insert_at(struct rig *rig, struct rig_request *request, const int32_t *tokens,
    uint32_t len)
{
    int32_t ids[2 * RIG_PROMPT_MAX] = {0};
    struct sc_radix_run run = {0, 0};
    struct sc_radix_save save = {len, ++rig->snapshot};
    struct sc_radix_inserted inserted;
    sc_status status = SC_OK;
    struct sc_radix_insert in = {.space = rig->space, .tokens = tokens, .token_count = len,
        .kv_ids = ids, .runs = &run, .run_count = 1, .saves = &save, .save_count = 1};
    RIG_OK(sc_radix_insert(rig->radix, &in, &rig->sink, NULL, &status, &inserted));
    if (status != SC_OK) return SC_NODE_NONE;
    rig_relock(rig, request, inserted.node);
    return inserted.node;
}

/* What is decoded after the prompt: one in two is saved; so is, now and then, a state on the way
 * that is no point of the path. The request is then as long as that. */
static void decode(struct naive *naive, struct rig_request *request)
{
    struct rig *rig = naive->rig;
    uint32_t count = rig->snapshot % 5, prompt = request->count;
    if (count == 0 || prompt + count > RIG_PROMPT_MAX) return;
    int32_t tokens[RIG_PROMPT_MAX];
    struct sc_policy_path path = request->path;
    memcpy(tokens, request->tokens, prompt * sizeof *tokens);
    for (uint32_t i = 0; i < count; i++) tokens[prompt + i] = (int32_t)(rig->snapshot + i) % 3;
    rig_prompt(request, tokens, prompt + count);
    request->path = path;
    if (count > 3) {
        sc_node node = insert_at(rig, request, tokens, prompt + 1);
        if (node) RIG_OK(sc_policy_attach(rig->policy, &request->path, node, rig->snapshot));
        compare(naive, 0);
    }
    RIG_OK(sc_policy_extend(rig->policy, &request->path, request->hashes, prompt + count,
        prompt + count));
    if (rig->snapshot % 2 == 0) return;
    sc_node node = insert_at(rig, request, tokens, prompt + count);
    uint32_t last = request->path.point_count - 1;
    if (!node) return;
    RIG_OK(sc_policy_attached(rig->policy, &request->path, last, node, rig->snapshot));
    compare(naive, 0);
}

/* Serves one request; every victim on the way is compared. */
static void serve(struct naive *naive, struct rig_request *request)
{
    struct rig *rig = naive->rig;
    struct sc_policy_ask ask;
    bool stored = false;
    rig_match(rig, request, SC_RADIX_LOCK_KV);
    RIG_OK(sc_policy_begin(rig->policy, &request->path));
    struct sc_policy_stats stats;
    sc_policy_stats_get(rig->policy, &stats);
    while (sc_policy_next(rig->policy, &request->path, rig->cap - rig_bytes(rig), &ask)) {
        double got = 1;
        while (ask.bytes <= rig->cap && rig_bytes(rig) + ask.bytes > rig->cap && got > 0) {
            compare(naive, stats.requests);
            double value = 0;
            if (sc_policy_victim(rig->policy, &value) == SC_NODE_NONE) break;
            RIG_OK(sc_policy_room(rig->policy, 1, ask.bar, &rig->sink, &got));
            if (got > 0 && value > naive->age && value < HUGE_VAL) naive->age = value;
            naive_sync(naive);
        }
        if (rig_bytes(rig) + ask.bytes > rig->cap) continue;
        for (uint32_t i = ask.first; i < ask.first + ask.count; i++) {
            uint32_t len = request->points[i].len;
            sc_node node = insert_at(rig, request, request->tokens, len);
            if (node == SC_NODE_NONE) continue;
            RIG_OK(sc_policy_attached(rig->policy, &request->path, i, node, rig->snapshot));
            ck_assert_uint_lt(naive->count, LIST_MAX);
            naive->list[naive->count++] = (struct naive_entry){rig->snapshot, len, node,
                stats.requests, 1, naive->age};
            stored = true;
        }
    }
    if (rig->options.order == SC_POLICY_GITTINS) decode(naive, request);
    sc_policy_end(rig->policy, &request->path);
    struct naive_entry *used = naive_find(naive, request->state_node);
    if (request->resumed > 0 && used) {
        used->freq++;
        used->base = naive->age;
        used->stamp = stats.requests;
        if (rig->options.order == SC_POLICY_LRU_SUP && stored &&
            shape_of(rig, used->node).child_count == 1) {
            used->stamp = 0;
        }
        struct sc_radix_node_info info = {.parent = used->node};
        while (rig->options.order == SC_POLICY_LRU_PATH && info.parent != SC_NODE_NONE) {
            struct naive_entry *entry = naive_find(naive, info.parent);
            if (entry) entry->stamp = stats.requests;
            RIG_OK(sc_radix_node_get(rig->radix, info.parent, &info));
        }
    }
    rig_unlock(rig, request);
}

struct held { struct rig_request request; bool on; uint32_t snapshot; };

/* Locks come and go; what is locked stays. */
static void leases(struct rig *rig, struct sc_prng *prng, struct held *held,
    const struct rig_request *last)
{
    for (int i = 0; i < HELD_MAX; i++) {
        struct sc_radix_node_info info;
        if (held[i].on && held[i].snapshot != 0) {
            RIG_OK(sc_radix_node_get(rig->radix, held[i].request.state_node, &info));
            ck_assert_uint_eq(info.snapshot, held[i].snapshot);
        }
        if (sc_prng_below(prng, 6) != 0) continue;
        if (held[i].on) {
            rig_unlock(rig, &held[i].request);
            held[i].on = false;
            continue;
        }
        struct rig_request *request = &held[i].request;
        rig_prompt(request, last->tokens, last->count);
        rig_match(rig, request, SC_RADIX_LOCK_KV);
        rig_unlock(rig, request);
        held[i].snapshot = 0;
        if (request->resumed == 0) continue;
        RIG_OK(sc_radix_node_get(rig->radix, request->state_node, &info));
        RIG_OK(sc_radix_lock(rig->radix, request->state_node,
            SC_RADIX_LOCK_KV | SC_RADIX_LOCK_STATE, &request->receipt));
        held[i].snapshot = info.snapshot;
        held[i].on = true;
    }
}

static void run_one(const char *policy, uint64_t seed, uint32_t steps)
{
    static struct naive naive;
    static struct held held[HELD_MAX];
    struct rig rig;
    struct sc_prng prng;
    sc_prng_seed(&prng, seed);
    rig_open(&rig, policy, 60 + (double)sc_prng_below(&prng, 400), NULL);
    sc_policy_destroy(rig.policy);
    rig.options.marconi_alpha = (double)sc_prng_below(&prng, 3) * 0.4;
    rig.options.spare_paths = true;
    rig.options.fit_every = 1 + (uint32_t)sc_prng_below(&prng, 60);
    rig.options.sample_count = 64 + (uint32_t)sc_prng_below(&prng, 400);
    if (sc_prng_below(&prng, 4) == 0) rig.options.cost.kv_token_bytes = 0;
    RIG_OK(sc_policy_create(&rig.options, &rig.policy));
    naive = (struct naive){.rig = &rig};
    memset(held, 0, sizeof held);
    struct rig_request history[8];
    memset(history, 0, sizeof history);
    for (uint32_t step = 0; step < steps; step++) {
        struct rig_request *request = &history[step % 8];
        struct rig_request made;
        rig_prompt_make(&prng, &made, &history[sc_prng_below(&prng, 8)]);
        *request = made;
        request->path.points = request->points;
        rig.now_ns += sc_prng_below(&prng, 4) ? sc_prng_below(&prng, 3000000000)
                                              : sc_prng_below(&prng, 100) * 1000000000;
        serve(&naive, request);
        compare(&naive, step + 1);
        leases(&rig, &prng, held, &history[sc_prng_below(&prng, step < 8 ? step + 1 : 8)]);
        if (step % 16 == 0) RIG_OK(sc_policy_verify(rig.policy));
    }
    for (int i = 0; i < HELD_MAX; i++) {
        if (held[i].on) rig_unlock(&rig, &held[i].request);
    }
    rig_close(&rig);
}

static const char *const policies[] = {"lru", "lru-path", "lru-sup", "gdsf", "marconi", "gittins"};

START_TEST(random__the_victim_is_the_naive_one)
{
    const char *given = getenv("SC_SEED");
    uint64_t seeds = given ? 1 : test_scaled(12, 2);
    for (uint64_t i = 0; i < seeds; i++) {
        uint64_t seed = given ? strtoull(given, NULL, 0) : 1000 + i;
        printf("%s SC_SEED=%llu\n", policies[_i], (unsigned long long)seed);
        fflush(stdout);
        run_one(policies[_i], seed, 400);
    }
}
END_TEST

START_TEST(random__the_same_calls_give_the_same_decisions)
{
    uint64_t gone[2];
    uint32_t snapshots[2];
    double bytes[2];
    for (int run = 0; run < 2; run++) {
        struct rig rig;
        struct sc_prng prng;
        struct rig_request history[8];
        memset(history, 0, sizeof history);
        sc_prng_seed(&prng, 5);
        rig_open(&rig, "gittins", 300, NULL);
        for (uint32_t step = 0; step < 1000; step++) {
            struct rig_request made;
            rig_prompt_make(&prng, &made, &history[sc_prng_below(&prng, 8)]);
            history[step % 8] = made;
            rig.now_ns += sc_prng_below(&prng, 2000000000);
            rig_serve(&rig, &history[step % 8]);
        }
        gone[run] = rig.gone;
        snapshots[run] = rig.snapshot;
        bytes[run] = rig_bytes(&rig);
        rig_close(&rig);
    }
    ck_assert_uint_eq(gone[0], gone[1]);
    ck_assert_uint_eq(snapshots[0], snapshots[1]);
    ck_assert_double_eq(bytes[0], bytes[1]);
    ck_assert_uint_gt(gone[0], 100);
}
END_TEST

Suite *policy_random_suite(void)
{
    Suite *suite = suite_create("policy random");
    TCase *tc = tcase_create("random");
    tcase_set_timeout(tc, 600);
    tcase_add_loop_test(tc, random__the_victim_is_the_naive_one, 0,
        (int)(sizeof policies / sizeof *policies));
    tcase_add_test(tc, random__the_same_calls_give_the_same_decisions);
    suite_add_tcase(suite, tc);
    return suite;
}
