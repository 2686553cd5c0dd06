/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to replay: who comes when, with which tokens. Made by the generator (generator.c) or
 * read from a trace (trace.c); served by scheduler.c.
 *
 *   prompt = [ the prompt, or prompt and output, of `pred` ] [ segments ... ]
 *
 * A segment is a run of tokens that follows from a seed, so that equal seeds give equal tokens: a
 * system prompt, a user's message, a block of a trace. Outputs are what the model decodes, unless
 * the workload knows them (`output_given`: then the segments go on past the prompt). Later requests
 * of a chat contain those outputs, so a prompt's tokens are known only when its predecessor is
 * done: workload_materialize. */
#ifndef BENCH_WORKLOAD_H
#define BENCH_WORKLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "statecache/mark.h"

enum prompt_from { PROMPT_FRESH = 0, PROMPT_AFTER_PROMPT = 1, PROMPT_AFTER_OUTPUT = 2 };

struct segment {
    uint64_t seed;
    int32_t first; /* first token; -1: like the others from the seed */
    uint32_t length;
};

struct bench_request {
    int32_t pred;          /* request whose tokens this prompt begins with; -1: none */
    enum prompt_from from;
    int32_t after;         /* request that must have finished before; -1: none */
    uint64_t arrive_ns;    /* not before this time, */
    uint64_t think_ns;     /* nor before this long after `after` finished */
    uint32_t prompt_len, output_len;
    uint32_t end_point;    /* 0, or a position inside the prompt that is the end to save */
    bool output_given;
    size_t segment_first;
    uint32_t segment_count;
    /* Another sample of request `fork_of` (= pred; -1: not a fork): its prompt is that one's and
     * the first `pred_output` tokens of its output. It comes when that one has got there. */
    int32_t fork_of;
    uint32_t pred_output;
    uint32_t tenant;       /* 0: none. From token mark_at on the prompt is the tenant's own, */
    uint32_t mark_at;      /* before that it is common to all */

    int32_t *tokens;       /* [prompt_len + output_len] once materialized */
    uint32_t known;        /* tokens known so far: prompt, given or decoded output */
    int32_t *guess;        /* NULL, or what was decoded elsewhere: [prompt_len + output_len] */
};

struct workload {
    struct bench_request *requests;
    size_t request_count, request_cap;
    struct segment *segments;
    size_t segment_count, segment_cap;
    uint32_t vocab;
    uint32_t block;        /* tokens of a block as replayed; 0: not from blocks */
    uint32_t block_traced; /* and in the trace */
    bool has_given_output; /* some outputs are part of the workload (a trace with "io") */
    char name[96];
};

void workload_init(struct workload *workload, uint32_t vocab);
void workload_free(struct workload *workload);
/* A new request with no tokens; indices are stable, pointers are not. */
struct bench_request *workload_add(struct workload *workload);
/* Appends a segment to the newest request. */
void workload_segment(struct workload *workload, uint64_t seed, int32_t first, uint32_t length);
/* Fills in the prompt (and given output). `pred`, if any, must be complete. */
void workload_materialize(struct workload *workload, size_t index);
void workload_drop_tokens(struct workload *workload, size_t index);
/* Keeps the tokens of all requests as guesses of what will be decoded, and forgets the tokens. */
void workload_keep_guesses(struct workload *workload);
/* The mark of a request with a tenant; returns how many (1 or 0). */
uint32_t workload_mark(const struct bench_request *request, sc_mark *mark_out);
/* Gives a share of the requests `count` forks each, at seeded places of their outputs. */
void workload_add_forks(struct workload *workload, double share, uint32_t count, uint64_t seed);
/* Deals the families of a trace, which share their first block and no more, out to tenants; the
 * first block is common to all. */
void workload_set_tenants(struct workload *workload, uint32_t tenants);
/* Of all requests that are no forks. */
uint64_t workload_prompt_tokens(const struct workload *workload);
uint32_t workload_longest(const struct workload *workload);

/* Chats over shared system prompts, and agents that fan out from one prompt. `chats` and fan-outs
 * alternate until `requests` are made. The same seed gives the same workload. */
struct generator_options {
    uint64_t seed;
    uint32_t requests;
    uint32_t system_prompts;   /* shared by all sessions */
    uint32_t system_len;       /* mean tokens; each is between half of it and one and a half */
    uint32_t message_len;      /* mean tokens of a user's message */
    uint32_t output_len;       /* mean tokens of an answer */
    uint64_t session_gap_ns;   /* mean time between starts of sessions */
    uint64_t think_ns;         /* mean time between an answer and the next message */
    /* 0, or so many tenants: each session comes once from each of them, word for word the same,
     * and a tenant's mark is behind the system prompt */
    uint32_t tenants;
};
#define GENERATOR_OPTIONS_INIT {1, 240, 4, 640, 48, 20, 120000000, 800000000, 0}
void generator_fill(struct workload *workload, const struct generator_options *options);

#endif
