/* SPDX-License-Identifier: Apache-2.0 */
/* What can be read of a lease: facts, history, KV ids. Changes nothing. */
#include <string.h>

#include "tier.h"

enum { SPAN_BATCH = 32 };

static sc_hints public_hints(const struct sc_snapshot_hints *hints)
{
    return (sc_hints){.flags = hints->flags, .pin_until_ns = hints->pin_until_ns,
        .ttl_ns = hints->ttl_ns, .priority = hints->priority, .class_id = hints->class_id};
}

static int32_t records_slot(const struct lease *lease)
{
    if (lease->records == 0) return -1;
    return (int32_t)(lease->ring_from.id != 0 ? lease->ring_from.id : lease->extra.id);
}

sc_status sc_lease_info_get(const sc_cache *cache, sc_lease handle, sc_lease_info *info_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(info_out);
    sc_rwlock_lock_shared(&cache->lock);
    struct lease *lease = NULL;
    sc_status status = sc_engine_lease_find(cache, handle, &lease);
    if (status == SC_OK) {
        *info_out = (sc_lease_info){
            .state = sc_engine_lease_state(lease),
            .resume_len = lease->resume_len,
            .resume_kind = lease->resume_kind,
            .resume_slot = lease->resume_slot,
            .prompt_len = lease->prompt_len,
            .len = lease->len,
            .token_count = lease->token_count,
            .branch_len = lease->branch_len,
            .prompt_end_len = lease->prompt_end > lease->len ? lease->prompt_end : 0,
            .reason = lease->reason,
            .working_slot = (int32_t)lease->working.id,
            .source_slot = (int32_t)lease->source.id,
            .extra_slot = cache->options.extras ? (int32_t)lease->extra.id : -1,
            .kv_page_count = lease->kv_base + lease->kv_count,
            .issued_len = lease->issued_len,
            .issued_len_max = lease->issued_max,
            .steps_out = lease->flights,
            .tail_kv = lease->tail_kv,
            .flags = lease->flags,
            .external_len = lease->external_len,
            .hints = public_hints(&lease->hints),
            .resume_hints = public_hints(&lease->resume_hints),
            .restore_len = lease->restore ? lease->restore->len : 0,
            .restore_ticket = lease->restore ? lease->restore->ticket : 0,
            .records = lease->records,
            .records_slot = records_slot(lease),
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
    sc_status status = sc_engine_lease_find(cache, handle, &lease);
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
    sc_status status = sc_engine_lease_find(cache, handle, &lease);
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
    sc_status status = sc_engine_lease_find(cache, handle, &lease);
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
