/* SPDX-License-Identifier: Apache-2.0 */
/* What snapshot and engine need of a pool beyond the public header. */
#ifndef SC_POOL_POOL_INTERNAL_H
#define SC_POOL_POOL_INTERNAL_H

#include "statecache/pool.h"

/* The cache that a pool is given to becomes its only allocator: the public sc_pool_alloc, _free,
 * _set_owner and _destroy then answer SC_ERR_BUSY. SC_ERR_BUSY when another holds it already. */
sc_status sc_pool_hold(sc_pool *pool);
void sc_pool_unhold(sc_pool *pool);

/* What the holder calls. Take is half of sc_pool_alloc: bookkeeping alone, no call to the device,
 * all or nothing, false without an error text if too few slots are free. What was taken must be
 * prepared before a kernel sees it: prepare clears control words (and poisons in debug builds),
 * waits for the device, and needs no lock of the caller; on error the slots are still taken.
 * Give and retag are sc_pool_free and sc_pool_set_owner. */
bool sc_pool_take(sc_pool *pool, uint32_t count, sc_owner owner, sc_slot *slots_out);
sc_status sc_pool_prepare(const sc_pool *pool, const sc_slot *slots, uint32_t count);
sc_status sc_pool_give(sc_pool *pool, const sc_slot *slots, uint32_t count);
sc_status sc_pool_retag(sc_pool *pool, sc_slot slot, sc_owner owner);

/* Local part number of (layer, kind, index); SC_ERR_NOT_FOUND names the layer. */
sc_status sc_pool_find_part(const sc_pool *pool, uint32_t layer, sc_part_kind kind, uint32_t index,
    uint32_t *part_out);

/* The caller's allocator of the pool's bookkeeping, NULL for the default; lives as long as the
 * pool. What works on a pool (copies, codecs) takes its short-lived memory from there too. */
const sc_allocator *sc_pool_allocator(const sc_pool *pool);

/* Ids below this are legal, the null slot included: slot_count + 1. */
uint32_t sc_pool_id_end(const sc_pool *pool);

/* -1 passes; 0 passes where slots are read, else SC_ERR_INVALID; other ids must be allocated
 * (SC_ERR_STALE, the text names the entry), and where they are written neither hold a snapshot nor
 * drain (SC_ERR_BUSY). Other negative ids are SC_ERR_INVALID. One lock for all. */
enum sc_pool_use { SC_POOL_READ, SC_POOL_WRITE };
sc_status sc_pool_check_ids(const sc_pool *pool, const int32_t *ids, uint32_t count,
    enum sc_pool_use use);

/* Handle of an allocated slot by id; SC_ERR_STALE. */
sc_status sc_pool_slot_of(const sc_pool *pool, uint32_t id, sc_slot *slot_out);

/* Handles of the allocated slots with this owner, in the order of ids: how an audit above names
 * what it cannot account for. At most `cap`; returns how many there are. O(slots). */
uint32_t sc_pool_slots_of_owner(const sc_pool *pool, sc_owner owner, sc_slot *slots_out,
    uint32_t cap);

#endif
