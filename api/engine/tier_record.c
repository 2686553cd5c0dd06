/* SPDX-License-Identifier: Apache-2.0 */
/* The directory: records by key, and the order in which their copies go. Numbers in brackets are
 * invariants of tier.h.
 *
 * The order of a tier is a binary heap of record ids, least worth first; a record knows its place,
 * so that it leaves in O(log n) when a transfer begins to read its copy (26). */
#include <string.h>

#include "tier.h"

struct tier_record *sc_tier_record_of_snapshot(const struct tier *tier, uint32_t snapshot)
{
    struct tier_record *record = NULL;
    if (tier) HASH_FIND(hh, tier->by_snapshot, &snapshot, sizeof snapshot, record);
    return record;
}

void sc_tier_link(sc_cache *cache, struct tier_record *record, uint32_t snapshot, sc_node node)
{
    struct tier *tier = cache->tier;
    if (record->snapshot) HASH_DEL(tier->by_snapshot, record);
    record->snapshot = snapshot;
    record->device_node = node;
    if (snapshot == 0) return;
    bool sc_map_oom = false;
    HASH_ADD(hh, tier->by_snapshot, snapshot, sizeof record->snapshot, record);
    if (sc_map_oom) record->snapshot = 0; /* it will not go down, that is all */
}

bool sc_tier_same_history(const struct sc_stretch *a, uint32_t a_count,
    const struct sc_stretch *b, uint32_t b_count, uint32_t len)
{
    for (uint32_t i = 0, begin = 0; begin < len; begin = a[i++].end) {
        if (i >= a_count || i >= b_count || a[i].form != b[i].form) return false;
        uint32_t a_end = a[i].end < len ? a[i].end : len, b_end = b[i].end < len ? b[i].end : len;
        if (a_end != b_end) return false;
    }
    return true;
}

/* ---- order ---- */

static bool goes_before(const struct tier *tier, uint32_t a_id, uint32_t b_id)
{
    const struct tier_record *a = sc_tier_record(tier, a_id), *b = sc_tier_record(tier, b_id);
    if (a->value < b->value || a->value > b->value) return a->value < b->value;
    return a->used != b->used ? a->used < b->used : a_id < b_id;
}

static void place(struct tier *tier, uint32_t which, uint32_t at, uint32_t id)
{
    tier->order[which][at] = id;
    sc_tier_record(tier, id)->place[which] = at;
}

static void sift(struct tier *tier, uint32_t which, uint32_t at, uint32_t id)
{
    uint32_t *order = tier->order[which], count = tier->order_count[which];
    for (; at > 0 && goes_before(tier, id, order[(at - 1) / 2]); at = (at - 1) / 2) {
        place(tier, which, at, order[(at - 1) / 2]);
    }
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child + 1 < count && goes_before(tier, order[child + 1], order[child])) child++;
        if (child >= count || !goes_before(tier, order[child], id)) break;
        place(tier, which, at, order[child]);
        at = child;
    }
    place(tier, which, at, id);
}

static void order_leave(struct tier *tier, uint32_t which, struct tier_record *record)
{
    uint32_t at = record->place[which];
    if (at == TIER_NOT_RANKED) return;
    uint32_t last = tier->order[which][--tier->order_count[which]];
    record->place[which] = TIER_NOT_RANKED;
    if (last != record->id) sift(tier, which, at, last);
}

/* Whether the copy may go (21, 23). */
static bool may_go(const struct tier_record *record, uint32_t which)
{
    uint32_t others = record->copies & ~(1u << which);
    if (!(record->copies & 1u << which) || record->readers[which] > 0) return false;
    if (which == SC_TIER_DISK && record->disk_children > 0) return false;
    return record->children == 0 || others != 0;
}

void sc_tier_rank(struct tier *tier, struct tier_record *record)
{
    for (uint32_t t = TIER_FIRST; t < TIER_END; t++) {
        if (!may_go(record, t)) {
            order_leave(tier, t, record);
        } else if (record->place[t] == TIER_NOT_RANKED) {
            sift(tier, t, tier->order_count[t]++, record->id);
        } else {
            sift(tier, t, record->place[t], record->id);
        }
    }
}

/* ---- records ---- */

static sc_status grow(sc_cache *cache)
{
    struct tier *tier = cache->tier;
    uint32_t cap = tier->record_cap, to = cap ? cap * 2 : 64;
    struct sc_heap *heap = &cache->heap;
    if (tier->free_count > 0 || tier->record_end < cap) return SC_OK;
    if (to > 1u << 30) return SC_FAIL(SC_ERR_LIMIT, "%u records", cap);
    struct tier_record **records = sc_heap_alloc(heap, to * sizeof *records, 16);
    uint32_t **old[] = {&tier->free_ids, &tier->order[SC_TIER_HOST], &tier->order[SC_TIER_DISK],
        &tier->order[SC_TIER_REMOTE]};
    enum { ARRAYS = sizeof old / sizeof old[0] };
    uint32_t *arrays[ARRAYS];
    bool all = records != NULL;
    for (uint32_t i = 0; i < ARRAYS; i++) {
        arrays[i] = sc_heap_alloc(heap, to * sizeof(uint32_t), 16);
        all = all && arrays[i];
    }
    if (!all) {
        sc_heap_free(heap, records, to * sizeof *records);
        for (uint32_t i = 0; i < ARRAYS; i++) {
            sc_heap_free(heap, arrays[i], to * sizeof(uint32_t));
        }
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u records", to);
    }
    for (uint32_t i = 0; i < ARRAYS; i++) {
        if (cap > 0) memcpy(arrays[i], *old[i], cap * sizeof(uint32_t));
        sc_heap_free(heap, *old[i], cap * sizeof(uint32_t));
        *old[i] = arrays[i];
    }
    if (cap > 0) memcpy(records, tier->records, cap * sizeof(struct tier_record *));
    sc_heap_free(heap, tier->records, cap * sizeof(struct tier_record *));
    tier->records = records;
    tier->record_cap = to;
    return SC_OK;
}

static sc_status record_make(sc_cache *cache, const struct tier_key *key,
    struct tier_record **record_out)
{
    struct tier *tier = cache->tier;
    SC_TRY(grow(cache));
    struct tier_record *record = sc_heap_calloc(&cache->heap, 1, sizeof *record);
    size_t bytes = key->history_count * sizeof *record->history;
    if (record && key->history_count > 0) {
        record->history = sc_heap_dup(&cache->heap, key->history, bytes);
    }
    if (!record || (key->history_count > 0 && !record->history)) {
        sc_heap_free(&cache->heap, record, sizeof *record);
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a record");
    }
    record->history_count = key->history_count;
    record->space = key->space;
    record->token_count = key->token_count;
    record->used = ++tier->tick;
    for (uint32_t t = 0; t < TIER_END; t++) record->place[t] = TIER_NOT_RANKED;
    record->id = tier->free_count > 0 ? tier->free_ids[--tier->free_count] : ++tier->record_end;
    tier->records[record->id - 1] = record;
    tier->record_count++;
    *record_out = record;
    return SC_OK;
}

static void record_unmake(sc_cache *cache, struct tier_record *record)
{
    struct tier *tier = cache->tier;
    tier->records[record->id - 1] = NULL;
    tier->free_ids[tier->free_count++] = record->id;
    tier->record_count--;
    sc_heap_free(&cache->heap, record->history, record->history_count * sizeof *record->history);
    sc_heap_free(&cache->heap, record, sizeof *record);
}

static void sink_nothing(void *ctx, uint32_t snapshot, enum sc_radix_cause cause)
{
    (void)ctx;
    (void)snapshot;
    (void)cause;
}

static const struct sc_radix_sink no_sink = {NULL, NULL, sink_nothing};

void sc_tier_record_free(sc_cache *cache, struct tier_record *record)
{
    struct tier *tier = cache->tier;
    for (uint32_t t = TIER_FIRST; t < TIER_END; t++) order_leave(tier, t, record);
    sc_tier_link(cache, record, 0, SC_NODE_NONE);
    if (record->node != SC_NODE_NONE) {
        sc_status status = sc_radix_snapshot_drop(tier->radix, record->node, &no_sink);
        SC_ASSERT(status == SC_OK); /* (20) */
    }
    record_unmake(cache, record);
}

void sc_tier_record_settle(sc_cache *cache, struct tier_record *record)
{
    struct tier *tier = cache->tier;
    while (record) {
        uint32_t readers = sc_tier_readers(record);
        struct tier_record *parent = NULL;
        bool copied = (record->copies | record->writing) != 0;
        if (!copied && record->children == 0 && record->parent != 0) {
            parent = sc_tier_record(tier, record->parent);
            record->parent = record->parent_len = 0;
            parent->children--;
            sc_tier_rank(tier, parent);
        }
        if (!copied && record->snapshot == 0 && record->children == 0 && readers == 0 &&
            record->restoring == 0) {
            sc_tier_record_free(cache, record);
        } else {
            sc_tier_rank(tier, record);
        }
        record = parent;
    }
}

/* Where the key of an insert ends. */
static sc_status directory_insert(struct tier *tier, const struct tier_key *key, uint32_t id,
    sc_node *node_out, sc_status *each_out)
{
    static const struct sc_radix_run run = {0, 0};
    const struct sc_radix_save save = {key->token_count, id};
    uint32_t marks = key->mark_count;
    while (marks > 0 && key->marks[marks - 1].at >= key->token_count) marks--;
    struct sc_radix_insert insert = {.space = tier->spaces[key->space].radix_space,
        .tokens = key->tokens, .token_count = key->token_count, .runs = &run, .run_count = 1,
        .saves = &save, .save_count = 1, .marks = key->marks, .mark_count = marks,
        .from = key->from};
    struct sc_radix_inserted inserted;
    SC_TRY(sc_radix_insert(tier->radix, &insert, &no_sink, NULL, each_out, &inserted));
    *node_out = inserted.node;
    return SC_OK;
}

/* The record of the same tokens, which was there before. */
static struct tier_record *record_at(const struct tier *tier, sc_node node)
{
    struct sc_radix_node_info info = {.snapshot = 0};
    sc_status status = sc_radix_node_get(tier->radix, node, &info);
    SC_ASSERT(status == SC_OK);
    struct tier_record *record = sc_tier_record(tier, info.snapshot);
    SC_ASSERT(record && record->node == node); /* (20) */
    return record;
}

static bool in_use(const struct tier_record *record)
{
    return record->writing || record->snapshot || record->children > 0 || record->restoring ||
        sc_tier_readers(record) > 0;
}

/* An unlike record of the same tokens gives way, if nobody needs it. */
static bool replace(sc_cache *cache, struct tier_record *old)
{
    if (in_use(old)) return false;
    struct tier_record *parent = sc_tier_record(cache->tier, old->parent);
    for (uint32_t t = TIER_FIRST; t < TIER_END; t++) {
        if (old->copies & 1u << t) sc_tier_copy_drop(cache, old, t);
    }
    old->parent = 0;
    sc_tier_record_free(cache, old);
    if (parent) parent->children--;
    sc_tier_record_settle(cache, parent);
    return true;
}

sc_status sc_tier_record_add(sc_cache *cache, const struct tier_key *key,
    struct tier_record **record_out)
{
    struct tier *tier = cache->tier;
    struct tier_record *record = NULL, *old = NULL;
    sc_node node = SC_NODE_NONE;
    sc_status each = SC_OK;
    SC_TRY(record_make(cache, key, &record));
    sc_status status = directory_insert(tier, key, record->id, &node, &each);
    if (status == SC_OK && each == SC_ERR_BUSY) {
        old = record_at(tier, node);
        bool same = sc_tier_same_history(old->history, old->history_count, key->history,
            key->history_count, key->token_count);
        if (same || !replace(cache, old)) {
            record_unmake(cache, record);
            *record_out = old;
            return same ? SC_OK : SC_FAIL(SC_ERR_BUSY, "a record of another history is in use");
        }
        status = directory_insert(tier, key, record->id, &node, &each);
    }
    if (status == SC_OK) status = each;
    if (status != SC_OK) {
        record_unmake(cache, record);
        return status;
    }
    record->node = node;
    *record_out = record;
    return SC_OK;
}

bool sc_tier_on_disk(const struct tier *tier, const struct tier_record *record, bool or_coming)
{
    for (; record; record = sc_tier_record(tier, record->parent)) {
        uint32_t bits = record->copies | (or_coming ? record->writing : 0u);
        if (!(bits & 1u << SC_TIER_DISK) || record->suspect >= SUSPECT_MAX) return false;
    }
    return true;
}

struct tier_record *sc_tier_above(const struct tier *tier, const struct tier_record *record)
{
    struct sc_radix_node_info info = {.parent = SC_NODE_NONE};
    sc_node node = record->node;
    do {
        if (sc_radix_node_get(tier->radix, node, &info) != SC_OK) return NULL;
        node = info.parent;
        if (node == SC_NODE_NONE) return NULL;
        if (sc_radix_node_get(tier->radix, node, &info) != SC_OK) return NULL;
    } while (info.snapshot == 0);
    return sc_tier_record(tier, info.snapshot);
}

/* ---- copies ---- */

void sc_tier_copy_drop(sc_cache *cache, struct tier_record *record, uint32_t which)
{
    struct tier *tier = cache->tier;
    SC_ASSERT((record->copies & 1u << which) && record->readers[which] == 0); /* (23) */
    record->copies = (uint8_t)(record->copies & ~(1u << which));
    sc_engine_event_dropped(cache, record, which);
    tier->used[which] -= record->bytes[which];
    tier->count[which]--;
    record->bytes[which] = 0;
    if (which == SC_TIER_HOST) {
        tier->table->drop_host(tier->tiers, record->host_copy);
    } else if (which == SC_TIER_DISK) { /* what is remote is others', too: it is forgotten */
        tier->table->drop_disk(tier->tiers, record->disk_id, record->disk_tick);
        struct tier_record *parent = sc_tier_record(tier, record->parent);
        if (parent) parent->disk_children--;
        if (parent) sc_tier_rank(tier, parent);
    }
    order_leave(tier, which, record);
}

bool sc_tier_make_room(sc_cache *cache, uint32_t which, uint64_t bytes, double value)
{
    struct tier *tier = cache->tier;
    if (bytes > tier->bytes_max[which]) return false;
    while (tier->used[which] + bytes > tier->bytes_max[which] ||
        tier->count[which] + (bytes > 0) > tier->count_max[which]) {
        if (tier->order_count[which] == 0) return false;
        struct tier_record *victim = sc_tier_record(tier, tier->order[which][0]);
        if (victim->value > value) return false;
        bool last = (victim->copies & ~(1u << which)) == 0;
        tier->floor[which] = victim->value;
        cache->stats.tier_dropped[which]++;
        cache->stats.tier_lost += last && victim->snapshot == 0;
        sc_tier_copy_drop(cache, victim, which);
        sc_tier_record_settle(cache, victim);
    }
    return true;
}
