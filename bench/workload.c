/* SPDX-License-Identifier: Apache-2.0 */
#include "workload.h"

#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "bench_common.h"

void workload_init(struct workload *workload, uint32_t vocab)
{
    memset(workload, 0, sizeof *workload);
    workload->vocab = vocab;
}

void workload_free(struct workload *workload)
{
    for (size_t i = 0; i < workload->request_count; i++)
        free(workload->requests[i].tokens);
    free(workload->requests);
    free(workload->segments);
    memset(workload, 0, sizeof *workload);
}

struct bench_request *workload_add(struct workload *workload)
{
    workload->requests = bench_grow(workload->requests, &workload->request_cap,
        workload->request_count + 1, sizeof *workload->requests);
    struct bench_request *request = &workload->requests[workload->request_count++];
    memset(request, 0, sizeof *request);
    request->pred = request->after = -1;
    request->segment_first = workload->segment_count;
    return request;
}

void workload_segment(struct workload *workload, uint64_t seed, int32_t first, uint32_t length)
{
    workload->segments = bench_grow(workload->segments, &workload->segment_cap,
        workload->segment_count + 1, sizeof *workload->segments);
    workload->segments[workload->segment_count++] = (struct segment){seed, first, length};
    workload->requests[workload->request_count - 1].segment_count++;
}

/* Writes at most `room` tokens of a segment; returns how many. */
static uint32_t segment_fill(const struct segment *segment, uint32_t vocab, int32_t *out,
    uint32_t room)
{
    uint32_t length = segment->length < room ? segment->length : room;
    for (uint32_t j = 0; j < length; j++)
        out[j] = (int32_t)(sc_mix64(segment->seed + 0x9e3779b97f4a7c15u * (j + 1)) % vocab);
    if (length > 0 && segment->first >= 0)
        out[0] = segment->first;
    return length;
}

void workload_materialize(struct workload *workload, size_t index)
{
    struct bench_request *request = &workload->requests[index];
    if (request->tokens)
        return;
    uint32_t total = request->prompt_len + request->output_len;
    uint32_t wanted = request->output_given ? total : request->prompt_len;
    int32_t *tokens = bench_alloc(total, sizeof *tokens);
    uint32_t at = 0;
    if (request->pred >= 0) {
        const struct bench_request *pred = &workload->requests[request->pred];
        at = pred->prompt_len;
        if (request->from == PROMPT_AFTER_OUTPUT)
            at += pred->output_len;
        if (!pred->tokens || pred->known < at || at > wanted)
            bench_fail(BENCH_CHECK_FAILED, "request %zu is served before its predecessor", index);
        memcpy(tokens, pred->tokens, at * sizeof *tokens);
    }
    for (uint32_t i = 0; i < request->segment_count && at < wanted; i++)
        at += segment_fill(&workload->segments[request->segment_first + i], workload->vocab,
            tokens + at, wanted - at);
    if (at != wanted)
        bench_fail(BENCH_CHECK_FAILED, "request %zu has %u tokens, %u are wanted", index, at,
            wanted);
    request->tokens = tokens;
    request->known = wanted;
}

void workload_drop_tokens(struct workload *workload, size_t index)
{
    free(workload->requests[index].tokens);
    workload->requests[index].tokens = NULL;
    workload->requests[index].known = 0;
}

uint64_t workload_prompt_tokens(const struct workload *workload)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < workload->request_count; i++)
        sum += workload->requests[i].prompt_len;
    return sum;
}

uint32_t workload_longest(const struct workload *workload)
{
    uint32_t longest = 0;
    for (size_t i = 0; i < workload->request_count; i++) {
        const struct bench_request *request = &workload->requests[i];
        if (request->prompt_len + request->output_len > longest)
            longest = request->prompt_len + request->output_len;
    }
    return longest;
}
