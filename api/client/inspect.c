/* SPDX-License-Identifier: Apache-2.0 */
/* What operators ask: what begins with a prefix, why a prompt misses, who has pinned what. */
#include <string.h>

#include "client_internal.h"

/* A prefix: a key; without tokens all of a tenant, or everything. */
static sc_status check_prefix(const sc_client_key *prefix)
{
    if (prefix && prefix->token_count == 0 && prefix->mark_count == 0 && prefix->flags == 0) {
        return SC_OK;
    }
    return client_check_keys(prefix, 1);
}

/* The member that says so. */
static void pack_prefix(msgpack_packer *packer, const sc_client_key *prefix, bool evicts)
{
    if (prefix->token_count > 0) {
        sc_pack_name(packer, "key");
        client_pack_key(packer, prefix);
    } else if (prefix->tenant) {
        sc_pack_str(packer, "tenant", prefix->tenant);
    } else if (evicts) {
        sc_pack_bool(packer, "all", true);
    } else {
        sc_pack_name(packer, "tenant");
        (void)msgpack_pack_nil(packer);
    }
}

sc_status sc_client_evict_prefix(sc_client *client, const sc_client_key *prefix,
    sc_evicted *evicted_out)
{
    struct client_call call;
    struct sc_map map;
    sc_evicted evicted = {0, 0, 0};
    if (!client || !evicted_out) return SC_FAULT(SC_ERR_INVALID, "client and evicted are needed");
    SC_PASS(check_prefix(prefix));
    sc_call_begin(&call, client, "evict");
    (void)msgpack_pack_map(&call.packer, 1);
    pack_prefix(&call.packer, prefix, true);
    sc_status status = sc_call_run(&call);
    if (status == SC_OK && (sc_map_begin(&map, call.result) != SC_OK ||
        sc_map_u64(&map, "states", true, UINT64_MAX, &evicted.states) != SC_OK ||
        sc_map_u64(&map, "copies", true, UINT64_MAX, &evicted.copies) != SC_OK ||
        sc_map_u64(&map, "held", true, UINT64_MAX, &evicted.held) != SC_OK)) {
        status = sc_call_wrong(&call, "the result of an eviction");
    }
    sc_call_end(&call);
    if (status == SC_OK) *evicted_out = evicted;
    return status;
}

/* ---- tree ---- */

enum { ROW_MARKS_MAX = 80 };

static bool read_marks(const msgpack_object *object, sc_mark *marks, uint32_t *count_out)
{
    if (object->type != MSGPACK_OBJECT_ARRAY || object->via.array.size > ROW_MARKS_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < object->via.array.size; i++) {
        const msgpack_object *pair = &object->via.array.ptr[i], *items = pair->via.array.ptr;
        if (pair->type != MSGPACK_OBJECT_ARRAY || pair->via.array.size != 2 ||
            !client_u32(&items[0], &marks[i].at) || items[1].type != MSGPACK_OBJECT_BIN ||
            items[1].via.bin.size != sizeof marks[i].id) {
            return false;
        }
        memcpy(marks[i].id, items[1].via.bin.ptr, sizeof marks[i].id);
    }
    *count_out = object->via.array.size;
    return true;
}

/* `tokens` has room for 64 of them. */
static bool read_row(const msgpack_object *object, sc_client_row *row, int32_t *tokens,
    sc_mark *marks)
{
    const msgpack_object *items = object->via.array.ptr;
    uint32_t state = 0;
    if (object->type != MSGPACK_OBJECT_ARRAY || object->via.array.size < 8 ||
        items[6].type != MSGPACK_OBJECT_BIN || items[6].via.bin.size > 64 * sizeof *tokens) {
        return false;
    }
    *row = (sc_client_row){.tokens = tokens, .marks = marks,
        .token_count = items[6].via.bin.size / (uint32_t)sizeof *tokens};
    memcpy(tokens, items[6].via.bin.ptr, items[6].via.bin.size);
    bool good = client_u32(&items[0], &row->depth) && client_u32(&items[1], &row->start) &&
        client_u32(&items[2], &row->end) && client_u32(&items[3], &row->child_count) &&
        client_u32(&items[4], &row->locks) && client_u32(&items[5], &state) &&
        read_marks(&items[7], marks, &row->mark_count);
    row->has_state = state == 1;
    row->evicted = state == 2;
    return good;
}

static sc_status read_rows(struct client_call *call,
    bool (*visit)(void *ctx, const sc_client_row *row), void *ctx, bool *more_out)
{
    const msgpack_object_array *rows = NULL;
    struct sc_map map;
    int32_t tokens[64];
    sc_mark marks[ROW_MARKS_MAX];
    if (sc_map_begin(&map, call->result) != SC_OK ||
        sc_map_bool(&map, "more", more_out) != SC_OK ||
        sc_map_array(&map, "rows", true, &rows) != SC_OK) {
        return sc_call_wrong(call, "a tree");
    }
    for (uint32_t i = 0; i < rows->size; i++) {
        sc_client_row row;
        if (!read_row(&rows->ptr[i], &row, tokens, marks)) return sc_call_wrong(call, "a row");
        if (visit(ctx, &row)) continue;
        *more_out = true;
        break;
    }
    return SC_OK;
}

sc_status sc_client_tree(sc_client *client, const sc_client_key *prefix, uint32_t depth_max,
    uint32_t row_max, bool (*visit)(void *ctx, const sc_client_row *row), void *ctx,
    bool *more_out)
{
    struct client_call call;
    bool more = false;
    if (!client || !visit || !more_out) {
        return SC_FAULT(SC_ERR_INVALID, "client, visit and more are needed");
    }
    SC_PASS(check_prefix(prefix));
    sc_call_begin(&call, client, "tree");
    (void)msgpack_pack_map(&call.packer, 3);
    pack_prefix(&call.packer, prefix, false);
    sc_pack_u64(&call.packer, "depth", depth_max);
    sc_pack_u64(&call.packer, "rows", row_max);
    sc_status status = sc_call_run(&call);
    if (status == SC_OK) status = read_rows(&call, visit, ctx, &more);
    sc_call_end(&call);
    if (status == SC_OK) *more_out = more;
    return status;
}

/* ---- explain ---- */

static sc_status read_mark(struct sc_map *map, const char *name, bool *there, sc_mark *mark)
{
    struct sc_bytes id = {NULL, 0};
    SC_PASS(sc_map_bin(map, name, false, &id));
    *there = id.data != NULL;
    if (!*there) return SC_OK;
    if (id.count != sizeof mark->id) return SC_FAULT(SC_ERR_INVALID, "%s", name);
    memcpy(mark->id, id.data, sizeof mark->id);
    return SC_OK;
}

/* A token; false: it is none. */
static bool read_token(struct sc_map *map, const char *name, int32_t *out)
{
    const msgpack_object *object = sc_map_find(map, name);
    bool above = object && object->type == MSGPACK_OBJECT_POSITIVE_INTEGER &&
        object->via.u64 <= INT32_MAX;
    bool below = object && object->type == MSGPACK_OBJECT_NEGATIVE_INTEGER &&
        object->via.i64 >= INT32_MIN;
    if (above || below) *out = (int32_t)object->via.i64;
    return above || below;
}

static sc_status read_why(const msgpack_object *result, sc_client_explanation *client_why)
{
    sc_explanation *why = &client_why->why;
    const msgpack_object_array *lens = NULL;
    struct sc_bytes tenant = {NULL, 0};
    struct sc_map map;
    uint32_t reason = 0, differs = 0;
    SC_PASS(sc_map_begin(&map, result));
    SC_PASS(sc_map_u32(&map, "reason", true, UINT32_MAX, &reason));
    SC_PASS(sc_map_array(&map, "state_len", true, &lens));
    SC_PASS(sc_map_u32(&map, "branch_len", true, UINT32_MAX, &why->answer.branch_len));
    SC_PASS(sc_map_u32(&map, "pending_len", true, UINT32_MAX, &why->answer.pending_len));
    SC_PASS(sc_map_u32(&map, "match_len", true, UINT32_MAX, &why->match_len));
    SC_PASS(sc_map_u32(&map, "differs", true, SC_DIFFERS_MARK, &differs));
    SC_PASS(read_mark(&map, "mark_here", &why->mark_here, &why->here));
    SC_PASS(read_mark(&map, "mark_there", &why->mark_there, &why->there));
    SC_PASS(sc_map_str(&map, "tenant_there", true, &tenant));
    SC_PASS(sc_map_u32(&map, "beyond_len", true, UINT32_MAX, &why->beyond_len));
    SC_PASS(sc_map_u32(&map, "evicted_len", true, UINT32_MAX, &why->evicted_len));
    SC_PASS(sc_map_u32(&map, "common_len", true, UINT32_MAX, &client_why->common_len));
    if (lens->size != SC_TIER_COUNT || !read_token(&map, "token_here", &why->token_here) ||
        !read_token(&map, "token_there", &why->token_there) ||
        tenant.count >= sizeof client_why->tenant_there) {
        return SC_FAULT(SC_ERR_INVALID, "state_len, tokens or tenant");
    }
    for (uint32_t i = 0; i < SC_TIER_COUNT; i++) {
        if (!client_u32(&lens->ptr[i], &why->answer.state_len[i])) {
            return SC_FAULT(SC_ERR_INVALID, "state_len");
        }
    }
    why->answer.reason = (sc_reason)reason;
    why->differs = (sc_differs)differs;
    why->here.at = why->there.at = why->match_len;
    if (tenant.count > 0) memcpy(client_why->tenant_there, tenant.data, tenant.count);
    return SC_OK;
}

sc_status sc_client_explain(sc_client *client, const sc_client_key *key,
    sc_client_explanation *explanation_out)
{
    struct client_call call;
    sc_client_explanation why = {.struct_size = sizeof why};
    if (!client || !explanation_out || explanation_out->struct_size != sizeof why) {
        return SC_FAULT(SC_ERR_INVALID, "a client, and a struct with struct_size, are needed");
    }
    SC_PASS(client_check_keys(key, 1));
    why.why.struct_size = sizeof why.why;
    sc_call_begin(&call, client, "explain");
    (void)msgpack_pack_map(&call.packer, 1);
    sc_pack_name(&call.packer, "key");
    client_pack_key(&call.packer, key);
    sc_status status = sc_call_run(&call);
    if (status == SC_OK && read_why(call.result, &why) != SC_OK) {
        status = sc_call_wrong(&call, sc_fault_last()->text);
    }
    sc_call_end(&call);
    if (status == SC_OK) *explanation_out = why;
    return status;
}

/* ---- pins ---- */

static bool read_pin(const msgpack_object *object, sc_client_pinned *pin)
{
    const msgpack_object *items = object->via.array.ptr;
    memset(pin, 0, sizeof *pin);
    if (object->type != MSGPACK_OBJECT_ARRAY || object->via.array.size < 5 ||
        items[3].type != MSGPACK_OBJECT_STR || items[3].via.str.size >= sizeof pin->tenant ||
        items[4].type != MSGPACK_OBJECT_BOOLEAN) {
        return false;
    }
    memcpy(pin->tenant, items[3].via.str.ptr, items[3].via.str.size);
    pin->kept = items[4].via.boolean;
    return client_u64(&items[0], UINT64_MAX, &pin->lease) && client_u32(&items[1], &pin->len) &&
        client_u64(&items[2], UINT64_MAX, &pin->seconds_left);
}

sc_status sc_client_pins(sc_client *client, sc_client_pinned *pins_out, uint32_t cap,
    uint32_t *count_out)
{
    struct client_call call;
    if (!client || !count_out || (!pins_out && cap > 0)) {
        return SC_FAULT(SC_ERR_INVALID, "client, pins and their count are needed");
    }
    sc_call_begin(&call, client, "pins");
    (void)msgpack_pack_map(&call.packer, 0);
    sc_status status = sc_call_run(&call);
    if (status == SC_OK && call.result->type != MSGPACK_OBJECT_ARRAY) {
        status = sc_call_wrong(&call, "pins");
    }
    const msgpack_object_array *pins = status == SC_OK ? &call.result->via.array : NULL;
    if (pins) *count_out = pins->size;
    if (pins && pins->size > cap) {
        status = SC_FAULT(SC_ERR_LIMIT, "%u pins, there is room for %u", pins->size, cap);
    }
    for (uint32_t i = 0; status == SC_OK && i < pins->size; i++) {
        if (!read_pin(&pins->ptr[i], &pins_out[i])) status = sc_call_wrong(&call, "a pin");
    }
    sc_call_end(&call);
    return status;
}
