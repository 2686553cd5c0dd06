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
#include "delta/decode_tile.cuh"

#include "cuda/launch.cuh"
#include "delta/delta_cuda.h"

namespace {

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
    uint32_t mine = tile_row<S, GROUP, GROUPS>();
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
    tile_run<T, S, KDA, GROUP, GROUPS, AHEAD>(s, from, to, also, q, k, alpha, one, norm, beta, v, o);
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
