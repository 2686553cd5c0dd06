/* SPDX-License-Identifier: Apache-2.0 */
/** Copies of states between pools and layouts, and to and from dense arrays.
 *
 * Every mover walks the schema, so that no part is forgotten. A slot id of -1 is skipped. Offsets are
 * 64-bit from the first multiplication. The destination slots of one call must be distinct and none
 * may be a source of the same call under another id; the null slot is a legal source (zeros) and
 * never a destination. */
#ifndef STATECACHE_SNAPSHOT_H
#define STATECACHE_SNAPSHOT_H

#include "statecache/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Copies `count` whole states, all parts, in one call. Pools may differ in layout but must agree in
 * fingerprint and shard (SC_ERR_MISMATCH). Slots are ids; both ends must be allocated (SC_ERR_STALE),
 * else nothing is copied.
 * Threads: any; the caller keeps both ends from being freed or written meanwhile. Cost: 2 * bytes. */
SC_API sc_status sc_state_copy(const sc_pool *source, const int32_t *source_slots, sc_pool *dest,
    const int32_t *dest_slots, uint32_t count);

/** Names one part to gather or scatter: as in sc_pool_layer_view. */
typedef struct sc_part_ref {
    uint32_t layer;
    sc_part_kind kind;
    uint32_t index;
} sc_part_ref;

/** True when kernels that want one dense array per part, `[slot][dims]`, cannot run on this pool in
 * place (page-major, or padded slots). */
SC_API sc_status sc_pool_needs_gather(const sc_pool *pool, bool *needs_out);

/** Bytes of the dense array of `count` rows of these parts: for each part in order `[count][dims]`,
 * parts one after the other at 256-byte starts; `offsets_out` (may be NULL) gets part_count starts. */
SC_API sc_status sc_state_dense_bytes(const sc_pool *pool, const sc_part_ref *parts,
    uint32_t part_count, uint32_t count, uint64_t *bytes_out, uint64_t *offsets_out);

/** Copies parts of slots into a dense array. Rows of slot -1 are left untouched; slot 0 gives zeros. */
SC_API sc_status sc_state_gather(const sc_pool *pool, const sc_part_ref *parts, uint32_t part_count,
    const int32_t *slots, uint32_t count, sc_devptr dense, uint64_t dense_bytes);
/** The reverse. Slot -1 is skipped; slot 0 is refused (SC_ERR_INVALID); duplicates are refused. */
SC_API sc_status sc_state_scatter(sc_pool *pool, const sc_part_ref *parts, uint32_t part_count,
    const int32_t *slots, uint32_t count, sc_devptr dense, uint64_t dense_bytes);

#ifdef __cplusplus
}
#endif
#endif
