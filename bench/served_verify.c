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
    int32_t row_start[2], position, source, dest, node;
    int32_t *save_row, *save_position, *save_slot;
    uint32_t save_count;
};

static sc_k_saves fold_saves(const struct fold *f)
{
    return (sc_k_saves){dev(f->save_row), dev(f->save_position), dev(f->save_slot),
        f->save_count};
}

static void fold_linear(const struct fold *f, uint32_t index, const float *tape)
{
    const struct served_model *m = f->model;
    const sc_linear_layer linear = served_linear_layer(m, &m->layers[index]);
    size_t tokens = f->row->to - f->row->from;
    const float *decay = tape + tokens * m->channels, *beta = decay + tokens * m->decay_dim;
    uint64_t bytes = 0;
    sc_linear_batch b = {.x = dev(tape), .a = dev(decay), .b = dev(beta), .dtype = SC_DTYPE_F32,
        .token_count = f->count, .row_count = 1, .row_start = dev(f->row_start),
        .position = dev(&f->position), .source = dev(&f->source), .dest = dev(&f->dest),
        .node = dev(&f->node), .saves = fold_saves(f)};
    served_parts(&b, m, f->forward->pool, index);
    bench_must(sc_linear_scratch(NULL, &linear, &b, SC_LINEAR_COMMIT, &bytes),
        "sc_linear_scratch");
    void *scratch = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!scratch)
        bench_fail(BENCH_NO_MEMORY, "out of memory (scratch)");
    b.scratch = dev(scratch);
    b.scratch_bytes = bytes;
    bench_must(sc_linear_commit(NULL, &linear, &b, NULL), "sc_linear_commit");
    free(scratch);
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
    const struct served_row *row = f->row;
    f->count = to - row->from;
    f->row_start[1] = (int32_t)f->count;
    f->position = (int32_t)row->from;
    f->source = row->source;
    f->dest = row->dest;
    f->node = (int32_t)f->count - 1;
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
}
