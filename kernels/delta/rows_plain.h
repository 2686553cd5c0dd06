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
    _Alignas(64) float q[TOKENS_MAX * SC_K_DIM_MAX];
    _Alignas(64) float k[TOKENS_MAX * SC_K_DIM_MAX];
    _Alignas(64) float alpha[TOKENS_MAX * SC_K_DIM_MAX];
    _Alignas(64) float v[TOKENS_MAX * SC_K_DIM_MAX];
    _Alignas(64) float o[TOKENS_MAX * SC_K_DIM_MAX];
    float beta[TOKENS_MAX];
    float kq[TOKENS_MAX]; /* k . q */
    /* made by tokens_ready(), for bf16 states */
    _Alignas(64) float read[TOKENS_MAX * SC_K_DIM_MAX]; /* k alpha on a grid, as q is */
    float read_scale[TOKENS_MAX], q_scale[TOKENS_MAX];
    float k_least[TOKENS_MAX]; /* what u must be times, to be fused */
};

/* ---- bf16 states ----
 *
 * Elements of such a state have 8 significant bits. A product of them with a factor of 16 bits is
 * exact in fp32, and then it is one whether the product is fused with the sum it goes into or
 * not: rows that can fuse do so, and have the bits of those that cannot. Hence
 *
 *   S k' and S q', k' = k alpha and q' = q alpha:  multiples of 2^-16 of at most 1, times a power
 *       of two for all of k' that is taken out of the sum. A bf16 number is a multiple of 2^-133,
 *       so a product is one of 2^-149: exact, denormals too.
 *   S alpha + u k:  alpha with 16 bits. The product S alpha can be a denormal and inexact; beside a
 *       u k of 2^-80 it leaves no trace then. Such a u k spares denormal sums, too: both terms are
 *       multiples of 2^-105 where they are of one size. A row with a smaller u k is not fused.
 *
 * What that takes from k', q' and alpha is 2^-17 of the largest element, or of alpha. */

/* x[0 .. n) become multiples of 2^-16 of at most 1; what they are to be times. */
SC_REF_INLINE float tokens_grid(float *restrict x, uint32_t n)
{
    const float magic = 192.0f; /* 1.5 * 2^7: adding it rounds to a multiple of 2^-16 */
    int32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        int32_t size = (int32_t)(ref_f32_bits(x[i]) & 0x7fffffffu);
        most = size > most ? size : most;
    }
    uint32_t exponent = (uint32_t)most >> 23;
    bool usual = exponent <= 252; /* beyond 2^126 all is NaN */
    float scale = usual ? ref_bits_f32((253 - exponent) << 23) : NAN;
    for (uint32_t i = 0; i < n; i++) {
        float shifted = x[i] * scale + magic;
        x[i] = shifted - magic;
    }
    return usual ? ref_bits_f32((exponent + 1) << 23) : NAN;
}

/* Token t as steps on bf16 states need it. */
SC_REF_INLINE void tokens_round(struct tokens *x, uint32_t t, uint32_t k_dim)
{
    float *restrict q = x->q + (size_t)t * k_dim, *restrict read = x->read + (size_t)t * k_dim;
    float *restrict alpha = x->alpha + (size_t)t * k_dim;
    const float *restrict k = x->k + (size_t)t * k_dim;
    int32_t decay = 0;
    for (uint32_t i = 0; i < k_dim; i++) {
        int32_t a = (int32_t)ref_f32_bits(alpha[i]);
        decay = a > decay ? a : decay;
    }
    for (uint32_t i = 0; i < k_dim; i++) {
        read[i] = k[i] * alpha[i];
        q[i] = q[i] * alpha[i];
        float shifted = alpha[i] * 257.0f; /* 2^8 + 1: the upper 16 bits, to nearest */
        alpha[i] = shifted - (shifted - alpha[i]);
    }
    x->read_scale[t] = tokens_grid(read, k_dim);
    x->q_scale[t] = tokens_grid(q, k_dim);
    x->k_least[t] = decay > 0x3f800000 ? 0.0f : ref_least_size(k, k_dim); /* above 1: none */
}

/* Prepared tokens, all of them and once, before their first step. */
SC_REF_INLINE void tokens_ready(struct tokens *x, uint32_t k_dim, sc_dtype state)
{
    for (uint32_t t = 0; t < x->count && state == SC_DTYPE_BF16; t++) tokens_round(x, t, k_dim);
}

/* ---- steps ---- */

/* Decay, read, write, output, for token t. One pass over S reads it for k and for q, both decayed,
 * and the output is put together from what the write adds to it:
 *
 *   S alpha = S'     u = beta (v - S' k)     S <- S' + u k^T     o = S q = S' q + u (k . q)
 */
SC_REF_INLINE void plain_step(float *block, uint32_t rows, uint32_t k_dim, struct tokens *x,
    uint32_t t)
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
}

/* The same for a bf16 state, with the decay in k and q, then what storing and loading would do to
 * it. */
SC_REF_INLINE void plain_step_bf16(float *block, uint32_t rows, uint32_t k_dim,
    struct tokens *x, uint32_t t)
{
    const float *q = x->q + (size_t)t * k_dim, *k = x->k + (size_t)t * k_dim;
    const float *alpha = x->alpha + (size_t)t * k_dim, *read = x->read + (size_t)t * k_dim;
    for (uint32_t v = 0; v < rows; v++) {
        float *restrict s = block + (size_t)v * k_dim;
        float old = ref_dot(s, read, k_dim) * x->read_scale[t];
        float out = ref_dot(s, q, k_dim) * x->q_scale[t];
        float u = x->beta[t] * (x->v[(size_t)t * rows + v] - old);
        x->o[(size_t)t * rows + v] = out + u * x->kq[t];
        for (uint32_t i = 0; i < k_dim; i++) s[i] = s[i] * alpha[i] + u * k[i];
    }
    ref_round(block, SC_DTYPE_BF16, rows * k_dim);
}

/* All tokens, one after the other. */
SC_REF_INLINE void plain_steps(float *block, uint32_t rows, uint32_t k_dim, struct tokens *x,
    sc_dtype state)
{
    for (uint32_t t = 0; t < x->count; t++) {
        if (state == SC_DTYPE_BF16)
            plain_step_bf16(block, rows, k_dim, x, t);
        else
            plain_step(block, rows, k_dim, x, t);
    }
}

#endif
