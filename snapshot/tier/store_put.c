/* SPDX-License-Identifier: Apache-2.0 */
/* Storing: begin holds the parent and keeps the key from a second writer; shard finds blocks, makes
 * room, writes; commit syncs and makes visible. Until then everything about a put is in memory, so
 * that a crash leaves blocks that no node names: free ones. */
#include <math.h>
#include <string.h>

#include "store_internal.h"

#define DAY_NS (UINT64_C(86400) * 1000000000u)
enum { GROW_WAIT = 64 };

/* ---- begin ---- */

static sc_status record_check(const struct sc_store_record *record)
{
    uint32_t last = 0;
    SC_REQUIRE(record != NULL);
    SC_TRY(store_key_check(&record->key));
    SC_TRY(store_shards_check(record->shards, record->shard_count));
    SC_REQUIRE(record->parent_len < record->key.token_count);
    SC_REQUIRE(isfinite(record->value));
    SC_REQUIRE(record->history != NULL || record->history_count == 0);
    for (uint32_t i = 0; i < record->history_count; i++) {
        if (record->history[i].end <= last) {
            return SC_FAIL(SC_ERR_INVALID, "the ends of the history do not rise");
        }
        last = record->history[i].end;
    }
    if (record->history_count > 0 && last != record->key.token_count) {
        return SC_FAIL(SC_ERR_MISMATCH, "the history ends at %u, the key at %u", last,
            record->key.token_count);
    }
    return SC_OK;
}

static size_t aligned(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

static void *carve(uint8_t **at, const void *source, size_t bytes)
{
    void *out = *at;
    if (bytes > 0 && source) memcpy(out, source, bytes);
    *at += aligned(bytes);
    return out;
}

/* One block: the put and copies of the arrays. */
static sc_status put_create(struct sc_store *store, const struct sc_store_record *record,
    struct sc_store_put **put_out)
{
    const struct sc_store_key *key = &record->key;
    size_t tokens = key->token_count * sizeof *key->tokens;
    size_t marks = key->mark_count * sizeof *key->marks;
    size_t history = record->history_count * sizeof *record->history;
    size_t shards = record->shard_count * sizeof *record->shards;
    size_t pending = record->shard_count * sizeof(struct pending_shard);
    size_t bytes = aligned(sizeof **put_out) + aligned(tokens) + aligned(marks) +
        aligned(history) + aligned(shards) + aligned(pending);
    uint8_t *block = sc_heap_calloc(&store->heap, 1, bytes);
    if (!block) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to store a record");
    uint8_t *at = block;
    struct sc_store_put *put = carve(&at, NULL, sizeof *put);
    put->bytes = bytes;
    put->record = *record;
    put->record.key.tokens = carve(&at, key->tokens, tokens);
    put->record.key.marks = carve(&at, key->marks, marks);
    put->record.history = carve(&at, record->history, history);
    put->record.shards = carve(&at, record->shards, shards);
    put->shards = carve(&at, NULL, pending);
    put->parent = put->id = NONE;
    *put_out = put;
    return SC_OK;
}

static void put_destroy(struct sc_store *store, struct sc_store_put *put)
{
    if (put->blob) sc_heap_free(&store->heap, put->blob, put->blob_bytes);
    sc_heap_free(&store->heap, put, put->bytes);
}

/* The nodes of the key and of its prefix. */
struct place {
    uint32_t id, parent; /* or NONE */
    bool like;           /* the record there is what the put would store */
};

static sc_status look(struct sc_store *store, const struct sc_store_put *put, struct place *out)
{
    const struct sc_store_key *key = &put->record.key;
    uint32_t parent_len = put->record.parent_len;
    MDB_txn *txn = NULL;
    *out = (struct place){NONE, NONE, false};
    SC_TRY(db_begin_read(store, &txn));
    sc_status status = store_lookup(store, txn, key, key->token_count, put->hash, &out->id);
    if (status == SC_OK && out->id != NONE) {
        struct node_view view;
        status = db_node(store, txn, out->id, &view);
        out->like = status == SC_OK && store_record_is_like(&view, &put->record);
        if (status == SC_ERR_NOT_FOUND || status == SC_ERR_CORRUPT) status = SC_OK;
    }
    if (status == SC_OK && parent_len > 0) {
        status = store_lookup(store, txn, key, parent_len, store_hash(store, key, parent_len),
            &out->parent);
    }
    db_end_read(store, txn);
    return status;
}

/* The caller holds `lock`. Enters the put, and holds its parent; or, when the record is there
 * already, pins that. */
static sc_status attach(struct sc_store *store, struct sc_store_put *put,
    const struct place *place, bool *there_out)
{
    uint32_t id = place->id;
    struct entry *entry = id < store->entry_count ? &store->entries[id] : NULL;
    if (store_pending(store, &put->record.key, put->hash)) {
        return SC_FAIL(SC_ERR_BUSY, "this record is being written");
    }
    if (entry && entry_is_hit(store, id) && place->like) {
        entry->pins++;
        order_update(store, id);
        *there_out = true;
        return SC_OK;
    }
    if (entry && entry->state == ENTRY_LIVE && entry->pins > 0) {
        return SC_FAIL(SC_ERR_BUSY, "a record of this key that is to be replaced is being read");
    }
    put->parent = place->parent;
    struct entry *parent = put->parent < store->entry_count ? &store->entries[put->parent] : NULL;
    bool usable = parent && (parent->state == ENTRY_LIVE ||
        (parent->state == ENTRY_EDGE && !put->with_kv));
    if (put->with_kv && put->record.parent_len > 0 &&
        !(usable && entry_is_hit(store, put->parent))) {
        return SC_FAIL(SC_ERR_NOT_FOUND, "there is no record of the first %u tokens",
            put->record.parent_len);
    }
    if (!usable) put->parent = NONE;
    put->parent_len = put->parent == NONE ? 0 : put->record.parent_len;
    if (usable) {
        parent->child_count++;
        order_update(store, put->parent);
    }
    put->prev = NULL;
    put->next = store->puts;
    if (put->next) put->next->prev = put;
    store->puts = put;
    return SC_OK;
}

/* The caller holds `lock`. */
static void detach(struct sc_store *store, struct sc_store_put *put)
{
    if (put->next) put->next->prev = put->prev;
    if (put->prev) {
        put->prev->next = put->next;
    } else {
        store->puts = put->next;
    }
}

/* The caller holds `lock`. */
static void let_go(struct sc_store *store, struct sc_store_put *put)
{
    detach(store, put);
    if (put->parent == NONE) return;
    store->entries[put->parent].child_count--;
    order_update(store, put->parent);
    put->parent = NONE;
}

/* The caller holds `lock`. A use, if it is the record. */
static void unpin_there(struct sc_store *store, const struct sc_store_put *put, uint32_t id,
    bool used)
{
    struct entry *entry = &store->entries[id];
    entry->pins--;
    if (used) {
        entry->tick = ++store->tick;
        if (put->record.value > entry->value) entry->value = put->record.value;
    }
    order_update(store, id);
}

/* An id that was looked up may have become another node's before it was held: looked up again, with
 * the hold, it is certain. `*again_out`: it was another's. */
static sc_status try_begin(struct sc_store *store, struct sc_store_put *put, bool *there_out,
    bool *again_out)
{
    struct place place, sure;
    SC_TRY(look(store, put, &place));
    sc_mutex_lock(&store->lock);
    sc_status status = attach(store, put, &place, there_out);
    sc_mutex_unlock(&store->lock);
    SC_TRY(status);
    status = look(store, put, &sure);
    bool same = status == SC_OK && (*there_out ? sure.id == place.id && sure.like :
        put->parent == NONE || put->parent == sure.parent);
    sc_mutex_lock(&store->lock);
    if (*there_out) {
        unpin_there(store, put, place.id, same);
    } else if (!same) {
        let_go(store, put);
    }
    sc_mutex_unlock(&store->lock);
    *there_out = *there_out && same;
    *again_out = !same;
    return status;
}

sc_status sc_store_begin(struct sc_store *store, const struct sc_store_record *record, bool with_kv,
    struct sc_store_put **put_out)
{
    struct sc_store_put *put = NULL;
    bool there = false, again = true;
    SC_REQUIRE(put_out != NULL);
    SC_TRY(store_enter(store));
    SC_TRY(record_check(record));
    SC_TRY(put_create(store, record, &put));
    put->with_kv = with_kv;
    put->hash = store_hash(store, &put->record.key, put->record.key.token_count);
    put->tokens_hash = store_tokens_hash(store, put->record.key.tokens,
        put->record.key.token_count);
    sc_status status = SC_OK;
    for (uint32_t i = 0; i < ROOM_TRIES && status == SC_OK && again; i++) {
        again = false;
        status = try_begin(store, put, &there, &again);
    }
    if (status == SC_OK && again) {
        status = SC_FAIL(SC_ERR_BUSY, "the records before this one come and go");
    }
    if (status != SC_OK || there) {
        put_destroy(store, put);
        if (status == SC_OK) *put_out = NULL;
        return status;
    }
    *put_out = put;
    return SC_OK;
}

/* ---- room ---- */

enum room { ROOM_FOUND, ROOM_GROW, ROOM_EVICT };

/* Within the budget? The caller holds `lock`. */
static bool room_allows(const struct sc_store *store, uint32_t blocks)
{
    uint64_t limit = store->options.bytes_max / TIER_BLOCK;
    uint64_t held = store->used_blocks + store->pending_blocks;
    return held <= limit && blocks <= limit - held;
}

/* The caller holds `lock`. */
static bool room_take(struct sc_store *store, uint32_t blocks, struct pending_shard *shard)
{
    return room_allows(store, blocks)
        && space_take(store, blocks, shard->extents, &shard->head.extent_count);
}

/* The caller holds `lock`. */
static enum room try_room(struct sc_store *store, uint32_t blocks, struct pending_shard *shard)
{
    uint64_t limit = store->options.bytes_max / TIER_BLOCK;
    if (room_take(store, blocks, shard)) return ROOM_FOUND;
    if (!room_allows(store, blocks)) return ROOM_EVICT;
    uint64_t all = (uint64_t)store->file_count * store->file_blocks;
    if (store->file_count > 0 && all >= limit) return ROOM_EVICT;
    if (store->grow_wait == 0) return ROOM_GROW;
    store->grow_wait--;
    return ROOM_EVICT;
}

/* A full disk is asked again after a while: until then records make room for each other. */
static sc_status grow(struct sc_store *store)
{
    sc_mutex_lock(&store->write_lock);
    sc_status status = space_grow(store);
    sc_mutex_lock(&store->lock);
    store->grow_wait = status == SC_OK ? 0 : GROW_WAIT;
    sc_mutex_unlock(&store->lock);
    sc_mutex_unlock(&store->write_lock);
    return status;
}

static void count_refusal(struct sc_store *store, uint64_t *counter)
{
    sc_mutex_lock(&store->lock);
    (*counter)++;
    sc_mutex_unlock(&store->lock);
}

static sc_status refuse_room(struct sc_store *store, uint32_t blocks, sc_status grown)
{
    sc_mutex_lock(&store->lock);
    bool worth = store->order_count > 0; /* there were some, but worth more */
    sc_mutex_unlock(&store->lock);
    if (worth) {
        count_refusal(store, &store->stats.refused_value);
        return SC_FAIL(SC_ERR_LIMIT, "not stored: what is there is worth more");
    }
    if (grown != SC_OK) {
        count_refusal(store, &store->stats.refused_full);
        return SC_FAIL(SC_ERR_LIMIT, "not stored: the disk is full");
    }
    count_refusal(store, &store->stats.refused_budget);
    return SC_FAIL(SC_ERR_LIMIT, "not stored: no room for %u blocks of 4096 bytes", blocks);
}

static sc_status make_room(struct sc_store *store, uint32_t blocks, double value,
    struct pending_shard *shard)
{
    sc_status grown = SC_OK;
    uint64_t limit = store->options.bytes_max / TIER_BLOCK;
    if (blocks > limit) {
        count_refusal(store, &store->stats.refused_budget);
        return SC_FAIL(SC_ERR_LIMIT, "not stored: %u blocks of 4096 bytes, the budget has %llu",
            blocks, (unsigned long long)limit);
    }
    for (uint32_t i = 0; i < ROOM_TRIES; i++) {
        uint64_t freed = 0;
        sc_mutex_lock(&store->lock);
        enum room room = try_room(store, blocks, shard);
        sc_mutex_unlock(&store->lock);
        if (room == ROOM_FOUND) return SC_OK;
        if (room == ROOM_GROW) {
            grown = grow(store);
            if (grown == SC_ERR_NO_MEMORY) return grown;
            continue; /* a full disk: the next try evicts */
        }
        sc_mutex_lock(&store->write_lock);
        sc_status status = store_evict_some(store, blocks, value, &freed);
        sc_mutex_unlock(&store->write_lock);
        SC_TRY(status);
        if (freed > 0) continue;
        sc_mutex_lock(&store->lock); /* others may have given some back meanwhile */
        bool found = room_take(store, blocks, shard);
        sc_mutex_unlock(&store->lock);
        if (found) return SC_OK;
        break;
    }
    return refuse_room(store, blocks, grown);
}

/* ---- shard ---- */

/* The caller holds `lock`. */
static bool day_allows(struct sc_store *store, uint64_t bytes, uint64_t now_ns)
{
    uint64_t day = now_ns / DAY_NS;
    if (day > store->day) {
        store->day = day;
        store->day_bytes = 0;
    }
    uint64_t max = store->options.day_bytes_max;
    if (max > 0 && (store->day_bytes > max || bytes > max - store->day_bytes)) return false;
    store->day_bytes += bytes;
    store->written_bytes += bytes;
    return true;
}

static sc_status charge(struct sc_store *store, const struct pending_shard *shard, uint32_t blocks,
    uint64_t now_ns)
{
    sc_mutex_lock(&store->lock);
    bool allowed = day_allows(store, (uint64_t)blocks * TIER_BLOCK, now_ns);
    for (uint32_t i = 0; i < shard->head.extent_count && allowed; i++) {
        store->files[shard->extents[i].file].written_bytes +=
            (uint64_t)shard->extents[i].count * TIER_BLOCK;
    }
    if (!allowed) store->stats.refused_day++;
    sc_mutex_unlock(&store->lock);
    if (allowed) return SC_OK;
    return SC_FAIL(SC_ERR_LIMIT, "not stored: the day's %llu bytes of writes are used up",
        (unsigned long long)store->options.day_bytes_max);
}

static void give_back(struct sc_store *store, struct pending_shard *shard)
{
    sc_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < shard->head.extent_count; i++) {
        store->pending_blocks -= shard->extents[i].count;
    }
    space_give(store, shard->extents, shard->head.extent_count);
    sc_mutex_unlock(&store->lock);
    shard->head.extent_count = 0;
}

static sc_status write_shard(struct sc_store *store, struct pending_shard *shard,
    const void *payload, uint64_t bytes, struct sc_store_hash *check_out)
{
    struct tier_seg segs[SC_STORE_EXTENTS_MAX];
    sc_mutex_lock(&store->lock);
    shard->failed_syncs = store->failed_syncs;
    for (uint32_t i = 0; i < shard->head.extent_count; i++) {
        struct node_extent extent = shard->extents[i];
        segs[i] = (struct tier_seg){store->files[extent.file].fd,
            (uint64_t)extent.block * TIER_BLOCK, (uint64_t)extent.count * TIER_BLOCK};
    }
    sc_mutex_unlock(&store->lock);
    sc_status status = tier_io_write(&store->io, segs, shard->head.extent_count, payload, bytes,
        check_out);
    if (status != SC_OK) count_refusal(store, &store->stats.io_error_count);
    return status;
}

static struct node_shard head_of(const sc_shard *given, const struct sc_store_payload *payload,
    struct sc_store_hash check)
{
    sc_shard shard = store_shard_resolved(given);
    return (struct node_shard){.tp_rank = shard.tp_rank, .tp_size = shard.tp_size,
        .pp_rank = shard.pp_rank, .pp_size = shard.pp_size, .layer_first = shard.layer_first,
        .layer_count = shard.layer_count, .codec = payload->codec, .flags = payload->flags,
        .state_bytes = payload->state_bytes, .kv_bytes = payload->kv_bytes,
        .plain_bytes = payload->plain_bytes, .check_low = check.low, .check_high = check.high};
}

sc_status sc_store_shard(struct sc_store *store, struct sc_store_put *put, uint32_t shard,
    const struct sc_store_payload *payload, uint64_t now_ns)
{
    SC_TRY(store_enter(store));
    SC_REQUIRE(put != NULL && payload != NULL && payload->bytes != NULL);
    SC_REQUIRE(shard < put->record.shard_count);
    SC_REQUIRE(payload->state_bytes < UINT64_MAX / 4 && payload->kv_bytes < UINT64_MAX / 4);
    SC_REQUIRE(payload->state_bytes > 0);
    SC_REQUIRE((payload->flags & ~(uint32_t)(SC_STORE_LOSSY | SC_STORE_ZSTD)) == 0);
    SC_REQUIRE(put->with_kv || payload->kv_bytes == 0);
    struct pending_shard *pending = &put->shards[shard];
    uint64_t bytes = payload->state_bytes + payload->kv_bytes;
    if (pending->done) return SC_FAIL(SC_ERR_STATE, "shard %u is there already", shard);
    if ((bytes - 1) / TIER_BLOCK + 1 >= NONE) {
        return SC_FAIL(SC_ERR_OVERFLOW, "a payload of %llu bytes", (unsigned long long)bytes);
    }
    uint32_t blocks = (uint32_t)((bytes - 1) / TIER_BLOCK + 1);
    SC_TRY(make_room(store, blocks, put->record.value, pending));
    uint32_t extent_count = pending->head.extent_count;
    sc_status status = charge(store, pending, blocks, now_ns);
    struct sc_store_hash check = {0, 0};
    if (status == SC_OK) status = write_shard(store, pending, payload->bytes, bytes, &check);
    if (status != SC_OK) {
        give_back(store, pending);
        return status;
    }
    pending->head = head_of(&put->record.shards[shard], payload, check);
    pending->head.extent_count = extent_count;
    pending->done = true;
    return SC_OK;
}

/* ---- end of a put ---- */

void sc_store_abort(struct sc_store *store, struct sc_store_put *put)
{
    if (!put) return;
    if (store_enter(store) == SC_OK) {
        for (uint32_t i = 0; i < put->record.shard_count; i++) {
            if (put->shards[i].done) give_back(store, &put->shards[i]);
        }
        sc_mutex_lock(&store->lock);
        let_go(store, put);
        sc_mutex_unlock(&store->lock);
    }
    put_destroy(store, put);
}

bool sc_store_put_needs(struct sc_store *store, const struct sc_store_put *put, uint32_t id)
{
    sc_mutex_lock(&store->lock);
    uint32_t at = put->parent; /* parents are committed: their own are known */
    while (at != NONE && at != id) at = store->entries[at].parent;
    sc_mutex_unlock(&store->lock);
    return at == id;
}

bool put_is_complete(const struct sc_store_put *put)
{
    for (uint32_t i = 0; i < put->record.shard_count; i++) {
        if (!put->shards[i].done) return false;
    }
    return true;
}

uint32_t put_publish(struct sc_store *store, struct sc_store_put *put)
{
    struct entry *entry = &store->entries[put->id];
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < put->record.shard_count; i++) {
        for (uint32_t e = 0; e < put->shards[i].head.extent_count; e++) {
            blocks += put->shards[i].extents[e].count;
        }
    }
    store->pending_blocks -= blocks;
    store->used_blocks += blocks;
    /* begin counted the put with its parent; a node that was there leaves its old one. */
    uint32_t old_parent = put->is_new_id ? NONE : entry->parent;
    entry->parent = put->parent;
    if (old_parent != NONE) {
        SC_ASSERT(store->entries[old_parent].child_count > 0);
        store->entries[old_parent].child_count--;
        order_update(store, old_parent);
    }
    entry->state = ENTRY_LIVE;
    entry->blocks = blocks;
    entry->value = put->record.value;
    entry->tick = put->tick;
    entry->damaged = entry->dropped = false;
    order_update(store, put->id);
    detach(store, put);
    store->stats.stored_count++;
    put_destroy(store, put);
    return old_parent;
}
