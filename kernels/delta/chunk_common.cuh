/* SPDX-License-Identifier: Apache-2.0 */
/* What the chunk kernels share: the tables that the index kernel fills, where a chunk lies, and how
 * a column of it is read. */
#ifndef SC_CHUNK_COMMON_CUH
#define SC_CHUNK_COMMON_CUH

#include "cuda/device_math.cuh"
#include "delta/delta_cuda.h"

enum { THREADS = 256, WARPS = 8, C_MAX = 64, BATCH = 16 };

struct tables {
    int32_t *first;    /* [rows + 1] first chunk of each row; the last: how many there are */
    int32_t *row;      /* [chunks] */
    int32_t *save;     /* [chunks] first save, -1 none */
    int32_t *next;     /* [saves] next save of the same chunk */
    float *heads;      /* [chunks][v_heads][scratch_floats(C)] */
};

/* Of a chunk and v head: two matrices (as fp32, or as two bf16 each), four vectors. */
static inline __host__ __device__ uint64_t scratch_floats(uint64_t c)
{
    return 2 * c * c + 4 * c;
}

struct chunk_call {
    sc_k_delta_params p; /* strides filled in */
    tables t;
    float scale;
    uint32_t chunks_max;
};

SC_DEV int32_t position_of(const chunk_call &x, uint32_t r)
{
    return x.p.position != 0 ? ((const int32_t *)x.p.position)[r] : 0;
}

/* Chunks of a row of `count` tokens from `position` on. */
SC_DEV int32_t chunks_of(int32_t position, int32_t count, int32_t c)
{
    if (count <= 0) return 0;
    return (position + count - 1) / c - position / c + 1;
}

/* Where a chunk lies: its first token and how many, and its row. */
struct chunk_place {
    int64_t token;
    int32_t count, row;
};

SC_DEV chunk_place place_of(const chunk_call &x, int32_t row, int32_t nth)
{
    const int32_t *row_start = (const int32_t *)x.p.row_start;
    int32_t c = (int32_t)x.p.chunk, position = position_of(x, (uint32_t)row);
    int32_t begin = nth == 0 ? 0 : (position / c + nth) * c - position;
    int32_t end = (position / c + nth + 1) * c - position;
    int32_t length = row_start[row + 1] - row_start[row];
    if (end > length) end = length;
    return chunk_place{(int64_t)row_start[row] + begin, end - begin, row};
}

SC_DEV float *head_scratch(const chunk_call &x, int32_t chunk, uint32_t hv)
{
    uint64_t c = x.p.chunk;
    return x.t.heads + ((uint64_t)chunk * x.p.shape.v_heads + hv) * scratch_floats(c);
}

SC_DEV int64_t qk_at(const chunk_call &x, uint32_t hv)
{
    return (int64_t)(hv / (x.p.shape.v_heads / x.p.shape.heads)) * x.p.shape.k_dim;
}

/* The log gate of a token; `wide`: 1 for KDA, 0 for GDN, whose gate has no k. No branch, so that
 * the loads of many tokens can be under way at once. */
SC_DEV float gate_at(const chunk_call &x, int64_t t, uint32_t hv, uint32_t k)
{
    const sc_k_delta_shape &s = x.p.shape;
    bool wide = s.kind == SC_K_KIND_KDA;
    return ((const float *)x.p.g)[(t * s.v_heads + hv) * (wide ? s.k_dim : 1) + (wide ? k : 0)];
}

/* alpha and q or k (times `by`) of BATCH tokens for one k, all loads under way at once. Beyond the
 * chunk or K: any element that exists. */
template <typename T>
SC_DEV void column_load(float (&alpha)[BATCH], float (&value)[BATCH], const chunk_call &x,
    const chunk_place &at, uint32_t hv, uint32_t k, int32_t first, sc_devptr base, int64_t stride,
    const float *by)
{
    float factor[BATCH];
    if (k >= x.p.shape.k_dim) k = 0;
#pragma unroll
    for (int j = 0; j < BATCH; j++) {
        int32_t i = first + j < at.count ? first + j : at.count - 1;
        alpha[j] = gate_at(x, at.token + i, hv, k);
        value[j] = dev_widen(((const T *)base)[(at.token + i) * stride + qk_at(x, hv) + k]);
        factor[j] = by[i];
    }
#pragma unroll
    for (int j = 0; j < BATCH; j++) {
        alpha[j] = dev_exp(alpha[j]);
        value[j] = value[j] * factor[j];
    }
}

/* chunk_mma_sm90.cu: everything after the index, for the calls that fit. Shape, dtypes and chunk
 * decide, nothing else: neither batch nor alignment may change a bit. */
bool sc_chunk_mma_fits(const chunk_call &x);
sc_status sc_chunk_mma(const chunk_call &x, sc_stream *stream);

#endif
