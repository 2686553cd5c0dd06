/* SPDX-License-Identifier: Apache-2.0 */
/* The project's own measure of its default policy: 34 cells, four traces, no tuning per trace.
 *
 * Baseline of a cell: the best of LRU, LRU with superseded snapshots first, Marconi (tuned) and
 * GDSF, each the higher of what is measured here and what a reference simulator found. The policy
 * must stay within 0.5 points of it everywhere, reach within 1 point what the reference found for a
 * policy of this kind, and close a quarter of the distance from LRU to a clairvoyant policy over
 * the tight cells. The others and the bounds must agree with the reference, in these cells and in
 * further ones. */
#include "hit_bars.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bars.h"
#include "hit_report.h"
#include "hit_run.h"
#include "trace.h"

enum { CONVERSATION, SYNTHETIC, TAU, MAGAGENT, TRACE_COUNT };
static const char *const files[TRACE_COUNT] = {
    "mooncake-fast25/conversation_trace.jsonl.zst", "mooncake-fast25/synthetic_trace.jsonl.zst",
    "taubench-airline-gpt4o/taubench_airline_blk64.jsonl.zst",
    "lmcache-magagent/magagent_blk64.jsonl.zst"};
static const char *const titles[TRACE_COUNT] = {"conversation", "synthetic", "tau-bench",
    "magagent"};

/* The reference's figures. */
static const struct bar {
    int trace;
    bool state_only, tight;
    double gib, lru, sup, marconi, gdsf, clairvoyant, ours;
} bars[] = {
    {CONVERSATION, false, true, 16, 4.54, 4.54, 4.54, 4.54, 19.61, 8.03},
    {CONVERSATION, false, true, 32, 5.50, 5.51, 5.20, 5.66, 26.75, 11.10},
    {CONVERSATION, false, true, 64, 9.21, 9.28, 6.21, 10.65, 33.54, 15.73},
    {CONVERSATION, false, false, 128, 18.46, 18.71, 18.46, 20.16, 37.34, 21.13},
    {CONVERSATION, false, false, 256, 26.43, 26.94, 26.43, 27.64, 37.34, 27.96},
    {CONVERSATION, false, false, 512, 33.07, 33.61, 33.07, 32.72, 37.34, 33.36},
    {CONVERSATION, true, true, 2, 4.32, 4.32, 4.32, 5.20, 20.39, 9.27},
    {CONVERSATION, true, true, 4, 4.71, 4.71, 7.46, 8.41, 26.96, 12.77},
    {CONVERSATION, true, true, 8, 6.05, 6.07, 9.63, 13.07, 32.66, 16.55},
    {CONVERSATION, true, false, 16, 11.88, 12.58, 14.36, 19.72, 36.40, 21.72},
    {CONVERSATION, true, false, 32, 19.78, 21.43, 21.11, 25.84, 37.34, 27.20},
    {CONVERSATION, true, false, 64, 27.04, 28.97, 28.20, 30.66, 37.34, 31.24},
    {SYNTHETIC, false, true, 16, 8.73, 8.67, 8.73, 9.26, 29.76, 10.88},
    {SYNTHETIC, false, true, 32, 14.68, 14.54, 15.30, 15.32, 41.44, 19.31},
    {SYNTHETIC, false, true, 64, 24.04, 23.81, 20.91, 24.87, 52.96, 30.92},
    {SYNTHETIC, false, false, 128, 36.22, 35.49, 32.18, 38.50, 62.60, 43.85},
    {SYNTHETIC, false, false, 256, 49.97, 48.74, 49.97, 53.14, 65.04, 56.43},
    {SYNTHETIC, false, false, 512, 58.10, 57.09, 58.10, 58.16, 65.04, 60.08},
    {SYNTHETIC, true, true, 2, 8.38, 8.32, 8.38, 14.64, 37.06, 19.47},
    {SYNTHETIC, true, true, 4, 14.26, 14.13, 21.45, 21.37, 47.90, 27.16},
    {SYNTHETIC, true, true, 8, 22.05, 21.98, 28.96, 31.34, 57.89, 36.92},
    {SYNTHETIC, true, false, 16, 32.49, 32.08, 37.10, 44.98, 64.61, 49.76},
    {SYNTHETIC, true, false, 32, 45.92, 45.03, 45.92, 55.52, 65.04, 57.21},
    {SYNTHETIC, true, false, 64, 55.64, 54.26, 55.64, 58.12, 65.04, 59.91},
    {TAU, false, false, 0.25, 49.43, 49.43, 49.43, 49.43, 49.51, 52.39},
    {TAU, false, false, 0.5, 51.45, 51.51, 51.45, 52.69, 63.09, 61.52},
    {TAU, false, false, 1, 60.20, 62.88, 66.37, 66.18, 82.81, 74.59},
    {TAU, false, false, 2, 77.93, 84.58, 76.75, 78.72, 92.92, 86.82},
    {TAU, false, false, 4, 87.38, 94.50, 88.64, 87.88, 95.15, 94.53},
    {MAGAGENT, false, false, 0.25, 22.62, 22.62, 22.62, 17.28, 46.02, 45.52},
    {MAGAGENT, false, false, 0.5, 64.32, 64.40, 64.32, 63.30, 71.56, 71.36},
    {MAGAGENT, false, false, 1, 76.55, 76.61, 76.43, 74.60, 82.66, 80.36},
    {MAGAGENT, false, false, 2, 77.36, 77.36, 77.36, 77.26, 82.66, 81.14},
    {MAGAGENT, false, false, 4, 77.37, 77.40, 77.37, 77.35, 82.66, 81.23},
};
/* With hints that are right four times of five: conversation, mean of three seeds. */
static const struct hint_bar { bool state_only; double gib, ours; } hint_bars[] = {
    {false, 32, 12.95}, {false, 64, 18.88}, {false, 128, 24.87}, {false, 256, 31.02},
    {false, 512, 34.56}, {true, 2, 10.58}, {true, 4, 14.53}, {true, 8, 19.21}, {true, 16, 24.52},
    {true, 32, 29.58},
};
/* Further cells of the reference: budgets double from the first one. */
enum { AGREED_BUDGETS = 7 };
static const struct agreed {
    const char *policy;
    int trace;
    bool state_only;
    double gib;
    double reference[AGREED_BUDGETS]; /* 0: no more */
} agreed[] = {
    {"kv-lru", CONVERSATION, false, 16, {4.80, 6.47, 13.56, 22.96, 30.76, 36.03, 37.03}},
    {"kv-lru", SYNTHETIC, false, 16, {11.49, 18.58, 30.93, 46.10, 60.62}},
    {"fixed", CONVERSATION, false, 16, {4.27, 4.30, 4.41, 5.03, 7.02, 14.91, 24.29}},
    {"fixed", SYNTHETIC, false, 16, {1.76, 3.51, 7.38, 12.51, 20.14}},
    {"fixed+interval:2", CONVERSATION, false, 64, {4.7}},
    {"fixed+interval:4", CONVERSATION, false, 64, {5.6}},
    {"fixed+interval:8", CONVERSATION, false, 64, {6.6}},
    {"fixed+interval:16", CONVERSATION, false, 64, {8.1}},
    {"fixed+interval:2", CONVERSATION, false, 256, {12.4}},
    {"fixed+interval:4", CONVERSATION, false, 256, {18.8}},
    {"fixed+interval:8", CONVERSATION, false, 256, {22.8}},
    {"fixed+interval:16", CONVERSATION, false, 256, {24.9}},
    {"lru-path", CONVERSATION, false, 16, {4.54, 5.50, 9.18, 18.51, 26.33, 33.02, 35.19}},
    {"lru-path", CONVERSATION, true, 2, {4.32, 4.71, 6.05, 11.86, 19.29, 26.26, 32.05}},
    {"lru", CONVERSATION, false, 1024, {35.23}},
    {"lru", CONVERSATION, true, 128, {32.85}},
    {"lru-sup", CONVERSATION, false, 1024, {35.17}},
    {"lru-sup", CONVERSATION, true, 128, {34.42}},
    {"gdsf", CONVERSATION, false, 1024, {34.92}},
    {"gdsf", CONVERSATION, true, 128, {33.77}},
    {"ub", CONVERSATION, false, 16, {21.99, 28.56, 35.12, 37.34, 37.34, 37.34, 37.34}},
    {"ub", SYNTHETIC, false, 16, {36.57, 46.42, 57.29, 65.04, 65.04}},
};
enum {
    AGREED = sizeof agreed / sizeof *agreed,
    BARS = sizeof bars / sizeof *bars, HINT_BARS = sizeof hint_bars / sizeof *hint_bars, SEEDS = 3
};
enum { LRU, SUP, MARCONI, GDSF, OURS, CLAIRVOYANT, COLUMNS };
static const char *const columns[COLUMNS] = {"lru", "lru-sup", "marconi", "gdsf", "gittins",
    "belady"};

static void job_init(struct hit_job *job, const struct hit_trace *trace,
    const struct hit_model *model, const char *policy, double gib)
{
    char error[256];
    job->trace = trace;
    job->model = model;
    if (hit_spec_parse(&job->spec, policy, error, sizeof error) != 0)
        bench_fail(BENCH_CHECK_FAILED, "%s", error);
    job->spec.budget_gib = gib;
}

struct verdict {
    FILE *out;
    struct bench_bars bars;
    double closed, hints_closed, policy_ns, requests;
    unsigned tight;
    double off[COLUMNS]; /* farthest from the reference, by column */
};

static void judge(struct verdict *verdict, const char *trace, bool state_only, double gib,
    const char *what, double value, double least)
{
    const struct bench_bar bar = {BENCH_BAR_LEAST, least};
    char name[96];
    snprintf(
        name, sizeof name, "%s %s %g GiB, %s", trace, state_only ? "states" : "shared", gib, what);
    bench_bars_judge(&verdict->bars, name, value, "points", bar);
}

static int by_policy_ns(const void *a, const void *b)
{
    const struct hit_result *x = a, *y = b;
    return (x->policy_ns > y->policy_ns) - (x->policy_ns < y->policy_ns);
}

/* The policy's time, by runs of their own, one cell at a time: in the others, cells share the
 * caches of a core. Of each cell the median run counts. */
static void time_policy(const struct hit_job *jobs, struct verdict *verdict)
{
    enum { RUNS = 5 };
    double policy_ns = 0, refit_ns = 0;
    for (size_t i = 0; i < BARS; i++) {
        if (bars[i].trace != CONVERSATION)
            continue;
        struct hit_result results[RUNS];
        for (int run = 0; run < RUNS; run++) {
            const struct hit_job *job = &jobs[i * COLUMNS + OURS];
            struct hit_job again = {.trace = job->trace, .model = job->model, .spec = job->spec};
            hit_cell_run(&again);
            results[run] = again.result;
        }
        qsort(results, RUNS, sizeof *results, by_policy_ns);
        policy_ns += (double)results[RUNS / 2].policy_ns;
        refit_ns += (double)results[RUNS / 2].refit_ns;
        verdict->requests += (double)jobs[i * COLUMNS].trace->count;
    }
    verdict->policy_ns = policy_ns;
    fprintf(verdict->out, "policy, conversation, one cell at a time: %.2f us a request, of which "
        "refits %.2f us\n\n", policy_ns / verdict->requests / 1e3,
        refit_ns / verdict->requests / 1e3);
}

static void bar_line(const struct bar *bar, const struct hit_job *jobs, struct verdict *verdict)
{
    const double reference[COLUMNS] = {bar->lru, bar->sup, bar->marconi, bar->gdsf, bar->ours,
        bar->clairvoyant};
    double rate[COLUMNS], best = 0;
    for (int c = 0; c < COLUMNS; c++) {
        rate[c] = hit_rate(&jobs[c].result);
        if (c <= GDSF)
            best = fmax(best, fmax(rate[c], reference[c]));
        if (bar->trace <= SYNTHETIC)
            verdict->off[c] = fmax(verdict->off[c], fabs(rate[c] - reference[c]));
    }
    double closed = 100 * (rate[OURS] - bar->lru) / (bar->clairvoyant - bar->lru);
    fprintf(verdict->out, "%-13s%-7s%6g", titles[bar->trace], bar->state_only ? "states" : "shared",
        bar->gib);
    for (int c = 0; c < COLUMNS; c++)
        fprintf(verdict->out, "%9.2f", rate[c]);
    fprintf(verdict->out, "%+9.2f%+9.2f%8.0f%s", rate[OURS] - best, rate[OURS] - bar->ours, closed,
        bar->tight ? " tight" : "");
    fprintf(verdict->out, "  %.2f\n",
        jobs[OURS].result.tenth_tokens
            ? 100.0 * (double)jobs[OURS].result.tenth_hit / (double)jobs[OURS].result.tenth_tokens
            : 0);
    judge(verdict, titles[bar->trace], bar->state_only, bar->gib, "above the best of the others",
        rate[OURS] - best, -0.5);
    judge(verdict, titles[bar->trace], bar->state_only, bar->gib, "above PH-Gittins",
        rate[OURS] - bar->ours, -1.0);
    if (bar->tight) {
        verdict->tight++;
        verdict->closed += closed;
    }
}

static const struct bar *bar_find(bool state_only, double gib)
{
    for (size_t i = 0; i < BARS; i++) {
        if (bars[i].trace == CONVERSATION && bars[i].state_only == state_only &&
            bars[i].gib == gib)
            return &bars[i];
    }
    return NULL;
}

static void hint_line(const struct hint_bar *hint, const struct hit_job *jobs, double without,
    struct verdict *verdict)
{
    const struct bar *bar = bar_find(hint->state_only, hint->gib);
    double mean = 0;
    for (int s = 0; s < SEEDS; s++)
        mean += hit_rate(&jobs[s].result) / SEEDS;
    double closed = 100 * (mean - bar->lru) / (bar->clairvoyant - bar->lru);
    fprintf(verdict->out, "%-13s%-7s%6g%9.2f%+9.2f%+9.2f%8.0f\n", "conversation",
        hint->state_only ? "states" : "shared", hint->gib, mean, mean - without, mean - hint->ours,
        closed);
    judge(verdict, "hints, conversation", hint->state_only, hint->gib, "above PH-Gittins with them",
        mean - hint->ours, -1.0);
    judge(verdict, "hints, conversation", hint->state_only, hint->gib, "above none", mean - without,
        0);
    verdict->hints_closed += closed / HINT_BARS;
}

static void tables(const struct hit_job *jobs, const struct hit_job *hints, struct verdict *verdict)
{
    FILE *out = verdict->out;
    fprintf(out, "%-13s%-7s%6s", "trace", "budget", "GiB");
    for (int c = 0; c < COLUMNS; c++)
        fprintf(out, "%9s", columns[c]);
    fprintf(out, "%9s%9s%8s  first tenth\n", "vs best", "vs ref", "closed");
    for (size_t i = 0; i < BARS; i++)
        bar_line(&bars[i], &jobs[i * COLUMNS], verdict);
    fprintf(out, "\nwith hints, 80 %% right\n%26s%9s%9s%9s%8s\n", "GiB", "hints", "vs none",
        "vs ref", "closed");
    for (size_t i = 0; i < HINT_BARS; i++) {
        const struct bar *bar = bar_find(hint_bars[i].state_only, hint_bars[i].gib);
        double without = hit_rate(&jobs[(size_t)(bar - bars) * COLUMNS + OURS].result);
        hint_line(&hint_bars[i], &hints[i * SEEDS], without, verdict);
    }
    fprintf(
        out, "\nwith hints, closed over all of these cells: %.1f %%\n\n", verdict->hints_closed);
}

static const struct bench_bar near_reference = {BENCH_BAR_MOST, 0.3};

static size_t agreed_count(const struct agreed *row)
{
    size_t count = 0;
    while (count < AGREED_BUDGETS && row->reference[count] > 0)
        count++;
    return count;
}

/* A line for each row: our figures, and how far the worst of them is from the reference. */
static void agreement(const struct hit_job *jobs, struct verdict *verdict)
{
    fprintf(verdict->out, "further cells of the reference\n");
    for (size_t i = 0; i < AGREED; i++) {
        const struct agreed *row = &agreed[i];
        const char *budget = row->state_only ? "states" : "shared";
        double off = 0;
        char name[96];
        fprintf(verdict->out, "%-18s%-13s%-7s%5g GiB", row->policy, titles[row->trace], budget,
            row->gib);
        for (size_t k = 0; k < agreed_count(row); k++, jobs++) {
            double rate = hit_rate(&jobs->result);
            off = fmax(off, fabs(rate - row->reference[k]));
            fprintf(verdict->out, "%7.2f", rate);
        }
        fprintf(verdict->out, ", off by %.2f at most\n", off);
        snprintf(name, sizeof name, "%s, %s %s from %g GiB, farthest from the reference",
            row->policy, titles[row->trace], budget, row->gib);
        bench_bars_judge(&verdict->bars, name, off, "points", near_reference);
    }
    fputc('\n', verdict->out);
}

static void judge_all(struct verdict *verdict)
{
    const struct bench_bar quarter = {BENCH_BAR_LEAST, 25}, cheap = {BENCH_BAR_MOST, 3};
    char name[96];
    bench_bars_judge(&verdict->bars, "closed from LRU to clairvoyant, mean of tight cells",
        verdict->closed / verdict->tight, "%", quarter);
    for (int c = 0; c < COLUMNS; c++) {
        snprintf(name, sizeof name, "%s, conversation and synthetic, farthest from the reference",
            columns[c]);
        if (c != MARCONI && c != OURS) /* Marconi's tuner may choose otherwise; ours is better */
            bench_bars_judge(&verdict->bars, name, verdict->off[c], "points", near_reference);
    }
    bench_bars_judge(&verdict->bars, "policy's time a request, refits included, conversation",
        verdict->policy_ns / verdict->requests / 1e3, "us", cheap);
}

enum { MOST_JOBS = BARS * COLUMNS + HINT_BARS * SEEDS + AGREED * AGREED_BUDGETS };

/* Of the cells, of those with hints, of what is to agree; returns how many. */
static size_t jobs_init(struct hit_job *jobs, const struct hit_trace *traces,
    const struct hit_model *models)
{
    struct hit_job *job = jobs;
    for (size_t i = 0; i < BARS; i++) {
        for (int c = 0; c < COLUMNS; c++)
            job_init(job++, &traces[bars[i].trace], &models[bars[i].state_only], columns[c],
                bars[i].gib);
    }
    for (size_t i = 0; i < HINT_BARS * SEEDS; i++, job++) {
        const struct hint_bar *hint = &hint_bars[i / SEEDS];
        job_init(job, &traces[CONVERSATION], &models[hint->state_only], "gittins+hint:0.8",
            hint->gib);
        job->spec.hint_seed = i % SEEDS + 1;
    }
    for (size_t i = 0; i < AGREED; i++) {
        for (size_t k = 0; k < agreed_count(&agreed[i]); k++)
            job_init(job++, &traces[agreed[i].trace], &models[agreed[i].state_only],
                agreed[i].policy, agreed[i].gib * (double)(1 << k));
    }
    return (size_t)(job - jobs);
}

int hit_bars_run(const char *folder, unsigned threads, const char *csv, const char *json)
{
    struct hit_trace traces[TRACE_COUNT];
    struct hit_model models[2];
    char path[4096], error[TRACE_ERROR_BYTES];
    hit_model_make(&models[0], "qwen3-next-80b-a3b", "fp32", "bf16");
    hit_model_make(&models[1], "qwen3-next-80b-a3b", "fp32", "none");
    for (int i = 0; i < TRACE_COUNT; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        if (hit_trace_load(&traces[i], path, 0, 0, error) != 0)
            bench_fail(BENCH_USAGE, "%s", error);
    }
    struct hit_job *jobs = bench_alloc(MOST_JOBS, sizeof *jobs);
    struct hit_job *hints = jobs + BARS * COLUMNS, *others = hints + HINT_BARS * SEEDS;
    size_t count = jobs_init(jobs, traces, models);
    hit_jobs_run(jobs, count, threads, "cells");
    struct verdict verdict = {.out = json && !strcmp(json, "-") ? stderr : stdout};
    tables(jobs, hints, &verdict);
    agreement(others, &verdict);
    time_policy(jobs, &verdict);
    judge_all(&verdict);
    int code = bench_bars_end(&verdict.bars, verdict.out);
    if ((csv && !hit_report_csv(csv, jobs, count)) || (json && !hit_report_json(json, jobs, count)))
        code = BENCH_CHECK_FAILED;
    free(jobs);
    for (int i = 0; i < TRACE_COUNT; i++)
        hit_trace_free(&traces[i]);
    return code;
}
