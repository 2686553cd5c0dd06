/* SPDX-License-Identifier: Apache-2.0 */
/* Causal depthwise conv on the device, prefill and decode by one formula.
 *
 *   prefill  grid x: blocks of channels      y: tiles of TILE tokens of the packed batch
 *            a thread owns 4 channels and walks the tile with the last W inputs in registers,
 *            eight tokens' loads at a time
 *   windows  grid x: blocks of channels      y: rows, then saves; after the outputs, in the stream
 *
 * Windows are written by a second kernel, so that a row may be stored in place: everything that
 * reads the old window has run by then. Saves so near to a row's start that they reach into the old
 * window are written by that row's own thread, before it overwrites the window.
 *
 * Bytes: x once (and W-1 of TILE + W-1 tokens again, from L2), y once, windows once. */
#include "cuda/device_math.cuh"

#include <type_traits>

#include "conv/conv_cuda.h"
#include "cuda/launch.cuh"

namespace {

enum { THREADS = 128, TILE = 32, WIDTH_MAX = 4 };

/* Channels c .. c + VEC; VEC 1 takes any alignment. */
template <int VEC> SC_DEV void load(float *out, sc_devptr base, sc_dtype dtype, int64_t at)
{
    if constexpr (VEC == 1) {
        out[0] = dev_load(base, dtype, at);
    } else if (dtype == SC_DTYPE_F32) {
#pragma unroll
        for (int i = 0; i < VEC; i += 4) dev_load_vec<4>(out + i, (const float *)base + at + i);
    } else {
        dev_load_vec<VEC>(out, (const sc_bf16 *)base + at);
    }
}

template <int VEC> SC_DEV void store(const float *x, sc_devptr base, sc_dtype dtype, int64_t at)
{
    if constexpr (VEC == 1) {
        dev_store(base, dtype, at, x[0]);
    } else if (dtype == SC_DTYPE_F32) {
#pragma unroll
        for (int i = 0; i < VEC; i += 4)
            *(float4 *)((float *)base + at + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    } else {
        uint2 *out = (uint2 *)((sc_bf16 *)base + at);
        uint2 low = make_uint2(dev_pack(x[0], x[1]), dev_pack(x[2], x[3]));
        if constexpr (VEC == 4)
            *out = low;
        else
            *(uint4 *)out = make_uint4(low.x, low.y, dev_pack(x[4], x[5]), dev_pack(x[6], x[7]));
    }
}

template <int VEC> SC_DEV void zero(float *x)
{
#pragma unroll
    for (int i = 0; i < VEC; i++) x[i] = 0.0f;
}

template <int VEC> SC_DEV void window_round(float *x, const sc_k_conv_prefill_params &p)
{
    if (p.window.dtype == SC_DTYPE_BF16)
#pragma unroll
        for (int i = 0; i < VEC; i++) x[i] = dev_round<sc_bf16>(x[i]);
}

/* An input as the window would hold it. */
template <int VEC>
SC_DEV void load_input(float *out, const sc_k_conv_prefill_params &p, int64_t token, uint32_t c)
{
    load<VEC>(out, p.x, p.dtype, token * p.x_stride + c);
    if (p.dtype == SC_DTYPE_F32) window_round<VEC>(out, p);
}

SC_DEV dev_begin old_window(const sc_k_conv_prefill_params &p, int32_t source, uint32_t row)
{
    return dev_beginning(p.window, p.initial, source, row);
}

/* The input `back` tokens before token `at` of a row that starts at `start`. */
template <int VEC>
SC_DEV void load_history(float *out, const sc_k_conv_prefill_params &p, int64_t start, int64_t at,
    uint32_t back, const dev_begin &old, uint32_t c)
{
    int64_t into = at - start - back;
    if (into >= 0) {
        load_input<VEC>(out, p, at - back, c);
    } else if (old.base != 0) {
        load<VEC>(out, old.base, old.dtype, (into + p.width - 1) * p.channels + c);
        if (old.dtype != p.window.dtype) window_round<VEC>(out, p);
    } else {
        zero<VEC>(out);
    }
}

template <int VEC> struct taps {
    float w[WIDTH_MAX][VEC], bias[VEC];
};

/* Taps are kept newest last at [WIDTH_MAX - 1]; a narrower conv leaves the first ones 0. */
template <int VEC>
SC_DEV void taps_load(taps<VEC> &t, const sc_k_conv_prefill_params &p, uint32_t c)
{
    bool wide = VEC >= 4 && p.width == WIDTH_MAX && p.weight_dtype == SC_DTYPE_BF16
        && p.weight % 16 == 0 && p.bias == 0;
    if (wide) { /* two channels of four taps in 16 bytes */
        const sc_bf16 *w = (const sc_bf16 *)p.weight + (int64_t)c * WIDTH_MAX;
#pragma unroll
        for (int i = 0; i + 1 < VEC; i += 2) {
            float x[8];
            dev_load_vec<8>(x, w + i * WIDTH_MAX);
#pragma unroll
            for (int j = 0; j < WIDTH_MAX; j++) t.w[j][i] = x[j], t.w[j][i + 1] = x[j + 4];
            t.bias[i] = t.bias[i + 1] = 0.0f;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < VEC; i++) {
#pragma unroll
        for (int j = 0; j < WIDTH_MAX; j++) {
            int tap = j - (WIDTH_MAX - (int)p.width);
            t.w[j][i] = tap >= 0
                ? dev_load(p.weight, p.weight_dtype, (int64_t)(c + i) * p.width + tap) : 0.0f;
        }
        t.bias[i] = p.bias != 0 ? dev_load(p.bias, p.weight_dtype, c + i) : 0.0f;
    }
}

/* One output from the inputs x[0] (oldest) .. x[3]. */
template <int VEC>
SC_DEV void output(const taps<VEC> &t, const float (&x)[WIDTH_MAX][VEC],
    const sc_k_conv_prefill_params &p, int64_t token, uint32_t c)
{
    float y[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        float sum = t.bias[i];
#pragma unroll
        for (int j = 0; j < WIDTH_MAX; j++)
            if (j + (int)p.width >= WIDTH_MAX) sum = __fmaf_rn(t.w[j][i], x[j][i], sum);
        y[i] = p.act == SC_K_ACT_SILU ? dev_silu_fast(sum) : sum;
    }
    store<VEC>(y, p.y, p.dtype, token * p.y_stride + c);
}

template <int VEC> SC_DEV void shift(float (&x)[WIDTH_MAX][VEC])
{
#pragma unroll
    for (int j = 0; j + 1 < WIDTH_MAX; j++)
#pragma unroll
        for (int i = 0; i < VEC; i++) x[j][i] = x[j + 1][i];
}

/* Which row each token of the tile belongs to; -1 none. */
SC_DEV void tile_rows(int32_t *rows, const sc_k_conv_prefill_params &p, int64_t first)
{
    const int32_t *row_start = (const int32_t *)p.row_start;
    if (threadIdx.x < TILE) rows[threadIdx.x] = -1;
    __syncthreads();
    for (uint32_t r = threadIdx.x; r < p.row_count; r += THREADS) {
        int64_t from = row_start[r], end = row_start[r + 1];
        if (end <= from || from >= first + TILE || end <= first) continue;
        from = from > first ? from : first;
        end = end < first + TILE ? end : first + TILE;
        for (int64_t t = from; t < end; t++) rows[t - first] = (int32_t)r;
    }
    __syncthreads();
}

/* N tokens from `token` on, all of one row: every load is under way before the first output. */
template <int N, typename T, int VEC>
SC_DEV void tokens_together(const taps<VEC> &t, float (&x)[WIDTH_MAX][VEC],
    const sc_k_conv_prefill_params &p, int64_t token, uint32_t c)
{
    typedef std::conditional_t<VEC * sizeof(T) == 8, uint2, uint4> word;
    static_assert(VEC * sizeof(T) <= sizeof(uint4), "one load a token");
    word raw[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        raw[i] = *(const word *)((const T *)p.x + (token + i) * p.x_stride + c);
#pragma unroll
    for (int i = 0; i < N; i++) {
        dev_load_vec<VEC>(x[WIDTH_MAX - 1], (const T *)&raw[i]);
        if (sizeof(T) == 4 && p.window.dtype == SC_DTYPE_BF16)
#pragma unroll
            for (int j = 0; j < VEC; j++)
                x[WIDTH_MAX - 1][j] = dev_round<sc_bf16>(x[WIDTH_MAX - 1][j]);
        output<VEC>(t, x, p, token + i, c);
        shift<VEC>(x);
    }
}

/* The W - 1 inputs before `token`. */
template <int VEC>
SC_DEV void history(float (&x)[WIDTH_MAX][VEC], const sc_k_conv_prefill_params &p, int64_t start,
    int64_t token, const dev_begin &old, uint32_t c)
{
#pragma unroll
    for (int j = 0; j + 1 < WIDTH_MAX; j++) {
        uint32_t back = WIDTH_MAX - 1 - j;
        if (back < p.width)
            load_history<VEC>(x[j], p, start, token, back, old, c);
        else
            zero<VEC>(x[j]);
    }
}

/* T is the tensors' type where VEC is 4, else it does not matter. */
template <int VEC, typename T> __global__ void __launch_bounds__(THREADS)
prefill(const __grid_constant__ sc_k_conv_prefill_params p)
{
    __shared__ int32_t rows[TILE];
    dev_wait_previous();
    dev_release_next();
    int64_t first = (int64_t)blockIdx.y * TILE;
    tile_rows(rows, p, first);
    uint32_t c = (blockIdx.x * THREADS + threadIdx.x) * VEC;
    if (c >= p.channels) return;
    taps<VEC> t;
    float x[WIDTH_MAX][VEC];
    int32_t before = -2, source = 0;
    int64_t start = 0;
    taps_load<VEC>(t, p, c);
    /* The usual tile: one row. */
    if constexpr (VEC == 4) if (rows[0] >= 0 && rows[0] == rows[TILE - 1]) {
        start = ((const int32_t *)p.row_start)[rows[0]];
        source = ((const int32_t *)p.source)[rows[0]];
        if (source >= 0) {
            history<VEC>(x, p, start, first, old_window(p, source, rows[0]), c);
            for (int i = 0; i < TILE; i += 8) tokens_together<8, T>(t, x, p, first + i, c);
            return;
        }
    }
    for (int i = 0; i < TILE; i++) {
        int32_t row = rows[i];
        int64_t token = first + i;
        if (row < 0) {
            before = row;
            continue;
        }
        if (row != before) {
            start = ((const int32_t *)p.row_start)[row];
            source = ((const int32_t *)p.source)[row];
            if (source >= 0) history<VEC>(x, p, start, token, old_window(p, source, row), c);
            before = row;
        }
        if (source < 0) {
            zero<VEC>(x[WIDTH_MAX - 1]);
            store<VEC>(x[WIDTH_MAX - 1], p.y, p.dtype, token * p.y_stride + c);
            continue;
        }
        load_input<VEC>(x[WIDTH_MAX - 1], p, token, c);
        output<VEC>(t, x, p, token, c);
        shift<VEC>(x);
    }
}

/* The window after `count` tokens of a row goes to `slot`. */
template <int VEC>
SC_DEV void window_store(const sc_k_conv_prefill_params &p, int64_t start, int64_t count,
    const dev_begin &old, int32_t slot, uint32_t c)
{
    float x[WIDTH_MAX - 1][VEC];
#pragma unroll
    for (int j = 0; j < WIDTH_MAX - 1; j++)
        if (j + 1 < (int)p.width)
            load_history<VEC>(x[j], p, start, start + count, p.width - 1 - j, old, c);
#pragma unroll
    for (int j = 0; j < WIDTH_MAX - 1; j++)
        if (j + 1 < (int)p.width)
            store<VEC>(x[j], dev_slot(p.window, slot), p.window.dtype,
                (int64_t)j * p.channels + c);
}

template <int VEC> __global__ void __launch_bounds__(THREADS)
windows(const __grid_constant__ sc_k_conv_prefill_params p)
{
    dev_wait_previous();
    dev_release_next();
    uint32_t c = (blockIdx.x * THREADS + threadIdx.x) * VEC;
    if (c >= p.channels) return;
    const int32_t *row_start = (const int32_t *)p.row_start, *source = (const int32_t *)p.source;
    const int32_t *position = (const int32_t *)p.position;
    const int32_t *save_row = (const int32_t *)p.saves.row;
    const int32_t *save_pos = (const int32_t *)p.saves.pos;
    const int32_t *save_slot = (const int32_t *)p.saves.slot;
    int32_t near = (int32_t)p.width - 1;
    if (blockIdx.y >= p.row_count) { /* a save that needs no old window */
        uint32_t i = blockIdx.y - p.row_count;
        int32_t r = save_row[i];
        if (r < 0) return;
        int32_t count = save_pos[i] - (position != nullptr ? position[r] : 0);
        if (count >= near)
            window_store<VEC>(p, row_start[r], count, old_window(p, 0, r), save_slot[i], c);
        return;
    }
    uint32_t r = blockIdx.y;
    int32_t count = row_start[r + 1] - row_start[r];
    int32_t dest = ((const int32_t *)p.dest)[r];
    if (source[r] < 0) return;
    if (count < 0) count = 0;
    dev_begin old = old_window(p, source[r], r);
    for (uint32_t i = 0; i < p.saves.count && count > 0; i++) {
        if (save_row[i] != (int32_t)r) continue;
        int32_t after = save_pos[i] - (position != nullptr ? position[r] : 0);
        if (after < near) window_store<VEC>(p, row_start[r], after, old, save_slot[i], c);
    }
    if (dest > 0 && !(count == 0 && dest == source[r] && p.initial.base == 0))
        window_store<VEC>(p, row_start[r], count, old, dest, c);
}

/* A row's new window, to both of its destinations. */
template <int VEC>
SC_DEV void update_windows(const sc_k_conv_prefill_params &p, const float (&x)[WIDTH_MAX][VEC],
    int32_t dest, int32_t save, uint32_t c)
{
    int32_t slots[2] = {dest, save};
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int j = 1; j < WIDTH_MAX; j++) {
            int at = j - (WIDTH_MAX - (int)p.width) - 1;
            if (slots[n] > 0 && at >= 0)
                store<VEC>(x[j], dev_slot(p.window, slots[n]), p.window.dtype,
                    (int64_t)at * p.channels + c);
        }
}

/* Decode: row r is token r. The window is in registers before any of it is written, so reading and
 * writing in place need no order. */
template <int VEC> __global__ void __launch_bounds__(THREADS)
update(const __grid_constant__ sc_k_conv_prefill_params p, sc_devptr save, bool settled)
{
    if (!settled) dev_wait_previous();
    uint32_t c = (blockIdx.x * THREADS + threadIdx.x) * VEC;
    int64_t r = blockIdx.y;
    if (c >= p.channels) return;
    int32_t source = ((const int32_t *)p.source)[r], dest = ((const int32_t *)p.dest)[r];
    float x[WIDTH_MAX][VEC];
    taps<VEC> t;
    history<VEC>(x, p, r, r, old_window(p, source, (uint32_t)r), c);
    taps_load<VEC>(t, p, c);
    if (settled) dev_wait_previous();
    dev_release_next();
    if (source < 0) {
        zero<VEC>(x[0]);
        store<VEC>(x[0], p.y, p.dtype, r * p.y_stride + c);
        return;
    }
    load_input<VEC>(x[WIDTH_MAX - 1], p, r, c);
    output<VEC>(t, x, p, r, c);
    update_windows<VEC>(p, x, dest, save != 0 ? ((const int32_t *)save)[r] : -1, c);
}

/* 16-byte accesses everywhere? */
bool wide(const sc_k_conv_prefill_params &p)
{
    uint64_t elem = sc_kernel_elem_bytes(p.dtype), window = sc_kernel_elem_bytes(p.window.dtype);
    return p.channels % 8 == 0 && (p.x | p.y | p.window.base) % 16 == 0
        && (uint64_t)p.window.slot_stride % 16 == 0 && p.channels * window % 16 == 0
        && (uint64_t)p.x_stride * elem % 16 == 0 && (uint64_t)p.y_stride * elem % 16 == 0
        && (p.initial.base | (uint64_t)p.initial.slot_stride) % 16 == 0;
}

uint32_t blocks_of(const sc_k_conv_prefill_params &p, uint32_t vec)
{
    return (p.channels + THREADS * vec - 1) / (THREADS * vec);
}

sc_status too_many(const char *what, uint64_t count)
{
    return SC_FAIL(SC_ERR_LIMIT, "%llu %s: at most 65535 in one call", (unsigned long long)count,
        what);
}

} // namespace

sc_status sc_k_conv_prefill_sm90(const void *params, sc_stream *stream)
{
    sc_k_conv_prefill_params p = *(const sc_k_conv_prefill_params *)params;
    p.x_stride = sc_kernel_stride(p.x_stride, p.channels);
    p.y_stride = sc_kernel_stride(p.y_stride, p.channels);
    bool vec = wide(p);
    uint32_t x = blocks_of(p, vec ? 8 : 1), tiles = (p.token_count + TILE - 1) / TILE;
    uint64_t work = (uint64_t)p.row_count + p.saves.count;
    if (tiles > 65535) return too_many("tiles of 32 tokens", tiles);
    if (work > 65535) return too_many("rows and saves", work);
    if (tiles > 0)
        SC_TRY(sc_cuda_launch("conv", !vec ? prefill<1, float>
                : p.dtype == SC_DTYPE_F32 ? prefill<4, float> : prefill<4, sc_bf16>,
            dim3(blocks_of(p, vec ? 4 : 1), tiles), THREADS, 0, stream, p));
    dim3 grid(x, (uint32_t)work);
    return vec ? sc_cuda_launch("conv windows", windows<8>, grid, THREADS, 0, stream, p)
               : sc_cuda_launch("conv windows", windows<1>, grid, THREADS, 0, stream, p);
}

sc_status sc_k_conv_update_sm90(const void *params, sc_stream *stream)
{
    const sc_k_conv_update_params *u = (const sc_k_conv_update_params *)params;
    sc_k_conv_prefill_params p = {};
    p.x = u->x, p.y = u->y, p.dtype = u->dtype;
    p.x_stride = sc_kernel_stride(u->x_stride, u->channels);
    p.y_stride = sc_kernel_stride(u->y_stride, u->channels);
    p.weight = u->weight, p.bias = u->bias, p.weight_dtype = u->weight_dtype, p.act = u->act;
    p.channels = u->channels, p.width = u->width, p.row_count = u->row_count;
    p.source = u->source, p.dest = u->dest, p.window = u->window, p.initial = u->initial;
    if (u->row_count > 65535) return too_many("rows", u->row_count);
    if (sc_cuda_conv_update_fits(u)) return sc_cuda_conv_update_packed(u, stream);
    bool vec = wide(p);
    dim3 grid(blocks_of(p, vec ? 4 : 1), u->row_count);
    bool settled = u->window_settled && u->initial.base == 0; /* no promise for beginnings */
    return sc_cuda_launch("conv update", vec ? update<4> : update<1>, grid, THREADS, 0, stream, p,
        u->save, settled);
}
