/* SPDX-License-Identifier: Apache-2.0 */
/* Schemas of known models, as one table.
 *
 * A row gives heads, head dims and key heads (or groups); the parts follow from the family
 * (pool/model.h), with one bf16 window of 3 rows (W = 4).
 *
 * Layer numbers: where a model's placement of linear layers is public they are the model's own;
 * otherwise (DENSE) they count the linear layers alone. Rows marked "recall" were not confirmed by
 * a public configuration: shapes or the number of layers may be off. */
#include <string.h>

#include "base/error.h"
#include "base/sc_assert.h"
#include "pool/model.h"
#include "statecache/schema.h"

#define GDN SC_FAMILY_GDN
#define KDA SC_FAMILY_KDA
#define MAMBA2 SC_FAMILY_MAMBA2
#define MAMBA1 SC_FAMILY_MAMBA1

enum placement {
    EVERY,          /* all layers */
    EVERY4,         /* layers 3, 7, 11 ... are full attention */
    EVERY4_AND_LAST,/* these and the last one */
    DENSE           /* not public here: linear layers are numbered 0 .. n-1 */
};

struct preset {
    const char *name;
    enum sc_family family;
    enum placement placement;
    uint32_t layers;    /* linear layers */
    uint32_t total;     /* layers of the model; DENSE: the same as layers */
    uint32_t heads, rows, cols; /* HV, V, K or nheads, P, N */
    uint32_t key_heads; /* H (GDN, KDA), G (MAMBA2), unused (MAMBA1) */
    uint32_t chunk;
};

static const struct preset presets[] = {
    {"qwen3-next-80b-a3b", GDN, EVERY4, 36, 48, 32, 128, 128, 16, 64},
    {"qwen3.5-397b-a17b", GDN, EVERY4, 45, 60, 64, 128, 128, 16, 64},       /* recall: layers */
    {"qwen3.5-122b-a10b", GDN, EVERY4, 36, 48, 64, 128, 128, 16, 64},       /* recall: layers */
    {"qwen3.5-35b-a3b", GDN, EVERY4, 30, 40, 32, 128, 128, 16, 64},         /* recall: layers */
    {"qwen3.5-27b", GDN, EVERY4, 48, 64, 48, 128, 128, 16, 64},
    {"qwen3.5-9b", GDN, EVERY4, 24, 32, 32, 128, 128, 16, 64},              /* recall: layers */
    {"qwen3.5-4b", GDN, EVERY4, 24, 32, 32, 128, 128, 16, 64},
    {"qwen3.5-2b", GDN, EVERY4, 18, 24, 16, 128, 128, 16, 64},              /* recall: layers */
    {"qwen3.5-0.8b", GDN, EVERY4, 18, 24, 16, 128, 128, 16, 64},
    {"kimi-linear-48b-a3b", KDA, EVERY4_AND_LAST, 20, 27, 32, 128, 128, 32, 64},
    {"kimi-k3", KDA, EVERY4_AND_LAST, 69, 93, 96, 128, 128, 96, 64},
    {"glm-5.3-flash", KDA, EVERY4, 34, 45, 64, 128, 128, 64, 64},
    {"ling-3.0-flash", KDA, DENSE, 35, 35, 32, 128, 128, 32, 64},
    {"nemotron-3-super-120b-a12b", MAMBA2, DENSE, 40, 40, 128, 64, 128, 8, 128},
    {"nemotron-3-nano-30b-a3b", MAMBA2, DENSE, 23, 23, 64, 64, 128, 8, 128},
    {"nemotron-h-8b", MAMBA2, DENSE, 24, 24, 128, 64, 128, 8, 128},         /* recall: chunk */
    {"nemotron-h-56b", MAMBA2, DENSE, 54, 54, 256, 64, 256, 8, 128},        /* recall */
    {"nemotron-nano-9b-v2", MAMBA2, DENSE, 27, 27, 128, 80, 128, 8, 128},   /* recall: 80, chunk */
    {"falcon-h1-34b", MAMBA2, EVERY, 72, 72, 32, 128, 256, 2, 256},         /* recall */
    {"falcon-h1-7b", MAMBA2, EVERY, 44, 44, 24, 128, 256, 1, 256},
    {"granite-4.0-h-small", MAMBA2, DENSE, 36, 36, 128, 64, 128, 1, 256},
    {"granite-4.0-h-tiny", MAMBA2, DENSE, 36, 36, 48, 64, 128, 1, 256},     /* recall */
    {"jamba-v0.1", MAMBA1, DENSE, 28, 28, 8192, 1, 16, 0, 16},
    {"jamba-1.5-mini", MAMBA1, DENSE, 28, 28, 8192, 1, 16, 0, 16},
    {"jamba-1.5-large", MAMBA1, DENSE, 63, 63, 16384, 1, 16, 0, 16},        /* recall */
};
enum { PRESET_COUNT = sizeof presets / sizeof presets[0], LAYERS_MAX = 128 };

const char *sc_schema_preset_name(uint32_t index)
{
    return index < PRESET_COUNT ? presets[index].name : NULL;
}

static bool is_linear(const struct preset *preset, uint32_t layer)
{
    switch (preset->placement) {
    case EVERY4: return layer % 4 != 3;
    case EVERY4_AND_LAST: return layer % 4 != 3 && layer != preset->total - 1;
    case EVERY:
    case DENSE: break;
    }
    return true;
}

static sc_status preset_build(const struct preset *preset, sc_dtype dtype, sc_schema **schema_out)
{
    sc_part parts[2 * LAYERS_MAX];
    bool linear[LAYERS_MAX];
    uint32_t count = 0;
    SC_ASSERT(preset->total <= LAYERS_MAX);
    for (uint32_t layer = 0; layer < preset->total; layer++) {
        linear[layer] = is_linear(preset, layer);
        count += linear[layer];
    }
    SC_ASSERT(count == preset->layers);
    const struct sc_model model = {.name = preset->name, .revision = "preset",
        .family = preset->family, .layer_count = preset->total, .linear = linear,
        .heads = preset->heads, .rows = preset->rows, .cols = preset->cols,
        .key_heads = preset->key_heads, .conv_rows = 3, .chunk = preset->chunk, .dtype = dtype,
        .conv_dtype = SC_DTYPE_BF16};
    return sc_model_schema(&model, parts, schema_out);
}

sc_status sc_schema_preset(const char *name, sc_dtype recurrent_dtype, sc_schema **schema_out)
{
    SC_REQUIRE(name != NULL && schema_out != NULL);
    SC_REQUIRE(recurrent_dtype == SC_DTYPE_F32 || recurrent_dtype == SC_DTYPE_BF16);
    for (uint32_t i = 0; i < PRESET_COUNT; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            return preset_build(&presets[i], recurrent_dtype, schema_out);
        }
    }
    return SC_FAIL(SC_ERR_NOT_FOUND, "no preset is named %.100s", name);
}
