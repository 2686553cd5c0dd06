/* SPDX-License-Identifier: Apache-2.0 */
/* What the reference forms of the delta rule share: reading tokens, and rows without work. */
#ifndef SC_DELTA_REF_H
#define SC_DELTA_REF_H

#include "kernel_check.h"
#include "ref_math.h"

#ifdef __AVX2__
#include "v16_math.h"
#define delta_l2norm v16_l2norm
#else
#define delta_l2norm ref_l2norm
#endif

SC_REF_INLINE float delta_scale(const sc_k_delta_shape *s)
{
    return s->scale != 0.0f ? s->scale : 1.0f / sqrtf((float)s->k_dim);
}

/* k of one head from its element offset. */
SC_REF_INLINE void delta_load_k(float *k, const sc_k_delta_shape *s, sc_devptr base, int64_t at,
    sc_dtype dtype)
{
    ref_load(k, base, dtype, at, s->k_dim);
    if (s->qk_l2norm) delta_l2norm(k, s->k_dim, 1e-6f, 1.0f);
}

/* q (scaled) and k of one head from their element offsets. */
SC_REF_INLINE void delta_load_qk(float *q, float *k, const sc_k_delta_shape *s, sc_devptr q_base,
    int64_t q_at, sc_devptr k_base, int64_t k_at, sc_dtype dtype)
{
    float scale = delta_scale(s);
    ref_load(q, q_base, dtype, q_at, s->k_dim);
    delta_load_k(k, s, k_base, k_at, dtype);
    if (s->qk_l2norm) {
        delta_l2norm(q, s->k_dim, 1e-6f, scale);
    } else {
        for (uint32_t i = 0; i < s->k_dim; i++) q[i] = q[i] * scale;
    }
}

/* exp(g) for each of K, from one value (GDN) or K values. */
SC_REF_INLINE void delta_alpha(float *alpha, const sc_k_delta_shape *s, const float *g)
{
    if (s->kind == SC_K_KIND_GDN) {
        float a = ref_exp(g[0]);
        for (uint32_t i = 0; i < s->k_dim; i++) alpha[i] = a;
    } else {
        for (uint32_t i = 0; i < s->k_dim; i++) alpha[i] = ref_exp(g[i]);
    }
}

/* Element offset of (v head, v) in a slot's part. */
SC_REF_INLINE int64_t delta_at(const sc_k_delta_shape *s, uint32_t hv, uint32_t v)
{
    return ((int64_t)hv * s->v_dim + v) * s->k_dim;
}

/* Where row r of the call begins. */
SC_REF_INLINE struct ref_begin delta_begin(const sc_k_delta_params *p, uint32_t r)
{
    return ref_begin(&p->state, &p->initial, ((const int32_t *)sc_host_ptr(p->source))[r], r);
}

/* The state moves from where row r begins to its dest as it is. */
static inline void delta_move(const sc_k_delta_params *p, uint32_t r)
{
    int32_t source = ((const int32_t *)sc_host_ptr(p->source))[r];
    int32_t dest = ((const int32_t *)sc_host_ptr(p->dest))[r];
    if (dest <= 0 || (dest == source && p->initial.base == 0)) return;
    struct ref_begin from = delta_begin(p, r);
    int64_t elems = (int64_t)p->shape.v_heads * p->shape.v_dim * p->shape.k_dim;
    float block[SC_K_DIM_MAX];
    for (int64_t at = 0; at < elems; at += SC_K_DIM_MAX) {
        uint32_t n = elems - at < SC_K_DIM_MAX ? (uint32_t)(elems - at) : SC_K_DIM_MAX;
        ref_begin_load(block, &from, at, n);
        ref_store(block, ref_slot(&p->state, dest), p->state.dtype, at, n);
    }
}

/* Does the row need no arithmetic? Then does what is left: zeros for a padded row; for an empty one
 * the state moves from source to dest as it is. */
static inline bool delta_row_idle(const sc_k_delta_params *p, uint32_t r)
{
    const sc_k_delta_shape *s = &p->shape;
    const int32_t *row_start = sc_host_ptr(p->row_start);
    int32_t source = ((const int32_t *)sc_host_ptr(p->source))[r];
    uint32_t count = sc_kernel_row_tokens(row_start, r), vo = s->v_heads * s->v_dim;
    if (source < 0) {
        int64_t stride = sc_kernel_stride(p->o_stride, vo);
        for (uint32_t t = 0; t < count; t++)
            ref_store_zero(p->o, p->dtype, ((int64_t)row_start[r] + t) * stride, vo);
        return true;
    }
    if (count > 0) return false;
    delta_move(p, r);
    return true;
}

#endif
