/* SPDX-License-Identifier: Apache-2.0 */
/* What every part of the benchmark program uses: exit codes, memory, fatal errors, progress. */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "statecache/statecache.h"

enum bench_exit {
    BENCH_OK = 0,
    BENCH_CHECK_FAILED = 1, /* a comparison, an account or a library call failed */
    BENCH_USAGE = 2,        /* bad options, or a trace that cannot be read */
    BENCH_NO_MEMORY = 3,
    BENCH_SKIPPED = 77      /* there is no such device here */
};

/* Ends the program with a line on stderr. */
_Noreturn void bench_fail(enum bench_exit code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Ends the program unless `status` is SC_OK; `what` names the call. */
void bench_must(sc_status status, const char *what);

/* Processor time of the whole process. */
uint64_t bench_cpu_ns(void);

/* Zeroed memory; a program that gets none ends. Free with free(). */
void *bench_alloc(size_t count, size_t bytes);
/* Makes room for `need` elements in an array of `*cap`; grows geometrically, moves it. */
void *bench_grow(void *array, size_t *cap, size_t need, size_t bytes);

/* A bar on stderr, drawn only if that is a terminal, at most ten times a second. */
struct bench_progress {
    const char *label;
    bool on;
    uint64_t next_ns;
};
void bench_progress_start(struct bench_progress *progress, const char *label);
void bench_progress_show(struct bench_progress *progress, uint64_t done, uint64_t total);
void bench_progress_end(struct bench_progress *progress);

#endif
