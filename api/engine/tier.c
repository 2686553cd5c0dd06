/* SPDX-License-Identifier: Apache-2.0 */
/* Creation and end of what the engine knows of tiers (tier.h), and their namespaces. */
#include "tier.h"

#include <string.h>

static sc_status check_options(const sc_cache_options *options)
{
    const sc_kv_mover *mover = options->kv_mover;
    SC_REQUIRE(options->tiers || !mover);
    if (!mover) return SC_OK;
    SC_REQUIRE(!options->without_kv);
    SC_REQUIRE(mover->page_bytes > 0 && mover->page_bytes <= (uint64_t)1 << 40);
    SC_REQUIRE(mover->alloc && mover->read && mover->write);
    return SC_OK;
}

static sc_status directory_create(sc_cache *cache, struct tier *tier)
{
    struct sc_radix_options radix = {
        .allocator = cache->options.allocator,
        .page_tokens = cache->page,
        .grid_tokens = cache->grid,
        .with_kv = false,
    };
    return sc_radix_create(&radix, &tier->radix);
}

sc_status sc_engine_tier_create(sc_cache *cache)
{
    const sc_cache_options *options = &cache->options;
    SC_TRY(check_options(options));
    if (!options->tiers) return SC_OK;
    struct tier *tier = sc_heap_calloc(&cache->heap, 1, sizeof *tier);
    if (!tier) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for tiers");
    tier->table = options->tiers->table;
    tier->options = &options->tiers->options;
    tier->report_end = &tier->report;
    tier->has_mover = options->kv_mover != NULL;
    if (tier->has_mover) tier->mover = *options->kv_mover;
    cache->tier = tier;
    SC_TRY(directory_create(cache, tier));
    const struct sc_tier_bind bind = {options->pool, tier->has_mover ? &tier->mover : NULL,
        cache->fingerprint, cache->page};
    SC_TRY(tier->table->bind(options->tiers, &bind, tier->state_bytes));
    tier->tiers = options->tiers;
    tier->bytes_max[SC_TIER_HOST] = tier->options->host.bytes;
    tier->bytes_max[SC_TIER_DISK] = tier->options->disk.bytes;
    tier->count_max[SC_TIER_HOST] = tier->options->entry_max;
    tier->bytes_max[SC_TIER_REMOTE] = tier->options->remote.bytes;
    tier->count_max[SC_TIER_DISK] = UINT32_MAX;
    tier->count_max[SC_TIER_REMOTE] = tier->options->entry_max;
    return sc_engine_tier_load(cache);
}

sc_status sc_engine_tier_unbind(sc_cache *cache)
{
    struct tier *tier = cache->tier;
    if (!tier || !tier->tiers) return SC_OK;
    SC_TRY(tier->table->unbind(tier->tiers));
    tier->tiers = NULL;
    return SC_OK;
}

void sc_engine_tier_free(sc_cache *cache)
{
    struct tier *tier = cache->tier;
    struct sc_heap *heap = &cache->heap;
    if (!tier) return;
    sc_status status = sc_engine_tier_unbind(cache);
    SC_ASSERT(status == SC_OK); /* sc_cache_destroy has asked before; a new cache has no moves */
    while (tier->transfers) {
        struct transfer *transfer = tier->transfers;
        if (transfer->slot.id) sc_engine_slot_free(cache->options.pool, transfer->slot);
        sc_tier_transfer_free(cache, transfer);
    }
    for (uint32_t id = 1; id <= tier->record_end; id++) {
        struct tier_record *record = sc_tier_record(tier, id);
        if (!record) continue;
        sc_tier_link(cache, record, 0, SC_NODE_NONE);
        sc_heap_free(heap, record->history, record->history_count * sizeof *record->history);
        sc_heap_free(heap, record, sizeof *record);
    }
    for (uint32_t t = TIER_FIRST; t < TIER_END; t++) {
        sc_heap_free(heap, tier->order[t], tier->record_cap * sizeof *tier->order[t]);
    }
    sc_heap_free(heap, tier->records, tier->record_cap * sizeof(struct tier_record *));
    sc_heap_free(heap, tier->free_ids, tier->record_cap * sizeof *tier->free_ids);
    sc_heap_free(heap, tier->spaces, tier->space_cap * sizeof *tier->spaces);
    if (tier->radix) sc_radix_destroy(tier->radix);
    sc_heap_free(heap, tier, sizeof *tier);
    cache->tier = NULL;
}

/* ---- namespaces ---- */

sc_status sc_engine_tier_space_open(sc_cache *cache, uint64_t adapter_id, uint64_t generation,
    uint32_t *space_out)
{
    struct tier *tier = cache->tier;
    uint32_t free_at = UINT32_MAX;
    if (!tier) return SC_OK;
    for (uint32_t i = 0; i < tier->space_count; i++) {
        const struct tier_space *space = &tier->spaces[i];
        *space_out = i;
        if (space->radix_space == 0) {
            if (free_at == UINT32_MAX) free_at = i;
        } else if (space->adapter_id == adapter_id && space->adapter_generation == generation) {
            return SC_OK;
        }
    }
    if (free_at == UINT32_MAX && tier->space_count == tier->space_cap) {
        uint32_t cap = tier->space_cap ? tier->space_cap * 2 : 8;
        struct tier_space *spaces = sc_heap_realloc(&cache->heap, tier->spaces,
            tier->space_cap * sizeof *spaces, cap * sizeof *spaces);
        if (!spaces) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u namespaces", cap);
        tier->spaces = spaces;
        tier->space_cap = cap;
    }
    uint32_t radix_space = 0;
    SC_TRY(sc_radix_space_add(tier->radix, &radix_space));
    if (free_at == UINT32_MAX) free_at = tier->space_count++;
    tier->spaces[free_at] = (struct tier_space){adapter_id, generation, radix_space};
    *space_out = free_at;
    return SC_OK;
}

sc_status sc_engine_tier_space_check(const sc_cache *cache, const struct space *space)
{
    const struct tier *tier = cache->tier;
    if (!tier) return SC_OK;
    for (const struct transfer *transfer = tier->transfers; transfer;
         transfer = transfer->hh.next) {
        const struct tier_record *record = sc_tier_record(tier, transfer->record);
        if (record->space != space->tier_space) continue;
        return SC_FAIL(SC_ERR_BUSY, "namespace %u: the transfer with ticket %llu is not applied",
            space->id, (unsigned long long)transfer->ticket);
    }
    return SC_OK;
}

static void sink_nothing(void *ctx, uint32_t snapshot, enum sc_radix_cause cause)
{
    (void)ctx;
    (void)snapshot;
    (void)cause;
}

void sc_engine_tier_space_close(sc_cache *cache, const struct space *space)
{
    struct tier *tier = cache->tier;
    const struct sc_radix_sink sink = {NULL, NULL, sink_nothing};
    if (!tier) return;
    for (uint32_t id = 1; id <= tier->record_end; id++) {
        struct tier_record *record = sc_tier_record(tier, id);
        if (!record || record->space != space->tier_space) continue;
        record->children = record->disk_children = 0; /* they all go */
        record->parent = 0;
        for (uint32_t t = TIER_FIRST; t < TIER_END; t++) {
            if (record->copies & 1u << t) sc_tier_copy_drop(cache, record, t);
        }
        sc_tier_record_free(cache, record);
    }
    struct tier_space *of = &tier->spaces[space->tier_space];
    sc_status status = sc_radix_space_remove(tier->radix, of->radix_space, &sink);
    SC_ASSERT(status == SC_OK); /* nothing in it is locked */
    *of = (struct tier_space){0, 0, 0};
}
