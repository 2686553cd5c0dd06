/* SPDX-License-Identifier: Apache-2.0 */
/* A statecached as a remote tier: sc_remote of statecache/tiers.h.
 *
 *   find   look-up                                 lane 0     lanes: a connection each, so that a
 *   store  write_begin, copy, write_commit         lane 1     look-up does not wait for a state;
 *   load   acquire, copy, release                  lane 2     opened when needed
 *
 * A call whose connection turns out to be broken is made once more on a new one: the service was
 * restarted. All three may be repeated. When nobody listens or answers, the lane fails at once for
 * a second.
 *
 * The tier has a state dense; the service's file has its parts at offsets. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client_internal.h"

enum { LANE_FIND, LANE_STORE, LANE_LOAD, LANE_COUNT, PARTS_MAX = 65536, TIMEOUT_MS = 5000 };
static const uint64_t RETRY_NS = UINT64_C(1000000000);

struct lane {
    pthread_mutex_t lock;   /* of one call, its repetition too */
    sc_client *client;      /* NULL: not open */
    uint64_t retry_ns;      /* not before */
};

/* What the service has; every connection must say the same. */
struct shape {
    sc_fingerprint fingerprint;
    uint64_t state_bytes, file_bytes;
    uint32_t tp_rank, tp_size, layer_first, layer_last, part_count;
};

struct remote {
    char *address, *token, *tenant;
    uint32_t timeout_ms;
    struct shape shape;
    sc_client_part *parts;
    struct lane lanes[LANE_COUNT];
};

/* ---- whose states ---- */

static sc_status read_ranks(sc_client *client, struct shape *shape)
{
    struct client_call call;
    struct sc_map map;
    sc_call_begin(&call, client, "schema");
    (void)msgpack_pack_map(&call.packer, 0);
    sc_status status = sc_call_run(&call);
    if (status == SC_OK && (sc_map_begin(&map, call.result) != SC_OK ||
        sc_map_u32(&map, "tp_rank", true, UINT32_MAX, &shape->tp_rank) != SC_OK ||
        sc_map_u32(&map, "tp_size", true, UINT32_MAX, &shape->tp_size) != SC_OK)) {
        status = sc_call_wrong(&call, "a schema");
    }
    sc_call_end(&call);
    return status;
}

/* `*parts_out` is the caller's. */
static sc_status read_shape(sc_client *client, struct shape *shape, sc_client_part **parts_out)
{
    sc_client_info info = {.struct_size = sizeof info};
    memset(shape, 0, sizeof *shape); /* they are compared byte by byte */
    shape->layer_first = UINT32_MAX;
    SC_PASS(sc_client_info_get(client, &info));
    shape->fingerprint = info.fingerprint;
    shape->state_bytes = info.state_bytes;
    shape->file_bytes = info.file_bytes;
    SC_PASS(read_ranks(client, shape));
    sc_status status = sc_client_parts(client, NULL, 0, &shape->part_count);
    if (status != SC_ERR_LIMIT) return SC_FAULT(SC_ERR_UNSUPPORTED, "a state without parts");
    if (shape->part_count > PARTS_MAX) return SC_FAULT(SC_ERR_LIMIT, "too many parts");
    sc_client_part *parts = calloc(shape->part_count, sizeof *parts);
    if (!parts) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
    status = sc_client_parts(client, parts, shape->part_count, &shape->part_count);
    uint64_t bytes = 0;
    for (uint32_t i = 0; status == SC_OK && i < shape->part_count; i++) {
        bytes += parts[i].bytes;
        if (parts[i].layer < shape->layer_first) shape->layer_first = parts[i].layer;
        if (parts[i].layer > shape->layer_last) shape->layer_last = parts[i].layer;
    }
    if (status == SC_OK && bytes != info.state_bytes) {
        status = SC_FAULT(SC_ERR_CLOSED, "the service's schema: parts of another size");
    }
    if (status != SC_OK) {
        free(parts);
        return status;
    }
    *parts_out = parts;
    return SC_OK;
}

/* ---- lanes ---- */

static void lane_close(struct lane *lane)
{
    sc_client_close(lane->client);
    lane->client = NULL;
}

static sc_status lane_connect(struct remote *remote, struct lane *lane)
{
    sc_client_options options = SC_CLIENT_OPTIONS_INIT;
    struct shape shape;
    sc_client_part *parts = NULL;
    options.address = remote->address;
    options.token = remote->token;
    options.tenant = remote->tenant;
    options.timeout_ms = remote->timeout_ms;
    SC_PASS(sc_client_open(&options, &lane->client));
    sc_status status = read_shape(lane->client, &shape, &parts);
    if (status == SC_OK && !remote->parts) {
        remote->shape = shape;
        remote->parts = parts;
        return SC_OK;
    }
    size_t bytes = shape.part_count * sizeof *parts;
    if (status == SC_OK && (memcmp(&shape, &remote->shape, sizeof shape) != 0 ||
        memcmp(parts, remote->parts, bytes) != 0)) {
        status = SC_FAULT(SC_ERR_MISMATCH, "the service has states of another form now");
    }
    free(parts);
    if (status != SC_OK) lane_close(lane);
    return status;
}

/* SC_ERR_CLOSED: nobody can be reached now. */
static sc_status lane_open(struct remote *remote, struct lane *lane)
{
    if (lane->client) return SC_OK;
    if (sc_clock_now_ns() < lane->retry_ns) {
        return SC_FAULT(SC_ERR_CLOSED, "%s could not be reached", remote->address);
    }
    sc_status status = lane_connect(remote, lane);
    if (status == SC_OK) return SC_OK;
    lane->retry_ns = sc_clock_now_ns() + RETRY_NS;
    return status == SC_ERR_MISMATCH ? status : SC_ERR_CLOSED;
}

typedef sc_status call_fn(struct remote *remote, sc_client *client, void *ctx);

static sc_status lane_call(struct remote *remote, uint32_t which, call_fn *fn, void *ctx)
{
    struct lane *lane = &remote->lanes[which];
    (void)pthread_mutex_lock(&lane->lock);
    bool fresh = lane->client == NULL;
    uint64_t start_ns = sc_clock_now_ns();
    sc_status status = lane_open(remote, lane);
    if (status == SC_OK) status = fn(remote, lane->client, ctx);
    if (status == SC_ERR_CLOSED && lane->client) {
        lane_close(lane);
        uint64_t now_ns = sc_clock_now_ns(), late_ns = remote->timeout_ms * UINT64_C(1000000);
        if (now_ns - start_ns >= late_ns) { /* it hangs: who waits for the lane does so no more */
            lane->retry_ns = now_ns + RETRY_NS;
        } else if (!fresh && lane_open(remote, lane) == SC_OK) {
            status = fn(remote, lane->client, ctx);
            if (status == SC_ERR_CLOSED) lane_close(lane);
        }
    }
    (void)pthread_mutex_unlock(&lane->lock);
    return status;
}

/* ---- the calls ---- */

static sc_client_key key_of(const sc_remote_key *key)
{
    return (sc_client_key){.tokens = key->tokens, .marks = key->marks,
        .token_count = key->token_count, .mark_count = key->mark_count, .len_max = key->len_max,
        .adapter_id = key->adapter_id, .adapter_generation = key->adapter_generation};
}

struct find { const sc_remote_key *keys; uint32_t count, *len_out; };

static sc_status find_some(sc_client *client, const sc_remote_key *keys, uint32_t count,
    uint32_t *len_out)
{
    sc_client_key wire[16];
    sc_answer answers[16];
    for (uint32_t i = 0; i < count; i++) wire[i] = key_of(&keys[i]);
    SC_PASS(sc_client_lookup(client, wire, count, answers));
    for (uint32_t i = 0; i < count; i++) {
        len_out[i] = 0;
        for (uint32_t t = 0; answers[i].status == SC_OK && t < SC_TIER_COUNT; t++) {
            if (answers[i].state_len[t] > len_out[i]) len_out[i] = answers[i].state_len[t];
        }
        if (keys[i].len_max > 0 && len_out[i] > keys[i].len_max) {
            return SC_FAULT(SC_ERR_CLOSED, "the service has found more than was asked for");
        }
    }
    return SC_OK;
}

static sc_status find_call(struct remote *remote, sc_client *client, void *ctx)
{
    const struct find *find = ctx;
    (void)remote;
    for (uint32_t at = 0; at < find->count; at += 16) {
        uint32_t count = find->count - at < 16 ? find->count - at : 16;
        SC_PASS(find_some(client, find->keys + at, count, find->len_out + at));
    }
    return SC_OK;
}

static sc_status remote_find(void *ctx, const sc_remote_key *keys, uint32_t count,
    uint32_t *len_out)
{
    struct find find = {keys, count, len_out};
    return lane_call(ctx, LANE_FIND, find_call, &find);
}

struct move { const sc_remote_key *key; const uint8_t *from; uint8_t *to; };

static sc_status store_call(struct remote *remote, sc_client *client, void *ctx)
{
    const struct move *move = ctx;
    const sc_client_key key = key_of(move->key);
    sc_client_write write;
    bool stored = false;
    SC_PASS(sc_client_write_begin(client, &key, &write));
    if (write.write == 0) return SC_OK;
    const uint8_t *from = move->from;
    for (uint32_t i = 0; i < remote->shape.part_count; i++) {
        const sc_client_part *part = &remote->parts[i];
        memcpy((uint8_t *)write.data + part->offset, from, part->bytes);
        from += part->bytes;
    }
    SC_PASS(sc_client_write_commit(client, &write, &stored));
    return stored ? SC_OK : SC_FAULT(SC_ERR_NO_SLOT, "the service had no room for a state");
}

static sc_status remote_store(void *ctx, const sc_remote_key *key, const void *state)
{
    struct move move = {key, state, NULL};
    return lane_call(ctx, LANE_STORE, store_call, &move);
}

static sc_status load_call(struct remote *remote, sc_client *client, void *ctx)
{
    const struct move *move = ctx;
    sc_client_key key = key_of(move->key);
    sc_client_state state;
    sc_status each = SC_OK;
    key.len_max = key.token_count;
    SC_PASS(sc_client_acquire(client, &key, 1, remote->timeout_ms / 2, &state, &each));
    SC_PASS(each);
    if (state.len == key.token_count) {
        uint8_t *to = move->to;
        for (uint32_t i = 0; i < remote->shape.part_count; i++) {
            const sc_client_part *part = &remote->parts[i];
            memcpy(to, (const uint8_t *)state.data + part->offset, part->bytes);
            to += part->bytes;
        }
    } else {
        each = SC_FAULT(SC_ERR_NOT_FOUND, "of %u tokens the service has %u now", key.token_count,
            state.len);
    }
    sc_error_info kept = *sc_fault_last();
    (void)sc_client_release(client, &state, 1);
    return each == SC_OK ? SC_OK : sc_fault_take(&kept);
}

static sc_status remote_load(void *ctx, const sc_remote_key *key, void *state_out)
{
    struct move move = {key, NULL, state_out};
    return lane_call(ctx, LANE_LOAD, load_call, &move);
}

/* ---- open and close ---- */

static void remote_free(struct remote *remote)
{
    for (uint32_t i = 0; i < LANE_COUNT; i++) {
        lane_close(&remote->lanes[i]);
        (void)pthread_mutex_destroy(&remote->lanes[i].lock);
    }
    free(remote->parts);
    free(remote->address);
    free(remote->token);
    free(remote->tenant);
    free(remote);
}

static bool copy_text(const char *text, char **out)
{
    if (text) *out = strdup(text);
    return !text || *out;
}

sc_status sc_client_remote_open(const sc_client_options *options, sc_remote *remote_out)
{
    if (!options || !remote_out || options->struct_size != sizeof *options || !options->address) {
        return SC_FAULT(SC_ERR_INVALID, "options with struct_size and address, and where the "
            "calls go, are needed");
    }
    struct remote *remote = calloc(1, sizeof *remote);
    if (!remote) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
    remote->timeout_ms = options->timeout_ms > 0 ? options->timeout_ms : TIMEOUT_MS;
    for (uint32_t i = 0; i < LANE_COUNT; i++) {
        (void)pthread_mutex_init(&remote->lanes[i].lock, NULL);
    }
    sc_status status = SC_OK;
    if (!copy_text(options->address, &remote->address) ||
        !copy_text(options->token, &remote->token) ||
        !copy_text(options->tenant, &remote->tenant)) {
        status = SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
    }
    if (status == SC_OK) status = lane_connect(remote, &remote->lanes[LANE_FIND]);
    const struct shape *shape = &remote->shape;
    if (status == SC_OK && options->fingerprint &&
        memcmp(options->fingerprint, &shape->fingerprint, sizeof shape->fingerprint) != 0) {
        status = SC_FAULT(SC_ERR_MISMATCH, "the service has states of another model");
    }
    if (status != SC_OK) {
        remote_free(remote);
        return status;
    }
    *remote_out = (sc_remote){sizeof *remote_out, remote, shape->fingerprint, shape->state_bytes,
        shape->tp_rank, shape->tp_size, shape->layer_first, shape->layer_last, remote_find,
        remote_store, remote_load};
    return SC_OK;
}

void sc_client_remote_close(sc_remote *remote)
{
    if (!remote || !remote->ctx) return;
    remote_free(remote->ctx);
    *remote = (sc_remote)SC_REMOTE_INIT;
}
