/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels_bench.h"

#include <argp.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bars.h"
#include "base/clock.h"
#include "bench_main.h"

enum key { KEY_THREADS = 256, KEY_ROUNDS, KEY_POOL, KEY_OP, KEY_MODEL, KEY_QUICK, KEY_TOKENS,
    KEY_NO_SGEMM, KEY_JSON, KEY_BARS };
enum { ROUNDS_MAX = 101, THREADS_MAX = 64 };

struct options {
    uint32_t threads, rounds, pool_mib, tokens_max;
    const char *op, *model;
    bool quick, no_sgemm, json, bars;
};

static const struct argp_option option_list[] = {
    {"op", KEY_OP, "NAME", 0, "only operations whose name contains NAME", 0},
    {"model", KEY_MODEL, "NAME", 0, "only models whose name contains NAME", 0},
    {"threads", KEY_THREADS, "N", 0, "of operations and of both limits (1)", 0},
    {"rounds", KEY_ROUNDS, "N", 0, "of which medians are taken (5)", 0},
    {"pool-mib", KEY_POOL, "N", 0, "states of a decode; larger than the last-level cache (640)", 0},
    {"tokens-max", KEY_TOKENS, "N", 0, "cut prefills to N tokens (4096)", 0},
    {"quick", KEY_QUICK, NULL, 0, "one batch and one length of each operation", 0},
    {"no-sgemm", KEY_NO_SGEMM, NULL, 0, "without OpenBLAS: that limit is not measured", 0},
    {"json", KEY_JSON, NULL, 0, "objects, a line each", 0},
    {"bars", KEY_BARS, NULL, 0, BENCH_BARS_HELP ". They are for the pool's default size", 0},
    {0},
};

static const struct kbench_model models[] = {
    {"qwen3-next", SC_K_KIND_GDN, 16, 32, 128, 128, false},
    {"kimi-linear", SC_K_KIND_KDA, 32, 32, 128, 128, false},
    {"nemotron-h", SC_K_KIND_GDN, 8, 128, 128, 64, true}, /* groups, heads, N, P */
};
enum { MODELS = sizeof models / sizeof *models };

static const uint32_t batches[] = {1, 4, 16, 64}, lengths[] = {64, 256, 1024, 4096};

static uint32_t number(struct argp_state *state, const char *text, uint32_t max)
{
    char *end = NULL;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || value < 1 || value > max)
        argp_error(state, "'%s' is not a number from 1 to %u", text, max);
    return (uint32_t)value;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case KEY_THREADS: o->threads = number(state, text, THREADS_MAX); return 0;
    case KEY_ROUNDS: o->rounds = number(state, text, ROUNDS_MAX); return 0;
    case KEY_POOL: o->pool_mib = number(state, text, 1 << 20); return 0;
    case KEY_TOKENS: o->tokens_max = number(state, text, 4096); return 0;
    case KEY_OP: o->op = text; return 0;
    case KEY_MODEL: o->model = text; return 0;
    case KEY_QUICK: o->quick = true; return 0;
    case KEY_NO_SGEMM: o->no_sgemm = true; return 0;
    case KEY_JSON: o->json = true; return 0;
    case KEY_BARS: o->bars = true; return 0;
    case ARGP_KEY_ARG: argp_error(state, "'%s' is not an option", text); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- time: processor time of the slowest thread ---- */

struct job {
    struct kbench_work *work;
    void (*run)(struct kbench_work *work, uint32_t thread);
    uint32_t thread;
    uint64_t ns;
};

static void *job_main(void *arg)
{
    struct job *job = arg;
    uint64_t start = sc_clock_thread_ns();
    job->run(job->work, job->thread);
    job->ns = sc_clock_thread_ns() - start;
    return NULL;
}

static uint64_t timed(struct kbench_work *work, void (*run)(struct kbench_work *, uint32_t),
    uint32_t threads)
{
    struct job jobs[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    uint64_t ns = 0;
    for (uint32_t t = 0; t < threads; t++) jobs[t] = (struct job){work, run, t, 0};
    for (uint32_t t = 1; t < threads; t++)
        if (pthread_create(&ids[t], NULL, job_main, &jobs[t]) != 0)
            bench_fail(BENCH_NO_MEMORY, "no thread");
    job_main(&jobs[0]);
    for (uint32_t t = 1; t < threads; t++) pthread_join(ids[t], NULL);
    for (uint32_t t = 0; t < threads; t++) ns = jobs[t].ns > ns ? jobs[t].ns : ns;
    return ns;
}

/* OpenBLAS has threads of its own: with more than one, elapsed time. */
static uint64_t timed_sgemm(uint32_t threads)
{
    uint64_t start = threads > 1 ? sc_clock_now_ns() : sc_clock_thread_ns();
    kbench_blas_sgemm();
    return (threads > 1 ? sc_clock_now_ns() : sc_clock_thread_ns()) - start;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* ---- one case ---- */

struct result {
    const char *row;
    double call_us, least_us, gb_s, gflop_s, limit, ratio; /* limit in GB/s or GFLOP/s; 0: none */
};

static const char *row_name(const struct kbench_case *c)
{
    const char *row = NULL;
    bench_must(sc_k_choice(NULL, kbench_library_op(c), c->dtype, c->state, &row), "sc_k_choice");
    return row;
}

static struct result measure(const struct kbench_case *c, const struct options *o, bool blas)
{
    struct kbench_work *w = kbench_open(c, (uint64_t)o->pool_mib << 20, o->threads);
    bool sgemm = kbench_limit_of(c->op) == KBENCH_SGEMM, limited = !sgemm || blas;
    double work = sgemm ? (double)kbench_flops(w) : (double)kbench_scale_bytes(w);
    double limit_work = sgemm ? 2.0 * KBENCH_SGEMM_N * KBENCH_SGEMM_N * KBENCH_SGEMM_N : work;
    double time[ROUNDS_MAX], limit[ROUNDS_MAX], ratio[ROUNDS_MAX];
    (void)timed(w, kbench_run, o->threads); /* pages and caches as in later rounds */
    for (uint32_t r = 0; r < o->rounds; r++) {
        uint64_t limit_ns = !limited ? 1 : sgemm ? timed_sgemm(o->threads)
                                                 : timed(w, kbench_scale, o->threads);
        uint64_t ns = timed(w, kbench_run, o->threads);
        time[r] = (double)ns;
        limit[r] = limit_work / (double)limit_ns;
        ratio[r] = work / (double)ns / limit[r];
    }
    double ns = median(time, o->rounds), calls = (double)kbench_calls(w) / o->threads;
    struct result result = {.row = row_name(c),
        .call_us = ns / 1e3 / calls, .least_us = time[0] / 1e3 / calls, /* sorted by now */
        .gb_s = (double)kbench_bytes(w) / ns, .gflop_s = (double)kbench_flops(w) / ns,
        .limit = limited ? median(limit, o->rounds) : 0,
        .ratio = limited ? median(ratio, o->rounds) : 0};
    kbench_close(w);
    return result;
}

static const char *dtype_name(sc_dtype dtype)
{
    return dtype == SC_DTYPE_F32 ? "fp32" : dtype == SC_DTYPE_BF16 ? "bf16" : "-";
}

/* What must be reached of the limit, in percent, once states exceed the last-level cache. */
static struct bench_bar bar_of(const struct kbench_case *c)
{
    static const struct bench_bar none = {BENCH_BAR_NONE, 0}, decode = {BENCH_BAR_LEAST, 80},
        chunk = {BENCH_BAR_LEAST, 40};
    return c->op == KBENCH_DECODE ? decode : c->op == KBENCH_CHUNK ? chunk : none;
}

static void report(const struct kbench_case *c, const struct options *o, const struct result *r)
{
    const char *limit = kbench_limit_of(c->op) == KBENCH_SGEMM ? "sgemm" : "memory";
    if (o->json) {
        printf("{\"v\":1,\"bench\":\"kernels\",\"params\":{\"op\":\"%s\",\"model\":\"%s\","
               "\"dtype\":\"%s\",\"state\":\"%s\",\"batch\":%u,\"tokens\":%u,\"threads\":%u},"
               "\"row\":\"%s\",\"metric\":\"time\",\"unit\":\"us\",\"n\":%u,"
               "\"p50\":%.3f,\"min\":%.3f,"
               "\"gb_s\":%.3f,\"gflop_s\":%.3f,\"limit\":\"%s\",",
            kbench_op_name(c->op), c->model->name, dtype_name(c->dtype), dtype_name(c->state),
            c->batch, c->tokens, o->threads, r->row, o->rounds, r->call_us, r->least_us, r->gb_s,
            r->gflop_s, limit);
        if (bar_of(c).kind != BENCH_BAR_NONE)
            printf("\"bar_percent\":%.0f,", bar_of(c).limit);
        if (r->limit > 0)
            printf("\"limit_rate\":%.3f,\"limit_percent\":%.2f}\n", r->limit, 100 * r->ratio);
        else
            puts("\"limit_rate\":null,\"limit_percent\":null}");
        return;
    }
    printf("%-13s %-11s %-5s %-5s %5u %6u  %-9s %11.1f %8.2f %9.2f  ", kbench_op_name(c->op),
        c->model->name, dtype_name(c->dtype), dtype_name(c->state), c->batch, c->tokens, r->row,
        r->call_us, r->gb_s, r->gflop_s);
    if (r->limit > 0)
        printf("%-6s %7.2f %6.1f %%\n", limit, r->limit, 100 * r->ratio);
    else
        printf("%-6s no limit\n", limit);
    fflush(stdout);
}

static void judge(const struct kbench_case *c, const struct result *r, struct bench_bars *bars)
{
    char name[96];
    snprintf(name, sizeof name, "%s %s %s/%s, batch %u, %u tokens, of %s", c->model->name,
        kbench_op_name(c->op), dtype_name(c->dtype), dtype_name(c->state), c->batch, c->tokens,
        kbench_limit_of(c->op) == KBENCH_SGEMM ? "sgemm" : "x *= c in place");
    bench_bars_judge(bars, name, r->limit > 0 ? 100 * r->ratio : NAN, "%", bar_of(c));
}

static void run_op(enum kbench_op op, const struct kbench_model *model, const struct options *o,
    bool blas, struct bench_bars *bars)
{
    bool rows = op == KBENCH_DECODE || op == KBENCH_CONV_UPDATE || op == KBENCH_VERIFY
        || op == KBENCH_REPLAY;
    bool delta = op == KBENCH_CHUNK || op == KBENCH_DECODE || op == KBENCH_VERIFY
        || op == KBENCH_REPLAY;
    bool state = delta || op == KBENCH_RECURRENT || op == KBENCH_CONV_PREFILL || rows;
    const uint32_t *list = rows ? batches : lengths;
    for (uint32_t s = 0; s < 2; s++) /* fp32, then bf16 */
        for (uint32_t i = 0; i < 4; i++) {
            if (o->quick ? i != 2 : !rows && op != KBENCH_CHUNK && i != 2)
                continue;
            struct kbench_case c = {.op = op, .model = model, .dtype = SC_DTYPE_F32,
                .batch = rows ? list[i] : 1, .tokens = op == KBENCH_VERIFY ? KBENCH_DRAFTS
                    : rows ? 1 : list[i]};
            if (c.tokens > o->tokens_max)
                c.tokens = o->tokens_max;
            if (s == 1 && !delta)
                c.dtype = SC_DTYPE_BF16;
            if (state)
                c.state = s == 1 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
            struct result r = measure(&c, o, blas);
            report(&c, o, &r);
            judge(&c, &r, bars);
        }
}

int kernels_main(int argc, char **argv)
{
    static const struct argp argp = {.options = option_list, .parser = parse,
        .doc = "Measures the host's kernels beside limits that are measured in the same run: "
               "x *= c in place over the same memory, and sgemm of OpenBLAS.\v"
               "us: one call. GB/s, GFLOP/s: what has to be moved and computed (chunk: 6KV + "
               "128(3K+2V) a token and v head) over that time; then the limit's rate, and how "
               "much of it is reached: the median over rounds, each with its own measure of the "
               "limit. SC_KERNELS=reference or avx2 measures those kernel rows."};
    struct options o = {.threads = 1, .rounds = 5, .pool_mib = 640, .tokens_max = 4096};
    argp_err_exit_status = BENCH_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    const char *why = "not asked for";
    const char *core = o.no_sgemm ? NULL : kbench_blas_open(o.threads, &why);
    if (!o.json) {
        printf("%u thread%s, %u rounds; x *= c by %s; OpenBLAS core %s\n\n", o.threads,
            o.threads > 1 ? "s" : "", o.rounds, kbench_scale_name(), core ? core : why);
        printf("%-13s %-11s %-5s %-5s %5s %6s  %-9s %11s %8s %9s  %-6s %7s %8s\n", "operation",
            "model", "dtype", "state", "batch", "tokens", "row", "us", "GB/s", "GFLOP/s", "limit",
            "rate", "reached");
    }
    bool any = false;
    struct bench_bars bars = {0};
    for (int op = 0; op < KBENCH_OPS; op++)
        for (int m = 0; m < MODELS; m++) {
            if (o.op && !strstr(kbench_op_name((enum kbench_op)op), o.op))
                continue;
            if (o.model && !strstr(models[m].name, o.model))
                continue;
            if (!kbench_has(&models[m], (enum kbench_op)op))
                continue;
            any = true;
            run_op((enum kbench_op)op, &models[m], &o, core != NULL, &bars);
        }
    if (!any)
        bench_fail(BENCH_USAGE, "no operation or no model has that name");
    if (o.bars && !o.json)
        putchar('\n');
    int code = o.bars ? bench_bars_end(&bars, o.json ? stderr : stdout) : BENCH_OK;
    free(bars.judged);
    return code;
}
