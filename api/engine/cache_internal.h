/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: the one place where index, slots and KV ids meet.
 *
 *                 sc_namespace        sc_lease            sc_step (1 .. depth_max in flight)
 *                      |                 |                    |
 *   struct space ------+---> radix <-----+---- struct lease --+---- struct step
 *   (key -> tree)            tokens,     |     tokens, history,     rows, saves, frozen
 *                            KV ids,     |     own KV ids,          slots
 *                            snapshot ids|     working slot
 *                                |       |                          drain: KV ids that the
 *                            registry    '---> pool, extras         cache has let go
 *                            id -> slot, length, history
 *
 * Lease states, with the call (and the function here) of each transition:
 *
 *   sc_cache_acquire --> READY --sc_step_plan--> RUNNING --last sc_step_commit---------> READY
 *                          |                        |---sc_step_abort, not launched---> as before
 *                          |                        |---sc_step_abort, launched-------> LOST
 *                          |                        '---sc_lease_release--> DRAINING
 *                 sc_lease_release                          | end of its last step
 *                 (sc_engine_lease_end)                     | (sc_engine_lease_end)
 *                          v                                v
 *                        gone  <----------------------------'        LOST --release--> gone
 *
 * The state is read off four facts of a lease: draining, lost, waiting, flights > 0 (in this
 * order). A lease that is lost, or released, may still have steps out; it goes when the last ends.
 *
 * Slots of one lease. W is its working slot, S a snapshot, F the slot taken in advance
 * for a freeze:
 *
 *     fresh              hit                 after a row            after a row that froze
 *     read 0, write W    read S, write W     read W, write W        W is now a snapshot:
 *                        (S is pinned)                              read W (pinned), write F
 *
 * So the kernels read a snapshot in place and nothing is copied; a snapshot is never written again.
 * F is taken at plan, when it may still be refused; hence a lease that is READY needs no slot to go
 * on.
 *
 * Several steps in flight: what is committed (len, source, working) and what is issued (issued_len,
 * next_source, next_dest) are kept apart. Each row remembers the two slots that it names.
 *
 *     committed     step 7          step 8, freezes W     step 9             issued
 *     read S        S -> W          W -> W                W -> F             read F, write F
 *
 * A row is committed after those before it. If the save of W is refused then (there is one, another
 * history), while step 9 is out: W is a *retired* source, the lease's alone, freed when step 9
 * ends. When a lease is lost nothing that its steps in flight name may go until they all have
 * ended: the F of a row that ends before is *held*.
 *
 * Rows with drafts have bounds: their true end, and so the start of rows behind them, is known at
 * the commit. They never freeze, since nobody knows beforehand where they end.
 *
 * Invariants; sc_cache_verify cites them by number.
 *
 * Slots
 * (1) Every allocated slot of the pool is exactly one of: the working slot or the retired source of
 *     one lease (WORKING, or DRAINING in a lease of that state), a save or a frozen row's F of a
 *     step in flight, or held by a lease (IN_FLIGHT), the slot of one registered snapshot
 *     (SNAPSHOT). Each lease has one slot of extras (WORKING), and so has each snapshot with
 *     records (SNAPSHOT); no other is taken.
 * (2) Registry and tree name the same snapshots, one to one. The node's end is the snapshot's token
 *     count, and (with KV) the node's history is the hash of the snapshot's history.
 * (3) A lease reads the null slot, its own working slot, its retired source, or a snapshot whose
 *     node it has state-locked. From there its rows in flight lead, one by one, to what is issued.
 *
 * KV ids
 * (4) An id that was handed in is in exactly one place: in the tree (a tail's partial page too);
 *     with a lease, as HELD or DUPLICATE, or for its end; in the drain list; or drained. TREE marks
 *     a lease's id that the tree owns now.
 * (5) Room for every id inside exists in the drain list (drain_cap >= kv_inside), made when the id
 *     comes in. So eviction, release and adoption cannot fail for memory.
 * (6) A lease KV-locks the node that ends at inserted_len: the path it resumed on, and what it has
 *     put into the tree since. Pages beyond are HELD. So neither can the tree lose a page that the
 *     lease reads, nor does the lease look at another's. Without KV there is nothing to hold:
 *     inserted_len is 0, and each leaf of the tree has a snapshot.
 * (7) kv_base + kv_count == len / page (with KV): every complete page of committed tokens has an
 *     id.
 *
 * Leases
 * (8) history ends at len and is canonical (below). token_count >= len. Marks ascend and lie before
 *     token_count.
 * (9) `flights` is the number of rows in flight that name the lease, 1 .. depth in RUNNING and
 *     DRAINING ones, 0 in READY and WAITING ones.
 * (10) A lease has two receipts from acquire to its end, so that changing a lock needs no memory:
 *     the tree's receipts are these, those of the pins, and no others.
 *
 * Counters
 * (11) saves_planned == saves_published + skipped (all causes) + saves of the steps in flight.
 *      saves_published + restored == evicted + alive. pages_in == kv_inside + pages_out.
 *
 * Those of lower tiers are in tier.h, (20) and up: transfers hold slots (IN_FLIGHT), KV ids and
 * receipts, too, and a lease may be WAITING for one.
 *
 * History, and why hits are exact. How a token's KV and a state came to be decides their bits
 * (design contract 9). A history is a list of stretches {end, form}. It is canonical: stretches of
 * prefill merge where the cut lies on the chunk grid of all groups (there the chunk form stores and
 * loads the carried state anyway), stretches of decode always do (each token is one update), but
 * with rings not where one begins with a flush that does not follow from its place (ring.c).
 * Then the bits at token t depend on the tokens up to t and on the stretches that *begin* at or
 * before t, and not on where the last of them ends: later tokens never change earlier outputs
 * (contract 10). So
 *
 *     H(page p) = hash chain over (begin, form) of the stretches that begin before the end of p
 *
 * is the same for two leases with equal tokens if and only if they made page p in the same way (but
 * for a collision of 64 bits). A page in which several stretches begin has the chain over all of
 * them. The tree keeps H for each node and never puts pages of two histories on one path; a state
 * at n is made by the stretches that begin before n, which is H of the page that ends at n. A hit
 * therefore offers KV and state of one computation, and the lease that resumes it carries that
 * history on. Pure recurrent models (without_kv) have nothing that could be mixed: one history for
 * all.
 *
 * Locking: `lock` shared for look-ups, info, room, statistics, verify; exclusive for the rest.
 * Never held over device calls: slots that a call takes are prepared after it was given back
 * (evict.c); when that fails, the call takes back what it can and gives up what it cannot.
 *
 * Who goes. What is leased or in flight is locked in the tree, so is what is pinned (pin.c): no
 * policy can take it. Of the rest the policy chooses (choose.c); what it does not know, and all of
 * it where there is none, goes least recently used.
 *
 * Acquire first, mutate last: whatever may fail (memory of leases, of the drain list, of receipts)
 * is taken before anything changes. What may fail in the middle of a commit (tree nodes, registry
 * entries) costs a save, which is counted, and never the commit.
 *
 * Rejected: copying the snapshot into the working slot on a hit (one more pass over the state);
 * inserting each decoded token at once (nothing could be resumed there); giving the saves of a step
 * their slots at commit (the kernel has to know them before). */
#ifndef SC_ENGINE_CACHE_INTERNAL_H
#define SC_ENGINE_CACHE_INTERNAL_H

#include <math.h>

#define SC_MAP_HEAP (&cache->heap)
#include "base/error.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/map.h"
#include "base/sc_assert.h"
#include "pool/pool_internal.h"
#include "policy/policy.h"
#include "radix/radix.h"
#include "snapshot/registry.h"
#include "statecache/cache.h"
#include "statecache/inspect.h"
#include "statecache/kernels_replay.h"

enum { SPACE_KEY_BYTES = 64 };

struct tier;     /* tier.h */
struct transfer;
struct tier_record;
struct event_queue; /* event.h */

/* A namespace. `id - 1` is its index in sc_cache.spaces. */
struct space {
    uint32_t id, generation;
    uint32_t radix_space;
    uint32_t lease_count;
    uint32_t tier_space;  /* of the directory of tiers */
    uint64_t adapter_id, adapter_generation;
    uint8_t key[SPACE_KEY_BYTES];
    uint32_t key_bytes;
    UT_hash_handle hh; /* in sc_cache.space_by_key */
};

/* Who has the KV id of a page: invariant (4). */
enum kv_owner { KV_HELD = 0, KV_TREE = 1, KV_DUPLICATE = 2 };

/* A position inside the prompt where a state is to be saved. */
struct inner {
    uint32_t position;
    sc_save_kind kind;
};

enum { POINT_MAX = 25 }; /* of the policy, for one lease */

struct lease {
    uint32_t id, generation;
    struct space *space;
    bool draining, lost, waiting;
    bool overrun;         /* a row of it was discarded: the working slot is not the state at len */
    uint32_t flights;     /* rows in flight */
    uint32_t depth, flags;

    int32_t *tokens;
    uint32_t token_count, token_cap;
    sc_mark *marks;
    uint32_t mark_count, mark_cap;
    uint32_t prompt_len;
    uint32_t len;         /* committed */
    uint32_t resume_len;
    uint32_t resume_slot; /* until the first commit */
    sc_save_kind resume_kind;
    sc_reason reason;
    uint32_t external_len; /* what the engine fills, until it did */
    struct sc_snapshot_hints hints, resume_hints;
    struct inner inner[POINT_MAX]; /* to be saved: grid points, ascending */
    uint32_t inner_count;
    uint32_t branch_len;  /* to be saved; 0: none, or passed */
    uint32_t prompt_end;  /* position to be saved for the prompt; 0: none */

    struct sc_stretch *history;
    uint32_t history_count, history_cap;

    int32_t *kv;          /* ids handed in, from page kv_base on */
    uint8_t *kv_owner;    /* [kv_cap] enum kv_owner */
    uint32_t kv_base, kv_count, kv_cap;

    /* KV lock of the node that ends at inserted_len; of no node at 0 */
    struct sc_radix_receipt path;
    uint32_t inserted_len; /* whole pages: a tail hangs below the node */
    int32_t tail_kv;       /* partial page of a tail that it resumed, until the next commit; -1 */
    int32_t end_tail;      /* DRAINING: partial page that was handed in with the release; -1 */
    /* state lock of the snapshot that is the source; else of no node */
    struct sc_radix_receipt pin;
    bool pinned;
    bool retired;         /* the source is the lease's own slot, and not the working slot */
    sc_slot source, working, extra;
    /* Rings (ring.c): records on top of the base, and whether the next token may be one; slot of
     * the extras that holds them until the first row has copied them (null: `extra` does); a
     * snapshot has taken `extra` over. */
    uint32_t records, issued_records;
    bool ring_open, issued_open, extra_kept;
    sc_slot ring_from;
    sc_slot held[SC_DEPTH_MAX]; /* of rows that have ended, named by others in flight */
    uint32_t held_count;

    /* What is issued: where the next row starts (bounds), reads and writes. */
    uint32_t issued_len, issued_max;
    sc_slot next_source, next_dest;

    /* newest snapshot of a decode position, 0: none; dropped by the next */
    uint32_t decode_snapshot;
    uint32_t decode_len;
    sc_node own_tail;     /* the newest tail it saved: node, snapshot (0: none), length */
    uint32_t own_tail_snapshot, own_tail_len;

    bool learned;         /* the policy knows `policy`; else only its ttl and priority count */
    struct sc_policy_path policy;
    struct sc_policy_point points[POINT_MAX];
    uint64_t path_hash;   /* of the whole blocks of the prompt */

    uint32_t row[SC_DEPTH_MAX]; /* its row in each step in flight (by index), or NO_ROW */
    struct lease *next;   /* of those that are being made */
    struct transfer *restore; /* it waits for */
    struct lease *restore_next; /* of the waiters of that */
    uint64_t deadline_ns; /* of waiting; 0: none */
    uint8_t kv_asked;     /* acquire asked for pages: 1: there were none, 2: there were */
    enum sc_release end_how; /* DRAINING: what to do when its last step ends */
    uint32_t end_len;
    bool end_moves;       /* ... its state is to be kept, but what is in flight goes beyond it */
    UT_hash_handle hh;    /* in sc_cache.leases */
};

/* A position that a lease means to save, and has not reached. */
struct pending {
    const struct lease *lease;
    uint32_t position;
    int32_t last; /* the token before it: tells most keys apart */
};

struct step_save {
    uint32_t row, position;
    sc_save_kind kind;
    sc_slot slot;
};

/* A save that found no room when it was planned. */
struct step_skip {
    uint32_t row, position, cause;
    sc_save_kind kind;
};

/* What the commit in hand tells its caller of the saves: row by row. */
struct report {
    sc_saved *out;
    uint32_t cap, count;
};

enum { NO_ROW = UINT32_MAX };

struct step_row {
    struct lease *lease;     /* NULL: refused */
    uint32_t from, from_max; /* where it starts: bounds */
    uint32_t end;            /* at most */
    uint32_t certain;        /* tokens that are not drafts */
    uint32_t draft_count;
    bool decode;
    sc_slot source, dest;
    sc_save_kind freeze_kind; /* NONE: the row does not freeze */
    sc_slot freeze;           /* F */
    uint32_t save_first, save_count;
    uint32_t accepted_row, accepted_back; /* see sc_batch; NO_ROW */
    bool wants_end;           /* its end is to be saved, whether there was a slot or not */
    sc_replay_mode flush;     /* see ring.c, as the next four */
    bool ring_copy, open_after;
    uint32_t records_after;
    sc_slot ring_from;
    const sc_result *result;  /* during commit */
    bool discard;             /* ... nothing of it is kept */
};

struct step {
    bool in_flight;
    sc_step number, number_before; /* and the one planned before it */
    uint64_t plan;                 /* how many were planned before, without those taken back */
    uint32_t row_count, granted_count, save_count;
    struct step_row *rows;    /* [row_max] */
    struct step_save *saves;  /* [save_max] */
    struct step_skip *skips;  /* [row_max + save_max] */
    uint32_t skip_count;
    sc_slot *fills;           /* [row_max + save_max]: slots that its plan took */
    int32_t *block;
    uint32_t block_words;
};

/* A snapshot that is kept until a time (pin.c). */
struct pin {
    uint64_t until_ns;
    struct sc_radix_receipt receipt;
    const struct lease *lease; /* NULL: gone */
    const struct space *space;
    bool holds;
};

/* Nodes that were leaves without a state when they were noted, oldest first: their pages go before
 * others. */
enum { STALE_MAX = 1024 };
struct stale {
    sc_node nodes[STALE_MAX];
    uint32_t first, count;
};

/* Ring of KV ids that wait for sc_cache_drain, oldest first. */
struct drain {
    int32_t *ids;
    uint64_t cap, first, count;
};

/* Whose records a slot of the extras pool holds. */
struct ring_holder {
    sc_node node;
    uint32_t snapshot; /* 0: no snapshot's */
    uint64_t clock;    /* rises: oldest first */
};

/* The record that is being written (record.c). */
struct recorder {
    uint32_t *words;
    uint32_t count, cap;
};

struct sc_cache {
    struct sc_heap heap;
    struct sc_rwlock lock;
    sc_cache_options options; /* defaults resolved */
    sc_fingerprint fingerprint;
    uint32_t page, grid, chunk_grid; /* chunk_grid: lcm of the groups' chunks alone */
    uint32_t decode_interval;        /* resolved; 0: none */

    struct sc_radix *radix;
    struct sc_registry *registry;
    sc_kernels *kernels;      /* NULL: no kernel knows these states */
    struct sc_policy *policy; /* NULL: least recently used, as the tree's lists say */
    uint32_t policy_index;    /* of its name */
    uint64_t now_ns;          /* the latest that was said */
    struct pin *pins;
    uint32_t pin_count, pin_cap;
    uint64_t pin_next_ns;     /* 0: none */
    uint32_t pool_slots;
    struct stale stale;
    uint32_t ring_records;       /* 0: no rings */
    struct ring_holder *holders; /* [holder_count] by slot of the extras */
    uint32_t holder_count;
    uint64_t holder_clock;

    struct space **spaces;    /* by id - 1; NULL: closed */
    uint32_t space_count, space_cap;
    struct space *space_by_key;
    uint32_t generation;      /* last one given, of namespaces and leases */

    struct lease *leases;     /* by id */
    uint32_t lease_count, lease_id;

    struct step steps[SC_DEPTH_MAX]; /* [depth_max], in no order */
    sc_step step_newest;             /* number of the newest plan that was not taken back */
    uint64_t plan_count;
    struct pending *pending; /* in no order */
    uint32_t pending_count, pending_cap;
    struct drain drain;
    uint64_t kv_inside;       /* ids handed in and not drained */
    uint64_t kv_held;         /* of these, with leases: HELD and DUPLICATE */

    /* Scratch of an insert, large enough for every lease (sc_engine_reserve_scratch). */
    int32_t *scratch_ids;
    uint32_t scratch_ids_cap;
    struct sc_radix_run *scratch_runs;
    uint32_t scratch_runs_cap;
    struct sc_radix_save *scratch_saves; /* [save_max + 1], like the next four */
    sc_status *scratch_status;
    uint32_t *scratch_order;
    sc_node *scratch_nodes;              /* of the saves */
    struct step_save *scratch_publish;
    uint32_t *scratch_depth;             /* [draft_max] of each draft in its tree */
    uint64_t *scratch_hashes;            /* of blocks; sc_engine_hashes_reserve */
    uint32_t scratch_hashes_cap;

    struct tier *tier;        /* NULL: the device alone */
    struct event_queue *events; /* NULL: nobody asks */
    struct recorder recorder;
    struct report *report;    /* NULL: nobody asks */
    sc_cache_stats stats;     /* the counters among its members */
};

/* cache.c */
void sc_engine_room(const sc_cache *cache, sc_room *room_out);

/* choose.c: what the policy is asked and told. Nothing, where there is none. */
sc_status sc_engine_policy_create(sc_cache *cache);
/* kernels.c: rows for the pool's states, if kernels know them. */
sc_status sc_engine_kernels_create(sc_cache *cache);
/* Time has come to `now_ns`, unless it was there: pins end. True: it went on. */
bool sc_engine_time(sc_cache *cache, uint64_t now_ns);
sc_status sc_engine_hashes_reserve(sc_cache *cache, uint32_t tokens);
/* Learns from the prompt of a lease that stands on its hit, and says where it saves. */
sc_status sc_engine_policy_begin(sc_cache *cache, struct lease *lease,
    const struct sc_radix_match *match, uint32_t len_max, uint32_t held_len, const sc_hints *hints);
/* What a save may drive out; `asked`: the scheduler wants it, whatever it costs. */
double sc_engine_policy_bar(sc_cache *cache, struct lease *lease, uint32_t position, bool asked);
/* A save has a slot, or has lost it. */
void sc_engine_policy_promise(struct lease *lease, uint32_t position, bool stored);
void sc_engine_policy_attach(sc_cache *cache, struct lease *lease, uint32_t position, sc_node node,
    uint32_t snapshot);
/* The lease will be kept up to `len`. */
void sc_engine_policy_extend(sc_cache *cache, struct lease *lease, uint32_t len);
void sc_engine_policy_end(sc_cache *cache, struct lease *lease);

/* pin.c */
/* A pin for a lease whose hints want one. SC_ERR_NO_MEMORY. */
sc_status sc_engine_pin_take(sc_cache *cache, struct lease *lease);
/* It holds this snapshot from now on, and not the one before. */
void sc_engine_pin_move(sc_cache *cache, const struct lease *lease, sc_node node);
/* Ends the pin that would end soonest of those whose snapshots may go then; false: none. */
bool sc_engine_pin_break(sc_cache *cache);
/* The lease goes; what its pin holds stays until its time. */
void sc_engine_pin_leave(sc_cache *cache, const struct lease *lease);
void sc_engine_pins_serve(sc_cache *cache);
/* All of a space. */
void sc_engine_pins_drop(sc_cache *cache, const struct space *space);

/* space.c */
struct space *sc_engine_space(const sc_cache *cache, sc_namespace ns);
void sc_engine_spaces_free(sc_cache *cache);

/* lease.c */
struct lease *sc_engine_lease(const sc_cache *cache, sc_lease handle);
/* The same, or SC_ERR_STALE with text. */
sc_status sc_engine_lease_find(const sc_cache *cache, sc_lease handle, struct lease **lease_out);
/* Room for so many marks in all. */
sc_status sc_engine_marks_reserve(sc_cache *cache, struct lease *lease, uint32_t count);
/* Strictly ascending within [from, to): SC_ERR_INVALID. */
sc_status sc_engine_marks_check(const sc_mark *marks, uint32_t count, uint32_t from, uint32_t to);
/* Room for so many stretches in all. */
sc_status sc_engine_history_reserve(sc_cache *cache, struct lease *lease, uint32_t count);
/* Room for so many tokens in all. */
sc_status sc_engine_tokens_reserve(sc_cache *cache, struct lease *lease, uint32_t count);
sc_status sc_engine_key_check(const sc_cache *cache, const sc_key *key, uint32_t *len_max_out);
uint32_t sc_engine_state_beyond(const sc_cache *cache, const struct sc_radix_key *key,
    uint32_t space, const struct sc_radix_match *match, uint32_t len_max);
sc_reason sc_engine_reason(const sc_cache *cache, const struct sc_radix_match *match,
    uint32_t len_max, uint32_t beyond);
void sc_engine_lease_free(sc_cache *cache, struct lease *lease);
/* A lease of these tokens and this history, with two receipts of nothing, known by its id; without
 * slots. */
sc_status sc_engine_lease_create(sc_cache *cache, const sc_key *key,
    const struct sc_stretch *history, uint32_t history_count, struct lease **lease_out);
/* Takes a new lease back whose slots the device could not prepare: it was never there, but for what
 * was evicted for it. Takes the lock. SC_ERR_STALE; SC_ERR_STATE: it is in use. */
sc_status sc_engine_lease_undo(sc_cache *cache, sc_lease handle, bool forked);
/* Undoes sc_engine_lease_create. */
void sc_engine_lease_destroy(sc_cache *cache, struct lease *lease);
/* The lease stands on the hit: history apart, and what follows from its slots. */
void sc_engine_take_hit(sc_cache *cache, struct lease *lease, const struct sc_radix_match *match,
    const struct sc_snapshot_info *hit);
/* A working slot and one of the extras: both or none. May evict. */
sc_status sc_engine_take_slots(sc_cache *cache, struct lease *lease);
void sc_engine_give_slots(sc_cache *cache, struct lease *lease);
/* It is alive from here on. */
void sc_engine_lease_enter(sc_cache *cache, struct lease *lease, struct space *space);
/* The node of the whole pages before a state at `len`, which is at `node`. */
sc_node sc_engine_above_tail(const sc_cache *cache, sc_node node, uint32_t len);
/* Makes room for `count` more ids and one more stretch, without changing what is there. */
sc_status sc_engine_lease_reserve(sc_cache *cache, struct lease *lease, uint32_t kv_count);

/* pending.c */
/* Room for what so many leases more may mean to save. */
sc_status sc_engine_pending_reserve(sc_cache *cache, uint32_t leases);
void sc_engine_pending_add(sc_cache *cache, const struct lease *lease);
/* Forgets positions of the lease up to `len`. */
void sc_engine_pending_pass(sc_cache *cache, const struct lease *lease, uint32_t len);
/* The longest prefix of the key beyond `len` that a lease means to save, 0: none; and the step in
 * flight that computes it, 0: not planned. */
uint32_t sc_engine_pending_find(const sc_cache *cache, const struct space *space,
    const sc_key *key, uint32_t len, uint32_t len_max, sc_step *step_out);

/* lease_change.c */
/* Keeps what is to be kept, gives the rest back and frees the lease. Cannot fail. */
void sc_engine_lease_end(sc_cache *cache, struct lease *lease, enum sc_release how, uint32_t len);

/* publish.c */
/* Exchanges what a receipt holds. Cannot fail. */
void sc_engine_relock(sc_cache *cache, struct sc_radix_receipt *receipt, sc_node node,
    uint32_t what);
/* Counts a save that was not made, and tells the caller of the commit. */
void sc_engine_skip(sc_cache *cache, struct lease *lease, const struct step_save *save,
    uint32_t cause);
/* Where the index is at its limit, gives up least recently used content for so many tokens more.
 * False: even that is too little, or it is not the limit that is in the way. */
bool sc_engine_make_token_room(sc_cache *cache, uint64_t more);
/* Whether the snapshot came to be as the lease's state after as many tokens did. */
bool sc_engine_same_history(const struct lease *lease, const struct sc_snapshot_info *snapshot);
/* Appends [.., end) computed in `form` to a canonical history; there is room for one more. `anew`:
 * as a stretch of its own, whatever was before. */
void sc_engine_history_push(const sc_cache *cache, struct sc_stretch *history, uint32_t *count,
    uint32_t end, uint32_t form, bool anew);
/* History of the page that ends at `len` (> 0), or of the state there. */
uint64_t sc_engine_history_hash(const struct sc_stretch *history, uint32_t count, uint32_t len);
/* Scratch for inserts of leases with so many pages and stretches. */
sc_status sc_engine_reserve_scratch(sc_cache *cache, uint32_t pages, uint32_t stretches);
/* What became of the freeze of a row (or of the end of a lease): the last of the saves. */
struct published {
    sc_node node;      /* end of what was offered: of the lease's path, or a tail below it */
    sc_status status;  /* of the last save; SC_OK: its slot is a snapshot now */
    uint32_t snapshot; /* id of the last save, 0 unless published */
};
/* Offers tokens [0, len) of the lease, and `count` saves (ascending, the slots are the cache's), to
 * the tree: whole pages, unless the last save is a tail at `len`; then (with KV) `tail_kv` is the
 * id of the partial page. An id that is not -1 counts as held, and is the tree's or in the drain
 * list afterwards. Slots of refused saves are freed, except the last one's if `keep_last`. What
 * goes wrong is counted; nothing is returned as failure. */
struct offer {
    uint32_t len;
    const struct step_save *saves;
    uint32_t count;
    bool keep_last;
    int32_t tail_kv;
    bool tail_outside; /* the id is not the cache's yet, nor by this call */
};
void sc_engine_publish(sc_cache *cache, struct lease *lease, const struct offer *offer,
    struct published *published_out);
/* Snapshots beyond path_snapshots_max on the path to this node go. */
void sc_engine_cap_path(sc_cache *cache, sc_node node);
/* Whether a state at `len` could be saved: always where a page ends. */
static inline bool sc_engine_end_savable(const sc_cache *cache, uint32_t len, int32_t tail_kv)
{
    if (len % cache->page == 0) return true;
    return cache->options.tails && (cache->options.without_kv || tail_kv >= 0);
}
/* The slot with the state at the committed length becomes a snapshot, which the lease then reads,
 * if the tree takes it; `fresh` is written next (given back else). For a lease without steps out.
 * A `tail_kv` is the tree's then, but counted by the caller. */
void sc_engine_freeze_now(sc_cache *cache, struct lease *lease, sc_save_kind kind, sc_slot fresh,
    int32_t tail_kv, struct published *published_out);
/* Gives a lease up whose slots the device could not prepare: it is LOST. Takes the lock.
 * SC_ERR_STALE. */
sc_status sc_engine_lose(sc_cache *cache, sc_lease handle);
/* Drops what the lease has saved on the path to `node` beyond `len` and nobody used. */
void sc_engine_drop_beyond(sc_cache *cache, struct lease *lease, sc_node node, uint32_t len);
/* Drops the lease's newest decode snapshot, at or below `node`, if nobody used it. */
void sc_engine_decode_drop(sc_cache *cache, struct lease *lease, sc_node node);

/* record.c: room for the record of a call that is about to be carried out, and what is recorded
 * once it has been. Nothing happens where the options have no callback. */
sc_status sc_engine_record_room(sc_cache *cache, uint64_t words);
void sc_engine_record_free(sc_cache *cache);
sc_status sc_engine_record_created(sc_cache *cache);
void sc_engine_record_ns_open(sc_cache *cache, uint64_t adapter, uint64_t generation,
    sc_namespace ns);
void sc_engine_record_ns_close(sc_cache *cache, sc_namespace ns);
uint64_t sc_engine_record_acquire_words(const sc_cache *cache, const sc_request *requests,
    uint32_t count);
void sc_engine_record_acquire(sc_cache *cache, const sc_request *requests, uint32_t count,
    uint64_t now_ns, const sc_lease *leases, const sc_status *each, bool later);
uint64_t sc_engine_record_append_words(const sc_cache *cache, uint32_t count, uint32_t marks);
void sc_engine_record_append(sc_cache *cache, sc_lease lease, const int32_t *tokens,
    uint32_t count, const sc_mark *marks, uint32_t mark_count);
uint64_t sc_engine_record_filled_words(const sc_cache *cache, uint32_t kv_count,
    uint32_t history_count);
void sc_engine_record_filled(sc_cache *cache, sc_lease lease, const int32_t *kv_ids,
    uint32_t kv_count, const sc_history *history, uint32_t history_count);
void sc_engine_record_fork(sc_cache *cache, sc_lease lease, int32_t tail_kv, uint32_t count,
    sc_status status, const sc_lease *children);
void sc_engine_record_lose(sc_cache *cache, sc_lease lease);
void sc_engine_record_undo(sc_cache *cache, sc_lease lease, bool forked);
void sc_engine_record_adopt(sc_cache *cache, sc_lease lease, uint32_t count);
void sc_engine_record_release(sc_cache *cache, sc_lease lease, uint32_t len, enum sc_release how,
    int32_t tail_kv);
uint64_t sc_engine_record_plan_words(const sc_cache *cache, const sc_row *rows, uint32_t count);
void sc_engine_record_plan(sc_cache *cache, sc_step step, const sc_row *rows, uint32_t count,
    uint64_t now_ns, const sc_batch *batch, const sc_status *each);
uint64_t sc_engine_record_commit_words(const sc_cache *cache, const sc_result *results,
    uint32_t count);
void sc_engine_record_commit(sc_cache *cache, sc_step step, const sc_result *results,
    uint32_t count);
void sc_engine_record_abort(sc_cache *cache, sc_step step, bool launched);
void sc_engine_record_evict(sc_cache *cache, uint32_t pages, uint32_t slots, const sc_room *got);
void sc_engine_record_evict_prefix(sc_cache *cache, const sc_key *prefix,
    const sc_evicted *evicted);
void sc_engine_record_trim(sc_cache *cache, uint64_t token_max);
void sc_engine_record_apply(sc_cache *cache, const sc_done *done, uint32_t count,
    uint64_t now_ns);
/* Whether an item of sc_cache_learn says anything. */
static inline bool sc_engine_learns(const sc_find *find)
{
    return find->status == SC_OK && find->len > 0;
}
uint64_t sc_engine_record_learn_words(const sc_find *finds, uint32_t count);
void sc_engine_record_learn(sc_cache *cache, const sc_find *finds, uint32_t count,
    uint64_t now_ns);
void sc_engine_record_drain(sc_cache *cache, uint32_t cap, const int32_t *ids, uint32_t count);

/* event.c: what the reader of events is told; nothing happens without one. */
sc_status sc_engine_events_create(sc_cache *cache);
void sc_engine_events_free(sc_cache *cache);
/* A snapshot of the lease is on `node`; it has gone from the device. */
void sc_engine_event_saved(sc_cache *cache, const struct lease *lease, uint32_t position,
    sc_node node, uint32_t snapshot, uint32_t kind);
void sc_engine_event_gone(sc_cache *cache, uint32_t snapshot, uint32_t cause);
/* A restore has made a snapshot; a store has made a copy; a copy has gone. */
void sc_engine_event_restored(sc_cache *cache, const struct transfer *transfer, sc_node node,
    uint32_t snapshot);
void sc_engine_event_copied(sc_cache *cache, const struct transfer *transfer, uint32_t which);
/* Of a remote copy, by sc_cache_learn. */
void sc_engine_event_learnt(sc_cache *cache, const struct space *space, const sc_find *find,
    const struct tier_record *record);
void sc_engine_event_dropped(sc_cache *cache, const struct tier_record *record, uint32_t which);

/* evict.c */
struct evict_sink {
    sc_cache *cache;
    uint32_t asked_as; /* SC_EVICT_ cause that an asked-for eviction counts as */
    bool chosen;       /* all that goes was asked for: the policy has chosen it */
    struct sc_radix_sink sink;
    uint64_t pages, slots;
};
void sc_engine_sink_init(sc_cache *cache, uint32_t asked_as, struct evict_sink *sink);
sc_status sc_engine_drain_reserve(sc_cache *cache, uint64_t more);
void sc_engine_drain_push(sc_cache *cache, const int32_t *ids, uint32_t count);
/* Ids that come in and go at once; there is room for them. */
void sc_engine_drain_push_new(sc_cache *cache, const int32_t *ids, uint32_t count);
/* One slot, evicting an unpinned snapshot if need be that is worth no more than `bar` (HUGE_VAL:
 * whatever it is worth). SC_ERR_NO_SLOT: none may go. SC_ERR_LIMIT: they are all worth more. */
sc_status sc_engine_slot_take(sc_cache *cache, sc_owner owner, double bar, sc_slot *slot_out);
/* The node is a leaf without a state, as far as is known. */
void sc_engine_stale_add(sc_cache *cache, sc_node node);
/* Evicts pages of such nodes until `pages` went. Returns how many did. */
uint64_t sc_engine_stale_evict(sc_cache *cache, uint64_t pages, struct evict_sink *sink);
/* One slot of the extras pool. SC_ERR_NO_SLOT. */
sc_status sc_engine_extra_take(sc_cache *cache, sc_slot *slot_out);
void sc_engine_slot_free(sc_pool *pool, sc_slot slot);
/* Slots that the call in hand has taken, and that nobody has prepared yet. */
struct fills {
    sc_slot *slots, *extras;
    uint32_t slot_count, extra_count;
    struct transfer *transfers; /* that write some of them */
};
/* Those of a new lease. */
void sc_engine_fill_add(const sc_cache *cache, struct fills *fills, const struct lease *lease);
/* Prepares them: calls the device, so without the lock. On error they may hold anything. */
sc_status sc_engine_fill(const sc_cache *cache, const struct fills *fills);

/* ring.c: nothing happens without rings. */
/* SC_ERR_INVALID: rings without control words. SC_ERR_NO_MEMORY. */
sc_status sc_engine_ring_create(sc_cache *cache);
void sc_engine_ring_free(sc_cache *cache);
/* What the row does with its ring; before it is issued. */
void sc_engine_ring_plan(const sc_cache *cache, struct step_row *row);
/* Where the lease's rows in flight lead. */
void sc_engine_ring_issue(const sc_cache *cache, struct lease *lease);
/* Whether the row, about to be kept, begins a stretch of the history: it flushed, and that does not
 * follow from its place. */
bool sc_engine_ring_anew(const sc_cache *cache, const struct lease *lease,
    const struct step_row *row);
void sc_engine_ring_keep_row(struct lease *lease, const struct step_row *row);
/* The lease stands on the snapshot. */
void sc_engine_ring_resume(struct lease *lease, const struct sc_snapshot_info *snapshot);
/* A snapshot of the lease's state: what of its ring goes with it; it was published; its node. */
void sc_engine_ring_register(const struct lease *lease, struct sc_snapshot_info *info);
void sc_engine_ring_saved(sc_cache *cache, struct lease *lease, uint32_t position,
    uint32_t snapshot);
void sc_engine_ring_located(sc_cache *cache, const struct lease *lease, sc_node node,
    uint32_t snapshot);
/* A snapshot is no more. */
void sc_engine_ring_gone(sc_cache *cache, sc_slot extra);
/* The lease goes on from the snapshot that has taken its slot over. */
void sc_engine_ring_swap(struct lease *lease, sc_slot fresh);
/* Makes a slot of the extras free at the cost of a snapshot with records. */
bool sc_engine_ring_evict(sc_cache *cache);

/* block.c */
/* Offsets of the sections of a block; no block. */
void sc_engine_batch_layout(const sc_cache *cache, sc_batch *batch);
/* Writes the block of a step that was just planned, but for its parents. */
void sc_engine_batch_clear_parents(const sc_cache *cache, struct step *step);
void sc_engine_batch_write(sc_cache *cache, struct step *step, sc_batch *batch);

/* step.c */
sc_status sc_engine_step_init(sc_cache *cache);
void sc_engine_step_free(sc_cache *cache);
/* Where the lease's rows in flight lead: issued_len and issued_max. */
void sc_engine_issue(const sc_cache *cache, struct lease *lease);
/* The row of the lease in its newest step in flight before `number`; NULL: none. */
const struct step_row *sc_engine_row_before(const sc_cache *cache, const struct lease *lease,
    sc_step number, const struct step **step_out);

static inline sc_lease_state sc_engine_lease_state(const struct lease *lease)
{
    if (lease->draining) return SC_LEASE_DRAINING;
    if (lease->lost) return SC_LEASE_LOST;
    if (lease->waiting) return SC_LEASE_WAITING;
    return lease->flights > 0 ? SC_LEASE_RUNNING : SC_LEASE_READY;
}

/* Owner of the lease's own slots. */
static inline sc_owner sc_engine_lease_owner(const struct lease *lease)
{
    return lease->draining ? SC_OWNER_DRAINING : SC_OWNER_WORKING;
}

/* Whether nobody knows yet where the row ends. */
static inline bool sc_engine_row_uncertain(const struct step_row *row)
{
    return row->draft_count > 0 || row->from != row->from_max;
}

static inline uint32_t sc_engine_page_floor(const sc_cache *cache, uint32_t len)
{
    return len - len % cache->page;
}

#endif
