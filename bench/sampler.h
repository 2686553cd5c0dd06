/* SPDX-License-Identifier: Apache-2.0 */
/* What follows a token: Gumbel-max over the model's logits. The noise depends on seed, request and
 * position alone, not on the batch, so that a rerun samples the same text. */
#ifndef BENCH_SAMPLER_H
#define BENCH_SAMPLER_H

#include "served_model.h"

struct sampler {
    const struct served_model *model; /* NULL: nothing is computed, the text is noise */
    uint32_t vocab;
    float temperature;
    uint64_t seed;
};

/* The token at `position` of `request`, from the logits of the one before. */
int32_t sampler_next(const struct sampler *sampler, size_t request, uint32_t position,
    const float *logits);

#endif
