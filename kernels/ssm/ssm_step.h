/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of the selective state space, and one step on rows of S: what every other form of a step
 * must equal to the bit. */
#ifndef SC_SSM_STEP_H
#define SC_SSM_STEP_H

#include "kernel_check.h"
#include "ref_math.h"
#include "statecache/kernels_ssm.h"

enum {
    SSM_BLOCK_ELEMS = 16384, /* 64 KiB of rows */
    SSM_HEADS = 16           /* heads whose gates are computed together */
};

/* One head's view of one token; x and y are those of the rows of the block. */
struct ssm_token {
    float b[SC_K_DIM_MAX], c[SC_K_DIM_MAX];
    float x[SC_K_DIM_MAX], y[SC_K_DIM_MAX];
    float dt, alpha, skip;
};

/* S <- S alpha + (dt x) B^T, y = S C (+ skip x), then what storing and loading would do to a 16-bit
 * state. */
SC_REF_INLINE void ssm_step(float *block, uint32_t rows, uint32_t n, struct ssm_token *k,
    bool skips, sc_dtype dtype)
{
    for (uint32_t v = 0; v < rows; v++) {
        float *restrict state = block + (size_t)v * n;
        float write = k->dt * k->x[v], alpha = k->alpha;
        for (uint32_t i = 0; i < n; i++) state[i] = state[i] * alpha + write * k->b[i];
        k->y[v] = ref_dot(state, k->c, n);
    }
    if (skips)
        for (uint32_t v = 0; v < rows; v++) k->y[v] += k->skip * k->x[v];
    ref_round(block, dtype, rows * n);
}

struct ssm_span {
    const sc_k_ssm_params *p;
    uint32_t row, head, p0, rows; /* rows p0.. of a head of a row of the call */
};

/* Rows that a block has from s->p0 on. */
static inline uint32_t ssm_span_rows(const struct ssm_span *s)
{
    uint32_t most = SSM_BLOCK_ELEMS / s->p->state_dim, left = s->p->head_dim - s->p0;
    return left < most ? left : most;
}

/* Element offset of the span's rows in x, z and y of a token. */
static inline uint64_t ssm_rows_at(const struct ssm_span *s)
{
    return (uint64_t)s->head * s->p->head_dim + s->p0;
}

/* The same of its group, in B and C. */
static inline uint64_t ssm_group_at(const struct ssm_span *s)
{
    return (uint64_t)(s->head / (s->p->heads / s->p->groups)) * s->p->state_dim;
}

/* How many heads from `head` on share B and C, SSM_HEADS at most. */
static inline uint32_t ssm_head_count(const sc_k_ssm_params *p, uint32_t head)
{
    uint32_t share = p->heads / p->groups, left = share - head % share;
    return left < SSM_HEADS ? left : SSM_HEADS;
}

/* dt and decay of token t of the call, n heads from `head` on. */
static inline void ssm_gates(float *restrict dt, float *restrict alpha, const sc_k_ssm_params *p,
    int64_t t, uint32_t head, uint32_t n)
{
    const float *a_log = (const float *)sc_host_ptr(p->a_log) + head;
    const float *bias = sc_host_ptr(p->dt_bias);
    float raw[SSM_HEADS];
    ref_load(raw, p->dt, p->dtype, t * sc_kernel_stride(p->dt_stride, p->heads) + head, n);
    for (uint32_t i = 0; i < n; i++) raw[i] += bias != NULL ? bias[head + i] : 0.0f;
    for (uint32_t i = 0; i < n; i++) dt[i] = ref_softplus(raw[i]);
    for (uint32_t i = 0; i < n; i++) alpha[i] = ref_exp(-ref_exp(a_log[i]) * dt[i]);
}

/* B and C of token t, of the span's group. */
static inline void ssm_token_group(struct ssm_token *k, const struct ssm_span *s, int64_t t)
{
    const sc_k_ssm_params *p = s->p;
    uint64_t bs = (uint64_t)p->groups * p->state_dim;
    int64_t group = (int64_t)ssm_group_at(s);
    ref_load(k->b, p->b, p->dtype, t * sc_kernel_stride(p->b_stride, bs) + group, p->state_dim);
    ref_load(k->c, p->c, p->dtype, t * sc_kernel_stride(p->c_stride, bs) + group, p->state_dim);
}

/* Its x, and how much of it is added to y. */
static inline void ssm_token_rows(struct ssm_token *k, const struct ssm_span *s, int64_t t)
{
    const sc_k_ssm_params *p = s->p;
    const float *skip = sc_host_ptr(p->d);
    uint64_t xs = (uint64_t)p->heads * p->head_dim;
    ref_load(k->x, p->x, p->dtype,
        t * sc_kernel_stride(p->x_stride, xs) + (int64_t)ssm_rows_at(s), s->rows);
    k->skip = skip != NULL ? skip[s->head] : 0.0f;
}

/* Token t of the call, as the span sees it. */
static inline void ssm_token_load(struct ssm_token *k, const struct ssm_span *s, int64_t t)
{
    ssm_token_group(k, s, t);
    ssm_gates(&k->dt, &k->alpha, s->p, t, s->head, 1);
    ssm_token_rows(k, s, t);
}

/* Its output, gated. */
static inline void ssm_token_store(struct ssm_token *k, const struct ssm_span *s, int64_t t)
{
    const sc_k_ssm_params *p = s->p;
    uint64_t dense = (uint64_t)p->heads * p->head_dim;
    int64_t at = (int64_t)ssm_rows_at(s);
    float z[SC_K_DIM_MAX];
    if (p->z != 0) {
        ref_load(z, p->z, p->dtype, t * sc_kernel_stride(p->z_stride, dense) + at, s->rows);
        for (uint32_t v = 0; v < s->rows; v++) k->y[v] = k->y[v] * ref_silu(z[v]);
    }
    ref_store(k->y, p->y, p->dtype, t * sc_kernel_stride(p->y_stride, dense) + at, s->rows);
}

/* Element offset of the span in a slot. */
static inline int64_t ssm_part_at(const struct ssm_span *s)
{
    return (int64_t)ssm_rows_at(s) * s->p->state_dim;
}

#endif
