/* SPDX-License-Identifier: Apache-2.0 */
/* Records of mutating calls: what record.c writes and replay.c reads.
 *
 *   word 0   words of the record, itself included
 *   word 1   RECORD_ op
 *   ...      arguments, then decisions; counts before arrays; 64-bit numbers low word first
 *
 * op          arguments                                     decisions
 * OPTIONS     version, sizes and switches that decide       -
 * NS_OPEN     adapter id, generation                        namespace
 * NS_CLOSE    namespace                                     -
 * ACQUIRE     now; items, KV ids that were given            each: status, lease, len, slots, ticket
 * APPEND      lease, tokens, marks                          -
 * FILLED      lease, ids, history                           -
 * FORK        lease, tail, count                            status, children
 * ADOPT       lease                                         count
 * PLAN        step, now; rows                               each: status, range, slots; saves
 * COMMIT      step, results                                 -
 * ABORT       step, launched                                -
 * RELEASE     lease, len, how, tail                         -
 * EVICT       pages, slots                                  got
 * DRAIN       cap                                           count, hash of the ids
 * LOSE        lease                                         -
 * UNDO        lease, forked                                 -
 * APPLY       now; tickets, statuses                        -
 * LEARN       now; items: namespace, length, tokens, marks, history -
 * TRIM        tokens at most                                -
 * EVICT_PREFIX namespace, tokens, marks                     states, copies, held
 *
 * Only calls that changed something are written, and of a batch only what changed something: an
 * item that was refused without trace is left out of ACQUIRE, a row in PLAN is a lease of zeros. */
#ifndef SC_ENGINE_RECORD_H
#define SC_ENGINE_RECORD_H

#include "cache_internal.h"
#include "statecache/inspect.h"

enum record_op {
    RECORD_OPTIONS = 1,
    RECORD_NS_OPEN,
    RECORD_NS_CLOSE,
    RECORD_ACQUIRE,
    RECORD_APPEND,
    RECORD_FILLED,
    RECORD_FORK,
    RECORD_ADOPT,
    RECORD_PLAN,
    RECORD_COMMIT,
    RECORD_ABORT,
    RECORD_RELEASE,
    RECORD_EVICT,
    RECORD_DRAIN,
    RECORD_LOSE,
    RECORD_UNDO,
    RECORD_APPLY,
    RECORD_TRIM,
    RECORD_LEARN,
    RECORD_EVICT_PREFIX
};

enum { RECORD_VERSION = 5, RECORD_OPTION_WORDS = 72, RECORD_PLAN_WORDS = 9 };

/* What of a cache's options its decisions depend on. */
void sc_engine_record_options(const sc_cache *cache, uint32_t words[RECORD_OPTION_WORDS]);
/* What was decided for a row: granted range, slots, form. */
void sc_engine_record_plan_row(const sc_batch *batch, uint32_t row,
    uint32_t words[RECORD_PLAN_WORDS]);
uint64_t sc_engine_record_ids_hash(const int32_t *ids, uint32_t count);

#endif
