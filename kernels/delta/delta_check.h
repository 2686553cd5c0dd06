/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the launchers of the delta rule share. */
#ifndef SC_DELTA_CHECK_H
#define SC_DELTA_CHECK_H

#include "kernel_check.h"
#include "kernel_dispatch.h"

sc_status sc_delta_check_shape(const sc_k_delta_shape *shape, const sc_k_slots *state);
/* A packed row as q, k and v of its own pitch. */
static inline sc_k_decode_params delta_unpack(const sc_k_decode_packed_params *p)
{
    const sc_k_delta_shape *s = &p->shape;
    uint64_t elem_bytes = sc_kernel_elem_bytes(p->dtype), qk = (uint64_t)s->heads * s->k_dim;
    int64_t pitch = sc_kernel_stride(p->qkv_stride, 2 * qk + (uint64_t)s->v_heads * s->v_dim);
    return (sc_k_decode_params){.q = p->qkv, .k = p->qkv + qk * elem_bytes,
        .v = p->qkv + 2 * qk * elem_bytes, .o = p->o, .q_stride = pitch, .k_stride = pitch,
        .v_stride = pitch, .o_stride = p->o_stride, .dtype = p->dtype, .g = p->g, .beta = p->beta,
        .a = p->a, .b = p->b, .a_stride = p->a_stride, .b_stride = p->b_stride,
        .weights = p->weights, .shape = *s, .row_count = p->row_count, .source = p->source,
        .dest = p->dest, .save = p->save, .state = p->state, .initial = p->initial,
        .state_settled = p->state_settled};
}

/* Tensors and index arrays of a packed batch, dest not among them. `outputs`: with q and o. */
sc_status sc_delta_check_tokens(const sc_k_delta_params *params, bool outputs);

sc_status sc_delta_check_dims(const sc_k_delta_shape *shape);
/* All of a packed decode, and the row of `op` that serves it. */
sc_status sc_delta_check_decode(const sc_backend *backend, sc_k_op op,
    const sc_k_decode_packed_params *params, const struct sc_kernel_row **row_out);

#endif
