/* SPDX-License-Identifier: Apache-2.0 */
/* The picture as Prometheus text (version 0.0.4). A test compares the names with those of
 * docs/reference/metrics.md; promtool reads the rest. */
#include "metrics.h"
#include "server.h"

#define U(x) ((unsigned long long)(x))

enum type { COUNTER, GAUGE, HISTOGRAM };

static void head(FILE *out, const char *name, enum type type, const char *help)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    (void)fprintf(out, "# HELP statecache_%s %s\n# TYPE statecache_%s %s\n", name, help, name,
        types[type]);
}

struct row {
    const char *name;
    enum type type;
    uint64_t value;
    const char *help;
};

/* Metrics without labels. */
static void write_rows(FILE *out, const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        head(out, rows[i].name, rows[i].type, rows[i].help);
        (void)fprintf(out, "statecache_%s %llu\n", rows[i].name, U(rows[i].value));
    }
}
#define ROWS(out, rows) write_rows((out), (rows), sizeof(rows) / sizeof(rows)[0])

static void labelled(FILE *out, const char *name, const char *label, const char *word,
    uint64_t value)
{
    (void)fprintf(out, "statecache_%s{%s=\"%s\"} %llu\n", name, label, word, U(value));
}

/* A label's value: \, " and line ends are escaped. */
static void write_escaped(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\\' || *text == '"') (void)fputc('\\', out);
        if (*text == '\n') {
            (void)fputs("\\n", out);
        } else {
            (void)fputc(*text, out);
        }
    }
}

static void write_name(FILE *out, const char *label, const char *name)
{
    char text[4 * SD_PATH_BYTES + 1]; /* as sd_name_label wants it, for the longest of all */
    sd_name_label(name, text);
    (void)fprintf(out, "%s=\"", label);
    write_escaped(out, text);
    (void)fputc('"', out);
}

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

/* `labels` without braces. `bound_ns`: of the first bucket; each is twice the one before. */
static void write_times(FILE *out, const char *name, const char *labels, const uint64_t *counts,
    uint32_t bucket_count, uint64_t bound_ns, uint64_t sum_ns)
{
    uint64_t below = 0;
    for (uint32_t b = 0; b + 1 < bucket_count; b++) {
        below += counts[b];
        (void)fprintf(out, "statecache_%s_bucket{%s,le=\"%.9g\"} %llu\n", name, labels,
            seconds(bound_ns << b), U(below));
    }
    below += counts[bucket_count - 1];
    (void)fprintf(out, "statecache_%s_bucket{%s,le=\"+Inf\"} %llu\n", name, labels, U(below));
    (void)fprintf(out, "statecache_%s_sum{%s} %.9g\nstatecache_%s_count{%s} %llu\n", name, labels,
        seconds(sum_ns), name, labels, U(below));
}

/* ---- the service ---- */

static void write_info(FILE *out, const struct sd_picture *picture)
{
    head(out, "build_info", GAUGE, "Version of the service and of its protocol; always 1.");
    (void)fprintf(out, "statecache_build_info{version=\"%s\",protocol=\"%d\"} 1\n", sc_version(),
        SC_WIRE_VERSION);
    head(out, "model_info", GAUGE, "The shard that is served; always 1.");
    (void)fputs("statecache_model_info{", out);
    write_name(out, "model", picture->model);
    (void)fputc(',', out);
    write_name(out, "revision", picture->revision);
    (void)fprintf(out, ",tp_rank=\"%u\",tp_size=\"%u\",fingerprint=\"", picture->pool.shard.tp_rank,
        picture->pool.shard.tp_size);
    for (size_t i = 0; i < sizeof picture->fingerprint.bytes; i++) {
        (void)fprintf(out, "%02x", picture->fingerprint.bytes[i]);
    }
    (void)fputs("\"} 1\n", out);
    head(out, "start_time_seconds", GAUGE, "When the service began, since 1970.");
    (void)fprintf(out, "statecache_start_time_seconds %.3f\n", seconds(picture->began_ns));
    head(out, "uptime_seconds", GAUGE, "How long ago that was.");
    (void)fprintf(out, "statecache_uptime_seconds %.3f\n",
        seconds(picture->now_ns - picture->began_ns));
}

static void write_service(FILE *out, const struct sd_picture *picture)
{
    const struct sd_counters *count = &picture->count;
    const struct row rows[] = {
        {"stopping", GAUGE, picture->stopping, "1 while the service is being stopped."},
        {"workers_busy", GAUGE, picture->works, "Jobs at worker threads: hashing, copying."},
        {"connections", GAUGE, picture->conn_count, "Clients that are connected."},
        {"connections_total", COUNTER, count->connections, "Connections that were accepted."},
        {"connections_refused_total", COUNTER, count->refused,
            "Connections refused: user id, token, limit of connections, no file."},
        {"received_bytes_total", COUNTER, count->bytes_in, "Bytes of messages from clients."},
        {"sent_bytes_total", COUNTER, count->bytes_out, "Bytes of messages to clients."},
        {"lookup_keys_total", COUNTER, count->keys, "Keys of look-ups."},
        {"writes_begun_total", COUNTER, count->writes, "States that clients began to write."},
        {"writes_stored_total", COUNTER, count->written, "States that clients wrote."},
        {"writes_existing_total", COUNTER, count->write_exists,
            "States that were there already when a client wanted to write them."},
        {"writes_refused_total", COUNTER, count->write_refused,
            "Writes that were refused: no room, a limit, a quota, wrong."},
        {"state_files_made_total", COUNTER, count->files_made,
            "States that came back from a tier and were copied into a file for a client."},
    };
    ROWS(out, rows);
    head(out, "connections_closed_total", COUNTER, "Connections that the service closed.");
    labelled(out, "connections_closed_total", "cause", "bad_message", count->closed_bad);
    labelled(out, "connections_closed_total", "cause", "late", count->closed_late);
    head(out, "leases", GAUGE, "What clients hold: states they read, pins, states they write.");
    labelled(out, "leases", "kind", "state",
        picture->hold_count - picture->pin_count - picture->write_count);
    labelled(out, "leases", "kind", "pin", picture->pin_count);
    labelled(out, "leases", "kind", "write", picture->write_count);
    head(out, "http_requests_total", COUNTER, "Requests of this HTTP server, by status code.");
    labelled(out, "http_requests_total", "code", "2xx", picture->http_ok);
    labelled(out, "http_requests_total", "code", "4xx", picture->http_bad);
    labelled(out, "http_requests_total", "code", "5xx", picture->http_unready);
}

static void write_requests(FILE *out, const struct sd_metrics *metrics)
{
    const char *method;
    char labels[SD_NAME_BYTES + 16];
    head(out, "requests_total", COUNTER, "Requests answered, by method and status.");
    for (uint32_t m = 0; (method = sd_method_name(m)); m++) {
        for (int s = 0; s < SD_STATUSES; s++) {
            if (s > 0 && metrics->answered[m][s] == 0) continue;
            (void)fprintf(out, "statecache_requests_total{method=\"%s\",status=\"%s\"} %llu\n",
                method, sc_status_name((sc_status)-s), U(metrics->answered[m][s]));
        }
    }
    head(out, "request_duration_seconds", HISTOGRAM,
        "From a whole request to its answer, waiting for tiers included.");
    for (uint32_t m = 0; (method = sd_method_name(m)); m++) {
        const struct sd_times *times = &metrics->times[m];
        (void)snprintf(labels, sizeof labels, "method=\"%s\"", method);
        write_times(out, "request_duration_seconds", labels, times->count, SD_BUCKETS,
            SD_BUCKET_NS(0), times->sum_ns);
    }
}

/* ---- what was found ---- */

static void write_reasons(FILE *out, const char *name, const uint64_t *counts, uint32_t first)
{
    for (uint32_t r = first; r < SC_REASON_COUNT; r++) {
        char label[32];
        sd_reason_label(r, label, sizeof label);
        labelled(out, name, "reason", label, counts[r]);
    }
}

static void write_hits(FILE *out, const struct sd_picture *picture)
{
    const struct sd_metrics *metrics = &picture->metrics;
    const struct row rows[] = {
        {"tokens_asked_total", COUNTER, metrics->tokens_asked, "Tokens of keys in acquires."},
        {"tokens_hit_total", COUNTER, metrics->tokens_hit, "Of these, resumed from a state."},
        {"states_asked_total", COUNTER, metrics->states_asked,
            "Keys of acquires: hit, missed and failed ones."},
        {"states_hit_total", COUNTER, metrics->states_hit, "Keys for which a state was resumed."},
        {"states_again_total", COUNTER, metrics->states_again,
            "Keys of requests that were preempted and are back."},
        {"tokens_again_total", COUNTER, metrics->tokens_again,
            "Their tokens, which are not among tokens_asked."},
        {"tokens_again_hit_total", COUNTER, metrics->tokens_again_hit,
            "Of these, resumed from a state."},
    };
    ROWS(out, rows);
    head(out, "states_missed_total", COUNTER, "Keys for which there was no state, and why.");
    write_reasons(out, "states_missed_total", metrics->missed, 0);
    head(out, "states_short_total", COUNTER,
        "Hits that were shorter than asked for, and why not more could be resumed.");
    write_reasons(out, "states_short_total", metrics->shorter, 1);
    head(out, "states_failed_total", COUNTER, "Keys that could not be answered, by status.");
    for (int s = 1; s < SD_STATUSES; s++) {
        labelled(out, "states_failed_total", "status", sc_status_name((sc_status)-s),
            metrics->failed[s]);
    }
    head(out, "tier_hits_total", COUNTER,
        "Leases and pins that resumed a state, by the slowest tier that was needed.");
    for (uint32_t t = 0; t < SC_TIER_REMOTE; t++) {
        labelled(out, "tier_hits_total", "tier", sd_tier_labels[t],
            picture->cache.resumed_by_tier[t]);
    }
    head(out, "tier_hit_tokens_total", COUNTER,
        "Tokens that they resumed; of lower tiers those beyond what the device had.");
    for (uint32_t t = 0; t < SC_TIER_REMOTE; t++) {
        labelled(out, "tier_hit_tokens_total", "tier", sd_tier_labels[t],
            picture->cache.tokens_hit_by_tier[t]);
    }
}

/* ---- what is kept ---- */

static void write_slots(FILE *out, const struct sd_picture *picture)
{
    const uint32_t *owned = picture->pool.owner_count;
    uint32_t leased = picture->room.slots_held - owned[SC_OWNER_WORKING] -
        owned[SC_OWNER_IN_FLIGHT];
    const struct { const char *owner; uint64_t slots; } rows[] = {
        {"free", owned[SC_OWNER_FREE]}, {"working", owned[SC_OWNER_WORKING]},
        {"in_flight", owned[SC_OWNER_IN_FLIGHT]},
        {"snapshot", owned[SC_OWNER_SNAPSHOT] - leased}, {"leased", leased},
        {"draining", owned[SC_OWNER_DRAINING]}};
    const size_t count = sizeof rows / sizeof rows[0];
    head(out, "slots", GAUGE, "Slots for states, by what is in them.");
    for (size_t i = 0; i < count; i++) labelled(out, "slots", "owner", rows[i].owner,
        rows[i].slots);
    head(out, "tier_bytes", GAUGE,
        "Bytes of states, by tier and by whose they are; free room is not among them.");
    for (size_t i = 1; i < count; i++) {
        (void)fprintf(out, "statecache_tier_bytes{tier=\"device\",owner=\"%s\"} %llu\n",
            rows[i].owner, U(rows[i].slots * picture->stride));
    }
    for (uint32_t t = SC_TIER_HOST; t <= SC_TIER_DISK; t++) {
        (void)fprintf(out, "statecache_tier_bytes{tier=\"%s\",owner=\"snapshot\"} %llu\n",
            sd_tier_labels[t], U(picture->cache.tier_bytes[t]));
    }
    head(out, "tier_capacity_bytes", GAUGE, "Room for states, by tier; 0: there is no such tier.");
    for (uint32_t t = 0; t < SC_TIER_REMOTE; t++) {
        labelled(out, "tier_capacity_bytes", "tier", sd_tier_labels[t],
            picture->tier_bytes_max[t]);
    }
}

static void write_cache(FILE *out, const struct sd_picture *picture)
{
    const sc_cache_stats *stats = &picture->cache;
    const struct row rows[] = {
        {"slot_bytes", GAUGE, picture->stride, "Bytes of a slot, and of a state's file."},
        {"state_files", GAUGE, picture->image_count, "States in slots that have a file."},
        {"snapshots", GAUGE, stats->snapshots_alive, "States in slots that can be resumed."},
        {"records", GAUGE, stats->tier_records, "States known in any tier, where there are tiers."},
        {"index_nodes", GAUGE, stats->nodes, "Nodes of the index."},
        {"index_tokens", GAUGE, stats->tokens_cached, "Tokens in the index."},
        {"namespaces", GAUGE, picture->space_count, "Adapters and generations in use."},
        {"policy_memory_bytes", GAUGE, stats->policy_bytes, "Memory of the policy."},
        {"states_published_total", COUNTER, stats->saves_published,
            "States taken up as snapshots."},
        {"states_restored_total", COUNTER, stats->restored,
            "States that came back into a slot from a lower tier."},
        {"states_lost_total", COUNTER, stats->tier_lost,
            "States that went without a copy in another tier."},
    };
    ROWS(out, rows);
    head(out, "evictions_total", COUNTER, "States that lost their slot, by cause.");
    for (uint32_t i = 0; i < SC_EVICT_COUNT; i++) {
        labelled(out, "evictions_total", "cause", sd_evict_labels[i], stats->evicted[i]);
    }
    head(out, "states_skipped_total", COUNTER, "States that were not taken up, by cause.");
    for (uint32_t i = 0; i < SC_SKIP_COUNT; i++) {
        labelled(out, "states_skipped_total", "cause", sd_skip_labels[i],
            stats->saves_skipped[i]);
    }
}

/* ---- tiers ---- */

static void by_tier(FILE *out, const char *name, const char *help, const uint64_t *values)
{
    head(out, name, COUNTER, help);
    for (uint32_t t = SC_TIER_HOST; t <= SC_TIER_DISK; t++) {
        labelled(out, name, "tier", sd_tier_labels[t], values[t]);
    }
}

static void times_by_tier(FILE *out, const char *name, const char *help,
    const uint64_t counts[4][SC_TIERS_BUCKET_COUNT], const uint64_t *sums)
{
    head(out, name, HISTOGRAM, help);
    for (uint32_t t = SC_TIER_HOST; t <= SC_TIER_DISK; t++) {
        char labels[32];
        (void)snprintf(labels, sizeof labels, "tier=\"%s\"", sd_tier_labels[t]);
        write_times(out, name, labels, counts[t], SC_TIERS_BUCKET_COUNT, SC_TIERS_BUCKET_NS(0),
            sums[t]);
    }
}

static void write_tiers(FILE *out, const struct sd_picture *picture)
{
    const sc_cache_stats *cache = &picture->cache;
    const sc_tiers_stats *tiers = &picture->tiers;
    const struct row rows[] = {
        {"transfers", GAUGE, cache->transfers_alive, "Transfers to and from tiers under way."},
        {"transfers_failed_total", COUNTER, cache->transfers_failed, "Transfers that failed."},
        {"disk_written_bytes_total", COUNTER, tiers->disk_written_bytes,
            "Wear: bytes ever written to the disk tier's folder, by earlier services, too."},
        {"disk_written_today_bytes", GAUGE, tiers->disk_day_bytes, "Of these, today (UTC)."},
        {"disk_day_limit_bytes", GAUGE, picture->day_bytes_max,
            "Bytes that may be written in a day; 0: no limit."},
        {"disk_failed", GAUGE, tiers->disk_broken ||
            tiers->io_failed_row[SC_TIER_DISK] > 0,
            "1 while the last transfer of the disk tier was an I/O error, or it needs a restart."},
    };
    ROWS(out, rows);
    by_tier(out, "tier_stores_total", "Copies that the tier took up.", cache->tier_stored);
    by_tier(out, "tier_drops_total", "Copies that the tier dropped for others.",
        cache->tier_dropped);
    by_tier(out, "tier_refusals_total", "Copies that the tier did not take: room, worth, wear.",
        cache->tier_refused);
    by_tier(out, "tier_io_errors_total", "Transfers that failed by I/O or a checksum.",
        tiers->io_failed);
    by_tier(out, "stored_bytes_total", "Bytes of completed stores.", tiers->stored_bytes);
    by_tier(out, "restored_bytes_total", "Bytes of completed restores.", tiers->restored_bytes);
    times_by_tier(out, "store_duration_seconds",
        "Stores to a tier, without waiting for their turn; to disk with the commit.",
        tiers->stored_time, tiers->stored_ns);
    times_by_tier(out, "restore_duration_seconds",
        "Restores from a tier, without waiting for their turn.", tiers->restored_time,
        tiers->restored_ns);
}

/* ---- events ---- */

static void write_events(FILE *out, const struct sd_picture *picture)
{
    const struct sd_events_counts *counts = &picture->events;
    const struct row rows[] = {
        {"event_batches_total", COUNTER, counts->batches, "Batches of events published."},
        {"events_total", COUNTER, counts->events, "Events in them: stored, removed, cleared."},
        {"event_bytes_total", COUNTER, counts->bytes, "Bytes of them, for one subscriber."},
        {"event_replays_total", COUNTER, counts->replays, "Replays that were sent whole."},
        {"event_replays_refused_total", COUNTER, counts->refused,
            "Requests for replays that were wrong, too many, or not taken."},
        {"event_pictures_total", COUNTER, counts->pictures,
            "Times that everything was told anew, to one that joined late or to all."},
        {"event_losses_total", COUNTER, counts->lost,
            "Times that more changed at once than events_bytes has room for."},
        {"event_states", GAUGE, counts->states, "States that consumers have been told of."},
    };
    ROWS(out, rows);
}

/* ---- tenants ---- */

static void write_tenant_row(FILE *out, const struct sd_picture *picture, const char *name,
    enum type type, const char *help, uint64_t (*value)(const struct sd_picture_tenant *))
{
    head(out, name, type, help);
    for (uint32_t i = 0; i < picture->tenants_shown; i++) {
        const struct sd_picture_tenant *tenant = &picture->tenants[i];
        if (!tenant->labelled) continue;
        (void)fprintf(out, "statecache_%s{", name);
        write_name(out, "tenant", tenant->name);
        (void)fprintf(out, "} %llu\n", U(value(tenant)));
    }
}

static uint64_t bytes_of(const struct sd_picture_tenant *tenant) { return tenant->bytes; }
static uint64_t limit_of(const struct sd_picture_tenant *tenant) { return tenant->bytes_max; }
static uint64_t leases_of(const struct sd_picture_tenant *tenant) { return tenant->leases; }
static uint64_t refused_of(const struct sd_picture_tenant *tenant) { return tenant->refused; }

static void write_tenants(FILE *out, const struct sd_picture *picture)
{
    uint64_t told = 0;
    for (uint32_t i = 0; i < picture->tenants_shown; i++) {
        if (picture->tenants[i].labelled) told += picture->tenants[i].bytes;
    }
    const struct row rows[] = {
        {"tenants", GAUGE, picture->tenant_count, "Tenants that hold something or have a quota."},
        {"tenants_bytes", GAUGE, picture->tenants_bytes,
            "Bytes of states of all tenants, in slots and being written."},
        {"tenants_unnamed_bytes", GAUGE, picture->tenants_bytes - told,
            "Of these, of tenants beyond the first so many (metrics_tenants), who have no label."},
        {"common_prompts", GAUGE, picture->common_count, "Prompts that are common to all tenants."},
    };
    ROWS(out, rows);
    write_tenant_row(out, picture, "tenant_bytes", GAUGE,
        "Bytes of states of the tenant, in slots and being written.", bytes_of);
    write_tenant_row(out, picture, "tenant_limit_bytes", GAUGE, "Its quota; 0: no limit.",
        limit_of);
    write_tenant_row(out, picture, "tenant_leases", GAUGE, "Its open leases, pins and writes.",
        leases_of);
    write_tenant_row(out, picture, "tenant_writes_refused_total", COUNTER,
        "Its writes that would have passed the quota.", refused_of);
}

void sd_prometheus_write(FILE *out, const struct sd_picture *picture)
{
    write_info(out, picture);
    write_service(out, picture);
    write_requests(out, &picture->metrics);
    write_hits(out, picture);
    write_slots(out, picture);
    write_cache(out, picture);
    write_tiers(out, picture);
    write_events(out, picture);
    write_tenants(out, picture);
}
