/* SPDX-License-Identifier: Apache-2.0 */
/* Where and of what a figure was measured: the fields that every --json line ends with. */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H

#include <jansson.h>
#include <stdio.h>

/* Adds to `object`: git (the commit, where SC_BENCH_GIT tells it, as ./dev bench does, else null),
 * dirty (whether SC_BENCH_DIRTY is set, null without a commit), build (optimised or not, the
 * compiler, SC_ASSERT_LEVEL), host (processor and how many of its threads this process may use),
 * gpu (what bench_machine_gpu was told, else null) and utc (now). Compare figures only where build,
 * host and gpu are the same. */
void bench_machine_add(json_t *object);

/* The same as text that goes on with an object, from its comma to its last field. */
void bench_machine_write(FILE *out);

/* The device that figures are from; copied. */
void bench_machine_gpu(const char *name);

#endif
