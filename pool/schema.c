/* SPDX-License-Identifier: Apache-2.0 */
/* Schemas: validation, the immutable copy, look-up.
 *
 * A schema is one allocation, checked as a whole before anything is copied:
 *
 *   [struct sc_schema | groups | parts | keys | model\0 revision\0 conventions\0]
 *
 * (1) What is not used is zero: dims past dim_count, blocks past block_count, bytes of a group's
 *     name after its NUL. Equal schemas are thus equal byte by byte.
 * (2) A CONV part always has blocks: none given means one even block of single channels.
 * (3) keys are sorted by (layer, kind, index), and no two are equal.
 *
 * Threads: immutable after creation but for the reference count. Release orders all uses before the
 * free: each decrement releases, the last one acquires. */
#include "statecache/schema.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "base/sc_assert.h"
#include "pool/schema_internal.h"
#include "schema_impl.h"

#define PART_BYTES_END (UINT64_C(1) << 40)

uint32_t sc_dtype_bytes(sc_dtype dtype)
{
    switch (dtype) {
    case SC_DTYPE_F32: return 4;
    case SC_DTYPE_BF16: return 2;
    case SC_DTYPE_F16: return 2;
    case SC_DTYPE_I32: return 4;
    case SC_DTYPE_U8: return 1;
    }
    return 0;
}

/* ---- validation ---- */

static sc_status check_text(const char *what, const char *text)
{
    if (!text) return SC_FAIL(SC_ERR_INVALID, "%s is NULL", what);
    size_t bytes = strnlen(text, SC_TEXT_MAX);
    if (bytes == 0) return SC_FAIL(SC_ERR_INVALID, "%s is empty", what);
    if (bytes == SC_TEXT_MAX) {
        return SC_FAIL(SC_ERR_INVALID, "%s is longer than %d bytes", what, SC_TEXT_MAX - 1);
    }
    return SC_OK;
}

static sc_status check_group(const sc_group *group, uint32_t i)
{
    size_t bytes = strnlen(group->name, sizeof group->name);
    if (bytes == 0 || bytes == sizeof group->name) {
        return SC_FAIL(SC_ERR_INVALID, "group %u: the name is empty or not terminated", i);
    }
    if (group->chunk == 0 || group->chunk > SC_CHUNK_MAX) {
        return SC_FAIL(SC_ERR_INVALID, "group %u (%s): a chunk of %u tokens is not within 1..%d", i,
            group->name, group->chunk, SC_CHUNK_MAX);
    }
    return SC_OK;
}

static sc_status check_blocks(const sc_part *part, uint32_t i)
{
    uint64_t sum = 0;
    if (part->block_count > SC_BLOCKS_MAX) {
        return SC_FAIL(SC_ERR_INVALID, "part %u: %u blocks, at most %d", i, part->block_count,
            SC_BLOCKS_MAX);
    }
    for (uint32_t b = 0; b < part->block_count; b++) {
        const sc_block *block = &part->blocks[b];
        if (block->channels == 0 || block->unit == 0 || block->channels % block->unit != 0) {
            return SC_FAIL(SC_ERR_INVALID,
                "part %u: block %u of %u channels is not a whole number of units of %u", i, b,
                block->channels, block->unit);
        }
        if (block->split != SC_SPLIT_NONE && block->split != SC_SPLIT_EVEN &&
            block->split != SC_SPLIT_GROUPS) {
            return SC_FAIL(SC_ERR_INVALID, "part %u: block %u has unknown split %d", i, b,
                (int)block->split);
        }
        sum += block->channels;
    }
    if (part->block_count > 0 && sum != part->dims[1]) {
        return SC_FAIL(SC_ERR_INVALID, "part %u: blocks add up to %llu of %u channels", i,
            (unsigned long long)sum, part->dims[1]);
    }
    return SC_OK;
}

static sc_status check_dims(const sc_part *part, uint32_t i)
{
    uint32_t dims_min = 1, dims_max = SC_DIMS_MAX;
    if (part->kind == SC_PART_CONV) dims_min = dims_max = 2;
    if (part->kind == SC_PART_RECURRENT) dims_min = dims_max = 3;
    if (part->dim_count < dims_min || part->dim_count > dims_max) {
        return SC_FAIL(SC_ERR_INVALID, "part %u: %u dims, must be %u..%u", i, part->dim_count,
            dims_min, dims_max);
    }
    uint64_t bytes = sc_dtype_bytes(part->dtype);
    for (uint32_t d = 0; d < part->dim_count; d++) {
        if (part->dims[d] == 0) return SC_FAIL(SC_ERR_INVALID, "part %u: dim %u is 0", i, d);
        if (bytes > (PART_BYTES_END - 1) / part->dims[d]) {
            return SC_FAIL(SC_ERR_OVERFLOW, "part %u: 2^40 bytes or more", i);
        }
        bytes *= part->dims[d];
    }
    return SC_OK;
}

static sc_status check_part(const sc_schema_options *options, uint32_t i)
{
    const sc_part *part = &options->parts[i];
    if (part->kind != SC_PART_CONV && part->kind != SC_PART_RECURRENT &&
        part->kind != SC_PART_EXTRA) {
        return SC_FAIL(SC_ERR_INVALID, "part %u: unknown kind %d", i, (int)part->kind);
    }
    if (sc_dtype_bytes(part->dtype) == 0) {
        return SC_FAIL(SC_ERR_INVALID, "part %u: unknown dtype %d", i, (int)part->dtype);
    }
    if (part->layer >= options->layer_count) {
        return SC_FAIL(SC_ERR_INVALID, "part %u: layer %u of %u", i, part->layer,
            options->layer_count);
    }
    if (part->group >= options->group_count) {
        return SC_FAIL(SC_ERR_INVALID, "part %u: group %u of %u", i, part->group,
            options->group_count);
    }
    SC_TRY(check_dims(part, i));
    if (part->kind != SC_PART_CONV) {
        if (part->block_count == 0) return SC_OK;
        return SC_FAIL(SC_ERR_INVALID, "part %u: only conv windows have blocks", i);
    }
    SC_TRY(check_blocks(part, i));
    const sc_group *group = &options->groups[part->group];
    if (part->dims[0] >= group->chunk) {
        return SC_FAIL(SC_ERR_INVALID,
            "part %u: a conv window of %u rows is not shorter than the chunk of %u tokens", i,
            part->dims[0], group->chunk);
    }
    return SC_OK;
}

static sc_status check_options(const sc_schema_options *options)
{
    SC_TRY(check_text("model", options->model));
    SC_TRY(check_text("revision", options->revision));
    if (options->conventions && options->conventions[0] != '\0') {
        SC_TRY(check_text("conventions", options->conventions));
    }
    SC_REQUIRE(options->groups != NULL && options->group_count > 0);
    SC_REQUIRE(options->parts != NULL && options->part_count > 0);
    SC_REQUIRE(options->layer_count > 0);
    if (options->group_count > SC_GROUPS_MAX || options->part_count > SC_PARTS_MAX ||
        options->layer_count > SC_LAYERS_MAX) {
        return SC_FAIL(SC_ERR_LIMIT, "%u groups, %u parts, %u layers: at most %d, %d, %d",
            options->group_count, options->part_count, options->layer_count, SC_GROUPS_MAX,
            SC_PARTS_MAX, SC_LAYERS_MAX);
    }
    for (uint32_t g = 0; g < options->group_count; g++) {
        SC_TRY(check_group(&options->groups[g], g));
    }
    for (uint32_t p = 0; p < options->part_count; p++) SC_TRY(check_part(options, p));
    return SC_OK;
}

/* ---- the copy ---- */

static int key_compare(const void *left, const void *right)
{
    const struct sc_schema_key *a = left, *b = right;
    if (a->layer != b->layer) return a->layer < b->layer ? -1 : 1;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    if (a->index != b->index) return a->index < b->index ? -1 : 1;
    return 0;
}

/* One block, widest alignment first; every size is bounded by the limits of check_options. */
static sc_schema *schema_carve(const sc_schema_options *options, struct sc_heap *heap)
{
    const char *conventions = options->conventions ? options->conventions : "";
    size_t text_bytes[3] = {strlen(options->model) + 1, strlen(options->revision) + 1,
        strlen(conventions) + 1};
    size_t groups_at = (sizeof(sc_schema) + 15) & ~(size_t)15;
    size_t parts_at = groups_at + options->group_count * sizeof(sc_group);
    size_t keys_at = parts_at + options->part_count * sizeof(sc_part);
    size_t text_at = keys_at + options->part_count * sizeof(struct sc_schema_key);
    size_t bytes = text_at + text_bytes[0] + text_bytes[1] + text_bytes[2];
    char *block = sc_heap_calloc(heap, 1, bytes);
    if (!block) return NULL;
    sc_schema *schema = (sc_schema *)(void *)block;
    schema->heap = *heap;
    schema->block_bytes = bytes;
    schema->groups = (sc_group *)(void *)(block + groups_at);
    schema->parts = (sc_part *)(void *)(block + parts_at);
    schema->keys = (struct sc_schema_key *)(void *)(block + keys_at);
    schema->model = block + text_at;
    schema->revision = schema->model + text_bytes[0];
    schema->conventions = schema->revision + text_bytes[1];
    memcpy(schema->model, options->model, text_bytes[0]);
    memcpy(schema->revision, options->revision, text_bytes[1]);
    memcpy(schema->conventions, conventions, text_bytes[2]);
    return schema;
}
static_assert(sizeof(sc_group) % _Alignof(sc_part) == 0, "schema_carve");
static_assert(sizeof(sc_part) % _Alignof(struct sc_schema_key) == 0, "schema_carve");

static void part_copy(sc_part *to, const sc_part *from) /* (1), (2) */
{
    to->layer = from->layer;
    to->group = from->group;
    to->kind = from->kind;
    to->dtype = from->dtype;
    to->index = from->index;
    to->dim_count = from->dim_count;
    memcpy(to->dims, from->dims, from->dim_count * sizeof to->dims[0]);
    to->block_count = from->block_count;
    memcpy(to->blocks, from->blocks, from->block_count * sizeof to->blocks[0]);
    if (from->kind == SC_PART_CONV && from->block_count == 0) {
        to->block_count = 1;
        to->blocks[0] = (sc_block){from->dims[1], 1, SC_SPLIT_EVEN};
    }
}

static sc_status schema_make(const sc_schema_options *options, sc_schema **schema_out)
{
    struct sc_heap heap;
    SC_TRY(check_options(options));
    SC_TRY(sc_heap_init(&heap, SC_SUBSYSTEM_POOL, options->allocator));
    sc_schema *schema = schema_carve(options, &heap);
    if (!schema) return SC_FAIL(SC_ERR_NO_MEMORY, "schema of %u parts", options->part_count);
    atomic_init(&schema->references, 1);
    schema->group_count = options->group_count;
    schema->part_count = options->part_count;
    schema->layer_count = options->layer_count;
    for (uint32_t g = 0; g < schema->group_count; g++) {
        const sc_group *from = &options->groups[g];
        memcpy(schema->groups[g].name, from->name, strlen(from->name));
        schema->groups[g].chunk = from->chunk;
    }
    for (uint32_t p = 0; p < schema->part_count; p++) {
        const sc_part *from = &options->parts[p];
        part_copy(&schema->parts[p], from);
        schema->keys[p] = (struct sc_schema_key){from->layer, from->kind, from->index, p};
    }
    qsort(schema->keys, schema->part_count, sizeof schema->keys[0], key_compare);
    for (uint32_t p = 1; p < schema->part_count; p++) {
        const struct sc_schema_key *key = &schema->keys[p];
        if (key_compare(key - 1, key) != 0) continue; /* (3) */
        sc_status status = SC_FAIL(SC_ERR_INVALID,
            "parts %u and %u: both layer %u, kind %u, index %u", key[-1].part,
            key->part, key->layer, key->kind, key->index);
        sc_schema_release(schema);
        return status;
    }
    sc_schema_fingerprint_compute(schema, &schema->fingerprint);
    *schema_out = schema;
    return SC_OK;
}

sc_status sc_schema_create(const sc_schema_options *options, sc_schema **schema_out)
{
    sc_schema_options known = SC_SCHEMA_OPTIONS_INIT;
    SC_REQUIRE(schema_out != NULL);
    SC_TRY(sc_options_resolve(options, offsetof(sc_schema_options, allocator), &known,
        sizeof known));
    return schema_make(&known, schema_out);
}

sc_status sc_schema_with_revision(const sc_schema *schema, const char *revision,
    const sc_allocator *allocator, sc_schema **schema_out)
{
    sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
    SC_REQUIRE(schema != NULL);
    options.model = schema->model;
    options.revision = revision;
    options.conventions = schema->conventions;
    options.groups = schema->groups;
    options.group_count = schema->group_count;
    options.parts = schema->parts;
    options.part_count = schema->part_count;
    options.layer_count = schema->layer_count;
    options.allocator = allocator;
    return sc_schema_create(&options, schema_out);
}

void sc_schema_retain(sc_schema *schema)
{
    if (!schema) return;
    uint32_t before = atomic_fetch_add_explicit(&schema->references, 1, memory_order_relaxed);
    SC_ASSERT(before > 0 && before < UINT32_MAX);
}

void sc_schema_release(sc_schema *schema)
{
    if (!schema) return;
    uint32_t before = atomic_fetch_sub_explicit(&schema->references, 1, memory_order_acq_rel);
    SC_ASSERT(before > 0);
    if (before > 1) return;
    struct sc_heap heap = schema->heap;
    sc_heap_free(&heap, schema, schema->block_bytes);
}

/* ---- reading ---- */

sc_status sc_schema_fingerprint(const sc_schema *schema, sc_fingerprint *fingerprint_out)
{
    SC_REQUIRE(schema != NULL && fingerprint_out != NULL);
    *fingerprint_out = schema->fingerprint;
    return SC_OK;
}

sc_status sc_schema_part_count(const sc_schema *schema, uint32_t *count_out)
{
    SC_REQUIRE(schema != NULL && count_out != NULL);
    *count_out = schema->part_count;
    return SC_OK;
}

sc_status sc_schema_part(const sc_schema *schema, uint32_t part, sc_part *part_out)
{
    SC_REQUIRE(schema != NULL && part_out != NULL);
    if (part >= schema->part_count) {
        return SC_FAIL(SC_ERR_INVALID, "part %u of %u", part, schema->part_count);
    }
    *part_out = schema->parts[part];
    return SC_OK;
}

sc_status sc_schema_group_count(const sc_schema *schema, uint32_t *count_out)
{
    SC_REQUIRE(schema != NULL && count_out != NULL);
    *count_out = schema->group_count;
    return SC_OK;
}

sc_status sc_schema_group(const sc_schema *schema, uint32_t group, sc_group *group_out)
{
    SC_REQUIRE(schema != NULL && group_out != NULL);
    if (group >= schema->group_count) {
        return SC_FAIL(SC_ERR_INVALID, "group %u of %u", group, schema->group_count);
    }
    *group_out = schema->groups[group];
    return SC_OK;
}

sc_status sc_schema_grid(const sc_schema *schema, uint32_t page_tokens, uint32_t *grid_out)
{
    SC_REQUIRE(schema != NULL && grid_out != NULL);
    SC_REQUIRE(page_tokens >= 1);
    uint64_t grid = page_tokens;
    for (uint32_t g = 0; g <= schema->group_count; g++) {
        if (grid > INT32_MAX) return SC_FAIL(SC_ERR_OVERFLOW, "the grid passes 2^31 - 1 tokens");
        if (g == schema->group_count) break;
        uint64_t a = grid, b = schema->groups[g].chunk;
        while (b != 0) {
            uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        grid = grid / a * schema->groups[g].chunk; /* below 2^31 * 2^17 */
    }
    *grid_out = (uint32_t)grid;
    return SC_OK;
}

bool sc_schema_find(const sc_schema *schema, uint32_t layer, sc_part_kind kind, uint32_t index,
    uint32_t *part_out)
{
    const struct sc_schema_key wanted = {layer, kind, index, 0};
    const struct sc_schema_key *key = bsearch(&wanted, schema->keys, schema->part_count,
        sizeof schema->keys[0], key_compare);
    if (key) *part_out = key->part;
    return key != NULL;
}

const sc_part *sc_schema_part_ref(const sc_schema *schema, uint32_t part)
{
    SC_ASSERT(part < schema->part_count);
    return &schema->parts[part];
}

const sc_group *sc_schema_group_ref(const sc_schema *schema, uint32_t group)
{
    SC_ASSERT(group < schema->group_count);
    return &schema->groups[group];
}

uint32_t sc_schema_layer_count(const sc_schema *schema)
{
    return schema->layer_count;
}

const char *sc_schema_model(const sc_schema *schema)
{
    return schema->model;
}
