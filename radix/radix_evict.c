/* SPDX-License-Identifier: Apache-2.0 */
/* Use, locks and eviction.
 *
 * Two orders of eviction, each a min-heap of (tick of last use, node) with the node's place in the
 * node: KV holds the leaves that may go now, STATE the snapshots that may go now. What is locked is
 * not in a heap, so no victim is ever skipped, and unlocking puts it back by its old tick: locks do
 * not count as use. The heaps have eight ways, since each level of a sift writes the place of one
 * node far away.
 *
 * A use of a path writes one tick, at its deepest node; when a child is removed, its parent
 * inherits the tick if it is later (9). So a parent that becomes a leaf stands where it would stand
 * if every use had walked to the root, and none has to.
 *
 * A lock also does not walk to the root: `pin` counts the receipts of a node and its children with
 * pin > 0 (6), so that lock and unlock climb only as far as the change from 0 to 1 reaches.
 *
 * Nothing here allocates except sc_radix_lock (a receipt): heap room is reserved by insert, for
 * every leaf and every snapshot.
 *
 * Rejected: linked lists. A parent that becomes a leaf would have to find its place (a scan), or
 * all nodes stand in the list and each touch rewrites the path. */
#include "radix_internal.h"

/* --- the two orders --- */

bool rx_order_reserve(struct sc_radix *r, enum rx_kind kind, uint64_t count)
{
    struct rx_heap *heap = &r->order[kind];
    return rx_grow(r, (void **)&heap->entries, &heap->cap, count, sizeof *heap->entries);
}

/* As far as (11) allows. */
void rx_order_shrink(struct sc_radix *r, enum rx_kind kind, uint64_t count)
{
    struct rx_heap *heap = &r->order[kind];
    if (count < 64) count = 64;
    if (count * 2 >= heap->cap) return;
    void *entries = sc_heap_realloc(&r->heap, heap->entries, heap->cap * sizeof *heap->entries,
        (size_t)count * sizeof *heap->entries);
    if (!entries) return;
    r->bytes -= (heap->cap - (size_t)count) * sizeof *heap->entries;
    heap->entries = entries;
    heap->cap = (uint32_t)count;
}

static void entry_place(struct sc_radix *r, enum rx_kind kind, uint32_t at, struct rx_entry entry)
{
    r->order[kind].entries[at] = entry;
    rx_use(r, entry.node)->place[kind] = at + 1;
}

/* The least of the entries below `at`; 0: there is none. */
static uint32_t heap_least_child(const struct rx_heap *heap, uint32_t at)
{
    uint64_t first = (uint64_t)at * RX_HEAP_WAYS + 1;
    if (first >= heap->count) return 0;
    uint32_t least = (uint32_t)first;
    for (uint64_t i = first + 1; i < first + RX_HEAP_WAYS && i < heap->count; i++) {
        bool earlier = heap->entries[i].tick < heap->entries[least].tick; /* no branch could tell */
        least ^= (least ^ (uint32_t)i) & -(uint32_t)earlier;
    }
    return least;
}

static void sift(struct sc_radix *r, enum rx_kind kind, uint32_t at, struct rx_entry entry)
{
    const struct rx_heap *heap = &r->order[kind];
    while (at > 0 && heap->entries[(at - 1) / RX_HEAP_WAYS].tick > entry.tick) {
        entry_place(r, kind, at, heap->entries[(at - 1) / RX_HEAP_WAYS]);
        at = (at - 1) / RX_HEAP_WAYS;
    }
    for (;;) {
        uint32_t child = heap_least_child(heap, at);
        if (child == 0 || heap->entries[child].tick >= entry.tick) break;
        entry_place(r, kind, at, heap->entries[child]);
        at = child;
    }
    entry_place(r, kind, at, entry);
}

void rx_order_add(struct sc_radix *r, enum rx_kind kind, uint32_t id)
{
    struct rx_heap *heap = &r->order[kind];
    SC_ASSERT(heap->count < heap->cap);
    SC_ASSERT_DEBUG(rx_use(r, id)->place[kind] == 0);
    sift(r, kind, heap->count++, (struct rx_entry){rx_use(r, id)->tick[kind], id, 0});
}

void rx_order_remove(struct sc_radix *r, enum rx_kind kind, uint32_t id)
{
    struct rx_heap *heap = &r->order[kind];
    uint32_t place = rx_use(r, id)->place[kind];
    SC_ASSERT_DEBUG(place != 0);
    rx_use(r, id)->place[kind] = 0;
    struct rx_entry last = heap->entries[--heap->count];
    if (last.node != id) sift(r, kind, place - 1, last);
}

void rx_order_use(struct sc_radix *r, enum rx_kind kind, uint32_t id)
{
    struct rx_use *use = rx_use(r, id);
    use->tick[kind] = ++r->clock;
    if (use->place[kind] != 0) {
        sift(r, kind, use->place[kind] - 1, (struct rx_entry){use->tick[kind], id, 0});
    }
}

void rx_kv_order_sync(struct sc_radix *r, uint32_t id)
{
    const struct rx_node *node = rx_node(r, id);
    bool in = rx_use(r, id)->place[RX_KV] != 0;
    bool want = !node->child[0] && rx_use(r, id)->pin == 0 && !(node->flags & RX_ROOT);
    if (want && !in) rx_order_add(r, RX_KV, id);
    if (!want && in) rx_order_remove(r, RX_KV, id);
}

/* --- snapshots --- */

void rx_snapshot_attach(struct sc_radix *r, uint32_t id, uint32_t snapshot)
{
    struct rx_node *node = rx_node(r, id);
    SC_ASSERT_DEBUG(node->snapshot == 0);
    node->snapshot = snapshot;
    node->flags &= ~(uint32_t)RX_TOMBSTONE;
    r->snapshot_count++;
    rx_use(r, id)->tick[RX_STATE] = ++r->clock;
    rx_order_add(r, RX_STATE, id);
}

/* Of a tail, any lock holds the snapshot: the node cannot stay without it (13). */
bool rx_state_held(const struct sc_radix *r, uint32_t id)
{
    const struct rx_use *use = rx_use(r, id);
    return rx_node(r, id)->flags & RX_TAIL ? use->pin > 0 : use->state_locks > 0;
}

/* Follows a change of locks: the snapshot is in its order, or counted as locked (8). */
static void state_order_sync(struct sc_radix *r, uint32_t id)
{
    if (rx_node(r, id)->snapshot == 0) return;
    bool in = rx_use(r, id)->place[RX_STATE] != 0;
    bool want = !rx_state_held(r, id);
    if (want && !in) {
        rx_order_add(r, RX_STATE, id);
        r->state_locked_count--;
    }
    if (!want && in) {
        rx_order_remove(r, RX_STATE, id);
        r->state_locked_count++;
    }
}

/* Not locked; leaves a tombstone. */
static void snapshot_evict(struct sc_radix *r, uint32_t id, const struct sc_radix_sink *sink,
    enum sc_radix_cause cause)
{
    struct rx_node *node = rx_node(r, id);
    SC_ASSERT(!rx_state_held(r, id));
    uint32_t snapshot = node->snapshot;
    rx_order_remove(r, RX_STATE, id);
    node->snapshot = 0;
    node->flags |= RX_TOMBSTONE;
    r->snapshot_count--;
    sink->snapshot(sink->ctx, snapshot, cause);
}

/* --- removal --- */

/* (9): what the child knew about use becomes the parent's. */
static void tick_inherit(struct sc_radix *r, uint32_t parent, uint32_t id)
{
    uint64_t tick = rx_use(r, id)->tick[RX_KV];
    if (rx_use(r, parent)->tick[RX_KV] < tick) rx_use(r, parent)->tick[RX_KV] = tick;
}

static void run_emit(struct sc_radix *r, const struct rx_node *node, uint32_t skip,
    const struct sc_radix_sink *sink, enum sc_radix_cause cause)
{
    if (!r->with_kv) return;
    sink->kv(sink->ctx, rx_ids(r, node) + skip / r->page, rx_pages(r, node->len - skip), cause);
}

/* The cause of what goes because something else did. */
static enum sc_radix_cause cascade_of(enum sc_radix_cause cause)
{
    return cause == SC_RADIX_CAUSE_ASKED ? SC_RADIX_CAUSE_CASCADE : cause;
}

/* Removes an unpinned leaf. */
static void leaf_remove(struct sc_radix *r, uint32_t id, const struct sc_radix_sink *sink,
    enum sc_radix_cause cause)
{
    struct rx_node *node = rx_node(r, id);
    uint32_t parent = rx_id(node->parent);
    SC_ASSERT(rx_use(r, id)->pin == 0 && !node->child[0]);
    if (node->snapshot != 0) snapshot_evict(r, id, sink, cascade_of(cause));
    run_emit(r, node, 0, sink, cause);
    if (rx_use(r, id)->place[RX_KV] != 0) rx_order_remove(r, RX_KV, id);
    rx_child_unlink(r, id);
    tick_inherit(r, parent, id);
    rx_store_unlink(r, id);
    rx_store_release(r, node->chunk, rx_pos(r, node), node->len);
    r->node_count--;
    r->token_count -= node->len;
    rx_node_free(r, id);
    rx_kv_order_sync(r, parent);
}

/* Lets a snapshot go that is not locked; a tail goes with it. Returns the node that is left. */
static uint32_t state_remove(struct sc_radix *r, uint32_t id, const struct sc_radix_sink *sink,
    enum sc_radix_cause cause)
{
    uint32_t parent = rx_parent(r, id);
    snapshot_evict(r, id, sink, cause);
    if (!(rx_node(r, id)->flags & RX_TAIL)) return id;
    leaf_remove(r, id, sink, cascade_of(cause));
    return parent;
}

void rx_subtree_remove(struct sc_radix *r, uint32_t top, const struct sc_radix_sink *sink,
    enum sc_radix_cause cause)
{
    uint32_t id = top;
    for (;;) {
        while (rx_node(r, id)->child[0]) id = rx_node(r, id)->child[0]->id;
        uint32_t parent = rx_parent(r, id);
        leaf_remove(r, id, sink, cause);
        if (id == top) return;
        id = parent;
    }
}

void rx_truncate(struct sc_radix *r, uint32_t id, uint32_t len,
    const struct sc_radix_sink *sink, enum sc_radix_cause cause)
{
    struct rx_node *node = rx_node(r, id);
    SC_ASSERT_DEBUG(len > 0 && len < node->len && rx_use(r, id)->pin == 0);
    while (node->child[0]) rx_subtree_remove(r, node->child[0]->id, sink, cause);
    if (node->snapshot != 0) snapshot_evict(r, id, sink, cascade_of(cause));
    run_emit(r, node, len, sink, cause);
    uint32_t pos = rx_pos(r, node) + len;
    rx_store_cut(r, node->chunk, pos);
    rx_store_release(r, node->chunk, pos, node->len - len);
    r->token_count -= node->len - len;
    node->len = len;
    node->flags &= ~(uint32_t)RX_TOMBSTONE; /* it stood at the old end */
}

/* --- locks --- */

static void pin(struct sc_radix *r, uint32_t id, uint32_t count)
{
    for (const struct rx_node *node = rx_node(r, id); node; node = node->parent) {
        struct rx_use *use = rx_use(r, node->id);
        uint32_t before = use->pin;
        use->pin += count;
        if (before != 0) return;
        r->pinned_tokens += node->len;
        if (!node->child[0]) rx_kv_order_sync(r, node->id); /* (7): others are in none */
        count = 1;
    }
}

static void unpin(struct sc_radix *r, uint32_t id, uint32_t count)
{
    for (const struct rx_node *node = rx_node(r, id); node; node = node->parent) {
        struct rx_use *use = rx_use(r, node->id);
        SC_ASSERT(use->pin >= count);
        use->pin -= count;
        if (use->pin != 0) return;
        r->pinned_tokens -= node->len;
        if (!node->child[0]) rx_kv_order_sync(r, node->id); /* (7): others are in none */
        count = 1;
    }
}

static bool receipt_reserve(struct sc_radix *r)
{
    if (r->receipt_free != 0) return true;
    uint32_t old = r->receipt_cap;
    if (!rx_grow(r, (void **)&r->receipts, &r->receipt_cap, (uint64_t)old + 1,
            sizeof *r->receipts)) {
        return false;
    }
    for (uint32_t i = r->receipt_cap; i-- > old;) {
        r->receipts[i] = (struct rx_receipt){.generation = 1, .node = r->receipt_free};
        if (i != 0) r->receipt_free = i;
    }
    return true;
}

sc_status sc_radix_lock(struct sc_radix *r, sc_node node, uint32_t what,
    struct sc_radix_receipt *receipt_out)
{
    SC_REQUIRE(r != NULL && receipt_out != NULL);
    SC_REQUIRE(what != 0 && (what & ~(uint32_t)(SC_RADIX_LOCK_KV | SC_RADIX_LOCK_STATE)) == 0);
    if (node != SC_NODE_NONE && !rx_known(r, node)) {
        return SC_FAIL(SC_ERR_STALE, "node %u does not exist", node);
    }
    uint32_t taken = 0;
    if (node != SC_NODE_NONE) {
        taken = what & SC_RADIX_LOCK_KV;
        if (rx_node(r, node)->snapshot != 0) taken |= what & SC_RADIX_LOCK_STATE;
        if (rx_use(r, node)->pin > UINT32_MAX - 2) {
            return SC_FAIL(SC_ERR_LIMIT, "node %u is locked 2^32 times", node);
        }
    }
    if (!receipt_reserve(r)) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a receipt");

    uint32_t index = r->receipt_free;
    struct rx_receipt *receipt = &r->receipts[index];
    r->receipt_free = receipt->node;
    receipt->node = node;
    receipt->what = taken;
    receipt->live = 1;
    r->receipt_count++;
    if (taken & SC_RADIX_LOCK_KV) rx_use(r, node)->kv_locks++;
    if (taken & SC_RADIX_LOCK_STATE) rx_use(r, node)->state_locks++;
    if (taken != 0) {
        pin(r, node, (taken & 1) + (taken >> 1));
        state_order_sync(r, node);
    }
    *receipt_out = (struct sc_radix_receipt){index, receipt->generation};
    return SC_OK;
}

/* The entry of a live receipt, or NULL. */
static struct rx_receipt *receipt_find(const struct sc_radix *r, struct sc_radix_receipt receipt)
{
    if (receipt.index == 0 || receipt.index >= r->receipt_cap) return NULL;
    struct rx_receipt *entry = &r->receipts[receipt.index];
    return entry->live && entry->generation == receipt.generation ? entry : NULL;
}

static sc_status receipt_stale(struct sc_radix_receipt receipt)
{
    return SC_FAIL(SC_ERR_STALE, "receipt %u, generation %u is not held", receipt.index,
        receipt.generation);
}

sc_status sc_radix_unlock(struct sc_radix *r, struct sc_radix_receipt receipt)
{
    SC_REQUIRE(r != NULL);
    struct rx_receipt *entry = receipt_find(r, receipt);
    if (!entry) return receipt_stale(receipt);
    uint32_t node = entry->node;
    uint32_t taken = entry->what;
    if (taken & SC_RADIX_LOCK_KV) rx_use(r, node)->kv_locks--;
    if (taken & SC_RADIX_LOCK_STATE) rx_use(r, node)->state_locks--;
    if (taken != 0) {
        unpin(r, node, (taken & 1) + (taken >> 1));
        state_order_sync(r, node);
    }
    uint32_t generation = entry->generation + 1;
    *entry = (struct rx_receipt){.generation = generation == 0 ? 1 : generation,
        .node = r->receipt_free};
    r->receipt_free = receipt.index;
    r->receipt_count--;
    return SC_OK;
}

sc_status sc_radix_receipt_get(const struct sc_radix *r, struct sc_radix_receipt receipt,
    sc_node *node_out, uint32_t *what_out)
{
    SC_REQUIRE(r != NULL && node_out != NULL && what_out != NULL);
    const struct rx_receipt *entry = receipt_find(r, receipt);
    if (!entry) return receipt_stale(receipt);
    *node_out = entry->node;
    *what_out = entry->what;
    return SC_OK;
}

/* --- eviction --- */

sc_status rx_sink_check(const struct sc_radix *r, const struct sc_radix_sink *sink)
{
    if (!sink || !sink->snapshot || (r->with_kv && !sink->kv)) {
        return SC_FAIL(SC_ERR_INVALID, "a sink with its functions is needed: ids would be lost");
    }
    return SC_OK;
}

/* Ids that are about to be handed out have seldom been read of late, and a run is too short for the
 * processor to see a stream: eviction is a wait for memory. So the ids of a victim are asked for
 * while those of the one before are handed out, and the nodes that may come after it as well. */
RX_INLINE void victim_prefetch(const struct sc_radix *r, uint32_t id)
{
    enum { LINES_MAX = 256 };
    const struct rx_node *node = rx_node(r, id);
    const struct rx_use *use = rx_use(r, id);
    __builtin_prefetch(&r->slots[use->hash & r->slot_mask]);
    __builtin_prefetch(rx_use(r, rx_id(node->parent)));
    __builtin_prefetch(rx_use(r, use->chunk_prev));
    __builtin_prefetch(rx_use(r, use->chunk_next));
    if (!r->with_kv) return;
    const int32_t *ids = rx_ids(r, node);
    uint32_t lines = rx_pages(r, node->len) / RX_LINE_TOKENS + 1;
    if (lines > LINES_MAX) lines = LINES_MAX;
    for (uint32_t i = 0; i < lines; i++) __builtin_prefetch(ids + (size_t)i * RX_LINE_TOKENS, 0, 2);
}

RX_INLINE void victims_prefetch(const struct sc_radix *r)
{
    const struct rx_heap *heap = &r->order[RX_KV];
    uint32_t next = heap_least_child(heap, 0);
    if (next == 0) return;
    uint32_t later = heap_least_child(heap, next); /* the next but one, as likely as any other */
    if (later != 0) {
        __builtin_prefetch(rx_node(r, heap->entries[later].node));
        __builtin_prefetch(rx_use(r, heap->entries[later].node));
    }
    victim_prefetch(r, heap->entries[next].node);
}

sc_status sc_radix_evict_kv(struct sc_radix *r, uint64_t token_count,
    const struct sc_radix_sink *sink, uint64_t *token_count_out, uint32_t *snapshot_count_out)
{
    SC_REQUIRE(r != NULL && token_count_out != NULL && snapshot_count_out != NULL);
    SC_TRY(rx_sink_check(r, sink));
    uint64_t tokens_before = r->token_count;
    uint64_t snapshots_before = r->snapshot_count;
    const struct rx_heap *heap = &r->order[RX_KV];
    if (heap->count > 0 && token_count > 0) victim_prefetch(r, heap->entries[0].node);
    while (tokens_before - r->token_count < token_count && heap->count > 0) {
        uint32_t id = heap->entries[0].node;
        uint32_t len = rx_node(r, id)->len;
        uint64_t left = token_count - (tokens_before - r->token_count);
        if (len < left) {
            victims_prefetch(r);
        } else if (r->with_kv && len - left >= RX_EXCESS_TOKENS && len - left >= r->page) {
            rx_truncate(r, id, rx_page_floor(r, len - (uint32_t)left), sink,
                SC_RADIX_CAUSE_ASKED);
            break; /* the rest keeps its place: it is the next victim */
        }
        leaf_remove(r, id, sink, SC_RADIX_CAUSE_ASKED);
    }
    *token_count_out = tokens_before - r->token_count;
    *snapshot_count_out = (uint32_t)(snapshots_before - r->snapshot_count);
    return SC_OK;
}

/* Removes what nothing can be resumed from: `id` and then its ancestors, while they are leaves
 * without snapshot. Returns the node that stays, 0 for a root. */
static uint32_t barren_remove(struct sc_radix *r, uint32_t id, const struct sc_radix_sink *sink,
    enum sc_radix_cause cause)
{
    for (;;) {
        const struct rx_node *node = rx_node(r, id);
        if (node->flags & RX_ROOT) return 0;
        if (node->child[0] || rx_use(r, id)->pin > 0 || node->snapshot != 0) return id;
        uint32_t parent = rx_id(node->parent);
        leaf_remove(r, id, sink, cause);
        id = parent;
    }
}

sc_status sc_radix_evict_node(struct sc_radix *r, sc_node node, const struct sc_radix_sink *sink,
    sc_node *rest_out)
{
    SC_REQUIRE(r != NULL && rest_out != NULL);
    SC_TRY(rx_sink_check(r, sink));
    if (!rx_known(r, node)) return SC_FAIL(SC_ERR_STALE, "node %u does not exist", node);
    if (rx_node(r, node)->snapshot != 0) {
        if (rx_state_held(r, node)) {
            return SC_FAIL(SC_ERR_BUSY, "the snapshot of node %u is locked", node);
        }
        node = state_remove(r, node, sink, SC_RADIX_CAUSE_ASKED);
    }
    *rest_out = barren_remove(r, node, sink, SC_RADIX_CAUSE_ASKED);
    return SC_OK;
}

sc_status sc_radix_evict_state(struct sc_radix *r, uint32_t count,
    const struct sc_radix_sink *sink, uint32_t *count_out)
{
    SC_REQUIRE(r != NULL && count_out != NULL);
    SC_TRY(rx_sink_check(r, sink));
    const struct rx_heap *heap = &r->order[RX_STATE];
    uint32_t done = 0;
    for (; done < count && heap->count > 0; done++) {
        uint32_t id = state_remove(r, heap->entries[0].node, sink, SC_RADIX_CAUSE_ASKED);
        if (!r->with_kv) (void)barren_remove(r, id, sink, SC_RADIX_CAUSE_CASCADE);
    }
    *count_out = done;
    return SC_OK;
}

sc_node sc_radix_state_victim(const struct sc_radix *r)
{
    return r && r->order[RX_STATE].count > 0 ? r->order[RX_STATE].entries[0].node : SC_NODE_NONE;
}

sc_status sc_radix_snapshot_drop(struct sc_radix *r, sc_node node,
    const struct sc_radix_sink *sink)
{
    SC_REQUIRE(r != NULL);
    SC_TRY(rx_sink_check(r, sink));
    if (!rx_known(r, node)) return SC_FAIL(SC_ERR_STALE, "node %u does not exist", node);
    if (rx_node(r, node)->snapshot == 0) {
        return SC_FAIL(SC_ERR_NOT_FOUND, "node %u has no snapshot", node);
    }
    if (rx_state_held(r, node)) {
        return SC_FAIL(SC_ERR_BUSY, "the snapshot of node %u is locked", node);
    }
    uint32_t rest = state_remove(r, node, sink, SC_RADIX_CAUSE_SUPERSEDED);
    if (!r->with_kv) (void)barren_remove(r, rest, sink, SC_RADIX_CAUSE_SUPERSEDED);
    return SC_OK;
}

/* A snapshot that the cap may free: on the way to `end`, no fork, not locked. */
static bool excess_candidate(const struct sc_radix *r, uint32_t id, uint32_t end)
{
    const struct rx_node *node = rx_node(r, id);
    return node->snapshot != 0 && id != end && rx_child_count(r, node) == 1 &&
        rx_use(r, id)->state_locks == 0;
}

sc_status sc_radix_evict_excess(struct sc_radix *r, sc_node node,
    const struct sc_radix_sink *sink, uint32_t *count_out)
{
    SC_REQUIRE(r != NULL && count_out != NULL);
    SC_TRY(rx_sink_check(r, sink));
    if (node != SC_NODE_NONE && !rx_known(r, node)) {
        return SC_FAIL(SC_ERR_STALE, "node %u does not exist", node);
    }
    *count_out = 0;
    if (r->path_snapshots_max == 0) return SC_OK;
    uint32_t held = 0;
    uint32_t candidates = 0;
    for (uint32_t id = node; id != 0; id = rx_parent(r, id)) {
        if (rx_node(r, id)->snapshot != 0) held++;
        if (excess_candidate(r, id, node)) candidates++;
    }
    if (held <= r->path_snapshots_max) return SC_OK;
    /* The walk meets the deepest first, the shallowest are to go: pass over those that stay. */
    uint32_t excess = held - r->path_snapshots_max;
    uint32_t pass = candidates > excess ? candidates - excess : 0;
    for (uint32_t id = node; id != 0; id = rx_parent(r, id)) {
        if (!excess_candidate(r, id, node)) continue;
        if (pass > 0) {
            pass--;
            continue;
        }
        snapshot_evict(r, id, sink, SC_RADIX_CAUSE_PATH_CAP);
        (*count_out)++;
    }
    return SC_OK;
}
