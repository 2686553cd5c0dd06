/* SPDX-License-Identifier: Apache-2.0 */
/** Movers of states: copies, conversions between dtypes and int8, of all parts in one call.
 *
 * A part is `rows` rows of `row_elems` elements: [heads * v_dim][k_dim] of a recurrent matrix, the
 * W-1 rows of a conv window. What happens to it follows from the dtypes of its two ends:
 *
 *   equal          bytes are copied as they are, NaN too
 *   F32 -> BF16    rounded to nearest, ties to even; BF16 -> F32 is exact
 *   -> U8          int8, one byte an element and an fp32 scale for each row: scale = max |x| / 127,
 *                  q = x / scale rounded to nearest even. A row of zeros, or of numbers below
 *                  2^-118, has scale 0; one that is not finite has a NaN as scale, so that whoever
 *                  reads it sees.
 *   U8 ->          q * scale
 *
 * Each end is a pool's part (slots named by an index array) or a dense array (no index array: row r
 * of the call is entry r of the array). Gather and scatter are the two mixed forms:
 *
 *   source[r]   negative: the row is skipped, its destination untouched. 0: zeros. > 0: that slot.
 *   dest[r]     negative: skipped. > 0: that slot. 0 is refused: nobody writes the null slot.
 *
 * The destinations of a call are distinct. Where both ends are one memory, none is the source of
 * another row; a slot onto itself is left alone when nothing is to be converted, and else refused.
 * sc_state_copy() (snapshot.h) knows pools and their slots' owners; this is the kernel below.
 * Errors, threads and backends: as in kernels.h; the host checks everything first, and on error
 * nothing has changed. */
#ifndef STATECACHE_KERNELS_MOVE_H
#define STATECACHE_KERNELS_MOVE_H

#include "statecache/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/** One part. F32, BF16 or U8 at either end. */
typedef struct sc_k_move_part {
    sc_k_slots from, to;             /* slot_count, if given: that many slots or entries */
    sc_k_slots from_scale, to_scale; /* F32 [slot][rows]; only beside an end of U8, else all 0 */
    uint32_t rows;
    uint32_t row_elems;
} sc_k_move_part;

typedef struct sc_k_move_params {
    const sc_k_move_part *parts; /* [part_count] in host memory, on every backend */
    uint32_t part_count;
    uint32_t row_count;
    sc_devptr source;            /* [row_count] int32; 0: `from` is dense */
    sc_devptr dest;              /* [row_count] int32; 0: `to` is dense */
} sc_k_move_params;

/** Moves all parts of all rows. Cost: reads and writes each byte once; O(row_count^2) comparisons
 * of indices on the host. */
SC_API sc_status sc_k_move(sc_backend *backend, const sc_k_move_params *params,
    sc_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
