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
#include "delta/delta_cuda.h"

namespace {

enum { CLUSTER_MAX = 8, QK_PAIRS = K };

struct step_call {
    sc_k_decode_packed_params p;
    sc_k_slots window;
    sc_devptr x, weight;
    int64_t x_stride;
    uint64_t channels;
    float scale;
    uint32_t blocks; /* of one v head */
    bool silu, settled;
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

SC_DEV uint32_t x_word(const step_call &s, uint32_t row, uint32_t channel)
{
    return *(const uint32_t *)((const sc_bf16 *)s.x + (int64_t)row * s.x_stride + channel);
}

SC_DEV uint32_t conv_word(const conv_words &w, uint32_t x, bool silu)
{
    return conv_pair(w.taps, w.w[0], w.w[1], w.w[2], x, silu);
}

/* Relaxed: what it orders is reads before later writes, and a word that has been used was read. A
 * release would wait for all memory accesses of the block: 0.4 us of a small batch's 2.7 us. */
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
    return ((n < QK_PAIRS / 2 ? 0 : s.p.shape.heads) + head) * K + n % (QK_PAIRS / 2) * 2;
}

/* A thread's words of q and k and at most one of v, and what the conv makes of them. */
template <int THREADS, int V_ROWS> struct step_conv {
    static constexpr int PER = QK_PAIRS > THREADS ? QK_PAIRS / THREADS : 1;
    static_assert(V_ROWS / 2 <= THREADS, "a pair of v a thread");
    conv_words qk[PER], v;
    uint32_t qk_x[PER], v_x, head, v_channel;

    SC_DEV bool has_qk() { return threadIdx.x < QK_PAIRS; }
    SC_DEV uint32_t v_word() { return THREADS - 1 - threadIdx.x; }
    SC_DEV bool has_v() { return v_word() < V_ROWS / 2; }
    SC_DEV uint32_t channel(const step_call &s, int i)
    {
        return qk_channel(s, head, threadIdx.x + i * THREADS);
    }

    /* Of q/k head `head_`, and from channel `v_first` on. */
    SC_DEV void load(const step_call &s, int32_t source, uint32_t head_, uint32_t v_first)
    {
        head = head_, v_channel = v_first + 2 * v_word();
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (has_qk()) conv_load(qk[i], s, source, channel(s, i));
        if (has_v()) conv_load(v, s, source, v_channel);
    }

    SC_DEV void load_x(const step_call &s, uint32_t row)
    {
#pragma unroll
        for (int i = 0; i < PER; i++) qk_x[i] = has_qk() ? x_word(s, row, channel(s, i)) : 0;
        v_x = has_v() ? x_word(s, row, v_channel) : 0;
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

/* R: tile_rows of bf16 tensors. */
template <class R, int WARPS, int BLOCKS> __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
step(const __grid_constant__ step_call s)
{
    typedef typename R::state S;
    constexpr bool KDA = R::PER_K;
    constexpr int V_ROWS = WARPS * R::ROWS;
    __shared__ __align__(16) uint32_t qk_words[QK_PAIRS], v_words[V_ROWS / 2];
    const sc_k_decode_packed_params &p = s.p;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, k0 = KDA ? lane * LANES_WIDE : 0;
    uint32_t head = blockIdx.y, nth = blockIdx.x / s.blocks;
    uint32_t base = (blockIdx.x - nth * s.blocks) * V_ROWS, v0 = base + warp * R::ROWS;
    head_at h = {blockIdx.z, head * (p.shape.v_heads / p.shape.heads) + nth};
    if (!s.settled) dev_wait_previous();
    int32_t source = index_of(p.source, h.row);
    int32_t dest = index_of(p.dest, h.row), save = index_of(p.save, h.row);
    int64_t at = ((int64_t)h.hv * p.shape.v_dim + v0) * K;
    step_conv<WARPS * 32, V_ROWS> conv;
    R rows;
    rows.load(source > 0 ? (const S *)dev_slot(p.state, source) + at : nullptr);
    conv.load(s, source, head, 2 * p.shape.heads * K + h.hv * p.shape.v_dim + base);
    gate_weights<KDA ? 4 : 1> w;
    weights_load<KDA ? 4 : 1, KDA>(w, p, h, k0);
    if (s.settled) dev_wait_previous();
    dev_release_next();
    sc_bf16 *o = output_row<sc_bf16>(p, h) + v0;
    if (source < 0) {
        for (uint32_t r = lane; r < R::ROWS; r += 32) o[r] = dev_narrow<sc_bf16>(0.0f);
        return; /* the whole cluster */
    }
    conv.load_x(s, h.row);
    tile_gates gates;
    gates.beta = beta_of<sc_bf16>(p, h);
    if constexpr (KDA)
        alphas<sc_bf16, LANES_WIDE, true>(gates.alpha, w, p, h, k0);
    else
        alphas<sc_bf16, 1, false>(&gates.one, w, p, h, 0);
    conv.run(qk_words, v_words, s.silu);
    __syncthreads();
    cluster_arrive(); /* this block has read its windows */
    const sc_bf16 *q = (const sc_bf16 *)qk_words;
    rows.inputs({q, q + K, (const sc_bf16 *)v_words + warp * R::ROWS});
    rows.run(gates, p.shape.qk_l2norm, s.scale,
        dest > 0 ? (S *)dev_slot(p.state, dest) + at : nullptr,
        save > 0 ? (S *)dev_slot(p.state, save) + at : nullptr, o);
    conv.store_v(s, dest, save);
    __syncwarp();
    cluster_wait();
    if (blockIdx.x == 0) conv.store_qk(s, dest, save);
}

template <class R, int WARPS, int BLOCKS> sc_status launch_step(step_call s, sc_stream *stream)
{
    constexpr uint32_t V_ROWS = WARPS * R::ROWS;
    const sc_k_delta_shape &shape = s.p.shape;
    s.blocks = shape.v_dim / V_ROWS;
    uint32_t cluster = s.blocks * (shape.v_heads / shape.heads);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(cluster, shape.heads, s.p.row_count);
    config.blockDim = dim3(WARPS * 32);
    config.stream = sc_cuda_stream(stream);
    config.attrs = attributes;
    config.numAttrs = 2;
    SC_TRY(sc_cuda_enter());
    return sc_cuda_check(cudaLaunchKernelEx(&config, step<R, WARPS, BLOCKS>, s), "decode step");
}

/* Blocks of 64 or 128 rows of V, as measured on an H200; no choice changes a bit. */
template <bool KDA> sc_status launch_kind(const step_call &s, sc_stream *stream)
{
    uint64_t heads = (uint64_t)s.p.row_count * s.p.shape.v_heads;
    if (s.p.state.dtype != SC_DTYPE_BF16)
        return launch_step<tile_rows<sc_bf16, float, KDA, 8, 1, 1>, 8, 3>(s, stream);
    if (heads <= 128 || s.p.shape.v_dim % 128 != 0)
        return launch_step<tile_rows<sc_bf16, sc_bf16, KDA, 8, 1, 1>, 8, 3>(s, stream);
    if (heads < 512)
        return launch_step<tile_rows<sc_bf16, sc_bf16, KDA, 8, 2, 2>, 8, 2>(s, stream);
    return launch_step<tile_rows<sc_bf16, sc_bf16, KDA, 8, 4, 2>, 4, 4>(s, stream);
}

} // namespace

/* Batches of more (row, v head) pairs are served faster by two launches (measured on an H200). */
enum { HEADS_MAX_FP32 = 128, HEADS_MAX_BF16 = 1024, BLOCK_ROWS = 64 };

bool sc_cuda_step_fits(const sc_k_conv_update_params *c, const sc_k_decode_packed_params *p)
{
    const sc_k_delta_shape &s = p->shape;
    uint64_t heads = (uint64_t)p->row_count * s.v_heads;
    return p->dtype == SC_DTYPE_BF16 && c->window.dtype == SC_DTYPE_BF16
        && c->weight_dtype == SC_DTYPE_BF16 && c->width == 4 && c->bias == 0 && s.k_dim == K
        && s.v_dim % BLOCK_ROWS == 0
        && s.v_heads / s.heads * (s.v_dim / BLOCK_ROWS) <= CLUSTER_MAX && s.heads <= 65535
        && heads <= (p->state.dtype == SC_DTYPE_F32 ? HEADS_MAX_FP32 : HEADS_MAX_BF16)
        && (c->weight | p->state.base | (uint64_t)p->state.slot_stride) % 16 == 0
        && (c->x | c->window.base | (uint64_t)c->window.slot_stride) % 4 == 0
        && (uint64_t)c->x_stride % 2 == 0;
}

sc_status sc_cuda_step(const sc_k_conv_update_params *c, const sc_k_decode_packed_params *p,
    sc_stream *stream)
{
    step_call s = {};
    s.p = *p, s.window = c->window, s.x = c->x, s.weight = c->weight;
    s.x_stride = sc_kernel_stride(c->x_stride, c->channels), s.channels = c->channels;
    s.scale = sc_cuda_delta_scale(&p->shape), s.silu = c->act == SC_K_ACT_SILU;
    s.settled = c->window_settled && p->state_settled;
    return p->shape.kind == SC_K_KIND_KDA ? launch_kind<true>(s, stream)
                                          : launch_kind<false>(s, stream);
}
