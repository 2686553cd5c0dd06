/* SPDX-License-Identifier: Apache-2.0 */
/* Counting, and the picture of the service: metrics.h. */
#include "metrics.h"

#include <jansson.h>
#include <string.h>

#include "server.h"

/* So many transfers of the disk that failed one after the other are no accident. */
enum { DISK_FAILS = 3 };

const char *const sd_evict_labels[SC_EVICT_COUNT] = {[SC_EVICT_FOR_SLOT] = "for_slot",
    [SC_EVICT_ASKED] = "asked", [SC_EVICT_WITH_KV] = "with_kv",
    [SC_EVICT_SUPERSEDED] = "superseded", [SC_EVICT_PATH_CAP] = "path_cap",
    [SC_EVICT_HISTORY] = "history", [SC_EVICT_CLOSED] = "closed"};
const char *const sd_skip_labels[SC_SKIP_COUNT] = {[SC_SKIP_NO_SLOT] = "no_slot",
    [SC_SKIP_EXISTS] = "exists", [SC_SKIP_HISTORY] = "history", [SC_SKIP_LIMIT] = "limit",
    [SC_SKIP_ABORTED] = "aborted", [SC_SKIP_NO_TAIL] = "no_tail", [SC_SKIP_REJECTED] = "rejected",
    [SC_SKIP_SUPERSEDED] = "superseded", [SC_SKIP_OVERRUN] = "overrun",
    [SC_SKIP_POLICY] = "policy"};
const char *const sd_tier_labels[SC_TIER_COUNT] = {"device", "host", "disk", "remote"};

void sd_reason_label(uint32_t reason, char *label, size_t label_bytes)
{
    static const char *const names[] = {
#define NAME(name, value, text) [value] = #name,
        SC_REASON_LIST(NAME)
#undef NAME
    };
    const char *name = reason < SC_REASON_COUNT ? names[reason] + strlen("SC_REASON_") : "UNKNOWN";
    size_t at = 0;
    for (; name[at] != '\0' && at + 1 < label_bytes; at++) {
        char c = name[at];
        label[at] = (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    }
    label[at] = '\0';
}

void sd_name_label(const char *name, char *label)
{
    static const char digits[] = "0123456789abcdef";
    json_t *whole = json_string(name);
    bool plain = whole && !strchr(name, '\\');
    json_decref(whole);
    for (const unsigned char *c = (const unsigned char *)name; *c != '\0'; c++) {
        if (plain || (*c < 0x80 && *c != '\\')) {
            *label++ = (char)*c;
        } else {
            *label++ = '\\';
            *label++ = 'x';
            *label++ = digits[*c >> 4];
            *label++ = digits[*c & 15];
        }
    }
    *label = '\0';
}

/* ---- counting ---- */

static uint32_t bucket_of(uint64_t ns)
{
    uint32_t bucket = 0;
    while (bucket < SD_BUCKETS - 1 && ns >= SD_BUCKET_NS(bucket)) bucket++;
    return bucket;
}

static uint32_t index_of(sc_status status)
{
    return status <= 0 && status > -SD_STATUSES ? (uint32_t)-status : SD_STATUSES - 1;
}

void sd_metrics_call(const struct sd_call *call, sc_status status)
{
    struct sd_metrics *metrics = &call->server->metrics;
    struct sd_times *times = &metrics->times[call->method];
    uint64_t ns = sd_now_ns() - call->began_ns;
    metrics->answered[call->method][index_of(status)]++;
    times->count[bucket_of(ns)]++;
    times->sum_ns += ns;
}

void sd_metrics_item(struct sd_server *server, const struct sd_item_count *item)
{
    struct sd_metrics *metrics = &server->metrics;
    uint32_t why = (uint32_t)item->reason < SC_REASON_COUNT ? (uint32_t)item->reason : 0;
    metrics->states_asked++;
    metrics->states_again += item->again;
    *(item->again ? &metrics->tokens_again : &metrics->tokens_asked) += item->asked;
    if (item->status != SC_OK) {
        metrics->failed[index_of(item->status)]++;
    } else if (item->len == 0) {
        metrics->missed[why]++;
    } else {
        metrics->states_hit++;
        *(item->again ? &metrics->tokens_again_hit : &metrics->tokens_hit) += item->len;
        metrics->shorter[why]++;
    }
}

uint64_t sd_times_count(const struct sd_times *times)
{
    uint64_t all = 0;
    for (uint32_t b = 0; b < SD_BUCKETS; b++) all += times->count[b];
    return all;
}

uint64_t sd_times_share_ns(const struct sd_times *times, double share)
{
    uint64_t all = sd_times_count(times), below = 0;
    if (all == 0) return 0;
    for (uint32_t b = 0; b < SD_BUCKETS; b++) {
        below += times->count[b];
        if ((double)below >= share * (double)all) return SD_BUCKET_NS(b);
    }
    return SD_BUCKET_NS(SD_BUCKETS - 1);
}

/* ---- the picture ---- */

static void copy_text(char *out, size_t out_bytes, const char *text)
{
    size_t count = strnlen(text, out_bytes - 1);
    memcpy(out, text, count);
    out[count] = '\0';
}

static void take_config(const struct sd_server *server, struct sd_picture *picture)
{
    const struct sd_config *config = server->config;
    copy_text(picture->model, sizeof picture->model, config->model);
    copy_text(picture->revision, sizeof picture->revision, config->revision);
    copy_text(picture->dtype, sizeof picture->dtype, config->dtype);
    copy_text(picture->socket, sizeof picture->socket, config->socket);
    copy_text(picture->tcp, sizeof picture->tcp, server->tcp_name);
    copy_text(picture->http, sizeof picture->http, sd_http_name(server));
    picture->tier_bytes_max[SC_TIER_DEVICE] = server->store.slot_count * server->store.stride;
    picture->tier_bytes_max[SC_TIER_HOST] = config->host_bytes;
    picture->tier_bytes_max[SC_TIER_DISK] = config->disk_bytes;
    picture->tier_bytes_max[SC_TIER_REMOTE] = 0;
    picture->day_bytes_max = config->disk_day_bytes;
    picture->has_disk = config->disk_bytes > 0;
}

static void take_store(const struct sd_store *store, struct sd_picture *picture)
{
    memset(&picture->cache, 0, sizeof picture->cache);
    memset(&picture->pool, 0, sizeof picture->pool);
    memset(&picture->room, 0, sizeof picture->room);
    picture->cache.struct_size = sizeof picture->cache;
    (void)sc_cache_stats_get(store->cache, &picture->cache);
    (void)sc_pool_info_get(store->pool, &picture->pool);
    (void)sc_cache_room(store->cache, &picture->room);
    picture->fingerprint = store->fingerprint;
    picture->slot_count = store->slot_count;
    picture->image_count = store->image_count;
    picture->space_count = store->space_count;
    picture->grid = store->grid;
    picture->page_tokens = store->page_tokens;
    picture->stride = store->stride;
    picture->state_bytes = store->state_bytes;
}

static void take_tenant(struct sd_picture *picture, const struct sd_tenant *tenant)
{
    struct sd_picture_tenant *shown = &picture->tenants[picture->tenants_shown++];
    *shown = (struct sd_picture_tenant){.bytes = tenant->bytes, .bytes_max = tenant->bytes_max,
        .refused = tenant->refused, .leases = tenant->leases, .labelled = tenant->labelled};
    copy_text(shown->name, sizeof shown->name, tenant->name);
}

static void take_tenants(const struct sd_tenants *tenants, struct sd_picture *picture)
{
    picture->common_count = tenants->common_count;
    picture->tenant_count = tenants->count;
    picture->tenants_bytes = tenants->bytes;
    picture->tenants_shown = 0;
    for (uint32_t i = 0; i < tenants->label_count; i++) {
        const char *name = tenants->labels[i];
        const struct sd_tenant *tenant = sd_tenant_find(tenants, name, strlen(name));
        if (tenant) take_tenant(picture, tenant);
    }
    for (uint32_t i = 0; i < SD_TENANT_BUCKETS; i++) {
        const struct sd_tenant *tenant = tenants->buckets[i];
        for (; tenant && picture->tenants_shown < SD_PICTURE_TENANTS; tenant = tenant->next) {
            if (!tenant->labelled) take_tenant(picture, tenant);
        }
    }
}

static void take_conns(const struct sd_server *server, struct sd_picture *picture)
{
    uint64_t now_ms = uv_now(&server->loop);
    uint32_t count = 0;
    for (const struct sd_conn *conn = server->conns; conn && count < SD_PICTURE_CONNS;
        conn = conn->next) {
        struct sd_picture_conn *shown = &picture->conns[count++];
        *shown = (struct sd_picture_conn){.number = conn->number,
            .age_ms = now_ms - conn->opened_ms, .unsent_bytes = conn->out_bytes,
            .uid = conn->uid, .leases = conn->lease_count, .writes = conn->write_count,
            .calls = conn->calls, .local = conn->local, .greeted = conn->greeted,
            .bound = conn->bound};
        copy_text(shown->tenant, sizeof shown->tenant, conn->tenant);
    }
    picture->conns_shown = count;
}

void sd_picture_take(struct sd_server *server, struct sd_picture *picture)
{
    take_config(server, picture);
    take_store(&server->store, picture);
    take_tenants(&server->tenants, picture);
    take_conns(server, picture);
    picture->began_ns = server->began_ns;
    picture->now_ns = sd_now_ns();
    picture->stopping = server->stopping;
    picture->conn_count = server->conn_count;
    picture->hold_count = server->hold_count;
    picture->pin_count = server->pin_count;
    picture->write_count = server->write_count;
    picture->works = server->works;
    picture->count = server->count;
    picture->metrics = server->metrics;
    picture->has_events = server->events != NULL;
    sd_events_counts(server->events, &picture->events);
}

void sd_picture_tiers(struct sd_picture *picture, sc_tiers *tiers)
{
    const uint64_t day_ns = UINT64_C(86400) * 1000000000;
    memset(&picture->tiers, 0, sizeof picture->tiers);
    picture->tiers.struct_size = sizeof picture->tiers;
    if (!tiers) return;
    (void)sc_tiers_stats_get(tiers, &picture->tiers);
    if (picture->tiers.disk_day != picture->now_ns / day_ns) picture->tiers.disk_day_bytes = 0;
}

const char *sd_picture_problem(const struct sd_picture *picture, uint32_t index)
{
    const sc_tiers_stats *tiers = &picture->tiers;
    const struct { bool is; const char *text; } problems[] = {
        {picture->stopping, "stopping"},
        {tiers->disk_broken, "disk tier failed: its metadata cannot be written; restart"},
        {!tiers->disk_broken && tiers->io_failed_row[SC_TIER_DISK] >= DISK_FAILS,
            "disk tier failed: its last transfers were I/O errors"}};
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        if (problems[i].is && index-- == 0) return problems[i].text;
    }
    return NULL;
}
