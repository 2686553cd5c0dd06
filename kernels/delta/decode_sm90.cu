/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of GDN and KDA for heads of 128: as fast as memory reads and writes the states.
 *
 *   grid   x: blocks of rows of V      y: v heads      z: rows of the batch
 *   warp   holds 4 KB of one state in registers; all its first loads are under way before the
 *          first sum, and each later group is asked for as soon as one has been stored
 *
 * Warps share nothing, so a block that is done makes room at once: one-warp blocks measured best.
 * What is to be avoided are spills: each byte of them showed. Sums on the tensor cores (mma, the
 * state as loaded being one operand) halve the instructions, but its lanes would read 64 bytes of a
 * row at once instead of all of it: 6 to 10 points slower.
 *
 * A launch's first blocks all come out of their wait for the kernel before at once, and memory
 * idles until the first of them stores. So what they do there is short: addresses are ready before
 * the wait, all inputs are asked for together, and the next kernel is let in only behind that.
 * Where it helps (`HINTS`, as measured), the first blocks also ask L2 for their inputs before the
 * wait, and half of them for the states of the blocks that follow; more than half is slower.
 *
 * Bytes for a row and head: 2 x 128 x 128 x (4 or 2), plus about 1 KB of inputs. */
#include "delta/decode_tile.cuh"

#include "cuda/launch.cuh"
#include "delta/delta_check.h"

namespace {

enum hints { NO_HINTS = 0, HINT_INPUTS = 1, HINT_STATES = 2, HINT_BOTH = 3 };

SC_DEV void to_l2(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/* What the first `resident` blocks, those that run at once, ask L2 for before their wait: their
 * inputs, at `in` and `gate`; and the first half of them what the block `resident` places behind
 * this one will load. */
template <class R, int WARPS, int HINTS, class G>
SC_DEV void ask_l2(const decode_call &c, uint32_t resident,
    const tile_inputs<typename R::tensor> &in, const G &gate)
{
    constexpr uint32_t VALUES = R::ROWS * WARPS * K, BYTES = VALUES * sizeof(typename R::state);
    uint32_t of_row = gridDim.x * gridDim.y, lane = threadIdx.x;
    if (blockIdx.z * of_row >= resident) return;
    uint32_t at = blockIdx.x + gridDim.x * blockIdx.y + of_row * blockIdx.z;
    if (at >= resident) return;
    if constexpr ((HINTS & HINT_INPUTS) != 0) {
        if (lane % 16 == 0) to_l2(in.q), to_l2(in.k), to_l2(gate.decay_at); /* 128 bytes each */
        if (lane == 0) to_l2(in.v), to_l2(gate.strength_at);
    }
    uint32_t row = (at + resident) / of_row;
    if (at >= resident / 2 || row >= gridDim.z || lane != 0 || (HINTS & HINT_STATES) == 0) return;
    int32_t source = index_of(c.source, row);
    if (source > 0)
        dev_prefetch((const typename R::state *)dev_slot(c.state, source)
            + (uint64_t)(at + resident - row * of_row) * VALUES, BYTES);
}

/* R: tile_rows. */
template <class R, int WARPS, int BLOCKS, int HINTS>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS)
decode(const __grid_constant__ decode_call c, uint32_t resident)
{
    typedef typename R::tensor T;
    typedef typename R::state S;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t v0 = (blockIdx.x * WARPS + warp) * R::ROWS;
    head_at h = {blockIdx.z, blockIdx.y};
    if (!c.settled) dev_wait_previous();
    int32_t source = index_of(c.source, h.row);
    int32_t dest = index_of(c.dest, h.row), save = index_of(c.save, h.row);
    uint64_t at = (uint64_t)(h.hv * c.v_dim + v0) * K;
    R rows;
    rows.load((const S *)dev_slot(c.state, source) + at, source > 0);
    gate_words<T, R::PER_K> gate;
    gate.prepare(c, h);
    uint32_t head = sharing(h.hv, c) * K;
    tile_inputs<T> in = lane_inputs<R>((const T *)c.q + h.row * c.q_stride + head,
        (const T *)c.k + h.row * c.k_stride + head,
        (const T *)c.v + h.row * c.v_stride + h.hv * c.v_dim + v0);
    ready(in.q), ready(in.k), ready(in.v);
    if (c.settled) {
        if constexpr (HINTS != NO_HINTS) ask_l2<R, WARPS, HINTS>(c, resident, in, gate);
        dev_wait_previous();
    }
    rows.inputs(in);
    gate.load(c);
    dev_release_next();
    T *o = output_row<T>(c, h) + v0;
    if (source < 0) {
        for (uint32_t r = lane; r < R::ROWS; r += 32) o[r] = dev_narrow<T>(0.0f);
        return;
    }
    tile_gates gates;
    gate.run(gates, c);
    rows.run(gates, c.l2norm, c.scale,
        {(S *)dev_slot(c.state, dest) + at, (S *)dev_slot(c.state, save) + at, dest > 0, save > 0},
        o);
}

template <typename T, typename S, bool KDA, int GROUP, int GROUPS, int AHEAD, int WARPS,
    int BLOCKS, int HINTS>
sc_status launch_tile(const decode_call &c, sc_stream *stream)
{
    typedef tile_rows<T, S, KDA, GROUP, GROUPS, AHEAD> R;
    dim3 grid(c.v_dim / (R::ROWS * WARPS), c.v_heads, c.rows);
    return sc_cuda_launch("decode", decode<R, WARPS, BLOCKS, HINTS>, grid, WARPS * 32, 0, stream,
        c, sc_cuda_processors() * BLOCKS);
}

/* Which tile serves a batch of so many (row, v head) pairs, as measured on an H200. No choice
 * changes a bit, so choosing by batch is exact. With bf16 states a KDA warp holds 32 rows, since
 * its gates are worked out once a warp; a small batch has too few of those. */
template <bool KDA> sc_status launch_bf16(const decode_call &c, sc_dtype state, sc_stream *stream)
{
    uint64_t heads = (uint64_t)c.rows * c.v_heads;
    if (state == SC_DTYPE_F32) {
        if (KDA && heads >= 1024)
            return launch_tile<sc_bf16, float, KDA, 8, 1, 1, 1, 32, HINT_STATES>(c, stream);
        return launch_tile<sc_bf16, float, KDA, 8, 1, 1, 1, 32, NO_HINTS>(c, stream);
    }
    if constexpr (KDA)
        return heads >= 256
            ? launch_tile<sc_bf16, sc_bf16, true, 8, 4, 2, 1, 16, HINT_BOTH>(c, stream)
            : launch_tile<sc_bf16, sc_bf16, true, 8, 2, 2, 4, 5, NO_HINTS>(c, stream);
    else
        return launch_tile<sc_bf16, sc_bf16, false, 8, 2, 2, 1, 20, HINT_BOTH>(c, stream);
}

/* fp32 tensors: for tests and small models. */
template <bool KDA> sc_status launch_f32(const decode_call &c, sc_dtype state, sc_stream *stream)
{
    return state == SC_DTYPE_F32
        ? launch_tile<float, float, KDA, 8, 1, 1, 1, 24, NO_HINTS>(c, stream)
        : launch_tile<float, sc_bf16, KDA, 8, 2, 1, 1, 20, NO_HINTS>(c, stream);
}

/* 65,535 rows a launch: those from `from` on. */
decode_call part_of(const decode_call &all, uint32_t from, uint64_t elem)
{
    decode_call c = all;
    c.rows = all.rows - from < 65535 ? all.rows - from : 65535;
    c.q += from * all.q_stride * elem, c.k += from * all.k_stride * elem;
    c.v += from * all.v_stride * elem, c.o += from * all.o_stride * elem;
    c.decay += from * all.decay_stride * (all.decay_given ? 4 : elem);
    c.strength += from * all.strength_stride * (all.strength_given ? 4 : elem);
    c.source += 4ull * from, c.dest += 4ull * from;
    if (all.save != 0) c.save += 4ull * from;
    return c;
}

/* Heads of 128 whose vectors lie on their alignment, V a multiple of 64; everything else, and dense
 * beginnings, takes the general kernel. */
sc_status launch(const sc_k_decode_params &p, sc_stream *stream)
{
    const sc_k_delta_shape &s = p.shape;
    bool kda = s.kind == SC_K_KIND_KDA, wide = p.dtype == SC_DTYPE_F32;
    if (s.k_dim != K || s.v_dim % 64 != 0 || s.v_heads > 65535 || p.initial.base != 0)
        return sc_cuda_delta_walk_decode(&p, stream);
    decode_call all = decode_call_of(p, p.state_settled);
    if (!decode_call_aligned(all, kda, wide ? 4 : 2)) return sc_cuda_delta_walk_decode(&p, stream);
    sc_dtype state = p.state.dtype;
    for (uint32_t from = 0; from < all.rows; from += 65535) {
        decode_call c = part_of(all, from, wide ? 4 : 2);
        SC_TRY(kda ? wide ? launch_f32<true>(c, state, stream) : launch_bf16<true>(c, state, stream)
            : wide ? launch_f32<false>(c, state, stream)
                   : launch_bf16<false>(c, state, stream));
    }
    return SC_OK;
}

} // namespace

sc_status sc_k_decode_packed_sm90(const void *params, sc_stream *stream)
{
    const sc_k_decode_packed_params *p = (const sc_k_decode_packed_params *)params;
    return launch(delta_unpack(p), stream);
}

sc_status sc_k_decode_sm90(const void *params, sc_stream *stream)
{
    return launch(*(const sc_k_decode_params *)params, stream);
}
