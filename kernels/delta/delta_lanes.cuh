/* SPDX-License-Identifier: Apache-2.0 */
/* How a warp holds rows of a state, and one step of the gated delta rule on them: shared by the
 * packed decode and the token-by-token kernel, which must give the same bits.
 *
 *   fp32 state   a row of 128 values is 32 lanes x 4, 16 bytes each
 *   bf16 state   the same lanes, 8 bytes each: 16 would double what a lane keeps of q, k and sums
 *
 * The sums do not wait for norms: with r_k = 1/|k|, r_q = scale/|q| they are taken over q and k as
 * loaded, and scaled afterwards. One decay for the whole head (GDN) is a factor of the sums, too;
 * one for each k (KDA) is applied first, to an fp32 state itself, which stays where it was, or
 * beside a bf16 state to k and q, since it must be unpacked twice (alpha = 1 below):
 *
 *   a = r_k alpha (S k)    c = r_q alpha (S q)    kq = r_k r_q (k . q)
 *   u = beta (v - a)       o = c + u kq
 *   S = S diag(alpha) + (u r_k) k^T
 *
 * The sums over lanes of all rows at once are a transposing reduction: at each step a lane hands
 * over the half of its sums that it will not finish. It adds the same pairs in the same order as a
 * butterfly, so the number of rows in flight does not change a bit. */
#ifndef SC_DELTA_LANES_CUH
#define SC_DELTA_LANES_CUH

#include "cuda/device_math.cuh"

enum { LANES_WIDE = 4 }; /* values of a lane */

/* What a lane loads of a row. */
template <typename S> struct lanes_word;
template <> struct lanes_word<float> { typedef uint4 type; };
template <> struct lanes_word<sc_bf16> { typedef uint2 type; };

/* Is alpha applied to the state before the sums, not to q and k? */
template <typename S> constexpr bool lanes_decay_first = sizeof(S) == 4;

/* Half of N sums go to the lane at distance MASK; `upper` keeps the second half. */
template <int N, int MASK> SC_DEV void lanes_halve(float *x, bool upper)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        float give = upper ? x[i] : x[i + N / 2];
        float keep = upper ? x[i + N / 2] : x[i];
        x[i] = keep + __shfl_xor_sync(0xffffffffu, give, MASK);
    }
}

/* N sums over the warp, N a power of two <= 8: sum (lane / (32 / N)) % N is in x[0] of `lane`
 * afterwards. */
template <int N> SC_DEV void lanes_reduce(float *x)
{
    unsigned lane = threadIdx.x & 31;
    if constexpr (N == 8) {
        lanes_halve<8, 16>(x, (lane & 16) != 0);
        lanes_halve<4, 8>(x, (lane & 8) != 0);
        lanes_halve<2, 4>(x, (lane & 4) != 0);
    } else if constexpr (N == 4) {
        lanes_halve<4, 16>(x, (lane & 16) != 0);
        lanes_halve<2, 8>(x, (lane & 8) != 0);
    } else if constexpr (N == 2) {
        lanes_halve<2, 16>(x, (lane & 16) != 0);
    }
    x[0] = dev_lane_sum<32 / N>(x[0]);
}

/* What the sums of one head are scaled by. */
struct lanes_head {
    float rk, rq, kq;
};

SC_DEV lanes_head lanes_scales(float qq, float kk, float kq, bool norm, float scale)
{
    lanes_head h = {1.0f, scale, 0.0f};
    if (norm) {
        h.rq = dev_rsqrt(qq + 1e-6f) * scale;
        h.rk = dev_rsqrt(kk + 1e-6f);
    }
    h.kq = kq * h.rq * h.rk;
    return h;
}

/* From raw q and k, N values of each in a lane. */
template <int N>
SC_DEV lanes_head lanes_norm(const float (&q)[N], const float (&k)[N], bool norm, float scale)
{
    float qq = 0.0f, kk = 0.0f, kq = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        qq = __fmaf_rn(q[i], q[i], qq);
        kk = __fmaf_rn(k[i], k[i], kk);
        kq = __fmaf_rn(k[i], q[i], kq);
    }
    return lanes_scales(dev_lane_sum<32>(qq), dev_lane_sum<32>(kk), dev_lane_sum<32>(kq), norm,
        scale);
}

/* The write u of one v row from its raw sums, and its output. `alpha` is 1 for KDA. */
SC_DEV float lanes_write(const lanes_head &h, float alpha, float beta, float v, float a, float c,
    float *o_out)
{
    float u = beta * (v - a * (h.rk * alpha));
    *o_out = __fmaf_rn(u, h.kq, c * (h.rq * alpha));
    return u * h.rk;
}

#endif
