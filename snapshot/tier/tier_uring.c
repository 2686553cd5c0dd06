/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers through io_uring: up to TIER_IO_DEPTH chunks at once.
 *
 * A chunk that comes back short or that the kernel asks to repeat is finished by plain calls, which
 * know how to go on. When one fails, no new chunk is sent and those on their way are waited for
 * (rule 2 of tier_io.h). If the ring itself fails, waiting is all that is left: that loop ends,
 * since every request that was submitted completes. */
#include <errno.h>
#include <liburing.h>
#include <string.h>

#include "base/error.h"
#include "base/sc_assert.h"
#include "tier_io.h"

bool tier_uring_works(void)
{
    struct io_uring ring;
    if (io_uring_queue_init(TIER_IO_DEPTH, &ring, 0) != 0) return false;
    struct io_uring_probe *probe = io_uring_get_probe_ring(&ring);
    bool works = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
        io_uring_opcode_supported(probe, IORING_OP_WRITE);
    if (probe) io_uring_free_probe(probe);
    io_uring_queue_exit(&ring);
    return works;
}

sc_status tier_uring_open(struct tier_io_context *context, struct sc_heap *heap)
{
    struct io_uring *ring = sc_heap_calloc(heap, 1, sizeof *ring);
    if (!ring) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a ring");
    int rc = io_uring_queue_init(TIER_IO_DEPTH, ring, 0);
    if (rc != 0) {
        sc_heap_free(heap, ring, sizeof *ring);
        return tier_io_fail(-rc, "opening an io_uring");
    }
    context->ring = ring;
    return SC_OK;
}

void tier_uring_close(struct tier_io_context *context, struct sc_heap *heap)
{
    struct io_uring *ring = context->ring;
    if (!ring) return;
    io_uring_queue_exit(ring);
    sc_heap_free(heap, ring, sizeof *ring);
    context->ring = NULL;
}

enum { WINDOW_MAX = 64 }; /* chunks between the oldest on its way and the newest */

struct flight {
    struct tier_chunk chunks[TIER_IO_DEPTH];
    uint64_t numbers[TIER_IO_DEPTH]; /* in the order of the payload */
    uint32_t idle[TIER_IO_DEPTH];    /* a stack of places */
    uint32_t idle_count, out_count;
    uint64_t sent, first;            /* chunks; the oldest that has not moved yet */
    uint64_t moved;                  /* a bit each for those from `first` on */
    uint64_t ends[WINDOW_MAX];       /* in the payload, by number */
    uint64_t until;                  /* of the payload: all before it has moved */
    sc_status status; /* of the first chunk that failed */
    struct sc_error_info error;
};

static void note(struct flight *flight, sc_status status)
{
    if (status == SC_OK || flight->status != SC_OK) return;
    flight->status = status;
    flight->error = *sc_last_error();
}

static void note_moved(struct flight *flight, uint64_t number)
{
    flight->moved |= UINT64_C(1) << (number - flight->first);
    while (flight->moved & 1) {
        flight->until = flight->ends[flight->first % WINDOW_MAX];
        flight->moved >>= 1;
        flight->first++;
    }
}

static void finish_plain(struct tier_io *io, struct tier_walk *walk, struct flight *flight,
    uint32_t at, uint64_t done)
{
    struct tier_chunk *chunk = &flight->chunks[at];
    sc_status status = SC_OK;
    if (done < chunk->bytes) status = tier_chunk_plain(io, chunk, walk->write, done);
    if (status == SC_OK) status = tier_chunk_take(walk, chunk);
    note(flight, status);
    if (status == SC_OK) note_moved(flight, flight->numbers[at]);
}

/* Puts the next chunk in the queue; false when there is none. */
static bool send_one(struct tier_io *io, struct tier_io_context *context, struct tier_walk *walk,
    struct flight *flight)
{
    uint32_t at = flight->idle[flight->idle_count - 1];
    struct tier_chunk *chunk = &flight->chunks[at];
    if (!tier_walk_next(walk, chunk)) return false;
    tier_chunk_fill(walk, chunk, context->staging + (size_t)at * io->chunk_bytes);
    flight->numbers[at] = flight->sent;
    flight->ends[flight->sent++ % WINDOW_MAX] = walk->at;
    int code = sc_tier_fault(io->faults, walk->write ? "uring write" : "uring read");
    if (code == SC_TIER_FAULT_SHORT) {
        finish_plain(io, walk, flight, at, 0);
        return true;
    }
    if (code != 0) {
        note(flight, tier_io_fail(code, walk->write ? "writing a payload" : "reading a payload"));
        return true;
    }
    struct io_uring_sqe *sqe = io_uring_get_sqe(context->ring);
    SC_ASSERT(sqe != NULL); /* as many entries as places */
    if (walk->write) {
        io_uring_prep_write(sqe, chunk->fd, chunk->memory, (unsigned)chunk->bytes, chunk->offset);
    } else {
        io_uring_prep_read(sqe, chunk->fd, chunk->memory, (unsigned)chunk->bytes, chunk->offset);
    }
    io_uring_sqe_set_data64(sqe, at);
    flight->idle_count--;
    flight->out_count++;
    return true;
}

static void take_one(struct tier_io *io, struct tier_walk *walk, struct flight *flight,
    uint64_t at, int moved)
{
    SC_ASSERT(at < TIER_IO_DEPTH && flight->out_count > 0);
    flight->idle[flight->idle_count++] = (uint32_t)at;
    flight->out_count--;
    if (moved == -EINTR || moved == -EAGAIN) moved = 0;
    if (moved < 0) {
        note(flight, tier_io_fail(-moved, walk->write ? "writing a payload" :
            "reading a payload"));
        return;
    }
    finish_plain(io, walk, flight, (uint32_t)at, (uint64_t)moved / TIER_BLOCK * TIER_BLOCK);
}

/* Takes what has come back; waits for `wait` of them when there is nothing else to do. */
static void take(struct tier_io *io, struct tier_io_context *context, struct tier_walk *walk,
    struct flight *flight, uint32_t wait)
{
    struct io_uring_cqe *cqe = NULL;
    int rc = wait ? io_uring_submit_and_wait(context->ring, wait) : io_uring_submit(context->ring);
    if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY) {
        note(flight, tier_io_fail(-rc, "submitting to an io_uring"));
    }
    while (flight->out_count > 0 && io_uring_peek_cqe(context->ring, &cqe) == 0 && cqe) {
        uint64_t at = io_uring_cqe_get_data64(cqe);
        int moved = cqe->res;
        io_uring_cqe_seen(context->ring, cqe);
        take_one(io, walk, flight, at, moved);
    }
}

/* Several at a time: each wait may cost a turn on a busy processor, and the others keep the device
 * busy meanwhile. The end of a write has nothing to do but to wait for all. */
static uint32_t wait_count(const struct flight *flight, bool write, bool more)
{
    return write && !more ? flight->out_count : (flight->out_count + 3) / 4;
}

sc_status tier_uring_move(
    struct tier_io *io, struct tier_io_context *context, struct tier_walk *walk)
{
    struct flight flight;
    memset(&flight, 0, sizeof flight);
    flight.idle_count = TIER_IO_DEPTH;
    for (uint32_t i = 0; i < TIER_IO_DEPTH; i++) flight.idle[i] = i;
    bool more = true, behind = walk->write; /* is there something left to check? */
    while (more || flight.out_count > 0 || behind) {
        while (more && flight.status == SC_OK && flight.idle_count > 0 &&
            flight.sent - flight.first < WINDOW_MAX) {
            more = send_one(io, context, walk, &flight);
        }
        if (flight.status != SC_OK)
            more = false;
        uint32_t wait = behind ? 0 : wait_count(&flight, walk->write, more);
        if (flight.out_count > 0)
            take(io, context, walk, &flight, wait);
        behind =
            flight.status == SC_OK && tier_walk_check(walk, walk->write ? walk->at : flight.until);
    }
    if (flight.status == SC_OK) return SC_OK;
    return SC_FAIL_SYS(flight.status, flight.error.system_code, "%s", flight.error.text);
}
