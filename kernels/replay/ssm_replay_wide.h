/* SPDX-License-Identifier: Apache-2.0 */
/* Mamba-2's base and flush with rows of S in registers: the bits of ref_dot() and of ssm_step(),
 * since each row is worked on in the same order. For a state_dim that ssm_streams() knows. */
#ifndef SC_SSM_REPLAY_WIDE_H
#define SC_SSM_REPLAY_WIDE_H

#include "ssm/ssm_stream.h"

/* Rows that have registers for all tokens. */
#ifdef __AVX512F__
enum { PAST_ROWS = 2 };
#else
enum { PAST_ROWS = 1 };
#endif

/* The records' tokens, as the rows of a span see them: x[t][rows], b[t][N]. */
struct ssm_past {
    uint32_t count;
    float alpha[SC_REPLAY_RECORDS_MAX], dt[SC_REPLAY_RECORDS_MAX];
    float x[SC_REPLAY_RECORDS_MAX * SC_K_DIM_MAX], b[SC_REPLAY_RECORDS_MAX * 128];
};

/* ---- y = A (S0 C) ---- */

SC_REF_INLINE void base_rows(float *restrict y, const uint8_t *from, uint32_t v, uint32_t n,
    uint32_t nv, sc_dtype dtype, const float *c, float decay)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    v16 sums[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
    float dots[4];
    UNROLL for (uint32_t r = 0; r < n; r++) {
        UNROLL for (uint32_t i = 0; i < nv; i += 2) {
            const uint8_t *at = from + (v + r) * row_bytes + i * (row_bytes / nv);
            v16 s[2];
            wide_fetch_read(at, 2 * row_bytes / nv);
            wide_load(at, dtype, 2, s);
            UNROLL for (uint32_t l = 0; l < 2; l++)
                sums[r] = v16_add(sums[r], v16_mul(s[l], v16_load(c + 16 * (i + l))));
        }
    }
    v16_sums(sums, dots);
    UNROLL for (uint32_t r = 0; r < n; r++) y[v + r] = decay * dots[r];
}

SC_REF_INLINE void base_all(float *restrict y, const uint8_t *from, uint32_t rows, uint32_t nv,
    sc_dtype dtype, const float *c, float decay)
{
    uint32_t v = 0;
    for (; v + 4 <= rows; v += 4) base_rows(y, from, v, 4, nv, dtype, c, decay);
    for (; v < rows; v++) base_rows(y, from, v, 1, nv, dtype, c, decay);
}

SC_REF_INLINE void base_read(float *restrict y, const uint8_t *from, uint32_t rows,
    uint32_t state_dim, sc_dtype dtype, const float *c, float decay)
{
    if (state_dim == 128 && dtype == SC_DTYPE_F32)
        base_all(y, from, rows, 8, SC_DTYPE_F32, c, decay);
    else if (state_dim == 128)
        base_all(y, from, rows, 8, SC_DTYPE_BF16, c, decay);
    else
        base_all(y, from, rows, 4, dtype, c, decay);
}

/* ---- records, and the token behind them ---- */

/* A NaN if the row may hold one. */
SC_REF_INLINE float past_mark(const v16 *s, uint32_t nv)
{
#ifdef __AVX512BF16__
    (void)s, (void)nv;
    return 0.0f; /* the instruction rounds NaN, too */
#else
    v16 sum = s[0];
    UNROLL for (uint32_t i = 1; i < nv; i++) sum = v16_add(sum, s[i]);
    return v16_sum(sum);
#endif
}

/* n rows by one token; with c also what they give, into y. */
SC_REF_INLINE void past_step(v16 (*restrict s)[NV_MAX], uint32_t v, uint32_t n, uint32_t nv,
    float alpha, float dt, const float *x, const float *b, const float *c, float *restrict y)
{
    v16 decay = v16_set(alpha), write[PAST_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++) write[r] = v16_set(dt * x[v + r]);
    UNROLL for (uint32_t i = 0; i < nv; i++) {
        v16 by = v16_load(b + 16 * i);
        UNROLL for (uint32_t r = 0; r < n; r++)
            s[r][i] = v16_add(v16_mul(s[r][i], decay), v16_mul(write[r], by));
    }
    if (c == NULL) return;
    UNROLL for (uint32_t r = 0; r < n; r++) {
        v16 sum = v16_zero();
        UNROLL for (uint32_t i = 0; i < nv; i++)
            sum = v16_add(sum, v16_mul(s[r][i], v16_load(c + 16 * i)));
        y[v + r] = v16_sum(sum);
    }
}

/* `own`: the token after the records, or NULL. */
SC_REF_INLINE void past_rows(const struct ssm_ends *e, const struct ssm_past *past, uint32_t v,
    uint32_t n, uint32_t rows, uint32_t nv, sc_dtype dtype, struct ssm_token *own)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2), dim = (size_t)nv * 16;
    v16 s[PAST_ROWS][NV_MAX];
    UNROLL for (uint32_t r = 0; r < n; r++) {
        if (e->from != NULL) {
            wide_fetch(e->from + (v + r) * row_bytes, row_bytes);
            wide_load(e->from + (v + r) * row_bytes, dtype, nv, s[r]);
        } else {
            UNROLL for (uint32_t i = 0; i < nv; i++) s[r][i] = v16_zero();
        }
    }
    for (uint32_t t = 0; t < past->count; t++) {
        past_step(s, v, n, nv, past->alpha[t], past->dt[t], past->x + (size_t)t * rows,
            past->b + t * dim, NULL, NULL);
        if (dtype != SC_DTYPE_BF16) continue;
        UNROLL for (uint32_t r = 0; r < n; r++) wide_round(s[r], nv, past_mark(s[r], nv), false);
    }
    if (own != NULL)
        past_step(s, v, n, nv, own->alpha, own->dt, own->x, own->b, own->c, own->y);
    if (e->to == NULL) return;
    UNROLL for (uint32_t r = 0; r < n; r++)
        wide_store(e->to + (v + r) * row_bytes, dtype, nv, s[r],
            dtype == SC_DTYPE_BF16 ? past_mark(s[r], nv) : 0.0f, false);
}

SC_REF_INLINE void past_all(const struct ssm_ends *e, const struct ssm_past *past, uint32_t rows,
    uint32_t nv, sc_dtype dtype, struct ssm_token *own)
{
    uint32_t v = 0;
    for (; v + PAST_ROWS <= rows; v += PAST_ROWS)
        past_rows(e, past, v, PAST_ROWS, rows, nv, dtype, own);
    for (; v < rows; v++) past_rows(e, past, v, 1, rows, nv, dtype, own);
}

SC_REF_INLINE void past_flush(const struct ssm_ends *e, const struct ssm_past *past,
    uint32_t rows, uint32_t state_dim, sc_dtype dtype, struct ssm_token *own)
{
    if (state_dim == 128 && dtype == SC_DTYPE_F32)
        past_all(e, past, rows, 8, SC_DTYPE_F32, own);
    else if (state_dim == 128)
        past_all(e, past, rows, 8, SC_DTYPE_BF16, own);
    else
        past_all(e, past, rows, 4, dtype, own);
}

#endif
