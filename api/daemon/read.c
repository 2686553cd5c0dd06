/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups, leases on states that are there, pins.
 *
 * An acquire of n keys has n items. An item whose state a tier has to bring, or whose state has no
 * file yet, waits; the answer goes out when none does. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server.h"

struct sd_acquire;

struct sd_item {
    struct sd_acquire *owner;
    struct sd_hold *hold;      /* NULL: nothing is held */
    struct sd_item *next;      /* in server->waiting */
    sc_error_info fault;       /* status SC_OK: none */
    uint32_t asked;            /* tokens of its key */
    bool again;                /* of a request that was preempted */
    uint32_t len;
    sc_reason reason;
};

struct sd_acquire {
    struct sd_call *call;
    uint32_t count, left;
    bool files, keep;
    enum sd_hold_kind kind;
    uint64_t until_ns;         /* of a pin */
    struct sd_item items[];
};

/* ---- look-up ---- */

static void pack_answer(msgpack_packer *packer, const sc_answer *answer)
{
    (void)msgpack_pack_array(packer, 7);
    (void)msgpack_pack_int64(packer, answer->status);
    (void)msgpack_pack_array(packer, SC_TIER_COUNT);
    for (uint32_t i = 0; i < SC_TIER_COUNT; i++) {
        (void)msgpack_pack_uint32(packer, answer->state_len[i]);
    }
    (void)msgpack_pack_uint32(packer, answer->kv_len);
    (void)msgpack_pack_uint32(packer, answer->branch_len);
    (void)msgpack_pack_uint32(packer, answer->pending_len);
    (void)msgpack_pack_uint32(packer, (uint32_t)answer->reason);
    (void)msgpack_pack_array(packer, SC_TIER_COUNT);
    for (uint32_t i = 0; i < SC_TIER_COUNT; i++) {
        (void)msgpack_pack_uint64(packer, answer->restore_ns[i]);
    }
}

void sd_lookup(struct sd_call *call)
{
    struct sd_server *server = call->server;
    uint32_t count = 0;
    if (sd_keys_read(call, true, SD_KEYS_MAX, &count) != SC_OK ||
        sc_map_done(&call->params) != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    server->count.lookups++;
    server->count.keys += count;
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_array(packer, count);
    for (uint32_t i = 0; i < count; i++) {
        sc_answer answer;
        sc_key key;
        uint32_t common;
        memset(&answer, 0, sizeof answer);
        sc_status status = sd_key_make(call, &server->keys[i], &key, &common);
        if (status == SC_OK) status = sc_cache_lookup(server->store.cache, &key, 1, &answer);
        if (status != SC_OK) answer.status = status;
        pack_answer(packer, &answer);
    }
    sd_reply_end(call, NULL, 0);
}

/* ---- acquire ---- */

static void pack_item(msgpack_packer *packer, const struct sd_item *item)
{
    (void)msgpack_pack_array(packer, 5);
    (void)msgpack_pack_int64(packer, item->fault.status);
    (void)msgpack_pack_uint64(packer, item->hold ? sd_hold_id(item->hold) : 0);
    (void)msgpack_pack_uint32(packer, item->len);
    (void)msgpack_pack_uint32(packer, (uint32_t)item->reason);
    sc_pack_name(packer, item->fault.status == SC_OK ? "" : item->fault.text);
}

/* Everything has come: the answer, with the files of those that have a state, in their order. */
static void answer(struct sd_acquire *acquire)
{
    struct sd_call *call = acquire->call;
    struct sd_server *server = call->server;
    int fds[SD_KEYS_MAX];
    uint32_t fd_count = 0;
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_array(packer, acquire->count);
    for (uint32_t i = 0; i < acquire->count; i++) {
        struct sd_item *item = &acquire->items[i];
        if (acquire->kind == SD_HOLD_STATE) {
            sd_metrics_item(server, &(struct sd_item_count){item->fault.status, item->asked,
                item->len, item->reason, item->again});
        }
        pack_item(packer, item);
        if (item->hold && acquire->files) {
            fds[fd_count++] = sd_store_file(&server->store, item->hold->slot);
        }
    }
    sd_reply_end(call, fds, fd_count);
    for (uint32_t i = 0; i < acquire->count; i++) {
        struct sd_hold *hold = acquire->items[i].hold;
        if (!hold) continue;
        if (acquire->keep && hold->conn) sd_hold_keep(server, hold);
        sd_hold_idle(server, hold);
    }
    sd_call_end(call);
    free(acquire);
}

static void item_done(struct sd_item *item)
{
    if (--item->owner->left == 0) answer(item->owner);
}

static void item_failed(struct sd_server *server, struct sd_item *item)
{
    item->fault = *sc_fault_last();
    server->count.errors++;
    server->count.again += item->fault.status == SC_ERR_AGAIN ||
        item->fault.status == SC_ERR_NO_SLOT;
    if (!item->hold) return;
    struct sd_hold *hold = item->hold;
    item->hold = NULL;
    item->len = 0;
    if (hold->conn) {
        sd_hold_end(server, hold); /* busy: it leaves its connection */
    }
    sd_hold_idle(server, hold);
}

static void item_wait(struct sd_server *server, struct sd_item *item)
{
    item->next = server->waiting;
    server->waiting = item;
    sd_server_changed(server);
}

/* A file for a state that has none, made by a worker while the lease holds the slot. */
struct copy {
    struct sd_work work;
    struct sd_item *item;
    uint32_t slot;
    int fd;
    sc_status status;
    sc_error_info fault;
};

static void copy_work(struct sd_work *work)
{
    struct copy *copy = (struct copy *)work;
    copy->status = sd_image_copy(&work->server->store, copy->slot, &copy->fd);
    if (copy->status != SC_OK) copy->fault = *sc_fault_last();
}

static void copy_done(struct sd_work *work)
{
    struct copy *copy = (struct copy *)work;
    struct sd_server *server = work->server;
    struct sd_item *item = copy->item;
    server->store.images[copy->slot].making = false;
    if (copy->status == SC_OK) {
        copy->status = sd_store_adopt(&server->store, copy->slot, copy->fd, NULL);
        if (copy->status != SC_OK) (void)close(copy->fd);
    } else {
        (void)sc_fault_take(&copy->fault);
    }
    server->count.files_made += copy->status == SC_OK;
    if (copy->status != SC_OK) item_failed(server, item);
    free(copy);
    item_done(item);
}

static sc_status copy_start(struct sd_server *server, struct sd_item *item)
{
    struct copy *copy = calloc(1, sizeof *copy);
    if (!copy) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
    copy->work.work = copy_work;
    copy->work.done = copy_done;
    copy->item = item;
    copy->slot = item->hold->slot;
    copy->fd = -1;
    if (!sd_work_start(server, &copy->work)) {
        free(copy);
        return SC_FAULT(SC_ERR_NO_MEMORY, "no worker");
    }
    server->store.images[copy->slot].making = true;
    return SC_OK;
}

/* The lease has been made, or something that it waited for has come. False: it waits. */
static bool item_step(struct sd_server *server, struct sd_item *item)
{
    sc_lease_info info;
    struct sd_hold *hold = item->hold;
    if (sd_library(sc_lease_info_get(server->store.cache, hold->lease, &info)) != SC_OK) {
        item_failed(server, item);
        return true;
    }
    if (info.state == SC_LEASE_WAITING) return false;
    item->reason = info.reason;
    item->len = hold->len = info.len;
    if (info.state != SC_LEASE_READY || info.source_slot <= 0 || info.len == 0) { /* a miss */
        item->hold = NULL;
        item->len = 0;
        server->count.missed++;
        if (hold->conn) sd_hold_end(server, hold);
        sd_hold_idle(server, hold);
        return true;
    }
    hold->slot = (uint32_t)info.source_slot;
    /* Without files, too: what lies between the parts of such a slot is not for clients. */
    if (hold->kind == SD_HOLD_STATE && sd_store_file(&server->store, hold->slot) < 0) {
        if (server->store.images[hold->slot].making) return false; /* for another client */
        if (copy_start(server, item) != SC_OK) {
            item_failed(server, item);
            return true;
        }
        item->owner->left++; /* of the worker; the caller's goes now */
    }
    server->count.acquired++;
    server->count.acquired_tokens += info.len;
    return true;
}

void sd_waiting_tick(struct sd_server *server)
{
    struct sd_item *item = server->waiting, *next;
    server->waiting = NULL;
    for (; item; item = next) {
        next = item->next;
        if (!item->hold->conn) { /* its client has gone, and waits for nothing */
            (void)SC_FAULT(SC_ERR_CLOSED, "the client has gone");
            item_failed(server, item);
            item_done(item);
        } else if (item_step(server, item)) {
            item_done(item);
        } else {
            item->next = server->waiting;
            server->waiting = item;
        }
    }
}

static void item_start(struct sd_call *call, struct sd_item *item, const struct sc_wire_key *key,
    uint64_t deadline_ns)
{
    struct sd_server *server = call->server;
    sc_request request = {.deadline_ns = deadline_ns,
        .flags = item->again ? SC_REQUEST_AGAIN : 0};
    sc_lease lease;
    sc_status each = SC_OK;
    struct sd_tenant *owner = NULL;
    uint32_t common;
    sc_status status = sd_hold_room(call->conn, item->owner->kind);
    if (status == SC_OK) status = sd_lease_of(call, key, &owner);
    bool counted = status == SC_OK && owner;
    if (status == SC_OK) status = sd_key_make(call, key, &request.key, &common);
    if (status == SC_OK) {
        status = sd_library(sc_cache_acquire(server->store.cache, &request, 1, sd_now_ns(), &lease,
            &each));
    }
    if (status == SC_OK) status = sd_library(each);
    if (status == SC_OK && sd_store_spare(&server->store) != SC_OK) {
        status = SC_ERR_NO_SLOT;
        (void)sc_lease_release(server->store.cache, lease, 0, SC_RELEASE_DISCARD);
    }
    if (status != SC_OK) {
        if (counted) owner->leases--;
        item_failed(server, item);
        item_done(item);
        return;
    }
    server->count.asked_tokens += key->token_count;
    item->hold = sd_hold_add(call->conn, item->owner->kind, lease, owner);
    item->hold->until_ns = item->owner->until_ns;
    sd_hold_busy(item->hold);
    if (item_step(server, item)) {
        item_done(item);
    } else {
        item_wait(server, item);
    }
}

static struct sd_acquire *acquire_make(struct sd_call *call, uint32_t count)
{
    struct sd_acquire *acquire = calloc(1, sizeof *acquire + count * sizeof *acquire->items);
    if (acquire) acquire->call = sd_call_keep(call);
    if (!acquire || !acquire->call) {
        free(acquire);
        (void)SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
        return NULL;
    }
    acquire->count = count;
    acquire->left = count + 1; /* one for who starts them */
    for (uint32_t i = 0; i < count; i++) acquire->items[i].owner = acquire;
    return acquire;
}

static void acquire_start(struct sd_acquire *acquire, uint64_t deadline_ns)
{
    struct sd_call *call = acquire->call;
    struct sd_item last = {.owner = acquire};
    for (uint32_t i = 0; i < acquire->count; i++) {
        acquire->items[i].asked = call->server->keys[i].token_count;
        acquire->items[i].again = call->server->keys[i].again;
        item_start(call, &acquire->items[i], &call->server->keys[i], deadline_ns);
    }
    sd_server_changed(call->server);
    item_done(&last);
}

void sd_acquire(struct sd_call *call)
{
    uint64_t deadline_ms = 0;
    bool files = call->conn->local;
    uint32_t count = 0;
    if (sd_keys_read(call, true, SD_KEYS_MAX, &count) != SC_OK ||
        sc_map_u64(&call->params, "deadline_ms", false, UINT32_MAX, &deadline_ms) != SC_OK ||
        sc_map_bool(&call->params, "files", &files) != SC_OK ||
        sc_map_done(&call->params) != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    if (files && !call->conn->local) {
        (void)SC_FAULT(SC_ERR_UNSUPPORTED, "files: they cannot be passed over TCP");
        sd_reply_fault(call);
        return;
    }
    struct sd_acquire *acquire = acquire_make(call, count);
    if (!acquire) {
        sd_reply_fault(call);
        return;
    }
    acquire->files = files && !call->silent;
    acquire->kind = SD_HOLD_STATE;
    acquire_start(acquire, deadline_ms > 0 ? sd_now_ns() + deadline_ms * 1000000 : 0);
}

/* ---- pin, release, read ---- */

void sd_pin(struct sd_call *call)
{
    uint64_t seconds = 0;
    bool keep = false;
    uint32_t count = 0;
    if (sd_keys_read(call, false, 1, &count) != SC_OK ||
        sc_map_u64(&call->params, "seconds", false, UINT32_MAX, &seconds) != SC_OK ||
        sc_map_bool(&call->params, "keep", &keep) != SC_OK ||
        sc_map_done(&call->params) != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    if (keep && (call->conn->bound || seconds == 0)) {
        (void)SC_FAULT(call->conn->bound ? SC_ERR_DENIED : SC_ERR_INVALID,
            "keep: a pin that outlives its client needs seconds, and a client that may speak for "
            "all tenants");
        sd_reply_fault(call);
        return;
    }
    struct sd_acquire *acquire = acquire_make(call, 1);
    if (!acquire) {
        sd_reply_fault(call);
        return;
    }
    acquire->kind = SD_HOLD_PIN;
    acquire->keep = keep;
    acquire->until_ns = seconds > 0 ? sd_now_ns() + seconds * UINT64_C(1000000000) : 0;
    call->server->count.pins++;
    acquire_start(acquire, 0);
}

void sd_release(struct sd_call *call)
{
    const msgpack_object_array *leases = NULL;
    if (sc_map_array(&call->params, "leases", true, &leases) != SC_OK ||
        sc_map_done(&call->params) != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_array(packer, leases->size);
    for (uint32_t i = 0; i < leases->size; i++) {
        const msgpack_object *id = &leases->ptr[i];
        struct sd_hold *hold = NULL;
        sc_status status = SC_ERR_INVALID;
        if (id->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
            status = sd_hold_find(call->conn, id->via.u64, SD_HOLD_FREE, &hold);
        }
        if (status == SC_OK) sd_hold_end(call->server, hold);
        (void)msgpack_pack_int64(packer, status);
    }
    sd_reply_end(call, NULL, 0);
}

void sd_read(struct sd_call *call)
{
    struct sd_server *server = call->server;
    uint64_t id = 0, offset = 0, count = 0;
    struct sd_hold *hold = NULL;
    uint64_t bytes = server->store.stride, count_max = server->config->frame_bytes - 64;
    if (sc_map_u64(&call->params, "lease", true, UINT64_MAX, &id) != SC_OK ||
        sc_map_u64(&call->params, "offset", true, bytes, &offset) != SC_OK ||
        sc_map_u64(&call->params, "count", true, count_max, &count) != SC_OK ||
        sc_map_done(&call->params) != SC_OK ||
        sd_hold_find(call->conn, id, SD_HOLD_STATE, &hold) != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    if (count > bytes - offset) count = bytes - offset;
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_map(packer, 1);
    sc_pack_bin(packer, "data", sd_store_memory(&server->store, hold->slot) + offset,
        (size_t)count);
    sd_reply_end(call, NULL, 0);
}
