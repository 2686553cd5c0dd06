/* SPDX-License-Identifier: Apache-2.0 */
/* Readers: a pin, a copy of the node, and payloads that are checked as they are read. */
#include <string.h>

#include "store_internal.h"

struct sc_store_reader {
    struct sc_store *store;
    uint32_t id;
    struct node_view view; /* of `blob` */
    uint8_t *blob;
    size_t blob_bytes;
    uint32_t *order; /* shard of the want -> shard of the record; NULL: the same */
    uint32_t order_count;
};

/* ---- pins ---- */

static bool pin(struct sc_store *store, uint32_t id)
{
    sc_mutex_lock(&store->lock);
    bool live = id < store->entry_count && entry_is_hit(store, id);
    if (live) {
        store->entries[id].pins++;
        store->entries[id].tick = ++store->tick;
        order_update(store, id);
    }
    sc_mutex_unlock(&store->lock);
    return live;
}

/* Whether it was dropped meanwhile, and can go now. */
static bool unpin(struct sc_store *store, uint32_t id)
{
    sc_mutex_lock(&store->lock);
    SC_ASSERT(store->entries[id].pins > 0);
    store->entries[id].pins--;
    order_update(store, id);
    bool goes = store->entries[id].dropped && store->entries[id].pins == 0;
    sc_mutex_unlock(&store->lock);
    return goes;
}

static sc_status reader_create(struct sc_store *store, uint32_t id, const struct node_view *view,
    struct sc_store_reader **reader_out)
{
    struct sc_store_reader *reader = sc_heap_calloc(&store->heap, 1, sizeof *reader);
    uint8_t *blob = sc_heap_dup(&store->heap, view->bytes, view->head.bytes);
    if (!reader || !blob) {
        sc_heap_free(&store->heap, reader, sizeof *reader);
        sc_heap_free(&store->heap, blob, view->head.bytes);
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to read a record");
    }
    reader->store = store;
    reader->id = id;
    reader->blob = blob;
    reader->blob_bytes = view->head.bytes;
    sc_status status = node_parse(blob, reader->blob_bytes, &reader->view);
    SC_ASSERT(status == SC_OK); /* it was just now, under a pin */
    *reader_out = reader;
    return SC_OK;
}

static void reader_destroy(struct sc_store_reader *reader)
{
    struct sc_heap *heap = &reader->store->heap;
    if (reader->order) sc_heap_free(heap, reader->order, reader->order_count * sizeof(uint32_t));
    sc_heap_free(heap, reader->blob, reader->blob_bytes);
    sc_heap_free(heap, reader, sizeof *reader);
}

static sc_status order_shards(struct sc_store_reader *reader, const struct sc_store_want *want)
{
    uint32_t count = want->shard_count;
    reader->order = sc_heap_calloc(&reader->store->heap, count, sizeof *reader->order);
    if (!reader->order) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to read a record");
    reader->order_count = count;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t s = 0; s < count; s++) {
            struct node_shard stored = node_shard_at(&reader->view, s);
            if (store_shard_equal(&want->shards[i], &stored)) reader->order[i] = s;
        }
    }
    return SC_OK;
}

/* ---- open ---- */

/* What was found before the pin may have changed until then: once more, and then it stays. */
static sc_status find_pinned(struct sc_store *store, const struct sc_store_key *key,
    const struct sc_store_want *want, uint32_t id, enum sc_store_reason *reason_out,
    struct sc_store_reader **reader_out)
{
    MDB_txn *txn = NULL;
    struct node_view view;
    uint32_t again = NONE;
    if (db_begin_read(store, &txn) != SC_OK) {
        *reason_out = SC_STORE_FAILED;
        return SC_OK;
    }
    sc_status status = SC_OK;
    if (store_find_in(store, txn, key, want, reason_out, &again, &view) != SC_OK) {
        *reason_out = SC_STORE_FAILED;
    }
    if (*reason_out == SC_STORE_HIT && again != id) *reason_out = SC_STORE_ABSENT;
    if (*reason_out == SC_STORE_HIT) status = reader_create(store, id, &view, reader_out);
    db_end_read(store, txn);
    if (status != SC_OK || *reason_out != SC_STORE_HIT) return status;
    status = order_shards(*reader_out, want);
    if (status != SC_OK) {
        reader_destroy(*reader_out);
        *reader_out = NULL;
    }
    return status;
}

static sc_status find_once(struct sc_store *store, const struct sc_store_key *key,
    const struct sc_store_want *want, enum sc_store_reason *reason_out, uint32_t *id_out)
{
    MDB_txn *txn = NULL;
    struct node_view view;
    *reason_out = SC_STORE_FAILED;
    if (db_begin_read(store, &txn) != SC_OK) return SC_OK;
    if (store_find_in(store, txn, key, want, reason_out, id_out, &view) != SC_OK) {
        *reason_out = SC_STORE_FAILED;
    }
    db_end_read(store, txn);
    return SC_OK;
}

sc_status sc_store_reader_open(struct sc_store *store, const struct sc_store_key *key,
    const struct sc_store_want *want, enum sc_store_reason *reason_out,
    struct sc_store_reader **reader_out)
{
    uint32_t id = NONE;
    SC_REQUIRE(reason_out != NULL && reader_out != NULL);
    SC_TRY(store_enter(store));
    SC_TRY(store_key_check(key));
    SC_REQUIRE(want != NULL);
    SC_TRY(store_shards_check(want->shards, want->shard_count));
    struct sc_store_reader *reader = NULL;
    enum sc_store_reason reason = SC_STORE_FAILED;
    SC_TRY(find_once(store, key, want, &reason, &id));
    if (reason == SC_STORE_HIT && !pin(store, id)) reason = SC_STORE_ABSENT;
    if (reason == SC_STORE_HIT) {
        sc_status status = find_pinned(store, key, want, id, &reason, &reader);
        if (!reader) (void)unpin(store, id);
        SC_TRY(status);
    }
    sc_mutex_lock(&store->lock);
    store->stats.miss_count[reason]++;
    sc_mutex_unlock(&store->lock);
    *reason_out = reason;
    *reader_out = reader;
    return SC_OK;
}

sc_status sc_store_reader_open_id(struct sc_store *store, uint32_t id,
    struct sc_store_reader **reader_out)
{
    MDB_txn *txn = NULL;
    struct node_view view;
    SC_REQUIRE(reader_out != NULL);
    SC_TRY(store_enter(store));
    if (!pin(store, id)) return SC_FAIL(SC_ERR_NOT_FOUND, "there is no record %u", id);
    struct sc_store_reader *reader = NULL;
    sc_status status = db_begin_read(store, &txn);
    if (status == SC_OK) {
        status = db_node(store, txn, id, &view);
        if (status == SC_ERR_NOT_FOUND) {
            status = SC_FAIL(SC_ERR_NOT_FOUND, "there is no record %u", id);
        }
        if (status == SC_OK) status = reader_create(store, id, &view, &reader);
        db_end_read(store, txn);
    }
    if (status != SC_OK) {
        (void)unpin(store, id);
        return status;
    }
    *reader_out = reader;
    return SC_OK;
}

void sc_store_reader_info(const struct sc_store_reader *reader, struct sc_store_info *info_out)
{
    store_info_of(&reader->view, reader->id, info_out);
}

static bool shard_of(const struct sc_store_reader *reader, uint32_t shard, uint32_t *stored_out)
{
    if (shard >= reader->view.head.shard_count) return false;
    *stored_out = reader->order ? reader->order[shard] : shard;
    return true;
}

sc_status sc_store_reader_shard(const struct sc_store_reader *reader, uint32_t shard,
    struct sc_store_shard_info *info_out)
{
    uint32_t stored = 0;
    SC_REQUIRE(reader != NULL && info_out != NULL);
    SC_REQUIRE(shard_of(reader, shard, &stored));
    struct node_shard head = node_shard_at(&reader->view, stored);
    *info_out = (struct sc_store_shard_info){
        .shard = {head.tp_rank, head.tp_size, head.pp_rank, head.pp_size, head.layer_first,
            head.layer_count},
        .codec = head.codec, .flags = head.flags, .extent_count = head.extent_count,
        .state_bytes = head.state_bytes, .kv_bytes = head.kv_bytes,
        .plain_bytes = head.plain_bytes, .check_low = head.check_low,
        .check_high = head.check_high};
    return SC_OK;
}

sc_status sc_store_reader_history(const struct sc_store_reader *reader,
    struct sc_stretch *history_out, uint32_t cap, uint32_t *count_out)
{
    SC_REQUIRE(reader != NULL && count_out != NULL);
    SC_REQUIRE(history_out != NULL || cap == 0);
    uint32_t count = reader->view.head.history_count;
    *count_out = count;
    if (count > cap) return SC_FAIL(SC_ERR_LIMIT, "%u stretches, room for %u", count, cap);
    if (count > 0) memcpy(history_out, reader->view.history, count * sizeof *history_out);
    return SC_OK;
}

/* Fills the key from its end to its beginning; with NULL arrays it counts the marks. */
static sc_status walk_key(const struct sc_store_reader *reader, MDB_txn *txn, int32_t *tokens,
    sc_mark *marks, uint32_t *mark_count)
{
    struct node_view view = reader->view;
    uint32_t left = *mark_count, counted = 0;
    for (;;) {
        const struct node_head *head = &view.head;
        counted += head->mark_count;
        if (tokens) {
            memcpy(tokens + head->parent_len, view.tokens, view.edge_count * sizeof *tokens);
        }
        if (marks && head->mark_count > 0) {
            if (head->mark_count > left) return SC_FAIL(SC_ERR_CORRUPT, "marks come and go");
            left -= head->mark_count;
            memcpy(marks + left, view.marks, head->mark_count * sizeof *marks);
        }
        if (head->parent == NONE) break;
        uint32_t parent_len = head->parent_len;
        sc_status status = db_node(reader->store, txn, head->parent, &view);
        if (status == SC_ERR_NOT_FOUND || (status == SC_OK &&
            view.head.token_count != parent_len)) {
            status = SC_FAIL(SC_ERR_CORRUPT, "the record before is gone");
        }
        SC_TRY(status);
    }
    *mark_count = counted;
    return SC_OK;
}

sc_status sc_store_reader_key(const struct sc_store_reader *reader, int32_t *tokens_out,
    uint32_t token_cap, sc_mark *marks_out, uint32_t mark_cap, struct sc_store_key *key_out)
{
    MDB_txn *txn = NULL;
    SC_REQUIRE(reader != NULL && key_out != NULL);
    SC_REQUIRE((tokens_out != NULL || token_cap == 0) && (marks_out != NULL || mark_cap == 0));
    SC_TRY(store_enter(reader->store));
    const struct node_head *head = &reader->view.head;
    struct sc_store_key key = {.adapter_id = head->adapter_id,
        .adapter_generation = head->adapter_generation, .tokens = tokens_out,
        .token_count = head->token_count, .marks = marks_out};
    memcpy(key.fingerprint.bytes, head->fingerprint, sizeof head->fingerprint);
    SC_TRY(db_begin_read(reader->store, &txn));
    sc_status status = walk_key(reader, txn, NULL, NULL, &key.mark_count);
    if (status == SC_OK) *key_out = key;
    if (status == SC_OK && (key.token_count > token_cap || key.mark_count > mark_cap)) {
        status = SC_FAIL(SC_ERR_LIMIT, "a key of %u tokens and %u marks, room for %u and %u",
            key.token_count, key.mark_count, token_cap, mark_cap);
    }
    if (status == SC_OK) {
        status = walk_key(reader, txn, tokens_out, marks_out, &key.mark_count);
    }
    db_end_read(reader->store, txn);
    return status;
}

/* ---- read ---- */

static void mark_damaged(struct sc_store_reader *reader, sc_status status)
{
    struct sc_store *store = reader->store;
    sc_mutex_lock(&store->lock);
    if (status == SC_ERR_CORRUPT) {
        store->entries[reader->id].damaged = true;
        order_update(store, reader->id);
    }
    store->stats.io_error_count++;
    sc_mutex_unlock(&store->lock);
}

static sc_status read_checked(struct sc_store_reader *reader, const struct node_shard *head,
    void *payload)
{
    struct sc_store *store = reader->store;
    struct tier_seg segs[SC_STORE_EXTENTS_MAX];
    uint64_t bytes = head->state_bytes + head->kv_bytes;
    sc_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < head->extent_count; i++) {
        struct node_extent extent = node_extent_at(&reader->view, head->extent_first + i);
        segs[i] = (struct tier_seg){store->files[extent.file].fd,
            (uint64_t)extent.block * TIER_BLOCK, (uint64_t)extent.count * TIER_BLOCK};
    }
    sc_mutex_unlock(&store->lock);
    struct sc_store_hash check = {0, 0};
    SC_TRY(tier_io_read(&store->io, segs, head->extent_count, payload, bytes, &check));
    if (check.low != head->check_low || check.high != head->check_high) {
        return SC_FAIL(SC_ERR_CORRUPT, "the payload of record %u failed its check", reader->id);
    }
    return SC_OK;
}

sc_status sc_store_read(struct sc_store_reader *reader, uint32_t shard, void *payload,
    uint64_t capacity)
{
    uint32_t stored = 0;
    SC_REQUIRE(reader != NULL && payload != NULL);
    SC_TRY(store_enter(reader->store));
    SC_REQUIRE(shard_of(reader, shard, &stored));
    struct node_shard head = node_shard_at(&reader->view, stored);
    if (head.state_bytes + head.kv_bytes > capacity) {
        return SC_FAIL(SC_ERR_LIMIT, "room for %llu bytes, the payload has %llu",
            (unsigned long long)capacity, (unsigned long long)(head.state_bytes + head.kv_bytes));
    }
    sc_status status = read_checked(reader, &head, payload);
    if (status == SC_ERR_LIMIT) status = SC_FAIL(SC_ERR_IO, "reading record %u", reader->id);
    if (status == SC_ERR_CORRUPT || status == SC_ERR_IO) {
        struct sc_error_info error = *sc_last_error();
        mark_damaged(reader, status);
        return SC_FAIL_SYS(status, error.system_code, "%s", error.text);
    }
    if (status == SC_OK) {
        sc_mutex_lock(&reader->store->lock);
        reader->store->stats.read_count++;
        sc_mutex_unlock(&reader->store->lock);
    }
    return status;
}

void sc_store_reader_close(struct sc_store_reader *reader)
{
    if (!reader) return;
    if (store_enter(reader->store) == SC_OK && unpin(reader->store, reader->id)) {
        store_drop_unpinned(reader->store, reader->id);
    }
    reader_destroy(reader);
}
