/* SPDX-License-Identifier: Apache-2.0 */
/* Weights, schema and KV pages of the served model; its forward is in served_forward.c. */
#include "served_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "bench_common.h"
#include "dense.h"
#include "served_parts.h"

/* -------------------------------------------------------------------------------------- weights */

/* Two passes over the same code: the first counts (data NULL), the second fills. */
struct making {
    float *data;
    size_t at;
    struct sc_prng prng;
};

static const float *noise(struct making *m, size_t count, double deviation)
{
    float *out = m->data ? m->data + m->at : NULL;
    m->at += count;
    for (size_t i = 0; out && i < count; i++)
        out[i] = (float)(sc_prng_normal(&m->prng) * deviation);
    return out;
}

static const float *packed(struct making *m, size_t in, size_t out, double deviation)
{
    size_t at = m->at;
    const float *w = noise(m, in * out, deviation);
    if (m->data)
        dense_pack(m->data + at, in, out);
    return w;
}

static const float *matrix(struct making *m, size_t in, size_t out)
{
    return packed(m, in, out, 1.0 / sqrt((double)in));
}

static const float *around_one(struct making *m, size_t count)
{
    float *out = m->data ? m->data + m->at : NULL;
    m->at += count;
    for (size_t i = 0; out && i < count; i++)
        out[i] = (float)(0.8 + 0.4 * sc_prng_unit(&m->prng));
    return out;
}

static const float *between(struct making *m, size_t count, double low, double high)
{
    float *out = m->data ? m->data + m->at : NULL;
    m->at += count;
    for (size_t i = 0; out && i < count; i++)
        out[i] = (float)(low + (high - low) * sc_prng_unit(&m->prng));
    return out;
}

/* Gates start where trained models have them: most heads remember hundreds of tokens. */
static void make_linear(struct making *m, const struct served_model *model, struct served_layer *l)
{
    const struct served_options *o = &model->options;
    bool gdn = o->kind == SC_K_KIND_GDN;
    l->qkv = matrix(m, o->hidden, model->channels);
    l->conv = noise(m, (size_t)model->channels * CONV_WIDTH, 0.5);
    l->decay = matrix(m, o->hidden, model->decay_dim);
    l->beta = matrix(m, o->hidden, o->v_heads);
    l->gate = matrix(m, o->hidden, model->value_dim);
    l->a_log = between(m, o->v_heads, gdn ? -1.0 : -0.3, gdn ? 1.0 : 0.3);
    l->dt_bias = between(m, model->decay_dim, -6.0, -3.0);
    l->out_norm = around_one(m, o->head_dim);
    l->out = matrix(m, model->value_dim, o->hidden);
    if (o->mamba) {
        l->conv_bias = noise(m, model->channels, 0.1);
        l->skip = around_one(m, o->v_heads);
    }
}

static void make_attention(struct making *m, const struct served_model *model,
    struct served_layer *l)
{
    uint32_t hidden = model->options.hidden, width = model->attention_width;
    l->query = matrix(m, hidden, width);
    l->key = matrix(m, hidden, width);
    l->value = matrix(m, hidden, width);
    l->out = matrix(m, width, hidden);
}

static void make_weights(struct making *m, struct served_model *model)
{
    const struct served_options *o = &model->options;
    sc_prng_seed(&m->prng, o->seed);
    m->at = 0;
    model->embedding = noise(m, (size_t)o->vocab * o->hidden, 1.0);
    for (uint32_t i = 0; i < o->layers; i++) {
        struct served_layer *l = &model->layers[i];
        l->norm = around_one(m, o->hidden);
        if (l->is_attention)
            make_attention(m, model, l);
        else
            make_linear(m, model, l);
        l->mlp_norm = around_one(m, o->hidden);
        l->mlp_gate = matrix(m, o->hidden, o->mlp);
        l->mlp_up = matrix(m, o->hidden, o->mlp);
        l->mlp_down = matrix(m, o->mlp, o->hidden);
    }
    model->norm = around_one(m, o->hidden);
    model->head = packed(m, o->hidden, o->vocab, 3.0 / sqrt((double)o->hidden));
}

/* --------------------------------------------------------------------------------------- schema */

uint32_t served_conv_part(const struct served_model *model, uint32_t part, uint32_t *first_out)
{
    if (model->conv_parts == 1) {
        *first_out = 0;
        return model->channels;
    }
    *first_out = part * model->key_dim;
    return part < 2 ? model->key_dim : model->value_dim;
}

static sc_block conv_block(uint32_t channels, uint32_t unit)
{
    return (sc_block){channels, unit, SC_SPLIT_EVEN};
}

static uint32_t layer_parts(const struct served_model *model, uint32_t layer, sc_part *parts)
{
    const struct served_options *o = &model->options;
    for (uint32_t i = 0; i < model->conv_parts; i++) {
        uint32_t first, channels = served_conv_part(model, i, &first);
        sc_part part = {.layer = layer, .kind = SC_PART_CONV, .dtype = o->state_dtype,
            .dim_count = 2, .dims = {CONV_WIDTH - 1, channels}, .block_count = 1, .index = i};
        part.blocks[0] = conv_block(channels, o->head_dim);
        if (model->conv_parts == 1) {
            part.block_count = 3;
            part.blocks[0] = part.blocks[1] = conv_block(model->key_dim, o->head_dim);
            part.blocks[2] = conv_block(model->value_dim, o->head_dim);
            if (o->mamba) { /* x B C */
                part.blocks[0] = part.blocks[2];
                part.blocks[2] = part.blocks[1];
            }
        }
        parts[i] = part;
    }
    parts[model->conv_parts] = (sc_part){.layer = layer, .kind = SC_PART_RECURRENT,
        .dtype = o->state_dtype, .dim_count = 3,
        .dims = {o->v_heads, o->head_dim, o->head_dim}};
    return model->conv_parts + 1;
}

static sc_status make_schema(struct served_model *model)
{
    const struct served_options *o = &model->options;
    sc_group group = {.chunk = o->chunk};
    snprintf(group.name, sizeof group.name, o->mamba ? "mamba2" :
        o->kind == SC_K_KIND_GDN ? "gdn" : "kda");
    sc_part *parts = bench_alloc((size_t)o->layers * (CONV_PARTS_MAX + 1), sizeof *parts);
    sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
    char revision[160]; /* all that weights and KV depend on, beside the shapes of states */
    snprintf(revision, sizeof revision, "seed-%llu-%u-%u-%ux%u-%u-%u", (unsigned long long)o->seed,
        o->hidden, o->attention_every, o->attention_heads, o->attention_dim, o->mlp, o->vocab);
    if (o->ring > 0) { /* bits of outputs depend on where rings are flushed */
        size_t used = strlen(revision);
        snprintf(revision + used, sizeof revision - used, "-ring%u-%u", o->ring, o->ring_save);
    }
    options.model = "statecache-bench hybrid";
    options.revision = revision;
    options.groups = &group;
    options.group_count = 1;
    options.parts = parts;
    options.layer_count = o->layers;
    for (uint32_t i = 0; i < o->layers; i++)
        if (!model->layers[i].is_attention)
            options.part_count += layer_parts(model, i, parts + options.part_count);
    sc_status status = sc_schema_create(&options, &model->schema);
    free(parts);
    return status;
}

/* ------------------------------------------------------------------------------------- creation */

static void set_shapes(struct served_model *model)
{
    const struct served_options *o = &model->options;
    bool gdn = o->kind == SC_K_KIND_GDN;
    model->key_dim = o->heads * o->head_dim;
    model->value_dim = o->v_heads * o->head_dim;
    model->channels = 2 * model->key_dim + model->value_dim;
    model->decay_dim = gdn ? o->v_heads : o->v_heads * o->head_dim;
    model->attention_width = o->attention_heads * o->attention_dim;
    model->conv_parts = gdn ? 1 : CONV_PARTS_MAX;
    model->gate = gdn ? SC_K_GATE_GDN : SC_K_GATE_KDA_BOUNDED;
    for (uint32_t i = 0; i < o->layers; i++) {
        model->layers[i].is_attention = i % o->attention_every == o->attention_every - 1;
        model->attention_layers += model->layers[i].is_attention;
        model->tape_width += served_tape_layer_width(model, i);
    }
}

sc_status served_create(const struct served_options *options, struct served_model **model_out)
{
    struct served_model *model = bench_alloc(1, sizeof *model);
    model->options = *options;
    model->layers = bench_alloc(options->layers, sizeof *model->layers);
    set_shapes(model);
    struct making making = {0};
    make_weights(&making, model);
    twin_open(&model->weights, options->backend, making.at, sizeof(float));
    making.data = model->weights.host;
    make_weights(&making, model);
    twin_in(&model->weights, model->weights.host, model->weights.bytes);
    sc_status status = make_schema(model);
    if (status == SC_OK && options->ring > 0)
        status = served_ring_schema(model);
    if (status != SC_OK) {
        served_destroy(model);
        return status;
    }
    *model_out = model;
    return SC_OK;
}

void served_destroy(struct served_model *model)
{
    if (!model)
        return;
    sc_schema_release(model->schema);
    sc_schema_release(model->ring_schema);
    free(model->layers);
    twin_close(&model->weights);
    free(model);
}

/* ---------------------------------------------------------------------------------------- pages */

void paged_kv_init(struct paged_kv *kv, const struct served_model *model, uint32_t page_tokens,
    uint32_t page_count)
{
    kv->page_tokens = page_tokens;
    kv->page_count = page_count;
    kv->row_floats = 2 * model->attention_width;
    size_t rows = (size_t)model->attention_layers * page_count * page_tokens;
    kv->data = bench_alloc(rows, kv->row_floats * sizeof *kv->data);
}

void paged_kv_deinit(struct paged_kv *kv)
{
    free(kv->data);
    kv->data = NULL;
}

void paged_kv_copy(const struct paged_kv *kv, uint32_t attention_layers, int32_t from, int32_t to)
{
    for (uint32_t layer = 0; layer < attention_layers; layer++)
        memcpy(paged_kv_row(kv, layer, to, 0), paged_kv_row(kv, layer, from, 0),
            (size_t)kv->page_tokens * kv->row_floats * sizeof *kv->data);
}

float *paged_kv_row(const struct paged_kv *kv, uint32_t attention_layer, int32_t page,
    uint32_t offset)
{
    size_t row = ((size_t)attention_layer * kv->page_count + (uint32_t)page) * kv->page_tokens;
    return kv->data + (row + offset) * kv->row_floats;
}
