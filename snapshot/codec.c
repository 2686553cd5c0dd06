/* SPDX-License-Identifier: Apache-2.0 */
/* The table of codecs, and raw: the parts one after the other as they are (codec_quant.c has the
 * others). */
#include "snapshot/codec.h"

#include <string.h>

#include "base/error.h"
#include "base/sc_assert.h"
#include "codec_internal.h"
#include "state_mover.h"

/* Devices and their hosts are little-endian; raw is a plain copy because of it. */
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "raw payloads are little-endian");

/* ---- raw ---- */

sc_status codec_raw_bytes(const sc_pool *pool, uint64_t *bytes_out)
{
    sc_pool_info info;
    SC_TRY(sc_pool_info_get(pool, &info));
    *bytes_out = info.state_bytes;
    return SC_OK;
}

static enum sc_copy_kind raw_kind(const sc_backend *backend, bool encode)
{
    if (backend->host_memory) return SC_COPY_D2D;
    return encode ? SC_COPY_D2H : SC_COPY_H2D;
}

/* One walk over the schema for both directions, so that they cannot disagree (contract 13). */
sc_status codec_raw_move(const sc_pool *pool, uint32_t slot, sc_devptr payload, bool encode)
{
    struct mover mover;
    sc_backend *backend = NULL;
    sc_pool_info info;
    uint64_t at = 0;
    SC_TRY(sc_pool_info_get(pool, &info));
    SC_TRY(sc_pool_backend(pool, &backend));
    SC_TRY(mover_open(&mover, pool, backend, raw_kind(backend, encode), info.part_count, 0));
    sc_status begun = mover_beside(&mover, encode ? SC_SIDE_DOWN : SC_SIDE_UP, NULL);
    if (begun != SC_OK) return mover_close(&mover, begun);
    for (uint32_t i = 0; i < info.part_count; i++) {
        sc_layer_view view;
        sc_part part;
        sc_status status = sc_pool_part_view(pool, i, &view, &part);
        SC_ASSERT(status == SC_OK);
        if (encode) {
            mover_span(&mover, payload + at, mover_at(&view, slot), view.bytes);
        } else {
            mover_span(&mover, mover_at(&view, slot), payload + at, view.bytes);
        }
        at += view.bytes;
    }
    SC_ASSERT(at == info.state_bytes);
    return mover_close(&mover, SC_OK);
}

static sc_status raw_encode(const sc_pool *pool, uint32_t slot, void *payload, uint64_t capacity,
    uint64_t *bytes_out)
{
    uint64_t bytes = 0;
    SC_TRY(codec_raw_bytes(pool, &bytes));
    SC_ASSERT(capacity >= bytes);
    SC_TRY(codec_raw_move(pool, slot, sc_host_devptr(payload), true));
    *bytes_out = bytes;
    return SC_OK;
}

static sc_status raw_decode(sc_pool *pool, uint32_t slot, const void *payload, uint64_t bytes)
{
    uint64_t expected = 0;
    SC_TRY(codec_raw_bytes(pool, &expected));
    if (bytes != expected) {
        return SC_FAIL(SC_ERR_CORRUPT, "raw payload of %llu bytes, a state of this pool has %llu",
            (unsigned long long)bytes, (unsigned long long)expected);
    }
    return codec_raw_move(pool, slot, sc_host_devptr(payload), false);
}

/* ---- the table ---- */

static const struct sc_codec codecs[] = {
    {"raw", SC_CODEC_RAW, false, codec_raw_bytes, raw_encode, raw_decode},
    {"bf16", SC_CODEC_BF16, true, codec_bf16_bytes, codec_bf16_encode, codec_bf16_decode},
    {"int8", SC_CODEC_INT8, true, codec_int8_bytes, codec_int8_encode, codec_int8_decode},
};
enum { CODEC_COUNT = sizeof codecs / sizeof codecs[0] };

const struct sc_codec *sc_codec_at(uint32_t index)
{
    return index < CODEC_COUNT ? &codecs[index] : NULL;
}

sc_status sc_codec_by_id(uint32_t id, const struct sc_codec **codec_out)
{
    SC_REQUIRE(codec_out != NULL);
    for (uint32_t i = 0; i < CODEC_COUNT; i++) {
        if (codecs[i].id == id) {
            *codec_out = &codecs[i];
            return SC_OK;
        }
    }
    return SC_FAIL(SC_ERR_NOT_FOUND, "there is no codec %u", id);
}

sc_status sc_codec_by_name(const char *name, const struct sc_codec **codec_out)
{
    SC_REQUIRE(name != NULL);
    SC_REQUIRE(codec_out != NULL);
    for (uint32_t i = 0; i < CODEC_COUNT; i++) {
        if (strcmp(codecs[i].name, name) == 0) {
            *codec_out = &codecs[i];
            return SC_OK;
        }
    }
    return SC_FAIL(SC_ERR_NOT_FOUND, "there is no codec '%.40s'", name);
}

sc_status sc_codec_bytes_max(const struct sc_codec *codec, const sc_pool *pool, uint64_t *bytes_out)
{
    SC_REQUIRE(codec != NULL);
    SC_REQUIRE(pool != NULL);
    SC_REQUIRE(bytes_out != NULL);
    return codec->bytes_max(pool, bytes_out);
}

sc_status sc_codec_encode(const struct sc_codec *codec, const sc_pool *pool, sc_slot slot,
    void *payload, uint64_t capacity, uint64_t *bytes_out)
{
    uint64_t bytes_max = 0;
    SC_REQUIRE(payload != NULL);
    SC_REQUIRE(bytes_out != NULL);
    SC_TRY(sc_codec_bytes_max(codec, pool, &bytes_max));
    if (slot.id != 0 || slot.generation != 0) SC_TRY(sc_pool_check(pool, slot, NULL));
    if (capacity < bytes_max) {
        return SC_FAIL(SC_ERR_LIMIT, "room for %llu bytes, %s may need %llu",
            (unsigned long long)capacity, codec->name, (unsigned long long)bytes_max);
    }
    return codec->encode(pool, slot.id, payload, capacity, bytes_out);
}

sc_status sc_codec_decode(const struct sc_codec *codec, sc_pool *pool, sc_slot slot,
    const void *payload, uint64_t bytes)
{
    SC_REQUIRE(codec != NULL);
    SC_REQUIRE(pool != NULL);
    SC_REQUIRE(payload != NULL || bytes == 0);
    SC_REQUIRE(slot.id != 0);
    sc_owner owner = SC_OWNER_FREE;
    SC_TRY(sc_pool_check(pool, slot, &owner));
    if (owner == SC_OWNER_SNAPSHOT || owner == SC_OWNER_DRAINING) {
        return SC_FAIL(SC_ERR_BUSY, "slot %u %s", slot.id, owner == SC_OWNER_SNAPSHOT
            ? "holds a snapshot, which is immutable" : "is read by a step in flight");
    }
    return codec->decode(pool, slot.id, payload, bytes);
}
