/* SPDX-License-Identifier: Apache-2.0 */
/* Sixteen fp32 lanes: one AVX-512 register or two of AVX2. What is written on them gives the same
 * bits in both, since both do the same operation on each lane, and sums across lanes are one fixed
 * tree, that of ref_lane_sum(). v16_fma() is the only fused operation; code that has to give the
 * bits of the reference does without. */
#ifndef SC_V16_H
#define SC_V16_H

#include <immintrin.h>

#include "ref_math.h"

#ifdef __AVX512F__

typedef __m512 v16;

SC_REF_INLINE v16 v16_load(const float *x) { return _mm512_loadu_ps(x); }
SC_REF_INLINE void v16_store(float *x, v16 a) { _mm512_storeu_ps(x, a); }
SC_REF_INLINE v16 v16_set(float x) { return _mm512_set1_ps(x); }
SC_REF_INLINE v16 v16_zero(void) { return _mm512_setzero_ps(); }
SC_REF_INLINE v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
SC_REF_INLINE v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
SC_REF_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
/* c - a b */
SC_REF_INLINE v16 v16_fnma(v16 a, v16 b, v16 c) { return _mm512_fnmadd_ps(a, b, c); }

SC_REF_INLINE __m256 v16_fold(v16 a)
{
    return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}

SC_REF_INLINE v16 v16_load_bf16(const uint16_t *x)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* The upper half of each lane, rounded to nearest even; lanes must not be NaN. */
SC_REF_INLINE __m512i v16_round(v16 a)
{
    __m512i u = _mm512_castps_si512(a), half = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
    __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
    return _mm512_mask_add_epi32(half, odd, half, _mm512_set1_epi32(1));
}

/* Lanes that are bf16 already. */
SC_REF_INLINE void v16_store_exact(uint16_t *x, v16 a)
{
    __m256i h = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a), 16));
    _mm256_storeu_si256((__m256i *)(void *)x, h);
}

SC_REF_INLINE v16 v16_to_bf16(v16 a)
{
    return _mm512_castsi512_ps(_mm512_and_si512(v16_round(a), _mm512_set1_epi32(-65536)));
}

/* |a| below `least` becomes 0; NaN stays. */
SC_REF_INLINE v16 v16_flush(v16 a, v16 least)
{
    __mmask16 keep = _mm512_cmp_ps_mask(_mm512_abs_ps(a), least, _CMP_NLT_UQ);
    return _mm512_maskz_mov_ps(keep, a);
}

#else

typedef struct {
    __m256 a, b;
} v16;

SC_REF_INLINE v16 v16_load(const float *x)
{
    return (v16){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
}

SC_REF_INLINE void v16_store(float *x, v16 a)
{
    _mm256_storeu_ps(x, a.a);
    _mm256_storeu_ps(x + 8, a.b);
}

SC_REF_INLINE v16 v16_set(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
SC_REF_INLINE v16 v16_zero(void) { return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()}; }

SC_REF_INLINE v16 v16_add(v16 a, v16 b)
{
    return (v16){_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)};
}

SC_REF_INLINE v16 v16_mul(v16 a, v16 b)
{
    return (v16){_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b)};
}

SC_REF_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)};
}

SC_REF_INLINE v16 v16_fnma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fnmadd_ps(a.a, b.a, c.a), _mm256_fnmadd_ps(a.b, b.b, c.b)};
}

SC_REF_INLINE __m256 v16_fold(v16 a) { return _mm256_add_ps(a.a, a.b); }

SC_REF_INLINE __m256 v16_widen(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

SC_REF_INLINE v16 v16_load_bf16(const uint16_t *x)
{
    const __m128i *at = (const __m128i *)(const void *)x;
    return (v16){v16_widen(_mm_loadu_si128(at)), v16_widen(_mm_loadu_si128(at + 1))};
}

SC_REF_INLINE __m256i v16_round(__m256 a)
{
    __m256i u = _mm256_castps_si256(a), one = _mm256_set1_epi32(1);
    __m256i even = _mm256_and_si256(_mm256_srli_epi32(u, 16), one);
    return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), even);
}

SC_REF_INLINE void v16_store_exact(uint16_t *x, v16 a)
{
    __m256i low = _mm256_srli_epi32(_mm256_castps_si256(a.a), 16);
    __m256i high = _mm256_srli_epi32(_mm256_castps_si256(a.b), 16);
    __m256i mixed = _mm256_packus_epi32(low, high); /* halves of low and high in turns */
    _mm256_storeu_si256((__m256i *)(void *)x, _mm256_permute4x64_epi64(mixed, 0xd8));
}

SC_REF_INLINE v16 v16_to_bf16(v16 a)
{
    __m256i upper = _mm256_set1_epi32(-65536);
    return (v16){_mm256_castsi256_ps(_mm256_and_si256(v16_round(a.a), upper)),
        _mm256_castsi256_ps(_mm256_and_si256(v16_round(a.b), upper))};
}

SC_REF_INLINE __m256 v16_flush_half(__m256 a, __m256 least)
{
    __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
    return _mm256_and_ps(a, _mm256_cmp_ps(size, least, _CMP_NLT_UQ));
}

SC_REF_INLINE v16 v16_flush(v16 a, v16 least)
{
    return (v16){v16_flush_half(a.a, least.a), v16_flush_half(a.b, least.b)};
}

#endif

/* Lanes 8 apart, then 4, then 2, then 1. */
SC_REF_INLINE float v16_sum(v16 a)
{
    __m256 x = v16_fold(a);
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

/* The same of four at once. */
SC_REF_INLINE void v16_sums(const v16 *a, float *restrict out)
{
    __m128 y[4];
    for (int i = 0; i < 4; i++) {
        __m256 x = v16_fold(a[i]);
        y[i] = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    }
    __m128 p = _mm_add_ps(_mm_movelh_ps(y[0], y[1]), _mm_movehl_ps(y[1], y[0]));
    __m128 r = _mm_add_ps(_mm_movelh_ps(y[2], y[3]), _mm_movehl_ps(y[3], y[2]));
    _mm_storeu_ps(out, _mm_add_ps(_mm_shuffle_ps(p, r, 0x88), _mm_shuffle_ps(p, r, 0xdd)));
}

/* Eight by eight: out[j][i] = in[i][j]; rows lie in_row and out_row elements apart. */
SC_REF_INLINE void v16_transpose8(const float *in, size_t in_row, float *out, size_t out_row)
{
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(in + (size_t)i * in_row);
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(out + (size_t)i * out_row, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(out + (size_t)(i + 4) * out_row,
            _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

#endif
