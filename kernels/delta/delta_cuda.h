/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA forms of the delta rule share on the host side. */
#ifndef SC_DELTA_CUDA_H
#define SC_DELTA_CUDA_H

#include <math.h>

#include "kernel_dispatch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The general decode: any dims and alignment, the bits of the token-by-token kernel. */
sc_status sc_cuda_delta_walk_decode(const sc_k_decode_params *params, sc_stream *stream);

/* Conv and decode of a small batch in one launch (step_sm90.cu). Both calls have been checked. */
bool sc_cuda_step_fits(const sc_k_conv_update_params *conv,
    const sc_k_decode_packed_params *decode);
sc_status sc_cuda_step(const sc_k_conv_update_params *conv,
    const sc_k_decode_packed_params *decode, sc_stream *stream);

/* Bytes of scratch of the chunk form on a device. */
uint64_t sc_cuda_delta_chunk_scratch(const sc_k_delta_params *params);

static inline float sc_cuda_delta_scale(const sc_k_delta_shape *shape)
{
    return shape->scale != 0.0f ? shape->scale : 1.0f / sqrtf((float)shape->k_dim);
}

#ifdef __cplusplus
}
#endif
#endif
