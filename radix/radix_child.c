/* SPDX-License-Identifier: Apache-2.0 */
/* Children of a node: the index that finds them, and the links.
 *
 * Index: one open-addressing table for all nodes, keyed by (parent, tokens and marks of the first
 * page, or of a whole tail). Two children of a parent differ in these, though with pages above one
 * token they may share their first tokens. The hash only finds a candidate; tokens and marks decide
 * (contract 16). A slot is 8 bytes; probing is linear; removal shifts later slots back, so there
 * are no tombstones and removal never allocates. Every node is in it, so that a split or a third
 * child moves nothing; where a parent has one or two children, as most have, they are found by the
 * addresses and first tokens in the parent's line, without the table.
 *
 * Tails: which of many tails below a node begins a key? The node knows which lengths there are;
 * each is looked up by its hash, and one pass over the key's tokens yields the hashes of all. So
 * the cost is that of the lengths, fewer than a page has tokens, whatever the number of tails. */
#include "radix_internal.h"

/* --- hash --- */

/* Of the first `done` tokens, an even number. */
struct hash { uint64_t h; uint32_t done; };

static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * UINT64_C(0xff51afd7ed558ccd);
    return h ^ h >> 32;
}

static struct hash hash_begin(uint32_t parent)
{
    return (struct hash){(parent + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15), 0};
}

/* Goes on to `len` tokens, but for the last one of an odd number. */
static void hash_extend(struct hash *hash, const int32_t *tokens, uint32_t len)
{
    uint64_t h = hash->h;
    uint32_t i = hash->done;
    for (; i + 2 <= len; i += 2) {
        uint64_t pair;
        memcpy(&pair, tokens + i, sizeof pair);
        h = mix(h, pair);
    }
    *hash = (struct hash){h, i};
}

static uint64_t hash_mark(uint64_t h, const sc_mark *mark)
{
    uint64_t half[2];
    memcpy(half, mark->id, sizeof half);
    return mix(mix(mix(h, mark->at), half[0]), half[1]);
}

static uint32_t hash_end(uint64_t h) { return (uint32_t)(h * UINT64_C(0xc4ceb9fe1a85ec53) >> 32); }

/* `hash` has been extended to first->len; it is left so that it can go on. */
static uint32_t hash_first(const struct hash *hash, const struct rx_first *first)
{
    uint64_t h = hash->h;
    if (hash->done < first->len) h = mix(h, (uint32_t)first->tokens[hash->done]);
    for (uint32_t i = 0; i < first->mark_count; i++) {
        if (first->marks[i].at - first->start >= first->len) break;
        h = hash_mark(h, &first->marks[i]);
    }
    return hash_end(h);
}

static uint32_t hash_node(const struct sc_radix *r, const struct rx_node *node)
{
    uint32_t len = rx_first_len(r, node);
    struct hash hash = hash_begin(rx_id(node->parent));
    hash_extend(&hash, node->tokens, len);
    if (hash.done < len) hash.h = mix(hash.h, (uint32_t)node->tokens[hash.done]);
    if (node->flags & RX_MARKED) {
        for (uint32_t cell = rx_cells(node); cell != 0; cell = r->cells[cell].next) {
            if (r->cells[cell].tails != 0) break;
            hash.h = hash_mark(hash.h, &r->cells[cell].mark);
        }
    }
    return hash_end(hash.h);
}

bool rx_marks_equal(const struct sc_radix *r, const struct rx_node *node,
    const struct rx_first *first)
{
    uint32_t cell = node->flags & RX_MARKED ? rx_cells(node) : 0;
    uint32_t i = 0;
    for (; cell != 0 && r->cells[cell].tails == 0; cell = r->cells[cell].next, i++) {
        const sc_mark *mark = &r->cells[cell].mark;
        if (i == first->mark_count || mark->at != first->marks[i].at ||
            memcmp(mark->id, first->marks[i].id, sizeof mark->id) != 0) {
            return false;
        }
    }
    return i == first->mark_count || first->marks[i].at - first->start >= first->len;
}

/* --- index --- */

static void slot_put(struct rx_slot *slots, uint32_t mask, uint32_t hash, uint32_t id)
{
    uint32_t at = hash & mask;
    while (slots[at].node != 0) at = (at + 1) & mask;
    slots[at] = (struct rx_slot){hash, id};
}

/* A table of `want` slots, a power of two, takes the place of the one that is there. */
static bool index_resize(struct sc_radix *r, uint64_t want)
{
    uint64_t cap = r->slots ? (uint64_t)r->slot_mask + 1 : 0;
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

bool rx_index_reserve(struct sc_radix *r, uint64_t count)
{
    uint64_t cap = r->slots ? (uint64_t)r->slot_mask + 1 : 0;
    uint64_t need = r->slot_used + count;
    if (need * 4 <= cap * 3) return true;
    uint64_t want = cap == 0 ? 64 : cap;
    while (need * 4 > want * 3) want *= 2;
    return index_resize(r, want);
}

void rx_index_shrink(struct sc_radix *r)
{
    uint64_t cap = r->slots ? (uint64_t)r->slot_mask + 1 : 0;
    uint64_t want = cap;
    while (want > 64 && (uint64_t)r->slot_used * 4 < want) want /= 2;
    if (want < cap) (void)index_resize(r, want); /* without memory it stays */
}

static uint32_t probe(const struct sc_radix *r, uint32_t parent, uint32_t hash,
    const struct rx_first *first)
{
    if (!r->slots) return 0;
    for (uint32_t at = hash & r->slot_mask; r->slots[at].node != 0; at = (at + 1) & r->slot_mask) {
        uint32_t id = r->slots[at].node;
        if (r->slots[at].hash != hash) continue;
        const struct rx_node *node = rx_node(r, id);
        if (rx_id(node->parent) == parent && rx_starts_with(r, node, first)) return id;
    }
    return 0;
}

struct rx_node *rx_index_find(const struct sc_radix *r, const struct rx_node *parent,
    const struct rx_first *first)
{
    struct hash hash = hash_begin(parent->id);
    hash_extend(&hash, first->tokens, first->len);
    uint32_t id = probe(r, parent->id, hash_first(&hash, first), first);
    return id != 0 ? rx_node(r, id) : NULL;
}

void rx_index_prefetch(const struct sc_radix *r, uint32_t parent, const struct rx_first *first)
{
    struct hash hash = hash_begin(parent);
    hash_extend(&hash, first->tokens, first->len);
    __builtin_prefetch(&r->slots[hash_first(&hash, first) & r->slot_mask]);
}

/* Where a node stands in the table; it must be there. */
static uint32_t index_slot(const struct sc_radix *r, uint32_t id)
{
    uint32_t at = rx_use(r, id)->hash & r->slot_mask;
    while (r->slots[at].node != id) {
        SC_ASSERT(r->slots[at].node != 0);
        at = (at + 1) & r->slot_mask;
    }
    return at;
}

static bool marks_same(const struct sc_radix *r, const struct rx_node *a, const struct rx_node *b)
{
    uint32_t i = a->flags & RX_MARKED ? rx_cells(a) : 0;
    uint32_t j = b->flags & RX_MARKED ? rx_cells(b) : 0;
    for (;; i = r->cells[i].next, j = r->cells[j].next) {
        bool more = i != 0 && r->cells[i].tails == 0;
        if (more != (j != 0 && r->cells[j].tails == 0)) return false;
        if (!more) return true;
        if (memcmp(&r->cells[i].mark, &r->cells[j].mark, sizeof(sc_mark)) != 0) return false;
    }
}

bool rx_index_holds(const struct sc_radix *r, uint32_t id)
{
    if (!r->slots) return false;
    const struct rx_node *node = rx_node(r, id);
    size_t bytes = rx_first_len(r, node) * sizeof(int32_t);
    uint32_t hash = hash_node(r, node);
    if (hash != rx_use(r, id)->hash) return false;
    for (uint32_t at = hash & r->slot_mask; r->slots[at].node != 0; at = (at + 1) & r->slot_mask) {
        if (r->slots[at].hash != hash) continue;
        if (r->slots[at].node == id) return true;
        const struct rx_node *other = rx_node(r, r->slots[at].node);
        if (other->parent == node->parent &&
            rx_first_len(r, other) * sizeof(int32_t) == bytes &&
            memcmp(other->tokens, node->tokens, bytes) == 0 && marks_same(r, node, other)) {
            return false; /* two children alike */
        }
    }
    return false;
}

void rx_index_replace(struct sc_radix *r, uint32_t id, uint32_t by)
{
    r->slots[index_slot(r, id)].node = by;
    rx_use(r, by)->hash = rx_use(r, id)->hash;
}

void rx_index_add(struct sc_radix *r, uint32_t id)
{
    rx_use(r, id)->hash = hash_node(r, rx_node(r, id));
    slot_put(r->slots, r->slot_mask, rx_use(r, id)->hash, id);
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

/* The list begins with `first`: (3). */
static void children_begin(struct sc_radix *r, struct rx_node *parent, uint32_t first)
{
    for (int i = 0; i < 2; i++) {
        parent->child[i] = first != 0 ? rx_node(r, first) : NULL;
        parent->head[i] = first != 0 ? rx_node(r, first)->tokens[0] : 0;
        if (first != 0) first = rx_use(r, first)->next_sibling;
    }
}

/* One child more, or less. */
static void children_count(struct sc_radix *r, struct rx_node *parent, uint32_t count)
{
    rx_use(r, parent->id)->child_count = count;
    parent->flags = count > 2 ? parent->flags | RX_MANY : parent->flags & ~(uint32_t)RX_MANY;
}

void rx_child_link(struct sc_radix *r, uint32_t parent, uint32_t id)
{
    struct rx_node *p = rx_node(r, parent);
    struct rx_node *node = rx_node(r, id);
    struct rx_use *use = rx_use(r, id);
    uint32_t count = rx_use(r, parent)->child_count;
    node->parent = p;
    rx_index_add(r, id);
    use->prev_sibling = 0;
    use->next_sibling = rx_id(p->child[0]);
    if (p->child[0]) rx_use(r, p->child[0]->id)->prev_sibling = id;
    p->child[1] = p->child[0];
    p->head[1] = p->head[0];
    p->child[0] = node;
    p->head[0] = node->tokens[0];
    children_count(r, p, count + 1);
    if (count == 0 && !(p->flags & RX_ROOT)) r->leaf_count--;
    r->leaf_count++;
    if (node->flags & RX_TAIL) rx_tail_note(r, parent, node->len);
}

void rx_child_replace(struct sc_radix *r, uint32_t id, uint32_t by)
{
    struct rx_node *node = rx_node(r, by);
    struct rx_node *p = node->parent;
    struct rx_use *use = rx_use(r, by);
    use->prev_sibling = rx_use(r, id)->prev_sibling;
    use->next_sibling = rx_use(r, id)->next_sibling;
    if (use->prev_sibling != 0) rx_use(r, use->prev_sibling)->next_sibling = by;
    if (use->next_sibling != 0) rx_use(r, use->next_sibling)->prev_sibling = by;
    for (int i = 0; i < 2; i++) { /* the head is the same */
        if (rx_id(p->child[i]) == id) p->child[i] = node;
    }
}

void rx_child_unlink(struct sc_radix *r, uint32_t id)
{
    struct rx_node *node = rx_node(r, id);
    struct rx_node *p = node->parent;
    SC_ASSERT_DEBUG(!node->child[0]);
    index_remove(r, index_slot(r, id));
    uint32_t prev = rx_use(r, id)->prev_sibling;
    uint32_t next = rx_use(r, id)->next_sibling;
    uint32_t count = rx_use(r, p->id)->child_count - 1;
    if (prev != 0) rx_use(r, prev)->next_sibling = next;
    if (next != 0) rx_use(r, next)->prev_sibling = prev;
    if (node == p->child[0]) {
        children_begin(r, p, next);
    } else if (node == p->child[1]) {
        children_begin(r, p, prev);
    }
    children_count(r, p, count);
    r->leaf_count--;
    if (count == 0 && !(p->flags & RX_ROOT)) r->leaf_count++;
    if (node->flags & RX_TAIL) rx_tail_forget(r, p->id, node->len);
}

/* --- tails --- */

static uint32_t deepest_sibling(const struct sc_radix *r, uint32_t parent,
    const struct rx_first *most)
{
    uint32_t best = 0;
    struct rx_first first = *most;
    uint32_t id = rx_id(rx_node(r, parent)->child[0]);
    for (; id != 0; id = rx_use(r, id)->next_sibling) {
        const struct rx_node *node = rx_node(r, id);
        if (!(node->flags & RX_TAIL) || node->len > most->len) continue;
        if (best != 0 && node->len <= rx_node(r, best)->len) continue;
        first.len = node->len;
        if (rx_starts_with(r, node, &first)) best = id;
    }
    return best;
}

uint32_t rx_tail_deepest(const struct sc_radix *r, uint32_t parent, const struct rx_first *most)
{
    const struct rx_node *p = rx_node(r, parent);
    if (!(p->flags & RX_MANY)) return deepest_sibling(r, parent, most);
    uint32_t best = 0;
    struct rx_first first = *most;
    struct hash hash = hash_begin(parent);
    for (uint32_t cell = rx_tail_cells(r, p); cell != 0; cell = r->cells[cell].next) {
        first.len = r->cells[cell].mark.at;
        if (first.len > most->len) break;
        hash_extend(&hash, first.tokens, first.len);
        uint32_t id = probe(r, parent, hash_first(&hash, &first), &first);
        if (id != 0) best = id;
    }
    return best;
}
