/* SPDX-License-Identifier: Apache-2.0 */
/** Projections beside the recurrence: thin products whose bits do not depend on the batch.
 *
 *   y[t, n] = sum_k weight[n, k] x[t, k]        weight row-major [out, in], as checkpoints have it
 *
 * fp32 products and sums in an order that `in` alone determines, one rounding to y's dtype at the
 * end: a token's outputs have the same bits whatever tokens are beside it, in all rows of the host
 * (contract 10). Made for few tokens, where reading the weights is the cost; a plain GEMM is faster
 * from a few dozen on, at the price of these bits. Columns are independent: threads may share a
 * call by taking ranges of outputs (weight + n * in, y + n).
 *
 * Errors, threads and backends: as in kernels.h. So far the host alone has rows. */
#ifndef STATECACHE_KERNELS_PROJECT_H
#define STATECACHE_KERNELS_PROJECT_H

#include "statecache/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/** EXACT (contract 10): nothing is chosen by batch or size. FAST: it may be, within tolerance. */
typedef enum sc_numerics { SC_NUMERICS_EXACT = 0, SC_NUMERICS_FAST = 1 } sc_numerics;

typedef struct sc_k_project_params {
    sc_devptr x;           /* [token_count, x_stride] of `dtype`: in_dim used */
    sc_devptr weight;      /* [out_dim, in_dim] of `weight_dtype` */
    sc_devptr y;           /* out [token_count, y_stride] of `y_dtype`: out_dim written */
    int64_t x_stride;      /* elements; 0: dense */
    int64_t y_stride;
    sc_dtype dtype;        /* F32 or BF16 */
    sc_dtype weight_dtype;
    sc_dtype y_dtype;
    uint32_t in_dim;
    uint32_t out_dim;
    uint32_t token_count;
} sc_k_project_params;

/** SC_ERR_INVALID, SC_ERR_UNSUPPORTED; y must not overlap x or the weights. */
SC_API sc_status sc_k_project(sc_backend *backend, const sc_k_project_params *params,
    sc_stream *stream);

/** Two projections through a waist, as KDA makes its decay (f) and its output gate (g):
 * y = up (down x), with the waist in fp32. */
typedef struct sc_k_low_rank_params {
    sc_devptr x;           /* [token_count, x_stride] of `dtype`: in_dim used */
    sc_devptr down;        /* [rank, in_dim] of `weight_dtype` */
    sc_devptr up;          /* [out_dim, rank] of `weight_dtype` */
    sc_devptr y;           /* out [token_count, y_stride] of `y_dtype`: out_dim written */
    int64_t x_stride;      /* elements; 0: dense */
    int64_t y_stride;
    sc_dtype dtype;
    sc_dtype weight_dtype;
    sc_dtype y_dtype;
    uint32_t in_dim;
    uint32_t rank;
    uint32_t out_dim;
    uint32_t token_count;
    sc_devptr scratch;     /* [token_count, rank] fp32 */
    uint64_t scratch_bytes;
} sc_k_low_rank_params;

/** Errors as sc_k_project(). */
SC_API sc_status sc_k_low_rank(sc_backend *backend, const sc_k_low_rank_params *params,
    sc_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
