/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch of the wide chunk form: SC_WIDE_SHARE states and what one head needs, in 64-byte aligned
 * pieces. K and V are rounded up to 16; rows of K, V and C numbers lie sc_wide_row() apart. */
#ifndef SC_CHUNK_WIDE_H
#define SC_CHUNK_WIDE_H

#include "delta/delta_ref.h"
#include "delta/delta_scratch.h"

enum { SC_WIDE_C = 64, SC_WIDE_C_ROW = 80, SC_WIDE_SHARE = 4 };

/* Floats from one row to the next, of rows of `width`: an odd number of cache lines. With rows of a
 * power of two the lines of one column, which a product walks down, would share a few sets of the
 * nearest cache. Measured, it gave nothing on Zen 4 (docs/explanation/kernels/delta.md). */
static inline uint32_t sc_wide_row(uint32_t width)
{
    return ((width + 15) / 16 | 1) * 16;
}

struct sc_delta_wide {
    float *state; /* [SHARE][K][V] */
    float *lines; /* [8][K] */
    float *q, *k; /* [C][K] normalised; q scaled */
    float *kt;    /* [K][C] GDN: k; KDA: k aged to the last block's end */
    float *kk;    /* [C][C] GDN: k.k, q.k */
    float *qk;
    float *a, *p; /* [C][C] */
    float *u, *o; /* [C][V] */
    float *gk, *gq;         /* KDA: [C][K] since the chunk's start */
    float *lk, *lq;         /* KDA: [16][K] since the block's start */
    float *alpha, *y;       /* KDA: [16][K] */
    float *since, *until;   /* GDN: [C]; KDA: since [K] */
    float *block;           /* KDA: [K] */
    float *beta;            /* [C] */
};

static inline float *sc_wide_piece(uint8_t *base, uint64_t *used, uint64_t elems)
{
    float *piece = base != NULL ? (float *)(void *)(base + *used) : NULL;
    *used += (elems * sizeof(float) + SC_SCRATCH_ALIGN - 1) / SC_SCRATCH_ALIGN * SC_SCRATCH_ALIGN;
    return piece;
}

/* Bytes needed; sets the pieces when `x` is given. */
static inline uint64_t sc_delta_wide_scratch(const sc_k_delta_params *params,
    struct sc_delta_wide *x)
{
    struct sc_delta_wide none;
    uint8_t *base = x != NULL ? sc_host_ptr(params->scratch) : NULL;
    uint64_t k = (params->shape.k_dim + 15) / 16 * 16, c = SC_WIDE_C, used = 0;
    uint64_t k_row = sc_wide_row(params->shape.k_dim), v_row = sc_wide_row(params->shape.v_dim);
    if (x == NULL) x = &none;
    x->state = sc_wide_piece(base, &used, SC_WIDE_SHARE * k * v_row);
    x->lines = sc_wide_piece(base, &used, 8 * k_row);
    x->q = sc_wide_piece(base, &used, c * k_row);
    x->k = sc_wide_piece(base, &used, c * k_row);
    x->kt = sc_wide_piece(base, &used, k * SC_WIDE_C_ROW);
    x->kk = sc_wide_piece(base, &used, c * SC_WIDE_C_ROW);
    x->qk = sc_wide_piece(base, &used, c * SC_WIDE_C_ROW);
    x->a = sc_wide_piece(base, &used, c * SC_WIDE_C_ROW);
    x->p = sc_wide_piece(base, &used, c * SC_WIDE_C_ROW);
    x->u = sc_wide_piece(base, &used, c * v_row);
    x->o = sc_wide_piece(base, &used, c * v_row);
    x->gk = sc_wide_piece(base, &used, c * k_row);
    x->gq = sc_wide_piece(base, &used, c * k_row);
    x->lk = sc_wide_piece(base, &used, 16 * k_row);
    x->lq = sc_wide_piece(base, &used, 16 * k_row);
    x->alpha = sc_wide_piece(base, &used, 16 * k_row);
    x->y = sc_wide_piece(base, &used, 16 * k_row);
    x->since = sc_wide_piece(base, &used, k > c ? k : c);
    x->until = sc_wide_piece(base, &used, c);
    x->block = sc_wide_piece(base, &used, k);
    x->beta = sc_wide_piece(base, &used, c);
    return used;
}

#endif
