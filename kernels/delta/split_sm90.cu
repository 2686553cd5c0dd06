/* SPDX-License-Identifier: Apache-2.0 */
/* The columns [q | k | v] of a packed batch to three tensors.
 *
 *   grid x: tokens      y: blocks of columns
 *   thread  16 bytes of a row, where everything lies on 16 bytes, else one element
 *
 * Bytes: what is copied, once in and once out. */
#include "cuda/device_math.cuh"

#include "cuda/launch.cuh"
#include "kernel_dispatch.h"

namespace {

enum { THREADS = 256 };

/* A third of the row: where it goes (0: nowhere), bytes from one token to the next, and the unit
 * behind its last. */
struct third {
    sc_devptr to;
    uint64_t pitch, first, end;
};

struct split_call {
    sc_devptr from;
    uint64_t pitch;
    third thirds[3];
};

/* Units are of W bytes. */
template <typename W> __global__ void __launch_bounds__(THREADS)
split(const __grid_constant__ split_call s)
{
    dev_wait_previous();
    dev_release_next();
    uint64_t unit = (uint64_t)blockIdx.y * THREADS + threadIdx.x, token = blockIdx.x;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const third &x = s.thirds[i];
        if (unit >= x.first && unit < x.end && x.to != 0)
            ((W *)(x.to + token * x.pitch))[unit - x.first] =
                ((const W *)(s.from + token * s.pitch))[unit];
    }
}

} // namespace

sc_status sc_k_qkv_split_sm90(const void *params, sc_stream *stream)
{
    const sc_k_qkv_split_params *p = (const sc_k_qkv_split_params *)params;
    uint64_t elem = sc_kernel_elem_bytes(p->dtype), qk = p->qk_dim * elem, v = p->v_dim * elem;
    const sc_devptr to[3] = {p->q, p->k, p->v};
    const int64_t strides[3] = {p->q_stride, p->k_stride, p->v_stride};
    const uint64_t width[3] = {qk, qk, v};
    split_call s = {p->qkv, (uint64_t)sc_kernel_stride(p->qkv_stride, 0) * elem, {}};
    if (s.pitch == 0) s.pitch = 2 * qk + v;
    uint64_t all = p->qkv | s.pitch, at = 0;
    for (int i = 0; i < 3; i++) {
        uint64_t pitch = strides[i] != 0 ? (uint64_t)strides[i] * elem : width[i];
        s.thirds[i] = {to[i], pitch, at, at + width[i]};
        all |= width[i];
        if (to[i] != 0) all |= to[i] | pitch;
        at += width[i];
    }
    uint64_t bytes = all % 16 == 0 ? 16 : elem, blocks = (at / bytes + THREADS - 1) / THREADS;
    for (third &x : s.thirds) x.first /= bytes, x.end /= bytes;
    if (blocks > 65535)
        return SC_FAIL(SC_ERR_LIMIT, "rows of %llu bytes: too long for one call",
            (unsigned long long)at);
    dim3 grid(p->token_count, (uint32_t)blocks);
    auto kernel = bytes == 16 ? split<uint4> : bytes == 4 ? split<uint32_t> : split<uint16_t>;
    return sc_cuda_launch("qkv split", kernel, grid, THREADS, 0, stream, s);
}
