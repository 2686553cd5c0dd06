/* SPDX-License-Identifier: Apache-2.0 */
/* Schemas, pools with known contents, images of them, and a backend that counts, fails or passes
 * itself off as a device: shared by the tests of snapshot/. */
#ifndef TESTS_UNIT_SNAPSHOT_FIXTURE_H
#define TESTS_UNIT_SNAPSHOT_FIXTURE_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "kernels/backend.h"
#include "statecache/snapshot.h"
#include "support/fail_alloc.h"

/* ---- schemas ---- */

enum fixture_model {
    FIX_GDN,    /* one packed conv window and a matrix for each of 3 layers; both need padding */
    FIX_KDA,    /* three conv windows (q, k, v) */
    FIX_MIXED,  /* GDN beside Mamba-2 with its own chunk, blocks x, B, C; 16-bit matrices */
    FIX_EXTRAS, /* ring, cursors, counts */
    FIX_DENSE,  /* every part a multiple of 256 bytes: no padding anywhere */
    FIX_TAIL,   /* only the last part needs padding */
    FIX_TINY,   /* two parts of 8 bytes */
    FIX_COUNT
};

static inline sc_part fix_conv(uint32_t layer, uint32_t group, uint32_t index, uint32_t channels)
{
    return (sc_part){.layer = layer, .group = group, .kind = SC_PART_CONV, .dtype = SC_DTYPE_BF16,
        .dim_count = 2, .dims = {3, channels}, .index = index};
}

static inline sc_part fix_matrix(uint32_t layer, uint32_t group, sc_dtype dtype, uint32_t heads,
    uint32_t rows, uint32_t cols)
{
    return (sc_part){.layer = layer, .group = group, .kind = SC_PART_RECURRENT, .dtype = dtype,
        .dim_count = 3, .dims = {heads, rows, cols}};
}

static inline sc_part fix_extra(uint32_t layer, uint32_t index, sc_dtype dtype, uint32_t items)
{
    return (sc_part){.layer = layer, .group = 0, .kind = SC_PART_EXTRA, .dtype = dtype,
        .dim_count = 1, .dims = {items}, .index = index};
}

/* At most 16 parts. */
static inline uint32_t fix_parts(enum fixture_model model, sc_part *parts)
{
    uint32_t n = 0;
    switch (model) {
    case FIX_GDN:
        for (uint32_t layer = 0; layer < 4; layer++) {
            if (layer == 2) continue; /* attention */
            parts[n++] = fix_conv(layer, 0, 0, 10);
            parts[n++] = fix_matrix(layer, 0, SC_DTYPE_F32, 2, 5, 7);
        }
        return n;
    case FIX_KDA:
        for (uint32_t layer = 1; layer < 3; layer++) {
            for (uint32_t index = 0; index < 3; index++) {
                parts[n++] = fix_conv(layer, 0, index, 6 + 44 * index);
            }
            parts[n++] = fix_matrix(layer, 0, SC_DTYPE_F32, 2, 8, 8);
        }
        return n;
    case FIX_MIXED:
        parts[n++] = fix_conv(0, 0, 0, 16);
        parts[n++] = fix_matrix(0, 0, SC_DTYPE_BF16, 4, 8, 4);
        parts[n] = fix_conv(3, 1, 0, 24);
        parts[n].block_count = 3;
        parts[n].blocks[0] = (sc_block){16, 4, SC_SPLIT_EVEN};
        parts[n].blocks[1] = (sc_block){4, 4, SC_SPLIT_GROUPS};
        parts[n++].blocks[2] = (sc_block){4, 4, SC_SPLIT_GROUPS};
        parts[n++] = fix_matrix(3, 1, SC_DTYPE_F32, 4, 3, 16);
        return n;
    case FIX_EXTRAS:
        parts[n++] = fix_extra(0, 0, SC_DTYPE_BF16, 300);
        parts[n++] = fix_extra(0, 1, SC_DTYPE_I32, 1);
        parts[n++] = fix_extra(1, 0, SC_DTYPE_U8, 3);
        return n;
    case FIX_DENSE:
        for (uint32_t layer = 0; layer < 2; layer++) {
            parts[n] = fix_conv(layer, 0, 0, 128);
            parts[n++].dims[0] = 2;
            parts[n++] = fix_matrix(layer, 0, SC_DTYPE_F32, 2, 8, 8);
        }
        return n;
    case FIX_TAIL:
        parts[n++] = fix_matrix(0, 0, SC_DTYPE_F32, 1, 8, 8);
        parts[n++] = fix_matrix(1, 0, SC_DTYPE_F32, 1, 1, 3);
        return n;
    default:
        parts[n++] = fix_matrix(0, 0, SC_DTYPE_F32, 1, 1, 2);
        parts[n++] = fix_matrix(1, 0, SC_DTYPE_F32, 1, 1, 2);
        return n;
    }
}

static inline sc_schema *fix_schema_of(enum fixture_model model, const char *revision)
{
    static const sc_group groups[2] = {{"linear", 16}, {"mamba2", 128}};
    sc_part parts[16];
    sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
    sc_schema *schema = NULL;
    options.model = "fixture";
    options.revision = revision;
    options.groups = groups;
    options.group_count = 2;
    options.parts = parts;
    options.part_count = fix_parts(model, parts);
    options.layer_count = 4;
    ck_assert_int_eq(sc_schema_create(&options, &schema), SC_OK);
    return schema;
}

/* ---- pools ---- */

static inline sc_pool *fix_pool_with(enum fixture_model model, sc_layout layout, uint32_t slots,
    sc_backend *backend, const sc_allocator *allocator, const sc_foreign_memory *foreign)
{
    sc_schema *schema = fix_schema_of(model, "r1");
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    sc_pool *pool = NULL;
    options.schema = schema;
    options.layout = layout;
    options.slot_count = slots;
    options.backend = backend;
    options.allocator = allocator;
    options.foreign = foreign;
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
    sc_schema_release(schema);
    return pool;
}

static inline sc_pool *fix_pool(enum fixture_model model, sc_layout layout, uint32_t slots)
{
    return fix_pool_with(model, layout, slots, NULL, NULL, NULL);
}

static inline sc_pool_info fix_info(const sc_pool *pool)
{
    sc_pool_info info;
    ck_assert_int_eq(sc_pool_info_get(pool, &info), SC_OK);
    return info;
}

static inline sc_layer_view fix_view(const sc_pool *pool, uint32_t part)
{
    sc_layer_view view;
    sc_part unused;
    ck_assert_int_eq(sc_pool_part_view(pool, part, &view, &unused), SC_OK);
    return view;
}

/* Names every local part, in order. */
static inline uint32_t fix_refs(const sc_pool *pool, sc_part_ref *refs)
{
    uint32_t count = fix_info(pool).part_count;
    for (uint32_t i = 0; i < count; i++) {
        sc_layer_view view;
        sc_part part;
        ck_assert_int_eq(sc_pool_part_view(pool, i, &view, &part), SC_OK);
        refs[i] = (sc_part_ref){part.layer, part.kind, part.index};
    }
    return count;
}

static inline uint8_t *fix_bytes(const sc_pool *pool, uint32_t part, uint32_t slot)
{
    sc_layer_view view = fix_view(pool, part);
    return (uint8_t *)sc_host_ptr(view.base) + (int64_t)slot * view.slot_stride;
}

static inline uint64_t fix_seed(uint32_t tag, uint32_t part)
{
    return sc_mix64(((uint64_t)tag << 32) ^ part);
}

static inline uint8_t fix_byte(uint64_t seed, uint64_t at)
{
    return (uint8_t)(((seed >> (at % 8 * 8)) + 38 * at + 10 * (at >> 7)) | 1);
}

/* Contents that depend on tag, part and place; no byte is 0. */
static inline void fix_fill(const sc_pool *pool, uint32_t slot, uint32_t tag)
{
    uint32_t parts = fix_info(pool).part_count;
    for (uint32_t part = 0; part < parts; part++) {
        uint8_t *bytes = fix_bytes(pool, part, slot);
        uint64_t count = fix_view(pool, part).bytes, seed = fix_seed(tag, part);
        for (uint64_t i = 0; i < count; i++) {
            bytes[i] = fix_byte(seed, i);
        }
    }
}

/* Tag 0: zeros. */
static inline bool fix_holds(const sc_pool *pool, uint32_t slot, uint32_t tag)
{
    uint32_t parts = fix_info(pool).part_count;
    for (uint32_t part = 0; part < parts; part++) {
        const uint8_t *bytes = fix_bytes(pool, part, slot);
        uint64_t count = fix_view(pool, part).bytes, seed = fix_seed(tag, part);
        for (uint64_t i = 0; i < count; i++) {
            if (bytes[i] != (tag ? fix_byte(seed, i) : 0)) return false;
        }
    }
    return true;
}

/* Takes `count` slots: at most 64. Fills slot id i with tag `tag_base + i`; 0: leaves them. */
static inline void fix_take(sc_pool *pool, uint32_t count, uint32_t tag_base, sc_slot *slots_out)
{
    ck_assert_int_eq(sc_pool_alloc(pool, count, SC_OWNER_WORKING, slots_out), SC_OK);
    for (uint32_t i = 0; tag_base && i < count; i++) {
        fix_fill(pool, slots_out[i].id, tag_base + slots_out[i].id);
    }
}

/* Frees the slots and the pool: everything must be given back. */
static inline void fix_end(sc_pool *pool, const sc_slot *slots, uint32_t count)
{
    ck_assert_int_eq(sc_pool_audit(pool, true), SC_OK);
    if (count) ck_assert_int_eq(sc_pool_free(pool, slots, count), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}

/* ---- images: a pool's whole memory, padding too ---- */

struct fix_image { uint8_t *bytes; uint64_t count; const void *of; };

static inline struct fix_image fix_image(const sc_pool *pool)
{
    sc_pool_info info = fix_info(pool);
    struct fix_image image = {malloc(info.memory_bytes), info.memory_bytes,
        sc_host_ptr(info.base)};
    ck_assert_ptr_nonnull(image.bytes);
    memcpy(image.bytes, image.of, image.count);
    return image;
}

static inline bool fix_same(struct fix_image image)
{
    return memcmp(image.bytes, image.of, image.count) == 0;
}

/* ---- a backend around the host's ---- */

struct fix_backend {
    struct sc_backend backend;
    struct sc_backend_ops ops;
    uint32_t calls, spans, syncs;
    uint64_t bytes;
    enum sc_copy_kind kind;  /* of the last call */
    uint32_t fail_call;      /* 1: the next copy fails, 0: none */
    bool fail_sync;
};

static inline sc_status fix_backend_copy(sc_backend *b, enum sc_copy_kind kind,
    const struct sc_backend_span *spans, uint32_t count, sc_stream *stream)
{
    struct fix_backend *fix = (struct fix_backend *)(void *)b;
    fix->calls++;
    fix->spans += count;
    fix->kind = kind;
    for (uint32_t i = 0; i < count; i++) {
        fix->bytes += spans[i].bytes;
    }
    if (fix->fail_call == fix->calls) return SC_ERR_DEVICE_LOST;
    return sc_backend_host_ops.copy(b, kind, spans, count, stream);
}

static inline sc_status fix_backend_copy_rows(sc_backend *b, const struct sc_backend_rows *rows,
    sc_stream *stream)
{
    struct fix_backend *fix = (struct fix_backend *)(void *)b;
    fix->calls++;
    fix->spans += rows->part_count * rows->row_count;
    fix->kind = SC_COPY_D2D;
    if (fix->fail_call == fix->calls) return SC_ERR_DEVICE_LOST;
    return sc_backend_host_ops.copy_rows(b, rows, stream);
}

static inline sc_status fix_backend_sync(sc_backend *b, sc_stream *stream)
{
    struct fix_backend *fix = (struct fix_backend *)(void *)b;
    (void)stream;
    fix->syncs++;
    return fix->fail_sync ? SC_ERR_DEVICE_LOST : SC_OK;
}

static inline void fix_backend_init(struct fix_backend *fix, bool host_memory)
{
    memset(fix, 0, sizeof *fix);
    fix->ops = sc_backend_host_ops;
    fix->ops.copy = fix_backend_copy;
    fix->ops.copy_rows = fix_backend_copy_rows;
    fix->ops.stream_sync = fix_backend_sync;
    fix->backend = (struct sc_backend){.ops = &fix->ops, .name = "fixture",
        .compute_capability = host_memory ? 0 : 90, .host_memory = host_memory};
}

static inline void fix_backend_reset(struct fix_backend *fix)
{
    fix->calls = fix->spans = fix->syncs = 0;
    fix->bytes = 0;
    fix->fail_call = 0;
    fix->fail_sync = false;
}

#endif
