/* SPDX-License-Identifier: Apache-2.0 */
/* Where an input of a window lies. A window has `inputs` of them (W - 1, or more in wide rows):
 *
 *   width first   | input 0: all channels | input 1: all channels | ...
 *   dim first     | channel 0: all inputs | channel 1: all inputs | ... */
#ifndef SC_CONV_WINDOW_H
#define SC_CONV_WINDOW_H

#include "ref_math.h"

struct window {
    sc_k_order order;
    uint32_t inputs, channels;
};

/* Channels channel .. channel + n of input j. */
SC_REF_INLINE void window_line_load(float *restrict out, const struct window *w,
    const struct ref_begin *from, uint32_t j, uint32_t channel, uint32_t n)
{
    if (w->order == SC_K_ORDER_WIDTH_FIRST) {
        ref_begin_load(out, from, (int64_t)j * w->channels + channel, n);
        return;
    }
    for (uint32_t c = 0; c < n; c++)
        ref_begin_load(out + c, from, (int64_t)(channel + c) * w->inputs + j, 1);
}

SC_REF_INLINE void window_line_store(const float *line, const struct window *w, sc_devptr base,
    sc_dtype dtype, uint32_t j, uint32_t channel, uint32_t n)
{
    if (w->order == SC_K_ORDER_WIDTH_FIRST) {
        ref_store(line, base, dtype, (int64_t)j * w->channels + channel, n);
        return;
    }
    for (uint32_t c = 0; c < n; c++)
        ref_store(line + c, base, dtype, (int64_t)(channel + c) * w->inputs + j, 1);
}

#endif
