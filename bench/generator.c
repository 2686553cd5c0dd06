/* SPDX-License-Identifier: Apache-2.0 */
/* The built-in workload: what a service of hybrid models sees, made small.
 *
 *   chat    system prompt | message 1 -> answer 1 | message 2 -> answer 2 | ...
 *           a first turn leaves the shared system prompt at a branch point; each later turn goes on
 *           from the decoded end of the one before
 *   agent   system prompt | task -> plan                      (the root)
 *                                '-> work 1 -> result 1 | more work ...   (k children of one
 *                                prompt: '-> work 2 -> result 2                    they leave at
 *                                its end)
 *
 * A follow-up arrives after its predecessor has finished, plus some time to think. With tenants
 * each session comes from every one of them, word for word: beyond the system prompt nothing of it
 * may be shared, however equal it is. */
#include <math.h>
#include <stdio.h>

#include "base/prng.h"
#include "workload.h"

struct generator {
    struct workload *workload;
    const struct generator_options *options;
    struct sc_prng prng;
    uint64_t start_ns; /* of the session being made */
    uint64_t serial;   /* seeds of texts */
    uint32_t tenant;
};

static uint64_t exponential(struct generator *g, uint64_t mean)
{
    return (uint64_t)(-log(1.0 - sc_prng_unit(&g->prng)) * (double)mean);
}

/* Between half of `mean` and one and a half. */
static uint32_t around(struct generator *g, uint32_t mean)
{
    return mean / 2 + (uint32_t)sc_prng_below(&g->prng, mean + 1) + (mean < 2);
}

static uint64_t text_seed(struct generator *g)
{
    return sc_mix64(sc_mix64(g->options->seed) + 1000 + g->serial++);
}

static bool is_full(const struct generator *g)
{
    return g->workload->request_count >= g->options->requests;
}

static uint32_t system_len(const struct generator *g, uint32_t which)
{
    uint64_t mixed = sc_mix64(sc_mix64(g->options->seed + 17) + which);
    return g->options->system_len / 2 + (uint32_t)(mixed % (g->options->system_len + 1)) +
        (g->options->system_len < 2);
}

/* A request that begins a session: a system prompt and a message. */
static int32_t add_first(struct generator *g)
{
    uint32_t which = (uint32_t)sc_prng_below(&g->prng, g->options->system_prompts);
    uint32_t shared = system_len(g, which), own = around(g, g->options->message_len);
    struct bench_request *request = workload_add(g->workload);
    request->arrive_ns = g->start_ns;
    request->prompt_len = shared + own;
    request->output_len = around(g, g->options->output_len);
    request->tenant = g->tenant;
    request->mark_at = g->tenant ? shared : 0;
    workload_segment(g->workload, sc_mix64(g->options->seed + 31) + which * 7919u, -1, shared);
    workload_segment(g->workload, text_seed(g), -1, own);
    return (int32_t)g->workload->request_count - 1;
}

static int32_t add_follow_up(struct generator *g, int32_t pred, enum prompt_from from,
    uint64_t think_ns)
{
    struct bench_request *request = workload_add(g->workload);
    const struct bench_request *before = &g->workload->requests[pred];
    uint32_t own = around(g, g->options->message_len);
    request->pred = request->after = pred;
    request->from = from;
    request->think_ns = think_ns;
    request->tenant = before->tenant;
    request->mark_at = before->mark_at;
    request->prompt_len = before->prompt_len + own +
        (from == PROMPT_AFTER_OUTPUT ? before->output_len : 0);
    request->output_len = around(g, g->options->output_len);
    workload_segment(g->workload, text_seed(g), -1, own);
    return (int32_t)g->workload->request_count - 1;
}

static void add_chat(struct generator *g)
{
    int32_t last = add_first(g);
    uint32_t turns = 1 + (uint32_t)sc_prng_below(&g->prng, 3);
    for (uint32_t turn = 0; turn < turns && !is_full(g); turn++)
        last = add_follow_up(g, last, PROMPT_AFTER_OUTPUT, exponential(g, g->options->think_ns));
}

static void add_agent(struct generator *g)
{
    int32_t root = add_first(g);
    uint32_t children = 2 + (uint32_t)sc_prng_below(&g->prng, 3);
    for (uint32_t child = 0; child < children && !is_full(g); child++) {
        uint64_t stagger = exponential(g, g->options->think_ns / 4);
        int32_t last = add_follow_up(g, root, PROMPT_AFTER_PROMPT, stagger);
        if (sc_prng_below(&g->prng, 3) == 0 && !is_full(g))
            add_follow_up(g, last, PROMPT_AFTER_OUTPUT, exponential(g, g->options->think_ns / 4));
    }
}

/* The session from each tenant in turn: the same texts, later. */
static void add_session(struct generator *g, uint32_t session)
{
    struct generator begin = *g;
    for (uint32_t tenant = g->options->tenants > 0; !is_full(g); tenant++) {
        uint64_t start_ns = g->start_ns;
        *g = begin;
        g->start_ns = start_ns;
        g->tenant = tenant;
        if (session % 2)
            add_agent(g);
        else
            add_chat(g);
        if (tenant == g->options->tenants)
            break;
        g->start_ns += g->options->session_gap_ns / 2;
    }
}

void generator_fill(struct workload *workload, const struct generator_options *options)
{
    struct generator g = {.workload = workload, .options = options};
    sc_prng_seed(&g.prng, options->seed);
    for (uint32_t session = 0; !is_full(&g); session++) {
        g.start_ns += exponential(&g, options->session_gap_ns);
        add_session(&g, session);
    }
    snprintf(workload->name, sizeof workload->name, "generator, seed %llu",
        (unsigned long long)options->seed);
}
