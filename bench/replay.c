/* SPDX-License-Identifier: Apache-2.0 */
#include "replay.h"

#include <stdlib.h>
#include <string.h>

#include "bench_main.h"
#include "ideal.h"
#include "trace.h"

static void load_workload(struct replay_run *run)
{
    struct replay_options *o = &run->o;
    workload_init(&run->workload, o->model.vocab);
    if (!o->trace) {
        struct generator_options options = o->generator;
        options.seed = o->seed;
        options.requests = o->requests;
        options.tenants = o->tenants;
        generator_fill(&run->workload, &options);
        return;
    }
    char error[TRACE_ERROR_BYTES] = "";
    struct trace_options options = {.path = o->trace, .block = o->block, .scale = o->scale,
        .scale_max = o->no_compute ? 0 : o->model.chunk, .decode_max = o->decode_max,
        .limit = o->requests};
    if (trace_load(&run->workload, &options, error))
        bench_fail(BENCH_USAGE, "%s", error);
    if (o->tenants)
        workload_set_tenants(&run->workload, o->tenants);
    if (run->workload.block == 0)
        return;
    if (o->page_given && run->workload.block % o->page != 0)
        bench_fail(BENCH_USAGE, "--page %u: blocks of %u tokens are not whole pages", o->page,
            run->workload.block);
    if (!o->page_given)
        o->page = run->workload.block;
}

/* Enough for everything that could ever be kept, with --no-compute; else something modest. */
static void size_memory(struct replay_run *run)
{
    struct replay_options *o = &run->o;
    const struct workload *w = &run->workload;
    uint64_t pages = o->running;
    for (size_t i = 0; i < w->request_count; i++)
        pages += (w->requests[i].prompt_len + w->requests[i].output_len) / o->page + 1;
    if (!o->no_compute) {
        uint64_t modest = 4 * (uint64_t)workload_longest(w);
        modest = (modest > 65536 ? modest : 65536) / o->page + o->running;
        pages = pages < modest ? pages : modest;
    }
    if (pages > 1000000000)
        bench_fail(BENCH_USAGE, "the workload needs too many KV pages: give --kv-pages");
    if (o->kv_pages == 0)
        o->kv_pages = (uint32_t)pages;
    uint64_t more = o->tails ? o->page : 0; /* for the copy of a tail */
    if (o->late_stop)
        more += o->in_flight * (1 + o->drafts);
    if ((uint64_t)o->kv_pages * o->page < workload_longest(w) + more)
        bench_fail(BENCH_USAGE, "%u KV pages of %u tokens cannot hold the longest request, of %u",
            o->kv_pages, o->page, workload_longest(w));
    if (o->slots == 0)
        o->slots = o->no_compute ? (uint32_t)(5 * w->request_count + o->running) : 192;
}

/* A state of a few bytes, for replays that compute nothing. */
static sc_schema *small_schema(uint32_t chunk)
{
    sc_group group = {.name = "gdn", .chunk = chunk};
    sc_part parts[2] = {{.kind = SC_PART_CONV, .dtype = SC_DTYPE_BF16, .dim_count = 2,
        .dims = {3, 12}}, {.kind = SC_PART_RECURRENT, .dtype = SC_DTYPE_F32, .dim_count = 3,
        .dims = {1, 4, 4}}};
    sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
    options.model = "statecache-bench, no compute";
    options.revision = "1";
    options.groups = &group;
    options.group_count = 1;
    options.parts = parts;
    options.part_count = 2;
    options.layer_count = 1;
    sc_schema *schema;
    bench_must(sc_schema_create(&options, &schema), "sc_schema_create");
    return schema;
}

/* Flags of the cache for --save. Where the ids of a trace do not cover outputs, a prompt's end is
 * the end. */
static uint32_t save_flags(const struct replay_run *run)
{
    unsigned save = run->o.save;
    bool blocks_of_prompts = run->workload.block && !run->workload.has_given_output;
    if (save & SAVE_END && blocks_of_prompts)
        save |= SAVE_PROMPT;
    return (save & SAVE_PROMPT ? SC_SAVE_PROMPT_END : 0u) |
        (save & SAVE_BRANCH ? SC_SAVE_BRANCH : 0u) | (save & SAVE_DECODE ? SC_SAVE_DECODE : 0u) |
        (save & SAVE_END ? SC_SAVE_END : 0u);
}

/* Arrivals such that the machine of the scheduler's virtual time is busy most of the time. */
static double default_speed(const struct replay_run *run, const struct pass_options *pass)
{
    const struct workload *w = &run->workload;
    double cost = 0, span = 0;
    if (w->block == 0 || run->o.no_compute)
        return 1;
    for (size_t i = 0; i < w->request_count; i++) {
        const struct bench_request *r = &w->requests[i];
        cost += (double)pass->token_ns * (r->prompt_len + r->output_len) +
            (double)pass->step_ns * (r->output_len / 4 + 1);
        span = (double)r->arrive_ns > span ? (double)r->arrive_ns : span;
    }
    return span > 0 && cost > 0 ? span / cost : 1;
}

static struct pass_options pass_options(const struct replay_run *run, const sc_schema *schema,
    const struct served_model *model)
{
    const struct replay_options *o = &run->o;
    struct pass_options pass = {.label = "with cache", .schema = schema, .layout = o->layout,
        .slots = o->slots, .kv_pages = o->kv_pages, .page = o->page,
        .save_flags = save_flags(run), .save_points = (o->save & SAVE_END) != 0,
        .decode_interval = o->decode_interval, .path_snapshots_max = o->path_snapshots,
        .keep_cuts = o->keep_cuts, .tails = o->tails, .policy = o->policy,
        .host_slots = o->host_slots, .disk = o->disk, .disk_bytes = o->disk_bytes,
        .host_write = o->host_write, .disk_write = o->disk_write,
        .in_flight = o->in_flight,
        .drafts = o->drafts, .draft_tree = o->draft_tree, .draft_accept = o->draft_accept,
        .late_stop = o->late_stop, .preempt = o->preempt, .fork = o->fork > 0,
        .running_max = o->running, .budget = o->budget,
        .threads = o->threads, .step_ns = 2000000, .token_ns = 50000,
        .temperature = (float)o->temperature, .seed = o->seed, .model = model,
        .lose_flush = o->lose_flush, .sabotage = o->sabotage, .sabotage_seed = o->sabotage_seed,
        .verify_every = o->verify_every, .touch = o->compare > 0};
    if (o->no_compute)
        pass.step_ns = pass.token_ns = 0;
    pass.speed = o->speed > 0 ? o->speed : default_speed(run, &pass);
    return pass;
}

/* --------------------------------------------------------------------------------------- ideals */

struct ideals {
    struct workload *workload;
    struct ideal *end, *end_branch;
    double end_tokens, end_branch_tokens;
};

static void serve_ideals(void *ctx, size_t index)
{
    struct ideals *ideals = ctx;
    const struct bench_request *r = &ideals->workload->requests[index];
    uint32_t total = r->prompt_len;
    if (r->end_point)
        total = r->end_point;
    else if (ideals->workload->block == 0 || r->output_given)
        total += r->output_len;
    ideal_mark(ideals->end, r->mark_at, r->tenant);
    ideal_mark(ideals->end_branch, r->mark_at, r->tenant);
    uint32_t end = ideal_serve(ideals->end, r->tokens, r->prompt_len, total);
    uint32_t end_branch = ideal_serve(ideals->end_branch, r->tokens, r->prompt_len, total);
    if (r->fork_of >= 0) /* not asked for as a prompt */
        return;
    ideals->end_tokens += end;
    ideals->end_branch_tokens += end_branch;
}

static struct ideals ideals_open(struct workload *workload)
{
    /* Without blocks a prompt's end is an end, too: agents fan out from it. */
    unsigned ends = IDEAL_END | (workload->block ? 0u : IDEAL_PROMPT_END);
    uint32_t unit = workload->block ? workload->block : 1;
    return (struct ideals){.workload = workload, .end = ideal_create(unit, ends),
        .end_branch = ideal_create(unit, ends | IDEAL_BRANCH)};
}

static void ideals_close(struct ideals *ideals, struct replay_run *run)
{
    run->ideal_end = ideals->end_tokens;
    run->ideal_end_branch = ideals->end_branch_tokens;
    ideal_destroy(ideals->end);
    ideal_destroy(ideals->end_branch);
}

/* ----------------------------------------------------------------------------------------- runs */

static bool refers_back(const struct workload *workload)
{
    for (size_t i = 0; i < workload->request_count; i++)
        if (workload->requests[i].pred >= 0)
            return true;
    return false;
}

/* Finds what plain decoding gives, for the drafter: the same requests, one step at a time. Its
 * result is dropped. */
static void find_guesses(struct replay_run *run, const struct pass_options *options)
{
    struct pass_options pass = *options;
    pass.label = "plain";
    pass.host_slots = 0;
    pass.disk = NULL;
    pass.in_flight = 1;
    pass.drafts = 0;
    pass.preempt = 0;
    pass.fork = pass.late_stop = pass.sabotage = pass.drop_tokens = false;
    pass.witnesses = NULL;
    pass.finished = NULL;
    pass_run(&run->workload, &pass, &run->guess);
    workload_keep_guesses(&run->workload);
}

static void run_dry(struct replay_run *run)
{
    struct ideals ideals = ideals_open(&run->workload);
    sc_schema *schema = small_schema(run->o.model.chunk);
    struct pass_options pass = pass_options(run, schema, NULL);
    pass.finished = serve_ideals;
    pass.ctx = &ideals;
    pass.drop_tokens = !refers_back(&run->workload) && !run->o.tenants;
    pass_run(&run->workload, &pass, &run->cached);
    ideals_close(&ideals, run);
    sc_schema_release(schema);
}

static void run_check(struct replay_run *run, const struct served_model *model,
    struct witness_set *witnesses)
{
    uint32_t count;
    struct witness **sample = witness_sample(witnesses, &count);
    struct check_options options = {.model = model, .layout = run->o.layout, .page = run->o.page,
        .threads = run->o.threads, .seed = run->o.seed, .sampler = {model, run->workload.vocab,
            (float)run->o.temperature, run->o.seed}};
    check_run(&options, sample, count, &run->check);
    run->has_check = true;
    free(sample);
}

/* Rings are flushed where decoded states are saved: at multiples of the cache's decode interval. */
static uint32_t ring_save(const struct replay_run *run)
{
    const struct replay_options *o = &run->o;
    uint32_t interval = o->decode_interval ? o->decode_interval : o->page > 1 ? o->page : 0;
    return save_flags(run) & SC_SAVE_DECODE && o->model.ring > 0 ? interval : 0;
}

static void run_served(struct replay_run *run)
{
    struct served_model *model;
    struct witness_set witnesses;
    run->o.model.ring_save = ring_save(run);
    sc_status status = served_create(&run->o.model, &model);
    if (status != SC_OK)
        bench_fail(BENCH_USAGE, "no such model: %s", sc_last_error()->text);
    witness_set_init(&witnesses, model, run->o.check, run->o.seed);
    struct pass_options pass = pass_options(run, model->schema, model);
    if (pass.drafts > 0)
        find_guesses(run, &pass);
    pass.witnesses = run->o.check ? &witnesses : NULL;
    pass_run(&run->workload, &pass, &run->cached);
    if (run->o.lose_flush && !run->cached.ring_lost)
        bench_fail(BENCH_USAGE, "--lose-flush: there were fewer flushes that can be lost");
    if (run->o.sabotage && !run->cached.sabotaged[0])
        bench_fail(BENCH_USAGE, "--sabotage: no request resumed, so there is no state to damage");
    struct ideals ideals = ideals_open(&run->workload);
    for (uint64_t i = 0; i < run->cached.requests; i++)
        serve_ideals(&ideals, run->cached.order[i]);
    ideals_close(&ideals, run);
    if (!run->o.no_cold) {
        pass.label = "cold";
        pass.host_slots = 0;
        pass.disk = NULL;
        pass.save_flags = 0;
        pass.save_points = pass.sabotage = pass.fork = false;
        pass.witnesses = NULL;
        pass_run(&run->workload, &pass, &run->cold);
        run->has_cold = true;
    }
    if (run->o.check)
        run_check(run, model, &witnesses);
    witness_set_deinit(&witnesses);
    served_destroy(model);
}

bool replay_passed(const struct replay_run *run)
{
    const struct pass_result *passes[] = {&run->cached, &run->cold};
    for (int i = 0; i < 2; i++)
        if (passes[i]->id_faults || passes[i]->lookup_differs || passes[i]->tenant_leaks)
            return false;
    return (!run->has_check || check_passed(&run->check)) && run->cold.hit_tokens == 0;
}

void replay_serve(struct replay_run *run)
{
    if (run->o.no_compute)
        run_dry(run);
    else
        run_served(run);
}

int replay_main(int argc, char **argv)
{
    struct replay_run *run = bench_alloc(1, sizeof *run);
    replay_options_parse(&run->o, argc, argv);
    load_workload(run);
    if (run->o.fork > 0)
        workload_add_forks(&run->workload, run->o.fork, run->o.forks, run->o.seed);
    size_memory(run);
    if (run->o.lose_flush && run->o.check < run->workload.request_count)
        run->o.check = (uint32_t)run->workload.request_count;
    if (run->o.decode_interval % run->o.page != 0)
        bench_fail(BENCH_USAGE, "--decode-interval must be a multiple of the page (%u)",
            run->o.page);
    if (run->o.compare)
        return replay_compare(run);
    replay_serve(run);
    if (run->o.json)
        replay_report_json(run, stdout);
    else
        replay_report_text(run, stdout);
    int code = replay_passed(run) ? BENCH_OK : BENCH_CHECK_FAILED;
    if (run->o.bars && replay_report_bars(run, run->o.json ? stderr : stdout) != BENCH_OK)
        code = BENCH_CHECK_FAILED;
    if (fflush(stdout) || ferror(stdout))
        bench_fail(BENCH_CHECK_FAILED, "cannot write the report");
    free(run->cached.order);
    free(run->cold.order);
    free(run->guess.order);
    workload_free(&run->workload);
    free(run);
    return code;
}
