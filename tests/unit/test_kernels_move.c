/* SPDX-License-Identifier: Apache-2.0 */
/* Movers: every pair of dtypes against plain arithmetic, slots and dense arrays at either end,
 * skipped rows and the null slot, all parts in one call, poisoned memory. */
#include <check.h>
#include <math.h>

#include "kernels_rig.h"
#include "support/check_main.h"
#include "statecache/kernels_move.h"

enum { ROWS = 5, SLOTS = 8, TYPES = 3, PARTS = 2 };

static const sc_dtype types[TYPES] = {SC_DTYPE_F32, SC_DTYPE_BF16, SC_DTYPE_U8};

/* One end of a part: SLOTS entries, with scales for U8, every byte poison at first. */
struct end {
    sc_k_slots slots, scale;
    uint8_t *memory;
    float *scales;
    size_t bytes;
    uint32_t rows, elems;
};

static size_t dtype_bytes(sc_dtype dtype)
{
    return dtype == SC_DTYPE_U8 ? 1 : rig_elem(dtype);
}

static struct end end_open(sc_dtype dtype, uint32_t rows, uint32_t elems, size_t margin)
{
    struct end e = {.rows = rows, .elems = elems};
    size_t stride = (size_t)rows * elems * dtype_bytes(dtype) + margin;
    e.bytes = stride * SLOTS;
    e.memory = rig_alloc(e.bytes);
    e.scales = rig_alloc((size_t)SLOTS * rows * 4);
    e.slots = (sc_k_slots){.base = sc_host_devptr(e.memory), .slot_stride = (int64_t)stride,
        .dtype = dtype, .slot_count = SLOTS};
    if (dtype == SC_DTYPE_U8)
        e.scale = (sc_k_slots){.base = sc_host_devptr(e.scales), .slot_stride = (int64_t)rows * 4,
            .dtype = SC_DTYPE_F32, .slot_count = SLOTS};
    return e;
}

static uint8_t *end_at(const struct end *e, int32_t id)
{
    return e->memory + (size_t)id * (size_t)e->slots.slot_stride;
}

/* What slot `id` means, as fp32. */
static void end_read(const struct end *e, int32_t id, float *out)
{
    size_t n = (size_t)e->rows * e->elems;
    if (e->slots.dtype != SC_DTYPE_U8) {
        rig_read(out, end_at(e, id), e->slots.dtype, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = (float)(int8_t)end_at(e, id)[i] * e->scales[(size_t)id * e->rows + i / e->elems];
}

static void end_fill(const struct end *e, int32_t id, uint64_t seed)
{
    struct sc_prng prng;
    size_t n = (size_t)e->rows * e->elems;
    sc_prng_seed(&prng, seed);
    float *x = rig_normal(&prng, n, 3.0f);
    for (size_t i = 0; i < e->elems; i++) x[i] = 0.0f; /* a row of zeros */
    if (e->slots.dtype != SC_DTYPE_U8) {
        rig_put(end_at(e, id), e->slots.dtype, x, n);
    } else {
        for (size_t i = 0; i < n; i++) end_at(e, id)[i] = (uint8_t)(int8_t)(20.0f * x[i]);
        for (uint32_t r = 0; r < e->rows; r++)
            e->scales[(size_t)id * e->rows + r] = 0.01f * (float)(r + 1);
    }
    free(x);
}

static void end_close(struct end *e)
{
    free(e->memory), free(e->scales);
}

/* `got` is what becomes of `want` (fp32 of the source) in the dtype of the destination. */
static void compare(const float *want, const float *got, const struct end *to)
{
    for (uint32_t r = 0; r < to->rows; r++) {
        float most = 0;
        for (uint32_t i = 0; i < to->elems; i++)
            most = fmaxf(most, fabsf(want[(size_t)r * to->elems + i]));
        for (uint32_t i = 0; i < to->elems; i++) {
            float x = want[(size_t)r * to->elems + i], y = got[(size_t)r * to->elems + i];
            if (to->slots.dtype == SC_DTYPE_U8)
                ck_assert_double_le((double)fabsf(x - y), (double)most / 253.9);
            else
                ck_assert(y == (to->slots.dtype == SC_DTYPE_BF16 ? rig_wide(rig_bf16(x)) : x));
        }
    }
}

/* Slots to slots: a copied row, two skipped ones, the null slot, another copy. */
START_TEST(move__between_slots_of_any_two_dtypes)
{
    int32_t source[ROWS] = {1, -1, 3, 0, 2}, dest[ROWS] = {4, 5, -1, 6, 7};
    struct end from[PARTS], to[PARTS];
    sc_k_move_part parts[PARTS];
    for (uint32_t i = 0; i < PARTS; i++) {
        uint32_t rows = i ? 3 : 8, elems = i ? 1030 : 37;
        from[i] = end_open(types[_i % TYPES], rows, elems, i ? 64 : 0);
        to[i] = end_open(types[_i / TYPES], rows, elems, i ? 0 : 20);
        for (int32_t s = 1; s <= 3; s++) end_fill(&from[i], s, (uint64_t)(10 * s) + i);
        parts[i] = (sc_k_move_part){.from = from[i].slots, .to = to[i].slots,
            .from_scale = from[i].scale, .to_scale = to[i].scale, .rows = rows,
            .row_elems = elems};
    }
    sc_k_move_params p = {.parts = parts, .part_count = PARTS, .row_count = ROWS,
        .source = sc_host_devptr(source), .dest = sc_host_devptr(dest)};
    RIG_OK(sc_k_move(NULL, &p, NULL));
    for (uint32_t i = 0; i < PARTS; i++) {
        size_t n = (size_t)to[i].rows * to[i].elems;
        size_t part = n * dtype_bytes(to[i].slots.dtype);
        float *want = rig_alloc(n * 4), *got = rig_alloc(n * 4);
        for (uint32_t r = 0; r < ROWS; r++) {
            if (source[r] < 0 || dest[r] < 0) continue;
            if (source[r] == 0)
                memset(want, 0, n * 4);
            else
                end_read(&from[i], source[r], want);
            end_read(&to[i], dest[r], got);
            compare(want, got, &to[i]);
            if (source[r] > 0 && from[i].slots.dtype == to[i].slots.dtype)
                ck_assert_mem_eq(end_at(&from[i], source[r]), end_at(&to[i], dest[r]), part);
            rig_all_bytes(end_at(&to[i], dest[r]) + part,
                (size_t)to[i].slots.slot_stride - part, 0xff); /* the margin */
        }
        for (int32_t s = 0; s < SLOTS; s++)
            if (s < 4 || s == 5) rig_all_bytes(end_at(&to[i], s), part, 0xff);
        free(want), free(got);
    }
    for (uint32_t i = 0; i < PARTS; i++) end_close(&from[i]), end_close(&to[i]);
}
END_TEST

/* Gather to a dense array and scatter back: entry r belongs to row r. */
START_TEST(move__gathers_and_scatters)
{
    int32_t slots[ROWS] = {6, 2, -1, 1, 4};
    struct end pool = end_open(types[_i], 4, 48, 16), back = end_open(types[_i], 4, 48, 16);
    struct end dense = end_open(types[_i], 4, 48, 0);
    for (int32_t s = 1; s < SLOTS; s++) end_fill(&pool, s, (uint64_t)s);
    sc_k_move_part part = {.from = pool.slots, .to = dense.slots, .from_scale = pool.scale,
        .to_scale = dense.scale, .rows = 4, .row_elems = 48};
    sc_k_move_params p = {.parts = &part, .part_count = 1, .row_count = ROWS,
        .source = sc_host_devptr(slots)};
    size_t bytes = 4 * 48 * dtype_bytes(types[_i]);
    RIG_OK(sc_k_move(NULL, &p, NULL));
    rig_all_bytes(end_at(&dense, 2), bytes, 0xff);
    part = (sc_k_move_part){.from = dense.slots, .to = back.slots, .from_scale = dense.scale,
        .to_scale = back.scale, .rows = 4, .row_elems = 48};
    p.source = 0, p.dest = sc_host_devptr(slots);
    RIG_OK(sc_k_move(NULL, &p, NULL));
    for (uint32_t r = 0; r < ROWS; r++)
        if (slots[r] > 0) {
            ck_assert_mem_eq(end_at(&pool, slots[r]), end_at(&dense, (int32_t)r), bytes);
            ck_assert_mem_eq(end_at(&pool, slots[r]), end_at(&back, slots[r]), bytes);
        }
    for (int32_t s = 0; s < SLOTS; s++)
        if (s == 0 || s == 3 || s == 5 || s == 7) rig_all_bytes(end_at(&back, s), bytes, 0xff);
    end_close(&pool), end_close(&dense), end_close(&back);
}
END_TEST

START_TEST(move__int8_keeps_zeros_and_shows_what_is_not_finite)
{
    struct end from = end_open(SC_DTYPE_F32, 4, 5, 0), to = end_open(SC_DTYPE_U8, 4, 5, 0);
    static const float x[20] = {0, 0, 0, 0, 0, 1e-37f, 0, 0, 0, 0, 1, NAN, 0, 2, 3,
        -127.0f, 0.5f, 1.5f, 2.5f, 127.0f}; /* ties go to even */
    static const int8_t want[5] = {-127, 0, 2, 2, 127};
    int32_t source = 1, dest = 2;
    memcpy(end_at(&from, 1), x, sizeof x);
    sc_k_move_part part = {.from = from.slots, .to = to.slots, .to_scale = to.scale, .rows = 4,
        .row_elems = 5};
    sc_k_move_params p = {.parts = &part, .part_count = 1, .row_count = 1,
        .source = sc_host_devptr(&source), .dest = sc_host_devptr(&dest)};
    RIG_OK(sc_k_move(NULL, &p, NULL));
    rig_all_bytes(end_at(&to, 2), 10, 0);
    ck_assert(to.scales[8] == 0.0f && to.scales[9] == 0.0f);
    ck_assert(isnan(to.scales[10]));
    ck_assert(to.scales[11] == 1.0f);
    ck_assert_mem_eq(end_at(&to, 2) + 15, want, 5);
    end_close(&from), end_close(&to);
}
END_TEST

START_TEST(move__a_slot_onto_itself_is_left_alone)
{
    int32_t ids[2] = {1, 2};
    struct end pool = end_open(SC_DTYPE_F32, 2, 9, 0);
    end_fill(&pool, 1, 1);
    uint8_t before[72];
    memcpy(before, end_at(&pool, 1), sizeof before);
    sc_k_move_part part = {.from = pool.slots, .to = pool.slots, .rows = 2, .row_elems = 9};
    sc_k_move_params p = {.parts = &part, .part_count = 1, .row_count = 2,
        .source = sc_host_devptr(ids), .dest = sc_host_devptr(ids)};
    RIG_OK(sc_k_move(NULL, &p, NULL));
    ck_assert_mem_eq(end_at(&pool, 1), before, sizeof before);
    end_close(&pool);
}
END_TEST

#ifndef SC_TEST_GPU /* the same checks; index arrays are not read beforehand there */
START_TEST(move__refuses_bad_arguments)
{
    int32_t source[2] = {1, 2}, dest[2] = {3, 4};
    struct end from = end_open(SC_DTYPE_F32, 2, 9, 0), to = end_open(SC_DTYPE_U8, 2, 9, 0);
    end_fill(&from, 1, 1), end_fill(&from, 2, 2);
    sc_k_move_part part = {.from = from.slots, .to = to.slots, .to_scale = to.scale, .rows = 2,
        .row_elems = 9};
    sc_k_move_params p = {.parts = &part, .part_count = 1, .row_count = 2,
        .source = sc_host_devptr(source), .dest = sc_host_devptr(dest)};
    ck_assert_int_eq(sc_k_move(NULL, NULL, NULL), SC_ERR_INVALID);
#define REFUSED(want, field, value)                                                                \
    do {                                                                                           \
        __typeof__(field) good_ = (field);                                                         \
        (field) = (value);                                                                         \
        sc_status got_ = sc_k_move(NULL, &p, NULL);                                                \
        ck_assert_msg(got_ == (want), "%s = %s: %s", #field, #value, sc_status_name(got_));        \
        ck_assert_uint_gt(strlen(sc_last_error()->text), 3);                                       \
        (field) = good_;                                                                           \
    } while (0)
#define INVALID(field, value) REFUSED(SC_ERR_INVALID, field, value)
    INVALID(p.parts, NULL);
    INVALID(p.part_count, 0);
    INVALID(p.row_count, UINT32_MAX);
    INVALID(p.source, p.source + 1);
    INVALID(p.dest, p.dest + 2);
    INVALID(part.rows, 0);
    INVALID(part.row_elems, 0);
    INVALID(part.row_elems, 10); /* more than the stride */
    INVALID(part.from.base, 0);
    INVALID(part.from.base, part.from.base + 1);
    INVALID(part.to.base, 0);
    INVALID(part.to.slot_stride, 0);
    INVALID(part.to_scale.base, 0);
    INVALID(part.to_scale.slot_stride, 4);
    INVALID(part.from_scale, part.to_scale); /* scales beside F32 */
    INVALID(source[0], SLOTS);
    INVALID(dest[1], SLOTS);
    INVALID(dest[1], 3);         /* two rows into one slot */
    INVALID(dest[1], 0);         /* the null slot */
    INVALID(part.to, part.from); /* then scales are too many */
    REFUSED(SC_ERR_UNSUPPORTED, part.from.dtype, SC_DTYPE_F16);
    REFUSED(SC_ERR_UNSUPPORTED, part.to_scale.dtype, SC_DTYPE_BF16);
    part.to = part.from, part.to_scale = (sc_k_slots){0};
    INVALID(dest[1], 1);         /* another row's source, in one memory */
    part.to.dtype = SC_DTYPE_BF16;
    INVALID(dest[0], 1);         /* converted onto itself */
    rig_all_bytes(to.memory, to.bytes, 0xff);
    rig_all_bytes(end_at(&from, 3), 72, 0xff);
    end_close(&from), end_close(&to);
}
END_TEST
#endif

int main(void)
{
    Suite *suite = suite_create("kernels_move");
    TCase *all = tcase_create("move");
    tcase_set_timeout(all, 60);
    tcase_add_loop_test(all, move__between_slots_of_any_two_dtypes, 0, TYPES * TYPES);
    tcase_add_loop_test(all, move__gathers_and_scatters, 0, TYPES);
    tcase_add_test(all, move__int8_keeps_zeros_and_shows_what_is_not_finite);
    tcase_add_test(all, move__a_slot_onto_itself_is_left_alone);
#ifndef SC_TEST_GPU
    tcase_add_test(all, move__refuses_bad_arguments);
#endif
    suite_add_tcase(suite, all);
    return check_main(suite);
}
