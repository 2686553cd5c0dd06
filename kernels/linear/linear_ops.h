/* SPDX-License-Identifier: Apache-2.0 */
/* A form of a layer as a list of operations: every one is checked before the first is launched, so
 * that a call which fails has changed nothing. */
#ifndef SC_LINEAR_OPS_H
#define SC_LINEAR_OPS_H

#include "base/error.h"
#include "kernel_dispatch.h"
#include "statecache/kernels_linear.h"

enum { LINEAR_OPS_MAX = 3 * SC_LINEAR_WINDOWS_MAX };

typedef sc_status (*linear_check_fn)(const sc_backend *backend, const void *params,
    const struct sc_kernel_row **row_out);

struct linear_op {
    linear_check_fn check;
    const void *params;
    bool launched; /* false: checked alone */
};

struct linear_ops {
    struct linear_op op[LINEAR_OPS_MAX];
    uint32_t count;
};

/* The check of kernel_calls.h for an entry of the list. */
#define LINEAR_CHECK(name, type)                                                                   \
    static sc_status check_##name(const sc_backend *backend, const void *params,                   \
        const struct sc_kernel_row **row_out)                                                      \
    {                                                                                              \
        return sc_kernel_##name##_check(backend, (const type *)params, row_out);                   \
    }

static inline void linear_add(struct linear_ops *ops, linear_check_fn check, const void *params,
    bool launched)
{
    ops->op[ops->count++] = (struct linear_op){check, params, launched};
}

static inline sc_status linear_run(const sc_backend *backend, const struct linear_ops *ops,
    sc_stream *stream)
{
    const struct sc_kernel_row *rows[LINEAR_OPS_MAX] = {NULL};
    for (uint32_t i = 0; i < ops->count; i++)
        SC_TRY(ops->op[i].check(backend, ops->op[i].params, &rows[i]));
    for (uint32_t i = 0; i < ops->count; i++)
        if (ops->op[i].launched) SC_TRY(rows[i]->launch(ops->op[i].params, stream));
    return SC_OK;
}

/* Layers of Mamba-2; `batch` may be NULL, `layer` not. */
sc_status sc_linear_ssm_scratch(sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_linear_form form, uint64_t *bytes_out);
sc_status sc_linear_ssm_run(sc_backend *backend, const sc_linear_layer *layer,
    const sc_linear_batch *batch, sc_linear_form form, sc_stream *stream);

#endif
