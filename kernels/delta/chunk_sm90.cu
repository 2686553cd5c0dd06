/* SPDX-License-Identifier: Apache-2.0 */
/* The delta rule chunk by chunk on the device: exact fp32, three kernels.
 *
 *   index    one block: numbers the chunks of all rows, and hangs each save on its chunk
 *   prepare  a block for each chunk and v head, all at once: from q, k, g and beta of the chunk
 *              P_ij = q_i D(i,j) k_j  (j <= i)         T = (I + a)^-1 diag(beta)
 *            with a_ij = beta_i k_i D(i,j) k_j (j < i), D(i,j) the decay of tokens j+1 .. i
 *   scan     a block for each row, v head and 32 columns of V, chunk after chunk:
 *              u = T (v - (k D(.,start)) S)    o = (q D(.,start)) S + P u
 *              S = S D(last,start) + (k D(last,.))^T u         -> saves, dest
 *
 * Decays are running products of alpha = exp(g) <= 1, never an exponential of a difference of sums:
 * no exponent is positive, nothing cancels, g = -inf works. Chunks end where the absolute position
 * is a multiple of C. Each element is a sum in an order that depends on its place in the chunk
 * alone, so the bits of a sequence depend neither on the batch nor on where the call was cut (at
 * multiples of C), nor on later tokens.
 *
 * Scratch for a chunk and v head: T and P (C x C), 1/|q| and 1/|k| (C each); small tables before.
 * Bytes in scan: q, k, v, g once for each 32 columns, mostly from L2; states in and out once. The
 * arithmetic, 3 C K + 2 C C multiply-adds a column, is what it waits for. This is the form for any
 * dims, dtypes and C; bf16 tensors with K = 128 and C = 64 go to the tensor cores
 * (chunk_mma_sm90.cu) after the same index. */
#include "delta/chunk_common.cuh"

#include "cuda/launch.cuh"

namespace {

enum { COLS = 32, PAD = 4, INDEX_THREADS = 1024 };

__global__ void __launch_bounds__(INDEX_THREADS) index_chunks(const __grid_constant__ chunk_call x)
{
    __shared__ int32_t sums[INDEX_THREADS];
    dev_wait_previous();
    dev_release_next();
    const int32_t *row_start = (const int32_t *)x.p.row_start;
    const int32_t *source = (const int32_t *)x.p.source;
    int32_t total = 0, tid = (int32_t)threadIdx.x, c = (int32_t)x.p.chunk;
    for (uint32_t base = 0; base < x.p.row_count; base += INDEX_THREADS) {
        uint32_t r = base + threadIdx.x;
        int32_t n = 0;
        if (r < x.p.row_count && source[r] >= 0)
            n = chunks_of(position_of(x, r), row_start[r + 1] - row_start[r], c);
        sums[tid] = n;
        __syncthreads();
        for (int32_t step = 1; step < INDEX_THREADS; step *= 2) {
            int32_t before = tid >= step ? sums[tid - step] : 0;
            __syncthreads();
            sums[tid] += before;
            __syncthreads();
        }
        if (r < x.p.row_count) x.t.first[r] = total + sums[tid] - n;
        int32_t all = sums[INDEX_THREADS - 1];
        __syncthreads();
        total += all;
    }
    if (tid == 0) x.t.first[x.p.row_count] = total;
    __syncthreads();
    for (int32_t i = tid; i < total; i += INDEX_THREADS) {
        uint32_t low = 0, high = x.p.row_count; /* the last row that starts at or before chunk i */
        while (high - low > 1) {
            uint32_t middle = (low + high) / 2;
            if (x.t.first[middle] <= i)
                low = middle;
            else
                high = middle;
        }
        x.t.row[i] = (int32_t)low;
        x.t.save[i] = -1;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < x.p.saves.count; i += INDEX_THREADS) {
        int32_t r = ((const int32_t *)x.p.saves.row)[i], pos = ((const int32_t *)x.p.saves.pos)[i];
        if (r < 0) continue;
        int32_t at = x.t.first[r] + (pos - 1) / c - position_of(x, (uint32_t)r) / c;
        x.t.next[i] = atomicExch(&x.t.save[at], (int32_t)i);
    }
}

/* q or k of a chunk into `out` [C_MAX][KP + PAD], normalised and scaled; 0 beyond the chunk and
 * beyond K. The factor of each token goes to `inverse`. */
template <int KP, typename T>
SC_DEV void load_normal(float *out, const chunk_call &x, const chunk_place &at, uint32_t hv,
    bool query, float *inverse)
{
    sc_devptr base = query ? x.p.q : x.p.k;
    int64_t stride = query ? x.p.q_stride : x.p.k_stride;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int32_t i = (int32_t)warp; i < C_MAX; i += WARPS) {
        float value[KP / 32], sum = 0.0f;
#pragma unroll
        for (int j = 0; j < KP / 32; j++) {
            uint32_t k = j * 32 + lane;
            bool real = i < at.count && k < x.p.shape.k_dim;
            value[j] = 0.0f;
            if (real)
                value[j] = dev_widen(((const T *)base)[(at.token + i) * stride + qk_at(x, hv) + k]);
            sum = __fmaf_rn(value[j], value[j], sum);
        }
        float by = x.p.shape.qk_l2norm ? dev_rsqrt(dev_lane_sum<32>(sum) + 1e-6f) : 1.0f;
        if (query) by = by * x.scale;
#pragma unroll
        for (int j = 0; j < KP / 32; j++) out[i * (KP + PAD) + j * 32 + lane] = value[j] * by;
        if (lane == 0 && i < at.count) inverse[i] = by;
    }
}

/* GDN: a and P by tiles, then both times the decay of their pair. A thread makes rows ty + 16 i and
 * columns tx + 16 j. */
template <int KP>
SC_DEV void pairs_gdn(const float *q, const float *k, const float *decay, const float *beta,
    float *a, float *p)
{
    uint32_t tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float aa[4][4] = {}, pp[4][4] = {};
    for (int at = 0; at < KP; at += 4) {
        float4 qi[4], ki[4], kj[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            qi[i] = *(const float4 *)(q + (ty + 16 * i) * (KP + PAD) + at);
            ki[i] = *(const float4 *)(k + (ty + 16 * i) * (KP + PAD) + at);
            kj[i] = *(const float4 *)(k + (tx + 16 * i) * (KP + PAD) + at);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                aa[i][j] = __fmaf_rn(ki[i].x, kj[j].x, aa[i][j]);
                aa[i][j] = __fmaf_rn(ki[i].y, kj[j].y, aa[i][j]);
                aa[i][j] = __fmaf_rn(ki[i].z, kj[j].z, aa[i][j]);
                aa[i][j] = __fmaf_rn(ki[i].w, kj[j].w, aa[i][j]);
                pp[i][j] = __fmaf_rn(qi[i].x, kj[j].x, pp[i][j]);
                pp[i][j] = __fmaf_rn(qi[i].y, kj[j].y, pp[i][j]);
                pp[i][j] = __fmaf_rn(qi[i].z, kj[j].z, pp[i][j]);
                pp[i][j] = __fmaf_rn(qi[i].w, kj[j].w, pp[i][j]);
            }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t row = ty + 16 * i, col = tx + 16 * j;
            float d = decay[row * (C_MAX + 1) + col];
            a[row * (C_MAX + 1) + col] = col < row ? beta[row] * (aa[i][j] * d) : 0.0f;
            p[row * (C_MAX + 1) + col] = col <= row ? pp[i][j] * d : 0.0f;
        }
}

/* D(i, j) of all pairs, one thread a column. */
SC_DEV void decays_gdn(float *decay, const float *alpha)
{
    uint32_t j = threadIdx.x;
    if (j >= C_MAX) return;
    float d = 1.0f;
    for (uint32_t i = 0; i < C_MAX; i++) {
        if (i > j) d = d * alpha[i];
        decay[i * (C_MAX + 1) + j] = d;
    }
}

/* Log gates of one token, a lane's share of K; 0 where there is none. */
template <int N>
SC_DEV void gates_of(float *g, const chunk_call &x, const chunk_place &at, uint32_t hv, int32_t i)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        uint32_t k = j * 32 + threadIdx.x % 32;
        bool real = i < at.count && k < x.p.shape.k_dim;
        g[j] = real ? gate_at(x, at.token + i, hv, k) : 0.0f;
    }
}

/* KDA: a warp holds the keys of tokens warp + 8 n in registers and lets them age token by token. */
template <int KP>
SC_DEV void pairs_kda(const chunk_call &x, const chunk_place &at, uint32_t hv, const float *q,
    const float *k, const float *beta, float *a, float *p)
{
    constexpr int N = KP / 32, OWN = C_MAX / WARPS;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float y[OWN][N] = {}, next[N];
    gates_of<N>(next, x, at, hv, 0);
    for (int32_t i = 0; i < C_MAX; i++) {
        float alpha[N], ki[N], qi[N], pa[OWN], pp[OWN];
#pragma unroll
        for (int j = 0; j < N; j++) alpha[j] = dev_exp(next[j]);
        gates_of<N>(next, x, at, hv, i + 1);
#pragma unroll
        for (int j = 0; j < N; j++) {
            uint32_t at_k = j * 32 + lane;
            ki[j] = k[i * (KP + PAD) + at_k];
            qi[j] = q[i * (KP + PAD) + at_k];
        }
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            bool self = i == (int32_t)warp + WARPS * n;
            pa[n] = 0.0f, pp[n] = 0.0f;
#pragma unroll
            for (int j = 0; j < N; j++) {
                y[n][j] = self ? ki[j] : y[n][j] * alpha[j];
                pa[n] = __fmaf_rn(ki[j], y[n][j], pa[n]);
                pp[n] = __fmaf_rn(qi[j], y[n][j], pp[n]);
            }
        }
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            pa[n] = dev_lane_sum<32>(pa[n]);
            pp[n] = dev_lane_sum<32>(pp[n]);
            int32_t col = (int32_t)warp + WARPS * n;
            if (lane == 0) {
                a[i * (C_MAX + 1) + col] = col < i ? beta[i] * pa[n] : 0.0f;
                p[i * (C_MAX + 1) + col] = col <= i ? pp[n] : 0.0f;
            }
        }
    }
}

/* X = (I + a)^-1, lower triangular: four lanes a column, each every fourth term. */
SC_DEV void invert(const float *a, float *x)
{
    uint32_t col = threadIdx.x / 4, part = threadIdx.x % 4;
    for (uint32_t i = 0; i < C_MAX; i++) {
        float sum = 0.0f;
        for (uint32_t j = part; j < i; j += 4)
            sum = __fmaf_rn(a[i * (C_MAX + 1) + j], x[j * (C_MAX + 1) + col], sum);
        sum = dev_lane_sum<4>(sum);
        if (part == 0) x[i * (C_MAX + 1) + col] = i < col ? 0.0f : (i == col ? 1.0f : 0.0f) - sum;
        __syncwarp();
    }
}

template <int KP, typename T> __global__ void __launch_bounds__(THREADS)
prepare(const __grid_constant__ chunk_call x)
{
    extern __shared__ float4 shared4[];
    float *q = (float *)shared4, *k = q + C_MAX * (KP + PAD);
    float *a = k + C_MAX * (KP + PAD), *p = a + C_MAX * (C_MAX + 1), *d = p + C_MAX * (C_MAX + 1);
    __shared__ float beta[C_MAX], alpha[C_MAX];
    dev_wait_previous();
    dev_release_next();
    int32_t chunk = (int32_t)blockIdx.x;
    uint32_t hv = blockIdx.y, c = x.p.chunk;
    if (chunk >= x.t.first[x.p.row_count]) return;
    int32_t row = x.t.row[chunk];
    chunk_place at = place_of(x, row, chunk - x.t.first[row]);
    float *out = head_scratch(x, chunk, hv);
    if (threadIdx.x < C_MAX) {
        int32_t i = (int32_t)threadIdx.x;
        bool real = i < at.count;
        beta[i] = real ? ((const float *)x.p.beta)[(at.token + i) * x.p.shape.v_heads + hv] : 0.0f;
        if (x.p.shape.kind == SC_K_KIND_GDN)
            alpha[i] = real ? dev_exp(gate_at(x, at.token + i, hv, 0)) : 1.0f;
    }
    load_normal<KP, T>(q, x, at, hv, true, out + 2 * c * c);
    load_normal<KP, T>(k, x, at, hv, false, out + 2 * c * c + c);
    __syncthreads();
    if (x.p.shape.kind == SC_K_KIND_GDN) {
        decays_gdn(d, alpha);
        __syncthreads();
        pairs_gdn<KP>(q, k, d, beta, a, p);
        __syncthreads();
    } else {
        pairs_kda<KP>(x, at, hv, q, k, beta, a, p);
        __syncthreads();
    }
    invert(a, d); /* d is free */
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < c * c; i += THREADS) {
        uint32_t r = i / c, j = i % c;
        out[i] = d[r * (C_MAX + 1) + j] * beta[j];
        out[c * c + i] = p[r * (C_MAX + 1) + j];
    }
}

/* ---------------------------------------------------------------------------------------- scan */

/* One block's shared memory. */
template <int KP> struct scan_shared {
    float k[C_MAX][KP + PAD]; /* k D(.,start), later k D(last,.) */
    float q[C_MAX][KP + PAD]; /* q D(.,start) */
    float s[KP][COLS + 1];    /* the state, columns of V side by side */
    float t[C_MAX][C_MAX + PAD], p[C_MAX][C_MAX + PAD];
    float u[C_MAX][COLS + 1], r[C_MAX][COLS + 1];
    float decay[KP];          /* D(last,start) */
};

/* Columns v0 .. v0 + 32 of one head. */
struct scan_head {
    uint32_t row, hv, v0;
};

template <int KP, typename S>
SC_DEV void state_load(scan_shared<KP> &m, const chunk_call &x, const scan_head &h,
    const dev_begin &from)
{
    const sc_k_delta_shape &s = x.p.shape;
    for (uint32_t i = threadIdx.x; i < KP * COLS; i += THREADS) {
        uint32_t k = i % KP, v = i / KP;
        bool real = k < s.k_dim && h.v0 + v < s.v_dim;
        int64_t at = ((int64_t)h.hv * s.v_dim + h.v0 + v) * s.k_dim + k;
        m.s[k][v] = real ? dev_begin_load<S>(from, at) : 0.0f;
    }
}

template <int KP, typename S>
SC_DEV void state_store(const scan_shared<KP> &m, const chunk_call &x, const scan_head &h,
    int32_t slot)
{
    const sc_k_delta_shape &s = x.p.shape;
    for (uint32_t i = threadIdx.x; i < KP * COLS; i += THREADS) {
        uint32_t k = i % KP, v = i / KP;
        int64_t at = ((int64_t)h.hv * s.v_dim + h.v0 + v) * s.k_dim + k;
        if (k < s.k_dim && h.v0 + v < s.v_dim)
            ((S *)dev_slot(x.p.state, slot))[at] = dev_narrow<S>(m.s[k][v]);
    }
}

/* Fills k, q, t, p and decay. A thread walks down one column k of all tokens; half of the block
 * does q where there are threads enough. */
template <int KP, typename T>
SC_DEV void chunk_load(scan_shared<KP> &m, const chunk_call &x, const chunk_place &at,
    const scan_head &h, const float *in)
{
    uint32_t c = x.p.chunk;
    for (uint32_t i = threadIdx.x; i < C_MAX * C_MAX; i += THREADS) {
        uint32_t r = i / C_MAX, j = i % C_MAX;
        bool real = (int32_t)r < at.count && j <= r;
        m.t[r][j] = real ? in[r * c + j] : 0.0f;
        m.p[r][j] = real ? in[c * c + r * c + j] : 0.0f;
    }
    for (uint32_t job = threadIdx.x; job < 2 * KP; job += THREADS) {
        uint32_t k = job % KP;
        bool query = job >= KP, real = k < x.p.shape.k_dim;
        sc_devptr base = query ? x.p.q : x.p.k;
        int64_t stride = query ? x.p.q_stride : x.p.k_stride;
        const float *by = in + 2 * c * c + (query ? 0 : c);
        float d = 1.0f;
        for (int32_t base_i = 0; base_i < C_MAX; base_i += BATCH) {
            float alpha[BATCH], value[BATCH];
            column_load<T>(alpha, value, x, at, h.hv, k, base_i, base, stride, by);
#pragma unroll
            for (int j = 0; j < BATCH; j++) {
                bool in = real && base_i + j < at.count;
                d = in ? d * alpha[j] : d;
                float y = in ? value[j] * d : 0.0f;
                if (query)
                    m.q[base_i + j][k] = y;
                else
                    m.k[base_i + j][k] = y;
            }
        }
        if (!query) m.decay[k] = d;
    }
}

/* k times the decay from its token to the end of the chunk. */
template <int KP, typename T>
SC_DEV void keys_to_end(scan_shared<KP> &m, const chunk_call &x, const chunk_place &at,
    const scan_head &h, const float *by)
{
    for (uint32_t k = threadIdx.x; k < KP; k += THREADS) {
        bool real = k < x.p.shape.k_dim;
        float d = 1.0f;
        for (int32_t base_i = C_MAX - BATCH; base_i >= 0; base_i -= BATCH) {
            float alpha[BATCH], value[BATCH];
            column_load<T>(alpha, value, x, at, h.hv, k, base_i, x.p.k, x.p.k_stride, by);
#pragma unroll
            for (int j = BATCH - 1; j >= 0; j--) {
                bool in = real && base_i + j < at.count;
                m.k[base_i + j][k] = in ? value[j] * d : 0.0f;
                d = in ? d * alpha[j] : d;
            }
        }
    }
}

/* r = v - k S and the part of o that the old state gives: rows 8 w .. 8 w + 8, a column a lane. */
template <int KP, typename T>
SC_DEV void read_state(scan_shared<KP> &m, const chunk_call &x, const chunk_place &at,
    const scan_head &h, float (&o)[8])
{
    uint32_t lane = threadIdx.x % 32, i0 = threadIdx.x / 32 * 8;
    float r[8] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) o[i] = 0.0f;
    for (int k = 0; k < KP; k += 4) {
        float s0 = m.s[k][lane], s1 = m.s[k + 1][lane], s2 = m.s[k + 2][lane];
        float s3 = m.s[k + 3][lane];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float4 a = *(const float4 *)&m.k[i0 + i][k], b = *(const float4 *)&m.q[i0 + i][k];
            r[i] = __fmaf_rn(a.w, s3, __fmaf_rn(a.z, s2, __fmaf_rn(a.y, s1,
                __fmaf_rn(a.x, s0, r[i]))));
            o[i] = __fmaf_rn(b.w, s3, __fmaf_rn(b.z, s2, __fmaf_rn(b.y, s1,
                __fmaf_rn(b.x, s0, o[i]))));
        }
    }
    uint32_t v = h.v0 + lane;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        bool real = (int32_t)(i0 + i) < at.count && v < x.p.shape.v_dim;
        int64_t from = (at.token + i0 + i) * x.p.v_stride + (int64_t)h.hv * x.p.shape.v_dim + v;
        m.r[i0 + i][lane] = real ? dev_widen(((const T *)x.p.v)[from]) - r[i] : 0.0f;
    }
}

/* Adds rows 8 w .. of (lower triangular) `a` times `b`. Where a row ends, terms are left out rather
 * than multiplied by zero: a later token may be NaN. */
SC_DEV void add_lower(float (&sum)[8], const float (*a)[C_MAX + PAD], const float (*b)[COLS + 1])
{
    uint32_t lane = threadIdx.x % 32, i0 = threadIdx.x / 32 * 8;
    for (uint32_t j = 0; j < i0; j += 4) {
        float b0 = b[j][lane], b1 = b[j + 1][lane], b2 = b[j + 2][lane], b3 = b[j + 3][lane];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float4 w = *(const float4 *)&a[i0 + i][j];
            sum[i] = __fmaf_rn(w.w, b3, __fmaf_rn(w.z, b2, __fmaf_rn(w.y, b1,
                __fmaf_rn(w.x, b0, sum[i]))));
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float x = b[i0 + j][lane];
#pragma unroll
        for (int i = j; i < 8; i++) sum[i] = __fmaf_rn(a[i0 + i][i0 + j], x, sum[i]);
    }
}

template <int KP, typename T>
SC_DEV void solve_and_output(scan_shared<KP> &m, const chunk_call &x, const chunk_place &at,
    const scan_head &h, float (&o)[8])
{
    uint32_t lane = threadIdx.x % 32, i0 = threadIdx.x / 32 * 8, v = h.v0 + lane;
    float u[8] = {};
    add_lower(u, m.t, m.r);
#pragma unroll
    for (int i = 0; i < 8; i++) m.u[i0 + i][lane] = u[i];
    __syncthreads();
    add_lower(o, m.p, m.u);
#pragma unroll
    for (int i = 0; i < 8; i++)
        if ((int32_t)(i0 + i) < at.count && v < x.p.shape.v_dim)
            ((T *)x.p.o)[(at.token + i0 + i) * x.p.o_stride + (int64_t)h.hv * x.p.shape.v_dim
                + v] = dev_narrow<T>(o[i]);
}

/* S = S D + k^T u: rows of K 16 at a time, a column a lane. */
template <int KP, typename S> SC_DEV void write_state(scan_shared<KP> &m, int32_t count)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (uint32_t k0 = warp * 16; k0 < KP; k0 += WARPS * 16) {
        float s[16];
#pragma unroll
        for (int k = 0; k < 16; k++) s[k] = m.s[k0 + k][lane] * m.decay[k0 + k];
        for (int32_t i = 0; i < count; i++) {
            float u = m.u[i][lane];
#pragma unroll
            for (int k = 0; k < 16; k += 4) {
                float4 y = *(const float4 *)&m.k[i][k0 + k];
                s[k] = __fmaf_rn(y.x, u, s[k]);
                s[k + 1] = __fmaf_rn(y.y, u, s[k + 1]);
                s[k + 2] = __fmaf_rn(y.z, u, s[k + 2]);
                s[k + 3] = __fmaf_rn(y.w, u, s[k + 3]);
            }
        }
#pragma unroll
        for (int k = 0; k < 16; k++) m.s[k0 + k][lane] = dev_round<S>(s[k]);
    }
}

/* A row without a sequence: its outputs are zeros. */
SC_DEV void zero_outputs(const chunk_call &x, const scan_head &h)
{
    const int32_t *row_start = (const int32_t *)x.p.row_start;
    uint32_t v = h.v0 + threadIdx.x % 32;
    for (int64_t t = row_start[h.row] + threadIdx.x / 32; t < row_start[h.row + 1]; t += WARPS)
        if (v < x.p.shape.v_dim)
            dev_store(x.p.o, x.p.dtype,
                t * x.p.o_stride + (int64_t)h.hv * x.p.shape.v_dim + v, 0.0f);
}

template <int KP, typename T, typename S> __global__ void __launch_bounds__(THREADS)
scan(const __grid_constant__ chunk_call x)
{
    extern __shared__ float4 shared4[];
    scan_shared<KP> &m = *(scan_shared<KP> *)shared4;
    scan_head h = {blockIdx.z, blockIdx.y, blockIdx.x * COLS};
    dev_wait_previous();
    dev_release_next();
    int32_t source = ((const int32_t *)x.p.source)[h.row];
    int32_t dest = ((const int32_t *)x.p.dest)[h.row];
    if (source < 0) {
        zero_outputs(x, h);
        return;
    }
    int32_t first = x.t.first[h.row], chunks = x.t.first[h.row + 1] - first;
    if (chunks == 0 && (dest <= 0 || (dest == source && x.p.initial.base == 0))) return;
    state_load<KP, S>(m, x, h, dev_beginning(x.p.state, x.p.initial, source, h.row));
    for (int32_t n = 0; n < chunks; n++) {
        chunk_place at = place_of(x, (int32_t)h.row, n);
        const float *in = head_scratch(x, first + n, h.hv);
        float o[8];
        chunk_load<KP, T>(m, x, at, h, in);
        __syncthreads();
        read_state<KP, T>(m, x, at, h, o);
        __syncthreads();
        keys_to_end<KP, T>(m, x, at, h, in + 2 * x.p.chunk * x.p.chunk + x.p.chunk);
        solve_and_output<KP, T>(m, x, at, h, o);
        __syncthreads();
        write_state<KP, S>(m, at.count);
        __syncthreads();
        for (int32_t i = x.t.save[first + n]; i >= 0; i = x.t.next[i])
            state_store<KP, S>(m, x, h, ((const int32_t *)x.p.saves.slot)[i]);
    }
    __syncthreads();
    if (dest > 0) state_store<KP, S>(m, x, h, dest);
}

/* ----------------------------------------------------------------------------------- launching */

uint64_t piece(sc_devptr base, uint64_t *used, uint64_t bytes)
{
    uint64_t at = *used;
    *used += (bytes + 63) / 64 * 64;
    return base + at;
}

uint64_t lay_out(const sc_k_delta_params *p, tables *t, uint32_t *chunks_out)
{
    uint64_t c = p->chunk, used = 0, chunks = p->token_count / c + 2ull * p->row_count;
    sc_devptr base = p->scratch;
    t->first = (int32_t *)piece(base, &used, 4 * (p->row_count + 1ull));
    t->row = (int32_t *)piece(base, &used, 4 * chunks);
    t->save = (int32_t *)piece(base, &used, 4 * chunks);
    t->next = (int32_t *)piece(base, &used, 4ull * p->saves.count);
    t->heads = (float *)piece(base, &used, chunks * p->shape.v_heads * scratch_floats(c) * 4);
    *chunks_out = chunks > INT32_MAX ? INT32_MAX : (uint32_t)chunks;
    return used;
}

template <int KP, typename T> sc_status launch(const chunk_call &x, sc_stream *stream)
{
    if (sizeof(T) == 2 && sc_chunk_mma_fits(x)) {
        SC_TRY(sc_cuda_launch("chunk index", index_chunks, dim3(1), INDEX_THREADS, 0, stream, x));
        return sc_chunk_mma(x, stream);
    }
    constexpr unsigned PREPARE = (2 * C_MAX * (KP + PAD) + 3 * C_MAX * (C_MAX + 1)) * 4;
    const sc_k_delta_shape &s = x.p.shape;
    bool wide = x.p.state.dtype == SC_DTYPE_F32;
    auto kernel = wide ? scan<KP, T, float> : scan<KP, T, sc_bf16>;
    SC_TRY(sc_cuda_enter());
    SC_TRY(sc_cuda_check(cudaFuncSetAttribute(prepare<KP, T>,
        cudaFuncAttributeMaxDynamicSharedMemorySize, PREPARE), "prepare"));
    SC_TRY(sc_cuda_check(cudaFuncSetAttribute(kernel,
        cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(scan_shared<KP>)), "scan"));
    SC_TRY(sc_cuda_launch("chunk index", index_chunks, dim3(1), INDEX_THREADS, 0, stream, x));
    SC_TRY(sc_cuda_launch("chunk prepare", prepare<KP, T>, dim3(x.chunks_max, s.v_heads), THREADS,
        PREPARE, stream, x));
    return sc_cuda_launch("chunk scan", kernel,
        dim3((s.v_dim + COLS - 1) / COLS, s.v_heads, x.p.row_count), THREADS,
        sizeof(scan_shared<KP>), stream, x);
}

} // namespace

uint64_t sc_cuda_delta_chunk_scratch(const sc_k_delta_params *params)
{
    tables t;
    uint32_t chunks = 0;
    return lay_out(params, &t, &chunks);
}

sc_status sc_k_delta_chunk_sm90(const void *params, sc_stream *stream)
{
    chunk_call x = {};
    x.p = *(const sc_k_delta_params *)params;
    const sc_k_delta_shape &s = x.p.shape;
    uint64_t qk = (uint64_t)s.heads * s.k_dim, vo = (uint64_t)s.v_heads * s.v_dim;
    if (s.v_heads > 65535 || x.p.row_count > 65535)
        return SC_FAIL(SC_ERR_LIMIT, "%u v heads, %u rows: at most 65535 in one call", s.v_heads,
            x.p.row_count);
    (void)lay_out(&x.p, &x.t, &x.chunks_max);
    x.p.q_stride = sc_kernel_stride(x.p.q_stride, qk);
    x.p.k_stride = sc_kernel_stride(x.p.k_stride, qk);
    x.p.v_stride = sc_kernel_stride(x.p.v_stride, vo);
    x.p.o_stride = sc_kernel_stride(x.p.o_stride, vo);
    x.scale = sc_cuda_delta_scale(&s);
    if (x.p.dtype == SC_DTYPE_F32)
        return s.k_dim <= 128 ? launch<128, float>(x, stream) : launch<256, float>(x, stream);
    return s.k_dim <= 128 ? launch<128, sc_bf16>(x, stream) : launch<256, sc_bf16>(x, stream);
}
