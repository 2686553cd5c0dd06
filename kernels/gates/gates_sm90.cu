/* SPDX-License-Identifier: Apache-2.0 */
/* Log gates and write strengths on the device: one thread a value, g first, then beta. Bytes: each
 * input and output once. */
#include "cuda/device_math.cuh"

#include "cuda/launch.cuh"
#include "kernel_dispatch.h"

namespace {

enum { THREADS = 256 };

__global__ void __launch_bounds__(THREADS)
gates(const __grid_constant__ sc_k_gates_params p, uint32_t n)
{
    dev_wait_previous();
    dev_release_next();
    uint64_t per_token = (uint64_t)p.heads * n;
    uint64_t g_count = p.g != 0 ? p.token_count * per_token : 0;
    uint64_t count = g_count + (p.beta != 0 ? (uint64_t)p.token_count * p.heads : 0);
    for (uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * THREADS) {
        if (i < g_count) {
            uint64_t t = i / per_token, at = i - t * per_token;
            uint32_t head = (uint32_t)(at / n);
            float bias = p.weights.dt_bias != 0
                ? dev_load(p.weights.dt_bias, p.weights.dt_bias_dtype, (int64_t)at) : 0.0f;
            float a = dev_load(p.a, p.dtype, (int64_t)(t * (uint64_t)p.a_stride + at));
            ((float *)p.g)[i] = dev_gate(p.weights.gate, a, bias, dev_rate(p.weights.a_log, head),
                p.weights.lower_bound);
        } else {
            uint64_t j = i - g_count, t = j / p.heads, head = j - t * p.heads;
            ((float *)p.beta)[j] = dev_beta(
                dev_load(p.b, p.dtype, (int64_t)(t * (uint64_t)p.b_stride + head)),
                p.weights.beta_doubled);
        }
    }
}

} // namespace

sc_status sc_k_gates_sm90(const void *params, sc_stream *stream)
{
    sc_k_gates_params p = *(const sc_k_gates_params *)params;
    uint32_t n = p.weights.gate == SC_K_GATE_GDN || p.g == 0 ? 1 : p.dim;
    p.a_stride = sc_kernel_stride(p.a_stride, (uint64_t)p.heads * n);
    p.b_stride = sc_kernel_stride(p.b_stride, p.heads);
    uint64_t count = (uint64_t)p.token_count * p.heads * (n + 1ull);
    uint64_t blocks = (count + THREADS - 1) / THREADS;
    if (blocks > 1u << 20) blocks = 1u << 20;
    return sc_cuda_launch("gates", gates, dim3((unsigned)blocks), THREADS, 0, stream, p, n);
}
