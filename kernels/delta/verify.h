/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch of a verify on the host. */
#ifndef SC_DELTA_VERIFY_H
#define SC_DELTA_VERIFY_H

#include "draft_path.h"

enum { SC_VERIFY_ROWS = 8 }; /* rows of S that pass through a tree together */

static inline uint64_t sc_delta_verify_scratch(const sc_k_delta_verify_params *p)
{
    uint64_t k = p->tokens.shape.k_dim, v = p->tokens.shape.v_dim;
    return p->tokens_max * (4 * k + 2 * v + 5 + SC_VERIFY_ROWS * k) * sizeof(float);
}

#endif
