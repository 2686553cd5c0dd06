/* SPDX-License-Identifier: Apache-2.0 */
/* The directory after a restart: from the disk's metadata alone, parents first.
 *
 * A record's edge has the tokens behind its parent; what lies before is the directory's already,
 * or, where the parent has no record that can be used, kept here until the end. */
#include <string.h>

#include "base/prng.h"
#include "tier.h"

struct entry {
    sc_node node;       /* of the directory; else its path is here */
    uint32_t record, len, mark_count;
    int32_t *tokens;
    sc_mark *marks;
};

struct load {
    sc_cache *cache;
    struct entry *entries; /* by the disk's id */
    uint32_t cap;
    int32_t *tokens;       /* of the record in hand */
    uint32_t token_cap;
    sc_mark *marks;
    uint32_t mark_cap;
};

static sc_status grow(struct load *load, void **array, uint32_t *cap, uint64_t need, size_t bytes)
{
    if (need <= *cap) return SC_OK;
    uint64_t to = need + need / 2 + 64;
    if (to > UINT32_MAX) return SC_FAIL(SC_ERR_NO_MEMORY, "a store of %u records", *cap);
    void *grown = sc_heap_realloc(&load->cache->heap, *array, *cap * bytes, to * bytes);
    if (!grown) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to load a store");
    memset((uint8_t *)grown + *cap * bytes, 0, (to - *cap) * bytes);
    *array = grown;
    *cap = (uint32_t)to;
    return SC_OK;
}

static const struct entry *entry_of(const struct load *load, uint32_t disk_id)
{
    return disk_id < load->cap ? &load->entries[disk_id] : NULL;
}

/* Tokens and marks of the edge's path to load->tokens, load->marks. `from_out`: what lies before it
 * needs not be read. */
static sc_status path_make(struct load *load, const struct sc_tier_loaded *edge,
    sc_node *from_out, uint32_t *mark_count_out)
{
    const struct entry *parent = entry_of(load, edge->parent_disk_id);
    struct tier *tier = load->cache->tier;
    uint32_t marks = 0;
    *from_out = SC_NODE_NONE;
    void *tokens = load->tokens, *mark_array = load->marks;
    sc_status status = grow(load, &tokens, &load->token_cap, edge->token_count, sizeof(int32_t));
    load->tokens = tokens;
    SC_TRY(status);
    if (parent && parent->node != SC_NODE_NONE) {
        *from_out = parent->node;
        (void)sc_radix_path_get(tier->radix, parent->node, load->tokens, NULL, 0, &marks);
    } else if (parent) {
        marks = parent->mark_count;
    }
    status = grow(load, &mark_array, &load->mark_cap, (uint64_t)marks + edge->mark_count + 1,
        sizeof(sc_mark));
    load->marks = mark_array;
    SC_TRY(status);
    if (parent && parent->node != SC_NODE_NONE) {
        SC_TRY(sc_radix_path_get(tier->radix, parent->node, load->tokens, load->marks, marks,
            &marks));
    } else if (parent && parent->len > 0) {
        memcpy(load->tokens, parent->tokens, parent->len * sizeof *load->tokens);
        if (marks > 0) memcpy(load->marks, parent->marks, marks * sizeof *load->marks);
    }
    memcpy(load->tokens + edge->parent_len, edge->tokens,
        (edge->token_count - edge->parent_len) * sizeof *load->tokens);
    if (edge->mark_count > 0) {
        memcpy(load->marks + marks, edge->marks, edge->mark_count * sizeof *load->marks);
    }
    *mark_count_out = marks + edge->mark_count;
    return SC_OK;
}

/* The path of an edge without a record that can be used, for those behind it. */
static sc_status keep_path(struct load *load, const struct sc_tier_loaded *edge, uint32_t marks)
{
    struct entry *entry = &load->entries[edge->disk_id];
    struct sc_heap *heap = &load->cache->heap;
    entry->len = edge->token_count; /* both, also where only one of the two comes to be */
    entry->mark_count = marks;
    entry->tokens = sc_heap_dup(heap, load->tokens, edge->token_count * sizeof *load->tokens);
    if (marks > 0) entry->marks = sc_heap_dup(heap, load->marks, marks * sizeof *load->marks);
    if (!entry->tokens || (marks > 0 && !entry->marks)) {
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to load a store");
    }
    return SC_OK;
}

/* Whether the KV of a record begins where it should. */
static bool usable(const struct load *load, const struct sc_tier_loaded *edge)
{
    const sc_cache *cache = load->cache;
    const struct entry *parent = entry_of(load, edge->parent_disk_id);
    if (!edge->has_record || edge->history_count == 0) return false;
    if (edge->history[edge->history_count - 1].end != edge->token_count) return false;
    if (edge->kind < SC_SNAPSHOT_PROMPT_END || edge->kind > SC_SNAPSHOT_POINT) return false;
    if (!cache->tier->has_mover || edge->parent_len == 0) return true;
    return edge->parent_len % cache->page == 0 && parent && parent->record != 0;
}

static void hash_add(struct tier *tier, const struct load *load,
    const struct sc_tier_loaded *edge)
{
    uint64_t hash = sc_mix64(tier->load_hash ^ edge->adapter_id);
    hash = sc_mix64(hash ^ edge->adapter_generation);
    for (uint32_t i = edge->parent_len; i < edge->token_count; i++) {
        hash = sc_mix64(hash ^ (uint32_t)load->tokens[i]);
    }
    for (uint32_t i = 0; i < edge->history_count; i++) {
        hash = sc_mix64(hash ^ ((uint64_t)edge->history[i].form << 32 | edge->history[i].end));
    }
    tier->load_hash = sc_mix64(hash ^ edge->token_count);
    tier->load_count++;
}

static sc_status load_record(struct load *load, const struct sc_tier_loaded *edge,
    const struct tier_key *key)
{
    sc_cache *cache = load->cache;
    struct tier *tier = cache->tier;
    const struct entry *above = entry_of(load, edge->parent_disk_id);
    struct tier_record *record = NULL;
    SC_TRY(sc_tier_record_add(cache, key, &record));
    if (tier->has_mover && edge->parent_len > 0) {
        record->parent = above->record;
        record->parent_len = edge->parent_len;
        struct tier_record *parent = sc_tier_record(tier, record->parent);
        parent->children++;
        parent->disk_children++;
        sc_tier_rank(tier, parent);
    }
    record->copies = 1u << SC_TIER_DISK;
    record->disk_id = edge->disk_id;
    record->disk_tick = edge->disk_tick;
    record->kind = edge->kind;
    record->value = edge->value;
    record->bytes[SC_TIER_DISK] = edge->bytes;
    tier->used[SC_TIER_DISK] += edge->bytes;
    tier->count[SC_TIER_DISK]++;
    sc_tier_rank(tier, record);
    load->entries[edge->disk_id].node = record->node;
    load->entries[edge->disk_id].record = record->id;
    hash_add(tier, load, edge);
    return SC_OK;
}

static sc_status load_edge(void *ctx, const struct sc_tier_loaded *edge)
{
    struct load *load = ctx;
    uint32_t space = 0, marks = 0;
    sc_node from = SC_NODE_NONE;
    void *entries = load->entries;
    sc_status status = grow(load, &entries, &load->cap, (uint64_t)edge->disk_id + 1,
        sizeof *load->entries);
    load->entries = entries;
    SC_TRY(status);
    SC_TRY(sc_engine_tier_space_open(load->cache, edge->adapter_id, edge->adapter_generation,
        &space));
    SC_TRY(path_make(load, edge, &from, &marks));
    if (!usable(load, edge)) return keep_path(load, edge, marks);
    const struct tier_key key = {.space = space, .tokens = load->tokens,
        .token_count = edge->token_count, .marks = load->marks, .mark_count = marks,
        .from = from, .history = edge->history, .history_count = edge->history_count};
    return load_record(load, edge, &key);
}

sc_status sc_engine_tier_load(sc_cache *cache)
{
    struct tier *tier = cache->tier;
    struct load load = {.cache = cache};
    struct sc_heap *heap = &cache->heap;
    sc_status status = tier->table->load(tier->tiers, load_edge, &load, &tier->day,
        &tier->day_bytes);
    for (uint32_t i = 0; i < load.cap; i++) {
        struct entry *entry = &load.entries[i];
        sc_heap_free(heap, entry->tokens, entry->len * sizeof *entry->tokens);
        sc_heap_free(heap, entry->marks, entry->mark_count * sizeof *entry->marks);
    }
    sc_heap_free(heap, load.entries, load.cap * sizeof *load.entries);
    sc_heap_free(heap, load.tokens, load.token_cap * sizeof *load.tokens);
    sc_heap_free(heap, load.marks, load.mark_cap * sizeof *load.marks);
    SC_TRY(status);
    (void)sc_tier_make_room(cache, SC_TIER_DISK, 0, HUGE_VAL);
    cache->stats.tier_loaded = tier->load_count;
    return SC_OK;
}
