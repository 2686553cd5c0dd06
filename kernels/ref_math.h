/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of the reference kernels.
 *
 * The elementary functions are written out instead of taken from libm: loops over them vectorise,
 * and the bits do not depend on the C library or on which variant it picks for the processor.
 * Everything is plain fp32, add and multiply apart (-ffp-contract=off), in source order, so that
 * the compiler cannot change a bit whatever vector width it uses. */
#ifndef SC_REF_MATH_H
#define SC_REF_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/backend.h"

/* Each source of the host is compiled once for plain x86-64 or whatever the machine is (row
 * "reference") and, on x86-64, again with AVX2 and with AVX-512 (CMakeLists.txt). Lanes never
 * interact and nothing is contracted, so each row of the same source gives the same bits. */
#ifndef SC_HOST_ROW
#define SC_HOST_ROW ref
#endif
#define SC_HOST_JOIN(name, row) name##_##row
#define SC_HOST_NAME(name, row) SC_HOST_JOIN(name, row)
#define SC_HOST_FN(name) SC_HOST_NAME(name, SC_HOST_ROW)

#ifdef __AVX2__
#define SC_REF_TILE_LANES 8
#else
#define SC_REF_TILE_LANES 4
#endif

/* So that no helper compiled for wide vectors is linked into another row. */
#define SC_REF_INLINE static inline __attribute__((always_inline))

SC_REF_INLINE uint32_t ref_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

SC_REF_INLINE float ref_bits_f32(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

SC_REF_INLINE float ref_from_bf16(uint16_t h)
{
    return ref_bits_f32((uint32_t)h << 16);
}

/* Nearest even; NaN stays NaN. */
SC_REF_INLINE uint16_t ref_to_bf16(float x)
{
    uint32_t u = ref_f32_bits(x);
    uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    uint32_t quiet = u >> 16 | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* e^x, about 1 ulp; 0 below -87 (no denormals), +inf above 88.72, NaN for NaN. */
SC_REF_INLINE float ref_exp(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float shifted = x * 1.44269504f + magic;
    float n = shifted - magic;
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    /* 2^(n-1) in the exponent field, then doubled, so that n = 128 works, too. */
    uint32_t exponent = ref_f32_bits(shifted) - 0x4b400000u + 126u;
    float y = p * ref_bits_f32(exponent << 23) * 2.0f;
    y = x < -87.0f ? 0.0f : y;
    return x > 88.7228f ? INFINITY : y;
}

SC_REF_INLINE float ref_sigmoid(float x)
{
    return 1.0f / (1.0f + ref_exp(-x));
}

SC_REF_INLINE float ref_silu(float x)
{
    return x / (1.0f + ref_exp(-x));
}

/* log1p(e^x) = max(x, 0) + log1p(e^-|x|), and log1p(t) = 2 atanh(t / (2 + t)) for 0 <= t <= 1. From
 * x = 17.4 on the second term is below half an ulp, so this is "x above 20" as well. */
SC_REF_INLINE float ref_softplus(float x)
{
    float t = ref_exp(-fabsf(x));
    float s = t / (2.0f + t);
    float s2 = s * s;
    float p = 1.0f / 17.0f;
    p = p * s2 + 1.0f / 15.0f;
    p = p * s2 + 1.0f / 13.0f;
    p = p * s2 + 1.0f / 11.0f;
    p = p * s2 + 1.0f / 9.0f;
    p = p * s2 + 1.0f / 7.0f;
    p = p * s2 + 1.0f / 5.0f;
    p = p * s2 + 1.0f / 3.0f;
    p = p * s2 + 1.0f;
    float positive = x < 0.0f ? 0.0f : x; /* NaN passes through */
    return positive + 2.0f * s * p;
}

/* Eight lanes; where the processor has less, the compiler splits them. Loads need no alignment. */
typedef float ref_v8 __attribute__((vector_size(32), aligned(4), may_alias));
/* What matrix tiles are made of: no wider than a register. */
typedef float ref_vt
    __attribute__((vector_size(4 * SC_REF_TILE_LANES), aligned(4), may_alias));

/* Adds up 16 lanes, the last `n` products a[i] b[i] (n < 16) included: a fixed tree. */
SC_REF_INLINE float ref_lane_sum(float *restrict lane, const float *a, const float *b, uint32_t n)
{
    for (uint32_t l = 0; l < n; l++) lane[l] += a[l] * b[l];
    for (uint32_t l = 0; l < 8; l++) lane[l] += lane[l + 8];
    for (uint32_t l = 0; l < 4; l++) lane[l] += lane[l + 4];
    lane[0] += lane[2];
    lane[1] += lane[3];
    return lane[0] + lane[1];
}

/* Sum of products in 16 lanes: an order that depends on n alone. */
SC_REF_INLINE float ref_dot(const float *a, const float *b, uint32_t n)
{
    ref_v8 lane[2] = {{0}, {0}};
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        lane[0] += *(const ref_v8 *)(a + i) * *(const ref_v8 *)(b + i);
        lane[1] += *(const ref_v8 *)(a + i + 8) * *(const ref_v8 *)(b + i + 8);
    }
    return ref_lane_sum((float *)lane, a + i, b + i, n - i);
}

/* x <- x * y, then the dots of x with a and with b: the bits of ref_dot() on the new x. */
SC_REF_INLINE void ref_scale_dots(float *restrict x, const float *y, const float *a,
    const float *b, uint32_t n, float *restrict dots)
{
    ref_v8 lane[2] = {{0}, {0}}, other[2] = {{0}, {0}};
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        ref_v8 x0 = *(ref_v8 *)(x + i) * *(const ref_v8 *)(y + i);
        ref_v8 x1 = *(ref_v8 *)(x + i + 8) * *(const ref_v8 *)(y + i + 8);
        *(ref_v8 *)(x + i) = x0;
        *(ref_v8 *)(x + i + 8) = x1;
        lane[0] += x0 * *(const ref_v8 *)(a + i);
        lane[1] += x1 * *(const ref_v8 *)(a + i + 8);
        other[0] += x0 * *(const ref_v8 *)(b + i);
        other[1] += x1 * *(const ref_v8 *)(b + i + 8);
    }
    for (uint32_t l = i; l < n; l++) x[l] = x[l] * y[l];
    dots[0] = ref_lane_sum((float *)lane, x + i, a + i, n - i);
    dots[1] = ref_lane_sum((float *)other, x + i, b + i, n - i);
}

/* n elements from element `offset` of a tensor. */
SC_REF_INLINE void ref_load(float *restrict out, sc_devptr base, sc_dtype dtype, int64_t offset,
    uint32_t n)
{
    if (dtype == SC_DTYPE_F32) {
        memcpy(out, (const float *)sc_host_ptr(base) + offset, n * sizeof(float));
    } else {
        const uint16_t *restrict in = (const uint16_t *)sc_host_ptr(base) + offset;
        for (uint32_t i = 0; i < n; i++) out[i] = ref_from_bf16(in[i]);
    }
}

SC_REF_INLINE void ref_store(const float *restrict in, sc_devptr base, sc_dtype dtype,
    int64_t offset, uint32_t n)
{
    if (dtype == SC_DTYPE_F32) {
        memcpy((float *)sc_host_ptr(base) + offset, in, n * sizeof(float));
    } else {
        uint16_t *restrict out = (uint16_t *)sc_host_ptr(base) + offset;
        for (uint32_t i = 0; i < n; i++) out[i] = ref_to_bf16(in[i]);
    }
}

SC_REF_INLINE void ref_store_zero(sc_devptr base, sc_dtype dtype, int64_t offset, uint32_t n)
{
    uint64_t elem_bytes = dtype == SC_DTYPE_F32 ? 4 : 2;
    memset((uint8_t *)sc_host_ptr(base) + offset * (int64_t)elem_bytes, 0, n * elem_bytes);
}

/* What a tensor of `dtype` would hold. */
SC_REF_INLINE void ref_round(float *x, sc_dtype dtype, uint32_t n)
{
    if (dtype == SC_DTYPE_F32) return;
    for (uint32_t i = 0; i < n; i++) x[i] = ref_from_bf16(ref_to_bf16(x[i]));
}

/* x / sqrt(sum x^2 + eps) * scale; the one form of it in every kernel. */
SC_REF_INLINE void ref_l2norm(float *x, uint32_t n, float eps, float scale)
{
    float root = sqrtf(ref_dot(x, x, n) + eps);
    for (uint32_t i = 0; i < n; i++) x[i] = x[i] / root * scale;
}

/* The least |x| of n. */
SC_REF_INLINE float ref_least_size(const float *x, uint32_t n)
{
    int32_t least = INT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        int32_t size = (int32_t)(ref_f32_bits(x[i]) & 0x7fffffffu);
        least = size < least ? size : least;
    }
    return ref_bits_f32((uint32_t)least);
}

/* Where slot `slot` begins. */
SC_REF_INLINE sc_devptr ref_slot(const sc_k_slots *slots, int32_t slot)
{
    return slots->base + (uint64_t)((int64_t)slot * slots->slot_stride);
}

/* Where row r begins: a slot, an entry of dense beginnings, or (base 0) zeros. */
struct ref_begin {
    sc_devptr base;
    sc_dtype dtype, slots; /* as it lies there; as slots would hold it */
};

SC_REF_INLINE struct ref_begin ref_begin(const sc_k_slots *slots, const sc_k_slots *initial,
    int32_t source, uint32_t r)
{
    if (initial->base != 0)
        return (struct ref_begin){ref_slot(initial, (int32_t)r), initial->dtype, slots->dtype};
    return (struct ref_begin){source > 0 ? ref_slot(slots, source) : 0, slots->dtype,
        slots->dtype};
}

SC_REF_INLINE void ref_begin_load(float *restrict out, const struct ref_begin *begin,
    int64_t offset, uint32_t n)
{
    if (begin->base == 0)
        memset(out, 0, n * sizeof(float));
    else
        ref_load(out, begin->base, begin->dtype, offset, n);
    if (begin->dtype != begin->slots) ref_round(out, begin->slots, n);
}

#endif
