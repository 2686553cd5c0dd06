/* SPDX-License-Identifier: Apache-2.0 */
/* The delta rule token by token, and packed decode, for any dims up to 256 and any alignment.
 *
 *   grid   x: blocks of 8 rows of V      y: v heads      z: rows of the batch
 *   block  one warp; its 8 rows of the state stay in registers while the tokens of its row pass
 *
 * Lanes, sums and the step are those of delta_lanes.cuh, so that for heads of 128 the bits are
 * those of decode_sm90.cu, one call a token. Correctness is the aim here: every access is a scalar
 * one, and q, k and gates are worked out again by each of the V / 8 warps of a head. */
#include "delta/delta_lanes.cuh"

#include "cuda/launch.cuh"
#include "delta/delta_cuda.h"

namespace {

enum { ROWS = 8 };

/* Both calls, seen as one: decode is a batch whose row r is token r. */
struct walk {
    sc_devptr q, k, v, o;
    int64_t q_stride, k_stride, v_stride, o_stride;
    sc_dtype dtype;
    sc_devptr g, beta, a, b;
    int64_t a_stride, b_stride;
    sc_k_gate_weights weights;
    sc_k_delta_shape shape;
    sc_devptr row_start, position, source, dest, save;
    sc_k_saves saves;
    sc_k_slots state, initial;
    float scale;
};

/* A lane's part of 8 rows: value [row][part of 128][i]. */
template <int PARTS> struct block_rows {
    float x[ROWS][PARTS * LANES_WIDE];
};

SC_DEV uint32_t k_of(int i)
{
    return (uint32_t)(i / LANES_WIDE) * 128 + threadIdx.x * LANES_WIDE
        + (uint32_t)(i % LANES_WIDE);
}

SC_DEV uint32_t v_of(int row)
{
    return blockIdx.x * ROWS + (uint32_t)row;
}

template <typename S, int PARTS>
SC_DEV void rows_load(block_rows<PARTS> &b, const walk &p, const dev_begin &from)
{
#pragma unroll
    for (int j = 0; j < ROWS; j++)
#pragma unroll
        for (int i = 0; i < PARTS * LANES_WIDE; i++) {
            uint32_t k = k_of(i), v = v_of(j);
            bool real = k < p.shape.k_dim && v < p.shape.v_dim;
            int64_t at = ((int64_t)blockIdx.y * p.shape.v_dim + v) * p.shape.k_dim + k;
            b.x[j][i] = real ? dev_begin_load<S>(from, at) : 0.0f;
        }
}

template <typename S, int PARTS>
SC_DEV void rows_store(const block_rows<PARTS> &b, const walk &p, int32_t slot)
{
    if (slot <= 0) return;
    S *out = (S *)dev_slot(p.state, slot);
#pragma unroll
    for (int j = 0; j < ROWS; j++)
#pragma unroll
        for (int i = 0; i < PARTS * LANES_WIDE; i++) {
            uint32_t k = k_of(i), v = v_of(j);
            int64_t at = ((int64_t)blockIdx.y * p.shape.v_dim + v) * p.shape.k_dim + k;
            if (k < p.shape.k_dim && v < p.shape.v_dim) out[at] = dev_narrow<S>(b.x[j][i]);
        }
}

template <int PARTS>
SC_DEV void token_gates(const walk &p, int64_t t, float *alpha, float *beta)
{
    uint32_t hv = blockIdx.y, heads = p.shape.v_heads;
    bool kda = p.shape.kind == SC_K_KIND_KDA;
    int64_t n = kda ? p.shape.k_dim : 1;
    float rate = p.g == 0 ? dev_rate(p.weights.a_log, hv) : 0.0f;
#pragma unroll
    for (int i = 0; i < PARTS * LANES_WIDE; i++) {
        uint32_t k = kda ? k_of(i) : 0;
        int64_t at = (int64_t)hv * n + k;
        float g = 0.0f;
        if (k < n && p.g != 0) {
            g = ((const float *)p.g)[t * heads * n + at];
        } else if (k < n) {
            float bias = p.weights.dt_bias != 0
                ? dev_load(p.weights.dt_bias, p.weights.dt_bias_dtype, at) : 0.0f;
            g = dev_gate(p.weights.gate, dev_load(p.a, p.dtype, t * p.a_stride + at), bias, rate,
                p.weights.lower_bound);
        }
        alpha[i] = dev_exp(g);
    }
    *beta = p.beta != 0 ? ((const float *)p.beta)[t * heads + hv]
                        : dev_beta(dev_load(p.b, p.dtype, t * p.b_stride + hv),
                              p.weights.beta_doubled);
}

template <typename S, int PARTS>
SC_DEV void token_step(block_rows<PARTS> &b, const walk &p, int64_t t)
{
    constexpr int N = PARTS * LANES_WIDE, SHARE = 32 / ROWS;
    const sc_k_delta_shape &s = p.shape;
    float q[N], k[N], alpha[N], a[ROWS], c[ROWS], beta;
    int64_t head = (int64_t)(blockIdx.y / (s.v_heads / s.heads)) * s.k_dim;
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t at = k_of(i);
        bool real = at < s.k_dim;
        q[i] = real ? dev_load(p.q, p.dtype, t * p.q_stride + head + at) : 0.0f;
        k[i] = real ? dev_load(p.k, p.dtype, t * p.k_stride + head + at) : 0.0f;
    }
    token_gates<PARTS>(p, t, alpha, &beta);
    bool kda = s.kind == SC_K_KIND_KDA;
    float one = kda ? 1.0f : alpha[0];
    lanes_head h = lanes_norm<N>(q, k, s.qk_l2norm, p.scale);
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        a[j] = 0.0f, c[j] = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) {
            bool scaled = kda && !lanes_decay_first<S>;
            float x = kda && lanes_decay_first<S> ? b.x[j][i] * alpha[i] : b.x[j][i];
            a[j] = __fmaf_rn(x, scaled ? k[i] * alpha[i] : k[i], a[j]);
            c[j] = __fmaf_rn(x, scaled ? q[i] * alpha[i] : q[i], c[j]);
        }
    }
    lanes_reduce<ROWS>(a);
    lanes_reduce<ROWS>(c);
    uint32_t lane = threadIdx.x, v = v_of((int)(lane / SHARE));
    int64_t at = (int64_t)blockIdx.y * s.v_dim + v;
    float mine = 0.0f, o;
    if (v < s.v_dim) {
        mine = lanes_write(h, one, beta, dev_load(p.v, p.dtype, t * p.v_stride + at), a[0], c[0],
            &o);
        if (lane % SHARE == 0) dev_store(p.o, p.dtype, t * p.o_stride + at, o);
    }
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        float u = __shfl_sync(0xffffffffu, mine, j * SHARE);
#pragma unroll
        for (int i = 0; i < N; i++)
            b.x[j][i] = dev_round<S>(__fmaf_rn(u, k[i], b.x[j][i] * alpha[i]));
    }
}

template <typename S, int PARTS>
SC_DEV void token_saves(const block_rows<PARTS> &b, const walk &p, int32_t row, int32_t pos)
{
    for (uint32_t i = 0; i < p.saves.count; i++)
        if (((const int32_t *)p.saves.row)[i] == row && ((const int32_t *)p.saves.pos)[i] == pos)
            rows_store<S, PARTS>(b, p, ((const int32_t *)p.saves.slot)[i]);
}

template <typename S, int PARTS> __global__ void __launch_bounds__(32)
walk_rows(const __grid_constant__ walk p)
{
    dev_wait_previous();
    dev_release_next();
    uint32_t r = blockIdx.z;
    const int32_t *row_start = (const int32_t *)p.row_start;
    int64_t t = row_start != nullptr ? row_start[r] : r;
    int64_t end = row_start != nullptr ? row_start[r + 1] : t + 1;
    int32_t source = ((const int32_t *)p.source)[r], dest = ((const int32_t *)p.dest)[r];
    int32_t pos = p.position != 0 ? ((const int32_t *)p.position)[r] : 0;
    if (source < 0) {
        uint32_t v = blockIdx.x * ROWS + threadIdx.x;
        int64_t at = (int64_t)blockIdx.y * p.shape.v_dim + v;
        for (; t < end; t++)
            if (threadIdx.x < ROWS && v < p.shape.v_dim)
                dev_store(p.o, p.dtype, t * p.o_stride + at, 0.0f);
        return;
    }
    if (end <= t && dest == source && p.initial.base == 0) return;
    block_rows<PARTS> b;
    rows_load<S, PARTS>(b, p, dev_beginning(p.state, p.initial, source, r));
    for (; t < end; t++) {
        token_step<S, PARTS>(b, p, t);
        token_saves<S, PARTS>(b, p, (int32_t)r, ++pos);
    }
    rows_store<S, PARTS>(b, p, dest);
    if (p.save != 0) rows_store<S, PARTS>(b, p, ((const int32_t *)p.save)[r]);
}

sc_status launch(const walk &p, uint32_t rows, sc_stream *stream)
{
    const sc_k_delta_shape &s = p.shape;
    if (s.v_heads > 65535 || rows > 65535)
        return SC_FAIL(SC_ERR_LIMIT, "%u v heads, %u rows: at most 65535 in one call", s.v_heads,
            rows);
    dim3 grid((s.v_dim + ROWS - 1) / ROWS, s.v_heads, rows);
    bool one = s.k_dim <= 128;
    if (p.state.dtype == SC_DTYPE_F32)
        return one ? sc_cuda_launch("walk_rows", walk_rows<float, 1>, grid, 32, 0, stream, p)
                   : sc_cuda_launch("walk_rows", walk_rows<float, 2>, grid, 32, 0, stream, p);
    return one ? sc_cuda_launch("walk_rows", walk_rows<sc_bf16, 1>, grid, 32, 0, stream, p)
               : sc_cuda_launch("walk_rows", walk_rows<sc_bf16, 2>, grid, 32, 0, stream, p);
}

} // namespace

sc_status sc_k_delta_recurrent_sm90(const void *params, sc_stream *stream)
{
    const sc_k_delta_params *in = (const sc_k_delta_params *)params;
    const sc_k_delta_shape &s = in->shape;
    uint64_t qk = (uint64_t)s.heads * s.k_dim, vo = (uint64_t)s.v_heads * s.v_dim;
    walk p = {};
    p.q = in->q, p.k = in->k, p.v = in->v, p.o = in->o;
    p.q_stride = sc_kernel_stride(in->q_stride, qk);
    p.k_stride = sc_kernel_stride(in->k_stride, qk);
    p.v_stride = sc_kernel_stride(in->v_stride, vo);
    p.o_stride = sc_kernel_stride(in->o_stride, vo);
    p.dtype = in->dtype, p.g = in->g, p.beta = in->beta, p.shape = s;
    p.row_start = in->row_start, p.position = in->position;
    p.source = in->source, p.dest = in->dest, p.saves = in->saves, p.state = in->state;
    p.initial = in->initial;
    p.scale = sc_cuda_delta_scale(&s);
    return launch(p, in->row_count, stream);
}

sc_status sc_cuda_delta_walk_decode(const sc_k_decode_params *in, sc_stream *stream)
{
    const sc_k_delta_shape &s = in->shape;
    uint64_t qk = (uint64_t)s.heads * s.k_dim, vo = (uint64_t)s.v_heads * s.v_dim;
    uint64_t n = (uint64_t)s.v_heads * (s.kind == SC_K_KIND_KDA ? s.k_dim : 1);
    walk p = {};
    p.q = in->q, p.k = in->k, p.v = in->v, p.o = in->o;
    p.q_stride = sc_kernel_stride(in->q_stride, qk);
    p.k_stride = sc_kernel_stride(in->k_stride, qk);
    p.v_stride = sc_kernel_stride(in->v_stride, vo);
    p.o_stride = sc_kernel_stride(in->o_stride, vo);
    p.dtype = in->dtype, p.g = in->g, p.beta = in->beta, p.a = in->a, p.b = in->b;
    p.a_stride = sc_kernel_stride(in->a_stride, n);
    p.b_stride = sc_kernel_stride(in->b_stride, s.v_heads);
    p.weights = in->weights, p.shape = s;
    p.source = in->source, p.dest = in->dest, p.save = in->save, p.state = in->state;
    p.initial = in->initial, p.scale = sc_cuda_delta_scale(&s);
    return launch(p, in->row_count, stream);
}
