/* SPDX-License-Identifier: Apache-2.0 */
/* What comes back: look-up in the directory, restore or recompute, leases that wait.
 *
 *   acquire ----> snapshot slot free, or worth taking: restore into it, waiters share it
 *      |    '---> else into the working slot of the lease, which alone gets it
 *      v
 *   WAITING --apply, ok-------------> READY on what was restored
 *      |-----apply, failed----------> READY on the device's hit, SC_REASON_TIER_FAILED
 *      |-----its deadline is over---> the same, SC_REASON_TIER_LATE; the transfer goes on
 *      '-----release----------------> gone; a working slot that is being written is the transfer's
 *
 * A lease that waits stands on the hit of the device already, pinned: nothing has to be found again
 * when the restore fails. What happens when it ends is in tier_resume.c. Numbers in brackets are
 * invariants of tier.h. */
#include <string.h>

#include "tier.h"

enum { CANDIDATES_MAX = 8, CHAIN_MAX = 64 };

/* One way to resume: a record, and the records whose KV it needs. */
struct choice {
    struct tier_record *record;
    struct tier_record *chain[CHAIN_MAX]; /* the record first */
    uint32_t chain_count;
    uint32_t kv_page;  /* pages before are on the device */
    uint32_t pages;    /* in all, a partial one too */
    uint32_t slowest;  /* tier */
    bool timed;
    uint64_t ns;
};

/* ---- what a restore needs ---- */

/* The tier from which a copy is read. */
static uint32_t best_tier(const struct tier_record *record)
{
    if (record->copies & 1u << SC_TIER_HOST) return SC_TIER_HOST;
    return record->copies & 1u << SC_TIER_DISK ? SC_TIER_DISK : SC_TIER_REMOTE;
}

static uint32_t page_end(const sc_cache *cache, uint32_t len)
{
    return (len + cache->page - 1) / cache->page;
}

/* Whether the KV that the device has of these tokens came to be like the record's. */
static bool device_agrees(const sc_cache *cache, const struct tier_record *record,
    const struct sc_radix_match *match, uint32_t len)
{
    struct sc_radix_node_info info = {.parent = SC_NODE_NONE};
    for (sc_node node = match->node; node != SC_NODE_NONE; node = info.parent) {
        if (sc_radix_node_get(cache->radix, node, &info) != SC_OK) return false;
        uint32_t end = info.end < len ? info.end : len;
        if (info.start >= len) continue;
        uint64_t hash = sc_engine_history_hash(record->history, record->history_count, end);
        if (hash != info.history) return false;
    }
    return true;
}

/* Time to read what the choice needs; 0 where nothing is known of a tier. */
static void choice_time(const sc_cache *cache, struct choice *choice)
{
    const struct tier *tier = cache->tier;
    double ns = 0;
    choice->timed = true;
    for (uint32_t i = 0; i < choice->chain_count; i++) {
        const struct tier_record *record = choice->chain[i];
        uint32_t which = best_tier(record);
        const sc_tier_config *options = sc_tier_config_of(tier, which);
        if (which > choice->slowest) choice->slowest = which;
        ns += (double)options->restore_latency_ns;
        if (options->restore_bytes_per_s > 0) {
            ns += (double)record->bytes[which] * 1e9 / (double)options->restore_bytes_per_s;
        } else {
            choice->timed = false;
        }
    }
    choice->ns = ns < 1e18 ? (uint64_t)ns : (uint64_t)1e18;
}

/* One that was the parent in restores that failed is read for its own sake alone: when that goes
 * well it is a parent again, and when not it is forgotten. */
static bool readable(const struct tier *tier, const struct tier_record *record, bool as_parent)
{
    if (!record->copies) return false;
    if (record->suspect >= (as_parent ? SUSPECT_MAX : SUSPECT_SURE)) return false;
    if (best_tier(record) != SC_TIER_DISK) return true;
    const struct tier_record *parent = sc_tier_record(tier, record->parent);
    return !parent || sc_tier_on_disk(tier, parent, false);
}

/* False: it cannot be restored, for want of KV. */
static bool choice_make(const sc_cache *cache, struct tier_record *record,
    const struct sc_radix_match *match, struct choice *choice)
{
    const struct tier *tier = cache->tier;
    *choice = (struct choice){.record = record, .pages = page_end(cache, record->token_count)};
    if (!readable(tier, record, false)) return false;
    choice->chain[choice->chain_count++] = record;
    if (!cache->options.without_kv) {
        uint32_t whole = sc_engine_page_floor(cache, record->token_count);
        uint32_t kv_len = match->kv_len < whole ? match->kv_len : whole;
        if (!device_agrees(cache, record, match, kv_len)) return false;
        choice->kv_page = kv_len / cache->page;
        if (!tier->has_mover && choice->kv_page < choice->pages) return false;
        struct tier_record *at = record;
        while (at->parent_len / cache->page > choice->kv_page) {
            at = sc_tier_record(tier, at->parent);
            if (!at || !readable(tier, at, true) || choice->chain_count == CHAIN_MAX) return false;
            choice->chain[choice->chain_count++] = at;
        }
    }
    choice_time(cache, choice);
    return true;
}

/* Time to compute tokens [from, to); false: not known. */
static bool compute_ns(const sc_cache *cache, uint32_t from, uint32_t to, double *ns_out)
{
    const sc_cache_options *options = &cache->options;
    double speed = (double)cache->tier->options->flops_per_s, a = from, b = to;
    if (!(speed > 0) || !(options->flops_per_token > 0)) return false;
    double flops = options->flops_per_token * (b - a);
    flops += options->flops_per_token2 * (b * b - a * a) / 2;
    *ns_out = flops * 1e9 / speed;
    return true;
}

/* The directory's records of the key beyond what the device has, deepest first. */
static uint32_t candidates(const sc_cache *cache, uint32_t space,
    const struct sc_radix_key *key, const struct sc_radix_match *match, uint32_t len_max,
    struct tier_record **out)
{
    const struct tier *tier = cache->tier;
    struct sc_radix_match found;
    uint32_t count = 0;
    sc_status status = sc_radix_match(tier->radix, tier->spaces[space].radix_space, key, len_max,
        &found);
    if (status != SC_OK || found.state_len == 0) return 0;
    struct tier_record *record = sc_tier_record(tier, found.snapshot);
    for (; record && count < CANDIDATES_MAX; record = sc_tier_above(tier, record)) {
        if (record->token_count <= match->state_len) break;
        if (record->copies) out[count++] = record;
    }
    return count;
}

void sc_engine_tier_answer(const sc_cache *cache, const struct space *space,
    const struct sc_radix_key *key, const struct sc_radix_match *match, uint32_t len_max,
    sc_answer *answer)
{
    struct tier_record *records[CANDIDATES_MAX];
    if (!cache->tier) return;
    uint32_t count = candidates(cache, space->tier_space, key, match, len_max, records);
    for (uint32_t i = count; i-- > 0;) { /* the longest last */
        struct choice choice;
        if (!choice_make(cache, records[i], match, &choice)) continue;
        answer->state_len[choice.slowest] = records[i]->token_count;
        answer->restore_ns[choice.slowest] = choice.ns;
        answer->codec[choice.slowest] =
            sc_tier_config_of(cache->tier, best_tier(records[i]))->codec;
    }
}

/* ---- restore or recompute ---- */

/* The choice that brings the prompt's end soonest; false: computing does. */
static bool choose(const sc_cache *cache, const struct lease *lease, const sc_request *request,
    const struct sc_radix_key *key, const struct sc_radix_match *match, uint32_t len_max,
    struct choice *best, sc_reason *reason_out)
{
    struct tier_record *records[CANDIDATES_MAX];
    struct choice choice = {.record = NULL};
    uint32_t count =
        candidates(cache, lease->space->tier_space, key, match, len_max, records);
    double best_ns = 0, rest = 0;
    bool found = false, known = compute_ns(cache, match->state_len, len_max, &best_ns);
    for (uint32_t i = 0; i < count; i++) {
        if (!choice_make(cache, records[i], match, &choice)) continue;
        if (request->deadline_ns > 0 && cache->now_ns + choice.ns > request->deadline_ns) {
            *reason_out = SC_REASON_TIER_LATE;
            continue;
        }
        if (!known || !choice.timed) { /* the deepest */
            *best = choice;
            return true;
        }
        (void)compute_ns(cache, records[i]->token_count, len_max, &rest);
        if ((double)choice.ns + rest >= best_ns) {
            if (!found && *reason_out == lease->reason) *reason_out = SC_REASON_RECOMPUTE;
            continue;
        }
        best_ns = (double)choice.ns + rest;
        *best = choice;
        found = true;
    }
    return found;
}

/* ---- the beginning ---- */

void sc_tier_reason_set(sc_cache *cache, struct lease *lease, sc_reason reason)
{
    cache->stats.reason_count[lease->reason]--;
    lease->reason = reason;
    cache->stats.reason_count[lease->reason]++;
}

static void wait_for(sc_cache *cache, struct lease *lease, struct transfer *transfer)
{
    lease->restore = transfer;
    lease->restore_next = transfer->waiters;
    transfer->waiters = lease;
    lease->waiting = true;
    cache->tier->waiting_hits += lease->len > 0;
    lease->reason = SC_REASON_RESTORING; /* not counted yet: it is being acquired */
}

/* Ids for the pages that are not on the device; false: there are none. */
static bool take_pages(sc_cache *cache, struct lease *lease, struct transfer *transfer)
{
    struct tier *tier = cache->tier;
    uint32_t count = transfer->page_count - transfer->first_page;
    int32_t *ids = transfer->ids + transfer->first_page;
    bool given = true;
    if (count == 0) return true;
    if (tier->player) {
        given = tier->player_gives && tier->player_count == count;
        if (given) memcpy(ids, tier->player_ids, count * sizeof *ids);
    } else {
        given = tier->mover.alloc(tier->mover.ctx, count, ids);
    }
    lease->kv_asked = given ? 2 : 1;
    if (!given) return false;
    cache->kv_inside += count;
    cache->kv_held += count;
    cache->stats.pages_in += count;
    return true;
}

/* What the job reads; the copies stay meanwhile (23). */
static void take_sources(sc_cache *cache, const struct choice *choice, struct transfer *transfer)
{
    struct tier *tier = cache->tier;
    struct sc_tier_source *sources =
        (struct sc_tier_source *)(uintptr_t)transfer->job.sources;
    for (uint32_t i = 0; i < choice->chain_count; i++) {
        struct tier_record *record = choice->chain[i];
        uint32_t first = record->parent_len / cache->page;
        uint32_t end = page_end(cache, record->token_count);
        uint32_t from = first > choice->kv_page ? first : choice->kv_page;
        bool kv = tier->has_mover;
        sources[i] = (struct sc_tier_source){best_tier(record), record->host_copy,
            record->token_count, end - first, kv && end > from ? from - first : 0,
            kv && end > from ? end - from : 0, from, record->id};
        record->readers[sources[i].tier]++;
        sc_tier_rank(tier, record);
    }
    transfer->job.source_count = choice->chain_count;
}

/* A slot that waiters can share, else that of the lease. */
static bool take_place(sc_cache *cache, struct lease *lease, const sc_request *request,
    const struct choice *choice, struct transfer *transfer, struct fills *fills)
{
    uint32_t len = choice->record->token_count;
    double bar = HUGE_VAL;
    if (cache->policy && lease->learned) bar = sc_policy_bar(cache->policy, &lease->policy, len);
    sc_status status = sc_engine_slot_take(cache, SC_OWNER_IN_FLIGHT, bar, &transfer->slot);
    if (status == SC_OK) {
        transfer->job.slot = transfer->slot;
        fills->slots[fills->slot_count++] = transfer->slot;
        choice->record->restoring = (uint32_t)transfer->ticket;
        return true;
    }
    transfer->slot = SC_SLOT_NULL;
    bool tail = !cache->options.without_kv && len % cache->page != 0;
    if (tail || request->deadline_ns > 0) return false;
    transfer->lease = lease;
    transfer->job.slot = lease->working;
    return true;
}

static bool begin(sc_cache *cache, struct lease *lease, const sc_request *request,
    const struct sc_radix_match *match, const struct choice *choice, struct fills *fills)
{
    struct tier *tier = cache->tier;
    struct tier_record *record = choice->record;
    uint32_t pages = cache->options.without_kv ? 0 : choice->pages;
    if (sc_engine_drain_reserve(cache, pages) != SC_OK) return false;
    if (sc_engine_reserve_scratch(cache, pages, record->history_count) != SC_OK) return false;
    struct transfer *transfer = sc_tier_transfer(cache, record, pages, choice->chain_count);
    if (!transfer) return false;
    transfer->space = lease->space->radix_space;
    transfer->len = record->token_count;
    transfer->first_page = choice->kv_page;
    transfer->page_count = pages;
    transfer->job.op = SC_TIER_RESTORE;
    sc_node node = cache->options.without_kv ? SC_NODE_NONE : match->node;
    if (sc_radix_lock(cache->radix, node, SC_RADIX_LOCK_KV, &transfer->receipt) != SC_OK) {
        sc_tier_transfer_free(cache, transfer);
        return false;
    }
    bool placed = take_place(cache, lease, request, choice, transfer, fills);
    if (!placed || !take_pages(cache, lease, transfer)) {
        if (transfer->slot.id) {
            fills->slot_count--;
            record->restoring = 0;
            sc_engine_slot_free(cache->options.pool, transfer->slot);
        }
        sc_status status = sc_radix_unlock(cache->radix, transfer->receipt);
        SC_ASSERT(status == SC_OK); /* (24) */
        sc_tier_transfer_free(cache, transfer);
        return false;
    }
    transfer->job.kv_count = pages - transfer->first_page;
    take_sources(cache, choice, transfer);
    record->used = ++tier->tick;
    wait_for(cache, lease, transfer);
    transfer->next = fills->transfers;
    fills->transfers = transfer;
    return true;
}

/* The restore of this record that others may join. */
static struct transfer *joinable(const struct tier *tier, const struct tier_record *record)
{
    uint64_t ticket = record->restoring;
    for (struct transfer *transfer = ticket ? tier->transfers : NULL; transfer;
         transfer = transfer->hh.next) {
        if ((uint32_t)transfer->ticket == ticket && transfer->record == record->id &&
            transfer->job.op == SC_TIER_RESTORE) {
            return transfer;
        }
    }
    return NULL;
}

void sc_engine_tier_begin(sc_cache *cache, struct lease *lease, const sc_request *request,
    uint32_t len_max, struct fills *fills)
{
    struct tier *tier = cache->tier;
    struct sc_radix_match match;
    struct choice choice = {.record = NULL};
    lease->deadline_ns = request->deadline_ns;
    if (!tier || lease->waiting || lease->external_len > 0 || request->external_len > 0) return;
    const struct sc_radix_key key = {lease->tokens, lease->prompt_len, lease->marks,
        lease->mark_count};
    if (sc_radix_match(cache->radix, lease->space->radix_space, &key, len_max, &match) != SC_OK) {
        return;
    }
    if (match.state_len != lease->len) return; /* evicted for its own slot: it starts cold */
    sc_reason reason = lease->reason;
    if (!choose(cache, lease, request, &key, &match, len_max, &choice, &reason)) {
        lease->reason = reason;
        return;
    }
    uint32_t stretches = choice.record->history_count + 1;
    struct transfer *transfer = joinable(tier, choice.record);
    bool begun = sc_engine_history_reserve(cache, lease, stretches) == SC_OK;
    if (begun && transfer) {
        wait_for(cache, lease, transfer);
    } else {
        begun = begun && begin(cache, lease, request, &match, &choice, fills);
    }
    if (!begun) lease->reason = SC_REASON_TIER_ROOM;
}

/* ---- the end of waiting ---- */

void sc_tier_forget_waiter(sc_cache *cache, struct lease *lease)
{
    struct lease **at = &lease->restore->waiters;
    while (*at != lease) at = &(*at)->restore_next;
    *at = lease->restore_next;
    lease->restore = NULL;
    lease->restore_next = NULL;
    lease->waiting = false;
    cache->tier->waiting_hits -= lease->len > 0;
}

bool sc_engine_tier_leave(sc_cache *cache, struct lease *lease)
{
    struct transfer *transfer = lease->restore;
    if (!transfer) return false;
    sc_tier_forget_waiter(cache, lease);
    if (transfer->lease != lease) return false;
    transfer->lease = NULL;
    transfer->slot = lease->working;
    sc_status status = sc_pool_retag(cache->options.pool, transfer->slot, SC_OWNER_IN_FLIGHT);
    SC_ASSERT(status == SC_OK); /* (25) */
    return true;
}

/* It goes on from where the device was. */
void sc_tier_go_on_shorter(sc_cache *cache, struct lease *lease, sc_reason reason)
{
    sc_tier_forget_waiter(cache, lease);
    sc_tier_reason_set(cache, lease, reason);
}

void sc_engine_tier_time(sc_cache *cache)
{
    struct tier *tier = cache->tier;
    if (!tier) return;
    for (struct transfer *transfer = tier->transfers; transfer; transfer = transfer->hh.next) {
        struct lease *lease = transfer->waiters;
        while (lease) {
            struct lease *next = lease->restore_next;
            bool over = lease->deadline_ns > 0 && lease->deadline_ns <= cache->now_ns;
            if (over && transfer->lease != lease) {
                sc_tier_go_on_shorter(cache, lease, SC_REASON_TIER_LATE);
            }
            lease = next;
        }
    }
}
