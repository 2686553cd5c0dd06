/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: slots, their owners, their generations.
 *
 * One record for each slot, the null slot included; free slots are linked through `next`:
 *
 *   free_head -> 7 -> 3 -> 0     recently freed first: their memory is warm
 *   fresh = 9                    ids 9 .. slot_count were never used: their pages, and their
 *                                records, are not touched yet, so that a sparse pool costs little
 *
 *   FREE --alloc--> WORKING, SNAPSHOT, IN_FLIGHT, DRAINING --free--> FREE
 *                       ^---------- set_owner ----------^
 *
 * (1) generation is odd exactly while the slot is allocated; alloc and free each add one. It wraps
 *     from 2^32 - 1 to 0: a handle is mistaken only after 2^31 further uses of its slot.
 * (2) owner_count[o] is the number of slots 1 .. slot_count with owner o; they add up to
 *     slot_count. FREE is free_list_count + (slot_count - fresh + 1).
 * (3) Following `next` free_list_count times from free_head meets only free slots below `fresh` and
 *     ends at 0. (A list with a slot twice would never end.)
 * (4) Slot 0 has generation 0, owner FREE, is never linked, and its bytes are zero.
 * (5) MARK is set in `owner` only within sc_pool_free, under the lock.
 *
 * Locking: `lock` guards records, list and counts; exclusive where they change. Parts, layout,
 * schema and backend never change after creation and need none. Slot memory is not touched under
 * the lock: a device call may take long.
 *
 * Cost: alloc, free O(n) for n slots; neither allocates memory. 12 bytes a slot.
 *
 * Rejected: a bitmap of free slots (finding n is a scan), an array as free list (a double entry
 * cannot be seen without marks). */
#include "statecache/pool.h"

#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/sc_assert.h"
#include "pool/pool_internal.h"
#include "pool/schema_internal.h"
#include "pool_impl.h"

#define MARK 0x80000000u
enum { POISON = 0xff }; /* NaN in every float format */

/* ---- creation ---- */

sc_status sc_pool_memory_bytes(const sc_pool_options *options, uint64_t *bytes_out)
{
    struct sc_pool_layout layout;
    sc_pool_options known;
    SC_REQUIRE(bytes_out != NULL);
    SC_TRY(sc_pool_options_resolve(options, &known));
    SC_TRY(sc_pool_layout_measure(&known, false, &layout));
    *bytes_out = layout.memory_bytes;
    return SC_OK;
}

static sc_status fill_part(const sc_pool *pool, const struct sc_pool_part *part, uint32_t id,
    uint8_t value)
{
    return sc_backend_fill(pool->backend, part->base + (uint64_t)id * part->slot_stride, value,
        part->local.bytes, NULL);
}

static sc_status clear_null_slot(const sc_pool *pool)
{
    for (uint32_t p = 0; p < pool->layout.part_count; p++) {
        SC_TRY(fill_part(pool, &pool->parts[p], 0, 0));
    }
    return sc_backend_stream_sync(pool->backend, NULL);
}

/* Memory comes last, so that foreign memory is touched only when nothing else can fail. */
static sc_status pool_fill_in(sc_pool *pool, const sc_pool_options *options)
{
    const sc_foreign_memory *foreign = options->foreign;
    const uint32_t n = pool->layout.part_count;
    pool->parts = sc_heap_calloc(&pool->heap, n, sizeof *pool->parts);
    if (!pool->parts) return SC_FAIL(SC_ERR_NO_MEMORY, "pool of %u parts", n);
    pool->slots = sc_heap_calloc(&pool->heap, (size_t)pool->slot_count + 1, sizeof *pool->slots);
    if (!pool->slots) return SC_FAIL(SC_ERR_NO_MEMORY, "pool of %u slots", pool->slot_count);
    if (foreign && foreign->parts) {
        SC_TRY(sc_pool_layout_place_foreign_parts(options, &pool->layout, pool->parts));
        pool->base = pool->parts[0].base;
    } else {
        if (!foreign) {
            SC_TRY(sc_backend_alloc(pool->backend, pool->layout.memory_bytes, &pool->own));
        }
        pool->base = foreign ? foreign->base : pool->own.base;
        SC_ASSERT(pool->base % pool->layout.alignment == 0);
        sc_pool_layout_place(options, &pool->layout, pool->base, pool->parts);
    }
    for (uint32_t p = 0; p < n; p++) pool->has_extra |= pool->parts[p].kind == SC_PART_EXTRA;
    if (foreign) SC_TRY(clear_null_slot(pool)); /* own memory is zero */
    return SC_OK;
}

static void pool_dispose(sc_pool *pool)
{
    struct sc_heap heap = pool->heap;
    sc_backend_free(pool->backend, &pool->own);
    sc_heap_free(&heap, pool->slots, ((size_t)pool->slot_count + 1) * sizeof *pool->slots);
    sc_heap_free(&heap, pool->parts, pool->layout.part_count * sizeof *pool->parts);
    sc_schema_release(pool->schema);
    sc_rwlock_deinit(&pool->lock);
    sc_heap_free(&heap, pool, sizeof *pool);
}

static void log_created(const sc_pool *pool)
{
    if (!sc_log_enabled(SC_LOG_INFO)) return;
    struct sc_log_builder log = SC_LOG_BUILDER_INIT;
    sc_log_add(&log, "model", "%s", sc_schema_model(pool->schema));
    sc_log_add(&log, "layout", "%s",
        pool->layout_kind == SC_LAYOUT_PAGE_MAJOR ? "page-major" : "contiguous");
    sc_log_add(&log, "slots", "%u", pool->slot_count);
    sc_log_add(&log, "slot_bytes", "%llu", (unsigned long long)pool->layout.slot_bytes);
    sc_log_add(&log, "memory_bytes", "%llu", (unsigned long long)pool->layout.memory_bytes);
    sc_log_add(&log, "huge_bytes", "%llu", (unsigned long long)pool->own.huge_bytes);
    sc_log_add(&log, "memory", "%s", pool->own.base ? "own" : "foreign");
    sc_log_send(&log, SC_LOG_INFO, "pool.created");
}

sc_status sc_pool_create(const sc_pool_options *given, sc_pool **pool_out)
{
    struct sc_pool_layout layout;
    struct sc_heap heap;
    sc_pool_options known;
    const sc_pool_options *options = &known;
    SC_REQUIRE(pool_out != NULL);
    SC_TRY(sc_pool_options_resolve(given, &known));
    SC_TRY(sc_pool_layout_measure(options, true, &layout));
    SC_TRY(sc_heap_init(&heap, SC_SUBSYSTEM_POOL, options->allocator));
    sc_pool *pool = sc_heap_calloc(&heap, 1, sizeof *pool);
    if (!pool) return SC_FAIL(SC_ERR_NO_MEMORY, "pool");
    sc_status status = sc_rwlock_init(&pool->lock, SC_RANK_POOL);
    if (status != SC_OK) {
        sc_heap_free(&heap, pool, sizeof *pool);
        return status;
    }
    pool->heap = heap;
    pool->layout = layout;
    pool->layout_kind = options->layout;
    pool->slot_count = options->slot_count;
    pool->backend = options->backend ? options->backend : sc_backend_host();
    pool->schema = (sc_schema *)options->schema; /* only its reference count is written */
    sc_schema_retain(pool->schema);
    pool->fresh = 1;
    pool->owner_count[SC_OWNER_FREE] = pool->slot_count;
    status = pool_fill_in(pool, options);
    if (status != SC_OK) {
        pool_dispose(pool);
        return status;
    }
    if (options->foreign) {
        pool->release = options->foreign->release;
        pool->release_ctx = options->foreign->ctx;
    }
    log_created(pool);
    *pool_out = pool;
    return SC_OK;
}

sc_status sc_pool_destroy(sc_pool *pool)
{
    if (!pool) return SC_OK;
    sc_rwlock_lock_shared(&pool->lock);
    uint32_t used = pool->slot_count - pool->owner_count[SC_OWNER_FREE];
    bool held = pool->held;
    sc_rwlock_unlock_shared(&pool->lock);
    if (held) return SC_FAIL(SC_ERR_BUSY, "a cache uses the pool");
    if (used != 0) return SC_FAIL(SC_ERR_BUSY, "%u slots are allocated", used);
    void (*release)(void *ctx) = pool->release;
    void *ctx = pool->release_ctx;
    pool_dispose(pool);
    if (release) release(ctx);
    return SC_OK;
}

sc_status sc_pool_hold(sc_pool *pool)
{
    SC_REQUIRE(pool != NULL);
    sc_rwlock_lock(&pool->lock);
    bool held = pool->held;
    pool->held = true;
    sc_rwlock_unlock(&pool->lock);
    if (held) return SC_FAIL(SC_ERR_BUSY, "another cache uses the pool");
    return SC_OK;
}

void sc_pool_unhold(sc_pool *pool)
{
    sc_rwlock_lock(&pool->lock);
    SC_ASSERT(pool->held);
    pool->held = false;
    sc_rwlock_unlock(&pool->lock);
}

/* ---- slots (under the lock) ---- */

static bool owner_ok(sc_owner owner)
{
    return owner > SC_OWNER_FREE && owner < SC_OWNER_COUNT;
}

/* The record of an allocated slot, NULL when the handle is stale or null. */
static struct sc_pool_slot *record_of(const sc_pool *pool, sc_slot slot)
{
    if (slot.id == 0 || slot.id > pool->slot_count) return NULL;
    struct sc_pool_slot *record = &pool->slots[slot.id];
    bool live = record->generation == slot.generation && (slot.generation & 1u) != 0;
    return live ? record : NULL;
}

static sc_slot slot_take(sc_pool *pool, sc_owner owner)
{
    uint32_t id = pool->free_head;
    if (id != 0) {
        pool->free_head = pool->slots[id].next;
        pool->free_list_count--;
    } else {
        id = pool->fresh++;
        SC_ASSERT(id <= pool->slot_count);
    }
    struct sc_pool_slot *record = &pool->slots[id];
    SC_ASSERT_DEBUG(record->owner == SC_OWNER_FREE);
    record->next = 0;
    record->generation++;
    SC_ASSERT((record->generation & 1u) != 0); /* (1) */
    record->owner = owner;
    pool->owner_count[SC_OWNER_FREE]--;
    pool->owner_count[owner]++;
    return (sc_slot){id, record->generation};
}

static void slot_give(sc_pool *pool, uint32_t id)
{
    struct sc_pool_slot *record = &pool->slots[id];
    SC_ASSERT(owner_ok((sc_owner)record->owner));
    pool->owner_count[record->owner]--;
    pool->owner_count[SC_OWNER_FREE]++;
    record->owner = SC_OWNER_FREE;
    record->generation++;
    record->next = pool->free_head;
    pool->free_head = id;
    pool->free_list_count++;
}

/* ---- slots ---- */

/* In debug builds what is not cleared becomes NaN, so that a state which nobody wrote is seen. */
sc_status sc_pool_prepare(const sc_pool *pool, const sc_slot *slots, uint32_t count)
{
    SC_REQUIRE(pool != NULL && slots != NULL);
    if (!pool->has_extra && SC_ASSERT_LEVEL < 2) return SC_OK;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t p = 0; p < pool->layout.part_count; p++) {
            const struct sc_pool_part *part = &pool->parts[p];
            bool extra = part->kind == SC_PART_EXTRA;
            if (!extra && SC_ASSERT_LEVEL < 2) continue;
            SC_TRY(fill_part(pool, part, slots[i].id, extra ? 0 : POISON));
        }
    }
    return sc_backend_stream_sync(pool->backend, NULL);
}

/* Who asks: the public calls leave a pool alone that a cache holds. */
enum asker { ASKED_BY_ENGINE, ASKED_BY_CALLER };

/* Under the lock. */
static bool held_against(const sc_pool *pool, enum asker asker)
{
    return asker == ASKED_BY_CALLER && pool->held;
}

static sc_status fail_held(void)
{
    return SC_FAIL(SC_ERR_BUSY, "a cache uses the pool; its slots are the cache's alone");
}

/* True with `count` slots, or false with none; `*free_out` is how many were free. */
static bool slots_take(sc_pool *pool, uint32_t count, sc_owner owner, sc_slot *slots_out,
    uint32_t *free_out)
{
    *free_out = pool->owner_count[SC_OWNER_FREE];
    if (count > *free_out) return false;
    for (uint32_t i = 0; i < count; i++) slots_out[i] = slot_take(pool, owner);
    return true;
}

bool sc_pool_take(sc_pool *pool, uint32_t count, sc_owner owner, sc_slot *slots_out)
{
    uint32_t free_count;
    SC_ASSERT(pool != NULL && slots_out != NULL && count > 0 && owner_ok(owner));
    sc_rwlock_lock(&pool->lock);
    bool taken = slots_take(pool, count, owner, slots_out, &free_count);
    sc_rwlock_unlock(&pool->lock);
    return taken;
}

sc_status sc_pool_alloc(sc_pool *pool, uint32_t count, sc_owner owner, sc_slot *slots_out)
{
    uint32_t free_count = 0;
    bool taken = false;
    SC_REQUIRE(pool != NULL && slots_out != NULL);
    SC_REQUIRE(count > 0);
    SC_REQUIRE(owner_ok(owner));
    sc_rwlock_lock(&pool->lock);
    bool held = held_against(pool, ASKED_BY_CALLER);
    if (!held) taken = slots_take(pool, count, owner, slots_out, &free_count);
    sc_rwlock_unlock(&pool->lock);
    if (held) return fail_held();
    if (!taken) {
        return SC_FAIL(SC_ERR_NO_SLOT, "%u slots wanted, %u of %u are free", count, free_count,
            pool->slot_count);
    }
    sc_status status = sc_pool_prepare(pool, slots_out, count);
    if (status == SC_OK) return SC_OK;
    sc_rwlock_lock(&pool->lock);
    for (uint32_t i = count; i-- > 0;) {
        slot_give(pool, slots_out[i].id);
        slots_out[i] = SC_SLOT_NULL;
    }
    sc_rwlock_unlock(&pool->lock);
    return status;
}

static sc_status slots_free(sc_pool *pool, const sc_slot *slots, uint32_t count, enum asker asker)
{
    uint32_t marked = 0;
    SC_REQUIRE(pool != NULL && slots != NULL);
    SC_REQUIRE(count > 0);
    sc_rwlock_lock(&pool->lock);
    if (held_against(pool, asker)) {
        sc_rwlock_unlock(&pool->lock);
        return fail_held();
    }
    for (; marked < count; marked++) {
        struct sc_pool_slot *record = record_of(pool, slots[marked]);
        if (!record || (record->owner & MARK)) break;
        record->owner |= MARK;
    }
    for (uint32_t i = 0; i < marked; i++) pool->slots[slots[i].id].owner &= ~MARK;
    for (uint32_t i = 0; marked == count && i < count; i++) slot_give(pool, slots[i].id);
    sc_rwlock_unlock(&pool->lock);
    if (marked == count) return SC_OK;
    return SC_FAIL(SC_ERR_STALE, "entry %u: slot %u, generation %u is not allocated or named twice",
        marked, slots[marked].id, slots[marked].generation);
}

sc_status sc_pool_free(sc_pool *pool, const sc_slot *slots, uint32_t count)
{
    return slots_free(pool, slots, count, ASKED_BY_CALLER);
}

sc_status sc_pool_give(sc_pool *pool, const sc_slot *slots, uint32_t count)
{
    return slots_free(pool, slots, count, ASKED_BY_ENGINE);
}

static sc_status fail_stale(sc_slot slot)
{
    return SC_FAIL(SC_ERR_STALE, "slot %u, generation %u is not allocated", slot.id,
        slot.generation);
}

static sc_status owner_change(sc_pool *pool, sc_slot slot, sc_owner owner, enum asker asker)
{
    SC_REQUIRE(pool != NULL);
    SC_REQUIRE(owner_ok(owner));
    sc_rwlock_lock(&pool->lock);
    if (held_against(pool, asker)) {
        sc_rwlock_unlock(&pool->lock);
        return fail_held();
    }
    struct sc_pool_slot *record = record_of(pool, slot);
    if (record) {
        pool->owner_count[record->owner]--;
        pool->owner_count[owner]++;
        record->owner = owner;
    }
    sc_rwlock_unlock(&pool->lock);
    return record ? SC_OK : fail_stale(slot);
}

sc_status sc_pool_set_owner(sc_pool *pool, sc_slot slot, sc_owner owner)
{
    return owner_change(pool, slot, owner, ASKED_BY_CALLER);
}

sc_status sc_pool_retag(sc_pool *pool, sc_slot slot, sc_owner owner)
{
    return owner_change(pool, slot, owner, ASKED_BY_ENGINE);
}

sc_status sc_pool_check(const sc_pool *pool, sc_slot slot, sc_owner *owner_out)
{
    SC_REQUIRE(pool != NULL);
    sc_rwlock_lock_shared(&pool->lock);
    const struct sc_pool_slot *record = record_of(pool, slot);
    sc_owner owner = record ? (sc_owner)record->owner : SC_OWNER_FREE;
    sc_rwlock_unlock_shared(&pool->lock);
    if (!record) return fail_stale(slot);
    if (owner_out) *owner_out = owner;
    return SC_OK;
}

/* What nobody may write over. */
static bool owner_kept(sc_owner owner)
{
    return owner == SC_OWNER_SNAPSHOT || owner == SC_OWNER_DRAINING;
}

sc_status sc_pool_check_ids(const sc_pool *pool, const int32_t *ids, uint32_t count,
    enum sc_pool_use use)
{
    sc_owner owner = SC_OWNER_FREE;
    uint32_t i;
    SC_REQUIRE(pool != NULL);
    SC_REQUIRE(ids != NULL || count == 0);
    sc_rwlock_lock_shared(&pool->lock);
    for (i = 0; i < count; i++) {
        owner = SC_OWNER_FREE;
        if (ids[i] == -1 || (ids[i] == 0 && use == SC_POOL_READ)) continue;
        if (ids[i] <= 0 || (uint32_t)ids[i] > pool->slot_count) break;
        owner = (sc_owner)pool->slots[ids[i]].owner;
        if (owner == SC_OWNER_FREE) break;
        if (use == SC_POOL_WRITE && owner_kept(owner)) break;
    }
    sc_rwlock_unlock_shared(&pool->lock);
    if (i == count) return SC_OK;
    if (ids[i] < 0) return SC_FAIL(SC_ERR_INVALID, "entry %u: slot id %d", i, ids[i]);
    if (ids[i] == 0) return SC_FAIL(SC_ERR_INVALID, "entry %u: the null slot is never written", i);
    if (owner_kept(owner)) {
        return SC_FAIL(SC_ERR_BUSY, "entry %u: slot %d %s", i, ids[i], owner == SC_OWNER_SNAPSHOT ?
            "holds a snapshot" : "is given up, but still read by a step in flight");
    }
    return SC_FAIL(SC_ERR_STALE, "entry %u: slot %d is not allocated", i, ids[i]);
}

sc_status sc_pool_slot_of(const sc_pool *pool, uint32_t id, sc_slot *slot_out)
{
    sc_slot slot = {id, 0};
    SC_REQUIRE(pool != NULL && slot_out != NULL);
    sc_rwlock_lock_shared(&pool->lock);
    if (id <= pool->slot_count) slot.generation = pool->slots[id].generation;
    bool live = record_of(pool, slot) != NULL;
    sc_rwlock_unlock_shared(&pool->lock);
    if (!live) return fail_stale(slot);
    *slot_out = slot;
    return SC_OK;
}

sc_status sc_pool_slot(const sc_pool *pool, uint32_t id, sc_slot *slot_out)
{
    return sc_pool_slot_of(pool, id, slot_out);
}

uint32_t sc_pool_slots_of_owner(const sc_pool *pool, sc_owner owner, sc_slot *slots_out,
    uint32_t cap)
{
    uint32_t count = 0;
    SC_ASSERT(owner_ok(owner));
    sc_rwlock_lock_shared(&pool->lock);
    for (uint32_t id = 1; id < pool->fresh; id++) {
        if (pool->slots[id].owner != owner) continue;
        if (count < cap) slots_out[count] = (sc_slot){id, pool->slots[id].generation};
        count++;
    }
    sc_rwlock_unlock_shared(&pool->lock);
    return count;
}

/* ---- reading ---- */

sc_status sc_pool_info_get(const sc_pool *pool, sc_pool_info *info_out)
{
    sc_pool_info info = {0};
    SC_REQUIRE(pool != NULL && info_out != NULL);
    sc_rwlock_lock_shared(&pool->lock);
    memcpy(info.owner_count, pool->owner_count, sizeof info.owner_count);
    sc_rwlock_unlock_shared(&pool->lock);
    info.free_count = info.owner_count[SC_OWNER_FREE];
    info.layout = pool->layout_kind;
    info.slot_count = pool->slot_count;
    info.part_count = pool->layout.part_count;
    info.slot_bytes = pool->layout.slot_bytes;
    info.state_bytes = pool->layout.state_bytes;
    info.memory_bytes = pool->layout.memory_bytes;
    info.huge_bytes = pool->own.huge_bytes;
    info.base = pool->base;
    info.alignment = pool->layout.alignment;
    info.shard = pool->layout.shard;
    *info_out = info;
    return SC_OK;
}

sc_status sc_pool_schema(const sc_pool *pool, const sc_schema **schema_out)
{
    SC_REQUIRE(pool != NULL && schema_out != NULL);
    *schema_out = pool->schema;
    return SC_OK;
}

sc_status sc_pool_backend(const sc_pool *pool, sc_backend **backend_out)
{
    SC_REQUIRE(pool != NULL && backend_out != NULL);
    *backend_out = pool->backend;
    return SC_OK;
}

const sc_allocator *sc_pool_allocator(const sc_pool *pool)
{
    return pool->heap.user.alloc ? &pool->heap.user : NULL;
}

uint32_t sc_pool_id_end(const sc_pool *pool)
{
    return pool->slot_count + 1;
}

static const char *kind_name(sc_part_kind kind)
{
    switch (kind) {
    case SC_PART_CONV: return "conv";
    case SC_PART_RECURRENT: return "recurrent";
    case SC_PART_EXTRA: return "extra";
    }
    return "unknown";
}

sc_status sc_pool_find_part(const sc_pool *pool, uint32_t layer, sc_part_kind kind, uint32_t index,
    uint32_t *part_out)
{
    uint32_t wanted = 0, low = 0, high;
    SC_REQUIRE(pool != NULL && part_out != NULL);
    high = pool->layout.part_count;
    bool known = sc_schema_find(pool->schema, layer, kind, index, &wanted);
    while (known && low < high) { /* local parts are in schema order */
        uint32_t middle = low + (high - low) / 2;
        if (pool->parts[middle].local.part < wanted) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (known && low < pool->layout.part_count && pool->parts[low].local.part == wanted) {
        *part_out = low;
        return SC_OK;
    }
    return SC_FAIL(SC_ERR_NOT_FOUND, "layer %u has no part of kind %s, index %u %s", layer,
        kind_name(kind), index, known ? "in this shard" : "in the schema");
}

sc_status sc_pool_part_view(const sc_pool *pool, uint32_t part, sc_layer_view *view_out,
    sc_part *part_out)
{
    SC_REQUIRE(pool != NULL && view_out != NULL);
    if (part >= pool->layout.part_count) {
        return SC_FAIL(SC_ERR_INVALID, "part %u of %u", part, pool->layout.part_count);
    }
    const struct sc_pool_part *p = &pool->parts[part];
    const sc_part *whole = sc_schema_part_ref(pool->schema, p->local.part);
    sc_layer_view view = {.base = p->base, .slot_stride = (int64_t)p->slot_stride,
        .dtype = whole->dtype, .dim_count = p->local.dim_count, .bytes = p->local.bytes,
        .alignment = pool->layout.alignment};
    memcpy(view.dims, p->local.dims, sizeof view.dims);
    *view_out = view;
    if (part_out) *part_out = *whole;
    return SC_OK;
}

sc_status sc_pool_layer_view(const sc_pool *pool, uint32_t layer, sc_part_kind kind, uint32_t index,
    sc_layer_view *view_out)
{
    uint32_t part;
    SC_REQUIRE(pool != NULL && view_out != NULL);
    SC_TRY(sc_pool_find_part(pool, layer, kind, index, &part));
    return sc_pool_part_view(pool, part, view_out, NULL);
}

/* ---- audit ---- */

static sc_status audit_records(const sc_pool *pool)
{
    uint32_t count[SC_OWNER_COUNT] = {0}, total = 0;
    const struct sc_pool_slot *null = &pool->slots[0];
    if (null->generation != 0 || null->owner != SC_OWNER_FREE || null->next != 0) { /* (4) */
        return SC_FAIL(SC_ERR_CORRUPT, "the null slot has been handed out");
    }
    if (pool->fresh == 0 || pool->fresh > pool->slot_count + 1) {
        return SC_FAIL(SC_ERR_CORRUPT, "%u slots used of %u", pool->fresh - 1, pool->slot_count);
    }
    for (uint32_t id = 1; id < pool->fresh; id++) {
        const struct sc_pool_slot *record = &pool->slots[id];
        if (record->owner >= SC_OWNER_COUNT) {
            return SC_FAIL(SC_ERR_CORRUPT, "slot %u has owner %u", id, record->owner);
        }
        if ((record->generation & 1u) != (record->owner != SC_OWNER_FREE)) { /* (1) */
            return SC_FAIL(SC_ERR_CORRUPT, "slot %u: owner %u, generation %u", id, record->owner,
                record->generation);
        }
        count[record->owner]++;
    }
    if (count[SC_OWNER_FREE] != pool->free_list_count) {
        return SC_FAIL(SC_ERR_CORRUPT, "%u free slots, %u in the list", count[SC_OWNER_FREE],
            pool->free_list_count);
    }
    count[SC_OWNER_FREE] += pool->slot_count - pool->fresh + 1;
    for (uint32_t o = 0; o < SC_OWNER_COUNT; o++) { /* (2) */
        if (count[o] != pool->owner_count[o]) {
            return SC_FAIL(SC_ERR_CORRUPT, "owner %u has %u slots, the count says %u", o, count[o],
                pool->owner_count[o]);
        }
        total += count[o];
    }
    if (total != pool->slot_count) {
        return SC_FAIL(SC_ERR_CORRUPT, "%u slots accounted for, of %u", total, pool->slot_count);
    }
    return SC_OK;
}

static sc_status audit_free_list(const sc_pool *pool)
{
    uint32_t id = pool->free_head;
    for (uint32_t i = 0; i < pool->free_list_count; i++) { /* (3) */
        if (id == 0 || id >= pool->fresh || pool->slots[id].owner != SC_OWNER_FREE) {
            return SC_FAIL(SC_ERR_CORRUPT, "entry %u of the free list is slot %u", i, id);
        }
        id = pool->slots[id].next;
    }
    if (id != 0) return SC_FAIL(SC_ERR_CORRUPT, "the free list does not end, or has a slot twice");
    return SC_OK;
}

static sc_status audit_null_bytes(const sc_pool *pool)
{
    static const unsigned char zeros[4096];
    unsigned char bytes[sizeof zeros];
    for (uint32_t p = 0; p < pool->layout.part_count; p++) {
        const struct sc_pool_part *part = &pool->parts[p];
        for (uint64_t at = 0; at < part->local.bytes; at += sizeof zeros) {
            uint64_t n = part->local.bytes - at;
            if (n > sizeof zeros) n = sizeof zeros;
            SC_TRY(sc_backend_copy(pool->backend, SC_COPY_D2H, sc_host_devptr(bytes),
                part->base + at, n));
            if (memcmp(bytes, zeros, n) != 0) {
                return SC_FAIL(SC_ERR_CORRUPT,
                    "the null slot is not zero in part %u near byte %llu", p,
                    (unsigned long long)at);
            }
        }
    }
    return SC_OK;
}

sc_status sc_pool_audit(const sc_pool *pool, bool check_null)
{
    SC_REQUIRE(pool != NULL);
    sc_rwlock_lock_shared(&pool->lock);
    sc_status status = audit_records(pool);
    if (status == SC_OK) status = audit_free_list(pool);
    sc_rwlock_unlock_shared(&pool->lock);
    if (status == SC_OK && check_null) status = audit_null_bytes(pool);
    return status;
}
