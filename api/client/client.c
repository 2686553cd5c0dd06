/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, closing and one call: client_internal.h. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "client_internal.h"

enum { TIMEOUT_MS = 30000, FRAME_BYTES_MIN = 4096 };
static const uint64_t ANSWER_BYTES_MAX = UINT64_C(1) << 30;

#define TEXT(number) #number
#define TEXT_OF(number) TEXT(number)

const char *sc_client_version(void)
{
    return TEXT_OF(SC_VERSION_MAJOR) "." TEXT_OF(SC_VERSION_MINOR) "." TEXT_OF(SC_VERSION_PATCH);
}

const sc_error_info *sc_client_last_error(void)
{
    return sc_fault_last();
}

/* ---- one call ---- */

/* The connection cannot be used any more, for this reason. */
static sc_status broken(sc_client *client, sc_status status)
{
    if (status == SC_OK || client->broken.status != SC_OK) return status;
    client->broken = *sc_fault_last();
    client->broken.status = SC_ERR_CLOSED;
    return sc_fault_take(&client->broken);
}

/* Under the lock. */
static void call_begin(struct client_call *call, sc_client *client, const char *method)
{
    *call = (struct client_call){.client = client};
    msgpack_sbuffer_init(&call->out);
    msgpack_unpacked_init(&call->unpacked);
    msgpack_packer_init(&call->packer, &call->out, msgpack_sbuffer_write);
    (void)msgpack_pack_array(&call->packer, 4);
    (void)msgpack_pack_uint8(&call->packer, SC_WIRE_REQUEST);
    (void)msgpack_pack_uint64(&call->packer, ++client->next_id);
    sc_pack_name(&call->packer, method);
    (void)msgpack_pack_array(&call->packer, 1);
}

void sc_call_begin(struct client_call *call, sc_client *client, const char *method)
{
    (void)pthread_mutex_lock(&client->lock);
    call_begin(call, client, method);
}

int sc_call_file(struct client_call *call)
{
    sc_client *client = call->client;
    return client->fd_taken < client->fd_count ? client->fds[client->fd_taken++] : -1;
}

static void drop_files(sc_client *client)
{
    while (client->fd_taken < client->fd_count) (void)close(client->fds[client->fd_taken++]);
    client->fd_taken = client->fd_count = 0;
}

static void call_end(struct client_call *call)
{
    drop_files(call->client);
    msgpack_sbuffer_destroy(&call->out);
    msgpack_unpacked_destroy(&call->unpacked);
}

void sc_call_end(struct client_call *call)
{
    call_end(call);
    (void)pthread_mutex_unlock(&call->client->lock);
}

sc_status sc_call_wrong(struct client_call *call, const char *what)
{
    return broken(call->client,
        SC_FAULT(SC_ERR_CLOSED, "the service's answer is not one of this protocol: %s", what));
}

bool client_status(const msgpack_object *object, sc_status *out)
{
    if (object->type == MSGPACK_OBJECT_POSITIVE_INTEGER && object->via.u64 == 0) {
        *out = SC_OK;
        return true;
    }
    if (object->type != MSGPACK_OBJECT_NEGATIVE_INTEGER || object->via.i64 < -1000) return false;
    *out = (sc_status)object->via.i64;
    return true;
}

/* [code, name, text] as this thread's failure. */
static sc_status remote(struct client_call *call, const msgpack_object *error)
{
    sc_status status;
    const msgpack_object_array *items = &error->via.array;
    if (error->type != MSGPACK_OBJECT_ARRAY || items->size < 3 ||
        !client_status(&items->ptr[0], &status) || status == SC_OK ||
        items->ptr[2].type != MSGPACK_OBJECT_STR) {
        return sc_call_wrong(call, "its error");
    }
    return SC_FAULT(status, "%.*s", (int)(items->ptr[2].via.str.size & 0xffff),
        items->ptr[2].via.str.ptr);
}

/* One whole message, from the beginning of `in`. */
static sc_status receive_whole(sc_client *client, uint64_t deadline_ns)
{
    struct sc_frame frame;
    sc_frame_begin(&frame, ANSWER_BYTES_MAX);
    for (;;) {
        enum sc_frame_state state = sc_frame_scan(&frame, client->in, client->in_count);
        if (state == SC_FRAME_WHOLE && frame.at == client->in_count) return SC_OK;
        if (state != SC_FRAME_MORE) {
            return SC_FAULT(SC_ERR_CLOSED, "the service's answer: %s",
                state == SC_FRAME_WHOLE ? "more than one" : sc_frame_text(state));
        }
        SC_PASS(sc_client_receive(client, deadline_ns));
    }
}

static sc_status receive_answer(struct client_call *call, uint64_t deadline_ns)
{
    sc_client *client = call->client;
    struct sc_message message;
    bool id_known;
    size_t at = 0;
    client->in_count = 0;
    SC_PASS(broken(client, receive_whole(client, deadline_ns)));
    if (msgpack_unpack_next(&call->unpacked, (const char *)client->in, client->in_count, &at) !=
        MSGPACK_UNPACK_SUCCESS) {
        return sc_call_wrong(call, "it cannot be decoded");
    }
    if (sc_message_read(&call->unpacked.data, &message, &id_known) != SC_OK ||
        message.kind != SC_WIRE_RESPONSE) {
        return sc_call_wrong(call, "no response");
    }
    /* Id 0: the service refuses the connection, or what it got. */
    if (message.id != client->next_id && !(message.id == 0 && message.error)) {
        return sc_call_wrong(call, "the id of another request");
    }
    if (message.error) {
        sc_status status = remote(call, message.error);
        if (message.id == 0) (void)broken(client, status);
        return status;
    }
    call->result = message.result;
    return SC_OK;
}

sc_status sc_call_run(struct client_call *call)
{
    sc_client *client = call->client;
    if (client->broken.status != SC_OK) return sc_fault_take(&client->broken);
    if (client->info.frame_bytes > 0 && call->out.size > client->info.frame_bytes) {
        return SC_FAULT(SC_ERR_LIMIT, "a request of %zu bytes, the service takes %llu",
            call->out.size, (unsigned long long)client->info.frame_bytes);
    }
    uint64_t deadline_ns = sc_clock_now_ns() + client->timeout_ms * UINT64_C(1000000);
    sc_status status = sc_client_send(client->fd, call->out.data, call->out.size, deadline_ns);
    if (status != SC_OK) {
        /* It may have said why before it closed. */
        sc_error_info sent = *sc_fault_last();
        status = receive_answer(call, deadline_ns);
        if (status == SC_OK || status == SC_ERR_CLOSED) status = sc_fault_take(&sent);
        (void)broken(client, status);
        return status;
    }
    return receive_answer(call, deadline_ns);
}

/* ---- open and close ---- */

static void copy_text(const msgpack_object *object, char *text, size_t bytes)
{
    if (!object || object->type != MSGPACK_OBJECT_STR) return;
    size_t count = object->via.str.size < bytes - 1 ? object->via.str.size : bytes - 1;
    memcpy(text, object->via.str.ptr, count);
    text[count] = '\0';
}

static sc_status read_hello(const msgpack_object *result, sc_client_info *info)
{
    struct sc_map map, limits;
    struct sc_bytes fingerprint = {NULL, 0};
    SC_PASS(sc_map_begin(&map, result));
    copy_text(sc_map_find(&map, "server"), info->server, sizeof info->server);
    copy_text(sc_map_find(&map, "model"), info->model, sizeof info->model);
    SC_PASS(sc_map_bin(&map, "fingerprint", true, &fingerprint));
    if (fingerprint.count != sizeof info->fingerprint) {
        return SC_FAULT(SC_ERR_INVALID, "fingerprint");
    }
    memcpy(&info->fingerprint, fingerprint.data, sizeof info->fingerprint);
    SC_PASS(sc_map_bool(&map, "files", &info->files));
    SC_PASS(sc_map_u64(&map, "state_bytes", true, UINT64_MAX, &info->state_bytes));
    SC_PASS(sc_map_u64(&map, "file_bytes", true, SIZE_MAX / 2, &info->file_bytes));
    SC_PASS(sc_map_u32(&map, "page_tokens", true, UINT32_MAX, &info->page_tokens));
    SC_PASS(sc_map_u32(&map, "grid", true, UINT32_MAX, &info->grid));
    SC_PASS(sc_map_begin(&limits, sc_map_find(&map, "limits")));
    SC_PASS(sc_map_u64(&limits, "frame_bytes", true, UINT64_MAX, &info->frame_bytes));
    if (info->frame_bytes < FRAME_BYTES_MIN) return SC_FAULT(SC_ERR_INVALID, "frame_bytes");
    SC_PASS(sc_map_u32(&limits, "key_tokens", true, UINT32_MAX, &info->key_tokens));
    SC_PASS(sc_map_u32(&limits, "keys", true, UINT32_MAX, &info->keys));
    SC_PASS(sc_map_u32(&limits, "leases", true, UINT32_MAX, &info->leases));
    return sc_map_u32(&limits, "writes", true, UINT32_MAX, &info->writes);
}

/* Under the lock. */
static sc_status hello(sc_client *client, sc_client_info *info)
{
    struct client_call call;
    call_begin(&call, client, "hello");
    (void)msgpack_pack_map(&call.packer, 1u + (client->token != NULL) +
        (client->tenant != NULL) + client->has_fingerprint);
    sc_pack_u64(&call.packer, "version", SC_WIRE_VERSION);
    if (client->token) sc_pack_str(&call.packer, "token", client->token);
    if (client->tenant) sc_pack_str(&call.packer, "tenant", client->tenant);
    if (client->has_fingerprint) {
        sc_pack_bin(&call.packer, "fingerprint", &client->fingerprint, sizeof(sc_fingerprint));
    }
    sc_status status = sc_call_run(&call);
    if (status == SC_OK && read_hello(call.result, info) != SC_OK) {
        status = sc_call_wrong(&call, sc_fault_last()->text);
    }
    call_end(&call);
    return status;
}

static sc_status copy_option(const char *text, char **out)
{
    if (!text) return SC_OK;
    *out = strdup(text);
    return *out ? SC_OK : SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
}

static sc_status copy_options(sc_client *client, const sc_client_options *options)
{
    SC_PASS(copy_option(options->address, &client->address));
    SC_PASS(copy_option(options->token, &client->token));
    SC_PASS(copy_option(options->tenant, &client->tenant));
    client->has_fingerprint = options->fingerprint != NULL;
    if (options->fingerprint) client->fingerprint = *options->fingerprint;
    return SC_OK;
}

sc_status sc_client_open(const sc_client_options *options, sc_client **client_out)
{
    if (!options || !client_out || options->struct_size != sizeof *options || !options->address) {
        return SC_FAULT(SC_ERR_INVALID, "options with struct_size and address, and where the "
            "client goes, are needed");
    }
    sc_client *client = calloc(1, sizeof *client);
    if (!client) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
    client->fd = -1;
    client->timeout_ms = options->timeout_ms > 0 ? options->timeout_ms : TIMEOUT_MS;
    if (pthread_mutex_init(&client->lock, NULL) != 0) {
        free(client);
        return SC_FAULT(SC_ERR_NO_MEMORY, "no mutex");
    }
    sc_status status = copy_options(client, options);
    if (status == SC_OK) {
        status = sc_client_connect(client->address, client->timeout_ms, &client->fd);
    }
    if (status == SC_OK) status = hello(client, &client->info);
    if (status != SC_OK) {
        sc_client_close(client);
        return status;
    }
    *client_out = client;
    return SC_OK;
}

/* Under the lock. What was mapped stays: its bytes are of files that nobody changes. */
static sc_status connect_again(sc_client *client)
{
    sc_client_info info = {.struct_size = 0};
    if (client->fd >= 0) (void)close(client->fd);
    client->fd = -1;
    client->broken.status = SC_OK;
    sc_status status = sc_client_connect(client->address, client->timeout_ms, &client->fd);
    if (status == SC_OK) status = hello(client, &info);
    if (status == SC_OK && (info.file_bytes != client->info.file_bytes ||
        memcmp(&info.fingerprint, &client->info.fingerprint, sizeof info.fingerprint) != 0)) {
        status = SC_FAULT(SC_ERR_MISMATCH, "the service has another model now, %.40s: open a new "
            "client", info.model);
    }
    if (status == SC_OK) {
        client->info = info;
        return SC_OK;
    }
    if (client->fd >= 0) (void)close(client->fd);
    client->fd = -1;
    client->broken = *sc_fault_last();
    client->broken.status = SC_ERR_CLOSED; /* what calls say until it succeeds */
    return status;
}

sc_status sc_client_reconnect(sc_client *client, uint32_t *lost_out)
{
    if (!client) return SC_FAULT(SC_ERR_INVALID, "a client is needed");
    (void)pthread_mutex_lock(&client->lock);
    sc_status status = connect_again(client);
    if (lost_out && status == SC_OK) *lost_out = client->map_count;
    (void)pthread_mutex_unlock(&client->lock);
    return status;
}

void sc_client_close(sc_client *client)
{
    if (!client) return;
    if (client->fd >= 0) (void)close(client->fd);
    for (uint32_t i = 0; i < client->map_count; i++) {
        const struct client_map *map = &client->maps[i];
        if (map->copy) {
            free(map->data);
        } else if (map->data) {
            (void)munmap(map->data, map->bytes);
        }
    }
    drop_files(client);
    (void)pthread_mutex_destroy(&client->lock);
    free(client->address);
    free(client->token);
    free(client->tenant);
    free(client->maps);
    free(client->in);
    free(client);
}

sc_status sc_client_info_get(const sc_client *client, sc_client_info *info_out)
{
    if (!client || !info_out || info_out->struct_size < sizeof(size_t)) {
        return SC_FAULT(SC_ERR_INVALID, "a client, and a struct with struct_size, are needed");
    }
    size_t size = info_out->struct_size;
    sc_client_info info = client->info;
    info.struct_size = size;
    if (size > sizeof info) {
        return SC_FAULT(SC_ERR_INVALID, "struct_size %zu, this version takes up to %zu", size,
            sizeof info);
    }
    memcpy(info_out, &info, size);
    return SC_OK;
}

/* ---- any method ---- */

sc_status sc_client_call(sc_client *client, const char *method, const void *params,
    size_t params_bytes, void **result_out, size_t *result_bytes_out)
{
    if (!client || !method || !result_out || !result_bytes_out || (!params && params_bytes > 0)) {
        return SC_FAULT(SC_ERR_INVALID, "client, method and where the result goes are needed");
    }
    if (strcmp(method, "acquire") == 0 || strcmp(method, "write_begin") == 0 ||
        strcmp(method, "hello") == 0) {
        return SC_FAULT(SC_ERR_UNSUPPORTED, "%s has a call of its own", method);
    }
    struct client_call call;
    msgpack_sbuffer result;
    struct sc_frame frame;
    sc_frame_begin(&frame, params_bytes);
    if (params_bytes > 0 && (sc_frame_scan(&frame, params, params_bytes) != SC_FRAME_WHOLE ||
        frame.at != params_bytes)) {
        return SC_FAULT(SC_ERR_INVALID, "params: one map in MessagePack is expected");
    }
    sc_call_begin(&call, client, method);
    if (params_bytes > 0) {
        (void)msgpack_sbuffer_write(&call.out, params, params_bytes);
    } else {
        (void)msgpack_pack_map(&call.packer, 0);
    }
    sc_status status = sc_call_run(&call);
    if (status == SC_OK) {
        msgpack_packer packer;
        msgpack_sbuffer_init(&result);
        msgpack_packer_init(&packer, &result, msgpack_sbuffer_write);
        if (msgpack_pack_object(&packer, *call.result) != 0) {
            msgpack_sbuffer_destroy(&result);
            status = SC_FAULT(SC_ERR_NO_MEMORY, "no memory for the result");
        } else {
            *result_bytes_out = result.size;
            *result_out = msgpack_sbuffer_release(&result);
        }
    }
    sc_call_end(&call);
    return status;
}

void sc_client_free(void *result)
{
    free(result);
}
