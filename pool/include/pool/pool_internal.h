/* SPDX-License-Identifier: Apache-2.0 */
/* What snapshot and engine need of a pool beyond the public header. */
#ifndef SC_POOL_POOL_INTERNAL_H
#define SC_POOL_POOL_INTERNAL_H

#include "statecache/pool.h"

/* The cache that a pool is given to becomes its only allocator: sc_pool_destroy then answers
 * SC_ERR_BUSY. SC_ERR_BUSY when another holds it already. */
sc_status sc_pool_hold(sc_pool *pool);
void sc_pool_unhold(sc_pool *pool);

/* Local part number of (layer, kind, index); SC_ERR_NOT_FOUND names the layer. */
sc_status sc_pool_find_part(const sc_pool *pool, uint32_t layer, sc_part_kind kind, uint32_t index,
    uint32_t *part_out);

/* The caller's allocator of the pool's bookkeeping, NULL for the default; lives as long as the
 * pool. What works on a pool (copies, codecs) takes its short-lived memory from there too. */
const sc_allocator *sc_pool_allocator(const sc_pool *pool);

/* Ids below this are legal, the null slot included: slot_count + 1. */
uint32_t sc_pool_id_end(const sc_pool *pool);

/* -1 passes; 0 passes if `null_ok`, else SC_ERR_INVALID; other ids must be allocated (SC_ERR_STALE,
 * the text names the entry). Other negative ids are SC_ERR_INVALID. One lock for all. */
sc_status sc_pool_check_ids(const sc_pool *pool, const int32_t *ids, uint32_t count, bool null_ok);

/* Handle of an allocated slot by id; SC_ERR_STALE. */
sc_status sc_pool_slot_of(const sc_pool *pool, uint32_t id, sc_slot *slot_out);

/* Handles of the allocated slots with this owner, in the order of ids: how an audit above names
 * what it cannot account for. At most `cap`; returns how many there are. O(slots). */
uint32_t sc_pool_slots_of_owner(const sc_pool *pool, sc_owner owner, sc_slot *slots_out,
    uint32_t cap);

#endif
