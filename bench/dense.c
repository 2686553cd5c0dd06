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

/* Eight partial sums, then a tree: the same order for every caller. */
static inline float dot(const float *a, const float *b, size_t count)
{
    float lane[8] = {0};
    for (size_t i = 0; i < count; i += 8)
        for (size_t j = 0; j < 8; j++)
            lane[j] += a[i + j] * b[i + j];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
        ((lane[1] + lane[5]) + (lane[3] + lane[7]));
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

CLONES static void scores(const float *q, const struct dense_context *context, float scale,
    float *score)
{
    for (size_t i = 0; i < context->count; i++)
        score[i] = dot(q, context->rows[i] + context->key_at, context->dim) * scale;
}

CLONES static void mix(const struct dense_context *context, const float *score, float *out)
{
    for (size_t i = 0; i < context->count; i++) {
        const float *value = context->rows[i] + context->value_at;
        for (size_t d = 0; d < context->dim; d++)
            out[d] += score[i] * value[d];
    }
}

void dense_attend(const float *q, const struct dense_context *context, float *score, float *out)
{
    scores(q, context, 1.0f / sqrtf((float)context->dim), score);
    float top = score[0], sum = 0;
    for (size_t i = 1; i < context->count; i++)
        top = score[i] > top ? score[i] : top;
    for (size_t i = 0; i < context->count; i++) {
        score[i] = expf(score[i] - top);
        sum += score[i];
    }
    memset(out, 0, context->dim * sizeof *out);
    mix(context, score, out);
    for (size_t d = 0; d < context->dim; d++)
        out[d] /= sum;
}
