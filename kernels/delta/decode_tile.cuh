/* SPDX-License-Identifier: Apache-2.0 */
/* What a warp of a decode does, alone (decode_sm90.cu) and behind the conv in one kernel
 * (step_sm90.cu): its rows of a state in registers, the gates of its head, the update. Both give
 * the same bits, whatever the tile.
 *
 * Loads come apart from what is made of them, all before the first use: behind the wait for the
 * kernel before, a load that waits for another costs 0.3 (L2) to 0.7 us (memory) of every call. */
#ifndef SC_DECODE_TILE_CUH
#define SC_DECODE_TILE_CUH

#include "delta/decode_call.cuh"
#include "delta/delta_lanes.cuh"

namespace {

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

template <typename T> SC_DEV T *output_row(const decode_call &c, const head_at &h)
{
    return (T *)c.o + (int64_t)h.row * c.o_stride + h.hv * c.v_dim;
}

/* The q/k head of a v head; a shift where there can be one. */
SC_DEV uint32_t sharing(uint32_t hv, const decode_call &c)
{
    return c.share_log2 < NOT_A_POWER ? hv >> c.share_log2 : hv / c.share;
}

/* An address that is to be ready before what follows: the compiler would work it out behind the
 * wait for the kernel before, where each instruction of a first block counts. */
template <typename P> SC_DEV void ready(const P *&at)
{
    asm volatile("" : "+l"(at));
    __builtin_assume(__isGlobal(at));
}

/* N values of 4 bytes (`wide`) or bf16 as they lie in memory: 1, or 4 on their own alignment. */
template <int N> SC_DEV uint4 words_load(const char *at, bool wide)
{
    uint4 w = make_uint4(0, 0, 0, 0);
    __builtin_assume(__isGlobal(at));
    if constexpr (N == 4) {
        if (wide) {
            w = *(const uint4 *)at;
        } else {
            uint2 half = *(const uint2 *)at;
            w.x = half.x, w.y = half.y;
        }
    } else {
        w.x = wide ? *(const uint32_t *)at : *(const uint16_t *)at;
    }
    return w;
}

template <int N> SC_DEV void words_widen(float (&x)[N], const uint4 &w, bool wide)
{
    x[0] = wide ? __uint_as_float(w.x) : dev_low(w.x);
    if constexpr (N == 4) {
        x[1] = wide ? __uint_as_float(w.y) : dev_high(w.x);
        x[2] = wide ? __uint_as_float(w.z) : dev_low(w.y);
        x[3] = wide ? __uint_as_float(w.w) : dev_high(w.y);
    }
}

/* What follows from the gates: alpha for each of a lane's k (KDA) or for all (GDN: `one`). */
struct tile_gates {
    float alpha[LANES_WIDE], one, beta;
};

/* The gates of a head: a lane's four k (KDA) or one for all (GDN). */
template <typename T, bool KDA> struct gate_words {
    static constexpr int N = KDA ? LANES_WIDE : 1;
    static constexpr bool WIDE = sizeof(T) == 4;
    uint4 bias, decay, strength;
    float a_log;
    const char *decay_at, *strength_at;

    /* The layer's weights, which may be read before the kernel before has ended, and where the
     * rest is. */
    SC_DEV void prepare(const decode_call &c, const head_at &h)
    {
        uint64_t at = KDA ? h.hv * K + threadIdx.x % 32 * LANES_WIDE : h.hv;
        bias = make_uint4(0, 0, 0, 0), a_log = 0.0f;
        if (c.dt_bias != 0)
            bias = words_load<N>((const char *)c.dt_bias + at * (c.bias_wide ? 4 : 2), c.bias_wide);
        if (c.a_log != 0) a_log = ((const float *)c.a_log)[h.hv];
        decay_at = (const char *)c.decay
            + (h.row * c.decay_stride + at) * (WIDE || c.decay_given ? 4 : 2);
        strength_at = (const char *)c.strength
            + (h.row * c.strength_stride + h.hv) * (WIDE || c.strength_given ? 4 : 2);
        ready(decay_at), ready(strength_at);
    }

    SC_DEV void load(const decode_call &c)
    {
        decay = words_load<N>(decay_at, WIDE || c.decay_given);
        strength = words_load<1>(strength_at, WIDE || c.strength_given);
    }

    SC_DEV void run(tile_gates &g, const decode_call &c)
    {
        float x[N], b[N], beta[1], rate = c.a_log != 0 ? dev_exp(a_log) : 1.0f;
        words_widen<N>(x, decay, WIDE || c.decay_given);
        words_widen<N>(b, bias, c.bias_wide);
        words_widen<1>(beta, strength, WIDE || c.strength_given);
        if (!c.decay_given && c.gate == SC_K_GATE_KDA_BOUNDED) { /* one branch, N chains */
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] = dev_gate(SC_K_GATE_KDA_BOUNDED, x[i], b[i], rate, c.lower_bound);
        } else if (!c.decay_given) {
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] = dev_gate(SC_K_GATE_KDA_SOFTPLUS, x[i], b[i], rate, 0.0f);
        }
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = dev_exp(x[i]);
        g.beta = c.strength_given ? beta[0] : dev_beta(beta[0], c.beta_doubled);
        g.one = x[0];
#pragma unroll
        for (int i = 0; i < LANES_WIDE; i++) g.alpha[i] = x[KDA ? i : 0];
    }
};

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
SC_DEV void load_group(typename lanes_word<S>::type *s, const S *from, bool real, int first)
{
    typedef typename lanes_word<S>::type word;
    __builtin_assume(__isGlobal(from));
#pragma unroll
    for (int j = 0; j < GROUP; j++)
        s[j] = real ? *(const word *)(from + (first + j) * K) : word{};
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
SC_DEV void group_write(typename lanes_word<S>::type *s, const float (&k)[LANES_WIDE],
    const float (&alpha)[LANES_WIDE], float one, float write, const tile_outputs<S> &out, int first)
{
    typedef typename lanes_word<S>::type word;
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        float u = __shfl_sync(0xffffffffu, write, j * (32 / GROUP)), x[LANES_WIDE];
        unpack(x, s[j]);
#pragma unroll
        for (int i = 0; i < LANES_WIDE; i++) {
            if constexpr (!KDA || !lanes_decay_first<S>) x[i] = x[i] * (KDA ? alpha[i] : one);
            x[i] = __fmaf_rn(u, k[i], x[i]);
        }
        pack(s[j], x);
        if (out.writes) *(word *)(out.to + (first + j) * K) = s[j];
    }
    if (!out.saves) return;
#pragma unroll
    for (int j = 0; j < GROUP; j++) *(word *)(out.also + (first + j) * K) = s[j];
}

/* Where a lane finds what it needs of its token: four values of q and k, and v of the first of the
 * rows whose sums it ends up with; as the tensors hold them, in global or shared memory. */
template <typename T> struct tile_inputs {
    const T *q, *k, *v;
};

/* The same from where the head's q and k and the warp's first v are. */
template <class R, typename T> SC_DEV tile_inputs<T> lane_inputs(const T *q, const T *k, const T *v)
{
    uint32_t lane = threadIdx.x % 32;
    return {q + lane * LANES_WIDE, k + lane * LANES_WIDE, v + lane / R::X::SHARE};
}

/* GROUPS times GROUP rows of a warp: how decode and step see them. */
template <typename T, typename S, bool KDA, int GROUP, int GROUPS, int AHEAD> struct tile_rows {
    typedef T tensor;
    typedef S state;
    typedef tile<GROUP, GROUPS> X;
    static constexpr int ROWS = X::ROWS;
    static constexpr bool PER_K = KDA;

    typename lanes_word<S>::type s[AHEAD * GROUP];
    const S *from;
    bool real;
    typename lanes_word<T>::type q_word, k_word;
    T v[GROUPS];

    /* From the first row on, where there is a state; else zeros. */
    SC_DEV void load(const S *first, bool is_real)
    {
        from = first + threadIdx.x % 32 * LANES_WIDE, real = is_real;
        load_group<AHEAD * GROUP>(s, from, real, 0);
    }

    /* This lane's words and values. */
    SC_DEV void inputs(const tile_inputs<T> &x)
    {
        typedef typename lanes_word<T>::type word;
        q_word = *(const word *)x.q;
        k_word = *(const word *)x.k;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) v[g] = x.v[g * GROUP];
    }

    SC_DEV void run(const tile_gates &g, bool l2norm, float scale, tile_outputs<S> out, T *o)
    {
        uint32_t lane = threadIdx.x % 32;
        float q[LANES_WIDE], k[LANES_WIDE], qa[LANES_WIDE], ka[LANES_WIDE];
        unpack(q, q_word), unpack(k, k_word);
        lanes_head norm = lanes_norm<LANES_WIDE>(q, k, l2norm, scale);
#pragma unroll
        for (int i = 0; i < LANES_WIDE; i++) {
            bool scaled = KDA && !lanes_decay_first<S>;
            qa[i] = scaled ? q[i] * g.alpha[i] : q[i];
            ka[i] = scaled ? k[i] * g.alpha[i] : k[i];
        }
        out.to += lane * LANES_WIDE, out.also += lane * LANES_WIDE;
        __builtin_assume(__isGlobal(out.to));
        __builtin_assume(__isGlobal(out.also));
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            typename lanes_word<S>::type *group = s + i % AHEAD * GROUP;
            float a[GROUP], c[GROUP], o_mine;
            group_sums<S, GROUP, KDA>(group, qa, ka, g.alpha, a, c);
            lanes_reduce<GROUP>(a);
            lanes_reduce<GROUP>(c);
            float u = lanes_write(norm, KDA ? 1.0f : g.one, g.beta, dev_widen(v[i]), a[0], c[0],
                &o_mine);
            if (lane % X::SHARE == 0) o[i * GROUP + lane / X::SHARE] = dev_narrow<T>(o_mine);
            group_write<S, GROUP, KDA>(group, k, g.alpha, g.one, u, out, i * GROUP);
            if (i + AHEAD < GROUPS) load_group<GROUP>(group, from, real, (i + AHEAD) * GROUP);
        }
    }
};

} // namespace

#endif
