/* SPDX-License-Identifier: Apache-2.0 */
/* The loop:
 *
 *   admit     acquire for those who have arrived, in order; no slot: later
 *   build     a decode row for each request past its prompt, then prefill rows within the budget,
 *             each only if pages for all its tokens are there (else evict, drain, try again)
 *   plan      the library picks slots and may cut a row back to the grid
 *   launch    the device runs the model on those slots and pages, and samples
 *   collect   the oldest step in flight, once enough are out or nothing more can be planned:
 *   commit    with the tokens that turned out and the ids of the pages that were completed
 *   go on     append the next token; fork, preempt, finish (departure.c)
 *
 * With --in-flight 1 a step is collected at once. With more, the next one is planned before the
 * results of the last are known: decode rows begin with a token that only the device knows, behind
 * drafts even where they begin.
 *
 * Time is virtual: a step takes step_ns and token_ns for each token, steps one after the other, so
 * that two runs with the same options make the same decisions. A request that waits for pages while
 * nothing else can run is preempted (the youngest first).
 *
 * The page that a request is filling is the scheduler's (page_ids: OURS) until a commit completes
 * it; only then is its id handed in. A tail owns its partial page: who resumes or leaves one goes
 * on in a copy, made by the device before or behind the row. */
#include "scheduler.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "pass.h"

/* ---------------------------------------------------------------------------------------- pages */

void pass_drain(struct pass *p)
{
    enum { AT_ONCE = 1024 };
    int32_t ids[AT_ONCE];
    uint32_t count = AT_ONCE;
    while (count == AT_ONCE) {
        bench_must(sc_cache_drain(p->cache, ids, AT_ONCE, &count), "sc_cache_drain");
        for (uint32_t i = 0; i < count; i++)
            page_ids_drained(&p->ids, ids[i]);
    }
}

void pass_adopt(struct pass *p, struct running *r)
{
    uint32_t replaced = 0, count = 0;
    if (r->flights > 0) /* a forward reads the old ids */
        return;
    bench_must(sc_lease_adopt(p->cache, r->lease, &replaced), "sc_lease_adopt");
    if (replaced > 0)
        bench_must(sc_lease_kv_ids(p->cache, r->lease, 0, r->pages, r->page_count, &count),
            "sc_lease_kv_ids");
}

bool pass_make_room(struct pass *p, uint32_t pages)
{
    if (p->ids.free_count >= pages)
        return true;
    pass_drain(p);
    if (p->ids.free_count < pages) {
        sc_room got;
        bench_must(sc_cache_evict(p->cache, pages - p->ids.free_count, 0, &got),
            "sc_cache_evict");
        pass_drain(p);
    }
    if (p->ids.free_count < pages) {
        for (uint32_t at = 0; at < p->running_count; at++)
            pass_adopt(p, p->running[at]);
        pass_drain(p);
    }
    return p->ids.free_count >= pages;
}

/* ------------------------------------------------------------------------------------- building */

/* Where the request's next row may end at most. */
static uint32_t limit(const struct pass *p, const struct running *r)
{
    uint32_t end = p->o->late_stop ? r->total + p->slack : r->total;
    return r->fork_at < end ? r->fork_at : end;
}

/* The shape of the row's drafts, at most `depth_max` deep; returns their depth. */
static uint32_t shape_drafts(struct pass *p, const struct running *r, uint32_t depth_max,
    sc_row *row)
{
    int32_t *parents = p->parents + (size_t)p->row_count * p->o->drafts;
    uint32_t depth[DRAFTS_MAX + 1] = {0}, deepest = 0;
    for (uint32_t d = 0; depth_max > 0 && d < p->o->drafts; d++) {
        uint64_t coin = sc_mix64(sc_mix64(p->o->seed + 0x7ee + r->request) ^
            ((uint64_t)r->issued_max << 32 | d));
        uint32_t parent = d; /* as a node: 0 is the certain token */
        if (p->o->draft_tree && coin % 2 == 0)
            parent = (uint32_t)(coin / 2 % (d + 1));
        while (depth[parent] == depth_max && p->o->draft_tree)
            parent--;
        if (depth[parent] == depth_max)
            break;
        parents[d] = (int32_t)parent - 1;
        depth[d + 1] = depth[parent] + 1;
        deepest = depth[d + 1] > deepest ? depth[d + 1] : deepest;
        row->draft_count++;
    }
    row->parents = row->draft_count > 0 && p->o->draft_tree ? parents : NULL;
    return deepest;
}

/* Adds a row if pages for its tokens are there, and one for the copy of a tail. */
static bool add_row(struct pass *p, struct running *r, const sc_row *row, uint32_t *pages)
{
    uint32_t need = pages_for(p, row->to);
    need = need > r->page_count ? need - r->page_count : 0;
    need += p->o->tails && row->to % p->o->page != 0;
    if (!pass_make_room(p, *pages + need))
        return false;
    *pages += need;
    uint32_t at = p->row_count++;
    p->row_of[at] = r;
    p->rows[at] = *row;
    uint32_t point = request_of(p, r)->end_point;
    if (p->o->save_points && point > row->from && point <= row->to && row->to <= r->prompt_len) {
        p->points[at] = point;
        p->rows[at].points = &p->points[at];
        p->rows[at].point_count = 1;
    }
    return true;
}

static bool can_go_on(const struct pass *p, const struct running *r)
{
    return !r->stopping && r->flights < p->o->in_flight && r->issued_max < limit(p, r);
}

static void build_decode(struct pass *p, uint32_t *left, uint32_t *pages)
{
    for (uint32_t at = 0; at < p->running_count; at++) {
        struct running *r = p->running[at];
        if (!can_go_on(p, r) || r->issued_len < r->prompt_len)
            continue;
        sc_row row = {.lease = r->lease, .from = r->issued_len};
        uint32_t tokens = 1 + shape_drafts(p, r, limit(p, r) - r->issued_max - 1, &row);
        row.to = r->issued_max + tokens;
        tokens = 1 + row.draft_count;
        if (add_row(p, r, &row, pages))
            *left = *left > tokens ? *left - tokens : 0;
    }
}

/* Where a prefill row of at most `budget` tokens should end: at the prompt's end or on the grid, so
 * that its cut leaves no trace. `from`: nothing fits. */
static uint32_t prefill_to(const struct pass *p, const struct running *r, uint32_t budget)
{
    uint32_t from = r->issued_len, left = r->prompt_len - from;
    if (left <= budget || p->o->budget == 0)
        return r->prompt_len;
    uint32_t to = from + budget;
    if (p->o->keep_cuts || to / p->grid * p->grid > from)
        return to; /* the library cuts it back */
    return from;
}

static void build_prefill(struct pass *p, uint32_t left, uint32_t *pages)
{
    for (uint32_t at = 0; at < p->running_count; at++) {
        struct running *r = p->running[at];
        uint32_t from = r->issued_len;
        if (!can_go_on(p, r) || from >= r->prompt_len || (p->o->budget && left == 0))
            continue;
        uint32_t share = p->o->budget && left > p->o->budget / 2 ? p->o->budget / 2 : left;
        uint32_t to = prefill_to(p, r, share);
        if (to == from)
            to = prefill_to(p, r, left);
        if (to == from && p->row_count == 0) /* a whole grid, whatever the budget says */
            to = from + p->grid < r->prompt_len ? from + p->grid : r->prompt_len;
        sc_row row = {.lease = r->lease, .from = from, .to = to};
        if (to > from && add_row(p, r, &row, pages))
            left -= left < to - from ? left : to - from;
    }
}

static void build(struct pass *p)
{
    uint32_t pages = 0, left = p->o->budget;
    p->row_count = 0;
    build_decode(p, &left, &pages);
    build_prefill(p, left, &pages);
}

/* ------------------------------------------------------------------------------------ launching */

/* Takes pages for what was granted and describes the row to the device. */
static void launch_row(struct pass *p, struct flight *f, uint32_t at)
{
    struct running *r = p->row_of[at];
    const sc_batch *batch = &f->device.batch;
    const int32_t *block = batch->block;
    uint32_t to = (uint32_t)block[batch->at_end + at], page = to / p->o->page;
    struct device_row *row = &f->device.rows[at];
    for (uint32_t pages = pages_for(p, to); r->page_count < pages; r->page_count++)
        r->pages[r->page_count] = page_ids_take(&p->ids);
    *row = (struct device_row){.sequence = &r->sequence, .first = {-1, -1}, .last = {-1, -1},
        .wants_hidden = r->witness != NULL, .wants_state = r->witness && p->o->late_stop};
    if (p->o->model) {
        row->pages = bench_alloc(pages_for(p, to), sizeof *row->pages);
        memcpy(row->pages, r->pages, pages_for(p, to) * sizeof *row->pages);
    }
    if (r->tail_page >= 0)
        row->first = (struct page_copy){r->tail_page, r->pages[r->len / p->o->page]};
    r->tail_page = -1;
    struct flight_row *row_out = &f->rows[at];
    *row_out = (struct flight_row){.r = r, .tail_page = -1};
    if (block[batch->at_freeze + at] == 2 && p->ids.free_count > 0) {
        row_out->tail_page = r->pages[page];
        r->pages[page] = page_ids_take(&p->ids);
        row->last = (struct page_copy){row_out->tail_page, r->pages[page]};
    }
    uint32_t drafts = (uint32_t)block[batch->at_draft_count + at];
    row_out->draft_count = drafts;
    row_out->certain = (uint32_t)(block[batch->at_query_start_loc + at + 1] -
        block[batch->at_query_start_loc + at]) - drafts;
    row_out->span = to - r->issued_max;
    p->result->rows_overlapped += r->flights > 0;
    p->result->rows_uncertain += r->issued_len != r->issued_max;
    p->result->draft_rows += drafts > 0;
    if (r->witness && r->flights > 0)
        r->witness->flags |= WITNESS_OVERLAPPED;
    r->flights++;
    r->issued_len += row_out->certain;
    r->issued_max = to;
}

static void launch(struct pass *p)
{
    struct flight *f =
        &p->flights[(p->flight_first + p->flight_count) % p->o->in_flight];
    f->number = ++p->step;
    f->row_count = p->row_count;
    uint64_t begin = sc_clock_now_ns();
    bench_must(sc_step_plan(p->cache, f->number, p->rows, p->row_count, p->now_ns,
        &f->device.batch, p->each), "sc_step_plan");
    p->result->library_ns += sc_clock_now_ns() - begin;
    for (uint32_t at = 0; at < p->row_count; at++) {
        bench_must(p->each[at], "sc_step_plan, a row");
        launch_row(p, f, at);
    }
    uint32_t tokens = f->device.batch.token_count;
    p->device_free_ns = p->now_ns > p->device_free_ns ? p->now_ns : p->device_free_ns;
    p->device_free_ns += p->o->step_ns + p->o->token_ns * tokens;
    f->done_ns = p->device_free_ns;
    p->result->computed_tokens += tokens;
    p->result->rows += p->row_count;
    p->result->steps++;
    p->result->steps_overlapped += p->flight_count > 0;
    p->flight_count++;
    device_launch(&p->device, &f->device);
}

/* ----------------------------------------------------------------------------------- collecting */

/* What the row has sampled is the request's text, up to its end. */
static void take_text(struct pass *p, struct running *r, uint32_t len)
{
    struct bench_request *request = &p->workload->requests[r->request];
    uint32_t known = len < r->prompt_len ? request->known : len + 1 < r->total ? len + 1
        : r->total;
    for (; request->known < known; request->known++)
        request->tokens[request->known] = r->sequence.text[request->known];
}

/* Adds tokens to the lease up to `count`. */
static void append(struct pass *p, struct running *r, uint32_t count)
{
    if (count <= r->token_count)
        return;
    bench_must(sc_lease_append(p->cache, r->lease, request_of(p, r)->tokens + r->token_count,
        count - r->token_count), "sc_lease_append");
    r->token_count = count;
}

/* Tokens and KV ids that the row brings. Ids go to `p->kv_ids` from `*id_count` on. */
static void result_of(struct pass *p, const struct flight *f, uint32_t at, uint32_t *id_count)
{
    struct running *r = f->rows[at].r;
    const struct device_row *row = &f->device.rows[at];
    int32_t *ids = p->kv_ids + *id_count;
    p->results[at] = (sc_result){.lease = r->lease, .len = row->len, .kv_ids = ids};
    if (r->released) { /* behind the end: nothing of it is kept, its pages are still ours */
        p->result->rows_late++;
        return;
    }
    take_text(p, r, row->len);
    append(p, r, row->len);
    uint32_t first = r->len / p->o->page, count = row->len / p->o->page - first;
    memcpy(ids, r->pages + first, count * sizeof *ids);
    if (f->rows[at].tail_page >= 0) {
        ids[count++] = f->rows[at].tail_page;
        p->result->tails_handed++;
    }
    p->results[at].kv_count = count;
    *id_count += count;
}

static void commit(struct pass *p, const struct flight *f)
{
    uint32_t id_count = 0, room = 0;
    for (uint32_t at = 0; at < f->row_count; at++)
        room += (f->device.rows[at].len - f->device.rows[at].from) / p->o->page + 2;
    p->kv_ids = bench_grow(p->kv_ids, &p->kv_ids_cap, room, sizeof *p->kv_ids);
    for (uint32_t at = 0; at < f->row_count; at++)
        result_of(p, f, at, &id_count);
    uint64_t begin = sc_clock_now_ns();
    bench_must(sc_step_commit(p->cache, f->number, p->results, f->row_count, p->each),
        "sc_step_commit");
    p->result->library_ns += sc_clock_now_ns() - begin;
    for (uint32_t i = 0; i < id_count; i++)
        page_ids_hand_in(&p->ids, p->kv_ids[i]);
    p->result->ring_appends += f->device.appends;
    p->result->ring_flushes += f->device.flushes;
    p->result->ring_folds += f->device.folds;
    p->result->ring_lost |= f->device.lost_flush;
    p->result->compute_ns += f->device.compute_ns;
    p->result->cpu_ns += f->device.cpu_ns;
}

static void witness_row(struct pass *p, struct running *r, const struct device_row *row)
{
    size_t width = p->o->model->options.hidden, vocab = p->o->model->options.vocab;
    memcpy(witness_hidden(p->o->witnesses, r->witness, row->from, row->len), row->hidden,
        (row->len - row->from) * width * sizeof *row->hidden);
    for (uint32_t i = 0; i < row->logits_count; i++)
        witness_logits(p->o->witnesses, r->witness, row->len - row->logits_count + i + 1,
            row->logits + i * vocab);
    if (row->accepted > 0)
        r->witness->flags |= WITNESS_DRAFTED;
}

/* The row is committed: the request is as long as it turned out. */
static void take_row(struct pass *p, const struct flight_row *out, struct device_row *row)
{
    struct running *r = out->r;
    bool prefill = r->len < r->prompt_len;
    r->flights--;
    if (r->released)
        return;
    p->result->drafts += out->draft_count;
    p->result->drafts_accepted += row->accepted;
    if (r->witness)
        witness_row(p, r, row);
    free(r->end_state);
    r->end_state = row->state;
    row->state = NULL;
    if (row->logits)
        memcpy(r->logits, row->logits + (row->logits_count - 1) * (size_t)p->sampler.vocab,
            p->sampler.vocab * sizeof *r->logits);
    /* What is issued behind it begins where it really ended. */
    r->issued_len = row->len + (r->issued_len - r->len - out->certain);
    r->issued_max = row->len + (r->issued_max - r->len - out->span);
    r->len = row->len;
    if (prefill && r->len >= r->prompt_len)
        pass_adopt(p, r); /* others may have computed the same prompt meanwhile */
}

static bool has_to_go(const struct pass *p, const struct running *r)
{
    uint64_t coin = sc_mix64(sc_mix64(p->o->seed + 0x9e0 + r->request) + p->step);
    return (double)(coin >> 11) * 0x1p-53 < p->o->preempt;
}

/* What follows a committed row: the next token, or the end. The last token is computed, too, so
 * that a follow-up finds its state. */
static void go_on(struct pass *p, struct running *r)
{
    if (r->released) {
        if (r->flights == 0)
            pass_drained(p, r);
        return;
    }
    if (r->len == r->total) {
        pass_finish(p, r);
        return;
    }
    if (r->len == r->fork_at)
        pass_fork(p, r);
    if (r->len >= r->prompt_len)
        append(p, r, r->len + 1);
    r->stopping |= has_to_go(p, r);
    if (r->stopping && r->flights == 0)
        pass_preempt(p, r, true);
}

static void collect(struct pass *p)
{
    struct flight *f = &p->flights[p->flight_first];
    device_wait(&p->device, &f->device);
    p->now_ns = f->done_ns > p->now_ns ? f->done_ns : p->now_ns;
    p->flight_first = (p->flight_first + 1) % p->o->in_flight;
    p->flight_count--;
    commit(p, f);
    for (uint32_t at = 0; at < f->row_count; at++)
        take_row(p, &f->rows[at], &f->device.rows[at]);
    pass_drain(p);
    for (uint32_t at = 0; at < f->row_count; at++)
        go_on(p, f->rows[at].r);
    pass_tiers_settle(p);
    device_step_clear(&f->device);
    sc_pool_info info;
    bench_must(sc_pool_info_get(p->pool, &info), "sc_pool_info_get");
    if (info.slot_count - info.free_count > p->result->slots_peak)
        p->result->slots_peak = info.slot_count - info.free_count;
    if (p->o->verify_every && f->number % p->o->verify_every == 0)
        bench_must(sc_cache_verify(p->cache), "sc_cache_verify");
}

/* Nothing runs, and nothing can: the youngest has to go. */
static void make_way(struct pass *p)
{
    if (p->running_count == 1)
        bench_fail(BENCH_USAGE, "%u KV pages of %u tokens are too few to serve one request",
            p->o->kv_pages, p->o->page);
    pass_preempt(p, p->running[p->running_count - 1], false);
}

static void step(struct pass *p)
{
    build(p);
    if (p->row_count > 0)
        launch(p);
    if (p->row_count > 0 && p->flight_count < p->o->in_flight)
        return;
    if (p->flight_count > 0)
        collect(p);
    else
        make_way(p);
}

/* ----------------------------------------------------------------------------------- whole pass */

/* One ring for each lease, those that drain too; and for some of the states that are kept with
 * records on top. */
static void open_rings(struct pass *p)
{
    sc_pool_info info;
    if (!p->o->model || p->o->model->options.ring == 0)
        return;
    p->rings = served_rings_create(p->o->model, p->o->layout, 2 * p->row_max + p->o->slots / 4);
    bench_must(sc_pool_info_get(p->rings, &info), "sc_pool_info_get");
    p->result->ring_bytes = info.memory_bytes;
}

static void open_cache(struct pass *p)
{
    sc_pool_options pool = SC_POOL_OPTIONS_INIT;
    pool.schema = p->o->schema;
    pool.layout = p->o->layout;
    pool.slot_count = p->o->slots;
    pool.backend = p->o->model ? p->o->model->options.backend : NULL;
    bench_must(sc_pool_create(&pool, &p->pool), "sc_pool_create");
    sc_cache_options options = SC_CACHE_OPTIONS_INIT;
    options.pool = p->pool;
    open_rings(p);
    options.extras = p->rings;
    options.page_tokens = p->o->page;
    options.row_max = p->row_max;
    options.save_max = 8 * p->row_max * (1 + p->o->drafts);
    options.lease_max = 2 * p->row_max; /* those that drain, too */
    options.lease_token_max = workload_longest(p->workload) + p->slack + 1;
    options.save_flags = p->o->save_flags;
    options.decode_interval = p->o->decode_interval;
    options.path_snapshots_max = p->o->path_snapshots_max;
    options.keep_cuts = p->o->keep_cuts;
    options.depth_max = p->o->in_flight;
    options.draft_max = p->o->drafts;
    options.tails = p->o->tails;
    options.policy = p->o->policy;
    pass_tiers_open(p, &options);
    bench_must(sc_cache_create(&options, &p->cache), "sc_cache_create");
    sc_cache_stats stats = {.struct_size = sizeof stats};
    bench_must(sc_cache_stats_get(p->cache, &stats), "sc_cache_stats_get");
    p->earlier = stats.tier_loaded > 0;
    bench_must(sc_namespace_open(p->cache, NULL, 0, 0, &p->ns), "sc_namespace_open");
    bench_must(sc_schema_grid(p->o->schema, p->o->page, &p->grid), "sc_schema_grid");
    page_ids_init(&p->ids, p->o->kv_pages);
    if (p->o->model)
        paged_kv_init(&p->kv, p->o->model, p->o->page, p->o->kv_pages);
}

static void open_arrays(struct pass *p)
{
    size_t requests = p->workload->request_count, rows = p->row_max;
    p->ordered = bench_alloc(requests, sizeof *p->ordered);
    p->result->order = bench_alloc(requests, sizeof *p->result->order);
    p->first_fork = bench_alloc(requests, sizeof *p->first_fork);
    p->next_fork = bench_alloc(requests, sizeof *p->next_fork);
    memset(p->first_fork, 0xff, requests * sizeof *p->first_fork);
    for (size_t i = requests; i-- > 0;) {
        int32_t parent = p->workload->requests[i].fork_of;
        if (parent < 0)
            continue;
        p->next_fork[i] = p->first_fork[parent];
        p->first_fork[parent] = (int32_t)i;
    }
    p->forked = bench_alloc(requests, sizeof *p->forked);
    p->kept_len = bench_alloc(requests, sizeof *p->kept_len);
    p->running = bench_alloc(rows, sizeof(struct running *));
    p->rows = bench_alloc(rows, sizeof *p->rows);
    p->row_of = bench_alloc(rows, sizeof(struct running *));
    p->each = bench_alloc(rows, sizeof *p->each);
    p->results = bench_alloc(rows, sizeof *p->results);
    p->parents = bench_alloc(rows * p->o->drafts, sizeof *p->parents);
    p->points = bench_alloc(rows, sizeof *p->points);
    for (uint32_t i = 0; i < p->o->in_flight; i++) {
        p->flights[i].rows = bench_alloc(rows, sizeof *p->flights[i].rows);
        p->flights[i].device.rows = bench_alloc(rows, sizeof *p->flights[i].device.rows);
    }
}

static void open_device(struct pass *p)
{
    p->sampler = (struct sampler){p->o->model, p->workload->vocab, p->o->temperature, p->o->seed};
    struct device_options options = {.sampler = p->sampler, .pool = p->pool, .rings = p->rings,
        .kv = &p->kv, .lose_flush = p->o->lose_flush,
        .threads = p->o->threads, .depth = p->o->in_flight, .row_max = p->row_max,
        .draft_accept = p->o->draft_accept};
    device_open(&p->device, &options);
}

/* With tiers the namespace stays: closing it would drop what is on disk. */
static void empty_device(struct pass *p)
{
    sc_room got;
    if (p->tiers)
        bench_must(sc_cache_evict(p->cache, UINT32_MAX, UINT32_MAX, &got), "sc_cache_evict");
    else
        bench_must(sc_namespace_close(p->cache, p->ns), "sc_namespace_close");
    pass_drain(p);
}

/* Reads the counts, then empties the cache: every id must come back. */
static void close_cache(struct pass *p)
{
    struct pass_result *result = p->result;
    pass_tiers_settle(p);
    bench_must(sc_cache_verify(p->cache), "sc_cache_verify");
    bench_must(sc_pool_audit(p->pool, true), "sc_pool_audit");
    result->stats.struct_size = sizeof result->stats;
    bench_must(sc_cache_stats_get(p->cache, &result->stats), "sc_cache_stats_get");
    bench_must(sc_pool_info_get(p->pool, &result->pool), "sc_pool_info_get");
    for (int i = 0; i < SC_SUBSYSTEM_COUNT; i++)
        bench_must(sc_heap_stats_get((enum sc_subsystem)i, &result->heap[i]),
            "sc_heap_stats_get");
    sc_room room;
    bench_must(sc_cache_room(p->cache, &room), "sc_cache_room");
    result->id_faults += room.pages_cached + room.pages_held + room.pages_drainable !=
        p->ids.cached;
    result->kv_left = p->ids.cached;
    empty_device(p);
    result->id_faults += p->ids.faults + p->ids.cached + p->ids.ours;
    result->kv_peak = p->ids.peak;
    result->kv_pages = p->o->kv_pages;
    result->slots = p->o->slots;
    bench_must(sc_cache_destroy(p->cache), "sc_cache_destroy");
    pass_tiers_close(p);
    bench_must(sc_pool_destroy(p->pool), "sc_pool_destroy");
    if (p->rings)
        bench_must(sc_pool_destroy(p->rings), "sc_pool_destroy, of rings");
}

static void close_arrays(struct pass *p)
{
    void *owned[] = {p->running, p->rows, p->row_of, p->each, p->results, p->parents, p->points,
        p->ordered, p->first_fork, p->next_fork, p->forked, p->kept_len, p->kv_ids};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    for (uint32_t i = 0; i < p->o->in_flight; i++) {
        free(p->flights[i].rows);
        free(p->flights[i].device.rows);
    }
    arrivals_deinit(&p->arrivals);
    page_ids_deinit(&p->ids);
    paged_kv_deinit(&p->kv);
}

/* As engines do at their start: pages come from the system at the first touch. */
static void touch_memory(struct pass *p)
{
    sc_pool_info info;
    bench_must(sc_pool_info_get(p->pool, &info), "sc_pool_info_get");
    if (!p->o->model || !place_is_host(p->o->model->options.backend))
        return;
    memset((void *)(uintptr_t)info.base, 0, info.memory_bytes);
    memset(p->kv.data, 0, (size_t)p->o->model->attention_layers * p->kv.page_count *
        p->kv.page_tokens * p->kv.row_floats * sizeof *p->kv.data);
}

void pass_run(struct workload *workload, const struct pass_options *options,
    struct pass_result *result)
{
    struct pass pass = {.workload = workload, .o = options, .result = result};
    struct bench_progress progress;
    memset(result, 0, sizeof *result);
    sc_prng_seed(&pass.sabotage, sc_mix64(options->sabotage_seed + 0x5ab));
    pass.sabotage_from = sc_prng_below(&pass.sabotage, workload->request_count / 2 + 1);
    pass.slack = options->late_stop ? options->in_flight * (1 + options->drafts) : 0;
    pass.row_max = options->fork ? 3 * options->running_max : options->running_max;
    open_cache(&pass);
    open_arrays(&pass);
    open_device(&pass);
    arrivals_init(&pass.arrivals, workload, options->speed);
    bench_progress_start(&progress, options->label);
    if (options->touch)
        touch_memory(&pass);
    uint64_t begin = sc_clock_now_ns(), cpu_begin = bench_cpu_ns();
    while (pass.arrivals.count + pass.running_count + pass.flight_count > 0) {
        pass_admit_all(&pass);
        step(&pass);
        bench_progress_show(&progress, result->requests, workload->request_count);
    }
    result->wall_ns = sc_clock_now_ns() - begin;
    result->process_ns = bench_cpu_ns() - cpu_begin;
    result->virtual_ns = pass.now_ns;
    bench_progress_end(&progress);
    device_close(&pass.device);
    close_cache(&pass);
    close_arrays(&pass);
}
