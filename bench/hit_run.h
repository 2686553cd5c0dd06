/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_HIT_RUN_H
#define BENCH_HIT_RUN_H

#include "hit.h"

/* Sizes and flops of a preset; ends the program for names that are none. Where attention and active
 * parameters are not known, KV bytes and flops are 0. */
void hit_model_make(struct hit_model *model, const char *preset, const char *state, const char *kv);
/* Runs the cells, so many at a time, with a bar on stderr. */
void hit_jobs_run(struct hit_job *jobs, size_t count, unsigned threads, const char *label);

#endif
