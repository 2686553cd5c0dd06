/* SPDX-License-Identifier: Apache-2.0 */
/** The selective state space of Mamba-2 layers: token by token for decode (and for prefill of any
 * length), chunk by chunk for prefill.
 *
 *   dt = softplus(raw + dt_bias)       S <- S exp(A dt) + (dt x) B^T       y = S C + D x
 *
 * with A = -exp(a_log) for each head; then y <- y silu(z) if z is given. fp32 throughout; softplus
 * as in sc_k_gates(). The conv before it (x | B | C packed, with bias) is sc_k_conv_prefill() and
 * sc_k_conv_update() on heads * head_dim + 2 * groups * state_dim channels; the gated norm after it
 * is sc_k_gated_rmsnorm() with gate_first, z left out here.
 *
 * The host walks token by token and rounds 16-bit states after each, so a sequence may be cut and
 * saved anywhere: same bits. Rows, slots, padding, errors and threads are those of kernels.h. So
 * far the host alone has rows; other backends answer SC_ERR_UNSUPPORTED. */
#ifndef STATECACHE_KERNELS_SSM_H
#define STATECACHE_KERNELS_SSM_H

#include "statecache/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sc_k_ssm_params {
    sc_devptr x;         /* [token_count, x_stride]: heads * head_dim used */
    sc_devptr dt;        /* [token_count, dt_stride]: heads used, raw */
    sc_devptr b;         /* [token_count, b_stride]: groups * state_dim used */
    sc_devptr c;         /* [token_count, c_stride]: groups * state_dim used */
    sc_devptr z;         /* [token_count, z_stride]: the gate, heads * head_dim used; or 0 */
    sc_devptr y;         /* out [token_count, y_stride]: heads * head_dim written */
    int64_t x_stride;    /* elements; 0: dense */
    int64_t dt_stride;
    int64_t b_stride;
    int64_t c_stride;
    int64_t z_stride;
    int64_t y_stride;
    sc_dtype dtype;      /* of all of these: F32 or BF16 */
    sc_devptr a_log;     /* [heads] fp32 */
    sc_devptr dt_bias;   /* [heads] fp32, or 0 */
    sc_devptr d;         /* [heads] fp32, or 0: no skip */
    uint32_t heads;
    uint32_t groups;     /* divides heads; head h reads group h / (heads / groups) */
    uint32_t head_dim;   /* P, 1 .. 256 */
    uint32_t state_dim;  /* N, 1 .. 256 */
    uint32_t token_count;
    uint32_t row_count;
    sc_devptr row_start; /* [row_count + 1] int32 */
    sc_devptr position;  /* [row_count] int32; 0: all zero */
    sc_devptr source;    /* [row_count] int32 */
    sc_devptr dest;      /* [row_count] int32 */
    sc_k_saves saves;    /* at any position within the row */
    sc_k_slots state;    /* [slot][heads][head_dim][state_dim] */
    sc_k_slots initial;  /* base not 0: dense beginnings, [row_count] parts like those of `state` */
} sc_k_ssm_params;

SC_API sc_status sc_k_ssm(sc_backend *backend, const sc_k_ssm_params *params, sc_stream *stream);

/** The same chunk by chunk (the SSD form), on the grid of absolute positions of each sequence: a
 * chunk ends where position % chunk == 0, the first and the last may be shorter. Saves lie at
 * multiples of `chunk`; 16-bit states are rounded at each chunk's end. So a sequence may be cut at
 * grid points and packed with others in any way: same bits. */
typedef struct sc_k_ssm_chunk_params {
    sc_k_ssm_params tokens;
    uint32_t chunk;     /* a power of two from 16 to 256 */
    sc_devptr scratch;  /* 64-byte aligned, of no other call that may run meanwhile */
    uint64_t scratch_bytes;
} sc_k_ssm_chunk_params;

SC_API sc_status sc_k_ssm_chunk(sc_backend *backend, const sc_k_ssm_chunk_params *params,
    sc_stream *stream);
/** Bytes of scratch that a call with these shapes needs, whatever its rows and tokens; pointers are
 * ignored. SC_ERR_INVALID. */
SC_API sc_status sc_k_ssm_chunk_scratch(sc_backend *backend, const sc_k_ssm_chunk_params *params,
    uint64_t *bytes_out);

#ifdef __cplusplus
}
#endif
#endif
