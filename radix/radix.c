/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix index: creation, spaces, look-up, use, ids of a path.
 *
 * One compressed tree per space; the root is a node that no caller sees. A node is a run of whole
 * pages [start, end) and ends where a snapshot stands, where paths part, where the history changes,
 * before a page with marks, or where storage had to be cut. It names its run in shared storage
 * (radix_store.c), so that a split moves two numbers and copies nothing:
 *
 *   storage        | t0 t1 t2 t3 t4 t5 t6 t7 | ...            one chunk, counted by unit
 *
 *   before         root --- N [0,8) snapshot 5, locks
 *   after          root --- U [0,3) --- N [3,8) snapshot 5, locks
 *                             `-------- M [3,6)                        the path that parted at 3
 *
 * The upper half is the new node. The lower half keeps the id, so that whatever stands for the end
 * of the run (snapshot, tombstone, receipts, children) stays where it is.
 *
 * A tail is a node of less than a page. It hangs where its page begins; the page itself may hang
 * beside it, and so may other tails (pages of four):
 *
 *   root --- N [0,8) --+-- P [8,12) ---         begins as both tails do
 *                      +-- T [8,10) snapshot 7
 *                      `-- T [8,11) snapshot 9
 *
 * Invariants; sc_radix_verify cites them:
 *  (1) A child starts where its parent ends; every run is a positive number of whole pages, or, of
 *      a tail, less than one page.
 *  (2) Children of a node differ in the tokens or marks of their first page (a tail: of all it
 *      has). The index holds each node exactly once, under its parent and these.
 *  (3) Sibling lists are doubly linked and child_count is their length. A node knows the first
 *      two of its list and their first tokens, and whether there are more (RX_MANY).
 *  (4) A node belongs to its root's space, and every live node is reached from one root.
 *  (5) A storage unit counts the nodes that touch it, and the cursor that stands in it; a chunk
 *      the tokens of its nodes.
 *  (6) pin == receipts that hold the node + children with pin > 0. So pin > 0 if and only if
 *      something at or below the node is locked.
 *  (7) A node is in the KV order if and only if it is a leaf, no root, and pin == 0.
 *  (8) A node is in the STATE order if and only if it has a snapshot that is not held: by a state
 *      lock, or, of a tail, by any lock. A state lock implies a snapshot; a tombstone has none.
 *  (9) A leaf's tick is the last use of any path that went through it: uses mark the deepest node,
 *      and a removed child leaves its tick to the parent.
 * (10) The counters (nodes, leaves, tokens, pinned tokens, snapshots, locks, marks, tails, bytes)
 *      equal a recount. Every receipt is live or free.
 * (11) An entry's heap tick is its node's, no parent entry is later than its children, and the
 *      node's place names the entry.
 * (12) The marks of a node lie in its first page and ascend. So a page with marks starts a node, a
 *      split never divides marks, and tokens alone decide inside a node. Every cell is in the list
 *      of one node or free.
 * (13) A tail has a snapshot and no children. Its parent counts its tails by length.
 * (14) The nodes whose runs lie in a chunk form a ring that the chunk knows.
 * (15) RX_SAME: the parent is no root and has the same history, so that a walk down a path looks
 *      for the history only where it changes.
 *
 * Failure: insert, space_add and lock acquire everything first and then mutate; a trim moves run by
 * run and stops without memory; nothing else allocates. Threads: see radix.h; look-ups write
 * nothing.
 * Cost: look-up is one pass over the tokens of each node on the path (radix_compare.c) and one
 * child search, which most often reads nothing but the parent's line; then, from the deepest node
 * on up to the last one with a snapshot, those with tails try each length of theirs.
 * Eviction is O(log leaves) per node that goes, and for a tail the lengths beside it. All walks are
 * loops over links, so depth is no limit. */
#include "radix_internal.h"

sc_status sc_radix_create(const struct sc_radix_options *options, struct sc_radix **radix_out)
{
    SC_REQUIRE(options != NULL && radix_out != NULL);
    SC_REQUIRE(options->page_tokens >= 1 && options->page_tokens <= RX_PAGE_TOKENS_MAX);
    SC_REQUIRE(options->grid_tokens >= 1 && options->grid_tokens % options->page_tokens == 0);
    struct sc_heap heap;
    SC_TRY(sc_heap_init(&heap, SC_SUBSYSTEM_RADIX, options->allocator));
    struct sc_radix *r = sc_heap_calloc(&heap, 1, sizeof *r);
    if (!r) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for the index");
    r->heap = heap;
    r->page = options->page_tokens;
    r->grid = options->grid_tokens;
    r->path_snapshots_max = options->path_snapshots_max;
    r->with_kv = options->with_kv;
    r->token_max = options->token_max;
    r->bytes = sizeof *r;
    r->space_hint = 1; /* index 0 is no space */
    r->common = rx_common_choose(RX_WIDTH_512);
    rx_store_init(r);
    *radix_out = r;
    return SC_OK;
}

void sc_radix_destroy(struct sc_radix *r)
{
    if (!r) return;
    rx_store_deinit(r);
    for (uint32_t i = 0; i < r->block_count; i++) {
        rx_free(r, r->blocks[i], sizeof *r->blocks[i]); /* NULL after a trim */
    }
    rx_free(r, r->blocks, r->block_cap * sizeof *r->blocks);
    if (r->slots) rx_free(r, r->slots, ((size_t)r->slot_mask + 1) * sizeof *r->slots);
    for (int kind = 0; kind < RX_KIND_COUNT; kind++) {
        rx_free(r, r->order[kind].entries, r->order[kind].cap * sizeof *r->order[kind].entries);
    }
    rx_free(r, r->cells, r->cell_cap * sizeof *r->cells);
    rx_free(r, r->receipts, r->receipt_cap * sizeof *r->receipts);
    rx_free(r, r->roots, r->space_cap * sizeof *r->roots);
    SC_ASSERT(r->bytes == sizeof *r);
    struct sc_heap heap = r->heap;
    sc_heap_free(&heap, r, sizeof *r);
}

/* --- spaces --- */

sc_status sc_radix_space_add(struct sc_radix *r, uint32_t *space_out)
{
    SC_REQUIRE(r != NULL && space_out != NULL);
    uint32_t space = r->space_hint;
    while (space < r->space_cap && r->roots[space] != 0) space++;
    uint32_t old = r->space_cap;
    if (!rx_nodes_reserve(r, 1) || !rx_grow(r, (void **)&r->roots, &r->space_cap,
            (uint64_t)space + 1, sizeof *r->roots)) {
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a space");
    }
    for (uint32_t i = old; i < r->space_cap; i++) r->roots[i] = 0;
    uint32_t root = rx_node_new(r);
    rx_node(r, root)->flags |= RX_ROOT;
    rx_use(r, root)->space = space;
    r->roots[space] = root;
    r->space_hint = space + 1;
    *space_out = space;
    return SC_OK;
}

static sc_status space_unknown(uint32_t space)
{
    return SC_FAIL(SC_ERR_NOT_FOUND, "space %u does not exist", space);
}

sc_status sc_radix_space_remove(struct sc_radix *r, uint32_t space,
    const struct sc_radix_sink *sink)
{
    SC_REQUIRE(r != NULL);
    SC_TRY(rx_sink_check(r, sink));
    uint32_t root = rx_root(r, space);
    if (root == 0) return space_unknown(space);
    if (rx_use(r, root)->pin > 0) {
        return SC_FAIL(SC_ERR_BUSY, "something in space %u is locked", space);
    }
    while (rx_node(r, root)->child[0]) {
        rx_subtree_remove(r, rx_node(r, root)->child[0]->id, sink, SC_RADIX_CAUSE_SPACE);
    }
    rx_node_free(r, root);
    r->roots[space] = 0;
    if (space < r->space_hint) r->space_hint = space;
    return SC_OK;
}

/* --- look-up --- */

sc_status rx_from_check(const struct sc_radix *r, uint32_t space, uint32_t from, uint32_t limit)
{
    if (!rx_known(r, from)) return SC_FAIL(SC_ERR_STALE, "node %u does not exist", from);
    if (rx_use(r, from)->space != space || rx_node(r, from)->flags & RX_TAIL ||
        rx_end(rx_node(r, from)) > limit) {
        return SC_FAIL(SC_ERR_INVALID, "node %u is of another space, a tail, or ends behind %u",
            from, limit);
    }
    return SC_OK;
}

bool rx_path_equal(const struct sc_radix *r, uint32_t id, const struct sc_radix_key *key)
{
    for (const struct rx_node *node = rx_node(r, id); node->parent; node = node->parent) {
        if (memcmp(node->tokens, key->tokens + node->start, node->len * sizeof(int32_t)) != 0) {
            return false;
        }
    }
    return true;
}

/* The deepest tail on the way from `id` up that is deeper than the best snapshot so far. `limit`:
 * tokens that count. */
static void match_tail(const struct sc_radix *r, const struct sc_radix_key *key, uint32_t limit,
    uint32_t id, struct sc_radix_match *match)
{
    uint32_t mark = key->mark_count;
    for (const struct rx_node *node = rx_node(r, id); node; node = node->parent) {
        uint32_t start = rx_end(node);
        if (start < match->state_len) return;
        uint32_t most = limit - start < r->page - 1 ? limit - start : r->page - 1;
        while (mark > 0 && key->marks[mark - 1].at >= start) mark--;
        if (node->flags & RX_TAILED && most > 0) {
            struct rx_first first = {key->tokens + start, start, most, key->marks + mark,
                key->mark_count - mark};
            uint32_t tail = rx_tail_deepest(r, node->id, &first);
            if (tail != 0) {
                node = rx_node(r, tail);
                match->state_node = tail;
                match->state_len = rx_end(node);
                match->snapshot = node->snapshot;
                if (r->with_kv) match->tail_kv = *rx_ids(r, node);
                if (match->evicted_len < match->state_len) match->evicted_len = 0;
                return;
            }
        }
    }
}

/* What a node on the path, matched to its end, says about states. */
static void match_node(const struct rx_node *node, struct sc_radix_match *match, uint32_t *tailed)
{
    if (node->snapshot != 0) {
        match->state_node = node->id;
        match->state_len = match->kv_len;
        match->snapshot = node->snapshot;
        match->evicted_len = 0;
        *tailed = 0; /* those further up are shorter */
    } else if (node->flags & RX_TOMBSTONE) {
        match->evicted_len = match->kv_len;
    }
    if (node->flags & RX_TAILED) *tailed = node->id;
}

/* The same about the path that ends at `from`, from the deepest node that matters on. Returns the
 * deepest node whose tails may decide. */
static uint32_t match_begin(const struct rx_node *from, struct sc_radix_match *match)
{
    uint32_t tailed = 0;
    uint32_t evicted = 0;
    match->kv_len = rx_end(from);
    for (const struct rx_node *node = from; node; node = node->parent) {
        if (tailed == 0 && node->flags & RX_TAILED) tailed = node->id;
        if (evicted == 0 && node->flags & RX_TOMBSTONE) evicted = rx_end(node);
        if (node->snapshot != 0) {
            match->state_node = node->id;
            match->state_len = rx_end(node);
            match->snapshot = node->snapshot;
            break;
        }
    }
    match->evicted_len = evicted;
    if (from->parent) match->node = from->id;
    return tailed;
}

/* `from`: a root, or a node that the key is known to reach the end of. */
static void match_walk(const struct sc_radix *r, const struct sc_radix_key *key, uint32_t limit,
    const struct rx_node *from, struct sc_radix_match *match)
{
    uint32_t whole = rx_page_floor(r, limit);
    uint32_t tailed = match_begin(from, match); /* the deepest node whose tails may decide */
    struct rx_first first = {.tokens = key->tokens + match->kv_len, .start = match->kv_len,
        .len = r->page, .marks = key->marks, .mark_count = key->mark_count};
    rx_marks_skip(&first, first.start);
    const struct rx_node *node = whole > match->kv_len ? rx_child_find(r, from, &first) : NULL;
    while (node) {
        uint32_t left = whole - match->kv_len;
        rx_marks_skip(&first, first.start + r->page);
        uint32_t most = rx_marks_stop(r, &first, left < node->len ? left : node->len);
        const int32_t *tokens = first.tokens;
        /* The next step is found first, so that its memory comes while this run is compared. */
        const struct rx_node *next = NULL;
        if (most == node->len && left > most) {
            first.tokens += most;
            first.start += most;
            next = rx_child_find(r, node, &first);
            if (next) rx_run_prefetch(next);
        }
        uint32_t same = r->common(node->tokens, tokens, most);
        match->node = node->id;
        match->kv_len += rx_page_floor(r, same);
        if (same < node->len) break;
        match_node(node, match, &tailed);
        node = next;
    }
    if (tailed != 0) match_tail(r, key, limit, tailed, match);
    uint32_t branch = match->kv_len - match->kv_len % r->grid;
    if (branch > match->state_len) match->branch_len = branch;
}

static sc_status match_check(const struct sc_radix *r, uint32_t space,
    const struct sc_radix_key *key, const struct sc_radix_match *match_out)
{
    SC_REQUIRE(r != NULL && key != NULL && match_out != NULL);
    SC_REQUIRE(key->tokens != NULL || key->token_count == 0);
    SC_TRY(rx_marks_check(key->marks, key->mark_count));
    return rx_root(r, space) != 0 ? SC_OK : space_unknown(space);
}

sc_status sc_radix_match(const struct sc_radix *r, uint32_t space, const struct sc_radix_key *key,
    uint32_t len_max, struct sc_radix_match *match_out)
{
    SC_TRY(match_check(r, space, key, match_out));
    struct sc_radix_match match = {.tail_kv = -1};
    uint32_t limit = key->token_count < len_max ? key->token_count : len_max;
    match_walk(r, key, limit, rx_node(r, rx_root(r, space)), &match);
    *match_out = match;
    return SC_OK;
}

sc_status sc_radix_match_from(const struct sc_radix *r, uint32_t space, sc_node from,
    const struct sc_radix_key *key, uint32_t len_max, struct sc_radix_match *match_out)
{
    SC_TRY(match_check(r, space, key, match_out));
    struct sc_radix_match match = {.tail_kv = -1};
    uint32_t limit = key->token_count < len_max ? key->token_count : len_max;
    uint32_t id = rx_root(r, space);
    if (from != SC_NODE_NONE) {
        SC_TRY(rx_from_check(r, space, from, limit));
        SC_ASSERT_DEBUG(rx_path_equal(r, from, key));
        id = from;
    }
    match_walk(r, key, limit, rx_node(r, id), &match);
    *match_out = match;
    return SC_OK;
}

void sc_radix_prefetch(const struct sc_radix *r, uint32_t space, const struct sc_radix_key *key)
{
    uint32_t root = r && key && key->tokens && key->token_count >= r->page ? rx_root(r, space) : 0;
    if (root == 0) return;
    __builtin_prefetch(key->tokens + RX_LINE_TOKENS);
    struct rx_first first = {.tokens = key->tokens, .len = r->page, .marks = key->marks,
        .mark_count = key->marks ? key->mark_count : 0};
    const struct rx_node *node = rx_node(r, root);
    if (node->flags & RX_MANY) {
        rx_index_prefetch(r, root, &first);
    } else {
        for (uint32_t i = 0; i < 2 && node->child[i]; i++) {
            if (node->head[i] == first.tokens[0]) __builtin_prefetch(node->child[i]);
        }
    }
}

void sc_radix_touch(struct sc_radix *r, const struct sc_radix_match *match)
{
    if (!r || !match) return;
    if (rx_known(r, match->node)) rx_order_use(r, RX_KV, match->node);
    if (!rx_known(r, match->state_node) || rx_node(r, match->state_node)->snapshot == 0) return;
    rx_order_use(r, RX_STATE, match->state_node);
    /* A tail hangs beside the way to match->node, or below its end. */
    if (rx_node(r, match->state_node)->flags & RX_TAIL) rx_order_use(r, RX_KV, match->state_node);
}

/* --- memory back --- */

sc_status sc_radix_trim(struct sc_radix *r, uint64_t token_max, uint64_t *bytes_out)
{
    SC_REQUIRE(r != NULL);
    uint64_t before = r->bytes;
    rx_store_shrink(r); /* first, so that what the next step asks for is touched memory */
    if (token_max > 0) (void)rx_store_compact(r, token_max);
    rx_store_shrink(r);
    rx_nodes_shrink(r);
    rx_index_shrink(r);
    rx_order_shrink(r, RX_KV, r->leaf_count);
    rx_order_shrink(r, RX_STATE, r->snapshot_count);
    if (bytes_out) *bytes_out = before > r->bytes ? before - r->bytes : 0;
    return SC_OK;
}

void sc_radix_purge(const struct sc_radix *r)
{
    if (!r) return;
    struct sc_heap heap = r->heap;
    sc_heap_trim(&heap);
}

/* --- ids of a path --- */

/* One walk from the end to the root finds the last span first. If there were `total`, as guessed,
 * each is put where it belongs; what does not fit is only counted. */
struct span_walk { struct sc_radix_span *spans; uint32_t cap, total, count; };

static void span_add(struct span_walk *walk, struct sc_radix_span span)
{
    uint32_t index = walk->total - ++walk->count; /* huge when there are more than guessed */
    if (index < walk->cap) walk->spans[index] = span;
}

static void spans_walk(const struct sc_radix *r, const struct rx_node *node, uint32_t page_first,
    struct span_walk *walk)
{
    const struct rx_chunk *chunks = r->store.chunks;
    uint32_t from = page_first * r->page; /* no overflow: page_first is within the path */
    const int32_t *ids = NULL;            /* of the span that is being found */
    uint32_t extent = 0;                  /* its pages */
    while (rx_end(node) > from) {
        const struct rx_node *parent = node->parent;
        uint32_t skip = node->start < from ? from - node->start : 0;
        const struct rx_chunk *chunk = &chunks[node->chunk];
        ids = chunk->ids + rx_page_of(r, (uint32_t)(node->tokens - chunk->tokens) + skip);
        extent += rx_pages(r, node->len - skip);
        bool follows = parent->chunk == node->chunk && parent->len > 0 &&
            parent->tokens + parent->len == node->tokens && node->start > from;
        if (!follows) {
            span_add(walk, (struct sc_radix_span){ids, rx_page_of(r, node->start + skip), extent});
            extent = 0;
        }
        node = parent;
    }
}

sc_status sc_radix_spans(const struct sc_radix *r, sc_node node, uint32_t page_first,
    struct sc_radix_span *spans_out, uint32_t cap, uint32_t *count_out)
{
    SC_REQUIRE(r != NULL && count_out != NULL && (spans_out != NULL || cap == 0));
    if (!r->with_kv) return SC_FAIL(SC_ERR_STATE, "an index without KV holds no ids");
    if (node != SC_NODE_NONE && !rx_known(r, node)) {
        return SC_FAIL(SC_ERR_STALE, "node %u does not exist", node);
    }
    uint32_t pages = node == SC_NODE_NONE ? 0 : rx_pages(r, rx_end(rx_node(r, node)));
    if (page_first > pages) {
        return SC_FAIL(SC_ERR_INVALID, "page %u is behind the end, %u", page_first, pages);
    }
    struct span_walk walk = {spans_out, cap, cap, 0};
    if (node != SC_NODE_NONE) spans_walk(r, rx_node(r, node), page_first, &walk);
    *count_out = walk.count;
    if (walk.count <= cap) { /* most often: one walk, and what it found goes to the front */
        if (walk.count > 0) {
            memmove(spans_out, spans_out + cap - walk.count, walk.count * sizeof *spans_out);
        }
        return SC_OK;
    }
    walk = (struct span_walk){spans_out, cap, walk.count, 0};
    spans_walk(r, rx_node(r, node), page_first, &walk);
    return SC_FAIL(SC_ERR_LIMIT, "%u spans do not fit %u", *count_out, cap);
}
