/* SPDX-License-Identifier: Apache-2.0 */
/* What `statecache-bench radix` (and `spill`) found: rows, each with its bar if there is one. */
#ifndef BENCH_RADIX_ROWS_H
#define BENCH_RADIX_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bars.h"

struct radix_row {
    char workload[16], name[72], unit[16];
    uint64_t n;
    double p50, p99;
    struct bench_bar bar; /* of p50 */
    bool met;
};

struct radix_rows {
    const char *bench; /* NULL: radix */
    struct radix_row *rows;
    size_t count, cap;
    bool json, headed;
    uint64_t seed;
};

/* Values measured one by one. */
struct radix_samples { double *values; size_t count, cap; };
void radix_sample(struct radix_samples *samples, double value);
/* Sorts; 0 of none. */
double radix_quantile(struct radix_samples *samples, double q);
void radix_samples_free(struct radix_samples *samples);

/* A row of one value; NAN: it could not be measured. It is printed at once. */
void radix_row_value(struct radix_rows *rows, const char *workload, const char *name,
    const char *unit, double value, struct bench_bar bar);
/* A row of samples, which are sorted. Of none, nothing is printed, but a bar counts as missed. */
void radix_row_samples(struct radix_rows *rows, const char *workload, const char *name,
    const char *unit, struct radix_samples *samples, struct bench_bar bar);
/* Of a text, missed bars once more; if `bars`, all of them. Frees the rows. Returns the exit
 * status: bars count only where they were asked for. */
int radix_rows_close(struct radix_rows *rows, bool bars);

#endif
