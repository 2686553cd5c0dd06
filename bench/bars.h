/* SPDX-License-Identifier: Apache-2.0 */
/* Bars: what the figures of a benchmark must reach. `--bars` of each benchmark prints them:
 *
 *   bar W2 match / memcmp 9k, hot: 2.71 (must <= 3)
 *   bar qwen3-next decode fp32, batch 64: 86.2 % (must >= 80 %)
 *   bar kimi-linear chunk fp32, 4096 tokens: not measured (must >= 40 %)
 *   bar kimi-linear replay bf16, batch 1: 0.6 x (no bar: WHY)
 *   2 of 3 bars met
 *   missed: kimi-linear chunk fp32, 4096 tokens
 *
 * A figure that was not measured has not reached its bar. One that has none for a reason that was
 * measured, too, is printed with that reason and counts for nothing. */
#ifndef BENCH_BARS_H
#define BENCH_BARS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum bench_bar_kind { BENCH_BAR_NONE, BENCH_BAR_MOST, BENCH_BAR_LEAST, BENCH_BAR_NEAR };

/* The value may be `limit` at most, at least, or lie within 3 % of it. */
struct bench_bar {
    enum bench_bar_kind kind;
    double limit;
};

/* Of no kind, every value has reached it; NAN has reached no other. */
bool bench_bar_met(struct bench_bar bar, double value);

struct bench_judged {
    char name[128];
    double value;
    const char *unit;
    struct bench_bar bar;
    char why[160]; /* not: of no kind */
};
struct bench_bars {
    struct bench_judged *judged;
    size_t count, cap;
}; /* begins as zeros */

/* What the option is called in every benchmark. */
#define BENCH_BARS_HELP                                                                            \
    "then print what must be reached, each as 'bar NAME: VALUE (must TARGET)', to standard error " \
    "if standard output is JSON, and end with status 1 if one is missed"

/* Keeps a figure; one without a bar is left out. `unit` is not copied. */
void bench_bars_judge(struct bench_bars *bars, const char *name, double value, const char *unit,
    struct bench_bar bar);
/* Keeps a figure that has no bar, and why. */
void bench_bars_excuse(struct bench_bars *bars, const char *name, double value, const char *unit,
    const char *why);
/* Prints them, how many were met, and which were not, or that there are none; frees them. Returns
 * BENCH_CHECK_FAILED if one was missed, else BENCH_OK. */
int bench_bars_end(struct bench_bars *bars, FILE *out);

#endif
