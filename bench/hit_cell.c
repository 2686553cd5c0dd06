/* SPDX-License-Identifier: Apache-2.0 */
/* One cell: one policy, one budget, one trace. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/prng.h"
#include "hit.h"
#include "hit_index.h"
#include "hit_tiers.h"

struct cell {
    const struct hit_trace *trace;
    const struct hit_spec *spec;
    struct hit_result *result;
    struct hit_index index;
    struct sc_policy *policy;
    struct sc_policy_point *points;
    struct hit_tiers *tiers;   /* NULL: the device alone */
    double cap;
    size_t request;
    struct hit_future *future; /* for hints */
    struct sc_prng prng;
    bool full;                 /* something had to go, first by this request: */
    size_t full_at;
    uint64_t clock_ns;         /* of reading the clock */
    long switches;             /* of this thread, when the request began */
    uint64_t fits, fits_timed; /* refits; those that were not left out */
};

/* How often the system has given the processor to somebody else. */
static long switches_now(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw + usage.ru_nvcsw : 0;
}

/* A caller has just worked the hashes of a prompt out; here they lie in memory since the trace was
 * read. */
static void hashes_read(const uint64_t *hashes, uint32_t count)
{
    const volatile uint64_t *hash = hashes;
    for (uint32_t i = 0; i < count; i++)
        (void)hash[i];
}

/* What reading the clock twice costs, to be taken off. */
static uint64_t clock_cost_ns(void)
{
    enum { ROUNDS = 64 };
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t start = sc_clock_now_ns(), took = sc_clock_now_ns() - start;
        least = took < least ? took : least;
    }
    return least;
}

/* How often a thread lost the processor is asked every so many requests: behind a call of the
 * system the next thousand instructions take half as long again. */
enum { SWITCHES_EVERY = 16 };

/* Sections are about as short as a reading of the thread's own clock takes, so that it will not do.
 * Reading the wall clock takes 20 ns, but it goes on while another program has the processor: a
 * long section during which that happened, or shortly before, is left out. A refit is long and
 * often is: in its place stands the mean of the others (fits_close). */
static uint64_t since(const struct cell *cell, uint64_t start)
{
    enum { SUSPECT_NS = 20000 };
    uint64_t took = sc_clock_now_ns() - start;
    if (took > SUSPECT_NS && switches_now() != cell->switches) return 0;
    return took < cell->clock_ns ? 0 : took - cell->clock_ns;
}

double hit_flops(const struct hit_model *model, double tokens)
{
    return tokens * model->flops_per_token + tokens * tokens * model->flops_per_token2;
}

static enum sc_policy_hint hint(void *ctx, uint32_t blocks)
{
    struct cell *cell = ctx;
    const struct hit_request *r = &cell->trace->requests[cell->request];
    uint32_t block = (uint32_t)cell->trace->tokens[r->first + blocks - 1];
    bool wanted = hit_future_next(cell->future, block, cell->request) != 0;
    bool right = sc_prng_unit(&cell->prng) < cell->spec->hint;
    return wanted == right ? SC_POLICY_HINT_CONTINUES : SC_POLICY_HINT_OVER;
}

static void cell_open(struct cell *cell, struct hit_job *job)
{
    const struct hit_spec *spec = &job->spec;
    const struct hit_model *model = job->model;
    *cell = (struct cell){.trace = job->trace, .spec = spec, .result = &job->result,
        .cap = spec->budget_gib * 1073741824.0, .clock_ns = clock_cost_ns()};
    double state = spec->kv_only ? 0 : model->state_bytes;
    double block = model->kv_token_bytes * job->trace->block;
    hit_index_init(&cell->index, job->trace, state, block);
    struct sc_policy_options options = {.radix = cell->index.radix, .block_tokens = 1,
        .interval_tokens = spec->interval, .near_tokens = 1024 / job->trace->block,
        .marconi_alpha = spec->alpha, .spare_paths = true, .fit_every = spec->fit_every,
        .sample_count = spec->sample_count,
        .cost = {.state_bytes = state, .kv_token_bytes = block, .token_s = 1}};
    bench_must(sc_policy_named(spec->policy, &options), "sc_policy_named");
    if (options.order == SC_POLICY_MARCONI) {
        options.cost.token_s = model->flops_per_token * job->trace->block;
        options.cost.token2_s = model->flops_per_token2 * job->trace->block * job->trace->block;
    }
    cell->tiers = hit_tiers_create(job, &cell->index, &options);
    if (cell->tiers) {
        options.leaving = hit_tiers_leaving;
        options.leaving_ctx = cell->tiers;
        options.placement |= SC_PLACE_GIVEN; /* a copy of what is read back */
    }
    bench_must(sc_policy_create(&options, &cell->policy), "sc_policy_create");
    cell->points = bench_alloc((size_t)job->trace->longest + 4, sizeof *cell->points);
    if (spec->hint > 0) {
        cell->future = hit_future_create(job->trace);
        sc_prng_seed(&cell->prng, spec->hint_seed);
    }
}

static void fits_close(struct cell *cell)
{
    if (cell->fits_timed == 0) return;
    uint64_t mean = cell->result->refit_ns / cell->fits_timed;
    uint64_t more = mean * (cell->fits - cell->fits_timed);
    cell->result->refit_ns += more;
    cell->result->policy_ns += more;
}

static void cell_close(struct cell *cell)
{
    struct sc_policy_stats policy;
    struct sc_radix_stats radix;
    sc_policy_stats_get(cell->policy, &policy);
    sc_radix_stats_get(cell->index.radix, &radix);
    fits_close(cell);
    cell->result->evicted = cell->index.evicted;
    cell->result->refits = policy.refits;
    cell->result->policy_bytes = policy.bytes;
    cell->result->index_bytes = radix.bytes;
    if (SC_ASSERT_LEVEL >= 2)
        bench_must(sc_policy_verify(cell->policy), "sc_policy_verify");
    sc_policy_destroy(cell->policy);
    hit_tiers_destroy(cell->tiers);
    hit_index_deinit(&cell->index);
    hit_future_destroy(cell->future);
    free(cell->points);
}

/* Room for what is asked: true if it is there. */
static bool make_room(struct cell *cell, const struct sc_policy_ask *ask)
{
    double free_bytes = cell->cap - hit_index_bytes(&cell->index), got = 0;
    if (ask->bytes <= free_bytes)
        return true;
    if (ask->bytes > cell->cap)
        return false;
    if (!cell->full) {
        cell->full = true;
        cell->full_at = cell->request;
    }
    bench_must(sc_policy_room(cell->policy, ask->bytes - free_bytes, ask->bar, &cell->index.sink,
        &got), "sc_policy_room");
    return got >= ask->bytes - free_bytes;
}

static void place(struct cell *cell, struct sc_policy_path *path, struct hit_match *match)
{
    struct hit_result *result = cell->result;
    const int32_t *tokens = cell->trace->tokens + cell->trace->requests[cell->request].first;
    struct sc_policy_ask ask;
    for (;;) {
        uint64_t start = sc_clock_now_ns();
        bool more = sc_policy_next(cell->policy, path, cell->cap - hit_index_bytes(&cell->index),
            &ask);
        bool room = more && make_room(cell, &ask);
        result->policy_ns += since(cell, start);
        if (!more)
            return;
        if (!room) {
            result->refused++;
            for (uint32_t i = ask.first; cell->tiers && i < ask.first + ask.count; i++)
                hit_tiers_refused(cell->tiers, cell->request, path->points[i].len);
            continue;
        }
        for (uint32_t i = ask.first; i < ask.first + ask.count; i++) {
            uint32_t snapshot = 0;
            start = sc_clock_now_ns();
            sc_node node = hit_index_insert(&cell->index, tokens, path->points[i].len, match,
                &snapshot);
            result->insert_ns += since(cell, start);
            if (node == SC_NODE_NONE)
                continue;
            result->snapshots++;
            start = sc_clock_now_ns();
            bench_must(sc_policy_attached(cell->policy, path, i, node, snapshot),
                "sc_policy_attached");
            result->policy_ns += since(cell, start);
        }
    }
}

static void account(struct cell *cell, const struct hit_model *model, uint32_t resumed)
{
    struct hit_result *result = cell->result;
    const struct hit_request *r = &cell->trace->requests[cell->request];
    uint64_t tokens = (uint64_t)resumed * cell->trace->block;
    result->hit_tokens += tokens;
    result->input_tokens += r->input_len;
    result->flops_saved += hit_flops(model, (double)tokens);
    result->flops_all += hit_flops(model, r->input_len);
    if (cell->request < cell->trace->count / 10) {
        result->tenth_hit += tokens;
        result->tenth_tokens += r->input_len;
    }
}

static void serve(struct cell *cell, const struct hit_model *model)
{
    const struct hit_trace *trace = cell->trace;
    const struct hit_request *r = &trace->requests[cell->request];
    struct hit_result *result = cell->result;
    struct hit_match match;
    if (cell->request % SWITCHES_EVERY == 0)
        cell->switches = switches_now();
    uint64_t start = sc_clock_now_ns();
    hit_index_match(&cell->index, trace->tokens + r->first, r->blocks, r->usable, &match);
    result->match_ns += since(cell, start);
    uint32_t resumed = match.resumed, tier = 0;
    if (cell->tiers)
        tier = hit_tiers_match(cell->tiers, cell->request, &match, &resumed);
    account(cell, model, resumed);
    struct sc_policy_path path = {.now_ns = r->time_ns, .hashes = trace->hashes + r->first,
        .block_count = r->blocks, .len_max = r->usable, .kv_len = match.held,
         .held_len = match.deepest,
        .state_len = match.resumed, .state_node = match.state_node, .points = cell->points,
        .point_cap = trace->longest + 4, .hint = cell->future ? hint : NULL, .hint_ctx = cell,
        .output_len = r->output_len, .given = &resumed, .given_count = tier > 0};
    hashes_read(trace->hashes + r->first, r->blocks);
    start = sc_clock_now_ns();
    bench_must(sc_policy_begin(cell->policy, &path), "sc_policy_begin");
    result->policy_ns += since(cell, start);
    place(cell, &path, &match);
    struct sc_policy_stats before, after;
    sc_policy_stats_get(cell->policy, &before);
    start = sc_clock_now_ns();
    sc_policy_end(cell->policy, &path);
    uint64_t took = since(cell, start);
    result->policy_ns += took;
    sc_policy_stats_get(cell->policy, &after);
    if (after.refits != before.refits) {
        cell->fits++;
        cell->fits_timed += took > 0;
        result->refit_ns += took;
    }
    hit_index_touch(&cell->index, trace, cell->request, path.kv_len);
    hit_index_unlock(&cell->index, &match);
    if (cell->tiers)
        hit_tiers_end(cell->tiers);
    double held = hit_index_bytes(&cell->index);
    if (held > result->peak_bytes)
        result->peak_bytes = held;
}

/* Marconi's tuning: what was seen so far is replayed with each alpha; most flops saved wins. */
static double alpha_tune(const struct hit_job *job, size_t upto)
{
    static const double grid[] = {0, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.4, 2};
    double best = 0, best_saved = -1;
    struct hit_trace seen = *job->trace;
    seen.count = upto;
    for (size_t i = 0; i < sizeof grid / sizeof *grid; i++) {
        struct hit_job trial = {.trace = &seen, .model = job->model, .spec = job->spec};
        trial.spec.tune = false;
        trial.spec.alpha = grid[i];
        hit_cell_run(&trial);
        if (trial.result.flops_saved > best_saved) {
            best_saved = trial.result.flops_saved;
            best = grid[i];
        }
    }
    return best;
}

void hit_cell_run(struct hit_job *job)
{
    struct cell cell;
    uint64_t start = sc_clock_now_ns();
    cell_open(&cell, job);
    bool tune = job->spec.tune;
    for (size_t i = 0; i < job->trace->count; i++) {
        cell.request = i;
        if (tune && cell.full && i >= cell.full_at * 6) {
            tune = false;
            job->result.alpha = alpha_tune(job, i);
            bench_must(sc_policy_alpha_set(cell.policy, job->result.alpha), "sc_policy_alpha_set");
        }
        serve(&cell, job->model);
    }
    cell_close(&cell);
    job->result.seconds = (double)(sc_clock_now_ns() - start) * 1e-9;
}
