/* SPDX-License-Identifier: Apache-2.0 */
/* Queues and threads of sc_tiers: a writer, a reader, and a committer, which lets commits wait for
 * each other (tiers_internal.h). */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "tiers_internal.h"

struct thread { struct tiers *tiers; uint32_t queue; };

void sc_tiers_push(struct queue *queue, struct sc_tier_job *job)
{
    job->next = NULL;
    *queue->end = job;
    queue->end = &job->next;
    (void)pthread_cond_signal(&queue->more);
}

static struct sc_tier_job *job_pop(struct queue *queue)
{
    struct sc_tier_job *job = queue->first;
    if (!job) return NULL;
    queue->first = job->next;
    if (!queue->first) queue->end = &queue->first;
    job->next = NULL;
    return job;
}

/* Which tier it went to, or, of a restore, the one that it was reading. */
static uint32_t tier_of(const struct sc_tier_job *job)
{
    if (job->op != SC_TIER_RESTORE) return job->tier;
    return job->sources[job->source < job->source_count ? job->source : 0].tier;
}

static void job_done(struct tiers *tiers, struct sc_tier_job *job)
{
    sc_tiers_stats *stats = &tiers->stats;
    sc_mutex_lock(&tiers->lock);
    job->next = NULL;
    stats->failed += job->status != SC_OK;
    if (job->status == SC_ERR_IO || job->status == SC_ERR_CORRUPT) {
        stats->io_failed[tier_of(job)]++;
        stats->io_failed_row[tier_of(job)]++;
    }
    *tiers->done_end = job;
    tiers->done_end = &job->next;
    sc_mutex_unlock(&tiers->lock);
}

/* Calls without the lock. */
static void job_run(struct tiers *tiers, struct sc_tier_job *job)
{
    if (job->op == 0) {
        sc_tiers_drop(tiers, (const struct drop *)(void *)job);
        sc_heap_free(&tiers->heap, job, sizeof(struct drop));
        return;
    }
    /* Else another thread has it, perhaps already: parked, or waiting for its commit. */
    if (sc_tiers_work(tiers, job))
        job_done(tiers, job);
}

static void commits_run(struct tiers *tiers, struct sc_tier_job *jobs)
{
    sc_tiers_commit(tiers, jobs);
    while (jobs) {
        struct sc_tier_job *job = jobs;
        jobs = job->next;
        job_done(tiers, job);
    }
}

/* Whether what waits for its commit waits for more: (2). */
static bool commits_wait(const struct tiers *tiers)
{
    const struct queue *writes = &tiers->queues[QUEUE_WRITES];
    bool more = writes->first || writes->busy;
    bool room = tiers->commit_count < COMMIT_MAX && tiers->commit_bytes < COMMIT_BYTES;
    return more && room && !tiers->hurry && !tiers->quit &&
        sc_clock_now_ns() < tiers->commit_ns + COMMIT_WAIT_NS;
}

/* All that wait for their commit, in their order; NULL: none, or not yet. */
static struct sc_tier_job *commits_pop(struct tiers *tiers)
{
    struct queue *queue = &tiers->queues[QUEUE_COMMITS];
    if (!queue->first || commits_wait(tiers)) return NULL;
    struct sc_tier_job *first = job_pop(queue), *last = first;
    for (uint32_t count = 1; count < COMMIT_MAX && queue->first; count++) {
        last->next = job_pop(queue);
        last = last->next;
    }
    tiers->commit_bytes = tiers->commit_count = 0;
    tiers->commit_ns = sc_clock_now_ns();
    return first;
}

bool sc_tiers_queue_step(struct tiers *tiers, uint32_t which)
{
    struct queue *queue = &tiers->queues[which];
    struct sc_tier_job *job = which == QUEUE_COMMITS ? commits_pop(tiers) : job_pop(queue);
    if (!job) return false;
    queue->busy = true;
    sc_mutex_unlock(&tiers->lock);
    if (which == QUEUE_COMMITS) {
        commits_run(tiers, job);
    } else {
        job_run(tiers, job);
    }
    sc_mutex_lock(&tiers->lock);
    queue->busy = false;
    tiers->commits_ended += which == QUEUE_COMMITS;
    (void)pthread_cond_signal(&tiers->queues[QUEUE_COMMITS].more); /* perhaps nothing comes */
    (void)pthread_cond_broadcast(&tiers->idle);
    return true;
}

/* Until there is something to do, or what waits for its commit has waited long enough. */
static void queue_sleep(struct tiers *tiers, uint32_t which)
{
    struct queue *queue = &tiers->queues[which];
    if (!queue->first) {
        (void)pthread_cond_wait(&queue->more, &tiers->lock.os);
        return;
    }
    uint64_t end = tiers->commit_ns + COMMIT_WAIT_NS;
    const struct timespec until = {(time_t)(end / 1000000000), (long)(end % 1000000000)};
    (void)pthread_cond_timedwait(&queue->more, &tiers->lock.os, &until);
}

static void *queue_thread(void *argument)
{
    struct thread *thread = argument;
    struct tiers *tiers = thread->tiers;
    uint32_t which = thread->queue;
    sc_heap_free(&tiers->heap, thread, sizeof *thread);
    sc_mutex_lock(&tiers->lock);
    for (;;) {
        if (sc_tiers_queue_step(tiers, which)) continue;
        if (tiers->quit && !tiers->queues[which].first) break;
        queue_sleep(tiers, which);
    }
    sc_mutex_unlock(&tiers->lock);
    return NULL;
}

void sc_tiers_hand_over(struct tiers *tiers, struct sc_tier_job *job)
{
    sc_mutex_lock(&tiers->lock);
    if (tiers->commit_count++ == 0) tiers->commit_ns = sc_clock_now_ns();
    tiers->commit_bytes += job->bytes;
    sc_tiers_push(&tiers->queues[QUEUE_COMMITS], job);
    sc_mutex_unlock(&tiers->lock);
}

bool sc_tiers_awaited(struct tiers *tiers, uint32_t disk_id)
{
    const struct queue *commits = &tiers->queues[QUEUE_COMMITS];
    sc_mutex_lock(&tiers->lock);
    bool found = commits->busy; /* of these nothing is known any more */
    for (const struct sc_tier_job *job = commits->first; job && !found; job = job->next) {
        found = sc_store_put_needs(tiers->disk, job->put, disk_id);
    }
    sc_mutex_unlock(&tiers->lock);
    return found;
}

uint64_t sc_tiers_commits_ended(struct tiers *tiers)
{
    sc_mutex_lock(&tiers->lock);
    uint64_t ended = tiers->commits_ended;
    sc_mutex_unlock(&tiers->lock);
    return ended;
}

bool sc_tiers_settle(struct tiers *tiers, uint64_t ended)
{
    struct queue *commits = &tiers->queues[QUEUE_COMMITS];
    if (tiers->settling) tiers->settling(tiers->settling_ctx);
    sc_mutex_lock(&tiers->lock);
    while (commits->first || commits->busy) {
        tiers->hurry = true;
        if (tiers->manual) {
            (void)sc_tiers_queue_step(tiers, QUEUE_COMMITS);
            continue;
        }
        (void)pthread_cond_signal(&commits->more);
        (void)pthread_cond_wait(&tiers->idle, &tiers->lock.os);
    }
    tiers->hurry = false;
    bool some = tiers->commits_ended != ended;
    sc_mutex_unlock(&tiers->lock);
    return some;
}

sc_status sc_tiers_threads_start(struct tiers *tiers)
{
    for (uint32_t i = 0; i < QUEUE_COUNT; i++) {
        struct queue *queue = &tiers->queues[i];
        if (i == QUEUE_COMMITS && !tiers->disk)
            continue;
        struct thread *thread = sc_heap_calloc(&tiers->heap, 1, sizeof *thread);
        if (!thread) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a thread of the tiers");
        *thread = (struct thread){tiers, i};
        int rc = pthread_create(&queue->thread, NULL, queue_thread, thread);
        if (rc != 0) {
            sc_heap_free(&tiers->heap, thread, sizeof *thread);
            return SC_FAIL_SYS(SC_ERR_NO_MEMORY, rc, "cannot start a thread: %s", strerror(rc));
        }
        queue->started = true;
    }
    return SC_OK;
}
