/* SPDX-License-Identifier: Apache-2.0 */
/* The peers' scenarios (legacy L and unified U differ: U is followed) as tests of the tree.
 *
 * Their m(key) counts tokens that can be resumed: here state_len; kv_len is told apart. Their calls
 * that mix tree and request are split: insert is a commit, match then touch is an acquire.
 *
 *   T1.1-T1.6   pool                       T2.1    t2_1__empty_tree
 *   T2.2  t2_2__insert_attaches_a_snapshot T2.3    t2_3__second_snapshot_stays_the_callers
 *   T2.4  t2_4__insert_refuses_snapshot_zero
 *   T2.5  t2_5__duplicates_get_canonical_ids (what is freed: engine)
 *   T2.6  t2_6__split_leaves_the_snapshot_with_the_end
 *   T2.7  t2_7__evicting_a_state_leaves_a_tombstone
 *   T2.8  waits for the host tier; the refill itself: t2_8__tombstone_is_refilled
 *   T2.9  t2_9__evicted_states_break_the_hit  T2.10 t2_10__pages_match_whole
 *   T2.11-T2.14 engine
 *   T2.15 t2_15__snapshot_only_counts_where_it_is (host part waits for the host tier)
 *   T2.16 t2_16__dump_and_stats_name_what_is_there
 *   T2.17 waits for events (prefix hashes)  T4.1, T4.2 engine
 *   T5.1  t5_1__evictable_follows_locks     T5.2  t5_2__locked_state_is_not_evicted
 *   T5.3  t5_3__locks_count                 T5.4  t5_4__state_lock_of_a_tombstone_takes_nothing
 *   T5.6  t5_6__kv_lock_without_state_lock  T5.8  t5_8__locking_the_root_takes_nothing
 *   T5.9  waits for the host tier           T5.10 no tiers of priority here: nothing to test
 *   T6.1  t6_1__used_snapshot_survives      T6.2  t6_2__only_the_used_snapshot_moves
 *   T6.3  t6_3__insert_does_not_reorder     T6.5  t6_5__insert_never_evicts (pool side: engine)
 *   T7.1  t7_1__kv_goes_from_leaves_only    T7.2  t7_2__kv_eviction_cascades_to_the_snapshot
 *   T7.3  t7_3__evicting_all_leaves_nothing T7.4  t7_4__state_eviction_spares_kv
 *   T7.5  t7_5__states_go_oldest_first (a leaf's KV stays: eviction of KV is asked for apart)
 *   T7.6  t7_6__locked_states_are_passed_over
 *   T7.8  t7_8__parent_becomes_a_leaf       T7.9  t7_9__chain_is_cleaned_up
 *   T7.10 t7_10__clean_up_stops_at_a_locked_parent
 *   T7.11 t7_11__old_goes_before_new (priorities wait for policies)
 *   T7.12 t7_12__independent_leaves         T7.14 t7_14__evicted_equals_the_change
 *   T7.15 t7_15__reinsert_after_total_eviction
 *   T7.16 t7_16__evicting_one_component (host part waits for the host tier)
 *   T7.17 guards of an iterator that does not exist here; bad handles: test_radix_args.c
 *   T7.18 t7_18__path_cap_frees_the_shallowest (the engine asks for it)
 *   T7.19 no SWA; a state lock alone also keeps its leaf: t7_19__state_lock_keeps_its_leaf
 *   T7.20 t7_20__tombstone_parent_survives_its_leaf (U)
 *   T8.1  t8_1__branch_point_between_tombstones  T8.2 t8_2__branch_point_beyond_a_snapshot
 *   T8.4  t8_4__no_branch_point             T8.5  t8_5__branch_point_without_any_snapshot
 *   T9.x  wait for events                   T10.x wait for the host tier
 *   T11   t11__growth_and_fan_out (test_radix_shape.c)   T12 engine
 *   T13   t13__all_locked_is_an_answer, t13__many_snapshots_on_one_path,
 *         t13__match_changes_nothing; t13__deep_chain and t13__wide_fan_out (test_radix_shape.c);
 *         ring cursors and partly filled rings: pool and engine */
#include "test_radix.h"


START_TEST(t2_1__empty_tree)
{
    BEGIN();
    struct sc_radix_match m = tr_match(t, KEY(1, 2, 3));
    ck_assert_uint_eq(m.kv_len, 0);
    ck_assert_uint_eq(m.state_len, 0);
    ck_assert_uint_eq(m.node, SC_NODE_NONE);
    ck_assert_uint_eq(m.state_node, SC_NODE_NONE);
    uint32_t snapshots = 9;
    ck_assert_uint_eq(tr_evict_kv(t, 10, &snapshots), 0);
    ck_assert_uint_eq(snapshots, 0);
    ck_assert_uint_eq(tr_evict_state(t, 10), 0);
    END;
}
END_TEST

START_TEST(t2_2__insert_attaches_a_snapshot)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 7);
    ck_assert_int_eq(t->save_status[0], SC_OK);
    struct sc_radix_match m = tr_match(t, KEY(1, 2));
    ck_assert_uint_eq(m.snapshot, 7);
    ck_assert_uint_eq(m.state_node, m.node);
    ck_assert_uint_eq(m.state_len, 2);
    sc_node order[4];
    ck_assert_uint_eq(sc_radix_state_order(t->radix, order, 4), 1);
    ck_assert_uint_eq(order[0], m.node);
    ck_assert_uint_eq(tr_stats(t).state_evictable_count, 1);
    END;
}
END_TEST

START_TEST(t2_3__second_snapshot_stays_the_callers)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 7);
    ck_assert_uint_eq(tr_insert(t, KEY(1, 2), 8), 2);
    ck_assert_int_eq(t->save_status[0], SC_ERR_BUSY);
    ck_assert_uint_eq(tr_stats(t).state_evictable_count, 1);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2)).snapshot, 7);
    ck_assert_uint_eq(t->gone_count, 0);
    END;
}
END_TEST

START_TEST(t2_4__insert_refuses_snapshot_zero)
{
    BEGIN();
    struct sc_radix_run run = {0, 0};
    struct sc_radix_save save = {2, 0};
    ck_assert_int_eq(tr_insert_runs(t, KEY(1, 2), &run, 1, &save, 1), SC_ERR_INVALID);
    ck_assert_uint_eq(tr_stats(t).node_count, 0);
    /* Without any snapshot an insert is plain KV, and no hit. */
    tr_insert(t, KEY(1, 2), 0);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2)).kv_len, 2);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2)).state_len, 0);
    END;
}
END_TEST

START_TEST(t2_5__duplicates_get_canonical_ids)
{
    BEGIN();
    ck_assert_uint_eq(tr_insert(t, KEY(1, 2, 3), 1), 0);
    ck_assert_int_eq(t->canonical[0], 1000);
    ck_assert_uint_eq(tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7), 2), 3);
    for (int i = 0; i < 3; i++) ck_assert_int_eq(t->canonical[i], 1000 + i);
    for (int i = 3; i < 7; i++) ck_assert_int_eq(t->canonical[i], 1003 + i); /* the new ones */
    ck_assert_uint_eq(tr_insert(t, KEY(1, 2, 3, 4, 5, 6, 7, 8), 3), 7);
    for (int i = 3; i < 7; i++) ck_assert_int_eq(t->canonical[i], 1003 + i);
    ck_assert_int_eq(t->canonical[7], 1017);
    ck_assert_uint_eq(tr_stats(t).token_count, 8);
    ck_assert_uint_eq(t->kv_count, 0);
    END;
}
END_TEST

START_TEST(t2_6__split_leaves_the_snapshot_with_the_end)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 7);
    sc_node leaf = t->in.node;
    struct sc_radix_receipt receipt = tr_lock(t, leaf, LOCK_BOTH);
    tr_insert(t, KEY(1, 9), 0);
    ck_assert_uint_eq(tr_info(t, leaf).snapshot, 7);
    ck_assert_uint_eq(tr_info(t, leaf).start, 1);
    ck_assert_uint_eq(tr_info(t, leaf).end, 2);
    sc_node upper = tr_info(t, leaf).parent;
    ck_assert_uint_ne(upper, SC_NODE_NONE);
    ck_assert_uint_eq(tr_info(t, upper).snapshot, 0);
    ck_assert(!tr_info(t, upper).tombstone);
    ck_assert_uint_eq(tr_info(t, upper).end, 1);
    ck_assert_uint_eq(tr_info(t, upper).kv_locks, 1);
    ck_assert_uint_eq(tr_info(t, upper).state_locks, 0);
    sc_node node;
    uint32_t what;
    ck_assert_int_eq(sc_radix_receipt_get(t->radix, receipt, &node, &what), SC_OK);
    ck_assert_uint_eq(node, leaf);
    ck_assert_uint_eq(what, LOCK_BOTH);
    tr_unlock(t, receipt);
    ck_assert_uint_eq(tr_stats(t).kv_locked_tokens, 0);
    END;
}
END_TEST

START_TEST(t2_7__evicting_a_state_leaves_a_tombstone)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3), 1);
    sc_node inner = t->in.node;
    ck_assert_uint_eq(tr_insert(t, KEY(1, 2, 3, 4, 5), 2), 3);
    ck_assert_uint_eq(tr_evict_state(t, 1), 1);
    ck_assert_uint_eq(t->gone[0].snapshot, 1);
    ck_assert_int_eq(t->gone[0].cause, SC_RADIX_CAUSE_ASKED);
    ck_assert(tr_info(t, inner).tombstone);
    ck_assert_uint_eq(t->kv_count, 0);
    struct sc_radix_match m = tr_match(t, KEY(1, 2, 3));
    ck_assert_uint_eq(m.state_len, 0);
    ck_assert_uint_eq(m.kv_len, 3);
    ck_assert_uint_eq(m.evicted_len, 3);
    m = tr_match(t, KEY(1, 2, 3, 4, 5));
    ck_assert_uint_eq(m.state_len, 5);
    ck_assert_uint_eq(m.evicted_len, 0);
    END;
}
END_TEST

START_TEST(t2_8__tombstone_is_refilled)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 7);
    tr_insert(t, KEY(1, 2, 3), 8);
    ck_assert_uint_eq(tr_evict_state(t, 1), 1);
    tr_insert(t, KEY(1, 2), 9);
    ck_assert_int_eq(t->save_status[0], SC_OK);
    ck_assert(!tr_info(t, t->in.node).tombstone);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2)).snapshot, 9);
    ck_assert_uint_eq(tr_stats(t).state_evictable_count, 2);
    END;
}
END_TEST

START_TEST(t2_9__evicted_states_break_the_hit)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3), 1);
    tr_insert(t, KEY(1, 2, 3, 4, 5), 2);
    ck_assert_uint_eq(tr_evict_state(t, 10), 2);
    ck_assert_uint_eq(tr_stats(t).state_evictable_count, 0);
    struct sc_radix_match m = tr_match(t, KEY(1, 2, 3, 4, 5));
    ck_assert_uint_eq(m.state_len, 0);
    ck_assert_uint_eq(m.kv_len, 5);
    ck_assert_uint_eq(m.evicted_len, 5);
    END;
}
END_TEST

START_TEST(t2_10__pages_match_whole)
{
    enum { P = 4 };
    BEGIN(.page_tokens = P);
    int32_t key[4 * P];
    tr_fill(key, 4 * P, 1);
    tr_insert(t, key, P, 1);
    tr_insert(t, key, 2 * P, 2);
    ck_assert_uint_eq(tr_match(t, key, 3 * P - 1).kv_len, 2 * P);
    ck_assert_uint_eq(tr_match(t, key, P - 1).kv_len, 0);
    key[P + 2] = 99;
    ck_assert_uint_eq(tr_match(t, key, 2 * P).kv_len, P);
    ck_assert_uint_eq(tr_match(t, key, 2 * P).state_len, P);
    key[P - 1] = 98;
    ck_assert_uint_eq(tr_match(t, key, 2 * P).kv_len, 0);
    END;
}
END_TEST

START_TEST(t2_15__snapshot_only_counts_where_it_is)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3, 4), 5);
    tr_insert(t, KEY(1, 2, 3, 9), 0);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4)).state_len, 4);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3)).state_len, 0);
    ck_assert_uint_eq(tr_match_max(t, KEY(1, 2, 3, 4), 3).state_len, 0);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 9)).state_len, 0);
    END;
}
END_TEST

START_TEST(t2_16__dump_and_stats_name_what_is_there)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3), 77);
    tr_insert(t, KEY(1, 2, 4), 78);
    ck_assert_uint_eq(tr_evict_state(t, 1), 1);
    char *text = tr_dump(t);
    ck_assert_msg(strstr(text, "snapshot 78") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "tombstone") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "tokens 1 2,") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "+- #") && strstr(text, "`- #"), "%s", text);
    free(text);
    struct sc_radix_stats stats = tr_stats(t);
    ck_assert_uint_eq(stats.node_count, 3);
    ck_assert_uint_eq(stats.token_count, 4);
    ck_assert_uint_eq(stats.snapshot_count, 1);
    ck_assert_uint_gt(stats.bytes, 0);
    END;
}
END_TEST

static void check_evictable(const struct tr *t, uint64_t tokens, uint64_t states)
{
    struct sc_radix_stats s = tr_stats(t);
    ck_assert_uint_eq(s.kv_evictable_tokens, tokens);
    ck_assert_uint_eq(s.state_evictable_count, states);
    ck_assert_uint_eq(s.kv_evictable_tokens + s.kv_locked_tokens, s.token_count);
    ck_assert_uint_eq(s.state_evictable_count + s.state_locked_count, s.snapshot_count);
}

START_TEST(t5_1__evictable_follows_locks)
{
    BEGIN();
    check_evictable(t, 0, 0);
    tr_insert(t, KEY(1, 2, 3, 4, 5), 1);
    check_evictable(t, 5, 1);
    struct sc_radix_receipt receipt = tr_lock(t, t->in.node, LOCK_BOTH);
    check_evictable(t, 0, 0);
    tr_unlock(t, receipt);
    check_evictable(t, 5, 1);
    END;
}
END_TEST

START_TEST(t5_2__locked_state_is_not_evicted)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3), 1);
    struct sc_radix_receipt receipt = tr_lock(t, t->in.node, LOCK_BOTH);
    ck_assert_uint_eq(tr_evict_state(t, 1), 0);
    ck_assert_uint_eq(tr_evict_kv(t, 1, NULL), 0);
    tr_unlock(t, receipt);
    ck_assert_uint_eq(tr_evict_state(t, 1), 1);
    END;
}
END_TEST

START_TEST(t5_3__locks_count)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 1);
    sc_node node = t->in.node;
    struct sc_radix_receipt a = tr_lock(t, node, LOCK_STATE);
    struct sc_radix_receipt b = tr_lock(t, node, LOCK_STATE);
    ck_assert_uint_eq(tr_info(t, node).state_locks, 2);
    ck_assert_uint_eq(tr_stats(t).state_evictable_count, 0);
    ck_assert_uint_eq(tr_stats(t).state_locked_count, 1);
    tr_unlock(t, a);
    ck_assert_uint_eq(tr_stats(t).state_locked_count, 1);
    tr_unlock(t, b);
    ck_assert_uint_eq(tr_info(t, node).state_locks, 0);
    ck_assert_uint_eq(tr_stats(t).state_evictable_count, 1);
    END;
}
END_TEST

START_TEST(t5_4__state_lock_of_a_tombstone_takes_nothing)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 1);
    sc_node node = t->in.node;
    ck_assert_uint_eq(tr_evict_state(t, 1), 1);
    struct sc_radix_receipt receipt = tr_lock(t, node, LOCK_STATE);
    ck_assert_uint_eq(tr_info(t, node).state_locks, 0);
    sc_node held;
    uint32_t what = 9;
    ck_assert_int_eq(sc_radix_receipt_get(t->radix, receipt, &held, &what), SC_OK);
    ck_assert_uint_eq(held, node);
    ck_assert_uint_eq(what, 0);
    /* A snapshot that comes later is not what the receipt took. */
    tr_insert(t, KEY(1, 2), 2);
    tr_unlock(t, receipt);
    ck_assert_uint_eq(tr_info(t, node).state_locks, 0);
    ck_assert_uint_eq(tr_stats(t).state_evictable_count, 1);
    ck_assert_int_eq(sc_radix_unlock(t->radix, receipt), SC_ERR_STALE);
    END;
}
END_TEST

START_TEST(t5_6__kv_lock_without_state_lock)
{
    BEGIN();
    tr_insert(t, KEY(1), 1);
    sc_node parent = t->in.node;
    tr_insert(t, KEY(1, 2), 2);
    sc_node leaf = t->in.node;
    struct sc_radix_receipt receipt = tr_lock(t, leaf, LOCK_KV);
    ck_assert_uint_eq(tr_info(t, leaf).state_locks, 0);
    ck_assert_uint_eq(tr_info(t, parent).state_locks, 0);
    ck_assert_uint_eq(tr_info(t, leaf).kv_locks, 1);
    ck_assert_uint_eq(tr_info(t, parent).kv_locks, 1);
    check_evictable(t, 0, 2);
    sc_node held;
    uint32_t what;
    ck_assert_int_eq(sc_radix_receipt_get(t->radix, receipt, &held, &what), SC_OK);
    ck_assert_uint_eq(held, leaf);
    ck_assert_uint_eq(what, LOCK_KV);
    ck_assert_uint_eq(tr_evict_state(t, 5), 2); /* the states are free to go, the KV is not */
    ck_assert_uint_eq(tr_evict_kv(t, 5, NULL), 0);
    tr_unlock(t, receipt);
    ck_assert_uint_eq(tr_info(t, leaf).kv_locks, 0);
    ck_assert_uint_eq(tr_info(t, parent).kv_locks, 0);
    END;
}
END_TEST

START_TEST(t5_8__locking_the_root_takes_nothing)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 1);
    struct sc_radix_receipt receipt = tr_lock(t, SC_NODE_NONE, LOCK_BOTH);
    check_evictable(t, 2, 1);
    tr_unlock(t, receipt);
    check_evictable(t, 2, 1);
    ck_assert_int_eq(sc_radix_unlock(t->radix, receipt), SC_ERR_STALE);
    END;
}
END_TEST

START_TEST(t6_1__used_snapshot_survives)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 1);
    tr_insert(t, KEY(3, 4), 2);
    tr_insert(t, KEY(5, 6), 3);
    sc_node order[8];
    ck_assert_uint_eq(sc_radix_state_order(t->radix, order, 8), 3);
    tr_use(t, KEY(1, 2));
    ck_assert_uint_eq(tr_evict_state(t, 1), 1);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2)).state_len, 2);
    ck_assert_uint_eq(tr_match(t, KEY(3, 4)).state_len, 0);
    END;
}
END_TEST

START_TEST(t6_2__only_the_used_snapshot_moves)
{
    BEGIN();
    tr_insert(t, KEY(1), 11);
    sc_node a1 = t->in.node;
    tr_insert(t, KEY(1, 2), 12);
    sc_node b1 = t->in.node;
    tr_insert(t, KEY(5), 21);
    sc_node a2 = t->in.node;
    tr_insert(t, KEY(5, 6), 22);
    sc_node b2 = t->in.node;
    tr_use(t, KEY(5, 6));
    tr_use(t, KEY(1, 2));
    sc_node order[8];
    ck_assert_uint_eq(sc_radix_state_order(t->radix, order, 8), 4);
    ck_assert_uint_eq(order[0], b1);
    ck_assert_uint_eq(order[1], b2);
    ck_assert_uint_eq(order[2], a2);
    ck_assert_uint_eq(order[3], a1); /* stays older than a2 */
    ck_assert_uint_eq(sc_radix_state_order(t->radix, order, 2), 2);
    ck_assert_uint_eq(order[0], b1);
    ck_assert_uint_eq(order[1], b2);
    END;
}
END_TEST

START_TEST(t6_3__insert_does_not_reorder)
{
    BEGIN();
    tr_insert(t, KEY(3), 3);
    sc_node c = t->in.node;
    tr_insert(t, KEY(2), 2);
    sc_node b = t->in.node;
    tr_insert(t, KEY(1), 1);
    sc_node a = t->in.node;
    tr_insert(t, KEY(3), 9); /* walks over c and ends there */
    sc_node order[4];
    ck_assert_uint_eq(sc_radix_state_order(t->radix, order, 4), 3);
    ck_assert(order[0] == a && order[1] == b && order[2] == c);
    tr_use(t, KEY(3));
    ck_assert_uint_eq(sc_radix_state_order(t->radix, order, 4), 3);
    ck_assert(order[0] == c && order[1] == a && order[2] == b);
    END;
}
END_TEST

START_TEST(t6_5__insert_never_evicts)
{
    BEGIN();
    for (int32_t i = 0; i < 20; i++) tr_insert(t, KEY(100 + i), (uint32_t)i + 1);
    ck_assert_uint_eq(t->gone_count, 0);
    ck_assert_uint_eq(tr_evict_state(t, 1), 1);
    tr_insert(t, KEY(500), 21);
    ck_assert_uint_eq(tr_stats(t).snapshot_count, 20);
    ck_assert_uint_eq(t->gone_count, 1);
    ck_assert_uint_eq(tr_match(t, KEY(500)).state_len, 1);
    ck_assert_uint_eq(tr_match(t, KEY(100)).state_len, 0); /* the oldest */
    END;
}
END_TEST

START_TEST(t7_1__kv_goes_from_leaves_only)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3), 1);
    tr_insert(t, KEY(1, 2, 3, 4, 5), 2);
    tr_insert(t, KEY(1, 2, 3, 4, 6), 3);
    ck_assert_uint_ge(tr_evict_kv(t, 1, NULL), 1);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4)).kv_len, 4);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3)).state_len, 3);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 5)).kv_len, 4); /* the older leaf went */
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4, 6)).state_len, 5);
    END;
}
END_TEST

START_TEST(t7_2__kv_eviction_cascades_to_the_snapshot)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3), 1);
    uint32_t snapshots = 0;
    ck_assert_uint_eq(tr_evict_kv(t, 3, &snapshots), 3);
    ck_assert_uint_eq(snapshots, 1);
    ck_assert_uint_eq(t->gone[0].snapshot, 1);
    ck_assert_int_eq(t->gone[0].cause, SC_RADIX_CAUSE_CASCADE);
    ck_assert_uint_eq(t->kv_count, 3);
    ck_assert_uint_eq(t->kv_causes[SC_RADIX_CAUSE_ASKED], 3);
    for (int i = 0; i < 3; i++) ck_assert_int_eq(t->kv[i], 1000 + i);
    END;
}
END_TEST

START_TEST(t7_3__evicting_all_leaves_nothing)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3), 1);
    tr_insert(t, KEY(1, 2, 9), 2);
    tr_insert(t, KEY(7), 3);
    ck_assert_uint_eq(tr_evict_kv(t, 2 * tr_stats(t).kv_evictable_tokens, NULL), 5);
    struct sc_radix_stats stats = tr_stats(t);
    ck_assert_uint_eq(stats.node_count, 0);
    ck_assert_uint_eq(stats.token_count, 0);
    ck_assert_uint_eq(stats.snapshot_count, 0);
    check_evictable(t, 0, 0);
    END;
}
END_TEST

START_TEST(t7_4__state_eviction_spares_kv)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 1);
    tr_insert(t, KEY(1, 2, 3), 2);
    check_evictable(t, 3, 2);
    ck_assert_uint_eq(tr_evict_state(t, 1), 1);
    check_evictable(t, 3, 1);
    ck_assert_uint_eq(t->kv_count, 0);
    END;
}
END_TEST

START_TEST(t7_5__states_go_oldest_first)
{
    BEGIN();
    tr_insert(t, KEY(1), 7);
    sc_node inner = t->in.node;
    tr_insert(t, KEY(1, 2), 8);
    ck_assert_uint_eq(tr_evict_state(t, 1), 1);
    ck_assert(tr_info(t, inner).tombstone);
    sc_node order[2];
    ck_assert_uint_eq(sc_radix_state_order(t->radix, order, 2), 1);
    ck_assert_uint_eq(tr_evict_state(t, 1), 1);
    ck_assert_uint_eq(t->gone[0].snapshot, 7);
    ck_assert_uint_eq(t->gone[1].snapshot, 8);
    ck_assert_uint_eq(t->gone_count, 2);
    ck_assert_uint_eq(tr_stats(t).token_count, 2);
    END;
}
END_TEST

START_TEST(t7_6__locked_states_are_passed_over)
{
    BEGIN();
    tr_insert(t, KEY(1), 7);
    struct sc_radix_receipt receipt = tr_lock(t, t->in.node, LOCK_BOTH);
    tr_insert(t, KEY(1, 2), 8);
    ck_assert_uint_eq(tr_evict_state(t, 2), 1);
    ck_assert_uint_eq(t->gone[0].snapshot, 8);
    ck_assert_uint_eq(tr_match(t, KEY(1)).snapshot, 7);
    tr_unlock(t, receipt);
    END;
}
END_TEST

START_TEST(t7_8__parent_becomes_a_leaf)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 1);
    sc_node base = t->in.node;
    struct sc_radix_receipt receipt = tr_lock(t, base, LOCK_BOTH);
    tr_insert(t, KEY(1, 2, 3), 2);
    ck_assert_uint_eq(tr_evict_kv(t, 10, NULL), 1);
    check_evictable(t, 0, 0);
    tr_unlock(t, receipt);
    ck_assert_uint_eq(tr_info(t, base).child_count, 0);
    ck_assert_uint_eq(tr_evict_kv(t, 10, NULL), 2);
    END;
}
END_TEST

START_TEST(t7_9__chain_is_cleaned_up)
{
    for (int with_kv = 0; with_kv < 2; with_kv++) {
        OPEN(with_kv != 0);
        tr_insert(t, KEY(1), 1);
        tr_insert(t, KEY(1, 2), 2);
        tr_insert(t, KEY(1, 2, 3), 3);
        if (with_kv) {
            ck_assert_uint_eq(tr_evict_kv(t, 6, NULL), 3);
        } else { /* what no snapshot can be resumed from goes by itself */
            ck_assert_uint_eq(tr_evict_state(t, 2), 2);
            ck_assert_uint_eq(tr_stats(t).node_count, 3);
            ck_assert_uint_eq(tr_evict_state(t, 2), 1);
        }
        ck_assert_uint_eq(tr_stats(t).node_count, 0);
        ck_assert_uint_eq(tr_match(t, KEY(1)).kv_len, 0);
        END;
    }
}
END_TEST

START_TEST(t7_10__clean_up_stops_at_a_locked_parent)
{
    OPEN(false);
    tr_insert(t, KEY(1), 0);
    sc_node parent = t->in.node;
    struct sc_radix_receipt receipt = tr_lock(t, parent, LOCK_KV);
    tr_insert(t, KEY(1, 2), 2);
    ck_assert_uint_eq(tr_evict_state(t, 1), 1);
    ck_assert_uint_eq(tr_stats(t).node_count, 1);
    ck_assert_uint_eq(tr_info(t, parent).end, 1);
    tr_unlock(t, receipt);
    ck_assert_uint_eq(tr_evict_kv(t, 1, NULL), 1);
    END;
}
END_TEST

START_TEST(t7_11__old_goes_before_new)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 1);
    tr_insert(t, KEY(3, 4), 2);
    tr_use(t, KEY(1, 2));
    ck_assert_uint_eq(tr_evict_kv(t, 2, NULL), 2);
    ck_assert_uint_eq(tr_match(t, KEY(3, 4)).kv_len, 0);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2)).state_len, 2);
    END;
}
END_TEST

START_TEST(t7_12__independent_leaves)
{
    BEGIN();
    for (int32_t i = 0; i < 4; i++) tr_insert(t, KEY(10 * i + 1, 10 * i + 2, 10 * i + 3), 1);
    uint64_t got = tr_evict_kv(t, 6, NULL);
    ck_assert_uint_ge(got, 6);
    ck_assert_uint_le(tr_stats(t).kv_evictable_tokens, 6);
    ck_assert_uint_eq(tr_evict_kv(t, 100, NULL), 12 - got);
    check_evictable(t, 0, 0);
    END;
}
END_TEST

START_TEST(t7_14__evicted_equals_the_change)
{
    BEGIN();
    int32_t key[64];
    tr_fill(key, 64, 0);
    for (uint32_t i = 1; i <= 16; i++) {
        key[i * 3 - 1] = -1 - (int32_t)i;
        tr_insert(t, key, i * 4, i);
        key[i * 3 - 1] = (int32_t)i * 3 - 1;
    }
    for (uint64_t want = 1; tr_stats(t).token_count > 0; want++) {
        struct sc_radix_stats before = tr_stats(t);
        uint32_t snapshots;
        uint64_t got = tr_evict_kv(t, want, &snapshots);
        struct sc_radix_stats after = tr_stats(t);
        ck_assert_uint_eq(got, before.kv_evictable_tokens - after.kv_evictable_tokens);
        ck_assert_uint_eq(snapshots, before.state_evictable_count - after.state_evictable_count);
        ck_assert(got >= want || after.token_count == 0);
    }
    END;
}
END_TEST

START_TEST(t7_15__reinsert_after_total_eviction)
{
    BEGIN();
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(tr_insert(t, KEY(1, 2, 3), i + 1), 0);
        ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3)).snapshot, i + 1);
        ck_assert_uint_eq(tr_evict_kv(t, 100, NULL), 3);
    }
    END;
}
END_TEST

START_TEST(t7_16__evicting_one_component)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 7);
    sc_node node = t->in.node;
    ck_assert_int_eq(sc_radix_snapshot_drop(t->radix, node, &t->sink), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->gone[0].snapshot, 7);
    ck_assert_int_eq(t->gone[0].cause, SC_RADIX_CAUSE_SUPERSEDED);
    ck_assert(tr_info(t, node).tombstone);
    check_evictable(t, 2, 0);
    ck_assert_int_eq(sc_radix_snapshot_drop(t->radix, node, &t->sink), SC_ERR_NOT_FOUND);
    ck_assert_uint_eq(t->gone_count, 1);
    END;
}
END_TEST

START_TEST(t7_18__path_cap_frees_the_shallowest)
{
    uint32_t count = 9;
    for (uint32_t cap = 0; cap <= 3; cap++) {
        BEGIN(.path_snapshots_max = cap);
        tr_insert(t, KEY(1), 1);
        sc_node a = t->in.node;
        tr_insert(t, KEY(1, 2), 2);
        sc_node b = t->in.node;
        tr_insert(t, KEY(1, 2, 3), 3);
        sc_node c = t->in.node;
        if (cap == 1) { /* a forks and b is locked: nothing can go */
            tr_insert(t, KEY(1, 5), 0);
            struct sc_radix_receipt receipt = tr_lock(t, b, LOCK_STATE);
            ck_assert_int_eq(sc_radix_evict_excess(t->radix, c, &t->sink, &count), SC_OK);
            ck_assert_uint_eq(count, 0);
            tr_unlock(t, receipt);
        }
        ck_assert_int_eq(sc_radix_evict_excess(t->radix, c, &t->sink, &count), SC_OK);
        VERIFY(t);
        ck_assert_uint_eq(count, cap == 1 || cap == 2);
        ck_assert_uint_eq(tr_info(t, a).snapshot, cap == 2 ? 0 : 1);
        ck_assert_uint_eq(tr_info(t, b).snapshot, cap == 1 ? 0 : 2);
        ck_assert_uint_eq(tr_info(t, c).snapshot, 3);
        if (count > 0) ck_assert_int_eq(t->gone[0].cause, SC_RADIX_CAUSE_PATH_CAP);
        END;
    }
}
END_TEST

START_TEST(t7_19__state_lock_keeps_its_leaf)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 1);
    tr_insert(t, KEY(1, 2, 3), 2);
    struct sc_radix_receipt receipt = tr_lock(t, t->in.node, LOCK_STATE);
    check_evictable(t, 0, 1); /* so evictable is what an eviction can get */
    ck_assert_uint_eq(tr_evict_kv(t, 10, NULL), 0);
    ck_assert_uint_eq(tr_info(t, t->in.node).kv_locks, 0);
    tr_unlock(t, receipt);
    ck_assert_uint_eq(tr_evict_kv(t, 10, NULL), 3);
    END;
}
END_TEST

START_TEST(t7_20__tombstone_parent_survives_its_leaf)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3), 1);
    sc_node parent = t->in.node;
    tr_insert(t, KEY(1, 2, 3, 4, 5), 2);
    ck_assert_uint_eq(tr_evict_state(t, 1), 1);
    ck_assert_uint_eq(tr_evict_kv(t, 1, NULL), 2);
    ck_assert_uint_eq(tr_info(t, parent).child_count, 0);
    ck_assert_uint_eq(tr_info(t, parent).snapshot, 0);
    ck_assert_uint_eq(tr_stats(t).token_count, 3);
    END;
}
END_TEST

START_TEST(t8_1__branch_point_between_tombstones)
{
    BEGIN(.grid_tokens = 64);
    int32_t key[85];
    tr_fill(key, 85, 1);
    tr_insert(t, key, 65, 1);
    tr_insert(t, key, 75, 2);
    tr_insert(t, key, 85, 3);
    ck_assert_uint_eq(tr_evict_state(t, 2), 2);
    struct sc_radix_match m = tr_match(t, key, 75);
    ck_assert_uint_eq(m.branch_len, 64);
    ck_assert_uint_eq(m.state_len, 0);
    ck_assert_uint_eq(m.kv_len, 75);
    ck_assert_uint_eq(m.evicted_len, 75);
    END;
}
END_TEST

START_TEST(t8_2__branch_point_beyond_a_snapshot)
{
    BEGIN(.grid_tokens = 3);
    tr_insert(t, KEY(1, 2), 1);
    sc_node first = t->in.node;
    tr_insert(t, KEY(1, 2, 3, 4), 0);
    struct sc_radix_match m = tr_match(t, KEY(1, 2, 3, 4));
    ck_assert_uint_eq(m.state_node, first);
    ck_assert_uint_eq(m.branch_len, 3);
    ck_assert_uint_eq(m.kv_len, 4);
    END;
}
END_TEST

START_TEST(t8_4__no_branch_point)
{
    BEGIN(.grid_tokens = 8);
    tr_insert(t, KEY(1, 2, 3, 4), 0);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 3, 4)).branch_len, 0);
    int32_t key[8];
    tr_fill(key, 8, 50);
    tr_insert(t, key, 8, 1);
    ck_assert_uint_eq(tr_match(t, key, 8).branch_len, 0); /* the snapshot is at the end already */
    END;
}
END_TEST

START_TEST(t8_5__branch_point_without_any_snapshot)
{
    BEGIN(.grid_tokens = 3);
    tr_insert(t, KEY(1, 2, 3, 4), 0);
    struct sc_radix_match m = tr_match(t, KEY(1, 2, 3, 4));
    ck_assert_uint_eq(m.branch_len, 3);
    ck_assert_uint_eq(m.state_node, SC_NODE_NONE);
    END;
}
END_TEST

START_TEST(t13__all_locked_is_an_answer)
{
    BEGIN();
    struct sc_radix_receipt receipts[10];
    for (int32_t i = 0; i < 10; i++) {
        tr_insert(t, KEY(1, 10 + i), (uint32_t)i + 1);
        receipts[i] = tr_lock(t, t->in.node, LOCK_BOTH);
    }
    ck_assert_uint_eq(tr_evict_kv(t, UINT64_MAX, NULL), 0);
    ck_assert_uint_eq(tr_evict_state(t, UINT32_MAX), 0);
    for (int i = 0; i < 10; i++) tr_unlock(t, receipts[i]);
    ck_assert_uint_eq(tr_evict_kv(t, UINT64_MAX, NULL), 11);
    END;
}
END_TEST

START_TEST(t13__many_snapshots_on_one_path)
{
    BEGIN(.grid_tokens = 4);
    int32_t key[40];
    tr_fill(key, 40, 1);
    struct sc_radix_save saves[10];
    for (uint32_t i = 0; i < 10; i++) saves[i] = (struct sc_radix_save){4 * (i + 1), 100 + i};
    struct sc_radix_run run = {0, 3};
    ck_assert_int_eq(tr_insert_runs(t, key, 40, &run, 1, saves, 10), SC_OK);
    VERIFY(t);
    for (uint32_t n = 0; n <= 40; n++) {
        struct sc_radix_match m = tr_match(t, key, n);
        ck_assert_uint_eq(m.kv_len, n);
        ck_assert_uint_eq(m.state_len, n / 4 * 4);
        ck_assert_uint_eq(m.snapshot, n < 4 ? 0 : 99 + n / 4);
    }
    END;
}
END_TEST

START_TEST(t13__match_changes_nothing)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3, 4), 1);
    tr_insert(t, KEY(1, 2, 7, 8), 2);
    tr_insert(t, KEY(5), 3);
    char *before = tr_dump(t);
    struct sc_radix_stats stats = tr_stats(t);
    for (uint32_t i = 0; i < 1000; i++) {
        tr_match_max(t, KEY(1, 2, 3, 4), i % 5);
        tr_match(t, KEY(1, 2, 7, 9));
    }
    char *after = tr_dump(t);
    ck_assert_str_eq(before, after);
    ck_assert_uint_eq(tr_stats(t).node_count, stats.node_count);
    free(before);
    free(after);
    ck_assert_uint_eq(tr_evict_state(t, 1), 1); /* nor did the order change */
    ck_assert_uint_eq(t->gone[0].snapshot, 1);
    END;
}
END_TEST

#define ADD(name) tcase_add_test(tc, name)

Suite *radix_scenario_suite(void)
{
    Suite *s = suite_create("radix scenarios");
    TCase *tc = tcase_create("insert, match, split");
    tcase_set_timeout(tc, 60);
    ADD(t2_1__empty_tree); ADD(t2_2__insert_attaches_a_snapshot);
    ADD(t2_3__second_snapshot_stays_the_callers); ADD(t2_4__insert_refuses_snapshot_zero);
    ADD(t2_5__duplicates_get_canonical_ids); ADD(t2_6__split_leaves_the_snapshot_with_the_end);
    ADD(t2_7__evicting_a_state_leaves_a_tombstone); ADD(t2_8__tombstone_is_refilled);
    ADD(t2_9__evicted_states_break_the_hit); ADD(t2_10__pages_match_whole);
    ADD(t2_15__snapshot_only_counts_where_it_is);
    ADD(t2_16__dump_and_stats_name_what_is_there);
    ADD(t8_1__branch_point_between_tombstones); ADD(t8_2__branch_point_beyond_a_snapshot);
    ADD(t8_4__no_branch_point); ADD(t8_5__branch_point_without_any_snapshot);
    suite_add_tcase(s, tc);
    tc = tcase_create("locks and order");
    tcase_set_timeout(tc, 60);
    ADD(t5_1__evictable_follows_locks); ADD(t5_2__locked_state_is_not_evicted);
    ADD(t5_3__locks_count); ADD(t5_4__state_lock_of_a_tombstone_takes_nothing);
    ADD(t5_6__kv_lock_without_state_lock); ADD(t5_8__locking_the_root_takes_nothing);
    ADD(t6_1__used_snapshot_survives); ADD(t6_2__only_the_used_snapshot_moves);
    ADD(t6_3__insert_does_not_reorder); ADD(t6_5__insert_never_evicts);
    suite_add_tcase(s, tc);
    tc = tcase_create("eviction");
    tcase_set_timeout(tc, 60);
    ADD(t7_1__kv_goes_from_leaves_only); ADD(t7_2__kv_eviction_cascades_to_the_snapshot);
    ADD(t7_3__evicting_all_leaves_nothing); ADD(t7_4__state_eviction_spares_kv);
    ADD(t7_5__states_go_oldest_first); ADD(t7_6__locked_states_are_passed_over);
    ADD(t7_8__parent_becomes_a_leaf); ADD(t7_9__chain_is_cleaned_up);
    ADD(t7_10__clean_up_stops_at_a_locked_parent); ADD(t7_11__old_goes_before_new);
    ADD(t7_12__independent_leaves); ADD(t7_14__evicted_equals_the_change);
    ADD(t7_15__reinsert_after_total_eviction); ADD(t7_16__evicting_one_component);
    ADD(t7_18__path_cap_frees_the_shallowest); ADD(t7_19__state_lock_keeps_its_leaf);
    ADD(t7_20__tombstone_parent_survives_its_leaf); ADD(t13__all_locked_is_an_answer);
    ADD(t13__many_snapshots_on_one_path); ADD(t13__match_changes_nothing);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    SRunner *runner = srunner_create(radix_scenario_suite());
    srunner_add_suite(runner, radix_insert_suite());
    srunner_add_suite(runner, radix_evict_suite());
    srunner_add_suite(runner, radix_args_suite());
    srunner_add_suite(runner, radix_marks_suite());
    srunner_add_suite(runner, radix_tails_suite());
    srunner_add_suite(runner, radix_fuzz_suite());
    srunner_add_suite(runner, radix_shape_suite());
    srunner_add_suite(runner, radix_storage_suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
