/* SPDX-License-Identifier: Apache-2.0 */
/* What a remote tier has of others: asked without the lock, learnt by a call of its own, so that
 * ranks can agree in between, and a recorded sequence replays (contract 18). */
#include <string.h>

#include "record.h"
#include "tier.h"

/* ---- what is asked ---- */

static sc_status check_history(const sc_find *find)
{
    SC_REQUIRE(find->history || find->history_count == 0);
    uint32_t begin = 0;
    for (uint32_t i = 0; i < find->history_count; i++) {
        SC_REQUIRE(find->history[i].end > begin);
        SC_REQUIRE((uint32_t)find->history[i].form <= SC_FORM_KIND_DECODE);
        begin = find->history[i].end;
    }
    SC_REQUIRE(find->history_count == 0 || begin == find->key.token_count);
    return SC_OK;
}

/* Stretches of the first `len` tokens, into room for history_count, or for one. */
static uint32_t stretches_make(const sc_find *find, uint32_t len, struct sc_stretch *out)
{
    uint32_t count = 0;
    static_assert((int)SC_FORM_KIND_DECODE == (int)SC_FORM_DECODE, "one numbering of forms");
    if (find->history_count == 0) {
        out[0] = (struct sc_stretch){len, SC_FORM_PREFILL};
        return 1;
    }
    do {
        uint32_t end = find->history[count].end;
        out[count] = (struct sc_stretch){end < len ? end : len,
            (uint32_t)find->history[count].form};
    } while (out[count++].end < len);
    return count;
}

static uint64_t stretch_room(const sc_find *finds, uint32_t count)
{
    uint64_t room = 0;
    for (uint32_t i = 0; i < count; i++) room += (uint64_t)finds[i].history_count + 1;
    return room;
}

/* ---- find ---- */

/* The items that can be asked for, under the lock. */
static uint32_t asks_make(const sc_cache *cache, sc_find *finds, uint32_t count,
    struct sc_tier_find *asks, struct sc_stretch *stretches, uint32_t *index_of)
{
    uint32_t asked = 0;
    for (uint32_t i = 0; i < count; i++) {
        sc_find *find = &finds[i];
        uint32_t len_max = 0;
        find->len = 0;
        find->status = sc_engine_key_check(cache, &find->key, &len_max);
        if (find->status == SC_OK) find->status = check_history(find);
        if (find->status != SC_OK || len_max == 0) continue;
        const struct space *space = sc_engine_space(cache, find->key.ns);
        const struct tier_space *of = &cache->tier->spaces[space->tier_space];
        struct sc_tier_find *ask = &asks[asked];
        *ask = (struct sc_tier_find){of->adapter_id, of->adapter_generation, find->key.tokens,
            find->key.marks, find->key.token_count, find->key.mark_count, len_max, stretches, 0};
        ask->history_count = stretches_make(find, find->key.token_count, stretches);
        stretches += ask->history_count;
        index_of[asked++] = i;
    }
    return asked;
}

static sc_status ask(sc_cache *cache, sc_find *finds, uint32_t count, struct sc_tier_find *asks,
    struct sc_stretch *stretches, uint32_t *index_of)
{
    struct tier *tier = cache->tier;
    uint32_t *lens = index_of + count;
    sc_rwlock_lock_shared(&cache->lock);
    uint32_t asked = asks_make(cache, finds, count, asks, stretches, index_of);
    sc_rwlock_unlock_shared(&cache->lock);
    if (asked == 0) return SC_OK;
    sc_status status = tier->table->find(tier->tiers, asks, asked, lens);
    for (uint32_t i = 0; i < asked; i++) {
        sc_find *find = &finds[index_of[i]];
        find->status = status;
        find->len = status == SC_OK ? lens[i] : 0;
    }
    return SC_OK;
}

sc_status sc_cache_find(sc_cache *cache, sc_find *finds, uint32_t count)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(finds || count == 0);
    if (count == 0) return SC_OK;
    bool remote = cache->tier && cache->tier->bytes_max[SC_TIER_REMOTE] > 0;
    for (uint32_t i = 0; i < count && !remote; i++) {
        finds[i].len = 0;
        finds[i].status = SC_OK;
    }
    if (!remote) return SC_OK;
    struct sc_heap *heap = &cache->heap;
    size_t ask_bytes = count * sizeof(struct sc_tier_find);
    size_t stretch_bytes = (size_t)stretch_room(finds, count) * sizeof(struct sc_stretch);
    size_t index_bytes = 2 * (size_t)count * sizeof(uint32_t);
    struct sc_tier_find *asks = sc_heap_alloc(heap, ask_bytes, 16);
    struct sc_stretch *stretches = sc_heap_alloc(heap, stretch_bytes, 16);
    uint32_t *index_of = sc_heap_alloc(heap, index_bytes, 16);
    sc_status status = SC_ERR_NO_MEMORY;
    if (asks && stretches && index_of) {
        status = ask(cache, finds, count, asks, stretches, index_of);
    } else {
        (void)SC_FAIL(SC_ERR_NO_MEMORY, "no memory to ask for %u keys", count);
    }
    sc_heap_free(heap, asks, ask_bytes);
    sc_heap_free(heap, stretches, stretch_bytes);
    sc_heap_free(heap, index_of, index_bytes);
    return status;
}

/* ---- learn ---- */

static sc_status check_finds(const sc_cache *cache, const sc_find *finds, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t len_max = 0;
        if (!sc_engine_learns(&finds[i])) continue;
        SC_TRY(sc_engine_key_check(cache, &finds[i].key, &len_max));
        SC_TRY(check_history(&finds[i]));
        SC_REQUIRE(finds[i].len <= finds[i].key.token_count);
    }
    return SC_OK;
}

static sc_status learn_one(sc_cache *cache, const sc_find *find, struct sc_stretch *stretches)
{
    struct tier *tier = cache->tier;
    struct tier_record *record = NULL;
    const struct tier_record probe = {.token_count = find->len};
    uint64_t bytes = sc_tier_copy_bytes(cache, &probe, SC_TIER_REMOTE);
    const struct space *space = sc_engine_space(cache, find->key.ns);
    const struct tier_key key = {.space = space->tier_space, .tokens = find->key.tokens,
        .token_count = find->len, .marks = find->key.marks,
        .mark_count = find->key.mark_count, .history = stretches,
        .history_count = stretches_make(find, find->len, stretches)};
    double value = tier->floor[SC_TIER_REMOTE];
    if (!sc_tier_make_room(cache, SC_TIER_REMOTE, bytes, value)) {
        return SC_FAIL(SC_ERR_LIMIT, "no room to remember a state of %u tokens", find->len);
    }
    SC_TRY(sc_tier_record_add(cache, &key, &record));
    if ((record->copies | record->writing) & 1u << SC_TIER_REMOTE) return SC_OK;
    if (record->kind == 0) record->kind = SC_SNAPSHOT_POINT;
    if (record->snapshot == 0) record->value = value;
    record->suspect = 0;
    record->copies = (uint8_t)(record->copies | 1u << SC_TIER_REMOTE);
    record->bytes[SC_TIER_REMOTE] = bytes;
    record->used = ++tier->tick;
    tier->used[SC_TIER_REMOTE] += bytes;
    tier->count[SC_TIER_REMOTE]++;
    sc_tier_rank(tier, record);
    sc_engine_event_learnt(cache, space, find, record);
    return SC_OK;
}

static sc_status learn(sc_cache *cache, sc_find *finds, uint32_t count, uint64_t now_ns,
    struct sc_stretch *stretches)
{
    SC_TRY(check_finds(cache, finds, count));
    SC_TRY(sc_engine_record_room(cache, sc_engine_record_learn_words(finds, count)));
    (void)sc_engine_time(cache, now_ns);
    sc_engine_record_learn(cache, finds, count, now_ns);
    for (uint32_t i = 0; i < count; i++) {
        if (sc_engine_learns(&finds[i])) finds[i].status = learn_one(cache, &finds[i], stretches);
    }
    return SC_OK;
}

sc_status sc_cache_learn(sc_cache *cache, sc_find *finds, uint32_t count, uint64_t now_ns)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(finds || count == 0);
    if (!cache->tier || cache->tier->bytes_max[SC_TIER_REMOTE] == 0) {
        return SC_FAIL(SC_ERR_UNSUPPORTED, "the cache has no remote tier");
    }
    uint32_t most = 1;
    for (uint32_t i = 0; i < count; i++) {
        if (finds[i].history_count > most) most = finds[i].history_count;
    }
    struct sc_heap *heap = &cache->heap;
    struct sc_stretch *stretches = sc_heap_alloc(heap, most * sizeof *stretches, 16);
    if (!stretches) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u stretches", most);
    sc_rwlock_lock(&cache->lock);
    sc_status status = learn(cache, finds, count, now_ns, stretches);
    sc_rwlock_unlock(&cache->lock);
    sc_heap_free(heap, stretches, most * sizeof *stretches);
    return status;
}
