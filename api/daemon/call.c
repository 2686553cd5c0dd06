/* SPDX-License-Identifier: Apache-2.0 */
/* Calls: from a whole message to a method, and the way back. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server.h"

/* ---- answers ---- */

msgpack_packer *sd_reply_begin(struct sd_call *call)
{
    msgpack_sbuffer *buffer = call->buffer;
    msgpack_sbuffer_clear(buffer);
    msgpack_packer_init(&call->packer, buffer, msgpack_sbuffer_write);
    (void)msgpack_pack_array(&call->packer, 4);
    (void)msgpack_pack_uint8(&call->packer, SC_WIRE_RESPONSE);
    (void)msgpack_pack_uint64(&call->packer, call->id);
    (void)msgpack_pack_nil(&call->packer);
    return &call->packer;
}

static void send_buffer(struct sd_conn *conn, msgpack_sbuffer *buffer, const int *fds,
    uint32_t fd_count)
{
    size_t count = buffer->size;
    char *bytes = count > 0 ? malloc(count) : NULL;
    if (!bytes) {
        sd_conn_close(conn, "no memory");
        return;
    }
    memcpy(bytes, buffer->data, count);
    sd_conn_send(conn, bytes, count, fds, fd_count);
}

void sd_reply_end(struct sd_call *call, const int *fds, uint32_t fd_count)
{
    sd_metrics_call(call, SC_OK);
    if (!call->silent && !call->conn->closing) send_buffer(call->conn, call->buffer, fds, fd_count);
}

static void pack_fault(msgpack_sbuffer *buffer, uint64_t id)
{
    const sc_error_info *fault = sc_fault_last();
    msgpack_packer packer;
    msgpack_sbuffer_clear(buffer);
    msgpack_packer_init(&packer, buffer, msgpack_sbuffer_write);
    (void)msgpack_pack_array(&packer, 4);
    (void)msgpack_pack_uint8(&packer, SC_WIRE_RESPONSE);
    (void)msgpack_pack_uint64(&packer, id);
    (void)msgpack_pack_array(&packer, 3);
    (void)msgpack_pack_int64(&packer, fault->status);
    sc_pack_name(&packer, sc_status_name(fault->status));
    sc_pack_name(&packer, fault->text);
    (void)msgpack_pack_nil(&packer);
}

void sd_reply_fault(struct sd_call *call)
{
    sc_status status = sc_fault_last()->status;
    sd_metrics_call(call, status);
    call->server->count.errors++;
    call->server->count.again += status == SC_ERR_AGAIN || status == SC_ERR_NO_SLOT;
    if (call->silent || call->conn->closing) return;
    pack_fault(call->buffer, call->id);
    send_buffer(call->conn, call->buffer, NULL, 0);
}

void sd_refuse(struct sd_conn *conn, uint64_t id)
{
    msgpack_sbuffer buffer;
    msgpack_sbuffer_init(&buffer);
    pack_fault(&buffer, id);
    send_buffer(conn, &buffer, NULL, 0);
    msgpack_sbuffer_destroy(&buffer);
    sd_conn_finish(conn);
}

struct sd_call *sd_call_keep(const struct sd_call *call)
{
    struct sd_call *kept = malloc(sizeof *kept);
    if (!kept) return NULL;
    *kept = *call;
    kept->kept = true;
    kept->params = (struct sc_map){NULL, 0}; /* the message is gone by then */
    kept->conn->calls++;
    return kept;
}

void sd_call_end(struct sd_call *call)
{
    struct sd_conn *conn = call->conn;
    conn->calls--;
    free(call);
    sd_conn_resume(conn);
    sd_conn_release(conn);
}

/* ---- keys ---- */

sc_status sd_scratch(struct sd_server *server, size_t tokens, size_t marks, size_t keys)
{
    if (tokens > server->token_cap) {
        int32_t *grown = realloc(server->tokens, tokens * sizeof *grown);
        if (!grown) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
        server->tokens = grown;
        server->token_cap = tokens;
    }
    if (marks > server->mark_cap) {
        sc_mark *grown = realloc(server->marks, marks * sizeof *grown);
        if (!grown) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
        server->marks = grown;
        server->mark_cap = marks;
    }
    if (keys > server->key_cap) {
        struct sc_wire_key *grown = realloc(server->keys, keys * sizeof *grown);
        if (!grown) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
        server->keys = grown;
        server->key_cap = keys;
    }
    return SC_OK;
}

sc_status sd_keys_read(struct sd_call *call, bool many, uint32_t key_max, uint32_t *count_out)
{
    struct sd_server *server = call->server;
    uint32_t token_max = (uint32_t)server->config->key_tokens;
    const msgpack_object_array *array = NULL;
    const msgpack_object *first = NULL;
    size_t tokens = 0, marks = 0;
    if (many) {
        SC_PASS(sc_map_array(&call->params, "keys", true, &array));
    } else {
        first = sc_map_find(&call->params, "key");
        if (!first) return SC_FAULT(SC_ERR_INVALID, "member 'key' is missing");
    }
    uint32_t count = many ? array->size : 1;
    const msgpack_object *objects = many ? array->ptr : first;
    if (count == 0 || count > key_max) {
        return SC_FAULT(SC_ERR_LIMIT, "keys: 1 to %u of them, not %u", key_max, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t more_tokens, more_marks;
        sc_wire_key_room(&objects[i], &more_tokens, &more_marks);
        tokens += more_tokens;
        marks += more_marks + 1; /* one for the tenant's, behind those of the key */
    }
    /* Two areas of marks: as they came, and with the tenant's among them. */
    SC_PASS(sd_scratch(server, tokens + 1, 2 * marks, count));
    server->marks_made = server->marks + marks;
    int32_t *token = server->tokens;
    sc_mark *mark = server->marks;
    for (uint32_t i = 0; i < count; i++) {
        struct sc_wire_key *key = &server->keys[i];
        uint32_t mark_room = (uint32_t)(server->marks + marks - mark);
        SC_PASS(sc_wire_key_read(&objects[i], token, token_max, mark, mark_room, key));
        token += key->token_count;
        mark += key->mark_count + 1;
    }
    *count_out = count;
    return SC_OK;
}

sc_status sd_tenant_of(const struct sd_call *call, const struct sc_wire_key *key,
    const char **name_out, size_t *bytes_out)
{
    const struct sd_conn *conn = call->conn;
    *name_out = conn->tenant;
    *bytes_out = strlen(conn->tenant);
    if (!key->tenant) return SC_OK;
    if (key->tenant_bytes >= SD_NAME_BYTES || memchr(key->tenant, 0, key->tenant_bytes)) {
        return SC_FAULT(SC_ERR_INVALID, "tenant: a name has 1 to %d bytes, none of them 0",
            SD_NAME_BYTES - 1);
    }
    bool same = key->tenant_bytes == *bytes_out &&
        memcmp(key->tenant, conn->tenant, *bytes_out) == 0;
    if (conn->bound && !same) {
        return SC_FAULT(SC_ERR_DENIED, "this client speaks for tenant '%s' alone", conn->tenant);
    }
    *name_out = key->tenant;
    *bytes_out = key->tenant_bytes;
    return SC_OK;
}

sc_status sd_lease_of(struct sd_call *call, const struct sc_wire_key *key,
    struct sd_tenant **owner_out)
{
    const char *name;
    size_t bytes;
    *owner_out = NULL;
    SC_PASS(sd_tenant_of(call, key, &name, &bytes));
    return sd_tenant_lease(&call->server->tenants, name, bytes, owner_out);
}

sc_status sd_key_make(struct sd_call *call, const struct sc_wire_key *key, sc_key *key_out,
    uint32_t *common_out)
{
    struct sd_server *server = call->server;
    const char *tenant;
    size_t tenant_bytes;
    *key_out = (sc_key){.tokens = key->tokens, .token_count = key->token_count,
        .marks = key->marks, .mark_count = key->mark_count, .len_max = key->len_max};
    *common_out = key->token_count;
    SC_PASS(sd_tenant_of(call, key, &tenant, &tenant_bytes));
    SC_PASS(sd_store_space(&server->store, key->adapter_id, key->adapter_generation,
        &key_out->ns));
    if (tenant_bytes == 0) return SC_OK;
    uint32_t at = sd_common_len(&server->tenants, key->tokens, key->token_count, key->marks,
        key->mark_count);
    *common_out = at;
    if (at == key->token_count) return SC_OK; /* all of it is common: there is nothing to mark */
    key_out->marks = server->marks_made;
    key_out->mark_count = sd_tenant_mark(tenant, tenant_bytes, at, key->marks, key->mark_count,
        server->marks_made);
    server->marks_made += key->mark_count + 1;
    return SC_OK;
}

/* ---- methods ---- */

struct method {
    const char *name;
    sd_method_fn fn;
    bool trusted; /* not for who speaks for one tenant alone */
};
static const struct method methods[] = {
    {"lookup", sd_lookup, false},
    {"acquire", sd_acquire, false},
    {"release", sd_release, false},
    {"write_begin", sd_write_begin, false},
    {"write_data", sd_write_data, false},
    {"write_commit", sd_write_commit, false},
    {"write_abort", sd_write_abort, false},
    {"read", sd_read, false},
    {"pin", sd_pin, false},
    {"echo", sd_echo, false},
    {"schema", sd_schema, false},
    {"hello", sd_hello, false},
    {"quota", sd_quota, false},
    {"status", sd_status, true},
    {"evict", sd_evict, true},
    {"common", sd_common, true},
    {"namespace_drop", sd_namespace_drop, true},
    {"verify", sd_verify, true},
    {"tree", sd_tree, true},
    {"explain", sd_explain, true},
    {"pins", sd_pins, true},
};

enum { METHOD_COUNT = sizeof methods / sizeof methods[0] };
static_assert((int)METHOD_COUNT < (int)SD_METHODS_MAX, "sd_metrics has a row for each, and one");

const char *sd_method_name(uint32_t place)
{
    if (place < METHOD_COUNT) return methods[place].name;
    return place == METHOD_COUNT ? "unknown" : NULL;
}

static const struct method *find_method(const struct sc_message *message)
{
    for (size_t i = 0; i < METHOD_COUNT; i++) {
        if (strlen(methods[i].name) == message->method_bytes &&
            memcmp(methods[i].name, message->method, message->method_bytes) == 0) {
            return &methods[i];
        }
    }
    return NULL;
}

static void call_method(struct sd_call *call, const struct sc_message *message)
{
    const struct method *method = find_method(message);
    call->method = method ? (uint32_t)(method - methods) : METHOD_COUNT;
    if (!method) {
        (void)SC_FAULT(SC_ERR_NOT_FOUND, "there is no method '%.*s'",
            (int)(message->method_bytes < 64 ? message->method_bytes : 64), message->method);
        sd_reply_fault(call);
    } else if (!call->conn->greeted && method->fn != sd_hello) {
        (void)SC_FAULT(SC_ERR_STATE, "hello comes first");
        sd_metrics_call(call, SC_ERR_STATE);
        call->server->count.errors++;
        sd_refuse(call->conn, call->id);
    } else if (method->trusted && call->conn->bound) {
        (void)SC_FAULT(SC_ERR_DENIED, "%s is not for a client that speaks for one tenant alone",
            method->name);
        sd_reply_fault(call);
    } else if (sc_map_begin(&call->params, message->params) != SC_OK) {
        sd_reply_fault(call);
    } else {
        method->fn(call);
    }
}

static void dispatch(struct sd_conn *conn, const msgpack_object *object)
{
    struct sd_call call = {.server = conn->server, .conn = conn, .buffer = &conn->server->answer,
        .began_ns = sd_now_ns()};
    struct sc_message message;
    bool id_known = false;
    sc_status status = sc_message_read(object, &message, &id_known);
    call.id = message.id;
    if (status == SC_OK && message.kind == SC_WIRE_RESPONSE) {
        status = SC_FAULT(SC_ERR_INVALID, "a response, and nothing was asked");
    }
    if (status != SC_OK) {
        conn->server->count.closed_bad++;
        sd_refuse(conn, call.id);
        return;
    }
    call.silent = message.kind == SC_WIRE_NOTIFICATION;
    conn->server->count.requests++;
    call_method(&call, &message);
}

void sd_dispatch(struct sd_conn *conn, const uint8_t *bytes, size_t count)
{
    msgpack_unpacked unpacked;
    size_t at = 0;
    msgpack_unpacked_init(&unpacked);
    msgpack_unpack_return got = msgpack_unpack_next(&unpacked, (const char *)bytes, count, &at);
    if (got == MSGPACK_UNPACK_SUCCESS && at == count) {
        dispatch(conn, &unpacked.data);
    } else {
        /* The scanner has found one whole object: only memory can be missing. */
        conn->server->count.closed_bad++;
        (void)SC_FAULT(got == MSGPACK_UNPACK_NOMEM_ERROR ? SC_ERR_NO_MEMORY : SC_ERR_INVALID,
            "the message cannot be decoded");
        sd_refuse(conn, 0);
    }
    msgpack_unpacked_destroy(&unpacked);
}
