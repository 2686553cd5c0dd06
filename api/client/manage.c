/* SPDX-License-Identifier: Apache-2.0 */
/* Pins, eviction, common prompts, quotas, status. */
#include <stdlib.h>
#include <string.h>

#include "client_internal.h"

sc_status sc_client_pin(sc_client *client, const sc_client_key *key, uint32_t seconds, bool keep,
    sc_client_state *state_out)
{
    struct client_call call;
    const msgpack_object_str *text = NULL;
    sc_status each = SC_OK;
    if (!client || !state_out) return SC_FAULT(SC_ERR_INVALID, "client and state are needed");
    SC_PASS(client_check_keys(key, 1));
    *state_out = (sc_client_state){.lease = 0};
    sc_call_begin(&call, client, "pin");
    (void)msgpack_pack_map(&call.packer, 3);
    sc_pack_name(&call.packer, "key");
    client_pack_key(&call.packer, key);
    sc_pack_u64(&call.packer, "seconds", seconds);
    sc_pack_bool(&call.packer, "keep", keep);
    sc_status status = sc_call_run(&call);
    if (status == SC_OK && (call.result->type != MSGPACK_OBJECT_ARRAY ||
        call.result->via.array.size != 1 ||
        !client_read_item(call.result->via.array.ptr, key, state_out, &each, &text))) {
        *state_out = (sc_client_state){.lease = 0};
        status = sc_call_wrong(&call, "the item of a pin");
    }
    if (status == SC_OK && each != SC_OK) {
        status = SC_FAULT(each, "%.*s", (int)(text->size & 0xffff), text->ptr);
    }
    sc_call_end(&call);
    return status;
}

sc_status sc_client_evict(sc_client *client, uint32_t states, uint32_t *got_out)
{
    struct client_call call;
    struct sc_map map;
    uint32_t got = 0;
    if (!client) return SC_FAULT(SC_ERR_INVALID, "a client is needed");
    sc_call_begin(&call, client, "evict");
    (void)msgpack_pack_map(&call.packer, 1);
    sc_pack_u64(&call.packer, "states", states);
    sc_status status = sc_call_run(&call);
    if (status == SC_OK && (sc_map_begin(&map, call.result) != SC_OK ||
        sc_map_u32(&map, "states", true, UINT32_MAX, &got) != SC_OK)) {
        status = sc_call_wrong(&call, "the result of an eviction");
    }
    if (status == SC_OK && got_out) *got_out = got;
    sc_call_end(&call);
    return status;
}

sc_status sc_client_common(sc_client *client, const sc_client_key *key, bool drop)
{
    struct client_call call;
    if (!client) return SC_FAULT(SC_ERR_INVALID, "a client is needed");
    SC_PASS(client_check_keys(key, 1));
    sc_call_begin(&call, client, "common");
    (void)msgpack_pack_map(&call.packer, 2);
    sc_pack_name(&call.packer, "key");
    client_pack_key(&call.packer, key);
    sc_pack_bool(&call.packer, "drop", drop);
    sc_status status = sc_call_run(&call);
    sc_call_end(&call);
    return status;
}

/* `bytes_max` NULL: it stays as it is. */
static sc_status quota(sc_client *client, const char *tenant, const uint64_t *bytes_max,
    sc_client_quota *quota_out)
{
    struct client_call call;
    struct sc_map map;
    sc_call_begin(&call, client, "quota");
    (void)msgpack_pack_map(&call.packer, 0u + (tenant != NULL) + (bytes_max != NULL));
    if (tenant) sc_pack_str(&call.packer, "tenant", tenant);
    if (bytes_max) sc_pack_u64(&call.packer, "bytes", *bytes_max);
    sc_status status = sc_call_run(&call);
    if (status == SC_OK && (sc_map_begin(&map, call.result) != SC_OK ||
        sc_map_u64(&map, "bytes", true, UINT64_MAX, &quota_out->bytes) != SC_OK ||
        sc_map_u64(&map, "bytes_max", true, UINT64_MAX, &quota_out->bytes_max) != SC_OK ||
        sc_map_u64(&map, "refused", true, UINT64_MAX, &quota_out->refused) != SC_OK)) {
        status = sc_call_wrong(&call, "a quota");
    }
    sc_call_end(&call);
    return status;
}

sc_status sc_client_quota_get(sc_client *client, const char *tenant, sc_client_quota *quota_out)
{
    if (!client || !quota_out) return SC_FAULT(SC_ERR_INVALID, "client and quota are needed");
    return quota(client, tenant, NULL, quota_out);
}

sc_status sc_client_quota_set(sc_client *client, const char *tenant, uint64_t bytes_max)
{
    sc_client_quota now;
    if (!client || bytes_max == UINT64_MAX) {
        return SC_FAULT(SC_ERR_INVALID, "a client, and a number of bytes, are needed");
    }
    return quota(client, tenant, &bytes_max, &now);
}

sc_status sc_client_status(sc_client *client, char **json_out)
{
    struct client_call call;
    struct sc_map map;
    struct sc_bytes text = {NULL, 0};
    if (!client || !json_out) {
        return SC_FAULT(SC_ERR_INVALID, "a client, and where the text goes, are needed");
    }
    sc_call_begin(&call, client, "status");
    (void)msgpack_pack_map(&call.packer, 1);
    sc_pack_bool(&call.packer, "json", true);
    sc_status status = sc_call_run(&call);
    if (status == SC_OK && (sc_map_begin(&map, call.result) != SC_OK ||
        sc_map_str(&map, "json", true, &text) != SC_OK || memchr(text.data, 0, text.count))) {
        status = sc_call_wrong(&call, "a status");
    }
    char *json = status == SC_OK ? malloc((size_t)text.count + 1) : NULL;
    if (status == SC_OK && !json) status = SC_FAULT(SC_ERR_NO_MEMORY, "no memory for the status");
    if (json) {
        memcpy(json, text.data, text.count);
        json[text.count] = '\0';
        *json_out = json;
    }
    sc_call_end(&call);
    return status;
}
