/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of the CUDA kernels.
 *
 * Everything is fp32, and whether a product is fused with a sum is written in the source (the files
 * are compiled with -fmad=false), so that two kernels which must give the same bits do. Elementary
 * functions are the hardware's approximations of 2^x, 1/x and 1/sqrt x, each within 2 ulp:
 * deterministic, and far below what the tensors' dtypes can hold. Their denormals count as 0. */
#ifndef SC_CUDA_DEVICE_MATH_CUH
#define SC_CUDA_DEVICE_MATH_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#include "kernel_check.h"

#define SC_DEV __device__ __forceinline__

typedef __nv_bfloat16 sc_bf16;

SC_DEV float dev_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

SC_DEV float dev_rcp(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

SC_DEV float dev_rsqrt(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* e^x within 3 ulp below |x| = 88: what rounding x log2 e lost is put back. -inf gives 0. */
SC_DEV float dev_exp(float x)
{
    float t = x * 1.44269504f, y = dev_exp2(t);
    float lost = __fmaf_rn(x, 1.92596303e-8f, __fmaf_rn(x, 1.44269504f, -t));
    return fabsf(x) < 88.0f ? __fmaf_rn(y, lost * 0.693147181f, y) : y;
}

SC_DEV float dev_sigmoid(float x)
{
    return dev_rcp(1.0f + dev_exp(-x));
}

/* x * sigmoid(x) within 1e-6 for |x| < 16: for activations, where speed counts. */
SC_DEV float dev_silu_fast(float x)
{
    return x * dev_rcp(1.0f + dev_exp2(x * -1.44269504f));
}

/* x * sigmoid(x); for x below -88 the denominator is infinite and the result -0. */
SC_DEV float dev_silu(float x)
{
    return x * dev_sigmoid(x);
}

/* max(x, 0) + log1p(t) with t = e^-|x|, and log1p(t) = 2 atanh(t / (2 + t)): accurate where the
 * result is tiny, too. */
SC_DEV float dev_softplus(float x)
{
    float t = dev_exp(-fabsf(x)), s = t * dev_rcp(2.0f + t), s2 = s * s;
    float p = __fmaf_rn(1.0f / 13.0f, s2, 1.0f / 11.0f);
    p = __fmaf_rn(p, s2, 1.0f / 9.0f);
    p = __fmaf_rn(p, s2, 1.0f / 7.0f);
    p = __fmaf_rn(p, s2, 1.0f / 5.0f);
    p = __fmaf_rn(p, s2, 1.0f / 3.0f);
    p = __fmaf_rn(p, s2, 1.0f);
    float positive = x < 0.0f ? 0.0f : x; /* NaN passes through */
    return __fmaf_rn(2.0f * s, p, positive);
}

/* The log gate of one value. `rate` is exp(A_log). */
SC_DEV float dev_gate(sc_k_gate gate, float a, float bias, float rate, float lower_bound)
{
    float x = a + bias;
    if (gate == SC_K_GATE_KDA_BOUNDED) return lower_bound * dev_sigmoid(rate * x);
    return -rate * dev_softplus(x);
}

SC_DEV float dev_rate(sc_devptr a_log, uint32_t head)
{
    return a_log != 0 ? dev_exp(((const float *)a_log)[head]) : 1.0f;
}

SC_DEV float dev_beta(float b, bool doubled)
{
    float beta = dev_sigmoid(b);
    return doubled ? 2.0f * beta : beta;
}

SC_DEV float dev_widen(sc_bf16 x)
{
    return __bfloat162float(x);
}

SC_DEV float dev_widen(float x)
{
    return x;
}

template <typename T> SC_DEV T dev_narrow(float x);
template <> SC_DEV float dev_narrow<float>(float x)
{
    return x;
}
template <> SC_DEV sc_bf16 dev_narrow<sc_bf16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* What a tensor of type T would hold. */
template <typename T> SC_DEV float dev_round(float x)
{
    return dev_widen(dev_narrow<T>(x));
}

/* An element of a tensor whose dtype is known only at run time. */
SC_DEV float dev_load(sc_devptr base, sc_dtype dtype, int64_t at)
{
    if (dtype == SC_DTYPE_F32) return ((const float *)base)[at];
    return dev_widen(((const sc_bf16 *)base)[at]);
}

SC_DEV void dev_store(sc_devptr base, sc_dtype dtype, int64_t at, float x)
{
    if (dtype == SC_DTYPE_F32)
        ((float *)base)[at] = x;
    else
        ((sc_bf16 *)base)[at] = dev_narrow<sc_bf16>(x);
}

/* The two halves of a word of bf16. */
SC_DEV float dev_low(uint32_t w)
{
    return __uint_as_float(w << 16);
}

SC_DEV float dev_high(uint32_t w)
{
    return __uint_as_float(w & 0xffff0000u);
}

SC_DEV uint32_t dev_pack(float low, float high)
{
    __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&x;
}

/* N consecutive elements as fp32: one or two wide accesses; `at` a multiple of N, base aligned. */
template <int N> SC_DEV void dev_load_vec(float *out, const float *in)
{
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        float4 x = *(const float4 *)(in + i);
        out[i] = x.x, out[i + 1] = x.y, out[i + 2] = x.z, out[i + 3] = x.w;
    }
}

template <int N> SC_DEV void dev_load_vec(float *out, const sc_bf16 *in)
{
    static_assert(N == 4 || N == 8, "8 or 16 bytes");
    uint32_t w[N / 2];
    if (N == 8) {
        uint4 x = *(const uint4 *)in;
        w[0] = x.x, w[1] = x.y, w[N / 2 - 2] = x.z, w[N / 2 - 1] = x.w;
    } else {
        uint2 x = *(const uint2 *)in;
        w[0] = x.x, w[1] = x.y;
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++) out[2 * i] = dev_low(w[i]), out[2 * i + 1] = dev_high(w[i]);
}

/* Sum over the `LANES` lanes that share the upper bits of the lane number, in all of them. */
template <int LANES> SC_DEV float dev_lane_sum(float x)
{
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}

SC_DEV uint64_t dev_slot(const sc_k_slots &slots, int32_t slot)
{
    return slots.base + (uint64_t)((int64_t)slot * slots.slot_stride);
}

/* Where a row begins: its slot, its entry of dense beginnings, or (base 0) zeros. */
struct dev_begin {
    uint64_t base;
    sc_dtype dtype;
};

SC_DEV dev_begin dev_beginning(const sc_k_slots &slots, const sc_k_slots &initial, int32_t source,
    uint32_t row)
{
    if (initial.base != 0 && source >= 0) return {dev_slot(initial, (int32_t)row), initial.dtype};
    return {source > 0 ? dev_slot(slots, source) : 0, slots.dtype};
}

/* An element of it as slots of S hold it. */
template <typename S> SC_DEV float dev_begin_load(const dev_begin &b, int64_t at)
{
    return b.base != 0 ? dev_round<S>(dev_load(b.base, b.dtype, at)) : 0.0f;
}

/* Programmatic dependent launch: waits until the kernel before has finished and its writes are
 * seen; lets the one behind begin. Both do nothing in a launch without the attribute. */
SC_DEV void dev_wait_previous()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

SC_DEV void dev_release_next()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Asks for `bytes` bytes in L2; address and size are multiples of 16. */
SC_DEV void dev_prefetch(const void *from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

#endif
