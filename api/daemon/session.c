/* SPDX-License-Identifier: Apache-2.0 */
/* hello, schema, echo. */
#include <string.h>

#include "server.h"

/* Compares in a time that does not depend on where two tokens differ. */
static bool same_token(const char *token, const struct sc_bytes *given)
{
    size_t count = strlen(token);
    uint8_t differs = count != given->count;
    for (size_t i = 0; i < given->count; i++) {
        differs |= (uint8_t)token[count > 0 ? i % count : 0] ^ ((const uint8_t *)given->data)[i];
    }
    return count > 0 && differs == 0;
}

/* Who it is: by user id (local), by the service's token, or by that of a tenant. */
static sc_status authenticate(struct sd_conn *conn, const struct sc_bytes *token)
{
    const struct sd_config *config = conn->server->config;
    conn->bound = false;
    if (!token->data) {
        if (conn->local) return SC_OK;
        return SC_FAULT(SC_ERR_DENIED, "a token is needed over TCP");
    }
    if (same_token(config->token, token)) return SC_OK;
    for (uint32_t i = 0; i < config->tenant_count; i++) {
        const struct sd_tenant_config *tenant = &config->tenants[i];
        if (!same_token(tenant->token, token)) continue;
        conn->bound = true;
        memcpy(conn->tenant, tenant->name, sizeof conn->tenant);
        return SC_OK;
    }
    return SC_FAULT(SC_ERR_DENIED, "the token is wrong");
}

static sc_status read_hello(struct sd_call *call)
{
    struct sd_conn *conn = call->conn;
    struct sc_bytes token = {NULL, 0}, tenant = {NULL, 0}, fingerprint = {NULL, 0};
    uint64_t version = 0;
    if (conn->greeted) return SC_FAULT(SC_ERR_STATE, "hello was said already");
    SC_PASS(sc_map_u64(&call->params, "version", true, UINT64_MAX, &version));
    SC_PASS(sc_map_str(&call->params, "token", false, &token));
    SC_PASS(sc_map_str(&call->params, "tenant", false, &tenant));
    SC_PASS(sc_map_bin(&call->params, "fingerprint", false, &fingerprint));
    SC_PASS(sc_map_done(&call->params));
    SC_PASS(authenticate(conn, &token));
    if (version != SC_WIRE_VERSION) {
        return SC_FAULT(SC_ERR_UNSUPPORTED, "protocol %llu is asked for, this is %d",
            (unsigned long long)version, SC_WIRE_VERSION);
    }
    if (fingerprint.data && (fingerprint.count != sizeof(sc_fingerprint) ||
        memcmp(fingerprint.data, &call->server->store.fingerprint, fingerprint.count) != 0)) {
        return SC_FAULT(SC_ERR_MISMATCH, "these states are of another model: fingerprints differ");
    }
    if (!tenant.data) return SC_OK;
    struct sc_wire_key key = {.tenant = tenant.data, .tenant_bytes = tenant.count};
    const char *name;
    size_t bytes;
    SC_PASS(sd_tenant_of(call, &key, &name, &bytes));
    memset(conn->tenant, 0, sizeof conn->tenant);
    memcpy(conn->tenant, tenant.data, tenant.count);
    return SC_OK;
}

static void pack_limits(msgpack_packer *packer, const struct sd_config *config)
{
    sc_pack_name(packer, "limits");
    (void)msgpack_pack_map(packer, 6);
    sc_pack_u64(packer, "frame_bytes", config->frame_bytes);
    sc_pack_u64(packer, "key_tokens", config->key_tokens);
    sc_pack_u64(packer, "keys", SD_KEYS_MAX);
    sc_pack_u64(packer, "leases", config->client_leases);
    sc_pack_u64(packer, "writes", config->client_writes);
    sc_pack_u64(packer, "queue", config->queue);
}

void sd_hello(struct sd_call *call)
{
    struct sd_server *server = call->server;
    if (read_hello(call) != SC_OK) {
        sc_status status = sc_fault_last()->status;
        sd_metrics_call(call, status);
        server->count.errors++;
        server->count.refused += status == SC_ERR_DENIED;
        sd_log(SC_LOG_WARN, "client.refused", "client=%llu text=%s",
            (unsigned long long)call->conn->number, sc_fault_last()->text);
        sd_refuse(call->conn, call->id);
        return;
    }
    call->conn->greeted = true;
    sd_log(SC_LOG_DEBUG, "client.hello", "client=%llu uid=%d tenant=%s",
        (unsigned long long)call->conn->number, (int)call->conn->uid, call->conn->tenant);
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_map(packer, 11);
    sc_pack_u64(packer, "version", SC_WIRE_VERSION);
    sc_pack_str(packer, "server", sc_version());
    sc_pack_str(packer, "model", server->config->model);
    sc_pack_str(packer, "tenant", call->conn->tenant);
    sc_pack_bool(packer, "files", call->conn->local);
    sc_pack_bin(packer, "fingerprint", &server->store.fingerprint, sizeof(sc_fingerprint));
    sc_pack_u64(packer, "state_bytes", server->store.state_bytes);
    sc_pack_u64(packer, "file_bytes", server->store.stride);
    sc_pack_u64(packer, "page_tokens", server->store.page_tokens);
    sc_pack_u64(packer, "grid", server->store.grid);
    pack_limits(packer, server->config);
    sd_reply_end(call, NULL, 0);
}

static void pack_part(msgpack_packer *packer, const struct sd_store *store, uint32_t index)
{
    sc_layer_view view;
    sc_part part;
    if (sc_pool_part_view(store->pool, index, &view, &part) != SC_OK) {
        (void)msgpack_pack_nil(packer);
        return;
    }
    (void)msgpack_pack_map(packer, 7);
    sc_pack_u64(packer, "layer", part.layer);
    sc_pack_u64(packer, "kind", part.kind);
    sc_pack_u64(packer, "index", part.index);
    sc_pack_u64(packer, "dtype", view.dtype);
    sc_pack_name(packer, "dims");
    (void)msgpack_pack_array(packer, view.dim_count);
    for (uint32_t i = 0; i < view.dim_count; i++) (void)msgpack_pack_uint32(packer, view.dims[i]);
    sc_pack_u64(packer, "offset", store->parts[index].at);
    sc_pack_u64(packer, "bytes", view.bytes);
}

void sd_schema(struct sd_call *call)
{
    const struct sd_server *server = call->server;
    sc_pool_info info;
    if (sc_map_done(&call->params) != SC_OK ||
        sd_library(sc_pool_info_get(server->store.pool, &info)) != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_map(packer, 8);
    sc_pack_str(packer, "model", server->config->model);
    sc_pack_str(packer, "revision", server->config->revision);
    sc_pack_bin(packer, "fingerprint", &server->store.fingerprint, sizeof(sc_fingerprint));
    sc_pack_u64(packer, "tp_rank", info.shard.tp_rank);
    sc_pack_u64(packer, "tp_size", info.shard.tp_size);
    sc_pack_u64(packer, "state_bytes", server->store.state_bytes);
    sc_pack_u64(packer, "file_bytes", server->store.stride);
    sc_pack_name(packer, "parts");
    (void)msgpack_pack_array(packer, info.part_count);
    for (uint32_t i = 0; i < info.part_count; i++) pack_part(packer, &server->store, i);
    sd_reply_end(call, NULL, 0);
}

void sd_echo(struct sd_call *call)
{
    struct sc_bytes data = {NULL, 0};
    if (sc_map_bin(&call->params, "data", true, &data) != SC_OK ||
        sc_map_done(&call->params) != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_map(packer, 1);
    sc_pack_bin(packer, "data", data.data, data.count);
    sd_reply_end(call, NULL, 0);
}
