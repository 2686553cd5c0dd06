/* SPDX-License-Identifier: Apache-2.0 */
/* The same operations in a program of others' code, side by side: kernels_torch.py.
 *
 *   bench  ->  {"op": "decode", "kind": "gdn", "batch": 16, ..., "threads": 2, "rounds": 5}
 *          <-  {"by": "torch", "us": 812.5, "n": 9, "error": 3.1e-07}
 *          <-  {"skip": "PyTorch has no such operation"}
 *
 * One line of JSON each way, over a socket that is the program's standard input and output; before
 * the first, it says what it is: {"rival": "PyTorch 2.15"}, or {"skip": "..."} if it can do nothing
 * here. A rival is extra: whatever goes wrong with it is a reason in the report and no more. */
#ifndef BENCH_KERNELS_RIVAL_H
#define BENCH_KERNELS_RIVAL_H

#include <sys/types.h>

#include "kernels_bench.h"

struct kbench_rival {
    int fd;    /* -1: there is none, or none any more */
    pid_t pid;
    uint32_t wait_s;
    char text[200]; /* what it is, or why there is none */
    char line[4096];
    size_t used;
};

struct kbench_rival_answer {
    bool measured;
    double us, error; /* error: NAN if it was not compared */
    uint32_t count;   /* of calls that were timed */
    char by[80];      /* the functions; or why there is no time */
};

/* `command` for the shell, or NULL: no rival was asked for. An answer may take `wait_s` seconds. */
void kbench_rival_open(struct kbench_rival *rival, const char *command, uint32_t wait_s);
struct kbench_rival_answer kbench_rival_ask(struct kbench_rival *rival,
    const struct kbench_case *c, uint64_t pool_bytes, uint32_t threads, uint32_t rounds);
void kbench_rival_close(struct kbench_rival *rival);

#endif
