/* SPDX-License-Identifier: Apache-2.0 */
/* Records of states on disk: metadata in LMDB, payloads in extent files, in one folder.
 *
 *   begin --> shard (each, on any thread) --> commit --> visible          payload, fdatasync, LMDB
 *     '----------------'--> abort                                        nothing was ever there
 *
 *   find: is there a record, and why not         pure; never waits for a write
 *   open --> read (each shard) --> close         pinned meanwhile; verified
 *
 * A record is the state after exactly token_count tokens of a key, and the KV of its tokens beyond
 * those of its parent record. Records form the tree of their prefixes: `parent_len` says how long
 * the parent is. Payloads are bytes to the store (tier/pack.h makes them of states). Nothing is
 * offered whose key, shards, numerics, lengths and checksum are not what was asked for: each
 * mismatch is a miss that says which (contract 15).
 *
 * Time is an argument: nanoseconds that go on over restarts (since 1970, say). A day of the budget
 * is a day of that clock; when it steps back, the old day stays.
 *
 * Threads: any call from any thread, but one thread at a time for one sc_store_put and one
 * sc_store_reader, and none beside sc_store_close. Calls that write metadata (commit, evict, drop,
 * gc; shard when it has to make room) wait for each other and for the disk. find, open and close of
 * a reader never wait for those; they read metadata, which may be a page fault.
 * Processes: one. A second open, in this process or another, is SC_ERR_BUSY. After fork() the child
 * is refused by every call (SC_ERR_STATE) and may only close, which frees memory and touches no
 * file.
 *
 * Errors of calls: SC_ERR_INVALID; SC_ERR_NO_MEMORY; SC_ERR_LIMIT: "not stored" (budget, full disk,
 * full map, not worth it); SC_ERR_IO; SC_ERR_CORRUPT. After one, the store is as before and usable,
 * unless LMDB itself says that its file cannot be trusted to be (then every call is SC_ERR_IO until
 * it is opened again). */
#ifndef SC_TIER_DISK_STORE_H
#define SC_TIER_DISK_STORE_H

#include "base/heap.h"
#include "snapshot/registry.h"
#include "statecache/mark.h"
#include "statecache/schema.h"
#include "tier/faults.h"

enum {
    SC_STORE_FORMAT = 1,            /* of docs/reference/tier-format.md */
    SC_STORE_SHARDS_MAX = 1024,     /* of one record */
    SC_STORE_TOKENS_MAX = 1 << 26,
    SC_STORE_EXTENTS_MAX = 64       /* of one shard */
};

enum sc_store_switch { SC_STORE_AUTO = 0, SC_STORE_ON = 1, SC_STORE_OFF = 2 };

struct sc_store_options {
    const char *folder;          /* made if it is not there; its parent must be */
    uint64_t bytes_max;          /* of payload on disk, whole blocks; 0: no limit but the disk */
    uint64_t day_bytes_max;      /* payload written in a day; 0: no limit */
    uint64_t map_bytes;          /* of metadata; 0: an eighth of bytes_max, 64 MiB .. 64 GiB */
    uint64_t file_bytes;         /* of one extent file, fixed when the store is made; 0: 1 GiB */
    enum sc_store_switch uring;  /* AUTO: where it works */
    enum sc_store_switch direct;
    bool must_exist;             /* SC_ERR_NOT_FOUND instead of an empty new store */
    const sc_allocator *allocator;
    /* for tests */
    const struct sc_tier_faults *faults;
    uint32_t chunk_bytes;        /* of one transfer, a multiple of 4096; 0: 1 MiB */
    uint32_t hash_bits;          /* of the 128 of a key's hash; 0: all */
};

struct sc_store;

/* SC_ERR_BUSY (open already), SC_ERR_UNSUPPORTED (another format or page size, a switch that is ON
 * and does not work), SC_ERR_CORRUPT (metadata cut or not readable), SC_ERR_IO. What a crash left
 * behind is free again: O(records). */
sc_status sc_store_open(const struct sc_store_options *options, struct sc_store **store_out);
/* NULL is allowed. No put and no reader may be left (asserted), but in a forked child. */
void sc_store_close(struct sc_store *store);

/* ---- keys ---- */

struct sc_store_key {
    sc_fingerprint fingerprint;
    uint64_t adapter_id, adapter_generation;
    const int32_t *tokens; /* token_count: what the state is after, exactly */
    uint32_t token_count;
    const sc_mark *marks;  /* strictly ascending, all below token_count */
    uint32_t mark_count;
};

/* A key's permanent hash: the same in every process (docs/reference/tier-format.md). */
struct sc_store_hash { uint64_t low, high; };
sc_status sc_store_key_hash(const struct sc_store_key *key, struct sc_store_hash *hash_out);

/* ---- storing ---- */

struct sc_store_record {
    struct sc_store_key key;
    /* length of the record whose KV goes before this one's; 0: none. If that record is not there,
     * one without KV gets no parent; one with KV is refused. */
    uint32_t parent_len;
    uint32_t numerics;           /* revision of the kernels' numerics */
    uint32_t kind;               /* enum sc_snapshot_kind, or what the caller says */
    double value;                /* finite; lowest goes first, then least recently used */
    const struct sc_stretch *history; /* ends at token_count; NULL with 0: not known */
    uint32_t history_count;
    uint32_t shard_count;        /* visible once that many are there */
    const sc_shard *shards;      /* distinct */
};

enum { SC_STORE_LOSSY = 1, SC_STORE_ZSTD = 2 }; /* flags of a shard */

struct sc_store_payload {
    const void *bytes;
    uint64_t state_bytes;     /* first the state as packed */
    uint64_t kv_bytes;        /* then the KV of tokens from parent_len on */
    uint64_t plain_bytes;     /* of the state before compression */
    uint32_t codec;           /* id of snapshot/codec.h */
    uint32_t flags;
};

struct sc_store_put;

/* Copies `record`. SC_OK with `*put_out` NULL: the same is there already (it counts as a use).
 * SC_ERR_BUSY: it is being written, or an unlike record of this key is being read.
 * SC_ERR_NOT_FOUND: with_kv and no record of parent_len. */
sc_status sc_store_begin(struct sc_store *store, const struct sc_store_record *record, bool with_kv,
    struct sc_store_put **put_out);
/* Writes one shard; evicts to make room. Different shards of one put one after the other; different
 * puts side by side. On error that shard may be given again. SC_ERR_STATE: it is there. */
sc_status sc_store_shard(struct sc_store *store, struct sc_store_put *put, uint32_t shard,
    const struct sc_store_payload *payload, uint64_t now_ns);
/* Makes `count` records visible and durable: one sync for each file, one LMDB commit, which it
 * shares with calls of other threads that come while one is under way. All puts are consumed.
 * `each_out[i]`: SC_OK, or why that one was not stored (SC_ERR_STATE: a shard is missing), with the
 * text of the last failure in sc_last_error. */
sc_status sc_store_commit(struct sc_store *store, struct sc_store_put **puts, uint32_t count,
    uint64_t now_ns, sc_status *each_out);
/* NULL is allowed. */
void sc_store_abort(struct sc_store *store, struct sc_store_put *put);

/* ---- reading ---- */

enum sc_store_reason {
    SC_STORE_HIT = 0,
    SC_STORE_ABSENT,      /* no record of these tokens */
    SC_STORE_FINGERPRINT, /* of these tokens, but another model, revision, shape or dtype */
    SC_STORE_ADAPTER,     /* another adapter, or another generation of it */
    SC_STORE_MARK,        /* other marks: another tenant or image */
    SC_STORE_SHARD,       /* the model was divided otherwise */
    SC_STORE_NUMERICS,    /* computed by kernels of another revision */
    SC_STORE_CODEC,       /* stored with loss, and only exact ones are wanted */
    SC_STORE_PARENT,      /* its KV starts behind a record that is gone */
    SC_STORE_WRITING,     /* not complete yet */
    SC_STORE_DAMAGED,     /* bytes failed their check; it will be dropped */
    SC_STORE_FAILED,      /* metadata could not be read: the error record says why */
    SC_STORE_REASON_COUNT
};
/* Static text; never NULL. */
const char *sc_store_reason_text(enum sc_store_reason reason);

/* What the reader can use. */
struct sc_store_want {
    uint32_t numerics;
    const sc_shard *shards; /* in the order of reading; all must be there, and no others */
    uint32_t shard_count;
    bool lossy;             /* also records stored with loss */
};

struct sc_store_shard_info {
    sc_shard shard;
    uint32_t codec, flags, extent_count;
    uint64_t state_bytes, kv_bytes, plain_bytes;
    uint64_t check_low, check_high; /* XXH3-128 of the payload */
};

struct sc_store_info {
    uint32_t id;             /* stays until the record is dropped; then used again */
    uint32_t parent;         /* id, or SC_STORE_NO_PARENT */
    uint32_t parent_len, token_count;
    uint32_t numerics, kind, shard_count, history_count, mark_count;
    uint64_t payload_bytes;  /* of all shards */
    uint64_t disk_bytes;
    double value;
    uint64_t stored_ns;
    uint64_t tick;           /* of its commit: no other record of the store ever has it */
    bool has_record;         /* false: only the tokens of records beyond it */
};
#define SC_STORE_NO_PARENT UINT32_MAX

/* Changes nothing. `info_out` (may be NULL) is filled on a hit. Errors: SC_ERR_INVALID,
 * SC_ERR_STATE; all else is a reason. Cost: O(tokens). */
sc_status sc_store_find(struct sc_store *store, const struct sc_store_key *key,
    const struct sc_store_want *want, enum sc_store_reason *reason_out,
    struct sc_store_info *info_out);

struct sc_store_reader;

/* Finds and pins: until sc_store_reader_close it is neither evicted nor overwritten. `*reader_out`
 * is NULL on a miss. SC_ERR_NO_MEMORY. */
sc_status sc_store_reader_open(struct sc_store *store, const struct sc_store_key *key,
    const struct sc_store_want *want, enum sc_store_reason *reason_out,
    struct sc_store_reader **reader_out);
/* By id, without a key: for tools and for records that the iterator gave. SC_ERR_NOT_FOUND. */
sc_status sc_store_reader_open_id(struct sc_store *store, uint32_t id,
    struct sc_store_reader **reader_out);
void sc_store_reader_info(const struct sc_store_reader *reader, struct sc_store_info *info_out);
/* `shard`: index in the want; by id, in the record. SC_ERR_INVALID. */
sc_status sc_store_reader_shard(const struct sc_store_reader *reader, uint32_t shard,
    struct sc_store_shard_info *info_out);
/* SC_ERR_LIMIT when cap is short. */
sc_status sc_store_reader_history(const struct sc_store_reader *reader,
    struct sc_stretch *history_out, uint32_t cap, uint32_t *count_out);
/* The whole key: token_count tokens, mark_count_out marks (those of all records above, too).
 * SC_ERR_LIMIT: a cap is short; counts are given. SC_ERR_CORRUPT: a record above is damaged. */
sc_status sc_store_reader_key(const struct sc_store_reader *reader, int32_t *tokens_out,
    uint32_t token_cap, sc_mark *marks_out, uint32_t mark_cap, struct sc_store_key *key_out);
/* The whole payload of a shard, checked. 4 KiB aligned memory saves a copy. SC_ERR_LIMIT: capacity.
 * SC_ERR_CORRUPT: the record is no hit any more and goes first; the caller's to drop, or it is read
 * once more after the next open. SC_ERR_IO: it stays, this read is a miss. On error the bytes of
 * `payload` are undefined. */
sc_status sc_store_read(struct sc_store_reader *reader, uint32_t shard, void *payload,
    uint64_t capacity);
/* NULL is allowed. */
void sc_store_reader_close(struct sc_store_reader *reader);

/* ---- the tree, back after a restart ---- */

struct sc_store_edge {
    struct sc_store_info info;
    sc_fingerprint fingerprint;
    uint64_t adapter_id, adapter_generation;
    struct sc_store_hash hash;
    const int32_t *tokens;   /* [parent_len, token_count) of the key */
    const sc_mark *marks;    /* those of that range, positions absolute */
    uint32_t mark_count;     /* in `marks`; info.mark_count too */
    const struct sc_stretch *history; /* info.history_count */
};

struct sc_store_iter;
/* Every record and every edge that leads to one, parents before children. What others store
 * meanwhile may or may not come. Holds no transaction between calls. SC_ERR_NO_MEMORY. */
sc_status sc_store_iter_open(struct sc_store *store, struct sc_store_iter **iter_out);
/* SC_OK; SC_ERR_NOT_FOUND past the end. The arrays are the iterator's until the next call.
 * SC_ERR_IO, SC_ERR_NO_MEMORY: the same may be asked for again. */
sc_status sc_store_iter_next(struct sc_store_iter *iter, struct sc_store_edge *edge_out);
/* The edge of this id, whatever was given before, and nothing else changes. SC_ERR_NOT_FOUND: it is
 * not there, or came after the iterator was opened. */
sc_status sc_store_iter_at(struct sc_store_iter *iter, uint32_t id, struct sc_store_edge *edge_out);
void sc_store_iter_close(struct sc_store_iter *iter);

/* ---- care ---- */

/* Drops the lowest records that nothing holds, until blocks of that many bytes were freed or none
 * is left. `freed_out` may be NULL. */
sc_status sc_store_evict(struct sc_store *store, uint64_t bytes, uint64_t *freed_out);
/* Drops one record; a pinned one is no hit any more, and goes when its last reader is closed, which
 * waits for that. SC_ERR_NOT_FOUND. */
sc_status sc_store_drop(struct sc_store *store, uint32_t id);
/* The same, if it is still the record of that tick, and not another one that got its id. */
sc_status sc_store_drop_exactly(struct sc_store *store, uint32_t id, uint64_t tick);
/* Whether the record that `put` will be begins behind record `id`, at whatever depth. O(depth). */
bool sc_store_put_needs(struct sc_store *store, const struct sc_store_put *put, uint32_t id);
/* Drops every record of an adapter generation (any fingerprint). */
sc_status sc_store_drop_adapter(struct sc_store *store, uint64_t adapter_id,
    uint64_t adapter_generation, uint64_t *count_out);

struct sc_store_gc { uint64_t dropped_count, edge_count, freed_bytes, file_count; };
/* Drops damaged records and those whose KV can never be complete, edges that lead nowhere, and
 * empty extent files at the end of the list. */
sc_status sc_store_gc(struct sc_store *store, struct sc_store_gc *gc_out);

struct sc_store_fault { uint32_t id; const char *text; };
struct sc_store_verify_result { uint64_t record_count, edge_count, payload_bytes, fault_count; };
/* Metadata against itself and, with `payloads`, every byte against its checksum. `fn` (may be NULL)
 * is told of each fault; faults are not errors of the call. What is damaged is dropped by gc. */
sc_status sc_store_verify(struct sc_store *store, bool payloads,
    void (*fn)(void *ctx, const struct sc_store_fault *fault), void *ctx,
    struct sc_store_verify_result *result_out);

struct sc_store_stats {
    uint64_t record_count, edge_count;
    uint64_t used_bytes, pending_bytes, bytes_max; /* whole blocks */
    uint64_t file_count, file_bytes;
    uint64_t written_bytes;                        /* ever */
    uint64_t day, day_bytes, day_bytes_max;
    uint64_t map_bytes, map_used_bytes;
    uint64_t stored_count, evicted_count, dropped_count, read_count;  /* since open */
    uint64_t refused_budget, refused_day, refused_value, refused_full, refused_map;
    uint64_t reclaimed_count; /* records that open found damaged and dropped */
    uint64_t io_error_count;
    uint64_t miss_count[SC_STORE_REASON_COUNT]; /* of reader_open */
    bool uring, direct;
};
sc_status sc_store_stats_get(struct sc_store *store, struct sc_store_stats *stats_out);
/* The same bytes as in the stats, without a look at the metadata. SC_ERR_IO: it could not be
 * written, and the store must be opened again; the bytes are told all the same. */
sc_status sc_store_wear_get(struct sc_store *store, uint64_t *written_bytes_out, uint64_t *day_out,
    uint64_t *day_bytes_out);
/* Payload bytes ever written to extent file `file`; SC_ERR_NOT_FOUND past the last. */
sc_status sc_store_file_wear(struct sc_store *store, uint32_t file, uint64_t *bytes_out);

#endif
