/* SPDX-License-Identifier: Apache-2.0 */
/* The KDA stage by single operations, for keys that were not prepared: the bits of the one-call
 * row.
 *
 *   scratch  | q k v after the conv | decay, raw fp32 | g fp32 | beta fp32 | o | verify's own | */
#include <string.h>

#include "base/error.h"
#include "kernel_calls.h"
#include "stage/stage.h"

struct chain {
    const struct sc_kda_update_params *u;
    const sc_kda_stage_options *o;
    uint64_t all, rows, elem_bytes; /* heads * dim; tokens of the call */
    sc_devptr y, raw, g, beta, out, rest;
    uint64_t rest_bytes;
};

static uint64_t piece(uint64_t *used, uint64_t bytes)
{
    uint64_t at = *used;
    *used += (bytes + 63) / 64 * 64;
    return at;
}

/* Places the pieces from `base` on; their bytes. */
static uint64_t chain_pieces(struct chain *c, sc_devptr base)
{
    uint64_t used = 0, wide = c->rows * c->all;
    c->y = base + piece(&used, 3 * wide * c->elem_bytes);
    c->raw = base + piece(&used, wide * sizeof(float));
    c->g = base + piece(&used, wide * sizeof(float));
    c->beta = base + piece(&used, c->rows * c->o->heads * sizeof(float));
    c->out = base + piece(&used, wide * c->elem_bytes);
    c->rest = base + used;
    return used;
}

static sc_k_delta_shape shape_of(const sc_kda_stage_options *o)
{
    return (sc_k_delta_shape){.kind = SC_K_KIND_KDA, .heads = o->heads, .v_heads = o->heads,
        .k_dim = o->dim, .v_dim = o->dim, .scale = o->scale, .qk_l2norm = true};
}

static struct chain chain_of(const sc_kda_stage_options *o, uint64_t rows)
{
    return (struct chain){.o = o, .all = (uint64_t)o->heads * o->dim, .rows = rows,
        .elem_bytes = sc_kernel_elem_bytes(o->dtype)};
}

sc_status sc_kda_chain_scratch(const sc_kda_stage *stage, const sc_kda_stage_key *key,
    uint64_t *bytes_out)
{
    struct chain c = chain_of(&stage->options, (uint64_t)key->requests * key->tokens);
    uint64_t used = chain_pieces(&c, 0), verify = 0;
    if (c.rows > INT32_MAX) return SC_FAIL(SC_ERR_INVALID, "%llu tokens in one call",
        (unsigned long long)c.rows);
    sc_k_delta_verify_params p = {.tokens = {.shape = shape_of(&stage->options)},
        .tokens_max = key->tokens};
    if (key->tokens > 1) SC_TRY(sc_k_delta_verify_scratch(stage->backend, &p, &verify));
    *bytes_out = used + verify;
    return SC_OK;
}

static sc_k_conv_prefill_params conv_params(const struct chain *c)
{
    const struct sc_kda_update_params *u = c->u;
    return (sc_k_conv_prefill_params){.x = u->x + u->columns.qkv * c->elem_bytes, .y = c->y,
        .x_stride = u->x_stride, .dtype = c->o->dtype, .weight = c->o->conv_weight,
        .weight_dtype = c->o->weight_dtype, .act = SC_K_ACT_SILU,
        .channels = (uint32_t)(3 * c->all), .width = c->o->conv_width,
        .token_count = (uint32_t)c->rows, .row_count = u->requests, .row_start = u->row_start,
        .source = u->source, .dest = u->dest, .window = u->window, .order = u->window_order};
}

/* The decay: f_b, then the gate on fp32; beta from x. */
static sc_status run_gates(sc_kda_stage *stage, const struct chain *c, sc_stream *stream)
{
    const struct sc_kda_update_params *u = c->u;
    const sc_kda_stage_options *o = c->o;
    sc_k_project_params f = {.x = u->x + u->columns.f_a * c->elem_bytes, .weight = o->f_b,
        .y = c->raw, .x_stride = u->x_stride, .dtype = o->dtype, .weight_dtype = o->weight_dtype,
        .y_dtype = SC_DTYPE_F32, .in_dim = o->rank, .out_dim = (uint32_t)c->all,
        .token_count = (uint32_t)c->rows};
    sc_k_gates_params g = {.a = c->raw, .dtype = SC_DTYPE_F32, .weights = o->gates,
        .token_count = (uint32_t)c->rows, .heads = o->heads, .dim = o->dim, .g = c->g};
    sc_k_gates_params b = {.b = u->x + u->columns.beta * c->elem_bytes, .b_stride = u->x_stride,
        .dtype = o->dtype, .weights = o->gates, .token_count = (uint32_t)c->rows,
        .heads = o->heads, .dim = o->dim, .beta = c->beta};
    SC_TRY(sc_kda_product(stage, &f, stream));
    SC_TRY(sc_k_gates(stage->backend, &g, stream));
    return sc_k_gates(stage->backend, &b, stream);
}

static sc_status run_decode(sc_kda_stage *stage, const struct chain *c, sc_stream *stream)
{
    const struct sc_kda_update_params *u = c->u;
    sc_k_conv_prefill_params p = conv_params(c);
    sc_k_conv_update_params conv = {.x = p.x, .y = p.y, .x_stride = p.x_stride, .dtype = p.dtype,
        .weight = p.weight, .weight_dtype = p.weight_dtype, .act = p.act,
        .channels = p.channels, .width = p.width, .row_count = u->requests, .source = u->source,
        .dest = u->dest, .save = u->save, .window = u->window, .order = u->window_order};
    sc_k_decode_packed_params decode = {.qkv = c->y, .o = c->out, .dtype = c->o->dtype, .g = c->g,
        .beta = c->beta, .shape = shape_of(c->o), .row_count = u->requests, .source = u->source,
        .dest = u->dest, .save = u->save, .state = u->state};
    SC_TRY(sc_k_conv_update(stage->backend, &conv, stream));
    return sc_k_decode_packed(stage->backend, &decode, stream);
}

static sc_status run_verify(sc_kda_stage *stage, const struct chain *c, sc_stream *stream)
{
    const struct sc_kda_update_params *u = c->u;
    int32_t *row_start = sc_host_ptr(u->row_start);
    for (uint32_t r = 0; r <= u->requests; r++) row_start[r] = (int32_t)(r * u->tokens);
    sc_k_conv_verify_params conv = {.tokens = conv_params(c)};
    int64_t pitch = 3 * (int64_t)c->all;
    sc_k_delta_verify_params delta = {.tokens = {.q = c->y, .k = c->y + c->all * c->elem_bytes,
        .v = c->y + 2 * c->all * c->elem_bytes, .o = c->out, .q_stride = pitch,
        .k_stride = pitch, .v_stride = pitch, .dtype = c->o->dtype, .g = c->g, .beta = c->beta,
        .shape = shape_of(c->o), .token_count = (uint32_t)c->rows, .row_count = u->requests,
        .row_start = u->row_start, .source = u->source, .state = u->state, .scratch = c->rest,
        .scratch_bytes = c->rest_bytes}, .tokens_max = u->tokens};
    SC_TRY(sc_k_conv_verify(stage->backend, &conv, stream));
    return sc_k_delta_verify(stage->backend, &delta, stream);
}

/* A padded row's gate may be anything, NaN too: its outputs are zeros nevertheless. */
static void clear_padding(const struct sc_kda_update_params *u, const struct chain *c)
{
    const int32_t *source = sc_host_ptr(u->source);
    for (uint32_t r = 0; r < u->requests; r++)
        for (uint32_t t = 0; source[r] < 0 && t < u->tokens; t++)
            memset(sc_host_ptr(u->y + ((uint64_t)r * u->tokens + t) * (uint64_t)u->y_stride
                * c->elem_bytes), 0, c->all * c->elem_bytes);
}

/* Rows, slots and tensors have been checked by the run; what is left is shared with it. */
sc_status sc_kda_chain(sc_kda_stage *stage, const struct sc_kda_update_params *u,
    sc_stream *stream)
{
    const sc_kda_stage_options *o = u->options;
    struct chain c = chain_of(o, (uint64_t)u->requests * u->tokens);
    c.u = u;
    c.rest_bytes = u->scratch_bytes - chain_pieces(&c, u->scratch);
    SC_TRY(run_gates(stage, &c, stream));
    SC_TRY(u->tokens == 1 ? run_decode(stage, &c, stream) : run_verify(stage, &c, stream));
    sc_k_gated_rmsnorm_params norm = {.x = c.out, .z = u->z, .y = u->y, .z_stride = u->z_stride,
        .y_stride = u->y_stride, .dtype = o->dtype, .weight = o->norm_weight,
        .weight_dtype = o->weight_dtype, .act = SC_K_ACT_SIGMOID,
        .token_count = (uint32_t)c.rows, .heads = o->heads, .dim = o->dim, .eps = o->eps,
        .z_dtype = u->z_dtype};
    SC_TRY(sc_k_gated_rmsnorm(stage->backend, &norm, stream));
    clear_padding(u, &c);
    return SC_OK;
}
