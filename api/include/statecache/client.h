/* SPDX-License-Identifier: Apache-2.0 */
/** A client of statecached: states that the processes of a machine share.
 *
 *   open -> look-up -> acquire (the state's bytes, mapped) -> release
 *                  \-> write_begin (memory to fill) -> write_commit -> others can acquire it
 *
 * Over a Unix socket states are not copied: what acquire gives is the memory of the service's
 * sealed file, read-only; what write_begin gives becomes that file. Over TCP the library copies
 * both ways. docs/reference/protocol.md is the wire below.
 *
 * These calls are in the library statecache_client, which needs neither libstatecache nor its
 * dependencies. They block until the service has answered, or `timeout_ms` has passed; after a
 * time-out, as after any SC_ERR_CLOSED (the service was restarted, say), every call fails with
 * SC_ERR_CLOSED until sc_client_reconnect succeeds. What a client held when its connection ended is
 * given back by the service.
 *
 * Threads: one client may be used by several threads; its calls are carried out one after the
 * other. Who wants calls at the same time opens several clients. sc_client_last_error is per
 * thread. Batches are one round trip.
 *
 * Errors that the service reports arrive as the same statuses with the service's text.
 * SC_ERR_AGAIN and SC_ERR_NO_SLOT mean "not now". */
#ifndef STATECACHE_CLIENT_H
#define STATECACHE_CLIENT_H

#include "statecache/cache.h"
#include "statecache/inspect.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Functions of the library statecache_client. */
#define SC_CLIENT_API __attribute__((visibility("default")))

typedef struct sc_client sc_client;

typedef struct sc_client_options {
    size_t struct_size;
    /* "unix:PATH", "PATH" with a slash in it, or "tcp:HOST:PORT" (numbers) */
    const char *address;
    const char *token;         /* NULL: none; needed over TCP */
    const char *tenant;        /* NULL: none; whose keys these are, unless a key says otherwise */
    const sc_fingerprint *fingerprint; /* NULL: any; else the model must have it */
    uint32_t timeout_ms;       /* of each call; 0: 30,000 */
} sc_client_options;
#define SC_CLIENT_OPTIONS_INIT {sizeof(sc_client_options), NULL, NULL, NULL, NULL, 0}

/** Version of this library, as sc_version. */
SC_CLIENT_API const char *sc_client_version(void);

/** Details of the last failure of a call of this library on the calling thread. Never NULL. */
SC_CLIENT_API const sc_error_info *sc_client_last_error(void);

/** Connects and says hello. SC_ERR_INVALID, SC_ERR_NOT_FOUND (nobody listens there),
 * SC_ERR_DENIED (user id, token, tenant), SC_ERR_UNSUPPORTED (another protocol), SC_ERR_MISMATCH
 * (fingerprint), SC_ERR_AGAIN (too many clients), SC_ERR_CLOSED, SC_ERR_NO_MEMORY, SC_ERR_IO. */
SC_CLIENT_API sc_status sc_client_open(const sc_client_options *options, sc_client **client_out);
/** Ends the connection; what is still mapped for the caller is unmapped. NULL is allowed. Threads:
 * no other call on it is under way. */
SC_CLIENT_API void sc_client_close(sc_client *client);

/** Ends the connection, if it is still whole, and opens another with the same options. All leases,
 * pins (but those with `keep`) and writes are gone: `*lost_out` (may be NULL) is how many leases
 * with bytes and writes there were. Their memory stays readable until they are released or ended,
 * which unmaps it and answers SC_ERR_STALE. Errors as sc_client_open, and SC_ERR_MISMATCH: the
 * service has another model now; then calls go on failing with SC_ERR_CLOSED, and it may be tried
 * again. Never called by the library itself, so that nobody misses that leases were lost. */
SC_CLIENT_API sc_status sc_client_reconnect(sc_client *client, uint32_t *lost_out);

/** What hello said. */
typedef struct sc_client_info {
    size_t struct_size;        /* in */
    char server[32];           /* version of the service */
    char model[64];
    sc_fingerprint fingerprint;
    uint64_t state_bytes;      /* dense */
    uint64_t file_bytes;       /* of a state as it is mapped, padding included */
    uint32_t page_tokens, grid;
    bool files;                /* states come as files: a Unix socket */
    uint64_t frame_bytes;      /* limits of the service for this client */
    uint32_t key_tokens, keys, leases, writes;
} sc_client_info;
/** Fills `info_out->struct_size` bytes. SC_ERR_INVALID. Never waits. */
SC_CLIENT_API sc_status sc_client_info_get(const sc_client *client, sc_client_info *info_out);

/** One part of a state and where it lies in its bytes. Frozen. */
typedef struct sc_client_part {
    uint32_t layer;
    sc_part_kind kind;
    uint32_t index;
    sc_dtype dtype;
    uint32_t dim_count;
    uint32_t dims[SC_DIMS_MAX];
    uint64_t offset, bytes;
} sc_client_part;
/** The parts in the order of the schema. SC_ERR_LIMIT: cap is short; `*count_out` says what is
 * needed. Other errors as sc_client_lookup. */
SC_CLIENT_API sc_status sc_client_parts(sc_client *client, sc_client_part *parts_out, uint32_t cap,
    uint32_t *count_out);

/** A prompt. Frozen. As sc_key, with the adapter in the place of the namespace. */
typedef struct sc_client_key {
    const int32_t *tokens;
    const sc_mark *marks;
    uint32_t token_count, mark_count;
    uint32_t len_max;          /* longest prefix to resume; 0: token_count - 1 */
    uint32_t flags;            /* 0, or of an acquire SC_REQUEST_AGAIN; others ignore it */
    uint64_t adapter_id, adapter_generation;
    const char *tenant;        /* NULL: that of the client */
} sc_client_key;

/** As sc_cache_lookup: how much of each key could be resumed. `codec` and `pending_step` of the
 * answers are 0. SC_ERR_INVALID, SC_ERR_LIMIT (more keys or bytes than the service takes),
 * SC_ERR_CLOSED, SC_ERR_NO_MEMORY; per item in `status`. */
SC_CLIENT_API sc_status sc_client_lookup(sc_client *client, const sc_client_key *keys,
    uint32_t count, sc_answer *answers_out);

/** A state that is held. Frozen. */
typedef struct sc_client_state {
    uint64_t lease;            /* 0: nothing is held */
    uint32_t len;              /* tokens of the state; 0: a miss */
    sc_reason reason;          /* why not more */
    const void *data;          /* file_bytes, read-only; NULL: a miss */
    uint64_t bytes;
} sc_client_state;
/** Takes a lease on the longest state of each key and maps it. Waits for lower tiers, until
 * `deadline_ms` from now (0: no limit); then what is nearer is given. `each_out[i]`: SC_OK, also
 * for a miss; SC_ERR_AGAIN, SC_ERR_NO_SLOT, SC_ERR_NO_MEMORY, ... : nothing is held.
 * The bytes do not change until sc_client_release, whatever anybody does. Errors of the call as
 * sc_client_lookup: nothing is held. */
SC_CLIENT_API sc_status sc_client_acquire(sc_client *client, const sc_client_key *keys,
    uint32_t count, uint32_t deadline_ms, sc_client_state *states_out, sc_status *each_out);
/** Unmaps and gives back what is held, and clears the structs; misses are skipped. SC_ERR_STALE:
 * one of them was not held; the others are given back all the same. */
SC_CLIENT_API sc_status sc_client_release(sc_client *client, sc_client_state *states,
    uint32_t count);

/** Memory of a state that its lease does not end. Frozen. */
typedef struct sc_client_bytes {
    const void *data;          /* read-only */
    uint64_t bytes;
    uint32_t kind;             /* 0: mapped, 1: a copy (TCP) */
} sc_client_bytes;
/** Makes the memory of a state that is held the caller's own: it stays, and its bytes do not
 * change, after the release of the lease, sc_client_close and the end of the service. The lease is
 * released as ever. The service does not count memory of leases that were released.
 * SC_ERR_STALE: it is not held, or was detached already. */
SC_CLIENT_API sc_status sc_client_detach(sc_client *client, const sc_client_state *state,
    sc_client_bytes *bytes_out);
/** Unmaps or frees it and clears the struct. NULL is allowed. */
SC_CLIENT_API void sc_client_bytes_free(sc_client_bytes *bytes);

/** A state that is being written. */
typedef struct sc_client_write {
    uint64_t write;            /* 0: the service has this state; there is nothing to do */
    void *data;                /* file_bytes of zeros, to be filled; NULL with write 0 */
    uint64_t bytes;
} sc_client_write;
/** Takes room for the state after all tokens of `key`. SC_ERR_AGAIN, SC_ERR_NO_SLOT, SC_ERR_LIMIT
 * (the tenant's bytes), SC_ERR_DENIED; else as sc_client_lookup. */
SC_CLIENT_API sc_status sc_client_write_begin(sc_client *client, const sc_client_key *key,
    sc_client_write *write_out);
/** The state is complete: it is unmapped here, sealed, and can be acquired by others when this
 * returns. `*stored_out` (may be NULL) false: the cache had no use for it. `write` is cleared, also
 * on error. SC_ERR_STALE, SC_ERR_BUSY (somebody has the file mapped for writing), SC_ERR_CORRUPT,
 * else as sc_client_lookup. */
SC_CLIENT_API sc_status sc_client_write_commit(sc_client *client, sc_client_write *write,
    bool *stored_out);
/** Gives the room back. `write` is cleared. */
SC_CLIENT_API sc_status sc_client_write_abort(sc_client *client, sc_client_write *write);

/** Keeps the longest state of a key from being evicted for `seconds` (0: no limit), or until it is
 * released as any state (sc_client_release; there is no `data`), or the connection ends; with
 * `keep` it outlives the connection, and needs seconds. `state_out->lease` 0: a miss. SC_ERR_AGAIN,
 * SC_ERR_NO_SLOT, SC_ERR_DENIED; else as sc_client_lookup. */
SC_CLIENT_API sc_status sc_client_pin(sc_client *client, const sc_client_key *key,
    uint32_t seconds, bool keep, sc_client_state *state_out);
/** Evicts so many states, least valuable first; `*got_out` (may be NULL): how many went.
 * SC_ERR_DENIED; else as sc_client_lookup. */
SC_CLIENT_API sc_status sc_client_evict(sc_client *client, uint32_t states, uint32_t *got_out);
/** Declares the tokens (and marks) of a key as common to all tenants, or with `drop` takes that
 * back (SC_ERR_NOT_FOUND). SC_ERR_AGAIN (limits), SC_ERR_DENIED; else as sc_client_lookup. */
SC_CLIENT_API sc_status sc_client_common(sc_client *client, const sc_client_key *key, bool drop);

typedef struct sc_client_quota {
    uint64_t bytes;            /* of states in slots, and of those being written */
    uint64_t bytes_max;        /* 0: no limit */
    uint64_t refused;          /* writes that would have passed it */
} sc_client_quota;
/** What a tenant (NULL: the client's own) has and may have. SC_ERR_DENIED; else as
 * sc_client_lookup. */
SC_CLIENT_API sc_status sc_client_quota_get(sc_client *client, const char *tenant,
    sc_client_quota *quota_out);
/** Gives it another limit; 0: that of all tenants. What it has already stays. */
SC_CLIENT_API sc_status sc_client_quota_set(sc_client *client, const char *tenant,
    uint64_t bytes_max);

/** What the service says of itself, as JSON text (docs/reference/metrics.md), in memory that
 * sc_client_free frees. Not for a client that speaks for one tenant (SC_ERR_DENIED); else as
 * sc_client_lookup. */
SC_CLIENT_API sc_status sc_client_status(sc_client *client, char **json_out);

/** A statecached as the remote tier of a cache in this process (sc_tiers_options.remote_calls):
 * what the cache stores, all processes of the machine find; `remote_out` gets calls that speak with
 * the service, and whose states it has. Three connections, opened when they are needed and again,
 * at most once a second, when they have ended: while the service is gone, stores fail and nothing
 * is found. `options.timeout_ms` 0: 5,000. Errors as sc_client_open. The calls may be used until
 * sc_client_remote_close, from any thread. */
SC_CLIENT_API sc_status sc_client_remote_open(const sc_client_options *options,
    sc_remote *remote_out);
/** After the sc_tiers that used it has been destroyed. Clears the struct. NULL is allowed. */
SC_CLIENT_API void sc_client_remote_close(sc_remote *remote);

/** As sc_cache_evict_prefix: evicts all that begins with a key, from every tier; a key without
 * tokens: all of its tenant, or, without a tenant, everything. SC_ERR_DENIED; else as
 * sc_client_lookup. */
SC_CLIENT_API sc_status sc_client_evict_prefix(sc_client *client, const sc_client_key *prefix,
    sc_evicted *evicted_out);

/** A stretch of tokens of the service's index: sc_tree_row, with its first tokens and marks. */
typedef struct sc_client_row {
    uint32_t depth, start, end, child_count, locks;
    bool has_state, evicted;
    const int32_t *tokens;     /* the first token_count of [start, end); until `visit` returns */
    uint32_t token_count;
    const sc_mark *marks;
    uint32_t mark_count;
} sc_client_row;
/** As sc_cache_tree, of what sc_client_evict_prefix would take; at most 4,096 rows. `visit` runs
 * within the call: it must not call the client. SC_ERR_DENIED; else as sc_client_lookup. */
SC_CLIENT_API sc_status sc_client_tree(sc_client *client, const sc_client_key *prefix,
    uint32_t depth_max, uint32_t row_max, bool (*visit)(void *ctx, const sc_client_row *row),
    void *ctx, bool *more_out);

typedef struct sc_client_explanation {
    size_t struct_size;        /* in: sizeof(sc_client_explanation) */
    sc_explanation why;        /* of `answer`: reason, state_len, branch_len, pending_len */
    uint32_t common_len;       /* the tenant's mark stands there; token_count: nowhere */
    char tenant_there[64];     /* whose mark why.there is, if that is known; else "" */
} sc_client_explanation;
/** As sc_cache_explain. SC_ERR_DENIED; else as sc_client_lookup. */
SC_CLIENT_API sc_status sc_client_explain(sc_client *client, const sc_client_key *key,
    sc_client_explanation *explanation_out);

/** A pin of any client. Frozen. */
typedef struct sc_client_pinned {
    uint64_t lease;            /* with `kept`, what sc_client_release takes */
    uint32_t len;
    bool kept;                 /* it outlives its connection */
    uint64_t seconds_left;     /* 0: no limit */
    char tenant[64];
} sc_client_pinned;
/** All pins. SC_ERR_LIMIT: cap is short; `*count_out` says what is needed. SC_ERR_DENIED; else as
 * sc_client_lookup. */
SC_CLIENT_API sc_status sc_client_pins(sc_client *client, sc_client_pinned *pins_out, uint32_t cap,
    uint32_t *count_out);

/** Any method by name, for tools: `params` is one map in MessagePack (NULL: none), the result comes
 * as MessagePack in memory that sc_client_free frees. Methods that pass files are refused
 * (SC_ERR_UNSUPPORTED). Errors as sc_client_lookup and what the service says. */
SC_CLIENT_API sc_status sc_client_call(sc_client *client, const char *method, const void *params,
    size_t params_bytes, void **result_out, size_t *result_bytes_out);
/** NULL is allowed. */
SC_CLIENT_API void sc_client_free(void *result);

#ifdef __cplusplus
}
#endif
#endif
