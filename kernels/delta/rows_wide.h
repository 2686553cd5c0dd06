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

enum { NV_MAX = SC_K_DIM_MAX / 16, AHEAD_BYTES = 2048 };

/* `rows` (1 or 2) rows from v on, by the tokens of x. */
SC_REF_INLINE void wide_tokens(v16 (*restrict s)[NV_MAX], uint32_t rows, uint32_t nv, uint32_t v,
    uint32_t all_rows, struct tokens *x, sc_dtype state)
{
    for (uint32_t t = 0; t < x->count; t++) {
        const float *q = x->q + (size_t)t * nv * 16, *k = x->k + (size_t)t * nv * 16;
        const float *alpha = x->alpha + (size_t)t * nv * 16;
        v16 read[2] = {v16_zero(), v16_zero()}, out[2] = {v16_zero(), v16_zero()}, u[2];
        for (uint32_t i = 0; i < nv; i++) {
            v16 a = v16_load(alpha + 16 * i), key = v16_load(k + 16 * i);
            for (uint32_t r = 0; r < rows; r++) {
                s[r][i] = v16_mul(s[r][i], a);
                read[r] = v16_add(read[r], v16_mul(s[r][i], key));
            }
        }
        for (uint32_t r = 0; r < rows; r++)
            u[r] = v16_set(x->beta[t]
                * (x->v[(size_t)t * all_rows + v + r] - v16_sum(read[r])));
        for (uint32_t i = 0; i < nv; i++) {
            v16 key = v16_load(k + 16 * i), query = v16_load(q + 16 * i);
            for (uint32_t r = 0; r < rows; r++) {
                s[r][i] = v16_add(s[r][i], v16_mul(u[r], key));
                out[r] = v16_add(out[r], v16_mul(s[r][i], query));
            }
        }
        for (uint32_t r = 0; r < rows; r++) {
            float o = v16_sum(out[r]);
            x->o[(size_t)t * all_rows + v + r] = o;
            if (state == SC_DTYPE_F32) continue;
            if (o == o) {
                for (uint32_t i = 0; i < nv; i++) s[r][i] = v16_to_bf16(s[r][i]);
            } else {
                float line[SC_K_DIM_MAX];
                for (uint32_t i = 0; i < nv; i++) v16_store(line + 16 * i, s[r][i]);
                ref_round(line, state, nv * 16);
                for (uint32_t i = 0; i < nv; i++) s[r][i] = v16_load(line + 16 * i);
            }
        }
    }
}

SC_REF_INLINE void wide_block(float *block, uint32_t rows, uint32_t nv, struct tokens *x,
    sc_dtype state)
{
    v16 s[2][NV_MAX];
    for (uint32_t v = 0; v < rows; v += 2) {
        uint32_t n = rows - v < 2 ? 1 : 2;
        float *at = block + (size_t)v * nv * 16;
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t i = 0; i < nv; i++) s[r][i] = v16_load(at + (r * nv + i) * 16);
        if (n == 2)
            wide_tokens(s, 2, nv, v, rows, x, state);
        else
            wide_tokens(s, 1, nv, v, rows, x, state);
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t i = 0; i < nv; i++) v16_store(at + (r * nv + i) * 16, s[r][i]);
    }
}

/* Common sizes are compiled with the number of registers known. */
SC_REF_INLINE void wide_steps(float *block, uint32_t rows, uint32_t k_dim, struct tokens *x,
    sc_dtype state)
{
    if (k_dim == 128)
        wide_block(block, rows, 8, x, state);
    else if (k_dim == 64)
        wide_block(block, rows, 4, x, state);
    else if (k_dim % 16 == 0)
        wide_block(block, rows, k_dim / 16, x, state);
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

SC_REF_INLINE void wide_stream_rows(const struct wide_stream *w, uint32_t nv, sc_dtype dtype,
    struct tokens *x)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    v16 s[2][NV_MAX];
    for (uint32_t v = 0; v < w->rows; v += 2) {
        uint32_t n = w->rows - v < 2 ? 1 : 2;
        for (uint32_t r = 0; r < n; r++) {
            const uint8_t *from = w->from != NULL ? w->from + (v + r) * row_bytes : NULL;
            for (uint32_t i = 0; i < nv; i++)
                s[r][i] = from != NULL ? wide_load(from, dtype, 16 * i) : v16_zero();
            for (size_t line = 0; from != NULL && line < row_bytes; line += 64)
                __builtin_prefetch(from + AHEAD_BYTES + line, 1);
        }
        if (n == 2)
            wide_tokens(s, 2, nv, v, w->rows, x, dtype);
        else
            wide_tokens(s, 1, nv, v, w->rows, x, dtype);
        for (uint32_t j = 0; j < 2; j++)
            for (uint32_t r = 0; w->to[j] != NULL && r < n; r++)
                for (uint32_t i = 0; i < nv; i++)
                    wide_store(w->to[j] + (v + r) * row_bytes, dtype, 16 * i, s[r][i]);
    }
}

/* One prepared token (x->count == 1); k_dim is a multiple of 16. */
SC_REF_INLINE void wide_stream_run(const struct wide_stream *w, uint32_t k_dim, struct tokens *x)
{
    if (k_dim == 128 && w->dtype == SC_DTYPE_F32)
        wide_stream_rows(w, 8, SC_DTYPE_F32, x);
    else if (k_dim == 128)
        wide_stream_rows(w, 8, SC_DTYPE_BF16, x);
    else if (w->dtype == SC_DTYPE_F32)
        wide_stream_rows(w, k_dim / 16, SC_DTYPE_F32, x);
    else
        wide_stream_rows(w, k_dim / 16, SC_DTYPE_BF16, x);
}

#endif
