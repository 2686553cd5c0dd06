/* SPDX-License-Identifier: Apache-2.0 */
/* The world in which schedulers try to get a wrong state out of a cache: shared by the stress
 * program (threads, real time) and the simulation (one thread, virtual time, faults).
 *
 *    ops: {code, scheduler, fault, seed} ---> one player each ---> public calls of ONE cache
 *            generated, or read from a script      |                     |
 *                                                  v                     v
 *                                     expected stamps, KV ids      slots, KV store
 *                                                  '------ compared ----'
 *
 * Operations. Everything that an operation draws comes from its own 32-bit seed, and every index is
 * taken modulo what is there. So any subset of a failing list of operations can run too, and
 * delta debugging makes it short (script.c).
 *
 * Stamps. A state is a 64-bit hash chain over namespace, tokens, marks and how they were computed
 * (stamp.c). The fake device writes it into every word of every part of a slot. What a slot must
 * hold follows from what the scheduler asked for and from the history that the cache reports, so
 * that any mix-up of slots, lengths, namespaces, marks or histories shows where the slot is read,
 * and no model of the tree is needed.
 *
 * The device works when the step is computed, as late as the operations say: after other
 * schedulers have acquired, evicted and saved. A slot that was given away too early shows then.
 *
 * Threads. A scheduler belongs to one thread. Calls that change the cache, and the world's shared
 * members, are under `lock`; computing and look-ups run outside of it. The log holds the operations
 * in the order of the lock, so that one thread can replay what many did. */
#ifndef TESTS_HARNESS_HARNESS_H
#define TESTS_HARNESS_HARNESS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/prng.h"
#include "statecache/statecache.h"
#include "support/fail_alloc.h"
#include "h_tiers.h"

enum {
    H_TOKENS_MAX = 256, /* of one lease, plus what an append may ask for too much */
    H_LEASES_MAX = 8,   /* of one scheduler */
    H_SCHEDS_MAX = 16,
    H_NS_MAX = 4,
    H_ROWS_MAX = 8,
    H_SAVES_MAX = 16,
    H_STEPS_MAX = 4,    /* in flight, of all schedulers */
    H_DRAFTS_MAX = 8,   /* of one row */
    H_MARKS_MAX = H_TOKENS_MAX,
    H_KV_IDS_MAX = 1 << 12,
    H_PROMPTS_MAX = 48,
    H_BATCH_MAX = 4,    /* items of one look-up or acquire */
    H_GRAVES_MAX = 32,  /* handles that must stay stale */
    H_PARTS_MAX = 6,
    H_SIDE_SLOTS = 6    /* of the pool that states are copied to */
};

/* ------------------------------------------------------------------ coverage */

/* Call, and the results that it documents and that must be seen: bit -status. "each": by item. */
#define B(status) (1u << -(status))
#define H_CALL_LIST(X)                                                                             \
    X(CREATE, "sc_cache_create",                                                                   \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_BUSY) | B(SC_ERR_NO_MEMORY))                       \
    X(DESTROY, "sc_cache_destroy", B(SC_OK) | B(SC_ERR_BUSY))                                      \
    X(NS_OPEN, "sc_namespace_open",                                                                \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_MISMATCH) | B(SC_ERR_NO_MEMORY))                   \
    X(NS_CLOSE, "sc_namespace_close",                                                              \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE) | B(SC_ERR_BUSY))                           \
    X(LOOKUP, "sc_cache_lookup", B(SC_OK) | B(SC_ERR_INVALID))                                     \
    X(LOOKUP_EACH, "  each",                                                                       \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE))                                            \
    X(ACQUIRE, "sc_cache_acquire", B(SC_OK) | B(SC_ERR_INVALID))                                   \
    X(ACQUIRE_EACH, "  each",                                                                      \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE) | B(SC_ERR_UNSUPPORTED) |                   \
            B(SC_ERR_NO_SLOT) | B(SC_ERR_LIMIT) | B(SC_ERR_NO_MEMORY))                             \
    X(INFO, "sc_lease_info_get", B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE))                   \
    X(HISTORY, "sc_lease_history",                                                                 \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE) | B(SC_ERR_LIMIT))                          \
    X(KV_SPANS, "sc_lease_kv_spans",                                                               \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE) | B(SC_ERR_LIMIT))                          \
    X(KV_IDS, "sc_lease_kv_ids",                                                                   \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE) | B(SC_ERR_LIMIT))                          \
    X(ADOPT, "sc_lease_adopt",                                                                     \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE) | B(SC_ERR_STATE))                          \
    X(APPEND, "sc_lease_append",                                                                   \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE) | B(SC_ERR_STATE) | B(SC_ERR_LIMIT) |       \
            B(SC_ERR_NO_MEMORY))                                                                   \
    X(APPEND_MARKED, "sc_lease_append_marked",                                                     \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE) | B(SC_ERR_STATE) | B(SC_ERR_LIMIT) |       \
            B(SC_ERR_NO_MEMORY))                                                                   \
    X(PLAN, "sc_step_plan",                                                                        \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_BUSY) | B(SC_ERR_LIMIT))                           \
    X(PLAN_EACH, "  each",                                                                         \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE) | B(SC_ERR_LOST) | B(SC_ERR_MISMATCH) |     \
            B(SC_ERR_STATE) | B(SC_ERR_LIMIT))                                                     \
    X(COMMIT, "sc_step_commit",                                                                    \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_NOT_FOUND) | B(SC_ERR_MISMATCH) |                  \
            B(SC_ERR_STALE) | B(SC_ERR_STATE) | B(SC_ERR_NO_MEMORY))                               \
    X(COMMIT_SAVED, "sc_step_commit_saved",                                                        \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_NOT_FOUND) | B(SC_ERR_MISMATCH) |                  \
            B(SC_ERR_STALE) | B(SC_ERR_STATE) | B(SC_ERR_NO_MEMORY))                               \
    X(ABORT, "sc_step_abort",                                                                      \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_NOT_FOUND) | B(SC_ERR_STATE))                      \
    X(RELEASE, "sc_lease_release",                                                                 \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE) | B(SC_ERR_STATE))                          \
    X(RELEASE_TAIL, "sc_lease_release_tail",                                                       \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE) | B(SC_ERR_STATE) | B(SC_ERR_NO_MEMORY))    \
    X(FILLED, "sc_lease_filled",                                                                   \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE) | B(SC_ERR_STATE) | B(SC_ERR_MISMATCH) |    \
            B(SC_ERR_NO_MEMORY))                                                                   \
    X(FORK, "sc_lease_fork",                                                                       \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE) | B(SC_ERR_STATE) | B(SC_ERR_NO_SLOT) |     \
            B(SC_ERR_LIMIT) | B(SC_ERR_NO_MEMORY) | B(SC_ERR_BUSY))                                \
    X(POLL, "sc_cache_poll", B(SC_OK) | B(SC_ERR_INVALID))                                         \
    X(APPLY, "sc_cache_apply",                                                                     \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_NOT_FOUND) | B(SC_ERR_STATE) | B(SC_ERR_MISMATCH)) \
    X(KV_MOVED, "sc_kv_moved", B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_NOT_FOUND))                 \
    X(TIERS_CREATE, "sc_tiers_create",                                                             \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_BUSY) | B(SC_ERR_NO_MEMORY) | B(SC_ERR_IO) |       \
            B(SC_ERR_LIMIT))                                                                       \
    X(TIERS_DESTROY, "sc_tiers_destroy", B(SC_OK) | B(SC_ERR_BUSY))                                \
    X(TIERS_STATS, "sc_tiers_stats_get", B(SC_OK) | B(SC_ERR_INVALID))                             \
    X(ROOM, "sc_cache_room", B(SC_OK) | B(SC_ERR_INVALID))                                         \
    X(EVICT, "sc_cache_evict", B(SC_OK) | B(SC_ERR_INVALID))                                       \
    X(DRAIN, "sc_cache_drain", B(SC_OK) | B(SC_ERR_INVALID))                                       \
    X(TRIM, "sc_cache_trim", B(SC_OK) | B(SC_ERR_INVALID))                                         \
    X(STATS, "sc_cache_stats_get", B(SC_OK) | B(SC_ERR_INVALID))                                   \
    X(VERIFY, "sc_cache_verify", B(SC_OK) | B(SC_ERR_INVALID))                                     \
    X(DUMP, "sc_cache_dump", B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE))                       \
    X(COPY, "sc_state_copy", B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE))                       \
    X(SLOT_ALLOC, "sc_pool_alloc", B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_NO_SLOT))               \
    X(SLOT_FREE, "sc_pool_free", B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE))                   \
    X(SLOT_CHECK, "sc_pool_check", B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE))
enum h_call {
#define H_CALL_ENUM(name, text, wanted) H_CALL_##name,
    H_CALL_LIST(H_CALL_ENUM)
#undef H_CALL_ENUM
        H_CALL_COUNT
};
enum { H_STATUS_MAX = 16 };
extern const char *const h_call_names[H_CALL_COUNT];
extern const uint32_t h_call_wanted[H_CALL_COUNT];

/* Latencies in buckets of an eighth of a power of two. */
enum { H_BUCKETS = 8 * 40 };

/* What happened. One for each scheduler, added up by whoever reports. */
struct h_totals {
    uint64_t cell[H_CALL_COUNT][H_STATUS_MAX];
    uint64_t latency[H_CALL_COUNT][H_BUCKETS];
    uint64_t ops, calls, hits, steps, rows, saves, freezes, cuts, cold_checks, slots_checked;
    uint64_t copies, verifies, worlds, decisions;
    uint64_t faults[8]; /* enum h_fault */
    uint64_t skipped[SC_SKIP_COUNT], evicted[SC_EVICT_COUNT], reasons[SC_REASON_COUNT];
    uint64_t published[6], resumed[6], kv_in, kv_out, adopted;
    struct h_tier_totals tier;
};
enum h_fault {
    H_FAULT_MEMORY,     /* an allocation failed */
    H_FAULT_LATE,       /* a step was reported many operations later */
    H_FAULT_REORDERED,  /* a step was reported before an older one */
    H_FAULT_TWICE,      /* a step was reported again */
    H_FAULT_LOST,       /* a step was never reported: aborted as launched */
    H_FAULT_CANCELLED,  /* a step was not launched */
    H_FAULT_DEVICE,     /* the device was lost */
    H_FAULT_DISK,       /* a call to the system failed */
    H_FAULT_COUNT
};
extern const char *const h_fault_names[H_FAULT_COUNT];

/* totals.c */
void h_totals_add(struct h_totals *sum, const struct h_totals *more);
uint32_t h_bucket(uint64_t ns);
uint64_t h_bucket_ns(uint32_t bucket);
uint64_t h_quantile(const uint64_t *buckets, double q);
/* Returns how many documented results were not seen. */
uint32_t h_print_coverage(FILE *out, const struct h_totals *totals);
void h_print_totals(FILE *out, const struct h_totals *totals);

/* ------------------------------------------------------------------ configuration */

/* Sizes of a world: drawn from a seed, written into scripts by name. `late`: steps take their time
 * on the virtual clock, and some reports never come. */
#define H_KNOB_LIST(X)                                                                             \
    X(page) X(chunk0) X(chunk1) X(slots) X(extras) X(kv_ids) X(layout) X(without_kv)               \
    X(lease_max) X(lease_token_max) X(row_max) X(save_max) X(decode_interval) X(path_max)          \
    X(token_max) X(save_flags) X(keep_cuts) X(alphabet) X(wild_tokens) X(prompt_len_max)           \
    X(scheds) X(leases) X(late) X(depth) X(draft_max) X(marks) X(tails) X(external)                \
    X(copy) X(hints) X(policy)                                                                     \
    X(tier_host) X(tier_disk) X(tier_write) X(tier_disk_write) X(tier_uses) X(tier_zstd)           \
    X(tier_day) X(tier_entries) X(tier_cost) X(tier_slack) X(tier_mover) X(tier_prompt)            \
    X(prompt_pool)
enum { H_POLICIES = 7 };
extern const char *const h_policies[H_POLICIES];
struct h_config {
#define H_KNOB_MEMBER(name) uint32_t name;
    H_KNOB_LIST(H_KNOB_MEMBER)
#undef H_KNOB_MEMBER
};

/* code, name in scripts, usual weight, runs outside of the lock; from WORK on with tiers alone */
#define H_OP_LIST(X)                                                                               \
    X(ACQUIRE, "acquire", 14, false)                                                               \
    X(APPEND, "append", 8, false)                                                                  \
    X(PLAN, "plan", 26, false)                                                                     \
    X(COMPUTE, "compute", 14, true)                                                                \
    X(COMMIT, "commit", 24, false)                                                                 \
    X(ABORT, "abort", 2, false)                                                                    \
    X(RELEASE, "release", 9, false)                                                                \
    X(ADOPT, "adopt", 2, false)                                                                    \
    X(EVICT, "evict", 3, false)                                                                    \
    X(DRAIN, "drain", 3, false)                                                                    \
    X(NS_OPEN, "ns_open", 1, false)                                                                \
    X(NS_CLOSE, "ns_close", 1, false)                                                              \
    X(POLL, "poll", 1, false)                                                                      \
    X(LOOKUP, "lookup", 12, true)                                                                  \
    X(READ, "read", 5, true)                                                                       \
    X(STALE, "stale", 3, false)                                                                    \
    X(BAD, "bad", 2, false)                                                                        \
    X(FORK, "fork", 3, false)                                                                      \
    X(FILL, "fill", 6, false)                                                                      \
    X(COPY, "copy", 3, false)                                                                      \
    X(POOL, "pool", 2, false)                                                                      \
    X(LOSE, "lose", 1, false)                                                                      \
    X(VERIFY, "verify", 4, false)                                                                  \
    X(EMPTY, "empty", 0, false)                                                                    \
    X(WORK, "work", 16, false)                                                                     \
    X(APPLY, "apply", 10, false)                                                                   \
    X(TROUBLE, "trouble", 2, false)                                                                \
    X(REOPEN, "reopen", 1, false)
enum h_op_code {
#define H_OP_ENUM(name, text, weight, open) H_OP_##name,
    H_OP_LIST(H_OP_ENUM)
#undef H_OP_ENUM
        H_OP_COUNT
};
extern const char *const h_op_names[H_OP_COUNT];

struct h_op {
    uint8_t code, sched;
    uint16_t fault; /* > 0: this allocation of the operation fails */
    uint32_t seed;
};

/* Weights of a world, some operations off: swarm testing. */
struct h_swarm {
    uint32_t weight[H_OP_COUNT];
    uint32_t sum;
    uint32_t fault_in; /* one operation in so many has a failing allocation; 0: none */
};

/* ------------------------------------------------------------------ the world */

/* A computation from token 0 on: stamp of the state at `len`, of the KV of each page (of the last,
 * incomplete one so far). */
struct h_run {
    uint64_t state;
    uint32_t len;
    uint64_t page[H_TOKENS_MAX];
};

/* Tokens and marks; `mark` is 0 where there is none, else stands for an id. */
struct h_text {
    int32_t tokens[H_TOKENS_MAX];
    uint8_t mark[H_TOKENS_MAX];
    uint32_t count;
};

struct h_lease {
    bool used, lost, draining;
    bool overrun;                /* a row was discarded: so are all that follow */
    bool waiting;                /* the scheduler is to bring its state of external_len tokens */
    uint32_t external_len, flags;
    uint64_t ticket, deadline_ns; /* the restore that it waits for; 0: none */
    uint32_t restore_len;
    int32_t spare; /* a page for the copy of a tail that is restored, -1: none */
    sc_hints hints;
    sc_lease handle;
    uint32_t ns, depth;
    uint64_t root;               /* stamp of the namespace */
    struct h_text text;          /* count: what was sampled or accepted, too */
    uint32_t token_count;        /* that the cache knows */
    uint32_t prompt_len, resume_len;
    uint32_t flights;            /* steps that name it */
    uint32_t issued_len, issued_max; /* where the next row starts: at least, at most */
    struct h_run run;            /* committed */
    int32_t ids[H_TOKENS_MAX];   /* KV ids that it reads */
    uint32_t id_count;
    int32_t open;                /* its own page that is being filled, -1: none */
    int32_t tail_kv;             /* what `open` is to be a copy of, -1: nothing */
    uint32_t tag;                /* what it wrote into its extras slot; 0: nothing yet */
    int32_t extra_slot;
};

struct h_save {
    uint32_t row, position;
    int32_t slot;
};

/* `from`, `end` are bounds where drafts are out; `len` is where it really ended. */
struct h_row {
    uint32_t lease;              /* index at its scheduler */
    uint32_t from, from_max, end;
    uint32_t certain, depth, draft_count;
    int32_t source, dest, extra, copy_from, copy_to;
    bool granted, decode, computed;
    int32_t freeze;              /* 2: a tail */
    const struct h_row *before;  /* that it goes on from; NULL: the committed state */
    uint32_t len;                /* after computing */
    struct h_run next;
    int32_t ids[H_TOKENS_MAX];   /* pages that it may need */
    uint32_t id_count;
    int32_t done[H_TOKENS_MAX];  /* after computing: the pages that it completed */
    uint32_t done_count;
    int32_t open;                /* ... the one that is being filled, -1: none */
    int32_t tail;                /* ... the partial page of its snapshot, -1: none */
};

struct h_step {
    bool active, computed, lost; /* lost: nobody will ever say that it has ended */
    sc_step id, id_before;       /* before: the newest when it was planned */
    uint64_t plan_no;
    uint32_t owner;              /* scheduler */
    uint64_t planned_at, done_at; /* on the world's clock */
    struct h_row rows[H_ROWS_MAX];
    uint32_t row_count, granted_count;
    struct h_save saves[H_SAVES_MAX];
    uint32_t save_count;
};

struct h_ns {
    bool open;
    sc_namespace handle;
    uint32_t lease_count;
    uint64_t root;
};

struct h_world;

struct h_sched {
    struct h_world *world;
    uint32_t index;
    struct h_op op;              /* running */
    struct sc_prng rng;          /* of the running operation */
    struct h_lease leases[H_LEASES_MAX];
    sc_lease graves[H_GRAVES_MAX];
    uint32_t grave_count;
    uint32_t step_of_compute;    /* chosen under the lock */
    struct h_text keys[H_BATCH_MAX];
    sc_mark marks[H_BATCH_MAX][H_MARKS_MAX];
    sc_hints hints[H_BATCH_MAX];
    uint32_t points[H_BATCH_MAX][SC_BREAKPOINTS_MAX];
    sc_key key[H_BATCH_MAX];
    uint32_t key_count;
    struct h_totals *totals;
};

struct h_world {
    struct h_config cfg;
    bool threaded, timed, trace;
    uint64_t (*clock)(void);     /* for latencies; with `timed` */
    void (*device_lose)(void *ctx, bool lost); /* the simulation's; NULL: H_OP_LOSE does nothing */
    void *device_ctx;
    sc_backend *backend;         /* NULL: host */
    void (*record)(void *ctx, const void *bytes, size_t count); /* of the cache; NULL: none */
    void *record_ctx;
    struct h_totals *totals;     /* [totals_count]: one for each scheduler, or one for all */
    uint32_t totals_count;

    pthread_mutex_t lock;
    struct fail_alloc fa;
    uint32_t grid, chunk_grid;
    sc_schema *schema, *extra_schema;
    sc_pool *pool, *extras, *side;
    sc_cache *cache;
    sc_layer_view view[H_PARTS_MAX], side_view[H_PARTS_MAX];
    uint32_t view_count;
    sc_layer_view extra_view;
    sc_slot side_slots[H_SIDE_SLOTS];
    uint32_t side_count;
    sc_slot side_graves[H_GRAVES_MAX];
    uint32_t side_grave_count;

    struct h_ns ns[H_NS_MAX];
    sc_namespace ns_graves[H_GRAVES_MAX];
    uint32_t ns_grave_count;
    struct h_text prompts[H_PROMPTS_MAX];
    uint32_t prompt_count;
    struct h_step steps[H_STEPS_MAX];
    sc_step next_step, newest_step; /* newest: planned and not taken back */
    uint64_t plan_count;
    sc_step step_graves[H_GRAVES_MAX]; /* ended */
    uint32_t step_grave_count;
    uint32_t next_tag;

    uint8_t kv_where[H_KV_IDS_MAX];    /* enum h_kv */
    uint64_t kv_stamp[H_KV_IDS_MAX];
    int32_t kv_free[H_KV_IDS_MAX];
    uint32_t kv_free_count;
    uint64_t kv_in, kv_out, acquired, released, leases_alive;
    uint64_t now_ns;                   /* virtual: rises with each operation */
    uint64_t op_count;
    bool armed, device_lost;
    uint64_t live_max;                 /* bytes when it was empty, at most */
    bool twin;                         /* without the operations that decide nothing */
    bool hold;                         /* leases are kept: nothing is released */
    uint64_t decisions;                /* hash of what the calls that change the cache answered */
    uint64_t canary_from;              /* operation from which states are written wrongly; 0: no */

    struct h_sched scheds[H_SCHEDS_MAX];

    /* Log of operations in the order of the lock; shared memory, so that it survives a crash. */
    struct h_log *log;

    struct h_tiers tier;
    bool player; /* fed with what another recorded: has no content */
};
enum h_kv { H_KV_FREE = 0, H_KV_ENGINE = 1, H_KV_INSIDE = 2 };

struct h_log {
    uint64_t world;              /* seed of its sizes and weights */
    struct h_config cfg;
    uint64_t count, cap;         /* beyond cap operations are not kept */
    struct h_op ops[];
};

/* Says what is wrong and ends the process with 1. What is logged reproduces it. */
_Noreturn void h_fail(struct h_world *w, const char *file, int line, const char *cond,
    const char *fmt, ...) __attribute__((format(printf, 5, 6)));
#define H_CHECK(w, cond, ...)                                                                      \
    do {                                                                                           \
        if (!(cond)) h_fail((w), __FILE__, __LINE__, #cond, ": " __VA_ARGS__);                     \
    } while (0)
#define H_OK(w, call)                                                                              \
    H_CHECK(w, (call) == SC_OK, "%s: %s", sc_status_name(sc_last_error()->status),                 \
        sc_last_error()->text)
void h_trace(const struct h_sched *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* H_CALL(s, ADOPT, sc_lease_adopt(...)): counts the result, times the call, passes it on. */
#define H_CALL(s, call, expr)                                                                      \
    __extension__({                                                                                \
        uint64_t h_begin_ = h_call_begin(s);                                                       \
        sc_status h_status_ = (expr);                                                              \
        h_seen((s), H_CALL_##call, h_begin_, h_status_);                                           \
    })
static inline uint64_t h_call_begin(const struct h_sched *s)
{
    return s->world->timed ? s->world->clock() : 0;
}
sc_status h_seen(struct h_sched *s, enum h_call call, uint64_t begin, sc_status status);
/* Folds an answer into the hash of decisions. */
static inline void h_decided(struct h_world *w, uint64_t value)
{
    w->decisions = sc_mix64(w->decisions ^ value) + UINT64_C(0x9e3779b97f4a7c15);
}
/* The status of one item. */
sc_status h_item(struct h_sched *s, enum h_call call, sc_status status);

static inline uint32_t h_draw(struct sc_prng *rng, uint32_t bound)
{
    return (uint32_t)sc_prng_below(rng, bound);
}
static inline bool h_one_in(struct sc_prng *rng, uint32_t n)
{
    return h_draw(rng, n) == 0;
}
static inline uint32_t h_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}
static inline uint64_t h_mix(uint64_t a, uint64_t b)
{
    return sc_mix64(a * UINT64_C(0x9e3779b97f4a7c15) + (b ^ UINT64_C(0x5851f42d4c957f2d)));
}

/* config.c */
void h_config_draw(uint64_t seed, struct h_config *cfg, struct h_swarm *swarm);
uint32_t *h_config_knob(struct h_config *cfg, const char *name); /* NULL: no such knob */
bool h_config_good(const struct h_config *cfg);
/* Tiers for this world: h_config_draw gives them to one in H_TIERS_IN. */
enum { H_TIERS_IN = 4 };
void h_config_tiers(uint64_t seed, struct h_config *cfg, struct h_swarm *swarm);
/* The next operation of scheduler `sched`. */
struct h_op h_op_draw(const struct h_swarm *swarm, struct sc_prng *rng, uint32_t sched);

/* world.c: what is set before create: cfg, totals, threaded, timed, clock, device_lose, backend,
 * log */
void h_world_create(struct h_world *w);
/* Ends every step, releases everything, empties the cache, checks that nothing is left. */
void h_world_destroy(struct h_world *w);
/* Ends steps and leases, evicts and drains everything; the cache stays. */
void h_world_empty(struct h_world *w);
/* Ends steps and leases. */
void h_world_quiet(struct h_world *w);
/* Adds the cache's statistics to the totals, before it goes. */
void h_world_totals(struct h_world *w);
/* The cache over the world's pools and tiers, after what must be refused. */
void h_cache_create(struct h_world *w, struct h_sched *s);
/* Takes down a world that the harness has not played in, whose cache is empty. */
void h_world_discard(struct h_world *w);
void h_op_run(struct h_world *w, struct h_op op);
sc_cache_stats h_stats(struct h_sched *s);
sc_room h_room(struct h_sched *s);
void h_arm(struct h_sched *s);          /* the operation's failing allocation */
bool h_disarm(struct h_sched *s);       /* true: an allocation was refused */
void h_same(struct h_sched *s, const sc_cache_stats *stats, const sc_room *room, const char *what);
void h_check_counts(struct h_sched *s);

/* stamp.c */
uint64_t h_root(uint64_t adapter_id, uint64_t adapter_generation);
void h_run_prefill(const struct h_world *w, struct h_run *run, const struct h_text *text,
    uint32_t to);
void h_run_decode(const struct h_world *w, struct h_run *run, const struct h_text *text,
    uint32_t to);
/* Marks at [from, to). */
uint32_t h_marks(const struct h_text *text, uint32_t from, uint32_t to, sc_mark *marks_out);
/* What a cold run with this history gives. */
void h_run_cold(struct h_sched *s, struct h_run *run, uint64_t root, const struct h_text *text,
    const sc_history *history, uint32_t count);
void h_slot_write(struct h_world *w, int32_t slot, uint64_t stamp);
/* The stamp that a slot holds in every word; the null slot must be zero and gives `root`. */
uint64_t h_slot_read(struct h_sched *s, int32_t slot, uint64_t root, const char *what);
uint64_t h_side_read(struct h_sched *s, uint32_t slot, const char *what);
void h_extra_write(struct h_world *w, int32_t slot, uint32_t tag);
uint32_t h_extra_read(struct h_world *w, int32_t slot);

/* kv.c: the engine's KV pages */
int32_t h_kv_take(struct h_world *w);   /* there is one: the caller has asked h_kv_room */
void h_kv_give(struct h_world *w, int32_t id);
/* True when `pages` are free, after evicting and draining if need be. */
bool h_kv_room(struct h_sched *s, uint32_t pages);
/* The id is the cache's from now on. */
void h_kv_hand_in(struct h_world *w, int32_t id);
uint32_t h_drain(struct h_sched *s, uint32_t cap);
void h_trim(struct h_sched *s, uint64_t token_max);

/* lease.c */
int h_lease_pick(struct h_sched *s);    /* index of a living lease, -1: none */
void h_lease_check(struct h_sched *s, struct h_lease *lease, bool deep);
void h_lease_gone(struct h_sched *s, struct h_lease *lease);
/* It stands on what it resumes: pages, history, the state that it must be. */
void h_lease_stand(struct h_sched *s, struct h_lease *lease, const sc_lease_info *info);
int h_ns_pick(struct h_sched *s);       /* an open one, -1: none */
void h_prompt_draw(struct h_sched *s, struct h_text *prompt);
void h_prompt_keep(struct h_sched *s, const struct h_text *text, uint32_t count);
int32_t h_token_draw(struct h_sched *s);
void h_op_acquire(struct h_sched *s);
void h_op_append(struct h_sched *s);
void h_op_release(struct h_sched *s);
void h_preempt(struct h_sched *s);      /* releases one of its leases, finished or not */
void h_op_adopt(struct h_sched *s);

sc_lease_state h_lease_state(const struct h_lease *lease);

static inline bool h_waits(const struct h_lease *lease)
{
    return lease->waiting || lease->ticket != 0;
}

/* fork.c: leases that begin with a state of somebody else's */
void h_op_fork(struct h_sched *s);
void h_op_fill(struct h_sched *s);
/* An empty place for one more lease; NULL: none. */
struct h_lease *h_lease_place(struct h_sched *s);
/* A new lease that starts inside a page gets one of its own, to be a copy of the tail's. */
void h_begin_page(struct h_sched *s, struct h_lease *lease, const sc_lease_info *info);
void h_hints_draw(struct h_sched *s, sc_hints *hints_out, uint32_t token_count, uint32_t *points);
void h_hints_check(struct h_sched *s, const struct h_lease *lease, const sc_lease_info *info);

/* plan.c */
void h_op_plan(struct h_sched *s);

/* device.c */
struct h_step *h_step_free(struct h_world *w);
uint32_t h_steps_active(const struct h_world *w);
struct h_step *h_step_oldest(const struct h_sched *s); /* of this scheduler; NULL: none */
/* The newest step in flight before `step` that names this lease, and its row there. */
struct h_step *h_step_before(const struct h_sched *s, const struct h_step *step, uint32_t lease,
    uint32_t *row_out);
/* Recounts what is in flight for a lease. */
void h_issue(struct h_sched *s, uint32_t lease);
void h_scribble(struct h_sched *s, struct h_step *step);
uint32_t h_next_to_compute(const struct h_sched *s);
/* Computes this scheduler's steps up to this one; false: the device is lost. */
bool h_compute_up_to(struct h_sched *s, const struct h_step *step);
void h_op_compute_choose(struct h_sched *s);
void h_op_compute(struct h_sched *s);
void h_op_lose(struct h_sched *s);

/* commit.c */
void h_op_commit(struct h_sched *s);
void h_op_abort(struct h_sched *s);
void h_give_up(struct h_sched *s, struct h_step *step, bool launched);
void h_step_end(struct h_sched *s, struct h_step *step); /* commits, or aborts what is lost */

/* misc.c */
void h_op_evict(struct h_sched *s);
void h_op_drain(struct h_sched *s);
void h_op_ns_open(struct h_sched *s);
void h_op_ns_close(struct h_sched *s);
void h_op_verify(struct h_sched *s);

/* read.c */
void h_op_lookup_choose(struct h_sched *s);
void h_op_lookup(struct h_sched *s);
void h_op_read(struct h_sched *s);
void h_op_stale(struct h_sched *s);
void h_op_bad(struct h_sched *s);

/* side.c: a pool of another layout beside the cache: copies of states, handles of slots */
void h_op_copy(struct h_sched *s);
void h_op_pool(struct h_sched *s);

/* script.c */
bool h_script_write(const char *path, const struct h_log *log, const char *finding);
/* NULL after a message: not a script. The caller frees it. */
struct h_log *h_script_read(const char *path);
/* Runs a list of operations in this process, to the end. */
void h_script_run(struct h_world *w, const struct h_log *script);

/* shrink.c */
/* Runs `run(ctx, script)` in a child; true when it fails, with the first line of what it said. */
bool h_try(void (*run)(void *ctx, const struct h_log *script), void *ctx,
    const struct h_log *script, char *said, size_t said_bytes);
/* Leaves out operations as long as it fails in the same place (delta debugging), for at most
 * `tries` runs. The list shrinks in place. Returns how many runs it took. */
uint32_t h_shrink(void (*run)(void *ctx, const struct h_log *script), void *ctx,
    struct h_log *script, const char *said, uint32_t tries);
struct h_log *h_log_create(uint64_t cap);   /* in shared memory */
void h_log_destroy(struct h_log *log);

#endif
