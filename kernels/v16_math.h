/* SPDX-License-Identifier: Apache-2.0 */
/* The elementary functions of ref_math.h on sixteen lanes (v16.h), operation for operation but for
 * the power of two (v16_scaled()), with their bits, sign and payload of a NaN apart; and sixteen
 * elements of a tensor of either dtype. For loops that compilers leave in pieces, through
 * buffers. */
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

/* The last step of ref_exp(): p 2^n, by half of it first, which is rounded there where it is a
 * denormal; its 2^(n - 1) is 0 from n = -126 down, which is all x below -87 and some above. */
SC_REF_INLINE v16 v16_scaled(v16 p, v16 n, v16 x)
{
    __mmask16 some = _mm512_cmp_ps_mask(n, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ);
    __mmask16 over = _mm512_cmp_ps_mask(x, _mm512_set1_ps(88.7228f), _CMP_GT_OQ);
    v16 half = _mm512_maskz_scalef_ps(some, p, v16_sub(n, v16_set(1.0f)));
    return _mm512_mask_mov_ps(v16_add(half, half), over, _mm512_set1_ps(INFINITY));
}

/* Bits of the nearest bf16, ties to even, in the upper half of each lane; NaN stays NaN. */
SC_REF_INLINE __m512i v16_bf16_bits(v16 a)
{
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(v16_round(a), nan, _mm512_castps_si512(a),
        _mm512_set1_epi32(0x400000));
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

SC_REF_INLINE __m256 v8_scaled(__m256 p, __m256 n, __m256 x)
{
    __m256i power = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(126));
    __m256 half = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(power, 23)));
    __m256 y = _mm256_and_ps(_mm256_add_ps(half, half),
        _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_NLT_UQ));
    __m256 over = _mm256_cmp_ps(x, _mm256_set1_ps(88.7228f), _CMP_GT_OQ);
    return _mm256_blendv_ps(y, _mm256_set1_ps(INFINITY), over);
}

SC_REF_INLINE v16 v16_scaled(v16 p, v16 n, v16 x)
{
    return (v16){v8_scaled(p.a, n.a, x.a), v8_scaled(p.b, n.b, x.b)};
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

/* How many vectors the functions below take at once: a chain as long as theirs leaves most of the
 * processor idle, and the next vector's begins too far behind for it to see. */
#ifdef __AVX512F__
enum { V16_MANY = 4 };
#else
enum { V16_MANY = 1 }; /* no registers */
#endif

/* p_i <- p_i r_i + c */
SC_REF_INLINE void v16_horner(v16 *p, const v16 *r, float c, uint32_t n)
{
    UNROLL for (uint32_t i = 0; i < n; i++) p[i] = v16_add(v16_mul(p[i], r[i]), v16_set(c));
}

/* As ref_exp(), of each of `count` vectors, at most V16_MANY. */
SC_REF_INLINE void v16_exps(v16 *x, uint32_t count)
{
    const v16 magic = v16_set(12582912.0f);
    v16 n[V16_MANY], r[V16_MANY], p[V16_MANY];
    UNROLL for (uint32_t i = 0; i < count; i++)
        n[i] = v16_add(v16_mul(x[i], v16_set(1.44269504f)), magic);
    UNROLL for (uint32_t i = 0; i < count; i++) n[i] = v16_sub(n[i], magic);
    UNROLL for (uint32_t i = 0; i < count; i++)
        r[i] = v16_sub(x[i], v16_mul(n[i], v16_set(0.693359375f)));
    UNROLL for (uint32_t i = 0; i < count; i++)
        r[i] = v16_sub(r[i], v16_mul(n[i], v16_set(-2.12194440e-4f)));
    UNROLL for (uint32_t i = 0; i < count; i++) p[i] = v16_set(1.9875691500e-4f);
    v16_horner(p, r, 1.3981999507e-3f, count);
    v16_horner(p, r, 8.3334519073e-3f, count);
    v16_horner(p, r, 4.1665795894e-2f, count);
    v16_horner(p, r, 1.6666665459e-1f, count);
    v16_horner(p, r, 5.0000001201e-1f, count);
    UNROLL for (uint32_t i = 0; i < count; i++)
        p[i] = v16_add(v16_add(v16_mul(p[i], v16_mul(r[i], r[i])), r[i]), v16_set(1.0f));
    UNROLL for (uint32_t i = 0; i < count; i++) x[i] = v16_scaled(p[i], n[i], x[i]);
}

SC_REF_INLINE v16 v16_exp(v16 x)
{
    v16_exps(&x, 1);
    return x;
}

/* As ref_sigmoid(). */
SC_REF_INLINE v16 v16_sigmoid(v16 x)
{
    v16 one = v16_set(1.0f);
    return v16_div(one, v16_add(one, v16_exp(v16_negate(x))));
}

/* As ref_silu(), of each. */
SC_REF_INLINE void v16_silus(v16 *x, uint32_t count)
{
    v16 e[V16_MANY];
    UNROLL for (uint32_t i = 0; i < count; i++) e[i] = v16_negate(x[i]);
    v16_exps(e, count);
    UNROLL for (uint32_t i = 0; i < count; i++)
        x[i] = v16_div(x[i], v16_add(v16_set(1.0f), e[i]));
}

SC_REF_INLINE v16 v16_silu(v16 x)
{
    v16_silus(&x, 1);
    return x;
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
