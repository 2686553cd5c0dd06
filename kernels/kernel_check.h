/* SPDX-License-Identifier: Apache-2.0 */
/* Argument checks that the launchers share. Names of arguments go into the error text. */
#ifndef SC_KERNEL_CHECK_H
#define SC_KERNEL_CHECK_H

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of an element of the two dtypes that kernels know, else 0. */
uint32_t sc_kernel_elem_bytes(sc_dtype dtype);

/* F32 or BF16, else SC_ERR_UNSUPPORTED. */
sc_status sc_kernel_check_dtype(const char *name, sc_dtype dtype);
/* Not 0 and aligned to its element. */
sc_status sc_kernel_check_tensor(const char *name, sc_devptr ptr, sc_dtype dtype);
sc_status sc_kernel_check_index(const char *name, sc_devptr ptr);
/* The index arrays of saves, if there are any. */
sc_status sc_kernel_check_saves(const sc_k_saves *saves);
/* 0 (dense) or dense <= stride <= 2^30 elements. */
sc_status sc_kernel_check_stride(const char *name, int64_t stride, uint64_t dense);
/* Base, alignment and a stride of at least `part_bytes`. */
sc_status sc_kernel_check_slots(const char *name, const sc_k_slots *slots, uint64_t part_elems);

/* 64-byte aligned and large enough. */
sc_status sc_kernel_check_scratch(sc_devptr scratch, uint64_t bytes, uint64_t need_bytes);
/* Dense beginnings of `row_count` rows, if there are any. */
sc_status sc_kernel_check_initial(const sc_k_slots *initial, uint32_t row_count,
    uint64_t part_elems);

static inline int64_t sc_kernel_stride(int64_t stride, uint64_t dense)
{
    return stride != 0 ? stride : (int64_t)dense;
}

/* The index arrays of one call, as the host reads them. */
struct sc_kernel_rows {
    uint32_t row_count;
    uint32_t token_count;
    const int32_t *row_start; /* NULL: row r is token r */
    const int32_t *position;  /* NULL: zeros */
    const int32_t *source;
    const int32_t *dest;      /* NULL: none */
    const int32_t *save;      /* NULL, or a second destination for each row */
    const int32_t *save_row, *save_pos, *save_slot;
    uint32_t save_count;
    uint32_t save_grid;       /* positions are multiples of it */
    const sc_k_slots *slots;
};

/* Everything the padding contract and "a slot is the destination of at most one row" ask for.
 * O((rows + saves)^2) comparisons, small beside the states that the call moves. */
sc_status sc_kernel_check_rows(const struct sc_kernel_rows *rows);

/* Tokens of row r: 0 for a padded or empty one. */
static inline uint32_t sc_kernel_row_tokens(const int32_t *row_start, uint32_t r)
{
    if (row_start == NULL) return 1;
    return row_start[r + 1] > row_start[r] ? (uint32_t)(row_start[r + 1] - row_start[r]) : 0;
}

#ifdef __cplusplus
}
#endif
#endif
