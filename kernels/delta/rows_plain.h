/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the delta rule on rows of S, in plain C: what every other form of a step must equal to
 * the bit. Tokens come prepared, a few at a time. */
#ifndef SC_ROWS_PLAIN_H
#define SC_ROWS_PLAIN_H

#include "delta/delta_ref.h"

enum { BLOCK_ELEMS = 16384, TOKENS_MAX = 16 }; /* 64 KiB: all of a 128 x 128 state */

/* Prepared tokens of one head: q scaled, q and k normalised, alpha = exp(g). Token t begins at
 * t * k_dim or t * rows; v and o are those of the rows of the block. */
struct tokens {
    uint32_t count;
    float q[TOKENS_MAX * SC_K_DIM_MAX];
    float k[TOKENS_MAX * SC_K_DIM_MAX];
    float alpha[TOKENS_MAX * SC_K_DIM_MAX];
    float v[TOKENS_MAX * SC_K_DIM_MAX];
    float o[TOKENS_MAX * SC_K_DIM_MAX];
    float beta[TOKENS_MAX];
    float kq[TOKENS_MAX]; /* k . q */
};

/* Decay, read, write, output, for token t. One pass over S reads it for k and for q, both decayed,
 * and the output is put together from what the write adds to it:
 *
 *   S alpha = S'     u = beta (v - S' k)     S <- S' + u k^T     o = S q = S' q + u (k . q)
 *
 * Then what storing and loading would do to a 16-bit state. */
SC_REF_INLINE void plain_step(float *block, uint32_t rows, uint32_t k_dim, struct tokens *x,
    uint32_t t, sc_dtype state)
{
    const float *q = x->q + (size_t)t * k_dim, *k = x->k + (size_t)t * k_dim;
    const float *alpha = x->alpha + (size_t)t * k_dim;
    for (uint32_t v = 0; v < rows; v++) {
        float *restrict s = block + (size_t)v * k_dim;
        float read[2];
        ref_scale_dots(s, alpha, k, q, k_dim, read);
        float u = x->beta[t] * (x->v[(size_t)t * rows + v] - read[0]);
        x->o[(size_t)t * rows + v] = read[1] + u * x->kq[t];
        for (uint32_t i = 0; i < k_dim; i++) s[i] = s[i] + u * k[i];
    }
    ref_round(block, state, rows * k_dim);
}

/* All tokens, one after the other. */
SC_REF_INLINE void plain_steps(float *block, uint32_t rows, uint32_t k_dim, struct tokens *x,
    sc_dtype state)
{
    for (uint32_t t = 0; t < x->count; t++) plain_step(block, rows, k_dim, x, t, state);
}

#endif
