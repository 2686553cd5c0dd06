/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, the slab of nodes, cells (marks and lengths of tails), the split.
 *
 * Slab: blocks of 240 nodes that never move, so an id and a pointer stay good until the node is
 * freed. Ids start at 1; freed ids are used again, last freed first. A trim gives back blocks
 * without a live node; their ids come again with the next block.
 *
 * Cells: a node without marks and without tails below it, nearly every one, has none and pays
 * nothing. The others hold a list out of one array; its first index stands in the node's flags:
 *
 *   flags | first cell | RX_ bits |       --> mark at 5 --> mark at 7 --> 2 tails of 1 --> 1 of 3
 *
 * Marks come first and ascend by position; then lengths of tails, ascending. Positions and lengths
 * lie within one page, so a page bounds the list. A split gives the marks to the upper half, which
 * has the first page, and the lengths to the lower half, below which the tails hang. */
#include "radix_internal.h"

void *rx_alloc(struct sc_radix *r, size_t bytes, size_t align)
{
    void *ptr = sc_heap_alloc(&r->heap, bytes, align);
    if (ptr) r->bytes += bytes;
    return ptr;
}

void rx_free(struct sc_radix *r, void *ptr, size_t bytes)
{
    if (!ptr) return;
    sc_heap_free(&r->heap, ptr, bytes);
    r->bytes -= bytes;
}

bool rx_grow(struct sc_radix *r, void **array, uint32_t *cap, uint64_t need, size_t item_bytes)
{
    if (need <= *cap) return true;
    uint64_t want = (uint64_t)*cap * 2 > need ? (uint64_t)*cap * 2 : need;
    if (want < 8) want = 8;
    if (want > UINT32_MAX || want > SIZE_MAX / item_bytes) return false;
    size_t old_bytes = *cap * item_bytes;
    size_t new_bytes = (size_t)want * item_bytes;
    void *grown = sc_heap_realloc(&r->heap, *array, old_bytes, new_bytes);
    if (!grown) return false;
    r->bytes += new_bytes - old_bytes;
    *array = grown;
    *cap = (uint32_t)want;
    return true;
}

/* --- slab --- */

/* The first index without a block, with room in the array; UINT32_MAX without memory. */
static uint32_t block_index(struct sc_radix *r)
{
    uint32_t index = r->block_hole;
    while (index < r->block_count && r->blocks[index]) index++;
    r->block_hole = index;
    if (index >= UINT32_MAX / RX_NODE_BLOCK ||
        !rx_grow(r, (void **)&r->blocks, &r->block_cap, (uint64_t)index + 1, sizeof *r->blocks)) {
        return UINT32_MAX;
    }
    return index;
}

bool rx_nodes_reserve(struct sc_radix *r, uint64_t count)
{
    while (r->node_free_count < count) {
        uint32_t index = block_index(r);
        uint32_t base = index * RX_NODE_BLOCK;
        if (index == UINT32_MAX) return false;
        struct rx_block *block = rx_alloc(r, sizeof *block, 64);
        if (!block) return false;
        memset(block, 0, sizeof *block);
        r->blocks[index] = block;
        if (index == r->block_count) r->block_count++;
        for (uint32_t i = RX_NODE_BLOCK; i-- > 0;) {
            if (base + i == 0) continue; /* id 0 is none */
            block->nodes[i].id = base + i;
            block->nodes[i].start = r->node_free;
            r->node_free = base + i;
            r->node_free_count++;
        }
    }
    return true;
}

uint32_t rx_node_new(struct sc_radix *r)
{
    SC_ASSERT(r->node_free != 0);
    uint32_t id = r->node_free;
    struct rx_node *node = rx_node(r, id);
    r->node_free = node->start;
    r->node_free_count--;
    r->blocks[id / RX_NODE_BLOCK]->live++;
    *node = (struct rx_node){.id = id, .flags = RX_LIVE};
    *rx_use(r, id) = (struct rx_use){.kv_locks = 0};
    return id;
}

static void cell_free(struct sc_radix *r, uint32_t cell)
{
    r->cells[cell] = (struct rx_cell){.next = r->cell_free};
    r->cell_free = cell;
    r->cell_free_count++;
}

void rx_node_free(struct sc_radix *r, uint32_t id)
{
    for (uint32_t cell = rx_cells(rx_node(r, id)); cell != 0;) {
        uint32_t next = r->cells[cell].next;
        if (r->cells[cell].tails == 0) r->mark_count--;
        cell_free(r, cell);
        cell = next;
    }
    *rx_node(r, id) = (struct rx_node){.id = id, .start = r->node_free};
    r->node_free = id;
    r->node_free_count++;
    r->blocks[id / RX_NODE_BLOCK]->live--;
}

void rx_nodes_shrink(struct sc_radix *r)
{
    uint32_t *link = &r->node_free; /* what names the free node that is looked at */
    while (*link != 0) {
        struct rx_node *node = rx_node(r, *link);
        if (r->blocks[*link / RX_NODE_BLOCK]->live > 0) {
            link = &node->start;
            continue;
        }
        *link = node->start;
        r->node_free_count--;
    }
    for (uint32_t i = 0; i < r->block_count; i++) {
        if (!r->blocks[i] || r->blocks[i]->live > 0) continue;
        rx_free(r, r->blocks[i], sizeof *r->blocks[i]);
        r->blocks[i] = NULL;
        if (i < r->block_hole) r->block_hole = i;
    }
    while (r->block_count > 0 && !r->blocks[r->block_count - 1]) r->block_count--;
}

/* --- cells --- */

bool rx_cells_reserve(struct sc_radix *r, uint64_t count)
{
    if (r->cell_free_count >= count) return true;
    uint32_t old = r->cell_cap;
    uint64_t need = old + (count - r->cell_free_count) + (old == 0); /* index 0 is none */
    if (need > RX_CELL_MAX ||
        !rx_grow(r, (void **)&r->cells, &r->cell_cap, need, sizeof *r->cells)) {
        return false;
    }
    for (uint32_t i = r->cell_cap; i-- > old;) {
        if (i == 0 || i >= RX_CELL_MAX) continue;
        cell_free(r, i);
    }
    return true;
}

static uint32_t cell_new(struct sc_radix *r, struct rx_cell value)
{
    uint32_t cell = r->cell_free;
    SC_ASSERT(cell != 0);
    r->cell_free = r->cells[cell].next;
    r->cell_free_count--;
    r->cells[cell] = value;
    return cell;
}

void rx_marks_set(struct sc_radix *r, uint32_t id, const sc_mark *marks, uint32_t count)
{
    struct rx_node *node = rx_node(r, id);
    SC_ASSERT_DEBUG(rx_cells(node) == 0);
    if (count == 0) return;
    uint32_t first = 0;
    for (uint32_t i = count; i-- > 0;) {
        first = cell_new(r, (struct rx_cell){.next = first, .mark = marks[i]});
    }
    rx_cells_put(node, first);
    node->flags |= RX_MARKED;
    r->mark_count += count;
}

uint32_t rx_tail_cells(const struct sc_radix *r, const struct rx_node *node)
{
    uint32_t cell = rx_cells(node);
    while (cell != 0 && r->cells[cell].tails == 0) cell = r->cells[cell].next;
    return cell;
}

/* The cell of a length below `parent`, or 0; `*prev_out` is the one before its place, or 0. */
static uint32_t length_find(const struct sc_radix *r, uint32_t parent, uint32_t len,
    uint32_t *prev_out)
{
    *prev_out = 0;
    uint32_t cell = rx_cells(rx_node(r, parent));
    while (cell != 0 && (r->cells[cell].tails == 0 || r->cells[cell].mark.at < len)) {
        *prev_out = cell;
        cell = r->cells[cell].next;
    }
    return cell != 0 && r->cells[cell].mark.at == len ? cell : 0;
}

static void chain_put(struct sc_radix *r, uint32_t parent, uint32_t prev, uint32_t cell)
{
    if (prev != 0) {
        r->cells[prev].next = cell;
    } else {
        rx_cells_put(rx_node(r, parent), cell);
    }
}

void rx_tail_note(struct sc_radix *r, uint32_t parent, uint32_t len)
{
    uint32_t prev;
    uint32_t cell = length_find(r, parent, len, &prev);
    r->tail_count++;
    r->tail_tokens += len;
    if (cell != 0) {
        r->cells[cell].tails++;
        return;
    }
    uint32_t next = prev != 0 ? r->cells[prev].next : rx_cells(rx_node(r, parent));
    cell = cell_new(r, (struct rx_cell){.next = next, .tails = 1, .mark = {.at = len}});
    chain_put(r, parent, prev, cell);
    rx_node(r, parent)->flags |= RX_TAILED;
}

void rx_tail_forget(struct sc_radix *r, uint32_t parent, uint32_t len)
{
    uint32_t prev;
    uint32_t cell = length_find(r, parent, len, &prev);
    SC_ASSERT(cell != 0);
    r->tail_count--;
    r->tail_tokens -= len;
    if (--r->cells[cell].tails > 0) return;
    chain_put(r, parent, prev, r->cells[cell].next);
    cell_free(r, cell);
    struct rx_node *node = rx_node(r, parent);
    if (rx_tail_cells(r, node) == 0) node->flags &= ~(uint32_t)RX_TAILED;
}

sc_status rx_marks_check(const sc_mark *marks, uint32_t count)
{
    if (count > 0 && !marks) return SC_FAIL(SC_ERR_INVALID, "%u marks at no address", count);
    for (uint32_t i = 1; i < count; i++) {
        if (marks[i].at <= marks[i - 1].at) {
            return SC_FAIL(SC_ERR_INVALID, "mark %u stands at %u, not behind the one before", i,
                marks[i].at);
        }
    }
    return SC_OK;
}

/* The marks of a node that is split go with the upper half, lengths of tails stay. */
static void marks_move(struct sc_radix *r, uint32_t upper, uint32_t id)
{
    struct rx_node *node = rx_node(r, id);
    if (!(node->flags & RX_MARKED)) return;
    uint32_t first = rx_cells(node);
    uint32_t last = first;
    while (r->cells[last].next != 0 && r->cells[r->cells[last].next].tails == 0) {
        last = r->cells[last].next;
    }
    rx_cells_put(node, r->cells[last].next);
    node->flags &= ~(uint32_t)RX_MARKED;
    r->cells[last].next = 0;
    rx_cells_put(rx_node(r, upper), first);
    rx_node(r, upper)->flags |= RX_MARKED;
}

/* --- split, order of a walk --- */

uint32_t rx_split(struct sc_radix *r, uint32_t id, uint32_t len)
{
    uint32_t upper = rx_node_new(r);
    struct rx_node *u = rx_node(r, upper);
    struct rx_node *node = rx_node(r, id);
    SC_ASSERT_DEBUG(len > 0 && len < node->len && len % r->page == 0);
    rx_store_cut(r, node->chunk, rx_pos(r, node) + len);
    rx_index_replace(r, id, upper);

    *u = *node; /* run, parent */
    u->id = upper;
    u->len = len;
    u->child[0] = node;
    u->child[1] = NULL;
    u->head[0] = node->tokens[len];
    u->head[1] = 0;
    u->snapshot = 0;
    u->flags = RX_LIVE | (node->flags & RX_SAME);
    rx_use(r, upper)->history = rx_use(r, id)->history;
    rx_use(r, upper)->child_count = 1;
    rx_use(r, upper)->pin = rx_use(r, id)->pin > 0;
    rx_use(r, upper)->space = rx_use(r, id)->space;
    rx_use(r, upper)->tick[RX_KV] = rx_use(r, id)->tick[RX_KV];
    rx_child_replace(r, id, upper);
    rx_store_link(r, upper, id);

    node->parent = u;
    node->flags |= RX_SAME;
    rx_use(r, id)->prev_sibling = 0;
    rx_use(r, id)->next_sibling = 0;
    node->tokens += len;
    node->start += len;
    node->len -= len;
    marks_move(r, upper, id);
    rx_index_add(r, id);
    r->node_count++;
    return upper;
}

uint32_t rx_preorder_next(const struct sc_radix *r, uint32_t top, uint32_t id)
{
    const struct rx_node *node = rx_node(r, id);
    if (node->child[0]) return node->child[0]->id;
    while (id != top) {
        uint32_t next = rx_use(r, id)->next_sibling;
        if (next != 0) return next;
        id = rx_parent(r, id);
    }
    return 0;
}
