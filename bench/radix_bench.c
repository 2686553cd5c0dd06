/* SPDX-License-Identifier: Apache-2.0 */
#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_common.h"
#include "bench_main.h"
#include "radix_serial.h"
#include "radix_threads.h"

enum key {
    KEY_LOAD = 256, KEY_REQUESTS, KEY_SEED, KEY_JSON, KEY_THREADS, KEY_SECONDS, KEY_MUTATIONS,
    KEY_EXPORT, KEY_BARS
};

static const struct argp_option option_list[] = {
    {"workload", KEY_LOAD, "w1|w2|threads|all", 0, "chats; prefixes cut at random points; look-ups "
        "from many threads (all)", 0},
    {"requests", KEY_REQUESTS, "N", 0, "of each workload (10000)", 0},
    {"threads", KEY_THREADS, "LIST", 0, "how many look up at once (1,2,4,... up to the "
        "processors)", 0},
    {"seconds", KEY_SECONDS, "S", 0, "of each measurement with threads (0.3)", 0},
    {"mutations", KEY_MUTATIONS, "N", 0, "a second, beside the threads (1000)", 0},
    {"seed", KEY_SEED, "N", 0, "of the workloads (60)", 0},
    {"export", KEY_EXPORT, NULL, 0, "measure nothing: write the requests of w1 or w2 to standard "
        "output, each as two 32-bit counts (prompt, with answer) and its tokens", 0},
    {"json", KEY_JSON, NULL, 0, "print JSON lines instead of text", 0},
    {"bars", KEY_BARS, NULL, 0, BENCH_BARS_HELP, 0},
    {0}};

enum { LIST_MAX = 32 };

struct radix_options {
    bool chats, cuts, threads, json, bars, export;
    uint32_t requests;
    uint64_t seed;
    unsigned list[LIST_MAX], mutations;
    size_t list_count;
    double seconds;
};

static unsigned long long number(struct argp_state *state, const char *name, const char *text,
    unsigned long long low, unsigned long long high)
{
    char *end;
    errno = 0;
    unsigned long long result = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || result < low || result > high)
        argp_error(state, "--%s: '%s' is not between %llu and %llu", name, text, low, high);
    return result;
}

static void thread_list(struct argp_state *state, const char *text, struct radix_options *o)
{
    char *copy = strdup(text), *rest;
    if (!copy)
        bench_fail(BENCH_NO_MEMORY, "out of memory");
    o->list_count = 0;
    for (char *part = strtok_r(copy, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
        if (o->list_count == LIST_MAX)
            argp_error(state, "--threads: more than %d counts", LIST_MAX);
        o->list[o->list_count++] = (unsigned)number(state, "threads", part, 1, RADIX_THREADS_MAX);
    }
    if (o->list_count == 0)
        argp_error(state, "--threads: '%s' names none", text);
    free(copy);
}

static void thread_list_default(struct radix_options *o)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    for (unsigned count = 1; count == 1 || count <= processors; count *= 2) {
        if (o->list_count == LIST_MAX || count > RADIX_THREADS_MAX)
            return;
        o->list[o->list_count++] = count;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct radix_options *o = state->input;
    switch (key) {
    case KEY_LOAD:
        o->chats = !strcmp(arg, "w1") || !strcmp(arg, "all");
        o->cuts = !strcmp(arg, "w2") || !strcmp(arg, "all");
        o->threads = !strcmp(arg, "threads") || !strcmp(arg, "all");
        if (!o->chats && !o->cuts && !o->threads)
            argp_error(state, "--workload: '%s' is not w1, w2, threads or all", arg);
        break;
    case KEY_REQUESTS:
        o->requests = (uint32_t)number(state, "requests", arg, 8, 1000000);
        break;
    case KEY_SEED: o->seed = number(state, "seed", arg, 0, UINT64_MAX); break;
    case KEY_THREADS: thread_list(state, arg, o); break;
    case KEY_MUTATIONS:
        o->mutations = (unsigned)number(state, "mutations", arg, 0, 1000000);
        break;
    case KEY_SECONDS: {
        char *end;
        o->seconds = strtod(arg, &end);
        if (end == arg || *end || !(o->seconds >= 0.01 && o->seconds <= 60))
            argp_error(state, "--seconds: '%s' is not between 0.01 and 60", arg);
        break;
    }
    case KEY_JSON: o->json = true; break;
    case KEY_BARS: o->bars = true; break;
    case KEY_EXPORT: o->export = true; break;
    case ARGP_KEY_END:
        if (o->export && o->chats + o->cuts + o->threads != 1)
            argp_error(state, "--export needs --workload w1 or w2");
        if (o->export && o->threads)
            argp_error(state, "--export: the workload 'threads' has no requests");
        break;
    case ARGP_KEY_ARG: argp_error(state, "'%s' is no option", arg); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static int export_requests(const struct radix_options *o)
{
    struct radix_load load;
    radix_load_open(&load, o->chats, o->requests, o->seed);
    bool good = true;
    for (uint32_t i = 0; good && i < load.count; i++) {
        const uint32_t head[2] = {load.requests[i].prompt, load.requests[i].full};
        const int32_t *key = radix_load_key(&load, i, 0);
        good = fwrite(head, sizeof head, 1, stdout) == 1 &&
            fwrite(key, sizeof *key, head[1], stdout) == head[1];
    }
    radix_load_close(&load);
    if (!good || fflush(stdout) != 0)
        bench_fail(BENCH_CHECK_FAILED, "cannot write: %s", strerror(errno));
    return BENCH_OK;
}

int radix_main(int argc, char **argv)
{
    struct radix_options o = {.chats = true, .cuts = true, .threads = true, .requests = 10000,
        .seed = 60, .mutations = 1000, .seconds = 0.3};
    static const struct argp argp = {option_list, parse, NULL,
        "Measures the prefix index beside memcmp of the same bytes, and its memory.", NULL, NULL,
        NULL};
    argp_err_exit_status = BENCH_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    if (o.export)
        return export_requests(&o);
    struct radix_rows rows = {.json = o.json, .seed = o.seed};
    for (int cuts = 0; cuts < 2; cuts++) {
        if (cuts ? !o.cuts : !o.chats)
            continue;
        struct radix_load load;
        radix_load_open(&load, !cuts, o.requests, o.seed);
        radix_serial_run(&load, &rows);
        radix_load_close(&load);
    }
    if (o.threads) {
        if (o.list_count == 0)
            thread_list_default(&o);
        struct radix_threads_options threads = {.threads = o.list, .count = o.list_count,
            .seconds = o.seconds, .mutations = o.mutations, .seed = o.seed};
        radix_threads_run(&threads, &rows);
    }
    return radix_rows_close(&rows, o.bars);
}
