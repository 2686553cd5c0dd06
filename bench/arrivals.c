/* SPDX-License-Identifier: Apache-2.0 */
#include "arrivals.h"

#include <stdlib.h>
#include <string.h>

#include "bench_common.h"

struct waiting {
    uint64_t ready_ns;
    size_t request;
};

static bool before(const struct waiting *a, const struct waiting *b)
{
    return a->ready_ns != b->ready_ns ? a->ready_ns < b->ready_ns : a->request < b->request;
}

void arrivals_push(struct arrivals *arrivals, uint64_t ready_ns, size_t request)
{
    size_t at = arrivals->count++;
    struct waiting item = {ready_ns, request};
    while (at > 0 && before(&item, &arrivals->queue[(at - 1) / 2])) {
        arrivals->queue[at] = arrivals->queue[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    arrivals->queue[at] = item;
}

size_t arrivals_first(const struct arrivals *arrivals, uint64_t *ready_ns_out)
{
    *ready_ns_out = arrivals->queue[0].ready_ns;
    return arrivals->queue[0].request;
}

void arrivals_pop(struct arrivals *arrivals)
{
    struct waiting item = arrivals->queue[--arrivals->count];
    size_t at = 0;
    for (size_t child = 1; child < arrivals->count; child = 2 * at + 1) {
        if (child + 1 < arrivals->count &&
            before(&arrivals->queue[child + 1], &arrivals->queue[child]))
            child++;
        if (!before(&arrivals->queue[child], &item))
            break;
        arrivals->queue[at] = arrivals->queue[child];
        at = child;
    }
    arrivals->queue[at] = item;
}

static uint64_t arrival(const struct arrivals *arrivals, const struct bench_request *request)
{
    return (uint64_t)((double)request->arrive_ns / arrivals->speed);
}

void arrivals_init(struct arrivals *arrivals, const struct workload *workload, double speed)
{
    size_t requests = workload->request_count;
    *arrivals = (struct arrivals){.workload = workload, .speed = speed};
    arrivals->queue = bench_alloc(requests, sizeof *arrivals->queue);
    arrivals->first_next = bench_alloc(requests, sizeof *arrivals->first_next);
    arrivals->next_next = bench_alloc(requests, sizeof *arrivals->next_next);
    memset(arrivals->first_next, 0xff, requests * sizeof *arrivals->first_next);
    for (size_t i = requests; i-- > 0;) {
        const struct bench_request *request = &workload->requests[i];
        if (request->fork_of >= 0)
            continue;
        if (request->after < 0) {
            arrivals_push(arrivals, arrival(arrivals, request), i);
            continue;
        }
        arrivals->next_next[i] = arrivals->first_next[request->after];
        arrivals->first_next[request->after] = (int32_t)i;
    }
}

void arrivals_deinit(struct arrivals *arrivals)
{
    free(arrivals->queue);
    free(arrivals->first_next);
    free(arrivals->next_next);
}

void arrivals_finished(struct arrivals *arrivals, uint64_t now_ns, size_t request)
{
    for (int32_t i = arrivals->first_next[request]; i >= 0; i = arrivals->next_next[i]) {
        const struct bench_request *next = &arrivals->workload->requests[i];
        uint64_t ready = now_ns + next->think_ns, arrives = arrival(arrivals, next);
        arrivals_push(arrivals, ready > arrives ? ready : arrives, (size_t)i);
    }
}
