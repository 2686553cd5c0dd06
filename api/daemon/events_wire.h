/* SPDX-License-Identifier: Apache-2.0 */
/* Events as bytes: what vLLM and SGLang publish, so that routers which read those read these
 * (docs/reference/events.md).
 *
 *   payload   [time, [event, ...], rank]
 *   event     a map with "type", or an array that begins with it
 *
 * A batch is built event by event, and closed when it is large or all is said. */
#ifndef SC_DAEMON_EVENTS_WIRE_H
#define SC_DAEMON_EVENTS_WIRE_H

#include <msgpack.h>

#include "statecache/mark.h"
#include "statecache/status.h"

struct sd_wire_form {
    bool arrays;              /* else maps */
    uint32_t group, rank;
    const char *kind;         /* "mamba" */
};

struct sd_wire_stored {
    uint64_t hash, parent;
    bool has_parent, has_extra; /* extra keys are said although there are none */
    const int32_t *tokens;
    uint32_t token_count;
    const char *medium, *adapter; /* "": none */
    const sc_mark *marks;
    uint32_t mark_count, from;  /* marks are said by their place behind `from` */
};

struct sd_wire_batch {
    struct sd_wire_form form;
    msgpack_sbuffer events;
    uint32_t count;
};

void sd_wire_begin(struct sd_wire_batch *batch, const struct sd_wire_form *form);
void sd_wire_free(struct sd_wire_batch *batch);
void sd_wire_stored(struct sd_wire_batch *batch, const struct sd_wire_stored *stored);
void sd_wire_removed(struct sd_wire_batch *batch, uint64_t hash, const char *medium);
void sd_wire_cleared(struct sd_wire_batch *batch);
/* The payload; the batch is empty again. SC_ERR_NO_MEMORY: also if an event found none. */
sc_status sd_wire_end(struct sd_wire_batch *batch, double time, msgpack_sbuffer *payload);

#endif
