/* SPDX-License-Identifier: Apache-2.0 */
/* How far two runs of tokens agree: the one loop in which a look-up spends its time.
 *
 * One pass that stops at the first difference, 64 tokens a round. memcmp says only that there is
 * one and would be followed by a search for it; it also costs a call for each short run of a chain
 * of nodes. Which loop is taken depends on the processor and is decided once, at creation; all
 * give the same answer. Prefetching inside the loop gains nothing: the processor sees the
 * streams itself. */
#include "radix_internal.h"

/* Two tokens at a time, from `i` on. */
static uint32_t common_rest(const int32_t *a, const int32_t *b, uint32_t i, uint32_t n)
{
    while (n - i >= 2) {
        uint64_t x;
        uint64_t y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        if (x != y) break;
        i += 2;
    }
    while (i < n && a[i] == b[i]) i++;
    return i;
}

static uint32_t common_plain(const int32_t *a, const int32_t *b, uint32_t n)
{
    enum { BLOCK = 512 };
    uint32_t i = 0;
    while (n - i >= BLOCK && memcmp(a + i, b + i, BLOCK * sizeof *a) == 0) i += BLOCK;
    return common_rest(a, b, i, n);
}

#if defined __x86_64__ && defined __GNUC__
#include <immintrin.h>

#define AT(p, i) ((const void *)((p) + (i)))

__attribute__((target("avx2")))
static uint32_t common_avx2(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;
    for (; n - i >= 32; i += 32) {
        __m256i d[4];
        for (uint32_t k = 0; k < 4; k++) {
            d[k] = _mm256_xor_si256(_mm256_loadu_si256(AT(a, i + k * 8)),
                _mm256_loadu_si256(AT(b, i + k * 8)));
        }
        __m256i any = _mm256_or_si256(_mm256_or_si256(d[0], d[1]), _mm256_or_si256(d[2], d[3]));
        if (!_mm256_testz_si256(any, any)) break;
    }
    return common_rest(a, b, i, n);
}

__attribute__((target("avx512f")))
static uint32_t common_avx512(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;
    if (n >= 256) { /* up to a whole line of `a`; most often it is one of `b` too */
        i = (uint32_t)(-((uintptr_t)a / sizeof *a) % 16);
        __mmask16 lanes = (__mmask16)((1u << i) - 1u);
        __mmask16 differ = _mm512_cmpneq_epi32_mask(_mm512_maskz_loadu_epi32(lanes, a),
            _mm512_maskz_loadu_epi32(lanes, b));
        if (differ != 0) return (uint32_t)__builtin_ctz(differ);
    }
    for (; n - i >= 64; i += 64) {
        __m512i d[4];
        for (uint32_t k = 0; k < 4; k++) {
            d[k] = _mm512_xor_si512(_mm512_loadu_si512(AT(a, i + k * 16)),
                _mm512_loadu_si512(AT(b, i + k * 16)));
        }
        __m512i any = _mm512_or_si512(_mm512_or_si512(d[0], d[1]), _mm512_or_si512(d[2], d[3]));
        if (_mm512_test_epi32_mask(any, any) != 0) break;
    }
    for (; n - i >= 16; i += 16) { /* less than a round, or the round that differs */
        __mmask16 differ = _mm512_cmpneq_epi32_mask(_mm512_loadu_si512(AT(a, i)),
            _mm512_loadu_si512(AT(b, i)));
        if (differ != 0) return i + (uint32_t)__builtin_ctz(differ);
    }
    if (i == n) return n;
    if (n >= 16) { /* once more some that are equal, rather than a mask */
        __mmask16 differ = _mm512_cmpneq_epi32_mask(_mm512_loadu_si512(AT(a, n - 16)),
            _mm512_loadu_si512(AT(b, n - 16)));
        return differ != 0 ? n - 16 + (uint32_t)__builtin_ctz(differ) : n;
    }
    __mmask16 lanes = (__mmask16)((1u << n) - 1u);
    __mmask16 differ = _mm512_cmpneq_epi32_mask(_mm512_maskz_loadu_epi32(lanes, a),
        _mm512_maskz_loadu_epi32(lanes, b));
    return differ != 0 ? (uint32_t)__builtin_ctz(differ) : n;
}
#endif

rx_common_fn rx_common_choose(enum rx_width width)
{
#if defined __x86_64__ && defined __GNUC__
    if (width >= RX_WIDTH_512 && __builtin_cpu_supports("avx512f")) return common_avx512;
    if (width >= RX_WIDTH_256 && __builtin_cpu_supports("avx2")) return common_avx2;
#endif
    (void)width;
    return common_plain;
}
