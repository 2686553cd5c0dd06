/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that publishes what is saved: events_publish.h.
 *
 *   sd_events_changed --eventfd--> wait --> a millisecond, so that changes go together
 *        --> sc_cache_events_take --> mirror, batch --> PUB, kept
 *   SC_EVENT_LOST, or no memory: AllBlocksCleared, then the picture of the cache
 *
 * The first batch, number 0, says AllBlocksCleared: what a consumer knows of an earlier life of the
 * service is over. */
#include "events_publish.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "events_mirror.h"
#include "events_replay.h"
#include "events_wire.h"
#include "server.h"

enum {
    BATCH_BYTES = 256 << 10, PICTURE_BYTES = 1 << 20, GATHER_MS = 1, RETRY_MS = 2, AGAIN_MS = 1000,
    LINGER_MS = 500, REPLAY_QUEUE = 32, REQUEST_BYTES = 1024, TIERS = 3
};

struct sd_events {
    sc_cache *cache;
    void *context, *publish, *replay; /* zmq; replay NULL: none */
    int wake_fd;
    _Atomic bool woken;        /* the thread has been told, and has not looked yet */
    _Atomic bool ends;
    pthread_t thread;
    char topic[SD_PATH_BYTES];
    char media[TIERS][SD_NAME_BYTES];
    struct sd_mirror mirror;
    struct sd_wire_batch batch;
    struct sd_replays replays;
    uint64_t next;             /* number of the next batch */
    bool whole;                /* what was published is what there is */
    uint64_t again_ms;         /* not whole: when to try again */
    /* for sd_events_counts: written by the thread alone */
    _Atomic uint64_t batches, events, bytes, answered, replayed, pictures, lost, refused, states,
        copies;
};

static void count_add(_Atomic uint64_t *counter, uint64_t more)
{
    /* relaxed: numbers for people, nothing hangs on them */
    (void)atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

static void count_set(_Atomic uint64_t *counter, uint64_t value)
{
    atomic_store_explicit(counter, value, memory_order_relaxed);
}

static uint64_t count_get(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static uint64_t clock_ms(void)
{
    return sd_now_ns() / 1000000;
}

static double time_now(void)
{
    return (double)(sd_now_ns() / 1000) / 1e6; /* it is since 1970 */
}

/* ---- batches ---- */

/* The batch becomes a block with this number, of one user. */
static struct sd_kept *batch_keep(struct sd_events *events, uint64_t number)
{
    msgpack_sbuffer payload;
    uint32_t count = events->batch.count;
    if (sd_wire_end(&events->batch, time_now(), &payload) != SC_OK) return NULL;
    size_t bytes = payload.size;
    char *data = msgpack_sbuffer_release(&payload);
    struct sd_kept *kept = sd_kept_make(number, data, bytes);
    if (!kept) free(data);
    if (kept) count_add(&events->events, count);
    return kept;
}

static sc_status publish(struct sd_events *events)
{
    if (events->batch.count == 0) return SC_OK;
    struct sd_kept *kept = batch_keep(events, events->next);
    if (!kept) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory for a batch of events");
    events->next++;
    /* A PUB socket never waits: it drops for who is slow, and who is slow sees a gap. */
    (void)sd_kept_send(events->publish, events->topic, kept, 0);
    sd_replays_keep(&events->replays, kept);
    count_add(&events->batches, 1);
    count_add(&events->bytes, kept->count);
    sd_kept_release(kept);
    return SC_OK;
}

static sc_status publish_if(struct sd_events *events, size_t bytes)
{
    return events->batch.events.size >= bytes ? publish(events) : SC_OK;
}

static uint32_t tier_name(uint32_t tier)
{
    return tier < TIERS ? tier : TIERS - 1;
}

/* A copy of a state is told, with what lies behind the nearest state above that is there. */
static sc_status tell(struct sd_events *events, const struct sd_state *state, uint32_t tier)
{
    const struct sd_state *base = sd_state_base(state);
    char adapter[SD_ADAPTER_BYTES];
    struct sd_wire_stored stored = {.hash = state->hash, .parent = base ? base->hash : 0,
        .has_parent = base != NULL, .medium = events->media[tier_name(tier)], .adapter = adapter,
        .from = base ? base->len : 0};
    sd_adapter_name(state->adapter_id, state->adapter_generation, adapter);
    SC_PASS(sd_state_path(&events->mirror, state, stored.from, &stored.tokens, &stored.marks,
        &stored.mark_count));
    stored.token_count = state->len - stored.from;
    sd_wire_stored(&events->batch, &stored);
    return SC_OK;
}

/* One change of the cache. */
static sc_status change(struct sd_events *events, const sc_event *event)
{
    const struct sd_state *state = NULL;
    uint64_t hash = 0;
    if (event->kind == SC_EVENT_STORED) {
        SC_PASS(sd_mirror_store(&events->mirror, event, &state));
        return tell(events, state, event->tier);
    }
    SC_PASS(sd_mirror_remove(&events->mirror, event, &hash));
    sd_wire_removed(&events->batch, hash, events->media[tier_name(event->tier)]);
    return SC_OK;
}

static sc_status changes(struct sd_events *events, const sc_event *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i].kind == SC_EVENT_LOST) {
            count_add(&events->lost, 1);
            sd_log(SC_LOG_WARN, "events.lost", "text=more changed at once than there was room for");
            return SC_FAULT(SC_ERR_LIMIT, "events were lost");
        }
        SC_PASS(change(events, &list[i]));
        SC_PASS(publish_if(events, BATCH_BYTES));
    }
    return SC_OK;
}

/* ---- the whole ---- */

static sc_status restart(struct sd_events *events)
{
    const sc_event *list = NULL;
    uint32_t count = 0;
    sd_mirror_clear(&events->mirror);
    events->batch.events.size = 0; /* told of what may not be */
    events->batch.count = 0;
    SC_PASS(sd_library(sc_cache_events_restart(events->cache, &list, &count)));
    sd_wire_cleared(&events->batch);
    SC_PASS(changes(events, list, count));
    return publish(events);
}

/* Tells what has changed, or everything, if that cannot be known. */
static void drain(struct sd_events *events)
{
    const sc_event *list = NULL;
    uint32_t count = 0;
    if (!events->whole && clock_ms() < events->again_ms) return;
    if (events->whole) {
        sc_status status = sd_library(sc_cache_events_take(events->cache, &list, &count));
        if (status == SC_OK) status = changes(events, list, count);
        if (status == SC_OK) status = publish(events);
        events->whole = status == SC_OK;
    }
    if (!events->whole) {
        if (events->next > 0) count_add(&events->pictures, 1);
        events->whole = restart(events) == SC_OK;
        events->again_ms = clock_ms() + AGAIN_MS;
        if (!events->whole) {
            sd_log(SC_LOG_ERROR, "events.again", "text=%s", sc_fault_last()->text);
        }
    }
    count_set(&events->states, events->mirror.state_count);
    count_set(&events->copies, events->mirror.copy_count);
}

/* ---- pictures for replays ---- */

static sc_status picture_add(struct sd_events *events, struct sd_kept_list *list, uint32_t cap)
{
    if (events->batch.count == 0) return SC_OK;
    struct sd_kept *kept = list->count < cap ? batch_keep(events, 0) : NULL;
    if (!kept) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory for a picture");
    list->items[list->count++] = kept;
    return SC_OK;
}

/* All that is there, in batches of about `bytes`. SC_ERR_LIMIT: they would be too many. */
static sc_status picture_make(struct sd_events *events, size_t bytes, uint32_t count_max,
    struct sd_kept_list *list)
{
    const struct sd_state *state = events->mirror.first;
    sc_status status = SC_OK;
    sd_wire_cleared(&events->batch);
    for (; status == SC_OK && state; state = state->next) {
        for (uint32_t t = 0; status == SC_OK && t < SC_TIER_COUNT; t++) {
            if (state->copies & 1u << t) status = tell(events, state, t);
        }
        if (status == SC_OK && events->batch.events.size >= bytes && state->next) {
            if (list->count + 1 >= count_max) return SC_ERR_LIMIT;
            status = picture_add(events, list, count_max);
        }
    }
    return status == SC_OK ? picture_add(events, list, count_max) : status;
}

/* It is numbered as the last of the batches that it stands for. */
static sc_status draw(void *ctx, uint32_t count_max)
{
    struct sd_events *events = ctx;
    struct sd_kept_list list = {NULL, 0};
    sc_status status = SC_ERR_LIMIT;
    if (!events->whole) return SC_FAULT(SC_ERR_AGAIN, "the picture is being made anew");
    list.items = calloc(count_max, sizeof(struct sd_kept *));
    if (!list.items) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory for a picture");
    uint64_t told = count_get(&events->events);
    for (size_t bytes = PICTURE_BYTES; status == SC_ERR_LIMIT; bytes *= 2) {
        while (list.count > 0) sd_kept_release(list.items[--list.count]);
        events->batch.events.size = 0;
        events->batch.count = 0;
        status = picture_make(events, bytes, count_max, &list);
    }
    count_set(&events->events, told); /* these were not published */
    events->batch.events.size = 0;
    events->batch.count = 0;
    if (status != SC_OK) {
        sd_kept_list_free(&list);
        return status;
    }
    for (uint32_t i = 0; i < list.count; i++) list.items[i]->number = events->next - list.count + i;
    count_add(&events->pictures, 1);
    events->replays.picture = list;
    return SC_OK;
}

/* ---- the thread ---- */

static void wait_for(struct sd_events *events)
{
    zmq_pollitem_t items[2] = {{NULL, events->wake_fd, ZMQ_POLLIN, 0},
        {events->replay, 0, ZMQ_POLLIN, 0}};
    long timeout = -1;
    uint64_t told = 0;
    if (!events->whole) timeout = AGAIN_MS;
    if (events->replays.active > 0) timeout = RETRY_MS;
    (void)zmq_poll(items, events->replay ? 2 : 1, timeout);
    if (!(items[0].revents & ZMQ_POLLIN)) return;
    const struct timespec gather = {0, GATHER_MS * 1000000};
    if (!atomic_load_explicit(&events->ends, memory_order_relaxed)) (void)nanosleep(&gather, NULL);
    (void)!read(events->wake_fd, &told, sizeof told);
    /* acquire, with the release of sd_events_changed: what it was told of is seen by the take */
    (void)atomic_exchange_explicit(&events->woken, false, memory_order_acq_rel);
}

static void *run(void *ctx)
{
    struct sd_events *events = ctx;
    struct sd_replays *replays = &events->replays;
    while (!atomic_load_explicit(&events->ends, memory_order_acquire)) {
        drain(events);
        if (events->replay) {
            sd_replays_read(replays, clock_ms(), draw, events);
            sd_replays_send(replays, clock_ms());
            count_set(&events->answered, replays->answered);
            count_set(&events->replayed, replays->replayed);
            count_set(&events->refused, replays->refused);
        }
        wait_for(events);
    }
    drain(events);
    sd_wire_cleared(&events->batch); /* nothing can be had from here any more */
    (void)publish(events);
    return NULL;
}

void sd_events_changed(struct sd_events *events)
{
    const uint64_t one = 1;
    if (!events || atomic_exchange_explicit(&events->woken, true, memory_order_acq_rel)) return;
    (void)!write(events->wake_fd, &one, sizeof one); /* a counter that is not 0: never full */
}

/* ---- up and down ---- */

/* As vLLM: what has a * or ::, or is local, is bound to, anything else is connected to; @ and >
 * before the address say which. */
static bool attach(void *socket, const char *endpoint, const char *what)
{
    bool bind = strchr(endpoint, '*') || strstr(endpoint, "::") ||
        strncmp(endpoint, "ipc://", 6) == 0 || strncmp(endpoint, "inproc://", 9) == 0;
    char bound[SD_PATH_BYTES] = "";
    size_t bytes = sizeof bound;
    if (endpoint[0] == '@' || endpoint[0] == '>') {
        bind = endpoint[0] == '@';
        endpoint++;
    }
    if ((bind ? zmq_bind(socket, endpoint) : zmq_connect(socket, endpoint)) != 0) {
        (void)SC_FAULT_SYS(SC_ERR_IO, errno, "%s: %s: %s", what, endpoint, zmq_strerror(errno));
        return false;
    }
    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &bytes) != 0) bound[0] = '\0';
    sd_log(SC_LOG_INFO, "events.open", "%s=%s %s", what, bound, bind ? "bound" : "connected");
    return true;
}

static bool set(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

static bool open_socket(struct sd_events *events, int type, int queue, const char *endpoint,
    const char *what, void **socket_out)
{
    const int64_t request_bytes = REQUEST_BYTES; /* of subscriptions, too */
    void *socket = zmq_socket(events->context, type);
    *socket_out = socket;
    bool ipv6 = strchr(endpoint, '[') != NULL;
    if (!socket || !set(socket, ZMQ_SNDHWM, queue) || !set(socket, ZMQ_LINGER, LINGER_MS) ||
        !set(socket, ZMQ_TCP_KEEPALIVE, 1) || !set(socket, ZMQ_IPV6, ipv6) ||
        zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &request_bytes, sizeof request_bytes) != 0 ||
        (type == ZMQ_ROUTER && (!set(socket, ZMQ_ROUTER_MANDATORY, 1) ||
            !set(socket, ZMQ_RCVHWM, REPLAY_QUEUE)))) {
        (void)SC_FAULT_SYS(SC_ERR_IO, errno, "%s: no socket: %s", what, zmq_strerror(errno));
        return false;
    }
    return attach(socket, endpoint, what);
}

static void take_media(struct sd_events *events, const char *words)
{
    char text[SD_PATH_BYTES], *rest = NULL;
    (void)snprintf(text, sizeof text, "%s", words);
    char *word = strtok_r(text, " ", &rest);
    for (uint32_t i = 0; i < TIERS; i++, word = strtok_r(NULL, " ", &rest)) {
        (void)snprintf(events->media[i], sizeof events->media[i], "%.63s", word ? word : "");
    }
}

static void free_all(struct sd_events *events)
{
    if (events->publish) (void)zmq_close(events->publish);
    if (events->replay) (void)zmq_close(events->replay);
    sd_replays_free(&events->replays);
    if (events->context) (void)zmq_ctx_term(events->context); /* LINGER_MS at most */
    if (events->wake_fd >= 0) (void)close(events->wake_fd);
    sd_mirror_clear(&events->mirror);
    sd_wire_free(&events->batch);
    free(events);
}

static sc_status start(const struct sd_config *config, struct sd_events *events)
{
    SC_PASS(sd_replays_init(&events->replays, (uint32_t)config->events_buffer,
        config->events_buffer_bytes));
    events->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    events->context = zmq_ctx_new();
    if (events->wake_fd < 0 || !events->context) {
        return SC_FAULT_SYS(SC_ERR_NO_MEMORY, errno, "no room for events: %s", strerror(errno));
    }
    if (!open_socket(events, ZMQ_PUB, (int)config->events_queue, config->events_publish,
            "events_publish", &events->publish)) {
        return SC_ERR_IO;
    }
    if (config->events_replay[0] && !open_socket(events, ZMQ_ROUTER, REPLAY_QUEUE,
            config->events_replay, "events_replay", &events->replay)) {
        return SC_ERR_IO;
    }
    events->replays.socket = events->replay;
    events->replays.topic = events->topic;
    events->replays.with_topic = strcmp(config->events_replay_form, "topic") == 0;
    int code = pthread_create(&events->thread, NULL, run, events);
    if (code == 0) return SC_OK;
    return SC_FAULT_SYS(SC_ERR_NO_MEMORY, code, "no thread for events: %s", strerror(code));
}

uint64_t sd_events_queue_bytes(const struct sd_config *config)
{
    if (!config->events_publish[0]) return 0;
    /* The longest key, with as many bytes of marks, fits always. */
    uint64_t least = config->key_tokens * sizeof(int32_t) * 2 + 4096;
    return config->events_bytes > least ? config->events_bytes : least;
}

sc_status sd_events_open(const struct sd_config *config, sc_cache *cache,
    struct sd_events **events_out)
{
    *events_out = NULL;
    if (!config->events_publish[0]) return SC_OK;
    struct sd_events *events = calloc(1, sizeof *events);
    if (!events) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory for events");
    const struct sd_wire_form form = {.arrays = strcmp(config->events_form, "array") == 0,
        .group = (uint32_t)config->events_group, .rank = (uint32_t)config->events_rank,
        .kind = "mamba"};
    events->cache = cache;
    events->wake_fd = -1;
    memcpy(events->topic, config->events_topic, sizeof events->topic);
    take_media(events, config->events_media);
    sd_mirror_init(&events->mirror, (uint32_t)config->events_block);
    sd_wire_begin(&events->batch, &form);
    sc_status status = start(config, events);
    if (status != SC_OK) {
        free_all(events);
        return status;
    }
    *events_out = events;
    return SC_OK;
}

void sd_events_close(struct sd_events *events)
{
    if (!events) return;
    atomic_store_explicit(&events->ends, true, memory_order_release);
    atomic_store_explicit(&events->woken, false, memory_order_relaxed);
    sd_events_changed(events);
    (void)pthread_join(events->thread, NULL);
    free_all(events);
}

void sd_events_counts(const struct sd_events *events, struct sd_events_counts *counts_out)
{
    *counts_out = (struct sd_events_counts){.batches = 0};
    if (!events) return;
    counts_out->batches = count_get(&events->batches);
    counts_out->events = count_get(&events->events);
    counts_out->bytes = count_get(&events->bytes);
    counts_out->replays = count_get(&events->answered);
    counts_out->replayed = count_get(&events->replayed);
    counts_out->pictures = count_get(&events->pictures);
    counts_out->lost = count_get(&events->lost);
    counts_out->refused = count_get(&events->refused);
    counts_out->states = count_get(&events->states);
    counts_out->copies = count_get(&events->copies);
}
