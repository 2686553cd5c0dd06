/* SPDX-License-Identifier: Apache-2.0 */
/* A decode step of one layer in one launch, conv and packed decode, for small batches: what two
 * launches wait for costs more there than what is done twice here.
 *
 *   cluster  all blocks of one row and q/k head: its v heads, V_ROWS rows of V each
 *   block    every one makes the conv of q and k (256 channels) for itself and of its own v rows,
 *            hands them round through shared memory, and goes on as the packed decode does
 *
 *   state, window, weights  ->  wait for the kernel before  ->  x  ->  conv  ->  q k v  ->  decode
 *
 * The windows of q and k are read by the whole cluster and written by its first block: every block
 * arrives at the cluster's barrier when its words have been read, and the first one waits for that
 * before it writes. States are asked for first: they come from memory, the rest from L2. Conv and
 * decode give the bits of the two calls.
 *
 * Bytes: as the two calls, without q k v between them; windows and weights of q and k once more for
 * each block of a cluster, from L2. */
#include "conv/conv_packed.cuh"
#include "delta/decode_tile.cuh"

#include "cuda/launch.cuh"
#include "delta/delta_check.h"

namespace {

enum { CLUSTER_MAX = 8, QK_PAIRS = K };

struct step_call {
    decode_call decode; /* its q, k and v are not used: they never leave the block */
    sc_k_slots window;
    sc_devptr x, weight;
    int64_t x_stride;
    uint64_t channels;
    bool silu;
};

/* Two channels: three window rows and the taps. */
struct conv_words {
    uint32_t w[3];
    uint4 taps;
};

SC_DEV void conv_load(conv_words &x, const step_call &s, int32_t source, uint32_t channel)
{
    x.w[0] = x.w[1] = x.w[2] = 0;
    if (source > 0) {
        const sc_bf16 *from = (const sc_bf16 *)dev_slot(s.window, source) + channel;
#pragma unroll
        for (int j = 0; j < 3; j++) x.w[j] = *(const uint32_t *)(from + (uint64_t)j * s.channels);
    }
    x.taps = ((const uint4 *)s.weight)[channel / 2];
}

SC_DEV void conv_store(const conv_words &w, uint32_t x, const step_call &s, int32_t slot,
    uint32_t channel)
{
    if (slot <= 0) return;
    sc_bf16 *to = (sc_bf16 *)dev_slot(s.window, slot) + channel;
    *(uint32_t *)to = w.w[1];
    *(uint32_t *)(to + s.channels) = w.w[2];
    *(uint32_t *)(to + 2 * s.channels) = x;
}

SC_DEV uint32_t conv_word(const conv_words &w, uint32_t x, bool silu)
{
    return conv_pair(w.taps, w.w[0], w.w[1], w.w[2], x, silu);
}

/* Relaxed: what it orders is reads before later writes, and a word that has been used was read. A
 * release would wait for all memory accesses of the block. */
SC_DEV void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

SC_DEV void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Channel of word n of q (first half) and k. */
SC_DEV uint32_t qk_channel(const step_call &s, uint32_t head, uint32_t n)
{
    return ((n < QK_PAIRS / 2 ? 0 : s.decode.heads) + head) * K + n % (QK_PAIRS / 2) * 2;
}

/* A thread's words of q and k and at most one of v, and what the conv makes of them. */
template <int THREADS, int V_ROWS> struct step_conv {
    static constexpr int PER = QK_PAIRS > THREADS ? QK_PAIRS / THREADS : 1;
    static_assert(V_ROWS / 2 <= THREADS, "a pair of v a thread");
    conv_words qk[PER], v;
    uint32_t qk_x[PER], v_x, head, v_channel;
    const uint32_t *qk_at[PER], *v_at; /* of x */

    SC_DEV bool has_qk() { return threadIdx.x < QK_PAIRS; }
    SC_DEV uint32_t v_word() { return THREADS - 1 - threadIdx.x; }
    SC_DEV bool has_v() { return v_word() < V_ROWS / 2; }
    SC_DEV uint32_t channel(const step_call &s, int i)
    {
        return qk_channel(s, head, threadIdx.x + i * THREADS);
    }

    /* Of q/k head `head_`, and from channel `v_first` on: windows and weights, and where x is. */
    SC_DEV void load(const step_call &s, uint32_t row, int32_t source, uint32_t head_,
        uint32_t v_first)
    {
        const sc_bf16 *x = (const sc_bf16 *)s.x + row * s.x_stride;
        head = head_, v_channel = v_first + 2 * v_word();
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (has_qk()) conv_load(qk[i], s, source, channel(s, i));
        if (has_v()) conv_load(v, s, source, v_channel);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            qk_at[i] = (const uint32_t *)(x + channel(s, i));
            ready(qk_at[i]);
        }
        v_at = (const uint32_t *)(x + v_channel);
        ready(v_at);
    }

    /* Waits for the windows: they are used, for nothing. */
    SC_DEV void arrived(uint32_t *qk_out, uint32_t *v_out)
    {
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (has_qk())
                qk_out[threadIdx.x + i * THREADS] = qk[i].w[0] ^ qk[i].w[1] ^ qk[i].w[2];
        if (has_v()) v_out[v_word()] = v.w[0] ^ v.w[1] ^ v.w[2];
    }

    SC_DEV void load_x()
    {
#pragma unroll
        for (int i = 0; i < PER; i++) qk_x[i] = has_qk() ? *qk_at[i] : 0;
        v_x = has_v() ? *v_at : 0;
    }

    SC_DEV void run(uint32_t *qk_out, uint32_t *v_out, bool silu)
    {
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (has_qk()) qk_out[threadIdx.x + i * THREADS] = conv_word(qk[i], qk_x[i], silu);
        if (has_v()) v_out[v_word()] = conv_word(v, v_x, silu);
    }

    SC_DEV void store_v(const step_call &s, int32_t dest, int32_t save)
    {
        if (!has_v()) return;
        conv_store(v, v_x, s, dest, v_channel);
        conv_store(v, v_x, s, save, v_channel);
    }

    SC_DEV void store_qk(const step_call &s, int32_t dest, int32_t save)
    {
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (!has_qk()) return;
            conv_store(qk[i], qk_x[i], s, dest, channel(s, i));
            conv_store(qk[i], qk_x[i], s, save, channel(s, i));
        }
    }
};

/* R: tile_rows of bf16 tensors. EARLY: a block arrives at the cluster's barrier before the wait for
 * the kernel before, and so waits for its windows there: faster for larger batches of fp32 states,
 * slower for all others. */
template <class R, int WARPS, int BLOCKS, bool EARLY>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS)
step(const __grid_constant__ step_call s)
{
    typedef typename R::state S;
    constexpr int V_ROWS = WARPS * R::ROWS;
    __shared__ __align__(16) uint32_t qk_words[QK_PAIRS], v_words[V_ROWS / 2];
    const decode_call &c = s.decode;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t base = blockIdx.x * V_ROWS, v0 = base + warp * R::ROWS;
    head_at h = {blockIdx.z, blockIdx.y};
    uint32_t head = sharing(h.hv, c);
    if (!c.settled) dev_wait_previous();
    int32_t source = index_of(c.source, h.row);
    int32_t dest = index_of(c.dest, h.row), save = index_of(c.save, h.row);
    uint64_t at = (uint64_t)(h.hv * c.v_dim + v0) * K;
    step_conv<WARPS * 32, V_ROWS> conv;
    R rows;
    rows.load((const S *)dev_slot(c.state, source) + at, source > 0);
    conv.load(s, h.row, source, head, 2 * c.heads * K + h.hv * c.v_dim + base);
    gate_words<sc_bf16, R::PER_K> gate;
    gate.prepare(c, h);
    if constexpr (EARLY) {
        conv.arrived(qk_words, v_words);
        cluster_arrive(); /* this block has read its windows */
    }
    if (c.settled) dev_wait_previous();
    dev_release_next();
    conv.load_x();
    gate.load(c);
    sc_bf16 *o = output_row<sc_bf16>(c, h) + v0;
    if (source < 0) { /* the whole cluster */
        for (uint32_t r = lane; r < R::ROWS; r += 32) o[r] = dev_narrow<sc_bf16>(0.0f);
        if constexpr (EARLY) cluster_wait();
        return;
    }
    conv.run(qk_words, v_words, s.silu);
    __syncthreads();
    if constexpr (!EARLY) cluster_arrive();
    const sc_bf16 *q = (const sc_bf16 *)qk_words;
    rows.inputs(lane_inputs<R>(q, q + K, (const sc_bf16 *)v_words + warp * R::ROWS));
    tile_gates gates;
    gate.run(gates, c);
    if constexpr (EARLY) conv.store_v(s, dest, save);
    rows.run(gates, c.l2norm, c.scale,
        {(S *)dev_slot(c.state, dest) + at, (S *)dev_slot(c.state, save) + at, dest > 0, save > 0},
        o);
    if constexpr (!EARLY) conv.store_v(s, dest, save);
    __syncwarp();
    cluster_wait();
    if (blockIdx.x == 0 && h.hv == head * c.share) conv.store_qk(s, dest, save);
}

template <class R, int WARPS, int BLOCKS, bool EARLY>
sc_status launch_step(const step_call &s, sc_stream *stream)
{
    const decode_call &c = s.decode;
    uint32_t blocks = c.v_dim / (WARPS * R::ROWS);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = blocks;
    attributes[1].val.clusterDim.y = c.share;
    attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks, c.v_heads, c.rows);
    config.blockDim = dim3(WARPS * 32);
    config.stream = sc_cuda_stream(stream);
    config.attrs = attributes;
    config.numAttrs = 2;
    SC_TRY(sc_cuda_enter());
    return sc_cuda_check(cudaLaunchKernelEx(&config, step<R, WARPS, BLOCKS, EARLY>, s),
        "decode step");
}

/* Blocks of 64 or 128 rows of V, as measured on an H200; no choice changes a bit. */
template <bool KDA> sc_status launch_kind(const step_call &s, sc_dtype state, sc_stream *stream)
{
    uint64_t heads = (uint64_t)s.decode.rows * s.decode.v_heads;
    if (state != SC_DTYPE_BF16)
        return heads <= 64
            ? launch_step<tile_rows<sc_bf16, float, KDA, 8, 1, 1>, 8, 2, false>(s, stream)
            : launch_step<tile_rows<sc_bf16, float, KDA, 8, 1, 1>, 8, 3, true>(s, stream);
    if (heads <= 128 || s.decode.v_dim % 128 != 0)
        return launch_step<tile_rows<sc_bf16, sc_bf16, KDA, 8, 1, 1>, 8, 3, false>(s, stream);
    if (heads < 512)
        return launch_step<tile_rows<sc_bf16, sc_bf16, KDA, 8, 2, 2>, 8, 2, false>(s, stream);
    return launch_step<tile_rows<sc_bf16, sc_bf16, KDA, 8, 4, 2>, 4, 4, false>(s, stream);
}

} // namespace

/* Batches of more (row, v head) pairs are served faster by two launches (measured on an H200). */
enum { HEADS_MAX_FP32 = 256, HEADS_MAX_BF16 = 2048, BLOCK_ROWS = 64 };

static decode_call step_decode(const sc_k_decode_packed_params *p, bool settled)
{
    return decode_call_of(delta_unpack(p), settled);
}

bool sc_cuda_step_fits(const sc_k_conv_update_params *c, const sc_k_decode_packed_params *p)
{
    const sc_k_delta_shape &s = p->shape;
    uint64_t heads = (uint64_t)p->row_count * s.v_heads;
    return p->dtype == SC_DTYPE_BF16 && c->window.dtype == SC_DTYPE_BF16
        && c->weight_dtype == SC_DTYPE_BF16 && c->width == 4 && c->bias == 0 && s.k_dim == K
        && s.v_dim % BLOCK_ROWS == 0
        && s.v_heads / s.heads * (s.v_dim / BLOCK_ROWS) <= CLUSTER_MAX && s.v_heads <= 65535
        && p->row_count <= 65535 && p->initial.base == 0 && c->initial.base == 0
        && heads <= (p->state.dtype == SC_DTYPE_F32 ? HEADS_MAX_FP32 : HEADS_MAX_BF16)
        && c->weight % 16 == 0
        && decode_call_aligned(step_decode(p, false), s.kind == SC_K_KIND_KDA, 2)
        && (c->x | c->window.base | (uint64_t)c->window.slot_stride) % 4 == 0
        && (uint64_t)c->x_stride % 2 == 0;
}

sc_status sc_cuda_step(const sc_k_conv_update_params *c, const sc_k_decode_packed_params *p,
    sc_stream *stream)
{
    step_call s = {};
    s.decode = step_decode(p, c->window_settled && p->state_settled);
    s.window = c->window, s.x = c->x, s.weight = c->weight;
    s.x_stride = sc_kernel_stride(c->x_stride, c->channels), s.channels = c->channels;
    s.silu = c->act == SC_K_ACT_SILU;
    return p->shape.kind == SC_K_KIND_KDA ? launch_kind<true>(s, p->state.dtype, stream)
                                          : launch_kind<false>(s, p->state.dtype, stream);
}
