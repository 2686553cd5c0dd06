/* SPDX-License-Identifier: Apache-2.0 */
/* sc_radix_verify: a recount of everything, checked against the invariants of radix.c by number. */
#include "radix_internal.h"

/* What a walk over all nodes counts. The arrays are scratch of the call. */
struct recount {
    const struct sc_radix *r;
    uint16_t *unit_refs;   /* [chunk_count * RX_CHUNK_UNITS] */
    uint32_t *chunk_live;  /* tokens in whole pages; [chunk_count] */
    uint32_t *held[2];     /* receipts by node: KV, state; [node ids] */
    uint32_t *cell_tails;  /* tails of its length that were found; [cell_cap] */
    uint32_t ids;          /* node ids in the slab */
    uint64_t cells, marks, tails, tail_tokens;
    uint64_t chunks;       /* whose youngest node was found */
    uint64_t roots, nodes, leaves, tokens, pinned, snapshots, state_locked, in_order[RX_KIND_COUNT];
};

#define CHECK(rule, id, cond)                                                                      \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            return SC_FAIL(SC_ERR_CORRUPT, "invariant %d, node %u: not %s", rule, id, #cond);      \
        }                                                                                          \
    } while (0)

static sc_status verify_receipts(struct recount *c)
{
    const struct sc_radix *r = c->r;
    uint64_t live = 0;
    for (uint32_t i = 1; i < r->receipt_cap; i++) {
        const struct rx_receipt *receipt = &r->receipts[i];
        if (!receipt->live) continue;
        live++;
        if (receipt->what == 0) continue; /* holds nothing; its node may be gone */
        CHECK(6, receipt->node, rx_known(r, receipt->node));
        if (receipt->what & SC_RADIX_LOCK_KV) c->held[RX_KV][receipt->node]++;
        if (receipt->what & SC_RADIX_LOCK_STATE) c->held[RX_STATE][receipt->node]++;
    }
    CHECK(10, 0, live == r->receipt_count);
    uint64_t unused = 0;
    for (uint32_t i = r->receipt_free; i != 0; i = r->receipts[i].node) {
        CHECK(10, 0, i < r->receipt_cap && !r->receipts[i].live && ++unused < r->receipt_cap);
    }
    CHECK(10, 0, live + unused + (r->receipt_cap > 0) == r->receipt_cap); /* index 0 is none */
    return SC_OK;
}

/* The list of cells: marks of the first page, then lengths, as (12) and (13) say. */
static sc_status verify_cells(struct recount *c, uint32_t id)
{
    const struct sc_radix *r = c->r;
    const struct rx_node *node = rx_node(r, id);
    uint32_t first = rx_first_len(r, node);
    uint32_t marks = 0;
    uint32_t lengths = 0;
    uint32_t prev = 0;
    for (uint32_t cell = rx_cells(node); cell != 0; cell = r->cells[cell].next) {
        CHECK(12, id, cell < r->cell_cap && ++c->cells < r->cell_cap);
        const struct rx_cell *now = &r->cells[cell];
        const struct rx_cell *before = prev != 0 ? &r->cells[prev] : NULL;
        if (now->tails == 0) {
            CHECK(12, id, lengths == 0);
            CHECK(12, id, now->mark.at >= node->start && now->mark.at - node->start < first);
            CHECK(12, id, !before || before->mark.at < now->mark.at);
            marks++;
        } else {
            CHECK(13, id, now->mark.at > 0 && now->mark.at < r->page);
            CHECK(13, id, lengths == 0 || before->mark.at < now->mark.at);
            CHECK(13, id, now->tails == c->cell_tails[cell]);
            lengths++;
        }
        prev = cell;
    }
    CHECK(12, id, (marks > 0) == ((node->flags & RX_MARKED) != 0));
    CHECK(13, id, (lengths > 0) == ((node->flags & RX_TAILED) != 0));
    c->marks += marks;
    return SC_OK;
}

static sc_status verify_tail(struct recount *c, uint32_t parent, uint32_t id)
{
    const struct sc_radix *r = c->r;
    const struct rx_node *node = rx_node(r, id);
    CHECK(13, id, node->flags & RX_TAIL ? node->len < r->page : node->len >= r->page);
    if (!(node->flags & RX_TAIL)) return SC_OK;
    CHECK(13, id, rx_use(r, id)->child_count == 0 && !node->child[0]);
    CHECK(13, id, node->snapshot != 0);
    uint32_t left = r->cell_cap;
    uint32_t cell = rx_tail_cells(r, rx_node(r, parent));
    while (cell != 0 && r->cells[cell].mark.at != node->len && left-- > 0) {
        cell = r->cells[cell].next;
    }
    CHECK(13, id, cell != 0 && left > 0);
    c->cell_tails[cell]++;
    c->tails++;
    c->tail_tokens += node->len;
    return SC_OK;
}

static bool alive(const struct recount *c, uint32_t id)
{
    return id < c->ids && c->r->blocks[id / RX_NODE_BLOCK] && rx_node(c->r, id)->flags & RX_LIVE;
}

/* The run of a node lies in used units of its chunk. */
static sc_status verify_run(struct recount *c, uint32_t id)
{
    const struct sc_radix *r = c->r;
    const struct rx_node *node = rx_node(r, id);
    const struct rx_store *s = &r->store;
    CHECK(1, id, node->len > 0 && node->start % r->page == 0);
    CHECK(1, id, node->len < r->page || node->len % r->page == 0);
    CHECK(5, id, node->chunk > 0 && node->chunk < s->chunk_count);
    const struct rx_chunk *chunk = &s->chunks[node->chunk];
    CHECK(5, id, node->tokens >= chunk->tokens);
    uint32_t pos = rx_pos(r, node);
    uint64_t room = (uint64_t)chunk->unit_count * s->unit_tokens;
    CHECK(5, id, (uint64_t)pos + (uint64_t)rx_pages(r, node->len) * r->page <= room);
    CHECK(5, id, pos % r->page == 0);
    const struct rx_use *use = rx_use(r, id);
    CHECK(14, id, alive(c, use->chunk_next) && alive(c, use->chunk_prev));
    CHECK(14, id, rx_use(r, use->chunk_next)->chunk_prev == id);
    CHECK(14, id, rx_node(r, use->chunk_next)->chunk == node->chunk);
    if (chunk->node == id) c->chunks++;
    c->chunk_live[node->chunk] += rx_pages(r, node->len) * r->page;
    for (uint32_t unit = pos / s->unit_tokens; unit <= (pos + node->len - 1) / s->unit_tokens;
         unit++) {
        c->unit_refs[(size_t)node->chunk * RX_CHUNK_UNITS + unit]++;
    }
    return SC_OK;
}

static sc_status verify_links(struct recount *c, uint32_t id, uint64_t *pinned_out)
{
    const struct sc_radix *r = c->r;
    const struct rx_node *node = rx_node(r, id);
    uint32_t count = 0;
    uint32_t prev = 0;
    *pinned_out = 0;
    for (uint32_t child = rx_id(node->child[0]); child != 0;) {
        CHECK(3, id, rx_known(r, child));
        const struct rx_node *n = rx_node(r, child);
        CHECK(3, child, n->id == child && n->parent == node);
        CHECK(3, child, rx_use(r, child)->prev_sibling == prev);
        CHECK(1, child, n->start == rx_end(node));
        bool same = node->parent && rx_use(r, child)->history == rx_use(r, id)->history;
        CHECK(15, child, same == ((n->flags & RX_SAME) != 0));
        CHECK(4, child, rx_use(r, child)->space == rx_use(r, id)->space);
        CHECK(2, child, rx_index_holds(r, child));
        CHECK(3, child, count > 1 || node->child[count] == n);
        CHECK(3, child, count > 1 || node->head[count] == n->tokens[0]);
        CHECK(3, child, ++count <= rx_use(r, id)->child_count);
        SC_TRY(verify_tail(c, id, child));
        if (rx_use(r, child)->pin > 0) ++*pinned_out;
        prev = child;
        child = rx_use(r, child)->next_sibling;
    }
    CHECK(3, id, count == rx_use(r, id)->child_count);
    CHECK(3, id, (count > 2) == ((node->flags & RX_MANY) != 0));
    CHECK(3, id, count > 0 || !node->child[0]);
    CHECK(3, id, count > 1 || !node->child[1]);
    return SC_OK;
}

static sc_status verify_node(struct recount *c, uint32_t id)
{
    const struct sc_radix *r = c->r;
    const struct rx_node *node = rx_node(r, id);
    const struct rx_use *use = rx_use(r, id);
    uint64_t pinned_children;
    SC_TRY(verify_links(c, id, &pinned_children));
    SC_TRY(verify_cells(c, id));
    CHECK(6, id, use->kv_locks == c->held[RX_KV][id] && use->state_locks == c->held[RX_STATE][id]);
    CHECK(6, id, use->pin == (uint64_t)use->kv_locks + use->state_locks + pinned_children);
    if (node->flags & RX_ROOT) {
        CHECK(1, id, node->start == 0 && node->len == 0 && !node->parent);
        CHECK(8, id, node->snapshot == 0);
        return SC_OK;
    }
    SC_TRY(verify_run(c, id));
    CHECK(8, id, use->state_locks == 0 || node->snapshot != 0);
    CHECK(8, id, node->snapshot == 0 || !(node->flags & RX_TOMBSTONE));
    CHECK(7, id, (use->place[RX_KV] != 0) == (!node->child[0] && use->pin == 0));
    CHECK(8, id, (use->place[RX_STATE] != 0) == (node->snapshot != 0 && !rx_state_held(r, id)));
    for (int kind = 0; kind < RX_KIND_COUNT; kind++) {
        if (use->place[kind] == 0) continue;
        CHECK(11, id, use->place[kind] <= r->order[kind].count);
        CHECK(11, id, r->order[kind].entries[use->place[kind] - 1].node == id);
        CHECK(9, id, use->tick[kind] <= r->clock);
        c->in_order[kind]++;
    }
    c->nodes++;
    c->tokens += node->len;
    if (!node->child[0]) c->leaves++;
    if (use->pin > 0) c->pinned += node->len;
    if (node->snapshot != 0) c->snapshots++;
    if (node->snapshot != 0 && rx_state_held(r, id)) c->state_locked++;
    return SC_OK;
}

static sc_status verify_order(const struct sc_radix *r, enum rx_kind kind)
{
    const struct rx_heap *heap = &r->order[kind];
    for (uint32_t i = 0; i < heap->count; i++) {
        uint32_t id = heap->entries[i].node;
        CHECK(11, id, rx_known(r, id));
        CHECK(11, id, rx_use(r, id)->tick[kind] == heap->entries[i].tick);
        CHECK(11, id, i == 0 ||
            heap->entries[(i - 1) / RX_HEAP_WAYS].tick <= heap->entries[i].tick);
    }
    return SC_OK;
}

static sc_status verify_store(const struct recount *c)
{
    const struct rx_store *s = &c->r->store;
    if (s->cursor_chunk != 0) {
        CHECK(5, 0, s->cursor_chunk < s->chunk_count && s->cursor_pos % s->unit_tokens != 0);
        c->unit_refs[(size_t)s->cursor_chunk * RX_CHUNK_UNITS + s->cursor_pos / s->unit_tokens]++;
    }
    uint64_t partial = 0;
    uint64_t empty = 0;
    uint64_t unit_total = 0;
    uint64_t unit_free = 0;
    uint64_t in_use = 0; /* chunks with nodes */
    uint64_t live = 0;
    for (uint32_t i = 1; i < s->chunk_count; i++) {
        const struct rx_chunk *chunk = &s->chunks[i];
        bool any_used = false;
        for (uint32_t unit = 0; unit < chunk->unit_count; unit++) {
            uint16_t refs = c->unit_refs[(size_t)i * RX_CHUNK_UNITS + unit];
            CHECK(5, 0, chunk->refs[unit] == refs);
            CHECK(5, 0, (chunk->free_units >> unit & 1) == (refs == 0));
            if (refs != 0) any_used = true;
        }
        if (chunk->unit_count < 64) CHECK(5, 0, chunk->free_units >> chunk->unit_count == 0);
        CHECK(5, 0, chunk->live == c->chunk_live[i]);
        CHECK(14, 0, (chunk->live > 0) == (chunk->node != 0));
        live += chunk->live;
        unit_total += chunk->unit_count;
        unit_free += (uint64_t)__builtin_popcountll(chunk->free_units);
        if (chunk->node != 0) in_use++;
        if (chunk->free_units != 0) partial++;
        if (chunk->unit_count > 0 && !any_used) empty++;
    }
    CHECK(5, 0, unit_total == s->unit_total && unit_free == s->unit_free);
    CHECK(5, 0, empty == s->empty_count && live == s->live);
    CHECK(14, 0, in_use == c->chunks);
    uint32_t prev = 0;
    for (uint32_t i = s->partial; i != 0; i = s->chunks[i].next) {
        CHECK(5, 0, i < s->chunk_count && s->chunks[i].free_units != 0);
        CHECK(5, 0, s->chunks[i].prev == prev && partial-- > 0);
        prev = i;
    }
    CHECK(5, 0, partial == 0);
    return SC_OK;
}

/* Indices of chunks without memory. */
static sc_status verify_unused_chunks(const struct rx_store *s)
{
    uint64_t without = 0;
    for (uint32_t i = 1; i < s->chunk_count; i++) without += s->chunks[i].unit_count == 0;
    for (uint32_t i = s->unused; i != 0; i = s->chunks[i].next) {
        CHECK(5, 0, i < s->chunk_count && s->chunks[i].unit_count == 0 && without-- > 0);
    }
    CHECK(5, 0, without == 0);
    return SC_OK;
}

/* No slot but those of live nodes, each of which has been found (2); and what all of it takes. */
static sc_status verify_memory(const struct recount *c)
{
    const struct sc_radix *r = c->r;
    const struct rx_store *s = &r->store;
    uint64_t slots = r->slots ? (uint64_t)r->slot_mask + 1 : 0;
    uint64_t used = 0;
    for (uint64_t i = 0; i < slots; i++) used += r->slots[i].node != 0;
    CHECK(2, 0, used == r->slot_used);
    uint64_t bytes = sizeof *r + slots * sizeof *r->slots + r->block_cap * sizeof *r->blocks +
        r->cell_cap * sizeof *r->cells + r->receipt_cap * sizeof *r->receipts +
        r->space_cap * sizeof *r->roots + s->chunk_cap * sizeof *s->chunks +
        s->piece_cap * sizeof *s->pieces;
    for (int kind = 0; kind < RX_KIND_COUNT; kind++) {
        bytes += r->order[kind].cap * sizeof *r->order[kind].entries;
    }
    for (uint32_t b = 0; b < r->block_count; b++) {
        if (r->blocks[b]) bytes += sizeof *r->blocks[b];
    }
    uint64_t ids = r->with_kv ? s->unit_pages : 0;
    bytes += s->unit_total * (s->unit_tokens + ids) * sizeof(int32_t);
    CHECK(10, 0, bytes == r->bytes);
    return SC_OK;
}

static sc_status verify_free_cells(const struct recount *c)
{
    const struct sc_radix *r = c->r;
    uint64_t unused = 0;
    for (uint32_t cell = r->cell_free; cell != 0; cell = r->cells[cell].next) {
        CHECK(12, 0, cell < r->cell_cap && ++unused <= r->cell_free_count);
    }
    uint64_t cells = r->cell_cap < RX_CELL_MAX ? r->cell_cap : RX_CELL_MAX;
    CHECK(12, 0, unused == r->cell_free_count && c->cells + unused == (cells > 0 ? cells - 1 : 0));
    CHECK(10, 0, c->marks == r->mark_count);
    CHECK(10, 0, c->tails == r->tail_count);
    CHECK(10, 0, c->tail_tokens == r->tail_tokens);
    return SC_OK;
}

static sc_status verify_counts(const struct recount *c)
{
    const struct sc_radix *r = c->r;
    CHECK(10, 0, c->nodes == r->node_count);
    CHECK(10, 0, c->leaves == r->leaf_count);
    CHECK(10, 0, c->tokens == r->token_count);
    CHECK(10, 0, c->pinned == r->pinned_tokens);
    CHECK(10, 0, c->snapshots == r->snapshot_count);
    CHECK(10, 0, c->state_locked == r->state_locked_count);
    CHECK(7, 0, c->in_order[RX_KV] == r->order[RX_KV].count);
    CHECK(8, 0, c->in_order[RX_STATE] == r->order[RX_STATE].count);
    CHECK(11, 0, r->leaf_count <= r->order[RX_KV].cap);
    CHECK(11, 0, r->snapshot_count <= r->order[RX_STATE].cap);
    CHECK(2, 0, c->nodes == r->slot_used);
    uint64_t live = 0;
    uint64_t ids = 0;
    for (uint32_t b = 0; b < r->block_count; b++) {
        if (!r->blocks[b]) continue;
        uint32_t of_block = 0;
        for (uint32_t i = 0; i < RX_NODE_BLOCK; i++) {
            if (r->blocks[b]->nodes[i].flags & RX_LIVE) of_block++;
        }
        CHECK(4, b * RX_NODE_BLOCK, of_block == r->blocks[b]->live);
        live += of_block;
        ids += b == 0 ? RX_NODE_BLOCK - 1u : RX_NODE_BLOCK; /* id 0 is none */
    }
    CHECK(4, 0, live == c->nodes + c->roots);
    CHECK(4, 0, live + r->node_free_count == ids);
    uint64_t unused = 0;
    for (uint32_t id = r->node_free; id != 0; id = rx_node(r, id)->start) {
        CHECK(4, id, id < c->ids && r->blocks[id / RX_NODE_BLOCK] &&
            !(rx_node(r, id)->flags & RX_LIVE));
        CHECK(4, id, ++unused <= r->node_free_count);
    }
    CHECK(4, 0, unused == r->node_free_count);
    return SC_OK;
}

static sc_status verify_all(struct recount *c)
{
    const struct sc_radix *r = c->r;
    SC_TRY(verify_receipts(c));
    uint64_t visited = 0;
    for (uint32_t space = 1; space < r->space_cap; space++) {
        uint32_t root = r->roots[space];
        if (root == 0) continue;
        c->roots++;
        bool there = root < c->ids && r->blocks[root / RX_NODE_BLOCK];
        uint32_t flags = there ? rx_node(r, root)->flags : 0;
        CHECK(4, root, (flags & (RX_FLAG_MASK ^ RX_TAILED ^ RX_MANY)) == (RX_LIVE | RX_ROOT));
        CHECK(4, root, rx_use(r, root)->space == space);
        for (uint32_t id = root; id != 0; id = rx_preorder_next(r, root, id)) {
            CHECK(3, id, visited++ < c->ids); /* a loop in the links ends here */
            SC_TRY(verify_node(c, id));
        }
    }
    SC_TRY(verify_order(r, RX_KV));
    SC_TRY(verify_order(r, RX_STATE));
    SC_TRY(verify_store(c));
    SC_TRY(verify_unused_chunks(&r->store));
    SC_TRY(verify_memory(c));
    SC_TRY(verify_free_cells(c));
    return verify_counts(c);
}

sc_status sc_radix_verify(const struct sc_radix *r)
{
    SC_REQUIRE(r != NULL);
    struct sc_heap heap = r->heap;
    struct recount c = {.r = r, .ids = r->block_count * RX_NODE_BLOCK};
    size_t units = ((size_t)r->store.chunk_count + 1) * RX_CHUNK_UNITS;
    size_t ids = (size_t)c.ids + 1;
    size_t cells = (size_t)r->cell_cap + 1;
    c.unit_refs = sc_heap_calloc(&heap, units, sizeof *c.unit_refs);
    c.held[RX_KV] = sc_heap_calloc(&heap, ids, sizeof *c.held[RX_KV]);
    c.held[RX_STATE] = sc_heap_calloc(&heap, ids, sizeof *c.held[RX_STATE]);
    size_t chunks = (size_t)r->store.chunk_count + 1;
    c.chunk_live = sc_heap_calloc(&heap, chunks, sizeof *c.chunk_live);
    c.cell_tails = sc_heap_calloc(&heap, cells, sizeof *c.cell_tails);
    sc_status status = SC_OK;
    if (c.cell_tails && c.unit_refs && c.chunk_live && c.held[RX_KV] && c.held[RX_STATE]) {
        status = verify_all(&c);
    } else {
        status = SC_FAIL(SC_ERR_NO_MEMORY, "no memory to verify %zu nodes", ids);
    }
    sc_heap_free(&heap, c.unit_refs, units * sizeof *c.unit_refs);
    sc_heap_free(&heap, c.chunk_live, chunks * sizeof *c.chunk_live);
    sc_heap_free(&heap, c.cell_tails, cells * sizeof *c.cell_tails);
    sc_heap_free(&heap, c.held[RX_KV], ids * sizeof *c.held[RX_KV]);
    sc_heap_free(&heap, c.held[RX_STATE], ids * sizeof *c.held[RX_STATE]);
    return status;
}
