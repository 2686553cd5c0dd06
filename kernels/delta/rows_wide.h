/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the delta rule with rows of S in registers: the bits of rows_plain.h, because each row
 * is worked on in the same order (16 lanes along K, products rounded before they are added, one
 * tree at the end). Two rows at a time, so that one row's sum across lanes hides behind the other's
 * products; all tokens of a batch pass before the rows are stored.
 *
 *        k_dim = 16 nv
 *   row v    | s0[0] | s0[1] | ... | s0[nv-1] |   x alpha, . k  -> u;  + u k, . q  -> o
 *   row v+1  | s1[0] | s1[1] | ... | s1[nv-1] |
 *
 * The fast rounding to bf16 is wrong for some numbers, and their rows take the slow one. Integer
 * arithmetic: NaN, and a NaN in a row makes its o a NaN. AVX512_BF16: denormals, which it takes for
 * zero, so that a row in which nothing came out as zero had none. */
#ifndef SC_ROWS_WIDE_H
#define SC_ROWS_WIDE_H

#include "delta/rows_plain.h"
#include "v16.h"

/* Loops over registers: an array that is indexed by a variable would lie in memory. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL /* with checks in every copy, a file takes minutes to compile */
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* How far ahead of the rows in work a state is fetched, to the second level and to the first. Near
 * and far together overlap memory and arithmetic best: at 4096 alone, or further, a decode of bf16
 * states is a tenth slower. */
enum { NV_MAX = SC_K_DIM_MAX / 16, NEAR_BYTES = 512, FAR_BYTES = 2048 };

/* The slow rounding. Not inlined: where it is not taken it shall cost no register. */
static __attribute__((noinline, cold)) void wide_narrow_all(const v16 *row, uint32_t nv,
    uint16_t *out)
{
    float line[SC_K_DIM_MAX];
    for (uint32_t i = 0; i < nv; i++) v16_store(line + 16 * i, row[i]);
    for (uint32_t i = 0; i < nv * 16; i++) out[i] = ref_to_bf16(line[i]);
}

/* A row of 16 nv lanes becomes bf16 at `out`, as ref_to_bf16() rounds; `o` is a NaN if the row may
 * hold one. */
SC_REF_INLINE void wide_narrow(const v16 *row, uint32_t nv, float o, uint16_t *out)
{
    v32h least = v32h_none();
    UNROLL for (uint32_t i = 0; i < nv / 2; i++)
        v32h_store(out + 32 * i, v32h_narrow(row + 2 * i, &least));
    if (__builtin_expect(v32h_narrowed(least, o == o), 1)) return;
    v16 copy[NV_MAX];
    UNROLL for (uint32_t i = 0; i < nv; i++) copy[i] = row[i];
    wide_narrow_all(copy, nv, out);
}

/* The same, back in fp32. */
SC_REF_INLINE void wide_round(v16 *row, uint32_t nv, float o)
{
    v32h least = v32h_none(), half[NV_MAX / 2];
    UNROLL for (uint32_t i = 0; i < nv / 2; i++) half[i] = v32h_narrow(row + 2 * i, &least);
    if (__builtin_expect(!v32h_narrowed(least, o == o), 0)) {
        v16 copy[NV_MAX];
        uint16_t line[SC_K_DIM_MAX];
        UNROLL for (uint32_t i = 0; i < nv; i++) copy[i] = row[i];
        wide_narrow_all(copy, nv, line);
        UNROLL for (uint32_t i = 0; i < nv / 2; i++) half[i] = v32h_load(line + 32 * i);
    }
    UNROLL for (uint32_t i = 0; i < nv / 2; i++) v32h_widen(half[i], row + 2 * i);
}

/* `rows` (1 or 2) rows from v on, by token t of x; not rounded yet. */
SC_REF_INLINE void wide_token(v16 (*restrict s)[NV_MAX], uint32_t rows, uint32_t nv, uint32_t v,
    uint32_t all_rows, struct tokens *x, uint32_t t)
{
    const float *q = x->q + (size_t)t * nv * 16, *k = x->k + (size_t)t * nv * 16;
    const float *alpha = x->alpha + (size_t)t * nv * 16;
    v16 sums[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()}, u[2];
    float read[4];
    UNROLL for (uint32_t i = 0; i < nv; i++) {
        v16 a = v16_load(alpha + 16 * i), key = v16_load(k + 16 * i);
        v16 query = v16_load(q + 16 * i);
        UNROLL for (uint32_t r = 0; r < rows; r++) {
            s[r][i] = v16_mul(s[r][i], a);
            sums[r] = v16_add(sums[r], v16_mul(s[r][i], key));
            sums[2 + r] = v16_add(sums[2 + r], v16_mul(s[r][i], query));
        }
    }
    v16_sums(sums, read);
    UNROLL for (uint32_t r = 0; r < rows; r++) {
        size_t at = (size_t)t * all_rows + v + r;
        float write = x->beta[t] * (x->v[at] - read[r]);
        x->o[at] = read[2 + r] + write * x->kq[t];
        u[r] = v16_set(write);
    }
    UNROLL for (uint32_t i = 0; i < nv; i++) {
        v16 key = v16_load(k + 16 * i);
        UNROLL for (uint32_t r = 0; r < rows; r++)
            s[r][i] = v16_add(s[r][i], v16_mul(u[r], key));
    }
}

/* `n` rows from v on, in registers from the first token to the last. */
SC_REF_INLINE void wide_rows(float *block, uint32_t v, uint32_t n, uint32_t rows, uint32_t nv,
    struct tokens *x, sc_dtype state)
{
    v16 s[2][NV_MAX];
    float *at = block + (size_t)v * nv * 16;
    UNROLL for (uint32_t r = 0; r < n; r++)
        UNROLL for (uint32_t i = 0; i < nv; i++) s[r][i] = v16_load(at + (r * nv + i) * 16);
    for (uint32_t t = 0; t < x->count; t++) {
        wide_token(s, n, nv, v, rows, x, t);
        UNROLL for (uint32_t r = 0; r < n && state == SC_DTYPE_BF16; r++)
            wide_round(s[r], nv, x->o[(size_t)t * rows + v + r]);
    }
    UNROLL for (uint32_t r = 0; r < n; r++)
        UNROLL for (uint32_t i = 0; i < nv; i++) v16_store(at + (r * nv + i) * 16, s[r][i]);
}

SC_REF_INLINE void wide_block(float *block, uint32_t rows, uint32_t nv, struct tokens *x,
    sc_dtype state)
{
    uint32_t v = 0;
    for (; v + 2 <= rows; v += 2) wide_rows(block, v, 2, rows, nv, x, state);
    if (v < rows) wide_rows(block, v, 1, rows, nv, x, state);
}

/* What registers are counted for at compile time: the sizes that models have. */
SC_REF_INLINE bool wide_knows(uint32_t k_dim)
{
    return k_dim == 64 || k_dim == 128 || k_dim == 256;
}

SC_REF_INLINE void wide_steps(float *block, uint32_t rows, uint32_t k_dim, struct tokens *x,
    sc_dtype state)
{
    bool f32 = state == SC_DTYPE_F32;
    if (k_dim == 128 && f32)
        wide_block(block, rows, 8, x, SC_DTYPE_F32);
    else if (k_dim == 128)
        wide_block(block, rows, 8, x, SC_DTYPE_BF16);
    else if (k_dim == 64)
        wide_block(block, rows, 4, x, state);
    else if (k_dim == 256)
        wide_block(block, rows, 16, x, state);
    else
        plain_steps(block, rows, k_dim, x, state);
}

/* ---- one token, from a slot to a slot without a stop in between ---- */

SC_REF_INLINE void wide_load(const uint8_t *at, sc_dtype dtype, uint32_t nv, v16 *row)
{
    if (dtype == SC_DTYPE_F32) {
        UNROLL for (uint32_t i = 0; i < nv; i++)
            row[i] = v16_load((const float *)(const void *)at + 16 * i);
    } else {
        UNROLL for (uint32_t i = 0; i < nv / 2; i++)
            v32h_widen(v32h_load((const uint16_t *)(const void *)at + 32 * i), row + 2 * i);
    }
}

/* `o` is what the row gave. */
SC_REF_INLINE void wide_store(uint8_t *at, sc_dtype dtype, uint32_t nv, const v16 *row, float o)
{
    if (dtype == SC_DTYPE_BF16) {
        wide_narrow(row, nv, o, (uint16_t *)(void *)at);
        return;
    }
    UNROLL for (uint32_t i = 0; i < nv; i++) v16_store((float *)(void *)at + 16 * i, row[i]);
}

/* Where rows of a head begin; NULL: there is no such slot. */
SC_REF_INLINE uint8_t *wide_at(const sc_k_slots *slots, int32_t slot, int64_t at)
{
    if (slot <= 0) return NULL;
    return (uint8_t *)sc_host_ptr(ref_slot(slots, slot))
        + at * (slots->dtype == SC_DTYPE_F32 ? 4 : 2);
}

struct wide_stream {
    const uint8_t *from; /* NULL: zeros */
    uint8_t *to[2];      /* NULL: not stored */
    uint32_t rows;
    sc_dtype dtype;
};

SC_REF_INLINE void wide_stream_rows(const struct wide_stream *w, uint32_t v, uint32_t n,
    uint32_t nv, sc_dtype dtype, struct tokens *x)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    v16 s[2][NV_MAX];
    if (w->from != NULL) {
        const uint8_t *from = w->from + v * row_bytes;
        UNROLL for (uint32_t r = 0; r < n; r++)
            wide_load(from + r * row_bytes, dtype, nv, s[r]);
        for (size_t line = 0; line < n * row_bytes; line += 64) {
            __builtin_prefetch(from + FAR_BYTES + line, 0, 2);
            __builtin_prefetch(from + NEAR_BYTES + line, 0, 3);
        }
    } else {
        UNROLL for (uint32_t r = 0; r < n; r++)
            UNROLL for (uint32_t i = 0; i < nv; i++) s[r][i] = v16_zero();
    }
    wide_token(s, n, nv, v, w->rows, x, 0);
    for (uint32_t j = 0; j < 2; j++) {
        if (w->to[j] == NULL) continue;
        UNROLL for (uint32_t r = 0; r < n; r++)
            wide_store(w->to[j] + (v + r) * row_bytes, dtype, nv, s[r], x->o[v + r]);
    }
}

SC_REF_INLINE void wide_stream_all(const struct wide_stream *w, uint32_t nv, sc_dtype dtype,
    struct tokens *x)
{
    uint32_t v = 0;
    for (; v + 2 <= w->rows; v += 2) wide_stream_rows(w, v, 2, nv, dtype, x);
    if (v < w->rows) wide_stream_rows(w, v, 1, nv, dtype, x);
}

/* One prepared token (x->count == 1), for a k_dim that wide_knows(). */
SC_REF_INLINE void wide_stream_run(const struct wide_stream *w, uint32_t k_dim, struct tokens *x)
{
    if (k_dim == 128 && w->dtype == SC_DTYPE_F32)
        wide_stream_all(w, 8, SC_DTYPE_F32, x);
    else if (k_dim == 128)
        wide_stream_all(w, 8, SC_DTYPE_BF16, x);
    else if (k_dim == 64)
        wide_stream_all(w, 4, w->dtype, x);
    else
        wide_stream_all(w, 16, w->dtype, x);
}

#endif
