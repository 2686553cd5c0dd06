/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the norms. */
#include <math.h>

#include "base/error.h"
#include "kernel_check.h"
#include "kernel_calls.h"

static sc_status check_shape(uint32_t tokens, uint32_t heads, uint32_t dim)
{
    SC_REQUIRE(tokens <= INT32_MAX);
    SC_REQUIRE(heads > 0);
    SC_REQUIRE(dim > 0);
    if ((uint64_t)heads * dim > 1u << 30)
        return SC_FAIL(SC_ERR_INVALID, "heads * dim = %llu is above 2^30",
            (unsigned long long)heads * dim);
    return SC_OK;
}

sc_status sc_k_l2norm(sc_backend *backend, const sc_k_l2norm_params *params, sc_stream *stream)
{
    if (backend == NULL) backend = sc_backend_host();
    SC_REQUIRE(params != NULL);
    sc_k_l2norm_params p = *params;
    if ((uint32_t)p.out_dtype == 0) p.out_dtype = p.dtype;
    SC_TRY(sc_kernel_check_dtype("x", p.dtype));
    SC_TRY(sc_kernel_check_dtype("y", p.out_dtype));
    SC_TRY(check_shape(p.token_count, p.heads, p.dim));
    SC_TRY(sc_kernel_check_tensor("x", p.x, p.dtype));
    SC_TRY(sc_kernel_check_tensor("y", p.y, p.out_dtype));
    SC_TRY(sc_kernel_check_stride("x", p.x_stride, (uint64_t)p.heads * p.dim));
    SC_TRY(sc_kernel_check_stride("y", p.y_stride, (uint64_t)p.heads * p.dim));
    if (!(p.eps >= 0.0f && isfinite(p.eps))) return SC_FAIL(SC_ERR_INVALID, "eps is negative");
    if (p.eps == 0.0f) p.eps = 1e-6f;
    const struct sc_kernel_row *row = NULL;
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_L2NORM,
        sc_kernel_need(p.dtype, (sc_dtype)0) | sc_kernel_need(p.out_dtype, (sc_dtype)0), &row));
    if (p.token_count == 0) return SC_OK;
    return row->launch(&p, stream);
}

sc_status sc_kernel_gated_rmsnorm_check(const sc_backend *backend,
    const sc_k_gated_rmsnorm_params *p, const struct sc_kernel_row **row_out)
{
    SC_TRY(sc_kernel_check_dtype("x", p->dtype));
    SC_TRY(sc_kernel_check_dtype("weight", p->weight_dtype));
    SC_TRY(check_shape(p->token_count, p->heads, p->dim));
    SC_REQUIRE(p->act == SC_K_ACT_SILU || p->act == SC_K_ACT_SIGMOID);
    if (!(p->eps > 0.0f && isfinite(p->eps)))
        return SC_FAIL(SC_ERR_INVALID, "eps %g is not positive", (double)p->eps);
    uint64_t dense = (uint64_t)p->heads * p->dim;
    SC_TRY(sc_kernel_check_tensor("x", p->x, p->dtype));
    sc_dtype z_dtype = (uint32_t)p->z_dtype != 0 ? p->z_dtype : p->dtype;
    SC_TRY(sc_kernel_check_dtype("z", z_dtype));
    SC_TRY(sc_kernel_check_tensor("z", p->z, z_dtype));
    SC_TRY(sc_kernel_check_tensor("y", p->y, p->dtype));
    SC_TRY(sc_kernel_check_tensor("weight", p->weight, p->weight_dtype));
    SC_TRY(sc_kernel_check_stride("x", p->x_stride, dense));
    SC_TRY(sc_kernel_check_stride("z", p->z_stride, dense));
    SC_TRY(sc_kernel_check_stride("y", p->y_stride, dense));
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_GATED_RMSNORM, sc_kernel_need(p->dtype, (sc_dtype)0)
        | (z_dtype != p->dtype ? SC_KF_MIXED : 0), row_out));
    return SC_OK;
}

sc_status sc_k_gated_rmsnorm(sc_backend *backend, const sc_k_gated_rmsnorm_params *params,
    sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    SC_TRY(sc_kernel_gated_rmsnorm_check(backend != NULL ? backend : sc_backend_host(), params,
        &row));
    return params->token_count > 0 ? row->launch(params, stream) : SC_OK;
}
