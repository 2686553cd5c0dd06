/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the KDA stage. A run has these parts; the middle one is a row of the kernel table or
 * the chain:
 *
 *   in_proj (if given) --> x --> [ update: conv .. norm ] --> y --> o_proj, reduce (if given)
 *                                  '- z: folded, a product before it, or given
 *
 *   scratch  | x | y | z | row_start | the update's own |      pieces that a run does not need
 *                                                              have no bytes */
#ifndef SC_KDA_STAGE_H
#define SC_KDA_STAGE_H

#include "base/heap.h"
#include "kernel_check.h"
#include "statecache/kernels_draft.h"
#include "statecache/kernels_stage.h"

/* GROUP: requests whose products the host's row makes together. */
enum { SC_STAGE_KEYS = 64, SC_STAGE_ALIGN = 16, SC_STAGE_GROUP = 4 };

/* One update: what the one-call row gets, checked. */
struct sc_kda_update_params {
    const sc_kda_stage_options *options;
    const float *conv;   /* [3][width][heads * dim] */
    const float *norm;   /* [dim] */
    sc_kda_columns columns;
    sc_devptr x, y, z;   /* z 0: folded */
    int64_t x_stride, y_stride, z_stride;
    sc_dtype z_dtype;
    uint32_t requests, tokens;
    sc_devptr source, dest, save; /* dest 0: nothing is written */
    sc_k_slots window, state;
    sc_k_order window_order;
    sc_devptr row_start; /* [requests + 1] int32, of the chain */
    sc_devptr scratch;
    uint64_t scratch_bytes;
};

struct sc_kda_stage {
    sc_kda_stage_options options;
    sc_backend *backend;
    struct sc_heap heap;
    float *packed;       /* conv, then norm */
    uint64_t packed_bytes;
    sc_kda_columns columns;
    struct sc_kda_prepared {
        sc_kda_stage_key key; /* with its defaults filled in */
        sc_kda_gate_path path;
        uint64_t scratch_bytes;
    } keys[SC_STAGE_KEYS];
    uint32_t key_count;
    uint64_t counts[5], fused, chained, gemm_calls; /* atomic, relaxed: no reader waits for them */
};

/* Bytes of an update's own scratch: of the one-call row, of the chain. */
uint64_t sc_kda_update_scratch(const sc_kda_stage_options *options, uint32_t tokens);
sc_status sc_kda_chain_scratch(const sc_kda_stage *stage, const sc_kda_stage_key *key,
    uint64_t *bytes_out);
/* The chain: checks all of its operations, then launches them. */
sc_status sc_kda_chain(sc_kda_stage *stage, const struct sc_kda_update_params *params,
    sc_stream *stream);
/* A thin product, or the caller's where numerics and size allow. */
sc_status sc_kda_product(sc_kda_stage *stage, const sc_k_project_params *product,
    sc_stream *stream);

#endif
