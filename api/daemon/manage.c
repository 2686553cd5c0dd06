/* SPDX-License-Identifier: Apache-2.0 */
/* What operators and tools ask: evict, quotas, common prompts, status, verify. */
#include <string.h>

#include "server.h"

static void reply_map(struct sd_call *call, const char *name, uint64_t value)
{
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_map(packer, 1);
    sc_pack_u64(packer, name, value);
    sd_reply_end(call, NULL, 0);
}

void sd_evict(struct sd_call *call)
{
    struct sd_server *server = call->server;
    uint32_t states = 0;
    sc_room got;
    if (sc_map_u32(&call->params, "states", true, UINT32_MAX, &states) != SC_OK ||
        sc_map_done(&call->params) != SC_OK ||
        sd_library(sc_cache_evict(server->store.cache, 0, states, &got)) != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    sd_store_sweep(&server->store);
    sd_server_changed(server);
    reply_map(call, "states", got.slots_free);
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

/* ---- status ---- */

static void pack_list(msgpack_packer *packer, const char *name, const uint64_t *values,
    uint32_t count)
{
    sc_pack_name(packer, name);
    (void)msgpack_pack_array(packer, count);
    for (uint32_t i = 0; i < count; i++) (void)msgpack_pack_uint64(packer, values[i]);
}

static void pack_service(msgpack_packer *packer, const struct sd_server *server)
{
    const struct sd_counters *count = &server->count;
    const struct { const char *name; uint64_t value; } rows[] = {
        {"clients", server->conn_count}, {"leases_open", server->hold_count},
        {"writes_open", server->write_count}, {"pins_open", server->pin_count},
        {"workers_busy", server->works}, {"connections", count->connections},
        {"refused", count->refused}, {"closed_bad", count->closed_bad},
        {"closed_late", count->closed_late}, {"requests", count->requests},
        {"errors", count->errors}, {"again", count->again}, {"lookups", count->lookups},
        {"keys", count->keys}, {"acquired", count->acquired}, {"missed", count->missed},
        {"asked_tokens", count->asked_tokens}, {"hit_tokens", count->acquired_tokens},
        {"files_made", count->files_made}, {"writes", count->writes},
        {"written", count->written}, {"write_exists", count->write_exists},
        {"write_refused", count->write_refused}, {"write_given_up", count->write_given_up},
        {"bytes_in", count->bytes_in}, {"bytes_out", count->bytes_out}};
    const uint32_t row_count = sizeof rows / sizeof rows[0];
    sc_pack_name(packer, "service");
    (void)msgpack_pack_map(packer, row_count);
    for (uint32_t i = 0; i < row_count; i++) sc_pack_u64(packer, rows[i].name, rows[i].value);
}

static void pack_slots(msgpack_packer *packer, const struct sd_store *store)
{
    sc_room room;
    memset(&room, 0, sizeof room);
    (void)sc_cache_room(store->cache, &room);
    sc_pack_name(packer, "slots");
    (void)msgpack_pack_map(packer, 7);
    sc_pack_u64(packer, "count", store->slot_count);
    sc_pack_u64(packer, "bytes_each", store->stride);
    sc_pack_u64(packer, "free", room.slots_free);
    sc_pack_u64(packer, "evictable", room.slots_evictable);
    sc_pack_u64(packer, "held", room.slots_held);
    sc_pack_u64(packer, "draining", room.slots_draining);
    sc_pack_u64(packer, "files", store->image_count);
}

static void pack_cache(msgpack_packer *packer, const struct sd_store *store)
{
    sc_cache_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    (void)sc_cache_stats_get(store->cache, &stats);
    const struct { const char *name; uint64_t value; } rows[] = {
        {"leases_alive", stats.leases_alive}, {"snapshots_alive", stats.snapshots_alive},
        {"nodes", stats.nodes}, {"tokens_cached", stats.tokens_cached},
        {"published", stats.saves_published}, {"restored", stats.restored},
        {"tier_lost", stats.tier_lost}, {"tier_loaded", stats.tier_loaded},
        {"tier_records", stats.tier_records}, {"transfers_alive", stats.transfers_alive},
        {"transfers_failed", stats.transfers_failed}, {"policy_bytes", stats.policy_bytes}};
    const uint32_t row_count = sizeof rows / sizeof rows[0];
    sc_pack_name(packer, "cache");
    (void)msgpack_pack_map(packer, row_count + 6);
    for (uint32_t i = 0; i < row_count; i++) sc_pack_u64(packer, rows[i].name, rows[i].value);
    pack_list(packer, "evicted", stats.evicted, SC_EVICT_COUNT);
    pack_list(packer, "skipped", stats.saves_skipped, SC_SKIP_COUNT);
    pack_list(packer, "tier_stored", stats.tier_stored, SC_TIER_COUNT);
    pack_list(packer, "tier_dropped", stats.tier_dropped, SC_TIER_COUNT);
    pack_list(packer, "tier_refused", stats.tier_refused, SC_TIER_COUNT);
    pack_list(packer, "tier_bytes", stats.tier_bytes, SC_TIER_COUNT);
}

static void pack_tenants(msgpack_packer *packer, const struct sd_tenants *tenants)
{
    sc_pack_name(packer, "tenants");
    (void)msgpack_pack_array(packer, tenants->count);
    for (uint32_t i = 0; i < SD_TENANT_BUCKETS; i++) {
        const struct sd_tenant *tenant = tenants->buckets[i];
        for (; tenant; tenant = tenant->next) pack_tenant(packer, tenant);
    }
}

void sd_status(struct sd_call *call)
{
    struct sd_server *server = call->server;
    if (sc_map_done(&call->params) != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    sd_store_sweep(&server->store);
    sd_tenants_sweep(&server->tenants);
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_map(packer, 9);
    sc_pack_str(packer, "server", sc_version());
    sc_pack_str(packer, "model", server->config->model);
    sc_pack_u64(packer, "uptime_s", (sd_now_ns() - server->began_ns) / 1000000000);
    sc_pack_bool(packer, "stopping", server->stopping);
    pack_service(packer, server);
    pack_slots(packer, &server->store);
    pack_cache(packer, &server->store);
    sc_pack_u64(packer, "common_prompts", server->tenants.common_count);
    pack_tenants(packer, &server->tenants);
    sd_reply_end(call, NULL, 0);
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
