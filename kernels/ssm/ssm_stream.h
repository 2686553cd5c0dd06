/* SPDX-License-Identifier: Apache-2.0 */
/* One token of the selective state space with rows of S in registers, from a slot to a slot without
 * a stop in between: the bits of ssm_step(), since each row is worked on in the same order.
 *
 *        N = 16 nv
 *   row p    | s[0] | s[1] | ... | s[nv-1] |   x alpha, + (dt x) B, . C  -> y
 *   row p+1  ...   four at a time: their sums across lanes pass together
 *
 * Bytes moved: the state once in and once out. */
#ifndef SC_SSM_STREAM_H
#define SC_SSM_STREAM_H

#include "ssm/ssm_step.h"
#include "wide_row.h"

/* Rows at a time. */
#ifdef __AVX512F__
enum { SSM_ROWS = 4 };
#else
enum { SSM_ROWS = 2 };
#endif

/* What registers are counted for at compile time. */
SC_REF_INLINE bool ssm_streams(uint32_t state_dim) { return state_dim == 64 || state_dim == 128; }

struct ssm_ends {
    const uint8_t *from; /* NULL: zeros */
    uint8_t *to;         /* NULL: not stored */
    const uint8_t *next; /* the same rows of the head that comes then; NULL: it is not known */
};

/* Row v: new lanes into `s`; what it gives, in lanes, is returned. Meanwhile a row further on is
 * fetched, and the same of the next head, as in delta/stream_wide.h. */
SC_REF_INLINE v16 ssm_row(const struct ssm_ends *e, uint32_t v, uint32_t nv, sc_dtype dtype,
    const struct ssm_token *k, v16 *s)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2), at = v * row_bytes;
    v16 alpha = v16_set(k->alpha), write = v16_set(k->dt * k->x[v]), sum = v16_zero();
    UNROLL for (uint32_t i = 0; i < nv; i += 2, at += 2 * row_bytes / nv) {
        if (e->from != NULL) {
            wide_fetch_here(e->from + at, 2 * row_bytes / nv);
            wide_load(e->from + at, dtype, 2, s + i);
        } else {
            s[i] = s[i + 1] = v16_zero();
        }
        if (e->next != NULL) wide_fetch_far(e->next + at, 2 * row_bytes / nv);
        UNROLL for (uint32_t l = i; l < i + 2; l++) {
            s[l] = v16_add(v16_mul(s[l], alpha), v16_mul(write, v16_load(k->b + 16 * l)));
            sum = v16_add(sum, v16_mul(s[l], v16_load(k->c + 16 * l)));
        }
    }
    return sum;
}

/* A NaN if the row may hold one (wide_row.h): it makes lanes of the sum NaN. Only rounding asks. */
SC_REF_INLINE float ssm_mark(v16 sum, sc_dtype dtype)
{
#ifdef __AVX512BF16__
    (void)sum, (void)dtype;
    return 0.0f; /* the instruction rounds NaN, too */
#else
    return dtype == SC_DTYPE_F32 ? 0.0f : v16_sum(sum);
#endif
}

/* n rows from v on; `normal`: they hold no denormals (wide_row.h). */
SC_REF_INLINE void ssm_rows(const struct ssm_ends *e, uint32_t v, uint32_t n, uint32_t nv,
    sc_dtype dtype, bool normal, struct ssm_token *k)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    v16 sums[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
    float y[4];
    UNROLL for (uint32_t r = 0; r < n; r++) {
        v16 s[NV_MAX];
        sums[r] = ssm_row(e, v + r, nv, dtype, k, s);
        if (e->to != NULL)
            wide_store(e->to + (v + r) * row_bytes, dtype, nv, s, ssm_mark(sums[r], dtype),
                normal);
    }
    v16_sums(sums, y);
    UNROLL for (uint32_t r = 0; r < n; r++) k->y[v + r] = y[r];
}

/* Do four rows write so much that no sum is a denormal? Then each of their sums has a term of 2^-80
 * or more, and what is left of two that cancel is a multiple of 2^-105. */
SC_REF_INLINE bool ssm_normal(uint32_t v, const struct ssm_token *k, float b_least)
{
#ifdef __AVX512BF16__
    return v4_least(k->dt * v4_load(k->x + v), b_least, 0x1p-80f);
#else
    (void)v, (void)k, (void)b_least;
    return false; /* nobody asks */
#endif
}

SC_REF_INLINE void ssm_all(const struct ssm_ends *e, uint32_t rows, uint32_t nv, sc_dtype dtype,
    struct ssm_token *k)
{
    uint32_t v = 0;
    float b_least = dtype == SC_DTYPE_BF16 ? ref_least_size(k->b, nv * 16) : 0.0f;
    for (; v + SSM_ROWS <= rows; v += SSM_ROWS) {
        if (SSM_ROWS == 4 && dtype == SC_DTYPE_BF16 && ssm_normal(v, k, b_least))
            ssm_rows(e, v, SSM_ROWS, nv, dtype, true, k);
        else
            ssm_rows(e, v, SSM_ROWS, nv, dtype, false, k);
    }
    for (; v < rows && v < SC_K_DIM_MAX; v++) ssm_rows(e, v, 1, nv, dtype, false, k);
}

/* The rows of a state that come after the span's: those of its next head, or of the next row's
 * first. */
SC_REF_INLINE const uint8_t *ssm_next(const struct ssm_span *span)
{
    const sc_k_ssm_params *p = span->p;
    const int32_t *source = sc_host_ptr(p->source);
    int64_t end = (int64_t)p->heads * p->head_dim * p->state_dim;
    int64_t next = ssm_part_at(span) + (int64_t)span->rows * p->state_dim;
    if (next < end) return wide_at(&p->state, source[span->row], next);
    return span->row + 1 < p->row_count ? wide_at(&p->state, source[span->row + 1], 0) : NULL;
}

/* The token of the span, loaded: its y is made, but for the gate. */
SC_REF_INLINE void ssm_stream(const struct ssm_span *span, int32_t source, int32_t dest,
    struct ssm_token *k)
{
    const sc_k_ssm_params *p = span->p;
    struct ssm_ends e = {.from = wide_at(&p->state, source, ssm_part_at(span)),
        .to = wide_at(&p->state, dest, ssm_part_at(span)), .next = ssm_next(span)};
    bool f32 = p->state.dtype == SC_DTYPE_F32;
    if (p->state_dim == 128 && f32)
        ssm_all(&e, span->rows, 8, SC_DTYPE_F32, k);
    else if (p->state_dim == 128)
        ssm_all(&e, span->rows, 8, SC_DTYPE_BF16, k);
    else
        ssm_all(&e, span->rows, 4, p->state.dtype, k);
    for (uint32_t v = 0; p->d != 0 && v < span->rows; v++) k->y[v] += k->skip * k->x[v];
}

#endif
