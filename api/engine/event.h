/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of changes for the reader of statecache/events.h: event.c, event_picture.c. */
#ifndef SC_ENGINE_EVENT_H
#define SC_ENGINE_EVENT_H

#include "statecache/events.h"
#include "tier.h"

struct event_queue {
    uint8_t *memory[2];  /* [bytes] each: one is written, the other is the reader's */
    size_t bytes, back;  /* of the one that is written: where tokens and marks begin */
    uint32_t count, writing;
    uint64_t number;     /* of the last change */
    bool running;        /* the reader has a picture, and everything since */
    uint8_t *picture;    /* the reader's */
    size_t picture_bytes;
};

/* What an event says of its key. */
struct event_key {
    uint64_t adapter_id, adapter_generation;
    const int32_t *tokens; /* from token 0 on; not read before base_len */
    const sc_mark *marks;  /* all of them, ascending; also beyond len */
    uint32_t mark_count, len;
    uint64_t base;
    uint32_t base_len, kind;
};

/* The number of a copy: of the snapshot on the device, of the record below. Never 0. */
static inline uint64_t sc_event_copy(uint32_t tier, uint32_t id)
{
    return (uint64_t)(tier + 1) << 32 | id;
}

/* Another copy of the record's state, or 0. */
uint64_t sc_event_copy_of(const struct tier_record *record);

#endif
