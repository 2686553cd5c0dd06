/* SPDX-License-Identifier: Apache-2.0 */
/* Packed decode of GDN and KDA for heads of 128: as fast as memory reads and writes the states.
 *
 *   grid   x: blocks of rows of V      y: v heads      z: rows of the batch
 *   warp   holds 4 to 8 KB of one state in registers; all its first loads are under way before the
 *          first sum, and each later group is asked for as soon as one has been stored
 *
 * Warps share nothing, so a block that is done makes room at once. For fp32 one-warp blocks of
 * 4 KB, 32 of them on a multiprocessor, measured best. A bf16 state has half the bytes for the same
 * q, k and gates, which are worked out once a warp, so its warps hold 32 rows. What is to be
 * avoided are spills: each byte of them showed. Sums on the tensor cores (mma, the state as loaded
 * being one operand) halve the instructions, but its lanes would read 64 bytes of a row at once
 * instead of all of it: 6 to 10 points slower.
 * A launch's first blocks all come out of their wait for the kernel before at once, and memory
 * would idle while they compute: half of them ask L2 for the states of the blocks that follow. More
 * than half is slower.
 *
 * Bytes for a row and head: 2 x 128 x 128 x (4 or 2), plus about 1 KB of inputs. */
#include "delta/decode_tile.cuh"

#include "cuda/launch.cuh"
#include "delta/delta_cuda.h"

namespace {

/* Into L2: what the block `resident` places behind this one will load, for the first half of the
 * `resident` blocks that run at once. */
template <class R, int WARPS>
SC_DEV void fetch_ahead(const sc_k_decode_packed_params &p, uint32_t resident)
{
    constexpr uint32_t VALUES = R::ROWS * WARPS * K, BYTES = VALUES * sizeof(typename R::state);
    uint32_t of_row = gridDim.x * gridDim.y;
    if (blockIdx.z * of_row >= resident / 2) return;
    uint32_t at = blockIdx.x + gridDim.x * blockIdx.y + of_row * blockIdx.z;
    uint32_t row = (at + resident) / of_row;
    if (at >= resident / 2 || row >= gridDim.z || threadIdx.x != 0) return;
    int32_t source = index_of(p.source, row);
    if (source > 0)
        dev_prefetch((const typename R::state *)dev_slot(p.state, source)
            + (uint64_t)(at + resident - row * of_row) * VALUES, BYTES);
}

/* R: tile_rows. */
template <class R, int WARPS, int BLOCKS> __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
decode(const __grid_constant__ sc_k_decode_packed_params p, float scale, uint32_t share_log2,
    uint32_t resident)
{
    typedef typename R::tensor T;
    typedef typename R::state S;
    constexpr bool KDA = R::PER_K;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t v0 = (blockIdx.x * WARPS + warp) * R::ROWS, k0 = KDA ? lane * LANES_WIDE : 0;
    head_at h = {blockIdx.z, blockIdx.y};
    if (!p.state_settled) dev_wait_previous();
    int32_t source = index_of(p.source, h.row);
    int32_t dest = index_of(p.dest, h.row), save = index_of(p.save, h.row);
    int64_t at = ((int64_t)h.hv * p.shape.v_dim + v0) * K;
    R rows;
    rows.load(source > 0 ? (const S *)dev_slot(p.state, source) + at : nullptr);
    gate_weights<KDA ? 4 : 1> w;
    weights_load<KDA ? 4 : 1, KDA>(w, p, h, k0);
    if (p.state_settled) {
        fetch_ahead<R, WARPS>(p, resident);
        dev_wait_previous();
    }
    dev_release_next();
    T *o = output_row<T>(p, h) + v0;
    if (source < 0) {
        for (uint32_t r = lane; r < R::ROWS; r += 32) o[r] = dev_narrow<T>(0.0f);
        return;
    }
    const T *in = (const T *)p.qkv + (int64_t)h.row * qkv_stride(p);
    const T *q = in + (int64_t)sharing(h.hv, p.shape, share_log2) * K;
    rows.inputs({q, q + (int64_t)p.shape.heads * K,
        in + 2ll * p.shape.heads * K + (int64_t)h.hv * p.shape.v_dim + v0});
    tile_gates gates;
    gates.beta = beta_of<T>(p, h);
    if constexpr (KDA)
        alphas<T, LANES_WIDE, true>(gates.alpha, w, p, h, k0);
    else
        alphas<T, 1, false>(&gates.one, w, p, h, 0);
    rows.run(gates, p.shape.qk_l2norm, scale,
        dest > 0 ? (S *)dev_slot(p.state, dest) + at : nullptr,
        save > 0 ? (S *)dev_slot(p.state, save) + at : nullptr, o);
}

/* log2 of the v heads of a q/k head. */
uint32_t share_log2_of(const sc_k_delta_shape &s)
{
    uint32_t share = s.v_heads / s.heads, log2 = 0;
    while (1u << log2 < share) log2++;
    return 1u << log2 == share ? log2 : (uint32_t)NOT_A_POWER;
}

template <class R, int WARPS, int BLOCKS>
sc_status launch_rows(const sc_k_decode_packed_params &p, uint32_t rows, sc_stream *stream)
{
    const sc_k_delta_shape &s = p.shape;
    dim3 grid(s.v_dim / (R::ROWS * WARPS), s.v_heads, rows);
    return sc_cuda_launch("decode", decode<R, WARPS, BLOCKS>, grid, WARPS * 32, 0, stream, p,
        sc_cuda_delta_scale(&s), share_log2_of(s), sc_cuda_processors() * BLOCKS);
}

template <typename T, typename S, bool KDA, int GROUP, int GROUPS, int AHEAD, int WARPS,
    int BLOCKS>
sc_status launch_tile(const sc_k_decode_packed_params &p, uint32_t rows, sc_stream *stream)
{
    typedef tile_rows<T, S, KDA, GROUP, GROUPS, AHEAD> R;
    return launch_rows<R, WARPS, BLOCKS>(p, rows, stream);
}

/* Which tile serves a batch of so many (row, v head) pairs, as measured on an H200. No choice
 * changes a bit, so choosing by batch is exact. Few heads want many small warps; many heads want
 * long ones, since q, k and gates are worked out once a warp. */
template <bool KDA>
sc_status launch_bf16(const sc_k_decode_packed_params &p, uint32_t rows, sc_stream *stream)
{
    uint64_t heads = (uint64_t)rows * p.shape.v_heads;
    if (p.state.dtype == SC_DTYPE_BF16)
        return heads >= 256
            ? launch_tile<sc_bf16, sc_bf16, KDA, 8, 4, 2, 1, 16>(p, rows, stream)
            : launch_tile<sc_bf16, sc_bf16, KDA, 8, 1, 1, 4, 6>(p, rows, stream);
    if (heads >= 1024)
        return launch_tile<sc_bf16, float, KDA, 8, 1, 1, 1, KDA ? 28 : 32>(p, rows, stream);
    if (heads >= 256)
        return KDA ? launch_tile<sc_bf16, float, KDA, 4, 4, 3, 1, 16>(p, rows, stream)
                   : launch_tile<sc_bf16, float, KDA, 8, 1, 1, 1, 24>(p, rows, stream);
    return KDA && heads >= 64
        ? launch_tile<sc_bf16, float, KDA, 4, 4, 4, 1, 12>(p, rows, stream)
        : launch_tile<sc_bf16, float, KDA, 4, 2, 2, 2, 12>(p, rows, stream);
}

/* fp32 tensors: for tests and small models. */
template <bool KDA>
sc_status launch_f32(const sc_k_decode_packed_params &p, uint32_t rows, sc_stream *stream)
{
    return p.state.dtype == SC_DTYPE_F32
        ? launch_tile<float, float, KDA, 8, 1, 1, 1, 28>(p, rows, stream)
        : launch_tile<float, sc_bf16, KDA, 8, 2, 1, 1, 24>(p, rows, stream);
}

/* Heads of 128 whose vectors lie on 16 bytes, V a multiple of 64; everything else takes the general
 * kernel. */
bool fits(const sc_k_decode_packed_params &p)
{
    const sc_k_delta_shape &s = p.shape;
    uint64_t elem = p.dtype == SC_DTYPE_F32 ? 4 : 2;
    return s.k_dim == K && s.v_dim % 64 == 0 && s.v_heads <= 65535
        && (p.qkv | p.state.base | (uint64_t)p.state.slot_stride) % 16 == 0
        && (uint64_t)p.qkv_stride * elem % 16 == 0;
}

} // namespace

sc_status sc_k_decode_packed_sm90(const void *params, sc_stream *stream)
{
    sc_k_decode_packed_params p = *(const sc_k_decode_packed_params *)params;
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
