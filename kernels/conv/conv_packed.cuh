/* SPDX-License-Identifier: Apache-2.0 */
/* The conv of one token over packed bf16: what the update and the decode step share.
 *
 * Inputs, windows and weights stay packed until they are used, so that much can be under way in few
 * registers. Channels come in pairs, one 32-bit word; a pair's taps are 16 bytes, oldest first:
 *
 *   weight [c][0..3] [c + 1][0..3]      window rows 0 (oldest) .. 2, then x      one word each
 *
 * Sums begin with 0 and add taps oldest first, fused: the bits of conv_sm90.cu. */
#ifndef SC_CONV_PACKED_CUH
#define SC_CONV_PACKED_CUH

#include "cuda/device_math.cuh"

/* Two outputs, packed as the tensor holds them. */
SC_DEV uint32_t conv_pair(const uint4 &taps, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t x,
    bool silu)
{
    float low = __fmaf_rn(dev_low(taps.x), dev_low(w0), 0.0f);
    float high = __fmaf_rn(dev_low(taps.z), dev_high(w0), 0.0f);
    low = __fmaf_rn(dev_high(taps.x), dev_low(w1), low);
    high = __fmaf_rn(dev_high(taps.z), dev_high(w1), high);
    low = __fmaf_rn(dev_low(taps.y), dev_low(w2), low);
    high = __fmaf_rn(dev_low(taps.w), dev_high(w2), high);
    low = __fmaf_rn(dev_high(taps.y), dev_low(x), low);
    high = __fmaf_rn(dev_high(taps.w), dev_high(x), high);
    return silu ? dev_pack(dev_silu_fast(low), dev_silu_fast(high)) : dev_pack(low, high);
}

#endif
