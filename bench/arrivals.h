/* SPDX-License-Identifier: Apache-2.0 */
/* Who comes next: requests that wait for admission, ordered by when they are ready (then by index),
 * and those that wait for another request to finish. */
#ifndef BENCH_ARRIVALS_H
#define BENCH_ARRIVALS_H

#include "workload.h"

struct arrivals {
    const struct workload *workload;
    double speed;                     /* arrivals come this much faster than the workload says */
    struct waiting *queue;            /* binary heap */
    size_t count;
    int32_t *first_next, *next_next;  /* requests that wait for one to finish: lists */
};

/* Everybody who waits for nobody. Forks come with those they are forks of: not here. */
void arrivals_init(struct arrivals *arrivals, const struct workload *workload, double speed);
void arrivals_deinit(struct arrivals *arrivals);
void arrivals_push(struct arrivals *arrivals, uint64_t ready_ns, size_t request);
/* The first in the queue; there must be one. */
size_t arrivals_first(const struct arrivals *arrivals, uint64_t *ready_ns_out);
void arrivals_pop(struct arrivals *arrivals);
/* `request` has finished at `now_ns`: those who waited for it are queued. */
void arrivals_finished(struct arrivals *arrivals, uint64_t now_ns, size_t request);

#endif
