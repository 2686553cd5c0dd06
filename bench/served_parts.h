/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the served model share: how a layer looks to the library's kernels. */
#ifndef BENCH_SERVED_PARTS_H
#define BENCH_SERVED_PARTS_H

#include "bench_common.h"
#include "served_model.h"

/* One part of layer `layer` in all slots of the pool. */
static inline sc_k_slots served_slots(const sc_pool *pool, uint32_t layer, sc_part_kind kind,
    uint32_t index)
{
    sc_layer_view view;
    sc_pool_info info;
    bench_must(sc_pool_layer_view(pool, layer, kind, index, &view), "sc_pool_layer_view");
    bench_must(sc_pool_info_get(pool, &info), "sc_pool_info_get");
    return (sc_k_slots){view.base, view.slot_stride, view.dtype, info.slot_count + 1};
}

static inline sc_k_delta_shape served_delta_shape(const struct served_model *m)
{
    const struct served_options *o = &m->options;
    return (sc_k_delta_shape){.kind = o->kind, .heads = o->heads, .v_heads = o->v_heads,
        .k_dim = o->head_dim, .v_dim = o->head_dim, .qk_l2norm = true};
}

static inline sc_k_gate_weights served_gate_weights(const struct served_model *m,
    const struct served_layer *layer)
{
    return (sc_k_gate_weights){.gate = m->gate, .a_log = twin_at(&m->weights, layer->a_log),
        .dt_bias = twin_at(&m->weights, layer->dt_bias), .dt_bias_dtype = SC_DTYPE_F32,
        .lower_bound = -5.0f};
}

/* Mamba-2: v heads of head_dim channels, `heads` groups, states as wide as a head. */
static inline sc_linear_ssm served_ssm(const struct served_model *m,
    const struct served_layer *layer)
{
    const struct served_options *o = &m->options;
    return (sc_linear_ssm){.a_log = twin_at(&m->weights, layer->a_log),
        .dt_bias = twin_at(&m->weights, layer->dt_bias), .d = twin_at(&m->weights, layer->skip),
        .heads = o->v_heads, .groups = o->heads, .head_dim = o->head_dim,
        .state_dim = o->head_dim};
}

static inline sc_linear_layer served_linear_layer(const struct served_model *m,
    const struct served_layer *layer)
{
    sc_linear_layer linear = {.shape = served_delta_shape(m),
        .conv_weight = twin_at(&m->weights, layer->conv),
        .conv_dtype = SC_DTYPE_F32, .conv_act = SC_K_ACT_SILU, .conv_width = CONV_WIDTH,
        .gates = served_gate_weights(m, layer), .chunk = m->options.chunk};
    if (m->options.mamba) {
        linear.conv_bias = twin_at(&m->weights, layer->conv_bias);
        linear.ssm = served_ssm(m, layer);
    }
    return linear;
}

/* Windows and states of layer `index`. */
static inline void served_parts(sc_linear_batch *b, const struct served_model *m,
    const sc_pool *pool, uint32_t index)
{
    b->window_count = m->conv_parts;
    for (uint32_t part = 0; part < m->conv_parts; part++)
        b->window[part] = served_slots(pool, index, SC_PART_CONV, part);
    b->state = served_slots(pool, index, SC_PART_RECURRENT, 0);
}

/* served_ring.c: rings of one layer, and the rows that have them. */
struct served_ring_ints {
    sc_devptr slot, records, mode; /* [row_count] int32 each */
};
sc_status served_ring_schema(struct served_model *model);
sc_k_ring served_ring_of(const struct served_model *model, const sc_pool *rings, uint32_t index,
    const struct served_ring_ints *rows);
/* Rows of one token that append or flush; scratch: the conv's output, `channels` wide. */
void served_ring_decode(const struct served_model *model, const sc_linear_layer *linear,
    const sc_linear_batch *b, const sc_k_ring *ring);
/* Rows that fold step their source through the records to their destination; others do nothing. */
void served_ring_fold_rows(const struct served_model *model, const sc_linear_layer *linear,
    const sc_linear_batch *b, const sc_k_ring *ring);

/* Floats of a token on the tape: q k v before the conv, gates; or key and value. */
static inline uint32_t served_tape_layer_width(const struct served_model *m, uint32_t layer)
{
    if (m->layers[layer].is_attention)
        return 2 * m->attention_width;
    return m->channels + m->decay_dim + m->options.v_heads;
}

#endif
