/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/pack.h"

#include <string.h>
#include <zstd.h>

#include "base/error.h"
#include "base/sc_assert.h"
#include "tier/disk_store.h"

enum { ALIGN = 4096, LEVEL_MAX = 19 };

static sc_status zstd_fail(size_t rc, const char *what)
{
    return SC_FAIL(strstr(ZSTD_getErrorName(rc), "emory") ? SC_ERR_NO_MEMORY : SC_ERR_CORRUPT,
        "%s: %s", what, ZSTD_getErrorName(rc));
}

/* Replaces the bytes by their frame, if that is smaller. */
static sc_status compress(struct sc_heap *heap, int level, uint64_t kv_room,
    struct sc_packed *packed)
{
    size_t bound = ZSTD_compressBound((size_t)packed->plain_bytes);
    uint64_t capacity = bound + kv_room;
    uint8_t *bytes = sc_heap_alloc(heap, (size_t)capacity, ALIGN);
    if (!bytes) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to compress a state");
    size_t made = ZSTD_compress(bytes, bound, packed->bytes, (size_t)packed->plain_bytes, level);
    if (ZSTD_isError(made) || made >= packed->plain_bytes) {
        sc_heap_free(heap, bytes, (size_t)capacity);
        return ZSTD_isError(made) ? zstd_fail(made, "compressing a state") : SC_OK;
    }
    sc_heap_free(heap, packed->bytes, (size_t)packed->capacity);
    packed->bytes = bytes;
    packed->capacity = capacity;
    packed->state_bytes = made;
    packed->flags |= SC_STORE_ZSTD;
    return SC_OK;
}

sc_status sc_pack(const struct sc_pack_options *options, const sc_pool *pool, sc_slot slot,
    uint64_t kv_room, struct sc_heap *heap, struct sc_packed *packed_out)
{
    const struct sc_codec *codec = NULL;
    uint64_t bound = 0;
    SC_REQUIRE(options != NULL && pool != NULL && heap != NULL && packed_out != NULL);
    SC_REQUIRE(options->zstd_level >= 0 && options->zstd_level <= LEVEL_MAX);
    SC_REQUIRE(kv_room < UINT64_MAX / 4);
    SC_TRY(sc_codec_by_id(options->codec, &codec));
    if (codec->lossy && !options->lossy) {
        return SC_FAIL(SC_ERR_UNSUPPORTED, "codec %s loses precision, which is not allowed here",
            codec->name);
    }
    SC_TRY(sc_codec_bytes_max(codec, pool, &bound));
    struct sc_packed packed = {.capacity = bound + kv_room, .codec = codec->id,
        .flags = codec->lossy ? SC_STORE_LOSSY : 0};
    packed.bytes = sc_heap_alloc(heap, (size_t)packed.capacity, ALIGN);
    if (!packed.bytes) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to pack a state");
    sc_status status = sc_codec_encode(codec, pool, slot, packed.bytes, bound,
        &packed.plain_bytes);
    packed.state_bytes = packed.plain_bytes;
    if (status == SC_OK && options->zstd_level > 0) {
        status = compress(heap, options->zstd_level, kv_room, &packed);
    }
    if (status != SC_OK) {
        sc_packed_free(heap, &packed);
        return status;
    }
    *packed_out = packed;
    return SC_OK;
}

void sc_packed_free(struct sc_heap *heap, struct sc_packed *packed)
{
    if (packed->bytes) sc_heap_free(heap, packed->bytes, (size_t)packed->capacity);
    *packed = (struct sc_packed){NULL, 0, 0, 0, 0, 0};
}

sc_status sc_unpack(sc_pool *pool, sc_slot slot, uint32_t codec_id, uint32_t flags,
    const void *bytes, uint64_t state_bytes, uint64_t plain_bytes, struct sc_heap *heap)
{
    const struct sc_codec *codec = NULL;
    uint64_t bound = 0;
    SC_REQUIRE(pool != NULL && bytes != NULL && heap != NULL);
    SC_TRY(sc_codec_by_id(codec_id, &codec));
    if (!(flags & SC_STORE_ZSTD)) {
        if (state_bytes != plain_bytes) {
            return SC_FAIL(SC_ERR_CORRUPT, "a payload that is not compressed has two lengths");
        }
        return sc_codec_decode(codec, pool, slot, bytes, state_bytes);
    }
    /* Lengths of a record are bounded by what this pool can hold before memory is taken. */
    SC_TRY(sc_codec_bytes_max(codec, pool, &bound));
    if (plain_bytes > bound || plain_bytes == 0 ||
        ZSTD_getFrameContentSize(bytes, (size_t)state_bytes) != plain_bytes) {
        return SC_FAIL(SC_ERR_CORRUPT, "a compressed payload of another length");
    }
    uint8_t *plain = sc_heap_alloc(heap, (size_t)plain_bytes, ALIGN);
    if (!plain) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to unpack a state");
    size_t made = ZSTD_decompress(plain, (size_t)plain_bytes, bytes, (size_t)state_bytes);
    sc_status status = SC_OK;
    if (ZSTD_isError(made)) {
        status = zstd_fail(made, "unpacking a state");
    } else if (made != plain_bytes) {
        status = SC_FAIL(SC_ERR_CORRUPT, "a compressed payload of another length");
    }
    if (status == SC_OK) status = sc_codec_decode(codec, pool, slot, plain, plain_bytes);
    sc_heap_free(heap, plain, (size_t)plain_bytes);
    return status;
}
