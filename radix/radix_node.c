/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, the slab of nodes, the child index, links and the split.
 *
 * Slab: blocks of 256 nodes that never move, so an id and a pointer stay good until the node is
 * freed. Ids start at 1; freed ids are used again, last freed first.
 *
 * Index: one open-addressing table for all nodes, keyed by (parent, content of the first page). Two
 * children of a parent differ in their first page, though with pages above one token they may share
 * its first tokens. The hash only finds a candidate; the tokens decide (contract 16). A slot is
 * 8 bytes; probing is linear; removal shifts later slots back, so there are no tombstones and
 * removal never allocates. A parent's first two children are found through the sibling list without
 * the table: most nodes have no more. */
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

bool rx_nodes_reserve(struct sc_radix *r, uint64_t count)
{
    while (r->node_free_count < count) {
        uint32_t base = r->block_count * RX_NODE_BLOCK;
        if (r->block_count >= UINT32_MAX / RX_NODE_BLOCK) return false;
        if (!rx_grow(r, (void **)&r->blocks, &r->block_cap, (uint64_t)r->block_count + 1,
                sizeof *r->blocks)) {
            return false;
        }
        struct rx_block *block = rx_alloc(r, sizeof *block, 64);
        if (!block) return false;
        memset(block, 0, sizeof *block);
        r->blocks[r->block_count++] = block;
        for (uint32_t i = RX_NODE_BLOCK; i-- > 0;) {
            if (base + i == 0) continue; /* id 0 is none */
            block->nodes[i].parent = r->node_free;
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
    r->node_free = node->parent;
    r->node_free_count--;
    *node = (struct rx_node){.flags = RX_LIVE};
    *rx_use(r, id) = (struct rx_use){.kv_locks = 0};
    return id;
}

void rx_node_free(struct sc_radix *r, uint32_t id)
{
    *rx_node(r, id) = (struct rx_node){.parent = r->node_free};
    r->node_free = id;
    r->node_free_count++;
}

/* --- child index --- */

static uint32_t page_hash(const struct sc_radix *r, uint32_t parent, const int32_t *page)
{
    uint64_t h = (parent + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t i = 0;
    for (; i + 2 <= r->page; i += 2) {
        uint64_t pair;
        memcpy(&pair, page + i, sizeof pair);
        h = (h ^ pair) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 32;
    }
    if (i < r->page) {
        h = (h ^ (uint32_t)page[i]) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 32;
    }
    h *= UINT64_C(0xc4ceb9fe1a85ec53);
    return (uint32_t)(h >> 32);
}

static void slot_put(struct rx_slot *slots, uint32_t mask, uint32_t hash, uint32_t id)
{
    uint32_t at = hash & mask;
    while (slots[at].node != 0) at = (at + 1) & mask;
    slots[at] = (struct rx_slot){hash, id};
}

bool rx_index_reserve(struct sc_radix *r, uint64_t count)
{
    uint64_t cap = r->slots ? (uint64_t)r->slot_mask + 1 : 0;
    uint64_t need = r->slot_used + count;
    if (need * 4 <= cap * 3) return true;
    uint64_t want = cap == 0 ? 64 : cap;
    while (need * 4 > want * 3) want *= 2;
    if (want > UINT64_C(1) << 31) return false;
    struct rx_slot *slots = sc_heap_calloc(&r->heap, (size_t)want, sizeof *slots);
    if (!slots) return false;
    uint32_t mask = (uint32_t)(want - 1);
    for (uint64_t i = 0; i < cap; i++) {
        if (r->slots[i].node != 0) slot_put(slots, mask, r->slots[i].hash, r->slots[i].node);
    }
    r->bytes += (size_t)want * sizeof *slots;
    rx_free(r, r->slots, (size_t)cap * sizeof *slots);
    r->slots = slots;
    r->slot_mask = mask;
    return true;
}

uint32_t rx_index_find(const struct sc_radix *r, uint32_t parent, const int32_t *page)
{
    if (!r->slots) return 0;
    uint32_t hash = page_hash(r, parent, page);
    for (uint32_t at = hash & r->slot_mask; r->slots[at].node != 0; at = (at + 1) & r->slot_mask) {
        uint32_t id = r->slots[at].node;
        if (r->slots[at].hash != hash) continue;
        const struct rx_node *node = rx_node(r, id);
        if (node->parent == parent && rx_page_equal(r, node->tokens, page)) return id;
    }
    return 0;
}

/* Where `id`, a child of `parent`, stands in the table. */
static uint32_t index_slot(const struct sc_radix *r, uint32_t parent, uint32_t id)
{
    uint32_t at = page_hash(r, parent, rx_node(r, id)->tokens) & r->slot_mask;
    while (r->slots[at].node != id) {
        SC_ASSERT(r->slots[at].node != 0);
        at = (at + 1) & r->slot_mask;
    }
    return at;
}

static void index_add(struct sc_radix *r, uint32_t parent, uint32_t id)
{
    slot_put(r->slots, r->slot_mask, page_hash(r, parent, rx_node(r, id)->tokens), id);
    r->slot_used++;
}

/* Empties a slot and moves up what had been pushed past it:
 *
 *   before   | a(2) | X    | b(3) | c(2) |      |     (home slot in brackets, X goes; slots 2..6)
 *   after    | a(2) | b(3) | c(2) |      |      |     a slot moves back, never before its home */
static void index_remove(struct sc_radix *r, uint32_t at)
{
    uint32_t hole = at;
    uint32_t next = (at + 1) & r->slot_mask;
    while (r->slots[next].node != 0) {
        uint32_t home = r->slots[next].hash & r->slot_mask;
        if (((next - home) & r->slot_mask) >= ((next - hole) & r->slot_mask)) {
            r->slots[hole] = r->slots[next];
            hole = next;
        }
        next = (next + 1) & r->slot_mask;
    }
    r->slots[hole] = (struct rx_slot){0, 0};
    r->slot_used--;
}

/* --- links --- */

void rx_child_link(struct sc_radix *r, uint32_t parent, uint32_t id)
{
    struct rx_node *p = rx_node(r, parent);
    struct rx_node *node = rx_node(r, id);
    index_add(r, parent, id);
    node->parent = parent;
    node->prev_sibling = 0;
    node->next_sibling = p->first_child;
    if (p->first_child != 0) rx_node(r, p->first_child)->prev_sibling = id;
    p->first_child = id;
    if (p->child_count++ == 0 && !(p->flags & RX_ROOT)) r->leaf_count--;
    r->leaf_count++;
}

/* Takes a leaf out of its parent's list and out of the index; its tokens must still be there. */
void rx_child_unlink(struct sc_radix *r, uint32_t id)
{
    struct rx_node *node = rx_node(r, id);
    struct rx_node *p = rx_node(r, node->parent);
    SC_ASSERT_DEBUG(node->child_count == 0);
    index_remove(r, index_slot(r, node->parent, id));
    if (node->prev_sibling != 0) {
        rx_node(r, node->prev_sibling)->next_sibling = node->next_sibling;
    } else {
        p->first_child = node->next_sibling;
    }
    if (node->next_sibling != 0) rx_node(r, node->next_sibling)->prev_sibling = node->prev_sibling;
    r->leaf_count--;
    if (--p->child_count == 0 && !(p->flags & RX_ROOT)) r->leaf_count++;
}

uint32_t rx_split(struct sc_radix *r, uint32_t id, uint32_t len)
{
    uint32_t upper = rx_node_new(r);
    struct rx_node *u = rx_node(r, upper);
    struct rx_node *node = rx_node(r, id);
    SC_ASSERT_DEBUG(len > 0 && len < node->len && len % r->page == 0);
    rx_store_cut(r, node->chunk, rx_pos(r, node) + len);
    r->slots[index_slot(r, node->parent, id)].node = upper;

    *u = *node; /* run, history, space, place among the siblings */
    u->len = len;
    u->first_child = id;
    u->child_count = 1;
    u->snapshot = 0;
    u->pin = node->pin > 0;
    u->flags = RX_LIVE;
    rx_use(r, upper)->tick[RX_KV] = rx_use(r, id)->tick[RX_KV];
    if (u->prev_sibling != 0) {
        rx_node(r, u->prev_sibling)->next_sibling = upper;
    } else {
        rx_node(r, u->parent)->first_child = upper;
    }
    if (u->next_sibling != 0) rx_node(r, u->next_sibling)->prev_sibling = upper;

    node->parent = upper;
    node->prev_sibling = 0;
    node->next_sibling = 0;
    node->tokens += len;
    node->start += len;
    node->len -= len;
    index_add(r, upper, id);
    r->node_count++;
    return upper;
}

uint32_t rx_preorder_next(const struct sc_radix *r, uint32_t top, uint32_t id)
{
    const struct rx_node *node = rx_node(r, id);
    if (node->first_child != 0) return node->first_child;
    while (id != top) {
        if (node->next_sibling != 0) return node->next_sibling;
        id = node->parent;
        node = rx_node(r, id);
    }
    return 0;
}

/* memcmp over the whole run first: nearly all runs of a hit are equal. */
uint32_t rx_common(const int32_t *a, const int32_t *b, uint32_t n)
{
    enum { BLOCK = 1024 };
    if (memcmp(a, b, (size_t)n * sizeof *a) == 0) return n;
    uint32_t i = 0;
    while (n - i > BLOCK && memcmp(a + i, b + i, BLOCK * sizeof *a) == 0) i += BLOCK;
    while (n - i >= 2) {
        uint64_t x;
        uint64_t y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        if (x != y) break;
        i += 2;
    }
    while (i < n && a[i] == b[i]) i++;
    return i;
}
