/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of spans and sets of claimed slots; state_mover.h says how they are used.
 *
 * Claims are sorted by a heap sort in place: O(n log n) whatever the order, no recursion, and,
 * unlike the C library's qsort, it never allocates. Claims that already rise, the usual case, cost
 * one pass. Rejected: a bit for each slot of the pool; one row out of a million slots would clear
 * 128 KiB. */
#include "state_mover.h"

#include "base/error.h"
#include "base/sc_assert.h"
#include "pool/pool_internal.h"

static sc_status acquire_block(struct mover *mover, uint64_t span_cap, uint32_t id_max)
{
    uint64_t span_bytes = span_cap * sizeof(struct sc_backend_span);
    uint64_t bytes = span_bytes + (uint64_t)id_max * sizeof(int32_t); /* < 2^21 + 2^34 */
    if (bytes > SIZE_MAX) return SC_FAIL(SC_ERR_OVERFLOW, "too many rows for this machine");
    mover->block = sc_heap_alloc(&mover->heap, (size_t)bytes, 16);
    if (!mover->block) {
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to check and list %llu slots",
            (unsigned long long)id_max);
    }
    mover->block_bytes = (size_t)bytes;
    mover->spans = mover->block;
    mover->span_cap = (uint32_t)span_cap;
    mover->ids = (int32_t *)(void *)((char *)mover->block + span_bytes);
    mover->id_cap = id_max;
    return SC_OK;
}

sc_status mover_open(struct mover *mover, const sc_pool *pool, sc_backend *backend,
    enum sc_copy_kind kind, uint64_t span_max, uint32_t id_max)
{
    SC_TRY(sc_heap_init(&mover->heap, SC_SUBSYSTEM_SNAPSHOT, sc_pool_allocator(pool)));
    mover->backend = backend;
    mover->kind = kind;
    mover->stream = NULL;
    mover->no_wait = false;
    mover->beside = false;
    mover->block = NULL;
    mover->block_bytes = 0;
    mover->parts = NULL;
    mover->parts_bytes = 0;
    mover->spans = mover->few_spans;
    mover->span_cap = MOVER_SPANS_FEW;
    mover->span_count = 0;
    mover->status = SC_OK;
    mover->ids = mover->few_ids;
    mover->id_cap = MOVER_IDS_FEW;
    mover->id_count = 0;
    if (span_max <= MOVER_SPANS_FEW && id_max <= MOVER_IDS_FEW) return SC_OK;
    uint64_t span_cap = span_max;
    if (span_cap < MOVER_SPANS_FEW) span_cap = MOVER_SPANS_FEW;
    if (span_cap > MOVER_SPANS_MAX) span_cap = MOVER_SPANS_MAX;
    return acquire_block(mover, span_cap, id_max);
}

void mover_clear(struct mover *mover)
{
    mover->id_count = 0;
}

void mover_put(struct mover *mover, int32_t id)
{
    SC_ASSERT(mover->id_count < mover->id_cap);
    mover->ids[mover->id_count++] = id;
}

sc_status mover_check(const struct mover *mover, const sc_pool *pool, enum sc_pool_use use)
{
    return sc_pool_check_ids(pool, mover->ids, mover->id_count, use);
}

/* Moves ids[at] down until no child is larger. */
static void sift_down(int32_t *ids, uint32_t at, uint32_t count)
{
    int32_t moved = ids[at];
    for (;;) {
        uint64_t child = 2 * (uint64_t)at + 1;
        if (child >= count) break;
        if (child + 1 < count && ids[child + 1] > ids[child]) child++;
        if (ids[child] <= moved) break;
        ids[at] = ids[child];
        at = (uint32_t)child;
    }
    ids[at] = moved;
}

static void sort_ids(int32_t *ids, uint32_t count)
{
    for (uint32_t at = count / 2; at > 0; at--) {
        sift_down(ids, at - 1, count);
    }
    for (uint32_t end = count; end > 1; end--) {
        int32_t largest = ids[0];
        ids[0] = ids[end - 1];
        ids[end - 1] = largest;
        sift_down(ids, 0, end - 1);
    }
}

sc_status mover_claim(struct mover *mover)
{
    uint32_t kept = 0;
    bool rising = true;
    for (uint32_t i = 0; i < mover->id_count; i++) {
        int32_t id = mover->ids[i];
        if (id == -1) continue;
        if (kept > 0 && mover->ids[kept - 1] >= id) rising = false;
        mover->ids[kept++] = id;
    }
    mover->id_count = kept;
    if (rising) return SC_OK;
    sort_ids(mover->ids, kept);
    for (uint32_t i = 1; i < kept; i++) {
        if (mover->ids[i - 1] == mover->ids[i]) {
            return SC_FAIL(SC_ERR_INVALID, "slot %d is the destination of two rows", mover->ids[i]);
        }
    }
    return SC_OK;
}

bool mover_is_claimed(const struct mover *mover, int32_t id)
{
    uint32_t low = 0, high = mover->id_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (mover->ids[middle] == id) return true;
        if (mover->ids[middle] < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return false;
}

sc_status mover_beside(struct mover *mover, enum sc_side side, sc_stream *after)
{
    SC_TRY(sc_backend_side_begin(mover->backend, side, after, &mover->stream));
    mover->beside = mover->stream != after;
    return SC_OK;
}

/* What the stream holds now; not what others put into a side stream meanwhile. */
static sc_status wait_so_far(struct mover *mover)
{
    struct sc_event *event = NULL;
    if (!mover->beside || sc_backend_event_create(mover->backend, &event) != SC_OK) {
        return sc_backend_stream_sync(mover->backend, mover->stream);
    }
    sc_status status = sc_backend_event_record(mover->backend, event, mover->stream);
    if (status == SC_OK) {
        status = sc_backend_event_wait(mover->backend, event);
    } else { /* the bytes may still be under way */
        status = sc_backend_stream_sync(mover->backend, mover->stream);
    }
    sc_backend_event_destroy(mover->backend, event);
    return status;
}

static void flush(struct mover *mover)
{
    if (mover->span_count > 0 && mover->status == SC_OK) {
        mover->status = sc_backend_copy_async(mover->backend, mover->kind, mover->spans,
            mover->span_count, mover->stream);
    }
    mover->span_count = 0;
}

void mover_span(struct mover *mover, sc_devptr dst, sc_devptr src, uint64_t bytes)
{
    if (mover->span_count > 0) {
        struct sc_backend_span *last = &mover->spans[mover->span_count - 1];
        if (last->dst + last->bytes == dst && last->src + last->bytes == src) {
            last->bytes += bytes;
            return;
        }
    }
    if (mover->span_count == mover->span_cap) flush(mover);
    mover->spans[mover->span_count++] = (struct sc_backend_span){dst, src, bytes};
}

void mover_rows(struct mover *mover, const struct sc_backend_rows *rows)
{
    if (mover->status == SC_OK)
        mover->status = sc_backend_copy_rows(mover->backend, rows, mover->stream);
}

sc_status mover_parts(struct mover *mover, uint32_t count, struct sc_backend_part **parts_out)
{
    *parts_out = mover->few_parts;
    if (count <= MOVER_PARTS_FEW) return SC_OK;
    mover->parts_bytes = count * sizeof **parts_out;
    mover->parts = sc_heap_alloc(&mover->heap, mover->parts_bytes, 16);
    *parts_out = mover->parts;
    if (mover->parts) return SC_OK;
    return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to list %u parts", count);
}

sc_status mover_close(struct mover *mover, sc_status status)
{
    if (status == SC_OK) {
        flush(mover);
        status = mover->status;
        /* Also after a batch that failed: those before it may still be under way. */
        if (status == SC_OK && mover->no_wait) goto out;
        sc_status waited = wait_so_far(mover);
        if (status == SC_OK) status = waited;
    }
out:
    if (mover->parts) sc_heap_free(&mover->heap, mover->parts, mover->parts_bytes);
    sc_heap_free(&mover->heap, mover->block, mover->block_bytes);
    return status;
}

sc_status mover_route(const sc_pool *source, const sc_pool *dest, sc_backend **backend_out,
    enum sc_copy_kind *kind_out)
{
    sc_backend *from = NULL, *to = NULL;
    SC_TRY(sc_pool_backend(source, &from));
    SC_TRY(sc_pool_backend(dest, &to));
    *backend_out = to;
    *kind_out = SC_COPY_D2D;
    if (from == to || (from->host_memory && to->host_memory)) return SC_OK;
    if (from->host_memory) {
        *kind_out = SC_COPY_H2D;
        return SC_OK;
    }
    if (to->host_memory) {
        *backend_out = from;
        *kind_out = SC_COPY_D2H;
        return SC_OK;
    }
    return SC_FAIL(SC_ERR_UNSUPPORTED, "no copy between the devices %s and %s", from->name,
        to->name);
}
