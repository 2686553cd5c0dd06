/* SPDX-License-Identifier: Apache-2.0 */
/* Spill and restore in turns with raw transfers, the cost of the check, and restores of random
 * states beside spills. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/prng.h"
#include "spill.h"
#include "tier_io.h"

struct pairs {
    const struct spill_options *options;
    struct sc_store *store;
    struct spill_raw *raw;
    uint8_t **states;              /* what is stored */
    uint8_t **restored;            /* a buffer for each thread */
    uint64_t first;                /* number of the first state that is in the store */
};

/* ---- passes of threads ---- */

struct worker {
    const struct pairs *pairs;
    uint32_t index;
    bool write, compare;
};

static void *pass_thread(void *arg)
{
    const struct worker *worker = arg;
    const struct pairs *pairs = worker->pairs;
    const struct spill_options *o = pairs->options;
    for (uint32_t i = worker->index; i < o->states; i += o->threads) {
        uint8_t *restored = pairs->restored[worker->index];
        if (worker->write) {
            spill_put(pairs->store, pairs->first + i, pairs->states[i], o->state_bytes, 1);
            continue;
        }
        if (!spill_get(pairs->store, pairs->first + i, restored, o->state_bytes))
            bench_fail(BENCH_CHECK_FAILED, "a state that was stored is not there");
        if (worker->compare && memcmp(restored, pairs->states[i], o->state_bytes) != 0)
            bench_fail(BENCH_CHECK_FAILED, "a state came back with other bits");
    }
    return NULL;
}

static double store_pass(struct pairs *pairs, bool write, bool compare)
{
    pthread_t threads[SPILL_THREADS_MAX];
    struct worker workers[SPILL_THREADS_MAX];
    uint32_t count = pairs->options->threads;
    if (write) { /* the states of the pass before give their blocks: no growth is measured */
        bench_must(sc_store_evict(pairs->store, UINT64_MAX / 2, NULL), "evicting");
        pairs->first += pairs->options->states;
    }
    double start = spill_now();
    for (uint32_t i = 0; i < count; i++) {
        workers[i] = (struct worker){pairs, i, write, compare};
        if (pthread_create(&threads[i], NULL, pass_thread, &workers[i]) != 0)
            bench_fail(BENCH_NO_MEMORY, "no thread");
    }
    for (uint32_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return spill_now() - start;
}

static double raw_pass(struct pairs *pairs, bool write)
{
    const struct spill_options *o = pairs->options;
    uint8_t *const *buffers = pairs->states;
    uint8_t **into = NULL;
    if (!write) { /* restored over each other, as the store's threads do */
        into = bench_alloc(o->states, sizeof *into);
        for (uint32_t i = 0; i < o->states; i++)
            into[i] = pairs->restored[i % o->threads];
        buffers = into;
    }
    double seconds = spill_raw_pass(pairs->raw, write, buffers, o->states, o->state_bytes);
    free(into);
    return seconds;
}

/* ---- pairs ---- */

struct direction { struct radix_samples store, raw, ratio; };

static void one_pair(struct pairs *pairs, bool write, uint32_t turn, struct direction *out)
{
    const struct spill_options *o = pairs->options;
    double mib = (double)o->state_bytes * o->states / (1 << 20), store = 0, raw = 0;
    for (uint32_t i = 0; i < 2; i++) {
        if ((turn + i) % 2 == 0)
            raw = raw_pass(pairs, write);
        else
            store = store_pass(pairs, write, false);
    }
    radix_sample(&out->store, mib / store);
    radix_sample(&out->raw, mib / raw);
    radix_sample(&out->ratio, raw / store);
}

static void report(struct radix_rows *rows, bool write, struct direction *found)
{
    const struct bench_bar none = {BENCH_BAR_NONE, 0}, least = {BENCH_BAR_LEAST, 0.8};
    radix_row_samples(rows, "disk", write ? "spill" : "restore", "MiB/s", &found->store, none);
    radix_row_samples(rows, "disk", write ? "raw sequential write, fdatasync at the end" :
        "raw sequential read", "MiB/s", &found->raw, none);
    radix_row_samples(rows, "disk", write ? "spill / raw" : "restore / raw", "ratio",
        &found->ratio, least);
    radix_samples_free(&found->store);
    radix_samples_free(&found->raw);
    radix_samples_free(&found->ratio);
}

static void run_pairs(struct pairs *pairs, struct radix_rows *rows)
{
    struct direction writes, reads;
    memset(&writes, 0, sizeof writes);
    memset(&reads, 0, sizeof reads);
    /* Once uncounted: all blocks were written then, and every bit is compared. */
    raw_pass(pairs, true);
    store_pass(pairs, true, false);
    store_pass(pairs, false, true);
    for (uint32_t turn = 0; turn < pairs->options->pairs; turn++) {
        one_pair(pairs, true, turn, &writes);
        one_pair(pairs, false, turn, &reads);
    }
    report(rows, true, &writes);
    report(rows, false, &reads);
}

/* ---- the check ---- */

static void run_check(const struct pairs *pairs, struct radix_rows *rows)
{
    const struct bench_bar none = {BENCH_BAR_NONE, 0};
    const struct spill_options *o = pairs->options;
    struct radix_samples cost = {NULL, 0, 0}, rate = {NULL, 0, 0};
    struct tier_check check;
    for (uint32_t i = 0; i < 9; i++) {
        uint64_t start = sc_clock_thread_ns();
        tier_check_begin(&check);
        for (uint64_t at = 0; at < o->state_bytes; at += SPILL_CHUNK_BYTES) {
            uint64_t left = o->state_bytes - at;
            tier_check_add(&check, pairs->states[i % o->states] + at,
                left < SPILL_CHUNK_BYTES ? left : SPILL_CHUNK_BYTES);
        }
        volatile uint64_t sink = tier_check_end(&check).low;
        (void)sink;
        double seconds = (double)(sc_clock_thread_ns() - start) / 1e9;
        radix_sample(&cost, seconds * 1e3);
        radix_sample(&rate, (double)o->state_bytes / seconds / 1e9);
    }
    radix_row_samples(rows, "check", "XXH3-128 of a state, processor time", "ms", &cost, none);
    radix_row_samples(rows, "check", "XXH3-128", "GB/s", &rate, none);
    radix_samples_free(&cost);
    radix_samples_free(&rate);
}

/* ---- random restores beside spills ---- */

struct mix {
    struct pairs *pairs;
    _Atomic bool over;
    uint64_t spilled;
};

static void *spill_thread(void *arg)
{
    struct mix *mix = arg;
    const struct spill_options *o = mix->pairs->options;
    uint64_t number = UINT64_C(1) << 40;
    while (!mix->over) { /* worth less than those that are restored: they evict each other */
        spill_put(mix->pairs->store, number++, mix->pairs->states[mix->spilled % o->states],
            o->state_bytes, 0);
        mix->spilled++;
    }
    return NULL;
}

static void restore_random(struct pairs *pairs, struct radix_samples *latency, double *rate_out)
{
    const struct spill_options *o = pairs->options;
    struct sc_prng prng;
    uint64_t count = 0;
    sc_prng_seed(&prng, o->seed);
    double start = spill_now(), end = start + o->seconds, now = start;
    for (; now < end || count < 3; count++) {
        uint64_t number = pairs->first + sc_prng_below(&prng, o->states);
        if (!spill_get(pairs->store, number, pairs->restored[0], o->state_bytes))
            bench_fail(BENCH_CHECK_FAILED, "a state that was stored is not there");
        double after = spill_now();
        radix_sample(latency, (after - now) * 1e3);
        now = after;
    }
    *rate_out = (double)count * (double)o->state_bytes / (1 << 20) / (now - start);
}

static void run_mix(struct pairs *pairs, struct radix_rows *rows)
{
    const struct bench_bar none = {BENCH_BAR_NONE, 0};
    for (uint32_t beside = 0; beside < 2; beside++) {
        struct radix_samples latency = {NULL, 0, 0};
        struct mix mix = {.pairs = pairs};
        const char *load = beside ? "beside" : "alone";
        pthread_t spiller;
        double rate = 0, start = spill_now();
        if (beside && pthread_create(&spiller, NULL, spill_thread, &mix) != 0)
            bench_fail(BENCH_NO_MEMORY, "no thread");
        restore_random(pairs, &latency, &rate);
        mix.over = true;
        if (beside)
            pthread_join(spiller, NULL);
        double seconds = spill_now() - start;
        radix_row_samples(rows, load, "a random state restored", "ms", &latency, none);
        radix_row_value(rows, load, "random restores", "MiB/s", rate, none);
        if (beside)
            radix_row_value(rows, load, "spills meanwhile", "MiB/s", (double)mix.spilled *
                (double)pairs->options->state_bytes / (1 << 20) / seconds, none);
        radix_samples_free(&latency);
    }
}

/* ---- all of it ---- */

static void say_how(const struct pairs *pairs, struct radix_rows *rows)
{
    const struct bench_bar none = {BENCH_BAR_NONE, 0};
    struct sc_store_stats stats;
    bench_must(sc_store_stats_get(pairs->store, &stats), "figures of the store");
    radix_row_value(rows, "how", "the store uses O_DIRECT", "", stats.direct, none);
    radix_row_value(rows, "how", "the store uses io_uring", "", stats.uring, none);
    radix_row_value(rows, "how", "raw transfers use O_DIRECT", "", spill_raw_direct(pairs->raw),
        none);
    radix_row_value(rows, "how", "raw transfers use io_uring", "", spill_raw_uring(pairs->raw),
        none);
}

void spill_pairs_run(const struct spill_options *options, struct radix_rows *rows)
{
    char folder[5000], path[5100];
    struct pairs pairs = {.options = options, .first = 1};
    snprintf(folder, sizeof folder, "%s/store", options->folder);
    snprintf(path, sizeof path, "%s/raw", options->folder);
    pairs.states = bench_alloc(options->states, sizeof *pairs.states);
    pairs.restored = bench_alloc(options->threads, sizeof *pairs.restored);
    for (uint32_t i = 0; i < options->states; i++)
        pairs.states[i] = spill_buffer(options->state_bytes, options->seed + i);
    for (uint32_t i = 0; i < options->threads; i++)
        pairs.restored[i] = spill_buffer(options->state_bytes, 0);
    uint64_t all = options->state_bytes * options->states;
    struct sc_store_options store = {.folder = folder,
        .bytes_max = all + 4 * options->state_bytes};
    pairs.store = spill_open(&store);
    pairs.raw = spill_raw_open(path, all, options->threads * SPILL_DEPTH);
    say_how(&pairs, rows);
    run_pairs(&pairs, rows);
    run_check(&pairs, rows);
    if (options->seconds > 0)
        run_mix(&pairs, rows);
    spill_raw_close(pairs.raw);
    sc_store_close(pairs.store);
    spill_remove_folder(folder);
    remove(path);
    for (uint32_t i = 0; i < options->states; i++)
        free(pairs.states[i]);
    for (uint32_t i = 0; i < options->threads; i++)
        free(pairs.restored[i]);
    free(pairs.states);
    free(pairs.restored);
}
