/* SPDX-License-Identifier: Apache-2.0 */
/** Copies of states between pools and layouts, and to and from dense arrays.
 *
 * Every mover walks the schema, so that no part is forgotten. Offsets are 64-bit from the first
 * multiplication. Slots are ids:
 *
 *   -1   no row: skipped (the other end of that row is not looked at)
 *   0    the null slot: a legal source (zeros), never a destination
 *   > 0  must be allocated
 *
 * The destinations of one call must be distinct, and none may be the source of another row; a slot
 * copied onto itself is left alone. Everything is checked and acquired before the first byte moves:
 * a call that fails with anything but SC_ERR_DEVICE_LOST or SC_ERR_IO has changed nothing. On
 * return the bytes have arrived; nobody waits for work of streams other than the default one first.
 *
 * Threads: any, as long as the caller keeps the slots of the call from being freed or written by
 * others meanwhile. */
#ifndef STATECACHE_SNAPSHOT_H
#define STATECACHE_SNAPSHOT_H

#include "statecache/kernels.h"
#include "statecache/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Copies `count` whole states, all parts, in one call. The pools may be one and the same, may
 * differ in layout, and may lie one on the host and one on a device; two pools share no bytes.
 * Between two page-major pools a state is one piece, padding included.
 * Errors: SC_ERR_INVALID (null, a negative id, slot 0 or the same slot twice as destination, a
 * destination that another row reads), SC_ERR_MISMATCH (fingerprint or shard differ), SC_ERR_STALE
 * (a slot that is not allocated), SC_ERR_BUSY (a destination of owner SNAPSHOT, which is immutable,
 * or DRAINING, which a step in flight still reads; a state is copied first and the slot made a
 * snapshot then), SC_ERR_UNSUPPORTED (two different devices), SC_ERR_NO_MEMORY (the
 * destination's allocator, of which small calls need nothing; across the bus also the device).
 * Cost: reads and writes each byte once; O(n log n) for n rows out of order. */
SC_API sc_status sc_state_copy(const sc_pool *source, const int32_t *source_slots, sc_pool *dest,
    const int32_t *dest_slots, uint32_t count);

/** The same, without waiting: on return the work is in `stream` of the device that takes part
 * (NULL: its default stream; between host pools the bytes have arrived). The id arrays have been
 * read. Slots must stay as they are, and host memory valid, until the stream has passed the call.
 * It can be captured in a graph: within one device, one launch for all parts and rows. Errors and
 * cost: as sc_state_copy. */
SC_API sc_status sc_state_copy_async(const sc_pool *source, const int32_t *source_slots,
    sc_pool *dest, const int32_t *dest_slots, uint32_t count, sc_stream *stream);

/** The same beside the caller's work, for saves: the copy runs in a stream of the library's own,
 * behind what is in `stream` now, and `stream` does not wait for it. An event joins them at either
 * end: this call, and sc_state_copy_join. Until a stream has passed that join, sources stay as they
 * are and nobody reads destinations. Between host pools the bytes have arrived. A device has one
 * such stream: a copy, and so a join, comes behind earlier copies, also those behind other streams.
 * Errors, cost: as sc_state_copy; SC_ERR_UNSUPPORTED also while `stream` is being captured. */
SC_API sc_status sc_state_copy_beside(const sc_pool *source, const int32_t *source_slots,
    sc_pool *dest, const int32_t *dest_slots, uint32_t count, sc_stream *stream);

/** What is put in `stream` from now on begins behind all copies that sc_state_copy_beside has begun
 * on the device of `pool`. The host does not wait. Threads: any.
 * Errors: SC_ERR_INVALID (null), SC_ERR_UNSUPPORTED (as above), SC_ERR_NO_MEMORY. */
SC_API sc_status sc_state_copy_join(const sc_pool *pool, sc_stream *stream);

/** Names one part to gather or scatter: as in sc_pool_layer_view. */
typedef struct sc_part_ref {
    uint32_t layer;
    sc_part_kind kind;
    uint32_t index;
} sc_part_ref;

/** True when kernels that want one dense array per part, `[slot][dims]`, cannot run on this pool in
 * place: some part's slots are not end to end (page-major, or padded to 256 bytes).
 * Errors: SC_ERR_INVALID. Threads: any. Cost: O(parts). */
SC_API sc_status sc_pool_needs_gather(const sc_pool *pool, bool *needs_out);

/** Bytes of the dense array of `count` rows of these parts: for each part in order `[count][dims]`,
 * parts one after the other at 256-byte starts; `offsets_out` (may be NULL) gets part_count starts.
 * Errors: SC_ERR_INVALID (null, no parts), SC_ERR_NOT_FOUND (the shard has no such part),
 * SC_ERR_OVERFLOW. Threads: any. */
SC_API sc_status sc_state_dense_bytes(const sc_pool *pool, const sc_part_ref *parts,
    uint32_t part_count, uint32_t count, uint64_t *bytes_out, uint64_t *offsets_out);

/** Copies parts of slots into a dense array in memory of the pool's backend, outside of the pool.
 * Rows of slot -1 are left untouched; slot 0 gives zeros; a slot or part may be named repeatedly.
 * Errors: as sc_state_dense_bytes; SC_ERR_INVALID (also an array within the pool), SC_ERR_STALE,
 * SC_ERR_MISMATCH (dense_bytes too small), SC_ERR_OVERFLOW, SC_ERR_NO_MEMORY. */
SC_API sc_status sc_state_gather(const sc_pool *pool, const sc_part_ref *parts, uint32_t part_count,
    const int32_t *slots, uint32_t count, sc_devptr dense, uint64_t dense_bytes);
/** The reverse; parts that are not named keep their bytes. Slot -1 is skipped; slot 0, a slot named
 * twice and a part named twice are refused (SC_ERR_INVALID), a slot of owner SNAPSHOT or DRAINING
 * too (SC_ERR_BUSY). Errors: as sc_state_gather. */
SC_API sc_status sc_state_scatter(sc_pool *pool, const sc_part_ref *parts, uint32_t part_count,
    const int32_t *slots, uint32_t count, sc_devptr dense, uint64_t dense_bytes);

#ifdef __cplusplus
}
#endif
#endif
