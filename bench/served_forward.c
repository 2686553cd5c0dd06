/* SPDX-License-Identifier: Apache-2.0 */
/* One forward of the served model.
 *
 * The rows are dealt out among threads; each runs the whole model on its rows with activations of
 * its own. Within a thread rows are packed by form, since the library has one call for all rows of
 * a form:
 *
 *   packed tokens   [ d0 d1 d2 | v0 v0 v0 v1 v1 | p0 p0 p0 p0 | p1 p1 ... ]
 *                     decode     verify           prefill
 *                                '-- row_start[] counts from here
 *
 * States are read at `source` and written at `dest` and at the saves' slots, in the pool. Verify
 * rows write nothing but their tapes (served_verify.c). */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "dense.h"
#include "served_parts.h"

/* Memory of one thread. Pages that a step returned and the next one took again would be cleared
 * each time: a quarter of the time of a step. */
struct served_space {
    struct twin ints;   /* one block: a lane's arrays */
    struct twin floats; /* one block: a lane's arrays, a row a token */
    sc_devptr scratch;
    uint64_t scratch_bytes;
    struct twin context; /* [longest] KV rows of a sequence, then scores */
};

/* Rows of one thread, packed. */
struct lane {
    const struct served_model *model;
    const struct served_forward *forward;
    struct served_space *space;
    const struct served_row **rows; /* [row_count]: decode, verify, prefill */
    uint32_t row_count, decode_count, verify_count, prefill_count, token_count, save_count;
    int32_t *source, *dest, *save;  /* [row_count]; save: of decode rows */
    int32_t *ring_slot, *records, *ring_mode; /* [row_count], with rings */
    int32_t *row_start, *position;  /* of verify and prefill rows */
    int32_t *save_row, *save_position, *save_slot;
    uint32_t *first;                /* [row_count] first packed token */
    float *x, *h, *t1, *t2, *mixed, *gate, *out, *decay, *beta;
    const float **context;          /* [longest] KV rows of a sequence */
    float *score;
};

/* Rows of one form among those that are not decode rows. */
struct group {
    uint32_t first, count;
};

static struct group verified(const struct lane *lane)
{
    return (struct group){0, lane->verify_count};
}

static struct group prefilled(const struct lane *lane)
{
    return (struct group){lane->verify_count, lane->prefill_count};
}

static sc_devptr ints_at(const struct lane *lane, const int32_t *ints)
{
    return twin_at(&lane->space->ints, ints);
}

static sc_devptr floats_at(const struct lane *lane, const float *floats)
{
    return twin_at(&lane->space->floats, floats);
}

static sc_backend *backend(const struct lane *lane)
{
    return lane->model->options.backend;
}

static sc_k_saves saves(const struct lane *lane, struct group group)
{
    if (group.first < lane->verify_count)
        return (sc_k_saves){0};
    return (sc_k_saves){ints_at(lane, lane->save_row), ints_at(lane, lane->save_position),
        ints_at(lane, lane->save_slot), lane->save_count};
}

/* -------------------------------------------------------------------------------------- packing */

static void pack_ints(struct lane *lane)
{
    uint32_t decoded = 0;
    for (uint32_t r = 0; r < lane->row_count; r++) {
        const struct served_row *row = lane->rows[r];
        lane->source[r] = row->source;
        lane->dest[r] = row->tape ? 0 : row->dest;
        if (lane->forward->rings) {
            lane->ring_slot[r] = row->ring.slot;
            lane->records[r] = row->ring.records;
            lane->ring_mode[r] = row->ring.mode;
        }
        lane->first[r] = lane->token_count;
        lane->token_count += row->to - row->from;
        if (row->decode) {
            decoded++;
            if (row->save_count > 0) /* at its end: there is one */
                lane->save[r] = lane->forward->saves[row->save_first].slot;
            if (row->save_count > 0 && lane->forward->rings)
                bench_fail(BENCH_CHECK_FAILED, "a second state of a decode row with a ring");
            continue;
        }
        uint32_t p = r - lane->decode_count;
        lane->row_start[p] = (int32_t)(lane->first[r] - decoded);
        lane->row_start[p + 1] = (int32_t)(lane->token_count - decoded);
        lane->position[p] = (int32_t)row->from;
        for (uint32_t i = 0; !row->tape && i < row->save_count; i++) {
            const struct served_save *save = &lane->forward->saves[row->save_first + i];
            lane->save_row[lane->save_count] = (int32_t)(p - lane->verify_count);
            lane->save_position[lane->save_count] = (int32_t)save->position;
            lane->save_slot[lane->save_count++] = save->slot;
        }
    }
}

/* Floats, rounded up to cache lines. */
static size_t whole_lines(size_t floats)
{
    return (floats + 15) / 16 * 16;
}

static void lane_arrays(struct lane *lane, uint32_t tokens, uint32_t saved, uint32_t longest)
{
    const struct served_model *m = lane->model;
    const struct served_options *o = &m->options;
    size_t rows = lane->row_count;
    twin_grow(&lane->space->ints, backend(lane), 9 * rows + 1 + 3 * (size_t)saved,
        sizeof(int32_t));
    lane->source = lane->space->ints.host;
    memset(lane->source, 0, lane->space->ints.bytes);
    lane->dest = lane->source + rows;
    lane->save = lane->dest + rows;
    lane->row_start = lane->save + rows;
    lane->position = lane->row_start + rows + 1;
    lane->first = (uint32_t *)(lane->position + rows);
    lane->ring_slot = (int32_t *)lane->first + rows;
    lane->records = lane->ring_slot + rows;
    lane->ring_mode = lane->records + rows;
    lane->save_row = lane->ring_mode + rows;
    lane->save_position = lane->save_row + saved;
    lane->save_slot = lane->save_position + saved;
    uint32_t wide = m->channels > o->mlp ? m->channels : o->mlp;
    wide = wide > 3 * m->attention_width ? wide : 3 * m->attention_width;
    const struct { float **array; uint32_t width; } arrays[] = {{&lane->x, o->hidden},
        {&lane->h, o->hidden}, {&lane->t1, wide}, {&lane->t2, o->hidden},
        {&lane->mixed, wide}, {&lane->gate, m->value_dim}, {&lane->out, wide},
        {&lane->decay, m->decay_dim}, {&lane->beta, o->v_heads}};
    size_t count = 0;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        count += whole_lines((size_t)arrays[i].width * tokens);
    twin_grow(&lane->space->floats, backend(lane), count, sizeof(float));
    float *at = lane->space->floats.host;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        *arrays[i].array = at;
        at += whole_lines((size_t)arrays[i].width * tokens);
    }
    twin_grow(&lane->space->context, NULL, longest, sizeof *lane->context + sizeof *lane->score);
    lane->context = lane->space->context.host;
    lane->score = (float *)(lane->context + longest);
}

static void lane_open(struct lane *lane)
{
    uint32_t tokens = 0, saved = 0, longest = 0;
    for (uint32_t r = 0; r < lane->row_count; r++) {
        const struct served_row *row = lane->rows[r];
        tokens += row->to - row->from;
        saved += row->decode || row->tape ? 0 : row->save_count;
        longest = row->to > longest ? row->to : longest;
        lane->decode_count += row->decode;
        lane->verify_count += row->tape != NULL;
    }
    lane->prefill_count = lane->row_count - lane->decode_count - lane->verify_count;
    lane_arrays(lane, tokens, saved, longest);
    pack_ints(lane);
    twin_in(&lane->space->ints, lane->source, lane->space->ints.bytes);
}

struct served_space *served_spaces_create(void)
{
    return bench_alloc(SERVED_THREADS_MAX, sizeof(struct served_space));
}

void served_spaces_destroy(struct served_space *spaces, sc_backend *backend)
{
    for (uint32_t i = 0; spaces && i < SERVED_THREADS_MAX; i++) {
        twin_close(&spaces[i].ints);
        twin_close(&spaces[i].floats);
        twin_close(&spaces[i].context);
        place_give(backend, spaces[i].scratch, spaces[i].scratch_bytes);
    }
    free(spaces);
}

/* --------------------------------------------------------------------------------- linear mixer */

static void reserve_scratch(struct lane *lane, uint64_t bytes)
{
    struct served_space *space = lane->space;
    if (bytes <= space->scratch_bytes)
        return;
    place_give(backend(lane), space->scratch, space->scratch_bytes);
    space->scratch_bytes = bytes;
    space->scratch = place_take(backend(lane), bytes);
}

/* Tokens `skip` .. of the lane, rows of one form: raw q k v and gates to lane->out. */
static sc_linear_batch linear_batch(const struct lane *lane, uint32_t index, size_t skip,
    uint32_t tokens)
{
    const struct served_model *m = lane->model;
    sc_linear_batch b = {.x = floats_at(lane, lane->t1 + skip * m->channels),
        .a = floats_at(lane, lane->decay + skip * m->decay_dim),
        .b = floats_at(lane, lane->beta + skip * m->options.v_heads),
        .o = floats_at(lane, lane->out + skip * m->value_dim), .dtype = SC_DTYPE_F32,
        .token_count = tokens};
    served_parts(&b, m, lane->forward->pool, index);
    return b;
}

static void run_form(struct lane *lane, const sc_linear_layer *linear, sc_linear_batch *b,
    sc_linear_form form)
{
    uint64_t bytes = 0;
    bench_must(sc_linear_scratch(backend(lane), linear, b, form, &bytes), "sc_linear_scratch");
    reserve_scratch(lane, bytes);
    b->scratch = lane->space->scratch;
    b->scratch_bytes = lane->space->scratch_bytes;
    if (form == SC_LINEAR_DECODE)
        bench_must(sc_linear_decode(backend(lane), linear, b, NULL), "sc_linear_decode");
    else if (form == SC_LINEAR_VERIFY)
        bench_must(sc_linear_verify(backend(lane), linear, b, NULL), "sc_linear_verify");
    else
        bench_must(sc_linear_extend(backend(lane), linear, b, NULL), "sc_linear_extend");
}

/* Verify rows, or prefill rows. */
static void run_group(struct lane *lane, const sc_linear_layer *linear, uint32_t index,
    struct group group, sc_linear_form form)
{
    size_t skip = lane->decode_count;
    uint32_t longest = 0;
    if (group.count == 0)
        return;
    sc_linear_batch b = linear_batch(lane, index, skip, lane->token_count - lane->decode_count);
    b.row_count = group.count;
    b.row_start = ints_at(lane, lane->row_start + group.first);
    b.position = ints_at(lane, lane->position + group.first);
    b.source = ints_at(lane, lane->source + skip + group.first);
    if (form == SC_LINEAR_EXTEND) {
        b.dest = ints_at(lane, lane->dest + skip + group.first);
        b.saves = saves(lane, group);
    }
    for (uint32_t r = 0; r < group.count; r++) {
        const struct served_row *row = lane->rows[skip + group.first + r];
        longest = row->to - row->from > longest ? row->to - row->from : longest;
    }
    b.tokens_max = form == SC_LINEAR_VERIFY ? longest : 0;
    run_form(lane, linear, &b, form);
}

/* Rings of the layer for the lane's rows from `first` on. */
static sc_k_ring ring_of(const struct lane *lane, uint32_t index, uint32_t first)
{
    const struct served_ring_ints ints = {ints_at(lane, lane->ring_slot + first),
        ints_at(lane, lane->records + first), ints_at(lane, lane->ring_mode + first)};
    return served_ring_of(lane->model, lane->forward->rings, index, &ints);
}

static void decode_with_rings(struct lane *lane, const sc_linear_layer *linear, uint32_t index,
    sc_linear_batch *b)
{
    const sc_k_ring ring = ring_of(lane, index, 0);
    b->scratch = floats_at(lane, lane->mixed);
    served_ring_decode(lane->model, linear, b, &ring);
}

/* Before a prefill, which needs the state itself. */
static void fold_rings(struct lane *lane, const sc_linear_layer *linear, uint32_t index)
{
    uint32_t first = lane->decode_count + lane->verify_count;
    sc_linear_batch b = {.dtype = SC_DTYPE_F32, .row_count = lane->prefill_count,
        .source = ints_at(lane, lane->source + first), .dest = ints_at(lane, lane->dest + first)};
    const sc_k_ring ring = ring_of(lane, index, first);
    served_parts(&b, lane->model, lane->forward->pool, index);
    served_ring_fold_rows(lane->model, linear, &b, &ring);
}

static void run_recurrence(struct lane *lane, uint32_t index, const struct served_layer *layer)
{
    const sc_linear_layer linear = served_linear_layer(lane->model, layer);
    if (lane->decode_count > 0) {
        sc_linear_batch b = linear_batch(lane, index, 0, lane->decode_count);
        b.row_count = lane->decode_count;
        b.source = ints_at(lane, lane->source);
        b.dest = ints_at(lane, lane->dest);
        b.save = ints_at(lane, lane->save);
        if (lane->forward->rings)
            decode_with_rings(lane, &linear, index, &b);
        else
            run_form(lane, &linear, &b, SC_LINEAR_DECODE);
    }
    if (lane->forward->rings && lane->prefill_count > 0)
        fold_rings(lane, &linear, index);
    run_group(lane, &linear, index, verified(lane), SC_LINEAR_VERIFY);
    run_group(lane, &linear, index, prefilled(lane), SC_LINEAR_EXTEND);
}

/* `width` floats of each token of the verify rows, to their tapes: the next of what the layer
 * leaves. */
static void tape(struct lane *lane, uint32_t layer, uint32_t before, const float *from,
    uint32_t width)
{
    for (uint32_t r = lane->decode_count; r < lane->decode_count + lane->verify_count; r++) {
        const struct served_row *row = lane->rows[r];
        size_t tokens = row->to - row->from, skip = before;
        for (uint32_t i = 0; i < layer; i++)
            skip += served_tape_layer_width(lane->model, i);
        memcpy(row->tape->data + skip * tokens, from + (size_t)lane->first[r] * width,
            tokens * width * sizeof *from);
    }
}

/* What a linear layer reads of the projections: conv inputs, gates. */
static void projections_in(const struct lane *lane)
{
    const struct served_model *m = lane->model;
    const struct { const float *array; uint32_t width; } arrays[] = {{lane->t1, m->channels},
        {lane->decay, m->decay_dim}, {lane->beta, m->options.v_heads},
        {lane->gate, m->value_dim}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        twin_in(&lane->space->floats, arrays[i].array,
            (size_t)lane->token_count * arrays[i].width * sizeof(float));
}

static void run_linear(struct lane *lane, uint32_t index, const struct served_layer *layer)
{
    const struct served_model *m = lane->model;
    const struct served_options *o = &m->options;
    size_t tokens = lane->token_count;
    dense_apply(lane->h, layer->qkv, lane->t1, tokens, o->hidden, m->channels);
    dense_apply(lane->h, layer->decay, lane->decay, tokens, o->hidden, m->decay_dim);
    dense_apply(lane->h, layer->beta, lane->beta, tokens, o->hidden, o->v_heads);
    dense_apply(lane->h, layer->gate, lane->gate, tokens, o->hidden, m->value_dim);
    tape(lane, index, 0, lane->t1, m->channels);
    tape(lane, index, m->channels, lane->decay, m->decay_dim);
    tape(lane, index, m->channels + m->decay_dim, lane->beta, o->v_heads);
    projections_in(lane);
    run_recurrence(lane, index, layer);
    sc_devptr out = floats_at(lane, lane->out);
    sc_k_gated_rmsnorm_params norm = {.x = out, .z = floats_at(lane, lane->gate), .y = out,
        .dtype = SC_DTYPE_F32, .weight = twin_at(&m->weights, layer->out_norm),
        .weight_dtype = SC_DTYPE_F32, .gate_first = o->mamba,
        .act = o->kind == SC_K_KIND_GDN ? SC_K_ACT_SILU : SC_K_ACT_SIGMOID,
        .token_count = lane->token_count, .heads = o->v_heads, .dim = o->head_dim, .eps = 1e-6f};
    bench_must(sc_k_gated_rmsnorm(backend(lane), &norm, NULL), "sc_k_gated_rmsnorm");
    twin_out(&lane->space->floats, lane->out, tokens * m->value_dim * sizeof(float));
    dense_apply(lane->out, layer->out, lane->t2, tokens, m->value_dim, o->hidden);
}

/* ------------------------------------------------------------------------------------ attention */

/* Writes the row's new keys and values into their pages (a verify row's stay where they are), then
 * attends token by token. */
static void attend_row(struct lane *lane, const struct served_row *row, uint32_t first,
    uint32_t attention_layer)
{
    const struct served_model *m = lane->model;
    const struct paged_kv *kv = lane->forward->kv;
    size_t width = m->attention_width, dim = m->options.attention_dim;
    for (uint32_t i = 0; i < row->to; i++) {
        float *own = i < row->from ? NULL : lane->mixed + (first + i - row->from) * 2 * width;
        if (own && row->tape) {
            lane->context[i] = own;
            continue;
        }
        float *into = paged_kv_row(kv, attention_layer, row->pages[i / kv->page_tokens],
            i % kv->page_tokens);
        lane->context[i] = into;
        if (own)
            memcpy(into, own, 2 * width * sizeof *into);
    }
    for (uint32_t i = row->from; i < row->to; i++) {
        size_t at = (first + i - row->from) * width;
        for (size_t head = 0; head < width; head += dim) {
            struct dense_context context = {lane->context, i + 1, head, width + head, dim};
            dense_attend(lane->t1 + at + head, &context, lane->score, lane->out + at + head);
        }
    }
}

static void run_attention(struct lane *lane, uint32_t index, uint32_t attention_layer,
    const struct served_layer *layer)
{
    const struct served_model *m = lane->model;
    uint32_t hidden = m->options.hidden;
    size_t width = m->attention_width, tokens = lane->token_count;
    dense_apply(lane->h, layer->query, lane->t1, tokens, hidden, width);
    dense_apply(lane->h, layer->key, lane->out, tokens, hidden, width);
    for (size_t t = 0; t < tokens; t++)
        memcpy(lane->mixed + t * 2 * width, lane->out + t * width, width * sizeof *lane->out);
    dense_apply(lane->h, layer->value, lane->out, tokens, hidden, width);
    for (size_t t = 0; t < tokens; t++)
        memcpy(lane->mixed + t * 2 * width + width, lane->out + t * width,
            width * sizeof *lane->out);
    tape(lane, index, 0, lane->mixed, (uint32_t)(2 * width));
    for (uint32_t r = 0; r < lane->row_count; r++)
        attend_row(lane, lane->rows[r], lane->first[r], attention_layer);
    dense_apply(lane->out, layer->out, lane->t2, tokens, width, hidden);
}

/* -------------------------------------------------------------------------------------- forward */

static void run_mlp(struct lane *lane, const struct served_layer *layer)
{
    const struct served_options *o = &lane->model->options;
    size_t tokens = lane->token_count;
    dense_rmsnorm(lane->x, layer->mlp_norm, lane->h, tokens, o->hidden);
    dense_apply(lane->h, layer->mlp_gate, lane->t1, tokens, o->hidden, o->mlp);
    dense_apply(lane->h, layer->mlp_up, lane->mixed, tokens, o->hidden, o->mlp);
    dense_silu_mul(lane->t1, lane->mixed, tokens * o->mlp);
    dense_apply(lane->t1, layer->mlp_down, lane->t2, tokens, o->mlp, o->hidden);
    dense_accumulate(lane->x, lane->t2, tokens * o->hidden);
}

static void lane_run(struct lane *lane)
{
    const struct served_model *m = lane->model;
    const struct served_options *o = &m->options;
    size_t hidden = o->hidden, tokens = lane->token_count;
    for (uint32_t r = 0; r < lane->row_count; r++) {
        const struct served_row *row = lane->rows[r];
        for (uint32_t i = row->from; i < row->to; i++)
            memcpy(lane->x + (lane->first[r] + i - row->from) * hidden,
                m->embedding + (uint32_t)row->tokens[i - row->from] % o->vocab * hidden,
                hidden * sizeof *lane->x);
    }
    for (uint32_t i = 0, attention = 0; i < o->layers; i++) {
        const struct served_layer *layer = &m->layers[i];
        dense_rmsnorm(lane->x, layer->norm, lane->h, tokens, hidden);
        if (layer->is_attention)
            run_attention(lane, i, attention++, layer);
        else
            run_linear(lane, i, layer);
        dense_accumulate(lane->x, lane->t2, tokens * hidden);
        run_mlp(lane, layer);
    }
    dense_rmsnorm(lane->x, m->norm, lane->h, tokens, hidden);
    for (uint32_t r = 0; r < lane->row_count; r++) {
        const struct served_row *row = lane->rows[r];
        const float *from = lane->h + lane->first[r] * hidden;
        size_t count = row->to - row->from;
        if (row->hidden_out)
            memcpy(row->hidden_out, from, count * hidden * sizeof *from);
        if (row->logits_out)
            dense_apply(from + (count - row->logits_count) * hidden, m->head, row->logits_out,
                row->logits_count, hidden, o->vocab);
    }
}

static void *lane_thread(void *lane)
{
    lane_run(lane);
    return NULL;
}

/* Decode, verify, prefill: the order in a lane. */
static int form(const struct served_row *row)
{
    return row->decode ? 0 : row->tape ? 1 : 2;
}

/* Deals rows out, form by form: each to the lane with the fewest tokens so far. */
static uint32_t deal(const struct served_forward *forward, struct lane *lanes, uint32_t count)
{
    uint32_t tokens[64] = {0};
    for (int wanted = 0; wanted < 3; wanted++)
        for (uint32_t r = 0; r < forward->row_count; r++) {
            const struct served_row *row = &forward->rows[r];
            if (form(row) != wanted)
                continue;
            uint32_t best = 0;
            for (uint32_t i = 1; i < count; i++)
                best = tokens[i] < tokens[best] ? i : best;
            tokens[best] += row->to - row->from;
            lanes[best].rows[lanes[best].row_count++] = row;
        }
    uint32_t used = 0;
    while (used < count && lanes[used].row_count > 0)
        used++;
    return used;
}

void served_run(const struct served_model *model, const struct served_forward *forward)
{
    struct lane lanes[SERVED_THREADS_MAX] = {{0}};
    pthread_t threads[SERVED_THREADS_MAX];
    uint32_t count = forward->threads < SERVED_THREADS_MAX ? forward->threads : SERVED_THREADS_MAX;
    const struct served_row **rows = bench_alloc((size_t)count * forward->row_count,
        sizeof *rows);
    for (uint32_t i = 0; i < count; i++) {
        lanes[i].model = model;
        lanes[i].forward = forward;
        lanes[i].space = &forward->spaces[i];
        lanes[i].rows = rows + (size_t)i * forward->row_count;
    }
    uint32_t used = deal(forward, lanes, count);
    for (uint32_t i = 0; i < used; i++)
        lane_open(&lanes[i]);
    for (uint32_t i = 1; i < used; i++)
        if (pthread_create(&threads[i], NULL, lane_thread, &lanes[i]))
            bench_fail(BENCH_NO_MEMORY, "cannot start a thread");
    if (used > 0)
        lane_run(&lanes[0]);
    for (uint32_t i = 1; i < used; i++)
        pthread_join(threads[i], NULL);
    free(rows);
}
