/* SPDX-License-Identifier: Apache-2.0 */
/* What operators and tools ask: quotas, common prompts, verify. */
#include <string.h>

#include "server.h"

static void reply_map(struct sd_call *call, const char *name, uint64_t value)
{
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_map(packer, 1);
    sc_pack_u64(packer, name, value);
    sd_reply_end(call, NULL, 0);
}

static void pack_tenant(msgpack_packer *packer, const struct sd_tenant *tenant)
{
    (void)msgpack_pack_map(packer, 4);
    sc_pack_str(packer, "tenant", tenant->name);
    sc_pack_u64(packer, "bytes", tenant->bytes);
    sc_pack_u64(packer, "bytes_max", tenant->bytes_max);
    sc_pack_u64(packer, "refused", tenant->refused);
}

/* Which tenant, and for those who may, its new limit. */
void sd_quota(struct sd_call *call)
{
    struct sd_server *server = call->server;
    const struct sd_conn *conn = call->conn;
    struct sc_bytes name = {conn->tenant, (uint32_t)strlen(conn->tenant)};
    uint64_t bytes = UINT64_MAX;
    struct sd_tenant none = {.bytes_max = server->tenants.bytes_max};
    sc_status status = sc_map_str(&call->params, "tenant", false, &name);
    if (status == SC_OK) {
        status = sc_map_u64(&call->params, "bytes", false, UINT64_MAX - 1, &bytes);
    }
    if (status == SC_OK) status = sc_map_done(&call->params);
    if (status == SC_OK && (name.count == 0 || name.count >= SD_NAME_BYTES)) {
        status = SC_FAULT(SC_ERR_INVALID, "tenant: a name of 1 to %d bytes is expected",
            SD_NAME_BYTES - 1);
    }
    bool own = name.count == strlen(conn->tenant) &&
        memcmp(name.data, conn->tenant, name.count) == 0;
    if (status == SC_OK && conn->bound && (!own || bytes != UINT64_MAX)) {
        status = SC_FAULT(SC_ERR_DENIED, "a client that speaks for one tenant reads its own quota");
    }
    if (status == SC_OK && bytes != UINT64_MAX) {
        status = sd_tenant_set_limit(&server->tenants, name.data, name.count, bytes);
    }
    if (status != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    memcpy(none.name, name.data, name.count);
    sd_store_sweep(&server->store);
    const struct sd_tenant *tenant = sd_tenant_find(&server->tenants, name.data, name.count);
    pack_tenant(sd_reply_begin(call), tenant ? tenant : &none);
    sd_reply_end(call, NULL, 0);
}

void sd_common(struct sd_call *call)
{
    struct sd_server *server = call->server;
    const struct sc_wire_key *key;
    bool drop = false;
    uint32_t count = 0;
    sc_status status = sd_keys_read(call, false, 1, &count);
    if (status == SC_OK) status = sc_map_bool(&call->params, "drop", &drop);
    if (status == SC_OK) status = sc_map_done(&call->params);
    key = server->keys;
    if (status == SC_OK) {
        status = drop ?
            sd_common_drop(&server->tenants, key->tokens, key->token_count, key->marks,
                key->mark_count) :
            sd_common_add(&server->tenants, key->tokens, key->token_count, key->marks,
                key->mark_count);
    }
    if (status != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    reply_map(call, "prompts", server->tenants.common_count);
}

void sd_namespace_drop(struct sd_call *call)
{
    struct sd_server *server = call->server;
    uint64_t id = 0, generation = 0;
    if (sc_map_u64(&call->params, "id", true, UINT64_MAX, &id) != SC_OK ||
        sc_map_u64(&call->params, "generation", true, UINT64_MAX, &generation) != SC_OK ||
        sc_map_done(&call->params) != SC_OK ||
        sd_store_space_drop(&server->store, id, generation) != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    sd_store_sweep(&server->store);
    sd_server_changed(server);
    reply_map(call, "namespaces", server->store.space_count);
}

/* The account of everything: the library's own, and that each open lease of the cache is one of the
 * service's. */
void sd_verify(struct sd_call *call)
{
    struct sd_server *server = call->server;
    sc_cache_stats stats = {.struct_size = sizeof stats};
    sc_status status = sc_map_done(&call->params);
    sd_store_sweep(&server->store);
    if (status == SC_OK) status = sd_library(sc_cache_verify(server->store.cache));
    if (status == SC_OK) status = sd_library(sc_pool_audit(server->store.pool, true));
    if (status == SC_OK) status = sd_library(sc_cache_stats_get(server->store.cache, &stats));
    if (status == SC_OK && stats.leases_alive != server->hold_count) {
        status = SC_FAULT(SC_ERR_CORRUPT, "%llu leases of the cache, %u of the service",
            (unsigned long long)stats.leases_alive, server->hold_count);
    }
    if (status == SC_OK) status = sd_store_verify(&server->store);
    if (status != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    reply_map(call, "leases", server->hold_count);
}
