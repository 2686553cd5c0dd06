/* SPDX-License-Identifier: Apache-2.0 */
/* Private to radix/: the structures behind sc_radix and the calls between its files.
 * radix.c opens with the drawing and the numbered invariants that comments here cite. */
#ifndef SC_RADIX_INTERNAL_H
#define SC_RADIX_INTERNAL_H

#include <string.h>

#include "base/error.h"
#include "base/heap.h"
#include "base/sc_assert.h"
#include "radix/radix.h"

enum {
    RX_NODE_BLOCK = 256,       /* nodes per slab block */
    RX_UNIT_TOKENS = 256,      /* a storage unit, cut to whole pages; at least one page */
    RX_CHUNK_UNITS = 64,       /* units per chunk at most: one bitmap word */
    RX_CHUNK_TOKENS = 16384,   /* tokens per chunk at most, unless one unit is larger */
    RX_CHUNK_UNITS_FIRST = 8,  /* small trees start with a small chunk */
    RX_PIECE_TOKENS_MIN = 64,  /* a shorter piece is not worth a node of its own */
    RX_CHUNK_SEARCH_MAX = 8,   /* chunks looked at for a long enough free run */
    RX_SUBTREE_MAX = 64,       /* nodes visited before a branch counts as in use */
    RX_PAGE_TOKENS_MAX = 1 << 20
};

enum { RX_LIVE = 1, RX_ROOT = 2, RX_TOMBSTONE = 4 };

/* What look-ups and walks read: one cache line. */
struct rx_node {
    const int32_t *tokens; /* first token of the run, inside `chunk` */
    uint64_t history;
    uint32_t chunk;
    uint32_t start, len;   /* tokens; whole pages */
    uint32_t parent;       /* of a root: 0; of a free node: next free */
    uint32_t first_child, next_sibling, prev_sibling;
    uint32_t child_count;
    uint32_t snapshot;
    uint32_t pin;          /* (6) receipts here + children with pin > 0 */
    uint32_t space;
    uint32_t flags;
};
static_assert(sizeof(struct rx_node) == 64, "a node is one cache line");

/* The two orders of eviction. */
enum rx_kind { RX_KV = 0, RX_STATE = 1, RX_KIND_COUNT = 2 };

/* What only mutators read. */
struct rx_use {
    uint64_t tick[RX_KIND_COUNT];  /* last use */
    uint32_t place[RX_KIND_COUNT]; /* index in the heap + 1; 0: not evictable now */
    uint32_t kv_locks, state_locks;
};

struct rx_block {
    struct rx_node nodes[RX_NODE_BLOCK];
    struct rx_use uses[RX_NODE_BLOCK];
};

/* Child index: open addressing, linear probing, no tombstones (removal shifts back). */
struct rx_slot { uint32_t hash, node; };

struct rx_entry { uint64_t tick; uint32_t node, unused; };
struct rx_heap { struct rx_entry *entries; uint32_t count, cap; };

/* A chunk holds units; a unit is free or referenced by the nodes that touch it. */
struct rx_chunk {
    int32_t *tokens, *ids;    /* ids: NULL without KV; tokens is the start of the allocation */
    uint16_t *refs;           /* [unit_count] (5) */
    uint64_t free_units;      /* bit u: unit u is free */
    uint32_t unit_count;      /* 0: no memory, the index is unused */
    uint32_t prev, next;      /* chunks with free units, or `next` of unused indices */
};

struct rx_piece { uint32_t chunk, pos, len; };

struct rx_store {
    struct rx_chunk *chunks;  /* [chunk_cap]; index 0 is none */
    uint32_t chunk_cap, chunk_count;
    uint32_t unused;          /* indices without memory */
    uint32_t partial;         /* chunks with at least one free unit */
    uint32_t empty_count;     /* of these, wholly free: at most one is kept */
    uint32_t unit_tokens, unit_pages, unit_max;
    uint64_t unit_total;
    uint32_t cursor_chunk, cursor_pos; /* next free token of the unit being filled; chunk 0: none */
    struct rx_piece *pieces;  /* what rx_store_alloc found */
    uint32_t piece_count, piece_cap;
};

struct rx_receipt {
    uint32_t generation;
    uint32_t node;            /* of a free entry: next free */
    uint32_t what;
    uint32_t live;
};

struct sc_radix {
    struct sc_heap heap;
    uint32_t page, grid, path_snapshots_max;
    bool with_kv;
    uint64_t token_max;

    struct rx_block **blocks;
    uint32_t block_count, block_cap;
    uint32_t node_free, node_free_count;

    struct rx_slot *slots;    /* power of two, or NULL */
    uint32_t slot_mask, slot_used;

    struct rx_heap order[RX_KIND_COUNT];
    struct rx_store store;

    struct rx_receipt *receipts; /* index 0 is never given out */
    uint32_t receipt_cap, receipt_free;

    uint32_t *roots;          /* [space_cap]; 0: no such space; index 0 is never given out */
    uint32_t space_cap, space_hint; /* no free space is below the hint */

    uint64_t clock;           /* ticks of use, not of time (contract 18) */
    uint64_t node_count, leaf_count, token_count, pinned_tokens;
    uint64_t snapshot_count, state_locked_count, receipt_count;
    uint64_t bytes;
};

/* radix_node.c: memory, slab, index, links */
void *rx_alloc(struct sc_radix *r, size_t bytes, size_t align);
void rx_free(struct sc_radix *r, void *ptr, size_t bytes);
/* Grows an array to at least `need` items (doubling); false leaves it as it was. */
bool rx_grow(struct sc_radix *r, void **array, uint32_t *cap, uint64_t need, size_t item_bytes);
bool rx_nodes_reserve(struct sc_radix *r, uint64_t count);
uint32_t rx_node_new(struct sc_radix *r);
void rx_node_free(struct sc_radix *r, uint32_t id);
bool rx_index_reserve(struct sc_radix *r, uint64_t count);
uint32_t rx_index_find(const struct sc_radix *r, uint32_t parent, const int32_t *page);
void rx_child_link(struct sc_radix *r, uint32_t parent, uint32_t id);
void rx_child_unlink(struct sc_radix *r, uint32_t id);
/* Cuts `id` after `len` of its tokens; returns the new upper half. One node must be reserved. */
uint32_t rx_split(struct sc_radix *r, uint32_t id, uint32_t len);
uint32_t rx_preorder_next(const struct sc_radix *r, uint32_t top, uint32_t id);

/* radix_store.c: token and id storage */
void rx_store_init(struct sc_radix *r);
void rx_store_deinit(struct sc_radix *r);
/* Finds room for n > 0 tokens as pieces; each piece is held as by one node. False: nothing held. */
bool rx_store_alloc(struct sc_radix *r, uint32_t n);
void rx_store_abandon(struct sc_radix *r);
/* A holder of a range is cut in two at `pos`. */
void rx_store_cut(struct sc_radix *r, uint32_t chunk, uint32_t pos);
void rx_store_release(struct sc_radix *r, uint32_t chunk, uint32_t pos, uint32_t len);

/* radix_evict.c: orders, pins, removal */
bool rx_order_reserve(struct sc_radix *r, enum rx_kind kind, uint64_t count);
void rx_order_add(struct sc_radix *r, enum rx_kind kind, uint32_t id);
void rx_order_remove(struct sc_radix *r, enum rx_kind kind, uint32_t id);
void rx_order_use(struct sc_radix *r, enum rx_kind kind, uint32_t id);
/* Puts a node into the KV order or takes it out, as (7) says. */
void rx_kv_order_sync(struct sc_radix *r, uint32_t id);
void rx_snapshot_attach(struct sc_radix *r, uint32_t id, uint32_t snapshot);
void rx_subtree_remove(struct sc_radix *r, uint32_t top, const struct sc_radix_sink *sink,
    enum sc_radix_cause cause);
/* Drops all of `id` but its first `len` > 0 tokens, and everything below it. */
void rx_tail_remove(struct sc_radix *r, uint32_t id, uint32_t len,
    const struct sc_radix_sink *sink, enum sc_radix_cause cause);
sc_status rx_sink_check(const struct sc_radix *r, const struct sc_radix_sink *sink);

static inline struct rx_node *rx_node(const struct sc_radix *r, uint32_t id)
{
    return &r->blocks[id / RX_NODE_BLOCK]->nodes[id % RX_NODE_BLOCK];
}

static inline struct rx_use *rx_use(const struct sc_radix *r, uint32_t id)
{
    return &r->blocks[id / RX_NODE_BLOCK]->uses[id % RX_NODE_BLOCK];
}

/* A node that callers may name: alive and no root. */
static inline bool rx_known(const struct sc_radix *r, uint32_t id)
{
    return id != 0 && id / RX_NODE_BLOCK < r->block_count &&
        (rx_node(r, id)->flags & (RX_LIVE | RX_ROOT)) == RX_LIVE;
}

/* The root of a space, or 0. */
static inline uint32_t rx_root(const struct sc_radix *r, uint32_t space)
{
    return space < r->space_cap ? r->roots[space] : 0;
}

static inline uint32_t rx_end(const struct rx_node *node) { return node->start + node->len; }

/* Position of a node's run in its chunk, and its ids. */
static inline uint32_t rx_pos(const struct sc_radix *r, const struct rx_node *node)
{
    return (uint32_t)(node->tokens - r->store.chunks[node->chunk].tokens);
}

static inline int32_t *rx_ids(const struct sc_radix *r, const struct rx_node *node)
{
    return r->store.chunks[node->chunk].ids + rx_pos(r, node) / r->page;
}

static inline bool rx_page_equal(const struct sc_radix *r, const int32_t *a, const int32_t *b)
{
    return a[0] == b[0] &&
        (r->page == 1 || memcmp(a, b, (size_t)r->page * sizeof(int32_t)) == 0);
}

/* The child of `parent` that starts with `page`, confirmed token by token, or 0. Up to two children
 * are looked at directly; the index serves the others. */
static inline uint32_t rx_child_find(const struct sc_radix *r, uint32_t parent, const int32_t *page)
{
    const struct rx_node *node = rx_node(r, parent);
    if (node->child_count > 2) return rx_index_find(r, parent, page);
    uint32_t id = node->first_child;
    while (id != 0 && !rx_page_equal(r, rx_node(r, id)->tokens, page)) {
        id = rx_node(r, id)->next_sibling;
    }
    return id;
}

/* Leading tokens in which a and b agree. */
uint32_t rx_common(const int32_t *a, const int32_t *b, uint32_t n);

#endif
