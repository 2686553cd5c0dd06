/* SPDX-License-Identifier: Apache-2.0 */
/* Which heads and channels of each part one rank holds.
 *
 *   RECURRENT  heads are cut into tp_size equal ranges; they must divide.
 *   CONV       block by block, in units that stay together:
 *                EVEN    units are cut into equal ranges; they must divide
 *                GROUPS  the same while there are enough units, else each rank holds the one unit
 *                        that its heads read, tp_size / units ranks the same one (K heads,
 *                        B and C groups)
 *                NONE    every rank holds all of it
 *   EXTRA      every rank holds all of it: such schemas describe local shapes. */
#include <string.h>

#include "base/error.h"
#include "base/sc_assert.h"
#include "pool/schema_internal.h"
#include "schema_impl.h"

sc_status sc_schema_shard_resolve(const sc_schema *schema, const sc_shard *shard,
    sc_shard *resolved_out)
{
    sc_shard s = {0};
    if (shard) s = *shard;
    if (s.tp_size == 0) s.tp_size = 1;
    if (s.pp_size == 0) s.pp_size = 1;
    if (s.tp_rank >= s.tp_size) {
        return SC_FAIL(SC_ERR_INVALID, "tensor-parallel rank %u of %u", s.tp_rank, s.tp_size);
    }
    if (s.pp_rank >= s.pp_size) {
        return SC_FAIL(SC_ERR_INVALID, "pipeline rank %u of %u", s.pp_rank, s.pp_size);
    }
    if (s.layer_count == 0) {
        if (s.layer_first != 0) {
            return SC_FAIL(SC_ERR_INVALID, "layer_first is %u but layer_count is 0 (all)",
                s.layer_first);
        }
        s.layer_count = schema->layer_count;
    }
    if (s.layer_first >= schema->layer_count ||
        s.layer_count > schema->layer_count - s.layer_first) {
        return SC_FAIL(SC_ERR_INVALID, "layers %u + %u of %u", s.layer_first, s.layer_count,
            schema->layer_count);
    }
    *resolved_out = s;
    return SC_OK;
}

static sc_status block_local(const sc_shard *shard, uint32_t part, uint32_t b,
    const sc_block *block, uint32_t *first_out, uint32_t *channels_out)
{
    const uint32_t size = shard->tp_size, units = block->channels / block->unit;
    *first_out = 0;
    *channels_out = block->channels;
    if (block->split == SC_SPLIT_NONE) return SC_OK;
    if (block->split == SC_SPLIT_GROUPS && units < size) {
        if (size % units != 0) {
            return SC_FAIL(SC_ERR_INVALID, "part %u: %u ranks do not share %u units of block %u",
                part, size, units, b);
        }
        *first_out = shard->tp_rank / (size / units) * block->unit;
        *channels_out = block->unit;
        return SC_OK;
    }
    if (units % size != 0) {
        return SC_FAIL(SC_ERR_INVALID, "part %u: %u units of block %u do not divide among %u ranks",
            part, units, b, size);
    }
    *channels_out = units / size * block->unit;
    *first_out = shard->tp_rank * *channels_out;
    return SC_OK;
}

sc_status sc_schema_part_local(const sc_schema *schema, const sc_shard *resolved, uint32_t part,
    bool *held_out, sc_part_local *local_out)
{
    const sc_part *whole = sc_schema_part_ref(schema, part);
    sc_part_local local = {.part = part, .dim_count = whole->dim_count};
    *held_out = whole->layer >= resolved->layer_first &&
        whole->layer - resolved->layer_first < resolved->layer_count;
    if (!*held_out) return SC_OK;
    memcpy(local.dims, whole->dims, sizeof local.dims);
    if (whole->kind == SC_PART_RECURRENT) {
        if (whole->dims[0] % resolved->tp_size != 0) {
            return SC_FAIL(SC_ERR_INVALID, "part %u: %u heads do not divide among %u ranks", part,
                whole->dims[0], resolved->tp_size);
        }
        local.dims[0] = whole->dims[0] / resolved->tp_size;
        local.head_first = local.dims[0] * resolved->tp_rank;
    }
    if (whole->kind == SC_PART_CONV) {
        local.dims[1] = 0;
        for (uint32_t b = 0; b < whole->block_count; b++) {
            SC_TRY(block_local(resolved, part, b, &whole->blocks[b], &local.block_first[b],
                &local.block_channels[b]));
            local.dims[1] += local.block_channels[b];
        }
    }
    local.bytes = sc_dtype_bytes(whole->dtype);
    for (uint32_t d = 0; d < local.dim_count; d++) local.bytes *= local.dims[d];
    *local_out = local;
    return SC_OK;
}

sc_status sc_schema_shard_parts(const sc_schema *schema, const sc_shard *shard,
    sc_part_local *parts_out, uint32_t cap, uint32_t *count_out)
{
    sc_shard resolved;
    sc_part_local local;
    bool held;
    uint32_t count = 0;
    SC_REQUIRE(schema != NULL && count_out != NULL);
    SC_REQUIRE(parts_out != NULL || cap == 0);
    SC_TRY(sc_schema_shard_resolve(schema, shard, &resolved));
    for (uint32_t p = 0; p < schema->part_count; p++) {
        SC_TRY(sc_schema_part_local(schema, &resolved, p, &held, &local));
        count += held;
    }
    if (parts_out && count > cap) return SC_FAIL(SC_ERR_LIMIT, "%u parts, room for %u", count, cap);
    *count_out = count;
    for (uint32_t p = 0, at = 0; parts_out && p < schema->part_count; p++) {
        SC_TRY(sc_schema_part_local(schema, &resolved, p, &held, &local)); /* cannot fail now */
        if (held) parts_out[at++] = local;
    }
    return SC_OK;
}

sc_status sc_schema_state_bytes(const sc_schema *schema, const sc_shard *shard, uint64_t *bytes_out)
{
    sc_shard resolved;
    sc_part_local local;
    bool held;
    uint64_t bytes = 0; /* at most 2^16 parts below 2^40 */
    SC_REQUIRE(schema != NULL && bytes_out != NULL);
    SC_TRY(sc_schema_shard_resolve(schema, shard, &resolved));
    for (uint32_t p = 0; p < schema->part_count; p++) {
        SC_TRY(sc_schema_part_local(schema, &resolved, p, &held, &local));
        if (held) bytes += local.bytes;
    }
    *bytes_out = bytes;
    return SC_OK;
}
