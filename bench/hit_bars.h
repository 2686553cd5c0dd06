/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_HIT_BARS_H
#define BENCH_HIT_BARS_H

/* Runs the cells that the project measures itself by; exit status of the program. `csv`, `json`:
 * files for the cells, or NULL; "-" as JSON makes everything else go to standard error. */
int hit_bars_run(const char *folder, unsigned threads, const char *csv, const char *json);

#endif
