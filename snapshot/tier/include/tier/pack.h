/* SPDX-License-Identifier: Apache-2.0 */
/* States as payloads of a tier, and back: a codec of snapshot/codec.h, then zstd or not.
 *
 *   slot --codec--> plain_bytes --zstd, if asked for--> state_bytes of sc_store_payload
 *
 * Lossy codecs are refused unless the policy allows them: nobody gets one by accident. A state that
 * zstd does not make smaller is kept as it is (the flag says which).
 * Threads: any; the slot must stay as it is meanwhile. */
#ifndef SC_TIER_PACK_H
#define SC_TIER_PACK_H

#include "base/heap.h"
#include "snapshot/codec.h"

struct sc_pack_options {
    uint32_t codec;       /* SC_CODEC_ */
    bool lossy;           /* codecs with loss are allowed */
    int zstd_level;       /* 0: none; 1 .. 19 */
};

struct sc_packed {
    uint8_t *bytes;       /* 4 KiB aligned; NULL: none */
    uint64_t capacity;
    uint64_t state_bytes, plain_bytes;
    uint32_t codec, flags; /* SC_STORE_LOSSY, SC_STORE_ZSTD */
};

/* Packs a slot; `kv_room` more bytes of the memory are left behind the state for KV. SC_ERR_INVALID
 * (level), SC_ERR_NOT_FOUND (codec), SC_ERR_UNSUPPORTED (lossy, not allowed; values that the codec
 * cannot hold), SC_ERR_NO_MEMORY, SC_ERR_STALE. On error nothing is held. */
sc_status sc_pack(const struct sc_pack_options *options, const sc_pool *pool, sc_slot slot,
    uint64_t kv_room, struct sc_heap *heap, struct sc_packed *packed_out);
void sc_packed_free(struct sc_heap *heap, struct sc_packed *packed);

/* Unpacks `state_bytes` at `bytes`. SC_ERR_CORRUPT, the slot unchanged, when that is not a state of
 * this pool; SC_ERR_NOT_FOUND: a codec that this version does not have. */
sc_status sc_unpack(sc_pool *pool, sc_slot slot, uint32_t codec, uint32_t flags, const void *bytes,
    uint64_t state_bytes, uint64_t plain_bytes, struct sc_heap *heap);

#endif
