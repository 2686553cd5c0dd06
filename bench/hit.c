/* SPDX-License-Identifier: Apache-2.0 */
#include "hit.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bars.h"
#include "bench_main.h"
#include "hit_bars.h"
#include "hit_report.h"
#include "hit_run.h"
#include "trace.h"

enum key {
    KEY_TRACE = 256, KEY_BUDGET, KEY_POLICY, KEY_MODEL, KEY_STATE, KEY_KV, KEY_BLOCK, KEY_LIMIT,
    KEY_INTERVAL, KEY_HINTS, KEY_HINT_SEED, KEY_JOBS, KEY_CSV, KEY_JSON, KEY_PLOT, KEY_BARS,
    KEY_STATE_BYTES, KEY_KV_BYTES, KEY_PARAMS, KEY_HOST, KEY_DISK, KEY_HOST_RATE, KEY_DISK_RATE,
    KEY_FLOPS
};

static const struct argp_option option_list[] = {
    {"trace", KEY_TRACE, "FILE", 0, "JSON lines, plain or zstd", 0},
    {"budget", KEY_BUDGET, "LIST", 0, "GiB for KV and states together (16,32,64,128,256,512)", 0},
    {"policy", KEY_POLICY, "LIST", 0, "of gittins, lru, lru-path, lru-sup, fixed, marconi (tuned), "
        "marconi:ALPHA, gdsf, kv-lru, belady, ub, ub-kv (lru,gdsf,gittins,belady,ub)", 0},
    {"model", KEY_MODEL, "PRESET", 0, "(qwen3-next-80b-a3b)", 0},
    {"state", KEY_STATE, "fp32|bf16|int8", 0, "of snapshots (fp32)", 0},
    {"kv", KEY_KV, "bf16|fp8|none", 0, "none: only snapshots count against the budget (bf16)", 0},
    {"block", KEY_BLOCK, "N", 0, "tokens of a block in the trace (found from lengths and ids)", 0},
    {"requests", KEY_LIMIT, "N", 0, "the first N only", 0},
    {"interval", KEY_INTERVAL, "N", 0, "blocks between snapshots of 'fixed' (1)", 0},
    {"hints", KEY_HINTS, "P", 0, "gittins is told what will be wanted again, rightly with "
        "probability P", 0},
    {"hint-seed", KEY_HINT_SEED, "N", 0, "(1)", 0},
    {"state-bytes", KEY_STATE_BYTES, "N", 0, "of one snapshot, instead of the model's", 0},
    {"kv-bytes", KEY_KV_BYTES, "N", 0, "of KV of one token, instead of the model's", 0},
    {"params", KEY_PARAMS, "N", 0, "active parameters, instead of the model's", 0},
    {"host", KEY_HOST, "GIB", 0, "a tier of host memory below the device (0: none)", 0},
    {"disk", KEY_DISK, "GIB", 0, "a tier on disk below that (0: none)", 0},
    {"host-rate", KEY_HOST_RATE, "GB/S", 0, "reading back from host memory (50)", 0},
    {"disk-rate", KEY_DISK_RATE, "GB/S", 0, "reading back from disk (6)", 0},
    {"flops", KEY_FLOPS, "TFLOP/S", 0, "that prefill reaches; reading has to beat it (400)", 0},
    {"jobs", KEY_JOBS, "N", 0, "cells at a time (all processors)", 0},
    {"csv", KEY_CSV, "FILE", 0, "write the cells, - for standard output", 0},
    {"json", KEY_JSON, "FILE", OPTION_ARG_OPTIONAL, "print the cells as JSON lines instead of "
        "text, or write them to FILE", 0},
    {"plot", KEY_PLOT, "PREFIX", 0, "write PREFIX.png and PREFIX.svg with gnuplot", 0},
    {"bars", KEY_BARS, "DIR", OPTION_ARG_OPTIONAL, "run the project's own measure over the traces "
        "below DIR (see docs/explanation/policy.md), " BENCH_BARS_HELP ". With --trace there are "
        "none", 0},
    {0}};

struct hit_options {
    const char *trace, *budgets, *policies, *model, *state, *kv, *csv, *json, *plot, *bars;
    uint32_t block, limit, interval;
    bool judge;
    double hints, state_bytes, kv_bytes, params, tier_gib[HIT_TIERS];
    struct sc_cost_hardware hardware;
    uint64_t hint_seed;
    unsigned jobs;
};

static double number(struct argp_state *state, const char *name, const char *text, double low,
    double high)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (errno || end == text || *end || !(value >= low && value <= high))
        argp_error(state, "--%s: '%s' is not between %g and %g", name, text, low, high);
    return value;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hit_options *o = state->input;
    switch (key) {
    case KEY_TRACE: o->trace = arg; break;
    case KEY_BUDGET: o->budgets = arg; break;
    case KEY_POLICY: o->policies = arg; break;
    case KEY_MODEL: o->model = arg; break;
    case KEY_STATE: o->state = arg; break;
    case KEY_KV: o->kv = arg; break;
    case KEY_CSV: o->csv = arg; break;
    case KEY_JSON: o->json = arg ? arg : "-"; break;
    case KEY_PLOT: o->plot = arg; break;
    case KEY_BARS:
        o->judge = true;
        o->bars = arg;
        break;
    case KEY_BLOCK: o->block = (uint32_t)number(state, "block", arg, 1, 1 << 20); break;
    case KEY_LIMIT: o->limit = (uint32_t)number(state, "requests", arg, 1, 1e9); break;
    case KEY_INTERVAL: o->interval = (uint32_t)number(state, "interval", arg, 1, 1e6); break;
    case KEY_HINTS: o->hints = number(state, "hints", arg, 0.01, 1); break;
    case KEY_HINT_SEED: o->hint_seed = (uint64_t)number(state, "hint-seed", arg, 0, 1e15); break;
    case KEY_STATE_BYTES: o->state_bytes = number(state, "state-bytes", arg, 0, 1e15); break;
    case KEY_KV_BYTES: o->kv_bytes = number(state, "kv-bytes", arg, 0, 1e9); break;
    case KEY_PARAMS: o->params = number(state, "params", arg, 1, 1e15); break;
    case KEY_HOST: o->tier_gib[1] = number(state, "host", arg, 0, 1e9); break;
    case KEY_DISK: o->tier_gib[2] = number(state, "disk", arg, 0, 1e9); break;
    case KEY_HOST_RATE: o->hardware.read_bytes_per_s[1] = 1e9 *
        number(state, "host-rate", arg, 1e-3, 1e6); break;
    case KEY_DISK_RATE: o->hardware.read_bytes_per_s[2] = 1e9 *
        number(state, "disk-rate", arg, 1e-3, 1e6); break;
    case KEY_FLOPS: o->hardware.flops = 1e12 * number(state, "flops", arg, 1e-3, 1e9); break;
    case KEY_JOBS: o->jobs = (unsigned)number(state, "jobs", arg, 1, 1024); break;
    case ARGP_KEY_ARG: /* "--bars DIR", in two words */
        if (!o->judge || o->bars)
            argp_error(state, "'%s' is no option", arg);
        o->bars = arg;
        break;
    case ARGP_KEY_END:
        if (!o->trace && !o->bars)
            argp_error(state, o->judge ? "--bars needs the folder of traces: --bars DIR"
                                       : "--trace FILE or --bars DIR is needed");
        if (o->trace && o->bars)
            argp_error(state, "--trace FILE and --bars DIR are two measures: one at a time");
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* Splits "a,b,c" in place; ends the program where there are too many. */
static size_t split(char *list, char **parts, size_t cap)
{
    size_t count = 0;
    char *rest;
    for (char *part = strtok_r(list, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
        if (count == cap)
            bench_fail(BENCH_USAGE, "more than %zu in a list", cap);
        parts[count++] = part;
    }
    return count;
}

enum { LIST_MAX = 64 };

struct table { struct hit_job *jobs; size_t policies, budgets; };

static struct table make_jobs(const struct hit_options *o, const struct hit_trace *trace,
    const struct hit_model *model)
{
    char *budgets = strdup(o->budgets), *policies = strdup(o->policies);
    char *budget[LIST_MAX], *policy[LIST_MAX], error[256];
    if (!budgets || !policies)
        bench_fail(BENCH_NO_MEMORY, "out of memory");
    struct table t = {NULL, split(policies, policy, LIST_MAX), split(budgets, budget, LIST_MAX)};
    if (t.policies == 0 || t.budgets == 0)
        bench_fail(BENCH_USAGE, "an empty list of budgets or policies");
    t.jobs = bench_alloc(t.policies * t.budgets, sizeof *t.jobs);
    for (size_t b = 0; b < t.budgets; b++) {
        char *end;
        double gib = strtod(budget[b], &end);
        if (end == budget[b] || *end || !(gib > 0 && gib < 1e9))
            bench_fail(BENCH_USAGE, "--budget: '%s' is no number of GiB", budget[b]);
        for (size_t p = 0; p < t.policies; p++) {
            struct hit_job *job = &t.jobs[b * t.policies + p];
            if (hit_spec_parse(&job->spec, policy[p], error, sizeof error) != 0)
                bench_fail(BENCH_USAGE, "--policy: %s", error);
            job->trace = trace;
            job->model = model;
            job->spec.budget_gib = gib;
            memcpy(job->spec.tier_gib, o->tier_gib, sizeof job->spec.tier_gib);
            job->spec.hardware = o->hardware;
            bool tiers = o->tier_gib[1] > 0 || o->tier_gib[2] > 0;
            if (tiers && (job->spec.bound != HIT_POLICY || !strcmp(job->spec.policy, "fixed")))
                bench_fail(BENCH_USAGE, "--host, --disk: not with the policy '%s'", policy[p]);
            if (job->spec.interval == 1 && o->interval)
                job->spec.interval = o->interval;
            if (!strcmp(job->spec.policy, "gittins") && job->spec.hint <= 0) {
                job->spec.hint = o->hints;
                job->spec.hint_seed = o->hint_seed;
            }
        }
    }
    free(budgets);
    free(policies);
    return t;
}

static void report(const struct hit_options *o, const struct table *t)
{
    size_t count = t->policies * t->budgets;
    bool quiet = (o->csv && !strcmp(o->csv, "-")) || (o->json && !strcmp(o->json, "-"));
    bool good = true;
    if (!quiet) {
        hit_report_table(stdout, t->jobs, t->policies, t->budgets);
        hit_report_details(stdout, t->jobs, count);
    }
    if (o->csv)
        good = hit_report_csv(o->csv, t->jobs, count) && good;
    if (o->json)
        good = hit_report_json(o->json, t->jobs, count) && good;
    if (o->plot)
        good = hit_report_plot(o->plot, t->jobs, t->policies, t->budgets) && good;
    if (!good)
        exit(BENCH_CHECK_FAILED);
}

int hit_main(int argc, char **argv)
{
    struct hit_options o = {.budgets = "16,32,64,128,256,512", .model = "qwen3-next-80b-a3b",
        .policies = "lru,gdsf,gittins,belady,ub", .state = "fp32", .kv = "bf16", .hint_seed = 1,
        .hardware = SC_COST_HARDWARE_DEFAULT, .state_bytes = -1, .kv_bytes = -1, .params = -1,
        .jobs = (unsigned)sysconf(_SC_NPROCESSORS_ONLN)};
    static const struct argp argp = {option_list, parse, NULL,
        "Replays a trace through index and policy, without compute, and says what was resumed.",
        NULL, NULL, NULL};
    argp_err_exit_status = BENCH_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    if (o.bars)
        return hit_bars_run(o.bars, o.jobs, o.csv, o.json);
    struct hit_model model;
    struct hit_trace trace;
    char error[TRACE_ERROR_BYTES];
    hit_model_make(&model, o.model, o.state, o.kv);
    if (o.state_bytes >= 0)
        model.state_bytes = o.state_bytes;
    if (o.kv_bytes >= 0)
        model.kv_token_bytes = o.kv_bytes;
    if (o.params > 0)
        model.flops_per_token = 2 * o.params;
    if (model.flops_per_token <= 0 || (o.kv_bytes < 0 && model.flops_per_token2 <= 0))
        bench_fail(BENCH_USAGE, "--model: attention and active parameters of '%s' are not "
            "known: give --kv-bytes and --params", o.model);
    if (hit_trace_load(&trace, o.trace, o.block, o.limit, error) != 0)
        bench_fail(BENCH_USAGE, "%s", error);
    if (trace.count == 0)
        bench_fail(BENCH_USAGE, "%s: no requests", o.trace);
    struct table t = make_jobs(&o, &trace, &model);
    hit_jobs_run(t.jobs, t.policies * t.budgets, o.jobs, "cells");
    report(&o, &t);
    free(t.jobs);
    hit_trace_free(&trace);
    struct bench_bars none = {0};
    bool lines = o.json && !strcmp(o.json, "-");
    return o.judge ? bench_bars_end(&none, lines ? stderr : stdout) : BENCH_OK;
}
