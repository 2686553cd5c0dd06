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
    float b_least[SC_REPLAY_RECORDS_MAX]; /* the least |b|, for past_normal() */
    float x[SC_REPLAY_RECORDS_MAX * SC_K_DIM_MAX], b[SC_REPLAY_RECORDS_MAX * 128];
};

/* ---- y = A (S0 C) ---- */

/* A base: its rows, and x of the rows that come then, in each record, which is fetched evenly while
 * they are read, four at a time. */
struct ssm_base {
    const uint8_t *from, *next;
    size_t next_bytes, next_pitch;
    uint32_t rows, records;
    bool fetch; /* rows ahead of those in work */
};

SC_REF_INLINE void base_fetch(const struct ssm_base *e, uint32_t part, uint32_t parts)
{
    for (uint32_t i = e->records * part / parts; i < e->records * (part + 1) / parts; i++)
        for (size_t line = 0; line < e->next_bytes; line += 64)
            __builtin_prefetch(e->next + i * e->next_pitch + line, 0, 3);
}

SC_REF_INLINE void base_rows(float *restrict y, const struct ssm_base *e, uint32_t v, uint32_t n,
    uint32_t nv, sc_dtype dtype, const float *c, float decay)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    v16 sums[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()}, one = v16_one();
    float dots[4];
    UNROLL for (uint32_t r = 0; r < n; r++) {
        UNROLL for (uint32_t i = 0; i < nv; i += 2) {
            const uint8_t *at = e->from + (v + r) * row_bytes + i * (row_bytes / nv);
            v16 s[2], last;
            if (e->fetch) wide_fetch_read(at, 2 * row_bytes / nv);
            wide_load(at, dtype, 2, s);
            sums[r] = v16_add(sums[r], v16_mul(s[0], v16_load(c + 16 * i)));
            last = v16_mul(s[1], v16_load(c + 16 * (i + 1)));
            sums[r] = dtype == SC_DTYPE_F32 ? v16_add(sums[r], last)
                                            : v16_add_fused(sums[r], last, one);
        }
    }
    v16_sums(sums, dots);
    UNROLL for (uint32_t r = 0; r < n; r++) y[v + r] = decay * dots[r];
}

SC_REF_INLINE void base_all(float *restrict y, const struct ssm_base *e, uint32_t nv,
    sc_dtype dtype, const float *c, float decay)
{
    uint32_t v = 0;
    for (; v + 4 <= e->rows; v += 4) {
        base_fetch(e, v / 4, e->rows / 4);
        base_rows(y, e, v, 4, nv, dtype, c, decay);
    }
    for (; v < e->rows; v++) base_rows(y, e, v, 1, nv, dtype, c, decay);
}

SC_REF_INLINE void base_sized(float *restrict y, const struct ssm_base *e, uint32_t state_dim,
    sc_dtype dtype, const float *c, float decay)
{
    if (state_dim == 128 && dtype == SC_DTYPE_F32)
        base_all(y, e, 8, SC_DTYPE_F32, c, decay);
    else if (state_dim == 128)
        base_all(y, e, 8, SC_DTYPE_BF16, c, decay);
    else
        base_all(y, e, 4, dtype, c, decay);
}

SC_REF_INLINE void base_read(float *restrict y, struct ssm_base e, uint32_t state_dim,
    sc_dtype dtype, const float *c, float decay)
{
    if (wide_fetches_itself()) {
        e.fetch = false; /* each is compiled without the question */
        base_sized(y, &e, state_dim, dtype, c, decay);
    } else {
        e.fetch = true;
        base_sized(y, &e, state_dim, dtype, c, decay);
    }
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

/* The same without an output, rounded to bf16, where no sum is a denormal. */
SC_REF_INLINE void past_step_normal(v16 (*restrict s)[NV_MAX], uint32_t n, uint32_t nv,
    float alpha, float dt, const float *x, const float *b)
{
    v16 decay = v16_set(alpha), write[PAST_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++) write[r] = v16_set(dt * x[r]);
    UNROLL for (uint32_t i = 0; i < nv; i += 2) {
        v16 by[2] = {v16_load(b + 16 * i), v16_load(b + 16 * i + 16)};
        UNROLL for (uint32_t r = 0; r < n; r++) {
            v32h least = v32h_none();
            UNROLL for (uint32_t l = 0; l < 2; l++)
                s[r][i + l] = v16_add(v16_mul(s[r][i + l], decay), v16_mul(write[r], by[l]));
            v32h_widen(v32h_narrow(&s[r][i], &least), &s[r][i]);
        }
    }
}

/* Does a record write so much to n rows that no sum is a denormal (ssm_normal())? */
SC_REF_INLINE bool past_normal(const struct ssm_past *past, uint32_t t, const float *x,
    uint32_t n)
{
#ifdef __AVX512BF16__
    bool all = true;
    UNROLL for (uint32_t r = 0; r < n; r++)
        all &= fabsf(past->dt[t] * x[r]) * past->b_least[t] >= 0x1p-80f;
    return all;
#else
    (void)past, (void)t, (void)x, (void)n;
    return false; /* nobody asks */
#endif
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
        const float *x = past->x + (size_t)t * rows + v;
        if (dtype == SC_DTYPE_BF16 && past_normal(past, t, x, n)) {
            past_step_normal(s, n, nv, past->alpha[t], past->dt[t], x, past->b + t * dim);
            continue;
        }
        past_step(s, v, n, nv, past->alpha[t], past->dt[t], past->x + (size_t)t * rows,
            past->b + t * dim, NULL, NULL);
        UNROLL for (uint32_t r = 0; r < n && dtype == SC_DTYPE_BF16; r++)
            wide_round(s[r], nv, past_mark(s[r], nv), false);
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
