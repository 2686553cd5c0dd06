/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel_check.h"

#include "base/error.h"

uint32_t sc_kernel_elem_bytes(sc_dtype dtype)
{
    if (dtype == SC_DTYPE_F32) return 4;
    if (dtype == SC_DTYPE_BF16) return 2;
    return 0;
}

sc_status sc_kernel_check_dtype(const char *name, sc_dtype dtype)
{
    if (sc_kernel_elem_bytes(dtype) == 0)
        return SC_FAIL(SC_ERR_UNSUPPORTED, "%s: dtype %d; kernels know F32 and BF16", name,
            (int)dtype);
    return SC_OK;
}

sc_status sc_kernel_check_tensor(const char *name, sc_devptr ptr, sc_dtype dtype)
{
    if (ptr == 0) return SC_FAIL(SC_ERR_INVALID, "%s is 0", name);
    if (ptr % sc_kernel_elem_bytes(dtype) != 0)
        return SC_FAIL(SC_ERR_INVALID, "%s is not aligned to its element", name);
    return SC_OK;
}

sc_status sc_kernel_check_index(const char *name, sc_devptr ptr)
{
    if (ptr == 0) return SC_FAIL(SC_ERR_INVALID, "%s is 0", name);
    if (ptr % sizeof(int32_t) != 0)
        return SC_FAIL(SC_ERR_INVALID, "%s is not aligned to int32", name);
    return SC_OK;
}

sc_status sc_kernel_check_saves(const sc_k_saves *saves)
{
    if (saves->count == 0) return SC_OK;
    SC_TRY(sc_kernel_check_index("saves.row", saves->row));
    SC_TRY(sc_kernel_check_index("saves.pos", saves->pos));
    return sc_kernel_check_index("saves.slot", saves->slot);
}

sc_status sc_kernel_check_stride(const char *name, int64_t stride, uint64_t dense)
{
    if (stride == 0) return SC_OK;
    if (stride < 0 || (uint64_t)stride < dense || stride > (int64_t)1 << 30)
        return SC_FAIL(SC_ERR_INVALID, "%s stride %lld: must be 0 or from %llu to 2^30", name,
            (long long)stride, (unsigned long long)dense);
    return SC_OK;
}

sc_status sc_kernel_check_slots(const char *name, const sc_k_slots *slots, uint64_t part_elems)
{
    SC_TRY(sc_kernel_check_dtype(name, slots->dtype));
    SC_TRY(sc_kernel_check_tensor(name, slots->base, slots->dtype));
    uint64_t elem_bytes = sc_kernel_elem_bytes(slots->dtype);
    if (slots->slot_stride <= 0 || (uint64_t)slots->slot_stride < part_elems * elem_bytes)
        return SC_FAIL(SC_ERR_INVALID, "%s: slot stride %lld, but a slot's part has %llu bytes",
            name, (long long)slots->slot_stride, (unsigned long long)(part_elems * elem_bytes));
    if ((uint64_t)slots->slot_stride % elem_bytes != 0)
        return SC_FAIL(SC_ERR_INVALID, "%s: slot stride %lld is not a multiple of the element",
            name, (long long)slots->slot_stride);
    return SC_OK;
}

sc_status sc_kernel_check_scratch(sc_devptr scratch, uint64_t bytes, uint64_t need_bytes)
{
    enum { ALIGN = 64 };
    if (scratch == 0 || scratch % ALIGN != 0)
        return SC_FAIL(SC_ERR_INVALID, "scratch is 0 or not aligned to %d bytes", ALIGN);
    if (bytes < need_bytes)
        return SC_FAIL(SC_ERR_INVALID, "scratch has %llu bytes, needs %llu",
            (unsigned long long)bytes, (unsigned long long)need_bytes);
    return SC_OK;
}

sc_status sc_kernel_check_initial(const sc_k_slots *initial, uint32_t row_count,
    uint64_t part_elems)
{
    if (initial->base == 0) return SC_OK;
    SC_TRY(sc_kernel_check_slots("initial", initial, part_elems));
    if (initial->slot_count != 0 && initial->slot_count < row_count)
        return SC_FAIL(SC_ERR_INVALID, "initial has %u entries for %u rows", initial->slot_count,
            row_count);
    if (row_count > INT32_MAX || row_count > INT64_MAX / initial->slot_stride - 1)
        return SC_FAIL(SC_ERR_INVALID, "initial: entry %u lies beyond 2^63 bytes", row_count);
    return SC_OK;
}

static sc_status check_slot(const sc_k_slots *slots, const char *name, uint32_t i, int32_t slot)
{
    if (slot <= 0) return SC_OK;
    if (slots->slot_count != 0 && (uint32_t)slot >= slots->slot_count)
        return SC_FAIL(SC_ERR_INVALID, "%s[%u] is slot %d of %u", name, i, slot,
            slots->slot_count);
    if (slot > INT64_MAX / slots->slot_stride - 1)
        return SC_FAIL(SC_ERR_INVALID, "%s[%u]: slot %d lies beyond 2^63 bytes", name, i, slot);
    return SC_OK;
}

static sc_status check_tokens(const struct sc_kernel_rows *rows)
{
    int64_t end = 0;
    for (uint32_t r = 0; r < rows->row_count; r++) {
        uint32_t tokens = sc_kernel_row_tokens(rows->row_start, r);
        int64_t position = rows->position != NULL ? rows->position[r] : 0;
        if (rows->source[r] >= 0 && (position < 0 || position + tokens > INT32_MAX))
            return SC_FAIL(SC_ERR_INVALID, "position[%u] is %lld with %u tokens", r,
                (long long)position, tokens);
        if (rows->row_start == NULL || tokens == 0) continue;
        int64_t start = rows->row_start[r];
        if (start < end || start + tokens > rows->token_count)
            return SC_FAIL(SC_ERR_INVALID, "row %u: tokens %lld..%lld of %u, after %lld", r,
                (long long)start, (long long)(start + tokens), rows->token_count, (long long)end);
        end = start + tokens;
    }
    return SC_OK;
}

static sc_status check_saves(const struct sc_kernel_rows *rows)
{
    for (uint32_t i = 0; i < rows->save_count; i++) {
        int32_t r = rows->save_row[i];
        if (r < 0) continue;
        if ((uint32_t)r >= rows->row_count)
            return SC_FAIL(SC_ERR_INVALID, "save %u: row %d of %u", i, r, rows->row_count);
        if (rows->source[r] < 0)
            return SC_FAIL(SC_ERR_INVALID, "save %u: row %d has no sequence (source -1)", i, r);
        if (rows->save_slot[i] <= 0)
            return SC_FAIL(SC_ERR_INVALID, "save %u: slot %d", i, rows->save_slot[i]);
        SC_TRY(check_slot(rows->slots, "save_slot", i, rows->save_slot[i]));
        int64_t first = rows->position != NULL ? rows->position[r] : 0;
        int64_t last = first + sc_kernel_row_tokens(rows->row_start, (uint32_t)r);
        int64_t pos = rows->save_pos[i];
        if (pos <= first || pos > last)
            return SC_FAIL(SC_ERR_INVALID, "save %u: position %lld outside (%lld, %lld] of row %d",
                i, (long long)pos, (long long)first, (long long)last, r);
        if (pos % rows->save_grid != 0)
            return SC_FAIL(SC_ERR_INVALID, "save %u: position %lld is not on the grid of %u", i,
                (long long)pos, rows->save_grid);
    }
    return SC_OK;
}

/* Destinations in one list: dest of each row, then its second one, then the saves. */
static int32_t destination(const struct sc_kernel_rows *rows, uint64_t i, uint32_t *row_out)
{
    if (i < rows->row_count || (rows->save != NULL && i < 2 * (uint64_t)rows->row_count)) {
        bool second = i >= rows->row_count;
        *row_out = (uint32_t)(second ? i - rows->row_count : i);
        if (rows->source[*row_out] < 0) return -1;
        if (second) return rows->save[*row_out];
        return rows->dest != NULL ? rows->dest[*row_out] : -1;
    }
    uint64_t s = i - (rows->save != NULL ? 2 : 1) * (uint64_t)rows->row_count;
    if (rows->save_row[s] < 0) return -1;
    *row_out = (uint32_t)rows->save_row[s];
    return rows->save_slot[s];
}

static sc_status check_destinations(const struct sc_kernel_rows *rows)
{
    uint64_t count = (rows->save != NULL ? 2 : 1) * (uint64_t)rows->row_count + rows->save_count;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t row = 0, other = 0;
        int32_t slot = destination(rows, i, &row);
        if (slot <= 0) continue;
        SC_TRY(check_slot(rows->slots, "dest", row, slot));
        for (uint64_t j = 0; j < i; j++)
            if (destination(rows, j, &other) == slot)
                return SC_FAIL(SC_ERR_INVALID, "slot %d is a destination of rows %u and %u", slot,
                    other, row);
        for (uint32_t r = 0; r < rows->row_count; r++)
            if (r != row && rows->source[r] == slot)
                return SC_FAIL(SC_ERR_INVALID, "slot %d: destination of row %u, source of row %u",
                    slot, row, r);
    }
    return SC_OK;
}

sc_status sc_kernel_check_rows(const struct sc_kernel_rows *rows)
{
    SC_TRY(check_tokens(rows));
    for (uint32_t r = 0; r < rows->row_count; r++)
        SC_TRY(check_slot(rows->slots, "source", r, rows->source[r]));
    SC_TRY(check_saves(rows));
    return check_destinations(rows);
}
