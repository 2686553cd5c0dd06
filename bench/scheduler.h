/* SPDX-License-Identifier: Apache-2.0 */
/* A plain scheduler that embeds the library as an engine would: continuous batches, chunked prefill
 * within a token budget, decode of the tokens that each request wants, pages and slots from fixed
 * pools; and, asked to, with steps in flight, drafts, forks and preemption. */
#ifndef BENCH_SCHEDULER_H
#define BENCH_SCHEDULER_H

#include "bench_common.h"
#include "page_ids.h"
#include "served_model.h"
#include "witness.h"
#include "workload.h"

enum { IN_FLIGHT_MAX = 3, DRAFTS_MAX = 16 };

struct pass_options {
    const char *label;           /* of the progress bar */
    const sc_schema *schema;
    sc_layout layout;
    uint32_t slots, kv_pages, page;
    uint32_t save_flags;         /* SC_SAVE_; 0: nothing is ever resumed (the cold pass) */
    bool save_points;            /* save at the workload's end points */
    uint32_t decode_interval, path_snapshots_max;
    bool keep_cuts, tails;
    const char *policy;          /* of the cache; NULL: its default */
    uint32_t host_slots;         /* copies in host memory; 0: no host tier */
    const char *disk;            /* folder of the disk tier; NULL: none */
    uint64_t disk_bytes;
    uint32_t host_write, disk_write; /* SC_TIER_WRITE_ */
    uint32_t running_max;        /* requests in a batch */
    uint32_t budget;             /* tokens of a step; 0: no limit */
    uint32_t in_flight;          /* steps, 1 .. IN_FLIGHT_MAX */
    uint32_t drafts;             /* of a decode row, at most DRAFTS_MAX; 0: none */
    bool draft_tree;             /* not each behind the one before */
    double draft_accept;         /* how often the drafter is right */
    uint32_t lose_flush;         /* this many-th flush is lost (device.h); 0: none */
    bool late_stop;              /* where a text ends is seen in the results alone */
    double preempt;              /* of a request's steps, those after which it has to go */
    bool fork;                   /* forks of the workload are forked, not served alone */
    uint32_t threads;
    uint64_t step_ns, token_ns;  /* virtual time of a step, and of each of its tokens */
    double speed;                /* arrivals come this much faster than the workload says */
    float temperature;
    uint64_t seed;
    const struct served_model *model; /* NULL: no compute; outputs are noise */
    struct witness_set *witnesses;    /* NULL: none */
    bool sabotage;
    uint64_t sabotage_seed;
    bool touch;                  /* memory before the first request is admitted */
    uint32_t verify_every;       /* steps between sc_cache_verify; 0: at the end alone */
    bool drop_tokens;            /* forget a request's tokens when it is over */
    /* Called for each request when it is over, in that order; may be NULL. */
    void (*finished)(void *ctx, size_t request);
    void *ctx;
};

struct pass_result {
    /* Of prompts, forks and readmissions are not counted here. */
    uint64_t requests, prompt_tokens, output_tokens, hit_tokens, computed_tokens;
    uint64_t resumed_at[AT_COUNT];
    uint64_t admitted, steps, rows, waits;
    uint64_t steps_overlapped;   /* launched while another was out */
    uint64_t rows_overlapped;    /* planned while a row of the same request was out */
    uint64_t rows_late;          /* behind the end of the text: discarded */
    uint64_t drafts, drafts_accepted, draft_rows, rows_uncertain; /* planned behind drafts */
    uint64_t preempted;          /* for want of pages, */
    uint64_t preempted_by_coin;  /* and by the coin */
    uint64_t readmitted, readmitted_hits, readmitted_whole; /* resumed; all that they had */
    uint64_t forks, forked, forks_refused; /* calls, children; requests served alone instead */
    uint64_t forked_tokens;      /* that forks did not have to compute */
    uint64_t tails_resumed, tails_handed;  /* hits inside a page; partial pages given to tails */
    uint64_t tenant_hits;        /* of what only another tenant had computed, */
    uint64_t tenant_leaks;       /* and of those, beyond the common prompt */
    uint64_t ring_appends, ring_flushes, ring_folds; /* rows that did so */
    uint64_t ring_resumed;       /* leases that began on a base with records on top */
    uint64_t ring_bytes;         /* memory of the rings; 0: none */
    bool ring_lost;              /* the flush that was to be lost is */
    uint64_t guessed, guessed_right; /* texts with a guess; that are what was guessed */
    uint64_t compute_ns, cpu_ns; /* of forwards: elapsed, and of all threads */
    uint64_t library_ns, wall_ns, virtual_ns;
    uint64_t process_ns;         /* processor time of all threads in wall_ns */
    uint64_t lookup_differs;     /* sc_cache_lookup and acquire disagreed */
    uint64_t id_faults;          /* KV ids that did not come back as they should */
    uint64_t kv_peak, kv_pages, kv_left;
    uint32_t slots, slots_peak;
    sc_pool_info pool;
    sc_cache_stats stats;
    sc_tiers_stats tiers;
    uint64_t tier_waits;         /* leases that waited for a lower tier */
    sc_heap_stats heap[SC_SUBSYSTEM_COUNT];
    uint32_t *order;             /* [requests] as first admitted; to be freed */
    char sabotaged[160];         /* what was flipped; empty: nothing */
};

void pass_run(struct workload *workload, const struct pass_options *options,
    struct pass_result *result);

#endif
