/* SPDX-License-Identifier: Apache-2.0 */
/* Written so that the compiler finds vectors without being allowed to reorder a sum: the lanes of a
 * vector are different outputs (dense_apply) or eight partial sums that are always the same eight
 * (dot). Copies for wider vector units give the same bits: dense_apply() fuses each product into
 * its sum, in all of them, everything else none (-ffp-contract=off). */
#include "dense.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_common.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define CHECKED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define CHECKED 1
#endif
#endif
#ifndef CHECKED
#define CHECKED 0
#endif
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !CHECKED
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default"), noinline))
#else
#define CLONES
#endif

enum { TILE_ROWS = 8, LANES = 16 };
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

void dense_pack(float *w, size_t in, size_t out)
{
    float *packed = malloc(in * out * sizeof *packed);
    if (!packed)
        bench_fail(BENCH_NO_MEMORY, "out of memory (%zu by %zu weights)", in, out);
    for (size_t k = 0; k < in; k++)
        for (size_t n = 0; n < out; n++)
            packed[dense_weight_at(in, out, k, n)] = w[k * out + n];
    memcpy(w, packed, in * out * sizeof *w);
    free(packed);
}

/* Arrays of a constant size, in registers: without it they would lie in memory. */
#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

/* `rows` rows of x, a constant, by a whole panel. */
INLINE void tile(const float *restrict x, size_t rows, const float *restrict panel,
    float *restrict y, size_t y_stride, size_t in)
{
    lanes sum[TILE_ROWS][2];
    UNROLL for (size_t r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = (lanes){0};
    for (const float *end = panel + in * DENSE_PANEL; panel < end; panel += DENSE_PANEL, x++) {
        lanes w[2] = {*(const lanes *)panel, *(const lanes *)(panel + LANES)};
        UNROLL for (size_t r = 0; r < rows; r++)
            UNROLL for (size_t i = 0; i < 2; i++) {
                lanes next;
                UNROLL for (size_t l = 0; l < LANES; l++)
                    next[l] = __builtin_fmaf(x[r * in], w[i][l], sum[r][i][l]);
                sum[r][i] = next;
            }
    }
    UNROLL for (size_t r = 0; r < rows; r++) {
        *(lanes *)(y + r * y_stride) = sum[r][0];
        *(lanes *)(y + r * y_stride + LANES) = sum[r][1];
    }
}

/* Columns without tiles: the last ones, fewer than a panel's. */
INLINE void rest_apply(const float *x, const float *rest, float *y, size_t y_stride,
    size_t columns, size_t rows, size_t in)
{
    for (size_t t = 0; t < rows; t++) {
        float sum[DENSE_PANEL] = {0};
        for (size_t k = 0; k < in; k++)
            for (size_t j = 0; j < columns; j++)
                sum[j] = __builtin_fmaf(x[t * in + k], rest[k * columns + j], sum[j]);
        memcpy(y + t * y_stride, sum, columns * sizeof *y);
    }
}

INLINE void panel_apply(const float *x, const float *panel, float *y, size_t y_stride, size_t rows,
    size_t in)
{
    if (CHECKED) { /* with a check in each lane of a tile compilers take minutes */
        rest_apply(x, panel, y, y_stride, DENSE_PANEL, rows, in);
        return;
    }
    for (; rows >= TILE_ROWS; rows -= TILE_ROWS, x += TILE_ROWS * in, y += TILE_ROWS * y_stride)
        tile(x, TILE_ROWS, panel, y, y_stride, in);
    switch (rows) {
    case 7: tile(x, 7, panel, y, y_stride, in); break;
    case 6: tile(x, 6, panel, y, y_stride, in); break;
    case 5: tile(x, 5, panel, y, y_stride, in); break;
    case 4: tile(x, 4, panel, y, y_stride, in); break;
    case 3: tile(x, 3, panel, y, y_stride, in); break;
    case 2: tile(x, 2, panel, y, y_stride, in); break;
    case 1: tile(x, 1, panel, y, y_stride, in); break;
    default: break;
    }
}

INLINE void apply(const float *x, const float *w, float *y, size_t rows, size_t in, size_t out)
{
    size_t n = 0;
    for (; n + DENSE_PANEL <= out; n += DENSE_PANEL)
        panel_apply(x, w + n * in, y + n, out, rows, in);
    if (n < out)
        rest_apply(x, w + n * in, y + n, out, out - n, rows, in);
}

#define APPLY(name) \
    static void name(const float *x, const float *w, float *y, size_t rows, size_t in, size_t out) \
    { \
        apply(x, w, y, rows, in, out); \
    }
#ifdef __x86_64__
__attribute__((target("avx512f"))) APPLY(apply_avx512)
__attribute__((target("avx2,fma"))) APPLY(apply_avx2)
#endif
APPLY(apply_plain)

/* Not target_clones, which sanitizers cannot do: lane by lane a replay would take minutes. */
void dense_apply(const float *x, const float *w, float *y, size_t rows, size_t in, size_t out)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) {
        apply_avx512(x, w, y, rows, in, out);
        return;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        apply_avx2(x, w, y, rows, in, out);
        return;
    }
#endif
    apply_plain(x, w, y, rows, in, out);
}

void dense_accumulate(float *y, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        y[i] += x[i];
}

typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));

/* Eight partial sums, then a tree: the same order for every caller. */
static inline __attribute__((always_inline)) float tree(const eight *lane)
{
    const float *l = (const float *)lane;
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

/* The same of eight at once: four sums of two rows, two of four, one of eight. */
#define PICK __builtin_shufflevector
static inline __attribute__((always_inline)) void trees(const eight *lane, eight *sums)
{
    eight four[4], two[2];
    UNROLL for (size_t i = 0; i < 4; i++) {
        eight a = lane[2 * i], b = lane[2 * i + 1];
        four[i] = PICK(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + PICK(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
    }
    UNROLL for (size_t i = 0; i < 2; i++) {
        eight a = four[2 * i], b = four[2 * i + 1];
        two[i] = PICK(a, b, 0, 1, 8, 9, 4, 5, 12, 13) + PICK(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
    *sums = PICK(two[0], two[1], 0, 4, 2, 6, 8, 12, 10, 14)
        + PICK(two[0], two[1], 1, 5, 3, 7, 9, 13, 11, 15);
}

static inline __attribute__((always_inline)) float dot(const float *a, const float *b, size_t count)
{
    eight lane = {0};
    for (size_t i = 0; i < count; i += 8)
        lane += *(const eight *)(a + i) * *(const eight *)(b + i);
    return tree(&lane);
}

CLONES void dense_rmsnorm(const float *x, const float *weight, float *y, size_t rows, size_t dim)
{
    for (size_t t = 0; t < rows; t++) {
        const float *in = x + t * dim;
        float factor = 1.0f / sqrtf(dot(in, in, dim) / (float)dim + 1e-6f);
        for (size_t i = 0; i < dim; i++)
            y[t * dim + i] = in[i] * factor * weight[i];
    }
}

void dense_silu_mul(float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        a[i] = a[i] / (1.0f + expf(-a[i])) * b[i];
}

/* `rows` rows of the context, a constant, at once: the sum of one is a chain. */
static inline __attribute__((always_inline)) void some_scores(const float *q,
    const struct dense_context *context, size_t first, size_t rows, float scale, float *score)
{
    const float *key[TILE_ROWS];
    eight lane[TILE_ROWS], sums;
    UNROLL for (size_t r = 0; r < rows; r++)
        key[r] = context->rows[first + r] + context->key_at, lane[r] = (eight){0};
    for (size_t d = 0; d < context->dim; d += 8) {
        eight by = *(const eight *)(q + d);
        UNROLL for (size_t r = 0; r < rows; r++)
            lane[r] += by * *(const eight *)(key[r] + d);
    }
    if (rows == TILE_ROWS) {
        trees(lane, &sums);
        *(eight *)(score + first) = sums * scale;
        return;
    }
    UNROLL for (size_t r = 0; r < rows; r++)
        score[first + r] = tree(&lane[r]) * scale;
}

CLONES static void scores(const float *q, const struct dense_context *context, float scale,
    float *score)
{
    size_t i = 0;
    for (; i + TILE_ROWS <= context->count; i += TILE_ROWS)
        some_scores(q, context, i, TILE_ROWS, scale, score);
    for (; i < context->count; i++)
        some_scores(q, context, i, 1, scale, score);
}

/* Columns from d on, a constant number of vectors, in registers. */
static inline __attribute__((always_inline)) void some_mix(const struct dense_context *context,
    const float *score, float *out, size_t d, size_t vectors)
{
    lanes sum[4];
    UNROLL for (size_t j = 0; j < vectors; j++)
        sum[j] = *(const lanes *)(out + d + j * LANES);
    for (size_t i = 0; i < context->count; i++) {
        const float *value = context->rows[i] + context->value_at + d;
        UNROLL for (size_t j = 0; j < vectors; j++)
            sum[j] += score[i] * *(const lanes *)(value + j * LANES);
    }
    UNROLL for (size_t j = 0; j < vectors; j++)
        *(lanes *)(out + d + j * LANES) = sum[j];
}

CLONES static void mix(const struct dense_context *context, const float *score, float *out)
{
    size_t d = 0;
    for (; d + 4 * LANES <= context->dim; d += 4 * LANES)
        some_mix(context, score, out, d, 4);
    for (; d + 2 * LANES <= context->dim; d += 2 * LANES)
        some_mix(context, score, out, d, 2);
    for (; d + LANES <= context->dim; d += LANES)
        some_mix(context, score, out, d, 1);
    for (size_t i = 0; i < context->count; i++)
        for (size_t e = d; e < context->dim; e++)
            out[e] += score[i] * context->rows[i][context->value_at + e];
}

/* Of at least one number; the order does not matter. */
CLONES static float largest(const float *x, size_t count)
{
    float most[LANES];
    size_t i = 0;
    for (size_t j = 0; j < LANES; j++)
        most[j] = x[0];
    for (; i + LANES <= count; i += LANES)
        for (size_t j = 0; j < LANES; j++)
            most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
    for (; i < count; i++)
        most[0] = x[i] > most[0] ? x[i] : most[0];
    for (size_t j = 1; j < LANES; j++)
        most[0] = most[j] > most[0] ? most[j] : most[0];
    return most[0];
}

void dense_attend(const float *q, const struct dense_context *context, float *score, float *out)
{
    scores(q, context, 1.0f / sqrtf((float)context->dim), score);
    float top = largest(score, context->count), sum = 0;
    for (size_t i = 0; i < context->count; i++) {
        score[i] = expf(score[i] - top);
        sum += score[i];
    }
    memset(out, 0, context->dim * sizeof *out);
    mix(context, score, out);
    for (size_t d = 0; d < context->dim; d++)
        out[d] /= sum;
}
