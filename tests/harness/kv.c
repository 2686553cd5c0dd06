/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's KV pages. Each id is in one place: free, with the engine (handed to a row, not yet
 * to the cache), or inside the cache. The cache must give back what came in, once each. */
#include "harness.h"

int32_t h_kv_take(struct h_world *w)
{
    H_CHECK(w, w->kv_free_count > 0, "the engine has no KV page left");
    int32_t id = w->kv_free[--w->kv_free_count];
    H_CHECK(w, w->kv_where[id] == H_KV_FREE, "KV id %d is free twice", id);
    w->kv_where[id] = H_KV_ENGINE;
    w->kv_stamp[id] = 0;
    return id;
}

void h_kv_give(struct h_world *w, int32_t id)
{
    w->kv_where[id] = H_KV_FREE;
    w->kv_stamp[id] = 0;
    w->kv_free[w->kv_free_count++] = id;
}

void h_kv_hand_in(struct h_world *w, int32_t id)
{
    H_CHECK(w, id >= 0 && w->kv_where[id] == H_KV_ENGINE, "KV id %d is not the engine's", id);
    w->kv_where[id] = H_KV_INSIDE;
    w->kv_in++;
}

uint32_t h_drain(struct h_sched *s, uint32_t cap)
{
    struct h_world *w = s->world;
    int32_t ids[64];
    uint32_t count = 0;
    sc_room before = h_room(s);
    H_OK(w, H_CALL(s, DRAIN, sc_cache_drain(w->cache, ids, cap, &count)));
    H_CHECK(w, count == (before.pages_drainable < cap ? before.pages_drainable : cap),
        "%u drained of %u", count, (uint32_t)before.pages_drainable);
    w->kv_out += count;
    for (uint32_t i = 0; i < count; i++) {
        H_CHECK(w, ids[i] >= 0 && (uint32_t)ids[i] < w->cfg.kv_ids &&
                w->kv_where[ids[i]] == H_KV_INSIDE,
            "KV id %d is drained, but is not inside", ids[i]);
        h_decided(w, (uint32_t)ids[i]);
        h_kv_give(w, ids[i]);
    }
    return count;
}

bool h_kv_room(struct h_sched *s, uint32_t pages)
{
    struct h_world *w = s->world;
    while (w->kv_free_count < pages && h_drain(s, 64) > 0) continue;
    if (w->kv_free_count >= pages) return true;
    sc_room got;
    H_OK(w, H_CALL(s, EVICT, sc_cache_evict(w->cache, pages - w->kv_free_count, 0, &got)));
    while (w->kv_free_count < pages && h_drain(s, 64) > 0) continue;
    return w->kv_free_count >= pages;
}
