/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the delta rule with rows of S in registers: the bits of rows_plain.h, because each row
 * is worked on in the same order (16 lanes along K, products rounded before they are added, one
 * tree at the end). Two rows at a time, so that one row's sum across lanes hides behind the other's
 * products; all tokens of a batch pass before the rows are stored.
 *
 *        k_dim = 16 nv
 *   row v    | s0[0] | s0[1] | ... | s0[nv-1] |   x alpha, . k  -> u;  + u k, . q  -> o
 *   row v+1  | s1[0] | s1[1] | ... | s1[nv-1] |
 */
#ifndef SC_ROWS_WIDE_H
#define SC_ROWS_WIDE_H

#include "delta/rows_plain.h"
#include "wide_row.h"

/* `rows` (1 or 2) rows from v on, by token t of x; not rounded yet. */
SC_REF_INLINE void wide_token(v16 (*restrict s)[NV_MAX], uint32_t rows, uint32_t nv, uint32_t v,
    uint32_t all_rows, struct tokens *x, uint32_t t)
{
    const float *q = x->q + (size_t)t * nv * 16, *k = x->k + (size_t)t * nv * 16;
    const float *alpha = x->alpha + (size_t)t * nv * 16;
    v16 sums[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()}, u[2];
    float read[4];
    UNROLL for (uint32_t i = 0; i < nv; i++) {
        v16 a = v16_load(alpha + 16 * i), key = v16_load(k + 16 * i);
        v16 query = v16_load(q + 16 * i);
        UNROLL for (uint32_t r = 0; r < rows; r++) {
            s[r][i] = v16_mul(s[r][i], a);
            sums[r] = v16_add(sums[r], v16_mul(s[r][i], key));
            sums[2 + r] = v16_add(sums[2 + r], v16_mul(s[r][i], query));
        }
    }
    v16_sums(sums, read);
    UNROLL for (uint32_t r = 0; r < rows; r++) {
        size_t at = (size_t)t * all_rows + v + r;
        float write = x->beta[t] * (x->v[at] - read[r]);
        x->o[at] = read[2 + r] + write * x->kq[t];
        u[r] = v16_set(write);
    }
    UNROLL for (uint32_t i = 0; i < nv; i++) {
        v16 key = v16_load(k + 16 * i);
        UNROLL for (uint32_t r = 0; r < rows; r++)
            s[r][i] = v16_add(s[r][i], v16_mul(u[r], key));
    }
}

/* `n` rows from v on, in registers from the first token to the last. */
SC_REF_INLINE void wide_rows(float *block, uint32_t v, uint32_t n, uint32_t rows, uint32_t nv,
    struct tokens *x, sc_dtype state)
{
    v16 s[2][NV_MAX];
    float *at = block + (size_t)v * nv * 16;
    UNROLL for (uint32_t r = 0; r < n; r++)
        UNROLL for (uint32_t i = 0; i < nv; i++) s[r][i] = v16_load(at + (r * nv + i) * 16);
    for (uint32_t t = 0; t < x->count; t++) {
        wide_token(s, n, nv, v, rows, x, t);
        UNROLL for (uint32_t r = 0; r < n && state == SC_DTYPE_BF16; r++)
            wide_round(s[r], nv, x->o[(size_t)t * rows + v + r]);
    }
    UNROLL for (uint32_t r = 0; r < n; r++)
        UNROLL for (uint32_t i = 0; i < nv; i++) v16_store(at + (r * nv + i) * 16, s[r][i]);
}

SC_REF_INLINE void wide_block(float *block, uint32_t rows, uint32_t nv, struct tokens *x,
    sc_dtype state)
{
    uint32_t v = 0;
    for (; v + 2 <= rows; v += 2) wide_rows(block, v, 2, rows, nv, x, state);
    if (v < rows) wide_rows(block, v, 1, rows, nv, x, state);
}

/* What registers are counted for at compile time: the sizes that models have. */
SC_REF_INLINE bool wide_knows(uint32_t k_dim)
{
    return k_dim == 64 || k_dim == 128 || k_dim == 256;
}

SC_REF_INLINE void wide_steps(float *block, uint32_t rows, uint32_t k_dim, struct tokens *x,
    sc_dtype state)
{
    bool f32 = state == SC_DTYPE_F32;
    if (k_dim == 128 && f32)
        wide_block(block, rows, 8, x, SC_DTYPE_F32);
    else if (k_dim == 128)
        wide_block(block, rows, 8, x, SC_DTYPE_BF16);
    else if (k_dim == 64)
        wide_block(block, rows, 4, x, state);
    else if (k_dim == 256)
        wide_block(block, rows, 16, x, state);
    else
        plain_steps(block, rows, k_dim, x, state);
}

/* ---- one token, from a slot to a slot without a stop in between ---- */

struct wide_stream {
    const uint8_t *from; /* NULL: zeros */
    uint8_t *to[2];      /* NULL: not stored */
    uint32_t rows;
    sc_dtype dtype;
};

/* Rows at a time: as many as have registers for their sums. */
#ifdef __AVX512F__
enum { STREAM_ROWS = 4 };
#else
enum { STREAM_ROWS = 2 };
#endif

/* Rows v .. v + n between their two passes. */
struct wide_group {
    _Alignas(64) float aged[STREAM_ROWS][NV_MAX * 16]; /* decayed */
    float write[STREAM_ROWS];                          /* times k: what is added */
    uint32_t v;
};

/* The first pass: decay, read, output. */
SC_REF_INLINE void wide_stream_read(const struct wide_stream *w, struct wide_group *g, uint32_t v,
    uint32_t n, uint32_t nv, sc_dtype dtype, struct tokens *x)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    const uint8_t *from = w->from != NULL ? w->from + v * row_bytes : NULL;
    float read[2][4];
    v16 sums[2][4];
    UNROLL for (uint32_t r = 0; r < 4; r++) sums[0][r] = sums[1][r] = v16_zero();
    if (from != NULL) wide_fetch(from, n * row_bytes);
    UNROLL for (uint32_t i = 0; i < nv; i += 2) {
        v16 s[STREAM_ROWS][2];
        UNROLL for (uint32_t r = 0; r < n; r++) {
            if (from != NULL)
                wide_load(from + r * row_bytes + i * (row_bytes / nv), dtype, 2, s[r]);
            else
                s[r][0] = s[r][1] = v16_zero();
        }
        UNROLL for (uint32_t l = 0; l < 2; l++) {
            v16 a = v16_load(x->alpha + 16 * (i + l)), key = v16_load(x->k + 16 * (i + l));
            v16 query = v16_load(x->q + 16 * (i + l));
            UNROLL for (uint32_t r = 0; r < n; r++) {
                v16 old = v16_mul(s[r][l], a);
                v16_store(g->aged[r] + 16 * (i + l), old);
                sums[0][r] = v16_add(sums[0][r], v16_mul(old, key));
                sums[1][r] = v16_add(sums[1][r], v16_mul(old, query));
            }
        }
    }
    v16_sums(sums[0], read[0]);
    v16_sums(sums[1], read[1]);
    g->v = v;
    UNROLL for (uint32_t r = 0; r < n; r++) {
        g->write[r] = x->beta[0] * (x->v[v + r] - read[0][r]);
        x->o[v + r] = read[1][r] + g->write[r] * x->kq[0];
    }
}

/* The second. */
SC_REF_INLINE void wide_stream_write(const struct wide_stream *w, const struct wide_group *g,
    uint32_t n, uint32_t nv, sc_dtype dtype, const struct tokens *x)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    UNROLL for (uint32_t r = 0; r < n; r++) {
        v16 s[NV_MAX], u = v16_set(g->write[r]);
        UNROLL for (uint32_t i = 0; i < nv; i++)
            s[i] = v16_add(v16_load(g->aged[r] + 16 * i), v16_mul(u, v16_load(x->k + 16 * i)));
        UNROLL for (uint32_t j = 0; j < 2; j++)
            if (w->to[j] != NULL)
                wide_store(w->to[j] + (g->v + r) * row_bytes, dtype, nv, s, x->o[g->v + r]);
    }
}

/* A group is read before the one in front of it is written: what it reads fills the time that the
 * other's sums take. */
SC_REF_INLINE void wide_stream_all(const struct wide_stream *w, uint32_t nv, sc_dtype dtype,
    struct tokens *x)
{
    struct wide_group group[2];
    uint32_t rows = w->rows, v = 0, at = 0;
    if (rows >= STREAM_ROWS) {
        wide_stream_read(w, &group[0], 0, STREAM_ROWS, nv, dtype, x);
        for (v = STREAM_ROWS; v + STREAM_ROWS <= rows; v += STREAM_ROWS, at = 1 - at) {
            wide_stream_read(w, &group[1 - at], v, STREAM_ROWS, nv, dtype, x);
            wide_stream_write(w, &group[at], STREAM_ROWS, nv, dtype, x);
        }
        wide_stream_write(w, &group[at], STREAM_ROWS, nv, dtype, x);
    }
    for (uint32_t left = rows % STREAM_ROWS; left > 0; left--, v++) {
        wide_stream_read(w, &group[0], v, 1, nv, dtype, x);
        wide_stream_write(w, &group[0], 1, nv, dtype, x);
    }
}

/* One prepared token (x->count == 1), for a k_dim that wide_knows(). */
SC_REF_INLINE void wide_stream_run(const struct wide_stream *w, uint32_t k_dim, struct tokens *x)
{
    if (k_dim == 128 && w->dtype == SC_DTYPE_F32)
        wide_stream_all(w, 8, SC_DTYPE_F32, x);
    else if (k_dim == 128)
        wide_stream_all(w, 8, SC_DTYPE_BF16, x);
    else if (k_dim == 64)
        wide_stream_all(w, 4, w->dtype, x);
    else
        wide_stream_all(w, 16, w->dtype, x);
}

#endif
