/* SPDX-License-Identifier: Apache-2.0 */
/* One layer of Mamba-2: conv over [x | B | C], then the selective state space, token by token or
 * chunk by chunk.
 *
 *   scratch   | y [tokens][channels] | decode: row_start; rows and positions of second dests |
 *               conv's output        | extend: the scan's own                               |
 */
#include "kernel_calls.h"
#include "kernel_check.h"
#include "linear/linear_ops.h"
#include "ssm/ssm_check.h"

enum { ALIGN = 64 };

struct ssm_chain {
    const sc_linear_layer *layer;
    const sc_linear_batch *batch;
    uint64_t inner, shared, channels; /* of x, of B and of C, of all three */
    sc_devptr y, rest;                /* in scratch */
    uint64_t y_bytes, rest_bytes;
};

LINEAR_CHECK(conv_update, sc_k_conv_update_params)
LINEAR_CHECK(conv_prefill, sc_k_conv_prefill_params)
LINEAR_CHECK(ssm, sc_k_ssm_params)
LINEAR_CHECK(ssm_chunk, sc_k_ssm_chunk_params)

static sc_k_ssm_params shape_of(const sc_linear_layer *layer, const sc_linear_batch *batch)
{
    return (sc_k_ssm_params){.dtype = batch->dtype, .a_log = layer->ssm.a_log,
        .dt_bias = layer->ssm.dt_bias, .d = layer->ssm.d, .heads = layer->ssm.heads,
        .groups = layer->ssm.groups, .head_dim = layer->ssm.head_dim,
        .state_dim = layer->ssm.state_dim};
}

static sc_status chain_open(struct ssm_chain *c, const sc_linear_layer *layer,
    const sc_linear_batch *batch)
{
    SC_REQUIRE(batch != NULL);
    const sc_k_ssm_params shape = shape_of(layer, batch);
    SC_TRY(sc_ssm_check_shape(&shape));
    SC_REQUIRE(batch->window_count == 1);
    SC_REQUIRE(batch->token_count <= INT32_MAX);
    SC_REQUIRE(batch->row_count <= INT32_MAX);
    uint64_t inner = (uint64_t)shape.heads * shape.head_dim;
    uint64_t shared = (uint64_t)shape.groups * shape.state_dim;
    *c = (struct ssm_chain){.layer = layer, .batch = batch, .inner = inner, .shared = shared,
        .channels = inner + 2 * shared};
    c->y_bytes = batch->token_count * c->channels * sc_kernel_elem_bytes(batch->dtype);
    c->y_bytes = (c->y_bytes + ALIGN - 1) / ALIGN * ALIGN;
    c->y = batch->scratch, c->rest = batch->scratch + c->y_bytes;
    if (batch->scratch_bytes > c->y_bytes) c->rest_bytes = batch->scratch_bytes - c->y_bytes;
    return SC_OK;
}

static sc_k_ssm_params ssm_params(const struct ssm_chain *c)
{
    const sc_linear_batch *b = c->batch;
    uint64_t elem = sc_kernel_elem_bytes(b->dtype);
    int64_t pitch = (int64_t)c->channels;
    sc_k_ssm_params p = shape_of(c->layer, b);
    p.x = c->y, p.b = c->y + c->inner * elem, p.c = p.b + c->shared * elem;
    p.x_stride = p.b_stride = p.c_stride = pitch;
    p.dt = b->a, p.dt_stride = b->a_stride, p.y = b->o, p.y_stride = b->o_stride;
    p.token_count = b->token_count, p.row_count = b->row_count;
    p.row_start = b->row_start, p.position = b->position, p.source = b->source;
    p.dest = b->dest, p.saves = b->saves, p.state = b->state;
    return p;
}

static sc_k_conv_prefill_params conv_params(const struct ssm_chain *c)
{
    const sc_linear_layer *l = c->layer;
    const sc_linear_batch *b = c->batch;
    return (sc_k_conv_prefill_params){.x = b->x, .y = c->y, .x_stride = b->x_stride,
        .dtype = b->dtype, .weight = l->conv_weight, .bias = l->conv_bias,
        .weight_dtype = l->conv_dtype, .act = l->conv_act, .channels = (uint32_t)c->channels,
        .width = l->conv_width, .token_count = b->token_count, .row_count = b->row_count,
        .row_start = b->row_start, .position = b->position, .source = b->source,
        .dest = b->dest, .saves = b->saves, .window = b->window[0], .order = b->order};
}

sc_status sc_linear_ssm_scratch(sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_linear_form form, uint64_t *bytes_out)
{
    struct ssm_chain c;
    uint64_t rest = 0;
    SC_TRY(chain_open(&c, layer, batch));
    if (form == SC_LINEAR_VERIFY || form == SC_LINEAR_COMMIT)
        return SC_FAIL(SC_ERR_UNSUPPORTED, "no kernel verifies drafts of Mamba-2 layers");
    if (form == SC_LINEAR_DECODE) {
        rest = (3 * (uint64_t)batch->row_count + 1) * sizeof(int32_t);
    } else {
        const sc_k_ssm_chunk_params p = {.tokens = ssm_params(&c), .chunk = layer->chunk};
        SC_TRY(sc_k_ssm_chunk_scratch(backend, &p, &rest));
    }
    *bytes_out = c.y_bytes + (rest + ALIGN - 1) / ALIGN * ALIGN;
    return SC_OK;
}

/* Rows of one token each, and second destinations as saves. */
static void decode_rows(const struct ssm_chain *c, sc_k_ssm_params *p)
{
    uint32_t rows = c->batch->row_count;
    int32_t *start = sc_host_ptr(c->rest), *row = start + rows + 1, *pos = row + rows;
    const int32_t *save = c->batch->save != 0 ? sc_host_ptr(c->batch->save) : NULL;
    const int32_t *source = sc_host_ptr(c->batch->source);
    for (uint32_t r = 0; r <= rows; r++) start[r] = (int32_t)r;
    for (uint32_t r = 0; r < rows; r++) {
        bool saves = save != NULL && save[r] > 0 && source != NULL && source[r] >= 0;
        row[r] = saves ? (int32_t)r : -1;
        pos[r] = 1;
    }
    p->row_start = c->rest, p->position = 0, p->saves = (sc_k_saves){0};
    if (save != NULL)
        p->saves = (sc_k_saves){sc_host_devptr(row), sc_host_devptr(pos), c->batch->save, rows};
}

static sc_status run_decode(const sc_backend *backend, const struct ssm_chain *c,
    sc_stream *stream)
{
    const sc_linear_batch *b = c->batch;
    struct linear_ops ops = {.count = 0};
    sc_k_ssm_params ssm = ssm_params(c);
    const sc_k_conv_prefill_params p = conv_params(c);
    SC_REQUIRE(b->token_count == b->row_count);
    if (b->save != 0) SC_TRY(sc_kernel_check_index("save", b->save));
    SC_TRY(sc_kernel_check_index("source", b->source));
    decode_rows(c, &ssm);
    const sc_k_conv_update_params conv = {.x = p.x, .y = p.y, .x_stride = p.x_stride,
        .dtype = p.dtype, .weight = p.weight, .bias = p.bias, .weight_dtype = p.weight_dtype,
        .act = p.act, .channels = p.channels, .width = p.width, .row_count = b->row_count,
        .source = b->source, .dest = b->dest, .save = b->save, .window = p.window,
        .order = b->order};
    linear_add(&ops, check_conv_update, &conv, true);
    linear_add(&ops, check_ssm, &ssm, true);
    return linear_run(backend, &ops, stream);
}

static sc_status run_extend(const sc_backend *backend, const struct ssm_chain *c,
    sc_stream *stream)
{
    struct linear_ops ops = {.count = 0};
    const sc_k_conv_prefill_params conv = conv_params(c);
    const sc_k_ssm_chunk_params scan = {.tokens = ssm_params(c), .chunk = c->layer->chunk,
        .scratch = c->rest, .scratch_bytes = c->rest_bytes};
    linear_add(&ops, check_conv_prefill, &conv, true);
    linear_add(&ops, check_ssm_chunk, &scan, true);
    return linear_run(backend, &ops, stream);
}

sc_status sc_linear_ssm_run(sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_linear_form form, sc_stream *stream)
{
    struct ssm_chain c;
    uint64_t need_bytes = 0;
    SC_TRY(chain_open(&c, layer, batch));
    SC_TRY(sc_linear_ssm_scratch(backend, layer, batch, form, &need_bytes));
    if (!backend->host_memory)
        return SC_FAIL(SC_ERR_UNSUPPORTED, "Mamba-2 layers on %s: no row", backend->name);
    if (batch->row_count == 0) return SC_OK;
    SC_TRY(sc_kernel_check_scratch(batch->scratch, batch->scratch_bytes, need_bytes));
    return form == SC_LINEAR_DECODE ? run_decode(backend, &c, stream)
                                    : run_extend(backend, &c, stream);
}
