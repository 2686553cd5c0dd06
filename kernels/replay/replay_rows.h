/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of steps with a ring that kernel_dispatch.h does not name. */
#ifndef SC_REPLAY_ROWS_H
#define SC_REPLAY_ROWS_H

#include "kernels/backend.h"

sc_status sc_k_replay_delta_avx512_bf16(const void *params, sc_stream *stream);
sc_status sc_k_replay_delta_fold_avx512_bf16(const void *params, sc_stream *stream);
sc_status sc_k_replay_ssm_avx512_bf16(const void *params, sc_stream *stream);
sc_status sc_k_replay_ssm_fold_avx512_bf16(const void *params, sc_stream *stream);

#endif
