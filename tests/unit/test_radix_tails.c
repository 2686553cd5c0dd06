/* SPDX-License-Identifier: Apache-2.0 */
/* Tails: snapshots inside a page. */
#include "test_radix.h"

enum { P = 4 };

/* KV ids come in order from 1000 on: an insert of 6 tokens has two, 1000 and 1001. */

START_TEST(tails__resume_inside_a_page)
{
    BEGIN(.page_tokens = P);
    ck_assert_uint_eq(tr_insert(t, KEY(1, 2, 3, 4, 5, 6), 7), 0);
    ck_assert_uint_eq(t->in.len, 6);
    ck_assert_uint_eq(t->in.conflict_len, 6);
    ck_assert_int_eq(t->canonical[1], 1001);
    struct sc_radix_node_info info = tr_info(t, t->in.node);
    ck_assert(info.start == 4 && info.end == 6 && info.snapshot == 7 && info.child_count == 0);
    struct sc_radix_match m = tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9));
    ck_assert_uint_eq(m.kv_len, 4);
    ck_assert_uint_eq(m.state_len, 6);
    ck_assert_uint_eq(m.snapshot, 7);
    ck_assert_int_eq(m.tail_kv, 1001);
    ck_assert_uint_eq(m.state_node, t->in.node);
    ck_assert_uint_eq(m.node, info.parent);
    struct sc_radix_stats stats = tr_stats(t);
    ck_assert(stats.token_count == 6 && stats.tail_count == 1 && stats.node_count == 2);
    char *text = tr_dump(t);
    ck_assert_msg(strstr(text, "[4,6) tail snapshot 7, history 0, tokens 5 6, ids 1001") != NULL,
        "%s", text);
    free(text);
    END;
}
END_TEST

START_TEST(tails__of_a_key_shorter_than_a_page)
{
    BEGIN(.page_tokens = P);
    tr_insert(t, KEY(1, 2, 3), 7);
    struct sc_radix_match m = tr_match(t, KEY(1, 2, 3));
    ck_assert(m.kv_len == 0 && m.node == SC_NODE_NONE && m.state_len == 3 && m.tail_kv == 1000);
    ck_assert_uint_eq(tr_info(t, m.state_node).parent, SC_NODE_NONE);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2)).state_len, 0);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 4)).state_len, 0);
    tr_use(t, KEY(1, 2, 3));
    ck_assert_uint_eq(tr_evict_kv(t, 1, NULL), 3);
    ck_assert_uint_eq(tr_stats(t).node_count, 0);
    END;
}
END_TEST

START_TEST(tails__need_a_save_at_the_end)
{
    BEGIN(.page_tokens = P);
    struct sc_radix_run run = {0, 0};
    struct sc_radix_save saves[] = {{4, 1}, {6, 2}};
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5, 6), &run, 1, NULL, 0), SC_ERR_INVALID);
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5, 6), &run, 1, saves, 1), SC_ERR_INVALID);
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5, 6, 7), &run, 1, saves, 2),
        SC_ERR_INVALID);
    /* Inside a page before the end there is no tail. */
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5, 6, 7, 8), &run, 1, saves, 2),
        SC_ERR_MISMATCH);
    saves[0].len = 5;
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5, 6), &run, 1, saves, 2), SC_ERR_MISMATCH);
    /* Where the partial page would end beyond any position. */
    saves[0].len = 4;
    saves[1].len = UINT32_MAX;
    int32_t few[] = {1, 2};
    struct sc_radix_insert in = {.space = t->space, .tokens = few, .token_count = UINT32_MAX,
        .kv_ids = few, .runs = &run, .run_count = 1, .saves = saves, .save_count = 2};
    ck_assert_int_eq(sc_radix_insert(t->radix, &in, &t->sink, NULL, t->save_status, &t->in),
        SC_ERR_LIMIT);
    VERIFY(t);
    ck_assert_uint_eq(tr_stats(t).node_count, 0);
    END;
}
END_TEST

START_TEST(tails__match_all_their_tokens_and_the_limit)
{
    BEGIN(.page_tokens = P);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7), 7);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6, 9, 8)).state_len, 0);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6)).state_len, 0);
    ck_assert_uint_eq(tr_match_max(t, KEY(1, 2, 3, 4, 5, 6, 7, 8), 6).state_len, 0);
    ck_assert_uint_eq(tr_match_max(t, KEY(1, 2, 3, 4, 5, 6, 7, 8), 7).state_len, 7);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 9, 5, 6, 7)).state_len, 0);
    END;
}
END_TEST

/* Tails of other tokens, other lengths, and the page that begins with them, all below one node. */
START_TEST(tails__hang_beside_each_other_and_beside_pages)
{
    BEGIN(.page_tokens = P);
    tr_insert(t, KEY(1, 2, 3, 4), 10);
    tr_insert(t, KEY(1, 2, 3, 4, 5), 11);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6), 12);
    tr_insert(t, KEY(1, 2, 3, 4, 6), 13);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7), 14);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), 0);
    ck_assert_uint_eq(tr_stats(t).token_count, 4 + 1 + 2 + 1 + 3 + 8);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5)).snapshot, 11);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6)).snapshot, 12);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 6, 6)).snapshot, 13);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7)).snapshot, 14);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 7)).snapshot, 10);
    /* Further on there is KV and no state: the deepest state is the tail on the way. */
    struct sc_radix_match m = tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
    ck_assert(m.kv_len == 12 && m.state_len == 7 && m.snapshot == 14 && m.branch_len == 12);
    ck_assert_int_eq(m.tail_kv, tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7)).tail_kv);
    /* With a state there, it is not. */
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8), 15);
    m = tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9));
    ck_assert(m.state_len == 8 && m.snapshot == 15 && m.tail_kv == -1);
    END;
}
END_TEST

START_TEST(tails__the_deepest_on_the_way_wins)
{
    BEGIN(.page_tokens = P);
    tr_insert(t, KEY(1, 2, 3), 1);
    tr_insert(t, KEY(1, 2, 3, 4, 5), 2);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9), 3);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), 0);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)).snapshot, 3);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 8)).snapshot, 2);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 4)).snapshot, 1);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 4, 4, 4)).snapshot, 0);
    END;
}
END_TEST

START_TEST(tails__tombstones_deeper_than_a_tail_are_told)
{
    BEGIN(.page_tokens = P);
    tr_insert(t, KEY(1, 2, 3, 4), 1);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8), 2);
    ck_assert_uint_eq(tr_evict_state(t, 2), 2);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6), 3);
    struct sc_radix_match m = tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7, 8));
    ck_assert(m.state_len == 6 && m.evicted_len == 8);
    m = tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7));
    ck_assert(m.state_len == 6 && m.evicted_len == 0);
    END;
}
END_TEST

START_TEST(tails__a_second_save_stays_the_callers)
{
    BEGIN(.page_tokens = P);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6), 7);
    sc_node tail = t->in.node;
    ck_assert_uint_eq(tr_insert(t, KEY(1, 2, 3, 4, 5, 6), 8), 6);
    ck_assert_int_eq(t->save_status[0], SC_ERR_BUSY);
    ck_assert_uint_eq(t->in.node, tail);
    ck_assert_int_eq(t->canonical[0], 1000);
    ck_assert_int_eq(t->canonical[1], 1001);
    ck_assert_uint_eq(tr_stats(t).node_count, 2);
    /* Saves at pages before it are attached all the same. */
    struct sc_radix_run run = {0, 0};
    struct sc_radix_save saves[] = {{4, 9}, {6, 10}};
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5, 6), &run, 1, saves, 2), SC_OK);
    VERIFY(t);
    ck_assert_int_eq(t->save_status[0], SC_OK);
    ck_assert_int_eq(t->save_status[1], SC_ERR_BUSY);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4)).snapshot, 9);
    END;
}
END_TEST

START_TEST(tails__hang_below_a_node_that_is_split_for_them)
{
    BEGIN(.page_tokens = P);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), 1);
    sc_node lower = t->in.node;
    ck_assert_uint_eq(tr_insert(t, KEY(1, 2, 3, 4, 5, 6), 2), 4);
    ck_assert_uint_eq(tr_info(t, lower).start, 4);
    ck_assert_uint_eq(tr_info(t, tr_info(t, lower).parent).child_count, 2);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7)).snapshot, 2);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)).snapshot, 1);
    /* A split of the node above them leaves them where they hang. */
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13), 3);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8), 4);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)).snapshot, 3);
    END;
}
END_TEST

START_TEST(tails__a_split_keeps_marks_above_and_tails_below)
{
    BEGIN(.page_tokens = P);
    sc_mark marks[] = {{1, {1}}, {2, {2}}, {8, {3}}};
    int32_t tokens[12];
    tr_fill(tokens, 12, 1);
    tr_put(t, (struct sc_radix_key){tokens, 8, marks, 2}, 1);
    for (uint32_t len = 9; len < 12; len++) {
        tr_put(t, (struct sc_radix_key){tokens, len, marks, 2}, len);
        tr_put(t, (struct sc_radix_key){tokens, len, marks, 3}, len + 10);
    }
    tr_put(t, (struct sc_radix_key){tokens, 4, marks, 2}, 2);
    for (uint32_t len = 9; len < 12; len++) {
        ck_assert_uint_eq(tr_find(t, (struct sc_radix_key){tokens, len, marks, 2}).snapshot, len);
        ck_assert_uint_eq(tr_find(t, (struct sc_radix_key){tokens, len, marks, 3}).snapshot,
            len + 10);
        ck_assert_uint_eq(tr_find(t, (struct sc_radix_key){tokens, len, marks, 1}).snapshot, 0);
    }
    ck_assert_uint_eq(tr_stats(t).mark_count, 5);
    END;
}
END_TEST

START_TEST(tails__marks_behind_their_end_do_not_matter)
{
    BEGIN(.page_tokens = P);
    int32_t tokens[8];
    tr_fill(tokens, 8, 1);
    sc_mark mark = {6, {1}};
    tr_put(t, (struct sc_radix_key){tokens, 6, NULL, 0}, 1);
    struct sc_radix_match m = tr_find(t, (struct sc_radix_key){tokens, 8, &mark, 1});
    ck_assert(m.kv_len == 4 && m.snapshot == 1);
    mark.at = 5;
    ck_assert_uint_eq(tr_find(t, (struct sc_radix_key){tokens, 8, &mark, 1}).snapshot, 0);
    tr_put(t, (struct sc_radix_key){tokens, 6, &mark, 1}, 2);
    ck_assert_uint_eq(tr_find(t, (struct sc_radix_key){tokens, 8, &mark, 1}).snapshot, 2);
    ck_assert_uint_eq(tr_find(t, (struct sc_radix_key){tokens, 8, NULL, 0}).snapshot, 1);
    END;
}
END_TEST

START_TEST(tails__go_with_their_state)
{
    BEGIN(.page_tokens = P);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6), 7);
    sc_node tail = t->in.node;
    ck_assert_uint_eq(tr_evict_state(t, 1), 1);
    ck_assert(t->gone_count == 1 && t->gone[0].snapshot == 7);
    ck_assert_int_eq(t->gone[0].cause, SC_RADIX_CAUSE_ASKED);
    ck_assert(t->kv_count == 1 && t->kv[0] == 1001);
    ck_assert_uint_eq(t->kv_causes[SC_RADIX_CAUSE_CASCADE], 1);
    struct sc_radix_node_info info;
    ck_assert_int_eq(sc_radix_node_get(t->radix, tail, &info), SC_ERR_STALE);
    struct sc_radix_match m = tr_match(t, KEY(1, 2, 3, 4, 5, 6));
    ck_assert(m.kv_len == 4 && m.state_len == 0 && m.evicted_len == 0);
    ck_assert_uint_eq(tr_stats(t).tail_count, 0);
    /* ... also when it is dropped; and it can come again. */
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6), 8);
    ck_assert_int_eq(sc_radix_snapshot_drop(t->radix, t->in.node, &t->sink), SC_OK);
    VERIFY(t);
    ck_assert(t->gone_count == 2 && t->gone[1].snapshot == 8);
    ck_assert_int_eq(t->gone[1].cause, SC_RADIX_CAUSE_SUPERSEDED);
    ck_assert(t->kv_count == 2 && t->kv[1] == 1003);
    ck_assert_uint_eq(t->kv_causes[SC_RADIX_CAUSE_SUPERSEDED], 1);
    ck_assert_uint_eq(tr_stats(t).token_count, 4);
    END;
}
END_TEST

START_TEST(tails__are_leaves_for_eviction_of_kv)
{
    BEGIN(.page_tokens = P);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6), 7);
    tr_insert(t, KEY(1, 2, 3, 4, 6, 6, 6), 8);
    uint32_t snapshots;
    ck_assert_uint_eq(tr_evict_kv(t, 1, &snapshots), 2);
    ck_assert_uint_eq(snapshots, 1);
    ck_assert_int_eq(t->gone[0].cause, SC_RADIX_CAUSE_CASCADE);
    ck_assert(t->kv_count == 1 && t->kv[0] == 1001);
    ck_assert_uint_eq(t->kv_causes[SC_RADIX_CAUSE_ASKED], 1);
    /* What is above stays as long as a tail hangs there. */
    ck_assert_uint_eq(tr_evict_kv(t, 1, NULL), 3);
    ck_assert_uint_eq(tr_evict_kv(t, 1, NULL), 4);
    ck_assert_uint_eq(tr_stats(t).node_count, 0);
    END;
}
END_TEST

START_TEST(tails__that_were_used_outlive_others)
{
    BEGIN(.page_tokens = P);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6), 7);
    tr_insert(t, KEY(1, 2, 3, 4, 6, 6), 8);
    tr_use(t, KEY(1, 2, 3, 4, 5, 6, 7));
    tr_evict_kv(t, 1, NULL);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6)).snapshot, 7);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 6, 6)).snapshot, 0);
    tr_insert(t, KEY(1, 2, 3, 4, 6, 6), 9);
    tr_use(t, KEY(1, 2, 3, 4, 5, 6, 7));
    tr_evict_state(t, 1);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6)).snapshot, 7);
    /* A tail leaves its use to the node it hung on. */
    tr_insert(t, KEY(9, 9, 9, 9), 10);
    tr_use(t, KEY(1, 2, 3, 4, 5, 6));
    ck_assert_int_eq(sc_radix_snapshot_drop(t->radix, tr_match(t, KEY(1, 2, 3, 4, 5, 6)).state_node,
        &t->sink), SC_OK);
    tr_evict_kv(t, 1, NULL);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4)).kv_len, 4);
    ck_assert_uint_eq(tr_match(t, KEY(9, 9, 9, 9)).kv_len, 0);
    END;
}
END_TEST

/* Whatever lock: a tail's page is read by somebody, and it cannot stay without its snapshot. */
START_TEST(tails__any_lock_holds_state_and_page)
{
    BEGIN(.page_tokens = P);
    tr_insert(t, KEY(1, 2, 3, 4), 6);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6), 7);
    sc_node tail = t->in.node;
    for (uint32_t what = LOCK_KV; what <= LOCK_BOTH; what++) {
        struct sc_radix_receipt receipt = tr_lock(t, tail, what);
        struct sc_radix_receipt second = tr_lock(t, tail, LOCK_KV);
        struct sc_radix_stats stats = tr_stats(t);
        ck_assert(stats.state_locked_count == 1 && stats.state_evictable_count == 1);
        ck_assert(stats.kv_locked_tokens == 6 && stats.kv_evictable_tokens == 0);
        ck_assert_int_eq(sc_radix_snapshot_drop(t->radix, tail, &t->sink), SC_ERR_BUSY);
        ck_assert_uint_eq(tr_evict_state(t, 9), 1); /* that of the page */
        ck_assert_uint_eq(tr_evict_kv(t, 9, NULL), 0);
        tr_unlock(t, receipt);
        ck_assert_uint_eq(tr_stats(t).state_locked_count, 1);
        tr_unlock(t, second);
        ck_assert_uint_eq(tr_stats(t).state_locked_count, 0);
        tr_insert(t, KEY(1, 2, 3, 4), 20 + what);
        ck_assert_int_eq(t->save_status[0], SC_OK);
    }
    /* A lock of the node above does not hold the tail. */
    struct sc_radix_receipt receipt = tr_lock(t, tr_info(t, tail).parent, LOCK_BOTH);
    ck_assert_uint_eq(tr_evict_kv(t, 9, NULL), 2);
    tr_unlock(t, receipt);
    END;
}
END_TEST

START_TEST(tails__spans_end_with_the_partial_page)
{
    BEGIN(.page_tokens = P);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9), 7);
    sc_node first = t->in.node;
    struct sc_radix_span spans[4];
    uint32_t count;
    ck_assert_int_eq(sc_radix_spans(t->radix, first, 0, spans, 4, &count), SC_OK);
    ck_assert_uint_eq(count, 1); /* it lies right behind */
    ck_assert(spans[0].page_first == 0 && spans[0].page_count == 3 && spans[0].ids[2] == 1002);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9, 9), 8);
    ck_assert_int_eq(sc_radix_spans(t->radix, t->in.node, 1, spans, 4, &count), SC_OK);
    ck_assert_uint_eq(count, 2);
    ck_assert(spans[0].page_first == 1 && spans[0].page_count == 1 && spans[0].ids[0] == 1001);
    ck_assert(spans[1].page_first == 2 && spans[1].page_count == 1 && spans[1].ids[0] == 1005);
    ck_assert_int_eq(sc_radix_spans(t->radix, first, 2, spans, 4, &count), SC_OK);
    ck_assert(count == 1 && spans[0].page_count == 1 && spans[0].ids[0] == 1002);
    ck_assert_int_eq(sc_radix_spans(t->radix, first, 3, spans, 4, &count), SC_OK);
    ck_assert_uint_eq(count, 0);
    ck_assert_int_eq(sc_radix_spans(t->radix, first, 4, spans, 4, &count), SC_ERR_INVALID);
    END;
}
END_TEST

START_TEST(tails__another_history_in_use_stops_at_the_page)
{
    BEGIN(.page_tokens = P);
    struct sc_radix_run runs[] = {{0, 0xa}, {4, 0xb}};
    struct sc_radix_save saves[] = {{4, 1}, {6, 7}};
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5, 6), runs, 1, saves + 1, 1), SC_OK);
    ck_assert_uint_eq(tr_info(t, t->in.node).history, 0xa);
    struct sc_radix_receipt receipt = tr_lock(t, t->in.node, LOCK_KV);
    saves[1].snapshot = 8;
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5, 6), runs, 2, saves, 2), SC_OK);
    VERIFY(t);
    ck_assert(t->in.conflict_len == 4 && t->in.len == 4 && t->in.prefix_len == 4);
    ck_assert_uint_eq(tr_info(t, t->in.node).end, 4);
    ck_assert_int_eq(t->save_status[0], SC_OK);
    ck_assert_int_eq(t->save_status[1], SC_ERR_MISMATCH);
    ck_assert_int_eq(t->canonical[0], 1000);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6)).snapshot, 7);
    tr_unlock(t, receipt);
    /* Other tokens, or another length: no conflict. */
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5, 7), runs, 2, saves + 1, 1), SC_OK);
    ck_assert_uint_eq(t->in.conflict_len, 6);
    ck_assert_uint_eq(tr_info(t, t->in.node).history, 0xb);
    VERIFY(t);
    /* A branch with a tail holds a snapshot: what brings none does not replace it. */
    struct sc_radix_run other = {0, 0xc};
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4), &other, 1, NULL, 0), SC_OK);
    ck_assert_uint_eq(t->in.conflict_len, 0);
    ck_assert_uint_eq(t->kv_count, 0);
    END;
}
END_TEST

/* A tail of another history goes; whole pages and a longer tail that begin as it does stay. */
START_TEST(tails__another_history_is_replaced)
{
    BEGIN(.page_tokens = P);
    struct sc_radix_run runs[] = {{0, 0xa}, {4, 0xb}};
    struct sc_radix_save saves[] = {{6, 7}, {7, 8}, {8, 9}, {6, 10}};
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5, 6), runs, 1, saves, 1), SC_OK);
    int32_t id = t->canonical[1];
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5, 6, 7), runs, 1, saves + 1, 1), SC_OK);
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5, 6, 7, 8), runs, 1, saves + 2, 1), SC_OK);
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5, 6), runs, 2, saves + 3, 1), SC_OK);
    VERIFY(t);
    ck_assert(t->in.prefix_len == 4 && t->in.len == 6 && t->in.conflict_len == 6);
    ck_assert_int_eq(t->save_status[0], SC_OK);
    ck_assert_uint_eq(tr_info(t, t->in.node).history, 0xb);
    ck_assert_uint_eq(t->gone_count, 1);
    ck_assert(t->gone[0].snapshot == 7 && t->gone[0].cause == SC_RADIX_CAUSE_HISTORY);
    ck_assert(t->kv_count == 1 && t->kv[0] == id);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6)).snapshot, 10);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7)).snapshot, 8);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7, 8)).snapshot, 9);
    END;
}
END_TEST

START_TEST(tails__replace_an_idle_branch_on_their_way)
{
    BEGIN(.page_tokens = P);
    struct sc_radix_run runs[] = {{0, 0xa}, {4, 0xb}};
    struct sc_radix_save save = {10, 7};
    int32_t key[12];
    tr_fill(key, 12, 1);
    ck_assert_int_eq(tr_insert_runs(t, key, 12, runs, 1, NULL, 0), SC_OK);
    ck_assert_int_eq(tr_insert_runs(t, key, 10, runs, 2, &save, 1), SC_OK);
    VERIFY(t);
    ck_assert(t->in.prefix_len == 4 && t->in.len == 10);
    ck_assert_uint_eq(t->kv_causes[SC_RADIX_CAUSE_HISTORY], 2);
    struct sc_radix_match m = tr_match(t, key, 12);
    ck_assert(m.kv_len == 8 && m.state_len == 10 && m.tail_kv == 1005);
    END;
}
END_TEST

START_TEST(tails__count_against_token_max)
{
    BEGIN(.page_tokens = P, .token_max = 6);
    struct sc_radix_run run = {0, 0};
    struct sc_radix_save save = {7, 1};
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5, 6, 7), &run, 1, &save, 1), SC_ERR_LIMIT);
    VERIFY(t);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6), 1);
    save.len = 5;
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2, 3, 4, 5), &run, 1, &save, 1), SC_ERR_LIMIT);
    VERIFY(t);
    ck_assert_uint_eq(tr_stats(t).token_count, 6);
    END;
}
END_TEST

START_TEST(tails__without_kv)
{
    OPEN(false, .page_tokens = P);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6), 7);
    struct sc_radix_match m = tr_match(t, KEY(1, 2, 3, 4, 5, 6));
    ck_assert(m.state_len == 6 && m.snapshot == 7 && m.tail_kv == -1);
    ck_assert_uint_eq(tr_evict_state(t, 1), 1);
    ck_assert_uint_eq(tr_stats(t).node_count, 0); /* nothing can be resumed: the page went, too */
    ck_assert_uint_eq(t->kv_count, 0);
    END;
}
END_TEST

START_TEST(tails__the_path_cap_counts_those_on_the_path)
{
    BEGIN(.page_tokens = P, .path_snapshots_max = 2);
    tr_insert(t, KEY(1, 2, 3, 4), 1);
    sc_node first = t->in.node;
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8), 2);
    sc_node second = t->in.node;
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9), 3);
    uint32_t count;
    ck_assert_int_eq(sc_radix_evict_excess(t->radix, t->in.node, &t->sink, &count), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(count, 1);
    ck_assert(tr_info(t, first).tombstone && tr_info(t, second).snapshot == 2);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5, 6, 7, 8, 9)).snapshot, 3);
    END;
}
END_TEST

START_TEST(tails__go_with_their_space)
{
    BEGIN(.page_tokens = P);
    tr_insert(t, KEY(1, 2), 1);
    tr_insert(t, KEY(1, 2, 3, 4, 5, 6), 2);
    struct sc_radix_receipt receipt = tr_lock(t, t->in.node, LOCK_STATE);
    ck_assert_int_eq(sc_radix_space_remove(t->radix, t->space, &t->sink), SC_ERR_BUSY);
    tr_unlock(t, receipt);
    ck_assert_int_eq(sc_radix_space_remove(t->radix, t->space, &t->sink), SC_OK);
    ck_assert_uint_eq(t->kv_causes[SC_RADIX_CAUSE_SPACE], 3);
    ck_assert(t->gone_count == 2 && t->gone[0].cause == SC_RADIX_CAUSE_SPACE);
    ck_assert_uint_eq(tr_stats(t).tail_count, 0);
    END;
}
END_TEST

/* 20,000 tails of one node: each found, by its length and its hash. */
START_TEST(tails__many_of_one_node)
{
    enum { PAGE = 64, MANY = 20000 };
    BEGIN(.page_tokens = PAGE);
    int32_t key[2 * PAGE];
    struct sc_radix_run run = {0, 0};
    tr_fill(key, PAGE, 0);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < MANY; i++) {
            uint32_t len = PAGE + 1 + i % (PAGE - 1);
            tr_fill(key + PAGE, PAGE, (int32_t)(i / (PAGE - 1)) * 1000);
            struct sc_radix_save save = {len, i + 1};
            if (round == 0) ck_assert_int_eq(tr_insert_runs(t, key, len, &run, 1, &save, 1), SC_OK);
            if (round == 1) ck_assert_uint_eq(tr_match(t, key, len).snapshot, i + 1);
        }
        VERIFY(t);
    }
    ck_assert_uint_eq(tr_stats(t).tail_count, MANY);
    ck_assert_uint_eq(tr_evict_state(t, MANY / 2), MANY / 2);
    ck_assert_uint_eq(tr_stats(t).tail_count, MANY / 2);
    tr_fill(key + PAGE, PAGE, MANY / (PAGE - 1) * 1000);
    ck_assert_uint_eq(tr_match(t, key, 2 * PAGE - 1).state_len, PAGE + 1 + (MANY - 1) % (PAGE - 1));
    END;
}
END_TEST

START_TEST(tails__of_all_page_sizes)
{
    const uint32_t pages[] = {2, 3, 16, 255, 256, 300, 5000};
    static int32_t key[12000];
    for (unsigned p = 0; p < sizeof pages / sizeof *pages; p++) {
        uint32_t page = pages[p];
        BEGIN(.page_tokens = page);
        tr_fill(key, 12000, 1);
        uint64_t tokens = 0;
        for (uint32_t i = 1; i <= 40; i++) {
            uint32_t len = i * 263 % 11000;
            if (len % page == 0) len++;
            tr_insert(t, key, len, i);
            struct sc_radix_match m = tr_match(t, key, len);
            ck_assert(m.state_len == len && m.kv_len == len / page * page);
            ck_assert_int_eq(m.tail_kv, t->kv_next - 1);
        }
        tokens = tr_stats(t).token_count;
        ck_assert_uint_eq(tr_evict_kv(t, UINT64_MAX, NULL), tokens);
        END;
    }
}
END_TEST

#define ADD(name) tcase_add_test(tc, name)

Suite *radix_tails_suite(void)
{
    Suite *s = suite_create("radix tails");
    TCase *tc = tcase_create("tails");
    tcase_set_timeout(tc, 240);
    ADD(tails__resume_inside_a_page); ADD(tails__of_a_key_shorter_than_a_page);
    ADD(tails__need_a_save_at_the_end); ADD(tails__match_all_their_tokens_and_the_limit);
    ADD(tails__hang_beside_each_other_and_beside_pages); ADD(tails__the_deepest_on_the_way_wins);
    ADD(tails__tombstones_deeper_than_a_tail_are_told);
    ADD(tails__a_second_save_stays_the_callers);
    ADD(tails__hang_below_a_node_that_is_split_for_them);
    ADD(tails__a_split_keeps_marks_above_and_tails_below);
    ADD(tails__marks_behind_their_end_do_not_matter); ADD(tails__go_with_their_state);
    ADD(tails__are_leaves_for_eviction_of_kv); ADD(tails__that_were_used_outlive_others);
    ADD(tails__any_lock_holds_state_and_page); ADD(tails__spans_end_with_the_partial_page);
    ADD(tails__another_history_in_use_stops_at_the_page); ADD(tails__another_history_is_replaced);
    ADD(tails__replace_an_idle_branch_on_their_way);
    ADD(tails__count_against_token_max); ADD(tails__without_kv);
    ADD(tails__the_path_cap_counts_those_on_the_path); ADD(tails__go_with_their_space);
    ADD(tails__many_of_one_node); ADD(tails__of_all_page_sizes);
    suite_add_tcase(s, tc);
    return s;
}
