/* SPDX-License-Identifier: Apache-2.0 */
/* The peers' fuzz (T11), deep and wide trees, and a look at the cost of a hot match. */
#include <stdio.h>

#include "base/clock.h"
#include "base/prng.h"
#include "test_radix.h"

/* --- T11 --- */

enum { T11_SEQUENCES = 1500, T11_CAP = 150000, T11_STATES = 600 };

struct seq { uint32_t parent, first, len; int32_t token; }; /* parent's tokens, then own ones */

/* Tokens of sequence s into `out`; returns how many. */
static uint32_t seq_tokens(const struct seq *seqs, uint32_t s, int32_t *out)
{
    uint32_t end = seqs[s].first + seqs[s].len;
    for (uint32_t at = s;; at = seqs[at].parent) {
        for (uint32_t i = 0; i < seqs[at].len; i++) out[seqs[at].first + i] = seqs[at].token;
        if (at == 0) return end;
    }
}

START_TEST(t11__growth_and_fan_out)
{
    static struct seq seqs[T11_SEQUENCES];
    static uint32_t order[T11_SEQUENCES];
    static int32_t key[65536];
    struct sc_prng prng;
    sc_prng_seed(&prng, 42);
    BEGIN(.grid_tokens = 64);
    uint32_t n = 1;
    seqs[0] = (struct seq){0, 0, 16, 7};
    while (n < T11_SEQUENCES) {
        uint32_t parent = (uint32_t)sc_prng_below(&prng, n);
        uint32_t first = seqs[parent].first + seqs[parent].len;
        uint32_t children = sc_prng_below(&prng, 2) ? 1 : 2 + (uint32_t)sc_prng_below(&prng, 9);
        if (first + 256 > 65536) continue;
        for (uint32_t c = 0; c < children && n < T11_SEQUENCES; c++) {
            seqs[n++] = (struct seq){parent, first, 1 + (uint32_t)sc_prng_below(&prng, 256),
                (int32_t)sc_prng_below(&prng, 32000)};
        }
    }
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)sc_prng_below(&prng, i);
        uint32_t kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
    uint64_t inserted_ids = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t len = seq_tokens(seqs, order[i], key);
        uint64_t got;
        uint32_t count;
        struct sc_radix_stats s = tr_stats(t);
        if (s.token_count + len > T11_CAP) {
            ck_assert_int_eq(sc_radix_evict_kv(t->radix, 2 * len, &t->sink, &got, &count), SC_OK);
        }
        if (s.snapshot_count >= T11_STATES) {
            ck_assert_int_eq(sc_radix_evict_state(t->radix, 2, &t->sink, &count), SC_OK);
        }
        struct sc_radix_run run = {0, 0};
        struct sc_radix_save save = {len, i + 1};
        ck_assert_int_eq(tr_insert_runs(t, key, len, &run, 1, &save, 1), SC_OK);
        inserted_ids += len - t->in.prefix_len;
        ck_assert_uint_eq(tr_match(t, key, len).state_len, len);
        if (i % 100 == 0) {
            VERIFY(t);
            s = tr_stats(t);
            ck_assert_uint_eq(s.kv_evictable_tokens + s.kv_locked_tokens, s.token_count);
            ck_assert_uint_eq(s.token_count + t->kv_count, inserted_ids);
        }
    }
    ck_assert_uint_gt(t->kv_count, 0);
    END;
}
END_TEST

/* --- T13: shape --- */

START_TEST(t13__deep_chain)
{
    enum { N = 1000000 };
    static int32_t key[N];
    BEGIN();
    tr_fill(key, N, 0);
    /* One node a token: each insert adds one to the chain. History changes at each token. */
    struct sc_radix_run *runs = malloc(N * sizeof *runs);
    ck_assert_ptr_nonnull(runs);
    for (uint32_t i = 0; i < N; i++) runs[i] = (struct sc_radix_run){i, i};
    ck_assert_int_eq(tr_insert_runs(t, key, N, runs, N, NULL, 0), SC_OK);
    free(runs);
    ck_assert_uint_eq(tr_stats(t).node_count, N);
    VERIFY(t);
    struct sc_radix_match m = tr_match(t, key, N);
    ck_assert_uint_eq(m.kv_len, N);
    struct sc_radix_receipt receipt = tr_lock(t, m.node, LOCK_KV);
    ck_assert_uint_eq(tr_stats(t).kv_locked_tokens, N);
    uint64_t start = sc_clock_now_ns();
    for (uint32_t i = 0; i < 100000; i++) { /* further locks do not walk the chain */
        struct sc_radix_receipt again;
        ck_assert_int_eq(sc_radix_lock(t->radix, m.node, LOCK_KV, &again), SC_OK);
        ck_assert_int_eq(sc_radix_unlock(t->radix, again), SC_OK);
    }
    ck_assert_uint_lt(sc_clock_now_ns() - start, UINT64_C(20000000000));
    tr_unlock(t, receipt);
    char *text = tr_dump(t);
    ck_assert_ptr_nonnull(text);
    free(text);
    ck_assert_uint_eq(tr_evict_kv(t, N / 2, NULL), N / 2);
    ck_assert_int_eq(sc_radix_space_remove(t->radix, t->space, &t->sink), SC_OK);
    ck_assert_uint_eq(tr_stats(t).node_count, 0);
    END;
}
END_TEST

/* A million nodes below a thousand forks; keys of 100k tokens beside them. */
START_TEST(t13__a_million_nodes)
{
    enum { WIDE = 1000, LONG = 100000 };
    static int32_t key[LONG];
    BEGIN();
    struct sc_radix_run run = {0, 0};
    for (int32_t i = 0; i < WIDE; i++) {
        for (int32_t k = 0; k < WIDE; k++) {
            ck_assert_int_eq(tr_insert_runs(t, KEY(i, k, i + k), &run, 1, NULL, 0), SC_OK);
        }
    }
    for (int32_t i = 0; i < 8; i++) {
        tr_fill(key, LONG, -(i + 1) * LONG);
        ck_assert_int_eq(tr_insert_runs(t, key, LONG, &run, 1, NULL, 0), SC_OK);
    }
    VERIFY(t);
    ck_assert_uint_ge(tr_stats(t).node_count, WIDE * WIDE + WIDE);
    for (int32_t i = 0; i < WIDE; i += 7) {
        ck_assert_uint_eq(tr_match(t, KEY(i, i, 2 * i)).kv_len, 3);
        ck_assert_uint_eq(tr_match(t, KEY(i, WIDE, 0)).kv_len, 1);
    }
    ck_assert_uint_eq(tr_match(t, key, LONG).kv_len, LONG);
    uint64_t full = tr_stats(t).bytes;
    uint64_t left = tr_stats(t).token_count - LONG / 2;
    ck_assert_uint_eq(tr_evict_kv(t, left, NULL), left); /* half of the last key stays */
    ck_assert_uint_eq(tr_match(t, key, LONG).kv_len, LONG / 2);
    ck_assert_int_eq(sc_radix_trim(t->radix, UINT64_MAX, NULL), SC_OK);
    VERIFY(t);
    ck_assert_uint_lt(tr_stats(t).bytes, full / 40);
    END;
}
END_TEST

START_TEST(t13__wide_fan_out)
{
    enum { N = 10000 };
    BEGIN();
    struct sc_radix_run run = {0, 0};
    for (int32_t i = 0; i < N; i++) {
        struct sc_radix_save save = {3, (uint32_t)i + 1};
        ck_assert_int_eq(tr_insert_runs(t, KEY(5, 6, i), &run, 1, &save, 1), SC_OK);
    }
    VERIFY(t);
    for (int32_t i = 0; i < N; i++) {
        ck_assert_uint_eq(tr_match(t, KEY(5, 6, i)).snapshot, (uint32_t)i + 1);
    }
    ck_assert_uint_eq(tr_match(t, KEY(5, 6, N)).kv_len, 2);
    ck_assert_uint_eq(tr_evict_kv(t, N / 2, NULL), N / 2);
    for (int32_t i = 0; i < N; i++) {
        ck_assert_uint_eq(tr_match(t, KEY(5, 6, i)).state_len, i < N / 2 ? 0 : 3);
    }
    ck_assert_uint_eq(tr_evict_kv(t, N, NULL), N / 2 + 2);
    END;
}
END_TEST

/* Not a benchmark: prints, and fails only when something is wrong by orders of magnitude. */
START_TEST(cost__hot_match_of_9k_tokens)
{
    enum { N = 9000, ROUNDS = 2000 };
    static int32_t key[N];
    BEGIN();
    tr_fill(key, N, 1);
    tr_insert(t, key, N, 1);
    const struct sc_radix_key whole = {.tokens = key, .token_count = N};
    uint64_t start = sc_clock_now_ns();
    uint64_t total = 0;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        struct sc_radix_match m;
        (void)sc_radix_match(t->radix, t->space, &whole, N, &m);
        total += m.state_len;
    }
    uint64_t each = (sc_clock_now_ns() - start) / ROUNDS;
    ck_assert_uint_eq(total, (uint64_t)N * ROUNDS);
    (void)fprintf(stderr, "hot match of %d tokens: %llu ns\n", N, (unsigned long long)each);
    ck_assert_uint_lt(each, 2000000);
    END;
}
END_TEST

#define ADD(name) tcase_add_test(tc, name)

Suite *radix_shape_suite(void)
{
    Suite *s = suite_create("radix shape");
    TCase *tc = tcase_create("shape and cost");
    tcase_set_timeout(tc, 240);
    ADD(t11__growth_and_fan_out); ADD(t13__deep_chain); ADD(t13__wide_fan_out);
    ADD(t13__a_million_nodes);
    ADD(cost__hot_match_of_9k_tokens);
    suite_add_tcase(s, tc);
    return s;
}
