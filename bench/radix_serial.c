/* SPDX-License-Identifier: Apache-2.0 */
/* The order of things for one workload; each step leaves what the next one needs:
 *
 *   shape     an untimed pass: what each request will match, and what the tree then holds
 *   cold      a fresh tree, requests in order: match beside memcmp, then insert into fresh memory
 *   hot       keys of the full tree, over and over
 *   turns     a few tokens behind a path that is held, and the same found from the root
 *   locks
 *   evict     8,192 tokens a call down to a tenth; trim
 *   churn     a tree of limited size, requests in order: match, insert into memory that evictions
 *             have left, evict
 *   no ids    bytes alone
 *
 * Within a step, what is compared takes turns, and each of a pair goes first every other time. */
#include "radix_serial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/prng.h"
#include "bench_common.h"

enum { EVICT = 8192, HOT_KEYS = 40, HOT_TURNS = 15, LOCKS = 4000 };

/* By tokens matched. */
static const struct bucket {
    const char *name;
    uint32_t from, to;
    double cold[2], hot[2]; /* bars of W1, W2 on the ratio; 0: none */
} buckets[] = {
    {"1k", 700, 1500, {0, 0}, {0, 0}},
    {"2k", 1500, 3000, {0, 0}, {0, 0}},
    {"4k", 3000, 6000, {0, 0}, {0, 0}},
    {"9k", 7500, 11000, {2, 0}, {1.75, 3}},
    {"14-24k", 14000, 24000, {0, 0}, {0, 0}},
    {"24-30k", 24000, 30100, {1.75, 0}, {1.5, 0}},
    {"32k", 30100, 32769, {0, 0}, {0, 2}},
};
enum { BUCKETS = sizeof buckets / sizeof *buckets, ONE_K = 0 };

struct serial {
    struct radix_load *load;
    struct radix_rows *rows;
    uint32_t *matched; /* of each request, when it comes */
    struct radix_tree tree;
};

static volatile int compared; /* so that no memcmp is left out */

static int bucket_of(uint32_t tokens)
{
    for (int b = 0; b < BUCKETS; b++) {
        if (tokens >= buckets[b].from && tokens < buckets[b].to)
            return b;
    }
    return -1;
}

static struct bench_bar most(double limit)
{
    return (struct bench_bar){limit > 0 ? BENCH_BAR_MOST : BENCH_BAR_NONE, limit};
}

static void value(const struct serial *s, const char *name, const char *unit, double number,
    struct bench_bar bar)
{
    radix_row_value(s->rows, s->load->name, name, unit, number, bar);
}

static void samples(const struct serial *s, const char *name, const char *unit,
    struct radix_samples *what, struct bench_bar bar)
{
    radix_row_samples(s->rows, s->load->name, name, unit, what, bar);
    radix_samples_free(what);
}

/* ---- shape ---- */

static void shape(struct serial *s)
{
    static const struct bench_bar none = {BENCH_BAR_NONE, 0};
    struct radix_load *load = s->load;
    uint64_t prompts = 0, hit = 0;
    radix_tree_open(&s->tree, true);
    for (uint32_t i = 0; i < load->count; i++) {
        struct sc_radix_match match;
        const int32_t *key = radix_load_key(load, i, 0);
        s->matched[i] = radix_tree_match(&s->tree, key, load->requests[i].prompt, &match);
        radix_tree_insert(&s->tree, key, load->requests[i].full);
        prompts += load->requests[i].prompt;
        hit += s->matched[i];
    }
    struct sc_radix_stats stats = radix_tree_stats(&s->tree);
    radix_tree_close(&s->tree);
    /* The figures of the description, for its 10,000 requests. */
    bool whole = load->chats && load->count == 10000;
    static const double near[4] = {92.61, 12.07, 92.4, 10111};
    const double found[4] = {1e-6 * (double)load->token_total, 1e-6 * (double)stats.token_count,
        100.0 * (double)hit / (double)prompts, (double)stats.node_count + 1};
    static const char *const names[4] = {"tokens of prompts and answers", "tokens cached",
        "prompt tokens hit", "nodes, with the root"};
    static const char *const units[4] = {"M", "M", "%", ""};
    for (int i = 0; i < 4; i++)
        value(s, names[i], units[i], found[i],
            whole ? (struct bench_bar){BENCH_BAR_NEAR, near[i]} : none);
}

/* ---- cold, and inserts ---- */

struct pair { struct radix_samples match, other, ratio, more; };

static void pair_add(struct pair *pair, double match, double other)
{
    radix_sample(&pair->match, match);
    radix_sample(&pair->other, other);
    radix_sample(&pair->more, match - other);
    if (other > 0)
        radix_sample(&pair->ratio, match / other);
}

static void pair_rows(const struct serial *s, struct pair *pair, const char *how, int b,
    double bar, double more)
{
    char name[64];
    snprintf(name, sizeof name, "match %s, %s", buckets[b].name, how);
    samples(s, name, "ns", &pair->match, most(0));
    snprintf(name, sizeof name, "memcmp %s, %s", buckets[b].name, how);
    samples(s, name, "ns", &pair->other, most(0));
    snprintf(name, sizeof name, "match / memcmp %s, %s", buckets[b].name, how);
    samples(s, name, "ratio", &pair->ratio, most(bar));
    snprintf(name, sizeof name, "match - memcmp %s, %s", buckets[b].name, how);
    if (b == ONE_K)
        samples(s, name, "ns", &pair->more, most(more));
    else
        radix_samples_free(&pair->more);
}

static double timed_match(struct serial *s, uint32_t i, struct sc_radix_match *match)
{
    const int32_t *key = radix_load_key(s->load, i, 0);
    uint64_t begin = sc_clock_now_ns();
    (void)radix_tree_match(&s->tree, key, s->load->requests[i].prompt, match);
    return (double)(sc_clock_now_ns() - begin);
}

static double timed_memcmp(struct serial *s, uint32_t i)
{
    const int32_t *key = radix_load_key(s->load, i, 1), *flat = radix_load_flat(s->load, i);
    uint64_t begin = sc_clock_now_ns();
    compared = memcmp(key, flat, s->matched[i] * sizeof *key);
    return (double)(sc_clock_now_ns() - begin);
}

static double timed_insert(struct serial *s, uint32_t i)
{
    const int32_t *key = radix_load_key(s->load, i, 0);
    uint64_t begin = sc_clock_now_ns();
    radix_tree_insert(&s->tree, key, s->load->requests[i].full);
    return (double)(sc_clock_now_ns() - begin);
}

static void cold(struct serial *s)
{
    struct pair pairs[BUCKETS] = {0};
    struct radix_samples fresh = {0}, fresh_ratio = {0};
    struct sc_radix_match found;
    for (uint32_t i = 0; i < s->load->count; i++) {
        double match = 0, other = 0;
        if (i % 2)
            other = timed_memcmp(s, i);
        match = timed_match(s, i, &found);
        if (found.kv_len != s->matched[i])
            bench_fail(BENCH_CHECK_FAILED, "request %u matched %u tokens, once %u", i,
                found.kv_len, s->matched[i]);
        if (i % 2 == 0)
            other = timed_memcmp(s, i);
        double insert = timed_insert(s, i);
        int b = bucket_of(s->matched[i]);
        if (b >= 0)
            pair_add(&pairs[b], match, other);
        if (s->matched[i] < 3000)
            continue;
        radix_sample(&fresh, insert);
        radix_sample(&fresh_ratio, insert / match);
    }
    for (int b = 0; b < BUCKETS; b++)
        pair_rows(s, &pairs[b], "cold", b, buckets[b].cold[!s->load->chats],
            s->load->chats ? 400 : 0);
    samples(s, "insert, fresh memory, 3k and more matched", "ns", &fresh, most(0));
    samples(s, "insert / match, fresh memory, 3k and more", "ratio", &fresh_ratio, most(0));
}

/* ---- hot ---- */

static double timed_hot(const struct serial *s, const int32_t *key, const int32_t *flat,
    uint32_t count, uint32_t reps, bool tree)
{
    struct sc_radix_match match;
    uint64_t begin = sc_clock_now_ns();
    for (uint32_t i = 0; i < reps; i++) {
        if (tree)
            compared = (int)radix_tree_match(&s->tree, key, count, &match);
        else
            compared = memcmp(key, flat, count * sizeof *key);
    }
    return (double)(sc_clock_now_ns() - begin) / reps;
}

static void hot_key(const struct serial *s, uint32_t i, struct pair *pair)
{
    uint32_t count = s->load->requests[i].prompt, reps = 1 + 200000 / count;
    size_t bytes = count * sizeof(int32_t);
    int32_t *copies[3];
    for (int c = 0; c < 3; c++) {
        copies[c] = bench_alloc(count, sizeof *copies[c]);
        memcpy(copies[c], radix_load_key(s->load, i, 0), bytes);
    }
    struct pair turns = {0};
    for (int turn = 0; turn < HOT_TURNS; turn++) {
        double match = 0, other = 0;
        if (turn % 2)
            other = timed_hot(s, copies[0], copies[1], count, reps, false);
        match = timed_hot(s, copies[2], NULL, count, reps, true);
        if (turn % 2 == 0)
            other = timed_hot(s, copies[0], copies[1], count, reps, false);
        pair_add(&turns, match, other);
    }
    radix_sample(&pair->match, radix_quantile(&turns.match, 0.5));
    radix_sample(&pair->other, radix_quantile(&turns.other, 0.5));
    radix_sample(&pair->ratio, radix_quantile(&turns.ratio, 0.5));
    radix_sample(&pair->more, radix_quantile(&turns.more, 0.5));
    radix_samples_free(&turns.match);
    radix_samples_free(&turns.other);
    radix_samples_free(&turns.ratio);
    radix_samples_free(&turns.more);
    for (int c = 0; c < 3; c++)
        free(copies[c]);
}

/* Keys of each length spread over the whole workload; the prompt is all in the tree by now. */
static void hot(struct serial *s)
{
    uint32_t of_bucket[BUCKETS] = {0}, seen[BUCKETS] = {0};
    struct pair pairs[BUCKETS] = {0};
    for (uint32_t i = 0; i < s->load->count; i++) {
        int b = bucket_of(s->load->requests[i].prompt);
        if (b >= 0)
            of_bucket[b]++;
    }
    for (uint32_t i = 0; i < s->load->count; i++) {
        int b = bucket_of(s->load->requests[i].prompt);
        if (b < 0)
            continue;
        uint32_t step = of_bucket[b] / HOT_KEYS + 1;
        if (seen[b]++ % step == 0)
            hot_key(s, i, &pairs[b]);
    }
    for (int b = 0; b < BUCKETS; b++)
        pair_rows(s, &pairs[b], "hot", b, buckets[b].hot[!s->load->chats], 400);
}

/* ---- a turn on a path that is held ---- */

/* Puts `more` tokens behind a key and takes them out again. */
static double timed_turn(struct serial *s, sc_node from, const int32_t *key, uint32_t count)
{
    sc_node rest;
    uint64_t begin = sc_clock_now_ns();
    sc_node node = radix_tree_insert_from(&s->tree, from, key, count);
    uint64_t end = sc_clock_now_ns();
    bench_must(sc_radix_evict_node(s->tree.radix, node, &s->tree.sink, &rest),
        "sc_radix_evict_node");
    return (double)(end - begin);
}

static void turns(struct serial *s, int b)
{
    enum { KEYS = 200 };
    static int32_t key[RADIX_KEY_MAX + RADIX_TURN];
    struct radix_samples held = {0}, root = {0};
    char name[64];
    for (uint32_t i = 0; i < s->load->count && held.count < KEYS; i++) {
        uint32_t full = s->load->requests[i].full;
        struct sc_radix_match match;
        struct sc_radix_node_info info;
        if (bucket_of(full) != b)
            continue;
        memcpy(key, radix_load_key(s->load, i, 0), full * sizeof *key);
        radix_load_tokens(key + full, RADIX_TURN, i);
        (void)radix_tree_match(&s->tree, key, full, &match);
        bench_must(sc_radix_node_get(s->tree.radix, match.node, &info), "sc_radix_node_get");
        if (info.end != full)
            continue; /* a later turn goes on within the node */
        struct sc_radix_receipt receipt; /* else the path would go with the turn */
        bench_must(sc_radix_lock(s->tree.radix, match.node, SC_RADIX_LOCK_KV, &receipt), "lock");
        radix_sample(&held, timed_turn(s, match.node, key, full + RADIX_TURN));
        radix_sample(&root, timed_turn(s, SC_NODE_NONE, key, full + RADIX_TURN));
        bench_must(sc_radix_unlock(s->tree.radix, receipt), "unlock");
    }
    snprintf(name, sizeof name, "insert 256 tokens behind %s, path held", buckets[b].name);
    samples(s, name, "ns", &held, most(0));
    snprintf(name, sizeof name, "insert 256 tokens behind %s, from the root", buckets[b].name);
    samples(s, name, "ns", &root, most(0));
}

/* ---- locks ---- */

static sc_node node_of(struct serial *s, uint32_t i)
{
    struct sc_radix_match match;
    (void)radix_tree_match(&s->tree, radix_load_key(s->load, i, 0), s->load->requests[i].full,
        &match);
    return match.node;
}

static void locks(struct serial *s)
{
    struct radix_samples lock = {0}, unlock = {0};
    sc_node *nodes = bench_alloc(LOCKS, sizeof *nodes);
    struct sc_prng prng;
    sc_prng_seed(&prng, 7);
    uint32_t step = s->load->count / LOCKS + 1, count = 0;
    for (uint32_t i = 0; i < s->load->count && count < LOCKS; i += step)
        nodes[count++] = node_of(s, i);
    for (uint32_t i = 0; i < count; i++) {
        struct sc_radix_receipt receipt;
        sc_node node = nodes[sc_prng_below(&prng, count)];
        uint64_t a = sc_clock_now_ns();
        bench_must(sc_radix_lock(s->tree.radix, node, SC_RADIX_LOCK_KV, &receipt), "lock");
        uint64_t b = sc_clock_now_ns();
        bench_must(sc_radix_unlock(s->tree.radix, receipt), "unlock");
        uint64_t c = sc_clock_now_ns();
        radix_sample(&lock, (double)(b - a));
        radix_sample(&unlock, (double)(c - b));
    }
    samples(s, "lock a path, clock included", "ns", &lock, most(0));
    samples(s, "unlock it, clock included", "ns", &unlock, most(0));
    free(nodes);
}

/* ---- evict, memory ---- */

/* Down to `left` tokens; each call is a sample. */
static void evict_to(struct serial *s, uint64_t left, struct radix_samples *took)
{
    while (radix_tree_stats(&s->tree).token_count > left) {
        uint64_t begin = sc_clock_now_ns();
        uint64_t gone = radix_tree_evict(&s->tree, EVICT);
        uint64_t end = sc_clock_now_ns();
        if (gone == 0)
            bench_fail(BENCH_CHECK_FAILED, "nothing could be evicted");
        if (took)
            radix_sample(took, (double)(end - begin) * 1e-3);
    }
}

static void trim(struct serial *s, const char *name)
{
    uint64_t begin = sc_clock_now_ns();
    radix_tree_trim(&s->tree);
    value(s, name, "ms", (double)(sc_clock_now_ns() - begin) * 1e-6, most(0));
}

/* The index's own count, or the allocator's where that is more. */
static double bytes_per_token(const struct serial *s)
{
    struct sc_radix_stats stats = radix_tree_stats(&s->tree);
    struct radix_memory now = radix_memory_get();
    double allocated = now.allocated - s->tree.before.allocated, own = (double)stats.bytes;
    return (allocated > own ? allocated : own) / (double)stats.token_count;
}

static double resident(const struct serial *s)
{
    struct radix_memory now = radix_memory_get();
    double allocated = now.allocated - s->tree.before.allocated;
    double own = (double)radix_tree_stats(&s->tree).bytes;
    return (now.resident - s->tree.before.resident) / (allocated > own ? allocated : own);
}

/* Whether the tree holds about so many tokens. A smaller workload does not fill it: then what is to
 * be measured of a full one is not, and its bars are missed. */
static bool holds(const struct serial *s, uint64_t full)
{
    return radix_tree_stats(&s->tree).token_count * 10 > full * 9;
}

static void to_a_tenth(struct serial *s, const char *when, uint64_t full)
{
    struct radix_samples took = {0};
    char name[64];
    bool there = holds(s, full);
    if (there)
        evict_to(s, full / 10, &took);
    snprintf(name, sizeof name, "evict 8k to a tenth, ids handed out, %s", when);
    samples(s, name, "us", &took, most(10));
    snprintf(name, sizeof name, "bytes a token at a tenth, untrimmed, %s", when);
    value(s, name, "bytes", there ? bytes_per_token(s) : NAN, most(0));
    snprintf(name, sizeof name, "trim at a tenth, %s", when);
    if (there)
        trim(s, name);
    snprintf(name, sizeof name, "bytes a token at a tenth, %s", when);
    value(s, name, "bytes", there ? bytes_per_token(s) : NAN, most(12));
    snprintf(name, sizeof name, "resident / allocated at a tenth, %s", when);
    value(s, name, "ratio", there ? resident(s) : NAN, most(1.25));
}

static void churn(struct serial *s)
{
    struct radix_load *load = s->load;
    uint64_t cap = load->chats ? 6000000 : 10000000;
    struct radix_samples took = {0}, bytes = {0}, insert = {0}, ratio = {0};
    radix_tree_open(&s->tree, true);
    for (uint32_t i = 0; i < load->count; i++) {
        struct sc_radix_match match;
        double matching = timed_match(s, i, &match);
        sc_radix_touch(s->tree.radix, &match);
        double inserting = timed_insert(s, i);
        if (took.count > 100 && match.kv_len >= 3000) {
            radix_sample(&insert, inserting);
            radix_sample(&ratio, inserting / matching);
        }
        evict_to(s, cap, &took);
        if (i > load->count / 2 && i % 50 == 0)
            radix_sample(&bytes, bytes_per_token(s));
    }
    samples(s, "insert in churn, 3k and more matched", "ns", &insert, most(0));
    samples(s, "insert / match in churn, 3k and more", "ratio", &ratio, most(2));
    samples(s, "evict 8k in churn, ids handed out", "us", &took, most(10));
    bool there = holds(s, cap);
    if (!there)
        radix_samples_free(&bytes);
    samples(s, "bytes a token in churn, with ids", "bytes", &bytes, most(9.5));
    if (there)
        trim(s, "trim after churn");
    value(s, "resident / allocated after churn", "ratio", there ? resident(s) : NAN, most(1.15));
    to_a_tenth(s, "after churn", cap);
    radix_tree_close(&s->tree);
}

static void without_ids(struct serial *s)
{
    radix_tree_open(&s->tree, false);
    for (uint32_t i = 0; i < s->load->count; i++)
        radix_tree_insert(&s->tree, radix_load_key(s->load, i, 0), s->load->requests[i].full);
    value(s, "bytes a token, filled, without ids", "bytes", bytes_per_token(s),
        most(4.4));
    radix_tree_close(&s->tree);
}

void radix_serial_run(struct radix_load *load, struct radix_rows *rows)
{
    struct serial s = {.load = load, .rows = rows};
    s.matched = bench_alloc(load->count, sizeof *s.matched);
    shape(&s);
    radix_tree_open(&s.tree, true);
    cold(&s);
    uint64_t full = radix_tree_stats(&s.tree).token_count;
    value(&s, "bytes a token, filled, with ids", "bytes", bytes_per_token(&s),
        most(8.5));
    hot(&s);
    for (int b = 0; b < BUCKETS; b++)
        turns(&s, b);
    locks(&s);
    trim(&s, "trim when filled");
    value(&s, "resident / allocated, filled", "ratio", resident(&s), most(1.15));
    to_a_tenth(&s, "filled", full);
    radix_tree_close(&s.tree);
    churn(&s);
    without_ids(&s);
    free(s.matched);
}
