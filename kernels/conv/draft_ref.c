/* SPDX-License-Identifier: Apache-2.0 */
/* Draft tokens of the causal conv on the host: verify, commit, and the update with a cursor.
 *
 * A tile of channels holds a row's inputs in fp32, history first, and every token finds its taps
 * by its ancestors:
 *
 *   ext    0 .. W-2      history, oldest first
 *          W-1 + t       token t, rounded to the window's dtype
 *
 *   taps of t:  ... parent(parent t), parent t, t; beyond the first one, history from its end
 *
 * The sum is that of conv_ref.c in its order: a chain gives the bits of prefill and of decode. */
#include "conv/window.h"
#include "draft_path.h"
#include "kernel_dispatch.h"
#include "ref_math.h"

enum { TILE = 64, WIDTH_MAX = 4 };

struct tile {
    float weight[WIDTH_MAX][TILE];
    float bias[TILE];
    float ext[SC_K_DRAFT_MAX + WIDTH_MAX - 1][TILE];
    uint32_t channel, n; /* first channel, channels */
};

static void tile_open(struct tile *tile, const sc_k_conv_prefill_params *p, uint32_t channel)
{
    tile->channel = channel;
    tile->n = p->channels - channel < TILE ? p->channels - channel : TILE;
    memset(tile->bias, 0, sizeof tile->bias);
    if (p->weight == 0) return; /* a commit has none */
    for (uint32_t c = 0; c < tile->n; c++) {
        float taps[WIDTH_MAX] = {0};
        ref_load(taps, p->weight, p->weight_dtype, (int64_t)(channel + c) * p->width, p->width);
        for (uint32_t j = 0; j < p->width; j++) tile->weight[j][c] = taps[j];
    }
    if (p->bias != 0) ref_load(tile->bias, p->bias, p->weight_dtype, channel, tile->n);
}

/* History of W-1 inputs, from input `first` of where row r begins on. */
static void load_history(struct tile *tile, const sc_k_conv_prefill_params *p, int32_t slot,
    uint32_t r, uint32_t first, uint32_t inputs)
{
    struct ref_begin from = ref_begin(&p->window, &p->initial, slot, r);
    const struct window w = {p->order, inputs, p->channels};
    for (uint32_t j = 0; j + 1 < p->width; j++)
        window_line_load(tile->ext[j], &w, &from, first + j, tile->channel, tile->n);
}

static void load_token(struct tile *tile, const sc_k_conv_prefill_params *p, int64_t token,
    uint32_t t)
{
    float *x = tile->ext[p->width - 1 + t];
    ref_load(x, p->x, p->dtype, token * sc_kernel_stride(p->x_stride, p->channels)
        + tile->channel, tile->n);
    ref_round(x, p->window.dtype, tile->n);
}

/* Places in ext of the last `count` inputs up to token t, oldest first; t -1: history alone. */
static void taps_of(int32_t *tap, uint32_t count, const int32_t *parent, int32_t start, int32_t t,
    uint32_t width)
{
    int32_t history = (int32_t)width - 1; /* the next one further back is history - 1 */
    for (uint32_t j = count; j-- > 0;) {
        tap[j] = t >= 0 ? (int32_t)width - 1 + t : --history;
        if (t >= 0) t = sc_draft_parent(parent, start, t);
    }
}

static void token_sum(const struct tile *tile, const sc_k_conv_prefill_params *p, int64_t token,
    const int32_t *tap)
{
    float acc[TILE];
    memcpy(acc, tile->bias, sizeof acc);
    for (uint32_t j = 0; j < p->width; j++) {
        const float *e = tile->ext[tap[j]];
        for (uint32_t c = 0; c < tile->n; c++) acc[c] += tile->weight[j][c] * e[c];
    }
    if (p->act == SC_K_ACT_SILU)
        for (uint32_t c = 0; c < tile->n; c++) acc[c] = ref_silu(acc[c]);
    ref_store(acc, p->y, p->dtype,
        token * sc_kernel_stride(p->y_stride, p->channels) + tile->channel, tile->n);
}

/* The window that token t leaves, to `base` (a slot's part or a node's). */
static void store_window(const struct tile *tile, const sc_k_conv_prefill_params *p,
    const int32_t *tap, sc_devptr base, sc_k_order order)
{
    const struct window w = {order, p->width - 1, p->channels};
    for (uint32_t j = 0; j + 1 < p->width; j++)
        window_line_store(tile->ext[tap[j]], &w, base, p->window.dtype, j, tile->channel, tile->n);
}

static void verify_row(struct tile *tile, const sc_k_conv_verify_params *v, uint32_t r)
{
    const sc_k_conv_prefill_params *p = &v->tokens;
    const int32_t *row_start = sc_host_ptr(p->row_start), *parent = sc_host_ptr(v->parent);
    int32_t source = ((const int32_t *)sc_host_ptr(p->source))[r], start = row_start[r];
    int64_t y_stride = sc_kernel_stride(p->y_stride, p->channels);
    uint32_t count = sc_kernel_row_tokens(row_start, r);
    uint64_t part = (uint64_t)(p->width - 1) * p->channels
        * sc_kernel_elem_bytes(p->window.dtype);
    int32_t tap[WIDTH_MAX];
    if (source < 0) {
        for (uint32_t t = 0; t < count; t++)
            ref_store_zero(p->y, p->dtype, (start + (int64_t)t) * y_stride + tile->channel,
                tile->n);
        return;
    }
    load_history(tile, p, source, r, 0, p->width - 1);
    for (uint32_t t = 0; t < count; t++) {
        load_token(tile, p, start + (int64_t)t, t);
        taps_of(tap, p->width, parent, start, (int32_t)t, p->width);
        token_sum(tile, p, start + (int64_t)t, tap);
        if (v->windows.base != 0)
            store_window(tile, p, tap + 1, v->windows.base
                + ((uint64_t)r * v->windows.tokens_max + t) * part, SC_K_ORDER_WIDTH_FIRST);
    }
}

sc_status SC_HOST_FN(sc_k_conv_verify)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_conv_verify_params *v = params;
    struct tile tile;
    for (uint32_t channel = 0; channel < v->tokens.channels; channel += TILE) {
        tile_open(&tile, &v->tokens, channel);
        for (uint32_t r = 0; r < v->tokens.row_count; r++) verify_row(&tile, v, r);
    }
    return SC_OK;
}

/* ---- commit ---- */

/* The window after node t of row r goes to `slot`. */
static void commit_window(const struct tile *tile, const sc_k_conv_commit_params *m, uint32_t r,
    int32_t t, int32_t slot)
{
    const sc_k_conv_prefill_params *p = &m->tokens;
    int32_t start = ((const int32_t *)sc_host_ptr(p->row_start))[r], tap[WIDTH_MAX];
    if (slot <= 0) return;
    taps_of(tap, p->width - 1, sc_host_ptr(m->parent), start, t, p->width);
    store_window(tile, p, tap, ref_slot(&p->window, slot), p->order);
}

/* ext as the verify had it: from x, or from what each node of the path left behind. */
static void commit_inputs(struct tile *tile, const sc_k_conv_commit_params *m, uint32_t r,
    const int32_t *path, uint32_t count)
{
    const sc_k_conv_prefill_params *p = &m->tokens;
    int64_t start = ((const int32_t *)sc_host_ptr(p->row_start))[r];
    int64_t part = (int64_t)(p->width - 1) * p->channels;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t t = (uint32_t)path[i];
        int64_t node = ((int64_t)r * m->windows.tokens_max + t) * part;
        if (m->windows.base == 0)
            load_token(tile, p, start + t, t);
        else /* its newest input is the node's own */
            ref_load(tile->ext[p->width - 1 + t], m->windows.base, p->window.dtype,
                node + (int64_t)(p->width - 2) * p->channels + tile->channel, tile->n);
    }
}

static void commit_row(struct tile *tile, const sc_k_conv_commit_params *m, uint32_t r)
{
    const sc_k_conv_prefill_params *p = &m->tokens;
    const int32_t *row_start = sc_host_ptr(p->row_start), *node = sc_host_ptr(m->node);
    const int32_t *save_row = sc_host_ptr(p->saves.row), *save_pos = sc_host_ptr(p->saves.pos);
    const int32_t *slot = sc_host_ptr(p->saves.slot), *position = sc_host_ptr(p->position);
    int32_t source = ((const int32_t *)sc_host_ptr(p->source))[r], path[SC_K_DRAFT_MAX];
    int32_t dest = ((const int32_t *)sc_host_ptr(p->dest))[r];
    int64_t first = position != NULL ? position[r] : 0;
    if (source < 0 || (node[r] < 0 && dest == source && p->initial.base == 0)) return;
    uint32_t count = sc_draft_path(sc_host_ptr(m->parent), row_start[r], node[r], path);
    load_history(tile, p, source, r, 0, p->width - 1);
    commit_inputs(tile, m, r, path, count);
    for (uint32_t i = 0; i < p->saves.count; i++)
        if (save_row[i] == (int32_t)r)
            commit_window(tile, m, r, path[save_pos[i] - first - 1], slot[i]);
    commit_window(tile, m, r, node[r], dest);
}

sc_status SC_HOST_FN(sc_k_conv_commit)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_conv_commit_params *m = params;
    struct tile tile;
    for (uint32_t channel = 0; channel < m->tokens.channels; channel += TILE) {
        tile.channel = channel;
        tile.n = m->tokens.channels - channel < TILE ? m->tokens.channels - channel : TILE;
        for (uint32_t r = 0; r < m->tokens.row_count; r++) commit_row(&tile, m, r);
    }
    return SC_OK;
}

/* ---- wide rows with a cursor ---- */

static void spec_row(struct tile *tile, const sc_k_conv_prefill_params *p,
    const sc_k_conv_update_spec_params *u, uint32_t r)
{
    const int32_t *row_start = sc_host_ptr(u->row_start);
    int32_t slot = ((const int32_t *)sc_host_ptr(u->slot))[r], tap[WIDTH_MAX];
    int64_t start = row_start[r], y_stride = sc_kernel_stride(u->y_stride, u->channels);
    uint32_t count = sc_kernel_row_tokens(row_start, r);
    if (count == 0) return;
    if (slot <= 0) {
        for (uint32_t t = 0; t < count; t++)
            ref_store_zero(u->y, u->dtype, (start + t) * y_stride + tile->channel, tile->n);
        return;
    }
    uint32_t cursor = (uint32_t)((const int32_t *)sc_host_ptr(u->accepted))[r] - 1;
    const struct window w = {u->order, u->width + u->drafts_max - 2, u->channels};
    load_history(tile, p, slot, r, cursor, u->width + u->drafts_max - 2);
    for (uint32_t t = 0; t < count; t++) {
        load_token(tile, p, start + t, t);
        taps_of(tap, u->width, NULL, 0, (int32_t)t, u->width);
        token_sum(tile, p, start + t, tap);
    }
    for (uint32_t j = 0; j + 2 < u->width + count; j++) /* history but its first, then tokens */
        window_line_store(tile->ext[j + 1], &w, ref_slot(&u->window, slot), u->window.dtype, j,
            tile->channel, tile->n);
}

sc_status SC_HOST_FN(sc_k_conv_update_spec)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_conv_update_spec_params *u = params;
    sc_k_conv_prefill_params p = {.x = u->x, .y = u->y, .x_stride = u->x_stride,
        .y_stride = u->y_stride, .dtype = u->dtype, .weight = u->weight, .bias = u->bias,
        .weight_dtype = u->weight_dtype, .act = u->act, .channels = u->channels,
        .width = u->width, .window = u->window, .order = u->order};
    struct tile tile;
    for (uint32_t channel = 0; channel < u->channels; channel += TILE) {
        tile_open(&tile, &p, channel);
        for (uint32_t r = 0; r < u->row_count; r++) spec_row(&tile, &p, u, r);
    }
    return SC_OK;
}
