/* SPDX-License-Identifier: Apache-2.0 */
/** What may still change from release to release.
 *
 * Replay. A cache whose options have `record` hands out a record of each call that changed
 * something: its arguments, and what the cache decided. Decisions are a pure function of the
 * sequence of these calls (contract 18), so a second cache with equal options that is fed the
 * records decides the same: to find out what happened, or to check tensor-parallel ranks against
 * each other.
 *
 * Records are 32-bit words in the byte order of the machine, good for this version of the library
 * alone. Calls that changed nothing are not in them; nor is want of memory, so that a sequence in
 * which an allocation failed may not replay. */
#ifndef STATECACHE_EXPERIMENTAL_H
#define STATECACHE_EXPERIMENTAL_H

#include "statecache/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sc_replay sc_replay;

/** A player of records into `cache`, which is new, stays the caller's, and is used by nobody else
 * meanwhile. SC_ERR_INVALID, SC_ERR_BUSY (the cache has been used), SC_ERR_NO_MEMORY. */
SC_API sc_status sc_replay_create(sc_cache *cache, sc_replay **replay_out);
/** NULL is allowed. */
SC_API void sc_replay_destroy(sc_replay *replay);
/** Makes the calls of whole records, in the order in which they were handed out, the first one
 * first. SC_ERR_MISMATCH: the cache decided otherwise than the record says (the text says where
 * first), or its options differ; SC_ERR_CORRUPT: not whole records; SC_ERR_STATE: after one of
 * these, nothing is played any more; SC_ERR_INVALID; SC_ERR_NO_MEMORY.
 * Threads: exclusive. Cost: that of the calls. */
SC_API sc_status sc_replay_feed(sc_replay *replay, const void *bytes, size_t count);
/** How many records were played. SC_ERR_INVALID. */
SC_API sc_status sc_replay_count(const sc_replay *replay, uint64_t *count_out);

#ifdef __cplusplus
}
#endif
#endif
