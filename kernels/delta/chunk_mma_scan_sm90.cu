/* SPDX-License-Identifier: Apache-2.0 */
/* Chunk form on the tensor cores, second kernel: a block for each row, v head and 32 columns of V
 * goes from chunk to chunk with the state.
 *
 *   S   warp w has rows 16 w .. + 16 of K as fp32 sums in registers; a copy as hi + lo in shared
 *       memory is the right operand of the next chunk
 *   1   r = v - (k D(.,start)) S        warps 0 to 3, 16 tokens each      -> shared, hi + lo
 *       o = (q D(.,start)) S            warps 4 to 7, stays in registers
 *   2   u = T r                                                           -> shared, hi + lo
 *   3   o += P u                        warps 4 to 7                      -> the tensor
 *       S = S D(last,start) + (k D(last,.))^T u                           -> saves, dest, copy
 *
 * GDN: decays and norms are factors of a token, so q and k stay the bf16 they are, and come by
 * asynchronous copies one chunk ahead, as T and P do. KDA: they are worked out here, a column of K
 * a thread, as hi + lo.
 *
 * A token that is not finite must not reach earlier ones through a factor of 0: r and u that are
 * not finite count as 0 in products; their column is noted, and its outputs from there on and its
 * state become NaN. */
#include "delta/chunk_mma.cuh"

#include "cuda/launch.cuh"

namespace {

enum { COLS = 32, N_STRIDE = COLS + 8, K_TILES = D / 16, SUBS = C / SUB };

struct scan_shared {
    sc_bf16 qk[2][2][C][QK_STRIDE]; /* GDN: [buffer][q, k]; KDA: [hi, lo][q, k] */
    sc_bf16 tp[2][4][C][CC_STRIDE]; /* [buffer][T hi, T lo, P hi, P lo] */
    sc_bf16 s[2][D][N_STRIDE];      /* hi, lo */
    sc_bf16 r[2][C][N_STRIDE], u[2][C][N_STRIDE], u_end[2][C][N_STRIDE];
    float vectors[2][4][C];
    float decay[D];                 /* KDA */
    int32_t bad[2][COLS];           /* [buffer] first token of a column that is not finite */
};

struct scan_at {
    uint32_t row, hv, v0, v_count; /* columns v0 .. v0 + v_count are real */
    bool pairs;                    /* v and o may be accessed two values at a time */
};

/* S in registers: [tile of 8 columns][mma element]. */
typedef float state_sums[COLS / 8][4];

SC_DEV uint32_t lane_g()
{
    return threadIdx.x % 32 / 4;
}

SC_DEV uint32_t lane_t()
{
    return threadIdx.x % 4;
}

/* -------------------------------------------------------------------------------- states, slots */

template <typename S>
SC_DEV void state_load(state_sums &s, const chunk_call &x, const scan_at &h,
    const dev_begin &from)
{
    uint32_t k = threadIdx.x / 32 * 16 + lane_g();
#pragma unroll
    for (int n = 0; n < COLS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            uint32_t v = n * 8 + 2 * lane_t() + e % 2;
            int64_t at = ((int64_t)h.hv * x.p.shape.v_dim + h.v0 + v) * D + k + e / 2 * 8;
            s[n][e] = v < h.v_count ? dev_begin_load<S>(from, at) : 0.0f;
        }
}

template <typename S>
SC_DEV void state_store(const state_sums &s, const chunk_call &x, const scan_at &h, int32_t slot)
{
    uint32_t k = threadIdx.x / 32 * 16 + lane_g();
#pragma unroll
    for (int n = 0; n < COLS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            uint32_t v = n * 8 + 2 * lane_t() + e % 2;
            int64_t at = ((int64_t)h.hv * x.p.shape.v_dim + h.v0 + v) * D + k + e / 2 * 8;
            if (v < h.v_count) ((S *)dev_slot(x.p.state, slot))[at] = dev_narrow<S>(s[n][e]);
        }
}

/* Sums of 16 rows as hi + lo. */
SC_DEV void tile_store(sc_bf16 (*hi)[N_STRIDE], sc_bf16 (*lo)[N_STRIDE], uint32_t row,
    const float (&c)[4], uint32_t n)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t h, l;
        split(h, l, c[2 * half], c[2 * half + 1]);
        *(uint32_t *)&hi[row + lane_g() + 8 * half][n * 8 + 2 * lane_t()] = h;
        *(uint32_t *)&lo[row + lane_g() + 8 * half][n * 8 + 2 * lane_t()] = l;
    }
}

SC_DEV void state_share(scan_shared &m, const state_sums &s)
{
#pragma unroll
    for (int n = 0; n < COLS / 8; n++)
        tile_store(m.s[0], m.s[1], threadIdx.x / 32 * 16, s[n], n);
}

/* ----------------------------------------------------------------------------- what comes ahead */

SC_DEV void copy_16(sc_bf16 *to, const sc_bf16 *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
        :: "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

SC_DEV void copies_done()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

SC_DEV void fetch_qk(scan_shared &m, const chunk_call &x, const scan_at &h, const chunk_place &at,
    uint32_t buffer)
{
    for (uint32_t i = threadIdx.x; i < 2 * C * D / 8; i += THREADS) {
        uint32_t which = i / (C * D / 8), row = i / (D / 8) % C, col = i % (D / 8) * 8;
        sc_devptr base = which == 0 ? x.p.q : x.p.k;
        int64_t stride = which == 0 ? x.p.q_stride : x.p.k_stride;
        const sc_bf16 *from = (const sc_bf16 *)base + (at.token + row) * stride + qk_at(x, h.hv)
            + col;
        sc_bf16 *to = &m.qk[buffer][which][row][col];
        if ((int32_t)row >= at.count)
            *(uint4 *)to = make_uint4(0, 0, 0, 0);
        else if (on_16_bytes(base, stride))
            copy_16(to, from);
        else
            *(uint4 *)to = eight(from, false);
    }
}

template <bool KDA>
SC_DEV void fetch(scan_shared &m, const chunk_call &x, const scan_at &h, const chunk_place &at,
    int32_t chunk, uint32_t buffer)
{
    const float *scratch = head_scratch(x, chunk, h.hv);
    const sc_bf16 *in = (const sc_bf16 *)scratch;
    for (uint32_t i = threadIdx.x; i < 4 * C * C / 8; i += THREADS) {
        uint32_t matrix = i / (C * C / 8), row = i / (C / 8) % C, col = i % (C / 8) * 8;
        if (col / SUB <= row / SUB)
            copy_16(&m.tp[buffer][matrix][row][col], in + matrix * C * C + row * C + col);
    }
    if (threadIdx.x < (KDA ? 2 : 4) * C / 4)
        copy_16((sc_bf16 *)&m.vectors[buffer][0][0] + threadIdx.x * 8,
            (const sc_bf16 *)(scratch + 2 * C * C) + threadIdx.x * 8);
    if constexpr (!KDA) fetch_qk(m, x, h, at, buffer);
}

/* KDA: q and k of a chunk times D(., start), a column a thread. */
SC_DEV void columns_from_start(scan_shared &m, const chunk_call &x, const scan_at &h,
    const chunk_place &at, uint32_t buffer)
{
    uint32_t k = threadIdx.x % D, which = threadIdx.x / D;
    sc_devptr base = which == 0 ? x.p.q : x.p.k;
    int64_t stride = which == 0 ? x.p.q_stride : x.p.k_stride;
    float d = 1.0f;
    for (int32_t first = 0; first < C; first += BATCH) {
        float alpha[BATCH], value[BATCH];
        column_load<sc_bf16>(alpha, value, x, at, h.hv, k, first, base, stride,
            m.vectors[buffer][which]);
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            bool in = first + j < at.count;
            d = in ? d * alpha[j] : d;
            split_one(&m.qk[0][which][first + j][k], &m.qk[1][which][first + j][k],
                in ? value[j] * d : 0.0f);
        }
    }
    if (which == 1) m.decay[k] = d;
}

/* KDA: k times D(last, .) in place of k. The first half of the block. */
SC_DEV void keys_to_end(scan_shared &m, const chunk_call &x, const scan_at &h,
    const chunk_place &at, uint32_t buffer)
{
    uint32_t k = threadIdx.x;
    float d = 1.0f;
    for (int32_t first = C - BATCH; first >= 0; first -= BATCH) {
        float alpha[BATCH], value[BATCH];
        column_load<sc_bf16>(alpha, value, x, at, h.hv, k, first, x.p.k, x.p.k_stride,
            m.vectors[buffer][1]);
#pragma unroll
        for (int j = BATCH - 1; j >= 0; j--) {
            bool in = first + j < at.count;
            split_one(&m.qk[0][1][first + j][k], &m.qk[1][1][first + j][k],
                in ? value[j] * d : 0.0f);
            d = in ? d * alpha[j] : d;
        }
    }
}

/* ------------------------------------------------------------------------------------ the steps */

/* Two values of v or o of a token; beyond the columns 0. */
SC_DEV void values_load(float (&out)[2], const chunk_call &x, const scan_at &h, int64_t token,
    uint32_t v)
{
    const sc_bf16 *from = (const sc_bf16 *)x.p.v + token * x.p.v_stride
        + (int64_t)h.hv * x.p.shape.v_dim + h.v0 + v;
    if (h.pairs && v + 1 < h.v_count) {
        uint32_t w = *(const uint32_t *)from;
        out[0] = dev_low(w), out[1] = dev_high(w);
        return;
    }
    out[0] = v < h.v_count ? dev_widen(from[0]) : 0.0f;
    out[1] = v + 1 < h.v_count ? dev_widen(from[1]) : 0.0f;
}

SC_DEV void values_store(const chunk_call &x, const scan_at &h, int64_t token, uint32_t v,
    float low, float high)
{
    sc_bf16 *to = (sc_bf16 *)x.p.o + token * x.p.o_stride + (int64_t)h.hv * x.p.shape.v_dim + h.v0
        + v;
    if (h.pairs && v + 1 < h.v_count) {
        *(uint32_t *)to = dev_pack(low, high);
        return;
    }
    if (v < h.v_count) to[0] = dev_narrow<sc_bf16>(low);
    if (v + 1 < h.v_count) to[1] = dev_narrow<sc_bf16>(high);
}

/* 16 tokens of q or k times the state. */
template <bool KDA>
SC_DEV void times_state(float (&c)[COLS / 16][2][4], const scan_shared &m, uint32_t which,
    uint32_t token, uint32_t buffer)
{
    uint32_t hi[2][4], lo[2][4], b[2][COLS / 16][2][4]; /* the next 16 of k are under way */
    auto load = [&](uint32_t k) {
        uint32_t n2 = k / 16 % 2;
        left(hi[n2], &m.qk[KDA ? 0 : buffer][which][0][0], QK_STRIDE, token, k);
        if constexpr (KDA) left(lo[n2], &m.qk[1][which][0][0], QK_STRIDE, token, k);
#pragma unroll
        for (int n = 0; n < COLS / 16; n++)
#pragma unroll
            for (int part = 0; part < 2; part++)
                right(b[n2][n][part], &m.s[part][0][0], N_STRIDE, k, n * 16);
    };
    load(0);
#pragma unroll
    for (uint32_t k = 0; k < D; k += 16) {
        uint32_t now = k / 16 % 2;
        if (k + 16 < D) load(k + 16);
#pragma unroll
        for (int n = 0; n < COLS / 16; n++) mma_two(c[n], hi[now], b[now][n][0]);
#pragma unroll
        for (int n = 0; n < COLS / 16; n++) mma_two(c[n], hi[now], b[now][n][1]);
#pragma unroll
        for (int n = 0; n < COLS / 16 && KDA; n++) mma_two(c[n], lo[now], b[now][n][0]);
    }
}

/* Sets what is not finite to 0 and notes its column. */
SC_DEV void clean(float &x, int32_t (&bad)[COLS], uint32_t column, int32_t token)
{
    if (fabsf(x) <= 3.4e38f) return;
    atomicMin(&bad[column], token);
    x = 0.0f;
}

/* Step 1 of warps 0 to 3. */
template <bool KDA>
SC_DEV void read_state(scan_shared &m, const chunk_call &x, const scan_at &h, const chunk_place &at,
    uint32_t buffer)
{
    uint32_t token = threadIdx.x / 32 * SUB;
    float c[COLS / 16][2][4] = {}, v[COLS / 8][2][2] = {};
#pragma unroll
    for (int n = 0; n < COLS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int32_t i = (int32_t)(token + lane_g() + 8 * half);
            if (i < at.count)
                values_load(v[n][half], x, h, at.token + i, n * 8 + 2 * lane_t());
        }
    times_state<KDA>(c, m, 1, token, buffer);
#pragma unroll
    for (int n = 0; n < COLS / 8; n++) {
        float r[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            uint32_t i = token + lane_g() + e / 2 * 8;
            float by = KDA ? 1.0f : m.vectors[buffer][1][i];
            r[e] = (int32_t)i < at.count ? v[n][e / 2][e % 2] - c[n / 2][n % 2][e] * by : 0.0f;
            clean(r[e], m.bad[buffer], n * 8 + 2 * lane_t() + e % 2, (int32_t)i);
        }
        tile_store(m.r[0], m.r[1], token, r, n);
    }
}

/* c += (hi + lo of a lower triangular matrix) times (hi + lo of 64 tokens): 16 rows from `row` on,
 * TILES times 16 columns from `col` on. */
template <int TILES>
SC_DEV void add_lower(float (&c)[TILES][2][4], const sc_bf16 (*a)[C][CC_STRIDE],
    const sc_bf16 (*b)[C][N_STRIDE], uint32_t row, uint32_t col)
{
#pragma unroll 2
    for (uint32_t k = 0; k <= row; k += 16) {
        uint32_t hi[4], lo[4], part[TILES][2][4];
        left(hi, &a[0][0][0], CC_STRIDE, row, k);
#pragma unroll
        for (int n = 0; n < TILES; n++) right(part[n][0], &b[0][0][0], N_STRIDE, k, col + n * 16);
        left(lo, &a[1][0][0], CC_STRIDE, row, k);
#pragma unroll
        for (int n = 0; n < TILES; n++) right(part[n][1], &b[1][0][0], N_STRIDE, k, col + n * 16);
#pragma unroll
        for (int n = 0; n < TILES; n++) mma_two(c[n], hi, part[n][0]);
#pragma unroll
        for (int n = 0; n < TILES; n++) mma_two(c[n], lo, part[n][0]);
#pragma unroll
        for (int n = 0; n < TILES; n++) mma_two(c[n], hi, part[n][1]);
    }
}

/* Step 2, 16 tokens and TILES times 16 columns from n16 on. */
template <bool KDA, int TILES>
SC_DEV void solve(scan_shared &m, uint32_t buffer, uint32_t token, uint32_t n16)
{
    float c[TILES][2][4] = {};
    add_lower<TILES>(c, m.tp[buffer], m.r, token, n16 * 16);
#pragma unroll
    for (int n = 0; n < 2 * TILES; n++) {
        float end[4], (&u)[4] = c[n / 2][n % 2];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            uint32_t i = token + lane_g() + e / 2 * 8;
            clean(u[e], m.bad[buffer], n16 * 16 + n * 8 + 2 * lane_t() + e % 2, (int32_t)i);
            if constexpr (!KDA) end[e] = u[e] * m.vectors[buffer][2][i];
        }
        tile_store(m.u[0], m.u[1], token, u, n16 * 2 + n);
        if constexpr (!KDA) tile_store(m.u_end[0], m.u_end[1], token, end, n16 * 2 + n);
    }
}

/* Step 3 of warps 4 to 7. */
SC_DEV void write_outputs(float (&o)[COLS / 16][2][4], const scan_shared &m, const chunk_call &x,
    const scan_at &h, const chunk_place &at, uint32_t buffer)
{
    uint32_t token = (threadIdx.x / 32 - 4) * SUB;
    add_lower<COLS / 16>(o, m.tp[buffer] + 2, m.u, token, 0);
#pragma unroll
    for (int n = 0; n < COLS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int32_t i = (int32_t)(token + lane_g() + 8 * half);
            uint32_t v = n * 8 + 2 * lane_t();
            float *c = &o[n / 2][n % 2][2 * half];
            if (i >= at.count) continue;
            if (i >= m.bad[buffer][v]) c[0] = nanf("");
            if (i >= m.bad[buffer][v + 1]) c[1] = nanf("");
            values_store(x, h, at.token + i, v, c[0], c[1]);
        }
}

template <bool KDA, typename S>
SC_DEV void write_state(state_sums &s, const scan_shared &m, uint32_t buffer)
{
    uint32_t k = threadIdx.x / 32 * 16;
    float low = KDA ? m.decay[k + lane_g()] : m.vectors[buffer][3][0];
    float high = KDA ? m.decay[k + lane_g() + 8] : low;
    float c[COLS / 16][2][4];
#pragma unroll
    for (int n = 0; n < COLS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[n / 2][n % 2][e] = s[n][e] * (e < 2 ? low : high);
#pragma unroll
    for (uint32_t token = 0; token < C; token += 16) {
        uint32_t hi[4], lo[4], b[COLS / 16][2][4];
        left_t(hi, &m.qk[KDA ? 0 : buffer][1][0][0], QK_STRIDE, k, token);
        if constexpr (KDA) left_t(lo, &m.qk[1][1][0][0], QK_STRIDE, k, token);
#pragma unroll
        for (int n = 0; n < COLS / 16; n++)
#pragma unroll
            for (int part = 0; part < 2; part++)
                right(b[n][part], KDA ? &m.u[part][0][0] : &m.u_end[part][0][0], N_STRIDE, token,
                    n * 16);
#pragma unroll
        for (int n = 0; n < COLS / 16; n++) mma_two(c[n], hi, b[n][0]);
#pragma unroll
        for (int n = 0; n < COLS / 16; n++) mma_two(c[n], hi, b[n][1]);
#pragma unroll
        for (int n = 0; n < COLS / 16 && KDA; n++) mma_two(c[n], lo, b[n][0]);
    }
#pragma unroll
    for (int n = 0; n < COLS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            bool bad = m.bad[buffer][n * 8 + 2 * lane_t() + e % 2] < C;
            s[n][e] = bad ? nanf("") : dev_round<S>(c[n / 2][n % 2][e]);
        }
}

/* One chunk; S in registers and in shared memory before and after. */
template <bool KDA, typename S>
SC_DEV void one_chunk(scan_shared &m, state_sums &s, const chunk_call &x, const scan_at &h,
    const chunk_place &at, uint32_t buffer)
{
    uint32_t warp = threadIdx.x / 32;
    float o[COLS / 16][2][4] = {};
    if constexpr (KDA) {
        columns_from_start(m, x, h, at, buffer);
        __syncthreads();
    }
    if (warp < 4) {
        read_state<KDA>(m, x, h, at, buffer);
    } else {
        times_state<KDA>(o, m, 0, (warp - 4) * SUB, buffer);
#pragma unroll
        for (int n = 0; n < COLS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4 && !KDA; e++)
                o[n / 2][n % 2][e] *=
                    m.vectors[buffer][0][(warp - 4) * SUB + lane_g() + e / 2 * 8];
    }
    __syncthreads();
    if (!KDA) {
        solve<KDA, 1>(m, buffer, warp % 4 * SUB, warp / 4);
    } else if (warp < 4) {
        keys_to_end(m, x, h, at, buffer);
    } else {
        solve<KDA, COLS / 16>(m, buffer, (warp - 4) * SUB, 0);
    }
    __syncthreads();
    if (warp >= 4) write_outputs(o, m, x, h, at, buffer);
    write_state<KDA, S>(s, m, buffer);
    state_share(m, s);
}

/* A row without a sequence: its outputs are zeros. */
SC_DEV void zero_outputs(const chunk_call &x, const scan_at &h)
{
    const int32_t *row_start = (const int32_t *)x.p.row_start;
    for (int64_t t = row_start[h.row] + threadIdx.x / 32; t < row_start[h.row + 1]; t += WARPS)
        if (threadIdx.x % 32 < h.v_count)
            ((sc_bf16 *)x.p.o)[t * x.p.o_stride + (int64_t)h.hv * x.p.shape.v_dim + h.v0
                + threadIdx.x % 32] = dev_narrow<sc_bf16>(0.0f);
}

template <bool KDA, typename S> __global__ void __launch_bounds__(THREADS, 1)
scan(const __grid_constant__ chunk_call x)
{
    extern __shared__ float4 shared4[];
    scan_shared &m = *(scan_shared *)shared4;
    uint32_t v_dim = x.p.shape.v_dim, v0 = blockIdx.x * COLS;
    scan_at h = {blockIdx.z, blockIdx.y, v0, v_dim - v0 < COLS ? v_dim - v0 : COLS,
        (x.p.v | x.p.o) % 4 == 0 && (x.p.v_stride | x.p.o_stride | v_dim) % 2 == 0};
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
    state_sums s;
    state_load<S>(s, x, h, dev_beginning(x.p.state, x.p.initial, source, h.row));
    state_share(m, s);
    if (threadIdx.x < 2 * COLS) m.bad[threadIdx.x / COLS][threadIdx.x % COLS] = C;
    if (chunks > 0) fetch<KDA>(m, x, h, place_of(x, (int32_t)h.row, 0), first, 0);
    for (int32_t n = 0; n < chunks; n++) {
        uint32_t buffer = (uint32_t)n % 2;
        copies_done();
        __syncthreads();
        if (threadIdx.x < COLS) m.bad[buffer ^ 1][threadIdx.x] = C;
        if (n + 1 < chunks)
            fetch<KDA>(m, x, h, place_of(x, (int32_t)h.row, n + 1), first + n + 1, buffer ^ 1);
        one_chunk<KDA, S>(m, s, x, h, place_of(x, (int32_t)h.row, n), buffer);
        for (int32_t i = x.t.save[first + n]; i >= 0; i = x.t.next[i])
            state_store<S>(s, x, h, ((const int32_t *)x.p.saves.slot)[i]);
    }
    if (dest > 0) state_store<S>(s, x, h, dest);
}

} // namespace

bool sc_chunk_mma_fits(const chunk_call &x)
{
    return x.p.dtype == SC_DTYPE_BF16 && x.p.shape.k_dim == D && x.p.chunk == C;
}

sc_status sc_chunk_mma(const chunk_call &x, sc_stream *stream)
{
    const sc_k_delta_shape &s = x.p.shape;
    bool kda = s.kind == SC_K_KIND_KDA, wide = x.p.state.dtype == SC_DTYPE_F32;
    auto kernel = kda ? wide ? scan<true, float> : scan<true, sc_bf16>
                      : wide ? scan<false, float> : scan<false, sc_bf16>;
    SC_TRY(sc_chunk_mma_prepare(x, stream));
    SC_TRY(sc_cuda_check(cudaFuncSetAttribute(kernel,
        cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(scan_shared)), "chunk scan"));
    return sc_cuda_launch("chunk scan", kernel,
        dim3((s.v_dim + COLS - 1) / COLS, s.v_heads, x.p.row_count), THREADS, sizeof(scan_shared),
        stream, x);
}
