/* SPDX-License-Identifier: Apache-2.0 */
/* Ranked locks over pthreads.
 *
 * At SC_ASSERT_LEVEL >= 2 each thread keeps a bit set of the ranks it holds (ranks are below 64):
 *
 * (1) a lock is taken only when every rank held is lower;
 * (2) a lock is given back only by a thread that holds its rank.
 *
 * (1) makes a cycle of waiting threads impossible, also between locks of one rank, since two of
 * one rank are never held together. Readers-writer locks prefer writers, so that a stream of
 * look-ups cannot starve the mutator; this forbids recursive shared locking, as (1) does anyway. */
#include "base/lock.h"

#include <stdint.h>

#include "base/error.h"
#include "base/sc_assert.h"

#if SC_ASSERT_LEVEL >= 2
static _Thread_local uint64_t held_ranks;
#endif

static void rank_take(enum sc_lock_rank rank)
{
#if SC_ASSERT_LEVEL >= 2
    SC_ASSERT((int)rank > 0 && (int)rank < 64);
    SC_ASSERT((held_ranks >> rank) == 0); /* (1) */
    held_ranks |= UINT64_C(1) << rank;
#else
    (void)rank;
#endif
}

static void rank_give(enum sc_lock_rank rank)
{
#if SC_ASSERT_LEVEL >= 2
    SC_ASSERT((held_ranks >> rank) & 1u); /* (2) */
    held_ranks &= ~(UINT64_C(1) << rank);
#else
    (void)rank;
#endif
}

sc_status sc_rwlock_init(struct sc_rwlock *lock, enum sc_lock_rank rank)
{
    pthread_rwlockattr_t attr;
    SC_REQUIRE(lock != NULL);
    int rc = pthread_rwlockattr_init(&attr);
    if (rc != 0) return SC_FAIL_SYS(SC_ERR_NO_MEMORY, rc, "cannot create a lock");
#ifdef __GLIBC__
    (void)pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    rc = pthread_rwlock_init(&lock->os, &attr);
    pthread_rwlockattr_destroy(&attr);
    if (rc != 0) return SC_FAIL_SYS(SC_ERR_NO_MEMORY, rc, "cannot create a lock");
    lock->rank = rank;
    return SC_OK;
}

void sc_rwlock_deinit(struct sc_rwlock *lock)
{
    int rc = pthread_rwlock_destroy(&lock->os);
    SC_ASSERT(rc == 0);
}

void sc_rwlock_lock_shared(const struct sc_rwlock *lock)
{
    rank_take(lock->rank);
    /* Locking changes nothing that a caller of a const object could see. */
    int rc = pthread_rwlock_rdlock((pthread_rwlock_t *)&lock->os);
    SC_ASSERT(rc == 0);
}

void sc_rwlock_lock(struct sc_rwlock *lock)
{
    rank_take(lock->rank);
    int rc = pthread_rwlock_wrlock(&lock->os);
    SC_ASSERT(rc == 0);
}

void sc_rwlock_unlock_shared(const struct sc_rwlock *lock)
{
    int rc = pthread_rwlock_unlock((pthread_rwlock_t *)&lock->os);
    SC_ASSERT(rc == 0);
    rank_give(lock->rank);
}

void sc_rwlock_unlock(struct sc_rwlock *lock)
{
    int rc = pthread_rwlock_unlock(&lock->os);
    SC_ASSERT(rc == 0);
    rank_give(lock->rank);
}

sc_status sc_mutex_init(struct sc_mutex *mutex, enum sc_lock_rank rank)
{
    SC_REQUIRE(mutex != NULL);
    int rc = pthread_mutex_init(&mutex->os, NULL);
    if (rc != 0) return SC_FAIL_SYS(SC_ERR_NO_MEMORY, rc, "cannot create a mutex");
    mutex->rank = rank;
    return SC_OK;
}

void sc_mutex_deinit(struct sc_mutex *mutex)
{
    int rc = pthread_mutex_destroy(&mutex->os);
    SC_ASSERT(rc == 0);
}

void sc_mutex_lock(struct sc_mutex *mutex)
{
    rank_take(mutex->rank);
    int rc = pthread_mutex_lock(&mutex->os);
    SC_ASSERT(rc == 0);
}

void sc_mutex_unlock(struct sc_mutex *mutex)
{
    int rc = pthread_mutex_unlock(&mutex->os);
    SC_ASSERT(rc == 0);
    rank_give(mutex->rank);
}
