/* SPDX-License-Identifier: Apache-2.0 */
/* The served model once more, in float64, one token at a time, sharing no code with the library's
 * kernels: what the check compares rounded results with. States are never rounded, except that a
 * narrower conv window rounds the model's inputs, which is part of the model. */
#ifndef BENCH_REF64_H
#define BENCH_REF64_H

#include "served_model.h"

struct ref64;
struct ref64 *ref64_create(const struct served_model *model, uint32_t token_max);
void ref64_destroy(struct ref64 *ref);
/* Computes the next token; `hidden_out` gets its last hidden state. */
void ref64_step(struct ref64 *ref, int32_t token, double *hidden_out);
/* The recurrent matrix of linear layer `layer`, [HV][V][K]; NULL for an attention layer. */
const double *ref64_state(const struct ref64 *ref, uint32_t layer);

#endif
