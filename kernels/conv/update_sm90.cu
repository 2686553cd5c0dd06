/* SPDX-License-Identifier: Apache-2.0 */
/* The conv of one token a row (decode) for bf16 tensors, windows and weights, width 4.
 *
 *   grid x: blocks of channels      y: ROWS rows of the batch
 *   thread  VEC channels of ROWS rows; index, window and weight loads of all of them are under way
 *           before the kernel before has ended, where the caller promises that it may
 *
 * A window's words are in registers before any is written, so reading and writing in place need no
 * order. Bytes: x and y once, the window in and out once, weights once for ROWS rows (from L2). */
#include "conv/conv_packed.cuh"

#include "conv/conv_cuda.h"
#include "cuda/launch.cuh"

namespace {

/* VEC channels of bf16, VEC / 2 words. */
template <int VEC> struct channels {
    uint32_t w[VEC / 2];
};

template <int VEC> SC_DEV channels<VEC> words_load(const sc_bf16 *from)
{
    channels<VEC> x;
    if constexpr (VEC == 8) {
        uint4 raw = *(const uint4 *)from;
        x.w[0] = raw.x, x.w[1] = raw.y, x.w[2] = raw.z, x.w[3] = raw.w;
    } else {
        uint2 raw = *(const uint2 *)from;
        x.w[0] = raw.x, x.w[1] = raw.y;
    }
    return x;
}

template <int VEC> SC_DEV void words_store(sc_bf16 *to, const channels<VEC> &x)
{
    if constexpr (VEC == 8)
        *(uint4 *)to = make_uint4(x.w[0], x.w[1], x.w[2], x.w[3]);
    else
        *(uint2 *)to = make_uint2(x.w[0], x.w[1]);
}

template <int VEC>
SC_DEV void window_store(const sc_k_conv_update_params &p, int32_t slot, uint32_t c,
    const channels<VEC> (&window)[3], const channels<VEC> &x)
{
    if (slot <= 0) return;
    sc_bf16 *to = (sc_bf16 *)dev_slot(p.window, slot) + c;
    words_store<VEC>(to, window[1]);
    words_store<VEC>(to + p.channels, window[2]);
    words_store<VEC>(to + 2ull * p.channels, x);
}

template <int VEC, int ROWS, int THREADS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
update_rows(const __grid_constant__ sc_k_conv_update_params p)
{
    uint32_t c = (blockIdx.x * THREADS + threadIdx.x) * VEC, r0 = blockIdx.y * ROWS;
    if (!p.window_settled) dev_wait_previous();
    bool real = c < p.channels;
    int32_t source[ROWS];
    channels<VEC> window[ROWS][3];
    uint4 taps[VEC / 2];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        source[i] = real && r0 + i < p.row_count ? ((const int32_t *)p.source)[r0 + i] : -1;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < 3; j++) {
            window[i][j] = {};
            if (source[i] > 0)
                window[i][j] = words_load<VEC>((const sc_bf16 *)dev_slot(p.window, source[i])
                    + (uint64_t)j * p.channels + c);
        }
#pragma unroll
    for (int i = 0; i < VEC / 2; i++)
        taps[i] = real ? ((const uint4 *)p.weight)[c / 2 + i] : make_uint4(0, 0, 0, 0);
    if (p.window_settled) dev_wait_previous();
    dev_release_next();
    channels<VEC> x[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        x[i] = source[i] >= 0
            ? words_load<VEC>((const sc_bf16 *)p.x + (int64_t)(r0 + i) * p.x_stride + c)
            : channels<VEC>{};
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        channels<VEC> y = {};
        if (!real || r0 + i >= p.row_count) return;
        if (source[i] >= 0)
#pragma unroll
            for (int j = 0; j < VEC / 2; j++)
                y.w[j] = conv_pair(taps[j], window[i][0].w[j], window[i][1].w[j],
                    window[i][2].w[j], x[i].w[j], p.act == SC_K_ACT_SILU);
        words_store<VEC>((sc_bf16 *)p.y + (int64_t)(r0 + i) * p.y_stride + c, y);
        if (source[i] < 0) continue;
        window_store<VEC>(p, ((const int32_t *)p.dest)[r0 + i], c, window[i], x[i]);
        if (p.save != 0)
            window_store<VEC>(p, ((const int32_t *)p.save)[r0 + i], c, window[i], x[i]);
    }
}

template <int VEC, int ROWS, int THREADS, int BLOCKS>
sc_status launch(const sc_k_conv_update_params &p, sc_stream *stream)
{
    dim3 grid((p.channels + THREADS * VEC - 1) / (THREADS * VEC),
        (p.row_count + ROWS - 1) / ROWS);
    return sc_cuda_launch("conv update", update_rows<VEC, ROWS, THREADS, BLOCKS>, grid, THREADS, 0,
        stream, p);
}

} // namespace

bool sc_cuda_conv_update_fits(const sc_k_conv_update_params *p)
{
    return p->dtype == SC_DTYPE_BF16 && p->window.dtype == SC_DTYPE_BF16
        && p->weight_dtype == SC_DTYPE_BF16 && p->width == 4 && p->bias == 0
        && p->initial.base == 0 && p->channels % 8 == 0
        && (p->x | p->y | p->weight | p->window.base | (uint64_t)p->window.slot_stride) % 16 == 0
        && (uint64_t)p->x_stride % 8 == 0 && (uint64_t)p->y_stride % 8 == 0;
}

/* Few rows want many threads, many rows want much under way in each (measured on an H200). */
sc_status sc_cuda_conv_update_packed(const sc_k_conv_update_params *params, sc_stream *stream)
{
    sc_k_conv_update_params p = *params;
    p.x_stride = sc_kernel_stride(p.x_stride, p.channels);
    p.y_stride = sc_kernel_stride(p.y_stride, p.channels);
    return p.row_count < 192 ? launch<4, 1, 256, 8>(p, stream) : launch<8, 2, 128, 8>(p, stream);
}
