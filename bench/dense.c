/* SPDX-License-Identifier: Apache-2.0 */
/* Written so that the compiler finds vectors without being allowed to reorder a sum: the lanes of a
 * vector are different outputs (dense_apply) or eight partial sums that are always the same eight
 * (dot). Clones for wider vector units give the same bits, as no product is fused into a sum
 * (-ffp-contract=off). */
#include "dense.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_common.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
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
#define UNROLL _Pragma("GCC unroll 8")

/* `rows` rows of x, a constant, by a whole panel. */
static inline __attribute__((always_inline)) void tile(const float *restrict x, size_t rows,
    const float *restrict panel, float *restrict y, size_t y_stride, size_t in)
{
    lanes sum[TILE_ROWS][2];
    UNROLL for (size_t r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = (lanes){0};
    for (const float *end = panel + in * DENSE_PANEL; panel < end; panel += DENSE_PANEL, x++) {
        lanes w0 = *(const lanes *)panel, w1 = *(const lanes *)(panel + LANES);
        UNROLL for (size_t r = 0; r < rows; r++) {
            sum[r][0] += x[r * in] * w0;
            sum[r][1] += x[r * in] * w1;
        }
    }
    UNROLL for (size_t r = 0; r < rows; r++) {
        *(lanes *)(y + r * y_stride) = sum[r][0];
        *(lanes *)(y + r * y_stride + LANES) = sum[r][1];
    }
}

CLONES static void panel_apply(const float *x, const float *panel, float *y, size_t y_stride,
    size_t rows, size_t in)
{
    size_t t = 0;
    for (; t + TILE_ROWS <= rows; t += TILE_ROWS)
        tile(x + t * in, TILE_ROWS, panel, y + t * y_stride, y_stride, in);
    for (; t + 2 <= rows; t += 2)
        tile(x + t * in, 2, panel, y + t * y_stride, y_stride, in);
    if (t < rows)
        tile(x + t * in, 1, panel, y + t * y_stride, y_stride, in);
}

/* The last columns, fewer than a panel's. */
CLONES static void rest_apply(const float *x, const float *rest, float *y, size_t y_stride,
    size_t columns, size_t rows, size_t in)
{
    for (size_t t = 0; t < rows; t++) {
        float sum[DENSE_PANEL] = {0};
        for (size_t k = 0; k < in; k++)
            for (size_t j = 0; j < columns; j++)
                sum[j] += x[t * in + k] * rest[k * columns + j];
        memcpy(y + t * y_stride, sum, columns * sizeof *y);
    }
}

void dense_apply(const float *x, const float *w, float *y, size_t rows, size_t in, size_t out)
{
    size_t n = 0;
    for (; n + DENSE_PANEL <= out; n += DENSE_PANEL)
        panel_apply(x, w + n * in, y + n, out, rows, in);
    if (n < out)
        rest_apply(x, w + n * in, y + n, out, out - n, rows, in);
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
    eight lane[TILE_ROWS];
    UNROLL for (size_t r = 0; r < rows; r++)
        key[r] = context->rows[first + r] + context->key_at, lane[r] = (eight){0};
    for (size_t d = 0; d < context->dim; d += 8) {
        eight by = *(const eight *)(q + d);
        UNROLL for (size_t r = 0; r < rows; r++)
            lane[r] += by * *(const eight *)(key[r] + d);
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
