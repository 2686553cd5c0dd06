/* SPDX-License-Identifier: Apache-2.0 */
/* From a key to its node. A hash leads to candidates; each is compared with the key itself, edge by
 * edge from its end to the root (contract 16). What is found but does not fit says why. */
#include <string.h>

#include "store_internal.h"

enum { NEARBY_MAX = 16 }; /* records of the same tokens that are looked at for a reason */

const char *sc_store_reason_text(enum sc_store_reason reason)
{
    static const char *const texts[SC_STORE_REASON_COUNT] = {
        "hit",
        "no record of these tokens",
        "stored for another model, revision or shape",
        "stored for another adapter or generation",
        "stored under other marks",
        "stored for another division of the model",
        "stored by kernels of another revision",
        "stored with loss",
        "its KV starts behind a record that is gone",
        "not complete yet",
        "its bytes failed their check",
        "metadata could not be read",
    };
    return (uint32_t)reason < SC_STORE_REASON_COUNT ? texts[reason] : "unknown reason";
}

/* Tokens and, unless `tokens_only`, marks of the node's edge are the key's. `*marks` counts those
 * of the key that are left. */
static bool edge_equal(const struct node_view *view, const struct sc_store_key *key, uint32_t end,
    uint32_t *marks, bool tokens_only)
{
    const struct node_head *head = &view->head;
    if (head->token_count != end) return false;
    if (memcmp(view->tokens, key->tokens + head->parent_len,
            view->edge_count * sizeof *key->tokens) != 0) {
        return false;
    }
    if (tokens_only) return true;
    if (head->mark_count > *marks) return false;
    *marks -= head->mark_count;
    return head->mark_count == 0 ||
        memcmp(view->marks, key->marks + *marks, head->mark_count * sizeof *key->marks) == 0;
}

/* Walks from the node to the root. SC_OK with `*equal_out`; an edge that is missing or damaged is a
 * difference. */
static sc_status chain_equal(struct sc_store *store, MDB_txn *txn, const struct node_view *node,
    const struct sc_store_key *key, uint32_t token_count, bool tokens_only, bool *equal_out)
{
    struct node_view view = *node;
    uint32_t end = token_count, marks = store_marks_below(key, token_count);
    *equal_out = false;
    while (edge_equal(&view, key, end, &marks, tokens_only)) {
        end = view.head.parent_len;
        if (end == 0) {
            *equal_out = tokens_only || marks == 0;
            return SC_OK;
        }
        sc_status status = db_node(store, txn, view.head.parent, &view);
        if (status == SC_ERR_NOT_FOUND || status == SC_ERR_CORRUPT) return SC_OK;
        SC_TRY(status);
    }
    return SC_OK;
}

static bool space_equal(const struct node_head *head, const struct sc_store_key *key)
{
    return memcmp(head->fingerprint, key->fingerprint.bytes, sizeof head->fingerprint) == 0 &&
        head->adapter_id == key->adapter_id &&
        head->adapter_generation == key->adapter_generation;
}

/* The ids under a hash, one after the other. */
static sc_status cursor_open(struct sc_store *store, MDB_txn *txn, MDB_dbi dbi,
    MDB_cursor **cursor_out)
{
    int rc = DB(store, "mdb_cursor_open", mdb_cursor_open(txn, dbi, cursor_out));
    return rc ? db_fail(store, rc, "reading keys") : SC_OK;
}

/* SC_ERR_NOT_FOUND without text past the end. */
static sc_status cursor_next(struct sc_store *store, MDB_cursor *cursor, struct sc_store_hash hash,
    bool first, uint32_t *id_out)
{
    MDB_val key = {sizeof hash, &hash}, value;
    int rc = DB(store, "mdb_cursor_get",
        mdb_cursor_get(cursor, &key, &value, first ? MDB_SET_KEY : MDB_NEXT_DUP));
    if (rc == MDB_NOTFOUND) return SC_ERR_NOT_FOUND;
    if (rc) return db_fail(store, rc, "reading keys");
    if (value.mv_size != sizeof *id_out) return SC_FAIL(SC_ERR_CORRUPT, "an id of a wrong size");
    memcpy(id_out, value.mv_data, sizeof *id_out);
    return SC_OK;
}

sc_status store_lookup(struct sc_store *store, MDB_txn *txn, const struct sc_store_key *key,
    uint32_t token_count, struct sc_store_hash hash, uint32_t *id_out)
{
    MDB_cursor *cursor = NULL;
    SC_TRY(cursor_open(store, txn, store->keys, &cursor));
    sc_status status;
    *id_out = NONE;
    for (bool first = true;; first = false) {
        uint32_t id = NONE;
        struct node_view view;
        bool equal = false;
        status = cursor_next(store, cursor, hash, first, &id);
        if (status != SC_OK) break;
        status = db_node(store, txn, id, &view);
        if (status == SC_ERR_NOT_FOUND || status == SC_ERR_CORRUPT) continue;
        if (status == SC_OK && space_equal(&view.head, key)) {
            status = chain_equal(store, txn, &view, key, token_count, false, &equal);
        }
        if (status != SC_OK) break;
        if (equal) {
            *id_out = id;
            break;
        }
    }
    mdb_cursor_close(cursor);
    return status == SC_ERR_NOT_FOUND ? SC_OK : status;
}

/* Why there is no node of the key: of all records of these tokens, the one that is closest. */
static sc_status nearest(struct sc_store *store, MDB_txn *txn, const struct sc_store_key *key,
    enum sc_store_reason *reason_out)
{
    MDB_cursor *cursor = NULL;
    struct sc_store_hash hash = store_tokens_hash(store, key->tokens, key->token_count);
    SC_TRY(cursor_open(store, txn, store->tokens, &cursor));
    sc_status status = SC_OK;
    *reason_out = SC_STORE_ABSENT;
    for (uint32_t i = 0; i < NEARBY_MAX && *reason_out != SC_STORE_MARK; i++) {
        uint32_t id = NONE;
        struct node_view view;
        bool equal = false;
        status = cursor_next(store, cursor, hash, i == 0, &id);
        if (status != SC_OK) break;
        status = db_node(store, txn, id, &view);
        if (status == SC_ERR_NOT_FOUND || status == SC_ERR_CORRUPT) continue;
        if (status == SC_OK && (view.head.flags & NODE_RECORD)) {
            status = chain_equal(store, txn, &view, key, key->token_count, true, &equal);
        }
        if (status != SC_OK) break;
        if (!equal) continue;
        if (memcmp(view.head.fingerprint, key->fingerprint.bytes, 16) != 0) {
            if (*reason_out == SC_STORE_ABSENT) *reason_out = SC_STORE_FINGERPRINT;
        } else if (!space_equal(&view.head, key)) {
            *reason_out = SC_STORE_ADAPTER;
        } else {
            *reason_out = SC_STORE_MARK;
        }
    }
    mdb_cursor_close(cursor);
    return status == SC_ERR_NOT_FOUND || status == SC_ERR_CORRUPT ? SC_OK : status;
}

struct sc_store_put *store_pending(struct sc_store *store, const struct sc_store_key *key,
    struct sc_store_hash hash)
{
    for (struct sc_store_put *put = store->puts; put; put = put->next) {
        const struct sc_store_key *other = &put->record.key;
        if (put->hash.low != hash.low || put->hash.high != hash.high) continue;
        if (other->token_count == key->token_count && other->mark_count == key->mark_count &&
            memcmp(other->fingerprint.bytes, key->fingerprint.bytes, 16) == 0 &&
            other->adapter_id == key->adapter_id &&
            other->adapter_generation == key->adapter_generation &&
            memcmp(other->tokens, key->tokens, key->token_count * sizeof *key->tokens) == 0 &&
            (key->mark_count == 0 ||
                memcmp(other->marks, key->marks, key->mark_count * sizeof *key->marks) == 0)) {
            return put;
        }
    }
    return NULL;
}

static bool shards_fit(const struct node_view *view, const sc_shard *shards, uint32_t count)
{
    if (view->head.shard_count != count) return false;
    for (uint32_t i = 0; i < count; i++) {
        bool found = false;
        for (uint32_t s = 0; s < count && !found; s++) {
            struct node_shard stored = node_shard_at(view, s);
            found = store_shard_equal(&shards[i], &stored);
        }
        if (!found) return false;
    }
    return true;
}

bool store_record_is_like(const struct node_view *view, const struct sc_store_record *record)
{
    return view->head.numerics == record->numerics &&
        shards_fit(view, record->shards, record->shard_count);
}

/* Of a node that has the key: can it be used as wanted? */
static enum sc_store_reason fits(const struct node_view *view, const struct sc_store_want *want)
{
    if (!shards_fit(view, want->shards, want->shard_count)) return SC_STORE_SHARD;
    if (view->head.numerics != want->numerics) return SC_STORE_NUMERICS;
    for (uint32_t i = 0; i < view->head.shard_count && !want->lossy; i++) {
        if (node_shard_at(view, i).flags & SC_STORE_LOSSY) return SC_STORE_CODEC;
    }
    return SC_STORE_HIT;
}

/* KV of a record begins where that of its parent ends: the whole chain must be there. */
static bool kv_complete(struct sc_store *store, const struct node_view *view)
{
    if (!(view->head.flags & NODE_KV)) return true;
    bool complete = true;
    sc_mutex_lock(&store->lock);
    for (uint32_t id = view->head.parent; id != NONE && complete;) {
        complete = id < store->entry_count && entry_is_hit(store, id);
        if (complete) id = store->entries[id].parent;
    }
    sc_mutex_unlock(&store->lock);
    return complete;
}

static enum sc_store_reason entry_reason(struct sc_store *store, uint32_t id)
{
    sc_mutex_lock(&store->lock);
    const struct entry *entry = id < store->entry_count ? &store->entries[id] : NULL;
    enum sc_store_reason reason = SC_STORE_ABSENT;
    if (entry && entry->state == ENTRY_LIVE && !entry->dropped) {
        reason = entry->damaged ? SC_STORE_DAMAGED : SC_STORE_HIT;
    }
    sc_mutex_unlock(&store->lock);
    return reason;
}

static bool is_pending(struct sc_store *store, const struct sc_store_key *key,
    struct sc_store_hash hash)
{
    sc_mutex_lock(&store->lock);
    bool pending = store_pending(store, key, hash) != NULL;
    sc_mutex_unlock(&store->lock);
    return pending;
}

void store_info_of(const struct node_view *view, uint32_t id, struct sc_store_info *info_out)
{
    const struct node_head *head = &view->head;
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < head->extent_count; i++) blocks += node_extent_at(view, i).count;
    *info_out = (struct sc_store_info){.id = id, .parent = head->parent,
        .parent_len = head->parent_len, .token_count = head->token_count,
        .numerics = head->numerics, .kind = head->kind, .shard_count = head->shard_count,
        .history_count = head->history_count, .mark_count = head->mark_count,
        .payload_bytes = node_payload_bytes(view), .disk_bytes = blocks * TIER_BLOCK,
        .value = head->value, .stored_ns = head->stored_ns, .tick = head->tick,
        .has_record = (head->flags & NODE_RECORD) != 0};
}

sc_status store_find_in(struct sc_store *store, MDB_txn *txn, const struct sc_store_key *key,
    const struct sc_store_want *want, enum sc_store_reason *reason_out, uint32_t *id_out,
    struct node_view *view_out)
{
    struct sc_store_hash hash = store_hash(store, key, key->token_count);
    SC_TRY(store_lookup(store, txn, key, key->token_count, hash, id_out));
    *reason_out = *id_out == NONE ? SC_STORE_ABSENT : entry_reason(store, *id_out);
    if (*reason_out == SC_STORE_ABSENT) {
        if (is_pending(store, key, hash)) {
            *reason_out = SC_STORE_WRITING;
            return SC_OK;
        }
        return *id_out == NONE ? nearest(store, txn, key, reason_out) : SC_OK;
    }
    if (*reason_out != SC_STORE_HIT) return SC_OK;
    SC_TRY(db_node(store, txn, *id_out, view_out));
    *reason_out = fits(view_out, want);
    if (*reason_out == SC_STORE_HIT && !kv_complete(store, view_out)) {
        *reason_out = SC_STORE_PARENT;
    }
    return SC_OK;
}

sc_status sc_store_find(struct sc_store *store, const struct sc_store_key *key,
    const struct sc_store_want *want, enum sc_store_reason *reason_out,
    struct sc_store_info *info_out)
{
    struct node_view view;
    uint32_t id = NONE;
    MDB_txn *txn = NULL;
    SC_REQUIRE(reason_out != NULL);
    SC_TRY(store_enter(store));
    SC_TRY(store_key_check(key));
    SC_REQUIRE(want != NULL);
    SC_TRY(store_shards_check(want->shards, want->shard_count));
    *reason_out = SC_STORE_FAILED;
    if (db_begin_read(store, &txn) != SC_OK) return SC_OK;
    if (store_find_in(store, txn, key, want, reason_out, &id, &view) != SC_OK) {
        *reason_out = SC_STORE_FAILED;
    }
    if (*reason_out == SC_STORE_HIT && info_out) store_info_of(&view, id, info_out);
    db_end_read(store, txn);
    return SC_OK;
}
