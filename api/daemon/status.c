/* SPDX-License-Identifier: Apache-2.0 */
/* The picture as a tree of JSON values: text for /v1/status and `statecachectl status`, MessagePack
 * for the method `status`. One tree, so that all say the same. Integers, text and booleans alone.
 * Without memory members are missing, and the text is NULL. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "metrics.h"
#include "server.h"

static void put(json_t *object, const char *name, uint64_t value)
{
    json_int_t number = value > INT64_MAX ? INT64_MAX : (json_int_t)value;
    (void)json_object_set_new(object, name, json_integer(number));
}

static void put_text(json_t *object, const char *name, const char *text)
{
    char label[4 * SD_PATH_BYTES + 1];
    json_t *plain = json_string(text);
    if (!plain) { /* no UTF-8 */
        sd_name_label(text, label);
        plain = json_string(label);
    }
    (void)json_object_set_new(object, name, plain);
}

static void put_bool(json_t *object, const char *name, bool value)
{
    (void)json_object_set_new(object, name, json_boolean(value));
}

static json_t *put_object(json_t *object, const char *name)
{
    json_t *made = json_object();
    (void)json_object_set_new(object, name, made);
    return made;
}

static json_t *put_array(json_t *object, const char *name)
{
    json_t *made = json_array();
    (void)json_object_set_new(object, name, made);
    return made;
}

static json_t *add_object(json_t *array)
{
    json_t *made = json_object();
    (void)json_array_append_new(array, made);
    return made;
}

static void put_list(json_t *object, const char *name, const uint64_t *values, uint32_t count)
{
    json_t *list = put_array(object, name);
    for (uint32_t i = 0; i < count; i++) {
        (void)json_array_append_new(list, json_integer((json_int_t)values[i]));
    }
}

struct row { const char *name; uint64_t value; };

static void put_rows(json_t *object, const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) put(object, rows[i].name, rows[i].value);
}
#define PUT_ROWS(object, rows) put_rows((object), (rows), sizeof(rows) / sizeof(rows)[0])

/* ---- parts ---- */

static void put_head(json_t *tree, const struct sd_picture *picture)
{
    char hex[2 * sizeof picture->fingerprint.bytes + 1] = "";
    const char *problem;
    for (size_t i = 0; i < sizeof picture->fingerprint.bytes; i++) {
        (void)snprintf(hex + 2 * i, 3, "%02x", picture->fingerprint.bytes[i]);
    }
    put_text(tree, "server", sc_version());
    put(tree, "protocol", SC_WIRE_VERSION);
    put_text(tree, "model", picture->model);
    put_text(tree, "revision", picture->revision);
    put_text(tree, "fingerprint", hex);
    put(tree, "started", picture->began_ns / 1000000000);
    put(tree, "uptime_s", (picture->now_ns - picture->began_ns) / 1000000000);
    put_bool(tree, "stopping", picture->stopping);
    json_t *problems = put_array(tree, "problems");
    for (uint32_t i = 0; (problem = sd_picture_problem(picture, i)); i++) {
        (void)json_array_append_new(problems, json_string(problem));
    }
    json_t *listen = put_object(tree, "listen");
    put_text(listen, "socket", picture->socket);
    put_text(listen, "tcp", picture->tcp);
    put_text(listen, "metrics", picture->http);
    json_t *shard = put_object(tree, "shard");
    const sc_shard *of = &picture->pool.shard;
    const struct row rows[] = {{"tp_rank", of->tp_rank}, {"tp_size", of->tp_size},
        {"layer_first", of->layer_first}, {"layer_count", of->layer_count},
        {"state_bytes", picture->state_bytes}, {"grid", picture->grid},
        {"page_tokens", picture->page_tokens}};
    PUT_ROWS(shard, rows);
}

static void put_service(json_t *tree, const struct sd_picture *picture)
{
    const struct sd_counters *count = &picture->count;
    const struct row rows[] = {
        {"clients", picture->conn_count}, {"leases_open", picture->hold_count},
        {"writes_open", picture->write_count}, {"pins_open", picture->pin_count},
        {"workers_busy", picture->works}, {"connections", count->connections},
        {"refused", count->refused}, {"closed_bad", count->closed_bad},
        {"closed_late", count->closed_late}, {"requests", count->requests},
        {"errors", count->errors}, {"again", count->again}, {"lookups", count->lookups},
        {"keys", count->keys}, {"acquired", count->acquired}, {"missed", count->missed},
        {"asked_tokens", count->asked_tokens}, {"hit_tokens", count->acquired_tokens},
        {"files_made", count->files_made}, {"writes", count->writes},
        {"written", count->written}, {"write_exists", count->write_exists},
        {"write_refused", count->write_refused}, {"write_given_up", count->write_given_up},
        {"bytes_in", count->bytes_in}, {"bytes_out", count->bytes_out}};
    json_t *service = put_object(tree, "service");
    PUT_ROWS(service, rows);
}

static void put_slots(json_t *tree, const struct sd_picture *picture)
{
    const uint32_t *owned = picture->pool.owner_count;
    const sc_room *room = &picture->room;
    const struct row rows[] = {
        {"count", picture->slot_count}, {"bytes_each", picture->stride},
        {"free", room->slots_free}, {"evictable", room->slots_evictable},
        {"held", room->slots_held}, {"draining", room->slots_draining},
        {"working", owned[SC_OWNER_WORKING]}, {"in_flight", owned[SC_OWNER_IN_FLIGHT]},
        {"leased", room->slots_held - owned[SC_OWNER_WORKING] - owned[SC_OWNER_IN_FLIGHT]},
        {"files", picture->image_count}};
    json_t *slots = put_object(tree, "slots");
    PUT_ROWS(slots, rows);
}

static void put_cache(json_t *tree, const sc_cache_stats *stats)
{
    const struct row rows[] = {
        {"leases_alive", stats->leases_alive}, {"snapshots_alive", stats->snapshots_alive},
        {"nodes", stats->nodes}, {"tokens_cached", stats->tokens_cached},
        {"published", stats->saves_published}, {"restored", stats->restored},
        {"tier_lost", stats->tier_lost}, {"tier_loaded", stats->tier_loaded},
        {"tier_records", stats->tier_records}, {"transfers_alive", stats->transfers_alive},
        {"transfers_failed", stats->transfers_failed}, {"policy_bytes", stats->policy_bytes}};
    json_t *cache = put_object(tree, "cache");
    PUT_ROWS(cache, rows);
    put_list(cache, "evicted", stats->evicted, SC_EVICT_COUNT);
    put_list(cache, "skipped", stats->saves_skipped, SC_SKIP_COUNT);
    put_list(cache, "tier_stored", stats->tier_stored, SC_TIER_COUNT);
    put_list(cache, "tier_dropped", stats->tier_dropped, SC_TIER_COUNT);
    put_list(cache, "tier_refused", stats->tier_refused, SC_TIER_COUNT);
    put_list(cache, "tier_bytes", stats->tier_bytes, SC_TIER_COUNT);
    json_t *causes = put_object(tree, "evictions");
    for (uint32_t i = 0; i < SC_EVICT_COUNT; i++) put(causes, sd_evict_labels[i],
        stats->evicted[i]);
}

static void put_reasons(json_t *object, const char *name, const uint64_t *counts)
{
    json_t *reasons = put_object(object, name);
    for (uint32_t r = 0; r < SC_REASON_COUNT; r++) {
        char label[32];
        sd_reason_label(r, label, sizeof label);
        if (counts[r] > 0) put(reasons, label, counts[r]);
    }
}

static void put_statuses(json_t *object, const char *name, const uint64_t *counts)
{
    json_t *statuses = put_object(object, name);
    for (int s = 1; s < SD_STATUSES; s++) {
        if (counts[s] > 0) put(statuses, sc_status_name((sc_status)-s), counts[s]);
    }
}

static void put_hits(json_t *tree, const struct sd_metrics *metrics)
{
    const struct row rows[] = {{"states_asked", metrics->states_asked},
        {"states_hit", metrics->states_hit}, {"tokens_asked", metrics->tokens_asked},
        {"tokens_hit", metrics->tokens_hit}, {"states_again", metrics->states_again},
        {"tokens_again", metrics->tokens_again},
        {"tokens_again_hit", metrics->tokens_again_hit}};
    json_t *hits = put_object(tree, "hits");
    PUT_ROWS(hits, rows);
    put_reasons(hits, "missed", metrics->missed);
    put_reasons(hits, "short", metrics->shorter);
    put_statuses(hits, "failed", metrics->failed);
}

static void put_requests(json_t *tree, const struct sd_metrics *metrics)
{
    const char *name;
    json_t *requests = put_object(tree, "requests");
    for (uint32_t m = 0; (name = sd_method_name(m)); m++) {
        const struct sd_times *times = &metrics->times[m];
        uint64_t count = sd_times_count(times);
        if (count == 0) continue;
        json_t *method = put_object(requests, name);
        put(method, "count", count);
        put(method, "mean_us", times->sum_ns / count / 1000);
        put(method, "p50_us_max", sd_times_share_ns(times, 0.5) / 1000);
        put(method, "p99_us_max", sd_times_share_ns(times, 0.99) / 1000);
        put_statuses(method, "errors", metrics->answered[m]);
    }
}

static void put_tiers(json_t *tree, const struct sd_picture *picture)
{
    const sc_cache_stats *cache = &picture->cache;
    const sc_tiers_stats *tiers = &picture->tiers;
    json_t *list = put_array(tree, "tiers");
    for (uint32_t t = 0; t <= SC_TIER_DISK; t++) {
        if (picture->tier_bytes_max[t] == 0) continue;
        uint64_t bytes = t > 0 ? cache->tier_bytes[t] :
            (picture->slot_count - picture->room.slots_free) * picture->stride;
        json_t *tier = add_object(list);
        put_text(tier, "tier", sd_tier_labels[t]);
        const struct row rows[] = {{"bytes", bytes}, {"bytes_max", picture->tier_bytes_max[t]},
            {"hits", cache->resumed_by_tier[t]}, {"hit_tokens", cache->tokens_hit_by_tier[t]},
            {"stored", cache->tier_stored[t]}, {"dropped", cache->tier_dropped[t]},
            {"refused", cache->tier_refused[t]}, {"stored_bytes", tiers->stored_bytes[t]},
            {"restored", tiers->restored[t]}, {"restored_bytes", tiers->restored_bytes[t]},
            {"store_mean_us", tiers->stored_ns[t] / 1000 / (tiers->stored[t] + !tiers->stored[t])},
            {"restore_mean_us",
                tiers->restored_ns[t] / 1000 / (tiers->restored[t] + !tiers->restored[t])},
            {"io_errors", tiers->io_failed[t]}};
        PUT_ROWS(tier, rows);
    }
    if (!picture->has_disk) return;
    json_t *wear = put_object(tree, "wear");
    put(wear, "written_bytes", tiers->disk_written_bytes);
    put(wear, "today_bytes", tiers->disk_day_bytes);
    put(wear, "day_bytes_max", picture->day_bytes_max);
}

static void put_tenants(json_t *tree, const struct sd_picture *picture)
{
    json_t *tenants = put_array(tree, "tenants");
    for (uint32_t i = 0; i < picture->tenants_shown; i++) {
        const struct sd_picture_tenant *of = &picture->tenants[i];
        json_t *tenant = add_object(tenants);
        put_text(tenant, "tenant", of->name);
        put(tenant, "bytes", of->bytes);
        put(tenant, "bytes_max", of->bytes_max);
        put(tenant, "refused", of->refused);
        put(tenant, "leases", of->leases);
    }
    put(tree, "tenants_more", picture->tenant_count - picture->tenants_shown);
    put(tree, "tenants_bytes", picture->tenants_bytes);
}

static void put_conns(json_t *tree, const struct sd_picture *picture)
{
    json_t *conns = put_array(tree, "connections");
    for (uint32_t i = 0; i < picture->conns_shown; i++) {
        const struct sd_picture_conn *of = &picture->conns[i];
        json_t *conn = add_object(conns);
        put(conn, "client", of->number);
        put_bool(conn, "local", of->local);
        if (of->local) put(conn, "uid", of->uid);
        put_bool(conn, "greeted", of->greeted);
        put_text(conn, "tenant", of->tenant);
        put_bool(conn, "bound", of->bound);
        const struct row rows[] = {{"age_s", of->age_ms / 1000}, {"leases", of->leases},
            {"writes", of->writes}, {"calls", of->calls}, {"unsent_bytes", of->unsent_bytes}};
        PUT_ROWS(conn, rows);
    }
    put(tree, "connections_more", picture->conn_count - picture->conns_shown);
}

/* Empty where nobody is told. */
static void put_events(json_t *tree, const struct sd_picture *picture)
{
    const struct sd_events_counts *counts = &picture->events;
    const struct row rows[] = {
        {"batches", counts->batches}, {"events", counts->events}, {"bytes", counts->bytes},
        {"replays", counts->replays}, {"replayed", counts->replayed},
        {"pictures", counts->pictures}, {"lost", counts->lost}, {"refused", counts->refused},
        {"states", counts->states}, {"copies", counts->copies}};
    json_t *events = put_object(tree, "events");
    if (picture->has_events) PUT_ROWS(events, rows);
}

static json_t *tree_of(const struct sd_picture *picture)
{
    json_t *tree = json_object();
    put_head(tree, picture);
    put_service(tree, picture);
    put_hits(tree, &picture->metrics);
    put_requests(tree, &picture->metrics);
    put_slots(tree, picture);
    put_cache(tree, &picture->cache);
    put_tiers(tree, picture);
    put_events(tree, picture);
    put(tree, "common_prompts", picture->common_count);
    put(tree, "namespaces", picture->space_count);
    put_tenants(tree, picture);
    put_conns(tree, picture);
    return tree;
}

char *sd_status_text(const struct sd_picture *picture)
{
    json_t *tree = tree_of(picture);
    char *text = tree ? json_dumps(tree, JSON_COMPACT) : NULL;
    json_decref(tree);
    return text;
}

/* ---- the method ---- */

static void pack(msgpack_packer *packer, json_t *value)
{
    const char *name;
    json_t *each;
    size_t i;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        (void)msgpack_pack_map(packer, json_object_size(value));
        json_object_foreach(value, name, each) {
            sc_pack_name(packer, name);
            pack(packer, each);
        }
        break;
    case JSON_ARRAY:
        (void)msgpack_pack_array(packer, json_array_size(value));
        json_array_foreach(value, i, each) pack(packer, each);
        break;
    case JSON_STRING: sc_pack_name(packer, json_string_value(value)); break;
    case JSON_INTEGER: (void)msgpack_pack_int64(packer, json_integer_value(value)); break;
    case JSON_TRUE: (void)msgpack_pack_true(packer); break;
    case JSON_FALSE: (void)msgpack_pack_false(packer); break;
    default: (void)msgpack_pack_nil(packer); break;
    }
}

/* The loop takes the picture; what the tiers know, and the tree, are made by a worker. */
struct status_job {
    struct sd_work work;
    struct sd_call *call;
    bool json;
    bool failed;
    sc_tiers *tiers;
    msgpack_sbuffer out;
    struct sd_picture picture;
};

static void status_work(struct sd_work *work)
{
    struct status_job *job = (struct status_job *)work;
    msgpack_packer packer;
    msgpack_packer_init(&packer, &job->out, msgpack_sbuffer_write);
    sd_picture_tiers(&job->picture, job->tiers);
    if (job->json) {
        char *text = sd_status_text(&job->picture);
        job->failed = !text;
        if (!text) return;
        (void)msgpack_pack_map(&packer, 1);
        sc_pack_str(&packer, "json", text);
        free(text);
    } else {
        json_t *tree = tree_of(&job->picture);
        job->failed = !tree;
        if (tree) pack(&packer, tree);
        json_decref(tree);
    }
}

static void status_done(struct sd_work *work)
{
    struct status_job *job = (struct status_job *)work;
    struct sd_call *call = job->call;
    if (job->failed) {
        (void)SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
        sd_reply_fault(call);
    } else {
        (void)sd_reply_begin(call);
        (void)msgpack_sbuffer_write(call->buffer, job->out.data, job->out.size);
        sd_reply_end(call, NULL, 0);
    }
    sd_call_end(call);
    msgpack_sbuffer_destroy(&job->out);
    free(job);
}

void sd_status(struct sd_call *call)
{
    struct sd_server *server = call->server;
    bool json = false;
    if (sc_map_bool(&call->params, "json", &json) != SC_OK || sc_map_done(&call->params) != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    struct status_job *job = calloc(1, sizeof *job);
    struct sd_call *kept = job ? sd_call_keep(call) : NULL;
    if (!kept) {
        free(job);
        (void)SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
        sd_reply_fault(call);
        return;
    }
    sd_store_sweep(&server->store);
    sd_tenants_sweep(&server->tenants);
    sd_picture_take(server, &job->picture);
    job->work.work = status_work;
    job->work.done = status_done;
    job->call = kept;
    job->json = json;
    job->tiers = server->store.tiers;
    msgpack_sbuffer_init(&job->out);
    if (sd_work_start(server, &job->work)) return;
    (void)SC_FAULT(SC_ERR_NO_MEMORY, "no worker");
    sd_reply_fault(kept);
    sd_call_end(kept);
    free(job);
}
