/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots by id: which slot, exactly how many tokens, how it was computed.
 *
 * Ids are never 0 and not reused while 2^32 - 1 others can be given. The registry owns no slots: it
 * records whose they are. uthash through base/map.h. No lock of its own: one mutator at a time, and
 * no reader beside it; readers may run side by side.
 *
 * Null or unknown arguments are SC_ERR_INVALID; nothing is changed on any error. */
#ifndef SC_SNAPSHOT_REGISTRY_H
#define SC_SNAPSHOT_REGISTRY_H

#include "statecache/pool.h"

/* One stretch of a state's history: tokens from the end of the segment before (0 for the first) up
 * to `end` were computed in one form. Prefill cut at grid points is one segment (contract 9). */
enum sc_form { SC_FORM_PREFILL = 0, SC_FORM_DECODE = 1 };
struct sc_stretch { uint32_t end; uint32_t form; };

/* What a snapshot was saved for. */
enum sc_snapshot_kind {
    SC_SNAPSHOT_PROMPT_END = 1,
    SC_SNAPSHOT_BRANCH = 2,
    SC_SNAPSHOT_DECODE = 3,  /* planned position reached by decode */
    SC_SNAPSHOT_END = 4,     /* release with keep */
    SC_SNAPSHOT_POINT = 5    /* asked for by the scheduler */
};

/* What was known of the request that saved it: the registry keeps it and looks at nothing. */
struct sc_snapshot_hints {
    uint64_t pin_until_ns, ttl_ns;
    int32_t priority;
    uint32_t class_id, flags;
};

struct sc_snapshot_info {
    sc_slot slot;
    uint32_t token_count;
    uint32_t space;
    enum sc_snapshot_kind kind;
    uint64_t hits;
    struct sc_snapshot_hints hints;
    uint32_t maker; /* who saved it, as the caller counts; 0: nobody in particular */
    const struct sc_stretch *history; /* borrowed; ends at token_count */
    uint32_t history_count;
    /* Rings: the state in `slot` is `records` tokens behind token_count; they lie in `extra`, a
     * slot of the extras pool (null: none). Whether the next token may be a record. */
    sc_slot extra;
    uint32_t records;
    bool ring_open;
};

struct sc_registry;

sc_status sc_registry_create(const sc_allocator *allocator, struct sc_registry **registry_out);
/* NULL is allowed. */
void sc_registry_destroy(struct sc_registry *registry);
/* Copies `info`, its history and its hits too. SC_ERR_INVALID: the null slot, no tokens, an unknown
 * kind or form, history ends that do not rise. SC_ERR_MISMATCH: the last end is not token_count.
 * SC_ERR_LIMIT: every id is in use. SC_ERR_NO_MEMORY: nothing was added and no id used up. */
sc_status sc_registry_add(struct sc_registry *registry, const struct sc_snapshot_info *info,
    uint32_t *snapshot_out);
/* SC_ERR_NOT_FOUND. The history pointer stays valid until the snapshot is removed. */
sc_status sc_registry_get(const struct sc_registry *registry, uint32_t snapshot,
    struct sc_snapshot_info *info_out);
/* One more use. SC_ERR_NOT_FOUND. */
sc_status sc_registry_count_hit(struct sc_registry *registry, uint32_t snapshot);
/* Forgets it; `slot_out` (may be NULL) gets the slot, which is the caller's to free. */
sc_status sc_registry_remove(struct sc_registry *registry, uint32_t snapshot, sc_slot *slot_out);
/* 0 for NULL. */
uint32_t sc_registry_count(const struct sc_registry *registry);
/* Visits all, in no particular order. `fn` changes nothing in the registry. */
void sc_registry_each(const struct sc_registry *registry,
    void (*fn)(void *ctx, uint32_t snapshot, const struct sc_snapshot_info *info), void *ctx);
/* The next id given out is the first free one at or after `next` (not 0): to continue a recorded
 * sequence of calls, and to reach the wrap-around in a test. */
sc_status sc_registry_seek(struct sc_registry *registry, uint32_t next);
/* Whole walk: SC_ERR_CORRUPT with text when an invariant does not hold. */
sc_status sc_registry_verify(const struct sc_registry *registry);

#endif
