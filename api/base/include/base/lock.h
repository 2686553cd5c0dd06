/* SPDX-License-Identifier: Apache-2.0 */
/* Locks with ranks: a thread takes locks in strictly rising rank. Debug builds (SC_ASSERT_LEVEL
 * >= 2) check the order per thread and abort on a violation. */
#ifndef SC_BASE_LOCK_H
#define SC_BASE_LOCK_H

#include <pthread.h>

#include "statecache/status.h"

/* One enum for the whole library: outermost first. */
enum sc_lock_rank {
    SC_RANK_ENGINE = 10,
    SC_RANK_SNAPSHOT = 20,
    SC_RANK_POOL = 30,
    SC_RANK_BACKEND = 40,
    SC_RANK_BASE = 50
};

struct sc_rwlock { pthread_rwlock_t os; enum sc_lock_rank rank; };
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
