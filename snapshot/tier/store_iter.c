/* SPDX-License-Identifier: Apache-2.0 */
/* All nodes, parents before children, by id: before a node come those above it that have not come
 * yet. So most reads follow the order in which LMDB has them.
 *
 *   given   a bit for each id          chain   ids from the one whose turn it is up to the highest
 *                                              that was not given: the last one is next */
#include <string.h>

#include "store_internal.h"

struct sc_store_iter {
    struct sc_store *store;
    uint32_t next, id_end;
    uint64_t *given;
    size_t given_words;
    uint32_t *chain;
    uint32_t chain_count, chain_cap;
    uint8_t *blob;
    size_t blob_bytes;
};

sc_status sc_store_iter_open(struct sc_store *store, struct sc_store_iter **iter_out)
{
    SC_REQUIRE(iter_out != NULL);
    SC_TRY(store_enter(store));
    struct sc_store_iter *iter = sc_heap_calloc(&store->heap, 1, sizeof *iter);
    if (!iter) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for an iterator");
    iter->store = store;
    sc_mutex_lock(&store->lock);
    iter->id_end = store->entry_count;
    sc_mutex_unlock(&store->lock);
    iter->given_words = iter->id_end / 64 + 1;
    iter->given = sc_heap_calloc(&store->heap, iter->given_words, sizeof *iter->given);
    if (!iter->given) {
        sc_heap_free(&store->heap, iter, sizeof *iter);
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for an iterator");
    }
    *iter_out = iter;
    return SC_OK;
}

void sc_store_iter_close(struct sc_store_iter *iter)
{
    if (!iter) return;
    struct sc_heap *heap = &iter->store->heap;
    sc_heap_free(heap, iter->given, iter->given_words * sizeof *iter->given);
    if (iter->chain) sc_heap_free(heap, iter->chain, iter->chain_cap * sizeof *iter->chain);
    if (iter->blob) sc_heap_free(heap, iter->blob, iter->blob_bytes);
    sc_heap_free(heap, iter, sizeof *iter);
}

static bool was_given(const struct sc_store_iter *iter, uint32_t id)
{
    /* What came after the iterator was opened is not waited for. */
    return id >= iter->id_end || (iter->given[id / 64] >> (id % 64) & 1) != 0;
}

static bool is_there(struct sc_store *store, uint32_t id, uint32_t *parent_out)
{
    sc_mutex_lock(&store->lock);
    const struct entry *entry = &store->entries[id];
    bool there = entry->state == ENTRY_EDGE || entry_is_hit(store, id) ||
        (entry->state == ENTRY_LIVE && entry->child_count > 0);
    *parent_out = entry->parent;
    sc_mutex_unlock(&store->lock);
    return there;
}

static sc_status push(struct sc_store_iter *iter, uint32_t id)
{
    if (iter->chain_count == iter->chain_cap) {
        uint32_t cap = iter->chain_cap ? iter->chain_cap * 2 : 64;
        uint32_t *chain = sc_heap_realloc(&iter->store->heap, iter->chain,
            iter->chain_cap * sizeof *chain, cap * sizeof *chain);
        if (!chain) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for an iterator");
        iter->chain = chain;
        iter->chain_cap = cap;
    }
    iter->chain[iter->chain_count++] = id;
    return SC_OK;
}

/* Fills the chain from the next id that has not been given. */
static sc_status next_chain(struct sc_store_iter *iter)
{
    while (iter->chain_count == 0) {
        uint32_t parent = NONE;
        while (iter->next < iter->id_end && was_given(iter, iter->next)) iter->next++;
        if (iter->next == iter->id_end) return SC_ERR_NOT_FOUND;
        uint32_t id = iter->next;
        if (!is_there(iter->store, id, &parent)) {
            iter->next++;
            continue;
        }
        /* A failure leaves a chain that is begun anew. */
        for (;;) {
            sc_status status = push(iter, id);
            if (status != SC_OK) {
                iter->chain_count = 0;
                return status;
            }
            if (parent == NONE || was_given(iter, parent)) break;
            id = parent;
            if (!is_there(iter->store, id, &parent)) break;
        }
    }
    return SC_OK;
}

/* Room for copies of the arrays, which are not aligned in a node. */
static sc_status blob_reserve(struct sc_store_iter *iter, size_t need)
{
    if (need <= iter->blob_bytes) return SC_OK;
    uint8_t *blob = sc_heap_alloc(&iter->store->heap, need, 16);
    if (!blob) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for an iterator");
    if (iter->blob) sc_heap_free(&iter->store->heap, iter->blob, iter->blob_bytes);
    iter->blob = blob;
    iter->blob_bytes = need;
    return SC_OK;
}

static const void *copy(uint8_t **at, const uint8_t *from, size_t bytes)
{
    uint8_t *start = *at;
    if (bytes > 0) memcpy(start, from, bytes);
    *at += (bytes + 15) / 16 * 16;
    return start;
}

static sc_status give(struct sc_store_iter *iter, uint32_t id, const struct node_view *view,
    struct sc_store_edge *edge_out)
{
    const struct node_head *head = &view->head;
    SC_TRY(blob_reserve(iter, (size_t)head->bytes + 64));
    uint8_t *at = iter->blob;
    memset(edge_out, 0, sizeof *edge_out);
    store_info_of(view, id, &edge_out->info);
    memcpy(edge_out->fingerprint.bytes, head->fingerprint, sizeof head->fingerprint);
    edge_out->adapter_id = head->adapter_id;
    edge_out->adapter_generation = head->adapter_generation;
    edge_out->hash = (struct sc_store_hash){head->hash_low, head->hash_high};
    edge_out->tokens = copy(&at, view->tokens, view->edge_count * sizeof(int32_t));
    edge_out->marks = copy(&at, view->marks, head->mark_count * sizeof(sc_mark));
    edge_out->mark_count = head->mark_count;
    edge_out->history = copy(&at, view->history, head->history_count * sizeof(struct sc_stretch));
    sc_mutex_lock(&iter->store->lock);
    if (!entry_is_hit(iter->store, id)) edge_out->info.has_record = false;
    sc_mutex_unlock(&iter->store->lock);
    return SC_OK;
}

sc_status sc_store_iter_next(struct sc_store_iter *iter, struct sc_store_edge *edge_out)
{
    SC_REQUIRE(iter != NULL && edge_out != NULL);
    SC_TRY(store_enter(iter->store));
    for (;;) {
        MDB_txn *txn = NULL;
        struct node_view view;
        sc_status status = next_chain(iter);
        if (status == SC_ERR_NOT_FOUND) return SC_FAIL(SC_ERR_NOT_FOUND, "no more records");
        SC_TRY(status);
        uint32_t id = iter->chain[iter->chain_count - 1];
        SC_TRY(db_begin_read(iter->store, &txn));
        status = db_node(iter->store, txn, id, &view);
        bool gone = status == SC_ERR_NOT_FOUND || status == SC_ERR_CORRUPT;
        if (status == SC_OK) status = give(iter, id, &view, edge_out);
        db_end_read(iter->store, txn);
        if (status != SC_OK && !gone) return status;
        iter->chain_count--;
        iter->given[id / 64] |= UINT64_C(1) << (id % 64);
        if (!gone) return SC_OK;
    }
}

sc_status sc_store_iter_at(struct sc_store_iter *iter, uint32_t id, struct sc_store_edge *edge_out)
{
    MDB_txn *txn = NULL;
    struct node_view view;
    uint32_t parent = NONE;
    SC_REQUIRE(iter != NULL && edge_out != NULL);
    SC_TRY(store_enter(iter->store));
    if (id >= iter->id_end || !is_there(iter->store, id, &parent)) {
        return SC_FAIL(SC_ERR_NOT_FOUND, "there is no record %u", id);
    }
    SC_TRY(db_begin_read(iter->store, &txn));
    sc_status status = db_node(iter->store, txn, id, &view);
    if (status == SC_OK) status = give(iter, id, &view, edge_out);
    db_end_read(iter->store, txn);
    return status;
}
