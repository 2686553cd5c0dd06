/* SPDX-License-Identifier: Apache-2.0 */
#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench_main.h"
#include "spill.h"

enum key {
    KEY_DIR = 256, KEY_STATE, KEY_STATES, KEY_PAIRS, KEY_THREADS, KEY_RECORDS, KEY_SECONDS,
    KEY_SEED, KEY_REALTIME, KEY_JSON, KEY_BARS, KEY_FIRST_HIT, KEY_DEVICE
};

static const struct argp_option option_list[] = {
    {"dir", KEY_DIR, "DIR", 0, "where the data goes, in a folder that is removed afterwards "
        "(beside the program)", 0},
    {"state-kib", KEY_STATE, "N", 0, "of one state, a multiple of 4 (75776: Qwen3-Next)", 0},
    {"states", KEY_STATES, "N", 0, "in one pass (32)", 0},
    {"pairs", KEY_PAIRS, "N", 0, "of passes, ours and raw in turns (7)", 0},
    {"threads", KEY_THREADS, "N", 0, "that spill and restore (4)", 0},
    {"records", KEY_RECORDS, "N", 0, "of the store that is opened again; 0: none (1000000)", 0},
    {"seconds", KEY_SECONDS, "S", 0, "of random restores, alone and beside spills (5)", 0},
    {"seed", KEY_SEED, "N", 0, "of the states (60)", 0},
    {"realtime", KEY_REALTIME, NULL, 0, "run before all other work of a busy machine (SCHED_FIFO), "
        "which otherwise is what is measured", 0},
    {"device", KEY_DEVICE, "BACKEND", 0, "no disk: states between a pool of this backend (host, "
        "cuda) and the host tier, beside plain copies", 0},
    {"json", KEY_JSON, NULL, 0, "print JSON lines instead of text", 0},
    {"bars", KEY_BARS, NULL, 0, BENCH_BARS_HELP, 0},
    {"first-hit", KEY_FIRST_HIT, "DIR", OPTION_HIDDEN, "", 0},
    {0}};

struct arguments {
    struct spill_options spill;
    const char *dir, *first_hit, *device;
    bool json, bars, realtime;
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

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    struct spill_options *o = &a->spill;
    switch (key) {
    case KEY_DIR: a->dir = arg; break;
    case KEY_STATE:
        o->state_bytes = 1024 * number(state, "state-kib", arg, 4, 4 << 20);
        if (o->state_bytes % 4096)
            argp_error(state, "--state-kib: '%s' is no multiple of 4", arg);
        break;
    case KEY_STATES: o->states = (uint32_t)number(state, "states", arg, 1, 4096); break;
    case KEY_PAIRS: o->pairs = (uint32_t)number(state, "pairs", arg, 1, 1000); break;
    case KEY_THREADS:
        o->threads = (uint32_t)number(state, "threads", arg, 1, SPILL_THREADS_MAX);
        break;
    case KEY_RECORDS: o->records = number(state, "records", arg, 0, 100000000); break;
    case KEY_SECONDS: o->seconds = (double)number(state, "seconds", arg, 0, 3600); break;
    case KEY_SEED: o->seed = number(state, "seed", arg, 0, UINT32_MAX); break;
    case KEY_REALTIME: a->realtime = true; break;
    case KEY_DEVICE: a->device = arg; break;
    case KEY_JSON: a->json = true; break;
    case KEY_BARS: a->bars = true; break;
    case KEY_FIRST_HIT: a->first_hit = arg; break;
    case ARGP_KEY_ARG: argp_error(state, "'%s' is no option", arg); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static void make_folder(const char *dir, char *out, size_t bytes)
{
    char program[PATH_MAX];
    if (!dir) {
        ssize_t count = readlink("/proc/self/exe", program, sizeof program - 1);
        if (count < 0)
            bench_fail(BENCH_USAGE, "where is this program? --dir says where data may go");
        program[count] = '\0';
        *strrchr(program, '/') = '\0';
        dir = program;
    }
    if (snprintf(out, bytes, "%s/spill-XXXXXX", dir) >= (int)bytes || !mkdtemp(out))
        bench_fail(BENCH_USAGE, "cannot make a folder in %s: %s", dir, strerror(errno));
}

static void take_precedence(void)
{
    const struct sched_param lowest = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO, &lowest) != 0)
        bench_fail(BENCH_USAGE, "--realtime: %s", strerror(errno));
}

static void device_run(const struct arguments *a, struct radix_rows *rows)
{
    sc_backend *backend = sc_backend_host();
    sc_status status = SC_OK;
    if (strcmp(a->device, "host") != 0)
        status = sc_backend_open(a->device, &backend);
    if (status != SC_OK)
        bench_fail(status == SC_ERR_UNSUPPORTED ? BENCH_SKIPPED : BENCH_USAGE, "--device: %s",
            sc_last_error()->text);
    spill_device_run(&a->spill, backend, rows);
}

int spill_main(int argc, char **argv)
{
    struct arguments a = {.spill = {.state_bytes = UINT64_C(74) << 20, .states = 32, .pairs = 7,
        .threads = 4, .records = 1000000, .seconds = 5, .seed = 60}};
    static const struct argp argp = {option_list, parse, NULL,
        "Measures the disk tier beside the file system: spill and restore, opening again, restores "
        "beside spills.", NULL, NULL, NULL};
    argp_err_exit_status = BENCH_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    if (a.first_hit)
        return spill_reopen_child(a.first_hit, a.spill.records);
    char folder[PATH_MAX];
    if (a.realtime)
        take_precedence();
    struct radix_rows rows = {.bench = "spill", .json = a.json, .seed = a.spill.seed};
    if (a.device) {
        device_run(&a, &rows);
        return radix_rows_close(&rows, a.bars);
    }
    make_folder(a.dir, folder, sizeof folder);
    a.spill.folder = folder;
    spill_pairs_run(&a.spill, &rows);
    if (a.spill.records > 0)
        spill_reopen_run(&a.spill, &rows);
    spill_remove_folder(folder);
    return radix_rows_close(&rows, a.bars);
}
