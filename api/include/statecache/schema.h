/* SPDX-License-Identifier: Apache-2.0 */
/** What one recurrent state consists of.
 *
 * A schema lists the parts of one state in global (unsharded) shapes: a conv window and a recurrent
 * matrix for each linear layer, in groups that share a chunk size. A shard says which layers, heads
 * and channels one rank holds. The fingerprint covers everything that decides whether two states
 * may be exchanged: model, revision, global shapes, dtypes and conventions; never the shard.
 *
 * Shapes: a conv window is `[W-1][channels]` (oldest input first, channels contiguous), raw inputs
 * before the conv; a recurrent matrix is `[HV][V][K]`, K contiguous (Mamba-2: `[heads][P][N]`). */
#ifndef STATECACHE_SCHEMA_H
#define STATECACHE_SCHEMA_H

#include "statecache/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum sc_dtype {
    SC_DTYPE_F32 = 1,
    SC_DTYPE_BF16 = 2,
    SC_DTYPE_F16 = 3,
    SC_DTYPE_I32 = 4,
    SC_DTYPE_U8 = 5
} sc_dtype;

/** Bytes of one element; 0 for an unknown dtype. Threads: any. */
SC_API uint32_t sc_dtype_bytes(sc_dtype dtype);

typedef enum sc_part_kind {
    SC_PART_CONV = 1,      /* dims {W-1, channels} */
    SC_PART_RECURRENT = 2, /* dims {HV, V, K} */
    SC_PART_EXTRA = 3      /* any dims: rings, cursors of a running request. Local shapes, never
                            * divided by a shard; cleared to zero whenever a slot is allocated */
} sc_part_kind;

enum { SC_DIMS_MAX = 4, SC_BLOCKS_MAX = 4, SC_NAME_BYTES = 64 };

/** How the units of a block are divided among tensor-parallel ranks. */
typedef enum sc_split {
    SC_SPLIT_NONE = 0,    /* every rank holds all of it */
    SC_SPLIT_EVEN = 1,    /* cut into equal consecutive ranges; must divide */
    SC_SPLIT_GROUPS = 2   /* like EVEN while there are at least as many units as ranks; else each
                           * rank holds the one unit that its heads read, rank / (ranks / units),
                           * and the units must divide the ranks */
} sc_split;

/** A consecutive range of channels of a conv window: q, k, v or Mamba-2's x, B, C. `unit` is the
 * number of channels that stay together on one rank (a head). */
typedef struct sc_block {
    uint32_t channels;
    uint32_t unit;
    sc_split split;
} sc_block;

/** One part of a state. Frozen: passed in arrays. */
typedef struct sc_part {
    uint32_t layer; /* global layer index in the model */
    uint32_t group; /* index into the schema's groups */
    sc_part_kind kind;
    sc_dtype dtype;
    uint32_t dim_count;
    uint32_t dims[SC_DIMS_MAX];
    uint32_t block_count; /* CONV: sub-blocks that add up to `channels`; 0 means one even block */
    sc_block blocks[SC_BLOCKS_MAX];
    uint32_t index; /* tells parts of one kind in one layer apart (windows q, k, v: 0, 1, 2) */
} sc_part;

/** Layers that share a chunk size. */
typedef struct sc_group {
    char name[SC_NAME_BYTES]; /* "gdn", "kda", "mamba2" */
    /* tokens per chunk of the prefill form, 1 .. 65536: what your kernels take (those of
     * statecache/kernels.h: 16, 32 or 64) */
    uint32_t chunk;
} sc_group;

typedef struct sc_schema_options {
    size_t struct_size;
    const char *model;       /* not NULL */
    const char *revision;    /* not NULL; weights revision: states of two revisions never mix */
    const char *conventions; /* NULL or text of numerical conventions, covered by the fingerprint */
    const sc_group *groups;
    uint32_t group_count;
    const sc_part *parts;
    uint32_t part_count;
    uint32_t layer_count; /* of the model; every part's layer is below it */
    const sc_allocator *allocator; /* NULL: default */
} sc_schema_options;
#define SC_SCHEMA_OPTIONS_INIT                                                                     \
    {sizeof(sc_schema_options), NULL, NULL, NULL, NULL, 0, NULL, 0, 0, NULL}

/** Immutable after creation. */
typedef struct sc_schema sc_schema;

typedef struct sc_fingerprint {
    uint8_t bytes[16];
} sc_fingerprint;

/** Checks and copies a schema; the caller owns the reference that comes back. `struct_size` may be
 * that of an older version of the struct: members beyond it have their defaults.
 * Refused with SC_ERR_INVALID: no parts, groups or layers; a model or revision that is NULL, empty
 * or, as conventions, longer than 4,095 bytes; a group name that is empty or not terminated; a
 * chunk of 0 or above 65,536; an unknown kind, dtype or split; dims that are zero or of another
 * number than the kind has (conv 2, recurrent 3, extra 1 .. SC_DIMS_MAX); a group or layer out of
 * range; blocks of anything but a conv window, more than SC_BLOCKS_MAX, or that do not add up or
 * are not whole units; a conv window not shorter than its group's chunk; two parts with the same
 * (layer, kind, index). SC_ERR_OVERFLOW: a part of 2^40 bytes or more. SC_ERR_LIMIT: more than
 * 65,536 parts, 256 groups or 2^20 layers.
 * SC_ERR_NO_MEMORY leaves nothing behind. Threads: any. Cost: O(parts log parts). */
SC_API sc_status sc_schema_create(const sc_schema_options *options, sc_schema **schema_out);

/** A named model of the preset table ("qwen3-next-80b-a3b"), recurrent dtype F32 or BF16 and bf16
 * conv windows, revision "preset" (see sc_schema_with_revision). SC_ERR_INVALID, SC_ERR_NOT_FOUND
 * for an unknown name, SC_ERR_NO_MEMORY. `sc_schema_preset_name(i)` lists the names, NULL past the
 * end. Layer numbers are the model's own where its placement of linear layers is public; else they
 * count the linear layers alone (pool/presets.c says which, and which rows are not confirmed). */
SC_API sc_status sc_schema_preset(const char *name, sc_dtype recurrent_dtype,
    sc_schema **schema_out);
SC_API const char *sc_schema_preset_name(uint32_t index);

/** A copy for other weights: the same but for the revision, and so for the fingerprint. A service
 * that takes a preset gives the revision of its checkpoint here.
 * Errors as sc_schema_create. `allocator` NULL: default. */
SC_API sc_status sc_schema_with_revision(const sc_schema *schema, const char *revision,
    const sc_allocator *allocator, sc_schema **schema_out);

/** Counted reference; pools and caches take their own. `release` of NULL is allowed. */
SC_API void sc_schema_retain(sc_schema *schema);
SC_API void sc_schema_release(sc_schema *schema);

SC_API sc_status sc_schema_fingerprint(const sc_schema *schema, sc_fingerprint *fingerprint_out);
SC_API sc_status sc_schema_part_count(const sc_schema *schema, uint32_t *count_out);
SC_API sc_status sc_schema_part(const sc_schema *schema, uint32_t part, sc_part *part_out);
SC_API sc_status sc_schema_group_count(const sc_schema *schema, uint32_t *count_out);
SC_API sc_status sc_schema_group(const sc_schema *schema, uint32_t group, sc_group *group_out);

/** lcm of the chunk sizes of all groups and `page_tokens` (>= 1): the absolute token positions at
 * which prefill can save a state. SC_ERR_OVERFLOW past 2^31 - 1. */
SC_API sc_status sc_schema_grid(const sc_schema *schema, uint32_t page_tokens, uint32_t *grid_out);

/** Which part of the model a rank holds. Zero-initialised means all of it. */
typedef struct sc_shard {
    uint32_t tp_rank, tp_size; /* tp_size 0 is read as 1 */
    uint32_t pp_rank, pp_size; /* informative; the layer list decides */
    uint32_t layer_first, layer_count; /* layers held; layer_count 0: all */
} sc_shard;

/** One part as a shard holds it. */
typedef struct sc_part_local {
    uint32_t part;                  /* index in the schema */
    uint32_t dims[SC_DIMS_MAX];     /* local */
    uint32_t dim_count;
    uint32_t head_first;            /* RECURRENT: first global head held */
    uint32_t block_first[SC_BLOCKS_MAX];    /* CONV: first channel held, within each block */
    uint32_t block_channels[SC_BLOCKS_MAX]; /* CONV: channels held of each block */
    uint64_t bytes;                 /* dense, without padding */
} sc_part_local;

/** Local shape of every part that `shard` (NULL: all) holds, in schema order. `cap` entries fit in
 * `parts_out`; NULL with cap 0 only counts. `*count_out` is how many there are, maybe none.
 * Errors: SC_ERR_INVALID (also when a dimension does not divide), SC_ERR_LIMIT: cap is short. */
SC_API sc_status sc_schema_shard_parts(const sc_schema *schema, const sc_shard *shard,
    sc_part_local *parts_out, uint32_t cap, uint32_t *count_out);

/** Dense bytes of one state of `shard` (NULL: whole): the sum of its parts without padding. */
SC_API sc_status sc_schema_state_bytes(const sc_schema *schema, const sc_shard *shard,
    uint64_t *bytes_out);

/** What only a running request needs beside its state: kept in a second, smaller pool, whose slots
 * are bound to working slots. Zero: none of it. */
typedef struct sc_extras_options {
    size_t struct_size;
    uint32_t control_words;     /* int32 cursors and counts: layer 0, EXTRA 0, {control_words} */
    uint32_t ring_records;      /* for recurrent part i of a layer: EXTRA 1 + 2i, u8, */
    uint32_t ring_record_bytes; /*   {ring_records, ring_record_bytes} */
    uint32_t draft_tokens;      /* for conv window i of a layer: EXTRA 2 + 2i, its dtype, */
                                /*   {draft_tokens, channels held} */
    const sc_allocator *allocator; /* NULL: default */
} sc_extras_options;
#define SC_EXTRAS_OPTIONS_INIT {sizeof(sc_extras_options), 0, 0, 0, 0, NULL}

/** The schema of an extras pool for states of `schema` under `shard` (NULL: all). The pool itself
 * is made with shard zero, since shapes are local already. `struct_size`: as sc_schema_create.
 * Errors: SC_ERR_INVALID (also when nothing would be in it), SC_ERR_OVERFLOW, SC_ERR_NO_MEMORY. */
SC_API sc_status sc_schema_extras_create(const sc_schema *schema, const sc_shard *shard,
    const sc_extras_options *options, sc_schema **schema_out);

#ifdef __cplusplus
}
#endif
#endif
