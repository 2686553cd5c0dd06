/* SPDX-License-Identifier: Apache-2.0 */
/* Log gates and write strengths on the host: elementwise, fp32. */
#include "gates/gate_math.h"
#include "kernel_check.h"
#include "kernel_dispatch.h"

/* GDN: one number for each head, so that the loop runs over heads. The bits of ref_gate(). */
static void gates_gdn(const sc_k_gates_params *p, uint32_t h0, uint32_t n)
{
    float rate[SC_K_DIM_MAX], bias[SC_K_DIM_MAX] = {0}, a[SC_K_DIM_MAX];
    float *g_out = sc_host_ptr(p->g);
    int64_t stride = sc_kernel_stride(p->a_stride, p->heads);
    ref_load(rate, p->weights.a_log, SC_DTYPE_F32, h0, n);
    for (uint32_t i = 0; i < n; i++) rate[i] = ref_exp(rate[i]);
    if (p->weights.dt_bias != 0)
        ref_load(bias, p->weights.dt_bias, p->weights.dt_bias_dtype, h0, n);
    for (int64_t t = 0; t < p->token_count; t++) {
        float *restrict g = g_out + t * p->heads + h0;
        ref_load(a, p->a, p->dtype, t * stride + h0, n);
        for (uint32_t i = 0; i < n; i++) g[i] = -rate[i] * ref_softplus(a[i] + bias[i]);
    }
}

static void gates_kda(const sc_k_gates_params *p)
{
    uint32_t n = p->dim;
    uint64_t row = (uint64_t)p->heads * n;
    int64_t stride = sc_kernel_stride(p->a_stride, row);
    float *g_out = sc_host_ptr(p->g);
    for (int64_t t = 0; t < p->token_count; t++)
        for (uint32_t h = 0; h < p->heads; h++) {
            float a[SC_K_DIM_MAX];
            ref_load(a, p->a, p->dtype, t * stride + (int64_t)h * n, n);
            ref_gate(g_out + t * (int64_t)row + (int64_t)h * n, a, &p->weights, h, n);
        }
}

static void strengths(const sc_k_gates_params *p, uint32_t h0, uint32_t n)
{
    float b[SC_K_DIM_MAX], *beta_out = sc_host_ptr(p->beta);
    int64_t stride = sc_kernel_stride(p->b_stride, p->heads);
    for (int64_t t = 0; t < p->token_count; t++) {
        float *restrict beta = beta_out + t * p->heads + h0;
        ref_load(b, p->b, p->dtype, t * stride + h0, n);
        for (uint32_t i = 0; i < n; i++) beta[i] = ref_beta(b[i], &p->weights);
    }
}

static void gates(const sc_k_gates_params *p)
{
    for (uint32_t h = 0; h < p->heads; h += SC_K_DIM_MAX) {
        uint32_t n = p->heads - h < SC_K_DIM_MAX ? p->heads - h : SC_K_DIM_MAX;
        if (p->g != 0 && p->weights.gate == SC_K_GATE_GDN) gates_gdn(p, h, n);
        if (p->beta != 0) strengths(p, h, n);
    }
    if (p->g != 0 && p->weights.gate != SC_K_GATE_GDN) gates_kda(p);
}

sc_status SC_HOST_FN(sc_k_gates)(const void *params, sc_stream *stream)
{
    (void)stream;
    gates(params);
    return SC_OK;
}
