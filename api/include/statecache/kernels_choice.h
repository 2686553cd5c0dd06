/* SPDX-License-Identifier: Apache-2.0 */
/** Which row of the kernel table serves what, resolved once and told with its reasons.
 *
 * Without this, each call takes the first row of its operation that runs here and can do what the
 * call asks (sc_k_choice() in kernels.h). A sc_kernels fixes the rows beforehand, for all that a
 * model needs, so that nothing is decided per call and a wish that cannot be granted is known at
 * the start:
 *
 *   decode_backend   decode, a token in each row: DECODE_PACKED, DECODE, CONV_UPDATE, SSM,
 *                    KDA_UPDATE
 *   extend_backend   prefill and all else: DELTA_CHUNK, CONV_PREFILL, GATES, norms, movers, ...
 *   verify           takes decode's row where that can do it, else extend's; trees of drafts only
 *                    a row that takes parents
 *
 * A name is a row's ("reference", "avx2", "avx512", "sm90"). Rows before it in the table are passed
 * over; an operation that it lacks, or lacks a feature for, falls to the next one, and the reason
 * says so. SC_KERNEL_<OP>=<row> in the environment outranks both. */
#ifndef STATECACHE_KERNELS_CHOICE_H
#define STATECACHE_KERNELS_CHOICE_H

#include "statecache/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sc_kernels sc_kernels;

typedef struct sc_kernels_options {
    size_t struct_size;
    sc_backend *backend;        /* NULL: the host */
    const char *decode_backend; /* NULL: the first row that fits */
    const char *extend_backend; /* NULL: the first row that fits */
    sc_dtype dtype;             /* of tensors: F32 or BF16 */
    sc_dtype state_dtype;       /* of recurrent states: F32 or BF16 */
    uint32_t dim;               /* largest of K, V (N, P); 0: not known */
    uint32_t chunk;             /* of prefill; 0: not known */
    bool strided;               /* slots are not end to end (page-major, padded) */
    bool saves;                 /* prefill saves states on the way */
    bool trees;                 /* drafts are trees */
    bool ring;                  /* replay */
    const sc_allocator *allocator; /* NULL: default */
} sc_kernels_options;
#define SC_KERNELS_OPTIONS_INIT                                                                    \
    {sizeof(sc_kernels_options), NULL, NULL, NULL, SC_DTYPE_BF16, SC_DTYPE_F32, 0, 0, false,       \
        false, false, false, NULL}

/** What serves one operation. */
typedef struct sc_kernels_row {
    sc_k_op op;
    bool tree;          /* the entry for calls with parents */
    const char *name;   /* static: of the operation, as in SC_KERNEL_<OP> */
    const char *row;    /* static; NULL: none, and calls answer SC_ERR_UNSUPPORTED */
    const char *reason; /* lives as long as the sc_kernels */
} sc_kernels_row;

/** Resolves every operation, and sends one log record ("kernels.chosen").
 * Errors: SC_ERR_INVALID, SC_ERR_NOT_FOUND (a name that is no row's: the text lists those there
 * are), SC_ERR_UNSUPPORTED (a row of another backend, or one that this processor cannot run: the
 * text says what is missing), SC_ERR_NO_MEMORY. */
SC_API sc_status sc_kernels_create(const sc_kernels_options *options, sc_kernels **kernels_out);
/** NULL is allowed. */
SC_API void sc_kernels_destroy(sc_kernels *kernels);
/** The backend with its rows resolved: goes wherever a sc_backend does. Lives as long as `kernels`;
 * NULL for NULL. */
SC_API sc_backend *sc_kernels_backend(sc_kernels *kernels);
/** Entry `index`; one for each operation, and a second one for those that take trees.
 * SC_ERR_INVALID; SC_ERR_NOT_FOUND past the end. */
SC_API sc_status sc_kernels_choice(const sc_kernels *kernels, uint32_t index,
    sc_kernels_row *row_out);

#ifdef __cplusplus
}
#endif
#endif
