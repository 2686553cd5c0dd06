/* SPDX-License-Identifier: Apache-2.0 */
/* Tells routers and others what is saved: docs/reference/events.md.
 *
 *   cache --sc_cache_events_take--> mirror --> batches --> PUB socket
 *                                      |          '--> the last of them are kept --> ROUTER socket
 *                                      '--> picture: when what is asked for is no longer kept -^
 *
 * A thread of its own owns all of it, sockets too: the loop's thread only says that something may
 * have changed. Hashing, packing and replays never hold up a client of the service, and libzmq
 * drops for a subscriber that is slow.
 *
 * Threads: sd_events_changed and sd_events_counts from any; open and close from one. */
#ifndef SC_DAEMON_EVENTS_PUBLISH_H
#define SC_DAEMON_EVENTS_PUBLISH_H

#include "config.h"
#include "statecache/events.h"

struct sd_events;

struct sd_events_counts {
    uint64_t batches, events, bytes;   /* published */
    uint64_t replays, replayed;        /* answered; batches of these */
    uint64_t pictures;                 /* drawn, for replays and after a loss */
    uint64_t lost, refused;            /* losses of the cache's queue; requests not answered */
    uint64_t states, copies;           /* there now */
};

/* What the cache's queue must have; 0: there are no events. */
uint64_t sd_events_queue_bytes(const struct sd_config *config);
/* Binds or connects, and starts. NULL events where the configuration has none. */
sc_status sd_events_open(const struct sd_config *config, sc_cache *cache,
    struct sd_events **events_out);
/* Something may have changed. NULL is allowed. */
void sd_events_changed(struct sd_events *events);
/* Tells what is left and that all is gone, and ends. NULL is allowed. */
void sd_events_close(struct sd_events *events);
void sd_events_counts(const struct sd_events *events, struct sd_events_counts *counts_out);

#endif
