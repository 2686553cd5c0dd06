/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups from many threads beside one mutator: on one tree, and each on a tree of its own. */
#ifndef BENCH_RADIX_THREADS_H
#define BENCH_RADIX_THREADS_H

#include "radix_rows.h"

enum { RADIX_THREADS_MAX = 256 };

struct radix_threads_options {
    const unsigned *threads; /* a run for each count */
    size_t count;
    double seconds;          /* of one measurement */
    unsigned mutations;      /* a second */
    uint64_t seed;
};

void radix_threads_run(const struct radix_threads_options *options, struct radix_rows *rows);

#endif
