/* SPDX-License-Identifier: Apache-2.0 */
/* Batches that were published, kept for those who missed them, and the answers to who asks.
 *
 *   kept      | 17 | 18 | 19 | 20 |          a ring: the oldest goes when there are too many
 *   request   [id][empty][18]   -->   18, 19, 20, end
 *   request   [id][empty][3]    -->   the picture, numbered as the last batches, end
 *
 * A batch is one block of memory, shared by the ring and the replays that have it on their list.
 * What libzmq has still to send is a copy of its own, which its subscribers share.
 *
 * An answer goes out as the peer takes it: never more than its queue has room for, and none for
 * who takes nothing for a while.
 *
 * Threads: the events' own. */
#ifndef SC_DAEMON_EVENTS_REPLAY_H
#define SC_DAEMON_EVENTS_REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "statecache/status.h"

struct sd_kept {
    uint32_t users;
    uint64_t number;
    char *bytes;
    size_t count;
};

/* Takes `bytes` over, with one user. NULL: no memory, they are the caller's. */
struct sd_kept *sd_kept_make(uint64_t number, char *bytes, size_t count);
void sd_kept_release(struct sd_kept *kept);
/* topic, number, payload; with `flags` of zmq_send for each. False: errno says why. */
bool sd_kept_send(void *socket, const char *topic, const struct sd_kept *kept, int flags);

struct sd_kept_list {
    struct sd_kept **items;
    uint32_t count;
};

void sd_kept_list_free(struct sd_kept_list *list);

enum { SD_REPLAYS_MAX = 8, SD_PEER_BYTES = 256 };

struct sd_replay {
    uint8_t peer[SD_PEER_BYTES];
    size_t peer_bytes;         /* 0: free */
    struct sd_kept_list list;
    uint32_t at;               /* sent; == count: the end mark is to be sent */
    uint64_t moved_ms;
};

struct sd_replays {
    void *socket;
    const char *topic;
    bool with_topic;
    struct sd_kept **ring;     /* [step_max] */
    uint32_t step_max, first, count;
    uint64_t bytes, bytes_max;
    uint32_t active;
    struct sd_replay replays[SD_REPLAYS_MAX];
    struct sd_kept_list picture; /* of the state after its last batch */
    uint64_t answered, replayed, refused;
};

sc_status sd_replays_init(struct sd_replays *replays, uint32_t step_max, uint64_t bytes_max);
void sd_replays_free(struct sd_replays *replays);
/* One more user; what is too much goes. */
void sd_replays_keep(struct sd_replays *replays, struct sd_kept *kept);
/* Number of the oldest and the newest that are kept; false: there is none. */
bool sd_replays_span(const struct sd_replays *replays, uint64_t *oldest_out, uint64_t *newest_out);
/* Reads the requests that wait. `draw` fills `replays->picture`, of at most `count_max` batches,
 * numbered up to the newest. */
typedef sc_status (*sd_draw_fn)(void *ctx, uint32_t count_max);
void sd_replays_read(struct sd_replays *replays, uint64_t now_ms, sd_draw_fn draw, void *ctx);
/* Sends as much as the peers take. */
void sd_replays_send(struct sd_replays *replays, uint64_t now_ms);

#endif
