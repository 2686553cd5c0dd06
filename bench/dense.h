/* SPDX-License-Identifier: Apache-2.0 */
/* Batch-invariant arithmetic of the served model: the bits of one row depend on that row and on the
 * weights alone, not on how many rows there are, in which tile it was computed or with how wide a
 * vector unit. Each output is one sum in one fixed order, to which dense_apply() adds products
 * fused, all others rounded ones. */
#ifndef BENCH_DENSE_H
#define BENCH_DENSE_H

#include <stddef.h>
#include <stdint.h>

/* Weights [in][out] lie in panels, so that they are read in the order in which they lie, however
 * many rows there are:
 *
 *   columns 0..31 of all rows | columns 32..63 of all rows | ... | the columns that are left */
enum { DENSE_PANEL = 32 };
static inline size_t dense_weight_at(size_t in, size_t out, size_t k, size_t n)
{
    size_t first = n / DENSE_PANEL * DENSE_PANEL;
    size_t columns = out - first < DENSE_PANEL ? out - first : DENSE_PANEL;
    return first * in + k * columns + (n - first);
}
/* Rows, one after the other, to panels, in place. */
void dense_pack(float *w, size_t in, size_t out);
/* y[t][n] = sum over k, ascending from 0, of x[t][k] * w[k][n], w packed. Rows of x and y are
 * dense. */
void dense_apply(const float *x, const float *w, float *y, size_t rows, size_t in, size_t out);
/* y += x */
void dense_accumulate(float *y, const float *x, size_t count);
/* y = x / sqrt(mean x^2 + 1e-6) * weight, by row of `dim` (a multiple of 8). */
void dense_rmsnorm(const float *x, const float *weight, float *y, size_t rows, size_t dim);
/* a = silu(a) * b */
void dense_silu_mul(float *a, const float *b, size_t count);

/* One head of one token: softmax(q k / sqrt(dim)) v over `count` positions in order. The key and
 * the value of position i are `dim` floats (a multiple of 8) at rows[i] + key_at and rows[i] +
 * value_at. `score` has room for `count`. */
struct dense_context {
    const float *const *rows;
    size_t count, key_at, value_at, dim;
};
void dense_attend(const float *q, const struct dense_context *context, float *score, float *out);

#endif
