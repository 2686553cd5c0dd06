/* SPDX-License-Identifier: Apache-2.0 */
/* The movers on the host: rows of a part pass through a buffer as fp32 when they change dtype.
 *
 * Bytes moved: each element in once and out once, of the size that its dtype has there. */
#include "kernel_check.h"
#include "kernel_dispatch.h"
#include "ref_math.h"
#include "statecache/kernels_move.h"

enum { TILE = 1024 };

static uint64_t elem_bytes(sc_dtype dtype)
{
    return dtype == SC_DTYPE_F32 ? 4 : dtype == SC_DTYPE_BF16 ? 2 : 1;
}

/* One end of a row of the call. */
struct end {
    sc_devptr base;  /* 0: zeros */
    float *scale;    /* of int8, [rows] */
    sc_dtype dtype;
};

static struct end end_of(const sc_k_slots *slots, const sc_k_slots *scale, int64_t id, bool zeros)
{
    struct end end = {.dtype = slots->dtype};
    if (zeros) return end;
    end.base = slots->base + (uint64_t)(id * slots->slot_stride);
    if (slots->dtype == SC_DTYPE_U8)
        end.scale = sc_host_ptr(scale->base + (uint64_t)(id * scale->slot_stride));
    return end;
}

/* Elements at .. at + n of a row of the part as fp32. */
SC_REF_INLINE void tile_load(float *restrict x, const struct end *from, uint32_t row, int64_t at,
    uint32_t n)
{
    if (from->dtype != SC_DTYPE_U8) {
        ref_load(x, from->base, from->dtype, at, n);
        return;
    }
    const int8_t *q = (const int8_t *)sc_host_ptr(from->base) + at;
    float scale = from->scale[row];
    for (uint32_t i = 0; i < n; i++) x[i] = (float)q[i] * scale;
}

/* Largest |x| as its bits, which are in the same order; infinities and NaN come last. */
SC_REF_INLINE uint32_t tile_most(const float *x, uint32_t n, uint32_t most)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t size = ref_f32_bits(x[i]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
    return most;
}

SC_REF_INLINE void tile_quantise(const float *x, float scale, int8_t *restrict q, uint32_t n)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, ties to even */
    if (!(scale > 0.0f)) {
        memset(q, 0, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        q[i] = (int8_t)(int32_t)(x[i] / scale + magic - magic);
}

static float scale_of(uint32_t most)
{
    float size = ref_bits_f32(most);
    if (most >= 0x7f800000u) return NAN;
    return size < 0x1p-118f ? 0.0f : size / 127.0f;
}

static void row_quantise(const struct end *from, const struct end *to, uint32_t row, int64_t at,
    uint32_t elems)
{
    float x[TILE];
    uint32_t most = 0;
    for (uint32_t i = 0; i < elems; i += TILE) {
        uint32_t n = elems - i < TILE ? elems - i : TILE;
        tile_load(x, from, row, at + i, n);
        most = tile_most(x, n, most);
    }
    float scale = to->scale[row] = scale_of(most);
    for (uint32_t i = 0; i < elems; i += TILE) {
        uint32_t n = elems - i < TILE ? elems - i : TILE;
        tile_load(x, from, row, at + i, n);
        tile_quantise(x, scale, (int8_t *)sc_host_ptr(to->base) + at + i, n);
    }
}

static void row_convert(const struct end *from, const struct end *to, uint32_t row, int64_t at,
    uint32_t elems)
{
    float x[TILE];
    for (uint32_t i = 0; i < elems; i += TILE) {
        uint32_t n = elems - i < TILE ? elems - i : TILE;
        tile_load(x, from, row, at + i, n);
        ref_store(x, to->base, to->dtype, at + i, n);
    }
}

static void part_move(const sc_k_move_part *part, const struct end *from, const struct end *to)
{
    uint64_t elems = (uint64_t)part->rows * part->row_elems;
    uint64_t bytes = elems * elem_bytes(to->dtype);
    if (from->base == to->base) return;
    if (from->base == 0 || from->dtype == to->dtype) {
        if (from->base == 0)
            memset(sc_host_ptr(to->base), 0, bytes);
        else
            memcpy(sc_host_ptr(to->base), sc_host_ptr(from->base), bytes);
        if (to->scale != NULL && from->base == 0)
            memset(to->scale, 0, part->rows * sizeof(float));
        else if (to->scale != NULL)
            memcpy(to->scale, from->scale, part->rows * sizeof(float));
        return;
    }
    for (uint32_t row = 0; row < part->rows; row++) {
        int64_t at = (int64_t)row * part->row_elems;
        if (to->dtype == SC_DTYPE_U8)
            row_quantise(from, to, row, at, part->row_elems);
        else
            row_convert(from, to, row, at, part->row_elems);
    }
}

sc_status SC_HOST_FN(sc_k_move)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_move_params *p = params;
    const int32_t *source = sc_host_ptr(p->source), *dest = sc_host_ptr(p->dest);
    for (uint32_t r = 0; r < p->row_count; r++) {
        int64_t from = source != NULL ? source[r] : (int64_t)r;
        int64_t to = dest != NULL ? dest[r] : (int64_t)r;
        if (from < 0 || to < 0) continue;
        for (uint32_t i = 0; i < p->part_count; i++) {
            const sc_k_move_part *part = &p->parts[i];
            struct end a = end_of(&part->from, &part->from_scale, from,
                source != NULL && from == 0);
            struct end b = end_of(&part->to, &part->to_scale, to, false);
            part_move(part, &a, &b);
        }
    }
    return SC_OK;
}
