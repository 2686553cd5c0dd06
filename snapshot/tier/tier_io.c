/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers by pread and pwrite, and what they share with io_uring; tier_io.h has the rules. */
#include "tier_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/sc_assert.h"

enum { CHUNK_BYTES = 1 << 20 };

sc_status tier_io_fail(int code, const char *what)
{
    bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
    if (code == ENOMEM) return SC_FAIL_SYS(SC_ERR_NO_MEMORY, code, "%s: no memory", what);
    return SC_FAIL_SYS(full ? SC_ERR_LIMIT : SC_ERR_IO, code, "%s: %s", what, strerror(code));
}

/* ---- contexts ---- */

static sc_status context_create(struct tier_io *io, struct tier_io_context **context_out)
{
    struct tier_io_context *context = sc_heap_calloc(io->heap, 1, sizeof *context);
    if (!context) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a transfer");
    context->staging = sc_heap_alloc(io->heap, (size_t)TIER_IO_DEPTH * io->chunk_bytes, TIER_BLOCK);
    if (!context->staging) {
        sc_heap_free(io->heap, context, sizeof *context);
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to stage a transfer");
    }
    /* Rings are a limited resource of the system (locked memory): without one it is plain I/O. */
    if (io->uring && tier_uring_open(context, io->heap) != SC_OK) context->ring = NULL;
    *context_out = context;
    return SC_OK;
}

static void context_destroy(struct tier_io *io, struct tier_io_context *context)
{
    tier_uring_close(context, io->heap);
    sc_heap_free(io->heap, context->staging, (size_t)TIER_IO_DEPTH * io->chunk_bytes);
    sc_heap_free(io->heap, context, sizeof *context);
}

static sc_status context_get(struct tier_io *io, struct tier_io_context **context_out)
{
    sc_mutex_lock(&io->lock);
    struct tier_io_context *context = io->idle;
    if (context) io->idle = context->next;
    sc_mutex_unlock(&io->lock);
    *context_out = context;
    return context ? SC_OK : context_create(io, context_out);
}

static void context_put(struct tier_io *io, struct tier_io_context *context)
{
    sc_mutex_lock(&io->lock);
    context->next = io->idle;
    io->idle = context;
    sc_mutex_unlock(&io->lock);
}

/* ---- opening ---- */

/* Some file systems take the flag and refuse the transfer: try both. */
static bool direct_works(const char *folder, uint8_t *block)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    memset(block, 0, TIER_BLOCK);
    bool works = pwrite(fd, block, TIER_BLOCK, 0) == TIER_BLOCK &&
        pread(fd, block, TIER_BLOCK, 0) == TIER_BLOCK;
    (void)close(fd);
    return works;
}

static sc_status choose(struct tier_io *io, const struct sc_store_options *options,
    const char *folder, uint8_t *block)
{
    io->direct = options->direct != SC_STORE_OFF && direct_works(folder, block);
    io->uring = options->uring != SC_STORE_OFF && tier_uring_works();
    if (options->direct == SC_STORE_ON && !io->direct) {
        return SC_FAIL(SC_ERR_UNSUPPORTED, "the file system of %.100s does not take O_DIRECT",
            folder);
    }
    if (options->uring == SC_STORE_ON && !io->uring) {
        return SC_FAIL(SC_ERR_UNSUPPORTED, "the kernel offers no io_uring to this process");
    }
    return SC_OK;
}

sc_status tier_io_init(struct tier_io *io, const struct sc_store_options *options,
    const char *folder, struct sc_heap *heap)
{
    memset(io, 0, sizeof *io);
    io->heap = heap;
    io->faults = options->faults;
    io->chunk_bytes = options->chunk_bytes ? options->chunk_bytes : CHUNK_BYTES;
    SC_TRY(sc_mutex_init(&io->lock, SC_RANK_TIER_IO));
    struct tier_io_context *context = NULL;
    sc_status status = context_create(io, &context);
    if (status == SC_OK) {
        status = choose(io, options, folder, context->staging);
        context_destroy(io, context);
    }
    if (status != SC_OK) sc_mutex_deinit(&io->lock);
    return status;
}

void tier_io_deinit(struct tier_io *io)
{
    while (io->idle) {
        struct tier_io_context *context = io->idle;
        io->idle = context->next;
        context_destroy(io, context);
    }
    sc_mutex_deinit(&io->lock);
}

/* ---- files ---- */

static sc_status give_size(struct tier_io *io, int fd, uint64_t bytes)
{
    int code = sc_tier_fault(io->faults, "fallocate");
    if (code == 0 && fallocate(fd, 0, 0, (off_t)bytes) != 0) code = errno;
    if (code == EOPNOTSUPP || code == ENOSYS) { /* sparse, then: a write may find the disk full */
        code = ftruncate(fd, (off_t)bytes) == 0 ? 0 : errno;
    }
    return code ? tier_io_fail(code, "preallocating an extent file") : SC_OK;
}

sc_status tier_io_open_file(struct tier_io *io, const char *path, bool create, uint64_t bytes,
    int *fd_out)
{
    struct stat stat_now;
    int flags = O_RDWR | O_CLOEXEC | (io->direct ? O_DIRECT : 0) | (create ? O_CREAT : 0);
    int code = sc_tier_fault(io->faults, "open");
    int fd = code ? -1 : open(path, flags, 0600);
    if (fd < 0) return tier_io_fail(code ? code : errno, "opening an extent file");
    sc_status status = SC_OK;
    if (fstat(fd, &stat_now) != 0) status = tier_io_fail(errno, "size of an extent file");
    if (status == SC_OK && create && (uint64_t)stat_now.st_size < bytes) {
        status = give_size(io, fd, bytes);
        if (status == SC_OK) status = tier_io_sync(io, fd);
        if (status != SC_OK && stat_now.st_size == 0) (void)unlink(path);
    }
    if (status != SC_OK) {
        (void)close(fd);
        return status;
    }
    *fd_out = fd;
    return SC_OK;
}

sc_status tier_io_sync(struct tier_io *io, int fd)
{
    int code = sc_tier_fault(io->faults, "fdatasync");
    if (code == 0 && fdatasync(fd) != 0) code = errno;
    return code ? tier_io_fail(code, "fdatasync of an extent file") : SC_OK;
}

sc_status tier_io_sync_folder(struct tier_io *io, const char *path)
{
    int code = sc_tier_fault(io->faults, "fsync folder");
    int fd = code ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && fsync(fd) != 0) code = errno;
    if (fd < 0 && code == 0) code = errno;
    if (fd >= 0) (void)close(fd);
    return code ? tier_io_fail(code, "fsync of the store's folder") : SC_OK;
}

/* ---- chunks ---- */

bool tier_walk_next(struct tier_walk *walk, struct tier_chunk *chunk_out)
{
    if (walk->at >= walk->bytes) return false;
    SC_ASSERT(walk->seg < walk->seg_count);
    const struct tier_seg *seg = &walk->segs[walk->seg];
    uint64_t left = walk->bytes - walk->at;
    uint64_t padded = (left + TIER_BLOCK - 1) / TIER_BLOCK * TIER_BLOCK;
    uint64_t bytes = walk->chunk_bytes;
    if (bytes > seg->bytes - walk->seg_at) bytes = seg->bytes - walk->seg_at;
    if (bytes > padded) bytes = padded;
    SC_ASSERT(bytes > 0 && bytes % TIER_BLOCK == 0);
    chunk_out->fd = seg->fd;
    chunk_out->offset = seg->offset + walk->seg_at;
    chunk_out->bytes = bytes;
    chunk_out->payload_at = walk->at;
    chunk_out->payload_bytes = bytes < left ? bytes : left;
    chunk_out->bounce = chunk_out->payload_bytes < bytes ||
        (walk->direct && (uintptr_t)(walk->payload + walk->at) % TIER_BLOCK != 0);
    walk->at += chunk_out->payload_bytes;
    walk->seg_at += bytes;
    if (walk->seg_at == seg->bytes) {
        walk->seg++;
        walk->seg_at = 0;
    }
    return true;
}

void tier_chunk_fill(const struct tier_walk *walk, struct tier_chunk *chunk, uint8_t *staging)
{
    chunk->memory = chunk->bounce ? staging : walk->payload + chunk->payload_at;
    if (!walk->write || !chunk->bounce) return;
    memcpy(staging, walk->payload + chunk->payload_at, (size_t)chunk->payload_bytes);
    memset(staging + chunk->payload_bytes, 0, (size_t)(chunk->bytes - chunk->payload_bytes));
}

sc_status tier_chunk_take(const struct tier_walk *walk, const struct tier_chunk *chunk)
{
    if (walk->write || !chunk->bounce) return SC_OK;
    memcpy(walk->payload + chunk->payload_at, chunk->memory, (size_t)chunk->payload_bytes);
    for (uint64_t i = chunk->payload_bytes; i < chunk->bytes; i++) {
        if (chunk->memory[i] != 0) {
            return SC_FAIL(SC_ERR_CORRUPT, "a byte behind the payload is not zero");
        }
    }
    return SC_OK;
}

bool tier_walk_check(struct tier_walk *walk, uint64_t until)
{
    uint64_t bytes = until - walk->checked;
    SC_ASSERT(until >= walk->checked);
    if (bytes == 0) return false;
    if (bytes > walk->chunk_bytes) bytes = walk->chunk_bytes;
    tier_check_add(&walk->check, walk->payload + walk->checked, bytes);
    walk->checked += bytes;
    return true;
}

sc_status tier_chunk_plain(const struct tier_io *io, const struct tier_chunk *chunk, bool write,
    uint64_t done)
{
    while (done < chunk->bytes) {
        size_t bytes = (size_t)(chunk->bytes - done);
        int code = sc_tier_fault(io->faults, write ? "pwrite" : "pread");
        if (code == SC_TIER_FAULT_SHORT) {
            code = 0;
            if (bytes > TIER_BLOCK) bytes = bytes / 2 / TIER_BLOCK * TIER_BLOCK;
        }
        if (code) return tier_io_fail(code, write ? "writing a payload" : "reading a payload");
        uint8_t *memory = chunk->memory + done;
        off_t at = (off_t)(chunk->offset + done);
        ssize_t moved = write ? pwrite(chunk->fd, memory, bytes, at) :
            pread(chunk->fd, memory, bytes, at);
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0) return tier_io_fail(errno, write ? "writing a payload" :
            "reading a payload");
        /* What O_DIRECT moved short of a block is moved again. */
        uint64_t step = (uint64_t)moved;
        if (io->direct) step = step / TIER_BLOCK * TIER_BLOCK;
        if (step == 0 && write) return tier_io_fail(ENOSPC, "writing a payload");
        if (step == 0) {
            return SC_FAIL(SC_ERR_CORRUPT, "the extent file is cut at %llu",
                (unsigned long long)at);
        }
        done += step;
    }
    return SC_OK;
}

static sc_status plain_move(struct tier_io *io, struct tier_io_context *context,
    struct tier_walk *walk)
{
    struct tier_chunk chunk;
    while (tier_walk_next(walk, &chunk)) {
        tier_chunk_fill(walk, &chunk, context->staging);
        SC_TRY(tier_chunk_plain(io, &chunk, walk->write, 0));
        SC_TRY(tier_chunk_take(walk, &chunk));
        (void)tier_walk_check(walk, walk->at);
    }
    return SC_OK;
}

static sc_status move(struct tier_io *io, struct tier_walk *walk, struct sc_store_hash *check_out)
{
    struct tier_io_context *context = NULL;
    SC_TRY(context_get(io, &context));
    walk->chunk_bytes = io->chunk_bytes;
    walk->direct = io->direct;
    tier_check_begin(&walk->check);
    sc_status status = context->ring ? tier_uring_move(io, context, walk) :
        plain_move(io, context, walk);
    context_put(io, context);
    if (status != SC_OK) return status;
    SC_ASSERT(walk->checked == walk->bytes);
    *check_out = tier_check_end(&walk->check);
    return SC_OK;
}

sc_status tier_io_write(struct tier_io *io, const struct tier_seg *segs, uint32_t count,
    const void *payload, uint64_t bytes, struct sc_store_hash *check_out)
{
    /* Only read from: walk.write. */
    struct tier_walk walk = {.segs = segs, .seg_count = count, .bytes = bytes,
        .payload = (uint8_t *)(uintptr_t)payload, .write = true};
    return move(io, &walk, check_out);
}

sc_status tier_io_read(struct tier_io *io, const struct tier_seg *segs, uint32_t count,
    void *payload, uint64_t bytes, struct sc_store_hash *check_out)
{
    struct tier_walk walk = {.segs = segs, .seg_count = count, .bytes = bytes,
        .payload = payload};
    return move(io, &walk, check_out);
}
