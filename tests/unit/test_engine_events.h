/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of events (statecache/events.h) that trusts nothing: it keeps the copies that are there,
 * each with its whole key, and checks every event against them. */
#ifndef TESTS_UNIT_TEST_ENGINE_EVENTS_H
#define TESTS_UNIT_TEST_ENGINE_EVENTS_H

#include "statecache/events.h"
#include "test_engine_rig.h"

enum { MIRROR_MAX = 4096 };

struct mirrored {
    uint64_t copy;
    uint32_t tier, len, mark_count, kind;
    uint64_t adapter_id, adapter_generation;
    int32_t *tokens;
    sc_mark *marks;
};

struct mirror {
    struct mirrored copies[MIRROR_MAX];
    uint32_t count;
    uint64_t number, stored, removed, lost, evicted[SC_EVICT_COUNT];
    uint64_t tokens;   /* that events brought */
    bool whole;        /* it has had a picture since it lost */
    bool anew;         /* that was empty, and said no number */
};

static inline struct mirrored *mirror_find(struct mirror *mirror, uint64_t copy)
{
    for (uint32_t i = 0; i < mirror->count; i++) {
        if (mirror->copies[i].copy == copy) return &mirror->copies[i];
    }
    return NULL;
}

static inline void mirror_drop(struct mirror *mirror, struct mirrored *copy)
{
    free(copy->tokens);
    free(copy->marks);
    *copy = mirror->copies[--mirror->count];
}

static inline void mirror_clear(struct mirror *mirror)
{
    while (mirror->count > 0) mirror_drop(mirror, &mirror->copies[mirror->count - 1]);
}

static inline bool mirror_same_key(const struct mirrored *a, const struct mirrored *b)
{
    return a->len == b->len && a->mark_count == b->mark_count &&
        a->adapter_id == b->adapter_id && a->adapter_generation == b->adapter_generation &&
        memcmp(a->tokens, b->tokens, a->len * sizeof *a->tokens) == 0 &&
        (a->mark_count == 0 ||
            memcmp(a->marks, b->marks, a->mark_count * sizeof *a->marks) == 0);
}

static inline void mirror_store(struct mirror *mirror, const sc_event *event)
{
    static const struct mirrored none = {.len = 0};
    const struct mirrored *base = event->base ? mirror_find(mirror, event->base) : &none;
    ck_assert_msg(base, "event %llu: base %llx is not there", (unsigned long long)event->number,
        (unsigned long long)event->base);
    ck_assert_ptr_null(mirror_find(mirror, event->copy));
    ck_assert_uint_eq(base->len, event->base_len);
    ck_assert_uint_gt(event->len, 0);
    ck_assert_uint_ge(event->len, event->base_len);
    ck_assert_uint_lt(mirror->count, MIRROR_MAX);
    ck_assert_uint_lt(event->tier, SC_TIER_COUNT);
    ck_assert(event->detail >= SC_KIND_PROMPT_END && event->detail <= SC_KIND_POINT);
    struct mirrored copy = {.copy = event->copy, .tier = event->tier, .len = event->len,
        .mark_count = base->mark_count + event->mark_count, .kind = event->detail,
        .adapter_id = event->adapter_id, .adapter_generation = event->adapter_generation};
    uint32_t more = event->len - event->base_len;
    copy.tokens = calloc(copy.len, sizeof *copy.tokens);
    copy.marks = calloc(copy.mark_count + 1, sizeof *copy.marks);
    ck_assert(copy.tokens && copy.marks);
    if (base->len > 0) memcpy(copy.tokens, base->tokens, base->len * sizeof *copy.tokens);
    if (more > 0) memcpy(copy.tokens + base->len, event->tokens, more * sizeof *copy.tokens);
    if (base->mark_count > 0) {
        memcpy(copy.marks, base->marks, base->mark_count * sizeof *copy.marks);
    }
    for (uint32_t i = 0; i < event->mark_count; i++) {
        ck_assert_uint_ge(event->marks[i].at, event->base_len);
        ck_assert_uint_lt(event->marks[i].at, event->len);
        copy.marks[base->mark_count + i] = event->marks[i];
    }
    if (event->base) {
        ck_assert_uint_eq(base->adapter_id, copy.adapter_id);
        ck_assert_uint_eq(base->adapter_generation, copy.adapter_generation);
    }
    for (uint32_t i = 0; i < mirror->count; i++) { /* one copy of a state in a tier */
        const struct mirrored *other = &mirror->copies[i];
        ck_assert(other->tier != copy.tier || !mirror_same_key(other, &copy));
    }
    mirror->copies[mirror->count++] = copy;
    mirror->stored++;
    mirror->tokens += more;
}

static inline void mirror_apply(struct mirror *mirror, const sc_event *events, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const sc_event *event = &events[i];
        struct mirrored *gone = NULL;
        if (mirror->anew) mirror->number = event->number - 1;
        mirror->anew = false;
        switch (event->kind) {
        case SC_EVENT_STORED:
            ck_assert_uint_eq(event->number, ++mirror->number);
            mirror_store(mirror, event);
            break;
        case SC_EVENT_REMOVED:
            ck_assert_uint_eq(event->number, ++mirror->number);
            gone = mirror_find(mirror, event->copy);
            ck_assert_msg(gone, "copy %llx goes, and was not there",
                (unsigned long long)event->copy);
            ck_assert_uint_eq(gone->tier, event->tier);
            if (event->tier == SC_TIER_DEVICE) mirror->evicted[event->detail]++;
            mirror_drop(mirror, gone);
            mirror->removed++;
            break;
        default:
            ck_assert_uint_eq(event->kind, SC_EVENT_LOST);
            ck_assert_uint_eq(i + 1, count);
            mirror->whole = false;
            mirror->lost++;
            break;
        }
    }
}

static inline void mirror_take(struct mirror *mirror, sc_cache *cache)
{
    const sc_event *events = NULL;
    uint32_t count = 0;
    rig_ok(sc_cache_events_take(cache, &events, &count));
    mirror_apply(mirror, events, count);
}

/* From the picture alone. */
static inline void mirror_draw(struct mirror *mirror, sc_cache *cache)
{
    const sc_event *events = NULL;
    uint32_t count = 0;
    mirror_clear(mirror);
    rig_ok(sc_cache_events_restart(cache, &events, &count));
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_eq(events[i].kind, SC_EVENT_STORED);
        ck_assert_uint_eq(events[i].number, events[0].number);
        mirror_store(mirror, &events[i]);
    }
    mirror->anew = count == 0;
    if (count > 0) mirror->number = events[0].number;
    mirror->whole = true;
}

static inline void mirror_equal(struct mirror *a, struct mirror *b)
{
    ck_assert_uint_eq(a->count, b->count);
    for (uint32_t i = 0; i < a->count; i++) {
        const struct mirrored *mine = &a->copies[i], *other = mirror_find(b, mine->copy);
        ck_assert_msg(other, "copy %llx is in one picture alone", (unsigned long long)mine->copy);
        ck_assert_uint_eq(mine->tier, other->tier);
        if (mine->tier == SC_TIER_DEVICE) ck_assert_uint_eq(mine->kind, other->kind);
        ck_assert(mirror_same_key(mine, other));
    }
}

static inline uint32_t mirror_in(const struct mirror *mirror, uint32_t tier)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < mirror->count; i++) count += mirror->copies[i].tier == tier;
    return count;
}

/* Against what the cache says otherwise: its counters, and look-ups of each state of the device. */
static inline void mirror_true(struct mirror *mirror, struct rig *rig)
{
    sc_cache_stats stats = rig_stats(rig);
    ck_assert_uint_eq(mirror_in(mirror, SC_TIER_DEVICE), stats.snapshots_alive);
    for (uint32_t i = 0; i < mirror->count; i++) {
        const struct mirrored *copy = &mirror->copies[i];
        const sc_key key = {.ns = rig->ns, .tokens = copy->tokens, .token_count = copy->len,
            .marks = copy->marks, .mark_count = copy->mark_count, .len_max = copy->len};
        sc_answer answer;
        if (copy->adapter_id != 0) continue;
        rig_ok(sc_cache_lookup(rig->cache, &key, 1, &answer));
        rig_ok(answer.status);
        if (copy->tier == SC_TIER_DEVICE) {
            ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], copy->len);
        }
    }
}

#endif
