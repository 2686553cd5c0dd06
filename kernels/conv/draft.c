/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of draft tokens of the conv: checks, then the kernel table. */
#include "base/error.h"
#include "conv/conv_check.h"
#include "draft_path.h"
#include "kernel_calls.h"

static struct sc_kernel_rows rows_of(const sc_k_conv_prefill_params *p)
{
    return (struct sc_kernel_rows){.row_count = p->row_count, .token_count = p->token_count,
        .row_start = sc_host_ptr(p->row_start), .position = sc_host_ptr(p->position),
        .source = sc_host_ptr(p->source), .dest = sc_host_ptr(p->dest),
        .save_row = sc_host_ptr(p->saves.row), .save_pos = sc_host_ptr(p->saves.pos),
        .save_slot = sc_host_ptr(p->saves.slot), .save_count = p->saves.count, .save_grid = 1,
        .slots = &p->window};
}

static sc_status check_indices(const sc_k_conv_prefill_params *p, sc_devptr parent)
{
    SC_TRY(sc_kernel_check_index("row_start", p->row_start));
    SC_TRY(sc_kernel_check_index("source", p->source));
    SC_TRY(sc_kernel_check_initial(&p->initial, p->row_count,
        (uint64_t)(p->width - 1) * p->channels));
    if (p->position != 0) SC_TRY(sc_kernel_check_index("position", p->position));
    if (parent != 0) SC_TRY(sc_kernel_check_index("parent", parent));
    return sc_kernel_check_saves(&p->saves);
}

sc_status sc_kernel_conv_verify_check(const sc_backend *backend,
    const sc_k_conv_verify_params *params, const struct sc_kernel_row **row_out)
{
    const sc_k_conv_prefill_params *p = &params->tokens;
    SC_REQUIRE(p->order <= SC_K_ORDER_DIM_FIRST);
    SC_TRY(sc_conv_check_common(p->channels, p->width, p->dtype, p->act, &p->window));
    SC_TRY(sc_conv_check_weights(p->weight, p->bias, p->weight_dtype));
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_CONV_VERIFY,
        sc_kernel_need(p->dtype, p->window.dtype) | sc_kernel_need_initial(&p->initial)
        | sc_kernel_need_order(p->order)
        | (params->parent != 0 ? SC_KF_TREE : 0), row_out));
    SC_REQUIRE(p->dest == 0);
    SC_REQUIRE(p->saves.count == 0);
    if (p->row_count == 0) return SC_OK;
    SC_REQUIRE(p->token_count <= INT32_MAX);
    if (p->token_count > 0)
        SC_TRY(sc_conv_check_xy(p->x, p->x_stride, p->y, p->y_stride, p->dtype, p->channels,
            p->token_count));
    SC_TRY(check_indices(p, params->parent));
    SC_TRY(sc_kernel_check_store(&params->windows, p->row_count, 0,
        (uint64_t)(p->width - 1) * p->channels, p->window.dtype));
    if (backend->host_memory) {
        struct sc_kernel_rows rows = rows_of(p);
        SC_TRY(sc_kernel_check_rows(&rows));
        SC_TRY(sc_kernel_check_tree(&rows, sc_host_ptr(params->parent),
            params->windows.base != 0 ? params->windows.tokens_max : SC_K_DRAFT_MAX));
    }
    return SC_OK;
}

sc_status sc_k_conv_verify(sc_backend *backend, const sc_k_conv_verify_params *params,
    sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    SC_TRY(sc_kernel_conv_verify_check(backend != NULL ? backend : sc_backend_host(), params,
        &row));
    return params->tokens.row_count > 0 ? row->launch(params, stream) : SC_OK;
}

sc_status sc_kernel_conv_commit_check(const sc_backend *backend,
    const sc_k_conv_commit_params *params, const struct sc_kernel_row **row_out)
{
    const sc_k_conv_prefill_params *p = &params->tokens;
    SC_REQUIRE(p->order <= SC_K_ORDER_DIM_FIRST);
    SC_TRY(sc_conv_check_common(p->channels, p->width, p->dtype, p->act, &p->window));
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_CONV_COMMIT,
        sc_kernel_need(p->dtype, p->window.dtype) | sc_kernel_need_order(p->order)
        | (params->parent != 0 ? SC_KF_TREE : 0), row_out));
    if (p->row_count == 0) return SC_OK;
    SC_REQUIRE(p->token_count <= INT32_MAX);
    if (p->token_count > 0 && params->windows.base == 0) {
        SC_TRY(sc_kernel_check_tensor("x", p->x, p->dtype));
        SC_TRY(sc_kernel_check_stride("x", p->x_stride, p->channels));
    }
    SC_TRY(check_indices(p, params->parent));
    SC_TRY(sc_kernel_check_index("dest", p->dest));
    SC_TRY(sc_kernel_check_index("node", params->node));
    SC_TRY(sc_kernel_check_store(&params->windows, p->row_count, 0,
        (uint64_t)(p->width - 1) * p->channels, p->window.dtype));
    if (backend->host_memory) {
        struct sc_kernel_rows rows = rows_of(p);
        SC_TRY(sc_kernel_check_rows(&rows));
        SC_TRY(sc_kernel_check_tree(&rows, sc_host_ptr(params->parent),
            params->windows.base != 0 ? params->windows.tokens_max : SC_K_DRAFT_MAX));
        SC_TRY(sc_kernel_check_nodes(&rows, sc_host_ptr(params->parent),
            sc_host_ptr(params->node)));
    }
    return SC_OK;
}

sc_status sc_k_conv_commit(sc_backend *backend, const sc_k_conv_commit_params *params,
    sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    SC_TRY(sc_kernel_conv_commit_check(backend != NULL ? backend : sc_backend_host(), params,
        &row));
    return params->tokens.row_count > 0 ? row->launch(params, stream) : SC_OK;
}

/* Slots are written in place, by one row each. */
static sc_status check_spec_rows(const sc_k_conv_update_spec_params *p)
{
    const int32_t *slot = sc_host_ptr(p->slot), *accepted = sc_host_ptr(p->accepted);
    struct sc_kernel_rows rows = {.row_count = p->row_count, .token_count = p->token_count,
        .row_start = sc_host_ptr(p->row_start), .source = slot, .dest = slot,
        .slots = &p->window};
    SC_TRY(sc_kernel_check_rows(&rows));
    for (uint32_t r = 0; r < p->row_count; r++)
        if (slot[r] > 0 && (accepted[r] < 1 || accepted[r] > (int32_t)p->drafts_max))
            return SC_FAIL(SC_ERR_INVALID, "accepted[%u] is %d: must be from 1 to %u", r,
                accepted[r], p->drafts_max);
    return sc_kernel_check_tree(&rows, NULL, p->drafts_max);
}

sc_status sc_k_conv_update_spec(sc_backend *backend, const sc_k_conv_update_spec_params *params,
    sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    if (backend == NULL) backend = sc_backend_host();
    SC_REQUIRE(params != NULL);
    const sc_k_conv_update_spec_params *p = params;
    SC_REQUIRE(p->order <= SC_K_ORDER_DIM_FIRST);
    SC_TRY(sc_conv_check_common(p->channels, p->width, p->dtype, p->act, &p->window));
    SC_REQUIRE(p->drafts_max > 0);
    SC_REQUIRE(p->drafts_max <= SC_K_DRAFT_MAX);
    SC_TRY(sc_kernel_check_slots("window", &p->window,
        (uint64_t)(p->width + p->drafts_max - 2) * p->channels));
    SC_TRY(sc_conv_check_weights(p->weight, p->bias, p->weight_dtype));
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_CONV_UPDATE_SPEC,
        sc_kernel_need(p->dtype, p->window.dtype) | sc_kernel_need_order(p->order), &row));
    if (p->row_count == 0) return SC_OK;
    SC_REQUIRE(p->token_count <= INT32_MAX);
    if (p->token_count > 0)
        SC_TRY(sc_conv_check_xy(p->x, p->x_stride, p->y, p->y_stride, p->dtype, p->channels,
            p->token_count));
    SC_TRY(sc_kernel_check_index("row_start", p->row_start));
    SC_TRY(sc_kernel_check_index("slot", p->slot));
    SC_TRY(sc_kernel_check_index("accepted", p->accepted));
    if (backend->host_memory) SC_TRY(check_spec_rows(p));
    return row->launch(params, stream);
}
