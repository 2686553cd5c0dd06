/* SPDX-License-Identifier: Apache-2.0 */
/* The elementary functions of ref_math.h on sixteen lanes (v16.h), operation for operation, hence
 * with their bits; and sixteen elements of a tensor of either dtype. For loops that compilers leave
 * in pieces, through buffers. */
#ifndef SC_V16_MATH_H
#define SC_V16_MATH_H

#include "v16.h"

#ifdef __AVX512F__

SC_REF_INLINE v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
SC_REF_INLINE v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }

SC_REF_INLINE v16 v16_negate(v16 a)
{
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}

/* 2^(n - 1) of what ref_exp() calls `shifted`. */
SC_REF_INLINE v16 v16_half_power(v16 shifted)
{
    __m512i n = _mm512_sub_epi32(_mm512_castps_si512(shifted),
        _mm512_set1_epi32(0x4b400000 - 126));
    return _mm512_castsi512_ps(_mm512_slli_epi32(n, 23));
}

/* y, but 0 where x < low and `high` where x > top. */
SC_REF_INLINE v16 v16_clamp(v16 y, v16 x, float low, float top, float high)
{
    y = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(low), _CMP_NLT_UQ), y);
    __mmask16 over = _mm512_cmp_ps_mask(x, _mm512_set1_ps(top), _CMP_GT_OQ);
    return _mm512_mask_mov_ps(y, over, _mm512_set1_ps(high));
}

/* Bits of the nearest bf16, ties to even, in the upper half of each lane; NaN stays NaN. */
SC_REF_INLINE __m512i v16_bf16_bits(v16 a)
{
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    __m512i quiet = _mm512_or_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x400000));
    return _mm512_mask_mov_epi32(v16_round(a), nan, quiet);
}

SC_REF_INLINE v16 v16_to_bf16(v16 a)
{
    return _mm512_castsi512_ps(_mm512_and_si512(v16_bf16_bits(a),
        _mm512_set1_epi32((int)0xffff0000u)));
}

SC_REF_INLINE v16 v16_load_bf16(const uint16_t *x)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

SC_REF_INLINE void v16_store_bf16(uint16_t *x, v16 a)
{
    __m512i h = _mm512_srli_epi32(v16_bf16_bits(a), 16);
    _mm256_storeu_si256((__m256i *)(void *)x, _mm512_cvtepi32_epi16(h));
}

/* The same of numbers that are bf16. */
SC_REF_INLINE void v16_store_narrow(uint16_t *x, v16 a)
{
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    __m512i u = _mm512_castps_si512(a), quiet = _mm512_set1_epi32(0x400000);
    __m512i h = _mm512_srli_epi32(_mm512_mask_or_epi32(u, nan, u, quiet), 16);
    _mm256_storeu_si256((__m256i *)(void *)x, _mm512_cvtepi32_epi16(h));
}

#else

SC_REF_INLINE v16 v16_sub(v16 a, v16 b)
{
    return (v16){_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b)};
}

SC_REF_INLINE v16 v16_div(v16 a, v16 b)
{
    return (v16){_mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b)};
}

SC_REF_INLINE v16 v16_negate(v16 a)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){_mm256_xor_ps(a.a, sign), _mm256_xor_ps(a.b, sign)};
}

SC_REF_INLINE __m256 v8_half_power(__m256 shifted)
{
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(shifted),
        _mm256_set1_epi32(0x4b400000 - 126));
    return _mm256_castsi256_ps(_mm256_slli_epi32(n, 23));
}

SC_REF_INLINE v16 v16_half_power(v16 shifted)
{
    return (v16){v8_half_power(shifted.a), v8_half_power(shifted.b)};
}

SC_REF_INLINE __m256 v8_clamp(__m256 y, __m256 x, float low, float top, float high)
{
    y = _mm256_and_ps(y, _mm256_cmp_ps(x, _mm256_set1_ps(low), _CMP_NLT_UQ));
    __m256 over = _mm256_cmp_ps(x, _mm256_set1_ps(top), _CMP_GT_OQ);
    return _mm256_blendv_ps(y, _mm256_set1_ps(high), over);
}

SC_REF_INLINE v16 v16_clamp(v16 y, v16 x, float low, float top, float high)
{
    return (v16){v8_clamp(y.a, x.a, low, top, high), v8_clamp(y.b, x.b, low, top, high)};
}

SC_REF_INLINE __m256i v8_bf16_bits(__m256 a)
{
    __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
    __m256i quiet = _mm256_or_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x400000));
    return _mm256_blendv_epi8(v16_round(a), quiet, _mm256_castps_si256(nan));
}

SC_REF_INLINE v16 v16_to_bf16(v16 a)
{
    __m256i upper = _mm256_set1_epi32((int)0xffff0000u);
    return (v16){_mm256_castsi256_ps(_mm256_and_si256(v8_bf16_bits(a.a), upper)),
        _mm256_castsi256_ps(_mm256_and_si256(v8_bf16_bits(a.b), upper))};
}

SC_REF_INLINE v16 v16_load_bf16(const uint16_t *x)
{
    const __m128i *h = (const __m128i *)(const void *)x;
    return (v16){v16_widen(_mm_loadu_si128(h)), v16_widen(_mm_loadu_si128(h + 1))};
}

SC_REF_INLINE void v16_store_bf16(uint16_t *x, v16 a)
{
    __m256i low = _mm256_srli_epi32(v8_bf16_bits(a.a), 16);
    __m256i high = _mm256_srli_epi32(v8_bf16_bits(a.b), 16);
    __m256i mixed = _mm256_packus_epi32(low, high); /* halves of low and high in turns */
    _mm256_storeu_si256((__m256i *)(void *)x, _mm256_permute4x64_epi64(mixed, 0xd8));
}

SC_REF_INLINE void v16_store_narrow(uint16_t *x, v16 a) { v16_store_bf16(x, a); }

#endif

/* As ref_exp(). */
SC_REF_INLINE v16 v16_exp(v16 x)
{
    const v16 magic = v16_set(12582912.0f);
    v16 shifted = v16_add(v16_mul(x, v16_set(1.44269504f)), magic);
    v16 n = v16_sub(shifted, magic);
    v16 r = v16_sub(x, v16_mul(n, v16_set(0.693359375f)));
    r = v16_sub(r, v16_mul(n, v16_set(-2.12194440e-4f)));
    v16 p = v16_set(1.9875691500e-4f);
    p = v16_add(v16_mul(p, r), v16_set(1.3981999507e-3f));
    p = v16_add(v16_mul(p, r), v16_set(8.3334519073e-3f));
    p = v16_add(v16_mul(p, r), v16_set(4.1665795894e-2f));
    p = v16_add(v16_mul(p, r), v16_set(1.6666665459e-1f));
    p = v16_add(v16_mul(p, r), v16_set(5.0000001201e-1f));
    p = v16_add(v16_add(v16_mul(p, v16_mul(r, r)), r), v16_set(1.0f));
    v16 y = v16_mul(v16_mul(p, v16_half_power(shifted)), v16_set(2.0f));
    return v16_clamp(y, x, -87.0f, 88.7228f, INFINITY);
}

/* As ref_sigmoid(). */
SC_REF_INLINE v16 v16_sigmoid(v16 x)
{
    v16 one = v16_set(1.0f);
    return v16_div(one, v16_add(one, v16_exp(v16_negate(x))));
}

/* As ref_silu(). */
SC_REF_INLINE v16 v16_silu(v16 x)
{
    return v16_div(x, v16_add(v16_set(1.0f), v16_exp(v16_negate(x))));
}

/* x / root, rounded as division does; `part` is 1 / root, rounded. Where root and part are normal
 * and x is so large that no remainder is a denormal: the first correction leaves a quotient that is
 * off by less than an ulp, whose remainder is exact; then the second one rounds as division does
 * (P. Markstein, Computation of elementary functions on the IBM RISC System/6000 processor, 1990).
 * A division takes the time of sixteen products. */
SC_REF_INLINE v16 v16_divided(v16 x, v16 root, v16 part)
{
    v16 q = v16_mul(x, part);
    q = v16_fma(v16_fnma(q, root, x), part, q);
    return v16_fma(v16_fnma(q, root, x), part, q);
}

/* As ref_l2norm(). */
SC_REF_INLINE void v16_l2norm(float *x, uint32_t n, float eps, float scale)
{
    float squares = ref_dot(x, x, n) + eps;
    bool usual = n % 16 == 0 && squares > 0x1p-80f && squares < 0x1p80f
        && ref_least_size(x, n) >= 0x1p-60f;
    float root = sqrtf(squares);
    if (!usual) {
        for (uint32_t i = 0; i < n; i++) x[i] = x[i] / root * scale;
        return;
    }
    v16 whole = v16_set(root), part = v16_set(1.0f / root), by = v16_set(scale);
    for (uint32_t i = 0; i < n; i += 16)
        v16_store(x + i, v16_mul(v16_divided(v16_load(x + i), whole, part), by));
}

/* Sixteen elements of a tensor. */
SC_REF_INLINE v16 v16_take(const void *base, sc_dtype dtype, int64_t at)
{
    return dtype == SC_DTYPE_F32 ? v16_load((const float *)base + at)
                                 : v16_load_bf16((const uint16_t *)base + at);
}

SC_REF_INLINE void v16_put(void *base, sc_dtype dtype, int64_t at, v16 a)
{
    if (dtype == SC_DTYPE_F32)
        v16_store((float *)base + at, a);
    else
        v16_store_bf16((uint16_t *)base + at, a);
}

#endif
