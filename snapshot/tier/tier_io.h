/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads to and from extent files, in whole 4 KiB blocks.
 *
 *   payload   |<---------------- bytes ---------------->|
 *   blocks    |  4 KiB  |  4 KiB  |  4 KiB  |  4 KiB  000|   the rest of the last one: zeros
 *   segments  |---- file 0 -------|----- file 3 ---------|
 *   chunks    |-- 1 MiB at most --|--|-- ...             |   what one system call moves
 *
 * (1) Every transfer starts and ends at a block, also without O_DIRECT, so that a store may be
 *     opened either way. A chunk goes through aligned staging memory when its part of the payload
 *     is not aligned (O_DIRECT) or ends inside a block; else no byte is copied.
 * (2) A call returns only after all of its chunks have completed, also when one failed: the kernel
 *     never touches a payload after the call.
 * (3) The payload's check is computed in its order, a chunk at a time, while others are on their
 *     way (io_uring).
 * (4) What is read of the last block beyond the payload must be zero: a flipped byte there is
 *     damage as anywhere else.
 *
 * Threads: any number of transfers at once; each takes a context (ring and staging memory), which
 * is kept for the next one. */
#ifndef SC_TIER_TIER_IO_H
#define SC_TIER_TIER_IO_H

#include "base/heap.h"
#include "base/lock.h"
#include "tier/disk_store.h"
#include "tier/faults.h"

enum { TIER_BLOCK = 4096, TIER_IO_DEPTH = 16 };

/* XXH3-128 of bytes that come piece by piece. */
struct tier_check { _Alignas(64) uint8_t state[640]; };
void tier_check_begin(struct tier_check *check);
void tier_check_add(struct tier_check *check, const void *bytes, uint64_t count);
struct sc_store_hash tier_check_end(struct tier_check *check);

struct tier_seg {
    int fd;
    uint64_t offset; /* both are multiples of TIER_BLOCK */
    uint64_t bytes;
};

struct tier_io_context;

struct tier_io {
    struct sc_heap *heap;
    const struct sc_tier_faults *faults;
    struct sc_mutex lock; /* of `idle` */
    struct tier_io_context *idle;
    uint32_t chunk_bytes;
    bool uring, direct;
};

/* One piece on its way. */
struct tier_chunk {
    int fd;
    bool bounce;
    uint64_t offset, bytes;      /* in the file */
    uint64_t payload_at, payload_bytes;
    uint8_t *memory;             /* what the system call gets */
};

/* Walks a payload chunk by chunk. */
struct tier_walk {
    const struct tier_seg *segs;
    uint32_t seg_count, seg;
    uint64_t seg_at, at, bytes;  /* `at`: of the payload; `bytes`: of it */
    uint8_t *payload;
    uint32_t chunk_bytes;
    bool direct, write;
    uint64_t checked;            /* bytes of the payload that are in `check` */
    struct tier_check check;
};

struct tier_io_context {
    struct tier_io_context *next;
    uint8_t *staging; /* TIER_IO_DEPTH * chunk_bytes */
    void *ring;       /* struct io_uring, or NULL */
};

/* `folder` is where the files will be: whether O_DIRECT and io_uring work is tried out there.
 * SC_ERR_UNSUPPORTED when one was asked for and does not; SC_ERR_NO_MEMORY. */
sc_status tier_io_init(struct tier_io *io, const struct sc_store_options *options,
    const char *folder, struct sc_heap *heap);
void tier_io_deinit(struct tier_io *io);

/* Opens an extent file of `bytes`, creating and preallocating it when `create`; both only name it
 * after it has its size and is on disk. SC_ERR_IO, SC_ERR_LIMIT (ENOSPC, EDQUOT, EFBIG). */
sc_status tier_io_open_file(struct tier_io *io, const char *path, bool create, uint64_t bytes,
    int *fd_out);
/* The segments add up to `bytes` rounded up to whole blocks. `*check_out`: the check of the payload
 * as it was written or read. SC_ERR_IO, SC_ERR_LIMIT, SC_ERR_CORRUPT (reads: file too short,
 * padding not zero), SC_ERR_NO_MEMORY. */
sc_status tier_io_write(struct tier_io *io, const struct tier_seg *segs, uint32_t count,
    const void *payload, uint64_t bytes, struct sc_store_hash *check_out);
sc_status tier_io_read(struct tier_io *io, const struct tier_seg *segs, uint32_t count,
    void *payload, uint64_t bytes, struct sc_store_hash *check_out);
sc_status tier_io_sync(struct tier_io *io, int fd);
/* A folder's names are on disk. */
sc_status tier_io_sync_folder(struct tier_io *io, const char *path);

sc_status tier_io_fail(int code, const char *what);

/* ---- between tier_io.c and tier_uring.c ---- */

bool tier_walk_next(struct tier_walk *walk, struct tier_chunk *chunk_out);
void tier_chunk_fill(const struct tier_walk *walk, struct tier_chunk *chunk, uint8_t *staging);
sc_status tier_chunk_take(const struct tier_walk *walk, const struct tier_chunk *chunk);
/* Checks on until `until` of the payload, a chunk at most; false when nothing was left to do. */
bool tier_walk_check(struct tier_walk *walk, uint64_t until);
/* Plain pread or pwrite of the whole chunk from `done` on. */
sc_status tier_chunk_plain(const struct tier_io *io, const struct tier_chunk *chunk, bool write,
    uint64_t done);
/* False when the kernel has no io_uring for us. */
bool tier_uring_works(void);
/* SC_ERR_NO_MEMORY, SC_ERR_IO: the caller goes on without a ring. */
sc_status tier_uring_open(struct tier_io_context *context, struct sc_heap *heap);
void tier_uring_close(struct tier_io_context *context, struct sc_heap *heap);
sc_status tier_uring_move(struct tier_io *io, struct tier_io_context *context,
    struct tier_walk *walk);

#endif
