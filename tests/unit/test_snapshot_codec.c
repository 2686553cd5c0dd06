/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs: what is written comes back, whatever the layouts; damaged lengths change nothing. */
#include "snapshot/codec.h"
#include "snapshot_fixture.h"

static const sc_layout layouts[2] = {SC_LAYOUT_PAGE_MAJOR, SC_LAYOUT_CONTIGUOUS};
enum { CASES = FIX_COUNT * 2 };

static const struct sc_codec *raw(void)
{
    const struct sc_codec *codec = NULL;
    ck_assert_int_eq(sc_codec_by_id(SC_CODEC_RAW, &codec), SC_OK);
    return codec;
}

static uint64_t bytes_max(const sc_pool *pool)
{
    uint64_t bytes = 0;
    ck_assert_int_eq(sc_codec_bytes_max(raw(), pool, &bytes), SC_OK);
    return bytes;
}

START_TEST(table__names_and_numbers_are_distinct_and_found)
{
    const struct sc_codec *found = NULL;
    uint32_t count = 0;
    for (; sc_codec_at(count); count++) {
        const struct sc_codec *codec = sc_codec_at(count);
        ck_assert_uint_ne(codec->id, 0);
        ck_assert_int_eq(sc_codec_by_id(codec->id, &found), SC_OK);
        ck_assert_ptr_eq(found, codec);
        ck_assert_int_eq(sc_codec_by_name(codec->name, &found), SC_OK);
        ck_assert_ptr_eq(found, codec);
    }
    ck_assert_uint_ge(count, 1);
    ck_assert_str_eq(raw()->name, "raw");
    ck_assert_int_eq(SC_CODEC_RAW, 1); /* written into records: never changes */
}
END_TEST

START_TEST(table__refuses_unknown_codecs)
{
    const struct sc_codec *found = raw();
    ck_assert_int_eq(sc_codec_by_id(0, &found), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_codec_by_id(999, &found), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_codec_by_name("zip", &found), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_codec_by_name(NULL, &found), SC_ERR_INVALID);
    ck_assert_int_eq(sc_codec_by_name("raw", NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_codec_by_id(SC_CODEC_RAW, NULL), SC_ERR_INVALID);
    ck_assert_ptr_eq(found, raw());
    ck_assert_ptr_null(sc_codec_at(UINT32_MAX));
}
END_TEST

START_TEST(raw__payload_is_the_parts_in_order_without_padding)
{
    sc_pool *pool = fix_pool((enum fixture_model)(_i / 2), layouts[_i & 1], 3);
    sc_slot slots[3];
    fix_take(pool, 3, 10, slots);
    sc_pool_info info = fix_info(pool);
    uint64_t bytes = 0, at = 0;
    ck_assert_uint_eq(bytes_max(pool), info.state_bytes);
    uint8_t *payload = malloc(info.state_bytes + 1);
    payload[info.state_bytes] = 0xcc;
    ck_assert_int_eq(sc_codec_encode(raw(), pool, slots[1], payload, info.state_bytes, &bytes),
        SC_OK);
    ck_assert_uint_eq(bytes, info.state_bytes);
    for (uint32_t part = 0; part < info.part_count; part++) {
        uint64_t part_bytes = fix_view(pool, part).bytes;
        ck_assert_mem_eq(payload + at, fix_bytes(pool, part, slots[1].id), part_bytes);
        at += part_bytes;
    }
    ck_assert_uint_eq(at, bytes);
    ck_assert_uint_eq(payload[bytes], 0xcc);
    free(payload);
    fix_end(pool, slots, 3);
}
END_TEST

START_TEST(raw__values_are_little_endian)
{
    sc_pool *pool = fix_pool(FIX_TINY, layouts[_i], 1);
    sc_slot slot;
    const float value = 1.5f;
    const uint8_t wanted[4] = {0x00, 0x00, 0xc0, 0x3f};
    uint8_t payload[16];
    uint64_t bytes = 0;
    fix_take(pool, 1, 5, &slot);
    memcpy(fix_bytes(pool, 0, slot.id), &value, sizeof value);
    ck_assert_int_eq(sc_codec_encode(raw(), pool, slot, payload, sizeof payload, &bytes), SC_OK);
    ck_assert_uint_eq(bytes, 16);
    ck_assert_mem_eq(payload, wanted, 4);
    fix_end(pool, &slot, 1);
}
END_TEST

START_TEST(raw__round_trip_between_layouts)
{
    sc_pool *from = fix_pool((enum fixture_model)(_i / 4), layouts[(_i >> 1) & 1], 3);
    sc_pool *to = fix_pool((enum fixture_model)(_i / 4), layouts[_i & 1], 3);
    sc_slot a[3], b[3];
    uint64_t cap = bytes_max(from), bytes = 0;
    uint8_t *payload = malloc(cap);
    fix_take(from, 3, 10, a);
    fix_take(to, 3, 20, b);
    struct fix_image before = fix_image(from);
    ck_assert_int_eq(sc_codec_encode(raw(), from, a[2], payload, cap, &bytes), SC_OK);
    ck_assert(fix_same(before));
    ck_assert_int_eq(sc_codec_decode(raw(), to, b[0], payload, bytes), SC_OK);
    ck_assert(fix_holds(to, b[0].id, 10 + a[2].id));
    ck_assert(fix_holds(to, b[1].id, 20 + b[1].id) && fix_holds(to, b[2].id, 20 + b[2].id));
    free(before.bytes);
    free(payload);
    fix_end(from, a, 3);
    fix_end(to, b, 3);
}
END_TEST

START_TEST(raw__the_null_slot_is_a_state_of_zeros)
{
    sc_pool *pool = fix_pool(FIX_KDA, layouts[_i], 2);
    sc_slot slots[2];
    uint64_t cap = bytes_max(pool), bytes = 0;
    uint8_t *payload = malloc(cap);
    fix_take(pool, 2, 10, slots);
    memset(payload, 0xcc, cap);
    ck_assert_int_eq(sc_codec_encode(raw(), pool, SC_SLOT_NULL, payload, cap, &bytes), SC_OK);
    for (uint64_t i = 0; i < cap; i++) ck_assert_uint_eq(payload[i], 0);
    ck_assert_int_eq(sc_codec_decode(raw(), pool, slots[0], payload, bytes), SC_OK);
    ck_assert(fix_holds(pool, slots[0].id, 0));
    free(payload);
    fix_end(pool, slots, 2);
}
END_TEST

START_TEST(raw__every_wrong_length_is_corrupt_and_changes_nothing)
{
    sc_pool *pool = fix_pool(FIX_MIXED, layouts[_i], 2);
    sc_slot slots[2];
    uint64_t cap = bytes_max(pool), bytes = 0;
    uint8_t *payload = malloc(cap + 8);
    fix_take(pool, 2, 10, slots);
    ck_assert_int_eq(sc_codec_encode(raw(), pool, slots[0], payload, cap, &bytes), SC_OK);
    struct fix_image before = fix_image(pool);
    for (uint64_t cut = 0; cut <= cap + 8; cut++) { /* cut at any byte, and too long */
        if (cut == cap) continue;
        ck_assert_int_eq(sc_codec_decode(raw(), pool, slots[1], payload, cut), SC_ERR_CORRUPT);
    }
    ck_assert_int_eq(sc_codec_decode(raw(), pool, slots[1], NULL, 0), SC_ERR_CORRUPT);
    ck_assert_int_eq(sc_codec_decode(raw(), pool, slots[1], payload, UINT64_MAX), SC_ERR_CORRUPT);
    ck_assert(fix_same(before));
    free(before.bytes);
    free(payload);
    fix_end(pool, slots, 2);
}
END_TEST

START_TEST(raw__refuses_bad_arguments_and_stale_slots)
{
    sc_pool *pool = fix_pool(FIX_GDN, layouts[_i], 3);
    sc_slot slots[3];
    uint64_t cap = bytes_max(pool), bytes = 77;
    uint8_t *payload = malloc(cap);
    fix_take(pool, 3, 10, slots);
    sc_slot gone = slots[2], beyond = {4, 1}, wrong = {slots[0].id, slots[0].generation + 2};
    ck_assert_int_eq(sc_pool_free(pool, &gone, 1), SC_OK);
    struct fix_image before = fix_image(pool);
    memset(payload, 0xcc, cap);
    ck_assert_int_eq(sc_codec_bytes_max(NULL, pool, &bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_codec_bytes_max(raw(), NULL, &bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_codec_bytes_max(raw(), pool, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_codec_encode(NULL, pool, slots[0], payload, cap, &bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_codec_encode(raw(), NULL, slots[0], payload, cap, &bytes),
        SC_ERR_INVALID);
    ck_assert_int_eq(sc_codec_encode(raw(), pool, slots[0], NULL, cap, &bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_codec_encode(raw(), pool, slots[0], payload, cap, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_codec_encode(raw(), pool, slots[0], payload, cap - 1, &bytes),
        SC_ERR_LIMIT);
    ck_assert_int_eq(sc_codec_decode(NULL, pool, slots[0], payload, cap), SC_ERR_INVALID);
    ck_assert_int_eq(sc_codec_decode(raw(), NULL, slots[0], payload, cap), SC_ERR_INVALID);
    ck_assert_int_eq(sc_codec_decode(raw(), pool, slots[0], NULL, cap), SC_ERR_INVALID);
    ck_assert_int_eq(sc_codec_decode(raw(), pool, SC_SLOT_NULL, payload, cap), SC_ERR_INVALID);
    const sc_slot stale[4] = {gone, beyond, wrong, {0, 3}};
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_int_eq(sc_codec_encode(raw(), pool, stale[i], payload, cap, &bytes),
            SC_ERR_STALE);
        ck_assert_int_eq(sc_codec_decode(raw(), pool, stale[i], payload, cap),
            stale[i].id ? SC_ERR_STALE : SC_ERR_INVALID);
    }
    /* what others may read is not written */
    static const sc_owner read_by_others[2] = {SC_OWNER_SNAPSHOT, SC_OWNER_DRAINING};
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_int_eq(sc_pool_set_owner(pool, slots[0], read_by_others[i]), SC_OK);
        ck_assert_int_eq(sc_codec_decode(raw(), pool, slots[0], payload, cap), SC_ERR_BUSY);
    }
    ck_assert_uint_eq(bytes, 77);
    for (uint64_t i = 0; i < cap; i++) ck_assert_uint_eq(payload[i], 0xcc);
    ck_assert(fix_same(before));
    free(before.bytes);
    free(payload);
    fix_end(pool, slots, 2);
}
END_TEST

START_TEST(raw__crosses_the_bus_in_one_call)
{
    struct fix_backend fix;
    fix_backend_init(&fix, _i == 0);
    sc_pool *pool = fix_pool_with(FIX_KDA, layouts[1], 2, &fix.backend, NULL, NULL);
    sc_slot slots[2];
    uint64_t cap = bytes_max(pool), bytes = 0;
    uint8_t *payload = malloc(cap);
    fix_take(pool, 2, 10, slots);
    fix_backend_reset(&fix);
    ck_assert_int_eq(sc_codec_encode(raw(), pool, slots[0], payload, cap, &bytes), SC_OK);
    ck_assert_uint_eq(fix.calls, 1);
    ck_assert_uint_eq(fix.syncs, 1);
    ck_assert_uint_eq(fix.bytes, cap);
    ck_assert_int_eq((int)fix.kind, _i == 0 ? SC_COPY_D2D : SC_COPY_D2H);
    ck_assert_int_eq(sc_codec_decode(raw(), pool, slots[1], payload, bytes), SC_OK);
    ck_assert_uint_eq(fix.calls, 2);
    ck_assert_int_eq((int)fix.kind, _i == 0 ? SC_COPY_D2D : SC_COPY_H2D);
    ck_assert(fix_holds(pool, slots[1].id, 10 + slots[0].id));
    fix_backend_reset(&fix);
    fix.fail_call = 1;
    bytes = 77;
    ck_assert_int_eq(sc_codec_encode(raw(), pool, slots[0], payload, cap, &bytes),
        SC_ERR_DEVICE_LOST);
    ck_assert_uint_eq(bytes, 77);
    fix_backend_reset(&fix);
    free(payload);
    fix_end(pool, slots, 2);
}
END_TEST

/* Many parts: more spans than a mover holds by itself. */
START_TEST(raw__each_allocation_failing_once)
{
    enum { PARTS = 300 };
    sc_part parts[PARTS];
    const sc_group group = {"g", 16};
    struct fail_alloc fa;
    sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
    sc_pool_options pool_options = SC_POOL_OPTIONS_INIT;
    sc_schema *schema = NULL;
    sc_pool *pool = NULL;
    sc_slot slots[2];
    for (uint32_t i = 0; i < PARTS; i++) parts[i] = fix_conv(i, 0, 0, 5);
    options.model = options.revision = "deep";
    options.groups = &group;
    options.group_count = 1;
    options.parts = parts;
    options.part_count = options.layer_count = PARTS;
    ck_assert_int_eq(sc_schema_create(&options, &schema), SC_OK);
    fail_alloc_init(&fa);
    pool_options.schema = schema;
    pool_options.slot_count = 2;
    pool_options.allocator = &fa.allocator;
    ck_assert_int_eq(sc_pool_create(&pool_options, &pool), SC_OK);
    sc_schema_release(schema);
    fix_take(pool, 2, 10, slots);
    uint64_t cap = bytes_max(pool), bytes = 77;
    uint8_t *payload = malloc(cap);
    struct fail_alloc_mark mark = fail_alloc_mark(&fa);
    for (uint64_t n = 1;; n++) {
        fail_alloc_arm(&fa, n);
        sc_status status = _i ? sc_codec_decode(raw(), pool, slots[1], payload, cap) :
            sc_codec_encode(raw(), pool, slots[0], payload, cap, &bytes);
        if (!fail_alloc_disarm(&fa)) {
            ck_assert_int_eq(status, SC_OK);
            ck_assert_uint_gt(n, 1);
            break;
        }
        ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
        ck_assert_uint_eq(bytes, 77);
        ck_assert(fail_alloc_same(&fa, mark));
        ck_assert(fix_holds(pool, slots[1].id, 10 + slots[1].id));
        if (_i) memset(payload, 0, cap); /* what decode will read once it has memory */
    }
    ck_assert(fail_alloc_same(&fa, mark));
    ck_assert(fix_holds(pool, slots[1].id, _i ? 0 : 10 + slots[1].id));
    free(payload);
    fix_end(pool, slots, 2);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
}
END_TEST

static Suite *codec_suite(void)
{
    Suite *suite = suite_create("snapshot/codec");
    TCase *tcase = tcase_create("codec");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, table__names_and_numbers_are_distinct_and_found);
    tcase_add_test(tcase, table__refuses_unknown_codecs);
    tcase_add_loop_test(tcase, raw__payload_is_the_parts_in_order_without_padding, 0, CASES);
    tcase_add_loop_test(tcase, raw__values_are_little_endian, 0, 2);
    tcase_add_loop_test(tcase, raw__round_trip_between_layouts, 0, 2 * CASES);
    tcase_add_loop_test(tcase, raw__the_null_slot_is_a_state_of_zeros, 0, 2);
    tcase_add_loop_test(tcase, raw__every_wrong_length_is_corrupt_and_changes_nothing, 0, 2);
    tcase_add_loop_test(tcase, raw__refuses_bad_arguments_and_stale_slots, 0, 2);
    tcase_add_loop_test(tcase, raw__crosses_the_bus_in_one_call, 0, 2);
    tcase_add_loop_test(tcase, raw__each_allocation_failing_once, 0, 2);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(codec_suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
