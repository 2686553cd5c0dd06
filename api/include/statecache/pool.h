/* SPDX-License-Identifier: Apache-2.0 */
/** A fixed number of slots for recurrent states in one memory.
 *
 * A slot has room for one state. A handle is id + generation; the generation changes whenever a
 * slot is freed, so that a stale handle is refused. Slot 0 is the null slot: it reads as zeros, is
 * never handed out and never written. In index arrays for kernels, -1 means "no row".
 *
 *   page-major   [slot][part]         one state is one piece of memory
 *   contiguous   [part][slot]         one array for each part, as engines have today
 *
 * Both are read the same way: part base + slot id * slot stride, 64-bit.
 *
 * Threads: creation and destruction are exclusive; everything else may be called from any thread
 * (one internal lock, held for the time of the bookkeeping only). The cache that a pool is given to
 * is then its only allocator: until it is destroyed, sc_pool_alloc, sc_pool_free, sc_pool_set_owner
 * and sc_pool_destroy answer SC_ERR_BUSY and change nothing. */
#ifndef STATECACHE_POOL_H
#define STATECACHE_POOL_H

#include "statecache/schema.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sc_backend sc_backend; /* statecache/kernels.h */
typedef struct sc_pool sc_pool;

typedef struct sc_slot {
    uint32_t id;         /* 0 is the null slot */
    uint32_t generation; /* 0 for the null slot, else odd while allocated */
} sc_slot;
#ifdef __cplusplus
#define SC_SLOT_NULL (sc_slot{0, 0})
#else
#define SC_SLOT_NULL ((sc_slot){0, 0})
#endif

typedef enum sc_layout { SC_LAYOUT_PAGE_MAJOR = 1, SC_LAYOUT_CONTIGUOUS = 2 } sc_layout;

/** What a slot is used for; every slot is in exactly one. */
typedef enum sc_owner {
    SC_OWNER_FREE = 0,
    SC_OWNER_WORKING = 1,  /* the state of a running request */
    SC_OWNER_SNAPSHOT = 2, /* an immutable saved state */
    SC_OWNER_IN_FLIGHT = 3,/* destination of a save whose step has not been committed */
    SC_OWNER_DRAINING = 4, /* given up, but a step in flight still names it */
    SC_OWNER_COUNT = 5
} sc_owner;

/** One part of foreign memory: element 0 of slot `s` is at `base + s * slot_stride`. */
typedef struct sc_foreign_part {
    sc_devptr base;       /* of slot 0, the null slot: 16-byte aligned */
    uint64_t bytes;       /* from base on: all slot_count + 1 slots */
    uint64_t slot_stride; /* a multiple of 16, not below the part */
} sc_foreign_part;

/** Memory of the caller: one range or, for an engine that has its own tensors, part by part.
 *
 * The pool never frees it. `release(ctx)` is called exactly once, by sc_pool_destroy after the last
 * use; when creation fails it is not called and the memory stays the caller's. The bytes of slot 0
 * are cleared at creation; bytes outside of parts (gaps of a stride) are never touched.
 *
 * Alignment: all bases and strides are multiples of 16, else SC_ERR_MISMATCH; the pool's
 * `alignment` is the largest power of two up to 256 that divides all of them. Kernel rows that need
 * more than that are not eligible. */
typedef struct sc_foreign_memory {
    sc_devptr base;
    uint64_t bytes;
    uint64_t slot_stride; /* page-major: bytes from slot to slot, 0: computed; contiguous: 0 */
    void (*release)(void *ctx); /* may be NULL */
    void *ctx;
    /** Not NULL: the local parts in schema order, as many as the shard holds (at most 4,096); then
     * base, bytes and slot_stride above are 0 and the layout is contiguous. Parts may lie
     * interleaved with one common stride, otherwise their ranges must be disjoint. */
    const sc_foreign_part *parts;
    uint32_t part_count;
} sc_foreign_memory;

typedef struct sc_pool_options {
    size_t struct_size;
    const sc_schema *schema; /* not NULL; the pool takes a reference */
    sc_shard shard;
    sc_layout layout;
    uint32_t slot_count;     /* usable slots, without the null slot; 1 .. 2^31 - 2 */
    sc_backend *backend;     /* NULL: host */
    const sc_foreign_memory *foreign; /* NULL: own memory, huge pages where the kernel gives them */
    const sc_allocator *allocator;    /* bookkeeping; NULL: default */
} sc_pool_options;
#define SC_POOL_OPTIONS_INIT                                                                       \
    {sizeof(sc_pool_options), NULL, {0, 0, 0, 0, 0, 0}, SC_LAYOUT_PAGE_MAJOR, 0, NULL, NULL, NULL}

/** Bytes that a pool with these options takes (null slot and alignment included). `foreign` is
 * ignored. Errors: SC_ERR_INVALID, SC_ERR_OVERFLOW. */
SC_API sc_status sc_pool_memory_bytes(const sc_pool_options *options, uint64_t *bytes_out);

/** `struct_size` may be that of an older version of the struct: members beyond it have their
 * defaults. Errors: SC_ERR_INVALID, SC_ERR_OVERFLOW, SC_ERR_NO_MEMORY, SC_ERR_MISMATCH (foreign
 * memory too small, misaligned, overlapping or with a stride below one slot), SC_ERR_LIMIT. Nothing
 * is left behind on error. Cost: O(parts); slots are not touched, so a sparse pool costs what is
 * used. */
SC_API sc_status sc_pool_create(const sc_pool_options *options, sc_pool **pool_out);
/** SC_ERR_BUSY, changing nothing, while a slot is allocated or a cache uses the pool. NULL is
 * allowed. */
SC_API sc_status sc_pool_destroy(sc_pool *pool);

/** All or nothing. Every control word of an allocated slot (parts of kind EXTRA) is reset to zero.
 * The other contents of a slot are not cleared (a row without a snapshot has the null slot as its
 * source); debug builds fill them with NaN.
 * Errors: SC_ERR_INVALID (count 0, owner FREE), SC_ERR_NO_SLOT, SC_ERR_BUSY (a cache uses the
 * pool), what the backend reports: nothing was taken. Cost: O(count), never allocates; a wait for
 * the device where something is cleared. */
SC_API sc_status sc_pool_alloc(sc_pool *pool, uint32_t count, sc_owner owner, sc_slot *slots_out);
/** All or nothing: SC_ERR_STALE if any handle is stale, null, or named twice; then nothing is
 * freed. SC_ERR_INVALID (count 0), SC_ERR_BUSY (a cache uses the pool). Cost: O(count), never
 * allocates. */
SC_API sc_status sc_pool_free(sc_pool *pool, const sc_slot *slots, uint32_t count);
/** Changes the owner tag. SC_ERR_STALE, SC_ERR_INVALID, SC_ERR_BUSY (a cache uses the pool). */
SC_API sc_status sc_pool_set_owner(sc_pool *pool, sc_slot slot, sc_owner owner);
/** The handle of the slot with this id, as it is allocated now: from an id of a block or a lease to
 * something that tells when the slot has become another's. SC_ERR_STALE (free, null, beyond the
 * pool), SC_ERR_INVALID. Threads: any. */
SC_API sc_status sc_pool_slot(const sc_pool *pool, uint32_t id, sc_slot *slot_out);
/** SC_OK if the handle names an allocated slot (owner in `*owner_out` if not NULL), else
 * SC_ERR_STALE. */
SC_API sc_status sc_pool_check(const sc_pool *pool, sc_slot slot, sc_owner *owner_out);

typedef struct sc_pool_info {
    sc_layout layout;
    uint32_t slot_count; /* usable */
    uint32_t part_count; /* local parts of the shard */
    uint32_t free_count;
    uint32_t owner_count[SC_OWNER_COUNT];
    uint64_t slot_bytes;   /* of one slot with its parts at 256-byte starts, as in own memory; what
                            * foreign memory leaves between slots and parts is not in it */
    uint64_t state_bytes;  /* dense */
    uint64_t memory_bytes; /* null slot included. Given part by part: the sum of the parts' `bytes`,
                            * in which memory that interleaved parts share counts once for each */
    uint64_t huge_bytes;   /* of own memory, advised as huge pages */
    sc_devptr base;        /* of the memory; of part 0 when it was given part by part */
    uint32_t alignment;    /* of every part of every slot: 256, or less over foreign memory */
    sc_shard shard;        /* defaults filled in: equal shards are equal field by field */
} sc_pool_info;
SC_API sc_status sc_pool_info_get(const sc_pool *pool, sc_pool_info *info_out);

/** Borrowed; lives as long as the pool. */
SC_API sc_status sc_pool_schema(const sc_pool *pool, const sc_schema **schema_out);
SC_API sc_status sc_pool_backend(const sc_pool *pool, sc_backend **backend_out);

/** One part of every slot: element 0 of slot `s` is at `base + s * slot_stride`. */
typedef struct sc_layer_view {
    sc_devptr base;       /* of slot 0, the null slot */
    int64_t slot_stride;  /* bytes */
    sc_dtype dtype;
    uint32_t dim_count;
    uint32_t dims[SC_DIMS_MAX];
    uint64_t bytes;       /* of one slot's part, dense */
    uint32_t alignment;
} sc_layer_view;

/** The part of `kind` and `index` of global layer `layer`. SC_ERR_NOT_FOUND when the shard has
 * none; the error text names the layer. */
SC_API sc_status sc_pool_layer_view(const sc_pool *pool, uint32_t layer, sc_part_kind kind,
    uint32_t index, sc_layer_view *view_out);
/** The same by local part number, 0 .. part_count - 1. */
SC_API sc_status sc_pool_part_view(const sc_pool *pool, uint32_t part, sc_layer_view *view_out,
    sc_part *part_out);

/** Accounts for every slot: owners' counts add up to the size, the free list holds each free slot
 * once, the null slot is zero (`check_null`: reads it all). SC_ERR_CORRUPT with text otherwise. */
SC_API sc_status sc_pool_audit(const sc_pool *pool, bool check_null);

#ifdef __cplusplus
}
#endif
#endif
