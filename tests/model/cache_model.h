/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the cache's model test share. README.md says which file does what.
 *
 * A *world* is one seed: one schema, one or two pools and one cache, sized and weighted by the
 * seed, and the naive model of what they must contain. The real objects are driven through the
 * public API alone; the model learns what was evicted from the answers, since it does not predict
 * the order, but bounds every answer (model_records.c).
 *
 * Stamps. The fake forward computes no numbers but a 64-bit *stamp* per state: a hash chain over
 * the tokens and over how they were computed, built like the real arithmetic: prefill restarts the
 * chain's chunk at every absolute multiple of the schema's chunk, decode works token by token. Two
 * states have one stamp if and only if a real model would give the same bits, so that comparing
 * stamps is the exactness contract (10), and a mixed-up slot, page or history shows as a wrong one.
 *
 * Randomness. `rng` draws what mutating calls do, `rng_read` what read-only calls do: a world run
 * without look-ups (the twin) makes the same mutating calls, and must get the same answers. */
#ifndef TESTS_MODEL_CACHE_MODEL_H
#define TESTS_MODEL_CACHE_MODEL_H

#include "base/prng.h"
#include "statecache/statecache.h"
#include "support/fail_alloc.h"

enum {
    TOKENS_MAX = 192,     /* of one lease, plus what an append may ask for too much */
    LEASES_MAX = 12,
    NS_MAX = 4,
    ROWS_MAX = 8,
    SAVES_MAX = 12,
    KV_IDS_MAX = 1 << 14, /* the engine's KV pages */
    PROMPTS_MAX = 48,     /* kept to derive new prompts from */
    STAMPS_MAX = 8,       /* histories tried at one key */
    BATCH_MAX = 4         /* items of one look-up or acquire */
};

/* ------------------------------------------------------------------ planted faults (canary) */

#define PLANT_LIST(X)                                                                              \
    X(NONE, "none")                                                                                \
    X(SWAP_SAVES, "swap_saves")       /* two saves of a step are written into each other's slot */ \
    X(FLIP_DEST, "flip_dest")         /* one bit of a working state is wrong */                    \
    X(WRITE_SOURCE, "write_source")   /* the kernel writes its source */                           \
    X(WRITE_NULL, "write_null")       /* the kernel writes the null slot */                        \
    X(LATE_WRITE, "late_write")       /* a save's slot is written after its commit */              \
    X(DROP_KV, "drop_kv")             /* a drained KV id is lost */                                \
    X(TWICE_KV, "twice_kv")           /* a KV id is handed in while the cache has it */            \
    X(SWAP_KV, "swap_kv")             /* the KV ids of two pages are handed in in wrong order */   \
    X(TAKE_SLOT, "take_slot")         /* somebody else allocates from the cache's pool */          \
    X(FREE_SLOT, "free_slot")         /* somebody else frees a slot of the cache */                \
    X(LONG_HIT, "long_hit")           /* a look-up promises a page too much */                     \
    X(LOST_HIT, "lost_hit")           /* a look-up misses what is there */                         \
    X(IMPURE, "impure")               /* a look-up moves something in the cache */                 \
    X(HISTORY, "history")             /* a history forgets one of its cuts */                      \
    X(TWIN, "twin")                   /* decisions depend on more than the mutating calls */       \
    X(LEAK, "leak")                   /* a block of memory stays */                                \
    X(CRASH, "crash")                 /* an assertion fails */
enum plant {
#define PLANT_ENUM(name, text) PLANT_##name,
    PLANT_LIST(PLANT_ENUM)
#undef PLANT_ENUM
        PLANT_COUNT
};

/* ------------------------------------------------------------------ coverage */

/* Call, and the results that must be seen: bit -status. _EACH: the status per item. */
#define B(status) (1u << -(status))
#define CALL_LIST(X)                                                                               \
    X(CREATE, "sc_cache_create",                                                                   \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_BUSY) | B(SC_ERR_OVERFLOW) | B(SC_ERR_NO_MEMORY))  \
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
    X(PLAN, "sc_step_plan",                                                                        \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_BUSY) | B(SC_ERR_LIMIT))                           \
    X(PLAN_EACH, "  each",                                                                         \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE) | B(SC_ERR_LOST) | B(SC_ERR_MISMATCH))      \
    X(COMMIT, "sc_step_commit",                                                                    \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_NOT_FOUND) | B(SC_ERR_MISMATCH) |                  \
            B(SC_ERR_STALE) | B(SC_ERR_NO_MEMORY))                                                 \
    X(ABORT, "sc_step_abort", B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_NOT_FOUND))                  \
    X(RELEASE, "sc_lease_release",                                                                 \
        B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE) | B(SC_ERR_STATE))                          \
    X(POLL, "sc_cache_poll", B(SC_OK) | B(SC_ERR_INVALID))                                         \
    X(APPLY, "sc_cache_apply", B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_NOT_FOUND))                 \
    X(ROOM, "sc_cache_room", B(SC_OK) | B(SC_ERR_INVALID))                                         \
    X(EVICT, "sc_cache_evict", B(SC_OK) | B(SC_ERR_INVALID))                                       \
    X(DRAIN, "sc_cache_drain", B(SC_OK) | B(SC_ERR_INVALID))                                       \
    X(STATS, "sc_cache_stats_get", B(SC_OK) | B(SC_ERR_INVALID))                                   \
    X(VERIFY, "sc_cache_verify", B(SC_OK) | B(SC_ERR_INVALID))                                     \
    X(DUMP, "sc_cache_dump", B(SC_OK) | B(SC_ERR_INVALID) | B(SC_ERR_STALE))
enum call {
#define CALL_ENUM(name, text, wanted) CALL_##name,
    CALL_LIST(CALL_ENUM)
#undef CALL_ENUM
        CALL_COUNT
};
enum { STATUS_MAX = 16 };

/* Sums over all worlds of the process. */
struct totals {
    uint64_t cell[CALL_COUNT][STATUS_MAX];
    uint64_t ops, ops_hit, ops_evict, ops_fail, ops_eventful; /* eventful: any of the three */
    uint64_t worlds, twins, verifies, censuses, alloc_failures;
    uint64_t steps, rows, saves, freezes, cuts, kv_in, kv_out, cold_checks, stamps_checked;
    uint64_t adopted, kept, conflicts;
    uint64_t skipped[SC_SKIP_COUNT], evicted[SC_EVICT_COUNT], reasons[SC_REASON_COUNT];
    uint64_t published_by_kind[6], resumed_by_kind[6];
};
extern struct totals totals;

/* ------------------------------------------------------------------ the model */

/* A computation from token 0 on: the stamp of the state at `len`, the stamp of the KV of each page
 * (of the last, incomplete one so far). */
struct run {
    uint64_t state;
    uint32_t len;
    uint64_t page[TOKENS_MAX];
};

/* A snapshot that was attempted: exact tokens, and the stamps that it may carry. */
struct record {
    uint32_t ns, len;
    uint64_t hash;       /* of the tokens */
    int32_t *tokens;
    uint64_t stamp[STAMPS_MAX];
    uint32_t stamp_count;
    bool dead;           /* an answer showed that it is not there; an attempt revives it */
    bool used;           /* a lease resumed from it */
    bool pinned, was_dead; /* during records_before_evict .. records_after_evict */
    /* Operation that saved or resumed it; `most` if it went and came again within one commit. */
    uint64_t last_use, last_use_most;
};

/* A token sequence whose KV may be in the index: an upper bound for kv_len. */
struct path {
    uint32_t ns, len;
    int32_t *tokens;
};

struct prompt {
    int32_t tokens[TOKENS_MAX];
    uint32_t count;
};

struct m_lease {
    sc_lease handle;
    bool used;
    sc_lease_state state;
    uint32_t ns;
    int32_t tokens[TOKENS_MAX];
    uint32_t token_count, prompt_len, resume_len, branch_len, prompt_end_len;
    struct run run;            /* committed */
    int32_t ids[TOKENS_MAX];   /* KV ids that it reads */
    uint32_t id_count;
    uint32_t tag;              /* what it wrote into its extras slot; 0: nothing yet */
    int32_t extra_slot;
    enum sc_release how;       /* of a DRAINING lease */
    uint32_t release_len;
};

struct m_save {
    uint32_t row, position;
    int32_t slot;
    uint64_t stamp;
    bool freeze;
};

struct m_row {
    uint32_t lease;      /* index */
    uint32_t from, end;
    int32_t source, dest, extra;
    bool granted, decode, freeze;
    struct run next;
};

/* The step in flight. */
struct m_step {
    bool active, computed;
    sc_step id;
    struct m_row rows[ROWS_MAX];
    uint32_t row_count, granted_count;
    struct m_save saves[SAVES_MAX + ROWS_MAX];
    uint32_t save_count;
};

struct m_ns {
    bool open;
    sc_namespace handle;
    uint64_t adapter_id, adapter_generation;
};

enum op {
    OP_ACQUIRE, OP_APPEND, OP_STEP, OP_RELEASE, OP_ADOPT, OP_EVICT, OP_DRAIN, OP_NS_OPEN,
    OP_NS_CLOSE, OP_POLL, OP_LOOKUP, OP_READ, OP_VERIFY, OP_CENSUS, OP_COUNT
};

struct config {
    uint32_t page, chunk[2], group_count, grid, chunk_grid;
    uint32_t slot_count, extra_count, alphabet, decode_interval, path_max, save_flags;
    uint32_t lease_max, lease_token_max, row_max, save_max;
    uint64_t token_max;
    sc_layout layout;
    bool without_kv, keep_cuts, flaky, wild_tokens;
    const char *policy;
    uint32_t weight[OP_COUNT];
};

struct world {
    uint64_t seed, step, steps;
    struct sc_prng rng, rng_read;
    enum plant plant;
    bool twin;             /* no look-ups */
    bool trace;
    struct config cfg;
    struct fail_alloc fa;
    sc_schema *schema, *extra_schema;
    sc_pool *pool, *extras;
    sc_cache *cache;
    sc_layer_view view[4];
    uint32_t view_count;
    sc_layer_view extra_view;

    struct m_ns ns[NS_MAX];
    struct m_lease leases[LEASES_MAX];
    struct m_step flight;
    sc_step next_step, last_step; /* last: the newest that was not undone */
    struct prompt prompts[PROMPTS_MAX];
    uint32_t prompt_count;
    struct record *records;
    uint32_t record_count, record_cap;
    struct path *paths;
    uint32_t path_count, path_cap;
    uint64_t known_dead;   /* records that answers showed gone: each was evicted */
    uint32_t next_tag;

    bool kv_inside[KV_IDS_MAX];     /* handed in and not drained */
    uint32_t kv_readers[KV_IDS_MAX];/* living leases that read it */
    uint64_t kv_stamp[KV_IDS_MAX];
    int32_t kv_free[KV_IDS_MAX];
    uint32_t kv_free_count;
    uint64_t kv_in, kv_out;

    uint64_t acquired, released, steps_done;
    uint64_t now_ns;
    sc_cache_stats stats;  /* after the last operation */
    bool op_hit, op_fail;
    bool armed;            /* an allocation of this operation fails */
    uint64_t decisions;    /* hash of all answers of mutating calls */
    uint64_t plant_from;   /* operation from which on a planted fault acts */
    void *leaked;
};

/* Says what is wrong, how to reproduce it, and ends the process with 1. */
_Noreturn void model_fail(const struct world *w, const char *file, int line, const char *cond,
    const char *fmt, ...) __attribute__((format(printf, 5, 6)));
#define CHECK(w, cond, ...)                                                                        \
    do {                                                                                           \
        if (!(cond)) model_fail((w), __FILE__, __LINE__, #cond, ": " __VA_ARGS__);                 \
    } while (0)
void model_trace(const struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static inline uint32_t draw(struct sc_prng *rng, uint32_t bound)
{
    return (uint32_t)sc_prng_below(rng, bound);
}
static inline bool one_in(struct sc_prng *rng, uint32_t n)
{
    return draw(rng, n) == 0;
}
static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}
static inline uint64_t mix(uint64_t a, uint64_t b)
{
    return sc_mix64(a * UINT64_C(0x9e3779b97f4a7c15) + (b ^ UINT64_C(0x5851f42d4c957f2d)));
}
/* Counts a result and passes it on; a failure makes the operation eventful. */
sc_status seen(struct world *w, enum call call, sc_status status);
/* Folds an answer of a mutating call into the hash of decisions. */
static inline void decided(struct world *w, uint64_t value)
{
    w->decisions = mix(w->decisions, value);
}
/* True from some operation on, one time in `n`, when this fault is planted. */
bool planted(struct world *w, enum plant plant, uint32_t n);

/* model_world.c */
void world_init(struct world *w, uint64_t seed, uint64_t steps, enum plant plant, bool twin);
void world_finish(struct world *w);
void world_after_op(struct world *w);   /* counts that must agree after every operation */
sc_cache_stats world_stats(struct world *w);
sc_room world_room(struct world *w);
void world_arm(struct world *w);        /* flaky worlds: perhaps makes an allocation fail */
bool world_disarm(struct world *w);     /* true: an allocation was refused */
void world_same(struct world *w, const sc_cache_stats *stats, const sc_room *room,
    const char *what);                  /* nothing changed since */

/* model_stamp.c */
void run_prefill(const struct world *w, struct run *run, const int32_t *tokens, uint32_t to);
void run_decode(const struct world *w, struct run *run, const int32_t *tokens, uint32_t to);
/* What a cold run with this history gives. */
void run_cold(struct world *w, struct run *run, const int32_t *tokens, const sc_history *history,
    uint32_t count);
void slot_write(struct world *w, int32_t slot, uint64_t stamp);
uint64_t slot_read(struct world *w, int32_t slot, const char *what);
void extra_write(struct world *w, int32_t slot, uint32_t tag);
uint32_t extra_read(struct world *w, int32_t slot);

/* model_records.c */
/* Notes a save that was just published or skipped; asks which. True: a snapshot is there. */
bool record_attempt(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t len,
    uint64_t stamp);
/* A lease resumed from it. */
bool record_known(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t len);
void record_use(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t len);
/* Before a save is attempted: is the snapshot still there? */
void record_ask(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t len);
/* Around an eviction of snapshots alone: what went was used no later than what stays unpinned. */
void records_before_evict(struct world *w);
void records_after_evict(struct world *w);
/* Asks for every snapshot on a path. `unused`: those that went since the last time were unused. */
void records_refresh(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t len,
    bool unused);
bool record_has_stamp(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t len,
    uint64_t stamp);
void path_add(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t len);
void records_forget(struct world *w, uint32_t ns);
void records_free(struct world *w);
/* A look-up of one key, checked against the model, which learns from it. */
sc_answer model_lookup(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t count,
    uint32_t len_max);
void model_census(struct world *w);
void op_lookup(struct world *w);

/* model_leases.c */
int lease_pick(struct world *w, struct sc_prng *rng); /* index of a living lease, -1: none */
int lease_find(const struct world *w, sc_lease handle);
void lease_check(struct world *w, struct m_lease *lease, bool deep);
void lease_gone(struct world *w, struct m_lease *lease);
void lease_set_ids(struct world *w, struct m_lease *lease, const int32_t *ids, uint32_t count);
/* After a release took effect: what of the lease may be in the index now. `before`: the statistics
 * before the call; `refused`: an allocation failed in it. */
void lease_learn_end(struct world *w, struct m_lease *lease, const sc_cache_stats *before,
    bool refused);
sc_status lease_history(struct world *w, sc_lease lease, sc_history *out, uint32_t cap,
    uint32_t *count);
void op_acquire(struct world *w);
void op_append(struct world *w);
void op_release(struct world *w);
void op_adopt(struct world *w);
void op_read(struct world *w);

/* model_steps.c */
void op_step(struct world *w);
void step_end(struct world *w); /* commits what is in flight */

/* model_misc.c */
void op_evict(struct world *w);
void op_drain(struct world *w);
void op_ns_open(struct world *w);
void op_ns_close(struct world *w);
void op_poll(struct world *w);
void op_verify(struct world *w);
void drain_some(struct world *w, uint32_t cap);
int ns_pick_open(struct world *w, struct sc_prng *rng);
/* A prompt that often shares a beginning with earlier ones. */
void prompt_draw(struct world *w, struct sc_prng *rng, struct prompt *prompt);
void prompt_keep(struct world *w, const int32_t *tokens, uint32_t count);
int32_t token_draw(struct world *w, struct sc_prng *rng);

#endif
