/* SPDX-License-Identifier: Apache-2.0 */
/* Heaps by subsystem: counting, the arena's own figures against ours, failing allocators, and the
 * hash-table wrapper under failing growth. Built with and without jemalloc in the process. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/heap.h"
#include "base/prng.h"
#include "support/fail_alloc.h"

#ifndef EXPECT_ARENA
#define EXPECT_ARENA 0
#endif

static struct sc_heap *map_heap;
#define SC_MAP_HEAP map_heap
#include "base/map.h"

static sc_heap_stats stats_of(enum sc_subsystem subsystem)
{
    sc_heap_stats stats;
    ck_assert_int_eq(sc_heap_stats_get(subsystem, &stats), SC_OK);
    return stats;
}

START_TEST(heap__bad_arguments)
{
    struct fail_alloc fa;
    struct sc_heap heap;
    sc_heap_stats stats = {.live_bytes = 77};
    fail_alloc_init(&fa);
    sc_allocator half = fa.allocator;
    ck_assert_int_eq(sc_heap_init(NULL, SC_SUBSYSTEM_POOL, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_heap_init(&heap, SC_SUBSYSTEM_COUNT, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_heap_init(&heap, (enum sc_subsystem)-1, NULL), SC_ERR_INVALID);
    half.free = NULL;
    ck_assert_int_eq(sc_heap_init(&heap, SC_SUBSYSTEM_POOL, &half), SC_ERR_INVALID);
    half = fa.allocator;
    half.alloc = NULL;
    ck_assert_int_eq(sc_heap_init(&heap, SC_SUBSYSTEM_POOL, &half), SC_ERR_INVALID);
    ck_assert_int_eq(sc_heap_stats_get(SC_SUBSYSTEM_POOL, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_heap_stats_get(SC_SUBSYSTEM_COUNT, &stats), SC_ERR_INVALID);
    ck_assert_int_eq(sc_heap_stats_get((enum sc_subsystem)-1, &stats), SC_ERR_INVALID);
    ck_assert_uint_eq(stats.live_bytes, 77);
}
END_TEST

START_TEST(heap__overflow_is_out_of_memory)
{
    struct sc_heap heap;
    ck_assert_int_eq(sc_heap_init(&heap, SC_SUBSYSTEM_RADIX, NULL), SC_OK);
    ck_assert_ptr_null(sc_heap_calloc(&heap, SIZE_MAX / 2, 3));
    ck_assert_ptr_null(sc_heap_alloc(&heap, SIZE_MAX, 16));
    ck_assert_ptr_null(sc_heap_alloc(&heap, SIZE_MAX / 2, 4096));
    char *p = sc_heap_alloc(&heap, 10, 1);
    ck_assert_ptr_nonnull(p);
    p[9] = 'x';
    ck_assert_ptr_null(sc_heap_realloc(&heap, p, 10, SIZE_MAX - 3));
    ck_assert_int_eq(p[9], 'x');
    sc_heap_free(&heap, p, 10);
    sc_heap_free(&heap, NULL, 10);
    ck_assert_uint_eq(stats_of(SC_SUBSYSTEM_RADIX).live_count, 0);
}
END_TEST

START_TEST(heap__aligns_clears_grows_and_copies)
{
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    for (int pass = 0; pass < 2; pass++) {
        struct sc_heap heap;
        ck_assert_int_eq(
            sc_heap_init(&heap, SC_SUBSYSTEM_ENGINE, pass ? &fa.allocator : NULL), SC_OK);
        for (size_t align = 1; align <= 65536; align *= 2) {
            char *p = sc_heap_alloc(&heap, 100, align);
            ck_assert_ptr_nonnull(p);
            ck_assert_uint_eq((uintptr_t)p % (align < 16 ? 16 : align), 0);
            memset(p, 0x5a, 100);
            sc_heap_free(&heap, p, 100);
        }
        for (size_t n = 1; n < 100000; n = n * 3 + 1) {
            char *p = sc_heap_calloc(&heap, n, 3);
            ck_assert_ptr_nonnull(p);
            for (size_t i = 0; i < n * 3; i++) ck_assert_int_eq(p[i], 0);
            memset(p, 0x5a, n * 3);
            sc_heap_free(&heap, p, n * 3);
        }
        char *p = sc_heap_realloc(&heap, NULL, 0, 16);
        memcpy(p, "0123456789abcdef", 16);
        p = sc_heap_realloc(&heap, p, 16, 100000);
        ck_assert_mem_eq(p, "0123456789abcdef", 16);
        ck_assert_uint_eq(stats_of(SC_SUBSYSTEM_ENGINE).live_bytes, 100000);
        p = sc_heap_realloc(&heap, p, 100000, 8);
        ck_assert_mem_eq(p, "01234567", 8);
        ck_assert_uint_eq(stats_of(SC_SUBSYSTEM_ENGINE).live_bytes, 8);
        char *q = sc_heap_dup(&heap, p, 8);
        ck_assert_mem_eq(q, "01234567", 8);
        sc_heap_stats stats = stats_of(SC_SUBSYSTEM_ENGINE);
        ck_assert_uint_eq(stats.live_bytes, 16);
        ck_assert_uint_eq(stats.live_count, 2);
        ck_assert_uint_eq(stats.foreign_bytes, pass ? 16 : 0);
        sc_heap_free(&heap, p, 8);
        sc_heap_free(&heap, q, 8);
    }
    ck_assert_uint_eq(stats_of(SC_SUBSYSTEM_ENGINE).live_bytes, 0);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
}
END_TEST

START_TEST(heap__refused_allocations_change_nothing)
{
    struct fail_alloc fa;
    struct sc_heap heap;
    fail_alloc_init(&fa);
    ck_assert_int_eq(sc_heap_init(&heap, SC_SUBSYSTEM_SNAPSHOT, &fa.allocator), SC_OK);
    char *p = sc_heap_dup(&heap, "abc", 4);
    fa.fail_after = true;
    fail_alloc_arm(&fa, 1);
    ck_assert_ptr_null(sc_heap_alloc(&heap, 1, 16));
    ck_assert_ptr_null(sc_heap_calloc(&heap, 1, 1));
    ck_assert_ptr_null(sc_heap_dup(&heap, "x", 1));
    ck_assert_ptr_null(sc_heap_realloc(&heap, p, 4, 400));
    ck_assert(fail_alloc_disarm(&fa));
    ck_assert_str_eq(p, "abc");
    ck_assert_uint_eq(stats_of(SC_SUBSYSTEM_SNAPSHOT).live_bytes, 4);
    ck_assert_uint_eq(stats_of(SC_SUBSYSTEM_SNAPSHOT).live_count, 1);
    sc_heap_free(&heap, p, 4);
    ck_assert_uint_eq(stats_of(SC_SUBSYSTEM_SNAPSHOT).live_count, 0);
}
END_TEST

/* ---- the arena's own figures ---- */

enum { BLOCKS = 3000 };

/* Sizes that are size classes of jemalloc 5 themselves, so that both counts must be equal. */
static const size_t class_bytes[] = {16, 64, 128, 1024, 4096, 16384, 65536, 1 << 20};

START_TEST(arena__agrees_with_our_count_and_returns_all)
{
    static void *blocks[BLOCKS];
    static size_t bytes[BLOCKS];
    struct sc_heap heap;
    struct sc_prng prng;
    sc_prng_seed(&prng, 5);
    ck_assert_int_eq(sc_heap_init(&heap, SC_SUBSYSTEM_POOL, NULL), SC_OK);
    /* The first allocation creates the arena, so measure what an empty one holds. */
    sc_heap_free(&heap, sc_heap_alloc(&heap, 1, 16), 1);
    sc_heap_stats empty = stats_of(SC_SUBSYSTEM_POOL);
    ck_assert_int_eq(empty.has_arena, EXPECT_ARENA);
    ck_assert_uint_eq(empty.allocated_bytes, 0);
    uint64_t expect = 0;
    for (int i = 0; i < BLOCKS; i++) {
        bytes[i] = class_bytes[sc_prng_below(&prng, i % 20 == 0 ? 8 : 6)];
        blocks[i] = sc_heap_alloc(&heap, bytes[i], 16);
        ck_assert_ptr_nonnull(blocks[i]);
        memset(blocks[i], 1, bytes[i]);
        expect += bytes[i];
    }
    sc_heap_stats full = stats_of(SC_SUBSYSTEM_POOL);
    ck_assert_uint_eq(full.live_bytes, expect);
    ck_assert_uint_eq(full.live_count, BLOCKS);
    ck_assert_uint_eq(full.foreign_bytes, 0);
    ck_assert_uint_eq(full.allocated_bytes, EXPECT_ARENA ? expect : 0);
    if (EXPECT_ARENA) ck_assert_uint_ge(full.resident_bytes, expect);
    for (int i = 0; i < BLOCKS; i += 2) {
        sc_heap_free(&heap, blocks[i], bytes[i]);
        expect -= bytes[i];
    }
    sc_heap_stats half = stats_of(SC_SUBSYSTEM_POOL);
    ck_assert_uint_eq(half.live_bytes, expect);
    ck_assert_uint_eq(half.allocated_bytes, EXPECT_ARENA ? expect : 0);
    for (int i = 1; i < BLOCKS; i += 2) sc_heap_free(&heap, blocks[i], bytes[i]);
    sc_heap_stats after = stats_of(SC_SUBSYSTEM_POOL);
    ck_assert_uint_eq(after.live_bytes, 0);
    ck_assert_uint_eq(after.live_count, 0);
    ck_assert_uint_eq(after.allocated_bytes, 0);
    /* Only the arena's own metadata may have grown. */
    ck_assert_uint_le(after.resident_bytes, empty.resident_bytes + full.resident_bytes / 20);
}
END_TEST

START_TEST(arena__trim_returns_freed_memory_while_some_is_alive)
{
    enum { COUNT = 64, BYTES = 1 << 17 };
    static void *blocks[COUNT];
    struct sc_heap heap;
    ck_assert_int_eq(sc_heap_init(&heap, SC_SUBSYSTEM_POOL, NULL), SC_OK);
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = sc_heap_alloc(&heap, BYTES, 4096);
        memset(blocks[i], i + 1, BYTES);
    }
    for (int i = 0; i < COUNT; i++) {
        if (i % 8 != 0) sc_heap_free(&heap, blocks[i], BYTES);
    }
    sc_heap_trim(&heap);
    sc_heap_stats left = stats_of(SC_SUBSYSTEM_POOL);
    ck_assert_uint_eq(left.live_bytes, (uint64_t)COUNT / 8 * BYTES);
    if (EXPECT_ARENA) ck_assert_uint_lt(left.resident_bytes, left.live_bytes * 3 / 2);
    for (int i = 0; i < COUNT; i += 8) {
        ck_assert_int_eq(((unsigned char *)blocks[i])[BYTES - 1], i + 1);
        sc_heap_free(&heap, blocks[i], BYTES);
    }
    struct fail_alloc fa; /* of a caller's allocator there is nothing to give back */
    fail_alloc_init(&fa);
    ck_assert_int_eq(sc_heap_init(&heap, SC_SUBSYSTEM_POOL, &fa.allocator), SC_OK);
    sc_heap_trim(&heap);
    ck_assert_uint_eq(fail_alloc_calls(&fa), 0);
}
END_TEST

START_TEST(arena__odd_sizes_are_within_the_size_class_bound)
{
    static void *blocks[BLOCKS];
    struct sc_heap heap;
    ck_assert_int_eq(sc_heap_init(&heap, SC_SUBSYSTEM_RADIX, NULL), SC_OK);
    for (size_t i = 0; i < BLOCKS; i++) blocks[i] = sc_heap_alloc(&heap, 129 + i * 7, 16);
    sc_heap_stats full = stats_of(SC_SUBSYSTEM_RADIX);
    if (EXPECT_ARENA) {
        ck_assert_uint_ge(full.allocated_bytes, full.live_bytes);
        ck_assert_uint_le(full.allocated_bytes, full.live_bytes + full.live_bytes / 4);
    }
    for (size_t i = 0; i < BLOCKS; i++) sc_heap_free(&heap, blocks[i], 129 + i * 7);
    ck_assert_uint_eq(stats_of(SC_SUBSYSTEM_RADIX).allocated_bytes, 0);
}
END_TEST

START_TEST(arena__subsystems_are_apart)
{
    struct sc_heap a, b;
    ck_assert_int_eq(sc_heap_init(&a, SC_SUBSYSTEM_POOL, NULL), SC_OK);
    ck_assert_int_eq(sc_heap_init(&b, SC_SUBSYSTEM_ENGINE, NULL), SC_OK);
    void *p = sc_heap_alloc(&a, 4096, 16), *q = sc_heap_alloc(&b, 16384, 16);
    ck_assert_uint_eq(stats_of(SC_SUBSYSTEM_POOL).live_bytes, 4096);
    ck_assert_uint_eq(stats_of(SC_SUBSYSTEM_ENGINE).live_bytes, 16384);
    ck_assert_uint_eq(stats_of(SC_SUBSYSTEM_POOL).allocated_bytes, EXPECT_ARENA ? 4096 : 0);
    ck_assert_uint_eq(stats_of(SC_SUBSYSTEM_ENGINE).allocated_bytes, EXPECT_ARENA ? 16384 : 0);
    ck_assert_uint_eq(stats_of(SC_SUBSYSTEM_KERNELS).live_bytes, 0);
    ck_assert(!stats_of(SC_SUBSYSTEM_KERNELS).has_arena); /* lazily created */
    sc_heap_free(&a, p, 4096);
    sc_heap_free(&b, q, 16384);
}
END_TEST

static void *churn(void *arg)
{
    struct sc_heap heap;
    struct sc_prng prng;
    void *blocks[64] = {NULL};
    size_t bytes[64] = {0};
    sc_prng_seed(&prng, (uint64_t)(uintptr_t)arg);
    ck_assert_int_eq(sc_heap_init(&heap, SC_SUBSYSTEM_KERNELS, NULL), SC_OK);
    for (int i = 0; i < 5000; i++) {
        size_t at = sc_prng_below(&prng, 64);
        sc_heap_free(&heap, blocks[at], bytes[at]);
        bytes[at] = 1 + sc_prng_below(&prng, 3000);
        blocks[at] = sc_heap_alloc(&heap, bytes[at], 16);
        memset(blocks[at], (int)at, bytes[at]);
    }
    for (int at = 0; at < 64; at++) sc_heap_free(&heap, blocks[at], bytes[at]);
    return NULL;
}

START_TEST(arena__first_use_and_churn_from_many_threads)
{
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)), 0);
    }
    for (int i = 0; i < 4; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    sc_heap_stats stats = stats_of(SC_SUBSYSTEM_KERNELS);
    ck_assert_uint_eq(stats.live_bytes, 0);
    ck_assert_uint_eq(stats.live_count, 0);
    ck_assert_uint_eq(stats.allocated_bytes, 0);
}
END_TEST

/* ---- uthash through the wrapper ---- */

struct item { uint64_t id; UT_hash_handle hh; };
struct table { struct item *head; };

static sc_status table_add(struct table *table, struct item *item)
{
    bool sc_map_oom = false;
    HASH_ADD(hh, table->head, id, sizeof item->id, item);
    if (sc_map_oom) return SC_FAIL(SC_ERR_NO_MEMORY, "item %llu", (unsigned long long)item->id);
    return SC_OK;
}

static struct item *table_find(struct table *table, uint64_t id)
{
    struct item *item = NULL;
    HASH_FIND(hh, table->head, &id, sizeof id, item);
    return item;
}

START_TEST(map__failing_growth_leaves_the_table_as_it_was)
{
    enum { ITEMS = 2000 };
    static struct item items[ITEMS];
    struct fail_alloc fa;
    struct sc_heap heap;
    struct table table = {NULL};
    fail_alloc_init(&fa);
    ck_assert_int_eq(sc_heap_init(&heap, SC_SUBSYSTEM_ENGINE, &fa.allocator), SC_OK);
    map_heap = &heap;
    int refused = 0;
    for (uint64_t i = 0; i < ITEMS; i++) {
        items[i].id = i * 7919;
        for (uint64_t n = 1;; n++) { /* every allocation of every add fails once */
            struct fail_alloc_mark before = fail_alloc_mark(&fa);
            fail_alloc_arm(&fa, n);
            sc_status status = table_add(&table, &items[i]);
            if (!fail_alloc_disarm(&fa)) {
                ck_assert_int_eq(status, SC_OK);
                break;
            }
            refused++;
            ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
            ck_assert(fail_alloc_same(&fa, before));
            ck_assert_ptr_null(table_find(&table, items[i].id));
            ck_assert_uint_eq(HASH_COUNT(table.head), i);
        }
    }
    ck_assert_int_ge(refused, 4); /* table, first buckets, several growths */
    for (uint64_t i = 0; i < ITEMS; i++) {
        ck_assert_ptr_eq(table_find(&table, i * 7919), &items[i]);
        ck_assert_ptr_null(table_find(&table, i * 7919 + 1));
    }
    for (uint64_t i = 0; i < ITEMS; i++) HASH_DEL(table.head, &items[i]);
    ck_assert_ptr_null(table.head);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
}
END_TEST

static Suite *heap_suite(void)
{
    Suite *suite = suite_create("base_heap");
    TCase *tc = tcase_create("heap");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, heap__bad_arguments);
    tcase_add_test(tc, heap__overflow_is_out_of_memory);
    tcase_add_test(tc, heap__aligns_clears_grows_and_copies);
    tcase_add_test(tc, heap__refused_allocations_change_nothing);
    suite_add_tcase(suite, tc);
    tc = tcase_create("arena");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, arena__agrees_with_our_count_and_returns_all);
    tcase_add_test(tc, arena__trim_returns_freed_memory_while_some_is_alive);
    tcase_add_test(tc, arena__odd_sizes_are_within_the_size_class_bound);
    tcase_add_test(tc, arena__subsystems_are_apart);
    tcase_add_test(tc, arena__first_use_and_churn_from_many_threads);
    suite_add_tcase(suite, tc);
    tc = tcase_create("map");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, map__failing_growth_leaves_the_table_as_it_was);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(heap_suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
