/* SPDX-License-Identifier: Apache-2.0 */
/** One linear layer (GDN, KDA, Mamba-2) in one call: from the packed row [q | k | v] before the
 * conv and the raw gates to the outputs before the gated norm, states and windows included.
 *
 *   x [q|k|v] --conv--> y ---.
 *   a, b      --gates-----> delta rule --> o         windows and states: slots, read and written
 *
 *   x [x|B|C] --conv--> y ---.
 *   a: dt     -------------> state space --> o       Mamba-2: decode and extend; one window
 *
 *   decode    one token in each row (recurrent form)
 *   extend    rows of any length (chunk form), with saves on the grid
 *   verify    draft tokens, chains or trees: outputs, no slot written
 *   commit    what was accepted of them, from the same x, a and b
 *
 * A device row that does several of these steps in one launch serves where there is one
 * (sc_k_decode_step); else the operations of kernels.h follow each other through scratch. Either
 * way the bits are those of calling them one by one. Everything is checked before the first of
 * them writes: on error nothing has changed. Rows, slots, saves, padding, errors and threads are
 * those of kernels.h and kernels_draft.h. */
#ifndef STATECACHE_KERNELS_LINEAR_H
#define STATECACHE_KERNELS_LINEAR_H

#include "statecache/kernels_draft.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SC_LINEAR_WINDOWS_MAX = 3 };

/** What a layer of Mamba-2 is beside its conv (kernels_ssm.h); `heads` 0: it is none. */
typedef struct sc_linear_ssm {
    sc_devptr a_log;     /* [heads] fp32 */
    sc_devptr dt_bias;   /* [heads] fp32, or 0 */
    sc_devptr d;         /* [heads] fp32, or 0 */
    uint32_t heads;
    uint32_t groups;
    uint32_t head_dim;   /* P */
    uint32_t state_dim;  /* N */
} sc_linear_ssm;

/** What a layer is: constant while a model is loaded. With `ssm`, `shape` and `gates` are not used,
 * and channels are heads * head_dim + 2 * groups * state_dim. */
typedef struct sc_linear_layer {
    sc_k_delta_shape shape;
    sc_devptr conv_weight;   /* [2 * heads * k_dim + v_heads * v_dim, conv_width] */
    sc_devptr conv_bias;     /* one for each channel, or 0 */
    sc_dtype conv_dtype;     /* of both */
    sc_k_act conv_act;
    uint32_t conv_width;
    sc_k_gate_weights gates; /* A_log, dt_bias, gate kind */
    uint32_t chunk;          /* extend: 16, 32 or 64; Mamba-2: a power of two from 16 to 256 */
    sc_linear_ssm ssm;
} sc_linear_layer;

/** What one call works on. A form leaves out (0) what it does not use. */
typedef struct sc_linear_batch {
    sc_devptr x;           /* [token_count, x_stride] before the conv */
    sc_devptr a;           /* [token_count, a_stride] raw gates, as in sc_k_gates_params; or dt */
    sc_devptr b;           /* [token_count, b_stride] raw strengths; Mamba-2: unused */
    sc_devptr o;           /* out [token_count, o_stride]; commit: unused */
    int64_t x_stride;      /* elements; 0: dense */
    int64_t a_stride;
    int64_t b_stride;
    int64_t o_stride;
    sc_dtype dtype;        /* of x, a, b, o */
    uint32_t token_count;  /* decode: row_count */
    uint32_t row_count;
    sc_devptr row_start;   /* [row_count + 1] int32; decode: unused */
    sc_devptr position;    /* [row_count] int32, extend and commit; 0: all zero */
    sc_devptr source;      /* [row_count] int32 */
    sc_devptr dest;        /* [row_count] int32; verify: unused */
    sc_devptr save;        /* decode: second destination, or 0 */
    sc_k_saves saves;      /* extend, commit */
    sc_k_slots window[SC_LINEAR_WINDOWS_MAX];
    uint32_t window_count; /* 1: q, k, v in one window; 3: each in its own */
    sc_k_slots state;
    sc_devptr parent;      /* verify, commit: [token_count] int32, or 0: chains */
    sc_devptr node;        /* commit: [row_count] int32 */
    uint32_t tokens_max;   /* verify: of a row, at most SC_K_DRAFT_MAX */
    sc_k_node_store states;  /* verify, commit: what nodes leave, or none */
    sc_k_node_store windows[SC_LINEAR_WINDOWS_MAX];
    sc_devptr scratch;     /* 64-byte aligned, of no other call that may run meanwhile */
    uint64_t scratch_bytes;
    bool settled;          /* decode: both promises of kernels.h (state_settled) */
    sc_k_order order;      /* of all windows */
} sc_linear_batch;

typedef enum sc_linear_form {
    SC_LINEAR_DECODE = 1,
    SC_LINEAR_EXTEND = 2,
    SC_LINEAR_VERIFY = 3,
    SC_LINEAR_COMMIT = 4
} sc_linear_form;

/** Bytes of scratch that a call of this form needs for token_count tokens (and tokens_max);
 * pointers are ignored. SC_ERR_INVALID, SC_ERR_UNSUPPORTED. */
SC_API sc_status sc_linear_scratch(sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_linear_form form, uint64_t *bytes_out);

/** SC_ERR_INVALID, SC_ERR_UNSUPPORTED. */
SC_API sc_status sc_linear_decode(sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_stream *stream);
/** SC_ERR_INVALID, SC_ERR_UNSUPPORTED. */
SC_API sc_status sc_linear_extend(sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_stream *stream);
/** SC_ERR_INVALID, SC_ERR_UNSUPPORTED (Mamba-2 layers, too: no kernel verifies drafts there). */
SC_API sc_status sc_linear_verify(sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_stream *stream);
/** As sc_linear_verify(). */
SC_API sc_status sc_linear_commit(sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
