/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled as the row avx512_bf16 is: for processors that have it alone. */
#include "delta/stream_wide.h"
#include "kernels_turns.h"

void turns_run(const uint8_t *from, uint8_t *to, uint32_t rows, bool again, struct tokens *x)
{
    struct wide_stream w = {.from = from, .to = {to, NULL}, .next = from, .rows = rows,
        .dtype = SC_DTYPE_BF16};
    wide_turns(&w, TURNS_K_DIM / 16, again, x);
}
