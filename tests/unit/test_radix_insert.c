/* SPDX-License-Identifier: Apache-2.0 */
/* Insert, split, histories, spaces, ids of a path. */
#include "test_radix.h"

START_TEST(insert__splits_at_the_mismatch)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3, 4), 1);
    ck_assert_uint_eq(tr_insert(t, KEY(1, 2, 5, 6), 2), 2);
    ck_assert_uint_eq(tr_stats(t).node_count, 3);
    ck_assert_uint_eq(tr_stats(t).token_count, 6);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4)).snapshot, 1);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 5, 6)).snapshot, 2);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 7)).kv_len, 2);
    END;
}
END_TEST

START_TEST(insert__ends_inside_a_node)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3, 4), 1);
    ck_assert_uint_eq(tr_insert(t, KEY(1, 2), 2), 2);
    ck_assert_uint_eq(t->in.len, 2);
    ck_assert_uint_eq(t->in.conflict_len, 2);
    ck_assert_uint_eq(tr_info(t, t->in.node).end, 2);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2)).snapshot, 2);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4)).snapshot, 1);
    ck_assert_int_eq(t->canonical[1], 1001);
    END;
}
END_TEST

START_TEST(insert__nothing_is_nothing)
{
    BEGIN();
    struct sc_radix_insert in = {.space = t->space};
    ck_assert_int_eq(sc_radix_insert(t->radix, &in, &t->sink, NULL, NULL, &t->in), SC_OK);
    ck_assert_uint_eq(t->in.node, SC_NODE_NONE);
    ck_assert_uint_eq(t->in.len, 0);
    VERIFY(t);
    END;
}
END_TEST

START_TEST(insert__children_that_share_a_first_token)
{
    enum { P = 4, N = 40 };
    BEGIN(.page_tokens = P);
    int32_t key[2 * P] = {7, 7, 7, 7};
    for (int32_t i = 0; i < N; i++) { /* pages differ in the last token alone */
        tr_fill(key + P, P, 0);
        key[2 * P - 1] = 100 + i;
        ck_assert_uint_eq(tr_insert(t, key, 2 * P, (uint32_t)i + 1), i == 0 ? 0 : P);
    }
    for (int32_t i = 0; i < N; i++) {
        key[2 * P - 1] = 100 + i;
        ck_assert_uint_eq(tr_match(t, key, 2 * P).snapshot, (uint32_t)i + 1);
    }
    ck_assert_uint_eq(tr_stats(t).token_count, (N + 1) * P);
    END;
}
END_TEST

START_TEST(insert__saves_on_held_and_new_parts)
{
    BEGIN();
    int32_t key[12];
    tr_fill(key, 12, 1);
    tr_insert(t, key, 8, 50);
    struct sc_radix_run run = {0, 0};
    struct sc_radix_save saves[] = {{2, 51}, {5, 52}, {8, 53}, {10, 54}, {12, 55}};
    ck_assert_int_eq(tr_insert_runs(t, key, 12, &run, 1, saves, 5), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->in.prefix_len, 8);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(t->save_status[i], i == 2 ? SC_ERR_BUSY : SC_OK);
        uint32_t want = i == 2 ? 50 : 51 + (uint32_t)i;
        ck_assert_uint_eq(tr_match(t, key, saves[i].len).snapshot, want);
    }
    ck_assert_uint_eq(tr_info(t, t->in.node).end, 12);
    END;
}
END_TEST

START_TEST(insert__refuses_a_wrong_token_count)
{
    BEGIN(.page_tokens = 4);
    int32_t key[8];
    tr_fill(key, 8, 1);
    struct sc_radix_run run = {0, 0};
    const uint32_t wrong[] = {0, 3, 5, 7, 9, 12, UINT32_MAX};
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct sc_radix_save save = {wrong[i], 1};
        ck_assert_int_eq(tr_insert_runs(t, key, 8, &run, 1, &save, 1), SC_ERR_MISMATCH);
    }
    ck_assert_uint_eq(tr_stats(t).node_count, 0);
    END;
}
END_TEST

/* Long runs: several storage pieces, nodes that chain, spans that rejoin. */
START_TEST(insert__long_runs_keep_their_tokens_and_ids)
{
    enum { N = 60000 };
    static int32_t key[N];
    const uint32_t pages[] = {1, 3, 16, 300};
    for (unsigned p = 0; p < 4; p++) {
        BEGIN(.page_tokens = pages[p]);
        uint32_t n = N / pages[p] * pages[p];
        tr_fill(key, n, 5);
        tr_insert(t, key, n, 1);
        struct sc_radix_match m = tr_match(t, key, n);
        ck_assert_uint_eq(m.kv_len, n);
        ck_assert_uint_eq(m.snapshot, 1);
        for (uint32_t cut = n; cut > 0; cut /= 3) {
            uint32_t end = cut / pages[p] * pages[p];
            if (end < n) key[end] = -1;
            ck_assert_uint_eq(tr_match(t, key, n).kv_len, end);
            if (end < n) key[end] = (int32_t)end + 5;
        }
        struct sc_radix_span spans[64];
        uint32_t count;
        ck_assert_int_eq(sc_radix_spans(t->radix, m.node, 0, spans, 64, &count), SC_OK);
        int32_t id = 1000;
        for (uint32_t s = 0; s < count; s++) {
            ck_assert_int_eq((int32_t)spans[s].page_first, id - 1000);
            for (uint32_t i = 0; i < spans[s].page_count; i++) {
                ck_assert_int_eq(spans[s].ids[i], id++);
            }
        }
        ck_assert_int_eq(id, 1000 + (int32_t)(n / pages[p]));
        END;
    }
}
END_TEST

START_TEST(insert__token_max_is_a_limit)
{
    BEGIN(.token_max = 4);
    tr_insert(t, KEY(1, 2, 3), 1);
    struct sc_radix_run run = {0, 0};
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 8, 9), &run, 1, NULL, 0), SC_ERR_LIMIT);
    ck_assert_uint_eq(tr_stats(t).node_count, 1);
    tr_insert(t, KEY(1, 2, 8), 0);
    ck_assert_uint_eq(tr_stats(t).token_count, 4);
    END;
}
END_TEST

/* --- histories --- */

static const struct sc_radix_run RUN_A = {0, 0xa};
static const struct sc_radix_run RUN_B = {0, 0xb};

START_TEST(history__node_ends_where_it_changes)
{
    BEGIN();
    int32_t key[10];
    tr_fill(key, 10, 1);
    struct sc_radix_run runs[] = {{0, 1}, {4, 2}, {6, 2}, {8, 3}, {10, 9}};
    ck_assert_int_eq(tr_insert_runs(t, key, 10, runs, 5, NULL, 0), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(tr_stats(t).node_count, 3);
    struct sc_radix_node_info info = tr_info(t, t->in.node);
    ck_assert(info.start == 8 && info.history == 3);
    info = tr_info(t, info.parent);
    ck_assert(info.start == 4 && info.end == 8 && info.history == 2);
    info = tr_info(t, info.parent);
    ck_assert(info.start == 0 && info.history == 1 && info.parent == SC_NODE_NONE);
    /* The same again is all there. */
    ck_assert_int_eq(tr_insert_runs(t, key, 10, runs, 4, NULL, 0), SC_OK);
    ck_assert_uint_eq(t->in.prefix_len, 10);
    END;
}
END_TEST

START_TEST(history__idle_branch_is_replaced)
{
    BEGIN();
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4), &RUN_A, 1, NULL, 0), SC_OK);
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 9), &RUN_A, 1, NULL, 0), SC_OK);
    struct sc_radix_run runs[] = {{0, 0xa}, {2, 0xb}};
    struct sc_radix_save save = {4, 5};
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4), runs, 2, &save, 1), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->in.prefix_len, 2);
    ck_assert_uint_eq(t->in.conflict_len, 4);
    ck_assert_int_eq(t->canonical[0], 1000);
    ck_assert_int_eq(t->canonical[1], 1001);
    ck_assert_int_eq(t->canonical[2], 1010);
    ck_assert_int_eq(t->canonical[3], 1011);
    /* 3, 4 and the fork 9 of the old history are gone, their ids came back. */
    ck_assert_uint_eq(t->kv_count, 3);
    ck_assert_uint_eq(t->kv_causes[SC_RADIX_CAUSE_HISTORY], 3);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 9)).kv_len, 3);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4)).snapshot, 5);
    ck_assert_uint_eq(tr_info(t, t->in.node).history, 0xb);
    ck_assert_uint_eq(tr_stats(t).token_count, 4);
    END;
}
END_TEST

START_TEST(history__whole_node_is_replaced)
{
    BEGIN();
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3), &RUN_A, 1, NULL, 0), SC_OK);
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2), &RUN_B, 1, NULL, 0), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->in.prefix_len, 0);
    ck_assert_uint_eq(t->in.len, 2);
    ck_assert_uint_eq(t->kv_count, 3);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3)).kv_len, 2);
    END;
}
END_TEST

START_TEST(history__a_snapshot_below_stops_an_insert_that_brings_none)
{
    BEGIN();
    struct sc_radix_save save = {4, 5};
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4), &RUN_A, 1, &save, 1), SC_OK);
    struct sc_radix_run runs[] = {{0, 0xa}, {2, 0xb}};
    struct sc_radix_save saves[] = {{1, 6}, {2, 7}}; /* none beyond the conflict */
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4), runs, 2, saves, 2), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->in.conflict_len, 2);
    ck_assert_uint_eq(t->in.len, 2);
    ck_assert_uint_eq(t->in.prefix_len, 2);
    ck_assert_uint_eq(tr_info(t, t->in.node).end, 2);
    ck_assert_int_eq(t->save_status[0], SC_OK);
    ck_assert_int_eq(t->save_status[1], SC_OK);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4)).snapshot, 5);
    ck_assert_uint_eq(t->kv_count, 0);
    /* At the very first token nothing at all is held. */
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4), &RUN_B, 1, NULL, 0), SC_OK);
    ck_assert_uint_eq(t->in.node, SC_NODE_NONE);
    ck_assert_uint_eq(t->in.conflict_len, 0);
    VERIFY(t);
    END;
}
END_TEST

/* Below the conflict stand a snapshot at the end of the node it lies in, one at a fork and one
 * further on; one save beyond it and all of them go, those before it stay. */
START_TEST(history__a_save_beyond_the_conflict_replaces_snapshots)
{
    BEGIN();
    struct sc_radix_save old[] = {{1, 3}, {4, 5}, {6, 6}};
    struct sc_radix_save fork = {5, 4};
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5, 6), &RUN_A, 1, old, 3), SC_OK);
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 9), &RUN_A, 1, &fork, 1), SC_OK);
    struct sc_radix_run runs[] = {{0, 0xa}, {2, 0xb}};
    struct sc_radix_save saves[] = {{2, 7}, {3, 8}};
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4), runs, 2, saves, 2), SC_OK);
    VERIFY(t);
    ck_assert(t->in.prefix_len == 2 && t->in.conflict_len == 4);
    ck_assert_int_eq(t->save_status[0], SC_OK);
    ck_assert_int_eq(t->save_status[1], SC_OK);
    ck_assert_uint_eq(t->gone_count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(t->gone[i].cause, SC_RADIX_CAUSE_HISTORY);
        ck_assert_uint_ne(t->gone[i].snapshot, 3);
    }
    ck_assert_uint_eq(t->kv_count, 5);
    ck_assert_uint_eq(tr_stats(t).snapshot_count, 3);
    ck_assert_uint_eq(tr_match(t, KEY(1)).snapshot, 3);
    struct sc_radix_match m = tr_match(t, KEY(1, 2, 3, 4, 5, 6));
    ck_assert(m.kv_len == 4 && m.snapshot == 8 && m.evicted_len == 0);
    END;
}
END_TEST

START_TEST(history__a_lock_below_holds_snapshots_against_a_save)
{
    BEGIN();
    struct sc_radix_save save = {4, 5};
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4), &RUN_A, 1, &save, 1), SC_OK);
    struct sc_radix_receipt receipt = tr_lock(t, t->in.node, LOCK_STATE);
    struct sc_radix_run runs[] = {{0, 0xa}, {2, 0xb}};
    save.snapshot = 6;
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4), runs, 2, &save, 1), SC_OK);
    ck_assert_uint_eq(t->in.conflict_len, 2);
    ck_assert_int_eq(t->save_status[0], SC_ERR_MISMATCH);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4)).snapshot, 5);
    ck_assert_uint_eq(t->gone_count, 0);
    VERIFY(t);
    tr_unlock(t, receipt);
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4), runs, 2, &save, 1), SC_OK);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4)).snapshot, 6);
    ck_assert_uint_eq(t->gone_count, 1);
    VERIFY(t);
    END;
}
END_TEST

START_TEST(history__a_lock_stops_the_insert)
{
    BEGIN();
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4), &RUN_A, 1, NULL, 0), SC_OK);
    struct sc_radix_receipt receipt = tr_lock(t, t->in.node, LOCK_KV);
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4), &RUN_B, 1, NULL, 0), SC_OK);
    ck_assert_uint_eq(t->in.conflict_len, 0);
    tr_unlock(t, receipt);
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4), &RUN_B, 1, NULL, 0), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->in.conflict_len, 4);
    ck_assert_uint_eq(t->kv_count, 4);
    END;
}
END_TEST

START_TEST(history__siblings_may_differ)
{
    BEGIN();
    struct sc_radix_save save = {3, 5};
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3), &RUN_A, 1, &save, 1), SC_OK);
    struct sc_radix_run runs[] = {{0, 0xa}, {2, 0xb}};
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 4), runs, 2, &save, 1), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->in.conflict_len, 3);
    ck_assert_uint_eq(tr_info(t, t->in.node).history, 0xb);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3)).state_len, 3);
    END;
}
END_TEST

START_TEST(history__a_branch_too_large_to_check_stays)
{
    BEGIN();
    for (int32_t i = 0; i < 100; i++) {
        ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, i), &RUN_A, 1, NULL, 0), SC_OK);
    }
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3), &RUN_B, 1, NULL, 0), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->in.conflict_len, 0);
    ck_assert_uint_eq(t->kv_count, 0);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 99)).kv_len, 3);
    END;
}
END_TEST

START_TEST(history__replacing_counts_against_token_max)
{
    BEGIN(.token_max = 4);
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4), &RUN_A, 1, NULL, 0), SC_OK);
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4), &RUN_B, 1, NULL, 0), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->in.len, 4);
    ck_assert_uint_eq(tr_stats(t).token_count, 4);
    END;
}
END_TEST

/* --- spaces --- */

START_TEST(space__never_mix)
{
    BEGIN();
    uint32_t first = t->space;
    uint32_t second;
    ck_assert_int_eq(sc_radix_space_add(t->radix, &second), SC_OK);
    tr_insert(t, KEY(1, 2, 3), 1);
    t->space = second;
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3)).kv_len, 0);
    ck_assert_uint_eq(tr_insert(t, KEY(1, 2, 3), 2), 0);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3)).snapshot, 2);
    t->space = first;
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3)).snapshot, 1);
    ck_assert_int_eq(sc_radix_space_remove(t->radix, second, &t->sink), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->kv_causes[SC_RADIX_CAUSE_SPACE], 3);
    ck_assert_uint_eq(t->gone[0].snapshot, 2);
    ck_assert_int_eq(t->gone[0].cause, SC_RADIX_CAUSE_SPACE);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3)).snapshot, 1);
    struct sc_radix_match m;
    struct sc_radix_key key = {.tokens = (const int32_t[]){1}, .token_count = 1};
    ck_assert_int_eq(sc_radix_match(t->radix, second, &key, 1, &m), SC_ERR_NOT_FOUND);
    END;
}
END_TEST

START_TEST(space__remove_is_busy_while_locked)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3), 1);
    for (uint32_t what = 1; what <= 3; what++) {
        struct sc_radix_receipt receipt = tr_lock(t, t->in.node, what);
        char *before = tr_dump(t);
        ck_assert_int_eq(sc_radix_space_remove(t->radix, t->space, &t->sink), SC_ERR_BUSY);
        VERIFY(t);
        char *after = tr_dump(t);
        ck_assert_str_eq(before, after);
        free(before);
        free(after);
        tr_unlock(t, receipt);
    }
    ck_assert_int_eq(sc_radix_space_remove(t->radix, t->space, &t->sink), SC_OK);
    ck_assert_uint_eq(tr_stats(t).node_count, 0);
    END;
}
END_TEST

START_TEST(space__many_come_and_go)
{
    BEGIN();
    uint32_t spaces[200];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 200; i++) {
            ck_assert_int_eq(sc_radix_space_add(t->radix, &spaces[i]), SC_OK);
            for (int j = 0; j < i; j++) ck_assert_uint_ne(spaces[i], spaces[j]);
        }
        VERIFY(t);
        for (int i = 199; i >= 0; i--) {
            ck_assert_int_eq(sc_radix_space_remove(t->radix, spaces[i], &t->sink), SC_OK);
        }
    }
    END;
}
END_TEST

/* --- spans --- */

START_TEST(spans__of_a_split_path_rejoin)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3, 4, 5), 1);
    sc_node leaf = t->in.node;
    tr_insert(t, KEY(1, 2, 9), 0);
    tr_insert(t, KEY(1, 2, 3, 8), 0);
    struct sc_radix_span spans[4];
    uint32_t count;
    ck_assert_int_eq(sc_radix_spans(t->radix, leaf, 0, spans, 4, &count), SC_OK);
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(spans[0].page_count, 5);
    ck_assert_int_eq(spans[0].ids[0], 1000);
    ck_assert_int_eq(spans[0].ids[4], 1004);
    for (uint32_t first = 0; first <= 5; first++) {
        ck_assert_int_eq(sc_radix_spans(t->radix, leaf, first, spans, 4, &count), SC_OK);
        ck_assert_uint_eq(count, first < 5);
        if (count == 0) continue;
        ck_assert_uint_eq(spans[0].page_first, first);
        ck_assert_uint_eq(spans[0].page_count, 5 - first);
        ck_assert_int_eq(spans[0].ids[0], 1000 + (int32_t)first);
    }
    /* The other branch is held in two places: 1 2 3 and 8. */
    ck_assert_int_eq(sc_radix_spans(t->radix, t->in.node, 1, spans, 4, &count), SC_OK);
    ck_assert_uint_eq(count, 2);
    ck_assert(spans[0].page_first == 1 && spans[0].page_count == 2 && spans[1].page_first == 3);
    memset(spans, 0xff, sizeof spans);
    ck_assert_int_eq(sc_radix_spans(t->radix, t->in.node, 0, spans, 1, &count), SC_ERR_LIMIT);
    ck_assert_uint_eq(count, 2);
    ck_assert(spans[0].page_first == 0 && spans[0].page_count == 3); /* the first, not the last */
    ck_assert_uint_eq(spans[1].page_count, UINT32_MAX);
    ck_assert_int_eq(sc_radix_spans(t->radix, t->in.node, 5, spans, 4, &count), SC_ERR_INVALID);
    ck_assert_int_eq(sc_radix_spans(t->radix, SC_NODE_NONE, 0, spans, 4, &count), SC_OK);
    ck_assert_uint_eq(count, 0);
    END;
}
END_TEST

/* --- memory --- */

/* issue of a public tree: a split that keeps the whole run alive. */
START_TEST(memory__follows_live_tokens_after_splits)
{
    enum { N = 100000 };
    static int32_t key[N];
    BEGIN();
    tr_fill(key, N, 0);
    uint64_t empty = tr_stats(t).bytes;
    struct sc_radix_run run = {0, 0};
    ck_assert_int_eq(tr_insert_runs(t, key, N, &run, 1, NULL, 0), SC_OK);
    uint64_t full = tr_stats(t).bytes;
    ck_assert_uint_lt(full - empty, (uint64_t)N * 8 + N * 8 / 4);
    for (uint32_t i = 1; i <= 1000; i++) {
        ck_assert_int_eq(tr_insert_runs(t, key, N - i * 99, &run, 1, NULL, 0), SC_OK);
    }
    VERIFY(t);
    ck_assert_uint_eq(tr_stats(t).token_count, N);
    ck_assert_uint_lt(tr_stats(t).bytes - full, 1002 * 250);
    sc_node keep = tr_match(t, key, 1).node;
    struct sc_radix_receipt receipt = tr_lock(t, keep, LOCK_KV);
    tr_evict_kv(t, N, NULL);
    ck_assert_uint_eq(tr_stats(t).token_count, tr_info(t, keep).end);
    ck_assert_int_eq(sc_radix_trim(t->radix, N, NULL), SC_OK);
    VERIFY(t);
    /* A used chunk of 16k tokens, ids included, a block of nodes, and what never shrinks. */
    ck_assert_uint_lt(tr_stats(t).bytes, 16384 * 8 + 50000 + 50000);
    tr_unlock(t, receipt);
    END;
}
END_TEST

START_TEST(memory__freed_units_are_used_again)
{
    enum { N = 700 };
    static int32_t key[N];
    BEGIN();
    uint64_t peak = 0;
    for (uint32_t i = 0; i < 2000; i++) {
        tr_fill(key, N, (int32_t)(i * 1000));
        uint32_t len = 100 + i * 37 % 600;
        struct sc_radix_run run = {0, 0};
        ck_assert_int_eq(tr_insert_runs(t, key, len, &run, 1, NULL, 0), SC_OK);
        uint64_t got;
        uint32_t snapshots;
        while (tr_stats(t).token_count > 50000) {
            ck_assert_int_eq(sc_radix_evict_kv(t->radix, 1, &t->sink, &got, &snapshots), SC_OK);
        }
        if (i == 500) peak = tr_stats(t).bytes;
        if (i > 500) ck_assert_uint_le(tr_stats(t).bytes, peak + peak / 4);
    }
    VERIFY(t);
    ck_assert_uint_lt(peak, 50000 * 8 * 3 / 2);
    END;
}
END_TEST

#define ADD(name) tcase_add_test(tc, name)

Suite *radix_insert_suite(void)
{
    Suite *s = suite_create("radix insert");
    TCase *tc = tcase_create("insert");
    tcase_set_timeout(tc, 120);
    ADD(insert__splits_at_the_mismatch); ADD(insert__ends_inside_a_node);
    ADD(insert__nothing_is_nothing); ADD(insert__children_that_share_a_first_token);
    ADD(insert__saves_on_held_and_new_parts); ADD(insert__refuses_a_wrong_token_count);
    ADD(insert__long_runs_keep_their_tokens_and_ids); ADD(insert__token_max_is_a_limit);
    suite_add_tcase(s, tc);
    tc = tcase_create("history");
    tcase_set_timeout(tc, 120);
    ADD(history__node_ends_where_it_changes); ADD(history__idle_branch_is_replaced);
    ADD(history__whole_node_is_replaced); ADD(history__a_lock_below_holds_snapshots_against_a_save);
    ADD(history__a_snapshot_below_stops_an_insert_that_brings_none);
    ADD(history__a_save_beyond_the_conflict_replaces_snapshots);
    ADD(history__a_lock_stops_the_insert); ADD(history__siblings_may_differ);
    ADD(history__a_branch_too_large_to_check_stays);
    ADD(history__replacing_counts_against_token_max);
    suite_add_tcase(s, tc);
    tc = tcase_create("spaces, spans, memory");
    tcase_set_timeout(tc, 120);
    ADD(space__never_mix); ADD(space__remove_is_busy_while_locked); ADD(space__many_come_and_go);
    ADD(spans__of_a_split_path_rejoin); ADD(memory__follows_live_tokens_after_splits);
    ADD(memory__freed_units_are_used_again);
    suite_add_tcase(s, tc);
    return s;
}
