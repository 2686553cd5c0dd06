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
template <int GROUP, int GROUPS> struct tile {
    static constexpr int ROWS = GROUP * GROUPS;
    static constexpr int SHARE = 32 / GROUP; /* lanes that end up with one row's sums */
};

struct head_at {
    uint32_t row, hv;
};

SC_DEV int32_t index_of(sc_devptr array, uint32_t row)
{
    return array != 0 ? ((const int32_t *)array)[row] : -1;
}

SC_DEV int64_t qkv_stride(const sc_k_decode_packed_params &p)
{
    return p.qkv_stride != 0 ? p.qkv_stride
                             : 2ll * p.shape.heads * K + (int64_t)p.shape.v_heads * p.shape.v_dim;
}

template <typename T> SC_DEV T *output_row(const sc_k_decode_packed_params &p, const head_at &h)
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
SC_DEV void weights_load(gate_weights<N> &w, const sc_k_decode_packed_params &p, const head_at &h,
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
SC_DEV void alphas(float *alpha, const gate_weights<N> &w, const sc_k_decode_packed_params &p,
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

template <typename T> SC_DEV float beta_of(const sc_k_decode_packed_params &p, const head_at &h)
{
    int64_t heads = p.shape.v_heads;
    if (p.beta != 0) return ((const float *)p.beta)[h.row * heads + h.hv];
    int64_t at = h.row * (p.b_stride != 0 ? p.b_stride : heads) + h.hv;
    return dev_beta(dev_widen(((const T *)p.b)[at]), p.weights.beta_doubled);
}

/* A lane's word of a row as fp32, and back. */
SC_DEV void unpack(float (&x)[LANES_WIDE], const uint4 &w)
{
    x[0] = __uint_as_float(w.x), x[1] = __uint_as_float(w.y);
    x[2] = __uint_as_float(w.z), x[3] = __uint_as_float(w.w);
}

SC_DEV void unpack(float (&x)[LANES_WIDE], const uint2 &w)
{
    x[0] = dev_low(w.x), x[1] = dev_high(w.x), x[2] = dev_low(w.y), x[3] = dev_high(w.y);
}

SC_DEV void pack(uint4 &w, const float (&x)[LANES_WIDE])
{
    w = make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
        __float_as_uint(x[3]));
}

SC_DEV void pack(uint2 &w, const float (&x)[LANES_WIDE])
{
    w = make_uint2(dev_pack(x[0], x[1]), dev_pack(x[2], x[3]));
}

/* Makes the compiler unpack again instead of keeping fp32 values of all loads in registers. */
SC_DEV void forget(uint4 &w)
{
    asm volatile("" : "+r"(w.x), "+r"(w.y), "+r"(w.z), "+r"(w.w));
}

SC_DEV void forget(uint2 &w)
{
    asm volatile("" : "+r"(w.x), "+r"(w.y));
}

/* Rows first .. first + GROUP of a warp; zeros without a state. */
template <int GROUP, typename S>
SC_DEV void load_group(typename lanes_word<S>::type *s, const S *from, int first)
{
    typedef typename lanes_word<S>::type word;
#pragma unroll
    for (int j = 0; j < GROUP; j++)
        s[j] = from != nullptr ? *(const word *)(from + (first + j) * K) : word{};
}

template <typename S, int GROUP, bool KDA>
SC_DEV void group_sums(typename lanes_word<S>::type *s, const float (&q)[LANES_WIDE],
    const float (&k)[LANES_WIDE], const float (&alpha)[LANES_WIDE], float (&a)[GROUP],
    float (&c)[GROUP])
{
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        float x[LANES_WIDE];
        unpack(x, s[j]);
        a[j] = 0.0f, c[j] = 0.0f;
#pragma unroll
        for (int i = 0; i < LANES_WIDE; i++) {
            if constexpr (KDA && lanes_decay_first<S>) x[i] = x[i] * alpha[i];
            a[j] = __fmaf_rn(x[i], k[i], a[j]);
            c[j] = __fmaf_rn(x[i], q[i], c[j]);
        }
        if constexpr (KDA && lanes_decay_first<S>) pack(s[j], x);
        forget(s[j]);
    }
}

template <typename S, int GROUP, bool KDA>
SC_DEV void group_write(const typename lanes_word<S>::type *s, const float (&k)[LANES_WIDE],
    const float (&alpha)[LANES_WIDE], float one, float write, S *to, S *also)
{
    typedef typename lanes_word<S>::type word;
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        float u = __shfl_sync(0xffffffffu, write, j * (32 / GROUP)), x[LANES_WIDE];
        word packed;
        unpack(x, s[j]);
#pragma unroll
        for (int i = 0; i < LANES_WIDE; i++) {
            if constexpr (!KDA || !lanes_decay_first<S>) x[i] = x[i] * (KDA ? alpha[i] : one);
            x[i] = __fmaf_rn(u, k[i], x[i]);
        }
        pack(packed, x);
        if (to != nullptr) *(word *)(to + j * K) = packed;
        if (also != nullptr) *(word *)(also + j * K) = packed;
    }
}

/* What a warp's rows need of their token: q, k (the head's) and v (the first row's) as the tensors
 * hold them, in global or shared memory. */
template <typename T> struct tile_inputs {
    const T *q, *k, *v;
};

/* What follows from the gates: alpha for each of a lane's k (KDA) or for all (GDN: `one`). */
struct tile_gates {
    float alpha[LANES_WIDE], one, beta;
};

/* GROUPS times GROUP rows of a warp: how decode and step see them. */
template <typename T, typename S, bool KDA, int GROUP, int GROUPS, int AHEAD> struct tile_rows {
    typedef T tensor;
    typedef S state;
    typedef tile<GROUP, GROUPS> X;
    static constexpr int ROWS = X::ROWS;
    static constexpr bool PER_K = KDA;

    typename lanes_word<S>::type s[AHEAD * GROUP];
    const S *from;
    float q[LANES_WIDE], k[LANES_WIDE], v[GROUPS];

    /* From the first row on, NULL: zeros. */
    SC_DEV void load(const S *first)
    {
        from = first != nullptr ? first + threadIdx.x % 32 * LANES_WIDE : nullptr;
        load_group<AHEAD * GROUP>(s, from, 0);
    }

    SC_DEV void inputs(const tile_inputs<T> &x)
    {
        uint32_t lane = threadIdx.x % 32;
        dev_load_vec<LANES_WIDE>(q, x.q + lane * LANES_WIDE);
        dev_load_vec<LANES_WIDE>(k, x.k + lane * LANES_WIDE);
#pragma unroll
        for (int g = 0; g < GROUPS; g++) v[g] = dev_widen(x.v[g * GROUP + lane / X::SHARE]);
    }

    SC_DEV void run(const tile_gates &g, bool l2norm, float scale, S *to, S *also, T *o)
    {
        lanes_head norm = lanes_norm<LANES_WIDE>(q, k, l2norm, scale);
        uint32_t lane = threadIdx.x % 32;
        float qa[LANES_WIDE], ka[LANES_WIDE];
#pragma unroll
        for (int i = 0; i < LANES_WIDE; i++) {
            bool scaled = KDA && !lanes_decay_first<S>;
            qa[i] = scaled ? q[i] * g.alpha[i] : q[i];
            ka[i] = scaled ? k[i] * g.alpha[i] : k[i];
        }
        if (to != nullptr) to += lane * LANES_WIDE;
        if (also != nullptr) also += lane * LANES_WIDE;
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            typename lanes_word<S>::type *group = s + i % AHEAD * GROUP;
            float a[GROUP], c[GROUP], out;
            group_sums<S, GROUP, KDA>(group, qa, ka, g.alpha, a, c);
            lanes_reduce<GROUP>(a);
            lanes_reduce<GROUP>(c);
            float u = lanes_write(norm, KDA ? 1.0f : g.one, g.beta, v[i], a[0], c[0], &out);
            if (lane % X::SHARE == 0) o[i * GROUP + lane / X::SHARE] = dev_narrow<T>(out);
            group_write<S, GROUP, KDA>(group, k, g.alpha, g.one, u,
                to != nullptr ? to + i * GROUP * K : nullptr,
                also != nullptr ? also + i * GROUP * K : nullptr);
            if (i + AHEAD < GROUPS) load_group<GROUP>(group, from, (i + AHEAD) * GROUP);
        }
    }
};

} // namespace

#endif
