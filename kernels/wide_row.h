/* SPDX-License-Identifier: Apache-2.0 */
/* A row of a state in registers, 16 nv lanes: from memory and back, fp32 or bf16.
 *
 * The fast rounding to bf16 is wrong for some numbers, and their rows take the slow one. Integer
 * arithmetic: NaN, and a NaN in a row makes its o a NaN. AVX512_BF16: denormals, which it takes for
 * zero, so that a row in which nothing came out as zero had none. */
#ifndef SC_WIDE_ROW_H
#define SC_WIDE_ROW_H

#include "v16.h"

/* How far ahead of the rows in work a state is fetched: into the nearest cache, and into the second
 * one where no next head is known. */
enum { NV_MAX = SC_K_DIM_MAX / 16, AHEAD_BYTES = 4096, FAR_BYTES = 16384 };

/* Four lanes, with the operators of the language. */
typedef float v4 __attribute__((vector_size(16)));

SC_REF_INLINE v4 v4_load(const float *x) { return (v4)_mm_loadu_ps(x); }
SC_REF_INLINE void v4_store(float *x, v4 a) { _mm_storeu_ps(x, (__m128)a); }

/* Is the size of each, times `by`, at least `least`? */
SC_REF_INLINE bool v4_least(v4 a, float by, float least)
{
    __m128 size = _mm_andnot_ps(_mm_set1_ps(-0.0f), (__m128)a);
    return _mm_movemask_ps(_mm_cmpge_ps(_mm_mul_ps(size, _mm_set1_ps(by)), _mm_set1_ps(least)))
        == 15;
}

SC_REF_INLINE bool v4_ordered(v4 a)
{
    return _mm_movemask_ps(_mm_cmpord_ps((__m128)a, (__m128)a)) == 15;
}

/* The slow rounding. Not inlined: where it is not taken it shall cost no register; but not cold
 * either, since a channel of zeros takes it for every row. */
static __attribute__((noinline)) void wide_narrow_all(const v16 *row, uint32_t nv,
    uint16_t *out)
{
    float line[SC_K_DIM_MAX];
    for (uint32_t i = 0; i < nv; i++) v16_store(line + 16 * i, row[i]);
    for (uint32_t i = 0; i < nv * 16; i++) out[i] = ref_to_bf16(line[i]);
}

/* A row of 16 nv lanes becomes bf16 at `out`, as ref_to_bf16() rounds; `o` is a NaN if the row may
 * hold one; `normal`: it holds no denormals. */
SC_REF_INLINE void wide_narrow(const v16 *row, uint32_t nv, float o, bool normal, uint16_t *out)
{
    v32h least = v32h_none();
    UNROLL for (uint32_t i = 0; i < nv / 2; i++)
        v32h_store(out + 32 * i, v32h_narrow(row + 2 * i, &least));
    if (__builtin_expect(v32h_narrowed(least, o == o, normal), 1)) return;
    v16 copy[NV_MAX];
    UNROLL for (uint32_t i = 0; i < nv; i++) copy[i] = row[i];
    wide_narrow_all(copy, nv, out);
}

/* The same, back in fp32. */
SC_REF_INLINE void wide_round(v16 *row, uint32_t nv, float o, bool normal)
{
    v32h least = v32h_none(), half[NV_MAX / 2];
    UNROLL for (uint32_t i = 0; i < nv / 2; i++) half[i] = v32h_narrow(row + 2 * i, &least);
    if (__builtin_expect(!v32h_narrowed(least, o == o, normal), 0)) {
        v16 copy[NV_MAX];
        uint16_t line[SC_K_DIM_MAX];
        UNROLL for (uint32_t i = 0; i < nv; i++) copy[i] = row[i];
        wide_narrow_all(copy, nv, line);
        UNROLL for (uint32_t i = 0; i < nv / 2; i++) half[i] = v32h_load(line + 32 * i);
    }
    UNROLL for (uint32_t i = 0; i < nv / 2; i++) v32h_widen(half[i], row + 2 * i);
}

SC_REF_INLINE void wide_load(const uint8_t *at, sc_dtype dtype, uint32_t nv, v16 *row)
{
    if (dtype == SC_DTYPE_F32) {
        UNROLL for (uint32_t i = 0; i < nv; i++)
            row[i] = v16_load((const float *)(const void *)at + 16 * i);
    } else {
        UNROLL for (uint32_t i = 0; i < nv / 2; i++)
            v32h_widen(v32h_load((const uint16_t *)(const void *)at + 32 * i), row + 2 * i);
    }
}

/* `o` is what the row gave. */
SC_REF_INLINE void wide_store(uint8_t *at, sc_dtype dtype, uint32_t nv, const v16 *row, float o,
    bool normal)
{
    if (dtype == SC_DTYPE_BF16) {
        wide_narrow(row, nv, o, normal, (uint16_t *)(void *)at);
        return;
    }
    UNROLL for (uint32_t i = 0; i < nv; i++) v16_store((float *)(void *)at + 16 * i, row[i]);
}

/* Where rows of a head begin; NULL: there is no such slot. */
SC_REF_INLINE uint8_t *wide_at(const sc_k_slots *slots, int32_t slot, int64_t at)
{
    if (slot <= 0) return NULL;
    return (uint8_t *)sc_host_ptr(ref_slot(slots, slot))
        + at * (slots->dtype == SC_DTYPE_F32 ? 4 : 2);
}

SC_REF_INLINE void wide_fetch(const uint8_t *from, size_t bytes)
{
    for (size_t line = 0; line < bytes; line += 64)
        __builtin_prefetch(from + AHEAD_BYTES + line, 0, 3);
}

/* The same, where it stands among the arithmetic: compilers gather prefetches, and a burst of them
 * fills the buffers for misses, after which nothing is on its way for a while. */
SC_REF_INLINE void wide_fetch_here(const uint8_t *from, size_t bytes)
{
    UNROLL for (size_t line = 0; line < bytes; line += 64)
        __asm__ volatile("prefetcht0 %0" : : "m"(from[AHEAD_BYTES + line]));
}

/* What is a head ahead, into the second cache, in which there is room for it. */
SC_REF_INLINE void wide_fetch_far(const uint8_t *from, size_t bytes)
{
    UNROLL for (size_t line = 0; line < bytes; line += 64)
        __asm__ volatile("prefetcht1 %0" : : "m"(from[line]));
}

/* Does the processor fetch rows better by itself, where they come one behind the other? Zen 4 does
 * with fp32 rows, and with Mamba-2's of bf16 that are only read; all others of AMD, unmeasured, are
 * taken for it. */
SC_REF_INLINE bool wide_fetches_itself(void) { return __builtin_cpu_is("amd"); }

/* Both, of a state that is only read: its heads lie one behind the other. */
SC_REF_INLINE void wide_fetch_read(const uint8_t *from, size_t bytes)
{
    wide_fetch_here(from, bytes);
    wide_fetch_far(from + FAR_BYTES, bytes);
}

#endif
