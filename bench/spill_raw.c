/* SPDX-License-Identifier: Apache-2.0 */
/* Sequential transfers of the same size and depth as the store's, without a store. */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spill.h"

struct spill_raw {
    struct io_uring ring;
    int fd;
    uint32_t depth;
    bool uring, direct;
};

struct spill_raw *spill_raw_open(const char *path, uint64_t bytes, uint32_t depth)
{
    struct spill_raw *raw = bench_alloc(1, sizeof *raw);
    int flags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC;
    raw->depth = depth;
    raw->fd = open(path, flags | O_DIRECT, 0600);
    raw->direct = raw->fd >= 0;
    if (!raw->direct)
        raw->fd = open(path, flags, 0600);
    if (raw->fd < 0)
        bench_fail(BENCH_USAGE, "cannot make %s: %s", path, strerror(errno));
    int code = posix_fallocate(raw->fd, 0, (off_t)bytes);
    if (code)
        bench_fail(BENCH_USAGE, "no room for %s: %s", path, strerror(code));
    raw->uring = io_uring_queue_init(depth, &raw->ring, 0) == 0;
    return raw;
}

bool spill_raw_direct(const struct spill_raw *raw)
{
    return raw->direct;
}

bool spill_raw_uring(const struct spill_raw *raw)
{
    return raw->uring;
}

struct chunk { uint8_t *memory; uint32_t bytes; uint64_t offset; };

/* The chunk at `*at` of the pass; false past the end. */
static bool next_chunk(uint64_t *at, uint8_t *const *buffers, uint32_t count, uint64_t bytes,
    struct chunk *chunk)
{
    uint64_t state = *at / bytes, in_state = *at % bytes;
    if (state >= count)
        return false;
    uint64_t left = bytes - in_state;
    chunk->memory = buffers[state] + in_state;
    chunk->bytes = left < SPILL_CHUNK_BYTES ? (uint32_t)left : SPILL_CHUNK_BYTES;
    chunk->offset = *at;
    *at += chunk->bytes;
    return true;
}

static void moved(int64_t bytes, const struct chunk *chunk)
{
    if (bytes != (int64_t)chunk->bytes)
        bench_fail(BENCH_CHECK_FAILED, "a raw transfer of %u bytes moved %lld", chunk->bytes,
            (long long)bytes);
}

static void plain_pass(struct spill_raw *raw, bool write, uint8_t *const *buffers, uint32_t count,
    uint64_t bytes)
{
    struct chunk chunk;
    for (uint64_t at = 0; next_chunk(&at, buffers, count, bytes, &chunk);) {
        off_t offset = (off_t)chunk.offset;
        moved(write ? pwrite(raw->fd, chunk.memory, chunk.bytes, offset) :
            pread(raw->fd, chunk.memory, chunk.bytes, offset), &chunk);
    }
}

static void uring_pass(struct spill_raw *raw, bool write, uint8_t *const *buffers, uint32_t count,
    uint64_t bytes)
{
    struct chunk chunk;
    uint64_t at = 0;
    uint32_t out = 0;
    for (bool more = true; more || out > 0;) {
        while (more && out < raw->depth) {
            more = next_chunk(&at, buffers, count, bytes, &chunk);
            if (!more)
                break;
            struct io_uring_sqe *sqe = io_uring_get_sqe(&raw->ring);
            if (write)
                io_uring_prep_write(sqe, raw->fd, chunk.memory, chunk.bytes, chunk.offset);
            else
                io_uring_prep_read(sqe, raw->fd, chunk.memory, chunk.bytes, chunk.offset);
            io_uring_sqe_set_data64(sqe, chunk.bytes);
            out++;
        }
        if (out == 0)
            break;
        struct io_uring_cqe *cqe = NULL;
        io_uring_submit_and_wait(&raw->ring, 1);
        while (out > 0 && io_uring_peek_cqe(&raw->ring, &cqe) == 0 && cqe) {
            chunk.bytes = (uint32_t)io_uring_cqe_get_data64(cqe);
            moved(cqe->res, &chunk);
            io_uring_cqe_seen(&raw->ring, cqe);
            out--;
        }
    }
}

double spill_raw_pass(struct spill_raw *raw, bool write, uint8_t *const *buffers, uint32_t count,
    uint64_t bytes)
{
    double start = spill_now();
    if (raw->uring)
        uring_pass(raw, write, buffers, count, bytes);
    else
        plain_pass(raw, write, buffers, count, bytes);
    if (write && fdatasync(raw->fd) != 0)
        bench_fail(BENCH_CHECK_FAILED, "fdatasync: %s", strerror(errno));
    return spill_now() - start;
}

void spill_raw_close(struct spill_raw *raw)
{
    if (raw->uring)
        io_uring_queue_exit(&raw->ring);
    close(raw->fd);
    free(raw);
}
