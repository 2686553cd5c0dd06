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
    bool fetch;          /* ssm_stream(): ahead of the rows in work */
};

/* Row v: new lanes into `s`; what it gives, in lanes, is returned. Meanwhile, if e->fetch, a
 * row further on is fetched, and the same of the next head, as in delta/stream_wide.h. */
SC_REF_INLINE v16 ssm_row(const struct ssm_ends *e, uint32_t v, uint32_t nv, sc_dtype dtype,
    const struct ssm_token *k, v16 *s)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2), at = v * row_bytes;
    v16 alpha = v16_set(k->alpha), write = v16_set(k->dt * k->x[v]), sum = v16_zero();
    UNROLL for (uint32_t i = 0; i < nv; i += 2, at += 2 * row_bytes / nv) {
        if (e->from != NULL) {
            if (e->fetch) wide_fetch_here(e->from + at, 2 * row_bytes / nv);
            wide_load(e->from + at, dtype, 2, s + i);
        } else {
            s[i] = s[i + 1] = v16_zero();
        }
        if (e->fetch && e->next != NULL) wide_fetch_far(e->next + at, 2 * row_bytes / nv);
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

/* n rows from v on, each to its end: rounding may have to look at it twice. */
SC_REF_INLINE void ssm_rows(const struct ssm_ends *e, uint32_t v, uint32_t n, uint32_t nv,
    sc_dtype dtype, struct ssm_token *k)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    v16 sums[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
    float y[4];
    UNROLL for (uint32_t r = 0; r < n; r++) {
        v16 s[NV_MAX];
        sums[r] = ssm_row(e, v + r, nv, dtype, k, s);
        if (e->to != NULL)
            wide_store(e->to + (v + r) * row_bytes, dtype, nv, s, ssm_mark(sums[r], dtype),
                false);
    }
    v16_sums(sums, y);
    UNROLL for (uint32_t r = 0; r < n; r++) k->y[v + r] = y[r];
}

/* Registers i and i + 1 of SSM_ROWS rows, which hold no denormals. */
SC_REF_INLINE void ssm_columns(const struct ssm_ends *e, uint32_t v, uint32_t i, uint32_t nv,
    const struct ssm_token *k, const v16 *write, v16 *restrict sums)
{
    size_t row_bytes = (size_t)nv * 32, at = v * row_bytes + i * 32;
    size_t fetch = v * row_bytes + i * 32 * SSM_ROWS;
    v16 alpha = v16_set(k->alpha), one = v16_one(), b[2], c[2];
    UNROLL for (uint32_t l = 0; l < 2; l++)
        b[l] = v16_load(k->b + 16 * (i + l)), c[l] = v16_load(k->c + 16 * (i + l));
    UNROLL for (uint32_t r = 0; r < SSM_ROWS; r++, at += row_bytes, fetch += 64) {
        v16 s[2] = {v16_zero(), v16_zero()};
        if (e->fetch && e->from != NULL) wide_fetch_here(e->from + fetch, 64);
        if (e->from != NULL) wide_load(e->from + at, SC_DTYPE_BF16, 2, s);
        if (e->fetch && e->next != NULL) wide_fetch_far(e->next + fetch, 64);
        UNROLL for (uint32_t l = 0; l < 2; l++)
            s[l] = v16_add(v16_mul(s[l], alpha), v16_mul(write[r], b[l]));
        sums[r] = v16_add(sums[r], v16_mul(s[0], c[0]));
        sums[r] = v16_add_fused(sums[r], v16_mul(s[1], c[1]), one);
        if (e->to != NULL) wide_store(e->to + at, SC_DTYPE_BF16, 2, s, 0.0f, true);
    }
}

/* SSM_ROWS such rows of bf16 from v on, side by side: B and C are loaded once for all. */
SC_REF_INLINE void ssm_rows_normal(const struct ssm_ends *e, uint32_t v, uint32_t nv,
    struct ssm_token *k)
{
    v16 sums[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()}, write[SSM_ROWS];
    float y[4];
    UNROLL for (uint32_t r = 0; r < SSM_ROWS; r++) write[r] = v16_set(k->dt * k->x[v + r]);
    UNROLL for (uint32_t i = 0; i < nv; i += 2) ssm_columns(e, v, i, nv, k, write, sums);
    v16_sums(sums, y);
    UNROLL for (uint32_t r = 0; r < SSM_ROWS; r++) k->y[v + r] = y[r];
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
        if (dtype == SC_DTYPE_BF16 && ssm_normal(v, k, b_least))
            ssm_rows_normal(e, v, nv, k);
        else
            ssm_rows(e, v, SSM_ROWS, nv, dtype, k);
    }
    for (; v < rows && v < SC_K_DIM_MAX; v++) ssm_rows(e, v, 1, nv, dtype, k);
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

SC_REF_INLINE void ssm_sized(const struct ssm_ends *e, const struct ssm_span *span,
    struct ssm_token *k)
{
    bool f32 = span->p->state.dtype == SC_DTYPE_F32;
    if (span->p->state_dim == 128 && f32)
        ssm_all(e, span->rows, 8, SC_DTYPE_F32, k);
    else if (span->p->state_dim == 128)
        ssm_all(e, span->rows, 8, SC_DTYPE_BF16, k);
    else
        ssm_all(e, span->rows, 4, span->p->state.dtype, k);
}

/* The token of the span, loaded: its y is made, but for the gate. From a slot to a slot it is
 * compiled without a question for each line; `next` is `from` where it is not known: that is in a
 * cache, and to fetch it again costs next to nothing. */
SC_REF_INLINE void ssm_stream(const struct ssm_span *span, struct ssm_token *k)
{
    const sc_k_ssm_params *p = span->p;
    const int32_t *source = sc_host_ptr(p->source), *dest = sc_host_ptr(p->dest);
    struct ssm_ends e = {.from = wide_at(&p->state, source[span->row], ssm_part_at(span)),
        .to = wide_at(&p->state, dest[span->row], ssm_part_at(span)), .next = ssm_next(span),
        .fetch = true};
    if (e.from != NULL && e.to != NULL) {
        struct ssm_ends both = {.from = e.from, .to = e.to,
            .next = e.next != NULL ? e.next : e.from};
        if (both.from == NULL || both.to == NULL || both.next == NULL) __builtin_unreachable();
        if (p->state.dtype == SC_DTYPE_F32 && wide_fetches_itself()) {
            both.fetch = false;
            ssm_sized(&both, span, k);
        } else {
            both.fetch = true;
            ssm_sized(&both, span, k);
        }
    } else {
        ssm_sized(&e, span, k);
    }
    for (uint32_t v = 0; p->d != 0 && v < span->rows; v++) k->y[v] += k->skip * k->x[v];
}

#endif
