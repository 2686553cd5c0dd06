/* SPDX-License-Identifier: Apache-2.0 */
/* Log gates and write strengths on the host: elementwise, fp32. */
#include "gates/gate_math.h"
#include "kernel_check.h"
#include "kernel_dispatch.h"

static void gates(const sc_k_gates_params *p)
{
    uint32_t n = p->weights.gate == SC_K_GATE_GDN ? 1 : p->dim;
    uint64_t row = (uint64_t)p->heads * n;
    int64_t a_stride = sc_kernel_stride(p->a_stride, row);
    int64_t b_stride = sc_kernel_stride(p->b_stride, p->heads);
    float *g_out = sc_host_ptr(p->g), *beta_out = sc_host_ptr(p->beta);
    for (int64_t t = 0; t < p->token_count; t++)
        for (uint32_t h = 0; h < p->heads; h++) {
            float a[SC_K_DIM_MAX], b;
            if (g_out != NULL) {
                ref_load(a, p->a, p->dtype, t * a_stride + (int64_t)h * n, n);
                ref_gate(g_out + t * (int64_t)row + (int64_t)h * n, a, &p->weights, h, n);
            }
            if (beta_out != NULL) {
                ref_load(&b, p->b, p->dtype, t * b_stride + h, 1);
                beta_out[t * p->heads + h] = ref_beta(b, &p->weights);
            }
        }
}

sc_status SC_HOST_FN(sc_k_gates)(const void *params, sc_stream *stream)
{
    (void)stream;
    gates(params);
    return SC_OK;
}
