/* SPDX-License-Identifier: Apache-2.0 */
/* The host tier: entries in one region of memory.
 *
 *   region   |  entry 3  |  free  | entry 0 |      free      |   in blocks of 4 KiB
 *   chain    HEAD <-> 3 <-> 0                                    by place
 *   map      key -> entry
 *
 *   WRITING --complete--> READY --acquire--> READY, pins > 0
 *      '--cancel--> gone    '--evict, drop--> gone
 *
 * (1) The chain holds every entry once, by rising block; entries never overlap. One moves only
 *     while it is READY without pins: it is `moving` then, with a pin and all the blocks from its
 *     new place to its old one, and who would acquire it waits.
 * (2) Only READY entries without pins go: those that were dropped, then least value first, then
 *     least recently used. A dropped entry is no hit and goes with its last pin.
 *
 * Room is the first gap that is large enough. If none is, but all together are, entries are moved
 * down: the fewest bytes that join gaps to one of that size. If that cannot be, entries go in that
 * order until a gap is large enough. Entries are few (a host holds hundreds of states), so that
 * walks over all of them cost less than one of the copies that they are for. Locking: one lock,
 * never held over a copy or a move. */
#include "tier/host_store.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/sc_assert.h"
#define SC_MAP_HEAP (&store->heap)
#include "base/map.h"

enum { BLOCK = 4096, HOST_WRITING = 1, HOST_READY = 2 };
enum { MOVES_MAX = 64 }; /* entries in a row that are moved for one gap */

struct host_entry {
    uint64_t key, block, blocks, bytes, tick;
    double value;
    uint32_t pins;
    uint8_t state;
    bool dropped, moving;
    struct host_entry *before, *behind; /* by place; free ones: behind */
    UT_hash_handle hh;
};

struct sc_host_store {
    struct sc_heap heap;
    struct sc_mutex lock;
    pthread_cond_t moved;
    sc_backend *backend; /* of pinned memory, NULL: plain */
    struct sc_backend_memory pinned;
    uint8_t *region;
    uint64_t blocks, tick;
    struct host_entry *entries; /* [entry_max] */
    uint32_t entry_max;
    struct host_entry *free, *first, *map;
    struct sc_host_store_stats stats;
};

/* ---- creation ---- */

static void log_unpinned(const struct sc_host_store *store)
{
    if (!sc_log_enabled(SC_LOG_WARN)) return;
    struct sc_log_builder log = SC_LOG_BUILDER_INIT;
    sc_log_add(&log, "bytes", "%llu", (unsigned long long)store->blocks * BLOCK);
    sc_log_add(&log, "why", "%s", sc_last_error()->text);
    sc_log_send(&log, SC_LOG_WARN, "tier.host_not_pinned");
}

/* Pinned memory, else plain: then copies are slower, and as right. */
static sc_status region_take(struct sc_host_store *store,
    const struct sc_host_store_options *options)
{
    uint64_t bytes = store->blocks * BLOCK;
    if (options->backend) {
        sc_status status = sc_backend_alloc_host(options->backend, bytes, &store->pinned);
        if (status == SC_OK) {
            store->backend = options->backend;
            store->region = sc_host_ptr(store->pinned.base);
            store->stats.pinned = !options->backend->host_memory;
            return SC_OK;
        }
        if (options->must_pin) {
            struct sc_error_info error = *sc_last_error();
            return SC_FAIL(SC_ERR_UNSUPPORTED, "cannot pin %llu bytes: %.120s",
                (unsigned long long)bytes, error.text);
        }
        log_unpinned(store);
    } else if (options->must_pin) {
        return SC_FAIL(SC_ERR_UNSUPPORTED, "no backend to pin memory with");
    }
    if (bytes > SIZE_MAX) return SC_FAIL(SC_ERR_OVERFLOW, "a host tier beyond the address space");
    store->region = sc_heap_alloc(&store->heap, (size_t)bytes, BLOCK);
    if (store->region) return SC_OK;
    return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a host tier of %llu bytes",
        (unsigned long long)bytes);
}

static sc_status check_limit(const struct sc_host_store_options *options)
{
    uint64_t left = 0;
    if (!options->check_limit) return SC_OK;
    SC_TRY(sc_host_limit(options->system_root, 0, 1, &left));
    if (options->bytes_max <= left) return SC_OK;
    return SC_FAIL(SC_ERR_LIMIT, "a host tier of %llu bytes, host and cgroup have %llu left",
        (unsigned long long)options->bytes_max, (unsigned long long)left);
}

static sc_status entries_take(struct sc_host_store *store)
{
    store->entries = sc_heap_calloc(&store->heap, store->entry_max, sizeof *store->entries);
    if (!store->entries) {
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u entries", store->entry_max);
    }
    for (uint32_t i = store->entry_max; i-- > 0;) {
        store->entries[i].behind = store->free;
        store->free = &store->entries[i];
    }
    return SC_OK;
}

sc_status sc_host_store_create(const struct sc_host_store_options *options,
    struct sc_host_store **store_out)
{
    struct sc_heap heap;
    SC_REQUIRE(options != NULL && store_out != NULL);
    SC_REQUIRE(options->bytes_max >= BLOCK && options->entry_max > 0);
    SC_TRY(check_limit(options));
    SC_TRY(sc_heap_init(&heap, SC_SUBSYSTEM_SNAPSHOT, options->allocator));
    struct sc_host_store *store = sc_heap_calloc(&heap, 1, sizeof *store);
    if (!store) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a host tier");
    store->heap = heap;
    store->blocks = options->bytes_max / BLOCK;
    store->entry_max = options->entry_max;
    sc_status status = sc_mutex_init(&store->lock, SC_RANK_TIER);
    if (status == SC_OK) {
        status = entries_take(store);
        if (status == SC_OK) status = region_take(store, options);
        if (status == SC_OK) {
            (void)pthread_cond_init(&store->moved, NULL);
            *store_out = store;
            return SC_OK;
        }
        if (store->entries) {
            sc_heap_free(&heap, store->entries, store->entry_max * sizeof *store->entries);
        }
        sc_mutex_deinit(&store->lock);
    }
    sc_heap_free(&heap, store, sizeof *store);
    return status;
}

/* ---- places ---- */

static void entry_remove(struct sc_host_store *store, struct host_entry *entry)
{
    SC_ASSERT(entry->pins == 0);
    HASH_DEL(store->map, entry);
    if (entry->before) entry->before->behind = entry->behind;
    else store->first = entry->behind;
    if (entry->behind) entry->behind->before = entry->before;
    store->stats.used_bytes -= entry->blocks * BLOCK;
    memset(entry, 0, sizeof *entry);
    entry->behind = store->free;
    store->free = entry;
}

void sc_host_store_destroy(struct sc_host_store *store)
{
    if (!store) return;
    struct sc_heap heap = store->heap;
    while (store->first) {
        SC_ASSERT(store->first->state == HOST_READY);
        entry_remove(store, store->first);
    }
    if (store->backend) {
        sc_backend_free_host(store->backend, &store->pinned);
    } else {
        sc_heap_free(&heap, store->region, (size_t)(store->blocks * BLOCK));
    }
    sc_heap_free(&heap, store->entries, store->entry_max * sizeof *store->entries);
    (void)pthread_cond_destroy(&store->moved);
    sc_mutex_deinit(&store->lock);
    sc_heap_free(&heap, store, sizeof *store);
}

/* The first gap of `blocks`; `*before_out` is the entry that it follows, NULL: none. */
static bool find_gap(const struct sc_host_store *store, uint64_t blocks,
    struct host_entry **before_out, uint64_t *block_out)
{
    uint64_t at = 0;
    struct host_entry *before = NULL;
    for (struct host_entry *entry = store->first; entry; entry = entry->behind) {
        if (entry->block - at >= blocks) break;
        at = entry->block + entry->blocks;
        before = entry;
    }
    if (store->blocks - at < blocks) return false;
    *before_out = before;
    *block_out = at;
    return true;
}

/* Where it could begin. */
static uint64_t lowest_place(const struct host_entry *entry)
{
    return entry->before ? entry->before->block + entry->before->blocks : 0;
}

/* The first of the entries whose moves down, one after the other, make a gap of `blocks` with the
 * fewest bytes; NULL: none do. */
static struct host_entry *cheapest_move(const struct sc_host_store *store, uint64_t blocks)
{
    struct host_entry *best = NULL;
    uint64_t best_cost = UINT64_MAX;
    for (struct host_entry *first = store->first; first; first = first->behind) {
        uint64_t begin = lowest_place(first), cost = 0;
        uint32_t count = 0;
        if (begin == first->block) continue;
        for (struct host_entry *entry = first; entry && count < MOVES_MAX; entry = entry->behind) {
            if (entry->state != HOST_READY || entry->pins > 0) break;
            cost += entry->blocks;
            count++;
            uint64_t end = entry->behind ? entry->behind->block : store->blocks;
            if (cost >= best_cost) break;
            if (end - begin - cost < blocks) continue;
            best = first;
            best_cost = cost;
            break;
        }
    }
    return best;
}

/* The caller holds the lock, which is left during the move. */
static void move_down(struct sc_host_store *store, struct host_entry *entry)
{
    uint64_t to = lowest_place(entry), from = entry->block, blocks = entry->blocks;
    entry->moving = true;
    entry->pins++;
    entry->block = to;
    entry->blocks = from + blocks - to;
    sc_mutex_unlock(&store->lock);
    memmove(store->region + to * BLOCK, store->region + from * BLOCK, (size_t)(blocks * BLOCK));
    sc_mutex_lock(&store->lock);
    entry->blocks = blocks;
    entry->moving = false;
    entry->pins--;
    if (entry->dropped && entry->pins == 0) entry_remove(store, entry);
    (void)pthread_cond_broadcast(&store->moved);
}

/* Joins gaps, if they are enough together. */
static void join_gaps(struct sc_host_store *store, uint64_t blocks)
{
    struct host_entry *before = NULL;
    uint64_t block = 0;
    for (uint32_t i = 0; i < store->entry_max; i++) {
        uint64_t used = store->stats.used_bytes / BLOCK;
        if (blocks > store->blocks - used || find_gap(store, blocks, &before, &block)) return;
        struct host_entry *entry = cheapest_move(store, blocks);
        if (!entry) return;
        move_down(store, entry);
    }
}

static struct host_entry *victim(const struct sc_host_store *store)
{
    struct host_entry *best = NULL;
    for (struct host_entry *entry = store->first; entry; entry = entry->behind) {
        if (entry->state != HOST_READY || entry->pins > 0) continue;
        if (!best || entry->value < best->value ||
            (!(entry->value > best->value) && entry->tick < best->tick)) {
            best = entry;
        }
    }
    return best;
}

static struct host_entry *find(const struct sc_host_store *store, uint64_t key)
{
    struct host_entry *entry = NULL;
    HASH_FIND(hh, store->map, &key, sizeof key, entry);
    return entry;
}

/* ---- storing ---- */

/* Would it fit if all went that may? So that nothing goes for what cannot be. */
static bool could_fit(const struct sc_host_store *store, uint64_t blocks, double value)
{
    uint64_t at = 0, room = 0;
    for (const struct host_entry *entry = store->first; entry; entry = entry->behind) {
        if (entry->state == HOST_READY && entry->pins == 0 && entry->value <= value) continue;
        if (entry->block - at > room) room = entry->block - at;
        at = entry->block + entry->blocks;
    }
    if (store->blocks - at > room) room = store->blocks - at;
    return room >= blocks;
}

static sc_status insert(struct sc_host_store *store, uint64_t key, uint64_t bytes, double value,
    struct host_entry *before, uint64_t block)
{
    bool sc_map_oom = false;
    struct host_entry *entry = store->free, *behind = before ? before->behind : store->first;
    struct host_entry *next_free = entry->behind;
    memset(entry, 0, sizeof *entry);
    entry->key = key;
    HASH_ADD(hh, store->map, key, sizeof entry->key, entry);
    if (sc_map_oom) {
        entry->behind = next_free;
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for an entry of the host tier");
    }
    store->free = next_free;
    entry->block = block;
    entry->blocks = (bytes - 1) / BLOCK + 1;
    entry->bytes = bytes;
    entry->value = value;
    entry->tick = ++store->tick;
    entry->state = HOST_WRITING;
    entry->before = before;
    entry->behind = behind;
    if (before) before->behind = entry;
    else store->first = entry;
    if (behind) behind->before = entry;
    store->stats.used_bytes += entry->blocks * BLOCK;
    return SC_OK;
}

/* The caller holds the lock. */
static sc_status reserve(struct sc_host_store *store, uint64_t key, uint64_t bytes, double value,
    void **memory_out)
{
    uint64_t blocks = (bytes - 1) / BLOCK + 1, block = 0;
    join_gaps(store, blocks);
    struct host_entry *entry = find(store, key), *before = NULL;
    if (entry && entry->state == HOST_READY && !entry->dropped) {
        return SC_FAIL(SC_ERR_STATE, "the host tier has entry %llu", (unsigned long long)key);
    }
    if (entry) {
        return SC_FAIL(SC_ERR_BUSY, "entry %llu of the host tier is being written or goes",
            (unsigned long long)key);
    }
    if (!could_fit(store, blocks, value)) {
        store->stats.refused_count++;
        return SC_FAIL(SC_ERR_LIMIT, "the host tier has no room for %llu bytes of this value",
            (unsigned long long)bytes);
    }
    while (!store->free || !find_gap(store, blocks, &before, &block)) {
        struct host_entry *out = victim(store);
        if (!out || out->value > value) {
            store->stats.refused_count++;
            return SC_FAIL(SC_ERR_LIMIT, "the host tier has no room for one more entry");
        }
        entry_remove(store, out);
        store->stats.evicted_count++;
    }
    SC_TRY(insert(store, key, bytes, value, before, block));
    *memory_out = store->region + block * BLOCK;
    return SC_OK;
}

sc_status sc_host_store_reserve(struct sc_host_store *store, uint64_t key, uint64_t bytes,
    double value, void **memory_out)
{
    SC_REQUIRE(store != NULL && memory_out != NULL && bytes > 0 && isfinite(value));
    sc_mutex_lock(&store->lock);
    sc_status status = reserve(store, key, bytes, value, memory_out);
    sc_mutex_unlock(&store->lock);
    return status;
}

static sc_status finish(struct sc_host_store *store, uint64_t key, bool good)
{
    SC_REQUIRE(store != NULL);
    sc_mutex_lock(&store->lock);
    struct host_entry *entry = find(store, key);
    bool writing = entry && entry->state == HOST_WRITING;
    if (writing && good) {
        entry->state = HOST_READY;
        store->stats.stored_count++;
    } else if (writing) {
        entry_remove(store, entry);
    }
    sc_mutex_unlock(&store->lock);
    if (writing) return SC_OK;
    return SC_FAIL(SC_ERR_NOT_FOUND, "entry %llu of the host tier is not being written",
        (unsigned long long)key);
}

sc_status sc_host_store_complete(struct sc_host_store *store, uint64_t key)
{
    return finish(store, key, true);
}

sc_status sc_host_store_cancel(struct sc_host_store *store, uint64_t key)
{
    return finish(store, key, false);
}

/* ---- reading ---- */

static bool is_hit(const struct host_entry *entry)
{
    return entry && entry->state == HOST_READY && !entry->dropped;
}

sc_status sc_host_store_acquire(struct sc_host_store *store, uint64_t key, const void **memory_out,
    uint64_t *bytes_out)
{
    SC_REQUIRE(store != NULL && memory_out != NULL && bytes_out != NULL);
    sc_mutex_lock(&store->lock);
    struct host_entry *entry = NULL;
    while (is_hit(entry = find(store, key)) && entry->moving) {
        (void)pthread_cond_wait(&store->moved, &store->lock.os);
    }
    bool hit = is_hit(entry);
    if (hit) {
        entry->pins++;
        entry->tick = ++store->tick;
        store->stats.hit_count++;
        *memory_out = store->region + entry->block * BLOCK;
        *bytes_out = entry->bytes;
    }
    sc_mutex_unlock(&store->lock);
    if (hit) return SC_OK;
    return SC_FAIL(SC_ERR_NOT_FOUND, "the host tier has no entry %llu", (unsigned long long)key);
}

sc_status sc_host_store_release(struct sc_host_store *store, uint64_t key)
{
    SC_REQUIRE(store != NULL);
    sc_mutex_lock(&store->lock);
    struct host_entry *entry = find(store, key);
    bool held = entry && entry->pins > entry->moving;
    if (held) entry->pins--;
    if (held && entry->pins == 0 && entry->dropped) entry_remove(store, entry);
    sc_mutex_unlock(&store->lock);
    if (held) return SC_OK;
    return SC_FAIL(SC_ERR_STATE, "entry %llu of the host tier is not acquired",
        (unsigned long long)key);
}

bool sc_host_store_has(struct sc_host_store *store, uint64_t key)
{
    if (!store) return false;
    sc_mutex_lock(&store->lock);
    bool hit = is_hit(find(store, key));
    sc_mutex_unlock(&store->lock);
    return hit;
}

sc_status sc_host_store_drop(struct sc_host_store *store, uint64_t key)
{
    sc_status status = SC_OK;
    SC_REQUIRE(store != NULL);
    sc_mutex_lock(&store->lock);
    struct host_entry *entry = find(store, key);
    if (entry && entry->state == HOST_WRITING) {
        status = SC_FAIL(SC_ERR_BUSY, "entry %llu of the host tier is being written",
            (unsigned long long)key);
    } else if (!is_hit(entry)) {
        status = SC_FAIL(SC_ERR_NOT_FOUND, "the host tier has no entry %llu",
            (unsigned long long)key);
    } else if (entry->pins > 0) {
        entry->dropped = true;
    } else {
        entry_remove(store, entry);
    }
    sc_mutex_unlock(&store->lock);
    return status;
}

sc_status sc_host_store_next_victim(struct sc_host_store *store, uint64_t *key_out)
{
    SC_REQUIRE(store != NULL && key_out != NULL);
    sc_mutex_lock(&store->lock);
    const struct host_entry *entry = victim(store);
    if (entry) *key_out = entry->key;
    sc_mutex_unlock(&store->lock);
    return entry ? SC_OK : SC_FAIL(SC_ERR_NOT_FOUND, "nothing in the host tier can go");
}

sc_status sc_host_store_stats_get(struct sc_host_store *store,
    struct sc_host_store_stats *stats_out)
{
    SC_REQUIRE(store != NULL && stats_out != NULL);
    sc_mutex_lock(&store->lock);
    *stats_out = store->stats;
    stats_out->bytes_max = store->blocks * BLOCK;
    for (const struct host_entry *entry = store->first; entry; entry = entry->behind) {
        stats_out->entry_count++;
        stats_out->writing_count += entry->state == HOST_WRITING;
        stats_out->acquired_count += entry->pins > entry->moving;
    }
    sc_mutex_unlock(&store->lock);
    return SC_OK;
}
