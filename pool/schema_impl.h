/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a schema; for the files of this folder only. */
#ifndef SC_POOL_SCHEMA_IMPL_H
#define SC_POOL_SCHEMA_IMPL_H

#include <stdatomic.h>

#include "base/heap.h"
#include "statecache/schema.h"

enum {
    SC_PARTS_MAX = 65536,
    SC_GROUPS_MAX = 256,
    SC_LAYERS_MAX = 1 << 20,
    SC_CHUNK_MAX = 65536,
    SC_TEXT_MAX = 4096 /* bytes of model, revision, conventions, each with its NUL */
};

/* Sorted by (layer, kind, index). */
struct sc_schema_key {
    uint32_t layer, kind, index;
    uint32_t part;
};

struct sc_schema {
    struct sc_heap heap;
    size_t block_bytes; /* the schema and everything it points to is one allocation */
    _Atomic uint32_t references;
    uint32_t group_count, part_count, layer_count;
    sc_group *groups;
    sc_part *parts;
    struct sc_schema_key *keys;
    char *model, *revision, *conventions;
    sc_fingerprint fingerprint;
};

/* The digest of a finished schema (fingerprint.c). */
void sc_schema_fingerprint_compute(const sc_schema *schema, sc_fingerprint *out);

#endif
