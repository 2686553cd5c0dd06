/* SPDX-License-Identifier: Apache-2.0 */
/* A model's schema from its shapes: model.h. */
#include <string.h>

#include "base/error.h"
#include "pool/model.h"

static const char *const group_names[] = {"gdn", "kda", "mamba2", "mamba1"};

/* Covered by the fingerprint: states made under other conventions are other states. */
static const char *const conventions[] = {
    "gdn 1: conv [W-1][q|k|v] raw inputs, oldest first; state [HV][V][K]; q, k l2norm eps 1e-6",
    "kda 1: conv [W-1][q|k|v] raw inputs, oldest first; state [HV][V][K]; q, k l2norm eps 1e-6",
    "mamba2 1: conv [W-1][x|B|C] raw inputs, oldest first; state [heads][P][N]",
    "mamba1 1: conv [W-1][x] raw inputs, oldest first; state [channels][1][N]",
};

const char *sc_family_name(enum sc_family family)
{
    return group_names[family];
}

static sc_status conv_part(const struct sc_model *m, uint32_t layer, sc_part *out)
{
    sc_part part = {.layer = layer, .kind = SC_PART_CONV, .dtype = m->conv_dtype, .dim_count = 2,
        .dims = {m->conv_rows, 0}};
    const uint64_t inner = (uint64_t)m->heads * m->rows;
    const uint64_t side = (uint64_t)m->key_heads * m->cols;
    if (inner > UINT32_MAX || side > UINT32_MAX || inner + 2 * side > UINT32_MAX) {
        return SC_FAIL(SC_ERR_OVERFLOW, "a conv window of more than 2^32 channels");
    }
    const sc_block x = {(uint32_t)inner, m->rows, SC_SPLIT_EVEN};
    const sc_block qk = {(uint32_t)side, m->cols, SC_SPLIT_GROUPS};
    switch (m->family) {
    case SC_FAMILY_GDN:
    case SC_FAMILY_KDA:
        part.block_count = 3;
        part.blocks[0] = qk;
        part.blocks[1] = qk;
        part.blocks[2] = x;
        break;
    case SC_FAMILY_MAMBA2:
        part.block_count = 3;
        part.blocks[0] = x;
        part.blocks[1] = qk;
        part.blocks[2] = qk;
        break;
    case SC_FAMILY_MAMBA1:
        part.block_count = 1;
        part.blocks[0] = x;
        break;
    }
    for (uint32_t b = 0; b < part.block_count; b++) part.dims[1] += part.blocks[b].channels;
    *out = part;
    return SC_OK;
}

sc_status sc_model_schema(const struct sc_model *model, sc_part *parts, sc_schema **schema_out)
{
    sc_group group = {.chunk = model->chunk};
    const char *name = group_names[model->family];
    uint32_t count = 0;
    memcpy(group.name, name, strlen(name) + 1);
    for (uint32_t layer = 0; layer < model->layer_count; layer++) {
        if (!model->linear[layer]) continue;
        SC_TRY(conv_part(model, layer, &parts[count++]));
        parts[count++] = (sc_part){.layer = layer, .kind = SC_PART_RECURRENT,
            .dtype = model->dtype, .dim_count = 3,
            .dims = {model->heads, model->rows, model->cols}};
    }
    sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
    options.model = model->name;
    options.revision = model->revision;
    options.conventions = conventions[model->family];
    options.groups = &group;
    options.group_count = 1;
    options.parts = parts;
    options.part_count = count;
    options.layer_count = model->layer_count;
    return sc_schema_create(&options, schema_out);
}
