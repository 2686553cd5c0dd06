/* SPDX-License-Identifier: Apache-2.0 */
/* Three ways to look up, taking turns:
 *
 *   private   each thread has a tree and a lock of its own; so has the mutator
 *   one       all are on one tree, under the library's readers-writer lock
 *   pthread   the same under pthread_rwlock_t, for comparison
 *
 * The mutator inserts a path of 512 tokens and takes it out again, so many times a second. */
#include "radix_threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/prng.h"
#include "bench_common.h"
#include "radix_serial.h"

enum { TURNS = 5, MUTATION = 512, SYSTEMS = 16, SYSTEM_TOKENS = 500 };
enum way { PRIVATE, ONE, PTHREAD, WAYS };
static const char *const way_names[WAYS] = {"private trees", "one tree",
    "one tree, pthread_rwlock"};

static const struct keyset { const char *name; uint32_t keys, tokens; } keysets[] = {
    {"2,000 keys of 9k", 2000, 9000}, {"8 keys of 1k", 8, 1000}};
enum { KEYSETS = sizeof keysets / sizeof *keysets };

/* A tree and its locks, a line or more apart from others. */
struct place { struct radix_tree tree; struct sc_rwlock lock; pthread_rwlock_t os; };

struct shared {
    const struct keyset *set;
    const int32_t *keys;
    struct place *places; /* of the mutator, then of each thread */
    enum way way;
    unsigned mutations;
    _Atomic int go; /* 0 wait, 1 run, 2 stop */
    _Atomic unsigned ready;
};

struct thread {
    struct shared *shared;
    struct place *place;
    pthread_t id;
    uint64_t seed, lookups, wall_ns;
    struct radix_samples took; /* the mutator's */
    char apart[128];
};

static void read_lock(struct place *place, enum way way)
{
    if (way == PTHREAD)
        pthread_rwlock_rdlock(&place->os);
    else
        sc_rwlock_lock_shared(&place->lock);
}

static void read_unlock(struct place *place, enum way way)
{
    if (way == PTHREAD)
        pthread_rwlock_unlock(&place->os);
    else
        sc_rwlock_unlock_shared(&place->lock);
}

static void wait_for_go(struct shared *shared)
{
    atomic_fetch_add(&shared->ready, 1);
    while (atomic_load(&shared->go) == 0)
        sched_yield();
}

static void *look_up(void *arg)
{
    struct thread *t = arg;
    struct shared *s = t->shared;
    struct sc_prng prng;
    sc_prng_seed(&prng, t->seed);
    wait_for_go(s);
    uint64_t begin = sc_clock_now_ns();
    do { /* once at least, however late this thread got a processor: a rate of 0 has no ratio */
        for (int i = 0; i < 16; i++) {
            uint32_t key = (uint32_t)sc_prng_below(&prng, s->set->keys);
            struct sc_radix_match match;
            struct sc_radix_key path = {s->keys + (size_t)key * s->set->tokens, s->set->tokens,
                NULL, 0};
            read_lock(t->place, s->way);
            sc_status status = sc_radix_match(t->place->tree.radix, t->place->tree.space, &path,
                s->set->tokens, &match);
            read_unlock(t->place, s->way);
            if (status != SC_OK || match.kv_len != s->set->tokens)
                bench_fail(BENCH_CHECK_FAILED, "key %u matched %u tokens", key, match.kv_len);
        }
        t->lookups += 16;
    } while (atomic_load_explicit(&s->go, memory_order_relaxed) == 1);
    t->wall_ns = sc_clock_now_ns() - begin;
    return NULL;
}

static void mutate(struct place *place, enum way way, const int32_t *tokens)
{
    struct radix_tree *tree = &place->tree;
    struct sc_radix_run run = {0, 0};
    struct sc_radix_inserted inserted;
    struct sc_radix_insert in = {.space = tree->space, .tokens = tokens, .token_count = MUTATION,
        .kv_ids = tree->ids, .runs = &run, .run_count = 1};
    sc_node rest;
    if (way == PTHREAD)
        pthread_rwlock_wrlock(&place->os);
    else
        sc_rwlock_lock(&place->lock);
    bench_must(sc_radix_insert(tree->radix, &in, &tree->sink, NULL, NULL, &inserted),
        "sc_radix_insert");
    bench_must(sc_radix_evict_node(tree->radix, inserted.node, &tree->sink, &rest),
        "sc_radix_evict_node");
    if (way == PTHREAD)
        pthread_rwlock_unlock(&place->os);
    else
        sc_rwlock_unlock(&place->lock);
}

static void *mutator(void *arg)
{
    struct thread *t = arg;
    struct shared *s = t->shared;
    int32_t tokens[MUTATION];
    radix_load_tokens(tokens, MUTATION, t->seed);
    wait_for_go(s);
    uint64_t next = sc_clock_now_ns();
    while (s->mutations > 0 && atomic_load(&s->go) == 1) {
        tokens[0]++;
        uint64_t begin = sc_clock_now_ns();
        mutate(t->place, s->way, tokens);
        uint64_t end = sc_clock_now_ns();
        radix_sample(&t->took, (double)(end - begin) * 1e-3);
        next += 1000000000u / s->mutations;
        if (next < end)
            next = end; /* no bursts to catch up */
        struct timespec until = {(time_t)(next / 1000000000u), (long)(next % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
    return NULL;
}

/* Look-ups a second, of all threads together. */
static double measure(struct shared *s, unsigned count, double seconds, uint64_t seed,
    struct radix_samples *took)
{
    struct thread *threads = bench_alloc(count + 1u, sizeof *threads);
    atomic_store(&s->go, 0);
    atomic_store(&s->ready, 0);
    for (unsigned i = 0; i <= count; i++) {
        unsigned place = s->way == PRIVATE ? i : 0;
        threads[i] = (struct thread){.shared = s, .place = &s->places[place], .seed = seed + i};
        if (pthread_create(&threads[i].id, NULL, i == 0 ? mutator : look_up, &threads[i]) != 0)
            bench_fail(BENCH_NO_MEMORY, "cannot start thread %u", i);
    }
    while (atomic_load(&s->ready) <= count)
        sched_yield();
    atomic_store(&s->go, 1);
    struct timespec nap = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&nap, NULL);
    atomic_store(&s->go, 2);
    double rate = 0;
    for (unsigned i = 0; i <= count; i++) {
        pthread_join(threads[i].id, NULL);
        if (i > 0)
            rate += 1e9 * (double)threads[i].lookups / (double)threads[i].wall_ns;
    }
    for (size_t i = 0; took && i < threads[0].took.count; i++)
        radix_sample(took, threads[0].took.values[i]);
    radix_samples_free(&threads[0].took);
    free(threads);
    return rate;
}

static void rows_of(struct radix_rows *rows, const struct keyset *set, unsigned count,
    struct radix_samples *rates, struct radix_samples *ratios, struct radix_samples *took)
{
    static const struct bench_bar none = {BENCH_BAR_NONE, 0};
    char name[96];
    for (int way = 0; way < WAYS; way++) {
        snprintf(name, sizeof name, "%s, %u threads, %s", set->name, count, way_names[way]);
        radix_row_samples(rows, "", name, "M/s", &rates[way], none);
        radix_samples_free(&rates[way]);
    }
    for (int way = ONE; way < WAYS; way++) {
        struct bench_bar bar = {BENCH_BAR_LEAST, 0.8};
        snprintf(name, sizeof name, "%s, %u threads, %s / private", set->name, count,
            way_names[way]);
        radix_row_samples(rows, "", name, "ratio", &ratios[way],
            way == ONE && count <= 16 ? bar : none);
        radix_samples_free(&ratios[way]);
    }
    snprintf(name, sizeof name, "mutation beside them, lock included, one tree");
    radix_row_samples(rows, "", name, "us", took, none);
    radix_samples_free(took);
}

static void places_fill(struct shared *s, unsigned count, int32_t *keys, uint64_t seed)
{
    for (uint32_t k = 0; k < s->set->keys; k++) {
        int32_t *key = keys + (size_t)k * s->set->tokens;
        radix_load_tokens(key, SYSTEM_TOKENS, seed + k % SYSTEMS);
        radix_load_tokens(key + SYSTEM_TOKENS, s->set->tokens - SYSTEM_TOKENS, seed + 1000 + k);
    }
    for (unsigned i = 0; i < count; i++) {
        struct place *place = &s->places[i];
        radix_tree_open(&place->tree, true);
        bench_must(sc_rwlock_init(&place->lock, SC_RANK_ENGINE), "sc_rwlock_init");
        pthread_rwlockattr_t attr;
        pthread_rwlockattr_init(&attr);
        pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
        pthread_rwlock_init(&place->os, &attr);
        pthread_rwlockattr_destroy(&attr);
        for (uint32_t k = 0; k < s->set->keys; k++)
            radix_tree_insert(&place->tree, keys + (size_t)k * s->set->tokens, s->set->tokens);
    }
}

static void keyset_run(const struct radix_threads_options *o, const struct keyset *set,
    struct radix_rows *rows)
{
    unsigned most = 0;
    for (size_t i = 0; i < o->count; i++)
        most = o->threads[i] > most ? o->threads[i] : most;
    struct shared s = {.set = set, .mutations = o->mutations};
    int32_t *keys = bench_alloc((size_t)set->keys * set->tokens, sizeof *keys);
    s.keys = keys;
    s.places = bench_alloc(most + 1u, sizeof *s.places);
    places_fill(&s, most + 1, keys, o->seed);
    for (size_t i = 0; i < o->count; i++) {
        struct radix_samples rates[WAYS] = {0}, ratios[WAYS] = {0}, took = {0};
        for (int turn = 0; turn < TURNS; turn++) {
            double rate[WAYS];
            for (int w = 0; w < WAYS; w++) {
                s.way = (enum way)((w + turn) % WAYS);
                rate[s.way] = measure(&s, o->threads[i], o->seconds, o->seed + 77u * (uint64_t)turn,
                    s.way == ONE ? &took : NULL);
                radix_sample(&rates[s.way], rate[s.way] * 1e-6);
            }
            for (int w = ONE; w < WAYS; w++)
                radix_sample(&ratios[w], rate[w] / rate[PRIVATE]);
        }
        rows_of(rows, set, o->threads[i], rates, ratios, &took);
    }
    for (unsigned i = 0; i <= most; i++) {
        radix_tree_close(&s.places[i].tree);
        sc_rwlock_deinit(&s.places[i].lock);
        pthread_rwlock_destroy(&s.places[i].os);
    }
    free(s.places);
    free(keys);
}

void radix_threads_run(const struct radix_threads_options *options, struct radix_rows *rows)
{
    for (int k = 0; k < KEYSETS; k++)
        keyset_run(options, &keysets[k], rows);
}
