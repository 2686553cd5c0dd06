/* SPDX-License-Identifier: Apache-2.0 */
/* Histories, and how what a lease has computed gets into the tree.
 *
 * A publication offers whole pages [0, len) of a lease together with the saves that end there (and,
 * where the last of them ends inside a page, the partial page of a tail):
 *
 *   before     tree:  [0 ......... inserted_len)            KV-locked by the lease
 *              lease:                            HELD HELD HELD HELD | incomplete page
 *
 *   the tree knew two of these pages already (same tokens, same history):
 *
 *   after      tree:  [0 ...................................... len)  KV-locked by the lease
 *              lease:                            DUPL DUPL TREE TREE | incomplete page
 *
 * A page goes to the tree only together with all pages before it, so that TREE and DUPLICATE pages
 * lie before HELD ones. Where the tree holds another history that is in use (radix.h says when),
 * the insert stops; pages from there on stay HELD and saves there are refused (SC_SKIP_HISTORY).
 * One that is not goes, snapshots too (SC_EVICT_HISTORY).
 *
 * The history argument is in cache_internal.h. Numbers in brackets are its invariants. */
#include <string.h>

#include "base/prng.h"
#include "tier.h"

void sc_engine_history_push(const sc_cache *cache, struct sc_stretch *history, uint32_t *count,
    uint32_t end, uint32_t form, bool anew)
{
    uint32_t begin = *count ? history[*count - 1].end : 0;
    SC_ASSERT(end > begin);
    bool same = *count > 0 && history[*count - 1].form == form && !anew;
    if (same && (form == SC_FORM_DECODE || begin % cache->chunk_grid == 0)) {
        history[*count - 1].end = end;
        return;
    }
    history[*count] = (struct sc_stretch){end, form};
    (*count)++;
}

static uint64_t hash_stretch(uint64_t hash, uint32_t begin, uint32_t form)
{
    return sc_mix64(sc_mix64(hash) ^ ((uint64_t)form << 32 | begin));
}

uint64_t sc_engine_history_hash(const struct sc_stretch *history, uint32_t count, uint32_t len)
{
    uint64_t hash = 0;
    uint32_t begin = 0;
    for (uint32_t i = 0; i < count && begin < len; i++) {
        hash = hash_stretch(hash, begin, history[i].form);
        begin = history[i].end;
    }
    return hash;
}

/* The same for every page before `len`, as runs for the tree. */
static uint32_t make_runs(const sc_cache *cache, const struct lease *lease, uint32_t len,
    struct sc_radix_run *runs)
{
    if (cache->options.without_kv) {
        runs[0] = (struct sc_radix_run){0, 0};
        return 1;
    }
    uint64_t hash = 0;
    uint32_t begin = 0, count = 0;
    for (uint32_t i = 0; i < lease->history_count && begin < len; i++) {
        hash = hash_stretch(hash, begin, lease->history[i].form);
        uint32_t start = sc_engine_page_floor(cache, begin);
        if (count == 0 || runs[count - 1].start != start) count++;
        runs[count - 1] = (struct sc_radix_run){start, hash};
        begin = lease->history[i].end;
    }
    return count;
}

static sc_status grow(
    sc_cache *cache, void **array, uint32_t *cap, uint32_t need, size_t item_bytes)
{
    if (need <= *cap) return SC_OK;
    uint32_t to = *cap ? *cap : 64;
    while (to < need) to = to > UINT32_MAX / 2 ? need : to * 2;
    void *grown = sc_heap_alloc(&cache->heap, to * item_bytes, 16);
    if (!grown) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to insert %u items", need);
    sc_heap_free(&cache->heap, *array, *cap * item_bytes); /* scratch: nothing to keep */
    *array = grown;
    *cap = to;
    return SC_OK;
}

sc_status sc_engine_reserve_scratch(sc_cache *cache, uint32_t pages, uint32_t stretches)
{
    void *ids = cache->scratch_ids, *runs = cache->scratch_runs;
    sc_status status = grow(cache, &ids, &cache->scratch_ids_cap, pages, sizeof(int32_t));
    cache->scratch_ids = ids;
    SC_TRY(status);
    status = grow(cache, &runs, &cache->scratch_runs_cap, stretches, sizeof(struct sc_radix_run));
    cache->scratch_runs = runs;
    return status;
}

/* Ids of the pages before `len` for an insert. Those of the path that the lease holds are in the
 * tree; the insert goes on from there and does not read them. */
static const int32_t *make_ids(sc_cache *cache, const struct lease *lease, uint32_t len,
    int32_t tail_kv)
{
    if (cache->options.without_kv) return NULL;
    uint32_t pages = len / cache->page;
    SC_ASSERT(pages < cache->scratch_ids_cap);
    SC_ASSERT(pages <= lease->kv_base + lease->kv_count); /* (7) */
    uint32_t held = lease->inserted_len / cache->page;
    SC_ASSERT(held >= lease->kv_base); /* (6) */
    if (pages > held) {
        memcpy(cache->scratch_ids + held, lease->kv + (held - lease->kv_base),
            (pages - held) * sizeof(int32_t));
    }
    cache->scratch_ids[pages] = tail_kv;
    return cache->scratch_ids;
}

bool sc_engine_make_token_room(sc_cache *cache, uint64_t more)
{
    struct sc_radix_stats stats;
    sc_radix_stats_get(cache->radix, &stats);
    uint64_t limit = cache->options.token_max;
    if (limit == 0 || stats.kv_locked_tokens + more > limit) return false;
    if (stats.token_count + more <= limit) return false;
    struct evict_sink sink;
    uint64_t tokens = 0;
    uint32_t snapshots = 0;
    sc_engine_sink_init(cache, SC_EVICT_WITH_KV, &sink);
    uint64_t excess = stats.token_count + more - limit;
    (void)sc_engine_stale_evict(cache, (excess + cache->page - 1) / cache->page, &sink);
    struct sc_radix_stats left;
    sc_radix_stats_get(cache->radix, &left);
    if (left.token_count + more <= limit) return true;
    sc_status status = sc_radix_evict_kv(cache->radix, left.token_count + more - limit, &sink.sink,
        &tokens, &snapshots);
    return status == SC_OK && (tokens > 0 || left.token_count < stats.token_count);
}

static uint32_t marks_before(const struct lease *lease, uint32_t len)
{
    uint32_t count = lease->mark_count;
    while (count > 0 && lease->marks[count - 1].at >= len) count--;
    return count;
}

static sc_status tree_insert(sc_cache *cache, const struct lease *lease, const struct offer *offer,
    uint32_t save_count, struct sc_radix_inserted *inserted_out)
{
    uint32_t len = offer->len;
    uint32_t held = 0;
    sc_node path = SC_NODE_NONE; /* ends at inserted_len: a turn costs its new tokens alone */
    sc_status status = sc_radix_receipt_get(cache->radix, lease->path, &path, &held);
    SC_ASSERT(status == SC_OK); /* (10) */
    struct sc_radix_insert insert = {
        .from = len >= lease->inserted_len ? path : SC_NODE_NONE,
        .space = lease->space->radix_space,
        .tokens = lease->tokens,
        .token_count = len,
        .kv_ids = make_ids(cache, lease, len, offer->tail_kv),
        .runs = cache->scratch_runs,
        .run_count = make_runs(cache, lease, len, cache->scratch_runs),
        .saves = cache->scratch_saves,
        .save_count = save_count,
        .marks = lease->marks,
        .mark_count = marks_before(lease, len),
    };
    struct evict_sink sink;
    sc_engine_sink_init(cache, SC_EVICT_HISTORY, &sink);
    status = sc_radix_insert(cache->radix, &insert, &sink.sink, NULL, cache->scratch_status,
        inserted_out);
    if (status != SC_ERR_LIMIT || !sc_engine_make_token_room(cache, len - lease->inserted_len)) {
        return status;
    }
    return sc_radix_insert(cache->radix, &insert, &sink.sink, NULL, cache->scratch_status,
        inserted_out);
}

void sc_engine_relock(sc_cache *cache, struct sc_radix_receipt *receipt, sc_node node,
    uint32_t what)
{
    /* Nothing leaves the tree in between; the receipt given back serves again, without memory. */
    sc_status status = sc_radix_unlock(cache->radix, *receipt);
    SC_ASSERT(status == SC_OK); /* (10) */
    status = sc_radix_lock(cache->radix, node, what, receipt);
    SC_ASSERT(status == SC_OK);
}

/* Where the whole pages of an insert end: above a tail. */
static sc_node whole_node(const sc_cache *cache, const struct sc_radix_inserted *inserted)
{
    struct sc_radix_node_info info = {0};
    if (inserted->len % cache->page == 0) return inserted->node;
    sc_status status = sc_radix_node_get(cache->radix, inserted->node, &info);
    SC_ASSERT(status == SC_OK);
    return info.parent;
}

/* The lease's pages up to the end of the insert are the tree's or duplicates; its lock moves
 * there. */
static void take_path(
    sc_cache *cache, struct lease *lease, const struct sc_radix_inserted *inserted)
{
    uint32_t whole = sc_engine_page_floor(cache, inserted->len);
    if (cache->options.without_kv || whole <= lease->inserted_len) return;
    SC_ASSERT(lease->inserted_len == 0 || inserted->prefix_len >= lease->inserted_len); /* (6) */
    for (uint32_t page = lease->inserted_len / cache->page; page < whole / cache->page; page++) {
        uint32_t i = page - lease->kv_base;
        SC_ASSERT_DEBUG(lease->kv_owner[i] == KV_HELD);
        if (page < inserted->prefix_len / cache->page) {
            lease->kv_owner[i] = KV_DUPLICATE;
            cache->stats.pages_duplicate++;
        } else {
            lease->kv_owner[i] = KV_TREE;
            cache->kv_held--;
        }
    }
    sc_engine_relock(cache, &lease->path, whole_node(cache, inserted), SC_RADIX_LOCK_KV);
    lease->inserted_len = whole;
}

/* Enters one save in the registry; the state's history is the lease's, up to the save. */
static sc_status register_save(sc_cache *cache, struct lease *lease, const struct step_save *save,
    uint32_t *snapshot_out)
{
    struct sc_stretch *last = &lease->history[lease->history_count - 1];
    uint32_t end = last->end;
    struct sc_snapshot_info info = {
        .slot = save->slot,
        .token_count = save->position,
        .space = lease->space->radix_space,
        .kind = (enum sc_snapshot_kind)save->kind,
        .maker = lease->generation,
        .hints = lease->hints,
        .history = lease->history,
        .history_count = lease->history_count,
    };
    sc_engine_ring_register(lease, &info);
    last->end = save->position; /* saves lie in the newest stretch */
    sc_status status = sc_registry_add(cache->registry, &info, snapshot_out);
    last->end = end;
    return status;
}

bool sc_engine_same_history(const struct lease *lease, const struct sc_snapshot_info *snapshot)
{
    for (uint32_t i = 0; i < snapshot->history_count; i++) {
        if (i >= lease->history_count) return false;
        const struct sc_stretch *ours = &lease->history[i], *theirs = &snapshot->history[i];
        uint32_t end = ours->end < snapshot->token_count ? ours->end : snapshot->token_count;
        if (end != theirs->end || ours->form != theirs->form) return false;
    }
    return true;
}

/* There is a snapshot of these tokens on the path that ends at `node`. With KV it has the lease's
 * history, or the insert would not have come so far; without, the tree does not tell. */
static uint32_t exists_cause(const sc_cache *cache, const struct lease *lease, sc_node node,
    uint32_t position)
{
    struct sc_radix_node_info info = {0};
    struct sc_snapshot_info snapshot;
    if (!cache->options.without_kv) return SC_SKIP_EXISTS;
    for (; node != SC_NODE_NONE; node = info.parent) {
        sc_status status = sc_radix_node_get(cache->radix, node, &info);
        SC_ASSERT(status == SC_OK);
        if (info.end == position) break;
    }
    sc_status status = sc_registry_get(cache->registry, info.snapshot, &snapshot);
    SC_ASSERT(node != SC_NODE_NONE && status == SC_OK); /* (2) */
    return sc_engine_same_history(lease, &snapshot) ? SC_SKIP_EXISTS : SC_SKIP_HISTORY;
}

static void report(sc_cache *cache, const struct lease *lease, const struct step_save *save,
    int32_t slot, uint32_t skip)
{
    struct report *to = cache->report;
    if (!to) return;
    if (to->count < to->cap) {
        to->out[to->count] = (sc_saved){{lease->id, lease->generation}, save->row, save->position,
            save->kind, slot, skip, 0};
    }
    to->count++;
}

void sc_engine_skip(sc_cache *cache, struct lease *lease, const struct step_save *save,
    uint32_t cause)
{
    cache->stats.saves_skipped[cause]++;
    report(cache, lease, save, -1, cause);
    sc_engine_policy_promise(lease, save->position, false);
}

/* One save after the insert of a path that ends at `node`: a snapshot now, or forgotten. */
static void settle(sc_cache *cache, struct lease *lease, const struct step_save *save,
    sc_node node, uint32_t snapshot, sc_status status, bool keep_slot)
{
    if (status == SC_OK) {
        status = sc_pool_retag(cache->options.pool, save->slot, SC_OWNER_SNAPSHOT);
        SC_ASSERT(status == SC_OK); /* (1) */
        sc_engine_ring_saved(cache, lease, save->position, snapshot);
        cache->stats.saves_published++;
        cache->stats.saves_by_kind[save->kind]++;
        report(cache, lease, save, (int32_t)save->slot.id, 0);
        return;
    }
    uint32_t cause = status == SC_ERR_MISMATCH ? SC_SKIP_HISTORY : SC_SKIP_LIMIT;
    if (status == SC_ERR_BUSY) cause = exists_cause(cache, lease, node, save->position);
    sc_engine_skip(cache, lease, save, cause);
    if (snapshot) {
        status = sc_registry_remove(cache->registry, snapshot, NULL);
        SC_ASSERT(status == SC_OK);
    }
    if (!keep_slot) sc_engine_slot_free(cache->options.pool, save->slot);
}

/* Enters the saves in the registry, as many as it takes; scratch_order says which. */
static uint32_t register_saves(sc_cache *cache, struct lease *lease, const struct offer *offer)
{
    uint32_t registered = 0;
    for (uint32_t i = 0; i < offer->count; i++) {
        bool keep = offer->keep_last && i + 1 == offer->count;
        struct sc_radix_save *save = &cache->scratch_saves[registered];
        save->len = offer->saves[i].position;
        sc_status status = register_save(cache, lease, &offer->saves[i], &save->snapshot);
        if (status == SC_OK) {
            cache->scratch_order[registered++] = i;
        } else {
            settle(cache, lease, &offer->saves[i], SC_NODE_NONE, 0, SC_ERR_LIMIT, keep);
        }
    }
    return registered;
}

/* The policy learns of each new snapshot on the path to `node`, and who reads events; pins move. */
static void tell(sc_cache *cache, struct lease *lease, const struct offer *offer,
    uint32_t registered, sc_node node)
{
    struct sc_radix_node_info info = {0};
    for (uint32_t r = registered; r-- > 0;) {
        const struct step_save *save = &offer->saves[cache->scratch_order[r]];
        const struct sc_radix_save *saved = &cache->scratch_saves[r];
        if (cache->scratch_status[r] != SC_OK) continue;
        while (sc_radix_node_get(cache->radix, node, &info) == SC_OK && info.end > saved->len) {
            node = info.parent;
        }
        SC_ASSERT(info.end == saved->len && info.snapshot == saved->snapshot); /* (2) */
        sc_engine_policy_attach(cache, lease, save->position, node, saved->snapshot);
        sc_engine_tier_saved(cache, lease, save->position, node, saved->snapshot);
        sc_engine_ring_located(cache, lease, node, saved->snapshot);
        bool end = save->kind == SC_KIND_PROMPT_END || save->kind == SC_KIND_END;
        if (end && r + 1 == registered) sc_engine_pin_move(cache, lease, node);
        cache->scratch_nodes[r] = node;
    }
    for (uint32_t r = 0; r < registered; r++) { /* each is the base of the next */
        const struct step_save *save = &offer->saves[cache->scratch_order[r]];
        if (cache->scratch_status[r] != SC_OK) continue;
        sc_engine_event_saved(cache, lease, save->position, cache->scratch_nodes[r],
            cache->scratch_saves[r].snapshot, save->kind);
    }
}

void sc_engine_cap_path(sc_cache *cache, sc_node node)
{
    struct evict_sink sink;
    uint32_t excess = 0;
    if (cache->options.path_snapshots_max == 0) return;
    sc_engine_sink_init(cache, SC_EVICT_PATH_CAP, &sink);
    sc_status status = sc_radix_evict_excess(cache->radix, node, &sink.sink, &excess);
    SC_ASSERT(status == SC_OK);
}

void sc_engine_publish(sc_cache *cache, struct lease *lease, const struct offer *offer,
    struct published *published_out)
{
    *published_out = (struct published){SC_NODE_NONE, SC_ERR_LIMIT, 0};
    SC_ASSERT(offer->count <= cache->options.save_max + 1u);
    uint32_t last = offer->count - 1, registered = register_saves(cache, lease, offer);
    struct offer whole = *offer;
    bool tail = registered > 0 && cache->scratch_saves[registered - 1].len == offer->len;
    if (!tail) whole.len = sc_engine_page_floor(cache, offer->len);
    /* Without KV nothing is worth keeping but states: the tree would grow by tokens that nobody can
     * resume, and that no eviction of states would find. */
    if (cache->options.without_kv) {
        whole.len = registered > 0 ? cache->scratch_saves[registered - 1].len : 0;
    }
    struct sc_radix_inserted inserted = {0};
    sc_status status =
        whole.len == 0 ? SC_OK : tree_insert(cache, lease, &whole, registered, &inserted);
    for (uint32_t r = 0; r < registered; r++) {
        uint32_t i = cache->scratch_order[r], snapshot = cache->scratch_saves[r].snapshot;
        sc_status each = status == SC_OK ? cache->scratch_status[r] : SC_ERR_LIMIT;
        settle(cache, lease, &offer->saves[i], inserted.node, snapshot, each,
            offer->keep_last && i == last);
        if (i == last) {
            published_out->status = each;
            published_out->snapshot = each == SC_OK ? snapshot : 0;
        }
    }
    if (offer->tail_kv >= 0 && !offer->tail_outside) {
        cache->kv_held--;
        if (published_out->status != SC_OK) sc_engine_drain_push(cache, &offer->tail_kv, 1);
    }
    if (status != SC_OK) return;
    take_path(cache, lease, &inserted);
    tell(cache, lease, offer, registered, inserted.node);
    if (published_out->status != SC_OK) sc_engine_stale_add(cache, inserted.node);
    published_out->node = inserted.node;
    if (published_out->status == SC_OK && offer->len % cache->page != 0) {
        lease->own_tail = inserted.node;
        lease->own_tail_snapshot = published_out->snapshot;
        lease->own_tail_len = offer->len;
    }
    if (registered > 0) sc_engine_cap_path(cache, inserted.node);
}

static void drop_unused(sc_cache *cache, const struct lease *lease, sc_node node,
    uint32_t snapshot)
{
    struct sc_snapshot_info what;
    struct evict_sink sink;
    if (snapshot == 0 || sc_registry_get(cache->registry, snapshot, &what) != SC_OK) return;
    if (what.maker != lease->generation || what.hits > 0) return;
    sc_engine_sink_init(cache, SC_EVICT_SUPERSEDED, &sink);
    /* SC_ERR_BUSY: in use, it stays */
    (void)sc_radix_snapshot_drop(cache->radix, node, &sink.sink);
}

void sc_engine_drop_beyond(sc_cache *cache, struct lease *lease, sc_node node, uint32_t len)
{
    struct sc_radix_node_info info;
    while (node != SC_NODE_NONE && sc_radix_node_get(cache->radix, node, &info) == SC_OK &&
        info.end > len) {
        drop_unused(cache, lease, node, info.snapshot);
        node = info.parent;
    }
    if (lease->own_tail_snapshot == 0 || lease->own_tail_len <= len) return;
    if (sc_radix_node_get(cache->radix, lease->own_tail, &info) != SC_OK) return;
    if (info.snapshot != lease->own_tail_snapshot) return;
    drop_unused(cache, lease, lease->own_tail, info.snapshot);
}

void sc_engine_decode_drop(sc_cache *cache, struct lease *lease, sc_node node)
{
    uint32_t snapshot = lease->decode_snapshot;
    lease->decode_snapshot = 0;
    if (snapshot == 0) return;
    struct sc_radix_node_info info = {0};
    while (node != SC_NODE_NONE && sc_radix_node_get(cache->radix, node, &info) == SC_OK &&
        info.end > lease->decode_len) {
        node = info.parent;
    }
    struct sc_snapshot_info what;
    if (node == SC_NODE_NONE || info.end != lease->decode_len || info.snapshot != snapshot) return;
    if (sc_registry_get(cache->registry, snapshot, &what) != SC_OK || what.hits > 0) return;
    struct evict_sink sink;
    sc_engine_sink_init(cache, SC_EVICT_SUPERSEDED, &sink);
    /* SC_ERR_BUSY: in use, it stays */
    (void)sc_radix_snapshot_drop(cache->radix, node, &sink.sink);
}
