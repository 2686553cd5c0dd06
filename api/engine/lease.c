/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: their memory, and acquire. What is read of them is in lease_read.c, what changes them and
 * ends them in lease_change.c. The drawing of their states and of their slots, and the invariants
 * that comments here cite, are in cache_internal.h. */
#include <string.h>

#include "tier.h"

struct lease *sc_engine_lease(const sc_cache *cache, sc_lease handle)
{
    struct lease *lease = NULL;
    HASH_FIND(hh, cache->leases, &handle.id, sizeof handle.id, lease);
    return lease && lease->generation == handle.generation ? lease : NULL;
}

sc_status sc_engine_lease_find(const sc_cache *cache, sc_lease handle, struct lease **lease_out)
{
    *lease_out = sc_engine_lease(cache, handle);
    if (*lease_out) return SC_OK;
    return SC_FAIL(SC_ERR_STALE, "lease %u/%u is not alive (released already?)",
        handle.id, handle.generation);
}

sc_status sc_engine_marks_check(const sc_mark *marks, uint32_t count, uint32_t from, uint32_t to)
{
    SC_REQUIRE(marks || count == 0);
    for (uint32_t i = 0; i < count; i++) {
        if (marks[i].at < from || marks[i].at >= to || (i > 0 && marks[i].at <= marks[i - 1].at)) {
            return SC_FAIL(SC_ERR_INVALID, "mark at %u: not ascending within [%u, %u)",
                marks[i].at, from, to);
        }
    }
    return SC_OK;
}

sc_status sc_engine_key_check(const sc_cache *cache, const sc_key *key, uint32_t *len_max_out)
{
    SC_REQUIRE(key->tokens);
    SC_REQUIRE(key->token_count > 0);
    SC_REQUIRE(key->token_count <= INT32_MAX);
    SC_REQUIRE(key->len_max <= key->token_count);
    SC_TRY(sc_engine_marks_check(key->marks, key->mark_count, 0, key->token_count));
    if (!sc_engine_space(cache, key->ns)) {
        return SC_FAIL(SC_ERR_STALE, "namespace %u/%u is not open", key->ns.id, key->ns.generation);
    }
    *len_max_out = key->len_max ? key->len_max : key->token_count - 1;
    return SC_OK;
}

/* Longest state of the key at any length; 0 unless all that was asked for is known (else nothing
 * can lie beyond). */
uint32_t sc_engine_state_beyond(const sc_cache *cache, const struct sc_radix_key *key,
    uint32_t space, const struct sc_radix_match *match, uint32_t len_max)
{
    struct sc_radix_match beyond;
    uint32_t known = match->kv_len > match->state_len ? match->kv_len : match->state_len;
    if (len_max == key->token_count || known < sc_engine_page_floor(cache, len_max)) return 0;
    /* The key ends within match->node, if not before; what lies above is known to be equal. */
    struct sc_radix_node_info info = {.parent = SC_NODE_NONE};
    if (match->node != SC_NODE_NONE) (void)sc_radix_node_get(cache->radix, match->node, &info);
    if (sc_radix_match_from(cache->radix, space, info.parent, key, key->token_count, &beyond) !=
        SC_OK) {
        return 0;
    }
    return beyond.state_len > len_max ? beyond.state_len : 0;
}

sc_reason sc_engine_reason(const sc_cache *cache, const struct sc_radix_match *match,
    uint32_t len_max, uint32_t beyond)
{
    uint32_t best = sc_engine_page_floor(cache, len_max);
    if (cache->options.tails) best = len_max;
    if (best == 0) return SC_REASON_TOO_SHORT;
    if (match->state_len >= best) return SC_REASON_NONE;
    if (beyond > 0) return SC_REASON_BEYOND;
    if (match->evicted_len > match->state_len) return SC_REASON_EVICTED;
    return match->kv_len > match->state_len ? SC_REASON_NO_STATE : SC_REASON_NO_PREFIX;
}

/* ---- memory ---- */

void sc_engine_lease_free(sc_cache *cache, struct lease *lease)
{
    struct sc_heap *heap = &cache->heap;
    sc_heap_free(heap, lease->tokens, lease->token_cap * sizeof *lease->tokens);
    sc_heap_free(heap, lease->marks, lease->mark_cap * sizeof *lease->marks);
    sc_heap_free(heap, lease->history, lease->history_cap * sizeof *lease->history);
    sc_heap_free(heap, lease->kv, lease->kv_cap * sizeof *lease->kv);
    sc_heap_free(heap, lease->kv_owner, lease->kv_cap * sizeof *lease->kv_owner);
    sc_heap_free(heap, lease, sizeof *lease);
}

sc_status sc_engine_tokens_reserve(sc_cache *cache, struct lease *lease, uint32_t count)
{
    SC_TRY(sc_engine_reserve_scratch(cache, count / cache->page + 1, 1));
    SC_TRY(sc_engine_hashes_reserve(cache, count));
    if (count <= lease->token_cap) return SC_OK;
    uint64_t cap = (uint64_t)count + count / 8 + 32;
    if (cap > cache->options.lease_token_max) cap = cache->options.lease_token_max;
    int32_t *tokens = sc_heap_realloc(&cache->heap, lease->tokens,
        lease->token_cap * sizeof *tokens, cap * sizeof *tokens);
    if (!tokens) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u tokens", count);
    lease->tokens = tokens;
    lease->token_cap = (uint32_t)cap;
    return SC_OK;
}

sc_status sc_engine_marks_reserve(sc_cache *cache, struct lease *lease, uint32_t count)
{
    if (count <= lease->mark_cap) return SC_OK;
    uint32_t cap = count + count / 2 + 4;
    sc_mark *marks = sc_heap_realloc(&cache->heap, lease->marks,
        lease->mark_cap * sizeof *marks, cap * sizeof *marks);
    if (!marks) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u marks", count);
    lease->marks = marks;
    lease->mark_cap = cap;
    return SC_OK;
}

sc_status sc_engine_history_reserve(sc_cache *cache, struct lease *lease, uint32_t count)
{
    SC_TRY(sc_engine_reserve_scratch(cache, 1, count));
    if (count <= lease->history_cap) return SC_OK;
    uint32_t cap = count + count / 2 + 4;
    struct sc_stretch *history = sc_heap_realloc(&cache->heap, lease->history,
        lease->history_cap * sizeof *history, cap * sizeof *history);
    if (!history) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a history of %u", count);
    lease->history = history;
    lease->history_cap = cap;
    return SC_OK;
}

sc_status sc_engine_lease_reserve(sc_cache *cache, struct lease *lease, uint32_t kv_count)
{
    SC_TRY(sc_engine_history_reserve(cache, lease, lease->history_count + 1));
    uint32_t need = lease->kv_count + kv_count;
    if (need <= lease->kv_cap) return SC_OK;
    uint32_t cap = need + need / 2 + 16;
    int32_t *kv = sc_heap_alloc(&cache->heap, cap * sizeof *kv, 16);
    uint8_t *owner = kv ? sc_heap_alloc(&cache->heap, cap * sizeof *owner, 16) : NULL;
    if (!owner) {
        sc_heap_free(&cache->heap, kv, cap * sizeof *kv);
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u KV ids", need);
    }
    if (lease->kv_count > 0) {
        memcpy(kv, lease->kv, lease->kv_count * sizeof *kv);
        memcpy(owner, lease->kv_owner, lease->kv_count * sizeof *owner);
    }
    sc_heap_free(&cache->heap, lease->kv, lease->kv_cap * sizeof *kv);
    sc_heap_free(&cache->heap, lease->kv_owner, lease->kv_cap * sizeof *owner);
    lease->kv = kv;
    lease->kv_owner = owner;
    lease->kv_cap = cap;
    return SC_OK;
}

/* ---- creation ---- */

static sc_status lease_copy(sc_cache *cache, const sc_key *key, const struct sc_stretch *history,
    uint32_t history_count, struct lease *lease)
{
    SC_TRY(sc_engine_tokens_reserve(cache, lease, key->token_count));
    SC_TRY(sc_engine_marks_reserve(cache, lease, key->mark_count));
    SC_TRY(sc_engine_history_reserve(cache, lease, history_count + 1));
    memcpy(lease->tokens, key->tokens, key->token_count * sizeof *lease->tokens);
    lease->token_count = lease->prompt_len = key->token_count;
    if (key->mark_count > 0) {
        memcpy(lease->marks, key->marks, key->mark_count * sizeof *lease->marks);
    }
    lease->mark_count = key->mark_count;
    if (history_count > 0) memcpy(lease->history, history, history_count * sizeof *history);
    lease->history_count = history_count;
    lease->tail_kv = lease->end_tail = -1;
    for (uint32_t i = 0; i < SC_DEPTH_MAX; i++) lease->row[i] = NO_ROW;
    return SC_OK;
}

static sc_status lease_register(sc_cache *cache, struct lease *lease)
{
    struct lease *same = NULL;
    uint32_t id = cache->lease_id;
    do {
        id = id == UINT32_MAX ? 1 : id + 1;
        HASH_FIND(hh, cache->leases, &id, sizeof id, same);
    } while (same);
    lease->id = id;
    bool sc_map_oom = false;
    HASH_ADD(hh, cache->leases, id, sizeof lease->id, lease);
    if (sc_map_oom) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for the table of leases");
    return SC_OK;
}

sc_status sc_engine_lease_create(sc_cache *cache, const sc_key *key,
    const struct sc_stretch *history, uint32_t history_count, struct lease **lease_out)
{
    SC_TRY(sc_engine_pending_reserve(cache, 1));
    struct lease *lease = sc_heap_calloc(&cache->heap, 1, sizeof *lease);
    if (!lease) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a lease");
    sc_status status = lease_copy(cache, key, history, history_count, lease);
    if (status != SC_OK) goto out_lease;
    status = lease_register(cache, lease);
    if (status != SC_OK) goto out_lease;
    status = sc_radix_lock(cache->radix, SC_NODE_NONE, SC_RADIX_LOCK_KV, &lease->path);
    if (status != SC_OK) goto out_table;
    status = sc_radix_lock(cache->radix, SC_NODE_NONE, SC_RADIX_LOCK_STATE, &lease->pin);
    if (status != SC_OK) goto out_path;
    *lease_out = lease;
    return SC_OK;
out_path:
    (void)sc_radix_unlock(cache->radix, lease->path);
out_table:
    HASH_DEL(cache->leases, lease);
out_lease:
    sc_engine_lease_free(cache, lease);
    return status;
}

void sc_engine_lease_destroy(sc_cache *cache, struct lease *lease)
{
    sc_status status = sc_radix_unlock(cache->radix, lease->pin);
    SC_ASSERT(status == SC_OK); /* (10) */
    status = sc_radix_unlock(cache->radix, lease->path);
    SC_ASSERT(status == SC_OK);
    HASH_DEL(cache->leases, lease);
    sc_engine_lease_free(cache, lease);
}

sc_status sc_engine_take_slots(sc_cache *cache, struct lease *lease)
{
    if (cache->options.extras) {
        SC_TRY(sc_engine_extra_take(cache, &lease->extra));
    }
    sc_status status = sc_engine_slot_take(cache, SC_OWNER_WORKING, HUGE_VAL, &lease->working);
    if (status != SC_OK && cache->options.extras) {
        sc_engine_slot_free(cache->options.extras, lease->extra);
    }
    return status;
}

void sc_engine_give_slots(sc_cache *cache, struct lease *lease)
{
    sc_engine_slot_free(cache->options.pool, lease->working);
    if (cache->options.extras) sc_engine_slot_free(cache->options.extras, lease->extra);
}

void sc_engine_lease_enter(sc_cache *cache, struct lease *lease, struct space *space)
{
    if (++cache->generation == 0) cache->generation = 1;
    lease->generation = cache->generation;
    cache->lease_id = lease->id;
    cache->lease_count++;
    lease->space = space;
    space->lease_count++;
    lease->next_source = lease->source;
    lease->next_dest = lease->working;
    sc_engine_issue(cache, lease);
    sc_engine_pending_add(cache, lease);
    cache->stats.acquired++;
    cache->stats.reason_count[lease->reason]++;
}

sc_node sc_engine_above_tail(const sc_cache *cache, sc_node node, uint32_t len)
{
    struct sc_radix_node_info info = {0};
    if (cache->options.without_kv) return SC_NODE_NONE; /* no pages to hold */
    if (len % cache->page == 0) return node;
    sc_status status = sc_radix_node_get(cache->radix, node, &info);
    SC_ASSERT(status == SC_OK);
    return info.parent;
}

/* ---- acquire ---- */

static sc_status check_hints(const sc_hints *hints, uint32_t token_count)
{
    const uint32_t flags = SC_HINT_CONTINUES | SC_HINT_OVER;
    if (!hints) return SC_OK;
    SC_REQUIRE((hints->flags & ~flags) == 0 && (hints->flags & flags) != flags);
    SC_REQUIRE(hints->breakpoints || hints->breakpoint_count == 0);
    SC_REQUIRE(hints->breakpoint_count <= SC_BREAKPOINTS_MAX);
    uint32_t before = 0;
    for (uint32_t i = 0; i < hints->breakpoint_count; i++) {
        uint32_t at = hints->breakpoints[i];
        if (at <= before || at > token_count) {
            return SC_FAIL(SC_ERR_INVALID, "breakpoint %u: not ascending within (0, %u]", at,
                token_count);
        }
        before = at;
    }
    return SC_OK;
}

static sc_status check_request(const sc_cache *cache, const sc_request *request,
    uint32_t *len_max_out)
{
    const uint32_t flags = SC_REQUEST_EXTERNAL | SC_REQUEST_COPY | SC_REQUEST_AGAIN;
    SC_TRY(sc_engine_key_check(cache, &request->key, len_max_out));
    SC_TRY(check_hints(request->hints, request->key.token_count));
    SC_REQUIRE((request->flags & ~flags) == 0);
    bool external = request->flags & SC_REQUEST_EXTERNAL;
    SC_REQUIRE(external == (request->external_len > 0));
    SC_REQUIRE(request->external_len <= request->key.token_count);
    SC_REQUIRE(request->reserved32 == 0);
    for (uint32_t i = 0; i < 6; i++) SC_REQUIRE(request->reserved[i] == 0);
    if (request->depth > cache->options.depth_max) {
        return SC_FAIL(SC_ERR_UNSUPPORTED, "depth %u, depth_max is %u", request->depth,
            cache->options.depth_max);
    }
    if (request->key.token_count > cache->options.lease_token_max) {
        return SC_FAIL(SC_ERR_LIMIT, "%u tokens, lease_token_max is %u", request->key.token_count,
            cache->options.lease_token_max);
    }
    if (cache->lease_count >= cache->options.lease_max) {
        return SC_FAIL(SC_ERR_LIMIT, "%u leases are alive, lease_max", cache->lease_count);
    }
    return SC_OK;
}

/* Where this lease saves: see SC_SAVE_ in cache.h, and its breakpoints. */
static void plan_positions(const sc_cache *cache, struct lease *lease, uint32_t branch_len,
    const sc_hints *hints)
{
    uint32_t from = lease->external_len > lease->len ? lease->external_len : lease->len;
    bool branch = (cache->options.save_flags & SC_SAVE_BRANCH) && branch_len > from;
    if (branch && !cache->policy) lease->branch_len = branch_len;
    if (cache->options.save_flags & SC_SAVE_PROMPT_END) {
        bool exact = lease->prompt_len % cache->page == 0 || cache->options.tails;
        uint32_t unit = exact ? 1 : cache->grid;
        uint32_t end = lease->prompt_len - lease->prompt_len % unit;
        lease->prompt_end = end > lease->resume_len ? end : 0;
    }
    if (cache->policy) return; /* the rest is its to say */
    for (uint32_t i = 0; hints && i < hints->breakpoint_count; i++) {
        uint32_t at = hints->breakpoints[i] - hints->breakpoints[i] % cache->grid;
        uint32_t count = lease->inner_count;
        if (at <= from || (count > 0 && lease->inner[count - 1].position == at)) continue;
        lease->inner[lease->inner_count++] = (struct inner){at, SC_KIND_POINT};
    }
}

static void take_hints(struct lease *lease, const sc_request *request)
{
    lease->depth = request->depth ? request->depth : 1;
    lease->flags = request->flags;
    if (!request->hints) return;
    lease->hints = (struct sc_snapshot_hints){
        .pin_until_ns = request->hints->pin_until_ns,
        .ttl_ns = request->hints->ttl_ns,
        .priority = request->hints->priority,
        .class_id = request->hints->class_id,
        .flags = request->hints->flags,
    };
}

void sc_engine_take_hit(sc_cache *cache, struct lease *lease, const struct sc_radix_match *match,
    const struct sc_snapshot_info *hit)
{
    lease->source = hit->slot;
    lease->pinned = true;
    lease->resume_slot = hit->slot.id;
    lease->resume_kind = (sc_save_kind)hit->kind;
    lease->resume_hints = hit->hints;
    lease->len = lease->resume_len = match->state_len;
    sc_engine_ring_resume(lease, hit);
    uint32_t whole = sc_engine_page_floor(cache, match->state_len);
    lease->inserted_len = cache->options.without_kv ? 0 : whole;
    lease->tail_kv = match->tail_kv;
    lease->kv_base = cache->options.without_kv ? 0 : match->state_len / cache->page;
    sc_engine_relock(cache, &lease->path,
        sc_engine_above_tail(cache, match->state_node, match->state_len), SC_RADIX_LOCK_KV);
    sc_engine_relock(cache, &lease->pin, match->state_node, SC_RADIX_LOCK_STATE);
}

/* Slots for a lease on its hit. Where no lease is alive and its own pin holds the last slot,
 * waiting for a release would be in vain: it starts cold then. */
static sc_status take_slots_or_start_cold(sc_cache *cache, struct lease *lease,
    struct sc_radix_match *match)
{
    sc_status status = sc_engine_take_slots(cache, lease);
    if (status != SC_ERR_NO_SLOT || match->state_len == 0 || cache->lease_count > 0) return status;
    sc_engine_relock(cache, &lease->pin, SC_NODE_NONE, SC_RADIX_LOCK_STATE);
    sc_engine_relock(cache, &lease->path, SC_NODE_NONE, SC_RADIX_LOCK_KV);
    lease->pinned = false;
    lease->source = SC_SLOT_NULL;
    sc_engine_ring_resume(lease, &(struct sc_snapshot_info){.records = 0});
    lease->resume_slot = lease->len = lease->resume_len = 0;
    lease->resume_kind = SC_KIND_NONE;
    lease->resume_hints = (struct sc_snapshot_hints){0};
    lease->inserted_len = lease->kv_base = lease->history_count = 0;
    lease->tail_kv = -1;
    lease->reason = SC_REASON_EVICTED;
    *match = (struct sc_radix_match){.tail_kv = -1, .evicted_len = match->state_len};
    return sc_engine_take_slots(cache, lease);
}

/* Where the lease saves. The last that may be refused. */
static sc_status lease_choose(sc_cache *cache, struct lease *lease, const sc_request *request,
    const struct sc_radix_match *match, uint32_t len_max, uint32_t beyond)
{
    take_hints(lease, request);
    lease->external_len = lease->len < request->external_len ? request->external_len : 0;
    lease->waiting = lease->external_len > 0;
    plan_positions(cache, lease, match->branch_len, request->hints);
    /* A prompt asked again: its end needs no slot. (Whoever sets len_max wants it computed and
     * saved again.) */
    bool again = request->key.len_max == 0 && beyond > 0 && beyond == lease->prompt_end;
    SC_TRY(sc_engine_pin_take(cache, lease));
    sc_status status = sc_engine_policy_begin(cache, lease, match, len_max, again ? beyond : 0,
        request->hints);
    if (status != SC_OK) sc_engine_pin_leave(cache, lease);
    if (again) lease->prompt_end = 0;
    return status;
}

/* Nothing fails any more. */
static void lease_start(sc_cache *cache, struct lease *lease, const sc_request *request,
    const struct sc_radix_match *match)
{
    sc_cache_stats *stats = &cache->stats;
    sc_engine_lease_enter(cache, lease, sc_engine_space(cache, request->key.ns));
    sc_radix_touch(cache->radix, match);
    if (lease->flags & SC_REQUEST_AGAIN) {
        stats->again++;
        stats->tokens_again += lease->prompt_len;
        stats->tokens_again_hit += lease->len;
    } else {
        stats->tokens_asked += lease->prompt_len;
        stats->tokens_hit += lease->len;
    }
    if (!lease->pinned) return;
    sc_registry_count_hit(cache->registry, match->snapshot);
    sc_engine_tier_used(cache, match->snapshot);
    stats->resumed++;
    stats->resumed_by_kind[lease->resume_kind]++;
}

static sc_status acquire_one(sc_cache *cache, const sc_request *request, sc_lease *lease_out,
    struct fills *fills)
{
    uint32_t len_max = 0;
    SC_TRY(check_request(cache, request, &len_max));
    struct sc_radix_match match;
    struct space *space = sc_engine_space(cache, request->key.ns);
    const struct sc_radix_key path = {request->key.tokens, request->key.token_count,
        request->key.marks, request->key.mark_count};
    SC_TRY(sc_radix_match(cache->radix, space->radix_space, &path, len_max, &match));
    sc_step step = 0;
    uint32_t beyond =
        sc_engine_state_beyond(cache, &path, space->radix_space, &match, len_max);
    sc_reason reason = sc_engine_reason(cache, &match, len_max, beyond);
    if (sc_engine_pending_find(cache, space, &request->key, match.state_len, len_max, &step) > 0) {
        reason = SC_REASON_PENDING;
    }
    struct sc_snapshot_info hit = {0};
    if (match.state_len < request->external_len) { /* all of it comes from elsewhere */
        match.state_len = match.snapshot = 0;
        match.state_node = SC_NODE_NONE;
    }
    if (match.state_len > 0) {
        sc_status found = sc_registry_get(cache->registry, match.snapshot, &hit);
        SC_ASSERT(found == SC_OK && hit.token_count == match.state_len); /* (2) */
    }
    struct lease *lease = NULL;
    SC_TRY(sc_engine_lease_create(cache, &request->key, hit.history, hit.history_count, &lease));
    lease->reason = reason;
    lease->source = SC_SLOT_NULL;
    if (match.state_len > 0) sc_engine_take_hit(cache, lease, &match, &hit);
    lease->space = space;
    sc_status status = take_slots_or_start_cold(cache, lease, &match); /* may evict, hence last */
    if (status != SC_OK) {
        sc_engine_lease_destroy(cache, lease);
        return status;
    }
    if (beyond > 0) { /* unless the state there has just gone to make room */
        beyond = sc_engine_state_beyond(cache, &path, space->radix_space, &match, len_max);
    }
    status = lease_choose(cache, lease, request, &match, len_max, beyond);
    if (status != SC_OK) {
        sc_engine_give_slots(cache, lease);
        sc_engine_lease_destroy(cache, lease);
        return status;
    }
    sc_engine_tier_begin(cache, lease, request, len_max, fills);
    lease_start(cache, lease, request, &match);
    *lease_out = (sc_lease){lease->id, lease->generation};
    return SC_OK;
}

static void acquire_some(sc_cache *cache, const sc_request *requests, uint32_t count,
    uint64_t now_ns, sc_lease *leases_out, sc_status *each_out, struct fills *fills)
{
    sc_rwlock_lock(&cache->lock);
    uint64_t words = sc_engine_record_acquire_words(cache, requests, count);
    sc_status status = sc_engine_record_room(cache, words);
    bool later = status == SC_OK && sc_engine_time(cache, now_ns);
    for (uint32_t i = 0; i < count; i++) {
        leases_out[i] = (sc_lease){0, 0};
        each_out[i] = status;
        if (status == SC_OK) {
            each_out[i] = acquire_one(cache, &requests[i], &leases_out[i], fills);
        }
        if (each_out[i] == SC_ERR_NO_SLOT || each_out[i] == SC_ERR_LIMIT) cache->stats.refused++;
        if (each_out[i] != SC_OK) continue;
        sc_engine_fill_add(cache, fills, sc_engine_lease(cache, leases_out[i]));
    }
    if (status == SC_OK) {
        sc_engine_record_acquire(cache, requests, count, now_ns, leases_out, each_out, later);
    }
    sc_rwlock_unlock(&cache->lock);
}

/* What the counters say of a new lease is taken back, too. */
static void uncount(sc_cache *cache, const struct lease *lease, bool forked)
{
    sc_cache_stats *stats = &cache->stats;
    stats->acquired--;
    stats->released--;
    stats->reason_count[lease->reason]--;
    stats->forked -= forked;
    if (forked) return;
    if (lease->flags & SC_REQUEST_AGAIN) {
        stats->again--;
        stats->tokens_again -= lease->prompt_len;
        stats->tokens_again_hit -= lease->len;
    } else {
        stats->tokens_asked -= lease->prompt_len;
        stats->tokens_hit -= lease->len;
    }
    stats->resumed -= lease->pinned;
    stats->resumed_by_kind[lease->resume_kind] -= lease->pinned;
}

sc_status sc_engine_lease_undo(sc_cache *cache, sc_lease handle, bool forked)
{
    struct lease *lease = NULL;
    sc_rwlock_lock(&cache->lock);
    sc_status status = sc_engine_lease_find(cache, handle, &lease);
    if (status == SC_OK && (lease->flights > 0 || lease->len != lease->resume_len)) {
        status = SC_FAIL(SC_ERR_STATE, "lease %u is not new", handle.id);
    }
    if (status == SC_OK) {
        uncount(cache, lease, forked);
        lease->learned = false; /* it was not served */
        sc_engine_lease_end(cache, lease, SC_RELEASE_DISCARD, 0);
        sc_engine_record_undo(cache, handle, forked);
    }
    sc_rwlock_unlock(&cache->lock);
    return status;
}

/* Their slots cannot be prepared: they were never there. */
static void acquire_undo(sc_cache *cache, sc_lease *leases, sc_status *each, uint32_t count,
    sc_status why)
{
    for (uint32_t i = 0; i < count; i++) {
        if (each[i] != SC_OK) continue;
        (void)sc_engine_lease_undo(cache, leases[i], false);
        leases[i] = (sc_lease){0, 0};
        each[i] = why;
    }
}

enum { ACQUIRE_BATCH = 32 }; /* items under one hold of the lock */

sc_status sc_cache_acquire(sc_cache *cache, const sc_request *requests, uint32_t count,
    uint64_t now_ns, sc_lease *leases_out, sc_status *each_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE((requests && leases_out && each_out) || count == 0);
    if (count == 0) acquire_some(cache, requests, 0, now_ns, leases_out, each_out, NULL);
    for (uint32_t i = 0; i < count; i += ACQUIRE_BATCH) {
        sc_slot slots[2 * ACQUIRE_BATCH], extras[ACQUIRE_BATCH]; /* working, and to restore to */
        struct fills fills = {.slots = slots, .extras = extras};
        uint32_t some = count - i < ACQUIRE_BATCH ? count - i : ACQUIRE_BATCH;
        acquire_some(cache, requests + i, some, now_ns, leases_out + i, each_out + i, &fills);
        sc_status status = sc_engine_fill(cache, &fills);
        sc_engine_tier_submit(cache, &fills, status);
        if (status != SC_OK) acquire_undo(cache, leases_out + i, each_out + i, some, status);
    }
    return SC_OK;
}
