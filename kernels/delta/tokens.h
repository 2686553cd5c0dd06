/* SPDX-License-Identifier: Apache-2.0 */
/* What works token by token shares: loading prepared tokens, and blocks of rows of S in fp32.
 * delta_steps() moves a block on by the tokens, in the form that this is compiled for. */
#ifndef SC_DELTA_TOKENS_H
#define SC_DELTA_TOKENS_H

#include "delta/delta_check.h"
#include "gates/gate_math.h"

#ifdef __AVX2__
#include "delta/stream_wide.h"
#define delta_steps wide_steps
#else
#include "delta/rows_plain.h"
#define delta_steps plain_steps
#endif

SC_REF_INLINE uint32_t block_rows(const sc_k_delta_shape *s, uint32_t v0)
{
    uint32_t most = BLOCK_ELEMS / s->k_dim;
    return s->v_dim - v0 < most ? s->v_dim - v0 : most;
}

SC_REF_INLINE void block_store(const float *block, const sc_k_slots *state, int32_t slot,
    int64_t at, uint32_t n)
{
    if (slot > 0) ref_store(block, ref_slot(state, slot), state->dtype, at, n);
}

/* Token t of the call becomes the next one of x. */
SC_REF_INLINE void token_load(struct tokens *x, const sc_k_delta_params *p, int64_t t, uint32_t hv,
    uint32_t v0, uint32_t rows)
{
    const sc_k_delta_shape *s = &p->shape;
    uint64_t qk = (uint64_t)s->heads * s->k_dim, vo = (uint64_t)s->v_heads * s->v_dim;
    int64_t h = hv / (s->v_heads / s->heads), g_dim = s->kind == SC_K_KIND_GDN ? 1 : s->k_dim;
    const float *g = (const float *)sc_host_ptr(p->g) + (t * s->v_heads + hv) * g_dim;
    uint32_t i = x->count++;
    size_t at = (size_t)i * s->k_dim;
    delta_load_qk(x->q + at, x->k + at, s, p->q,
        t * sc_kernel_stride(p->q_stride, qk) + h * s->k_dim, p->k,
        t * sc_kernel_stride(p->k_stride, qk) + h * s->k_dim, p->dtype);
    x->kq[i] = ref_dot(x->k + at, x->q + at, s->k_dim);
    delta_alpha(x->alpha + at, s, g);
    ref_load(x->v + (size_t)i * rows, p->v, p->dtype,
        t * sc_kernel_stride(p->v_stride, vo) + (int64_t)hv * s->v_dim + v0, rows);
    x->beta[i] = ((const float *)sc_host_ptr(p->beta))[t * s->v_heads + hv];
}

/* exp(g) and beta of row r of a decode, given or from raw gates. */
SC_REF_INLINE void apart_gates(float *alpha, float *beta, const sc_k_decode_params *p,
    int64_t r, uint32_t hv)
{
    const sc_k_delta_shape *s = &p->shape;
    uint32_t n = s->kind == SC_K_KIND_GDN ? 1 : s->k_dim;
    float g[SC_K_DIM_MAX], b;
    if (p->g != 0) {
        ref_load(g, p->g, SC_DTYPE_F32, (r * s->v_heads + hv) * n, n);
    } else {
        int64_t stride = sc_kernel_stride(p->a_stride, (uint64_t)s->v_heads * n);
        ref_load(g, p->a, p->dtype, r * stride + (int64_t)hv * n, n);
        ref_gate(g, g, &p->weights, hv, n);
    }
    delta_alpha(alpha, s, g);
    if (p->beta != 0) {
        *beta = ((const float *)sc_host_ptr(p->beta))[r * s->v_heads + hv];
    } else {
        ref_load(&b, p->b, p->dtype, r * sc_kernel_stride(p->b_stride, s->v_heads) + hv, 1);
        *beta = ref_beta(b, &p->weights);
    }
}

/* Element offsets of k and of v of row r of a decode. */
SC_REF_INLINE int64_t decode_k_at(const sc_k_decode_params *p, int64_t r, uint32_t hv)
{
    const sc_k_delta_shape *s = &p->shape;
    return r * sc_kernel_stride(p->k_stride, (uint64_t)s->heads * s->k_dim)
        + (int64_t)(hv / (s->v_heads / s->heads)) * s->k_dim;
}

SC_REF_INLINE int64_t decode_v_at(const sc_k_decode_params *p, int64_t r, uint32_t hv)
{
    const sc_k_delta_shape *s = &p->shape;
    return r * sc_kernel_stride(p->v_stride, (uint64_t)s->v_heads * s->v_dim)
        + (int64_t)hv * s->v_dim;
}

/* q and k of row r of a decode become those of token i of x. */
SC_REF_INLINE void decode_qk(struct tokens *x, uint32_t i, const sc_k_decode_params *p, int64_t r,
    uint32_t hv)
{
    const sc_k_delta_shape *s = &p->shape;
    size_t at = (size_t)i * s->k_dim;
    int64_t q_at = r * sc_kernel_stride(p->q_stride, (uint64_t)s->heads * s->k_dim)
        + (int64_t)(hv / (s->v_heads / s->heads)) * s->k_dim;
    delta_load_qk(x->q + at, x->k + at, s, p->q, q_at, p->k, decode_k_at(p, r, hv), p->dtype);
    x->kq[i] = ref_dot(x->k + at, x->q + at, s->k_dim);
}

/* Row r of a decode becomes the next token of x, but for its v. */
SC_REF_INLINE void decode_token(struct tokens *x, const sc_k_decode_params *p, int64_t r,
    uint32_t hv)
{
    uint32_t i = x->count++;
    decode_qk(x, i, p, r, hv);
    apart_gates(x->alpha + (size_t)i * p->shape.k_dim, &x->beta[i], p, r, hv);
}

#endif
