/* SPDX-License-Identifier: Apache-2.0 */
/* l2norm and gated RMSNorm on the device: one warp a vector. A lane adds up every 32nd element in
 * order, then the lanes are added in a fixed tree, so that the bits depend on the vector alone.
 * Bytes: inputs twice (the second time from L1 or L2), outputs once. */
#include "cuda/device_math.cuh"

#include "cuda/launch.cuh"
#include "kernel_dispatch.h"

namespace {

enum { THREADS = 128, WARPS = THREADS / 32 };

SC_DEV float act_of(sc_k_act act, float z)
{
    return act == SC_K_ACT_SILU ? dev_silu(z) : dev_sigmoid(z);
}

/* Number of the vector of this warp; one block holds WARPS of them. */
SC_DEV uint64_t vector_index()
{
    return blockIdx.x * (uint64_t)WARPS + threadIdx.x / 32;
}

__global__ void __launch_bounds__(THREADS) l2norm(const __grid_constant__ sc_k_l2norm_params p)
{
    dev_wait_previous();
    dev_release_next();
    uint64_t n = vector_index();
    if (n >= (uint64_t)p.token_count * p.heads) return;
    int64_t t = (int64_t)(n / p.heads), head = (int64_t)(n % p.heads);
    int64_t x = t * p.x_stride + head * p.dim, y = t * p.y_stride + head * p.dim;
    float sum = 0.0f;
    for (uint32_t d = threadIdx.x % 32; d < p.dim; d += 32) {
        float value = dev_load(p.x, p.dtype, x + d);
        sum = __fmaf_rn(value, value, sum);
    }
    float inverse = dev_rsqrt(dev_lane_sum<32>(sum) + p.eps);
    for (uint32_t d = threadIdx.x % 32; d < p.dim; d += 32)
        dev_store(p.y, p.out_dtype, y + d, dev_load(p.x, p.dtype, x + d) * inverse);
}

__global__ void __launch_bounds__(THREADS)
rmsnorm(const __grid_constant__ sc_k_gated_rmsnorm_params p)
{
    dev_wait_previous();
    dev_release_next();
    uint64_t n = vector_index();
    if (n >= (uint64_t)p.token_count * p.heads) return;
    int64_t t = (int64_t)(n / p.heads), head = (int64_t)(n % p.heads);
    int64_t x = t * p.x_stride + head * p.dim, z = t * p.z_stride + head * p.dim;
    int64_t y = t * p.y_stride + head * p.dim, w = p.weight_per_head ? head * p.dim : 0;
    float sum = 0.0f;
    for (uint32_t d = threadIdx.x % 32; d < p.dim; d += 32) {
        float value = dev_load(p.x, p.dtype, x + d);
        if (p.gate_first) value = value * act_of(p.act, dev_load(p.z, p.dtype, z + d));
        sum = __fmaf_rn(value, value, sum);
    }
    float rms = dev_rsqrt(dev_lane_sum<32>(sum) / (float)p.dim + p.eps);
    for (uint32_t d = threadIdx.x % 32; d < p.dim; d += 32) {
        float value = dev_load(p.x, p.dtype, x + d);
        float gate = act_of(p.act, dev_load(p.z, p.dtype, z + d));
        if (p.gate_first) value = value * gate;
        value = value * rms * dev_load(p.weight, p.weight_dtype, w + d);
        if (!p.gate_first) value = value * gate;
        dev_store(p.y, p.dtype, y + d, value);
    }
}

sc_status blocks_of(uint64_t vectors, uint32_t *blocks_out)
{
    uint64_t blocks = (vectors + WARPS - 1) / WARPS;
    if (blocks > INT32_MAX)
        return SC_FAIL(SC_ERR_LIMIT, "%llu vectors in one call", (unsigned long long)vectors);
    *blocks_out = (uint32_t)blocks;
    return SC_OK;
}

} // namespace

sc_status sc_k_l2norm_sm90(const void *params, sc_stream *stream)
{
    sc_k_l2norm_params p = *(const sc_k_l2norm_params *)params;
    uint32_t blocks = 0;
    p.x_stride = sc_kernel_stride(p.x_stride, (uint64_t)p.heads * p.dim);
    p.y_stride = sc_kernel_stride(p.y_stride, (uint64_t)p.heads * p.dim);
    SC_TRY(blocks_of((uint64_t)p.token_count * p.heads, &blocks));
    return sc_cuda_launch("l2norm", l2norm, dim3(blocks), THREADS, 0, stream, p);
}

sc_status sc_k_gated_rmsnorm_sm90(const void *params, sc_stream *stream)
{
    sc_k_gated_rmsnorm_params p = *(const sc_k_gated_rmsnorm_params *)params;
    uint32_t blocks = 0;
    uint64_t dense = (uint64_t)p.heads * p.dim;
    p.x_stride = sc_kernel_stride(p.x_stride, dense);
    p.y_stride = sc_kernel_stride(p.y_stride, dense);
    p.z_stride = sc_kernel_stride(p.z_stride, dense);
    SC_TRY(blocks_of((uint64_t)p.token_count * p.heads, &blocks));
    return sc_cuda_launch("gated_rmsnorm", rmsnorm, dim3(blocks), THREADS, 0, stream, p);
}
