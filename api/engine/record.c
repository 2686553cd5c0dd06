/* SPDX-License-Identifier: Apache-2.0 */
/* Writes records of mutating calls (record.h) and hands them to the callback of the options.
 *
 * Room is made before the call is carried out, for as much as it can need, so that a call which has
 * taken effect is always recorded. Without a callback nothing here does anything. */
#include "record.h"

#include <string.h>

#include "base/prng.h"
#include "tier.h"

enum { ROOM_LEAST = 256 };

sc_status sc_engine_record_room(sc_cache *cache, uint64_t words)
{
    struct recorder *recorder = &cache->recorder;
    if (!cache->options.record) return SC_OK;
    if (words < ROOM_LEAST) words = ROOM_LEAST;
    if (words <= recorder->cap) return SC_OK;
    if (words > UINT32_MAX / 2) {
        return SC_FAIL(SC_ERR_NO_MEMORY, "a record of %llu words", (unsigned long long)words);
    }
    uint32_t cap = (uint32_t)words + (uint32_t)words / 4;
    uint32_t *grown = sc_heap_realloc(&cache->heap, recorder->words,
        recorder->cap * sizeof *grown, cap * sizeof *grown);
    if (!grown) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a record of %u words", cap);
    recorder->words = grown;
    recorder->cap = cap;
    return SC_OK;
}

void sc_engine_record_free(sc_cache *cache)
{
    sc_heap_free(&cache->heap, cache->recorder.words,
        cache->recorder.cap * sizeof *cache->recorder.words);
}

/* ---- writing ---- */

static void put(sc_cache *cache, uint32_t word)
{
    struct recorder *recorder = &cache->recorder;
    SC_ASSERT(recorder->count < recorder->cap);
    recorder->words[recorder->count++] = word;
}

static void put64(sc_cache *cache, uint64_t value)
{
    put(cache, (uint32_t)value);
    put(cache, (uint32_t)(value >> 32));
}

/* `count` things of `words` words each, the count first. */
static void put_array(sc_cache *cache, const void *items, uint32_t count, uint32_t words)
{
    struct recorder *recorder = &cache->recorder;
    put(cache, count);
    if (count == 0) return;
    SC_ASSERT((uint64_t)recorder->count + (uint64_t)count * words <= recorder->cap);
    memcpy(recorder->words + recorder->count, items, (size_t)count * words * sizeof(uint32_t));
    recorder->count += count * words;
}

static void put_lease(sc_cache *cache, sc_lease lease)
{
    put(cache, lease.id);
    put(cache, lease.generation);
}

/* False: nothing is recorded. */
static bool begin(sc_cache *cache, enum record_op op)
{
    if (!cache->options.record) return false;
    cache->recorder.count = 0;
    put(cache, 0);
    put(cache, op);
    return true;
}

static void send(sc_cache *cache)
{
    struct recorder *recorder = &cache->recorder;
    recorder->words[0] = recorder->count;
    cache->options.record(cache->options.record_ctx, recorder->words,
        recorder->count * sizeof *recorder->words);
}

/* ---- options, namespaces ---- */

/* What of its tiers a cache decides by, and what was there at creation. */
enum { TIER_WORDS = 32 };
static void tier_words(const sc_cache *cache, uint32_t *words)
{
    const struct tier *tier = cache->tier;
    if (!tier) return;
    const sc_tiers_options *options = tier->options;
    bool remote = options->remote.bytes > 0; /* it stands alone */
    const sc_tier_config *tiers[] = {remote ? &options->remote : &options->host, &options->disk};
    uint64_t all[(RECORD_OPTION_WORDS - TIER_WORDS) / 2] = {
        tier->options->flops_per_s, tier->has_mover ? tier->mover.page_bytes : 0,
        tier->state_bytes[SC_TIER_HOST], tier->state_bytes[SC_TIER_DISK], tier->load_hash,
        (uint64_t)tier->load_count << 32 | tier->has_mover};
    all[5] ^= (uint64_t)tier->options->entry_max << 8;
    if (remote) all[2] = ~tier->state_bytes[SC_TIER_REMOTE];
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t *at = all + 6 + (size_t)7 * i;
        at[0] = tiers[i]->bytes;
        at[1] = tiers[i]->day_bytes;
        at[2] = (uint64_t)tiers[i]->write << 32 | tiers[i]->write_uses;
        at[3] = tiers[i]->codec;
        at[4] = tiers[i]->restore_bytes_per_s;
        at[5] = tiers[i]->restore_latency_ns;
        at[6] = tiers[i]->zstd_level;
    }
    static_assert(sizeof all == (RECORD_OPTION_WORDS - TIER_WORDS) * sizeof *words, "they fill it");
    memcpy(words, all, sizeof all);
}

void sc_engine_record_options(const sc_cache *cache, uint32_t words[RECORD_OPTION_WORDS])
{
    const sc_cache_options *options = &cache->options;
    sc_pool_info pool = {0}, extras = {0};
    (void)sc_pool_info_get(options->pool, &pool);
    if (options->extras) (void)sc_pool_info_get(options->extras, &extras);
    const uint32_t all[RECORD_OPTION_WORDS] = {
        RECORD_VERSION, cache->page, options->without_kv, options->row_max, options->save_max,
        options->lease_max, options->lease_token_max, (uint32_t)options->token_max,
        (uint32_t)(options->token_max >> 32), options->path_snapshots_max, options->save_flags,
        cache->decode_interval, options->keep_cuts, options->depth_max, options->draft_max,
        options->tails, cache->chunk_grid, pool.slot_count, extras.slot_count,
        cache->policy_index, options->policy_blocks, options->policy_interval};
    const double numbers[] = {options->flops_per_token, options->flops_per_token2,
        options->kv_token_bytes, options->policy_alpha};
    memcpy(words, all, sizeof all);
    static_assert(24 + sizeof numbers / (sizeof *words) == TIER_WORDS, "they fit");
    memcpy(words + 24, numbers, sizeof numbers);
    tier_words(cache, words + TIER_WORDS);
}

sc_status sc_engine_record_created(sc_cache *cache)
{
    uint32_t words[RECORD_OPTION_WORDS];
    SC_TRY(sc_engine_record_room(cache, 0));
    if (!begin(cache, RECORD_OPTIONS)) return SC_OK;
    sc_engine_record_options(cache, words);
    put_array(cache, words, RECORD_OPTION_WORDS, 1);
    send(cache);
    return SC_OK;
}

void sc_engine_record_ns_open(sc_cache *cache, uint64_t adapter, uint64_t generation,
    sc_namespace ns)
{
    if (!begin(cache, RECORD_NS_OPEN)) return;
    put64(cache, adapter);
    put64(cache, generation);
    put(cache, ns.id);
    put(cache, ns.generation);
    send(cache);
}

void sc_engine_record_ns_close(sc_cache *cache, sc_namespace ns)
{
    if (!begin(cache, RECORD_NS_CLOSE)) return;
    put(cache, ns.id);
    put(cache, ns.generation);
    send(cache);
}

/* ---- leases ---- */

uint64_t sc_engine_record_acquire_words(const sc_cache *cache, const sc_request *requests,
    uint32_t count)
{
    uint64_t words = 8;
    if (!cache->options.record) return 0;
    for (uint32_t i = 0; i < count; i++) {
        const sc_key *key = &requests[i].key;
        words += 64 + SC_BREAKPOINTS_MAX;
        if (key->token_count > cache->options.lease_token_max) continue; /* will be refused */
        if (key->mark_count > key->token_count) continue;
        words += (uint64_t)key->token_count + 5 * (uint64_t)key->mark_count;
        if (cache->tier) words += key->token_count / cache->page + 1; /* ids */
    }
    return words;
}

static void put_hints(sc_cache *cache, const sc_hints *hints)
{
    put(cache, hints != NULL);
    if (!hints) return;
    put_array(cache, hints->breakpoints, hints->breakpoint_count, 1);
    put(cache, hints->flags);
    put64(cache, hints->pin_until_ns);
    put64(cache, hints->ttl_ns);
    put(cache, (uint32_t)hints->priority);
    put(cache, hints->class_id);
}

static void put_request(sc_cache *cache, const sc_request *request)
{
    const sc_key *key = &request->key;
    put(cache, key->ns.id);
    put(cache, key->ns.generation);
    put_array(cache, key->tokens, key->token_count, 1);
    put_array(cache, key->marks, key->mark_count, sizeof(sc_mark) / sizeof(uint32_t));
    put(cache, key->len_max);
    put64(cache, request->deadline_ns);
    put(cache, request->flags);
    put(cache, request->depth);
    put(cache, request->external_len);
    put_hints(cache, request->hints);
}

/* Whether an item did anything: also one that evicted, and then found no room. */
static bool acted(sc_status status)
{
    return status == SC_OK || status == SC_ERR_NO_SLOT;
}

/* Whether pages were asked for, and which were given. */
static void put_given(sc_cache *cache, const struct lease *lease)
{
    uint8_t asked = lease ? lease->kv_asked : 0;
    const struct transfer *transfer = asked == 2 ? lease->restore : NULL;
    uint32_t first = transfer ? transfer->first_page : 0;
    put(cache, asked);
    put_array(cache, transfer ? transfer->ids + first : NULL,
        transfer ? transfer->page_count - first : 0, 1);
}

void sc_engine_record_acquire(sc_cache *cache, const sc_request *requests, uint32_t count,
    uint64_t now_ns, const sc_lease *leases, const sc_status *each, bool later)
{
    uint32_t items = 0;
    if (!begin(cache, RECORD_ACQUIRE)) return;
    for (uint32_t i = 0; i < count; i++) items += acted(each[i]);
    if (items == 0 && !later) return;
    put64(cache, now_ns);
    put(cache, items);
    for (uint32_t i = 0; i < count; i++) {
        if (!acted(each[i])) continue;
        const struct lease *lease = sc_engine_lease(cache, leases[i]);
        put_request(cache, &requests[i]);
        put_given(cache, lease);
        put(cache, (uint32_t)each[i]);
        put_lease(cache, leases[i]);
        put(cache, lease ? lease->len : 0);
        put(cache, lease ? lease->source.id : 0);
        put(cache, lease ? lease->working.id : 0);
        put64(cache, lease && lease->restore ? lease->restore->ticket : 0);
    }
    send(cache);
}

uint64_t sc_engine_record_append_words(const sc_cache *cache, uint32_t count, uint32_t marks)
{
    if (count > cache->options.lease_token_max || marks > count) return 0; /* will be refused */
    return 16 + (uint64_t)count + 5 * (uint64_t)marks;
}

void sc_engine_record_append(sc_cache *cache, sc_lease lease, const int32_t *tokens,
    uint32_t count, const sc_mark *marks, uint32_t mark_count)
{
    if (!begin(cache, RECORD_APPEND)) return;
    put_lease(cache, lease);
    put_array(cache, tokens, count, 1);
    put_array(cache, marks, mark_count, sizeof(sc_mark) / sizeof(uint32_t));
    send(cache);
}

uint64_t sc_engine_record_filled_words(const sc_cache *cache, uint32_t kv_count,
    uint32_t history_count)
{
    uint32_t most = cache->options.lease_token_max;
    if (kv_count > most || history_count > most) return 0; /* will be refused */
    return 16 + (uint64_t)kv_count + 2 * (uint64_t)history_count;
}

void sc_engine_record_filled(sc_cache *cache, sc_lease lease, const int32_t *kv_ids,
    uint32_t kv_count, const sc_history *history, uint32_t history_count)
{
    if (!begin(cache, RECORD_FILLED)) return;
    put_lease(cache, lease);
    put_array(cache, kv_ids, kv_count, 1);
    put(cache, history_count);
    for (uint32_t i = 0; i < history_count; i++) {
        put(cache, history[i].end);
        put(cache, (uint32_t)history[i].form);
    }
    send(cache);
}

void sc_engine_record_fork(sc_cache *cache, sc_lease lease, int32_t tail_kv, uint32_t count,
    sc_status status, const sc_lease *children)
{
    if (!acted(status) && status != SC_ERR_BUSY) return;
    if (!begin(cache, RECORD_FORK)) return;
    put_lease(cache, lease);
    put(cache, (uint32_t)tail_kv);
    put(cache, count);
    put(cache, (uint32_t)status);
    for (uint32_t i = 0; i < count && status == SC_OK; i++) put_lease(cache, children[i]);
    send(cache);
}

void sc_engine_record_lose(sc_cache *cache, sc_lease lease)
{
    if (!begin(cache, RECORD_LOSE)) return;
    put_lease(cache, lease);
    send(cache);
}

void sc_engine_record_undo(sc_cache *cache, sc_lease lease, bool forked)
{
    if (!begin(cache, RECORD_UNDO)) return;
    put_lease(cache, lease);
    put(cache, forked);
    send(cache);
}

void sc_engine_record_adopt(sc_cache *cache, sc_lease lease, uint32_t count)
{
    if (!begin(cache, RECORD_ADOPT)) return;
    put_lease(cache, lease);
    put(cache, count);
    send(cache);
}

void sc_engine_record_release(sc_cache *cache, sc_lease lease, uint32_t len, enum sc_release how,
    int32_t tail_kv)
{
    if (!begin(cache, RECORD_RELEASE)) return;
    put_lease(cache, lease);
    put(cache, len);
    put(cache, how);
    put(cache, (uint32_t)tail_kv);
    send(cache);
}

/* ---- steps ---- */

uint64_t sc_engine_record_plan_words(const sc_cache *cache, const sc_row *rows, uint32_t count)
{
    uint64_t words = 32 + 3 * (uint64_t)cache->options.save_max;
    if (!cache->options.record || count > cache->options.row_max) return 0;
    for (uint32_t i = 0; i < count; i++) {
        words += 16 + RECORD_PLAN_WORDS;
        if (rows[i].draft_count <= cache->options.draft_max) words += rows[i].draft_count;
        if (rows[i].point_count <= cache->options.lease_token_max) words += rows[i].point_count;
    }
    return words;
}

void sc_engine_record_plan_row(const sc_batch *batch, uint32_t row,
    uint32_t words[RECORD_PLAN_WORDS])
{
    const uint32_t at[RECORD_PLAN_WORDS] = {batch->at_position, batch->at_end, batch->at_source,
        batch->at_dest, batch->at_extra, batch->at_decode, batch->at_freeze, batch->at_flush,
        batch->at_extra_from};
    for (uint32_t i = 0; i < RECORD_PLAN_WORDS; i++) {
        words[i] = (uint32_t)batch->block[at[i] + row];
    }
}

static void put_row(sc_cache *cache, const sc_row *row)
{
    put_lease(cache, row->lease);
    put(cache, row->from);
    put(cache, row->to);
    put_array(cache, row->points, row->point_count, 1);
    put(cache, row->draft_count);
    put(cache, row->parents != NULL);
    if (row->parents) put_array(cache, row->parents, row->draft_count, 1);
}

void sc_engine_record_plan(sc_cache *cache, sc_step step, const sc_row *rows, uint32_t count,
    uint64_t now_ns, const sc_batch *batch, const sc_status *each)
{
    uint32_t words[RECORD_PLAN_WORDS];
    const sc_row refused = {.parents = NULL};
    if (!begin(cache, RECORD_PLAN)) return;
    put64(cache, step);
    put64(cache, now_ns);
    put(cache, count);
    for (uint32_t i = 0; i < count; i++) put_row(cache, each[i] == SC_OK ? &rows[i] : &refused);
    for (uint32_t i = 0; i < count; i++) {
        put(cache, each[i] == SC_OK);
        sc_engine_record_plan_row(batch, i, words);
        put_array(cache, words, RECORD_PLAN_WORDS, 1);
    }
    put(cache, batch->save_count);
    for (uint32_t i = 0; i < batch->save_count; i++) {
        put(cache, (uint32_t)batch->block[batch->at_save_row + i]);
        put(cache, (uint32_t)batch->block[batch->at_save_position + i]);
        put(cache, (uint32_t)batch->block[batch->at_save_slot + i]);
    }
    send(cache);
}

uint64_t sc_engine_record_commit_words(const sc_cache *cache, const sc_result *results,
    uint32_t count)
{
    uint64_t words = 16;
    if (!cache->options.record || count > cache->options.row_max) return 0;
    for (uint32_t i = 0; i < count; i++) {
        words += 8;
        if (results[i].kv_count <= cache->options.lease_token_max) words += results[i].kv_count;
    }
    return words;
}

void sc_engine_record_commit(sc_cache *cache, sc_step step, const sc_result *results,
    uint32_t count)
{
    if (!begin(cache, RECORD_COMMIT)) return;
    put64(cache, step);
    put(cache, count);
    for (uint32_t i = 0; i < count; i++) {
        put_lease(cache, results[i].lease);
        put(cache, results[i].len);
        put_array(cache, results[i].kv_ids, results[i].kv_count, 1);
    }
    send(cache);
}

void sc_engine_record_abort(sc_cache *cache, sc_step step, bool launched)
{
    if (!begin(cache, RECORD_ABORT)) return;
    put64(cache, step);
    put(cache, launched);
    send(cache);
}

void sc_engine_record_apply(sc_cache *cache, const sc_done *done, uint32_t count, uint64_t now_ns)
{
    if (!begin(cache, RECORD_APPLY)) return;
    put64(cache, now_ns);
    put(cache, count);
    for (uint32_t i = 0; i < count; i++) {
        put64(cache, done[i].ticket);
        put(cache, (uint32_t)done[i].status);
    }
    send(cache);
}

uint64_t sc_engine_record_learn_words(const sc_find *finds, uint32_t count)
{
    uint64_t words = 16;
    for (uint32_t i = 0; i < count; i++) {
        words += 8 + (uint64_t)finds[i].key.token_count + 5 * (uint64_t)finds[i].key.mark_count +
            2 * (uint64_t)finds[i].history_count;
    }
    return words;
}

void sc_engine_record_learn(sc_cache *cache, const sc_find *finds, uint32_t count,
    uint64_t now_ns)
{
    uint32_t said = 0;
    if (!begin(cache, RECORD_LEARN)) return;
    for (uint32_t i = 0; i < count; i++) said += sc_engine_learns(&finds[i]);
    put64(cache, now_ns);
    put(cache, said);
    for (uint32_t i = 0; i < count; i++) {
        const sc_find *find = &finds[i];
        if (!sc_engine_learns(find)) continue;
        put(cache, find->key.ns.id);
        put(cache, find->key.ns.generation);
        put(cache, find->len);
        put_array(cache, find->key.tokens, find->len, 1);
        uint32_t marks = find->key.mark_count;
        while (marks > 0 && find->key.marks[marks - 1].at >= find->len) marks--;
        put_array(cache, find->key.marks, marks, sizeof(sc_mark) / sizeof(uint32_t));
        uint32_t stretches = 0; /* of the tokens up to len */
        while (stretches < find->history_count &&
            (stretches == 0 || find->history[stretches - 1].end < find->len)) {
            stretches++;
        }
        put(cache, stretches);
        for (uint32_t j = 0; j < stretches; j++) {
            uint32_t end = find->history[j].end;
            put(cache, end < find->len ? end : find->len);
            put(cache, (uint32_t)find->history[j].form);
        }
    }
    send(cache);
}

/* ---- eviction ---- */

void sc_engine_record_evict(sc_cache *cache, uint32_t pages, uint32_t slots, const sc_room *got)
{
    if (!begin(cache, RECORD_EVICT)) return;
    put(cache, pages);
    put(cache, slots);
    put(cache, got->slots_free);
    put64(cache, got->pages_cached);
    put64(cache, got->pages_drainable);
    send(cache);
}

void sc_engine_record_trim(sc_cache *cache, uint64_t token_max)
{
    if (!begin(cache, RECORD_TRIM)) return;
    put64(cache, token_max);
    send(cache);
}

void sc_engine_record_evict_prefix(sc_cache *cache, const sc_key *prefix,
    const sc_evicted *evicted)
{
    if (!begin(cache, RECORD_EVICT_PREFIX)) return;
    put(cache, prefix->ns.id);
    put(cache, prefix->ns.generation);
    put_array(cache, prefix->tokens, prefix->token_count, 1);
    put_array(cache, prefix->marks, prefix->mark_count, sizeof(sc_mark) / sizeof(uint32_t));
    put64(cache, evicted->states);
    put64(cache, evicted->copies);
    put64(cache, evicted->held);
    send(cache);
}

uint64_t sc_engine_record_ids_hash(const int32_t *ids, uint32_t count)
{
    uint64_t hash = count;
    for (uint32_t i = 0; i < count; i++) hash = sc_mix64(hash ^ sc_mix64((uint32_t)ids[i]));
    return hash;
}

void sc_engine_record_drain(sc_cache *cache, uint32_t cap, const int32_t *ids, uint32_t count)
{
    if (count == 0 || !begin(cache, RECORD_DRAIN)) return;
    put(cache, cap);
    put(cache, count);
    put64(cache, sc_engine_record_ids_hash(ids, count));
    send(cache);
}
