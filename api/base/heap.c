/* SPDX-License-Identifier: Apache-2.0 */
/* Heaps by subsystem.
 *
 *   sc_heap_alloc --user.alloc set--> the caller's allocator
 *         |--jemalloc in the process--> mallocx into the subsystem's arena
 *         '--otherwise, or a sanitizer build--> malloc
 *
 * (1) Which of the last two serves a subsystem is decided once in the life of the process, at its
 *     first allocation, and never changes: a block is always freed by what allocated it.
 * (2) Arena blocks bypass thread caches, so that an arena's `allocated` is exactly the sum of the
 *     size classes of live blocks. The library allocates in large or rare pieces; a cache would
 *     gain nothing.
 * (3) When the last block of a subsystem is freed its arena is purged: memory goes back to the
 *     system at destroy, not ten seconds later. (A purge that races with a new allocation only
 *     costs that allocation a page fault.)
 *
 * jemalloc is reached through weak symbols and never linked by the library: a process that dlopens
 * a library linked with it dies for want of static TLS. The flag bits below are its documented ABI
 * (mallocx(3)); its header is not included since it would declare the symbols strong. Blocks go
 * back through dallocx: sdallocx would have to be told the alignment again.
 *
 * Locking: `arena_lock` only around the creation of an arena; counters are relaxed atomics that
 * order nothing. Cost: two atomic additions over the allocator's own. */
#include "base/heap.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/error.h"
#include "base/sc_assert.h"

#ifndef SC_PLAIN_MALLOC
#define SC_PLAIN_MALLOC 0
#endif

enum { ALIGN_MIN = 16 };
static_assert(_Alignof(max_align_t) >= ALIGN_MIN, "malloc must align to 16");

struct subsystem_heap {
    _Atomic uint64_t live_bytes, live_count, foreign_bytes;
    _Atomic uint64_t own_count; /* blocks that did not come from a caller's allocator */
    _Atomic uint32_t arena;     /* ARENA_UNDECIDED, ARENA_NONE, else index + ARENA_BASE */
};
enum { ARENA_UNDECIDED = 0, ARENA_NONE = 1, ARENA_BASE = 2 };

static struct subsystem_heap subsystems[SC_SUBSYSTEM_COUNT];

#if !SC_PLAIN_MALLOC
extern void *mallocx(size_t bytes, int flags) __attribute__((weak));
extern void *rallocx(void *ptr, size_t bytes, int flags) __attribute__((weak));
extern void dallocx(void *ptr, int flags) __attribute__((weak));
extern size_t sallocx(const void *ptr, int flags) __attribute__((weak));
extern int mallctl(const char *name, void *old, size_t *old_bytes, void *new, size_t new_bytes)
    __attribute__((weak));

#define JE_ZERO 0x40
#define JE_TCACHE_NONE (1 << 8)
#define JE_ARENA(index) ((int)(((index) + 1u) << 20))
enum { JE_ARENA_INDEX_MAX = 2046 }; /* 12 bits of the flags hold the index + 1, signed int */

static pthread_mutex_t arena_lock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t arena_create(void)
{
    unsigned index = 0;
    size_t bytes = sizeof index;
    if (!mallocx || !rallocx || !dallocx || !sallocx || !mallctl) return ARENA_NONE;
    if (mallctl("arenas.create", &index, &bytes, NULL, 0) != 0) return ARENA_NONE;
    if (index > JE_ARENA_INDEX_MAX) return ARENA_NONE;
    return index + ARENA_BASE;
}

static uint32_t arena_of(struct subsystem_heap *sub)
{
    /* Acquire pairs with the release below: whoever sees the index sees a finished arena. */
    uint32_t arena = atomic_load_explicit(&sub->arena, memory_order_acquire);
    if (arena != ARENA_UNDECIDED) return arena;
    pthread_mutex_lock(&arena_lock);
    arena = atomic_load_explicit(&sub->arena, memory_order_relaxed);
    if (arena == ARENA_UNDECIDED) {
        arena = arena_create();
        atomic_store_explicit(&sub->arena, arena, memory_order_release);
    }
    pthread_mutex_unlock(&arena_lock);
    return arena;
}

static int arena_flags(uint32_t arena, size_t align)
{
    return JE_ARENA(arena - ARENA_BASE) | JE_TCACHE_NONE | __builtin_ctzll(align);
}

static void arena_purge(uint32_t arena)
{
    char name[40];
    (void)snprintf(name, sizeof name, "arena.%u.purge", arena - ARENA_BASE);
    (void)mallctl(name, NULL, NULL, NULL, 0);
}

static uint64_t arena_stat(uint32_t arena, const char *leaf)
{
    char name[64];
    size_t value = 0, bytes = sizeof value;
    (void)snprintf(name, sizeof name, "stats.arenas.%u.%s", arena - ARENA_BASE, leaf);
    return mallctl(name, &value, &bytes, NULL, 0) == 0 ? (uint64_t)value : 0;
}
#endif

static void *plain_alloc(size_t bytes, size_t align, bool zero)
{
    if (align <= ALIGN_MIN) return zero ? calloc(1, bytes) : malloc(bytes);
    void *ptr = NULL;
    if (posix_memalign(&ptr, align, bytes) != 0) return NULL;
    if (zero) memset(ptr, 0, bytes);
    return ptr;
}

static void *own_alloc(struct subsystem_heap *sub, size_t bytes, size_t align, bool zero)
{
#if !SC_PLAIN_MALLOC
    uint32_t arena = arena_of(sub);
    if (arena != ARENA_NONE) {
        return mallocx(bytes, arena_flags(arena, align) | (zero ? JE_ZERO : 0));
    }
#endif
    (void)sub;
    return plain_alloc(bytes, align, zero);
}

static void own_free(struct subsystem_heap *sub, void *ptr, size_t bytes, bool last)
{
#if !SC_PLAIN_MALLOC
    uint32_t arena = arena_of(sub);
    if (arena != ARENA_NONE) {
        SC_ASSERT_DEBUG(sallocx(ptr, 0) >= bytes);
        dallocx(ptr, JE_TCACHE_NONE);
        if (last) arena_purge(arena);
        return;
    }
#endif
    (void)sub;
    (void)bytes;
    (void)last;
    free(ptr);
}

static void *own_realloc(struct subsystem_heap *sub, void *ptr, size_t bytes)
{
#if !SC_PLAIN_MALLOC
    uint32_t arena = arena_of(sub);
    if (arena != ARENA_NONE) return rallocx(ptr, bytes, arena_flags(arena, ALIGN_MIN));
#endif
    (void)sub;
    return realloc(ptr, bytes);
}

static void count_alloc(struct sc_heap *heap, size_t bytes)
{
    struct subsystem_heap *sub = &subsystems[heap->subsystem];
    atomic_fetch_add_explicit(&sub->live_bytes, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(heap->user.alloc ? &sub->foreign_bytes : &sub->own_count,
        heap->user.alloc ? bytes : 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&sub->live_count, 1, memory_order_relaxed);
}

/* True when the subsystem has no own block left. */
static bool count_free(struct sc_heap *heap, size_t bytes)
{
    struct subsystem_heap *sub = &subsystems[heap->subsystem];
    atomic_fetch_sub_explicit(&sub->live_bytes, bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(&sub->live_count, 1, memory_order_relaxed);
    if (heap->user.alloc) {
        atomic_fetch_sub_explicit(&sub->foreign_bytes, bytes, memory_order_relaxed);
        return false;
    }
    return atomic_fetch_sub_explicit(&sub->own_count, 1, memory_order_relaxed) == 1;
}

static void *heap_get(struct sc_heap *heap, size_t bytes, size_t align, bool zero)
{
    SC_ASSERT(bytes > 0);
    SC_ASSERT(align > 0 && (align & (align - 1)) == 0);
    if (align < ALIGN_MIN) align = ALIGN_MIN;
    if (bytes > PTRDIFF_MAX - align) return NULL;
    void *ptr;
    if (heap->user.alloc) {
        ptr = heap->user.alloc(heap->user.ctx, bytes, align);
        if (ptr && zero) memset(ptr, 0, bytes);
    } else {
        ptr = own_alloc(&subsystems[heap->subsystem], bytes, align, zero);
    }
    if (ptr) count_alloc(heap, bytes);
    return ptr;
}

sc_status sc_heap_init(struct sc_heap *heap, enum sc_subsystem subsystem, const sc_allocator *user)
{
    SC_REQUIRE(heap != NULL);
    SC_REQUIRE((int)subsystem >= 0 && subsystem < SC_SUBSYSTEM_COUNT);
    SC_REQUIRE(user == NULL || (user->alloc != NULL && user->free != NULL));
    heap->subsystem = subsystem;
    heap->user = user ? *user : (sc_allocator){NULL, NULL, NULL};
    return SC_OK;
}

void *sc_heap_alloc(struct sc_heap *heap, size_t bytes, size_t align)
{
    return heap_get(heap, bytes, align, false);
}

void *sc_heap_calloc(struct sc_heap *heap, size_t count, size_t item_bytes)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, item_bytes, &bytes)) return NULL;
    return heap_get(heap, bytes, ALIGN_MIN, true);
}

void *sc_heap_realloc(struct sc_heap *heap, void *ptr, size_t old_bytes, size_t new_bytes)
{
    SC_ASSERT((ptr == NULL) == (old_bytes == 0));
    SC_ASSERT(new_bytes > 0);
    if (ptr == NULL) return heap_get(heap, new_bytes, ALIGN_MIN, false);
    if (new_bytes > PTRDIFF_MAX - ALIGN_MIN) return NULL;
    if (heap->user.alloc) {
        void *moved = heap_get(heap, new_bytes, ALIGN_MIN, false);
        if (!moved) return NULL;
        memcpy(moved, ptr, old_bytes < new_bytes ? old_bytes : new_bytes);
        sc_heap_free(heap, ptr, old_bytes);
        return moved;
    }
    struct subsystem_heap *sub = &subsystems[heap->subsystem];
    void *moved = own_realloc(sub, ptr, new_bytes);
    if (!moved) return NULL;
    /* Modulo 2^64, so that one addition serves growing and shrinking. */
    atomic_fetch_add_explicit(&sub->live_bytes, (uint64_t)new_bytes - (uint64_t)old_bytes,
        memory_order_relaxed);
    return moved;
}

void sc_heap_free(struct sc_heap *heap, void *ptr, size_t bytes)
{
    if (!ptr) return;
    bool last = count_free(heap, bytes);
    if (heap->user.alloc) {
        heap->user.free(heap->user.ctx, ptr, bytes);
    } else {
        own_free(&subsystems[heap->subsystem], ptr, bytes, last);
    }
}

void sc_heap_trim(struct sc_heap *heap)
{
#if !SC_PLAIN_MALLOC
    if (heap->user.alloc) return;
    uint32_t arena = arena_of(&subsystems[heap->subsystem]);
    if (arena != ARENA_NONE) {
        arena_purge(arena);
        return;
    }
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
#else
    (void)heap;
#endif
}

void *sc_heap_dup(struct sc_heap *heap, const void *src, size_t bytes)
{
    void *copy = sc_heap_alloc(heap, bytes, ALIGN_MIN);
    if (copy) memcpy(copy, src, bytes);
    return copy;
}

sc_status sc_heap_stats_get(enum sc_subsystem subsystem, sc_heap_stats *stats_out)
{
    SC_REQUIRE((int)subsystem >= 0 && subsystem < SC_SUBSYSTEM_COUNT);
    SC_REQUIRE(stats_out != NULL);
    struct subsystem_heap *sub = &subsystems[subsystem];
    sc_heap_stats stats = {0};
    stats.live_bytes = atomic_load_explicit(&sub->live_bytes, memory_order_relaxed);
    stats.live_count = atomic_load_explicit(&sub->live_count, memory_order_relaxed);
    stats.foreign_bytes = atomic_load_explicit(&sub->foreign_bytes, memory_order_relaxed);
#if !SC_PLAIN_MALLOC
    uint32_t arena = atomic_load_explicit(&sub->arena, memory_order_acquire);
    if (arena >= ARENA_BASE) {
        uint64_t epoch = 1;
        size_t bytes = sizeof epoch;
        (void)mallctl("epoch", &epoch, &bytes, &epoch, sizeof epoch);
        stats.has_arena = true;
        stats.allocated_bytes = arena_stat(arena, "small.allocated") +
            arena_stat(arena, "large.allocated");
        stats.resident_bytes = arena_stat(arena, "resident");
    }
#endif
    *stats_out = stats;
    return SC_OK;
}
