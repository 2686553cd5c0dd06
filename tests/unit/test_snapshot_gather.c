/* SPDX-License-Identifier: Apache-2.0 */
/* sc_pool_needs_gather, sc_state_dense_bytes, sc_state_gather, sc_state_scatter. */
#include "snapshot_fixture.h"

static const sc_layout layouts[2] = {SC_LAYOUT_PAGE_MAJOR, SC_LAYOUT_CONTIGUOUS};

static sc_status fix_backend_no_fill(sc_backend *b, sc_devptr dst, uint8_t value, uint64_t bytes,
    sc_stream *stream)
{
    (void)b, (void)dst, (void)value, (void)bytes, (void)stream;
    return SC_OK;
}

/* Loop index -> model and layout. */
enum { CASES = FIX_COUNT * 2, REFS = 16 };
static sc_pool *case_pool(int i, uint32_t slots)
{
    return fix_pool((enum fixture_model)(i / 2), layouts[i & 1], slots);
}

/* A dense array with a guard of 64 bytes on either side, all of it 0xcc. */
struct dense { uint8_t *raw; uint8_t *bytes; uint64_t count; uint64_t offsets[REFS]; };

static struct dense dense_for(const sc_pool *pool, const sc_part_ref *refs, uint32_t ref_count,
    uint32_t count)
{
    struct dense dense;
    ck_assert_int_eq(sc_state_dense_bytes(pool, refs, ref_count, count, &dense.count,
        dense.offsets), SC_OK);
    dense.raw = malloc(dense.count + 128);
    ck_assert_ptr_nonnull(dense.raw);
    memset(dense.raw, 0xcc, dense.count + 128);
    dense.bytes = dense.raw + 64;
    return dense;
}

static void dense_end(struct dense dense)
{
    for (uint32_t i = 0; i < 64; i++) {
        ck_assert_uint_eq(dense.raw[i], 0xcc);
        ck_assert_uint_eq(dense.raw[64 + dense.count + i], 0xcc);
    }
    free(dense.raw);
}

static bool all_are(const uint8_t *bytes, uint64_t count, uint8_t value)
{
    for (uint64_t i = 0; i < count; i++) {
        if (bytes[i] != value) return false;
    }
    return true;
}

/* ---- needs_gather ---- */

START_TEST(needs_gather__only_unpadded_contiguous_pools_run_in_place)
{
    for (int i = 0; i < CASES; i++) {
        sc_pool *pool = case_pool(i, 3);
        bool in_place = i == 2 * FIX_DENSE + 1, needs = in_place; /* the wrong answer */
        ck_assert_int_eq(sc_pool_needs_gather(pool, &needs), SC_OK);
        ck_assert_int_eq(needs, !in_place);
        fix_end(pool, NULL, 0);
    }
}
END_TEST

START_TEST(needs_gather__the_array_in_place_is_the_gathered_one)
{
    sc_pool *pool = fix_pool(FIX_DENSE, SC_LAYOUT_CONTIGUOUS, 5);
    sc_part_ref refs[REFS];
    uint32_t ref_count = fix_refs(pool, refs);
    const int32_t ids[6] = {0, 1, 2, 3, 4, 5};
    sc_slot slots[5];
    fix_take(pool, 5, 10, slots);
    struct dense dense = dense_for(pool, refs, ref_count, 6);
    ck_assert_int_eq(sc_state_gather(pool, refs, ref_count, ids, 6, sc_host_devptr(dense.bytes),
        dense.count), SC_OK);
    for (uint32_t part = 0; part < ref_count; part++) {
        ck_assert_mem_eq(dense.bytes + dense.offsets[part], fix_bytes(pool, part, 0),
            6 * fix_view(pool, part).bytes);
    }
    dense_end(dense);
    fix_end(pool, slots, 5);
}
END_TEST

START_TEST(needs_gather__refuses_null)
{
    bool needs = true;
    sc_pool *pool = fix_pool(FIX_GDN, SC_LAYOUT_CONTIGUOUS, 1);
    ck_assert_int_eq(sc_pool_needs_gather(NULL, &needs), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_needs_gather(pool, NULL), SC_ERR_INVALID);
    ck_assert(needs);
    fix_end(pool, NULL, 0);
}
END_TEST

/* ---- dense_bytes ---- */

START_TEST(dense_bytes__parts_start_at_256)
{
    sc_pool *pool = case_pool(_i, 2);
    sc_part_ref refs[REFS];
    uint32_t ref_count = fix_refs(pool, refs);
    for (uint32_t count = 0; count < 9; count++) {
        uint64_t bytes = 0, alone = 0, offsets[REFS], at = 0;
        ck_assert_int_eq(sc_state_dense_bytes(pool, refs, ref_count, count, &bytes, offsets),
            SC_OK);
        ck_assert_int_eq(sc_state_dense_bytes(pool, refs, ref_count, count, &alone, NULL), SC_OK);
        ck_assert_uint_eq(bytes, alone);
        for (uint32_t part = 0; part < ref_count; part++) {
            at = (at + 255) / 256 * 256;
            ck_assert_uint_eq(offsets[part], at);
            at += count * fix_view(pool, part).bytes;
        }
        ck_assert_uint_eq(bytes, at);
    }
    fix_end(pool, NULL, 0);
}
END_TEST

START_TEST(dense_bytes__refuses_bad_arguments)
{
    sc_pool *pool = fix_pool(FIX_GDN, SC_LAYOUT_CONTIGUOUS, 1);
    const sc_part_ref ok = {1, SC_PART_CONV, 0};
    const sc_part_ref missing[5] = {{2, SC_PART_CONV, 0}, {1, SC_PART_EXTRA, 0},
        {1, SC_PART_CONV, 1}, {UINT32_MAX, SC_PART_CONV, 0}, {1, (sc_part_kind)0, 0}};
    uint64_t bytes = 77, offsets[1] = {78};
    ck_assert_int_eq(sc_state_dense_bytes(NULL, &ok, 1, 1, &bytes, offsets), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_dense_bytes(pool, NULL, 1, 1, &bytes, offsets), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_dense_bytes(pool, &ok, 0, 1, &bytes, offsets), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_dense_bytes(pool, &ok, 1, 1, NULL, offsets), SC_ERR_INVALID);
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_int_eq(sc_state_dense_bytes(pool, &missing[i], 1, 1, &bytes, offsets),
            SC_ERR_NOT_FOUND);
    }
    ck_assert_uint_eq(bytes, 77);
    ck_assert_uint_eq(offsets[0], 78);
    fix_end(pool, NULL, 0);
}
END_TEST

/* A part of 2^39 bytes; the pool over it is address space that nobody touches. */
START_TEST(dense_bytes__refuses_what_overflows_64_bits)
{
    sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
    sc_pool_options pool_options = SC_POOL_OPTIONS_INIT;
    const sc_group group = {"g", 16};
    const sc_part part = fix_matrix(0, 0, SC_DTYPE_F32, 1u << 20, 1u << 10, 1u << 7);
    const sc_part_ref refs[2] = {{0, SC_PART_RECURRENT, 0}, {0, SC_PART_RECURRENT, 0}};
    sc_schema *schema = NULL;
    sc_pool *pool = NULL;
    uint64_t bytes = 77, offsets[2] = {78, 79};
    const int32_t row = -1;
    options.model = options.revision = "huge";
    options.groups = &group;
    options.group_count = 1;
    options.parts = &part;
    options.part_count = 1;
    options.layer_count = 1;
    ck_assert_int_eq(sc_schema_create(&options, &schema), SC_OK);
    pool_options.schema = schema;
    pool_options.slot_count = 1;
    const sc_foreign_memory foreign = {.base = UINT64_C(1) << 50, .bytes = UINT64_C(1) << 41};
    struct fix_backend fix;
    fix_backend_init(&fix, false);
    fix.ops.fill = fix_backend_no_fill; /* nothing is mapped there */
    pool_options.backend = &fix.backend;
    pool_options.foreign = &foreign;
    ck_assert_int_eq(sc_pool_create(&pool_options, &pool), SC_OK);
    ck_assert_int_eq(sc_state_dense_bytes(pool, refs, 1, 1u << 25, &bytes, offsets),
        SC_ERR_OVERFLOW);
    ck_assert_int_eq(sc_state_dense_bytes(pool, refs, 2, 1u << 24, &bytes, offsets),
        SC_ERR_OVERFLOW);
    ck_assert_int_eq(sc_state_gather(pool, refs, 1, &row, 1u << 25, 256, UINT64_MAX),
        SC_ERR_OVERFLOW);
    ck_assert_int_eq(sc_state_scatter(pool, refs, 1, &row, 1u << 25, 256, UINT64_MAX),
        SC_ERR_OVERFLOW);
    ck_assert_uint_eq(bytes, 77);
    ck_assert_uint_eq(offsets[0], 78);
    ck_assert_int_eq(sc_state_dense_bytes(pool, refs, 1, 1u << 24, &bytes, offsets), SC_OK);
    ck_assert_uint_eq(bytes, UINT64_C(1) << 63);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    sc_schema_release(schema);
}
END_TEST

/* ---- gather ---- */

START_TEST(gather__rows_in_order_with_holes_and_zeros)
{
    sc_pool *pool = case_pool(_i, 6);
    sc_part_ref refs[REFS];
    uint32_t ref_count = fix_refs(pool, refs);
    sc_slot slots[6];
    fix_take(pool, 6, 10, slots);
    const int32_t ids[6] = {5, -1, 0, 2, 2, -1};
    struct fix_image before = fix_image(pool);
    struct dense dense = dense_for(pool, refs, ref_count, 6);
    ck_assert_int_eq(sc_state_gather(pool, refs, ref_count, ids, 6, sc_host_devptr(dense.bytes),
        dense.count), SC_OK);
    uint64_t end = 0;
    for (uint32_t part = 0; part < ref_count; part++) {
        uint64_t bytes = fix_view(pool, part).bytes;
        const uint8_t *array = dense.bytes + dense.offsets[part];
        ck_assert(all_are(dense.bytes + end, dense.offsets[part] - end, 0xcc)); /* padding */
        ck_assert_mem_eq(array, fix_bytes(pool, part, 5), bytes);
        ck_assert(all_are(array + bytes, bytes, 0xcc));
        ck_assert(all_are(array + 2 * bytes, bytes, 0));
        ck_assert_mem_eq(array + 3 * bytes, fix_bytes(pool, part, 2), bytes);
        ck_assert_mem_eq(array + 4 * bytes, fix_bytes(pool, part, 2), bytes);
        ck_assert(all_are(array + 5 * bytes, bytes, 0xcc));
        end = dense.offsets[part] + 6 * bytes;
    }
    ck_assert(fix_same(before));
    free(before.bytes);
    dense_end(dense);
    fix_end(pool, slots, 6);
}
END_TEST

START_TEST(gather__chosen_parts_in_the_order_asked_for)
{
    sc_pool *pool = fix_pool(FIX_KDA, layouts[_i], 3);
    sc_slot slots[3];
    fix_take(pool, 3, 10, slots);
    /* local parts: layer 1 q, k, v, matrix, layer 2 q, k, v, matrix */
    const sc_part_ref refs[4] = {{2, SC_PART_RECURRENT, 0}, {1, SC_PART_CONV, 2},
        {2, SC_PART_CONV, 0}, {2, SC_PART_RECURRENT, 0}};
    const uint32_t parts[4] = {7, 2, 4, 7};
    const int32_t ids[2] = {3, 1};
    struct dense dense = dense_for(pool, refs, 4, 2);
    ck_assert_int_eq(sc_state_gather(pool, refs, 4, ids, 2, sc_host_devptr(dense.bytes),
        dense.count), SC_OK);
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t bytes = fix_view(pool, parts[i]).bytes;
        ck_assert_mem_eq(dense.bytes + dense.offsets[i], fix_bytes(pool, parts[i], 3), bytes);
        ck_assert_mem_eq(dense.bytes + dense.offsets[i] + bytes, fix_bytes(pool, parts[i], 1),
            bytes);
    }
    dense_end(dense);
    fix_end(pool, slots, 3);
}
END_TEST

static void refuse(sc_pool *pool, const sc_part_ref *refs, uint32_t ref_count, const int32_t *ids,
    uint32_t count, struct dense dense, uint64_t dense_bytes, bool scatter, sc_status wanted)
{
    struct fix_image before = fix_image(pool);
    uint8_t *kept = malloc(dense.count);
    memcpy(kept, dense.bytes, dense.count);
    sc_devptr at = sc_host_devptr(dense.bytes);
    sc_status status = scatter ?
        sc_state_scatter(pool, refs, ref_count, ids, count, at, dense_bytes) :
        sc_state_gather(pool, refs, ref_count, ids, count, at, dense_bytes);
    ck_assert_int_eq(status, wanted);
    ck_assert(fix_same(before));
    ck_assert_mem_eq(kept, dense.bytes, dense.count);
    free(kept);
    free(before.bytes);
}

START_TEST(gather_and_scatter__refuse_bad_rows_parts_and_arrays)
{
    sc_pool *pool = fix_pool(FIX_GDN, layouts[_i & 1], 4);
    const bool scatter = _i >= 2;
    sc_part_ref refs[REFS], missing[2];
    uint32_t ref_count = fix_refs(pool, refs);
    sc_slot slots[4];
    fix_take(pool, 4, 10, slots);
    ck_assert_int_eq(sc_pool_free(pool, &slots[3], 1), SC_OK);
    struct dense dense = dense_for(pool, refs, ref_count, 2);
    const int32_t ok[2] = {1, 2}, low[2] = {1, -2}, high[2] = {1, 5}, stale[2] = {1, 4};
    const uint64_t n = dense.count;
    refuse(pool, refs, ref_count, low, 2, dense, n, scatter, SC_ERR_INVALID);
    refuse(pool, refs, ref_count, high, 2, dense, n, scatter, SC_ERR_STALE);
    refuse(pool, refs, ref_count, stale, 2, dense, n, scatter, SC_ERR_STALE);
    if (scatter) {
        ck_assert_int_eq(sc_pool_set_owner(pool, slots[1], SC_OWNER_SNAPSHOT), SC_OK);
        refuse(pool, refs, ref_count, ok, 2, dense, n, scatter, SC_ERR_BUSY);
        ck_assert_int_eq(sc_pool_set_owner(pool, slots[1], SC_OWNER_WORKING), SC_OK);
    }
    refuse(pool, refs, ref_count, NULL, 2, dense, n, scatter, SC_ERR_INVALID);
    refuse(pool, NULL, ref_count, ok, 2, dense, n, scatter, SC_ERR_INVALID);
    refuse(pool, refs, 0, ok, 2, dense, n, scatter, SC_ERR_INVALID);
    refuse(pool, refs, ref_count, ok, 2, dense, n - 1, scatter, SC_ERR_MISMATCH);
    refuse(pool, refs, ref_count, ok, 2, dense, 0, scatter, SC_ERR_MISMATCH);
    missing[0] = refs[0];
    missing[1] = (sc_part_ref){2, SC_PART_CONV, 0}; /* an attention layer */
    refuse(pool, missing, 2, ok, 2, dense, n, scatter, SC_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "layer 2"));
    dense_end(dense);
    fix_end(pool, slots, 3);
}
END_TEST

START_TEST(gather_and_scatter__refuse_null_and_arrays_in_the_pool)
{
    sc_pool *pool = fix_pool(FIX_GDN, layouts[_i], 2);
    const sc_part_ref ref = {0, SC_PART_CONV, 0};
    const int32_t one = 1;
    uint64_t bytes = fix_view(pool, 0).bytes;
    sc_slot slots[2];
    fix_take(pool, 2, 10, slots);
    struct fix_image before = fix_image(pool);
    sc_pool_info info = fix_info(pool);
    uint8_t outside[64];
    sc_devptr at = sc_host_devptr(outside);
    const sc_devptr inside[3] = {info.base, info.base + info.memory_bytes / 2 / 16 * 16,
        info.base - bytes / 2};
    ck_assert_int_eq(sc_state_gather(NULL, &ref, 1, &one, 1, at, bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_scatter(NULL, &ref, 1, &one, 1, at, bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_gather(pool, &ref, 1, &one, 1, 0, bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_scatter(pool, &ref, 1, &one, 1, 0, bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_gather(pool, &ref, 1, &one, 1, UINT64_MAX - 2, bytes),
        SC_ERR_OVERFLOW);
    ck_assert_int_eq(sc_state_scatter(pool, &ref, 1, &one, 1, UINT64_MAX - 2, bytes),
        SC_ERR_OVERFLOW);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(sc_state_gather(pool, &ref, 1, &one, 1, inside[i], bytes),
            SC_ERR_INVALID);
        ck_assert_int_eq(sc_state_scatter(pool, &ref, 1, &one, 1, inside[i], bytes),
            SC_ERR_INVALID);
    }
    ck_assert(fix_same(before));
    /* no rows at all need no array */
    ck_assert_int_eq(sc_state_gather(pool, &ref, 1, NULL, 0, 0, 0), SC_OK);
    ck_assert_int_eq(sc_state_scatter(pool, &ref, 1, NULL, 0, 0, 0), SC_OK);
    free(before.bytes);
    fix_end(pool, slots, 2);
}
END_TEST

/* ---- scatter ---- */

START_TEST(scatter__brings_back_what_gather_took)
{
    sc_pool *from = case_pool(_i, 5), *to = case_pool(_i ^ 1, 7); /* the other layout */
    sc_part_ref refs[REFS];
    uint32_t ref_count = fix_refs(from, refs);
    sc_slot a[5], b[7];
    fix_take(from, 5, 10, a);
    fix_take(to, 7, 100, b);
    const int32_t from_ids[5] = {4, 0, 1, 5, 4}, to_ids[5] = {7, 2, -1, 1, 3};
    struct dense dense = dense_for(from, refs, ref_count, 5);
    ck_assert_int_eq(sc_state_gather(from, refs, ref_count, from_ids, 5,
        sc_host_devptr(dense.bytes), dense.count), SC_OK);
    ck_assert_int_eq(sc_state_scatter(to, refs, ref_count, to_ids, 5, sc_host_devptr(dense.bytes),
        dense.count), SC_OK);
    const uint32_t tags[8] = {0, 15, 0, 14, 104, 105, 106, 14};
    for (uint32_t slot = 0; slot < 8; slot++) {
        ck_assert_msg(fix_holds(to, slot, tags[slot]), "slot %u", slot);
    }
    dense_end(dense);
    fix_end(from, a, 5);
    fix_end(to, b, 7);
}
END_TEST

START_TEST(scatter__touches_only_the_named_parts)
{
    sc_pool *pool = fix_pool(FIX_KDA, layouts[_i], 3);
    sc_slot slots[3];
    fix_take(pool, 3, 10, slots);
    const sc_part_ref ref = {1, SC_PART_CONV, 1};
    const int32_t ids[2] = {2, 3};
    uint64_t bytes = fix_view(pool, 1).bytes;
    struct dense dense = dense_for(pool, &ref, 1, 2);
    struct fix_image before = fix_image(pool);
    ck_assert_int_eq(sc_state_scatter(pool, &ref, 1, ids, 2, sc_host_devptr(dense.bytes),
        dense.count), SC_OK);
    for (uint32_t slot = 2; slot <= 3; slot++) {
        uint8_t *at = fix_bytes(pool, 1, slot);
        ck_assert(all_are(at, bytes, 0xcc));
        memcpy(at, before.bytes + (at - (const uint8_t *)before.of), bytes); /* undo */
    }
    ck_assert(fix_same(before)); /* and nothing else had changed */
    free(before.bytes);
    dense_end(dense);
    fix_end(pool, slots, 3);
}
END_TEST

START_TEST(scatter__refuses_the_null_slot_and_duplicates)
{
    sc_pool *pool = fix_pool(FIX_KDA, layouts[_i], 70);
    sc_part_ref refs[REFS], twice[3];
    uint32_t ref_count = fix_refs(pool, refs);
    sc_slot slots[70];
    int32_t ids[70];
    fix_take(pool, 70, 0, slots);
    struct dense dense = dense_for(pool, refs, ref_count, 70);
    const int32_t null_slot[2] = {1, 0}, same[3] = {3, 2, 3};
    refuse(pool, refs, ref_count, null_slot, 2, dense, dense.count, true, SC_ERR_INVALID);
    refuse(pool, refs, ref_count, same, 3, dense, dense.count, true, SC_ERR_INVALID);
    for (int32_t i = 0; i < 70; i++) ids[i] = 70 - i;
    ids[0] = 1; /* as the last */
    refuse(pool, refs, ref_count, ids, 70, dense, dense.count, true, SC_ERR_INVALID);
    twice[0] = refs[3];
    twice[1] = refs[0];
    twice[2] = refs[3];
    refuse(pool, twice, 3, same, 2, dense, dense.count, true, SC_ERR_INVALID);
    ids[0] = 70;
    ck_assert_int_eq(sc_state_scatter(pool, refs, ref_count, ids, 70, sc_host_devptr(dense.bytes),
        dense.count), SC_OK);
    dense_end(dense);
    fix_end(pool, slots, 70);
}
END_TEST

START_TEST(gather_and_scatter__each_allocation_failing_once)
{
    enum { SLOTS = 100 };
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    const bool scatter = _i;
    sc_pool *pool = fix_pool_with(FIX_GDN, layouts[0], SLOTS, NULL, &fa.allocator, NULL);
    sc_part_ref refs[REFS];
    uint32_t ref_count = fix_refs(pool, refs);
    sc_slot slots[SLOTS];
    int32_t ids[SLOTS];
    fix_take(pool, SLOTS, 10, slots);
    for (int32_t i = 0; i < SLOTS; i++) ids[i] = i + 1;
    struct dense dense = dense_for(pool, refs, ref_count, SLOTS);
    struct fail_alloc_mark mark = fail_alloc_mark(&fa);
    for (uint64_t n = 1;; n++) {
        fail_alloc_arm(&fa, n);
        sc_devptr at = sc_host_devptr(dense.bytes);
        sc_status status = scatter ?
            sc_state_scatter(pool, refs, ref_count, ids, SLOTS, at, dense.count) :
            sc_state_gather(pool, refs, ref_count, ids, SLOTS, at, dense.count);
        if (!fail_alloc_disarm(&fa)) {
            ck_assert_int_eq(status, SC_OK);
            ck_assert_uint_gt(n, 1);
            break;
        }
        ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
        ck_assert(fix_holds(pool, 1, 11) && fix_holds(pool, SLOTS, 10 + SLOTS));
        ck_assert(all_are(dense.bytes, dense.count, 0xcc));
        ck_assert(fail_alloc_same(&fa, mark));
    }
    ck_assert(fail_alloc_same(&fa, mark));
    dense_end(dense);
    fix_end(pool, slots, SLOTS);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
}
END_TEST

static Suite *gather_suite(void)
{
    Suite *suite = suite_create("snapshot/gather");
    TCase *tcase = tcase_create("gather");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, needs_gather__only_unpadded_contiguous_pools_run_in_place);
    tcase_add_test(tcase, needs_gather__the_array_in_place_is_the_gathered_one);
    tcase_add_test(tcase, needs_gather__refuses_null);
    tcase_add_loop_test(tcase, dense_bytes__parts_start_at_256, 0, CASES);
    tcase_add_test(tcase, dense_bytes__refuses_bad_arguments);
    tcase_add_test(tcase, dense_bytes__refuses_what_overflows_64_bits);
    tcase_add_loop_test(tcase, gather__rows_in_order_with_holes_and_zeros, 0, CASES);
    tcase_add_loop_test(tcase, gather__chosen_parts_in_the_order_asked_for, 0, 2);
    tcase_add_loop_test(tcase, gather_and_scatter__refuse_bad_rows_parts_and_arrays, 0, 4);
    tcase_add_loop_test(tcase, gather_and_scatter__refuse_null_and_arrays_in_the_pool, 0, 2);
    tcase_add_loop_test(tcase, scatter__brings_back_what_gather_took, 0, CASES);
    tcase_add_loop_test(tcase, scatter__touches_only_the_named_parts, 0, 2);
    tcase_add_loop_test(tcase, scatter__refuses_the_null_slot_and_duplicates, 0, 2);
    tcase_add_loop_test(tcase, gather_and_scatter__each_allocation_failing_once, 0, 2);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(gather_suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
