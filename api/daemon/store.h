/* SPDX-License-Identifier: Apache-2.0 */
/* The cache behind the service, and the memory of its states as files that clients can map.
 *
 * The pool's memory is one range of addresses, reserved and not taken. A state that a client has
 * written is a sealed memfd, mapped privately over its slot: it is not copied, the cache reads it
 * in place, and what the cache may write into the slot later, for another state, are private pages.
 * So a sealed file never changes, whoever maps it.
 *
 *   addresses   | null | slot 1 | slot 2 | slot 3 | ...      stride: whole memory pages
 *                          |        |        '-- anonymous: restored from a tier, or free
 *                          |        '-- image 2: sealed memfd, mapped privately
 *                          '-- image 1
 *
 * An image belongs to one allocation of its slot (id and generation). When the cache has evicted
 * the state the handle is stale; sd_store_sweep then closes the file and gives the slot fresh
 * pages.
 *
 * Invariants
 * (1) An image whose handle is not stale has the bytes of the state in that slot.
 * (2) The file of an image is sealed against writes, growth, shrinking and further seals.
 * (3) Only the loop's thread maps, and only while no transfer writes the slot: a slot of a lease
 *     that the service holds, or one that is free.
 * (4) After each lease that is taken a slot is free. A commit needs one for a moment, so it never
 *     fails for want of it: who wants to write is told "not now" before it has written.
 *
 * Threads: the loop's, except sd_image_copy, which a worker may run. */
#ifndef SC_DAEMON_STORE_H
#define SC_DAEMON_STORE_H

#include "config.h"
#include "statecache/cache.h"

struct sd_tenant;

struct sd_image {
    int fd;                   /* -1: none */
    sc_slot slot;
    struct sd_tenant *tenant; /* whose quota it counts in; NULL: nobody's */
    bool making;              /* a worker is writing a file for it */
};

/* Where a part lies in a slot. */
struct sd_range { uint64_t at, bytes; };

struct sd_namespace {
    uint64_t adapter_id, adapter_generation;
    sc_namespace ns;
};

struct sd_store {
    sc_schema *schema;
    sc_pool *pool;
    sc_tiers *tiers;
    sc_cache *cache;
    uint8_t *base;
    size_t memory_bytes;
    uint64_t stride;          /* bytes of a slot, and of a file */
    uint64_t state_bytes;      /* dense */
    uint32_t slot_count, grid, page_tokens;
    sc_fingerprint fingerprint;
    struct sd_range *parts;   /* [part_count] */
    uint32_t part_count;
    struct sd_image *images;  /* [slot_count + 1] */
    uint32_t image_count;
    bool dirty;               /* states may have gone since the last sweep */
    /* Drops a file elsewhere, since the last close of a state frees its memory, which takes
     * milliseconds; NULL: here */
    void (*let_go)(void *ctx, int fd, uint64_t bytes);
    void *let_go_ctx;
    struct sd_namespace *spaces;
    uint32_t space_count, space_max;
};

/* SC_ERR_...: `what_out` says which step failed; sc_fault_last says why. Nothing is left. */
sc_status sd_store_open(const struct sd_config *config, struct sd_store *store_out,
    const char **what_out);
/* Finishes what goes to the tiers. SC_ERR_BUSY while a lease is alive. */
sc_status sd_store_close(struct sd_store *store);
/* What the library said, as the thread's fault. */
sc_status sd_library(sc_status status);

/* Opens the namespace if need be. SC_ERR_AGAIN: there are `namespaces` already. */
sc_status sd_store_space(struct sd_store *store, uint64_t adapter_id, uint64_t generation,
    sc_namespace *ns_out);
/* SC_ERR_NOT_FOUND, SC_ERR_BUSY. */
sc_status sd_store_space_drop(struct sd_store *store, uint64_t adapter_id, uint64_t generation);

/* (4), after a lease was taken. SC_ERR_NO_SLOT: nothing can go; the lease must. */
sc_status sd_store_spare(struct sd_store *store);

/* The file of the state in this slot, which the caller holds; -1: there is none yet. Borrowed. */
int sd_store_file(const struct sd_store *store, uint32_t slot);
/* An empty file of `stride` bytes that cannot change its size. */
sc_status sd_store_stage(const struct sd_store *store, int *fd_out);
/* No byte of it will ever change. SC_ERR_BUSY: it is still mapped for writing. */
sc_status sd_file_seal(int fd);
/* A sealed file of the state in this slot, which somebody holds. Parts alone are copied: what lies
 * between them is left over from other states. Any thread. */
sc_status sd_image_copy(const struct sd_store *store, uint32_t slot, int *fd_out);
/* Puts a sealed file in the place of the slot's memory; the file is the store's from then on, and
 * whatever was there is closed. On error the file is the caller's and the slot as it was. */
sc_status sd_store_adopt(struct sd_store *store, uint32_t slot, int fd, struct sd_tenant *tenant);
/* The file is not needed any more; nor is its memory, whoever else has it open, unless it is
 * sealed. */
void sd_store_let_go(const struct sd_store *store, int fd);
/* The same, here and now; any thread. */
void sd_file_drop(int fd, uint64_t bytes);
/* Whether each image is of a slot that is allocated, and sealed; none is counted twice. */
sc_status sd_store_verify(const struct sd_store *store);
/* Forgets images whose state has gone. */
void sd_store_sweep(struct sd_store *store);
static inline uint8_t *sd_store_memory(const struct sd_store *store, uint32_t slot)
{
    return store->base + (size_t)slot * store->stride;
}

#endif
