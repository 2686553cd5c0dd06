/* SPDX-License-Identifier: Apache-2.0 */
/* Sixteen fp32 lanes: one AVX-512 register or two of AVX2. What is written on them gives the same
 * bits in both, since both do the same operation on each lane, and sums across lanes are one fixed
 * tree, that of ref_lane_sum() (but for the payload where two NaN meet, v16_pair()). v16_fma() and
 * v16_fnma() alone are fused; code that has to give the bits of the reference does without, but
 * where products are exact (by one in v16_add_fused()), and in v16_divided(). */
#ifndef SC_V16_H
#define SC_V16_H

#include <immintrin.h>
#include <stdbool.h>

#include "ref_math.h"

/* Loops over registers: an array that is indexed by a variable would lie in memory. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL /* with checks in every copy, a file takes minutes to compile */
#elif defined(__has_feature) /* clang says it so */
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNROLL
#endif
#endif
#ifndef UNROLL
#define UNROLL _Pragma("GCC unroll 16")
#endif

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

/* The upper half of each lane, rounded to nearest even; lanes must not be NaN. */
SC_REF_INLINE __m512i v16_round(v16 a)
{
    __m512i u = _mm512_castps_si512(a), half = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
    __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
    return _mm512_mask_add_epi32(half, odd, half, _mm512_set1_epi32(1));
}

/* Thirty-two bf16. Word 2 i + 1 of `take` says which of them becomes lane i. */
typedef __m512i v32h;

SC_REF_INLINE v32h v32h_load(const uint16_t *x) { return _mm512_loadu_si512(x); }
SC_REF_INLINE void v32h_store(uint16_t *x, v32h h) { _mm512_storeu_si512(x, h); }

SC_REF_INLINE void v32h_widen(v32h h, v16 *two)
{
    const __m512i take = _mm512_setr_epi32(0, 1 << 16, 2 << 16, 3 << 16, 4 << 16, 5 << 16, 6 << 16,
        7 << 16, 8 << 16, 9 << 16, 10 << 16, 11 << 16, 12 << 16, 13 << 16, 14 << 16, 15 << 16);
    const __m512i later = _mm512_add_epi32(take, _mm512_set1_epi32(16 << 16));
    two[0] = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, take, h));
    two[1] = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, later, h));
}

#ifdef __AVX512BF16__

/* Rounds 32 lanes to nearest even, NaN too. The instruction takes denormals for zero: hence `least`
 * becomes the smallest magnitude of what came out so far, times two. */
SC_REF_INLINE v32h v32h_narrow(const v16 *two, v32h *least)
{
    v32h h = (__m512i)_mm512_cvtne2ps_pbh(two[1], two[0]);
    *least = _mm512_min_epu16(*least, _mm512_add_epi16(h, h));
    return h;
}

SC_REF_INLINE v32h v32h_none(void) { return _mm512_set1_epi32(-1); }

/* Was nothing taken for zero? `finite`: nothing was NaN; `normal`: nothing a denormal. */
SC_REF_INLINE bool v32h_narrowed(v32h least, bool finite, bool normal)
{
    (void)finite;
    return normal || _mm512_testn_epi16_mask(least, least) == 0;
}

#else

/* Rounds 32 lanes to nearest even; wrong for NaN. */
SC_REF_INLINE v32h v32h_narrow(const v16 *two, v32h *least)
{
    (void)least;
    const __m512i order = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3,
        1, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    __m512i low = _mm512_srli_epi32(v16_round(two[0]), 16);
    __m512i both = _mm512_mask_mov_epi16(low, 0xaaaaaaaau, v16_round(two[1]));
    return _mm512_permutexvar_epi16(order, both);
}

SC_REF_INLINE v32h v32h_none(void) { return _mm512_setzero_si512(); }

SC_REF_INLINE bool v32h_narrowed(v32h least, bool finite, bool normal)
{
    (void)least, (void)normal;
    return finite;
}

#endif

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

SC_REF_INLINE __m256i v16_round(__m256 a)
{
    __m256i u = _mm256_castps_si256(a), one = _mm256_set1_epi32(1);
    __m256i even = _mm256_and_si256(_mm256_srli_epi32(u, 16), one);
    return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), even);
}

typedef struct {
    __m256i a, b;
} v32h;

SC_REF_INLINE v32h v32h_load(const uint16_t *x)
{
    const __m256i *at = (const __m256i *)(const void *)x;
    return (v32h){_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}

SC_REF_INLINE void v32h_store(uint16_t *x, v32h h)
{
    _mm256_storeu_si256((__m256i *)(void *)x, h.a);
    _mm256_storeu_si256((__m256i *)(void *)x + 1, h.b);
}

SC_REF_INLINE void v32h_widen(v32h h, v16 *two)
{
    two[0] = (v16){v16_widen(_mm256_castsi256_si128(h.a)),
        v16_widen(_mm256_extracti128_si256(h.a, 1))};
    two[1] = (v16){v16_widen(_mm256_castsi256_si128(h.b)),
        v16_widen(_mm256_extracti128_si256(h.b, 1))};
}

SC_REF_INLINE __m256i v16_narrow(v16 a)
{
    __m256i low = _mm256_srli_epi32(v16_round(a.a), 16);
    __m256i high = _mm256_srli_epi32(v16_round(a.b), 16);
    __m256i mixed = _mm256_packus_epi32(low, high); /* halves of low and high in turns */
    return _mm256_permute4x64_epi64(mixed, 0xd8);
}

SC_REF_INLINE v32h v32h_narrow(const v16 *two, v32h *least)
{
    (void)least;
    return (v32h){v16_narrow(two[0]), v16_narrow(two[1])};
}

SC_REF_INLINE v32h v32h_none(void)
{
    return (v32h){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

SC_REF_INLINE bool v32h_narrowed(v32h least, bool finite, bool normal)
{
    (void)least, (void)normal;
    return finite;
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

/* a + b by an instruction that multiplies, too: bits of v16_add(), NaN's payload apart. Zen 4 adds
 * in two of its pipes and multiplies in two others, so that work may be moved between them. `one`
 * is v16_one(): a compiler that knew it would add. */
SC_REF_INLINE v16 v16_one(void)
{
    float one = 1.0f;
    __asm__("" : "+x"(one));
    return v16_set(one);
}

SC_REF_INLINE v16 v16_add_fused(v16 a, v16 b, v16 one) { return v16_fma(a, one, b); }

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

#ifdef __AVX512F__

/* Two registers become one: lanes that lie `apart` (8, 4 or 2) are added. Of each sum one term is
 * blended and the other moved: a processor has fewer pipes that move lanes than pipes that blend.
 * Terms of some sums change places, which shows in a NaN's payload if both are NaN. */
SC_REF_INLINE v16 v16_pair(v16 a, v16 b, uint32_t apart)
{
    if (apart == 8)
        return v16_add(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4(a, b, 0x4e));
    if (apart == 2)
        return v16_add(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_shuffle_ps(a, b, 0x4e));
    v16 other = _mm512_mask_blend_ps(0xf0f0, b, a);
    return v16_add(_mm512_mask_blend_ps(0xf0f0, a, b), _mm512_shuffle_f32x4(other, other, 0xb1));
}

/* The same of eight, in three steps (0, 1, 2) from a[] to `sums`. By quarters:
 *   a b c d -> aabb ccdd -> acbd;   with efgh, two lanes of each in a quarter: ae cg bf dh */
enum { V16_SUMS8_STEPS = 3 };

struct v16_sums8 {
    v16 a[8], half[4], quarter[2];
    __m256 sums;
};

SC_REF_INLINE void v16_sums8_step(struct v16_sums8 *z, uint32_t step)
{
    const __m512i order = _mm512_setr_epi32(0, 8, 4, 12, 2, 10, 6, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    if (step == 0)
        for (int i = 0; i < 4; i++) z->half[i] = v16_pair(z->a[2 * i], z->a[2 * i + 1], 8);
    if (step == 1)
        for (int i = 0; i < 2; i++)
            z->quarter[i] = v16_pair(z->half[2 * i], z->half[2 * i + 1], 4);
    if (step == 2) {
        v16 two = v16_pair(z->quarter[0], z->quarter[1], 2);
        v16 sums = v16_add(two, _mm512_movehdup_ps(two));
        z->sums = _mm512_castps512_ps256(_mm512_permutexvar_ps(order, sums));
    }
}

SC_REF_INLINE void v16_sums8(const v16 *a, float *restrict out)
{
    struct v16_sums8 z;
    for (int i = 0; i < 8; i++) z.a[i] = a[i];
    v16_sums8_step(&z, 0);
    v16_sums8_step(&z, 1);
    v16_sums8_step(&z, 2);
    _mm256_storeu_ps(out, z.sums);
}

#endif

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
