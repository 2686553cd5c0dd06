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
#include "tiers_internal.h"

/* A pass has many states, so that it takes long for a device of changing moods; few of them differ,
 * so that memory has room for them. */
enum { DIFFERENT_MAX = 8 };

struct pairs {
    const struct spill_options *options;
    struct sc_store *store;
    struct spill_raw *raw;
    uint8_t *states[DIFFERENT_MAX]; /* what is stored: state i is the (i % different)-th */
    uint32_t different;
    uint8_t **restored;            /* a buffer for each thread */
    uint64_t bytes_max, pass_bytes;
    uint64_t first;                /* number of the first state that is in the store */
};

static const uint8_t *state_of(const struct pairs *pairs, uint64_t index)
{
    return pairs->states[index % pairs->different];
}

/* ---- passes of threads ---- */

/* As in the tiers (tiers_internal.h): who writes does not wait for commits, which one more thread
 * does, of COMMIT_BYTES together while more is being written. */
struct committer {
    struct sc_store *store;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sc_store_put *puts[SPILL_COMMIT_MAX];
    uint32_t count, together; /* states that wait, and are committed together */
    bool over;
};

struct worker {
    const struct pairs *pairs;
    struct committer *committer;
    uint32_t index;
    bool write, compare;
    double waited;
};

/* Seconds that this thread could run and had no processor; 0 where the kernel does not say. */
static double waited_for_processor(void)
{
    unsigned long long ran = 0, waited = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "re");
    if (!file)
        return 0;
    int fields = fscanf(file, "%llu %llu", &ran, &waited);
    fclose(file);
    return fields == 2 ? (double)waited / 1e9 : 0;
}

static uint32_t states_together(const struct spill_options *o)
{
    uint64_t states = (COMMIT_BYTES + o->state_bytes - 1) / o->state_bytes;
    return states < SPILL_COMMIT_MAX / 2 ? (uint32_t)states : SPILL_COMMIT_MAX / 2;
}

static void hand_over(struct committer *committer, struct sc_store_put *put)
{
    pthread_mutex_lock(&committer->lock);
    while (committer->count == 2 * committer->together)
        pthread_cond_wait(&committer->changed, &committer->lock);
    committer->puts[committer->count++] = put;
    pthread_cond_broadcast(&committer->changed);
    pthread_mutex_unlock(&committer->lock);
}

static void *commit_thread(void *arg)
{
    struct committer *committer = arg;
    pthread_mutex_lock(&committer->lock);
    while (!committer->over || committer->count > 0) {
        struct sc_store_put *puts[SPILL_COMMIT_MAX];
        uint32_t count = committer->count;
        if (count < committer->together && !committer->over) {
            pthread_cond_wait(&committer->changed, &committer->lock);
            continue;
        }
        memcpy(puts, committer->puts, count * sizeof(*puts));
        committer->count = 0;
        pthread_cond_broadcast(&committer->changed);
        pthread_mutex_unlock(&committer->lock);
        spill_commit(committer->store, puts, count);
        pthread_mutex_lock(&committer->lock);
    }
    pthread_mutex_unlock(&committer->lock);
    return NULL;
}

static void start(pthread_t *thread, void *(*function)(void *arg), void *arg)
{
    if (pthread_create(thread, NULL, function, arg) != 0)
        bench_fail(BENCH_NO_MEMORY, "no thread");
}

static void committer_start(struct committer *committer, const struct pairs *pairs)
{
    *committer = (struct committer){.store = pairs->store,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .changed = PTHREAD_COND_INITIALIZER,
        .together = states_together(pairs->options)};
    start(&committer->thread, commit_thread, committer);
}

/* All that was handed over is durable then. */
static void committer_end(struct committer *committer)
{
    pthread_mutex_lock(&committer->lock);
    committer->over = true;
    pthread_cond_broadcast(&committer->changed);
    pthread_mutex_unlock(&committer->lock);
    pthread_join(committer->thread, NULL);
}

static void *pass_thread(void *arg)
{
    struct worker *worker = arg;
    const struct pairs *pairs = worker->pairs;
    const struct spill_options *o = pairs->options;
    for (uint32_t i = worker->index; i < o->states; i += o->threads) {
        uint8_t *restored = pairs->restored[worker->index];
        if (worker->write) {
            hand_over(worker->committer,
                spill_write(pairs->store, pairs->first + i, state_of(pairs, i), o->state_bytes, 1));
            continue;
        }
        if (!spill_get(pairs->store, pairs->first + i, restored, o->state_bytes))
            bench_fail(BENCH_CHECK_FAILED, "a state that was stored is not there");
        if (worker->compare && memcmp(restored, state_of(pairs, i), o->state_bytes) != 0)
            bench_fail(BENCH_CHECK_FAILED, "a state came back with other bits");
    }
    worker->waited = waited_for_processor();
    return NULL;
}

struct pass { double seconds, waited; /* of a thread, on average */ };

/* Until every state is durable, or has been checked. */
static struct pass store_pass(struct pairs *pairs, bool write, bool compare)
{
    pthread_t threads[SPILL_THREADS_MAX];
    struct worker workers[SPILL_THREADS_MAX];
    struct committer committer;
    uint32_t count = pairs->options->threads;
    if (write) { /* the states of the pass before give their blocks: no growth is measured */
        bench_must(sc_store_evict(pairs->store, UINT64_MAX / 2, NULL), "evicting");
        pairs->first += pairs->options->states;
    }
    double begin = spill_now();
    committer_start(&committer, pairs);
    for (uint32_t i = 0; i < count; i++) {
        workers[i] = (struct worker){pairs, &committer, i, write, compare, 0};
        start(&threads[i], pass_thread, &workers[i]);
    }
    for (uint32_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    committer_end(&committer);
    struct pass pass = {spill_now() - begin, 0};
    for (uint32_t i = 0; i < count; i++)
        pass.waited += workers[i].waited / count;
    return pass;
}

static struct pass raw_pass(struct pairs *pairs, bool write)
{
    const struct spill_options *o = pairs->options;
    uint8_t **buffers = bench_alloc(o->states, sizeof *buffers);
    for (uint32_t i = 0; i < o->states; i++) /* restored over each other, as the threads do */
        buffers[i] = write ? pairs->states[i % pairs->different] : pairs->restored[i % o->threads];
    double before = waited_for_processor();
    struct pass pass = {.waited = 0};
    pass.seconds = spill_raw_pass(pairs->raw, write, buffers, o->states, o->state_bytes);
    pass.waited = waited_for_processor() - before;
    free(buffers);
    return pass;
}

/* ---- pairs ---- */

struct direction { struct radix_samples store, raw, ratio, store_waited, raw_waited; };

static void one_pair(struct pairs *pairs, bool write, uint32_t turn, struct direction *out)
{
    const struct spill_options *o = pairs->options;
    double mib = (double)o->state_bytes * o->states / (1 << 20);
    struct pass store = {0, 0}, raw = {0, 0};
    for (uint32_t i = 0; i < 2; i++) {
        if ((turn + i) % 2 == 0)
            raw = raw_pass(pairs, write);
        else
            store = store_pass(pairs, write, false);
    }
    radix_sample(&out->store, mib / store.seconds);
    radix_sample(&out->raw, mib / raw.seconds);
    radix_sample(&out->ratio, raw.seconds / store.seconds);
    radix_sample(&out->store_waited, 100 * store.waited / store.seconds);
    radix_sample(&out->raw_waited, 100 * raw.waited / raw.seconds);
}

static void report(struct radix_rows *rows, bool write, struct direction *found)
{
    const struct bench_bar none = {BENCH_BAR_NONE, 0}, least = {BENCH_BAR_LEAST, 0.8};
    radix_row_samples(rows, "disk", write ? "spill" : "restore", "MiB/s", &found->store, none);
    radix_row_samples(rows, "disk", write ? "raw sequential write, fdatasync at the end" :
        "raw sequential read", "MiB/s", &found->raw, none);
    radix_row_samples(rows, "disk", write ? "spill / raw" : "restore / raw", "ratio",
        &found->ratio, least);
    /* Much of it: the machine is busy, and its other work is what is measured. */
    radix_row_samples(rows, "disk", write ? "spill: waited for a processor" :
        "restore: waited for a processor", "%", &found->store_waited, none);
    radix_row_samples(rows, "disk", write ? "raw write: waited for a processor" :
        "raw read: waited for a processor", "%", &found->raw_waited, none);
    radix_samples_free(&found->store_waited);
    radix_samples_free(&found->raw_waited);
    radix_samples_free(&found->store);
    radix_samples_free(&found->raw);
    radix_samples_free(&found->ratio);
}

static void run_pairs(struct pairs *pairs, struct radix_rows *rows)
{
    struct direction writes, reads;
    memset(&writes, 0, sizeof writes);
    memset(&reads, 0, sizeof reads);
    /* Uncounted, until all blocks of the budget were written once: a first write of a block that
     * was only preallocated costs the file system more. And every bit is compared. */
    raw_pass(pairs, true);
    for (uint64_t written = 0; written < pairs->bytes_max; written += pairs->pass_bytes)
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
            tier_check_add(&check, state_of(pairs, i) + at,
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
    struct committer committer;
    uint64_t number = UINT64_C(1) << 40;
    committer_start(&committer, mix->pairs);
    while (!mix->over) { /* worth less than those that are restored: they evict each other */
        hand_over(&committer, spill_write(mix->pairs->store, number++,
                                  state_of(mix->pairs, mix->spilled), o->state_bytes, 0));
        mix->spilled++;
    }
    committer_end(&committer);
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
    double alone = 0;
    for (uint32_t beside = 0; beside < 2; beside++) {
        struct radix_samples latency = {NULL, 0, 0};
        struct mix mix = {.pairs = pairs};
        const char *load = beside ? "beside" : "alone";
        pthread_t spiller;
        double rate = 0, begin = spill_now();
        if (beside)
            start(&spiller, spill_thread, &mix);
        restore_random(pairs, &latency, &rate);
        mix.over = true;
        if (beside)
            pthread_join(spiller, NULL);
        double spills = (double)mix.spilled * (double)pairs->options->state_bytes / (1 << 20) /
                        (spill_now() - begin);
        radix_row_samples(rows, load, "a random state restored", "ms", &latency, none);
        radix_row_value(rows, load, "random restores", "MiB/s", rate, none);
        if (beside) {
            radix_row_value(rows, load, "spills meanwhile", "MiB/s", spills, none);
            radix_row_value(
                rows, load, "both / restores alone", "ratio", (rate + spills) / alone, none);
        }
        alone = rate;
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
    pairs.different = options->states < DIFFERENT_MAX ? options->states : DIFFERENT_MAX;
    pairs.restored = bench_alloc(options->threads, sizeof *pairs.restored);
    for (uint32_t i = 0; i < pairs.different; i++)
        pairs.states[i] = spill_buffer(options->state_bytes, options->seed + i);
    for (uint32_t i = 0; i < options->threads; i++)
        pairs.restored[i] = spill_buffer(options->state_bytes, 0);
    uint64_t all = options->state_bytes * options->states;
    struct sc_store_options store = {.folder = folder,
        .bytes_max = all + (3 * states_together(options) + 4) * options->state_bytes};
    pairs.store = spill_open(&store);
    pairs.bytes_max = store.bytes_max;
    pairs.pass_bytes = all;
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
    for (uint32_t i = 0; i < pairs.different; i++)
        free(pairs.states[i]);
    for (uint32_t i = 0; i < options->threads; i++)
        free(pairs.restored[i]);
    free(pairs.restored);
}
