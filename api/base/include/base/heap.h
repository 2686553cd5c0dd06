/* SPDX-License-Identifier: Apache-2.0 */
/* A subsystem's heap: counts what is alive and serves from the caller's sc_allocator, else from a
 * jemalloc arena of the subsystem (weak symbols: only when the program links jemalloc), else from
 * malloc. Sanitizer builds always use malloc. The arena is shared by all heaps of one subsystem in
 * the process; `sc_heap_stats_get` reports it.
 *
 * Threads: a heap may be used from any thread; counters are relaxed atomics. */
#ifndef SC_BASE_HEAP_H
#define SC_BASE_HEAP_H

#include "statecache/status.h"

struct sc_heap {
    sc_allocator user; /* user.alloc == NULL: arena or malloc */
    enum sc_subsystem subsystem;
};

/* `user` may be NULL (default allocator); otherwise both functions must be set. Fails only with
 * SC_ERR_INVALID. Needs no deinit. */
sc_status sc_heap_init(struct sc_heap *heap, enum sc_subsystem subsystem, const sc_allocator *user);

/* NULL on failure (no error record is set; the caller reports SC_ERR_NO_MEMORY). bytes > 0
 * (asserted). Alignment: at least 16; `align` a power of two. Memory is not cleared. */
void *sc_heap_alloc(struct sc_heap *heap, size_t bytes, size_t align);
/* Cleared, 16-aligned array; both > 0 (asserted); checks count * item_bytes for overflow. */
void *sc_heap_calloc(struct sc_heap *heap, size_t count, size_t item_bytes);
/* Grows or shrinks a 16-aligned block; on failure returns NULL and the old block stays. `ptr` NULL
 * with old_bytes 0 allocates. */
void *sc_heap_realloc(struct sc_heap *heap, void *ptr, size_t old_bytes, size_t new_bytes);
/* `bytes` must be what was asked for. NULL is allowed. */
void sc_heap_free(struct sc_heap *heap, void *ptr, size_t bytes);

/* Freed memory that the allocator keeps goes back to the system, as far as it can: that of the
 * subsystem's arena. Nothing of a caller's allocator. */
void sc_heap_trim(struct sc_heap *heap);

/* Copies `bytes` of a buffer; NULL on failure. */
void *sc_heap_dup(struct sc_heap *heap, const void *src, size_t bytes);

#endif
