/* SPDX-License-Identifier: Apache-2.0 */
/* Chunk form on the tensor cores, first kernel: a block for each chunk and v head makes P and T of
 * chunk_sm90.cu's drawing, as hi + lo in bf16, and the vectors of the scan.
 *
 *   GDN   k k^T and q k^T are exact (bf16 products, fp32 sums); decay and norms are factors of a
 *         pair, applied afterwards
 *   KDA   the decay belongs to k, so a pair (i, j) in different sub-chunks of 16 goes through the
 *         beginning b of i's: (k_i D(i, b)) (D(b, j) k_j), both decays <= 1; within a sub-chunk on
 *         the ordinary units, a warp's keys ageing token by token
 *
 * T = (I + a)^-1 diag(beta): the four diagonal blocks of 16 by forward substitution, a column a
 * thread; then X_IJ = -X_II sum_L a_IL X_LJ, one diagonal after the other.
 *
 * A row of a result never reads a later token, also not as a factor of 0: it may be NaN.
 * Scratch of a chunk and head: T hi, T lo, P hi, P lo (64 x 64 bf16, blocks on and below the
 * diagonal), then 4 vectors of 64: GDN 1/|q| D(i,start), 1/|k| D(i,start), 1/|k| D(last,i), and
 * D(last,start) first in the last; KDA 1/|q|, 1/|k|. */
#include "delta/chunk_mma.cuh"

#include "cuda/launch.cuh"
#include "delta/delta_lanes.cuh"

namespace {

enum { F_STRIDE = C + 1, SUBS = C / SUB };

struct prepare_shared {
    sc_bf16 qk[2][C][QK_STRIDE]; /* q, k as loaded */
    float a[C][F_STRIDE], x[C][F_STRIDE], w[3][SUB][SUB + 1];
    float beta[C], alpha[C], by[2][C], start[C], last[C]; /* by: 1/|q|, 1/|k| */
};

struct prepare_kda : prepare_shared {
    sc_bf16 left[2][2][C][QK_STRIDE];     /* q, k times D(i, sub-chunk); hi, lo */
    sc_bf16 right[2][C - SUB][QK_STRIDE]; /* k_j D(b, j); hi, lo */
    float y[C][D + 4];                    /* the same before it is split */
    float full[SUBS][D];                  /* decay of a whole sub-chunk */
};

struct prepare_at {
    chunk_place place;
    uint32_t hv;
    sc_bf16 *t, *p; /* hi; lo lies C C behind */
    float *vectors;
};

SC_DEV void load_qk(prepare_shared &m, const chunk_call &x, const prepare_at &at)
{
    for (uint32_t i = threadIdx.x; i < 2 * C * D / 8; i += THREADS) {
        uint32_t which = i / (C * D / 8), row = i / (D / 8) % C, col = i % (D / 8) * 8;
        sc_devptr base = which == 0 ? x.p.q : x.p.k;
        int64_t stride = which == 0 ? x.p.q_stride : x.p.k_stride;
        uint4 value = make_uint4(0, 0, 0, 0);
        if ((int32_t)row < at.place.count)
            value = eight((const sc_bf16 *)base + (at.place.token + row) * stride
                + qk_at(x, at.hv) + col, on_16_bytes(base, stride));
        *(uint4 *)&m.qk[which][row][col] = value;
    }
    if (threadIdx.x < C) {
        int32_t i = (int32_t)threadIdx.x;
        bool real = i < at.place.count, gdn = x.p.shape.kind == SC_K_KIND_GDN;
        int64_t token = at.place.token + i;
        m.beta[i] = real ? ((const float *)x.p.beta)[token * x.p.shape.v_heads + at.hv] : 0.0f;
        if (gdn) m.alpha[i] = real ? dev_exp(gate_at(x, token, at.hv, 0)) : 1.0f;
    }
}

SC_DEV void norms(prepare_shared &m, const chunk_call &x)
{
    for (uint32_t i = threadIdx.x / 32; i < 2 * C; i += WARPS) {
        uint2 w = *(const uint2 *)&m.qk[i / C][i % C][threadIdx.x % 32 * 4];
        float v[4] = {dev_low(w.x), dev_high(w.x), dev_low(w.y), dev_high(w.y)}, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) sum = __fmaf_rn(v[j], v[j], sum);
        sum = dev_lane_sum<32>(sum);
        float by = x.p.shape.qk_l2norm ? dev_rsqrt(sum + 1e-6f) : 1.0f;
        if (threadIdx.x % 32 == 0) m.by[i / C][i % C] = i < C ? by * x.scale : by;
    }
}

/* A pair of P, columns j and j + 1. */
SC_DEV void store_p(const prepare_at &at, uint32_t i, uint32_t j, float low, float high)
{
    uint32_t hi, lo;
    split(hi, lo, j <= i ? low : 0.0f, j + 1 <= i ? high : 0.0f);
    *(uint32_t *)(at.p + i * C + j) = hi;
    *(uint32_t *)(at.p + C * C + i * C + j) = lo;
}

/* ----------------------------------------------------------------------------------------- GDN */

/* x: D(i, j) of all pairs, a column a thread; start and last. */
SC_DEV void decays(prepare_shared &m)
{
    uint32_t j = threadIdx.x;
    float d = 1.0f;
    if (j < C) {
        for (uint32_t i = 0; i < C; i++) {
            if (i > j) d = d * m.alpha[i];
            m.x[i][j] = d;
        }
        m.last[j] = d;
    } else if (j == C) {
        for (uint32_t i = 0; i < C; i++) m.start[i] = d = d * m.alpha[i];
    }
}

/* Warps 0 to 3 make 16 rows of a each, 4 to 7 of P. */
SC_DEV void pairs_gdn(prepare_shared &m, const prepare_at &at)
{
    uint32_t warp = threadIdx.x / 32, block = warp % 4, which = warp / 4 == 0 ? 1 : 0;
    uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float acc[SUBS][2][4] = {};
    for (uint32_t k = 0; k < D; k += 16) {
        uint32_t a[4], b[4];
        left(a, &m.qk[which][0][0], QK_STRIDE, block * SUB, k);
#pragma unroll
        for (uint32_t n = 0; n < SUBS; n++)
            if (n <= block) {
                right_t(b, &m.qk[1][0][0], QK_STRIDE, k, n * SUB);
                mma_two(acc[n], a, b);
            }
    }
#pragma unroll
    for (uint32_t n = 0; n < SUBS; n++)
#pragma unroll
        for (uint32_t half = 0; half < 4 && n <= block; half++) {
            uint32_t i = block * SUB + g + half % 2 * 8, j = n * SUB + half / 2 * 8 + 2 * t;
            const float *c = &acc[n][half / 2][half % 2 * 2];
            float low = c[0] * (m.by[which][i] * m.by[1][j]) * m.x[i][j];
            float high = c[1] * (m.by[which][i] * m.by[1][j + 1]) * m.x[i][j + 1];
            if (which == 0) {
                store_p(at, i, j, low, high);
            } else {
                m.a[i][j] = j < i ? m.beta[i] * low : 0.0f;
                m.a[i][j + 1] = j + 1 < i ? m.beta[i] * high : 0.0f;
            }
        }
}

SC_DEV void vectors_gdn(const prepare_shared &m, const prepare_at &at)
{
    uint32_t i = threadIdx.x;
    if (i >= C) return;
    at.vectors[i] = m.by[0][i] * m.start[i];
    at.vectors[C + i] = m.by[1][i] * m.start[i];
    at.vectors[2 * C + i] = m.by[1][i] * m.last[i];
    at.vectors[3 * C + i] = m.start[C - 1];
}

/* ----------------------------------------------------------------------------------------- KDA */

/* alpha of SUB tokens for one k; 1 beyond the chunk. */
SC_DEV void alphas_of(float (&alpha)[SUB], const chunk_call &x, const prepare_at &at, uint32_t k,
    int32_t first)
{
#pragma unroll
    for (int i = 0; i < SUB; i++) {
        int32_t token = first + i < at.place.count ? first + i : at.place.count - 1;
        alpha[i] = gate_at(x, at.place.token + token, at.hv, k);
    }
#pragma unroll
    for (int i = 0; i < SUB; i++)
        alpha[i] = first + i < at.place.count ? dev_exp(alpha[i]) : 1.0f;
}

/* Half of the block walks down the columns for `left`, half up for y. */
SC_DEV void columns_kda(prepare_kda &m, const chunk_call &x, const prepare_at &at)
{
    uint32_t k = threadIdx.x % D;
    float alpha[SUB];
    for (int32_t sub = 0; sub < SUBS; sub++) {
        alphas_of(alpha, x, at, k, sub * SUB);
        float d = 1.0f;
        if (threadIdx.x < D) {
#pragma unroll
            for (int n = 0; n < SUB; n++) {
                int32_t i = sub * SUB + n;
                d = d * alpha[n];
#pragma unroll
                for (int which = 0; which < 2; which++)
                    split_one(&m.left[which][0][i][k], &m.left[which][1][i][k],
                        dev_widen(m.qk[which][i][k]) * m.by[which][i] * d);
            }
            m.full[sub][k] = d;
        } else {
#pragma unroll
            for (int n = SUB - 1; n >= 0; n--) {
                int32_t i = sub * SUB + n;
                m.y[i][k] = dev_widen(m.qk[1][i][k]) * m.by[1][i] * d;
                d = d * alpha[n];
            }
        }
    }
}

/* Rows of sub-chunk `sub` against all earlier ones. */
SC_DEV void pairs_kda(prepare_kda &m, const prepare_at &at, uint32_t sub)
{
    uint32_t warp = threadIdx.x / 32, which = warp % 2, n = warp / 2;
    uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float acc[2][4] = {};
    if (n >= sub) return;
    for (uint32_t k = 0; k < D; k += 16) {
        uint32_t hi[4], lo[4], b_hi[4], b_lo[4];
        left(hi, &m.left[which][0][0][0], QK_STRIDE, sub * SUB, k);
        left(lo, &m.left[which][1][0][0], QK_STRIDE, sub * SUB, k);
        right_t(b_hi, &m.right[0][0][0], QK_STRIDE, k, n * SUB);
        right_t(b_lo, &m.right[1][0][0], QK_STRIDE, k, n * SUB);
        mma_two(acc, hi, b_hi);
        mma_two(acc, hi, b_lo);
        mma_two(acc, lo, b_hi);
    }
#pragma unroll
    for (uint32_t half = 0; half < 4; half++) {
        uint32_t i = sub * SUB + g + half % 2 * 8, j = n * SUB + half / 2 * 8 + 2 * t;
        const float *c = &acc[half / 2][half % 2 * 2];
        if (which == 0) {
            store_p(at, i, j, c[0], c[1]);
        } else {
            m.a[i][j] = m.beta[i] * c[0];
            m.a[i][j + 1] = m.beta[i] * c[1];
        }
    }
}

/* `right` for the rows of sub-chunk `sub`, and y aged by that sub-chunk for the next. */
SC_DEV void right_kda(prepare_kda &m, uint32_t sub)
{
    for (uint32_t n = threadIdx.x; n < sub * SUB * D / 2; n += THREADS) {
        uint32_t j = n / (D / 2), k = n % (D / 2) * 2, hi, lo;
        float low = m.y[j][k], high = m.y[j][k + 1];
        split(hi, lo, low, high);
        *(uint32_t *)&m.right[0][j][k] = hi;
        *(uint32_t *)&m.right[1][j][k] = lo;
        m.y[j][k] = low * m.full[sub][k];
        m.y[j][k + 1] = high * m.full[sub][k + 1];
    }
}

/* Pairs within a sub-chunk: a warp has 8 of its columns, whose keys age in registers. */
SC_DEV void diagonal_kda(prepare_kda &m, const chunk_call &x, const prepare_at &at)
{
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = warp / 2 * SUB;
    uint32_t column = warp % 2 * 8;
    float y[8][4] = {};
    for (uint32_t i = 0; i < SUB; i++) {
        uint32_t row = first + i;
        float qi[4], ki[4], alpha[4], pa[8], pp[8];
        bool real = (int32_t)row < at.place.count;
#pragma unroll
        for (int j = 0; j < 4; j++)
            alpha[j] = real ? dev_exp(gate_at(x, at.place.token + row, at.hv, lane * 4 + j)) : 1.0f;
        dev_load_vec<4>(qi, &m.qk[0][row][lane * 4]);
        dev_load_vec<4>(ki, &m.qk[1][row][lane * 4]);
#pragma unroll
        for (int j = 0; j < 4; j++) qi[j] = qi[j] * m.by[0][row], ki[j] = ki[j] * m.by[1][row];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            pa[n] = 0.0f, pp[n] = 0.0f;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                y[n][j] = i == column + n ? ki[j] : y[n][j] * alpha[j];
                pa[n] = __fmaf_rn(ki[j], y[n][j], pa[n]);
                pp[n] = __fmaf_rn(qi[j], y[n][j], pp[n]);
            }
        }
        lanes_reduce<8>(pa);
        lanes_reduce<8>(pp);
        uint32_t at_column = column + lane / 4, j = first + at_column;
        if (lane % 4 != 0) continue;
        m.a[row][j] = at_column < i ? m.beta[row] * pa[0] : 0.0f;
        split_one(at.p + row * C + j, at.p + C * C + row * C + j, at_column <= i ? pp[0] : 0.0f);
    }
}

/* ------------------------------------------------------------------------------------- inverse */

/* One column of the inverse of a diagonal block. */
SC_DEV void invert_diagonal(prepare_shared &m)
{
    uint32_t first = threadIdx.x / SUB * SUB, column = threadIdx.x % SUB;
    float x[SUB];
    if (threadIdx.x >= C) return;
#pragma unroll
    for (int i = 0; i < SUB; i++) {
        float sum = (uint32_t)i == column ? 1.0f : 0.0f;
#pragma unroll
        for (int j = 0; j < i; j++) sum = __fmaf_rn(-m.a[first + i][first + j], x[j], sum);
        x[i] = (uint32_t)i < column ? 0.0f : sum;
        m.x[first + i][first + column] = x[i];
    }
}

/* Blocks (n + step, n): what lies `step` below the diagonal. */
SC_DEV void invert_step(prepare_shared &m, uint32_t step)
{
    uint32_t i = threadIdx.x / SUB, j = threadIdx.x % SUB;
    for (uint32_t n = 0; n + step < SUBS; n++) {
        uint32_t row = (n + step) * SUB + i;
        float sum = 0.0f;
        for (uint32_t l = n * SUB; l < (n + step) * SUB; l++)
            if (l >= n * SUB + j) sum = __fmaf_rn(m.a[row][l], m.x[l][n * SUB + j], sum);
        m.w[n][i][j] = sum;
    }
    __syncthreads();
    for (uint32_t n = 0; n + step < SUBS; n++) {
        uint32_t row = (n + step) * SUB;
        float sum = 0.0f;
        for (uint32_t l = 0; l <= i; l++) sum = __fmaf_rn(m.x[row + i][row + l], m.w[n][l][j], sum);
        m.x[row + i][n * SUB + j] = -sum;
    }
    __syncthreads();
}

SC_DEV void store_t(const prepare_shared &m, const prepare_at &at)
{
    for (uint32_t n = threadIdx.x; n < C * C / 2; n += THREADS) {
        uint32_t i = n / (C / 2), j = n % (C / 2) * 2, hi, lo;
        if (j / SUB > i / SUB) continue;
        split(hi, lo, m.x[i][j] * m.beta[j], m.x[i][j + 1] * m.beta[j + 1]);
        *(uint32_t *)(at.t + i * C + j) = hi;
        *(uint32_t *)(at.t + C * C + i * C + j) = lo;
    }
}

template <bool KDA> __global__ void __launch_bounds__(THREADS)
prepare(const __grid_constant__ chunk_call x)
{
    extern __shared__ float4 shared4[];
    prepare_shared &m = *(prepare_shared *)shared4;
    dev_wait_previous();
    dev_release_next();
    int32_t chunk = (int32_t)blockIdx.x;
    if (chunk >= x.t.first[x.p.row_count]) return;
    int32_t row = x.t.row[chunk];
    float *out = head_scratch(x, chunk, blockIdx.y);
    prepare_at at = {place_of(x, row, chunk - x.t.first[row]), blockIdx.y, (sc_bf16 *)out,
        (sc_bf16 *)out + 2 * C * C, out + 2 * C * C};
    load_qk(m, x, at);
    __syncthreads();
    norms(m, x);
    if constexpr (!KDA) decays(m);
    __syncthreads();
    if constexpr (KDA) {
        prepare_kda &kda = *(prepare_kda *)shared4;
        if (threadIdx.x < 2 * C) at.vectors[threadIdx.x] = m.by[threadIdx.x / C][threadIdx.x % C];
        columns_kda(kda, x, at);
        __syncthreads();
        for (uint32_t sub = 1; sub < SUBS; sub++) {
            right_kda(kda, sub);
            __syncthreads();
            pairs_kda(kda, at, sub);
            __syncthreads();
        }
        diagonal_kda(kda, x, at);
    } else {
        vectors_gdn(m, at);
        pairs_gdn(m, at);
    }
    __syncthreads();
    invert_diagonal(m);
    __syncthreads();
    for (uint32_t step = 1; step < SUBS; step++) invert_step(m, step);
    store_t(m, at);
}

} // namespace

sc_status sc_chunk_mma_prepare(const chunk_call &x, sc_stream *stream)
{
    bool kda = x.p.shape.kind == SC_K_KIND_KDA;
    unsigned bytes = kda ? sizeof(prepare_kda) : sizeof(prepare_shared);
    auto kernel = kda ? prepare<true> : prepare<false>;
    SC_TRY(sc_cuda_enter());
    SC_TRY(sc_cuda_check(cudaFuncSetAttribute(kernel,
        cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes), "chunk prepare"));
    return sc_cuda_launch("chunk prepare", kernel, dim3(x.chunks_max, x.p.shape.v_heads), THREADS,
        bytes, stream, x);
}
