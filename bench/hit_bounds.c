/* SPDX-License-Identifier: Apache-2.0 */
/* What no policy knows: a clairvoyant one that could be run (a lower bound of the best), and a
 * relaxation that could not (an upper bound).
 *
 * belady  saves exactly the positions that some later request will resume at, and drops what gains
 *         least per byte and request waited for. Values are renewed after 2 % of the entries went.
 * ub      each resumed block must have been held since the last request that touched it, and one
 *         state since the last request that passed there: so many byte-steps. The budget has
 *         bytes x requests of them. Choices of one request lie on a concave hull; best ratios
 *         first, the last one in part. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "hit.h"
#include "hit_index.h"

struct entry { double score; sc_node node; };

struct oracle {
    struct hit_job *job;
    struct hit_index index;
    struct hit_future *future;
    struct entry *entries; /* of all snapshots */
    size_t entry_count, entry_cap;
    uint32_t *block_of;    /* node -> block, while a snapshot stands on it */
    size_t block_cap;
    double cap;
    size_t request;
};

static bool info_get(const struct oracle *o, sc_node node, struct sc_radix_node_info *info)
{
    return node != SC_NODE_NONE && sc_radix_node_get(o->index.radix, node, info) == SC_OK;
}

/* Gain in blocks, and bytes that go. */
static double score(struct oracle *o, sc_node node, const struct sc_radix_node_info *own)
{
    size_t next = hit_future_next(o->future, o->block_of[node], o->request);
    if (next == 0)
        return -1;
    struct sc_radix_node_info info;
    uint32_t tail_start = own->start, up = 0;
    bool exclusive = own->child_count == 0;
    for (sc_node at = own->parent; info_get(o, at, &info); at = info.parent) {
        if (info.snapshot != 0) {
            up = info.end;
            break;
        }
        exclusive = exclusive && info.child_count == 1;
        if (exclusive)
            tail_start = info.start;
    }
    double bytes = o->index.state_bytes;
    if (own->child_count == 0)
        bytes += (own->end - tail_start) * o->index.block_bytes;
    return (own->end - up) / (bytes * (double)(next - o->request));
}

struct collecting { struct oracle *oracle; };

static bool collect(void *ctx, sc_node node, const struct sc_radix_node_info *info,
    const int32_t *tokens, const int32_t *ids, uint32_t pages)
{
    struct oracle *o = ctx;
    (void)ids;
    if (info->snapshot == 0 || info->kv_locks > 0)
        return true;
    o->entries = bench_grow(o->entries, &o->entry_cap, o->entry_count + 1, sizeof *o->entries);
    o->block_of[node] = (uint32_t)tokens[pages - 1];
    o->entries[o->entry_count++] = (struct entry){score(o, node, info), node};
    return true;
}

static int by_score(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->score != y->score)
        return x->score < y->score ? -1 : 1;
    return x->node < y->node ? -1 : x->node > y->node;
}

static bool oracle_room(struct oracle *o, double need)
{
    if (need > o->cap)
        return false;
    while (hit_index_bytes(&o->index) + need > o->cap) {
        o->entry_count = 0;
        o->block_of = bench_grow(o->block_of, &o->block_cap,
            (size_t)o->index.snapshot * 4 + o->job->trace->node_count + 1024, sizeof *o->block_of);
        sc_radix_walk(o->index.radix, o->index.space, collect, o);
        if (o->entry_count == 0)
            return false;
        qsort(o->entries, o->entry_count, sizeof *o->entries, by_score);
        size_t batch = o->entry_count / 50 ? o->entry_count / 50 : 1;
        for (size_t i = 0; i < batch && hit_index_bytes(&o->index) + need > o->cap; i++) {
            sc_node rest;
            bench_must(sc_radix_evict_node(o->index.radix, o->entries[i].node, &o->index.sink,
                &rest), "sc_radix_evict_node");
        }
    }
    return true;
}

static void oracle_serve(struct oracle *o)
{
    const struct hit_trace *trace = o->job->trace;
    const struct hit_request *r = &trace->requests[o->request];
    struct hit_result *result = &o->job->result;
    struct hit_match match;
    hit_index_match(&o->index, trace->tokens + r->first, r->blocks, r->usable, &match);
    uint64_t tokens = (uint64_t)match.resumed * trace->block;
    result->hit_tokens += tokens;
    result->input_tokens += r->input_len;
    result->flops_saved += hit_flops(o->job->model, (double)tokens);
    result->flops_all += hit_flops(o->job->model, r->input_len);
    if (o->request < trace->count / 10) {
        result->tenth_hit += tokens;
        result->tenth_tokens += r->input_len;
    }
    uint32_t count = 0, last = match.held;
    for (uint32_t d = match.resumed + 1; d <= r->blocks; d++) {
        uint32_t block = (uint32_t)trace->tokens[r->first + d - 1];
        if (hit_future_next(o->future, block, o->request) == 0)
            continue;
        count++;
        last = d > last ? d : last;
    }
    double need = count * o->index.state_bytes + (last - match.held) * o->index.block_bytes;
    bool room = count > 0 && (hit_index_bytes(&o->index) + need <= o->cap || oracle_room(o, need));
    for (uint32_t d = match.resumed + 1; room && d <= r->blocks; d++) {
        uint32_t block = (uint32_t)trace->tokens[r->first + d - 1], snapshot;
        if (hit_future_next(o->future, block, o->request) == 0)
            continue;
        result->snapshots +=
            hit_index_insert(&o->index, trace->tokens + r->first, d, &match, &snapshot) !=
                SC_NODE_NONE;
    }
    hit_index_unlock(&o->index, &match);
    double held = hit_index_bytes(&o->index);
    result->peak_bytes = held > result->peak_bytes ? held : result->peak_bytes;
}

void hit_belady_run(struct hit_job *job)
{
    uint64_t start = sc_clock_now_ns();
    struct oracle o = {.job = job, .cap = job->spec.budget_gib * 1073741824.0,
        .future = hit_future_create(job->trace)};
    hit_index_init(&o.index, job->trace, job->model->state_bytes,
        job->model->kv_token_bytes * job->trace->block);
    for (o.request = 0; o.request < job->trace->count; o.request++)
        oracle_serve(&o);
    job->result.evicted = o.index.evicted;
    hit_index_deinit(&o.index);
    hit_future_destroy(o.future);
    free(o.entries);
    free(o.block_of);
    job->result.seconds = (double)(sc_clock_now_ns() - start) * 1e-9;
}

/* --- the relaxation --- */

struct item { double ratio, cost, value; };

static int by_ratio(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    return x->ratio > y->ratio ? -1 : x->ratio < y->ratio;
}

struct vertex { double cost, value; };

/* Adds a choice of larger value to a concave hull. */
static size_t hull_add(struct vertex *hull, size_t count, struct vertex next)
{
    while (count > 1) {
        const struct vertex *a = &hull[count - 2], *b = &hull[count - 1];
        if ((next.value - b->value) * (b->cost - a->cost) <
            (b->value - a->value) * (next.cost - b->cost))
            break;
        count--;
    }
    hull[count] = next;
    return count + 1;
}

void hit_upper_bound_run(struct hit_job *job)
{
    const struct hit_trace *trace = job->trace;
    uint64_t start = sc_clock_now_ns();
    double state = job->spec.bound == HIT_UB_KV ? 0 : job->model->state_bytes;
    double block = job->model->kv_token_bytes * trace->block;
    double *last = bench_alloc((size_t)trace->node_count + 1, sizeof *last);
    struct vertex *hull = bench_alloc((size_t)trace->longest + 2, sizeof *hull);
    struct item *items = NULL;
    size_t item_count = 0, item_cap = 0;
    for (size_t i = 0; i < trace->count; i++) {
        const struct hit_request *r = &trace->requests[i];
        const int32_t *tokens = trace->tokens + r->first;
        uint32_t depth = r->known < r->usable ? r->known : r->usable;
        size_t vertices = 1;
        double area = 0;
        hull[0] = (struct vertex){0, 0};
        for (uint32_t k = 0; k < depth; k++) {
            double steps = (double)i - last[tokens[k]];
            area += block * steps;
            vertices = hull_add(hull, vertices, (struct vertex){area + state * steps, k + 1});
        }
        for (size_t k = 1; k < vertices; k++) {
            double cost = hull[k].cost - hull[k - 1].cost;
            double value = hull[k].value - hull[k - 1].value;
            items = bench_grow(items, &item_cap, item_count + 1, sizeof *items);
            items[item_count++] = (struct item){value / fmax(cost, 1e-9), cost, value};
        }
        for (uint32_t k = 0; k < r->blocks; k++) last[tokens[k]] = (double)i;
    }
    if (item_count > 0)
        qsort(items, item_count, sizeof *items, by_ratio);
    double budget = job->spec.budget_gib * 1073741824.0 * (double)trace->count, value = 0;
    for (size_t i = 0; i < item_count && budget > 0; i++) {
        double part = items[i].cost <= budget ? 1 : budget / items[i].cost;
        value += part * items[i].value;
        budget -= items[i].cost;
    }
    job->result.input_tokens = trace->input_tokens;
    job->result.bound = value * trace->block / (double)trace->input_tokens;
    free(last);
    free(hull);
    free(items);
    job->result.seconds = (double)(sc_clock_now_ns() - start) * 1e-9;
}
