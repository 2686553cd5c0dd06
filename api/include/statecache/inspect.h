/* SPDX-License-Identifier: Apache-2.0 */
/** Looking into a cache, and evicting what begins with given tokens: for operators and tools.
 *
 * A *prefix* is a key of which all tokens count: what begins with it is the state after exactly
 * these tokens and all that lies behind. Two things are allowed of it that no other key may have:
 * token_count may be 0 (all of the namespace), and its last mark may stand at token_count (then
 * what follows must carry it: all of a tenant). `len_max` is not read. */
#ifndef STATECACHE_INSPECT_H
#define STATECACHE_INSPECT_H

#include "statecache/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sc_evicted {
    uint64_t states;           /* slots of the device that are free now */
    uint64_t copies;           /* in lower tiers, that are gone */
    uint64_t held;             /* states and copies that stay: leased, pinned, or on their way */
} sc_evicted;
/** Evicts all that begins with a prefix, from every tier, and with it prefixes of it that nothing
 * hangs on any more. What is in use stays; copies in a store that others share are forgotten here,
 * not deleted there. A mutating call: it is recorded (contract 18).
 *
 * Threads: any; takes the lock.
 * Errors:  SC_ERR_INVALID (null; marks that do not ascend or stand beyond token_count),
 *          SC_ERR_LIMIT (more tokens than lease_token_max), SC_ERR_STALE (namespace),
 *          SC_ERR_NO_MEMORY. On error nothing changed and no output is written.
 * Cost:    O(prefix + what lies behind it), with the lock held: look-ups wait. */
SC_API sc_status sc_cache_evict_prefix(sc_cache *cache, const sc_key *prefix,
    sc_evicted *evicted_out);

/** A stretch of tokens that the device's index holds. */
typedef struct sc_tree_row {
    uint32_t depth;            /* stretches above it, from where the prefix ends */
    uint32_t start, end;       /* positions of its tokens */
    uint32_t child_count;      /* stretches that go on behind it */
    uint32_t locks;            /* not 0: a lease holds it, or something behind it */
    bool has_state;            /* the state after `end` tokens is there */
    bool evicted;              /* it was, and went */
    const int32_t *tokens;     /* [start, end); these and the marks until `visit` returns */
    const sc_mark *marks;
    uint32_t mark_count;
} sc_tree_row;
/** Tells what begins with a prefix, parents before children, until `row_max` rows were told or
 * `visit` returns false; stretches below `depth_max` (0: none is) are left out. `*more_out`: there
 * is more. `visit` runs with the cache locked: it must not call the cache, and mutators wait.
 * Errors: as sc_cache_evict_prefix. Cost: O(prefix + rows * their positions + what is left out),
 * of which at most 65,536 stretches. */
SC_API sc_status sc_cache_tree(const sc_cache *cache, const sc_key *prefix, uint32_t depth_max,
    uint32_t row_max, bool (*visit)(void *ctx, const sc_tree_row *row), void *ctx, bool *more_out);

/** What stands against a prompt at the first position that the index does not have. */
typedef enum sc_differs {
    SC_DIFFERS_NOT = 0,        /* all of the prompt is known */
    SC_DIFFERS_END = 1,        /* what is known ends there */
    SC_DIFFERS_TOKEN = 2,      /* another token */
    SC_DIFFERS_MARK = 3        /* another mark, or one too many or too few: another tenant, image */
} sc_differs;
typedef struct sc_explanation {
    size_t struct_size;        /* in: sizeof(sc_explanation) */
    sc_answer answer;          /* that of sc_cache_lookup */
    uint32_t match_len;        /* leading tokens that the device's index has, exactly */
    sc_differs differs;        /* at match_len */
    int32_t token_here, token_there; /* TOKEN */
    bool mark_here, mark_there; /* MARK: whether there is one */
    sc_mark here, there;
    /* With state_len of the answer's tiers: where on this prompt states are or were */
    uint32_t beyond_len;       /* one beyond len_max, 0: none */
    uint32_t evicted_len;      /* the deepest that was evicted from the device; 0: none */
} sc_explanation;
/** Explains the look-up of one key: why no more of it could be resumed, and what would have to be
 * there. Changes nothing. Of several branches the one with most in common is told.
 * Errors: SC_ERR_INVALID, SC_ERR_STALE (namespace), SC_ERR_NO_MEMORY. Threads: any.
 * Cost:   O(tokens + branches there * their positions), of which at most 256 are looked at. */
SC_API sc_status sc_cache_explain(const sc_cache *cache, const sc_key *key,
    sc_explanation *explanation_out);

#ifdef __cplusplus
}
#endif
#endif
