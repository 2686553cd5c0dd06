/* SPDX-License-Identifier: Apache-2.0 */
/* The served model with rings (docs/explanation/rings.md): decoded tokens become records beside a
 * state that stays as it is, until a flush.
 *
 *   once a forward   served_ring_step   what each row does, from the plan and from its own count
 *   linear layer     decode rows        conv -> append or flush
 *                    prefill rows       fold -> as without rings
 *
 * A conv window is small and written by every token; position = tokens - records is that of the
 * recurrent matrix alone. */
#include <stdlib.h>

#include "served_parts.h"

sc_pool *served_rings_create(const struct served_model *model, sc_layout layout, uint32_t slots)
{
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    sc_pool *pool;
    options.schema = model->ring_schema;
    options.layout = layout;
    options.slot_count = slots;
    bench_must(sc_pool_create(&options, &pool), "sc_pool_create, of rings");
    return pool;
}

sc_status served_ring_schema(struct served_model *model)
{
    const struct served_options *o = &model->options;
    const sc_k_delta_shape shape = served_delta_shape(model);
    sc_extras_options options = SC_EXTRAS_OPTIONS_INIT;
    options.control_words = 1;
    options.ring_records = o->ring;
    sc_status status = o->mamba
        ? sc_k_replay_ssm_record_bytes(o->v_heads, o->heads, o->head_dim, o->head_dim,
            SC_DTYPE_F32, &options.ring_record_bytes)
        : sc_k_replay_delta_record_bytes(&shape, SC_DTYPE_F32, &options.ring_record_bytes);
    if (status != SC_OK)
        return status;
    return sc_schema_extras_create(model->schema, NULL, &options, &model->ring_schema);
}

void served_ring_step(const struct served_model *model, const sc_pool *rings,
    struct served_ring_row *rows, const int32_t *planned, uint32_t count)
{
    int32_t *slot = bench_alloc(3 * (size_t)count, sizeof *slot);
    int32_t *records = slot + count, *mode = records + count;
    for (uint32_t i = 0; i < count; i++)
        slot[i] = rows[i].slot;
    const sc_replay_step_params params = {.control = served_slots(rings, 0, SC_PART_EXTRA, 0),
        .records_max = model->options.ring, .row_count = count, .slot = dev(slot),
        .planned = dev(planned), .records = dev(records), .mode = dev(mode)};
    bench_must(sc_replay_step(model->options.backend, &params, NULL), "sc_replay_step");
    for (uint32_t i = 0; i < count; i++) {
        rows[i].records = records[i];
        rows[i].mode = mode[i];
    }
    free(slot);
}

sc_k_ring served_ring_of(const struct served_model *model, const sc_pool *rings, uint32_t index,
    const struct served_ring_ints *rows)
{
    sc_layer_view view;
    bench_must(sc_pool_layer_view(rings, index, SC_PART_EXTRA, 1, &view), "sc_pool_layer_view");
    return (sc_k_ring){.slots = served_slots(rings, index, SC_PART_EXTRA, 1),
        .records_max = model->options.ring, .record_bytes = view.dims[1], .slot = rows->slot,
        .records = rows->records, .mode = rows->mode};
}

/* ----------------------------------------------------------------------------------------- rows */

/* The conv of decode rows: packed outputs to the batch's scratch. */
static void conv_update(const struct served_model *model, const sc_linear_layer *linear,
    const sc_linear_batch *b)
{
    for (uint32_t part = 0; part < b->window_count; part++) {
        uint32_t first, channels = served_conv_part(model, part, &first);
        const sc_k_conv_update_params p = {.x = b->x + first * sizeof(float),
            .y = b->scratch + first * sizeof(float), .x_stride = (int64_t)model->channels,
            .y_stride = (int64_t)model->channels, .dtype = b->dtype,
            .weight = linear->conv_weight + (uint64_t)first * CONV_WIDTH * sizeof(float),
            .bias = linear->conv_bias ? linear->conv_bias + first * sizeof(float) : 0,
            .weight_dtype = linear->conv_dtype, .act = linear->conv_act, .channels = channels,
            .width = linear->conv_width, .row_count = b->row_count, .source = b->source,
            .dest = b->dest, .window = b->window[part]};
        bench_must(sc_k_conv_update(model->options.backend, &p, NULL), "sc_k_conv_update");
    }
}

static sc_k_ssm_params ssm_step(const struct served_model *model, const sc_linear_layer *linear,
    const sc_linear_batch *b)
{
    const sc_linear_ssm *s = &linear->ssm;
    uint64_t inner = (uint64_t)s->heads * s->head_dim, shared = (uint64_t)s->groups * s->state_dim;
    int64_t pitch = (int64_t)model->channels;
    return (sc_k_ssm_params){.x = b->scratch, .dt = b->a, .b = b->scratch + inner * sizeof(float),
        .c = b->scratch + (inner + shared) * sizeof(float), .y = b->o, .x_stride = pitch,
        .b_stride = pitch, .c_stride = pitch, .dtype = b->dtype, .a_log = s->a_log,
        .dt_bias = s->dt_bias, .d = s->d, .heads = s->heads, .groups = s->groups,
        .head_dim = s->head_dim, .state_dim = s->state_dim, .row_count = b->row_count,
        .source = b->source, .dest = b->dest, .state = b->state};
}

void served_ring_decode(const struct served_model *model, const sc_linear_layer *linear,
    const sc_linear_batch *b, const sc_k_ring *ring)
{
    conv_update(model, linear, b);
    if (model->options.mamba) {
        const sc_k_replay_ssm_params p = {ssm_step(model, linear, b), *ring};
        bench_must(sc_k_replay_ssm(model->options.backend, &p, NULL), "sc_k_replay_ssm");
        return;
    }
    const sc_k_replay_delta_params p = {.step = {.qkv = b->scratch, .o = b->o, .dtype = b->dtype,
        .a = b->a, .b = b->b, .weights = linear->gates, .shape = linear->shape,
        .row_count = b->row_count, .source = b->source, .dest = b->dest, .state = b->state},
        .ring = *ring};
    bench_must(sc_k_replay_delta(model->options.backend, &p, NULL), "sc_k_replay_delta");
}

void served_ring_fold_rows(const struct served_model *model, const sc_linear_layer *linear,
    const sc_linear_batch *b, const sc_k_ring *ring)
{
    if (model->options.mamba) {
        const sc_k_replay_ssm_params p = {ssm_step(model, linear, b), *ring};
        bench_must(sc_k_replay_ssm_fold(model->options.backend, &p, NULL), "sc_k_replay_ssm_fold");
        return;
    }
    const sc_k_replay_delta_fold_params p = {.shape = linear->shape, .dtype = b->dtype,
        .row_count = b->row_count, .source = b->source, .dest = b->dest, .state = b->state,
        .ring = *ring};
    bench_must(sc_k_replay_delta_fold(model->options.backend, &p, NULL), "sc_k_replay_delta_fold");
}

void served_ring_fold(const struct served_model *model, const sc_pool *pool, const sc_pool *rings,
    int32_t slot, struct served_ring_row ring)
{
    ring.mode = SC_REPLAY_FOLD;
    const struct served_ring_ints ints = {dev(&ring.slot), dev(&ring.records), dev(&ring.mode)};
    for (uint32_t i = 0; ring.records > 0 && i < model->options.layers; i++) {
        if (model->layers[i].is_attention)
            continue;
        const sc_linear_layer linear = served_linear_layer(model, &model->layers[i]);
        const sc_k_ring layer = served_ring_of(model, rings, i, &ints);
        sc_linear_batch b = {.dtype = SC_DTYPE_F32, .row_count = 1, .source = dev(&slot),
            .dest = dev(&slot)};
        served_parts(&b, model, pool, i);
        served_ring_fold_rows(model, &linear, &b, &layer);
    }
}
