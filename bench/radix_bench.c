/* SPDX-License-Identifier: Apache-2.0 */
#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench_common.h"
#include "bench_main.h"
#include "radix_serial.h"

enum key { KEY_LOAD = 256, KEY_REQUESTS, KEY_SEED, KEY_JSON };

static const struct argp_option option_list[] = {
    {"workload", KEY_LOAD, "w1|w2|all", 0, "chats, or prefixes cut at random points (all)", 0},
    {"requests", KEY_REQUESTS, "N", 0, "of each workload (10000)", 0},
    {"seed", KEY_SEED, "N", 0, "of the workloads (60)", 0},
    {"json", KEY_JSON, NULL, 0, "print JSON lines instead of text", 0},
    {0}};

struct radix_options { bool chats, cuts, json; uint32_t requests; uint64_t seed; };

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

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct radix_options *o = state->input;
    switch (key) {
    case KEY_LOAD:
        o->chats = !strcmp(arg, "w1") || !strcmp(arg, "all");
        o->cuts = !strcmp(arg, "w2") || !strcmp(arg, "all");
        if (!o->chats && !o->cuts)
            argp_error(state, "--workload: '%s' is neither w1, w2 nor all", arg);
        break;
    case KEY_REQUESTS:
        o->requests = (uint32_t)number(state, "requests", arg, 8, 1000000);
        break;
    case KEY_SEED: o->seed = number(state, "seed", arg, 0, UINT64_MAX); break;
    case KEY_JSON: o->json = true; break;
    case ARGP_KEY_ARG: argp_error(state, "'%s' is no option", arg); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

int radix_main(int argc, char **argv)
{
    struct radix_options o = {true, true, false, 10000, 60};
    static const struct argp argp = {option_list, parse, NULL,
        "Measures the prefix index beside memcmp of the same bytes, and its memory.", NULL, NULL,
        NULL};
    argp_err_exit_status = BENCH_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    struct radix_rows rows = {.json = o.json, .seed = o.seed};
    for (int cuts = 0; cuts < 2; cuts++) {
        if (cuts ? !o.cuts : !o.chats)
            continue;
        struct radix_load load;
        radix_load_open(&load, !cuts, o.requests, o.seed);
        radix_serial_run(&load, &rows);
        radix_load_close(&load);
    }
    if (!o.json)
        radix_rows_end(&rows);
    size_t missed = radix_rows_missed(&rows);
    free(rows.rows);
    return missed == 0 ? BENCH_OK : BENCH_CHECK_FAILED;
}
