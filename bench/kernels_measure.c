/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of one case: the operation and its limit in turns, round by round. */
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "kernels_run.h"

/* ---- time: processor time of the slowest thread ---- */

typedef void run_fn(struct kbench_work *work, uint32_t thread);

struct job {
    struct kbench_work *work;
    run_fn *run;
    uint32_t thread;
    uint64_t ns;
};

static void *job_main(void *arg)
{
    struct job *job = arg;
    uint64_t start = sc_clock_thread_ns();
    job->run(job->work, job->thread);
    job->ns = sc_clock_thread_ns() - start;
    return NULL;
}

static double timed(struct kbench_work *work, run_fn *run, uint32_t threads)
{
    struct job jobs[KBENCH_THREADS_MAX];
    pthread_t ids[KBENCH_THREADS_MAX];
    uint64_t ns = 0;
    for (uint32_t t = 0; t < threads; t++) jobs[t] = (struct job){work, run, t, 0};
    for (uint32_t t = 1; t < threads; t++)
        if (pthread_create(&ids[t], NULL, job_main, &jobs[t]) != 0)
            bench_fail(BENCH_NO_MEMORY, "no thread");
    job_main(&jobs[0]);
    for (uint32_t t = 1; t < threads; t++) pthread_join(ids[t], NULL);
    for (uint32_t t = 0; t < threads; t++) ns = jobs[t].ns > ns ? jobs[t].ns : ns;
    return ns > 0 ? (double)ns : 1.0;
}

/* OpenBLAS has threads of its own: with more than one, elapsed time. */
static double timed_sgemm(uint32_t threads)
{
    uint64_t start = threads > 1 ? sc_clock_now_ns() : sc_clock_thread_ns();
    kbench_blas_sgemm();
    return (double)((threads > 1 ? sc_clock_now_ns() : sc_clock_thread_ns()) - start);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static const char *row_name(const struct kbench_case *c)
{
    const char *row = NULL;
    bench_must(sc_k_choice(NULL, kbench_library_op(c), c->dtype, c->state, &row), "sc_k_choice");
    return row;
}

/* ---- rings ---- */

struct ring_rounds {
    double decode[KBENCH_ROUNDS_MAX], append[KBENCH_ROUNDS_MAX], flush[KBENCH_ROUNDS_MAX],
        read[KBENCH_ROUNDS_MAX], read_ratio[KBENCH_ROUNDS_MAX], ratio[KBENCH_ROUNDS_MAX];
};

/* Time of a cycle; `scale_ns` is what x *= c over the same memory took just before. */
static double ring_round(struct kbench_work *w, uint32_t threads, uint32_t r, double scale_ns,
    struct ring_rounds *rounds)
{
    rounds->read[r] = timed(w, kbench_ring_read, threads);
    rounds->read_ratio[r] = rounds->read[r] / scale_ns;
    rounds->append[r] = timed(w, kbench_ring_append, threads);
    rounds->flush[r] = timed(w, kbench_ring_flush, threads);
    rounds->decode[r] = timed(w, kbench_ring_decode, threads);
    double cycle = rounds->append[r] + rounds->flush[r];
    rounds->ratio[r] = rounds->decode[r] / cycle;
    return cycle;
}

/* `steps`: calls of a thread in a step of the cycle. */
static struct kbench_ring ring_figures(const struct kbench_work *w, struct ring_rounds *rounds,
    uint32_t count, double steps)
{
    double calls = (double)kbench_calls(w);
    return (struct kbench_ring){
        .decode_us = median(rounds->decode, count) / 1e3 / steps / KBENCH_CYCLE,
        .append_us = median(rounds->append, count) / 1e3 / steps / (KBENCH_CYCLE - 1),
        .flush_us = median(rounds->flush, count) / 1e3 / steps,
        .ratio = median(rounds->ratio, count),
        .read_us = median(rounds->read, count) / 1e3 / steps / KBENCH_CYCLE,
        .read_ratio = median(rounds->read_ratio, count),
        .decode_bytes = (double)kbench_decode_bytes(w) / calls,
        .ring_bytes = (double)kbench_bytes(w) / calls,
        .model_ratio = (double)kbench_decode_bytes(w) / (double)kbench_bytes(w)};
}

/* The same heads' arithmetic, without their memory: one row of an eighth of the heads, which stays
 * in a core's cache, again and again. */
static void ring_cached(const struct kbench_case *c, const struct kbench_options *o,
    struct kbench_ring *ring)
{
    enum { PART = 8, PASSES = 20 };
    struct kbench_model part = *c->model;
    part.heads /= PART, part.v_heads /= PART;
    struct kbench_case small = *c;
    small.model = &part, small.batch = 1, small.passes = PASSES;
    struct kbench_work *w = kbench_open(&small, 0, o->threads);
    struct ring_rounds rounds;
    for (uint32_t r = 0; r < o->rounds; r++) (void)ring_round(w, o->threads, r, 1.0, &rounds);
    struct kbench_ring cached = ring_figures(w, &rounds, o->rounds, PASSES);
    double scale = (double)PART * c->batch;
    ring->cached_decode_us = scale * cached.decode_us;
    ring->cached_append_us = scale * cached.append_us;
    ring->cached_flush_us = scale * cached.flush_us;
    kbench_close(w);
}

/* ---- a case ---- */

struct kbench_result kbench_measure(const struct kbench_case *c, const struct kbench_options *o,
    bool blas)
{
    struct kbench_work *w = kbench_open(c, (uint64_t)o->pool_mib << 20, o->threads);
    bool sgemm = kbench_limit_of(c->op) == KBENCH_SGEMM, limited = !sgemm || blas;
    bool ring = c->op == KBENCH_REPLAY;
    double work = sgemm ? (double)kbench_flops(w) : (double)kbench_scale_bytes(w);
    double limit_work = sgemm ? 2.0 * KBENCH_SGEMM_N * KBENCH_SGEMM_N * KBENCH_SGEMM_N : work;
    double time[KBENCH_ROUNDS_MAX], limit[KBENCH_ROUNDS_MAX], ratio[KBENCH_ROUNDS_MAX];
    struct ring_rounds rounds;
    (void)timed(w, kbench_run, o->threads); /* pages and caches as in later rounds */
    for (uint32_t r = 0; r < o->rounds; r++) {
        double limit_ns = !limited ? 1 : sgemm ? timed_sgemm(o->threads)
                                               : timed(w, kbench_scale, o->threads);
        time[r] = ring ? ring_round(w, o->threads, r, limit_ns, &rounds)
                       : timed(w, kbench_run, o->threads);
        limit[r] = limit_work / limit_ns;
        ratio[r] = work / time[r] / limit[r];
    }
    double ns = median(time, o->rounds), calls = (double)kbench_calls(w) / o->threads;
    struct kbench_result result = {.row = row_name(c),
        .call_us = ns / 1e3 / calls, .least_us = time[0] / 1e3 / calls, /* sorted by now */
        .gb_s = (double)kbench_bytes(w) / ns, .gflop_s = (double)kbench_flops(w) / ns,
        .bytes = (double)kbench_bytes(w) / (double)kbench_calls(w),
        .limit = limited ? median(limit, o->rounds) : 0,
        .ratio = limited ? median(ratio, o->rounds) : 0};
    if (ring)
        result.ring = ring_figures(w, &rounds, o->rounds, calls / KBENCH_CYCLE);
    kbench_close(w);
    if (ring)
        ring_cached(c, o, &result.ring);
    return result;
}
