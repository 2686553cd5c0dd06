/* SPDX-License-Identifier: Apache-2.0 */
/* Gate arithmetic, shared by the gates kernel and the packed decode so that both give the same
 * bits. */
#ifndef SC_GATE_MATH_H
#define SC_GATE_MATH_H

#include "ref_math.h"

/* g[0..n) of head `head` from the raw gate a[0..n); n is 1 for GDN. `a` may be `g`. */
SC_REF_INLINE void ref_gate(float *g, const float *a, const sc_k_gate_weights *w, uint32_t head,
    uint32_t n)
{
    float bias[SC_K_DIM_MAX] = {0};
    float rate = 1.0f;
    if (w->a_log != 0) rate = ref_exp(((const float *)sc_host_ptr(w->a_log))[head]);
    if (w->dt_bias != 0) ref_load(bias, w->dt_bias, w->dt_bias_dtype, (int64_t)head * n, n);
    if (w->gate == SC_K_GATE_KDA_BOUNDED)
        for (uint32_t i = 0; i < n; i++)
            g[i] = w->lower_bound * ref_sigmoid(rate * (a[i] + bias[i]));
    else
        for (uint32_t i = 0; i < n; i++) g[i] = -rate * ref_softplus(a[i] + bias[i]);
}

SC_REF_INLINE float ref_beta(float b, const sc_k_gate_weights *w)
{
    float beta = ref_sigmoid(b);
    return w->beta_doubled ? 2.0f * beta : beta;
}

#endif
