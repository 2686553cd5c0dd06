/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the scheduler share: scheduler.c (batches and steps), admission.c (how a
 * request comes), departure.c (how it goes). */
#ifndef BENCH_PASS_H
#define BENCH_PASS_H

#include "arrivals.h"
#include "device.h"
#include "scheduler.h"

/* A request that has a lease. What is committed and what is issued are kept apart:
 *
 *   0 ........ len ..... issued_len ... issued_max ............... limit
 *     committed | in flight  | in flight, if drafts are right
 *
 * `limit` is where the next row may end at most: the end of the text, or where it is to be
 * forked first. */
struct running {
    size_t request;
    sc_lease lease;
    struct sequence sequence;  /* the device's, while rows are in flight */
    uint32_t prompt_len;       /* of the lease: prefilled up to there */
    uint32_t total;            /* where the text ends */
    uint32_t fork_at;          /* where it will be forked; UINT32_MAX: nowhere */
    uint32_t len, token_count; /* committed; in the lease */
    uint32_t issued_len, issued_max;
    uint32_t flights;          /* rows in flight */
    uint32_t resume_len;
    int32_t *pages;            /* ids of tokens [0, ...), the page being filled included */
    uint32_t page_count;
    int32_t tail_page;         /* of a tail: to be copied before the request goes on in it; -1 */
    struct witness *witness;
    float *logits;             /* of token len - 1 */
    unsigned char *end_state;  /* at len, of a witnessed request whose end will be seen late */
    bool stopping;             /* nothing more is planned: it has to go */
    bool released;             /* the lease drains: rows behind the end are out */
};

/* A row in flight: `certain` tokens, `span` if all its drafts are right. */
struct flight_row {
    struct running *r;
    uint32_t certain, span, draft_count;
    int32_t tail_page;         /* partial page to be handed in for a tail; -1: none */
};

struct flight {
    sc_step number;
    uint64_t done_ns;          /* virtual */
    struct device_step device;
    struct flight_row *rows;   /* [row_max] */
    uint32_t row_count;
};

struct pass {
    struct workload *workload;
    const struct pass_options *o;
    struct pass_result *result;
    sc_pool *pool, *rings;     /* rings: NULL, if the model has none */
    sc_cache *cache;
    sc_namespace ns;
    struct page_ids ids;
    struct paged_kv kv;
    struct device device;
    struct sampler sampler;
    uint32_t grid, slack;      /* tokens that a row may go beyond a text's end */
    uint64_t now_ns, device_free_ns;
    sc_step step;

    struct arrivals arrivals;
    struct running **running;  /* [row_max] in order of admission; those released are not here */
    uint32_t running_count, row_max;
    bool crowded;              /* someone was preempted: admit nobody until someone has finished */
    bool *ordered;             /* requests that are in result->order */
    size_t ordered_count;
    int32_t *first_fork, *next_fork; /* forks of each request: lists */
    bool *forked;              /* requests whose forks have come */
    uint32_t *kept_len;        /* tokens that a preempted request comes back with; 0: its prompt */

    struct flight flights[IN_FLIGHT_MAX];
    uint32_t flight_first, flight_count;

    /* of the step being made */
    sc_row *rows;
    struct running **row_of;
    uint32_t row_count;
    sc_status *each;
    sc_result *results;
    int32_t *kv_ids;           /* of results: pages of all rows */
    size_t kv_ids_cap;
    int32_t *parents;          /* [row_max][drafts] */
    uint32_t *points;          /* one for each row */
    sc_tiers *tiers;           /* NULL: none */
    bool earlier;              /* they had states of an earlier run */
    sc_kv_mover mover;
    struct sc_prng sabotage;
    uint64_t sabotage_from;    /* admissions to let pass before */
};

static inline uint32_t pages_for(const struct pass *p, uint32_t tokens)
{
    return (tokens + p->o->page - 1) / p->o->page;
}

static inline const struct bench_request *request_of(const struct pass *p,
    const struct running *r)
{
    return &p->workload->requests[r->request];
}

/* scheduler.c */
void pass_drain(struct pass *p);
/* Reads the tree's pages from now on where it has the same, so that ours come back. */
void pass_adopt(struct pass *p, struct running *r);

/* True if `pages` are free, after eviction, and adoption, if need be. */
bool pass_make_room(struct pass *p, uint32_t pages);

/* tiers.c: lower tiers of the cache, if there are any */
void pass_tiers_open(struct pass *p, sc_cache_options *options);
/* Waits for the transfers that are under way, and applies them in the order of their tickets, so
 * that two runs with the same options decide the same. */
void pass_tiers_settle(struct pass *p);
void pass_tiers_close(struct pass *p);

/* admission.c */
void pass_admit_all(struct pass *p);
/* The forks of a request that has come to where they leave it. */
void pass_fork(struct pass *p, struct running *r);

/* departure.c */
/* The text is complete. */
void pass_finish(struct pass *p, struct running *r);
/* It has to go, keeps what it has computed, and comes back. No row of it is in flight. */
void pass_preempt(struct pass *p, struct running *r, bool by_coin);
/* Frees a request whose lease has drained. */
void pass_drained(struct pass *p, struct running *r);

#endif
