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
 * NaN. The fast rounding to bf16 is wrong for NaN only, and a NaN in a row makes its o a NaN: such
 * rows take the slow rounding. */
#ifndef SC_ROWS_WIDE_H
#define SC_ROWS_WIDE_H

#include "delta/rows_plain.h"
#include "v16.h"

/* Loops over registers: an array that is indexed by a variable would lie in memory. */
#define UNROLL _Pragma("GCC unroll 16")

enum { NV_MAX = SC_K_DIM_MAX / 16, AHEAD_BYTES = 4096 };

/* Rounds row r of 16 nv lanes as ref_round() does; `o` tells whether there may be a NaN. */
SC_REF_INLINE void wide_round(v16 *row, uint32_t nv, float o)
{
    if (o == o) {
        UNROLL for (uint32_t i = 0; i < nv; i++) row[i] = v16_to_bf16(row[i]);
        return;
    }
    float line[SC_K_DIM_MAX];
    for (uint32_t i = 0; i < nv; i++) v16_store(line + 16 * i, row[i]);
    ref_round(line, SC_DTYPE_BF16, nv * 16);
    for (uint32_t i = 0; i < nv; i++) row[i] = v16_load(line + 16 * i);
}

/* `rows` (1 or 2) rows from v on, by the tokens of x. */
SC_REF_INLINE void wide_tokens(v16 (*restrict s)[NV_MAX], uint32_t rows, uint32_t nv, uint32_t v,
    uint32_t all_rows, struct tokens *x, sc_dtype state)
{
    for (uint32_t t = 0; t < x->count; t++) {
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
        UNROLL for (uint32_t r = 0; r < rows && state == SC_DTYPE_BF16; r++)
            wide_round(s[r], nv, x->o[(size_t)t * all_rows + v + r]);
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
    wide_tokens(s, n, nv, v, rows, x, state);
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

SC_REF_INLINE v16 wide_load(const uint8_t *at, sc_dtype dtype, uint32_t i)
{
    return dtype == SC_DTYPE_F32 ? v16_load((const float *)(const void *)at + i)
                                 : v16_load_bf16((const uint16_t *)(const void *)at + i);
}

/* After wide_tokens(): 16-bit rows are exact in their dtype, so storing them only drops zeros. */
SC_REF_INLINE void wide_store(uint8_t *at, sc_dtype dtype, uint32_t i, v16 a)
{
    if (dtype == SC_DTYPE_F32)
        v16_store((float *)(void *)at + i, a);
    else
        v16_store_exact((uint16_t *)(void *)at + i, a);
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
            UNROLL for (uint32_t i = 0; i < nv; i++)
                s[r][i] = wide_load(from + r * row_bytes, dtype, 16 * i);
        for (size_t line = 0; line < n * row_bytes; line += 64)
            __builtin_prefetch(from + AHEAD_BYTES + line, 1);
    } else {
        UNROLL for (uint32_t r = 0; r < n; r++)
            UNROLL for (uint32_t i = 0; i < nv; i++) s[r][i] = v16_zero();
    }
    wide_tokens(s, n, nv, v, w->rows, x, dtype);
    for (uint32_t j = 0; j < 2; j++) {
        if (w->to[j] == NULL) continue;
        UNROLL for (uint32_t r = 0; r < n; r++)
            UNROLL for (uint32_t i = 0; i < nv; i++)
                wide_store(w->to[j] + (v + r) * row_bytes, dtype, 16 * i, s[r][i]);
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
