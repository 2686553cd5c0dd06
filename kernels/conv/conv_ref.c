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
#ifdef __AVX2__
#include "v16_math.h"
#endif

enum { TILE = 512, WIDTH_MAX = 4 };

struct tile {
    float weight[WIDTH_MAX][TILE];
    float bias[TILE];
    float ext[WIDTH_MAX][TILE];
    uint32_t first;   /* ring position of the oldest input */
    uint32_t channel; /* first channel of the tile */
    uint32_t n;       /* channels of the tile */
};

SC_REF_INLINE void tile_weights(struct tile *restrict tile, const float *restrict taps,
    uint32_t width)
{
    for (uint32_t c = 0; c < tile->n; c++)
        for (uint32_t j = 0; j < width; j++) tile->weight[j][c] = taps[c * width + j];
}

SC_REF_INLINE void tile_open(struct tile *tile, const sc_k_conv_prefill_params *p, uint32_t channel)
{
    tile->channel = channel;
    tile->n = p->channels - channel < TILE ? p->channels - channel : TILE;
    float narrow[WIDTH_MAX * TILE];
    const float *taps = narrow;
    if (p->weight_dtype == SC_DTYPE_F32)
        taps = (const float *)sc_host_ptr(p->weight) + (size_t)channel * p->width;
    else
        ref_load(narrow, p->weight, p->weight_dtype, (int64_t)channel * p->width,
            tile->n * p->width);
    if (p->width == WIDTH_MAX)
        tile_weights(tile, taps, WIDTH_MAX);
    else
        tile_weights(tile, taps, p->width);
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

#ifdef __AVX2__
enum { STEP = 16 }; /* channels of a vector, from x to y without a stop in between */

/* `count` vectors of a token, from channel c on. `in`, `out`: those of the tile's first channel. */
SC_REF_INLINE void step_sums(const struct tile *tile, float *const *tap, const void *in, void *out,
    uint32_t c, uint32_t count, uint32_t width, sc_dtype dtype, bool narrow, bool silu)
{
    v16 sum[V16_MANY];
    UNROLL for (uint32_t i = 0; i < count; i++) {
        uint32_t at = c + i * STEP;
        v16 newest = v16_take(in, dtype, at);
        sum[i] = v16_load(tile->bias + at);
        if (narrow) newest = v16_to_bf16(newest);
        v16_store(tap[width - 1] + at, newest);
        UNROLL for (uint32_t j = 0; j + 1 < width; j++)
            sum[i] = v16_add(sum[i], v16_mul(v16_load(tile->weight[j] + at),
                v16_load(tap[j] + at)));
        sum[i] = v16_add(sum[i], v16_mul(v16_load(tile->weight[width - 1] + at), newest));
    }
    if (silu) v16_silus(sum, count);
    UNROLL for (uint32_t i = 0; i < count; i++) v16_put(out, dtype, c + i * STEP, sum[i]);
}

/* `in_next`, `out_next`: those of the next token, far from this one's, are fetched meanwhile. */
SC_REF_INLINE uint32_t tile_steps(const struct tile *tile, float *const *tap, const uint8_t *in,
    uint8_t *out, int64_t in_next, int64_t out_next, uint32_t width, sc_dtype dtype, bool narrow,
    bool silu)
{
    uint32_t c = 0, elem_bytes = dtype == SC_DTYPE_F32 ? 4 : 2;
    for (; c + V16_MANY * STEP <= tile->n; c += V16_MANY * STEP) {
        UNROLL for (uint32_t i = 0; i < V16_MANY * STEP * elem_bytes; i += 64) {
            __builtin_prefetch(in + in_next + c * elem_bytes + i, 0, 3);
            __builtin_prefetch(out + out_next + c * elem_bytes + i, 1, 3);
        }
        step_sums(tile, tap, in, out, c, V16_MANY, width, dtype, narrow, silu);
    }
    for (; c + STEP <= tile->n; c += STEP) {
        __builtin_prefetch(in + in_next + c * elem_bytes, 0, 3);
        __builtin_prefetch(out + out_next + c * elem_bytes, 1, 3);
        step_sums(tile, tap, in, out, c, 1, width, dtype, narrow, silu);
    }
    return c;
}
#endif

/* One pass over the channels of a tile; `width`, `dtype` and `silu` are known at compile time. */
SC_REF_INLINE void tile_sum(struct tile *restrict tile, const sc_k_conv_prefill_params *p,
    int64_t token, uint32_t width, sc_dtype dtype, bool silu)
{
    int64_t x_at = token * sc_kernel_stride(p->x_stride, p->channels) + tile->channel;
    int64_t y_at = token * sc_kernel_stride(p->y_stride, p->channels) + tile->channel;
    bool narrow = dtype == SC_DTYPE_F32 && p->window.dtype != SC_DTYPE_F32;
    uint32_t done = 0;
    float acc[TILE], *tap[WIDTH_MAX];
    for (uint32_t j = 0; j < width; j++) tap[j] = tile->ext[(tile->first + j) % width];
    float *restrict newest = tap[width - 1];
#ifdef __AVX2__
    uint32_t elem_bytes = dtype == SC_DTYPE_F32 ? 4 : 2;
    const uint8_t *in = (const uint8_t *)sc_host_ptr(p->x) + x_at * elem_bytes;
    uint8_t *out = (uint8_t *)sc_host_ptr(p->y) + y_at * elem_bytes;
    int64_t x_next = sc_kernel_stride(p->x_stride, p->channels) * elem_bytes;
    int64_t y_next = sc_kernel_stride(p->y_stride, p->channels) * elem_bytes;
    done = narrow ? tile_steps(tile, tap, in, out, x_next, y_next, width, dtype, true, silu)
                  : tile_steps(tile, tap, in, out, x_next, y_next, width, dtype, false, silu);
    if (done == tile->n) return;
#endif
    ref_load(newest + done, p->x, dtype, x_at + done, tile->n - done);
    if (narrow) ref_round(newest + done, p->window.dtype, tile->n - done);
    for (uint32_t c = done; c < tile->n; c++) {
        float sum = tile->bias[c];
        for (uint32_t j = 0; j < width; j++) sum += tile->weight[j][c] * tap[j][c];
        acc[c] = silu ? ref_silu(sum) : sum;
    }
    ref_store(acc + done, p->y, dtype, y_at + done, tile->n - done);
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

#ifdef __AVX2__
/* ---- one token, window to window without a stop in between ---- */

struct update {
    const void *in, *from;  /* from NULL: zeros */
    void *out, *to[2];      /* NULL: not stored */
};

/* `count` vectors from channel c of the tile on; `channels` lie between inputs of a window. */
SC_REF_INLINE void update_step(const struct tile *tile, const struct update *u, uint32_t channels,
    uint32_t c, uint32_t count, uint32_t width, sc_dtype dtype, sc_dtype window, bool silu)
{
    v16 sums[V16_MANY];
    UNROLL for (uint32_t n = 0; n < count; n++) {
        uint32_t in = c + n * STEP;
        int64_t at = (int64_t)tile->channel + in;
        v16 tap[WIDTH_MAX], sum = v16_load(tile->bias + in);
        UNROLL for (uint32_t j = 0; j + 1 < width; j++)
            tap[j] = u->from != NULL ? v16_take(u->from, window, (int64_t)j * channels + at)
                                     : v16_zero();
        tap[width - 1] = v16_take(u->in, dtype, at);
        if (dtype == SC_DTYPE_F32 && window != SC_DTYPE_F32)
            tap[width - 1] = v16_to_bf16(tap[width - 1]);
        UNROLL for (uint32_t j = 0; j < width; j++)
            sum = v16_add(sum, v16_mul(v16_load(tile->weight[j] + in), tap[j]));
        sums[n] = sum;
        for (uint32_t i = 0; i < 2; i++)
            for (uint32_t j = 0; u->to[i] != NULL && j + 1 < width; j++)
                if (window == SC_DTYPE_F32)
                    v16_store((float *)u->to[i] + (int64_t)j * channels + at, tap[j + 1]);
                else /* what a window of bf16 holds is bf16 */
                    v16_store_narrow((uint16_t *)u->to[i] + (int64_t)j * channels + at,
                        tap[j + 1]);
    }
    if (silu) v16_silus(sums, count);
    UNROLL for (uint32_t n = 0; n < count; n++)
        v16_put(u->out, dtype, (int64_t)tile->channel + c + n * STEP, sums[n]);
}

SC_REF_INLINE void update_act(const struct tile *tile, const struct update *u, uint32_t channels,
    uint32_t width, sc_dtype dtype, sc_dtype window, bool silu)
{
    uint32_t c = 0;
    for (; c + V16_MANY * STEP <= tile->n; c += V16_MANY * STEP)
        update_step(tile, u, channels, c, V16_MANY, width, dtype, window, silu);
    for (; c < tile->n; c += STEP)
        update_step(tile, u, channels, c, 1, width, dtype, window, silu);
}

SC_REF_INLINE void update_steps(const struct tile *tile, const struct update *u,
    const sc_k_conv_prefill_params *p, uint32_t width, sc_dtype dtype, sc_dtype window)
{
    if (p->act == SC_K_ACT_SILU)
        update_act(tile, u, p->channels, width, dtype, window, true);
    else
        update_act(tile, u, p->channels, width, dtype, window, false);
}

/* Is there a fast form of an update of this tile? */
SC_REF_INLINE bool update_knows(const struct tile *tile, const sc_k_conv_prefill_params *p)
{
    return tile->n % STEP == 0 && p->order == SC_K_ORDER_WIDTH_FIRST && p->initial.base == 0;
}

static void *window_at(const sc_k_conv_prefill_params *p, int32_t slot)
{
    return slot > 0 ? sc_host_ptr(ref_slot(&p->window, slot)) : NULL;
}

static void update_row(const struct tile *tile, const sc_k_conv_prefill_params *p,
    int32_t source, int32_t dest, int32_t save, uint32_t row)
{
    int64_t elem_bytes = p->dtype == SC_DTYPE_F32 ? 4 : 2;
    int64_t x_row = sc_kernel_stride(p->x_stride, p->channels) * elem_bytes;
    int64_t y_row = sc_kernel_stride(p->y_stride, p->channels) * elem_bytes;
    struct update u = {.in = (const uint8_t *)sc_host_ptr(p->x) + row * x_row,
        .out = (uint8_t *)sc_host_ptr(p->y) + row * y_row, .from = window_at(p, source),
        .to = {window_at(p, dest), window_at(p, save)}};
    bool f32 = p->dtype == SC_DTYPE_F32, wide = p->window.dtype == SC_DTYPE_F32;
    if (p->width == 4 && f32 && wide)
        update_steps(tile, &u, p, 4, SC_DTYPE_F32, SC_DTYPE_F32);
    else if (p->width == 4 && !f32 && !wide)
        update_steps(tile, &u, p, 4, SC_DTYPE_BF16, SC_DTYPE_BF16);
    else if (p->width == 4 && f32)
        update_steps(tile, &u, p, 4, SC_DTYPE_F32, SC_DTYPE_BF16);
    else
        update_steps(tile, &u, p, p->width, p->dtype, p->window.dtype);
}
#endif

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
#ifdef __AVX2__
    if (row_start == NULL && update_knows(tile, p)) {
        update_row(tile, p, source[row], dest[row], save != NULL ? save[row] : 0, row);
        return;
    }
#endif
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
