/* SPDX-License-Identifier: Apache-2.0 */
/* Commit: what was written is synced, then one transaction makes the whole group visible.
 *
 *   sync files --> write_lock --> room in the map --> transaction: nodes, keys, wear --> publish
 *                                     ^                     | map full
 *                                     '------ evict --------'
 *
 * Calls that come while another one has write_lock are taken together by the next to get it: one
 * sync and one transaction for all of them (commit_waiting).
 *
 * Between insert and publish a new node's entry is NEW and a replaced record's DYING, so that no
 * reader takes one for the other. */
#include <math.h>
#include <string.h>

#include "store_internal.h"

/* ---- sync ---- */

static sc_status sync_file(struct sc_store *store, uint64_t *done, uint32_t file)
{
    if (done[file / 64] >> (file % 64) & 1) return SC_OK;
    sc_mutex_lock(&store->lock);
    int fd = store->files[file].fd;
    sc_mutex_unlock(&store->lock);
    sc_status status = tier_io_sync(&store->io, fd);
    if (status != SC_OK) {
        sc_mutex_lock(&store->lock);
        store->failed_syncs++;
        sc_mutex_unlock(&store->lock);
        return status;
    }
    done[file / 64] |= UINT64_C(1) << (file % 64);
    return SC_OK;
}

/* Whether a sync has failed since it was written: one that is repeated would not tell of it. */
static bool is_lost(struct sc_store *store, const struct sc_store_put *put)
{
    bool lost = false;
    sc_mutex_lock(&store->lock);
    for (uint32_t s = 0; s < put->record.shard_count; s++) {
        lost |= put->shards[s].failed_syncs != store->failed_syncs;
    }
    sc_mutex_unlock(&store->lock);
    return lost;
}

static sc_status sync_files(struct sc_store *store, struct sc_store_put **puts, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (is_lost(store, puts[i])) {
            return SC_FAIL(SC_ERR_IO, "not stored: a sync has failed since it was written");
        }
    }
    sc_mutex_lock(&store->lock);
    size_t words = store->file_count / 64 + 1;
    sc_mutex_unlock(&store->lock);
    uint64_t *done = sc_heap_calloc(&store->heap, words, sizeof *done);
    if (!done) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to commit records");
    sc_status status = SC_OK;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t s = 0; s < puts[i]->record.shard_count; s++) {
            const struct pending_shard *shard = &puts[i]->shards[s];
            for (uint32_t e = 0; e < shard->head.extent_count && status == SC_OK; e++) {
                status = sync_file(store, done, shard->extents[e].file);
            }
        }
    }
    sc_heap_free(&store->heap, done, words * sizeof *done);
    return status;
}

/* ---- nodes ---- */

static struct node_head node_head_of(const struct sc_store_put *put)
{
    const struct sc_store_record *record = &put->record;
    struct node_head head = {.parent = put->parent, .parent_len = put->parent_len,
        .token_count = record->key.token_count,
        .flags = NODE_RECORD | (put->with_kv ? NODE_KV : 0),
        .numerics = record->numerics, .kind = record->kind,
        .adapter_id = record->key.adapter_id,
        .adapter_generation = record->key.adapter_generation,
        .hash_low = put->hash.low,
        .hash_high = put->hash.high,
        .tokens_low = put->tokens_hash.low,
        .tokens_high = put->tokens_hash.high,
        .value = record->value,
        .stored_ns = put->now_ns,
        .tick = put->tick,
        .shard_count = record->shard_count,
        .history_count = record->history_count};
    memcpy(head.fingerprint, record->key.fingerprint.bytes, sizeof head.fingerprint);
    return head;
}

/* The node as bytes in put->blob. */
static sc_status build(struct sc_store *store, struct sc_store_put *put)
{
    const struct sc_store_key *key = &put->record.key;
    struct node_parts parts = {.head = node_head_of(put),
        .history = put->record.history,
        .tokens = key->tokens + put->parent_len};
    uint32_t marks_below = store_marks_below(key, put->parent_len), at = 0;
    for (uint32_t i = 0; i < parts.head.shard_count; i++) {
        parts.head.extent_count += put->shards[i].head.extent_count;
    }
    parts.head.mark_count = key->mark_count - marks_below;
    if (parts.head.mark_count > 0) parts.marks = key->marks + marks_below;
    size_t shards_bytes = parts.head.shard_count * sizeof *parts.shards;
    size_t extents_bytes = parts.head.extent_count * sizeof *parts.extents;
    struct node_shard *shards = sc_heap_alloc(&store->heap, shards_bytes, 16);
    struct node_extent *extents = sc_heap_alloc(&store->heap, extents_bytes, 16);
    put->blob_bytes = node_bytes(&parts);
    put->blob = sc_heap_alloc(&store->heap, put->blob_bytes, 16);
    if (shards && extents && put->blob) {
        for (uint32_t i = 0; i < parts.head.shard_count; i++) {
            shards[i] = put->shards[i].head;
            shards[i].extent_first = at;
            memcpy(extents + at, put->shards[i].extents,
                shards[i].extent_count * sizeof *extents);
            at += shards[i].extent_count;
        }
        parts.shards = shards;
        parts.extents = extents;
        node_build(&parts, put->blob);
    }
    bool failed = !shards || !extents || !put->blob;
    sc_heap_free(&store->heap, shards, shards_bytes);
    sc_heap_free(&store->heap, extents, extents_bytes);
    return failed ? SC_FAIL(SC_ERR_NO_MEMORY, "no memory to commit a record") : SC_OK;
}

static void unbuild(struct sc_store *store, struct sc_store_put *put)
{
    if (put->blob) sc_heap_free(&store->heap, put->blob, put->blob_bytes);
    put->blob = NULL;
}

/* Gives the put its id: that of its key's node, or a new one. */
static sc_status claim(struct sc_store *store, struct sc_store_put *put, uint32_t id)
{
    sc_mutex_lock(&store->lock);
    sc_status status = SC_OK;
    put->is_new_id = id == NONE;
    if (id == NONE) {
        put->id = entry_take(store);
    } else if (store->entries[id].pins > 0) {
        status = SC_FAIL(SC_ERR_BUSY, "a record of this key that is to be replaced is being read");
    } else {
        put->id = id;
        put->replaces = store->entries[id].state == ENTRY_LIVE;
        if (put->replaces) store->entries[id].state = ENTRY_DYING;
        order_update(store, id);
    }
    put->tick = ++store->tick;
    sc_mutex_unlock(&store->lock);
    return status;
}

static void unclaim(struct sc_store *store, struct sc_store_put *put)
{
    if (put->id == NONE) return;
    sc_mutex_lock(&store->lock);
    if (put->is_new_id) {
        entry_give(store, put->id);
    } else if (put->replaces) {
        store->entries[put->id].state = ENTRY_LIVE;
        order_update(store, put->id);
    }
    put->id = NONE;
    put->replaces = false;
    sc_mutex_unlock(&store->lock);
}

static sc_status insert(
    struct sc_store *store, MDB_txn *txn, struct sc_store_put *put, struct extent_list *old)
{
    struct node_view view;
    uint32_t id = NONE;
    SC_TRY(store_lookup(store, txn, &put->record.key, put->record.key.token_count, put->hash, &id));
    SC_TRY(claim(store, put, id));
    if (put->replaces) {
        SC_TRY(db_node(store, txn, id, &view));
        if (!extent_list_add(store, old, &view)) {
            return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to replace a record");
        }
    }
    SC_TRY(build(store, put));
    SC_TRY(db_put_node(store, txn, put->id, put->blob, put->blob_bytes));
    if (!put->is_new_id) return SC_OK;
    return db_add_keys(store, txn, put->id, put->hash, put->tokens_hash);
}

static void publish(struct sc_store *store, struct sc_store_put **puts, uint32_t count,
    const struct extent_list *old, uint32_t *old_parents)
{
    sc_mutex_lock(&store->lock);
    space_give(store, old->items, old->count);
    for (uint32_t i = 0; i < old->count; i++) store->used_blocks -= old->items[i].count;
    for (uint32_t i = 0; i < count; i++) {
        old_parents[i] = put_publish(store, puts[i]);
        puts[i] = NULL;
    }
    sc_mutex_unlock(&store->lock);
}

/* Edges whose last child has moved away. That they stay when this fails costs nothing but their
 * bytes: gc takes them. */
static void drop_edges(struct sc_store *store, const uint32_t *ids, uint32_t count)
{
    uint64_t freed = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] == NONE) continue;
        sc_mutex_lock(&store->lock);
        bool idle = store->entries[ids[i]].state == ENTRY_EDGE &&
            store->entries[ids[i]].child_count == 0;
        sc_mutex_unlock(&store->lock);
        if (idle) (void)store_remove(store, &ids[i], 1, &freed);
    }
}

/* One transaction for all, or nothing. */
static sc_status commit_once(struct sc_store *store, struct sc_store_put **puts, uint32_t count)
{
    struct extent_list old = {NULL, 0, 0};
    MDB_txn *txn = NULL;
    uint32_t *old_parents = sc_heap_alloc(&store->heap, count * sizeof *old_parents, 16);
    if (!old_parents) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to commit records");
    sc_mutex_lock(&store->lock);
    sc_status status = entry_reserve(store, count);
    sc_mutex_unlock(&store->lock);
    if (status == SC_OK) status = db_begin_write(store, &txn);
    for (uint32_t i = 0; i < count && status == SC_OK; i++) {
        status = insert(store, txn, puts[i], &old);
    }
    if (status == SC_OK) status = db_put_wear(store, txn);
    if (status == SC_OK) {
        status = db_commit(store, txn);
    } else if (txn) {
        mdb_txn_abort(txn);
    }
    if (status == SC_OK) {
        publish(store, puts, count, &old, old_parents);
        drop_edges(store, old_parents, count);
    } else {
        for (uint32_t i = 0; i < count; i++) {
            unclaim(store, puts[i]);
            unbuild(store, puts[i]);
        }
    }
    extent_list_free(store, &old);
    sc_heap_free(&store->heap, old_parents, count * sizeof *old_parents);
    return status;
}

/* A full map: records make room, as for payloads. */
static sc_status commit_group(struct sc_store *store, struct sc_store_put **puts, uint32_t count)
{
    double value = INFINITY;
    for (uint32_t i = 0; i < count; i++) value = fmin(value, puts[i]->record.value);
    sc_status status = SC_ERR_LIMIT;
    for (uint32_t i = 0; i < ROOM_TRIES && status == SC_ERR_LIMIT; i++) {
        uint64_t freed = 0;
        SC_TRY(store_evict_map(store, value));
        status = commit_once(store, puts, count);
        if (status != SC_ERR_LIMIT)
            break;
        struct sc_error_info error = *sc_last_error();
        db_drain(store);
        if (i == 0) continue;
        if (store_evict_some(store, 1, value, &freed) != SC_OK || freed == 0) {
            return SC_FAIL_SYS(SC_ERR_LIMIT, error.system_code, "not stored: %.150s", error.text);
        }
    }
    return status;
}

/* ---- calls that wait together ---- */

/* The caller holds write_lock, also over the sync: who comes meanwhile shares the next one. */
static sc_status sync_and_commit(struct sc_store *store, struct sc_store_put **puts, uint32_t count)
{
    SC_TRY(sync_files(store, puts, count));
    return commit_group(store, puts, count);
}

/* One by one: who fails alone does not take the others along. `status`: of all together. */
static void commit_each(
    struct sc_store *store, struct commit_wait *wait, bool alone, sc_status status)
{
    for (uint32_t i = 0; i < wait->count; i++) {
        if (!wait->puts[i])
            continue;
        if (!alone)
            status = sync_and_commit(store, &wait->puts[i], 1);
        wait->each_out[i] = status;
        if (status == SC_OK)
            continue;
        wait->failed = status;
        wait->error = *sc_last_error();
        if (status == SC_ERR_LIMIT) {
            sc_mutex_lock(&store->lock);
            store->stats.refused_map++;
            sc_mutex_unlock(&store->lock);
        }
        sc_store_abort(store, wait->puts[i]);
        wait->puts[i] = NULL;
    }
}

/* All puts of the calls, in the order in which they came; NULL: no memory. */
static struct sc_store_put **gather(
    struct sc_store *store, const struct commit_wait *waits, uint32_t *count_out)
{
    uint32_t count = 0;
    for (const struct commit_wait *wait = waits; wait; wait = wait->next)
        count += wait->count;
    *count_out = count;
    struct sc_store_put **puts = sc_heap_calloc(&store->heap, count, sizeof(struct sc_store_put *));
    if (!puts)
        return NULL;
    count = 0;
    for (const struct commit_wait *wait = waits; wait; wait = wait->next) {
        for (uint32_t i = 0; i < wait->count; i++) {
            if (wait->puts[i])
                puts[count++] = wait->puts[i];
        }
    }
    return puts;
}

/* The caller holds write_lock: it commits for all that wait for it. */
static void commit_waiting(struct sc_store *store)
{
    sc_mutex_lock(&store->lock);
    struct commit_wait *waits = store->commits;
    store->commits = NULL;
    store->commits_end = &store->commits;
    sc_mutex_unlock(&store->lock);
    uint32_t cap = 0, count = 0;
    struct sc_store_put **puts = gather(store, waits, &cap);
    while (puts && count < cap && puts[count])
        count++;
    sc_status status = SC_ERR_NO_MEMORY;
    if (puts && count > 0)
        status = sync_and_commit(store, puts, count);
    if (puts)
        sc_heap_free(&store->heap, puts, cap * sizeof(struct sc_store_put *));
    while (waits) {
        struct commit_wait *wait = waits;
        waits = wait->next; /* once it is done its caller may be gone */
        if (status == SC_OK) {
            for (uint32_t i = 0; i < wait->count; i++)
                wait->puts[i] = NULL;
        } else {
            commit_each(store, wait, count == 1, status);
        }
        sc_mutex_lock(&store->lock);
        wait->done = true;
        sc_mutex_unlock(&store->lock);
    }
}

/* Those that are not complete are not stored; returns how many are. */
static uint32_t drop_incomplete(struct sc_store *store, struct commit_wait *wait, uint64_t now_ns)
{
    uint32_t ready = 0;
    for (uint32_t i = 0; i < wait->count; i++) {
        wait->each_out[i] = SC_OK;
        wait->puts[i]->now_ns = now_ns;
        if (put_is_complete(wait->puts[i])) {
            ready++;
            continue;
        }
        wait->failed = wait->each_out[i] =
            SC_FAIL(SC_ERR_STATE, "a record is not complete: not all shards are there");
        wait->error = *sc_last_error();
        sc_store_abort(store, wait->puts[i]);
        wait->puts[i] = NULL;
    }
    return ready;
}

sc_status sc_store_commit(struct sc_store *store, struct sc_store_put **puts, uint32_t count,
    uint64_t now_ns, sc_status *each_out)
{
    SC_TRY(store_enter(store));
    SC_REQUIRE(puts != NULL && count > 0 && each_out != NULL);
    for (uint32_t i = 0; i < count; i++)
        SC_REQUIRE(puts[i] != NULL);
    struct commit_wait wait = {.puts = puts, .each_out = each_out, .count = count};
    if (drop_incomplete(store, &wait, now_ns) > 0) {
        sc_mutex_lock(&store->lock);
        *store->commits_end = &wait;
        store->commits_end = &wait.next;
        sc_mutex_unlock(&store->lock);
        sc_mutex_lock(&store->write_lock);
        sc_mutex_lock(&store->lock);
        bool done = wait.done;
        sc_mutex_unlock(&store->lock);
        if (!done)
            commit_waiting(store);
        sc_mutex_unlock(&store->write_lock);
    }
    if (wait.failed != SC_OK) {
        (void)SC_FAIL_SYS(wait.failed, wait.error.system_code, "%s", wait.error.text);
    }
    return SC_OK;
}
