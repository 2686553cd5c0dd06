/* SPDX-License-Identifier: Apache-2.0 */
/* Removing records: one transaction for a batch, then their blocks are free.
 *
 *   root --A(edge)--B(record)--C(record)       remove C: C goes
 *                                              then B:   B goes, and A, which led to it alone
 *   root --A(record)--B(record)                remove A: A stays as an edge
 *
 * What is to go is marked first (DYING: no hit any more), so that nobody pins it while the
 * transaction waits for the disk; if that fails, the marks are taken back. */
#include <math.h>
#include <string.h>

#include "store_internal.h"

struct removal {
    uint32_t *ids;         /* in the order of marking: children before parents */
    uint32_t count, cap;
    struct extent_list extents;
};

static sc_status removal_add(struct sc_store *store, struct removal *removal, uint32_t id)
{
    if (removal->count == removal->cap) {
        uint32_t cap = removal->cap ? removal->cap * 2 : 2 * EVICT_MAX;
        uint32_t *ids = sc_heap_realloc(&store->heap, removal->ids, removal->cap * sizeof *ids,
            cap * sizeof *ids);
        if (!ids) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to remove records");
        removal->ids = ids;
        removal->cap = cap;
    }
    removal->ids[removal->count++] = id;
    return SC_OK;
}

/* The caller holds `lock`. Parents that are edges and lead nowhere then go, too. */
static sc_status mark(struct sc_store *store, struct removal *removal, uint32_t id)
{
    for (;;) {
        struct entry *entry = &store->entries[id];
        SC_TRY(removal_add(store, removal, id));
        entry->was_edge = entry->state == ENTRY_EDGE;
        entry->state = ENTRY_DYING;
        order_update(store, id);
        if (entry->child_count > 0 || entry->parent == NONE) return SC_OK;
        entry->uncounted = true;
        id = entry->parent;
        SC_ASSERT(store->entries[id].child_count > 0);
        store->entries[id].child_count--;
        order_update(store, id);
        if (store->entries[id].state != ENTRY_EDGE || store->entries[id].child_count > 0) {
            return SC_OK;
        }
    }
}

static void unmark(struct sc_store *store, const struct removal *removal)
{
    sc_mutex_lock(&store->lock);
    for (uint32_t i = removal->count; i-- > 0;) {
        uint32_t id = removal->ids[i];
        struct entry *entry = &store->entries[id];
        entry->state = entry->was_edge ? ENTRY_EDGE : ENTRY_LIVE;
        order_update(store, id);
        if (!entry->uncounted) continue;
        entry->uncounted = false;
        store->entries[entry->parent].child_count++;
        order_update(store, entry->parent);
    }
    sc_mutex_unlock(&store->lock);
}

static void finish_one(struct sc_store *store, uint32_t id)
{
    struct entry *entry = &store->entries[id];
    if (entry->child_count > 0) {
        entry->state = ENTRY_EDGE;
        entry->blocks = 0;
        entry->damaged = entry->dropped = false;
        return;
    }
    uint32_t parent = entry->uncounted ? NONE : entry->parent;
    entry_give(store, id);
    if (parent == NONE) return;
    SC_ASSERT(store->entries[parent].child_count > 0);
    store->entries[parent].child_count--;
    order_update(store, parent);
}

static void finish(struct sc_store *store, struct removal *removal, uint64_t *freed_blocks_out)
{
    uint64_t freed = 0;
    sc_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < removal->extents.count; i++) freed += removal->extents.items[i].count;
    for (uint32_t i = 0; i < removal->count; i++) finish_one(store, removal->ids[i]);
    space_give(store, removal->extents.items, removal->extents.count);
    SC_ASSERT(store->used_blocks >= freed);
    store->used_blocks -= freed;
    sc_mutex_unlock(&store->lock);
    *freed_blocks_out = freed;
}

static sc_status remove_one(struct sc_store *store, MDB_txn *txn, struct removal *removal,
    uint32_t id, bool keeps_edge)
{
    struct node_view view;
    sc_status status = db_node(store, txn, id, &view);
    if (status != SC_OK) {
        /* Gone or damaged since open: what cannot be read frees no block before the next open. */
        return status == SC_ERR_NOT_FOUND ? SC_OK :
            status == SC_ERR_CORRUPT ? db_remove_node(store, txn, id, NULL) : status;
    }
    if (!extent_list_add(store, &removal->extents, &view)) {
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to remove records");
    }
    if (!keeps_edge) return db_remove_node(store, txn, id, &view);
    size_t bytes = view.head.bytes;
    uint8_t *blob = sc_heap_dup(&store->heap, view.bytes, bytes);
    if (!blob) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to remove a record");
    status = db_put_node(store, txn, id, blob, node_make_edge(blob, &view));
    sc_heap_free(&store->heap, blob, bytes);
    return status;
}

static sc_status remove_once(struct sc_store *store, struct removal *removal)
{
    MDB_txn *txn = NULL;
    SC_TRY(db_begin_write(store, &txn));
    sc_status status = SC_OK;
    for (uint32_t i = 0; i < removal->count && status == SC_OK; i++) {
        sc_mutex_lock(&store->lock);
        bool keeps_edge = store->entries[removal->ids[i]].child_count > 0;
        sc_mutex_unlock(&store->lock);
        status = remove_one(store, txn, removal, removal->ids[i], keeps_edge);
    }
    if (status == SC_OK) return db_commit(store, txn);
    mdb_txn_abort(txn);
    return status;
}

static sc_status remove_marked(struct sc_store *store, struct removal *removal)
{
    sc_status status = remove_once(store, removal);
    if (status != SC_ERR_LIMIT) return status;
    db_drain(store); /* a delete needs new pages, too, and readers may hold those that are free */
    removal->extents.count = 0;
    return remove_once(store, removal);
}

static sc_status run(struct sc_store *store, struct removal *removal, sc_status status,
    uint64_t *freed_blocks_out)
{
    *freed_blocks_out = 0;
    if (status == SC_OK && removal->count > 0) status = remove_marked(store, removal);
    if (status == SC_OK) {
        finish(store, removal, freed_blocks_out);
    } else {
        unmark(store, removal);
    }
    extent_list_free(store, &removal->extents);
    if (removal->ids) sc_heap_free(&store->heap, removal->ids, removal->cap * sizeof(uint32_t));
    return status;
}

sc_status store_remove(struct sc_store *store, const uint32_t *ids, uint32_t count,
    uint64_t *freed_blocks_out)
{
    struct removal removal = {NULL, 0, 0, {NULL, 0, 0}};
    sc_status status = SC_OK;
    sc_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < count && status == SC_OK; i++) {
        struct entry *entry = &store->entries[ids[i]];
        bool edge = entry->state == ENTRY_EDGE && entry->child_count == 0;
        if ((entry->state == ENTRY_LIVE && entry->pins == 0) || edge) {
            status = mark(store, &removal, ids[i]);
        }
    }
    sc_mutex_unlock(&store->lock);
    return run(store, &removal, status, freed_blocks_out);
}

static bool may_go(const struct entry *entry, double value_max)
{
    return entry->damaged || entry->dropped || entry->value <= value_max;
}

static sc_status evict(struct sc_store *store, uint64_t blocks, uint32_t count_max,
    double value_max, uint64_t *freed_out)
{
    struct removal removal = {NULL, 0, 0, {NULL, 0, 0}};
    sc_status status = SC_OK;
    uint64_t will_free = 0, count = 0;
    sc_mutex_lock(&store->lock);
    while (status == SC_OK && store->order_count > 0 && count < count_max && will_free < blocks) {
        uint32_t id = store->order[0];
        if (!may_go(&store->entries[id], value_max)) break;
        will_free += store->entries[id].blocks;
        status = mark(store, &removal, id);
        count++;
    }
    sc_mutex_unlock(&store->lock);
    SC_TRY(run(store, &removal, status, freed_out));
    sc_mutex_lock(&store->lock);
    store->stats.evicted_count += count; /* records; edges that led to them alone are not counted */
    sc_mutex_unlock(&store->lock);
    return SC_OK;
}

sc_status store_evict_some(struct sc_store *store, uint64_t blocks, double value_max,
    uint64_t *freed_out)
{
    sc_status status = evict(store, blocks, EVICT_MAX, value_max, freed_out);
    /* A delete needs new pages, too: one record needs the fewest. */
    if (status == SC_ERR_LIMIT) status = evict(store, 1, 1, value_max, freed_out);
    return status;
}

sc_status sc_store_evict(struct sc_store *store, uint64_t bytes, uint64_t *freed_out)
{
    uint64_t want = bytes / TIER_BLOCK + (bytes % TIER_BLOCK != 0), total = 0;
    SC_TRY(store_enter(store));
    sc_mutex_lock(&store->write_lock);
    sc_status status = SC_OK;
    for (uint64_t freed = 1; status == SC_OK && freed > 0 && total < want; total += freed) {
        status = store_evict_some(store, want - total, INFINITY, &freed);
        if (status != SC_OK) break;
    }
    sc_mutex_unlock(&store->write_lock);
    if (freed_out) *freed_out = total * TIER_BLOCK;
    return status;
}

/* The caller holds write_lock. */
static sc_status drop(struct sc_store *store, uint32_t id)
{
    uint64_t freed = 0;
    sc_mutex_lock(&store->lock);
    bool live = id < store->entry_count && store->entries[id].state == ENTRY_LIVE &&
        !store->entries[id].dropped;
    bool pinned = live && store->entries[id].pins > 0;
    if (live) store->stats.dropped_count++;
    if (live) store->entries[id].dropped = pinned;
    if (live) order_update(store, id);
    sc_mutex_unlock(&store->lock);
    if (!live) return SC_FAIL(SC_ERR_NOT_FOUND, "there is no record %u", id);
    return pinned ? SC_OK : store_remove(store, &id, 1, &freed);
}

sc_status sc_store_drop(struct sc_store *store, uint32_t id)
{
    SC_TRY(store_enter(store));
    sc_mutex_lock(&store->write_lock);
    sc_status status = drop(store, id);
    sc_mutex_unlock(&store->write_lock);
    return status;
}

/* The caller holds write_lock, so that the id stays what it is. */
static sc_status check_tick(struct sc_store *store, uint32_t id, uint64_t tick)
{
    MDB_txn *txn = NULL;
    struct node_view view;
    SC_TRY(db_begin_read(store, &txn));
    sc_status status = db_node(store, txn, id, &view);
    bool other = status == SC_ERR_NOT_FOUND || (status == SC_OK && view.head.tick != tick);
    db_end_read(store, txn);
    return other ? SC_FAIL(SC_ERR_NOT_FOUND, "record %u is gone", id) : status;
}

sc_status sc_store_drop_exactly(struct sc_store *store, uint32_t id, uint64_t tick)
{
    SC_TRY(store_enter(store));
    sc_mutex_lock(&store->write_lock);
    sc_status status = check_tick(store, id, tick);
    if (status == SC_OK) status = drop(store, id);
    sc_mutex_unlock(&store->write_lock);
    return status;
}

void store_drop_unpinned(struct sc_store *store, uint32_t id)
{
    uint64_t freed = 0;
    sc_mutex_lock(&store->write_lock);
    sc_mutex_lock(&store->lock);
    bool dropped = store->entries[id].dropped; /* else another has the id by now */
    sc_mutex_unlock(&store->lock);
    if (dropped) (void)store_remove(store, &id, 1, &freed);
    sc_mutex_unlock(&store->write_lock);
}
