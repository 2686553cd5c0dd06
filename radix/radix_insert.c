/* SPDX-License-Identifier: Apache-2.0 */
/* Insert, in three parts: look (writes nothing), reserve (may fail, changes nothing that can be
 * seen), apply (cannot fail).
 *
 *   key            |aaaaaaaaaaaaaaaa|bbbbbbbb|cccccccccccc|      runs a, b, c; saves at ^
 *                          ^        ^                     ^
 *   held before    |aaaaaaaaaaaaaaaaaaaaa|                       same tokens for a while
 *   prefix         |----------------|                            equal tokens and equal history
 *
 * The walk ends where the tokens part, where the key or the tree ends, or where both have the page
 * but disagree about its history (the victim). A locked victim stops the insert there. One without
 * locks is replaced, if it holds no snapshot or the insert brings one that lies beyond: the key was
 * just computed, and a branch that it cannot pass would keep every later save out.
 *
 * New nodes end at saves, where the history changes, before a page with marks, and where storage
 * cut the run; a tail is a node of its own and takes a page of storage. Afterwards one walk from
 * the last node up to the root cuts the held part at its saves.
 *
 * A tail that the tree holds already is part of the prefix; one of another history is a victim as
 * others are (a key with a tail always brings a snapshot). */
#include "radix_internal.h"

struct plan {
    uint32_t root;
    uint32_t whole;     /* token_count cut to pages; what lies beyond is a tail */
    uint32_t at;        /* deepest node of the prefix, or the root; the prefix may end inside it */
    uint32_t prefix;    /* tokens held with this history */
    uint32_t victim;    /* holds the page at `prefix` with another history; 0: none */
    uint64_t freed;     /* tokens that go with the victim */
    uint32_t end;       /* token_count, or prefix where something else stays */
};

static sc_status runs_check(const struct sc_radix *r, const struct sc_radix_insert *in)
{
    SC_REQUIRE(in->run_count == 0 || in->runs != NULL);
    if (in->token_count == 0) return SC_OK;
    if (in->run_count == 0 || in->runs[0].start != 0) {
        return SC_FAIL(SC_ERR_INVALID, "the first run of history must start at 0");
    }
    for (uint32_t i = 1; i < in->run_count; i++) {
        if (in->runs[i].start % r->page != 0 || in->runs[i].start <= in->runs[i - 1].start) {
            return SC_FAIL(SC_ERR_INVALID, "run %u starts at %u: not a page or not ascending", i,
                in->runs[i].start);
        }
    }
    return SC_OK;
}

static sc_status saves_check(const struct sc_radix *r, const struct sc_radix_insert *in)
{
    for (uint32_t i = 0; i < in->save_count; i++) {
        const struct sc_radix_save *save = &in->saves[i];
        bool at_end = save->len % r->page == 0 || save->len == in->token_count;
        if (save->len == 0 || save->len > in->token_count || !at_end) {
            return SC_FAIL(SC_ERR_MISMATCH, "a snapshot after %u tokens is at no page end of a "
                "key of %u", save->len, in->token_count);
        }
        if (save->snapshot == 0) return SC_FAIL(SC_ERR_INVALID, "save %u has snapshot 0", i);
        if (i > 0 && save->len <= in->saves[i - 1].len) {
            return SC_FAIL(SC_ERR_INVALID, "save %u is not behind the one before", i);
        }
    }
    return SC_OK;
}

static sc_status marks_check(const struct sc_radix_insert *in)
{
    SC_TRY(rx_marks_check(in->marks, in->mark_count));
    if (in->mark_count > 0 && in->marks[in->mark_count - 1].at >= in->token_count) {
        return SC_FAIL(SC_ERR_INVALID, "a mark at %u lies behind a key of %u tokens",
            in->marks[in->mark_count - 1].at, in->token_count);
    }
    return SC_OK;
}

/* Whole pages, or a tail: the last save ends where the key does. */
static sc_status end_check(const struct sc_radix *r, const struct sc_radix_insert *in)
{
    if (in->token_count % r->page == 0) return SC_OK;
    if (in->save_count == 0 || in->saves[in->save_count - 1].len != in->token_count) {
        return SC_FAIL(SC_ERR_INVALID, "%u tokens are not whole pages of %u, and no save is there",
            in->token_count, r->page);
    }
    if (in->token_count > UINT32_MAX - r->page) {
        return SC_FAIL(SC_ERR_LIMIT, "a page beyond %u tokens has no number", in->token_count);
    }
    return SC_OK;
}

static sc_status insert_check(const struct sc_radix *r, const struct sc_radix_insert *in,
    const sc_status *save_status_out)
{
    SC_REQUIRE(in->tokens != NULL || in->token_count == 0);
    SC_REQUIRE(in->save_count == 0 || (in->saves != NULL && save_status_out != NULL));
    SC_TRY(marks_check(in));
    SC_TRY(end_check(r, in));
    if (r->with_kv ? in->kv_ids == NULL && in->token_count > 0 : in->kv_ids != NULL) {
        return SC_FAIL(SC_ERR_INVALID, "kv_ids must be given with KV, and only then");
    }
    SC_TRY(runs_check(r, in));
    SC_TRY(saves_check(r, in));
    if (rx_root(r, in->space) == 0) {
        return SC_FAIL(SC_ERR_NOT_FOUND, "space %u does not exist", in->space);
    }
    if (in->from == SC_NODE_NONE) return SC_OK;
    SC_TRY(rx_from_check(r, in->space, in->from, in->token_count));
    SC_ASSERT_DEBUG(rx_path_equal(r, in->from,
        &(struct sc_radix_key){in->tokens, in->token_count, NULL, 0}));
    return SC_OK;
}

/* The first position in [from, to) at which the key's history is not `history`; `to` if none.
 * `*run` is the run that holds `from`, and then the one that holds the answer. */
static uint32_t history_differs(const struct sc_radix_insert *in, uint32_t *run, uint32_t from,
    uint32_t to, uint64_t history)
{
    for (;;) {
        if (in->runs[*run].history != history) return from;
        if (*run + 1 == in->run_count || in->runs[*run + 1].start >= to) return to;
        from = in->runs[++*run].start;
    }
}

/* The tail of the key, if the tree has it. */
static void plan_tail(const struct sc_radix *r, const struct sc_radix_insert *in, uint32_t run,
    const struct rx_first *first, struct plan *plan)
{
    if (plan->prefix != rx_end(rx_node(r, plan->at))) return; /* inside a node: none hangs there */
    const struct rx_node *tail = rx_child_find(r, rx_node(r, plan->at), first);
    if (!tail) return;
    while (run + 1 < in->run_count && in->runs[run + 1].start <= plan->whole) run++;
    if (in->runs[run].history != rx_use(r, tail->id)->history) {
        plan->victim = tail->id;
        return;
    }
    plan->at = tail->id;
    plan->prefix = in->token_count;
}

static void plan_walk(const struct sc_radix *r, const struct sc_radix_insert *in,
    struct plan *plan)
{
    uint32_t run = 0;
    uint64_t history = in->from != SC_NODE_NONE ? rx_use(r, in->from)->history : 0;
    struct rx_first first = {.marks = in->marks, .mark_count = in->mark_count};
    plan->at = in->from != SC_NODE_NONE ? in->from : plan->root;
    plan->prefix = rx_end(rx_node(r, plan->at));
    plan->victim = 0;
    rx_marks_skip(&first, plan->prefix);
    while (plan->prefix < in->token_count) {
        uint32_t left = plan->whole - plan->prefix;
        first.tokens = in->tokens + plan->prefix;
        first.start = plan->prefix;
        first.len = left > 0 ? r->page : in->token_count - plan->whole;
        if (left == 0) {
            plan_tail(r, in, run, &first, plan);
            return;
        }
        const struct rx_node *node = rx_child_find(r, rx_node(r, plan->at), &first);
        if (!node) return;
        if (!(node->flags & RX_SAME)) history = rx_use(r, node->id)->history;
        rx_marks_skip(&first, first.start + r->page);
        uint32_t most = rx_marks_stop(r, &first, left < node->len ? left : node->len);
        uint32_t same = rx_page_floor(r, r->common(node->tokens, first.tokens, most));
        while (run + 1 < in->run_count && in->runs[run + 1].start <= plan->prefix) run++;
        uint32_t to = plan->prefix + same;
        uint32_t differs = history_differs(in, &run, plan->prefix, to, history);
        if (differs > plan->prefix) plan->at = node->id;
        plan->prefix = differs;
        if (differs < to) {
            plan->victim = node->id;
            return;
        }
        if (same < node->len) return;
    }
}

/* Whether everything from `plan->prefix` on in the victim and below may go. Sets plan->freed. A
 * branch too large to look at counts as in use: no call is O(tree). */
static bool victim_replaceable(const struct sc_radix *r, const struct sc_radix_insert *in,
    struct plan *plan)
{
    const struct rx_node *victim = rx_node(r, plan->victim);
    plan->freed = 0;
    if (rx_use(r, plan->victim)->pin > 0) return false; /* (6): nothing below is locked either */
    bool brings = in->save_count > 0 && in->saves[in->save_count - 1].len > plan->prefix;
    uint32_t visited = 0;
    uint32_t id = plan->victim;
    for (; id != 0; id = rx_preorder_next(r, plan->victim, id)) {
        if (++visited > RX_SUBTREE_MAX) return false;
        if (rx_node(r, id)->snapshot != 0 && !brings) return false;
        plan->freed += rx_node(r, id)->len;
    }
    plan->freed -= plan->prefix - victim->start;
    return true;
}

/* Everything that can fail. On success `r->store.pieces` has room for the new part. */
static sc_status reserve(struct sc_radix *r, const struct sc_radix_insert *in,
    const struct plan *plan)
{
    uint32_t added = plan->end - plan->prefix;
    if (r->token_max != 0 && r->token_count - plan->freed + added > r->token_max) {
        return SC_FAIL(SC_ERR_LIMIT, "%u more tokens would pass the limit", added);
    }
    if (added > 0 && !rx_store_alloc(r, rx_pages(r, added) * r->page, plan->prefix)) {
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u tokens", added);
    }
    uint64_t marks = in->mark_count; /* of the new part; each may start a node */
    while (marks > 0 && in->marks[in->mark_count - marks].at < plan->prefix) marks--;
    uint64_t nodes = marks + in->save_count + in->run_count + r->store.piece_count + 3;
    if (!rx_cells_reserve(r, marks + 1) || !rx_nodes_reserve(r, nodes) ||
        !rx_index_reserve(r, nodes) ||
        !rx_order_reserve(r, RX_KV, r->leaf_count + 1) ||
        !rx_order_reserve(r, RX_STATE, r->snapshot_count + in->save_count)) {
        rx_store_abandon(r);
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %llu nodes", (unsigned long long)nodes);
    }
    return SC_OK;
}

/* Makes room for the new part and returns the node that ends at plan->prefix (or the root). */
static uint32_t prefix_end(struct sc_radix *r, const struct plan *plan,
    const struct sc_radix_sink *sink)
{
    if (plan->victim != 0 && plan->end > plan->prefix) {
        if (plan->victim == plan->at) {
            rx_truncate(r, plan->at, plan->prefix - rx_node(r, plan->at)->start, sink,
                SC_RADIX_CAUSE_HISTORY);
        } else {
            rx_subtree_remove(r, plan->victim, sink, SC_RADIX_CAUSE_HISTORY);
        }
    }
    const struct rx_node *at = rx_node(r, plan->at);
    if (plan->prefix == rx_end(at)) return plan->at;
    return rx_split(r, plan->at, plan->prefix - at->start);
}

/* Where the new part stands in the arrays of the key. */
struct cursor { uint32_t start, run, save; struct rx_first marks; };

/* Where the node that starts at the cursor ends, `most` at the latest. */
static uint32_t node_end(const struct sc_radix *r, const struct sc_radix_insert *in,
    struct cursor *c, uint32_t most)
{
    uint32_t end = most;
    uint32_t whole = in->token_count - in->token_count % r->page;
    if (c->start < whole && whole < end) end = whole; /* a tail is a node of its own */
    while (c->run + 1 < in->run_count && in->runs[c->run + 1].start <= c->start) c->run++;
    for (uint32_t i = c->run + 1; i < in->run_count && in->runs[i].start < end; i++) {
        if (in->runs[i].history == in->runs[c->run].history) continue;
        end = in->runs[i].start;
    }
    while (c->save < in->save_count && in->saves[c->save].len <= c->start) c->save++;
    if (c->save < in->save_count && in->saves[c->save].len < end) end = in->saves[c->save].len;
    return c->start + rx_marks_stop(r, &c->marks, end - c->start);
}

/* The node of the key's tokens from the cursor on that lie at `pos` of a chunk, `most` at the
 * latest; the cursor moves behind it. */
static uint32_t node_add(struct sc_radix *r, const struct sc_radix_insert *in, struct cursor *c,
    struct rx_piece piece, uint32_t pos, uint32_t most, uint32_t parent)
{
    uint32_t id = rx_node_new(r);
    struct rx_node *node = rx_node(r, id);
    const sc_mark *marks = c->marks.marks;
    uint32_t mark_count = c->marks.mark_count;
    c->marks.start = c->start;
    rx_marks_skip(&c->marks, c->start + r->page);
    rx_marks_set(r, id, marks, mark_count - c->marks.mark_count);
    uint32_t end = node_end(r, in, c, most);
    node->tokens = r->store.chunks[piece.chunk].tokens + pos;
    rx_use(r, id)->history = in->runs[c->run].history;
    node->chunk = piece.chunk;
    node->start = c->start;
    node->len = end - c->start;
    rx_use(r, id)->space = in->space;
    rx_store_link(r, id, 0);
    if (node->len < r->page) node->flags |= RX_TAIL;
    const struct rx_node *above = rx_node(r, parent);
    bool same = !(above->flags & RX_ROOT) && rx_use(r, parent)->history == rx_use(r, id)->history;
    if (same) node->flags |= RX_SAME;
    rx_use(r, id)->tick[RX_KV] = r->clock;
    rx_child_link(r, parent, id);
    r->node_count++;
    r->token_count += node->len;
    c->start = end;
    return id;
}

/* Hangs the new part below `parent`, out of the reserved pieces; returns the last node. */
static uint32_t chain_add(struct sc_radix *r, const struct sc_radix_insert *in,
    const struct plan *plan, uint32_t parent)
{
    struct rx_store *store = &r->store;
    struct cursor c = {.start = plan->prefix,
        .marks = {.marks = in->marks, .mark_count = in->mark_count}};
    uint32_t first_parent = parent;
    rx_marks_skip(&c.marks, plan->prefix);
    r->clock++;
    for (uint32_t i = 0; i < store->piece_count; i++) {
        struct rx_piece piece = store->pieces[i];
        const struct rx_chunk *chunk = &store->chunks[piece.chunk];
        uint32_t begin = c.start;
        uint32_t len = plan->end - begin < piece.len ? plan->end - begin : piece.len;
        memcpy(chunk->tokens + piece.pos, in->tokens + begin, len * sizeof(int32_t));
        if (r->with_kv) {
            memcpy(chunk->ids + piece.pos / r->page, in->kv_ids + begin / r->page,
                rx_pages(r, len) * sizeof(int32_t));
        }
        while (c.start < begin + len) {
            uint32_t pos = piece.pos + (c.start - begin);
            if (c.start > begin) rx_store_cut(r, piece.chunk, pos);
            parent = node_add(r, in, &c, piece, pos, begin + len, parent);
        }
    }
    store->piece_count = 0; /* the nodes hold them now */
    rx_kv_order_sync(r, first_parent);
    rx_kv_order_sync(r, parent);
    return parent;
}

/* Attaches the saves up to plan->end, deepest first, from the path that ends at `id`. */
static void saves_apply(struct sc_radix *r, const struct sc_radix_insert *in, uint32_t end,
    uint32_t id, sc_status *save_status_out)
{
    for (uint32_t i = in->save_count; i-- > 0;) {
        const struct sc_radix_save *save = &in->saves[i];
        if (save->len > end) {
            save_status_out[i] = SC_ERR_MISMATCH;
            continue;
        }
        while (rx_node(r, id)->start >= save->len) id = rx_parent(r, id);
        if (rx_end(rx_node(r, id)) > save->len) {
            id = rx_split(r, id, save->len - rx_node(r, id)->start);
        }
        save_status_out[i] = rx_node(r, id)->snapshot != 0 ? SC_ERR_BUSY : SC_OK;
        if (save_status_out[i] == SC_OK) rx_snapshot_attach(r, id, save->snapshot);
    }
}

static void canonical_copy(const struct sc_radix *r, uint32_t id, int32_t *canonical_out)
{
    for (const struct rx_node *node = rx_node(r, id); node->len > 0; node = node->parent) {
        memcpy(canonical_out + node->start / r->page, rx_ids(r, node),
            rx_pages(r, node->len) * sizeof(int32_t));
    }
}

sc_status sc_radix_insert(struct sc_radix *r, const struct sc_radix_insert *insert,
    const struct sc_radix_sink *sink, int32_t *canonical_out, sc_status *save_status_out,
    struct sc_radix_inserted *inserted_out)
{
    SC_REQUIRE(r != NULL && insert != NULL && inserted_out != NULL);
    SC_TRY(rx_sink_check(r, sink));
    SC_TRY(insert_check(r, insert, save_status_out));

    struct plan plan = {.root = rx_root(r, insert->space), .end = insert->token_count,
        .whole = insert->token_count - insert->token_count % r->page};
    plan_walk(r, insert, &plan);
    if (plan.victim != 0 && !victim_replaceable(r, insert, &plan)) {
        plan.end = plan.prefix;
        plan.freed = 0;
    }
    SC_TRY(reserve(r, insert, &plan));

    uint32_t id = prefix_end(r, &plan, sink);
    if (plan.end > plan.prefix) id = chain_add(r, insert, &plan, id);
    saves_apply(r, insert, plan.end, id, save_status_out);
    if (canonical_out && r->with_kv) canonical_copy(r, id, canonical_out);
    *inserted_out = (struct sc_radix_inserted){.node = plan.end > 0 ? id : SC_NODE_NONE,
        .prefix_len = plan.prefix, .len = plan.end, .conflict_len = plan.end};
    return SC_OK;
}
