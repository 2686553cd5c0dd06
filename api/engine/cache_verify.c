/* SPDX-License-Identifier: Apache-2.0 */
/* sc_cache_verify: walks everything and checks the invariants of cache_internal.h by number.
 * O(everything); the tree's own walk allocates. A failure is a fault of this library, never of its
 * caller -- except that ids handed in twice while still inside (a fault of the caller) are not
 * looked for. */
#include <inttypes.h>

#include "tier.h"

#define CHECK(number, cond)                                                                        \
    do {                                                                                           \
        if (!(cond)) return SC_FAIL(SC_ERR_CORRUPT, "invariant (%d): %s", (number), #cond);        \
    } while (0)

/* ---- (2): tree and registry ---- */

struct walk {
    const sc_cache *cache;
    const struct space *space;
    uint64_t snapshots;
    sc_status status;
};

static sc_status check_node(const struct walk *walk, const struct sc_radix_node_info *node)
{
    const sc_cache *cache = walk->cache;
    struct sc_snapshot_info snapshot = {0};
    sc_owner owner = SC_OWNER_FREE;
    CHECK(2, sc_registry_get(cache->registry, node->snapshot, &snapshot) == SC_OK);
    CHECK(2, snapshot.token_count == node->end);
    CHECK(2, snapshot.space == walk->space->radix_space);
    CHECK(2, snapshot.history_count > 0);
    CHECK(2, snapshot.history[snapshot.history_count - 1].end == node->end);
    CHECK(1, sc_pool_check(cache->options.pool, snapshot.slot, &owner) == SC_OK);
    CHECK(1, owner == SC_OWNER_SNAPSHOT);
    if (!cache->options.without_kv) {
        uint64_t hash = sc_engine_history_hash(snapshot.history, snapshot.history_count, node->end);
        CHECK(2, hash == node->history);
    }
    return SC_OK;
}

static bool visit_node(void *ctx, sc_node node, const struct sc_radix_node_info *info,
    const int32_t *tokens, const int32_t *kv_ids, uint32_t page_count)
{
    struct walk *walk = ctx;
    (void)node;
    (void)tokens;
    (void)kv_ids;
    (void)page_count;
    if (info->snapshot == 0) return true;
    walk->snapshots++;
    walk->status = check_node(walk, info);
    return walk->status == SC_OK;
}

static sc_status verify_snapshots(const sc_cache *cache)
{
    uint64_t snapshots = 0;
    for (uint32_t i = 0; i < cache->space_count; i++) {
        if (!cache->spaces[i]) continue;
        struct walk walk = {cache, cache->spaces[i], 0, SC_OK};
        sc_radix_walk(cache->radix, walk.space->radix_space, visit_node, &walk);
        SC_TRY(walk.status);
        snapshots += walk.snapshots;
    }
    CHECK(2, snapshots == sc_registry_count(cache->registry));
    return SC_OK;
}

/* ---- leases ---- */

struct totals {
    uint64_t leases, rows, held, in_flight, saves, space_leases;
    uint64_t working, draining; /* slots */
    struct tier_totals tier;
};

static sc_status check_history(const sc_cache *cache, const struct lease *lease)
{
    uint32_t begin = 0;
    for (uint32_t i = 0; i < lease->history_count; i++) {
        const struct sc_stretch *stretch = &lease->history[i];
        CHECK(8, stretch->end > begin);
        if (i > 0 && stretch->form == stretch[-1].form) {
            bool prefill = stretch->form == SC_FORM_PREFILL;
            CHECK(8, prefill ? begin % cache->chunk_grid != 0 : cache->ring_records > 0);
        }
        begin = stretch->end;
    }
    CHECK(8, begin == lease->len);
    CHECK(8, lease->token_count >= lease->len);
    CHECK(8, lease->token_count <= lease->token_cap);
    CHECK(8, sc_engine_marks_check(
        lease->marks, lease->mark_count, 0, lease->token_count) == SC_OK);
    return SC_OK;
}

static bool same_slot(sc_slot a, sc_slot b)
{
    return a.id == b.id && a.generation == b.generation;
}

/* Its own slot. */
static sc_status check_own(const sc_cache *cache, const struct lease *lease, sc_slot slot,
    struct totals *totals)
{
    sc_owner owner = SC_OWNER_FREE;
    CHECK(1, sc_pool_check(cache->options.pool, slot, &owner) == SC_OK);
    CHECK(1, owner == sc_engine_lease_owner(lease));
    totals->draining += lease->draining;
    totals->working += !lease->draining;
    return SC_OK;
}

static sc_status check_in_flight(const sc_cache *cache, sc_slot slot, struct totals *totals)
{
    sc_owner owner = SC_OWNER_FREE;
    CHECK(1, sc_pool_check(cache->options.pool, slot, &owner) == SC_OK);
    CHECK(1, owner == SC_OWNER_IN_FLIGHT);
    totals->in_flight++;
    return SC_OK;
}

static sc_status check_slots(const sc_cache *cache, const struct lease *lease,
    struct totals *totals)
{
    SC_TRY(check_own(cache, lease, lease->working, totals));
    if (lease->retired) SC_TRY(check_own(cache, lease, lease->source, totals));
    CHECK(3, !lease->retired || !lease->pinned);
    CHECK(1, lease->held_count == 0 || (lease->overrun && lease->flights > 0));
    CHECK(1, lease->held_count <= SC_DEPTH_MAX);
    for (uint32_t i = 0; i < lease->held_count; i++) {
        SC_TRY(check_in_flight(cache, lease->held[i], totals));
    }
    if (cache->options.extras) {
        sc_owner owner = SC_OWNER_FREE;
        CHECK(1, sc_pool_check(cache->options.extras, lease->extra, &owner) == SC_OK);
        CHECK(1, owner == SC_OWNER_WORKING && !lease->extra_kept);
    }
    return SC_OK;
}

static sc_status check_source(const sc_cache *cache, const struct lease *lease)
{
    sc_node node = SC_NODE_NONE;
    uint32_t what = 0;
    CHECK(10, sc_radix_receipt_get(cache->radix, lease->pin, &node, &what) == SC_OK);
    if (!lease->pinned) {
        CHECK(3, node == SC_NODE_NONE);
        if (lease->retired) return SC_OK;
        CHECK(3, lease->source.id == (lease->len == 0 ? 0 : lease->working.id));
        CHECK(3, lease->ring_from.id == 0 && lease->records <= cache->ring_records);
        return SC_OK;
    }
    struct sc_radix_node_info info;
    struct sc_snapshot_info snapshot;
    CHECK(3, what == SC_RADIX_LOCK_STATE);
    CHECK(3, sc_radix_node_get(cache->radix, node, &info) == SC_OK);
    CHECK(3, info.end == lease->len);
    CHECK(3, sc_registry_get(cache->registry, info.snapshot, &snapshot) == SC_OK);
    CHECK(3, same_slot(snapshot.slot, lease->source));
    CHECK(3, same_slot(snapshot.extra, lease->ring_from));
    CHECK(3, snapshot.records == lease->records);
    CHECK(3, lease->tail_kv < 0 || info.end % cache->page != 0);
    return SC_OK;
}

/* From what is committed the rows in flight lead, in order, to what is issued. */
static sc_status check_chain(const sc_cache *cache, const struct lease *lease)
{
    if (lease->lost || lease->overrun) return SC_OK;
    sc_slot source = lease->source, dest = lease->working;
    uint32_t from = lease->len, from_max = lease->len, flights = 0;
    for (const struct step *before = NULL, *step = NULL;; before = step) {
        step = NULL;
        for (uint32_t i = 0; i < cache->options.depth_max; i++) {
            const struct step *other = &cache->steps[i];
            if (lease->row[i] == NO_ROW || (before && other->number <= before->number)) continue;
            if (!step || other->number < step->number) step = other;
        }
        if (!step) break;
        const struct step_row *row = &step->rows[lease->row[step - cache->steps]];
        CHECK(3, same_slot(row->source, source) && same_slot(row->dest, dest));
        CHECK(3, row->from <= from && from_max <= row->from_max);
        source = row->dest;
        if (row->freeze_kind != SC_KIND_NONE) dest = row->freeze;
        from += row->certain;
        from_max += row->end - row->from_max;
        flights++;
    }
    CHECK(3, same_slot(source, lease->next_source) && same_slot(dest, lease->next_dest));
    CHECK(3, from == lease->issued_len && from_max == lease->issued_max);
    CHECK(9, flights == lease->flights);
    return SC_OK;
}

static sc_status check_path(const sc_cache *cache, const struct lease *lease)
{
    sc_node node = SC_NODE_NONE;
    uint32_t what = 0;
    CHECK(10, sc_radix_receipt_get(cache->radix, lease->path, &node, &what) == SC_OK);
    if (lease->inserted_len == 0) {
        CHECK(6, node == SC_NODE_NONE);
        return SC_OK;
    }
    struct sc_radix_node_info info;
    CHECK(6, sc_radix_node_get(cache->radix, node, &info) == SC_OK);
    CHECK(6, info.end == lease->inserted_len);
    CHECK(6, info.space == lease->space->radix_space);
    CHECK(6, what == SC_RADIX_LOCK_KV);
    if (!cache->options.without_kv) {
        uint64_t hash = sc_engine_history_hash(lease->history, lease->history_count, info.end);
        CHECK(6, info.history == hash);
    }
    return SC_OK;
}

static sc_status check_kv(const sc_cache *cache, const struct lease *lease, struct totals *totals)
{
    if (cache->options.without_kv) {
        CHECK(7, lease->kv_count == 0 && lease->kv_base == 0);
        return SC_OK;
    }
    CHECK(7, lease->kv_base + lease->kv_count == lease->len / cache->page);
    CHECK(4, lease->end_tail < 0 || lease->draining);
    totals->held += lease->end_tail >= 0;
    for (uint32_t i = 0; i < lease->kv_count; i++) {
        bool inserted = lease->kv_base + i < lease->inserted_len / cache->page;
        CHECK(4, inserted == (lease->kv_owner[i] != KV_HELD));
        totals->held += lease->kv_owner[i] != KV_TREE;
    }
    return SC_OK;
}

static sc_status check_membership(const sc_cache *cache, const struct lease *lease,
    struct totals *totals)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < SC_DEPTH_MAX; i++) {
        if (lease->row[i] == NO_ROW) continue;
        CHECK(9, i < cache->options.depth_max && cache->steps[i].in_flight);
        CHECK(9, lease->row[i] < cache->steps[i].row_count);
        CHECK(9, cache->steps[i].rows[lease->row[i]].lease == lease);
        rows++;
    }
    CHECK(9, rows == lease->flights);
    CHECK(9, lease->flights <= lease->depth && lease->depth <= cache->options.depth_max);
    CHECK(9, lease->flights > 0 || !lease->draining);
    CHECK(9, lease->flights == 0 || !lease->waiting);
    totals->rows += rows;
    return SC_OK;
}

static sc_status verify_leases(const sc_cache *cache, struct totals *totals)
{
    for (const struct lease *lease = cache->leases; lease; lease = lease->hh.next) {
        totals->leases++;
        SC_TRY(check_history(cache, lease));
        SC_TRY(check_slots(cache, lease, totals));
        SC_TRY(check_source(cache, lease));
        SC_TRY(check_chain(cache, lease));
        SC_TRY(check_path(cache, lease));
        SC_TRY(check_kv(cache, lease, totals));
        SC_TRY(check_membership(cache, lease, totals));
        CHECK(9, sc_engine_space(cache, (sc_namespace){lease->space->id,
            lease->space->generation}) == lease->space);
    }
    for (uint32_t i = 0; i < cache->space_count; i++) {
        if (cache->spaces[i]) totals->space_leases += cache->spaces[i]->lease_count;
    }
    CHECK(9, totals->leases == cache->lease_count);
    CHECK(9, totals->space_leases == cache->lease_count);
    return SC_OK;
}

/* ---- the rest ---- */

static sc_status verify_step(const sc_cache *cache, const struct step *step,
    struct totals *totals)
{
    uint32_t granted = 0;
    if (!step->in_flight) return SC_OK;
    CHECK(9, step->number <= cache->step_newest && step->plan <= cache->plan_count);
    for (uint32_t i = 0; i < step->save_count; i++) {
        SC_TRY(check_in_flight(cache, step->saves[i].slot, totals));
    }
    totals->saves += step->save_count;
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct step_row *row = &step->rows[i];
        granted += row->lease != NULL;
        if (!row->lease || row->freeze_kind == SC_KIND_NONE) continue;
        SC_TRY(check_in_flight(cache, row->freeze, totals));
        totals->saves++;
    }
    CHECK(9, granted == step->granted_count);
    totals->rows -= granted; /* of the leases': none is left in the end */
    return SC_OK;
}

static sc_status verify_steps(const sc_cache *cache, struct totals *totals)
{
    for (uint32_t i = 0; i < cache->options.depth_max; i++) {
        SC_TRY(verify_step(cache, &cache->steps[i], totals));
    }
    CHECK(9, totals->rows == 0);
    return SC_OK;
}

static sc_status verify_pins(const sc_cache *cache)
{
    for (uint32_t i = 0; i < cache->pin_count; i++) {
        const struct pin *pin = &cache->pins[i];
        sc_node node = SC_NODE_NONE;
        uint32_t what = 0;
        CHECK(10, sc_radix_receipt_get(cache->radix, pin->receipt, &node, &what) == SC_OK);
        CHECK(10, pin->holds == (what == SC_RADIX_LOCK_STATE));
        CHECK(10, pin->holds || pin->lease);
        CHECK(10, pin->until_ns > cache->now_ns && pin->until_ns >= cache->pin_next_ns);
    }
    return SC_OK;
}

static void count_records(void *ctx, uint32_t snapshot, const struct sc_snapshot_info *info)
{
    (void)snapshot;
    *(uint64_t *)ctx += info->extra.id != 0;
}

static sc_status verify_pools(const sc_cache *cache, const struct totals *totals)
{
    sc_pool_info info;
    SC_TRY(sc_pool_audit(cache->options.pool, false));
    SC_TRY(sc_pool_info_get(cache->options.pool, &info));
    CHECK(1, info.owner_count[SC_OWNER_WORKING] == totals->working);
    CHECK(1, info.owner_count[SC_OWNER_DRAINING] == totals->draining);
    CHECK(1, info.owner_count[SC_OWNER_IN_FLIGHT] == totals->in_flight + totals->tier.slots);
    CHECK(1, info.owner_count[SC_OWNER_SNAPSHOT] == sc_registry_count(cache->registry));
    if (!cache->options.extras) return SC_OK;
    SC_TRY(sc_pool_audit(cache->options.extras, false));
    SC_TRY(sc_pool_info_get(cache->options.extras, &info));
    uint64_t with_records = 0;
    sc_registry_each(cache->registry, count_records, &with_records);
    CHECK(1, info.owner_count[SC_OWNER_SNAPSHOT] == with_records);
    CHECK(1, info.slot_count - info.free_count == totals->leases + with_records);
    return SC_OK;
}

static sc_status verify_counters(const sc_cache *cache, const struct totals *totals)
{
    struct sc_radix_stats tree;
    const sc_cache_stats *stats = &cache->stats;
    sc_radix_stats_get(cache->radix, &tree);
    CHECK(10, tree.receipt_count ==
        2 * totals->leases + cache->pin_count + totals->tier.receipts);
    uint64_t in_tree = (tree.token_count - tree.tail_tokens) / cache->page + tree.tail_count;
    if (cache->options.without_kv) in_tree = 0;
    CHECK(4, cache->kv_held == totals->held + totals->tier.held);
    CHECK(4, cache->kv_inside == in_tree + cache->kv_held + cache->drain.count);
    CHECK(5, cache->drain.cap >= cache->kv_inside);
    CHECK(11, stats->pages_in == cache->kv_inside + stats->pages_out);
    uint64_t skipped = 0, evicted = 0;
    for (uint32_t i = 0; i < SC_SKIP_COUNT; i++) skipped += stats->saves_skipped[i];
    CHECK(11, stats->saves_planned == stats->saves_published + skipped + totals->saves);
    for (uint32_t i = 0; i < SC_EVICT_COUNT; i++) evicted += stats->evicted[i];
    CHECK(11, stats->saves_published + stats->restored ==
        evicted + sc_registry_count(cache->registry));
    CHECK(11, stats->acquired == stats->released + totals->leases);
    return SC_OK;
}

sc_status sc_cache_verify(const sc_cache *cache)
{
    SC_REQUIRE(cache);
    struct totals totals = {0};
    sc_rwlock_lock_shared(&cache->lock);
    sc_status status = sc_radix_verify(cache->radix);
    if (status == SC_OK) status = verify_snapshots(cache);
    if (status == SC_OK) status = verify_leases(cache, &totals);
    if (status == SC_OK) status = verify_steps(cache, &totals);
    if (status == SC_OK) status = sc_engine_tier_verify(cache, &totals.tier);
    if (status == SC_OK) status = verify_pools(cache, &totals);
    if (status == SC_OK) status = verify_pins(cache);
    if (status == SC_OK && cache->policy) status = sc_policy_verify(cache->policy);
    if (status == SC_OK) status = verify_counters(cache, &totals);
    sc_rwlock_unlock_shared(&cache->lock);
    SC_TRY(status);
    /* The null slot is read from the device: without the lock. Nobody ever writes it. */
    SC_TRY(sc_pool_audit(cache->options.pool, true));
    return cache->options.extras ? sc_pool_audit(cache->options.extras, true) : SC_OK;
}
