/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "hit.h"

/* wanted[first[b] .. first[b + 1]): requests whose deepest resumable block is b, ascending. */
struct hit_future {
    uint32_t *first, *at, *wanted;
};

static uint32_t wanted_block(const struct hit_trace *trace, size_t i)
{
    const struct hit_request *request = &trace->requests[i];
    uint32_t depth = request->known < request->usable ? request->known : request->usable;
    return depth == 0 ? 0 : (uint32_t)trace->tokens[request->first + depth - 1];
}

struct hit_future *hit_future_create(const struct hit_trace *trace)
{
    struct hit_future *future = bench_alloc(1, sizeof *future);
    future->first = bench_alloc((size_t)trace->node_count + 2, sizeof *future->first);
    future->at = bench_alloc((size_t)trace->node_count + 2, sizeof *future->at);
    future->wanted = bench_alloc(trace->count, sizeof *future->wanted);
    for (size_t i = 0; i < trace->count; i++) {
        uint32_t block = wanted_block(trace, i);
        if (block)
            future->first[block + 1]++;
    }
    for (uint32_t b = 1; b <= trace->node_count + 1; b++) {
        future->first[b] += future->first[b - 1];
        future->at[b - 1] = future->first[b - 1];
    }
    for (size_t i = 0; i < trace->count; i++) {
        uint32_t block = wanted_block(trace, i);
        if (block)
            future->wanted[future->at[block]++] = (uint32_t)i;
    }
    for (uint32_t b = 0; b <= trace->node_count; b++)
        future->at[b] = future->first[b];
    return future;
}

void hit_future_destroy(struct hit_future *future)
{
    if (!future)
        return;
    free(future->first);
    free(future->at);
    free(future->wanted);
    free(future);
}

size_t hit_future_next(struct hit_future *future, uint32_t block, size_t request)
{
    uint32_t *at = &future->at[block], end = future->first[block + 1];
    while (*at < end && future->wanted[*at] <= request)
        (*at)++;
    return *at < end ? future->wanted[*at] : 0;
}
