/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the causal depthwise conv: checks, then the kernel table. */
#include "base/error.h"
#include "conv/conv_check.h"
#include "kernel_calls.h"

sc_status sc_conv_check_common(uint32_t channels, uint32_t width, sc_dtype dtype, sc_k_act act,
    const sc_k_slots *window)
{
    SC_REQUIRE(channels > 0);
    SC_REQUIRE(channels <= 1u << 30);
    SC_REQUIRE(width >= 2);
    SC_REQUIRE(width <= 4);
    SC_REQUIRE(act == SC_K_ACT_IDENTITY || act == SC_K_ACT_SILU);
    SC_TRY(sc_kernel_check_dtype("x", dtype));
    return sc_kernel_check_slots("window", window, (uint64_t)(width - 1) * channels);
}

sc_status sc_conv_check_weights(sc_devptr weight, sc_devptr bias, sc_dtype dtype)
{
    SC_TRY(sc_kernel_check_dtype("weight", dtype));
    SC_TRY(sc_kernel_check_tensor("weight", weight, dtype));
    if (bias != 0) SC_TRY(sc_kernel_check_tensor("bias", bias, dtype));
    return SC_OK;
}

sc_status sc_conv_check_xy(sc_devptr x, int64_t x_stride, sc_devptr y, int64_t y_stride,
    sc_dtype dtype, uint32_t channels, uint32_t tokens)
{
    SC_TRY(sc_kernel_check_tensor("x", x, dtype));
    SC_TRY(sc_kernel_check_tensor("y", y, dtype));
    SC_TRY(sc_kernel_check_stride("x", x_stride, channels));
    SC_TRY(sc_kernel_check_stride("y", y_stride, channels));
    int64_t xs = sc_kernel_stride(x_stride, channels), ys = sc_kernel_stride(y_stride, channels);
    uint64_t elem_bytes = sc_kernel_elem_bytes(dtype);
    uint64_t x_bytes = ((uint64_t)xs * (tokens - 1) + channels) * elem_bytes;
    uint64_t y_bytes = ((uint64_t)ys * (tokens - 1) + channels) * elem_bytes;
    /* Column ranges of one packed matrix (equal strides) may lie between each other's rows. */
    uint64_t gap = (x > y ? x - y : y - x) / elem_bytes;
    bool columns = xs == ys && gap >= channels && gap + channels <= (uint64_t)xs;
    if (!columns && x < y + y_bytes && y < x + x_bytes)
        return SC_FAIL(SC_ERR_INVALID, "x and y overlap");
    return SC_OK;
}

sc_status sc_kernel_conv_prefill_check(const sc_backend *backend,
    const sc_k_conv_prefill_params *p, const struct sc_kernel_row **row_out)
{
    SC_REQUIRE(p->order <= SC_K_ORDER_DIM_FIRST);
    SC_TRY(sc_conv_check_common(p->channels, p->width, p->dtype, p->act, &p->window));
    SC_TRY(sc_conv_check_weights(p->weight, p->bias, p->weight_dtype));
    SC_TRY(sc_kernel_check_initial(&p->initial, p->row_count,
        (uint64_t)(p->width - 1) * p->channels));
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_CONV_PREFILL,
        sc_kernel_need(p->dtype, p->window.dtype) | sc_kernel_need_initial(&p->initial)
        | sc_kernel_need_order(p->order), row_out));
    if (p->row_count == 0) return SC_OK;
    SC_REQUIRE(p->token_count <= INT32_MAX);
    if (p->token_count > 0)
        SC_TRY(sc_conv_check_xy(p->x, p->x_stride, p->y, p->y_stride, p->dtype, p->channels,
            p->token_count));
    SC_TRY(sc_kernel_check_index("row_start", p->row_start));
    if (p->position != 0) SC_TRY(sc_kernel_check_index("position", p->position));
    SC_TRY(sc_kernel_check_index("source", p->source));
    SC_TRY(sc_kernel_check_index("dest", p->dest));
    SC_TRY(sc_kernel_check_saves(&p->saves));
    if (backend->host_memory)
        SC_TRY(sc_kernel_check_rows(&(struct sc_kernel_rows){.row_count = p->row_count,
            .token_count = p->token_count, .row_start = sc_host_ptr(p->row_start),
            .position = sc_host_ptr(p->position), .source = sc_host_ptr(p->source),
            .dest = sc_host_ptr(p->dest), .save_row = sc_host_ptr(p->saves.row),
            .save_pos = sc_host_ptr(p->saves.pos), .save_slot = sc_host_ptr(p->saves.slot),
            .save_count = p->saves.count, .save_grid = 1, .slots = &p->window}));
    return SC_OK;
}

sc_status sc_k_conv_prefill(sc_backend *backend, const sc_k_conv_prefill_params *params,
    sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    SC_TRY(sc_kernel_conv_prefill_check(backend != NULL ? backend : sc_backend_host(), params,
        &row));
    return params->row_count > 0 ? row->launch(params, stream) : SC_OK;
}

sc_status sc_kernel_conv_update_check(const sc_backend *backend,
    const sc_k_conv_update_params *p, const struct sc_kernel_row **row_out)
{
    SC_REQUIRE(p->order <= SC_K_ORDER_DIM_FIRST);
    SC_TRY(sc_conv_check_common(p->channels, p->width, p->dtype, p->act, &p->window));
    SC_TRY(sc_conv_check_weights(p->weight, p->bias, p->weight_dtype));
    SC_TRY(sc_kernel_check_initial(&p->initial, p->row_count,
        (uint64_t)(p->width - 1) * p->channels));
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_CONV_UPDATE,
        sc_kernel_need(p->dtype, p->window.dtype) | sc_kernel_need_initial(&p->initial)
        | sc_kernel_need_order(p->order), row_out));
    if (p->row_count == 0) return SC_OK;
    SC_REQUIRE(p->row_count <= INT32_MAX);
    SC_TRY(sc_conv_check_xy(p->x, p->x_stride, p->y, p->y_stride, p->dtype, p->channels,
        p->row_count));
    SC_TRY(sc_kernel_check_index("source", p->source));
    SC_TRY(sc_kernel_check_index("dest", p->dest));
    if (p->save != 0) SC_TRY(sc_kernel_check_index("save", p->save));
    if (backend->host_memory)
        SC_TRY(sc_kernel_check_rows(&(struct sc_kernel_rows){.row_count = p->row_count,
            .token_count = p->row_count, .source = sc_host_ptr(p->source),
            .dest = sc_host_ptr(p->dest), .save = sc_host_ptr(p->save), .save_grid = 1,
            .slots = &p->window}));
    return SC_OK;
}

sc_status sc_k_conv_update(sc_backend *backend, const sc_k_conv_update_params *params,
    sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    SC_TRY(sc_kernel_conv_update_check(backend != NULL ? backend : sc_backend_host(), params,
        &row));
    return params->row_count > 0 ? row->launch(params, stream) : SC_OK;
}
