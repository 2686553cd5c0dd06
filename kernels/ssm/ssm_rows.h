/* SPDX-License-Identifier: Apache-2.0 */
/* The row of Mamba-2 that kernel_dispatch.h does not name. */
#ifndef SC_SSM_ROWS_H
#define SC_SSM_ROWS_H

#include "kernels/backend.h"

sc_status sc_k_ssm_avx512_bf16(const void *params, sc_stream *stream);

#endif
