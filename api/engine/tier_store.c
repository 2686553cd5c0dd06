/* SPDX-License-Identifier: Apache-2.0 */
/* What goes down: stores from the device, spills from host memory to disk; when, and whether.
 *
 *   published ----- WRITE_THROUGH ----------------> store
 *   resumed ------- WRITE_SELECTIVE, n-th use ----> store
 *   about to go --- always -----------------------> store, then it may be evicted at no loss
 *
 * A slot is wanted at once, a copy takes time. So nothing waits for a copy when a slot is wanted:
 * the snapshots that would be evicted next are copied beforehand (sc_engine_tier_tend), and those
 * in host memory likewise to disk. What is evicted without a copy is lost, and counted.
 *
 * Numbers in brackets are invariants of tier.h. */
#include <string.h>

#include "tier.h"

enum { BLOCK = 4096, SPILLS_MAX = 8, FAILED_MAX = 3 };

/* The tier below the device. */
static uint32_t first_tier(const struct tier *tier)
{
    if (tier->bytes_max[SC_TIER_HOST] > 0) return SC_TIER_HOST;
    return tier->bytes_max[SC_TIER_DISK] > 0 ? SC_TIER_DISK : SC_TIER_REMOTE;
}

static uint32_t pages_of(const sc_cache *cache, const struct tier_record *record)
{
    if (!cache->tier->has_mover) return 0;
    uint32_t end = (record->token_count + cache->page - 1) / cache->page;
    return end - record->parent_len / cache->page;
}

uint64_t sc_tier_copy_bytes(const sc_cache *cache, const struct tier_record *record,
    uint32_t which)
{
    const struct tier *tier = cache->tier;
    uint64_t kv = tier->has_mover ? pages_of(cache, record) * tier->mover.page_bytes : 0;
    return (tier->state_bytes[which] + kv + 15 + BLOCK) / BLOCK * BLOCK;
}

/* Whether so much may still be written today. */
static bool day_allows(sc_cache *cache, uint64_t bytes)
{
    const uint64_t day_ns = (uint64_t)86400 * 1000000000;
    struct tier *tier = cache->tier;
    uint64_t limit = tier->options->disk.day_bytes, day = cache->now_ns / day_ns;
    if (day > tier->day) {
        tier->day = day;
        tier->day_bytes = 0;
    }
    if (limit > 0 && tier->day_bytes + bytes > limit) return false;
    tier->day_bytes += bytes;
    return true;
}

/* The record behind which a copy on disk begins stays there (21). */
static void hold_parent(struct tier *tier, const struct tier_record *record, uint32_t which, int by)
{
    struct tier_record *parent = sc_tier_record(tier, record->parent);
    if (which != SC_TIER_DISK || !parent) return;
    parent->disk_children += (uint32_t)by;
    sc_tier_rank(tier, parent);
}

/* Room in the tier for a copy of the record, which is being written from now on. */
static bool reserve(sc_cache *cache, struct tier_record *record, uint32_t which)
{
    struct tier *tier = cache->tier;
    uint64_t bytes = sc_tier_copy_bytes(cache, record, which);
    hold_parent(tier, record, which, 1);
    /* At once: its parent stays chosen, also when the last copy that hung on it makes room. */
    record->writing = (uint8_t)(record->writing | 1u << which);
    bool fits = sc_tier_make_room(cache, which, bytes, record->value);
    if (!fits || (which == SC_TIER_DISK && !day_allows(cache, bytes))) {
        cache->stats.tier_refused[which]++;
        record->writing = (uint8_t)(record->writing & ~(1u << which));
        hold_parent(tier, record, which, -1);
        return false;
    }
    tier->used[which] += bytes;
    tier->count[which]++;
    record->bytes[which] = bytes;
    return true;
}

/* The copy will not be there. */
static void unreserve(sc_cache *cache, struct tier_record *record, uint32_t which)
{
    struct tier *tier = cache->tier;
    tier->used[which] -= record->bytes[which];
    tier->count[which]--;
    record->bytes[which] = 0;
    record->writing = (uint8_t)(record->writing & ~(1u << which));
    hold_parent(tier, record, which, -1);
}

/* ---- store ---- */

/* The record behind which the KV of a new copy begins (21). One that lost its copies, and on which
 * others still hang, begins where it did: false, if what lies before is not there. */
static bool choose_parent(sc_cache *cache, struct tier_record *record)
{
    struct tier *tier = cache->tier;
    uint32_t wanted = first_tier(tier) == SC_TIER_HOST ? ~0u : 1u << SC_TIER_DISK;
    struct tier_record *at = record, *parent = sc_tier_record(tier, record->parent);
    if (!tier->has_mover) return true;
    bool to_disk = first_tier(tier) == SC_TIER_DISK;
    if (record->children > 0) {
        if (to_disk && parent && !sc_tier_on_disk(tier, parent, false)) return false;
        return !parent || parent->copies & wanted;
    }
    while ((at = sc_tier_above(tier, at))) {
        if (!(at->copies & wanted) || at->token_count % cache->page != 0) continue;
        if (to_disk && !sc_tier_on_disk(tier, at, false)) continue;
        if (!sc_tier_same_history(at->history, at->history_count, record->history,
                record->history_count, at->token_count)) {
            continue;
        }
        record->parent = at->id;
        record->parent_len = at->token_count;
        at->children++;
        sc_tier_rank(tier, at);
        return true;
    }
    return true;
}

static void take_ids(sc_cache *cache, const struct tier_record *record, struct transfer *transfer,
    uint32_t count)
{
    struct sc_radix_span spans[64];
    uint32_t page = record->parent_len / cache->page, got = 0, end = page + count;
    while (page < end) {
        uint32_t total = 0;
        sc_status status = sc_radix_spans(cache->radix, record->device_node, page, spans, 64,
            &total);
        SC_ASSERT(status == SC_OK || status == SC_ERR_LIMIT);
        for (uint32_t i = 0; i < total && i < 64; i++) {
            memcpy(transfer->ids + got, spans[i].ids, spans[i].page_count * sizeof(int32_t));
            got += spans[i].page_count;
            page = spans[i].page_first + spans[i].page_count;
        }
    }
    SC_ASSERT(got == count);
    transfer->job.kv_count = count;
}

/* Begins to copy a snapshot down. False: not now. */
static bool store(sc_cache *cache, struct tier_record *record, uint32_t which)
{
    struct tier *tier = cache->tier;
    struct sc_snapshot_info info;
    const uint32_t locks = SC_RADIX_LOCK_STATE | SC_RADIX_LOCK_KV;
    if ((record->copies | record->writing) != 0 || record->snapshot == 0) return false;
    if (record->failed >= FAILED_MAX) return false;
    if (sc_registry_get(cache->registry, record->snapshot, &info) != SC_OK) return false;
    if (!choose_parent(cache, record)) return false;
    uint32_t pages = pages_of(cache, record);
    record->value = tier->floor[which] +
        (cache->policy ? sc_policy_worth(cache->policy, record->device_node) : 0);
    if (!(record->value < 1e300)) record->value = 1e300; /* pinned: worth more than any other */
    struct transfer *transfer = NULL;
    bool room = reserve(cache, record, which);
    if (room) transfer = sc_tier_transfer(cache, record, pages, 0);
    bool locked = transfer && sc_radix_lock(cache->radix, record->device_node, locks,
        &transfer->receipt) == SC_OK;
    if (!locked) {
        if (transfer) sc_tier_transfer_free(cache, transfer);
        if (room) unreserve(cache, record, which);
        sc_tier_record_settle(cache, record);
        return false;
    }
    take_ids(cache, record, transfer, pages);
    transfer->job.op = SC_TIER_STORE;
    transfer->job.tier = which;
    transfer->job.slot = info.slot;
    transfer->job.copy = ++tier->copy_next;
    if (which == SC_TIER_HOST) record->host_copy = tier->copy_next;
    tier->store_count++;
    sc_tier_submit(cache, transfer);
    return true;
}

/* ---- spill ---- */

static bool spill_one(sc_cache *cache, struct tier_record *record)
{
    struct tier *tier = cache->tier;
    record->readers[SC_TIER_HOST]++;
    sc_tier_rank(tier, record);
    struct transfer *transfer = NULL;
    bool room = reserve(cache, record, SC_TIER_DISK);
    if (room) {
        transfer = sc_tier_transfer(cache, record, 0, 0);
        if (!transfer) unreserve(cache, record, SC_TIER_DISK);
    }
    if (!transfer) {
        record->readers[SC_TIER_HOST]--;
        sc_tier_rank(tier, record);
        return false;
    }
    transfer->job.op = SC_TIER_SPILL;
    transfer->job.tier = SC_TIER_DISK;
    transfer->job.copy = record->host_copy;
    tier->spill_count++;
    sc_tier_submit(cache, transfer);
    return true;
}

/* Copies a record from host memory to disk, those behind which its KV begins first. */
static bool spill(sc_cache *cache, struct tier_record *record)
{
    const uint32_t disk = 1u << SC_TIER_DISK, host = 1u << SC_TIER_HOST;
    struct tier *tier = cache->tier;
    if (tier->bytes_max[SC_TIER_DISK] == 0 || (record->copies & host) == 0) return false;
    for (;;) {
        struct tier_record *top = record;
        while (top->parent) {
            struct tier_record *parent = sc_tier_record(tier, top->parent);
            if (sc_tier_on_disk(tier, parent, true)) break;
            top = parent;
        }
        if (!(top->copies & host) || ((top->copies | top->writing) & disk)) return false;
        if (top->failed >= FAILED_MAX) return false;
        if (tier->spill_count >= 4 * SPILLS_MAX || !spill_one(cache, top)) return false;
        if (top == record) return true;
    }
}

/* ---- what has ended ---- */

static void unlock(sc_cache *cache, struct transfer *transfer)
{
    if (transfer->job.op != SC_TIER_STORE) return;
    sc_status status = sc_radix_unlock(cache->radix, transfer->receipt);
    SC_ASSERT(status == SC_OK); /* (24) */
}

/* It was written here, but not everywhere. */
static void take_back(struct tier *tier, const struct transfer *transfer)
{
    const struct sc_tier_job *job = &transfer->job;
    if (job->status != SC_OK) return;
    if (job->tier == SC_TIER_HOST) {
        tier->table->drop_host(tier->tiers, job->copy);
    } else if (job->tier == SC_TIER_DISK) {
        tier->table->drop_disk(tier->tiers, job->disk_id, job->disk_tick);
    }
}

/* The disk has not the record behind which this one begins. */
static void parent_is_gone(sc_cache *cache, const struct tier_record *record)
{
    struct tier_record *parent = sc_tier_record(cache->tier, record->parent);
    if (!parent || !(parent->copies & 1u << SC_TIER_DISK)) return;
    if (parent->readers[SC_TIER_DISK] > 0 || parent->disk_children > 0) return;
    sc_tier_copy_drop(cache, parent, SC_TIER_DISK);
    sc_tier_rank(cache->tier, parent);
}

void sc_tier_store_end(sc_cache *cache, struct transfer *transfer, sc_status status)
{
    struct tier *tier = cache->tier;
    struct tier_record *record = sc_tier_record(tier, transfer->record);
    uint32_t which = transfer->job.tier;
    bool spilled = transfer->job.op == SC_TIER_SPILL;
    unlock(cache, transfer);
    if (spilled) {
        record->readers[SC_TIER_HOST]--;
        tier->spill_count--;
    } else {
        tier->store_count--;
    }
    if (status == SC_OK) {
        record->failed = 0;
        record->writing = (uint8_t)(record->writing & ~(1u << which));
        record->copies = (uint8_t)(record->copies | 1u << which);
        if (which == SC_TIER_DISK) {
            record->disk_id = transfer->job.disk_id;
            record->disk_tick = transfer->job.disk_tick;
        }
        if (!spilled) record->suspect = 0; /* of copies that are gone */
        sc_engine_event_copied(cache, transfer, which);
        cache->stats.tier_stored[which]++;
    } else {
        record->failed++;
        take_back(tier, transfer);
        unreserve(cache, record, which);
        if (which == SC_TIER_DISK && status == SC_ERR_NOT_FOUND) parent_is_gone(cache, record);
    }
    sc_tier_transfer_free(cache, transfer);
    sc_tier_rank(tier, record);
    if (status == SC_OK && which == SC_TIER_HOST &&
        sc_tier_config_of(tier, SC_TIER_DISK)->write == SC_TIER_WRITE_THROUGH) {
        (void)spill(cache, record);
    }
    sc_tier_record_settle(cache, record);
}

/* ---- when ---- */

void sc_engine_tier_saved(sc_cache *cache, const struct lease *lease, uint32_t position,
    sc_node node, uint32_t snapshot)
{
    struct tier *tier = cache->tier;
    struct tier_record *record = NULL;
    struct sc_snapshot_info info;
    if (!tier || sc_registry_get(cache->registry, snapshot, &info) != SC_OK) return;
    if (info.records > 0) return; /* its slot is not the state: it stays on the device */
    const struct tier_key key = {.space = lease->space->tier_space, .tokens = lease->tokens,
        .token_count = position, .marks = lease->marks, .mark_count = lease->mark_count,
        .history = info.history, .history_count = info.history_count};
    if (sc_tier_record_add(cache, &key, &record) != SC_OK) return; /* it will not go down */
    SC_ASSERT(record->snapshot == 0);
    record->kind = (uint32_t)info.kind;
    record->hints = info.hints;
    sc_tier_link(cache, record, snapshot, node);
    if (sc_tier_config_of(tier, first_tier(tier))->write == SC_TIER_WRITE_THROUGH) {
        (void)store(cache, record, first_tier(tier));
    }
}

void sc_tier_used(sc_cache *cache, struct tier_record *record)
{
    struct tier *tier = cache->tier;
    record->used = ++tier->tick;
    record->failed = 0;
    record->uses++;
    sc_tier_rank(tier, record);
    const sc_tier_config *first = sc_tier_config_of(tier, first_tier(tier));
    const sc_tier_config *disk = sc_tier_config_of(tier, SC_TIER_DISK);
    if (first->write == SC_TIER_WRITE_SELECTIVE && record->uses >= first->write_uses) {
        (void)store(cache, record, first_tier(tier));
    }
    if (disk->write == SC_TIER_WRITE_SELECTIVE && record->uses >= disk->write_uses) {
        (void)spill(cache, record);
    }
}

void sc_engine_tier_used(sc_cache *cache, uint32_t snapshot)
{
    struct tier_record *record = sc_tier_record_of_snapshot(cache->tier, snapshot);
    if (record) sc_tier_used(cache, record);
}

void sc_engine_tier_gone(sc_cache *cache, uint32_t snapshot)
{
    struct tier_record *record = sc_tier_record_of_snapshot(cache->tier, snapshot);
    if (!record) return;
    cache->stats.tier_lost += record->copies == 0;
    sc_tier_link(cache, record, 0, SC_NODE_NONE);
    sc_tier_record_settle(cache, record);
}

/* The snapshot that would be evicted next. */
static struct tier_record *next_victim(sc_cache *cache)
{
    struct sc_radix_node_info info = {.snapshot = 0};
    sc_node node = cache->policy ? sc_policy_victim(cache->policy, NULL) : SC_NODE_NONE;
    if (node == SC_NODE_NONE) node = sc_radix_state_victim(cache->radix);
    if (node == SC_NODE_NONE || sc_radix_node_get(cache->radix, node, &info) != SC_OK) return NULL;
    return sc_tier_record_of_snapshot(cache->tier, info.snapshot);
}

static bool host_is_filling(const struct tier *tier)
{
    uint64_t bytes = tier->bytes_max[SC_TIER_HOST];
    uint32_t count = tier->count_max[SC_TIER_HOST];
    if (tier->used[SC_TIER_HOST] > bytes - bytes / 4) return true;
    return tier->count[SC_TIER_HOST] > count - count / 4;
}

void sc_engine_tier_tend(sc_cache *cache)
{
    struct tier *tier = cache->tier;
    sc_pool_info pool;
    if (!tier) return;
    sc_status status = sc_pool_info_get(cache->options.pool, &pool);
    SC_ASSERT(status == SC_OK);
    uint32_t ahead = pool.slot_count / 4 > 0 ? pool.slot_count / 4 : 1;
    while (pool.free_count < ahead && tier->store_count < ahead) {
        struct tier_record *record = next_victim(cache);
        if (!record || record->copies || !store(cache, record, first_tier(tier))) break;
    }
    while (host_is_filling(tier) && tier->spill_count < SPILLS_MAX) {
        if (tier->order_count[SC_TIER_HOST] == 0) break;
        struct tier_record *record = sc_tier_record(tier, tier->order[SC_TIER_HOST][0]);
        if (record->copies & 1u << SC_TIER_DISK || !spill(cache, record)) break;
    }
}
