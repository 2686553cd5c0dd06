/* SPDX-License-Identifier: Apache-2.0 */
/* Launcher of the selective state space: checks, then the kernel table. */
#include "base/error.h"
#include "kernel_calls.h"
#include "kernel_check.h"
#include "kernel_dispatch.h"
#include "ssm/scan.h"
#include "ssm/ssm_check.h"

sc_status sc_ssm_check_shape(const sc_k_ssm_params *p)
{
    SC_TRY(sc_kernel_check_dtype("x, dt, b, c, z, y", p->dtype));
    SC_REQUIRE(p->heads > 0);
    SC_REQUIRE(p->heads <= 1u << 16);
    SC_REQUIRE(p->groups > 0);
    SC_REQUIRE(p->heads % p->groups == 0);
    SC_REQUIRE(p->head_dim > 0);
    SC_REQUIRE(p->head_dim <= SC_K_DIM_MAX);
    SC_REQUIRE(p->state_dim > 0);
    SC_REQUIRE(p->state_dim <= SC_K_DIM_MAX);
    return SC_OK;
}

sc_status sc_ssm_check_tensors(const sc_k_ssm_params *p, uint32_t token_count)
{
    uint64_t wide = (uint64_t)p->heads * p->head_dim, group = (uint64_t)p->groups * p->state_dim;
    const struct {
        const char *name;
        sc_devptr ptr;
        int64_t stride;
        uint64_t dense;
    } all[] = {{"x", p->x, p->x_stride, wide}, {"dt", p->dt, p->dt_stride, p->heads},
        {"b", p->b, p->b_stride, group}, {"c", p->c, p->c_stride, group},
        {"z", p->z, p->z_stride, wide}, {"y", p->y, p->y_stride, wide}};
    for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        SC_TRY(sc_kernel_check_stride(all[i].name, all[i].stride, all[i].dense));
        bool left_out = all[i].ptr == 0 && all[i].name[0] == 'z'; /* the gate alone may be */
        if (token_count > 0 && !left_out)
            SC_TRY(sc_kernel_check_tensor(all[i].name, all[i].ptr, p->dtype));
    }
    if (token_count > 0 && (p->y == p->b || p->y == p->c || p->y == p->dt || p->y == p->x))
        return SC_FAIL(SC_ERR_INVALID, "y is one of x, dt, b, c");
    SC_TRY(sc_kernel_check_tensor("a_log", p->a_log, SC_DTYPE_F32));
    if (p->dt_bias != 0) SC_TRY(sc_kernel_check_tensor("dt_bias", p->dt_bias, SC_DTYPE_F32));
    if (p->d != 0) SC_TRY(sc_kernel_check_tensor("d", p->d, SC_DTYPE_F32));
    return SC_OK;
}

static sc_status check_indices(const sc_k_ssm_params *p)
{
    SC_TRY(sc_kernel_check_index("row_start", p->row_start));
    if (p->position != 0) SC_TRY(sc_kernel_check_index("position", p->position));
    SC_TRY(sc_kernel_check_index("source", p->source));
    SC_TRY(sc_kernel_check_index("dest", p->dest));
    return sc_kernel_check_saves(&p->saves);
}

/* Everything but scratch; saves lie on multiples of `grid`. */
static sc_status check(const sc_backend *backend, sc_k_op op, const sc_k_ssm_params *p,
    uint32_t grid, const struct sc_kernel_row **row_out)
{
    SC_TRY(sc_ssm_check_shape(p));
    SC_REQUIRE(p->token_count <= INT32_MAX);
    SC_TRY(sc_kernel_check_slots("state", &p->state,
        (uint64_t)p->heads * p->head_dim * p->state_dim));
    SC_TRY(sc_kernel_check_initial(&p->initial, p->row_count,
        (uint64_t)p->heads * p->head_dim * p->state_dim));
    SC_TRY(sc_kernel_pick(backend, op, sc_kernel_need(p->dtype, p->state.dtype)
        | sc_kernel_need_initial(&p->initial), row_out));
    if (p->row_count == 0) return SC_OK;
    SC_TRY(sc_ssm_check_tensors(p, p->token_count));
    SC_TRY(check_indices(p));
    if (backend->host_memory)
        SC_TRY(sc_kernel_check_rows(&(struct sc_kernel_rows){.row_count = p->row_count,
            .token_count = p->token_count, .row_start = sc_host_ptr(p->row_start),
            .position = sc_host_ptr(p->position), .source = sc_host_ptr(p->source),
            .dest = sc_host_ptr(p->dest), .save_row = sc_host_ptr(p->saves.row),
            .save_pos = sc_host_ptr(p->saves.pos), .save_slot = sc_host_ptr(p->saves.slot),
            .save_count = p->saves.count, .save_grid = grid, .slots = &p->state}));
    return SC_OK;
}

sc_status sc_kernel_ssm_check(const sc_backend *backend, const sc_k_ssm_params *params,
    const struct sc_kernel_row **row_out)
{
    return check(backend, SC_K_OP_SSM, params, 1, row_out);
}

sc_status sc_k_ssm(sc_backend *backend, const sc_k_ssm_params *params, sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    SC_TRY(sc_kernel_ssm_check(backend != NULL ? backend : sc_backend_host(), params, &row));
    return params->row_count > 0 ? row->launch(params, stream) : SC_OK;
}

sc_status sc_k_ssm_chunk_scratch(sc_backend *backend, const sc_k_ssm_chunk_params *params,
    uint64_t *bytes_out)
{
    (void)backend; /* the host's answer is the only one so far */
    SC_REQUIRE(params != NULL);
    SC_REQUIRE(bytes_out != NULL);
    SC_REQUIRE(params->chunk >= 16);
    SC_REQUIRE(params->chunk <= 256);
    SC_REQUIRE((params->chunk & (params->chunk - 1)) == 0);
    SC_REQUIRE(params->tokens.head_dim > 0);
    SC_REQUIRE(params->tokens.head_dim <= SC_K_DIM_MAX);
    SC_REQUIRE(params->tokens.state_dim > 0);
    SC_REQUIRE(params->tokens.state_dim <= SC_K_DIM_MAX);
    *bytes_out = sc_scan_scratch(params, NULL);
    return SC_OK;
}

sc_status sc_kernel_ssm_chunk_check(const sc_backend *backend,
    const sc_k_ssm_chunk_params *params, const struct sc_kernel_row **row_out)
{
    uint64_t need_bytes = 0;
    SC_TRY(sc_k_ssm_chunk_scratch(NULL, params, &need_bytes));
    SC_TRY(check(backend, SC_K_OP_SSM_CHUNK, &params->tokens, params->chunk, row_out));
    if (params->tokens.row_count == 0) return SC_OK;
    return sc_kernel_check_scratch(params->scratch, params->scratch_bytes, need_bytes);
}

sc_status sc_k_ssm_chunk(sc_backend *backend, const sc_k_ssm_chunk_params *params,
    sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    SC_TRY(sc_kernel_ssm_chunk_check(backend != NULL ? backend : sc_backend_host(), params, &row));
    return params->tokens.row_count > 0 ? row->launch(params, stream) : SC_OK;
}
