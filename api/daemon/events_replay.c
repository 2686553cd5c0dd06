/* SPDX-License-Identifier: Apache-2.0 */
/* Kept batches and answers: events_replay.h. */
#include "events_replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "wire/fault.h"

enum { STALL_MS = 5000, NUMBER_BYTES = 8, FRAMES_MAX = 16 };

/* ---- batches ---- */

struct sd_kept *sd_kept_make(uint64_t number, char *bytes, size_t count)
{
    struct sd_kept *kept = malloc(sizeof *kept);
    if (kept) *kept = (struct sd_kept){1, number, bytes, count};
    return kept;
}

void sd_kept_release(struct sd_kept *kept)
{
    if (!kept || --kept->users > 0) return;
    free(kept->bytes);
    free(kept);
}

static bool send_number(void *socket, uint64_t number, int flags)
{
    uint8_t bytes[NUMBER_BYTES];
    for (int i = 0; i < NUMBER_BYTES; i++) bytes[i] = (uint8_t)(number >> (56 - 8 * i));
    return zmq_send(socket, bytes, sizeof bytes, flags) >= 0;
}

bool sd_kept_send(void *socket, const char *topic, const struct sd_kept *kept, int flags)
{
    if (topic && zmq_send(socket, topic, strlen(topic), flags | ZMQ_SNDMORE) < 0) return false;
    return send_number(socket, kept->number, flags | ZMQ_SNDMORE) &&
        zmq_send(socket, kept->bytes, kept->count, flags) >= 0;
}

void sd_kept_list_free(struct sd_kept_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) sd_kept_release(list->items[i]);
    free(list->items);
    *list = (struct sd_kept_list){NULL, 0};
}

/* ---- the ring ---- */

sc_status sd_replays_init(struct sd_replays *replays, uint32_t step_max, uint64_t bytes_max)
{
    *replays = (struct sd_replays){.step_max = step_max, .bytes_max = bytes_max};
    replays->ring = calloc(step_max, sizeof(struct sd_kept *));
    return replays->ring ? SC_OK : SC_FAULT(SC_ERR_NO_MEMORY, "no memory for %u steps", step_max);
}

static struct sd_kept *kept_at(const struct sd_replays *replays, uint32_t i)
{
    return replays->ring[(replays->first + i) % replays->step_max];
}

static void drop_oldest(struct sd_replays *replays)
{
    struct sd_kept *oldest = kept_at(replays, 0);
    replays->bytes -= oldest->count;
    replays->first = (replays->first + 1) % replays->step_max;
    replays->count--;
    sd_kept_release(oldest);
}

void sd_replays_free(struct sd_replays *replays)
{
    while (replays->count > 0) drop_oldest(replays);
    for (uint32_t i = 0; i < SD_REPLAYS_MAX; i++) sd_kept_list_free(&replays->replays[i].list);
    sd_kept_list_free(&replays->picture);
    free(replays->ring);
    replays->ring = NULL;
}

void sd_replays_keep(struct sd_replays *replays, struct sd_kept *kept)
{
    while (replays->count > 0 && (replays->count == replays->step_max ||
        replays->bytes + kept->count > replays->bytes_max)) {
        drop_oldest(replays);
    }
    kept->users++;
    replays->ring[(replays->first + replays->count++) % replays->step_max] = kept;
    replays->bytes += kept->count;
    sd_kept_list_free(&replays->picture);
}

bool sd_replays_span(const struct sd_replays *replays, uint64_t *oldest_out, uint64_t *newest_out)
{
    if (replays->count == 0) return false;
    *oldest_out = kept_at(replays, 0)->number;
    *newest_out = kept_at(replays, replays->count - 1)->number;
    return true;
}

/* ---- requests ---- */

static sc_status list_copy(const struct sd_kept_list *from, struct sd_kept_list *list_out)
{
    *list_out = (struct sd_kept_list){calloc(from->count + 1, sizeof(struct sd_kept *)), 0};
    if (!list_out->items) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory for a replay");
    for (uint32_t i = 0; i < from->count; i++) {
        from->items[i]->users++;
        list_out->items[list_out->count++] = from->items[i];
    }
    return SC_OK;
}

/* What is sent to who asks for `number` and all behind it. */
static sc_status list_make(struct sd_replays *replays, uint64_t number, sd_draw_fn draw, void *ctx,
    struct sd_kept_list *list_out)
{
    uint64_t oldest = 0, newest = 0;
    *list_out = (struct sd_kept_list){NULL, 0};
    if (!sd_replays_span(replays, &oldest, &newest) || number > newest) return SC_OK;
    if (number < oldest) {
        if (replays->picture.count == 0) SC_PASS(draw(ctx, replays->count));
        return list_copy(&replays->picture, list_out);
    }
    uint32_t skip = (uint32_t)(number - oldest);
    list_out->items = calloc(replays->count - skip, sizeof(struct sd_kept *));
    if (!list_out->items) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory for a replay");
    for (uint32_t i = skip; i < replays->count; i++) {
        kept_at(replays, i)->users++;
        list_out->items[list_out->count++] = kept_at(replays, i);
    }
    return SC_OK;
}

static struct sd_replay *place_for(struct sd_replays *replays, const uint8_t *peer,
    size_t peer_bytes)
{
    struct sd_replay *place = NULL;
    for (uint32_t i = 0; i < SD_REPLAYS_MAX; i++) {
        struct sd_replay *replay = &replays->replays[i];
        if (replay->peer_bytes == 0) {
            if (!place) place = replay;
        } else if (replay->peer_bytes == peer_bytes &&
            memcmp(replay->peer, peer, peer_bytes) == 0) {
            return NULL; /* one at a time */
        }
    }
    return place;
}

static void request(struct sd_replays *replays, const uint8_t *peer, size_t peer_bytes,
    uint64_t number, uint64_t now_ms, sd_draw_fn draw, void *ctx)
{
    struct sd_replay *replay = place_for(replays, peer, peer_bytes);
    struct sd_kept_list list;
    if (!replay || list_make(replays, number, draw, ctx, &list) != SC_OK) {
        replays->refused++;
        return;
    }
    memcpy(replay->peer, peer, peer_bytes);
    replay->peer_bytes = peer_bytes;
    replay->list = list;
    replay->at = 0;
    replay->moved_ms = now_ms;
    replays->active++;
}

/* One message: [peer][empty][number] is a request, all else is nothing. */
static bool read_one(struct sd_replays *replays, uint64_t now_ms, sd_draw_fn draw, void *ctx)
{
    uint8_t peer[SD_PEER_BYTES], frame[NUMBER_BYTES + 1];
    size_t peer_bytes = 0;
    uint64_t number = 0;
    bool good = true;
    int more = 1;
    uint32_t frames = 0;
    for (; more; frames++) {
        size_t more_bytes = sizeof more;
        int got = zmq_recv(replays->socket, frames == 0 ? peer : frame,
            frames == 0 ? sizeof peer : sizeof frame, ZMQ_DONTWAIT);
        if (got < 0) return false; /* whole messages come, so it is the first frame */
        if (frames == 0) peer_bytes = (size_t)got;
        if (frames == 0) good = got > 0 && (size_t)got <= sizeof peer;
        if (frames == 1) good = good && got == 0;
        if (frames == 2) good = good && got == NUMBER_BYTES;
        for (int i = 0; frames == 2 && i < NUMBER_BYTES; i++) number = number << 8 | frame[i];
        if (zmq_getsockopt(replays->socket, ZMQ_RCVMORE, &more, &more_bytes) != 0) return false;
    }
    if (good && frames == 3) {
        request(replays, peer, peer_bytes, number, now_ms, draw, ctx);
    } else {
        replays->refused++;
    }
    return true;
}

void sd_replays_read(struct sd_replays *replays, uint64_t now_ms, sd_draw_fn draw, void *ctx)
{
    for (int i = 0; i < FRAMES_MAX; i++) {
        if (!read_one(replays, now_ms, draw, ctx)) return;
    }
}

/* ---- answers ---- */

static void end(struct sd_replays *replays, struct sd_replay *replay)
{
    sd_kept_list_free(&replay->list);
    replay->peer_bytes = 0;
    replays->active--;
}

/* The envelope, then a batch or the end. The first frame is where a peer that has gone, or has no
 * room, shows: from there on the message goes as a whole. */
static bool send_next(struct sd_replays *replays, struct sd_replay *replay)
{
    const int flags = ZMQ_DONTWAIT;
    void *socket = replays->socket;
    if (zmq_send(socket, replay->peer, replay->peer_bytes, flags | ZMQ_SNDMORE) < 0) return false;
    if (zmq_send(socket, "", 0, flags | ZMQ_SNDMORE) < 0) return false;
    if (replay->at < replay->list.count) {
        return sd_kept_send(socket, replays->with_topic ? replays->topic : NULL,
            replay->list.items[replay->at], flags);
    }
    if (replays->with_topic && zmq_send(socket, "", 0, flags | ZMQ_SNDMORE) < 0) return false;
    return send_number(socket, UINT64_MAX, flags | ZMQ_SNDMORE) &&
        zmq_send(socket, "", 0, flags) >= 0;
}

static void send_replay(struct sd_replays *replays, struct sd_replay *replay, uint64_t now_ms)
{
    for (;;) {
        if (!send_next(replays, replay)) {
            bool waits = errno == EAGAIN && now_ms - replay->moved_ms < STALL_MS;
            if (waits) return;
            replays->refused++; /* it has gone, or takes nothing */
            break;
        }
        replay->moved_ms = now_ms;
        if (replay->at++ == replay->list.count) {
            replays->answered++;
            break;
        }
        replays->replayed++;
    }
    end(replays, replay);
}

void sd_replays_send(struct sd_replays *replays, uint64_t now_ms)
{
    for (uint32_t i = 0; i < SD_REPLAYS_MAX && replays->active > 0; i++) {
        struct sd_replay *replay = &replays->replays[i];
        if (replay->peer_bytes > 0) send_replay(replays, replay, now_ms);
    }
}
