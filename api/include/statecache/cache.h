/* SPDX-License-Identifier: Apache-2.0 */
/** The life of a request in a cache of recurrent states.
 *
 *   look-up  ->  acquire  ->  [ plan  ->  (the engine's forward)  ->  commit ]*  ->  release
 *
 * A scheduler asks how much of a prompt can be resumed (`sc_cache_lookup`, pure), takes a lease on
 * it (`sc_cache_acquire`: pins the hit, takes a working slot), and for each forward plans which
 * slots the kernels read and write (`sc_step_plan`), runs the kernels, and commits what really
 * happened (`sc_step_commit`). Only then are the step's saves published. `sc_lease_release` keeps
 * or discards the end. Memory of states is the pool's (statecache/pool.h); KV ids are the engine's:
 * one `int32` for each page of tokens, handed in when the page is complete, handed back through
 * `sc_cache_drain` when the cache lets go of it.
 *
 *   acquire --no room--> nothing is held
 *      |- EXTERNAL ------> WAITING --filled--> READY
 *      |- lower tier ----> WAITING --apply---> READY, shorter if it failed or came too late
 *      '-----------------> READY
 *   READY --plan--> RUNNING (1 to depth steps out) --last commit--> READY
 *   RUNNING --abort, launched--> LOST --release--> gone;   abort, not launched: as if never planned
 *   any --release--> gone, or with steps out: DRAINING --last commit or abort--> gone
 *
 * Kernels read a snapshot in place (source slot) and write the working slot (destination): a hit
 * copies nothing. When a row ends where a state is to be saved, its working slot is *frozen*: it
 * becomes the snapshot, and the next step reads it and writes a fresh slot.
 *
 * Several steps in flight. A step may be planned before the one before it is committed, up to
 * `depth_max` of them. A row then starts where the lease's rows in flight end (`issued_len`), and
 * may process one token that the step before is about to sample: it is appended later, before its
 * step is committed. Steps may be committed in any order, but those of one lease in theirs.
 *
 * Exactness. Resuming gives the bits of not having stopped (design contract 10) for a cold run with
 * the same history: the same non-grid cuts and the same runs of prefill and decode.
 * `sc_lease_history` reads it. KV and state that are offered together always come from one history.
 *
 * Threads: look-ups, statistics and `info` calls from any thread; all other calls are mutators, of
 * which the cache admits one at a time (it serialises them itself by one lock, which is never held
 * over I/O or device calls: slots are prepared after it was given back). Calls about one lease, or
 * one step, do not overlap: what a call names is the caller's when it has returned. Decisions are a
 * pure function of the sequence of mutating calls (contract 18).
 *
 * Lower tiers (statecache/tiers.h). States that are evicted, or worth it, go down to host memory
 * and disk, with their KV; acquire brings them back where that is sooner than computing. What is on
 * disk is there again after a restart. docs/explanation/tiers.md */
#ifndef STATECACHE_CACHE_H
#define STATECACHE_CACHE_H

#include "statecache/kernels_choice.h"
#include "statecache/mark.h"
#include "statecache/pool.h"
#include "statecache/tiers.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sc_cache sc_cache;
typedef struct sc_namespace { uint32_t id, generation; } sc_namespace;
typedef struct sc_lease { uint32_t id, generation; } sc_lease;
typedef uint64_t sc_step; /* one forward of the engine; strictly increasing, > 0 */

/** What the cache saves by itself. */
enum {
    /* the end of the prompt: exactly, when a page ends there or with `tails`; else its last grid
     * point */
    SC_SAVE_PROMPT_END = 1,
    SC_SAVE_BRANCH = 2,     /* where a prompt leaves what the tree knows, cut to the grid */
    SC_SAVE_DECODE = 4,     /* decode positions: see decode_interval */
    /* release with keep, when a page ends there, or with `tails` and the id of the partial page */
    SC_SAVE_END = 8,
    SC_SAVE_DEFAULT = 15
};

typedef struct sc_cache_options {
    size_t struct_size;
    sc_pool *pool;             /* states; borrowed, exclusively, until the cache is destroyed */
    /* NULL, or a pool of what only running requests need: one slot a lease */
    sc_pool *extras;
    uint32_t page_tokens;      /* >= 1: tokens for each KV id */
    bool without_kv;           /* pure recurrent models: no KV ids are exchanged */
    uint32_t row_max;          /* rows of one step at most; default 256 */
    uint32_t save_max;         /* prefill saves of one step at most; default 256 */
    uint32_t lease_max;        /* leases alive at most; default 1024 */
    uint32_t lease_token_max;  /* tokens of one lease at most; default 2^20 */
    uint64_t token_max;        /* tokens in the index at most; 0: no limit */
    uint32_t path_snapshots_max; /* snapshots on one path; 0: no cap */
    uint32_t save_flags;       /* SC_SAVE_ */
    uint32_t decode_interval;  /* tokens, multiple of the page; 0: the page if it is > 1, else none.
                                * A lease keeps the newest of these; the one before goes unless it
                                * was used */
    bool keep_cuts;            /* true: never cut a row back to the grid */
    const sc_allocator *allocator; /* NULL: default */
    uint32_t depth_max;        /* steps in flight at most, 1 to SC_DEPTH_MAX; default 1 */
    uint32_t draft_max;        /* drafts of one row at most; 0: none (then no draft rows) */
    /* true: PROMPT_END and END save inside a page, too: a tail, which owns its partial page */
    bool tails;
    /* NULL, or told of each mutating call and what it decided, as a record of its own
     * (statecache/experimental.h replays them). Called under the cache's lock, after the call has
     * taken effect: must not call the cache. The bytes are the callback's until it returns. */
    void (*record)(void *ctx, const void *bytes, size_t count);
    void *record_ctx;
    /* Which snapshot goes when its slot is wanted, and whether a state is worth the slot of
     * another. NULL: "gittins", which learns what comes back. Else "lru", "lru-path", "lru-sup",
     * "fixed", "marconi", "gdsf" (what they are: docs/explanation/policy.md). Read during creation.
     * Saves that lose are skipped (SC_SKIP_POLICY); what is leased, in flight or pinned is never
     * taken */
    const char *policy;
    /* What computing costs, in flops for each token of a prompt, and for each pair of a token with
     * one before it (attention). 0: every token costs the same */
    double flops_per_token, flops_per_token2;
    /* Bytes of the KV of a token, where KV takes memory from states: then a snapshot is worth less
     * the more KV goes with it, and goes with its KV. 0: pages have a budget of their own */
    double kv_token_bytes;
    double policy_alpha;       /* marconi: weight of flops against recency */
    uint32_t policy_interval;  /* fixed: tokens between snapshots; default 512 */
    uint32_t policy_blocks;    /* gittins: pieces of prompts, of a grid each, that it remembers,
                                * 40 bytes each from the start; default 262,144 */
    /* NULL: the device alone. Else where states go from there; borrowed, exclusively, until the
     * cache is destroyed. What they have on disk is known when the cache is there */
    sc_tiers *tiers;
    /* NULL: no KV goes down, and a lower tier has only what can be resumed with KV that the device
     * still has. Not without KV */
    const sc_kv_mover *kv_mover;
    /* Which rows of the kernel table serve this cache's states: sc_cache_kernels, and what these
     * two mean, in kernels_choice.h. Read during creation; NULL: the first rows that fit */
    const char *decode_backend;
    const char *extend_backend;
    /* Changes of what is saved are queued for a reader, so many bytes of them, and twice that is
     * taken (statecache/events.h); 0: they are not. At least 4,096; what it needs: 80 bytes and the
     * new tokens of each state that is saved between two calls of the reader */
    uint64_t event_bytes;
} sc_cache_options;
#define SC_DEPTH_MAX 4
#define SC_CACHE_OPTIONS_INIT                                                                      \
    {sizeof(sc_cache_options), NULL, NULL, 1, false, 256, 256, 1024, 1u << 20, 0, 0,               \
        SC_SAVE_DEFAULT, 0, false, NULL, 1, 0, false, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, NULL,    \
        NULL, NULL, NULL, 0}

/** A limit of 0 (rows, saves, leases, tokens of a lease, depth) means its default. `struct_size`
 * may be that of an older version: what lies beyond takes its default; a larger one is refused.
 * Errors: SC_ERR_INVALID, SC_ERR_BUSY (a pool is used by another cache or has slots taken),
 * SC_ERR_NOT_FOUND (policy, or a backend that is no row), SC_ERR_UNSUPPORTED (a backend that is
 * not here: the text says what is missing), SC_ERR_OVERFLOW (grid), SC_ERR_NO_MEMORY; of tiers:
 * SC_ERR_BUSY (used by another cache), SC_ERR_LIMIT, SC_ERR_UNSUPPORTED (host memory), SC_ERR_IO,
 * SC_ERR_CORRUPT (disk). On error nothing is held. Cost: with a disk tier O(what it has). */
SC_API sc_status sc_cache_create(const sc_cache_options *options, sc_cache **cache_out);
/** Gives all slots back to the pools. SC_ERR_BUSY, changing nothing, while a lease is alive, or a
 * kv_mover has not ended what it began. Waits for other transfers; what is not on disk is lost.
 * NULL is allowed. KV ids that the tree still held are the engine's again without being drained. */
SC_API sc_status sc_cache_destroy(sc_cache *cache);

/** The kernels for this cache's states, resolved once at its creation: their backend goes to the
 * kernels' calls, sc_kernels_choice() tells rows and reasons. Borrowed; lives as long as the cache.
 * SC_ERR_INVALID; SC_ERR_UNSUPPORTED: no kernel knows the dtypes or dims of these states.
 * Threads: any. */
SC_API sc_status sc_cache_kernels(const sc_cache *cache, sc_kernels **kernels_out);

/** Opens (or finds) the namespace of these weights: keys of two namespaces never match.
 * `fingerprint` NULL: the pool's schema; otherwise it must be the schema's (SC_ERR_MISMATCH).
 * Errors: SC_ERR_INVALID, SC_ERR_MISMATCH, SC_ERR_NO_MEMORY. */
SC_API sc_status sc_namespace_open(sc_cache *cache, const sc_fingerprint *fingerprint,
    uint64_t adapter_id, uint64_t adapter_generation, sc_namespace *namespace_out);
/** Drops all that is cached under it, in every tier. SC_ERR_STALE; SC_ERR_BUSY while a lease uses
 * it or a transfer of it has not been applied.
 * Cost: O(nodes, KV ids and snapshots that go), with the lock held: look-ups wait. */
SC_API sc_status sc_namespace_close(sc_cache *cache, sc_namespace ns);

/** A prompt. Frozen: passed in arrays. */
typedef struct sc_key {
    sc_namespace ns;
    const int32_t *tokens;
    /* strictly ascending, before token_count (statecache/mark.h). A prefix is shared up to the page
     * of the first mark in which two keys differ */
    const sc_mark *marks;
    uint32_t token_count, mark_count;
    /* longest prefix to resume; 0: token_count - 1, since logits need one token */
    uint32_t len_max;
} sc_key;

/** Why no more of a prompt could be resumed. Numbers are never reused. */
#define SC_REASON_LIST(X)                                                                          \
    X(SC_REASON_NONE, 0, "all that was asked for")                                                 \
    X(SC_REASON_NO_PREFIX, 1, "the tokens beyond were never seen")                                 \
    X(SC_REASON_NO_STATE, 2, "tokens shared, but there is no state beyond")                       \
    X(SC_REASON_EVICTED, 3, "a state was saved beyond and evicted")                                \
    X(SC_REASON_TOO_SHORT, 4, "the prompt is shorter than a page and a token")                     \
    X(SC_REASON_PENDING, 5, "another lease is computing it")                                       \
    X(SC_REASON_BEYOND, 6, "a state is there, but beyond len_max")                                 \
    X(SC_REASON_RESTORING, 7, "it is being restored from a lower tier")                            \
    X(SC_REASON_TIER_FAILED, 8, "a lower tier has more, but could not be read")                    \
    X(SC_REASON_TIER_LATE, 9, "a lower tier has more, but the deadline came first")                \
    X(SC_REASON_RECOMPUTE, 10, "a lower tier has more, but computing it is sooner")                \
    X(SC_REASON_TIER_ROOM, 11, "a lower tier has more, but there is no slot or KV page for it")
typedef enum sc_reason {
#define SC_REASON_ENUM(name, value, text) name = value,
    SC_REASON_LIST(SC_REASON_ENUM)
#undef SC_REASON_ENUM
        SC_REASON_COUNT = 12
} sc_reason;
/** Text of a reason; never NULL. */
SC_API const char *sc_reason_text(sc_reason reason);

enum {
    SC_TIER_DEVICE = 0,
    SC_TIER_HOST = 1,
    SC_TIER_DISK = 2,
    SC_TIER_REMOTE = 3,
    SC_TIER_COUNT = 4
};

typedef struct sc_answer {
    /* tokens whose KV is there, in whole pages (state_len may be more: a tail); without_kv: as
     * state_len */
    uint32_t kv_len;
    uint32_t branch_len;                 /* grid point worth saving, 0 if none */
    /* longest resumable prefix by tier: the slowest that is needed for it, also for its KV. Of
     * lower tiers only what is longer than what the device has, else 0 */
    uint32_t state_len[SC_TIER_COUNT];
    uint64_t restore_ns[SC_TIER_COUNT]; /* as the options of the tiers say; 0: not known */
    uint32_t codec[SC_TIER_COUNT];      /* of the state: 1 raw, 2 bf16, 3 int8; 0: device, none */
    /* a lease is computing this prefix, longer than state_len, and means to save it; 0: none */
    uint32_t pending_len;
    sc_step pending_step;                /* the step in flight that does; 0: not planned yet */
    sc_reason reason;                    /* why not more */
    /* of this item: SC_OK, SC_ERR_STALE (namespace), SC_ERR_INVALID, ... */
    sc_status status;
} sc_answer;

/** Finds how much of each key can be resumed. Changes nothing: not the tree, not the order.
 * A miss is success. Threads: any. Errors: SC_ERR_INVALID; per item in `status`.
 * Cost: O(tokens); never allocates. */
SC_API sc_status sc_cache_lookup(const sc_cache *cache, const sc_key *keys, uint32_t count,
    sc_answer *answers_out);

/** What the scheduler knows of a request. All zeros: nothing. The hints of a lease go with the
 * snapshots that it saves and are read with sc_lease_info_get. Policies make of them what they can;
 * "lru" looks at pins alone. */
typedef struct sc_hints {
    /* positions in the prompt where others will branch off, ascending: saved where they are on the
     * grid, else at the grid point before */
    const uint32_t *breakpoints;
    uint32_t breakpoint_count; /* SC_BREAKPOINTS_MAX at most */
    uint32_t flags;            /* SC_HINT_ */
    /* The end that the lease saves (of the prompt, then of the answer) counts as held until acquire
     * or plan are told a later time. Pins are soft: the one that ends soonest gives way when a
     * lease needs a slot, or sc_cache_evict is called, and nothing else is left; when more than
     * half of the slots are pinned; and when the namespace is closed */
    uint64_t pin_until_ns;
    uint64_t ttl_ns;           /* not worth keeping this long after its last use; 0: not known */
    int32_t priority;          /* each step doubles what its states are worth; -16 to 16 */
    uint32_t class_id;         /* kind of request: what comes back is learned for each of 0 to 14 */
} sc_hints;
#define SC_BREAKPOINTS_MAX 16
enum {
    SC_HINT_CONTINUES = 1, /* the conversation will go on */
    SC_HINT_OVER = 2       /* it will not */
};

enum {
    /* The state up to `external_len` comes from elsewhere (a prefill node): unless a hit reaches as
     * far, the lease is WAITING with a working slot that the engine fills (sc_lease_filled). */
    SC_REQUEST_EXTERNAL = 1,
    /* For kernels that work in place: source and destination of a row are one slot, and the block
     * says what has to be copied there first (at_copy_from, at_copy_to). */
    SC_REQUEST_COPY = 2,
    /* It was admitted before, and gave way to others (a preemption): its tokens are counted apart
     * (tokens_again), since what it finds of its own work is no hit. Changes nothing else */
    SC_REQUEST_AGAIN = 4
};

/** Frozen: passed in arrays. */
typedef struct sc_request {
    sc_key key;
    /* 0: none. A restore that would end later is not begun; at this time a lease that waits for one
     * goes on, shorter */
    uint64_t deadline_ns;
    uint32_t flags;           /* SC_REQUEST_ */
    uint32_t depth;           /* steps in flight with this lease at most; 0: 1 */
    const sc_hints *hints;    /* NULL: none; read during the call */
    /* EXTERNAL: tokens that the engine brings, 1 .. token_count; else 0 */
    uint32_t external_len;
    uint32_t reserved32;      /* 0 */
    uint64_t reserved[6];     /* 0 */
} sc_request;

/** Takes a lease on each request: pins its hit, copies its tokens, takes a working slot (evicting
 * unpinned snapshots if need be) and a slot of the extras pool. All or nothing for each item.
 * `each_out[i]`: SC_OK; SC_ERR_NO_SLOT (not now: nothing is held); SC_ERR_LIMIT (lease_max,
 * lease_token_max); SC_ERR_STALE (namespace); SC_ERR_INVALID; SC_ERR_UNSUPPORTED; SC_ERR_NO_MEMORY;
 * what the backend reports when it cannot prepare the slots (items whose slots are prepared
 * together share its answer; their leases are gone again, what was evicted for them too). The
 * call's own status is for bad arguments.
 * `now_ns`: the caller's clock, of any beginning; the same on every rank (contract 18). It never
 * runs backwards: an earlier time counts as the latest that was said. Pins and times to live end
 * by it, and the default policy learns from it how soon what comes back. A caller without a clock
 * passes 0: then pins and times to live have no end, and for the policy a request takes 50 ms (as
 * it does, on average, where requests come faster). */
SC_API sc_status sc_cache_acquire(sc_cache *cache, const sc_request *requests, uint32_t count,
    uint64_t now_ns, sc_lease *leases_out, sc_status *each_out);

typedef enum sc_lease_state {
    /* the engine is filling its slot (EXTERNAL), or a lower tier is (sc_cache_apply) */
    SC_LEASE_WAITING = 1,
    SC_LEASE_READY = 2,
    SC_LEASE_RUNNING = 3,
    SC_LEASE_LOST = 4,
    SC_LEASE_DRAINING = 5
} sc_lease_state;

/** What a snapshot was saved for. */
typedef enum sc_save_kind {
    SC_KIND_NONE = 0,
    SC_KIND_PROMPT_END = 1,
    SC_KIND_BRANCH = 2,
    SC_KIND_DECODE = 3,
    SC_KIND_END = 4,
    SC_KIND_POINT = 5
} sc_save_kind;

typedef struct sc_lease_info {
    sc_lease_state state;
    uint32_t resume_len;     /* what acquire resumed: computing starts at this token */
    sc_save_kind resume_kind;/* what the hit's snapshot was saved for */
    /* id of the hit's slot (0: none): valid while pinned, until the first commit */
    uint32_t resume_slot;
    uint32_t prompt_len;     /* token_count of the key */
    uint32_t len;            /* committed */
    uint32_t token_count;    /* prompt and appended */
    uint32_t branch_len;     /* position that will be saved as a branch point, 0 if none */
    uint32_t prompt_end_len; /* ... for the prompt's end; 0: none, passed, or it is there already */
    sc_reason reason;        /* why acquire resumed no more */
    /* slots that the next step writes and reads (0: zero state); with steps in flight, those that
     * the first of them named: the source has the state at `len` */
    int32_t working_slot;
    int32_t source_slot;
    int32_t extra_slot;      /* -1: none */
    uint32_t kv_page_count;  /* whole pages whose ids the lease reads: hit and handed in */
    /* where the next row starts: `len` and what is in flight. The two differ while drafts are in
     * flight whose acceptance is not known: at least, at most */
    uint32_t issued_len, issued_len_max;
    uint32_t steps_out;      /* steps in flight that name the lease */
    /* KV id of the partial page of a tail that was resumed (or forked from), -1: none. It is the
     * tail's, and stays until the first commit: the lease goes on in a copy of it */
    int32_t tail_kv;
    uint32_t flags;          /* SC_REQUEST_ */
    uint32_t external_len;   /* WAITING: tokens that the engine is to bring; else 0 */
    sc_hints hints;          /* of the request; breakpoints: NULL */
    sc_hints resume_hints;   /* of the lease that saved the hit; breakpoints: NULL */
    /* WAITING for a lower tier: the transfer, and what it will have resumed then; else 0 */
    uint64_t restore_ticket;
    uint32_t restore_len;
    /* with rings: the last of the committed tokens that are records; the state in the source slot
     * is that after len - records */
    uint32_t records;
    /* ... slot of the extras pool that holds them (the snapshot's own, until the first step has
     * copied them); -1: there are none */
    int32_t records_slot;
    uint32_t reserved;       /* 0: all bytes are told, so that two can be compared */
} sc_lease_info;
/** SC_ERR_STALE. Threads: any. */
SC_API sc_status sc_lease_info_get(const sc_cache *cache, sc_lease lease, sc_lease_info *info_out);

/** One stretch of a history: tokens up to `end` were computed in one form. */
typedef enum sc_form_kind { SC_FORM_KIND_PREFILL = 0, SC_FORM_KIND_DECODE = 1 } sc_form_kind;
typedef struct sc_history { uint32_t end; sc_form_kind form; } sc_history;
/** How the lease's committed state came to be, oldest first: a cold run that prefills and decodes
 * in these stretches gives the same bits (prefill stretches may be cut at grid points at will).
 * With rings one stretch of decode may follow another: bits of outputs depend on where states were
 * flushed, and that is at the first token of a stretch, at the tokens before and behind a multiple
 * of the decode interval (with SC_SAVE_DECODE), and where a ring is full; but tokens of rows with
 * drafts have the outputs of flushing ones. Whoever keeps states on disk names the ring and the
 * interval in the schema's revision.
 * SC_ERR_STALE; SC_ERR_LIMIT when cap is short (`*count_out` says what is needed). */
SC_API sc_status sc_lease_history(const sc_cache *cache, sc_lease lease, sc_history *history_out,
    uint32_t cap, uint32_t *count_out);

/** KV ids of consecutive pages. `ids` points into the cache: valid until the next mutating call on
 * this lease (append, commit, adopt, release), whatever other leases do. */
typedef struct sc_kv_span { const int32_t *ids; uint32_t page_first, page_count; } sc_kv_span;
/** The ids a forward of this lease reads, from page `page_first` on, as spans: a hit copies
 * nothing. Pages that the lease handed in itself are its own, also where the tree had others.
 * SC_ERR_STALE; SC_ERR_LIMIT when cap is short. */
SC_API sc_status sc_lease_kv_spans(const sc_cache *cache, sc_lease lease, uint32_t page_first,
    sc_kv_span *spans_out, uint32_t cap, uint32_t *count_out);
/** The same copied into one array. SC_ERR_LIMIT when cap is short. */
SC_API sc_status sc_lease_kv_ids(const sc_cache *cache, sc_lease lease, uint32_t page_first,
    int32_t *ids_out, uint32_t cap, uint32_t *count_out);
/** Replaces the lease's duplicates by the tree's canonical ids; the duplicates go to the drain
 * list. Only while the lease is READY (SC_ERR_STATE): a forward reads the old ids. SC_ERR_STALE.
 * `*count_out`: replaced. Never allocates. */
SC_API sc_status sc_lease_adopt(sc_cache *cache, sc_lease lease, uint32_t *count_out);

/** Adds tokens (decoded, or a next message) to the lease. SC_ERR_STALE, SC_ERR_STATE (LOST,
 * DRAINING), SC_ERR_LIMIT, SC_ERR_NO_MEMORY: nothing was added. */
SC_API sc_status sc_lease_append(
    sc_cache *cache, sc_lease lease, const int32_t *tokens, uint32_t count);
/** The same with marks (an image in the next message): strictly ascending, `at` counted as in the
 * key, within the tokens that are added. SC_ERR_INVALID. */
SC_API sc_status sc_lease_append_marked(sc_cache *cache, sc_lease lease, const int32_t *tokens,
    uint32_t count, const sc_mark *marks, uint32_t mark_count);

/** The engine has filled the working slot of a WAITING lease with the state after `external_len`
 * tokens, and its KV: `kv_ids` has the id of each whole page (without_kv: none), which becomes the
 * cache's. `history`: how that was computed, ascending, ends at external_len; NULL: one prefill.
 * The lease is READY. Where external_len is the prompt's end, and SC_SAVE_PROMPT_END is set, the
 * state is saved at once if there is room. SC_ERR_STALE, SC_ERR_STATE (not WAITING),
 * SC_ERR_INVALID, SC_ERR_MISMATCH (counts), SC_ERR_NO_MEMORY: nothing changed. What the backend
 * reports when it cannot prepare a slot: the ids are the cache's, and the lease is LOST. */
SC_API sc_status sc_lease_filled(sc_cache *cache, sc_lease lease, const int32_t *kv_ids,
    uint32_t kv_count, const sc_history *history, uint32_t history_count);

/** `count` more leases at the committed length of a READY one: parallel samples, beams. The state
 * there becomes a snapshot, which all of them read, and each gets a working slot; nothing is
 * copied. The children know the tokens, limits, flags and hints of their parent. Inside a page,
 * `tail_kv` is the id of the parent's partial page. It becomes the cache's: that of the snapshot,
 * which is a tail (also without `tails` in the options), or, where the parent stands on a snapshot
 * already, drained at once. Parent and children then go on in copies of `tail_kv` of their info.
 * Whoever cannot tell whether the parent stands on a snapshot gives the id. Else it is -1: at a
 * page's end, without KV, at length 0.
 * All or nothing: SC_ERR_STALE, SC_ERR_INVALID (count 0, tail_kv), SC_ERR_STATE (not READY),
 * SC_ERR_NO_SLOT, SC_ERR_LIMIT (lease_max), SC_ERR_NO_MEMORY, SC_ERR_BUSY (the state cannot be put
 * into the tree: another history stays there, or token_max): nothing changed. What the backend
 * reports when it cannot prepare the slots: there are no children, and the parent is LOST if a slot
 * of its own was among them. */
SC_API sc_status sc_lease_fork(sc_cache *cache, sc_lease lease, int32_t tail_kv, uint32_t count,
    sc_lease *children_out);

/** One row of a step: tokens [from, to) of a lease. Frozen.
 *
 * Drafts (speculative decoding): the last tokens of the row may turn out to be wrong. `draft_count`
 * says how many are packed, and the row's result says where it really ended: `to - draft_count` to
 * `to`. They are not the lease's tokens (append what was accepted, before the commit). A row
 * with drafts is of decode form, from the prompt's end on. While it is in flight, the next row of
 * the lease has `from` = issued_len (nothing accepted), `to` = issued_len_max + its own tokens.
 * Of a tree of drafts, `parents[d]` is the draft that draft d follows, < d, -1: the row's last
 * certain token; `to` is then what the deepest branch would give. */
typedef struct sc_row {
    sc_lease lease;
    /* from: issued_len. to: <= token_count; one token more of a lease in flight; drafts come on
     * top */
    uint32_t from, to;
    /* positions to save, ascending, in (from, to]: on the grid, or == to on a page end (anywhere,
     * with `tails`); of rows with drafts, and behind them: on page ends */
    const uint32_t *points;
    uint32_t point_count;
    uint32_t draft_count;    /* <= draft_max */
    const int32_t *parents;  /* [draft_count]; NULL: each follows the one before */
} sc_row;

/** One step as a flat block of `int32`, laid out the same way in every step of a cache, so that one
 * copy brings it into the buffers of a captured graph. Members named `at_` are offsets in words.
 * Rows keep the caller's index; rows that were refused, and those beyond `row_count`, are padded:
 * zero tokens, slots and `decode` -1, position, end and `freeze` 0. Saves are padded with -1. */
typedef struct sc_batch {
    /* borrowed: valid until the step has ended, and at least until the next plan */
    const int32_t *block;
    uint32_t block_words;
    uint32_t row_max, save_max;       /* as given at creation: the arrays' lengths */
    uint32_t row_count, save_count, token_count;
    uint32_t at_query_start_loc; /* [row_max + 1] first token of each row in the packed batch */
    uint32_t at_position;        /* [row_max] absolute position of the row's first token */
    /* [row_max] absolute end that was granted: `to`, or cut back to the grid */
    uint32_t at_end;
    uint32_t at_source;          /* [row_max] slot to read; 0: zero state; -1: no row */
    uint32_t at_dest;            /* [row_max] slot to write; -1: no row */
    uint32_t at_extra;           /* [row_max] slot of the extras pool, or -1 */
    /* [row_max] 1: decode form, one token; 0: chunk form; -1: no row */
    uint32_t at_decode;
    /* [row_max] 1: the destination becomes a snapshot when committed */
    uint32_t at_freeze;          /* ... 2: a tail, inside a page: see sc_result */
    uint32_t at_save_row;        /* [save_max] row of each save */
    /* [save_max] absolute position: on the grid; of a row with drafts, or of uncertain position: a
     * page end, to be written if the row's true range (from, len] has it */
    uint32_t at_save_position;
    uint32_t at_save_slot;       /* [save_max] slot that the kernel writes */
    uint32_t at_row_count;       /* [1] row_count */
    uint32_t at_save_count;      /* [1] */
    uint32_t at_token_count;     /* [1] */
    /* [row_max] the row starts where row `at_accepted` of an earlier plan really ends, and its
     * position and end here are lower and upper bound; -1: they are certain */
    uint32_t at_accepted;
    /* [row_max] ... of how many plans ago (those that an abort took back are not
     * counted); 0 */
    uint32_t at_accepted_back;
    uint32_t at_draft_count;     /* [row_max] drafts at the row's end; -1: no row */
    /* [row_max * draft_max] index within its row of the token that each draft follows; -1: no
     * draft */
    uint32_t at_parent;
    uint32_t at_copy_from;       /* [row_max] copy this slot (0: zeros) ... */
    uint32_t at_copy_to;         /* [row_max] ... to this one, before the forward; -1: no copy */
    uint32_t draft_max;
    /* [row_max] with rings in the extras (statecache/kernels_replay.h): what sc_replay_step() is
     * to be told of the row. APPEND (it may), FLUSH (its state must stand in the destination after
     * it), FOLD (before it: at_source equals at_dest then where there are records); -1: no row, or
     * no rings */
    uint32_t at_flush;
    /* [row_max] copy this slot of the extras pool to that of at_extra, before sc_replay_step(): the
     * records of the snapshot that the row goes on from; -1: none. at_copy_from and at_copy_to
     * bring the base where it is needed */
    uint32_t at_extra_from;
} sc_batch;

/** Plans one forward: picks sources, destinations and saves. A row is decode if it is one token at
 * or beyond the prompt's end, else prefill. A prefill row that ends inside the prompt, or inside
 * tokens that were appended, is cut back to the last grid point in it (else to the last chunk end,
 * where pages are larger), unless its last point is `to` or `keep_cuts` is set: so no cut enters
 * the history. A row too short to reach one is granted as it is, so that the caller gets on: that
 * cut stays in the history and is counted (`rows_off_grid`); give rows at least a chunk.
 * A position is saved once, for the first of PROMPT_END, BRANCH, DECODE, POINT that names it. A
 * save that finds no room is skipped and counted.
 * Rows with drafts, and rows behind them, save at decode positions by slots in the save list; they
 * do not freeze.
 * SC_OK means that the step is in flight, also if every row was refused: commit or abort it.
 * `each_out[i]`: SC_OK; SC_ERR_STALE; SC_ERR_STATE (WAITING, DRAINING, or as many steps out as the
 * lease's depth); SC_ERR_LOST; SC_ERR_MISMATCH (`from` is not issued_len); SC_ERR_INVALID (empty
 * row, `to` out of range, bad points or parents, drafts in the prompt, a lease named twice);
 * SC_ERR_LIMIT (draft_max, lease_token_max); SC_ERR_OVERFLOW (the step would have more than
 * 2^31 - 1 tokens).
 * Errors of the call (nothing is planned): SC_ERR_INVALID (null, no rows, step not increasing),
 * SC_ERR_BUSY (depth_max steps are in flight), SC_ERR_LIMIT (count > row_max), what the backend
 * reports when it cannot prepare the slots (if another thread has planned a step meanwhile, the
 * leases of this one are LOST).
 * Cost: O(rows + saves + block); never allocates. */
SC_API sc_status sc_step_plan(sc_cache *cache, sc_step step, const sc_row *rows, uint32_t count,
    uint64_t now_ns, sc_batch *batch_out, sc_status *each_out);

/** Why a state that was to be saved was not. Numbers are never reused. */
enum {
    SC_SKIP_NO_SLOT = 0,  /* every slot was in use */
    SC_SKIP_EXISTS = 1,   /* the tree has this state, made in the same way */
    SC_SKIP_HISTORY = 2,  /* these tokens are there with another history, which stays */
    SC_SKIP_LIMIT = 3,    /* save_max, token_max, memory */
    SC_SKIP_ABORTED = 4,  /* the step was given up, or its row's result came too late */
    SC_SKIP_NO_TAIL = 5,  /* inside a page, without the id of the partial page */
    SC_SKIP_REJECTED = 6, /* a position among drafts that was not reached */
    SC_SKIP_SUPERSEDED = 7, /* a decode position; the row reached a later one */
    SC_SKIP_OVERRUN = 8,  /* the end of a lease that was released with steps out: see
                           * sc_lease_release */
    SC_SKIP_POLICY = 9,   /* all that it could drive out is worth more */
    SC_SKIP_COUNT = 10
};

/** What a row really did. Frozen. */
typedef struct sc_result {
    sc_lease lease;
    /* true length after the step: the end that was granted; with drafts: what was accepted. At most
     * the lease's token_count */
    uint32_t len;
    /* ids (>= 0) of the pages that this row completed, in order. An id that the cache has may not
     * be handed in again before it was drained, nor twice in one commit: it would come back twice.
     * This is not checked: the cache never looks an id up */
    const int32_t *kv_ids;
    /* floor(len / page) - floor(from / page); without_kv: 0. Of a row with `freeze` 2 perhaps one
     * more, of the partial page: it is the tail's then, and the lease goes on in a copy of it */
    uint32_t kv_count;
} sc_result;

/** The step has finished on the device: publishes its saves, moves the leases on.
 * Results name every row that was granted (also of leases released or lost meanwhile), in any
 * order. All or nothing: on any error nothing changed and the step is still in flight.
 * SC_ERR_NOT_FOUND (no such step), SC_ERR_INVALID (also: a row without a result), SC_ERR_MISMATCH
 * (a length or KV count that does not fit), SC_ERR_STATE (an earlier step of the lease is still in
 * flight), SC_ERR_STALE (a lease that is not in the step), SC_ERR_NO_MEMORY (retry or abort).
 * Results of a lease that is LOST, or of one that was released before its token was known, are
 * discarded: their ids go to the drain list.
 * Where the tree holds the same tokens with another history, what a lease is using stays, and so
 * does what holds snapshots if no save of this row lies beyond; else the new path replaces the old
 * branch (SC_EVICT_HISTORY), unless that is very large (more than 64 nodes).
 * Saves that the index cannot take (one exists, another history stays, token_max, memory) are
 * skipped and counted. `each_out` (may be NULL) says what was wrong with which result.
 * Cost: O(rows, ids handed in, tokens that are new to the index). */
SC_API sc_status sc_step_commit(sc_cache *cache, sc_step step, const sc_result *results,
    uint32_t count, sc_status *each_out);

/** What became of one state that a step was to save. Frozen. */
typedef struct sc_saved {
    sc_lease lease;
    uint32_t row, position;
    sc_save_kind kind;
    int32_t slot;  /* it is in this slot, a snapshot; -1: it was not saved */
    uint32_t skip; /* SC_SKIP_, why it was not; else 0 */
    uint32_t reserved;
} sc_saved;
/** The same, and tells row by row which states were saved and which were not, those that found no
 * slot when the step was planned too (of these at most row_max + save_max). `saved_out` gets the
 * first `cap`; `*saved_count_out` is how many there are. That is no error: the step is committed
 * all the same. Cost: no more than sc_step_commit. */
SC_API sc_status sc_step_commit_saved(sc_cache *cache, sc_step step, const sc_result *results,
    uint32_t count, sc_status *each_out, sc_saved *saved_out, uint32_t cap,
    uint32_t *saved_count_out);
/** Gives the step up. Not launched: as if never planned, and its number may be planned again (what
 * was evicted to find room stays evicted); only the newest step (SC_ERR_STATE). Launched: it has
 * ended, outcome unknown: its leases are LOST and its saves discarded; so will be what other steps
 * in flight do for these leases. SC_ERR_NOT_FOUND. Never allocates. */
SC_API sc_status sc_step_abort(sc_cache *cache, sc_step step, bool launched);

enum sc_release { SC_RELEASE_DISCARD = 0, SC_RELEASE_KEEP = 1 };
/** Ends a lease. KEEP: tokens up to `len` (0: all that is committed) and their KV go into the
 * index, and the state at the end becomes a snapshot when `len` is the committed length and a page
 * ends there. A decode snapshot of the lease that nobody used goes when the end was saved. Where
 * `len` is less than what is committed, snapshots of the lease beyond it that nobody used go. What
 * else was published while the lease ran stays, also with DISCARD.
 * With a step in flight the lease is DRAINING until that step ends, and the state that is saved is
 * the one at which the last of its steps lands, for `len` 0 and if all tokens up to there were
 * appended. Else what is in flight has written over the state at the end: it is not saved
 * (SC_SKIP_OVERRUN), and those saved before serve. A scheduler that finds the last token while the
 * next step is out appends it, and keeps the end one token later. KV ids that the tree does not
 * keep go to the drain list (the id of an incomplete page was never handed in). A LOST lease is
 * always discarded. If memory for keeping is short the lease is discarded: SC_OK.
 * Errors: SC_ERR_STALE, SC_ERR_INVALID (len beyond the committed length), SC_ERR_STATE
 * (DRAINING). */
SC_API sc_status sc_lease_release(
    sc_cache *cache, sc_lease lease, uint32_t len, enum sc_release how);
/** The same with the id of the lease's partial page, so that an end inside a page can be kept as a
 * tail. The id becomes the cache's (and is drained at once if there is nothing to keep it for);
 * -1: none. With steps in flight it is of the page where the last of them ends. SC_ERR_INVALID: an
 * id where the length has no partial page, or without KV. SC_ERR_NO_MEMORY: no room for the id;
 * nothing changed. */
SC_API sc_status sc_lease_release_tail(
    sc_cache *cache, sc_lease lease, uint32_t len, enum sc_release how, int32_t tail_kv);

/** The completion of a transfer between tiers. */
typedef struct sc_done { uint64_t ticket; sc_status status; } sc_done;
/** Reports transfers that have ended here since, each once, in the order in which they did. Decides
 * nothing: no answer changes. `*count_out`: how many; as many as `cap`: perhaps there are more.
 * Threads: any. SC_ERR_INVALID. Never waits for a transfer. */
SC_API sc_status sc_cache_poll(
    sc_cache *cache, sc_done *done_out, uint32_t cap, uint32_t *count_out);
/** These transfers have taken effect, in this order: leases that waited are READY, copies are
 * there. Tensor-parallel ranks apply the same lists at the same places of their calls: a ticket
 * when all of them have had it from poll, as failed if it failed anywhere. Then they go on deciding
 * the same (contract 18): nothing else that a transfer does has influence.
 * All or nothing: SC_ERR_NOT_FOUND (a ticket that is not given out, or was applied), SC_ERR_STATE
 * (poll has not reported it yet), SC_ERR_MISMATCH (it failed here, and the list says it did not),
 * SC_ERR_INVALID (named twice), SC_ERR_NO_MEMORY. A restore whose state the tree cannot take
 * (another history stays there; token_max, and nothing can go) is as one that failed. */
SC_API sc_status sc_cache_apply(
    sc_cache *cache, const sc_done *done, uint32_t count, uint64_t now_ns);
/** What a function of the kv_mover has begun with this ticket (which is not one of sc_done) has
 * ended. Threads: any, also from within that function. SC_ERR_NOT_FOUND: there is no such move, or
 * it has ended. */
SC_API sc_status sc_kv_moved(sc_cache *cache, uint64_t ticket, sc_status status);

/** A prompt of which a remote tier may have states that this cache does not know of: other
 * processes store there, too. Frozen. */
typedef struct sc_find {
    sc_key key;
    /* how the tokens are computed, ascending, ends at token_count (sc_history); NULL: one prefill.
     * A state that came to be in another way is not found */
    const sc_history *history;
    uint32_t history_count;
    uint32_t len;              /* out of find: tokens of the longest state there; 0: none */
    sc_status status;          /* out of find, and of learn */
} sc_find;
/** Asks the remote tier; decides nothing, changes nothing. Blocks until it has answered; a tier
 * that cannot be reached has nothing (`status`: why not). Without a remote tier nothing is found.
 * Threads: any. Errors: SC_ERR_INVALID, SC_ERR_NO_MEMORY; per item in `status`: SC_ERR_INVALID,
 * SC_ERR_STALE (namespace), what the tier says. */
SC_API sc_status sc_cache_find(sc_cache *cache, sc_find *finds, uint32_t count);
/** The states that were found are there from now on, for look-ups and acquire: items whose `len`
 * is 0 or whose status is not SC_OK are skipped. Tensor-parallel ranks have what all of them found
 * (the least `len`), each at the same place of its calls. One that is gone meanwhile is a restore
 * that fails: SC_REASON_TIER_FAILED, and it is forgotten.
 * Errors: SC_ERR_INVALID (a length beyond the key), SC_ERR_STALE, SC_ERR_UNSUPPORTED (no remote
 * tier): nothing changed. Per item in `status`: SC_ERR_LIMIT (what is known is worth more),
 * SC_ERR_BUSY (a state of another history is in use), SC_ERR_NO_MEMORY. */
SC_API sc_status sc_cache_learn(sc_cache *cache, sc_find *finds, uint32_t count, uint64_t now_ns);

typedef struct sc_room {
    /* held: working, in flight, pinned snapshots */
    uint32_t slots_free, slots_evictable, slots_held, slots_draining;
    uint64_t pages_cached;    /* in the index */
    uint64_t pages_evictable; /* of these, unpinned (with tails: about so many) */
    uint64_t pages_held;      /* handed in by living leases and not in the index */
    uint64_t pages_drainable; /* waiting in the drain list */
} sc_room;
SC_API sc_status sc_cache_room(const sc_cache *cache, sc_room *room_out);
/** Evicts least recently used content until at least `pages` KV pages and `slots` snapshots went,
 * or nothing is left. `got_out`: what was gained in slots_free and pages_drainable, and in
 * pages_cached how many pages left the index; the rest is 0. Cost: what it evicts; never
 * allocates. */
SC_API sc_status sc_cache_evict(sc_cache *cache, uint32_t pages, uint32_t slots, sc_room *got_out);
/** Takes KV ids that the cache has let go, oldest first: they are the engine's again. */
SC_API sc_status sc_cache_drain(
    sc_cache *cache, int32_t *kv_ids_out, uint32_t cap, uint32_t *count_out);
/** Gives memory of the index that evictions have freed back to the system, for idle moments: until
 * then much of it is kept for later content, since returning it costs more than evicting. No answer
 * changes. What is inserted later may lie in other pieces than it would without, and be evicted in
 * other pieces: ranks trim at the same places of their calls, and it is recorded (contract 18).
 *
 * Runs in storage that is mostly free are packed, about `token_max` tokens at most in this call
 * (0: none); what leases hold stays where it is. `bytes_out` (may be NULL): what went back.
 * Threads: any; holds the index lock while it packs, not while memory goes back.
 * Errors:  SC_ERR_INVALID. Without memory less is packed.
 * Cost:    what it packs and gives back, and a look at each 16,384 tokens of storage. */
SC_API sc_status sc_cache_trim(sc_cache *cache, uint64_t token_max, uint64_t *bytes_out);

enum { SC_EVICT_FOR_SLOT = 0, SC_EVICT_ASKED = 1, SC_EVICT_WITH_KV = 2, SC_EVICT_SUPERSEDED = 3,
    SC_EVICT_PATH_CAP = 4, SC_EVICT_HISTORY = 5, SC_EVICT_CLOSED = 6, SC_EVICT_COUNT = 7 };
enum { SC_STATS_WIDTH = 16 }; /* of counters by reason, kind or cause: room for more of them */
typedef struct sc_cache_stats {
    size_t struct_size;         /* in: sizeof(sc_cache_stats) */
    uint64_t acquired, released;             /* leases */
    uint64_t refused;                        /* SC_ERR_NO_SLOT, SC_ERR_LIMIT */
    uint64_t tokens_asked, tokens_hit;       /* prompt tokens of acquired leases; resumed ones */
    uint64_t resumed;                        /* leases that resumed, and by sc_save_kind */
    uint64_t resumed_by_kind[SC_STATS_WIDTH];
    uint64_t reason_count[SC_STATS_WIDTH];   /* of acquired leases */
    uint64_t steps, steps_aborted, rows, rows_cut;
    /* planned (positions to be saved) == published + skipped + those of the step in flight */
    uint64_t saves_planned, saves_published, saves_by_kind[SC_STATS_WIDTH];
    uint64_t saves_skipped[SC_STATS_WIDTH];
    uint64_t evicted[SC_STATS_WIDTH];        /* snapshots, by cause; published == these + alive */
    /* KV ids handed in; drained */
    uint64_t pages_evicted, pages_duplicate, pages_adopted, pages_in, pages_out;
    uint64_t leases_alive, snapshots_alive, nodes, tokens_cached;
    uint64_t forked;            /* children, counted in `acquired` too */
    uint64_t rows_discarded;    /* results of lost leases, or that came too late */
    uint64_t tails_alive, drafts, drafts_accepted;
    uint64_t rows_off_grid;     /* prefill rows that ended inside a prompt and off the chunk grid */
    uint64_t pins_alive;
    uint64_t policy_refits, policy_bytes; /* how often it has learned anew; its memory */
    /* Tiers: leases that resumed from each (the slowest that was needed), and the tokens that it
     * had beyond the device's hit; [0]: the device, and its tokens. They add up to `resumed`, less
     * those that wait for more than they have, and to `tokens_hit` */
    uint64_t resumed_by_tier[SC_TIER_COUNT], tokens_hit_by_tier[SC_TIER_COUNT];
    uint64_t restored;          /* snapshots: published + restored == evicted + alive */
    /* copies that were written, dropped for room, and refused (room, worth, writes of a day) */
    uint64_t tier_stored[SC_TIER_COUNT], tier_dropped[SC_TIER_COUNT], tier_refused[SC_TIER_COUNT];
    uint64_t tier_lost;         /* states that went without a copy anywhere */
    uint64_t tier_loaded;       /* records on disk when the cache was created */
    uint64_t tier_records;      /* states known in any tier, the device included */
    uint64_t tier_bytes[SC_TIER_COUNT];           /* of copies, as the budgets count */
    uint64_t transfers_alive, transfers_failed;   /* not applied yet; applied as failed */
    /* Leases with SC_REQUEST_AGAIN, among `acquired` and `resumed` too; their tokens are not in
     * tokens_asked, tokens_hit and tokens_hit_by_tier, but here */
    uint64_t again, tokens_again, tokens_again_hit;
} sc_cache_stats;
/** Fills `stats_out->struct_size` bytes. */
SC_API sc_status sc_cache_stats_get(const sc_cache *cache, sc_cache_stats *stats_out);

/** Walks everything: tree, registry, leases, pools; every slot and KV id is accounted for.
 * SC_ERR_CORRUPT with text: a fault of the library. SC_ERR_NO_MEMORY: it could not look.
 * O(everything), with the lock shared: look-ups go on, mutators wait. */
SC_API sc_status sc_cache_verify(const sc_cache *cache);
/** Picture of a namespace's tree, a line per call. For humans. `write` runs with the cache locked:
 * it must not call the cache, and mutators wait
 * for it. SC_ERR_STALE. */
SC_API sc_status sc_cache_dump(const sc_cache *cache, sc_namespace ns,
    void (*write)(void *ctx, const char *line), void *ctx);

#ifdef __cplusplus
}
#endif
#endif
