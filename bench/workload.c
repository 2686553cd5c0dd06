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
    for (size_t i = 0; i < workload->request_count; i++) {
        free(workload->requests[i].tokens);
        free(workload->requests[i].guess);
    }
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
    request->pred = request->after = request->fork_of = -1;
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
        at = pred->prompt_len + request->pred_output;
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

void workload_keep_guesses(struct workload *workload)
{
    for (size_t i = 0; i < workload->request_count; i++) {
        struct bench_request *request = &workload->requests[i];
        request->guess = request->tokens;
        request->tokens = NULL;
        request->known = 0;
    }
}

uint32_t workload_mark(const struct bench_request *request, sc_mark *mark_out)
{
    if (request->tenant == 0)
        return 0;
    *mark_out = (sc_mark){.at = request->mark_at, .id = {'t'}};
    memcpy(mark_out->id + 8, &request->tenant, sizeof request->tenant);
    return 1;
}

void workload_add_forks(struct workload *workload, double share, uint32_t count, uint64_t seed)
{
    struct sc_prng prng;
    size_t parents = workload->request_count;
    sc_prng_seed(&prng, sc_mix64(seed + 0xf04c));
    for (size_t i = 0; i < parents; i++) {
        uint32_t output = workload->requests[i].output_len;
        bool forks = sc_prng_unit(&prng) < share;
        uint32_t offset = (uint32_t)sc_prng_below(&prng, output / 2 + 1);
        for (uint32_t k = 0; forks && output > 0 && k < count; k++) {
            struct bench_request *fork = workload_add(workload);
            const struct bench_request *parent = &workload->requests[i];
            fork->pred = fork->fork_of = (int32_t)i;
            fork->from = PROMPT_AFTER_PROMPT;
            fork->pred_output = offset;
            fork->prompt_len = parent->prompt_len + offset;
            fork->output_len = output - offset;
            fork->tenant = parent->tenant;
            fork->mark_at = parent->mark_at;
        }
    }
}

void workload_set_tenants(struct workload *workload, uint32_t tenants)
{
    for (size_t i = 0; i < workload->request_count; i++) {
        struct bench_request *request = &workload->requests[i];
        const struct segment *first = &workload->segments[request->segment_first];
        if (request->pred >= 0) {
            request->tenant = workload->requests[request->pred].tenant;
            request->mark_at = workload->requests[request->pred].mark_at;
            continue;
        }
        uint32_t which = request->segment_count > 1; /* the block behind the common one */
        bool common = request->segment_count > 1 && first->length < request->prompt_len;
        uint64_t seed = request->segment_count > 0 ? first[which].seed : i;
        request->tenant = 1 + (uint32_t)(sc_mix64(seed) % tenants);
        request->mark_at = common ? first->length : 0;
    }
}

uint64_t workload_prompt_tokens(const struct workload *workload)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < workload->request_count; i++)
        sum += workload->requests[i].fork_of < 0 ? workload->requests[i].prompt_len : 0;
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
