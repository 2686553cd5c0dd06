/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots by id.
 *
 *   registry.table (uthash on id)
 *        |
 *        v
 *   [ id | hh | info | history_count x stretch ]     one allocation for each snapshot
 *                |            ^
 *                '--history --'
 *
 * (1) Ids are given out in rising order from 1; after 2^32 - 1 comes 1 again, and ids that are
 *     still in use are stepped over. 0 is never an id. An id is used up only when an add succeeds,
 *     so that a failed one leaves no trace.
 * (2) history ends rise strictly from above 0, and the last is token_count: a snapshot carries its
 *     exact length and how it came to be (contracts 1 and 9).
 * (3) info.history points into the entry itself: a borrowed history lives until remove.
 *
 * The registry owns no slots. Locking: none of its own; the caller (the engine) serialises mutators
 * and keeps readers out of them. Cost: O(1) on average for each call; each and destroy visit all.
 *
 * Rejected: ids as indexes into a slab. They would be reused at once, and an id that the tree kept
 * by mistake would then silently name another state. */
#include "snapshot/registry.h"

#include <string.h>

#include "base/error.h"
#include "base/heap.h"
#include "base/sc_assert.h"

#define SC_MAP_HEAP (&registry->heap)
#include "base/map.h"

struct entry {
    uint32_t id;
    struct sc_snapshot_info info;
    UT_hash_handle hh;
    struct sc_stretch history[];
};

struct sc_registry {
    struct sc_heap heap;
    struct entry *table;
    uint32_t next_id;
};

static size_t entry_bytes(uint32_t history_count)
{
    return sizeof(struct entry) + (size_t)history_count * sizeof(struct sc_stretch);
}

static struct entry *entry_find(const struct sc_registry *registry, uint32_t snapshot)
{
    struct entry *entry = NULL;
    HASH_FIND(hh, registry->table, &snapshot, sizeof snapshot, entry);
    return entry;
}

sc_status sc_registry_create(const sc_allocator *allocator, struct sc_registry **registry_out)
{
    struct sc_heap heap;
    SC_REQUIRE(registry_out != NULL);
    SC_TRY(sc_heap_init(&heap, SC_SUBSYSTEM_SNAPSHOT, allocator));
    struct sc_registry *registry = sc_heap_calloc(&heap, 1, sizeof *registry);
    if (!registry) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a snapshot registry");
    registry->heap = heap;
    registry->next_id = 1;
    *registry_out = registry;
    return SC_OK;
}

void sc_registry_destroy(struct sc_registry *registry)
{
    if (!registry) return;
    struct entry *entry, *next;
    HASH_ITER(hh, registry->table, entry, next)
    {
        HASH_DEL(registry->table, entry);
        sc_heap_free(&registry->heap, entry, entry_bytes(entry->info.history_count));
    }
    struct sc_heap heap = registry->heap;
    sc_heap_free(&heap, registry, sizeof *registry);
}

/* (2) */
static sc_status check_history(const struct sc_snapshot_info *info)
{
    uint32_t end = 0;
    SC_REQUIRE(info->history != NULL || info->history_count == 0);
    for (uint32_t i = 0; i < info->history_count; i++) {
        const struct sc_stretch *stretch = &info->history[i];
        if (stretch->end <= end) {
            return SC_FAIL(SC_ERR_INVALID, "history: stretch %u ends at %u, not after %u", i,
                stretch->end, end);
        }
        if (stretch->form != SC_FORM_PREFILL && stretch->form != SC_FORM_DECODE) {
            return SC_FAIL(SC_ERR_INVALID, "history: stretch %u has the unknown form %u", i,
                stretch->form);
        }
        end = stretch->end;
    }
    if (end != info->token_count) {
        return SC_FAIL(SC_ERR_MISMATCH, "history ends at %u, the snapshot has %u tokens", end,
            info->token_count);
    }
    return SC_OK;
}

/* The next id that is not in use (1). The table is not full, so that there is one. */
static uint32_t free_id(const struct sc_registry *registry)
{
    uint32_t id = registry->next_id;
    while (id == 0 || entry_find(registry, id)) {
        id++;
    }
    return id;
}

sc_status sc_registry_add(struct sc_registry *registry, const struct sc_snapshot_info *info,
    uint32_t *snapshot_out)
{
    bool sc_map_oom = false;
    SC_REQUIRE(registry != NULL);
    SC_REQUIRE(info != NULL);
    SC_REQUIRE(snapshot_out != NULL);
    SC_REQUIRE(info->slot.id != 0);
    SC_REQUIRE(info->token_count > 0);
    SC_REQUIRE(info->kind >= SC_SNAPSHOT_PROMPT_END && info->kind <= SC_SNAPSHOT_POINT);
    SC_TRY(check_history(info));
    if (sc_registry_count(registry) == UINT32_MAX) {
        return SC_FAIL(SC_ERR_LIMIT, "every snapshot id is in use");
    }
    size_t bytes = entry_bytes(info->history_count);
    struct entry *entry = sc_heap_alloc(&registry->heap, bytes, 16);
    if (!entry) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a snapshot of %zu bytes", bytes);
    memset(entry, 0, sizeof *entry);
    entry->id = free_id(registry);
    entry->info = *info;
    entry->info.history = entry->history; /* (3) */
    memcpy(entry->history, info->history, bytes - sizeof *entry);
    HASH_ADD(hh, registry->table, id, sizeof entry->id, entry);
    if (sc_map_oom) {
        sc_heap_free(&registry->heap, entry, bytes);
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to grow the snapshot table");
    }
    registry->next_id = entry->id + 1; /* 0 after the last: free_id steps over it */
    *snapshot_out = entry->id;
    return SC_OK;
}

sc_status sc_registry_get(const struct sc_registry *registry, uint32_t snapshot,
    struct sc_snapshot_info *info_out)
{
    SC_REQUIRE(registry != NULL);
    SC_REQUIRE(info_out != NULL);
    const struct entry *entry = entry_find(registry, snapshot);
    if (!entry) return SC_FAIL(SC_ERR_NOT_FOUND, "there is no snapshot %u", snapshot);
    *info_out = entry->info;
    return SC_OK;
}

sc_status sc_registry_count_hit(struct sc_registry *registry, uint32_t snapshot)
{
    SC_REQUIRE(registry != NULL);
    struct entry *entry = entry_find(registry, snapshot);
    if (!entry) return SC_FAIL(SC_ERR_NOT_FOUND, "there is no snapshot %u", snapshot);
    entry->info.hits++;
    return SC_OK;
}

sc_status sc_registry_remove(struct sc_registry *registry, uint32_t snapshot, sc_slot *slot_out)
{
    SC_REQUIRE(registry != NULL);
    struct entry *entry = entry_find(registry, snapshot);
    if (!entry) return SC_FAIL(SC_ERR_NOT_FOUND, "there is no snapshot %u", snapshot);
    if (slot_out) *slot_out = entry->info.slot;
    HASH_DEL(registry->table, entry);
    sc_heap_free(&registry->heap, entry, entry_bytes(entry->info.history_count));
    return SC_OK;
}

uint32_t sc_registry_count(const struct sc_registry *registry)
{
    return registry ? HASH_COUNT(registry->table) : 0;
}

void sc_registry_each(const struct sc_registry *registry,
    void (*fn)(void *ctx, uint32_t snapshot, const struct sc_snapshot_info *info), void *ctx)
{
    if (!registry || !fn) return;
    const struct entry *entry, *next;
    HASH_ITER(hh, registry->table, entry, next)
    {
        fn(ctx, entry->id, &entry->info);
    }
}

sc_status sc_registry_seek(struct sc_registry *registry, uint32_t next)
{
    SC_REQUIRE(registry != NULL);
    SC_REQUIRE(next != 0);
    registry->next_id = next;
    return SC_OK;
}

sc_status sc_registry_verify(const struct sc_registry *registry)
{
    uint32_t count = 0;
    SC_REQUIRE(registry != NULL);
    const struct entry *entry, *next;
    HASH_ITER(hh, registry->table, entry, next)
    {
        if (entry->id == 0 || entry->info.slot.id == 0 ||
            entry->info.history != entry->history || check_history(&entry->info) != SC_OK) {
            return SC_FAIL(SC_ERR_CORRUPT, "snapshot %u breaks an invariant", entry->id);
        }
        if (entry_find(registry, entry->id) != entry) {
            return SC_FAIL(SC_ERR_CORRUPT, "snapshot %u is not found by its id", entry->id);
        }
        count++;
    }
    if (count != sc_registry_count(registry)) {
        return SC_FAIL(SC_ERR_CORRUPT, "%u snapshots, but a count of %u", count,
            sc_registry_count(registry));
    }
    return SC_OK;
}
