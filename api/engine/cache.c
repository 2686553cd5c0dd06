/* SPDX-License-Identifier: Apache-2.0 */
/* Creation and destruction, look-up, statistics. What the parts are and how they hang together is
 * drawn in cache_internal.h. */
#include <string.h>

#include "base/log.h"
#include "base/options.h"
#include "pool/pool_internal.h"
#include "tier.h"

const char *sc_reason_text(sc_reason reason)
{
    switch (reason) {
#define SC_REASON_CASE(name, value, text)                                                          \
    case name:                                                                                     \
        return text;
        SC_REASON_LIST(SC_REASON_CASE)
#undef SC_REASON_CASE
    case SC_REASON_COUNT:
        break;
    }
    return "unknown reason";
}

/* ---- creation ---- */

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
    return value ? value : otherwise;
}

/* Copies what the caller's version of the struct has, fills in defaults, checks. */
static sc_status options_resolve(const sc_cache_options *given, sc_cache_options *options)
{
    *options = (sc_cache_options)SC_CACHE_OPTIONS_INIT;
    SC_TRY(sc_options_resolve(given, offsetof(sc_cache_options, extras), options,
        sizeof *options));
    options->row_max = or_default(options->row_max, 256);
    options->save_max = or_default(options->save_max, 256);
    options->lease_max = or_default(options->lease_max, 1024);
    options->lease_token_max = or_default(options->lease_token_max, 1u << 20);
    SC_REQUIRE(options->pool);
    SC_REQUIRE(options->extras != options->pool);
    SC_REQUIRE(options->page_tokens >= 1 && options->page_tokens <= 1u << 20);
    SC_REQUIRE(options->row_max <= 1u << 20);
    SC_REQUIRE(options->save_max <= 1u << 20);
    SC_REQUIRE(options->lease_max <= INT32_MAX);
    SC_REQUIRE(options->lease_token_max <= INT32_MAX);
    SC_REQUIRE((options->save_flags & ~(uint32_t)SC_SAVE_DEFAULT) == 0);
    SC_REQUIRE(options->decode_interval % options->page_tokens == 0);
    options->depth_max = or_default(options->depth_max, 1);
    SC_REQUIRE(options->depth_max <= SC_DEPTH_MAX);
    SC_REQUIRE(options->draft_max <= 1024);
    SC_REQUIRE((uint64_t)options->row_max * options->draft_max <= 1u << 24);
    const double numbers[] = {options->flops_per_token, options->flops_per_token2,
        options->kv_token_bytes, options->policy_alpha};
    for (uint32_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        SC_REQUIRE(isfinite(numbers[i]) && numbers[i] >= 0);
    }
    SC_REQUIRE(options->policy_blocks <= 1u << 28);
    SC_REQUIRE(options->policy_interval <= 1u << 30);
    return SC_OK;
}

static sc_status check_unused(const sc_pool *pool, const char *what)
{
    sc_pool_info info;
    SC_TRY(sc_pool_info_get(pool, &info));
    if (info.free_count == info.slot_count) return SC_OK;
    return SC_FAIL(SC_ERR_BUSY, "the %s pool has %u slots taken", what,
        info.slot_count - info.free_count);
}

static sc_status create_index(sc_cache *cache)
{
    const sc_schema *schema = NULL;
    const sc_allocator *allocator = cache->options.allocator;
    SC_TRY(sc_pool_schema(cache->options.pool, &schema));
    SC_TRY(sc_schema_fingerprint(schema, &cache->fingerprint));
    SC_TRY(sc_schema_grid(schema, cache->page, &cache->grid));
    SC_TRY(sc_schema_grid(schema, 1, &cache->chunk_grid));
    struct sc_radix_options radix = {
        .allocator = allocator,
        .page_tokens = cache->page,
        .grid_tokens = cache->grid,
        .path_snapshots_max = cache->options.path_snapshots_max,
        .with_kv = !cache->options.without_kv,
        .token_max = cache->options.token_max,
    };
    SC_TRY(sc_radix_create(&radix, &cache->radix));
    return sc_registry_create(allocator, &cache->registry);
}

static sc_status create_arrays(sc_cache *cache)
{
    size_t saves = cache->options.save_max + 1u;
    SC_TRY(sc_engine_step_init(cache));
    cache->scratch_saves = sc_heap_calloc(&cache->heap, saves, sizeof *cache->scratch_saves);
    cache->scratch_status = sc_heap_calloc(&cache->heap, saves, sizeof *cache->scratch_status);
    cache->scratch_order = sc_heap_calloc(&cache->heap, saves, sizeof *cache->scratch_order);
    cache->scratch_publish = sc_heap_calloc(&cache->heap, saves, sizeof *cache->scratch_publish);
    cache->scratch_nodes = sc_heap_calloc(&cache->heap, saves, sizeof *cache->scratch_nodes);
    if (!cache->scratch_saves || !cache->scratch_status || !cache->scratch_order ||
        !cache->scratch_publish || !cache->scratch_nodes) {
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %zu saves", saves);
    }
    return SC_OK;
}

/* Frees what a cache has got so far, except its hold on the pools. */
static void cache_free(sc_cache *cache)
{
    size_t saves = cache->options.save_max + 1u;
    struct sc_heap *heap = &cache->heap;
    sc_engine_tier_free(cache);
    sc_engine_spaces_free(cache);
    sc_policy_destroy(cache->policy);
    sc_kernels_destroy(cache->kernels);
    if (cache->registry) sc_registry_destroy(cache->registry);
    if (cache->radix) sc_radix_destroy(cache->radix);
    sc_engine_step_free(cache);
    sc_engine_ring_free(cache);
    sc_engine_events_free(cache);
    sc_engine_record_free(cache);
    sc_heap_free(heap, cache->scratch_ids, cache->scratch_ids_cap * sizeof *cache->scratch_ids);
    sc_heap_free(heap, cache->scratch_runs, cache->scratch_runs_cap * sizeof *cache->scratch_runs);
    sc_heap_free(heap, cache->scratch_saves, saves * sizeof *cache->scratch_saves);
    sc_heap_free(heap, cache->scratch_status, saves * sizeof *cache->scratch_status);
    sc_heap_free(heap, cache->scratch_order, saves * sizeof *cache->scratch_order);
    sc_heap_free(heap, cache->scratch_publish, saves * sizeof *cache->scratch_publish);
    sc_heap_free(heap, cache->scratch_nodes, saves * sizeof *cache->scratch_nodes);
    sc_heap_free(heap, cache->scratch_hashes,
        cache->scratch_hashes_cap * sizeof *cache->scratch_hashes);
    sc_heap_free(heap, cache->pins, cache->pin_cap * sizeof *cache->pins);
    sc_heap_free(heap, cache->pending, cache->pending_cap * sizeof *cache->pending);
    sc_heap_free(heap, cache->drain.ids, cache->drain.cap * sizeof *cache->drain.ids);
    struct sc_heap own = cache->heap;
    sc_heap_free(&own, cache, sizeof *cache);
}

static void log_created(const sc_cache *cache)
{
    if (!sc_log_enabled(SC_LOG_INFO)) return;
    struct sc_log_builder log = SC_LOG_BUILDER_INIT;
    sc_log_add(&log, "page", "%u", cache->page);
    sc_log_add(&log, "grid", "%u", cache->grid);
    sc_log_add(&log, "rows", "%u", cache->options.row_max);
    sc_log_add(&log, "leases", "%u", cache->options.lease_max);
    sc_log_add(&log, "decode_interval", "%u", cache->decode_interval);
    sc_log_add(&log, "policy", "%s", cache->options.policy);
    sc_log_send(&log, SC_LOG_INFO, "cache.created");
}

static sc_status hold_pools(sc_cache *cache)
{
    sc_pool *pool = cache->options.pool, *extras = cache->options.extras;
    SC_TRY(sc_pool_hold(pool));
    sc_status status = check_unused(pool, "state");
    bool held = false;
    if (status == SC_OK && extras) {
        status = sc_pool_hold(extras);
        held = status == SC_OK;
        if (held) status = check_unused(extras, "extras");
    }
    if (status == SC_OK) return SC_OK;
    if (held) sc_pool_unhold(extras);
    sc_pool_unhold(pool);
    return status;
}

static void unhold_pools(sc_cache *cache)
{
    sc_pool_unhold(cache->options.pool);
    if (cache->options.extras) sc_pool_unhold(cache->options.extras);
}

sc_status sc_cache_create(const sc_cache_options *options, sc_cache **cache_out)
{
    SC_REQUIRE(options);
    SC_REQUIRE(cache_out);
    sc_cache_options resolved;
    struct sc_heap heap;
    SC_TRY(options_resolve(options, &resolved));
    SC_TRY(sc_heap_init(&heap, SC_SUBSYSTEM_ENGINE, resolved.allocator));
    sc_cache *cache = sc_heap_calloc(&heap, 1, sizeof *cache);
    if (!cache) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a cache");
    cache->heap = heap;
    cache->options = resolved;
    cache->page = resolved.page_tokens;
    cache->decode_interval = resolved.decode_interval;
    if (cache->decode_interval == 0 && cache->page > 1) cache->decode_interval = cache->page;
    sc_status status = create_index(cache);
    if (status == SC_OK) status = sc_engine_policy_create(cache);
    if (status == SC_OK) status = create_arrays(cache);
    if (status == SC_OK) status = sc_engine_ring_create(cache);
    if (status == SC_OK) status = sc_engine_events_create(cache);
    if (status == SC_OK) status = sc_engine_kernels_create(cache);
    if (status == SC_OK) status = sc_engine_record_room(cache, 0);
    if (status == SC_OK) status = sc_rwlock_init(&cache->lock, SC_RANK_ENGINE);
    if (status != SC_OK) {
        cache_free(cache);
        return status;
    }
    status = hold_pools(cache);
    bool held = status == SC_OK;
    if (held) status = sc_engine_tier_create(cache);
    if (status != SC_OK) {
        if (held) unhold_pools(cache);
        sc_rwlock_deinit(&cache->lock);
        cache_free(cache);
        return status;
    }
    status = sc_engine_record_created(cache);
    SC_ASSERT(status == SC_OK); /* there is room */
    cache->options.allocator = NULL; /* the caller's struct may go; heaps have copies */
    log_created(cache);
    *cache_out = cache;
    return SC_OK;
}

static void free_snapshot(void *ctx, uint32_t snapshot, const struct sc_snapshot_info *info)
{
    sc_cache *cache = ctx;
    (void)snapshot;
    sc_engine_slot_free(cache->options.pool, info->slot);
    sc_engine_ring_gone(cache, info->extra);
}

sc_status sc_cache_destroy(sc_cache *cache)
{
    if (!cache) return SC_OK;
    sc_rwlock_lock(&cache->lock);
    uint32_t leases = cache->lease_count;
    sc_rwlock_unlock(&cache->lock);
    if (leases > 0) return SC_FAIL(SC_ERR_BUSY, "%u leases are alive", leases);
    SC_TRY(sc_engine_tier_unbind(cache));
    sc_registry_each(cache->registry, free_snapshot, cache);
    sc_engine_tier_free(cache);
    unhold_pools(cache);
    sc_rwlock_deinit(&cache->lock);
    cache_free(cache);
    return SC_OK;
}

/* ---- look-up ---- */

static sc_status lookup_one(const sc_cache *cache, const sc_key *key, sc_answer *answer)
{
    uint32_t len_max = 0;
    SC_TRY(sc_engine_key_check(cache, key, &len_max));
    struct sc_radix_match match;
    const struct space *space = sc_engine_space(cache, key->ns);
    const struct sc_radix_key path = {key->tokens, key->token_count, key->marks, key->mark_count};
    SC_TRY(sc_radix_match(cache->radix, space->radix_space, &path, len_max, &match));
    answer->kv_len = cache->options.without_kv ? match.state_len : match.kv_len;
    answer->branch_len = match.branch_len;
    answer->state_len[SC_TIER_DEVICE] = match.state_len;
    uint32_t beyond =
        sc_engine_state_beyond(cache, &path, space->radix_space, &match, len_max);
    answer->reason = sc_engine_reason(cache, &match, len_max, beyond);
    answer->pending_len = sc_engine_pending_find(cache, space, key, match.state_len, len_max,
        &answer->pending_step);
    if (answer->pending_len > 0) answer->reason = SC_REASON_PENDING;
    sc_engine_tier_answer(cache, space, &path, &match, len_max, answer);
    return SC_OK;
}

/* The first steps of the next look-up wait for memory; they may do so during this one. */
static void prefetch_key(const sc_cache *cache, const sc_key *key)
{
    const struct space *space = sc_engine_space(cache, key->ns);
    const struct sc_radix_key path = {key->tokens, key->token_count, key->marks, key->mark_count};
    if (space) sc_radix_prefetch(cache->radix, space->radix_space, &path);
}

sc_status sc_cache_lookup(const sc_cache *cache, const sc_key *keys, uint32_t count,
    sc_answer *answers_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE((keys && answers_out) || count == 0);
    sc_rwlock_lock_shared(&cache->lock);
    for (uint32_t i = 0; i < count; i++) {
        answers_out[i] = (sc_answer){0};
        if (i + 1 < count) prefetch_key(cache, &keys[i + 1]);
        answers_out[i].status = lookup_one(cache, &keys[i], &answers_out[i]);
    }
    sc_rwlock_unlock_shared(&cache->lock);
    return SC_OK;
}

/* ---- numbers ---- */

void sc_engine_room(const sc_cache *cache, sc_room *room_out)
{
    sc_pool_info pool;
    struct sc_radix_stats tree;
    sc_radix_stats_get(cache->radix, &tree);
    sc_status status = sc_pool_info_get(cache->options.pool, &pool);
    SC_ASSERT(status == SC_OK);
    *room_out = (sc_room){
        .slots_free = pool.free_count,
        .slots_evictable = (uint32_t)tree.state_evictable_count,
        .slots_held = pool.owner_count[SC_OWNER_WORKING] +
            pool.owner_count[SC_OWNER_IN_FLIGHT] + (uint32_t)tree.state_locked_count,
        .slots_draining = pool.owner_count[SC_OWNER_DRAINING],
        .pages_cached = (tree.token_count - tree.tail_tokens) / cache->page + tree.tail_count,
        .pages_evictable = tree.kv_evictable_tokens / cache->page,
        .pages_held = cache->kv_held,
        .pages_drainable = cache->drain.count,
    };
}

sc_status sc_cache_room(const sc_cache *cache, sc_room *room_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(room_out);
    sc_rwlock_lock_shared(&cache->lock);
    sc_engine_room(cache, room_out);
    sc_rwlock_unlock_shared(&cache->lock);
    return SC_OK;
}

static void tier_stats(const sc_cache *cache, sc_cache_stats *stats)
{
    const struct tier *tier = cache->tier;
    uint64_t below = 0, tokens_below = 0;
    for (uint32_t t = TIER_FIRST; t < SC_TIER_COUNT; t++) {
        below += stats->resumed_by_tier[t];
        tokens_below += stats->tokens_hit_by_tier[t];
    }
    /* Nobody knows yet from which tier those who wait will resume; a counter never goes back. */
    if (tier) below += tier->waiting_hits;
    /* A lease that was taken back (sc_engine_lease_undo) may have been extended meanwhile. */
    stats->resumed_by_tier[SC_TIER_DEVICE] = stats->resumed > below ? stats->resumed - below : 0;
    stats->tokens_hit_by_tier[SC_TIER_DEVICE] =
        stats->tokens_hit > tokens_below ? stats->tokens_hit - tokens_below : 0;
    if (!tier) return;
    stats->tier_records = tier->record_count;
    stats->transfers_alive = tier->transfer_count;
    for (uint32_t t = TIER_FIRST; t < TIER_END; t++) stats->tier_bytes[t] = tier->used[t];
}

sc_status sc_cache_stats_get(const sc_cache *cache, sc_cache_stats *stats_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(stats_out);
    size_t bytes = stats_out->struct_size, most = 1u << 16;
    if (bytes <= sizeof(size_t) || bytes > most) {
        return SC_FAIL(SC_ERR_INVALID, "struct_size %zu, this version has %zu and fills %zu to %zu",
            bytes, sizeof *stats_out, sizeof(size_t) + 1, most);
    }
    sc_rwlock_lock_shared(&cache->lock);
    sc_cache_stats stats = cache->stats;
    struct sc_radix_stats tree;
    sc_radix_stats_get(cache->radix, &tree);
    stats.struct_size = bytes;
    stats.leases_alive = cache->lease_count;
    stats.snapshots_alive = tree.snapshot_count;
    stats.nodes = tree.node_count;
    stats.tokens_cached = tree.token_count;
    stats.tails_alive = tree.tail_count;
    struct sc_policy_stats policy = {0};
    sc_policy_stats_get(cache->policy, &policy);
    stats.pins_alive = cache->pin_count;
    stats.policy_refits = policy.refits;
    stats.policy_bytes = policy.bytes;
    tier_stats(cache, &stats);
    sc_rwlock_unlock_shared(&cache->lock);
    memset(stats_out, 0, bytes);
    memcpy(stats_out, &stats, bytes < sizeof stats ? bytes : sizeof stats);
    return SC_OK;
}

sc_status sc_cache_dump(const sc_cache *cache, sc_namespace ns,
    void (*write)(void *ctx, const char *line), void *ctx)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(write);
    sc_rwlock_lock_shared(&cache->lock);
    struct space *space = sc_engine_space(cache, ns);
    sc_status status = space
        ? sc_radix_dump(cache->radix, space->radix_space, write, ctx)
        : SC_FAIL(SC_ERR_STALE, "namespace %u/%u is not open", ns.id, ns.generation);
    sc_rwlock_unlock_shared(&cache->lock);
    return status;
}
