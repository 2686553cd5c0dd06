/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the projections: checks, then the kernel table. */
#include "base/error.h"
#include "kernel_check.h"
#include "kernel_dispatch.h"
#include "statecache/kernels_project.h"

enum { DIM_MAX = 1 << 24 };

static bool overlap(sc_devptr a, uint64_t a_bytes, sc_devptr b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static uint64_t span_bytes(uint32_t rows, int64_t stride, uint32_t width, sc_dtype dtype)
{
    return ((uint64_t)sc_kernel_stride(stride, width) * (rows - 1) + width)
        * sc_kernel_elem_bytes(dtype);
}

static sc_status check(const sc_backend *backend, const sc_k_project_params *p,
    const struct sc_kernel_row **row_out)
{
    SC_TRY(sc_kernel_check_dtype("x", p->dtype));
    SC_TRY(sc_kernel_check_dtype("weight", p->weight_dtype));
    SC_TRY(sc_kernel_check_dtype("y", p->y_dtype));
    SC_REQUIRE(p->in_dim > 0);
    SC_REQUIRE(p->in_dim <= DIM_MAX);
    SC_REQUIRE(p->out_dim > 0);
    SC_REQUIRE(p->out_dim <= DIM_MAX);
    SC_REQUIRE(p->token_count <= INT32_MAX);
    SC_TRY(sc_kernel_check_stride("x", p->x_stride, p->in_dim));
    SC_TRY(sc_kernel_check_stride("y", p->y_stride, p->out_dim));
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_PROJECT, sc_kernel_need(p->dtype, (sc_dtype)0)
        | sc_kernel_need(p->weight_dtype, (sc_dtype)0) | sc_kernel_need(p->y_dtype, (sc_dtype)0),
        row_out));
    if (p->token_count == 0) return SC_OK;
    SC_TRY(sc_kernel_check_tensor("x", p->x, p->dtype));
    SC_TRY(sc_kernel_check_tensor("weight", p->weight, p->weight_dtype));
    SC_TRY(sc_kernel_check_tensor("y", p->y, p->y_dtype));
    uint64_t y_bytes = span_bytes(p->token_count, p->y_stride, p->out_dim, p->y_dtype);
    if (overlap(p->y, y_bytes, p->x, span_bytes(p->token_count, p->x_stride, p->in_dim, p->dtype))
        || overlap(p->y, y_bytes, p->weight,
            span_bytes(p->out_dim, 0, p->in_dim, p->weight_dtype)))
        return SC_FAIL(SC_ERR_INVALID, "y overlaps x or the weights");
    return SC_OK;
}

sc_status sc_k_project(sc_backend *backend, const sc_k_project_params *params, sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    SC_TRY(check(backend != NULL ? backend : sc_backend_host(), params, &row));
    return params->token_count > 0 ? row->launch(params, stream) : SC_OK;
}

sc_status sc_k_low_rank(sc_backend *backend, const sc_k_low_rank_params *params,
    sc_stream *stream)
{
    const struct sc_kernel_row *down_row = NULL, *up_row = NULL;
    if (backend == NULL) backend = sc_backend_host();
    SC_REQUIRE(params != NULL);
    const sc_k_low_rank_params *p = params;
    sc_k_project_params down = {.x = p->x, .weight = p->down, .y = p->scratch,
        .x_stride = p->x_stride, .dtype = p->dtype, .weight_dtype = p->weight_dtype,
        .y_dtype = SC_DTYPE_F32, .in_dim = p->in_dim, .out_dim = p->rank,
        .token_count = p->token_count};
    sc_k_project_params up = {.x = p->scratch, .weight = p->up, .y = p->y,
        .y_stride = p->y_stride, .dtype = SC_DTYPE_F32, .weight_dtype = p->weight_dtype,
        .y_dtype = p->y_dtype, .in_dim = p->rank, .out_dim = p->out_dim,
        .token_count = p->token_count};
    SC_TRY(check(backend, &down, &down_row));
    SC_TRY(check(backend, &up, &up_row));
    if (p->token_count == 0) return SC_OK;
    if (p->scratch_bytes / sizeof(float) / p->rank < p->token_count)
        return SC_FAIL(SC_ERR_INVALID, "scratch has %llu bytes for %u tokens of rank %u",
            (unsigned long long)p->scratch_bytes, p->token_count, p->rank);
    SC_TRY(down_row->launch(&down, stream));
    return up_row->launch(&up, stream);
}
