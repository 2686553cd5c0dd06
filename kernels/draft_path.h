/* SPDX-License-Identifier: Apache-2.0 */
/* Trees of draft tokens: parents and paths of one row, on the host. */
#ifndef SC_DRAFT_PATH_H
#define SC_DRAFT_PATH_H

#include "kernel_check.h"
#include "statecache/kernels_draft.h"

/* Parent of the row's token t, -1 for the row's state. `parent` NULL: a chain. */
static inline int32_t sc_draft_parent(const int32_t *parent, int32_t start, int32_t t)
{
    if (parent == NULL) return t - 1;
    return parent[start + t] < 0 ? -1 : parent[start + t];
}

/* Tokens from the row's state to `node`, in their order; their number. */
static inline uint32_t sc_draft_path(const int32_t *parent, int32_t start, int32_t node,
    int32_t path[SC_K_DRAFT_MAX])
{
    uint32_t count = 0;
    for (int32_t t = node; t >= 0; t = sc_draft_parent(parent, start, t)) path[count++] = t;
    for (uint32_t i = 0; i < count / 2; i++) {
        int32_t last = path[count - 1 - i];
        path[count - 1 - i] = path[i];
        path[i] = last;
    }
    return count;
}

/* check_draft.c: rows of at most tokens_max tokens, parents before their children. Padded rows may
 * hold anything. */
sc_status sc_kernel_check_tree(const struct sc_kernel_rows *rows, const int32_t *parent,
    uint32_t tokens_max);
/* Nodes of rows, and saves at positions on the accepted paths. */
sc_status sc_kernel_check_nodes(const struct sc_kernel_rows *rows, const int32_t *parent,
    const int32_t *node);
/* A store of parts of `part_elems` elements of `dtype`, if there is one. */
sc_status sc_kernel_check_store(const sc_k_node_store *store, uint32_t row_count,
    uint32_t tokens_max, uint64_t part_elems, sc_dtype dtype);

#endif
