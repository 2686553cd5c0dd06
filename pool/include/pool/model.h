/* SPDX-License-Identifier: Apache-2.0 */
/* From a model's shapes to the parts of its state: what presets and configuration files share.
 *
 * Head counts and dims are given; the conv window follows from the family:
 *
 *   GDN, KDA   q|k|v     key_heads * K | key_heads * K | heads * V     (KDA: key_heads == heads)
 *   MAMBA2     x|B|C     heads * P | groups * N | groups * N
 *   MAMBA1     x         d_inner (heads counts channels, P is 1)
 *
 * All windows are packed into one part. Schemas with one window each for q, k and v are written by
 * hand, with index 0, 1, 2. */
#ifndef SC_POOL_MODEL_H
#define SC_POOL_MODEL_H

#include "statecache/schema.h"

enum sc_family { SC_FAMILY_GDN, SC_FAMILY_KDA, SC_FAMILY_MAMBA2, SC_FAMILY_MAMBA1 };

struct sc_model {
    const char *name, *revision;
    enum sc_family family;
    uint32_t layer_count;      /* of the model */
    const bool *linear;        /* [layer_count] which of them are recurrent */
    uint32_t heads, rows, cols; /* HV, V, K or nheads, P, N */
    uint32_t key_heads;        /* H (GDN, KDA), G (MAMBA2), unused (MAMBA1) */
    uint32_t conv_rows;        /* W - 1 */
    uint32_t chunk;
    sc_dtype dtype, conv_dtype; /* of recurrent parts, of conv windows */
};

/* "gdn", "kda", "mamba2", "mamba1": the name of the layers' group. */
const char *sc_family_name(enum sc_family family);

/* `parts` is scratch: room for two parts for each recurrent layer. Shapes may be anything: what is
 * wrong with them is refused as by sc_schema_create, whose errors these are, or
 * SC_ERR_OVERFLOW: the channels of a conv window exceed 2^32. */
sc_status sc_model_schema(const struct sc_model *model, sc_part *parts, sc_schema **schema_out);

#endif
