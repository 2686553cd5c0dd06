/* SPDX-License-Identifier: Apache-2.0 */
/* Launcher of the movers: checks, then the kernel table. */
#include "base/error.h"
#include "kernel_check.h"
#include "kernel_dispatch.h"

/* Elements of each dtype at the two ends, as features of a row of the table. */
static sc_status check_end(const char *name, const sc_k_slots *end, const sc_k_slots *scale,
    const sc_k_move_part *part, uint32_t *need)
{
    uint64_t elems = (uint64_t)part->rows * part->row_elems;
    if (end->dtype != SC_DTYPE_U8) {
        if (scale->base != 0)
            return SC_FAIL(SC_ERR_INVALID, "%s has scales, but is not U8", name);
        SC_TRY(sc_kernel_check_slots(name, end, elems));
        *need |= sc_kernel_need(end->dtype, (sc_dtype)0);
        return SC_OK;
    }
    if (end->base == 0) return SC_FAIL(SC_ERR_INVALID, "%s is 0", name);
    if (end->slot_stride <= 0 || (uint64_t)end->slot_stride < elems)
        return SC_FAIL(SC_ERR_INVALID, "%s: slot stride %lld, but a slot's part has %llu bytes",
            name, (long long)end->slot_stride, (unsigned long long)elems);
    *need |= SC_KF_I8;
    SC_TRY(sc_kernel_check_slots("scale", scale, part->rows));
    if (scale->dtype != SC_DTYPE_F32)
        return SC_FAIL(SC_ERR_UNSUPPORTED, "scales of %s are not F32", name);
    return SC_OK;
}

static sc_status check_part(const sc_k_move_part *part, uint32_t *need)
{
    SC_REQUIRE(part->rows > 0);
    SC_REQUIRE(part->row_elems > 0);
    SC_TRY(check_end("from", &part->from, &part->from_scale, part, need));
    SC_TRY(check_end("to", &part->to, &part->to_scale, part, need));
    if (part->from.dtype == SC_DTYPE_U8 && part->to.dtype == SC_DTYPE_U8
        && part->from_scale.base == part->to_scale.base && part->from.base != part->to.base)
        return SC_FAIL(SC_ERR_INVALID, "both ends have the same scales");
    return SC_OK;
}

static sc_status check_id(const char *name, const sc_k_slots *slots, uint32_t r, int64_t id)
{
    if (slots->base == 0) return SC_OK;
    if (slots->slot_count != 0 && id >= slots->slot_count)
        return SC_FAIL(SC_ERR_INVALID, "%s[%u] is %lld of %u", name, r, (long long)id,
            slots->slot_count);
    if (id > INT64_MAX / slots->slot_stride - 1)
        return SC_FAIL(SC_ERR_INVALID, "%s[%u]: %lld lies beyond 2^63 bytes", name, r,
            (long long)id);
    return SC_OK;
}

/* Ids of row r in all parts; a dense end is entry r. */
static sc_status check_row(const sc_k_move_params *p, uint32_t r, int64_t from, int64_t to)
{
    for (uint32_t i = 0; i < p->part_count; i++) {
        const sc_k_move_part *part = &p->parts[i];
        SC_TRY(check_id("source", &part->from, r, from));
        SC_TRY(check_id("source", &part->from_scale, r, from));
        SC_TRY(check_id("dest", &part->to, r, to));
        SC_TRY(check_id("dest", &part->to_scale, r, to));
        if (part->from.base != part->to.base || from != to || (from == 0 && p->source != 0))
            continue;
        if (part->from.dtype != part->to.dtype)
            return SC_FAIL(SC_ERR_INVALID, "row %u: part %u is converted onto itself", r, i);
    }
    return SC_OK;
}

static bool one_memory(const sc_k_move_params *p)
{
    for (uint32_t i = 0; i < p->part_count; i++)
        if (p->parts[i].from.base == p->parts[i].to.base) return true;
    return false;
}

static sc_status check_rows(const sc_k_move_params *p)
{
    const int32_t *source = sc_host_ptr(p->source), *dest = sc_host_ptr(p->dest);
    bool shared = one_memory(p);
    for (uint32_t r = 0; r < p->row_count; r++) {
        int64_t from = source != NULL ? source[r] : (int64_t)r;
        int64_t to = dest != NULL ? dest[r] : (int64_t)r;
        if (from < 0 || to < 0) continue;
        if (dest != NULL && to == 0)
            return SC_FAIL(SC_ERR_INVALID, "dest[%u] is the null slot", r);
        SC_TRY(check_row(p, r, from, to));
        for (uint32_t i = 0; i < p->row_count; i++) {
            int64_t other = dest != NULL ? dest[i] : (int64_t)i;
            int64_t read = source != NULL ? source[i] : (int64_t)i;
            if (i == r || other < 0 || read < 0) continue;
            if (other == to)
                return SC_FAIL(SC_ERR_INVALID, "rows %u and %u go to slot %lld", r, i,
                    (long long)to);
            if (shared && read == to && !(source != NULL && read == 0))
                return SC_FAIL(SC_ERR_INVALID, "slot %lld: destination of row %u, source of %u",
                    (long long)to, r, i);
        }
    }
    return SC_OK;
}

sc_status sc_k_move(sc_backend *backend, const sc_k_move_params *params, sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    uint32_t need = 0;
    if (backend == NULL) backend = sc_backend_host();
    SC_REQUIRE(params != NULL);
    SC_REQUIRE(params->parts != NULL);
    SC_REQUIRE(params->part_count > 0);
    SC_REQUIRE(params->row_count <= INT32_MAX);
    for (uint32_t i = 0; i < params->part_count; i++)
        SC_TRY(check_part(&params->parts[i], &need));
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_MOVE, need, &row));
    if (params->source != 0) SC_TRY(sc_kernel_check_index("source", params->source));
    if (params->dest != 0) SC_TRY(sc_kernel_check_index("dest", params->dest));
    if (params->row_count == 0) return SC_OK;
    if (backend->host_memory) SC_TRY(check_rows(params));
    return row->launch(params, stream);
}
