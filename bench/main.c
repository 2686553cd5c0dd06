/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "bench_common.h"
#include "bench_main.h"

static const struct command {
    const char *name, *title, *text;
    int (*main)(int argc, char **argv);
} commands[] = {
    {"replay", "statecache-bench replay",
        "serve a workload with a small hybrid model, with and without the cache", replay_main},
    {"hit", "statecache-bench hit",
        "replay a trace through index and policies: what is resumed at a budget", hit_main},
    {"radix", "statecache-bench radix",
        "measure the prefix index beside memcmp: look-ups, inserts, eviction, memory", radix_main},
    {"kernels", "statecache-bench kernels",
        "measure the host's kernels beside the machine's limits", kernels_main},
    {"layers", "statecache-bench layers",
        "measure the KDA stage, thin products, the chunk scan and movers", layers_main},
    {"spill", "statecache-bench spill",
        "measure the disk tier beside its file system, and how long it takes to open", spill_main},
#ifdef SC_HAVE_SERVICE
    {"service", "statecache-bench service",
        "measure statecached: look-ups over its socket beside an echo", service_main},
#endif
#ifdef SC_HAVE_CUDA
    {"gpu", "statecache-bench gpu",
        "measure the CUDA kernels beside the device's limits", gpu_main},
#endif
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static void usage(FILE *out)
{
    fputs("usage: statecache-bench COMMAND [OPTION...]\n\ncommands:\n", out);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].text);
    fputs("\nstatecache-bench COMMAND --help shows a command's options.\n", out);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return BENCH_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return BENCH_OK;
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(argv[1], commands[i].name))
            continue;
        char title[64];
        snprintf(title, sizeof title, "%s", commands[i].title);
        argv[1] = title; /* what messages and --help call the program */
        return commands[i].main(argc - 1, argv + 1);
    }
    fprintf(stderr, "statecache-bench: there is no command '%s'\n", argv[1]);
    usage(stderr);
    return BENCH_USAGE;
}
