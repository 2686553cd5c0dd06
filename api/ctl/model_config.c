/* SPDX-License-Identifier: Apache-2.0 */
/* From a config.json to shapes. One function for each way to write a family down, chosen by
 * model_type, and for types that are new, by the members that are there:
 *
 *   delta     Qwen3-Next, Qwen3.5, OLMo hybrid: linear_* members, layer_types or an interval
 *   kimi      Kimi Linear, Kimi K3, GLM-5.3 flash: linear_attn_config
 *   ling      Ling 3.0: every layer_group_size-th layer has attention, the others the same heads
 *   nemotron  Nemotron-H: hybrid_override_pattern or layers_block_type, mamba_num_heads ...
 *   mamba_n   Falcon-H1, Granite 4.0 H, Bamba: mamba_n_heads, mamba_d_state ...
 *   zamba     Zamba2;   mamba2, mamba1: plain models;   jamba: Mamba-1 beside attention
 *
 * Names of members are those that the models' published configurations have. A value that is not
 * what it must be ends the reading with the member's path; nothing is guessed but what is said to
 * be the default here. */
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_config.h"

enum { DIM_MAX = 1 << 20 };

struct reader {
    const json_t *top;         /* the object of the language model */
    const char *prefix;        /* "text_config." or "" */
    struct ctl_model *model;
    char *fault;
};

__attribute__((format(printf, 2, 3)))
static bool wrong(const struct reader *r, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    (void)vsnprintf(r->fault, CTL_FAULT_BYTES, format, list);
    va_end(list);
    return false;
}

/* ---- members ---- */

/* "a.b" is member b of object a. NULL: there is none, or it is null. */
static const json_t *find(const struct reader *r, const char *path)
{
    const char *dot = strchr(path, '.');
    const json_t *object = r->top;
    if (dot) {
        char first[64];
        (void)snprintf(first, sizeof first, "%.*s", (int)(dot - path), path);
        object = json_object_get(object, first);
        path = dot + 1;
    }
    const json_t *value = json_object_get(object, path);
    return json_is_null(value) ? NULL : value;
}

static bool has(const struct reader *r, const char *path)
{
    return find(r, path) != NULL;
}

/* A whole number from `min` on; as 128 or 128.0. */
static bool whole(const struct reader *r, const char *path, uint32_t min, uint32_t *out)
{
    const json_t *value = find(r, path);
    double number = json_number_value(value);
    if (!value) return wrong(r, "%s%s: it is missing", r->prefix, path);
    if (!json_is_number(value) || !(number >= min && number <= DIM_MAX) ||
        number != (double)(uint32_t)number) {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        (void)wrong(r, "%s%s: a whole number from %u to %d is wanted, not %.40s", r->prefix, path,
            min, DIM_MAX, text ? text : "this");
        free(text);
        return false;
    }
    *out = (uint32_t)number;
    return true;
}

/* The same, with a default. */
static bool whole_or(const struct reader *r, const char *path, uint32_t min, uint32_t otherwise,
    uint32_t *out)
{
    *out = otherwise;
    return !has(r, path) || whole(r, path, min, out);
}

static bool read_dtype(const struct reader *r, const char *path, sc_dtype otherwise, sc_dtype *out)
{
    static const struct { const char *name; sc_dtype dtype; } names[] = {
        {"float32", SC_DTYPE_F32}, {"bfloat16", SC_DTYPE_BF16}, {"float16", SC_DTYPE_F16}};
    const json_t *value = find(r, path);
    const char *text = json_string_value(value);
    *out = otherwise;
    if (!value || (text && strcmp(text, "auto") == 0)) return true;
    if (text && strncmp(text, "torch.", 6) == 0) text += 6;
    for (size_t i = 0; text && i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].name, text) == 0) {
            *out = names[i].dtype;
            return true;
        }
    }
    return wrong(r, "%s%s: float32, bfloat16 or float16 is wanted, not %.40s", r->prefix, path,
        text ? text : "this");
}

/* ---- which layer is what ---- */

static bool layer_count(const struct reader *r, const char *path)
{
    uint32_t *count = &r->model->shape.layer_count;
    if (!whole(r, path, 1, count)) return false;
    if (*count > CTL_LAYERS_MAX) {
        return wrong(r, "%s%s: at most %d layers are taken", r->prefix, path, CTL_LAYERS_MAX);
    }
    return true;
}

/* A word of layer_types or layers_block_type. */
static bool layer_word(const char *word, bool *linear, bool *attention)
{
    static const char *const recurrent[] = {"linear_attention", "mamba", "mamba2", "kda", "gdn"};
    static const char *const with_kv[] = {"full_attention", "attention", "mla",
        "deepseek_sparse_attention"};
    static const char *const neither[] = {"mlp", "moe"};
    *linear = *attention = false;
    for (size_t i = 0; i < sizeof recurrent / sizeof recurrent[0]; i++) {
        if (strcmp(recurrent[i], word) == 0) return *linear = true;
    }
    for (size_t i = 0; i < sizeof with_kv / sizeof with_kv[0]; i++) {
        if (strcmp(with_kv[i], word) == 0) return *attention = true;
    }
    for (size_t i = 0; i < sizeof neither / sizeof neither[0]; i++) {
        if (strcmp(neither[i], word) == 0) return true;
    }
    if (strcmp(word, "hybrid") == 0) return *linear = *attention = true; /* Zamba2 */
    return false;
}

/* An array of words, one for each layer. */
static bool layers_by_words(const struct reader *r, const char *path)
{
    struct ctl_model *m = r->model;
    const json_t *array = find(r, path);
    if (!json_is_array(array)) return wrong(r, "%s%s: it is no array", r->prefix, path);
    if (json_array_size(array) != m->shape.layer_count) {
        return wrong(r, "%s%s: %zu layers, num_hidden_layers is %u", r->prefix, path,
            json_array_size(array), m->shape.layer_count);
    }
    for (uint32_t i = 0; i < m->shape.layer_count; i++) {
        const char *word = json_string_value(json_array_get(array, i));
        if (!word) return wrong(r, "%s%s[%u]: it is no text", r->prefix, path, i);
        if (!layer_word(word, &m->linear[i], &m->attention[i])) {
            return wrong(r, "%s%s[%u]: \"%.40s\" is not known", r->prefix, path, i, word);
        }
    }
    return true;
}

/* Nemotron-H: a letter for each layer. */
static bool layers_by_letters(const struct reader *r, const char *path)
{
    struct ctl_model *m = r->model;
    const char *text = json_string_value(find(r, path));
    if (!text) return wrong(r, "%s%s: it is missing, or no text", r->prefix, path);
    if (strlen(text) != m->shape.layer_count) {
        return wrong(r, "%s%s: %zu layers, num_hidden_layers is %u", r->prefix, path,
            strlen(text), m->shape.layer_count);
    }
    for (uint32_t i = 0; text[i]; i++) {
        m->linear[i] = text[i] == 'M';
        m->attention[i] = text[i] == '*';
        if (!m->linear[i] && !m->attention[i] && text[i] != '-' && text[i] != 'E') {
            return wrong(r, "%s%s: layer %u is \"%c\"; M, *, - and E are known", r->prefix, path,
                i, text[i]);
        }
    }
    return true;
}

/* Every layer but those which an array of numbers names; `first` is 0 or 1. */
static bool layers_by_numbers(const struct reader *r, const char *path, uint32_t first,
    bool *named, bool *others)
{
    const uint32_t count = r->model->shape.layer_count;
    const json_t *array = find(r, path);
    if (!json_is_array(array)) {
        return wrong(r, "%s%s: it is missing, or no array", r->prefix, path);
    }
    for (uint32_t i = 0; i < count; i++) {
        named[i] = false;
        others[i] = true;
    }
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *value = json_array_get(array, i);
        json_int_t layer = json_integer_value(value) - (json_int_t)first;
        if (!json_is_integer(value) || layer < 0 || layer >= (json_int_t)count || named[layer]) {
            return wrong(r, "%s%s[%zu]: no layer of this model, or named twice", r->prefix, path,
                i);
        }
        named[layer] = true;
        others[layer] = false;
    }
    return true;
}

/* The last of every `period` layers has attention; with `rest`, those behind the last whole period,
 * too. */
static void layers_by_period(const struct reader *r, uint32_t period, uint32_t offset, bool rest)
{
    struct ctl_model *m = r->model;
    const uint32_t whole_count = m->shape.layer_count / period * period;
    for (uint32_t i = 0; i < m->shape.layer_count; i++) {
        m->attention[i] = i % period == offset || (rest && i >= whole_count);
        m->linear[i] = !m->attention[i];
    }
}

static bool layers_of_delta(const struct reader *r)
{
    uint32_t period;
    if (has(r, "layer_types")) return layers_by_words(r, "layer_types");
    if (!has(r, "full_attention_interval")) {
        return wrong(r, "%slayer_types: it is missing, and so is full_attention_interval",
            r->prefix);
    }
    if (!whole(r, "full_attention_interval", 1, &period)) return false;
    layers_by_period(r, period, period - 1, false);
    return true;
}

/* kda_layers counts from 1 in Kimi's files and from 0 where there is a layer_types, too. */
static bool layers_of_kimi(const struct reader *r)
{
    struct ctl_model *m = r->model;
    if (has(r, "layer_types")) return layers_by_words(r, "layer_types");
    return layers_by_numbers(r, "linear_attn_config.kda_layers", 1, m->linear, m->attention);
}

/* ---- families ---- */

static bool conv_rows(const struct reader *r, const char *path)
{
    uint32_t width;
    if (!whole(r, path, 2, &width)) return false;
    r->model->shape.conv_rows = width - 1;
    return true;
}

static bool read_delta(const struct reader *r)
{
    struct sc_model *shape = &r->model->shape;
    shape->family = SC_FAMILY_GDN;
    shape->chunk = 64;
    return layers_of_delta(r) && whole(r, "linear_num_value_heads", 1, &shape->heads) &&
        whole(r, "linear_num_key_heads", 1, &shape->key_heads) &&
        whole(r, "linear_value_head_dim", 1, &shape->rows) &&
        whole(r, "linear_key_head_dim", 1, &shape->cols) && conv_rows(r, "linear_conv_kernel_dim");
}

static bool kda_shape(const struct reader *r, const char *heads, const char *dim, const char *conv)
{
    struct sc_model *shape = &r->model->shape;
    shape->family = SC_FAMILY_KDA;
    shape->chunk = 64;
    if (!whole(r, heads, 1, &shape->heads) || !whole(r, dim, 1, &shape->rows)) return false;
    shape->key_heads = shape->heads;
    shape->cols = shape->rows;
    return conv_rows(r, conv);
}

static bool read_kimi(const struct reader *r)
{
    return layers_of_kimi(r) && kda_shape(r, "linear_attn_config.num_heads",
        "linear_attn_config.head_dim", "linear_attn_config.short_conv_kernel_size");
}

static bool read_ling(const struct reader *r)
{
    uint32_t period;
    if (!whole(r, "layer_group_size", 1, &period)) return false;
    layers_by_period(r, period, period - 1, true);
    return kda_shape(r, "num_attention_heads", "head_dim", "short_conv_kernel_size");
}

/* Names of what a Mamba-2 layer has; NULL: this family has no such member. */
struct mamba_names {
    const char *heads, *head_dim, *state, *groups, *conv, *chunk, *expand;
};

/* hidden_size times a factor. */
static bool expanded(const struct reader *r, const char *factor, uint32_t *out)
{
    uint32_t hidden, times;
    if (!whole(r, "hidden_size", 1, &hidden) || !whole(r, factor, 1, &times)) return false;
    if ((uint64_t)hidden * times > DIM_MAX) {
        return wrong(r, "%shidden_size: with %s a width of %u x %u, which is too large",
            r->prefix, factor, hidden, times);
    }
    *out = hidden * times;
    return true;
}

/* Heads times head dim must be what the layer's width is, where that is written, too. */
static bool mamba_inner(const struct reader *r, const struct mamba_names *names,
    const char *inner_name)
{
    struct sc_model *shape = &r->model->shape;
    uint32_t inner = 0;
    const json_t *dim = find(r, names->head_dim);
    if (inner_name && has(r, inner_name) && !whole(r, inner_name, 1, &inner)) return false;
    if (dim && !(json_is_string(dim) && strcmp(json_string_value(dim), "auto") == 0)) {
        if (!whole(r, names->head_dim, 1, &shape->rows)) return false;
        if (inner > 0 && (uint64_t)shape->heads * shape->rows != inner) {
            return wrong(r, "%s%s: %u, but %s x %s is %u x %u", r->prefix, inner_name, inner,
                names->heads, names->head_dim, shape->heads, shape->rows);
        }
        return true;
    }
    if (inner == 0 && !expanded(r, names->expand, &inner)) return false;
    if (inner % shape->heads != 0) {
        return wrong(r, "%s%s: %u heads do not divide a width of %u", r->prefix, names->heads,
            shape->heads, inner);
    }
    shape->rows = inner / shape->heads;
    return true;
}

static bool mamba_shape(const struct reader *r, const struct mamba_names *names,
    const char *inner_name)
{
    struct sc_model *shape = &r->model->shape;
    shape->family = SC_FAMILY_MAMBA2;
    return whole(r, names->heads, 1, &shape->heads) && mamba_inner(r, names, inner_name) &&
        whole(r, names->state, 1, &shape->cols) &&
        whole_or(r, names->groups, 1, 1, &shape->key_heads) && conv_rows(r, names->conv) &&
        whole_or(r, names->chunk, 1, 256, &shape->chunk);
}

static bool read_nemotron(const struct reader *r)
{
    static const struct mamba_names names = {"mamba_num_heads", "mamba_head_dim",
        "ssm_state_size", "n_groups", "conv_kernel", "chunk_size", "expand"};
    bool words = has(r, "layers_block_type");
    return (words ? layers_by_words(r, "layers_block_type") :
        layers_by_letters(r, "hybrid_override_pattern")) && mamba_shape(r, &names, NULL);
}

static bool read_mamba_n(const struct reader *r)
{
    static const struct mamba_names names = {"mamba_n_heads", "mamba_d_head", "mamba_d_state",
        "mamba_n_groups", "mamba_d_conv", "mamba_chunk_size", "mamba_expand"};
    struct ctl_model *m = r->model;
    if (has(r, "layer_types")) {
        if (!layers_by_words(r, "layer_types")) return false;
    } else if (has(r, "attn_layer_indices")) {
        if (!layers_by_numbers(r, "attn_layer_indices", 0, m->attention, m->linear)) return false;
    } else if (strcmp(m->type, "falcon_h1") == 0) {
        for (uint32_t i = 0; i < m->shape.layer_count; i++) m->linear[i] = m->attention[i] = true;
    } else {
        return wrong(r, "%slayer_types: it is missing", r->prefix);
    }
    return mamba_shape(r, &names, "mamba_d_ssm");
}

static bool read_zamba(const struct reader *r)
{
    static const struct mamba_names names = {"n_mamba_heads", "mamba_headdim", "mamba_d_state",
        "mamba_ngroups", "mamba_d_conv", "chunk_size", "mamba_expand"};
    struct ctl_model *m = r->model;
    if (!layers_by_words(r, "layers_block_type")) return false;
    m->kv_known = false; /* its attention is shared, over twice the width */
    return mamba_shape(r, &names, NULL);
}

static bool read_mamba2(const struct reader *r)
{
    static const struct mamba_names names = {"num_heads", "head_dim", "state_size", "n_groups",
        "conv_kernel", "chunk_size", "expand"};
    struct ctl_model *m = r->model;
    for (uint32_t i = 0; i < m->shape.layer_count; i++) m->linear[i] = true;
    return mamba_shape(r, &names, NULL);
}

static bool mamba1_shape(const struct reader *r, const char *inner_name, const char *expand,
    const char *state, const char *conv)
{
    struct sc_model *shape = &r->model->shape;
    shape->family = SC_FAMILY_MAMBA1;
    shape->rows = 1;
    shape->chunk = 16;
    bool wide = inner_name && has(r, inner_name) ? whole(r, inner_name, 1, &shape->heads) :
        expanded(r, expand, &shape->heads);
    return wide && whole(r, state, 1, &shape->cols) && conv_rows(r, conv);
}

static bool read_mamba1(const struct reader *r)
{
    struct ctl_model *m = r->model;
    for (uint32_t i = 0; i < m->shape.layer_count; i++) m->linear[i] = true;
    return mamba1_shape(r, "intermediate_size", "expand", "state_size", "conv_kernel");
}

static bool read_jamba(const struct reader *r)
{
    uint32_t period, offset;
    if (has(r, "layers_block_type")) {
        if (!layers_by_words(r, "layers_block_type")) return false;
    } else {
        if (!whole(r, "attn_layer_period", 1, &period) ||
            !whole(r, "attn_layer_offset", 0, &offset)) {
            return false;
        }
        layers_by_period(r, period, offset, false);
    }
    return mamba1_shape(r, NULL, "mamba_expand", "mamba_d_state", "mamba_d_conv");
}

/* ---- KV of the attention layers ---- */

static bool read_kv(const struct reader *r)
{
    struct ctl_model *m = r->model;
    uint32_t rank, rope, heads, hidden;
    if (!m->kv_known || m->attention_count == 0) return true;
    if (has(r, "kv_lora_rank")) { /* MLA: one latent row for all heads */
        if (!whole(r, "kv_lora_rank", 1, &rank) || !whole_or(r, "qk_rope_head_dim", 0, 0, &rope)) {
            return false;
        }
        m->kv_head_elements = rank + rope;
        return true;
    }
    if (!has(r, "num_key_value_heads") && !has(r, "num_attention_heads")) {
        m->kv_known = false;
        return true;
    }
    if (!whole(r, has(r, "num_key_value_heads") ? "num_key_value_heads" : "num_attention_heads", 1,
        &m->kv_heads)) {
        return false;
    }
    const char *dim = has(r, "head_dim") ? "head_dim" : "attention_head_dim";
    if (has(r, dim)) {
        if (!whole(r, dim, 1, &m->kv_head_elements)) return false;
    } else {
        if (!whole(r, "hidden_size", 1, &hidden) || !whole(r, "num_attention_heads", 1, &heads)) {
            return false;
        }
        m->kv_head_elements = hidden / heads;
    }
    m->kv_head_elements *= 2; /* K and V */
    return true;
}

/* ---- the whole file ---- */

typedef bool (*family_fn)(const struct reader *r);
static const struct { const char *type; family_fn read; } families[] = {
    {"qwen3_next", read_delta}, {"qwen3_5", read_delta}, {"qwen3_5_text", read_delta},
    {"qwen3_5_moe", read_delta}, {"qwen3_5_moe_text", read_delta}, {"olmo_hybrid", read_delta},
    {"kimi_linear", read_kimi}, {"kimi_k3", read_kimi}, {"glm5_next", read_kimi},
    {"glm5_next_text", read_kimi}, {"bailing_hybrid", read_ling}, {"nemotron_h", read_nemotron},
    {"falcon_h1", read_mamba_n}, {"granitemoehybrid", read_mamba_n}, {"bamba", read_mamba_n},
    {"zamba2", read_zamba}, {"mamba2", read_mamba2}, {"jamba", read_jamba}, {"mamba", read_mamba1},
    {"falcon_mamba", read_mamba1},
};

/* A type that is new is read as one that has the same members. */
static family_fn family_of(const struct reader *r)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(families[i].type, r->model->type) == 0) return families[i].read;
    }
    if (has(r, "linear_attn_config")) return read_kimi;
    if (has(r, "linear_num_value_heads")) return read_delta;
    if (has(r, "hybrid_override_pattern")) return read_nemotron;
    if (has(r, "mamba_n_heads")) return read_mamba_n;
    return NULL;
}

static bool read_model(struct reader *r, const json_t *root)
{
    static const char *const inner[] = {"text_config", "llm_config", "language_config"};
    struct ctl_model *m = r->model;
    const char *type = json_string_value(json_object_get(root, "model_type"));
    r->top = root;
    r->prefix = "";
    for (size_t i = 0; i < sizeof inner / sizeof inner[0]; i++) {
        static char prefix[32];
        const json_t *object = json_object_get(root, inner[i]);
        if (!json_is_object(object)) continue;
        (void)snprintf(prefix, sizeof prefix, "%s.", inner[i]);
        r->top = object;
        r->prefix = prefix;
        const char *own = json_string_value(json_object_get(object, "model_type"));
        if (own) type = own;
        break;
    }
    (void)snprintf(m->type, sizeof m->type, "%s", type ? type : "");
    family_fn read = family_of(r);
    if (!read) {
        if (!m->type[0]) return wrong(r, "model_type: it is missing");
        return wrong(r, "model_type: \"%.40s\" is none whose recurrent layers are known here",
            m->type);
    }
    if (!read_dtype(r, has(r, "dtype") ? "dtype" : "torch_dtype", SC_DTYPE_BF16,
        &m->shape.conv_dtype) ||
        !read_dtype(r, has(r, "mamba_ssm_dtype") ? "mamba_ssm_dtype" : "mamba_ssm_cache_dtype",
        SC_DTYPE_F32, &m->shape.dtype)) {
        return false;
    }
    bool counted = read == read_jamba || has(r, "num_hidden_layers") || !has(r, "n_layer");
    if (!layer_count(r, counted ? "num_hidden_layers" : "n_layer") || !read(r)) return false;
    for (uint32_t i = 0; i < m->shape.layer_count; i++) {
        m->linear_count += m->linear[i];
        m->attention_count += m->attention[i];
    }
    if (m->linear_count == 0) return wrong(r, "this model has no recurrent layers");
    return read_kv(r);
}

/* Python writes numbers that JSON does not have (time_step_limit of Mamba-2): as 0.0 they are
 * parsed, and refused where a whole number is wanted. Text between quotes stays. */
static void replace_infinite(char *text, size_t count)
{
    static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
    bool quoted = false;
    for (size_t i = 0; i < count; i++) {
        if (quoted && text[i] == '\\') {
            i++;
            continue;
        }
        if (text[i] == '"') quoted = !quoted;
        for (size_t w = 0; !quoted && w < sizeof words / sizeof words[0]; w++) {
            size_t length = strlen(words[w]);
            if (count - i < length || memcmp(text + i, words[w], length) != 0) continue;
            memset(text + i, ' ', length);
            memcpy(text + i, "0.5", 3);
            break;
        }
    }
}

bool ctl_model_read(const char *text, size_t count, struct ctl_model *model,
    char fault[CTL_FAULT_BYTES])
{
    struct reader r = {.prefix = "", .model = model, .fault = fault};
    json_error_t error;
    char *copy = malloc(count + 1);
    memset(model, 0, sizeof *model);
    model->kv_known = true;
    model->shape.linear = model->linear;
    if (!copy) return wrong(&r, "no memory");
    memcpy(copy, text, count);
    replace_infinite(copy, count);
    json_t *root = json_loadb(copy, count, 0, &error);
    free(copy);
    if (!root) {
        return wrong(&r, "line %d, column %d: %.160s", error.line, error.column, error.text);
    }
    bool good = json_is_object(root) ? read_model(&r, root) :
        wrong(&r, "it is no JSON object");
    json_decref(root);
    return good;
}
