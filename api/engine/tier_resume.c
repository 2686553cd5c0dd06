/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a restore: its state becomes a snapshot of the device, or the lease's own, its pages
 * the tree's; leases that waited stand on it. Numbers in brackets are invariants of tier.h. */
#include <string.h>

#include "tier.h"

/* ---- what was restored ---- */

/* History of each page, as runs for the tree. */
static uint32_t make_runs(const sc_cache *cache, const struct sc_tier_job *job,
    struct sc_radix_run *runs)
{
    uint32_t begin = 0, count = 0;
    runs[0] = (struct sc_radix_run){0, 0};
    if (cache->options.without_kv) return 1;
    for (uint32_t i = 0; i < job->history_count && begin < job->token_count; i++) {
        uint32_t start = sc_engine_page_floor(cache, begin);
        uint64_t hash = sc_engine_history_hash(job->history, i + 1, job->token_count);
        if (count == 0 || runs[count - 1].start != start) count++;
        runs[count - 1] = (struct sc_radix_run){start, hash};
        begin = job->history[i].end;
    }
    return count;
}

/* Puts the path into the tree, with the snapshot if there is one. */
static sc_status insert(sc_cache *cache, const struct transfer *transfer, uint32_t snapshot,
    sc_status *each_out, struct sc_radix_inserted *inserted)
{
    const struct sc_tier_job *job = &transfer->job;
    const struct sc_radix_save save = {job->token_count, snapshot};
    struct evict_sink sink;
    sc_engine_sink_init(cache, SC_EVICT_HISTORY, &sink);
    struct sc_radix_insert path = {
        .space = transfer->space,
        .tokens = job->tokens,
        .token_count = job->token_count,
        .kv_ids = cache->options.without_kv ? NULL : transfer->ids,
        .runs = cache->scratch_runs,
        .run_count = make_runs(cache, job, cache->scratch_runs),
        .saves = &save,
        .save_count = snapshot != 0,
        .marks = job->marks,
        .mark_count = job->mark_count,
    };
    sc_status status =
        sc_radix_insert(cache->radix, &path, &sink.sink, NULL, each_out, inserted);
    uint64_t more = job->token_count - (uint64_t)transfer->first_page * cache->page;
    if (status != SC_ERR_LIMIT || !sc_engine_make_token_room(cache, more)) return status;
    return sc_radix_insert(cache->radix, &path, &sink.sink, NULL, each_out, inserted);
}

/* Pages that the tree did not take go to the drain list. */
static void settle_pages(sc_cache *cache, const struct transfer *transfer, uint32_t held_len,
    uint32_t len, bool tail)
{
    uint32_t held = held_len / cache->page, end = len / cache->page;
    for (uint32_t page = transfer->first_page; page < transfer->page_count; page++) {
        bool partial = (page + 1) * cache->page > transfer->len;
        bool taken = partial ? tail : page >= held && page < end;
        cache->kv_held--;
        if (!taken) sc_engine_drain_push(cache, &transfer->ids[page], 1);
    }
}

/* Without KV the tree knows nothing of histories: the snapshot's own says how it was computed. */
static bool computed_alike(const sc_cache *cache, const struct transfer *transfer,
    uint32_t snapshot)
{
    struct sc_snapshot_info info;
    if (sc_registry_get(cache->registry, snapshot, &info) != SC_OK) return false;
    return sc_tier_same_history(info.history, info.history_count, transfer->job.history,
        transfer->job.history_count, transfer->len);
}

/* The snapshot of what was restored, on `node_out`; else 0: another history is in use, or memory is
 * short. Its slot and its pages have found their places. */
static uint32_t publish(sc_cache *cache, struct transfer *transfer, sc_node *node_out)
{
    struct tier_record *record = sc_tier_record(cache->tier, transfer->record);
    const struct sc_snapshot_info info = {.slot = transfer->slot, .token_count = transfer->len,
        .space = transfer->space, .kind = (enum sc_snapshot_kind)record->kind,
        .hints = record->hints, .history = transfer->job.history,
        .history_count = transfer->job.history_count};
    struct sc_radix_inserted inserted = {.node = SC_NODE_NONE};
    struct sc_radix_node_info node = {.snapshot = 0};
    uint32_t snapshot = 0;
    sc_status each = SC_OK;
    sc_status status = sc_registry_add(cache->registry, &info, &snapshot);
    if (status == SC_OK) {
        status = insert(cache, transfer, snapshot, &each, &inserted);
        if (status == SC_OK) status = each;
        if (status != SC_OK) (void)sc_registry_remove(cache->registry, snapshot, NULL);
    }
    bool taken = status == SC_OK;
    settle_pages(cache, transfer, taken || inserted.node ? inserted.prefix_len : 0,
        taken || inserted.node ? inserted.len : 0, taken);
    *node_out = inserted.node;
    if (taken) {
        status = sc_pool_retag(cache->options.pool, transfer->slot, SC_OWNER_SNAPSHOT);
        SC_ASSERT(status == SC_OK); /* (25) */
        cache->stats.restored++;
        if (cache->policy) {
            const struct sc_policy_path *path = NULL;
            if (transfer->waiters && transfer->waiters->learned) path = &transfer->waiters->policy;
            (void)sc_policy_attach(cache->policy, path, inserted.node, snapshot);
        }
        if (record->snapshot == 0) sc_tier_link(cache, record, snapshot, inserted.node);
        sc_engine_event_restored(cache, transfer, inserted.node, snapshot);
        return snapshot;
    }
    sc_engine_slot_free(cache->options.pool, transfer->slot);
    if (status != SC_ERR_BUSY) return 0;
    /* Somebody has computed it meanwhile. */
    if (sc_radix_node_get(cache->radix, inserted.node, &node) != SC_OK) return 0;
    return node.end == transfer->len && computed_alike(cache, transfer, node.snapshot)
        ? node.snapshot
        : 0;
}

static void count_hit(sc_cache *cache, struct lease *lease, uint32_t before,
    sc_save_kind kind_before, uint32_t tier)
{
    sc_cache_stats *stats = &cache->stats;
    if (lease->flags & SC_REQUEST_AGAIN) {
        stats->tokens_again_hit += lease->len - before;
    } else {
        stats->tokens_hit += lease->len - before;
        stats->tokens_hit_by_tier[tier] += lease->len - before;
    }
    stats->resumed_by_tier[tier]++;
    if (before > 0) {
        stats->resumed_by_kind[kind_before]--;
    } else {
        stats->resumed++;
    }
    stats->resumed_by_kind[lease->resume_kind]++;
    if (lease->prompt_end <= lease->len) lease->prompt_end = 0;
    if (lease->branch_len <= lease->len) lease->branch_len = 0;
    lease->next_source = lease->source;
    lease->next_dest = lease->working;
    sc_engine_issue(cache, lease);
    sc_engine_pending_pass(cache, lease, lease->len);
    sc_tier_reason_set(cache, lease, SC_REASON_NONE);
}

static void take_history(struct lease *lease, const struct transfer *transfer)
{
    const struct sc_tier_job *job = &transfer->job;
    SC_ASSERT(lease->history_cap > job->history_count); /* reserved by begin */
    memcpy(lease->history, job->history, job->history_count * sizeof *job->history);
    lease->history_count = job->history_count;
}

static uint32_t slowest(const struct transfer *transfer)
{
    uint32_t tier = SC_TIER_HOST;
    for (uint32_t i = 0; i < transfer->job.source_count; i++) {
        if (transfer->job.sources[i].tier > tier) tier = transfer->job.sources[i].tier;
    }
    return tier;
}

/* The lease stands on the snapshot that was restored. */
static void resume(sc_cache *cache, struct lease *lease, const struct transfer *transfer,
    uint32_t snapshot, sc_node node)
{
    struct sc_snapshot_info hit;
    struct sc_radix_span span = {.ids = NULL};
    uint32_t count = 0, before = lease->len;
    sc_save_kind kind = lease->resume_kind;
    sc_status status = sc_registry_get(cache->registry, snapshot, &hit);
    SC_ASSERT(status == SC_OK); /* (2) */
    struct sc_radix_match match = {.node = node, .kv_len = sc_engine_page_floor(cache,
        transfer->len), .state_node = node, .state_len = transfer->len, .snapshot = snapshot,
        .tail_kv = -1};
    if (!cache->options.without_kv && transfer->len % cache->page != 0) {
        status = sc_radix_spans(cache->radix, node, transfer->len / cache->page, &span, 1, &count);
        SC_ASSERT(status == SC_OK && count == 1);
        match.tail_kv = span.ids[0];
        match.node = sc_engine_above_tail(cache, node, transfer->len);
    }
    sc_tier_forget_waiter(cache, lease);
    take_history(lease, transfer);
    sc_engine_take_hit(cache, lease, &match, &hit);
    (void)sc_registry_count_hit(cache->registry, snapshot);
    sc_radix_touch(cache->radix, &match);
    sc_tier_used(cache, sc_tier_record(cache->tier, transfer->record));
    count_hit(cache, lease, before, kind, slowest(transfer));
}

/* The lease's working slot has the state. False: its KV cannot be put into the tree. */
static bool resume_working(sc_cache *cache, struct transfer *transfer)
{
    struct lease *lease = transfer->lease;
    struct sc_radix_inserted inserted = {.node = SC_NODE_NONE};
    sc_status each = SC_OK, status = SC_OK;
    uint32_t before = lease->len;
    sc_save_kind kind = lease->resume_kind;
    if (!cache->options.without_kv) {
        status = insert(cache, transfer, 0, &each, &inserted);
        bool there = status == SC_OK;
        settle_pages(cache, transfer, there ? inserted.prefix_len : 0, there ? inserted.len : 0,
            false);
        if (!there || inserted.len < transfer->len) return false;
        sc_engine_relock(cache, &lease->path, inserted.node, SC_RADIX_LOCK_KV);
        lease->inserted_len = transfer->len;
        lease->kv_base = transfer->len / cache->page;
    }
    sc_tier_forget_waiter(cache, lease);
    take_history(lease, transfer);
    sc_engine_relock(cache, &lease->pin, SC_NODE_NONE, SC_RADIX_LOCK_STATE);
    lease->pinned = false;
    lease->source = lease->working;
    sc_engine_ring_resume(lease, &(struct sc_snapshot_info){.records = 0});
    lease->resume_slot = lease->working.id;
    lease->resume_kind = (sc_save_kind)sc_tier_record(cache->tier, transfer->record)->kind;
    lease->resume_hints = sc_tier_record(cache->tier, transfer->record)->hints;
    lease->len = lease->resume_len = transfer->len;
    lease->tail_kv = -1;
    sc_tier_used(cache, sc_tier_record(cache->tier, transfer->record));
    count_hit(cache, lease, before, kind, slowest(transfer));
    return true;
}

/* ---- the completion ---- */

static bool damning(sc_status status)
{
    return status == SC_ERR_NOT_FOUND || status == SC_ERR_CORRUPT || status == SC_ERR_MISMATCH ||
        status == SC_ERR_IO || status == SC_ERR_STALE;
}

/* Nothing reads the copies any more. After a failure nobody knows which of them was bad, on which
 * rank: the record itself is forgotten, and those behind which it begins are suspect: after another
 * failure they are no parents any more, until they were read by themselves. */
static void leave_sources(sc_cache *cache, const struct transfer *transfer, sc_status status)
{
    struct tier *tier = cache->tier;
    for (uint32_t i = 0; i < transfer->job.source_count; i++) {
        uint32_t which = transfer->job.sources[i].tier;
        struct tier_record *record = sc_tier_record(tier, transfer->job.sources[i].record);
        record->readers[which]--;
        if (status == SC_OK) record->suspect = 0;
        bool sure = damning(status) && i == 0;
        if (sure) record->suspect = SUSPECT_SURE;
        if (damning(status) && i > 0 && record->suspect < SUSPECT_MAX) record->suspect++;
        bool here = record->copies & 1u << which && record->readers[which] == 0;
        bool needed = which == SC_TIER_DISK && record->disk_children > 0;
        if (sure && here && !needed) {
            record->suspect = 0;
            sc_tier_copy_drop(cache, record, which);
        } else if (record->suspect >= SUSPECT_MAX) {
            record->value = 0; /* others are stored behind it: it is avoided */
        }
        sc_tier_record_settle(cache, record);
    }
}

static void failed(sc_cache *cache, struct transfer *transfer)
{
    uint32_t none = 0;
    if (transfer->slot.id) sc_engine_slot_free(cache->options.pool, transfer->slot);
    settle_pages(cache, transfer, none, none, false);
    while (transfer->waiters) {
        sc_tier_go_on_shorter(cache, transfer->waiters, SC_REASON_TIER_FAILED);
    }
}

void sc_tier_restore_end(sc_cache *cache, struct transfer *transfer, sc_status status)
{
    struct tier_record *record = sc_tier_record(cache->tier, transfer->record);
    sc_node restored = SC_NODE_NONE;
    if (record->restoring == (uint32_t)transfer->ticket) record->restoring = 0;
    if (status != SC_OK) {
        failed(cache, transfer);
    } else if (transfer->lease) {
        if (!resume_working(cache, transfer)) {
            sc_tier_go_on_shorter(cache, transfer->lease, SC_REASON_TIER_FAILED);
        }
    } else {
        sc_node node = SC_NODE_NONE;
        uint32_t snapshot = publish(cache, transfer, &node);
        if (snapshot) restored = node;
        while (transfer->waiters) {
            if (snapshot) {
                resume(cache, transfer->waiters, transfer, snapshot, node);
            } else {
                sc_tier_go_on_shorter(cache, transfer->waiters, SC_REASON_TIER_FAILED);
            }
        }
    }
    sc_status unlocked = sc_radix_unlock(cache->radix, transfer->receipt);
    SC_ASSERT(unlocked == SC_OK); /* (24) */
    if (restored != SC_NODE_NONE) sc_engine_cap_path(cache, restored);
    leave_sources(cache, transfer, status);
    sc_tier_transfer_free(cache, transfer);
}
