/* SPDX-License-Identifier: Apache-2.0 */
/* What the layers above need to know of a schema beyond the public header. */
#ifndef SC_POOL_SCHEMA_INTERNAL_H
#define SC_POOL_SCHEMA_INTERNAL_H

#include "statecache/schema.h"

/* Part number of (layer, kind, index), by binary search; false when the schema has none. */
bool sc_schema_find(const sc_schema *schema, uint32_t layer, sc_part_kind kind, uint32_t index,
    uint32_t *part_out);

/* Borrowed; live as long as the schema. `part` and `group` must be in range (asserted). */
const sc_part *sc_schema_part_ref(const sc_schema *schema, uint32_t part);
const sc_group *sc_schema_group_ref(const sc_schema *schema, uint32_t group);
uint32_t sc_schema_layer_count(const sc_schema *schema);
const char *sc_schema_model(const sc_schema *schema);

/* `shard` (NULL: all) with its defaults filled in: sizes are at least 1 and layer_count is what is
 * held, so that equal shards are equal field by field. SC_ERR_INVALID. */
sc_status sc_schema_shard_resolve(const sc_schema *schema, const sc_shard *shard,
    sc_shard *resolved_out);

/* Local shape of one part under a resolved shard; `*held_out` false when its layer is elsewhere. */
sc_status sc_schema_part_local(const sc_schema *schema, const sc_shard *resolved, uint32_t part,
    bool *held_out, sc_part_local *local_out);

#endif
