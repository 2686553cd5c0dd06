/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts: the tape of a verified row, and folding what was right of it.
 *
 *   forward   row [ t | d0 d1 d2 ]   outputs of all four; states and pages stay as they were
 *   sampling  d0 is right, d1 is not
 *   fold      [ t | d0 ]             from the tape: state -> destination, keys and values -> pages
 *
 * So no draft has a state of its own, and a state that a wrong draft has touched never exists. The
 * tape has what the recurrence of each layer needs, q k v before the conv and gates before the
 * activation, layer by layer:
 *
 *   linear layer     [ q k v of each token ][ decay ][ beta ]
 *   attention layer  [ key and value of each token ] */
#include <stdlib.h>
#include <string.h>

#include "served_parts.h"

void served_tape_init(struct served_tape *tape, const struct served_model *model, uint32_t tokens)
{
    tape->data = bench_alloc((size_t)model->tape_width * tokens, sizeof *tape->data);
}

void served_tape_deinit(struct served_tape *tape)
{
    free(tape->data);
    tape->data = NULL;
}

/* A fold of `count` tokens of a row whose tape has `tokens`. */
struct fold {
    const struct served_model *model;
    const struct served_forward *forward;
    const struct served_row *row;
    uint32_t count;
    int32_t row_start[2], position, source, dest;
    int32_t *save_row, *save_position, *save_slot;
    uint32_t save_count;
    float *mixed, *g, *beta, *out;
};

static sc_k_saves fold_saves(const struct fold *f)
{
    return (sc_k_saves){dev(f->save_row), dev(f->save_position), dev(f->save_slot),
        f->save_count};
}

static void fold_conv(const struct fold *f, uint32_t index, const float *qkv)
{
    const struct served_model *m = f->model;
    for (uint32_t part = 0; part < m->conv_parts; part++) {
        uint32_t first, channels = served_conv_part(m, part, &first);
        const float *weight = m->layers[index].conv + (size_t)first * CONV_WIDTH;
        sc_k_conv_prefill_params p = {.x = dev(qkv + first), .y = dev(f->mixed + first),
            .x_stride = m->channels, .y_stride = m->channels, .dtype = SC_DTYPE_F32,
            .weight = dev(weight), .weight_dtype = SC_DTYPE_F32, .act = SC_K_ACT_SILU,
            .channels = channels, .width = CONV_WIDTH, .token_count = f->count, .row_count = 1,
            .row_start = dev(f->row_start), .position = dev(&f->position),
            .source = dev(&f->source), .dest = dev(&f->dest), .saves = fold_saves(f),
            .window = served_slots(f->forward->pool, index, SC_PART_CONV, part)};
        bench_must(sc_k_conv_prefill(NULL, &p, NULL), "sc_k_conv_prefill");
    }
}

static void fold_linear(const struct fold *f, uint32_t index, const float *tape)
{
    const struct served_model *m = f->model;
    const struct served_options *o = &m->options;
    size_t tokens = f->row->to - f->row->from;
    const float *decay = tape + tokens * m->channels, *beta = decay + tokens * m->decay_dim;
    fold_conv(f, index, tape);
    sc_k_gates_params gates = {.a = dev(decay), .b = dev(beta), .dtype = SC_DTYPE_F32,
        .weights = served_gate_weights(m, &m->layers[index]), .token_count = f->count,
        .heads = o->v_heads, .dim = o->head_dim, .g = dev(f->g), .beta = dev(f->beta)};
    bench_must(sc_k_gates(NULL, &gates, NULL), "sc_k_gates");
    sc_k_delta_params p = {.q = dev(f->mixed), .k = dev(f->mixed + m->key_dim),
        .v = dev(f->mixed + 2 * (size_t)m->key_dim), .o = dev(f->out), .q_stride = m->channels,
        .k_stride = m->channels, .v_stride = m->channels, .dtype = SC_DTYPE_F32, .g = dev(f->g),
        .beta = dev(f->beta), .shape = served_delta_shape(m), .token_count = f->count,
        .row_count = 1, .row_start = dev(f->row_start), .position = dev(&f->position),
        .source = dev(&f->source), .dest = dev(&f->dest), .saves = fold_saves(f),
        .state = served_slots(f->forward->pool, index, SC_PART_RECURRENT, 0)};
    bench_must(sc_k_delta_recurrent(NULL, &p, NULL), "sc_k_delta_recurrent");
}

static void fold_attention(const struct fold *f, uint32_t attention_layer, const float *tape)
{
    const struct paged_kv *kv = f->forward->kv;
    for (uint32_t i = 0; i < f->count; i++) {
        uint32_t at = f->row->from + i;
        memcpy(paged_kv_row(kv, attention_layer, f->row->pages[at / kv->page_tokens],
            at % kv->page_tokens), tape + (size_t)i * kv->row_floats,
            kv->row_floats * sizeof *tape);
    }
}

static void fold_open(struct fold *f, uint32_t to)
{
    const struct served_model *m = f->model;
    const struct served_row *row = f->row;
    f->count = to - row->from;
    f->row_start[1] = (int32_t)f->count;
    f->position = (int32_t)row->from;
    f->source = row->source;
    f->dest = row->dest;
    f->save_row = bench_alloc(3 * (size_t)row->save_count, sizeof *f->save_row);
    f->save_position = f->save_row + row->save_count;
    f->save_slot = f->save_position + row->save_count;
    for (uint32_t i = 0; i < row->save_count; i++) {
        const struct served_save *save = &f->forward->saves[row->save_first + i];
        if (save->position <= row->from || save->position > to)
            continue;
        f->save_position[f->save_count] = (int32_t)save->position;
        f->save_slot[f->save_count++] = save->slot;
    }
    size_t width = m->channels + m->decay_dim + m->options.v_heads + m->value_dim;
    f->mixed = bench_alloc(width * f->count, sizeof *f->mixed);
    f->g = f->mixed + (size_t)m->channels * f->count;
    f->beta = f->g + (size_t)m->decay_dim * f->count;
    f->out = f->beta + (size_t)m->options.v_heads * f->count;
}

void served_fold(const struct served_model *model, const struct served_forward *forward,
    const struct served_row *row, uint32_t to)
{
    struct fold fold = {.model = model, .forward = forward, .row = row};
    const float *tape = row->tape->data;
    fold_open(&fold, to);
    for (uint32_t i = 0, attention = 0; i < model->options.layers; i++) {
        if (model->layers[i].is_attention)
            fold_attention(&fold, attention++, tape);
        else
            fold_linear(&fold, i, tape);
        tape += (size_t)served_tape_layer_width(model, i) * (row->to - row->from);
    }
    free(fold.save_row);
    free(fold.mixed);
}
