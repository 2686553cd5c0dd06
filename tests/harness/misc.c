/* SPDX-License-Identifier: Apache-2.0 */
/* The other calls that change the cache: evict, drain, namespaces; verify. */
#include <string.h>

#include "harness.h"

void h_op_evict(struct h_sched *s)
{
    struct h_world *w = s->world;
    struct sc_prng *rng = &s->rng;
    uint32_t pages = h_one_in(rng, 2) ? h_draw(rng, 12) : 0;
    uint32_t slots = h_one_in(rng, 2) ? h_draw(rng, 4) : 0;
    if (w->tier.tiers && h_one_in(rng, 3)) pages = slots = H_KV_IDS_MAX; /* all comes from below */
    sc_room before = h_room(s), got;
    h_arm(s);
    H_OK(w, H_CALL(s, EVICT, sc_cache_evict(w->cache, pages, slots, &got)));
    (void)h_disarm(s);
    sc_room after = h_room(s);
    h_decided(w, (uint64_t)got.slots_free << 32 | (uint32_t)got.pages_drainable);
    h_trace(s, "evict %u pages %u slots: got %u, %u", pages, slots, (uint32_t)got.pages_drainable,
        got.slots_free);
    H_CHECK(w, got.pages_drainable == after.pages_drainable - before.pages_drainable &&
            got.slots_free == after.slots_free - before.slots_free,
        "got %u pages and %u slots, really %u and %u", (uint32_t)got.pages_drainable,
        got.slots_free, (uint32_t)(after.pages_drainable - before.pages_drainable),
        after.slots_free - before.slots_free);
    H_CHECK(w, got.slots_free >= slots || after.slots_evictable == 0, "got %u of %u slots, %u are "
        "evictable", got.slots_free, slots, after.slots_evictable);
    if (w->cfg.without_kv || w->cfg.tails) return;
    H_CHECK(w, got.pages_drainable >= pages || after.pages_evictable == 0,
        "got %u of %u pages, %u are evictable", (uint32_t)got.pages_drainable, pages,
        (uint32_t)after.pages_evictable);
}

/* No answer changes, but how later content is cut into nodes may: it is a call like the others. */
void h_trim(struct h_sched *s, uint64_t token_max)
{
    struct h_world *w = s->world;
    uint64_t bytes = 0, before = fail_alloc_live_bytes(&w->fa);
    h_arm(s); /* without memory less is packed */
    H_OK(w, H_CALL(s, TRIM, sc_cache_trim(w->cache, token_max, &bytes)));
    (void)h_disarm(s);
    uint64_t after = fail_alloc_live_bytes(&w->fa);
    h_trace(s, "trim %llu tokens: %llu bytes", (unsigned long long)token_max,
        (unsigned long long)bytes);
    H_CHECK(w, w->threaded || after + bytes == before || (bytes == 0 && after >= before),
        "%llu bytes went back, really %lld", (unsigned long long)bytes,
        (long long)(before - after));
}

void h_op_drain(struct h_sched *s)
{
    uint32_t cap = h_one_in(&s->rng, 3) ? 64 : h_draw(&s->rng, 8);
    h_trace(s, "drain %u: %u", cap, h_drain(s, cap));
    if (h_one_in(&s->rng, 4)) h_trim(s, h_one_in(&s->rng, 2) ? 0 : h_draw(&s->rng, 2000));
}

void h_op_ns_open(struct h_sched *s)
{
    struct h_world *w = s->world;
    struct sc_prng *rng = &s->rng;
    uint32_t index = h_draw(rng, H_NS_MAX);
    struct h_ns *ns = &w->ns[index];
    sc_fingerprint print;
    sc_namespace handle = {0, 0};
    uint64_t id = index / 2, generation = index % 2;
    H_OK(w, sc_schema_fingerprint(w->schema, &print));
    if (h_one_in(rng, 10)) {
        print.bytes[h_draw(rng, 16)] ^= 1;
        sc_status status = H_CALL(s, NS_OPEN,
            sc_namespace_open(w->cache, &print, id, generation, &handle));
        H_CHECK(w, status == SC_ERR_MISMATCH, "other weights: %s", sc_status_name(status));
        return;
    }
    h_arm(s);
    sc_status status = H_CALL(s, NS_OPEN, sc_namespace_open(w->cache,
                                              h_one_in(rng, 2) ? &print : NULL, id, generation,
                                              &handle));
    bool failed = h_disarm(s);
    h_trace(s, "open ns %u: %s", index, sc_status_name(status));
    if (status == SC_ERR_NO_MEMORY && failed) return;
    H_CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    for (uint32_t i = 0; i < H_NS_MAX; i++) {
        bool same = w->ns[i].handle.id == handle.id &&
            w->ns[i].handle.generation == handle.generation;
        H_CHECK(w, !w->ns[i].open || same == (i == index), "namespace %u has the handle of %u",
            index, i);
    }
    if (ns->open) return;
    *ns = (struct h_ns){.open = true, .handle = handle, .root = h_root(id, generation)};
}

void h_op_ns_close(struct h_sched *s)
{
    struct h_world *w = s->world;
    uint32_t index = h_draw(&s->rng, H_NS_MAX);
    if (index == 0 && !h_one_in(&s->rng, 8)) index = H_NS_MAX - 1; /* most prompts are in the 0th */
    struct h_ns *ns = &w->ns[index];
    sc_cache_stats stats = h_stats(s);
    sc_room room = h_room(s);
    sc_status wanted = !ns->open ? SC_ERR_STALE : ns->lease_count > 0 ? SC_ERR_BUSY : SC_OK;
    h_arm(s);
    sc_status status = H_CALL(s, NS_CLOSE, sc_namespace_close(w->cache, ns->handle));
    (void)h_disarm(s);
    h_trace(s, "close ns %u: %s", index, sc_status_name(status));
    bool under_way = stats.transfers_alive > 0 && status == SC_ERR_BUSY;
    H_CHECK(w, status == wanted || (wanted == SC_OK && under_way), "%s, not %s",
        sc_status_name(status), sc_status_name(wanted));
    if (status != SC_OK) {
        h_same(s, &stats, &room, "a refused close");
        return;
    }
    ns->open = false; /* the handle stays, stale */
    w->ns_graves[w->ns_grave_count++ % H_GRAVES_MAX] = ns->handle;
}

static void count_line(void *ctx, const char *line)
{
    uint32_t *lines = ctx;
    if (line) ++*lines;
}

/* Every extent and every byte on disk, where nothing is under way. */
static void verify_store(struct h_sched *s)
{
    struct h_world *w = s->world;
    uint64_t records = 0, faults = 0;
    if (!w->tier.tiers || w->cfg.tier_disk == 0 || w->threaded || !h_one_in(&s->rng, 4)) return;
    if (h_stats(s).transfers_alive > 0) return;
    uint64_t at = w->tier.fail_at;
    w->tier.fail_at = 0; /* another time */
    while (sc_tiers_step(w->tier.tiers, false))
        continue; /* what is dropped goes */
    H_OK(w, sc_tiers_verify(w->tier.tiers, &records, &faults));
    w->tier.fail_at = at;
    H_CHECK(w, faults == 0 || w->tier.damaged, "the store has %u faults", (uint32_t)faults);
    s->totals->tier.verified++;
    s->totals->tier.records += records;
}

void h_op_verify(struct h_sched *s)
{
    struct h_world *w = s->world;
    H_OK(w, H_CALL(s, VERIFY, sc_cache_verify(w->cache)));
    H_OK(w, sc_pool_audit(w->pool, true));
    s->totals->verifies++;
    verify_store(s);
    if (!h_one_in(&s->rng, 10)) return;
    const struct h_ns *ns = &w->ns[h_draw(&s->rng, H_NS_MAX)];
    uint32_t lines = 0;
    sc_status status = H_CALL(s, DUMP, sc_cache_dump(w->cache, ns->handle, count_line, &lines));
    H_CHECK(w, status == (ns->open ? SC_OK : SC_ERR_STALE), "dump: %s", sc_status_name(status));
}
