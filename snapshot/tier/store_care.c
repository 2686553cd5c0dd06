/* SPDX-License-Identifier: Apache-2.0 */
/* What an operator asks of a store: figures, a check of everything, and taking out what is of no
 * use. */
#include <stdio.h>
#include <string.h>

#include "store_internal.h"

/* ---- figures ---- */

sc_status sc_store_stats_get(struct sc_store *store, struct sc_store_stats *stats_out)
{
    MDB_txn *txn = NULL;
    uint64_t used = 0, map = 0;
    SC_REQUIRE(stats_out != NULL);
    SC_TRY(store_enter(store));
    SC_TRY(db_begin_read(store, &txn));
    sc_status status = db_usage(store, txn, &used, &map);
    db_end_read(store, txn);
    SC_TRY(status);
    sc_mutex_lock(&store->lock);
    struct sc_store_stats stats = store->stats;
    for (uint32_t id = 0; id < store->entry_count; id++) {
        stats.record_count += store->entries[id].state == ENTRY_LIVE;
        stats.edge_count += store->entries[id].state == ENTRY_EDGE;
    }
    stats.used_bytes = store->used_blocks * TIER_BLOCK;
    stats.pending_bytes = store->pending_blocks * TIER_BLOCK;
    stats.bytes_max = store->options.bytes_max;
    stats.file_count = store->file_count;
    stats.file_bytes = (uint64_t)store->file_blocks * TIER_BLOCK;
    stats.written_bytes = store->written_bytes;
    stats.day = store->day;
    stats.day_bytes = store->day_bytes;
    stats.day_bytes_max = store->options.day_bytes_max;
    sc_mutex_unlock(&store->lock);
    stats.map_bytes = map;
    stats.map_used_bytes = used;
    stats.uring = store->io.uring;
    stats.direct = store->io.direct;
    *stats_out = stats;
    return SC_OK;
}

sc_status sc_store_wear_get(struct sc_store *store, uint64_t *written_bytes_out, uint64_t *day_out,
    uint64_t *day_bytes_out)
{
    SC_REQUIRE(written_bytes_out != NULL && day_out != NULL && day_bytes_out != NULL);
    SC_TRY(store_enter(store));
    sc_mutex_lock(&store->lock);
    *written_bytes_out = store->written_bytes;
    *day_out = store->day;
    *day_bytes_out = store->day_bytes;
    sc_mutex_unlock(&store->lock);
    return store->broken ? SC_FAIL(SC_ERR_IO, "the store must be opened again") : SC_OK;
}

sc_status sc_store_file_wear(struct sc_store *store, uint32_t file, uint64_t *bytes_out)
{
    SC_REQUIRE(bytes_out != NULL);
    SC_TRY(store_enter(store));
    sc_mutex_lock(&store->lock);
    bool there = file < store->file_count;
    if (there) *bytes_out = store->files[file].written_bytes;
    sc_mutex_unlock(&store->lock);
    return there ? SC_OK : SC_FAIL(SC_ERR_NOT_FOUND, "there is no extent file %u", file);
}

/* ---- gc ---- */

/* The caller holds `lock`. */
static bool is_useless(struct sc_store *store, uint32_t id, bool kv)
{
    const struct entry *entry = &store->entries[id];
    if (entry->state == ENTRY_EDGE) return entry->child_count == 0;
    if (entry->state != ENTRY_LIVE || entry->pins > 0) return false;
    if (entry->damaged || entry->dropped) return true;
    if (!kv) return false;
    for (uint32_t up = entry->parent; up != NONE; up = store->entries[up].parent) {
        if (!entry_is_hit(store, up)) return true;
    }
    return false;
}

static sc_status has_kv(struct sc_store *store, uint32_t id, bool *kv_out)
{
    MDB_txn *txn = NULL;
    struct node_view view;
    SC_TRY(db_begin_read(store, &txn));
    sc_status status = db_node(store, txn, id, &view);
    db_end_read(store, txn);
    *kv_out = status == SC_OK && (view.head.flags & NODE_KV) != 0;
    return status == SC_ERR_NOT_FOUND || status == SC_ERR_CORRUPT ? SC_OK : status;
}

/* Ids that can go, at most EVICT_MAX; `*from` is where the next search begins. */
static sc_status find_useless(struct sc_store *store, uint32_t *from, uint32_t *ids,
    uint32_t *count_out)
{
    *count_out = 0;
    for (;; (*from)++) {
        sc_mutex_lock(&store->lock);
        bool end = *from >= store->entry_count;
        bool asks = !end && store->entries[*from].state == ENTRY_LIVE &&
            store->entries[*from].parent != NONE;
        sc_mutex_unlock(&store->lock);
        bool kv = false;
        if (end || *count_out == EVICT_MAX) return SC_OK;
        if (asks) SC_TRY(has_kv(store, *from, &kv));
        sc_mutex_lock(&store->lock);
        if (is_useless(store, *from, kv)) ids[(*count_out)++] = *from;
        sc_mutex_unlock(&store->lock);
    }
}

static sc_status gc_pass(struct sc_store *store, struct sc_store_gc *gc)
{
    uint32_t ids[EVICT_MAX], count = 0, from = 0;
    do {
        uint64_t freed = 0;
        SC_TRY(find_useless(store, &from, ids, &count));
        if (count == 0) break;
        sc_mutex_lock(&store->lock);
        uint64_t edges = 0;
        for (uint32_t i = 0; i < count; i++) edges += store->entries[ids[i]].state == ENTRY_EDGE;
        sc_mutex_unlock(&store->lock);
        SC_TRY(store_remove(store, ids, count, &freed));
        gc->dropped_count += count - edges;
        gc->edge_count += edges;
        gc->freed_bytes += freed * TIER_BLOCK;
    } while (count > 0);
    return SC_OK;
}

sc_status sc_store_gc(struct sc_store *store, struct sc_store_gc *gc_out)
{
    struct sc_store_gc gc = {0, 0, 0, 0};
    SC_REQUIRE(gc_out != NULL);
    SC_TRY(store_enter(store));
    sc_mutex_lock(&store->write_lock);
    /* Records whose KV is gone may have stood above others of that kind, edges above edges. */
    sc_status status = SC_OK;
    for (uint64_t before = UINT64_MAX; status == SC_OK &&
         before != gc.dropped_count + gc.edge_count;) {
        before = gc.dropped_count + gc.edge_count;
        status = gc_pass(store, &gc);
    }
    if (status == SC_OK) gc.file_count = space_shrink(store);
    sc_mutex_unlock(&store->write_lock);
    if (status == SC_OK) *gc_out = gc;
    return status;
}

sc_status sc_store_drop_adapter(struct sc_store *store, uint64_t adapter_id,
    uint64_t adapter_generation, uint64_t *count_out)
{
    uint64_t count = 0;
    SC_TRY(store_enter(store));
    for (uint32_t id = 0;; id++) {
        MDB_txn *txn = NULL;
        struct node_view view;
        sc_mutex_lock(&store->lock);
        bool end = id >= store->entry_count;
        bool live = !end && store->entries[id].state == ENTRY_LIVE;
        sc_mutex_unlock(&store->lock);
        if (end) break;
        if (!live) continue;
        SC_TRY(db_begin_read(store, &txn));
        sc_status status = db_node(store, txn, id, &view);
        bool drop = status == SC_OK && view.head.adapter_id == adapter_id &&
            view.head.adapter_generation == adapter_generation;
        db_end_read(store, txn);
        if (!drop) continue;
        status = sc_store_drop(store, id);
        if (status == SC_ERR_NOT_FOUND) continue;
        SC_TRY(status);
        count++;
    }
    if (count_out) *count_out = count;
    return SC_OK;
}

/* ---- verify ---- */

struct verify {
    struct sc_store *store;
    void (*fn)(void *ctx, const struct sc_store_fault *fault);
    void *ctx;
    struct sc_store_verify_result result;
    uint64_t *seen; /* a bit a block, of all files */
    uint8_t *payload;
    uint64_t payload_bytes;
};

static void fault(struct verify *verify, uint32_t id, const char *text)
{
    struct sc_store_fault it = {id, text};
    verify->result.fault_count++;
    if (verify->fn) verify->fn(verify->ctx, &it);
}

static void verify_blocks(struct verify *verify, uint32_t id, const struct node_view *view)
{
    struct sc_store *store = verify->store;
    for (uint32_t i = 0; i < view->head.extent_count; i++) {
        struct node_extent extent = node_extent_at(view, i);
        if (extent.file >= store->file_count || extent.block >= store->file_blocks ||
            extent.count > store->file_blocks - extent.block) {
            fault(verify, id, "it names blocks that do not exist");
            continue;
        }
        uint64_t at = (uint64_t)extent.file * store->file_blocks + extent.block;
        for (uint64_t block = at; block < at + extent.count; block++) {
            if (verify->seen[block / 64] >> (block % 64) & 1) {
                fault(verify, id, "it names a block of another record");
                break;
            }
            verify->seen[block / 64] |= UINT64_C(1) << (block % 64);
        }
    }
}

static void verify_node(struct verify *verify, MDB_txn *txn, uint32_t id,
    const struct node_view *view)
{
    struct sc_store *store = verify->store;
    struct node_view parent;
    if (view->head.parent != NONE) {
        sc_status status = db_node(store, txn, view->head.parent, &parent);
        if (status != SC_OK || parent.head.token_count != view->head.parent_len) {
            fault(verify, id, "its parent is not there, or not as long as it says");
        } else if (memcmp(parent.head.fingerprint, view->head.fingerprint, 16) != 0 ||
            parent.head.adapter_id != view->head.adapter_id ||
            parent.head.adapter_generation != view->head.adapter_generation) {
            fault(verify, id, "its parent is another model's or adapter's");
        }
    }
    struct sc_store_hash hash = {view->head.hash_low, view->head.hash_high};
    MDB_cursor *cursor = NULL;
    MDB_val key = {sizeof hash, &hash}, value = {sizeof id, &id};
    int rc = mdb_cursor_open(txn, store->keys, &cursor);
    if (rc == 0) rc = mdb_cursor_get(cursor, &key, &value, MDB_GET_BOTH);
    if (rc != 0) fault(verify, id, "its key does not lead to it");
    if (cursor) mdb_cursor_close(cursor);
    verify_blocks(verify, id, view);
}

/* The caller holds `write_lock`: what is LIVE stays. */
static sc_status verify_metadata(struct verify *verify)
{
    struct sc_store *store = verify->store;
    MDB_txn *txn = NULL;
    uint64_t blocks = 0;
    SC_TRY(db_begin_read(store, &txn));
    for (uint32_t id = 0; id < store->entry_count; id++) {
        struct node_view view;
        sc_mutex_lock(&store->lock);
        struct entry entry = store->entries[id];
        sc_mutex_unlock(&store->lock);
        if (entry.state != ENTRY_LIVE && entry.state != ENTRY_EDGE) continue;
        verify->result.record_count += entry.state == ENTRY_LIVE;
        verify->result.edge_count += entry.state == ENTRY_EDGE;
        blocks += entry.blocks;
        if (entry.damaged) fault(verify, id, "a read found it damaged");
        if (db_node(store, txn, id, &view) != SC_OK) {
            fault(verify, id, "its node cannot be read");
        } else {
            verify_node(verify, txn, id, &view);
        }
    }
    db_end_read(store, txn);
    sc_mutex_lock(&store->lock);
    uint64_t used = store->used_blocks, held = 0;
    uint64_t pending = store->pending_blocks;
    for (uint32_t i = 0; i < store->file_count; i++) {
        held += store->file_blocks - store->files[i].free_count;
    }
    sc_mutex_unlock(&store->lock);
    if (used != blocks) fault(verify, NONE, "the count of used blocks is wrong");
    if (used + pending != held) fault(verify, NONE, "blocks are lost or held twice");
    return SC_OK;
}

static sc_status verify_payload(struct verify *verify, struct sc_store_reader *reader)
{
    struct sc_store *store = verify->store;
    struct sc_store_info info;
    sc_store_reader_info(reader, &info);
    for (uint32_t shard = 0; shard < info.shard_count; shard++) {
        struct sc_store_shard_info head;
        SC_TRY(sc_store_reader_shard(reader, shard, &head));
        uint64_t bytes = head.state_bytes + head.kv_bytes;
        if (bytes > verify->payload_bytes) {
            uint8_t *payload = sc_heap_alloc(&store->heap, (size_t)bytes, TIER_BLOCK);
            if (!payload) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to verify a payload");
            if (verify->payload) {
                sc_heap_free(&store->heap, verify->payload, (size_t)verify->payload_bytes);
            }
            verify->payload = payload;
            verify->payload_bytes = bytes;
        }
        sc_status status = sc_store_read(reader, shard, verify->payload, bytes);
        if (status == SC_ERR_NO_MEMORY) return status;
        if (status != SC_OK) fault(verify, info.id, sc_last_error()->text);
        verify->result.payload_bytes += bytes;
    }
    return SC_OK;
}

static sc_status verify_payloads(struct verify *verify)
{
    for (uint32_t id = 0;; id++) {
        struct sc_store_reader *reader = NULL;
        sc_mutex_lock(&verify->store->lock);
        bool end = id >= verify->store->entry_count;
        sc_mutex_unlock(&verify->store->lock);
        if (end) return SC_OK;
        sc_status status = sc_store_reader_open_id(verify->store, id, &reader);
        if (status == SC_ERR_NO_MEMORY || status == SC_ERR_STATE) return status;
        if (status != SC_OK) continue;
        status = verify_payload(verify, reader);
        sc_store_reader_close(reader);
        SC_TRY(status);
    }
}

sc_status sc_store_verify(struct sc_store *store, bool payloads,
    void (*fn)(void *ctx, const struct sc_store_fault *fault), void *ctx,
    struct sc_store_verify_result *result_out)
{
    struct verify verify = {.store = store, .fn = fn, .ctx = ctx};
    SC_REQUIRE(result_out != NULL);
    SC_TRY(store_enter(store));
    sc_mutex_lock(&store->write_lock);
    size_t words = (size_t)(((uint64_t)store->file_count * store->file_blocks) / 64 + 1);
    verify.seen = sc_heap_calloc(&store->heap, words, sizeof *verify.seen);
    sc_status status = verify.seen ? verify_metadata(&verify) :
        SC_FAIL(SC_ERR_NO_MEMORY, "no memory to verify a store");
    sc_mutex_unlock(&store->write_lock);
    sc_heap_free(&store->heap, verify.seen, words * sizeof *verify.seen);
    if (status == SC_OK && payloads) status = verify_payloads(&verify);
    if (verify.payload) {
        sc_heap_free(&store->heap, verify.payload, (size_t)verify.payload_bytes);
    }
    if (status == SC_OK) *result_out = verify.result;
    return status;
}
