/* SPDX-License-Identifier: Apache-2.0 */
/* What to save, where, what to drop and what to demote.
 *
 * A policy watches one sc_radix. It stores no tokens and no ids of KV; it knows positions (blocks
 * of a prompt by the hash of everything before their end), statistics, and which node carries which
 * snapshot. Its four parts are chosen apart: placement (positions worth a snapshot), admission
 * (whether one gets in), order (which one goes first), tiers (where a victim goes).
 *
 * Life of a request; the caller holds the index exclusively in each call:
 *
 *   match, lock the path
 *   sc_policy_begin     learns from the request; fills in the points that it would save
 *   repeat sc_policy_next: the next point (or group of points) and what it is worth
 *       sc_policy_room  evicts until the bytes are free, or says no
 *       insert into the index, lock what was inserted, sc_policy_attached for each snapshot
 *   sc_policy_end
 *
 * begin and the rest may be far apart, with other requests in between: the points of an engine are
 * written by later steps, in the order of its own (sc_policy_ask instead of sc_policy_next). What
 * is decoded makes the prompt longer (sc_policy_extend, before end): a conversation goes on from
 * there. A path that is never ended costs nothing.
 *
 * A snapshot may leave the index behind the policy's back (with its space, with KV): the policy
 * notices when it next looks. It never drops a snapshot with a state lock; one on a locked path
 * only where `spare_paths` is false and nothing else is left.
 *
 * Determinism (contract 18): decisions are a function of options, calls and the tree; time is an
 * argument, statistics are refitted at call counts. No random numbers.
 *
 * Memory: asked for by create, begin and attached alone. If one of them fails nothing changed; a
 * request without begin is served without saving, a snapshot that is not attached to the policy
 * must be dropped by the caller.
 * Threads: one at a time. */
#ifndef SC_POLICY_POLICY_H
#define SC_POLICY_POLICY_H

#include "policy/cost.h"
#include "radix/radix.h"

enum sc_policy_order {
    SC_POLICY_LRU = 0,      /* the snapshot that was resumed is used, not its path */
    SC_POLICY_LRU_PATH = 1, /* every snapshot on the path is used */
    SC_POLICY_LRU_SUP = 2,  /* LRU; a snapshot that was resumed and extended goes first */
    SC_POLICY_TREE = 3,     /* least recently used leaf of the index, with its KV */
    SC_POLICY_MARCONI = 4,  /* recency + alpha x flops per byte, each min-max normalised. O(n) */
    SC_POLICY_GDSF = 5,     /* GreedyDual-Size-Frequency on recompute cost per byte */
    SC_POLICY_GITTINS = 6   /* expected recompute saved per byte and second */
};

enum {
    SC_PLACE_END = 1,      /* the prompt's last whole block */
    SC_PLACE_BRANCH = 2,   /* where KV is held, but no state */
    SC_PLACE_FORK = 4,     /* where an earlier path went on differently, held or not */
    SC_PLACE_NEAR = 8,     /* near_tokens before the end */
    SC_PLACE_INTERVAL = 16, /* every interval_tokens */
    SC_PLACE_GIVEN = 32,   /* positions that the scheduler names */
    SC_PLACE_LOG = 64,     /* halves of the new part: end - 2^k blocks */
    SC_PLACE_ALL = 127
};

enum sc_policy_admission {
    SC_ADMIT_GROUP = 0, /* all points of a request or none; everything that fits */
    SC_ADMIT_EACH = 1,  /* point by point */
    SC_ADMIT_DUEL = 2   /* point by point, against the victims that it needs */
};

/* What the caller knows about the future of a position. */
enum sc_policy_hint {
    SC_POLICY_HINT_NONE = 0,
    SC_POLICY_HINT_OVER = 1,
    SC_POLICY_HINT_CONTINUES = 2
};

struct sc_policy_options {
    const sc_allocator *allocator;
    const struct sc_radix *radix;
    struct sc_cost cost;
    enum sc_policy_order order;
    enum sc_policy_admission admission;
    uint32_t placement;       /* SC_PLACE_ bits */
    uint32_t block_tokens;    /* tokens per hash; a multiple of the page */
    uint32_t near_tokens;
    uint32_t interval_tokens; /* multiple of block_tokens */
    uint32_t ghost_max;       /* blocks remembered, 24 bytes each from the start; 0: 262,144 */
    double marconi_alpha;
    bool spare_paths;         /* snapshots on locked paths are no victims */
    bool keep_kv;             /* only the snapshot of a victim goes, the KV stays in the index */
    uint32_t tier;            /* that the index stands for: reading back is taken off the gain */
    /* Called before a victim of sc_policy_room goes, so that it can be demoted; NULL: dropped. It
     * must not touch this policy or its index. Not with SC_POLICY_TREE. */
    void (*leaving)(void *ctx, sc_node node);
    void *leaving_ctx;
    uint32_t fit_every;       /* requests; 0: default */
    uint32_t sample_count;    /* intervals that the model learns from; 0: default */
};
/* Fills in the parts that a name stands for: lru, lru-path, lru-sup, fixed, marconi, gdsf, gittins
 * (the default). SC_ERR_NOT_FOUND. The rest is left as it was. */
sc_status sc_policy_named(const char *name, struct sc_policy_options *options);
const char *sc_policy_name(uint32_t index); /* NULL past the end */

struct sc_policy;
sc_status sc_policy_create(const struct sc_policy_options *options, struct sc_policy **policy_out);
void sc_policy_destroy(struct sc_policy *policy);

struct sc_policy_point {
    uint32_t len; /* tokens */
    uint8_t kind; /* from here on the policy's */
    bool stored;
    uint16_t turn;
    uint32_t cand, generation;
};
struct sc_policy_path {
    /* The caller's, for begin. */
    /* Never runs backwards. Pins and times to live end by it. Ages follow a clock of the policy's
     * own, which is ahead where there are more than twenty requests a second. */
    uint64_t now_ns;
    const uint64_t *hashes;      /* [block_count]: of all before the end of the block; begin only */
    uint32_t block_count;        /* whole blocks of the prompt */
    /* where the point of its end lies, less than a block further; 0: at the end of the blocks */
    uint32_t end_len;
    uint32_t class_id;           /* kind of request; those above 14 are one */
    uint32_t len_max;            /* a hit is at most this long: prompt - 1 */
    uint32_t kv_len, state_len;  /* of the match; kv_len not cut at len_max */
    uint32_t held_len;           /* deepest snapshot of the prompt, if beyond len_max; else 0 */
    sc_node state_node;
    const uint32_t *given;       /* ascending positions, for SC_PLACE_GIVEN; begin only */
    uint32_t given_count;
    enum sc_policy_hint (*hint)(void *ctx, uint32_t len); /* NULL: none; called by begin only */
    void *hint_ctx;
    /* The end of this prompt, if this request saves it, stays until then; 0: no pin. Refused with
     * SC_POLICY_TREE, which would not look at it: there, the caller locks. */
    uint64_t pin_until_ns;
    /* Neither counts with SC_POLICY_TREE or _MARCONI, where a snapshot has no value by itself. */
    uint64_t ttl_ns;             /* its value ends so long after its last use; 0: never */
    int32_t priority;            /* its value is 2^priority times what it would be; -16 .. 16 */
    struct sc_policy_point *points; /* [point_cap]: filled by begin, kept until end */
    uint32_t point_cap;          /* 1 .. 65,535; what does not fit is left out */
    uint32_t output_len;         /* tokens decoded, for end; 0: not known */
    /* The policy's. */
    uint32_t point_count;        /* points, ascending */
    uint32_t turn_count, turn;
    uint32_t used, used_generation, wanted, wanted_generation, base_len;
    double near_rate;
    bool linear; /* the wanted position was the end of a prompt that this one continues */
    bool longer; /* extended: then the last point, else the end of the prompt is `prompt_end` */
    uint32_t prompt_end;
};
sc_status sc_policy_begin(struct sc_policy *policy, struct sc_policy_path *path);

struct sc_policy_ask {
    uint32_t first, count; /* points[first .. first + count) */
    double bar;            /* what they are worth; victims worth more stay */
    uint32_t kv_tokens;    /* that the points need beyond those held */
    double bytes;
};
/* False when nothing is left to ask for. `free_bytes` of the budget decide whether it is a duel. */
bool sc_policy_next(struct sc_policy *policy, struct sc_policy_path *path, double free_bytes,
    struct sc_policy_ask *ask_out);
/* The same for one point, which the caller has come to: false if it is not to be saved. */
bool sc_policy_ask(struct sc_policy *policy, struct sc_policy_path *path, uint32_t point,
    double free_bytes, struct sc_policy_ask *ask_out);
/* What a snapshot at `len` may drive out that is no point: it would stand for the path's end. */
double sc_policy_bar(struct sc_policy *policy, const struct sc_policy_path *path, uint32_t len);
/* The point has got its bytes, or lost them again; those behind it are judged accordingly. */
void sc_policy_promise(struct sc_policy_path *path, uint32_t point, bool stored);
/* Time has gone on without a request. Never backwards: earlier times are passed over. */
void sc_policy_time(struct sc_policy *policy, uint64_t now_ns);
/* Evicts by `order` until `bytes` went; stops at the first victim worth more than `bar`. What went
 * before stays gone. */
sc_status sc_policy_room(struct sc_policy *policy, double bytes, double bar,
    const struct sc_radix_sink *sink, double *bytes_out);
/* `point` of the path is in the index now, as a snapshot on `node`. */
sc_status sc_policy_attached(struct sc_policy *policy, struct sc_policy_path *path, uint32_t point,
    sc_node node, uint32_t snapshot);
/* A snapshot that belongs to no point of the path: as good as its end. `path` may be NULL. */
sc_status sc_policy_attach(struct sc_policy *policy, const struct sc_policy_path *path,
    sc_node node, uint32_t snapshot);
/* The request has become longer, up to `len` tokens, of which `hashes` has `block_count` blocks
 * (those beyond the path's are read): whoever continues it begins there and not at the prompt's
 * end. Becomes the last point; SC_ERR_LIMIT if there is no room for it. Before end. */
sc_status sc_policy_extend(struct sc_policy *policy, struct sc_policy_path *path,
    const uint64_t *hashes, uint32_t block_count, uint32_t len);
void sc_policy_end(struct sc_policy *policy, struct sc_policy_path *path);

/* The snapshot that would go first, with its value per byte: SC_NODE_NONE if none may. */
sc_node sc_policy_victim(struct sc_policy *policy, double *value_out);
/* What its snapshot is worth, per byte, as sc_policy_victim compares; 0: not known. */
double sc_policy_worth(struct sc_policy *policy, sc_node node);
/* A snapshot that comes into the index from elsewhere: from a tier above. */
struct sc_policy_record {
    const uint64_t *hashes; /* [block_count]: as a path's, up to where the snapshot lies */
    uint32_t block_count;
    uint32_t len;
    sc_node above;          /* the next one above in this index; SC_NODE_NONE: there is none */
    double bytes;           /* that it needs */
};
/* What it would be worth per byte: how often its last block is wanted, times what it saves against
 * computing from the one above. The bar for sc_policy_room. 0: computing is as fast. HUGE_VAL where
 * nothing is known yet, or the order has no statistics. */
double sc_policy_record_worth(struct sc_policy *policy,
    const struct sc_policy_record *record);
/* It is in the index, on `node`: it stands for what was learned about its last block, and
 * supersedes the end of a prompt above it that nothing else continued. SC_ERR_STATE: that block
 * has one already. */
sc_status sc_policy_adopt(struct sc_policy *policy, const struct sc_policy_record *record,
    sc_node node, uint32_t snapshot);
/* Replaces alpha (SC_POLICY_MARCONI). */
sc_status sc_policy_alpha_set(struct sc_policy *policy, double alpha);

struct sc_policy_stats {
    uint64_t requests, refits, events;
    uint64_t ghosts, candidates, resident;
    uint64_t refused, evicted;
    uint64_t bytes;
};
void sc_policy_stats_get(const struct sc_policy *policy, struct sc_policy_stats *stats_out);
/* Recounts everything. SC_ERR_CORRUPT with text. O(n). */
sc_status sc_policy_verify(const struct sc_policy *policy);
/* The victim as a scan over all snapshots finds it. For tests. O(n). */
sc_node sc_policy_victim_naive(struct sc_policy *policy, double *value_out);

#endif
