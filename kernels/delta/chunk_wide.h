/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch of the wide chunk form: SC_WIDE_SHARE states and what one head needs, in 64-byte aligned
 * pieces. K and V are rounded up to 16. */
#ifndef SC_CHUNK_WIDE_H
#define SC_CHUNK_WIDE_H

#include "delta/delta_ref.h"
#include "delta/delta_scratch.h"

enum { SC_WIDE_C = 64, SC_WIDE_SHARE = 4 };

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
    uint64_t k = (params->shape.k_dim + 15) / 16 * 16, v = (params->shape.v_dim + 15) / 16 * 16;
    uint64_t c = SC_WIDE_C, used = 0;
    if (x == NULL) x = &none;
    x->state = sc_wide_piece(base, &used, SC_WIDE_SHARE * k * v);
    x->lines = sc_wide_piece(base, &used, 8 * k);
    x->q = sc_wide_piece(base, &used, c * k);
    x->k = sc_wide_piece(base, &used, c * k);
    x->kt = sc_wide_piece(base, &used, k * c);
    x->kk = sc_wide_piece(base, &used, c * c);
    x->qk = sc_wide_piece(base, &used, c * c);
    x->a = sc_wide_piece(base, &used, c * c);
    x->p = sc_wide_piece(base, &used, c * c);
    x->u = sc_wide_piece(base, &used, c * v);
    x->o = sc_wide_piece(base, &used, c * v);
    x->gk = sc_wide_piece(base, &used, c * k);
    x->gq = sc_wide_piece(base, &used, c * k);
    x->lk = sc_wide_piece(base, &used, 16 * k);
    x->lq = sc_wide_piece(base, &used, 16 * k);
    x->alpha = sc_wide_piece(base, &used, 16 * k);
    x->y = sc_wide_piece(base, &used, 16 * k);
    x->since = sc_wide_piece(base, &used, k > c ? k : c);
    x->until = sc_wide_piece(base, &used, c);
    x->block = sc_wide_piece(base, &used, k);
    x->beta = sc_wide_piece(base, &used, c);
    return used;
}

#endif
