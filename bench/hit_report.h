/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_HIT_REPORT_H
#define BENCH_HIT_REPORT_H

#include "hit.h"

double hit_rate(const struct hit_result *result);   /* % of prompt tokens */
void hit_report_table(FILE *out, const struct hit_job *jobs, size_t policies, size_t budgets);
void hit_report_details(FILE *out, const struct hit_job *jobs, size_t count);
/* false, with a line on stderr, if the file cannot be written. */
bool hit_report_csv(const char *path, const struct hit_job *jobs, size_t count);
bool hit_report_json(const char *path, const struct hit_job *jobs, size_t count);
/* PREFIX.png and PREFIX.svg through gnuplot. */
bool hit_report_plot(const char *prefix, const struct hit_job *jobs, size_t policies,
    size_t budgets);

#endif
