/* SPDX-License-Identifier: Apache-2.0 */
/* Locks, receipts and orders beyond the peers' scenarios; faults that verify must find. */
#include "radix_internal.h"
#include "test_radix.h"

START_TEST(lock__shared_path_counts_once_a_branch)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3), 1);
    sc_node a = t->in.node;
    tr_insert(t, KEY(1, 2, 4), 2);
    sc_node b = t->in.node;
    struct sc_radix_receipt ra = tr_lock(t, a, LOCK_BOTH);
    ck_assert_uint_eq(tr_stats(t).kv_locked_tokens, 3);
    struct sc_radix_receipt rb = tr_lock(t, b, LOCK_BOTH);
    ck_assert_uint_eq(tr_stats(t).kv_locked_tokens, 4);
    tr_unlock(t, ra);
    ck_assert_uint_eq(tr_stats(t).kv_locked_tokens, 3); /* the other user's path is untouched */
    ck_assert_uint_eq(tr_evict_kv(t, 10, NULL), 1);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2, 4)).state_len, 3);
    tr_unlock(t, rb);
    ck_assert_uint_eq(tr_evict_kv(t, 10, NULL), 3);
    END;
}
END_TEST

START_TEST(lock__unlock_twice_changes_nothing)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3), 1);
    struct sc_radix_receipt first = tr_lock(t, t->in.node, LOCK_BOTH);
    struct sc_radix_receipt second = tr_lock(t, t->in.node, LOCK_BOTH);
    tr_unlock(t, first);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(sc_radix_unlock(t->radix, first), SC_ERR_STALE);
        VERIFY(t);
        ck_assert_uint_eq(tr_stats(t).kv_locked_tokens, 3);
        ck_assert_uint_eq(tr_info(t, t->in.node).state_locks, 1);
    }
    /* Also when the entry has been given out again. */
    struct sc_radix_receipt third = tr_lock(t, t->in.node, LOCK_KV);
    ck_assert_uint_eq(third.index, first.index);
    ck_assert_int_eq(sc_radix_unlock(t->radix, first), SC_ERR_STALE);
    tr_unlock(t, second);
    tr_unlock(t, third);
    ck_assert_uint_eq(tr_stats(t).receipt_count, 0);
    END;
}
END_TEST

/* A public tree locked more than was matched and unlocked another node after a split. */
START_TEST(lock__survives_splits_of_its_path)
{
    BEGIN();
    int32_t key[100];
    tr_fill(key, 100, 0);
    tr_insert(t, key, 100, 1);
    struct sc_radix_match m = tr_match(t, key, 60);
    struct sc_radix_receipt receipt = tr_lock(t, m.node, LOCK_BOTH);
    for (uint32_t at = 10; at < 100; at += 10) {
        int32_t kept = key[at];
        key[at] = -1;
        tr_insert(t, key, at + 1, at);
        key[at] = kept;
    }
    ck_assert_uint_eq(tr_stats(t).kv_locked_tokens, 100);
    ck_assert_uint_eq(tr_evict_kv(t, 1000, NULL), 9);
    tr_unlock(t, receipt);
    ck_assert_uint_eq(tr_stats(t).kv_locked_tokens, 0);
    ck_assert_uint_eq(tr_evict_kv(t, 1000, NULL), 100);
    END;
}
END_TEST

START_TEST(lock__does_not_count_as_use)
{
    BEGIN();
    tr_insert(t, KEY(1), 1);
    sc_node first = t->in.node;
    tr_insert(t, KEY(2), 2);
    tr_unlock(t, tr_lock(t, first, LOCK_BOTH));
    ck_assert_uint_eq(tr_evict_state(t, 1), 1);
    ck_assert_uint_eq(t->gone[0].snapshot, 1);
    ck_assert_uint_eq(tr_evict_kv(t, 1, NULL), 1);
    ck_assert_int_eq(t->kv[0], 1000);
    END;
}
END_TEST

START_TEST(evict__the_parent_of_a_used_leaf_is_as_recent)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 0);
    tr_insert(t, KEY(1, 2, 3), 0); /* 1000.. : 1000 1001 1004 */
    tr_insert(t, KEY(7, 8), 0);    /* 1005 1006 */
    tr_use(t, KEY(1, 2, 3));
    tr_insert(t, KEY(9), 0);       /* 1007 */
    /* Order of leaves: 7 8, then 3. When 3 is dropped otherwise, 1 2 keeps the use of the path. */
    ck_assert_uint_eq(tr_evict_kv(t, 1, NULL), 2);
    ck_assert_int_eq(t->kv[0], 1005);
    ck_assert_uint_eq(tr_evict_kv(t, 1, NULL), 1);
    ck_assert_int_eq(t->kv[2], 1004);
    ck_assert_uint_eq(tr_evict_kv(t, 1, NULL), 2);
    ck_assert_int_eq(t->kv[3], 1000);
    ck_assert_uint_eq(tr_evict_kv(t, 1, NULL), 1);
    ck_assert_int_eq(t->kv[5], 1007);
    END;
}
END_TEST

/* The use of a path outlives the leaf at its end: what is left of the path is as recent. */
START_TEST(evict__a_removed_child_leaves_its_use_to_the_parent)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 0);
    tr_insert(t, KEY(7, 8), 0);
    struct sc_radix_receipt receipt = tr_lock(t, t->in.node, LOCK_KV);
    tr_insert(t, KEY(1, 2, 3), 0);
    ck_assert_uint_eq(tr_evict_kv(t, 1, NULL), 1); /* 3: all else is inner or locked */
    tr_unlock(t, receipt);
    ck_assert_uint_eq(tr_evict_kv(t, 1, NULL), 2);
    ck_assert_uint_eq(tr_match(t, KEY(7, 8)).kv_len, 0);
    ck_assert_uint_eq(tr_match(t, KEY(1, 2)).kv_len, 2);
    END;
}
END_TEST

/* A public tree evicted a just matched prefix first. */
START_TEST(evict__a_matched_prefix_outlives_older_keys)
{
    BEGIN();
    int32_t x[100];
    int32_t y[100];
    tr_fill(x, 100, 0);
    tr_fill(y, 100, 1000);
    tr_insert(t, x, 100, 0);
    tr_insert(t, y, 100, 0);
    tr_use(t, x, 60);
    tr_evict_kv(t, 40, NULL);
    ck_assert_uint_ge(tr_match(t, x, 100).kv_len, 60);
    ck_assert_uint_eq(tr_match(t, y, 100).kv_len, 0);
    END;
}
END_TEST

START_TEST(evict__at_least_n_and_at_most_a_node_more)
{
    BEGIN();
    for (uint32_t n = 1; n <= 40; n++) {
        for (int32_t i = 0; tr_stats(t).token_count < 200; i++) {
            int32_t key[7];
            tr_fill(key, 7, i * 100 + (int32_t)n * 100000);
            tr_insert(t, key, 7, 0);
        }
        uint64_t got = tr_evict_kv(t, n, NULL);
        ck_assert_uint_ge(got, n);
        ck_assert_uint_le(got, n + 6);
    }
    END;
}
END_TEST

START_TEST(evict__zero_is_nothing)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 1);
    ck_assert_uint_eq(tr_evict_kv(t, 0, NULL), 0);
    ck_assert_uint_eq(tr_evict_state(t, 0), 0);
    ck_assert_uint_eq(tr_stats(t).snapshot_count, 1);
    END;
}
END_TEST

START_TEST(evict__never_allocates)
{
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    BEGIN(.allocator = &fa.allocator, .path_snapshots_max = 1);
    int32_t key[3000];
    for (int32_t i = 0; i < 50; i++) {
        tr_fill(key, 3000, 0);
        key[i * 50] = -1;
        struct sc_radix_run run = {0, 0};
        struct sc_radix_save saves[] = {{(uint32_t)i * 50 + 1, 1}, {3000, 2}};
        ck_assert_int_eq(tr_insert_runs(t, key, 3000, &run, 1, saves, 2), SC_OK);
    }
    uint32_t count;
    uint64_t tokens;
    fail_alloc_arm(&fa, 0);
    ck_assert_int_eq(sc_radix_evict_excess(t->radix, t->in.node, &t->sink, &count), SC_OK);
    ck_assert_uint_eq(count, 1);
    ck_assert_int_eq(sc_radix_evict_state(t->radix, 20, &t->sink, &count), SC_OK);
    ck_assert_uint_eq(count, 20);
    while (tr_stats(t).token_count > 0) {
        ck_assert_int_eq(sc_radix_evict_kv(t->radix, 500, &t->sink, &tokens, &count), SC_OK);
    }
    ck_assert_uint_eq(fail_alloc_calls(&fa), 0);
    END;
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
}
END_TEST

START_TEST(drop__refuses_a_locked_snapshot)
{
    BEGIN();
    tr_insert(t, KEY(1, 2), 1);
    struct sc_radix_receipt receipt = tr_lock(t, t->in.node, LOCK_STATE);
    ck_assert_int_eq(sc_radix_snapshot_drop(t->radix, t->in.node, &t->sink), SC_ERR_BUSY);
    ck_assert_uint_eq(tr_info(t, t->in.node).snapshot, 1);
    tr_unlock(t, receipt);
    ck_assert_int_eq(sc_radix_snapshot_drop(t->radix, t->in.node, &t->sink), SC_OK);
    END;
}
END_TEST

/* --- verify --- */

struct fault { const char *what; int rule; };

/* Plants fault number `i` in a tree with two leaves, a lock and snapshots; names its rule. */
static struct fault plant(struct sc_radix *r, sc_node leaf, sc_node locked, int i)
{
    struct rx_node *node = rx_node(r, leaf);
    struct rx_use *use = rx_use(r, leaf);
    switch (i) {
    case 0: node->start++; return (struct fault){"start", 1};
    case 1: node->len++; return (struct fault){"length", 5};
    case 2: r->slot_used++; return (struct fault){"index count", 2};
    case 3: *(int32_t *)(uintptr_t)node->tokens ^= 1; return (struct fault){"first page", 2};
    case 4: rx_use(r, node->parent->id)->child_count++; return (struct fault){"child count", 3};
    case 5: use->prev_sibling = use->prev_sibling ? 0 : leaf; return (struct fault){"sibling", 3};
    case 6: use->space++; return (struct fault){"space", 4};
    case 7: r->store.chunks[node->chunk].refs[0]++; return (struct fault){"unit count", 5};
    case 8: rx_use(r, locked)->pin++; return (struct fault){"pin", 6};
    case 9: rx_use(r, locked)->kv_locks++; return (struct fault){"locks", 6};
    case 10: rx_order_remove(r, RX_KV, leaf); return (struct fault){"KV order", 7};
    case 11: rx_order_remove(r, RX_STATE, leaf); return (struct fault){"state order", 8};
    case 12: node->flags |= RX_TOMBSTONE; return (struct fault){"tombstone", 8};
    case 13: rx_use(r, leaf)->tick[RX_STATE] += 1; return (struct fault){"tick", 11};
    case 14: rx_use(r, leaf)->tick[RX_KV] = r->clock + 9; return (struct fault){"clock", 9};
    case 15: r->token_count++; return (struct fault){"tokens", 10};
    case 16: r->pinned_tokens++; return (struct fault){"pinned", 10};
    case 17: r->snapshot_count++; return (struct fault){"snapshots", 10};
    case 18: r->leaf_count--; return (struct fault){"leaves", 10};
    case 19: r->receipt_count++; return (struct fault){"receipts", 10};
    case 20: r->node_free_count++; return (struct fault){"free nodes", 4};
    case 21: r->store.chunks[1].free_units ^= 2; return (struct fault){"free units", 5};
    case 22: node->parent->head[1]++; return (struct fault){"head", 3};
    case 23: r->store.unit_free++; return (struct fault){"count of free units", 5};
    case 24: use->chunk_prev = leaf; return (struct fault){"ring of a chunk", 14};
    case 25: r->store.chunks[node->chunk].node = 0; return (struct fault){"youngest node", 14};
    case 26: r->blocks[0]->live--; return (struct fault){"live nodes of a block", 4};
    case 27: node->id++; return (struct fault){"a node's own id", 3};
    case 28: node->parent->flags ^= RX_MANY; return (struct fault){"many children", 3};
    case 29: node->parent = node; return (struct fault){"parent", 3};
    case 30: node->parent->child[1] = NULL; return (struct fault){"second child", 3};
    case 31: node->flags ^= RX_SAME; return (struct fault){"history of the parent", 15};
    case 32: use->history++; return (struct fault){"history", 15};
    case 33: { /* that nobody counts */
        uint32_t slot = 0;
        while (r->slots[slot].node != 0) slot++;
        r->slots[slot] = (struct rx_slot){slot, leaf};
        return (struct fault){"slot of nobody", 2};
    }
    case 34: r->receipt_free = 0; return (struct fault){"lost free receipts", 10};
    case 35: r->bytes++; return (struct fault){"bytes", 10};
    case 36: r->store.unused = 1; return (struct fault){"unused chunk that is used", 5};
    default: return (struct fault){NULL, 0};
    }
}

START_TEST(verify__finds_each_planted_fault)
{
    BEGIN();
    tr_insert(t, KEY(1, 2, 3), 1);
    sc_node locked = t->in.node;
    tr_insert(t, KEY(1, 2, 9), 2);
    sc_node leaf = t->in.node;
    tr_insert(t, KEY(5), 3);
    tr_lock(t, locked, LOCK_BOTH);
    struct fault fault = plant(t->radix, leaf, locked, _i);
    ck_assert_ptr_nonnull(fault.what);
    char text[32];
    (void)snprintf(text, sizeof text, "invariant %d,", fault.rule);
    ck_assert_msg(sc_radix_verify(t->radix) == SC_ERR_CORRUPT, "%s was not found", fault.what);
    ck_assert_msg(strncmp(sc_last_error()->text, text, strlen(text)) == 0, "%s: %s", fault.what,
        sc_last_error()->text);
    free(t->kv); /* the tree is broken: the process ends here */
}
END_TEST

/* Plants fault number `i` in a tree of pages of four, where `marked` has two marks in its first
 * page and `tail` hangs below it beside two other tails. */
static struct fault plant_cells(struct sc_radix *r, sc_node marked, sc_node tail, int i)
{
    struct rx_node *node = rx_node(r, marked);
    struct rx_cell *mark = &r->cells[rx_cells(node)];
    struct rx_cell *lengths = &r->cells[rx_tail_cells(r, node)];
    switch (i) {
    case 0: mark->mark.id[3] ^= 1; return (struct fault){"mark", 2};
    case 1: node->flags ^= RX_MARKED; return (struct fault){"marked", 2};
    case 2: node->flags ^= RX_TAILED; return (struct fault){"tailed", 13};
    case 3: r->mark_count++; return (struct fault){"marks", 10};
    case 4: r->tail_count++; return (struct fault){"tails", 10};
    case 5: lengths->tails++; return (struct fault){"tails of a length", 13};
    case 6: lengths->mark.at++; return (struct fault){"length", 13};
    case 7: r->cell_free_count++; return (struct fault){"free cells", 12};
    case 8: lengths->next = 0; return (struct fault){"lost cell", 13};
    case 9: rx_node(r, tail)->snapshot = 0; return (struct fault){"snapshot", 13};
    case 10: rx_node(r, tail)->flags ^= RX_TAIL; return (struct fault){"tail", 13};
    case 11: rx_node(r, tail)->flags |= RX_ROOT; return (struct fault){"root", 3};
    case 12:
        r->cell_free = r->cells[r->cell_free].next;
        r->cell_free_count--;
        return (struct fault){"lost free cell", 12};
    case 13: rx_order_remove(r, RX_STATE, tail); return (struct fault){"state order", 8};
    default: return (struct fault){NULL, 0};
    }
}

/* Marks out of order, out of their page: the index must agree, so that (12) alone is broken. */
static struct fault plant_marks(struct sc_radix *r, sc_node marked, int i)
{
    struct rx_node *node = rx_node(r, marked);
    struct rx_cell *first = &r->cells[rx_cells(node)];
    const struct rx_node *parent = node->parent;
    SC_ASSERT(rx_use(r, marked)->prev_sibling == 0 && rx_use(r, marked)->next_sibling == 0);
    uint32_t slot = 0;
    while (r->slots[slot].node != marked) slot++;
    r->slots[slot] = (struct rx_slot){0, 0}; /* the only child, alone in its neighbourhood */
    r->slot_used--;
    sc_mark kept = first->mark;
    if (i == 14) {
        first->mark = r->cells[first->next].mark;
        r->cells[first->next].mark = kept;
    } else {
        r->cells[first->next].mark.at = rx_end(node);
    }
    rx_index_add(r, marked);
    SC_ASSERT(parent == node->parent);
    return (struct fault){i == 14 ? "order of marks" : "page of a mark", 12};
}

START_TEST(verify__finds_each_fault_in_marks_and_tails)
{
    BEGIN(.page_tokens = 4);
    int32_t tokens[12];
    tr_fill(tokens, 12, 1);
    const sc_mark marks[] = {{5, {1}}, {7, {2}}, {9, {3}}};
    tr_put(t, (struct sc_radix_key){tokens, 9, marks, 2}, 1);
    tr_put(t, (struct sc_radix_key){tokens, 10, marks, 2}, 2);
    tr_put(t, (struct sc_radix_key){tokens, 10, marks, 3}, 3);
    sc_node tail = t->in.node;
    sc_node marked = tr_info(t, tail).parent;
    ck_assert_uint_eq(tr_info(t, marked).mark_count, 2);
    struct fault fault = _i < 14 ? plant_cells(t->radix, marked, tail, _i) :
        plant_marks(t->radix, marked, _i);
    ck_assert_ptr_nonnull(fault.what);
    char text[32];
    (void)snprintf(text, sizeof text, "invariant %d,", fault.rule);
    ck_assert_msg(sc_radix_verify(t->radix) == SC_ERR_CORRUPT, "%s was not found", fault.what);
    ck_assert_msg(strncmp(sc_last_error()->text, text, strlen(text)) == 0, "%s: %s", fault.what,
        sc_last_error()->text);
    free(t->kv); /* the tree is broken: the process ends here */
}
END_TEST

#define ADD(name) tcase_add_test(tc, name)

Suite *radix_evict_suite(void)
{
    Suite *s = suite_create("radix locks and eviction");
    TCase *tc = tcase_create("locks and eviction");
    tcase_set_timeout(tc, 120);
    ADD(lock__shared_path_counts_once_a_branch); ADD(lock__unlock_twice_changes_nothing);
    ADD(lock__survives_splits_of_its_path); ADD(lock__does_not_count_as_use);
    ADD(evict__the_parent_of_a_used_leaf_is_as_recent);
    ADD(evict__a_removed_child_leaves_its_use_to_the_parent);
    ADD(evict__a_matched_prefix_outlives_older_keys);
    ADD(evict__at_least_n_and_at_most_a_node_more); ADD(evict__zero_is_nothing);
    ADD(evict__never_allocates); ADD(drop__refuses_a_locked_snapshot);
    suite_add_tcase(s, tc);
    tc = tcase_create("verify");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, verify__finds_each_planted_fault, 0, 37);
    tcase_add_loop_test(tc, verify__finds_each_fault_in_marks_and_tails, 0, 16);
    suite_add_tcase(s, tc);
    return s;
}
