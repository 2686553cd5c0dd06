/* SPDX-License-Identifier: Apache-2.0 */
/* The loop:
 *
 *   admit     acquire for those who have arrived, in order; no slot: later
 *   build     a decode row for each request past its prompt, then prefill rows within the budget,
 *             each only if pages for all its tokens are there (else evict, drain, try again)
 *   plan      the library picks slots and may cut a row back to the grid
 *   forward   the model, on those slots and pages
 *   commit    with the ids of the pages that were completed
 *   sample    append the next token; finish those who are done: release with keep
 *
 * Time is virtual: a step takes step_ns and token_ns for each token, so that two runs with the same
 * options make the same decisions. A request that waits for pages while nothing else can run is
 * preempted (the youngest first): it gives all back and starts over, resuming from what it left.
 *
 * The page that a request is filling is the scheduler's (page_ids: OURS) until a commit completes
 * it; only then is its id handed in. */
#include "scheduler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"

struct running {
    size_t request;
    sc_lease lease;
    uint32_t len, token_count; /* committed; in the lease */
    uint32_t resume_len;
    int32_t *pages;            /* ids of tokens [0, ...), the page being filled included */
    uint32_t page_count;
    struct witness *witness;
    float *logits;             /* of its last row */
    uint32_t row;              /* in the step being made; UINT32_MAX: none */
};

struct waiting {
    uint64_t ready_ns;
    size_t request;
};

struct pass {
    struct workload *workload;
    const struct pass_options *o;
    struct pass_result *result;
    sc_pool *pool;
    sc_cache *cache;
    sc_namespace ns;
    struct page_ids ids;
    struct paged_kv kv;
    uint32_t grid;
    uint64_t now_ns;
    sc_step step;

    struct waiting *queue; /* binary heap: first ready, then lowest index */
    size_t queue_count;
    int32_t *first_next, *next_next; /* requests that wait for one to finish: lists */

    struct running *running;
    uint32_t running_count;
    bool crowded;  /* someone was preempted: admit nobody until someone has finished */
    bool *ordered; /* requests that are in result->order */
    size_t ordered_count;

    /* of the step being made */
    sc_row *rows;
    uint32_t *row_of;      /* row -> running */
    uint32_t row_count;
    sc_status *each;
    sc_result *results;
    struct served_row *served;
    struct served_save *saves;
    uint32_t *points;      /* one for each row */
    struct sc_prng sabotage;
    uint64_t sabotage_from; /* admissions to let pass before */
};

/* ------------------------------------------------------------------------------------ the queue */

static bool before(const struct waiting *a, const struct waiting *b)
{
    return a->ready_ns != b->ready_ns ? a->ready_ns < b->ready_ns : a->request < b->request;
}

static void queue_push(struct pass *p, uint64_t ready_ns, size_t request)
{
    size_t at = p->queue_count++;
    struct waiting item = {ready_ns, request};
    while (at > 0 && before(&item, &p->queue[(at - 1) / 2])) {
        p->queue[at] = p->queue[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    p->queue[at] = item;
}

static void queue_pop(struct pass *p)
{
    struct waiting item = p->queue[--p->queue_count];
    size_t at = 0;
    for (size_t child = 1; child < p->queue_count; child = 2 * at + 1) {
        if (child + 1 < p->queue_count && before(&p->queue[child + 1], &p->queue[child]))
            child++;
        if (!before(&p->queue[child], &item))
            break;
        p->queue[at] = p->queue[child];
        at = child;
    }
    p->queue[at] = item;
}

static uint64_t arrival(const struct pass *p, const struct bench_request *request)
{
    return (uint64_t)((double)request->arrive_ns / p->o->speed);
}

static void queue_fill(struct pass *p)
{
    for (size_t i = p->workload->request_count; i-- > 0;) {
        const struct bench_request *request = &p->workload->requests[i];
        if (request->after < 0) {
            queue_push(p, arrival(p, request), i);
            continue;
        }
        p->next_next[i] = p->first_next[request->after];
        p->first_next[request->after] = (int32_t)i;
    }
}

static void queue_followers(struct pass *p, size_t request)
{
    for (int32_t i = p->first_next[request]; i >= 0; i = p->next_next[i]) {
        const struct bench_request *next = &p->workload->requests[i];
        uint64_t ready = p->now_ns + next->think_ns, arrives = arrival(p, next);
        queue_push(p, ready > arrives ? ready : arrives, (size_t)i);
    }
}

/* ---------------------------------------------------------------------------------------- pages */

static void drain(struct pass *p)
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

/* Reads the tree's pages from now on where it has the same, so that ours come back. */
static void adopt(struct pass *p, struct running *r)
{
    uint32_t replaced = 0, count = 0;
    bench_must(sc_lease_adopt(p->cache, r->lease, &replaced), "sc_lease_adopt");
    if (replaced > 0)
        bench_must(sc_lease_kv_ids(p->cache, r->lease, 0, r->pages, r->page_count, &count),
            "sc_lease_kv_ids");
}

/* True if `pages` are free, after eviction, and adoption, if need be. */
static bool make_room(struct pass *p, uint32_t pages)
{
    if (p->ids.free_count >= pages)
        return true;
    drain(p);
    if (p->ids.free_count < pages) {
        sc_room got;
        bench_must(sc_cache_evict(p->cache, pages - p->ids.free_count, 0, &got),
            "sc_cache_evict");
        drain(p);
    }
    if (p->ids.free_count < pages) {
        for (uint32_t at = 0; at < p->running_count; at++)
            adopt(p, &p->running[at]);
        drain(p);
    }
    return p->ids.free_count >= pages;
}

static uint32_t pages_for(const struct pass *p, uint32_t tokens)
{
    return (tokens + p->o->page - 1) / p->o->page;
}

/* ------------------------------------------------------------------------------------ admission */

static void sabotage(struct pass *p, const sc_lease_info *info)
{
    if (!p->o->sabotage || p->result->sabotaged[0] || info->resume_slot == 0 ||
        p->result->admitted <= p->sabotage_from)
        return;
    state_flip(p->pool, (int32_t)info->resume_slot, &p->sabotage, p->result->sabotaged,
        sizeof p->result->sabotaged);
}

static void start_witness(struct pass *p, struct running *r, const sc_lease_info *info, bool force)
{
    if (!p->o->witnesses)
        return;
    enum resumed_at at = info->resume_len ? resumed_at_of(info->resume_kind) : AT_NOTHING;
    r->witness = witness_admit(p->o->witnesses, r->request, at, force);
    if (!r->witness)
        return;
    r->witness->resume_len = info->resume_len;
    r->witness->prompt_len = info->prompt_len;
    if (info->resume_len > 0) {
        r->witness->snapshot = bench_alloc(state_bytes(p->pool), 1);
        state_read(p->pool, info->source_slot, r->witness->snapshot);
    }
}

static void start(struct pass *p, size_t index, sc_lease lease)
{
    struct bench_request *request = &p->workload->requests[index];
    struct running *r = &p->running[p->running_count++];
    sc_lease_info info;
    bench_must(sc_lease_info_get(p->cache, lease, &info), "sc_lease_info_get");
    *r = (struct running){.request = index, .lease = lease, .len = info.resume_len,
        .token_count = request->prompt_len, .resume_len = info.resume_len};
    r->pages = bench_alloc(pages_for(p, request->prompt_len + request->output_len),
        sizeof *r->pages);
    bench_must(sc_lease_kv_ids(p->cache, lease, 0, r->pages,
        pages_for(p, request->prompt_len), &r->page_count), "sc_lease_kv_ids");
    if (p->o->model)
        r->logits = bench_alloc(p->o->model->options.vocab, sizeof *r->logits);
    if (!p->ordered[index])
        p->result->order[p->ordered_count++] = (uint32_t)index;
    p->ordered[index] = true;
    p->result->admitted++;
    bool sabotaged = p->result->sabotaged[0] != 0;
    sabotage(p, &info);
    start_witness(p, r, &info, !sabotaged && p->result->sabotaged[0]);
    p->result->prompt_tokens += request->prompt_len;
    p->result->hit_tokens += info.resume_len;
    p->result->resumed_at[info.resume_len ? resumed_at_of(info.resume_kind) : AT_NOTHING]++;
}

/* One request; false if there is no slot for it now. */
static bool admit(struct pass *p, size_t index)
{
    workload_materialize(p->workload, index);
    const struct bench_request *request = &p->workload->requests[index];
    sc_request wanted = {.key = {.ns = p->ns, .tokens = request->tokens,
        .token_count = request->prompt_len}};
    sc_answer answer = {0};
    sc_lease lease;
    sc_status each;
    uint64_t begin = sc_clock_now_ns();
    bench_must(sc_cache_lookup(p->cache, &wanted.key, 1, &answer), "sc_cache_lookup");
    bench_must(sc_cache_acquire(p->cache, &wanted, 1, p->now_ns, &lease, &each),
        "sc_cache_acquire");
    p->result->library_ns += sc_clock_now_ns() - begin;
    if (each == SC_ERR_NO_SLOT) {
        p->result->waits++;
        return false;
    }
    bench_must(each, "sc_cache_acquire, this request");
    start(p, index, lease);
    const struct running *r = &p->running[p->running_count - 1];
    p->result->lookup_differs += answer.state_len[SC_TIER_DEVICE] != r->resume_len;
    return true;
}

static void admit_all(struct pass *p)
{
    if (p->running_count == 0 && p->queue_count > 0 && p->queue[0].ready_ns > p->now_ns)
        p->now_ns = p->queue[0].ready_ns;
    while (!p->crowded && p->queue_count > 0 && p->running_count < p->o->running_max &&
        p->queue[0].ready_ns <= p->now_ns) {
        size_t request = p->queue[0].request;
        if (!admit(p, request)) {
            if (p->running_count == 0)
                bench_fail(BENCH_USAGE, "%u slots are too few to serve one request", p->o->slots);
            return;
        }
        queue_pop(p);
    }
}

/* ----------------------------------------------------------------------------------- end of one */

static void finish_witness(struct pass *p, struct running *r)
{
    struct witness *w = r->witness;
    const struct bench_request *request = &p->workload->requests[r->request];
    sc_lease_info info;
    uint32_t count = 0;
    bench_must(sc_lease_info_get(p->cache, r->lease, &info), "sc_lease_info_get");
    w->len = r->len;
    w->tokens = bench_alloc(r->len, sizeof *w->tokens);
    memcpy(w->tokens, request->tokens, r->len * sizeof *w->tokens);
    w->state = bench_alloc(state_bytes(p->pool), 1);
    state_read(p->pool, info.source_slot, w->state);
    w->kv_hash = bench_alloc(r->len, sizeof *w->kv_hash);
    for (uint32_t i = 0; i < r->len; i++)
        w->kv_hash[i] = kv_token_hash(p->o->model, &p->kv, r->pages, i);
    (void)sc_lease_history(p->cache, r->lease, NULL, 0, &count);
    w->history = bench_alloc(count, sizeof *w->history);
    bench_must(sc_lease_history(p->cache, r->lease, w->history, count, &w->history_count),
        "sc_lease_history");
    witness_stop(p->o->witnesses, w, true);
    r->witness = NULL;
}

/* Gives everything back; the index keeps what was computed if `keep`. */
static void end(struct pass *p, uint32_t at, bool keep)
{
    struct running *r = &p->running[at];
    if (r->witness)
        witness_stop(p->o->witnesses, r->witness, false);
    uint64_t begin = sc_clock_now_ns();
    bench_must(sc_lease_release(p->cache, r->lease, 0,
        keep ? SC_RELEASE_KEEP : SC_RELEASE_DISCARD), "sc_lease_release");
    p->result->library_ns += sc_clock_now_ns() - begin;
    for (uint32_t i = r->len / p->o->page; i < r->page_count; i++)
        page_ids_give_back(&p->ids, r->pages[i]);
    drain(p);
    free(r->pages);
    free(r->logits);
    memmove(r, r + 1, (p->running_count - at - 1) * sizeof *r);
    p->running_count--;
}

static void finish(struct pass *p, uint32_t at)
{
    struct running *r = &p->running[at];
    size_t request = r->request;
    if (r->witness)
        finish_witness(p, r);
    p->result->requests++;
    p->crowded = false;
    p->result->output_tokens += p->workload->requests[request].output_len;
    end(p, at, p->o->save_flags != 0);
    queue_followers(p, request);
    if (p->o->finished)
        p->o->finished(p->o->ctx, request);
    if (p->o->drop_tokens)
        workload_drop_tokens(p->workload, request);
}

/* The youngest starts over. */
static void preempt(struct pass *p)
{
    uint32_t at = p->running_count - 1;
    if (at == 0)
        bench_fail(BENCH_USAGE, "%u KV pages of %u tokens are too few to serve one request",
            p->o->kv_pages, p->o->page);
    size_t request = p->running[at].request;
    end(p, at, p->o->save_flags != 0);
    p->result->preempted++;
    p->crowded = true;
    queue_push(p, p->now_ns, request);
}

/* ------------------------------------------------------------------------------------- one step */

/* Adds a row for tokens up to `to` if pages for them are there. */
static bool add_row(struct pass *p, uint32_t at, uint32_t to, uint32_t *pages)
{
    struct running *r = &p->running[at];
    uint32_t need = pages_for(p, to) - r->page_count;
    if (!make_room(p, *pages + need))
        return false;
    *pages += need;
    uint32_t row = p->row_count++;
    r->row = row;
    p->row_of[row] = at;
    p->rows[row] = (sc_row){.lease = r->lease, .from = r->len, .to = to};
    uint32_t point = p->workload->requests[r->request].end_point;
    if (p->o->save_points && point > r->len && point <= to) {
        p->points[row] = point;
        p->rows[row].points = &p->points[row];
        p->rows[row].point_count = 1;
    }
    return true;
}

/* Where a prefill row of at most `budget` tokens should end: at the prompt's end or on the grid, so
 * that its cut leaves no trace. `from`: nothing fits. */
static uint32_t prefill_to(const struct pass *p, const struct running *r, uint32_t budget)
{
    uint32_t from = r->len, left = r->token_count - from;
    if (left <= budget || p->o->budget == 0)
        return r->token_count;
    uint32_t to = from + budget;
    if (p->o->keep_cuts || to / p->grid * p->grid > from)
        return to; /* the library cuts it back */
    return from;
}

static void build(struct pass *p)
{
    uint32_t pages = 0, left = p->o->budget, prompt;
    p->row_count = 0;
    for (uint32_t at = 0; at < p->running_count; at++) {
        struct running *r = &p->running[at];
        prompt = p->workload->requests[r->request].prompt_len;
        r->row = UINT32_MAX;
        if (r->len >= prompt && add_row(p, at, r->len + 1, &pages))
            left = left > 0 ? left - 1 : 0;
    }
    for (uint32_t at = 0; at < p->running_count; at++) {
        struct running *r = &p->running[at];
        prompt = p->workload->requests[r->request].prompt_len;
        if (r->len >= prompt || (p->o->budget && left == 0))
            continue;
        uint32_t share = p->o->budget && left > p->o->budget / 2 ? p->o->budget / 2 : left;
        uint32_t to = prefill_to(p, r, share);
        if (to == r->len)
            to = prefill_to(p, r, left);
        if (to == r->len && p->row_count == 0) /* a whole grid, whatever the budget says */
            to = r->len + p->grid < r->token_count ? r->len + p->grid : r->token_count;
        if (to > r->len && add_row(p, at, to, &pages))
            left -= left < to - r->len ? left : to - r->len;
    }
}

/* Takes pages for what was granted and describes the row to the model. */
static void serve_row(struct pass *p, const sc_batch *batch, uint32_t row, uint32_t *save)
{
    struct running *r = &p->running[p->row_of[row]];
    const int32_t *block = batch->block;
    uint32_t to = (uint32_t)block[batch->at_end + row];
    for (uint32_t pages = pages_for(p, to); r->page_count < pages; r->page_count++)
        r->pages[r->page_count] = page_ids_take(&p->ids);
    struct served_row *out = &p->served[row];
    *out = (struct served_row){.tokens = p->workload->requests[r->request].tokens,
        .from = r->len, .to = to, .decode = block[batch->at_decode + row] == 1,
        .source = block[batch->at_source + row], .dest = block[batch->at_dest + row],
        .pages = r->pages, .save_first = *save};
    for (uint32_t i = 0; i < batch->save_count; i++)
        if (block[batch->at_save_row + i] == (int32_t)row)
            p->saves[(*save)++] = (struct served_save){
                (uint32_t)block[batch->at_save_position + i], block[batch->at_save_slot + i]};
    out->save_count = *save - out->save_first;
    if (r->witness)
        out->hidden_out = witness_hidden(p->o->witnesses, r->witness, r->len, to);
    if (to >= p->workload->requests[r->request].prompt_len)
        out->logits_out = r->logits;
}

/* Processor time of the whole process. */
static uint64_t cpu_ns(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage))
        return 0;
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000u +
        (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000u;
}

static void forward(struct pass *p, const sc_batch *batch)
{
    uint32_t save = 0, tokens = 0;
    for (uint32_t row = 0; row < p->row_count; row++) {
        serve_row(p, batch, row, &save);
        tokens += p->served[row].to - p->served[row].from;
    }
    struct served_forward run = {.rows = p->served, .row_count = p->row_count, .saves = p->saves,
        .pool = p->pool, .kv = &p->kv, .threads = p->o->threads};
    if (p->o->model) {
        uint64_t begin = sc_clock_now_ns(), cpu_begin = cpu_ns();
        served_run(p->o->model, &run);
        p->result->compute_ns += sc_clock_now_ns() - begin;
        p->result->cpu_ns += cpu_ns() - cpu_begin;
    }
    p->result->computed_tokens += tokens;
    p->result->rows += p->row_count;
    p->result->steps++;
    p->now_ns += p->o->step_ns + p->o->token_ns * tokens;
}

static void commit(struct pass *p)
{
    for (uint32_t row = 0; row < p->row_count; row++) {
        const struct running *r = &p->running[p->row_of[row]];
        uint32_t first = r->len / p->o->page, last = p->served[row].to / p->o->page;
        p->results[row] = (sc_result){r->lease, p->served[row].to, r->pages + first, last - first};
    }
    uint64_t begin = sc_clock_now_ns();
    bench_must(sc_step_commit(p->cache, p->step, p->results, p->row_count, p->each),
        "sc_step_commit");
    p->result->library_ns += sc_clock_now_ns() - begin;
    for (uint32_t row = 0; row < p->row_count; row++) {
        for (uint32_t i = 0; i < p->results[row].kv_count; i++)
            page_ids_hand_in(&p->ids, p->results[row].kv_ids[i]);
        p->running[p->row_of[row]].len = p->served[row].to;
    }
}

/* ------------------------------------------------------------------------------------- sampling */

/* Gumbel-max: noise that depends on seed, request and position alone, not on the batch. */
static int32_t sample(const struct pass *p, const struct running *r, uint32_t position)
{
    uint64_t seed = sc_mix64(sc_mix64(p->o->seed + r->request) + position);
    if (!p->o->model)
        return (int32_t)(seed % p->workload->vocab);
    uint32_t vocab = p->o->model->options.vocab, best = 0;
    float best_score = -INFINITY;
    for (uint32_t i = 0; i < vocab; i++) {
        double unit = ((double)(sc_mix64(seed + i) >> 11) + 0.5) * 0x1p-53;
        float score = r->logits[i] - p->o->temperature * (float)log(-log(unit));
        if (score > best_score) {
            best_score = score;
            best = i;
        }
    }
    return (int32_t)best;
}

/* What follows a committed row: the next token, or the end. True if the request is over. The last
 * token is computed, too, so that a follow-up finds its state. */
static bool go_on(struct pass *p, struct running *r)
{
    struct bench_request *request = &p->workload->requests[r->request];
    uint32_t total = request->prompt_len + request->output_len;
    if (r->len < request->prompt_len)
        return false;
    if (r->witness && p->o->model)
        witness_logits(p->o->witnesses, r->witness, r->len, r->logits);
    if (r->len == total)
        return true;
    if (request->known == r->len)
        request->tokens[request->known++] = sample(p, r, r->len);
    bench_must(sc_lease_append(p->cache, r->lease, request->tokens + r->token_count, 1),
        "sc_lease_append");
    r->token_count++;
    return false;
}

static void after_step(struct pass *p)
{
    for (uint32_t at = 0; at < p->running_count; at++) {
        struct running *r = &p->running[at];
        if (r->row != UINT32_MAX && !p->served[r->row].decode &&
            r->len >= p->workload->requests[r->request].prompt_len)
            adopt(p, r); /* others may have computed the same prompt meanwhile */
    }
    drain(p);
    for (uint32_t at = p->running_count; at-- > 0;)
        if (p->running[at].row != UINT32_MAX && go_on(p, &p->running[at]))
            finish(p, at);
    sc_pool_info info;
    bench_must(sc_pool_info_get(p->pool, &info), "sc_pool_info_get");
    if (info.slot_count - info.free_count > p->result->slots_peak)
        p->result->slots_peak = info.slot_count - info.free_count;
    if (p->o->verify_every && p->result->steps % p->o->verify_every == 0)
        bench_must(sc_cache_verify(p->cache), "sc_cache_verify");
}

static void step(struct pass *p)
{
    sc_batch batch;
    build(p);
    if (p->row_count == 0) {
        preempt(p);
        return;
    }
    uint64_t begin = sc_clock_now_ns();
    bench_must(sc_step_plan(p->cache, ++p->step, p->rows, p->row_count, p->now_ns, &batch,
        p->each), "sc_step_plan");
    p->result->library_ns += sc_clock_now_ns() - begin;
    for (uint32_t row = 0; row < p->row_count; row++)
        bench_must(p->each[row], "sc_step_plan, a row");
    forward(p, &batch);
    commit(p);
    after_step(p);
}

/* ----------------------------------------------------------------------------------- whole pass */

static void open_cache(struct pass *p)
{
    sc_pool_options pool = SC_POOL_OPTIONS_INIT;
    pool.schema = p->o->schema;
    pool.layout = p->o->layout;
    pool.slot_count = p->o->slots;
    bench_must(sc_pool_create(&pool, &p->pool), "sc_pool_create");
    sc_cache_options options = SC_CACHE_OPTIONS_INIT;
    options.pool = p->pool;
    options.page_tokens = p->o->page;
    options.row_max = p->o->running_max;
    options.save_max = 8 * p->o->running_max;
    options.lease_max = p->o->running_max;
    options.lease_token_max = workload_longest(p->workload);
    options.save_flags = p->o->save_flags;
    options.decode_interval = p->o->decode_interval;
    options.path_snapshots_max = p->o->path_snapshots_max;
    options.keep_cuts = p->o->keep_cuts;
    bench_must(sc_cache_create(&options, &p->cache), "sc_cache_create");
    bench_must(sc_namespace_open(p->cache, NULL, 0, 0, &p->ns), "sc_namespace_open");
    bench_must(sc_schema_grid(p->o->schema, p->o->page, &p->grid), "sc_schema_grid");
    page_ids_init(&p->ids, p->o->kv_pages);
    if (p->o->model)
        paged_kv_init(&p->kv, p->o->model, p->o->page, p->o->kv_pages);
}

static void open_arrays(struct pass *p)
{
    size_t requests = p->workload->request_count, rows = p->o->running_max;
    p->queue = bench_alloc(requests, sizeof *p->queue);
    p->first_next = bench_alloc(requests, sizeof *p->first_next);
    p->next_next = bench_alloc(requests, sizeof *p->next_next);
    memset(p->first_next, 0xff, requests * sizeof *p->first_next);
    p->ordered = bench_alloc(requests, sizeof *p->ordered);
    p->result->order = bench_alloc(requests, sizeof *p->result->order);
    p->running = bench_alloc(rows, sizeof *p->running);
    p->rows = bench_alloc(rows, sizeof *p->rows);
    p->row_of = bench_alloc(rows, sizeof *p->row_of);
    p->each = bench_alloc(rows, sizeof *p->each);
    p->results = bench_alloc(rows, sizeof *p->results);
    p->served = bench_alloc(rows, sizeof *p->served);
    p->saves = bench_alloc(8 * rows, sizeof *p->saves);
    p->points = bench_alloc(rows, sizeof *p->points);
}

/* Reads the counts, then empties the cache: every id must come back. */
static void close_cache(struct pass *p)
{
    struct pass_result *result = p->result;
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
    bench_must(sc_namespace_close(p->cache, p->ns), "sc_namespace_close");
    drain(p);
    result->id_faults += p->ids.faults + p->ids.cached + p->ids.ours;
    result->kv_peak = p->ids.peak;
    result->kv_pages = p->o->kv_pages;
    result->slots = p->o->slots;
    bench_must(sc_cache_destroy(p->cache), "sc_cache_destroy");
    bench_must(sc_pool_destroy(p->pool), "sc_pool_destroy");
}

static void close_arrays(struct pass *p)
{
    void *owned[] = {p->queue, p->first_next, p->next_next, p->running, p->rows, p->row_of,
        p->each, p->results, p->served, p->saves, p->points, p->ordered};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    page_ids_deinit(&p->ids);
    paged_kv_deinit(&p->kv);
}

void pass_run(struct workload *workload, const struct pass_options *options,
    struct pass_result *result)
{
    struct pass pass = {.workload = workload, .o = options, .result = result};
    struct bench_progress progress;
    memset(result, 0, sizeof *result);
    sc_prng_seed(&pass.sabotage, sc_mix64(options->sabotage_seed + 0x5ab));
    pass.sabotage_from = sc_prng_below(&pass.sabotage, workload->request_count / 2 + 1);
    open_cache(&pass);
    open_arrays(&pass);
    queue_fill(&pass);
    bench_progress_start(&progress, options->label);
    uint64_t begin = sc_clock_now_ns();
    while (pass.queue_count > 0 || pass.running_count > 0) {
        admit_all(&pass);
        step(&pass);
        bench_progress_show(&progress, result->requests, workload->request_count);
    }
    result->wall_ns = sc_clock_now_ns() - begin;
    result->virtual_ns = pass.now_ns;
    bench_progress_end(&progress);
    close_cache(&pass);
    close_arrays(&pass);
}
