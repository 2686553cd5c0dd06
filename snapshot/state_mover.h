/* SPDX-License-Identifier: Apache-2.0 */
/* What copy, gather, scatter and the codecs share: everything that can fail is done first, then the
 * bytes move.
 *
 *   struct mover mover;
 *   SC_TRY(mover_open(&mover, pool, backend, kind, span_max, id_max));  // acquires
 *   ... check every row: mover_put, mover_check, mover_claim ...        // may fail: nothing moved
 *   for (...) mover_span(&mover, dst, src, bytes);                      // never allocates
 *   return mover_close(&mover, status);                                 // waits, gives back
 *
 * Small calls (a decode step's rows) fit in the mover itself and allocate nothing. */
#ifndef SC_SNAPSHOT_STATE_MOVER_H
#define SC_SNAPSHOT_STATE_MOVER_H

#include "base/heap.h"
#include "kernels/backend.h"
#include "pool/pool_internal.h"

enum {
    MOVER_SPANS_FEW = 128, /* in the mover itself */
    MOVER_IDS_FEW = 64,
    MOVER_PARTS_FEW = 96,
    MOVER_SPANS_MAX = 1 << 16 /* spans of one backend call at most; more are sent in several */
};

struct mover {
    sc_backend *backend;
    enum sc_copy_kind kind;
    sc_stream *stream; /* NULL unless set after mover_open */
    bool no_wait;      /* set after mover_open: mover_close leaves the work in the stream */
    bool beside;       /* the stream is the backend's, for copies: mover_beside */
    struct sc_heap heap;
    void *block; /* NULL: few_ arrays */
    size_t block_bytes;
    struct sc_backend_span *spans; /* the batch being filled */
    uint32_t span_cap, span_count;
    sc_status status; /* of the first batch that failed */
    int32_t *ids; /* a column of rows, then the set of claimed destinations */
    uint32_t id_cap, id_count;
    struct sc_backend_part *parts; /* NULL: few_parts */
    size_t parts_bytes;
    struct sc_backend_part few_parts[MOVER_PARTS_FEW];
    struct sc_backend_span few_spans[MOVER_SPANS_FEW];
    int32_t few_ids[MOVER_IDS_FEW];
};

/* Memory comes from the allocator of `pool`. SC_ERR_NO_MEMORY, SC_ERR_OVERFLOW. */
sc_status mover_open(struct mover *mover, const sc_pool *pool, sc_backend *backend,
    enum sc_copy_kind kind, uint64_t span_max, uint32_t id_max);

/* The ids of one column of rows, -1 where there is none; what passes for each use is what
 * sc_pool_check_ids says. The column is given entry by entry through mover_put, at most id_max
 * times; the message of a refusal counts entries from 0. SC_ERR_INVALID, SC_ERR_STALE,
 * SC_ERR_BUSY. */
void mover_clear(struct mover *mover);
void mover_put(struct mover *mover, int32_t id);
sc_status mover_check(const struct mover *mover, const sc_pool *pool, enum sc_pool_use use);
/* Makes the column a sorted set of claimed slots, without -1. SC_ERR_INVALID when one is in it
 * twice. */
sc_status mover_claim(struct mover *mover);
/* Binary search; only after mover_claim. */
bool mover_is_claimed(const struct mover *mover, int32_t id);

/* Before the first byte moves: what moves goes to the backend's side stream, behind what `after`
 * holds now. SC_ERR_UNSUPPORTED (`after` is being captured), SC_ERR_NO_MEMORY. */
sc_status mover_beside(struct mover *mover, enum sc_side side, sc_stream *after);

/* Adds one copy, merging it with the one before if both ends continue it. */
void mover_span(struct mover *mover, sc_devptr dst, sc_devptr src, uint64_t bytes);

/* For copies within one device's memory, instead of spans: room for the table of parts, then all
 * parts of all rows as one piece of work; rows whose slot is negative at either end are skipped.
 * SC_ERR_NO_MEMORY for more parts than the mover itself holds. */
sc_status mover_parts(struct mover *mover, uint32_t count, struct sc_backend_part **parts_out);
void mover_rows(struct mover *mover, const struct sc_backend_rows *rows);

/* Sends what is left unless `status` (of the validation) or a batch failed, waits for all of it,
 * and gives the memory back. Returns the first failure. */
sc_status mover_close(struct mover *mover, sc_status status);

/* Address of slot `id` in a view; 64-bit from the first multiplication (contract 8). */
static inline sc_devptr mover_at(const sc_layer_view *view, uint32_t id)
{
    return view->base + (uint64_t)view->slot_stride * id;
}

/* Which backend copies from one pool to the other, and which way. SC_ERR_UNSUPPORTED for two
 * different devices. */
sc_status mover_route(const sc_pool *source, const sc_pool *dest, sc_backend **backend_out,
    enum sc_copy_kind *kind_out);

#endif
