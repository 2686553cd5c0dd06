/* SPDX-License-Identifier: Apache-2.0 */
/* Resolving a row of the table beforehand, with a reason: for choice.c. */
#ifndef SC_KERNEL_RESOLVE_H
#define SC_KERNEL_RESOLVE_H

#include "kernel_dispatch.h"

struct sc_kernel_wish {
    uint32_t need;      /* features */
    uint32_t dim;       /* 0: not known */
    uint32_t chunk;     /* 0: not known, or of no meaning */
    const char *asked;  /* rows before it are passed over; NULL: none are */
};

/* The first row of `op` that fits backend, processor, environment and wish; NULL: there is none.
 * The reason says what was passed over and why. */
const struct sc_kernel_row *sc_kernel_resolve(const sc_backend *backend, sc_k_op op,
    const struct sc_kernel_wish *wish, char *reason, size_t reason_bytes);

/* As in SC_KERNEL_<OP>. */
const char *sc_kernel_op_name(sc_k_op op);

#endif
