/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a pool: layouts, views, poison, own and foreign memory, extras, very large pools. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/lock.h"
#include "base/log.h"
#include "base/sc_assert.h"
#include "test_pool_util.h"

static const sc_layout layouts[2] = {SC_LAYOUT_PAGE_MAJOR, SC_LAYOUT_CONTIGUOUS};

static unsigned char *at(const sc_layer_view *view, uint32_t slot)
{
    return (unsigned char *)sc_host_ptr(view->base) + (int64_t)slot * view->slot_stride;
}

static sc_layer_view view_of(const sc_pool *pool, uint32_t part)
{
    sc_layer_view view;
    ck_assert_int_eq(sc_pool_part_view(pool, part, &view, NULL), SC_OK);
    return view;
}

/* Writes another byte value into every part of every slot (not the null slot), then reads all back:
 * any shared byte shows. */
static void check_no_sharing(const sc_pool *pool)
{
    sc_pool_info info = info_of(pool);
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t p = 0; p < info.part_count; p++) {
            sc_layer_view view = view_of(pool, p);
            for (uint32_t s = 1; s <= info.slot_count; s++) {
                unsigned char value = (unsigned char)(1 + (p * 37 + s * 101) % 251);
                if (pass == 0) memset(at(&view, s), value, view.bytes);
                for (uint64_t i = 0; i < view.bytes; i++) ck_assert_int_eq(at(&view, s)[i], value);
            }
        }
    }
    audit_ok(pool); /* the null slot is still zero */
}

/* ---- layouts ---- */

START_TEST(layout__parts_are_where_the_drawing_says)
{
    static const uint64_t bytes[TINY_PARTS] = {60, 480, 768, 72, 480, 60, 240};
    static const uint64_t padded[TINY_PARTS] = {256, 512, 768, 256, 512, 256, 256};
    for (int l = 0; l < 2; l++) {
        sc_pool *pool = tiny_pool(layouts[l], 9);
        sc_pool_info info = info_of(pool);
        uint64_t before = 0;
        ck_assert_int_eq(info.layout, layouts[l]);
        ck_assert_uint_eq(info.slot_count, 9);
        ck_assert_uint_eq(info.part_count, TINY_PARTS);
        ck_assert_uint_eq(info.slot_bytes, 2816);
        ck_assert_uint_eq(info.state_bytes, 2160);
        ck_assert_uint_eq(info.memory_bytes, 10 * 2816);
        ck_assert_uint_eq(info.alignment, 256);
        for (uint32_t p = 0; p < TINY_PARTS; p++) {
            sc_layer_view view = view_of(pool, p);
            ck_assert_uint_eq(view.bytes, bytes[p]);
            ck_assert_uint_eq(view.base % 256, 0);
            ck_assert_uint_eq((uint64_t)view.slot_stride % 256, 0);
            ck_assert_uint_eq(view.base - info.base, l == 0 ? before : before * 10);
            ck_assert_int_eq(view.slot_stride, l == 0 ? 2816 : (int64_t)padded[p]);
            before += padded[p];
        }
        check_no_sharing(pool);
        ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    }
}
END_TEST

START_TEST(view__by_layer_equals_by_number)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_CONTIGUOUS, 3);
    for (uint32_t p = 0; p < TINY_PARTS; p++) {
        sc_layer_view view = view_of(pool, p), same;
        sc_part part;
        uint32_t found = 99;
        ck_assert_int_eq(sc_pool_part_view(pool, p, &same, &part), SC_OK);
        ck_assert_int_eq(sc_pool_layer_view(pool, part.layer, part.kind, part.index, &same), SC_OK);
        ck_assert_uint_eq(view.base, same.base);
        ck_assert_int_eq(view.slot_stride, same.slot_stride);
        ck_assert_uint_eq(view.bytes, same.bytes);
        ck_assert_int_eq(sc_pool_find_part(pool, part.layer, part.kind, part.index, &found), SC_OK);
        ck_assert_uint_eq(found, p);
        ck_assert_int_eq(view.dtype, part.dtype);
        ck_assert_uint_eq(view.dim_count, part.dim_count);
        ck_assert_mem_eq(view.dims, part.dims, sizeof view.dims);
        ck_assert_uint_eq(view.alignment, 256);
    }
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

START_TEST(view__bad_arguments)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_CONTIGUOUS, 3);
    sc_layer_view view, untouched;
    sc_pool_info info;
    const sc_schema *schema = NULL;
    sc_backend *backend = NULL;
    uint32_t part;
    memset(&view, 0x77, sizeof view);
    untouched = view;
    ck_assert_int_eq(sc_pool_layer_view(pool, 2, SC_PART_RECURRENT, 0, &view), SC_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "layer 2"));
    ck_assert_int_eq(sc_pool_layer_view(pool, 0, SC_PART_EXTRA, 0, &view), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_pool_layer_view(pool, 1, SC_PART_CONV, 2, &view), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_pool_layer_view(pool, 99, SC_PART_CONV, 0, &view), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_pool_layer_view(NULL, 0, SC_PART_CONV, 0, &view), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_layer_view(pool, 0, SC_PART_CONV, 0, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_part_view(NULL, 0, &view, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_part_view(pool, 0, NULL, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_part_view(pool, TINY_PARTS, &view, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_part_view(pool, UINT32_MAX, &view, NULL), SC_ERR_INVALID);
    ck_assert_mem_eq(&view, &untouched, sizeof view);
    ck_assert_int_eq(sc_pool_find_part(NULL, 0, SC_PART_CONV, 0, &part), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_find_part(pool, 0, SC_PART_CONV, 0, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_info_get(NULL, &info), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_info_get(pool, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_schema(NULL, &schema), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_schema(pool, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_backend(NULL, &backend), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_backend(pool, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_schema(pool, &schema), SC_OK);
    ck_assert_ptr_nonnull(schema);
    ck_assert_int_eq(sc_pool_backend(pool, &backend), SC_OK);
    ck_assert_ptr_eq(backend, sc_backend_host());
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

START_TEST(shard__a_rank_holds_its_layers_and_heads)
{
    sc_schema *schema = tiny_schema();
    sc_pool_options options = tiny_options(schema, SC_LAYOUT_PAGE_MAJOR, 5);
    sc_pool *pool = NULL;
    sc_layer_view view;
    sc_part part;
    options.shard = (sc_shard){.tp_rank = 1, .tp_size = 2, .layer_first = 1, .layer_count = 2};
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
    sc_pool_info info = info_of(pool);
    ck_assert_uint_eq(info.part_count, 3);
    ck_assert_uint_eq(info.state_bytes, (768 + 72 + 480) / 2);
    ck_assert_uint_eq(info.shard.pp_size, 1); /* filled in */
    ck_assert_int_eq(sc_pool_layer_view(pool, 1, SC_PART_RECURRENT, 0, &view), SC_OK);
    ck_assert_uint_eq(view.dims[0], 2);
    ck_assert_int_eq(sc_pool_layer_view(pool, 1, SC_PART_CONV, 1, &view), SC_OK);
    ck_assert_uint_eq(view.dims[1], 6);
    ck_assert_int_eq(sc_pool_layer_view(pool, 0, SC_PART_CONV, 0, &view), SC_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "in this shard"));
    ck_assert_int_eq(sc_pool_part_view(pool, 2, &view, &part), SC_OK);
    ck_assert_uint_eq(part.layer, 1);
    ck_assert_int_eq(part.kind, SC_PART_RECURRENT);
    ck_assert_uint_eq(part.dims[0], 4); /* the schema's part; the view is local */
    check_no_sharing(pool);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    sc_schema_release(schema);
}
END_TEST

/* ---- creation ---- */

#define REFUSES(expected, change)                                                                  \
    do {                                                                                           \
        sc_pool_options o = tiny_options(schema, SC_LAYOUT_PAGE_MAJOR, 5);                         \
        sc_pool *made = (sc_pool *)&fa;                                                            \
        uint64_t need = 77;                                                                        \
        o.allocator = &fa.allocator;                                                               \
        change;                                                                                    \
        ck_assert_int_eq(sc_pool_create(&o, &made), (expected));                                   \
        ck_assert_int_eq(sc_last_error()->status, (expected));                                     \
        ck_assert_int_eq(sc_pool_memory_bytes(&o, &need), (expected));                             \
        ck_assert_uint_eq(need, 77);                                                               \
        ck_assert_ptr_eq(made, &fa);                                                               \
        ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);                                         \
    } while (0)

/* What an older caller does not have keeps its default; it is not read. */
START_TEST(create__options_of_an_older_version)
{
    sc_schema *schema = tiny_schema();
    sc_pool_options old = tiny_options(schema, SC_LAYOUT_PAGE_MAJOR, 5);
    sc_pool *pool = NULL;
    sc_backend *backend = NULL;
    uint64_t bytes = 0;
    old.backend = (sc_backend *)(uintptr_t)8;
    old.foreign = (const sc_foreign_memory *)(uintptr_t)8;
    old.allocator = (const sc_allocator *)(uintptr_t)8;
    old.struct_size = offsetof(sc_pool_options, backend);
    ck_assert_int_eq(sc_pool_memory_bytes(&old, &bytes), SC_OK);
    ck_assert_uint_eq(bytes, 6 * 2816);
    ck_assert_int_eq(sc_pool_create(&old, &pool), SC_OK);
    ck_assert_int_eq(sc_pool_backend(pool, &backend), SC_OK);
    ck_assert_ptr_eq(backend, sc_backend_host());
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    sc_schema_release(schema);
}
END_TEST

START_TEST(create__refuses_bad_options)
{
    struct fail_alloc fa;
    sc_schema *schema = tiny_schema();
    sc_pool_options good = tiny_options(schema, SC_LAYOUT_PAGE_MAJOR, 5);
    sc_pool *pool = NULL;
    uint64_t bytes = 0;
    fail_alloc_init(&fa);
    ck_assert_int_eq(sc_pool_create(NULL, &pool), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_create(&good, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_memory_bytes(NULL, &bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_memory_bytes(&good, NULL), SC_ERR_INVALID);
    REFUSES(SC_ERR_INVALID, o.struct_size = 8);
    REFUSES(SC_ERR_INVALID, o.struct_size += 8);
    REFUSES(SC_ERR_INVALID, o.struct_size = offsetof(sc_pool_options, backend) - 1);
    REFUSES(SC_ERR_INVALID, o.schema = NULL);
    REFUSES(SC_ERR_INVALID, o.layout = (sc_layout)0);
    REFUSES(SC_ERR_INVALID, o.layout = (sc_layout)3);
    REFUSES(SC_ERR_INVALID, o.slot_count = 0);
    REFUSES(SC_ERR_INVALID, o.slot_count = INT32_MAX);
    REFUSES(SC_ERR_INVALID, o.slot_count = UINT32_MAX);
    REFUSES(SC_ERR_INVALID, o.shard.tp_size = 3);
    REFUSES(SC_ERR_INVALID, (o.shard.layer_first = 2, o.shard.layer_count = 1)); /* no part */
    sc_allocator half = fa.allocator;
    half.alloc = NULL;
    good.allocator = &half;
    ck_assert_int_eq(sc_pool_create(&good, &pool), SC_ERR_INVALID);
    good.allocator = NULL;
    ck_assert_int_eq(sc_pool_memory_bytes(&good, &bytes), SC_OK);
    ck_assert_uint_eq(bytes, 6 * 2816);
    ck_assert_ptr_null(pool);
    sc_schema_release(schema);
}
END_TEST

START_TEST(create__refuses_more_than_2_to_63_bytes)
{
    struct fail_alloc fa;
    static const sc_group group = {"g", 64};
    static sc_part parts[16];
    sc_schema_options make = SC_SCHEMA_OPTIONS_INIT;
    sc_schema *schema = NULL;
    fail_alloc_init(&fa);
    for (uint32_t i = 0; i < 16; i++) { /* 2^39 bytes each, 2^43 together */
        parts[i] = (sc_part){.layer = i, .kind = SC_PART_RECURRENT, .dtype = SC_DTYPE_F32,
            .dim_count = 3, .dims = {1u << 15, 1u << 11, 1u << 11}};
    }
    make.model = "huge";
    make.revision = "1";
    make.groups = &group;
    make.group_count = 1;
    make.parts = parts;
    make.part_count = 16;
    make.layer_count = 16;
    ck_assert_int_eq(sc_schema_create(&make, &schema), SC_OK);
    REFUSES(SC_ERR_OVERFLOW, o.slot_count = (1u << 20) - 1);
    REFUSES(SC_ERR_OVERFLOW, o.slot_count = INT32_MAX - 1);
    sc_pool_options o = tiny_options(schema, SC_LAYOUT_CONTIGUOUS, (1u << 20) - 2);
    uint64_t need = 0;
    ck_assert_int_eq(sc_pool_memory_bytes(&o, &need), SC_OK);
    ck_assert_uint_eq(need, ((UINT64_C(1) << 20) - 1) << 43);
    /* Fits 64 bits, but no machine: an answer, nothing is left behind. */
    sc_pool *pool = NULL;
    o.allocator = &fa.allocator;
    ck_assert_int_eq(sc_pool_create(&o, &pool), SC_ERR_NO_MEMORY);
    ck_assert_ptr_null(pool);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
    sc_schema_release(schema);
}
END_TEST

START_TEST(create__each_allocation_fails_once)
{
    struct fail_alloc fa;
    struct faulty_backend faulty;
    sc_schema *schema = tiny_schema();
    sc_pool_options options = tiny_options(schema, SC_LAYOUT_CONTIGUOUS, 5);
    sc_pool *pool = NULL;
    uint64_t fails = 0;
    fail_alloc_init(&fa);
    faulty_init(&faulty);
    options.allocator = &fa.allocator;
    options.backend = &faulty.backend;
    for (uint64_t n = 1;; n++) {
        fail_alloc_arm(&fa, n);
        sc_status status = sc_pool_create(&options, &pool);
        if (!fail_alloc_disarm(&fa)) {
            ck_assert_int_eq(status, SC_OK);
            break;
        }
        fails++;
        ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
        ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
        ck_assert_int_eq(faulty.live, 0);
    }
    ck_assert_uint_ge(fails, 3);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    pool = NULL;
    faulty.fail_alloc_at = 1;
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_ERR_NO_MEMORY);
    ck_assert_ptr_null(pool);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
    ck_assert_int_eq(faulty.live, 0);
    sc_schema_release(schema);
}
END_TEST

START_TEST(create__takes_and_gives_back_the_schema_and_the_heap)
{
    sc_heap_stats before, during, after;
    sc_schema *schema = tiny_schema();
    sc_pool_options options = tiny_options(schema, SC_LAYOUT_CONTIGUOUS, 1000);
    sc_pool *pool = NULL;
    const sc_schema *mine = NULL;
    uint32_t count = 0;
    ck_assert_int_eq(sc_heap_stats_get(SC_SUBSYSTEM_POOL, &before), SC_OK);
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
    ck_assert_int_eq(sc_heap_stats_get(SC_SUBSYSTEM_POOL, &during), SC_OK);
    ck_assert_uint_gt(during.live_bytes, before.live_bytes + 12 * 1001);
    size_t rest = sizeof(struct sc_rwlock) + 4096;
    ck_assert_uint_lt(during.live_bytes, before.live_bytes + 12 * 1001 + rest);
    sc_schema_release(schema);
    ck_assert_int_eq(sc_pool_schema(pool, &mine), SC_OK);
    ck_assert_int_eq(sc_schema_part_count(mine, &count), SC_OK); /* still there */
    ck_assert_uint_eq(count, TINY_PARTS);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    ck_assert_int_eq(sc_heap_stats_get(SC_SUBSYSTEM_POOL, &after), SC_OK);
    ck_assert_uint_eq(after.live_bytes, 0);
    ck_assert_uint_eq(after.allocated_bytes, 0);
}
END_TEST

static void count_events(void *ctx, enum sc_log_level level, const sc_log_record *record)
{
    int *count = ctx;
    (void)level;
    ck_assert_str_eq(record->event, "pool.created");
    ck_assert_uint_ge(record->field_count, 5);
    (*count)++;
}

START_TEST(create__is_logged)
{
    int count = 0;
    sc_log_set(count_events, &count, SC_LOG_INFO);
    sc_pool *pool = tiny_pool(SC_LAYOUT_PAGE_MAJOR, 2);
    sc_log_set(NULL, NULL, SC_LOG_INFO);
    ck_assert_int_eq(count, 1);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

/* ---- contents ---- */

START_TEST(poison__fresh_slots_are_nan_in_debug_builds)
{
    for (int l = 0; l < 2; l++) {
        sc_pool *pool = tiny_pool(layouts[l], 4);
        sc_slot slot;
        ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &slot), SC_OK);
        for (uint32_t p = 0; p < TINY_PARTS; p++) {
            sc_layer_view view = view_of(pool, p);
            int expected = SC_ASSERT_LEVEL >= 2 ? 0xff : 0;
            for (uint64_t i = 0; i < view.bytes; i++) {
                ck_assert_int_eq(at(&view, slot.id)[i], expected);
            }
            memset(at(&view, slot.id), 0x33, view.bytes);
        }
        ck_assert_int_eq(sc_pool_free(pool, &slot, 1), SC_OK);
        ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &slot), SC_OK);
        if (SC_ASSERT_LEVEL >= 2) { /* the old state is gone */
            sc_layer_view view = view_of(pool, 1);
            ck_assert_int_eq(at(&view, slot.id)[view.bytes - 1], 0xff);
        }
        audit_ok(pool); /* not the null slot */
        ck_assert_int_eq(sc_pool_free(pool, &slot, 1), SC_OK);
        ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    }
}
END_TEST

START_TEST(extras__allocation_resets_every_control_word)
{
    sc_schema *state = tiny_schema(), *schema = NULL;
    sc_extras_options extras = SC_EXTRAS_OPTIONS_INIT;
    extras.control_words = 5;
    extras.ring_records = 4;
    extras.ring_record_bytes = 40;
    extras.draft_tokens = 3;
    ck_assert_int_eq(sc_schema_extras_create(state, NULL, &extras, &schema), SC_OK);
    for (int l = 0; l < 2; l++) {
        sc_pool_options options = tiny_options(schema, layouts[l], 3);
        sc_pool *pool = NULL;
        sc_slot s[3];
        ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
        uint32_t parts = info_of(pool).part_count;
        ck_assert_uint_eq(parts, 1 + 3 + 4);
        check_no_sharing(pool); /* leaves bytes of an earlier use everywhere */
        ck_assert_int_eq(sc_pool_alloc(pool, 2, SC_OWNER_WORKING, s), SC_OK);
        for (uint32_t p = 0; p < parts; p++) {
            sc_layer_view view = view_of(pool, p);
            for (uint64_t i = 0; i < view.bytes; i++) {
                ck_assert_int_eq(at(&view, s[0].id)[i], 0);
                ck_assert_int_eq(at(&view, s[1].id)[i], 0);
                ck_assert_int_ne(at(&view, 3)[i], 0); /* a neighbour is left alone */
            }
        }
        ck_assert_int_eq(sc_pool_free(pool, s, 2), SC_OK);
        ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    }
    sc_schema_release(schema);
    sc_schema_release(state);
}
END_TEST

START_TEST(sparse__pools_past_2_to_31_elements)
{
    static const sc_group group = {"g", 64};
    static const sc_part parts[2] = {
        {.layer = 0, .kind = SC_PART_CONV, .dtype = SC_DTYPE_F32, .dim_count = 2,
            .dims = {3, 1024}},
        {.layer = 0, .kind = SC_PART_RECURRENT, .dtype = SC_DTYPE_F32, .dim_count = 3,
            .dims = {8, 128, 128}},
    };
    enum { SLOTS = 40000 }; /* 5.2e9 elements, 20 GiB of addresses */
    sc_schema_options make = SC_SCHEMA_OPTIONS_INIT;
    sc_schema *schema = NULL;
    struct rusage before, after;
    make.model = "sparse";
    make.revision = "1";
    make.groups = &group;
    make.group_count = 1;
    make.parts = parts;
    make.part_count = 2;
    make.layer_count = 1;
    ck_assert_int_eq(sc_schema_create(&make, &schema), SC_OK);
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &before), 0);
    for (int l = 0; l < 2; l++) {
        sc_pool_options options = tiny_options(schema, layouts[l], SLOTS);
        sc_pool *pool = NULL;
        sc_slot slot;
        ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
        sc_pool_info info = info_of(pool);
        ck_assert_uint_gt(info.memory_bytes / 4, UINT64_C(1) << 32);
        ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &slot), SC_OK);
        for (uint32_t p = 0; p < 2; p++) {
            sc_layer_view view = view_of(pool, p);
            unsigned char *last = at(&view, SLOTS) + view.bytes - 1, *second = at(&view, SLOTS / 2);
            ck_assert_uint_le(sc_host_devptr(last), info.base + info.memory_bytes - 1);
            ck_assert_int_eq(*last, 0);
            *last = (unsigned char)(3 + p);
            *second = (unsigned char)(7 + p);
        }
        for (uint32_t p = 0; p < 2; p++) {
            sc_layer_view view = view_of(pool, p);
            ck_assert_int_eq(at(&view, SLOTS)[view.bytes - 1], 3 + (int)p);
            ck_assert_int_eq(at(&view, SLOTS / 2)[0], 7 + (int)p);
        }
        audit_ok(pool);
        ck_assert_int_eq(sc_pool_free(pool, &slot, 1), SC_OK);
        ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    }
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &after), 0);
    ck_assert_int_lt(after.ru_maxrss - before.ru_maxrss, 64 * 1024); /* KiB: it was never touched */
    sc_schema_release(schema);
}
END_TEST

/* ---- foreign memory ---- */

static void count_release(void *ctx)
{
    (*(int *)ctx)++;
}

/* 256-aligned scratch full of 0x6b. */
static unsigned char *scratch(size_t bytes)
{
    unsigned char *memory = aligned_alloc(256, (bytes + 255) & ~(size_t)255);
    ck_assert_ptr_nonnull(memory);
    memset(memory, 0x6b, bytes);
    return memory;
}

START_TEST(foreign__both_layouts_over_the_callers_memory)
{
    sc_schema *schema = tiny_schema();
    for (int l = 0; l < 2; l++) {
        sc_pool_options options = tiny_options(schema, layouts[l], 6);
        sc_pool *pool = NULL;
        uint64_t bytes = 0;
        int released = 0;
        sc_slot slot;
        ck_assert_int_eq(sc_pool_memory_bytes(&options, &bytes), SC_OK);
        unsigned char *memory = scratch(bytes + 256);
        sc_foreign_memory foreign = {.base = sc_host_devptr(memory), .bytes = bytes,
            .release = count_release, .ctx = &released};
        options.foreign = &foreign;
        ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
        audit_ok(pool); /* the null slot was cleared */
        ck_assert_uint_eq(info_of(pool).base, sc_host_devptr(memory));
        ck_assert_uint_eq(info_of(pool).huge_bytes, 0);
        ck_assert_uint_eq(info_of(pool).alignment, 256);
        check_no_sharing(pool);
        for (int i = 0; i < 256; i++) ck_assert_int_eq(memory[bytes + (uint64_t)i], 0x6b);
        ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &slot), SC_OK);
        ck_assert_int_eq(sc_pool_destroy(pool), SC_ERR_BUSY);
        ck_assert_int_eq(released, 0);
        ck_assert_int_eq(sc_pool_free(pool, &slot, 1), SC_OK);
        ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
        ck_assert_int_eq(released, 1);
        foreign.release = NULL;
        ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
        ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
        free(memory);
    }
    sc_schema_release(schema);
}
END_TEST

START_TEST(foreign__gaps_of_a_stride_are_never_touched)
{
    enum { SLOTS = 5, STRIDE = 2816 + 512 };
    sc_schema *schema = tiny_schema();
    sc_pool_options options = tiny_options(schema, SC_LAYOUT_PAGE_MAJOR, SLOTS);
    uint64_t bytes = (uint64_t)SLOTS * STRIDE + 2816; /* no gap behind the last */
    unsigned char *memory = scratch(bytes);
    sc_foreign_memory foreign = {.base = sc_host_devptr(memory), .bytes = bytes,
        .slot_stride = STRIDE};
    sc_pool *pool = NULL;
    sc_slot s[SLOTS];
    options.foreign = &foreign;
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
    ck_assert_int_eq(view_of(pool, 3).slot_stride, STRIDE);
    ck_assert_uint_eq(info_of(pool).memory_bytes, bytes);
    ck_assert_int_eq(sc_pool_alloc(pool, SLOTS, SC_OWNER_WORKING, s), SC_OK);
    check_no_sharing(pool);
    ck_assert_int_eq(sc_pool_free(pool, s, SLOTS), SC_OK);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        for (uint32_t i = 2816; i < STRIDE; i++) {
            ck_assert_int_eq(memory[slot * STRIDE + i], 0x6b);
        }
    }
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    free(memory);
    sc_schema_release(schema);
}
END_TEST

START_TEST(foreign__less_aligned_memory_is_served_down_to_16_bytes)
{
    sc_schema *schema = tiny_schema();
    for (uint32_t shift = 8; shift <= 256; shift *= 2) {
        for (int l = 0; l < 2; l++) {
            sc_pool_options options = tiny_options(schema, layouts[l], 3);
            unsigned char *memory = scratch(4 * 2816 + 256);
            sc_foreign_memory foreign = {.base = sc_host_devptr(memory + shift), .bytes = 4 * 2816};
            sc_pool *pool = NULL;
            options.foreign = &foreign;
            if (shift < 16) {
                ck_assert_int_eq(sc_pool_create(&options, &pool), SC_ERR_MISMATCH);
                ck_assert_ptr_null(pool);
                ck_assert_int_eq(memory[shift], 0x6b); /* not even the null slot */
            } else {
                ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
                ck_assert_uint_eq(info_of(pool).alignment, shift);
                ck_assert_uint_eq(view_of(pool, 2).alignment, shift);
                check_no_sharing(pool);
                ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
            }
            free(memory);
        }
    }
    sc_schema_release(schema);
}
END_TEST

START_TEST(foreign__refused_memory_stays_the_callers)
{
    struct fail_alloc fa;
    struct faulty_backend faulty;
    sc_schema *schema = tiny_schema();
    enum { NEED = 6 * 2816 };
    unsigned char *memory = scratch(2 * NEED);
    int released = 0;
    const sc_foreign_memory good = {.base = sc_host_devptr(memory), .bytes = NEED,
        .release = count_release, .ctx = &released};
    const struct { sc_layout layout; sc_foreign_memory memory; sc_status expected; } cases[] = {
        {SC_LAYOUT_PAGE_MAJOR, {.base = 0, .bytes = NEED}, SC_ERR_INVALID},
        {SC_LAYOUT_PAGE_MAJOR, {.base = good.base, .bytes = NEED - 1}, SC_ERR_MISMATCH},
        {SC_LAYOUT_CONTIGUOUS, {.base = good.base, .bytes = NEED - 1}, SC_ERR_MISMATCH},
        {SC_LAYOUT_PAGE_MAJOR, {.base = good.base, .bytes = 0}, SC_ERR_MISMATCH},
        {SC_LAYOUT_PAGE_MAJOR, {.base = good.base, .bytes = NEED, .slot_stride = 2800},
            SC_ERR_MISMATCH},
        {SC_LAYOUT_PAGE_MAJOR, {.base = good.base, .bytes = 2 * NEED, .slot_stride = 2816 + 8},
            SC_ERR_MISMATCH},
        {SC_LAYOUT_PAGE_MAJOR, {.base = good.base, .bytes = NEED, .slot_stride = 2816 + 256},
            SC_ERR_MISMATCH},
        {SC_LAYOUT_CONTIGUOUS, {.base = good.base, .bytes = NEED, .slot_stride = 2816},
            SC_ERR_INVALID},
        {SC_LAYOUT_PAGE_MAJOR, {.base = good.base, .bytes = UINT64_MAX, .slot_stride = 1ull << 62},
            SC_ERR_OVERFLOW},
        {SC_LAYOUT_PAGE_MAJOR, {.base = UINT64_MAX - 255, .bytes = NEED}, SC_ERR_OVERFLOW},
    };
    fail_alloc_init(&fa);
    faulty_init(&faulty);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sc_pool_options options = tiny_options(schema, cases[i].layout, 5);
        sc_foreign_memory foreign = cases[i].memory;
        sc_pool *pool = NULL;
        foreign.release = count_release;
        foreign.ctx = &released;
        options.foreign = &foreign;
        options.allocator = &fa.allocator;
        ck_assert_msg(sc_pool_create(&options, &pool) == cases[i].expected, "case %zu: %s", i,
            sc_last_error()->text);
        ck_assert_ptr_null(pool);
    }
    for (uint64_t n = 1; n <= 3; n++) { /* failing allocations; the null slot's clearing fails */
        sc_pool_options options = tiny_options(schema, SC_LAYOUT_PAGE_MAJOR, 5);
        sc_pool *pool = NULL;
        options.foreign = &good;
        options.allocator = &fa.allocator;
        fail_alloc_arm(&fa, n);
        ck_assert_int_eq(sc_pool_create(&options, &pool), SC_ERR_NO_MEMORY);
        ck_assert(fail_alloc_disarm(&fa));
        options.backend = &faulty.backend;
        faulty.fail_fill_at = (uint32_t)n;
        ck_assert_int_eq(sc_pool_create(&options, &pool), SC_ERR_DEVICE_LOST);
        ck_assert_ptr_null(pool);
    }
    ck_assert_int_eq(released, 0);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
    free(memory);
    sc_schema_release(schema);
}
END_TEST

/* Engine tensors: one dense tensor [slots][bytes] for each part, padded to 16 bytes. */
static unsigned char *engine_tensors(const sc_schema *schema, uint32_t slots,
    sc_foreign_part *parts, uint64_t *bytes_out)
{
    sc_part_local local[TINY_PARTS];
    uint32_t count = 0;
    uint64_t bytes = 0;
    ck_assert_int_eq(sc_schema_shard_parts(schema, NULL, local, TINY_PARTS, &count), SC_OK);
    for (uint32_t p = 0; p < count; p++) {
        parts[p].slot_stride = (local[p].bytes + 15) & ~UINT64_C(15);
        parts[p].bytes = parts[p].slot_stride * (slots + 1);
        parts[p].base = bytes;
        bytes += parts[p].bytes;
    }
    unsigned char *memory = scratch(bytes);
    for (uint32_t p = 0; p < count; p++) parts[p].base += sc_host_devptr(memory);
    *bytes_out = bytes;
    return memory;
}

START_TEST(foreign_parts__serve_an_engines_own_tensors)
{
    sc_schema *schema = tiny_schema();
    sc_foreign_part parts[TINY_PARTS];
    uint64_t bytes = 0;
    int released = 0;
    unsigned char *memory = engine_tensors(schema, 4, parts, &bytes);
    sc_foreign_memory foreign = {.parts = parts, .part_count = TINY_PARTS, .release = count_release,
        .ctx = &released};
    sc_pool_options options = tiny_options(schema, SC_LAYOUT_CONTIGUOUS, 4);
    sc_pool *pool = NULL;
    sc_slot s[4];
    options.foreign = &foreign;
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
    ck_assert_uint_eq(info_of(pool).alignment, 16);
    ck_assert_uint_eq(info_of(pool).memory_bytes, bytes);
    for (uint32_t p = 0; p < TINY_PARTS; p++) {
        ck_assert_uint_eq(view_of(pool, p).base, parts[p].base);
        ck_assert_int_eq(view_of(pool, p).slot_stride, (int64_t)parts[p].slot_stride);
    }
    ck_assert_int_eq(sc_pool_alloc(pool, 4, SC_OWNER_WORKING, s), SC_OK);
    check_no_sharing(pool);
    /* Part 0 has 60 bytes of 64: the four between are not ours. */
    for (uint32_t slot = 0; slot <= 4; slot++) ck_assert_int_eq(memory[64 * slot + 60], 0x6b);
    ck_assert_int_eq(sc_pool_free(pool, s, 4), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    ck_assert_int_eq(released, 1);
    free(memory);
    sc_schema_release(schema);
}
END_TEST

START_TEST(foreign_parts__may_lie_interleaved_but_not_overlap)
{
    enum { SLOTS = 4, STRIDE = 4096 };
    static const uint64_t offset[TINY_PARTS] = {3000, 64, 600, 1400, 2000, 2600, 2700};
    sc_schema *schema = tiny_schema();
    unsigned char *memory = scratch((SLOTS + 1) * STRIDE);
    sc_foreign_part parts[TINY_PARTS];
    sc_foreign_memory foreign = {.parts = parts, .part_count = TINY_PARTS};
    sc_pool_options options = tiny_options(schema, SC_LAYOUT_CONTIGUOUS, SLOTS);
    sc_pool *pool = NULL;
    options.foreign = &foreign;
    for (uint32_t p = 0; p < TINY_PARTS; p++) {
        uint64_t start = offset[p] & ~UINT64_C(15);
        parts[p] = (sc_foreign_part){sc_host_devptr(memory) + start,
            (uint64_t)(SLOTS + 1) * STRIDE - start, STRIDE};
    }
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
    check_no_sharing(pool);
    sc_pool_info info = info_of(pool);
    uint64_t sum = 0, slot_bytes = 0;
    for (uint32_t p = 0; p < TINY_PARTS; p++) {
        sc_layer_view view;
        ck_assert_int_eq(sc_pool_part_view(pool, p, &view, NULL), SC_OK);
        ck_assert_int_eq(view.slot_stride, STRIDE);
        slot_bytes += (view.bytes + 255) / 256 * 256;
        sum += parts[p].bytes;
    }
    ck_assert_uint_eq(info.memory_bytes, sum); /* what they share counts for each */
    ck_assert_uint_eq(info.slot_bytes, slot_bytes);
    ck_assert_uint_eq(info.base, parts[0].base);
    ck_assert_uint_eq(info.huge_bytes, 0);
    ck_assert_uint_eq(info.alignment, 16);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    const sc_foreign_part good = parts[6];
    pool = NULL;
    parts[6].base = parts[5].base + 48; /* 12 bytes into part 5 */
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_ERR_MISMATCH);
    parts[6].base = parts[4].base - 16; /* runs into part 4 */
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_ERR_MISMATCH);
    parts[6].base = parts[0].base; /* the same */
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_ERR_MISMATCH);
    parts[6] = good;
    parts[6].slot_stride = 240; /* another stride within the same range */
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_ERR_MISMATCH);
    parts[6] = good;
    parts[6].base = parts[1].base + STRIDE - 128; /* its end wraps into part 1 of the next slot */
    parts[6].bytes = (uint64_t)SLOTS * STRIDE + 240;
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_ERR_MISMATCH);
    ck_assert_ptr_null(pool);
    free(memory);
    sc_schema_release(schema);
}
END_TEST

START_TEST(foreign_parts__bad_arguments)
{
    struct fail_alloc fa;
    sc_schema *schema = tiny_schema();
    sc_foreign_part parts[TINY_PARTS], good[TINY_PARTS];
    uint64_t bytes = 0;
    int released = 0;
    unsigned char *memory = engine_tensors(schema, 4, good, &bytes);
    fail_alloc_init(&fa);
    for (int i = 0; i < 13; i++) {
        sc_foreign_memory foreign = {.parts = parts, .part_count = TINY_PARTS,
            .release = count_release, .ctx = &released};
        sc_pool_options options = tiny_options(schema, SC_LAYOUT_CONTIGUOUS, 4);
        sc_pool *pool = NULL;
        sc_status expected = SC_ERR_MISMATCH;
        memcpy(parts, good, sizeof parts);
        options.foreign = &foreign;
        options.allocator = &fa.allocator;
        switch (i) {
        case 0: parts[3].bytes = parts[3].slot_stride * 4; break; /* one slot short */
        case 1: parts[3].slot_stride -= 16; break;
        case 2: parts[3].base += 8; break;
        case 3: parts[1].slot_stride += 8; parts[1].bytes = bytes; break;
        case 4: foreign.part_count = TINY_PARTS - 1; break;
        case 5: foreign.part_count = 0; break;
        case 6: parts[2].base = 0; expected = SC_ERR_INVALID; break;
        case 7: foreign.base = good[0].base; expected = SC_ERR_INVALID; break;
        case 8: foreign.bytes = bytes; expected = SC_ERR_INVALID; break;
        case 9: foreign.slot_stride = 256; expected = SC_ERR_INVALID; break;
        case 10: options.layout = SC_LAYOUT_PAGE_MAJOR; expected = SC_ERR_INVALID; break;
        case 11: parts[6].slot_stride = UINT64_C(1) << 62; expected = SC_ERR_OVERFLOW; break;
        case 12: parts[6].bytes = UINT64_MAX; expected = SC_ERR_OVERFLOW; break;
        }
        ck_assert_msg(sc_pool_create(&options, &pool) == expected, "case %d: %s", i,
            sc_last_error()->text);
        ck_assert_ptr_null(pool);
        ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
    }
    ck_assert_int_eq(released, 0);
    for (uint64_t i = 0; i < bytes; i++) ck_assert_int_eq(memory[i], 0x6b);
    free(memory);
    sc_schema_release(schema);
}
END_TEST

static TCase *add_case(Suite *suite, const char *name)
{
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, 120);
    suite_add_tcase(suite, tc);
    return tc;
}

void add_pool_memory_tests(Suite *suite)
{
    TCase *tc = add_case(suite, "layout");
    tcase_add_test(tc, layout__parts_are_where_the_drawing_says);
    tcase_add_test(tc, view__by_layer_equals_by_number);
    tcase_add_test(tc, view__bad_arguments);
    tcase_add_test(tc, shard__a_rank_holds_its_layers_and_heads);
    tc = add_case(suite, "create");
    tcase_add_test(tc, create__refuses_bad_options);
    tcase_add_test(tc, create__options_of_an_older_version);
    tcase_add_test(tc, create__refuses_more_than_2_to_63_bytes);
    tcase_add_test(tc, create__each_allocation_fails_once);
    tcase_add_test(tc, create__takes_and_gives_back_the_schema_and_the_heap);
    tcase_add_test(tc, create__is_logged);
    tc = add_case(suite, "contents");
    tcase_add_test(tc, poison__fresh_slots_are_nan_in_debug_builds);
    tcase_add_test(tc, extras__allocation_resets_every_control_word);
    tcase_add_test(tc, sparse__pools_past_2_to_31_elements);
    tc = add_case(suite, "foreign");
    tcase_add_test(tc, foreign__both_layouts_over_the_callers_memory);
    tcase_add_test(tc, foreign__gaps_of_a_stride_are_never_touched);
    tcase_add_test(tc, foreign__less_aligned_memory_is_served_down_to_16_bytes);
    tcase_add_test(tc, foreign__refused_memory_stays_the_callers);
    tcase_add_test(tc, foreign_parts__serve_an_engines_own_tensors);
    tcase_add_test(tc, foreign_parts__may_lie_interleaved_but_not_overlap);
    tcase_add_test(tc, foreign_parts__bad_arguments);
}
