/* SPDX-License-Identifier: Apache-2.0 */
/* Marks: what keys with equal tokens share, and that a hash alone never decides. */
#include "radix_internal.h"
#include "test_radix.h"

enum { P = 4, N = 16 }; /* page, tokens of the usual key */

static const int32_t tokens16[N] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

/* The first `count` of the usual tokens, with marks. */
#define MARKED(count, ...)                                                                         \
    (struct sc_radix_key)                                                                          \
    {                                                                                              \
        tokens16, (count), (const sc_mark[]){__VA_ARGS__},                                         \
            (uint32_t)(sizeof((const sc_mark[]){__VA_ARGS__}) / sizeof(sc_mark))                   \
    }
#define PLAIN(count) ((struct sc_radix_key){tokens16, (count), NULL, 0})

START_TEST(marks__keys_share_the_pages_before_the_first_difference)
{
    BEGIN(.page_tokens = P);
    ck_assert_uint_eq(tr_put(t, PLAIN(N), 1), 0);
    ck_assert_uint_eq(tr_put(t, MARKED(N, {6, {1}}), 2), 4);
    ck_assert_uint_eq(tr_put(t, MARKED(N, {6, {2}}), 3), 4);
    ck_assert_uint_eq(tr_put(t, MARKED(N, {6, {1}}, {12, {9}}), 4), 12);
    ck_assert_uint_eq(tr_put(t, MARKED(N, {6, {1}}, {15, {9}}), 5), 12);
    ck_assert_uint_eq(tr_stats(t).token_count, 16 + 12 + 12 + 4 + 4);
    ck_assert_uint_eq(tr_find(t, PLAIN(N)).snapshot, 1);
    ck_assert_uint_eq(tr_find(t, MARKED(N, {6, {1}})).snapshot, 2);
    ck_assert_uint_eq(tr_find(t, MARKED(N, {6, {2}})).snapshot, 3);
    ck_assert_uint_eq(tr_find(t, MARKED(N, {6, {1}}, {12, {9}})).snapshot, 4);
    ck_assert_uint_eq(tr_find(t, MARKED(N, {6, {1}}, {15, {9}})).snapshot, 5);
    struct sc_radix_match m = tr_find(t, MARKED(N, {6, {3}}));
    ck_assert(m.kv_len == 4 && m.state_len == 0);
    m = tr_find(t, MARKED(N, {6, {1}}, {11, {9}})); /* the page of 11 has no mark in any key */
    ck_assert(m.kv_len == 8 && m.state_len == 0);
    END;
}
END_TEST

START_TEST(marks__all_of_the_id_counts)
{
    BEGIN(.page_tokens = P);
    sc_mark mark = {0, {0}};
    for (uint32_t byte = 0; byte < 16; byte++) {
        memset(mark.id, 0, sizeof mark.id);
        mark.id[byte] = 0x80;
        struct sc_radix_key key = {tokens16, 8, &mark, 1};
        ck_assert_uint_eq(tr_find(t, key).kv_len, 0);
        ck_assert_uint_eq(tr_put(t, key, byte + 1), 0);
    }
    for (uint32_t byte = 0; byte < 16; byte++) {
        memset(mark.id, 0, sizeof mark.id);
        mark.id[byte] = 0x80;
        ck_assert_uint_eq(tr_find(t, (struct sc_radix_key){tokens16, 8, &mark, 1}).snapshot,
            byte + 1);
    }
    END;
}
END_TEST

/* A mark of zeros is another thing than no mark. */
START_TEST(marks__id_zero_is_an_id)
{
    BEGIN(.page_tokens = P);
    tr_put(t, MARKED(8, {0, {0}}), 1);
    ck_assert_uint_eq(tr_find(t, PLAIN(8)).kv_len, 0);
    ck_assert_uint_eq(tr_put(t, PLAIN(8), 2), 0);
    ck_assert_uint_eq(tr_find(t, MARKED(8, {0, {0}})).snapshot, 1);
    END;
}
END_TEST

START_TEST(marks__the_position_counts)
{
    BEGIN(.page_tokens = P);
    for (uint32_t at = 4; at < 8; at++) {
        ck_assert_uint_eq(tr_put(t, MARKED(8, {at, {1}}), at), at == 4 ? 0 : 4);
    }
    for (uint32_t at = 4; at < 8; at++) {
        ck_assert_uint_eq(tr_find(t, MARKED(8, {at, {1}})).snapshot, at);
    }
    /* One mark more or less in the page is a difference too. */
    ck_assert_uint_eq(tr_find(t, MARKED(8, {4, {1}}, {5, {1}})).kv_len, 4);
    ck_assert_uint_eq(tr_put(t, MARKED(8, {4, {1}}, {5, {1}}), 20), 4);
    ck_assert_uint_eq(tr_find(t, MARKED(8, {4, {1}})).snapshot, 4);
    ck_assert_uint_eq(tr_find(t, MARKED(8, {5, {1}})).snapshot, 5);
    ck_assert_uint_eq(tr_find(t, MARKED(8, {4, {1}}, {5, {1}})).snapshot, 20);
    END;
}
END_TEST

/* A tenant's salt at 0, or after a prompt common to all. */
START_TEST(marks__tenants_share_only_the_common_prompt)
{
    BEGIN(.page_tokens = P);
    tr_put(t, MARKED(N, {0, {1}}), 1);
    ck_assert_uint_eq(tr_find(t, MARKED(N, {0, {2}})).kv_len, 0);
    ck_assert_uint_eq(tr_find(t, PLAIN(N)).kv_len, 0);
    struct sc_radix_run run = {0, 0};
    struct sc_radix_save saves[] = {{8, 2}, {N, 3}};
    struct sc_radix_key a = MARKED(N, {8, {1}});
    ck_assert_int_eq(tr_insert_key(t, &a, &run, 1, saves, 2), SC_OK);
    VERIFY(t);
    /* The state after the common prompt is everyone's: a mark at 8 says nothing about it. */
    struct sc_radix_match m = tr_find(t, MARKED(N, {8, {2}}));
    ck_assert(m.kv_len == 8 && m.state_len == 8 && m.snapshot == 2);
    m = tr_find(t, PLAIN(N));
    ck_assert(m.kv_len == 8 && m.snapshot == 2);
    ck_assert_uint_eq(tr_find(t, a).snapshot, 3);
    END;
}
END_TEST

START_TEST(marks__beyond_what_is_asked_do_not_matter)
{
    BEGIN(.page_tokens = P);
    tr_put(t, PLAIN(8), 1);
    ck_assert_uint_eq(tr_find_max(t, MARKED(N, {8, {1}}), 8).snapshot, 1);
    ck_assert_uint_eq(tr_find_max(t, MARKED(N, {9, {1}}, {900, {2}}), 11).snapshot, 1);
    ck_assert_uint_eq(tr_find(t, MARKED(8, {8, {1}}, {UINT32_MAX, {2}})).snapshot, 1);
    ck_assert_uint_eq(tr_find_max(t, MARKED(N, {7, {1}}), 8).kv_len, 4);
    END;
}
END_TEST

START_TEST(marks__a_page_with_marks_starts_a_node)
{
    BEGIN(.page_tokens = P);
    struct sc_radix_key key = MARKED(N, {5, {1}}, {7, {2}}, {14, {3}});
    tr_put(t, key, 1);
    struct sc_radix_node_info info = tr_info(t, t->in.node);
    ck_assert(info.start == 12 && info.end == 16 && info.mark_count == 1);
    info = tr_info(t, info.parent);
    ck_assert(info.start == 4 && info.end == 12 && info.mark_count == 2);
    sc_node middle = tr_info(t, t->in.node).parent;
    info = tr_info(t, info.parent);
    ck_assert(info.start == 0 && info.end == 4 && info.mark_count == 0);
    ck_assert_uint_eq(tr_stats(t).mark_count, 3);
    sc_mark marks[2];
    uint32_t count;
    ck_assert_int_eq(sc_radix_marks_get(t->radix, middle, marks, 2, &count), SC_OK);
    ck_assert_uint_eq(count, 2);
    ck_assert_mem_eq(marks, key.marks, sizeof marks);
    char *text = tr_dump(t);
    ck_assert_msg(strstr(text, "marks 5:01000000000000000000000000000000 7:02"), "%s", text);
    free(text);
    END;
}
END_TEST

START_TEST(marks__stay_with_the_upper_half_of_a_split)
{
    BEGIN(.page_tokens = P);
    tr_put(t, MARKED(N, {5, {1}}, {6, {2}}), 1);
    sc_node lower = t->in.node;
    /* A save at 8 cuts right behind the marks. */
    ck_assert_uint_eq(tr_put(t, MARKED(8, {5, {1}}, {6, {2}}), 2), 8);
    ck_assert_uint_eq(tr_info(t, lower).start, 8);
    ck_assert_uint_eq(tr_info(t, lower).mark_count, 0);
    ck_assert_uint_eq(tr_info(t, t->in.node).mark_count, 2);
    ck_assert_uint_eq(tr_find(t, MARKED(N, {5, {1}}, {6, {2}})).snapshot, 1);
    ck_assert_uint_eq(tr_find(t, MARKED(N, {5, {1}}, {6, {2}}, {9, {3}})).snapshot, 2);
    ck_assert_uint_eq(tr_stats(t).mark_count, 2);
    END;
}
END_TEST

START_TEST(marks__a_key_leaves_a_node_before_its_mark)
{
    BEGIN(.page_tokens = P);
    tr_put(t, PLAIN(N), 1);
    struct sc_radix_match m = tr_find(t, MARKED(N, {10, {1}}));
    ck_assert(m.kv_len == 8 && m.state_len == 0);
    tr_put(t, MARKED(N, {10, {1}}), 2);
    ck_assert_uint_eq(t->in.prefix_len, 8);
    ck_assert_int_eq(t->canonical[1], 1001);
    ck_assert_int_eq(t->canonical[2], 1006); /* its own from the marked page on */
    ck_assert_uint_eq(tr_find(t, PLAIN(N)).snapshot, 1);
    END;
}
END_TEST

START_TEST(marks__histories_of_differently_marked_keys_do_not_meet)
{
    BEGIN(.page_tokens = P);
    struct sc_radix_run a = {0, 0xa};
    struct sc_radix_run b = {0, 0xb};
    struct sc_radix_save save = {8, 1};
    struct sc_radix_key key = MARKED(8, {0, {1}});
    ck_assert_int_eq(tr_insert_key(t, &key, &a, 1, &save, 1), SC_OK);
    struct sc_radix_key other = MARKED(8, {0, {2}});
    save.snapshot = 2;
    ck_assert_int_eq(tr_insert_key(t, &other, &b, 1, &save, 1), SC_OK);
    ck_assert_uint_eq(t->in.conflict_len, 8);
    ck_assert_uint_eq(t->gone_count, 0);
    ck_assert_int_eq(tr_insert_key(t, &key, &b, 1, NULL, 0), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->in.conflict_len, 0);
    save.snapshot = 3;
    ck_assert_int_eq(tr_insert_key(t, &key, &b, 1, &save, 1), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->in.conflict_len, 8);
    ck_assert(t->gone_count == 1 && t->gone[0].snapshot == 1);
    END;
}
END_TEST

START_TEST(marks__go_with_their_nodes)
{
    BEGIN(.page_tokens = P);
    uint64_t bytes = 0;
    for (uint32_t round = 0; round < 50; round++) {
        for (uint8_t id = 1; id <= 40; id++) {
            tr_put(t, MARKED(N, {1, {id}}, {3, {id}}, {9, {id}}), id);
        }
        ck_assert_uint_eq(tr_stats(t).mark_count, 120);
        if (round == 0) bytes = tr_stats(t).bytes;
        ck_assert_uint_eq(tr_stats(t).bytes, bytes); /* cells are used again */
        if (round % 2) {
            tr_evict_kv(t, UINT64_MAX, NULL);
        } else {
            ck_assert_int_eq(sc_radix_space_remove(t->radix, t->space, &t->sink), SC_OK);
            ck_assert_int_eq(sc_radix_space_add(t->radix, &t->space), SC_OK);
        }
        ck_assert_uint_eq(tr_stats(t).mark_count, 0);
        VERIFY(t);
    }
    END;
}
END_TEST

/* A branch that is replaced (it holds no snapshot) takes its marks with it. */
START_TEST(marks__of_a_replaced_branch_go)
{
    BEGIN(.page_tokens = P);
    struct sc_radix_run runs[] = {{0, 0xa}, {8, 0xb}};
    struct sc_radix_key key = MARKED(N, {0, {1}}, {13, {2}});
    ck_assert_int_eq(tr_insert_key(t, &key, runs, 1, NULL, 0), SC_OK);
    struct sc_radix_key short_key = MARKED(12, {0, {1}});
    ck_assert_int_eq(tr_insert_key(t, &short_key, runs, 2, NULL, 0), SC_OK);
    VERIFY(t);
    ck_assert_uint_eq(t->in.prefix_len, 8);
    ck_assert_uint_eq(t->kv_count, 2);
    ck_assert_uint_eq(tr_stats(t).mark_count, 1);
    END;
}
END_TEST

static uint32_t equal_hashes(const struct sc_radix *r)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i <= r->slot_mask; i++) {
        if (r->slots[i].node == 0) continue;
        for (uint32_t j = (i + 1) & r->slot_mask; r->slots[j].node != 0;
             j = (j + 1) & r->slot_mask) {
            count += r->slots[i].hash == r->slots[j].hash;
        }
    }
    return count;
}

/* So many children of one node that some have the same hash: marks decide (contract 16). */
START_TEST(marks__decide_where_hashes_are_equal)
{
    enum { MANY = 150000 };
    OPEN(false);
    struct sc_radix_run run = {0, 0};
    int32_t token = 5;
    for (uint32_t i = 1; i <= MANY; i++) {
        sc_mark mark = {0, {(uint8_t)i, (uint8_t)(i >> 8), (uint8_t)(i >> 16)}};
        struct sc_radix_key key = {&token, 1, &mark, 1};
        struct sc_radix_save save = {1, i};
        ck_assert_int_eq(tr_insert_key(t, &key, &run, 1, &save, 1), SC_OK);
        ck_assert_uint_eq(t->in.prefix_len, 0);
    }
    ck_assert_uint_gt(equal_hashes(t->radix), 0);
    for (uint32_t i = 1; i <= MANY; i++) {
        sc_mark mark = {0, {(uint8_t)i, (uint8_t)(i >> 8), (uint8_t)(i >> 16)}};
        ck_assert_uint_eq(tr_find(t, (struct sc_radix_key){&token, 1, &mark, 1}).snapshot, i);
        mark.id[15] = 1;
        ck_assert_uint_eq(tr_find(t, (struct sc_radix_key){&token, 1, &mark, 1}).snapshot, 0);
    }
    END;
}
END_TEST

/* Saves, runs, pieces of storage and marks all end nodes; long keys with many of each. */
START_TEST(marks__in_long_keys)
{
    enum { LONG = 40000, EVERY = 97 };
    static int32_t key_tokens[LONG];
    static sc_mark marks[LONG / EVERY + 1];
    const uint32_t pages[] = {1, 3, 16, 300};
    for (unsigned p = 0; p < 4; p++) {
        BEGIN(.page_tokens = pages[p]);
        uint32_t n = LONG / pages[p] * pages[p];
        tr_fill(key_tokens, n, 7);
        uint32_t mark_count = 0;
        for (uint32_t at = 50; at < n; at += EVERY) {
            marks[mark_count++] = (sc_mark){at, {(uint8_t)at, (uint8_t)(at >> 8)}};
        }
        struct sc_radix_key key = {key_tokens, n, marks, mark_count};
        tr_put(t, key, 1);
        ck_assert_uint_eq(tr_find(t, key).snapshot, 1);
        ck_assert_uint_eq(tr_find(t, (struct sc_radix_key){key_tokens, n, NULL, 0}).kv_len,
            50 / pages[p] * pages[p]);
        for (uint32_t i = 0; i < mark_count; i += 50) {
            marks[i].id[15] ^= 1;
            ck_assert_uint_eq(tr_find(t, key).kv_len, marks[i].at / pages[p] * pages[p]);
            marks[i].id[15] ^= 1;
            key.mark_count = i; /* as if the rest were not there */
            ck_assert_uint_eq(tr_find(t, key).kv_len, marks[i].at / pages[p] * pages[p]);
            key.mark_count = mark_count;
        }
        ck_assert_uint_eq(tr_stats(t).mark_count, mark_count);
        END;
    }
}
END_TEST

START_TEST(marks__bad_ones_are_refused)
{
    BEGIN(.page_tokens = P);
    struct sc_radix_run run = {0, 0};
    struct sc_radix_match m;
    const struct sc_radix_key bad[] = {
        {tokens16, 8, NULL, 1},
        MARKED(8, {3, {1}}, {2, {1}}),
        MARKED(8, {3, {1}}, {3, {2}}),
        MARKED(8, {1, {1}}, {5, {1}}, {4, {1}}),
        MARKED(8, {8, {1}}), /* from here on only wrong in an insert */
        MARKED(8, {0, {1}}, {UINT32_MAX, {1}}),
        {tokens16, 0, (const sc_mark[]){{0, {1}}}, 1},
    };
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_int_eq(tr_insert_key(t, &bad[i], &run, 1, NULL, 0), SC_ERR_INVALID);
        VERIFY(t);
        ck_assert_int_eq(sc_radix_match(t->radix, t->space, &bad[i], 8, &m),
            i < 4 ? SC_ERR_INVALID : SC_OK);
    }
    ck_assert_uint_eq(tr_stats(t).node_count, 0);
    uint32_t count = 7;
    sc_mark mark;
    tr_put(t, MARKED(8, {3, {1}}), 0);
    sc_node node = t->in.node;
    ck_assert_int_eq(sc_radix_marks_get(NULL, node, &mark, 1, &count), SC_ERR_INVALID);
    ck_assert_int_eq(sc_radix_marks_get(t->radix, node, &mark, 1, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_radix_marks_get(t->radix, node, NULL, 1, &count), SC_ERR_INVALID);
    ck_assert_int_eq(sc_radix_marks_get(t->radix, node + 9, &mark, 1, &count), SC_ERR_STALE);
    ck_assert_int_eq(sc_radix_marks_get(t->radix, 0, &mark, 1, &count), SC_ERR_STALE);
    ck_assert_uint_eq(count, 7);
    ck_assert_int_eq(sc_radix_marks_get(t->radix, node, NULL, 0, &count), SC_ERR_LIMIT);
    ck_assert_uint_eq(count, 1);
    END;
}
END_TEST

#define ADD(name) tcase_add_test(tc, name)

Suite *radix_marks_suite(void)
{
    Suite *s = suite_create("radix marks");
    TCase *tc = tcase_create("marks");
    tcase_set_timeout(tc, 240);
    ADD(marks__keys_share_the_pages_before_the_first_difference); ADD(marks__all_of_the_id_counts);
    ADD(marks__id_zero_is_an_id); ADD(marks__the_position_counts);
    ADD(marks__tenants_share_only_the_common_prompt);
    ADD(marks__beyond_what_is_asked_do_not_matter); ADD(marks__a_page_with_marks_starts_a_node);
    ADD(marks__stay_with_the_upper_half_of_a_split);
    ADD(marks__a_key_leaves_a_node_before_its_mark);
    ADD(marks__histories_of_differently_marked_keys_do_not_meet);
    ADD(marks__go_with_their_nodes); ADD(marks__of_a_replaced_branch_go);
    ADD(marks__decide_where_hashes_are_equal); ADD(marks__in_long_keys);
    ADD(marks__bad_ones_are_refused);
    suite_add_tcase(s, tc);
    return s;
}
