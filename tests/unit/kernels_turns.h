/* SPDX-License-Identifier: Apache-2.0 */
/* The two forms of a step on a bf16 state that the processor's maker decides between, for tests. */
#ifndef SC_TESTS_KERNELS_TURNS_H
#define SC_TESTS_KERNELS_TURNS_H

#include "delta/rows_plain.h"

enum { TURNS_K_DIM = 128 };

/* `rows` bf16 rows of TURNS_K_DIM from `from` to `to` (which may be one) by the token in x. */
void turns_run(const uint8_t *from, uint8_t *to, uint32_t rows, bool again, struct tokens *x);

#endif
