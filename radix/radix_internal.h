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
    RX_NODE_BLOCK = 240,       /* nodes per slab block: just under 32 KiB */
    RX_UNIT_TOKENS = 256,      /* a storage unit, cut to whole pages; at least one page */
    RX_CHUNK_UNITS = 64,       /* units per chunk at most: one bitmap word */
    RX_CHUNK_TOKENS = 16384,   /* tokens per chunk at most, unless one unit is larger */
    RX_CHUNK_UNITS_FIRST = 8,  /* small trees start with a small chunk */
    RX_LINE_TOKENS = 16,       /* of a line of memory */
    RX_EXCESS_TOKENS = 64,     /* of a victim that is cut rather than evicted whole */
    RX_PIECE_TOKENS_MIN = 64,  /* a shorter piece is not worth a node of its own */
    RX_CHUNK_SEARCH_MAX = 8,   /* chunks looked at for a long enough free run */
    RX_EMPTY_SHARE = 8,        /* one chunk of so many, and one more, may be wholly free */
    RX_FREE_SHARE = 32,        /* one unit of so many may stay free before runs are cut */
    RX_SUBTREE_MAX = 64,       /* nodes visited before a branch counts as in use */
    RX_PAGE_TOKENS_MAX = 1 << 20
};

/* The low bits of rx_node.flags; above them stands the node's first cell. */
enum {
    RX_LIVE = 1,
    RX_ROOT = 2,
    RX_TOMBSTONE = 4,
    RX_TAIL = 8,     /* shorter than a page: ends inside one (13) */
    RX_TAILED = 16,  /* tails hang below it */
    RX_MARKED = 32,  /* its first page has marks (12) */
    RX_MANY = 64,    /* it has more than two children: the index finds them (3) */
    RX_SAME = 128,   /* its history is its parent's (15) */
    RX_FLAG_BITS = 8,
    RX_FLAG_MASK = (1 << RX_FLAG_BITS) - 1,
    RX_CELL_MAX = 1 << (32 - RX_FLAG_BITS)
};

/* What look-ups and walks read: one cache line. A step of a walk waits for the line that the one
 * before names, so lines are named by address: a node never moves. */
struct rx_node {
    const int32_t *tokens;    /* first token of the run, inside `chunk` */
    struct rx_node *parent;   /* NULL: a root, or free */
    struct rx_node *child[2]; /* (3) the first two of the list; NULL: none */
    int32_t head[2];          /* their first tokens: which one is it, without a look at either */
    uint32_t chunk;
    uint32_t start, len;   /* tokens; whole pages, or less than one (a tail); start of a free node:
                            * next free */
    uint32_t id;
    uint32_t snapshot;
    uint32_t flags;        /* RX_ bits and the first cell: rx_cells() */
};
static_assert(sizeof(struct rx_node) == 64, "a node is one cache line");

/* The two orders of eviction. */
enum rx_kind { RX_KV = 0, RX_STATE = 1, RX_KIND_COUNT = 2 };

/* What only mutators read; first what an insert behind a node does. */
struct rx_use {
    uint64_t history;
    uint32_t pin;                  /* (6) receipts here + children with pin > 0 */
    uint32_t child_count;
    uint32_t place[RX_KIND_COUNT]; /* index in the heap + 1; 0: not evictable now */
    uint32_t space;
    uint32_t prev_sibling, next_sibling;
    uint32_t hash;                 /* its slot in the index begins there */
    uint32_t kv_locks, state_locks;
    uint32_t chunk_prev, chunk_next; /* (14) nodes of a chunk, in a ring; the older is before */
    uint64_t tick[RX_KIND_COUNT];  /* last use */
};

struct rx_block {
    struct rx_node nodes[RX_NODE_BLOCK];
    struct rx_use uses[RX_NODE_BLOCK];
    uint32_t live;         /* of its nodes */
};

/* What few nodes have: a list of the marks of the first page, ascending, and behind them how many
 * tails of each length hang below the node, ascending. */
struct rx_cell {
    uint32_t next;            /* of a free cell: next free */
    uint32_t tails;           /* 0: a mark; else: so many tails of `mark.at` tokens */
    sc_mark mark;
};
static_assert(sizeof(sc_mark) == 20, "marks compare as bytes");

/* What tells children of a node apart: a first page, or all of a tail. Of a key: `marks` are those
 * at `start` and beyond, in order; only those before start + len count. */
struct rx_first {
    const int32_t *tokens;
    uint32_t start, len;
    const sc_mark *marks;
    uint32_t mark_count;
};

/* Child index: open addressing, linear probing, no tombstones (removal shifts back). */
struct rx_slot { uint32_t hash, node; };

enum { RX_HEAP_WAYS = 8 };
struct rx_entry { uint64_t tick; uint32_t node, unused; };
struct rx_heap { struct rx_entry *entries; uint32_t count, cap; };

/* A chunk holds units; a unit is free or referenced by the nodes that touch it. */
struct rx_chunk {
    int32_t *tokens, *ids;    /* ids: NULL without KV */
    uint64_t free_units;      /* bit u: unit u is free */
    uint32_t unit_count;      /* 0: no memory, the index is unused */
    uint32_t prev, next;      /* chunks with free units, or `next` of unused indices */
    uint32_t node;            /* (14) the youngest node in it, or 0 */
    uint32_t live;            /* tokens of nodes, in whole pages */
    uint16_t refs[RX_CHUNK_UNITS]; /* (5) */
};

struct rx_piece { uint32_t chunk, pos, len; };

struct rx_store {
    struct rx_chunk *chunks;  /* [chunk_cap]; index 0 is none */
    uint32_t chunk_cap, chunk_count;
    uint32_t unused;          /* indices without memory */
    uint32_t partial;         /* chunks with at least one free unit */
    uint32_t empty_count;     /* of these, wholly free */
    uint32_t unit_tokens, unit_pages, unit_max;
    uint64_t unit_total, unit_free, live;
    uint32_t cursor_chunk, cursor_pos; /* next free token of the unit being filled; chunk 0: none */
    uint32_t target;          /* where a compaction goes on; 0: nowhere */
    struct rx_piece *pieces;  /* what rx_store_alloc found */
    uint32_t piece_count, piece_cap;
};

struct rx_receipt {
    uint32_t generation;
    uint32_t node;            /* of a free entry: next free */
    uint32_t what;
    uint32_t live;
};

/* Leading tokens in which a and b agree. */
typedef uint32_t (*rx_common_fn)(const int32_t *a, const int32_t *b, uint32_t n);
enum rx_width { RX_WIDTH_ANY, RX_WIDTH_256, RX_WIDTH_512 };
/* The widest loop of the processor, `width` at most. */
rx_common_fn rx_common_choose(enum rx_width width);

struct sc_radix {
    struct sc_heap heap;
    rx_common_fn common;
    uint32_t page, grid, path_snapshots_max;
    bool with_kv;
    uint64_t token_max;

    struct rx_block **blocks;
    uint32_t block_count, block_cap;
    uint32_t block_hole;      /* no index below it has lost its block to a trim */
    uint32_t node_free, node_free_count;

    struct rx_cell *cells;    /* index 0 is none */
    uint32_t cell_cap, cell_free, cell_free_count;

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
    uint64_t mark_count, tail_count, tail_tokens;
    uint64_t bytes;
};

/* radix_node.c: memory, slab, cells, split */
void *rx_alloc(struct sc_radix *r, size_t bytes, size_t align);
void rx_free(struct sc_radix *r, void *ptr, size_t bytes);
/* Grows an array to at least `need` items (doubling); false leaves it as it was. */
bool rx_grow(struct sc_radix *r, void **array, uint32_t *cap, uint64_t need, size_t item_bytes);
bool rx_nodes_reserve(struct sc_radix *r, uint64_t count);
uint32_t rx_node_new(struct sc_radix *r);
/* Frees its cells as well. */
void rx_node_free(struct sc_radix *r, uint32_t id);
bool rx_cells_reserve(struct sc_radix *r, uint64_t count);
/* Gives the marks of its first page to a node that has no cells yet. Cells must be reserved. */
void rx_marks_set(struct sc_radix *r, uint32_t id, const sc_mark *marks, uint32_t count);
/* A tail of `len` tokens came below `parent` (one cell must be reserved), or went. */
void rx_tail_note(struct sc_radix *r, uint32_t parent, uint32_t len);
void rx_tail_forget(struct sc_radix *r, uint32_t parent, uint32_t len);
/* The first cell that counts tails. */
uint32_t rx_tail_cells(const struct sc_radix *r, const struct rx_node *node);
sc_status rx_marks_check(const sc_mark *marks, uint32_t count);
/* Cuts `id` after `len` of its tokens; returns the new upper half. One node must be reserved. */
uint32_t rx_split(struct sc_radix *r, uint32_t id, uint32_t len);
uint32_t rx_preorder_next(const struct sc_radix *r, uint32_t top, uint32_t id);

/* Gives blocks without a live node back to the heap. */
void rx_nodes_shrink(struct sc_radix *r);

/* radix.c: a node that a caller's key is said to reach the end of, within `limit` tokens */
sc_status rx_from_check(const struct sc_radix *r, uint32_t space, uint32_t from, uint32_t limit);
/* Whether it does, but for marks. O(path). */
bool rx_path_equal(const struct sc_radix *r, uint32_t id, const struct sc_radix_key *key);

/* radix_child.c: links and the child index */
bool rx_index_reserve(struct sc_radix *r, uint64_t count);
void rx_index_shrink(struct sc_radix *r);
struct rx_node *rx_index_find(const struct sc_radix *r, const struct rx_node *parent,
    const struct rx_first *first);
/* Brings to the cache where rx_index_find will begin. */
void rx_index_prefetch(const struct sc_radix *r, uint32_t parent, const struct rx_first *first);
/* A look-up of what `id` starts with ends at `id`. */
bool rx_index_holds(const struct sc_radix *r, uint32_t id);
/* In the index `by`, which starts as `id` does, takes the place of `id`. */
void rx_index_replace(struct sc_radix *r, uint32_t id, uint32_t by);
void rx_index_add(struct sc_radix *r, uint32_t id);
void rx_child_link(struct sc_radix *r, uint32_t parent, uint32_t id);
/* `by` stands where `id` stood among its siblings. */
void rx_child_replace(struct sc_radix *r, uint32_t id, uint32_t by);
/* Takes a leaf out of its parent's list and out of the index; its tokens must still be there. */
void rx_child_unlink(struct sc_radix *r, uint32_t id);
bool rx_marks_equal(const struct sc_radix *r, const struct rx_node *node,
    const struct rx_first *first);
/* The longest tail below `parent` that `most` starts with, or 0. */
uint32_t rx_tail_deepest(const struct sc_radix *r, uint32_t parent, const struct rx_first *most);

/* radix_store.c: token and id storage */
void rx_store_init(struct sc_radix *r);
void rx_store_deinit(struct sc_radix *r);
/* Finds room for n > 0 tokens, the first of them number `start` of its key, as pieces; each piece
 * is held as by one node. False: nothing held. */
bool rx_store_alloc(struct sc_radix *r, uint32_t n, uint32_t start);
void rx_store_abandon(struct sc_radix *r);
/* A holder of a range is cut in two at `pos`. */
void rx_store_cut(struct sc_radix *r, uint32_t chunk, uint32_t pos);
void rx_store_release(struct sc_radix *r, uint32_t chunk, uint32_t pos, uint32_t len);
/* A node came to its chunk or goes from it (14). `older`: the node whose run lies behind, or 0. */
void rx_store_link(struct sc_radix *r, uint32_t id, uint32_t older);
void rx_store_unlink(struct sc_radix *r, uint32_t id);
/* Moves runs that are not pinned out of sparse chunks, `token_max` tokens or one chunk at most;
 * returns how many tokens moved. Stops early without memory. */
uint64_t rx_store_compact(struct sc_radix *r, uint64_t token_max);
/* Gives wholly free chunks back to the heap. */
void rx_store_shrink(struct sc_radix *r);

/* radix_evict.c: orders, pins, removal */
bool rx_order_reserve(struct sc_radix *r, enum rx_kind kind, uint64_t count);
void rx_order_shrink(struct sc_radix *r, enum rx_kind kind, uint64_t count);
void rx_order_add(struct sc_radix *r, enum rx_kind kind, uint32_t id);
void rx_order_remove(struct sc_radix *r, enum rx_kind kind, uint32_t id);
void rx_order_use(struct sc_radix *r, enum rx_kind kind, uint32_t id);
/* Puts a node into the KV order or takes it out, as (7) says. */
void rx_kv_order_sync(struct sc_radix *r, uint32_t id);
/* True while the snapshot of `id` must stay (8). */
bool rx_state_held(const struct sc_radix *r, uint32_t id);
void rx_snapshot_attach(struct sc_radix *r, uint32_t id, uint32_t snapshot);
void rx_subtree_remove(struct sc_radix *r, uint32_t top, const struct sc_radix_sink *sink,
    enum sc_radix_cause cause);
/* Drops all of `id` but its first `len` > 0 tokens, and everything below it. */
void rx_truncate(struct sc_radix *r, uint32_t id, uint32_t len,
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
    return id != 0 && id / RX_NODE_BLOCK < r->block_count && r->blocks[id / RX_NODE_BLOCK] &&
        (rx_node(r, id)->flags & (RX_LIVE | RX_ROOT)) == RX_LIVE;
}

/* The root of a space, or 0. */
static inline uint32_t rx_root(const struct sc_radix *r, uint32_t space)
{
    return space < r->space_cap ? r->roots[space] : 0;
}

static inline uint32_t rx_end(const struct rx_node *node) { return node->start + node->len; }

/* The id of a neighbour that may be none (0). */
static inline uint32_t rx_id(const struct rx_node *node) { return node ? node->id : 0; }
static inline uint32_t rx_parent(const struct sc_radix *r, uint32_t id)
{
    return rx_id(rx_node(r, id)->parent);
}

/* How many children a node has; looks beyond its line only where it is a fork. */
static inline uint32_t rx_child_count(const struct sc_radix *r, const struct rx_node *node)
{
    return !node->child[0] ? 0 : !node->child[1] ? 1 : rx_use(r, node->id)->child_count;
}

/* Whole pages of n tokens. A division costs as much as the rest of a step, and pages of one token
 * are common. */
static inline uint32_t rx_page_of(const struct sc_radix *r, uint32_t n)
{
    return r->page == 1 ? n : n / r->page;
}

static inline uint32_t rx_page_floor(const struct sc_radix *r, uint32_t n)
{
    return r->page == 1 ? n : n - n % r->page;
}

/* Position of a node's run in its chunk, and its ids. */
static inline uint32_t rx_pos(const struct sc_radix *r, const struct rx_node *node)
{
    return (uint32_t)(node->tokens - r->store.chunks[node->chunk].tokens);
}

static inline int32_t *rx_ids(const struct sc_radix *r, const struct rx_node *node)
{
    return r->store.chunks[node->chunk].ids + rx_page_of(r, rx_pos(r, node));
}

static inline uint32_t rx_cells(const struct rx_node *node) { return node->flags >> RX_FLAG_BITS; }

static inline void rx_cells_put(struct rx_node *node, uint32_t first)
{
    node->flags = (node->flags & RX_FLAG_MASK) | first << RX_FLAG_BITS;
}

/* Pages of a run; a tail has one. */
static inline uint32_t rx_pages(const struct sc_radix *r, uint32_t len)
{
    return r->page == 1 ? len : len / r->page + (len % r->page != 0);
}

/* Tokens by which children are told apart. */
static inline uint32_t rx_first_len(const struct sc_radix *r, const struct rx_node *node)
{
    return node->len < r->page ? node->len : r->page;
}

static inline bool rx_starts_with(const struct sc_radix *r, const struct rx_node *node,
    const struct rx_first *first)
{
    if (node->tokens[0] != first->tokens[0] || rx_first_len(r, node) != first->len) return false;
    if (first->len > 1 &&
        memcmp(node->tokens, first->tokens, first->len * sizeof(int32_t)) != 0) {
        return false;
    }
    if (!(node->flags & RX_MARKED) && first->mark_count == 0) return true;
    return rx_marks_equal(r, node, first);
}

/* The child of `node` that starts with `first`, confirmed token by token and mark by mark, or NULL.
 * Up to two children are told apart by their first tokens, beside their addresses in the parent;
 * the index serves the others. */
static inline struct rx_node *rx_child_find(const struct sc_radix *r, const struct rx_node *node,
    const struct rx_first *first)
{
    if (node->flags & RX_MANY) return rx_index_find(r, node, first);
    /* A page of one token without marks is just its first token. */
    bool whole = r->page == 1 && first->mark_count == 0;
    for (uint32_t i = 0; i < 2 && node->child[i]; i++) {
        if (node->head[i] != first->tokens[0]) continue;
        if (whole && !(node->child[i]->flags & RX_MARKED)) return node->child[i];
        if (rx_starts_with(r, node->child[i], first)) return node->child[i];
    }
    return NULL;
}

/* Passes over the marks before `to`. */
static inline void rx_marks_skip(struct rx_first *first, uint32_t to)
{
    while (first->mark_count > 0 && first->marks->at < to) {
        first->marks++;
        first->mark_count--;
    }
}

/* Of `most` tokens from first->start on, those before the page of the next mark. */
static inline uint32_t rx_marks_stop(const struct sc_radix *r, const struct rx_first *first,
    uint32_t most)
{
    if (first->mark_count == 0) return most;
    uint32_t at = first->marks->at;
    uint32_t stop = at - at % r->page - first->start;
    return stop < most ? stop : most;
}

/* gcc takes a function that only prefetches for one without effect and leaves its calls out, unless
 * they are inlined first. */
#define RX_INLINE static inline __attribute__((always_inline))

/* Brings the beginning of a run to the cache; the processor brings the rest once it is read. */
RX_INLINE void rx_run_prefetch(const struct rx_node *node)
{
    const int32_t *tokens = node->tokens;
    for (int line = 0; line < 4; line++) {
        __builtin_prefetch(tokens + (size_t)line * RX_LINE_TOKENS);
    }
}

#endif
