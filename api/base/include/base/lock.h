/* SPDX-License-Identifier: Apache-2.0 */
/* Locks with ranks: a thread takes locks in strictly rising rank. Debug builds (SC_ASSERT_LEVEL
 * >= 2) check the order per thread and abort on a violation.
 *
 * sc_rwlock is for many short readers on many processors and few writers: a reader writes to a line
 * of memory that is its own, so readers do not slow each other down. A lock is 8 KiB. */
#ifndef SC_BASE_LOCK_H
#define SC_BASE_LOCK_H

#include <pthread.h>
#include <stdatomic.h>

#include "statecache/status.h"

/* One enum for the whole library: outermost first. */
enum sc_lock_rank {
    SC_RANK_ENGINE = 10,
    SC_RANK_SNAPSHOT = 20,
    SC_RANK_TIER_WRITE = 22, /* one writer of a store's metadata; held while the disk works */
    SC_RANK_TIER_READ = 23, /* readers of metadata; taken alone to wait for all of them */
    SC_RANK_TIER = 24,
    SC_RANK_TIER_IO = 26,
    SC_RANK_POOL = 30,
    SC_RANK_BACKEND = 40,
    SC_RANK_BASE = 50
};

enum { SC_RWLOCK_SLOTS = 64 };
/* Two lines, since processors fetch lines in pairs; only the distance matters. */
struct sc_rwlock_slot { _Atomic uint32_t readers; char apart[124]; };
struct sc_rwlock {
    pthread_mutex_t writer;     /* held by the writer, and by readers who come while one is there */
    pthread_mutex_t sleep;
    pthread_cond_t left;        /* a reader left while the writer slept */
    enum sc_lock_rank rank;
    _Atomic uint32_t closed;    /* a writer is there: new readers wait */
    _Atomic uint32_t sleeping;  /* it sleeps until readers leave */
    char apart[128];
    struct sc_rwlock_slot slots[SC_RWLOCK_SLOTS];
};
struct sc_mutex { pthread_mutex_t os; enum sc_lock_rank rank; };

sc_status sc_rwlock_init(struct sc_rwlock *lock, enum sc_lock_rank rank);
void sc_rwlock_deinit(struct sc_rwlock *lock);
void sc_rwlock_lock_shared(const struct sc_rwlock *lock);
void sc_rwlock_lock(struct sc_rwlock *lock);
void sc_rwlock_unlock_shared(const struct sc_rwlock *lock);
void sc_rwlock_unlock(struct sc_rwlock *lock);

sc_status sc_mutex_init(struct sc_mutex *mutex, enum sc_lock_rank rank);
void sc_mutex_deinit(struct sc_mutex *mutex);
void sc_mutex_lock(struct sc_mutex *mutex);
void sc_mutex_unlock(struct sc_mutex *mutex);

#endif
