/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: from acquire to release. The drawing of their states and of their slots, and the
 * invariants that comments here cite, are in cache_internal.h. */
#include <string.h>

#include "cache_internal.h"

enum { SPAN_BATCH = 32 };

struct lease *sc_engine_lease(const sc_cache *cache, sc_lease handle)
{
    struct lease *lease = NULL;
    HASH_FIND(hh, cache->leases, &handle.id, sizeof handle.id, lease);
    return lease && lease->generation == handle.generation ? lease : NULL;
}

static sc_status lease_find(const sc_cache *cache, sc_lease handle, struct lease **lease_out)
{
    *lease_out = sc_engine_lease(cache, handle);
    if (*lease_out) return SC_OK;
    return SC_FAIL(SC_ERR_STALE, "lease %u/%u is not alive", handle.id, handle.generation);
}

sc_status sc_engine_key_check(const sc_cache *cache, const sc_key *key, uint32_t *len_max_out)
{
    if (key->mark_count > 0) return SC_FAIL(SC_ERR_UNSUPPORTED, "marks are not there yet");
    SC_REQUIRE(key->tokens);
    SC_REQUIRE(key->token_count > 0);
    SC_REQUIRE(key->token_count <= INT32_MAX);
    SC_REQUIRE(key->len_max <= key->token_count);
    if (!sc_engine_space(cache, key->ns)) {
        return SC_FAIL(SC_ERR_STALE, "namespace %u/%u is not open", key->ns.id, key->ns.generation);
    }
    *len_max_out = key->len_max ? key->len_max : key->token_count - 1;
    return SC_OK;
}

sc_reason sc_engine_reason(const sc_cache *cache, const struct sc_radix_match *match,
    uint32_t len_max)
{
    uint32_t best = sc_engine_page_floor(cache, len_max);
    if (best == 0) return SC_REASON_TOO_SHORT;
    if (match->state_len == best) return SC_REASON_NONE;
    if (match->evicted_len > match->state_len) return SC_REASON_EVICTED;
    return match->kv_len > match->state_len ? SC_REASON_NO_STATE : SC_REASON_NO_PREFIX;
}

/* ---- memory ---- */

static void lease_free(sc_cache *cache, struct lease *lease)
{
    struct sc_heap *heap = &cache->heap;
    sc_heap_free(heap, lease->tokens, lease->token_cap * sizeof *lease->tokens);
    sc_heap_free(heap, lease->history, lease->history_cap * sizeof *lease->history);
    sc_heap_free(heap, lease->kv, lease->kv_cap * sizeof *lease->kv);
    sc_heap_free(heap, lease->kv_owner, lease->kv_cap * sizeof *lease->kv_owner);
    sc_heap_free(heap, lease, sizeof *lease);
}

static sc_status tokens_reserve(sc_cache *cache, struct lease *lease, uint32_t count)
{
    SC_TRY(sc_engine_reserve_scratch(cache, count / cache->page, 1));
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

static sc_status history_reserve(sc_cache *cache, struct lease *lease, uint32_t count)
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
    SC_TRY(history_reserve(cache, lease, lease->history_count + 1));
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

/* ---- acquire ---- */

static sc_status lease_new(sc_cache *cache, const sc_key *key, const struct sc_snapshot_info *hit,
    struct lease **lease_out)
{
    struct lease *lease = sc_heap_calloc(&cache->heap, 1, sizeof *lease);
    if (!lease) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a lease");
    sc_status status = tokens_reserve(cache, lease, key->token_count);
    if (status == SC_OK) status = history_reserve(cache, lease, hit->history_count + 1);
    if (status != SC_OK) {
        lease_free(cache, lease);
        return status;
    }
    memcpy(lease->tokens, key->tokens, key->token_count * sizeof *lease->tokens);
    lease->token_count = lease->prompt_len = key->token_count;
    if (hit->history_count > 0) {
        memcpy(lease->history, hit->history, hit->history_count * sizeof *lease->history);
    }
    lease->history_count = hit->history_count;
    lease->state = SC_LEASE_READY;
    *lease_out = lease;
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

/* Where this lease saves: see SC_SAVE_ in cache.h. */
static void plan_positions(const sc_cache *cache, struct lease *lease,
    const struct sc_radix_match *match)
{
    if (cache->options.save_flags & SC_SAVE_BRANCH) lease->branch_len = match->branch_len;
    if (cache->options.save_flags & SC_SAVE_PROMPT_END) {
        uint32_t unit = lease->prompt_len % cache->page == 0 ? 1 : cache->grid;
        uint32_t end = lease->prompt_len - lease->prompt_len % unit;
        lease->prompt_end = end > lease->resume_len ? end : 0;
    }
}

/* The last step: nothing fails after it. */
static void lease_start(sc_cache *cache, struct lease *lease, struct space *space,
    const struct sc_radix_match *match, const struct sc_snapshot_info *hit, sc_reason reason)
{
    sc_cache_stats *stats = &cache->stats;
    if (++cache->generation == 0) cache->generation = 1;
    lease->generation = cache->generation;
    cache->lease_id = lease->id;
    cache->lease_count++;
    lease->space = space;
    space->lease_count++;
    lease->len = lease->resume_len = lease->inserted_len = match->state_len;
    lease->kv_base = cache->options.without_kv ? 0 : match->state_len / cache->page;
    lease->reason = reason;
    lease->source = SC_SLOT_NULL;
    if (match->state_len > 0) {
        lease->source = hit->slot;
        lease->pinned = true;
        lease->resume_slot = hit->slot.id;
        lease->resume_kind = (sc_save_kind)hit->kind;
        sc_registry_count_hit(cache->registry, match->snapshot);
        stats->resumed++;
        stats->resumed_by_kind[hit->kind]++;
    }
    plan_positions(cache, lease, match);
    sc_radix_touch(cache->radix, match);
    stats->acquired++;
    stats->tokens_asked += lease->prompt_len;
    stats->tokens_hit += match->state_len;
    stats->reason_count[reason]++;
}

static sc_status take_slots(sc_cache *cache, struct lease *lease)
{
    if (cache->options.extras) {
        SC_TRY(sc_pool_alloc(cache->options.extras, 1, SC_OWNER_WORKING, &lease->extra));
    }
    sc_status status = sc_engine_slot_take(cache, SC_OWNER_WORKING, &lease->working);
    if (status != SC_OK && cache->options.extras) {
        sc_engine_slot_free(cache->options.extras, lease->extra);
    }
    return status;
}

static sc_status acquire_one(sc_cache *cache, const sc_request *request, sc_lease *lease_out)
{
    uint32_t len_max = 0;
    SC_TRY(sc_engine_key_check(cache, &request->key, &len_max));
    if (request->flags != 0 || request->depth > 1 || request->hints) {
        return SC_FAIL(SC_ERR_UNSUPPORTED, "flags, hints, a depth above 1 are not there yet");
    }
    SC_REQUIRE(request->reserved32 == 0 && request->external_len == 0);
    for (uint32_t i = 0; i < 6; i++) SC_REQUIRE(request->reserved[i] == 0);
    if (request->key.token_count > cache->options.lease_token_max) {
        return SC_FAIL(SC_ERR_LIMIT, "%u tokens, lease_token_max is %u", request->key.token_count,
            cache->options.lease_token_max);
    }
    if (cache->lease_count >= cache->options.lease_max) {
        return SC_FAIL(SC_ERR_LIMIT, "%u leases are alive, lease_max", cache->lease_count);
    }
    struct space *space = sc_engine_space(cache, request->key.ns);
    struct sc_radix_match match;
    const struct sc_radix_key path = {request->key.tokens, request->key.token_count,
        request->key.marks, request->key.mark_count};
    SC_TRY(sc_radix_match(cache->radix, space->radix_space, &path, len_max, &match));
    struct sc_snapshot_info hit = {0};
    if (match.state_len > 0) {
        sc_status found = sc_registry_get(cache->registry, match.snapshot, &hit);
        SC_ASSERT(found == SC_OK && hit.token_count == match.state_len); /* (2) */
    }
    struct lease *lease = NULL;
    SC_TRY(lease_new(cache, &request->key, &hit, &lease));
    sc_status status = lease_register(cache, lease);
    if (status != SC_OK) goto out_lease;
    sc_node node = match.state_len > 0 ? match.state_node : SC_NODE_NONE;
    status = sc_radix_lock(cache->radix, node, SC_RADIX_LOCK_KV, &lease->path);
    if (status != SC_OK) goto out_table;
    status = sc_radix_lock(cache->radix, node, SC_RADIX_LOCK_STATE, &lease->pin);
    if (status != SC_OK) goto out_path;
    status = take_slots(cache, lease); /* may evict, hence last */
    if (status != SC_OK) goto out_pin;
    lease_start(cache, lease, space, &match, &hit, sc_engine_reason(cache, &match, len_max));
    *lease_out = (sc_lease){lease->id, lease->generation};
    return SC_OK;
out_pin:
    (void)sc_radix_unlock(cache->radix, lease->pin);
out_path:
    (void)sc_radix_unlock(cache->radix, lease->path);
out_table:
    HASH_DEL(cache->leases, lease);
out_lease:
    lease_free(cache, lease);
    return status;
}

sc_status sc_cache_acquire(sc_cache *cache, const sc_request *requests, uint32_t count,
    uint64_t now_ns, sc_lease *leases_out, sc_status *each_out)
{
    (void)now_ns; /* no deadlines yet */
    SC_REQUIRE(cache);
    SC_REQUIRE((requests && leases_out && each_out) || count == 0);
    sc_rwlock_lock(&cache->lock);
    for (uint32_t i = 0; i < count; i++) {
        leases_out[i] = (sc_lease){0, 0};
        each_out[i] = acquire_one(cache, &requests[i], &leases_out[i]);
        if (each_out[i] == SC_ERR_NO_SLOT || each_out[i] == SC_ERR_LIMIT) cache->stats.refused++;
    }
    sc_rwlock_unlock(&cache->lock);
    return SC_OK;
}

/* ---- reading ---- */

sc_status sc_lease_info_get(const sc_cache *cache, sc_lease handle, sc_lease_info *info_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(info_out);
    sc_rwlock_lock_shared(&cache->lock);
    struct lease *lease = NULL;
    sc_status status = lease_find(cache, handle, &lease);
    if (status == SC_OK) {
        *info_out = (sc_lease_info){
            .state = lease->state,
            .resume_len = lease->resume_len,
            .resume_kind = lease->resume_kind,
            .resume_slot = lease->resume_slot,
            .prompt_len = lease->prompt_len,
            .len = lease->len,
            .token_count = lease->token_count,
            .branch_len = lease->branch_len,
            .reason = lease->reason,
            .working_slot = (int32_t)lease->working.id,
            .source_slot = (int32_t)lease->source.id,
            .extra_slot = cache->options.extras ? (int32_t)lease->extra.id : -1,
            .kv_page_count = lease->kv_base + lease->kv_count,
        };
    }
    sc_rwlock_unlock_shared(&cache->lock);
    return status;
}

sc_status sc_lease_history(const sc_cache *cache, sc_lease handle, sc_history *history_out,
    uint32_t cap, uint32_t *count_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(history_out || cap == 0);
    SC_REQUIRE(count_out);
    sc_rwlock_lock_shared(&cache->lock);
    struct lease *lease = NULL;
    sc_status status = lease_find(cache, handle, &lease);
    if (status == SC_OK) {
        *count_out = lease->history_count;
        for (uint32_t i = 0; i < lease->history_count && i < cap; i++) {
            const struct sc_stretch *stretch = &lease->history[i];
            history_out[i] = (sc_history){stretch->end, (sc_form_kind)stretch->form};
        }
        if (cap < lease->history_count) {
            status = SC_FAIL(SC_ERR_LIMIT, "%u stretches, room for %u", lease->history_count, cap);
        }
    }
    sc_rwlock_unlock_shared(&cache->lock);
    return status;
}

/* Up to SPAN_BATCH spans of the tree's pages [page, kv_base) of a lease. */
static uint32_t tree_spans(const sc_cache *cache, const struct lease *lease, uint32_t page,
    struct sc_radix_span *spans)
{
    uint32_t total = 0, count = 0, what = 0;
    sc_node node = SC_NODE_NONE;
    if (page >= lease->kv_base) return 0;
    sc_status status = sc_radix_receipt_get(cache->radix, lease->path, &node, &what);
    SC_ASSERT(status == SC_OK); /* (10) */
    status = sc_radix_spans(cache->radix, node, page, spans, SPAN_BATCH, &total);
    SC_ASSERT(status == SC_OK || status == SC_ERR_LIMIT);
    for (; count < total && count < SPAN_BATCH; count++) {
        struct sc_radix_span *span = &spans[count];
        if (span->page_first >= lease->kv_base) break;
        uint32_t left = lease->kv_base - span->page_first;
        if (span->page_count > left) span->page_count = left;
    }
    SC_ASSERT(count > 0); /* (6) */
    return count;
}

/* Calls for each span of the ids that the lease reads, from `page` on. */
typedef void (*span_fn)(void *ctx, const int32_t *ids, uint32_t page_first, uint32_t page_count);
static void each_span(const sc_cache *cache, const struct lease *lease, uint32_t page, span_fn fn,
    void *ctx)
{
    struct sc_radix_span spans[SPAN_BATCH];
    uint32_t count = 0;
    while ((count = tree_spans(cache, lease, page, spans)) > 0) {
        for (uint32_t i = 0; i < count; i++) {
            fn(ctx, spans[i].ids, spans[i].page_first, spans[i].page_count);
        }
        page = spans[count - 1].page_first + spans[count - 1].page_count;
    }
    uint32_t end = lease->kv_base + lease->kv_count;
    if (page < end) fn(ctx, lease->kv + (page - lease->kv_base), page, end - page);
}

struct span_list { sc_kv_span *spans; uint32_t cap, count; };

static void collect_span(void *ctx, const int32_t *ids, uint32_t page_first, uint32_t page_count)
{
    struct span_list *list = ctx;
    if (list->count < list->cap) {
        list->spans[list->count] = (sc_kv_span){ids, page_first, page_count};
    }
    list->count++;
}

sc_status sc_lease_kv_spans(const sc_cache *cache, sc_lease handle, uint32_t page_first,
    sc_kv_span *spans_out, uint32_t cap, uint32_t *count_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(spans_out || cap == 0);
    SC_REQUIRE(count_out);
    sc_rwlock_lock_shared(&cache->lock);
    struct lease *lease = NULL;
    sc_status status = lease_find(cache, handle, &lease);
    if (status == SC_OK) {
        struct span_list list = {spans_out, cap, 0};
        each_span(cache, lease, page_first, collect_span, &list);
        *count_out = list.count;
        if (list.count > cap) {
            status = SC_FAIL(SC_ERR_LIMIT, "%u spans, room for %u", list.count, cap);
        }
    }
    sc_rwlock_unlock_shared(&cache->lock);
    return status;
}

static void copy_span(void *ctx, const int32_t *ids, uint32_t page_first, uint32_t page_count)
{
    int32_t **out = ctx;
    (void)page_first;
    memcpy(*out, ids, page_count * sizeof *ids);
    *out += page_count;
}

sc_status sc_lease_kv_ids(const sc_cache *cache, sc_lease handle, uint32_t page_first,
    int32_t *ids_out, uint32_t cap, uint32_t *count_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(ids_out || cap == 0);
    SC_REQUIRE(count_out);
    sc_rwlock_lock_shared(&cache->lock);
    struct lease *lease = NULL;
    sc_status status = lease_find(cache, handle, &lease);
    if (status == SC_OK) {
        uint32_t end = lease->kv_base + lease->kv_count;
        *count_out = page_first < end ? end - page_first : 0;
        if (*count_out > cap) {
            status = SC_FAIL(SC_ERR_LIMIT, "%u pages, room for %u", *count_out, cap);
        } else if (*count_out > 0) {
            each_span(cache, lease, page_first, copy_span, &ids_out);
        }
    }
    sc_rwlock_unlock_shared(&cache->lock);
    return status;
}

/* ---- changing ---- */

static sc_status lease_append(sc_cache *cache, sc_lease handle, const int32_t *tokens,
    uint32_t count)
{
    struct lease *lease = NULL;
    SC_TRY(lease_find(cache, handle, &lease));
    if (lease->state == SC_LEASE_LOST || lease->state == SC_LEASE_DRAINING) {
        return SC_FAIL(SC_ERR_STATE, "lease %u is lost or draining", handle.id);
    }
    if (count > cache->options.lease_token_max - lease->token_count) {
        return SC_FAIL(SC_ERR_LIMIT, "%u more than %u tokens, lease_token_max is %u", count,
            lease->token_count, cache->options.lease_token_max);
    }
    if (count == 0) return SC_OK;
    SC_TRY(tokens_reserve(cache, lease, lease->token_count + count));
    memcpy(lease->tokens + lease->token_count, tokens, count * sizeof *tokens);
    lease->token_count += count;
    return SC_OK;
}

sc_status sc_lease_append(sc_cache *cache, sc_lease handle, const int32_t *tokens, uint32_t count)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(tokens || count == 0);
    sc_rwlock_lock(&cache->lock);
    sc_status status = lease_append(cache, handle, tokens, count);
    sc_rwlock_unlock(&cache->lock);
    return status;
}

sc_status sc_lease_append_marked(sc_cache *cache, sc_lease handle, const int32_t *tokens,
    uint32_t count, const sc_mark *marks, uint32_t mark_count)
{
    SC_REQUIRE(marks || mark_count == 0);
    if (mark_count > 0) return SC_FAIL(SC_ERR_UNSUPPORTED, "marks are not there yet");
    return sc_lease_append(cache, handle, tokens, count);
}

sc_status sc_lease_filled(sc_cache *cache, sc_lease lease, const int32_t *kv_ids,
    uint32_t kv_count, const sc_history *history, uint32_t history_count)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(kv_ids || kv_count == 0);
    SC_REQUIRE(history || history_count == 0);
    return SC_FAIL(SC_ERR_UNSUPPORTED, "lease %u: EXTERNAL is not there yet", lease.id);
}

sc_status sc_lease_fork(sc_cache *cache, sc_lease lease, int32_t tail_kv, uint32_t count,
    sc_lease *children_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(count > 0);
    SC_REQUIRE(children_out);
    SC_REQUIRE(tail_kv >= -1);
    return SC_FAIL(SC_ERR_UNSUPPORTED, "lease %u: forks are not there yet", lease.id);
}

/* Swaps the duplicates within one span of the tree for the tree's ids. */
static uint32_t adopt_span(sc_cache *cache, struct lease *lease, const struct sc_radix_span *span)
{
    uint32_t adopted = 0;
    for (uint32_t p = 0; p < span->page_count; p++) {
        uint32_t i = span->page_first + p - lease->kv_base;
        if (i >= lease->kv_count || lease->kv_owner[i] != KV_DUPLICATE) continue;
        sc_engine_drain_push(cache, &lease->kv[i], 1);
        lease->kv[i] = span->ids[p];
        lease->kv_owner[i] = KV_TREE;
        cache->kv_held--;
        adopted++;
    }
    return adopted;
}

static sc_status lease_adopt(sc_cache *cache, sc_lease handle, uint32_t *count_out)
{
    struct lease *lease = NULL;
    SC_TRY(lease_find(cache, handle, &lease));
    if (lease->state != SC_LEASE_READY) {
        return SC_FAIL(SC_ERR_STATE, "lease %u is not ready: a forward reads the old ids",
            handle.id);
    }
    uint32_t adopted = 0, page = lease->kv_base, end = lease->inserted_len / cache->page, what = 0;
    sc_node node = SC_NODE_NONE;
    sc_status status = sc_radix_receipt_get(cache->radix, lease->path, &node, &what);
    SC_ASSERT(status == SC_OK); /* (10) */
    while (!cache->options.without_kv && page < end) {
        struct sc_radix_span spans[SPAN_BATCH];
        uint32_t count = 0;
        status = sc_radix_spans(cache->radix, node, page, spans, SPAN_BATCH, &count);
        SC_ASSERT(status == SC_OK || status == SC_ERR_LIMIT);
        if (count > SPAN_BATCH) count = SPAN_BATCH;
        SC_ASSERT(count > 0); /* (6) */
        for (uint32_t i = 0; i < count; i++) adopted += adopt_span(cache, lease, &spans[i]);
        page = spans[count - 1].page_first + spans[count - 1].page_count;
    }
    cache->stats.pages_adopted += adopted;
    *count_out = adopted;
    return SC_OK;
}

sc_status sc_lease_adopt(sc_cache *cache, sc_lease handle, uint32_t *count_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(count_out);
    sc_rwlock_lock(&cache->lock);
    sc_status status = lease_adopt(cache, handle, count_out);
    sc_rwlock_unlock(&cache->lock);
    return status;
}

/* ---- release ---- */

/* Publishes what KEEP asks for. True: the working slot is a snapshot now. */
static bool keep_end(sc_cache *cache, struct lease *lease, uint32_t len)
{
    uint32_t whole = sc_engine_page_floor(cache, len);
    /* The working slot holds the state at `len` if the last step wrote it and did not freeze it. */
    bool state = (cache->options.save_flags & SC_SAVE_END) && len == lease->len && whole == len &&
        len > 0 && lease->source.id == lease->working.id;
    bool saved = false;
    if (state || whole > lease->inserted_len) {
        struct step_save save = {0, len, SC_KIND_END, lease->working};
        struct published published;
        cache->stats.saves_planned += state;
        sc_engine_publish(cache, lease, whole, &save, state, true, &published);
        saved = state && published.status == SC_OK;
    }
    if (saved || lease->decode_len > len) {
        sc_node node = SC_NODE_NONE;
        uint32_t what = 0;
        sc_status status = sc_radix_receipt_get(cache->radix, lease->path, &node, &what);
        SC_ASSERT(status == SC_OK); /* (10) */
        sc_engine_decode_drop(cache, lease, node);
    }
    return saved;
}

void sc_engine_lease_end(sc_cache *cache, struct lease *lease, enum sc_release how, uint32_t len)
{
    bool saved = false;
    /* nothing will be read any more */
    sc_status status = sc_radix_unlock(cache->radix, lease->pin);
    SC_ASSERT(status == SC_OK); /* (10) */
    if (how == SC_RELEASE_KEEP && lease->state != SC_LEASE_LOST) {
        saved = keep_end(cache, lease, len ? len : lease->len);
    }
    for (uint32_t i = 0; i < lease->kv_count; i++) {
        if (lease->kv_owner[i] == KV_TREE) continue;
        sc_engine_drain_push(cache, &lease->kv[i], 1);
        cache->kv_held--;
    }
    status = sc_radix_unlock(cache->radix, lease->path);
    SC_ASSERT(status == SC_OK); /* (10) */
    if (!saved) sc_engine_slot_free(cache->options.pool, lease->working);
    if (cache->options.extras) sc_engine_slot_free(cache->options.extras, lease->extra);
    lease->space->lease_count--;
    cache->lease_count--;
    cache->stats.released++;
    HASH_DEL(cache->leases, lease);
    lease_free(cache, lease);
}

static sc_status lease_release(sc_cache *cache, sc_lease handle, uint32_t len, enum sc_release how)
{
    struct lease *lease = NULL;
    SC_TRY(lease_find(cache, handle, &lease));
    if (lease->state == SC_LEASE_DRAINING) {
        return SC_FAIL(SC_ERR_STATE, "lease %u is released already", handle.id);
    }
    if (len > lease->len) {
        return SC_FAIL(SC_ERR_INVALID, "length %u, committed are %u", len, lease->len);
    }
    if (lease->state != SC_LEASE_RUNNING) {
        sc_engine_lease_end(cache, lease, how, len);
        return SC_OK;
    }
    sc_status status = sc_pool_set_owner(cache->options.pool, lease->working, SC_OWNER_DRAINING);
    SC_ASSERT(status == SC_OK); /* (1) */
    lease->state = SC_LEASE_DRAINING;
    lease->end_how = how;
    lease->end_len = len;
    return SC_OK;
}

sc_status sc_lease_release(sc_cache *cache, sc_lease handle, uint32_t len, enum sc_release how)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(how == SC_RELEASE_DISCARD || how == SC_RELEASE_KEEP);
    sc_rwlock_lock(&cache->lock);
    sc_status status = lease_release(cache, handle, len, how);
    sc_rwlock_unlock(&cache->lock);
    return status;
}

sc_status sc_lease_release_tail(
    sc_cache *cache, sc_lease handle, uint32_t len, enum sc_release how, int32_t tail_kv)
{
    SC_REQUIRE(tail_kv >= -1);
    if (tail_kv >= 0) return SC_FAIL(SC_ERR_UNSUPPORTED, "tails are not there yet");
    return sc_lease_release(cache, handle, len, how);
}
