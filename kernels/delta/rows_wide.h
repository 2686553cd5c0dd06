/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the delta rule with rows of S in registers: the bits of rows_plain.h, because each row
 * is worked on in the same order (16 lanes along K, products rounded before they are added, one
 * tree at the end). Two rows at a time, so that one row's sum across lanes hides behind the other's
 * products; all tokens of a batch pass before the rows are stored.
 *
 *        k_dim = 16 nv
 *   row v    | s0[0] | s0[1] | ... | s0[nv-1] |   x alpha, . k  -> u;  + u k, . q  -> o
 *   row v+1  | s1[0] | s1[1] | ... | s1[nv-1] |
 */
#ifndef SC_ROWS_WIDE_H
#define SC_ROWS_WIDE_H

#include "delta/rows_plain.h"
#include "wide_row.h"

/* What a step on a bf16 state may fuse is at least this (rows_plain.h). */
#define FUSE_LEAST 0x1p-80f

/* Does each of `n` rows of a bf16 state write so much? */
SC_REF_INLINE bool wide_fuses(const float *write, uint32_t n, float k_least)
{
    bool all = true;
    UNROLL for (uint32_t r = 0; r < n; r++) all &= fabsf(write[r]) * k_least >= FUSE_LEAST;
    return all;
}

/* 32 elements of a row, from i on, where it may not: decayed, written, not yet rounded. */
SC_REF_INLINE void wide_apart(const float *restrict old, const struct tokens *x, uint32_t t,
    uint32_t k_dim, uint32_t i, float write, v16 *restrict two)
{
    const float *k = x->k + (size_t)t * k_dim + i, *alpha = x->alpha + (size_t)t * k_dim + i;
    UNROLL for (uint32_t l = 0; l < 32; l += 16)
        two[l / 16] = v16_add(v16_mul(v16_load(old + i + l), v16_load(alpha + l)),
            v16_mul(v16_set(write), v16_load(k + l)));
}

/* A row's step then. Not inlined: where it is not taken it shall cost no register. `o` is what the
 * row gave. */
static __attribute__((noinline)) void wide_step_apart(float *restrict s, const struct tokens *x,
    uint32_t t, uint32_t k_dim, float write, float o)
{
    for (uint32_t i = 0; i < k_dim; i += 32) {
        v16 two[2];
        wide_apart(s, x, t, k_dim, i, write, two);
        wide_round(two, 2, o, false);
        v16_store(s + i, two[0]);
        v16_store(s + i + 16, two[1]);
    }
}

/* S k and S q of `rows` (1 or 2) rows that token t of x decays. */
SC_REF_INLINE void wide_read(v16 (*restrict s)[NV_MAX], uint32_t rows, uint32_t nv,
    const struct tokens *x, uint32_t t, float *restrict read)
{
    const float *q = x->q + (size_t)t * nv * 16, *k = x->k + (size_t)t * nv * 16;
    const float *alpha = x->alpha + (size_t)t * nv * 16;
    v16 sums[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
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
}

/* The same of a bf16 state, which stays as it is. */
SC_REF_INLINE void wide_read_bf16(v16 (*restrict s)[NV_MAX], uint32_t rows, uint32_t nv,
    const struct tokens *x, uint32_t t, float *restrict read)
{
    const float *q = x->q + (size_t)t * nv * 16, *k = x->read + (size_t)t * nv * 16;
    v16 sums[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
    UNROLL for (uint32_t i = 0; i < nv; i++) {
        v16 key = v16_load(k + 16 * i), query = v16_load(q + 16 * i);
        UNROLL for (uint32_t r = 0; r < rows; r++) {
            sums[r] = v16_fma(s[r][i], key, sums[r]);
            sums[2 + r] = v16_fma(s[r][i], query, sums[2 + r]);
        }
    }
    v16_sums(sums, read);
    UNROLL for (uint32_t r = 0; r < 2; r++) {
        read[r] = read[r] * x->read_scale[t];
        read[2 + r] = read[2 + r] * x->q_scale[t];
    }
}

/* What the rows write, times k, is added; a bf16 state is decayed before, and rounded. */
SC_REF_INLINE void wide_write(v16 (*restrict s)[NV_MAX], uint32_t rows, uint32_t nv,
    const struct tokens *x, uint32_t t, const float *write, const float *out, sc_dtype state)
{
    const float *k = x->k + (size_t)t * nv * 16, *alpha = x->alpha + (size_t)t * nv * 16;
    UNROLL for (uint32_t i = 0; i < nv; i++) {
        v16 key = v16_load(k + 16 * i);
        UNROLL for (uint32_t r = 0; r < rows; r++) {
            v16 added = v16_mul(v16_set(write[r]), key);
            s[r][i] = state == SC_DTYPE_F32 ? v16_add(s[r][i], added)
                                            : v16_fma(s[r][i], v16_load(alpha + 16 * i), added);
        }
    }
    UNROLL for (uint32_t r = 0; r < rows && state == SC_DTYPE_BF16; r++)
        wide_round(s[r], nv, out[r], true);
}

/* The same where a bf16 state may not be fused. */
SC_REF_INLINE void wide_write_apart(v16 (*restrict s)[NV_MAX], uint32_t rows, uint32_t nv,
    const struct tokens *x, uint32_t t, const float *write, const float *out)
{
    float line[SC_K_DIM_MAX];
    for (uint32_t r = 0; r < rows; r++) {
        UNROLL for (uint32_t i = 0; i < nv; i++) v16_store(line + 16 * i, s[r][i]);
        wide_step_apart(line, x, t, nv * 16, write[r], out[r]);
        UNROLL for (uint32_t i = 0; i < nv; i++) s[r][i] = v16_load(line + 16 * i);
    }
}

/* `rows` (1 or 2) rows from v on, by token t of x. */
SC_REF_INLINE void wide_token(v16 (*restrict s)[NV_MAX], uint32_t rows, uint32_t nv, uint32_t v,
    uint32_t all_rows, struct tokens *x, uint32_t t, sc_dtype state)
{
    float read[4], write[2], *out = x->o + (size_t)t * all_rows + v;
    if (state == SC_DTYPE_F32)
        wide_read(s, rows, nv, x, t, read);
    else
        wide_read_bf16(s, rows, nv, x, t, read);
    UNROLL for (uint32_t r = 0; r < rows; r++) {
        write[r] = x->beta[t] * (x->v[(size_t)t * all_rows + v + r] - read[r]);
        out[r] = read[2 + r] + write[r] * x->kq[t];
    }
    if (state == SC_DTYPE_F32 || __builtin_expect(wide_fuses(write, rows, x->k_least[t]), 1))
        wide_write(s, rows, nv, x, t, write, out, state);
    else
        wide_write_apart(s, rows, nv, x, t, write, out);
}

/* `n` rows from v on, in registers from the first token to the last. */
SC_REF_INLINE void wide_rows(float *block, uint32_t v, uint32_t n, uint32_t rows, uint32_t nv,
    struct tokens *x, sc_dtype state)
{
    v16 s[2][NV_MAX];
    float *at = block + (size_t)v * nv * 16;
    UNROLL for (uint32_t r = 0; r < n; r++)
        UNROLL for (uint32_t i = 0; i < nv; i++) s[r][i] = v16_load(at + (r * nv + i) * 16);
    for (uint32_t t = 0; t < x->count; t++) wide_token(s, n, nv, v, rows, x, t, state);
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

SC_REF_INLINE void wide_sized(float *block, uint32_t rows, uint32_t k_dim, struct tokens *x,
    sc_dtype state)
{
    if (k_dim == 128)
        wide_block(block, rows, 8, x, state);
    else if (k_dim == 64)
        wide_block(block, rows, 4, x, state);
    else
        wide_block(block, rows, 16, x, state);
}

SC_REF_INLINE void wide_steps(float *block, uint32_t rows, uint32_t k_dim, struct tokens *x,
    sc_dtype state)
{
    if (!wide_knows(k_dim))
        plain_steps(block, rows, k_dim, x, state);
    else if (state == SC_DTYPE_F32)
        wide_sized(block, rows, k_dim, x, SC_DTYPE_F32);
    else
        wide_sized(block, rows, k_dim, x, SC_DTYPE_BF16);
}

#endif
