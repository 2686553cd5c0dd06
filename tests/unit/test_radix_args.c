/* SPDX-License-Identifier: Apache-2.0 */
/* Bad arguments to every call, each failing allocation, and that nothing changes then. */
#include "test_radix.h"

#define BAD(status, call) ck_assert_msg((call) == (status), "%s: %s", #call, sc_last_error()->text)

START_TEST(args__create)
{
    struct sc_radix *r = NULL;
    struct sc_radix_options good = {.page_tokens = 4, .grid_tokens = 8};
    struct sc_radix_options o;
    BAD(SC_ERR_INVALID, sc_radix_create(NULL, &r));
    BAD(SC_ERR_INVALID, sc_radix_create(&good, NULL));
    o = good; o.page_tokens = 0;
    BAD(SC_ERR_INVALID, sc_radix_create(&o, &r));
    o = good; o.page_tokens = UINT32_MAX; o.grid_tokens = UINT32_MAX;
    BAD(SC_ERR_INVALID, sc_radix_create(&o, &r));
    o = good; o.grid_tokens = 0;
    BAD(SC_ERR_INVALID, sc_radix_create(&o, &r));
    o = good; o.grid_tokens = 6;
    BAD(SC_ERR_INVALID, sc_radix_create(&o, &r));
    sc_allocator half = {.free = NULL, .alloc = NULL, .ctx = &half};
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    half.alloc = fa.allocator.alloc;
    o = good; o.allocator = &half;
    BAD(SC_ERR_INVALID, sc_radix_create(&o, &r));
    ck_assert_ptr_null(r);
    sc_radix_destroy(NULL);
}
END_TEST

START_TEST(args__insert)
{
    BEGIN(.page_tokens = 2, .grid_tokens = 2);
    int32_t key[] = {1, 2, 3, 4};
    int32_t ids[] = {8, 9};
    struct sc_radix_run runs[] = {{0, 1}, {2, 2}};
    struct sc_radix_save saves[] = {{2, 5}, {4, 6}};
    sc_status each[2];
    struct sc_radix_inserted out;
    const struct sc_radix_insert good = {.space = t->space, .tokens = key, .token_count = 4,
        .kv_ids = ids, .runs = runs, .run_count = 2, .saves = saves, .save_count = 2};
    struct sc_radix_insert in = good;
#define TRY_BAD(status, change)                                                                    \
    do {                                                                                           \
        in = good;                                                                                 \
        change;                                                                                    \
        BAD(status, sc_radix_insert(t->radix, &in, &t->sink, NULL, each, &out));                   \
        VERIFY(t);                                                                                 \
        ck_assert_uint_eq(tr_stats(t).node_count, 0);                                              \
    } while (0)
    BAD(SC_ERR_INVALID, sc_radix_insert(NULL, &in, &t->sink, NULL, each, &out));
    BAD(SC_ERR_INVALID, sc_radix_insert(t->radix, NULL, &t->sink, NULL, each, &out));
    BAD(SC_ERR_INVALID, sc_radix_insert(t->radix, &in, NULL, NULL, each, &out));
    BAD(SC_ERR_INVALID, sc_radix_insert(t->radix, &in, &t->sink, NULL, NULL, &out));
    BAD(SC_ERR_INVALID, sc_radix_insert(t->radix, &in, &t->sink, NULL, each, NULL));
    TRY_BAD(SC_ERR_NOT_FOUND, in.space = 77);
    TRY_BAD(SC_ERR_NOT_FOUND, in.space = 0);
    TRY_BAD(SC_ERR_INVALID, in.tokens = NULL);
    TRY_BAD(SC_ERR_INVALID, in.token_count = 3);
    TRY_BAD(SC_ERR_INVALID, in.kv_ids = NULL);
    TRY_BAD(SC_ERR_INVALID, in.runs = NULL);
    TRY_BAD(SC_ERR_INVALID, in.run_count = 0);
    TRY_BAD(SC_ERR_INVALID, in.saves = NULL);
    runs[0].start = 2;
    TRY_BAD(SC_ERR_INVALID, (void)0);
    runs[0].start = 0; runs[1].start = 0;
    TRY_BAD(SC_ERR_INVALID, (void)0);
    runs[1].start = 1;
    TRY_BAD(SC_ERR_INVALID, (void)0);
    runs[1].start = 2; saves[0].snapshot = 0;
    TRY_BAD(SC_ERR_INVALID, (void)0);
    saves[0].snapshot = 5; saves[0].len = 4;
    TRY_BAD(SC_ERR_INVALID, (void)0);
    saves[0].len = 3;
    TRY_BAD(SC_ERR_MISMATCH, (void)0);
    saves[0].len = 2; saves[1].len = 6;
    TRY_BAD(SC_ERR_MISMATCH, (void)0);
    saves[1].len = 4;
    BAD(SC_OK, sc_radix_insert(t->radix, &good, &t->sink, NULL, each, &out));
    END;
}
END_TEST

START_TEST(args__insert_without_kv)
{
    OPEN(false);
    int32_t key[] = {1, 2, 3, 4};
    int32_t ids[] = {8, 9, 10, 11};
    struct sc_radix_run runs[] = {{0, 1}};
    struct sc_radix_inserted out;
    struct sc_radix_insert no_kv = {.space = t->space, .tokens = key, .token_count = 4,
        .kv_ids = ids, .runs = runs, .run_count = 1};
    BAD(SC_ERR_INVALID, sc_radix_insert(t->radix, &no_kv, &t->sink, NULL, NULL, &out));
    END;
}
END_TEST

START_TEST(args__match_and_spaces)
{
    BEGIN();
    const int32_t tokens[] = {1};
    const struct sc_radix_key key = {.tokens = tokens, .token_count = 1};
    const struct sc_radix_key lost = {.tokens = NULL, .token_count = 1};
    const struct sc_radix_key nothing = {.tokens = NULL, .token_count = 0};
    struct sc_radix_match m;
    BAD(SC_ERR_INVALID, sc_radix_match(NULL, t->space, &key, 1, &m));
    BAD(SC_ERR_INVALID, sc_radix_match(t->radix, t->space, NULL, 1, &m));
    BAD(SC_ERR_INVALID, sc_radix_match(t->radix, t->space, &lost, 1, &m));
    BAD(SC_ERR_INVALID, sc_radix_match(t->radix, t->space, &key, 1, NULL));
    BAD(SC_ERR_NOT_FOUND, sc_radix_match(t->radix, 99, &key, 1, &m));
    BAD(SC_ERR_NOT_FOUND, sc_radix_match(t->radix, 0, &key, 1, &m));
    BAD(SC_OK, sc_radix_match(t->radix, t->space, &nothing, UINT32_MAX, &m));
    ck_assert_uint_eq(m.kv_len, 0);
    uint32_t space;
    BAD(SC_ERR_INVALID, sc_radix_space_add(NULL, &space));
    BAD(SC_ERR_INVALID, sc_radix_space_add(t->radix, NULL));
    BAD(SC_ERR_INVALID, sc_radix_space_remove(NULL, t->space, &t->sink));
    BAD(SC_ERR_INVALID, sc_radix_space_remove(t->radix, t->space, NULL));
    BAD(SC_ERR_NOT_FOUND, sc_radix_space_remove(t->radix, 99, &t->sink));
    /* A match that has grown old, or none, is no use. */
    tr_insert(t, KEY(1, 2), 1);
    m = tr_match(t, KEY(1, 2));
    tr_evict_kv(t, 2, NULL);
    sc_radix_touch(t->radix, &m);
    sc_radix_touch(t->radix, NULL);
    sc_radix_touch(NULL, &m);
    struct sc_radix_match wild = {.node = UINT32_MAX, .state_node = 200};
    sc_radix_touch(t->radix, &wild);
    END;
}
END_TEST

START_TEST(args__locks)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 1);
    sc_node node = t->in.node;
    struct sc_radix_receipt receipt;
    sc_node held;
    uint32_t what;
    BAD(SC_ERR_INVALID, sc_radix_lock(NULL, node, 1, &receipt));
    BAD(SC_ERR_INVALID, sc_radix_lock(t->radix, node, 0, &receipt));
    BAD(SC_ERR_INVALID, sc_radix_lock(t->radix, node, 4, &receipt));
    BAD(SC_ERR_INVALID, sc_radix_lock(t->radix, node, 1, NULL));
    BAD(SC_ERR_STALE, sc_radix_lock(t->radix, node + 1, 1, &receipt));
    BAD(SC_ERR_STALE, sc_radix_lock(t->radix, UINT32_MAX, 1, &receipt));
    BAD(SC_ERR_STALE, sc_radix_lock(t->radix, tr_info(t, node).space, 1, &receipt)); /* a root */
    BAD(SC_ERR_INVALID, sc_radix_unlock(NULL, receipt));
    const struct sc_radix_receipt wild[] = {{0, 0}, {0, 1}, {1, 1}, {9, 1}, {UINT32_MAX, 1}};
    for (unsigned i = 0; i < 5; i++) {
        BAD(SC_ERR_STALE, sc_radix_unlock(t->radix, wild[i]));
        BAD(SC_ERR_STALE, sc_radix_receipt_get(t->radix, wild[i], &held, &what));
    }
    receipt = tr_lock(t, node, LOCK_BOTH);
    BAD(SC_ERR_STALE, sc_radix_unlock(t->radix,
        (struct sc_radix_receipt){receipt.index, receipt.generation + 1}));
    BAD(SC_ERR_INVALID, sc_radix_receipt_get(NULL, receipt, &held, &what));
    BAD(SC_ERR_INVALID, sc_radix_receipt_get(t->radix, receipt, NULL, &what));
    BAD(SC_ERR_INVALID, sc_radix_receipt_get(t->radix, receipt, &held, NULL));
    ck_assert_uint_eq(tr_stats(t).kv_locked_tokens, 2);
    tr_unlock(t, receipt);
    BAD(SC_ERR_STALE, sc_radix_receipt_get(t->radix, receipt, &held, &what));
    END;
}
END_TEST

START_TEST(args__eviction)
{
    BEGIN(.path_snapshots_max = 1);
    tr_insert(t, KEY(1, 2), 1);
    sc_node node = t->in.node;
    uint64_t tokens;
    uint32_t count;
    struct sc_radix_sink half = t->sink;
    half.kv = NULL;
    struct sc_radix_sink other = t->sink;
    other.snapshot = NULL;
    const struct sc_radix_sink *bad[] = {NULL, &half, &other};
    for (int i = 0; i < 3; i++) {
        BAD(SC_ERR_INVALID, sc_radix_evict_kv(t->radix, 1, bad[i], &tokens, &count));
        BAD(SC_ERR_INVALID, sc_radix_evict_state(t->radix, 1, bad[i], &count));
        BAD(SC_ERR_INVALID, sc_radix_evict_excess(t->radix, node, bad[i], &count));
        BAD(SC_ERR_INVALID, sc_radix_snapshot_drop(t->radix, node, bad[i]));
        BAD(SC_ERR_INVALID, sc_radix_space_remove(t->radix, t->space, bad[i]));
    }
    BAD(SC_ERR_INVALID, sc_radix_evict_kv(NULL, 1, &t->sink, &tokens, &count));
    BAD(SC_ERR_INVALID, sc_radix_evict_kv(t->radix, 1, &t->sink, NULL, &count));
    BAD(SC_ERR_INVALID, sc_radix_evict_kv(t->radix, 1, &t->sink, &tokens, NULL));
    BAD(SC_ERR_INVALID, sc_radix_evict_state(NULL, 1, &t->sink, &count));
    BAD(SC_ERR_INVALID, sc_radix_evict_state(t->radix, 1, &t->sink, NULL));
    BAD(SC_ERR_INVALID, sc_radix_evict_excess(NULL, node, &t->sink, &count));
    BAD(SC_ERR_INVALID, sc_radix_evict_excess(t->radix, node, &t->sink, NULL));
    BAD(SC_ERR_STALE, sc_radix_evict_excess(t->radix, node + 1, &t->sink, &count));
    BAD(SC_OK, sc_radix_evict_excess(t->radix, SC_NODE_NONE, &t->sink, &count));
    BAD(SC_ERR_INVALID, sc_radix_snapshot_drop(NULL, node, &t->sink));
    BAD(SC_ERR_STALE, sc_radix_snapshot_drop(t->radix, SC_NODE_NONE, &t->sink));
    BAD(SC_ERR_STALE, sc_radix_snapshot_drop(t->radix, 12345678, &t->sink));
    ck_assert_uint_eq(tr_stats(t).snapshot_count, 1);
    ck_assert_uint_eq(t->gone_count, 0);
    END;
}
END_TEST

static bool visit_two(void *ctx, sc_node node, const struct sc_radix_node_info *info,
    const int32_t *tokens, const int32_t *kv_ids, uint32_t page_count)
{
    int *seen = ctx;
    ck_assert_uint_ne(node, SC_NODE_NONE);
    ck_assert_uint_eq(page_count, info->end - info->start);
    ck_assert(tokens != NULL && kv_ids != NULL);
    return ++*seen < 2;
}

START_TEST(args__reading)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 1);
    tr_insert(t, KEY(1, 3), 2);
    sc_node node = t->in.node;
    struct sc_radix_node_info info;
    struct sc_radix_step step;
    struct sc_radix_span span;
    uint32_t count;
    ck_assert(!sc_radix_step_get(NULL, node, &step) && !sc_radix_step_get(t->radix, node, NULL));
    ck_assert(!sc_radix_step_get(t->radix, SC_NODE_NONE, &step));
    ck_assert(!sc_radix_step_get(t->radix, 99999, &step));
    ck_assert(sc_radix_child_get(NULL, node) == SC_NODE_NONE);
    ck_assert(sc_radix_child_get(t->radix, 99999) == SC_NODE_NONE);
    ck_assert(sc_radix_sibling_get(NULL, node) == SC_NODE_NONE);
    ck_assert(sc_radix_sibling_get(t->radix, 99999) == SC_NODE_NONE);
    ck_assert(sc_radix_snapshot_get(NULL, node) == 0);
    ck_assert(sc_radix_snapshot_get(t->radix, 99999) == 0);
    BAD(SC_ERR_INVALID, sc_radix_node_get(NULL, node, &info));
    BAD(SC_ERR_INVALID, sc_radix_node_get(t->radix, node, NULL));
    BAD(SC_ERR_STALE, sc_radix_node_get(t->radix, SC_NODE_NONE, &info));
    BAD(SC_ERR_STALE, sc_radix_node_get(t->radix, 99999, &info));
    BAD(SC_ERR_INVALID, sc_radix_spans(NULL, node, 0, &span, 1, &count));
    BAD(SC_ERR_INVALID, sc_radix_spans(t->radix, node, 0, NULL, 1, &count));
    BAD(SC_ERR_INVALID, sc_radix_spans(t->radix, node, 0, &span, 1, NULL));
    BAD(SC_ERR_INVALID, sc_radix_spans(t->radix, node, UINT32_MAX, &span, 1, &count));
    BAD(SC_ERR_STALE, sc_radix_spans(t->radix, 99999, 0, &span, 1, &count));
    BAD(SC_ERR_LIMIT, sc_radix_spans(t->radix, node, 0, NULL, 0, &count));
    struct sc_radix_stats stats = {0};
    sc_radix_stats_get(NULL, &stats);
    sc_radix_stats_get(t->radix, NULL);
    int seen = 0;
    sc_radix_walk(NULL, t->space, visit_two, &seen);
    sc_radix_walk(t->radix, 99, visit_two, &seen);
    sc_radix_walk(t->radix, t->space, NULL, &seen);
    ck_assert_int_eq(seen, 0);
    sc_radix_walk(t->radix, t->space, visit_two, &seen);
    ck_assert_int_eq(seen, 2); /* of three: it was told to stop */
    ck_assert_uint_eq(sc_radix_state_order(NULL, &node, 1), 0);
    ck_assert_uint_eq(sc_radix_state_order(t->radix, NULL, 1), 0);
    ck_assert_uint_eq(sc_radix_state_order(t->radix, &node, 0), 0);
    BAD(SC_ERR_INVALID, sc_radix_dump(NULL, t->space, tr_text_add, NULL));
    BAD(SC_ERR_INVALID, sc_radix_dump(t->radix, t->space, NULL, NULL));
    BAD(SC_ERR_NOT_FOUND, sc_radix_dump(t->radix, 99, tr_text_add, NULL));
    BAD(SC_ERR_INVALID, sc_radix_verify(NULL));
    END;
}
END_TEST

START_TEST(args__spans_without_kv)
{
    OPEN(false);
    struct sc_radix_span span;
    uint32_t count;
    tr_insert(t, KEY(1, 2), 1);
    BAD(SC_ERR_STATE, sc_radix_spans(t->radix, t->in.node, 0, &span, 1, &count));
    END;
}
END_TEST

/* --- each allocation fails once --- */

static void check_same(const struct tr *t, const char *before, const struct sc_radix_stats *stats)
{
    VERIFY(t);
    char *after = tr_dump(t);
    ck_assert_str_eq(before, after);
    free(after);
    struct sc_radix_stats now = tr_stats(t);
    now.bytes = stats->bytes; /* arrays that grew before the failure stay */
    ck_assert_mem_eq(&now, stats, sizeof now);
}

START_TEST(memory__insert_survives_each_failing_allocation)
{
    enum { N = 40000 };
    static int32_t key[N];
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    uint64_t failures = 0;
    BEGIN(.allocator = &fa.allocator);
    for (uint32_t round = 0; round < 40; round++) {
        /* Forks, replaced branches, many saves; more of everything as rounds go by. */
        tr_fill(key, N, round % 3 == 0 ? 0 : (int32_t)round * 1000000);
        uint32_t len = round % 3 == 0 ? 5000 + round * 800 : 1 + round * 397;
        struct sc_radix_run runs[] = {{0, 1}, {len / 2 + 1, round}};
        struct sc_radix_save saves[64];
        uint32_t save_count = 0;
        for (uint32_t at = 1; save_count < 64 && at <= len && round % 3 != 0; at += len / 80 + 1) {
            saves[save_count++] = (struct sc_radix_save){at, at};
        }
        char *before = tr_dump(t);
        struct sc_radix_stats stats = tr_stats(t);
        uint32_t kv_before = t->kv_count;
        for (uint64_t n = 1;; n++) {
            fail_alloc_arm(&fa, n);
            sc_status status = tr_insert_runs(t, key, len, runs, 2, saves, save_count);
            if (!fail_alloc_disarm(&fa)) {
                ck_assert_int_eq(status, SC_OK);
                break;
            }
            ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
            failures++;
            ck_assert_uint_eq(t->kv_count, kv_before);
            check_same(t, before, &stats);
        }
        VERIFY(t);
        free(before);
    }
    ck_assert_uint_gt(failures, 40);
    ck_assert_uint_gt(t->kv_causes[SC_RADIX_CAUSE_HISTORY], 0);
    END;
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
}
END_TEST

START_TEST(memory__marks_and_tails_survive_each_failing_allocation)
{
    enum { N = 6000, P = 16 };
    static int32_t tokens[N];
    static sc_mark marks[N / 10];
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    uint64_t failures = 0;
    BEGIN(.allocator = &fa.allocator, .page_tokens = P);
    struct sc_radix_run run = {0, 0};
    for (uint32_t round = 0; round < 40; round++) {
        tr_fill(tokens, N, 0);
        uint32_t len = 1 + round * 147;
        uint32_t mark_count = 0;
        for (uint32_t at = round; at < len; at += 1 + round * 3) {
            if (mark_count == N / 10) break;
            marks[mark_count++] = (sc_mark){at, {(uint8_t)round}};
        }
        struct sc_radix_key key = {tokens, len, marks, mark_count};
        struct sc_radix_save save = {len, round + 1};
        char *before = tr_dump(t);
        struct sc_radix_stats stats = tr_stats(t);
        for (uint64_t n = 1;; n++) {
            fail_alloc_arm(&fa, n);
            sc_status status = tr_insert_key(t, &key, &run, 1, &save, 1);
            if (!fail_alloc_disarm(&fa)) {
                ck_assert_int_eq(status, SC_OK);
                break;
            }
            ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
            failures++;
            check_same(t, before, &stats);
        }
        VERIFY(t);
        ck_assert_uint_eq(tr_find(t, key).snapshot, round + 1);
        free(before);
    }
    ck_assert_uint_gt(failures, 15);
    ck_assert_uint_gt(tr_stats(t).mark_count, 1000);
    ck_assert_uint_gt(tr_stats(t).tail_count, 30);
    tr_evict_state(t, 20);
    tr_evict_kv(t, UINT64_MAX, NULL);
    ck_assert_uint_eq(tr_stats(t).mark_count + tr_stats(t).tail_count, 0);
    END;
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
}
END_TEST

START_TEST(memory__other_calls_survive_each_failing_allocation)
{
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    struct sc_radix_options options = {.page_tokens = 1, .grid_tokens = 1, .with_kv = true,
        .allocator = &fa.allocator};
    struct sc_radix *r = NULL;
    fail_alloc_arm(&fa, 1);
    BAD(SC_ERR_NO_MEMORY, sc_radix_create(&options, &r));
    ck_assert(fail_alloc_disarm(&fa));
    ck_assert_ptr_null(r);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);

    BEGIN(.allocator = &fa.allocator);
    tr_insert(t, KEY(1, 2, 3), 1);
    sc_node node = t->in.node;
    uint32_t failures = 0;
    for (uint32_t i = 0; i < 600; i++) {
        char *before = tr_dump(t);
        struct sc_radix_stats stats = tr_stats(t);
        for (uint64_t n = 1;; n++) {
            fail_alloc_arm(&fa, n);
            uint32_t space;
            struct sc_radix_receipt receipt;
            sc_status status = i % 2 == 0 ? sc_radix_space_add(t->radix, &space) :
                sc_radix_lock(t->radix, node, LOCK_BOTH, &receipt);
            if (!fail_alloc_disarm(&fa)) {
                ck_assert_int_eq(status, SC_OK);
                break;
            }
            ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
            failures++;
            check_same(t, before, &stats);
        }
        free(before);
    }
    ck_assert_uint_gt(failures, 10);
    for (uint64_t n = 1; n <= 4; n++) {
        fail_alloc_arm(&fa, n);
        BAD(SC_ERR_NO_MEMORY, sc_radix_verify(t->radix));
        fail_alloc_disarm(&fa);
    }
    END;
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
}
END_TEST

#define ADD(name) tcase_add_test(tc, name)

Suite *radix_args_suite(void)
{
    Suite *s = suite_create("radix arguments");
    TCase *tc = tcase_create("bad arguments");
    tcase_set_timeout(tc, 60);
    ADD(args__create); ADD(args__insert); ADD(args__insert_without_kv);
    ADD(args__spans_without_kv); ADD(args__match_and_spaces); ADD(args__locks);
    ADD(args__eviction); ADD(args__reading);
    suite_add_tcase(s, tc);
    tc = tcase_create("failing allocations");
    tcase_set_timeout(tc, 240);
    ADD(memory__insert_survives_each_failing_allocation);
    ADD(memory__marks_and_tails_survive_each_failing_allocation);
    ADD(memory__other_calls_survive_each_failing_allocation);
    suite_add_tcase(s, tc);
    return s;
}
