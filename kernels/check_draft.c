/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of draft tokens: trees, accepted nodes, node stores. */
#include "base/error.h"
#include "draft_path.h"

sc_status sc_kernel_check_tree(const struct sc_kernel_rows *rows, const int32_t *parent,
    uint32_t tokens_max)
{
    for (uint32_t r = 0; r < rows->row_count; r++) {
        uint32_t tokens = sc_kernel_row_tokens(rows->row_start, r);
        if (rows->source[r] < 0) continue;
        if (tokens > tokens_max)
            return SC_FAIL(SC_ERR_INVALID, "row %u has %u draft tokens, at most %u are possible",
                r, tokens, tokens_max);
        for (uint32_t t = 0; parent != NULL && t < tokens; t++) {
            int32_t from = parent[(uint32_t)rows->row_start[r] + t];
            if (from >= (int32_t)t)
                return SC_FAIL(SC_ERR_INVALID, "row %u: token %u has parent %d, not before it", r,
                    t, from);
        }
    }
    return SC_OK;
}

sc_status sc_kernel_check_nodes(const struct sc_kernel_rows *rows, const int32_t *parent,
    const int32_t *node)
{
    int32_t path[SC_K_DRAFT_MAX];
    for (uint32_t r = 0; r < rows->row_count; r++) {
        int32_t tokens = (int32_t)sc_kernel_row_tokens(rows->row_start, r);
        if (node[r] < -1 || node[r] >= tokens)
            return SC_FAIL(SC_ERR_INVALID, "row %u: node %d of %d tokens", r, node[r], tokens);
    }
    for (uint32_t i = 0; i < rows->save_count; i++) {
        int32_t r = rows->save_row[i];
        if (r < 0) continue;
        int64_t first = rows->position != NULL ? rows->position[r] : 0;
        int64_t count = sc_draft_path(parent, rows->row_start[r], node[r], path);
        if (rows->save_pos[i] > first + count)
            return SC_FAIL(SC_ERR_INVALID, "save %u: position %d, but row %d ends at %lld", i,
                rows->save_pos[i], r, (long long)(first + count));
    }
    return SC_OK;
}

sc_status sc_kernel_check_store(const sc_k_node_store *store, uint32_t row_count,
    uint32_t tokens_max, uint64_t part_elems, sc_dtype dtype)
{
    uint64_t bytes = 0;
    if (store->base == 0 && store->tokens_max == 0) return SC_OK;
    SC_TRY(sc_kernel_check_tensor("node store", store->base, dtype));
    if (store->tokens_max < tokens_max)
        return SC_FAIL(SC_ERR_INVALID, "the node store is for %u tokens, rows have up to %u",
            store->tokens_max, tokens_max);
    return sc_k_node_store_bytes(row_count, store->tokens_max, part_elems, dtype, &bytes);
}

sc_status sc_k_node_store_bytes(uint32_t row_count, uint32_t tokens_max, uint64_t part_elems,
    sc_dtype dtype, uint64_t *bytes_out)
{
    uint64_t bytes = 0;
    SC_REQUIRE(bytes_out != NULL);
    SC_REQUIRE(tokens_max <= SC_K_DRAFT_MAX);
    SC_TRY(sc_kernel_check_dtype("node store", dtype));
    if (__builtin_mul_overflow((uint64_t)row_count * tokens_max, part_elems, &bytes)
        || __builtin_mul_overflow(bytes, sc_kernel_elem_bytes(dtype), &bytes)
        || bytes > INT64_MAX)
        return SC_FAIL(SC_ERR_OVERFLOW, "%u rows of %u nodes of %llu elements", row_count,
            tokens_max, (unsigned long long)part_elems);
    *bytes_out = bytes;
    return SC_OK;
}
