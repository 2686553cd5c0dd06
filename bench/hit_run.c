/* SPDX-License-Identifier: Apache-2.0 */
/* Cells in parallel: each is one thread's from beginning to end and shares only constants. */
#include "hit_run.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What the schemas do not say: full-attention layers, KV heads, head dim, query heads, and active
 * parameters. */
static const struct attention {
    const char *preset;
    uint32_t layers, kv_heads, head_dim, heads;
    double active;
} attentions[] = {
    {"qwen3-next-80b-a3b", 12, 2, 256, 16, 3.0e9},
};

void hit_model_make(struct hit_model *model, const char *preset, const char *state, const char *kv)
{
    sc_schema *schema;
    if (sc_schema_preset(preset, SC_DTYPE_F32, &schema) != SC_OK)
        bench_fail(BENCH_USAGE, "--model: there is no preset '%s'", preset);
    *model = (struct hit_model){0};
    double element = !strcmp(state, "fp32") ? 4 : !strcmp(state, "bf16") ? 2
        : !strcmp(state, "int8") ? 1 : 0;
    double kv_element = !strcmp(kv, "bf16") ? 2 : !strcmp(kv, "fp8") ? 1 : 0;
    if (element <= 0)
        bench_fail(BENCH_USAGE, "--state: '%s' is none of fp32, bf16, int8", state);
    if (kv_element <= 0 && strcmp(kv, "none"))
        bench_fail(BENCH_USAGE, "--kv: '%s' is none of bf16, fp8, none", kv);
    uint32_t parts = 0;
    bench_must(sc_schema_part_count(schema, &parts), "sc_schema_part_count");
    for (uint32_t i = 0; i < parts; i++) {
        sc_part part;
        bench_must(sc_schema_part(schema, i, &part), "sc_schema_part");
        double elements = 1;
        for (uint32_t d = 0; d < part.dim_count; d++)
            elements *= part.dims[d];
        model->state_bytes += elements *
            (part.kind == SC_PART_RECURRENT ? element : sc_dtype_bytes(part.dtype));
    }
    sc_schema_release(schema);
    snprintf(model->name, sizeof model->name, "%s, states %s, KV %s", preset, state, kv);
    for (size_t i = 0; i < sizeof attentions / sizeof *attentions; i++) {
        const struct attention *a = &attentions[i];
        if (strcmp(a->preset, preset))
            continue;
        model->kv_token_bytes = a->layers * 2.0 * a->kv_heads * a->head_dim * kv_element;
        model->flops_per_token = 2 * a->active;
        model->flops_per_token2 = a->layers * 2.0 * a->heads * a->head_dim;
    }
}

struct running {
    struct hit_job *jobs;
    size_t count;
    atomic_size_t next, done; /* relaxed: a number each, the joins order the results */
};

static void *work(void *arg)
{
    struct running *running = arg;
    for (;;) {
        size_t i = atomic_fetch_add_explicit(&running->next, 1, memory_order_relaxed);
        if (i >= running->count)
            return NULL;
        struct hit_job *job = &running->jobs[i];
        if (job->spec.bound == HIT_BELADY) {
            hit_belady_run(job);
        } else if (job->spec.bound != HIT_POLICY) {
            hit_upper_bound_run(job);
        } else {
            hit_cell_run(job);
        }
        atomic_fetch_add_explicit(&running->done, 1, memory_order_relaxed);
    }
}

void hit_jobs_run(struct hit_job *jobs, size_t count, unsigned threads, const char *label)
{
    struct running running = {.jobs = jobs, .count = count};
    struct bench_progress progress;
    if (threads > count)
        threads = (unsigned)count;
    pthread_t *ids = bench_alloc(threads, sizeof *ids);
    bench_progress_start(&progress, label);
    for (unsigned i = 0; i < threads; i++) {
        if (pthread_create(&ids[i], NULL, work, &running) != 0)
            bench_fail(BENCH_NO_MEMORY, "a thread cannot be started");
    }
    while (progress.on) {
        size_t done = atomic_load_explicit(&running.done, memory_order_relaxed);
        bench_progress_show(&progress, done, count);
        if (done == count)
            break;
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    for (unsigned i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    bench_progress_end(&progress);
    free(ids);
}
