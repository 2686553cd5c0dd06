/* SPDX-License-Identifier: Apache-2.0 */
/* A flush with rows of S in a core's nearest cache: the bits of token after token, because each row
 * is worked on in the same order (rows_wide.h).
 *
 * A tile of rows passes all tokens before the next one. One sweep over it ends a token and begins
 * the next, so that a row is loaded and stored once a token:
 *
 *   sweep t     row  + write k   of token t-1     (then rounded, if states are of 16 bits)
 *                    x alpha, . k   of token t     -> write, which the next sweep adds
 *
 * bf16 states decay with the sum instead, and are multiplied with k alpha (rows_plain.h).
 *
 * Four rows share the sum across their lanes, and while it passes the next four are loaded. What a
 * record's token puts out is not made: nobody wants it. */
#ifndef SC_DELTA_FLUSH_WIDE_H
#define SC_DELTA_FLUSH_WIDE_H

#include "delta/tokens.h"

enum { TILE_FLOATS = 4096, TILE_ROWS_MAX = TILE_FLOATS / 64, TILE_GROUP = 4 };

struct tile {
    _Alignas(64) float s[TILE_FLOATS]; /* as the last sweep left it; fp32: decayed */
    float write[TILE_ROWS_MAX];        /* times k of that token: still to be added */
    float mark[TILE_ROWS_MAX];         /* a NaN if the row may hold one, once it is added */
};

/* Row v of the tile as token t finds it. */
SC_REF_INLINE void tile_row(const struct tile *tile, const struct wide_stream *w, uint32_t v0,
    uint32_t v, uint32_t nv, sc_dtype dtype, const struct tokens *x, uint32_t t, v16 *s)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    if (t == 0 && w->from == NULL) {
        UNROLL for (uint32_t i = 0; i < nv; i++) s[i] = v16_zero();
    } else if (t == 0) {
        wide_fetch(w->from + (v0 + v) * row_bytes, row_bytes);
        wide_load(w->from + (v0 + v) * row_bytes, dtype, nv, s);
    } else {
        const float *at = tile->s + (size_t)v * nv * 16, *k = x->k + (size_t)(t - 1) * nv * 16;
        const float *alpha = x->alpha + (size_t)(t - 1) * nv * 16;
        v16 write = v16_set(tile->write[v]);
        UNROLL for (uint32_t i = 0; i < nv; i++) {
            v16 old = v16_load(at + 16 * i);
            if (dtype == SC_DTYPE_BF16) old = v16_mul(old, v16_load(alpha + 16 * i));
            s[i] = v16_add(old, v16_mul(write, v16_load(k + 16 * i)));
        }
    }
}

/* Rows v .. v + n of the tile by token t; `gives`: it has an output. */
SC_REF_INLINE void tile_group(struct tile *tile, const struct wide_stream *w, uint32_t v0,
    uint32_t v, uint32_t n, uint32_t nv, sc_dtype dtype, struct tokens *x, uint32_t t, bool gives)
{
    bool f32 = dtype == SC_DTYPE_F32;
    float read_scale = f32 ? 1.0f : x->read_scale[t], q_scale = f32 ? 1.0f : x->q_scale[t];
    const float *k = (f32 ? x->k : x->read) + (size_t)t * nv * 16;
    const float *q = x->q + (size_t)t * nv * 16;
    const float *alpha = x->alpha + (size_t)t * nv * 16;
    v16 sums[TILE_GROUP], outs[TILE_GROUP];
    float read[TILE_GROUP], out[TILE_GROUP] = {0};
    for (uint32_t r = 0; r < TILE_GROUP; r++) sums[r] = outs[r] = v16_zero();
    for (uint32_t r = 0; r < n; r++) { /* not unrolled: the code would be four times as long */
        float *at = tile->s + (size_t)(v + r) * nv * 16;
        v16 s[NV_MAX], sum = v16_zero(), give = v16_zero();
        tile_row(tile, w, v0, v + r, nv, dtype, x, t, s);
        if (dtype == SC_DTYPE_BF16 && t > 0) wide_round(s, nv, tile->mark[v + r], false);
        UNROLL for (uint32_t i = 0; i < nv; i++) {
            if (f32) s[i] = v16_mul(s[i], v16_load(alpha + 16 * i));
            v16_store(at + 16 * i, s[i]);
            sum = v16_add(sum, v16_mul(s[i], v16_load(k + 16 * i)));
            if (gives) give = v16_add(give, v16_mul(s[i], v16_load(q + 16 * i)));
        }
        sums[r] = sum, outs[r] = give;
    }
    v16_sums(sums, read);
    if (gives) v16_sums(outs, out);
    for (uint32_t r = 0; r < n; r++) {
        size_t at = (size_t)t * w->rows + v0 + v + r;
        float write = x->beta[t] * (x->v[at] - read[r] * read_scale);
        tile->write[v + r] = write;
        tile->mark[v + r] = write * 0.0f; /* what it reads has a NaN or an infinity of the row */
        if (gives) x->o[at] = out[r] * q_scale + write * x->kq[t];
    }
}

SC_REF_INLINE void tile_sweep(struct tile *tile, const struct wide_stream *w, uint32_t v0,
    uint32_t rows, uint32_t nv, sc_dtype dtype, struct tokens *x, uint32_t t, bool gives)
{
    for (uint32_t v = 0; v < rows; v += TILE_GROUP)
        tile_group(tile, w, v0, v, rows - v < TILE_GROUP ? rows - v : TILE_GROUP, nv, dtype, x, t,
            gives);
}

/* What the last token wrote, and away. */
SC_REF_INLINE void tile_store(const struct tile *tile, const struct wide_stream *w, uint32_t v0,
    uint32_t rows, uint32_t nv, sc_dtype dtype, const struct tokens *x)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    for (uint32_t v = 0; v < rows; v++) {
        v16 s[NV_MAX];
        tile_row(tile, w, v0, v, nv, dtype, x, x->count, s);
        UNROLL for (uint32_t j = 0; j < 2; j++)
            if (w->to[j] != NULL)
                wide_store(w->to[j] + (v0 + v) * row_bytes, dtype, nv, s, tile->mark[v],
                    false);
    }
}

/* All tokens of x, at least one, from slot to slot. `gives`: the last one has an output. */
SC_REF_INLINE void tile_all(const struct wide_stream *w, uint32_t nv, sc_dtype dtype,
    struct tokens *x, bool gives)
{
    struct tile tile;
    uint32_t most = TILE_FLOATS / (nv * 16), last = x->count - 1;
    for (uint32_t v0 = 0; v0 < w->rows; v0 += most) {
        uint32_t rows = w->rows - v0 < most ? w->rows - v0 : most;
        for (uint32_t t = 0; t < last; t++)
            tile_sweep(&tile, w, v0, rows, nv, dtype, x, t, false);
        tile_sweep(&tile, w, v0, rows, nv, dtype, x, last, gives);
        tile_store(&tile, w, v0, rows, nv, dtype, x);
    }
}

/* For a k_dim that wide_knows(). */
SC_REF_INLINE void flush_wide(const struct wide_stream *w, uint32_t k_dim, struct tokens *x,
    bool gives)
{
    if (k_dim == 128 && w->dtype == SC_DTYPE_F32)
        tile_all(w, 8, SC_DTYPE_F32, x, gives);
    else if (k_dim == 128)
        tile_all(w, 8, SC_DTYPE_BF16, x, gives);
    else if (k_dim == 64)
        tile_all(w, 4, w->dtype, x, gives);
    else
        tile_all(w, 16, w->dtype, x, gives);
}

#endif
