/* SPDX-License-Identifier: Apache-2.0 */
/* Chosen parts of chosen slots to and from dense arrays, for kernels of others.
 *
 *   parts A, B of slots 5, -1, 2:
 *
 *   dense   | A of 5 | A: untouched | A of 2 | pad to 256 | B of 5 | B: untouched | B of 2 |
 *           offset[0]                                     offset[1]
 *
 * A row of -1 keeps its place in the array (contract 7); scatter skips it. As in copy.c everything
 * is checked before a byte moves. A scatter may not name a part twice: two rows of the array would
 * race for one place. A gather may. */
#include "base/error.h"
#include "base/sc_assert.h"
#include "pool/pool_internal.h"
#include "state_mover.h"
#include "statecache/snapshot.h"

enum { DENSE_ALIGN = 256 };

struct dense_job {
    const sc_pool *pool;
    const sc_part_ref *parts;
    uint32_t part_count;
    const int32_t *slots;
    uint32_t count;
    sc_devptr dense;
    bool to_pool; /* scatter */
};

sc_status sc_pool_needs_gather(const sc_pool *pool, bool *needs_out)
{
    sc_pool_info info;
    bool needs = false;
    SC_REQUIRE(pool != NULL);
    SC_REQUIRE(needs_out != NULL);
    SC_TRY(sc_pool_info_get(pool, &info));
    for (uint32_t i = 0; i < info.part_count; i++) {
        sc_layer_view view;
        sc_part part;
        SC_TRY(sc_pool_part_view(pool, i, &view, &part));
        if ((uint64_t)view.slot_stride != view.bytes) needs = true;
    }
    *needs_out = needs;
    return SC_OK;
}

static sc_status part_view(const sc_pool *pool, const sc_part_ref *ref, sc_layer_view *view_out)
{
    return sc_pool_layer_view(pool, ref->layer, ref->kind, ref->index, view_out);
}

/* Where the array of the next part starts, and the end of the array of this one. */
static sc_status dense_next(uint64_t *end, uint64_t part_bytes, uint32_t count,
    uint64_t *offset_out)
{
    uint64_t bytes, offset;
    if (__builtin_add_overflow(*end, DENSE_ALIGN - 1, &offset) ||
        __builtin_mul_overflow(part_bytes, count, &bytes)) {
        return SC_FAIL(SC_ERR_OVERFLOW, "%u rows do not fit 64 bits", count);
    }
    offset -= offset % DENSE_ALIGN;
    if (__builtin_add_overflow(offset, bytes, end)) {
        return SC_FAIL(SC_ERR_OVERFLOW, "%u rows do not fit 64 bits", count);
    }
    *offset_out = offset;
    return SC_OK;
}

sc_status sc_state_dense_bytes(const sc_pool *pool, const sc_part_ref *parts, uint32_t part_count,
    uint32_t count, uint64_t *bytes_out, uint64_t *offsets_out)
{
    uint64_t end = 0, offset = 0;
    sc_layer_view view;
    SC_REQUIRE(pool != NULL);
    SC_REQUIRE(parts != NULL);
    SC_REQUIRE(part_count > 0);
    SC_REQUIRE(bytes_out != NULL);
    for (uint32_t i = 0; i < part_count; i++) {
        SC_TRY(part_view(pool, &parts[i], &view));
        SC_TRY(dense_next(&end, view.bytes, count, &offset));
    }
    *bytes_out = end;
    if (!offsets_out) return SC_OK;
    end = 0; /* again, now that nothing can fail: on error no output is written */
    for (uint32_t i = 0; i < part_count; i++) {
        SC_TRY(part_view(pool, &parts[i], &view));
        SC_TRY(dense_next(&end, view.bytes, count, &offsets_out[i]));
    }
    return SC_OK;
}

/* A part named twice, by sorting local part numbers. */
static sc_status check_distinct_parts(const struct dense_job *job, struct mover *mover)
{
    mover_clear(mover);
    for (uint32_t i = 0; i < job->part_count; i++) {
        const sc_part_ref *ref = &job->parts[i];
        uint32_t part = 0;
        SC_TRY(sc_pool_find_part(job->pool, ref->layer, ref->kind, ref->index, &part));
        mover_put(mover, (int32_t)part);
    }
    if (mover_claim(mover) == SC_OK) return SC_OK;
    return SC_FAIL(SC_ERR_INVALID, "one of the %u parts is named twice", job->part_count);
}

static sc_status check_rows(const struct dense_job *job, struct mover *mover)
{
    SC_TRY(sc_pool_check_ids(job->pool, job->slots, job->count,
        job->to_pool ? SC_POOL_WRITE : SC_POOL_READ));
    if (!job->to_pool) return SC_OK;
    SC_TRY(check_distinct_parts(job, mover));
    mover_clear(mover);
    for (uint32_t row = 0; row < job->count; row++) {
        mover_put(mover, job->slots[row]);
    }
    return mover_claim(mover);
}

/* The dense array must not lie among the slots. */
static sc_status check_apart(const struct dense_job *job, uint64_t bytes)
{
    sc_pool_info info;
    if (job->dense + bytes < job->dense) {
        return SC_FAIL(SC_ERR_OVERFLOW, "the dense array wraps around the address space");
    }
    SC_TRY(sc_pool_info_get(job->pool, &info));
    for (uint32_t i = 0; i < info.part_count; i++) {
        sc_layer_view view;
        sc_part part;
        SC_TRY(sc_pool_part_view(job->pool, i, &view, &part));
        sc_devptr end = mover_at(&view, info.slot_count) + view.bytes;
        if (job->dense < end && view.base < job->dense + bytes) {
            return SC_FAIL(SC_ERR_INVALID, "the dense array lies in the pool's own memory");
        }
    }
    return SC_OK;
}

static void move_parts(const struct dense_job *job, struct mover *mover)
{
    uint64_t end = 0, offset = 0;
    for (uint32_t i = 0; i < job->part_count; i++) {
        sc_layer_view view;
        sc_status status = part_view(job->pool, &job->parts[i], &view);
        SC_ASSERT(status == SC_OK);
        status = dense_next(&end, view.bytes, job->count, &offset);
        SC_ASSERT(status == SC_OK);
        for (uint32_t row = 0; row < job->count; row++) {
            if (job->slots[row] == -1) continue;
            sc_devptr in_pool = mover_at(&view, (uint32_t)job->slots[row]);
            sc_devptr in_dense = job->dense + offset + (uint64_t)row * view.bytes;
            if (job->to_pool) {
                mover_span(mover, in_pool, in_dense, view.bytes);
            } else {
                mover_span(mover, in_dense, in_pool, view.bytes);
            }
        }
    }
}

static sc_status run(const struct dense_job *job, uint64_t dense_bytes)
{
    struct mover mover;
    sc_backend *backend = NULL;
    uint64_t need_bytes = 0;
    uint32_t id_max = job->count > job->part_count ? job->count : job->part_count;
    SC_REQUIRE(job->pool != NULL);
    SC_REQUIRE(job->count == 0 || job->slots != NULL);
    SC_TRY(sc_state_dense_bytes(job->pool, job->parts, job->part_count, job->count, &need_bytes,
        NULL));
    if (dense_bytes < need_bytes) {
        return SC_FAIL(SC_ERR_MISMATCH, "the dense array has %llu bytes, %llu are needed",
            (unsigned long long)dense_bytes, (unsigned long long)need_bytes);
    }
    SC_REQUIRE(job->count == 0 || job->dense != 0);
    if (job->count > 0) SC_TRY(check_apart(job, need_bytes));
    SC_TRY(sc_pool_backend(job->pool, &backend));
    SC_TRY(mover_open(&mover, job->pool, backend, SC_COPY_D2D,
        (uint64_t)job->count * job->part_count, job->to_pool ? id_max : 0));
    sc_status status = check_rows(job, &mover);
    if (status == SC_OK) move_parts(job, &mover);
    return mover_close(&mover, status);
}

sc_status sc_state_gather(const sc_pool *pool, const sc_part_ref *parts, uint32_t part_count,
    const int32_t *slots, uint32_t count, sc_devptr dense, uint64_t dense_bytes)
{
    struct dense_job job = {pool, parts, part_count, slots, count, dense, false};
    return run(&job, dense_bytes);
}

sc_status sc_state_scatter(sc_pool *pool, const sc_part_ref *parts, uint32_t part_count,
    const int32_t *slots, uint32_t count, sc_devptr dense, uint64_t dense_bytes)
{
    struct dense_job job = {pool, parts, part_count, slots, count, dense, true};
    return run(&job, dense_bytes);
}
