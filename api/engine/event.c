/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of changes (statecache/events.h), and where they come from.
 *
 * Two blocks of memory. One is written, from both ends; the other is what the reader was given
 * last. A take exchanges them, so that it costs O(1) and the reader parses without the lock:
 *
 *   written   | event 0 | event 1 | .... free ....  | marks 1 | tokens 1 | marks 0 | tokens 0 |
 *                       count --^             back --^
 *   reader's  | event 0 | event 1 | ...
 *
 * Invariants
 * (1) One more event always fits, for SC_EVENT_LOST.
 * (2) While it is running, the reader's picture and the queue's events give the copies that are
 *     there: each call that makes or ends a copy says so under the same lock.
 * (3) The base of an event is a copy that is there when the event is written: of the same state,
 *     else the longest saved prefix that the tree or the directory of tiers has above it.
 *
 * Who calls: publish.c and tier_resume.c when a snapshot is the tree's, evict.c when one goes,
 * tier_store.c and tier_record.c for copies below. Restores into a lease's own slot make no copy.
 *
 * When something does not fit the queue stops: no event is left out of the middle. It begins again
 * with the next picture, which the reader has to ask for. */
#include "event.h"

#include <string.h>

enum { EVENT_BYTES_MIN = 4096 };

sc_status sc_engine_events_create(sc_cache *cache)
{
    uint64_t bytes = cache->options.event_bytes;
    if (bytes == 0) return SC_OK;
    if (bytes < EVENT_BYTES_MIN || bytes > (uint64_t)1 << 40) {
        return SC_FAIL(SC_ERR_INVALID, "event_bytes: %llu, at least %d are needed",
            (unsigned long long)bytes, EVENT_BYTES_MIN);
    }
    struct event_queue *queue = sc_heap_calloc(&cache->heap, 1, sizeof *queue);
    if (!queue) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for events");
    cache->events = queue;
    queue->bytes = queue->back = (size_t)bytes / 16 * 16;
    for (uint32_t i = 0; i < 2; i++) {
        queue->memory[i] = sc_heap_alloc(&cache->heap, queue->bytes, 16);
        if (!queue->memory[i]) {
            return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %llu bytes of events",
                (unsigned long long)bytes);
        }
    }
    return SC_OK;
}

static void picture_free(sc_cache *cache)
{
    struct event_queue *queue = cache->events;
    sc_heap_free(&cache->heap, queue->picture, queue->picture_bytes);
    queue->picture = NULL;
    queue->picture_bytes = 0;
}

void sc_engine_events_free(sc_cache *cache)
{
    struct event_queue *queue = cache->events;
    if (!queue) return;
    picture_free(cache);
    for (uint32_t i = 0; i < 2; i++) sc_heap_free(&cache->heap, queue->memory[i], queue->bytes);
    sc_heap_free(&cache->heap, queue, sizeof *queue);
    cache->events = NULL;
}

/* ---- writing ---- */

static bool is_on(const sc_cache *cache)
{
    return cache->events && cache->events->running;
}

static sc_event *place(struct event_queue *queue, uint32_t at)
{
    return (sc_event *)(void *)queue->memory[queue->writing] + at;
}

/* Room for an event and what hangs on it; NULL: there is none, and the reader has lost. */
static sc_event *push(struct event_queue *queue, size_t payload, uint8_t **payload_out)
{
    size_t front = ((size_t)queue->count + 2) * sizeof(sc_event); /* (1) */
    queue->number++;
    if (front > queue->back || payload > queue->back - front) {
        queue->running = false;
        return NULL;
    }
    queue->back -= payload;
    *payload_out = queue->memory[queue->writing] + queue->back;
    sc_event *event = place(queue, queue->count++);
    *event = (sc_event){.number = queue->number};
    return event;
}

static void stored(sc_cache *cache, uint32_t tier, uint64_t copy, const struct event_key *key)
{
    uint8_t *at = NULL;
    uint32_t first = 0, end = 0;
    while (first < key->mark_count && key->marks[first].at < key->base_len) first++;
    for (end = first; end < key->mark_count && key->marks[end].at < key->len; end++) continue;
    size_t marks = (end - first) * sizeof(sc_mark);
    size_t tokens = (key->len - key->base_len) * sizeof(int32_t);
    sc_event *event = push(cache->events, (marks + tokens + 7) / 8 * 8, &at);
    if (!event) return;
    event->kind = SC_EVENT_STORED;
    event->tier = tier;
    event->copy = copy;
    event->base = key->base;
    event->adapter_id = key->adapter_id;
    event->adapter_generation = key->adapter_generation;
    event->len = key->len;
    event->base_len = key->base_len;
    event->mark_count = end - first;
    event->detail = key->kind;
    if (marks > 0) {
        memcpy(at, key->marks + first, marks);
        event->marks = (const sc_mark *)(void *)at;
    }
    if (tokens > 0) {
        memcpy(at + marks, key->tokens + key->base_len, tokens);
        event->tokens = (const int32_t *)(void *)(at + marks);
    }
}

static void removed(sc_cache *cache, uint32_t tier, uint32_t id, uint32_t cause)
{
    uint8_t *none = NULL;
    sc_event *event = push(cache->events, 0, &none);
    if (!event) return;
    event->kind = SC_EVENT_REMOVED;
    event->tier = tier;
    event->copy = sc_event_copy(tier, id);
    event->detail = cause;
}

/* ---- bases (3) ---- */

uint64_t sc_event_copy_of(const struct tier_record *record)
{
    if (record->snapshot) return sc_event_copy(SC_TIER_DEVICE, record->snapshot);
    for (uint32_t t = TIER_FIRST; t < TIER_END; t++) {
        if (record->copies & 1u << t) return sc_event_copy(t, record->id);
    }
    return 0;
}

static void base_take(struct event_key *key, uint64_t copy, uint32_t len)
{
    if (copy == 0 || len <= key->base_len) return;
    key->base = copy;
    key->base_len = len;
}

static void base_on_device(const sc_cache *cache, sc_node node, struct event_key *key)
{
    struct sc_radix_step step;
    if (!sc_radix_step_get(cache->radix, node, &step)) return;
    while (sc_radix_step_get(cache->radix, step.parent, &step)) {
        if (step.snapshot == 0) continue;
        base_take(key, sc_event_copy(SC_TIER_DEVICE, step.snapshot), step.end);
        return;
    }
}

static void base_below(const sc_cache *cache, const struct tier_record *record,
    struct event_key *key)
{
    const struct tier *tier = cache->tier;
    while ((record = sc_tier_above(tier, record))) {
        uint64_t copy = sc_event_copy_of(record);
        if (copy == 0) continue;
        base_take(key, copy, record->token_count);
        return;
    }
}

/* ---- what happens ---- */

void sc_engine_event_saved(sc_cache *cache, const struct lease *lease, uint32_t position,
    sc_node node, uint32_t snapshot, uint32_t kind)
{
    if (!is_on(cache)) return;
    const struct tier_record *record = sc_tier_record_of_snapshot(cache->tier, snapshot);
    struct event_key key = {lease->space->adapter_id, lease->space->adapter_generation,
        lease->tokens, lease->marks, lease->mark_count, position, 0, 0, kind};
    if (record && record->copies) { /* it was evicted, and has been computed again */
        struct tier_record below = *record;
        below.snapshot = 0; /* that is what is told of */
        base_take(&key, sc_event_copy_of(&below), position);
    } else {
        base_on_device(cache, node, &key);
        if (record) base_below(cache, record, &key);
    }
    stored(cache, SC_TIER_DEVICE, sc_event_copy(SC_TIER_DEVICE, snapshot), &key);
}

void sc_engine_event_gone(sc_cache *cache, uint32_t snapshot, uint32_t cause)
{
    if (is_on(cache)) removed(cache, SC_TIER_DEVICE, snapshot, cause);
}

void sc_engine_event_restored(sc_cache *cache, const struct transfer *transfer, sc_node node,
    uint32_t snapshot)
{
    if (!is_on(cache)) return;
    const struct sc_tier_job *job = &transfer->job;
    const struct tier_record *record = sc_tier_record(cache->tier, transfer->record);
    struct event_key key = {job->adapter_id, job->adapter_generation, job->tokens, job->marks,
        job->mark_count, job->token_count, 0, 0, record->kind};
    for (uint32_t t = TIER_FIRST; t < TIER_END; t++) {
        if (record->copies & 1u << t) base_take(&key, sc_event_copy(t, record->id), key.len);
    }
    if (key.base == 0) base_on_device(cache, node, &key);
    stored(cache, SC_TIER_DEVICE, sc_event_copy(SC_TIER_DEVICE, snapshot), &key);
}

static void copied(sc_cache *cache, const struct tier_record *record, uint32_t which,
    struct event_key *key)
{
    struct tier_record others = *record;
    others.copies = (uint8_t)(others.copies & ~(1u << which)); /* this one is not known yet */
    base_take(key, sc_event_copy_of(&others), key->len);
    if (key->base == 0) base_below(cache, record, key);
    stored(cache, which, sc_event_copy(which, record->id), key);
}

void sc_engine_event_copied(sc_cache *cache, const struct transfer *transfer, uint32_t which)
{
    if (!is_on(cache)) return;
    const struct sc_tier_job *job = &transfer->job;
    const struct tier_record *record = sc_tier_record(cache->tier, transfer->record);
    struct event_key key = {job->adapter_id, job->adapter_generation, job->tokens, job->marks,
        job->mark_count, job->token_count, 0, 0, record->kind};
    copied(cache, record, which, &key);
}

void sc_engine_event_learnt(sc_cache *cache, const struct space *space, const sc_find *find,
    const struct tier_record *record)
{
    if (!is_on(cache)) return;
    struct event_key key = {space->adapter_id, space->adapter_generation, find->key.tokens,
        find->key.marks, find->key.mark_count, find->len, 0, 0, record->kind};
    copied(cache, record, SC_TIER_REMOTE, &key);
}

void sc_engine_event_dropped(sc_cache *cache, const struct tier_record *record, uint32_t which)
{
    if (is_on(cache)) removed(cache, which, record->id, 0);
}

/* ---- the reader ---- */

sc_status sc_cache_events_take(sc_cache *cache, const sc_event **events_out, uint32_t *count_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(events_out);
    SC_REQUIRE(count_out);
    struct event_queue *queue = cache->events;
    if (!queue) return SC_FAIL(SC_ERR_STATE, "the cache has no events: event_bytes is 0");
    sc_rwlock_lock(&cache->lock);
    picture_free(cache);
    if (!queue->running) { /* (1) */
        *place(queue, queue->count++) =
            (sc_event){.number = queue->number, .kind = SC_EVENT_LOST};
    }
    *events_out = queue->count > 0 ? place(queue, 0) : NULL;
    *count_out = queue->count;
    queue->writing ^= 1;
    queue->count = 0;
    queue->back = queue->bytes;
    sc_rwlock_unlock(&cache->lock);
    return SC_OK;
}
