/* SPDX-License-Identifier: Apache-2.0 */
/** Changes of what is saved, for who keeps a picture of it: routers, other caches, operators.
 *
 *   sc_cache_events_restart   the picture: every copy of every state that is there
 *   sc_cache_events_take      what has changed since; again and again
 *        '-- SC_EVENT_LOST: more than there was room for: begin again with a picture
 *
 * A state has a copy in each tier that keeps it (in a slot of the device, in host memory, on disk).
 * An event says that a copy is there, or gone. A state that goes down a tier is there twice, until
 * the copy above is evicted; nothing else moves. Who applies all events to the picture, in order,
 * has at each moment exactly the copies that were there then.
 *
 * A state's key may be long, and its prefixes are often saved, too. So an event names a copy that
 * is there already, and brings the tokens and marks behind it alone:
 *
 *   base   | tokens [0, base_len) |             0 and 0: none
 *   event                         | tokens [base_len, len) |     none: another copy of the base's
 *
 * Off by default: `event_bytes` of sc_cache_options. Then a change costs its record, O(tokens
 * behind the base), and no memory is asked for but by the picture. Decisions do not depend on it.
 *
 * One reader at a time: what a call hands out is valid until the next call of the two, or the
 * cache's end. Threads: any; both are mutators, which wait for each other. */
#ifndef STATECACHE_EVENTS_H
#define STATECACHE_EVENTS_H

#include "statecache/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Numbers are never reused. */
typedef enum sc_event_kind {
    SC_EVENT_STORED = 1,  /* a copy is there */
    SC_EVENT_REMOVED = 2, /* it is gone */
    SC_EVENT_LOST = 3     /* the last one: what came after is not known, a picture is needed */
} sc_event_kind;

/** Frozen: passed in arrays. What a kind does not name is 0. */
typedef struct sc_event {
    uint64_t number;      /* of the change: 1, 2, ...; in a picture, of the last one before it */
    uint32_t kind;        /* SC_EVENT_ */
    uint32_t tier;        /* STORED, REMOVED: SC_TIER_ */
    uint64_t copy;        /* ... which copy; numbers of copies that are gone are given out again */
    uint64_t base;        /* STORED: see above */
    uint64_t adapter_id, adapter_generation; /* STORED: of its namespace */
    const int32_t *tokens; /* STORED: [len - base_len] */
    const sc_mark *marks; /* STORED: [mark_count] those at base_len and behind it */
    uint32_t len, base_len, mark_count;
    /* STORED: what the state was saved for last, SC_KIND_; REMOVED from the device: why,
     * SC_EVICT_ */
    uint32_t detail;
} sc_event;

/** The picture: STORED events of all copies, bases before what names them. Changes after it are
 * queued from now on, those before are dropped.
 * Ownership: borrowed, see above. `*events_out` is NULL where nothing is there.
 * Errors: SC_ERR_INVALID, SC_ERR_STATE (the cache was made without events), SC_ERR_NO_MEMORY (as
 * before: nothing was dropped). Cost: O(all that is there), with the lock held: look-ups wait. */
SC_API sc_status sc_cache_events_restart(
    sc_cache *cache, const sc_event **events_out, uint32_t *count_out);

/** What has changed since the last call, oldest first; perhaps nothing. Before the first picture,
 * and after a loss until the next, it ends in SC_EVENT_LOST.
 * Ownership: borrowed, see above.
 * Errors: SC_ERR_INVALID, SC_ERR_STATE. Cost: O(1), with the lock held. */
SC_API sc_status sc_cache_events_take(
    sc_cache *cache, const sc_event **events_out, uint32_t *count_out);

#ifdef __cplusplus
}
#endif
#endif
