/* SPDX-License-Identifier: Apache-2.0 */
/* The disk store from inside.
 *
 *   LMDB (data.mdb)                              extent-00000.dat, extent-00001.dat, ...
 *     nodes   id -> node: key edge, shards,        |block|block|block|  4 KiB each, preallocated
 *             extents, checks                             ^
 *     keys    hash of the key -> ids                      '-- extents of nodes; what no node names
 *     tokens  hash of the tokens alone -> ids                 is free
 *     meta    format, wear
 *
 *   memory, by id: struct entry              a node's state:
 *
 *     FREE --commit begins--> NEW --committed--> LIVE --dropped, has children--> EDGE
 *       ^                      | failed           |                                |
 *       +----------------------'                  '--> DYING --committed--> FREE <-'
 *
 * (1) A block is free, pending (of a put) or used (of a committed node), never two of them. Blocks
 *     of a removed node become free after the commit that removed it, so no node on disk, now or
 *     after a crash, names a block that was written for another.
 * (2) A node is committed after its payload was synced, and with its keys, in one transaction.
 * (3) Parents are nodes, of fewer tokens: no cycles. A node with children is never removed; a
 *     record with children that is dropped leaves its edge.
 * (4) `order` is a heap of exactly the records that may be evicted: LIVE, no children, no pins.
 * (5) child_count counts committed children and pending puts, so that a parent outlives both.
 * (6) Free blocks are not on disk: open makes the map from the nodes. So nothing leaks in a crash.
 *
 * (7) After a sync has failed it is not known what of the payloads written before it is on disk,
 *     and the next sync says nothing about them: none of them is committed any more.
 *
 * Locking: `write_lock` (one writer of LMDB, may wait for the disk), then `read_lock` (shared by
 * transactions that read), then `lock` (entries, blocks,
 * order, counters; never held over a call to the system, but sc_heap). Readers pin under `lock`
 * first and read the node in a transaction begun afterwards: what they see cannot be removed.
 *
 * Cost: 48 bytes of memory a node and a bit a block; open is O(nodes) and reads the metadata once,
 * in its order (a second for a million); find O(tokens); eviction O(log n) and one transaction for
 * up to EVICT_MAX records. Rejected: free extents in LMDB (twice the writes, and a leak after each
 * crash in between); tokens in full in each record (n^2). */
#ifndef SC_TIER_STORE_INTERNAL_H
#define SC_TIER_STORE_INTERNAL_H

#include <lmdb.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/sc_assert.h"
#include "tier_io.h"

enum {
    NONE = UINT32_MAX,
    EVICT_MAX = 64,
    FILES_MAX = 65536,
    ROOM_TRIES = 64
};

/* ---- nodes on disk: little-endian, as docs/reference/tier-format.md has them ---- */

#define NODE_MAGIC UINT32_C(0x314e4353) /* "SCN1" */
enum { NODE_RECORD = 1, NODE_KV = 2 };

struct node_head {
    uint32_t magic, bytes;
    uint32_t parent, parent_len, token_count, flags;
    uint32_t numerics, kind;
    uint8_t fingerprint[16];
    uint64_t adapter_id, adapter_generation;
    uint64_t hash_low, hash_high, tokens_low, tokens_high;
    double value;
    uint64_t stored_ns, tick;
    uint32_t shard_count, extent_count, history_count, mark_count;
};
static_assert(sizeof(struct node_head) == 136, "head of a node");

struct node_shard {
    uint32_t tp_rank, tp_size, pp_rank, pp_size, layer_first, layer_count;
    uint32_t codec, flags;
    uint64_t state_bytes, kv_bytes, plain_bytes;
    uint64_t check_low, check_high;
    uint32_t extent_first, extent_count;
};
static_assert(sizeof(struct node_shard) == 80, "a shard of a node");

struct node_extent { uint32_t file, block, count, reserved; };
static_assert(sizeof(struct node_extent) == 16, "an extent");
static_assert(sizeof(sc_mark) == 20 && sizeof(struct sc_stretch) == 8, "marks and stretches");

/* A node in memory of LMDB or a copy: arrays are not aligned. */
struct node_view {
    struct node_head head;
    const uint8_t *bytes, *shards, *extents, *history, *marks, *tokens;
    uint32_t edge_count; /* tokens */
};

/* SC_ERR_CORRUPT unless every length, count and the check agree. */
sc_status node_parse(const void *bytes, size_t count, struct node_view *view_out);
struct node_shard node_shard_at(const struct node_view *view, uint32_t shard);
struct node_extent node_extent_at(const struct node_view *view, uint32_t extent);
uint64_t node_payload_bytes(const struct node_view *view);
/* What store_put.c and removal write. NULL arrays have count 0. */
struct node_parts {
    struct node_head head; /* magic, bytes: filled in */
    const struct node_shard *shards;
    const struct node_extent *extents;
    const struct sc_stretch *history;
    const sc_mark *marks;
    const int32_t *tokens;
};
size_t node_bytes(const struct node_parts *parts);
void node_build(const struct node_parts *parts, uint8_t *out);
/* The same node without its record, in place; returns its new length. */
size_t node_make_edge(uint8_t *bytes, const struct node_view *view);

/* ---- entries ---- */

enum entry_state { ENTRY_FREE = 0, ENTRY_NEW, ENTRY_EDGE, ENTRY_LIVE, ENTRY_DYING };

struct entry {
    double value;
    uint64_t tick;       /* of the last use */
    uint32_t parent;     /* id or NONE */
    uint32_t child_count;
    uint32_t blocks;
    uint32_t pins;
    uint32_t order_at;   /* place in the heap, NONE */
    uint8_t state;
    bool damaged;        /* no hit any more, first to go */
    bool dropped;        /* the same, by request */
    bool was_edge;       /* of a DYING one */
    bool uncounted;      /* ... that its parent's child_count does not count any more */
};

struct extent_list { struct node_extent *items; uint32_t count, cap; };

struct space_file {
    uint64_t *used;      /* a bit a block */
    uint64_t written_bytes;
    uint32_t free_count, cursor;
    int fd;
};

struct pending_shard {
    struct node_shard head;
    struct node_extent extents[SC_STORE_EXTENTS_MAX];
    uint64_t failed_syncs; /* of the store, before it was written: see (7) */
    bool done;
};

struct sc_store_put {
    struct sc_store_put *next, *prev; /* list of the store */
    struct sc_store_record record;    /* arrays: copies behind the struct */
    struct sc_store_hash hash, tokens_hash;
    size_t bytes;                     /* of this block */
    uint32_t parent;                  /* id or NONE; holds a child_count there */
    uint32_t parent_len;
    uint32_t id;                      /* during commit */
    uint64_t tick;
    uint64_t now_ns; /* of its commit */
    bool with_kv;
    bool is_new_id, replaces;         /* of `id` */
    uint8_t *blob;                    /* during commit */
    size_t blob_bytes;
    struct pending_shard *shards;     /* [record.shard_count] */
};

/* A call of commit that waits: whoever gets write_lock next commits for all of them. */
struct commit_wait {
    struct commit_wait *next;
    struct sc_store_put **puts;
    sc_status *each_out;
    uint32_t count;
    bool done;        /* its puts are gone, its statuses are there */
    sc_status failed; /* the last failure, and what was said of it */
    struct sc_error_info error;
};

struct sc_store {
    struct sc_heap heap;
    struct sc_store_options options;
    char *folder;
    size_t folder_bytes;
    pid_t pid;
    int lock_fd;
    struct tier_io io;

    MDB_env *env;
    MDB_dbi nodes, keys, tokens, meta;
    _Atomic bool broken;       /* LMDB says that it cannot go on */

    struct sc_mutex write_lock, lock;
    struct sc_rwlock read_lock; /* shared by transactions that read; see db_drain */
    /* under lock */
    struct entry *entries;
    uint32_t entry_count, entry_cap, entry_free_hint;
    uint32_t *order, order_count;
    struct space_file *files;
    uint32_t file_count, file_cap, file_blocks, space_cursor;
    uint64_t used_blocks, pending_blocks;
    struct sc_store_put *puts;
    struct commit_wait *commits, **commits_end;
    uint64_t tick, written_bytes, day, day_bytes;
    uint64_t failed_syncs;     /* syncs of extent files that failed: (7) */
    uint32_t grow_wait;        /* tries until a full disk is asked again */
    struct sc_store_stats stats;
};

/* ---- store.c ---- */
/* Every call begins with it: SC_ERR_INVALID for NULL, SC_ERR_STATE in a forked child. */
sc_status store_enter(const struct sc_store *store);

/* ---- store_key.c ---- */
sc_status store_key_check(const struct sc_store_key *key);
struct sc_store_hash store_hash(const struct sc_store *store, const struct sc_store_key *key,
    uint32_t token_count);
struct sc_store_hash store_tokens_hash(const struct sc_store *store, const int32_t *tokens,
    uint32_t count);
uint32_t store_marks_below(const struct sc_store_key *key, uint32_t at);
uint64_t store_check64(const void *bytes, size_t count);
bool store_shard_equal(const sc_shard *shard, const struct node_shard *stored);
/* At least one, no two alike. */
sc_status store_shards_check(const sc_shard *shards, uint32_t count);
sc_shard store_shard_resolved(const sc_shard *shard);

/* ---- store_db.c ---- */
sc_status db_fail(struct sc_store *store, int rc, const char *what);
/* A call of LMDB that may be made to fail: gives its code. */
#define DB(store, name, call)                                                                      \
    __extension__({                                                                                \
        int db_rc_ = sc_tier_fault((store)->options.faults, (name));                               \
        db_rc_ ? db_rc_ : (call);                                                                  \
    })
sc_status db_open(struct sc_store *store);
void db_close(struct sc_store *store);
/* Asks for the whole file of metadata, in its order, when memory has room for it: the walk over all
 * nodes jumps about, and a page at a time takes a disk fifty times as long. */
void db_read_ahead(struct sc_store *store);
sc_status db_begin_read(struct sc_store *store, MDB_txn **txn_out);
void db_end_read(struct sc_store *store, MDB_txn *txn);
sc_status db_begin_write(struct sc_store *store, MDB_txn **txn_out);
/* Waits until no transaction reads that does now: what they held of the map is free after that. The
 * caller holds write_lock at most. */
void db_drain(struct sc_store *store);
/* Ends the transaction in any case. */
sc_status db_commit(struct sc_store *store, MDB_txn *txn);
/* SC_ERR_NOT_FOUND without text; SC_ERR_CORRUPT. */
sc_status db_node(struct sc_store *store, MDB_txn *txn, uint32_t id, struct node_view *view_out);
sc_status db_put_node(struct sc_store *store, MDB_txn *txn, uint32_t id, const void *bytes,
    size_t count);
sc_status db_add_keys(struct sc_store *store, MDB_txn *txn, uint32_t id, struct sc_store_hash hash,
    struct sc_store_hash tokens_hash);
sc_status db_remove_node(struct sc_store *store, MDB_txn *txn, uint32_t id,
    const struct node_view *view);
sc_status db_put_wear(struct sc_store *store, MDB_txn *txn);
/* Share of the map that is in use, percent; pages. */
sc_status db_usage(struct sc_store *store, MDB_txn *txn, uint64_t *used_out, uint64_t *map_out);

/* ---- store_find.c ---- */
/* The node of exactly this key, whatever its state; NONE. */
sc_status store_lookup(struct sc_store *store, MDB_txn *txn, const struct sc_store_key *key,
    uint32_t token_count, struct sc_store_hash hash, uint32_t *id_out);
struct sc_store_put *store_pending(struct sc_store *store, const struct sc_store_key *key,
    struct sc_store_hash hash);
/* The hit or why not, in a transaction; `*view_out` on a hit. */
sc_status store_find_in(struct sc_store *store, MDB_txn *txn, const struct sc_store_key *key,
    const struct sc_store_want *want, enum sc_store_reason *reason_out, uint32_t *id_out,
    struct node_view *view_out);
bool store_record_is_like(const struct node_view *view, const struct sc_store_record *record);
void store_info_of(const struct node_view *view, uint32_t id, struct sc_store_info *info_out);

/* ---- store_entry.c: callers hold `lock` ---- */
sc_status entry_reserve(struct sc_store *store, uint32_t more);
uint32_t entry_take(struct sc_store *store);
void entry_give(struct sc_store *store, uint32_t id);
/* Puts it in the order or takes it out, as (4) says. */
void order_update(struct sc_store *store, uint32_t id);
bool entry_is_hit(const struct sc_store *store, uint32_t id);

/* ---- store_space.c: callers hold `lock`, but for the first two ---- */
sc_status space_open_files(struct sc_store *store);
/* One more extent file; the caller holds write_lock. */
sc_status space_grow(struct sc_store *store);
void space_close(struct sc_store *store);
/* False when there is no room in at most SC_STORE_EXTENTS_MAX pieces. */
bool space_take(struct sc_store *store, uint32_t blocks, struct node_extent *extents,
    uint32_t *count_out);
void space_give(struct sc_store *store, const struct node_extent *extents, uint32_t count);
/* For open: SC_ERR_CORRUPT, nothing marked, when a block is taken or does not exist. */
sc_status space_mark(struct sc_store *store, const struct node_view *view);
/* Drops empty files at the end; the caller holds write_lock, too. Returns how many. */
uint32_t space_shrink(struct sc_store *store);
void store_file_path(const struct sc_store *store, uint32_t file, char *out, size_t bytes);

/* ---- store_remove.c ---- */
/* Removes the listed LIVE records (pins 0), with edges that led to them alone; one transaction. The
 * caller holds write_lock and has marked nothing. */
sc_status store_remove(struct sc_store *store, const uint32_t *ids, uint32_t count,
    uint64_t *freed_blocks_out);
/* A record that was dropped while it was pinned goes; if that fails it is the next to be
 * evicted. */
void store_drop_unpinned(struct sc_store *store, uint32_t id);
/* Makes room: up to EVICT_MAX records of at most `value_max`. `*freed_out` 0: none could go. */
sc_status store_evict_some(struct sc_store *store, uint64_t blocks, double value_max,
    uint64_t *freed_out);
/* Evicts while the map is fuller than it should be. */
sc_status store_evict_map(struct sc_store *store, double value_max);

/* ---- store_put.c ---- */
bool put_is_complete(const struct sc_store_put *put);
/* After its commit; the caller holds `lock`. The put is gone. Returns the id of the parent that its
 * node had before, or NONE. */
uint32_t put_publish(struct sc_store *store, struct sc_store_put *put);

/* ---- growable lists ---- */
bool extent_list_add(struct sc_store *store, struct extent_list *list,
    const struct node_view *view);
void extent_list_free(struct sc_store *store, struct extent_list *list);

#endif
