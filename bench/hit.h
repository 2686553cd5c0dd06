/* SPDX-License-Identifier: Apache-2.0 */
/* statecache-bench hit: what a policy keeps. A trace goes through the real index and policy code,
 * one request at a time and without compute; KV and states share one budget of bytes. */
#ifndef BENCH_HIT_H
#define BENCH_HIT_H

#include "bench_common.h"
#include "hit_trace.h"
#include "policy/policy.h"

struct hit_model {
    char name[64];
    double state_bytes, kv_token_bytes;          /* as stored */
    double flops_per_token, flops_per_token2;
};

enum { HIT_TIERS = 3 }; /* device, host, disk */

enum hit_bound { HIT_POLICY = 0, HIT_BELADY, HIT_UB, HIT_UB_KV };

/* What one cell of the table runs. */
struct hit_spec {
    char name[48];      /* as asked for: "marconi:0.1", "gittins+hint:0.8" */
    char policy[24];    /* sc_policy_named */
    enum hit_bound bound;
    bool kv_only;       /* "kv-lru": states cost nothing */
    bool tune;          /* Marconi: alpha by replaying what was seen */
    double alpha;
    double hint;        /* hints are right with this probability; 0: none */
    uint64_t hint_seed;
    uint32_t interval;  /* blocks */
    uint32_t fit_every, sample_count;
    double budget_gib;
    double tier_gib[HIT_TIERS]; /* below the device; 0: there is none */
    struct sc_cost_hardware hardware;
};

struct hit_result {
    uint64_t hit_tokens, input_tokens, tenth_hit, tenth_tokens;
    double flops_saved, flops_all;
    uint64_t snapshots, evicted, refused;
    double peak_bytes;
    uint64_t policy_ns, refit_ns, match_ns, insert_ns, refits;
    uint64_t policy_bytes, index_bytes;
    double alpha;       /* that tuning chose */
    double bound;       /* of "ub": the rate itself */
    double seconds;
    /* With tiers: what was resumed from each, bytes moved, and time by the cost model. */
    uint64_t tier_hit_tokens[HIT_TIERS], tier_dropped;
    double tier_read[HIT_TIERS], tier_written[HIT_TIERS], tier_peak[HIT_TIERS];
    double seconds_saved, seconds_all;
};

struct hit_job {
    const struct hit_trace *trace;
    const struct hit_model *model;
    struct hit_spec spec;
    struct hit_result result;
};

/* 0, or -1 for a name that is none, with the reason in `error`. */
int hit_spec_parse(struct hit_spec *spec, const char *text, char *error, size_t error_bytes);

void hit_cell_run(struct hit_job *job);
void hit_belady_run(struct hit_job *job);
void hit_upper_bound_run(struct hit_job *job);

/* When a block will next be the deepest one that could be resumed: what clairvoyant policies and
 * perfect hints know. */
struct hit_future;
struct hit_future *hit_future_create(const struct hit_trace *trace);
void hit_future_destroy(struct hit_future *future);
/* The next request after `request`, or 0 if there is none (request 0 wants nothing). Requests must
 * come in order. */
size_t hit_future_next(struct hit_future *future, uint32_t block, size_t request);

double hit_flops(const struct hit_model *model, double tokens);

#endif
