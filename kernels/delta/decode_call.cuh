/* SPDX-License-Identifier: Apache-2.0 */
/* A decode as its kernels read it: q, k and v in places of their own, every stride resolved, so
 * that packed and unpacked calls are one and a kernel works out no more than where its rows lie. */
#ifndef SC_DECODE_CALL_CUH
#define SC_DECODE_CALL_CUH

#include "cuda/device_math.cuh"
#include "delta/delta_cuda.h"

namespace {

enum { K = 128, NOT_A_POWER = 32 };

struct decode_call {
    sc_devptr q, k, v, o;
    sc_devptr decay, strength; /* a and b, or g and beta where they are given (fp32) */
    int64_t q_stride, k_stride, v_stride, o_stride, decay_stride, strength_stride;
    sc_devptr a_log, dt_bias, source, dest, save;
    sc_k_slots state;
    uint32_t heads, v_heads, v_dim, rows;
    uint32_t share, share_log2; /* v heads of a q/k head; NOT_A_POWER: there is no shift for it */
    float scale, lower_bound;
    sc_k_gate gate;
    bool decay_given, strength_given, bias_wide, beta_doubled, l2norm, settled;
};

/* Where a warp's rows go: `writes` to the one, `saves` to the other. */
template <typename S> struct tile_outputs {
    S *to, *also;
    bool writes, saves;
};

inline decode_call decode_call_of(const sc_k_decode_params &p, bool settled)
{
    const sc_k_delta_shape &s = p.shape;
    uint64_t qk = (uint64_t)s.heads * K, vo = (uint64_t)s.v_heads * s.v_dim;
    uint64_t n = (uint64_t)s.v_heads * (s.kind == SC_K_KIND_KDA ? K : 1);
    decode_call c = {};
    c.q = p.q, c.k = p.k, c.v = p.v, c.o = p.o;
    c.q_stride = sc_kernel_stride(p.q_stride, qk), c.k_stride = sc_kernel_stride(p.k_stride, qk);
    c.v_stride = sc_kernel_stride(p.v_stride, vo), c.o_stride = sc_kernel_stride(p.o_stride, vo);
    c.decay_given = p.g != 0, c.strength_given = p.beta != 0;
    c.decay = p.g != 0 ? p.g : p.a, c.strength = p.beta != 0 ? p.beta : p.b;
    c.decay_stride = sc_kernel_stride(p.g != 0 ? 0 : p.a_stride, n);
    c.strength_stride = sc_kernel_stride(p.beta != 0 ? 0 : p.b_stride, s.v_heads);
    if (p.g == 0) {
        c.a_log = p.weights.a_log, c.dt_bias = p.weights.dt_bias, c.gate = p.weights.gate;
        c.lower_bound = p.weights.lower_bound;
        c.bias_wide = p.weights.dt_bias_dtype == SC_DTYPE_F32;
    }
    c.beta_doubled = p.beta == 0 && p.weights.beta_doubled;
    c.source = p.source, c.dest = p.dest, c.save = p.save, c.state = p.state;
    c.heads = s.heads, c.v_heads = s.v_heads, c.v_dim = s.v_dim, c.rows = p.row_count;
    c.share = s.v_heads / s.heads;
    while (1u << c.share_log2 < c.share) c.share_log2++;
    if (1u << c.share_log2 != c.share) c.share_log2 = NOT_A_POWER;
    c.scale = sc_cuda_delta_scale(&s), c.l2norm = s.qk_l2norm, c.settled = settled;
    return c;
}

/* Do the vectors that a lane loads lie on their own alignment? `T` and `S` bytes of an element of
 * tensors and state. */
inline bool decode_call_aligned(const decode_call &c, bool kda, uint64_t tensor_bytes)
{
    uint64_t word = 4 * tensor_bytes, decay = c.decay_given ? 16 : word;
    uint64_t bias = c.bias_wide ? 16 : 8, all = c.q | c.k;
    all |= (uint64_t)(c.q_stride | c.k_stride) * tensor_bytes;
    if (all % word != 0 || (c.state.base | (uint64_t)c.state.slot_stride) % 16 != 0) return false;
    if (!kda) return true;
    uint64_t decay_step = (uint64_t)c.decay_stride * (c.decay_given ? 4 : tensor_bytes);
    return (c.decay | decay_step) % decay == 0 && c.dt_bias % bias == 0;
}

} // namespace

#endif
