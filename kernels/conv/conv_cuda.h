/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA forms of the conv share on the host side. */
#ifndef SC_CONV_CUDA_H
#define SC_CONV_CUDA_H

#include "kernel_dispatch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The update of bf16 tensors, windows and weights of width 4 on 16 bytes (update_sm90.cu). */
bool sc_cuda_conv_update_fits(const sc_k_conv_update_params *params);
sc_status sc_cuda_conv_update_packed(const sc_k_conv_update_params *params, sc_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
