/* SPDX-License-Identifier: Apache-2.0 */
/* The other calls: evict, drain, namespaces, poll and apply, verify, dump; and where prompts come
 * from. */
#include <string.h>

#include "cache_model.h"
#include "pool/pool_internal.h"

int32_t token_draw(struct world *w, struct sc_prng *rng)
{
    static const int32_t wild[5] = {INT32_MIN, -1, 0, INT32_MAX, 65536};
    uint32_t token = draw(rng, w->cfg.alphabet);
    return w->cfg.wild_tokens ? wild[token] : (int32_t)token;
}

void prompt_keep(struct world *w, const int32_t *tokens, uint32_t count)
{
    uint32_t at = w->prompt_count < PROMPTS_MAX ? w->prompt_count++ : draw(&w->rng, PROMPTS_MAX);
    memcpy(w->prompts[at].tokens, tokens, count * sizeof *tokens);
    w->prompts[at].count = count;
}

void prompt_draw(struct world *w, struct sc_prng *rng, struct prompt *prompt)
{
    uint32_t max = w->cfg.lease_token_max - 8;
    prompt->count = 0;
    if (w->prompt_count > 0 && !one_in(rng, 5)) {
        const struct prompt *from = &w->prompts[draw(rng, w->prompt_count)];
        uint32_t share = one_in(rng, 2) ? from->count : draw(rng, from->count + 1);
        prompt->count = min_u32(share, max);
        memcpy(prompt->tokens, from->tokens, prompt->count * sizeof *prompt->tokens);
    }
    uint32_t tail = one_in(rng, 4) ? 0 : draw(rng, one_in(rng, 3) ? 3 * w->cfg.grid : 8);
    if (prompt->count + tail == 0) tail = 1;
    tail = min_u32(tail, max - prompt->count);
    for (uint32_t i = 0; i < tail; i++) prompt->tokens[prompt->count++] = token_draw(w, rng);
}

int ns_pick_open(struct world *w, struct sc_prng *rng)
{
    uint32_t start = one_in(rng, 4) ? draw(rng, NS_MAX) : 0;
    for (uint32_t i = 0; i < NS_MAX; i++) {
        if (w->ns[(start + i) % NS_MAX].open) return (int)((start + i) % NS_MAX);
    }
    return -1;
}

void op_evict(struct world *w)
{
    struct sc_prng *rng = &w->rng;
    uint32_t pages = one_in(rng, 2) ? draw(rng, 12) : 0;
    uint32_t slots = one_in(rng, 2) ? draw(rng, 4) : 0;
    sc_room before = world_room(w), got;
    if (one_in(rng, 20)) {
        CHECK(w, seen(w, CALL_EVICT, sc_cache_evict(NULL, 1, 1, &got)) == SC_ERR_INVALID, "");
    }
    if (pages == 0) records_before_evict(w);
    world_arm(w);
    sc_status status = seen(w, CALL_EVICT, sc_cache_evict(w->cache, pages, slots, &got));
    (void)world_disarm(w);
    CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    if (pages == 0) records_after_evict(w);
    sc_room after = world_room(w);
    decided(w, mix(got.pages_drainable, got.slots_free));
    model_trace(w, "evict %u pages %u slots: got %u, %u", pages, slots,
        (uint32_t)got.pages_drainable, got.slots_free);
    CHECK(w, got.pages_drainable == after.pages_drainable - before.pages_drainable, "pages got %u",
        (uint32_t)got.pages_drainable);
    CHECK(w, got.slots_free == after.slots_free - before.slots_free, "slots got %u, really %u",
        got.slots_free, after.slots_free - before.slots_free);
    CHECK(w, got.slots_free >= slots || after.slots_evictable == 0, "got %u of %u slots, %u are "
        "evictable", got.slots_free, slots, after.slots_evictable);
    if (w->cfg.without_kv) return;
    CHECK(w, got.pages_drainable >= pages || after.pages_evictable == 0,
        "got %u of %u pages, %u are evictable", (uint32_t)got.pages_drainable, pages,
        (uint32_t)after.pages_evictable);
    CHECK(w, after.pages_cached == before.pages_cached - got.pages_drainable, "pages cached");
}

void drain_some(struct world *w, uint32_t cap)
{
    int32_t ids[64];
    uint32_t count = 0;
    sc_room before = world_room(w);
    sc_status status = seen(w, CALL_DRAIN, sc_cache_drain(w->cache, ids, cap, &count));
    CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    CHECK(w, count == (before.pages_drainable < cap ? before.pages_drainable : cap),
        "%u drained of %u", count, (uint32_t)before.pages_drainable);
    w->kv_out += count;
    for (uint32_t i = 0; i < count; i++) {
        decided(w, (uint32_t)ids[i]);
        if (planted(w, PLANT_DROP_KV, 30)) continue;
        CHECK(w, ids[i] >= 0 && ids[i] < KV_IDS_MAX && w->kv_inside[ids[i]],
            "KV id %d is drained, but is not inside", ids[i]);
        CHECK(w, w->kv_readers[ids[i]] == 0, "KV id %d is drained, and %u leases read it", ids[i],
            w->kv_readers[ids[i]]);
        w->kv_inside[ids[i]] = false;
        w->kv_stamp[ids[i]] = 0;
        w->kv_free[w->kv_free_count++] = ids[i];
    }
    model_trace(w, "drain %u: %u", cap, count);
}

void op_drain(struct world *w)
{
    if (one_in(&w->rng, 20)) {
        uint32_t count = 0;
        int32_t id;
        CHECK(w, seen(w, CALL_DRAIN, sc_cache_drain(NULL, &id, 1, &count)) == SC_ERR_INVALID, "");
        CHECK(w, seen(w, CALL_DRAIN, sc_cache_drain(w->cache, &id, 1, NULL)) == SC_ERR_INVALID,
            "");
        CHECK(w, seen(w, CALL_DRAIN, sc_cache_drain(w->cache, NULL, 1, &count)) == SC_ERR_INVALID,
            "");
    }
    drain_some(w, one_in(&w->rng, 3) ? 64 : draw(&w->rng, 8));
    if (w->kv_free_count < KV_IDS_MAX / 2) {
        sc_room room = world_room(w);
        while (room.pages_drainable > 0) {
            drain_some(w, 64);
            room = world_room(w);
        }
    }
}

void op_ns_open(struct world *w)
{
    struct sc_prng *rng = &w->rng;
    uint32_t index = draw(rng, NS_MAX);
    struct m_ns *ns = &w->ns[index];
    sc_fingerprint print;
    sc_namespace handle = {0, 0};
    uint64_t id = index / 2, generation = index % 2;
    CHECK(w, sc_schema_fingerprint(w->schema, &print) == SC_OK, "fingerprint");
    if (one_in(rng, 10)) {
        CHECK(w, seen(w, CALL_NS_OPEN, sc_namespace_open(w->cache, NULL, id, generation, NULL)) ==
                SC_ERR_INVALID, "");
        print.bytes[draw(rng, 16)] ^= 1;
        CHECK(w, seen(w, CALL_NS_OPEN, sc_namespace_open(w->cache, &print, id, generation,
                                           &handle)) == SC_ERR_MISMATCH, "");
        return;
    }
    world_arm(w);
    sc_status status = seen(w, CALL_NS_OPEN,
        sc_namespace_open(w->cache, one_in(rng, 2) ? &print : NULL, id, generation, &handle));
    bool failed = world_disarm(w);
    decided(w, (uint64_t)-status);
    model_trace(w, "open ns %u: %s", index, sc_status_name(status));
    if (status == SC_ERR_NO_MEMORY && failed) return;
    CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    if (ns->open) {
        CHECK(w, handle.id == ns->handle.id && handle.generation == ns->handle.generation,
            "namespace %u was open under another handle", index);
    }
    for (uint32_t i = 0; i < NS_MAX; i++) {
        CHECK(w, i == index || !w->ns[i].open || w->ns[i].handle.id != handle.id ||
                w->ns[i].handle.generation != handle.generation,
            "namespaces %u and %u share a handle", i, index);
    }
    *ns = (struct m_ns){true, handle, id, generation};
}

void op_ns_close(struct world *w)
{
    struct sc_prng *rng = &w->rng;
    uint32_t index = draw(rng, NS_MAX); /* most prompts are in the first: see ns_pick_open */
    if (index == 0 && !one_in(rng, 8)) index = NS_MAX - 1;
    struct m_ns *ns = &w->ns[index];
    bool busy = false;
    for (uint32_t i = 0; i < LEASES_MAX; i++) {
        busy = busy || (w->leases[i].used && w->leases[i].ns == index);
    }
    if (one_in(rng, 10)) {
        CHECK(w, seen(w, CALL_NS_CLOSE, sc_namespace_close(NULL, ns->handle)) == SC_ERR_INVALID,
            "");
    }
    sc_cache_stats stats = world_stats(w);
    sc_room room = world_room(w);
    sc_status wanted = !ns->open ? SC_ERR_STALE : busy ? SC_ERR_BUSY : SC_OK;
    world_arm(w);
    sc_status status = seen(w, CALL_NS_CLOSE, sc_namespace_close(w->cache, ns->handle));
    (void)world_disarm(w);
    decided(w, (uint64_t)-status);
    model_trace(w, "close ns %u: %s", index, sc_status_name(status));
    CHECK(w, status == wanted, "%s, not %s", sc_status_name(status), sc_status_name(wanted));
    if (status != SC_OK) {
        world_same(w, &stats, &room, "a refused close");
        return;
    }
    ns->open = false; /* the handle stays, stale */
    records_forget(w, index);
}

void op_poll(struct world *w)
{
    sc_done done = {1, SC_OK};
    uint32_t count = 1;
    CHECK(w, seen(w, CALL_POLL, sc_cache_poll(w->cache, &done, 1, &count)) == SC_OK && count == 0,
        "%u completions", count);
    CHECK(w, seen(w, CALL_POLL, sc_cache_poll(w->cache, &done, 1, NULL)) == SC_ERR_INVALID, "");
    CHECK(w, seen(w, CALL_APPLY, sc_cache_apply(w->cache, NULL, 0, ++w->now_ns)) == SC_OK, "");
    CHECK(w, seen(w, CALL_APPLY, sc_cache_apply(w->cache, NULL, 1, w->now_ns)) == SC_ERR_INVALID,
        "");
    CHECK(w, seen(w, CALL_APPLY, sc_cache_apply(w->cache, &done, 1, w->now_ns)) ==
            SC_ERR_NOT_FOUND, "");
}

static void count_line(void *ctx, const char *line)
{
    uint32_t *lines = ctx;
    if (line) ++*lines;
}

static void dump(struct world *w)
{
    struct m_ns *ns = &w->ns[draw(&w->rng_read, NS_MAX)];
    uint32_t lines = 0;
    sc_status status =
        seen(w, CALL_DUMP, sc_cache_dump(w->cache, ns->handle, count_line, &lines));
    CHECK(w, status == (ns->open ? SC_OK : SC_ERR_STALE), "%s", sc_status_name(status));
    CHECK(w, seen(w, CALL_DUMP, sc_cache_dump(w->cache, ns->handle, NULL, NULL)) ==
            SC_ERR_INVALID, "");
    CHECK(w, seen(w, CALL_ROOM, sc_cache_room(w->cache, NULL)) == SC_ERR_INVALID, "");
    CHECK(w, seen(w, CALL_STATS, sc_cache_stats_get(w->cache, NULL)) == SC_ERR_INVALID, "");
    CHECK(w, seen(w, CALL_VERIFY, sc_cache_verify(NULL)) == SC_ERR_INVALID, "");
}

/* Faults that no call of the cache can see coming: somebody else uses its pool. */
static void plant_slots(struct world *w)
{
    sc_slot slot;
    if (planted(w, PLANT_TAKE_SLOT, 1)) {
        (void)sc_pool_take(w->pool, 1, SC_OWNER_WORKING, &slot);
    }
    if (!planted(w, PLANT_FREE_SLOT, 1)) return;
    for (slot.id = 1; slot.id <= w->cfg.slot_count; slot.id++) {
        for (slot.generation = 1; slot.generation < 20000; slot.generation += 2) {
            if (sc_pool_check(w->pool, slot, NULL) == SC_OK) {
                (void)sc_pool_give(w->pool, &slot, 1);
                return;
            }
        }
    }
}

void op_verify(struct world *w)
{
    plant_slots(w);
    CHECK(w, seen(w, CALL_VERIFY, sc_cache_verify(w->cache)) == SC_OK, "%s",
        sc_last_error()->text);
    CHECK(w, sc_pool_audit(w->pool, true) == SC_OK, "%s", sc_last_error()->text);
    totals.verifies++;
    if (one_in(&w->rng_read, 10)) dump(w);
}
