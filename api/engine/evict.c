/* SPDX-License-Identifier: Apache-2.0 */
/* What leaves the cache: eviction, the drain list, and finding a slot by evicting.
 *
 * A slot that was taken holds anything. Before a kernel sees it, its control words are cleared
 * (sc_pool_prepare), which waits for the device: so the calls that take slots note them (struct
 * fills) and clear them when they have given the lock back. Until such a call returns nobody else
 * knows these slots.
 *
 * The drain list is a ring of KV ids, oldest first:
 *
 *      first              (first + count) % cap
 *        v                        v
 *   . . . 17 4 99 23 8 61 5 2 . . . .
 *        '-> drained       pushed -'
 *
 * Its capacity is at least the number of all ids inside the cache (cache_internal.h (5)), so that a
 * push never needs memory. Cost of a push or a take: what is moved. */
#include <string.h>

#include "tier.h"

sc_status sc_engine_drain_reserve(sc_cache *cache, uint64_t more)
{
    struct drain *drain = &cache->drain;
    uint64_t need = cache->kv_inside + more;
    if (need <= drain->cap) return SC_OK;
    uint64_t cap = drain->cap ? drain->cap : 64;
    while (cap < need) cap *= 2;
    int32_t *ids = sc_heap_alloc(&cache->heap, cap * sizeof *ids, 16);
    if (!ids) {
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a drain list of %llu ids",
            (unsigned long long)cap);
    }
    for (uint64_t i = 0; i < drain->count; i++) {
        ids[i] = drain->ids[(drain->first + i) & (drain->cap - 1)];
    }
    sc_heap_free(&cache->heap, drain->ids, drain->cap * sizeof *ids);
    *drain = (struct drain){ids, cap, 0, drain->count};
    return SC_OK;
}

void sc_engine_drain_push(sc_cache *cache, const int32_t *ids, uint32_t count)
{
    struct drain *drain = &cache->drain;
    SC_ASSERT(drain->count + count <= drain->cap); /* (5) */
    for (uint32_t i = 0; i < count; i++) {
        drain->ids[(drain->first + drain->count + i) & (drain->cap - 1)] = ids[i];
    }
    drain->count += count;
}

void sc_engine_drain_push_new(sc_cache *cache, const int32_t *ids, uint32_t count)
{
    cache->kv_inside += count;
    cache->stats.pages_in += count;
    sc_engine_drain_push(cache, ids, count);
}

static void sink_kv(void *ctx, const int32_t *ids, uint32_t count, enum sc_radix_cause cause)
{
    struct evict_sink *sink = ctx;
    (void)cause;
    sc_engine_drain_push(sink->cache, ids, count);
    sink->cache->stats.pages_evicted += count;
    sink->pages += count;
}

static void sink_snapshot(void *ctx, uint32_t snapshot, enum sc_radix_cause cause)
{
    static const uint8_t causes[SC_RADIX_CAUSE_COUNT] = {
        [SC_RADIX_CAUSE_ASKED] = SC_EVICT_ASKED,
        [SC_RADIX_CAUSE_CASCADE] = SC_EVICT_WITH_KV,
        [SC_RADIX_CAUSE_SUPERSEDED] = SC_EVICT_SUPERSEDED,
        [SC_RADIX_CAUSE_PATH_CAP] = SC_EVICT_PATH_CAP,
        [SC_RADIX_CAUSE_HISTORY] = SC_EVICT_HISTORY,
        [SC_RADIX_CAUSE_SPACE] = SC_EVICT_CLOSED,
    };
    struct evict_sink *sink = ctx;
    sc_slot slot = SC_SLOT_NULL;
    struct sc_snapshot_info info = {0};
    sc_status status = sc_registry_get(sink->cache->registry, snapshot, &info);
    if (status == SC_OK) status = sc_registry_remove(sink->cache->registry, snapshot, &slot);
    SC_ASSERT(status == SC_OK); /* (2) */
    bool asked = cause == SC_RADIX_CAUSE_ASKED || sink->chosen;
    uint32_t as = asked ? sink->asked_as : causes[cause];
    sc_engine_event_gone(sink->cache, snapshot, as);
    sc_engine_tier_gone(sink->cache, snapshot);
    sc_engine_ring_gone(sink->cache, info.extra);
    sc_engine_slot_free(sink->cache->options.pool, slot);
    sink->cache->stats.evicted[as]++;
    sink->slots++;
}

void sc_engine_sink_init(sc_cache *cache, uint32_t asked_as, struct evict_sink *sink)
{
    *sink = (struct evict_sink){.cache = cache, .asked_as = asked_as};
    sink->sink = (struct sc_radix_sink){sink, sink_kv, sink_snapshot};
}

void sc_engine_slot_free(sc_pool *pool, sc_slot slot)
{
    sc_status status = sc_pool_give(pool, &slot, 1);
    SC_ASSERT(status == SC_OK); /* (1): nobody else frees it */
}

void sc_engine_fill_add(const sc_cache *cache, struct fills *fills, const struct lease *lease)
{
    fills->slots[fills->slot_count++] = lease->working;
    if (cache->options.extras) fills->extras[fills->extra_count++] = lease->extra;
}

sc_status sc_engine_fill(const sc_cache *cache, const struct fills *fills)
{
    if (fills->slot_count > 0) {
        SC_TRY(sc_pool_prepare(cache->options.pool, fills->slots, fills->slot_count));
    }
    if (fills->extra_count == 0) return SC_OK;
    return sc_pool_prepare(cache->options.extras, fills->extras, fills->extra_count);
}

/* Drops the snapshot that is worth least, if that is no more than `bar`. With KV of its own budget
 * its pages stay, and go first when pages are wanted. */
static sc_status evict_chosen(sc_cache *cache, double bar, struct evict_sink *sink)
{
    double got = 0;
    sc_node victim = sc_policy_victim(cache->policy, NULL);
    sink->chosen = true;
    sc_status status = sc_policy_room(cache->policy, 1, bar, &sink->sink, &got);
    sink->chosen = false;
    if (status == SC_OK && got > 0) sc_engine_stale_add(cache, victim);
    return status;
}

/* Of those that the policy does not know, if there are any, the least recently used ones go, when
 * nothing else is left. */
static sc_status evict_states(sc_cache *cache, uint32_t count, double bar, struct evict_sink *sink)
{
    uint64_t goal = sink->slots + count, before = UINT64_MAX;
    uint32_t evicted = 0;
    while (cache->policy && sink->slots < goal && sink->slots != before) {
        before = sink->slots;
        SC_TRY(evict_chosen(cache, bar, sink));
    }
    if (sink->slots >= goal || bar < HUGE_VAL) return SC_OK;
    return sc_radix_evict_state(cache->radix, (uint32_t)(goal - sink->slots), &sink->sink,
        &evicted);
}

sc_status sc_engine_slot_take(sc_cache *cache, sc_owner owner, double bar, sc_slot *slot_out)
{
    sc_pool *pool = cache->options.pool;
    struct evict_sink sink;
    if (sc_pool_take(pool, 1, owner, slot_out)) return SC_OK;
    sc_engine_sink_init(cache, SC_EVICT_FOR_SLOT, &sink);
    do {
        SC_TRY(evict_states(cache, 1, bar, &sink));
    } while (sink.slots == 0 && owner == SC_OWNER_WORKING && sc_engine_pin_break(cache));
    if (sink.slots == 0 && bar < HUGE_VAL) return SC_ERR_LIMIT; /* the usual case: no error text */
    if (sink.slots == 0) return SC_FAIL(SC_ERR_NO_SLOT, "every slot is in use or pinned");
    bool taken = sc_pool_take(pool, 1, owner, slot_out);
    SC_ASSERT(taken); /* the pool is this cache's alone */
    return SC_OK;
}

sc_status sc_engine_extra_take(sc_cache *cache, sc_slot *slot_out)
{
    sc_pool *extras = cache->options.extras;
    while (!sc_pool_take(extras, 1, SC_OWNER_WORKING, slot_out)) {
        if (sc_engine_ring_evict(cache)) continue;
        return SC_FAIL(SC_ERR_NO_SLOT, "every slot of the extras is in use");
    }
    return SC_OK;
}

/* ---- pages ---- */

void sc_engine_stale_add(sc_cache *cache, sc_node node)
{
    struct stale *stale = &cache->stale;
    if (!cache->policy || node == SC_NODE_NONE) return;
    if (stale->count == STALE_MAX) { /* the oldest is left to the tree's order */
        stale->first = (stale->first + 1) % STALE_MAX;
        stale->count--;
    }
    stale->nodes[(stale->first + stale->count++) % STALE_MAX] = node;
}

/* A node may have gone meanwhile, and its number may be another's: what it is now counts. */
uint64_t sc_engine_stale_evict(sc_cache *cache, uint64_t pages, struct evict_sink *sink)
{
    struct stale *stale = &cache->stale;
    uint64_t before = sink->pages;
    while (stale->count > 0 && sink->pages - before < pages) {
        struct sc_radix_node_info info;
        sc_node rest = SC_NODE_NONE, node = stale->nodes[stale->first];
        stale->first = (stale->first + 1) % STALE_MAX;
        stale->count--;
        if (sc_radix_node_get(cache->radix, node, &info) != SC_OK || info.snapshot != 0) continue;
        if (info.child_count > 0 || info.kv_locks > 0 || info.state_locks > 0) continue;
        sc_status status = sc_radix_evict_node(cache->radix, node, &sink->sink, &rest);
        SC_ASSERT(status == SC_OK);
    }
    return sink->pages - before;
}

/* Where states and KV share their memory, what is worth least goes, with its pages. */
static sc_status evict_both(sc_cache *cache, uint64_t pages, struct evict_sink *sink)
{
    bool shared = cache->policy && cache->options.kv_token_bytes > 0;
    while (shared && sink->pages < pages) {
        uint64_t before = sink->slots;
        SC_TRY(evict_chosen(cache, HUGE_VAL, sink));
        if (sink->slots == before) break;
    }
    return SC_OK;
}

static sc_status evict_pages(sc_cache *cache, uint32_t pages, struct evict_sink *sink)
{
    uint64_t tokens = 0;
    uint32_t cascaded = 0;
    if (!cache->options.without_kv) {
        (void)sc_engine_stale_evict(cache, pages, sink);
        SC_TRY(evict_both(cache, pages, sink));
    }
    if (sink->pages >= pages) return SC_OK;
    return sc_radix_evict_kv(cache->radix, (pages - sink->pages) * cache->page, &sink->sink,
        &tokens, &cascaded);
}

/* Pins give way when nothing else is left. */
static sc_status evict(sc_cache *cache, uint32_t pages, uint32_t slots, struct evict_sink *sink)
{
    do {
        if (sink->pages < pages || cache->options.without_kv) {
            SC_TRY(evict_pages(cache, pages, sink));
        }
        if (slots > sink->slots) {
            SC_TRY(evict_states(cache, slots - (uint32_t)sink->slots, HUGE_VAL, sink));
        }
    } while ((sink->pages < pages || sink->slots < slots) && sc_engine_pin_break(cache));
    return SC_OK;
}

sc_status sc_cache_evict(sc_cache *cache, uint32_t pages, uint32_t slots, sc_room *got_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(got_out);
    sc_rwlock_lock(&cache->lock);
    struct evict_sink sink;
    sc_room before, after;
    sc_engine_sink_init(cache, SC_EVICT_ASKED, &sink);
    sc_engine_room(cache, &before);
    sc_status status = evict(cache, pages, slots, &sink);
    if (status == SC_OK) {
        sc_engine_room(cache, &after);
        *got_out = (sc_room){
            .slots_free = after.slots_free - before.slots_free,
            .pages_cached = before.pages_cached - after.pages_cached,
            .pages_drainable = after.pages_drainable - before.pages_drainable,
        };
        sc_engine_record_evict(cache, pages, slots, got_out);
    }
    sc_rwlock_unlock(&cache->lock);
    return status;
}

sc_status sc_cache_drain(sc_cache *cache, int32_t *kv_ids_out, uint32_t cap, uint32_t *count_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(kv_ids_out || cap == 0);
    SC_REQUIRE(count_out);
    sc_rwlock_lock(&cache->lock);
    struct drain *drain = &cache->drain;
    uint32_t count = drain->count < cap ? (uint32_t)drain->count : cap;
    for (uint32_t i = 0; i < count; i++) {
        kv_ids_out[i] = drain->ids[(drain->first + i) & (drain->cap - 1)];
    }
    if (count > 0) drain->first = (drain->first + count) & (drain->cap - 1);
    drain->count -= count;
    cache->kv_inside -= count;
    cache->stats.pages_out += count;
    *count_out = count;
    sc_engine_record_drain(cache, cap, kv_ids_out, count);
    sc_rwlock_unlock(&cache->lock);
    return SC_OK;
}

sc_status sc_cache_trim(sc_cache *cache, uint64_t token_max, uint64_t *bytes_out)
{
    SC_REQUIRE(cache);
    sc_rwlock_lock(&cache->lock);
    sc_status status = sc_radix_trim(cache->radix, token_max, bytes_out);
    if (status == SC_OK) sc_engine_record_trim(cache, token_max);
    sc_rwlock_unlock(&cache->lock);
    sc_radix_purge(cache->radix);
    return status;
}
