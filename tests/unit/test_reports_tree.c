/* SPDX-License-Identifier: Apache-2.0 */
/* Field reports that belong to the prefix tree: matches, locks, splits, eviction, keys, depth.
 * docs/field-reports.md is the table; report_N is entry N there. */
#include <pthread.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/prng.h"
#include "radix_internal.h"
#include "support/fail_alloc.h"
#include "support/test_scale.h"
#include "test_radix.h"

static const struct sc_radix_run plain = {0, 0};

/* ---- A, B: lengths ---- */

START_TEST(report_04__a_state_stands_for_its_own_length_only)
{
    static int32_t key[1648];
    OPEN(true, .page_tokens = 1648);
    tr_fill(key, 1648, 1);
    struct sc_radix_save save = {1632, 5};
    ck_assert_int_eq(tr_insert_runs(t, key, 1648, &plain, 1, &save, 1), SC_ERR_MISMATCH);
    ck_assert_uint_eq(tr_match(t, key, 1648).kv_len, 0);
    save.len = 1648;
    ck_assert_int_eq(tr_insert_runs(t, key, 1648, &plain, 1, &save, 1), SC_OK);
    ck_assert_uint_eq(tr_match(t, key, 1648).state_len, 1648);
    END;
    tr_open(t, (struct sc_radix_options){.with_kv = true, .page_tokens = 16});
    save.len = 1632; /* a page end here: then that is its length */
    ck_assert_int_eq(tr_insert_runs(t, key, 1648, &plain, 1, &save, 1), SC_OK);
    ck_assert_uint_eq(tr_match(t, key, 1648).state_len, 1632);
    ck_assert_uint_eq(tr_match_max(t, key, 1648, 1631).state_len, 0);
    END;
}
END_TEST

START_TEST(report_05__the_hit_is_a_snapshot_below_the_limit)
{
    int32_t key[64];
    OPEN(true, .page_tokens = 16);
    tr_fill(key, 64, 1);
    const struct sc_radix_save saves[] = {{48, 1}, {64, 2}};
    ck_assert_int_eq(tr_insert_runs(t, key, 64, &plain, 1, saves, 2), SC_OK);
    struct sc_radix_match m = tr_match_max(t, key, 64, 63); /* a block of look-ahead dropped */
    ck_assert_uint_eq(m.kv_len, 48);
    ck_assert_uint_eq(m.state_len, 48);
    ck_assert_uint_eq(m.snapshot, 1);
    uint32_t before = 64;
    for (uint32_t limit = 64; limit > 0; limit--) {
        m = tr_match_max(t, key, 64, limit);
        ck_assert_uint_le(m.kv_len, limit);
        ck_assert_uint_le(m.state_len, m.kv_len);
        ck_assert_uint_le(m.state_len, before); /* a smaller limit never gives more */
        ck_assert_uint_eq(m.state_len, limit >= 64 ? 64 : limit >= 48 ? 48 : 0);
        before = m.state_len;
    }
    END;
}
END_TEST

/* ---- F: locks and eviction ---- */

START_TEST(report_54__a_held_parent_stops_the_cascade)
{
    static const uint32_t holds[] = {LOCK_KV, LOCK_STATE, LOCK_BOTH};
    for (int h = 0; h < 3; h++) {
        BEGIN();
        tr_insert(t, KEY(1, 2), 1);
        sc_node parent = t->in.node;
        tr_insert(t, KEY(1, 2, 3), 2);
        struct sc_radix_receipt hold = tr_lock(t, parent, holds[h]);
        ck_assert_uint_eq(tr_evict_kv(t, 100, NULL), 1); /* the child alone */
        ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3)).state_len, 2);
        tr_unlock(t, hold);
        ck_assert_uint_eq(tr_evict_kv(t, 100, NULL), 2);
        ck_assert_uint_eq(tr_stats(t).node_count, 0);
        END;
    }
}
END_TEST

START_TEST(report_55__state_of_a_leaf_whose_kv_is_in_use)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3), 1);
    struct sc_radix_receipt hold = tr_lock(t, t->in.node, LOCK_KV);
    ck_assert_uint_eq(tr_evict_state(t, 1), 1); /* the state goes, its KV stays */
    ck_assert(tr_info(t, t->in.node).tombstone);
    struct sc_radix_match m = tr_match(t, KEY(1, 2, 3));
    ck_assert_uint_eq(m.kv_len, 3);
    ck_assert_uint_eq(m.state_len, 0);
    ck_assert_uint_eq(t->kv_count, 0);
    ck_assert_uint_eq(tr_evict_kv(t, 3, NULL), 0);
    tr_unlock(t, hold);
    END;
}
END_TEST

static void check_sums(const struct tr *t)
{
    struct sc_radix_stats s = tr_stats(t);
    ck_assert_uint_eq(s.kv_evictable_tokens + s.kv_locked_tokens, s.token_count);
    ck_assert_uint_eq(s.state_evictable_count + s.state_locked_count, s.snapshot_count);
}

START_TEST(report_56__unlock_without_lock)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3), 1);
    struct sc_radix_receipt hold = tr_lock(t, t->in.node, LOCK_BOTH);
    tr_unlock(t, hold);
    ck_assert_int_eq(sc_radix_unlock(t->radix, hold), SC_ERR_STALE);
    ck_assert_int_eq(sc_radix_unlock(t->radix, (struct sc_radix_receipt){0, 0}), SC_ERR_STALE);
    check_sums(t);
    ck_assert_uint_eq(tr_stats(t).kv_locked_tokens, 0);
    hold = tr_lock(t, t->in.node, LOCK_BOTH); /* this lock counts */
    ck_assert_uint_eq(tr_stats(t).kv_locked_tokens, 3);
    ck_assert_uint_eq(tr_stats(t).state_locked_count, 1);
    ck_assert_uint_eq(tr_evict_kv(t, 3, NULL), 0);
    check_sums(t);
    tr_unlock(t, hold);
    check_sums(t);
    END;
}
END_TEST

START_TEST(report_57__a_release_gives_back_what_its_lock_took)
{
    BEGIN();
    tr_insert(t, KEY(1), 1);
    sc_node a = t->in.node;
    tr_insert(t, KEY(1, 2), 2);
    sc_node b = t->in.node;
    tr_insert(t, KEY(1, 2, 3), 3);
    sc_node c = t->in.node;
    struct sc_radix_receipt user = tr_lock(t, b, LOCK_KV); /* A and B */
    struct sc_radix_node_info a_before = tr_info(t, a), b_before = tr_info(t, b);
    struct sc_radix_receipt window = tr_lock(t, a, LOCK_STATE);
    struct sc_radix_receipt temporary = tr_lock(t, c, LOCK_BOTH);
    tr_unlock(t, temporary);
    ck_assert_uint_eq(tr_info(t, a).kv_locks, a_before.kv_locks);
    ck_assert_uint_eq(tr_info(t, b).kv_locks, b_before.kv_locks);
    ck_assert_uint_eq(tr_info(t, a).state_locks, 1);
    ck_assert_uint_eq(tr_evict_kv(t, 100, NULL), 1); /* C: the user holds the others */
    tr_unlock(t, window);
    ck_assert_uint_eq(tr_evict_kv(t, 100, NULL), 0);
    tr_unlock(t, user);
    ck_assert_uint_eq(tr_evict_kv(t, 100, NULL), 2);
    END;
}
END_TEST

START_TEST(report_58__a_lock_survives_the_split_below_it)
{
    int32_t x[100], y[80];
    BEGIN();
    tr_fill(x, 100, 1);
    memcpy(y, x, 60 * sizeof *y);
    tr_fill(y + 60, 20, 500);
    tr_insert(t, x, 100, 1);
    for (int request = 0; request < 3; request++) {
        struct sc_radix_match m = tr_match(t, x, 60);
        struct sc_radix_receipt hold = tr_lock(t, m.node, LOCK_KV);
        tr_insert(t, y, 80, request ? 0 : 2); /* the first of these splits at 60 */
        ck_assert_uint_ge(tr_stats(t).kv_locked_tokens, 60);
        tr_evict_kv(t, 1000, NULL);
        ck_assert_uint_eq(tr_match(t, x, 60).kv_len, 60); /* what was matched is held */
        tr_unlock(t, hold);
        ck_assert_uint_eq(tr_stats(t).kv_locked_tokens, 0);
        tr_insert(t, x, 100, 0);
    }
    uint64_t all = tr_stats(t).token_count;
    ck_assert_uint_eq(tr_evict_kv(t, all, NULL), all);
    END;
}
END_TEST

/* Keys that begin with a piece of an earlier one; the longest common whole pages by brute force. */
START_TEST(report_59__matches_are_whole_pages_of_what_is_equal)
{
    enum { KEYS = 60, LEN = 1200 };
    static const uint32_t pages[] = {1, 16, 64, 256};
    static int32_t keys[KEYS][LEN];
    static struct tr tree;
    struct tr *t = &tree;
    struct sc_prng prng;
    sc_prng_seed(&prng, 59);
    for (int p = 0; p < 4; p++) {
        uint32_t page = pages[p], lens[KEYS];
        tr_open(t, (struct sc_radix_options){.with_kv = true, .page_tokens = page});
        for (int k = 0; k < KEYS; k++) {
            uint32_t shared = k ? (uint32_t)sc_prng_below(&prng, LEN) : 0;
            if (k == 1) shared = 100; /* less than a page of 256, as reported */
            if (k) memcpy(keys[k], keys[sc_prng_below(&prng, (uint64_t)k)], shared * 4);
            for (uint32_t i = shared; i < LEN; i++) keys[k][i] = (int32_t)sc_prng_below(&prng, 3);
            uint32_t want = 0;
            for (int other = 0; other < k; other++) {
                uint32_t same = 0;
                while (same < lens[other] && keys[k][same] == keys[other][same]) same++;
                if (same / page * page > want) want = same / page * page;
            }
            struct sc_radix_match m = tr_match(t, keys[k], LEN);
            ck_assert_uint_eq(m.kv_len, want);
            lens[k] = (LEN - (uint32_t)sc_prng_below(&prng, 400)) / page * page;
            tr_insert(t, keys[k], lens[k], 0);
            ck_assert_uint_eq(t->in.prefix_len, want < lens[k] ? want : lens[k]);
        }
        tr_close(t);
    }
}
END_TEST

START_TEST(report_62__memory_follows_what_the_tree_holds)
{
    enum { N = 100000, PIECE = 99 };
    static int32_t key[N];
    BEGIN();
    tr_fill(key, N, 1);
    ck_assert_int_eq(tr_insert_runs(t, key, N, &plain, 1, NULL, 0), SC_OK);
    uint64_t whole = tr_stats(t).bytes;
    ck_assert_uint_lt(whole, (uint64_t)2 * N * 8); /* a token and an id each */
    for (uint32_t i = 1; i <= 1000; i++) {
        ck_assert_int_eq(tr_insert_runs(t, key, N - i * PIECE, &plain, 1, NULL, 0), SC_OK);
    }
    ck_assert_uint_ge(tr_stats(t).node_count, 1000);
    ck_assert_uint_lt(tr_stats(t).bytes, (uint64_t)2 * N * 8);
    struct sc_radix_receipt hold = tr_lock(t, tr_match(t, key, 1).node, LOCK_KV);
    (void)tr_evict_kv(t, N, NULL);
    ck_assert_uint_lt(tr_stats(t).token_count, N / 100 * 2);
    ck_assert_uint_lt(tr_stats(t).bytes, whole); /* not held by what is left */
    tr_unlock(t, hold);
    END;
}
END_TEST

/* A match that can be resumed ends at a node. What is matched is younger than older keys; the rest
 * keeps its age. */
START_TEST(report_63__what_was_matched_outlives_its_tail)
{
    int32_t x[100], y[100];
    BEGIN();
    tr_fill(x, 100, 1);
    tr_fill(y, 100, 1000);
    const struct sc_radix_save saves[] = {{60, 1}, {100, 2}};
    ck_assert_int_eq(tr_insert_runs(t, x, 100, &plain, 1, saves, 2), SC_OK);
    tr_insert(t, y, 100, 3);
    tr_use(t, x, 60);
    ck_assert_uint_eq(tr_evict_kv(t, 40, NULL), 40); /* the tail of X */
    ck_assert_uint_eq(tr_match(t, x, 100).kv_len, 60);
    ck_assert_uint_eq(tr_match(t, y, 100).kv_len, 100);
    ck_assert_uint_eq(tr_evict_kv(t, 40, NULL), 100); /* Y */
    ck_assert_uint_eq(tr_match(t, x, 100).state_len, 60);
    ck_assert_uint_eq(tr_evict_kv(t, 40, NULL), 60);
    END;
}
END_TEST

START_TEST(report_63__a_match_inside_a_node_is_not_evicted_first)
{
    int32_t x[100], y[100], z[61];
    BEGIN();
    tr_fill(x, 100, 1);
    tr_fill(y, 100, 1000);
    memcpy(z, x, sizeof z);
    z[60] = -1;
    tr_insert(t, x, 100, 0);
    tr_insert(t, y, 100, 0);
    tr_insert(t, z, 61, 0); /* splits X */
    tr_use(t, z, 61);
    while (tr_match(t, y, 100).kv_len > 0) tr_evict_kv(t, 1, NULL);
    ck_assert_uint_eq(tr_match(t, z, 61).kv_len, 61);
    END;
}
END_TEST

START_TEST(report_64__evicting_n_is_not_evicting_all)
{
    for (uint32_t n = 1; n <= 100; n++) {
        BEGIN();
        for (int32_t i = 0; i < 100; i++) {
            struct sc_radix_save save = {1, (uint32_t)i + 1};
            ck_assert_int_eq(tr_insert_runs(t, &i, 1, &plain, 1, &save, 1), SC_OK);
        }
        if (n % 2) {
            ck_assert_uint_eq(tr_evict_state(t, n), n);
            ck_assert_uint_eq(tr_stats(t).snapshot_count, 100 - n);
        } else {
            ck_assert_uint_eq(tr_evict_kv(t, n, NULL), n);
            ck_assert_uint_eq(tr_stats(t).token_count, 100 - n);
        }
        ck_assert_uint_eq(t->gone_count, n);
        END;
    }
}
END_TEST

/* The best of several, so that a busy machine does not count. */
START_TEST(report_69__eviction_does_not_look_at_what_is_locked)
{
    enum { N = 100000 };
    BEGIN();
    for (int32_t i = 0; i < N; i++) {
        struct sc_radix_save save = {1, (uint32_t)i + 1};
        struct sc_radix_receipt hold;
        ck_assert_int_eq(tr_insert_runs(t, &i, 1, &plain, 1, &save, 1), SC_OK);
        if (i % 100 == 99) continue;
        ck_assert_int_eq(sc_radix_lock(t->radix, t->in.node, LOCK_BOTH, &hold), SC_OK);
    }
    uint64_t best[2] = {UINT64_MAX, UINT64_MAX};
    for (int round = 0; round < 200; round++) {
        uint64_t start = sc_clock_now_ns(), tokens = 0;
        uint32_t count = 0, snapshots;
        if (round % 2) {
            ck_assert_int_eq(sc_radix_evict_state(t->radix, 1, &t->sink, &count), SC_OK);
        } else {
            ck_assert_int_eq(
                sc_radix_evict_kv(t->radix, 1, &t->sink, &tokens, &snapshots), SC_OK);
        }
        ck_assert_uint_eq(count + tokens, 1);
        uint64_t took = sc_clock_now_ns() - start;
        if (took < best[round % 2]) best[round % 2] = took;
    }
    ck_assert_uint_lt(best[0], 1000000);
    ck_assert_uint_lt(best[1], 1000000);
    END;
}
END_TEST

/* ---- N: keys ---- */

START_TEST(report_129__equal_ends_are_not_equal_keys)
{
    OPEN(true, .page_tokens = 4);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9), 1);
    ck_assert_uint_eq(tr_match(t, KEY(4, 3, 2, 1, 5, 6, 7, 8, 9, 9, 9, 9)).kv_len, 0);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 6, 5, 7, 8, 9, 9, 9, 9)).kv_len, 4);
    tr_insert(t, KEY(4, 3, 2, 1, 5, 6, 7, 8, 9, 9, 9, 9), 2);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9)).snapshot, 1);
    ck_assert_uint_eq(tr_match(t, KEY(4, 3, 2, 1, 5, 6, 7, 8, 9, 9, 9, 9)).snapshot, 2);
    END;
}
END_TEST

static uint32_t equal_hashes(const struct sc_radix *r)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i <= r->slot_mask; i++) {
        for (uint32_t j = (i + 1) & r->slot_mask; r->slots[i].node && r->slots[j].node;
             j = (j + 1) & r->slot_mask) {
            count += r->slots[i].hash == r->slots[j].hash;
        }
    }
    return count;
}

/* So many children of one node that some have one hash: then tokens decide. */
START_TEST(report_130__equal_hashes_do_not_answer_for_each_other)
{
    enum { MANY = 200000 };
    OPEN(false, .page_tokens = 2);
    for (int32_t i = 1; i <= MANY; i++) {
        const int32_t key[2] = {i * 7919, i};
        struct sc_radix_save save = {2, (uint32_t)i};
        ck_assert_int_eq(tr_insert_runs(t, key, 2, &plain, 1, &save, 1), SC_OK);
        ck_assert_uint_eq(t->in.prefix_len, 0);
    }
    ck_assert_uint_gt(equal_hashes(t->radix), 0);
    for (int32_t i = 1; i <= MANY; i++) {
        const int32_t key[2] = {i * 7919, i}, other[2] = {i * 7919, -i};
        ck_assert_uint_eq(tr_match(t, key, 2).snapshot, (uint32_t)i);
        ck_assert_uint_eq(tr_match(t, other, 2).kv_len, 0);
    }
    END;
}
END_TEST

/* ---- P: depth ---- */

/* A node a token: the history changes at each. */
static void *deep_chain(void *arg)
{
    uint32_t n = *(const uint32_t *)arg;
    OPEN(true, .page_tokens = 1);
    int32_t *key = calloc(n, sizeof *key);
    struct sc_radix_run *runs = calloc(n, sizeof *runs);
    ck_assert(key && runs);
    tr_fill(key, n, 1);
    for (uint32_t i = 0; i < n; i++) runs[i] = (struct sc_radix_run){i, i};
    struct sc_radix_save save = {n, 1};
    for (uint32_t len = n - 3; len < n; len++) { /* growing by a page at the end */
        ck_assert_int_eq(tr_insert_runs(t, key, len, runs, len, NULL, 0), SC_OK);
    }
    ck_assert_int_eq(tr_insert_runs(t, key, n, runs, n, &save, 1), SC_OK);
    ck_assert_uint_eq(tr_stats(t).node_count, n);
    struct sc_radix_match m = tr_match(t, key, n);
    ck_assert_uint_eq(m.state_len, n);
    struct sc_radix_receipt hold = tr_lock(t, m.node, LOCK_BOTH);
    ck_assert_uint_eq(tr_evict_kv(t, n, NULL), 0);
    tr_unlock(t, hold);
    free(tr_dump(t));
    ck_assert_uint_eq(tr_evict_kv(t, n / 2, NULL), n / 2);
    ck_assert_int_eq(sc_radix_space_remove(t->radix, t->space, &t->sink), SC_OK);
    ck_assert_uint_eq(t->kv_count, n);
    free(key), free(runs);
    END;
    return t;
}

START_TEST(report_139__a_million_nodes_deep_on_a_small_stack)
{
    uint32_t n = (uint32_t)test_scaled(1000000, 100000);
    pthread_attr_t attr;
    pthread_t thread;
    void *done = NULL;
    ck_assert_int_eq(pthread_attr_init(&attr), 0);
    ck_assert_int_eq(pthread_attr_setstacksize(&attr, 256 * 1024), 0);
    ck_assert_int_eq(pthread_create(&thread, &attr, deep_chain, &n), 0);
    ck_assert_int_eq(pthread_join(thread, &done), 0);
    ck_assert_ptr_nonnull(done);
    (void)pthread_attr_destroy(&attr);
}
END_TEST

/* A million tokens in pieces of 8k, an insert after each: what is known is compared, the piece is
 * stored. The best of the last eight against the best memcmp of as many tokens. */
START_TEST(report_140__inserts_in_pieces_store_the_piece_alone)
{
    enum { N = 1 << 20, PIECE = 8192 };
    uint64_t compare = UINT64_MAX, insert = UINT64_MAX;
    int32_t *key = malloc(N * sizeof *key), *ids = malloc(N * sizeof *ids);
    BEGIN();
    ck_assert(key && ids);
    tr_fill(key, N, 1);
    memcpy(ids, key, N * sizeof *ids);
    for (uint32_t len = PIECE; len <= N; len += PIECE) {
        struct sc_radix_insert piece = {.space = t->space, .tokens = key, .token_count = len,
            .kv_ids = ids, .runs = &plain, .run_count = 1};
        uint64_t start = sc_clock_now_ns(), took;
        ck_assert_int_eq(sc_radix_insert(t->radix, &piece, &t->sink, NULL, NULL, &t->in), SC_OK);
        took = sc_clock_now_ns() - start;
        ck_assert_uint_eq(t->in.prefix_len, len - PIECE);
        if (len > N - 8 * PIECE && took < insert) insert = took;
        start = sc_clock_now_ns();
        ck_assert_int_eq(memcmp(key, ids, N * sizeof *key), 0);
        took = sc_clock_now_ns() - start;
        if (took < compare) compare = took;
    }
    ck_assert_uint_lt(tr_stats(t).bytes, (uint64_t)N * 8 * 3 / 2);
    ck_assert_msg(insert < 8 * compare + 1000000, "insert %llu ns, memcmp %llu ns",
        (unsigned long long)insert, (unsigned long long)compare);
    END;
    free(key), free(ids);
}
END_TEST

/* ---- M: memory ---- */

/* One call after the other with its n-th allocation failing: nothing has changed. */
static void insert_failing(struct tr *t, struct fail_alloc *fa, const int32_t *key, uint32_t len,
    const struct sc_radix_run *runs, uint32_t run_count, uint64_t *failures)
{
    char *before = tr_dump(t);
    for (uint64_t n = 1;; n++) {
        fail_alloc_arm(fa, n);
        sc_status status = tr_insert_runs(t, key, len, runs, run_count, NULL, 0);
        if (!fail_alloc_disarm(fa)) {
            ck_assert_int_eq(status, SC_OK);
            break;
        }
        ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
        VERIFY(t);
        char *after = tr_dump(t);
        ck_assert_str_eq(before, after);
        free(after);
        (*failures)++;
    }
    VERIFY(t);
    free(before);
}

/* As reported: a stack of parents that is deeper than 32, and edges that grow when what is between
 * them goes. */
START_TEST(report_124__a_deep_chain_survives_each_failing_allocation)
{
    enum { DEPTH = 300, EDGE = 50, N = DEPTH * EDGE };
    static int32_t key[N], branch[N];
    static struct sc_radix_run runs[DEPTH];
    struct fail_alloc fa;
    uint64_t failures = 0;
    fail_alloc_init(&fa);
    BEGIN(.allocator = &fa.allocator);
    tr_fill(key, N, 1);
    for (uint32_t i = 0; i < DEPTH; i++) runs[i] = (struct sc_radix_run){i * EDGE, i};
    insert_failing(t, &fa, key, N, runs, DEPTH, &failures);
    ck_assert_uint_ge(tr_stats(t).node_count, DEPTH);
    for (uint32_t i = 1; i < 12; i++) { /* leaves an edge in its middle, ever deeper */
        uint32_t at = i * N / 12 + EDGE / 2;
        memcpy(branch, key, at * sizeof *key);
        for (uint32_t k = at; k < N; k++) branch[k] = (int32_t)(N * i + k);
        insert_failing(t, &fa, branch, at + 40, runs, at / EDGE + 1, &failures);
    }
    ck_assert_uint_gt(failures, 6);
    uint64_t total = tr_stats(t).token_count;
    while (tr_stats(t).token_count > total / 3) {
        uint64_t tokens = 0;
        uint32_t snapshots = 0;
        fail_alloc_arm(&fa, 1); /* what removes needs no memory */
        ck_assert_int_eq(sc_radix_evict_kv(t->radix, 700, &t->sink, &tokens, &snapshots), SC_OK);
        ck_assert(!fail_alloc_disarm(&fa));
        ck_assert_uint_gt(tokens, 0);
        VERIFY(t);
    }
    insert_failing(t, &fa, key, N, runs, DEPTH, &failures);
    ck_assert_int_eq(sc_radix_space_remove(t->radix, t->space, &t->sink), SC_OK);
    END;
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
}
END_TEST

static uint64_t resident_bytes(void)
{
    unsigned long long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%llu %llu", &all, &resident), 2);
    (void)fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Inserts so many nodes, notes what the process holds, evicts all. */
static uint64_t burst(struct tr *t, uint64_t nodes)
{
    enum { LEN = 1000 };
    static struct sc_radix_run runs[LEN];
    int32_t key[LEN];
    for (uint32_t i = 0; i < LEN; i++) runs[i] = (struct sc_radix_run){i, i};
    for (uint32_t i = 0; i < nodes / LEN; i++) {
        tr_fill(key, LEN, (int32_t)(i * LEN));
        ck_assert_int_eq(tr_insert_runs(t, key, LEN, runs, LEN, NULL, 0), SC_OK);
    }
    ck_assert_uint_ge(tr_stats(t).node_count, nodes);
    uint64_t peak = resident_bytes();
    ck_assert_uint_eq(tr_evict_kv(t, UINT64_MAX, NULL), nodes);
    ck_assert_int_eq(sc_radix_trim(t->radix, UINT64_MAX, NULL), SC_OK);
    sc_radix_purge(t->radix);
    t->kv_count = 0;
    return peak;
}

/* A million nodes, all evicted: their memory goes back, but for what the allocator wrote down about
 * it; a second burst leaves nothing more. */
START_TEST(report_125__memory_goes_back_after_a_burst)
{
    uint64_t nodes = test_scaled(1000000, 100000);
    BEGIN();
    t->kv_cap = (uint32_t)nodes; /* the test's own list of ids is not measured */
    t->kv = malloc(nodes * sizeof *t->kv);
    memset(t->kv, 0, nodes * sizeof *t->kv);
    (void)burst(t, nodes / 20); /* what any use takes */
    uint64_t start = resident_bytes(), peak = burst(t, nodes), end = resident_bytes();
    (void)burst(t, nodes);
    uint64_t again = resident_bytes();
    ck_assert_uint_gt(peak - start, nodes * 32);
#ifndef SC_PLAIN_MALLOC /* sanitizers keep what was freed for a while */
    ck_assert_msg(end - start < (peak - start) / 20 && again < end * 13 / 10,
        "%llu bytes before, %llu at the peak, %llu after, %llu after the second",
        (unsigned long long)start, (unsigned long long)peak, (unsigned long long)end,
        (unsigned long long)again);
#else
    ck_assert_uint_gt(end + again, 0);
#endif
    ck_assert_uint_lt(tr_stats(t).bytes, nodes);
    END;
}
END_TEST

#define ADD(name) tcase_add_test(tc, name)

int main(void)
{
    Suite *suite = suite_create("reports_tree");
    TCase *tc = tcase_create("reports");
    tcase_set_timeout(tc, 240);
    ADD(report_04__a_state_stands_for_its_own_length_only);
    ADD(report_05__the_hit_is_a_snapshot_below_the_limit);
    ADD(report_54__a_held_parent_stops_the_cascade);
    ADD(report_55__state_of_a_leaf_whose_kv_is_in_use); ADD(report_56__unlock_without_lock);
    ADD(report_57__a_release_gives_back_what_its_lock_took);
    ADD(report_58__a_lock_survives_the_split_below_it);
    ADD(report_59__matches_are_whole_pages_of_what_is_equal);
    ADD(report_62__memory_follows_what_the_tree_holds);
    ADD(report_63__what_was_matched_outlives_its_tail);
    ADD(report_63__a_match_inside_a_node_is_not_evicted_first);
    ADD(report_64__evicting_n_is_not_evicting_all);
    ADD(report_69__eviction_does_not_look_at_what_is_locked);
    ADD(report_124__a_deep_chain_survives_each_failing_allocation);
    ADD(report_125__memory_goes_back_after_a_burst);
    ADD(report_129__equal_ends_are_not_equal_keys);
    ADD(report_130__equal_hashes_do_not_answer_for_each_other);
    ADD(report_139__a_million_nodes_deep_on_a_small_stack);
    ADD(report_140__inserts_in_pieces_store_the_piece_alone);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
