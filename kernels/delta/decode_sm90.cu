/* SPDX-License-Identifier: Apache-2.0 */
/* Packed decode of GDN and KDA for heads of 128: as fast as memory reads and writes the states.
 *
 *   grid   x: blocks of rows of V      y: v heads      z: rows of the batch
 *   warp   holds 4 to 8 KB of one state in registers; all its first loads are under way before the
 *          first sum, and each later group is asked for as soon as one has been stored
 *
 * Warps share nothing, so a block that is done makes room at once. For fp32 one-warp blocks of
 * 4 KB, 32 of them on a multiprocessor, measured best; a bf16 state has half the bytes for the same
 * q, k and gates, which are worked out once a warp, so its warps hold 32 rows. What is to be
 * avoided are spills: each byte of them showed.
 *
 * Bytes for a row and head: 2 x 128 x 128 x (4 or 2), plus about 1 KB of inputs. */
#include "delta/delta_lanes.cuh"

#include "cuda/launch.cuh"
#include "delta/delta_cuda.h"

namespace {

enum { K = 128 };

/* Loads of a warp: GROUP at a time are summed; AHEAD groups are under way before the first is, and
 * each later one is asked for as soon as there are registers for it. */
template <typename S, int GROUP, int GROUPS> struct tile {
    static constexpr int WIDE = lanes<S>::WIDE, PER_ROW = lanes<S>::PER_ROW;
    static constexpr int ROWS = GROUP * GROUPS * lanes<S>::ROWS;
    static constexpr int SHARE = PER_ROW / GROUP; /* lanes that end up with one row's sums */
};

struct head_at {
    uint32_t row, hv;
};

SC_DEV int32_t index_of(sc_devptr array, uint32_t row)
{
    return array != 0 ? ((const int32_t *)array)[row] : -1;
}

SC_DEV int64_t qkv_stride(const sc_k_delta_decode_params &p)
{
    return p.qkv_stride != 0 ? p.qkv_stride
                             : 2ll * p.shape.heads * K + (int64_t)p.shape.v_heads * p.shape.v_dim;
}

template <typename T> SC_DEV T *output_row(const sc_k_delta_decode_params &p, const head_at &h)
{
    int64_t vo = (int64_t)p.shape.v_heads * p.shape.v_dim;
    return (T *)p.o + (int64_t)h.row * (p.o_stride != 0 ? p.o_stride : vo)
        + (int64_t)h.hv * p.shape.v_dim;
}

/* The q/k head of a v head; a shift where there can be one (NOT_A_POWER: a division). */
enum { NOT_A_POWER = 32 };
SC_DEV uint32_t sharing(uint32_t hv, const sc_k_delta_shape &s, uint32_t share_log2)
{
    return share_log2 < NOT_A_POWER ? hv >> share_log2 : hv / (s.v_heads / s.heads);
}

/* What the gates need of the layer's weights: may be read before the kernel before has ended. */
template <int N> struct gate_weights {
    float rate, bias[N];
};

/* N values of a lane from k0 on (KDA), or the one of the head (GDN: N = 1, k0 = 0). */
template <int N, bool KDA>
SC_DEV void weights_load(gate_weights<N> &w, const sc_k_delta_decode_params &p, const head_at &h,
    uint32_t k0)
{
    int64_t at = KDA ? (int64_t)h.hv * K + k0 : h.hv;
    if (p.g != 0) return;
    w.rate = dev_rate(p.weights.a_log, h.hv);
#pragma unroll
    for (int i = 0; i < N; i++)
        w.bias[i] = p.weights.dt_bias != 0
            ? dev_load(p.weights.dt_bias, p.weights.dt_bias_dtype, at + i) : 0.0f;
}

template <typename T, int N, bool KDA>
SC_DEV void alphas(float *alpha, const gate_weights<N> &w, const sc_k_delta_decode_params &p,
    const head_at &h, uint32_t k0)
{
    int64_t n = KDA ? K : 1, heads = p.shape.v_heads, at = h.hv * n + k0;
    if (p.g != 0) {
        const float *g = (const float *)p.g + h.row * heads * n + at;
#pragma unroll
        for (int i = 0; i < N; i++) alpha[i] = dev_exp(g[i]);
        return;
    }
    const T *a = (const T *)p.a + h.row * (p.a_stride != 0 ? p.a_stride : heads * n) + at;
#pragma unroll
    for (int i = 0; i < N; i++)
        alpha[i] = dev_exp(dev_gate(p.weights.gate, dev_widen(a[i]), w.bias[i], w.rate,
            p.weights.lower_bound));
}

template <typename T> SC_DEV float beta_of(const sc_k_delta_decode_params &p, const head_at &h)
{
    int64_t heads = p.shape.v_heads;
    if (p.beta != 0) return ((const float *)p.beta)[h.row * heads + h.hv];
    int64_t at = h.row * (p.b_stride != 0 ? p.b_stride : heads) + h.hv;
    return dev_beta(dev_widen(((const T *)p.b)[at]), p.weights.beta_doubled);
}

/* 16 bytes of a state as fp32. */
SC_DEV void unpack(float (&x)[4], const uint4 &w)
{
    x[0] = __uint_as_float(w.x), x[1] = __uint_as_float(w.y);
    x[2] = __uint_as_float(w.z), x[3] = __uint_as_float(w.w);
}

SC_DEV void unpack(float (&x)[8], const uint4 &w)
{
    x[0] = dev_low(w.x), x[1] = dev_high(w.x), x[2] = dev_low(w.y), x[3] = dev_high(w.y);
    x[4] = dev_low(w.z), x[5] = dev_high(w.z), x[6] = dev_low(w.w), x[7] = dev_high(w.w);
}

/* Makes the compiler unpack again instead of keeping fp32 values of all loads in registers. */
SC_DEV void forget(uint4 &w)
{
    asm volatile("" : "+r"(w.x), "+r"(w.y), "+r"(w.z), "+r"(w.w));
}

SC_DEV uint4 pack(const float (&x)[4])
{
    return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
        __float_as_uint(x[3]));
}

SC_DEV uint4 pack(const float (&x)[8])
{
    return make_uint4(dev_pack(x[0], x[1]), dev_pack(x[2], x[3]), dev_pack(x[4], x[5]),
        dev_pack(x[6], x[7]));
}

/* alpha of a lane's k values. With 16 lanes a row the two halves of the warp share the work. */
template <typename T, typename S>
SC_DEV void alphas_kda(float (&alpha)[lanes<S>::WIDE], const gate_weights<4> &w,
    const sc_k_delta_decode_params &p, const head_at &h)
{
    if constexpr (lanes<S>::WIDE == 4) {
        alphas<T, 4, true>(alpha, w, p, h, threadIdx.x % 32 * 4);
    } else {
        float mine[4];
        bool upper = threadIdx.x % 32 >= 16;
        alphas<T, 4, true>(mine, w, p, h, threadIdx.x % 16 * 8 + (upper ? 4 : 0));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float other = __shfl_xor_sync(0xffffffffu, mine[i], 16);
            alpha[i] = upper ? other : mine[i];
            alpha[i + 4] = upper ? mine[i] : other;
        }
    }
}

/* Loads first .. first + GROUP of a warp; zeros without a state. */
template <int GROUP, int WIDE, typename S>
SC_DEV void load_group(uint4 *s, const S *from, int first)
{
#pragma unroll
    for (int j = 0; j < GROUP; j++)
        s[j] = from != nullptr ? *(const uint4 *)(from + (first + j) * 32 * WIDE)
                               : make_uint4(0, 0, 0, 0);
}

/* Does the decayed state fit where the loaded one was? */
template <int WIDE, bool KDA> constexpr bool keeps_decayed = KDA && WIDE == 4;

template <int GROUP, int WIDE, bool KDA>
SC_DEV void group_sums(uint4 *s, const float (&q)[WIDE], const float (&k)[WIDE],
    const float (&alpha)[WIDE], float (&a)[GROUP], float (&c)[GROUP])
{
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        float x[WIDE];
        unpack(x, s[j]);
        a[j] = 0.0f, c[j] = 0.0f;
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            if constexpr (KDA) x[i] = x[i] * alpha[i];
            a[j] = __fmaf_rn(x[i], k[i], a[j]);
            c[j] = __fmaf_rn(x[i], q[i], c[j]);
        }
        if constexpr (keeps_decayed<WIDE, KDA>) s[j] = pack(x);
        forget(s[j]);
    }
}

template <int GROUP, int WIDE, bool KDA, int SHARE, typename S>
SC_DEV void group_write(const uint4 *s, const float (&k)[WIDE], const float (&alpha)[WIDE],
    float one, float write, uint32_t lane, S *to, S *also)
{
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        float u = __shfl_sync(0xffffffffu, write, lane + j * SHARE), x[WIDE];
        unpack(x, s[j]);
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            if constexpr (!keeps_decayed<WIDE, KDA>) x[i] = x[i] * (KDA ? alpha[i] : one);
            x[i] = __fmaf_rn(u, k[i], x[i]);
        }
        uint4 packed = pack(x);
        if (to != nullptr) *(uint4 *)(to + j * 32 * WIDE) = packed;
        if (also != nullptr) *(uint4 *)(also + j * 32 * WIDE) = packed;
    }
}

template <typename T, typename S, bool KDA, int GROUP, int GROUPS, int AHEAD, int WARPS,
    int BLOCKS>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS)
decode(const __grid_constant__ sc_k_delta_decode_params p, float scale, uint32_t share_log2)
{
    typedef tile<S, GROUP, GROUPS> X;
    constexpr int WIDE = X::WIDE;
    uint32_t lane = threadIdx.x % 32, in_row = lane % X::PER_ROW, sub = lane / X::PER_ROW;
    uint32_t v0 = (blockIdx.x * WARPS + threadIdx.x / 32) * X::ROWS;
    head_at h = {blockIdx.z, blockIdx.y};
    if (!p.state_settled) dev_wait_previous();
    int32_t source = index_of(p.source, h.row);
    int32_t dest = index_of(p.dest, h.row), save = index_of(p.save, h.row);
    int64_t at = ((int64_t)h.hv * p.shape.v_dim + v0) * K + lane * WIDE;
    const S *from = source > 0 ? (const S *)dev_slot(p.state, source) + at : nullptr;
    uint4 s[AHEAD * GROUP];
    load_group<AHEAD * GROUP, WIDE>(s, from, 0);
    gate_weights<KDA ? 4 : 1> w;
    weights_load<KDA ? 4 : 1, KDA>(w, p, h,
        KDA ? in_row * WIDE + (WIDE == 8 && sub != 0 ? 4 : 0) : 0);
    if (p.state_settled) dev_wait_previous();
    dev_release_next();
    T *o = output_row<T>(p, h) + v0;
    if (source < 0) {
        for (uint32_t r = lane; r < X::ROWS; r += 32) o[r] = dev_narrow<T>(0.0f);
        return;
    }
    const sc_k_delta_shape &shape = p.shape;
    const T *in = (const T *)p.qkv + (int64_t)h.row * qkv_stride(p);
    const T *q_in = in + (int64_t)sharing(h.hv, shape, share_log2) * K + in_row * WIDE;
    const T *v_in = in + 2ll * shape.heads * K + (int64_t)h.hv * shape.v_dim + v0;
    float q[WIDE], k[WIDE], alpha[WIDE], v[GROUPS], one = 1.0f;
    dev_load_vec<WIDE>(q, q_in);
    dev_load_vec<WIDE>(k, q_in + (int64_t)shape.heads * K);
    uint32_t mine = in_row / X::SHARE * lanes<S>::ROWS + sub; /* row whose sums end up here */
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        v[g] = dev_widen(v_in[g * GROUP * lanes<S>::ROWS + mine]);
    float beta = beta_of<T>(p, h);
    if constexpr (KDA) {
        alphas_kda<T, S>(alpha, w, p, h);
    } else {
        alphas<T, 1, false>(&one, w, p, h, 0);
    }
    lanes_head norm = lanes_norm<X::PER_ROW, WIDE>(q, k, shape.qk_l2norm, scale);
    S *to = dest > 0 ? (S *)dev_slot(p.state, dest) + at : nullptr;
    S *also = save > 0 ? (S *)dev_slot(p.state, save) + at : nullptr;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        uint4 *group = s + g % AHEAD * GROUP;
        float a[GROUP], c[GROUP], out;
        group_sums<GROUP, WIDE, KDA>(group, q, k, alpha, a, c);
        lanes_reduce<X::PER_ROW, GROUP>(a);
        lanes_reduce<X::PER_ROW, GROUP>(c);
        float write = lanes_write(norm, KDA ? 1.0f : one, beta, v[g], a[0], c[0], &out);
        if (in_row % X::SHARE == 0) o[g * GROUP * lanes<S>::ROWS + mine] = dev_narrow<T>(out);
        group_write<GROUP, WIDE, KDA, X::SHARE>(group, k, alpha, one, write, sub * X::PER_ROW,
            to != nullptr ? to + g * GROUP * 32 * WIDE : nullptr,
            also != nullptr ? also + g * GROUP * 32 * WIDE : nullptr);
        if (g + AHEAD < GROUPS) load_group<GROUP, WIDE>(group, from, (g + AHEAD) * GROUP);
    }
}

template <typename T, typename S, bool KDA, int GROUP, int GROUPS, int AHEAD, int WARPS,
    int BLOCKS>
sc_status launch_tile(const sc_k_delta_decode_params &p, uint32_t rows, sc_stream *stream)
{
    const sc_k_delta_shape &s = p.shape;
    uint32_t share = s.v_heads / s.heads, log2 = 0;
    while (1u << log2 < share) log2++;
    if (1u << log2 != share) log2 = NOT_A_POWER;
    dim3 grid(s.v_dim / (tile<S, GROUP, GROUPS>::ROWS * WARPS), s.v_heads, rows);
    return sc_cuda_launch("decode", decode<T, S, KDA, GROUP, GROUPS, AHEAD, WARPS, BLOCKS>, grid,
        WARPS * 32, 0, stream, p, sc_cuda_delta_scale(&s), log2);
}

/* Which tile serves a batch of so many (row, v head) pairs, as measured on an H200. No choice
 * changes a bit, so choosing by batch is exact. Few heads want many small warps; many heads want
 * long ones, since q, k and gates are worked out once a warp. */
template <bool KDA>
sc_status launch_bf16(const sc_k_delta_decode_params &p, uint32_t rows, sc_stream *stream)
{
    uint64_t heads = (uint64_t)rows * p.shape.v_heads;
    if (p.state.dtype == SC_DTYPE_BF16)
        return heads >= 256 ? launch_tile<sc_bf16, sc_bf16, KDA, 4, 4, 3, 1, 16>(p, rows, stream)
                            : launch_tile<sc_bf16, sc_bf16, KDA, 4, 1, 1, 4, 8>(p, rows, stream);
    if (heads >= 1024)
        return launch_tile<sc_bf16, float, KDA, 8, 1, 1, 1, KDA ? 28 : 32>(p, rows, stream);
    if (heads >= 256)
        return KDA ? launch_tile<sc_bf16, float, KDA, 4, 4, 3, 1, 16>(p, rows, stream)
                   : launch_tile<sc_bf16, float, KDA, 4, 8, 4, 1, 12>(p, rows, stream);
    return heads >= 64 ? launch_tile<sc_bf16, float, KDA, 4, 4, 4, 1, 12>(p, rows, stream)
                       : launch_tile<sc_bf16, float, KDA, 4, 1, 1, 4, 8>(p, rows, stream);
}

/* fp32 tensors: for tests and small models. */
template <bool KDA>
sc_status launch_f32(const sc_k_delta_decode_params &p, uint32_t rows, sc_stream *stream)
{
    return p.state.dtype == SC_DTYPE_F32
        ? launch_tile<float, float, KDA, 8, 1, 1, 1, 28>(p, rows, stream)
        : launch_tile<float, sc_bf16, KDA, 4, 4, 3, 1, 16>(p, rows, stream);
}

/* Heads of 128 whose vectors lie on 16 bytes, V a multiple of 64; everything else takes the general
 * kernel. */
bool fits(const sc_k_delta_decode_params &p)
{
    const sc_k_delta_shape &s = p.shape;
    uint64_t elem = p.dtype == SC_DTYPE_F32 ? 4 : 2;
    return s.k_dim == K && s.v_dim % 64 == 0 && s.v_heads <= 65535
        && (p.qkv | p.state.base | (uint64_t)p.state.slot_stride) % 16 == 0
        && (uint64_t)p.qkv_stride * elem % 16 == 0;
}

} // namespace

sc_status sc_k_delta_decode_sm90(const void *params, sc_stream *stream)
{
    sc_k_delta_decode_params p = *(const sc_k_delta_decode_params *)params;
    if (!fits(p)) return sc_cuda_delta_walk_decode(&p, stream);
    bool kda = p.shape.kind == SC_K_KIND_KDA, wide = p.dtype == SC_DTYPE_F32;
    uint64_t elem = wide ? 4 : 2, vo = (uint64_t)p.shape.v_heads * p.shape.v_dim;
    uint64_t n = (uint64_t)p.shape.v_heads * (kda ? K : 1), left = p.row_count;
    uint64_t qkv = 2ull * p.shape.heads * K + vo;
    for (;;) { /* 65,535 rows a launch */
        uint32_t rows = left < 65535 ? (uint32_t)left : 65535;
        sc_status status = kda ? wide ? launch_f32<true>(p, rows, stream)
                                      : launch_bf16<true>(p, rows, stream)
            : wide ? launch_f32<false>(p, rows, stream)
                   : launch_bf16<false>(p, rows, stream);
        left -= rows;
        if (status != SC_OK || left == 0) return status;
        p.qkv += rows * elem * (p.qkv_stride != 0 ? (uint64_t)p.qkv_stride : qkv);
        p.o += rows * elem * (p.o_stride != 0 ? (uint64_t)p.o_stride : vo);
        if (p.g != 0) p.g += rows * n * 4;
        if (p.beta != 0) p.beta += 4ull * rows * p.shape.v_heads;
        p.a += rows * elem * (p.a_stride != 0 ? (uint64_t)p.a_stride : n);
        p.b += rows * elem * (p.b_stride != 0 ? (uint64_t)p.b_stride : p.shape.v_heads);
        p.source += 4ull * rows, p.dest += 4ull * rows;
        if (p.save != 0) p.save += 4ull * rows;
    }
}
