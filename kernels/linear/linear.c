/* SPDX-License-Identifier: Apache-2.0 */
/* One layer: conv, gates, delta rule, for each of the four forms. A form lists the operations that
 * it is made of with their parameters (struct calls); all are checked, then launched in that order.
 * Layers of Mamba-2 are in linear_ssm.c.
 *
 *   scratch   | y [tokens][channels] | g fp32 | beta fp32 | the delta rule's own |
 *               conv's output          decode makes its gates inside
 *
 * A commit computes y once more for k and v; it reads the windows before it replaces them. */
#include "statecache/kernels_linear.h"

#include "base/error.h"
#include "kernel_calls.h"
#include "kernel_check.h"
#include "linear/linear_ops.h"

enum { ALIGN = 64, WINDOWS = SC_LINEAR_WINDOWS_MAX };

struct chain {
    const sc_linear_layer *layer;
    const sc_linear_batch *batch;
    uint64_t qk, vo, channels, decay; /* widths of a token */
    sc_devptr y, g, beta, rest;       /* in scratch */
    uint64_t rest_bytes;
    /* of each window */
    uint64_t first[WINDOWS], width[WINDOWS];
};

static sc_status chain_open(struct chain *c, const sc_linear_layer *layer,
    const sc_linear_batch *batch)
{
    SC_REQUIRE(layer != NULL);
    SC_REQUIRE(batch != NULL);
    const sc_k_delta_shape *s = &layer->shape;
    SC_TRY(sc_kernel_check_dtype("x, a, b, o", batch->dtype));
    SC_REQUIRE(batch->window_count == 1 || batch->window_count == 3);
    SC_REQUIRE(batch->token_count <= INT32_MAX);
    SC_REQUIRE(s->kind == SC_K_KIND_GDN || s->kind == SC_K_KIND_KDA);
    SC_REQUIRE(s->heads > 0);
    SC_REQUIRE(s->v_heads > 0);
    SC_REQUIRE(s->v_heads <= 1u << 16);
    SC_REQUIRE(s->heads <= s->v_heads);
    SC_REQUIRE(s->k_dim <= SC_K_DIM_MAX);
    SC_REQUIRE(s->v_dim <= SC_K_DIM_MAX);
    if ((layer->gates.gate == SC_K_GATE_GDN) != (s->kind == SC_K_KIND_GDN))
        return SC_FAIL(SC_ERR_INVALID, "the gate does not belong to the kind of the layer");
    uint64_t qk = (uint64_t)s->heads * s->k_dim, vo = (uint64_t)s->v_heads * s->v_dim;
    *c = (struct chain){.layer = layer, .batch = batch, .qk = qk, .vo = vo,
        .channels = 2 * qk + vo,
        .decay = s->kind == SC_K_KIND_GDN ? s->v_heads : (uint64_t)s->v_heads * s->k_dim,
        .first = {0, qk, 2 * qk}, .width = {qk, qk, vo}};
    if (batch->window_count == 1) c->width[0] = c->channels;
    return SC_OK;
}

static uint64_t piece(uint64_t *used, uint64_t bytes)
{
    uint64_t at = *used;
    *used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

/* Where the pieces lie; the bytes of all but the delta rule's own. */
static uint64_t chain_pieces(struct chain *c, sc_linear_form form)
{
    uint64_t used = 0, tokens = c->batch->token_count, base = c->batch->scratch;
    c->y = base + piece(&used, tokens * c->channels * sc_kernel_elem_bytes(c->batch->dtype));
    if (form != SC_LINEAR_DECODE) {
        c->g = base + piece(&used, tokens * c->decay * sizeof(float));
        c->beta = base + piece(&used, tokens * c->layer->shape.v_heads * sizeof(float));
    }
    c->rest = base + used;
    c->rest_bytes = c->batch->scratch_bytes > used ? c->batch->scratch_bytes - used : 0;
    return used;
}

/* ---- parameters ---- */

static sc_devptr at(const struct chain *c, sc_devptr base, uint64_t elems)
{
    return base != 0 ? base + elems * sc_kernel_elem_bytes(c->batch->dtype) : 0;
}

static sc_k_conv_prefill_params conv_params(const struct chain *c, uint32_t i)
{
    const sc_linear_layer *l = c->layer;
    const sc_linear_batch *b = c->batch;
    uint64_t weight_bytes = sc_kernel_elem_bytes(l->conv_dtype), first = c->first[i];
    return (sc_k_conv_prefill_params){.x = at(c, b->x, first), .y = at(c, c->y, first),
        .x_stride = sc_kernel_stride(b->x_stride, c->channels), .y_stride = (int64_t)c->channels,
        .dtype = b->dtype,
        .weight = l->conv_weight != 0 ? l->conv_weight + first * l->conv_width * weight_bytes : 0,
        .bias = l->conv_bias != 0 ? l->conv_bias + first * weight_bytes : 0,
        .weight_dtype = l->conv_dtype, .act = l->conv_act, .channels = (uint32_t)c->width[i],
        .width = l->conv_width, .token_count = b->token_count, .row_count = b->row_count,
        .row_start = b->row_start, .position = b->position, .source = b->source,
        .dest = b->dest, .saves = b->saves, .window = b->window[i], .order = b->order};
}

static sc_k_conv_update_params update_params(const struct chain *c, uint32_t i)
{
    const sc_linear_batch *b = c->batch;
    sc_k_conv_prefill_params p = conv_params(c, i);
    return (sc_k_conv_update_params){.x = p.x, .y = p.y, .x_stride = p.x_stride,
        .y_stride = p.y_stride, .dtype = p.dtype, .weight = p.weight, .bias = p.bias,
        .weight_dtype = p.weight_dtype, .act = p.act, .channels = p.channels, .width = p.width,
        .row_count = b->row_count, .source = b->source, .dest = b->dest, .save = b->save,
        .window = p.window, .window_settled = b->settled, .order = b->order};
}

static sc_k_decode_packed_params decode_params(const struct chain *c)
{
    const sc_linear_batch *b = c->batch;
    return (sc_k_decode_packed_params){.qkv = c->y, .o = b->o,
        .qkv_stride = (int64_t)c->channels, .o_stride = b->o_stride, .dtype = b->dtype,
        .a = b->a, .b = b->b, .a_stride = b->a_stride, .b_stride = b->b_stride,
        .weights = c->layer->gates, .shape = c->layer->shape, .row_count = b->row_count,
        .source = b->source, .dest = b->dest, .save = b->save, .state = b->state,
        .state_settled = b->settled};
}

static sc_k_gates_params gates_params(const struct chain *c)
{
    const sc_linear_batch *b = c->batch;
    return (sc_k_gates_params){.a = b->a, .b = b->b, .a_stride = b->a_stride,
        .b_stride = b->b_stride, .dtype = b->dtype, .weights = c->layer->gates,
        .token_count = b->token_count, .heads = c->layer->shape.v_heads,
        .dim = c->layer->shape.k_dim, .g = c->g, .beta = c->beta};
}

static sc_k_delta_params delta_params(const struct chain *c)
{
    const sc_linear_batch *b = c->batch;
    int64_t pitch = (int64_t)c->channels;
    return (sc_k_delta_params){.q = c->y, .k = at(c, c->y, c->qk), .v = at(c, c->y, 2 * c->qk),
        .o = b->o, .q_stride = pitch, .k_stride = pitch, .v_stride = pitch,
        .o_stride = b->o_stride, .dtype = b->dtype, .g = c->g, .beta = c->beta,
        .shape = c->layer->shape, .token_count = b->token_count, .row_count = b->row_count,
        .row_start = b->row_start, .position = b->position, .source = b->source,
        .dest = b->dest, .saves = b->saves, .state = b->state, .chunk = c->layer->chunk,
        .scratch = c->rest, .scratch_bytes = c->rest_bytes};
}

static sc_k_delta_verify_params verify_params(const struct chain *c)
{
    sc_k_delta_verify_params p = {.tokens = delta_params(c), .parent = c->batch->parent,
        .states = c->batch->states, .tokens_max = c->batch->tokens_max};
    p.tokens.dest = 0;
    p.tokens.saves.count = 0;
    return p;
}

/* The conv of draft tokens, outputs only. */
static sc_k_conv_verify_params conv_verify_params(const struct chain *c, uint32_t i, bool store)
{
    sc_k_conv_verify_params p = {.tokens = conv_params(c, i), .parent = c->batch->parent};
    if (store) p.windows = c->batch->windows[i];
    p.tokens.dest = 0;
    p.tokens.saves.count = 0;
    return p;
}

/* ---- scratch ---- */

static sc_status rest_bytes(sc_backend *backend, const struct chain *c, sc_linear_form form,
    uint64_t *bytes_out)
{
    *bytes_out = 0;
    if (form == SC_LINEAR_EXTEND) {
        sc_k_delta_params p = delta_params(c);
        return sc_k_delta_chunk_scratch(backend, &p, bytes_out);
    }
    if (form == SC_LINEAR_VERIFY) {
        sc_k_delta_verify_params p = verify_params(c);
        return sc_k_delta_verify_scratch(backend, &p, bytes_out);
    }
    return SC_OK;
}

sc_status sc_linear_scratch(sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_linear_form form, uint64_t *bytes_out)
{
    struct chain c;
    uint64_t rest = 0;
    SC_REQUIRE(bytes_out != NULL);
    SC_REQUIRE(form >= SC_LINEAR_DECODE);
    SC_REQUIRE(form <= SC_LINEAR_COMMIT);
    if (layer != NULL && layer->ssm.heads > 0)
        return sc_linear_ssm_scratch(backend, layer, batch, form, bytes_out);
    SC_TRY(chain_open(&c, layer, batch));
    SC_TRY(rest_bytes(backend, &c, form, &rest));
    *bytes_out = chain_pieces(&c, form) + rest;
    return SC_OK;
}

/* All that the forms have in common: pieces of scratch, for decode's sake before its checks. */
static sc_status form_open(struct chain *c, sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_linear_form form)
{
    uint64_t need_bytes = 0;
    SC_TRY(chain_open(c, layer, batch));
    if (batch->row_count == 0) return SC_OK;
    SC_TRY(sc_linear_scratch(backend, layer, batch, form, &need_bytes));
    SC_TRY(sc_kernel_check_scratch(batch->scratch, batch->scratch_bytes, need_bytes));
    (void)chain_pieces(c, form);
    return SC_OK;
}

/* ---- forms ---- */

/* All that a form may call; which of it, and in which order, `ops` says. */
struct calls {
    struct linear_ops ops;
    sc_k_conv_update_params update[WINDOWS];
    sc_k_conv_prefill_params prefill[WINDOWS];
    sc_k_conv_verify_params verify[WINDOWS];
    sc_k_conv_commit_params window[WINDOWS];
    sc_k_gates_params gates;
    sc_k_decode_packed_params decode;
    sc_k_delta_params chunk;
    sc_k_delta_verify_params drafts;
    sc_k_delta_commit_params commit;
};

LINEAR_CHECK(conv_update, sc_k_conv_update_params)
LINEAR_CHECK(conv_prefill, sc_k_conv_prefill_params)
LINEAR_CHECK(conv_verify, sc_k_conv_verify_params)
LINEAR_CHECK(conv_commit, sc_k_conv_commit_params)
LINEAR_CHECK(gates, sc_k_gates_params)
LINEAR_CHECK(decode_packed, sc_k_decode_packed_params)
LINEAR_CHECK(delta_chunk, sc_k_delta_params)
LINEAR_CHECK(delta_verify, sc_k_delta_verify_params)
LINEAR_CHECK(delta_commit, sc_k_delta_commit_params)

static void fill_decode(struct calls *m, const struct chain *c)
{
    for (uint32_t i = 0; i < c->batch->window_count; i++) {
        m->update[i] = update_params(c, i);
        linear_add(&m->ops, check_conv_update, &m->update[i], true);
    }
    m->decode = decode_params(c);
    linear_add(&m->ops, check_decode_packed, &m->decode, true);
}

static void fill_extend(struct calls *m, const struct chain *c)
{
    for (uint32_t i = 0; i < c->batch->window_count; i++) {
        m->prefill[i] = conv_params(c, i);
        linear_add(&m->ops, check_conv_prefill, &m->prefill[i], true);
    }
    m->gates = gates_params(c), m->chunk = delta_params(c);
    if (c->batch->token_count > 0) linear_add(&m->ops, check_gates, &m->gates, true);
    linear_add(&m->ops, check_delta_chunk, &m->chunk, true);
}

static void fill_verify(struct calls *m, const struct chain *c)
{
    for (uint32_t i = 0; i < c->batch->window_count; i++) {
        m->verify[i] = conv_verify_params(c, i, true);
        linear_add(&m->ops, check_conv_verify, &m->verify[i], true);
    }
    m->gates = gates_params(c), m->drafts = verify_params(c);
    if (c->batch->token_count > 0) linear_add(&m->ops, check_gates, &m->gates, true);
    linear_add(&m->ops, check_delta_verify, &m->drafts, true);
}

/* With stored nodes nothing is replayed: k, v and gates are checked, not made once more. */
static void fill_commit(struct calls *m, const struct chain *c)
{
    const sc_linear_batch *b = c->batch;
    bool replays = b->token_count > 0 && b->states.base == 0;
    for (uint32_t i = 0; i < b->window_count; i++) {
        m->verify[i] = conv_verify_params(c, i, false);
        linear_add(&m->ops, check_conv_verify, &m->verify[i], replays);
    }
    m->gates = gates_params(c);
    if (b->token_count > 0) linear_add(&m->ops, check_gates, &m->gates, replays);
    m->commit = (sc_k_delta_commit_params){.tokens = delta_params(c), .parent = b->parent,
        .node = b->node, .states = b->states};
    linear_add(&m->ops, check_delta_commit, &m->commit, true);
    for (uint32_t i = 0; i < b->window_count; i++) {
        m->window[i] = (sc_k_conv_commit_params){.tokens = conv_params(c, i),
            .parent = b->parent, .node = b->node, .windows = b->windows[i]};
        linear_add(&m->ops, check_conv_commit, &m->window[i], true);
    }
}

static void (*const fills[])(struct calls *, const struct chain *) = {
    [SC_LINEAR_DECODE] = fill_decode, [SC_LINEAR_EXTEND] = fill_extend,
    [SC_LINEAR_VERIFY] = fill_verify, [SC_LINEAR_COMMIT] = fill_commit};

static sc_status run(sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_linear_form form, sc_stream *stream)
{
    struct chain c;
    struct calls calls;
    if (backend == NULL) backend = sc_backend_host();
    if (layer != NULL && layer->ssm.heads > 0)
        return sc_linear_ssm_run(backend, layer, batch, form, stream);
    SC_TRY(form_open(&c, backend, layer, batch, form));
    if (batch->row_count == 0) return SC_OK;
    if (form == SC_LINEAR_DECODE) SC_REQUIRE(batch->token_count == batch->row_count);
    calls.ops.count = 0;
    fills[form](&calls, &c);
    if (form == SC_LINEAR_DECODE && batch->window_count == 1)
        return sc_k_decode_step(backend, &calls.update[0], &calls.decode, stream);
    return linear_run(backend, &calls.ops, stream);
}

sc_status sc_linear_decode(sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_stream *stream)
{
    return run(backend, layer, batch, SC_LINEAR_DECODE, stream);
}

sc_status sc_linear_extend(sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_stream *stream)
{
    return run(backend, layer, batch, SC_LINEAR_EXTEND, stream);
}

sc_status sc_linear_verify(sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_stream *stream)
{
    return run(backend, layer, batch, SC_LINEAR_VERIFY, stream);
}

sc_status sc_linear_commit(sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_stream *stream)
{
    return run(backend, layer, batch, SC_LINEAR_COMMIT, stream);
}
