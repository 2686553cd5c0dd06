/* SPDX-License-Identifier: Apache-2.0 */
/* Schemas of known models, as one table.
 *
 * A row gives heads, head dims and key heads (or groups); the conv window follows from the family:
 *
 *   GDN, KDA   q|k|v     key_heads * K | key_heads * K | heads * V     (KDA: key_heads == heads)
 *   MAMBA2     x|B|C     heads * P | groups * N | groups * N
 *   MAMBA1     x         d_inner (heads counts channels, P is 1)
 *
 * All windows are packed into one bf16 part of 3 rows (W = 4). Schemas with one window each for q,
 * k and v are written by hand, with index 0, 1, 2.
 *
 * Layer numbers: where a model's placement of linear layers is public they are the model's own;
 * otherwise (DENSE) they count the linear layers alone. Rows marked "recall" were not confirmed by
 * a public configuration: shapes or the number of layers may be off. */
#include <string.h>

#include "base/error.h"
#include "base/sc_assert.h"
#include "statecache/schema.h"

enum family { GDN, KDA, MAMBA2, MAMBA1, FAMILY_COUNT };

enum placement {
    EVERY,          /* all layers */
    EVERY4,         /* layers 3, 7, 11 ... are full attention */
    EVERY4_AND_LAST,/* these and the last one */
    DENSE           /* not public here: linear layers are numbered 0 .. n-1 */
};

struct preset {
    const char *name;
    enum family family;
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

static const char *const group_names[FAMILY_COUNT] = {"gdn", "kda", "mamba2", "mamba1"};

/* Covered by the fingerprint: states made under other conventions are other states. */
static const char *const conventions[FAMILY_COUNT] = {
    "gdn 1: conv [W-1][q|k|v] raw inputs, oldest first; state [HV][V][K]; q, k l2norm eps 1e-6",
    "kda 1: conv [W-1][q|k|v] raw inputs, oldest first; state [HV][V][K]; q, k l2norm eps 1e-6",
    "mamba2 1: conv [W-1][x|B|C] raw inputs, oldest first; state [heads][P][N]",
    "mamba1 1: conv [W-1][x] raw inputs, oldest first; state [channels][1][N]",
};

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

static void conv_part(const struct preset *p, uint32_t layer, sc_part *out)
{
    sc_part part = {.layer = layer, .kind = SC_PART_CONV, .dtype = SC_DTYPE_BF16, .dim_count = 2};
    const uint32_t inner = p->heads * p->rows;
    switch (p->family) {
    case GDN:
    case KDA:
        part.block_count = 3;
        part.blocks[0] = (sc_block){p->key_heads * p->cols, p->cols, SC_SPLIT_GROUPS};
        part.blocks[1] = part.blocks[0];
        part.blocks[2] = (sc_block){inner, p->rows, SC_SPLIT_EVEN};
        break;
    case MAMBA2:
        part.block_count = 3;
        part.blocks[0] = (sc_block){inner, p->rows, SC_SPLIT_EVEN};
        part.blocks[1] = (sc_block){p->key_heads * p->cols, p->cols, SC_SPLIT_GROUPS};
        part.blocks[2] = part.blocks[1];
        break;
    case MAMBA1:
    case FAMILY_COUNT:
        part.block_count = 1;
        part.blocks[0] = (sc_block){inner, p->rows, SC_SPLIT_EVEN};
        break;
    }
    part.dims[0] = 3;
    for (uint32_t b = 0; b < part.block_count; b++) part.dims[1] += part.blocks[b].channels;
    *out = part;
}

static sc_status preset_build(const struct preset *preset, sc_dtype dtype, sc_schema **schema_out)
{
    sc_part parts[2 * LAYERS_MAX];
    sc_group group = {.chunk = preset->chunk};
    uint32_t count = 0;
    memcpy(group.name, group_names[preset->family], strlen(group_names[preset->family]) + 1);
    for (uint32_t layer = 0; layer < preset->total; layer++) {
        if (!is_linear(preset, layer)) continue;
        SC_ASSERT(count + 2 <= 2 * LAYERS_MAX);
        conv_part(preset, layer, &parts[count++]);
        parts[count++] = (sc_part){.layer = layer, .kind = SC_PART_RECURRENT, .dtype = dtype,
            .dim_count = 3, .dims = {preset->heads, preset->rows, preset->cols}};
    }
    SC_ASSERT(count == 2 * preset->layers);
    sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
    options.model = preset->name;
    options.revision = "preset";
    options.conventions = conventions[preset->family];
    options.groups = &group;
    options.group_count = 1;
    options.parts = parts;
    options.part_count = count;
    options.layer_count = preset->total;
    return sc_schema_create(&options, schema_out);
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
