/* SPDX-License-Identifier: Apache-2.0 */
/* The fingerprint of a schema: XXH3-128 over a canonical text of bytes.
 *
 *   "statecache schema 1" | model | revision | conventions | layers
 *     | groups: count, then (name, chunk) | parts: count, then every field but the padding
 *
 * Numbers are 32-bit little endian, texts are prefixed with their length, so that no two schemas
 * share a text. The order of groups and parts counts. The digest is stored in XXH3's canonical (big
 * endian) form: the same on every machine, fit for files. XXH3 is compiled in from its header;
 * there is nothing to link. Never change this text: raise the number at its front. */
#define XXH_INLINE_ALL 1
#include <xxhash.h>

#include <string.h>

#include "base/sc_assert.h"
#include "schema_impl.h"

static void put_u32(XXH3_state_t *state, uint32_t value)
{
    const unsigned char bytes[4] = {(unsigned char)value, (unsigned char)(value >> 8),
        (unsigned char)(value >> 16), (unsigned char)(value >> 24)};
    (void)XXH3_128bits_update(state, bytes, sizeof bytes);
}

static void put_text(XXH3_state_t *state, const char *text)
{
    size_t bytes = strlen(text);
    put_u32(state, (uint32_t)bytes);
    (void)XXH3_128bits_update(state, text, bytes);
}

static void put_part(XXH3_state_t *state, const sc_part *part)
{
    put_u32(state, part->layer);
    put_u32(state, part->group);
    put_u32(state, (uint32_t)part->kind);
    put_u32(state, (uint32_t)part->dtype);
    put_u32(state, part->index);
    put_u32(state, part->dim_count);
    for (uint32_t d = 0; d < part->dim_count; d++) put_u32(state, part->dims[d]);
    put_u32(state, part->block_count);
    for (uint32_t b = 0; b < part->block_count; b++) {
        put_u32(state, part->blocks[b].channels);
        put_u32(state, part->blocks[b].unit);
        put_u32(state, (uint32_t)part->blocks[b].split);
    }
}

void sc_schema_fingerprint_compute(const sc_schema *schema, sc_fingerprint *out)
{
    XXH3_state_t state;
    XXH128_canonical_t canonical;
    static_assert(sizeof canonical.digest == sizeof out->bytes, "128 bits");
    XXH3_INITSTATE(&state);
    (void)XXH3_128bits_reset(&state);
    put_text(&state, "statecache schema 1");
    put_text(&state, schema->model);
    put_text(&state, schema->revision);
    put_text(&state, schema->conventions);
    put_u32(&state, schema->layer_count);
    put_u32(&state, schema->group_count);
    for (uint32_t g = 0; g < schema->group_count; g++) {
        put_text(&state, schema->groups[g].name);
        put_u32(&state, schema->groups[g].chunk);
    }
    put_u32(&state, schema->part_count);
    for (uint32_t p = 0; p < schema->part_count; p++) put_part(&state, &schema->parts[p]);
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
    memcpy(out->bytes, canonical.digest, sizeof out->bytes);
}
