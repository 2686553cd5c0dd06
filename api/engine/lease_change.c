/* SPDX-License-Identifier: Apache-2.0 */
/* What changes a lease and what ends it: append, adopt, release. Numbers in brackets are invariants
 * of cache_internal.h. */
#include <string.h>

#include "tier.h"

enum { SPAN_BATCH = 32 };

static sc_status lease_append(sc_cache *cache, sc_lease handle, const int32_t *tokens,
    uint32_t count, const sc_mark *marks, uint32_t mark_count)
{
    struct lease *lease = NULL;
    SC_TRY(sc_engine_lease_find(cache, handle, &lease));
    if (lease->lost || lease->draining) {
        return SC_FAIL(SC_ERR_STATE, "lease %u is lost or draining", handle.id);
    }
    if (count > cache->options.lease_token_max - lease->token_count) {
        return SC_FAIL(SC_ERR_LIMIT, "%u more than %u tokens, lease_token_max is %u", count,
            lease->token_count, cache->options.lease_token_max);
    }
    SC_TRY(sc_engine_marks_check(marks, mark_count, lease->token_count,
        lease->token_count + count));
    if (count == 0) return SC_OK;
    SC_TRY(sc_engine_tokens_reserve(cache, lease, lease->token_count + count));
    SC_TRY(sc_engine_marks_reserve(cache, lease, lease->mark_count + mark_count));
    if (mark_count > 0) {
        memcpy(lease->marks + lease->mark_count, marks, mark_count * sizeof *marks);
        lease->mark_count += mark_count;
    }
    memcpy(lease->tokens + lease->token_count, tokens, count * sizeof *tokens);
    lease->token_count += count;
    return SC_OK;
}

sc_status sc_lease_append_marked(sc_cache *cache, sc_lease handle, const int32_t *tokens,
    uint32_t count, const sc_mark *marks, uint32_t mark_count)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(tokens || count == 0);
    SC_REQUIRE(marks || mark_count == 0);
    sc_rwlock_lock(&cache->lock);
    uint64_t words = sc_engine_record_append_words(cache, count, mark_count);
    sc_status status = sc_engine_record_room(cache, words);
    if (status == SC_OK) status = lease_append(cache, handle, tokens, count, marks, mark_count);
    if (status == SC_OK) {
        sc_engine_record_append(cache, handle, tokens, count, marks, mark_count);
    }
    sc_rwlock_unlock(&cache->lock);
    return status;
}

sc_status sc_lease_append(sc_cache *cache, sc_lease handle, const int32_t *tokens, uint32_t count)
{
    return sc_lease_append_marked(cache, handle, tokens, count, NULL, 0);
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
    SC_TRY(sc_engine_lease_find(cache, handle, &lease));
    if (sc_engine_lease_state(lease) != SC_LEASE_READY) {
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
    if (status == SC_OK) sc_engine_record_adopt(cache, handle, *count_out);
    sc_rwlock_unlock(&cache->lock);
    return status;
}

/* ---- release ---- */

/* The deepest node of the lease's path: that which it holds, or, without KV, that of its deepest
 * state. */
static sc_node path_node(const sc_cache *cache, const struct lease *lease)
{
    sc_node node = SC_NODE_NONE;
    uint32_t what = 0;
    sc_status status = SC_OK;
    if (cache->options.without_kv) {
        const struct sc_radix_key key = {
            lease->tokens, lease->token_count, lease->marks, lease->mark_count};
        struct sc_radix_match match;
        status = sc_radix_match(
            cache->radix, lease->space->radix_space, &key, lease->len, &match);
        node = match.state_len > 0 ? match.state_node : SC_NODE_NONE;
    } else {
        status = sc_radix_receipt_get(cache->radix, lease->path, &node, &what); /* (10) */
    }
    SC_ASSERT(status == SC_OK);
    return node;
}

/* Publishes what KEEP asks for. True: the working slot is a snapshot now. `whole`: it holds the
 * state at the committed length, and end_tail is of the page there. */
static bool keep_end(sc_cache *cache, struct lease *lease, uint32_t len, bool whole)
{
    bool state = (cache->options.save_flags & SC_SAVE_END) && whole && len == lease->len &&
        len > 0 && sc_engine_end_savable(cache, len, lease->end_tail);
    bool saved = false;
    struct step_save save = {0, len, SC_KIND_END, lease->working};
    struct offer offer = {sc_engine_page_floor(cache, len), &save, state, true, -1, false};
    if (state) offer.len = len;
    sc_engine_policy_extend(cache, lease, len);
    if (state && len % cache->page != 0) {
        offer.tail_kv = lease->end_tail;
        lease->end_tail = -1;
    }
    if (state || offer.len > lease->inserted_len) {
        struct published published;
        cache->stats.saves_planned += state;
        sc_engine_publish(cache, lease, &offer, &published);
        saved = state && published.status == SC_OK;
    }
    sc_node node = path_node(cache, lease);
    if (saved) sc_engine_decode_drop(cache, lease, node);
    if (len < lease->len) sc_engine_drop_beyond(cache, lease, node, len);
    return saved;
}

/* Ids that the tree did not take go to the drain list. */
static void kv_give_back(sc_cache *cache, struct lease *lease)
{
    for (uint32_t i = 0; i < lease->kv_count; i++) {
        if (lease->kv_owner[i] == KV_TREE) continue;
        sc_engine_drain_push(cache, &lease->kv[i], 1);
        cache->kv_held--;
    }
    if (lease->end_tail < 0) return;
    sc_engine_drain_push(cache, &lease->end_tail, 1);
    cache->kv_held--;
}

/* Whether the end was to be saved, but steps that were out have written over its state. */
static bool end_overrun(const sc_cache *cache, const struct lease *lease, uint32_t len)
{
    uint32_t end = len ? len : lease->len;
    if (!(cache->options.save_flags & SC_SAVE_END) || !lease->draining || lease->lost) return false;
    if (end == 0 || !sc_engine_end_savable(cache, end, lease->end_tail)) return false;
    if (end < lease->len) return lease->end_moves;
    return lease->overrun && !lease->pinned && !lease->retired;
}

void sc_engine_lease_end(sc_cache *cache, struct lease *lease, enum sc_release how, uint32_t len)
{
    bool saved = false, whole = lease->source.id == lease->working.id && !lease->overrun;
    bool given = sc_engine_tier_leave(cache, lease);
    /* nothing will be read any more */
    sc_status status = sc_radix_unlock(cache->radix, lease->pin);
    SC_ASSERT(status == SC_OK); /* (10) */
    if (how == SC_RELEASE_KEEP && end_overrun(cache, lease, len)) {
        cache->stats.saves_planned++;
        cache->stats.saves_skipped[SC_SKIP_OVERRUN]++;
    }
    if (lease->retired) { /* there the state at `len` is still whole */
        sc_engine_slot_free(cache->options.pool, lease->working);
        lease->working = lease->source;
        /* but end_tail may be of a page behind it */
        whole = !lease->overrun || cache->options.without_kv || lease->len % cache->page == 0;
    }
    if (how == SC_RELEASE_KEEP && !lease->lost) {
        saved = keep_end(cache, lease, len ? len : lease->len, whole);
    }
    kv_give_back(cache, lease);
    status = sc_radix_unlock(cache->radix, lease->path);
    SC_ASSERT(status == SC_OK); /* (10) */
    if (!saved && !given) sc_engine_slot_free(cache->options.pool, lease->working);
    if (cache->options.extras && !lease->extra_kept) {
        sc_engine_slot_free(cache->options.extras, lease->extra);
    }
    sc_engine_policy_end(cache, lease);
    sc_engine_pin_leave(cache, lease);
    lease->space->lease_count--;
    cache->lease_count--;
    cache->stats.released++;
    sc_engine_pending_pass(cache, lease, UINT32_MAX);
    HASH_DEL(cache->leases, lease);
    sc_engine_lease_free(cache, lease);
}

/* The partial page of the lease's end comes in. With steps out nobody knows yet where that is. */
static sc_status take_tail(sc_cache *cache, struct lease *lease, uint32_t len, int32_t tail_kv)
{
    if (tail_kv < 0) return SC_OK;
    uint32_t end = len ? len : lease->len;
    if (cache->options.without_kv || (lease->flights == 0 && end % cache->page == 0)) {
        return SC_FAIL(SC_ERR_INVALID, "lease %u has no partial page at %u", lease->id, end);
    }
    SC_TRY(sc_engine_drain_reserve(cache, 1));
    lease->end_tail = tail_kv;
    cache->kv_inside++;
    cache->kv_held++;
    cache->stats.pages_in++;
    return SC_OK;
}

static sc_status lease_release(
    sc_cache *cache, sc_lease handle, uint32_t len, enum sc_release how, int32_t tail_kv)
{
    struct lease *lease = NULL;
    SC_TRY(sc_engine_lease_find(cache, handle, &lease));
    if (lease->draining) {
        return SC_FAIL(SC_ERR_STATE, "lease %u is released already", handle.id);
    }
    if (len > lease->len) {
        return SC_FAIL(SC_ERR_INVALID, "length %u, committed are %u", len, lease->len);
    }
    SC_TRY(take_tail(cache, lease, len, tail_kv));
    if (lease->flights == 0) {
        sc_engine_lease_end(cache, lease, how, len);
        return SC_OK;
    }
    lease->draining = true;
    sc_status status = sc_pool_retag(cache->options.pool, lease->working, SC_OWNER_DRAINING);
    if (status == SC_OK && lease->retired) {
        status = sc_pool_retag(cache->options.pool, lease->source, SC_OWNER_DRAINING);
    }
    SC_ASSERT(status == SC_OK); /* (1) */
    lease->end_how = how;
    lease->end_len = len;
    lease->end_moves = len > 0 && len == lease->len;
    return SC_OK;
}

sc_status sc_lease_release_tail(
    sc_cache *cache, sc_lease handle, uint32_t len, enum sc_release how, int32_t tail_kv)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(how == SC_RELEASE_DISCARD || how == SC_RELEASE_KEEP);
    SC_REQUIRE(tail_kv >= -1);
    sc_rwlock_lock(&cache->lock);
    sc_status status = lease_release(cache, handle, len, how, tail_kv);
    if (status == SC_OK) {
        sc_engine_tier_tend(cache);
        sc_engine_record_release(cache, handle, len, how, tail_kv);
    }
    sc_rwlock_unlock(&cache->lock);
    return status;
}

sc_status sc_lease_release(sc_cache *cache, sc_lease handle, uint32_t len, enum sc_release how)
{
    return sc_lease_release_tail(cache, handle, len, how, -1);
}
