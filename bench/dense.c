/* SPDX-License-Identifier: Apache-2.0 */
/* Written so that the compiler finds vectors without being allowed to reorder a sum: the lanes of a
 * vector are different outputs (dense_apply) or eight partial sums that are always the same eight
 * (dot). Clones for wider vector units give the same bits, as no product is fused into a sum
 * (-ffp-contract=off). */
#include "dense.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default"), noinline))
#else
#define CLONES
#endif

enum { TILE_ROWS = 4, TILE_COLUMNS = 32 };

/* A full tile: constant bounds, so that the sums stay in registers. */
CLONES static void tile_full(const float *restrict x, size_t x_stride, const float *restrict w,
    size_t w_stride, float *restrict y, size_t y_stride, size_t in)
{
    float sum[TILE_ROWS][TILE_COLUMNS] = {{0}};
    for (size_t k = 0; k < in; k++) {
        const float *row = w + k * w_stride;
        for (size_t r = 0; r < TILE_ROWS; r++) {
            float factor = x[r * x_stride + k];
            for (size_t j = 0; j < TILE_COLUMNS; j++)
                sum[r][j] += factor * row[j];
        }
    }
    for (size_t r = 0; r < TILE_ROWS; r++)
        memcpy(y + r * y_stride, sum[r], sizeof sum[r]);
}

/* One row, any number of columns up to a tile's. */
CLONES static void tile_row(const float *restrict x, const float *restrict w, size_t w_stride,
    float *restrict y, size_t columns, size_t in)
{
    float sum[TILE_COLUMNS] = {0};
    if (columns == TILE_COLUMNS) {
        for (size_t k = 0; k < in; k++)
            for (size_t j = 0; j < TILE_COLUMNS; j++)
                sum[j] += x[k] * w[k * w_stride + j];
    } else {
        for (size_t k = 0; k < in; k++)
            for (size_t j = 0; j < columns; j++)
                sum[j] += x[k] * w[k * w_stride + j];
    }
    memcpy(y, sum, columns * sizeof *y);
}

void dense_apply(const float *x, const float *w, float *y, size_t rows, size_t in, size_t out)
{
    for (size_t n = 0; n < out; n += TILE_COLUMNS) {
        size_t columns = out - n < TILE_COLUMNS ? out - n : TILE_COLUMNS;
        size_t t = 0;
        for (; columns == TILE_COLUMNS && t + TILE_ROWS <= rows; t += TILE_ROWS)
            tile_full(x + t * in, in, w + n, out, y + t * out + n, out, in);
        for (; t < rows; t++)
            tile_row(x + t * in, w + n, out, y + t * out + n, columns, in);
    }
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
