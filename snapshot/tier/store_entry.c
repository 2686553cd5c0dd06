/* SPDX-License-Identifier: Apache-2.0 */
/* Entries by id, and the order in which records go: a binary heap, least value first, then least
 * recently used. Its array grows with the entries, so that moving within it cannot fail. */
#include <string.h>

#include "store_internal.h"

/* ---- entries ---- */

sc_status entry_reserve(struct sc_store *store, uint32_t more)
{
    uint64_t need = (uint64_t)store->entry_count + more;
    if (need <= store->entry_cap) return SC_OK;
    uint64_t cap = store->entry_cap ? (uint64_t)store->entry_cap * 2 : 64;
    if (cap < need) cap = need;
    if (cap >= NONE) return SC_FAIL(SC_ERR_LIMIT, "the store has no more ids");
    struct entry *entries = sc_heap_alloc(&store->heap, (size_t)cap * sizeof *entries, 16);
    uint32_t *order = sc_heap_alloc(&store->heap, (size_t)cap * sizeof *order, 16);
    if (!entries || !order) {
        sc_heap_free(&store->heap, entries, (size_t)cap * sizeof *entries);
        sc_heap_free(&store->heap, order, (size_t)cap * sizeof *order);
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %llu records", (unsigned long long)cap);
    }
    if (store->entry_cap > 0) {
        memcpy(entries, store->entries, store->entry_count * sizeof *entries);
        memcpy(order, store->order, store->order_count * sizeof *order);
        sc_heap_free(&store->heap, store->entries, store->entry_cap * sizeof *entries);
        sc_heap_free(&store->heap, store->order, store->entry_cap * sizeof *order);
    }
    store->entries = entries;
    store->order = order;
    store->entry_cap = (uint32_t)cap;
    return SC_OK;
}

static void entry_clear(struct entry *entry, enum entry_state state)
{
    memset(entry, 0, sizeof *entry);
    entry->parent = NONE;
    entry->order_at = NONE;
    entry->state = (uint8_t)state;
}

uint32_t entry_take(struct sc_store *store)
{
    uint32_t id = store->entry_free_hint;
    while (id < store->entry_count && store->entries[id].state != ENTRY_FREE) id++;
    if (id == store->entry_count) {
        SC_ASSERT(store->entry_count < store->entry_cap);
        store->entry_count++;
    }
    store->entry_free_hint = id + 1;
    entry_clear(&store->entries[id], ENTRY_NEW);
    return id;
}

void entry_give(struct sc_store *store, uint32_t id)
{
    SC_ASSERT(store->entries[id].order_at == NONE && store->entries[id].pins == 0);
    entry_clear(&store->entries[id], ENTRY_FREE);
    if (id < store->entry_free_hint) store->entry_free_hint = id;
}

bool entry_is_hit(const struct sc_store *store, uint32_t id)
{
    const struct entry *entry = &store->entries[id];
    return entry->state == ENTRY_LIVE && !entry->damaged && !entry->dropped;
}

/* ---- the order ---- */

static bool goes_before(const struct entry *a, const struct entry *b)
{
    bool a_gone = a->damaged || a->dropped, b_gone = b->damaged || b->dropped;
    if (a_gone != b_gone) return a_gone;
    if (a->value < b->value || a->value > b->value) return a->value < b->value;
    return a->tick < b->tick;
}

static void place(struct sc_store *store, uint32_t at, uint32_t id)
{
    store->order[at] = id;
    store->entries[id].order_at = at;
}

static void sift(struct sc_store *store, uint32_t at)
{
    const struct entry *entries = store->entries;
    uint32_t id = store->order[at];
    while (at > 0 && goes_before(&entries[id], &entries[store->order[(at - 1) / 2]])) {
        place(store, at, store->order[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint64_t child = 2 * (uint64_t)at + 1;
        if (child >= store->order_count) break;
        if (child + 1 < store->order_count &&
            goes_before(&entries[store->order[child + 1]], &entries[store->order[child]])) {
            child++;
        }
        if (!goes_before(&entries[store->order[child]], &entries[id])) break;
        place(store, at, store->order[child]);
        at = (uint32_t)child;
    }
    place(store, at, id);
}

void order_update(struct sc_store *store, uint32_t id)
{
    struct entry *entry = &store->entries[id];
    bool wanted = entry->state == ENTRY_LIVE && entry->child_count == 0 && entry->pins == 0;
    if (wanted && entry->order_at == NONE) {
        store->order[store->order_count] = id;
        entry->order_at = store->order_count++;
    }
    if (wanted) {
        sift(store, entry->order_at);
        return;
    }
    if (entry->order_at == NONE) return;
    uint32_t at = entry->order_at;
    entry->order_at = NONE;
    store->order_count--;
    if (at == store->order_count) return;
    place(store, at, store->order[store->order_count]);
    sift(store, at);
}
