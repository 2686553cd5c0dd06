/* SPDX-License-Identifier: Apache-2.0 */
/* How runs are compared, kept, moved and cut; look-ups and inserts that go on from a path. */
#include "base/prng.h"
#include "radix_internal.h"
#include "test_radix.h"

/* --- comparison --- */

/* Every loop of this processor, at every offset in a line, with the difference anywhere. */
START_TEST(compare__agrees_with_a_plain_loop)
{
    enum { N = 700 };
    static int32_t a[N + 32], b[N + 32];
    static const uint32_t lens[] = {0, 1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 256,
        257, 300, 511, 513, N};
    rx_common_fn common = rx_common_choose((enum rx_width)_i);
    for (uint32_t i = 0; i < N + 32; i++) a[i] = b[i] = (int32_t)(i * 7919);
    for (uint32_t x = 0; x < 17; x++) {
        for (uint32_t y = 0; y < 17; y += 1 + x % 3) {
            for (size_t l = 0; l < sizeof lens / sizeof *lens; l++) {
                uint32_t n = lens[l];
                memcpy(b + y, a + x, n * sizeof *a);
                ck_assert_uint_eq(common(a + x, b + y, n), n);
                for (uint32_t at = 0; at < n; at += 1 + at / 5 + (x + y) % 4) {
                    b[y + at] ^= 1 << (at % 31);
                    ck_assert_uint_eq(common(a + x, b + y, n), at);
                    b[y + at] ^= 1 << (at % 31);
                }
            }
        }
    }
}
END_TEST

/* --- trim --- */

enum { KEYS = 60, KEY_MAX = 3000 };
struct keys {
    int32_t tokens[KEYS][KEY_MAX];
    uint32_t lens[KEYS];
};

static void keys_make(struct keys *keys, struct sc_prng *prng, uint32_t page)
{
    for (uint32_t k = 0; k < KEYS; k++) {
        keys->lens[k] = (uint32_t)(1 + sc_prng_below(prng, KEY_MAX / page)) * page;
        uint32_t shared = 0;
        if (k > 0) {
            uint32_t from = (uint32_t)sc_prng_below(prng, k);
            shared = (uint32_t)sc_prng_below(prng, keys->lens[from] + 1);
            if (shared > keys->lens[k]) shared = keys->lens[k];
            memcpy(keys->tokens[k], keys->tokens[from], shared * sizeof(int32_t));
        }
        for (uint32_t i = shared; i < keys->lens[k]; i++) {
            keys->tokens[k][i] = (int32_t)sc_prng_below(prng, 1000);
        }
    }
}

/* What can be asked of the tree: all matches, and the ids of what matched, hashed. */
static uint64_t answers(const struct tr *t, const struct keys *keys)
{
    uint64_t hash = 0;
    for (uint32_t k = 0; k < KEYS; k++) {
        struct sc_radix_match m = tr_match(t, keys->tokens[k], keys->lens[k]);
        hash = sc_mix64(hash ^ m.node) + sc_mix64(m.kv_len) + sc_mix64(m.snapshot);
        if (!t->with_kv) continue;
        struct sc_radix_span spans[256];
        uint32_t count;
        ck_assert_int_eq(sc_radix_spans(t->radix, m.node, 0, spans, 256, &count), SC_OK);
        for (uint32_t s = 0; s < count; s++) {
            for (uint32_t i = 0; i < spans[s].page_count; i++) {
                hash = sc_mix64(hash ^ (uint64_t)spans[s].ids[i]);
            }
        }
    }
    return hash;
}

START_TEST(trim__changes_nothing_but_memory)
{
    static const struct { uint32_t page; bool kv; } rows[] = {{1, true}, {1, false}, {3, true},
        {16, true}, {300, true}, {4, false}};
    static struct keys keys;
    struct sc_prng prng;
    sc_prng_seed(&prng, (uint64_t)_i + 1);
    OPEN(rows[_i].kv, .page_tokens = rows[_i].page);
    uint64_t freed = 0;
    for (uint32_t step = 0; step < 60; step++) {
        keys_make(&keys, &prng, rows[_i].page);
        for (uint32_t k = 0; k < KEYS; k++) {
            struct sc_radix_run run = {0, 0};
            struct sc_radix_save save = {keys.lens[k], step * KEYS + k + 1};
            ck_assert_int_eq(tr_insert_runs(t, keys.tokens[k], keys.lens[k], &run, 1, &save,
                k % 3 == 0), SC_OK);
        }
        uint64_t tokens;
        uint32_t count;
        uint64_t want = sc_prng_below(&prng, 2) ? 20000 : tr_stats(t).token_count * 9 / 10;
        ck_assert_int_eq(sc_radix_evict_kv(t->radix, want, &t->sink, &tokens, &count), SC_OK);
        uint64_t before = answers(t, &keys);
        struct sc_radix_stats stats = tr_stats(t);
        uint64_t bytes, most = sc_prng_below(&prng, 3) ? UINT64_MAX : sc_prng_below(&prng, 9000);
        ck_assert_int_eq(sc_radix_trim(t->radix, most, &bytes), SC_OK);
        VERIFY(t);
        ck_assert_uint_eq(answers(t, &keys), before);
        struct sc_radix_stats after = tr_stats(t);
        ck_assert_uint_le(after.bytes, stats.bytes + 200000); /* a step may end in new chunks */
        ck_assert_uint_eq(bytes, stats.bytes > after.bytes ? stats.bytes - after.bytes : 0);
        freed += bytes;
        after.bytes = stats.bytes;
        ck_assert_int_eq(memcmp(&after, &stats, sizeof stats), 0);
    }
    ck_assert_uint_gt(freed, 500000);
    END;
}
END_TEST

/* Evicts until every chunk is sparse; a trim then packs what is left. */
static void make_sparse(struct tr *t, uint32_t keep_every)
{
    static int32_t key[1000];
    struct sc_radix_run run = {0, 0};
    for (int32_t i = 0; i < 400; i++) {
        tr_fill(key, 1000, i * 100000);
        ck_assert_int_eq(tr_insert_runs(t, key, 1000, &run, 1, NULL, 0), SC_OK);
    }
    for (int32_t i = 0; i < 400; i += (int32_t)keep_every) {
        tr_fill(key, 1000, i * 100000);
        (void)tr_use(t, key, 1000);
    }
    tr_evict_kv(t, tr_stats(t).token_count - 400 / keep_every * 1000, NULL);
}

START_TEST(trim__memory_follows_the_tokens)
{
    BEGIN();
    make_sparse(t, 10);
    ck_assert_uint_eq(tr_stats(t).token_count, 40000);
    ck_assert_uint_gt(tr_stats(t).bytes, 40000 * 20);
    uint64_t bytes;
    ck_assert_int_eq(sc_radix_trim(t->radix, UINT64_MAX, &bytes), SC_OK);
    VERIFY(t);
    /* Tokens and ids, a chunk that is not full, and blocks of nodes. */
    ck_assert_uint_lt(tr_stats(t).bytes, 40000 * 8 + 16384 * 8 + 150000);
    ck_assert_uint_eq(tr_match(t, KEY(0, 1, 2)).kv_len, 3);
    END;
}
END_TEST

START_TEST(trim__goes_in_steps)
{
    BEGIN();
    make_sparse(t, 10);
    uint64_t first = tr_stats(t).bytes, bytes;
    ck_assert_int_eq(sc_radix_trim(t->radix, 0, &bytes), SC_OK); /* moves nothing */
    uint64_t still = tr_stats(t).bytes;
    for (int i = 0; i < 40; i++) {
        ck_assert_int_eq(sc_radix_trim(t->radix, 1, &bytes), SC_OK);
        VERIFY(t);
    }
    ck_assert_uint_lt(tr_stats(t).bytes, still / 2);
    ck_assert_uint_le(still, first);
    ck_assert_int_eq(sc_radix_trim(t->radix, 1, NULL), SC_OK);
    ck_assert_int_eq(sc_radix_trim(NULL, 1, &bytes), SC_ERR_INVALID);
    END;
}
END_TEST

START_TEST(trim__leaves_locked_paths_in_place)
{
    static int32_t key[1000];
    BEGIN();
    make_sparse(t, 10);
    struct sc_radix_receipt receipts[40];
    struct sc_radix_span before[40], after;
    uint32_t count;
    for (int32_t i = 0; i < 40; i += 3) {
        tr_fill(key, 1000, i * 1000000);
        sc_node node = tr_match(t, key, 1000).node;
        receipts[i] = tr_lock(t, node, LOCK_KV);
        ck_assert_int_eq(sc_radix_spans(t->radix, node, 0, &before[i], 1, &count), SC_OK);
    }
    uint64_t bytes;
    ck_assert_int_eq(sc_radix_trim(t->radix, UINT64_MAX, &bytes), SC_OK);
    VERIFY(t);
    for (int32_t i = 0; i < 40; i += 3) {
        tr_fill(key, 1000, i * 1000000);
        sc_node node = tr_match(t, key, 1000).node;
        ck_assert_int_eq(sc_radix_spans(t->radix, node, 0, &after, 1, &count), SC_OK);
        ck_assert_ptr_eq(after.ids, before[i].ids);
        tr_unlock(t, receipts[i]);
    }
    END;
}
END_TEST

START_TEST(trim__survives_each_failing_allocation)
{
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    static struct keys keys;
    uint32_t failed = 0;
    for (uint64_t n = 1;; n++) {
        struct sc_prng prng;
        sc_prng_seed(&prng, 5);
        BEGIN(.allocator = &fa.allocator);
        keys_make(&keys, &prng, 1);
        make_sparse(t, 10);
        uint64_t before = answers(t, &keys);
        fail_alloc_arm(&fa, n);
        ck_assert_int_eq(sc_radix_trim(t->radix, UINT64_MAX, NULL), SC_OK);
        bool hit = fail_alloc_disarm(&fa);
        VERIFY(t);
        ck_assert_uint_eq(answers(t, &keys), before);
        END;
        failed += hit;
        if (!hit) break;
    }
    ck_assert_uint_gt(failed, 2);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
}
END_TEST

START_TEST(trim__nodes_come_again)
{
    enum { N = 3000 };
    BEGIN();
    uint64_t empty = tr_stats(t).bytes;
    struct sc_radix_run run = {0, 0};
    for (int round = 0; round < 3; round++) {
        for (int32_t i = 0; i < N; i++) {
            ck_assert_int_eq(tr_insert_runs(t, KEY(i, i + 1), &run, 1, NULL, 0), SC_OK);
        }
        uint64_t full = tr_stats(t).bytes;
        sc_node last = tr_match(t, KEY(N - 1, N)).node;
        ck_assert_uint_le(last, N + 300); /* ids are used again */
        /* The youngest stays, in the last block; blocks before it go. */
        (void)tr_use(t, KEY(N - 1, N));
        tr_evict_kv(t, 2 * (N - 1), NULL);
        ck_assert_int_eq(sc_radix_trim(t->radix, N, NULL), SC_OK);
        VERIFY(t);
        ck_assert_uint_lt(tr_stats(t).bytes, empty + (full - empty) / 3);
        struct sc_radix_node_info info;
        ck_assert_int_eq(sc_radix_node_get(t->radix, last, &info), SC_OK);
        ck_assert_int_eq(sc_radix_node_get(t->radix, 2, &info), SC_ERR_STALE); /* no block */
    }
    tr_evict_kv(t, UINT64_MAX, NULL);
    ck_assert_int_eq(sc_radix_trim(t->radix, N, NULL), SC_OK);
    VERIFY(t);
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2), &run, 1, NULL, 0), SC_OK);
    END;
}
END_TEST

/* --- going on from a path --- */

START_TEST(from__match_agrees_with_one_from_the_root)
{
    enum { N = 60 };
    static int32_t tokens[N];
    struct sc_prng prng;
    sc_prng_seed(&prng, 9);
    BEGIN(.page_tokens = 4, .grid_tokens = 8);
    uint32_t steps = 0, states = 0, evicted = 0;
    for (uint32_t round = 0; round < 3000; round++) {
        uint32_t len = 1 + (uint32_t)sc_prng_below(&prng, N);
        for (uint32_t i = 0; i < len; i++) tokens[i] = (int32_t)sc_prng_below(&prng, 4) / 3;
        sc_mark mark = {(uint32_t)sc_prng_below(&prng, len), {1}};
        struct sc_radix_key key = {tokens, len, &mark, round % 4 == 0};
        if (round % 3 == 0) {
            struct sc_radix_run run = {0, 0};
            struct sc_radix_save save = {len, round + 1};
            (void)tr_insert_key(t, &key, &run, 1, &save, 1);
            if (round % 2) (void)tr_evict_state(t, 1);
            continue;
        }
        uint32_t most = (uint32_t)sc_prng_below(&prng, len + 1);
        struct sc_radix_match whole = tr_find_max(t, key, most), part;
        sc_node from = whole.node; /* the key may end inside it: then the path above it is known */
        if (from != SC_NODE_NONE && tr_info(t, from).end > whole.kv_len) {
            from = tr_info(t, from).parent;
        }
        for (;; from = tr_info(t, from).parent) {
            ck_assert_int_eq(sc_radix_match_from(t->radix, t->space, from, &key, most, &part),
                SC_OK);
            ck_assert_int_eq(memcmp(&part, &whole, sizeof part), 0);
            steps++;
            if (from == SC_NODE_NONE) break;
        }
        states += whole.state_len > 0;
        evicted += whole.evicted_len > 0;
    }
    ck_assert_msg(steps > 4000 && states > 200 && evicted > 50, "%u %u %u", steps, states, evicted);
    END;
}
END_TEST

START_TEST(from__insert_puts_what_is_new)
{
    enum { N = 3000 };
    static int32_t key[N], ids[N], other[N];
    BEGIN();
    tr_fill(key, N, 0);
    memcpy(other, key, sizeof key);
    for (uint32_t i = 0; i < N; i++) ids[i] = 5000 + (int32_t)i;
    struct sc_radix_run runs[] = {{0, 1}, {900, 2}};
    struct sc_radix_save save = {1000, 7};
    ck_assert_int_eq(tr_insert_runs(t, key, 1000, runs, 2, &save, 1), SC_OK);
    sc_node held = t->in.node;
    for (uint32_t i = 0; i < 1000; i++) ids[i] = -77; /* not read */
    struct sc_radix_save more[] = {{500, 8}, {1000, 9}, {2500, 10}};
    struct sc_radix_insert in = {.space = t->space, .tokens = key, .token_count = N,
        .kv_ids = ids, .runs = runs, .run_count = 2, .saves = more, .save_count = 3, .from = held};
    ck_assert_int_eq(sc_radix_insert(t->radix, &in, &t->sink, t->canonical, t->save_status,
        &t->in), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->in.prefix_len, 1000);
    ck_assert_uint_eq(t->in.len, N);
    ck_assert_int_eq(t->save_status[0], SC_OK); /* above the path's end */
    ck_assert_int_eq(t->save_status[1], SC_ERR_BUSY);
    ck_assert_int_eq(t->save_status[2], SC_OK);
    ck_assert(t->canonical[999] != -77 && t->canonical[1000] == 6000);
    ck_assert_uint_eq(tr_match(t, key, N).kv_len, N);
    ck_assert_uint_eq(tr_info(t, tr_match(t, key, 2000).node).history, 2);
    /* A branch right behind the path; and a path that was split since. */
    other[1000] = -1;
    in.tokens = other;
    in.save_count = 0;
    ck_assert_int_eq(sc_radix_insert(t->radix, &in, &t->sink, NULL, NULL, &t->in), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->in.prefix_len, 1000);
    ck_assert_uint_eq(tr_match(t, other, N).kv_len, N);
    other[1000] = (int32_t)1000;
    other[1500] = -1;
    ck_assert_int_eq(sc_radix_insert(t->radix, &in, &t->sink, NULL, NULL, &t->in), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->in.prefix_len, 1500);
    END;
}
END_TEST

START_TEST(from__refuses_what_is_no_path_of_the_key)
{
    BEGIN(.page_tokens = 4);
    uint32_t elsewhere;
    ck_assert_int_eq(sc_radix_space_add(t->radix, &elsewhere), SC_OK);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8), 1);
    sc_node node = t->in.node;
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 2);
    sc_node tail = t->in.node;
    const struct sc_radix_key key = {.tokens = (const int32_t[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10},
        .token_count = 10};
    const struct { sc_node from; uint32_t space, most; sc_status status; } rows[] = {
        {node, t->space, 10, SC_OK}, {SC_NODE_NONE, t->space, 10, SC_OK},
        {999, t->space, 10, SC_ERR_STALE}, {1, t->space, 10, SC_ERR_STALE}, /* 1 is the root */
        {tail, t->space, 10, SC_ERR_INVALID}, {node, elsewhere, 10, SC_ERR_INVALID},
        {node, t->space, 7, SC_ERR_INVALID}, {node, 77, 10, SC_ERR_NOT_FOUND}};
    const int32_t ids[3] = {1, 2, 3};
    struct sc_radix_run run = {0, 0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sc_radix_match m = {.kv_len = 99};
        ck_assert_int_eq(sc_radix_match_from(t->radix, rows[i].space, rows[i].from, &key,
            rows[i].most, &m), rows[i].status);
        ck_assert_uint_eq(m.kv_len, rows[i].status == SC_OK ? 8 : 99);
        if (rows[i].status == SC_OK) continue;
        char *before = tr_dump(t);
        struct sc_radix_insert in = {.space = rows[i].space, .tokens = key.tokens,
            .token_count = rows[i].most / 4 * 4, .kv_ids = ids, .runs = &run, .run_count = 1,
            .from = rows[i].from};
        ck_assert_int_eq(sc_radix_insert(t->radix, &in, &t->sink, NULL, NULL, &t->in),
            rows[i].status);
        VERIFY(t);
        char *after = tr_dump(t);
        ck_assert_str_eq(before, after);
        free(before);
        free(after);
    }
    struct sc_radix_match m;
    ck_assert_int_eq(sc_radix_match_from(NULL, 1, node, &key, 10, &m), SC_ERR_INVALID);
    ck_assert_int_eq(sc_radix_match_from(t->radix, t->space, node, NULL, 10, &m), SC_ERR_INVALID);
    ck_assert_int_eq(sc_radix_match_from(t->radix, t->space, node, &key, 10, NULL),
        SC_ERR_INVALID);
    END;
}
END_TEST

START_TEST(prefetch__takes_anything)
{
    BEGIN(.page_tokens = 2);
    struct sc_radix_key key = {.tokens = (const int32_t[]){1, 2, 3, 4}, .token_count = 4};
    for (int32_t i = 0; i < 6; i++) { /* a root without children, with few, with many */
        sc_radix_prefetch(t->radix, t->space, &key);
        if (i < 5) tr_insert(t, KEY(i, 2, 3, 4), 0);
    }
    struct sc_radix_key lost = {.token_count = 4, .mark_count = 3}, brief = key;
    brief.token_count = 1;
    sc_radix_prefetch(NULL, t->space, &key);
    sc_radix_prefetch(t->radix, 99, &key);
    sc_radix_prefetch(t->radix, t->space, NULL);
    sc_radix_prefetch(t->radix, t->space, &lost);
    sc_radix_prefetch(t->radix, t->space, &brief);
    ck_assert_uint_eq(tr_find(t, key).kv_len, 4);
    END;
}
END_TEST

/* --- the last victim is cut --- */

START_TEST(evict__takes_what_was_asked_of_a_long_leaf)
{
    enum { N = 20000 };
    static int32_t key[N];
    BEGIN();
    tr_fill(key, N, 0);
    tr_insert(t, key, N, 1);
    uint32_t snapshots;
    ck_assert_uint_eq(tr_evict_kv(t, 8192, &snapshots), 8192);
    ck_assert_uint_eq(snapshots, 1);
    ck_assert_int_eq(t->gone[0].cause, SC_RADIX_CAUSE_CASCADE);
    ck_assert_uint_eq(t->kv_count, 8192);
    for (uint32_t i = 0; i < 8192; i++) ck_assert_int_ge(t->kv[i], 1000 + N - 8192); /* the end */
    struct sc_radix_match m = tr_match(t, key, N);
    ck_assert_uint_eq(m.kv_len, N - 8192);
    ck_assert_uint_eq(m.state_len, 0);
    tr_insert(t, KEY(-5, -6), 0); /* younger: the rest of the victim goes before it */
    ck_assert_uint_eq(tr_evict_kv(t, 8192, NULL), 8192);
    ck_assert_uint_eq(tr_evict_kv(t, N - 2 * 8192 - 1, NULL), N - 2 * 8192); /* no crumb stays */
    ck_assert_uint_eq(tr_match(t, KEY(-5, -6)).kv_len, 2);
    ck_assert_uint_eq(tr_match(t, key, N).kv_len, 0);
    END;
}
END_TEST

START_TEST(evict__cuts_at_pages)
{
    enum { N = 1600 };
    static int32_t key[N];
    BEGIN(.page_tokens = 16);
    tr_fill(key, N, 0);
    tr_insert(t, key, N, 0);
    ck_assert_uint_eq(tr_evict_kv(t, 100, NULL), 112); /* seven pages */
    ck_assert_uint_eq(tr_stats(t).token_count, N - 112);
    ck_assert_uint_eq(tr_match(t, key, N).kv_len, N - 112);
    tr_insert(t, key, N, 3); /* grows again where it was cut */
    ck_assert_uint_eq(t->in.prefix_len, N - 112);
    ck_assert_uint_eq(tr_match(t, key, N).state_len, N);
    END;
}
END_TEST

START_TEST(evict__without_kv_whole_leaves_go)
{
    enum { N = 1000 };
    static int32_t key[N];
    OPEN(false);
    tr_fill(key, N, 0);
    tr_insert(t, key, N, 1);
    ck_assert_uint_eq(tr_evict_kv(t, 10, NULL), N);
    END;
}
END_TEST

#define ADD(name) tcase_add_test(tc, name)

Suite *radix_storage_suite(void)
{
    Suite *s = suite_create("radix storage");
    TCase *tc = tcase_create("storage");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, compare__agrees_with_a_plain_loop, RX_WIDTH_ANY, RX_WIDTH_512 + 1);
    tcase_add_loop_test(tc, trim__changes_nothing_but_memory, 0, 6);
    ADD(trim__memory_follows_the_tokens); ADD(trim__goes_in_steps);
    ADD(trim__leaves_locked_paths_in_place); ADD(trim__survives_each_failing_allocation);
    ADD(trim__nodes_come_again); ADD(from__match_agrees_with_one_from_the_root);
    ADD(from__insert_puts_what_is_new); ADD(from__refuses_what_is_no_path_of_the_key);
    ADD(prefetch__takes_anything); ADD(evict__takes_what_was_asked_of_a_long_leaf);
    ADD(evict__cuts_at_pages); ADD(evict__without_kv_whole_leaves_go);
    suite_add_tcase(s, tc);
    return s;
}
