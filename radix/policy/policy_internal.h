/* SPDX-License-Identifier: Apache-2.0 */
/* Private to radix/policy: the structures behind sc_policy. policy.c opens with the picture and
 * the invariants. */
#ifndef SC_POLICY_INTERNAL_H
#define SC_POLICY_INTERNAL_H

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/heap.h"
#include "base/sc_assert.h"
#include "policy/policy.h"

/* Kinds of positions; an interval of demand is learned per kind. */
enum {
    KIND_FIRST = 0,      /* end of a prompt that continues no other */
    KIND_TURN = 1,       /* end of a prompt that continues another one's end */
    KIND_BRANCH = 2,     /* paths part here */
    KIND_SUPERSEDED = 3, /* was resumed and went on linearly */
    KIND_NEAR = 4,       /* shortly before the end of a prompt */
    KIND_COUNT = 5
};

enum {
    FEATURES = 7,
    FEATURE_CLASS = 4,           /* the last one that positions inside a prompt have */
    LEVELS_PER_FEATURE = 16,
    STRATA_PER_KIND = 4,
    HINTS = 3,
    STRATA = KIND_COUNT * STRATA_PER_KIND * HINTS,
    MULTIPLIERS = STRATA * FEATURES * LEVELS_PER_FEATURE,
    AGES = 36,
    LEVELS_PER_OCTAVE = 4,       /* of the product of multipliers */
    LEVEL_MAX = 16,              /* 2^-4 .. 2^4 */
    INDEX_LEVELS = 2 * LEVEL_MAX + 1,
    HEAP_WAYS = 4,
    CHILD_WALK_MAX = 64,         /* nodes visited below a new snapshot to correct their values */
    GHOSTS_DEFAULT = 1 << 18,
    GHOSTS_PER_CAND = 16,        /* candidates for which there is room from the start */
    SAMPLES_DEFAULT = 8000,
    FIT_DEFAULT = 100,
    FIT_GROWTH = 30,             /* a 30th of the requests so far, where that is more */
    FIT_EVERY_MAX = 500,
    SC_POLICY_COLD_EVENTS = 10 /* events before anything is refused */
};

/* A point near the end must be worth twice what it drives out. */
#define SC_POLICY_NEAR_FACTOR 0.5

/* A block of a prompt that was seen, with all before it. */
struct ghost {
    uint64_t hash;
    union {
        uint32_t cand;      /* 0: not a position that is learned about */
        uint32_t next_free; /* if not live */
    };
    uint32_t children : 29; /* blocks seen after it; stays at the most */
    bool follows : 1;       /* the block before it is the ghost before it: not in the table */
    bool recent : 1;        /* passed since the clock hand's last turn */
    bool live : 1;
};
static_assert(sizeof(struct ghost) == 16, "four in a cache line");
enum { GHOST_CHILDREN_MAX = (1 << 29) - 1 };

/* A position: learned about (a ghost stands for it), or resident, or both. */
struct cand {
    /* The first cache line: what a value is worked out from. */
    uint64_t born_ns, pin_until_ns, ttl_ns;
    double key, per_byte; /* saved by a reuse, per byte; as worked out last */
    uint32_t node, snapshot;
    uint32_t near_of; /* a candidate, as those below */
    uint8_t kind, stratum;
    int8_t level, priority;
    uint8_t features[FEATURES];
    bool registered;
    /* The rest. */
    uint64_t used_ns;
    uint64_t open; /* sample + 1; 0: none */
    union {
        double base;    /* GDSF and GITTINS */
        uint64_t stamp; /* the other orders */
    };
    uint32_t tail; /* tokens of KV that go with it; as worked out last */
    uint32_t ghost, len, generation;
    uint32_t superseded_by, supersedes, near_end;
    uint32_t uses, freq;
    uint8_t turn;
    bool live, is_end;
};
static_assert(sizeof(struct cand) == 128, "two cache lines");

/* One interval of demand. */
struct sample {
    float rest_s;      /* of its age, in the bucket */
    uint32_t profile;
    uint16_t cell; /* stratum and age bucket */
    bool event;    /* it was wanted. Whether it still runs: model->open */
};
static_assert(sizeof(struct sample) == 12, "a fit reads all of them, several times");

/* What intervals have in common: stratum and features. */
struct profile {
    uint64_t key;          /* both, packed */
    uint32_t samples;      /* that have it; 0: free, then `next_free` counts */
    uint32_t next_free;
    uint16_t at[FEATURES]; /* its multipliers */
    uint8_t stratum;
};
struct profile_sum { float weight, hits; }; /* scratch of a fit */

/* Keys are not negative, so that the bits of a double sort as the number does. */
struct heap_item { uint64_t key; uint32_t id; };
struct order_heap {
    struct heap_item *items;
    uint32_t *places; /* candidate -> its index + 1, or 0 */
    uint32_t count, cap, place_cap;
};

/* What a position of some stratum and level is worth at each age, per second. */
struct rates {
    float at[AGES];
    uint64_t valleys; /* a bit for each age at which it is no more than at its neighbours */
};

/* Pairs that a fit reads or writes together. */
struct passed { float exposure, count; };
struct hazard_sum { float before, hazard; };

struct fit { /* scratch */
    uint32_t rows;
    uint32_t count;            /* of the strata that there are: */
    uint8_t strata[STRATA];    /* ascending */
    struct passed passed[STRATA * AGES];
    struct hazard_sum sums[STRATA * AGES];
    float pooled[AGES];
    float expected[MULTIPLIERS];
};

struct model {
    struct sample *ring;
    double *starts_s; /* of each */
    uint64_t *open; /* a bit for each: it still runs */
    uint32_t cap;
    struct profile *profiles; /* [cap + 1], 0 is none */
    struct profile_sum *sums; /* [cap + 1] */
    uint32_t profile_used, profile_free;
    uint32_t *table;          /* key -> profile */
    uint32_t table_mask;
    uint64_t count;            /* samples ever */
    uint64_t events;
    /* Of the samples in the ring, kept as they come and go. Whole numbers: exact in any order. */
    float events_at[STRATA * AGES], observed[MULTIPLIERS];
    uint32_t stratum_samples[STRATA];
    float multiplier[MULTIPLIERS];
    float hazard[STRATA * AGES];
    struct rates index[STRATA][INDEX_LEVELS];
    uint8_t index_fresh[STRATA][INDEX_LEVELS];
    bool fitted[STRATA];
    struct fit fit;
    uint64_t next_fit, fits;
    uint64_t fit_ns, fit_gap_ns; /* when the last one was; from the one before */
    uint64_t keys_until_ns;      /* keys are lower bounds of values up to then (policy_value.c) */
};

struct sc_policy {
    struct sc_heap heap;
    struct sc_policy_options options;
    struct ghost *ghosts; /* [ghost_max + 1], 0 is none */
    uint32_t ghost_count, ghost_hand, ghost_max, ghost_used;
    uint32_t ghost_free, ghost_free_last; /* first in, first out: so that runs stay runs */
    bool ghosts_forgotten;
    uint32_t *table;      /* hash -> ghost, but for those that follow */
    uint32_t table_mask;
    struct cand *cands;   /* [cand_cap], 0 is none */
    uint32_t cand_cap, cand_count, cand_free, cand_used;
    uint32_t *by_node;    /* node -> resident candidate */
    uint32_t by_node_cap;
    uint32_t *path;       /* [path_cap]: ghosts of the path in hand */
    uint32_t path_cap;
    uint32_t *aside;      /* locked candidates set aside by a search */
    uint32_t aside_cap;
    struct order_heap order, timers;
    struct model *model;  /* GITTINS only */
    uint64_t wall_ns;     /* the caller's clock: pins and times to live */
    uint64_t now_ns;      /* the policy's, ahead of it where requests come fast: ages */
    double now_s;
    uint64_t gap_ns;      /* between requests: mean of some CLOCK_MEAN_OF */
    uint64_t requests, refused, evicted;
    double age;           /* GDSF's clock */
    double going;         /* value per byte at which things go these days; 0: nothing did */
    uint64_t bytes;
};

/* policy_memory.c: arrays, candidates, ghosts */
bool pol_grow(struct sc_policy *p, void **array, uint32_t *cap, uint64_t need, size_t item_bytes);
bool pol_cands_reserve(struct sc_policy *p, uint64_t more);
bool pol_node_reserve(struct sc_policy *p, uint32_t node);
uint32_t pol_cand_new(struct sc_policy *p);
void pol_cand_free(struct sc_policy *p, uint32_t id);
bool pol_ghosts_create(struct sc_policy *p, uint32_t max);
void pol_ghosts_destroy(struct sc_policy *p);
void pol_ghosts_expire(struct sc_policy *p, uint64_t room);
uint32_t pol_ghost_find(const struct sc_policy *p, uint64_t hash);
void pol_table_prefetch(const struct sc_policy *p, uint64_t hash);
void pol_ghost_prefetch(const struct sc_policy *p, uint64_t hash);
/* The block after `ghost`. */
uint32_t pol_ghost_next(const struct sc_policy *p, uint32_t ghost, uint64_t hash);
/* The last block of a path; 0: not known. */
uint32_t pol_ghost_last(const struct sc_policy *p, const uint64_t *hashes, uint32_t count);
uint32_t pol_ghost_add(struct sc_policy *p, uint64_t hash, uint32_t parent);
static inline struct cand *pol_cand(const struct sc_policy *p, uint32_t id)
{
    return &p->cands[id];
}
/* What goes with a resident candidate, as worked out last. */
static inline double pol_bytes(const struct sc_policy *p, const struct cand *cand)
{
    return p->options.cost.state_bytes + cand->tail * p->options.cost.kv_token_bytes;
}

/* policy_order.c: heaps by key; a key is never above the value (see policy.c (3)) */
void pol_heap_put(struct order_heap *heap, uint32_t id, uint64_t key);
void pol_heap_take(struct order_heap *heap, uint32_t id);
/* Orders the first `count` items, which stand as they were written. */
void pol_heap_build(struct order_heap *heap);

/* policy_value.c: relations in the tree and what a candidate is worth */
uint32_t pol_resident(const struct sc_policy *p, sc_node node);
/* The candidate of this snapshot; 0 if it is not known (a node's number may be another's now). */
uint32_t pol_at(const struct sc_policy *p, sc_node node, uint32_t snapshot);
/* The same of the snapshot that the node has. */
uint32_t pol_now(const struct sc_policy *p, sc_node node);
uint32_t pol_up(const struct sc_policy *p, sc_node node);
double pol_value(struct sc_policy *p, uint32_t id);
/* The same, and until when it is no less if nothing happens. */
double pol_value_until(struct sc_policy *p, uint32_t id, uint64_t *until_ns);
void pol_touch(struct sc_policy *p, uint32_t id);
void pol_touch_time(struct sc_policy *p, uint32_t id);
/* The key of an entry at the order's top becomes higher, at last the value, good until then. */
void pol_touch_top(struct sc_policy *p, uint32_t id, double value, uint64_t until_ns);
/* The same for all: both heaps are built anew. `refitted`: so are levels. */
void pol_touch_all(struct sc_policy *p, bool refitted);
void pol_key_set(struct sc_policy *p, uint32_t id, double key);
void pol_detach(struct sc_policy *p, uint32_t id);
void pol_below_changed(struct sc_policy *p, sc_node node);
void pol_tail_changed(struct sc_policy *p, sc_node node);
void pol_class_copy(struct sc_policy *p, uint32_t to, uint32_t from);

/* policy_model.c: hazards by class and age, and the index that follows */
extern const double pol_age_edge[AGES + 1];
void pol_model_init(struct model *model);
uint8_t pol_age_bucket(double age_s);
int8_t pol_level(const struct model *model, uint8_t stratum, const uint8_t *features);
static inline uint32_t pol_multiplier_at(uint8_t stratum, int feature, uint8_t value)
{
    return ((uint32_t)stratum * FEATURES + (uint32_t)feature) * LEVELS_PER_FEATURE + value;
}

/* policy_samples.c: intervals of demand */
bool pol_samples_create(struct sc_policy *p, uint32_t cap);
void pol_samples_destroy(struct sc_policy *p);
void pol_sample_open(struct sc_policy *p, struct cand *cand);
void pol_sample_close(struct sc_policy *p, struct cand *cand, bool event);
void pol_sample_refine(struct sc_policy *p, const struct cand *cand);
void pol_fit(struct sc_policy *p);
/* How often a position is wanted, per second, at its age. */
double pol_rate(struct sc_policy *p, const struct cand *cand);
/* The least from now until `last_ns`. */
double pol_rate_least(struct sc_policy *p, const struct cand *cand, uint64_t last_ns);
/* The rate of its age bucket; `until_ns` is lowered to the end of that. */
double pol_rate_bucket(struct sc_policy *p, const struct cand *cand, uint64_t *until_ns);

/* policy_learn.c: what a request says about positions */
void pol_learn(struct sc_policy *p, struct sc_policy_path *path);
void pol_learn_end(struct sc_policy *p, struct sc_policy_path *path, bool extended);
/* The candidate at the end of a longer request has got its snapshot. */
void pol_learn_longer(struct sc_policy *p, struct sc_policy_path *path, uint32_t id);
/* A snapshot came from elsewhere. */
void pol_learn_adopted(struct sc_policy *p, uint32_t id);
void pol_learn_extend(struct sc_policy *p, struct sc_policy_path *path, const uint64_t *hashes,
    uint32_t block_count, struct sc_policy_point *point);

/* policy_tier.c: what comes from elsewhere */
uint32_t pol_record_cand(const struct sc_policy *p, const struct sc_policy_record *record);
/* The end of a prompt that a new snapshot below it would supersede. */
bool pol_superseded_by_next(const struct sc_policy *p, uint32_t id);

/* policy_place.c: the points of a request, and what they are worth */
bool pol_point_add(struct sc_policy_path *path, uint32_t len, uint8_t kind);
void pol_place_plain(const struct sc_policy *p, struct sc_policy_path *path);
void pol_place_order(struct sc_policy *p, struct sc_policy_path *path);
/* The point that is the end of the path; NULL: none. */
struct sc_policy_point *pol_end_point(const struct sc_policy_path *path);

/* Where the prompt of the path ends. */
static inline uint32_t pol_end(const struct sc_policy *p, const struct sc_policy_path *path)
{
    return path->end_len ? path->end_len : path->block_count * p->options.block_tokens;
}

/* A candidate named by number and generation, 0 if it is gone. */
static inline uint32_t pol_alive(const struct sc_policy *p, uint32_t id, uint32_t generation)
{
    return id != 0 && p->cands[id].live && p->cands[id].generation == generation ? id : 0;
}

#endif
