/* SPDX-License-Identifier: Apache-2.0 */
/* The state in a slot as bytes in host memory, and back: what the tiers below the device store and
 * send. A codec is a row of a table; its number is written into records and never reused.
 *
 *   payload of "raw":  | part 0 | part 1 | ... |   local parts in schema order, dense,
 *                                                  little-endian
 *   "bf16", "int8":    the same, but for recurrent matrices:
 *      bf16            f32 -> bf16, rounded to nearest even; 16-bit ones and the rest as they are
 *      int8            f32, bf16, f16 -> for each head and row a scale (f32), then one byte for
 *                      each element:  | scale h0 r0 | scale h0 r1 | ... | bytes of h0 r0 | ...
 *
 * Lossy codecs are for who asks for them: error of bf16 at most 2^-8 of the element, of int8 at
 * most 1/254 of the largest element of its row (measured by tests/unit/test_tier_pack.c; figures in
 * docs/reference/codecs.md). Values that are not finite, and ones
 * that would become infinite, are refused (SC_ERR_UNSUPPORTED): such a state is not stored.
 *
 * A payload has no header: which model, shard, token count and codec it is, and its checksum, stand
 * in the record around it. The same state has the same payload whatever the pool's layout. */
#ifndef SC_SNAPSHOT_CODEC_H
#define SC_SNAPSHOT_CODEC_H

#include "statecache/pool.h"

struct sc_codec {
    const char *name; /* static */
    uint32_t id;      /* > 0 */
    bool lossy;       /* decode(encode(x)) may differ from x */
    /* Upper bound of the payload of any slot of this pool. */
    sc_status (*bytes_max)(const sc_pool *pool, uint64_t *bytes_out);
    /* `capacity` is at least the bound. */
    sc_status (*encode)(const sc_pool *pool, uint32_t slot, void *payload, uint64_t capacity,
        uint64_t *bytes_out);
    /* SC_ERR_CORRUPT, the slot unchanged, when the payload cannot be one of this pool's states. */
    sc_status (*decode)(sc_pool *pool, uint32_t slot, const void *payload, uint64_t bytes);
};

enum { SC_CODEC_RAW = 1, SC_CODEC_BF16 = 2, SC_CODEC_INT8 = 3 };

/* NULL past the end. */
const struct sc_codec *sc_codec_at(uint32_t index);
/* SC_ERR_NOT_FOUND. */
sc_status sc_codec_by_id(uint32_t id, const struct sc_codec **codec_out);
sc_status sc_codec_by_name(const char *name, const struct sc_codec **codec_out);

/* The callers' side: arguments and handles are checked here, once for all codecs. */
sc_status sc_codec_bytes_max(const struct sc_codec *codec, const sc_pool *pool,
    uint64_t *bytes_out);
/* The null slot encodes as a state of zeros. SC_ERR_STALE; SC_ERR_LIMIT when `capacity` is below
 * the bound; SC_ERR_NO_MEMORY. On error `*bytes_out` is untouched. */
sc_status sc_codec_encode(const struct sc_codec *codec, const sc_pool *pool, sc_slot slot,
    void *payload, uint64_t capacity, uint64_t *bytes_out);
/* SC_ERR_STALE; SC_ERR_INVALID for the null slot; SC_ERR_BUSY for one of owner SNAPSHOT (immutable:
 * a state is decoded first, and made a snapshot then) or DRAINING; SC_ERR_CORRUPT, the slot
 * unchanged, when the payload is not one of this pool's states; SC_ERR_NO_MEMORY. */
sc_status sc_codec_decode(const struct sc_codec *codec, sc_pool *pool, sc_slot slot,
    const void *payload, uint64_t bytes);

#endif
