/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers by ticket: memory, submission, and what becomes of them.
 *
 *   submit -> (the sc_tiers) -> poll: ended here -> the ranks agree -> apply: it has taken effect
 *
 * poll decides nothing: it moves a completion from the sc_tiers to the caller. apply decides by the
 * list alone; that a transfer which it names has ended here is checked, since its memory goes. */
#include <string.h>

#include "record.h"
#include "tier.h"

/* ---- memory ---- */

static uint32_t marks_of(const struct tier *tier, const struct tier_record *record)
{
    uint32_t marks = 0;
    struct sc_radix_node_info info = {.parent = SC_NODE_NONE};
    for (sc_node node = record->node; node != SC_NODE_NONE; node = info.parent) {
        sc_status status = sc_radix_node_get(tier->radix, node, &info);
        SC_ASSERT(status == SC_OK);
        marks += info.mark_count;
    }
    return marks;
}

/* One block: the transfer, sources, history, marks, tokens, ids; each a multiple of 8 bytes but the
 * last ones, of 4. */
struct transfer *sc_tier_transfer(sc_cache *cache, struct tier_record *record, uint32_t pages,
    uint32_t sources)
{
    struct tier *tier = cache->tier;
    uint32_t marks = marks_of(tier, record), unused = 0;
    size_t source_bytes = sources * sizeof(struct sc_tier_source);
    size_t history_bytes = record->history_count * sizeof(struct sc_stretch);
    size_t bytes = sizeof(struct transfer) + source_bytes + history_bytes +
        marks * sizeof(sc_mark) + ((size_t)record->token_count + pages) * sizeof(int32_t);
    struct transfer *transfer = sc_heap_calloc(&cache->heap, 1, bytes);
    if (!transfer) return NULL;
    const struct tier_space *space = &tier->spaces[record->space];
    uint8_t *at = (uint8_t *)(transfer + 1);
    struct sc_tier_job *job = &transfer->job;
    job->sources = (const struct sc_tier_source *)(void *)at;
    at += source_bytes;
    if (history_bytes > 0) memcpy(at, record->history, history_bytes);
    job->history = (const struct sc_stretch *)(void *)at;
    at += history_bytes;
    sc_mark *mark = (sc_mark *)(void *)at;
    at += marks * sizeof(sc_mark);
    int32_t *tokens = (int32_t *)(void *)at;
    sc_status status =
        sc_radix_path_get(tier->radix, record->node, tokens, mark, marks, &unused);
    SC_ASSERT(status == SC_OK); /* (20) */
    transfer->ids = tokens + record->token_count;
    transfer->bytes = bytes;
    transfer->record = record->id;
    transfer->ticket = job->ticket = ++tier->ticket;
    job->now_ns = cache->now_ns;
    job->adapter_id = space->adapter_id;
    job->adapter_generation = space->adapter_generation;
    job->tokens = tokens;
    job->token_count = record->token_count;
    job->marks = mark;
    job->mark_count = marks;
    job->history_count = record->history_count;
    job->parent_len = record->parent_len;
    job->kind = record->kind;
    job->value = record->value;
    job->kv_ids = transfer->ids;
    bool sc_map_oom = false;
    HASH_ADD(hh, tier->transfers, ticket, sizeof transfer->ticket, transfer);
    if (sc_map_oom) {
        tier->ticket--;
        sc_heap_free(&cache->heap, transfer, bytes);
        return NULL;
    }
    tier->transfer_count++;
    return transfer;
}

void sc_tier_transfer_free(sc_cache *cache, struct transfer *transfer)
{
    struct tier *tier = cache->tier;
    HASH_DEL(tier->transfers, transfer);
    tier->transfer_count--;
    sc_heap_free(&cache->heap, transfer, transfer->bytes);
}

/* ---- submission ---- */

void sc_tier_submit(sc_cache *cache, struct transfer *transfer)
{
    cache->tier->table->submit(cache->tier->tiers, &transfer->job);
}

static void report(struct tier *tier, struct transfer *transfer)
{
    transfer->next = NULL;
    *tier->report_end = transfer;
    tier->report_end = &transfer->next;
}

void sc_engine_tier_submit(sc_cache *cache, struct fills *fills, sc_status status)
{
    struct transfer *transfer = fills->transfers;
    fills->transfers = NULL;
    while (transfer) {
        struct transfer *next = transfer->next;
        transfer->next = NULL;
        if (status == SC_OK) {
            sc_tier_submit(cache, transfer);
        } else {
            transfer->refused = true;
            transfer->job.status = status;
            sc_rwlock_lock(&cache->lock);
            report(cache->tier, transfer);
            sc_rwlock_unlock(&cache->lock);
        }
        transfer = next;
    }
}

/* ---- poll ---- */

/* What has ended since. */
static void collect(struct tier *tier)
{
    struct sc_tier_job *job;
    while ((job = tier->table->take(tier->tiers))) {
        report(tier, (struct transfer *)(void *)((uint8_t *)job - offsetof(struct transfer, job)));
    }
}

static struct transfer *report_take(struct tier *tier)
{
    struct transfer *transfer = tier->report;
    if (!transfer) return NULL;
    tier->report = transfer->next;
    if (!tier->report) tier->report_end = &tier->report;
    transfer->next = NULL;
    transfer->ended = true;
    return transfer;
}

sc_status sc_cache_poll(sc_cache *cache, sc_done *done_out, uint32_t cap, uint32_t *count_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(done_out || cap == 0);
    SC_REQUIRE(count_out);
    *count_out = 0;
    if (!cache->tier) return SC_OK;
    sc_rwlock_lock(&cache->lock);
    struct transfer *transfer = NULL;
    collect(cache->tier);
    while (*count_out < cap && (transfer = report_take(cache->tier))) {
        done_out[(*count_out)++] = (sc_done){transfer->ticket, transfer->job.status};
    }
    sc_rwlock_unlock(&cache->lock);
    return SC_OK;
}

/* ---- apply ---- */

static struct transfer *transfer_of(const struct tier *tier, uint64_t ticket)
{
    struct transfer *transfer = NULL;
    HASH_FIND(hh, tier->transfers, &ticket, sizeof ticket, transfer);
    return transfer;
}

static sc_status check_done(const sc_cache *cache, const sc_done *done)
{
    const struct transfer *transfer =
        cache->tier ? transfer_of(cache->tier, done->ticket) : NULL;
    if (!transfer) {
        return SC_FAIL(SC_ERR_NOT_FOUND, "ticket %llu is not given out, or applied already",
            (unsigned long long)done->ticket);
    }
    if (!transfer->ended) {
        return SC_FAIL(SC_ERR_STATE, "ticket %llu: the transfer has not been reported by poll",
            (unsigned long long)done->ticket);
    }
    if (done->status == SC_OK && transfer->job.status != SC_OK) {
        return SC_FAIL(SC_ERR_MISMATCH, "ticket %llu: the transfer has failed here: %s",
            (unsigned long long)done->ticket, sc_status_name(transfer->job.status));
    }
    return SC_OK;
}

static sc_status check_list(const sc_cache *cache, const sc_done *done, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        SC_TRY(check_done(cache, &done[i]));
        transfer_of(cache->tier, done[i].ticket)->next = NULL;
    }
    /* Twice the same: each is marked by a link to itself until the list is through. */
    sc_status status = SC_OK;
    uint32_t marked = 0;
    for (; marked < count && status == SC_OK; marked++) {
        struct transfer *transfer = transfer_of(cache->tier, done[marked].ticket);
        if (transfer->next) {
            status = SC_FAIL(SC_ERR_INVALID, "ticket %llu is named twice",
                (unsigned long long)done[marked].ticket);
        }
        transfer->next = transfer;
    }
    for (uint32_t i = 0; i < marked; i++) transfer_of(cache->tier, done[i].ticket)->next = NULL;
    return status;
}

static void apply_one(sc_cache *cache, const sc_done *done)
{
    struct transfer *transfer = transfer_of(cache->tier, done->ticket);
    cache->stats.transfers_failed += done->status != SC_OK;
    if (transfer->job.op == SC_TIER_RESTORE) {
        sc_tier_restore_end(cache, transfer, done->status);
    } else {
        sc_tier_store_end(cache, transfer, done->status);
    }
}

sc_status sc_cache_apply(sc_cache *cache, const sc_done *done, uint32_t count, uint64_t now_ns)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(done || count == 0);
    sc_rwlock_lock(&cache->lock);
    sc_status status = check_list(cache, done, count);
    if (status == SC_OK) {
        status = sc_engine_record_room(cache, 16 + 3 * (uint64_t)count);
    }
    if (status == SC_OK && cache->tier) {
        bool later = sc_engine_time(cache, now_ns);
        for (uint32_t i = 0; i < count; i++) apply_one(cache, &done[i]);
        if (count > 0) sc_engine_tier_tend(cache);
        if (count > 0 || later) sc_engine_record_apply(cache, done, count, now_ns);
    }
    sc_rwlock_unlock(&cache->lock);
    return status;
}

sc_status sc_kv_moved(sc_cache *cache, uint64_t ticket, sc_status moved)
{
    SC_REQUIRE(cache);
    if (!cache->tier) return SC_FAIL(SC_ERR_NOT_FOUND, "the cache has no lower tier");
    return cache->tier->table->moved(cache->tier->tiers, ticket, moved); /* any thread: no lock */
}

/* ---- the player ---- */

enum { WAIT_NS = 20000 };

static bool all_ended(const sc_cache *cache, const sc_done *done, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct transfer *transfer = transfer_of(cache->tier, done[i].ticket);
        if (transfer && !transfer->ended) return false;
    }
    return true;
}

sc_status sc_engine_tier_wait(sc_cache *cache, const sc_done *done, uint32_t count)
{
    const struct timespec pause = {0, WAIT_NS};
    if (!cache->tier) return SC_OK;
    for (;;) {
        sc_rwlock_lock(&cache->lock);
        collect(cache->tier);
        while (report_take(cache->tier)) continue;
        bool ended = all_ended(cache, done, count);
        sc_rwlock_unlock(&cache->lock);
        if (ended) return SC_OK;
        (void)nanosleep(&pause, NULL);
    }
}
