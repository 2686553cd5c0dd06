/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a pool; for the files of this folder only, and for the test that breaks a pool on
 * purpose to see the audit notice. */
#ifndef SC_POOL_POOL_IMPL_H
#define SC_POOL_POOL_IMPL_H

#include "base/heap.h"
#include "base/lock.h"
#include "kernels/backend.h"
#include "statecache/pool.h"

enum { SC_PART_ALIGN = 256, SC_FOREIGN_ALIGN_MIN = 16, SC_FOREIGN_PARTS_MAX = 4096 };

/* Where one local part of slot s is: base + s * slot_stride. */
struct sc_pool_part {
    sc_part_local local;
    sc_part_kind kind;
    sc_devptr base; /* of the null slot; an offset until the memory is known */
    uint64_t slot_stride;
};

/* What follows from the options alone. */
struct sc_pool_layout {
    sc_shard shard; /* resolved */
    uint32_t part_count;
    uint32_t alignment;
    uint64_t slot_bytes;   /* parts at 256-byte starts */
    uint64_t slot_stride;  /* page-major: from slot to slot; contiguous: 0 */
    uint64_t state_bytes;  /* dense */
    uint64_t memory_bytes; /* null slot included */
};

/* The state of a pool; its invariants are in pool.c. */
struct sc_pool_slot {
    uint32_t generation;
    uint32_t next;
    uint32_t owner;
};

struct sc_pool {
    struct sc_heap heap;
    sc_schema *schema;
    sc_backend *backend;
    sc_layout layout_kind;
    uint32_t slot_count;
    struct sc_pool_layout layout;
    struct sc_pool_part *parts; /* layout.part_count */
    bool has_extra;
    struct sc_backend_memory own; /* base 0: foreign */
    sc_devptr base;
    void (*release)(void *ctx);
    void *release_ctx;

    struct sc_rwlock lock;
    bool held;
    struct sc_pool_slot *slots; /* slot_count + 1 */
    uint32_t free_head;
    uint32_t free_list_count;
    uint32_t fresh;
    uint32_t owner_count[SC_OWNER_COUNT];
};

/* layout.c. What the caller's version of the struct has, and defaults. SC_ERR_INVALID. */
sc_status sc_pool_options_resolve(const sc_pool_options *given, sc_pool_options *options);
/* Of resolved options; checks everything but the struct pointers' validity. `foreign` false ignores
 * it. */
sc_status sc_pool_layout_measure(const sc_pool_options *options, bool foreign,
    struct sc_pool_layout *layout_out);
/* Fills part_count entries for own memory or one foreign range that starts at `base`. */
void sc_pool_layout_place(const sc_pool_options *options, const struct sc_pool_layout *layout,
    sc_devptr base, struct sc_pool_part *parts);
/* Foreign memory given part by part: checks, then fills; lowers layout->alignment. */
sc_status sc_pool_layout_place_foreign_parts(const sc_pool_options *options,
    struct sc_pool_layout *layout, struct sc_pool_part *parts);

#endif
