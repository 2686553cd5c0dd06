/* SPDX-License-Identifier: Apache-2.0 */
/* Causal depthwise conv on the host, prefill and decode by one routine.
 *
 * Channels are independent, so the outer loop runs over tiles of them; a tile keeps its weights and
 * the last W inputs of one sequence in `ext`, a ring whose oldest entry is ext[first]:
 *
 *   before token t:   x[t-3] x[t-2] x[t-1]  (free)     W = 4; the first three are the window
 *   after  token t:   (free) x[t-2] x[t-1]  x[t]       first moved on by one
 *
 * History, saved windows and the window left behind are all read from that ring, which is why a
 * window near the start of a row reaches into old history by itself, and T < W-1 needs no case.
 *
 * Bytes moved: x once, y once, windows once. Cost: W multiply-adds and one exp for each element. */
#include "conv/window.h"
#include "kernel_check.h"
#include "kernel_dispatch.h"
#include "ref_math.h"

enum { TILE = 512, WIDTH_MAX = 4 };

struct tile {
    float weight[WIDTH_MAX][TILE];
    float bias[TILE];
    float ext[WIDTH_MAX][TILE];
    uint32_t first;   /* ring position of the oldest input */
    uint32_t channel; /* first channel of the tile */
    uint32_t n;       /* channels of the tile */
};

SC_REF_INLINE void tile_open(struct tile *tile, const sc_k_conv_prefill_params *p, uint32_t channel)
{
    tile->channel = channel;
    tile->n = p->channels - channel < TILE ? p->channels - channel : TILE;
    for (uint32_t c = 0; c < tile->n; c++) {
        float taps[WIDTH_MAX] = {0};
        ref_load(taps, p->weight, p->weight_dtype, (int64_t)(channel + c) * p->width, p->width);
        for (uint32_t j = 0; j < p->width; j++) tile->weight[j][c] = taps[j];
    }
    memset(tile->bias, 0, sizeof tile->bias);
    if (p->bias != 0) ref_load(tile->bias, p->bias, p->weight_dtype, channel, tile->n);
}

SC_REF_INLINE void window_load(struct tile *tile, const sc_k_conv_prefill_params *p, int32_t slot,
    uint32_t row)
{
    struct ref_begin from = ref_begin(&p->window, &p->initial, slot, row);
    const struct window w = {p->order, p->width - 1, p->channels};
    tile->first = 0;
    for (uint32_t j = 0; j + 1 < p->width; j++)
        window_line_load(tile->ext[j], &w, &from, j, tile->channel, tile->n);
}

SC_REF_INLINE void window_store(const struct tile *tile, const sc_k_conv_prefill_params *p,
    int32_t slot)
{
    const struct window w = {p->order, p->width - 1, p->channels};
    for (uint32_t j = 0; j + 1 < p->width; j++)
        window_line_store(tile->ext[(tile->first + j) % p->width], &w,
            ref_slot(&p->window, slot), p->window.dtype, j, tile->channel, tile->n);
}

/* One pass over the channels of a tile; `width`, `dtype` and `silu` are known at compile time. */
SC_REF_INLINE void tile_sum(struct tile *restrict tile, const sc_k_conv_prefill_params *p,
    int64_t token, uint32_t width, sc_dtype dtype, bool silu)
{
    int64_t x_at = token * sc_kernel_stride(p->x_stride, p->channels) + tile->channel;
    int64_t y_at = token * sc_kernel_stride(p->y_stride, p->channels) + tile->channel;
    const float *restrict tap[WIDTH_MAX];
    float acc[TILE], *restrict newest = tile->ext[(tile->first + width - 1) % width];
    for (uint32_t j = 0; j < width; j++) tap[j] = tile->ext[(tile->first + j) % width];
    ref_load(newest, p->x, dtype, x_at, tile->n);
    if (dtype == SC_DTYPE_F32) ref_round(newest, p->window.dtype, tile->n);
    for (uint32_t c = 0; c < tile->n; c++) {
        float sum = tile->bias[c];
        for (uint32_t j = 0; j < width; j++) sum += tile->weight[j][c] * tap[j][c];
        acc[c] = silu ? ref_silu(sum) : sum;
    }
    ref_store(acc, p->y, dtype, y_at, tile->n);
}

SC_REF_INLINE void tile_act(struct tile *tile, const sc_k_conv_prefill_params *p, int64_t token,
    uint32_t width, sc_dtype dtype)
{
    if (p->act == SC_K_ACT_SILU)
        tile_sum(tile, p, token, width, dtype, true);
    else
        tile_sum(tile, p, token, width, dtype, false);
}

SC_REF_INLINE void tile_token(struct tile *tile, const sc_k_conv_prefill_params *p, int64_t token)
{
    bool f32 = p->dtype == SC_DTYPE_F32;
    if (p->width == 4 && f32)
        tile_act(tile, p, token, 4, SC_DTYPE_F32);
    else if (p->width == 4)
        tile_act(tile, p, token, 4, SC_DTYPE_BF16);
    else if (p->width == 3)
        tile_act(tile, p, token, 3, p->dtype);
    else
        tile_act(tile, p, token, 2, p->dtype);
    tile->first = (tile->first + 1) % p->width;
}

/* The saves of `row` at `pos`. */
SC_REF_INLINE void tile_saves(const struct tile *tile, const sc_k_conv_prefill_params *p,
    uint32_t row, int64_t pos)
{
    const int32_t *save_row = sc_host_ptr(p->saves.row), *save_pos = sc_host_ptr(p->saves.pos);
    const int32_t *save_slot = sc_host_ptr(p->saves.slot);
    for (uint32_t i = 0; i < p->saves.count; i++)
        if (save_row[i] == (int32_t)row && save_pos[i] == pos)
            window_store(tile, p, save_slot[i]);
}

/* `row_start` NULL: one token in each row. `save` NULL or a second destination for each row. */
SC_REF_INLINE void tile_row(struct tile *tile, const sc_k_conv_prefill_params *p,
    const int32_t *row_start, const int32_t *save, uint32_t row)
{
    const int32_t *source = sc_host_ptr(p->source), *dest = sc_host_ptr(p->dest);
    const int32_t *position = sc_host_ptr(p->position);
    int64_t y_stride = sc_kernel_stride(p->y_stride, p->channels);
    int64_t token = row_start != NULL ? row_start[row] : (int32_t)row;
    int64_t pos = position != NULL ? position[row] : 0;
    uint32_t count = sc_kernel_row_tokens(row_start, row);
    if (source[row] < 0) {
        for (uint32_t t = 0; t < count; t++)
            ref_store_zero(p->y, p->dtype, (token + t) * y_stride + tile->channel, tile->n);
        return;
    }
    if (count == 0 && source[row] == dest[row] && p->initial.base == 0) return;
    window_load(tile, p, source[row], row);
    for (uint32_t t = 0; t < count; t++) {
        tile_token(tile, p, token + t);
        if (p->saves.count > 0) tile_saves(tile, p, row, pos + t + 1);
    }
    if (dest[row] > 0) window_store(tile, p, dest[row]);
    if (save != NULL && save[row] > 0) window_store(tile, p, save[row]);
}

static void conv(const sc_k_conv_prefill_params *p, const int32_t *row_start,
    const int32_t *save)
{
    struct tile tile;
    for (uint32_t channel = 0; channel < p->channels; channel += TILE) {
        tile_open(&tile, p, channel);
        for (uint32_t row = 0; row < p->row_count; row++)
            tile_row(&tile, p, row_start, save, row);
    }
}

sc_status SC_HOST_FN(sc_k_conv_prefill)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_conv_prefill_params *p = params;
    conv(p, sc_host_ptr(p->row_start), NULL);
    return SC_OK;
}

sc_status SC_HOST_FN(sc_k_conv_update)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_conv_update_params *u = params;
    sc_k_conv_prefill_params p = {.x = u->x, .y = u->y, .x_stride = u->x_stride,
        .y_stride = u->y_stride, .dtype = u->dtype, .weight = u->weight, .bias = u->bias,
        .weight_dtype = u->weight_dtype, .act = u->act, .channels = u->channels,
        .width = u->width, .token_count = u->row_count, .row_count = u->row_count,
        .source = u->source, .dest = u->dest, .window = u->window, .initial = u->initial,
        .order = u->order};
    conv(&p, NULL, sc_host_ptr(u->save));
    return SC_OK;
}
