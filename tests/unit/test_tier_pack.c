/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs with loss, their error against what is documented, and states through pack, a store and
 * back. The figures of docs/reference/codecs.md are printed here. */
#include <math.h>

#include "snapshot_fixture.h"
#include "tier/pack.h"
#include "tier_fixture.h"

static struct sc_heap heap_of(struct fail_alloc *fa)
{
    struct sc_heap heap;
    ck_assert_int_eq(sc_heap_init(&heap, SC_SUBSYSTEM_SNAPSHOT, fa ? &fa->allocator : NULL),
        SC_OK);
    return heap;
}

/* Fills matrices with numbers as states have them: normal, of a size that differs by row. */
static void fill_state(const sc_pool *pool, uint32_t slot, uint64_t seed)
{
    struct sc_prng prng;
    uint32_t parts = fix_info(pool).part_count;
    sc_prng_seed(&prng, seed);
    fix_fill(pool, slot, 1);
    for (uint32_t p = 0; p < parts; p++) {
        sc_layer_view view = fix_view(pool, p);
        if (view.dim_count != 3) continue;
        uint64_t rows = (uint64_t)view.dims[0] * view.dims[1];
        uint8_t *bytes = fix_bytes(pool, p, slot);
        for (uint64_t row = 0; row < rows; row++) {
            double size = exp(sc_prng_normal(&prng));
            for (uint32_t k = 0; k < view.dims[2]; k++) {
                float x = (float)(sc_prng_normal(&prng) * size);
                uint32_t bits;
                memcpy(&bits, &x, sizeof bits);
                uint16_t half = (uint16_t)(bits >> 16);
                uint64_t at = row * view.dims[2] + k;
                if (view.dtype == SC_DTYPE_F32) memcpy(bytes + at * 4, &x, 4);
                else memcpy(bytes + at * 2, &half, 2);
            }
        }
    }
}

static float value_at(const sc_layer_view *view, const uint8_t *bytes, uint64_t at)
{
    uint32_t bits = 0;
    uint16_t half;
    float x;
    if (view->dtype == SC_DTYPE_F32) {
        memcpy(&bits, bytes + at * 4, 4);
    } else {
        memcpy(&half, bytes + at * 2, 2);
        bits = (uint32_t)half << 16;
    }
    memcpy(&x, &bits, 4);
    return x;
}

struct error { double worst, square, weight; };

/* Of matrices: the worst of |x' - x| / limit, limit from the element (bf16) or the row (int8).
 * Everything else must be the same bytes. */
static struct error compare(const sc_pool *pool, uint32_t a, uint32_t b, uint32_t codec)
{
    struct error error = {0, 0, 0};
    uint32_t parts = fix_info(pool).part_count;
    for (uint32_t p = 0; p < parts; p++) {
        sc_layer_view view = fix_view(pool, p);
        const uint8_t *x = fix_bytes(pool, p, a), *y = fix_bytes(pool, p, b);
        bool exact = view.dim_count != 3 ||
            (codec == SC_CODEC_BF16 && view.dtype != SC_DTYPE_F32) || codec == SC_CODEC_RAW;
        if (exact) {
            ck_assert_mem_eq(x, y, view.bytes);
            continue;
        }
        uint64_t rows = (uint64_t)view.dims[0] * view.dims[1];
        for (uint64_t row = 0; row < rows; row++) {
            double most = 0;
            for (uint32_t k = 0; k < view.dims[2]; k++) {
                most = fmax(most, fabs((double)value_at(&view, x, row * view.dims[2] + k)));
            }
            for (uint32_t k = 0; k < view.dims[2]; k++) {
                double from = (double)value_at(&view, x, row * view.dims[2] + k);
                double to = (double)value_at(&view, y, row * view.dims[2] + k);
                double off = fabs(to - from);
                double against = codec == SC_CODEC_BF16 ? fabs(from) : most;
                if (against > 0) error.worst = fmax(error.worst, off / against);
                error.square += off * off;
                error.weight += from * from;
            }
        }
    }
    return error;
}

/* An int8 of a bf16 matrix is rounded once more when it comes back. */
static const struct { const char *name; uint32_t codec; double f32_limit, bf16_limit; } lossy[2] = {
    {"bf16", SC_CODEC_BF16, 0x1p-8, 0}, {"int8", SC_CODEC_INT8, 1.001 / 254, 1.001 / 254 + 0x1p-8},
};

START_TEST(quant__error_is_what_is_documented)
{
    sc_schema *schema = NULL;
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    sc_pool *pool = NULL;
    sc_slot slots[2];
    ck_assert_int_eq(sc_schema_preset("qwen3-next-80b-a3b",
        _i & 1 ? SC_DTYPE_BF16 : SC_DTYPE_F32, &schema), SC_OK);
    options.schema = schema;
    options.slot_count = 2;
    options.shard = (sc_shard){0, 8, 0, 1, 0, 0}; /* an eighth: quick */
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
    sc_schema_release(schema);
    ck_assert_int_eq(sc_pool_alloc(pool, 2, SC_OWNER_WORKING, slots), SC_OK);
    fill_state(pool, slots[0].id, 5);
    struct sc_heap heap = heap_of(NULL);
    struct sc_packed packed;
    struct sc_pack_options pack = {lossy[_i / 2].codec, true, 0};
    ck_assert_int_eq(sc_pack(&pack, pool, slots[0], 0, &heap, &packed), SC_OK);
    ck_assert_int_eq(sc_unpack(pool, slots[1], packed.codec, packed.flags, packed.bytes,
        packed.state_bytes, packed.plain_bytes, &heap), SC_OK);
    struct error error = compare(pool, slots[0].id, slots[1].id, pack.codec);
    double limit = _i & 1 ? lossy[_i / 2].bf16_limit : lossy[_i / 2].f32_limit;
    ck_assert_msg(error.worst <= limit, "%g", error.worst);
    if (limit > 0) ck_assert_double_gt(error.worst, limit / 4); /* it is lossy, as it says */
    double rms = error.weight > 0 ? sqrt(error.square / error.weight) : 0;
    (void)printf("%s of %s matrices: worst %.5f of the %s, rms %.5f of the state, %.3f of raw\n",
        lossy[_i / 2].name, _i & 1 ? "bf16" : "f32", error.worst,
        pack.codec == SC_CODEC_BF16 ? "element" : "row's largest", rms,
        (double)packed.state_bytes / (double)fix_info(pool).state_bytes);
    sc_packed_free(&heap, &packed);
    fix_end(pool, slots, 2);
}
END_TEST

START_TEST(quant__encoding_what_was_decoded_changes_nothing_more)
{
    sc_pool *pool = fix_pool(FIX_MIXED, SC_LAYOUT_CONTIGUOUS, 3);
    sc_slot slots[3];
    fix_take(pool, 3, 0, slots);
    fill_state(pool, slots[0].id, 9);
    for (uint32_t i = 0; i < 2; i++) {
        const struct sc_codec *codec = NULL;
        uint64_t cap = 0, first = 0, second = 0;
        ck_assert_int_eq(sc_codec_by_id(lossy[i].codec, &codec), SC_OK);
        ck_assert(codec->lossy);
        ck_assert_str_eq(codec->name, lossy[i].name);
        ck_assert_int_eq(sc_codec_bytes_max(codec, pool, &cap), SC_OK);
        uint8_t *a = malloc(cap), *b = malloc(cap);
        ck_assert_int_eq(sc_codec_encode(codec, pool, slots[0], a, cap, &first), SC_OK);
        ck_assert_uint_eq(first, cap);
        ck_assert_int_eq(sc_codec_decode(codec, pool, slots[1], a, first), SC_OK);
        ck_assert_int_eq(sc_codec_encode(codec, pool, slots[1], b, cap, &second), SC_OK);
        ck_assert_uint_eq(second, first);
        if (lossy[i].codec == SC_CODEC_BF16) ck_assert_mem_eq(a, b, cap);
        for (uint64_t cut = 0; cut < cap; cut++) { /* every length but its own */
            ck_assert_int_eq(sc_codec_decode(codec, pool, slots[1], a, cut), SC_ERR_CORRUPT);
        }
        free(a);
        free(b);
    }
    fix_end(pool, slots, 3);
}
END_TEST

START_TEST(quant__values_that_cannot_be_held_are_refused)
{
    static const float bad[4] = {NAN, INFINITY, -INFINITY, 0x1.fffffep127f};
    sc_pool *pool = fix_pool(FIX_TINY, SC_LAYOUT_PAGE_MAJOR, 2);
    sc_slot slots[2];
    uint8_t payload[64];
    uint64_t bytes = 77;
    fix_take(pool, 2, 0, slots);
    for (uint32_t slot = 0; slot < 2; slot++) {
        for (uint32_t part = 0; part < 2; part++) {
            memset(fix_bytes(pool, part, slots[slot].id), 0, 8);
        }
    }
    for (uint32_t i = 0; i < 4; i++) {
        memcpy(fix_bytes(pool, 1, slots[0].id) + 4, &bad[i], 4);
        for (uint32_t c = 0; c < 2; c++) {
            const struct sc_codec *codec = NULL;
            ck_assert_int_eq(sc_codec_by_id(lossy[c].codec, &codec), SC_OK);
            sc_status status = sc_codec_encode(codec, pool, slots[0], payload, 64, &bytes);
            bool holds = i == 3 && codec->id == SC_CODEC_INT8; /* the largest float is finite */
            ck_assert_int_eq(status, holds ? SC_OK : SC_ERR_UNSUPPORTED);
        }
    }
    fix_end(pool, slots, 2);
}
END_TEST

START_TEST(quant__bad_payloads_are_corrupt_and_change_nothing)
{
    sc_pool *pool = fix_pool(FIX_TINY, SC_LAYOUT_PAGE_MAJOR, 1);
    sc_slot slot;
    const struct sc_codec *codec = NULL;
    static const float scales[3] = {-1, NAN, INFINITY};
    fix_take(pool, 1, 5, &slot);
    struct fix_image before = fix_image(pool);
    ck_assert_int_eq(sc_codec_by_id(SC_CODEC_INT8, &codec), SC_OK);
    for (uint32_t i = 0; i < 3; i++) { /* of the second part: the first one was good */
        uint8_t payload[12] = {0};
        memcpy(payload + 6, &scales[i], 4);
        ck_assert_int_eq(sc_codec_decode(codec, pool, slot, payload, 12), SC_ERR_CORRUPT);
    }
    uint8_t lowest[12] = {0};
    lowest[11] = 0x80;
    ck_assert_int_eq(sc_codec_decode(codec, pool, slot, lowest, 12), SC_ERR_CORRUPT);
    ck_assert_int_eq(sc_codec_by_id(SC_CODEC_BF16, &codec), SC_OK);
    uint8_t infinite[8] = {0, 0, 0, 0, 0, 0, 0x80, 0x7f};
    ck_assert_int_eq(sc_codec_decode(codec, pool, slot, infinite, 8), SC_ERR_CORRUPT);
    ck_assert(fix_same(before));
    free(before.bytes);
    fix_end(pool, &slot, 1);
}
END_TEST

/* Each codec, with zstd and without, through a store and a restart. */
START_TEST(pack__states_come_back_from_a_store)
{
    char folder[200];
    tier_folder_make(folder, sizeof folder, true);
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    sc_pool *pool = fix_pool((enum fixture_model)_i, SC_LAYOUT_PAGE_MAJOR, 2);
    struct sc_heap heap = heap_of(NULL);
    sc_slot slots[2];
    fix_take(pool, 2, 0, slots);
    fill_state(pool, slots[0].id, 3);
    for (uint32_t n = 0; n < 6; n++) {
        struct sc_pack_options pack = {n % 3 + 1, n % 3 != 0, n < 3 ? 0 : 3};
        struct sc_packed packed;
        struct sc_store_put *put = NULL;
        struct tier_key key;
        sc_status each;
        tier_key_init(&key, n, 16);
        struct sc_store_record record = tier_record(&key);
        ck_assert_int_eq(sc_pack(&pack, pool, slots[0], 0, &heap, &packed), SC_OK);
        struct sc_store_payload payload = {packed.bytes, packed.state_bytes, 0,
            packed.plain_bytes, packed.codec, packed.flags};
        ck_assert_int_eq(sc_store_begin(store, &record, false, &put), SC_OK);
        ck_assert_int_eq(sc_store_shard(store, put, 0, &payload, 0), SC_OK);
        ck_assert_int_eq(sc_store_commit(store, &put, 1, 0, &each), SC_OK);
        ck_assert_int_eq(each, SC_OK);
        sc_packed_free(&heap, &packed);
    }
    sc_store_close(store);
    store = tier_open(&options);
    for (uint32_t n = 0; n < 6; n++) {
        struct sc_store_want want = tier_want();
        struct sc_store_reader *reader = NULL;
        struct sc_store_shard_info info;
        enum sc_store_reason reason;
        struct tier_key key;
        uint8_t bytes[8192];
        want.lossy = true;
        tier_key_init(&key, n, 16);
        ck_assert_int_eq(sc_store_reader_open(store, &key.key, &want, &reason, &reader), SC_OK);
        ck_assert_int_eq(sc_store_reader_shard(reader, 0, &info), SC_OK);
        ck_assert_uint_eq(info.codec, n % 3 + 1);
        ck_assert_uint_eq(info.flags & SC_STORE_LOSSY, n % 3 ? SC_STORE_LOSSY : 0);
        ck_assert_int_eq(sc_store_read(reader, 0, bytes, sizeof bytes), SC_OK);
        ck_assert_int_eq(sc_unpack(pool, slots[1], info.codec, info.flags, bytes,
            info.state_bytes, info.plain_bytes, &heap), SC_OK);
        (void)compare(pool, slots[0].id, slots[1].id, info.codec);
        if (info.codec == SC_CODEC_RAW) (void)compare(pool, slots[0].id, slots[1].id, 1);
        sc_store_reader_close(reader);
    }
    sc_store_close(store);
    fix_end(pool, slots, 2);
    tier_folder_remove(folder);
}
END_TEST

START_TEST(pack__refuses_loss_unless_allowed_and_bad_arguments)
{
    sc_pool *pool = fix_pool(FIX_DENSE, SC_LAYOUT_PAGE_MAJOR, 1);
    struct sc_heap heap = heap_of(NULL);
    struct sc_packed packed;
    sc_slot slot;
    fix_take(pool, 1, 0, &slot);
    fill_state(pool, slot.id, 3);
    struct sc_pack_options pack = {SC_CODEC_BF16, false, 0};
    ck_assert_int_eq(sc_pack(&pack, pool, slot, 0, &heap, &packed), SC_ERR_UNSUPPORTED);
    pack.codec = 99;
    ck_assert_int_eq(sc_pack(&pack, pool, slot, 0, &heap, &packed), SC_ERR_NOT_FOUND);
    pack.codec = SC_CODEC_RAW;
    pack.zstd_level = 20;
    ck_assert_int_eq(sc_pack(&pack, pool, slot, 0, &heap, &packed), SC_ERR_INVALID);
    pack.zstd_level = -1;
    ck_assert_int_eq(sc_pack(&pack, pool, slot, 0, &heap, &packed), SC_ERR_INVALID);
    pack.zstd_level = 0;
    ck_assert_int_eq(sc_pack(NULL, pool, slot, 0, &heap, &packed), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pack(&pack, pool, (sc_slot){1, 77}, 0, &heap, &packed), SC_ERR_STALE);
    fix_end(pool, &slot, 1);
}
END_TEST

/* Report 118: whatever the bytes and lengths say, an error, and the slot stays. */
START_TEST(report_118__damaged_frames_change_nothing)
{
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    struct sc_heap heap = heap_of(&fa);
    sc_pool *pool = fix_pool(FIX_KDA, SC_LAYOUT_PAGE_MAJOR, 2);
    struct sc_pack_options pack = {SC_CODEC_RAW, false, 3};
    struct sc_packed packed;
    sc_slot slots[2];
    fix_take(pool, 2, 0, slots);
    for (uint32_t part = 0; part < fix_info(pool).part_count; part++) {
        memset(fix_bytes(pool, part, slots[0].id), 7, fix_view(pool, part).bytes);
    }
    fix_fill(pool, slots[1].id, 5);
    ck_assert_int_eq(sc_pack(&pack, pool, slots[0], 100, &heap, &packed), SC_OK);
    ck_assert(packed.flags & SC_STORE_ZSTD);
    ck_assert_uint_lt(packed.state_bytes, packed.plain_bytes / 2);
    ck_assert_uint_ge(packed.capacity, packed.state_bytes + 100);
    struct fix_image before = fix_image(pool);
    for (uint64_t cut = 0; cut < packed.state_bytes; cut++) {
        ck_assert_int_eq(sc_unpack(pool, slots[1], 1, packed.flags, packed.bytes, cut,
            packed.plain_bytes, &heap), SC_ERR_CORRUPT);
    }
    static const uint64_t lengths[4] = {0, 1, UINT32_MAX, UINT64_MAX};
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_int_eq(sc_unpack(pool, slots[1], 1, packed.flags, packed.bytes,
            packed.state_bytes, lengths[i], &heap), SC_ERR_CORRUPT);
        ck_assert_int_eq(sc_unpack(pool, slots[1], 1, 0, packed.bytes, packed.state_bytes,
            lengths[i], &heap), SC_ERR_CORRUPT);
    }
    ck_assert_int_eq(sc_unpack(pool, slots[1], 9, 0, packed.bytes, 1, 1, &heap),
        SC_ERR_NOT_FOUND);
    ck_assert(fix_same(before));
    ck_assert_int_eq(sc_unpack(pool, slots[1], 1, packed.flags, packed.bytes, packed.state_bytes,
        packed.plain_bytes, &heap), SC_OK);
    (void)compare(pool, slots[0].id, slots[1].id, SC_CODEC_RAW);
    sc_packed_free(&heap, &packed);
    for (uint64_t n = 1;; n++) { /* and each allocation */
        fail_alloc_arm(&fa, n);
        sc_status status = sc_pack(&pack, pool, slots[0], 100, &heap, &packed);
        if (!fail_alloc_disarm(&fa)) {
            ck_assert_int_eq(status, SC_OK);
            break;
        }
        ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
        ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
    }
    sc_packed_free(&heap, &packed);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
    free(before.bytes);
    fix_end(pool, slots, 2);
}
END_TEST

static Suite *pack_suite(void)
{
    Suite *suite = suite_create("tier/pack");
    TCase *tcase = tcase_create("pack");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, quant__error_is_what_is_documented, 0, 4);
    tcase_add_test(tcase, quant__encoding_what_was_decoded_changes_nothing_more);
    tcase_add_test(tcase, quant__values_that_cannot_be_held_are_refused);
    tcase_add_test(tcase, quant__bad_payloads_are_corrupt_and_change_nothing);
    tcase_add_loop_test(tcase, pack__states_come_back_from_a_store, 0, FIX_COUNT);
    tcase_add_test(tcase, pack__refuses_loss_unless_allowed_and_bad_arguments);
    tcase_add_test(tcase, report_118__damaged_frames_change_nothing);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return tier_main(pack_suite());
}
