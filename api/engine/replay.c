/* SPDX-License-Identifier: Apache-2.0 */
/* Plays records (record.h): makes each call again, on another cache, and compares what it decides.
 *
 * A record is read word by word; reading past its end gives zeros and is found at the end, so that
 * no place has to check on its own. Arrays that a call takes are used where they lie in the
 * player's copy of the record; only structs with pointers are built anew, in scratch memory.
 *
 * A number that differs is SC_ERR_MISMATCH with its name, the record's number, and both values. */
#include <string.h>

#include "record.h"
#include "tier.h"
#include "statecache/experimental.h"

struct sc_replay {
    struct sc_heap heap;
    sc_cache *cache;
    uint64_t played;
    bool over;      /* something differed */
    uint32_t *words; /* the record being played */
    uint32_t cap, count, at;
    bool past;      /* read beyond its end */
    void *scratch;
    size_t scratch_bytes;
};

/* ---- reading ---- */

static uint32_t get(struct sc_replay *replay)
{
    if (replay->at < replay->count) return replay->words[replay->at++];
    replay->past = true;
    return 0;
}

static uint64_t get64(struct sc_replay *replay)
{
    uint64_t low = get(replay);
    return low | (uint64_t)get(replay) << 32;
}

static sc_lease get_lease(struct sc_replay *replay)
{
    uint32_t id = get(replay);
    return (sc_lease){id, get(replay)};
}

/* An array of things of `words` words each, where it lies. */
static const void *get_array(struct sc_replay *replay, uint32_t words, uint32_t *count_out)
{
    uint32_t count = get(replay), at = replay->at;
    if ((uint64_t)count * words > replay->count - at) {
        replay->past = true;
        count = 0;
    }
    replay->at += count * words;
    *count_out = count;
    return count ? replay->words + at : NULL;
}

static sc_status scratch(struct sc_replay *replay, size_t count, size_t bytes, void *out)
{
    size_t need = (count + 1) * bytes;
    if (need > replay->scratch_bytes) {
        void *grown = sc_heap_alloc(&replay->heap, need, 16);
        if (!grown) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to replay %zu items", count);
        sc_heap_free(&replay->heap, replay->scratch, replay->scratch_bytes);
        replay->scratch = grown;
        replay->scratch_bytes = need;
    }
    memset(replay->scratch, 0, need);
    memcpy(out, &replay->scratch, sizeof replay->scratch);
    return SC_OK;
}

/* As many items as can be in what is left of the record, of so many words at least. */
static uint32_t get_count(struct sc_replay *replay, uint32_t words_least)
{
    uint32_t count = get(replay);
    if (count <= (replay->count - replay->at) / words_least) return count;
    replay->past = true;
    return 0;
}

/* ---- comparing ---- */

static sc_status differs(const struct sc_replay *replay, const char *what, uint32_t index,
    uint64_t now, uint64_t then)
{
    return SC_FAIL(SC_ERR_MISMATCH, "record %llu: %s %u is %llu, was %llu",
        (unsigned long long)replay->played, what, index, (unsigned long long)now,
        (unsigned long long)then);
}

static sc_status same(struct sc_replay *replay, const char *what, uint32_t index, uint32_t now)
{
    uint32_t then = get(replay);
    return now == then ? SC_OK : differs(replay, what, index, now, then);
}

static sc_status same64(struct sc_replay *replay, const char *what, uint64_t now)
{
    uint64_t then = get64(replay);
    return now == then ? SC_OK : differs(replay, what, 0, now, then);
}

static sc_status same_lease(struct sc_replay *replay, uint32_t index, sc_lease lease)
{
    SC_TRY(same(replay, "id of lease", index, lease.id));
    return same(replay, "generation of lease", index, lease.generation);
}

/* A call that went well then. */
static sc_status went_well(const struct sc_replay *replay, const char *call, sc_status status)
{
    if (status == SC_OK) return SC_OK;
    sc_error_info why = *sc_last_error();
    return SC_FAIL(SC_ERR_MISMATCH, "record %llu: %s is %s now, was fine: %s",
        (unsigned long long)replay->played, call, sc_status_name(status), why.text);
}

/* A record that was not read whole is not played. */
static sc_status whole(const struct sc_replay *replay)
{
    if (!replay->past) return SC_OK;
    return SC_FAIL(SC_ERR_CORRUPT, "record %llu ends before it should",
        (unsigned long long)replay->played);
}

/* ---- the calls ---- */

static sc_status play_options(struct sc_replay *replay)
{
    uint32_t words[RECORD_OPTION_WORDS], count = get(replay);
    sc_engine_record_options(replay->cache, words);
    if (count != RECORD_OPTION_WORDS || replay->played > 0) {
        return SC_FAIL(SC_ERR_CORRUPT, "record %llu: no options of this version",
            (unsigned long long)replay->played);
    }
    for (uint32_t i = 0; i < count; i++) SC_TRY(same(replay, "option", i, words[i]));
    return SC_OK;
}

static sc_status play_ns_open(struct sc_replay *replay)
{
    sc_namespace ns = {0, 0};
    uint64_t adapter = get64(replay), generation = get64(replay);
    sc_status status = sc_namespace_open(replay->cache, NULL, adapter, generation, &ns);
    SC_TRY(went_well(replay, "sc_namespace_open", status));
    SC_TRY(same(replay, "id of namespace", 0, ns.id));
    return same(replay, "generation of namespace", 0, ns.generation);
}

static sc_status play_ns_close(struct sc_replay *replay)
{
    uint32_t id = get(replay);
    sc_namespace ns = {id, get(replay)};
    SC_TRY(whole(replay));
    return went_well(replay, "sc_namespace_close", sc_namespace_close(replay->cache, ns));
}

static void get_hints(struct sc_replay *replay, sc_hints *hints)
{
    hints->breakpoints = get_array(replay, 1, &hints->breakpoint_count);
    hints->flags = get(replay);
    hints->pin_until_ns = get64(replay);
    hints->ttl_ns = get64(replay);
    hints->priority = (int32_t)get(replay);
    hints->class_id = get(replay);
}

/* KV ids that alloc gave then are given again. */
static void get_given(struct sc_replay *replay)
{
    struct tier *tier = replay->cache->tier;
    uint32_t asked = get(replay), count = 0;
    const int32_t *ids = get_array(replay, 1, &count);
    if (!tier) return;
    tier->player = true;
    tier->player_gives = asked == 2;
    tier->player_ids = ids;
    tier->player_count = count;
}

static sc_status play_request(struct sc_replay *replay, uint32_t index, uint64_t now_ns)
{
    sc_request request = {.depth = 0};
    sc_hints hints = {.flags = 0};
    sc_lease lease = {0, 0};
    sc_lease_info info = {.len = 0};
    sc_status status = SC_OK;
    request.key.ns.id = get(replay);
    request.key.ns.generation = get(replay);
    request.key.tokens = get_array(replay, 1, &request.key.token_count);
    request.key.marks = get_array(replay, sizeof(sc_mark) / sizeof(uint32_t),
        &request.key.mark_count);
    request.key.len_max = get(replay);
    request.deadline_ns = get64(replay);
    request.flags = get(replay);
    request.depth = get(replay);
    request.external_len = get(replay);
    if (get(replay)) {
        get_hints(replay, &hints);
        request.hints = &hints;
    }
    get_given(replay);
    SC_TRY(whole(replay));
    SC_TRY(sc_cache_acquire(replay->cache, &request, 1, now_ns, &lease, &status));
    SC_TRY(same(replay, "status of request", index, (uint32_t)status));
    SC_TRY(same_lease(replay, index, lease));
    if (status == SC_OK) SC_TRY(sc_lease_info_get(replay->cache, lease, &info));
    SC_TRY(same(replay, "length of request", index, info.len));
    SC_TRY(same(replay, "source of request", index, (uint32_t)info.source_slot));
    SC_TRY(same(replay, "working slot of request", index, (uint32_t)info.working_slot));
    return same64(replay, "ticket of request", info.restore_ticket);
}

static sc_status play_acquire(struct sc_replay *replay)
{
    uint64_t now_ns = get64(replay);
    uint32_t count = get_count(replay, 16);
    if (count == 0) SC_TRY(sc_cache_acquire(replay->cache, NULL, 0, now_ns, NULL, NULL));
    for (uint32_t i = 0; i < count; i++) SC_TRY(play_request(replay, i, now_ns));
    return SC_OK;
}

static sc_status play_append(struct sc_replay *replay)
{
    uint32_t count = 0, mark_count = 0;
    sc_lease lease = get_lease(replay);
    const int32_t *tokens = get_array(replay, 1, &count);
    const sc_mark *marks = get_array(replay, sizeof(sc_mark) / sizeof(uint32_t), &mark_count);
    SC_TRY(whole(replay));
    return went_well(replay, "sc_lease_append_marked", sc_lease_append_marked(replay->cache, lease,
        tokens, count, marks, mark_count));
}

static sc_status play_filled(struct sc_replay *replay)
{
    uint32_t count = 0;
    sc_history *history = NULL;
    sc_lease lease = get_lease(replay);
    const int32_t *ids = get_array(replay, 1, &count);
    uint32_t history_count = get_count(replay, 2);
    SC_TRY(scratch(replay, history_count, sizeof *history, &history));
    for (uint32_t i = 0; i < history_count; i++) {
        history[i].end = get(replay);
        history[i].form = get(replay) ? SC_FORM_KIND_DECODE : SC_FORM_KIND_PREFILL;
    }
    SC_TRY(whole(replay));
    return went_well(replay, "sc_lease_filled", sc_lease_filled(replay->cache, lease, ids, count,
        history, history_count));
}

static sc_status play_fork(struct sc_replay *replay)
{
    sc_lease *children = NULL, lease = get_lease(replay);
    int32_t tail_kv = (int32_t)get(replay);
    uint32_t count = get(replay);
    if (count > replay->cache->options.lease_max) replay->past = true;
    SC_TRY(whole(replay));
    SC_TRY(scratch(replay, count, sizeof *children, &children));
    sc_status status = sc_lease_fork(replay->cache, lease, tail_kv, count, children);
    SC_TRY(same(replay, "status of fork", 0, (uint32_t)status));
    for (uint32_t i = 0; i < count && status == SC_OK; i++) {
        SC_TRY(same_lease(replay, i, children[i]));
    }
    return SC_OK;
}

static sc_status play_adopt(struct sc_replay *replay)
{
    uint32_t count = 0;
    sc_lease lease = get_lease(replay);
    SC_TRY(whole(replay));
    sc_status status = sc_lease_adopt(replay->cache, lease, &count);
    SC_TRY(went_well(replay, "sc_lease_adopt", status));
    return same(replay, "number of adopted", 0, count);
}

/* Its device could not prepare a slot: nothing that this one would find out. */
static sc_status play_lose(struct sc_replay *replay)
{
    sc_lease lease = get_lease(replay);
    SC_TRY(whole(replay));
    return went_well(replay, "giving up a lease", sc_engine_lose(replay->cache, lease));
}

static sc_status play_undo(struct sc_replay *replay)
{
    sc_lease lease = get_lease(replay);
    bool forked = get(replay) != 0;
    SC_TRY(whole(replay));
    return went_well(replay, "taking back a lease",
        sc_engine_lease_undo(replay->cache, lease, forked));
}

static void get_row(struct sc_replay *replay, sc_row *row)
{
    uint32_t count = 0;
    row->lease = get_lease(replay);
    row->from = get(replay);
    row->to = get(replay);
    row->points = get_array(replay, 1, &row->point_count);
    row->draft_count = get(replay);
    if (!get(replay)) return;
    row->parents = get_array(replay, 1, &count);
    if (count != row->draft_count) replay->past = true;
}

static sc_status same_batch(struct sc_replay *replay, const sc_batch *batch, uint32_t count,
    const sc_status *each)
{
    static const char *const names[RECORD_PLAN_WORDS] = {"position of row", "end of row",
        "source of row", "destination of row", "extra of row", "form of row", "freeze of row",
        "flush of row", "records of row"};
    uint32_t words[RECORD_PLAN_WORDS];
    for (uint32_t i = 0; i < count; i++) {
        SC_TRY(same(replay, "grant of row", i, each[i] == SC_OK));
        sc_engine_record_plan_row(batch, i, words);
        (void)get(replay);
        for (uint32_t k = 0; k < RECORD_PLAN_WORDS; k++) {
            SC_TRY(same(replay, names[k], i, words[k]));
        }
    }
    SC_TRY(same(replay, "number of saves", 0, batch->save_count));
    for (uint32_t i = 0; i < batch->save_count; i++) {
        const int32_t *block = batch->block;
        SC_TRY(same(replay, "row of save", i, (uint32_t)block[batch->at_save_row + i]));
        SC_TRY(same(replay, "position of save", i, (uint32_t)block[batch->at_save_position + i]));
        SC_TRY(same(replay, "slot of save", i, (uint32_t)block[batch->at_save_slot + i]));
    }
    return SC_OK;
}

static sc_status play_plan(struct sc_replay *replay)
{
    sc_row *rows = NULL;
    sc_batch batch;
    uint64_t step = get64(replay), now_ns = get64(replay);
    uint32_t count = get_count(replay, 7);
    SC_TRY(scratch(replay, count, sizeof *rows + sizeof(sc_status), &rows));
    sc_status *each = (sc_status *)(void *)(rows + count); /* all rows, then all statuses */
    for (uint32_t i = 0; i < count; i++) get_row(replay, &rows[i]);
    SC_TRY(whole(replay));
    sc_status status = sc_step_plan(replay->cache, step, rows, count, now_ns, &batch, each);
    SC_TRY(went_well(replay, "sc_step_plan", status));
    return same_batch(replay, &batch, count, each);
}

static sc_status play_commit(struct sc_replay *replay)
{
    sc_result *results = NULL;
    uint64_t step = get64(replay);
    uint32_t count = get_count(replay, 4);
    SC_TRY(scratch(replay, count, sizeof *results, &results));
    for (uint32_t i = 0; i < count; i++) {
        results[i].lease = get_lease(replay);
        results[i].len = get(replay);
        results[i].kv_ids = get_array(replay, 1, &results[i].kv_count);
    }
    SC_TRY(whole(replay));
    return went_well(replay, "sc_step_commit", sc_step_commit(replay->cache, step, results, count,
        NULL));
}

static sc_status play_abort(struct sc_replay *replay)
{
    uint64_t step = get64(replay);
    bool launched = get(replay) != 0;
    SC_TRY(whole(replay));
    return went_well(replay, "sc_step_abort", sc_step_abort(replay->cache, step, launched));
}

static sc_status play_release(struct sc_replay *replay)
{
    sc_lease lease = get_lease(replay);
    uint32_t len = get(replay);
    enum sc_release how = get(replay) ? SC_RELEASE_KEEP : SC_RELEASE_DISCARD;
    int32_t tail_kv = (int32_t)get(replay);
    SC_TRY(whole(replay));
    return went_well(replay, "sc_lease_release_tail", sc_lease_release_tail(replay->cache, lease,
        len, how, tail_kv));
}

/* The transfers are this cache's own: they have ended before they are applied. */
static sc_status play_apply(struct sc_replay *replay)
{
    sc_done *done = NULL;
    uint64_t now_ns = get64(replay);
    uint32_t count = get_count(replay, 3);
    SC_TRY(scratch(replay, count, sizeof *done, &done));
    for (uint32_t i = 0; i < count; i++) {
        done[i].ticket = get64(replay);
        done[i].status = (sc_status)(int32_t)get(replay);
    }
    SC_TRY(whole(replay));
    SC_TRY(sc_engine_tier_wait(replay->cache, done, count));
    return went_well(replay, "sc_cache_apply", sc_cache_apply(replay->cache, done, count, now_ns));
}

/* One item after the other: what each learns depends on those before. */
static sc_status play_learn(struct sc_replay *replay)
{
    uint64_t now_ns = get64(replay);
    uint32_t count = get_count(replay, 6);
    for (uint32_t i = 0; i < count; i++) {
        sc_history *history = NULL;
        uint32_t ns_id = get(replay);
        sc_find find = {.key = {.ns = {ns_id, get(replay)}}, .status = SC_OK};
        find.len = get(replay);
        find.key.tokens = get_array(replay, 1, &find.key.token_count);
        find.key.marks = get_array(replay, sizeof(sc_mark) / sizeof(uint32_t),
            &find.key.mark_count);
        find.history_count = get_count(replay, 2);
        SC_TRY(scratch(replay, find.history_count, sizeof *history, &history));
        for (uint32_t j = 0; j < find.history_count; j++) {
            history[j].end = get(replay);
            history[j].form = get(replay) ? SC_FORM_KIND_DECODE : SC_FORM_KIND_PREFILL;
        }
        find.history = history;
        SC_TRY(whole(replay));
        SC_TRY(went_well(replay, "sc_cache_learn",
            sc_cache_learn(replay->cache, &find, 1, now_ns)));
    }
    return SC_OK;
}

static sc_status play_evict(struct sc_replay *replay)
{
    sc_room got;
    uint32_t pages = get(replay), slots = get(replay);
    SC_TRY(whole(replay));
    SC_TRY(went_well(replay, "sc_cache_evict", sc_cache_evict(replay->cache, pages, slots, &got)));
    SC_TRY(same(replay, "number of slots evicted", 0, got.slots_free));
    SC_TRY(same64(replay, "number of pages evicted", got.pages_cached));
    return same64(replay, "number of pages to drain", got.pages_drainable);
}

static sc_status play_trim(struct sc_replay *replay)
{
    uint64_t token_max = get64(replay);
    SC_TRY(whole(replay));
    return went_well(replay, "sc_cache_trim", sc_cache_trim(replay->cache, token_max, NULL));
}

static sc_status play_evict_prefix(struct sc_replay *replay)
{
    sc_evicted evicted;
    uint32_t id = get(replay);
    sc_key key = {.ns = {id, get(replay)}};
    key.tokens = get_array(replay, 1, &key.token_count);
    key.marks = get_array(replay, sizeof(sc_mark) / sizeof(uint32_t), &key.mark_count);
    uint64_t states = get64(replay), copies = get64(replay), held = get64(replay);
    SC_TRY(whole(replay));
    SC_TRY(went_well(replay, "sc_cache_evict_prefix",
        sc_cache_evict_prefix(replay->cache, &key, &evicted)));
    if (evicted.states != states) {
        return differs(replay, "number of states evicted", 0, evicted.states, states);
    }
    if (evicted.copies != copies) {
        return differs(replay, "number of copies evicted", 0, evicted.copies, copies);
    }
    return evicted.held == held ? SC_OK :
        differs(replay, "number of what stays", 0, evicted.held, held);
}

static sc_status play_drain(struct sc_replay *replay)
{
    int32_t *ids = NULL;
    uint32_t cap = get(replay), then = get(replay), count = 0;
    SC_TRY(whole(replay));
    sc_room room;
    SC_TRY(sc_cache_room(replay->cache, &room));
    count = room.pages_drainable < cap ? (uint32_t)room.pages_drainable : cap;
    if (count != then) return differs(replay, "number of ids to drain", 0, count, then);
    SC_TRY(scratch(replay, count, sizeof *ids, &ids));
    SC_TRY(went_well(replay, "sc_cache_drain", sc_cache_drain(replay->cache, ids, count, &count)));
    if (count != then) return differs(replay, "number of ids drained", 0, count, then);
    return same64(replay, "hash of the ids drained", sc_engine_record_ids_hash(ids, count));
}

static sc_status play(struct sc_replay *replay)
{
    static sc_status (*const plays[])(struct sc_replay *replay) = {
        [RECORD_OPTIONS] = play_options, [RECORD_NS_OPEN] = play_ns_open,
        [RECORD_NS_CLOSE] = play_ns_close, [RECORD_ACQUIRE] = play_acquire,
        [RECORD_APPEND] = play_append, [RECORD_FILLED] = play_filled, [RECORD_FORK] = play_fork,
        [RECORD_ADOPT] = play_adopt, [RECORD_PLAN] = play_plan, [RECORD_COMMIT] = play_commit,
        [RECORD_ABORT] = play_abort, [RECORD_RELEASE] = play_release,
        [RECORD_EVICT] = play_evict, [RECORD_DRAIN] = play_drain, [RECORD_LOSE] = play_lose,
        [RECORD_UNDO] = play_undo, [RECORD_APPLY] = play_apply,
        [RECORD_TRIM] = play_trim, [RECORD_LEARN] = play_learn,
        [RECORD_EVICT_PREFIX] = play_evict_prefix,
    };
    uint32_t op = replay->words[1];
    bool known = op > 0 && op < sizeof plays / sizeof *plays && plays[op];
    if (!known || (replay->played == 0) != (op == RECORD_OPTIONS)) {
        return SC_FAIL(SC_ERR_CORRUPT, "record %llu is of the unexpected kind %u",
            (unsigned long long)replay->played, op);
    }
    replay->at = 2;
    replay->past = false;
    SC_TRY(plays[op](replay));
    if (replay->past || replay->at != replay->count) {
        return SC_FAIL(SC_ERR_CORRUPT, "record %llu has another length than its kind",
            (unsigned long long)replay->played);
    }
    replay->played++;
    return SC_OK;
}

/* ---- the player ---- */

sc_status sc_replay_create(sc_cache *cache, sc_replay **replay_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(replay_out);
    sc_rwlock_lock_shared(&cache->lock);
    bool used = cache->generation > 0;
    struct sc_heap heap = cache->heap;
    sc_rwlock_unlock_shared(&cache->lock);
    if (used) return SC_FAIL(SC_ERR_BUSY, "the cache has been used");
    struct sc_replay *replay = sc_heap_calloc(&heap, 1, sizeof *replay);
    if (!replay) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a player of records");
    replay->heap = heap;
    replay->cache = cache;
    *replay_out = replay;
    return SC_OK;
}

void sc_replay_destroy(sc_replay *replay)
{
    if (!replay) return;
    struct sc_heap heap = replay->heap;
    sc_heap_free(&heap, replay->words, replay->cap * sizeof *replay->words);
    sc_heap_free(&heap, replay->scratch, replay->scratch_bytes);
    sc_heap_free(&heap, replay, sizeof *replay);
}

/* Copies one record to where words are aligned. */
static sc_status take_record(struct sc_replay *replay, const uint8_t *bytes, size_t left)
{
    uint32_t count = 0;
    if (left >= 2 * sizeof count) memcpy(&count, bytes, sizeof count);
    if (count < 2 || count > left / sizeof count) {
        return SC_FAIL(SC_ERR_CORRUPT, "record %llu is not whole",
            (unsigned long long)replay->played);
    }
    if (count > replay->cap) {
        uint32_t *words = sc_heap_alloc(&replay->heap, count * sizeof *words, 16);
        if (!words) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a record of %u words", count);
        sc_heap_free(&replay->heap, replay->words, replay->cap * sizeof *words);
        replay->words = words;
        replay->cap = count;
    }
    memcpy(replay->words, bytes, count * sizeof count);
    replay->count = count;
    return SC_OK;
}

sc_status sc_replay_feed(sc_replay *replay, const void *bytes, size_t count)
{
    SC_REQUIRE(replay);
    SC_REQUIRE(bytes || count == 0);
    const uint8_t *at = bytes;
    if (replay->over) return SC_FAIL(SC_ERR_STATE, "an earlier record could not be played");
    while (count > 0) {
        sc_status status = take_record(replay, at, count);
        if (status == SC_OK) status = play(replay);
        if (status != SC_OK) {
            replay->over = true;
            return status;
        }
        at += replay->count * sizeof(uint32_t);
        count -= replay->count * sizeof(uint32_t);
    }
    return SC_OK;
}

sc_status sc_replay_count(const sc_replay *replay, uint64_t *count_out)
{
    SC_REQUIRE(replay);
    SC_REQUIRE(count_out);
    *count_out = replay->played;
    return SC_OK;
}
