/* SPDX-License-Identifier: Apache-2.0 */
/* Schemas of a configuration: presets, or groups and parts line by line. */
#include "config_parts.h"

#include <stdlib.h>
#include <string.h>

static const struct { const char *name; sc_dtype dtype; } dtypes[] = {
    {"f32", SC_DTYPE_F32}, {"bf16", SC_DTYPE_BF16}, {"f16", SC_DTYPE_F16}};
static const struct { const char *name; sc_part_kind kind; uint32_t dims; } kinds[] = {
    {"conv", SC_PART_CONV, 2}, {"recurrent", SC_PART_RECURRENT, 3}};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0], KINDS = sizeof kinds / sizeof kinds[0] };

bool sd_config_group(struct sd_config *config, const char *value, char *text, size_t text_bytes)
{
    sc_group group;
    char end = 0;
    memset(&group, 0, sizeof group);
    if (config->group_count == SD_GROUPS_MAX) {
        (void)snprintf(text, text_bytes, "at most %d of them", SD_GROUPS_MAX);
        return false;
    }
    if (sscanf(value, "%63s %u %c", group.name, &group.chunk, &end) != 2 || group.chunk == 0 ||
        group.chunk > 65536) {
        (void)snprintf(text, text_bytes, "'%.60s' is no NAME CHUNK", value);
        return false;
    }
    config->groups[config->group_count++] = group;
    return true;
}

/* 32x128x128 */
static bool read_dims(const char *value, sc_part *part)
{
    for (const char *at = value; part->dim_count < SC_DIMS_MAX; at++) {
        char *end = NULL;
        unsigned long dim = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (dim == 0 || dim > UINT32_MAX) return false;
        part->dims[part->dim_count++] = (uint32_t)dim;
        if (*end == '\0') return true;
        if (*end != 'x') return false;
        at = end;
    }
    return false;
}

bool sd_config_part(struct sd_config *config, const char *value, char *text, size_t text_bytes)
{
    char kind[16], dtype[16], dims[64], group[SC_NAME_BYTES] = "", end = 0;
    sc_part part;
    uint32_t k = 0, d = 0;
    memset(&part, 0, sizeof part);
    int got = sscanf(value, "%u %15s %15s %63s %63s %c", &part.layer, kind, dtype, dims, group,
        &end);
    (void)snprintf(text, text_bytes, "'%.60s' is no LAYER KIND DTYPE DIMS [GROUP]", value);
    if ((got != 4 && got != 5) || !read_dims(dims, &part)) return false;
    while (k < KINDS && strcmp(kinds[k].name, kind) != 0) k++;
    while (d < DTYPES && strcmp(dtypes[d].name, dtype) != 0) d++;
    if (k == KINDS || d == DTYPES || kinds[k].dims != part.dim_count) {
        (void)snprintf(text, text_bytes, "'%.60s': conv has 2 dims, recurrent 3; f32, bf16, f16",
            value);
        return false;
    }
    while (got == 5 && part.group < config->group_count &&
        strcmp(config->groups[part.group].name, group) != 0) {
        part.group++;
    }
    if (part.group >= config->group_count) {
        (void)snprintf(text, text_bytes, "the group must be in a line above");
        return false;
    }
    if (config->part_count == SD_PARTS_MAX) {
        (void)snprintf(text, text_bytes, "at most %d of them", SD_PARTS_MAX);
        return false;
    }
    part.kind = kinds[k].kind;
    part.dtype = dtypes[d].dtype;
    for (uint32_t i = 0; i < config->part_count; i++) {
        const sc_part *other = &config->parts[i];
        part.index += other->layer == part.layer && other->kind == part.kind;
    }
    config->parts[config->part_count++] = part;
    return true;
}

void sd_config_print_groups(const struct sd_config *config, FILE *out)
{
    for (uint32_t i = 0; i < config->group_count; i++) {
        (void)fprintf(out, "group = %s %u\n", config->groups[i].name, config->groups[i].chunk);
    }
}

void sd_config_print_parts(const struct sd_config *config, FILE *out)
{
    for (uint32_t i = 0; i < config->part_count; i++) {
        const sc_part *part = &config->parts[i];
        uint32_t k = 0, d = 0;
        while (kinds[k].kind != part->kind) k++;
        while (dtypes[d].dtype != part->dtype) d++;
        (void)fprintf(out, "part = %u %s %s ", part->layer, kinds[k].name, dtypes[d].name);
        for (uint32_t j = 0; j < part->dim_count; j++) {
            (void)fprintf(out, "%s%u", j ? "x" : "", part->dims[j]);
        }
        (void)fprintf(out, " %s\n", config->groups[part->group].name);
    }
}

sc_status sd_config_schema(const struct sd_config *config, sc_schema **schema_out)
{
    sc_schema *preset = NULL;
    if (config->part_count > 0) {
        sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
        options.model = config->model;
        options.revision = config->revision;
        options.groups = config->groups;
        options.group_count = config->group_count;
        options.parts = config->parts;
        options.part_count = config->part_count;
        for (uint32_t i = 0; i < config->part_count; i++) {
            if (config->parts[i].layer >= options.layer_count) {
                options.layer_count = config->parts[i].layer + 1;
            }
        }
        return sc_schema_create(&options, schema_out);
    }
    sc_dtype dtype = strcmp(config->dtype, "bf16") == 0 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    sc_status status = sc_schema_preset(config->model, dtype, &preset);
    if (status != SC_OK) return status;
    status = sc_schema_with_revision(preset, config->revision, NULL, schema_out);
    sc_schema_release(preset);
    return status;
}
