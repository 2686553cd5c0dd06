/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix index: keys -> nodes, KV ids and snapshot ids. Pure CPU, no slots, no I/O.
 *
 * One compressed tree per space (a namespace of the engine). A node is a run of whole pages; it may
 * carry one snapshot id, which stands for the state after exactly the node's last token. KV ids and
 * snapshot ids are opaque numbers of the caller.
 *
 * Marks. A key is tokens and marks (statecache/mark.h). Two keys share the pages before the page of
 * the first token or mark in which they differ. The page of a mark starts a node.
 *
 * Tails. A snapshot inside a page is a tail: a childless node of less than a page, which hangs
 * where the page begins and owns the KV id of its partial page. Its id is no one's page but its
 * own: who resumes there goes on in a copy. A tail carries a snapshot as long as it lives; when
 * that is evicted or dropped, the node and its KV id go with it. Any number of tails may hang
 * beside each other and beside whole pages that begin with the same tokens.
 *
 * History. The bits of a token's KV and of a state depend on how the tokens before were computed
 * (design contract 9). The caller describes that by runs: from page-aligned position `start` on,
 * the content carries the 64-bit `history`. Each node has one history; an insert never mixes two:
 * where the stored history differs from the inserted one, the stored branch is in use if something
 * in it is locked, or if it holds a snapshot and the insert brings none beyond that point. A branch
 * in use stops the insert there (`conflict_len`); another is replaced, its snapshots too. So every
 * snapshot and the KV on its path come from one lineage.
 *
 * Use. A path counts as used when sc_radix_touch says so; new nodes and new snapshots start as just
 * used. Locks and look-ups do not count. An inner node is as recent as the last use of any path
 * through it.
 *
 * Arguments. A node that does not exist is SC_ERR_STALE, a space SC_ERR_NOT_FOUND, anything else
 * that a call does not accept SC_ERR_INVALID. On error nothing changed and no output is written,
 * except where a call says otherwise. Calls that may let go of ids need a sink with its functions
 * (`kv` only with KV). Memory is asked for only by create, space_add, insert, lock and (scratch)
 * verify. Arrays that had grown before a call failed for want of memory stay grown.
 *
 * Threads: calls that take a const tree may run concurrently with each other; everything else is
 * exclusive. The engine holds the lock. No recursion; no call but walk, state_order, dump, verify
 * and destroy is O(tree). */
#ifndef SC_RADIX_RADIX_H
#define SC_RADIX_RADIX_H

#include "statecache/mark.h"
#include "statecache/status.h"

struct sc_radix;
typedef uint32_t sc_node; /* 0: none */
#define SC_NODE_NONE 0u

struct sc_radix_options {
    const sc_allocator *allocator;
    uint32_t page_tokens;        /* 1 .. 2^20 */
    uint32_t grid_tokens;        /* multiple of page_tokens: for branch_len */
    uint32_t path_snapshots_max; /* 0: no cap */
    bool with_kv;                /* false: pure recurrent models, no KV ids are stored */
    uint64_t token_max;          /* 0: no limit on stored tokens */
};

sc_status sc_radix_create(const struct sc_radix_options *options, struct sc_radix **radix_out);
/* Frees everything; ids still held are simply forgotten. NULL is allowed. */
void sc_radix_destroy(struct sc_radix *radix);

/* What leaves the tree. Called during the call that evicts, with the tree locked; must not call
 * back. `kv` may get several spans a call. Neither can fail: the receiver has made room
 * beforehand. */
enum sc_radix_cause {
    SC_RADIX_CAUSE_ASKED = 0,      /* sc_radix_evict_state / _kv */
    SC_RADIX_CAUSE_CASCADE = 1,    /* a snapshot with KV that was asked for; the KV of a tail with a
                                    * snapshot that was, or of what cannot be resumed any more */
    SC_RADIX_CAUSE_SUPERSEDED = 2, /* sc_radix_snapshot_drop */
    SC_RADIX_CAUSE_PATH_CAP = 3,
    SC_RADIX_CAUSE_HISTORY = 4,    /* replaced by a branch of another history */
    SC_RADIX_CAUSE_SPACE = 5,      /* its space was removed */
    SC_RADIX_CAUSE_COUNT = 6
};
struct sc_radix_sink {
    void *ctx;
    void (*kv)(void *ctx, const int32_t *ids, uint32_t count, enum sc_radix_cause cause);
    void (*snapshot)(void *ctx, uint32_t snapshot, enum sc_radix_cause cause);
};

/* Space ids start at 1; the id of a removed space is given out again. */
sc_status sc_radix_space_add(struct sc_radix *radix, uint32_t *space_out);
/* Drops all that the space holds. SC_ERR_BUSY, changing nothing, while something in it is
 * locked. */
sc_status sc_radix_space_remove(struct sc_radix *radix, uint32_t space,
    const struct sc_radix_sink *sink);

/* In a match, marks at or beyond `len_max` or token_count are of no matter. */
struct sc_radix_key {
    const int32_t *tokens;
    uint32_t token_count;
    const sc_mark *marks; /* strictly ascending; may be NULL if there are none */
    uint32_t mark_count;
};

struct sc_radix_match {
    sc_node node;         /* deepest node with a matched page; kv_len may end inside it; no tail */
    uint32_t kv_len;      /* tokens matched: whole pages, <= len_max */
    sc_node state_node;   /* deepest node on the path with a snapshot that ends at <= len_max */
    uint32_t state_len;   /* its token count, 0 if none; of a tail, perhaps more than kv_len */
    uint32_t snapshot;    /* its snapshot id, 0 if none */
    int32_t tail_kv;      /* KV id of its partial page, if it is a tail; else, or without KV, -1 */
    uint32_t branch_len;  /* kv_len cut to the grid if > state_len, else 0 */
    uint32_t evicted_len; /* deepest position > state_len whose snapshot was evicted, else 0; a tail
                           * leaves no trace */
};
/* Pure: neither tree nor order changes. Never fails on a valid space and key; a key shorter than a
 * page can match a tail alone. Cost: one memcmp per node on the path, and the lengths of tails at
 * nodes that may hold the deepest state; never allocates. */
sc_status sc_radix_match(const struct sc_radix *radix, uint32_t space,
    const struct sc_radix_key *key, uint32_t len_max, struct sc_radix_match *match_out);

/* The same for a key that is known to begin with the path that ends at `from`, marks included (it
 * is a lease's that holds the path, or of an earlier match of this key): that part is not compared.
 * SC_NODE_NONE: nothing is known. SC_ERR_STALE: no such node; SC_ERR_INVALID: a tail, or it ends
 * behind the key or len_max. Cost: that of what lies behind `from`, and the nodes from there up to
 * the deepest snapshot. */
sc_status sc_radix_match_from(const struct sc_radix *radix, uint32_t space, sc_node from,
    const struct sc_radix_key *key, uint32_t len_max, struct sc_radix_match *match_out);
/* Asks for the memory that a match of this key will read first, and does not wait for it: for the
 * keys of a batch, one ahead. Bad arguments do nothing. */
void sc_radix_prefetch(const struct sc_radix *radix, uint32_t space,
    const struct sc_radix_key *key);

/* Marks a match as used: the KV path moves to the recent end (and that of a tail that was hit); of
 * the snapshots only the one that was used (match->state_node) does. A node that is gone is passed
 * over. Cost: O(log leaves). */
void sc_radix_touch(struct sc_radix *radix, const struct sc_radix_match *match);

/* start: multiple of the page, ascending; the first is 0. Runs from token_count on are ignored; two
 * neighbours may carry the same history. */
struct sc_radix_run { uint32_t start; uint64_t history; };
/* len: exact token count, a page multiple or the key's token_count (a tail). */
struct sc_radix_save { uint32_t len; uint32_t snapshot; };

struct sc_radix_insert {
    uint32_t space;
    const int32_t *tokens;
    uint32_t token_count;          /* multiple of the page, unless the last save is at this count */
    const int32_t *kv_ids;         /* [pages, also a partial one]; NULL without KV, and only then */
    const struct sc_radix_run *runs;
    uint32_t run_count;            /* >= 1 when token_count > 0 */
    const struct sc_radix_save *saves; /* ascending; 0 < len <= token_count, snapshot != 0 */
    uint32_t save_count;
    const sc_mark *marks;          /* strictly ascending, before token_count */
    uint32_t mark_count;
    /* Not NONE: the key is known to begin with the path that ends there, with marks and history (a
     * lease holds it since it was matched or inserted). What lies before its end is not compared,
     * and ids before it are not read. SC_ERR_STALE, SC_ERR_INVALID as for sc_radix_match_from. */
    sc_node from;
};
struct sc_radix_inserted {
    sc_node node;          /* ends at token_count (or at conflict_len); NONE if that is 0 */
    uint32_t prefix_len;   /* leading tokens that the tree held already with this history */
    uint32_t len;          /* tokens now held on this path: token_count, or conflict_len */
    uint32_t conflict_len; /* where another history in use stopped the insert; else token_count.
                            * A tail in use stops it where the tail begins */
};
/* Puts a path into the tree. Pages that it held already keep their ids: `canonical_out`
 * (as long as kv_ids, may be NULL or that array itself; untouched without KV) receives the tree's
 * id for every page up to `len`, a tail's too.
 * `save_status_out[i]`: SC_OK the snapshot is now the tree's; SC_ERR_BUSY the node already has one
 * (the caller keeps its own); SC_ERR_MISMATCH beyond conflict_len.
 * New nodes enter the lists at the recent end; existing ones do not move.
 * Errors: SC_ERR_INVALID, SC_ERR_MISMATCH (a save at another count than a page end inside the key
 * or the key's end), SC_ERR_LIMIT, SC_ERR_NO_MEMORY, SC_ERR_NOT_FOUND (space): nothing changed.
 * Never evicts to make room; only a replaced branch goes through `sink`. A branch of more than 64
 * nodes is not looked through: it counts as in use.
 * Cost: O(token_count), or what of it lies behind `from`, and the nodes replaced. */
sc_status sc_radix_insert(struct sc_radix *radix, const struct sc_radix_insert *insert,
    const struct sc_radix_sink *sink, int32_t *canonical_out, sc_status *save_status_out,
    struct sc_radix_inserted *inserted_out);

/* Drops the snapshot of a node, which becomes a tombstone; a tail is gone: SC_ERR_BUSY while
 * locked, SC_ERR_NOT_FOUND if it has none. (Snapshots are attached by sc_radix_insert.) Without KV,
 * nodes that nothing can be resumed from any more go too. */
sc_status sc_radix_snapshot_drop(struct sc_radix *radix, sc_node node,
    const struct sc_radix_sink *sink);
/* Frees what exceeds the cap on the path that ends at `node`: shallowest ancestors first, never a
 * locked one, never a branching node, never `node` itself; so the cap is soft. Does nothing without
 * a cap. Cost: O(nodes on the path). */
sc_status sc_radix_evict_excess(struct sc_radix *radix, sc_node node,
    const struct sc_radix_sink *sink, uint32_t *count_out);

/* Locks. KV locks hold every node from `node` to the root, state locks the snapshot of `node`
 * alone. The receipt names what was taken (a state lock of a node without a snapshot takes
 * nothing). Unlock gives back exactly that; a receipt that was given back already, or never given
 * out, is SC_ERR_STALE and changes nothing. A split leaves a receipt with the half that ends where
 * the node ended. Locking the root (SC_NODE_NONE) takes nothing. A node with a locked snapshot
 * cannot go, so a state lock alone also keeps its path from sc_radix_evict_kv (and counts in
 * kv_locked_tokens); and any lock of a tail also holds its snapshot. Errors of lock:
 * SC_ERR_NO_MEMORY, SC_ERR_LIMIT (2^32 locks on one node). Cost: lock and unlock climb while
 * something changes between free and held: O(depth) at most, O(1) where the node stays held by
 * another. */
enum { SC_RADIX_LOCK_KV = 1, SC_RADIX_LOCK_STATE = 2 };
struct sc_radix_receipt { uint32_t index, generation; };
sc_status sc_radix_lock(struct sc_radix *radix, sc_node node, uint32_t what,
    struct sc_radix_receipt *receipt_out);
sc_status sc_radix_unlock(struct sc_radix *radix, struct sc_radix_receipt receipt);
/* What a live receipt holds: node and SC_RADIX_LOCK_ bits really taken; with no bits the node may
 * be gone. SC_ERR_STALE. */
sc_status sc_radix_receipt_get(const struct sc_radix *radix, struct sc_radix_receipt receipt,
    sc_node *node_out, uint32_t *what_out);

/* Evicts least recently used, unlocked leaves until `token_count` tokens went or nothing is left;
 * snapshots on them go too (CASCADE). Parents that become leaves follow in their turn. With KV, of
 * the last leaf only as many pages go as are needed, and its snapshot, unless less than 64 tokens
 * or a page would be left; so less than that more than asked for. Without KV whole leaves go: of a
 * part nothing could be resumed. Cost: what it evicts. */
sc_status sc_radix_evict_kv(struct sc_radix *radix, uint64_t token_count,
    const struct sc_radix_sink *sink, uint64_t *token_count_out, uint32_t *snapshot_count_out);
/* Evicts least recently used, unlocked snapshots; their KV stays (tombstones), but for a tail's.
 * Without KV, nodes that nothing can be resumed from any more are removed too. */
sc_status sc_radix_evict_state(struct sc_radix *radix, uint32_t count,
    const struct sc_radix_sink *sink, uint32_t *count_out);

/* The snapshot that sc_radix_evict_state would drop first; NONE if there is none. */
sc_node sc_radix_state_victim(const struct sc_radix *radix);

/* Evicts what hangs on one node and nothing else: its snapshot, if it has one, and then, from the
 * node upwards, every node that is a leaf without snapshot and not locked. `rest_out` is the node
 * at which that stopped (`node` itself where its KV stays), NONE at the root. SC_ERR_BUSY,
 * changing nothing, while the snapshot is locked. Cost: what it evicts. */
sc_status sc_radix_evict_node(struct sc_radix *radix, sc_node node,
    const struct sc_radix_sink *sink, sc_node *rest_out);

/* Gives memory that evictions have freed back to the heap: until then much of it is kept for later
 * inserts. Runs in storage that is mostly free move together, `token_max` tokens (or a few thousand
 * more) at most in this call; those of locked paths stay, so that spans into them stay valid. No
 * node, id, order or answer changes. `bytes_out` (may be NULL): by how much sc_radix_stats.bytes
 * fell. Never fails for want of memory; less goes back then. Cost: O(chunks + free nodes + tokens
 * moved). */
sc_status sc_radix_trim(struct sc_radix *radix, uint64_t token_max, uint64_t *bytes_out);
/* Gives freed memory that the heap keeps (all of the subsystem's) back to the system, which takes
 * microseconds a page. Touches nothing of the tree: any thread, beside any call. */
void sc_radix_purge(const struct sc_radix *radix);

struct sc_radix_span { const int32_t *ids; uint32_t page_first, page_count; };
/* KV ids of the path that ends at `node`, from page `page_first` on, in order, as spans into the
 * tree's storage; valid while the path is KV-locked. What is contiguous in storage is one span. The
 * partial page of a tail counts as a page, the last one.
 * `*count_out` is how many there are; SC_ERR_LIMIT when cap is short (count_out says what is
 * needed, the first `cap` are written), SC_ERR_STATE without KV, SC_ERR_INVALID past the end. Cost:
 * O(nodes on the path). */
sc_status sc_radix_spans(const struct sc_radix *radix, sc_node node, uint32_t page_first,
    struct sc_radix_span *spans_out, uint32_t cap, uint32_t *count_out);

struct sc_radix_node_info {
    sc_node parent;
    uint32_t start, end;    /* token positions; less than a page apart: a tail */
    uint32_t snapshot;      /* 0: none */
    bool tombstone;         /* had a snapshot that was evicted */
    uint32_t child_count;   /* tails, too */
    uint32_t mark_count;    /* all in its first page */
    sc_node first_child, next_sibling;
    uint32_t kv_locks; /* KV receipts on this node + children at or below which something is held */
    uint32_t state_locks;
    uint64_t history;
    uint32_t space;
};
sc_status sc_radix_node_get(const struct sc_radix *radix, sc_node node,
    struct sc_radix_node_info *info_out);
/* What a walk up needs of a node, cheaper than all of the above: it reads one cache line of a node
 * that is no fork, and its parent's. False: there is no such node. */
struct sc_radix_step {
    sc_node parent;
    uint32_t start, end, snapshot, child_count;
};
bool sc_radix_step_get(const struct sc_radix *radix, sc_node node, struct sc_radix_step *step_out);
/* Where a walk goes on, down or beside; SC_NODE_NONE: nowhere, or there is no such node. */
sc_node sc_radix_child_get(const struct sc_radix *radix, sc_node node);
sc_node sc_radix_sibling_get(const struct sc_radix *radix, sc_node node);
/* The snapshot of a node; 0: none, or no such node. */
uint32_t sc_radix_snapshot_get(const struct sc_radix *radix, sc_node node);
/* Its marks. SC_ERR_STALE; SC_ERR_LIMIT when cap is short (count_out says what is needed). */
sc_status sc_radix_marks_get(const struct sc_radix *radix, sc_node node, sc_mark *marks_out,
    uint32_t cap, uint32_t *count_out);

/* The key of the path that ends at `node`: `tokens_out` has room for its end, `marks_out` for
 * `mark_cap` marks. SC_ERR_STALE; SC_ERR_LIMIT, with the count, when mark_cap is short. Cost:
 * O(tokens). */
sc_status sc_radix_path_get(const struct sc_radix *radix, sc_node node, int32_t *tokens_out,
    sc_mark *marks_out, uint32_t mark_cap, uint32_t *mark_count_out);

struct sc_radix_stats {
    uint64_t node_count, token_count, snapshot_count;
    uint64_t kv_evictable_tokens, kv_locked_tokens;     /* together token_count */
    uint64_t state_evictable_count, state_locked_count; /* together snapshot_count */
    uint64_t receipt_count;
    uint64_t tail_tokens; /* of token_count */
    uint64_t mark_count, tail_count; /* tails are nodes; their tokens and snapshots count as such */
    uint64_t bytes; /* of memory, all told */
};
void sc_radix_stats_get(const struct sc_radix *radix, struct sc_radix_stats *stats_out);

/* Visits every node in preorder (parents first); return false to stop. A tail has one page and
 * end - start tokens. For tests and dumps. */
typedef bool (*sc_radix_visit_fn)(void *ctx, sc_node node, const struct sc_radix_node_info *info,
    const int32_t *tokens, const int32_t *kv_ids, uint32_t page_count);
void sc_radix_walk(const struct sc_radix *radix, uint32_t space, sc_radix_visit_fn fn, void *ctx);
/* State LRU order, most recent first, locked ones too; at most `cap` of them. For tests. */
uint32_t sc_radix_state_order(const struct sc_radix *radix, sc_node *nodes_out, uint32_t cap);

/* ASCII picture of a space, a line per write. */
sc_status sc_radix_dump(const struct sc_radix *radix, uint32_t space,
    void (*write)(void *ctx, const char *line), void *ctx);

/* Walks everything: counts, lists, links, locks, histories. SC_ERR_CORRUPT with text. O(tree). */
sc_status sc_radix_verify(const struct sc_radix *radix);

#endif
