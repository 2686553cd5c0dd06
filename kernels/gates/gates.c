/* SPDX-License-Identifier: Apache-2.0 */
/* Launcher of the gates. */
#include "base/error.h"
#include "gates/gates_check.h"
#include "kernel_calls.h"

sc_status sc_kernel_check_gate(const sc_k_gate_weights *w)
{
    SC_REQUIRE(w->gate == SC_K_GATE_GDN || w->gate == SC_K_GATE_KDA_SOFTPLUS
        || w->gate == SC_K_GATE_KDA_BOUNDED);
    bool bounded = w->gate == SC_K_GATE_KDA_BOUNDED;
    if (w->a_log != 0)
        SC_TRY(sc_kernel_check_tensor("a_log", w->a_log, SC_DTYPE_F32));
    else if (!bounded)
        return SC_FAIL(SC_ERR_INVALID, "a_log is 0; only the bounded gate works without");
    if (bounded && !(w->lower_bound >= -5.0f && w->lower_bound < 0.0f))
        return SC_FAIL(SC_ERR_INVALID, "lower_bound %g is outside [-5, 0)",
            (double)w->lower_bound);
    if (w->dt_bias != 0) {
        SC_TRY(sc_kernel_check_dtype("dt_bias", w->dt_bias_dtype));
        SC_TRY(sc_kernel_check_tensor("dt_bias", w->dt_bias, w->dt_bias_dtype));
    }
    return SC_OK;
}

sc_status sc_kernel_gates_check(const sc_backend *backend,
    const sc_k_gates_params *p, const struct sc_kernel_row **row_out)
{
    SC_TRY(sc_kernel_check_dtype("a and b", p->dtype));
    SC_REQUIRE(p->heads > 0);
    SC_REQUIRE(p->heads <= 1u << 20);
    SC_REQUIRE(p->token_count <= INT32_MAX);
    SC_REQUIRE(p->g != 0 || p->beta != 0);
    if (p->g != 0) {
        SC_TRY(sc_kernel_check_gate(&p->weights));
        SC_REQUIRE(p->weights.gate == SC_K_GATE_GDN || (p->dim > 0 && p->dim <= SC_K_DIM_MAX));
        uint64_t n = p->weights.gate == SC_K_GATE_GDN ? 1 : p->dim;
        SC_TRY(sc_kernel_check_tensor("a", p->a, p->dtype));
        SC_TRY(sc_kernel_check_stride("a", p->a_stride, p->heads * n));
        SC_TRY(sc_kernel_check_tensor("g", p->g, SC_DTYPE_F32));
    }
    if (p->beta != 0) {
        SC_TRY(sc_kernel_check_tensor("b", p->b, p->dtype));
        SC_TRY(sc_kernel_check_stride("b", p->b_stride, p->heads));
        SC_TRY(sc_kernel_check_tensor("beta", p->beta, SC_DTYPE_F32));
    }
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_GATES, sc_kernel_need(p->dtype, (sc_dtype)0), row_out));
    return SC_OK;
}

sc_status sc_k_gates(sc_backend *backend, const sc_k_gates_params *params, sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    SC_TRY(sc_kernel_gates_check(backend != NULL ? backend : sc_backend_host(), params,
        &row));
    return params->token_count > 0 ? row->launch(params, stream) : SC_OK;
}
