/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch of the reference chunk form: what one head needs, 64-byte aligned pieces. */
#ifndef SC_DELTA_SCRATCH_H
#define SC_DELTA_SCRATCH_H

#include "kernel_check.h"

enum { SC_SCRATCH_ALIGN = 64 };

struct sc_delta_chunk_scratch {
    float *state; /* [K][V]: transposed, so that every inner loop runs along V */
    float *q;     /* [C][K] normalised, scaled */
    float *k;     /* [C][K] normalised */
    float *alpha; /* [C][K] decay of each token (GDN: one value repeated) */
    float *gq;    /* [C][K] q times decay since the chunk's start */
    float *gk;    /* [C][K] k times decay since the chunk's start */
    float *y;     /* [C][K] k times decay since its token; at the end, to the chunk's end */
    float *u;     /* [C][V] beta (v - S k), then solved */
    float *o;     /* [C][V] */
    float *a;     /* [C][C] */
    float *p;     /* [C][C] */
    float *decay; /* [K] from the chunk's start to its end */
    float *beta;  /* [C] */
};

/* Bytes needed; sets the pieces when `pieces` is given. */
uint64_t sc_delta_chunk_scratch(const sc_k_delta_params *params,
    struct sc_delta_chunk_scratch *pieces);

#endif
