/* SPDX-License-Identifier: Apache-2.0 */
/* An sc_allocator that fails the N-th allocation, counts what is alive and checks every free.
 *
 * Each allocation made to fail once:
 *
 *   struct fail_alloc fa;
 *   fail_alloc_init(&fa);
 *   options.allocator = &fa.allocator;
 *   for (uint64_t n = 1;; n++) {
 *       struct fail_alloc_mark before = fail_alloc_mark(&fa);
 *       fail_alloc_arm(&fa, n);
 *       sc_status status = sc_thing_create(&options, &thing);
 *       bool failed = fail_alloc_disarm(&fa);
 *       if (!failed) {
 *           ck_assert_int_eq(status, SC_OK);
 *           break;
 *       }
 *       ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
 *       ck_assert(fail_alloc_same(&fa, before));        // nothing left behind
 *   }
 *   sc_thing_destroy(thing);
 *   ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);  // nothing leaked
 *
 * A free of a foreign pointer, with a wrong size or of a block whose edges were overwritten aborts.
 * Threads: any; counters are atomic (arming is for one thread). */
#ifndef TESTS_SUPPORT_FAIL_ALLOC_H
#define TESTS_SUPPORT_FAIL_ALLOC_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "statecache/status.h"

struct fail_alloc {
    sc_allocator allocator; /* hand this to the library */
    _Atomic uint64_t calls;       /* allocations asked for since the last arm */
    _Atomic uint64_t fail_at;     /* 1: the next one; 0: never */
    _Atomic uint64_t fail_count;  /* allocations refused since the last arm */
    _Atomic uint64_t bytes_max;   /* refuse what would pass this many live bytes; 0: no limit */
    _Atomic uint64_t live_bytes, live_blocks, peak_bytes, total_blocks;
    bool fail_after;              /* also refuse everything after the N-th */
};

struct fail_alloc_mark { uint64_t live_bytes, live_blocks; };

/* Stored just below each block; the word after it is a guard too. */
struct fail_alloc_header { uint64_t magic, bytes; void *raw; uint64_t guard; };

#define FAIL_ALLOC_LIVE UINT64_C(0x5ca11a110c8ed001)
#define FAIL_ALLOC_DEAD UINT64_C(0xdeadb10c0badf00d)
#define FAIL_ALLOC_GUARD UINT64_C(0x9a2d9a2d9a2d9a2d)

static inline void *fail_alloc_alloc_(void *ctx, size_t bytes, size_t align)
{
    struct fail_alloc *fa = ctx;
    uint64_t call = atomic_fetch_add(&fa->calls, 1) + 1;
    uint64_t fail_at = atomic_load(&fa->fail_at);
    uint64_t bytes_max = atomic_load(&fa->bytes_max);
    bool refuse = fail_at != 0 && (fa->fail_after ? call >= fail_at : call == fail_at);
    if (bytes_max != 0 && atomic_load(&fa->live_bytes) + bytes > bytes_max) refuse = true;
    if (bytes == 0 || align == 0 || (align & (align - 1)) != 0) {
        (void)fprintf(stderr, "fail_alloc: bad request: %zu bytes, align %zu\n", bytes, align);
        abort();
    }
    if (refuse) {
        atomic_fetch_add(&fa->fail_count, 1);
        return NULL;
    }
    if (align < 16) align = 16;
    size_t head = sizeof(struct fail_alloc_header) + align;
    char *raw = bytes > SIZE_MAX - head - 8 ? NULL : malloc(head + bytes + 8);
    if (!raw) return NULL;
    uintptr_t at = ((uintptr_t)raw + head) & ~(uintptr_t)(align - 1);
    char *block = raw + (at - (uintptr_t)raw);
    struct fail_alloc_header header = {FAIL_ALLOC_LIVE, bytes, raw, FAIL_ALLOC_GUARD};
    memcpy(block - sizeof header, &header, sizeof header);
    memcpy(block + bytes, &header.guard, sizeof header.guard);
    memset(block, 0xa5, bytes); /* whoever reads before writing reads nonsense */
    uint64_t live = atomic_fetch_add(&fa->live_bytes, bytes) + bytes;
    uint64_t peak = atomic_load(&fa->peak_bytes);
    while (live > peak && !atomic_compare_exchange_weak(&fa->peak_bytes, &peak, live)) continue;
    atomic_fetch_add(&fa->live_blocks, 1);
    atomic_fetch_add(&fa->total_blocks, 1);
    return block;
}

static inline void fail_alloc_free_(void *ctx, void *ptr, size_t bytes)
{
    struct fail_alloc *fa = ctx;
    if (!ptr) {
        (void)fprintf(stderr, "fail_alloc: free of NULL\n");
        abort();
    }
    struct fail_alloc_header header;
    uint64_t tail;
    memcpy(&header, (char *)ptr - sizeof header, sizeof header);
    if (header.magic != FAIL_ALLOC_LIVE || header.guard != FAIL_ALLOC_GUARD) {
        (void)fprintf(stderr, "fail_alloc: %p is not a live block (magic %llx)\n", ptr,
            (unsigned long long)header.magic);
        abort();
    }
    memcpy(&tail, (char *)ptr + header.bytes, sizeof tail);
    if (header.bytes != bytes || tail != FAIL_ALLOC_GUARD) {
        (void)fprintf(stderr, "fail_alloc: %p of %llu bytes freed as %zu, or overrun\n", ptr,
            (unsigned long long)header.bytes, bytes);
        abort();
    }
    memset(ptr, 0xdd, bytes);
    void *raw = header.raw;
    header.magic = FAIL_ALLOC_DEAD;
    memcpy((char *)ptr - sizeof header, &header, sizeof header);
    atomic_fetch_sub(&fa->live_bytes, bytes);
    atomic_fetch_sub(&fa->live_blocks, 1);
    free(raw);
}

static inline void fail_alloc_init(struct fail_alloc *fa)
{
    memset(fa, 0, sizeof *fa);
    fa->allocator = (sc_allocator){fa, fail_alloc_alloc_, fail_alloc_free_};
}

/* The n-th allocation from now on fails; 0: none. */
static inline void fail_alloc_arm(struct fail_alloc *fa, uint64_t n)
{
    atomic_store(&fa->calls, 0);
    atomic_store(&fa->fail_count, 0);
    atomic_store(&fa->fail_at, n);
}

/* True when the armed allocation was asked for and refused. */
static inline bool fail_alloc_disarm(struct fail_alloc *fa)
{
    atomic_store(&fa->fail_at, 0);
    return atomic_load(&fa->fail_count) != 0;
}

static inline struct fail_alloc_mark fail_alloc_mark(struct fail_alloc *fa)
{
    return (struct fail_alloc_mark){atomic_load(&fa->live_bytes), atomic_load(&fa->live_blocks)};
}

static inline bool fail_alloc_same(struct fail_alloc *fa, struct fail_alloc_mark mark)
{
    return atomic_load(&fa->live_bytes) == mark.live_bytes &&
        atomic_load(&fa->live_blocks) == mark.live_blocks;
}

static inline uint64_t fail_alloc_live_blocks(struct fail_alloc *fa)
{
    return atomic_load(&fa->live_blocks);
}

static inline uint64_t fail_alloc_live_bytes(struct fail_alloc *fa)
{
    return atomic_load(&fa->live_bytes);
}

/* Allocations asked for since the last arm: zero proves that a call does not allocate. */
static inline uint64_t fail_alloc_calls(struct fail_alloc *fa)
{
    return atomic_load(&fa->calls);
}

#endif
