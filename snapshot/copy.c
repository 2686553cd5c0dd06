/* SPDX-License-Identifier: Apache-2.0 */
/* Whole states from pool to pool.
 *
 * Both layouts are read the same way, part base + slot * stride, so that one loop over the schema's
 * parts serves every pair and no part is forgotten (contract 13):
 *
 *   page-major  slot 3: | conv0 | rec0 | conv1 | rec1 |      one span for each slot when both ends
 *   page-major  slot 7: | conv0 | rec0 | conv1 | rec1 | <--  have their parts at the same offsets
 *
 *   contiguous  conv0: [0][1][2][3]...   rec0: [0][1]...     else one span for each part and row;
 *                                                            neighbours in both ends are merged
 *
 * The order of work makes a refused call change nothing:
 *
 * (1) arguments are checked, and the two pools must hold the same parts of the same model;
 * (2) memory for claims and spans is acquired;
 * (3) every row is checked: ids in range and allocated, destinations distinct and no other row's
 *     source (contract 7);
 * (4) only then bytes move: within one device as one table of parts and rows, one launch; else in
 *     as few backend calls as the span list allows, one for 65536 spans.
 *
 * In which stream: the caller's, or beside it in one of the backend's own (kernels/backend.h). A
 * copy that is waited for and crosses the bus takes a side, too: it begins behind what the default
 * stream holds, and no kernel that comes later waits for it.
 *
 * A device that fails in (4) leaves the destination slots of the call undefined; nothing else. */
#include <string.h>

#include "base/error.h"
#include "base/sc_assert.h"
#include "state_mover.h"
#include "statecache/snapshot.h"

enum copy_way { WAIT, IN_STREAM, BESIDE };

struct copy_job {
    const sc_pool *source;
    const int32_t *source_slots;
    sc_pool *dest;
    const int32_t *dest_slots;
    uint32_t count;
    uint32_t part_count;
    bool whole_slots;  /* page-major both, parts at equal offsets: the padding moves along */
    uint64_t slot_bytes;
    uint64_t span_max; /* of all rows together */
    sc_stream *stream;
    enum copy_way way;
};

static bool parts_agree(const sc_part *a, const sc_layer_view *a_view, const sc_part *b,
    const sc_layer_view *b_view)
{
    return a->layer == b->layer && a->kind == b->kind && a->index == b->index &&
        a_view->dtype == b_view->dtype && a_view->bytes == b_view->bytes &&
        a_view->dim_count == b_view->dim_count &&
        memcmp(a_view->dims, b_view->dims, a_view->dim_count * sizeof a_view->dims[0]) == 0;
}

/* Equal fingerprints, equal ranks and, part by part, equal local shapes: the same layers, heads and
 * channels. Also finds out whether whole slots can be copied. */
static sc_status compare_parts(struct copy_job *job, bool both_page_major)
{
    sc_layer_view from0 = {0}, to0 = {0};
    job->whole_slots = both_page_major;
    for (uint32_t i = 0; i < job->part_count; i++) {
        sc_layer_view from, to;
        sc_part from_part, to_part;
        SC_TRY(sc_pool_part_view(job->source, i, &from, &from_part));
        SC_TRY(sc_pool_part_view(job->dest, i, &to, &to_part));
        if (!parts_agree(&from_part, &from, &to_part, &to)) {
            return SC_FAIL(SC_ERR_MISMATCH, "part %u: the source holds layer %u, the destination "
                "layer %u, or their shapes differ", i, from_part.layer, to_part.layer);
        }
        if (i == 0) {
            from0 = from;
            to0 = to;
        }
        if (from.base - from0.base != to.base - to0.base) job->whole_slots = false;
    }
    return SC_OK;
}

static sc_status compare_pools(struct copy_job *job)
{
    sc_pool_info from, to;
    const sc_schema *from_schema = NULL, *to_schema = NULL;
    sc_fingerprint from_print, to_print;
    SC_TRY(sc_pool_info_get(job->source, &from));
    SC_TRY(sc_pool_info_get(job->dest, &to));
    SC_TRY(sc_pool_schema(job->source, &from_schema));
    SC_TRY(sc_pool_schema(job->dest, &to_schema));
    SC_TRY(sc_schema_fingerprint(from_schema, &from_print));
    SC_TRY(sc_schema_fingerprint(to_schema, &to_print));
    if (memcmp(&from_print, &to_print, sizeof from_print) != 0) {
        return SC_FAIL(SC_ERR_MISMATCH, "the pools hold states of different fingerprints");
    }
    uint32_t from_size = from.shard.tp_size ? from.shard.tp_size : 1;
    uint32_t to_size = to.shard.tp_size ? to.shard.tp_size : 1;
    if (from_size != to_size || from.shard.tp_rank != to.shard.tp_rank) {
        return SC_FAIL(SC_ERR_MISMATCH, "the source is shard %u of %u, the destination %u of %u",
            from.shard.tp_rank, from_size, to.shard.tp_rank, to_size);
    }
    if (from.part_count != to.part_count) {
        return SC_FAIL(SC_ERR_MISMATCH, "the source's shard has %u parts, the destination's %u",
            from.part_count, to.part_count);
    }
    job->part_count = from.part_count;
    job->slot_bytes = from.slot_bytes;
    SC_TRY(compare_parts(job, from.layout == SC_LAYOUT_PAGE_MAJOR &&
        to.layout == SC_LAYOUT_PAGE_MAJOR && from.slot_bytes == to.slot_bytes));
    job->span_max = (uint64_t)job->count * (job->whole_slots ? 1 : job->part_count);
    return SC_OK;
}

static bool row_active(const struct copy_job *job, uint32_t row)
{
    return job->source_slots[row] != -1 && job->dest_slots[row] != -1;
}

static void put_column(const struct copy_job *job, struct mover *mover, const int32_t *slots)
{
    mover_clear(mover);
    for (uint32_t row = 0; row < job->count; row++) {
        mover_put(mover, row_active(job, row) ? slots[row] : -1);
    }
}

/* (3) */
static sc_status check_rows(const struct copy_job *job, struct mover *mover)
{
    put_column(job, mover, job->source_slots);
    SC_TRY(mover_check(mover, job->source, SC_POOL_READ));
    put_column(job, mover, job->dest_slots);
    SC_TRY(mover_check(mover, job->dest, SC_POOL_WRITE));
    SC_TRY(mover_claim(mover));
    if (job->source != job->dest) return SC_OK;
    for (uint32_t row = 0; row < job->count; row++) {
        if (!row_active(job, row) || job->source_slots[row] == job->dest_slots[row]) continue;
        if (mover_is_claimed(mover, job->source_slots[row])) {
            return SC_FAIL(SC_ERR_INVALID, "row %u reads slot %d, which another row writes", row,
                job->source_slots[row]);
        }
    }
    return SC_OK;
}

/* Spans of all rows for `bytes` at the start of both views. */
static void move_rows(const struct copy_job *job, struct mover *mover, const sc_layer_view *from,
    const sc_layer_view *to, uint64_t bytes)
{
    for (uint32_t row = 0; row < job->count; row++) {
        int32_t from_id = job->source_slots[row], to_id = job->dest_slots[row];
        if (!row_active(job, row) || (job->source == job->dest && from_id == to_id)) continue;
        mover_span(mover, mover_at(to, (uint32_t)to_id), mover_at(from, (uint32_t)from_id), bytes);
    }
}

/* (4) */
static void move_parts(const struct copy_job *job, struct mover *mover)
{
    for (uint32_t i = 0; i < (job->whole_slots ? 1 : job->part_count); i++) {
        sc_layer_view from, to;
        sc_part part;
        sc_status status = sc_pool_part_view(job->source, i, &from, &part);
        SC_ASSERT(status == SC_OK);
        status = sc_pool_part_view(job->dest, i, &to, &part);
        SC_ASSERT(status == SC_OK);
        move_rows(job, mover, &from, &to, job->whole_slots ? job->slot_bytes : from.bytes);
    }
}

/* (4) within one device: the parts of both pools side by side; rows are the caller's. */
static sc_status move_on_device(const struct copy_job *job, struct mover *mover)
{
    uint32_t count = job->whole_slots ? 1 : job->part_count;
    struct sc_backend_part *parts = NULL;
    SC_TRY(mover_parts(mover, count, &parts));
    for (uint32_t i = 0; i < count; i++) {
        sc_layer_view from, to;
        sc_part part;
        SC_TRY(sc_pool_part_view(job->source, i, &from, &part));
        SC_TRY(sc_pool_part_view(job->dest, i, &to, &part));
        parts[i] = (struct sc_backend_part){.dst = to.base, .src = from.base,
            .dst_stride = (uint64_t)to.slot_stride, .src_stride = (uint64_t)from.slot_stride,
            .bytes = job->whole_slots ? job->slot_bytes : from.bytes};
    }
    mover_rows(mover, &(struct sc_backend_rows){.parts = parts, .part_count = count,
        .row_count = job->count, .dst_slots = job->dest_slots, .src_slots = job->source_slots});
    return SC_OK;
}

/* Where what moves is put. */
static sc_status choose_stream(const struct copy_job *job, struct mover *mover)
{
    mover->no_wait = job->way != WAIT;
    if (job->way == BESIDE) return mover_beside(mover, SC_SIDE_SAVES, job->stream);
    mover->stream = job->stream;
    if (job->way == IN_STREAM || mover->kind == SC_COPY_D2D) return SC_OK;
    return mover_beside(mover, mover->kind == SC_COPY_D2H ? SC_SIDE_DOWN : SC_SIDE_UP, NULL);
}

static sc_status copy_states(struct copy_job *job)
{
    struct mover mover;
    sc_backend *backend = NULL;
    enum sc_copy_kind kind;
    SC_REQUIRE(job->source != NULL);
    SC_REQUIRE(job->dest != NULL);
    SC_REQUIRE(job->count == 0 || (job->source_slots != NULL && job->dest_slots != NULL));
    SC_TRY(compare_pools(job));
    SC_TRY(mover_route(job->source, job->dest, &backend, &kind));
    if (job->count == 0) return SC_OK;
    bool device = kind == SC_COPY_D2D && !backend->host_memory;
    SC_TRY(mover_open(&mover, job->dest, backend, kind, device ? 0 : job->span_max, job->count));
    sc_status status = check_rows(job, &mover);
    if (status == SC_OK) status = choose_stream(job, &mover);
    if (status == SC_OK && device)
        status = move_on_device(job, &mover);
    else if (status == SC_OK)
        move_parts(job, &mover);
    return mover_close(&mover, status);
}

sc_status sc_state_copy_async(const sc_pool *source, const int32_t *source_slots, sc_pool *dest,
    const int32_t *dest_slots, uint32_t count, sc_stream *stream)
{
    struct copy_job job = {.source = source, .source_slots = source_slots, .dest = dest,
        .dest_slots = dest_slots, .count = count, .stream = stream, .way = IN_STREAM};
    return copy_states(&job);
}

sc_status sc_state_copy_beside(const sc_pool *source, const int32_t *source_slots, sc_pool *dest,
    const int32_t *dest_slots, uint32_t count, sc_stream *stream)
{
    struct copy_job job = {.source = source, .source_slots = source_slots, .dest = dest,
        .dest_slots = dest_slots, .count = count, .stream = stream, .way = BESIDE};
    return copy_states(&job);
}

sc_status sc_state_copy_join(const sc_pool *pool, sc_stream *stream)
{
    sc_backend *backend = NULL;
    SC_REQUIRE(pool != NULL);
    SC_TRY(sc_pool_backend(pool, &backend));
    return sc_backend_side_join(backend, SC_SIDE_SAVES, stream);
}

sc_status sc_state_copy(const sc_pool *source, const int32_t *source_slots, sc_pool *dest,
    const int32_t *dest_slots, uint32_t count)
{
    struct copy_job job = {.source = source, .source_slots = source_slots, .dest = dest,
        .dest_slots = dest_slots, .count = count, .way = WAIT};
    return copy_states(&job);
}
