/* SPDX-License-Identifier: Apache-2.0 */
/* What the service counts, and the picture of it at one moment, from which all that it tells of
 * itself is made: /metrics, /v1/status, and the method `status`.
 *
 *   loop:    sd_metrics_call, sd_metrics_item: counters, a few adds a call
 *   loop:    sd_picture_take: copies them, and what the cache says, into a picture
 *   others:  sd_picture_tiers: what the disk knows may wait for locks, so it is not for the loop
 *   others:  sd_prometheus_write, sd_status_json: text from a picture
 *
 * Names and units for readers: docs/reference/metrics.md. */
#ifndef SC_DAEMON_METRICS_H
#define SC_DAEMON_METRICS_H

#include <stdio.h>

#include "config.h"
#include "events_publish.h"
#include "statecache/cache.h"

struct sd_server;
struct sd_call;

enum { SD_METHODS_MAX = 40, SD_STATUSES = 19, SD_BUCKETS = 20, SD_PICTURE_CONNS = 256,
    SD_PICTURE_TENANTS = 512 };
/* Of the time of a call: bucket `b` has those below this that no bucket before has, the last bucket
 * all the others. */
#define SD_BUCKET_NS(b) (UINT64_C(8192) << (b))

struct sd_counters {
    uint64_t connections, refused, closed_bad, closed_late, requests, errors, again;
    uint64_t lookups, keys, acquired, acquired_tokens, asked_tokens, missed, files_made;
    uint64_t writes, written, write_exists, write_refused, write_given_up, pins;
    uint64_t bytes_in, bytes_out;
};

struct sd_times { uint64_t count[SD_BUCKETS], sum_ns; };

struct sd_metrics {
    /* by method, in the order of call.c's table, and one row behind them: unknown methods */
    uint64_t answered[SD_METHODS_MAX][SD_STATUSES]; /* by status, -status */
    struct sd_times times[SD_METHODS_MAX];
    /* keys of acquires that were answered: asked == hit + missed + failed */
    uint64_t states_asked, states_hit, tokens_asked, tokens_hit;
    /* of requests that were preempted: among the states above, their tokens here alone */
    uint64_t states_again, tokens_again, tokens_again_hit;
    uint64_t missed[SC_REASON_COUNT]; /* nothing could be resumed, and why */
    uint64_t shorter[SC_REASON_COUNT];/* hits: why not more; [0]: all that was asked for */
    uint64_t failed[SD_STATUSES];
};

struct sd_picture_conn {
    uint64_t number, age_ms, unsent_bytes;
    uint32_t uid, leases, writes, calls;
    bool local, greeted, bound;
    char tenant[SD_NAME_BYTES];
};

struct sd_picture_tenant {
    char name[SD_NAME_BYTES];
    uint64_t bytes, bytes_max, refused;
    uint32_t leases;
    bool labelled;      /* it has a label in /metrics */
};

struct sd_picture {
    char model[SD_NAME_BYTES], revision[SD_PATH_BYTES], dtype[SD_NAME_BYTES];
    char socket[SD_PATH_BYTES], tcp[SD_NAME_BYTES], http[SD_NAME_BYTES];
    sc_fingerprint fingerprint;
    uint64_t began_ns, now_ns;  /* since 1970 */
    bool stopping;
    uint32_t conn_count, hold_count, pin_count, write_count, works;
    struct sd_counters count;
    struct sd_metrics metrics;
    bool has_events;
    struct sd_events_counts events;
    sc_cache_stats cache;
    sc_pool_info pool;
    sc_room room;
    uint32_t slot_count, image_count, space_count, grid, page_tokens;
    uint64_t stride, state_bytes;
    uint64_t tier_bytes_max[SC_TIER_COUNT], day_bytes_max;
    bool has_disk;
    uint32_t common_count, tenant_count, tenants_shown, conns_shown;
    uint64_t tenants_bytes;
    struct sd_picture_tenant tenants[SD_PICTURE_TENANTS]; /* those with a label first */
    struct sd_picture_conn conns[SD_PICTURE_CONNS];
    /* Of sd_picture_tiers. */
    sc_tiers_stats tiers;
    /* Of http.c: answers by code. */
    uint64_t http_ok, http_bad, http_unready;
};

/* ---- metrics.c */
/* A call has been answered so. */
void sd_metrics_call(const struct sd_call *call, sc_status status);
/* A key of an acquire has been answered: an error, or so many tokens, and why not more. */
struct sd_item_count {
    sc_status status;
    uint32_t asked, len;
    sc_reason reason;
    bool again;
};
void sd_metrics_item(struct sd_server *server, const struct sd_item_count *item);
void sd_picture_take(struct sd_server *server, struct sd_picture *picture_out);
/* `tiers` NULL: there are none. Threads: any. */
void sd_picture_tiers(struct sd_picture *picture, sc_tiers *tiers);
/* The first thing that is wrong with the service, and the next, ...; NULL: no more. */
const char *sd_picture_problem(const struct sd_picture *picture, uint32_t index);
/* The longest time that the faster `share` of the calls took, as the buckets tell. 0: no call. */
uint64_t sd_times_share_ns(const struct sd_times *times, double share);
uint64_t sd_times_count(const struct sd_times *times);
/* "SC_REASON_NO_PREFIX" as "no_prefix"; unknown numbers too. */
void sd_reason_label(uint32_t reason, char *label, size_t label_bytes);
/* A name that is text for everybody: bytes that are no UTF-8, and \, as \xNN. No two names become
 * one. Room for 4 times the name and one. */
enum { SD_LABEL_BYTES = 4 * SD_NAME_BYTES + 1 };
void sd_name_label(const char *name, char *label);
extern const char *const sd_evict_labels[SC_EVICT_COUNT];
extern const char *const sd_skip_labels[SC_SKIP_COUNT];
extern const char *const sd_tier_labels[SC_TIER_COUNT];

/* ---- prometheus.c */
void sd_prometheus_write(FILE *out, const struct sd_picture *picture);

/* ---- status.c */
/* JSON text in memory of malloc; NULL: no memory. */
char *sd_status_text(const struct sd_picture *picture);

/* ---- http.c */
/* Nothing to do where there is no metrics_listen. False: it was logged. */
bool sd_http_open(struct sd_server *server);
void sd_http_close(struct sd_server *server);
/* Connections that are late are ended. */
void sd_http_time(struct sd_server *server);
/* Where it listens, with the port; "": nowhere. */
const char *sd_http_name(const struct sd_server *server);
/* Files that it may need. */
uint32_t sd_http_files(const struct sd_config *config);

#endif
