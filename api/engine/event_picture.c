/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of statecache/events.h: every copy that is there, by a walk over the tree and then
 * over the directory of tiers. Twice: the first counts, the second writes into one block:
 *
 *   | events | marks and tokens of each, in order | path |
 *
 * `path` has the tokens of the node in hand from token 0 on. A walk visits parents before their
 * children, so what lies before a node's own tokens is its ancestors' when it is visited.
 *
 * Bases come first: on the device those above; below, the copy on the device or in the tier before,
 * else those above in the directory. */
#include <string.h>

#include "event.h"

struct picture {
    sc_cache *cache;
    const struct sc_radix *radix;        /* that is walked */
    uint64_t adapter_id, adapter_generation;
    bool directory, writes;
    uint32_t count;
    size_t payload;                      /* bytes so far */
    uint32_t end_max;
    sc_event *events;
    uint8_t *at;
    int32_t *path;
};

/* The saved prefix above this node: whether it is there, and how many marks lie between. */
static bool is_saved(const struct picture *picture, uint32_t id, uint64_t *copy_out)
{
    *copy_out = 0;
    if (id == 0) return false;
    *copy_out = picture->directory ? sc_event_copy_of(sc_tier_record(picture->cache->tier, id)) :
        sc_event_copy(SC_TIER_DEVICE, id);
    return *copy_out != 0;
}

static uint32_t marks_above(const struct picture *picture, sc_node node, uint32_t *base_len_out,
    uint64_t *base_out)
{
    struct sc_radix_node_info info;
    uint32_t marks = 0;
    *base_len_out = 0;
    *base_out = 0;
    while (sc_radix_node_get(picture->radix, node, &info) == SC_OK) {
        marks += info.mark_count;
        node = info.parent;
        if (sc_radix_node_get(picture->radix, node, &info) != SC_OK) break;
        if (!is_saved(picture, info.snapshot, base_out)) continue;
        *base_len_out = info.end;
        break;
    }
    return marks;
}

/* Marks of the nodes from `node` upwards, the last first. */
static void marks_write(const struct picture *picture, sc_node node, sc_mark *marks,
    uint32_t count)
{
    struct sc_radix_node_info info;
    while (count > 0) {
        sc_status status = sc_radix_node_get(picture->radix, node, &info);
        SC_ASSERT(status == SC_OK && info.mark_count <= count);
        count -= info.mark_count;
        uint32_t got = 0;
        if (info.mark_count > 0) {
            status = sc_radix_marks_get(picture->radix, node, marks + count, info.mark_count,
                &got);
            SC_ASSERT(status == SC_OK && got == info.mark_count);
        }
        node = info.parent;
    }
}

/* A copy of the state at `node`. */
static void add(struct picture *picture, sc_node node, uint32_t len, uint32_t tier, uint64_t copy,
    uint64_t same, uint32_t kind)
{
    sc_event event = {.number = picture->cache->events->number, .kind = SC_EVENT_STORED,
        .tier = tier, .copy = copy, .base = same, .adapter_id = picture->adapter_id,
        .adapter_generation = picture->adapter_generation, .len = len, .base_len = len,
        .detail = kind};
    uint32_t marks = 0;
    if (same == 0) marks = marks_above(picture, node, &event.base_len, &event.base);
    event.mark_count = marks;
    size_t mark_bytes = marks * sizeof(sc_mark);
    size_t token_bytes = (len - event.base_len) * sizeof(int32_t);
    picture->payload += (mark_bytes + token_bytes + 7) / 8 * 8;
    if (picture->writes) {
        if (marks > 0) {
            sc_mark *to = (sc_mark *)(void *)picture->at;
            marks_write(picture, node, to, marks);
            event.marks = to;
        }
        if (token_bytes > 0) {
            memcpy(picture->at + mark_bytes, picture->path + event.base_len, token_bytes);
            event.tokens = (const int32_t *)(void *)(picture->at + mark_bytes);
        }
        picture->at += (mark_bytes + token_bytes + 7) / 8 * 8;
        picture->events[picture->count] = event;
    }
    picture->count++;
}

static bool visit(void *ctx, sc_node node, const struct sc_radix_node_info *info,
    const int32_t *tokens, const int32_t *kv_ids, uint32_t page_count)
{
    struct picture *picture = ctx;
    const struct sc_cache *cache = picture->cache;
    (void)kv_ids;
    (void)page_count;
    if (info->end > picture->end_max) picture->end_max = info->end;
    if (picture->writes) {
        memcpy(picture->path + info->start, tokens, (info->end - info->start) * sizeof *tokens);
    }
    if (info->snapshot == 0) return true;
    if (!picture->directory) {
        struct sc_snapshot_info snapshot = {.kind = 0};
        sc_status status = sc_registry_get(cache->registry, info->snapshot, &snapshot);
        SC_ASSERT(status == SC_OK);
        add(picture, node, info->end, SC_TIER_DEVICE, sc_event_copy(SC_TIER_DEVICE,
            info->snapshot), 0, (uint32_t)snapshot.kind);
        return true;
    }
    const struct tier_record *record = sc_tier_record(cache->tier, info->snapshot);
    uint64_t same = record->snapshot ? sc_event_copy(SC_TIER_DEVICE, record->snapshot) : 0;
    for (uint32_t t = TIER_FIRST; t < TIER_END; t++) {
        if (!(record->copies & 1u << t)) continue;
        uint64_t copy = sc_event_copy(t, record->id);
        add(picture, node, info->end, t, copy, same, record->kind);
        if (same == 0) same = copy;
    }
    return true;
}

static void walk(struct picture *picture)
{
    sc_cache *cache = picture->cache;
    const struct tier *tier = cache->tier;
    picture->count = 0;
    picture->payload = 0;
    picture->radix = cache->radix;
    picture->directory = false;
    for (uint32_t i = 0; i < cache->space_count; i++) {
        const struct space *space = cache->spaces[i];
        if (!space) continue;
        picture->adapter_id = space->adapter_id;
        picture->adapter_generation = space->adapter_generation;
        sc_radix_walk(cache->radix, space->radix_space, visit, picture);
    }
    if (!tier) return;
    picture->radix = tier->radix;
    picture->directory = true;
    for (uint32_t i = 0; i < tier->space_count; i++) {
        const struct tier_space *space = &tier->spaces[i];
        if (space->radix_space == 0) continue;
        picture->adapter_id = space->adapter_id;
        picture->adapter_generation = space->adapter_generation;
        sc_radix_walk(tier->radix, space->radix_space, visit, picture);
    }
}

static sc_status draw(sc_cache *cache, struct picture *picture)
{
    struct event_queue *queue = cache->events;
    *picture = (struct picture){.cache = cache};
    walk(picture);
    if (picture->count == 0) return SC_OK;
    size_t bytes = picture->count * sizeof(sc_event) + picture->payload +
        picture->end_max * sizeof(int32_t);
    uint8_t *memory = sc_heap_alloc(&cache->heap, bytes, 16);
    if (!memory) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a picture of %zu bytes", bytes);
    picture->events = (sc_event *)(void *)memory;
    picture->at = memory + picture->count * sizeof(sc_event);
    picture->path = (int32_t *)(void *)(picture->at + picture->payload);
    picture->writes = true;
    sc_heap_free(&cache->heap, queue->picture, queue->picture_bytes);
    queue->picture = memory;
    queue->picture_bytes = bytes;
    walk(picture);
    SC_ASSERT((uint8_t *)picture->path == picture->at);
    return SC_OK;
}

sc_status sc_cache_events_restart(sc_cache *cache, const sc_event **events_out,
    uint32_t *count_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(events_out);
    SC_REQUIRE(count_out);
    struct event_queue *queue = cache->events;
    struct picture picture;
    if (!queue) return SC_FAIL(SC_ERR_STATE, "the cache has no events: event_bytes is 0");
    sc_rwlock_lock(&cache->lock);
    sc_status status = draw(cache, &picture);
    if (status == SC_OK) {
        *events_out = picture.events;
        *count_out = picture.count;
        queue->running = true;
        queue->count = 0;
        queue->back = queue->bytes;
    }
    sc_rwlock_unlock(&cache->lock);
    return status;
}
