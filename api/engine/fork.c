/* SPDX-License-Identifier: Apache-2.0 */
/* Leases that begin with a state of somebody else's: forks, and states that the engine brings.
 *
 *   fork          before           after
 *     parent      read W, write W  read S, write F     W has become the snapshot S
 *     children                     read S, write W1, W2, ...
 *
 * Everything that may be refused comes before anything changes: the children with their receipts
 * and slots, F, room for the id of the tail. Only then the tree is asked to take the state; when it
 * does not, all that is undone. What cannot be undone is that the device fails when the slots are
 * prepared, after the lock was given back: the children go, and who wrote F is lost.
 *
 * Numbers in brackets are invariants of cache_internal.h. */
#include <string.h>

#include "cache_internal.h"

void sc_engine_freeze_now(sc_cache *cache, struct lease *lease, sc_save_kind kind, sc_slot fresh,
    int32_t tail_kv, struct published *published_out)
{
    struct step_save save = {0, lease->len, kind, lease->source};
    struct offer offer = {lease->len, &save, 1, true, tail_kv, true};
    SC_ASSERT(lease->flights == 0 && !lease->pinned && lease->len > 0);
    cache->stats.saves_planned++;
    sc_engine_publish(cache, lease, &offer, published_out);
    if (published_out->status != SC_OK) {
        sc_engine_slot_free(cache->options.pool, fresh);
        return;
    }
    sc_engine_relock(cache, &lease->pin, published_out->node, SC_RADIX_LOCK_STATE);
    lease->pinned = true;
    if (lease->retired) { /* it has a slot to write already */
        lease->retired = false;
        sc_engine_slot_free(cache->options.pool, fresh);
    } else {
        lease->working = fresh;
        sc_status status = sc_pool_retag(cache->options.pool, fresh, SC_OWNER_WORKING);
        SC_ASSERT(status == SC_OK); /* (1) */
    }
    lease->next_source = lease->source;
    lease->next_dest = lease->working;
}

sc_status sc_engine_lose(sc_cache *cache, sc_lease handle)
{
    struct lease *lease = NULL;
    sc_rwlock_lock(&cache->lock);
    sc_status status = sc_engine_lease_find(cache, handle, &lease);
    if (status == SC_OK) {
        lease->lost = lease->overrun = true;
        sc_engine_pending_pass(cache, lease, UINT32_MAX);
        sc_engine_record_lose(cache, handle);
    }
    sc_rwlock_unlock(&cache->lock);
    return status;
}

/* ---- states that the engine brings ---- */

static sc_status check_filled(const sc_cache *cache, const struct lease *lease,
    const int32_t *kv_ids, uint32_t kv_count, const sc_history *history, uint32_t history_count)
{
    if (!lease->waiting || lease->draining || lease->restore) {
        return SC_FAIL(SC_ERR_STATE, "lease %u waits for nothing", lease->id);
    }
    uint32_t pages = cache->options.without_kv ? 0 : lease->external_len / cache->page;
    if (kv_count != pages) {
        return SC_FAIL(SC_ERR_MISMATCH, "lease %u: %u KV ids for %u pages", lease->id, kv_count,
            pages);
    }
    for (uint32_t i = 0; i < kv_count; i++) SC_REQUIRE(kv_ids[i] >= 0);
    uint32_t end = history_count ? 0 : lease->external_len;
    for (uint32_t i = 0; i < history_count; i++) {
        SC_REQUIRE(history[i].form == SC_FORM_KIND_PREFILL ||
            history[i].form == SC_FORM_KIND_DECODE);
        SC_REQUIRE(history[i].end > end);
        end = history[i].end;
    }
    if (end != lease->external_len) {
        return SC_FAIL(SC_ERR_MISMATCH, "lease %u: a history of %u tokens, %u were to come",
            lease->id, end, lease->external_len);
    }
    return SC_OK;
}

static void fill(sc_cache *cache, struct lease *lease, const int32_t *kv_ids, uint32_t kv_count,
    const sc_history *history, uint32_t history_count)
{
    for (uint32_t i = 0; i < history_count; i++) {
        sc_engine_history_push(cache, lease->history, &lease->history_count, history[i].end,
            history[i].form == SC_FORM_KIND_DECODE ? SC_FORM_DECODE : SC_FORM_PREFILL,
            cache->ring_records > 0 && history[i].form == SC_FORM_KIND_DECODE);
    }
    for (uint32_t i = 0; i < kv_count; i++) {
        lease->kv[i] = kv_ids[i];
        lease->kv_owner[i] = KV_HELD;
    }
    lease->kv_count = kv_count;
    cache->kv_inside += kv_count;
    cache->kv_held += kv_count;
    cache->stats.pages_in += kv_count;
    lease->len = lease->external_len;
    lease->external_len = 0;
    lease->waiting = false;
    lease->source = lease->next_source = lease->next_dest = lease->working;
    sc_engine_issue(cache, lease);
}

/* What came is offered to others: the state, where it is the prompt's end, else the KV alone. */
static void publish_filled(sc_cache *cache, struct lease *lease)
{
    struct published published;
    sc_slot fresh = SC_SLOT_NULL;
    bool end = lease->prompt_end == lease->len && sc_engine_end_savable(cache, lease->len, -1);
    sc_status status = SC_ERR_NO_SLOT;
    if (end) {
        double bar = sc_engine_policy_bar(cache, lease, lease->len, false);
        status = sc_engine_slot_take(cache, SC_OWNER_IN_FLIGHT, bar, &fresh);
    }
    if (status == SC_OK) {
        sc_engine_freeze_now(cache, lease, SC_KIND_PROMPT_END, fresh, -1, &published);
        return;
    }
    if (end) {
        uint32_t cause = status == SC_ERR_LIMIT ? SC_SKIP_POLICY : SC_SKIP_NO_SLOT;
        cache->stats.saves_planned++;
        cache->stats.saves_skipped[cause]++;
    }
    struct offer offer = {lease->len, NULL, 0, false, -1, false};
    if (lease->len >= lease->prompt_len) sc_engine_publish(cache, lease, &offer, &published);
}

static sc_status lease_filled(sc_cache *cache, sc_lease handle, const int32_t *kv_ids,
    uint32_t kv_count, const sc_history *history, uint32_t history_count, struct fills *fills)
{
    struct lease *lease = NULL;
    SC_TRY(sc_engine_lease_find(cache, handle, &lease));
    SC_TRY(check_filled(cache, lease, kv_ids, kv_count, history, history_count));
    const sc_history cold = {lease->external_len, SC_FORM_KIND_PREFILL};
    if (history_count == 0) {
        history = &cold;
        history_count = 1;
    }
    SC_TRY(sc_engine_lease_reserve(cache, lease, kv_count));
    SC_TRY(sc_engine_history_reserve(cache, lease, history_count + 1));
    SC_TRY(sc_engine_drain_reserve(cache, kv_count));
    uint32_t filled = lease->working.id;
    fill(cache, lease, kv_ids, kv_count, history, history_count);
    publish_filled(cache, lease);
    if (lease->working.id != filled) fills->slots[fills->slot_count++] = lease->working;
    sc_engine_pending_pass(cache, lease, lease->len);
    return SC_OK;
}

sc_status sc_lease_filled(sc_cache *cache, sc_lease lease, const int32_t *kv_ids,
    uint32_t kv_count, const sc_history *history, uint32_t history_count)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(kv_ids || kv_count == 0);
    SC_REQUIRE(history || history_count == 0);
    sc_slot fresh;
    struct fills fills = {.slots = &fresh};
    sc_rwlock_lock(&cache->lock);
    uint64_t words = sc_engine_record_filled_words(cache, kv_count, history_count);
    sc_status status = sc_engine_record_room(cache, words);
    if (status == SC_OK) {
        status = lease_filled(cache, lease, kv_ids, kv_count, history, history_count, &fills);
    }
    if (status == SC_OK) {
        sc_engine_record_filled(cache, lease, kv_ids, kv_count, history, history_count);
    }
    sc_rwlock_unlock(&cache->lock);
    if (status != SC_OK) return status;
    status = sc_engine_fill(cache, &fills);
    if (status != SC_OK) (void)sc_engine_lose(cache, lease);
    return status;
}

/* ---- forks ---- */

static void children_undo(sc_cache *cache, struct lease *children)
{
    while (children) {
        struct lease *next = children->next;
        sc_engine_give_slots(cache, children);
        sc_engine_lease_destroy(cache, children);
        children = next;
    }
}

/* Leases like their parent, with slots of their own, that stand on nothing yet. */
static sc_status children_make(sc_cache *cache, const struct lease *parent, uint32_t count,
    struct lease **children_out)
{
    struct lease *children = NULL, **end = &children;
    const sc_key key = {.tokens = parent->tokens, .marks = parent->marks,
        .token_count = parent->token_count, .mark_count = parent->mark_count};
    SC_TRY(sc_engine_pending_reserve(cache, count));
    for (uint32_t i = 0; i < count; i++) {
        struct lease *child = NULL;
        sc_status status = sc_engine_lease_create(cache, &key, parent->history,
            parent->history_count, &child);
        if (status == SC_OK) {
            status = sc_engine_take_slots(cache, child);
            if (status != SC_OK) sc_engine_lease_destroy(cache, child);
        }
        if (status != SC_OK) {
            children_undo(cache, children);
            return status;
        }
        child->prompt_len = parent->prompt_len;
        child->depth = parent->depth;
        child->flags = parent->flags;
        child->hints = parent->hints;
        child->inner_count = parent->inner_count;
        memcpy(child->inner, parent->inner, sizeof child->inner);
        child->policy.ttl_ns = parent->policy.ttl_ns;
        child->policy.priority = parent->policy.priority;
        *end = child;
        end = &child->next;
    }
    *children_out = children;
    return SC_OK;
}

static sc_node receipt_node(const sc_cache *cache, struct sc_radix_receipt receipt)
{
    sc_node node = SC_NODE_NONE;
    uint32_t what = 0;
    sc_status status = sc_radix_receipt_get(cache->radix, receipt, &node, &what);
    SC_ASSERT(status == SC_OK); /* (10) */
    return node;
}

/* KV id of the partial page of the snapshot that the lease stands on; -1: none. */
static int32_t tail_of(const sc_cache *cache, const struct lease *lease)
{
    struct sc_radix_span span = {0};
    uint32_t count = 0;
    if (cache->options.without_kv || lease->len % cache->page == 0) return -1;
    sc_status status = sc_radix_spans(cache->radix, receipt_node(cache, lease->pin),
        lease->len / cache->page, &span, 1, &count);
    SC_ASSERT(status == SC_OK && count == 1);
    return span.ids[0];
}

/* The tree has this state already, made in the same way: the lease reads that one. */
static bool stand_on_other(sc_cache *cache, struct lease *lease, sc_node node)
{
    struct sc_radix_node_info info;
    struct sc_snapshot_info snapshot;
    if (sc_radix_node_get(cache->radix, node, &info) != SC_OK) return false;
    if (info.end != lease->len) return false;
    if (sc_registry_get(cache->registry, info.snapshot, &snapshot) != SC_OK) return false;
    if (!sc_engine_same_history(lease, &snapshot)) return false; /* without KV: any */
    sc_engine_ring_resume(lease, &snapshot);
    if (lease->retired) sc_engine_slot_free(cache->options.pool, lease->source);
    lease->retired = false;
    lease->source = lease->next_source = snapshot.slot;
    lease->next_dest = lease->working;
    sc_engine_relock(cache, &lease->pin, node, SC_RADIX_LOCK_STATE);
    lease->pinned = true;
    return true;
}

/* Makes the lease stand on a snapshot of its state. When that is refused, an id of a tail is the
 * caller's still; else it is the tree's, or, where there is another of that page, drained. */
static sc_status stand(sc_cache *cache, struct lease *lease, int32_t tail_kv)
{
    sc_slot fresh = SC_SLOT_NULL, extra = SC_SLOT_NULL;
    sc_status status = SC_OK;
    struct published published;
    if (lease->len == 0) return SC_OK;
    SC_TRY(sc_engine_drain_reserve(cache, tail_kv >= 0));
    if (lease->pinned) {
        if (tail_kv < 0) return SC_OK;
        sc_engine_drain_push_new(cache, &tail_kv, 1);
        lease->tail_kv = tail_of(cache, lease);
        return SC_OK;
    }
    if (lease->records > 0) SC_TRY(sc_engine_extra_take(cache, &extra));
    status = sc_engine_slot_take(cache, SC_OWNER_IN_FLIGHT, HUGE_VAL, &fresh);
    if (status != SC_OK) {
        if (extra.id != 0) sc_engine_slot_free(cache->options.extras, extra);
        return status;
    }
    sc_engine_freeze_now(cache, lease, SC_KIND_POINT, fresh, tail_kv, &published);
    if (lease->extra_kept) sc_engine_ring_swap(lease, extra);
    else if (extra.id != 0) sc_engine_slot_free(cache->options.extras, extra);
    if (published.status != SC_OK &&
        !(published.status == SC_ERR_BUSY && stand_on_other(cache, lease, published.node))) {
        return SC_FAIL(SC_ERR_BUSY, "lease %u: the state at %u cannot be put into the tree",
            lease->id, lease->len);
    }
    if (tail_kv >= 0) {
        cache->kv_inside++;
        cache->stats.pages_in++;
        if (published.status != SC_OK) sc_engine_drain_push(cache, &tail_kv, 1);
    }
    lease->tail_kv = tail_of(cache, lease);
    return SC_OK;
}

/* The child stands where its parent does. */
static void child_start(sc_cache *cache, const struct lease *parent, struct lease *child)
{
    child->source = parent->source;
    child->len = child->resume_len = parent->len;
    child->reason = SC_REASON_NONE;
    child->prompt_end = parent->prompt_end;
    child->branch_len = parent->branch_len;
    if (parent->pinned) {
        struct sc_radix_node_info info = {0};
        struct sc_snapshot_info snapshot = {0};
        sc_node node = receipt_node(cache, parent->pin);
        child->pinned = true;
        child->resume_slot = parent->source.id;
        child->inserted_len = parent->inserted_len;
        child->kv_base = cache->options.without_kv ? 0 : parent->len / cache->page;
        child->tail_kv = tail_of(cache, parent);
        sc_engine_relock(cache, &child->pin, node, SC_RADIX_LOCK_STATE);
        sc_engine_relock(cache, &child->path, receipt_node(cache, parent->path), SC_RADIX_LOCK_KV);
        sc_status status = sc_radix_node_get(cache->radix, node, &info);
        if (status == SC_OK) {
            status = sc_registry_get(cache->registry, info.snapshot, &snapshot);
        }
        SC_ASSERT(status == SC_OK); /* (3) */
        sc_engine_ring_resume(child, &snapshot);
        child->resume_kind = (sc_save_kind)snapshot.kind;
        child->resume_hints = snapshot.hints;
        sc_registry_count_hit(cache->registry, info.snapshot);
    }
    sc_engine_lease_enter(cache, child, parent->space);
    cache->stats.forked++;
}

static sc_status check_fork(const sc_cache *cache, const struct lease *lease, int32_t tail_kv,
    uint32_t count)
{
    if (sc_engine_lease_state(lease) != SC_LEASE_READY) {
        return SC_FAIL(SC_ERR_STATE, "lease %u is not ready", lease->id);
    }
    bool inside = !cache->options.without_kv && lease->len % cache->page != 0;
    if (tail_kv >= 0 && !inside) {
        return SC_FAIL(SC_ERR_INVALID, "lease %u: there is no partial page at %u", lease->id,
            lease->len);
    }
    if (tail_kv < 0 && inside && !lease->pinned) {
        return SC_FAIL(SC_ERR_INVALID, "lease %u: the partial page at %u is missing", lease->id,
            lease->len);
    }
    if (count > cache->options.lease_max - cache->lease_count) {
        return SC_FAIL(SC_ERR_LIMIT, "%u more than %u leases, lease_max is %u", count,
            cache->lease_count, cache->options.lease_max);
    }
    return SC_OK;
}

static sc_status lease_fork(sc_cache *cache, sc_lease handle, int32_t tail_kv, uint32_t count,
    sc_lease *children_out, struct fills *fills)
{
    struct lease *parent = NULL, *children = NULL;
    SC_TRY(sc_engine_lease_find(cache, handle, &parent));
    SC_TRY(check_fork(cache, parent, tail_kv, count));
    SC_TRY(children_make(cache, parent, count, &children));
    uint32_t working = parent->working.id, extra = parent->extra.id;
    sc_status status = stand(cache, parent, tail_kv);
    if (status != SC_OK) {
        children_undo(cache, children);
        return status;
    }
    for (uint32_t i = 0; children; i++) {
        struct lease *child = children;
        children = child->next;
        child->next = NULL;
        child_start(cache, parent, child);
        sc_engine_fill_add(cache, fills, child);
        children_out[i] = (sc_lease){child->id, child->generation};
    }
    if (parent->working.id != working) fills->slots[fills->slot_count++] = parent->working;
    if (parent->extra.id != extra) fills->extras[fills->extra_count++] = parent->extra;
    return SC_OK;
}

/* The slots of a fork cannot be prepared. */
static void fork_lose(sc_cache *cache, sc_lease lease, uint32_t count, sc_lease *children,
    bool with_parent)
{
    for (uint32_t i = 0; i < count; i++) {
        (void)sc_engine_lease_undo(cache, children[i], true);
        children[i] = (sc_lease){0, 0};
    }
    if (with_parent) (void)sc_engine_lose(cache, lease);
}

static sc_status fork_and_fill(sc_cache *cache, sc_lease lease, int32_t tail_kv, uint32_t count,
    sc_lease *children_out, struct fills *fills)
{
    sc_rwlock_lock(&cache->lock);
    sc_status status = sc_engine_record_room(cache, 16 + 2 * (uint64_t)count);
    if (status == SC_OK) {
        status = lease_fork(cache, lease, tail_kv, count, children_out, fills);
        sc_engine_record_fork(cache, lease, tail_kv, count, status, children_out);
    }
    sc_rwlock_unlock(&cache->lock);
    if (status != SC_OK) return status;
    status = sc_engine_fill(cache, fills);
    if (status != SC_OK) fork_lose(cache, lease, count, children_out, fills->slot_count > count);
    return status;
}

sc_status sc_lease_fork(sc_cache *cache, sc_lease lease, int32_t tail_kv, uint32_t count,
    sc_lease *children_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(count > 0);
    SC_REQUIRE(children_out);
    SC_REQUIRE(tail_kv >= -1);
    /* more than lease_max are refused before any is noted */
    uint32_t most = count < cache->options.lease_max ? count : cache->options.lease_max;
    size_t bytes = 2 * ((size_t)most + 1) * sizeof(sc_slot);
    sc_slot *slots = sc_heap_alloc(&cache->heap, bytes, 16);
    if (!slots) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to fork %u times", count);
    struct fills fills = {.slots = slots, .extras = slots + most + 1};
    sc_status status = fork_and_fill(cache, lease, tail_kv, count, children_out, &fills);
    sc_heap_free(&cache->heap, slots, bytes);
    return status;
}
