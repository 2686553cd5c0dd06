/* SPDX-License-Identifier: Apache-2.0 */
/* What operators look at, and what they evict: tree, explain, pins, evict.
 *
 * A prefix is a key, a tenant, or nothing (everything). All of a tenant is what carries its mark:
 * at token 0, and behind each common prompt. */
#include <string.h>

#include "server.h"
#include "statecache/inspect.h"

enum { ROWS_MAX = 4096, ROWS_DEFAULT = 256, TOKENS_DEFAULT = 8, TOKENS_MAX = 64, NAMES_MAX = 4096 };

/* ---- prefixes ---- */

/* What a call is about: `has_key`, or all of a tenant, or (no name) everything. */
struct about {
    bool has_key;
    const char *tenant;
    size_t tenant_bytes;
};

static sc_status read_about(struct sd_call *call, struct about *about)
{
    struct sc_bytes tenant = {NULL, 0};
    uint32_t count = 0;
    *about = (struct about){.has_key = sc_map_find(&call->params, "key") != NULL};
    SC_PASS(sc_map_str(&call->params, "tenant", false, &tenant));
    if (tenant.data && (about->has_key || tenant.count == 0 || tenant.count >= SD_NAME_BYTES)) {
        return SC_FAULT(SC_ERR_INVALID, "tenant: a name of 1 to %d bytes, without a key (which may "
            "have one of its own)", SD_NAME_BYTES - 1);
    }
    about->tenant = tenant.data;
    about->tenant_bytes = tenant.count;
    return about->has_key ? sd_keys_read(call, false, 1, &count) : SC_OK;
}

/* A key with its tenant's mark, also where the key ends with the common prompt. */
static sc_status key_prefix(struct sd_call *call, sc_key *prefix_out)
{
    const struct sc_wire_key *key = &call->server->keys[0];
    const char *name;
    size_t bytes;
    uint32_t common;
    SC_PASS(sd_tenant_of(call, key, &name, &bytes));
    SC_PASS(sd_key_make(call, key, prefix_out, &common));
    if (bytes > 0 && common == key->token_count) {
        prefix_out->marks = call->server->marks_made;
        prefix_out->mark_count = sd_tenant_mark(name, bytes, common, key->marks, key->mark_count,
            call->server->marks_made);
    }
    return SC_OK;
}

typedef sc_status (*prefix_fn)(void *ctx, struct sd_call *call, const sc_key *prefix);

/* All of a tenant, or everything, in one namespace. */
static sc_status each_in_space(struct sd_call *call, const struct about *about, sc_namespace ns,
    prefix_fn fn, void *ctx)
{
    const struct sd_tenants *tenants = &call->server->tenants;
    sc_key key = {.ns = ns};
    if (!about->tenant) return fn(ctx, call, &key);
    for (uint32_t i = 0; i <= tenants->common_count; i++) {
        static const struct sd_common none;
        const struct sd_common *common = i > 0 ? &tenants->common[i - 1] : &none;
        SC_PASS(sd_scratch(call->server, 1, common->mark_count + 1, 1));
        key.tokens = common->tokens;
        key.token_count = common->token_count;
        key.marks = call->server->marks;
        key.mark_count = sd_tenant_mark(about->tenant, about->tenant_bytes, common->token_count,
            common->marks, common->mark_count, call->server->marks);
        SC_PASS(fn(ctx, call, &key));
    }
    return SC_OK;
}

/* The first failure ends it. */
static sc_status each_prefix(struct sd_call *call, const struct about *about, prefix_fn fn,
    void *ctx)
{
    const struct sd_store *store = &call->server->store;
    sc_key key;
    if (about->has_key) {
        SC_PASS(key_prefix(call, &key));
        return fn(ctx, call, &key);
    }
    for (uint32_t i = 0; i < store->space_count; i++) {
        SC_PASS(each_in_space(call, about, store->spaces[i].ns, fn, ctx));
    }
    return SC_OK;
}

/* ---- evict ---- */

static sc_status evict_prefix(void *ctx, struct sd_call *call, const sc_key *prefix)
{
    sc_evicted *sum = ctx, evicted;
    SC_PASS(sd_library(sc_cache_evict_prefix(call->server->store.cache, prefix, &evicted)));
    sum->states += evicted.states;
    sum->copies += evicted.copies;
    sum->held += evicted.held;
    return SC_OK;
}

static sc_status evict(struct sd_call *call, sc_evicted *sum)
{
    struct sd_store *store = &call->server->store;
    struct about about;
    uint32_t states = 0;
    bool all = false, by_count = sc_map_find(&call->params, "states") != NULL;
    SC_PASS(sc_map_u32(&call->params, "states", false, UINT32_MAX, &states));
    SC_PASS(sc_map_bool(&call->params, "all", &all));
    SC_PASS(read_about(call, &about));
    SC_PASS(sc_map_done(&call->params));
    if (by_count + all + about.has_key + (about.tenant != NULL) != 1) {
        return SC_FAULT(SC_ERR_INVALID, "one of states, key, tenant and all is wanted");
    }
    if (!by_count) return each_prefix(call, &about, evict_prefix, sum);
    sc_room got;
    SC_PASS(sd_library(sc_cache_evict(store->cache, 0, states, &got)));
    sum->states = got.slots_free;
    return SC_OK;
}

void sd_evict(struct sd_call *call)
{
    struct sd_server *server = call->server;
    sc_evicted sum = {0, 0, 0};
    sc_status status = evict(call, &sum);
    sd_store_sweep(&server->store);
    sd_server_changed(server);
    if (status != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_map(packer, 3);
    sc_pack_u64(packer, "states", sum.states);
    sc_pack_u64(packer, "copies", sum.copies);
    sc_pack_u64(packer, "held", sum.held);
    sd_reply_end(call, NULL, 0);
}

/* ---- tree ---- */

struct rows {
    msgpack_sbuffer buffer;
    msgpack_packer packer;
    uint32_t count, count_max, depth_max, tokens_max;
    bool more;
};

static void pack_marks(msgpack_packer *packer, const sc_mark *marks, uint32_t count)
{
    (void)msgpack_pack_array(packer, count);
    for (uint32_t i = 0; i < count; i++) {
        (void)msgpack_pack_array(packer, 2);
        (void)msgpack_pack_uint32(packer, marks[i].at);
        (void)msgpack_pack_bin(packer, sizeof marks[i].id);
        (void)msgpack_pack_bin_body(packer, marks[i].id, sizeof marks[i].id);
    }
}

static bool pack_row(void *ctx, const sc_tree_row *row)
{
    struct rows *rows = ctx;
    msgpack_packer *packer = &rows->packer;
    uint32_t shown = row->end - row->start, marks = row->mark_count;
    if (shown > rows->tokens_max) shown = rows->tokens_max;
    if (marks > rows->tokens_max + 1) marks = rows->tokens_max + 1;
    (void)msgpack_pack_array(packer, 8);
    (void)msgpack_pack_uint32(packer, row->depth);
    (void)msgpack_pack_uint32(packer, row->start);
    (void)msgpack_pack_uint32(packer, row->end);
    (void)msgpack_pack_uint32(packer, row->child_count);
    (void)msgpack_pack_uint32(packer, row->locks);
    (void)msgpack_pack_uint32(packer, row->has_state ? 1 : row->evicted ? 2 : 0);
    (void)msgpack_pack_bin(packer, shown * sizeof *row->tokens);
    (void)msgpack_pack_bin_body(packer, row->tokens, shown * sizeof *row->tokens);
    pack_marks(packer, row->marks, marks);
    rows->count++;
    return true;
}

static sc_status tree_of(void *ctx, struct sd_call *call, const sc_key *prefix)
{
    struct rows *rows = ctx;
    bool more = false;
    if (rows->count == rows->count_max) {
        rows->more = true;
        return SC_OK;
    }
    SC_PASS(sd_library(sc_cache_tree(call->server->store.cache, prefix, rows->depth_max,
        rows->count_max - rows->count, pack_row, rows, &more)));
    rows->more = rows->more || more;
    return SC_OK;
}

static sc_status read_tree(struct sd_call *call, struct rows *rows, struct about *about)
{
    SC_PASS(sc_map_u32(&call->params, "rows", false, ROWS_MAX, &rows->count_max));
    SC_PASS(sc_map_u32(&call->params, "depth", false, UINT32_MAX, &rows->depth_max));
    SC_PASS(sc_map_u32(&call->params, "tokens", false, TOKENS_MAX, &rows->tokens_max));
    SC_PASS(read_about(call, about));
    return sc_map_done(&call->params);
}

void sd_tree(struct sd_call *call)
{
    struct rows rows = {.count_max = ROWS_DEFAULT, .tokens_max = TOKENS_DEFAULT};
    struct about about;
    msgpack_sbuffer_init(&rows.buffer);
    msgpack_packer_init(&rows.packer, &rows.buffer, msgpack_sbuffer_write);
    sc_status status = read_tree(call, &rows, &about);
    if (status == SC_OK) status = each_prefix(call, &about, tree_of, &rows);
    if (status == SC_OK) {
        msgpack_packer *packer = sd_reply_begin(call);
        (void)msgpack_pack_map(packer, 2);
        sc_pack_bool(packer, "more", rows.more);
        sc_pack_name(packer, "rows");
        (void)msgpack_pack_array(packer, rows.count);
        if (rows.buffer.size > 0) {
            (void)msgpack_sbuffer_write(call->buffer, rows.buffer.data, rows.buffer.size);
        }
        sd_reply_end(call, NULL, 0);
    } else {
        sd_reply_fault(call);
    }
    msgpack_sbuffer_destroy(&rows.buffer);
}

/* ---- explain ---- */

/* The tenant whose mark this is, of those that hold something or have a limit; "": not known. */
static const char *whose(const struct sd_tenants *tenants, const sc_mark *mark)
{
    uint32_t tried = 0;
    for (uint32_t i = 0; i < SD_TENANT_BUCKETS; i++) {
        for (const struct sd_tenant *tenant = tenants->buckets[i]; tenant; tenant = tenant->next) {
            sc_mark own[1];
            if (++tried > NAMES_MAX) return "";
            (void)sd_tenant_mark(tenant->name, strlen(tenant->name), mark->at, NULL, 0, own);
            if (memcmp(own[0].id, mark->id, sizeof mark->id) == 0) return tenant->name;
        }
    }
    return "";
}

static void pack_mark(msgpack_packer *packer, const char *name, bool there, const sc_mark *mark)
{
    sc_pack_name(packer, name);
    if (!there) {
        (void)msgpack_pack_nil(packer);
        return;
    }
    (void)msgpack_pack_bin(packer, sizeof mark->id);
    (void)msgpack_pack_bin_body(packer, mark->id, sizeof mark->id);
}

static void pack_lens(msgpack_packer *packer, const char *name, const sc_answer *answer)
{
    sc_pack_name(packer, name);
    (void)msgpack_pack_array(packer, SC_TIER_COUNT);
    for (uint32_t i = 0; i < SC_TIER_COUNT; i++) {
        (void)msgpack_pack_uint32(packer, answer->state_len[i]);
    }
}

static void pack_explanation(struct sd_call *call, const sc_explanation *why, uint32_t common,
    uint32_t token_count)
{
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_map(packer, 16);
    sc_pack_u64(packer, "status", (uint64_t)(why->answer.status == SC_OK ? 0 : 1));
    sc_pack_u64(packer, "reason", (uint64_t)why->answer.reason);
    sc_pack_str(packer, "text", sc_reason_text(why->answer.reason));
    pack_lens(packer, "state_len", &why->answer);
    sc_pack_u64(packer, "branch_len", why->answer.branch_len);
    sc_pack_u64(packer, "pending_len", why->answer.pending_len);
    sc_pack_u64(packer, "match_len", why->match_len);
    sc_pack_u64(packer, "differs", (uint64_t)why->differs);
    sc_pack_name(packer, "token_here");
    (void)msgpack_pack_int32(packer, why->token_here);
    sc_pack_name(packer, "token_there");
    (void)msgpack_pack_int32(packer, why->token_there);
    pack_mark(packer, "mark_here", why->mark_here, &why->here);
    pack_mark(packer, "mark_there", why->mark_there, &why->there);
    sc_pack_str(packer, "tenant_there",
        why->mark_there ? whose(&call->server->tenants, &why->there) : "");
    sc_pack_u64(packer, "beyond_len", why->beyond_len);
    sc_pack_u64(packer, "evicted_len", why->evicted_len);
    /* Where the tenant's mark stands; token_count: nowhere. */
    sc_pack_u64(packer, "common_len", common < token_count ? common : token_count);
    sd_reply_end(call, NULL, 0);
}

void sd_explain(struct sd_call *call)
{
    struct sd_server *server = call->server;
    sc_explanation why = {.struct_size = sizeof why};
    uint32_t count = 0, common = 0;
    sc_key key;
    sc_status status = sd_keys_read(call, false, 1, &count);
    if (status == SC_OK) status = sc_map_done(&call->params);
    if (status == SC_OK) status = sd_key_make(call, &server->keys[0], &key, &common);
    if (status == SC_OK) {
        status = sd_library(sc_cache_explain(server->store.cache, &key, &why));
    }
    if (status != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    pack_explanation(call, &why, common, key.token_count);
}

/* ---- pins ---- */

void sd_pins(struct sd_call *call)
{
    const struct sd_server *server = call->server;
    uint64_t now_ns = sd_now_ns();
    if (sc_map_done(&call->params) != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_array(packer, server->pin_count);
    for (uint32_t i = 0; i < server->hold_end; i++) {
        const struct sd_hold *hold = &server->holds[i];
        if (hold->kind != SD_HOLD_PIN) continue;
        uint64_t left = hold->until_ns > now_ns ? (hold->until_ns - now_ns) / 1000000000 + 1 : 0;
        (void)msgpack_pack_array(packer, 5);
        (void)msgpack_pack_uint64(packer, sd_hold_id(hold));
        (void)msgpack_pack_uint32(packer, hold->len);
        (void)msgpack_pack_uint64(packer, left);
        sc_pack_name(packer, hold->owner ? hold->owner->name : "");
        if (hold->conn) (void)msgpack_pack_false(packer);
        else (void)msgpack_pack_true(packer);
    }
    sd_reply_end(call, NULL, 0);
}
