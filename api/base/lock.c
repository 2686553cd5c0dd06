/* SPDX-License-Identifier: Apache-2.0 */
/* Ranked locks over pthreads.
 *
 * At SC_ASSERT_LEVEL >= 2 each thread keeps a bit set of the ranks it holds (ranks are below 64):
 *
 * (1) a lock is taken only when every rank held is lower;
 * (2) a lock is given back only by a thread that holds its rank.
 *
 * (1) makes a cycle of waiting threads impossible, also between locks of one rank, since two of
 * one rank are never held together.
 *
 * Readers-writer lock. Each thread has a slot, a counter on a line of its own:
 *
 *   reader   slots[me]++ ; closed? --no--> reads ... slots[me]--
 *                              '---yes--> slots[me]-- ; waits until no writer is there
 *   writer   takes the mutex ; closed = 1 ; waits until each slot is 0 ; writes ; closed = 0
 *
 * (3) Never a reader and a writer at once. Both the reader's increment and look at `closed` and the
 *     writer's store to it and looks at slots are sequentially consistent. So either the reader
 *     sees `closed` and steps back, or its increment comes before the writer's store in their one
 *     order and the writer finds the slot above 0. A reader that takes the mutex instead keeps
 *     writers out meanwhile, and the next holder of the mutex sees its increment.
 * (4) What readers did is over for a writer that finds 0: decrements are releases, and increments
 *     and decrements of others in between continue their release sequences.
 * (5) No wake-up is lost. The writer sets `sleeping` before it looks at a slot once more, a reader
 *     leaves its slot before it looks at `sleeping`: one of them sees the other. The signal is sent
 *     with the mutex `sleep` held, so never between the writer's look and its wait.
 * (6) Nobody starves: a writer that is there keeps new readers out; a reader waits for the mutex in
 *     the end, like writers.
 *
 * Writers are preferred, so that a stream of look-ups cannot starve the mutator; this forbids
 * recursive shared locking, as (1) does anyway. Cost: a reader, two atomic additions to a line that
 * stays in its processor's cache and a look at one that all share; a writer, a look at 64 lines.
 * Rejected: pthread_rwlock_t (all readers write one line, and 16 of them are slower than 2), a
 * sequence lock or epochs (readers would walk a tree that changes: every field of it atomic). */
#include "base/lock.h"

#include <stdbool.h>
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

/* --- readers and a writer --- */

enum {
    SPINS_READER = 200, /* pauses before a reader sleeps: some ten microseconds, a short write */
    SPINS_WRITER = 200
};

static void pause_briefly(void)
{
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static sc_status os_failed(int rc)
{
    return SC_FAIL_SYS(SC_ERR_NO_MEMORY, rc, "cannot create a lock");
}

sc_status sc_rwlock_init(struct sc_rwlock *lock, enum sc_lock_rank rank)
{
    SC_REQUIRE(lock != NULL);
    int rc = pthread_mutex_init(&lock->writer, NULL);
    if (rc != 0) return os_failed(rc);
    rc = pthread_mutex_init(&lock->sleep, NULL);
    if (rc != 0) {
        pthread_mutex_destroy(&lock->writer);
        return os_failed(rc);
    }
    rc = pthread_cond_init(&lock->left, NULL);
    if (rc != 0) {
        pthread_mutex_destroy(&lock->sleep);
        pthread_mutex_destroy(&lock->writer);
        return os_failed(rc);
    }
    lock->rank = rank;
    atomic_init(&lock->closed, 0);
    atomic_init(&lock->sleeping, 0);
    for (int i = 0; i < SC_RWLOCK_SLOTS; i++) atomic_init(&lock->slots[i].readers, 0);
    return SC_OK;
}

void sc_rwlock_deinit(struct sc_rwlock *lock)
{
    for (int i = 0; i < SC_RWLOCK_SLOTS; i++) {
        SC_ASSERT(atomic_load_explicit(&lock->slots[i].readers, memory_order_relaxed) == 0);
    }
    int rc = pthread_cond_destroy(&lock->left);
    SC_ASSERT(rc == 0);
    rc = pthread_mutex_destroy(&lock->sleep);
    SC_ASSERT(rc == 0);
    rc = pthread_mutex_destroy(&lock->writer);
    SC_ASSERT(rc == 0);
}

/* The slot of this thread, the same in every lock. Threads beyond 64 share. */
static _Atomic uint32_t *slot_of(const struct sc_rwlock *lock)
{
    static _Atomic uint32_t threads;
    static _Thread_local uint32_t own; /* slot + 1 */
    if (own == 0) {
        /* Relaxed: only that threads get different numbers matters. */
        own = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) % SC_RWLOCK_SLOTS + 1;
    }
    /* Locking changes nothing that a caller of a const object could see. */
    return &((struct sc_rwlock *)(uintptr_t)lock)->slots[own - 1].readers;
}

static void mutex_must(int rc) { SC_ASSERT(rc == 0); }

/* (4), (5): the decrement and the look at `sleeping` pair with those of the writer. */
static void reader_leave(struct sc_rwlock *lock, _Atomic uint32_t *slot)
{
    uint32_t before = atomic_fetch_sub_explicit(slot, 1, memory_order_seq_cst);
    SC_ASSERT(before > 0);
    if (atomic_load_explicit(&lock->sleeping, memory_order_seq_cst) == 0) return;
    mutex_must(pthread_mutex_lock(&lock->sleep));
    mutex_must(pthread_cond_signal(&lock->left));
    mutex_must(pthread_mutex_unlock(&lock->sleep));
}

void sc_rwlock_lock_shared(const struct sc_rwlock *constant)
{
    struct sc_rwlock *lock = (struct sc_rwlock *)(uintptr_t)constant;
    _Atomic uint32_t *slot = slot_of(lock);
    rank_take(lock->rank);
    atomic_fetch_add_explicit(slot, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&lock->closed, memory_order_seq_cst) == 0) return; /* (3) */
    reader_leave(lock, slot);
    for (int i = 0; i < SPINS_READER; i++) {
        if (atomic_load_explicit(&lock->closed, memory_order_relaxed) == 0) {
            atomic_fetch_add_explicit(slot, 1, memory_order_seq_cst);
            if (atomic_load_explicit(&lock->closed, memory_order_seq_cst) == 0) return;
            reader_leave(lock, slot);
        }
        pause_briefly();
    }
    /* Whoever holds the mutex keeps writers away, so this reader gets in. */
    mutex_must(pthread_mutex_lock(&lock->writer));
    atomic_fetch_add_explicit(slot, 1, memory_order_seq_cst);
    mutex_must(pthread_mutex_unlock(&lock->writer));
}

void sc_rwlock_unlock_shared(const struct sc_rwlock *constant)
{
    struct sc_rwlock *lock = (struct sc_rwlock *)(uintptr_t)constant;
    reader_leave(lock, slot_of(lock));
    rank_give(lock->rank);
}

/* Acquire, and more: pairs with the decrement of each reader that was in the slot (4). */
static bool slot_empty(const struct sc_rwlock_slot *slot)
{
    return atomic_load_explicit(&slot->readers, memory_order_seq_cst) == 0;
}

static void slot_drain(struct sc_rwlock *lock, const struct sc_rwlock_slot *slot)
{
    for (int i = 0; i < SPINS_WRITER; i++) {
        if (slot_empty(slot)) return;
        pause_briefly();
    }
    mutex_must(pthread_mutex_lock(&lock->sleep));
    atomic_store_explicit(&lock->sleeping, 1, memory_order_seq_cst); /* (5) */
    while (!slot_empty(slot)) mutex_must(pthread_cond_wait(&lock->left, &lock->sleep));
    atomic_store_explicit(&lock->sleeping, 0, memory_order_relaxed);
    mutex_must(pthread_mutex_unlock(&lock->sleep));
}

void sc_rwlock_lock(struct sc_rwlock *lock)
{
    rank_take(lock->rank);
    mutex_must(pthread_mutex_lock(&lock->writer));
    atomic_store_explicit(&lock->closed, 1, memory_order_seq_cst);
    for (int i = 0; i < SC_RWLOCK_SLOTS; i++) slot_drain(lock, &lock->slots[i]);
}

void sc_rwlock_unlock(struct sc_rwlock *lock)
{
    /* Release: a reader that sees it sees what was written (3). */
    atomic_store_explicit(&lock->closed, 0, memory_order_seq_cst);
    mutex_must(pthread_mutex_unlock(&lock->writer));
    rank_give(lock->rank);
}

/* --- mutexes --- */

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
