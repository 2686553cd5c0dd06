/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of draft tokens of the delta rule: checks, then the kernel table. */
#include "delta/verify.h"

#include "base/error.h"
#include "delta/delta_check.h"
#include "kernel_calls.h"

static uint64_t part_elems(const sc_k_delta_shape *s)
{
    return (uint64_t)s->v_heads * s->v_dim * s->k_dim;
}

static struct sc_kernel_rows rows_of(const sc_k_delta_params *p)
{
    return (struct sc_kernel_rows){.row_count = p->row_count, .token_count = p->token_count,
        .row_start = sc_host_ptr(p->row_start), .position = sc_host_ptr(p->position),
        .source = sc_host_ptr(p->source), .dest = sc_host_ptr(p->dest),
        .save_row = sc_host_ptr(p->saves.row), .save_pos = sc_host_ptr(p->saves.pos),
        .save_slot = sc_host_ptr(p->saves.slot), .save_count = p->saves.count, .save_grid = 1,
        .slots = &p->state};
}

sc_status sc_k_delta_verify_scratch(sc_backend *backend, const sc_k_delta_verify_params *params,
    uint64_t *bytes_out)
{
    (void)backend; /* the host's answer is the only one so far */
    SC_REQUIRE(params != NULL);
    SC_REQUIRE(bytes_out != NULL);
    SC_REQUIRE(params->tokens_max > 0);
    SC_REQUIRE(params->tokens_max <= SC_K_DRAFT_MAX);
    SC_REQUIRE(params->tokens.shape.k_dim > 0);
    SC_REQUIRE(params->tokens.shape.k_dim <= SC_K_DIM_MAX);
    SC_REQUIRE(params->tokens.shape.v_dim > 0);
    SC_REQUIRE(params->tokens.shape.v_dim <= SC_K_DIM_MAX);
    *bytes_out = sc_delta_verify_scratch(params);
    return SC_OK;
}

sc_status sc_kernel_delta_verify_check(const sc_backend *backend,
    const sc_k_delta_verify_params *params, const struct sc_kernel_row **row_out)
{
    uint64_t need_bytes = 0;
    const sc_k_delta_params *p = &params->tokens;
    SC_TRY(sc_kernel_check_dtype("q, k, v, o", p->dtype));
    SC_TRY(sc_delta_check_shape(&p->shape, &p->state));
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_DELTA_VERIFY,
        sc_kernel_need(p->dtype, p->state.dtype) | sc_kernel_need_initial(&p->initial)
        | (params->parent != 0 ? SC_KF_TREE : 0), row_out));
    SC_TRY(sc_k_delta_verify_scratch(NULL, params, &need_bytes));
    SC_REQUIRE(p->dest == 0);
    SC_REQUIRE(p->saves.count == 0);
    if (p->row_count == 0) return SC_OK;
    SC_TRY(sc_delta_check_tokens(p, true));
    if (params->parent != 0) SC_TRY(sc_kernel_check_index("parent", params->parent));
    SC_TRY(sc_kernel_check_scratch(p->scratch, p->scratch_bytes, need_bytes));
    SC_TRY(sc_kernel_check_store(&params->states, p->row_count, params->tokens_max,
        part_elems(&p->shape), p->state.dtype));
    if (backend->host_memory) {
        struct sc_kernel_rows rows = rows_of(p);
        SC_TRY(sc_kernel_check_rows(&rows));
        SC_TRY(sc_kernel_check_tree(&rows, sc_host_ptr(params->parent), params->tokens_max));
    }
    return SC_OK;
}

sc_status sc_k_delta_verify(sc_backend *backend, const sc_k_delta_verify_params *params,
    sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    SC_TRY(sc_kernel_delta_verify_check(backend != NULL ? backend : sc_backend_host(), params,
        &row));
    return params->tokens.row_count > 0 ? row->launch(params, stream) : SC_OK;
}

sc_status sc_kernel_delta_commit_check(const sc_backend *backend,
    const sc_k_delta_commit_params *params, const struct sc_kernel_row **row_out)
{
    const sc_k_delta_params *p = &params->tokens;
    SC_TRY(sc_kernel_check_dtype("k and v", p->dtype));
    SC_TRY(sc_delta_check_shape(&p->shape, &p->state));
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_DELTA_COMMIT,
        sc_kernel_need(p->dtype, p->state.dtype) | sc_kernel_need_initial(&p->initial)
        | (params->parent != 0 ? SC_KF_TREE : 0), row_out));
    if (p->row_count == 0) return SC_OK;
    SC_TRY(sc_delta_check_tokens(p, false));
    SC_TRY(sc_kernel_check_index("dest", p->dest));
    SC_TRY(sc_kernel_check_index("node", params->node));
    if (params->parent != 0) SC_TRY(sc_kernel_check_index("parent", params->parent));
    SC_TRY(sc_kernel_check_store(&params->states, p->row_count, 0, part_elems(&p->shape),
        p->state.dtype));
    if (backend->host_memory) {
        struct sc_kernel_rows rows = rows_of(p);
        uint32_t most = params->states.base != 0 ? params->states.tokens_max : SC_K_DRAFT_MAX;
        SC_TRY(sc_kernel_check_rows(&rows));
        SC_TRY(sc_kernel_check_tree(&rows, sc_host_ptr(params->parent), most));
        SC_TRY(sc_kernel_check_nodes(&rows, sc_host_ptr(params->parent),
            sc_host_ptr(params->node)));
    }
    return SC_OK;
}

sc_status sc_k_delta_commit(sc_backend *backend, const sc_k_delta_commit_params *params,
    sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    SC_TRY(sc_kernel_delta_commit_check(backend != NULL ? backend : sc_backend_host(), params,
        &row));
    return params->tokens.row_count > 0 ? row->launch(params, stream) : SC_OK;
}
