/* SPDX-License-Identifier: Apache-2.0 */
/* What the two chunk kernels on the tensor cores share: m16n8k16 on bf16 with fp32 sums, its
 * operands in shared memory, and numbers as sums of two bf16.
 *
 * q, k and v are bf16 as they come; everything else is fp32 and goes in as hi + lo, 16 bits of
 * mantissa. A product of two such numbers is hi hi + hi lo + lo hi. */
#ifndef SC_CHUNK_MMA_CUH
#define SC_CHUNK_MMA_CUH

#include "delta/chunk_common.cuh"

namespace {

enum { D = 128, C = 64, SUB = 16, QK_STRIDE = D + 8, CC_STRIDE = C + 8 };

SC_DEV void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two neighbouring tiles of 8 columns. */
SC_DEV void mma_two(float (&c)[2][4], const uint32_t (&a)[4], const uint32_t (&b)[4])
{
    mma(c[0], a, b[0], b[1]);
    mma(c[1], a, b[2], b[3]);
}

template <bool TRANSPOSE> SC_DEV void matrices(uint32_t (&r)[4], const sc_bf16 *lane_row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(lane_row);
    if constexpr (TRANSPOSE)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
            : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
            : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

/* A tile of 16 x 16 of the left operand, stored by rows [m][k]. */
SC_DEV void left(uint32_t (&r)[4], const sc_bf16 *base, uint32_t stride, uint32_t m, uint32_t k)
{
    uint32_t l = threadIdx.x % 32;
    matrices<false>(r, base + (m + l % 16) * stride + k + l / 16 * 8);
}

/* The same, stored as [k][m]. */
SC_DEV void left_t(uint32_t (&r)[4], const sc_bf16 *base, uint32_t stride, uint32_t m, uint32_t k)
{
    uint32_t l = threadIdx.x % 32;
    matrices<true>(r, base + (k + l % 8 + l / 16 * 8) * stride + m + l / 8 % 2 * 8);
}

/* 16 of k by 16 columns of the right operand, stored as [n][k]. */
SC_DEV void right_t(uint32_t (&r)[4], const sc_bf16 *base, uint32_t stride, uint32_t k, uint32_t n)
{
    uint32_t l = threadIdx.x % 32;
    matrices<false>(r, base + (n + l % 8 + l / 16 * 8) * stride + k + l / 8 % 2 * 8);
}

/* The same, stored as [k][n]. */
SC_DEV void right(uint32_t (&r)[4], const sc_bf16 *base, uint32_t stride, uint32_t k, uint32_t n)
{
    uint32_t l = threadIdx.x % 32;
    matrices<true>(r, base + (k + l % 16) * stride + n + l / 16 * 8);
}

/* Two numbers as hi and lo. */
SC_DEV void split(uint32_t &hi, uint32_t &lo, float x, float y)
{
    hi = dev_pack(x, y);
    lo = dev_pack(x - dev_low(hi), y - dev_high(hi));
}

SC_DEV void split_one(sc_bf16 *hi, sc_bf16 *lo, float x)
{
    *hi = dev_narrow<sc_bf16>(x);
    *lo = dev_narrow<sc_bf16>(x - dev_widen(*hi));
}

/* 8 values of a tensor that may lie anywhere. */
SC_DEV uint4 eight(const sc_bf16 *from, bool aligned)
{
    if (aligned) return *(const uint4 *)from;
    union {
        uint4 all;
        sc_bf16 one[8];
    } x;
#pragma unroll
    for (int i = 0; i < 8; i++) x.one[i] = from[i];
    return x.all;
}

SC_DEV bool on_16_bytes(sc_devptr base, int64_t stride)
{
    return (base | (uint64_t)stride * 2) % 16 == 0;
}

} // namespace

/* chunk_mma_prepare_sm90.cu */
sc_status sc_chunk_mma_prepare(const chunk_call &x, sc_stream *stream);

#endif
