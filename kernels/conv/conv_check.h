/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the launchers of the conv share. */
#ifndef SC_CONV_CHECK_H
#define SC_CONV_CHECK_H

#include "kernel_check.h"

sc_status sc_conv_check_common(uint32_t channels, uint32_t width, sc_dtype dtype, sc_k_act act,
    const sc_k_slots *window);
sc_status sc_conv_check_weights(sc_devptr weight, sc_devptr bias, sc_dtype dtype);
/* x and y of `tokens` > 0 tokens, which must not overlap. */
sc_status sc_conv_check_xy(sc_devptr x, int64_t x_stride, sc_devptr y, int64_t y_stride,
    sc_dtype dtype, uint32_t channels, uint32_t tokens);

#endif
