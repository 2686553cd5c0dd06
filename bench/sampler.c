/* SPDX-License-Identifier: Apache-2.0 */
#include "sampler.h"

#include <math.h>

#include "base/prng.h"

int32_t sampler_next(const struct sampler *sampler, size_t request, uint32_t position,
    const float *logits)
{
    uint64_t seed = sc_mix64(sc_mix64(sampler->seed + request) + position);
    if (!sampler->model)
        return (int32_t)(seed % sampler->vocab);
    uint32_t vocab = sampler->model->options.vocab, best = 0;
    float best_score = -INFINITY;
    for (uint32_t i = 0; i < vocab; i++) {
        double unit = ((double)(sc_mix64(seed + i) >> 11) + 0.5) * 0x1p-53;
        float score = logits[i] - sampler->temperature * (float)log(-log(unit));
        if (score > best_score) {
            best_score = score;
            best = i;
        }
    }
    return (int32_t)best;
}
