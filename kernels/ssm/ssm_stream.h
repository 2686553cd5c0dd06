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

/* Rows at a time, and how far ahead of them a state is fetched. */
#ifdef __AVX512F__
enum { SSM_ROWS = 4, SSM_AHEAD_BYTES = 4096 };
#else
enum { SSM_ROWS = 2, SSM_AHEAD_BYTES = 4096 };
#endif

/* What registers are counted for at compile time. */
SC_REF_INLINE bool ssm_streams(uint32_t state_dim) { return state_dim == 64 || state_dim == 128; }

struct ssm_ends {
    const uint8_t *from; /* NULL: zeros */
    uint8_t *to;         /* NULL: not stored */
};

/* Row v: new lanes into `s`; what it gives, in lanes, is returned. */
SC_REF_INLINE v16 ssm_row(const struct ssm_ends *e, uint32_t v, uint32_t nv, sc_dtype dtype,
    const struct ssm_token *k, v16 *s)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    v16 alpha = v16_set(k->alpha), write = v16_set(k->dt * k->x[v]), sum = v16_zero();
    if (e->from != NULL) {
        wide_load(e->from + v * row_bytes, dtype, nv, s);
        for (size_t line = 0; line < row_bytes; line += 64)
            __builtin_prefetch(e->from + (v * row_bytes + SSM_AHEAD_BYTES + line), 0, 3);
    } else {
        UNROLL for (uint32_t i = 0; i < nv; i++) s[i] = v16_zero();
    }
    UNROLL for (uint32_t i = 0; i < nv; i++) {
        s[i] = v16_add(v16_mul(s[i], alpha), v16_mul(write, v16_load(k->b + 16 * i)));
        sum = v16_add(sum, v16_mul(s[i], v16_load(k->c + 16 * i)));
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

/* Rows v .. v + SSM_ROWS of `rows`; beyond them nothing is read or written. */
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

SC_REF_INLINE void ssm_all(const struct ssm_ends *e, uint32_t rows, uint32_t nv, sc_dtype dtype,
    struct ssm_token *k)
{
    uint32_t v = 0;
    for (; v + SSM_ROWS <= rows; v += SSM_ROWS) ssm_rows(e, v, SSM_ROWS, nv, dtype, k);
    for (; v < rows && v < SC_K_DIM_MAX; v++) ssm_rows(e, v, 1, nv, dtype, k);
}

/* The token of the span, loaded: its y is made, but for the gate. */
SC_REF_INLINE void ssm_stream(const struct ssm_span *span, int32_t source, int32_t dest,
    struct ssm_token *k)
{
    const sc_k_ssm_params *p = span->p;
    struct ssm_ends e = {.from = wide_at(&p->state, source, ssm_part_at(span)),
        .to = wide_at(&p->state, dest, ssm_part_at(span))};
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
