/* SPDX-License-Identifier: Apache-2.0 */
/* What a warp of the packed decode does, alone (decode_sm90.cu) and behind the conv in one kernel
 * (step_sm90.cu): its rows of a state in registers, the gates of its head, the update. Both give
 * the same bits, whatever the tile. */
#ifndef SC_DECODE_TILE_CUH
#define SC_DECODE_TILE_CUH

#include "delta/delta_lanes.cuh"

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

/* The row of a group whose sums end up in this lane. */
template <typename S, int GROUP, int GROUPS> SC_DEV uint32_t tile_row()
{
    typedef tile<S, GROUP, GROUPS> X;
    uint32_t lane = threadIdx.x % 32;
    return lane % X::PER_ROW / X::SHARE * lanes<S>::ROWS + lane / X::PER_ROW;
}

/* The rows of a warp: s holds its first AHEAD groups, the others are loaded as room is made. */
template <typename T, typename S, bool KDA, int GROUP, int GROUPS, int AHEAD>
SC_DEV void tile_run(uint4 (&s)[AHEAD * GROUP], const S *from, S *to, S *also,
    const float (&q)[lanes<S>::WIDE], const float (&k)[lanes<S>::WIDE],
    const float (&alpha)[lanes<S>::WIDE], float one, const lanes_head &norm, float beta,
    const float (&v)[GROUPS], T *o)
{
    typedef tile<S, GROUP, GROUPS> X;
    constexpr int WIDE = X::WIDE;
    uint32_t lane = threadIdx.x % 32, in_row = lane % X::PER_ROW, sub = lane / X::PER_ROW;
    uint32_t mine = tile_row<S, GROUP, GROUPS>();
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

} // namespace

#endif
